"""What the localising child does: makes the failing variant again, leads it to the failing call, and names the place."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_piecewise import hooks, protocol
from pytest_piecewise.engines import Request
from pytest_piecewise.engines import describe as describe_error
from pytest_piecewise.engines.perform import Stage
from pytest_piecewise.engines.prepare import UNIT_ROUNDOFF, frozen_tensors, make_inputs, pinned_numerics
from pytest_piecewise.engines.retrace import first_other_node, retraced
from pytest_piecewise.engines.tasks import make_request
from pytest_piecewise.localize.growth import growth_of
from pytest_piecewise.localize.inspection import Inspector, Sample, Suspect, order_of
from pytest_piecewise.localize.observe import Step, watching
from pytest_piecewise.localize.ops import OpSearch, with_op
from pytest_piecewise.localize.place import describe, source_of
from pytest_piecewise.localize.repro import Subject, make_repro
from pytest_piecewise.localize.systematic import systematic
from pytest_piecewise.localize.truth import Judge, same_bits
from pytest_piecewise.located import FOLLOWED, Localization
from pytest_piecewise.measure import Meter
from pytest_piecewise.models import find_model
from pytest_piecewise.records import BuildRecord, Call, Case, Comparison, Settings, from_plain

_SUMMARIES = {
    False: "every segment agrees with its own graph, and the whole call with the whole graph: it did not come back",
    True: "no segment is beyond its budget by itself: rounding that adds up, see the growth per segment",
}
Failures = Mapping[str, Sequence[Comparison]]


def run_localization(
    case: Case, variant: str, settings: Settings, failures: Mapping[str, Any], on_phase: Callable[[str], None]
) -> BuildRecord:
    """The record of one failing variant, with one `Localization`."""
    begin = time.monotonic()
    known = {check: [from_plain(Comparison, item) for item in items] for check, items in failures.items()}
    model, meter = find_model(case.model, case.file), Meter(on_phase)
    with pinned_numerics(settings.threads, torch.device(case.device)):
        request = dataclasses.replace(make_request(model, case, variant, settings, meter), observed=True)
        search = Search(case, settings, request, known)
        try:
            found = search.run()
        finally:
            search.close()
    found = dataclasses.replace(found, seconds=time.monotonic() - begin)
    return BuildRecord(variant=variant, outcome="ok", localizations=(found,), phases=meter.phases)


class Search:
    """The way from the failures of one variant to a place. Owns the build that it makes."""

    def __init__(self, case: Case, settings: Settings, request: Request, failures: Failures) -> None:
        self._case, self._settings, self._request, self._failures = case, settings, request, failures
        self._unit = UNIT_ROUNDOFF[request.dtype]
        self._steps = protocol.calls(request.model, settings.seed)
        self.check = next(check for check in FOLLOWED if check in failures)
        engine = hooks.find_engine(case.engine)
        self._build: Any = engine.build(request)
        if getattr(self._build, "layouts", None) is not None:
            self._build.prepare()

    def close(self) -> None:
        """Releases the build."""
        self._build.close()

    def run(self) -> Localization:
        """The place, or why there is none."""
        if not getattr(self._build, "layouts", ()):
            return self._nothing("unavailable", f"builds of engine {self._case.engine!r} do not show their segments")
        stage = Stage(self._build, self._request)
        if self.check == "kept_outputs":
            return self._overwritten(stage)
        samples: list[Sample] = []
        reached = 0
        for call in self._candidates():
            for earlier in self._steps[reached : call.index]:
                stage.advance(earlier)
            reached = call.index
            stage.update_weights(call)
            inspector = self._inspect(call)
            if inspector.suspect is not None:
                return self._found(call, inspector, inspector.suspect)
            samples += inspector.samples
        return self._accumulated(call, inspector, samples)

    def _overwritten(self, stage: Stage) -> Localization:
        """Which segment of which call has written where an output lies that the caller keeps."""
        seen: list[tuple[Call, Step]] = []
        now: list[Call] = []

        def look(step: Step) -> None:
            for _, outputs, copies in stage.kept:
                if not seen and not all(same_bits(outputs[name], copies[name]) for name in copies):
                    seen.append((now[-1], step))

        with watching(self._build.layouts, look, self._untouched()):
            for call in self._steps:
                now.append(call)
                stage.advance(call)
        if not seen:
            return self._nothing("not_seen", "no segment writes where an output lies that the caller keeps")
        writer, step = seen[0]
        kept = stage.kept[0][0]
        line = (
            f"{step.section.label} in call {writer.index} ({writer.phase}, size {writer.size}) writes where the outputs "
            f"of call {kept.index} ({kept.phase}, size {kept.size}) lie, which the caller still holds"
        )
        return self._described(writer, Suspect(step, "stale", (line,)))

    def _accumulated(self, call: Call, inspector: Inspector, samples: Sequence[Sample]) -> Localization:
        """No segment is wrong in any one call: wrong over all of them, or in how they were put together, or just far off."""
        variant, steps = self._request.variant, inspector.steps
        if (suspect := systematic(samples, variant, self._unit)) is not None:
            return self._described(call, suspect)
        with self._build.within(call):
            growth = growth_of(steps, inspector.ratios, Judge(variant, call, self._unit))
            suspect = self._put_together(call, inspector, any(row.so_far > 1 for row in growth))
        if suspect is not None:
            found = self._described(call, suspect)
        else:
            seen = self.check not in ("equivalence", "exact", "answer") or any(row.so_far > 1 for row in growth)
            found = self._nothing("rounding" if seen else "not_seen", _SUMMARIES[seen])
        return dataclasses.replace(found, growth=growth)

    def _put_together(self, call: Call, inspector: Inspector, far_off: bool) -> Suspect | None:
        """Segments in another order, a graph that is not what was traced, or other inputs or outputs than the caller's."""
        steps, request = inspector.steps, self._request
        late = next((step for number, step in enumerate(steps) if step.position != number), None)
        if far_off and late is not None:
            return Suspect(late, "wiring", tuple(order_of(steps)))
        graph = steps[-1].layout.graph
        expected = retraced(request, self._build.module) if getattr(self._build, "retraceable", False) else None
        other = first_other_node(graph, expected) if expected is not None else None
        if other is not None:
            node, wanted = other
            step = next((s for s in steps if node.name in s.section.computes), steps[-1])
            line = f"{node.format_node()} in place of {wanted}"
            return Suspect(step, "graph", (line, *filter(None, [source_of(node)])))
        given = make_inputs(request.model, call.size, call.seed, request.dtype, request.device)
        lines = inspector.boundary(given, inspector.returned)
        return Suspect(steps[0 if "input" in lines[0] else -1], "boundary", tuple(lines)) if lines else None

    def _candidates(self) -> list[Call]:
        """Calls to look into, in order: the first ones that failed, and all judged ones if what failed is their sum."""
        failed = [item.call for item in self._failures[self.check]]
        indices = sorted({index for index in failed if index >= 0})[:3]
        judged = [call for call in self._steps if call.judged]
        return [self._steps[index] for index in indices] or judged

    def _inspect(self, call: Call) -> Inspector:
        """One call, looked into; state is afterwards as it was."""
        request, build = self._request, self._build
        sampled = all(item.call < 0 for item in self._failures[self.check])
        inspector = Inspector(Judge(request.variant, call, self._unit), sampled=sampled)
        stage = Stage(build, request)
        with (
            request.meter.phase(f"inspect: {call.phase}"),
            watching(build.layouts, inspector.look, self._untouched(), inspector.begin),
        ):
            inspector.returned = stage.repeatable(call)
        return inspector

    def _untouched(self) -> frozenset[int]:
        frozen = frozen_tensors(self._request.model, self._build.module).values()
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in frozen)

    def _found(self, call: Call, inspector: Inspector, suspect: Suspect) -> Localization:
        if suspect.cause == "stale" and (other := inspector.other_piece(suspect)):
            line = f"the graph that was replayed is that of {other}: all of its inputs lie where that one has them"
            suspect = dataclasses.replace(suspect, cause="wiring", evidence=(line, *suspect.evidence))
        return self._described(call, suspect)

    def _described(self, call: Call, suspect: Suspect) -> Localization:
        """The record of a suspect with all that is asked for: the op, and a script that was run."""
        found = describe(self._request.variant, self.check, call, suspect)
        directory = Path(self._settings.repro or ".") / self._case.id / self._request.variant
        if suspect.cause == "code" and self._settings.localize == "op":
            found = self._or_a_note(found, lambda known: self._with_op(known, call, suspect, directory))
        if self._settings.repro:
            found = self._or_a_note(found, lambda known: self._with_repro(known, call, suspect, directory))
        return found

    def _or_a_note(self, known: Localization, further: Callable[[Localization], Localization]) -> Localization:
        """What is known, and more if that can be found: an error on the way must not lose the place."""
        try:
            return further(known)
        except Exception as error:  # noqa: BLE001 - of compilers and graphs that are wrong somewhere, anything may come
            traceback.print_exc()
            note = f"the search stopped here: {type(error).__name__}: {describe_error(error)}"
            return dataclasses.replace(known, notes=(*known.notes, note))

    def _with_repro(self, found: Localization, call: Call, suspect: Suspect, directory: Path) -> Localization:
        subject = Subject(
            case=self._case, settings=self._settings, model=self._request.model, call=call, found=found,
            suspect=suspect, failures=self._failures,
        )  # fmt: skip
        with self._request.meter.phase("repro"):
            made = make_repro(subject, directory)
        return dataclasses.replace(found, repro=made)

    def _with_op(self, found: Localization, call: Call, suspect: Suspect, directory: Path) -> Localization:
        judge = Judge(self._request.variant, call, self._unit)
        with self._request.meter.phase("op"), self._build.within(call):
            op = OpSearch(suspect, suspect.step.layout.compile, judge).run()
        kept = directory / "kernel.py"
        if op is not None and op.source and self._settings.repro:
            directory.mkdir(parents=True, exist_ok=True)
            kept.write_text(op.source)
        return with_op(found, op, str(kept) if kept.exists() else "")

    def _nothing(self, cause: str, summary: str) -> Localization:
        first = next(iter(self._failures[self.check]), None)
        return Localization(
            variant=self._request.variant,
            check=self.check,
            phase=first.phase if first else "",
            size=first.size if first else 0,
            cause=cause,
            summary=summary,
        )
