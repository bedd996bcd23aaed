"""The pytest session with `--piecewise`: markers -> cases, cases -> results, results -> verdicts, report and summary."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import sys
import time
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_piecewise import exits, machine_lock
from pytest_piecewise.canary import run_canary
from pytest_piecewise.errors import PiecewiseError, UnfitError
from pytest_piecewise.expected import settled
from pytest_piecewise.hooks import manager
from pytest_piecewise.origin import this_run
from pytest_piecewise.records import (
    TIERS,
    Case,
    CaseResult,
    Report,
    Run,
    Settings,
    from_plain,
    to_plain,
)
from pytest_piecewise.reports import costs, junit, startup, terminal, trials
from pytest_piecewise.runner import run_case, skip_case
from pytest_piecewise.session.cases import Cases
from pytest_piecewise.session.ending import Ending
from pytest_piecewise.session.gate import Gate, filters_of
from pytest_piecewise.session.items import RESULTS, Failed, ModelItem, Piecewise
from pytest_piecewise.session.live import LiveLine
from pytest_piecewise.settings import chosen_dtypes, make_settings, read_table
from pytest_piecewise.workers import Workers


class PiecewiseSession:
    """Plugin registered for sessions with `--piecewise`, on the controller and on every xdist worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._results: dict[Case, CaseResult] = {}
        self._reported: dict[str, CaseResult] = {}
        self._failures: set[str] = set()
        self._updated: list[str] = []
        self._left_out = 0
        self._run = Run() if self._is_worker else this_run(config.rootpath)
        try:
            self.table = read_table(config.rootpath)
            self.settings: Settings = make_settings(config.rootpath, self.table, _options(config))
            directory = config.invocation_params.dir / (self.settings.report or ".piecewise") / "repro"
            self.settings = dataclasses.replace(self.settings, repro=str(directory))
            manager()  # plugins that cannot be used are refused here
            self._refuse_unknown_dtypes()
        except PiecewiseError as error:
            raise pytest.UsageError(str(error)) from error
        self._own_models = [*self.table.get("models", []), *config.getoption("piecewise_models")]
        if config.getoption("piecewise_models") and config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = []
        self._workers = Workers(self.settings.isolation)
        self.cases = Cases(config, self.table, self.settings, self._workers)
        self._gate = Gate(self.settings, config.rootpath, filters_of(config))
        given = self.given(("history", "ci"))
        self._ending = Ending(self.settings, config.rootpath, config.invocation_params.dir, given, self.table)
        self._live = LiveLine(config, self._ending.system)
        self._said: list[str] = []

    def _refuse_unknown_dtypes(self) -> None:
        """Of the option and of pyproject.toml, here and not at the first test, which would be blamed."""
        option, stored = self._config.getoption("piecewise_dtype"), self.table.get("dtype")
        for place, dtype in (("--piecewise-dtype", option), ("dtype in pyproject.toml", stored)):
            try:
                chosen_dtypes(dtype or (), ())
            except PiecewiseError as error:
                raise PiecewiseError(f"{place}: {error}") from error

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the options that the command line has."""
        values = {name: self._config.getoption(f"piecewise_{name}") for name in names}
        return {name: value for name, value in values.items() if value is not None}

    # Collection

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Turns the marker of a test that uses the `piecewise` fixture into cases, and refuses unusable ones."""
        try:
            cases = self.cases.of_test(metafunc.definition, metafunc.module)
        except PiecewiseError as error:
            raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from error
        metafunc.parametrize("piecewise", cases, indirect=True, ids=[f"{case.engine}-{case.dtype}" for case in cases])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Adds the models that were named, and deselects tests of higher tiers."""
        session = items[0].session if items else self._session
        try:
            for name in self._own_models:
                items += self._model_items(session, name)
        except PiecewiseError as error:
            raise pytest.UsageError(str(error)) from error
        tiers = TIERS[: TIERS.index(self.settings.tier) + 1]
        out = [item for item in items if (mark := item.get_closest_marker("piecewise")) and
               mark.kwargs.get("tier", "fastcheck") not in tiers]  # fmt: skip
        if out:
            config.hook.pytest_deselected(items=out)
            items[:] = [item for item in items if item not in out]
        self._left_out = len(out)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What is going to be run, and how long that took before."""
        self._live.plan(session.items, self._ending.usual_seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """What the workers are going to run."""
        self._live.plan_tests(ids, len(self._config.option.tx))

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keeps the session: with `--piecewise-model` alone there is no collected item to ask for it."""
        self._session = session

    def _model_items(self, session: pytest.Session, name: str) -> Iterable[ModelItem]:
        directory = str(self._config.invocation_params.dir)
        if directory not in sys.path:
            sys.path.insert(0, directory)
        hooked = [model for models in manager().hook.piecewise_models() for model in models if model.name == name]
        for case in self.cases.of_model(hooked[0] if hooked else name, None):
            item = ModelItem.from_parent(
                session, name=f"{name}[{case.engine}-{case.dtype}]", nodeid=f"{name}[{case.engine}-{case.dtype}]"
            )
            item.case = case
            yield item

    # Running

    def piecewise(self, request: pytest.FixtureRequest) -> Piecewise:
        """What the `piecewise` fixture gives to the test that requests it."""
        return Piecewise(self, request.node, request.param, request)

    def result(self, case: Case) -> CaseResult:
        """Runs a case, judges it against its baseline, and remembers it."""
        if case not in self._results:
            try:
                reason = self.cases.unsupported(case)
                self._live.begin(case)
                start = time.monotonic()
                found = skip_case(case, self.settings, reason) if reason else self._run_case(case)
                self._results[case] = dataclasses.replace(found, seconds=time.monotonic() - start)
            except PiecewiseError as error:
                raise Failed(str(error), exits.UNFIT if isinstance(error, UnfitError) else exits.REAL) from None
            finally:
                self._live.clear()
        return self._results[case]

    def _run_case(self, case: Case) -> CaseResult:
        """The case's builds, which share the machine with other sessions; what is measured of its costs; the verdicts."""
        worker, tick = self._workers.of_engine(case.engine), self._live.tick(case)
        with machine_lock.shared_if_free(self.settings.timeout_seconds):
            if self.settings.canary:
                return run_canary(case, self.settings, worker, tick, self._gate.findings)
            found = run_case(case, self.settings, worker, tick)
        found = self._gate.measured(found, worker, tick)
        findings = settled(case.expected, (*found.findings, *self._gate.findings(found)))
        return dataclasses.replace(found, findings=findings)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Puts the records on the report, which is what xdist carries to the controller."""
        report = yield
        if call.when == "call" and item.stash.get(RESULTS, None):
            report.piecewise = [to_plain(result) for result in item.stash[RESULTS]]
            item.user_properties += [pair for result in item.stash[RESULTS] for pair in junit.properties(result)]
        if call.excinfo is not None and isinstance(call.excinfo.value, Failed):
            report.piecewise_failed = call.excinfo.value.kind
        return report

    # The controller alone

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects results, and writes the report anew so that a killed session loses none."""
        if report.failed:
            self._failures.add(getattr(report, "piecewise_failed", exits.REAL))
        for data in [] if self._is_worker else getattr(report, "piecewise", []):
            result = from_plain(CaseResult, data)
            self._reported[f"{result.case.id}@{result.case.device}"] = result
            self._live.done(result)
            self._ending.write(self._report(complete=False))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that could not be collected is a failure like any other."""
        if report.failed:
            self._failures.add(exits.REAL)

    @property
    def _selecting(self) -> Any:
        return self._config.pluginmanager.get_plugin("piecewise-selecting")

    def _report(self, *, complete: bool, exit_code: int = 0) -> Report:
        results = tuple(self._reported[key] for key in sorted(self._reported))
        environment = results[0].environment if results else {}
        return Report(
            exit_code=exit_code,
            run=self._run,
            selection=self._selecting.selection,
            tier=self.settings.tier,
            complete=complete,
            left_out=tuple(filters_of(self._config)),
            environment=environment,
            results=results,
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The last state of the report, baselines if they are to be updated, and the exit code.

        The report is complete unless the session was interrupted or stopped early.
        """
        if self._is_worker:
            return
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        complete = ended and not session.shouldstop and not session.shouldfail
        session.exitstatus = self._selecting.exit_status(exits.exit_status(exitstatus, self._failures))
        report = self._report(complete=complete, exit_code=session.exitstatus)
        self._said = [*self._ending.end(report)]
        manager().hook.piecewise_report(report=self._ending.report)
        if self.settings.update:
            passed = complete and exitstatus == pytest.ExitCode.OK
            self._updated = self._gate.write(self._reported.values(), passed=passed)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table, failures first, and where the files are."""
        if not self._reported:
            return
        results = list(self._reported.values())
        self._live.heading(results)
        terminalreporter.section("piecewise")
        tables = (
            *terminal.summary_table(results),
            *startup.startup_tables(results),
            *costs.cost_tables(results),
            *trials.canary_table(results),
        )
        for line in tables:
            terminalreporter.line(line)
        for line in (*map(terminal.clean, self._said), *self._updated):
            terminalreporter.line(line)

    def pytest_report_header(self) -> list[str]:
        """What is going to be done."""
        lines = [
            f"piecewise: tier {self.settings.tier}, device {self.settings.device}, seed {self.settings.seed}, "
            f"isolation {self.settings.isolation}, baselines {self.settings.baselines}"
        ]
        return lines + self._ending.header()

    def pytest_report_collectionfinish(self) -> str | None:
        """What the tier leaves out."""
        return f"piecewise: {self._left_out} test(s) of higher tiers deselected" if self._left_out else None

    def pytest_keyboard_interrupt(self) -> None:
        """Ends soon: what the garbage collector no longer looks at, torch above all, is not walked again and again."""
        gc.freeze()

    def pytest_unconfigure(self) -> None:
        """Ends children and server."""
        self._workers.close()
        # The interpreter's last garbage collection comes after pytest's: with torch imported, most of the time at the end.
        atexit.register(gc.freeze)


def _options(config: pytest.Config) -> dict[str, Any]:
    names = (
        *("tier", "device", "isolation", "timeout", "memory_limit", "gpu_memory", "seed", "baselines", "report"),
        *("update", "reason", "update_to", "costs", "canary", "localize"),
    )
    return {name: config.getoption(f"piecewise_{name}") for name in names}
