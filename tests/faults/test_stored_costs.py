"""What a canary run takes for clean is what a plain run finds: its costs pass the baselines that one stored."""

from __future__ import annotations

from pathlib import Path

from tests.faults.test_canary import CASES
from tests.running import configure, run_pytest


def test_clean_part_costs_what_a_plain_run_stored(tmp_path: Path) -> None:
    # `full` and `piecewise` in one cache directory: the second would be charged the artifacts of the first.
    run = (configure(tmp_path), "--piecewise", "--piecewise-dtype=float32", "--piecewise-device=cpu")
    plain = run_pytest(*run, "--piecewise-update=new", f"{CASES}::test_outputs")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    canary = run_pytest(*run, "--piecewise-canary=nan_hidden", f"{CASES}::test_outputs", CI="true")
    assert canary.returncode == 0, canary.stdout + canary.stderr
    (line,) = (line for line in canary.stdout.splitlines() if "nan_hidden" in line)
    assert " caught " in line
