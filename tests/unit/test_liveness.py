"""Workers are told alive or dead by the kernel, never by time (clauses 16 and 17)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.backends.liveness import Workers

HOLD = """
import sys
from holdfast.backends.liveness import Workers
workers = Workers(sys.argv[1])
workers.hold("w1")
print("held", flush=True)
sys.stdin.read()
"""


def test_an_owner_that_nobody_holds_is_dead(tmp_path: Path) -> None:
    assert not Workers(tmp_path / "workers").is_alive("w1")


def test_a_held_owner_is_alive_for_others_until_close(tmp_path: Path) -> None:
    mine, other = Workers(tmp_path / "workers"), Workers(tmp_path / "workers")
    mine.hold("w1")
    mine.hold("w1")
    assert mine.is_alive("w1")
    assert other.is_alive("w1")
    mine.close()
    assert not other.is_alive("w1")


def test_one_owner_held_by_two_handles_lives_until_both_are_closed(tmp_path: Path) -> None:
    first, second, other = (Workers(tmp_path / "workers") for _ in range(3))
    first.hold("w1")
    second.hold("w1")
    first.close()
    assert other.is_alive("w1")
    second.close()
    assert not other.is_alive("w1")


def test_a_killed_worker_is_dead_at_once_and_its_file_is_removed(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "workers")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "workers")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"held\n"
    assert workers.is_alive("w1")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert not workers.is_alive("w1")
    assert os.listdir(tmp_path / "workers") == ["probe"]


def test_a_forked_child_does_not_keep_its_parents_worker_alive(tmp_path: Path) -> None:
    mine, other = Workers(tmp_path / "workers"), Workers(tmp_path / "workers")
    mine.hold("w1")
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_fd)
        os.read(read_fd, 1)
        os._exit(0)
    os.close(read_fd)
    mine.close()
    assert not other.is_alive("w1")
    os.close(write_fd)
    os.waitpid(child, 0)


def test_an_owner_is_data_and_never_a_path(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "workers")
    for owner in ("../../etc/passwd", "a/b", "\0", "é" * 400, ""):
        workers.hold(owner)
        assert workers.is_alive(owner)
    assert os.listdir(tmp_path) == ["workers"]
    workers.close()
