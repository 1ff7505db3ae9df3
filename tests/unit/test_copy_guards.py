"""A copy whose target is written to by somebody else, or that stops half-way (decision 0009)."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import START
from holdfast.core.expiry import EXPIRING
from holdfast.errors import ConflictError, ExpiredError
from holdfast.testing.clock import FakeClock
from holdfast.transfer.copy import copy_log as copy
from holdfast.transfer.sink import Sink


def test_a_stranger_in_the_target_is_a_conflict_and_never_a_broken_chain() -> None:
    """Guarantee 6: events of two histories must not stand in one stream, whoever came first."""
    with holdfast.open("memory:") as source, holdfast.open("memory:") as target:
        for number in range(500):
            source.team("t").set("n", number)

        def intrude(passed: int, total: int) -> None:
            if target.team("t").revision == passed < total:
                target.team("t").set("n", "a stranger's")

        with pytest.raises(ConflictError, match="other events"):
            copy(source._log, target._log, progress=intrude)
        assert target.check().ok
        assert target.team("t").get("n") == "a stranger's"


def test_a_copy_that_stops_before_the_marks_knows_what_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decision 0010: the mark of a scope that ends by itself comes with its first event."""
    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as source,
        holdfast.open("memory:", settings=Settings(clock=clock)) as target,
    ):
        source.conversation("short", ttl_s=60).set("n", 1)
        source.conversation("short").set("n", 2)
        source.team("t").set("n", 1)

        def killed(self: Sink, marks: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Sink, "set_marks", killed)
        with pytest.raises(KeyboardInterrupt):
            copy(source._log, target._log)
        assert [mark.key for mark in target.workers.marks(EXPIRING)] == ["conversation/short"]
        assert len(list(target.conversation("short").history())) == 3
        clock.advance(61)
        with pytest.raises(ExpiredError):
            list(target.conversation("short").history())
        assert [
            event.stream for event in target.follow(as_events=True, after=START, timeout_s=0)
        ] == ["team/t"]


def test_what_has_ended_is_not_said_to_be_there() -> None:
    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as source,
        holdfast.open("memory:") as target,
    ):
        source.conversation("short", ttl_s=60).set("n", 1)
        source.team("t").set("n", 1)
        clock.advance(61)
        copied = copy(source._log, target._log)
    assert (copied.events, copied.skipped, copied.ended) == (1, 0, 2)
