"""Records -> lines of text for a terminal. Strings out, no output of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_piecewise.expected import still_failing
from pytest_piecewise.records import BuildRecord, CaseResult, Finding, Status
from pytest_piecewise.reports.located import localization_lines
from pytest_piecewise.reports.tables import ORDER, cut

COLUMNS = ("case", "variant", "pieces", "compile s", "capture s", "pool MiB", "error/budget", "verdict")
DETAIL_LINES = 40
LINE, NAME = 2000, 120
"""Most characters of a line of text, and of a case's name."""


def finding_lines(finding: Finding) -> Iterator[str]:
    """A finding as a reader meets it in a failed test."""
    where = f" ({finding.variant})" if finding.variant else ""
    summary = clean(cut(finding.summary, LINE))
    yield f"{finding.status} {finding.check}{where}: {summary}"
    lines = finding.detail.splitlines()
    for line in lines[:DETAIL_LINES]:
        if (shown := clean(cut(line, LINE))) != summary:
            yield f"    {shown}"
    if len(lines) > DETAIL_LINES:
        yield f"    ... {len(lines) - DETAIL_LINES} more line(s), in the report"
    if finding.action:
        yield f"    -> {clean(cut(finding.action, LINE))}"


def failure_text(result: CaseResult, findings: Sequence[Finding], command: str) -> str:
    """What a failing test shows: its findings, failures first, and the command that repeats them. The first line is all
    that pytest's own summary has room for, so that it starts with the checks."""
    ranked = sorted(findings, key=lambda item: ORDER.index(item.status))
    bad = dict.fromkeys(item.check for item in ranked if item.status in (Status.FAIL, Status.NEW))
    lines = [f"{', '.join(bad)} of {name(result)} on {result.case.device}, seed {result.seed}:"]
    for item in ranked:
        if item.status in (Status.FAIL, Status.NEW, Status.STALE):
            lines += finding_lines(item)
    for located in result.localizations:
        lines += (clean(cut(line, LINE)) for line in localization_lines(located))
    others = [item for item in ranked if item.status in (Status.PASS, Status.SKIP)]
    lines.append(f"{sum(item.status is Status.PASS for item in others)} other checks passed")
    lines += _skip_lines([item for item in others if item.status is Status.SKIP])
    lines.append(f"repeat: {command}")
    return "\n".join(lines)


def _skip_lines(skipped: Sequence[Finding]) -> list[str]:
    """One line per reason, with the variants that share it."""
    variants: dict[tuple[str, str], list[str]] = {}
    for item in skipped:
        variants.setdefault((item.check, item.summary), []).append(item.variant)
    return [
        f"SKIP {check}" + (f" ({', '.join(names)})" if any(names) else "") + f": {clean(cut(summary, LINE))}"
        for (check, summary), names in variants.items()
    ]


def summary_table(results: Sequence[CaseResult]) -> list[str]:
    """One row per case and variant, failures first."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for result in sorted(results, key=lambda item: (ORDER.index(item.status), item.case.id)):
        for build in result.builds:
            if build.variant not in ("reference", "comparison"):
                rows.append(_row(result, build))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    notes = [
        f"note: {name(r)}: {clean(cut(note, LINE))}" for r in results for build in r.builds for note in build.notes
    ]
    return [*(_join(row, widths) for row in rows), *notes, *_updates(results)]


def _updates(results: Sequence[CaseResult]) -> list[str]:
    """What asks for an update of baselines without failing the run."""
    found = [(name(r), f) for r in results for f in r.findings if f.status in (Status.NEW, Status.STALE)]
    return [f"{f.status}: {case}: {clean(cut(f.summary, LINE))}; {clean(cut(f.action, LINE))}" for case, f in found]


def _row(result: CaseResult, build: BuildRecord) -> tuple[str, ...]:
    mine = [item for item in result.findings if item.variant == build.variant]
    if build.variant == "piecewise":  # what is said of the whole case belongs to one row
        others = {item.variant for item in result.builds} - {"reference", "comparison"}
        mine += [item for item in result.findings if item.variant not in others]
    failed = list(dict.fromkeys(item.check for item in mine if item.status is Status.FAIL))
    other = next((str(s) for s in (Status.NEW, Status.STALE) if any(item.status is s for item in mine)), "ok")
    if known := still_failing(result.case.expected, mine):
        other = f"{other}, expected: {', '.join(known)}"
    ratios = [
        item.ratio for item in result.comparisons if item.variant == build.variant and item.check == "equivalence"
    ]
    pieces = f"{build.counts.pieces} ({build.counts.distinct_pieces})" if build.counts.pieces else ""
    return (
        name(result),
        build.variant,
        pieces,
        _metric(build, "compile", 1.0, "{:.2f}"),
        _metric(build, "capture", 1.0, "{:.2f}") or ("recorded" if build.graph_kind == "recorded graphs" else ""),
        _metric(build, "graph_pool", 2**20, "{:.1f}"),
        f"{max(ratios):.3g}" if ratios else "",
        "FAIL " + ", ".join(failed) if failed else other,
    )


def name(result: CaseResult) -> str:
    """The case's name as it may be printed."""
    return clean(cut(result.case.id, NAME))


def _metric(build: BuildRecord, name: str, unit: float, form: str) -> str:
    return next((form.format(metric.value / unit) for metric in build.metrics if metric.name == name), "")


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if column in (0, 1, len(COLUMNS) - 1) else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def clean(text: str) -> str:
    """Without control characters, which could move the cursor or recolour what follows, and without a beginning that
    GitHub takes for a command in a log."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return f"\u00b7{shown.lstrip()}" if shown.lstrip().startswith(("::", "##[")) else shown
