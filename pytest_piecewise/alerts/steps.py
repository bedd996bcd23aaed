"""Where a series of numbers has changed its level. Numbers in, steps out; needs ruptures and scipy.

Values are compared on a logarithmic scale. `ruptures` proposes where the level may have changed; of its proposals those stay
that a t-test finds significant, that are large enough, and that most of the points after them confirm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIGNIFICANCE = 1e-4
"""Of the best of all places where the step could have been: p values are multiplied by their number. Towards the newest
level, which is looked at every night, those are the ends that a series may have, which are much alike: n count as 2 ln n."""
LEAST_AFTER = 3
"""Points that a level must have."""
LEAST_CHANGE = math.log(1.03)
SPREADS = 2.0
"""A step must also exceed this many standard deviations of the points round it."""
CONFIRMED, WAY = 0.75, 0.25
"""Share of the points after a step that must lie this far along the way from one level to the other: a spike is no level."""
PENALTY = 8.0
"""What a change point costs, in units of the noise's variance: low, since the tests have the last word."""
SPIKE = 5.0
"""A point this many standard deviations off both of its neighbours is a spike, of which nothing is concluded."""
LEAST_NOISE = 1e-4
FAST_CHANGE, FAST_SPREADS, FAST_BEFORE = math.log(1.2), 6.0, 8
"""The fast lane: two points in a row that are so far off a level of so many points."""
ALIKE, ALIKE_SPREADS = 0.25, 4.0
"""And that are apart by no more than this share of the jump, or so many spreads: two spikes are hardly ever alike."""

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
    kept = np.flatnonzero(~_spikes(scaled))
    calm, measured = scaled[kept], raw[kept]
    places = _tested(calm, _proposed(calm))
    levels = [0, *places, len(calm)]
    found = [
        Step(
            int(kept[at]),
            float(np.median(measured[start:at])),
            float(np.median(measured[at:end])),
            _p_value(calm[start:at], calm[at:end], newest=end == len(calm)),
        )
        for start, at, end in zip(levels, levels[1:], levels[2:], strict=False)
    ]
    jump = _fast_step(raw, scaled, found[-1].index if found else 0)
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


def _spikes(scaled: Values) -> NDArray[np.bool_]:
    """Which points are far off both of their neighbours."""
    middle = np.median(np.stack([scaled[:-2], scaled[1:-1], scaled[2:]]), axis=0)
    far = np.abs(scaled[1:-1] - middle) > SPIKE * _noise(scaled)
    return np.concatenate([[False], far, [False]])


def _proposed(calm: Values) -> list[int]:
    import ruptures  # noqa: PLC0415 - takes a second; at the end of a session there is mostly too little history to need it

    if len(calm) < 2 * LEAST_AFTER:
        return []
    unit = (calm - np.median(calm)) / _noise(calm)
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_AFTER).fit(unit.reshape(-1, 1))
    return [int(end) for end in search.predict(pen=PENALTY)[:-1]]


def _tested(calm: Values, places: list[int]) -> list[int]:
    """The proposals without those that fail a test. The one that explains least goes first: its levels become one, which may
    be what another one needs to hold."""
    kept = list(places)
    while kept:
        levels = [0, *kept, len(calm)]
        pairs = [(calm[a:b], calm[b:c]) for a, b, c in zip(levels, levels[1:], levels[2:], strict=False)]
        failed = [
            (_explained(*pair), place)
            for pair, place in zip(pairs, kept, strict=True)
            if not _holds(*pair, newest=place == kept[-1])
        ]
        if not failed:
            break
        kept.remove(min(failed)[1])
    return kept


def _explained(before: Values, after: Values) -> float:
    """By how much two levels lie nearer to the points than one: the squares that a step saves."""
    weight = len(before) * len(after) / (len(before) + len(after))
    return weight * float(after.mean() - before.mean()) ** 2


def _holds(before: Values, after: Values, *, newest: bool) -> bool:
    first, second = float(np.median(before)), float(np.median(after))
    rest = np.concatenate([before - first, after - second])
    if abs(second - first) < max(LEAST_CHANGE, SPREADS * spread(rest)):
        return False
    beyond = (after - first) * (second - first) > WAY * (second - first) ** 2
    return float(np.mean(beyond)) >= CONFIRMED and _p_value(before, after, newest=newest) <= SIGNIFICANCE


def _p_value(before: Values, after: Values, *, newest: bool) -> float:
    """Student's t-test with the variance of both together, since the few points after a step have none of their own to
    speak of. What lies far off counts as lying `SPIKE` spreads off. Of points that resemble their neighbours there are
    fewer than it seems: a slow drift is no step."""
    from scipy import stats  # noqa: PLC0415 - as ruptures

    middles = np.repeat([np.median(before), np.median(after)], [len(before), len(after)])
    off = np.concatenate([before, after]) - middles
    limit = SPIKE * max(spread(off), LEAST_NOISE)
    points = middles + off.clip(-limit, limit)
    first, second = points[: len(before)].mean(), points[len(before) :].mean()
    rest = points - np.repeat([first, second], [len(before), len(after)])
    squares, freedom = float(rest @ rest), len(rest) - 2
    if squares <= LEAST_NOISE**2 * len(rest) * 1e-6:
        return 0.0 if first != second else 1.0
    alike = float(rest[1:] @ rest[:-1]) / squares - 1 / math.sqrt(len(rest))
    fewer = (1 - alike) / (1 + alike) if alike > 0 else 1.0
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)) / fewer)
    places = 2 * math.log(len(rest)) if newest else len(rest)
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
        or apart > max(ALIKE * far, ALIKE_SPREADS * noise)
    ):
        return None
    return Step(len(raw) - 2, float(np.median(raw[start:-2])), float(np.median(raw[-2:])), math.nan, fast=True)
