"""Stored counts: found, judged both ways, written once and canonically, and never by CI."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import BaselineError, Case, CaseResult, Status
from pytest_piecewise.baselines import LOWER_IS_BETTER, Baseline, dump, judge, load, measured, path_of, write
from pytest_piecewise.records import BuildRecord, Metric

CASE = Case(model="m:TINY", name="tiny", engine="native", dtype="bfloat16")
PLATFORM = "cpu-avx2-torch2.13"
UPDATE = "pytest --piecewise --piecewise-update"
COUNTS = {"full.graphs": 1, "full.kernels": 4, "piecewise.kernels": 7, "piecewise.pieces": 3}


@pytest.fixture(autouse=True)
def _outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def result(counts: dict[str, int] | None = None, **changes: Any) -> CaseResult:
    """A result with these counts by `variant.metric`, and with metrics that no baseline holds."""
    builds = []
    for variant in ("eager", "full", "piecewise"):
        metrics = [
            Metric(name=name.partition(".")[2], kind="count", value=value)
            for name, value in (COUNTS if counts is None else counts).items()
            if name.partition(".")[0] == variant
        ]
        metrics += [
            Metric(name="compile", kind="seconds", value=1.5),
            Metric(name="peak_memory", kind="bytes", value=2.0**20),
        ]
        builds.append(BuildRecord(variant=variant, outcome="ok", metrics=tuple(metrics)))
    made = CaseResult(
        case=CASE, seed=0, platform=PLATFORM, revision="0123456789ab", graph_kind="", findings=(), builds=tuple(builds)
    )
    return replace(made, **changes)


def stored(directory: Path, counts: dict[str, int] | None = None, revision: str = "0123456789ab") -> Path:
    path = path_of(directory, PLATFORM, CASE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(Baseline(case=CASE.id, revision=revision, metrics=COUNTS if counts is None else counts)))
    return path


def test_file_is_found_by_platform_and_case(tmp_path: Path) -> None:
    assert path_of(tmp_path, PLATFORM, CASE) == tmp_path / "cpu-avx2-torch2.13" / "tiny-native-bfloat16.json"


def test_counts_alone_are_held_against_a_baseline() -> None:
    assert measured(result()) == COUNTS


def test_equal_counts_pass(tmp_path: Path) -> None:
    path = stored(tmp_path)
    found = judge(result(), tmp_path)
    assert (found.check, found.status, found.summary, found.action) == (
        "baseline",
        Status.PASS,
        f"4 counts equal {path}",
        "",
    )


def test_platform_without_a_directory_is_skipped_and_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "cpu-avx512-torch2.13").mkdir()
    found = judge(result(), tmp_path)
    assert found.status is Status.SKIP
    assert found.summary == f"no baselines for platform {PLATFORM} in {tmp_path}; to make some: {UPDATE}"


def test_case_without_a_file_is_new(tmp_path: Path) -> None:
    path = path_of(tmp_path, PLATFORM, CASE)
    path.parent.mkdir()
    found = judge(result(), tmp_path)
    assert (found.status, found.summary, found.action) == (Status.NEW, f"no baseline {path}", UPDATE)


def test_file_of_another_dtype_is_no_baseline(tmp_path: Path) -> None:
    stored(tmp_path)
    assert judge(result(case=replace(CASE, dtype="float32")), tmp_path).status is Status.NEW


def test_baseline_of_another_revision_is_new(tmp_path: Path) -> None:
    path = stored(tmp_path, {"full.graphs": 9}, revision="ffffffffffff")
    found = judge(result(), tmp_path)
    assert found.status is Status.NEW
    assert found.summary == f"{path} is of revision ffffffffffff of the case, which is now 0123456789ab"
    assert found.action == UPDATE


def test_nothing_counted_is_skipped(tmp_path: Path) -> None:
    stored(tmp_path)
    found = judge(result({}), tmp_path)
    assert (found.status, found.summary) == (Status.SKIP, "nothing was counted")


JUDGED: list[tuple[str, dict[str, int], Status, str]] = [
    ("more kernels", {"piecewise.kernels": 8}, Status.FAIL, "piecewise.kernels: stored 7, now 8"),
    ("fewer kernels", {"piecewise.kernels": 6}, Status.STALE, "piecewise.kernels: stored 7, now 6"),
    ("more pieces", {"piecewise.pieces": 4}, Status.FAIL, "piecewise.pieces: stored 3, now 4"),
    ("fewer pieces", {"piecewise.pieces": 2}, Status.FAIL, "piecewise.pieces: stored 3, now 2"),
    (
        "better and worse",
        {"piecewise.kernels": 6, "full.kernels": 5},
        Status.FAIL,
        "full.kernels: stored 4, now 5; piecewise.kernels: stored 7, now 6",
    ),
    (
        "better twice",
        {"piecewise.kernels": 6, "full.kernels": 3},
        Status.STALE,
        "full.kernels: stored 4, now 3; piecewise.kernels: stored 7, now 6",
    ),
    ("metric that is new", {"piecewise.captures": 15}, Status.FAIL, "piecewise.captures: stored None, now 15"),
]


@pytest.mark.parametrize(("changes", "status", "summary"), [pytest.param(*case, id=name) for name, *case in JUDGED])
def test_counts_are_judged_in_both_directions(
    tmp_path: Path, changes: dict[str, int], status: Status, summary: str
) -> None:
    stored(tmp_path)
    found = judge(result(COUNTS | changes), tmp_path)
    assert (found.status, found.summary) == (status, summary)
    assert found.detail == summary.replace("; ", "\n")
    assert found.action == f"if this is intended: {UPDATE}"


@pytest.mark.parametrize("name", sorted(LOWER_IS_BETTER))
def test_fewer_of_what_should_be_few_is_stale_and_more_fails(tmp_path: Path, name: str) -> None:
    stored(tmp_path, {f"full.{name}": 5})
    assert judge(result({f"full.{name}": 4}), tmp_path).status is Status.STALE
    assert judge(result({f"full.{name}": 6}), tmp_path).status is Status.FAIL


def test_count_that_vanished_fails(tmp_path: Path) -> None:
    stored(tmp_path)
    counts = {name: value for name, value in COUNTS.items() if name != "piecewise.kernels"}
    found = judge(result(counts), tmp_path)
    assert (found.status, found.summary) == (Status.FAIL, "piecewise.kernels: stored 7, now None")


GOOD = json.dumps(
    {
        "schema": 1,
        "case": CASE.id,
        "revision": "0123456789ab",
        "metrics": {"full.graphs": {"gate": "exact", "value": 1}},
    }
)

BROKEN: list[tuple[str, bytes, str]] = [
    ("not JSON", b'{\n  "schema": 1,\n  oops\n}', ":3: expected JSON, found Expecting property name"),
    ("empty", b"", ":1: expected JSON, found Expecting value"),
    ("merge conflict", b"<<<<<<< HEAD\n" + GOOD.encode(), ":1: expected JSON, found Expecting value"),
    ("not text", b"\xff\xfe\x00\x01", ": expected"),
    (
        "duplicate metric",
        GOOD.replace('"full.graphs"', '"a": {"gate": "exact", "value": 1}, "a"').encode(),
        ": expected every name once, found 'a' twice; remove one of the lines",
    ),
    (
        "duplicate key",
        GOOD.replace('"schema": 1', '"schema": 1, "schema": 1').encode(),
        ": expected every name once, found 'schema' twice; remove one of the lines",
    ),
    ("list", b"[]", ": expected the keys schema, case, revision and metrics"),
    (
        "missing key",
        b'{"schema": 1, "case": "x", "metrics": {}}',
        ": expected the keys schema, case, revision and metrics",
    ),
    ("extra key", GOOD.replace('"schema": 1', '"schema": 1, "date": 0').encode(), ": expected the keys schema, case,"),
    ("other schema", GOOD.replace('"schema": 1', '"schema": 2').encode(), ": expected schema 1, found 2"),
    ("metrics as a list", GOOD.replace('{"full.graphs": {"gate": "exact", "value": 1}}', "[1]").encode(), ": expected"),
    (
        "bare number",
        GOOD.replace('{"gate": "exact", "value": 1}', "3").encode(),
        ": expected metric 'full.graphs' as {'gate': 'exact', 'value': integer}, found 3",
    ),
    (
        "float",
        GOOD.replace('"value": 1', '"value": 1.5').encode(),
        ": expected metric 'full.graphs' as {'gate': 'exact', 'value': integer}, found {'gate': 'exact', 'value': 1.5}",
    ),
    ("boolean", GOOD.replace('"value": 1', '"value": true').encode(), ": expected metric 'full.graphs' as"),
    ("text", GOOD.replace('"value": 1', '"value": "1"').encode(), ": expected metric 'full.graphs' as"),
    ("other gate", GOOD.replace("exact", "about").encode(), ": expected metric 'full.graphs' as"),
    ("no value", GOOD.replace(', "value": 1', "").encode(), ": expected metric 'full.graphs' as"),
]


@pytest.mark.parametrize(("content", "message"), [pytest.param(*case, id=name) for name, *case in BROKEN])
def test_broken_file_is_named_with_the_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(BaselineError) as refusal:
        load(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}{message}")
    assert any(remedy in text for remedy in ("restore it from git", "remove one of the lines"))


def test_broken_file_does_not_pass_for_a_missing_one(tmp_path: Path) -> None:
    stored(tmp_path).write_text("{")
    with pytest.raises(BaselineError, match="restore it from git"):
        judge(result(), tmp_path)


def test_baseline_of_another_case_is_not_taken(tmp_path: Path) -> None:
    # A file copied to another name; a revision does not tell two cases of one builder apart.
    path = stored(tmp_path)
    path.write_text(dump(Baseline(case="other-native-bfloat16", revision="0123456789ab", metrics=COUNTS)))
    with pytest.raises(BaselineError, match=r"tiny-native-bfloat16\.json.*other-native-bfloat16"):
        judge(result(), tmp_path)


def test_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(GOOD)
    assert load(path) == Baseline(case=CASE.id, revision="0123456789ab", metrics={"full.graphs": 1})


CANONICAL = """{
  "schema": 1,
  "case": "tiny-native-bfloat16",
  "revision": "0123456789ab",
  "metrics": {
    "full.graphs": {"gate": "exact", "value": 1},
    "full.kernels": {"gate": "exact", "value": 4},
    "piecewise.kernels": {"gate": "exact", "value": 7},
    "piecewise.pieces": {"gate": "exact", "value": 3}
  }
}
"""


def test_written_file_is_canonical_and_is_read_back(tmp_path: Path) -> None:
    backwards = dict(reversed(COUNTS.items()))
    path = write(result(backwards), tmp_path)
    assert path == path_of(tmp_path, PLATFORM, CASE)
    assert path.read_text() == CANONICAL
    assert load(path).metrics == COUNTS
    assert judge(result(), tmp_path).status is Status.PASS
    assert [item.name for item in path.parent.iterdir()] == [path.name]  # no temporary file is left
    assert path.stat().st_mode & 0o777 == 0o644


def test_unchanged_counts_leave_the_file_alone(tmp_path: Path) -> None:
    path = write(result(), tmp_path)
    assert path is not None
    before = path.stat()
    assert write(result(), tmp_path) is None
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert path.read_text() == CANONICAL


def test_changed_counts_replace_the_file(tmp_path: Path) -> None:
    path = write(result(), tmp_path)
    assert path is not None
    assert write(result(COUNTS | {"full.kernels": 5}), tmp_path) == path
    assert path.read_text() == CANONICAL.replace(
        '"full.kernels": {"gate": "exact", "value": 4}', '"full.kernels": {"gate": "exact", "value": 5}'
    )


def test_broken_file_is_repaired_by_writing(tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_text("<<<<<<< HEAD\n")
    assert write(result(), tmp_path) == path
    assert path.read_text() == CANONICAL


@pytest.mark.parametrize("changes", [{"platform": ""}, {"builds": ()}], ids=["no platform", "no builds"])
def test_nothing_to_store_writes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert write(result(**changes), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_ci_never_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(BaselineError) as refusal:
        write(result(), tmp_path)
    assert str(refusal.value) == "baselines are never written where CI is set; run it outside CI, or unset CI"
    assert list(tmp_path.iterdir()) == []
