"""The README's example is the one in docs/example, and it does what the README says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "docs" / "example" / "test_my_model.py"


def run_example(directory: Path, source: str) -> str:
    (directory / "test_my_model.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "--piecewise", "--piecewise-dtype=float32", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False).stdout


def test_readme_shows_the_example_as_it_is() -> None:
    shown = re.search(r"<!-- example -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == EXAMPLE.read_text()


def test_example_passes(tmp_path: Path) -> None:
    output = run_example(tmp_path, EXAMPLE.read_text())
    assert re.search(r"mine-native-float32 +piecewise +4 \(3\) .* ok", output), output
    assert "1 passed" in output


def test_example_fails_as_the_readme_shows(tmp_path: Path) -> None:
    source = EXAMPLE.read_text()
    assert "is_causal=True" in source
    output = run_example(tmp_path, source.replace("is_causal=True", "is_causal=False"))
    assert "FAIL padding (piecewise): 0 of 4 comparison(s) bit-equal" in output, output
    assert re.search(r"mine-native-float32 +full .* ok", output)
    assert re.search(r"mine-native-float32 +piecewise .* FAIL padding, equivalence", output)
