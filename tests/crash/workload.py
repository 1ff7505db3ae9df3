"""What a child process does until it is killed: a seeded stream of operations of every kind.

Each operation has an id that is found again in every event that it writes. The child writes a line
to a pipe before it begins an operation, and another only after the call has returned. A line is
shorter than PIPE_BUF, so several threads write to one pipe without mixing.
"""

from __future__ import annotations

import json
import os
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import Store
from holdfast.core.transaction import PendingCommit

SCOPES = ("conversation/a", "conversation/b", "team/t", "workflow/w", "global")
UNDONE = "workflow/undone"
TODO = "todo"
BULK_BYTES = 30_000
LARGE_BYTES = 600_000

is_early = False
"""Whether operations are acknowledged before they are done; for proving the harness."""


class Plan(NamedTuple):
    """What one child does."""

    url: str
    seed: int
    who: str  # the beginning of its ids, unique in the trial
    threads: int = 1
    operations: int = 1000


def run(store: Store, plan: Plan, pipe: int, stop: int | None = None) -> None:
    """Works until the operations are done, or until `stop` is closed by the parent."""
    if plan.threads == 1:
        Worker(store, plan, 0, pipe, stop).work()
        return
    workers = [Worker(store, plan, n, pipe, stop) for n in range(plan.threads)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        if worker.trouble is not None:
            raise worker.trouble


def say(pipe: int, **what: Any) -> None:
    """Writes one line to the parent, and when that was."""
    os.write(pipe, json.dumps({**what, "at": time.monotonic()}).encode() + b"\n")


class Worker:
    """A seeded stream of operations, and each kind of them by itself."""

    def __init__(self, store: Store, plan: Plan, thread: int, pipe: int, stop: int | None) -> None:
        self.store = store
        self._plan = plan
        self._prefix = f"op:{plan.who}.{thread}"
        self._thread = thread
        self._random = random.Random(f"{plan.seed} {plan.who} {thread}")
        self._pipe = pipe
        self._stop = stop
        self._count = 0
        self._forks: list[str] = []
        self._kinds, self._weights = zip(*self._mix(), strict=True)
        self.trouble: BaseException | None = None

    def _mix(self) -> list[tuple[Callable[[str], None], int]]:
        return [
            (self.append, 8),
            (self.set, 4),
            (self.together, 8),
            (self.checkpointed, 4),
            (self.checkpoint, 2),
            (self.keyed, 5),
            (self.keyed_together, 3),
            (self.edit, 4),
            (self.fork, 2),
            (self.in_fork, 3),
            (self.submit, 3),
            (self.undo, 1),
            (self.bulk, 3),
            (self.blob, 1),
            (self.large, 1),
        ]

    def work(self) -> None:
        try:
            while self._count < self._plan.operations and not self._is_told_to_stop():
                [kind] = self._random.choices(self._kinds, self._weights)
                kind(self.next_id())
        except BaseException as trouble:
            self.trouble = trouble
            if self._plan.threads == 1:
                raise

    def _is_told_to_stop(self) -> bool:
        return self._stop is not None and bool(select.select([self._stop], [], [], 0)[0])

    def next_id(self) -> str:
        self._count += 1
        return f"{self._prefix}.{self._count}"

    def _begin(self, id: str, *streams: str, key: bool = False, mark: bool = False) -> None:
        say(self._pipe, begun=id, streams=streams, thread=self._prefix, key=key, mark=mark)
        if is_early:
            say(self._pipe, done=id)

    def _done(self, id: str) -> None:
        say(self._pipe, done=id)

    def _name(self) -> str:
        return self._random.choice(SCOPES)

    # --- kinds of operations ---------------------------------------------------------------------

    def append(self, id: str) -> None:
        self.append_to(self._name(), id)

    def append_to(self, name: str, id: str) -> None:
        self._begin(id, name)
        self.store.scope(name).append("log", id)
        self._done(id)

    def set(self, id: str) -> None:
        name = self._name()
        self._begin(id, name)
        self.store.scope(name).set(f"k{self._random.randrange(20)}", id)
        self._done(id)

    def together(self, id: str) -> None:
        names = self._random.sample(SCOPES, self._random.randint(2, 3))
        mark = self._random.random() < 0.5
        self._begin(id, *names, mark=mark)
        with self.store.commit() as tx:
            self._add(tx, names, id)
            if mark:
                tx.mark(TODO, id)
        self._done(id)

    def keyed_together(self, id: str) -> None:
        names = self._random.sample(SCOPES, 2)
        self._begin(id, *names, key=True)
        with self.store.commit(key=id) as tx:
            self._add(tx, names, id)
        self._done(id)

    def _add(self, tx: PendingCommit, names: list[str], id: str) -> None:
        for name in names:
            tx.scope(self.store.scope(name)).append("log", id)

    def checkpointed(self, id: str) -> None:
        name = self._name()
        self._begin(id, name)
        self.store.scope(name).append("log", id, checkpoint=id)
        self._done(id)

    def checkpoint(self, id: str) -> None:
        name = self._name()
        self._begin(id, name)
        self.store.scope(name).checkpoint(id)
        self._done(id)

    def keyed(self, id: str) -> None:
        name = self._name()
        self._begin(id, name, key=True)
        self.store.scope(name).append("log", id, key=id)
        self._done(id)

    def edit(self, id: str) -> None:
        name = self._name()

        def change(draft: Any) -> None:
            if "log" in draft:
                draft["log"].append(id)
            else:
                draft["log"] = [id]

        self._begin(id, name)
        self.store.scope(name).edit(change, retries=1000)
        self._done(id)

    def fork(self, id: str) -> None:
        parent = self.store.scope(self._random.choice(SCOPES[:2]))
        if not parent.revision:
            return
        self._begin(id, f"conversation/fork {id}")
        parent.fork(f"fork {id}", at=self._random.randint(1, parent.revision))
        self._done(id)
        self._forks.append(f"conversation/fork {id}")

    def in_fork(self, id: str) -> None:
        if not self._forks:
            return
        name = self._random.choice(self._forks)
        self._begin(id, name)
        self.store.scope(name).append("log", id)
        self._done(id)

    def submit(self, id: str) -> None:
        """Three commits in line, acknowledged when each was waited for."""
        ids = [id, self.next_id(), self.next_id()]
        name = self._name()
        pending: list[PendingCommit] = []
        for one in ids:
            self._begin(one, name)
            with self.store.commit(waits=False) as tx:
                tx.scope(self.store.scope(name)).append("log", one)
            pending.append(tx)
        for one, tx in zip(ids, pending, strict=True):
            tx.wait()
            self._done(one)

    def undo(self, id: str) -> None:
        scope = self.store.scope(UNDONE)
        self._begin(id, UNDONE)
        scope.set("value", id)
        self._done(id)
        scope.restore(max(scope.revision - 3, 0))

    def bulk(self, id: str) -> None:
        """Grows the log quickly, so that the ring wraps and segments and WAL are turned over."""
        self._bulk_to(self._name(), id)

    def grow(self, id: str) -> None:
        """Grows one stream until it is time for a snapshot."""
        for one in (id, self.next_id(), self.next_id()):
            self._bulk_to("team/t", one)

    def _bulk_to(self, name: str, id: str) -> None:
        self._begin(id, name)
        self.store.scope(name).set("bulk", id + " " + "x" * BULK_BYTES)
        self._done(id)

    def blob(self, id: str) -> None:
        name = self._name()
        self._begin(id, name)
        self.store.scope(name).set("blob", id + "y" * 70_000, checkpoint=id)
        self._done(id)

    def large(self, id: str) -> None:
        """One commit that is larger than half the ring."""
        name = self._name()
        self._begin(id, name)
        pieces = {f"large{n}": "z" * 60_000 for n in range(LARGE_BYTES // 60_000)}
        self.store.scope(name).update(pieces, checkpoint=id)
        self._done(id)
