"""Events that change no state are appended without folding it, however long the stream is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Commit, Head, Receipt, Record, Refusal
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.log import Log
from holdfast.core.snapshot import REPLAYED_EVENTS_MIN
from holdfast.core.tree import increment_op
from holdfast.errors import ClosedError, ConflictError, CorruptError, NotFoundError, UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log

NOTE = NewEvent("note.taken", b'{"text":"hi"}')


class Counting(MemoryBackend):
    """Counts the records that are read."""

    records_read = 0
    loses: int | None = None

    def read(self, stream: str, **options: Any) -> list[Record]:
        found = super().read(stream, **options)
        self.records_read += len(found)
        return [record for record in found if record.revision != self.loses]


@pytest.fixture
def backend() -> Counting:
    return Counting(clock=FakeClock())


def open_on(backend: MemoryBackend) -> Store:
    log = Log(backend, clock=FakeClock(), actor="tester")
    return store_of_log(log, url="memory:", worker="w")


def long_scope(backend: MemoryBackend, events: int = 500, **options: Any) -> None:
    scope = open_on(backend).conversation("c", **options)
    for number in range(events):
        scope.set("n", number)


def note(store: Store, *, name: str = "conversation/c", **options: Any) -> Any:
    return store._log.commit(ProposedCommit((StreamWrite(name, (NOTE,), **options),)))


def test_an_unread_stream_is_not_folded(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    backend.records_read = 0
    assert note(hf).revision == 501
    assert note(hf).revision == 502
    assert backend.records_read <= 3
    assert hf.conversation("c").revision == 502
    assert hf.conversation("c").life.updated_at is not None
    assert backend.records_read <= 3
    assert hf.conversation("c").get("n") == 499
    assert hf.check().ok


def test_a_checkpoint_and_a_fork_of_an_unread_stream_fold_nothing(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    backend.records_read = 0
    chat = hf.conversation("c")
    chat.checkpoint("here")
    fork = chat.fork("d", at=400)
    assert backend.records_read <= 8
    assert fork.get("n") == 399
    with pytest.raises(NotFoundError, match="no revision 900"):
        chat.fork("e", at=900)
    assert hf.check().ok


def test_a_fold_that_is_in_memory_is_kept_up_to_date(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    assert hf.conversation("c").get("n") == 499
    backend.records_read = 0
    note(hf)
    assert hf.conversation("c").get("n") == 499
    assert backend.records_read == 0


def test_another_writer_is_noticed_without_a_fold(backend: Counting) -> None:
    long_scope(backend)
    hf, other = open_on(backend), open_on(backend)
    note(hf)
    other.conversation("c").set("n", -1)
    backend.records_read = 0
    assert note(hf).revision == 503
    assert backend.records_read <= 3
    with pytest.raises(ConflictError) as caught:
        note(hf, expected=7)
    assert (caught.value.expected, caught.value.actual) == (7, 503)
    assert note(hf, expected=503).revision == 504


def test_a_stale_fold_is_read_on(backend: Counting) -> None:
    hf, other = open_on(backend), open_on(backend)
    hf.conversation("c").set("n", 1)
    other.conversation("c").set("n", 2)
    assert note(hf).revision == 3
    assert hf.conversation("c").get("n") == 2


def test_a_closed_stream_takes_no_events(backend: Counting) -> None:
    """Nothing follows `closed`, so the newest event alone says it; a fork is open again."""
    long_scope(backend)
    open_on(backend).conversation("c").close(keep=False)
    hf = open_on(backend)
    with pytest.raises(ClosedError):
        note(hf)
    hf.conversation("c").fork("d")
    assert note(hf, name="conversation/d").revision == 503
    hf.conversation("c").fork("e", at=500)
    assert hf.conversation("e").get("n") == 499


def test_a_key_answers_without_a_fold(backend: Counting) -> None:
    long_scope(backend)
    hf = open_on(backend)
    first = note(hf, key="k")
    assert not first.repeated
    backend.records_read = 0
    again = note(open_on(backend), key="k")
    assert again.repeated
    assert again.revision == first.revision
    assert again.before[0].revision == 500
    assert backend.records_read <= 6
    fresh = note(hf, name="conversation/new", key="k")
    assert note(hf, name="conversation/new", key="k").before[0].revision == 0
    assert fresh.revision == 1
    with pytest.raises(UsageError, match="another change"):
        hf._log.commit(
            ProposedCommit((StreamWrite("conversation/c", (NewEvent("x.y", b"1"),), key="k"),))
        )


def test_the_parent_is_known_from_the_first_event(backend: Counting) -> None:
    team = open_on(backend).team("t")
    long_scope(backend, parent=team)
    hf = open_on(backend)
    backend.records_read = 0
    assert note(hf, parent="team/t").revision == 502
    assert note(hf, parent="team/t").revision == 503
    hf.conversation("c").fork("d")
    assert note(hf, name="conversation/d", parent="team/t").revision == 505
    assert backend.records_read <= 16
    assert note(hf, parent="team/other").revision == 505  # recorded first
    parent = hf.conversation("c").parent
    assert parent is not None
    assert parent.name == "team/other"


def test_a_parent_given_later_is_recorded_once(backend: Counting) -> None:
    long_scope(backend, events=3)
    assert note(open_on(backend), parent="team/t").revision == 5
    assert note(open_on(backend), parent="team/t").revision == 6


def test_an_event_that_is_lost_is_corruption(backend: Counting) -> None:
    long_scope(backend, events=3)
    backend.loses = 3
    with pytest.raises(CorruptError, match="event 3 of") as caught:
        note(open_on(backend))
    assert caught.value.revision == 3


class Late(MemoryBackend):
    """Lets a test put requests together into one batch."""

    batches: list[int]

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        self.batches.append(len(commits))
        return super().commit(commits)


def test_a_change_waits_for_a_neighbour_that_folded_nothing() -> None:
    """All are in one batch: the change needs the state, which the event before it has not.

    What comes behind it in its stream waits too: the order of the line is that of the stream.
    """
    backend = Late(clock=FakeClock())
    backend.batches = []
    long_scope(backend, events=3)
    log = open_on(backend)._log
    backend.batches = []
    from holdfast.core.commit_queue import Request

    wanted = [
        ProposedCommit((StreamWrite("conversation/c", (NOTE,)),)),
        ProposedCommit((StreamWrite("conversation/c", (changed([increment_op("n", 9)]),)),)),
        ProposedCommit((StreamWrite("conversation/c", (NOTE,)),)),
    ]
    requests = [Request(one) for one in wanted]
    log._run(requests)  # pyright: ignore[reportPrivateUsage]
    assert [request.outcome().revision for request in requests] == [4, 5, 6]
    assert backend.batches == [1, 2]
    assert log.newest("conversation/c").root["n"] == 11


def test_commits_that_are_put_in_line_together_are_one_batch() -> None:
    backend = Late(clock=FakeClock())
    backend.batches = []
    log = open_on(backend)._log
    wanted = [
        ProposedCommit((StreamWrite("conversation/c", (NOTE,), key=f"k{n}"),)) for n in range(5)
    ]
    requests = log.submit_all(wanted)
    assert [log.wait(request).revision for request in requests] == [1, 2, 3, 4, 5]
    assert backend.batches == [5]
    log.close()


def test_who_had_to_fold_a_long_stream_leaves_a_snapshot(backend: Counting) -> None:
    """Whoever only appends events leaves none; so the first reader does, for those behind."""
    hf = open_on(backend)
    hf.conversation("c").set("n", 1)
    new_events = tuple([NOTE] * REPLAYED_EVENTS_MIN)
    hf._log.commit(ProposedCommit((StreamWrite("conversation/c", new_events),)))
    hf._log.snapshots.flush({})
    for name in backend.objects.names("snapshot"):
        backend.objects.delete("snapshot", name)
    reader = open_on(backend)
    assert reader.conversation("c").get("n") == 1
    reader._log.snapshots.flush(reader._log._states)  # pyright: ignore[reportPrivateUsage]
    backend.records_read = 0
    assert open_on(backend).conversation("c").get("n") == 1
    assert backend.records_read <= 2


def test_the_first_parent_of_a_scope_that_has_none(backend: Counting) -> None:
    hf = open_on(backend)
    note(hf, name="conversation/n")
    again = open_on(backend)
    note(again, name="conversation/n")
    assert again.conversation("n").parent is None


class Asked(MemoryBackend):
    """Counts how often it is asked for the ends of streams: on a server each is a round trip."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.heads_asked: list[str] = []

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self.heads_asked.append(" ".join(streams))
        return super().heads(streams)


def test_a_new_scope_asks_once_for_what_the_store_says_of_its_level() -> None:
    backend = Asked()
    hf = open_on(backend)
    hf.conversation("a").set("n", 1)
    backend.heads_asked.clear()
    hf.conversation("b").set("n", 1)
    assert backend.heads_asked == ["conversation/b", "policy/store"]
    backend.heads_asked.clear()
    with hf.commit() as tx:
        for id in ("c", "d", "e"):
            tx.scope(hf.conversation(id)).set("n", 1)
    assert backend.heads_asked.count("policy/store") == 1
    backend.heads_asked.clear()
    hf.conversation("b").set("n", 2)
    hf.conversation("c").messages.add("user", "hi")
    assert backend.heads_asked == []
