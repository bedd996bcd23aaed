"""Faults with a known place as ordinary piecewise tests. Not collected by itself: all of them fail."""

from __future__ import annotations

from typing import Any

import pytest

from suites.fastcheck.test_encoder import ENCODER

from ..planted.models import FRESH, LEAKING_PADDING


def case(model: Any, engine: str) -> Any:
    @pytest.mark.piecewise(model, engine=engine, dtype="float32")
    def test(piecewise: Any) -> None:
        piecewise.check()

    return test


test_op = case(ENCODER, "native@shifted@add")
test_swapped = case(ENCODER, "native@swapped@1")
test_stale = case(FRESH, "stale_inputs")
test_padding = case(LEAKING_PADDING, "native")
