"""The models as ordinary piecewise tests, to be run with `--piecewise-canary`. Not collected by itself."""

from __future__ import annotations

from typing import Any

import pytest

from . import models


@pytest.mark.piecewise(models.LAYERED)
def test_layered(piecewise: Any) -> None:
    piecewise.check()


@pytest.mark.piecewise(models.STATEFUL)
def test_stateful(piecewise: Any) -> None:
    piecewise.check()


@pytest.mark.piecewise(models.OUTPUTS)
def test_outputs(piecewise: Any) -> None:
    piecewise.check()
