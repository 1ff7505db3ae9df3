"""Small stores to harm, and everything that they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START

BACKENDS = ("files", "sqlite")


def place_of(backend: str, directory: Path) -> Path:
    return directory / ("store" if backend == "files" else "store.db")


def url_of(place: Path) -> str:
    return f"sqlite:{place}" if place.suffix == ".db" else str(place)


def fill(store: Store) -> None:
    """Writes some of everything: forks, checkpoints, keys, marks, a blob, scopes at once."""
    team = store.team("red")
    chat = store.conversation("c", parent=team)
    for n in range(20):
        chat.append("log", {"n": n, "text": f"message {n} " * 3}, checkpoint=f"turn {n}")
    chat.set("document", "long text " * 7000)
    team.update({"a": 1, "b": [1, 2, {"c": b"bytes"}]}, key="first")
    team.increment("a", 2)
    fork = chat.fork("f", at="turn 7")
    fork.append("log", "another way")
    fork.restore(3)
    with store.commit(key="both") as tx:
        tx.scope(team).set("n", 1)
        tx.scope(store.global_()).set("n", 1)
        tx.mark("todo", "one", priority=2)
    store.workflow("w").set("done", True)
    store.workflow("w").close()


def content(store: Store) -> list[Any]:
    """Returns all that a caller can read; an unreadable part raises."""
    found: list[Any] = []
    for scope in store.scopes():
        history = [
            (event.revision, event.type, event.data, event.time, event.link, event.key)
            for event in scope.history()
        ]
        states = [scope.at(revision).to_dict() for revision in range(1, scope.revision + 1, 5)]
        checkpoints = [(one.name, one.revision) for one in scope.checkpoints()]
        parent = scope.parent.name if scope.parent else None
        state = scope.state.to_dict()
        found.append(
            (scope.name, parent, state, states, history, checkpoints, scope.life.is_closed)
        )
    found.append([(mark.index, mark.key, mark.priority) for mark in store.workers.marks()])
    found.append(
        [
            (event.position, event.stream, event.revision)
            for event in store.follow(as_events=True, after=START, timeout_s=0)
        ]
    )
    return found


def make(place: Path) -> list[Any]:
    """Makes a small store, closed, and returns its content."""
    with holdfast.open(url_of(place)) as store:
        fill(store)
        return content(store)


def bytes_below(place: Path) -> dict[str, bytes]:
    """Returns every file of a store, by its path inside."""
    if place.is_file():
        return {place.name: place.read_bytes()}
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
