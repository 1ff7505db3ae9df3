"""Looking waits for no writer: not for one that was stopped while it has the lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.backends.in_use import is_in_use

PATIENCE_S = 120
PROGRAM = "import sys; from holdfast.cli import main; sys.exit(main())"


@pytest.fixture(params=["files", "sqlite"])
def stopped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Returns the URL of a store whose writer is stopped in the middle of a commit."""
    path = tmp_path / ("store" if request.param == "files" else "store.db")
    command = [sys.executable, "-m", "tests.faults.stopped_writer", request.param, str(path)]
    writer = subprocess.Popen(command)
    try:
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the writer ended: it should have stopped"
        yield str(path) if request.param == "files" else f"sqlite:{path}"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()


def holdfast(url: str, *words: str) -> str:
    """Returns what the command says; it hangs, and fails, if it waits for the writer."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--store", url, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_looking_does_not_wait_for_a_writer_that_was_stopped(stopped: str) -> None:
    """What was told is shown, what is under way is not."""
    assert holdfast(stopped, "get", "team/red", "told").strip() == "1"
    assert "under way" not in holdfast(stopped, "show", "team/red")
    assert json.loads(holdfast(stopped, "status", "--json"))["durability"] == "full"
    assert "team/red" in holdfast(stopped, "scopes")


def test_a_place_that_is_no_store_is_not_in_use(tmp_path: Path) -> None:
    assert not is_in_use(str(tmp_path / "none"))
    assert not is_in_use(f"sqlite:{tmp_path / 'none.db'}")
    assert not is_in_use("redis://localhost")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "lock").touch()
    assert not is_in_use(f"files:{tmp_path / 'half'}")
