"""Leases: entries beside the log, judged by the server's clock alone.

Nobody can tell from here whether an owner is dead or slow. A lease passes on when it has expired.
An epoch is above the last one and at least the server's time in milliseconds: a server that took
over without the newest epochs still gives greater ones.
"""

from __future__ import annotations

from typing import Any

from holdfast.backends.protocol import Held, Lease
from holdfast.backends.redis.gate import Gate


class RedisLeases:
    """Every change is idempotent for its owner, so a call whose connection broke is repeated."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._keys = (gate.keys.leases,)

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        ttl_us = round(ttl_s * 1_000_000)
        arguments = "acquire", name, owner, 0, ttl_us
        return _lease(name, self._gate.write("lease", self._keys, arguments))

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        ttl_us = round(ttl_s * 1_000_000)
        arguments = "renew", lease.name, lease.owner, lease.epoch, ttl_us
        return _lease(lease.name, self._gate.write("lease", self._keys, arguments))

    def release(self, lease: Lease) -> None:
        arguments = "release", lease.name, lease.owner, lease.epoch, 0
        self._gate.write("lease", self._keys, arguments)

    def holder(self, name: str) -> Lease | None:
        return _lease(name, self._gate.look("lease", self._keys, ("holder", name, "", 0, 0)))

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        # Sorted here: a server compares text by the rules of its locale.
        listed = sorted(
            Held(name.decode(), owner.decode(), int(epoch), int(left_us) > 0, int(left_us))
            for name, owner, epoch, left_us in self._gate.look("leases", self._keys, (prefix,))
        )
        return [lease for lease in listed if lease.name > after][:limit]


def _lease(name: str, answer: list[Any] | None) -> Lease | None:
    if not answer:
        return None
    epoch, ends_us, owner = answer
    return Lease(name, owner.decode(), int(epoch), int(ends_us))
