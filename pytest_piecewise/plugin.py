"""pytest glue: options, marker, fixtures. Without `--piecewise` it only deselects; nothing heavy is imported here."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_piecewise.session.byhand import LiveBuild
    from pytest_piecewise.session.items import Piecewise
    from pytest_piecewise.session.session import PiecewiseSession

TIER_FLAGS = {"--piecewise": "fastcheck"} | {f"--piecewise={tier}": tier for tier in ("fastcheck", "full", "nightly")}
BUILD_FIXTURES = ("eager_build", "full_build", "piecewise_build")
MARKER = (
    "piecewise(model, engine='native', dtype=None, tier='fastcheck', device=None, expected=None): check `model`, a "
    "pytest_piecewise.Model, a reference to one such as 'hf-tiny:DIR', or {'cpu': ..., 'cuda': ...} with one for each, "
    "with the `piecewise` fixture; one test per dtype of the model unless `dtype` (a name or several) says otherwise; "
    "`tier` is the least --piecewise tier that runs it; `device` is auto, cpu or cuda[:i]; "
    "`expected` is {check: reason} of what is known to fail, and fails the test once it passes. Runs only with --piecewise."
)
NAME, SELECTING = "piecewise-session", "piecewise-selecting"


KINDS = ("STALE", "POOL", "PAD", "SPLIT", "ALIAS", "SHAPE", "CACHE", "CAPTURE", "NUM", "FALLBACK", "VACUOUS", "COST")
CANARY = "--piecewise-canary"
CANARY_VARIABLE = "PYTEST_PIECEWISE_CANARY"


def _canary_flags() -> dict[str, str]:
    """`--piecewise-canary`, and with `=KIND` or `=NAME`, as flags: it must not take a path for a name either.

    Names of faults are known to a package that an ordinary run does not import, so what the command line has is taken. An
    xdist worker has another command line, and the environment of the controller.
    """
    given = [*sys.argv, *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), os.environ.get(CANARY_VARIABLE, "")]
    named = {item: item.partition("=")[2] for item in given if item.startswith(f"{CANARY}=")}
    if named:
        os.environ[CANARY_VARIABLE] = list(named)[-1]
    return {CANARY: "all"} | {f"{CANARY}={kind}": kind for kind in KINDS} | named


class _CanaryAction(argparse.Action):
    """`--piecewise-canary` and its kinds and names as flags."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (option_string or "").partition("=")[2] or "all")


class _TierAction(argparse.Action):
    """`--piecewise` and `--piecewise=TIER` as flags: `--piecewise suites/` must not take the path for a tier."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, TIER_FLAGS[option_string or "--piecewise"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all of them also settable in [tool.pytest_piecewise] of pyproject.toml."""
    group = parser.getgroup("piecewise", "compiled models: eager, full-graph Inductor, piecewise with graphs")
    option = group.addoption
    option(
        *TIER_FLAGS,
        action=_TierAction,
        dest="piecewise_tier",
        nargs=0,
        help="build the models of piecewise tests three ways, replay them, and say whether they agree; fastcheck is meant "
        "for every change, full for a merge, nightly for a quiet machine",
    )
    option(
        "--piecewise-model",
        dest="piecewise_models",
        action="append",
        default=[],
        metavar="MODULE:ATTR",
        help="check this Model, no test file needed; hf-tiny:DIR_OR_NAME makes one of a config.json; may be repeated",
    )
    option("--piecewise-engine", dest="piecewise_engine", metavar="NAME", help="use this engine in every test")
    option("--piecewise-dtype", dest="piecewise_dtype", metavar="DTYPE", help="use this dtype in every test")
    option("--piecewise-device", dest="piecewise_device", metavar="DEVICE",
           help="auto (default: a GPU if there is one), cpu, cuda or cuda:INDEX")  # fmt: skip
    option(
        "--piecewise-report",
        dest="piecewise_report",
        metavar="DIR",
        help="write DIR/report.json as results come; report.html, report.md and junit.xml at the end",
    )
    option("--piecewise-history", dest="piecewise_history", metavar="URL",
           help="append what was measured to this database: a file, postgresql://..., or none; default "
           ".piecewise/history.db")  # fmt: skip
    option("--piecewise-ci", dest="piecewise_ci", choices=("auto", "buildkite", "github", "none"),
           help="publish the report there; auto (default) where it runs in one of them")  # fmt: skip
    option("--piecewise-localize", dest="piecewise_localize", choices=("off", "piece", "op"),
           help="follow a failed comparison to its op (default), to its piece, or not at all")  # fmt: skip
    option("--piecewise-isolation", dest="piecewise_isolation", choices=("process", "none"),
           help="process (default): every build in a fresh child; none: in this process, for --pdb")  # fmt: skip
    option(
        "--piecewise-timeout", dest="piecewise_timeout", type=float, metavar="SECONDS", help="per build; default 600"
    )
    option("--piecewise-memory", dest="piecewise_memory_limit", type=int, metavar="MIB",
           help="per build, compilers included; default: 90 %% of what is free")  # fmt: skip
    option("--piecewise-gpu-memory", dest="piecewise_gpu_memory", type=int, metavar="MIB",
           help="per build; lets builds share a GPU, except where costs are timed; default: a GPU each")  # fmt: skip
    option(*_canary_flags(), action=_CanaryAction, dest="piecewise_canary", nargs=0,
           help="plant faults in each case, one by one, and say which check catches which; =KIND or =NAME for some "
           "of them; `pytest-piecewise faults` lists them")  # fmt: skip
    option("--piecewise-seed", dest="piecewise_seed", type=int, metavar="N", help="of weights and inputs; default 0")
    _add_costs(option)
    _add_selection(option)


def _add_costs(option: Callable[..., None]) -> None:
    option("--piecewise-baselines", dest="piecewise_baselines", metavar="DIR", help="stored counts; default baselines/")
    option("--piecewise-costs", dest="piecewise_costs", choices=("counts", "work", "ratios"),
           help="what is measured of costs: exact counts (fastcheck), Python calls of compilation too (full), ratios of "
           "compile and step times too (nightly)")  # fmt: skip
    option("--piecewise-update", dest="piecewise_update", metavar="new,fix,trim",
           help="store what has no baseline (new), what got worse (fix, with --piecewise-reason), what got better (trim) "
           "[WARNING: writes the baselines directory]")  # fmt: skip
    option(
        "--piecewise-reason", dest="piecewise_reason", metavar="TEXT", help="why fix is right; stored beside the value"
    )
    option("--piecewise-update-to", dest="piecewise_update_to", metavar="DIR",
           help="write what an update would store as proposals into DIR; also where CI is set")  # fmt: skip


def _add_selection(option: Callable[..., None]) -> None:
    option("--piecewise-changed-files", dest="piecewise_changed_files", metavar="FILE",
           help="deselect tests whose models declare, in `watches`, that none of these paths matters")  # fmt: skip
    option("--piecewise-shard", dest="piecewise_shard", metavar="I/N", help="run the I-th of N parts, counted from 1; "
           "auto: as the variables of the CI say")  # fmt: skip
    option("--piecewise-durations", dest="piecewise_durations", metavar="PATH",
           help="split by what cases took: a report.json, a directory with some, or a history (URL or .db)")  # fmt: skip
    option("--piecewise-allow-empty", dest="piecewise_allow_empty", action="store_true",
           help="exit code 0 where selection leaves nothing to run; otherwise 5")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and the session itself only where it was asked for."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("piecewise_tier") is None:
        if config.getoption("piecewise_models"):
            raise pytest.UsageError(
                "--piecewise-model needs --piecewise: pytest --piecewise --piecewise-model MODULE:ATTR"
            )
        if config.getoption("piecewise_canary"):
            raise pytest.UsageError("--piecewise-canary needs --piecewise: pytest --piecewise --piecewise-canary")
        return
    from pytest_piecewise.session.selecting import Selecting  # noqa: PLC0415 - not for ordinary runs
    from pytest_piecewise.session.session import PiecewiseSession  # noqa: PLC0415

    session = PiecewiseSession(config)
    config.pluginmanager.register(session, NAME)
    selecting = Selecting(config, session.table, session.settings.baselines, is_piecewise)
    config.pluginmanager.register(selecting, SELECTING)


def _session(config: pytest.Config) -> PiecewiseSession | None:
    session: PiecewiseSession | None = config.pluginmanager.get_plugin(NAME)
    return session


def is_piecewise(item: pytest.Item) -> bool:
    """Whether a test is one of ours: it has the marker, or uses one of the fixtures."""
    names = getattr(item, "fixturenames", ())
    return item.get_closest_marker("piecewise") is not None or any(n in names for n in (*BUILD_FIXTURES, "piecewise"))


class _Deselected:
    """Counts what was left out of an ordinary run, for the one line that says so."""

    count = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --piecewise, our tests are deselected."""
    if _session(config) is not None:
        return
    ours = [item for item in items if is_piecewise(item)]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if not is_piecewise(item)]
    config.stash[_Deselected.count] = len(ours)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """The line that says how many tests were left out, and how to run them."""
    count = config.stash.get(_Deselected.count, 0)
    return f"piecewise: {count} test(s) deselected; to run them: pytest --piecewise" if count else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case of the marker."""
    session = _session(metafunc.config)
    if session is not None and "piecewise" in metafunc.fixturenames:
        session.parametrize(metafunc)


@pytest.fixture
def piecewise(request: pytest.FixtureRequest) -> Piecewise:
    """The case of the `piecewise` marker: `.check()` runs every check on it and fails with their findings.
    `.check_equivalence()`, `.check_structure()` and `.check_baseline()` run a part; `.result` is the record of all.
    """
    session = _session(request.config)
    if session is None:
        pytest.skip("needs --piecewise")
    return session.piecewise(request)


@pytest.fixture
def _live(request: pytest.FixtureRequest) -> Iterator[Any]:
    session = _session(request.config)
    if session is None:
        pytest.skip("needs --piecewise")
    from pytest_piecewise.session.byhand import live_builds  # noqa: PLC0415 - imports torch

    with ExitStack() as stack:
        yield stack.enter_context(live_builds(session.settings, session.cases.engine, pytest.skip))


@pytest.fixture
def eager_build(_live: Callable[[str], Callable[..., LiveBuild]]) -> Callable[..., LiveBuild]:
    """`eager_build(model, dtype=..., engine=..., device=...)`: the model as it is, alive in this test's process."""
    return _live("eager")


@pytest.fixture
def full_build(_live: Callable[[str], Callable[..., LiveBuild]]) -> Callable[..., LiveBuild]:
    """`full_build(model, ...)`: one graph through Inductor, alive in this test's process."""
    return _live("full")


@pytest.fixture
def piecewise_build(_live: Callable[[str], Callable[..., LiveBuild]]) -> Callable[..., LiveBuild]:
    """`piecewise_build(model, ...)`: pieces compiled and captured, alive in this test's process.
    `build.counts.pieces`, `build.capture_seconds`, and `build(size=8, seed=3)` for the outputs of a call by name.
    """
    return _live("piecewise")
