"""Leases and marks: rows beside the log.

Whether a lease holds is decided by the clock of this boot and by whether its owner is alive. A
released lease is deleted. The row with an empty name keeps the greatest epoch of all deleted ones,
so that no epoch is given out twice, even if the wall clock is set back. Marks are set and cleared
by commits, and claimed under a time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.liveness import Workers
from holdfast.backends.protocol import (
    Claim,
    Cleared,
    Fence,
    Held,
    Lease,
    Mark,
    MarkQuery,
)
from holdfast.backends.sqlite.connection import (
    HAS_TABLE,
    Execute,
    Row,
    SqliteCheckout,
)
from holdfast.backends.sqlite.rows import (
    crc_of,
)
from holdfast.errors import CorruptError

_READ = "SELECT name, owner, epoch, boot, ends_us, crc FROM leases WHERE name = ?"
_LIST_LEASES = """SELECT name, owner, epoch, boot, ends_us, crc FROM leases
 WHERE ends_us <> 0 AND name > ? AND substr(name, 1, length(?)) = ? ORDER BY name LIMIT ?"""
_WRITE = "INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?,?)"
_DELETE_LEASE = "DELETE FROM leases WHERE name = ?"
_FLOOR = ""
READ_LEASES = "SELECT name, owner, epoch, boot, ends_us, crc FROM leases"


class SqliteLeases:
    """Leases as rows. One of another boot has ended with that boot, whatever its time is."""

    def __init__(self, checkout: SqliteCheckout, workers: Workers) -> None:
        self._checkout = checkout
        self._workers = workers

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        checkout = self._checkout
        writer = checkout.writer

        def work() -> Lease | None:
            checkout.tables.ensure("leases", writer.execute)
            last, held = self._find(name, writer.execute)
            if held is not None and held.owner != owner and self._workers.is_alive(held.owner):
                return None
            if held is not None and held.owner == owner:
                return self._extend(held, ttl_s, writer.execute)
            # By the wall clock epochs grow even if the row of the lease before was lost.
            least = self._floor(writer.execute) if last is None else last.epoch
            epoch = max(least + 1, checkout.clock.now_us() // 1000)
            return self._extend(Lease(name, owner, epoch, 0), ttl_s, writer.execute)

        with checkout.errors:
            self._workers.hold(owner)
            return writer.transact(work)

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self.renew_many((lease,), ttl_s=ttl_s)[0]

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        writer = self._checkout.writer

        def renewed(lease: Lease) -> Lease | None:
            held = self._held(lease.name, writer.execute)
            if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
                return None
            return self._extend(held, ttl_s, writer.execute)

        with self._checkout.errors:
            return writer.transact(lambda: [renewed(lease) for lease in leases])

    def release(self, lease: Lease) -> None:
        writer = self._checkout.writer

        def work() -> None:
            last, _ = self._find(lease.name, writer.execute)
            if last is not None and (last.owner, last.epoch) == (lease.owner, lease.epoch):
                if last.epoch > self._floor(writer.execute):
                    self._write(Lease(_FLOOR, "", last.epoch, 0), writer.execute)
                writer.execute(_DELETE_LEASE, (last.name,))

        with self._checkout.errors:
            writer.transact(work)

    def holder(self, name: str) -> Lease | None:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            held = self._held(name, checkout.reader.execute)
        if held is not None and not self._workers.is_alive(held.owner):
            return None
        return held

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            if not checkout.tables.exist("leases", execute):
                return []
            rows = execute(_LIST_LEASES, (after, prefix, prefix, limit)).fetchall()
        boot, now_us = checkout.clock.boot_id(), checkout.clock.boot_us()
        return [self._listed(row, boot, now_us) for row in rows]

    def _listed(self, row: Row, boot: str, now_us: int) -> Held:
        name, owner, epoch, row_boot, ends_us, _ = self._checked(row)
        left_us = ends_us - now_us if row_boot == boot else -now_us
        return Held(name, owner, epoch, left_us > 0 and self._workers.is_alive(owner), left_us)

    def fence_holds(self, fence: Fence) -> bool:
        """Returns whether a fence still holds (clause 6), inside the transaction that asks."""
        held = self._held(fence.name, self._checkout.writer.execute)
        return held is not None and (held.owner, held.epoch) == (fence.owner, fence.epoch)

    def _held(self, name: str, execute: Execute) -> Lease | None:
        return self._find(name, execute)[1]

    def _floor(self, execute: Execute) -> int:
        last, _ = self._find(_FLOOR, execute)
        return 0 if last is None else last.epoch

    def _find(self, name: str, execute: Execute) -> tuple[Lease | None, Lease | None]:
        """Returns the newest lease of that name, and the same lease again if it still runs."""
        if not self._checkout.tables.exist("leases", execute):
            return None, None
        rows = execute(_READ, (name,)).fetchall()
        if not rows:
            return None, None
        _, owner, epoch, boot, ends_us, _ = self._checked(rows[0])
        lease = Lease(name, owner, epoch, ends_us)
        clock = self._checkout.clock
        if boot != clock.boot_id() or ends_us <= clock.boot_us():
            return lease, None
        return lease, lease

    def _checked(self, row: Row) -> Row:
        *values, crc = row
        if crc != crc_of(*values):
            where = self._checkout.path
            raise CorruptError(f'lease "{row[0]}" fails its checksum ({where})', where=where)
        return row

    def _extend(self, lease: Lease, ttl_s: float, execute: Execute) -> Lease:
        ends_us = self._checkout.clock.boot_us() + round(ttl_s * 1_000_000)
        # Never earlier than before: the owner may rely on the later end that it was promised.
        extended = Lease(lease.name, lease.owner, lease.epoch, max(ends_us, lease.expires_us))
        self._write(extended, execute)
        return extended

    def _write(self, lease: Lease, execute: Execute) -> None:
        row = lease.name, lease.owner, lease.epoch, self._checkout.clock.boot_id(), lease.expires_us
        execute(_WRITE, (*row, crc_of(*row)))


_SET = "INSERT OR REPLACE INTO marks VALUES (?,?,?,?,?,?)"
_CLEAR = "DELETE FROM marks WHERE about = ? AND key = ?"
_UNCLAIM = "DELETE FROM claims WHERE about = ? AND key = ?"
_UNCLAIM_OWN = "DELETE FROM claims WHERE about = ? AND key = ? AND owner = ?"
_CLAIM = "INSERT OR REPLACE INTO claims VALUES (?,?,?,?,?)"
_DUE = """SELECT about, key, due, priority, team, crc, owner, boot, ends_us
 FROM marks LEFT JOIN claims USING (about, key)
 WHERE about = ? AND due <= ? ORDER BY priority DESC, due, key"""
_LIST_MARKS = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE about = ? AND due <= ? ORDER BY priority DESC, due, key LIMIT ?"""
_LIST_ALL = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE due <= ? ORDER BY priority DESC, due, key, about LIMIT ?"""
_MARK = "SELECT about, key, due, priority, team, crc FROM marks WHERE about = ? AND key = ?"
_FIND_ALL = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE (:team IS NULL OR team = :team) AND due < :before AND (:top IS NULL OR priority < :top
 OR (priority = :top AND (due, key, about) > (:due, :key, :last)))
 ORDER BY priority DESC, due, key, about LIMIT :limit"""
_FIND_LIKE = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE about = :about AND priority = :top AND (due, key, about) > (:due, :key, :last)
 AND due < :before AND (:team IS NULL OR team = :team)
 ORDER BY due, key LIMIT :limit"""
_FIND_BELOW = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE about = :about AND (:top IS NULL OR priority < :top)
 AND due < :before AND (:team IS NULL OR team = :team)
 ORDER BY priority DESC, due, key LIMIT :limit"""
_CLAIMS = """SELECT about, key, owner, ends_us FROM claims
 WHERE boot = ? AND ends_us > ? ORDER BY about, key LIMIT ?"""
READ_MARKS = "SELECT about, key, due, priority, team, crc FROM marks"
STRAY_CLAIMS = (
    "SELECT count(*) FROM claims WHERE (about, key) NOT IN (SELECT about, key FROM marks)"
)
_DUE_MAX = (1 << 63) - 1


class SqliteMarks:
    """Marks and claims as rows. A claim of another boot has ended with that boot."""

    def __init__(self, checkout: SqliteCheckout, workers: Workers) -> None:
        self._checkout = checkout
        self._workers = workers

    def apply(self, marks: Sequence[Mark | Cleared]) -> None:
        """Sets and clears the marks of a commit, in its transaction; claims on them end."""
        execute = self._checkout.writer.execute
        self._checkout.tables.ensure("marks", execute)
        for mark in marks:
            mark_id = mark.index, mark.key
            execute(_UNCLAIM, mark_id)
            if isinstance(mark, Mark):
                row = *mark_id, mark.due, mark.priority, mark.group
                execute(_SET, (*row, crc_of(*row)))
            else:
                execute(_CLEAR, mark_id)

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        checkout = self._checkout
        writer = checkout.writer

        def work() -> list[Mark]:
            execute = writer.execute
            if not checkout.tables.exist("marks", execute):
                return []
            boot, now_us = checkout.clock.boot_id(), checkout.clock.boot_us()
            taken: list[Mark] = []
            for row in execute(_DUE, (index, checkout.clock.now_us())):
                if len(taken) >= n:
                    break
                if not self._is_claimed(row, boot, now_us):
                    taken.append(self._mark(row))
            ends_us = now_us + round(ttl_s * 1_000_000)
            for mark in taken:
                execute(_CLAIM, (index, mark.key, owner, boot, ends_us))
            return taken

        with checkout.errors:
            self._workers.hold(owner)
            return writer.transact(work)

    def _is_claimed(self, row: Row, boot: str, now_us: int) -> bool:
        owner, claim_boot, ends_us = row[6:]
        if owner is None or claim_boot != boot or ends_us <= now_us:
            return False
        return self._workers.is_alive(owner)

    def release(self, index: str, key: str, owner: str) -> None:
        checkout = self._checkout
        writer = checkout.writer

        def work() -> None:
            if checkout.tables.exist("marks", writer.execute):
                writer.execute(_UNCLAIM_OWN, (index, key, owner))

        with checkout.errors:
            writer.transact(work)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        checkout = self._checkout
        checkout.check_open()
        due = _DUE_MAX if due_before is None else due_before - 1
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            if not checkout.tables.exist("marks", execute):
                return []
            if index is None:
                rows = execute(_LIST_ALL, (due, limit)).fetchall()
            else:
                rows = execute(_LIST_MARKS, (index, due, limit)).fetchall()
        return [self._mark(row) for row in rows]

    def find(self, query: MarkQuery) -> Sequence[Mark]:
        checkout = self._checkout
        checkout.check_open()
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            if not checkout.tables.exist("marks", execute):
                return []
            rows = _rows_of(query, execute)
        return query.pick(self._mark(row) for row in rows)

    def all(self, execute: Execute) -> list[Mark]:
        """Returns every mark, inside the transaction that asks.

        The table is looked up in that transaction, and not in what this process knows: another
        thread may have made it after the transaction began.
        """
        if execute(HAS_TABLE, ("marks",)).get != 1:
            return []
        rows = execute(_LIST_ALL, (_DUE_MAX, -1)).fetchall()
        return [self._mark(row) for row in rows]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        checkout = self._checkout
        checkout.check_open()
        boot, now_us = checkout.clock.boot_id(), checkout.clock.boot_us()
        with checkout.errors, checkout.reader.lock:
            execute = checkout.reader.execute
            if not checkout.tables.exist("marks", execute):
                return []
            rows = execute(_CLAIMS, (boot, now_us, limit)).fetchall()
        return [Claim(about, key, owner, ends_us - now_us) for about, key, owner, ends_us in rows]

    def _mark(self, row: Row) -> Mark:
        about, key, due, priority, team, crc, *_ = row
        if crc != crc_of(about, key, due, priority, team):
            where = self._checkout.path
            raise CorruptError(
                f'mark "{key}" of "{about}" fails its checksum ({where})', where=where
            )
        return Mark(about, key, due, priority, team)


def _rows_of(query: MarkQuery, execute: Execute) -> list[Row]:
    """Returns the rows of all marks that a query asks for; of one index, in its order.

    A page takes two searches: for the rest of the priority of the last mark, and for the priorities
    below. So the hundredth page costs as much as the first.
    """
    if query.index is not None and query.keys is not None:
        found = [execute(_MARK, (query.index, key)).fetchall() for key in set(query.keys)]
        return [row for rows in found for row in rows]
    last, limit = query.after, query.limit
    before = _DUE_MAX if query.due_before is None else query.due_before
    values: dict[str, Any] = {"team": query.group, "top": None, "limit": limit, "before": before}
    if last is not None:
        values |= {"top": last.priority, "due": last.due, "key": last.key, "last": last.index}
    if query.index is None:
        return execute(_FIND_ALL, {"due": 0, "key": "", "last": "", **values}).fetchall()
    values["about"] = query.index
    rows: list[Row] = []
    if last is not None:
        rows = execute(_FIND_LIKE, values).fetchall()
    if len(rows) < limit:
        rows += execute(_FIND_BELOW, {**values, "limit": limit - len(rows)}).fetchall()
    return rows
