"""The backend itself: a list of commits is one call of a function on the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import psycopg
from msgspec.structs import replace

from holdfast.backends.connection_pool import AckedEvent, AckTracker, PositionPoller, write_parts
from holdfast.backends.deadline import monotonic
from holdfast.backends.derived_tables import SideTables
from holdfast.backends.postgresql.batch import (
    COMMIT,
    PostgresqlBatch,
    batches,
    decode_answer,
)
from holdfast.backends.postgresql.connection import (
    PostgresqlCheckout,
    PostgresqlConnection,
    PostgresqlURL,
    Row,
    in_schema,
    parse_url,
)
from holdfast.backends.postgresql.derived_tables import PostgresqlSide
from holdfast.backends.postgresql.inspection import PostgresqlInspection
from holdfast.backends.postgresql.opening import SchemaFormat, open_pool
from holdfast.backends.postgresql.rows import (
    BY_CHECKPOINT,
    BY_KEY,
    BY_LINK,
    FIRST,
    HEADS,
    NEWEST,
    READ,
    READ_ALL,
    READ_BACK,
    READ_MANY,
    REVISION_MAX,
    STREAMS,
    decode,
    decode_head,
    lock_of,
    object_crc,
    prefix_end,
    record_crc,
)
from holdfast.backends.protocol import (
    GONE,
    START,
    Claim,
    Commit,
    Durability,
    Found,
    Head,
    Held,
    Inspection,
    Lease,
    Leases,
    Leftover,
    Mark,
    MarkQuery,
    Marks,
    MarksAtMoment,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock
from holdfast.errors import CorruptError, UnavailableError

_log = logging.getLogger("holdfast.backends")

# --- moments --------------------------------------------------------------------------------------
#
# A moment is what a transaction of the server would see: its snapshot, without keeping a
# transaction open.
#
# A position is made from its transaction's id. A transaction is given its id when it first writes,
# and transactions end in another order than that. So a position alone does not say what is visible:
# below the newest visible one, others may still be under way, for as long as anybody on the server
# leaves a transaction open. A snapshot does say it, of every transaction: those below `xmin` have
# ended, those from `xmax` on had not begun, and of those between, the ones under way are listed.
# Along one stream the ids grow with the revisions, and each writer waits for the end of the one
# before. So a snapshot holds the beginning of each stream, and a commit over several streams either
# whole or not at all.


# One statement has one snapshot, so the position is the newest that is final in this snapshot.
MOMENT = """SELECT holdfast.newest(application), base, pg_current_snapshot()::text
 FROM holdfast.stores WHERE application = %(application)s"""

_COMMITS = 4096  # positions of one transaction


class ServerMoment(Moment, frozen=True, gc=False):
    """A snapshot of the server, with its transaction ids counted from the base as in positions."""

    xmin: int
    xmax: int
    under_way: frozenset[int]

    def has(self, position: Position) -> bool:
        number = position // _COMMITS
        return number < self.xmin or (number < self.xmax and number not in self.under_way)

    def is_settled(self, later: Moment) -> bool:
        """Returns whether all that was under way at this moment had ended at the later one.

        Until then its commits may still appear at positions below one that is visible at this
        moment.
        """
        assert isinstance(later, ServerMoment), "BUG: a moment of another store"
        return all(id < later.xmin for id in self.under_way)


def moment_of(newest: int, base: int, snapshot: str) -> ServerMoment:
    """Returns the moment of a snapshot, which the server writes as `xmin:xmax:id,id,…`."""
    xmin, xmax, under_way = snapshot.split(":")
    ids = frozenset(base + int(id) for id in under_way.split(",") if id)
    if not ids:
        # Either nothing is under way, and `xmin` and `xmax` are the same. Or this is a standby,
        # whose snapshot's text does not list what is under way: then the moment must end before the
        # oldest transaction that may be, which is `xmin`.
        xmax = xmin
    return ServerMoment(Position(newest), base + int(xmin), base + int(xmax), ids)


# --- acknowledged commits -------------------------------------------------------------------------
#
# When another PostgreSQL server than before may be answering, a handle checks that what was
# acknowledged to it is still there.
#
# A standby that replicates asynchronously lacks the newest commits when it is promoted, and so does
# an older copy of the data that somebody put in place. Three things raise a doubt:
#
# - A new connection leads to another server process than the one before. A promoted standby is one,
#   and so is a server that was started on restored files. A process is known by its start time and
#   its system identifier.
# - A receipt's position is more than 2^30 transactions ahead: the store's `base` has moved, as it
#   does after a promotion. Through a pooler, which hides the server process, a promotion shows only
#   by this.
# - A commit is refused because of a head that is older than what was acknowledged to this handle.
#
# The next call of any kind begins with the check. If something is gone it raises LostCommitsError,
# and so does every call after it. The commit that raised the doubt still returns its receipt: it is
# durable.
#
# With a durability below `full`, a crash of the server may take the newest commits although the
# same server process answers afterwards. There every new connection is a doubt.


_SERVER = """SELECT pg_postmaster_start_time()::text,
 (SELECT system_identifier FROM pg_control_system())"""
_IS_THERE = """SELECT EXISTS (SELECT 1 FROM holdfast.events
  WHERE application = %(application)s AND position = %(position)s)
 OR EXISTS (SELECT 1 FROM holdfast.silent
  WHERE application = %(application)s AND position = %(position)s)"""
_GONE = """SELECT asked.stream, asked.revision
 FROM unnest(%(streams)s::text[], %(revisions)s::bigint[], %(links)s::bytea[])
  AS asked (stream, revision, link)
 LEFT JOIN holdfast.events e ON e.application = %(application)s
  AND e.stream = asked.stream AND e.revision = asked.revision
 WHERE e.link IS NULL OR e.link <> asked.link LIMIT 1"""
_PAGE = 1000
_FAR = (1 << 30) * 4096


class PostgresqlAckTracker(AckTracker):
    """The acknowledged commits of a handle, and whether they are in doubt.

    Doubts are counted, not flagged: one that is raised while another thread checks must not be
    settled by that check, which may have looked before the cause.
    """

    def __init__(self, server_url: PostgresqlURL, *, is_full: bool) -> None:
        super().__init__(server_url.shown)
        self._server_url = server_url
        self._is_full = is_full
        self._server: Row | None = None
        self._doubts = 0
        self._settled = 0

    def note_server(self, connection: PostgresqlConnection) -> None:
        """Asks which server process a new connection leads to; counts a doubt where it must."""
        [server] = connection.ask(_SERVER)
        if self._server is not None and (server != self._server or not self._is_full):
            self._doubt()
        self._server = connection.process = server

    def compare(
        self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal], server: Row | None
    ) -> None:
        """Remembers what a server acknowledged; counts a doubt if it does not fit what was known.

        `server` is the process that answered.
        """
        position = self._position
        for outcome in outcomes:
            if isinstance(outcome, Receipt):
                if position and outcome.position > position + _FAR:
                    self._doubt()
            elif (
                outcome.reason == "conflict"
                and (acked := self._acked.get(outcome.stream))
                and (outcome.head is None or outcome.head.revision < acked[0])
            ):
                self._doubt()
        self.note(commits, outcomes)
        # Another thread may have connected to a new process meanwhile. It checked there before this
        # commit was noted, so the commit itself has not been looked for yet.
        if server != self._server:
            self._doubt()

    def _doubt(self) -> None:
        """Counts a doubt; several threads compare at once, and none may undo another's count."""
        with self._lock:
            self._doubts += 1

    def check(self, connection: PostgresqlConnection) -> None:
        """Raises LostCommitsError if there is a doubt and something acknowledged is not there."""
        doubts = self._doubts
        if doubts == self._settled or connection.process != self._server:
            return  # a connection to the server before: what it holds settles nothing
        position, acked = self.acknowledged()
        for start in range(0, len(acked), _PAGE):
            self._check_page(connection, acked[start : start + _PAGE])
        if position and not self._ask(connection, _IS_THERE, position=position)[0][0]:
            raise self.lost(f"the commit at position {position}")
        self._settled = doubts

    def _check_page(self, connection: PostgresqlConnection, page: list[AckedEvent]) -> None:
        gone = self._ask(
            connection,
            _GONE,
            streams=[stream for stream, _ in page],
            revisions=[revision for _, (revision, _) in page],
            links=[link for _, (_, link) in page],
        )
        for stream, revision in gone:
            raise self.lost(f'event {revision} of "{stream}"', stream, revision)

    def _ask(self, connection: PostgresqlConnection, statement: str, **values: object) -> list[Row]:
        text = in_schema(statement, self._server_url.schema)
        return connection.ask(text, {"application": self._server_url.application, **values})


# --- leases ---------------------------------------------------------------------------------------
#
# Rows beside the log, judged by the server's clock alone: clocks of workers may differ.
#
# A dead owner cannot be told from a slow one over a network. So a lease passes to another owner
# only when it was released or has expired.


_ACQUIRE = "SELECT name, owner, epoch, ends_us FROM holdfast.acquire(%s, %s, %s, %s, %s)"
_EXTEND = """SELECT name, owner, epoch, ends_us FROM holdfast.extend(%(application)s,
 %(locks)s::bigint[], %(names)s::text[], %(owners)s::text[], %(epochs)s::bigint[], %(ttl)s)"""
_HOLDER = """SELECT name, owner, epoch, ends_us FROM holdfast.leases
 WHERE application = %s AND name = %s AND ends_us > holdfast.now_us()"""


# A release does not take the lease's advisory lock, so it does not wait for a commit that is under
# way under the lease. That is safe: the commit shares the lock until it ends, and the next owner
# needs the lock alone to acquire the lease.
_RELEASE_LEASE = """UPDATE holdfast.leases SET ends_us = 0
 WHERE application = %s AND name = %s AND owner = %s AND epoch = %s RETURNING name"""
# Rows of released leases are deleted later, some at a time. The greatest epoch among them is kept
# in the row with the name "": an epoch must never repeat, and a lease that has no row takes its
# next epoch from there. Rows that another transaction has locked are skipped: they may be being
# acquired at this moment.
_FORGET = """WITH gone AS (DELETE FROM holdfast.leases WHERE application = %(application)s
  AND name IN (SELECT name FROM holdfast.leases WHERE application = %(application)s
   AND ends_us = 0 AND name <> '' LIMIT %(limit)s FOR UPDATE SKIP LOCKED) RETURNING epoch)
 INSERT INTO holdfast.leases AS l SELECT %(application)s, '', '', max(epoch), 0 FROM gone
  HAVING count(*) > 0
 ON CONFLICT (application, name) DO UPDATE SET epoch = greatest(l.epoch, excluded.epoch)"""
_FORGET_OF_TENANT = "SELECT holdfast.forget_leases(%(application)s, %(limit)s)"
_FORGET_EVERY = 64
_FORGET_MAX = 1000
_LIST_LEASES = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us)
 SELECT name, owner, epoch, ends_us > us, ends_us - us FROM holdfast.leases, now
 WHERE application = %(application)s AND ends_us <> 0 AND name > %(after)s AND name >= %(prefix)s
 AND (%(end)s::text IS NULL OR name < %(end)s) ORDER BY name LIMIT %(limit)s"""


class PostgresqlLeases:
    """The leases of a store.

    Every change is idempotent for its owner, so a call whose connection broke may be repeated.
    """

    def __init__(self, checkout: PostgresqlCheckout) -> None:
        self._checkout = checkout
        self._released = 0

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        values = self._named(name), name, owner, round(ttl_s * 1_000_000)
        return _lease(self._checkout.write(_ACQUIRE, (self._checkout.application, *values)))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self.renew_many((lease,), ttl_s=ttl_s)[0]

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        # The locks are taken in the order of their numbers, as commits do: no deadlocks. They are
        # shared: a commit under one of these leases must not hold up the renewal of all. Whoever
        # acquires a lease takes its lock alone.
        values = {
            "application": self._checkout.application,
            "locks": sorted({self._named(lease.name) for lease in leases}),
            "names": [lease.name for lease in leases],
            "owners": [lease.owner for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "ttl": round(ttl_s * 1_000_000),
        }
        rows = self._checkout.write(_EXTEND, values)
        renewed = {row[:3]: Lease(*row) for row in rows}
        return [renewed.get((lease.name, lease.owner, lease.epoch)) for lease in leases]

    def release(self, lease: Lease) -> None:
        values = lease.name, lease.owner, lease.epoch
        self._checkout.write(_RELEASE_LEASE, (self._checkout.application, *values))
        # Rows of released leases are deleted once per 64 releases. With every release, each would
        # lock the one row that keeps the greatest epoch until its sync is done, and releases would
        # go one at a time. The first release does it too, because many workers release only once.
        if self._released % _FORGET_EVERY == 0:
            limited = {"application": self._checkout.application, "limit": _FORGET_MAX}
            try:
                is_tenant = bool(self._checkout.server_url.tenant)
                self._checkout.write(_FORGET_OF_TENANT if is_tenant else _FORGET, limited)
            except UnavailableError as exc:  # the lease itself is released: nothing is lost
                _log.debug("rows of released leases stay for now: %s", exc)
        self._released += 1

    def holder(self, name: str) -> Lease | None:
        return _lease(self._checkout.ask(_HOLDER, (self._checkout.application, name)))

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        values = {"application": self._checkout.application, "after": after, "limit": limit}
        values |= {"prefix": prefix, "end": prefix_end(prefix)}
        return [Held(*row) for row in self._checkout.ask(_LIST_LEASES, values)]

    def _named(self, name: str) -> int:
        return lock_of("lease", self._checkout.lock_space, name)


def _lease(rows: list[Row]) -> Lease | None:
    return Lease(*rows[0]) if rows else None


# --- marks ----------------------------------------------------------------------------------------
#
# Set and cleared by commits, claimed under a time limit by the server's clock.


# Rows that another claim or a commit has locked are skipped: they are being claimed, set or cleared
# by it, and a claim never waits, so it cannot be part of a deadlock.
_CLAIM = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us), due AS (
  SELECT application, about, key FROM holdfast.marks
  WHERE application = %(application)s AND about = %(index)s AND due <= (SELECT us FROM now)
   AND (ends_us IS NULL OR ends_us <= (SELECT us FROM now))
  ORDER BY priority DESC, due, key LIMIT %(n)s FOR UPDATE SKIP LOCKED)
 UPDATE holdfast.marks m SET owner = %(owner)s, ends_us = (SELECT us FROM now) + %(ttl)s
 FROM due WHERE m.application = due.application AND m.about = due.about AND m.key = due.key
 RETURNING m.about, m.key, m.due, m.priority, m.team"""
_RELEASE_MARK = """UPDATE holdfast.marks SET owner = NULL, ends_us = NULL
 WHERE application = %(application)s AND about = %(index)s AND key = %(key)s AND owner = %(owner)s
 """
_LIST_MARKS = """SELECT about, key, due, priority, team FROM holdfast.marks
 WHERE application = %(application)s AND about = %(index)s AND due < %(before)s
 ORDER BY priority DESC, due, key LIMIT %(limit)s"""
_LIST_ALL_MARKS = """SELECT about, key, due, priority, team FROM holdfast.marks
 WHERE application = %(application)s AND due < %(before)s
 ORDER BY priority DESC, due, key, about LIMIT %(limit)s"""
_FIND_MARKS = """SELECT about, key, due, priority, team FROM holdfast.marks
 WHERE application = %(application)s AND (%(index)s::text IS NULL OR about = %(index)s)
 AND due < %(before)s AND (%(keys)s::text[] IS NULL OR key = ANY (%(keys)s))
 AND (%(group)s::text IS NULL OR team = %(group)s)
 AND (%(top)s::bigint IS NULL OR priority < %(top)s
 OR (priority = %(top)s AND (due, key, about) > (%(due)s, %(key)s, %(about)s)))
 ORDER BY priority DESC, due, key, about LIMIT %(limit)s"""
_NEXT_MARKS = """(SELECT about, key, due, priority, team FROM holdfast.marks
  WHERE application = %(application)s AND about = %(index)s AND priority = %(top)s
  AND due < %(before)s AND (due, key, about) > (%(due)s, %(key)s, %(about)s)
  ORDER BY due, key LIMIT %(limit)s)
 UNION ALL
 (SELECT about, key, due, priority, team FROM holdfast.marks
  WHERE application = %(application)s AND about = %(index)s AND priority < %(top)s
  AND due < %(before)s ORDER BY priority DESC, due, key LIMIT %(limit)s)
 ORDER BY priority DESC, due, key LIMIT %(limit)s"""

# One statement, so moment and marks come from one snapshot. A store without marks answers with one
# row whose columns of the mark are null.
_MARKS_AT_MOMENT = """WITH seen AS MATERIALIZED (
 SELECT holdfast.newest(s.application) AS newest, base, pg_current_snapshot()::text AS snapshot,
 (SELECT coalesce(max(position), 0) FROM holdfast.events e WHERE e.application = s.application)
 AS last FROM holdfast.stores s WHERE s.application = %(application)s)
 SELECT newest, base, snapshot, last, about, key, due, priority, team FROM seen
 LEFT JOIN holdfast.marks m ON m.application = %(application)s
 ORDER BY priority DESC, due, key, about"""

_CLAIMS = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us)
 SELECT about, key, owner, ends_us - us FROM holdfast.marks, now
 WHERE application = %s AND ends_us > us ORDER BY about, key LIMIT %s"""

_DUE_MAX = (1 << 63) - 1


class PostgresqlMarks:
    """The marks of a store.

    A claim is not repeated after its connection broke: the first attempt may have claimed marks,
    and a second one would claim others as well. Marks claimed in vain become free when the claim
    expires, as after a worker's death.
    """

    def __init__(self, checkout: PostgresqlCheckout) -> None:
        self._checkout = checkout

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        values = {"index": index, "owner": owner, "n": n, "ttl": round(ttl_s * 1_000_000)}
        values["application"] = self._checkout.application
        marks = [Mark(*row) for row in self._checkout.write(_CLAIM, values, repeatable=False)]
        return sorted(marks, key=lambda mark: (-mark.priority, mark.due, mark.key))

    def release(self, index: str, key: str, owner: str) -> None:
        values = {
            "application": self._checkout.application,
            "index": index,
            "key": key,
            "owner": owner,
        }
        self._checkout.write(_RELEASE_MARK, values)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        before = _DUE_MAX if due_before is None else due_before
        values = {"application": self._checkout.application, "before": before, "limit": limit}
        statement = _LIST_ALL_MARKS if index is None else _LIST_MARKS
        return [Mark(*row) for row in self._checkout.ask(statement, {**values, "index": index})]

    def find(self, query: MarkQuery) -> Sequence[Mark]:
        last = query.after or Mark("", "")
        values = {
            "application": self._checkout.application,
            "index": query.index,
            "keys": None if query.keys is None else list(query.keys),
            "group": query.group,
            "top": None if query.after is None else last.priority,
            "due": last.due,
            "key": last.key,
            "about": last.index,
            "before": _DUE_MAX if query.due_before is None else query.due_before,
            "limit": query.limit,
        }
        # The next page of one index: two range scans of an index of the table, one for the same
        # priority and one for the lower ones. As one condition it would be a scan of all the marks.
        is_next = query.after and query.index is not None and query.keys is query.group is None
        statement = _NEXT_MARKS if is_next else _FIND_MARKS
        return [Mark(*row) for row in self._checkout.ask(statement, values)]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return [
            Claim(*row) for row in self._checkout.ask(_CLAIMS, (self._checkout.application, limit))
        ]


# --- objects --------------------------------------------------------------------------------------
#
# Named bytes beside the log: snapshots and blobs, one row each.


_PUT = """INSERT INTO holdfast.objects VALUES (%s, %s, %s, %s, %s)
 ON CONFLICT (application, kind, name) DO UPDATE SET crc = excluded.crc, data = excluded.data"""
_GET = "SELECT crc, data FROM holdfast.objects WHERE application = %s AND kind = %s AND name = %s"
_NAMES = """SELECT name FROM holdfast.objects
 WHERE application = %(application)s AND kind = %(kind)s AND name >= %(prefix)s
 AND (%(end)s::text IS NULL OR name < %(end)s) ORDER BY name"""
_DELETE = "DELETE FROM holdfast.objects WHERE application = %s AND kind = %s AND name = %s"
_DELETE_OF_TENANT = "SELECT holdfast.delete_object(%s, %s, %s)"


class PostgresqlObjects:
    """The objects of a store.

    The checksum covers kind and name too, so bytes that turn up under another name fail it.
    """

    def __init__(self, checkout: PostgresqlCheckout) -> None:
        self._checkout = checkout

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        crc = object_crc(kind, name, data)
        self._checkout.write(_PUT, (self._checkout.application, kind, name, crc, data))

    def get(self, kind: str, name: str) -> bytes | None:
        rows = self._checkout.ask(_GET, (self._checkout.application, kind, name))
        if not rows:
            return None
        crc, data = rows[0]
        if crc != object_crc(kind, name, data):
            where = self._checkout.server_url.shown
            raise CorruptError(f'{kind} "{name}" fails its checksum ({where})', where=where)
        return data

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        values = {"application": self._checkout.application, "kind": kind}
        rows = self._checkout.ask(_NAMES, {**values, "prefix": prefix, "end": prefix_end(prefix)})
        return [name for (name,) in rows]

    def delete(self, kind: str, name: str) -> None:
        statement = _DELETE_OF_TENANT if self._checkout.server_url.tenant else _DELETE
        self._checkout.write(statement, (self._checkout.application, kind, name))


# --- the backend ----------------------------------------------------------------------------------


_REWRITE = """UPDATE holdfast.events e SET payload = asked.payload, crc = asked.crc
 FROM unnest(%(revisions)s::bigint[], %(crcs)s::integer[], %(payloads)s::text[])
 AS asked (revision, crc, payload)
 WHERE e.application = %(application)s AND e.stream = %(stream)s AND e.revision = asked.revision"""
_REWRITTEN_AT_ONCE = 1000
_OWNS = """SELECT pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class
 WHERE oid = 'holdfast.{table}'::regclass"""
_LET_GO_IN = ("events", "objects")
"""The tables whose rows hold content: `purge` reports or removes their old versions."""
_WAIT_WHOLE_S = 3600.0
"""How long the server may take to write one table anew."""
_WAIT_LOCK_S = 2.0
"""How long it may wait for those who read the table: everybody else waits behind it."""
# Only in a session of our own: a pooler would hand the setting on to somebody else. Its clients
# have keys that it made up, or one of a session that is not the same in the next transaction.
_SESSION = "SELECT pg_catalog.pg_backend_pid()"
_LIMIT_LOCK = """SELECT pg_catalog.set_config('lock_timeout', %s, false)
 WHERE pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %s"""
_LOCKED = "55P03"


class PostgresqlBackend:
    """A store in a PostgreSQL database, for many processes on many machines."""

    record_keys = True
    keeps_meta = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: Durability = "full",
        create: bool = True,
        read_only: bool = False,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        self.durability: Durability = durability
        server_url, pool, server, store, format, tenant = open_pool(
            parse_url(url),
            clock,
            durability=durability,
            create=create and not read_only,
            read_only=read_only,
        )
        self.server_url = server_url
        self.tenant = tenant
        self.timeout_s = server_url.timeout_s
        self._clock = clock
        self._reach = reach
        self._checkout = checkout = PostgresqlCheckout(server_url, pool, read_only=read_only)
        self._schema_format = SchemaFormat(checkout, format)
        self._ack_tracker = PostgresqlAckTracker(server_url, is_full=durability == "full")
        if not read_only:
            pool.on_connect, pool.on_use = self._ack_tracker.note_server, self._ack_tracker.check
        self._application = server_url.application.encode()
        self._commit = in_schema(COMMIT.decode(), server_url.schema).encode()
        self._poller = PositionPoller(checkout, self._newest, pool.check_open)
        self.leases: Leases = PostgresqlLeases(checkout)
        self.marks: Marks = PostgresqlMarks(checkout)
        self.objects: Objects = PostgresqlObjects(checkout)
        self.inspect: Inspection = PostgresqlInspection(
            checkout, self._schema_format, server, store, durability
        )

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        self._checkout.pool.check_open()
        outcomes = write_parts(
            batches(self._checkout.lock_space, commits, self._clock), self._write
        )
        if outcomes:
            self._checkout.wake()
        return outcomes

    def _write(self, batch: PostgresqlBatch) -> list[Receipt | Refusal]:
        """Sends a batch until the server has answered, or the deadline has passed.

        After a connection broke, nobody knows whether the batch was written. Sending the same batch
        again is safe and settles it. Each append names the revision that it follows and the link of
        that event, so of two equal batches one is refused, however late the other one arrives. A
        commit that is refused the second time may have been written by the first attempt: then the
        event with its own link is in the store, and the receipt is made from it.
        """
        attempts = 0
        server: Row | None = None

        def work(connection: PostgresqlConnection) -> list[Receipt | Refusal]:
            nonlocal attempts, server
            attempts += 1
            server = connection.process
            if self._reach is not None:
                self._reach("postgresql.commit")
            values = (*self._entrance(batch), *batch.rows)
            answer = connection.answer(self._commit, values)
            assert answer is not None, "BUG: the server's function answered nothing"
            outcomes = decode_answer(answer, batch.commits)
            return outcomes if attempts == 1 else self._settled(connection, batch, outcomes)

        outcomes = self._checkout.call(work)
        self._ack_tracker.compare(batch.commits, outcomes, server)
        if self._reach is not None:
            self._reach("postgresql.committed")
        return outcomes

    def _entrance(self, batch: PostgresqlBatch) -> tuple[bytes, ...]:
        full = b"t" if self.durability == "full" else b"f"
        return self._application, full, batch.locks, batch.shared

    def _settled(
        self,
        connection: PostgresqlConnection,
        batch: PostgresqlBatch,
        outcomes: list[Receipt | Refusal],
    ) -> list[Receipt | Refusal]:
        """Returns the outcomes of a batch that was sent again.

        A refusal becomes a receipt where an earlier attempt has written the commit. Its revisions
        of watched streams are unknown then, and asked for.
        """
        settled: list[Receipt | Refusal] = []
        for commit, outcome in zip(batch.commits, outcomes, strict=True):
            if isinstance(outcome, Refusal) and commit.appends:
                outcome = self._find_receipt(connection, commit) or outcome
            if isinstance(outcome, Receipt) and len(outcome.news) < len(commit.watch):
                heads = self._ask_heads(connection, commit.watch)
                news = [0 if head is None else head.revision for head in heads]
                outcome = replace(outcome, news=dict(zip(commit.watch, news, strict=True)))
            settled.append(outcome)
        return settled

    def _find_receipt(self, connection: PostgresqlConnection, commit: Commit) -> Receipt | None:
        """Returns the receipt of a commit whose own first event is in the store, None if not."""
        first = commit.appends[0].records[0]
        values = (self._checkout.application, first.stream, first.revision, first.link)
        rows = connection.ask(in_schema(BY_LINK, self.server_url.schema), values)
        return Receipt(Position(rows[0][0])) if rows else None

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        last = REVISION_MAX if until is None else min(until, REVISION_MAX)

        def ask(format: int) -> list[Record]:
            values = self._checkout.application, stream, after, last, limit
            return self._decode_stream(stream, after, self._checkout.ask(READ[format], values))

        return self._schema_format.read(ask)

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        self.shorten({name: dict.fromkeys(some, GONE) for name, some in revisions.items()})

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        self._checkout.pool.check_open()
        for stream, named in payloads.items():
            revisions = sorted(named)
            for start in range(0, len(revisions), _REWRITTEN_AT_ONCE):
                some = revisions[start : start + _REWRITTEN_AT_ONCE]
                self._rewrite(stream, {revision: named[revision] for revision in some})

    def _rewrite(self, stream: str, payloads: Mapping[int, bytes]) -> None:
        records = self.read(stream, after=min(payloads) - 1, until=max(payloads))
        found = [record for record in records if record.revision in payloads]
        assert len(found) == len(payloads), f"BUG: {stream!r} lacks some of {sorted(payloads)}"
        after = [
            replace(record, payload=payloads[record.revision])
            for record in found
            if record.payload != GONE
        ]
        values = {"application": self._checkout.application, "stream": stream}
        values |= {"revisions": [record.revision for record in after]}
        values |= {"crcs": [record_crc(record) for record in after]}
        values |= {"payloads": [record.payload.decode() for record in after]}
        self._checkout.write(_REWRITE, values)

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        """Returns where the server still keeps old versions of rows; with `whole`, rewrites tables.

        An update leaves the old version of a row in the table's file, and a plain VACUUM only marks
        its space as free. VACUUM FULL writes the table anew, and locks it meanwhile.
        """
        self._checkout.pool.check_open()
        left: list[Leftover] = []
        for table in _LET_GO_IN:
            statement = in_schema(f"VACUUM FULL holdfast.{table}", self.server_url.schema)
            remedy = f"run {statement}, or retain with whole=True (--whole): it locks the table"
            if whole and self._owns(table):
                why_not = self._vacuum(statement)
                if why_not is None:
                    continue
                remedy = f"{remedy}; {why_not}"
            left.append(Leftover(f"old versions of rows in {table}", remedy))
        remedy = "they go when the server has recycled them, and its archive and replicas theirs"
        left.append(Leftover("the server's write-ahead log", remedy, is_outside=True))
        return left

    def _vacuum(self, statement: str) -> str | None:
        """Writes a table anew on a connection of its own; returns what to do if it could not.

        It may take as long as it needs: the time of a call is meant for answers that are known at
        once, and a large table takes minutes. But it does not wait long for others to end what they
        read. While it waits for its lock, every later use of the table waits behind it.
        """
        self._checkout.check_writes()
        with self._checkout.pool.apart() as connection:
            mine, limit = connection.info.backend_pid, f"{round(_WAIT_LOCK_S * 1000)}ms"
            is_ours = connection.ask(_SESSION) == [(mine,)]
            if not is_ours or not connection.ask(_LIMIT_LOCK, (limit, mine)):
                return "try again without a pooler between"
            connection.deadline = monotonic() + _WAIT_WHOLE_S
            connection.cancels = True  # or the server would go on, and keep the table locked
            try:
                connection.ask(statement)
            except psycopg.Error as error:
                if error.sqlstate != _LOCKED:
                    raise
                return "try again when no other session reads it"
        return None

    def _owns(self, table: str) -> bool:
        """Returns whether this role may run VACUUM FULL on a table.

        Asked first, because the server gives a role that may not only a warning, not an error.
        """
        [(owns,)] = self._checkout.ask(_OWNS.format(table=table), {})
        return owns

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        self._checkout.pool.check_open()
        if not streams:
            return []
        values = {"application": self._checkout.application, "streams": list(streams)}
        values |= {"until": REVISION_MAX, "limit": limit}

        def ask(format: int) -> list[list[Record]]:
            rows: dict[int, list[Row]] = {}
            for row in self._checkout.ask(READ_MANY[format], values):
                rows.setdefault(row[0], []).append(row[1:])
            return [
                self._decode_stream(stream, 0, rows.get(number, []))
                for number, stream in enumerate(streams, 1)
            ]

        return self._schema_format.read(ask)

    def _decode_stream(self, stream: str, after: int, rows: list[Row]) -> list[Record]:
        """Returns the records of one stream; raises CorruptError if one of them is missing."""
        where = self.server_url.shown
        records = [decode(row, where) for row in rows]
        expected = max(after + 1, rows[0][FIRST] or 1) if rows else 0
        for record in records:
            if record.revision != expected:
                raise CorruptError(
                    f'event {expected} of "{stream}" is missing ({where})',
                    where=where,
                    stream=stream,
                    revision=expected,
                )
            expected += 1
        return records

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        self._checkout.pool.check_open()
        if limit <= 0:
            return []
        values = {"application": self._checkout.application, "after": after, "limit": limit}
        where = self.server_url.shown
        return self._schema_format.read(
            lambda format: [
                decode(row, where) for row in self._checkout.ask(READ_ALL[format], values)
            ]
        )

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        self._checkout.pool.check_open()
        if limit <= 0:
            return []
        last = REVISION_MAX if until is None else until
        values = {"application": self._checkout.application, "until": last, "limit": limit}
        ask, where = self._checkout.ask, self.server_url.shown
        return self._schema_format.read(
            lambda format: [decode(row, where) for row in ask(READ_BACK[format], values)]
        )

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self._checkout.pool.check_open()
        if not streams:
            return []
        return self._checkout.pool.call(lambda connection: self._ask_heads(connection, streams))

    def _ask_heads(
        self, connection: PostgresqlConnection, streams: Sequence[str]
    ) -> list[Head | None]:
        values = {"application": self._checkout.application, "streams": list(streams)}
        heads: list[Head | None] = [None] * len(streams)
        for row in connection.ask(in_schema(HEADS, self.server_url.schema), values):
            number: int = row[0] - 1
            heads[number] = decode_head(row, streams[number], self.server_url.shown)
        return heads

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        values = {"application": self._checkout.application, "prefix": prefix, "after": after}
        rows = self._checkout.ask(STREAMS, {**values, "end": prefix_end(prefix), "limit": limit})
        return [name for (name,) in rows]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        values = {"application": self._checkout.application, "stream": stream, "limit": limit}
        if key is not None:
            rows = self._checkout.ask(BY_KEY, {**values, "key": key})[:limit]
        else:
            rows = self._checkout.ask(BY_CHECKPOINT, {**values, "checkpoint": checkpoint})
        return [Found(*row) for row in rows]

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._poller.wait(after, timeout_s)

    def _newest(self) -> int:
        """Returns the newest final position: no open transaction can add a position below it.

        The price: any open writing transaction on the same server, also of another program or
        database, holds up followers until it ends. Readers of streams do not wait for it. `status`
        shows how far followers are behind.
        """
        [(newest,)] = self._checkout.ask(NEWEST, {"application": self._checkout.application})
        return newest

    def moment(self) -> Moment:
        [row] = self._checkout.ask(MOMENT, {"application": self._checkout.application})
        return moment_of(*row)

    def marks_at_moment(self) -> MarksAtMoment:
        rows = self._checkout.ask(_MARKS_AT_MOMENT, {"application": self._checkout.application})
        newest, base, snapshot, last = rows[0][:4]
        marks = [Mark(*row[4:]) for row in rows if row[4] is not None]
        return MarksAtMoment(moment_of(newest, base, snapshot), Position(last), marks)

    def side_tables(self, what: str) -> SideTables | None:
        """Returns the place for tables that are derived from the log; `what` is part of its name.

        None for a tenant: it may create nothing on the server, and the server shows every role how
        many rows a table has.
        """
        return PostgresqlSide(self._checkout, what) if self.tenant is None else None

    def now_us(self, stream: str) -> int:
        [(now_us,)] = self._checkout.ask("SELECT holdfast.now_us()", {})
        return now_us

    def close(self) -> None:
        self._checkout.close()
