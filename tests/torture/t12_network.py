"""T12: a network that fails; every call returns in its time, and says whether its outcome is known.

One point is one store on a real server behind a network of our own on loopback, and one fault:

    a wire   cut, reset, dark, dark and late, slow or trickling, behind a byte of the request or of
             the answer that chance chooses: in the handshake of a new connection, at its borders,
             in the middle, in what follows (tests/servers/wire.py)
    open     the same while a store is opened
    frozen   the server hangs, for a connection that is there or a new one
    killed   the server dies in the middle and comes back
    pool     the server hangs, and more threads call than there are connections

A watchdog sees to it that each call returns. Behind the fault a client that goes another way looks
at what is there: once what was acknowledged, nothing of what is known to have failed, all or
nothing and never twice of what is unknown; what has a key is then repeated until it is known, and
is there once. At last the first client goes on as if nothing had been.

Planted faults: network_plants.py. Where there is root, t12_links.py takes real links away.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast import Store, UnavailableError
from holdfast.backends.registry import open_backend
from holdfast.clock import SystemClock
from holdfast.core.log import Log
from tests.opening import store_of_log
from tests.servers.wire import DARK, KINDS, Fault, Wire
from tests.torture import network_plants
from tests.torture.network_calls import (
    CALLS,
    LISTS,
    WRITES,
    Caller,
    drop_lines,
    watched,
)
from tests.torture.programme import Broken, Point, Programme
from tests.torture.servers_clients import lists
from tests.torture.servers_judge import judge_rest, judge_words
from tests.torture.t2_servers import Server, server

SHORT_S, LONG_S = 1.0, 30.0
DELAY_S = 0.2
THREADS, POOL = 6, 2
SCENES = ("wire",) * 12 + ("open", "open", "frozen", "killed", "pool")


class Run:
    """One store and one fault."""

    def __init__(self, point: Point, kind: str, running: Server) -> None:
        self.random = point.random
        self.plant = network_plants.PLANTS.get(point.plant, network_plants.NONE)
        self.plant.plant(kind)
        self.server = running
        self.application = f"t12-{point.seed}-{point.number}-{os.getpid()}"
        # By the server's Unix socket: no network between.
        self.direct = self.open(self.server.url(**self.options(LONG_S)))
        self.said: dict[int, dict[str, Any]] = {}
        self.what = ""

    def options(self, timeout_s: float, **more: int) -> dict[str, Any]:
        return {"application": self.application, "timeout": timeout_s, **more}

    def open(self, url: str) -> Store:
        clock = SystemClock()
        options = {"durability": "full", "create": True, "read_only": False}
        backend, _ = open_backend(url, clock=clock, **options)
        return store_of_log(Log(backend, clock=clock, actor="t12"), url=url, worker="t12")

    def caller(self, port: int, timeout_s: float, **more: int) -> Caller:
        """Returns a caller whose lists are there."""
        url = self.server.tcp_url(port=port, **self.options(timeout_s, **more))
        caller = Caller(self.open(url), timeout_s)
        caller.write(1, LISTS, keyed=True)
        caller.forgets_keys = self.plant.forgets_keys
        return caller

    # --- scenes ------------------------------------------------------------------------------

    def wire(self) -> int:
        kind, way = (
            self.random.choice(self.plant.kinds or KINDS),
            self.random.choice(("request", "reply")),
        )
        name = self.random.choice(self.plant.calls or (*WRITES, *CALLS))
        is_new = self.random.random() < 0.4
        timeout_s = SHORT_S if kind in (*DARK, "trickle") else LONG_S
        with Wire(self.server.port) as wire:
            caller = self.caller(wire.port, timeout_s)
            sizes = self._measure(wire, caller, name, is_new)
            after = self._place(sizes[way])
            fault = Fault(kind, way, after, DELAY_S)
            connection = "a new connection" if is_new else "a connection that was there"
            self.what = f"{name} on {connection}, {kind} behind byte {after} of the {way}"
            self.what += f" (it has {sizes[way]})"
            if is_new:
                drop_lines(caller.store)
            wire.arm(fault)
            error = watched(partial(CALLS[name], caller, 3), timeout_s, self.what)
            if error is not None and kind == "delay":
                raise Broken(f"{self.what}: expected an answer, found {error!r}")
            wire.heal()
            return self.settle(caller)

    def _fault(self) -> tuple[str, str]:
        kinds = self.plant.kinds or KINDS
        return self.random.choice(kinds), self.random.choice(("request", "reply"))

    def _measure(self, wire: Wire, caller: Caller, name: str, is_new: bool) -> dict[str, int]:
        """Returns how many bytes such a call sends and gets."""
        if is_new:
            drop_lines(caller.store)
        wire.arm(None)
        CALLS[name](caller, 2)
        sizes = wire.passed
        wire.heal()
        return sizes

    def _place(self, size: int) -> int:
        """Returns where to strike: at a border, near one, anywhere, or in what comes behind."""
        borders = (0, 1, 4, 5, size // 2, size - 1, size)
        anywhere = self.random.randint(0, size), self.random.randint(0, 2 * size)
        return max(0, self.random.choice((*borders, *anywhere)))

    def opening(self) -> int:
        kind, way = (
            self.random.choice(self.plant.kinds or KINDS),
            self.random.choice(("request", "reply")),
        )
        timeout_s = SHORT_S if kind in (*DARK, "trickle") else LONG_S
        with Wire(self.server.port) as wire:
            url = self.server.tcp_url(port=wire.port, **self.options(timeout_s))
            wire.arm(None)
            self.open(url).close()
            fault = Fault(kind, way, self._place(wire.passed[way]), DELAY_S)
            self.what = f"opening, {fault}, of {wire.passed[way]}"
            wire.arm(fault)
            watched(lambda: self.open(url).close(), timeout_s, self.what)
            wire.heal()
            caller = self.caller(wire.port, LONG_S)
            return self.settle(caller)

    def frozen(self) -> int:
        name = self.random.choice(tuple(CALLS))
        caller = self.caller(self.server.port, SHORT_S)
        self.what = f"{name} of a server that hangs"
        if self.random.random() < 0.5:
            drop_lines(caller.store)
            self.what += ", on a new connection"
        self.server.freeze()
        try:
            error = watched(partial(CALLS[name], caller, 3), SHORT_S, self.what)
        finally:
            self.server.thaw()
        if error is None:
            raise Broken(f"{self.what}: answered")
        return self.settle(caller)

    def killed(self) -> int:
        self.what = "a server that is killed and comes back"
        caller = self.caller(self.server.port, LONG_S)
        hasty = self.caller(self.server.port, SHORT_S)
        moment = self.random.random() * 0.05

        def die() -> None:
            time.sleep(moment)
            self.server.kill()
            self.server.start()

        death = threading.Thread(target=die)
        death.start()
        value = 10
        while death.is_alive():
            name = self.random.choice(WRITES)
            for one, number in ((caller, value), (hasty, value + 1)):
                error = watched(partial(CALLS[name], one, number), one.timeout_s, self.what)
                if error is not None and one is caller:
                    raise Broken(f"{self.what}: there was time, and yet {error!r}")
            value += 2
        caller.said |= hasty.said
        hasty.store.close()
        return self.settle(caller)

    def pool(self) -> int:
        self.what = f"{THREADS} threads, {POOL} connections, a server that hangs"
        caller = self.caller(self.server.port, SHORT_S, pool=POOL)
        errors: list[UnavailableError | BaseException | None] = []

        def call(number: int) -> None:
            try:
                errors.append(watched(partial(CALLS["append"], caller, number), SHORT_S, self.what))
            except BaseException as exc:
                errors.append(exc)

        self.server.freeze()
        threads = [threading.Thread(target=call, args=(10 + n,)) for n in range(THREADS)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self.server.thaw()
        for error in errors:
            if error is not None and not isinstance(error, UnavailableError):
                raise error
        if None in errors:
            raise Broken(f"{self.what}: answered")
        return self.settle(caller)

    # --- what is there -----------------------------------------------------------------------

    def settle(self, caller: Caller) -> int:
        """Looks, repeats what has a key, looks again; returns how many cases that were."""
        self._look(caller)
        unknown = [word for word in caller.said.values() if word["said"] == "unknown"]
        for word in unknown:
            if word["keyed"]:
                self._repeat(caller, word["value"], word["streams"])
        self._repeat(caller, 1_000, LISTS)
        self._look(caller)
        caller.store.close()
        return len(caller.said)

    def _repeat(self, caller: Caller, value: int, streams: tuple[str, ...]) -> None:
        """Writes until it is done; the network is sound, so that a few times must do."""
        for _ in range(5):
            try:
                caller.write(value, streams, keyed=True)
            except UnavailableError:
                continue
            return
        raise Broken(f"{self.what}: the network is sound again, and {value} cannot be written")

    def _look(self, caller: Caller) -> None:
        found = lists(self.direct)
        gone = judge_words(caller.said.values(), found)
        if gone:
            raise Broken(f"acknowledged and gone: {gone}")
        judge_rest(self.direct, set(caller.said), found)


def fail(kind: str, point: Point) -> int:
    """One store, one fault."""
    run = Run(point, kind, server(kind, point.number, ()))
    scenes: dict[str, Callable[[], int]] = {
        "wire": run.wire,
        "open": run.opening,
        "frozen": run.frozen,
        "killed": run.killed,
        "pool": run.pool,
    }
    names = run.plant.scenes or SCENES
    try:
        return scenes[names[point.number % len(names)]]()
    except Broken as exc:
        if run.what in str(exc):
            raise
        raise Broken(f"{run.what}: {exc}") from exc
    finally:
        run.direct.close()


PROGRAMMES = tuple(
    Programme(
        f"t12-{kind}",
        "a call returns in its time and says whether its outcome is known; nothing is doubled",
        partial(fail, kind),
        share=34,
        points=1020,
        plants=network_plants.plants_of(f"t12-{kind}"),
    )
    for kind in ("postgresql", "redis")
)
