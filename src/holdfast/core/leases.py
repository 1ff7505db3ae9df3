"""Workers and leases: which workers are alive is known by a lease that each of them renews.

A worker registers when it first takes something that others must know it is responsible for. It
then holds the lease `worker/<id>`. One thread of it, the lease keeper's, renews that lease and all
others that it was given to keep. A renewal is no event: the log grows by one event for each worker,
in the stream `store/workers`:

    worker.registered  {"worker": …, "host": …, "pid": …, "actor": …, "lease_s": …}
    worker.returned    {"worker": …}    it was silent past its lease, but alive, and goes on

A worker whose lease has lapsed is a suspect. A dead worker cannot be told from one that is cut off,
except where the kernel can tell: on files and SQLite the death of a process is known at once.
Either way a suspect cannot write under a lease that has passed on (guarantee 4).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from weakref import ReferenceType, ref

from msgspec import Struct, field

from holdfast.backends.deadline import monotonic
from holdfast.backends.gates import Flag, start_thread
from holdfast.backends.handle import Handle
from holdfast.backends.protocol import Fence, Held, Lease, renew_many
from holdfast.clock import Clock
from holdfast.core import codec, event
from holdfast.core.arguments import check_seconds
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, check_lease
from holdfast.core.event import to_datetime
from holdfast.core.layers import Layer, register_layer
from holdfast.core.log import LEASE_BLOCK, LeaseBlock, Log
from holdfast.errors import HoldfastError, LeaseLostError, UnavailableError, UsageError
from holdfast.names import check_name

# --- leases ---------------------------------------------------------------------------------------
#
# A lease in the log: a row that the backend judges, and one event for each new epoch.


def acquire(log: Log, name: str, owner: str, *, ttl_s: float) -> Lease:
    """Takes the lease, and records a new epoch in the stream `lease/<name>`.

    Raises LeaseLostError if another owner has it. Renewals are not recorded: they would fill the
    log with nothing. The event is committed under the lease itself, so that the record of an epoch
    is never written by a worker that has lost it.
    """
    if log.observers is None:
        return _acquire(log, name, owner, ttl_s)
    began, lease, failure = monotonic(), None, None
    try:
        lease = _acquire(log, name, owner, ttl_s)
        return lease
    except Exception as error:
        failure = error
        raise
    finally:
        epoch = 0 if lease is None else lease.epoch
        log.observers.tell("lease", name, began, failure, owner=owner, epoch=epoch)


def _acquire(log: Log, name: str, owner: str, ttl_s: float) -> Lease:
    check_seconds(ttl_s, "ttl_s")
    held = log.leases.holder(name)
    lease = log.leases.acquire(name, owner, ttl_s=ttl_s)
    if lease is None:
        holder = log.leases.holder(name)
        raise LeaseLostError(
            f'lease "{name}" is held by '
            + (f'"{holder.owner}" in epoch {holder.epoch}' if holder else "another worker"),
            lease=name,
            epoch=holder.epoch if holder else 0,
            hint="wait until it is released or expires",
        )
    if held is None or (held.owner, held.epoch) != (owner, lease.epoch):
        payload = codec.encode_plain({"name": name, "owner": owner, "epoch": lease.epoch})
        write = StreamWrite(f"lease/{name}", (NewEvent(event.LEASE, payload),))
        log.commit(ProposedCommit((write,), fence=Fence(name, owner, lease.epoch)))
    return lease


def acquire_within(clock: Clock, take: Callable[[], Lease], wait_s: float) -> Lease:
    """Takes a lease as soon as it is free; raises LeaseLostError if it is not within `wait_s`.

    If its holder dies, it is free at once on one host, and on a server when its time is over.
    """
    until = monotonic() + wait_s
    pause_s = PAUSE_S
    while True:
        try:
            return take()
        except LeaseLostError as error:
            left_s = until - monotonic()
            if left_s <= 0:
                raise
            _logger.debug("a lease is asked for again: %s", error)
        clock.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, PAUSE_S_MAX)


def renew(log: Log, lease: Lease, *, ttl_s: float) -> Lease | None:
    """Returns the lease with a later end, None if it was lost."""
    return log.leases.renew(check_lease(lease), ttl_s=check_seconds(ttl_s, "ttl_s"))


def release(log: Log, lease: Lease) -> None:
    """Releases a lease; one that was lost is left alone."""
    log.leases.release(check_lease(lease))


_logger = logging.getLogger("holdfast.leases")

REGISTERED = "worker.registered"
RETURNED = "worker.returned"
STREAM = "store/workers"

register_layer(Layer(name="leases", prefixes=("lease", "store"), kept_with={"lease": None}))

HEARTBEAT_S = 10.0
FORGET_S = 24 * 3600.0
"""How long a lapsed lease is listed. The next worker that registers removes older ones."""

PAUSE_S = 0.005
PAUSE_S_MAX = 0.25
_BEATS_PER_LEASE = 3
_RETRY_US_MAX = 1_000_000
_CLOSE_S = 5.0
_REGISTERS = 5
"""How often a worker takes its own lease if that lapses before it is recorded."""
_BATCH_MAX = 250
"""How many leases one call renews: a server locks each of them until it has written them all."""
_PAGE = 1000


class HeldLease(Lease, frozen=True, gc=True):
    """A lease that this worker holds; used as a block it is renewed, fences commits, and ends.

    `with hf.workers.lease("nightly", wait_s=30):` renews it in the background until the block ends,
    and then releases it. All that this thread or task commits to this store in the block carries
    its fence: once the lease has passed on, none of it is written (guarantee 4). Commits to other
    stores do not carry it.
    """

    keeper: LeaseKeeper
    ttl_s: float
    entered: list[Fence] = field(default_factory=list[Fence])

    def __enter__(self) -> HeldLease:
        self.keep()
        self.fence()
        return self

    def __exit__(self, *_: object) -> None:
        self.unfence()
        self.give_back()

    def keep(self) -> None:
        """Renews the lease in the background until `give_back`."""
        if not self.keeper.keeps(self):
            self.keeper.keep(self, ttl_s=self.ttl_s)

    def fence(self) -> None:
        """Fences what this thread or task commits from here on."""
        fence = Fence(self.name, self.owner, self.epoch)
        self.entered.append(fence)
        LEASE_BLOCK.set(LeaseBlock(self.keeper.stored_at, fence, LEASE_BLOCK.get()))

    def unfence(self) -> None:
        """Ends what `fence` began."""
        fence, block = self.entered.pop(), LEASE_BLOCK.get()
        LEASE_BLOCK.set(block and block.without(self.keeper.stored_at, fence))

    def give_back(self) -> None:
        """Stops renewing the lease and releases it; one that was lost is left alone."""
        self.keeper.give_back(self)

    def __repr__(self) -> str:
        return f"<HeldLease {self.name} in epoch {self.epoch}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lease) and _identity(self) == _identity(other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # that of Struct compares all fields

    def __hash__(self) -> int:
        return hash(_identity(self))


def _identity(lease: Lease) -> tuple[str, str, int, int]:
    return lease.name, lease.owner, lease.epoch, lease.expires_us


class Worker(Struct, frozen=True):
    """A registered worker that has not ended cleanly.

    `silent_s` is the time since its last heartbeat, on the clock that judges its lease. If its host
    was restarted since, it is the time since that. Host, pid, actor and start are None if the event
    of its registration was lost.
    """

    id: str
    alive: bool
    silent_s: float
    last_heartbeat: datetime
    host: str | None
    pid: int | None
    actor: str | None
    started: datetime | None
    leases: tuple[str, ...]
    """The leases that it holds, or has held and no other worker has taken since."""
    claims: tuple[tuple[str, str], ...]
    """Index and key of the marks that it has claimed and that no other worker can claim yet."""


class _Kept(Struct):
    """A lease that the keeper renews. Its times are on the boot clock."""

    lease: Lease
    ttl_us: int
    sure_until_us: int  # it cannot have lapsed before
    due_us: int
    passed_on: bool = False


class _WorkerInfo(Struct, frozen=True):
    """What a worker recorded about itself when it registered."""

    host: str
    pid: int
    actor: str
    lease_s: float
    started: datetime


class LeaseKeeper(Handle):
    """Renews this worker's leases, in one daemon thread that starts with the first lease.

    One call renews many of them. One by one, over a network with a round trip of 30 ms, a thousand
    leases would lapse before their turn came.
    """

    def __init__(self, log: Log, worker: str, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        super().__init__()
        self.worker = worker
        self.stored_at = log.stored_at
        self._log = log
        self._clock = log.clock
        self._lease_s = check_seconds(heartbeat_s, "heartbeat_s") * _BEATS_PER_LEASE
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._infos: dict[str, _WorkerInfo] = {}
        self._mutex = threading.Lock()
        self._registering = threading.Lock()
        self._registered = False
        self._wake = Flag()
        self._next_us = 0  # when the thread looks again; 0 until it has looked for the first time
        self._thread: threading.Thread | None = None

    # --- for what this worker does ---------------------------------------------------------------

    def register(self) -> None:
        """Registers this worker, once; from then on a renewed lease shows that it is alive."""
        self.check_open()
        if not self._registered:
            with self._registering:
                if not self._registered:
                    self._register()
                    self._registered = True

    def take(self, name: str, *, ttl_s: float) -> Lease:
        """Takes a lease for this worker and keeps it; raises LeaseLostError, which names its owner.

        The time is counted from before the question, so `lost` never trusts the lease for too long.
        """
        self.register()
        began_us = self._clock.boot_us()
        lease = acquire(self._log, name, self.worker, ttl_s=ttl_s)
        self._add(lease, ttl_s, began_us)
        return lease

    def hold(self, name: str, *, ttl_s: float) -> Lease | None:
        """Takes a lease and keeps it, without an event; returns None if another worker has it."""
        self.register()
        began_us = self._clock.boot_us()
        lease = self._log.leases.acquire(name, self.worker, ttl_s=ttl_s)
        if lease is not None:
            self._add(lease, ttl_s, began_us)
        return lease

    def keep(self, lease: Lease, *, ttl_s: float = 30.0) -> None:
        """Renews the lease now, and again until `drop`; raises LeaseLostError if it is lost."""
        self.register()
        check_lease(lease)
        began_us = self._clock.boot_us()
        renewed = self._log.leases.renew(lease, ttl_s=check_seconds(ttl_s, "ttl_s"))
        if renewed is None:
            raise LeaseLostError(
                f'lease "{lease.name}" is no longer held by "{lease.owner}" in epoch {lease.epoch}',
                lease=lease.name,
                epoch=lease.epoch,
                hint="stop the work that it stood for, or take it again",
            )
        self._add(renewed, ttl_s, began_us)

    def drop(self, lease: Lease) -> None:
        """Stops renewing the lease, and does not release it; one that is not kept is fine."""
        self.check_open()
        with self._mutex:
            self._kept.pop(_key(check_lease(lease)), None)

    def give_back(self, lease: Lease) -> None:
        """Stops renewing the lease, and releases it."""
        self.drop(lease)
        release(self._log, lease)

    def keeps(self, lease: Lease) -> bool:
        """Returns whether this keeper was given the lease and has not dropped it since."""
        self.check_open()
        return _key(check_lease(lease)) in self._kept

    def lost(self, lease: Lease) -> bool:
        """Returns whether a kept lease is lost, or may be: then the work under it must stop.

        The backend decides. While it cannot be asked, a lease counts as lost when its time is over
        on this host's boot clock, which goes on while the host sleeps.
        """
        self.check_open()
        kept = self._kept.get(_key(check_lease(lease)))
        if kept is None:
            raise UsageError(
                f'lease "{lease.name}" is not kept: this process does not know when it is lost',
                hint="take it with keep=True",
            )
        return kept.passed_on or self._clock.boot_us() >= kept.sure_until_us

    def is_sure(self, lease: Lease) -> bool:
        """Returns whether a lease was renewed so recently that no other worker can have taken it.

        Returns False for one that is not renewed any more, because it was dropped or the keeper is
        closed.
        """
        kept = self._kept.get((lease.name, lease.epoch)) if self._dead is None else None
        if kept is None or kept.passed_on:
            return False
        return self._clock.boot_us() < kept.sure_until_us

    # --- for what others do ----------------------------------------------------------------------

    def is_alive(self, owner: str) -> bool:
        """Returns whether a worker is registered and has not been silent past its lease."""
        self.check_open()
        if check_name(owner, "worker") == self.worker:
            return True
        return self._log.leases.holder(_lease_name(owner)) is not None

    def workers(self) -> list[Worker]:
        """Returns the registered workers, by id, suspects included."""
        self.check_open()
        claims: dict[str, list[tuple[str, str]]] = {}
        for claim in self._log.marks.claims(limit=1 << 31):
            claims.setdefault(claim.owner, []).append((claim.index, claim.key))
        leases: dict[str, list[str]] = {}
        found: list[Held] = []
        for held in self._leases():
            if held.name == _lease_name(held.owner):
                found.append(held)
            else:
                leases.setdefault(held.owner, []).append(held.name)
        return [
            self._worker(held, leases.get(held.owner, []), claims.get(held.owner, []))
            for held in found
        ]

    # --- the beat itself -------------------------------------------------------------------------

    def tend(self) -> float:
        """Renews what is due, and returns the seconds until something is due again."""
        now_us = self._clock.boot_us()
        with self._mutex:
            due = [kept for kept in self._kept.values() if _is_due(kept, now_us)]
            if due:
                # What is due soon goes along. So leases that were taken one after the other are
                # renewed together from then on, in few calls however many there are (0020).
                due = [kept for kept in self._kept.values() if _is_due(kept, now_us, early=True)]
        for batch in self._batches(due):
            self._renew(batch)
        now_us = self._clock.boot_us()
        with self._mutex:
            waiting = [kept.due_us for kept in self._kept.values() if not kept.passed_on]
            self._next_us = min(waiting, default=now_us + 3_600_000_000)
        return max(self._next_us - now_us, 1000) / 1e6

    def close(self) -> None:
        """Releases all leases, so that a worker which ended cleanly is no suspect."""
        if not self.mark_closed():
            return
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # A call that hangs is not waited for any longer: its leases are released all the same.
            thread.join(_CLOSE_S)
        # The worker's own lease, its first, goes last: while it holds others, it stays listed.
        for kept in reversed(list(self._kept.values())):
            try:
                self._log.leases.release(kept.lease)
            except UnavailableError as error:
                _logger.warning("leases could not be given back: %s", error)
                break  # one deadline is enough: what is left expires by itself
            except HoldfastError as error:
                _logger.warning('lease "%s" could not be given back: %s', kept.lease.name, error)

    def _register(self) -> None:
        info = {"worker": self.worker, "host": os.uname().nodename, "pid": os.getpid()}
        info |= {"actor": self._log.actor, "lease_s": self._lease_s}
        tries = 0
        while True:
            began_us = self._clock.boot_us()
            lease = self._own()
            tries += 1
            try:
                self._record(lease, REGISTERED, info, key=self.worker)
                break
            except LeaseLostError:
                # The lease lapsed because the machine is too busy. To take it again is safe: nobody
                # else can have it, and nothing depends on it yet.
                if tries == _REGISTERS:
                    raise
        self._add(lease, self._lease_s, began_us)
        try:
            for held in self._leases():
                if held.left_us < -FORGET_S * 1e6:
                    self._log.leases.release(Lease(held.name, held.owner, held.epoch, 0))
        except UnavailableError as error:
            _logger.debug("old leases were not removed: %s", error)

    def _own(self) -> Lease:
        name = _lease_name(self.worker)
        lease = self._log.leases.acquire(name, self.worker, ttl_s=self._lease_s)
        assert lease is not None, f'BUG: another worker has the id "{self.worker}"'
        return lease

    def _record(self, lease: Lease, type: str, info: object, *, key: str | None = None) -> None:
        write = StreamWrite(STREAM, (NewEvent(type, codec.encode_plain(info)),), key=key)
        self._log.commit(
            ProposedCommit((write,), fence=Fence(lease.name, lease.owner, lease.epoch))
        )

    def _add(self, lease: Lease, ttl_s: float, began_us: int) -> None:
        ttl_us = round(ttl_s * 1_000_000)
        kept = _Kept(lease, ttl_us, began_us + ttl_us, began_us + ttl_us // _BEATS_PER_LEASE)
        with self._mutex:
            self._kept[_key(lease)] = kept
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_live, args=(ref(self), self._wake), name="holdfast-heart", daemon=True
                )
                start_thread(self._thread)
            # The thread is woken only for an earlier time than it waits for. Otherwise a thousand
            # runs that begin at once would each have it look at a thousand leases.
            is_first = kept.due_us < self._next_us
        if is_first:
            self._wake.set()

    def _batches(self, due: list[_Kept]) -> Iterator[list[_Kept]]:
        """Yields groups of leases that one call can renew, those that would lapse first, first.

        The parts of a mixed store are asked separately: one that cannot be reached must not keep
        back the answers of the others.
        """
        groups: dict[tuple[int, int], list[_Kept]] = {}
        for kept in sorted(due, key=lambda kept: kept.sure_until_us):
            place = self._log.routes.place_of(kept.lease.name)
            groups.setdefault((place, kept.ttl_us), []).append(kept)
        for group in groups.values():
            yield from (group[n : n + _BATCH_MAX] for n in range(0, len(group), _BATCH_MAX))

    def _renew(self, batch: list[_Kept]) -> None:
        """Renews leases by one call.

        If the backend cannot be reached, the leases run out: so it is asked again sooner than
        usual, and meanwhile `lost` looks at the clock. No error may end the thread, because all
        leases would lapse with it. An error of a single lease, such as damage, must not cost the
        others theirs: then each lease is renewed by a call of its own.
        """
        leases = [kept.lease for kept in batch]
        # The time counts from before the question: however long the answer takes, the leases that
        # it renews last at least so long.
        began_us = self._clock.boot_us()
        try:
            answers = renew_many(self._log.leases, leases, ttl_s=batch[0].ttl_us / 1e6)
            for kept, renewed in zip(batch, answers, strict=True):
                self._note(kept, renewed, began_us)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, UnavailableError):
                for kept in batch:
                    self._renew([kept])
                return
            names = f'"{leases[0].name}"' + (f" and {len(batch) - 1} more" if batch[1:] else "")
            _logger.warning("lease %s could not be renewed: %s", names, error)
            again_us = self._clock.boot_us() + min(batch[0].ttl_us // 10, _RETRY_US_MAX)
            for kept in batch:
                kept.due_us = again_us

    def _note(self, kept: _Kept, renewed: Lease | None, began_us: int) -> None:
        """Notes the answer to a renewal."""
        if renewed is None:
            if kept.lease.name != _lease_name(self.worker):
                kept.passed_on = True
                _logger.warning('lease "%s" was lost: its work must stop', kept.lease.name)
                return
            # This worker was taken for dead, and others may have taken its leases by now. It goes
            # on in a new epoch of its own lease; the other leases stay lost.
            renewed = self._own()
            self._record(renewed, RETURNED, {"worker": self.worker})
        kept.lease = renewed
        kept.sure_until_us = began_us + kept.ttl_us
        kept.due_us = began_us + kept.ttl_us // _BEATS_PER_LEASE

    def _leases(self) -> Iterator[Held]:
        after = ""
        while page := self._log.leases.list(after=after, limit=_PAGE):
            yield from page
            after = page[-1].name

    def _worker(self, held: Held, leases: list[str], claims: list[tuple[str, str]]) -> Worker:
        info = self._info_of(held.owner)
        lease_s = self._lease_s if info is None else info.lease_s
        silent_s = max(lease_s - held.left_us / 1e6, 0.0)
        return Worker(
            id=held.owner,
            alive=held.is_held,
            silent_s=silent_s,
            last_heartbeat=to_datetime(self._clock.now_us() - round(silent_s * 1e6)),
            host=info and info.host,
            pid=info and info.pid,
            actor=info and info.actor,
            started=info and info.started,
            leases=tuple(leases),
            claims=tuple(claims),
        )

    def _info_of(self, worker: str) -> _WorkerInfo | None:
        if worker not in self._infos:
            for found in self._log.find(STREAM, key=worker):
                [record] = self._log.records(STREAM, after=found.revision - 1, until=found.revision)
                data = codec.decode(record.payload)
                info = _WorkerInfo(
                    data["host"],
                    data["pid"],
                    data["actor"],
                    data["lease_s"],
                    to_datetime(record.time),
                )
                self._infos[worker] = info
        return self._infos.get(worker)


def _live(heart_ref: ReferenceType[LeaseKeeper], wake: Flag) -> None:
    """Runs the keeper's thread, which holds only a weak reference.

    So it does not keep a store open that its user has dropped.
    """
    while (lease_keeper := heart_ref()) is not None and lease_keeper.is_open:
        pause_s = lease_keeper.tend()
        del lease_keeper
        wake.wait(pause_s)
        wake.clear()


def _key(lease: Lease) -> tuple[str, int]:
    return lease.name, lease.epoch


def _is_due(kept: _Kept, now_us: int, *, early: bool = False) -> bool:
    ahead_us = kept.ttl_us // _BEATS_PER_LEASE // 4 if early else 0
    return not kept.passed_on and kept.due_us <= now_us + ahead_us


def _lease_name(worker: str) -> str:
    return f"worker/{worker}"
