"""The results that steps owe: found or missing, whole or broken, and what they say together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_piecewise.exits import CODES, COST, COST_CHECKS, NEW
from pytest_piecewise.records import SCHEMA_VERSION, CaseResult, Report, Status, from_plain

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
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA_VERSION:
            return Owed(name, None, f"expected report schema {SCHEMA_VERSION}, found {data['schema']}")
        report = from_plain(Report, data)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return Owed(name, None, f"cannot be read: {type(error).__name__}: {error}")
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
    """One verdict on all results, with a table of what is not as it should be, worst first."""
    problems = [f"| `{item.name}` | {_cell(item.problem)} |" for item in owed if item.problem]
    failing = [f"| `{result.case.id}` | {_why(result)} |" for item in owed for result in item.failing]
    reports = [item.report for item in owed if item.report]
    costs = [f"| `{result.case.id}` | {_why(result)} |" for it in reports for result in it.results if _costs(result)]
    style = "error" if problems or failing else "warning" if costs else "success"
    cases = sum(len(report.results) for report in reports)
    lines = [
        f"**piecewise**: {cases} case(s) in {len(reports)} of {len(owed)} result(s); {_said(problems, failing, costs)}"
    ]
    for title, rows in (("result", problems), ("failing case", failing), ("cost", costs)):
        if rows:
            lines += ["", f"| {title} | |", "|---|---|", *rows]
    return Verdict(style, "\n".join(lines) + "\n")


def _said(problems: Sequence[str], failing: Sequence[str], costs: Sequence[str]) -> str:
    said = [(problems, "result(s) unusable"), (failing, "failing"), (costs, "with changed cost")]
    return ", ".join(f"{len(rows)} {what}" for rows, what in said if rows) or "all passed"


def _why(result: CaseResult) -> str:
    bad = [item for item in result.findings if item.status in (Status.FAIL, Status.NEW, Status.STALE)]
    return "<br>".join(_cell(f"{item.check} {item.variant}: {item.summary}") for item in bad[:5])


def _cell(text: str) -> str:
    """Text within a table cell: one line, and nothing that Markdown or HTML would take for its own."""
    text = " ".join(text.split())[:300]
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("`", "&#96;")):
        text = text.replace(character, safe)
    return text
