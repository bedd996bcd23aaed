"""Stored numbers: read with every mistake named, judged by their gates, updated as asked and in no other byte."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import BaselineError, Case, CaseResult, Status
from pytest_piecewise.baselines.entries import LOWER_IS_BETTER, Entry, Measured, verdict
from pytest_piecewise.baselines.files import FIX, TRIM, UPDATE, Baseline, dump, load, path_of, write
from pytest_piecewise.baselines.judge import judge, measured
from pytest_piecewise.baselines.update import plan
from pytest_piecewise.records import BuildRecord, Finding, Metric

CASE = Case(model="m:TINY", name="tiny", engine="native", dtype="bfloat16")
PLATFORM = "cpu-avx2-torch2.13"
COUNTS = {"full.graphs": 1, "full.kernels": 4, "piecewise.kernels": 7, "piecewise.pieces": 3}
TODAY = datetime.date(2026, 12, 1)


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


def exact(counts: dict[str, int]) -> dict[str, Entry]:
    return {name: Entry(gate="exact", value=value) for name, value in counts.items()}


def stored(directory: Path, counts: dict[str, int] | None = None, **changes: Any) -> Path:
    path = path_of(directory, PLATFORM, CASE)
    baseline = Baseline(case=CASE.id, revision="0123456789ab", metrics=exact(COUNTS if counts is None else counts))
    write(path, replace(baseline, **changes))
    return path


def only(findings: tuple[Finding, ...]) -> Finding:
    (found,) = findings
    return found


# Judging


def test_file_is_found_by_platform_and_case(tmp_path: Path) -> None:
    assert path_of(tmp_path, PLATFORM, CASE) == tmp_path / "cpu-avx2-torch2.13" / "tiny-native-bfloat16.json"


def test_counts_alone_are_held_against_a_baseline_and_never_seconds() -> None:
    assert {name: item.value for name, item in measured(result()).items()} == COUNTS


def test_equal_counts_pass(tmp_path: Path) -> None:
    path = stored(tmp_path)
    found = only(judge(result(), tmp_path))
    assert (found.check, found.status, found.summary) == ("baseline", Status.PASS, f"4 counts equal {path}")
    assert (found.detail, found.action) == ("", "")


def test_platform_without_a_directory_is_skipped_and_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "cpu-avx512-torch2.13").mkdir()
    found = only(judge(result(), tmp_path))
    assert found.status is Status.SKIP
    assert found.summary == f"no baselines for platform {PLATFORM} in {tmp_path}; to make some: {UPDATE}"


def test_case_without_a_file_is_new(tmp_path: Path) -> None:
    path = path_of(tmp_path, PLATFORM, CASE)
    path.parent.mkdir()
    found = only(judge(result(), tmp_path))
    assert (found.status, found.summary, found.action) == (Status.NEW, f"no baseline {path}", UPDATE)


def test_file_of_another_dtype_is_no_baseline(tmp_path: Path) -> None:
    stored(tmp_path)
    assert only(judge(result(case=replace(CASE, dtype="float32")), tmp_path)).status is Status.NEW


def test_baseline_of_another_revision_is_new(tmp_path: Path) -> None:
    path = stored(tmp_path, {"full.graphs": 9}, revision="ffffffffffff")
    found = only(judge(result(), tmp_path))
    assert found.status is Status.NEW
    assert found.summary == f"{path} is of revision ffffffffffff of the case, which is now 0123456789ab"
    assert found.action == UPDATE


def test_nothing_counted_is_skipped(tmp_path: Path) -> None:
    stored(tmp_path)
    found = only(judge(result({}), tmp_path))
    assert (found.status, found.summary) == (Status.SKIP, "nothing was counted")


JUDGED: list[tuple[str, dict[str, int], Status, str, str]] = [
    ("more kernels", {"piecewise.kernels": 8}, Status.FAIL, "piecewise.kernels: stored 7, now 8", FIX),
    ("fewer kernels", {"piecewise.kernels": 6}, Status.STALE, "piecewise.kernels: stored 7, now 6", TRIM),
    ("more pieces", {"piecewise.pieces": 4}, Status.FAIL, "piecewise.pieces: stored 3, now 4", FIX),
    ("fewer pieces", {"piecewise.pieces": 2}, Status.FAIL, "piecewise.pieces: stored 3, now 2", FIX),
    (
        "worse twice",
        {"piecewise.kernels": 9, "full.kernels": 5},
        Status.FAIL,
        "full.kernels: stored 4, now 5; piecewise.kernels: stored 7, now 9",
        FIX,
    ),
    (
        "better twice",
        {"piecewise.kernels": 6, "full.kernels": 3},
        Status.STALE,
        "full.kernels: stored 4, now 3; piecewise.kernels: stored 7, now 6",
        TRIM,
    ),
    (
        "metric that is new",
        {"piecewise.captures": 15},
        Status.NEW,
        "piecewise.captures: no stored value, now 15",
        UPDATE,
    ),
]


@pytest.mark.parametrize(
    ("changes", "status", "summary", "command"), [pytest.param(*case, id=name) for name, *case in JUDGED]
)
def test_counts_are_judged_in_both_directions(
    tmp_path: Path, changes: dict[str, int], status: Status, summary: str, command: str
) -> None:
    stored(tmp_path)
    found = only(judge(result(COUNTS | changes), tmp_path))
    assert (found.status, found.summary) == (status, summary)
    assert found.detail == summary.replace("; ", "\n")
    assert found.action.endswith(command)


def test_better_beside_worse_fails_and_shows_both(tmp_path: Path) -> None:
    stored(tmp_path)
    found = only(judge(result(COUNTS | {"piecewise.kernels": 6, "full.kernels": 5}), tmp_path))
    assert (found.status, found.summary) == (Status.FAIL, "full.kernels: stored 4, now 5")
    assert found.detail == "full.kernels: stored 4, now 5\npiecewise.kernels: stored 7, now 6"


def test_count_that_vanished_fails(tmp_path: Path) -> None:
    stored(tmp_path)
    counts = {name: value for name, value in COUNTS.items() if name != "piecewise.kernels"}
    found = only(judge(result(counts), tmp_path))
    assert (found.status, found.summary) == (Status.FAIL, "piecewise.kernels: stored 7, no longer measured")


@pytest.mark.parametrize("name", sorted(LOWER_IS_BETTER))
def test_fewer_of_what_should_be_few_is_stale_and_more_fails(name: str) -> None:
    for value, status in ((4, Status.STALE), (5, Status.PASS), (6, Status.FAIL)):
        now = Measured(gate="exact", value=value)
        assert verdict(f"full.{name}", Entry(gate="exact", value=5), now, TODAY).status is status


KERNELS = ("cpp_fused_add", "cpp_fused_add", "cpp_fused_mul")


def with_kernels(*names: str) -> CaseResult:
    made = result()
    builds = [replace(build, kernels=names if build.variant == "full" else ()) for build in made.builds]
    return replace(made, builds=tuple(builds))


def test_other_kernels_of_the_same_number_fail(tmp_path: Path) -> None:
    made = plan(with_kernels(*KERNELS), tmp_path, {"new"})
    assert made is not None
    write(made.path, made.baseline)
    assert made.baseline.kernels == {"full cpp_fused_add": 2, "full cpp_fused_mul": 1}
    assert only(judge(with_kernels(*reversed(KERNELS)), tmp_path)).status is Status.PASS
    found = only(judge(with_kernels("cpp_fused_add", "cpp_fused_mul", "cpp_fused_mul"), tmp_path))
    assert found.status is Status.FAIL
    assert found.summary.startswith("full.kernel_set: stored ")


RULES: list[tuple[str, Entry, Measured, Status]] = [
    ("work up", Entry(gate="work", value=1000), Measured(gate="work", value=1011), Status.FAIL),
    ("work a little up", Entry(gate="work", value=1000), Measured(gate="work", value=1010), Status.PASS),
    ("work a little down", Entry(gate="work", value=1000), Measured(gate="work", value=990), Status.PASS),
    ("work down", Entry(gate="work", value=1000), Measured(gate="work", value=989), Status.STALE),
    ("margin", Entry(gate="work", value=1000, margin=0.1), Measured(gate="work", value=1099), Status.PASS),
    ("small pool", Entry(gate="budget", value=2**20), Measured(gate="budget", value=3 * 2**20), Status.PASS),
    ("small pool up", Entry(gate="budget", value=2**20), Measured(gate="budget", value=3 * 2**20 + 1), Status.FAIL),
    ("large pool", Entry(gate="budget", value=10**10), Measured(gate="budget", value=10**10 + 10**8), Status.PASS),
    ("large pool up", Entry(gate="budget", value=10**10), Measured(gate="budget", value=10**10 + 10**8 + 1), Status.FAIL),
    ("pool down", Entry(gate="budget", value=10**7), Measured(gate="budget", value=5 * 10**6), Status.STALE),
    ("slack", Entry(gate="budget", value=100, slack=5), Measured(gate="budget", value=106), Status.FAIL),
    ("ratio", Entry(gate="ratio", value=0.8), Measured(gate="ratio", value=0.99, low=0.95, high=1.1), Status.PASS),
    ("ratio up", Entry(gate="ratio", value=0.8), Measured(gate="ratio", value=1.01, low=0.91, high=1.2), Status.FAIL),
    ("unsure", Entry(gate="ratio", value=0.8), Measured(gate="ratio", value=1.2, low=0.89, high=1.6), Status.PASS),
    ("ratio down", Entry(gate="ratio", value=0.8), Measured(gate="ratio", value=0.6, low=0.5, high=0.7), Status.STALE),
    ("unsure down", Entry(gate="ratio", value=0.8), Measured(gate="ratio", value=0.6, low=0.4, high=0.72), Status.PASS),
    ("own", Entry(gate="ratio", value=0.8, margin=0.1), Measured(gate="ratio", value=0.9, low=0.87, high=1), Status.FAIL),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "now", "status"), [pytest.param(*rule, id=name) for name, *rule in RULES])
def test_every_gate_has_its_rule(entry: Entry, now: Measured, status: Status) -> None:
    assert verdict("full.x", entry, now, TODAY).status is status


def test_costs_have_a_finding_of_their_own(tmp_path: Path) -> None:
    stored(tmp_path, metrics=exact(COUNTS) | {"piecewise.graph_pool": Entry(gate="budget", value=2**20)})
    made = result()
    pool = Metric(name="graph_pool", kind="bytes", value=2.0**24)
    builds = [replace(b, metrics=(*b.metrics, pool)) if b.variant == "piecewise" else b for b in made.builds]
    counts, cost = judge(replace(made, builds=tuple(builds)), tmp_path)
    assert (counts.check, counts.status) == ("baseline", Status.PASS)
    assert (cost.check, cost.status) == ("cost", Status.FAIL)
    assert cost.summary == "piecewise.graph_pool: stored 1048576, now 16777216 (+15728640, 2097152 is tolerated)"


def test_quarantined_metric_is_shown_until_its_last_day_and_then_gates() -> None:
    entry = Entry(gate="observe", value=7, until="2026-12-01", issue="ISSUE-12")
    now = Measured(gate="exact", value=9)
    held = verdict("full.kernels", entry, now, TODAY)
    assert held.status is Status.SKIP
    assert held.line == "full.kernels: only observed until 2026-12-01 (ISSUE-12); stored 7, now 9"
    ended = verdict("full.kernels", entry, now, TODAY + datetime.timedelta(days=1))
    assert (ended.status, ended.gate) == (Status.FAIL, "exact")
    assert ended.line == "full.kernels: stored 7, now 9; its quarantine (ISSUE-12) has ended on 2026-12-01"


# Files

GOOD = """{
  "schema": 2,
  "case": "tiny-native-bfloat16",
  "revision": "0123456789ab",
  "source": "",
  "metrics": {
    "full.graphs": {"gate": "exact", "value": 1}
  },
  "kernels": {}
}
"""
LINE = '{"gate": "exact", "value": 1}'
KEYS = "expected the keys schema, case, revision, source, metrics, kernels"

BROKEN: list[tuple[str, str, str]] = [
    ("not JSON", '{\n  "schema": 2,\n  oops\n}', ":3: expected JSON, found Expecting property name"),
    ("empty", "", ":1: expected JSON, found Expecting value"),
    ("merge conflict", "<<<<<<< HEAD\n" + GOOD, ":1: expected JSON, found Expecting value"),
    (
        "duplicate metric",
        GOOD.replace(LINE, LINE + ',\n    "full.graphs": ' + LINE),
        ":8: expected every name once, found 'full.graphs' twice; remove one of the lines",
    ),
    ("duplicate key", GOOD.replace('"case"', '"schema": 2,\n  "case"'), ":3: expected every name once, found 'schema'"),
    ("list", "[]", f": {KEYS}, found list"),
    ("missing key", GOOD.replace('  "revision": "0123456789ab",\n', ""), f": {KEYS}, found schema, case, source,"),
    ("extra key", GOOD.replace('  "case"', '  "date": 0,\n  "case"'), f":3: {KEYS}, found schema, date"),
    ("older schema", GOOD.replace('"schema": 2', '"schema": 1'), ":2: expected schema 2, found 1"),
    ("metrics as a list", GOOD.replace('{\n    "full.graphs": ' + LINE + "\n  }", "[1]"), ":6: expected metrics as names"),
    ("bare number", GOOD.replace(LINE, "3"), ":7: metric 'full.graphs': expected a gate out of exact, work, budget"),
    ("other gate", GOOD.replace("exact", "about"), ":7: metric 'full.graphs': expected a gate out of exact, work"),
    ("float", GOOD.replace('"value": 1', '"value": 1.5'), ":7: metric 'full.graphs': expected value as an integer or"),
    ("boolean", GOOD.replace('"value": 1', '"value": true'), ":7: metric 'full.graphs': expected value as an integer"),
    ("no value", GOOD.replace(', "value": 1', ""), ":7: metric 'full.graphs': expected value as an integer or text"),
    (
        "unknown word",
        GOOD.replace('"value": 1', '"value": 1, "margin": 0.1'),
        ":7: metric 'full.graphs': expected gate, value, reason on a line with the gate exact, found 'margin'",
    ),
    (
        "quarantine without an end",
        GOOD.replace("exact", "observe"),
        ":7: metric 'full.graphs': expected issue and until on a line that is only observed",
    ),
    (
        "no such day",
        GOOD.replace('"exact"', '"observe", "issue": "x", "until": "2026-02-30"'),
        ":7: metric 'full.graphs': expected until as a date as YYYY-MM-DD, found '2026-02-30'",
    ),
    ("negative margin", GOOD.replace('"exact"', '"work", "margin": -1'), ":7: metric 'full.graphs': expected margin as"),
    ("empty reason", GOOD.replace('"value": 1', '"value": 1, "reason": " "'), ":7: metric 'full.graphs': expected reason"),
    ("kernel", GOOD.replace("{}", '{"full a": 0}'), ":9: kernel 'full a': expected how many there are, found 0"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), [pytest.param(*case, id=name) for name, *case in BROKEN])
def test_broken_file_is_named_with_line_and_remedy(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(BaselineError) as refusal:
        load(path)
    assert str(refusal.value).startswith(f"{path}{message}")
    assert any(remedy in str(refusal.value) for remedy in ("restore it from git", "remove one of the lines"))


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(BaselineError, match=r"expected text.*restore it from git"):
        load(path)


def test_good_file_is_read_and_is_its_own_canonical_text(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(GOOD)
    assert load(path) == Baseline(case=CASE.id, revision="0123456789ab", metrics=exact({"full.graphs": 1}))
    assert dump(load(path)) == GOOD


def test_every_word_of_a_line_survives_reading_and_writing(tmp_path: Path) -> None:
    metrics = {
        "a": Entry(gate="exact", value="0123", reason="two kernels more, faster together"),
        "b": Entry(gate="work", value=10, margin=0.02),
        "c": Entry(gate="budget", value=10, slack=4),
        "d": Entry(gate="ratio", value=0.81, margin=0.3, noise=0.05, sides=(1.5, 2.0)),
        "e": Entry(gate="observe", value=3, until="2027-01-31", issue="https://example.org/1"),
    }
    path = tmp_path / "x.json"
    baseline = Baseline(case="x", revision="y", source="a.py", metrics=metrics, kernels={"full k": 2})
    assert write(path, baseline)
    assert load(path) == baseline
    assert len([line for line in path.read_text().splitlines() if '"gate"' in line]) == len(metrics)


def test_broken_file_does_not_pass_for_a_missing_one(tmp_path: Path) -> None:
    stored(tmp_path).write_text("{")
    found = only(judge(result(), tmp_path))
    assert (found.check, found.status) == ("baseline_file", Status.FAIL)
    assert "restore it from git" in found.summary
    with pytest.raises(BaselineError):  # nor is it written over
        plan(result(), tmp_path, {"new", "fix", "trim"}, "why")


def test_baseline_of_another_case_is_not_taken(tmp_path: Path) -> None:
    # A file copied to another name; a revision does not tell two cases of one builder apart.
    stored(tmp_path, case="other-native-bfloat16")
    found = only(judge(result(), tmp_path))
    assert (found.check, found.status) == ("baseline_file", Status.FAIL)
    assert "expected case tiny-native-bfloat16, found other-native-bfloat16" in found.summary


def test_writing_is_atomic_and_leaves_equal_bytes_alone(tmp_path: Path) -> None:
    path = stored(tmp_path)
    before = path.stat()
    assert not write(path, load(path))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [item.name for item in path.parent.iterdir()] == [path.name]  # no temporary file is left
    assert path.stat().st_mode & 0o777 == 0o644


# Updates

WORSE = COUNTS | {"piecewise.kernels": 9}
BETTER = COUNTS | {"piecewise.kernels": 5}
MORE = COUNTS | {"piecewise.captures": 15}
MIXED = {"full.graphs": 1, "full.kernels": 5, "piecewise.kernels": 6, "piecewise.captures": 15}


def updated(directory: Path, counts: dict[str, int], *kinds: str, reason: str = "") -> dict[str, Any]:
    """The value of every metric after an update."""
    made = plan(result(counts), directory, kinds, reason)
    assert made is not None
    write(made.path, made.baseline)
    return {name: entry.value for name, entry in load(made.path).metrics.items()}


def test_new_makes_a_file_that_is_then_equal(tmp_path: Path) -> None:
    assert updated(tmp_path, COUNTS, "new") == COUNTS
    assert only(judge(result(), tmp_path)).status is Status.PASS


@pytest.mark.parametrize("kinds", [("fix",), ("trim",), ("fix", "trim")])
def test_no_other_kind_makes_a_file(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    assert plan(result(), tmp_path, kinds, "why") is None


@pytest.mark.parametrize(
    ("counts", "kind"), [(MORE, "new"), (WORSE, "fix"), (BETTER, "trim")], ids=["new", "fix", "trim"]
)
def test_each_kind_stores_its_own_and_no_other(tmp_path: Path, counts: dict[str, int], kind: str) -> None:
    stored(tmp_path)
    others = {"new", "fix", "trim"} - {kind}
    assert updated(tmp_path, counts, *others, reason="why") == COUNTS
    assert updated(tmp_path, counts, kind, reason="why") == counts


def test_kinds_together_store_everything_and_leave_out_what_is_gone(tmp_path: Path) -> None:
    stored(tmp_path)
    made = plan(result(MIXED), tmp_path, {"new", "fix", "trim"}, "why")
    assert made is not None
    assert {(item.metric, item.kind, item.before, item.after) for item in made.changes} == {
        ("full.kernels", "fix", 4, 5),
        ("piecewise.captures", "new", None, 15),
        ("piecewise.kernels", "trim", 7, 6),
        ("piecewise.pieces", "fix", 3, None),
    }
    assert updated(tmp_path, MIXED, "new", "fix", "trim", reason="why") == MIXED


def test_reason_lies_beside_what_was_fixed_alone_until_that_gets_better(tmp_path: Path) -> None:
    path = stored(tmp_path)
    updated(tmp_path, MORE | WORSE, "new", "fix", reason="a fused epilogue was split")
    reasons = {name: entry.reason for name, entry in load(path).metrics.items() if entry.reason}
    assert reasons == {"piecewise.kernels": "a fused epilogue was split"}
    updated(tmp_path, MORE | BETTER, "trim")
    assert load(path).metrics["piecewise.kernels"] == Entry(gate="exact", value=5)


def test_what_people_wrote_on_a_line_survives_new_values(tmp_path: Path) -> None:
    held = {
        "full.kernels": Entry(gate="observe", value=4, until="2999-01-01", issue="X-1"),
        "full.graphs": Entry(gate="budget", value=1, slack=3),
    }
    path = stored(tmp_path, metrics=exact(COUNTS) | held, revision="ffffffffffff")
    updated(tmp_path, COUNTS | {"full.kernels": 8}, "new")
    lines = load(path).metrics
    assert lines["full.kernels"] == Entry(gate="observe", value=8, until="2999-01-01", issue="X-1")
    assert lines["full.graphs"] == Entry(gate="budget", value=1, slack=3)


def test_fix_of_an_ended_quarantine_ends_it_in_the_file(tmp_path: Path) -> None:
    ended = Entry(gate="observe", value=4, until="2020-01-01", issue="X-1")
    path = stored(tmp_path, metrics=exact(COUNTS) | {"full.kernels": ended})
    updated(tmp_path, COUNTS | {"full.kernels": 8}, "fix", reason="why")
    assert load(path).metrics["full.kernels"] == Entry(gate="exact", value=8, reason="why")


def test_unchanged_case_is_not_rewritten_even_if_the_file_is_not_canonical(tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text())))
    made = plan(result(), tmp_path, {"new", "fix", "trim"}, "why")
    assert made is not None
    assert made.changes == ()


def test_source_is_the_file_of_the_model_within_the_project(tmp_path: Path) -> None:
    inside = result(case=replace(CASE, file=str(tmp_path / "tests" / "test_x.py")))
    for case, source in ((inside, "tests/test_x.py"), (result(), "")):
        made = plan(case, tmp_path / "baselines", {"new"}, root=tmp_path)
        assert made is not None
        assert made.baseline.source == source


@pytest.mark.parametrize("changes", [{"platform": ""}, {"builds": ()}], ids=["no platform", "no builds"])
def test_nothing_to_store_plans_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert plan(result(**changes), tmp_path, {"new"}) is None
