"""A case in a test's hands: the `piecewise` fixture, and tests that need no test file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_piecewise import benchmarks, exits
from pytest_piecewise.records import Case, CaseResult, Finding, Status
from pytest_piecewise.reports import terminal

if TYPE_CHECKING:
    from pytest_piecewise.session.session import PiecewiseSession

STRUCTURE = (
    "graphs", "graph_breaks", "recompiles", "splitting_ops", "pieces", "compiles", "executed", "captures", "replays",
    "covered_sizes", "addresses",
)  # fmt: skip
BASELINE = ("baseline", "baseline_file", "cost")
"""Checks of `check_structure` and of `check_baseline`; all others are those of `check_equivalence`."""

RESULTS = pytest.StashKey[list[CaseResult]]()


class Failed(pytest.fail.Exception):  # type: ignore[misc,name-defined]  # pytest declares it as a variable
    """A failed test that knows why, as `exits` has it. Named and shown as pytest's own."""

    __module__ = "builtins"

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text, pytrace=False)
        self.kind = kind


class Piecewise:
    """One case, in a test's hands. It is run when first asked for, and once per session."""

    def __init__(
        self, session: PiecewiseSession, item: pytest.Item, case: Case, request: pytest.FixtureRequest | None = None
    ) -> None:
        self._session, self._item, self.case, self._request = session, item, case, request

    @property
    def result(self) -> CaseResult:
        """Everything that was found and measured, whether it passed or not."""
        result = self._session.result(self.case)
        kept = self._item.stash.setdefault(RESULTS, [])
        if result not in kept:
            kept.append(result)
            self._benchmark(result)
        return result

    def _benchmark(self, result: CaseResult) -> None:
        """Measured phases as benchmarks of pytest-benchmark, where that is loaded and the test does not use it itself."""
        config, found = self._item.config, benchmarks.timings(result)
        loaded = config.pluginmanager.hasplugin("benchmark") and not config.getoption("benchmark_skip", False)
        if self._request is None or not loaded or not found or "benchmark" in self._request.fixturenames:
            return
        clock = benchmarks.ReplayedClock()
        self._item.add_marker(pytest.mark.benchmark(timer=clock))
        benchmarks.record(self._request.getfixturevalue("benchmark"), clock, found)

    def check(self) -> None:
        """Fails the test if any check failed."""
        self._judge(lambda name: True)

    def check_equivalence(self) -> None:
        """Fails the test if the variants disagree, or could not be built."""
        self._judge(lambda name: name not in (*STRUCTURE, *BASELINE))

    def check_structure(self) -> None:
        """Fails the test if something else was traced, split, compiled or captured than should be."""
        self._judge(lambda name: name in (*STRUCTURE, "build"))

    def check_baseline(self) -> None:
        """Fails the test if counts or costs are worse than their baseline."""
        self._judge(lambda name: name in (*BASELINE, "build"))

    def _judge(self, concerns: Any) -> None:
        result = self.result
        findings = [item for item in result.findings if concerns(item.check)]
        if failed := [item for item in findings if self._fails(item)]:
            raise Failed(terminal.failure_text(result, findings, self._repeat()), exits.kind_of(failed))
        # That something could be built is no answer to what was asked.
        said = [item for item in findings if (item.check, item.status) != ("build", Status.PASS)]
        if all(item.status is Status.SKIP for item in said):
            pytest.skip("; ".join(dict.fromkeys(f"{item.check}: {item.summary}" for item in said)))

    def _fails(self, item: Finding) -> bool:
        return item.status is Status.FAIL or (item.status is Status.NEW and self._session.settings.strict)

    def _repeat(self) -> str:
        options = self._session.given(("engine", "device", "dtype"))
        if self._session.settings.seed:
            options["seed"] = self._session.settings.seed
        what = f"'{self._item.nodeid}'"
        if isinstance(self._item, ModelItem):
            what, options["dtype"] = f"--piecewise-model {self.case.model}", self.case.dtype
        given = "".join(f" --piecewise-{name} {value}" for name, value in options.items())
        return f"pytest --piecewise={self.case.tier}{given} {what}"


class ModelItem(pytest.Item):
    """A test without a test file: one case of a `--piecewise-model`."""

    case: Case

    def runtest(self) -> None:
        """Every check."""
        session: PiecewiseSession = self.config.pluginmanager.getplugin("piecewise-session")
        Piecewise(session, self, self.case).check()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Shown under the model's name."""
        return self.config.rootpath, None, self.name
