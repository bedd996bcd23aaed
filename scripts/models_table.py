"""The table of architectures in docs/models.md, from the reports of runs of suites/models.

Usage: python scripts/models_table.py REPORT.json ... (writes docs/models.md, from `<!-- measured -->` on)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "models.md"
MARK = "<!-- measured -->"
HEAD = "| architecture | dtype | pieces (distinct) | splitting ops | graphs captured | full | piecewise | verdict |"


def rows(results: list[dict[str, Any]]) -> list[str]:
    """One line per case, by name and dtype."""
    ranked = sorted(results, key=lambda item: (item["case"]["name"], item["case"]["dtype"] != "float32"))
    return [row(result) for result in ranked]


def row(result: dict[str, Any]) -> str:
    """What ran, what it was split into, and the worst error over its budget of either compiled variant."""
    case = result["case"]
    counts = next((b["counts"] for b in result["builds"] if b["variant"] == "piecewise"), {})
    pieces = f"{counts['pieces']} ({counts['distinct_pieces']})" if counts.get("pieces") else "-"
    errors = [worst(result, variant) for variant in ("full", "piecewise")]
    failed = sorted({item["check"] for item in result["findings"] if item["status"] == "FAIL"})
    known = [item["check"] for item in case.get("expected", [])]
    verdict = f"FAIL {', '.join(failed)}" if failed else f"expected: {', '.join(known)}" if known else "ok"
    cells = [case["name"], case["dtype"], pieces, counts.get("splitting_ops") or "-", counts.get("captures") or "-"]
    return f"| {' | '.join(map(str, [*cells, *errors, verdict]))} |"


def worst(result: dict[str, Any], variant: str) -> str:
    """The largest error over budget; a dash where the variant could not be built."""
    found = [c["ratio"] for c in result["comparisons"] if c["variant"] == variant and c["check"] == "equivalence"]
    return f"{max(found):.2f}" if found else "-"


def main(paths: list[str]) -> None:
    """Writes the table."""
    reports = [json.loads(Path(path).read_text()) for path in paths]
    results = [result for report in reports for result in report["results"]]
    known = reports[0]["environment"]
    where = known["accelerator"] if known["accelerator"] != "none" else f"{known['cpu']}, {known['threads']} threads"
    lines = [
        f"torch {known['torch']}, Python {known['python']}, {where}:",
        "",
        HEAD,
        "|---" * HEAD.count(" | ") + "|---|",
    ]
    kept = DOCUMENT.read_text().partition(MARK)[0]
    DOCUMENT.write_text(f"{kept}{MARK}\n\n" + "\n".join([*lines, *rows(results)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
