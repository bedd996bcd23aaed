"""How often the rules for steps cry wolf, and how soon they find a step, on simulated nightly series; for docs/history.md.

python scripts/alert_rates.py [--series 200] [--nights 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from pytest_piecewise.alerts.steps import find_steps

Random = np.random.Generator
Noise = Callable[[Random, int], np.ndarray]
HISTORY = 60
"""Nights before the first that is judged."""


def gaussian(deviation: float) -> Noise:
    """Independent nights round one level."""
    return lambda random, count: 1 + deviation * random.standard_normal(count)


def log_normal(deviation: float) -> Noise:
    """Independent nights with a longer tail upwards."""
    return lambda random, count: np.exp(deviation * random.standard_normal(count))


def spiky(random: Random, count: int) -> np.ndarray:
    """2 % noise; 3 % of the nights take 10 to 100 % longer."""
    return gaussian(0.02)(random, count) * np.where(random.random(count) < 0.03, 1 + random.uniform(0.1, 1, count), 1)


def two_machines(random: Random, count: int) -> np.ndarray:
    """One of the two kinds, as each kind has a series of its own: 2 % noise, at every other night's level or not at all."""
    return gaussian(0.02)(random, count)


def two_machines_mixed(random: Random, count: int) -> np.ndarray:
    """What the key of a series prevents: two machines, one 15 % slower, by chance."""
    return gaussian(0.02)(random, count) * np.where(random.random(count) < 0.5, 1.15, 1)


def drifting(random: Random, count: int) -> np.ndarray:
    """A machine whose slowness is remembered: AR(1) with 0.9, 3 % in all."""
    level = np.empty(count)
    level[0] = 0.03 * random.standard_normal()
    for night in range(1, count):
        level[night] = 0.9 * level[night - 1] + 0.03 * np.sqrt(1 - 0.81) * random.standard_normal()
    return np.exp(level) * (1 + 0.005 * random.standard_normal(count))


NOISES: dict[str, Noise] = {
    "Gaussian 2 %": gaussian(0.02),
    "Gaussian 5 %": gaussian(0.05),
    "log-normal 5 %": log_normal(0.05),
    "2 %, spikes on 3 % of nights": spiky,
    "two machine kinds, one series each": two_machines,
    "two machine kinds in one series": two_machines_mixed,
    "drift: AR(1) 0.9, 3 %": drifting,
}
STEPS = (("Gaussian 2 %", 0.05), ("Gaussian 2 %", 0.10), ("Gaussian 5 %", 0.10), ("Gaussian 5 %", 0.20),
         ("2 %, spikes on 3 % of nights", 0.10), ("Gaussian 2 %", 0.30))  # fmt: skip


def false_nights(noise: Noise, series: int, nights: int, seed: int = 0) -> float:
    """The share of nights on which a series that does not change has a step to the worse that stands."""
    random, wrong = np.random.default_rng(seed), 0
    for _ in range(series):
        values = noise(random, HISTORY + nights)
        wrong += sum(is_flagged(values[: HISTORY + night + 1]) for night in range(nights))
    return wrong / (series * nights)


def is_flagged(values: np.ndarray) -> bool:
    """Whether a regression stands: a step to the worse, and the newest level is still worse than the one before it."""
    steps = find_steps(values)
    return any(step.change > 0 and steps[-1].after > step.before * 1.015 for step in steps)


def found_within(noise: Noise, change: float, series: int, nights: tuple[int, ...], seed: int = 1) -> list[float]:
    """The share of steps that are found so many nights after they happened, the night of the step being the first."""
    random, found = np.random.default_rng(seed), [0] * len(nights)
    for _ in range(series):
        values = noise(random, HISTORY + max(nights))
        values[HISTORY:] *= 1 + change
        for index, night in enumerate(nights):
            steps = find_steps(values[: HISTORY + night])
            found[index] += any(abs(step.index - HISTORY) <= 2 and step.change > 0 for step in steps)
    return [count / series for count in found]


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--nights", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of all series; 0 is the one that the rules were made with")
    given = parser.parse_args()
    start = time.monotonic()
    print(f"| unchanged series | false nights, of {given.series} x {given.nights} |\n|---|---|")
    for name, noise in NOISES.items():
        print(f"| {name} | {100 * false_nights(noise, given.series, given.nights, given.seed):.3f} % |", flush=True)
    nights = (2, 3, 5, 10)
    print(f"\n| noise, step | found within {' / '.join(map(str, nights))} nights, of {given.series} |\n|---|---|")
    for name, change in STEPS:
        shares = found_within(NOISES[name], change, given.series, nights, given.seed + 1)
        print(f"| {name}, {change:+.0%} | {' / '.join(f'{100 * share:.1f}' for share in shares)} % |", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
