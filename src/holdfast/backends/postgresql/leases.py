"""Leases: rows beside the log, judged by the server's clock alone.

Nobody can tell from here whether an owner is dead or slow. A lease passes on when it has expired.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.backends.postgresql.batch import lock_of
from holdfast.backends.postgresql.gate import Gate
from holdfast.backends.postgresql.lines import Row
from holdfast.backends.postgresql.rows import prefix_end
from holdfast.backends.protocol import Held, Lease
from holdfast.errors import UnavailableError

_ACQUIRE = "SELECT name, owner, epoch, ends_us FROM holdfast.acquire(%s, %s, %s, %s, %s)"
_EXTEND = "SELECT name, owner, epoch, ends_us FROM holdfast.extend(%s, %s, %s, %s, %s, %s)"
_HOLDER = """SELECT name, owner, epoch, ends_us FROM holdfast.leases
 WHERE application = %s AND name = %s AND ends_us > holdfast.now_us()"""


# Nobody waits for the lock here: a commit under way holds the lease until its end all the same,
# because whoever takes it next waits for that commit.
_RELEASE = """UPDATE holdfast.leases SET ends_us = 0
 WHERE application = %s AND name = %s AND owner = %s AND epoch = %s RETURNING name"""
# Rows that are being taken are passed. Whoever holds one decides about it.
_FORGET = """WITH gone AS (DELETE FROM holdfast.leases WHERE application = %(application)s
  AND name IN (SELECT name FROM holdfast.leases WHERE application = %(application)s
   AND ends_us = 0 AND name <> '' LIMIT %(limit)s FOR UPDATE SKIP LOCKED) RETURNING epoch)
 INSERT INTO holdfast.leases AS l SELECT %(application)s, '', '', max(epoch), 0 FROM gone
  HAVING count(*) > 0
 ON CONFLICT (application, name) DO UPDATE SET epoch = greatest(l.epoch, excluded.epoch)"""
_FORGET_EVERY = 64
_FORGET_MAX = 1000
_LIST = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us)
 SELECT name, owner, epoch, ends_us > us, ends_us - us FROM holdfast.leases, now
 WHERE application = %(application)s AND ends_us <> 0 AND name > %(after)s AND name >= %(prefix)s
 AND (%(end)s::text IS NULL OR name < %(end)s) ORDER BY name LIMIT %(limit)s"""


class PostgresqlLeases:
    """Every change is idempotent for its owner, so a call whose connection broke is repeated."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._released = 0

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        values = self._named(name), name, owner, round(ttl_s * 1_000_000)
        return _lease(self._gate.write(_ACQUIRE, (self._gate.application, *values)))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        values = self._named(lease.name), lease.name, lease.owner, lease.epoch
        ttl_us = round(ttl_s * 1_000_000)
        return _lease(self._gate.write(_EXTEND, (self._gate.application, *values, ttl_us)))

    def release(self, lease: Lease) -> None:
        values = lease.name, lease.owner, lease.epoch
        self._gate.write(_RELEASE, (self._gate.application, *values))
        # Not with each: the one row that keeps the greatest epoch would be locked through the sync
        # of every release, one after the other. With the first, because many a worker has no more.
        if self._released % _FORGET_EVERY == 0:
            limited = {"application": self._gate.application, "limit": _FORGET_MAX}
            with suppress(UnavailableError):  # the lease itself is released
                self._gate.write(_FORGET, limited)
        self._released += 1

    def holder(self, name: str) -> Lease | None:
        return _lease(self._gate.ask(_HOLDER, (self._gate.application, name)))

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        values = {"application": self._gate.application, "after": after, "limit": limit}
        values |= {"prefix": prefix, "end": prefix_end(prefix)}
        return [Held(*row) for row in self._gate.ask(_LIST, values)]

    def _named(self, name: str) -> int:
        return lock_of("lease", self._gate.application, name)


def _lease(rows: list[Row]) -> Lease | None:
    return Lease(*rows[0]) if rows else None
