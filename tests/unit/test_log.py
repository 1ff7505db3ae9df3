"""The log above a backend that fails, lies or is shared."""

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Record
from holdfast.core.event import EMPTY
from holdfast.core.folds import FOLD_BYTES
from holdfast.core.log import BACK_CHUNK, Log, scope_stream
from holdfast.core.tree import Map, footprint
from holdfast.errors import ConflictError, CorruptError, NotFoundError, UnavailableError, UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock, FaultyBackend
from tests.opening import store_of_log


def store_on(backend: Any, clock: FakeClock) -> Store:
    return store_of_log(Log(backend, clock=clock, actor="tester"), url="memory:", worker="w")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_is_settled_by_the_key(clock: FakeClock, when: Any) -> None:
    hf = store_on(FaultyBackend(MemoryBackend(clock=clock), {2: when}), clock)
    chat = hf.conversation("c")
    chat.append("l", 0)
    with pytest.raises(UnavailableError) as caught:
        chat.append("l", 1, key="once")
    assert not caught.value.outcome_known
    assert chat.append("l", 1, key="once") == 2
    assert list(chat.state["l"]) == [0, 1]


def test_time_never_falls_within_a_stream_and_at_datetime_still_works(clock: FakeClock) -> None:
    hf = store_on(MemoryBackend(clock=clock), clock)
    chat = hf.conversation("c")
    chat.set("n", 1)
    clock.set(clock.now_us() - 3_600_000_000)
    chat.set("n", 2)
    clock.advance(7200)
    chat.set("n", 3)
    times = [event.time for event in chat.history()]
    assert times == sorted(times)
    assert times[0] == times[1]
    assert chat.at(times[0]) == {"n": 2}
    assert chat.at(times[2]) == {"n": 3}


class Lying(MemoryBackend):
    """Returns records through a function that may change them."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.lie = lambda record: record  # pyright: ignore

    def read(self, *args: Any, **kwargs: Any) -> list[Record]:
        return [
            changed
            for record in super().read(*args, **kwargs)
            if (changed := self.lie(record)) is not None  # pyright: ignore
        ]


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (lambda r: msgspec.structs.replace(r, payload=r.payload.replace(b"7", b"8")), "link"),
        (lambda r: msgspec.structs.replace(r, actor="mallory"), "link"),
        (lambda r: msgspec.structs.replace(r, checkpoint="forged"), "link"),
        (lambda r: None if r.revision == 2 else r, "missing"),
    ],
)
def test_what_does_not_match_its_link_is_corrupt_never_a_value(
    clock: FakeClock, lie: Any, message: str
) -> None:
    backend = Lying(clock)
    store_on(backend, clock).conversation("c").update({"n": 7})
    store_on(backend, clock).conversation("c").update({"n": 17})
    store_on(backend, clock).conversation("c").update({"n": 27})
    backend.lie = lie
    fresh = store_on(backend, clock).conversation("c")
    with pytest.raises(CorruptError, match=message):
        _ = fresh.state


def test_an_event_that_does_not_fit_is_corrupt(clock: FakeClock) -> None:
    from holdfast.testing import RecordBuilder

    backend = MemoryBackend(clock=clock)
    builder = RecordBuilder(clock.now_us(), actor="x")
    append = builder.append("conversation/c", b'[["set","text","x"],["append","text",1]]')
    backend.commit([builder.commit(append)])
    with pytest.raises(CorruptError):
        _ = store_on(backend, clock).conversation("c").state


def test_an_unknown_event_type_leaves_the_state_as_it_is(clock: FakeClock) -> None:
    hf = store_on(MemoryBackend(clock=clock), clock)
    chat = hf.conversation("c")
    chat.set("a", 1)
    from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite

    hf._log.commit(ProposedCommit((StreamWrite(chat.name, (NewEvent("note.taken", b'{"x":1}'),)),)))
    assert chat.state == {"a": 1}
    assert [event.data for event in chat.history(after=1)] == [{"x": 1}]
    assert hf.check().ok


def test_a_missing_or_wrong_blob_is_corrupt(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    hf = store_on(backend, clock)
    hf.conversation("c").set("doc", "x" * 100_000)
    (name,) = backend.objects.names("blob")
    good = backend.objects.get("blob", name)
    assert good is not None
    fresh = store_on(backend, clock).conversation("c")
    backend.objects.delete("blob", name)
    with pytest.raises(CorruptError, match="missing"):
        _ = fresh.state["doc"]
    hf.conversation("d").set("doc", "y" * 100_000)
    other = next(n for n in backend.objects.names("blob") if n != name)
    backend.objects.put("blob", name, backend.objects.get("blob", other) or b"")
    with pytest.raises(CorruptError):
        _ = store_on(backend, clock).conversation("c").state["doc"]
    assert not hf.check().ok
    backend.objects.put("blob", name, good)
    assert hf.check().ok


def test_the_cache_of_folds_is_bounded(clock: FakeClock) -> None:
    hf = store_on(MemoryBackend(clock=clock), clock)
    hf._log.folds.bytes_max = 10 * (FOLD_BYTES + footprint(Map({"n": 1})))
    for n in range(50):
        hf.conversation(str(n)).set("n", n)
    assert len(hf._log.folds.states) == 10
    assert [hf.conversation(str(n)).state["n"] for n in range(50)] == list(range(50))


def test_a_peek_reads_no_events(clock: FakeClock) -> None:
    """What async readers are answered from without leaving their loop (VIC-36)."""
    backend = MemoryBackend(clock=clock)
    hf = store_on(backend, clock)
    backend.read = None  # type: ignore[assignment]  # whoever calls it fails
    assert hf._log.peek("conversation/c") == EMPTY
    hf.conversation("c").set("n", 1)
    assert hf._log.peek("conversation/c") == hf._log.newest("conversation/c")
    assert store_on(backend, clock)._log.peek("conversation/c") is None


def test_revisions_that_do_not_exist(clock: FakeClock) -> None:
    hf = store_on(MemoryBackend(clock=clock), clock)
    with pytest.raises(NotFoundError, match="no events yet"):
        hf.conversation("c").at(1)
    hf.conversation("c").set("a", 1)
    with pytest.raises(NotFoundError, match="it has 1 to 1"):
        hf.conversation("c").at(2)
    with pytest.raises(UsageError, match="a moment is"):
        hf.conversation("c").at(True)


def test_writers_that_always_lose_are_told(clock: FakeClock) -> None:
    backend = MemoryBackend(clock=clock)
    hf, other = store_on(backend, clock), store_on(backend, clock)
    chat = hf.conversation("c")
    chat.set("n", 0)
    inner = backend.commit

    def faster(commits: Any) -> Any:
        backend.commit = inner
        other.conversation("c").increment("others")
        try:
            return inner(commits)
        finally:
            backend.commit = faster  # pyright: ignore

    backend.commit = faster  # pyright: ignore
    with pytest.raises(UnavailableError, match="faster"):
        chat.set("n", 1)
    backend.commit = inner
    assert chat.state["n"] == 0


def test_requests_laid_on_a_refused_one_are_laid_again(clock: FakeClock) -> None:
    """Two stores, batches of several: a follower in a batch must not land on a stranger's event."""
    from holdfast.core.arguments import update_ops
    from holdfast.core.commit import ProposedCommit
    from holdfast.core.commit_queue import Request

    backend = MemoryBackend(clock=clock)
    mine, other = store_on(backend, clock), store_on(backend, clock)
    chat = mine.conversation("c")
    chat.set("n", 0)
    requests = [
        Request(
            ProposedCommit(
                (scope_stream(chat).change_write(update_ops({f"k{n}": n}), None, None, None),)
            )
        )
        for n in range(4)
    ]
    guarded = Request(
        ProposedCommit((scope_stream(chat).change_write(update_ops({"g": 1}), 2, None, None),))
    )
    other.conversation("c").set("stranger", True)
    mine._log._run([*requests, guarded])  # pyright: ignore[reportPrivateUsage]
    assert [request.outcome().revision for request in requests] == [3, 4, 5, 6]
    with pytest.raises(ConflictError):
        guarded.outcome()
    assert chat.state == {"n": 0, "stranger": True, "k0": 0, "k1": 1, "k2": 2, "k3": 3}
    assert mine.check().ok


def test_an_undo_finds_its_change_behind_many_events_that_change_nothing() -> None:
    with holdfast.open("memory:") as store:
        chat = store.conversation("c")
        chat.say("nothing to undo yet")
        with pytest.raises(NotFoundError, match="no change to undo"):
            chat.undo()
        chat.set("n", 1)
        for n in range(2 * BACK_CHUNK):
            chat.say(f"message {n}")
        chat.undo()
        assert (chat.state, len(list(chat.messages))) == ({}, 2 * BACK_CHUNK + 1)


def test_the_newest_revision_of_a_scope_that_has_ended_is_gone(clock: FakeClock) -> None:
    """Also where its state is still in memory."""
    hf = store_on(MemoryBackend(clock=clock), clock)
    chat = hf.conversation("c", ttl_s=60)
    chat.set("n", 1)
    revision = chat.revision
    assert chat.at(revision) == {"n": 1}
    clock.advance(61)
    with pytest.raises(NotFoundError):
        chat.at(revision)


def test_a_batch_for_one_backend_is_not_cut(clock: FakeClock) -> None:
    log = Log(MemoryBackend(clock=clock), clock=clock, actor="tester")
    assert log.routes.split([]) == [[]]
