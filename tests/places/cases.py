"""Faults with a known place as ordinary piecewise tests. Not collected by itself: all of them fail but the clean one."""

from __future__ import annotations

from typing import Any

import pytest

from suites.fastcheck.test_encoder import ENCODER

from ..planted.models import LEAKING_PADDING


def case(model: Any, engine: str) -> Any:
    @pytest.mark.piecewise(model, engine=engine, dtype="float32")
    def test(piecewise: Any) -> None:
        piecewise.check()

    return test


test_op = case(ENCODER, "native@shifted@gelu")
test_stale = case(ENCODER, "native@stale@1")
test_swapped = case(ENCODER, "native@swapped@1")
test_splitting_op = case(ENCODER, "native@op@1")
test_padding = case(LEAKING_PADDING, "native")
