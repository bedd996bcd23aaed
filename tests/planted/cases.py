"""The planted faults and their clean twins as ordinary piecewise tests. Not collected by itself: most of them fail."""

from __future__ import annotations

from typing import Any

import pytest

from . import models, right


def case(model: Any, engine: str = "native") -> Any:
    @pytest.mark.piecewise(model, engine=engine)
    def test(piecewise: Any) -> None:
        piecewise.check()

    return test


test_clean = case(models.CLEAN)
test_fresh = case(models.FRESH)
test_stale_inputs = case(models.FRESH, "stale_inputs")
test_undeclared_mutation = case(models.UNDECLARED_MUTATION)
test_graph_break = case(models.GRAPH_BREAK)
test_recompile = case(models.RECOMPILE)
test_steady = case(models.STEADY)
test_silent_eager = case(models.CLEAN, "silent_eager")
test_zero_weights = case(models.ZERO_WEIGHTS)
test_overwritten_outputs = case(models.CLEAN, "overwritten_outputs")
test_shared_captures = case(models.CLEAN, "shared_captures")
test_leaking_padding = case(models.LEAKING_PADDING)
test_changed_constant = case(models.CHANGED_CONSTANT)
test_many_rows = case(models.MANY_ROWS)
test_wrong_row = case(models.MANY_ROWS, "wrong_row")
test_crash = case(models.CRASH)
test_hang = case(models.HANG)
test_eat_memory = case(models.EAT_MEMORY)
test_missing_op = case(models.MISSING_OP)
test_listed_op = case(models.LISTED_OP)
test_never_found = case(models.NEVER_FOUND)
test_nothing_split = case(models.NOTHING_SPLIT)
test_follows_size = case(models.FOLLOWS_SIZE)
test_workspace = case(models.WORKSPACE)
test_off_in_float32 = case(models.OFF_IN_FLOAT32)
test_unsteady = case(models.UNSTEADY)
test_odd_outputs = case(right.ODD_OUTPUTS)
test_weightless = case(right.WEIGHTLESS)
test_rotary = case(right.ROTARY)
test_position_table = case(right.POSITION_TABLE)
test_convolution = case(right.CONVOLUTION)
test_factory = case(right.FACTORY)
test_shapes = case(right.SHAPES)
test_masked = case(right.MASKED)
test_closures = case(right.CLOSURES)
test_beside = case(right.BESIDE)
test_one_captured = case(right.ONE_CAPTURED)
test_packed = case(right.PACKED)
test_forgetful = case(right.FORGETFUL)
