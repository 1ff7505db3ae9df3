"""What can still be read of a damaged database, row by row, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.protocol import Finding, Gap, Mark, Record
from holdfast.backends.sqlite import SqliteBackend, inspection
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite.opening import PAGE_BYTES
from holdfast.backends.sqlite.remains import SqliteRemains
from holdfast.backends.sqlite.rows import READ_ALL
from holdfast.errors import CorruptError
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.trial import accepted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of 60 commits to three streams; every tenth sets a mark, two have no event."""
    path = tmp_path / "state.db"
    backend, build = SqliteBackend(path, clock=FakeClock()), RecordBuilder()
    for n in range(60):
        payload = b'"%s"' % (b"payload %d " % n * 100)
        appends = [
            build.append(name, payload, behind=backend.heads([name])[0])
            for name in ([f"s{n % 3}"] if n % 9 else ["s0", "s1"])
        ]
        marks = [Mark("due", f"mark {n}", n, n % 4, "group")] if n % 10 == 0 else []
        accepted(backend, build.commit(*appends, marks=marks))
    accepted(backend, build.commit(marks=[Mark("due", "alone")]))
    backend.close()
    return path


def _change(path: Path, sql: str, bindings: Sequence[Any] = ()) -> None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.execute(sql, tuple(bindings))
    connection.close()


def _remains(path: Path) -> tuple[list[Record], list[Mark], list[Finding | Gap]]:
    backend = SqliteBackend(path, clock=FakeClock(), read_only=True)
    records: list[Record] = []
    marks: list[Mark] = []
    damage: list[Finding | Gap] = []
    for remnant in backend.inspect.remains():  # type: ignore[attr-defined]
        if isinstance(remnant, list):
            assert len({record.position for record in remnant}) == 1
            records += remnant
        elif isinstance(remnant, Mark):
            marks.append(remnant)
        else:
            damage.append(remnant)
    backend.close()
    return records, marks, damage


def test_of_a_whole_database_all_remains(path: Path) -> None:
    backend = SqliteBackend(path, clock=FakeClock())
    expected = backend.read_all(limit=1000)
    backend.close()
    records, marks, damage = _remains(path)
    assert records == expected
    assert len(marks) == 7
    assert damage == []


def test_a_row_that_fails_its_checksum_concerns_its_own_stream_alone(path: Path) -> None:
    _change(path, "UPDATE events SET payload = x'31' WHERE ordinal = 30")
    records, _, [damage] = _remains(path)
    assert isinstance(damage, Finding)
    assert damage.where == f"{path} ordinal 30"
    assert len(damage.streams) == 1
    assert len(records) == 66


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE events SET stream = 77 WHERE ordinal = 30", "stream number 77, which has no name"),
        ("UPDATE events SET revision = 900 WHERE ordinal = 30", "fails its checksum"),
        ("DELETE FROM events WHERE ordinal = 30", "rows 30 to 30 cannot be read"),
    ],
)
def test_a_row_whose_stream_nobody_knows_may_be_of_any(path: Path, sql: str, problem: str) -> None:
    if "900" in sql:  # its entry in the index is left as it was
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.execute("DROP INDEX events_by_revision")
        connection.execute(sql)
        connection.execute("CREATE UNIQUE INDEX events_by_revision ON events (stream, revision) ")
        connection.execute("UPDATE events SET revision = revision + 0 WHERE ordinal = 30")
        connection.close()
    else:
        _change(path, sql)
    records, _, damage = _remains(path)
    assert len(records) == 66
    assert any(problem in _finding(one).problem for one in damage)
    if "900" not in sql:
        assert any(isinstance(one, Gap) for one in damage)


def _finding(damage: Finding | Gap) -> Finding:
    return damage.finding if isinstance(damage, Gap) else damage


def test_a_stream_of_which_nothing_is_left_is_named(path: Path) -> None:
    _change(path, "UPDATE events SET crc = crc + 1 WHERE stream = 2")
    _, _, damage = _remains(path)
    assert _finding(damage[-1]).problem == "none of its events can be read"


@pytest.mark.parametrize("ordinal", [30, 67, 68])
def test_a_row_that_cannot_be_decoded_is_lost_also_if_it_is_the_last(
    path: Path, ordinal: int
) -> None:
    _change(path, "UPDATE events SET actor = CAST(x'ff41' AS TEXT) WHERE ordinal = ?", [ordinal])
    records, _, damage = _remains(path)
    assert len(records) == (66 if ordinal < 68 else 67)
    assert any(f"rows {ordinal} to {ordinal}" in _finding(one).problem for one in damage)


def test_marks_that_fail_their_checksum_are_left_out_and_named(path: Path) -> None:
    _change(path, "UPDATE marks SET priority = 99 WHERE key = 'mark 10'")
    _, marks, [damage] = _remains(path)
    assert len(marks) == 6
    assert _finding(damage).where == "mark due mark 10"


def test_a_database_without_marks_has_none(path: Path) -> None:
    _change(path, "DROP TABLE marks")
    records, marks, _ = _remains(path)
    assert len(records) == 67
    assert marks == []


@pytest.mark.parametrize("filling", [b"\xff", b"\0", b"\x0d"])
def test_whatever_page_is_damaged_what_remains_is_true_and_the_rest_is_said_to_be_lost(
    path: Path, filling: bytes
) -> None:
    whole, all_marks, _ = _remains(path)
    data = path.read_bytes()
    kept: list[int] = []
    for page in range(1, len(data) // PAGE_BYTES):
        start = page * PAGE_BYTES
        path.write_bytes(data[:start] + filling * PAGE_BYTES + data[start + PAGE_BYTES :])
        records, marks, damage = _remains(path)
        assert [record for record in whole if record in records] == records
        assert set(marks) <= set(all_marks)
        if records != whole or len(marks) != len(all_marks):
            assert damage, f"page {page} has lost something, and nobody said so"
        kept.append(len(records))
    assert max(kept) == len(whole), "damage to an index takes no event"
    some = [count for count in kept if 0 < count < len(whole)]
    assert some, "damage to one page of events leaves the others"


def test_a_damaged_row_of_a_damaged_index_may_be_of_any_stream(path: Path) -> None:
    _change(path, "UPDATE events SET payload = x'31' WHERE ordinal = 30")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    root = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'events_by_revision'"
    ).get
    connection.close()
    data = path.read_bytes()
    start = (root - 1) * PAGE_BYTES
    path.write_bytes(data[:start] + b"\xff" * PAGE_BYTES + data[start + PAGE_BYTES :])
    records, _, damage = _remains(path)
    assert len(records) == 66
    assert isinstance(damage[0], Gap)


def test_a_row_with_an_impossible_number_is_a_gap(path: Path) -> None:
    _change(path, "UPDATE events SET ordinal = 1 << 50 WHERE ordinal = 67")
    records, _, damage = _remains(path)
    assert len(records) == 66
    assert any("so many there cannot be" in _finding(one).problem for one in damage)
    assert all(isinstance(one, Gap) for one in damage)


class Looping:
    """A database whose damaged tree leads back to rows that were read."""

    def execute(self, sql: str, bindings: tuple[int, int, int]) -> Looping:
        self.bindings = bindings
        return self

    def fetchall(self) -> list[tuple[int, ...]]:
        low, high, _ = self.bindings
        return [(one,) for one in (3, 1) if high > 1] if low < 3 else []


def test_a_tree_that_leads_back_is_read_row_by_row() -> None:
    remains = SqliteRemains(Looping(), "x.db", 16 * 8)  # type: ignore[arg-type]
    rows = remains._between("", 0, 4)  # pyright: ignore[reportPrivateUsage]
    assert list(rows) == []


def test_check_ends_where_a_tree_leads_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SqliteBackend(path, clock=FakeClock())
    real = inspection._Check._rows  # pyright: ignore[reportPrivateUsage]

    def rows(self: Any, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        found = real(self, sql, bindings)
        if sql == READ_ALL and bindings[0] > 0:
            return real(self, sql, (0, *bindings[1:]))[:3]
        return found

    monkeypatch.setattr(inspection, "_PAGE", 5)
    monkeypatch.setattr(inspection._Check, "_rows", rows)
    found = [one.problem for one in backend.inspect.verify(read_all=True)]
    assert "rows after it are out of order" in found
    backend.close()


def test_check_ends_where_the_tree_of_objects_leads_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T8: the same object is found after itself."""
    backend = SqliteBackend(path, clock=FakeClock())
    backend.objects.put("blob", "one", b"1")
    real = inspection._Check._rows  # pyright: ignore[reportPrivateUsage]

    def rows(self: Any, sql: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        return real(self, sql, (0,) if sql == inspection._OBJECTS else bindings)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(inspection._Check, "_rows", rows)
    found = [one.problem for one in backend.inspect.verify(read_all=True)]
    assert "objects after it are out of order" in found
    backend.close()


def test_who_reads_a_tree_that_leads_back_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T8: a follower that goes on from the last row would never end."""
    backend = SqliteBackend(path, clock=FakeClock())
    end = backend.read_all(limit=1000)[-1].position
    leads_back = READ_ALL.replace("ordinal > ?", "ordinal > ? - 5")
    assert leads_back != READ_ALL
    monkeypatch.setattr(sqlite_backend, "READ_ALL", leads_back)
    with pytest.raises(CorruptError, match="out of order"):
        backend.read_all(after=end)
    backend.close()


@pytest.mark.parametrize("value", ["text", None])
def test_check_goes_on_after_a_position_that_is_no_number(path: Path, value: object) -> None:
    """T8: damage can turn it into text, with which no number can be compared."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'events'"
    )
    connection.close()
    _change(path, "UPDATE events SET position = ? WHERE ordinal = 30", [value])
    backend = SqliteBackend(path, clock=FakeClock())
    found = [one.problem for one in backend.inspect.verify(read_all=True)]
    assert any("fails its checksum" in problem for problem in found) == (value is not None)
    backend.close()
