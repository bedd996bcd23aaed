"""Where a series of numbers has changed its level. Numbers in, steps out; needs ruptures and scipy.

Values are compared on a logarithmic scale. `ruptures` proposes where the level may have changed; of its proposals those stay
that a t-test finds significant, that are large enough, and that most of the points after them confirm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.typing import NDArray
from scipy import stats

SIGNIFICANCE = 1e-4
"""Of the best of all places where the step could have been: p values are multiplied by their number."""
LEAST_AFTER = 3
"""Points that a level must have."""
LEAST_CHANGE = math.log(1.03)
SPREADS = 2.0
"""A step must also exceed this many standard deviations of the points round it."""
CONFIRMED = 0.75
"""Share of the points after a step that must lie beyond the middle of it: a spike or two is no level."""
PENALTY = 8.0
"""What a change point costs, in units of the noise's variance: low, since the tests have the last word."""
SPIKE = 5.0
"""A point this many standard deviations off both of its neighbours is a spike, of which nothing is concluded."""
LEAST_NOISE = 1e-4
FAST_CHANGE, FAST_SPREADS, FAST_BEFORE = math.log(1.2), 6.0, 8
"""The fast lane: two points in a row that are so far off a level of so many points."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """The level changed from `before` to `after`, medians, at the point `index`. `fast`: seen in two points only, so far."""

    index: int
    before: float
    after: float
    p: float
    fast: bool = False

    @property
    def change(self) -> float:
        """0.1 for 10 % more; infinite where there was nothing before."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def size(self) -> float:
        """How large the step is, either way: halved and doubled are equal."""
        if min(self.before, self.after) <= 0:
            return math.inf
        return abs(math.log(self.after / self.before))


def find_steps(values: Sequence[float]) -> list[Step]:
    """The steps in finite values that are not negative, oldest first."""
    raw = np.asarray(values, dtype=np.float64)
    if len(raw) < 2 * LEAST_AFTER:
        return []
    scaled = _logarithms(raw)
    places = _tested(_without_spikes(scaled), _proposed(scaled))
    levels = [0, *places, len(raw)]
    found = [
        Step(
            at,
            float(np.median(raw[start:at])),
            float(np.median(raw[at:end])),
            _p_value(scaled[start:at], scaled[at:end]),
        )
        for start, at, end in zip(levels, levels[1:], levels[2:], strict=False)
    ]
    jump = _fast_step(raw, scaled, levels[-2])
    return [*found, jump] if jump else found


def _logarithms(raw: Values) -> Values:
    """Logarithms; where there are zeros, of one more than the value in units of the least that is none."""
    if raw.min() > 0:
        return np.log(raw)
    positive = raw[raw > 0]
    return np.log1p(raw / positive.min()) if len(positive) else np.zeros_like(raw)


def spread(values: Values) -> float:
    """A standard deviation that outliers do not move."""
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def _noise(scaled: Values) -> float:
    """The standard deviation between neighbours, which steps do not move either."""
    return max(spread(np.diff(scaled)) / math.sqrt(2), LEAST_NOISE)


def _without_spikes(scaled: Values) -> Values:
    """Single points far off both neighbours, which agree, are put between them."""
    cleaned, limit = scaled.copy(), SPIKE * _noise(scaled)
    middle = np.median(np.stack([scaled[:-2], scaled[1:-1], scaled[2:]]), axis=0)
    spikes = np.abs(scaled[1:-1] - middle) > limit
    cleaned[1:-1][spikes] = middle[spikes]
    return cleaned


def _proposed(scaled: Values) -> list[int]:
    unit = (_without_spikes(scaled) - np.median(scaled)) / _noise(scaled)
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_AFTER).fit(unit.reshape(-1, 1))
    return [int(end) for end in search.predict(pen=PENALTY)[:-1]]


def _tested(scaled: Values, places: list[int]) -> list[int]:
    """The proposals without those that fail a test, the least significant first: its levels become one."""
    kept = list(places)
    while kept:
        levels = [0, *kept, len(scaled)]
        pairs = [(scaled[a:b], scaled[b:c]) for a, b, c in zip(levels, levels[1:], levels[2:], strict=False)]
        failed = [(_p_value(*pair), place) for pair, place in zip(pairs, kept, strict=True) if not _holds(*pair)]
        if not failed:
            break
        kept.remove(max(failed)[1])
    return kept


def _holds(before: Values, after: Values) -> bool:
    first, second = float(np.median(before)), float(np.median(after))
    rest = np.concatenate([before - first, after - second])
    if abs(second - first) < max(LEAST_CHANGE, SPREADS * spread(rest)):
        return False
    beyond = (after - (first + second) / 2) * (second - first) > 0
    return float(np.mean(beyond)) >= CONFIRMED and _p_value(before, after) <= SIGNIFICANCE


def _p_value(before: Values, after: Values) -> float:
    """Student's t-test with the variance of both together, since the few points after a step have none of their own to
    speak of. Of points that resemble their neighbours there are fewer than it seems: a slow drift is no step. Multiplied
    by the number of places that the step was chosen from."""
    first, second = before.mean(), after.mean()
    rest = np.concatenate([before - first, after - second])
    squares, freedom = float(rest @ rest), len(rest) - 2
    if squares <= LEAST_NOISE**2 * len(rest) * 1e-6:
        return 0.0 if first != second else 1.0
    alike = float(rest[1:] @ rest[:-1]) / squares - 1 / math.sqrt(len(rest))
    fewer = (1 - alike) / (1 + alike) if alike > 0 else 1.0
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)) / fewer)
    places = max(len(rest) - 2 * LEAST_AFTER + 1, 1)
    return min(1.0, places * float(2 * stats.t.sf(abs(first - second) / error, max(freedom * fewer, 1))))


def _fast_step(raw: Values, scaled: Values, start: int) -> Step | None:
    """Whether the last two points have left the level that began at `start` for another, one and the same."""
    level, last = scaled[start:-2], scaled[-2:]
    if len(level) < FAST_BEFORE:
        return None
    middle, noise = float(np.median(level)), max(spread(level), LEAST_NOISE)
    jumps = last - middle
    apart = abs(float(jumps[0] - jumps[1]))
    far = float(np.abs(jumps).min())
    if (
        jumps[0] * jumps[1] <= 0
        or far <= max(FAST_CHANGE, FAST_SPREADS * noise)
        or apart > max(far / 2, FAST_SPREADS * noise)
    ):
        return None
    return Step(len(raw) - 2, float(np.median(raw[start:-2])), float(np.median(raw[-2:])), math.nan, fast=True)
