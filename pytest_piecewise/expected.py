"""Failures that a marker expects: shown as such while they last, and a failure once they are gone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pytest_piecewise.errors import ModelError
from pytest_piecewise.records import CHECKS, Expectation, Finding, Status


def expectations(declared: Any) -> tuple[Expectation, ...]:
    """What a marker declares as `{check: reason}`, checked."""
    if not isinstance(declared, dict):
        raise ModelError(f"expected `expected` as {{check: reason}}, found {declared!r}")
    for check, reason in declared.items():
        if check not in CHECKS:
            raise ModelError(f"`expected` names {check!r}, which is no check; expected one of {', '.join(CHECKS)}")
        if not isinstance(reason, str) or not reason.strip():
            raise ModelError(f"expected[{check!r}] needs a reason, with the issue if there is one; found an empty one")
    return tuple(Expectation(check=check, reason=reason) for check, reason in declared.items())


def settled(expected: Sequence[Expectation], findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings with expected failures as SKIPs that show the reason and what was found; and a FAIL for every check
    that was expected to fail and did not. Where nothing at all was judged, nothing was expected of it."""
    found = tuple(findings)
    reasons = {item.check: item.reason for item in expected}
    made = [
        replace(item, status=Status.SKIP, summary=f"expected to fail: {reasons[item.check]} (found: {item.summary})")
        if item.status is Status.FAIL and item.check in reasons
        else item
        for item in found
    ]
    if all(item.status is Status.SKIP for item in found):
        return found
    failed = {item.check for item in found if item.status is Status.FAIL}
    passed = {item.check for item in found if item.status is Status.PASS}
    made += [_gone(check, reason, check in passed) for check, reason in reasons.items() if check not in failed]
    return tuple(made)


def _gone(check: str, reason: str, passed: bool) -> Finding:
    if not passed:
        summary, action = "was not made", "look at what else failed, or remove it from `expected` of the marker"
    else:
        summary, action = "passed: it works now", "remove it from `expected` of the marker"
    return Finding(
        check=check, status=Status.FAIL, summary=f"expected to fail, and {summary} ({reason})", action=action
    )


def still_failing(expected: Sequence[Expectation], findings: Iterable[Finding]) -> list[str]:
    """The names of the checks that failed as expected."""
    known = {item.check for item in expected}
    marked = [f.check for f in findings if f.check in known and f.summary.startswith("expected to fail: ")]
    return list(dict.fromkeys(marked))
