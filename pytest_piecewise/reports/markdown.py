"""Records -> Markdown for Buildkite's annotations and GitHub's step summaries: failures first, bounded in size."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from pytest_piecewise.records import CaseResult, Finding, Report, Status
from pytest_piecewise.reports.located import localization_lines
from pytest_piecewise.reports.tables import (
    bounded,
    cut,
    facts,
    headline,
    quantity,
    ranked,
    variants,
    worst_first,
    worst_ratio,
)
from pytest_piecewise.reports.terminal import clean

LIMIT = 1_000_000
"""Bytes; Buildkite takes 1 MiB, GitHub 1024 KiB. Buildkite allows 10 links: there are two, to the build and to the page."""
SUMMARY, DETAIL, ROWS = 800, 4000, 300
"""Most characters of a summary and of a detail, and most rows of the table."""


def render(report: Report, limit: int = LIMIT, page: str = "") -> str:
    """The text, of at most `limit` bytes; what did not fit is counted in its last line. `page` is a link to the HTML."""
    report = bounded(report)
    results = worst_first(report.results)
    failed = [result for result in results if result.status in (Status.FAIL, Status.NEW, Status.STALE)]
    blocks = [*_head(report, results, page), *_table(results), *map(_section, failed), *_history(report)]
    kept: list[str] = []
    size, room = 0, limit - 200
    for block in blocks:
        size += len(block.encode()) + 1
        if size > room:
            kept.append(
                f"\n{len(blocks) - len(kept)} further part(s) did not fit; all of it is in report.html and report.json."
            )
            break
        kept.append(block)
    return "\n".join(kept) + "\n"


def _head(report: Report, results: Sequence[CaseResult], page: str) -> Iterator[str]:
    yield f"## piecewise: {headline(results)}\n"
    said = [f"[the whole report]({page})"] if page else []
    for name, value in facts(report):
        linked = name == "build" and re.fullmatch(r"https?://[\w.:/#?=&%~-]+", value)
        said.append(f"[build]({value})" if linked else f"{name} {quoted(cut(value, 120))}")
    yield " · ".join(said)
    if not report.complete:
        yield "\n**This run was interrupted: what is here is what was known by then.**"


def _table(results: Sequence[CaseResult]) -> Iterator[str]:
    rows = [
        "",
        "| case | verdict | failed checks | pieces | compile s, full | piecewise | error/budget |",
        "|" + "---|" * 7,
    ]
    for result in results[:ROWS]:
        builds = {build.variant: build for build in variants(result)}
        compile_seconds = [
            next((f"{m.value:.2f}" for m in builds[name].metrics if m.name == "compile"), "") if name in builds else ""
            for name in ("full", "piecewise")
        ]
        failed = dict.fromkeys(item.check for item in result.findings if item.status is Status.FAIL)
        pieces = f"{builds['piecewise'].counts.pieces}" if "piecewise" in builds else ""
        worst = [ratio for name in ("full", "piecewise") if (ratio := worst_ratio(result, name)) is not None]
        cells = [quoted(cut(result.case.id, 120)), f"**{result.status}**", quoted(", ".join(failed)), pieces]
        cells += [*compile_seconds, f"{max(worst):.3g}" if worst else ""]
        rows.append("| " + " | ".join(cells) + " |")
    if len(results) > ROWS:
        rows.append(f"\n{len(results) - ROWS} further case(s) are in report.html.")
    yield "\n".join(rows)


def _section(result: CaseResult) -> str:
    lines = [f"\n### {result.status} {quoted(cut(result.case.id, 120))}\n"]
    for item in ranked(result.findings):
        if item.status in (Status.FAIL, Status.NEW, Status.STALE):
            lines += _finding(item)
    for located in result.localizations:
        head, *rest = localization_lines(located)
        lines += [f"- **{quoted(cut(head, SUMMARY))}**", "", fenced(cut("\n".join(rest), DETAIL)), ""]
    return "\n".join(lines)


def _finding(item: Finding) -> Iterator[str]:
    where = f" ({quoted(item.variant)})" if item.variant else ""
    yield f"- **{item.status} {quoted(item.check)}**{where}: {quoted(cut(item.summary, SUMMARY))}"
    if item.action:
        yield f"  → {quoted(cut(item.action, SUMMARY))}"
    if item.detail and item.detail != item.summary:
        yield f"\n<details><summary>Detail</summary>\n\n{fenced(cut(item.detail, DETAIL))}\n</details>\n"


def _history(report: Report) -> Iterator[str]:
    lines = []
    for trend in report.trends:
        for mark in trend.marks:
            if mark.worse:
                name = quoted("/".join(filter(None, (trend.case, trend.variant, trend.metric))))
                lines.append(f"- {name}: {quoted(mark.text)}; now {quantity(trend.values[-1], trend.kind)}")
    if lines:
        yield "\n### Slower or larger than before\n\n" + "\n".join(lines)


def quoted(text: str) -> str:
    """Text of unknown origin as nothing but text: no markup, no HTML, no link that a renderer would make by itself."""
    text = clean(text).encode("utf-8", "replace").decode()
    text = re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"(?i)\bwww\.", "www&#46;", text.replace("://", "&#58;//").replace("@", "&#64;"))


def fenced(text: str) -> str:
    """Text as a block of code, in a fence that is longer than any within it."""
    lines = "\n".join(clean(line) for line in text.splitlines()).encode("utf-8", "replace").decode()
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", lines)), default=0))
    return f"{fence}\n{lines}\n{fence}"
