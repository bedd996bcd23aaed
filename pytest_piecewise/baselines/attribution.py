"""Why a number has moved against its baseline: what came and went beside it in the same run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_piecewise.baselines.entries import Entry, Measured
from pytest_piecewise.baselines.files import Baseline
from pytest_piecewise.records import CaseResult

SHOWN = 4
"""How many kernels, packages, phases or pieces one line names."""
MOVED = 0.1
"""A side of a ratio, or a phase, that changed by less than this share has not moved: so much is noise."""


def reasons(
    result: CaseResult, stored: Baseline, now: Mapping[str, Measured], names: Sequence[str], moved: Collection[str]
) -> list[str]:
    """One line per thing that explains why the metrics `names` are no longer as stored, out of all that have `moved`."""
    lines: list[str] = []
    for variant in ("full", "piecewise"):
        ours = {name.partition(".")[2] for name in names if name.startswith(f"{variant}.")}
        if ours & {"distinct_pieces", "compiles", "pieces", "cache_misses"}:
            lines += _pieces(result, variant)
        if ours & {"kernels", "kernel_set"}:
            lines += _kernels(result, variant, stored.kernels)
        if any(name.startswith("warm_cache") for name in ours):
            lines += [note for note in result.costs.notes if note.startswith(f"warm {variant}: cache miss")]
    for name in sorted(names):
        entry, value = stored.metrics.get(name), now.get(name)
        if entry is not None and value is not None and value.gate == "work":
            lines += _work(name, entry.parts, value.parts)
        if entry is not None and value is not None and value.gate == "ratio":
            lines += _ratio(name, entry, value, moved)
    return list(dict.fromkeys(lines))


def _pieces(result: CaseResult, variant: str) -> Iterator[str]:
    """How many distinct pieces there are, and what made one of them distinct that calls the same ops as another."""
    for build in result.builds:
        if build.variant != variant or not build.parts:
            continue
        pieces = [part for part in build.parts if part.compiled]
        distinct = [part for part in pieces if not part.same_as]
        yield f"{variant} has {len(pieces)} pieces, {len(distinct)} of them distinct"
        differing = [part for part in distinct if part.differs]
        yield from (f"{variant} {part.name} differs {part.differs}" for part in differing[:SHOWN])
        if len(differing) > SHOWN:
            yield f"... and {len(differing) - SHOWN} more that call the same ops as another"


def _kernels(result: CaseResult, variant: str, stored: Mapping[str, int]) -> Iterator[str]:
    """The kernels that came and went, with how many calls."""
    now = {
        name: build.kernels.count(name) for build in result.builds if build.variant == variant for name in build.kernels
    }
    before = {name.partition(" ")[2]: count for name, count in stored.items() if name.startswith(f"{variant} ")}
    if not before:
        return
    change = {name: now.get(name, 0) - before.get(name, 0) for name in sorted(now.keys() | before.keys())}
    for word, sign in (("came", 1), ("went", -1)):
        names = [f"{name} x {abs(count)}" for name, count in change.items() if count * sign > 0]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield f"{variant} kernels that {word}: {', '.join(names[:SHOWN])}{more}"


def _work(name: str, before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    """The packages whose calls have changed most. What only one of the two names is in the rest of the other."""
    change = {part: now[part] - before[part] for part in now if part in before}
    ranked = sorted(change.items(), key=lambda item: -abs(item[1]))[:SHOWN]
    if told := [
        f"{part} {count:+.0f} ({count / before[part]:+.1%})" for part, count in ranked if count and before[part]
    ]:
        yield f"{name}: calls in {', '.join(told)}"


def _ratio(name: str, entry: Entry, now: Measured, moved: Collection[str]) -> Iterator[str]:
    """Which side has moved, the phases that did, and what else is no longer as stored in the same run."""
    over, _, under = name.partition(".")[0].partition("/")
    if entry.sides and now.sides:
        sides = [(a, b) for a, b in zip(entry.sides, now.sides, strict=True)]
        told = [
            f"{side} {a:.3g} -> {b:.3g} ({b / a - 1:+.0%})" for side, (a, b) in zip((over, under), sides, strict=True)
        ]
        who = [side for side, (a, b) in zip((over, under), sides, strict=True) if abs(b / a - 1) > MOVED]
        unit = "in seconds, which other machines do not share" if ".step_" in name else "in yardsticks"
        yield f"{name}: {' and '.join(who) or 'neither side alone'} moved: {', '.join(told)}, {unit}"
    change = {part: now.parts[part] / value - 1 for part, value in entry.parts.items() if value and part in now.parts}
    grown = sorted(
        ((part, share) for part, share in change.items() if abs(share) > MOVED),
        key=lambda item: -abs(item[1] * entry.parts[item[0]]),
    )
    if grown:
        yield f"{name}: phases that moved: {', '.join(f'{part} {share:+.0%}' for part, share in grown[:SHOWN])}"
    others = sorted(other for other in moved if "/" not in other)
    yield f"{name}: counters that moved with it: {', '.join(others[:SHOWN]) if others else 'none'}"
