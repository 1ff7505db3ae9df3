"""T15: clocks that jump, stand still, differ between processes, and reach their edges.

A point is a walk of two processes of one host on one store: their wall clocks are set by an hour
either way, to 1970, to the edges of 32 and of 64 bits (2038, 2262), to the end of the year 9999,
through a leap second; time passes, the host reboots. In between they write, commit together, fork,
name, lease and claim. Whatever the clocks say: revisions, links and the order of commits are those
of the acknowledgements, a follower gets each event once and in order, a state by its revision is
the one that was written, times never fall within a stream, `at(datetime)` is the newest revision
at or before it, a lease ends by the boot clock, its holder's release or a reboot alone, and its
epochs grow.

On a server the clocks are those of two clients, and no time that is stored is ahead of the server's
by more than the bound (clause 22); it judges leases by its own, so they are not part of the walk.

Planted and found, on each backend: a merge in the order of time stamps, leases that end by the wall
clock, times that are stored as they come, leases that outlive a reboot (not in
memory, which ends with its process). On servers: times that nobody bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast import Settings
from holdfast.backends.files.disk import Disk
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import AHEAD_US, START, Lease
from holdfast.clock import SystemClock
from holdfast.core import log
from holdfast.core.event import to_datetime
from holdfast.core.log import Log
from holdfast.store import Store
from holdfast.testing import FakeClock
from tests.opening import store_of_log
from tests.servers.kinds import SERVERS, url_of
from tests.torture.programme import Broken, Point, Programme

HOUR_US = 3_600_000_000
LEAP_US = 1_483_228_800_000_000
"""The end of 2016, where a second was put in: clocks said 23:59:59 twice."""
EDGES = (
    *(0, 1, (1 << 31) * 1_000_000 - 1, (1 << 31) * 1_000_000, (1 << 32) * 1_000_000),
    *(LEAP_US - 1, LEAP_US - 1_000_000, LEAP_US, (1 << 53) - 1, (1 << 53) + 1),
    *((1 << 63) // 1000 - 1, (1 << 63) // 1000 + 1, 253_402_300_799_999_999),
)
STEPS = 40
TTL_S = 30.0
SCOPES = ("team/a", "team/b")


class HostClock(FakeClock):
    """The clock of one process: wall time of its own, boot time of its host."""

    def __init__(self, host: FakeClock, *, seed: int, plant: str) -> None:
        super().__init__(seed=seed)
        self._host = host
        self._plant = plant

    def boot_us(self) -> int:
        return self.now_us() if self._plant == "wall-clock-leases" else self._host.boot_us()

    def boot_id(self) -> str:
        return "boot" if self._plant == "boots-not-told-apart" else self._host.boot_id()


class UnsyncedDisk(Disk):
    """Nothing here loses power."""

    @staticmethod
    def sync(fd: int) -> None:
        pass

    def sync_directory(self, fd: int) -> None:
        pass


class Walk:
    """Two processes, what they did, and what must hold of it."""

    def __init__(self, kind: str, point: Point) -> None:
        self.kind = kind
        self.point = point
        self.chance = point.random
        self.host = FakeClock()
        self.clocks = [HostClock(self.host, seed=n, plant=point.plant) for n in (1, 2)]
        self._memory: MemoryBackend | None = None
        self.stores = [self._open(n) for n in (0, 1)]
        self.states: dict[str, list[dict[str, Any]]] = {}
        """Of each scope, the state at each revision."""
        self.commits: list[tuple[tuple[str, int], ...]] = []
        """What was acknowledged, in order."""
        self.held: tuple[int, Lease, int] | None = None
        """Whose lease it is, and the boot time at which it ends."""
        self.epoch = 0
        self.claimed_until = 0
        self.story: list[str] = []

    def _open(self, process: int) -> Store:
        clock = self.clocks[process]
        if self.kind == "memory":
            # All clocks of one memory are the same: it judges leases by that of the first.
            if self._memory is None:
                self._memory = MemoryBackend(clock=clock)
            backend_log = Log(self._memory, clock=clock, actor=f"w{process}")
            return store_of_log(backend_log, url="memory:", worker=f"w{process}")
        if self.kind == "files":
            url: Any = self.point.place / "store"
            return holdfast.open(
                url,
                durability="process",
                settings=Settings(clock=clock, options={"disk": UnsyncedDisk()}),
            )
        if self.kind in SERVERS:
            return holdfast.open(
                url_of(self.kind, self.point.place, "s"), settings=Settings(clock=clock)
            )
        return holdfast.open(
            f"sqlite:{self.point.place}/s.db", durability="none", settings=Settings(clock=clock)
        )

    # --- steps ---------------------------------------------------------------------------------

    def set_clock(self, process: int) -> None:
        clock = self.clocks[process]
        to = self.chance.choice((*EDGES, None, None, None, None))
        if to is None:
            to = max(0, clock.now_us() + self.chance.choice((-HOUR_US, HOUR_US, -1, -1_000_000)))
        clock.set(min(to, EDGES[-1]))
        self.story.append(f"clock {process} is set to {clock.now_us()}")

    def pass_time(self, process: int) -> None:
        seconds = self.chance.choice((0.000001, 1.0, 20.0, 40.0))
        self.host.advance(seconds)
        for clock in self.clocks:
            if clock.now_us() + seconds * 1_000_000 <= EDGES[-1]:
                clock.advance(seconds)
        self.story.append(f"{seconds} s pass")

    def write(self, process: int) -> None:
        scope = self.stores[process].scope(self.chance.choice(SCOPES))
        value = len(self.commits)
        checkpoint = self.chance.choice((None, None, "named"))
        revision = scope.set("n", value, checkpoint=checkpoint)
        self._wrote({scope.name: {"n": value}}, f"process {process} writes {value}")
        if revision != len(self.states[scope.name]):
            raise Broken(f"{scope.name} is at {revision}: expected {len(self.states[scope.name])}")

    def write_both(self, process: int) -> None:
        store, value = self.stores[process], len(self.commits)
        with store.commit() as tx:
            for name in SCOPES:
                tx.scope(store.scope(name)).set("n", value)
        states = {name: {"n": value} for name in SCOPES}
        self._wrote(states, f"process {process} writes both {value}")

    def fork(self, process: int) -> None:
        name = self.chance.choice(SCOPES)
        if not self.states.get(name):
            return
        at = self.chance.randint(1, len(self.states[name]))
        fork = self.stores[process].scope(name).fork(f"f{len(self.commits)}", at=at)
        inherited = self.states[name][:at]
        self.states[fork.name] = [*inherited, inherited[-1]]
        self.commits.append(((fork.name, at + 1),))
        self.story.append(f"process {process} forks {name} at {at}")

    def _wrote(self, states: dict[str, dict[str, Any]], what: str) -> None:
        for name, state in states.items():
            self.states.setdefault(name, []).append(state)
        self.commits.append(tuple((name, len(self.states[name])) for name in states))
        self.story.append(what)

    def lease(self, process: int) -> None:
        """Takes the lease if it is free, by the boot clock alone."""
        store = self.stores[process]
        is_free = self.held is None or self.host.boot_us() >= self.held[2]
        is_mine = not is_free and self.held is not None and self.held[0] == process
        lease = store._log._backend.leases.acquire("l", f"w{process}", ttl_s=TTL_S)
        self.story.append(f"process {process} asks for the lease and gets {lease}")
        if (lease is not None) != (is_free or is_mine):
            raise Broken(f"the lease was {'free' if is_free else 'held'}: found {lease}")
        if lease is None:
            return
        if is_free and lease.epoch <= self.epoch:
            raise Broken(f"epoch {lease.epoch} came after {self.epoch}: epochs grow")
        self.epoch = lease.epoch
        self.held = process, lease, self.host.boot_us() + round(TTL_S * 1_000_000)

    def write_fenced(self, process: int) -> None:
        if self.held is None:
            return
        owner, lease, ends_us = self.held
        store, value = self.stores[process], len(self.commits)
        try:
            with store.commit(lease=lease) as tx:
                tx.scope(store.scope(SCOPES[0])).set("n", value)
            was_written = True
        except holdfast.LeaseLostError:
            was_written = False
        what = f"process {process} writes {value} under the lease of {owner}"
        if was_written:
            self._wrote({SCOPES[0]: {"n": value}}, what)
        if was_written != (self.host.boot_us() < ends_us):
            raise Broken(f"{what}: found {'written' if was_written else 'refused'}")

    def give_back(self, process: int) -> None:
        if self.held is not None:
            self.stores[process]._log._backend.leases.release(self.held[1])
            self.story.append("the lease is given back")
            self.held = None
            # Other leases come and go: what is remembered of this one must not depend on them.
            for other in range(3):
                leases = self.stores[process]._log._backend.leases
                lease = leases.acquire(f"o{other}", f"w{process}", ttl_s=TTL_S)
                if lease is not None:
                    leases.release(lease)

    def claim(self, process: int) -> None:
        """A claimed mark stays claimed until the boot clock says otherwise."""
        store = self.stores[process]
        if not store.workers.marks("due"):
            with store.commit() as tx:
                tx.mark("due", "m")
            self.commits.append(())
        found = store._log._backend.marks.claim("due", f"w{process}", n=1, ttl_s=TTL_S)
        is_free = self.host.boot_us() >= self.claimed_until
        self.story.append(f"process {process} claims and gets {found}")
        if bool(found) != is_free:
            raise Broken(f"the mark was {'free' if is_free else 'claimed'}: found {found}")
        if found:
            self.claimed_until = self.host.boot_us() + round(TTL_S * 1_000_000)

    def reboot(self, process: int) -> None:
        """Both processes end, the boot clock begins again, leases and claims are free."""
        if self.kind == "memory" or self.chance.random() < 0.7:
            return
        for store in self.stores:
            store.close()
        self.host.reboot()
        self.held, self.claimed_until = None, 0
        self.stores = [self._open(n) for n in (0, 1)]
        self.story.append("the host reboots")

    # --- what must hold ------------------------------------------------------------------------

    def judge(self) -> None:
        for store in self.stores:
            report = store.check()
            if not report.ok:
                raise Broken(f"check finds {report.findings}")
            expected = [event for commit in self.commits for event in commit]
            seen = [
                (event.stream, event.revision)
                for event in store.follow(as_events=True, after=START, timeout_s=0)
            ]
            if seen != expected:
                raise Broken(f"events come in the order {seen}: expected {expected}")
            if self.kind in SERVERS:
                self._judge_times(store)
            for name, states in self.states.items():
                self._judge_scope(store, name, states)

    def _judge_times(self, store: Store) -> None:
        """The server is on this host, so this is its clock too."""
        latest_us = SystemClock().now_us() + AHEAD_US
        for event in store.follow(as_events=True, after=START, timeout_s=0):
            if event.record.time > latest_us:
                raise Broken(f"{event} has the time {event.time}, which is ahead of the server's")

    def _judge_scope(self, store: Store, name: str, states: list[dict[str, Any]]) -> None:
        scope = store.scope(name)
        events = list(scope.history())
        if [event.revision for event in events] != list(range(1, len(states) + 1)):
            raise Broken(f"{name} has the revisions {[event.revision for event in events]}")
        times = [event.time for event in events]
        if times != sorted(times):
            raise Broken(f"the times of {name} fall: {times}")
        for revision, state in enumerate(states, 1):
            if scope.at(revision) != state:
                raise Broken(f"{name} at {revision} is {scope.at(revision)}: expected {state}")
        for moment in {*times, *(to_datetime(edge) for edge in EDGES)}:
            newest = sum(time <= moment for time in times)
            if scope.life.revision_at(moment) != newest:
                found = scope.life.revision_at(moment)
                raise Broken(f"{name} at {moment} is revision {found}: expected {newest}")
        revisions = [change.revision for change in store.follow(name, after=0, timeout_s=0)]
        if revisions != sorted(set(revisions)):
            raise Broken(f"a follower of {name} got the revisions {revisions}")
        if scope.state != states[-1]:
            raise Broken(f"{name} is {scope.state}: expected {states[-1]}")


STEP_OF: tuple[tuple[Callable[[Walk, int], None], int], ...] = (
    (Walk.set_clock, 6),
    (Walk.pass_time, 2),
    (Walk.write, 6),
    (Walk.write_both, 2),
    (Walk.fork, 1),
    (Walk.lease, 4),
    (Walk.write_fenced, 2),
    (Walk.give_back, 1),
    (Walk.claim, 3),
    (Walk.reboot, 1),
)
OF_CLIENTS = (Walk.set_clock, Walk.pass_time, Walk.write, Walk.write_both, Walk.fork)


def trial(kind: str, point: Point) -> int:
    plants = {**PLANTS, **PLANTS_ON_SERVERS}
    with plants.get(point.plant, contextlib.nullcontext)():
        walk = Walk(kind, point)
        walked = [one for one in STEP_OF if kind not in SERVERS or one[0] in OF_CLIENTS]
        steps, weights = [step for step, _ in walked], [weight for _, weight in walked]
        try:
            for step in walk.chance.choices(steps, weights, k=STEPS):
                # One clock judges a memory, so only one process uses its leases.
                uses_leases = step in (Walk.lease, Walk.write_fenced, Walk.claim)
                is_first = kind == "memory" and uses_leases
                step(walk, 0 if is_first else walk.chance.randrange(2))
            walk.judge()
        except AssertionError as error:
            raise Broken(f"{error}\n  " + "\n  ".join(walk.story)) from error
        for store in walk.stores:
            store.close()
    return STEPS


# --- faults --------------------------------------------------------------------------------------


@contextlib.contextmanager
def merged_by_time() -> Iterator[None]:
    """Events of the whole store are handed out by their time stamps."""
    follow = Log.follow

    def by_time(self: Log, **options: Any) -> Iterator[Any]:
        yield from sorted(follow(self, **options), key=lambda record: record.time)

    Log.follow = by_time  # type: ignore[method-assign]
    try:
        yield
    finally:
        Log.follow = follow  # type: ignore[method-assign]


@contextlib.contextmanager
def times_as_they_come() -> Iterator[None]:
    """The writer's time is stored, though the stream has a later one."""
    base_of = Log._base

    def unmoved(self: Log, write: Any, overlay: Any) -> Any:
        return replace(base_of(self, write, overlay), time=0)

    Log._base = unmoved  # type: ignore[method-assign]
    try:
        yield
    finally:
        Log._base = base_of  # type: ignore[method-assign]


@contextlib.contextmanager
def times_unbounded() -> Iterator[None]:
    """A server takes whatever time a commit has."""
    commit = log.Commit
    log.Commit = partial(commit, is_copy=True)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        log.Commit = commit  # type: ignore[misc]


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "merged-by-time": merged_by_time,
    "times-as-they-come": times_as_they_come,
    "wall-clock-leases": contextlib.nullcontext,  # HostClock has it
    "boots-not-told-apart": contextlib.nullcontext,  # HostClock has it
}
PLANTS_ON_SERVERS = {"times-unbounded": times_unbounded}

PROGRAMMES = tuple(
    Programme(
        f"t15-{kind}",
        "order, links, time travel and leases do not depend on wall time",
        partial(trial, kind),
        share=share,
        points=share * 25,
        plants={
            plant: 40 for plant in PLANTS if (kind, plant) != ("memory", "boots-not-told-apart")
        },
    )
    for kind, share in (("memory", 150), ("files", 100), ("sqlite", 100))
) + tuple(
    Programme(
        f"t15-{kind}",
        "times are bounded by the server's clock, and nothing else depends on a client's",
        partial(trial, kind),
        share=20,
        points=500,
        plants=dict.fromkeys(PLANTS_ON_SERVERS, 10),
    )
    for kind in SERVERS
)
