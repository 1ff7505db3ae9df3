"""Peers as contenders: each is a process in the peers' own environment, driven line by line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Block

PYTHON = ROOT / ".venvs" / "peers" / "bin" / "python"


class Peer:
    """One worker process; see `peer_worker.py` for what it does and what is said to it."""

    def __init__(self, name: str, peer: str, path: Path, *, size: int, writers: int = 1) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [PYTHON, ROOT / "bench" / "peer_worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        opened = self._ask(do="open", peer=peer, path=str(path), size=size, writers=writers)
        self.release = str(opened["peer"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name}: the worker ended with {self._process.wait()}")
        return json.loads(answer)

    def block(self, operations: int) -> Block:
        answer = self._ask(do="block", operations=operations)
        return Block(answer["seconds"], answer["latencies"])

    def close(self) -> None:
        """Closes the peer's database, so that its size is the final one, and ends the worker."""
        if self._process.poll() is None:
            self._ask(do="close")
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait(timeout=60)
