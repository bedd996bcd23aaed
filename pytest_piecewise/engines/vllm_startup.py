"""What vLLM says of its own start-up: times and sizes from its objects where it keeps them, else from its log."""

from __future__ import annotations

import importlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

from pytest_piecewise.engines.vllm_versions import LINES, RUNNERS, is_rehearsal
from pytest_piecewise.records import Metric

TABLE = (
    "compile", "compile_dynamo", "compile_inductor", "memory_profiling", "capture", "captures", "graph_pool", "kv_cache",
    "kv_cache_tokens", "kv_cache_blocks", "startup",
)  # fmt: skip
"""The start-up table, in the order in which things happen."""


@contextmanager
def logged() -> Iterator[list[str]]:
    """Within it, the lines that vLLM logs. vLLM sets up its handlers when it starts, so that one of ours would be lost."""
    lines: list[str] = []
    make, listening = logging.getLogRecordFactory(), True

    def noted(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        if listening and record.name.startswith("vllm"):
            lines.append(record.getMessage())
        return record

    logging.setLogRecordFactory(noted)
    try:
        yield lines
    finally:
        listening = False
        if logging.getLogRecordFactory() is noted:  # vLLM may meanwhile have put one of its own round it
            logging.setLogRecordFactory(make)


@contextmanager
def timed_captures() -> Iterator[list[float]]:
    """Within it, how long vLLM's model runner captures; its log has whole seconds only."""
    seconds: list[float] = []
    with ExitStack() as stack:
        for module in RUNNERS:
            with suppress(ImportError, AttributeError):
                runner = importlib.import_module(module).GPUModelRunner
                timed = _timed(runner.capture_model, seconds)
                stack.enter_context(mock.patch.object(runner, "capture_model", timed))
        yield seconds


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            if not is_rehearsal(options):
                seconds.append(time.perf_counter() - begin)

    return timed


def startup_metrics(config: Any, lines: list[str], captured: int, seconds: Sequence[float] = ()) -> tuple[Metric, ...]:
    """What was reported, and nothing else: `config` is the engine's `VllmConfig`, `captured` vLLM's count of captures, and
    `seconds` what they took."""
    found = {name: (value, kind) for name, (value, kind) in _from_lines(lines).items()}
    if config.compilation_config.compilation_time:
        found["compile"] = (config.compilation_config.compilation_time, "seconds")
    if captured:
        found["captures"] = (captured, "count")
        found |= {"capture": (sum(seconds), "seconds")} if seconds else {}
    if config.cache_config.num_gpu_blocks:
        found["kv_cache_blocks"] = (config.cache_config.num_gpu_blocks, "capacity")
    return tuple(Metric(name=name, kind=found[name][1], value=found[name][0]) for name in TABLE if name in found)


def _from_lines(lines: list[str]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for line in lines:
        for name, (pattern, unit, kind) in LINES.items():
            if match := re.search(pattern, line):
                value = float(match[1].replace(",", "")) * unit
                earlier = found[name][0] if kind == "seconds" and name in found else 0.0
                found[name] = (earlier + value, kind)
    return found


def absent(metrics: tuple[Metric, ...], why: Mapping[str, str]) -> list[str]:
    """What the start-up table lacks, one line per reason: `why`, or that vLLM did not say."""
    given, reasons = {metric.name for metric in metrics}, dict[str, list[str]]()
    for name in TABLE:
        if name not in given:
            reasons.setdefault(why.get(name, "not reported by vLLM"), []).append(name)
    return [f"no {', '.join(names)}: {reason}" for reason, names in reasons.items()]
