"""The results that steps owe: what makes one unusable, what they say together, and how that is published."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pytest_piecewise.ci.agent import ANNOTATION_BYTES
from pytest_piecewise.ci.model import PipelineError
from pytest_piecewise.ci.publish import expected_from, report
from pytest_piecewise.ci.results import judge, read_owed
from pytest_piecewise.records import Case, CaseResult, Finding, Report, Selection, Status, to_plain

PASS = Finding(check="equivalence", status=Status.PASS, variant="full", summary="agree")
WRONG = Finding(check="equivalence", status=Status.FAIL, variant="piecewise", summary="<b>x|y` off & out\nby one")
COST = Finding(check="cost", status=Status.FAIL, variant="piecewise", summary="1.4 x full")
NEW = Finding(check="baseline", status=Status.NEW, summary="no baseline")
SKIP = Finding(check="build", status=Status.SKIP, summary="vLLM is not installed")


def result(name: str, *findings: Finding) -> CaseResult:
    return CaseResult(
        case=Case(model="m:M", name=name),
        seed=0,
        platform="cpu",
        revision="",
        graph_kind="",
        findings=findings,
        builds=(),
    )


def whole(*results: CaseResult) -> Report:
    return Report(tier="fastcheck", complete=True, environment={}, results=results)


def put(folder: Path, name: str, made: Report | str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made if isinstance(made, str) else json.dumps(to_plain(made)))
    return name


GOOD = whole(result("a", PASS))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "missing"),
        ("", "cannot be read: expected JSON"),
        ('{"schema": 1', "cannot be read: expected JSON"),
        ("[]", "cannot be read: expected"),
        ("{}", "cannot be read: expected a report of schema"),
        ('{"schema": 1, "results": 3}', "cannot be read: expected"),
        ('{"schema": 99}', "expected a report of schema 1, found 99"),
        ("\0\1", "cannot be read"),
        (dataclasses.replace(GOOD, complete=False), "unfinished: the session ended early, after 1 case"),
        (whole(), "empty: no case was checked"),
        (dataclasses.replace(GOOD, exit_code=1), "the session ended with exit code 1, though no case failed"),
        (dataclasses.replace(GOOD, exit_code=12), "the session ended with exit code 12"),
        (whole(result("a", SKIP), result("b", SKIP)), "nothing was checked: all 2 case"),
    ],
)
def test_unusable_result_is_an_error(made: Report | str | None, says: str, tmp_path: Path) -> None:
    good = put(tmp_path, "good.json", GOOD)
    if made is not None:
        put(tmp_path, "bad.json", made)
    found = read_owed(tmp_path, [good, "bad.json"])
    assert [item.problem == "" for item in found] == [True, False]
    assert says in found[1].problem
    verdict = judge(found)
    assert verdict.style == "error"
    assert "| `bad.json` | " in verdict.text


def shard(text: str, split: str, *results: CaseResult) -> Report:
    chosen = Selection(collected=4, touched=4, chosen=len(results), shard=text, split=split)
    return dataclasses.replace(whole(*results), selection=chosen)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (shard("2/2", "abc", result("b", PASS)), ""),
        (shard("2/2", "xyz", result("b", PASS)), "shard 1/2 is of split abc, another of xyz: tests were lost"),
        (shard("1/2", "abc", result("b", PASS)), "shard 1/2, but 1 of 2 shards are here"),
        (shard("2/3", "abc", result("b", PASS)), "shard 2/3, but 2 of 3 shards are here"),
    ],
)
def test_shards_of_a_step_have_to_make_a_whole(second: Report, says: str, tmp_path: Path) -> None:
    names = [
        put(tmp_path, "full/0/report.json", shard("1/2", "abc", result("a", PASS))),
        put(tmp_path, "full/1/report.json", second),
        put(tmp_path, "other/0/report.json", shard("1/1", "123", result("a", PASS))),
    ]
    text = judge(read_owed(tmp_path, names)).text
    assert (says in text, "all passed" in text) == (True, not says), text


def test_empty_selection_is_good_only_where_it_was_allowed(tmp_path: Path) -> None:
    for allowed, style in ((True, "success"), (False, "error")):
        chosen = Selection(changed_files=1, collected=3, empty_allowed=allowed)
        name = put(tmp_path, "a.json", dataclasses.replace(whole(), selection=chosen))
        assert judge(read_owed(tmp_path, [name])).style == style
    chosen = Selection(changed_files=1, empty_allowed=True)
    name = put(tmp_path, "a.json", dataclasses.replace(whole(), selection=chosen))
    assert judge(read_owed(tmp_path, [name])).style == "error", "nothing was collected at all"


@pytest.mark.parametrize(
    ("findings", "style", "says"),
    [
        ([PASS], "success", "**1 result(s)**: all passed"),
        ([PASS, SKIP], "success", "all passed"),
        ([PASS, WRONG], "error", "1 case(s) failing"),
        ([PASS, WRONG, COST], "error", "1 case(s) failing"),
        ([PASS, COST], "warning", "1 case(s) with changed cost"),
        ([PASS, NEW], "warning", "1 case(s) with changed cost"),
    ],
)
def test_verdict(findings: list[Finding], style: str, says: str, tmp_path: Path) -> None:
    verdict = judge(read_owed(tmp_path, [put(tmp_path, "a.json", whole(result("a", *findings)))]))
    assert (verdict.style, says in verdict.text) == (style, True), verdict.text


def test_text_of_findings_is_nothing_but_text(tmp_path: Path) -> None:
    text = judge(read_owed(tmp_path, [put(tmp_path, "a.json", whole(result("a", WRONG)))])).text
    assert "<b>" not in text
    assert r"&lt;b&gt;x\|y\` off &amp; out" in text


def test_text_fits_into_an_annotation(tmp_path: Path) -> None:
    many = [result(f"m{index}", dataclasses.replace(WRONG, summary="ü" * 700)) for index in range(2000)]
    text = judge(read_owed(tmp_path, [put(tmp_path, "a.json", whole(*many)), "missing.json"])).text
    assert 900_000 < len(text.encode()) <= ANNOTATION_BYTES
    assert "further part(s) did not fit" in text
    assert "| `missing.json` |" in text


def test_report_of_a_folder_ends_with_1_only_for_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, made, code in (
        ("good", GOOD, 0),
        ("cost", whole(result("a", PASS, COST)), 0),
        ("bad", whole(result("a", WRONG)), 1),
    ):
        assert report({}, [put(tmp_path, name, made)], tmp_path, tmp_path / "out") == code
    assert report({}, ["none"], tmp_path, tmp_path / "none") == 1
    assert "missing" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.json", "report.html", "report.md", "junit.xml"}
    assert not (tmp_path / "none").exists()


def test_summary_for_github_is_appended(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    assert (
        report({"GITHUB_STEP_SUMMARY": str(summary)}, [put(tmp_path, "a.json", GOOD)], tmp_path, tmp_path / "out") == 0
    )
    assert summary.read_text().startswith("before\n**1 result(s)**: all passed")


def test_what_cannot_be_published_changes_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"GITHUB_STEP_SUMMARY": str(tmp_path / "no/such/directory.md")}
    assert report(environ, [put(tmp_path, "a.json", GOOD)], tmp_path, tmp_path / "out") == 0
    assert "not published" in capsys.readouterr().err


def test_results_come_from_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="--from DIR"):
        report({"BUILDKITE": "true"}, ["a"], None, tmp_path)
    with pytest.raises(PipelineError, match="found neither"):
        expected_from({}, [], "V")
    assert expected_from({"V": "a b"}, [], "V") == ["a", "b"]
    assert expected_from({"V": "a b"}, ["c"], "V") == ["c"]
