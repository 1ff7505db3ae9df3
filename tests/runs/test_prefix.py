"""What others took along is durable before an act (rule 7): a branch waits for its neighbour."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.backends.protocol import Lease
from holdfast.errors import UnavailableError
from holdfast.runs import events
from holdfast.runs.control import OwnerLost
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Journal


class Slow:
    """A backend around a backend whose commits wait at a gate, and fail there if told to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached, self.gate = Event(), Event()
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        self.reached.set()
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return self._inner.commit(commits)


@pytest.fixture
def store():
    with holdfast.open("memory:") as store:
        yield store


def owned(store: holdfast.Store) -> tuple[Execution, Slow]:
    """Returns a run of two branches, each of which has recorded an intent."""
    lease: Lease = store.lease("run/r")
    slow = Slow(store.log.backend)
    store.log.backend = slow  # type: ignore[assignment]
    run = Execution(store.log, "r", None, Journal(), lease)  # type: ignore[arg-type]
    run.forked(2)
    for name in ("a", "b"):
        run.record(events.Intended(f"parallel/{name}/post", 1, "step", "post", "effect"))
    return run, slow


def going(work: Any) -> tuple[Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def live() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=live)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("first", ["commit", "push"])
def test_an_intent_that_another_branch_took_along_is_waited_for(store: Any, first: str) -> None:
    run, slow = owned(store)
    one, _ = going(getattr(run, first))
    assert slow.reached.wait(30)
    other, raised = going(run.commit)
    other.join(0.2)
    assert other.is_alive(), "it would act now, and its intent is not durable"
    slow.gate.set()
    one.join(30)
    other.join(30)
    assert not other.is_alive()
    assert raised == []
    assert len(store.log.records("run/r")) == 2


@pytest.mark.parametrize("first", ["commit", "push"])
def test_if_it_could_not_be_written_the_other_branch_is_lost_too(store: Any, first: str) -> None:
    run, slow = owned(store)
    slow.error = UnavailableError("the disk is gone")
    one, _ = going(getattr(run, first))
    assert slow.reached.wait(30)
    other, raised = going(run.commit)
    slow.gate.set()
    one.join(30)
    other.join(30)
    assert [type(error) for error in raised] == [OwnerLost]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_step_does_not_begin_before_an_intent_that_tending_wrote_is_durable(
    monkeypatch: pytest.MonkeyPatch, store: Any, kind: str
) -> None:
    """The engine's own thread may write what is buffered between the record and the commit."""
    acted: list[int] = []
    slow = Slow(store.log.backend)
    slow.gate.set()
    store.log.backend = slow
    record, taken = Execution.record, Event()

    def recorded_and_taken(self: Execution, event: Any) -> None:
        record(self, event)
        if isinstance(event, events.Intended):
            slow.reached.clear()
            slow.gate.clear()
            self.push()
            taken.set()

    monkeypatch.setattr(Execution, "record", recorded_and_taken)
    over, _ = going(lambda: BODIES[kind](store, acted))
    assert taken.wait(30)
    assert slow.reached.wait(30)
    over.join(0.2)
    assert acted == []
    slow.gate.set()
    over.join(30)
    assert acted == [1]


def run_sync(store: holdfast.Store, acted: list[int]) -> None:
    @holdfast.step(effect="effect", name="prefix:act")
    def act(n: int) -> None:
        acted.append(n)

    @holdfast.run(name="prefix:sync")
    def body(ctx: Any) -> None:
        ctx.step(act, 1)

    store.start(body).result()


def run_async(store: holdfast.Store, acted: list[int]) -> None:
    @holdfast.step(effect="effect", name="prefix:act-async")
    async def act(n: int) -> None:
        acted.append(n)

    @holdfast.run(name="prefix:async")
    async def body(ctx: Any) -> None:
        await ctx.step(act, 1)

    async def main() -> None:
        with ThreadPoolExecutor(2) as executor:
            run = await holdfast.aio.AsyncStore(store, executor).start(body)
            await run.result()

    asyncio.run(main())


BODIES = {"sync": run_sync, "async": run_async}
