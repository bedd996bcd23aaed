"""Simulated nights: series with steps, for tests of alerts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from pytest_piecewise.history.series import Point, Series, Trace, pairs
from pytest_piecewise.records import Run

FIRST = datetime(2026, 9, 1, 3, tzinfo=UTC)
MACHINE = {"cpu": "EPYC", "torch": "2.13.0", "threads": "2"}


def night(number: int) -> Run:
    """The run of one night; its commit is `commit` and the night's number in three digits."""
    moment = (FIRST + timedelta(days=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Run(id=f"run{number:03}", started=moment, committed=moment, commit=f"commit{number:03}", branch="main")


def series(metric: str, kind: str = "seconds", case: str = "tiny", **environment: str) -> Series:
    return Series(case=case, variant="full", metric=metric, kind=kind, environment=pairs(MACHINE | environment))


def trace(of: Series, values: Sequence[float], start: int = 0) -> Trace:
    return Trace(of, tuple(Point(night(start + index), float(value)) for index, value in enumerate(values)))


def noisy(
    count: int, level: float = 3.0, deviation: float = 0.02, seed: int = 0, step: tuple[int, float] = (0, 0.0)
) -> list[float]:
    """Gaussian noise round a level that changes by a share at a night."""
    values = level * (1 + deviation * np.random.default_rng(seed).standard_normal(count))
    values[step[0] :] *= 1 + step[1]
    return [float(value) for value in values]


def after(nights: int) -> datetime:
    """The morning after so many nights."""
    return FIRST + timedelta(days=nights - 1, hours=6)
