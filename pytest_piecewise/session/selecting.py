"""The pytest side of selection: `--piecewise-changed-files` and `--piecewise-shard` deselect, and say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import selection
from pytest_piecewise.changes import read_changed_files
from pytest_piecewise.errors import PiecewiseError
from pytest_piecewise.models import Model, files_of, find_model
from pytest_piecewise.records import Case, Selection, from_plain, to_plain
from pytest_piecewise.session.items import ModelItem

OUTPUT = "piecewise_selection"
"""Under this name a worker of xdist tells the controller, which collects nothing itself, what was selected."""


class Selecting:
    """Plugin registered for every session with `--piecewise`; without its options it selects everything."""

    def __init__(
        self, config: pytest.Config, table: Mapping[str, Any], baselines: str, is_ours: Callable[[pytest.Item], bool]
    ) -> None:
        option = config.getoption
        self._config, self._table, self._baselines, self._is_ours = config, table, Path(baselines), is_ours
        self._allow_empty = bool(option("piecewise_allow_empty"))
        self.selection = Selection()
        try:
            self._files = self._changed(option("piecewise_changed_files"))
            text = option("piecewise_shard")
            self._shard = selection.parse_shard(text, os.environ) if text else None
            self._seconds = self._durations() if self._shard else {}
        except PiecewiseError as error:
            raise pytest.UsageError(str(error)) from error

    def _durations(self) -> dict[str, float]:
        """Recorded seconds of cases: an option is relative to where pytest was started, the table to the project."""
        given, stored = self._config.getoption("piecewise_durations"), self._table.get("durations")
        place, base = (given, self._config.invocation_params.dir) if given else (stored, self._config.rootpath)
        if not place:
            return {}
        if selection.is_history(place):
            return selection.history_seconds(place if "://" in place else str(base / place))
        return selection.read_seconds(base / place)

    def _changed(self, name: str | None) -> tuple[str, ...] | None:
        if name is None:
            return None
        files = read_changed_files(self._config.invocation_params.dir / name)
        return None if files is None else tuple(dict.fromkeys(self._in_project(files)))

    def _in_project(self, files: tuple[str, ...]) -> Iterator[str]:
        """Each path as given and, where the project is a directory of a repository, as seen from the project."""
        root = self._config.rootpath
        above = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        prefix = "" if above == root else f"{root.relative_to(above).as_posix()}/"
        for name in files:
            yield name
            if prefix and name.startswith(prefix):
                yield name.removeprefix(prefix)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects what the change cannot touch, then what is in other shards."""
        if self._files is None and self._shard is None:
            return
        tests = [self._test(item) for item in items]
        touched = tests if self._files is None else selection.touched(tests, self._files, self._watched_by_all())
        chosen, mark = touched, ""
        if self._shard is not None:
            mark = selection.digest(touched, self._shard.count, self._seconds)
            chosen = selection.split(touched, self._shard.count, self._seconds)[self._shard.index - 1]
        self.selection = Selection(
            changed_files=-1 if self._files is None else len(self._files),
            collected=sum(test.ours for test in tests),
            touched=sum(test.ours for test in touched),
            chosen=sum(test.ours for test in chosen),
            shard=str(self._shard or ""),
            split=mark,
            empty_allowed=self._allow_empty,
        )
        kept = {test.name for test in chosen}
        if out := [item for item in items if item.nodeid not in kept]:
            config.hook.pytest_deselected(items=out)
            items[:] = [item for item in items if item.nodeid in kept]

    def _test(self, item: pytest.Item) -> selection.Test:
        case: Case | None = None
        if isinstance(item, ModelItem):
            case = item.case
        elif hasattr(item, "callspec"):
            case = item.callspec.params.get("piecewise")
        unit = case.id if isinstance(case, Case) else item.nodeid
        ours = self._is_ours(item) or isinstance(item, ModelItem)
        watches = self._watches(item, case) if isinstance(case, Case) else None
        return selection.Test(item.nodeid, unit, watches, ours)

    def _watches(self, item: pytest.Item, case: Case) -> tuple[str, ...] | None:
        """What the model declares, the files that declare model and test, and the case's own baselines."""
        mark = item.get_closest_marker("piecewise")
        declared = mark.args[0] if mark and mark.args else case.model
        model = declared if isinstance(declared, Model) else find_model(declared, case.file)
        if not model.watches:
            return None
        root = self._config.rootpath
        parents = [folder for folder in item.path.parents if folder.is_relative_to(root)]
        files = [*files_of(model, root)] + ([item.path] if item.path.is_file() else [])
        files += [folder / name for folder in parents for name in ("conftest.py", "__init__.py")]
        files += [self._baselines / "*" / f"{case.id}.json"]
        own = (path.relative_to(root).as_posix() for path in files if path.is_relative_to(root))
        return (*model.watches, *own)

    def _watched_by_all(self) -> tuple[str, ...]:
        """What the project declares for all of its models; and this package, where it is developed in the project."""
        package, root = Path(__file__).parent, self._config.rootpath
        own = (package.relative_to(root).as_posix(),) if package.is_relative_to(root) else ()
        return (*own, *self._table.get("watches", ()))

    # What is said of it

    def pytest_report_header(self) -> list[str]:
        """What the session was asked to leave out."""
        said = []
        if self._config.getoption("piecewise_changed_files") and self._files is None:
            said.append("piecewise: everything may have changed, so every test is run")
        elif self._files is not None:
            said.append(f"piecewise: only tests that {len(self._files)} changed file(s) can touch")
        if self._shard:
            known = f"by {len(self._seconds)} recorded duration(s)" if self._seconds else "without recorded durations"
            said.append(f"piecewise: shard {self._shard}, {known}")
        return said

    def pytest_report_collectionfinish(self) -> str | None:
        """What was selected."""
        return self._said() if self.selection.collected else None

    def _said(self) -> str:
        it, said = self.selection, []
        if it.changed_files >= 0:
            said.append(f"{it.touched} of {it.collected} test(s) can be touched by {it.changed_files} changed file(s)")
        if it.shard:
            said.append(f"{it.chosen} of {it.touched} in shard {it.shard} (split {it.split})")
        return f"piecewise: {', '.join(said)}"

    def exit_status(self, status: int) -> int:
        """The code of a session: nothing selected is 5, also beside ordinary tests that pass; 0 where that is allowed."""
        nothing = self.selection.collected and not self.selection.chosen
        if not nothing or status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(status)
        return int(pytest.ExitCode.OK if self._allow_empty else pytest.ExitCode.NO_TESTS_COLLECTED)

    def pytest_sessionfinish(self) -> None:
        """A worker of xdist tells the controller what it has selected."""
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput[OUTPUT] = to_plain(self.selection)  # type: ignore[attr-defined]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """An empty selection is not passed over."""
        it = self.selection
        if it.collected and not it.chosen:
            allowed = "allowed" if self._allow_empty else "--piecewise-allow-empty makes that exit code 0"
            terminalreporter.line(f"{self._said()}: nothing was checked ({allowed})")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended: all of them have collected and selected the same."""
        if data := getattr(node, "workeroutput", {}).get(OUTPUT):
            self.selection = from_plain(Selection, data)
