"""A process that appends runs: `python -m tests.history_writer PLACE WRITER RUNS [STOP]`. It prints each when it is stored,
and in the middle of number STOP, between two statements of its transaction, it waits to be killed."""

from __future__ import annotations

import sys
import time
from typing import Any

from sqlalchemy import event

from pytest_piecewise.history.series import Sample, Series
from pytest_piecewise.history.store import History
from pytest_piecewise.records import Run

SAMPLES = 6


def measured(writer: int, number: int) -> tuple[Run, list[Sample]]:
    """What a writer appends as its run of that number: some series that all writers have, and some of its own."""
    run = Run(id=f"{writer}/{number}", started=f"2026-12-01T{number // 60:02}:{number % 60:02}:{writer:02}Z")
    names = [*(f"shared{index}" for index in range(SAMPLES - 2)), f"own{writer}", f"own{writer}-{number % 7}"]
    return run, [
        Sample(Series(case=name, variant="full", metric="compile", kind="seconds"), writer * 1000.0 + number)
        for name in names
    ]


def main(place: str, writer: int, runs: int, stop: int = -1) -> None:
    history = History(place)
    for number in range(runs):
        if number == stop:

            @event.listens_for(history._engine, "before_cursor_execute")
            def wait(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
                if "piecewise_points" in statement:
                    print("in the middle", flush=True)
                    time.sleep(600)

        history.append(*measured(writer, number))
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
