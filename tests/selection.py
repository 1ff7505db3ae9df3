"""Which tests a run has time for: a part that moves on with the history, or all of them.

`make test` has 15 minutes. What takes longer in full is cut into turns: a commit runs one of them,
the next commit the next one, so that a few commits in a row run everything. The number of commits
decides, not chance: the same commit runs the same tests everywhere. `make test-all` sets
HOLDFAST_TESTS=all, which takes every turn.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")

RUNS_ALL = os.environ.get("HOLDFAST_TESTS") == "all"
RUNS_A_TURN = os.environ.get("HOLDFAST_TESTS") == "turn"
"""`make test` sets it; whoever runs a file by hand runs all of it."""
STARTERS = re.compile(
    r"\b(os\.fork|Thread|Popen|Process|ThreadPoolExecutor|to_thread|run_in_executor)\(|\w\.start\("
)
"""What starts a process or a thread that goes on beside its starter; a run has a thread, too.

`subprocess.run` is not one of them: it waits for the child, and nothing happens beside it.
"""
CONCURRENT = ("tests/concurrency/", "tests/crash/")
"""All of these, whatever they call."""
ENUMERATIONS = (
    "tests/broken/",
    "tests/runs/test_cuts.py",
    "tests/runs/test_plants.py",
    "tests/runs/test_same_journal.py",
    "tests/unit/files/test_crash.py",
)
"""These do one thing hundreds of times already: `make test-all` does not repeat them."""
IN_TURNS = {
    "tests/care/test_audit_export.py": 2,
    "tests/care/test_backup.py": 2,
    "tests/care/test_tenants.py": 3,
    "tests/concurrency/": 2,
    "tests/conformance/test_tenants.py": 8,
    "tests/examples/": 2,
    "tests/git/": 2,
    "tests/nodes/test_kills.py": 3,
    "tests/property/": 2,
    "tests/prose/test_cuts.py": 2,
    "tests/record/test_calls.py": 2,
    "tests/record/test_encryption.py": 3,
    "tests/record/test_ends_killed.py": 3,
    "tests/record/test_erase_match.py": 3,
    "tests/record/test_recovery.py": 3,
    "tests/record/test_sessions.py": 3,
    "tests/record/test_spectrum.py": 3,
    "tests/record/test_task_processes.py": 3,
    "tests/record/test_turns.py": 3,
    "tests/runs/test_cuts.py": 3,
    "tests/runs/test_owners.py": 2,
    "tests/runs/test_same_journal.py": 2,
    "tests/servers/test_redis_cluster.py": 3,
    "tests/servers/test_tenants_postgresql.py": 4,
    "tests/servers/test_tenants_redis.py": 2,
    "tests/servers/": 2,
    "tests/skins/test_cli.py": 2,
    "tests/skins/test_cli_completion.py": 2,
    "tests/skins/test_cli_docs.py": 2,
    "tests/skins/test_cli_process.py": 2,
    "tests/care/test_archive.py": 2,
    "tests/skins/test_cli_runs.py": 2,
    "tests/skins/test_demo.py": 2,
    "tests/skins/test_selftest.py": 2,
}
"""Tests that start servers and processes on every backend, and in how many turns `make test` runs
them. A test has its turn by its name, so a file's tests on other backends run meanwhile. Where a
test itself takes `this_turn`, the two numbers share no factor: else some pairs never meet.
"""
SERVERS = ("tests.servers.ground", "tests.servers.postgresql", "tests.servers.redis")
"""They start the servers that many tests share: a test is not concurrent because of that."""


@cache
def turn() -> int:
    """Returns the number of commits in the history; 0 where there is no git.

    The first process to ask tells the others through the environment: workers of one run must
    collect the same tests, even if somebody commits meanwhile.
    """
    told = os.environ.get("HOLDFAST_TURN")
    if told is None:
        try:
            command = ["git", "rev-list", "--count", "HEAD"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            told = done.stdout.strip() if done.returncode == 0 else "0"
        except OSError:
            told = "0"
        os.environ["HOLDFAST_TURN"] = told
    return int(told)


def seed() -> str:
    """Returns what random tests begin with: the same at each run, so what fails is what changed.

    New ground is for `make torture`, which draws a seed; or HOLDFAST_SEED=… make test.
    """
    return os.environ.get("HOLDFAST_SEED") or "429566"


def this_turn(choices: Sequence[T], turns: int) -> list[T]:
    """Returns the choices whose turn it is; each has its turn in any `turns` commits in a row."""
    if RUNS_ALL:
        return list(choices)
    return [one for number, one in enumerate(choices) if number % turns == turn() % turns]


def has_its_turn(name: str) -> bool:
    """Says whether a test, by its name, is one that `make test` runs at this commit."""
    turns = next((count for place, count in IN_TURNS.items() if name.startswith(place)), 1)
    return crc32(name.encode()) % turns == turn() % turns


def starts_something(test: Callable[..., Any]) -> bool:
    """Says whether a test, or what it reaches in the tests, starts a process or a thread."""
    seen: set[int] = set()
    waiting: list[Any] = [test]
    while waiting:
        one = waiting.pop()
        one = getattr(one, "__func__", one)
        if id(one) in seen or not _is_ours(one):
            continue
        seen.add(id(one))
        if isinstance(one, type):
            waiting += vars(one).values()
            waiting += one.__bases__
        elif STARTERS.search(_source(one)):
            return True
        else:
            waiting += _reached(one)
    return False


def _is_ours(found: Any) -> bool:
    if not isinstance(found, FunctionType | type) or found.__module__ in SERVERS:
        return False
    return found.__module__.startswith(("tests.", "holdfast.testing"))


@cache
def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except OSError:  # made by a program, such as the methods of a dataclass
        return ""


@cache
def _reached(function: FunctionType) -> list[Any]:
    """Returns what a function names: globals, and what it may take from the modules among them."""
    names = set(_names(function.__code__))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for module in [one for one in found if isinstance(one, ModuleType)]:
        if module.__name__.startswith("tests."):
            found += [vars(module)[name] for name in names if name in vars(module)]
    return [getattr(one, "__wrapped__", one) for one in found]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
