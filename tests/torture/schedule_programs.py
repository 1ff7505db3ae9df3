"""The short programs that T10 schedules, and their serial outcomes.

A program is a few calls for each of two or three threads. What it may come to is found by running
its calls one after the other, in every order that keeps each thread's own, on a store in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import Lease, Position
from holdfast.errors import HoldfastError, UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock


class World:
    """The stores that a program works on: several handles of one place, or one for all."""

    def __init__(self, clock: FakeClock, opener: Callable[[], Store]) -> None:
        self.clock = clock
        self.stores: dict[int, Store] = {}
        self.closed: set[int] = set()
        self.leases: dict[str, Lease | None] = {}
        self.seen: dict[str, int] = {}
        self._opener = opener

    def open(self, handle: int) -> None:
        self.stores[handle] = self._opener()

    def store(self, handle: int) -> Store:
        return self.stores[handle]

    def close(self, handle: int) -> None:
        self.stores[handle].close()


class SerialWorld(World):
    """All handles are one store in memory; closing one only marks it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(
            clock, lambda: holdfast.open("memory:", actor="w", settings=Settings(clock=clock))
        )
        self._only = self._opener()

    def open(self, handle: int) -> None:
        self.stores[handle] = self._only
        self.closed.discard(handle)

    def store(self, handle: int) -> Store:
        if handle in self.closed:
            raise UsageError("store is closed")
        return self.stores[handle]

    def close(self, handle: int) -> None:
        self.closed.add(handle)


@dataclass(frozen=True)
class Call:
    """One call of a program; `do` gets the world and the thread's handle."""

    name: str
    do: Callable[[World, int], Any]

    def answer(self, world: World, handle: int) -> Any:
        """Returns what it returned, or the name of the error that it raised."""
        try:
            return self.do(world, handle)
        except HoldfastError as error:
            return type(error).__name__


@dataclass(frozen=True)
class Program:
    name: str
    setup: tuple[Call, ...]
    threads: tuple[tuple[Call, ...], ...]
    handles: int = 1
    """How many handles the threads share: thread n has handle n modulo this."""
    opens: bool = False
    """Whether the threads open their handles themselves."""
    no_timeout: bool = False
    """Whether every wait must end because it was woken (where waiting does not poll)."""
    background: int = 0
    """How many threads the library adds to them."""
    serial: dict[tuple[int, ...], tuple[Any, ...]] = field(default_factory=dict, compare=False)

    def outcomes(self) -> dict[tuple[int, ...], tuple[Any, ...]]:
        """Returns answers and final content by order; an order lists whose call comes next."""
        if not self.serial:
            sizes = [len(calls) for calls in self.threads]
            self.serial.update({order: self._outcome(order) for order in orders(sizes)})
        return self.serial

    def _outcome(self, order: Sequence[int]) -> tuple[Any, ...]:
        world = SerialWorld(FakeClock())
        prepare(self, world)
        answers: list[list[Any]] = [[] for _ in self.threads]
        for thread in order:
            call = self.threads[thread][len(answers[thread])]
            answers[thread].append(call.answer(world, thread % self.handles))
        return tuple(tuple(found) for found in answers), content(world._only)


def prepare(program: Program, world: World) -> None:
    """Opens the handles and does what comes before the threads."""
    if not program.opens:
        for handle in range(program.handles):
            world.open(handle)
    for call in program.setup:
        call.do(world, 0)


def orders(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields every order of the threads' calls."""
    if not any(sizes):
        yield ()
    for thread, size in enumerate(sizes):
        if size:
            rest = [*sizes]
            rest[thread] -= 1
            for order in orders(rest):
                yield thread, *order


def content(store: Store) -> tuple[Any, ...]:
    """Returns everything that a store holds, but positions and epochs, in the order of commit."""
    backend = store._log._backend
    records = backend.read_all(limit=100_000)
    events = tuple(
        (r.stream, r.revision, r.type, r.payload, r.key, r.checkpoint, r.link) for r in records
    )
    marks = tuple((mark.index, mark.key, mark.priority) for mark in backend.marks.list())
    return events, marks


# --- calls -------------------------------------------------------------------------------------


def put(scope: str, key: str, value: Any, **guards: Any) -> Call:
    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).set(key, value, **guards)

    return Call(f"{scope}.set({key}, {value}, {guards})", do)


def add(scope: str, key: str | None = None) -> Call:
    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).increment("n", 1, key=key)

    return Call(f"{scope}.increment(key={key})", do)


def look(scope: str, who: str) -> Call:
    """The first half of a guarded write: what it reads."""

    def do(world: World, handle: int) -> Any:
        world.seen[who] = world.store(handle).scope(scope).revision
        return world.seen[who]

    return Call(f"{who} looks at {scope}", do)


def swap(scope: str, who: str) -> Call:
    """The second half: it must be refused if anybody wrote in between."""

    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).set("by", who, expected=world.seen[who])

    return Call(f"{who} swaps {scope}", do)


def see(scope: str) -> Call:
    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).state.to_dict()

    return Call(f"{scope}.state", do)


def both(*scopes: str, value: int) -> Call:
    def do(world: World, handle: int) -> Any:
        store = world.store(handle)
        with store.commit() as tx:
            for scope in scopes:
                tx.scope(store.scope(scope)).set("n", value)

    return Call(f"commit({', '.join(scopes)} = {value})", do)


def view(*scopes: str) -> Call:
    def do(world: World, handle: int) -> Any:
        store = world.store(handle)
        seen = store.view()
        return [seen.get(store.scope(scope), "n") for scope in scopes]

    return Call(f"view({', '.join(scopes)})", do)


def fork(scope: str, name: str, who: str) -> Call:
    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).fork(name, at=world.seen[who]).name

    return Call(f"{scope}.fork({name})", do)


def restore(scope: str, revision: int) -> Call:
    def do(world: World, handle: int) -> Any:
        return world.store(handle).scope(scope).restore(revision)

    return Call(f"{scope}.restore({revision})", do)


def mark(key: str) -> Call:
    def do(world: World, handle: int) -> Any:
        with world.store(handle).commit() as tx:
            tx.mark("due", key)

    return Call(f"mark({key})", do)


def claim(owner: str) -> Call:
    def do(world: World, handle: int) -> Any:
        marks = world.store(handle)._log._backend.marks
        return [found.key for found in marks.claim("due", owner, n=1, ttl_s=30)]

    return Call(f"claim by {owner}", do)


def unclaim(key: str, owner: str) -> Call:
    def do(world: World, handle: int) -> Any:
        world.store(handle)._log._backend.marks.release("due", key, owner)

    return Call(f"unclaim {key} by {owner}", do)


def take(owner: str) -> Call:
    def do(world: World, handle: int) -> Any:
        leases = world.store(handle)._log._backend.leases
        world.leases[owner] = leases.acquire("l", owner, ttl_s=30)
        return world.leases[owner] is not None

    return Call(f"lease to {owner}", do)


def give_back(owner: str) -> Call:
    def do(world: World, handle: int) -> Any:
        lease = world.leases[owner]
        if lease is not None:
            world.store(handle)._log._backend.leases.release(lease)

    return Call(f"lease back from {owner}", do)


def pass_time(seconds: float) -> Call:
    return Call(f"{seconds} s pass", lambda world, handle: world.clock.advance(seconds))


def fenced(scope: str, owner: str) -> Call:
    def do(world: World, handle: int) -> Any:
        store, lease = world.store(handle), world.leases[owner]
        if lease is None:
            return "no lease"
        with store.commit(lease=lease) as tx:
            tx.scope(store.scope(scope)).set("by", owner)
        return "written"

    return Call(f"{scope}.set(by) under the lease of {owner}", do)


def submit(scope: str, value: int) -> Call:
    def do(world: World, handle: int) -> Any:
        store = world.store(handle)
        with store.commit(waits=False) as tx:
            tx.scope(store.scope(scope)).append("list", value)
        return len(tx.wait().after)

    return Call(f"submit({scope}.append({value})).wait", do)


def wait_for_news() -> Call:
    def do(world: World, handle: int) -> Any:
        store = world.store(handle)
        # In a serial order nobody could come while it waits: it only says what it would say.
        is_serial = isinstance(world, SerialWorld)
        return is_serial or store._log._backend.wait(Position(1), timeout_s=3600) > 1

    return Call("wait behind position 1", do)


def close() -> Call:
    return Call("close", lambda world, handle: world.close(handle))


def reopen() -> Call:
    return Call("open", lambda world, handle: world.open(handle))


# --- programs ----------------------------------------------------------------------------------


A, B = "team/a", "team/b"
_TWO = (put(A, "n", 1), put(B, "n", 1))

SHARED = (
    Program(
        "take-over",  # of different scopes: a conflict would have the fence looked at again
        (take("x"),),
        ((fenced(A, "x"),), (give_back("x"), take("y"), fenced(B, "y"))),
    ),
    Program("claims", (mark("m"),), ((claim("x"),) * 2, (claim("y"),) * 2)),
    Program("appends", (put(A, "n", 0),), ((put(A, "x", 1, expected=1),) * 2,) * 2),
    Program("blind", (), ((put(A, "x", 1), put(A, "y", 1)), (put(A, "x", 2), see(A)))),
    Program(
        "swap", (put(A, "n", 0),), ((look(A, "x"), swap(A, "x")), (look(A, "y"), swap(A, "y")))
    ),
    Program("both", _TWO, ((both(A, B, value=2),), (put(A, "n", 3), put(B, "n", 3)))),
    Program("view", _TWO, ((both(A, B, value=2),), (both(B, A, value=3),), (view(A, B),))),
    Program("once", (), ((add(A, "k"), see(A)), (add(A, "k"), see(A)))),
    Program(
        "lease",
        (take("x"),),
        ((fenced(A, "x"), fenced(A, "x")), (pass_time(60), take("y"), fenced(A, "y"))),
    ),
    Program(
        "fork",
        (put(A, "n", 1),),
        ((look(A, "x"), fork(A, "f", "x"), add("team/f")), (add(A), see(A))),
    ),
    Program("claim", (mark("m"),), ((claim("x"), unclaim("m", "x")), (claim("y"), mark("m")))),
    Program("restore", (put(A, "n", 1), add(A)), ((restore(A, 1), see(A)), (add(A), add(A)))),
    Program("three", (), ((add(A),), (add(A), see(A)), (add(A),))),
)
"""Programs for one handle or several."""

ONE_HANDLE = (
    Program("close", (put(A, "n", 1),), ((add(A), add(A)), (close(),))),
    Program("submit", (), ((submit(A, 1), submit(A, 2)), (submit(A, 3), see(A))), background=1),
    Program("news", (put(A, "n", 1),), ((add(A), add(A)), (wait_for_news(),)), no_timeout=True),
)
"""Programs for threads that share a handle."""

TWO_HANDLES = (
    Program("leave", (put(A, "n", 1),), ((add(A), close()), (see(A), add(A), close())), handles=2),
    Program(
        "openers",
        (),
        ((reopen(), add(A), close()), (reopen(), add(A), see(A))),
        handles=2,
        opens=True,
    ),
    Program(
        "come and go",
        (reopen(), put(A, "n", 1), close()),
        ((reopen(), add(A), close()), (reopen(), add(A), close())),
        handles=2,
        opens=True,
    ),
)
"""Programs for handles of one place."""
