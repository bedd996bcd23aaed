"""What a canary run takes for clean, and two faults that once hid behind it, on a model with state."""

from __future__ import annotations

from pathlib import Path

from tests.faults.test_canary import CASES
from tests.running import configure, run_pytest

CASE = f"{CASES}::test_stateful"


def test_clean_part_costs_what_a_plain_run_stored_and_state_hides_no_stale_weights(tmp_path: Path) -> None:
    run = (configure(tmp_path), "--piecewise", "--piecewise-dtype=float32", "--piecewise-device=cpu")
    plain = run_pytest(*run, "--piecewise-update=new", CASE)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    # `full` and `piecewise` in one cache directory: the second would be charged the artifacts of the first.
    # And outputs that follow the state differ from call to call, even if weights and inputs never do.
    canary = run_pytest(*run, "--piecewise-canary=weights_never_updated,same_inputs", CASE, CI="true")
    assert canary.returncode == 0, canary.stdout + canary.stderr
    for fault in ("weights_never_updated", "same_inputs"):
        (line,) = (line for line in canary.stdout.splitlines() if f" {fault} " in line)
        assert "caught     vacuity" in line
