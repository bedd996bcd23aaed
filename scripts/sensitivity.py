"""The smallest error that the comparison sees: relative perturbations of one weight, one row, one constant, one element.

    python scripts/sensitivity.py MODULE:MODEL [MODULE:MODEL ...] [--dtype float32 bfloat16]

The eager module plays the variant, so that nothing but the perturbation is between it and eager. Powers of two are tried
from 2^-26 upwards; the first that is a failure of `equivalence` is printed. `weight`: one matrix, in the middle of a model,
times 1 + e. `row`: one row of one call. `constant`: every output. `element`: one element of one call, of typical size.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from pytest_piecewise import protocol
from pytest_piecewise.compare import Reference
from pytest_piecewise.engines import tasks
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.faults import Plant
from pytest_piecewise.judge import compare_case
from pytest_piecewise.models import Model, find_model
from pytest_piecewise.records import Case, Settings, Status

WHAT = ("weight", "row", "constant", "element")
Outputs = dict[int, dict[str, torch.Tensor]]


class Bench:
    """One model in one dtype: its reference, its eager outputs, and a judge for any others."""

    def __init__(self, reference: str, dtype: str) -> None:
        self.case = Case(model=reference, name=find_model(reference).name, dtype=dtype)
        self.model, self.settings = find_model(reference), Settings()
        self._folder = Path(tempfile.mkdtemp(prefix="sensitivity-"))
        self.eager = self.outputs()
        tasks.run_reference(self.case, self.settings, self._folder, lambda phase: None)
        self._reference = {
            index: {name: Reference(*pair) for name, pair in outputs.items()}
            for index, outputs in torch.load(self._folder / "reference.pt").items()
            if index in self.eager
        }

    def outputs(self, change: Callable[[Any], None] | None = None) -> Outputs:
        """Those of the eager module, changed if asked."""
        plant = Plant()
        if change is not None:

            @plant.wrap("engines.builds.make_module")
            def make_module(original: Any, *arguments: Any) -> Any:
                module = original(*arguments)
                change(module)
                return module

        tasks.run_variant(self.case, "eager", self.settings, self._folder, lambda phase: None)
        plant.close()
        return torch.load(self._folder / "eager.pt")

    def is_caught(self, found: Outputs) -> bool:
        """Whether a variant with these outputs fails `equivalence`."""
        _, findings, _ = compare_case(
            Evidence(
                model=self.model,
                steps=protocol.calls(self.model, 0),
                unit=UNIT_ROUNDOFF[getattr(torch, self.case.dtype)],
                precision="float64",
                reference=self._reference,
                variants={"eager": self.eager, "piecewise": found},
                device="cpu",
            )
        )
        return any(item.check == "equivalence" and item.status is Status.FAIL for item in findings)

    def perturbed(self, what: str, size: float) -> Outputs:
        """What the model gives with one thing changed by a factor of 1 + size."""
        if what == "weight":
            return self.outputs(lambda module: middle_matrix(module).mul_(1 + size))
        found = {index: {name: tensor.clone() for name, tensor in named.items()} for index, named in self.eager.items()}
        last = max(found)
        for index, named in found.items():
            for name, tensor in named.items():
                if not tensor.is_floating_point() or not tensor.dim() or name.startswith("state:"):
                    continue
                if what == "constant":
                    tensor.mul_(1 + size)
                elif index == last and what == "row":
                    tensor[tensor.shape[0] // 2].mul_(1 + size)
                elif index == last:
                    flat = tensor.view(-1)
                    typical = flat.double().square().mean().sqrt()
                    flat[int((flat.double().abs() - typical).abs().argmin())] *= 1 + size
        return found


def middle_matrix(module: torch.nn.Module) -> torch.Tensor:
    """The weight matrix in the middle of a module, embeddings left out."""
    matrices = [
        parameter.data for name, parameter in module.named_parameters() if parameter.dim() > 1 and "embed" not in name
    ]
    return matrices[len(matrices) // 2]


def smallest(bench: Bench, what: str) -> str:
    """The smallest power of two that is caught."""
    for exponent in range(-26, 1):
        if bench.is_caught(bench.perturbed(what, 2.0**exponent)):
            return f"2^{exponent}"
    return "none"


def usable(model: Model, dtype: str) -> bool:
    """Whether the model is to be checked in a dtype."""
    return dtype in model.dtypes


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODULE:MODEL")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    chosen = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    print(f"| model | dtype | {' | '.join(WHAT)} |\n|---|---|{'--:|' * len(WHAT)}")
    for reference in chosen.models:
        for dtype in chosen.dtype:
            if usable(find_model(reference), dtype):
                bench = Bench(reference, dtype)
                found = [smallest(bench, what) for what in WHAT]
                print(f"| {bench.case.name} | {dtype} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
