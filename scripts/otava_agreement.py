"""How often the steps found here are those that Apache Otava finds, on 150 random series, and where they differ.

    python -m venv otava && otava/bin/pip install apache-otava
    python scripts/otava_agreement.py --otava otava/bin/python

Otava has an environment of its own, since it needs another numpy. Both get the same window, significance and least change.
"""

from __future__ import annotations

import argparse
import json
import subprocess

import numpy as np

from pytest_piecewise.alerts.steps import LEAST_AFTER, SPREADS, find_steps, spread

OTAVA = """
import json, sys
from otava.analysis import compute_change_points
for values in json.load(sys.stdin):
    found, _ = compute_change_points(values, window_len=50, max_pvalue=1e-4, min_magnitude=0.03)
    print(json.dumps([int(point.index) for point in found]))
"""
NEAR = 2
"""How far two may be apart and still be the same step: its place is uncertain where the noise is."""


def random_series(count: int, seed: int = 0) -> list[tuple[str, list[float]]]:
    """What they are, and their values: 60 to 200 nights, none to three steps of 5 to 40 %, noise of 1 to 4 %."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        nights, noise = int(random.integers(60, 200)), float(random.uniform(0.01, 0.04))
        values = 10 * np.exp(noise * random.standard_normal(nights))
        places = sorted(15 * random.choice(np.arange(1, nights // 15), size=int(random.integers(0, 4)), replace=False))
        changes = [float(random.choice([-1, 1]) * random.uniform(0.05, 0.4)) for _ in places]
        for place, change in zip(places, changes, strict=True):
            values[place:] *= 1 + change
        steps = ", ".join(f"{change:+.0%} at {place}" for place, change in zip(places, changes, strict=True))
        made.append((f"{nights} nights, noise {noise:.1%}, {steps or 'no step'}", values.tolist()))
    return made


def agrees(first: list[int], second: list[int]) -> bool:
    """Whether every step of one has one of the other near it."""
    return all(any(abs(a - b) <= NEAR for b in second) for a in first) and len(first) == len(second)


def explained(values: list[float], ours: list[int], theirs: list[int]) -> str:
    """Why a step of one is not one of the other, as far as the rules here say."""
    reasons = []
    for place in theirs:
        if any(abs(place - other) <= NEAR for other in ours):
            continue
        levels = [0, *(other for other in theirs if other != place), len(values)]
        start = max(other for other in levels if other < place)
        end = min(other for other in levels if other > place)
        before, after = np.log(values[start:place]), np.log(values[place:end])
        change = abs(float(np.median(after) - np.median(before)))
        noise = spread(np.concatenate([before - np.median(before), after - np.median(after)]))
        if min(len(before), len(after)) < LEAST_AFTER:
            reasons.append(f"{place}: a level of {min(len(before), len(after))} points")
        elif change < SPREADS * noise:
            reasons.append(f"{place}: {change:.1%} is less than {SPREADS:g} spreads of {noise:.1%}")
        else:
            reasons.append(f"{place}: not significant here")
    missed = [place for place in ours if not any(abs(place - other) <= NEAR for other in theirs)]
    return "; ".join([*reasons, *(f"{place}: Otava has none" for place in missed)])


def main() -> None:
    """Compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--otava", required=True, help="the Python that has apache-otava")
    parser.add_argument("--series", type=int, default=150)
    given = parser.parse_args()
    series = random_series(given.series)
    text = json.dumps([values for _, values in series])
    done = subprocess.run([given.otava, "-c", OTAVA], input=text, capture_output=True, text=True, check=True)
    equal = 0
    for (what, values), line in zip(series, done.stdout.splitlines(), strict=True):
        ours, theirs = [step.index for step in find_steps(values)], json.loads(line)
        equal += agrees(ours, theirs)
        if not agrees(ours, theirs):
            print(f"{what}: here {ours}, Otava {theirs}; {explained(values, ours, theirs)}")
    print(f"{equal} of {len(series)} agree")


if __name__ == "__main__":
    main()
