"""Answers `status` and `check`: plain facts, and everything that can be wrong below the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.backends.protocol import Durability, Finding, Gap, Mark, Record
from holdfast.backends.sqlite.batch import CHECKPOINTS_EVERY
from holdfast.backends.sqlite.connection import (
    HAS_TABLE,
    NEWEST,
    Row,
    SqliteCheckout,
    SqliteConnection,
    columns,
    columns_of,
    parts,
)
from holdfast.backends.sqlite.leases import READ_LEASES, READ_MARKS, STRAY_CLAIMS
from holdfast.backends.sqlite.opening import connect
from holdfast.backends.sqlite.remains import SqliteRemains
from holdfast.backends.sqlite.rescue import rescued_reports
from holdfast.backends.sqlite.rows import (
    ORDINAL,
    ORDINAL_MAX,
    POSITION,
    READ_ALL,
    READ_STORE,
    REVISION,
    STREAM,
    crc_of,
    decode,
    object_crc,
)
from holdfast.backends.sqlite.witness import find_loss, remedy
from holdfast.errors import CorruptError, HoldfastError, UnavailableError

_STREAMS = "SELECT id, name, first FROM streams"
_LOST_KEYS = """SELECT s.name, e.revision FROM events e JOIN streams s ON s.id = e.stream
 LEFT JOIN keys k ON k.stream = e.stream AND k.key = e.key
 WHERE e.key IS NOT NULL AND k.revision IS NOT e.revision"""
_LOST_KEYS_NO_TABLE = """SELECT s.name, e.revision FROM events e JOIN streams s ON s.id = e.stream
 WHERE e.key IS NOT NULL"""
_STRAY_KEYS = """SELECT k.stream, k.revision FROM keys k
 LEFT JOIN events e ON e.stream = k.stream AND e.revision = k.revision WHERE e.key IS NOT k.key"""
_LOST_CHECKPOINTS = """SELECT s.name, e.revision FROM events e JOIN streams s ON s.id = e.stream
 LEFT JOIN checkpoints c
   ON c.stream = e.stream AND c.name = e.checkpoint AND c.ordinal = e.ordinal
 WHERE e.checkpoint IS NOT NULL AND e.ordinal <= ? AND c.ordinal IS NULL"""
_STRAY_CHECKPOINTS = """SELECT c.stream, c.ordinal FROM checkpoints c
 LEFT JOIN events e ON e.ordinal = c.ordinal
 WHERE e.checkpoint IS NOT c.name OR e.stream IS NOT c.stream OR c.ordinal > ?"""
_OBJECTS = "SELECT id, kind, name, crc, data FROM objects WHERE id > ? ORDER BY id LIMIT 1"

_PAGE = 500


class SqliteInspection:
    """Inspects a store; verification uses a third connection, so that nobody waits for it."""

    def __init__(self, checkout: SqliteCheckout, durability: Durability) -> None:
        self._checkout = checkout
        self._durability: Durability = durability

    def describe(self) -> dict[str, Any]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors:
            stores = [row[3] for row in checkout.reader.rows(READ_STORE)]
            position = checkout.reader.newest()
            with checkout.reader.lock:
                format = checkout.reader.connection.pragma("user_version")
                loss = find_loss(checkout.path, checkout.reader.execute)
        reports = [] if loss is None else [f"{loss}; {remedy(checkout.path)}"]
        return {
            "kind": "sqlite",
            "place": f"sqlite:{checkout.path}",
            "path": checkout.path,
            "format": format,
            "store": stores[0] if stores else "",
            "durability": self._durability,
            "size_bytes": _size(checkout.path) + _size(checkout.path + "-wal"),
            "position": position,
            "sqlite": apsw.sqlite_lib_version(),
            "reports": reports + rescued_reports(checkout.path),
        }

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields what is wrong; with `read_all`, the checksum of every row is computed."""
        checkout = self._checkout
        checkout.check_open()
        connection = connect(checkout.path, durability=self._durability, read_only=True)
        try:
            yield from _Check(connection, checkout.path).run(read_all=read_all)
        finally:
            connection.close()

    def remains(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        """Yields what can still be read, row by row."""
        checkout = self._checkout
        checkout.check_open()
        connection = connect(checkout.path, durability=self._durability, read_only=True)
        try:
            size = _size(checkout.path) + _size(checkout.path + "-wal")
            yield from SqliteRemains(connection, checkout.path, size).run()
        finally:
            connection.close()


class _Check:
    """One pass over a database; no unreadable table hides what is wrong with the others."""

    def __init__(self, connection: SqliteConnection, path: str) -> None:
        self._connection = connection
        self._path = path

    def run(self, *, read_all: bool) -> Iterator[Finding]:
        parts = [self._lost(), self._structure(full=read_all)]
        if read_all:
            parts += [
                self._store(),
                self._events(),
                self._keys(),
                self._checkpoints(),
                self._beside(),
                self._objects(),
            ]
        for part in parts:
            try:
                yield from part
            except (apsw.Error, HoldfastError, UnicodeDecodeError) as exc:
                yield Finding(self._path, str(exc))

    def _rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[Row]:
        return self._connection.execute(sql, bindings).fetchall()

    def _has(self, table: str) -> bool:
        return self._rows(HAS_TABLE, (table,)) == [(1,)]

    def _lost(self) -> Iterator[Finding]:
        loss = find_loss(self._path, self._connection.execute)
        if loss is not None:
            yield Finding(self._path, f"{loss}; {remedy(self._path)}")

    def _structure(self, *, full: bool) -> Iterator[Finding]:
        # Both forms walk every page; the full one also looks up every row in every index.
        check = "PRAGMA integrity_check(100)" if full else "PRAGMA quick_check(100)"
        for (problem,) in self._rows(check):
            if problem != "ok":
                yield Finding(self._path, problem)
        # A table whose name was damaged looks like one that was never made.
        for kind, name in self._rows("SELECT type, name FROM sqlite_schema"):
            if (kind, name) not in parts():
                yield Finding(self._path, f"has the {kind} {name!r}, which no store has")
            # A damaged column name does not show in queries that do not name the column.
            elif kind == "table" and not self._has_columns_of(name):
                yield Finding(self._path, f"the table {name!r} has columns that no store has")

    def _has_columns_of(self, table: str) -> bool:
        found, known = columns_of(self._connection.execute, table), columns()[table]
        return found == known or (table == "events" and found == known[:-1])  # of format 1

    def _store(self) -> Iterator[Finding]:
        rows = self._rows(READ_STORE)
        if not rows:
            yield Finding("ordinal 0", "the row of the store's id is missing")
        for *row, crc in rows:
            if crc != crc_of(*row):
                yield Finding("ordinal 0", "the row of the store's id fails its checksum")

    def _events(self) -> Iterator[Finding]:
        """Reads every event, some rows at a time, so that commits and checkpoints can go on."""
        streams: dict[int, tuple[str, int]] = {}
        following: dict[int, int] = {}
        ordinal = open_until = 0
        while rows := self._rows(READ_ALL, (ordinal, ORDINAL_MAX, _PAGE)):
            if rows[-1][ORDINAL] <= ordinal:
                # A damaged tree can lead back to rows that were read already, without end.
                yield Finding(f"ordinal {ordinal}", "rows after it are out of order")
                break
            if any(row[STREAM] not in streams for row in rows):
                streams = {number: (name, first) for number, name, first in self._rows(_STREAMS)}
            for row in rows:
                ordinal, position, revision = row[ORDINAL], row[POSITION], row[REVISION]
                number = row[STREAM]
                if number not in streams:
                    problem = f"belongs to stream number {number}, which has no name"
                    yield Finding(f"ordinal {ordinal}", problem)
                    continue
                name, first = streams[number]
                where = f"{name}@{revision}"
                try:
                    decode(row, name, self._path)
                except CorruptError as exc:
                    yield Finding(where, exc.message)
                expected = following.get(number, first)
                if revision != expected:
                    yield Finding(where, f"expected revision {expected} in its place")
                following[number] = revision + 1 if isinstance(revision, int) else expected + 1
                # Damage can turn the position into text; then the row has failed its checksum.
                until = position if isinstance(position, int) else ordinal
                if until < ordinal or open_until not in (0, until):
                    yield Finding(where, "its commit is not whole")
                open_until = until if until != ordinal else 0
        if open_until:
            yield Finding(f"ordinal {ordinal}", "its commit is not whole")
        for number, (name, _) in streams.items():
            if number not in following:
                yield Finding(name, "the stream has no events")

    def _keys(self) -> Iterator[Finding]:
        if not self._has("keys"):
            for name, revision in self._rows(_LOST_KEYS_NO_TABLE):
                yield Finding(f"{name}@{revision}", "its key is not in the table of keys")
            return
        for name, revision in self._rows(_LOST_KEYS):
            yield Finding(f"{name}@{revision}", "its key is not in the table of keys")
        for number, revision in self._rows(_STRAY_KEYS):
            yield Finding(f"stream number {number}, revision {revision}", "a key of no event")

    def _checkpoints(self) -> Iterator[Finding]:
        # All three in one snapshot: a commit that passes a multiple of 256 extends the index.
        self._connection.execute("BEGIN")
        newest = self._rows(NEWEST)[0][0] or 0
        indexed = newest // CHECKPOINTS_EVERY * CHECKPOINTS_EVERY
        lost = self._rows(_LOST_CHECKPOINTS, (indexed,)) if indexed else []
        stray = self._rows(_STRAY_CHECKPOINTS, (indexed,)) if indexed else []
        self._connection.execute("COMMIT")
        for name, revision in lost:
            yield Finding(f"{name}@{revision}", "its checkpoint is not in the table of checkpoints")
        for number, ordinal in stray:
            yield Finding(f"stream number {number}, ordinal {ordinal}", "a checkpoint of no event")

    def _beside(self) -> Iterator[Finding]:
        if self._has("leases"):
            for *row, crc in self._rows(READ_LEASES):
                if crc != crc_of(*row):
                    yield Finding(f"lease {row[0]}", "fails its checksum")
        if self._has("marks"):
            for *row, crc in self._rows(READ_MARKS):
                if crc != crc_of(*row):
                    yield Finding(f"mark {row[0]} {row[1]}", "fails its checksum")
            stray = self._rows(STRAY_CLAIMS)[0][0]
            if stray:
                yield Finding("claims", f"{stray} of marks that are not there", harmless=True)

    def _objects(self) -> Iterator[Finding]:
        if not self._has("objects"):
            return
        after = 0
        while rows := self._rows(_OBJECTS, (after,)):
            if rows[0][0] <= after:
                # A damaged tree can lead back here, too.
                yield Finding(f"object {after}", "objects after it are out of order")
                break
            after, kind, name, crc, data = rows[0]
            if not isinstance(data, bytes) or crc != object_crc(kind, name, data):
                yield Finding(f"{kind} {name}", "fails its checksum", harmless=kind == "snapshot")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as exc:
        raise UnavailableError(
            f'"{path}" cannot be examined: {exc.strerror}', hint="check the disk, then try again"
        ) from exc
