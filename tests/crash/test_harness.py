"""What judges, by itself: each broken promise is named, and nothing that is allowed is.

Faults are planted in tests/torture.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.crash.children import Child
from tests.crash.verdict import Said, judge
from tests.outside.chains import Event


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


def test_one_that_ended_unheard_was_not_stopped() -> None:
    child = Child(lambda _pipe, _stop: None)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not child.await_stop()
    assert child.status == 0
