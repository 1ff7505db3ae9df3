"""Settings of all tests, and what a run says about itself at its end."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# One seed for all processes of a run, and the same at each run: what fails is what changed.
# New ground is for `make torture`, which draws a seed; or HOLDFAST_SEED=… make test.
os.environ.setdefault("HOLDFAST_SEED", "429566")

# Hypothesis prints what it needs to replay a failure.
# No deadline: how long one example takes says more about the machine's disk than about the code.
settings.register_profile(
    "dev",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long tests first: whoever is done early then has short ones left to take over."""
    items.sort(key=lambda item: "tests/torture" not in item.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many points of the torture programme were tried, and where the time went."""
    reports: list[pytest.TestReport] = [
        report
        for kind in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(kind, [])
        if isinstance(report, pytest.TestReport)
    ]
    rows = [value for one in reports for name, value in one.user_properties if name == "torture"]
    _tell_torture(terminalreporter, rows)
    _tell_groups(terminalreporter, reports)


def _tell_torture(terminal: pytest.TerminalReporter, rows: list[Any]) -> None:
    if not rows:
        return
    terminal.section("torture")
    terminal.write_line(f"{'programme':<18} {'points':>8} {'cases':>10} {'seconds':>8}  seed")
    for name in sorted({row["programme"] for row in rows}):
        mine = [row for row in rows if row["programme"] == name]
        points, cases = (sum(row[what] for row in mine) for what in ("points", "cases"))
        seconds = sum(row["seconds"] for row in mine)
        terminal.write_line(
            f"{name:<18} {points:>8,} {cases:>10,} {seconds:>8.1f}  {mine[0]['seed']}"
        )


def _tell_groups(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in reports:
        group = report.nodeid.split("::")[0].rpartition("/")[0] or "tests"
        seconds[group] += report.duration
        tests[group] += report.when == "call"
    if len(tests) < 2:
        return
    terminal.section("where the time went (seconds of both processors)")
    for group in sorted(tests):
        terminal.write_line(f"{group:<22} {tests[group]:>6,} tests {seconds[group]:>8.1f}")
