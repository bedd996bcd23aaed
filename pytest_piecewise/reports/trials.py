"""What a canary run found -> a table of faults and cases. Strings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_piecewise.records import CaseResult, Trial
from pytest_piecewise.reports.terminal import clean

MARKS = {"caught": "caught", "missed": "MISSED", "not planted": "no effect", "not applicable": "-"}


def canary_table(results: Sequence[CaseResult]) -> Iterator[str]:
    """Per case: a line per fault with the checks that caught it, missed ones first; then what does not apply, by reason."""
    for result in sorted((item for item in results if item.canary), key=lambda item: item.case.id):
        yield ""
        yield f"canary: {result.case.id} on {result.case.device}"
        tried = [trial for trial in result.canary if trial.outcome != "not applicable"]
        width = max(len(trial.fault) for trial in tried)
        for trial in sorted(tried, key=lambda item: item.outcome != "missed"):
            yield f"  {trial.kind:8}  {trial.fault:{width}}  {_said(trial)}".rstrip()
        yield from _not_applicable(result.canary)
        yield f"  {totals(result.canary)}"


def totals(trials: Sequence[Trial]) -> str:
    """One line: how many were caught, missed, without effect, not applicable, and how long it took."""
    number = {outcome: sum(trial.outcome == outcome for trial in trials) for outcome in MARKS}
    seconds = sum(trial.seconds for trial in trials)
    return ", ".join(f"{count} {outcome}" for outcome, count in number.items()) + f"; {seconds:.0f} s"


def _said(trial: Trial) -> str:
    if trial.outcome == "caught":
        unexpected = {name.partition(" ")[0] for name in trial.checks}.isdisjoint(trial.expected)
        note = f"; expected {' or '.join(trial.expected)}" if unexpected else ""
        return f"caught     {', '.join(trial.checks)}{note}"
    if trial.outcome == "missed":
        return f"MISSED     expected {' or '.join(trial.expected)}"
    return f"{MARKS.get(trial.outcome, trial.outcome)}  {clean(trial.reason)}"


def _not_applicable(trials: Sequence[Trial]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for trial in trials:
        if trial.outcome == "not applicable":
            reasons.setdefault(trial.reason, []).append(trial.fault)
    yield from (f"  not applicable, {reason}: {', '.join(names)}" for reason, names in reasons.items())
