"""Records -> pictures: phases as bars, errors against their budget, where outputs are wrong, the pieces, the history."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from markupsafe import Markup

from pytest_piecewise.records import BuildRecord, CaseResult, Comparison, Part, Trend
from pytest_piecewise.reports.svg import element, figure, percent, text

ROW = 26
"""Height of a bar with the space round it, in pixels."""
PHASES = ("model", "compile", "capture", "protocol", "second build", "other")
LOWEST_RATIO, PLOT_HEIGHT = 1e-3, 202
PART_WIDTH, PART_GAP, PART_HEIGHT = 76, 14, 58
CELL = 8
TREND_HEIGHT = 64


def phase_seconds(build: BuildRecord) -> dict[str, float]:
    """Wall seconds by kind of phase, in the order of `PHASES`."""
    found = dict.fromkeys(PHASES, 0.0)
    for phase in build.phases:
        name = phase.name.partition(":")[0]
        found[name if name in found else "other"] += phase.seconds
    return {name: seconds for name, seconds in found.items() if seconds}


def phase_bars(builds: Sequence[BuildRecord]) -> Markup:
    """One bar per build, its phases in their order, all on one scale."""
    rows = [(build.variant, phase_seconds(build)) for build in builds]
    longest = max((sum(phases.values()) for _, phases in rows), default=0.0)
    if not longest:
        return Markup("")
    drawn = []
    for index, (variant, phases) in enumerate(rows):
        start, top = 0.0, index * ROW
        for name, seconds in phases.items():
            share = 0.58 * seconds / longest
            bar = element("title", f"{name} {seconds:.2f} s")
            x, y, width, style = percent(0.26 + start), top + 4, percent(share), f"phase{PHASES.index(name)}"
            drawn.append(element("rect", bar, class_=style, x=x, y=y, width=width, height=ROW - 8))
            start += share
        drawn.append(text(variant, 0, top + 17))
        drawn.append(text(f"{sum(phases.values()):.2f} s", percent(0.275 + start), top + 17))
    spoken = "; ".join(f"{name} {sum(phases.values()):.2f} s" for name, phases in rows)
    return figure(f"Seconds of each build by phase: {spoken}", drawn, height=ROW * len(rows))


def worst_by_call(comparisons: Sequence[Comparison]) -> dict[tuple[int, str], Comparison]:
    """Of every call and variant, the output that is nearest to its budget or farthest beyond it."""
    worst: dict[tuple[int, str], Comparison] = {}
    for item in comparisons:
        key = (item.call, item.variant)
        if item.axis == "budget" and item.call >= 0 and (key not in worst or worst[key].ratio < item.ratio):
            worst[key] = item
    return worst


def budget_plot(result: CaseResult) -> Markup:
    """Error over budget of every call, full as squares and piecewise as circles, on a logarithmic scale."""
    worst = worst_by_call(result.comparisons)
    calls = sorted({call for call, _ in worst})
    if not calls:
        return Markup("")
    top = max(10.0, *(min(item.ratio, 1e12) for item in worst.values()))
    bottom = PLOT_HEIGHT - 56

    def height(ratio: float) -> float:
        lowest, highest = math.log(LOWEST_RATIO), math.log(top)
        clipped = min(max(ratio, LOWEST_RATIO), top)
        return bottom - (math.log(clipped) - lowest) / (highest - lowest) * (bottom - 10)

    def across(call: int) -> str:
        return percent(0.1 + 0.88 * (calls.index(call) + 0.5) / len(calls))

    drawn = [
        element("line", x1="10%", x2="98%", y1=height(1), y2=height(1), class_="budget"),
        text("budget", "9%", height(1) + 4, text_anchor="end"),
        text(f"{LOWEST_RATIO:g}", "9%", bottom + 4, text_anchor="end"),
        text(f"{top:.0e}" if top > 1e4 else f"{top:.3g}", "9%", 14, text_anchor="end"),
    ]
    first_of: dict[str, int] = {}
    sizes = []
    every = 1 + len(calls) // 16
    for index, call in enumerate(calls):
        item = next(item for (of, _), item in worst.items() if of == call)
        if index % every == 0:
            sizes.append(text(str(item.size), across(call), bottom + 16))
        first_of.setdefault(item.phase, call)
    drawn.append(element("g", *sizes, class_="sizes"))
    for index, (phase, call) in enumerate(first_of.items()):  # in three rows: some phases have few calls and long names
        anchor = "end" if calls.index(call) > 0.7 * len(calls) else "start"
        drawn.append(text(phase, across(call), bottom + 29 + 12 * (index % 3), class_="small", text_anchor=anchor))
    for variant in dict.fromkeys(variant for _, variant in worst):
        dots = [_dot(item, across(call), height(item.ratio)) for (call, of), item in worst.items() if of == variant]
        drawn.append(element("g", *dots, class_=variant if variant in ("full", "piecewise") else "other"))
    most = max(worst.values(), key=lambda item: item.ratio)
    where = f"{most.variant} {most.ratio:.3g}, {most.phase}, size {most.size}"
    spoken = f"Error over budget of {len(calls)} calls; most: {where}"
    return figure(spoken, drawn, height=PLOT_HEIGHT)


def _dot(item: Comparison, x: str, y: float) -> Markup:
    title = element("title", f"{item.size}: {item.ratio:.3g}")
    style = {} if item.ok else {"class_": "bad"}
    if item.variant == "full":
        return element("rect", title, x=x, y=round(y) - 3, **style)
    return element("circle", title, cx=x, cy=round(y), **style)


def heat_picture(item: Comparison) -> Markup:
    """Where one failing output is wrong: its rows downwards, its columns to the right, darker where more is wrong."""
    paths: dict[str, list[str]] = {}
    for row, cells in enumerate(item.heat):
        start = 0
        for column in range(1, len(cells) + 1):
            if column < len(cells) and cells[column] == cells[start]:
                continue
            if cells[start].isdigit():
                width = CELL * (column - start)
                paths.setdefault(cells[start], []).append(f"M{CELL * start} {CELL * row}h{width}v{CELL}h-{width}z")
            start = column
    width, height = CELL * max(map(len, item.heat), default=0), CELL * len(item.heat)
    drawn = [element("rect", width=width, height=height, class_="fine")]
    drawn += [element("path", d="".join(path), class_=f"heat{level}") for level, path in sorted(paths.items())]
    rows, columns = rows_and_columns(item.shape)
    spoken = f"{item.wrong} of {item.elements} elements are wrong, in {rows} rows and {columns} columns"
    return figure(spoken, drawn, height=height, width=width)


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """An output as a table: rows along its last dimension."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def piece_graph(parts: Sequence[Part], diverging: int = -1) -> Markup:
    """The split graph from left to right: pieces as boxes, splitting ops as bars between them; the part at the place
    `diverging` is the first that is wrong."""
    first_use = {part.name for part in parts if not part.same_as}
    drawn, x = [], 1.0
    for index, part in enumerate(parts):
        wrong = index == diverging
        if not part.compiled:
            drawn.append(_splitting_ops(part, x, wrong))
            x += PART_GAP
            continue
        style = "shared" if part.same_as in first_use else "piece"
        said = f"as {part.same_as}" if part.same_as else f"{part.compile_seconds:.2f} s"
        title = f"{part.name}: {part.ops} ops, {said}" + (", the first that is wrong" if wrong else "")
        box = {"x": x, "y": 8, "width": PART_WIDTH, "height": PART_HEIGHT - 16, "rx": 4}
        drawn.append(element("rect", element("title", title), class_=style + (" bad" if wrong else ""), **box))
        drawn.append(text(_short(part.name, 11), x + 6, 26))
        drawn.append(text(_short(said, 12), x + 6, 41, class_="small"))
        x += PART_WIDTH + 2
    compiled = [part for part in parts if part.compiled]
    spoken = f"{len(compiled)} pieces, {sum(not part.same_as for part in compiled)} of them compiled"
    spoken += f"; {parts[diverging].name} is the first that is wrong" if 0 <= diverging < len(parts) else ""
    return figure(spoken, drawn, height=PART_HEIGHT, width=x)


def _splitting_ops(part: Part, x: float, wrong: bool) -> Markup:
    title = element("title", f"stays eager: {part.name}" + (", the first that is wrong" if wrong else ""))
    return element(
        "rect",
        title,
        class_="eager bad" if wrong else "eager",
        x=x,
        y=2,
        width=PART_GAP - 4,
        height=PART_HEIGHT - 4,
        rx=2,
    )


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "\u2026"


def trend_plot(trend: Trend) -> Markup:
    """The values of one measurement over its runs; lines across are the marks."""
    lowest, highest = min(trend.values), max(trend.values)
    room = (highest - lowest) or abs(highest) or 1.0

    def height(value: float) -> int:
        return round(6 + (TREND_HEIGHT - 12) * (1 - (value - lowest) / room))

    heights = [height(value) for value in trend.values]
    moves = "".join(f" 1 {second - first}" for first, second in itertools.pairwise(heights))
    last = max(len(trend.values) - 1, 1)
    drawn = [
        element(
            "svg",
            element("path", d=f"M0 {heights[0]}l0 0{moves}".replace(" -", "-"), class_="trend"),
            viewBox=f"0 0 {last} {TREND_HEIGHT}",
            preserveAspectRatio="none",
        )
    ]
    for mark in trend.marks:
        x = percent(max(mark.index - 0.5, 0) / last)
        style = "worse" if mark.worse else "step" if mark.change else "changed"
        drawn.append(element("line", x1=x, x2=x, y2=TREND_HEIGHT, class_=style))
    drawn.append(element("circle", cx="100%", cy=heights[-1], class_="newest"))
    spoken = f"{len(trend.values)} values from {lowest:.4g} to {highest:.4g}, now {trend.values[-1]:.4g}"
    return figure(spoken, drawn)
