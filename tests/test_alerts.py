"""Steps in series, alerts of a history, and what people and programs are told of them."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_piecewise.alerts import acknowledged, texts
from pytest_piecewise.alerts.acknowledged import Acknowledgement
from pytest_piecewise.alerts.grouping import Findings, Kind, find_alerts
from pytest_piecewise.alerts.rules import State
from pytest_piecewise.alerts.steps import find_steps
from pytest_piecewise.alerts.trends import trend_of, with_trends
from pytest_piecewise.cli import main
from pytest_piecewise.errors import HistoryError
from pytest_piecewise.history.series import Point, Sample, Trace
from pytest_piecewise.history.series import text as series_text
from pytest_piecewise.history.store import History
from tests.nights import after, night, noisy, series, trace
from tests.reported import HOSTILE, report, result
from tests.running import ROOT

COMPILE, KERNELS = series("compile"), series("kernels", "count")


def places(values: list[float]) -> list[int]:
    return [step.index for step in find_steps(values)]


# Steps


def test_step_is_found_where_it_is_with_its_size() -> None:
    (step,) = find_steps(noisy(80, step=(50, 0.10)))
    assert step.index == 50
    assert step.change == pytest.approx(0.10, abs=0.02)
    assert step.p < 1e-9
    assert not step.fast


def test_level_that_does_not_change_has_no_step() -> None:
    assert [places(noisy(80, seed=seed)) for seed in range(20)] == [[]] * 20


def test_step_needs_three_points_unless_it_is_large_and_seen_twice() -> None:
    assert places(noisy(62, step=(60, 0.10))) == []
    assert places(noisy(63, step=(60, 0.10))) == [60]
    assert places(noisy(61, step=(60, 0.50))) == []
    (fast,) = find_steps(noisy(62, step=(60, 0.50)))
    assert (fast.index, fast.fast, math.isnan(fast.p)) == (60, True, True)


def test_two_spikes_of_unlike_height_are_no_step() -> None:
    values = noisy(60)
    assert places([*values, 4.5, 9.0]) == []
    assert places([*values, 6.0, 6.2]) == [60]


def test_single_spikes_are_no_steps_and_hide_none() -> None:
    values = noisy(80, step=(60, 0.10))
    for spike in (10, 20, 45, 70):
        values[spike] *= 1.8
    assert places(values) == [60]
    assert places(values[:60]) == []


def test_change_below_three_percent_is_none_however_sure() -> None:
    assert places(noisy(200, deviation=0.001, step=(100, 0.025))) == []
    assert places(noisy(200, deviation=0.001, step=(100, 0.035))) == [100]


def test_change_below_twice_the_spread_is_none() -> None:
    assert places(noisy(200, deviation=0.05, step=(100, 0.06))) == []
    assert places(noisy(200, deviation=0.05, step=(100, 0.15))) == [100]


def test_several_steps_and_way_back_are_all_found() -> None:
    values = [*noisy(30), *noisy(30, level=3.6, seed=1), *noisy(30, seed=2)]
    found = find_steps(values)
    assert [step.index for step in found] == [30, 60]
    assert [round(step.change, 1) for step in found] == [0.2, -0.2]


def test_from_nothing_to_something_is_a_step_although_there_is_no_ratio() -> None:
    (step,) = find_steps([0.0] * 20 + [3.0] * 3)
    assert (step.index, step.before, step.after, step.change, step.size) == (20, 0.0, 3.0, math.inf, math.inf)
    assert places([0.0] * 30) == []
    assert places([0.0] * 20 + [3.0] + [0.0] * 9) == []


def test_counts_without_noise_have_steps_from_the_floor_on() -> None:
    assert places([62.0] * 20 + [63.0] * 10) == []
    assert places([62.0] * 20 + [70.0] * 3) == [20]
    assert places([62.0] * 20 + [70.0] * 2) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 5, [0.0, 0.0]])
def test_too_few_points_have_no_step(values: list[float]) -> None:
    assert find_steps(values) == []


def test_thousand_points_of_500_series_take_less_than_30_seconds() -> None:
    random = np.random.default_rng(0)
    values = np.exp(0.02 * random.standard_normal((500, 1000)))
    values[::10, 600:] *= 1.1
    start = time.monotonic()
    found = [find_steps(row) for row in values]
    assert time.monotonic() - start < 30
    assert [steps[0].index for steps in found[::10]] == pytest.approx([600] * 50, abs=1)
    assert sum(map(len, found)) == 50


def rates() -> Any:
    spec = importlib.util.spec_from_file_location("alert_rates", ROOT / "scripts" / "alert_rates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["alert_rates"] = module
    spec.loader.exec_module(module)
    return module


def test_simulated_nights_are_quiet_and_steps_are_found_in_three() -> None:
    # docs/history.md has the figures of many more nights, and of drift, which is not quiet.
    module = rates()
    for name in ("Gaussian 2 %", "log-normal 5 %", "two machine kinds, one series each"):
        assert module.false_nights(module.NOISES[name], series=5, nights=40) == 0, name
    # Two spikes of one height in a row are a matter of luck: 0.04 % of nights, and here one of 200.
    assert module.false_nights(module.NOISES["2 %, spikes on 3 % of nights"], series=5, nights=40) <= 1 / 200
    assert module.found_within(module.NOISES["Gaussian 2 %"], 0.10, 40, (3,)) == [1.0]
    assert module.found_within(module.NOISES["Gaussian 2 %"], 0.30, 40, (2,)) == [1.0]
    assert module.found_within(module.NOISES["Gaussian 2 %"], 0.0, 40, (3,)) == [0.0]


# Alerts


def found(*traces: Trace, nights: int = 80, known: tuple[Acknowledgement, ...] = ()) -> Findings:
    return find_alerts(traces, after(nights), known)


def test_regression_names_its_commits() -> None:
    (alert,) = found(trace(COMPILE, noisy(80, step=(60, 0.10)))).alerts
    assert (alert.kind, alert.place, alert.last_before.commit) == (Kind.REGRESSION, "commit060", "commit059")
    assert [change.series.name for change in alert.changes] == ["tiny/full/compile"]


@pytest.mark.parametrize(
    ("metric", "kind", "step", "expected"),
    [
        ("compile", "seconds", 0.2, Kind.REGRESSION),
        ("compile", "seconds", -0.2, Kind.IMPROVEMENT),
        ("graph_pool", "bytes", 0.2, Kind.REGRESSION),
        ("kv_cache_blocks", "capacity", -0.2, Kind.REGRESSION),
        ("kv_cache_blocks", "capacity", 0.2, Kind.IMPROVEMENT),
        ("kernels", "count", -0.2, Kind.IMPROVEMENT),
        ("captures", "count", -0.2, Kind.REGRESSION),
        ("captures", "count", 0.2, Kind.REGRESSION),
    ],
)
def test_direction_of_a_change_depends_on_what_is_measured(metric: str, kind: str, step: float, expected: Kind) -> None:
    (alert,) = found(trace(series(metric, kind), noisy(80, deviation=0, step=(60, step)))).alerts
    assert alert.kind is expected


def test_regression_that_has_gone_stands_no_more() -> None:
    values = [*noisy(30), *noisy(30, level=3.6, seed=1), *noisy(20, seed=2)]
    kinds = [alert.kind for alert in found(trace(COMPILE, values)).alerts]
    assert kinds == [Kind.RETURNED, Kind.IMPROVEMENT]
    partly = [*noisy(30), *noisy(30, level=3.9, seed=1), *noisy(20, level=3.4, seed=2)]
    kinds = [alert.kind for alert in found(trace(COMPILE, partly)).alerts]
    assert kinds == [Kind.REGRESSION, Kind.IMPROVEMENT]


def test_changes_of_one_commit_are_one_alert_largest_first_with_the_counts_that_changed() -> None:
    findings = found(
        trace(COMPILE, noisy(80, step=(60, 0.10))),
        trace(series("compile", case="other"), noisy(80, seed=1, step=(60, 0.30))),
        trace(series("capture"), noisy(80, seed=2, step=(70, 0.20))),
        trace(KERNELS, [62] * 60 + [63] * 20),
        trace(series("graphs", "count"), [1] * 70 + [2] + [1] * 9),
    )
    first, second = findings.alerts
    assert [change.series.name for change in first.changes] == ["other/full/compile", "tiny/full/compile"]
    assert [(item.series.name, item.before, item.after) for item in first.counts] == [("tiny/full/kernels", 62, 63)]
    assert [change.series.name for change in second.changes] == ["tiny/full/capture"]
    assert [(item.series.metric, item.before, item.after) for item in second.counts] == [("graphs", 1, 2)]


def test_recompiles_after_none_are_an_alert() -> None:
    (alert,) = found(trace(series("recompiles", "count"), [0] * 70 + [2] * 10)).alerts
    assert (alert.kind, alert.changes[0].step.change) == (Kind.REGRESSION, math.inf)
    assert "     new  tiny/full/recompiles: 0 -> 2" in "\n".join(
        texts.terminal_lines(found(trace(series("recompiles", "count"), [0] * 70 + [2] * 10)))
    )


def test_few_points_are_learning_and_never_green() -> None:
    findings = found(trace(COMPILE, [1.0] * 4 + [9.0] * 5), nights=9)
    assert [(verdict.state, verdict.changes) for verdict in findings.verdicts] == [(State.LEARNING, ())]
    assert "LEARNING 1 series, up to 9/10 points" in list(texts.terminal_lines(findings))


def test_series_that_went_silent_is_missing_and_the_others_are_not() -> None:
    others = [trace(series("compile", case=f"case{index}"), noisy(80, seed=index)) for index in range(3)]
    silent = trace(COMPILE, noisy(77))
    states = {verdict.series.case: verdict.state for verdict in found(*others, silent).verdicts}
    assert states == {"tiny": State.MISSING} | {f"case{index}": State.STEADY for index in range(3)}
    late = trace(COMPILE, noisy(78))
    assert found(*others, late).series(State.MISSING) == []


def test_machine_that_went_silent_is_missing_after_three_days() -> None:
    assert found(trace(COMPILE, noisy(80)), nights=82).series(State.MISSING) == []
    assert len(found(trace(COMPILE, noisy(80)), nights=85).series(State.MISSING)) == 1


def test_series_that_was_measured_now_and_then_is_not_expected_every_night() -> None:
    weekly = Trace(COMPILE, trace(COMPILE, noisy(80)).points[::7])
    nightly = trace(series("compile", case="other"), noisy(80))
    assert found(weekly, nightly).series(State.MISSING) == []


def test_new_version_continues_a_series_and_is_no_alarm() -> None:
    old = trace(COMPILE, noisy(50))
    new = trace(series("compile", torch="2.14.0"), noisy(30, level=4.5, seed=1), start=50)
    findings = found(old, new)
    assert findings.alerts == ()
    assert [verdict.series for verdict in findings.verdicts] == [new.series]
    (update,) = findings.updates
    assert (update.what, round(update.after / update.before, 1)) == ("torch 2.13.0, now 2.14.0", 1.5)
    assert any(line.startswith("UPDATED tiny/full/compile: 3.0") for line in texts.terminal_lines(findings))


def test_versions_that_are_measured_side_by_side_are_both_judged() -> None:
    old = trace(COMPILE, noisy(80, step=(60, 0.2)))
    new = trace(series("compile", torch="2.14.0"), noisy(80, seed=1))
    findings = found(old, new)
    assert len(findings.verdicts) == 2
    assert len(findings.of(Kind.REGRESSION)) == 1


def test_two_machine_kinds_are_never_mixed() -> None:
    fast = trace(COMPILE, noisy(80))
    slow = trace(series("compile", cpu="slow"), noisy(80, level=4.5, seed=1))
    assert found(fast, slow).alerts == ()


def test_nan_gaps_duplicates_and_disorder_change_nothing() -> None:
    whole = trace(COMPILE, noisy(80, step=(60, 0.10)))
    points = [point for index, point in enumerate(whole.points) if index % 9 != 4 or index > 58]
    points += [Point(point.run, point.value) for point in points[::5]]
    points += [Point(night(index), bad) for index, bad in ((2, math.nan), (3, math.inf), (5, -1.0))]
    np.random.default_rng(0).shuffle(points)  # type: ignore[arg-type]
    (alert,) = found(Trace(COMPILE, tuple(points))).alerts
    assert (alert.kind, alert.place) == (Kind.REGRESSION, "commit060")


# Acknowledging


def known(text: str, path: Path) -> tuple[Acknowledgement, ...]:
    path.write_text(text)
    return tuple(acknowledged.read(path))


STEP = trace(COMPILE, noisy(80, step=(60, 0.10)))


def test_acknowledged_regression_stands_with_its_reason(tmp_path: Path) -> None:
    entries = known('[[acknowledge]]\nat = "commit060"\nreason = "agreed in 412"\n', tmp_path / "a.toml")
    (alert,) = found(STEP, known=entries).alerts
    assert (alert.kind, alert.reason) == (Kind.ACKNOWLEDGED, "agreed in 412")


@pytest.mark.parametrize(
    "entry",
    [
        'at = "commit061"\nreason = "x"',
        'at = "commit060"\nreason = "x"\nseries = "other/*"',
        'at = "commit060"\nreason = "x"\nuntil = 2026-11-01',
    ],
    ids=["another commit", "another series", "run out"],
)
def test_acknowledgement_of_something_else_is_unused(tmp_path: Path, entry: str) -> None:
    findings = found(STEP, known=known(f"[[acknowledge]]\n{entry}\n", tmp_path / "a.toml"))
    assert [alert.kind for alert in findings.alerts] == [Kind.REGRESSION]
    assert len(findings.unused) == 1
    assert "remove it" in list(texts.terminal_lines(findings))[-1]


def test_what_gets_worse_after_an_acknowledgement_is_an_alert_again(tmp_path: Path) -> None:
    values = noisy(80, step=(40, 0.10))
    values[60:] = [value * 1.1 for value in values[60:]]
    entries = known('[[acknowledge]]\nat = "commit040"\nreason = "agreed"\nuntil = 2027-01-31\n', tmp_path / "a.toml")
    assert entries[0].until == date(2027, 1, 31)
    assert [(alert.kind, alert.place) for alert in found(trace(COMPILE, values), known=entries).alerts] == [
        (Kind.REGRESSION, "commit060"),
        (Kind.ACKNOWLEDGED, "commit040"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[acknowledge]]\nat = "commit060"\n', r"a.toml: \[\[acknowledge\]\] number 1: expected a reason, found none"),
        ('[[acknowledge]]\nat = "commit060"\nreason = " "\n', "expected a reason"),
        ('[[acknowledge]]\nat = "c"\nreason = "x"\n', "expected at least 7 characters of a commit, found 'c'"),
        ('[[acknowledge]]\nat = "commit060"\nreason = "x"\nwho = "me"\n', "found who = 'me'"),
        ('[[acknowledge]]\nat = "commit060"\nreason = "x"\nuntil = "soon"\n', "found until = 'soon'"),
        ("[acknowledged]\n", "expected .*acknowledge.* and nothing else, found acknowledged"),
        ("acknowledge = 3\n", "found a value"),
        ("x", "expected TOML"),
    ],
)
def test_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        known(text, tmp_path / "a.toml")


# The command


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fills the default history of an empty directory with traces whose last night is the last one before now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_piecewise.commands.alerts.datetime", Now)

    def fill(*traces: Trace) -> None:
        with History(".piecewise/history.db") as history:
            for one in traces:
                for point in one.points:
                    history.append(point.run, [Sample(one.series, point.value)])

    return fill


class Now:
    """The clock of the command."""

    @staticmethod
    def now(zone: Any) -> Any:
        return after(80)


def test_command_ends_with_10_while_a_regression_stands(filled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    filled(STEP)
    assert main(["alerts"]) == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "alerts: 1 regression(s) stand"
    assert lines[1] == "REGRESSION at commit060, after commit059, 2026-10-31"
    assert lines[2].startswith("   +10.")
    assert "tiny/full/compile: 3.00" in lines[2]
    assert lines[2][-1] in "▅▆▇█"
    assert lines[3] == '  if this is intended: [[acknowledge]] at = "commit060" with a reason'
    Path("piecewise-alerts.toml").write_text('[[acknowledge]]\nat = "commit060"\nreason = "agreed"\n')
    assert main(["alerts"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "alerts: 1 acknowledged"


def test_command_ends_with_0_on_steady_series_and_empty_histories(
    filled: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    filled()
    assert main(["alerts"]) == 0
    assert capsys.readouterr().out == "alerts: the history is empty\n"
    filled(trace(COMPILE, noisy(80)))
    assert main(["alerts"]) == 0
    assert capsys.readouterr().out == "alerts: 1 steady\n"


def test_missing_series_count_if_so_asked(filled: Any) -> None:
    filled(trace(COMPILE, noisy(70)))
    assert main(["alerts"]) == 0
    assert main(["alerts", "--strict"]) == 10


def test_runs_of_other_branches_and_other_series_can_be_left_out(filled: Any) -> None:
    filled(STEP)
    assert main(["alerts", "--branch", "main"]) == 10
    assert main(["alerts", "--branch", "other"]) == 0
    assert main(["alerts", "--series", "tiny/*/kernels"]) == 0
    assert main(["alerts", "--last", "15"]) == 0


def test_files_and_payloads_are_written(filled: Any, tmp_path: Path) -> None:
    filled(STEP, trace(KERNELS, [62] * 60 + [63] * 20))
    names = ("json", "markdown", "github-issue", "slack")
    assert main(["alerts", *(f"--{name}={name}" for name in names)]) == 10
    data = json.loads(Path("json").read_text())
    assert data["alerts"][0]["at"] == "commit060"
    assert data["alerts"][0]["changes"][0]["change"] == pytest.approx(0.1, abs=0.02)
    assert data["alerts"][0]["counts"] == [{"series": "tiny/full/kernels", "before": 62, "after": 63}]
    text = Path("markdown").read_text()
    assert "### REGRESSION at commit060, after commit059, 2026-10-31" in text
    assert "- in the same range: tiny/full/kernels 62 → 63" in text
    issue = json.loads(Path("github-issue").read_text())
    assert issue["title"] == "Regression at commit060, after commit059, 2026-10-31"
    assert issue["body"] == text
    slack = json.loads(Path("slack").read_text())
    assert [block["type"] for block in slack["blocks"]] == ["header", "section"]


NOTIFIED = (
    "import sys, pathlib; pathlib.Path('told').write_text(' '.join(sys.argv[1:]) + sys.stdin.read()); sys.exit({code})"
)


def test_users_command_is_told_of_regressions_alone(filled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", NOTIFIED.format(code=0), "$(touch harmed) ; touch harmed"]
    filled(trace(series("capture"), noisy(80)))
    assert main(["alerts", "--notify", *command]) == 0
    assert not Path("told").exists()
    filled(STEP)
    assert main(["alerts", "--notify", *command]) == 10
    argument, told = Path("told").read_text().split("{", 1)
    assert argument == "$(touch harmed) ; touch harmed"
    assert json.loads("{" + told)["alerts"][0]["kind"] == "REGRESSION"
    assert not Path("harmed").exists()
    assert capsys.readouterr().out.endswith("\nnotified\n")


def test_command_may_stand_in_the_project_and_may_fail(filled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    filled(STEP)
    for command, said in (
        ([sys.executable, "-c", NOTIFIED.format(code=3)], "ended with 3"),
        (["/nowhere/notify"], "not notified: [Errno 2]"),
    ):
        Path("pyproject.toml").write_text(f"[tool.pytest_piecewise]\nalert-command = {json.dumps(command)}\n")
        assert main(["alerts"]) == 10
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_harm_no_output(text: str, tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.test_files import read

    hurt = [replace(point.run, commit=text, branch=text, url=text) for point in STEP.points]
    named = replace(COMPILE, case=series_text(text), metric=series_text(text), kind=series_text(text))
    entry = Acknowledgement(at=text, reason=text)
    findings = found(
        Trace(named, tuple(Point(run, p.value) for run, p in zip(hurt, STEP.points, strict=True))), known=(entry,)
    )
    assert findings.alerts
    lines = list(texts.terminal_lines(findings))
    assert all(line.isprintable() for line in lines)
    markdown = texts.markdown(findings)
    assert not {kind for kind, _ in read(markdown)} & {"link_open", "image", "html_inline", "html_block"}
    assert len(markdown) < 50_000
    assert "```" not in json.dumps(texts.slack_message(findings)).replace('"```', "").replace('```"', "")
    json.dumps([texts.plain(findings), texts.github_issue(findings)]).encode()


# Trends of a report


def test_trend_has_steps_and_updates_of_the_shown_runs() -> None:
    old = trace(COMPILE, noisy(30))
    new = trace(series("compile", torch="2.14.0"), noisy(50, seed=1, step=(30, 0.2)), start=30)
    made = trend_of([new, old])
    assert made is not None
    assert len(made.values) == 60
    assert [(mark.index, mark.text[:5], mark.worse) for mark in made.marks] == [
        (10, "torch", False),
        (40, "+19.9", True),
    ]
    assert (made.began, made.ended) == (night(20).started, night(79).started)


def test_counts_that_did_not_change_and_first_measurements_have_no_trend() -> None:
    assert trend_of([trace(KERNELS, [62] * 50)]) is None
    assert trend_of([trace(COMPILE, [1.0])]) is None
    assert trend_of([trace(KERNELS, [62] * 49 + [63])]) is not None


def test_report_gets_the_trends_of_its_own_measurements(tmp_path: Path) -> None:
    from dataclasses import replace

    from pytest_piecewise.history.series import samples

    shown = report(result("tiny"))
    with History(str(tmp_path / "h.db")) as history:
        for number in range(12):
            run = night(number)
            history.append(run, samples(replace(shown, run=run)))
            history.append(run, [Sample(series("compile", case="other"), 1.0)])
        found = with_trends(shown, history)
    assert {(trend.case, trend.variant, trend.metric) for trend in found.trends} >= {
        ("tiny-native-float32", "full", "compile"),
        ("tiny-native-float32", "eager", "peak_memory"),
    }
    assert {trend.case for trend in found.trends} == {"tiny-native-float32"}
    assert "kernels" not in {trend.metric for trend in found.trends}
