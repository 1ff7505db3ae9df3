"""Requests of one batch: none is answered by what a neighbour wanted and did not get (clause 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Commit, Fence, Receipt, Record, Refusal
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.commit_queue import Request
from holdfast.core.log import Log
from holdfast.core.tree import append_op, set_op
from holdfast.errors import ConflictError, LeaseLostError, UnavailableError
from holdfast.testing import FakeClock, FaultyBackend

LOST = Fence("boss", "nobody", 1)


def want(op: object, expected: int | None = None, fence: Fence | None = None) -> Request:
    part = StreamWrite("team/a", (changed([op]),), expected)  # type: ignore[list-item]
    return Request(ProposedCommit((part,), fence=fence))


@pytest.fixture
def log() -> Log:
    clock = FakeClock()
    log = Log(MemoryBackend(clock=clock), clock=clock, actor="w")
    log.commit(want(set_op("n", 1)).work)
    return log


def test_guarantee_3_a_guard_is_not_refused_for_a_neighbour_that_was_not_written(log: Log) -> None:
    """T9 found it: the conflict named a revision that never came to be."""
    fenced, guarded = want(set_op("n", 2), fence=LOST), want(set_op("n", 3), expected=1)
    log._run([fenced, guarded])
    with pytest.raises(LeaseLostError):
        fenced.outcome()
    assert guarded.outcome().revision == 2


def test_guarantee_3_a_guard_is_refused_for_a_neighbour_that_was_written(log: Log) -> None:
    first, guarded = want(set_op("n", 2)), want(set_op("n", 3), expected=1)
    log._run([first, guarded])
    assert first.outcome().revision == 2
    with pytest.raises(ConflictError) as caught:
        guarded.outcome()
    assert (caught.value.expected, caught.value.actual) == (1, 2)


def test_a_change_is_not_refused_for_what_a_neighbour_did_not_write(log: Log) -> None:
    """An append to what the neighbour would have made a number."""
    fenced, append = want(set_op("log", 2), fence=LOST), want(append_op("log", 3))
    log._run([fenced, append])
    with pytest.raises(LeaseLostError):
        fenced.outcome()
    assert append.outcome().after[0].root == {"n": 1, "log": [3]}


def test_nothing_overtakes_a_commit_of_its_stream_that_waits_for_a_neighbour(log: Log) -> None:
    """Guarantee 5: what was put in line first is first in its stream, the end of a run last."""
    fenced = want(set_op("log", 2), fence=LOST)
    noted = NewEvent("test.noted", b"null")
    both = ProposedCommit(
        (StreamWrite("run/r", (noted,)), StreamWrite("team/a", (changed([append_op("log", 3)]),)))
    )
    ended = ProposedCommit((StreamWrite("run/r", (NewEvent("test.ended", b"null"),)),))
    waits, last, other = (
        Request(both),
        Request(ended),
        Request(ProposedCommit((StreamWrite("x", (noted,)),))),
    )
    log._run([fenced, waits, last, other])
    assert [record.type for record in log.records("run/r")] == ["test.noted", "test.ended"]
    assert (waits.outcome().revision, last.outcome().revision) == (1, 2)
    assert other.outcome().position < waits.outcome().position  # which shares no stream with it


def test_nobody_is_told_of_a_conflict_when_the_backend_failed(log: Log) -> None:
    clock = FakeClock()
    inner = log._backend
    log = Log(FaultyBackend(inner, {1: "before"}), clock=clock, actor="w")
    first, guarded = want(set_op("n", 2)), want(set_op("n", 3), expected=1)
    log._queue.submit(first, guarded)
    for request in (first, guarded):
        with pytest.raises(UnavailableError):
            log.wait(request)


def test_what_is_asked_right_before_it_is_sent_is_answered_alone(log: Log) -> None:
    """`abort_if`: an error is the answer, and what was laid on it is laid again."""
    told: list[BaseException] = []
    gone = LeaseLostError("the run has ended", lease="run/r", epoch=1)
    part = StreamWrite("team/a", (changed([set_op("n", 2)]),))
    sent = Request(ProposedCommit((part,), abort_if=lambda: None))
    held = Request(ProposedCommit((part,), abort_if=lambda: gone), failed=told.append)
    behind = want(set_op("n", 3))
    log._run([sent, held, behind])
    assert (sent.outcome().revision, behind.outcome().revision) == (2, 3)
    with pytest.raises(LeaseLostError, match="has ended"):
        held.outcome()
    assert told == [gone]


def test_nothing_is_sent_where_nothing_is_to_be_written(log: Log) -> None:
    before = log.position()
    gone = LeaseLostError("the run has ended", lease="run/r", epoch=1)
    part = StreamWrite("team/a", (changed([set_op("n", 2)]),))
    log._backend.commit = None  # type: ignore[method-assign]  # whoever calls it fails
    told: list[BaseException] = []
    with pytest.raises(LeaseLostError, match="has ended"):
        log.commit(ProposedCommit((part,), abort_if=lambda: gone, failed=told.append))
    assert (told, log.position()) == ([gone], before)


def test_what_depends_on_a_commit_that_failed_is_not_written(log: Log) -> None:
    """A run's journal has no holes: whoever is behind is asked again when the first has failed."""
    told: list[BaseException] = []

    def abort_if() -> UnavailableError | None:
        return UnavailableError("what it depends on was not written") if told else None

    fenced = Request(want(set_op("n", 2), fence=LOST).work, failed=told.append)
    behind = Request(msgspec.structs.replace(want(set_op("n", 3)).work, abort_if=abort_if))
    other = want(set_op("n", 4))
    log._run([fenced, behind, other])
    assert [type(error) for error in told] == [LeaseLostError]
    with pytest.raises(UnavailableError, match="what it depends on"):
        behind.outcome()
    assert other.outcome().revision == 2
    alone = Request(behind.work)
    log._run([alone])
    with pytest.raises(UnavailableError, match="what it depends on"):
        alone.outcome()
    told.clear()
    log._run([again := Request(behind.work)])
    assert again.outcome().after[0].root == {"n": 3}


class Failing(MemoryBackend):
    """Answers a list of commits, and goes down."""

    is_down = goes_down = False

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        answers = super().commit(commits)
        self.is_down = self.goes_down
        return answers

    def read(self, stream: str, **options: Any) -> list[Record]:
        if self.is_down:
            raise UnavailableError("the server is down")
        return super().read(stream, **options)


def test_guarantee_1_what_was_written_is_not_denied_with_a_neighbour_that_was_not() -> None:
    """Clause 1: of the one that came too late nothing can be read; the other has its receipt."""
    backend = Failing(clock=FakeClock())
    log, other = (Log(backend, clock=FakeClock(), actor=actor) for actor in "wo")
    log.commit(want(set_op("n", 1)).work)
    other.commit(want(set_op("n", 2)).work)
    elsewhere = StreamWrite("team/b", (changed([set_op("n", 1)]),))
    late, written = want(set_op("n", 3)), Request(ProposedCommit((elsewhere,)))
    backend.goes_down = True
    log._queue.submit(late, written)
    assert log.wait(written).revision == 1
    with pytest.raises(UnavailableError, match="is down") as caught:
        log.wait(late)
    assert caught.value.outcome_known
    assert [head and head.revision for head in backend.heads(["team/a", "team/b"])] == [2, 1]
