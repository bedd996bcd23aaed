"""The results that steps owe: found or missing, whole or broken, and what they say together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.errors import ReportError
from pytest_piecewise.exits import CODES, COST, COST_CHECKS, NEW
from pytest_piecewise.records import CaseResult, Report, Status
from pytest_piecewise.reports import document, markdown

SOFT = (CODES[COST], CODES[NEW])
"""Exit codes of a session that are no error in a pull request: cost regressions alone, new baselines alone."""


@dataclass(frozen=True, slots=True)
class Owed:
    """One result file: what is in it, or what is wrong with it."""

    name: str
    report: Report | None
    problem: str = ""

    @property
    def failing(self) -> tuple[CaseResult, ...]:
        """Cases that fail for anything but their cost."""
        results = self.report.results if self.report else ()
        return tuple(item for item in results if _fails(item))


def _fails(result: CaseResult) -> bool:
    return any(item.status is Status.FAIL and item.check not in COST_CHECKS for item in result.findings)


def _costs(result: CaseResult) -> bool:
    return not _fails(result) and result.status in (Status.FAIL, Status.NEW, Status.STALE)


def read_owed(folder: Path, names: Sequence[str]) -> tuple[Owed, ...]:
    """The result files `names` below `folder`. One that is absent, broken, unfinished or empty has a problem.

    So have the shards of one step (files in sibling directories) that were not made from one list of tests.
    """
    found = tuple(_read(folder / name, name) for name in names)
    return tuple(_with_shards(item, [it for it in found if _step(it) == _step(item)]) for item in found)


def _step(item: Owed) -> Path:
    return Path(item.name).parent.parent


def _with_shards(item: Owed, step: Sequence[Owed]) -> Owed:
    """The result, with a problem if it and the others of its step do not make a whole."""
    if item.problem or item.report is None or not item.report.selection.shard:
        return item
    chosen = [it.report.selection for it in step if it.report]
    mine, count = item.report.selection, int(item.report.selection.shard.partition("/")[2])
    others = [it for it in chosen if it.split != mine.split]
    problem = ""
    if others:
        problem = (
            f"shard {mine.shard} is of split {mine.split}, another of {others[0].split}: tests were lost or repeated"
        )
    elif len({it.shard for it in chosen}) != count:
        problem = f"shard {mine.shard}, but {len({it.shard for it in chosen})} of {count} shards are here"
    return dataclasses.replace(item, problem=problem)


def _read(path: Path, name: str) -> Owed:
    if not path.is_file():
        return Owed(name, None, "missing: the step ended before it wrote a result, or wrote it elsewhere")
    try:
        report = document.read(path)
    except ReportError as error:
        return Owed(name, None, f"cannot be read: {str(error).removeprefix(f'{path}: ')}")
    return Owed(name, report, _problem(report))


def _problem(report: Report) -> str:
    if not report.complete:
        return f"unfinished: the session ended early, after {len(report.results)} case(s)"
    statuses, chosen = [result.status for result in report.results], report.selection
    if not statuses:
        allowed = chosen.empty_allowed and chosen.collected and not chosen.chosen and not report.exit_code
        return "" if allowed else "empty: no case was checked"
    if report.exit_code not in (0, *SOFT) and not any(map(_fails, report.results)):
        return f"the session ended with exit code {report.exit_code}, though no case failed: see its log"
    if all(status is Status.SKIP for status in statuses):
        return f"nothing was checked: all {len(statuses)} case(s) were skipped"
    return ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all results say: `style` is success, warning or error, as an annotation has it; `text` is Markdown."""

    style: str
    text: str


def judge(owed: Sequence[Owed]) -> Verdict:
    """One verdict on all results: what is wrong with them, then what is in them, failures first."""
    reports = [item.report for item in owed if item.report]
    failing = sum(len(item.failing) for item in owed)
    costs = sum(map(_costs, (result for report in reports for result in report.results)))
    problems = [f"| `{item.name}` | {markdown.quoted(item.problem)} |" for item in owed if item.problem]
    style = "error" if problems or failing else "warning" if costs else "success"
    said = [(len(problems), "unusable"), (failing, "case(s) failing"), (costs, "case(s) with changed cost")]
    lines = [f"**{len(owed)} result(s)**: " + (", ".join(f"{n} {what}" for n, what in said if n) or "all passed")]
    if problems:
        lines += ["", "| result | what is wrong |", "|---|---|", *problems]
    head = "\n".join(lines) + "\n"
    body = markdown.render(document.merge(reports), markdown.LIMIT - len(head.encode())) if reports else ""
    return Verdict(style, f"{head}\n{body}")
