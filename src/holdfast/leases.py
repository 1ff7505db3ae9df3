"""Leases as the log sees them: a row that the backend judges, and an event per new epoch."""

from __future__ import annotations

from holdfast import codec, event
from holdfast.arguments import check_seconds
from holdfast.backends.protocol import Fence, Lease
from holdfast.errors import LeaseLostError
from holdfast.log import Log
from holdfast.wanted import Part, Proposal, Wanted, check_lease


def acquire(log: Log, name: str, owner: str, *, ttl_s: float) -> Lease:
    """Takes the lease, and records a change of epoch in the stream `lease/<name>`.

    Renewals are not recorded: they would fill the log with nothing. The event is committed under
    the lease itself, so that the record of an epoch is never written by a worker that lost it.
    """
    check_seconds(ttl_s, "ttl_s")
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


def renew(log: Log, lease: Lease, *, ttl_s: float) -> Lease | None:
    """Returns the lease with a later end, None if it was lost."""
    return log.backend.leases.renew(check_lease(lease), ttl_s=check_seconds(ttl_s, "ttl_s"))


def release(log: Log, lease: Lease) -> None:
    """Gives a lease back; one that was lost is left alone."""
    log.backend.leases.release(check_lease(lease))
