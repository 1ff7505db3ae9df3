"""Calls of one store, each interrupted once by a real signal, and the truth looked at after each.

A process of its own: only the main thread gets signals, and a hang must be somebody else's to see.
It prints how many calls it has interrupted. A promise that was broken is an AssertionError; a hang
ends the process after a while, with the stack of every thread.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import patch

import holdfast
from holdfast.core.commit_queue import CommitQueue
from tests.interrupting import Interrupter

PATIENCE_S = 30.0
"""How long a call may take before it counts as one that hangs."""
KINDS = ("commit", "joint", "submit", "read", "follow", "lease", "blob", "neighbours", "close")
WRITES = ("commit", "joint", "submit", "blob", "neighbours")


class World:
    """A store whose calls are interrupted, and another handle on it that must not notice."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_kept = not url.startswith("memory:")
        self.threads = ThreadPoolExecutor(1)
        self.told: list[str] = []
        self.tried: list[str] = []
        self.cases = 0
        self.open()
        self.other = holdfast.open(url) if self.is_kept else self.store

    def open(self) -> None:
        """Opens the store that is interrupted, anew where it is kept."""
        self.store = holdfast.open(self.url)

    def call(self, kind: str, key: str) -> Callable[[], object]:
        """Returns a call of that kind, which writes a text once however often it is repeated."""
        store, red = self.store, self.store.team("red")

        def joint() -> None:
            with store.commit(key=key) as tx:
                tx.scope(red).append("list", key)
                tx.scope(store.team("green")).set("newest", key)

        def submit() -> None:
            with store.commit(waits=False, key=key) as tx:
                tx.scope(red).append("list", key)
            tx.wait()

        def lease() -> None:
            lease = store.workers.lease(f"lease-{key}")
            store.workers.renew(lease)
            store.workers.release(lease)

        def blob() -> None:
            with store.commit(key=key) as tx:
                tx.scope(red).append("list", key)
                tx.scope(store.team("big")).set("newest", key.ljust(70_000, "x"))

        return {
            "commit": lambda: red.append("list", key, key=key),
            "neighbours": lambda: red.append("list", key, key=key),
            "joint": joint,
            "submit": submit,
            "blob": blob,
            "read": lambda: (red.get("list"), list(red.history()), red.checkpoints()),
            "follow": lambda: list(
                store.follow(as_events=True, after=store.position, timeout_s=0.01)
            ),
            "lease": lease,
        }[kind]

    def interrupt(self, kind: str, at: int) -> bool:
        """Interrupts a call at its nth place, and looks; False if it has fewer places."""
        key = f"{kind}-{at}-{self.cases}"
        interrupter = Interrupter(at)
        self.cases += 1
        if kind in WRITES:
            self.tried.append(key)
        is_told = False
        try:
            interrupter(self.call(kind, key))
            is_told = True
        except KeyboardInterrupt:
            pass
        self.look(kind, key, is_told, interrupter.where)
        return bool(interrupter.where)

    def look(self, kind: str, key: str, is_told: bool, where: str) -> None:
        """What was told is there, once; what was not is there once after it is repeated."""
        self.threads.submit(self.write_elsewhere, key).result(PATIENCE_S)
        if kind not in WRITES:
            return
        found, elsewhere = self.count(self.store, key), self.count(self.other, key)
        if kind == "neighbours" and not is_told and (found, elsewhere) == (0, 1):
            found = 1  # another thread led it, and was at work on it between the two looks
        assert found == elsewhere, f"two truths of {key} after {where}"
        assert found == 1 or (found == 0 and not is_told), f"{key}: {found} after {where}"
        self.call(kind, key)()
        assert self.count(self.store, key) == 1, f"{key} was not written once after {where}"
        self.told.append(key)

    def write_elsewhere(self, key: str) -> None:
        self.other.team("blue").set("newest", key)

    @staticmethod
    def count(store: Any, key: str) -> int:
        return sum(text == key for text in store.team("red").get("list", ()))

    def interrupt_close(self, at: int) -> bool:
        """Interrupts a close, closes again, and goes on with what is there."""
        interrupter = Interrupter(at)
        self.cases += 1
        with suppress(KeyboardInterrupt):
            interrupter(self.store.close)
        self.store.close()
        if self.is_kept:
            self.threads.submit(self.write_elsewhere, f"close-{at}").result(PATIENCE_S)
            self.open()
            self.settle()
        else:
            self.store = self.other = holdfast.open(self.url)
            self.told.clear()
        return bool(interrupter.where)

    def settle(self) -> None:
        """Everything that was told is there, once, and the store is sound."""
        texts = list(self.store.team("red").get("list", ()))
        assert len(set(texts)) == len(texts), "something is there twice"
        assert set(self.told) <= set(texts), "something that was told is gone"
        assert set(texts) <= set(self.tried), "something is there that nobody wrote"

    @contextmanager
    def neighbours(self, count: int) -> Iterator[None]:
        """Has other threads commit through the same store: they are led, and lead."""
        is_over = threading.Event()
        wrong: list[BaseException] = []

        def write(name: str) -> None:
            try:
                while not is_over.is_set():
                    try:
                        self.store.team("brown").increment(name)
                    except holdfast.UnavailableError as error:
                        if error.outcome_known:
                            raise
            except BaseException as error:
                wrong.append(error)

        threads = [
            threading.Thread(target=write, args=(f"n{n}",), daemon=True) for n in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert not wrong, wrong
        assert not any(thread.is_alive() for thread in threads), "a neighbour waits for ever"


def no_recovery() -> AbstractContextManager[object]:
    """Who leaves the queue by an exception leaves it as it is, as the queue once did."""
    return patch.object(CommitQueue, "_recover", lambda *_, **__: None)


PLANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "": nullcontext,
    "no-recovery": no_recovery,
}


def main(url: str, first: int, step: int, plant: str) -> None:
    """Interrupts every call at its places `first`, `first + step`, … and prints how many."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world = World(url)
    with PLANTS[plant]():
        for kind in KINDS:
            if kind != "close":
                world.tried.append(f"warm-{kind}")
                world.call(kind, f"warm-{kind}")()
            with world.neighbours(2) if kind == "neighbours" else nullcontext():
                at = first
                while True:
                    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
                    is_one = (
                        world.interrupt_close(at) if kind == "close" else world.interrupt(kind, at)
                    )
                    faulthandler.cancel_dump_traceback_later()
                    if not is_one:
                        break
                    at += step
    if world.is_kept:
        world.settle()
        wrong = [one for one in world.store.check().findings if not one.harmless]
        assert not wrong, wrong
    print(world.cases)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
