"""The log when what lies below is damaged, is taken by others, or fails."""

from __future__ import annotations

import builtins
import errno
import os
import sys
from itertools import chain, pairwise, repeat
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import START, Head, Position
from holdfast.core import codec, event, tree
from holdfast.core.arguments import update_ops
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.log import Log, scope_stream
from holdfast.core.snapshot import Snapshots
from holdfast.errors import (
    ConflictError,
    CorruptError,
    LostCommitsError,
    UnavailableError,
    ValueDomainError,
)
from holdfast.store import Store
from holdfast.testing import FakeClock, RecordBuilder
from tests.opening import store_of_log


def store_on(backend: Any, clock: FakeClock) -> Store:
    return store_of_log(Log(backend, clock=clock, actor="tester"), url="memory:", worker="w")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_stream_that_goes_between_two_questions_is_asked_for_once(clock: FakeClock) -> None:
    """A server that comes back poorer in mid-call: what was there when it was asked for counts.

    Found by T2, `t2-redis-everysec-power --seed 4 --point 2`.
    """
    backend = MemoryBackend(clock=clock)
    store_on(backend, clock).conversation("c").set("n", 1)
    late = store_on(backend, clock)
    answers = chain([backend.heads(["conversation/c"])], repeat([None]))
    backend.heads = lambda streams: next(answers)  # type: ignore[method-assign]
    assert late._log.newest("conversation/c").revision == 1
    assert late._log.newest("conversation/c").revision == 0


# --- guards --------------------------------------------------------------------------------------


def test_a_guard_is_judged_by_what_is_there_and_not_by_what_is_remembered(clock: FakeClock) -> None:
    """Guarantee 3: a fold in memory may be behind; a guard that is right must not be refused."""
    backend = MemoryBackend(clock=clock)
    mine, other = store_on(backend, clock), store_on(backend, clock)
    mine.conversation("c").set("n", 1)
    other.conversation("c").set("n", 2)
    part = scope_stream(mine.conversation("c")).change_write(update_ops({"n": 3}), 2, None, None)
    assert mine._log.commit(ProposedCommit((part,))).revision == 3
    stale = scope_stream(mine.conversation("c")).change_write(update_ops({"n": 4}), 1, None, None)
    with pytest.raises(ConflictError) as caught:
        mine._log.commit(ProposedCommit((stale,)))
    assert (caught.value.expected, caught.value.actual) == (1, 3)


@pytest.mark.parametrize("stale", [0, 1])
def test_a_conflict_names_the_stream_that_was_read_too_early(clock: FakeClock, stale: int) -> None:
    store = store_on(MemoryBackend(clock=clock), clock)
    names = []
    for number in range(2):
        scope = store.conversation(f"r{number}")
        scope.set("n", 1)
        names.append(scope.name)
    part = scope_stream(store.conversation("c")).change_write(
        update_ops({"n": 1}), None, None, None
    )
    reads = [(name, 1) for name in names]
    reads[stale] = (names[stale], 7)
    with pytest.raises(ConflictError) as caught:
        store._log.commit(ProposedCommit((part,), reads=tuple(reads)))
    assert (caught.value.stream, caught.value.expected, caught.value.actual) == (names[stale], 7, 1)
    assert store._log.head("conversation/c") is None


# --- damage --------------------------------------------------------------------------------------


class Damaged(MemoryBackend):
    """Has lost the events behind `lost_after`, or remembers another link for its heads."""

    lost_after = 1 << 60
    link: bytes | None = None

    def read(self, *args: Any, **named: Any) -> Any:
        return [r for r in super().read(*args, **named) if r.revision <= self.lost_after]

    def heads(self, streams: Any) -> list[Head | None]:
        heads = super().heads(streams)
        if self.link is None:
            return heads
        return [h and msgspec.structs.replace(h, link=self.link) for h in heads]


def test_guarantee_6_events_that_are_lost_at_the_end_are_corruption(clock: FakeClock) -> None:
    backend = Damaged(clock=clock)
    for number in range(3):
        store_on(backend, clock).conversation("c").set("n", number)
    backend.lost_after = 2
    with pytest.raises(CorruptError, match="ends at revision 2: its head says 3") as caught:
        _ = store_on(backend, clock).conversation("c").state
    assert caught.value.revision == 3


def test_guarantee_6_a_head_that_the_events_do_not_lead_to_is_corruption(clock: FakeClock) -> None:
    backend = Damaged(clock=clock)
    store_on(backend, clock).conversation("c").set("n", 1)
    backend.link = bytes(32)
    with pytest.raises(CorruptError, match="does not fold to its head"):
        _ = store_on(backend, clock).conversation("c").state


class Restarted(MemoryBackend):
    """A server that told of its newest event, and came back without it."""

    ghost: Head | None = None

    def heads(self, streams: Any) -> list[Head | None]:
        ghost, self.ghost = self.ghost, None
        return super().heads(streams) if ghost is None else [ghost]


@pytest.mark.parametrize("revision", [2, 1], ids=["gone", "another instead"])
def test_guarantee_6_what_a_server_told_and_lost_in_a_restart_is_no_corruption(
    clock: FakeClock, revision: int
) -> None:
    backend = Restarted(clock=clock)
    store_on(backend, clock).conversation("c").set("n", 1)
    [head] = backend.heads(["conversation/c"])
    assert head is not None
    store = store_on(backend, clock)
    backend.ghost = msgspec.structs.replace(head, revision=revision, link=bytes(32))
    with pytest.raises(LostCommitsError, match=f"revision {revision} of .* was there and is gone"):
        _ = store.conversation("c").state
    assert store.conversation("c").state == {"n": 1}


@pytest.mark.parametrize("way", [("a", "a"), ("a", "b", "a")], ids=["itself", "each other"])
def test_a_fork_of_itself_is_corruption_and_not_read_for_ever(
    clock: FakeClock, way: tuple[str, ...]
) -> None:
    backend = MemoryBackend(clock=clock)
    builder = RecordBuilder(clock.now_us())
    root = builder.append("root", b"1", b"2", b"3")
    backend.commit([builder.commit(root)])
    for stream, origin in pairwise(way):
        payload = b'{"from":"%b","at":3}' % origin.encode()
        fork = builder.append(stream, payload, behind=root, fork=True, type=event.FORKED)
        backend.commit([builder.commit(fork)])
    log = store_on(backend, clock)._log
    with pytest.raises(CorruptError, match="forked from itself"):
        log.origin("a")


def test_a_stream_that_is_not_there_has_no_origin(clock: FakeClock) -> None:
    log = store_on(MemoryBackend(clock=clock), clock)._log
    assert log.origin("conversation/none") is None
    assert log.records("conversation/none") == []
    store_on(log._backend, clock).conversation("none").set("n", 1)
    assert log.origin("conversation/none") is None


# --- waiting -------------------------------------------------------------------------------------


def test_a_wait_without_a_limit_goes_on_until_something_comes(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    asked: list[float] = []
    answers = [START, START, Position(7)]

    def wait(after: Position, *, timeout_s: float) -> Position:
        asked.append(timeout_s)
        return answers[min(len(asked), len(answers)) - 1]

    backend.wait = wait  # type: ignore[method-assign]
    log = Log(backend, clock=clock, actor="tester")
    assert log.wait_after(START, None) == 7
    assert asked[:3] == [0, 1.0, 1.0]


# --- snapshots -----------------------------------------------------------------------------------


def grown(backend: MemoryBackend, clock: FakeClock) -> Store:
    """Returns a store with a stream that is worth a snapshot at its close, and has one."""
    store = store_on(backend, clock)
    for number in range(200):
        store.conversation("c").append("l", f"{number} " + "x" * 200)
    store._log.snapshots.flush(vars(store._log)["_states"])
    assert store._log.snapshots.revisions("conversation/c") == [200]
    return store


def test_a_snapshot_of_another_history_is_discarded(clock: FakeClock) -> None:
    """A copy that went another way, or a log that lost its end and grew again."""
    backend, other = MemoryBackend(clock=clock), MemoryBackend(clock=FakeClock(1))
    grown(backend, clock)
    grown(other, FakeClock(1))
    (name,) = backend.objects.names("snapshot")
    backend.objects.put("snapshot", name, other.objects.get("snapshot", name) or b"")
    store = store_on(backend, clock)
    assert len(store.conversation("c").state["l"]) == 200
    assert "disagrees with the log; it was discarded" in store._log.reports[0]
    assert backend.objects.names("snapshot") == []


def test_a_damaged_snapshot_that_cannot_be_deleted_is_reported_and_passed_over(
    clock: FakeClock,
) -> None:
    backend = MemoryBackend(clock=clock)
    grown(backend, clock)
    (name,) = backend.objects.names("snapshot")
    backend.objects.put("snapshot", name, b"no snapshot")

    def delete(kind: str, name: str) -> None:
        raise UnavailableError("the file system is read-only")

    backend.objects.delete = delete  # type: ignore[method-assign]
    store = store_on(backend, clock)
    assert len(store.conversation("c").state["l"]) == 200
    assert "fails its digest" in store._log.reports[0]
    assert "could not be deleted: the file system is read-only" in store._log.reports[1]


def test_a_snapshot_that_cannot_be_written_costs_no_commit(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.snapshot.GROWTH_BYTES_MIN", 1000)
    backend = MemoryBackend(clock=clock)

    def put(kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        raise UnavailableError("the disk is full")

    real, backend.objects.put = backend.objects.put, put  # type: ignore[method-assign]
    store = store_on(backend, clock)
    for number in range(20):
        assert store.conversation("c").append("l", "x" * 300) == number + 1
    assert store._log.reports
    assert 'snapshot of "conversation/c" was not written: the disk is full' in store._log.reports[0]
    backend.objects.put = real  # type: ignore[method-assign]
    for _ in range(20):
        store.conversation("c").append("l", "x" * 300)
    assert store._log.snapshots.revisions("conversation/c")


def test_a_name_that_is_no_number_is_no_snapshot(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    snapshots: Snapshots = grown(backend, clock)._log.snapshots
    (name,) = backend.objects.names("snapshot")
    backend.objects.put("snapshot", name[:-1] + "x", b"damage")
    assert snapshots.revisions("conversation/c") == [200]


# --- events and values ---------------------------------------------------------------------------


def test_an_event_shows_what_was_recorded(clock: FakeClock) -> None:
    store = store_on(MemoryBackend(clock=clock), clock)
    store.conversation("c").set("n", 1, key="once", checkpoint="named")
    (found,) = store.conversation("c").history()
    assert (found.checkpoint, found.key, found.actor) == ("named", "once", "tester")
    assert repr(found) == "<Event conversation/c@1 changed>"


def test_a_value_that_needs_tags_keeps_what_needs_none() -> None:
    value = {"none": None, "true": True, "text": "é", "bytes": b"\0", "list": [None, "ü"]}
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_that_cannot_fit_are_refused_before_they_are_copied(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(codec, "SIZE_MAX", 100)
    assert codec.decode(codec.encode({"b": kind(bytes(100))}, size_max=1000)) == {"b": bytes(100)}
    with pytest.raises(ValueDomainError, match="takes 101 bytes: at most 100 fit") as caught:
        codec.encode({"b": kind(bytes(101))}, size_max=1000)
    assert caught.value.path == ("b",)


def test_a_text_that_looks_like_a_tag_is_a_text() -> None:
    assert codec.decode(b'"$float"') == "$float"


def test_a_structure_of_ours_that_is_damaged_is_corruption() -> None:
    with pytest.raises(CorruptError, match="is not a Head"):
        codec.decode_as(b'{"revision":"no number"}', Head)


def test_no_depth_of_nesting_is_another_error_than_corruption() -> None:
    limit = sys.getrecursionlimit()
    refused = 0
    for depth in (*range(limit - 200, limit + 50), 1_000_000):
        try:
            codec.decode(b"[" * depth + b"]" * depth)
        except CorruptError:
            refused += 1
        codec.check(b"[" * depth + b"]" * depth)  # in pieces: it is sound, if of no use to anybody
    assert refused


def test_check_reads_the_blobs_of_every_event() -> None:
    """Events of the layers above name blobs too, wherever in their data."""
    with holdfast.open("memory:") as store:
        scope = store.team("red")
        op = store._log.blobs.spill(tree.set_op("value", "large " * 20_000), scope.name)
        payload = b'{"said":[' + bytes(op.value) + b"]}"
        part = StreamWrite(scope.name, (NewEvent("layer.said", payload),))
        store._log.commit(ProposedCommit((part,)))
        assert store.check().ok
        [name] = store._log._backend.objects.names("blob")
        store._log._backend.objects.delete("blob", name)
        assert [finding.harmless for finding in store.check().findings] == [False]


# --- what is loaded late -------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.EACCES])
def test_a_module_that_cannot_be_read_is_said_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    def unreadable(*_: object, **__: object) -> object:
        raise OSError(problem, os.strerror(problem))

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", unreadable)
        with pytest.raises(UnavailableError) as caught:
            codec.compress(b"data")
    assert "zstandard cannot be loaded" in str(caught.value)
    assert ("ulimit -n" in str(caught.value)) == (problem == errno.EMFILE)
