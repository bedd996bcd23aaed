"""Do the results of `vllm_llama8b.py` agree? Verdicts per mode, and the report in Markdown. Reads JSON only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FACTOR = 4.0
"""Bound on a difference over eager's own, as in `pytest_piecewise.compare`."""
UNIT = 2.0**-8
"""Rounding to bfloat16."""


def compare(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every mode against the reference, within the error of eager."""
    done = {mode: found for mode, found in results.items() if found.get("complete")}
    if "eager" not in done:
        return {}
    reference = done.get("float32", done["eager"])
    eager = errors(done["eager"], reference)
    if reference is done["eager"]:
        eager = [
            differences(*pair)
            for pair in zip(done["eager"]["rows"]["alone"], done["eager"]["rows"]["round 0"], strict=True)
        ]
        eager = [peak for sequence in eager for peak in sequence]
        eager *= -(-positions(done["eager"]) // len(eager))
    values = [value for sequence in done["eager"]["rows"]["round 0"] for row in sequence for value in row.values()]
    size = (sum(value * value for value in values) / len(values)) ** 0.5
    typical = max(sorted(eager)[int(0.9 * len(eager))], UNIT * size)
    verdicts = {"eager": vacuity(done["eager"], reference, typical)}
    for mode, found in done.items():
        if mode not in ("eager", reference["mode"]):
            verdicts[mode] = verdict(found, done["eager"], reference, eager, typical)
    return verdicts


def errors(found: dict[str, Any], reference: dict[str, Any]) -> list[float]:
    """Per position the largest difference of a log-probability, over the tokens that both give."""
    return [
        peak
        for part, sequences in reference["rows"].items()
        for mine, other in zip(found["rows"][part], sequences, strict=True)
        for peak in differences(mine, other)
    ]


def differences(mine: list[dict[str, float]], other: list[dict[str, float]]) -> list[float]:
    """A position without a common token differs without bounds."""
    return [
        max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=float("inf"))
        for a, b in zip(mine, other, strict=True)
    ]


def positions(found: dict[str, Any]) -> int:
    """How many positions were scored."""
    return sum(len(sequence) for sequences in found["rows"].values() for sequence in sequences)


def vacuity(found: dict[str, Any], reference: dict[str, Any], typical: float) -> dict[str, Any]:
    """Eager itself: not flat, and what it is judged by."""
    spreads = sorted(max(row.values()) - min(row.values()) for sequence in found["rows"]["round 0"] for row in sequence)
    median = spreads[len(spreads) // 2]
    text = f"the most probable tokens spread by {median:.3g}; typical error {typical:.3g} against {reference['mode']}"
    return {"ok": median > 10 * typical, "summary": text}


def verdict(
    found: dict[str, Any], eager: dict[str, Any], reference: dict[str, Any], budget: list[float], typical: float
) -> dict[str, Any]:
    """One mode: no position beyond the budget that eager's error sets there, RMS error as eager's, greedy tokens equal."""
    made = errors(found, reference)
    ratios = [error / (FACTOR * max(own, typical)) for error, own in zip(made, budget, strict=True)]
    rms, own_rms = ((sum(min(e, 1e3) ** 2 for e in items) / len(items)) ** 0.5 for items in (made, budget))
    equal, tied, wrong = tokens(found, eager, 2 * FACTOR * typical)
    beyond = sum(ratio > 1 for ratio in ratios)
    summary = (
        f"worst {max(ratios):.3g} x budget, {beyond} of {len(ratios)} positions beyond; RMS {rms:.3g}, eager {own_rms:.3g}; "
        f"{equal} greedy tokens equal, {tied} sequences left at a near tie, {len(wrong)} otherwise"
    )
    return {
        "ok": not beyond and not wrong and rms <= 2 * max(own_rms, typical),
        "summary": summary,
        "worst": max(ratios),
        "rms": rms,
        "eager_rms": own_rms,
        "wrong_tokens": wrong[:10],
    }


def tokens(found: dict[str, Any], eager: dict[str, Any], tolerated: float) -> tuple[int, int, list[str]]:
    """Greedy tokens equal to eager's, sequences that part at a near tie, and those that part elsewhere."""
    equal, tied, wrong = 0, 0, []
    for part, sequences in eager["greedy"].items():
        for index, (mine, other) in enumerate(zip(found["greedy"][part], sequences, strict=True)):
            pairs = zip(mine["tokens"], other["tokens"], strict=True)
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            equal += len(other["tokens"]) if first is None else first
            if first is None:
                continue
            row = other["rows"][first]
            gap = row[str(other["tokens"][first])] - row.get(str(mine["tokens"][first]), -float("inf"))
            tied += gap <= tolerated
            if gap > tolerated:
                wrong.append(f"{part}, sequence {index}, new token {first}: gap {gap:.3g}, tolerated {tolerated:.3g}")
    return equal, tied, wrong


def startup_of(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The numbers of the start-up table by mode and name."""
    return {
        mode: {"init": found["init_s"], **{item["name"]: item["value"] for item in found.get("startup", [])}}
        for mode, found in results.items()
    }


def report(results: dict[str, dict[str, Any]], verdicts: dict[str, dict[str, Any]], modes: Sequence[str]) -> str:
    """The start-up table with ratios to `full`, and the verdicts."""
    from pytest_piecewise.reports.startup import ABSENT, ROWS

    values = startup_of(results)
    full = values.get("full", {})
    lines = [f"| | {' | '.join(values)} |", "|---" * (len(values) + 1) + "|"]
    for name, label, unit, form in (*ROWS, ("init", "LLM(...) s", 1.0, ".1f")):
        cells = []
        for mode, found in values.items():
            cell = format(found[name] / unit, form) if name in found else ABSENT
            compared = mode != "full" and name in found and full.get(name)
            cells.append(f"{cell} ({found[name] / full[name]:.2f})" if compared else cell)
        if any(cell != ABSENT for cell in cells):
            lines.append(f"| {label.strip()} | {' | '.join(cells)} |")
    lines += ["", "In brackets: over `full`. `-`: not reported.", ""]
    lines += [f"- `{mode}`: {found.get('configuration', 'did not start')}" for mode, found in results.items()]
    lines += ["", *(f"- `{mode}` {'agrees' if v['ok'] else 'FAILS'}: {v['summary']}" for mode, v in verdicts.items())]
    missing = [mode for mode in modes if not results.get(mode, {}).get("complete")]
    return "\n".join([*lines, *([f"- not complete: {', '.join(missing)}; see their logs"] if missing else []), ""])
