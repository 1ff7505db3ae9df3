"""SQLite when it cannot be opened, looked at or read: one of our errors, and nothing left open."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.protocol import START, Head, Mark
from holdfast.backends.sqlite import SqliteBackend, backend, batch, inspection, opening
from holdfast.backends.sqlite import connection as driver
from holdfast.backends.sqlite.connection import SqliteReader, Wal, rewrite_wal, translate
from holdfast.errors import CorruptError, FormatError, UnavailableError, UsageError
from holdfast.testing import FakeClock, RecordBuilder
from tests.descriptors import descriptors


def _open(path: Path, **options: Any) -> SqliteBackend:
    return SqliteBackend(path, clock=FakeClock(), **options)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path, build = tmp_path / "state.db", RecordBuilder()
    filled = _open(path)
    append = build.append("a", b"1", b"2", b"3", key="k")
    filled.commit([build.commit(append, marks=[Mark("i", "m")])])
    filled.commit([build.commit(build.append("b", b"4"))])
    filled.close()
    return path


def _raising(error: BaseException, *, at: int = 1) -> Callable[..., Any]:
    """Returns a stand-in for `connect` and others that fails at its nth call."""
    real, calls = backend.connect, 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error
        return real(*arguments, **named)

    return call


def _refused(path: Path, match: str, **options: Any) -> UnavailableError:
    """Asserts that opening fails and leaves no descriptor open, and that it works afterwards."""
    before = descriptors(path.parent)
    with pytest.raises(UnavailableError, match=match) as caught:
        _open(path, **options)
    assert descriptors(path.parent) == before
    return caught.value


# --- opening -------------------------------------------------------------------------------------


def test_a_wal_that_cannot_be_written_again_is_no_store_to_write_to(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(backend, "rewrite_wal", _raising(OSError(errno.EIO, "Input/output error")))
        _refused(store, 'state.db-wal" cannot be written: Input/output error')
    opened = _open(store)
    assert len(opened.read("a")) == 3
    opened.close()


def test_a_database_that_takes_no_wal_is_closed_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "use_wal", _raising(UnavailableError("no wal")))
    _refused(store, "no wal")


@pytest.mark.parametrize(("read_only", "at"), [(False, 2), (True, 1)])
def test_a_reading_connection_that_fails_takes_the_writing_one_along(
    store: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool, at: int
) -> None:
    monkeypatch.setattr(backend, "connect", _raising(UnavailableError("no more files"), at=at))
    _refused(store, "no more files", read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_cannot_be_looked_at_is_not_used(
    store: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    monkeypatch.setattr(
        backend, "SqliteCheckout", _raising(OSError(errno.EIO, "Input/output error"))
    )
    _refused(store, "cannot be examined: Input/output error", read_only=read_only)


def test_a_library_that_corrupts_shared_databases_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_library", lambda: 3_051_002)
    before = store.read_bytes()
    with pytest.raises(UsageError, match=r"expected 3\.51\.3 or newer"):
        _open(store)
    assert store.read_bytes() == before


class Deaf:
    """A connection that passes over some pragmas in silence, as SQLite does with unknown ones."""

    def __init__(self, connection: Any, *names: str) -> None:
        self._connection = connection
        self._names = names

    def pragma(self, name: str, *value: Any) -> Any:
        if name in self._names:
            return "delete" if name == "journal_mode" else 0
        return self._connection.pragma(name, *value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_guarantee_1_a_durability_that_was_not_set_is_noticed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver.connect
    monkeypatch.setattr(driver, "connect", lambda *a: Deaf(real(*a), "synchronous"))
    _refused(store, "cannot be made durable: expected synchronous=2, found 0")


def test_a_file_system_without_shared_memory_has_no_wal(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver.connect
    monkeypatch.setattr(driver, "connect", lambda *a: Deaf(real(*a), "journal_mode"))
    _refused(store, "expected journal mode wal, found delete")


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "ours", "text"),
    [
        (apsw.ConnectionClosedError("x"), UsageError, "store is closed"),
        (apsw.CursorClosedError("x"), UsageError, "store is closed"),
        (apsw.NotADBError("x"), FormatError, "not a SQLite database"),
        (apsw.CorruptError("page 3"), CorruptError, "damaged: page 3"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), CorruptError, "not UTF-8"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "bad"), UsageError, "lone surrogate"),
        (apsw.TooBigError("x"), UsageError, "too big for one row"),
        (apsw.FullError("x"), UnavailableError, "full"),
        (apsw.MisuseError("odd"), UnavailableError, r"SQLite refused \(odd\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_of_sqlite_is_one_of_ours(
    error: Exception, ours: type[Exception], text: str
) -> None:
    with pytest.raises(ours, match=text):
        found = translate(error, "state.db")
        assert found is not None
        raise found


def test_an_error_that_is_not_sqlites_is_left_alone() -> None:
    assert translate(KeyboardInterrupt(), "state.db") is None


def test_a_snapshot_that_did_not_begin_is_not_ended() -> None:
    asked: list[str] = []

    class Connection:
        in_transaction = False

        def cursor(self) -> Any:
            return self

        def execute(self, sql: str) -> None:
            asked.append(sql)
            raise apsw.BusyError("locked")

    reader = SqliteReader(Connection())  # type: ignore[arg-type]
    with pytest.raises(apsw.BusyError):
        reader.snapshot(lambda _: pytest.fail("there is no state to look at"))
    assert asked == ["BEGIN"]


def test_a_head_without_its_streams_number_is_not_remembered() -> None:
    """`advance` is told numbers: it would never find such a head to forget it."""
    cache = batch.HeadCache()
    head = Head(1, b"", 0, START, 1)
    cache.publish(1, {"a": head, "b": head}, {"a": batch.Stream(1, 1)})
    assert cache.heads == {"a": head}


def test_a_file_that_cannot_be_looked_at_is_not_known_to_have_been_taken(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened, build = _open(store), RecordBuilder()
    real = os.stat

    def stat(path: Any, **named: Any) -> os.stat_result:
        if str(path) == str(store):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        opened.commit([build.commit(build.append("c"))])
    assert "the database file cannot be looked at" in caplog.text
    assert len(opened.read("c")) == 1
    opened.close()


def test_a_lease_whose_owner_is_gone_has_no_holder(tmp_path: Path) -> None:
    mine, other = _open(tmp_path / "state.db"), _open(tmp_path / "state.db")
    assert mine.leases.acquire("l", "w1", ttl_s=1e6) is not None
    assert other.leases.holder("l") is not None
    mine.close()
    assert other.leases.holder("l") is None
    other.close()


# --- what verify finds ---------------------------------------------------------------------------


def _change(path: Path, *statements: str) -> SqliteBackend:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    Path(f"{path}-witness").unlink()  # it would tell of a loss before anything is read
    return _open(path)


@pytest.mark.parametrize(
    ("statement", "where", "text"),
    [
        ("CREATE TABLE keyz (a)", "{path}", "has the table 'keyz', which no store has"),
        (
            "ALTER TABLE events RENAME COLUMN checkpoint TO chfckpoint",
            "{path}",
            "the table 'events' has columns that no store has",
        ),
        ("UPDATE events SET position = 1 WHERE ordinal = 2", "a@2", "its commit is not whole"),
        ("DELETE FROM events WHERE ordinal > 2", "ordinal 2", "its commit is not whole"),
        ("DROP TABLE keys", "a@1", "its key is not in the table of keys"),
    ],
    ids=["table", "column", "position", "cut", "keys"],
)
def test_verify_finds_it(store: Path, statement: str, where: str, text: str) -> None:
    opened = _change(store, statement)
    findings = [(found.where, found.problem) for found in opened.inspect.verify(read_all=True)]
    assert (where.format(path=store), text) in findings
    opened.close()


def test_a_claim_of_no_mark_is_harmless(store: Path) -> None:
    opened = _open(store)
    assert opened.marks.claim("i", "w", n=1, ttl_s=1)
    opened.close()
    opened = _change(store, "UPDATE claims SET key = 'none'")
    (found,) = opened.inspect.verify(read_all=True)
    assert (found.where, found.problem) == ("claims", "1 of marks that are not there")
    assert found.harmless
    opened.close()


def test_a_row_without_a_payload_is_corruption(store: Path) -> None:
    opened = _change(store, "UPDATE events SET payload = NULL WHERE ordinal = 2")
    with pytest.raises(CorruptError, match='event 2 of "a" fails its checksum'):
        opened.read("a")
    opened.close()


def test_clause_12_events_lost_at_the_end_are_missed_by_who_knew_them(store: Path) -> None:
    opened = _open(store)
    assert opened.heads(["a"])[0] is not None
    other = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READWRITE)
    other.execute("DELETE FROM events WHERE ordinal = 3")
    other.close()
    with pytest.raises(CorruptError, match='event 3 of "a" is missing'):
        opened.read("a")
    assert len(opened.read("a", until=2)) == len(opened.read("a", limit=2)) == 2
    opened.close()


def test_a_name_that_two_streams_have_is_corruption(store: Path) -> None:
    opened = _change(store, "INSERT INTO streams (name, first) VALUES ('a', 1)")
    with pytest.raises(CorruptError, match='there are 2 streams with the name "a"'):
        opened.heads(["a"])
    opened.close()


@pytest.mark.parametrize("read_all", [True, False])
def test_verify_finds_an_index_that_lost_its_rows(store: Path, read_all: bool) -> None:
    connection = apsw.Connection(str(store))
    root = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'events_by_revision'"
    ).get
    connection.close()
    data = bytearray(store.read_bytes())
    data[(root - 1) * 16384 + 3 : (root - 1) * 16384 + 5] = bytes(2)  # how many cells it has
    store.write_bytes(data)
    opened = _open(store)
    found = [finding.problem for finding in opened.inspect.verify(read_all=read_all)]
    assert any("events_by_revision" in problem or "Page" in problem for problem in found), found
    opened.close()


def test_a_stream_without_its_name_is_corruption(store: Path) -> None:
    opened = _change(store, "DELETE FROM streams WHERE name = 'b'")
    with pytest.raises(CorruptError, match="stream number 2 has no name"):
        opened.read_all()
    opened.close()


def test_the_size_of_a_store_is_that_of_what_is_there(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _open(store, read_only=True)
    opened.read("a")
    (store.parent / "state.db-wal").unlink(missing_ok=True)
    assert opened.inspect.describe()["size_bytes"] == store.stat().st_size

    def stat(path: str) -> os.stat_result:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(inspection.os, "stat", stat)
        with pytest.raises(UnavailableError, match="cannot be examined: Permission denied"):
            opened.inspect.describe()
    opened.close()


# --- the wal -------------------------------------------------------------------------------------


def test_where_there_is_no_wal_nothing_is_written_again(tmp_path: Path) -> None:
    connection = apsw.Connection(":memory:")
    for content in (None, b""):
        if content is not None:
            (tmp_path / "state.db-wal").write_bytes(content)
        rewrite_wal(connection, str(tmp_path / "state.db"))  # type: ignore[arg-type]
        assert not connection.in_transaction
    connection.close()


@pytest.mark.parametrize("has_hole", [False, True])
def test_a_wal_is_written_over_itself_and_not_changed(tmp_path: Path, has_hole: bool) -> None:
    connection = apsw.Connection(":memory:")
    wal = tmp_path / "state.db-wal"
    wal.write_bytes(random.Random(1).randbytes(3 << 20))
    if has_hole:
        with open(wal, "r+b") as file:
            file.truncate(1 << 40)
    before = wal.stat()
    content = wal.read_bytes() if not has_hole else None
    rewrite_wal(connection, str(tmp_path / "state.db"))  # type: ignore[arg-type]
    after = wal.stat()
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
    assert after.st_mtime_ns > before.st_mtime_ns
    assert content is None or wal.read_bytes() == content
    assert not connection.in_transaction
    connection.close()


def test_a_wal_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lseek(fd: int, offset: int, how: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "state.db-wal").write_bytes(b"frames")
    connection = apsw.Connection(":memory:")
    monkeypatch.setattr(os, "lseek", lseek)
    before = descriptors(tmp_path)
    with pytest.raises(OSError, match="Input/output error"):
        rewrite_wal(connection, str(tmp_path / "state.db"))  # type: ignore[arg-type]
    assert not connection.in_transaction
    assert descriptors(tmp_path) == before
    connection.close()


def test_room_ahead_of_the_wal_is_a_favour_that_ends_with_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db-wal"
    path.write_bytes(bytes(300 << 10))
    wal = Wal(str(tmp_path / "state.db"))
    wal.keep_ahead()
    wal.keep_ahead()
    assert path.stat().st_size == (300 + 256) << 10

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        tried.append(offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    tried: list[int] = []
    monkeypatch.setattr(os, "pwrite", pwrite)
    path.write_bytes(bytes(600 << 10))
    wal.keep_ahead()
    wal.keep_ahead()
    assert tried == [600 << 10]
    wal.close()
    wal.close()


def test_a_late_table_that_cannot_be_seen_is_no_damage() -> None:
    """Found by T5: where locks fail, SQLite may read the file without its WAL."""
    late = translate(apsw.SQLError("no such table: leases"), "state.db")
    assert isinstance(late, UnavailableError)
    assert late.hint is not None
    assert "holdfast check" in late.hint
    core = translate(apsw.SQLError("no such table: events"), "state.db")
    assert isinstance(core, CorruptError)
