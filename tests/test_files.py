"""Reports as files: Markdown and JUnit, merged shards, the command that makes them, and what hostile text does to them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from pytest_piecewise.cli import main
from pytest_piecewise.errors import ReportError
from pytest_piecewise.records import Report, Status, to_plain
from pytest_piecewise.reports import document, html, junit, markdown
from pytest_piecewise.reports.tables import side_by_side
from pytest_piecewise.reports.terminal import failure_text, finding_lines, summary_table
from tests.reported import HOSTILE, RUN, builds, hostile_report, large_report, report, result, trend

BROKEN = report(result("sound"), result("broken", broken=True))
hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())


def read(rendered: str) -> list[tuple[str, str]]:
    """What a reader of GitHub's dialect makes of it: kinds of tokens with their content. HTML is passed through."""
    reader = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")
    tokens = [inner for token in reader.parse(rendered) for inner in (token, *(token.children or ()))]
    return [(token.type, token.content or str(token.attrGet("href") or token.attrGet("src") or "")) for token in tokens]


# Markdown


def test_markdown_has_failures_first_with_detail_and_remedy() -> None:
    text = markdown.render(BROKEN)
    assert text.startswith("## piecewise: 1 failed, 1 passed\n")
    assert text.index("| broken-native-float32 | **FAIL** | equivalence |") < text.index(
        "| sound-native-float32 | **PASS** |"
    )
    kinds = [kind for kind, _ in read(text)]
    assert kinds.count("tr_open") == 3
    assert ("text", "broken-native-float32") in read(text)
    assert any(kind == "fence" and "padded, size 3\npadded, size 5" in content for kind, content in read(text))
    assert "  → the seed, size and phase above repeat it" in text


def test_markdown_says_that_a_run_was_interrupted() -> None:
    assert "This run was interrupted" in markdown.render(replace(BROKEN, complete=False))
    assert "interrupted" not in markdown.render(BROKEN)


def test_markdown_has_regressions_of_the_history() -> None:
    text = markdown.render(report(result("tiny"), trends=(trend("tiny-native-float32", "full", "compile", step=True),)))
    assert "- tiny-native-float32/full/compile: +17 % at 4fa01c2, p 1e-09; now" in text
    assert "torch 2.12.0" not in text


@pytest.mark.parametrize("limit", [2_000, 10_000, 30_000])
def test_markdown_is_cut_between_parts_and_says_so(limit: int) -> None:
    many = replace(large_report(40), results=tuple(result(f"größe-{index}", broken=True) for index in range(150)))
    text = markdown.render(many, limit)
    assert len(text.encode()) <= limit
    assert re.search(r"further part\(s\) did not fit", text)
    assert text.count("<details>") == text.count("</details>")
    assert len(markdown.render(many).encode()) <= 1024 * 1024


def test_markdown_links_to_the_build_and_the_page_alone() -> None:
    text = markdown.render(large_report(), page="artifact://report.html")
    assert [content for kind, content in read(text) if kind == "link_open"] == ["artifact://report.html", RUN.url]


@hostile
def test_hostile_text_is_only_text_in_markdown(text: str) -> None:
    rendered = markdown.render(hostile_report(text))
    assert len(rendered.encode()) < 200_000
    tokens = read(rendered)
    assert not {kind for kind, _ in tokens} & {"link_open", "image", "html_inline"}
    tags = {part for kind, content in tokens if kind == "html_block" for part in re.findall(r"<[^>]*>", content)}
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>"}
    outside = re.sub(r"(?s)^(`{3,})\n.*?^\1$", "", rendered, flags=re.MULTILINE)
    assert "://" not in outside
    assert "www." not in outside
    assert rendered.isprintable() or not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", rendered)


# JUnit


def test_junit_has_a_test_per_case_with_metrics_verdict_and_failure() -> None:
    suite = ElementTree.fromstring(junit.render(BROKEN))[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "2", "failures": "1", "errors": "0", "skipped": "0", "time": "25.000",
    }  # fmt: skip
    broken, sound = suite.findall("testcase")
    assert (broken.get("name"), broken.get("classname")) == ("broken-native-float32", "piecewise.native.cpu")
    failure = broken.find("failure")
    assert failure is not None
    assert failure.get("message") == "equivalence: padded, size 3: output[1, 79] found 0.07, expected -0.03"
    assert "-> the seed, size and phase above repeat it" in (failure.text or "")
    assert sound.find("failure") is None
    properties = {item.get("name"): item.get("value") for item in sound.iter("property")}
    assert properties["piecewise.verdict"] == "PASS"
    assert properties["piecewise.full.compile"] == "3.4"
    assert properties["piecewise.piecewise.kernels"] == "14"


def test_junit_says_why_a_case_was_skipped() -> None:
    made = result("tiny")
    skipped = replace(made, findings=tuple(item for item in made.findings if item.status is Status.SKIP))
    (case,) = ElementTree.fromstring(junit.render(report(skipped))).iter("testcase")
    skip = case.find("skipped")
    assert skip is not None
    assert skip.get("message") == "nothing gates it yet"


@hostile
def test_hostile_text_leaves_junit_well_formed(text: str) -> None:
    rendered = junit.render(hostile_report(text))
    assert len(rendered.encode()) < 200_000
    root = ElementTree.fromstring(rendered)
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "testcase", "properties", "property", "failure", "skipped",
    }  # fmt: skip
    assert "\x1b" not in rendered
    assert "\0" not in rendered


# All kinds


@hostile
def test_hostile_text_reaches_no_terminal(text: str) -> None:
    made = hostile_report(text)
    lines = summary_table(made.results)
    for item in made.results:
        lines += failure_text(item, item.findings, "pytest").splitlines()
        lines += [line for finding in item.findings for line in finding_lines(finding)]
    assert all(line.isprintable() for line in lines)
    assert sum(map(len, lines)) < 400_000
    assert not [line for line in lines if line.lstrip().startswith(("::", "##["))]


@hostile
def test_hostile_text_is_written_and_read_again(text: str, tmp_path: Path) -> None:
    document.write(hostile_report(text[:100_000]), tmp_path)  # it is there some thirty times
    arguments = [f"--{kind}={tmp_path / kind}" for kind in ("html", "markdown", "junit")]
    assert main(["report", str(tmp_path), *arguments]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "html", "markdown", "junit"}
    for path in tmp_path.iterdir():
        path.read_bytes().decode("utf-8")


def test_page_of_many_cases_with_history_is_below_a_megabyte() -> None:
    assert len(html.render(large_report()).encode()) < 1_000_000


def test_page_of_no_case_says_so() -> None:
    assert "no case was run" in html.render(report())
    assert "no case was run" in markdown.render(report())
    assert ElementTree.fromstring(junit.render(report()))[0].get("tests") == "0"


def test_variants_are_side_by_side_with_the_ratio_of_the_last_two() -> None:
    rows = {label: (cells, ratio) for label, cells, ratio in side_by_side(result("tiny"))}
    assert rows["compile s"] == (["", "3.40", "2.90"], "0.85")
    assert rows["kernels"] == (["", "10", "14"], "1.40")
    assert rows["peak memory"] == (["333.8 MiB"] * 3, "1.00")
    assert "captures" not in rows
    assert builds()


# The command


def test_shards_become_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = replace(RUN, started="2026-12-01T04:00:00Z")
    first = report(result("a"), result("retried", broken=True))
    second = replace(report(result("b"), result("retried")), run=later, complete=False)
    document.write(first, tmp_path / "1")
    document.write(second, tmp_path / "2")
    places = [str(tmp_path / "2"), str(tmp_path / "1" / "report.json")]
    assert main(["report", *places, "--json", str(tmp_path / "all")]) == 0
    merged = document.read(tmp_path / "all")
    assert [(item.case.name, str(item.status)) for item in merged.results] == [
        ("a", "PASS"),
        ("b", "PASS"),
        ("retried", "PASS"),
    ]
    assert merged.complete is False


def test_report_without_an_option_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document.write(BROKEN, tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == summary_table(BROKEN.results)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "expected a report at .*report.json, found No such file or directory; `pytest --piecewise"),
        ("{", "expected JSON"),
        ("[]", "expected a report of schema 1, found None"),
        ('{"schema": 99}', "expected a report of schema 1, found 99"),
        ('{"schema": 1, "results": [{"case": 3}]}', "expected what `pytest-piecewise schema` describes"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(ReportError, match=said):
        document.read(tmp_path)


def test_invalid_utf8_in_a_report_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = json.dumps(to_plain(BROKEN)).encode().replace(b"sound", b"s\xffund")
    (tmp_path / "report.json").write_bytes(data)
    assert [item.case.name for item in document.read(tmp_path).results] == ["s\ufffdund", "broken"]


def test_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document.write(BROKEN, tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "file" / "x.html")]) == 2
    assert "x.html: " in capsys.readouterr().err


def test_page_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ReportError, match=r"pip install 'pytest-piecewise\[report\]'"):
        html.render(Report(tier="full", complete=True, environment={}, results=()))
