"""What can still be read of a damaged database: row by row, over pages that SQLite cannot read.

A query that meets a malformed page fails as a whole. So a range of rows that cannot be read is
halved, and each half is tried, down to single rows. Ordinals have no gaps, so a row that is missing
without any error is noticed too.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from holdfast.backends.protocol import Finding, Gap, Mark, Record
from holdfast.backends.sqlite.connection import NEWEST, Row, SqliteConnection
from holdfast.backends.sqlite.leases import READ_MARKS
from holdfast.backends.sqlite.rows import (
    ORDINAL,
    POSITION,
    READ_ROWS,
    REVISION,
    STREAM,
    crc_of,
    decode,
)
from holdfast.errors import CorruptError

_STREAMS = "SELECT id, name FROM streams WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
_BY_STREAM = "SELECT ordinal FROM events WHERE stream = ? AND revision = ?"
_ROW_BYTES_MIN = 16
_PAGE = 200
UNREADABLE = (apsw.Error, UnicodeDecodeError)


def _check_order(rows: list[Row], low: int) -> None:
    """Raises unless the rows ascend: a damaged tree can lead back, and a reader would never end."""
    for row in rows:
        if row[0] <= low:
            raise apsw.CorruptError("rows are out of order")
        low = row[0]


class SqliteRemains:
    """One pass over a database."""

    def __init__(self, connection: SqliteConnection, path: str, size: int) -> None:
        self._connection = connection
        self._path = path
        self._rows_max = size // _ROW_BYTES_MIN  # no file of that size has more

    def run(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        """Yields the commits in order, each damage at its place, then the marks."""
        rows = self._between(_STREAMS, 0, self._rows_max)
        names = {number: name for number, name in rows if isinstance(name, str)}
        names_left = set(names.values())
        commit: list[Record] = []
        last = 0
        newest = self._newest()
        if newest is not None and newest > self._rows_max:
            problem = f"a row has the ordinal {newest}: so many there cannot be"
            yield Gap(Finding(self._path, problem))
            newest = None
        for row in self._between(READ_ROWS, 0, self._rows_max if newest is None else newest):
            ordinal = row[ORDINAL]
            damage: list[Finding | Gap] = []
            if ordinal != last + 1:
                problem = f"rows {last + 1} to {ordinal - 1} cannot be read"
                damage.append(Gap(Finding(self._path, problem)))
            last = ordinal
            record = None
            try:
                record = self._record(row, names)
            except CorruptError as exc:
                damage.append(self._damage(row, names, exc.message))
            if commit and (record is None or record.position != commit[0].position):
                yield commit
                commit = []
            yield from damage
            if record is not None:
                commit.append(record)
                names_left.discard(record.stream)
        if commit:
            yield commit
        if last < (newest or 0):
            yield Gap(Finding(self._path, f"rows {last + 1} to {newest} cannot be read"))
        for name in sorted(names_left):
            yield Finding(name, "none of its events can be read", streams=(name,))
        # Damage to the tree of the table may hide its newest rows without any error.
        for problem in self._structure():
            yield Gap(Finding(self._path, problem))
        yield from self._marks()

    def _structure(self) -> list[str]:
        """Returns the problems that SQLite finds in the structure of the file."""
        try:
            found = [
                row[0] for row in self._connection.execute("PRAGMA quick_check(10)").fetchall()
            ]
        except UNREADABLE as exc:
            found = [str(exc)]
        return [str(problem) for problem in found if problem != "ok"]

    def _record(self, row: Row, names: dict[int, str]) -> Record | None:
        """Returns the event of a row, None for the row of a commit without events."""
        number = row[STREAM]
        if number is None and row[REVISION] is None and row[POSITION] is None:
            return None
        name = names.get(number) if isinstance(number, int) else None
        if name is None:
            raise CorruptError(f"the row belongs to stream number {number}, which has no name")
        return decode(row, name, self._path)

    def _damage(self, row: Row, names: dict[int, str], problem: str) -> Finding | Gap:
        """Returns the damage of a row that fails its checksum; names its stream if that is certain.

        The index on stream and revision has a copy of both. If a search by them leads to this very
        row, they are not damaged.
        """
        ordinal, number, revision = row[ORDINAL], row[STREAM], row[REVISION]
        where = f"{self._path} ordinal {ordinal}"
        try:
            rows = self._connection.execute(_BY_STREAM, (number, revision)).fetchall()
        except UNREADABLE:
            rows = []
        if rows == [(ordinal,)] and number in names:
            return Finding(where, problem, streams=(names[number],))
        return Gap(Finding(where, problem))

    def _newest(self) -> int | None:
        try:
            return self._connection.execute(NEWEST).get or 0
        except UNREADABLE:
            return None  # reported by the check of the structure

    def _between(self, sql: str, low: int, high: int) -> Iterator[Row]:
        """Yields every readable row with low < number <= high."""
        while low < high:
            try:
                rows: list[Row] = self._connection.execute(sql, (low, high, _PAGE)).fetchall()
                _check_order(rows, low)
            except UNREADABLE:
                if high - low == 1:
                    return
                middle = (low + high) // 2
                yield from self._between(sql, low, middle)
                low = middle
                continue
            if not rows:
                return
            yield from rows
            low = rows[-1][0]

    def _marks(self) -> Iterator[Mark | Finding]:
        try:
            rows: list[Row] = self._connection.execute(READ_MARKS).fetchall()
        except apsw.SQLError:
            return  # there is no such table: no mark was ever set
        except UNREADABLE as exc:
            yield Finding(self._path, f"the marks cannot be read: {exc}")
            return
        for *row, crc in rows:
            if crc == crc_of(*row):
                yield Mark(*row)
            else:
                yield Finding(f"mark {row[0]} {row[1]}", "fails its checksum")
