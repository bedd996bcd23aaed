"""Reports for tests that read them: a plain one, a broken one, hostile ones, and one of many cases with a history."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_piecewise.located import Localization, Repro
from pytest_piecewise.records import (
    BuildRecord,
    Case,
    CaseResult,
    Comparison,
    Costs,
    Counts,
    Finding,
    Mark,
    Metric,
    Part,
    Phase,
    Ratio,
    Report,
    Run,
    Sample,
    Status,
    Trend,
    Trial,
)

HOSTILE = {
    "script": "<script>window.harmed=1</script><img src=x onerror=window.harmed=1>",
    "attribute": '" onmouseover="window.harmed=1" x=\'',
    "ansi": "\x1b[31mred\x1b[2J\x07",
    "nul": "nul\0byte",
    "surrogate": "half \udc80 of a pair \ud800",
    "markdown": "| `code` [link](https://evil.example) ![i](https://evil.example) **x** </details> # www.evil.example @all",
    "command": "::error::x\n##[group]x\n--- group",
    "template": "{{ 7*7 }}{% raw %}${7*7}",
    "10MB": "x" * 10_000_000,
}
PHASES = ("first", "capture order", "reverse", "interleaved", "padded", "weights updated")


def comparison(call: int, variant: str, ratio: float, **changes: object) -> Comparison:
    made = Comparison(
        check="equivalence",
        axis="budget",
        variant=variant,
        against="float64",
        call=call,
        phase=PHASES[call // 4 % len(PHASES)],
        size=2 ** (call % 5),
        output="output",
        ok=ratio <= 1,
        elements=1000,
        error=ratio * 1e-6,
        budget=1e-6,
        ratio=ratio,
        index=(3, 4),
        found="1.0000012",
        expected="1.0",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def builds(pieces: int = 5) -> tuple[BuildRecord, ...]:
    """Three builds as a native engine makes them, with a graph of so many pieces."""
    parts: list[Part] = []
    for index in range(pieces):
        shared = "piece 1" if 1 < index < pieces - 1 else ""
        parts.append(
            Part(name=f"piece {index}", compiled=True, ops=12, same_as=shared, compile_seconds=0 if shared else 0.8)
        )
        if index < pieces - 1:
            parts.append(Part(name="toy::attention", compiled=False, ops=1))
    made = []
    for variant, seconds, count in (("eager", 0.0, 0), ("full", 3.4, 1), ("piecewise", 2.9, pieces)):
        phases = [
            Phase(name="model", seconds=0.1, cpu_seconds=0.1),
            Phase(name="protocol: first", seconds=0.2, cpu_seconds=0.2),
        ]
        metrics = [Metric(name="peak_memory", kind="bytes", value=3.5e8)]
        if count:
            phases.append(Phase(name="compile", seconds=seconds, cpu_seconds=seconds))
            metrics += [
                Metric(name="compile", kind="seconds", value=seconds),
                Metric(name="kernels", kind="count", value=9 + count),
            ]
        made.append(
            BuildRecord(
                variant=variant,
                outcome="ok",
                phases=tuple(phases),
                metrics=tuple(metrics),
                counts=Counts(
                    graphs=1, pieces=count, distinct_pieces=min(count, 3), compiles=min(count, 3), kernels=9 + count
                ),
                parts=tuple(parts) if variant == "piecewise" else (),
                graph_kind="recorded graphs" if variant == "piecewise" else "",
            )
        )
    return tuple(made)


LOCATED = Localization(
    variant="piecewise", check="padding", phase="padded", size=3, cause="code", summary="piece 2 is the first that is wrong",
    segment="piece 2", position=4, piece=2, evidence=("right operands, wrong result",), kernel_source="void kernel() {}",
    repro=Repro(directory="repro", size_bytes=2048, reproduced=True, output="1", inputs="captured"),
)  # fmt: skip
COSTS = Costs(
    level="ratios",
    metrics=(Metric(name="full.work", kind="work", value=12345.0),),
    samples=(
        Sample(round=0, variant="full", cache="cold", metrics=(Metric(name="step_8", kind="seconds", value=9.0),)),
        *(
            Sample(
                round=number,
                variant="full",
                cache="cold",
                metrics=(Metric(name="step_8", kind="seconds", value=value),),
            )
            for number, value in ((1, 0.001), (2, 0.003), (3, 0.002))
        ),
        Sample(
            round=1, variant="piecewise", cache="warm", metrics=(Metric(name="compile", kind="seconds", value=1.0),)
        ),
    ),
    ratios=(Ratio(name="piecewise/full.compile_cpu", value=0.8, low=0.7, high=0.9, spread=0.03, pairs=5),),
)
CHECKS_PASSED = ("build", "graphs", "graph_breaks", "pieces", "compiles", "captures", "replays", "bits_repeat", "padding",
                 "exact", "mutation", "schema")  # fmt: skip


def result(name: str, *, broken: bool = False) -> CaseResult:
    """One case: all well, or wrong in the padded calls."""
    findings = [
        Finding(check=check, status=Status.PASS, variant=variant, summary=f"{check} is as it should be: 12 of 12 calls")
        for check in CHECKS_PASSED
        for variant in ("full", "piecewise")
    ]
    findings.append(Finding(check="cost", status=Status.SKIP, summary="nothing gates it yet"))
    ratios = [comparison(call, variant, 0.2 + 0.02 * call) for call in range(24) for variant in ("full", "piecewise")]
    if broken:
        findings.append(
            Finding(
                check="equivalence",
                status=Status.FAIL,
                variant="piecewise",
                summary="padded, size 3: output[1, 79] found 0.07, expected -0.03",
                detail="padded, size 3\npadded, size 5",
                action="the seed, size and phase above repeat it",
            )
        )
        heat = tuple("".join("9" if column < row else "." for column in range(32)) for row in range(16))
        ratios[34:38] = [
            comparison(call, "piecewise", 4e4, wrong=300, shape=(16, 100), heat=heat, reason="beyond the budget")
            for call in range(17, 21)
        ]
    return CaseResult(
        case=Case(model=f"mypkg.models:{name.upper()}", name=name),
        seed=0,
        platform="cpu-avx512-torch2.13",
        revision="0123456789ab",
        graph_kind="recorded graphs",
        findings=tuple(findings),
        builds=builds(),
        comparisons=tuple(ratios),
        environment={"torch": "2.13.0+cpu", "python": "3.11.7", "cpu": "EPYC", "threads": "2"},
        seconds=12.5,
        localizations=(LOCATED,) if broken else (),
        costs=COSTS,
    )


def trend(case: str, variant: str, metric: str, kind: str = "seconds", *, step: bool = False) -> Trend:
    values = tuple(3.0 + 0.03 * math.sin(7.0 * index) + (0.5 if step and index > 40 else 0) for index in range(60))
    marks = (Mark(index=41, text="+17 % at 4fa01c2, p 1e-09", change=0.17, worse=True),) if step else ()
    return Trend(
        case=case, variant=variant, metric=metric, kind=kind, began="2026-10-01T03:00:00Z", ended="2026-12-01T03:00:00Z",
        values=values, marks=(Mark(index=20, text="torch 2.12.0, now 2.13.0"), *marks),
    )  # fmt: skip


RUN = Run(id="piecewise/412/abc", started="2026-12-01T03:00:00Z", commit="4fa01c2d" * 5, branch="main",
          url="https://ci.example/412")  # fmt: skip


def report(*results: CaseResult, trends: tuple[Trend, ...] = ()) -> Report:
    return Report(
        run=RUN, tier="full", complete=True, environment={"torch": "2.13.0+cpu", "cpu": "EPYC"}, results=results,
        trends=trends,
    )  # fmt: skip


def large_report(cases: int = 50) -> Report:
    """So many cases, each with ten measurements in the history."""
    names = [f"model-{index}" for index in range(cases)]
    results = [result(name, broken=index % 10 == 3) for index, name in enumerate(names)]
    trends = [
        trend(item.case.id, variant, metric, step=metric == "compile")
        for item in results
        for variant in ("full", "piecewise")
        for metric in ("compile", "compile_cpu", "capture", "graph_pool", "step")
    ]
    return report(*results, trends=tuple(trends))


def hostile_report(text: str) -> Report:
    """The text wherever a user, a model or an exception can put one."""
    item = Finding(
        check="build", status=Status.FAIL, variant="full", summary=text, detail=f"{text}\n{text}", action=text
    )
    made = result("tiny", broken=True)
    broken = replace(made.comparisons[36], output=text, found=text, expected=text)
    failed = BuildRecord(
        variant="full", outcome="crash", last_output=text, notes=(text,),
        parts=(Part(name=text, compiled=True, ops=1), Part(name=text, compiled=False, ops=1)),
        metrics=(Metric(name=text, kind=text, value=1.0),), phases=(Phase(name=text, seconds=1, cpu_seconds=1),),
        comparisons=(broken,),
    )  # fmt: skip
    hurt = replace(
        made, case=replace(made.case, name=text, model=text), platform=text, revision=text, environment={text: text},
        findings=(*made.findings, item, replace(item, status=Status.SKIP), replace(item, status=Status.STALE)),
        localizations=(replace(LOCATED, summary=text, cause=text, evidence=(text,), kernel_source=text),),
        canary=(Trial(fault=text, kind=text, outcome=text, checks=(text,)),),
        comparisons=(*made.comparisons[:30], broken), builds=(*made.builds[:1], failed, made.builds[2]),
    )  # fmt: skip
    found = replace(
        trend("x", text, text, text), case=hurt.case.id, marks=(Mark(index=3, text=text, change=1, worse=True),)
    )
    whole = report(hurt, replace(hurt, findings=(replace(item, status=Status.SKIP),)), trends=(found,))
    run = replace(RUN, commit=text, branch=text, url=f"javascript:{text}")
    return replace(whole, run=run, environment={"torch": text, "cpu": text})
