"""Holdfast as a contender, and the stores that the read benchmarks need."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import holdfast
from bench.harness import Loop, made
from bench.messages import KEYS, SAID, messages
from tests.opening import settled

KINDS = ("files", "sqlite")
SCOPES = 1_000
"""Scopes of a large store, each with its share of the events."""
TOGETHER = 10
"""Events of one commit while a large store is made."""


def url(kind: str, place: Path) -> str:
    """Returns the URL of a store of that kind at that place."""
    return f"sqlite:{place}/state.db" if kind == "sqlite" else str(place / "store")


def open_store(kind: str, place: Path, **options: Any) -> holdfast.Store:
    """Opens a store of that kind in a directory that is made if it is not there."""
    place.mkdir(parents=True, exist_ok=True)
    return holdfast.open(url(kind, place), **settled(options))


def turns(
    chat: holdfast.Scope, *, size: int = SAID, first: int = 1, checkpoints: bool = True
) -> Callable[[], object]:
    """Returns a function that says one more message: one commit, with a named checkpoint."""
    said, numbers = messages(size), count(first)

    def turn() -> object:
        name = f"turn {next(numbers)}" if checkpoints else None
        return chat.append("messages", next(said), checkpoint=name)

    return turn


def append_loop(kind: str, place: Path) -> Loop:
    """One writer: a commit of one 1 KB message an operation, at full durability."""
    hf = open_store(kind, place)
    return Loop(f"holdfast {kind}", turns(hf.conversation("c1"), checkpoints=False), hf.close)


def turn_loop(kind: str, place: Path, *, size: int = SAID) -> Loop:
    """A conversation: a message and a named checkpoint in one commit an operation."""
    hf = open_store(kind, place)
    return Loop(f"holdfast {kind}", turns(hf.conversation("c1"), size=size), hf.close)


def build_conversation(kind: str, place: Path, *, length: int, size: int = SAID) -> None:
    """Makes a store with one conversation of that many turns, and closes it."""
    with open_store(kind, place, durability="none") as hf:
        turn = turns(hf.conversation("c1"), size=size)
        for _ in range(length):
            turn()


def build_keys(kind: str, place: Path, *, length: int, keys: int) -> None:
    """Makes a store with one scope in which `keys` keys were set in turn, `length` times."""
    with open_store(kind, place, durability="none") as hf:
        scope = hf.workflow("w1")
        for number in range(length):
            scope.set(f"key {number % keys}", {"value": number, "by": "worker"})


def build_many(kind: str, place: Path, *, events: int) -> None:
    """Makes a store of that many small events, spread over 1,000 scopes (fewer if it is small)."""
    scopes = min(SCOPES, events // 20)
    said = messages(100)
    with open_store(kind, place, durability="none") as hf:
        chats = [hf.conversation(f"c{number}") for number in range(scopes)]
        for _ in range(events // scopes):
            for first in range(0, scopes, TOGETHER):
                with hf.commit() as tx:
                    for chat in chats[first : first + TOGETHER]:
                        tx.scope(chat).append("messages", next(said))


def many_events(kind: str, events: int) -> Path:
    """Returns the place of a store of that many events, which is made once in a run."""
    return made(f"{kind} {events}", lambda place: build_many(kind, place, events=events))


class Worker:
    """Holdfast with the operations of every peer, under the peers' names for them.

    What peers answer with lists and dicts is answered with copies as plain lists and dicts.
    """

    runner = None

    def __init__(self, path: str, *, kind: str, size: int = SAID, items: int = 1) -> None:
        self.release = f"holdfast {holdfast.__version__}"
        self._kind, self._place, self._items = kind, Path(path), items
        self._hf = open_store(kind, self._place)
        self.close: Callable[[], None] = self._hf.close
        self._messages = messages(size)
        self._ids, self._sets, self._gets = count(1), count(), count()
        self._keys = self._hf.workflow("keys")
        self._begin()
        self.operations: dict[str, Callable[[], Any]] = {
            "begin": self._begin,
            "turn": lambda: self._turn(),
            "append": self._append if items == 1 else self._append_several,
            "last 20": self._last,
            "all": lambda: self._read(self._chat),
            "newest": lambda: self._read(self._chat),
            "all, opened afresh": self._afresh,
            "newest, opened afresh": self._afresh,
            "middle, opened afresh": self._middle_afresh,
            "last message, opened afresh": self._last_afresh,
            "set": self._set,
            "get": self._get,
        }

    def _begin(self) -> None:
        self._id = f"c{next(self._ids)}"
        self._chat = self._hf.conversation(self._id)
        self._turn = turns(self._chat)

    def _append(self) -> None:
        self._chat.append("messages", next(self._messages))

    def _append_several(self) -> None:
        with self._hf.commit() as commit:
            chat = commit.scope(self._chat)
            for _ in range(self._items):
                chat.append("messages", next(self._messages))

    def _last(self) -> None:
        last = [item.to_dict() for item in self._chat.state["messages"][-20:]]
        assert len(last) == 20

    def _read(self, chat: holdfast.Scope) -> None:
        assert len(chat.state.to_dict()["messages"]) == self._chat.revision * self._items

    def _afresh(self) -> None:
        with open_store(self._kind, self._place) as hf:
            self._read(hf.conversation(self._id))

    def _last_afresh(self) -> None:
        with open_store(self._kind, self._place) as hf:
            assert hf.conversation(self._id).state["messages"][-1]["role"] == "user"

    def _middle_afresh(self) -> None:
        with open_store(self._kind, self._place) as hf:
            middle = self._chat.revision // 2
            state = hf.conversation(self._id).at(f"turn {middle}").to_dict()
            assert len(state["messages"]) == middle

    def _set(self) -> None:
        self._keys.set(f"key {next(self._sets) % KEYS}", next(self._messages))

    def _get(self) -> None:
        assert self._keys.get(f"key {next(self._gets) * 7 % KEYS}")["role"] == "user"


def stored_bytes(place: Path) -> int:
    """Returns the size of everything that a store keeps below a directory."""
    return sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())


def forget_snapshots(kind: str, place: Path) -> None:
    """Removes every snapshot and, on files, the index: the next read folds the whole log."""
    with open_store(kind, place) as hf:
        objects = hf._log._backend.objects
        for name in objects.names("snapshot"):
            objects.delete("snapshot", name)
    if kind == "files":
        for path in (place / "store").glob("index*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
