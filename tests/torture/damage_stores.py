"""Stores that hold every kind of file, their bytes, and everything that they say."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import CorruptError, NotFoundError, Settings, Store, UnavailableError
from holdfast.copy import salvage
from holdfast.core import codec
from holdfast.errors import FormatError
from holdfast.testing import FakeClock
from tests.torture.faulty_life import in_child, scratch

HONEST = (CorruptError, FormatError, NotFoundError, UnavailableError)
STATES = ("closed", "killed", "unpowered")
"""Closed; left by a kill; left by a kill, and then the power went. One more is `packed`: closed,
and its segments are shorter than their text."""


@dataclass(frozen=True)
class Victim:
    """A store to be harmed: its files, and all that it says."""

    backend: str
    state: str
    files: dict[str, bytes]
    says: list[Any]

    def put(self, place: Path, name: str = "", data: bytes | None = None) -> None:
        """Lays the store down at an empty place, with one file changed; None leaves it out."""
        for known, content in self.files.items():
            if known == name:
                if data is None:
                    continue
                content = data
            path = place / known
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, content)
            os.close(descriptor)

    def open(self, place: Path, *, read_only: bool = False) -> Store:
        clock = FakeClock(seed=5)
        if self.state == "unpowered":
            clock.reboot()
        url = url_of(self.backend, place)
        return holdfast.open(
            url, actor="a", create=False, read_only=read_only, settings=Settings(clock=clock)
        )


def url_of(backend: str, place: Path) -> str:
    return f"{place}/store" if backend == "files" else f"sqlite:{place}/store"


class Size(NamedTuple):
    """How much a store holds: some of everything, so many times, with so much text in a message."""

    rounds: int
    text: int


def furnish(store: Store, size: Size) -> None:
    """Writes some of everything."""
    team = store.team("red")
    filling = " and so on" * (size.text // 10)
    for number in range(size.rounds):
        chat = store.conversation(f"c{number}", parent=team)
        for n in range(4):
            text = f"message {n} of {number}{filling}"
            chat.append("log", {"n": n, "text": text}, checkpoint=f"turn {n}")
        team.update({f"a{number}": 1, "b": [1, {"c": b"bytes"}]}, key=f"key {number}")
        fork = chat.fork(f"f{number}", at="turn 2")
        fork.append("log", "another way")
        with store.commit(key=f"both {number}") as tx:
            tx.scope(team).set("n", number)
            tx.scope(store.global_()).set("n", number)
            tx.mark("todo", f"mark {number}", priority=2)
    store.conversation("c0").set("document", "long text " * 7000)
    with store.commit() as tx:  # two full leaves, each with a long item: they are kept in a block
        for n in range(70):
            item = f"item {n * 7919 % 1000}" + (" and so on" * 8 if n % 32 == 0 else "")
            tx.scope(store.conversation("long")).append("items", item)
    store.workers.lease("lease", ttl_s=1e6)


UNTOLD = "nobody has said that it was let go of"
EVENTS = 0
"""Which part of what a store says are its events."""


def says(store: Store) -> list[Any]:
    """Returns all that a caller can read, by every way there is to read it."""
    backend = store._log._backend
    streams = backend.streams()
    blobs = backend.objects.names("blob")
    records = backend.read_all(limit=1_000_000)
    return [
        records,
        streams,
        [backend.read(stream) for stream in streams],
        backend.heads(streams),
        [backend.find(stream) for stream in streams],
        [backend.find(one.stream, key=one.key) for one in records if one.key],
        backend.marks.list(),
        [(name, _unpacked(backend.objects.get("blob", name))) for name in blobs],
        [scope.state.to_dict() for scope in store.scopes()],
    ]


def _unpacked(data: bytes | None) -> bytes | None:
    """Returns what a blob holds: some bits of how it is packed mean nothing."""
    return None if data is None else codec.decompress(data, size_max=1 << 30)


@cache
def victim(backend: str, state: str, size: Size) -> Victim:
    """Makes the store, in a process of its own that may be killed."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-victim-", dir=scratch()))

    def make() -> None:
        store = holdfast.open(
            url_of(backend, place), actor="a", settings=Settings(clock=FakeClock(seed=1))
        )
        furnish(store, size)
        store.close()
        store = holdfast.open(
            url_of(backend, place), actor="a", settings=Settings(clock=FakeClock(seed=2))
        )
        if state == "packed":
            store.conversation("c0").remove()
            store.retention.run(grace_s=0)
        for n in range(3):
            store.team("red").append("late", f"late {n} of them")
        if state in ("closed", "packed"):
            store.close()
        os._exit(0)

    try:
        in_child(make)
        if state == "unpowered" and backend == "files":
            _lose_text(place / "store")
        files = {
            str(path.relative_to(place)): path.read_bytes()
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }
    finally:
        shutil.rmtree(place)
    whole = Victim(backend, state, files, [])
    whole.says.extend(read(whole, lambda at: whole.put(at))[0])
    return whole


def _lose_text(store: Path) -> None:
    """Takes from the text what only the ring had made durable."""
    from msgspec import json

    end = json.decode((store / "head.json").read_bytes())["end"]
    newest = max((store / "log").iterdir())
    os.truncate(newest, end - int(newest.stem, 16))


def read(victim: Victim, put: Callable[[Path], None]) -> tuple[list[Any], str]:
    """Returns what a store says, and what check says of it; an honest error is raised."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-victim-", dir=scratch()))
    try:
        put(place)
        store = victim.open(place)
        try:
            found = says(store)
            if not victim.says or found == victim.says:
                return found, ""
            report = store.check()
            return found, "" if report.ok else str(report.findings[0])
        finally:
            store.close()
    finally:
        shutil.rmtree(place)


class Left(NamedTuple):
    """What a damaged store still gives: what a reader gets, what check says, what is salvaged."""

    read: dict[str, list[Any] | str]  # the records of each stream, or the error
    is_named: bool  # check ran to its end, and has a finding
    salvaged: dict[str, list[Any]]
    is_whole: bool  # the salvage says that nothing is lost


def left_of(victim: Victim, put: Callable[[Path], None]) -> Left:
    """Reads each stream of a damaged store by itself, checks it and salvages it."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-victim-", dir=scratch()))
    try:
        put(place)
        before = {path: path.read_bytes() for path in place.rglob("*.jsonl")}
        with victim.open(place) as store:
            read = {stream: _read_one(store, stream) for stream in victim.says[1]}
            is_named = not store.check().ok
        with victim.open(place, read_only=True) as store, holdfast.open("memory:") as target:
            result = salvage(store, target)
            # What said that data was let go of may be what is lost.
            found = [one for one in target.check().findings if UNTOLD not in one.problem]
            assert not found, f"a salvaged store that is damaged: {found[0]}"
            backend = target._log._backend
            salvaged = {stream: backend.read(stream) for stream in backend.streams()}
        if victim.state == "closed":
            assert all(path.read_bytes() == data for path, data in before.items()), "it was changed"
        return Left(read, is_named, salvaged, result.ok)
    finally:
        shutil.rmtree(place)


def _read_one(store: Store, stream: str) -> list[Any] | str:
    try:
        return store._log._backend.read(stream)
    except HONEST as error:
        return type(error).__name__
