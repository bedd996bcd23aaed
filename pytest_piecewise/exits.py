"""Exit codes of a pytest session: failures of costs alone, of missing baselines alone, of the machine, have their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_piecewise.records import Finding, Status

REAL, UNFIT, COST, NEW = "real", "unfit", "cost", "new"
TESTS_FAILED = 1
CODES: Mapping[str, int] = {REAL: TESTS_FAILED, UNFIT: 12, COST: 10, NEW: 11}
"""The code of every kind of failure. Where a session has several, the first of them here wins."""

COST_CHECKS = ("baseline", "cost")


def kind_of(failed: Collection[Finding]) -> str:
    """Why a test failed, out of the findings that failed it."""
    if any(item.status is Status.FAIL and item.check not in COST_CHECKS for item in failed):
        return REAL
    return COST if any(item.status is Status.FAIL for item in failed) else NEW


def exit_status(status: int, kinds: Collection[str]) -> int:
    """The code with which a session ends; `kinds` has one for every failed test, and all but failed tests keep theirs."""
    if status != TESTS_FAILED:
        return status
    return next((code for kind, code in CODES.items() if kind in kinds), status)
