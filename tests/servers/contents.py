"""A store that holds everything there is, and a seeded random one: what copies are made of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from holdfast import Store
from holdfast.backends.protocol import Backend
from holdfast.errors import HoldfastError

LARGE = "groß " * 20_000
NAMES = ("red", "é/%", "日本 _*?", "..", "a" * 200, "\U0001f600")


def fill(store: Store) -> None:
    """Writes every kind of event, name, value, key, mark and lease."""
    team = store.team("red")
    for number, name in enumerate(NAMES):
        scope = store.conversation(name, parent=team)
        scope.set("text", f"{name} \ud800 \u2028")
        scope.update({"n": number, "bytes": b"\x00\xff", "big": 1 << 80, "nested": {"list": [1]}})
        scope.append(("nested", "list"), {"x": None}, key=f"key {name}")
        scope.checkpoint(f"point {name}")
    chat = store.conversation("red")
    chat.set("large", LARGE)
    for number in range(30):
        chat.set(f"part{number}", "x" * 9_000)  # enough for a snapshot
    chat.set("large", LARGE + "more")
    chat.checkpoint("before")
    chat.restore(3)
    fork = chat.fork("fork", at="before")
    fork.set("of", "red")
    fork.fork("fork of fork").set("of", "fork")
    with store.commit(key="both") as tx:
        tx.scope(store.conversation("é/%")).increment("n", 2)
        tx.scope(chat).set("stage", "done")
        tx.mark("todo", "conversation/red", priority=3)
        tx.mark("todo", "second", due=1)
    with store.commit() as tx:
        tx.mark("timer", "alone", due=1 << 60)
        tx.mark("timer", "gone")
    with store.commit() as tx:
        tx.clear("timer", "gone")
    store.workers.claim("todo")
    store.workers.release(store.workers.lease("conversation/red"))
    store.workers.lease("nightly")
    closed = store.workflow("closed")
    closed.set("a", 1)
    closed.close()
    dropped = store.workflow("dropped")
    dropped.set("a", 1)
    dropped.close(keep=False)
    store.global_().set("version", 1)


def fill_by_chance(store: Store, chance: random.Random, *, steps: int = 120) -> None:
    """Does `steps` random things to ten scopes."""
    scopes = [store.conversation(f"c{number}") for number in range(8)]
    scopes += [store.team("t"), store.global_()]
    for step in range(steps):
        scope = chance.choice(scopes)
        try:
            match chance.randrange(12):
                case 0:
                    scope.checkpoint(f"p{chance.randrange(5)}")
                case 1:
                    scope.restore(chance.randrange(1, 9))
                case 2:
                    scopes.append(scope.fork(f"f{step}", at=chance.randrange(1, 9)))
                case 3:
                    scope.set("large", f"{chance.randrange(4)}" * 70_000)
                case 4:
                    scope.append("list", step, key=f"k{chance.randrange(20)}")
                case 5:
                    with store.commit() as tx:
                        for one in chance.sample(scopes[:8], 3):
                            tx.scope(one).set("together", step)
                        tx.mark("todo", f"m{chance.randrange(9)}", due=step)
                case 6:
                    with store.commit() as tx:
                        tx.clear("todo", f"m{chance.randrange(9)}")
                case 7 if step > steps - 20:
                    scope.close(keep=chance.random() < 0.5)
                case _:
                    scope.set(f"k{chance.randrange(6)}", chance.randbytes(chance.randrange(2_000)))
        except HoldfastError:
            continue  # closed, or no such revision: an answer too


def logical(backend: Backend) -> Iterator[Any]:
    """Yields all that a copy must have, in an order that does not depend on the backend."""
    after = ""
    while names := backend.streams(after=after):
        for name in names:
            for record in backend.read(name):
                fields = (record.stream, record.revision, record.time, record.type, record.actor)
                yield *fields, record.payload, record.link, record.key, record.checkpoint
                if record.key is not None:
                    assert backend.find(name, key=record.key)[0].revision == record.revision
            yield name, backend.find(name)
        after = names[-1]
    yield sorted((mark.index, mark.key, mark.due) for mark in backend.marks.list(limit=10_000))
