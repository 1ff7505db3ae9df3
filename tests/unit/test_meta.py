"""What is known of an event beside its data: how it is given, kept, linked, copied and refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from msgspec.structs import replace

import holdfast
from holdfast import CorruptError, UsageError, aio
from holdfast.backends.files import FilesBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Record
from holdfast.backends.sqlite import SqliteBackend, opening
from holdfast.backends.sqlite.rows import decode
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, changed
from holdfast.core.event import record_link
from holdfast.core.meta import BYTES_MAX, decode_meta, encode_meta, joined
from holdfast.core.tree import set_op
from holdfast.errors import FormatError
from holdfast.store import Meta
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.trial import accepted, write
from holdfast.transfer.copy import copy_log
from tests.fixtures.make import unpack

SOURCE = Meta(source="import")
FULL = Meta(
    schema=2,
    source="web",
    trust="low",
    cipher="aes",
    key_id="k1",
    trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    original_time=datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
)


@pytest.fixture(params=["memory", "files", "sqlite", "mixed"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Store]:
    urls: dict[str, Any] = {
        "memory": "memory:",
        "files": str(tmp_path / "store"),
        "sqlite": f"sqlite:{tmp_path}/store.db",
        "mixed": {"*": str(tmp_path / "store"), "conversation": f"sqlite:{tmp_path}/chats.db"},
    }
    with holdfast.open(urls[request.param]) as store:
        yield store


def _commit(store: holdfast.Store, scope: Any, value: int, meta: Meta) -> None:
    with store.commit(meta=meta) as tx:
        tx.scope(scope).set("n", value)


# --- what it is ---------------------------------------------------------------------------------


def test_only_what_is_said_is_stored() -> None:
    assert encode_meta(None) is encode_meta(Meta()) is None
    assert encode_meta(Meta(source="é")) == '{"source":"é"}'
    text = encode_meta(FULL)
    assert text is not None
    assert decode_meta(text) == FULL
    assert list(json.loads(text)) == [
        "schema", "source", "trust", "cipher", "key_id", "trace", "original_time"
    ]  # fmt: skip


def test_keys_of_a_later_version_are_passed_over_and_kept_when_two_are_joined() -> None:
    later = '{"source":"a","later":[1]}'
    assert decode_meta(later) == Meta(source="a")
    assert json.loads(joined(later, '{"source":"b","trust":"c"}')) == {
        "source": "b",
        "later": [1],
        "trust": "c",
    }
    assert joined(None, later) == later


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"source": "x"}, "meta is a Meta of holdfast.store"),
        (Meta(source=3), "cannot be stored"),  # type: ignore[arg-type]
        (Meta(source=""), "cannot be stored"),
        (Meta(schema=True), "cannot be stored"),
        (Meta(schema=0), "cannot be stored"),
        (Meta(schema=1 << 63), "cannot be stored"),
        (Meta(source="\ud800"), "cannot be stored"),
        (Meta(trust=object()), "cannot be stored"),  # type: ignore[arg-type]
        (Meta(original_time=datetime(2020, 1, 1)), "cannot be stored"),
        (Meta(source="x" * BYTES_MAX), "at most 4096 fit"),
    ],
)
def test_what_is_no_meta_is_refused_before_anything_is_written(meta: Any, says: str) -> None:
    with holdfast.open("memory:") as store:
        with pytest.raises(UsageError, match=says):
            store.commit(meta=meta)
        assert store.position == 0


@pytest.mark.parametrize("text", ["[]", "{", '{"schema":"x"}', "{" * 5000])
def test_stored_text_that_is_no_meta_is_damage(text: str) -> None:
    with pytest.raises(CorruptError, match="the meta of an event cannot be read"):
        decode_meta(text)


def test_an_event_without_meta_has_the_link_of_format_1() -> None:
    """The digest is computed here from the document alone: nothing of it may ever change."""
    bare = Record("s", 1, 5, "changed", "w", b"[]", b"", "k", "p", "u")
    envelope = b'["s",1,5,"changed","w","k","p","u"]'
    digest = sha256(b"[]").digest()
    assert record_link(bytes(32), bare) == sha256(bytes(32) + digest + envelope).digest()
    said = replace(bare, meta='{"source":"x"}')
    envelope = envelope[:-1] + b',"{\\"source\\":\\"x\\"}"]'
    assert record_link(bytes(32), said) == sha256(bytes(32) + digest + envelope).digest()


# --- giving and reading -------------------------------------------------------------------------


def test_meta_of_a_commit_is_kept_with_each_event_and_read_everywhere(hf: holdfast.Store) -> None:
    team, chat = hf.team("red"), hf.conversation("c")
    team.set("n", 1)
    _commit(hf, team, 2, FULL)
    with hf.commit(waits=False, meta=Meta(source="queue")) as tx:
        tx.scope(chat).set("n", 1)
    tx.wait()
    assert [event.meta for event in team.history()] == [None, FULL]
    assert [event.meta for event in chat.history()] == [Meta(source="queue")]
    assert {event.meta for event in hf.events()} == {None, FULL, Meta(source="queue")}
    fork = team.fork("blue")
    fork.say("hello")
    assert [event.meta for event in fork.history()] == [None, FULL, None, None]
    assert hf.check(read_all=True).ok


def test_what_an_event_says_of_itself_counts_before_what_its_commit_says(
    hf: holdfast.Store,
) -> None:
    """The seam for layers: an event of theirs has meta of its own (`NewEvent.meta`)."""
    plain, own = changed([set_op("n", 1)]), NewEvent("x.noted", b"1", meta='{"trust":"high"}')
    write = StreamWrite("team/red", (plain, own))
    hf._log.commit(ProposedCommit((write,), meta='{"source":"a","trust":"low"}'))
    assert [event.meta for event in hf.team("red").history()] == [
        Meta(source="a", trust="low"),
        Meta(source="a", trust="high"),
    ]


def test_a_folded_stream_with_meta_is_verified_after_reopening(tmp_path: Path) -> None:
    for url in (str(tmp_path / "store"), f"sqlite:{tmp_path}/store.db"):
        with holdfast.open(url) as store:
            for n in range(5):
                _commit(store, store.team("red"), n, Meta(schema=n + 1))
        with holdfast.open(url, read_only=True) as store:
            team = store.team("red")
            assert team.get("n") == 4
            assert [event.meta and event.meta.schema for event in team.history()] == [1, 2, 3, 4, 5]


def test_the_async_store_takes_it_too(tmp_path: Path) -> None:
    async def main() -> list[Meta | None]:
        async with await aio.open(str(tmp_path / "store")) as store:
            async with store.commit(meta=FULL) as tx:
                tx.scope(store.team("red")).set("n", 1)
            async with store.commit(waits=False, meta=Meta(source="s")) as tx:
                tx.scope(store.team("blue")).set("n", 2)
            await tx.wait()
            return [event.meta for event in await store.events()]

    assert asyncio.run(main()) == [FULL, Meta(source="s")]


def test_a_copy_has_it_and_one_where_it_would_be_lost_is_refused(tmp_path: Path) -> None:
    """A backend that was written before there was meta would lose it, and the links with it."""

    class Older(MemoryBackend):
        keeps_meta = False

    source = holdfast.open(str(tmp_path / "store"))
    _commit(source, source.team("red"), 1, FULL)
    with holdfast.open("memory:") as target:
        copy_log(source._log, target._log)
        assert [event.record.meta for event in target.events()] == [encode_meta(FULL)]
    older = holdfast.open(Older(clock=FakeClock()))
    with holdfast.open("memory:") as plain:
        plain.team("red").set("n", 1)
        target = holdfast.open(Older(clock=FakeClock()))
        assert copy_log(plain._log, target._log).events == 1
        target.close()
    with pytest.raises(UsageError, match='"team/red" is in a backend that does not keep meta'):
        copy_log(source._log, older._log)
    assert older.position == 0
    with pytest.raises(UsageError, match='"team/red" is in a backend that does not keep meta'):
        _commit(older, older.team("red"), 1, FULL)
    assert older.position == 0
    older.team("red").set("n", 1)
    source.close()
    older.close()


def test_a_mixed_store_asks_the_backend_of_each_level() -> None:
    from holdfast.backends.mixed import MixedBackend

    class Older(MemoryBackend):
        keeps_meta = False

    routes = {"*": MemoryBackend(clock=FakeClock()), "conversation": Older(clock=FakeClock())}
    backend = MixedBackend(routes, {"*": "new", "conversation": "old"})
    assert not backend.keeps_meta
    with holdfast.open(backend) as store:
        _commit(store, store.team("red"), 1, FULL)
        with pytest.raises(UsageError, match="does not keep meta"):
            _commit(store, store.conversation("c"), 1, FULL)


# --- stores of format 1 -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_store_of_format_1_keeps_its_number_until_its_first_meta(
    kind: str, tmp_path: Path
) -> None:
    """Guarantee 8. Two handles: one raises the format, the other finds it raised."""
    url = unpack(f"{kind}-1", "closed", tmp_path)
    with holdfast.open(url) as one, holdfast.open(url) as other:
        one.team("new").set("n", 1)
        assert one._log.describe()["format"] == 1
        _commit(one, one.team("new"), 2, SOURCE)
        assert other._log.describe()["format"] == 2
        _commit(other, other.team("new"), 3, SOURCE)
        other.team("new").set("n", 4)
        assert [event.meta for event in one.team("new").history()] == [None, SOURCE, SOURCE, None]
        assert one.check(read_all=True).ok
    with holdfast.open(url, read_only=True) as store:
        assert store.team("new").get("n") == 4


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_handle_that_only_reads_format_1_sees_meta_as_it_comes(kind: str, tmp_path: Path) -> None:
    url = unpack(f"{kind}-1", "closed", tmp_path)
    with holdfast.open(url) as writer, holdfast.open(url, read_only=True) as reader:
        assert reader.team("red").get("stage") == "triage"
        _commit(writer, writer.team("red"), 2, FULL)
        assert [event.meta for event in reader.team("red").history()][-1] == FULL
        assert reader.team("red").get("n") == 2


def test_a_refused_commit_with_meta_leaves_format_1_as_it_is(tmp_path: Path) -> None:
    backend = FilesBackend(unpack("files-1", "closed", tmp_path), clock=FakeClock(seed=2))
    build = RecordBuilder(1_900_000_000_000_000)
    stale = build.append("team/red", meta='{"source":"x"}')
    [refusal] = backend.commit([build.commit(stale)])
    assert not hasattr(refusal, "news")
    assert backend.directory.read_format() == backend.directory.format == 1
    backend.close()


def test_keys_of_later_events_raise_the_format_of_a_files_store(tmp_path: Path) -> None:
    """Clause 26: a reader of format 1 would take such a line for damage."""
    backend = FilesBackend(unpack("files-1", "closed", tmp_path), clock=FakeClock(seed=2))
    build = RecordBuilder(1_900_000_000_000_000)
    first = build.append("new", b"1", b"2", key="k")
    accepted(backend, build.commit(first))
    assert backend.directory.read_format() == 1
    more = build.append("new", b"3", b"4", behind=first, key="a")
    keyed = replace(more.records[1], key="b")
    keyed = replace(keyed, link=record_link(more.records[0].link, keyed))
    accepted(backend, build.commit(replace(more, records=(more.records[0], keyed))))
    assert backend.directory.read_format() == 2
    assert [found.revision for found in backend.find("new", key="b")] == [4]
    backend.close()


def test_describe_says_the_format_it_knows_if_the_file_is_gone(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "store", clock=FakeClock())
    (tmp_path / "store" / "holdfast.json").unlink()
    assert backend.directory.read_format() == 2
    backend.close()


@pytest.mark.parametrize("format", [0, -1, 4, "2", None, True, 2.5])
def test_a_format_that_is_none_of_ours_is_refused(format: object, tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "store")):
        pass
    path = tmp_path / "store" / "holdfast.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": format}))
    with pytest.raises(FormatError, match="this holdfast reads up to 3"):
        holdfast.open(str(tmp_path / "store"))


def test_two_that_upgrade_at_once_add_one_column(tmp_path: Path) -> None:
    """Both found that there is no column, and one was faster."""
    url = unpack("sqlite-1", "closed", tmp_path)
    clock = FakeClock(seed=2)
    one = SqliteBackend(url.removeprefix("sqlite:"), clock=clock)
    other = SqliteBackend(url.removeprefix("sqlite:"), clock=clock)
    opening.upgrade(one._checkout.writer)
    opening.upgrade(other._checkout.writer)
    build = RecordBuilder(1_900_000_000_000_000)
    accepted(other, build.commit(build.append("new", meta='{"source":"x"}')))
    assert one.read("new")[0].meta == '{"source":"x"}'
    one.close()
    other.close()


def test_an_upgrade_beside_a_checkpoint_of_somebody_else_is_done(tmp_path: Path) -> None:
    """The checkpoint after it may be left to the next one; it raised a bare BusyError."""

    class Busy:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def wal_checkpoint(self, **_: Any) -> Any:
            raise apsw.BusyError("database is locked")

    url = unpack("sqlite-1", "closed", tmp_path)
    backend = SqliteBackend(url.removeprefix("sqlite:"), clock=FakeClock(seed=2))
    writer = backend._checkout.writer
    connection = writer.connection
    writer.connection = cast("Any", Busy(connection))
    opening.upgrade(writer)
    writer.connection = connection
    build = RecordBuilder(1_900_000_000_000_000)
    accepted(backend, build.commit(build.append("new", meta='{"source":"x"}')))
    assert backend.read("new")[0].meta == '{"source":"x"}'
    backend.close()


def test_a_new_store_has_the_columns_of_one_that_was_upgraded(tmp_path: Path) -> None:
    """In the same order: rows are read by `*`."""
    url = unpack("sqlite-1", "closed", tmp_path)
    backends = [
        SqliteBackend(path, clock=FakeClock(seed=2))
        for path in (url.removeprefix("sqlite:"), str(tmp_path / "new.db"))
    ]
    opening.upgrade(backends[0]._checkout.writer)
    upgraded, new = [
        one._checkout.reader.rows("SELECT cid, name, type FROM pragma_table_info('events')")
        for one in backends
    ]
    assert upgraded == new
    for backend in backends:
        backend.close()


def test_a_snapshot_that_began_before_the_column_reads_without_it(tmp_path: Path) -> None:
    """Another thread of this handle raised the format, and knows of it, while the snapshot was
    open: what this thread sees is still a table without the column."""
    url = unpack("sqlite-1", "closed", tmp_path)
    backend = SqliteBackend(url.removeprefix("sqlite:"), clock=FakeClock(seed=2))
    checkout, build = backend._checkout, RecordBuilder(1_900_000_000_000_000)

    def look(execute: Any) -> bool:
        execute("SELECT max(ordinal) FROM events").fetchall()
        accepted(backend, build.commit(build.append("new", meta='{"source":"x"}')))
        return checkout.tables.has_meta(execute)

    assert not checkout.reader.snapshot(look)
    [row] = backend.read_linked("new", after=0, until=None, limit=None)
    assert row[-1] == '{"source":"x"}'
    backend.close()


def test_a_linked_read_needs_no_transaction_once_the_column_is_known(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "store.db", clock=FakeClock())
    write(backend, RecordBuilder(), "a")
    execute, said = backend._checkout.reader.execute, list[str]()

    def noted(sql: str, bindings: Any = ()) -> Any:
        said.append(sql.split()[0])
        return execute(sql, bindings)

    backend._checkout.reader.execute = noted
    for _ in range(2):
        assert len(backend.read_linked("a", after=0, until=None, limit=None)) == 1
    assert said == ["BEGIN", "SELECT", "SELECT", "COMMIT", "SELECT"]
    backend.close()


def test_clause_12_a_changed_meta_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    backend = SqliteBackend(path, clock=FakeClock())
    build = RecordBuilder()
    accepted(backend, build.commit(build.append("a", meta='{"source":"x"}')))
    write(backend, build, "b")
    backend.close()
    for meta in ('{"source":"y"}', None):
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE events SET meta = ? WHERE ordinal = 1", (meta,))
        connection.close()
        backend = SqliteBackend(path, clock=FakeClock())
        with pytest.raises(CorruptError, match='event 1 of "a" fails its checksum'):
            backend.read("a")
        assert len(backend.read("b")) == 1
        backend.close()


def test_clause_12_a_row_with_other_columns_is_damage() -> None:
    with pytest.raises(CorruptError, match='"s" fails its checksum'):
        decode((1, 2, 3), "s", "here")
