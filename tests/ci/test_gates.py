"""Every fault closes the gate that is there for it: step and build end as they must, and say why."""

from __future__ import annotations

import pytest

from tests.ci.gates import BEGIN, END, GATES, Closed, Gate, run_gates, table
from tests.running import ROOT


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Closed]:
    return {item.gate.name: item for item in run_gates(tmp_path_factory.mktemp("gates"))}


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_gate(gate: Gate, closed: dict[str, Closed]) -> None:
    found = closed[gate.name]
    step = next(step for step in found.build.steps if step.key == gate.step)
    ended = (step.state, step.exit_codes, step.attempts, found.build.passed)
    assert ended == (gate.state, (gate.exit_code,), (gate.attempts,), gate.passes), found.said
    assert gate.says in found.said


def test_table_in_the_documentation_is_what_happens(closed: dict[str, Closed]) -> None:
    text = (ROOT / "docs/ci.md").read_text()
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(list(closed.values())), "python -m tests.ci.gates docs/ci.md makes it anew"
