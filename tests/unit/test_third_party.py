"""A backend with the methods of the first contract, and no other, still carries everything.

What the contract gained since has defaults: a store on such a backend answers as one in memory
does, or refuses by name and writes nothing. No call reaches a method that it does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import (
    START,
    Backend,
    Commit,
    Found,
    Head,
    Held,
    Lease,
    Mark,
    Moment,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.copy import copy
from holdfast.errors import ConflictError, HoldfastError, UsageError
from holdfast.testing import FakeClock
from holdfast.testing.contract import BackendContract


class _Leases:
    """No `renew_many`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        return self._inner.acquire(name, owner, ttl_s=ttl_s)

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        return self._inner.renew(lease, ttl_s=ttl_s)

    def release(self, lease: Lease) -> None:
        self._inner.release(lease)

    def holder(self, name: str) -> Lease | None:
        return self._inner.holder(name)

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        return self._inner.list(prefix=prefix, after=after, limit=limit)


class _Marks:
    """No `find`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        return self._inner.claim(index, owner, n=n, ttl_s=ttl_s)

    def release(self, index: str, key: str, owner: str) -> None:
        self._inner.release(index, key, owner)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        return self._inner.list(index, due_before=due_before, limit=limit)

    def claims(self, *, limit: int = 1000) -> Sequence[Any]:
        return self._inner.claims(limit=limit)


class Oldest:
    """The ten methods and the five attributes: no reading back, in bulk or by rows, no meta, one
    key in an append, no rewriting, no marks of a moment. It does not know the newer fields."""

    durability = "none"

    def __init__(self, clock: FakeClock) -> None:
        self._inner = inner = MemoryBackend(clock=clock)
        self.objects, self.inspect = inner.objects, inner.inspect
        self.leases, self.marks = _Leases(inner.leases), _Marks(inner.marks)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        known: list[Commit] = []
        for commit in commits:
            for append in commit.appends:
                assert all(record.meta is None for record in append.records), "sent meta"
                assert not any(record.key for record in append.records[1:]), "sent later keys"
            appends = tuple(replace(one, renews_us=0) for one in commit.appends)
            known.append(replace(commit, appends=appends, read_ends=()))
        return self._inner.commit(known)

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        return self._inner.read(stream, after=after, until=until, limit=limit)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        return self._inner.read_all(after=after, limit=limit)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        return self._inner.heads(streams)

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        return self._inner.streams(prefix=prefix, after=after, limit=limit)

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        return self._inner.find(stream, key=key, checkpoint=checkpoint, limit=limit)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._inner.wait(after, timeout_s=timeout_s)

    def moment(self) -> Moment:
        return self._inner.moment()

    def now_us(self, stream: str) -> int:
        return self._inner.now_us(stream)

    def close(self) -> None:
        self._inner.close()


LEFT_OUT = ("clause_26", "clause_36", "clause_37")
"""It takes one key, which 26 allows. 36 and 37 are about fields of a commit that it does not know:
the log checks the same before it sends one; what ends in between is what the clauses are for."""


class TestOldest(BackendContract):
    """What it does not have is not asked for."""

    def make(self, place: Path, clock: Any) -> Backend:
        return Oldest(clock)  # type: ignore[return-value]

    def raw(self, backend: Any, place: Path, stream: str) -> list[Record]:
        return backend._inner._streams.get(stream, [])


for _name in dir(BackendContract):
    if _name.startswith(tuple(f"test_{clause}_" for clause in LEFT_OUT)):
        setattr(TestOldest, _name, None)


def fill(hf: Store) -> None:
    chat, team = hf.conversation("c"), hf.team("t")
    for n in range(4):
        team.set("n", n, key=f"k{n}", checkpoint=f"p{n}")
    team.set("list", [1, 2])
    team.set("list", [1, 2, 3], diff=True)
    team.set("other", 1, if_absent=True)
    with hf.commit() as tx:
        tx.scope(chat).messages.add("user", "hi")
        tx.scope(chat).set("stage", "open")
        tx.scope(team).increment("n")
        tx.mark("jobs", "one", due=1)
    chat.tasks.add("later")
    task = chat.tasks.add("do it")
    chat.tasks.claim(task.id)
    chat.tasks.close(task.id, "done")
    chat.facts.state("sky", "blue")
    with chat.decide("which?") as decision:
        decision.outcome("this")
    foreign = [{"foreign": {"role": "user", "content": str(n)}, "foreign_id": f"f{n}"}
               for n in range(3)]  # fmt: skip
    chat.messages.add_many(foreign)
    chat.messages.add_many(foreign, state={"seen": 3})
    hf.team("gone").set("n", 1, key="once")
    hf.team("gone").remove()
    hf.team("gone").set("n", 2, key="once")
    hf.team("gone").remove()
    hf.team("back").set("n", 1)
    hf.team("back").remove()
    hf.team("back").undo()
    team.fork("fork", at=2).set("n", 9)
    hf.conversation("é" * 400).set("n", 1)


ANSWERS: dict[str, Callable[[Store], Any]] = {
    "scopes": lambda hf: [scope.name for scope in hf.scopes()],
    "a page of scopes": lambda hf: (lambda page: ([s.name for s in page], page.more))(
        hf.scopes("team", prefix="b", limit=1)
    ),
    "states": lambda hf: {
        name: one.to_dict() for name, one in hf.view().states(hf.scopes()).items()
    },
    "find": lambda hf: [scope.name for scope in hf.scopes(id="c")],
    "events": lambda hf: [(e.stream, e.revision, e.type) for e in hf.events(limit=None)],
    "newest events": lambda hf: [
        (e.stream, e.revision, e.type) for e in hf.events(newest_first=True, limit=5)
    ],
    "walk": lambda hf: [one.state.to_dict() for one in hf.team("t").states()],
    "at": lambda hf: hf.team("t").at("p1").to_dict(),
    "checkpoints": lambda hf: [one.name for one in hf.team("t").checkpoints()],
    "messages": lambda hf: [one.content for one in hf.conversation("c").messages],
    "tasks": lambda hf: [(one.title, one.status) for one in hf.tasks.list()],
    "facts": lambda hf: [(one.name, one.value) for one in hf.conversation("c").facts.list()],
    "decisions": lambda hf: [one.decision for one in hf.decisions.list()],
    "marks": lambda hf: [(one.index, one.key) for one in hf.workers.marks("jobs")],
    "leases": lambda hf: (lambda lease: [one.name for one in hf.workers.leases(prefix="a")])(
        hf.workers.lease("a")
    ),
    "check": lambda hf: hf.check().ok,
    "removed": lambda hf: (hf.team("gone").state.to_dict(), hf.team("gone").revision),
    "query": lambda hf: [one.scope for one in hf.query(text="hi")],
}


@pytest.fixture
def stores() -> Any:
    clock = FakeClock()
    oldest = holdfast.open(Oldest(clock), actor="w", settings=Settings(clock=clock))
    memory = holdfast.open("memory:", actor="w", settings=Settings(clock=clock))
    with oldest, memory:
        for store in (oldest, memory):
            fill(store)
        yield oldest, memory


@pytest.mark.parametrize("asked", ANSWERS)
def test_it_answers_as_a_store_in_memory_does(stores: tuple[Store, Store], asked: str) -> None:
    oldest, memory = stores
    answer = ANSWERS[asked](oldest)
    assert answer == ANSWERS[asked](memory)
    assert answer


def test_guards_runs_leases_and_copies(stores: tuple[Store, Store], tmp_path: Path) -> None:
    hf, _ = stores
    team = hf.team("t")
    with pytest.raises(ConflictError, match="n"), hf.commit() as tx:
        tx.scope(team).get("n")
        team.set("n", 77)
        tx.scope(team).set("out", 1)
    with hf.workers.lease("team/t"), pytest.raises(UsageError, match="holds the lease"):
        team.remove()
    assert hf.runs.start(doubles, 4, id="r").result() == 8
    assert [one.id for one in hf.runs.list()] == ["r"]
    with holdfast.open(tmp_path / "copy") as other:
        copy(hf, other)
        assert other.team("t").state.to_dict() == team.state.to_dict()
        assert other.check().ok


@holdfast.run
def doubles(n: int) -> int:
    return 2 * n


def test_what_it_cannot_keep_is_refused_by_name_and_not_written(
    stores: tuple[Store, Store],
) -> None:
    hf, _ = stores
    chat = hf.conversation("c")
    before = chat.revision
    with pytest.raises(UsageError, match="does not keep meta"), holdfast.provenance(source="tool"):
        chat.set("n", 1)
    with pytest.raises(UsageError, match="one key"), hf.commit() as tx:
        tx.scope(chat).tasks.add("two")
        tx.scope(chat).facts.state("a", 1)
    assert chat.revision == before
    with pytest.raises(HoldfastError, match="cannot let go of what it stores"):
        hf.retention.run()
    assert chat.revision == before


def test_the_same_for_asyncio() -> None:
    async def use() -> None:
        clock = FakeClock()
        async with await aio.open(Oldest(clock), settings=Settings(clock=clock)) as hf:
            team = hf.team("t")
            await team.set("n", 1)
            await team.remove()
            await team.set("n", 2)
            assert [one.name for one in await hf.scopes()] == ["team/t"]
            found = await hf.events(newest_first=True, limit=2)
            assert [one.revision for one in found] == [3, 2]
            assert await team.state == {"n": 2}

    asyncio.run(use())
