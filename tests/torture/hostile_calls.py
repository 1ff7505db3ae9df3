"""Every way into the API that takes a name, a path, a value or a moment from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import Scope, Store, aio
from holdfast.backends.protocol import Lease
from holdfast.contrib.compat import GlobalStateManager, StateScope
from holdfast.core.listing import register_level
from holdfast.core.transaction import PendingCommit

Call = Callable[[Store, Any], Any]


def chat(store: Store) -> Scope:
    return store.conversation("c")


def both(store: Store, change: Callable[[PendingCommit], Any]) -> None:
    with store.commit() as tx:
        change(tx)


def edited(store: Store, change: Callable[[Any], Any]) -> None:
    with chat(store).edit() as draft:
        change(draft)


def asynchronously(store: Store, work: Callable[[aio.AsyncScope], Any]) -> Any:
    """Runs a call of the async skin over the same store, which stays open."""
    from concurrent.futures import ThreadPoolExecutor

    async def run() -> Any:
        with ThreadPoolExecutor(1) as executor:
            skin = aio.AsyncStore(store, executor)
            return await work(skin.conversation("c"))

    return asyncio.run(run())


def compatible(store: Store, work: Callable[[GlobalStateManager], Any]) -> Any:
    return work(GlobalStateManager(store))


NAMES: dict[str, Call] = {
    "store.team": lambda s, j: s.team(j).set("a", 1),
    "store.workflow": lambda s, j: s.workflow(j).append("a", 1),
    "store.conversation": lambda s, j: s.conversation(j).set("a", 1),
    "store.scope": lambda s, j: s.scope(j).set("a", 1),
    "store.scope level": lambda s, j: s.scope(j, "a").set("a", 1),
    "store.scopes": lambda s, j: list(s.scopes(j)),
    "register_level": lambda s, j: register_level(s._kernel, j, below="team"),
    "store.workers.lease": lambda s, j: s.workers.release(s.workers.lease(j)),
    "store.workers.release": lambda s, j: s.workers.release(
        Lease(f"{j!r:.90}", f"{j!r:.90}", 1, 0)
    ),
    "store.workers.claim": lambda s, j: s.workers.claim(j),
    "store.workers.marks": lambda s, j: s.workers.marks(j),
    "store.follow": lambda s, j: list(s.follow(j, timeout_s=0)),
    "store.check expect": lambda s, j: s.check(read_all=False, expect=j),
    "tx.mark index": lambda s, j: both(s, lambda tx: tx.mark(j, "k")),
    "tx.mark key": lambda s, j: both(s, lambda tx: tx.mark("i", j)),
    "tx.clear": lambda s, j: both(s, lambda tx: tx.clear(j, j)),
    "commit key": lambda s, j: chat(s).set("k", 1, key=j),
    "set checkpoint": lambda s, j: chat(s).set("k", 2, checkpoint=j),
    "checkpoint": lambda s, j: chat(s).checkpoint(j),
    "at": lambda s, j: chat(s).at(j),
    "diff": lambda s, j: chat(s).diff(j),
    "revision_of": lambda s, j: chat(s).life.revision_at(j),
    "restore": lambda s, j: chat(s).restore(j),
    "fork": lambda s, j: chat(s).fork(j),
    "compat team": lambda s, j: compatible(s, lambda m: m.get_team_state(j).set("a", 1)),
    "compat session": lambda s, j: compatible(s, lambda m: m.get_conversation_state(j).get("a")),
}

PATHS: dict[str, Call] = {
    "get": lambda s, j: chat(s).get(j),
    "get deep": lambda s, j: chat(s).get(("log", j)),
    "lookup": lambda s, j: chat(s).lookup(j),
    "set": lambda s, j: chat(s).set(j, 1),
    "set deep": lambda s, j: chat(s).set((j, j), 1),
    "delete": lambda s, j: chat(s).delete(j),
    "append": lambda s, j: chat(s).append(j, 1),
    "increment": lambda s, j: chat(s).increment(j),
    "scope[]": lambda s, j: chat(s).__setitem__(j, 1),
    "in scope": lambda s, j: j in chat(s),
    "draft[]": lambda s, j: edited(s, lambda d: d.__setitem__(j, 1)),
    "view.get": lambda s, j: s.view().get(chat(s), j),
    "aio get": lambda s, j: asynchronously(s, lambda c: c.get(j)),
    "compat set": lambda s, j: compatible(s, lambda m: m.get_global_state().set(j, 1)),
}

VALUES: dict[str, Call] = {
    "set": lambda s, j: chat(s).set("v", j),
    "update": lambda s, j: chat(s).update({"v": j}),
    "update with": lambda s, j: chat(s).update(j),
    "append": lambda s, j: chat(s).append("l", j),
    "append deep": lambda s, j: chat(s).append("l", {"a": [j]}),
    "increment": lambda s, j: chat(s).increment("n", j),
    "draft": lambda s, j: edited(s, lambda d: d.update(v=j)),
    "draft list": lambda s, j: edited(s, lambda d: d.setdefault("d", []).append(j)),
    "tx set": lambda s, j: both(s, lambda tx: tx.scope(chat(s)).set("v", j)),
    "expected": lambda s, j: chat(s).set("v", 1, expected=j),
    "parent": lambda s, j: s.conversation("p", parent=j),
    "moment": lambda s, j: chat(s).at(j),
    "aio set": lambda s, j: asynchronously(s, lambda c: c.set("v", j)),
    "compat update": lambda s, j: compatible(s, lambda m: m.get_global_state().update({"v": j})),
    "compat save": lambda s, j: compatible(
        s, lambda m: asyncio.run(m.save_checkpoint(StateScope.GLOBAL, j))
    ),
}
