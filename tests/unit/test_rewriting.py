"""Letting go below the scopes: the fold, the log, SQLite's bytes, blobs that are known (0041)."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import GONE, Position
from holdfast.backends.sqlite import SqliteBackend
from holdfast.clock import SystemClock
from holdfast.core import event
from holdfast.core.event import EMPTY, UNKNOWN, each_state, fold, follows, state_of
from holdfast.core.past import states
from holdfast.errors import CorruptError, LetGoError
from holdfast.opening import open_store
from holdfast.store import Store
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write

CANARY = b'{"secret":"CANARY-%d"}'


def no_blobs(name: str, size: int) -> bytes:
    raise AssertionError(name, size)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(clock=FakeClock())


@pytest.fixture
def hf(backend: MemoryBackend) -> Store:
    return open_store(backend, settings=Settings(clock=FakeClock()))


def test_a_state_that_was_let_go_of_is_known_again_after_a_removal(
    hf: Store, backend: MemoryBackend
) -> None:
    chat = hf.conversation("c")
    for number in range(3):
        chat.set("n", number)
    chat.checkpoint("named")
    chat.restore(1)
    chat.remove()
    chat.set("m", 1)
    records = backend.read(chat.name)
    backend.rewrite({chat.name: [2]})
    gone = backend.read(chat.name)
    assert follows(gone[0].link, gone[1])
    assert not follows(gone[1].link, gone[1 + 1 + 1])
    assert fold(EMPTY, gone[:1], no_blobs).root == {"n": 0}
    for until in (2, 3, 4, 5):
        assert fold(EMPTY, gone[:until], no_blobs).root is UNKNOWN
        with pytest.raises(LetGoError):
            hf._log.at(chat.name, until)
    assert fold(EMPTY, gone, no_blobs).root == {"m": 1}
    assert hf._log.at(chat.name, len(records)).root == {"m": 1}
    made = list(each_state(EMPTY, gone, no_blobs))
    assert [state.root is UNKNOWN for state in made] == [False, *[True] * 4, False, False]
    assert [state.link for state in made] == [record.link for record in records]
    with pytest.raises(LetGoError, match="revision 3"):
        state_of(made[2], chat.name)
    found = list(states(hf._log, chat.name, after=0, until=None, newest_first=False))
    assert found[-1].state == {"m": 1}


def test_an_event_that_changes_no_state_leaves_it_as_it_is(
    hf: Store, backend: MemoryBackend
) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.say("hello")
    backend.rewrite({chat.name: [2]})
    gone = backend.read(chat.name)
    assert [state.root for state in each_state(EMPTY, gone, no_blobs)] == [{"n": 1}] * 2
    assert fold(EMPTY, gone, no_blobs).root == {"n": 1}
    assert event.ops_of(gone[1]) == ()


def test_what_is_gone_cannot_be_decoded_by_anybody(hf: Store, backend: MemoryBackend) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.remove()
    chat.undo()
    backend.rewrite({chat.name: [1, 3]})
    first, _, back = backend.read(chat.name)
    for read in (event.ops_of, event.life_before):
        with pytest.raises(LetGoError):
            read(back)
    with pytest.raises(LetGoError):
        event.ops_of(first)
    shown = event.Event(first)
    assert shown.is_let_go
    with pytest.raises(LetGoError):
        shown.data  # noqa: B018


def test_a_payload_that_is_gone_does_not_excuse_a_wrong_revision(
    hf: Store, backend: MemoryBackend
) -> None:
    chat = hf.conversation("c")
    for number in range(3):
        chat.set("n", number)
    backend.rewrite({chat.name: [1, 2, 3]})
    first, _, third = backend.read(chat.name)
    for records in ([first, third], [third]):
        with pytest.raises(CorruptError):
            fold(EMPTY, records, no_blobs)
        with pytest.raises(CorruptError):
            list(each_state(EMPTY, records, no_blobs))


def test_a_link_is_verified_by_the_digest_that_was_told(hf: Store, backend: MemoryBackend) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    [record] = backend.read(chat.name)
    digest = event.sha256(record.payload).digest()
    backend.rewrite({chat.name: [1]})
    [gone] = backend.read(chat.name)
    assert event.record_link(event.ORIGIN, gone, digest) == record.link
    assert event.record_link(event.ORIGIN, gone) != record.link


def test_snapshots_of_what_is_gone_are_deleted(hf: Store) -> None:
    log, name = hf._log, "conversation/c"
    chat = hf.conversation("c")
    for number in range(4):
        chat.set("n", number)
        log.snapshots._write(name, log.newest(name), log.snapshots._begin(name))
    log.snapshots.forget(name, 2)
    assert log.snapshots.revisions(name) == [3, 4]
    log._backend.objects.put("snapshot", "tasks/" + "ab" * 32, b"derived")
    log.snapshots.forget_derived(name)
    assert log.snapshots.revisions(name) == [3, 4]
    assert len(log._backend.objects.names("snapshot")) == 2


def test_a_blob_that_was_known_is_written_again_after_a_collection(
    hf: Store, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = ["x" * 100_000]
    hf.conversation("c").set("large", large)
    [name] = hf._log.blobs.names()
    puts: list[str] = []
    put = backend.objects.put

    def counted(kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        puts.append(name)
        put(kind, name, data, expires_us=expires_us)

    monkeypatch.setattr(backend.objects, "put", counted)
    hf.conversation("d").set("large", large)
    assert puts == []
    hf.conversation("c").remove()
    hf.conversation("d").remove()
    assert hf.retention.run(grace_s=0).blobs == 1
    hf.conversation("e").set("large", large)
    hf.conversation("f").set("large", large)
    assert puts == [name]
    data = hf._log.blobs.delete(name)
    assert data is not None
    assert hf._log.blobs.delete(name) is None
    hf._log.blobs.put_back(name, data)
    assert hf.conversation("e").get("large") == large


def test_a_blob_that_is_named_while_the_collector_looks_is_put_back(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plant beside it, a collector that does not look again, loses the value."""
    large = ["x" * 100_000]
    hf.conversation("c").set("large", large)
    hf.conversation("c").remove()
    delete = hf._log.blobs.delete
    reference = hf._log._backend.read("conversation/c")[0]

    def name_it_first(name: str) -> bytes | None:
        other = hf.conversation("d")
        other.set("n", 1)
        hf._log._backend.commit(
            [_again(hf._log._backend, other.name, reference.payload)]  # type: ignore[arg-type]
        )
        return delete(name)

    monkeypatch.setattr(hf._log.blobs, "delete", name_it_first)
    assert hf.retention.run(grace_s=0).blobs == 0
    assert hf.check().findings == []
    fresh = open_store(hf._log._backend, settings=Settings(clock=FakeClock()))
    assert fresh.conversation("d").get("large") == large


def _again(backend: MemoryBackend, stream: str, payload: bytes) -> object:
    build = RecordBuilder(FakeClock().now_us())
    [head] = backend.heads([stream])
    return build.commit(build.append(stream, payload, behind=head))


# --- SQLite ---------------------------------------------------------------------------------------


def test_sqlite_leaves_no_byte_of_it(tmp_path: Path) -> None:
    place = tmp_path / "s.db"
    backend = SqliteBackend(place, clock=SystemClock())
    build = RecordBuilder(SystemClock().now_us())
    for number in range(40):
        write(backend, build, "a", CANARY % number, b'"' + b"CANARY" * 9000 + b'"')
    backend.objects.put("blob", "ab/cd", b"CANARY" * 5000)
    backend.objects.delete("blob", "ab/cd")
    backend.rewrite({"a": list(range(1, 81))})
    [left] = backend.purge()
    assert "whole" in left.remedy
    size = place.stat().st_size
    assert backend.purge(whole=True) == []
    assert place.stat().st_size < size
    write(backend, build, "a", b'"after"')
    assert backend.read("a")[-1].payload == b'"after"'
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    for path in tmp_path.iterdir():
        if path.is_file():
            assert b"CANARY" not in path.read_bytes(), path


def test_sqlite_names_its_wal_while_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SqliteBackend(tmp_path / "s.db", clock=SystemClock(), durability="process")
    write(backend, RecordBuilder(SystemClock().now_us()), "a", CANARY % 1)
    backend.rewrite({"a": [1]})
    reader = apsw.Connection(str(tmp_path / "s.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchall()
    write(backend, RecordBuilder(SystemClock().now_us()), "b", CANARY % 2)
    backend._checkout.writer.connection.set_busy_handler(lambda _: False)
    left, _ = backend.purge()
    assert left.where.endswith("-wal")
    reader.execute("COMMIT")
    reader.close()
    assert [left.where for left in backend.purge()] == [str(tmp_path / "s.db")]
    assert backend.read("a")[0].payload == GONE
    assert backend.read_all(after=Position(0))[0].payload == GONE
    backend.close()
