"""What the tests of the command line share: running it here, and pretending to be a terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main

TINY = """
import os, signal
import holdfast


@holdfast.step(effect="read")
def look(n: int) -> int:
    return n + 1


@holdfast.step(effect="effect")
def act(n: int) -> int:
    if os.environ.get("TINY_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@holdfast.run
def tiny(ctx, n: int = 1):
    found = look(n)
    return act(found)


@holdfast.run
def asks(ctx, n: int = 1):
    for i in ctx.repeat(2):
        look(i)
    both = ctx.parallel(left=ctx.branch(look, 1), right=ctx.branch(look, 2))
    if ctx.wait("approve", timeout="2d", default=False):
        return both
    return None


@holdfast.run
def fails(ctx):
    look(1)
    if not os.environ.get("TINY_MENDED"):
        raise ValueError("no good")
    return "mended"


@holdfast.step(effect="read", retry=holdfast.Retry(attempts=3, wait_s=3600))
def flaky():
    raise OSError("not yet")


@holdfast.run
def shaky(ctx):
    flaky()


@holdfast.run
async def later(ctx, n: int = 2):
    return [await ctx.step(look, i) for i in ctx.repeat(n)]


@holdfast.run
def named(ctx, id, queue=None, if_exists=None):
    return [id, queue, if_exists]


@holdfast.run
def slow(ctx):
    look(1)
    import threading

    threading.Event().wait(600)
"""
"""A program with runs, as a user would write it."""


class Ran:
    """How a command ended and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


class Screen(io.StringIO):
    """Standard output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


Runner = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs a command in this process; a failure must be expected by its code."""

    def run(*words: object, code: int = 0) -> Ran:
        capsys.readouterr()
        found = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert found == code, printed.err
        return Ran(found, printed.out, printed.err)

    return run


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs a command whose standard output is a terminal of 100 columns without colours."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")

    def run(*words: object) -> str:
        out = Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            assert main([str(word) for word in words]) == 0
        return out.getvalue()

    return run


@pytest.fixture(params=["files", "sqlite"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Runner
) -> str:
    """A new store of each kind, named by HOLDFAST_STORE; the folder it is in is the current one."""
    monkeypatch.chdir(tmp_path)
    where = "store" if request.param == "files" else "sqlite:state.db"
    monkeypatch.setenv("HOLDFAST_STORE", where)
    monkeypatch.setenv("HOLDFAST_ACTOR", "tester")
    cli("init")
    return where


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with runs in the current folder, which this process has not loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return path


DESK_GRAPH = """
import holdfast


@holdfast.node
def flags(ctx, text):
    ctx.cost(tokens=len(text))
    return {"kind": "riddle" if "riddle" in text else "plan"}


@holdfast.node
def picker(ctx, flags):
    ctx.setting("model", "large" if flags["kind"] == "riddle" else "small")
    return flags["kind"]


part = holdfast.Graph("part", [picker])
planner = holdfast.Graph("planner", [flags, picker])
nested = holdfast.Graph("nested", [flags, part.until("picker", bool, most=3)])
"""


@pytest.fixture
def desk_graph(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with graphs, in the current folder."""
    path = Path("desk_graph.py")
    path.write_text(DESK_GRAPH)
    monkeypatch.delitem(sys.modules, "desk_graph", raising=False)
    return path


def in_process(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a process of its own, in the current folder."""
    source = str(Path(holdfast.__file__).parents[1])
    program = "import sys; from holdfast.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": source, **extra},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
