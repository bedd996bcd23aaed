"""What the marker and the options say of a test -> its cases; those that cannot be used are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_piecewise.errors import PiecewiseError, UnfitError
from pytest_piecewise.expected import expectations
from pytest_piecewise.hooks import find_engine
from pytest_piecewise.models import Model, find_model, locate, model_for, needed_module
from pytest_piecewise.records import TIERS, Case, Settings
from pytest_piecewise.runner import probe
from pytest_piecewise.settings import chosen_dtypes
from pytest_piecewise.workers import Children, Workers

ARGUMENTS = ("engine", "dtype", "tier", "device", "expected")
"""What the marker may say beside the model."""


class Cases:
    """Makes the cases of a session: `table` is that of pyproject.toml, to which the command line comes first."""

    def __init__(self, config: pytest.Config, table: Mapping[str, Any], settings: Settings, workers: Workers) -> None:
        self._option, self._table, self._settings, self._workers = config.getoption, table, settings, workers

    @property
    def engine(self) -> str:
        """The engine where neither option nor marker names one."""
        return str(self._option("piecewise_engine") or self._table.get("engine", "native"))

    def of_test(self, definition: Any, module: Any) -> list[Case]:
        """The cases of a test that uses the `piecewise` fixture."""
        mark = definition.get_closest_marker("piecewise")
        if mark is None or not mark.args:
            raise PiecewiseError(
                "expected @pytest.mark.piecewise(MODEL) on a test that uses the `piecewise` fixture, found none; add it"
            )
        if unknown := mark.kwargs.keys() - set(ARGUMENTS):
            raise PiecewiseError(
                f"@pytest.mark.piecewise has no {', '.join(sorted(unknown))}; "
                f"expected {', '.join(ARGUMENTS[:-1])} or {ARGUMENTS[-1]}"
            )
        return self.of_model(mark.args[0], module, **mark.kwargs)

    def of_model(
        self,
        model: Model | str | Mapping[str, Model | str],
        near: Any,
        *,
        engine: str | None = None,
        dtype: Any = None,
        tier: str = "fastcheck",
        device: str | None = None,
        expected: Any = None,
    ) -> list[Case]:
        """A case for each dtype, of a model given as itself, as a reference, or as either of them for each device; `near` is
        the module that names it. Raises `PiecewiseError` for what cannot be used."""
        if tier not in TIERS:
            raise PiecewiseError(f"expected tier {', '.join(TIERS)}, found {tier!r}")
        if isinstance(model, Mapping):
            model = model_for(model, self._device(device))
        if isinstance(model, str):
            found, (reference, file) = find_model(model), (model, "")
        else:
            found, (reference, file) = model, locate(model, near)
        asked = self._option("piecewise_dtype") or dtype or self._table.get("dtype")
        cases = [
            Case(
                model=reference,
                file=file,
                name=found.name,
                engine=self._option("piecewise_engine") or engine or self.engine,
                dtype=name,
                device=self._device(device),
                tier=tier,
                expected=expectations({} if expected is None else expected),
            )
            for name in chosen_dtypes(asked, found.dtypes)
        ]
        if TIERS.index(tier) <= TIERS.index(self._settings.tier):
            for case in cases:
                self._refuse_unusable(case)
        return cases

    def _device(self, asked: str | None) -> str:
        device = str(self._option("piecewise_device") or asked or self._settings.device)
        return ("cuda" if self._workers.gpus else "cpu") if device == "auto" else device

    def unsupported(self, case: Case) -> str | None:
        """Why a case is skipped here: its engine cannot build it, or its test asks for a GPU where there is none."""
        if case.device.startswith("cuda") and self._settings.device == "auto" and not self._workers.gpus:
            return f"the test asks for device {case.device}, and this machine has no GPU"
        return find_engine(case.engine).unsupported(case)

    def _refuse_unusable(self, case: Case) -> None:
        if self.unsupported(case):
            return  # which the case's result will say
        worker = self._workers.of_engine(case.engine)
        if isinstance(worker, Children):
            worker.preload(needed_module(case.model))
        try:
            record = probe(case, self._settings, worker)
        except UnfitError:
            return  # of which the test itself will fail: exit code 12, where a failed collection is an interrupted session
        if record.outcome != "ok":
            finding = record.findings[0]
            raise PiecewiseError("\n".join(filter(None, (finding.summary, finding.detail or record.last_output))))
