"""Workers, the processes that have a store open, and what they hold: `hf.workers`."""

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
        """Returns whether a kept lease is lost, or may be; then the work under it must stop."""
        return self._kernel.leases.lost(lease)

    def list(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns a page of the workers that have not ended cleanly, by id, with what they hold.

        Pass the cursor of a page as `after` to get the next page.
        """
        found = sorted(self._kernel.leases.workers(), key=_worker_id)
        return cut("workers", found, _worker_id, after=after, limit=limit)

    def suspects(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Worker]:
        """Returns a page of the workers that are silent past their lease, with what they left.

        Such a worker is dead, hung or cut off.
        """
        silent = [worker for worker in self._kernel.leases.workers() if not worker.alive]
        return cut("workers", sorted(silent, key=_worker_id), _worker_id, after=after, limit=limit)

    def lease(
        self, name: str, *, ttl_s: Duration = 30.0, keep: bool = False, wait_s: Duration = 0.0
    ) -> HeldLease:
        """Takes a lease for this worker, or raises LeaseLostError, which names the holder.

        It waits up to `wait_s` for the lease to be released, or for its holder to die. `with
        hf.workers.lease(name, wait_s=30):` keeps the lease until the block ends, and fences every
        commit made in the block. Outside a block, pass the lease to `commit(lease=…)`: such a
        commit is refused once the lease has passed to another worker. With `keep` it is renewed
        until it is released or the store is closed; `lost` says whether that failed. A lease
        belongs to the worker as a whole: it is not a lock between its threads.
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
        """Extends a lease and returns it with its new end; None if it was lost."""
        return renew(self._log, lease, ttl_s=check_seconds(ttl_s, "ttl_s"))

    def release(self, lease: Lease) -> None:
        """Releases a lease."""
        self._kernel.leases.give_back(lease)

    def leases(
        self, *, prefix: str = "", after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Held]:
        """Returns a page of the leases that were not released, by name, including lapsed ones."""
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
        """Claims up to `n` due marks of an index for this worker, each for `ttl_s`.

        A claimed mark is given to nobody else until its time is over.
        """
        index = check_name(index, "index")
        ttl_s = check_seconds(ttl_s, "ttl_s")
        n = check_whole(n, "n", least=1)
        claimed: list[Mark] = []
        while len(claimed) < n:
            # A mark that has ended stays claimed, so that the next attempt skips it and this loop
            # comes to an end.
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
        """Returns a page of the marks that are set, claimed or not, of one index or of all.

        Marks of the highest priority come first, and of those the first that is due. Pass the
        cursor of a page as `after` to get the next page.
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
        """Returns a group: its members get each event at least once, one member at a time.

        The group gets events of the given `types` from streams whose names begin with `prefix`. A
        new group begins at `start`. After the death of a member at most `batch` deliveries are
        repeated, and marked as such. On a server the next member takes over when the lease of
        `ttl_s` has expired; on one host it does so at once.
        """
        return self._kernel.part(Groups).group(
            name, prefix=prefix, types=types, start=start, batch=batch, ttl_s=ttl_s
        )

    def groups(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[GroupStatus]:
        """Returns a page of the groups by name: where each is, and how many events are left.

        Pass the cursor of a page as `after` to get the next page.
        """
        return self._kernel.part(Groups).list(after=after, limit=limit)


def _worker_id(worker: Worker) -> tuple[str]:
    return (worker.id,)
