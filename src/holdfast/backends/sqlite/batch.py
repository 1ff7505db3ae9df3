"""The commits of one transaction: judged one after another, inserted as they are accepted.

A commit is judged before it writes anything, so a refusal needs no savepoint. A later commit of the
list sees the earlier ones in the tables and in this object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple

from holdfast.backends.judge import head_after, judge
from holdfast.backends.protocol import Append, Commit, Head, Position, Receipt, Refusal
from holdfast.backends.sqlite.connection import (
    INDEX_FROM_ROW,
    NEWEST,
    Execute,
    Row,
    SqliteTables,
    SqliteWriter,
)
from holdfast.backends.sqlite.leases import SqliteLeases, SqliteMarks
from holdfast.backends.sqlite.rows import (
    INSERT,
    INSERT_EMPTY,
    INSERT_META,
    READ_HEAD,
    decode_head,
    encode,
)
from holdfast.errors import CorruptError

# --- heads ----------------------------------------------------------------------------------------
#
# What this process knows of streams: their numbers, which never change, and heads as of a position.
#
# No row stores the head of a stream: that would be a second truth, and one more page for every
# commit to write. The head is the newest row of the stream, and it is cached here. The cache is
# complete up to `position`: a cached head is current unless an event above that position belongs to
# its stream. Everything that moves a head adds an ordinal. So one look at the end of one table, for
# the newest ordinal, tells whether a head can be stale.


_STREAMS_MAX = 1 << 17


class Stream(NamedTuple):
    """A stream's number, and the first revision that it holds."""

    id: int
    first: int


class HeadCache:
    """Shared by readers and the writer; its lock is held for a few dict operations only."""

    def __init__(self) -> None:
        self.position = 0
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Stream] = {}
        self._names: dict[int, str] = {}
        self._lock = RLock()

    def remember(self, streams: dict[str, Stream]) -> None:
        """Caches streams that were read from committed rows; their numbers never change."""
        with self._lock:
            self._remember(streams)

    def advance(self, newest: int, changed: Iterable[int] | None) -> None:
        """Completes the cache up to `newest`; forgets the heads of `changed`, or all if None."""
        with self._lock:
            if newest <= self.position:
                return
            if changed is None:
                self.heads.clear()
            else:
                for stream_id in changed:
                    self.heads.pop(self._names.get(stream_id, ""), None)
            self.position = newest

    def offer(self, position: int, heads: dict[str, Head], streams: dict[str, Stream]) -> None:
        """Caches heads that were current at `position`, unless the cache is at another one now."""
        with self._lock:
            self._remember(streams)
            if position == self.position:
                self._keep(heads)

    def publish(self, position: int, heads: dict[str, Head], streams: dict[str, Stream]) -> None:
        """Caches the heads after a transaction, which began with a cache complete before it.

        If another thread has already read beyond `position`, these heads may be stale and are
        dropped.
        """
        with self._lock:
            if streams:
                self._remember(streams)
            if position >= self.position:
                self._keep(heads)
                self.position = position

    def _keep(self, heads: dict[str, Head]) -> None:
        # Only together with the stream's number, without which `advance` cannot find a stale head.
        for name, head in heads.items():
            if name in self.streams:
                self.heads[name] = head

    def _remember(self, streams: dict[str, Stream]) -> None:
        if len(self.streams) + len(streams) > _STREAMS_MAX:
            # Heads first: an interrupt may come in between, and a head without its stream's number
            # would never be forgotten.
            self.heads.clear()
            self._names.clear()
            self.streams.clear()
        for name, stream in streams.items():
            self._names[stream.id] = name
            self.streams[name] = stream


CHECKPOINTS_EVERY = 256
"""Checkpoint names are indexed up to the newest multiple of this ordinal."""

# With more new events than this, it is cheaper to forget every head than to ask which have changed.
_NEWS_MAX = 1000

_STREAM = "SELECT id, first FROM streams WHERE name = ?"
_ADD_STREAM = "INSERT INTO streams (name, first) VALUES (?,?)"
_CHANGED = "SELECT DISTINCT stream FROM events WHERE ordinal > ? AND stream IS NOT NULL"
_KEY = "SELECT revision FROM keys WHERE stream = ? AND key = ?"
_ADD_KEY = "INSERT INTO keys VALUES (?,?,?)"
_ADD_CHECKPOINTS = """INSERT INTO checkpoints SELECT stream, checkpoint, ordinal FROM events
 WHERE ordinal > ? AND ordinal <= ? AND checkpoint IS NOT NULL"""


def find_stream(execute: Execute, name: str) -> Stream | None:
    rows = execute(_STREAM, (name,)).fetchall()
    if len(rows) > 1:  # up to row 32 there is no index that would keep names apart
        raise CorruptError(f'there are {len(rows)} streams with the name "{name}"', stream=name)
    if not rows:
        return None
    stream = Stream(*rows[0])
    if not isinstance(stream.first, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        # Damage to the schema can give a column another type.
        raise CorruptError(f'stream "{name}" begins at {stream.first!r}', stream=name)
    return stream


def find_head(execute: Execute, name: str, stream: Stream, where: str) -> Head:
    rows = execute(READ_HEAD, (stream.id,)).fetchall()
    if not rows:
        raise CorruptError(f'stream "{name}" has no events ({where})', where=where, stream=name)
    return decode_head(rows[0], name, stream.first, where)


def catch_up(execute: Execute, cache: HeadCache) -> int:
    """Completes the cache up to the newest ordinal that the connection sees, and returns it."""
    newest: int = execute(NEWEST).get or 0
    known = cache.position
    if newest > known:
        changed = None
        if newest - known <= _NEWS_MAX:
            changed = [row[0] for row in execute(_CHANGED, (known,)).fetchall()]
        cache.advance(newest, changed)
    return newest


class LacksMeta(Exception):
    """The store has format 1 and a record has meta, so the store must be upgraded first."""


class SqliteBatch:
    """Lives for one transaction; `cache` must be complete up to `position` when it begins."""

    __slots__ = (
        "_cache",
        "_execute",
        "_leases",
        "_marks",
        "_now_us",
        "_tables",
        "_where",
        "heads",
        "link",
        "outcomes",
        "position",
        "streams",
        "writer",
    )

    def __init__(
        self,
        writer: SqliteWriter,
        cache: HeadCache,
        tables: SqliteTables,
        leases: SqliteLeases,
        marks: SqliteMarks,
        where: str,
        now_us: Callable[[], int],
    ) -> None:
        self.writer = writer
        self._execute = writer.execute
        self._cache = cache
        self._tables = tables
        self._leases = leases
        self._marks = marks
        self._where = where
        self._now_us = now_us
        self.position = cache.position
        self.link: bytes | None = None
        """The link of the event at `position`; None if the batch wrote nothing."""
        self.heads: dict[str, Head] = {}
        self.streams: dict[str, Stream] = {}
        self.outcomes: list[Receipt | Refusal] = []

    def take(self, commit: Commit) -> None:
        """Judges a commit, writes it if it is accepted, and adds the outcome to `outcomes`."""
        refusal = judge(commit, self._head_of, self._key_of, self._leases.fence_holds, self._now_us)
        if refusal is not None:
            self.outcomes.append(refusal)
            return
        before = ordinal = self.position
        position = before + (sum(len(append.records) for append in commit.appends) or 1)
        for append in commit.appends:
            name = append.stream
            head = self._head_of(name)
            stream = None if head is None else self._stream(name)
            if stream is None:
                stream = self._add_stream(append)
            for record in append.records:
                ordinal += 1
                row = encode(record, stream.id, ordinal, position)
                if record.meta is None:
                    self._execute(INSERT, row)
                else:
                    self._insert_meta(row)
            self.link = append.records[-1].link
            self.heads[name] = head_after(append, head, Position(position))
            for record in append.records:
                if record.key is not None:
                    self._tables.ensure("keys", self._execute)
                    self._execute(_ADD_KEY, (stream.id, record.key, record.revision))
        if ordinal == before:
            self.link = b""
            self._execute(INSERT_EMPTY, (position,))
        if commit.marks:
            self._marks.apply(commit.marks)
        self.position = position
        news = {name: self._revision(name) for name in commit.watch} if commit.watch else {}
        self.outcomes.append(Receipt(Position(position), news))

    def _insert_meta(self, row: Row) -> None:
        if not (self._tables.knows_meta or self._tables.has_meta(self._execute)):
            raise LacksMeta
        self._execute(INSERT_META, row)

    def finish(self) -> None:
        """Indexes checkpoint names if the transaction has passed a multiple of 256."""
        every = CHECKPOINTS_EVERY
        before = self._cache.position // every * every
        after = self.position // every * every
        if after > before:
            self._tables.ensure("checkpoints", self._execute)
            self._execute(_ADD_CHECKPOINTS, (before, after))

    def _add_stream(self, append: Append) -> Stream:
        first = append.expected + 1
        self._execute(_ADD_STREAM, (append.stream, first))
        stream = Stream(self.writer.connection.last_insert_rowid(), first)
        if stream.id >= INDEX_FROM_ROW:
            self._tables.ensure("streams_by_name", self._execute)
        self.streams[append.stream] = stream
        return stream

    def _stream(self, name: str) -> Stream | None:
        stream = self._cache.streams.get(name) or self.streams.get(name)
        if stream is None:
            stream = find_stream(self._execute, name)
            if stream is not None:
                self.streams[name] = stream
        return stream

    def _head_of(self, name: str) -> Head | None:
        head = self.heads.get(name) or self._cache.heads.get(name)
        if head is None:
            stream = self._stream(name)
            if stream is not None:
                head = find_head(self._execute, name, stream, self._where)
                self.heads[name] = head
        return head

    def _key_of(self, name: str, key: str) -> int | None:
        stream = self._stream(name)
        if stream is None or not self._tables.exist("keys", self._execute):
            return None
        return self._execute(_KEY, (stream.id, key)).get

    def _revision(self, name: str) -> int:
        head = self._head_of(name)
        return 0 if head is None else head.revision
