"""Every state of a scope from one fold: each is what `at` returns for its revision."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import holdfast
from holdfast import ClosedError, CorruptError, Scope, Store, UsageError, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Head, Record
from holdfast.core import past, snapshot
from holdfast.core.log import Log
from holdfast.errors import LostCommitsError
from holdfast.testing import FakeClock
from tests.opening import store_of_log
from tests.record.stores import new_url


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few events and snapshots of a few hundred bytes: a short history has many."""
    monkeypatch.setattr(past, "BLOCK_EVENTS", 7)
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 2_000)


def change(chance: random.Random, chat: Scope) -> None:
    """Does one thing to a scope that adds one event or a few."""
    newest = chat.revision
    match chance.randrange(9):
        case 0 | 1 | 2:
            chat.append("messages", {"n": newest, "text": "x" * chance.randrange(200)})
        case 3:
            chat.update({f"k{chance.randrange(5)}": newest, "both": [newest, None]})
        case 4:
            chat.increment("count", 1)
        case 5:
            chat.say("hello")
        case 6:
            chat.checkpoint(f"c{chance.randrange(3)}")
        case 7 if newest:
            chat.restore(chance.randrange(newest) + 1)
        case 8 if any(event.type in ("changed", "restored") for event in chat.history()):
            chat.undo()
        case _:
            chat.set("last", newest)


def grown(hf: Store, seed: int) -> Scope:
    """Returns a fork of a fork, each with a random history; it has no snapshot of the first."""
    chance = random.Random(seed)
    chat: Scope = hf.conversation("c0")
    for fork in range(1, 4):
        for _ in range(chance.randrange(2, 25)):
            change(chance, chat)
        chat = chat.fork(f"c{fork}", at=chance.randrange(chat.revision) + 1)
    for _ in range(chance.randrange(40)):
        change(chance, chat)
    return chat


@pytest.mark.parametrize("seed", range(4))
def test_each_state_is_what_at_returns(hf: Store, seed: int) -> None:
    chat = grown(hf, seed)
    newest = chat.revision
    expected = [(revision, chat.at(revision)) for revision in range(1, newest + 1)]
    events = [(event.revision, event.type, event.link) for event in chat.history()]
    chance = random.Random(seed)
    bounds = [(0, None), (0, newest + 9), (newest, None), (9, 3)]
    bounds += [(chance.randrange(newest), chance.randrange(newest) + 1) for _ in range(6)]
    for after, until in bounds:
        wanted = expected[after:until]
        for newest_first in (False, True):
            found = list(chat.states(after=after, until=until, newest_first=newest_first))
            if newest_first:
                found.reverse()
            assert [(one.revision, one.state) for one in found] == wanted
            told = [(one.event.revision, one.event.type, one.event.link) for one in found]
            assert told == events[after:until]


def test_a_store_opened_afresh_tells_the_same(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        name = grown(hf, 5).id
        assert name is not None
    for newest_first in (False, True):
        with holdfast.open(url) as hf:
            chat = hf.conversation(name)
            found = {one.revision: one.state for one in chat.states(newest_first=newest_first)}
            assert found == {n: chat.at(n) for n in range(1, chat.revision + 1)}


def test_asyncio_yields_the_same(url: str) -> None:
    async def walk() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            for n in range(20):
                await chat.append("messages", n)
            for newest_first in (False, True):
                found = [
                    (one.revision, one.state, await chat.at(one.revision))
                    async for one in chat.states(after=2, newest_first=newest_first)
                ]
                revisions = [revision for revision, _, _ in found]
                assert revisions == sorted(range(3, 21), reverse=newest_first)
                assert all(state == past for _, state, past in found)

    asyncio.run(walk())


def test_a_scope_without_events_has_no_states(hf: Store) -> None:
    assert list(hf.conversation("none").states()) == []
    assert list(hf.conversation("none").states(newest_first=True)) == []


def test_what_was_dropped_is_told_by_its_own_state(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.close(keep=False)
    last, first = chat.states(newest_first=True)
    assert first.state == {"n": 1}
    assert repr(last) == "<StateAt conversation/c@2>"
    with pytest.raises(ClosedError):
        _ = last.state


def test_a_transform_sees_each_state_under_the_name_of_the_scope(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    fork = chat.fork("f")
    seen: list[str] = []

    def note(state: Any, name: str) -> Any:
        seen.append(name)
        return state

    remove = hf._log.add_transform(note)
    assert [one.state for one in fork.states()] == [{"n": 1}, {"n": 1}]
    assert seen == ["conversation/f"] * 2
    remove()


@pytest.mark.parametrize(
    "wrong", [{"after": -1}, {"until": "x"}, {"newest_first": 1}, {"after": 1.5}]
)
def test_what_is_no_bound_is_refused_at_once(hf: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        hf.conversation("c").states(**wrong)


class Lying(MemoryBackend):
    """Returns records through a function, and a head that it may take back."""

    is_short = False
    has_lost = False
    changed: int | None = None

    def heads(self, streams: Any) -> list[Head | None]:
        heads = super().heads(streams)
        return [None for _ in heads] if self.has_lost else heads

    def read(self, stream: str, **bounds: Any) -> list[Record]:
        records = super().read(stream, **bounds)
        if self.is_short:
            return []
        return [self._changed(record) for record in records]

    def _changed(self, record: Record) -> Record:
        if record.revision != self.changed:
            return record
        return structs.replace(record, payload=b'[["set","n",0]]')


@pytest.fixture
def lying() -> tuple[Lying, Store]:
    clock = FakeClock()
    backend = Lying(clock=clock)
    hf = store_of_log(Log(backend, clock=clock, actor="tester"), url="memory:", worker="w")
    for n in range(30):
        hf.conversation("c").append("l", n)
    return backend, hf


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_changed_byte_is_found(lying: tuple[Lying, Store], newest_first: bool) -> None:
    backend, hf = lying
    backend.changed = 12
    seen: list[int] = []
    with pytest.raises(CorruptError, match="event 12"):
        seen.extend(one.revision for one in hf.conversation("c").states(newest_first=newest_first))


@pytest.mark.parametrize("has_lost", [False, True])
def test_events_that_are_missing_are_told(lying: tuple[Lying, Store], has_lost: bool) -> None:
    backend, hf = lying
    states = hf.conversation("c").states()
    next(states)
    backend.is_short = True
    head = backend.heads(["conversation/c"])[0]
    assert head is not None
    with pytest.raises(CorruptError, match="ends at revision 7: its head says 30"):
        list(states)
    backend.has_lost = has_lost
    error = hf._log.contradicted("conversation/c", head, "ends", 7)
    assert isinstance(error, LostCommitsError) == has_lost


def test_newest_first_folds_no_event_more_than_twice(
    monkeypatch: pytest.MonkeyPatch, lying: tuple[Lying, Store]
) -> None:
    backend, hf = lying
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 1 << 30)
    read: list[int] = []
    plain = Lying.read

    def counted(self: Lying, stream: str, **bounds: Any) -> list[Record]:
        records = plain(self, stream, **bounds)
        read.extend(record.revision for record in records)
        return records

    monkeypatch.setattr(Lying, "read", counted)
    for name in backend.objects.names("snapshot"):
        backend.objects.delete("snapshot", name)
    assert len(list(hf.conversation("c").states(newest_first=True))) == 30
    assert max(map(read.count, range(1, 31))) <= 2
