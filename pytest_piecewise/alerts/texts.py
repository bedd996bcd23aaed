"""Alerts as text for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_piecewise.alerts.grouping import Alert, Findings, Kind
from pytest_piecewise.alerts.rules import LEAST_POINTS, Change, State, Update, Verdict
from pytest_piecewise.records import Run
from pytest_piecewise.reports.markdown import quoted
from pytest_piecewise.reports.tables import cut, quantity
from pytest_piecewise.reports.terminal import clean

SHOWN = 20
"""Most changes of one alert, and most series of one kind, in text; JSON has them all."""
BARS = "▁▂▃▄▅▆▇█"
NAME = 120


def summary(findings: Findings) -> str:
    """One line of numbers."""
    words = [
        (len(findings.of(Kind.REGRESSION)), "regression(s) stand"),
        (len(findings.of(Kind.ACKNOWLEDGED)), "acknowledged"),
        (len(findings.of(Kind.RETURNED)), "returned"),
        (len(findings.of(Kind.IMPROVEMENT)), "improvement(s)"),
        (len(findings.series(State.MISSING)), "series missing"),
        (len(findings.series(State.LEARNING)), "learning"),
        (len(findings.series(State.STEADY)), "steady"),
    ]
    return ", ".join(f"{count} {word}" for count, word in words if count) or "the history is empty"


def terminal_lines(findings: Findings) -> Iterator[str]:
    """All of it, regressions first. Acknowledged and returned ones are counted only."""
    yield f"alerts: {summary(findings)}"
    points = {verdict.series: verdict for verdict in findings.verdicts}
    for alert in findings.alerts:
        if alert.kind in (Kind.REGRESSION, Kind.IMPROVEMENT):
            yield from map(clean, _alert_lines(alert, points))
    for line in _notes(findings):
        yield clean(line)


def _alert_lines(alert: Alert, points: dict[Any, Verdict]) -> Iterator[str]:
    yield f"{alert.kind} {span(alert)}"
    for change in alert.changes[:SHOWN]:
        yield f"  {described(change)}  {sparkline(points[change.series])}"
    if len(alert.changes) > SHOWN:
        yield f"  ... and {len(alert.changes) - SHOWN} more"
    for recount in alert.counts[:SHOWN]:
        yield f"  in the same range: {cut(recount.series.name, NAME)} {recount.before:g} -> {recount.after:g}"
    if alert.kind is Kind.REGRESSION:
        yield f'  if this is intended: [[acknowledge]] at = "{alert.place[:12]}" with a reason'


def _notes(findings: Findings) -> Iterator[str]:
    for verdict in findings.series(State.MISSING)[:SHOWN]:
        yield f"MISSING {cut(verdict.series.name, NAME)}: last measured {verdict.points[-1].run.started}"
    if more := len(findings.series(State.MISSING)) - SHOWN:
        yield from [f"MISSING ... and {more} more"] if more > 0 else []
    learning = findings.series(State.LEARNING)
    if learning:
        most = max(len(verdict.points) for verdict in learning)
        yield f"LEARNING {len(learning)} series, up to {most}/{LEAST_POINTS} points"
    for update in findings.updates[-SHOWN:]:
        yield f"UPDATED {updated(update)}"
    for item in findings.unused:
        entry = f"{cut(item.at, 40)}, {cut(item.series, NAME)}"
        yield f"acknowledgement of {entry}, fits no regression that stands, or has run out: remove it"


def span(alert: Alert) -> str:
    """`at 4fa01c2, after 3b1c5d0, 2026-11-30`."""
    after = alert.last_before.commit or alert.last_before.id
    return f"at {alert.place[:12]}, after {after[:12]}, {alert.first_after.started[:10]}"


def described(change: Change) -> str:
    """One step in numbers."""
    step, kind = change.step, change.series.kind
    levels = f"{quantity(step.before, kind)} -> {quantity(step.after, kind)}"
    sure = "seen twice" if step.fast else f"p {step.p:.0e}"
    return f"{percentage(step.change):>8}  {cut(change.series.name, NAME)}: {levels}, {sure}"


def percentage(change: float) -> str:
    """`+17.3 %`; `new` where there was nothing before."""
    return f"{100 * change:+.1f} %" if math.isfinite(change) else "new"


def updated(update: Update) -> str:
    """What an update did to a level that is not compared across it."""
    kind = update.series.kind
    levels = f"{quantity(update.before, kind)} -> {quantity(update.after, kind)}"
    return f"{cut(update.series.name, NAME)}: {levels} with {update.what}, not compared"


def sparkline(verdict: Verdict, length: int = 40) -> str:
    """The newest points as bars."""
    values = [point.value for point in verdict.points[-length:]]
    lowest, room = min(values), max(values) - min(values)
    return "".join(BARS[int((value - lowest) / room * (len(BARS) - 1)) if room else 0] for value in values)


def markdown(findings: Findings) -> str:
    """For an annotation, an issue or a message: regressions with everything, the rest in a line each."""
    lines = [f"## History: {summary(findings)}", ""]
    for alert in findings.alerts:
        if alert.kind is Kind.RETURNED:
            continue
        lines += [f"### {alert.kind} {quoted(span(alert))}", ""]
        if alert.reason:
            lines += [quoted(cut(alert.reason, 500)), ""]
        lines += ["| change | series | before | after | |", "|---:|---|---:|---:|---|"]
        for change in alert.changes[:SHOWN]:
            step, kind = change.step, change.series.kind
            cells = [
                percentage(step.change),
                cut(change.series.name, NAME),
                quantity(step.before, kind),
                quantity(step.after, kind),
            ]
            cells.append("seen twice" if step.fast else f"p {step.p:.0e}")
            lines.append("| " + " | ".join(map(quoted, cells)) + " |")
        if len(alert.changes) > SHOWN:
            lines.append(f"\n{len(alert.changes) - SHOWN} more.")
        lines += ["", *(_recount(recount) for recount in alert.counts[:SHOWN]), ""]
    notes = [f"- {quoted(line)}" for line in _notes(findings)]
    return "\n".join([*lines, *notes]).rstrip() + "\n"


def _recount(recount: Any) -> str:
    return f"- in the same range: {quoted(cut(recount.series.name, NAME))} {recount.before:g} → {recount.after:g}"


def plain(findings: Findings) -> dict[str, Any]:
    """Everything, for programs. An infinite change, from nothing to something, is null."""
    return {
        "summary": summary(findings),
        "alerts": [_plain_alert(alert) for alert in findings.alerts],
        "missing": [_plain_series(verdict) for verdict in findings.series(State.MISSING)],
        "learning": [_plain_series(verdict) for verdict in findings.series(State.LEARNING)],
        "steady": len(findings.series(State.STEADY)),
        "updates": [{"series": item.series.name, "what": item.what, "before": item.before, "after": item.after}
                    for item in findings.updates],
    }  # fmt: skip


def _plain_alert(alert: Alert) -> dict[str, Any]:
    return {
        "kind": str(alert.kind),
        "at": alert.place,
        "after": _plain_run(alert.last_before),
        "first": _plain_run(alert.first_after),
        "reason": alert.reason,
        "changes": [_plain_change(change) for change in alert.changes],
        "counts": [{"series": item.series.name, "before": item.before, "after": item.after} for item in alert.counts],
    }


def _plain_run(run: Run) -> dict[str, str]:
    return {"id": run.id, "commit": run.commit, "started": run.started, "url": run.url}


def _plain_change(change: Change) -> dict[str, Any]:
    step = change.step
    return {
        "series": change.series.name,
        "kind": change.series.kind,
        "environment": dict(change.series.environment),
        "before": step.before,
        "after": step.after,
        "change": step.change if math.isfinite(step.change) else None,
        "p": None if step.fast else step.p,
        "fast": step.fast,
        "stands": change.stands,
    }


def _plain_series(verdict: Verdict) -> dict[str, Any]:
    newest = verdict.points[-1].run.started
    return {
        "series": verdict.series.name,
        "environment": dict(verdict.series.environment),
        "points": len(verdict.points),
        "newest": newest,
    }


def github_issue(findings: Findings) -> dict[str, Any]:
    """The body of a request that opens an issue."""
    worst = findings.of(Kind.REGRESSION)
    title = f"Regression {span(worst[0])}" if worst else "No regression"
    return {"title": clean(cut(title, 200)), "body": cut(markdown(findings), 60_000), "labels": ["performance"]}


def slack_message(findings: Findings) -> dict[str, Any]:
    """The body of a message: a header and a block per regression, within Slack's limits."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": cut(summary(findings), 100)}}
    ]
    for alert in findings.of(Kind.REGRESSION)[:SHOWN]:
        lines: Sequence[str] = [span(alert), *(described(change) for change in alert.changes[:10])]
        # Slack's own markup is escaped like HTML; within a block of code nothing else is markup.
        text = "\n".join(clean(line).replace("`", "'") for line in lines)
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"```{text[:2900]}```"}})
    return {"text": cut(summary(findings), 200), "blocks": blocks}
