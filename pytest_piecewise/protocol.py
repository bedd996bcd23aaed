"""Which calls every build of a case goes through, in which order. Pure: a list of `Call` records out of a `Model`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

from pytest_piecewise.models import Model
from pytest_piecewise.records import Call

MAX_JUDGED_SIZES = 8
MAX_PADDED_SIZES = 3
MAX_SWEPT_SIZES = 12
HORIZON = 48
"""How many more calls a model with state goes through in the deep protocol; the last two are judged."""
PADDINGS = ("nan", "stale")
"""What else is put into the padding rows of a padded call, to be compared bit for bit with zero padding."""


def judged_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """At most `MAX_JUDGED_SIZES` of `sizes`, both ends included, spread evenly: those that are judged in every phase.

    The other sizes are judged once, in the interleaved phase, and else held to the bit axis, which needs no reference.
    """
    if len(sizes) <= MAX_JUDGED_SIZES:
        return sizes
    step = (len(sizes) - 1) / (MAX_JUDGED_SIZES - 1)
    return tuple(sizes[round(i * step)] for i in range(MAX_JUDGED_SIZES))


def padded_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that have to be padded: one above the captured size below, so that most rows of the graph are padding; and
    in the last gap one below the captured size above, so that a single row is."""
    gaps = [(low, high) for low, high in zip((0, *sizes), sizes, strict=False) if high - low > 1]
    chosen = gaps if len(gaps) <= MAX_PADDED_SIZES else [gaps[0], gaps[len(gaps) // 2], gaps[-1]]
    return tuple(dict.fromkeys([*(low + 1 for low, _ in chosen), *(high - 1 for _, high in chosen[-1:])]))


def interleaved(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Largest, smallest, second largest, ...: neighbours in time are far apart in size."""
    low, high = list(sizes), list(reversed(sizes))
    mixed = [size for pair in zip(high, low, strict=True) for size in pair]
    return tuple(dict.fromkeys(mixed))


def swept_sizes(model: Model, known: set[int]) -> tuple[int, ...]:
    """1, 2, the neighbours of each captured size and of the largest: those of them that no other phase has."""
    near = {size + step for size in model.capture_sizes for step in (-1, 1)} | {1, 2, model.largest - 1, model.largest}
    found = sorted(size for size in near - known if 1 <= size <= model.largest)
    if len(found) <= MAX_SWEPT_SIZES:
        return tuple(found)
    step = (len(found) - 1) / (MAX_SWEPT_SIZES - 1)
    return tuple(found[round(i * step)] for i in range(MAX_SWEPT_SIZES))


def calls(model: Model, seed: int, *, deep: bool = False) -> tuple[Call, ...]:
    """The protocol. Every call but the last ones has a seed of its own, so that data and metadata differ between all.

    A deep one sweeps through all interesting sizes, goes on for longer where there is state, and ends with arguments that
    are not contiguous.
    """
    sizes = model.capture_sizes
    judged = set(judged_sizes(sizes))
    steps: list[tuple[str, int, int, int]] = [("first", sizes[-1], 0, 0)]
    for phase, order in (("capture order", sizes[::-1]), ("reverse", sizes), ("interleaved", interleaved(sizes))):
        steps += [(phase, size, size, 0) for size in order]
    steps += [("padded", size, model.padded(size), 0) for size in padded_sizes(sizes)]
    if model.largest > sizes[-1]:
        steps += [("beyond captured", size, 0, 0) for size in dict.fromkeys((sizes[-1] + 1, model.largest))]
    if deep:
        swept = swept_sizes(model, {size for _, size, _, _ in steps})
        steps += [("sweep", size, model.padded(size), 0) for size in swept]
    begin = len(steps)
    if deep and model.state:
        steps += [("long horizon", size, size, 0) for size in _cycled(sizes[::-1], HORIZON)]
    on_the_way = range(begin, len(steps) - 2)
    steps += [("weights updated", size, size, 1) for size in dict.fromkeys((sizes[-1], sizes[0]))]
    steps.append(("tables updated", sizes[-1], sizes[-1], 2))
    if deep:
        steps.append(("strided", sizes[-1], sizes[-1], 2))
    # After the weights have changed the data of an earlier call come again: only the weights can change the result.
    earlier = {size: index for index, (phase, size, _, _) in enumerate(steps) if phase == "reverse"}
    return tuple(
        Call(
            index=index,
            phase=phase,
            size=size,
            padded_size=padded,
            seed=seed * 100_003 + 1 + (earlier[size] if weights else index),
            weights=weights,
            judged=index not in on_the_way and (size != padded or size in judged or phase == "interleaved"),
            strided=phase == "strided",
        )
        for index, (phase, size, padded, weights) in enumerate(steps)
    )


def _cycled(sizes: tuple[int, ...], number: int) -> Iterator[int]:
    return islice(cycle(sizes), number)


def replayed(steps: tuple[Call, ...]) -> Iterator[Call]:
    """The calls that a piecewise build answers by replaying graphs."""
    return (call for call in steps if call.padded_size)
