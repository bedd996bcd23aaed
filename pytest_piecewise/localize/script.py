"""The text of a script that shows a failure by itself. Strings in, a string out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SIZE_LIMIT_BYTES = 8 * 2**20
"""The most that a directory with a script may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What every script has, whatever it shows."""

    title: str
    environment: Mapping[str, str]
    imports: Sequence[str] = ()
    classes: Sequence[str] = ()
    constants: Sequence[str] = ()
    stored: str = ""
    """Name of the file with the tensors; empty if there are none."""
    random: bool = False
    body: str = ""
    """Ends by a call of `verdict`."""
    device: str = "cpu"
    threads: int = 2
    path: Sequence[str] = field(default_factory=tuple)
    """Directories that have to be on `sys.path` for the imports."""


def text_of(script: Script) -> str:
    """The whole file."""
    environment = "\n".join(f"    {name}: {value}" for name, value in script.environment.items())
    parts = [
        f'"""{script.title}\n\nRun it: prints expected, found and budget; exits 1 if it reproduces, 0 if not. Made with\n\n'
        f'{environment}\n"""',
        "import sys\nfrom pathlib import Path\n\nimport torch",
    ]
    if script.path:
        parts.append(f"sys.path[:0] = {list(script.path)!r}")
    if script.imports:
        parts.append("\n".join(script.imports))
    parts.append(_SETTINGS.format(device=script.device, threads=script.threads))
    parts += script.classes
    if script.stored:
        parts.append(_LOAD.format(name=script.stored))
    if script.random:
        parts.append(_RANDOM)
    parts.append(_VERDICT)
    parts.append(script.body)
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


_SETTINGS = """
DEVICE = torch.device({device!r})
torch.set_grad_enabled(False)
torch.set_num_threads({threads})
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cudnn.allow_tf32 = False
"""

_LOAD = '''
def load():
    """The tensors beside this file."""
    from safetensors.torch import load_file

    return load_file(Path(__file__).resolve().parent / {name!r})


stored = load()
'''

_RANDOM = '''
def normal(seed, shape, mean, deviation, dtype):
    """Numbers of the scale of the real ones."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * deviation + mean).to(dtype)


def integers(seed, shape, low, high, dtype):
    """Integers in the range of the real ones."""
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
'''

_VERDICT = '''
def verdict(where, expected, found, budget, wrong, total):
    """Prints what there is to see, and ends."""
    print(__doc__.splitlines()[0])
    print(f"{where}: expected {expected:.9g}, found {found:.9g}, error {abs(found - expected):.3g}, budget {budget:.3g}")
    print(f"{wrong} of {total} elements beyond the budget: " + ("reproduced" if wrong else "not reproduced"))
    sys.exit(1 if wrong else 0)


def tensors(outputs):
    """Outputs as a list of tensors."""
    return [t for t in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if isinstance(t, torch.Tensor)]
'''

IN_FLOAT64 = '''
class InFloat64(torch.utils._python_dispatch.TorchDispatchMode):
    """Runs everything inside in float64, whatever dtype the code asks for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        def lift(value):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value.double()
            low = isinstance(value, torch.dtype) and value.is_floating_point
            return torch.float64 if low else value

        return func(*torch.utils._pytree.tree_map(lift, args), **torch.utils._pytree.tree_map(lift, kwargs or {}))


def worst(expected, found, eager, unit, floor):
    """Index, budget and count of what is beyond the budget: a multiple of eager's own error in the row, or of rounding."""
    error, own, rounding = (found.double() - expected).abs(), (eager.double() - expected).abs(), unit * expected.abs()
    if expected.dim():
        own, rounding = own.amax(-1, keepdim=True), rounding.maximum(unit * expected.square().mean(-1, keepdim=True).sqrt())
    budget = (6 * torch.maximum(own, rounding)).clamp_min(floor)
    ratio = torch.where(torch.isfinite(expected), (error / budget).nan_to_num(nan=float("inf")), 0.0)
    index = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    return index, float(budget.expand_as(error)[index]), int((ratio > 1).sum()), float(ratio[index])
'''

COMPILED = """
if __name__ == "__main__":
    piece, arguments = {piece}, inputs()
    eager = tensors(piece(*arguments))
    with InFloat64():
        exact = tensors(piece(*[a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]))
    for number, dimension in {dynamic!r}:
        torch._dynamo.mark_dynamic(arguments[number], dimension)
    with torch._inductor.config.patch(CONFIG):
        found = tensors(torch.compile(piece, fullgraph=True{backend})(*arguments))
    shown = []
    for number, name in {outputs!r}:
        index, budget, wrong, ratio = worst(exact[number], found[number], eager[number], {unit!r}, {floor!r})
        shown.append((ratio, f"{{name}}{{list(index)}}", number, index, budget, wrong))
    ratio, where, number, index, budget, wrong = max(shown)
    print(f"{{where}}: eager {{float(eager[number][index]):.9g}}")
    verdict(where, float(exact[number][index]), float(found[number][index]), budget, wrong, found[number].numel())
"""

SYSTEMATIC = """
if __name__ == "__main__":
    piece, arguments = {piece}, inputs()
    with InFloat64():
        exact = tensors(piece(*[a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]))
    for number, dimension in {dynamic!r}:
        torch._dynamo.mark_dynamic(arguments[number], dimension)
    eager = tensors(piece(*arguments))
    with torch._inductor.config.patch(CONFIG):
        found = tensors(torch.compile(piece, fullgraph=True{backend})(*arguments))
    shown = []
    for number, name in {outputs!r}:
        expected = exact[number]
        factor, own = (1 + float(((t[number].double() - expected) * expected).sum() / expected.square().sum())
                       for t in (found, eager))
        shown.append((abs(factor - 1), name, factor, own))
    _, name, factor, own = max(shown)
    print(f"{{name}}: eager is off by the factor {{own:.6f}}")
    wrong = abs(factor - 1) > max({floor!r}, 3 * abs(own - 1))
    total = found[0].numel()
    verdict(f"{{name}}, all values are off by one factor", 1.0, factor, {floor!r}, total * wrong, total)
"""

METADATA = '''
def metadata(call):
    """The context in which ops find the metadata of a call."""
    from types import SimpleNamespace

    return MODEL.context(SimpleNamespace(**call))
'''

NO_METADATA = '''
def metadata(call):
    """The model sets no metadata."""
    from contextlib import nullcontext

    return nullcontext()
'''

REPLAYED = '''
class Graph:
    """A capture: a CUDA graph on a GPU; on a CPU the same contract: a replay reads the tensors that it was captured with,
    in the metadata of the capture, and writes the outputs of the capture."""

    def __init__(self, function, arguments, call):
        self.function, self.arguments, self.call = function, arguments, call
        if DEVICE.type == "cuda":
            function(*arguments)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = tensors(function(*arguments))
        else:
            with metadata(call):
                self.outputs = tensors(function(*arguments))

    def replay(self):
        """The outputs, written anew."""
        if DEVICE.type == "cuda":
            self.graph.replay()
            return self.outputs
        with metadata(self.call):
            for output, new in zip(self.outputs, tensors(self.function(*self.arguments))):
                output.copy_(new)
        return self.outputs


if __name__ == "__main__":
    piece, moved = {piece}, {moved!r}
    captured, called = {captured!r}, {called!r}
    with metadata(captured):
        held = before()
    graph = Graph(piece, held, captured)
    with metadata(called):
        arguments = now()
    for number, value in enumerate(arguments):
        if number not in moved and torch.is_tensor(value):  # stays in its place, with new content
            arguments[number] = held[number].copy_(value)
    for number, name in moved.items():
        print(f"input {{name}}: captured at {{held[number].data_ptr():#x}}, now at {{arguments[number].data_ptr():#x}}")
    with metadata(called):
        expected = tensors(piece(*arguments))
    expected = [tensor.clone() for tensor in expected]
    found = graph.replay()
    number, name = {output!r}
    differ = (expected[number] != found[number]) & ~(expected[number].isnan() & found[number].isnan())
    index = tuple(int(i) for i in (differ.nonzero()[0] if differ.any() else torch.zeros(differ.dim(), dtype=torch.int64)))
    values = float(expected[number][index]), float(found[number][index])
    verdict(f"{{name}}{{list(index)}}", *values, 0.0, int(differ.sum()), differ.numel())
'''

CALLED_TWICE = '''
def real(tensor, cuts):
    """Without padding rows."""
    for dimension, extent in cuts:
        tensor = tensor.narrow(dimension, 0, extent)
    return tensor


def run(op, arguments):
    """What the op returns and what it writes, real rows only."""
    arguments = [a.clone() if torch.is_tensor(a) else a for a in arguments]
    with metadata({called!r}):
        outputs = tensors(op(*arguments)) + [arguments[number] for number in {written!r}]
    return [real(tensor, cuts) for tensor, cuts in zip(outputs, {cuts!r})]


if __name__ == "__main__":
    op, first, second = {piece}, inputs(), inputs()
    for number, cuts in {padded!r}.items():  # the second time with other numbers in the padding rows
        other = torch.randn(second[number].shape, generator=torch.Generator().manual_seed(0)).to(second[number])
        real(other, cuts).copy_(real(second[number], cuts))
        second[number] = other
    expected, found = run(op, first), run(op, second)
    number, name = {output!r}
    differ = (expected[number] != found[number]) & ~(expected[number].isnan() & found[number].isnan())
    index = tuple(int(i) for i in (differ.nonzero()[0] if differ.any() else torch.zeros(differ.dim(), dtype=torch.int64)))
    values = float(expected[number][index]), float(found[number][index])
    verdict(f"{{name}}{{list(index)}}", *values, 0.0, int(differ.sum()), differ.numel())
'''

AGAIN = """
TASK = {task!r}

if __name__ == "__main__":
    from pytest_piecewise.localize.again import main

    sys.exit(main(TASK))
"""

ENGINE_BACKEND = '''
def backend(graph, example_inputs):
    """What the engine under test makes of a piece."""
    from pytest_piecewise.engines.pieces import Evidence, compile_piece

    return compile_piece(Evidence(), graph)
'''
