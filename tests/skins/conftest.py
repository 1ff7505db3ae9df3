"""What the tests of the command line share: running it here, and pretending to be a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main


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
