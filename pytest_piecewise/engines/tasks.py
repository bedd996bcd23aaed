"""The work of one child process: probe a model, build and perform one variant, make the reference, compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pytest_piecewise import hooks, protocol
from pytest_piecewise.compare import Reference
from pytest_piecewise.engines import Build, Request
from pytest_piecewise.engines.artefacts import run_step
from pytest_piecewise.engines.cost_metrics import build_kernels, cost_metrics
from pytest_piecewise.engines.identity import environment
from pytest_piecewise.engines.instructions import InstructionCount
from pytest_piecewise.engines.lifted import reference_outputs
from pytest_piecewise.engines.perform import Performance, disturb, keeps_old_weights, perform, perform_strided
from pytest_piecewise.engines.phases import compile_phases
from pytest_piecewise.engines.prepare import (
    UNIT_ROUNDOFF,
    flatten,
    is_weightless,
    make_inputs,
    pinned_numerics,
)
from pytest_piecewise.engines.schema import schema_findings
from pytest_piecewise.engines.sharing import sharing_findings
from pytest_piecewise.evidence import Evidence
from pytest_piecewise.findings import allowed, bits_findings, finding
from pytest_piecewise.judge import compare_case
from pytest_piecewise.measure import Meter
from pytest_piecewise.models import Model, find_model
from pytest_piecewise.records import TIERS, BuildRecord, Call, Case, Counts, Finding, Settings, Status
from pytest_piecewise.structure import Evidence as StructureEvidence
from pytest_piecewise.structure import structure_findings

WEIGHTLESS = "weightless"
STALE = "reference.stale"
"""A file that the eager build of a model without weights leaves for the comparison."""
OLD_WEIGHTS = (
    "eager itself goes on using what it made of weights before they were updated: a new module with the same weights gives "
    "other results. In that, a stale weight of a build cannot be seen"
)


def run_variant(
    case: Case, variant: str, settings: Settings, folder: Path, on_phase: Callable[[str], None]
) -> BuildRecord:
    """Builds one variant, takes it through the protocol, leaves its outputs in `folder`."""
    model, meter = find_model(case.model, case.file), Meter(on_phase)
    with pinned_numerics(settings.threads, torch.device(case.device)):
        request = make_request(model, case, variant, settings, meter)
        engine, steps = hooks.find_engine(case.engine), protocol_of(model, settings)
        build = engine.build(request)
        try:
            with compile_phases(meter), InstructionCount() as instructions:
                build.prepare()
            # Whatever is compiled later, by the protocol or by a second build, is none of this build's cost.
            metrics, missing = cost_metrics(build, meter, instructions.count)
            done = perform(build, request, [call for call in steps if not call.strided])
            counts = build.counts
            done.outputs |= perform_strided(build, request, [call for call in steps if call.strided])
            last = list(protocol.replayed(steps))[-1]
            if build.graph_kind:
                done.comparisons.append(disturb(build, request, engine.build, last))
            sound = not done.changed and all(item.ok for item in done.comparisons)
            old = variant == "eager" and sound and keeps_old_weights(build, request, engine.build, last)
            findings = _build_findings(build, request, done, counts)
            torch.save(done.outputs, folder / f"{variant}.pt")
            if variant == "eager" and is_weightless(model, build.module):
                (folder / WEIGHTLESS).touch()
            return BuildRecord(
                variant=variant,
                outcome="ok",
                findings=allowed(model, findings),
                comparisons=tuple(item for item in done.comparisons if not item.ok),
                metrics=metrics,
                phases=meter.phases,
                counts=counts,
                kernels=build_kernels(build),
                absent=missing,
                parts=getattr(build, "parts", ()),
                calls=done.plain_calls + done.graph_calls,
                graph_kind=build.graph_kind,
                notes=(OLD_WEIGHTS,) if old else (),
                environment=environment(case, model, build) if variant == "eager" else {},
            )
        finally:
            build.close()


def protocol_of(model: Model, settings: Settings) -> tuple[Call, ...]:
    """The calls of a case in the tier of the session: more of them where there is more time."""
    return protocol.calls(model, settings.seed, deep=settings.tier != TIERS[0])


def make_request(model: Model, case: Case, variant: str, settings: Settings, meter: Meter) -> Request:
    """What an engine is asked for."""
    return Request(
        model=model,
        variant=variant,
        dtype=getattr(torch, case.dtype),
        device=torch.device(case.device),
        seed=settings.seed,
        meter=meter,
    )


def _build_findings(build: Build, request: Request, done: Performance, counts: Counts) -> list[Finding]:
    model, variant = request.model, build.variant
    findings = [_naming_captured_ops(item, counts.captured_ops) for item in bits_findings(done.comparisons)]
    mutated = [*counts.mutated_inputs, *done.changed]
    findings.append(
        finding(
            "mutation",
            variant,
            not mutated,
            f"{len(mutated)} input(s), weight(s) or undeclared buffer(s) changed by calls"
            + (f": {', '.join(mutated[:5])}" if mutated else ""),
            mutated,
            "declare buffers that calls may change in state=, and do not write into inputs",
        )
    )
    if variant == "eager":
        return [*findings, *schema_findings(build, request)]
    evidence = StructureEvidence(
        model=model,
        variant=variant,
        counts=counts,
        plain_calls=done.plain_calls,
        graph_calls=done.graph_calls,
        drops_guards=getattr(build, "drops_guards", False),
    )
    return [*findings, *sharing_findings(build, request), *structure_findings(evidence)]


def _naming_captured_ops(item: Finding, captured: tuple[str, ...]) -> Finding:
    """A replay that differs from the call points at ops whose Python, metadata included, ran at capture only."""
    if item.check != "bits_graphs" or item.status is not Status.FAIL or not captured:
        return item
    suspects = f"custom ops inside captured pieces: {', '.join(captured)}"
    action = f"{suspects}; if one reads per-call metadata or allocates by it, add it to splitting_ops"
    return dataclasses.replace(item, summary=f"{item.summary}; {suspects}", action=action)


def run_reference(case: Case, settings: Settings, folder: Path, on_phase: Callable[[str], None]) -> BuildRecord:
    """The judged calls in the reference's precision, with how far perturbations of one unit of rounding move them."""
    model, meter = find_model(case.model, case.file), Meter(on_phase)
    device = _reference_device(case)
    with pinned_numerics(settings.threads, torch.device(case.device)):
        request = dataclasses.replace(make_request(model, case, "eager", settings, meter), device=device)
        engine = hooks.find_engine(case.engine)
        module = engine.reference(request) if hasattr(engine, "reference") else engine.build(request).module
        steps = [c for c in protocol_of(model, settings) if c.judged or model.state]
        results, stale, fallbacks = reference_outputs(request, module, steps)
    torch.save(results, folder / "reference.pt")
    torch.save(stale, folder / STALE)
    notes = [f"the reference is only {model.reference}"] if model.reference != "float64" else []
    if str(device) != case.device:
        notes.append(f"the reference runs on {device}, since {case.device} cannot do {model.reference}")
    notes += [f"the reference runs {op} in its own precision: {reason}" for op, reason in fallbacks.items()]
    return BuildRecord(variant="reference", outcome="ok", phases=meter.phases, calls=len(results), notes=tuple(notes))


def _reference_device(case: Case) -> torch.device:
    """The case's own device, or the CPU where that has no float64 (Apple's GPUs)."""
    return torch.device("cpu") if case.device.startswith("mps") else torch.device(case.device)


def _same_inputs(model: Model, steps: Sequence[Call], dtype: torch.dtype) -> bool:
    """Whether no argument differs between the calls of the largest captured size that have seeds of their own."""
    seeds = list(dict.fromkeys(call.seed for call in steps if call.size == model.capture_sizes[-1]))
    first, *others = (make_inputs(model, model.capture_sizes[-1], seed, dtype, torch.device("cpu")) for seed in seeds)
    pairs = [(a, b) for other in others for a, b in zip(first, other, strict=True) if isinstance(a, torch.Tensor)]
    return bool(pairs) and all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def run_cache_step(
    case: Case, step: str, settings: Settings, folder: Path, on_phase: Callable[[str], None]
) -> BuildRecord:
    """One build of the check `cache`; what it leaves for later steps lies in a folder of its own within `folder`."""
    model, meter, shared = find_model(case.model, case.file), Meter(on_phase), folder / "cache-steps"
    shared.mkdir(exist_ok=True)
    with pinned_numerics(settings.threads, torch.device(case.device)), meter.phase(f"cache: {step}"):
        request = make_request(model, case, "piecewise", settings, meter)
        return run_step(step, request, hooks.find_engine(case.engine).build, shared)


def run_comparison(case: Case, settings: Settings, folder: Path, on_phase: Callable[[str], None]) -> BuildRecord:
    """Compares what the other children of the case left in `folder`."""
    model, meter = find_model(case.model, case.file), Meter(on_phase)
    steps, dtype = protocol_of(model, settings), getattr(torch, case.dtype)
    with pinned_numerics(settings.threads, torch.device(case.device)), meter.phase("compare"):
        variants = {path.stem: torch.load(path) for path in sorted(folder.glob("*.pt")) if path.stem != "reference"}
        reference = {
            index: {name: Reference(*known) for name, known in outputs.items()}
            for index, outputs in torch.load(folder / "reference.pt").items()
            if index in variants["eager"]
        }
        answers = {}
        if model.answer is not None:
            for call in steps:
                if call.index in reference and not call.weights:
                    answers[call.index] = flatten(
                        model.answer(*make_inputs(model, call.size, call.seed, dtype, torch.device("cpu")))
                    )
        evidence = Evidence(
            model=model,
            steps=steps,
            unit=UNIT_ROUNDOFF[dtype],
            precision=model.reference,
            reference=reference,
            variants=variants,
            answers=answers,
            device=case.device,
            same_inputs=_same_inputs(model, steps, dtype),
            weightless=(folder / WEIGHTLESS).exists(),
            stale=torch.load(folder / STALE) if (folder / STALE).exists() else {},
        )
        comparisons, findings, notes = compare_case(evidence)
    return BuildRecord(
        variant="comparison",
        outcome="ok",
        findings=allowed(model, findings),
        comparisons=comparisons,
        phases=meter.phases,
        notes=notes,
    )
