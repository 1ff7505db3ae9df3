"""The clients of T2 and T12: they write unique numbers to lists, and say what they were told.

A line is written before an operation and again when its outcome is known or given up, each with one
call, so that it outlives its process. `servers_judge.py` compares what was said with what is there.

Some clients wait a minute for their server, others a fifth of a second: those learn that a server
is away, and that an outcome is unknown. What has a key they repeat until it is known.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from holdfast import ConflictError, Store, UnavailableError
from holdfast.errors import CorruptError, LostCommitsError

Line = dict[str, Any]
SHARED = ("conversation/shared-0", "conversation/shared-1")
SAID = ("begun", "done", "refused", "unknown")
OVER = "team/over"
"""Written to when everybody has ended: a follower who sees that has seen all that was told."""


class Teller:
    """A file of lines that outlives its process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, line: Line) -> None:
        os.write(self._fd, json.dumps({**line, "at": time.monotonic()}).encode() + b"\n")


def heard(path: Path) -> Iterator[Line]:
    """Yields what was said. A line that death cut short was never said."""
    if path.exists():
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                yield json.loads(text)


class Writer:
    """One client. `open` opens its store, again too, when the handle is dead."""

    def __init__(
        self,
        open: Callable[[], Store],
        name: int,
        teller: Teller,
        random: Random,
        *,
        may_lose: bool = False,
    ) -> None:
        self._open = open
        self._dead = CorruptError if may_lose else LostCommitsError
        self._name = name
        self._teller = teller
        self._random = random
        self._count = 0
        self.is_early = False
        """Planted: acknowledged before it is written."""
        self.forgets_keys = False
        """Planted: what has an unknown outcome is done again as if it were new."""
        self.store = self._opened()

    def act(self) -> None:
        """Appends a number to one list or two, by chance; with a key or without, guarded or not."""
        self._count += 1
        own = f"conversation/own-{self._name}"
        names: list[str] = self._random.choice(([own], [own], SHARED[:1], [own, *SHARED]))
        line = {"value": self._name * 1_000_000 + self._count, "streams": list(names)}
        line["key"] = f"k{line['value']}" if self._random.random() < 0.7 else None
        guarded = len(names) == 1 and self._random.random() < 0.3
        self.write(line, guarded=guarded)

    def write(self, line: Line, *, guarded: bool = False) -> None:
        """Does one thing until its outcome is known or cannot be known, and says so."""
        self._teller.say({**line, "said": "begun"})
        if self.is_early:
            self._teller.say({**line, "said": "done"})
        is_open = False  # of an attempt that was given up it stays open whether it was made
        while True:
            try:
                self._commit(line, guarded)
            except ConflictError:
                said = "refused"
            except UnavailableError as exc:
                is_open = is_open or not exc.outcome_known
                said = "unknown" if is_open else "refused"
            except self._dead:
                self.lost()
                is_open, said = True, "unknown"
            else:
                said = "done"
            if not (self.is_early and said == "refused"):
                self._teller.say({**line, "said": said})
            if said != "unknown" or not (line["key"] or self.forgets_keys):
                return
            guarded = False  # it had looked before it began; the key decides now

    def _commit(self, line: Line, guarded: bool) -> None:
        key = None if self.forgets_keys else line["key"]
        scopes = [self.store.scope(name) for name in line["streams"]]
        if len(scopes) == 1:
            expected = scopes[0].revision if guarded else None
            scopes[0].append("log", line["value"], key=key, expected=expected)
            return
        with self.store.commit(key=key) as tx:
            for scope in scopes:
                tx.scope(scope).append("log", line["value"])

    def lost(self) -> None:
        """Says that the server has lost what it had acknowledged, and opens the store again."""
        self._teller.say({"said": "lost"})
        self.store.close()
        self.store = self._opened()

    def _opened(self) -> Store:
        while True:
            try:
                return self._open()
            except UnavailableError:  # the server is away
                time.sleep(0.01)


def follow(open: Callable[[], Store], teller: Teller, *, may_lose: bool) -> None:
    """Follows the whole store through everything; tells each event, and at last that it is over.

    It is over when the event is there that says so. Nobody else could tell: what a client has given
    up may be under way for long, and hold up what was acknowledged behind it.
    """
    store = None
    position = 0
    while True:
        asked = time.monotonic()
        try:
            store = store or open()
            backend = store._log._backend
            backend.wait(position, timeout_s=0.05)
            records = backend.read_all(after=position)
        except UnavailableError:
            continue
        except CorruptError:
            if not may_lose:
                raise
            continue
        for record in records:
            told = {"stream": record.stream, "revision": record.revision, "asked": asked}
            teller.say({"said": "seen", **told, "position": record.position})
        position = records[-1].position if records else position
        if any(record.stream == OVER for record in records):
            break
    teller.say({"said": "over"})
    store.close()


def lists(store: Store) -> dict[str, list[int]]:
    """Returns what is in each list, of one moment: what was given up may arrive meanwhile."""
    view = store.view()
    scopes = store.scopes("conversation")
    return {scope.name: list(view.state(scope).get("log", ())) for scope in scopes}
