"""The other process of `MultiProcessContract` and `KeyStoreContract`, which plays a part.

    python -m holdfast.testing.child <test file> <class> <place> <part>

The test class is loaded from its file, so that the test of a backend defines only once how to open
it. Parent and child exchange lines of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from holdfast.backends.protocol import START, Backend, Head, Receipt, Refusal
from holdfast.clock import SystemClock
from holdfast.core.keystore import KeyStore
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import PATIENCE_S, Trial

INCREMENTS = 25
NAMES = [f"n{number}" for number in range(5)]
MAKE_KEYS = "make keys"


class Child:
    """The parent's handle on a process that plays a part; the end of the block kills it."""

    def __init__(self, trial: object, place: Path, part: str) -> None:
        found = sys.modules[type(trial).__module__].__file__
        assert found is not None, "expected a test class in a file, found one without"
        arguments = [found, type(trial).__qualname__, str(place), part]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.testing.child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def hear(self) -> Any:
        """Returns the child's next line; fails the test if none comes in time."""
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE_S)
        assert ready, f"the other process said nothing for {PATIENCE_S} s"
        line = pipe.readline()
        assert line, f"the other process ended with {self._process.wait()}"
        return json.loads(line)

    def last_words(self) -> list[Any]:
        """Kills the process; returns its complete lines that were not read yet."""
        self.kill()
        pipe = self._process.stdout
        assert pipe is not None
        return [json.loads(line) for line in pipe.readlines() if line.endswith(b"\n")]

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone."""
        self._process.kill()
        self._process.wait()


def _tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _hear() -> Any:
    return json.loads(sys.stdin.readline())


def _increment(backend: Backend) -> None:
    """Increments the number in the stream "counter" many times, guarded by its revision."""
    build = RecordBuilder(SystemClock().now_us(), actor=str(os.getpid()))
    _tell("ready")
    _hear()
    conflicts = 0
    for _ in range(INCREMENTS):
        while True:
            records = backend.read("counter", after=max(_revision(backend, "counter") - 1, 0))
            last = records[-1] if records else None
            number = int(last.payload) + 1 if last else 1
            append = build.append("counter", b"%d" % number, behind=last)
            [outcome] = backend.commit([build.commit(append)])
            if isinstance(outcome, Receipt):
                break
            conflicts += 1
    _tell(conflicts)


def _revision(backend: Backend, stream: str) -> int:
    [head] = backend.heads([stream])
    return head.revision if head else 0


def _follow(backend: Backend) -> None:
    """Waits for a commit of another process."""
    position = backend.wait(START, timeout_s=0)
    _tell(position)
    # Longer than the parent waits: so a follower that is not woken fails the test.
    newest = backend.wait(position, timeout_s=10 * PATIENCE_S)
    _tell([newest, [record.stream for record in backend.read_all(after=position)]])


def _hold(backend: Backend) -> None:
    """Takes the lease "l" and every mark of the index "i", and keeps them until it is killed."""
    lease = backend.leases.acquire("l", "child", ttl_s=3600)
    marks = backend.marks.claim("i", "child", n=100, ttl_s=3600)
    _tell([lease.epoch if lease else 0, [mark.key for mark in marks]])
    _hear()


def _hammer(backend: Backend) -> None:
    """Commits to two streams at once and reports each commit, until it is killed."""
    build = RecordBuilder(SystemClock().now_us())
    heads: list[Head | None] = [None, None]
    while True:
        appends = [
            build.append(stream, behind=head)
            for stream, head in zip(("left", "right"), heads, strict=True)
        ]
        [outcome] = backend.commit([build.commit(*appends)])
        assert not isinstance(outcome, Refusal), f"expected to be alone, found {outcome}"
        heads = backend.heads(["left", "right"])
        _tell(appends[0].records[0].revision)


def _make_keys(keys: KeyStore) -> None:
    """Makes the keys of some names, and reports them."""
    _tell("ready")
    _hear()
    _tell([[key.id, key.key.hex()] for key in map(keys.make, NAMES)])


_PARTS: dict[str, Callable[[Backend], None]] = {
    "increment": _increment,
    "follow": _follow,
    "hold": _hold,
    "hammer": _hammer,
}


def _main(file: str, name: str, place: str, part: str) -> None:
    spec = importlib.util.spec_from_file_location("holdfast_trial", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["holdfast_trial"] = module
    spec.loader.exec_module(module)
    made = attrgetter(name)(module)()
    if part == MAKE_KEYS:
        _make_keys(made.make(Path(place)))
        return
    trial: Trial = made
    backend = trial.make(Path(place), SystemClock())
    _PARTS[part](backend)
    backend.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
