"""The backend itself: each list of commits is one transaction; reads use another connection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import apsw

from holdfast.backends.forking import forking
from holdfast.backends.gates import shut_gate
from holdfast.backends.liveness import Workers
from holdfast.backends.protocol import (
    GONE,
    START,
    Commit,
    Durability,
    Found,
    Head,
    Inspection,
    Leases,
    Leftover,
    LinkedRow,
    Mark,
    Marks,
    MarksAtMoment,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.backends.sqlite.batch import (
    CHECKPOINTS_EVERY,
    HeadCache,
    LacksMeta,
    SqliteBatch,
    Stream,
    catch_up,
    find_head,
    find_stream,
)
from holdfast.backends.sqlite.connection import (
    INDEX_FROM_ROW,
    NEWEST,
    Execute,
    Row,
    SqliteCheckout,
    SqliteConnection,
    SqliteWriter,
    Translated,
    Wal,
    close_as_it_is,
    overwrite_deleted,
    rewrite_wal,
    vacuum,
)
from holdfast.backends.sqlite.database_files import holders, lacks_frames
from holdfast.backends.sqlite.inspection import SqliteInspection
from holdfast.backends.sqlite.leases import SqliteLeases, SqliteMarks
from holdfast.backends.sqlite.opening import (
    connect,
    prepare_file,
    resolved_path,
    upgrade,
    use_wal,
)
from holdfast.backends.sqlite.rows import (
    ORDINAL,
    ORDINAL_MAX,
    POSITION,
    READ,
    READ_ALL,
    READ_BACK,
    READ_LINKED,
    READ_LINKED_META,
    READ_STORE,
    REVISION,
    STREAM,
    corrupt_event,
    crc_of,
    decode,
    object_crc,
    prefix_end,
    record_crc,
)
from holdfast.backends.sqlite.witness import Witness, find_loss, remedy
from holdfast.clock import Clock
from holdfast.errors import CorruptError, LostCommitsError, UnavailableError

# --- objects --------------------------------------------------------------------------------------
#
# Named bytes beside the log: snapshots and blobs, one row each.


_FIND = "SELECT id FROM objects WHERE kind = ? AND name = ?"
_ADD = "INSERT INTO objects (kind, name, crc, data) VALUES (?,?,?,?)"
_REPLACE = "UPDATE objects SET crc = ?, data = ? WHERE id = ?"
_GET = "SELECT crc, data FROM objects WHERE kind = ? AND name = ?"
_NAMES = "SELECT name FROM objects WHERE kind = ? AND name >= ? AND name < ? ORDER BY name"
_DELETE_OBJECT = "DELETE FROM objects WHERE kind = ? AND name = ?"


class SqliteObjects:
    """Blobs and snapshots as rows.

    The checksum covers kind and name too, so bytes that turn up under another name fail it.
    """

    def __init__(self, checkout: SqliteCheckout) -> None:
        self._checkout = checkout

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        checkout = self._checkout
        writer = checkout.writer

        def work() -> None:
            checkout.tables.ensure("objects", writer.execute)
            crc = object_crc(kind, name, data)
            number: int | None = writer.execute(_FIND, (kind, name)).get
            if number is not None:
                writer.execute(_REPLACE, (crc, data, number))
                return
            writer.execute(_ADD, (kind, name, crc, data))
            if writer.connection.last_insert_rowid() >= INDEX_FROM_ROW:
                checkout.tables.ensure("objects_by_name", writer.execute)

        with checkout.errors:
            writer.transact(work)

    def get(self, kind: str, name: str) -> bytes | None:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            if not checkout.tables.exist("objects", checkout.reader.execute):
                return None
            rows = checkout.reader.execute(_GET, (kind, name)).fetchall()
        if not rows:
            return None
        crc, data = rows[0]
        if not isinstance(data, bytes) or crc != object_crc(kind, name, data):
            raise CorruptError(
                f'{kind} "{name}" fails its checksum ({checkout.path})', where=checkout.path
            )
        return data

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            if not checkout.tables.exist("objects", checkout.reader.execute):
                return []
            rows = checkout.reader.execute(_NAMES, (kind, prefix, prefix_end(prefix))).fetchall()
            return [name for (name,) in rows]

    def delete(self, kind: str, name: str) -> None:
        checkout = self._checkout
        writer = checkout.writer

        def work() -> None:
            if checkout.tables.exist("objects", writer.execute):
                writer.execute(_DELETE_OBJECT, (kind, name))

        with checkout.errors:
            overwrite_deleted(writer)
            writer.transact(work)


# --- the backend ----------------------------------------------------------------------------------

_STREAMS = (
    "SELECT name FROM streams WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
)
_STREAM_NAME = "SELECT name FROM streams WHERE id = ?"
_BY_KEY = """SELECT e.revision, e.key, e.time FROM keys JOIN events e USING (stream, revision)
 WHERE keys.stream = ? AND keys.key = ?"""
_BY_CHECKPOINT = """SELECT e.revision, e.checkpoint, e.time
 FROM checkpoints c JOIN events e ON e.ordinal = c.ordinal
 WHERE c.stream = ? AND (?2 IS NULL OR c.name = ?2) ORDER BY c.ordinal DESC LIMIT ?"""
_BY_CHECKPOINT_NEW = """SELECT revision, checkpoint, time FROM events
 WHERE ordinal > ? AND stream = ? AND checkpoint IS NOT NULL ORDER BY ordinal DESC"""

_REWRITE = "UPDATE events SET payload = ?, crc = ? WHERE ordinal = ?"
_REWRITTEN_AT_ONCE = 500
_READ_SOME = """SELECT * FROM events WHERE ordinal IN (SELECT value FROM json_each(?))
 ORDER BY ordinal"""
_ORDINALS = "SELECT revision, ordinal FROM events WHERE stream = ? AND revision BETWEEN ? AND ?"

_REST = 64
"""How many events one query reads on the way back to the beginning of a commit."""
_POLL_FIRST_S, _POLL_LAST_S = 0.001, 0.025


def _in_order(
    writer: SqliteWriter, revisions: Mapping[str, Iterable[int]]
) -> list[tuple[int, str]]:
    """Returns the ordinals of records in ascending order, each with the name of its stream.

    The events of different streams share pages. In any other order, the same pages would be changed
    by many transactions, and written to the WAL each time.
    """
    found: list[tuple[int, str]] = []
    for name, some in revisions.items():
        named = set(some)
        stream = find_stream(writer.execute, name)
        assert stream is not None, f"BUG: there is no stream {name!r} to rewrite"
        rows = writer.execute(_ORDINALS, (stream.id, min(named, default=1), max(named, default=0)))
        found += [(row[1], name) for row in rows.fetchall() if row[0] in named]
    return sorted(found)


class SqliteBackend:
    """A store in one SQLite file, for many threads and processes of one host."""

    record_keys = True
    keeps_meta = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock,
        durability: Durability = "full",
        create: bool = True,
        read_only: bool = False,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        self.durability: Durability = durability
        self._checkout = checkout = _open(
            resolved_path(path),
            clock,
            durability=durability,
            create=create and not read_only,
            read_only=read_only,
            reach=reach,
        )
        self._witness = None if read_only else _begin_witness(checkout, durability)
        self._cache = HeadCache()
        self._seen = -1
        watch = None if read_only else checkout.files.watch
        self._workers = workers = Workers(checkout.path + ".workers", watch=watch)
        self._leases = SqliteLeases(checkout, workers)
        self._marks = SqliteMarks(checkout, workers)
        self.leases: Leases = self._leases
        self.marks: Marks = self._marks
        self.objects: Objects = SqliteObjects(checkout)
        self.inspect: Inspection = SqliteInspection(checkout, durability)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        writer = self._checkout.writer
        if not commits:
            return []
        with self._checkout.errors:
            try:
                batch = writer.transact(lambda: self._write(writer, commits), self._publish)
            except LacksMeta:
                upgrade(writer)
                batch = writer.transact(lambda: self._write(writer, commits), self._publish)
        self._checkout.wake()
        return batch.outcomes

    def _write(self, writer: SqliteWriter, commits: Sequence[Commit]) -> SqliteBatch:
        # Inside a transaction this counter of the pager is up to date: it has moved if another
        # connection has committed since ours last did. Outside one it does not see other processes.
        if writer.connection.data_version() != self._seen:
            catch_up(writer.execute, self._cache)
        checkout = self._checkout
        batch = SqliteBatch(
            writer,
            self._cache,
            checkout.tables,
            self._leases,
            self._marks,
            checkout.path,
            checkout.clock.now_us,
        )
        for commit in commits:
            batch.take(commit)
        batch.finish()
        return batch

    def _publish(self, batch: SqliteBatch) -> None:
        # Noted after COMMIT, so that after a kill the database has what the witness names, and
        # before the acknowledgement, so that the loss of an acknowledged commit can be noticed.
        if batch.link is not None and self._witness is not None:
            self._witness.note(batch.position, batch.link)
        self._cache.publish(batch.position, batch.heads, batch.streams)
        self._seen = batch.writer.connection.data_version()

    # --- letting go ---

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        self.shorten({name: dict.fromkeys(some, GONE) for name, some in revisions.items()})

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        writer = self._checkout.writer
        with self._checkout.errors:
            overwrite_deleted(writer)
            wanted = writer.transact(partial(_in_order, writer, payloads))
            # Not in one transaction, so that others can write in between. Each transaction puts a
            # page that it changes into the WAL once.
            for start in range(0, len(wanted), _REWRITTEN_AT_ONCE):
                some = wanted[start : start + _REWRITTEN_AT_ONCE]
                writer.transact(partial(self._rewrite, writer, some, payloads))

    def _rewrite(
        self,
        writer: SqliteWriter,
        wanted: list[tuple[int, str]],
        payloads: Mapping[str, Mapping[int, bytes]],
    ) -> None:
        ordinals = f"[{','.join(str(ordinal) for ordinal, _ in wanted)}]"
        rows = writer.execute(_READ_SOME, (ordinals,)).fetchall()
        for row, (ordinal, name) in zip(rows, wanted, strict=True):
            record = decode(row, name, self._checkout.path)
            if record.payload == GONE:
                continue
            payload = payloads[name][record.revision]
            crc = record_crc(record, ordinal, record.position, payload)
            writer.execute(_REWRITE, (payload, crc, ordinal))

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        """Empties the WAL, which still has the old pages, and with `whole` writes every page anew.

        SQLite writes zeros over a row that it replaces. But as tables grow it moves rows from one
        page to another, and copies stay in the old page until the database is vacuumed.
        """
        checkout = self._checkout
        writer = checkout.writer
        with checkout.errors, writer.lock:
            checkout.check_open()
            if whole:
                vacuum(writer)
            is_empty = writer.empty_wal()
        left: list[Leftover] = []
        if not is_empty:
            left.append(
                Leftover(f"{checkout.path}-wal", "end who reads the store, then do it again")
            )
        if not whole:
            remedy = (
                "pages may hold copies of rows that were moved: retain with whole=True (--whole)"
            )
            left.append(Leftover(checkout.path, remedy))
        return left

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        checkout, cache = self._checkout, self._cache
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            newest: int = execute(NEWEST).get or 0
            if newest <= cache.position:
                heads = [cache.heads.get(stream) for stream in streams]
                if None not in heads:
                    return heads
            return self._find_heads(streams)

    def _find_heads(self, streams: Sequence[str]) -> list[Head | None]:
        # Read in one snapshot: heads can be cached only as of one position.
        found: dict[str, Head] = {}
        known: dict[str, Stream] = {}

        def look(execute: Execute) -> tuple[int, list[Head | None]]:
            position = catch_up(execute, self._cache)
            answers: list[Head | None] = []
            for name in streams:
                # Not from the cache: another thread may have added the stream after this snapshot.
                stream = find_stream(execute, name)
                head = self._cache.heads.get(name) if position == self._cache.position else None
                if head is None and stream is not None:
                    head = find_head(execute, name, stream, self._checkout.path)
                    found[name], known[name] = head, stream
                answers.append(head)
            return position, answers

        position, answers = self._checkout.reader.snapshot(look)
        self._cache.offer(position, found, known)
        return answers

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        checkout = self._checkout
        checkout.check_open()
        last = ORDINAL_MAX if until is None else until
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            known = self._cache.streams.get(stream) or self._learn_stream(stream)
            if known is None:
                return []
            head = self._cache.heads.get(stream)
            asked = known.id, after, last, -1 if limit is None else limit
            expected = max(after + 1, known.first)
            try:
                rows = execute(READ, asked).fetchall()
            except UnicodeDecodeError as exc:
                revision = _first_unreadable(execute, asked, expected)
                raise corrupt_event(stream, revision, checkout.path) from exc
        where = checkout.path
        records = [decode(row, stream, where) for row in rows]
        for record in records:
            if record.revision != expected:
                raise self._gap(stream, expected)
            expected += 1
        if (
            head is not None
            and expected <= min(head.revision, last)
            and (limit is None or len(records) < limit)
        ):
            raise self._gap(stream, expected)
        return records

    def read_linked(
        self, stream: str, *, after: int, until: int | None, limit: int | None
    ) -> list[LinkedRow]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            known = self._cache.streams.get(stream) or self._learn_stream(stream)
            if known is None:
                return []
            last = ORDINAL_MAX if until is None else until
            asked = known.id, after, last, -1 if limit is None else limit

            def look(execute: Execute) -> list[Row]:
                has_meta = checkout.tables.has_meta(execute)
                return execute(READ_LINKED_META if has_meta else READ_LINKED, asked).fetchall()

            if checkout.tables.knows_meta:
                rows = checkout.reader.execute(READ_LINKED_META, asked).fetchall()
            else:
                # In one snapshot: another process may add the column between the look and the read.
                rows = checkout.reader.snapshot(look)
            return cast("list[LinkedRow]", rows)

    def _learn_stream(self, name: str) -> Stream | None:
        stream = find_stream(self._checkout.reader.execute, name)
        if stream is not None:
            self._cache.remember({name: stream})
        return stream

    def _gap(self, stream: str, revision: int) -> CorruptError:
        where = self._checkout.path
        return CorruptError(
            f'event {revision} of "{stream}" is missing ({where})',
            where=where,
            stream=stream,
            revision=revision,
        )

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        checkout = self._checkout
        checkout.check_open()
        names: dict[int, str] = {}
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            rows: list[Row] = execute(READ_ALL, (after, ORDINAL_MAX, limit)).fetchall()
            if rows and rows[-1][ORDINAL] <= after:
                # A damaged tree can lead back: reading on from there would never end.
                raise apsw.CorruptError(f"rows after {after} are out of order")
            if rows and after:
                # `after` may lie among the events of a commit. Its position is greater than
                # `after`, so the commit is returned whole.
                rows = self._begun_before(rows[0], execute) + rows
            if rows and rows[-1][POSITION] is not None:
                # The last commit may go on: its events lie side by side up to its position.
                ordinal, position = rows[-1][ORDINAL], rows[-1][POSITION]
                rows += execute(READ_ALL, (ordinal, position, -1)).fetchall()
            for stream_id in {row[STREAM] for row in rows}:
                names[stream_id] = self._name_of(stream_id, execute)
        return [decode(row, names[row[STREAM]], checkout.path) for row in rows]

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        checkout = self._checkout
        checkout.check_open()
        names: dict[int, str] = {}
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            last = ORDINAL_MAX if until is None else until
            rows: list[Row] = execute(READ_BACK, (last, last, max(limit, 0))).fetchall()
            rows.reverse()
            if rows:
                rows = self._begun_before(rows[0], execute) + rows
            for stream_id in {row[STREAM] for row in rows}:
                names[stream_id] = self._name_of(stream_id, execute)
        return [decode(row, names[row[STREAM]], checkout.path) for row in rows]

    def _begun_before(self, first: Row, execute: Execute) -> list[Row]:
        """Returns the events of the same commit before this one; they lie side by side."""
        ordinal = first[ORDINAL]
        position = first[POSITION] or ordinal
        found: list[Row] = []
        while True:
            before: list[Row] = execute(READ_BACK, (ordinal - 1, position, _REST)).fetchall()
            rest = [row for row in before if row[POSITION] == position]
            found += rest
            if len(rest) < _REST:
                return found[::-1]
            ordinal = rest[-1][ORDINAL]

    def _name_of(self, stream_id: int, execute: Execute) -> str:
        name = execute(_STREAM_NAME, (stream_id,)).get
        if name is None:
            where = self._checkout.path
            raise CorruptError(f"stream number {stream_id} has no name ({where})", where=where)
        return name

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors:
            rows = checkout.reader.rows(_STREAMS, (after, prefix, prefix_end(prefix), limit))
        return [name for (name,) in rows]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            known = self._cache.streams.get(stream) or self._learn_stream(stream)
            if known is None:
                return []
            if key is not None:
                rows = self._find_key(known, key)
            else:
                rows = self._find_checkpoints(known, checkpoint, -1 if limit is None else limit)
        return [Found(*row) for row in rows][:limit]

    def _find_key(self, stream: Stream, key: str) -> list[Row]:
        execute = self._checkout.reader.execute
        if not self._checkout.tables.exist("keys", execute):
            return []
        return execute(_BY_KEY, (stream.id, key)).fetchall()

    def _find_checkpoints(self, stream: Stream, name: str | None, limit: int) -> list[Row]:
        def look(execute: Execute) -> list[Row]:
            newest: int = execute(NEWEST).get or 0
            indexed = newest // CHECKPOINTS_EVERY * CHECKPOINTS_EVERY
            rows: list[Row] = execute(_BY_CHECKPOINT_NEW, (indexed, stream.id)).fetchall()
            rows = [row for row in rows if name is None or row[1] == name]
            if indexed:
                rows += execute(_BY_CHECKPOINT, (stream.id, name, limit)).fetchall()
            return rows

        return self._checkout.reader.snapshot(look)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        checkout = self._checkout
        checkout.check_open()
        delay_s, left_s = _POLL_FIRST_S, timeout_s
        gate = shut_gate()
        with checkout.errors:
            try:
                checkout.changed.add(gate)
                while True:
                    # Commits of this process open the gate; those of others are found by polling.
                    newest = checkout.reader.newest()
                    if newest > after or left_s <= 0:
                        return Position(newest)
                    gate.acquire(timeout=min(delay_s, left_s))
                    checkout.check_open()
                    left_s -= delay_s
                    delay_s = min(delay_s * 2, _POLL_LAST_S)
            finally:
                checkout.changed.remove(gate)

    def moment(self) -> Moment:
        return Moment(self.wait(START, timeout_s=0))

    def marks_at_moment(self) -> MarksAtMoment:
        def look(execute: Execute) -> tuple[int, list[Mark]]:
            return execute(NEWEST).get or 0, self._marks.all(execute)

        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            position, marks = checkout.reader.snapshot(look)
        newest = Position(position)
        return MarksAtMoment(Moment(newest), newest, marks)

    def now_us(self, stream: str) -> int:
        self._checkout.check_open()
        return self._checkout.clock.now_us()

    def close(self) -> None:
        self._checkout.mark_closed()
        if self._checkout.is_inherited:
            return
        try:
            self._checkout.close()
        finally:
            self._workers.close()
            if self._witness is not None:
                self._witness.close()


def _first_unreadable(execute: Execute, asked: Row, revision: int) -> int:
    """Returns the revision at which `fetchall` failed, because text in the row is not UTF-8."""
    read: list[int] = []
    with contextlib.suppress(UnicodeDecodeError):
        read.extend(row[REVISION] for row in execute(READ, asked))
    return read[-1] + 1 if read else revision


def _open(
    path: str,
    clock: Clock,
    *,
    durability: Durability,
    create: bool,
    read_only: bool,
    reach: Callable[[str], None] | None,
) -> SqliteCheckout:
    with forking.opening():
        return _open_connections(
            path, clock, durability=durability, create=create, read_only=read_only, reach=reach
        )


def _open_connections(
    path: str,
    clock: Clock,
    *,
    durability: Durability,
    create: bool,
    read_only: bool,
    reach: Callable[[str], None] | None,
) -> SqliteCheckout:
    prepare_file(path, clock, create=create)
    opened: list[SqliteConnection] = []
    try:
        writing = None
        if not read_only:
            # Before and after: see `rewrite_wal` for when it can be left out.
            had_it_open = holders(path)
            writing = connect(path, durability=durability, read_only=False)
            opened.append(writing)
            use_wal(writing, path)
            if durability == "full" and not (had_it_open & holders(path)):
                _rewrite_wal(writing, path)
        reading = connect(path, durability=durability, read_only=read_only)
        opened.append(reading)
        wal = Wal(path) if durability == "full" else None
        with Translated(path):
            return SqliteCheckout(
                path, clock, reading=reading, writing=writing, wal=wal, reach=reach
            )
    except BaseException as exc:
        is_cut = _is_short_read(exc) or (bool(opened) and lacks_frames(opened[0], path))
        for connection in opened:
            close_as_it_is(connection)
        if is_cut:
            raise UnavailableError(
                f'"{path}-wal" was removed or cut while other processes use the store',
                hint="end them, each saves what it can still read, then open the store again",
            ) from exc
        if isinstance(exc, OSError):
            raise UnavailableError(
                f'"{path}" cannot be examined: {exc.strerror}',
                hint="check the disk, then try again",
            ) from exc
        raise


def _is_short_read(exc: BaseException) -> bool:
    """Returns whether SQLite missed a page in the WAL; for the database it gives another code."""
    code: object = getattr(exc.__cause__, "extendedresult", None)
    return code == apsw.SQLITE_IOERR_SHORT_READ


def _rewrite_wal(connection: SqliteConnection, path: str) -> None:
    try:
        with Translated(path):
            rewrite_wal(connection, path)
    except OSError as exc:
        raise UnavailableError(
            f'"{path}-wal" cannot be written: {exc.strerror}',
            hint="check the disk, then try again",
        ) from exc


def _begin_witness(checkout: SqliteCheckout, durability: Durability) -> Witness | None:
    """Returns the witness; raises LostCommitsError if it names commits that the database lacks.

    It is compared before the first write, because that would take the place of what was lost. A
    handle that only reads reports a loss through `describe` and `verify`. Damage is reported when
    what is damaged is read. If it hides which store this is, there is no witness: it returns None.
    """
    try:
        with checkout.errors:
            loss = find_loss(checkout.path, checkout.reader.execute)
            stores = checkout.reader.rows(READ_STORE)
        if loss is not None:
            raise LostCommitsError(
                f'"{checkout.path}" is not what it was: {loss}',
                where=checkout.path,
                hint=remedy(checkout.path),
            )
    except BaseException as exc:
        if isinstance(exc, CorruptError) and not isinstance(exc, LostCommitsError):
            return None
        checkout.abandon()
        raise
    is_whole = bool(stores) and stores[0][-1] == crc_of(*stores[0][:-1])
    return Witness(checkout.path, str(stores[0][3]), durability) if is_whole else None
