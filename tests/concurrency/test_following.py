"""Following ends, and does not spin, where commits have no events: those that only set marks."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from holdfast import Store
from holdfast.backends.protocol import START, Position
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.log import Log


@pytest.fixture(params=["memory", "files", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "memory": "memory:",
        "files": str(tmp_path / "store"),
        "sqlite": f"sqlite:{tmp_path / 'store.db'}",
    }[request.param]


def write(store: Store) -> None:
    """Leaves an event between two commits that only set marks."""
    for n in range(2):
        with store.commit() as tx:
            tx.mark("todo", f"first {n}")
    store.team("t").set("n", 1)
    with store.commit() as tx:
        tx.mark("todo", "last")


def test_guarantee_5_events_end_behind_commits_that_only_set_marks(url: str) -> None:
    with holdfast.open(url) as store:
        write(store)
        assert [
            event.revision for event in store.follow(as_events=True, after=START, timeout_s=0)
        ] == [1]
        assert list(store.follow("team/t", after=1, timeout_s=0)) == []
        assert list(store.follow(as_events=True, after=store.position, timeout_s=0)) == []


def test_guarantee_5_events_end_in_asyncio_too(url: str) -> None:
    async def main() -> list[int]:
        async with await holdfast.aio.open(url) as store:
            async with store.commit() as tx:
                tx.mark("todo", "one")
            await store.team("t").set("n", 1)
            async with store.commit() as tx:
                tx.mark("todo", "two")
            return [
                event.revision
                async for event in store.follow(as_events=True, after=START, timeout_s=0)
            ]

    assert asyncio.run(main()) == [1]


@pytest.mark.parametrize("in_asyncio", [False, True])
def test_a_follower_ends_though_others_are_written_to(
    monkeypatch: pytest.MonkeyPatch, in_asyncio: bool
) -> None:
    """Guarantee 5: its time is that of its own scope, and not of the whole store."""
    told: list[object] = []

    def busy(log: Log) -> None:
        wait, numbers = log._backend.wait, count()
        part = StreamWrite("team/other", (NewEvent("noted", b"null"),))

        def waited(after: Position, *, timeout_s: float) -> Position:
            if timeout_s:
                assert next(numbers) < 20_000, "it does not end"
                log.commit(ProposedCommit((part,)))
            return wait(after, timeout_s=timeout_s)

        monkeypatch.setattr(log._backend, "wait", waited)

    async def listen() -> None:
        async with await holdfast.aio.open("memory:") as hf:
            busy(hf._log)
            told.extend([change async for change in hf.follow("team/t", timeout_s=0.1)])

    if in_asyncio:
        asyncio.run(listen())
    else:
        with holdfast.open("memory:") as store:
            busy(store._log)
            told.extend(store.follow("team/t", timeout_s=0.1))
    assert told == []
