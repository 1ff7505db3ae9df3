"""A test that can find nothing proves nothing: planted faults must be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.kill import BACKENDS, PLANTS
from tests.crash.verdict import Said, judge
from tests.outside.chains import Event

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_harness_notices_a_lost_acknowledgement(
    backend: str, plant: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.crash.kill", backend, "--plant", plant]
    done = subprocess.run(
        [*command, "--kills", "150", "--seed", "1"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith(f"FAILED {backend}, seed 1"), done.stdout
    assert f"Replay it: python -m tests.crash.kill {backend} --seed 1 --trial" in done.stdout


def event(stream: str, revision: int, payload: str) -> Event:
    data = f'[["append","log","{payload}"]]'.encode()
    return Event(stream, revision, 1, 0, "changed", "w", data, b"", None, None, None)


def said() -> Said:
    """Three operations: one over two streams, one that was not acknowledged, also over two."""
    spoken = Said()
    for id, streams in (("op:1.1", "ab"), ("op:1.2", "a"), ("op:1.3", "ab")):
        begun = {"begun": id, "streams": list(streams), "thread": "op:1", "key": False}
        spoken.take([begun | {"mark": id == "op:1.1"}])
    spoken.take([{"done": "op:1.1"}, {"done": "op:1.2"}])
    return spoken


WHOLE = [event("a", 1, "op:1.1"), event("b", 1, "op:1.1"), event("a", 2, "op:1.2")]


def test_a_store_that_keeps_its_promises_is_found_so() -> None:
    assert judge(said(), WHOLE, {"op:1.1"}) == []
    tail = [event("a", 3, "op:1.3"), event("b", 2, "op:1.3")]
    assert judge(said(), WHOLE + tail, {"op:1.1"}) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda events: events[:2], "acknowledged and is not there"),
        (lambda events: [events[0], events[2]], "acknowledged and is not there"),
        (lambda events: [*events, event("a", 3, "op:1.2")], "more than once"),
        (lambda events: [*events, event("a", 3, "op:1.3")], "by halves"),
        (lambda events: [*events, event("a", 3, "op:9.9")], "nobody wrote it"),
        (lambda events: [events[2], events[1], events[0]], "order"),
    ],
)
def test_each_broken_promise_is_named(
    change: Callable[[list[Event]], list[Event]], problem: str
) -> None:
    assert problem in "\n".join(judge(said(), change(WHOLE), {"op:1.1"}))


def test_a_lost_mark_is_named() -> None:
    assert "mark of op:1.1" in "\n".join(judge(said(), WHOLE, set()))
