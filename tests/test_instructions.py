"""Instructions are counted where there is a counter; what a machine without one answers is no count."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_piecewise.engines.instructions import InstructionCount


class Counter:
    """torch's counter, answering what it is told to."""

    def __init__(self, handle: int, count: int) -> None:
        self.handle, self.count = handle, count

    def start(self) -> int:
        return self.handle

    def end(self, handle: int) -> int:
        assert handle == self.handle
        return self.count


@pytest.mark.parametrize(
    ("pmu", "handle", "answer", "count"),
    [
        (True, 3, 123_456, 123_456),
        (True, -1, 5, None),
        (True, 3, 2**64 - 1, None),
        (True, 3, 0, None),
        (False, 3, 5, None),
    ],
    ids=["counted", "not opened", "sentinel", "nothing", "no PMU"],
)
def test_only_a_real_count_is_one(tmp_path: Path, pmu: bool, handle: int, answer: int, count: int | None) -> None:
    (tmp_path / ("cpu" if pmu else "software")).mkdir()
    with InstructionCount(Counter(handle, answer), tmp_path) as instructions:
        pass
    assert instructions.count == count


def test_this_machine_counts_more_for_more_or_says_nothing() -> None:
    found = []
    for length in (1_000, 1_000_000):
        with InstructionCount() as instructions:
            sum(range(length))
        found.append(instructions.count)
    assert found == [None, None] or (None not in found and found[1] > found[0])
