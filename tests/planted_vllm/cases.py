"""The planted faults and their clean twins as ordinary piecewise tests. Not collected by itself: most of them fail."""

from __future__ import annotations

from typing import Any

import pytest

from . import models


def case(model: Any, engine: str = "vllm") -> Any:
    @pytest.mark.piecewise(model, engine=engine)
    def test(piecewise: Any) -> None:
        piecewise.check()

    return test


test_clean = case(models.CLEAN)
test_plain = case(models.PLAIN)
test_missing_op = case(models.MISSING_OP)
test_listed_op = case(models.LISTED_OP)
test_nothing_split = case(models.NOTHING_SPLIT)
test_fresh = case(models.FRESH)
test_changed_constant = case(models.CHANGED_CONSTANT)
test_moved_buffers = case(models.CLEAN, "moved_buffers")
test_short_capture = case(models.CLEAN, "short_capture")
test_scaled = case(models.SCALED)
test_shared_cache = case(models.SCALED, "shared_cache")
test_elsewhere = case(models.CLEAN, "elsewhere")
