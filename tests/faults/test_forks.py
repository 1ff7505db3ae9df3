"""A child of a process whose threads commit can open the same store: forked, spawned or served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.forking import forking
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from tests.record.stores import DURABLE, new_url

CHILDREN = {"files": 4, "sqlite": 6, "redis": 2, "postgresql": 2}


@pytest.mark.parametrize(
    ("backend", "method"),
    [*((one, "fork") for one in DURABLE), ("sqlite", "spawn"), ("sqlite", "forkserver")],
)
def test_children_of_a_process_in_commits_use_the_store(
    backend: str, method: str, tmp_path: Path
) -> None:
    url = new_url(backend, tmp_path)
    children = str(CHILDREN[backend] if method == "fork" else 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.forks", url, method, children],
        capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def in_a_child(test: str, *arguments: str) -> str:
    code = f"from tests.faults.test_forks import {test}; {test}(*{arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def forked_within_a_commit(path: str) -> None:
    """Forks in the middle of a commit, as user code in a commit might."""
    children: list[int] = []

    def reach(point: str) -> None:
        if point == "sqlite.inserted" and not children:
            children.append(os.fork())
            if children[0] == 0:
                try:
                    holdfast.open(f"sqlite:{path}")
                except UsageError as error:
                    print(error.message, error.hint, flush=True)
                    os._exit(0)
                os._exit(1)

    with holdfast.open(SqliteBackend(path, clock=SystemClock(), reach=reach)) as hf:
        hf.team("red").set("a", 1)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        hf.team("red").set("a", 2)
        assert not hf.check().findings


def test_a_child_forked_within_a_commit_is_told_how_to_start(tmp_path: Path) -> None:
    said = in_a_child("forked_within_a_commit", str(tmp_path / "s.db"))
    assert "in the middle of a transaction" in said
    assert "spawn" in said


def forked_beside_a_busy_thread(path: str) -> None:
    """Forks while a thread stays in a commit for longer than a fork waits."""
    import threading

    inside, leave = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == "sqlite.inserted" and threading.current_thread().name == "slow":
            inside.set()
            leave.wait()

    forking.wait_s = 0.2
    with holdfast.open(SqliteBackend(path, clock=SystemClock(), reach=reach)) as hf:
        hf.team("red").set("a", 0)
        thread = threading.Thread(target=lambda: hf.team("red").set("a", 1), name="slow")
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            try:
                holdfast.open(f"sqlite:{path}")
            except UsageError as error:
                print(error.message, flush=True)
                with holdfast.open(f"sqlite:{path}-other") as other:
                    other.team("red").set("a", 1)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        leave.set()
        thread.join()
        assert hf.team("red").get("a") == 1


def test_a_fork_waits_for_a_limited_time(tmp_path: Path) -> None:
    said = in_a_child("forked_beside_a_busy_thread", str(tmp_path / "s.db"))
    assert "in the middle of a transaction" in said
