"""The processes that have a store open, and what they hold: `hf.workers`."""

from __future__ import annotations

from functools import partial

from holdfast.backends.protocol import Held, Lease, Mark
from holdfast.core import mark_ends
from holdfast.core.arguments import Duration, check_flag, check_seconds, check_whole
from holdfast.core.consumers import Delivery, Group, Groups, GroupStatus, Start
from holdfast.core.kernel import Kernel
from holdfast.core.leases import HeldLease, Worker, acquire, acquire_within, renew
from holdfast.core.page import (
    NO_LIMIT,
    PAGE_SIZE,
    Page,
    check_limit,
    cut,
    mark_key,
    read_mark,
    write_cursor,
)
from holdfast.errors import UsageError, show_value
from holdfast.names import check_lease_name, check_name
from holdfast.renamed import NotCalled

__all__ = [
    "Delivery",
    "Group",
    "GroupStatus",
    "Held",
    "HeldLease",
    "Lease",
    "Mark",
    "Worker",
    "WorkersRoom",
]


class WorkersRoom(NotCalled):
    """Workers, the leases and marks that they hold, and groups that share work."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._log = kernel.log

    def __repr__(self) -> str:
        return "<WorkersRoom>"

    @property
    def own(self) -> str:
        """The id of this worker."""
        return self._kernel.worker

    def lost(self, lease: Lease) -> bool:
        """Says whether a kept lease is lost, or may be: then the work under it must stop."""
        return self._kernel.leases.lost(lease)

    def list(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns the registered workers that have not ended cleanly, with what they hold.

        By id. The cursor of a page, given as `after`, leads to the next one.
        """
        found = sorted(self._kernel.leases.workers(), key=_worker_id)
        return cut("workers", found, _worker_id, after=after, limit=limit)

    def suspects(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns the workers that are silent past their lease, with what they left: a page."""
        silent = [worker for worker in self._kernel.leases.workers() if not worker.alive]
        return cut("workers", sorted(silent, key=_worker_id), _worker_id, after=after, limit=limit)

    def lease(
        self, name: str, *, ttl_s: Duration = 30.0, keep: bool = False, wait_s: Duration = 0.0
    ) -> HeldLease:
        """Takes a lease for this worker, or raises LeaseLostError naming who holds it.

        It waits up to `wait_s` for the lease to be given back, or for its holder to die.
        `with hf.workers.lease(name, wait_s=30):` keeps it until the block ends, and fences every
        commit that is made in the block. Or pass it to `commit(lease=…)`: such a commit is refused
        once the lease has passed on. With `keep` it is renewed until it is released or the store is
        closed: ask `lost`. In one worker a lease is taken once: for its threads it is no lock.
        """
        name = check_lease_name(name)
        check_flag(keep, "keep")
        wait_s = check_seconds(wait_s, "wait_s", above=-1e-9)
        ttl_s = check_seconds(ttl_s, "ttl_s")
        keeper = self._kernel.leases
        if keep:
            take = partial(keeper.take, name, ttl_s=ttl_s)
        else:
            take = partial(acquire, self._log, name, self.own, ttl_s=ttl_s)
        lease = acquire_within(self._log.clock, take, wait_s)
        return HeldLease(lease.name, lease.owner, lease.epoch, lease.expires_us, keeper, ttl_s)

    def renew(self, lease: Lease, *, ttl_s: Duration = 30.0) -> Lease | None:
        """Returns the lease with a later end, None if it was lost."""
        return renew(self._log, lease, ttl_s=check_seconds(ttl_s, "ttl_s"))

    def release(self, lease: Lease) -> None:
        """Gives a lease back."""
        self._kernel.leases.give_back(lease)

    def leases(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Held]:
        """Returns the leases that were not released, by name: those held and those that lapsed."""
        limit = check_limit(limit)
        for text, what in ((prefix, "prefix"), (after or "", "after")):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{what} is text, found {show_value(text)}")
        most = NO_LIMIT if limit is None else limit
        found = self._log.leases.list(prefix=prefix, after=after or "", limit=most + 1)
        page = found[:limit]
        cursor = page[-1].name if page else after
        return Page(page, more=len(page) < len(found), cursor=cursor)

    def claim(self, index: str, *, n: int = 1, ttl_s: Duration = 30.0) -> list[Mark]:
        """Takes up to n due marks of an index for this worker, under a lease of their own."""
        index = check_name(index, "index")
        ttl_s = check_seconds(ttl_s, "ttl_s")
        n = check_whole(n, "n", least=1)
        claimed: list[Mark] = []
        while len(claimed) < n:
            # One that has ended stays claimed, so that the next look passes over it.
            found = self._log.marks.claim(index, self.own, n=n - len(claimed), ttl_s=ttl_s)
            claimed += mark_ends.living(self._log, found)
            if not found:
                break
        return claimed

    def marks(
        self,
        index: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Mark]:
        """Returns the marks that are set, claimed or not: highest priority first, then by due time.

        The cursor of a page, given as `after`, leads to the next one.
        """
        if index is not None:
            index = check_name(index, "index")
        limit = check_limit(limit)
        last = None if after is None else read_mark(after)
        most = NO_LIMIT if limit is None else limit + 1
        found = self._log.find_marks(index, after=last, limit=most)
        page = found[:limit]
        cursor = write_cursor("marks", *mark_key(page[-1])) if page else after
        living = mark_ends.living(self._log, page)
        shown = [self._log.opened_mark(mark) for mark in living]
        return Page(shown, more=len(page) < len(found), cursor=cursor)

    def group(
        self,
        name: str,
        *,
        prefix: str = "",
        types: tuple[str, ...] | None = None,
        start: Start = "first",
        batch: int = 100,
        ttl_s: Duration = 30.0,
    ) -> Group:
        """Returns a consumer group: its members get each event at least once, one at a time.

        It gets events of streams that begin with `prefix`, of the given `types`. A new group begins
        at `start`. After a death at most `batch` deliveries come again, marked so; on servers the
        next member takes over when the lease of `ttl_s` expired, on one host at once.
        """
        return self._kernel.part(Groups).group(
            name, prefix=prefix, types=types, start=start, batch=batch, ttl_s=ttl_s
        )

    def groups(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[GroupStatus]:
        """Returns the consumer groups of the store: where each is, and how many events are left.

        By name. The cursor of a page, given as `after`, leads to the next one.
        """
        return self._kernel.part(Groups).list(after=after, limit=limit)


def _worker_id(worker: Worker) -> tuple[str]:
    return (worker.id,)
