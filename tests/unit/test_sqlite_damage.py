"""Flipped bits in a SQLite store: found by whoever reads them, and by `verify`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.protocol import Mark
from holdfast.backends.sqlite import SqliteBackend
from holdfast.errors import CorruptError, FormatError
from holdfast.testing import FakeClock, RecordBuilder

_SEED = 20261116


def _fill(path: Path) -> None:
    backend, build = SqliteBackend(path, clock=FakeClock()), RecordBuilder()
    for n in range(300):
        [head] = backend.heads([f"s{n % 3}"])
        append = build.append(
            f"s{n % 3}",
            b'"%s"' % (b"payload %d " % n * 8),
            behind=head,
            key=f"key {n}" if n % 5 == 0 else None,
            checkpoint=f"checkpoint {n}" if n % 2 else None,
            subject=f"subject {n}" if n % 7 == 0 else None,
        )
        marks = [Mark("due", f"mark {n}", n, n % 4, "group")] if n % 10 == 0 else []
        backend.commit([build.commit(append, marks=marks)])
    backend.objects.put("blob", "ab/cd", b"blob " * 5000)
    backend.objects.put("snapshot", "ab/cd", b"snapshot " * 100)
    lease = backend.leases.acquire("lease", "owner", ttl_s=1e9)
    assert lease is not None
    backend.close()


def _answers(backend: SqliteBackend) -> list[object]:
    streams = ["s0", "s1", "s2"]
    return [
        backend.read_all(limit=1000),
        [backend.read(stream) for stream in streams],
        [backend.find(stream) for stream in streams],
        [backend.find("s0", key=f"key {n}") for n in range(0, 300, 15)],
        [backend.find("s1", checkpoint=f"checkpoint {n}") for n in (1, 7, 259, 295)],
        backend.heads(streams),
        backend.streams(),
        backend.marks.list(),
        backend.objects.get("blob", "ab/cd"),
        backend.objects.get("snapshot", "ab/cd"),
        backend.objects.names("blob"),
        backend.inspect.describe()["store"],
    ]


def _outcome(path: Path) -> tuple[list[object] | None, bool]:
    """Returns what the store answers, None if reading raised; and whether damage was found."""
    answers, found = None, False
    try:
        backend = SqliteBackend(path, clock=FakeClock())
    except (CorruptError, FormatError):
        return None, True
    try:
        try:
            found = any(backend.inspect.verify(read_all=True))
        except CorruptError:
            found = True
        try:
            answers = _answers(backend)
        except CorruptError:
            answers = None
    finally:
        backend.close()
    return answers, found


@pytest.mark.parametrize(
    "column",
    ["position", "time", "type", "actor", "key", "checkpoint", "subject", "crc", "link", "payload"],
)
def test_clause_12_every_column_of_an_event_is_covered(tmp_path: Path, column: str) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    old = connection.execute(f"SELECT {column} FROM events WHERE ordinal = 71").get
    new = {int: 7, str: "other", bytes: b"\1" * 32, type(None): "7"}[type(old)]
    connection.execute(f"UPDATE events SET {column} = ? WHERE ordinal = 71", (new,))
    connection.close()
    backend = SqliteBackend(path, clock=FakeClock())
    for read in (
        lambda: backend.read("s1"),
        lambda: backend.read_all(),
        lambda: backend.read("s1", after=23, until=24),
    ):
        with pytest.raises(CorruptError, match='event 24 of "s1" fails its checksum') as caught:
            read()
        assert (caught.value.stream, caught.value.revision) == ("s1", 24)
    assert any(found.where == "s1@24" for found in backend.inspect.verify(read_all=True))
    assert len(backend.read("s1", until=23)) == 23
    backend.close()


def _change(path: Path, *statements: str) -> SqliteBackend:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    Path(f"{path}-witness").unlink()  # it would tell of a loss before anything is read
    return SqliteBackend(path, clock=FakeClock())


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("DELETE FROM events WHERE ordinal = 71", "s1@25"),
        ("UPDATE events SET stream = 1, revision = 101 WHERE ordinal = 71", "s0@101"),
        ("DELETE FROM events WHERE stream = 2", "s1"),
        ("DELETE FROM streams WHERE id = 2", "ordinal 2"),
        ("UPDATE streams SET name = 'other' WHERE id = 2", "other@1"),
        ("UPDATE streams SET first = 2 WHERE id = 2", "s1@1"),
        ("DELETE FROM keys WHERE key = 'key 15'", "s0@6"),
        ("UPDATE keys SET revision = 7 WHERE key = 'key 15'", "s0@6"),
        ("INSERT INTO keys VALUES (1, 'stray', 3)", "stream number 1, revision 3"),
        ("DELETE FROM checkpoints WHERE name = 'checkpoint 15'", "s0@6"),
        ("INSERT INTO checkpoints VALUES (1, 'stray', 4)", "stream number 1, ordinal 4"),
        ("UPDATE events SET subject = 'other' WHERE ordinal = 0", "ordinal 0"),
        ("UPDATE events SET time = time + 1 WHERE ordinal = 0", "ordinal 0"),
        ("DELETE FROM events WHERE ordinal = 0", "ordinal 0"),
        ("UPDATE leases SET epoch = epoch + 1", "lease lease"),
        ("UPDATE marks SET priority = 9 WHERE key = 'mark 10'", "mark due mark 10"),
        ("UPDATE objects SET data = x'00' WHERE kind = 'blob'", "blob ab/cd"),
    ],
)
def test_verify_names_what_is_wrong(tmp_path: Path, statement: str, where: str) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    backend = _change(path, statement)
    findings = list(backend.inspect.verify(read_all=True))
    assert where in [found.where for found in findings]
    backend.close()


def test_clause_12_a_lost_event_is_an_error_and_not_an_absence(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    backend = _change(path, "DELETE FROM events WHERE ordinal = 71")
    with pytest.raises(CorruptError, match='event 24 of "s1" is missing') as caught:
        backend.read("s1")
    assert caught.value.revision == 24
    backend.close()
    backend = _change(path, "DELETE FROM events WHERE stream = 3")
    with pytest.raises(CorruptError, match='stream "s2" has no events'):
        backend.heads(["s2"])
    backend.close()


def test_clause_12_text_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    backend = _change(path, "UPDATE events SET type = CAST(x'ff' AS TEXT) WHERE ordinal = 71")
    with pytest.raises(CorruptError, match='event 24 of "s1" fails its checksum') as caught:
        backend.read("s1", after=3)
    assert (caught.value.stream, caught.value.revision) == ("s1", 24)
    with pytest.raises(CorruptError, match="not UTF-8"):
        backend.read_all()
    assert any(backend.inspect.verify(read_all=True))
    assert len(backend.read("s1", after=24)) == 76
    backend.close()


def test_damaged_leases_marks_and_objects_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    backend = _change(
        path,
        "UPDATE leases SET owner = 'thief'",
        "UPDATE marks SET due = 0 WHERE key = 'mark 290'",
        "UPDATE objects SET data = x'00'",
    )
    with pytest.raises(CorruptError, match='lease "lease"'):
        backend.leases.holder("lease")
    with pytest.raises(CorruptError, match='mark "mark 290"'):
        backend.marks.list("due")
    with pytest.raises(CorruptError, match='mark "mark 290"'):
        backend.marks.claim("due", "w1", n=1000, ttl_s=1)
    with pytest.raises(CorruptError, match="blob"):
        backend.objects.get("blob", "ab/cd")
    backend.close()


def test_a_missing_table_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    backend = _change(path, "DROP TABLE events")
    with pytest.raises(CorruptError, match="no such table"):
        backend.read("s0")
    backend.close()


def test_a_cut_file_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    _fill(path)
    data = path.read_bytes()
    shutil.copy(path, tmp_path / "cut.db")
    (tmp_path / "cut.db").write_bytes(data[: len(data) // 2])
    assert _outcome(tmp_path / "cut.db") == (None, True)


def test_a_stream_whose_beginning_is_no_number_is_damaged(tmp_path: Path) -> None:
    """Found by T8: a flipped byte in the schema gives a column another type."""
    place = tmp_path / "state.db"
    with holdfast.open(f"sqlite:{place}") as store:
        store.team("a").set("n", 1)
    data = place.read_bytes()
    [table] = set(re.findall(rb"first INTEGER[^)]*\) STRICT", data))
    connection = apsw.Connection(str(place))
    connection.pragma("writable_schema", 1)
    free = table.replace(b"STRICT", b"").replace(b"INTEGER", b"TEXT").decode()
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'streams'",
        (table.decode(), free),
    )
    connection.close()
    connection = apsw.Connection(str(place))
    connection.execute("UPDATE streams SET first = 'one'")
    connection.close()
    with (
        holdfast.open(f"sqlite:{place}") as store,
        pytest.raises(CorruptError, match="begins at 'one'"),
    ):
        store.team("a").get("n")


@pytest.mark.parametrize("column", ["type", "name"])
def test_a_table_that_is_spelt_another_way_is_there_and_is_found(
    tmp_path: Path, column: str
) -> None:
    """Found by T8 (`t8-sqlite-large`): a bit that makes a capital letter of a small one.

    SQLite knows the table all the same; we read its marks as if there were none.
    """
    place = tmp_path / "state.db"
    with holdfast.open(f"sqlite:{place}") as store, store.commit() as tx:
        tx.mark("todo", "m")
    connection = apsw.Connection(str(place))
    connection.pragma("writable_schema", 1)
    connection.execute(f"UPDATE sqlite_schema SET {column} = upper({column}) WHERE name = 'marks'")
    connection.close()
    with holdfast.open(f"sqlite:{place}") as store:
        assert [mark.key for mark in store.workers.marks("todo")] == ["m"]
        assert not store.check().ok
