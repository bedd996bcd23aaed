"""The catalogue says what it should, and planting a fault is undone without a trace."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from typing import Any

import pytest
import torch

from pytest_piecewise.cli import main
from pytest_piecewise.engines import Request
from pytest_piecewise.errors import ModelError
from pytest_piecewise.faults import FAULTS, KINDS, Fault, chosen_faults, planted
from pytest_piecewise.faults.catalogue import EVERYTHING
from pytest_piecewise.faults.plant import Plant
from pytest_piecewise.measure import Meter
from pytest_piecewise.plugin import KINDS as FLAG_KINDS
from pytest_piecewise.records import CHECKS, Case, Counts
from tests.faults.models import LAYERED, STATEFUL

PATCHED = (
    *("hooks", "capture", "split", "engines.builds", "engines.pieces", "engines.static", "engines.perform"),
    *("engines.prepare", "engines.lifted", "engines.tasks"),
)


def request_for(variant: str = "piecewise") -> Request:
    return Request(
        model=LAYERED,
        variant=variant,
        dtype=torch.float32,
        device=torch.device("cpu"),
        seed=0,
        meter=Meter(),
    )


def test_there_are_enough_of_every_kind() -> None:
    number = Counter(fault.kind for fault in FAULTS.values())
    assert len(FAULTS) >= 45
    assert set(number) == set(KINDS) == set(FLAG_KINDS)
    assert min(number.values()) >= 3, number


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_entry_is_complete(fault: Fault) -> None:
    assert re.fullmatch(r"[A-Z][^.]*\.", fault.summary), fault.summary
    assert re.fullmatch(r"[\w./-]+#\d+", fault.report)
    assert fault.caught_by
    assert set(fault.caught_by) <= set(CHECKS)
    assert fault.variants
    assert set(fault.variants) <= {*EVERYTHING, "cache", "cost"}


def attributes() -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for name in PATCHED:
        module = importlib.import_module(f"pytest_piecewise.{name}")
        for attribute, value in vars(module).items():
            found[name, attribute] = value
            if isinstance(value, type):
                found |= {(f"{name}.{attribute}", key): inner for key, inner in vars(value).items()}
    return found


@pytest.mark.parametrize(
    "fault", [item for item in FAULTS.values() if "cpu" in item.devices], ids=lambda fault: fault.name
)
def test_planting_is_undone(fault: Fault) -> None:
    before = attributes()
    config = torch._inductor.config.max_fusion_size, torch._dynamo.config.automatic_dynamic_shapes
    with planted(fault.name, request_for(), fault.variants[0]) as plant:
        assert plant.effects == 0 or fault.name == "fusion_lost"
    after = attributes()
    assert [key for key, value in before.items() if after.get(key) is not value] == []
    assert config == (torch._inductor.config.max_fusion_size, torch._dynamo.config.automatic_dynamic_shapes)


def test_variant_that_a_fault_does_not_touch_is_left_alone() -> None:
    before = attributes()
    with planted("stale_input", request_for("full")):
        assert [key for key, value in before.items() if attributes().get(key) is not value] == []


def test_planted_nothing_is_nothing() -> None:
    before = attributes()
    with planted("", request_for()) as plant:
        assert attributes() == before
        assert plant.effects == 0


def test_wrapping_a_method_and_a_function_is_undone() -> None:
    from pytest_piecewise import capture

    plant = Plant(request_for())
    original, method = capture.capture, capture.StaticGraph.replay

    @plant.wrap("capture.capture")
    def changed(given: Any, *arguments: Any, **named: Any) -> str:
        assert given is original
        return "changed"

    @plant.wrap("capture.StaticGraph.replay")
    def replay(given: Any, graph: Any, arguments: Any) -> Any:
        return given, graph

    assert capture.capture() == "changed"  # type: ignore[call-arg]
    assert capture.StaticGraph.replay("a graph", ()) == (method, "a graph")  # type: ignore[arg-type]
    plant.close()
    assert (capture.capture, capture.StaticGraph.replay) == (original, method)


def test_replacement_that_takes_other_arguments_is_refused() -> None:
    def replay(given: Any, graph: Any) -> None: ...

    with pytest.raises(TypeError, match=r"replacement of capture\.StaticGraph\.replay has to take .* self, arg"):
        Plant(request_for()).wrap("capture.StaticGraph.replay")(replay)


def test_faults_are_chosen_by_kind_name_and_with_commas() -> None:
    assert chosen_faults("all") == tuple(FAULTS.values())
    assert {fault.kind for fault in chosen_faults("POOL,ALIAS")} == {"POOL", "ALIAS"}
    assert chosen_faults("stale_input,stale_input,POOL")[0] is FAULTS["stale_input"]
    assert len(chosen_faults("stale_input,stale_input")) == 1


@pytest.mark.parametrize(
    ("choice", "said"),
    [("stale_inputs", "did you mean .*stale_input"), ("pool", "did you mean POOL"), ("nonsense-xyz", "prints all")],
)
def test_unknown_fault_is_refused_with_what_is_near(choice: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        chosen_faults(choice)


@pytest.mark.parametrize(
    ("name", "case", "model", "counts", "said"),
    [
        ("stale_input", {}, LAYERED, Counts(), "no eager op between pieces returns a fresh tensor"),
        ("stale_input", {}, LAYERED, Counts(copied_inputs=("x",)), ""),
        ("dummy_runs_advance_state", {}, LAYERED, Counts(), "the model has no state"),
        ("dummy_runs_advance_state", {}, STATEFUL, Counts(), ""),
        ("truncated_beyond_captured", {}, STATEFUL, Counts(), "no call is larger"),
        ("truncated_beyond_captured", {}, LAYERED, Counts(), ""),
        ("wrong_at_unjudged_size", {}, LAYERED, Counts(), "every captured size is judged"),
        ("products_in_tf32", {"dtype": "bfloat16"}, LAYERED, Counts(), "only float32"),
        ("pool_doubled", {}, LAYERED, Counts(), "made for cuda"),
        ("pool_doubled", {"device": "cuda:1"}, LAYERED, Counts(), ""),
        ("stale_input", {"engine": "vllm"}, LAYERED, Counts(copied_inputs=("x",)), "made for the engine native"),
        ("rows_shifted", {"engine": "vllm"}, LAYERED, Counts(), ""),
    ],
)
def test_fault_says_why_it_does_not_apply(name: str, case: Any, model: Any, counts: Counts, said: str) -> None:
    found = FAULTS[name].inapplicable(Case(model="m:M", name="m", **case), model, counts)
    assert bool(found) == bool(said)
    assert said in found


def test_command_prints_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    plain = capsys.readouterr().out
    assert main(["faults", "--markdown"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == len(FAULTS) + 2
    assert len({line.count("|") for line in table}) == 1
    for fault in FAULTS.values():
        assert fault.name in plain
        assert fault.summary in plain


def test_command_prints_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--kind", "POOL", "--markdown"]) == 0
    assert {line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()[2:]} == {"POOL"}
