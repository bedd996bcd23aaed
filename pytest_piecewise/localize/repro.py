"""Makes the script that shows a failure by itself, as small as it can be, and runs it in a fresh process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_piecewise import hooks
from pytest_piecewise.engines.layout import Section, home_of_op
from pytest_piecewise.engines.prepare import PINNED_INDUCTOR, UNIT_ROUNDOFF
from pytest_piecewise.engines.tracing import inductor_patches
from pytest_piecewise.localize import script
from pytest_piecewise.localize.code import Code, NotExpressible, code_of, kept_inputs
from pytest_piecewise.localize.inputs import STORED, Input, randomised, stored
from pytest_piecewise.localize.inspection import Suspect
from pytest_piecewise.localize.script import SIZE_LIMIT_BYTES, Script, text_of
from pytest_piecewise.localize.smaller import smaller
from pytest_piecewise.localize.truth import WRITTEN, real_rows
from pytest_piecewise.located import Localization, Repro
from pytest_piecewise.models import Model
from pytest_piecewise.records import CHILD, HEADERS, Call, Case, Settings, to_plain
from pytest_piecewise.split import custom_ops

REPRODUCED = (": reproduced", "\nreproduced")
TIMEOUT_SECONDS = 240
"""After which a script is ended, and held not to reproduce."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A script and the tensors beside it. `kind` says in a few words what it needs."""

    script: Script
    tensors: Mapping[str, torch.Tensor]
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a script is about."""

    case: Case
    settings: Settings
    model: Model
    call: Call
    found: Localization
    suspect: Suspect
    failures: Mapping[str, Any]

    @property
    def unit(self) -> float:
        """Unit of rounding of the case's dtype."""
        return UNIT_ROUNDOFF[getattr(torch, self.case.dtype)]

    @property
    def section(self) -> Section:
        """The segment that is wrong."""
        return self.suspect.step.section


def make_repro(subject: Subject, directory: Path) -> Repro:
    """Writes the first draft that a fresh process finds to reproduce; the last one, if none does."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Repro(directory=str(directory), size_bytes=0, reproduced=False, output="no script could be written")
    for draft in drafts(subject):
        _write(draft, directory)
        size = sum(path.stat().st_size for path in directory.iterdir())
        if size > SIZE_LIMIT_BYTES:
            made = dataclasses.replace(
                made, output=f"left out: {size} bytes of inputs, the limit is {SIZE_LIMIT_BYTES}"
            )
            continue
        code, output = _run(directory)
        reproduced = code == 1 and output.endswith(REPRODUCED)  # what raises ends by code 1 as well
        made = Repro(directory=str(directory), size_bytes=size, reproduced=reproduced, output=output, inputs=draft.kind)
        if made.reproduced:
            return made
    return made


def drafts(subject: Subject) -> Iterator[Draft]:
    """Scripts to try: by themselves first, at last the whole model."""
    makers = {"code": _compiled, "stale": _replayed, "padding": _called_twice, "unstable": _called_twice}
    maker = makers.get(subject.found.cause)
    if maker is not None and subject.suspect.truth is not None:
        with contextlib.suppress(NotExpressible):  # the whole model needs no text of its graphs
            yield from maker(subject)
    yield _again(subject)


def _compiled(subject: Subject) -> Iterator[Draft]:
    section, suspect = subject.section, subject.suspect
    assert suspect.truth is not None
    code = code_of(section.graph, "Piece")
    inputs = _inputs(section, suspect.step.passed)
    worst = suspect.comparison
    systematic = worst is not None and not worst.index
    for engine in (False, True):
        for made, dynamic in smaller(subject, inputs, systematic=systematic, engine=engine):
            outputs = [
                (number, node)
                for number, node in enumerate(section.outputs_as_named)
                if node in suspect.truth.eager
                and not (node in suspect.truth.undefined and bool(suspect.truth.undefined[node].any()))
                and suspect.truth.eager[node].is_floating_point()
            ]
            body = (script.SYSTEMATIC if systematic else script.COMPILED).format(
                piece="Piece()",
                dynamic=list(dynamic.items()),
                backend=", backend=backend" if engine else "",
                outputs=outputs,
                unit=subject.unit,
                floor=worst.budget if worst is not None and systematic else 1e-30,
            )
            body = script.IN_FLOAT64 + "\n\n" + body.lstrip("\n")
            needs = "Inductor alone" if not engine else "the engine's own way to compile a piece"
            yield _draft(subject, code, _function("inputs", made), made, _backend(engine) + body, needs)


def _backend(engine: bool) -> str:
    return script.ENGINE_BACKEND if engine else ""


def _replayed(subject: Subject) -> Iterator[Draft]:
    section, step = subject.section, subject.suspect.step
    worst = subject.suspect.comparison
    if step.reads is None or worst is None or (not step.moved and not custom_ops(section.graph.graph)):
        return
    code = code_of(section.graph, "Piece")
    kept = kept_inputs(section.graph)
    moved = {number: section.inputs[index] for number, index in enumerate(kept) if index in step.moved}
    now = _inputs(section, step.passed)
    before = [dataclasses.replace(item, name=f"captured.{item.name}") if number in moved else item
              for number, item in enumerate(_inputs(section, step.reads))]  # fmt: skip
    number = section.outputs_as_named.index(worst.output) if worst.output in section.outputs_as_named else 0
    body = script.REPLAYED.format(
        piece="Piece()",
        moved=moved,
        captured=to_plain(dataclasses.replace(subject.call, size=subject.call.padded_size, seed=subject.call.seed + 1)),
        called=to_plain(subject.call),
        output=(number, worst.output),
    )
    for first, second in ((_other_seeds(randomised(before), moved), randomised(now)), (before, now)):
        functions = _function("before", first) + "\n\n\n" + _function("now", second)
        yield _draft(subject, code, functions, [*first, *second], body, "captures and replays by itself", moved=moved)


def _other_seeds(inputs: list[Input], moved: Mapping[int, str]) -> list[Input]:
    return [dataclasses.replace(item, seed=(item.seed or 0) + 1000) if number in moved else item
            for number, item in enumerate(inputs)]  # fmt: skip


def _called_twice(subject: Subject) -> Iterator[Draft]:
    section, step, call = subject.section, subject.suspect.step, subject.call
    worst, truth = subject.suspect.comparison, subject.suspect.truth
    if section.is_piece or worst is None or truth is None:
        return
    code = code_of(section.graph, "Op")
    kept = [list(section.graph.graph.find_nodes(op="placeholder"))[index] for index in kept_inputs(section.graph)]
    names = [node.name for node in kept]
    written = [name.removeprefix(WRITTEN) for name in truth.eager if name.startswith(WRITTEN)]
    outputs = [*section.output_nodes, *(node for node in kept if node.name in written)]
    shown = [node.name for node in outputs].index(worst.output.removeprefix(WRITTEN))
    values = {
        node.name: value
        for node, value in zip(section.graph.graph.find_nodes(op="placeholder"), step.passed, strict=True)
    }
    padded = {
        number: cuts
        for number, node in enumerate(kept)
        if isinstance(values[node.name], torch.Tensor)
        and values[node.name].is_floating_point()
        and (cuts := _cuts(node, values[node.name], call))
    }
    results = [truth.eager.get(node.name, truth.eager.get(WRITTEN + node.name)) for node in outputs]
    body = script.CALLED_TWICE.format(
        piece="Op()",
        called=to_plain(call),
        written=[names.index(name) for name in written],
        cuts=[
            _cuts(node, value, call) if value is not None else [] for node, value in zip(outputs, results, strict=True)
        ],
        padded=padded if subject.found.cause == "padding" else {},
        output=(shown, worst.output),
    )
    inputs = _inputs(section, step.passed)
    for made in (randomised(inputs), inputs):
        yield _draft(subject, code, _function("inputs", made), made, body, "the op alone")


def _cuts(node: Any, value: torch.Tensor, call: Call) -> list[tuple[int, int]]:
    """Which dimensions have padding, and how far the real rows go."""
    real = real_rows(node, value, call)
    pairs = zip(real.shape, value.shape, strict=True)
    return [(dimension, small) for dimension, (small, large) in enumerate(pairs) if small != large]


def _inputs(section: Section, values: Any) -> list[Input]:
    return [Input(section.inputs[index], values[index]) for index in kept_inputs(section.graph)]


def _function(name: str, inputs: list[Input]) -> str:
    lines = "".join(f"        {item.text('DEVICE')},  # {item.name}\n" for item in inputs)
    return f'def {name}():\n    """The arguments."""\n    return [\n{lines}    ]'


def _draft(
    subject: Subject, code: Code, functions: str, inputs: list[Input], body: str, needs: str, *, moved: Any = None
) -> Draft:
    tensors = stored(inputs, code.constants)
    source = code.source
    if code.constants:
        names = "".join(f"\n        self.{name} = stored[{name!r}].to(DEVICE)" for name in code.constants)
        source = source.replace(
            "\n    def forward", f"\n    def __init__(self):\n        super().__init__(){names}\n\n    def forward", 1
        )
    ops = custom_ops(subject.section.graph.graph)
    config, config_imports = _config(subject.model)
    needs_model = config_imports or (ops and (subject.model.context is not None or not all(map(home_of_op, ops))))
    module, _, attribute = subject.case.model.partition(":")
    imports = [*code.imports, *(f"import {home}  # registers an op" for home in sorted({*map(home_of_op, ops)} - {""}))]
    modules = {*filter(None, map(home_of_op, ops))}
    if needs_model:
        imports.append(f"import {module}\n\nMODEL = {module}.{attribute}")
        modules.add(module)
    metadata = script.METADATA if ops and subject.model.context is not None else script.NO_METADATA
    classes = [source, functions]
    if "CONFIG" in body:
        classes.insert(0, f"import torch._inductor.config\n\nCONFIG = {config}")
    if "metadata(" in body:
        classes.append(metadata)
    made = Script(
        title=f"{subject.case.id}, {subject.found.variant}: {subject.found.summary}.",
        environment=_environment(subject),
        imports=imports,
        classes=classes,
        stored=STORED if tensors else "",
        random=any(item.seed is not None for item in inputs),
        body=body,
        device=subject.case.device,
        threads=subject.settings.threads,
        path=sorted({_root(name) for name in modules} - {""}),
    )
    what = (
        "random inputs"
        if not any(item.seed is None and isinstance(item.value, torch.Tensor) for item in inputs)
        else "real inputs"
    )
    shapes = [item.value.shape for item in inputs if isinstance(item.value, torch.Tensor) and item.value.dim()]
    first = f", first input {' x '.join(map(str, shapes[0]))}" if shapes else ""
    return Draft(made, tensors, f"{needs}; {what}{first}")


def _config(model: Model) -> tuple[str, bool]:
    """The Inductor configuration as text, and whether that needs the model's module."""
    parts, needs_model = [], False
    for key, value in (PINNED_INDUCTOR | inductor_patches(model)).items():
        if isinstance(value, (bool, int, float, str, type(None))):
            parts.append(f"{key!r}: {value!r}")
        else:
            needs_model = True
            source = "MODEL.inductor_config()" if callable(model.inductor_config) else "MODEL.inductor_config"
            parts.append(f"{key!r}: {source}[{key!r}]")
    return "{" + ", ".join(parts) + "}", needs_model


def _environment(subject: Subject) -> dict[str, str]:
    known = {"torch": torch.__version__, "Python": sys.version.split()[0], "device": subject.case.device}
    if subject.case.device.startswith("cuda"):
        known["GPU"] = torch.cuda.get_device_name()
    return known | {
        "dtype": subject.case.dtype,
        "threads": str(subject.settings.threads),
        "seed": str(subject.settings.seed),
    }


def _root(module: str) -> str:
    """The directory from which a module is imported by its dotted name; empty for one in site-packages."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return ""
    root = Path(file).resolve().parents[module.count(".") + (Path(file).stem == "__init__")]
    return "" if "site-packages" in root.parts else str(root)


def _again(subject: Subject) -> Draft:
    settings = dataclasses.replace(subject.settings, localize="piece", repro="")
    task = {
        "case": to_plain(subject.case), "settings": to_plain(settings), "variant": subject.found.variant,
        "failures": {subject.found.check: [to_plain(item) for item in subject.failures[subject.found.check]][:3]},
        "cause": subject.found.cause, "segment": subject.found.segment,
        "plugins": os.environ.get(hooks.PLUGINS_VARIABLE, ""),
    }  # fmt: skip
    made = Script(
        title=f"{subject.case.id}, {subject.found.variant}: {subject.found.summary}.",
        environment=_environment(subject),
        body=script.AGAIN.format(task=task),
        device=subject.case.device,
        threads=subject.settings.threads,
        path=sorted({_root("pytest_piecewise"), _root(subject.case.model.partition(":")[0])} - {""}),
    )
    return Draft(made, {}, "the whole model, through the engine")


def _write(draft: Draft, directory: Path) -> None:
    for old in ("repro.py", STORED):
        (directory / old).unlink(missing_ok=True)
    (directory / "repro.py").write_text(text_of(draft.script))
    if draft.tensors:
        from safetensors.torch import save_file  # noqa: PLC0415 - only where something failed

        save_file(dict(draft.tensors), directory / STORED)


def _run(directory: Path) -> tuple[int, str]:
    """Exit code and last words of the script in a fresh process, with the module path of this one."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop(CHILD, None)
    cache = directory / "cache"
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    # What this session knows already: Inductor's precompiled headers, and that vector instructions work.
    environment |= {"TMPDIR": os.environ[HEADERS], "TORCHINDUCTOR_VEC_ISA_OK": "1"} if HEADERS in os.environ else {}
    try:
        done = subprocess.run(
            [sys.executable, "repro.py"], cwd=directory, env=environment, capture_output=True, text=True,
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"still running after {TIMEOUT_SECONDS} s"
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    said = done.stdout.strip() or done.stderr.strip().splitlines()[-1:] or ["nothing"]
    return done.returncode, said if isinstance(said, str) else said[-1]
