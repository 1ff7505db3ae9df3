"""Leases: rows beside the log, judged by the server's clock alone.

Nobody can tell from here whether an owner is dead or slow. A lease passes on when it has expired.
"""

from __future__ import annotations

from holdfast.backends.postgresql.batch import lock_of
from holdfast.backends.postgresql.gate import Gate
from holdfast.backends.postgresql.lines import Row
from holdfast.backends.protocol import Lease

_ACQUIRE = "SELECT name, owner, epoch, ends_us FROM holdfast.acquire(%s, %s, %s, %s, %s)"
_EXTEND = "SELECT name, owner, epoch, ends_us FROM holdfast.extend(%s, %s, %s, %s, %s, %s)"
_HOLDER = """SELECT name, owner, epoch, ends_us FROM holdfast.leases
 WHERE application = %s AND name = %s AND ends_us > holdfast.now_us()"""


class PostgresqlLeases:
    """Every change is idempotent for its owner, so a call whose connection broke is repeated."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        values = self._named(name), name, owner, round(ttl_s * 1_000_000)
        return _lease(self._gate.write(_ACQUIRE, (self._gate.application, *values)))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return _lease(self._extend(lease, round(ttl_s * 1_000_000)))

    def release(self, lease: Lease) -> None:
        self._extend(lease, None)

    def holder(self, name: str) -> Lease | None:
        return _lease(self._gate.ask(_HOLDER, (self._gate.application, name)))

    def _extend(self, lease: Lease, ttl_us: int | None) -> list[Row]:
        values = self._named(lease.name), lease.name, lease.owner, lease.epoch, ttl_us
        return self._gate.write(_EXTEND, (self._gate.application, *values))

    def _named(self, name: str) -> int:
        return lock_of("lease", self._gate.application, name)


def _lease(rows: list[Row]) -> Lease | None:
    return Lease(*rows[0]) if rows else None
