"""The words that records and modules share: tiers, variants, checks, files, environment variables."""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA_VERSION = 1

TIERS = ("fastcheck", "full", "nightly")
VARIANTS = ("eager", "full", "piecewise")
COST_LEVELS = ("counts", "work", "ratios")
DTYPES = ("float32", "bfloat16", "float16")

CHECKS: Mapping[str, str] = {
    "build": "the variant could be built and ran through the protocol without an exception, crash, time-out or memory limit",
    "answer": "every variant gives the answer that the model knows by hand",
    "equivalence": "outputs and state agree with the float64 reference within the budget that eager's own error sets",
    "exact": "bool and integer outputs, and outputs declared exact, are equal in all variants",
    "bits_graphs": "the same compiled code gives the same bits with graphs on and off",
    "bits_full": "full and piecewise give the same bits in float32",
    "bits_repeat": "the same call made twice gives the same bits",
    "padding": "real rows have the same bits whatever is in the padding rows (zero, NaN, stale)",
    "kept_outputs": "outputs that the caller keeps are not overwritten by later calls",
    "addresses": "every tensor that a captured piece reads lies where it lay at capture",
    "second_build": "a second build in the same process leaves the first one's results as they were",
    "mutation": "inputs, weights and undeclared buffers are unchanged by a call",
    "aliasing": "outputs share memory with arguments, weights and each other exactly as in eager",
    "randomness": "a call leaves the random state of the process as an eager call does",
    "schema": "custom ops do what their schema declares (torch.library.opcheck)",
    "vacuity": "outputs depend on the inputs and on the weights by far more than the error that is tolerated",
    "graphs": "Dynamo traced exactly one graph",
    "graph_breaks": "Dynamo traced the model without a graph break",
    "recompiles": "nothing was compiled again after warm-up",
    "splitting_ops": "every declared splitting op is in the graph, and none is in a captured piece",
    "pieces": "the graph was split into non-empty pieces as declared",
    "compiles": "each distinct piece was compiled by Inductor, exactly once",
    "executed": "compiled code ran in every call: no silent fallback to eager",
    "captures": "every piece was captured for every size",
    "replays": "every replay that the protocol asked for was a replay",
    "covered_sizes": "the captured sizes include the largest size",
    "cache": "compiled code out of a cache is that of the same model and configuration, and is found where it should be",
    "baseline": "counts equal the stored baseline",
    "baseline_file": "the stored baseline can be read and belongs to the case",
    "cost": "work, memory and ratios of compile, capture and step times are within their gates",
    "canary": "every planted fault that applies to the case was caught (--piecewise-canary)",
}
"""Every check by name, with what a PASS of it says. `Model.allow` refers to these names."""


CACHE_STEPS = ("cold", "warm", "relocated", "changed", "changed in a shared directory", "unchanged after changed")
"""The builds that the check `cache` consists of, in order."""


LOCALIZE = ("op", "piece", "off")
"""How closely a failed comparison is followed: to the op, to the piece, or not at all."""

TASK, OUTPUT, PHASE, RESULT = "task.json", "output.txt", "phase.txt", "result.json"
"""Files in a child's folder: what it was asked, what it printed, the phase that it is in, what it found."""


CHILD = "PYTEST_PIECEWISE_CHILD"
"""Environment variable that is set in the server and in its children, and nowhere else."""

HEADERS = "PYTEST_PIECEWISE_HEADERS"
"""Environment variable of the server and its children: the directory of temporary files below which Inductor keeps its
precompiled headers."""
