"""Leases as the log sees them: a row that the backend judges, and an event per new epoch."""

from __future__ import annotations

from holdfast import codec, event
from holdfast.backends.protocol import Fence, Lease
from holdfast.errors import LeaseLostError, UsageError
from holdfast.log import Log
from holdfast.wanted import Part, Proposal, Wanted


def acquire(log: Log, name: str, owner: str, *, ttl_s: float) -> Lease:
    """Takes the lease, and records a change of epoch in the stream `lease/<name>`.

    Renewals are not recorded: they would fill the log with nothing. The event is committed under
    the lease itself, so that the record of an epoch is never written by a worker that lost it.
    """
    if not ttl_s > 0:
        raise UsageError(f"ttl_s is a number of seconds above 0, found {ttl_s!r}")
    held = log.backend.leases.holder(name)
    lease = log.backend.leases.acquire(name, owner, ttl_s=ttl_s)
    if lease is None:
        holder = log.backend.leases.holder(name)
        raise LeaseLostError(
            f'lease "{name}" is held by '
            + (f'"{holder.owner}" in epoch {holder.epoch}' if holder else "another worker"),
            lease=name,
            epoch=holder.epoch if holder else 0,
            hint="wait until it is released or expires",
        )
    if held is None or (held.owner, held.epoch) != (owner, lease.epoch):
        payload = codec.encode_plain({"name": name, "owner": owner, "epoch": lease.epoch})
        part = Part(f"lease/{name}", (Proposal(event.LEASE, payload),))
        log.commit(Wanted((part,), fence=Fence(name, owner, lease.epoch)))
    return lease
