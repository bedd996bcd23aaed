"""Records -> one HTML file that needs nothing else: no network, no library, and no script but its own can run in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from pytest_piecewise.errors import ReportError
from pytest_piecewise.history.series import text as series_text
from pytest_piecewise.located import Localization
from pytest_piecewise.records import CaseResult, Report, Status, Trend
from pytest_piecewise.reports.costs import cost_rows
from pytest_piecewise.reports.located import localization_lines
from pytest_piecewise.reports.tables import (
    ORDER,
    bounded,
    cut,
    facts,
    headline,
    quantity,
    ranked,
    side_by_side,
    variants,
    worst_first,
    worst_ratio,
)

HEAT_MAPS = 6
"""Most maps per case; further ones are counted."""
PROBLEMS = (Status.FAIL, Status.NEW, Status.STALE)


def render(report: Report) -> str:
    """The page."""
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ReportError("an HTML report needs Jinja2: pip install 'pytest-piecewise[report]'") from error
    from markupsafe import Markup  # noqa: PLC0415 - comes with Jinja2

    folder = files("pytest_piecewise.reports").joinpath("page")
    style, script = (folder.joinpath(name).read_text() for name in ("page.css", "page.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["cut"] = lambda value, limit: cut(str(value), limit)
    page = environment.from_string(folder.joinpath("page.html").read_text())
    report = bounded(report)
    results = worst_first(report.results)
    made = page.render(
        report=report,
        headline=headline(results),
        facts=facts(report),
        counts=[(str(status), count) for status in ORDER if (count := Counter(r.status for r in results)[status])],
        rows=[_row(result, index) for index, result in enumerate(results)],
        cases=[_case(result, index, report.trends) for index, result in enumerate(results)],
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return printable(made)


def printable(text: str) -> str:
    """Without control characters but line ends and tabs, and without halves of surrogate pairs: what HTML may hold."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", text).encode("utf-8", "replace").decode()


def _hash(content: str) -> str:
    """How the page's policy names the only style and the only script that may be used in it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _anchor(index: int) -> str:
    return f"case-{index + 1}"


def _row(result: CaseResult, index: int) -> dict[str, Any]:
    builds = {build.variant: build for build in variants(result)}
    failed = dict.fromkeys(item.check for item in result.findings if item.status is Status.FAIL)
    piecewise = builds.get("piecewise")
    pieces = f"{piecewise.counts.pieces} ({piecewise.counts.distinct_pieces})" if piecewise else ""
    seconds = [
        next((f"{metric.value:.2f}" for metric in builds[name].metrics if metric.name == "compile"), "")
        if name in builds
        else ""
        for name in ("full", "piecewise")
    ]
    ratios = [worst_ratio(result, name) for name in ("full", "piecewise")]
    return {
        "anchor": _anchor(index),
        "name": result.case.id,
        "status": str(result.status),
        "failed": ", ".join(failed),
        "cells": [pieces, *seconds, *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios)],
    }


def _case(result: CaseResult, index: int, trends: Sequence[Trend]) -> dict[str, Any]:
    from pytest_piecewise.reports import figures  # noqa: PLC0415 - needs markupsafe

    builds, findings = variants(result), ranked(result.findings)
    mapped = [item for item in (*result.comparisons, *(c for build in builds for c in build.comparisons)) if item.heat]
    return {
        "anchor": _anchor(index),
        "name": result.case.id,
        "status": str(result.status),
        "problems": [item for item in findings if item.status in PROBLEMS],
        "passed": [item for item in findings if item.status is Status.PASS],
        "skipped": [item for item in findings if item.status is Status.SKIP],
        "variants": [build.variant for build in builds],
        "table": list(side_by_side(result)),
        "phases": _phases(result),
        "bars": figures.phase_bars(result.builds),
        "budget": figures.budget_plot(result),
        "heat": [{"picture": figures.heat_picture(item), "caption": _caption(item)} for item in mapped[:HEAT_MAPS]],
        "more_heat": max(0, len(mapped) - HEAT_MAPS),
        "graphs": [
            {
                "variant": build.variant,
                "picture": figures.piece_graph(build.parts, _diverging(result, build.variant)),
                "ops": ", ".join(dict.fromkeys(part.name for part in build.parts if not part.compiled)) or "nothing",
            }
            for build in builds
            if len(build.parts) > 1
        ],
        **_history([trend for trend in trends if _is_of(trend, result)]),
        "places": [_place(item) for item in result.localizations],
        "costs": list(cost_rows(result)),
        "trials": [trial for trial in result.canary if trial.outcome != "not applicable"],
        "outputs": [build for build in result.builds if build.last_output],
        "environment": _environment(result),
        "notes": [note for build in result.builds for note in build.notes],
    }


def _diverging(result: CaseResult, variant: str) -> int:
    """The place of the first segment that is wrong, as far as it was found; -1 where nobody knows."""
    return next((item.position for item in result.localizations if item.variant == variant and item.segment), -1)


def _place(item: Localization) -> dict[str, Any]:
    head, *lines = localization_lines(item)
    return {
        "head": head,
        "lines": [line.strip() for line in lines],
        "cause": item.cause,
        "kernel_source": item.kernel_source,
    }


def _is_of(trend: Trend, result: CaseResult) -> bool:
    return trend.case == series_text(result.case.id) and trend.device in ("", result.case.device.partition(":")[0])


def _phases(result: CaseResult) -> list[tuple[int, str]]:
    from pytest_piecewise.reports import figures  # noqa: PLC0415 - needs markupsafe

    used = {name for build in result.builds for name in figures.phase_seconds(build)}
    return [(index, name) for index, name in enumerate(figures.PHASES) if name in used]


def _caption(item: Any) -> str:
    place = f"{item.check}, {item.variant} against {item.against}: {item.phase}, size {item.size}, {item.output}"
    return f"{place}; {item.wrong} of {item.elements} elements, shape {tuple(item.shape)}"


def _environment(result: CaseResult) -> list[tuple[str, str]]:
    case = result.case
    own = [
        ("model", case.model),
        ("engine", case.engine),
        ("dtype", case.dtype),
        ("device", case.device),
        ("tier", case.tier),
    ]
    own += [("seed", str(result.seed)), ("platform", result.platform), ("revision", result.revision)]
    own += [("graphs", result.graph_kind), *sorted(result.environment.items())]
    return [(name, value) for name, value in own if value]


def _history(trends: Sequence[Trend]) -> dict[str, Any]:
    """The trends of one case; what they have in common is said once."""
    from pytest_piecewise.reports import figures  # noqa: PLC0415 - needs markupsafe

    span = (min((t.began[:10] for t in trends), default=""), max((t.ended[:10] for t in trends), default=""))
    return {
        "span": f"{max((len(trend.values) for trend in trends), default=0)} runs, {span[0]} to {span[1]}",
        "changes": list(dict.fromkeys(mark.text for trend in trends for mark in trend.marks if not mark.change)),
        "trends": [
            {
                "picture": figures.trend_plot(trend),
                "name": " ".join(filter(None, (trend.variant, trend.metric.replace("_", " ")))),
                "now": quantity(trend.values[-1], trend.kind),
                "steps": [mark for mark in trend.marks if mark.change],
            }
            for trend in trends
        ],
    }
