"""The history in real databases: SQLite files, and a PostgreSQL server."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DatabaseError

from pytest_piecewise.cli import main
from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history import exchange
from pytest_piecewise.history.migrations import MIGRATIONS
from pytest_piecewise.history.series import Sample, Series, Trace, environment_of, in_order, samples
from pytest_piecewise.history.store import History
from pytest_piecewise.records import BuildRecord, Case, CaseResult, Counts, Metric, Phase, Report, Run
from pytest_piecewise.reports import document
from tests import history_writer
from tests.databases import postgres_programs
from tests.reported import COSTS
from tests.running import ROOT, environment

COMPILE = Series(case="tiny", variant="full", metric="compile", kind="seconds", environment=(("cpu", "A"),))
KERNELS = dataclasses.replace(COMPILE, metric="kernels", kind="count")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database; in PostgreSQL a schema of its own."""
    if request.param == "sqlite":
        yield str(tmp_path / "history.db")
        return
    server = request.getfixturevalue("postgresql_server")
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    yield f"{server}&options=-csearch_path%3D{name}"
    engine.dispose()


def run(number: int, **changes: Any) -> Run:
    return Run(
        **({"id": f"run{number}", "started": f"2026-12-{number:02}T03:00:00Z", "commit": f"c{number}"} | changes)
    )


def values(history: History, series: Series = COMPILE) -> list[float]:
    return [point.value for trace in history.traces(lambda known: known == series) for point in trace.points]


# Appending


def test_what_is_appended_comes_back(place: str) -> None:
    with History(place) as history:
        full = Run(id="x", started="2026-12-01T03:00:00Z", commit="c", committed="2026-11-30T01:00:00Z", branch="main",
                   dirty=True, url="https://example.org")  # fmt: skip
        assert history.append(full, [Sample(COMPILE, 1.5), Sample(KERNELS, 62)]) == 2
    with History(place) as history:
        found = list(history.traces())
        assert [(trace.series, [(point.run, point.value) for point in trace.points]) for trace in found] == [
            (COMPILE, [(full, 1.5)]),
            (KERNELS, [(full, 62.0)]),
        ]
        assert history.runs() == [full]


def test_run_that_is_known_is_not_doubled(place: str) -> None:
    with History(place) as history:
        assert history.append(run(1), [Sample(COMPILE, 1.5)]) == 1
        assert history.append(run(1), [Sample(COMPILE, 9.9)]) == 0
        assert history.append(run(1), [Sample(COMPILE, 9.9), Sample(KERNELS, 3)]) == 1  # a report that has grown
        assert (values(history), values(history, KERNELS)) == ([1.5], [3.0])


def test_points_stand_in_the_order_of_commits_then_of_runs(place: str) -> None:
    with History(place) as history:
        for number, (day, committed) in enumerate([(3, "2026-11-03"), (5, "2026-11-01"), (4, "2026-11-01"), (6, "")]):
            moment = f"{committed}T00:00:00Z" if committed else ""
            history.append(run(day, id=str(number), committed=moment), [Sample(COMPILE, number)])
        assert values(history) == [2, 1, 0, 3]


def test_history_is_append_only_for_every_program(place: str) -> None:
    with History(place) as history:
        history.append(run(1), [Sample(COMPILE, 1.5)])
        for statement in ("UPDATE piecewise_points SET value = 0", "DELETE FROM piecewise_points",
                          "DELETE FROM piecewise_runs", "UPDATE piecewise_series SET metric = 'x'"):  # fmt: skip
            with history._engine.connect() as connection, pytest.raises(DatabaseError, match="append-only"):
                connection.execute(text(statement))
        assert values(history) == [1.5]


def test_only_the_last_points_are_read_if_so_asked(place: str) -> None:
    with History(place) as history:
        for day in range(1, 9):
            history.append(run(day), [Sample(COMPILE, day)])
        assert [point.value for trace in history.traces(last=3) for point in trace.points] == [6, 7, 8]


HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "nul\0byte",
    "lone \ud800 surrogate",
    "'; DROP TABLE piecewise_runs; --",
    "x" * 10_000_000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=["script", "ansi", "nul", "surrogate", "sql", "10MB"])
def test_hostile_names_are_kept_apart_and_harm_nothing(place: str, name: str) -> None:
    case = Case(model="m:M", name=name)
    build = BuildRecord(variant="full", outcome="ok", metrics=(Metric(name="compile", kind="seconds", value=2.0),))
    result = CaseResult(
        case=case, seed=0, platform=name, revision="r", graph_kind="", findings=(), builds=(build,),
        environment={"cpu": name},
    )  # fmt: skip
    report = Report(run=run(1, id=name, branch=name), tier="full", complete=True, environment={}, results=(result,))
    measured = list(samples(report))
    with History(place) as history:
        assert history.append(report.run, measured) == len(measured) > 0
        assert history.append(report.run, measured) == 0
        assert len(list(history.traces())) == len(measured)


# Many at once


def writer(place: str, number: int, *more: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.history_writer", place, *map(str, (number, *more))]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)


def test_many_writers_of_which_one_is_killed_lose_and_double_nothing(place: str) -> None:
    writers, runs, killed_in = (8, 200, 97) if place.startswith("postgresql") else (4, 60, 29)
    victim, *others = (writer(place, number, runs, *([killed_in] if number == 0 else [])) for number in range(writers))
    stored = 0
    assert victim.stdout is not None
    for line in victim.stdout:
        if "middle" in line:
            break
        stored += 1
    victim.send_signal(signal.SIGKILL)
    victim.wait(timeout=60)
    for process in others:
        process.communicate(timeout=300)
        assert process.returncode == 0
    with History(place) as history:
        found = points_by_run(history)
        assert stored == killed_in
        assert {name for name in found if name.startswith("0/")} == {f"0/{number}" for number in range(stored)}
        assert len(found) == stored + (writers - 1) * runs
        assert set(found.values()) == {history_writer.SAMPLES}
        again = [history.append(*history_writer.measured(0, number)) for number in range(runs)]
        assert again == [0] * stored + [history_writer.SAMPLES] * (runs - stored)
        assert len(points_by_run(history)) == writers * runs


def points_by_run(history: History) -> Counter[str]:
    """Every value is told from its writer and number, so that one in a wrong run would be seen."""
    found: Counter[str] = Counter()
    for trace in history.traces():
        for point in trace.points:
            assert point.run.id == f"{int(point.value) // 1000}/{int(point.value) % 1000}"
            found[point.run.id] += 1
    return found


def test_several_processes_may_make_a_new_database_together(place: str) -> None:
    processes = [writer(place, number, 1) for number in range(6)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 6
    with History(place) as history:
        assert len(history.runs()) == 6


# Schema


def test_older_database_is_brought_up_to_date_and_keeps_what_it_has(place: str) -> None:
    def add_note(connection: Any) -> None:
        connection.execute(text("ALTER TABLE piecewise_runs ADD COLUMN note TEXT DEFAULT 'none'"))

    with History(place) as history:
        history.append(run(1), [Sample(COMPILE, 1.5)])
    with History(place, (*MIGRATIONS, add_note)) as history:
        assert values(history) == [1.5]
        with history._engine.connect() as connection:
            assert connection.execute(text("SELECT note FROM piecewise_runs")).scalar_one() == "none"
    with pytest.raises(
        HistoryError, match=f"schema {len(MIGRATIONS)} or older, found schema {len(MIGRATIONS) + 1}; update"
    ):
        History(place)


def test_migration_that_fails_leaves_the_database_as_it_was(place: str) -> None:
    def fail(connection: Any) -> None:
        connection.execute(text("CREATE TABLE half (x INTEGER)"))
        connection.execute(text("SELECT * FROM nowhere"))

    with History(place) as history:
        history.append(run(1), [Sample(COMPILE, 1.5)])
    with pytest.raises(HistoryError, match="nowhere"):
        History(place, (*MIGRATIONS, fail))
    with History(place) as history:
        assert values(history) == [1.5]
        with history._engine.connect() as connection, pytest.raises(DatabaseError):
            connection.execute(text("SELECT * FROM half"))


# What cannot be used


def test_what_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and is long enough to be seen as none" * 20)
    for place, said in (
        (str(tmp_path / "text.db"), "not a database"),
        (str(tmp_path), "unable to open"),
        ("mysql://host/name", "expected a history in sqlite or postgresql, found mysql"),
        ("postgresql://tester:secret@127.0.0.1:9/none", "cannot be used"),
    ):
        with pytest.raises(HistoryError, match=said) as caught:
            History(place)
        assert "secret" not in str(caught.value)


def test_history_that_others_hold_locked_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_piecewise.history.store.LOCK_SECONDS", 0.2)
    with History(str(tmp_path / "h.db")) as history:
        holder = sqlite3.connect(tmp_path / "h.db")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HistoryError, match="locked"):
            history.append(run(1), [Sample(COMPILE, 1.5)])
        holder.rollback()
        assert history.append(run(1), [Sample(COMPILE, 1.5)]) == 1
        holder.close()


# Keys


def result(**changes: Any) -> CaseResult:
    build = BuildRecord(
        variant="piecewise",
        outcome="ok",
        metrics=(
            Metric(name="kernels", kind="count", value=8.0),
            Metric(name="compile", kind="seconds", value=2.5),
            Metric(name="ratio", kind="ratio", value=math.nan),
        ),
        phases=(Phase(name="compile", seconds=2.5, cpu_seconds=4.5), Phase(name="compile", seconds=0, cpu_seconds=0.5)),
        counts=Counts(recompiles=("because",)),
    )
    made = {
        "case": Case(model="m:M", name="tiny"),
        "seed": 0,
        "platform": "cpu-avx512-torch2.13",
        "revision": "abc",
        "graph_kind": "recorded graphs",
        "findings": (),
        "builds": (build, dataclasses.replace(build, variant="full", outcome="crash")),
        "environment": {
            "torch": "2.13.0+cpu", "python": "3.11.7", "cpu": "EPYC", "threads": "2", "accelerator": "none",
            "machine": "x86_64",
        },
        "seconds": 7.0,
    }  # fmt: skip
    return CaseResult(**(made | changes))


def report_of(*results: CaseResult) -> Report:
    return Report(run=run(1), tier="full", complete=True, environment={}, results=results)


def test_report_gives_metrics_cpu_seconds_and_evidence_of_builds_that_ended_well() -> None:
    found = {f"{sample.series.variant}.{sample.series.metric}": sample.value for sample in samples(report_of(result()))}
    assert found == {
        "piecewise.kernels": 8.0,
        "piecewise.compile": 2.5,
        "piecewise.compile_cpu": 5.0,
        "piecewise.recompiles": 1.0,
        "piecewise.graph_breaks": 0.0,
        "piecewise.copied_inputs": 0.0,
        "piecewise.moved_inputs": 0.0,
    }


def test_costs_are_kept_as_work_ratios_and_medians_without_the_first_round() -> None:
    found = {sample.series.name: sample.value for sample in samples(report_of(result(costs=COSTS)))}
    assert {
        name: value for name, value in found.items() if "measured" in name or "work" in name or "ratio" in name
    } == {
        "tiny-native-float32/full/work": 12345.0,
        "tiny-native-float32/full/measured step_8": 0.002,
        "tiny-native-float32/piecewise/measured compile warm": 1.0,
    }
    assert found["tiny-native-float32/piecewise/full.compile_cpu"] == 0.8


def number_of_kernels(changed: CaseResult) -> tuple[int, tuple[object, ...]]:
    (series,) = {s.series for s in samples(report_of(changed)) if s.series.metric == "kernels"}
    return series.number, series.line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu", "Xeon"),
        ("threads", "4"),
        ("accelerator", "NVIDIA H200, CUDA 12.8"),
        ("queue", "gpu"),
        ("machine", "arm64"),
    ],
)
def test_unlike_machines_are_never_in_one_series(key: str, value: str) -> None:
    other = result(environment=result().environment | {key: value})
    assert number_of_kernels(other)[0] != number_of_kernels(result())[0]
    assert number_of_kernels(other)[1] != number_of_kernels(result())[1]


@pytest.mark.parametrize(
    ("key", "value"), [("torch", "2.13.1"), ("triton", "3.5"), ("driver", "570.1"), ("python", "3.12.1")]
)
def test_another_version_is_another_series_of_the_same_line(key: str, value: str) -> None:
    other = result(environment=result().environment | {key: value})
    assert number_of_kernels(other)[0] != number_of_kernels(result())[0]
    assert number_of_kernels(other)[1] == number_of_kernels(result())[1]
    assert number_of_kernels(result(revision="def"))[0] != number_of_kernels(result())[0]


def test_what_is_only_recorded_is_not_in_the_key() -> None:
    for key, value in (("python", "3.11.9"), ("driver", "")):
        other = result(environment=result().environment | {key: value})
        assert number_of_kernels(other) == number_of_kernels(result())


def test_nightly_builds_of_torch_are_one_version() -> None:
    first, second = (
        dict(environment_of(result(environment={"torch": f"2.14.0.dev202611{day}+cpu"})))["torch"] for day in (10, 11)
    )
    assert first == second == "2.14.0.dev+cpu"


# Files


def filled(place: str) -> History:
    history = History(place)
    for day in (1, 2, 3):
        history.append(
            run(day, branch='a "quoted", name', dirty=day == 2, committed=f"2026-11-{day:02}T00:00:00Z"),
            [Sample(COMPILE, day / 3), Sample(KERNELS, day)],
        )
    return history


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_exported_history_comes_back_the_same(tmp_path: Path, name: str) -> None:
    there, back = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    with filled(there) as history:
        before = list(history.traces())
    assert main(["history", "export", str(tmp_path / name), "--history", there]) == 0
    for _ in range(2):
        assert main(["history", "import", str(tmp_path / name), "--history", back]) == 0
    with History(back) as history:
        assert list(history.traces()) == before


def test_pytest_benchmark_reads_what_is_exported_and_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, back = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    filled(there).close()
    assert main(["history", "export", str(tmp_path / "saved"), "--history", there]) == 0
    files = sorted((tmp_path / "saved").iterdir())
    assert [file.name for file in files][:2] == ["0001_c1_20261201T030000Z.json", "0002_c2_20261202T030000Z.json"]
    data = json.loads(files[1].read_text())
    assert [(item["fullname"], item["stats"]["median"]) for item in data["benchmarks"]] == [
        ("tiny/full/compile", 2 / 3)
    ]
    assert main(["history", "import", *map(str, files), "--history", back]) == 0
    with History(back) as history:
        assert {trace.series.metric: [p.value for p in trace.points] for trace in history.traces()} == {
            "median": [1 / 3, 2 / 3, 1.0],
            "min": [1 / 3, 2 / 3, 1.0],
        }


def test_csv_of_others_needs_a_time_a_metric_and_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "h.db")
    (tmp_path / "n.csv").write_text(
        "started,metric,value\n2026-12-02T03:00:00+01:00,latency,1.5\n2026-12-01,latency,nan\n2026-12-03,latency,\n"
    )
    assert main(["history", "import", str(tmp_path / "n.csv"), "--history", place]) == 0
    assert "3 run(s), 1 of 1 measurements appended, 2 without a number left out" in capsys.readouterr().out
    with History(place) as history:
        (trace,) = history.traces()
        assert (trace.series.name, trace.points[0].run.started) == ("n/latency", "2026-12-02T02:00:00Z")
    for content, said in (
        ("a,b\n1,2\n", "expected the columns started, metric and value, found no started, metric, value"),
        ("started,metric,value\nyesterday,m,1\n", "n.csv:2: Invalid isoformat string: 'yesterday'"),
        ("started,metric,value\n,m,1\n", "n.csv:2: expected a time in the column `started`, found nothing"),
    ):
        (tmp_path / "n.csv").write_text(content)
        assert main(["history", "import", str(tmp_path / "n.csv"), "--history", place]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["{", "{}", "[]", '{"run": {}, "environments": [], "points": [[0, "a", "b", "c", "d", 1]]}']
)
def test_line_that_is_no_run_is_named(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n.jsonl").write_text(f"\n{line}\n")
    assert main(["history", "import", str(tmp_path / "n.jsonl"), "--history", str(tmp_path / "h.db")]) == 2
    assert "n.jsonl:2: expected a line of `pytest-piecewise history export`" in capsys.readouterr().err


def test_reports_are_added_once_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document.write(report_of(result()), tmp_path / "out")
    place = ["--history", str(tmp_path / "h.db")]
    assert main(["history", "add", str(tmp_path / "out"), *place]) == 0
    assert main(["history", "add", str(tmp_path / "out" / "report.json"), *place]) == 0
    assert "7 of 7 measurements appended\n" in (said := capsys.readouterr().out)
    assert "0 of 7 measurements appended\n" in said
    assert main(["history", "list", "--series", "*/kernels", *place]) == 0
    listed = capsys.readouterr().out
    assert listed.split("  ")[:4] == ["tiny-native-float32/piecewise/kernels", "count", "1 point(s)", "8"]


def test_points_are_ordered_whatever_order_they_come_in() -> None:
    trace = Trace(COMPILE, in_order([]))
    assert trace.points == ()


def test_runs_by_run_are_the_series_by_series(tmp_path: Path) -> None:
    with filled(str(tmp_path / "h.db")) as history:
        found = exchange.by_run(history.traces())
    assert [(item.run.id, len(item.samples)) for item in found] == [("run1", 2), ("run2", 2), ("run3", 2)]


def test_ci_has_postgresql() -> None:
    if not os.environ.get("CI"):
        pytest.skip("only CI must have it")
    assert postgres_programs() is not None
