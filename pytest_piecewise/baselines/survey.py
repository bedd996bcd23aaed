"""A whole directory of baselines: what is wrong in it, what nobody uses any more, how two of them differ, what there is."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.baselines.entries import NOISE_FACTOR, Entry, Value, margin_of
from pytest_piecewise.baselines.files import Baseline, dump, load
from pytest_piecewise.errors import BaselineError
from pytest_piecewise.records import Report, Status

PLATFORM = re.compile(r"(cpu|cuda)-[\w.-]+-torch(\d+)\.(\d+)")
OLD_MINORS = 2
"""A platform that is more torch minors behind the newest of its device is probably nobody's."""


def files_in(directory: Path) -> list[Path]:
    """Every baseline file, by platform and case."""
    return sorted(directory.glob("*/*.json"))


def read(directory: Path) -> dict[str, Baseline]:
    """Every baseline by `platform/case`; one that cannot be read is an error."""
    return {f"{path.parent.name}/{path.stem}": load(path) for path in files_in(directory)}


# What is wrong


def problems(directory: Path, root: Path, today: datetime.date) -> Iterator[str]:
    """One line per thing that is wrong in a directory, with the file, the line where there is one, and the remedy."""
    for path in sorted(item for item in directory.rglob("*") if item.is_file()):
        if path.parent.parent != directory or path.suffix != ".json":
            yield f"{path}: expected PLATFORM/CASE.json and nothing else; remove it"
    for folder in sorted(item for item in directory.iterdir() if item.is_dir()):
        if not PLATFORM.fullmatch(folder.name):
            yield f"{folder}: expected a platform as DEVICE-PRODUCT-torchX.Y; rename or remove it"
    for path in files_in(directory):
        try:
            baseline = load(path)
        except BaselineError as error:
            yield str(error)
            continue
        yield from _problems_of(path, baseline, root, today)
    yield from _old_platforms(directory)


def _problems_of(path: Path, baseline: Baseline, root: Path, today: datetime.date) -> Iterator[str]:
    text = path.read_text()
    if text != dump(baseline):
        changed = zip(text.splitlines(), dump(baseline).splitlines(), strict=False)
        number = next((n for n, (a, b) in enumerate(changed, 1) if a != b), len(text.splitlines()))
        yield f"{path}:{number}: expected the canonical text; `pytest-piecewise baselines lint --fix` writes it"
    if baseline.case != path.stem:
        yield f"{path}: holds case {baseline.case}, a duplicate or a renamed file; rename or remove it"
    if baseline.source and not (root / baseline.source).exists():
        yield f"{path}: its source {baseline.source} is gone; `pytest-piecewise baselines gc` removes it"
    for name, entry in baseline.metrics.items():
        number = next(n for n, line in enumerate(text.splitlines(), 1) if f'"{name}":' in line)
        if entry.gate == "observe" and datetime.date.fromisoformat(entry.until) < today:
            yield f"{path}:{number}: the quarantine of {name} has ended on {entry.until}; see {entry.issue}, then update it"
        if entry.gate == "ratio" and entry.noise and margin_of(entry) < NOISE_FACTOR * entry.noise:
            yield (
                f"{path}:{number}: the margin of {name}, {margin_of(entry):.0%}, is below {NOISE_FACTOR} times its noise of "
                f"{entry.noise:.1%}; raise it to {NOISE_FACTOR * entry.noise:.2f}, or measure more pairs"
            )


def _old_platforms(directory: Path) -> Iterator[str]:
    newest: dict[str, tuple[int, int]] = {}
    known = []
    for folder in sorted(directory.iterdir()):
        if found := PLATFORM.fullmatch(folder.name):
            minor = (int(found[2]), int(found[3]))
            known.append((folder, found[1], minor))
            newest[found[1]] = max(newest.get(found[1], minor), minor)
    for folder, device, minor in known:
        if (newest[device][0], newest[device][1] - OLD_MINORS) > minor:
            yield f"{folder}: more than {OLD_MINORS} torch minors behind {newest[device]}; remove it if nobody runs it"


# What nobody uses


def orphans(directory: Path, root: Path, report: Report | None) -> tuple[list[tuple[Path, str]], str]:
    """Files to remove, with the reason; and why no more than those whose source is gone were looked for, if so.

    A report tells which cases of a source there still are, if its session left none out and all passed.
    """
    found = []
    cases, sources, refused = _present(report, root)
    for path in files_in(directory):
        baseline = load(path)
        if baseline.source and not (root / baseline.source).exists():
            found.append((path, f"its source {baseline.source} is gone"))
        elif not refused and baseline.source in sources.get(path.parent.name, set()) and baseline.case not in cases:
            found.append((path, f"{baseline.source} has no such case any more"))
    return found, refused


def _present(report: Report | None, root: Path) -> tuple[set[str], dict[str, set[str]], str]:
    """The cases of a report, their sources by platform, and why it cannot be relied on."""
    if report is None:
        return set(), {}, "no report was given; --report DIR/report.json of a nightly run says which cases there are"
    if not report.complete or report.left_out:
        what = ", ".join(report.left_out) or "its end"
        return set(), {}, f"the report is of a session that left tests out: {what}"
    if report.tier != "nightly":
        return set(), {}, f"the report is of tier {report.tier}, which leaves out the cases of higher ones"
    failed = [result.case.id for result in report.results if result.status in (Status.FAIL, Status.NEW)]
    if failed:
        return set(), {}, f"not all passed: {', '.join(failed[:5])}"
    sources: dict[str, set[str]] = {}
    for result in report.results:
        file = Path(result.case.file)
        if result.case.file and file.is_relative_to(root):
            sources.setdefault(result.platform, set()).add(file.relative_to(root).as_posix())
    return {result.case.id for result in report.results}, sources, ""


# How two differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric that two directories have differently; None where one has none."""

    place: str
    metric: str
    before: Value | None
    after: Value | None
    note: str = ""


def differences(before: Mapping[str, Baseline], after: Mapping[str, Baseline]) -> list[Row]:
    """Every metric whose value, gate or reason differs, by `platform/case`."""
    rows = []
    for place in sorted(before.keys() | after.keys()):
        old = before[place].metrics if place in before else {}
        new = after[place].metrics if place in after else {}
        for metric in sorted(old.keys() | new.keys()):
            a, b = old.get(metric), new.get(metric)
            if a != b:
                rows.append(
                    Row(
                        place=place,
                        metric=metric,
                        before=a.value if a else None,
                        after=b.value if b else None,
                        note=_note(a, b),
                    )
                )
    return rows


def _note(before: Entry | None, after: Entry | None) -> str:
    if after is None:
        return "gone"
    if before is None:
        return after.reason or "new"
    told = [f"{before.gate} -> {after.gate}"] if before.gate != after.gate else []
    told += [f"until {after.until}, {after.issue}"] if after.gate == "observe" else []
    return "; ".join([*told, *filter(None, [after.reason])])


def table(rows: list[Row], *, markdown: bool) -> list[str]:
    """The differences for people: a line each, or the Markdown of a pull request. New files are only counted."""
    whole = Counter(row.place for row in rows if row.before is None)
    some = {row.place for row in rows if row.before is not None}
    new = [place for place in whole if place not in some]
    told = [row for row in rows if row.place not in new]
    lines = []
    if markdown and told:
        lines += ["| case | metric | before | now | change | why |", "|---|---|---|---|---|---|"]
    for row in told:
        cells = (row.place, row.metric, _text(row.before), _text(row.after), _change(row), row.note)
        escaped = (cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {' | '.join(escaped)} |" if markdown else "  ".join(cell for cell in cells if cell))
    bullet = "- " if markdown else ""
    lines += [""] if markdown and told and new else []
    return lines + [f"{bullet}{place}: new, {whole[place]} metrics" for place in new]


def _text(value: Value | None) -> str:
    return "-" if value is None else str(value)


def _change(row: Row) -> str:
    if isinstance(row.before, (int, float)) and isinstance(row.after, (int, float)) and row.before:
        return f"{row.after / row.before - 1:+.1%}"
    return ""


# What there is


def statistics(directory: Path, today: datetime.date) -> Iterator[str]:
    """Cases and metrics by platform and gate, what is in quarantine and for how long, and margins against noise."""
    found = read(directory)
    for platform in sorted({place.partition("/")[0] for place in found}):
        here = [item for place, item in found.items() if place.startswith(f"{platform}/")]
        gates = Counter(entry.gate for item in here for entry in item.metrics.values())
        counted = ", ".join(f"{count} {gate}" for gate, count in sorted(gates.items()))
        reasons = sum(bool(entry.reason) for item in here for entry in item.metrics.values())
        yield f"{platform}: {len(here)} cases, {gates.total()} metrics ({counted}), {reasons} with a reason"
    for place, item in found.items():
        for name, entry in item.metrics.items():
            if entry.gate == "observe":
                left = (datetime.date.fromisoformat(entry.until) - today).days
                yield f"  observed: {place} {name}, {entry.issue}, {f'{left} days left' if left >= 0 else 'ended'}"
            if entry.gate == "ratio":
                noise = f"{entry.noise:.1%}" if entry.noise else "not known; `pytest-piecewise null` measures it"
                yield f"  ratio: {place} {name} = {entry.value}, margin {margin_of(entry):.0%}, noise {noise}"
