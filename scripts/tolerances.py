"""How far clean results stay from their budgets: a Markdown table out of report.json files.

    python scripts/tolerances.py REPORT [REPORT ...]

Per case: the number of budget comparisons, the largest error/budget of any element, of any row's RMS, of the RMS over
all calls, and the largest gain bias with what was tolerated. 1 would be a failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_piecewise.records import CaseResult, Comparison, from_plain


def row(result: CaseResult, variant: str) -> str | None:
    """One line of the table; None if the variant was not compared."""
    made = [c for c in result.comparisons if c.variant == variant and c.check == "equivalence"]
    if not made:
        return None
    calls = [c for c in made if c.call >= 0]
    overall = [c for c in made if c.call < 0 and not c.gain]
    gains = [c for c in made if c.gain]

    def most(items: list[Comparison], field: str) -> str:
        return f"{max((getattr(item, field) for item in items), default=0.0):.2f}"

    gain = max(gains, key=lambda c: abs(c.gain), default=None)
    cells = [
        result.case.name,
        result.case.dtype,
        result.case.device,
        variant,
        str(len(calls)),
        f"{sum(c.elements for c in calls):,}",
        most(calls, "ratio"),
        most(calls, "row_ratio"),
        most(overall, "ratio"),
        f"{abs(gain.gain):.1e} of {gain.budget:.1e}" if gain else "",
        "PASS" if all(c.ok for c in made) else "FAIL",
    ]
    return "| " + " | ".join(cells) + " |"


def planted(result: CaseResult) -> str:
    """One line: the clean case's largest error/budget, and those under each planted numerics fault, smallest first."""
    clean = max((max(c.ratio, c.row_ratio) for c in result.comparisons if c.check == "equivalence"), default=0.0)
    tried = [t for t in result.canary if t.kind == "NUM" and t.outcome in ("caught", "missed") and t.ratio]
    shown = [f"{t.fault} {t.ratio:.3g}" for t in sorted(tried, key=lambda item: item.ratio)]
    return f"| {result.case.name} | {result.case.dtype} | {result.case.device} | {clean:.2f} | {', '.join(shown)} |"


def main() -> None:
    """Prints the tables."""
    print("| model | dtype | device | variant | comparisons | elements | element | row RMS | overall RMS | gain | |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|--:|---|")
    results = [
        from_plain(CaseResult, d) for path in sys.argv[1:] for d in json.loads(Path(path).read_text())["results"]
    ]
    for result in results:
        for variant in ("full", "piecewise"):
            if line := row(result, variant):
                print(line)
    if any(result.canary for result in results):
        print("\n| model | dtype | device | clean | planted numerics faults, error/budget |\n|---|---|---|--:|---|")
    for result in results:
        if result.canary:
            print(planted(result))


if __name__ == "__main__":
    main()
