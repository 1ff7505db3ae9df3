"""Settings of all tests, and what a run says about itself at its end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.selection import (
    CONCURRENT,
    ENUMERATIONS,
    RUNS_A_TURN,
    has_its_turn,
    seed,
    starts_something,
    turn,
)

os.environ["HOLDFAST_SEED"] = seed()  # one for all processes of a run

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
SLOWEST = 10
"""How many directories, and how many modules, the closing table names."""


@pytest.fixture(scope="session", autouse=True)
def keys_of_subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps keys, which have a folder of the user's own, out of the home of whoever runs tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_KEYS", str(tmp_path_factory.mktemp("keys")))
        yield


@pytest.fixture(autouse=True)
def keys_of_one_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives each test keys of its own: who was erased in one would stay erased in all others."""
    name = f"keys-{next(_NUMBERS)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_KEYS", str(tmp_path_factory.getbasetemp() / name))
        yield


_NUMBERS = count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-concurrent",
        action="store_true",
        help="run only what starts processes or threads (make test-all repeats it)",
    )


def pytest_configure() -> None:
    turn()  # before there are workers, which must all collect the same tests


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the long tests first: whoever is done early then has short ones left to take over."""
    items.sort(key=lambda item: "tests/torture" not in item.nodeid)
    if config.getoption("--only-concurrent"):
        leave_out(config, items, [item for item in items if not is_concurrent(item)])
    if RUNS_A_TURN:
        leave_out(config, items, [item for item in items if not has_its_turn(item.nodeid)])


def leave_out(config: pytest.Config, items: list[pytest.Item], others: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def is_concurrent(item: pytest.Item) -> bool:
    """Says whether a test, or a fixture that it asks for, starts a process or a thread."""
    if item.nodeid.startswith(CONCURRENT):
        return True
    if item.nodeid.startswith(ENUMERATIONS) or not isinstance(item, pytest.Function):
        return False
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # no public way to the functions
    functions = [one.func for several in fixtures.values() for one in several]
    return any(starts_something(one) for one in [item.function, *functions])


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
        cut = "  time was up" if any(row.get("was_cut") for row in mine) else ""
        terminal.write_line(
            f"{name:<18} {points:>8,} {cases:>10,} {seconds:>8.1f}  {mine[0]['seed']}{cut}"
        )


def _tell_groups(terminal: pytest.TerminalReporter, reports: list[pytest.TestReport]) -> None:
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    slow: Counter[str] = Counter()
    for report in reports:
        file = report.nodeid.split("::")[0]
        group = file.rpartition("/")[0] or "tests"
        seconds[group] += report.duration
        slow[file] += report.duration
        tests[group] += report.when == "call"
    if len(tests) < 2:
        return
    terminal.section("where the time went (seconds, summed over all workers)")
    for group, spent in seconds.most_common(SLOWEST):
        terminal.write_line(f"{group:<42} {tests[group]:>6,} tests {spent:>8.1f}")
    if others := seconds.total() - sum(spent for _, spent in seconds.most_common(SLOWEST)):
        rest = tests.total() - sum(tests[group] for group, _ in seconds.most_common(SLOWEST))
        terminal.write_line(f"{'all others':<42} {rest:>6,} tests {others:>8.1f}")
    terminal.section("the slowest modules")
    for file, spent in slow.most_common(SLOWEST):
        terminal.write_line(f"{file:<55} {spent:>8.1f}")
