"""Contenders with a process of their own, driven line by line; see `bench/workers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Block, Contender, Loop

PYTHON = ROOT / ".venvs" / "peers" / "bin" / "python"
OWN = {"holdfast", "holdfast messages", "holdfast runs", "bare"}
"""Workers that run in our own environment."""


class Peer:
    """One worker process, told when to do its next block."""

    def __init__(
        self, name: str, worker: str, path: Path | str, *, under: Sequence[str] = (), **options: Any
    ) -> None:
        self.name = name
        python = sys.executable if worker in OWN else PYTHON
        self._process = subprocess.Popen(
            [*under, python, "-m", "bench.workers"],
            cwd=ROOT,
            # A fixed seed: the same instructions each time, wherever they are counted.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        opened = self.ask(do="open", worker=worker, path=str(path), options=options)
        self.release = str(opened["release"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **request: Any) -> dict[str, Any]:
        """Says one thing to the worker and returns its answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the worker ended with {self._process.wait()}")
        return json.loads(answer)

    def block(self, operation: str, operations: int) -> Block:
        answer = self.ask(do="block", operation=operation, operations=operations)
        return Block(answer["seconds"], answer["latencies"])

    def doing(self, operation: str) -> Contender:
        """Returns a contender that does one of the worker's operations."""
        return Doing(self, operation)

    def close(self) -> None:
        """Closes the peer's database, so that its size is the final one, and ends the worker."""
        if self._process.poll() is None:
            self.ask(do="close")
        # Leaving the process closes both pipes, and the end of its input ends the worker.
        with self._process:
            pass


class Doing:
    """One operation of a worker process as a contender."""

    def __init__(self, peer: Peer, operation: str) -> None:
        self.name = peer.name
        self._peer = peer
        self._operation = operation

    def block(self, operations: int) -> Block:
        return self._peer.block(self._operation, operations)

    def close(self) -> None:
        """Nothing: the worker is closed when all of its operations were measured."""


class Local:
    """A worker inside this process: as holdfast and the bare loops are measured by time."""

    def __init__(self, name: str, worker: Any) -> None:
        self.name = name
        self.release = worker.release
        self._worker = worker

    def doing(self, operation: str) -> Contender:
        return Loop(self.name, self._worker.operations[operation], lambda: None)

    def close(self) -> None:
        self._worker.close()
