"""Leases and claims: `leases.json`, replaced whole under the store lock, never synced.

    {"boot":"…","leases":{name:[owner,epoch,expires_us]},"claims":[[index,key,position,owner,expires_us]],
     "forgotten":epoch}

Times are those of the boot-time clock, so they count only under the same boot id. The file is not
synced because its loss is harmless: a lease is then free, and its next epoch is greater than any
before, because epochs also grow with the wall clock (milliseconds). A word of the shared page
counts the changes of the file, so that processes read it again only after a change.

A claim names the position at which its mark was set. A mark that was set again has another
position, which ends the claim without any write.

All threads of a handle share one table in memory, and only those that write have the store lock. So
every use of the table needs the catalog's mutex. Otherwise a thread that reads could put an older
table in the place of a changed one and count it as the newest. The next change would then remove
the lease that another thread was just given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import DecodeError, Struct, ValidationError, field
from msgspec import json as json_codec

from holdfast.backends.files.directory import LEASES
from holdfast.backends.files.disk import read_file, reported
from holdfast.backends.files.opening import Opened
from holdfast.backends.liveness import Workers
from holdfast.backends.protocol import Claim, Fence, Held, Lease, Mark, MarkQuery

if TYPE_CHECKING:
    from holdfast.backends.files.backend import FilesBackend

_log = logging.getLogger("holdfast.backends")
T = TypeVar("T")

NAME = "leases.json"
# A released lease is forgotten at once, a lapsed one is still listed for a day (clause 19).
_SHOWN_US = 24 * 3600 * 1_000_000
_PRUNE_US = 60 * 1_000_000
_ALL = 1 << 40


class _Claim(Struct, array_like=True):
    index: str
    key: str
    position: int
    owner: str
    expires_us: int


class _Held(Struct, array_like=True):
    owner: str
    epoch: int
    expires_us: int


class _LeaseTable(Struct):
    boot: str
    leases: dict[str, _Held] = field(default_factory=dict[str, _Held])
    claims: list[_Claim] = field(default_factory=list[_Claim])
    forgotten: int = 0  # the greatest epoch of a lease that is no longer listed


class FileLeases:
    """Leases, kept in `leases.json`; the lease of a dead owner counts as ended at once."""

    def __init__(self, backend: FilesBackend) -> None:
        self._backend = backend
        self._clock = backend.clock
        # By descriptor: when the first worker is held, the path may lead to another store.
        opened, at = backend.opened, backend.directory.fd
        watch = opened.watch if isinstance(opened, Opened) else None
        self._workers = Workers("workers", at=at, watch=watch, read_only=backend.read_only)
        self._table = _LeaseTable(backend.clock.boot_id())
        self._prune_at_us = 0
        self._seen = -1  # the page's count of changes when the table was read

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        def work(opened: Opened) -> Lease | None:
            table = self.load()
            held = self._held(name)
            if held is not None and held.owner != owner:
                if self._workers.is_alive(held.owner):
                    return None
                held = None
            self._workers.hold(owner)
            if held is None:
                last = table.leases.get(name)
                least = last.epoch if last else table.forgotten
                epoch = max(least + 1, self._clock.now_us() // 1000)
                held = _Held(owner, epoch, 0)
                table.leases[name] = held
            lease = self._extend(name, held, ttl_s)
            self.save(opened)
            return lease

        return self.change(work)

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self.renew_many((lease,), ttl_s=ttl_s)[0]

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease | None]:
        def work(opened: Opened) -> list[Lease | None]:
            renewed: list[Lease | None] = []
            for lease in leases:
                held = self._held_as(lease.name, lease.owner, lease.epoch)
                renewed.append(None if held is None else self._extend(lease.name, held, ttl_s))
            if any(renewed):
                self.save(opened)
            return renewed

        return self.change(work)

    def release(self, lease: Lease) -> None:
        def work(opened: Opened) -> None:
            table = self.load()
            last = table.leases.get(lease.name)
            if last is not None and (last.owner, last.epoch) == (lease.owner, lease.epoch):
                self._forget(lease.name)
                self.save(opened)

        self.change(work)

    def holder(self, name: str) -> Lease | None:
        with self._backend.reading(), self._backend.catalog.mutex:
            self.load()
            held = self._held(name)
            if held is None or not self._workers.is_alive(held.owner):
                return None
            return Lease(name, held.owner, held.epoch, held.expires_us)

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        with self._backend.reading(), self._backend.catalog.mutex:
            now_us = self._clock.boot_us()
            leases = self.load().leases
            names = sorted(
                name
                for name, last in leases.items()
                if last.expires_us and name.startswith(prefix) and name > after
            )
            listed = [(name, leases[name]) for name in names[:limit]]
            dead = self._dead({last.owner for _, last in listed if last.expires_us > now_us})
        return [
            Held(name, last.owner, last.epoch, left_us > 0 and last.owner not in dead, left_us)
            for name, last in listed
            for left_us in (last.expires_us - now_us,)
        ]

    def _dead(self, owners: set[str]) -> set[str]:
        return {owner for owner in owners if not self._workers.is_alive(owner)}

    def fence_holds(self, fence: Fence) -> bool:
        """Returns whether a fence still holds (clause 6); the caller has the store lock."""
        with self._backend.catalog.mutex:
            return self._held_as(fence.name, fence.owner, fence.epoch) is not None

    def close(self) -> None:
        self._workers.close()

    def is_alive(self, owner: str) -> bool:
        return self._workers.is_alive(owner)

    def hold(self, owner: str) -> None:
        self._workers.hold(owner)

    @property
    def claims(self) -> list[_Claim]:
        return self._table.claims

    @claims.setter
    def claims(self, claims: list[_Claim]) -> None:
        self._table.claims = claims

    def change(self, work: Callable[[Opened], T]) -> T:
        """Runs `work`, which changes the table and saves it; returns what it returns."""

        def change(opened: Opened) -> T:
            try:
                with self._backend.catalog.mutex:
                    return work(opened)
            except BaseException:
                self._seen = -1  # the table in memory may not have been saved: read it again
                raise

        return self._backend.write(change)

    def load(self) -> _LeaseTable:
        """Returns the table, read from disk again only if it has changed since.

        The caller has the catalog's mutex. A table that cannot be read counts as empty, which is
        harmless: its leases have ended, and the next change replaces the file.
        """
        opened = self._backend.opened
        changes = opened.page_words[LEASES]
        if changes == self._seen and isinstance(opened, Opened):
            return self._table
        data = read_file(opened.disk, NAME, at=self._backend.directory.fd)
        boot_id = self._clock.boot_id()
        table = _LeaseTable(boot_id)
        if data is not None:
            try:
                table = json_codec.decode(data, type=_LeaseTable)
            except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as exc:
                report = f"{NAME} could not be read, leases ended: {exc}"
                _log.warning("%s: %s", self._backend.directory.path, report)
                self._backend.catalog.reports.append(report)
        if table.boot != boot_id:
            for held in table.leases.values():
                # It ended with its boot: 1 is the first moment of this one. 0 was released before.
                held.expires_us = min(held.expires_us, 1)
            table = _LeaseTable(boot_id, table.leases, forgotten=table.forgotten)
        self._table = table
        self._seen = changes
        return table

    def save(self, opened: Opened) -> None:
        """Writes the table, without lapsed claims and old leases; the caller has the store lock."""
        table = self._table
        now_us = self._clock.boot_us()
        table.claims = [claim for claim in table.claims if claim.expires_us > now_us]
        if now_us >= self._prune_at_us:
            self._prune_at_us = now_us + _PRUNE_US
            shown_us = now_us - _SHOWN_US
            old = [name for name, held in table.leases.items() if held.expires_us <= shown_us]
            for name in old:
                self._forget(name)
        words = opened.page_words
        data = json_codec.encode(table) + b"\n"
        # Counted twice. Before the file is replaced, so that every process, this one too, reads it
        # again if this one fails or dies in between. After it, so that a process that has read the
        # old file in between reads again.
        words[LEASES] += 1
        with reported(f'{NAME} of "{self._backend.directory.path}" cannot be written'):
            self._backend.directory.replace(NAME, data, durable=False)
        words[LEASES] += 1
        self._seen = words[LEASES]

    def _forget(self, name: str) -> None:
        # Its epoch is kept: otherwise a wall clock that is set back could give it out again.
        table = self._table
        table.forgotten = max(table.forgotten, table.leases.pop(name).epoch)

    def _held(self, name: str) -> _Held | None:
        held = self._table.leases.get(name)
        if held is None or held.expires_us <= self._clock.boot_us():
            return None
        return held

    def _held_as(self, name: str, owner: str, epoch: int) -> _Held | None:
        self.load()
        held = self._held(name)
        if held is None or (held.owner, held.epoch) != (owner, epoch):
            return None
        return held

    def _extend(self, name: str, held: _Held, ttl_s: float) -> Lease:
        """Moves the end of a lease in the table, which the caller then saves."""
        ends_us = self._clock.boot_us() + round(ttl_s * 1_000_000)
        # Never earlier than before: the owner may rely on the later end that it was promised.
        held.expires_us = max(held.expires_us, ends_us)
        return Lease(name, held.owner, held.epoch, held.expires_us)


class FileMarks:
    """Marks, found in the catalog without reading streams, and claims on them."""

    def __init__(self, backend: FilesBackend, leases: FileLeases) -> None:
        self._backend = backend
        self._leases = leases

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        def work(opened: Opened) -> list[Mark]:
            clock, leases = self._backend.clock, self._leases
            leases.load()
            leases.hold(owner)
            now_us = clock.boot_us()
            running = [c for c in leases.claims if c.index == index and c.expires_us > now_us]
            alive = {name for name in {c.owner for c in running} if leases.is_alive(name)}
            claimed = {(c.index, c.key): c.position for c in running if c.owner in alive}
            query = MarkQuery(index, due_before=clock.now_us() + 1, limit=n + len(claimed))
            due = self._backend.catalog.marks(query)
            taken = [(m, at) for m, at in due if claimed.get((m.index, m.key)) != at][:n]
            if taken:
                mark_ids = {(mark.index, mark.key) for mark, _ in taken}
                kept = [c for c in leases.claims if (c.index, c.key) not in mark_ids]
                ends_us = now_us + round(ttl_s * 1_000_000)
                kept += [_Claim(m.index, m.key, at, owner, ends_us) for m, at in taken]
                leases.claims = kept
                leases.save(opened)
            return [mark for mark, _ in taken]

        return self._leases.change(work)

    def release(self, index: str, key: str, owner: str) -> None:
        def work(opened: Opened) -> None:
            self._leases.load()
            claims = self._leases.claims
            kept = [c for c in claims if (c.index, c.key, c.owner) != (index, key, owner)]
            if len(kept) != len(claims):
                self._leases.claims = kept
                self._leases.save(opened)

        self._leases.change(work)

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        with self._backend.reading(), self._backend.catalog.mutex:
            self._leases.load()
            now_us = self._backend.clock.boot_us()
            running = [c for c in self._leases.claims if c.expires_us > now_us]
            marks = self._backend.catalog.marks(MarkQuery(limit=_ALL)) if running else []
            set_at = {(mark.index, mark.key): at for mark, at in marks}
        return sorted(
            Claim(c.index, c.key, c.owner, c.expires_us - now_us)
            for c in running
            if set_at.get((c.index, c.key)) == c.position
        )[:limit]

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        return self.find(MarkQuery(index, due_before=due_before, limit=limit))

    def find(self, query: MarkQuery) -> list[Mark]:
        with self._backend.reading():
            return [mark for mark, _ in self._backend.catalog.marks(query)]
