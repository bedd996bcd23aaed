"""Records -> JUnit XML: a test case per case, its metrics and verdict as properties, failures with their findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from pytest_piecewise.records import CaseResult, Report, Status
from pytest_piecewise.reports.tables import bounded, cut, facts, ranked, variants, worst_first
from pytest_piecewise.reports.terminal import finding_lines

LIMIT = 20_000
"""Most characters of one failure."""
# What XML 1.0 cannot hold, escaped or not: control characters, halves of surrogate pairs, and two that are no characters.
UNFIT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """The document."""
    report = bounded(report)
    results = worst_first(report.results)
    suite = ElementTree.Element(
        "testsuite",
        name="piecewise",
        tests=str(len(results)),
        failures=str(sum(result.status is Status.FAIL for result in results)),
        errors="0",
        skipped=str(sum(result.status is Status.SKIP for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
        timestamp=fit(report.run.started.removesuffix("Z")),
    )
    _properties(suite, dict(facts(report)))
    for result in results:
        _case(suite, result)
    suites = ElementTree.Element("testsuites", name="piecewise")
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, result: CaseResult) -> None:
    case = result.case
    made = ElementTree.SubElement(
        suite,
        "testcase",
        classname=fit(f"piecewise.{case.engine}.{case.device}"),
        name=fit(cut(case.id, 300)),
        time=f"{result.seconds:.3f}",
    )
    _properties(made, dict(properties(result)))
    failed = [item for item in ranked(result.findings) if item.status is Status.FAIL]
    if failed:
        message = "; ".join(dict.fromkeys(f"{item.check}: {item.summary}" for item in failed))
        failure = ElementTree.SubElement(made, "failure", message=fit(cut(message, 1000)))
        failure.text = fit(cut("\n".join(line for item in failed for line in finding_lines(item)), LIMIT))
    elif result.status is Status.SKIP:
        reasons = "; ".join(dict.fromkeys(item.summary for item in result.findings))
        ElementTree.SubElement(made, "skipped", message=fit(cut(reasons, 1000)))


def properties(result: CaseResult) -> Iterator[tuple[str, str]]:
    """Verdict and metrics of a case, by name."""
    yield "piecewise.verdict", str(result.status)
    yield "piecewise.platform", fit(cut(result.platform, 200))
    for build in variants(result):
        for metric in build.metrics:
            yield fit(cut(f"piecewise.{build.variant}.{metric.name}", 200)), f"{metric.value:.6g}"


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=fit(cut(name, 200)), value=fit(cut(value, 1000)))


def fit(text: str) -> str:
    """Text that XML can hold."""
    return UNFIT.sub("\ufffd", text)
