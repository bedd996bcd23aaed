"""What a child process does: one task, whose outcome is a plain record whatever happens. The only place that catches all."""

from __future__ import annotations

import dataclasses
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pytest_piecewise import hooks
from pytest_piecewise.errors import BuildError, PiecewiseError
from pytest_piecewise.faults import Plant, planted
from pytest_piecewise.measure import Meter
from pytest_piecewise.models import find_model
from pytest_piecewise.records import PHASE, BuildRecord, Case, Finding, Settings, Status, from_plain, to_plain


def work(task: dict[str, Any], folder: Path, on_phase: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Does `task`: `{"kind": ..., "case": ..., "settings": ..., "variant": ...}`; `kind` is probe, build, reference,
    comparison, cost or localize. For localize it also has `failures`, the variant's failed checks by name with their failed
    comparisons."""
    case, settings = from_plain(Case, task["case"]), from_plain(Settings, task["settings"])
    variant = task.get("variant") or task["kind"]
    shared = folder.parent

    def note_phase(name: str) -> None:
        part = folder / "phase.part"
        part.write_text(name)
        part.rename(folder / PHASE)

    try:
        with _fault(task["kind"], case, variant, settings) as plant:
            try:
                if task["kind"] == "cost":
                    record = _measure(task, case, settings, on_phase or note_phase)
                elif task["kind"] == "localize":
                    record = _localize(task, case, settings, on_phase or note_phase)
                else:
                    record = _do(task["kind"], case, variant, settings, shared, on_phase or note_phase)
            except Exception as error:  # noqa: BLE001 - the boundary: everything becomes a finding
                record = _failure(variant, error)
        record = dataclasses.replace(record, fault=settings.fault, effects=plant.effects)
    except Exception as error:  # noqa: BLE001 - of planting
        record = _failure(variant, error)
    return dict(to_plain(record))


@contextmanager
def _fault(kind: str, case: Case, variant: str, settings: Settings) -> Iterator[Plant]:
    """Within it the fault of the settings, if there is one, is at work in this process."""
    if not settings.fault:
        yield Plant()
        return
    from pytest_piecewise.engines import tasks  # noqa: PLC0415 - torch, in the child only

    request = tasks.make_request(find_model(case.model, case.file), case, variant, settings, Meter())
    with planted(settings.fault, request, "" if kind == "build" else kind) as plant:
        yield plant


def _localize(task: Mapping[str, Any], case: Case, settings: Settings, on_phase: Callable[[str], None]) -> BuildRecord:
    from pytest_piecewise.localize.task import run_localization  # noqa: PLC0415 - torch, and only where something failed

    return run_localization(case, task["variant"], settings, task["failures"], on_phase)


def _do(
    kind: str, case: Case, variant: str, settings: Settings, shared: Path, on_phase: Callable[[str], None]
) -> BuildRecord:
    if kind == "probe":
        # Without what builds import, Inductor above all: seconds, for each case that is collected.
        from pytest_piecewise.engines import probe  # noqa: PLC0415 - torch, in the child only

        return probe.probe(case, settings)
    from pytest_piecewise.engines import prepare, tasks  # noqa: PLC0415 - torch, in the child only

    engine = hooks.find_engine(case.engine)
    if not hasattr(engine, "tasks"):  # one that has its own starts processes of its own
        prepare.limit_gpu_memory(case.device, settings.gpu_memory_bytes)
    if kind == "reference":
        return tasks.run_reference(case, settings, shared, on_phase)
    if kind == "cache":
        return tasks.run_cache_step(case, variant, settings, shared, on_phase)
    doing: Any = engine.tasks() if hasattr(engine, "tasks") else tasks
    if kind == "build":
        return cast(BuildRecord, doing.run_variant(case, variant, settings, shared, on_phase))
    return cast(BuildRecord, doing.run_comparison(case, settings, shared, on_phase))


def _measure(task: dict[str, Any], case: Case, settings: Settings, on_phase: Callable[[str], None]) -> BuildRecord:
    from pytest_piecewise.engines import costs  # noqa: PLC0415 - torch, in the child only

    return costs.run_cost(case, settings, on_phase, task)


def _failure(variant: str, error: Exception) -> BuildRecord:
    if not isinstance(error, PiecewiseError) or error.__cause__:  # of the user's code, not of what refuses it
        traceback.print_exc()
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    made: dict[str, Any]
    if isinstance(error, BuildError):
        made = {"check": error.check, "summary": error.summary, "detail": error.detail, "action": error.action}
    elif isinstance(error, PiecewiseError):
        made = {"check": "build", "summary": str(error)}
    else:
        detail = _tail("\n".join(_told(error)))
        made = {"check": "build", "summary": f"{type(error).__name__}: {_first_line(error)}", "detail": detail}
    return BuildRecord(
        variant=variant,
        outcome="memory" if out_of_memory else "error",
        findings=(Finding(status=Status.FAIL, variant=variant, **made),),
    )


def _told(error: BaseException) -> Iterator[str]:
    """A traceback without the frames of libraries and of this package, which are in the child's output; cause first."""
    if error.__cause__ is not None:
        yield from _told(error.__cause__)
        yield "which led to:"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    for frame in own or frames[-3:]:
        yield f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    yield f"{type(error).__name__}: {str(error).strip() or 'no message'}"


def _is_library(file: str) -> bool:
    path = Path(file)
    ours = path.is_relative_to(Path(__file__).parent)
    return (
        ours or "site-packages" in path.parts or path.is_relative_to(sysconfig.get_paths()["stdlib"]) or file[0] == "<"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"


def _tail(text: str, limit: int = 4000) -> str:
    return text if len(text) <= limit else "...\n" + text[-limit:]
