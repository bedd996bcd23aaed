"""What `pytest-piecewise alerts` would have said after each run of a history, for docs/history.md.

    python scripts/replay_alerts.py --history FILE [--planted-at COMMIT]

A series-night is a series with at least ten points, after one more run. It is a false one if a regression stands in it that
does not begin at the run of `planted-at`.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

from pytest_piecewise.alerts.grouping import Kind, find_alerts
from pytest_piecewise.alerts.rules import LEAST_POINTS, moment
from pytest_piecewise.history.series import Trace, order_of
from pytest_piecewise.history.store import History


def main() -> None:
    """Prints the counts, each false series-night, and when the planted step was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", required=True)
    parser.add_argument("--planted-at", default="", help="the commit from which on something was planted")
    given = parser.parse_args()
    with History(given.history) as history:
        traces = list(history.traces(lambda series: True))
        runs = sorted(history.runs(), key=order_of)
    planted = next((index for index, run in enumerate(runs) if run.commit == given.planted_at), len(runs))
    nights, false = 0, 0
    found: dict[str, int] = {}
    for index in range(LEAST_POINTS - 1, len(runs)):
        known = {run.id for run in runs[: index + 1]}
        cut = [Trace(trace.series, tuple(point for point in trace.points if point.run.id in known)) for trace in traces]
        nights += sum(len(trace.points) >= LEAST_POINTS for trace in cut)
        findings = find_alerts(cut, moment(runs[index]) + timedelta(seconds=1))
        for alert in findings.alerts:
            for change in alert.changes if alert.kind is Kind.REGRESSION else ():
                name = f"{change.series.case}/{change.series.variant}/{change.series.metric}"
                if change.first_after.commit == given.planted_at:
                    found.setdefault(name, index - planted + 1)
                else:
                    false += 1
                    print(
                        f"false, after run {index + 1}: {name} {change.step.change:+.1%} at {change.first_after.commit}"
                    )
    print(f"{len(runs)} runs, {len(traces)} series, {nights} series-nights, {false} of them false")
    for name, after in sorted(found.items(), key=lambda item: item[1]):
        print(f"planted, found after {after} run(s): {name}")


if __name__ == "__main__":
    main()
