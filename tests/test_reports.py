"""What people and other programs read: the table, a failing test's text, report.json."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_piecewise import Case, CaseResult, Finding, Status
from pytest_piecewise.records import BuildRecord, Comparison, Counts, Metric, Report, from_plain
from pytest_piecewise.reports import document
from pytest_piecewise.reports.terminal import clean, failure_text, finding_lines, summary_table


def finding(check: str, status: Status, variant: str = "", **changes: Any) -> Finding:
    return Finding(**({"check": check, "status": status, "variant": variant, "summary": f"{check} said so"} | changes))


def comparison(variant: str, ratio: float) -> Comparison:
    return Comparison(
        check="equivalence",
        axis="budget",
        variant=variant,
        against="float64",
        call=0,
        phase="first",
        size=8,
        output="o",
        ok=ratio <= 1,
        elements=1,
        ratio=ratio,
    )


def result(name: str, *findings: Finding, **changes: Any) -> CaseResult:
    builds = (
        BuildRecord(variant="eager", outcome="ok"),
        BuildRecord(
            variant="full",
            outcome="ok",
            counts=Counts(pieces=1, distinct_pieces=1),
            metrics=(Metric(name="compile", kind="seconds", value=12.345),),
        ),
        BuildRecord(
            variant="piecewise",
            outcome="ok",
            counts=Counts(pieces=7, distinct_pieces=3),
            metrics=(Metric(name="compile", kind="seconds", value=4.0),),
            graph_kind="recorded graphs",
        ),
        BuildRecord(variant="reference", outcome="ok"),
    )
    made = CaseResult(
        case=Case(model=f"m:{name}", name=name),
        seed=3,
        platform="cpu",
        revision="r",
        graph_kind="recorded graphs",
        findings=findings,
        builds=builds,
        comparisons=(comparison("full", 0.25), comparison("full", 0.5), comparison("piecewise", 0.125)),
    )
    return replace(made, **changes)


PASS, FAIL = Status.PASS, Status.FAIL


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_table_has_a_row_per_case_and_variant() -> None:
    lines = summary_table([result("tiny", finding("pieces", PASS, "piecewise"))])
    assert [cells(line) for line in lines] == [
        ["case", "variant", "pieces", "compile s", "capture s", "pool MiB", "error/budget", "verdict"],
        ["tiny-native-float32", "eager", "ok"],
        ["tiny-native-float32", "full", "1 (1)", "12.35", "0.5", "ok"],
        ["tiny-native-float32", "piecewise", "7 (3)", "4.00", "recorded", "0.125", "ok"],
    ]


def test_columns_line_up() -> None:
    lines = summary_table([result("tiny"), result("a-much-longer-name", finding("pieces", FAIL, "full"))])
    start = lines[0].index("verdict")
    assert all(line[start:].startswith(("ok", "FAIL", "verdict")) for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_time_of_cuda_captures_and_their_pool_are_shown() -> None:
    build = BuildRecord(
        variant="piecewise",
        outcome="ok",
        graph_kind="cuda graphs",
        metrics=(
            Metric(name="capture", kind="seconds", value=1.5),
            Metric(name="graph_pool", kind="bytes", value=3 * 2**20),
        ),
    )
    line = summary_table([result("tiny", builds=(build,), comparisons=())])[1]
    assert cells(line) == ["tiny-native-float32", "piecewise", "1.50", "3.0", "ok"]


def test_failures_come_first_then_new_then_stale() -> None:
    results = [
        result("a-passes", finding("pieces", PASS)),
        result("b-skips", finding("pieces", Status.SKIP)),
        result("c-is-stale", finding("baseline", Status.STALE)),
        result("d-is-new", finding("baseline", Status.NEW)),
        result("e-fails", finding("pieces", FAIL)),
        result("f-fails", finding("pieces", FAIL)),
    ]
    lines = summary_table(results)
    rows = [line for line in lines[1:] if not line.startswith(("NEW", "STALE"))]
    order = list(dict.fromkeys(cells(line)[0].removesuffix("-native-float32") for line in rows))
    assert order == ["e-fails", "f-fails", "d-is-new", "c-is-stale", "a-passes", "b-skips"]


def test_verdict_names_the_checks_that_failed_where_they_failed() -> None:
    findings = (
        finding("graph_breaks", FAIL, "full"),
        finding("padding", FAIL, "piecewise"),
        finding("bits_graphs", FAIL, "piecewise"),
        finding("padding", FAIL, "piecewise"),
        finding("baseline", FAIL),
        finding("pieces", PASS, "piecewise"),
    )
    lines = summary_table([result("tiny", *findings)])
    assert [cells(line)[-1] for line in lines[1:]] == [
        "ok",
        "FAIL graph_breaks",
        "FAIL padding, bits_graphs, baseline",
    ]


def test_what_is_said_of_the_whole_case_stands_in_its_last_row() -> None:
    lines = summary_table([result("tiny", finding("baseline", Status.NEW))])
    assert [cells(line)[-1] for line in lines[1:4]] == ["ok", "ok", "NEW"]
    assert lines[4].startswith("NEW: tiny-native-float32: ")


def test_infinite_ratio_is_shown_as_the_worst() -> None:
    comparisons = (comparison("full", 0.5), comparison("full", math.inf))
    assert "inf" in summary_table([result("tiny", comparisons=comparisons)])[2]


def test_infinite_ratio_is_still_the_worst_after_it_has_travelled(tmp_path: Path) -> None:
    # A shape mismatch must not turn into an empty or small number on its way through JSON.
    comparisons = (comparison("full", math.inf), comparison("full", 0.5))
    report = Report(tier="full", complete=True, environment={}, results=(result("tiny", comparisons=comparisons),))
    data = json.loads(document.write(report, tmp_path).read_text())
    line = summary_table(from_plain(Report, data).results)[2]
    assert "0.5" not in cells(line)


def test_finding_is_told_with_detail_and_action() -> None:
    item = finding("pieces", FAIL, "full", summary="one piece", detail="line 1\nline 2", action="split it")
    assert list(finding_lines(item)) == [
        "FAIL pieces (full): one piece",
        "    line 1",
        "    line 2",
        "    -> split it",
    ]


def test_detail_that_repeats_the_summary_is_left_out() -> None:
    item = finding("pieces", FAIL, summary="one piece", detail="one piece\nanother line")
    assert list(finding_lines(item)) == ["FAIL pieces: one piece", "    another line"]


def test_detail_that_is_cut_says_so() -> None:
    item = finding("pieces", FAIL, detail="\n".join(f"line {index}" for index in range(500)))
    lines = list(finding_lines(item))
    assert len(lines) < 60
    assert any("500" in line or "more" in line or "..." in line for line in lines)


def test_failing_test_shows_failures_first_and_how_to_repeat_them() -> None:
    findings = (
        finding("graphs", PASS, "full"),
        finding("cost", Status.SKIP, summary="not gated"),
        finding("baseline", Status.STALE, summary="fewer kernels"),
        finding("pieces", FAIL, "piecewise", summary="one piece", action="split it"),
    )
    assert failure_text(result("tiny", *findings), findings, "pytest --piecewise x") == "\n".join(
        [
            "pieces of tiny-native-float32 on cpu, seed 3:",
            "FAIL pieces (piecewise): one piece",
            "    -> split it",
            "STALE baseline: fewer kernels",
            "1 other checks passed",
            "SKIP cost: not gated",
            "repeat: pytest --piecewise x",
        ]
    )


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain text", "plain text"),
        ("\x1b[31mred\x1b[0m", " [31mred [0m"),
        ("a\rb", "a b"),
        ("a\nb\tc", "a b c"),
        ("\x07bell \x9b31m", " bell  31m"),
        ("zero\u200bwidth and \u202eright to left", "zero width and  right to left"),
        ("3 \u00d7 \u00e9", "3 \u00d7 \u00e9"),
    ],
)
def test_control_characters_are_cleaned(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_nothing_that_a_build_printed_reaches_the_terminal_raw() -> None:
    item = finding(
        "build", FAIL, "full", summary="\x1b[2Jgone", detail="\x1b]0;title\x07x\nsecond", action="see\x1b[1A"
    )
    text = "\n".join([*finding_lines(item), failure_text(result("tiny", item), [item], "pytest")])
    assert "\x1b" not in text
    assert "\x07" not in text


REPORT = Report(
    tier="full", complete=False, environment={"torch": "2.13"}, results=(result("tiny", finding("pieces", PASS)),)
)


def test_document_holds_the_report(tmp_path: Path) -> None:
    path = document.write(REPORT, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.json"
    assert from_plain(Report, json.loads(path.read_text())) == REPORT


def test_document_is_replaced_whole(tmp_path: Path) -> None:
    path = document.write(REPORT, tmp_path)
    with path.open() as reader:  # someone who began to read the old one
        document.write(replace(REPORT, complete=True), tmp_path)
        assert json.loads(reader.read())["complete"] is False
    assert json.loads(path.read_text())["complete"] is True
    assert [item.name for item in tmp_path.iterdir()] == ["report.json"]


def test_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = document.write(REPORT, tmp_path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        document.write(replace(REPORT, environment={"torch": object()}), tmp_path)  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["report.json"]


def test_document_is_json_for_everybody(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    comparisons = (comparison("full", math.inf), comparison("full", math.nan))
    report = replace(REPORT, results=(result("tiny", comparisons=comparisons),))
    json.loads(document.write(report, tmp_path).read_text(), parse_constant=refuse)
