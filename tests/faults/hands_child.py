"""A process that works on a store, one command a line, so that a test can lay hands on its files.

    python -m tests.faults.hands_child <url>

It answers each command with one line of JSON: what was written, or the error. Commands are `open`,
`write N`, `position`, `foreign` (another SQLite library opens and closes the database in this
process), `touch PATH` (a file is opened and closed in this process), and `close`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError, Store
from tests.faults.child import ROOT, tell_error


class Hands:
    """One process; every acknowledged item is in `told`."""

    def __init__(self, url: str, name: str = "a") -> None:
        self.name = name
        self.told: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.hands_child", url, name],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Returns what the process says to one command."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(command + "\n")
        process.stdin.flush()
        said: dict[str, Any] = json.loads(process.stdout.readline())
        self.told += said.get("told", [])
        return said

    def must(self, command: str) -> dict[str, Any]:
        """Asks for what has to succeed."""
        said = self.ask(command)
        assert "class" not in said, said
        return said

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it as `kill -9` does; it may have ended already."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Hands:
        self.must("open")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class _Worker:
    """The other end of the pipe."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._store: Store | None = None
        self._count = 0

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def obey(self, verb: str, argument: str) -> dict[str, Any]:
        match verb:
            case "open":
                self._store = holdfast.open(self._url)
            case "write":
                return self._write(int(argument))
            case "position":
                return {"items": list(self.store.team(self._name).state.get("log", []))}
            case "foreign":
                path = self._url.partition(":")[2]
                with closing(sqlite3.connect(path)) as database:
                    database.execute("SELECT count(*) FROM events").fetchone()
            case "touch":
                Path(argument).open("rb").close()
            case _:
                self.store.close()
        return {}

    def _write(self, count: int) -> dict[str, Any]:
        told: list[str] = []
        try:
            for _ in range(count):
                item = f"{self._name}{self._count}"
                self._count += 1
                self.store.team(self._name).append("log", item)
                told.append(item)
        except HoldfastError as error:
            return {"told": told, **tell_error(error)}
        return {"told": told}


def _main() -> None:
    worker = _Worker(*sys.argv[1:])
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        try:
            said = worker.obey(verb, argument)
        except HoldfastError as error:
            said = tell_error(error)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    _main()
