"""The index: where in the text things are. It is disposable: if anything is wrong, it is rebuilt.

SQLite through apsw, in `index.sqlite`. A row of `block` has the spans of up to 256 revisions of
one stream, beginning at a multiple of 256; its id is (stream id << 32) + (revision >> 8). The spans
are packed as arrays, so that an event costs 13 bytes: log offsets (8 each), line lengths (4), first
revisions within the block (1). `line` has the offset of every 64th line. A key is stored as 8 bytes
of its digest; the record that is found decides whether it has the key.

Every page has a checksum (SQLite's cksumvfs), because a flipped bit in a tree page can make a row
absent instead of wrong, and an absent stream would be taken for a new one. A page that a power loss
left in its older state passes the checksum. So changes are synced as in any database, at the price
of a few syncs for each 4 MiB of log: after a crash the index can be trusted as before.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import apsw
from msgspec import Struct

from holdfast.backends.checked_pages import checking_vfs, make_room
from holdfast.backends.files.text import (
    DIGEST_START,
)
from holdfast.backends.forking import forking
from holdfast.backends.protocol import Head, Mark, MarkQuery, Position
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.backends.files.catalog import Tail

LineSpan = tuple[int, int, int]
"""First revision of a line's section, log offset of the line, its length."""


class LogCursor(Struct, frozen=True, gc=False):
    """A point in the log: the offset after a line, its position, the store digest after it."""

    end: int = 0
    position: int = 0
    digest: bytes = DIGEST_START


class NamedRevision(Struct, frozen=True, gc=False):
    """A record that has a key or a checkpoint name, and the position it was committed at."""

    revision: int
    name: str
    time: int
    position: int


NAME = "index.sqlite"
_LAYOUT = f"1-{sys.byteorder}"
_BLOCK_BITS = 8
_BLOCK_MASK = (1 << 32) - 1  # of a row's id: which block of its stream it is
_LINES_EACH = 64
_BUSY_MS = 10_000
_BUSY_UPDATE_MS = 250  # short: an update is made under the store lock, and can wait for the next

_SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE stream(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, revision INTEGER,
    link BLOB, time INTEGER, position INTEGER, first INTEGER);
CREATE TABLE block(id INTEGER PRIMARY KEY, places BLOB);
CREATE TABLE line(position INTEGER PRIMARY KEY, start INTEGER);
CREATE TABLE key(stream INTEGER, digest INTEGER, revision INTEGER,
    PRIMARY KEY(stream, digest, revision)) WITHOUT ROWID;
CREATE TABLE checkpoint(stream INTEGER, revision INTEGER, name TEXT, time INTEGER,
    position INTEGER, PRIMARY KEY(stream, revision)) WITHOUT ROWID;
CREATE TABLE mark(idx TEXT, key TEXT, due INTEGER, priority INTEGER, grp TEXT,
    position INTEGER, PRIMARY KEY(idx, key)) WITHOUT ROWID;
CREATE INDEX mark_order ON mark(idx, priority DESC, due, key);
"""


class StaleIndex(Exception):
    """The file is no index of this store, does not fit its text, or has another layout."""


class RefusedIndex(StaleIndex):
    """The file is sound, but this process cannot open it: it was forked within a transaction."""


UNUSABLE = (apsw.Error, StaleIndex)


class Index:
    """One connection. The caller serialises the calls, and has the store lock for `update`."""

    def __init__(self, path: str | None, store: str, *, read_only: bool = False) -> None:
        """Opens the index at `path` or makes it; without a path, makes one in memory.

        Raises one of `UNUSABLE` if what is there cannot be used.
        """
        self._store = store
        self._path = path
        self._db: Any = _connect(path, read_only=read_only)
        try:
            if not read_only:
                self._set_up(path)
            self.identity = self._identity()
            self.base = self.cursor()
        except BaseException:
            self._db.close()
            raise

    @property
    def is_private(self) -> bool:
        """Whether it is in memory, for this process alone."""
        return self._path is None

    def is_replaced(self) -> bool:
        """Returns whether the file's name leads to another file than the one that is open."""
        return self.identity != self._identity()

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _set_up(self, path: str | None) -> None:
        db = self._db
        if db.execute("SELECT count(*) FROM sqlite_schema").fetchone() != (0,):
            return
        if path is not None:
            # Pages are small, because each table takes at least one and in most stores most tables
            # are nearly empty.
            db.execute("PRAGMA page_size = 1024")
            make_room(db)
            os.chmod(path, 0o600)
        with db:
            db.execute(_SCHEMA)
            rows = {"store": self._store, "layout": _LAYOUT}
            db.executemany("INSERT INTO meta VALUES(?,?)", list(rows.items()))
            self._put_cursor(LogCursor(), 0)

    def cursor(self) -> LogCursor:
        """Returns up to where in the log the index is complete."""
        meta = dict(self._rows("SELECT name, value FROM meta"))
        if meta.get("store") != self._store or meta.get("layout") != _LAYOUT:
            raise StaleIndex("it belongs to another store or was made by another version")
        self.last_start = int(meta["last"])
        return LogCursor(int(meta["end"]), int(meta["position"]), bytes(meta["digest"]))

    @contextlib.contextmanager
    def reading(self) -> Generator[LogCursor]:
        """Holds one state of the index for several questions, and yields the cursor of that state.

        Another process may bring the index up to date at any time, and answers from two states must
        not be mixed.
        """
        try:
            if self._db.in_transaction:
                self._db.execute("COMMIT")  # left by an interrupt
            self._db.execute("BEGIN")
            rows = self._rows("SELECT value FROM meta WHERE name = 'end'")
            if rows[0][0] != self.base.end:
                self.base = self.cursor()
            yield self.base
        finally:
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    def head(self, stream: str) -> Head | None:
        rows = self._rows(
            "SELECT revision, link, time, position, first FROM stream WHERE name = ?", (stream,)
        )
        if not rows:
            return None
        revision, link, time, position, first = rows[0]
        return Head(revision, link, time, Position(position), first)

    def spans(self, stream: str, after: int, until: int) -> list[LineSpan]:
        """Returns the spans of the lines that hold revisions after < revision <= until."""
        number = self._number(stream)
        if number is None:
            return []
        base = number << 32
        begin = base + (after + 1 >> _BLOCK_BITS)
        earlier = "SELECT id, places FROM block WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
        rows = self._rows(
            "SELECT id, places FROM block WHERE id BETWEEN ? AND ? ORDER BY id",
            (begin, base + (until >> _BLOCK_BITS)),
        )
        # The line that holds revision after + 1 may begin in an earlier block.
        if not rows or rows[0][0] > begin or _first(begin - base, rows[0][1]) > after + 1:
            rows = self._rows(earlier, (base, begin - 1)) + rows
        spans: list[LineSpan] = []
        for block, packed in rows:
            spans += _unpack(block - base, packed, after, until)
        return spans

    def start_near(self, position: int) -> tuple[int, int]:
        """Returns a position at or before `position`, and the log offset of the line after it."""
        rows = self._rows(
            "SELECT position, start FROM line WHERE position <= ? ORDER BY position DESC LIMIT 1",
            (position + 1,),
        )
        return (rows[0][0] - 1, rows[0][1]) if rows else (0, 0)

    def revisions_with_key(self, stream: str, key: str) -> list[int]:
        """Returns the revisions whose key has the same digest; the caller checks the record."""
        rows = self._rows(
            "SELECT revision FROM key WHERE digest = ? AND "
            "stream = (SELECT id FROM stream WHERE name = ?)",
            (_key_digest(key), stream),
        )
        return [row[0] for row in rows]

    def checkpoints(self, stream: str, name: str | None, limit: int | None) -> list[NamedRevision]:
        """Returns the stream's checkpoints, newest first; with `name`, only those of that name.

        A name is searched from the newest checkpoint on. For a conversation that names each of its
        turns, an index by name would be as large as all the rest.
        """
        rows = self._rows(
            "SELECT revision, name, time, position FROM checkpoint "
            "WHERE stream = (SELECT id FROM stream WHERE name = ?1) "
            + ("" if name is None else "AND name = ?2 ")
            + "ORDER BY revision DESC LIMIT ?3",
            (stream, name, -1 if limit is None else limit),
        )
        return [NamedRevision(*row) for row in rows]

    def streams(self, prefix: str, after: str, limit: int) -> list[str]:
        # SQLite compares text by its UTF-8 bytes, which is the order of code points.
        beyond = _beyond(prefix)
        rows = self._rows(
            "SELECT name FROM stream WHERE name >= ?1 AND name > ?2"
            + ("" if beyond is None else " AND name < ?3")
            + " ORDER BY name LIMIT ?4",
            (prefix, after, beyond, limit),
        )
        return [row[0] for row in rows]

    def marks(self, query: MarkQuery) -> list[tuple[Mark, int]]:
        """Returns marks and the positions they were set at, in the order of clause 17.

        A page after a given mark takes two searches: for the rest of its priority, and for the
        priorities below.
        """
        last, rows = query.after, list[Any]()
        values: dict[str, Any] = {"top": None, "due": 0, "key": "", "about": ""}
        values |= {"idx": query.index, "grp": query.group, "before": query.due_before}
        if last is not None:
            values |= {"top": last.priority, "due": last.due, "key": last.key, "about": last.index}
        if query.keys is not None and query.index is not None:
            for key in query.keys:
                rows += self._rows(_MARK, (query.index, key))
        elif query.index is None:
            rows = self._rows(_MARKS, {**values, "limit": query.limit})
        else:
            if last is not None:
                rows = self._rows(_MARKS_LIKE, {**values, "limit": query.limit})
            rows += self._rows(_MARKS_BELOW, {**values, "limit": query.limit - len(rows)})
        return [(Mark(*row[:5]), row[5]) for row in rows]

    def update(self, tail: Tail) -> None:
        """Adds the whole tail, whose base is the end of this index, in one transaction."""
        db = self._db
        # A reader that was stopped in the middle of a question must not stop the writer for long.
        db.set_busy_timeout(_BUSY_UPDATE_MS)
        try:
            self._update(tail)
        finally:
            db.set_busy_timeout(_BUSY_MS)

    def _update(self, tail: Tail) -> None:
        db = self._db
        last = tail.offsets[-1] if tail.offsets else self.last_start
        with db:
            numbers = self._put_heads(tail)
            self._put_blocks(tail, numbers)
            self._put_names(tail, numbers)
            self._put_marks(tail.marks)
            first = tail.base.position + 1
            lines = [
                (first + number, start)
                for number, start in enumerate(tail.offsets)
                if (first + number) % _LINES_EACH == 1
            ]
            db.executemany("INSERT OR REPLACE INTO line VALUES(?,?)", lines)
            self._put_cursor(tail.cursor, last)
        self.base = tail.cursor
        self.last_start = last

    def _put_heads(self, tail: Tail) -> dict[str, int]:
        """Stores the head of each changed stream; returns the streams' numbers.

        It goes by name, so that rows of one page are changed one after the other.
        """
        streams = sorted(tail.spans)
        heads = ((stream, tail.heads[stream]) for stream in streams)
        rows = self._db.executemany(
            "INSERT INTO stream(name, revision, link, time, position, first) "
            "VALUES(?,?,?,?,?,?) ON CONFLICT(name) DO UPDATE SET revision = excluded.revision, "
            "link = excluded.link, time = excluded.time, position = excluded.position RETURNING id",
            ((name, h.revision, h.link, h.time, h.position, h.first) for name, h in heads),
        )
        return {stream: row[0] for stream, row in zip(streams, rows, strict=True)}

    def _put_blocks(self, tail: Tail, numbers: dict[str, int]) -> None:
        """Adds the spans of the tail to their blocks, which are read first if they exist."""
        added: dict[int, list[LineSpan]] = {}
        for stream, number in numbers.items():
            base = number << 32
            for span in tail.spans[stream]:
                added.setdefault(base + (span[0] >> _BLOCK_BITS), []).append(span)
        rows = sorted(added)
        found = self._db.executemany(
            "SELECT id, places FROM block WHERE id = ?", [(row,) for row in rows]
        )
        known: dict[int, bytes] = dict(found)
        self._db.executemany(
            "INSERT OR REPLACE INTO block VALUES(?,?)",
            [(row, _extended(row & _BLOCK_MASK, known.get(row, b""), added[row])) for row in rows],
        )

    def _put_names(self, tail: Tail, numbers: dict[str, int]) -> None:
        keys = [
            (numbers[stream], _key_digest(key), named.revision)
            for (stream, key), named in tail.keys.items()
        ]
        self._db.executemany("INSERT OR IGNORE INTO key VALUES(?,?,?)", keys)
        checkpoints = [
            (numbers[stream], n.revision, n.name, n.time, n.position)
            for stream, found in tail.checkpoints.items()
            for n in found
        ]
        self._db.executemany("INSERT OR REPLACE INTO checkpoint VALUES(?,?,?,?,?)", checkpoints)

    def _put_marks(self, marks: dict[tuple[str, str], tuple[Mark | None, int]]) -> None:
        cleared = [name for name, (mark, _) in marks.items() if mark is None]
        kept = [
            (*name, mark.due, mark.priority, mark.group, position)
            for name, (mark, position) in marks.items()
            if mark is not None
        ]
        self._db.executemany("DELETE FROM mark WHERE idx = ? AND key = ?", cleared)
        self._db.executemany("INSERT OR REPLACE INTO mark VALUES(?,?,?,?,?,?)", kept)

    def _put_cursor(self, cursor: LogCursor, last_start: int) -> None:
        rows = {
            "end": cursor.end,
            "position": cursor.position,
            "digest": cursor.digest,
            "last": last_start,
        }
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES(?,?)", list(rows.items()))

    def heads(self) -> Iterable[tuple[str, Head]]:
        """Yields every stream with its head, for verification."""
        rows = self._rows("SELECT name, revision, link, time, position, first FROM stream")
        return ((row[0], Head(*row[1:])) for row in rows)

    def close(self) -> None:
        self._db.close()

    def _number(self, stream: str) -> int | None:
        rows = self._rows("SELECT id FROM stream WHERE name = ?", (stream,))
        return rows[0][0] if rows else None

    def _rows(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> list[Any]:
        return self._db.execute(sql, values).fetchall()


def open_existing(path: str, store: str, *, read_only: bool) -> Index | None:
    """Opens the index if there is one, else returns None; raises as `Index` does."""
    if not os.path.lexists(path):
        return None
    try:
        return Index(path, store, read_only=read_only)
    except apsw.CantOpenError:
        if os.path.lexists(path):
            raise
        return None  # another process has deleted it since we looked


def remove(path: str) -> None:
    """Deletes the index, the database before its journal.

    In the other order, a kill in between could leave a half-changed database without the journal
    that would undo the change.
    """
    for name in (path, path + "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _connect(path: str | None, *, read_only: bool) -> Any:
    if path is None:
        return forking.connect(":memory:")
    try:
        is_file = stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        is_file = True  # SQLite creates it
    if not is_file:
        raise StaleIndex("it is not a file")  # SQLite would wait for ever at a pipe
    flags = apsw.SQLITE_OPEN_READONLY if read_only else _WRITE_FLAGS
    flags |= apsw.SQLITE_OPEN_NOFOLLOW
    try:
        db = forking.connect(path, flags=flags, vfs=checking_vfs())
    except UsageError as exc:
        raise RefusedIndex(exc.message) from exc
    db.set_busy_timeout(_BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    # FULL: the journal's pages are synced before its header counts them. With NORMAL a power loss
    # may leave a header that counts pages which are not whole. SQLite checks only a sample of their
    # bytes and would put them back, and cksumvfs would give the damaged pages a valid checksum.
    settings = "PRAGMA synchronous = FULL; PRAGMA cache_size = -2048; PRAGMA cell_size_check = 1"
    try:
        db.execute(settings)
    except BaseException:
        db.close()
        raise
    return db


_FROM_MARK = "SELECT idx, key, due, priority, grp, position FROM mark WHERE "
_FITTING = "(:grp IS NULL OR grp = :grp) AND (:before IS NULL OR due < :before)"
_MARK = _FROM_MARK + "idx = ? AND key = ?"
_MARKS = (
    _FROM_MARK + _FITTING + " AND (:top IS NULL OR priority < :top OR (priority = :top AND "
    "(due, key, idx) > (:due, :key, :about))) ORDER BY priority DESC, due, key, idx LIMIT :limit"
)
_MARKS_LIKE = (
    _FROM_MARK + _FITTING + " AND idx = :idx AND priority = :top "
    "AND (due, key, idx) > (:due, :key, :about) ORDER BY due, key LIMIT :limit"
)
_MARKS_BELOW = (
    _FROM_MARK + _FITTING + " AND idx = :idx AND (:top IS NULL OR priority < :top) "
    "ORDER BY priority DESC, due, key LIMIT :limit"
)
_WRITE_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def _key_digest(key: str) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[:8], "big", signed=True)


def _beyond(prefix: str) -> str | None:
    """Returns the smallest text after all those that begin with `prefix`, None if there is none."""
    while prefix:
        last = ord(prefix[-1])
        prefix = prefix[:-1]
        if last < sys.maxunicode:
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def _extended(block: int, packed: bytes, spans: list[LineSpan]) -> bytes:
    """Returns a packed block with more spans at its end."""
    base, count = block << _BLOCK_BITS, len(packed) // 13
    starts = array("Q", [span[1] for span in spans])
    lengths = array("I", [span[2] for span in spans])
    firsts = bytes([span[0] - base for span in spans])
    if not count:
        return starts.tobytes() + lengths.tobytes() + firsts
    lengths_at, firsts_at = 8 * count, 12 * count
    return b"".join(
        (
            packed[:lengths_at], starts, packed[lengths_at:firsts_at], lengths,
            packed[firsts_at:], firsts,
        )
    )  # fmt: skip


def _first(block: int, packed: bytes) -> int:
    """Returns the revision at which the block's first span begins."""
    return (block << _BLOCK_BITS) + packed[len(packed) // 13 * 12]


def _unpack(block: int, packed: bytes, after: int = -1, until: int = sys.maxsize) -> list[LineSpan]:
    """Returns the block's spans that may hold revisions after < revision <= until."""
    count = len(packed) // 13
    base = block << _BLOCK_BITS
    firsts = packed[12 * count :]
    begin = max(bisect_right(firsts, after + 1 - base) - 1, 0)
    end = bisect_right(firsts, until - base)
    starts, lengths = array("Q"), array("I")
    starts.frombytes(packed[8 * begin : 8 * end])
    lengths.frombytes(packed[8 * count + 4 * begin : 8 * count + 4 * end])
    revisions = [base + first for first in firsts[begin:end]]
    return list(zip(revisions, starts, lengths, strict=True))
