"""A run's journal is durable as a prefix (rule 7): no act before its intent (OP-26)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from msgspec import Raw

import holdfast
import holdfast.aio
from holdfast.backends.protocol import Commit, Lease
from holdfast.core.commit import ProposedCommit, StreamWrite, changed
from holdfast.core.log import WRITER
from holdfast.core.tree import set_op
from holdfast.errors import UnavailableError
from holdfast.runs import events
from holdfast.runs.context import Context
from holdfast.runs.engine import Engine
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Block, Journal
from holdfast.runs.operation import OwnerLost
from tests.runs.cuts import PATIENCE_S


class Slow:
    """A backend around a backend whose commits wait at a gate, and fail there if told to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached, self.gate = Event(), Event()
        self.error: Exception | None = None
        self.is_once = False  # whether the error is gone when it was raised, as a network's is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None and any(is_journal(commit) for commit in commits):
            error, self.error = self.error, None if self.is_once else self.error
            raise error
        return self._inner.commit(commits)


def is_journal(commit: Commit) -> bool:
    return any(append.stream == "run/r" for append in commit.appends)


@pytest.fixture
def store():
    with holdfast.open("memory:") as store:
        yield store


def owned(store: holdfast.Store) -> tuple[Execution, Slow]:
    """Returns a run of two branches, each of which has recorded an intent."""
    lease: Lease = store.workers.lease("run/r")
    slow = Slow(store._log._backend)
    store._log._backend = slow  # type: ignore[assignment]
    run = Execution(store._log, "r", None, Journal(), lease)  # type: ignore[arg-type]
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
    assert slow.reached.wait(PATIENCE_S)
    other, raised = going(run.commit)
    other.join(0.2)
    assert other.is_alive(), "it would act now, and its intent is not durable"
    slow.gate.set()
    one.join(PATIENCE_S)
    other.join(PATIENCE_S)
    assert not other.is_alive()
    assert raised == []
    assert len(store._log.records("run/r")) == 2


@pytest.mark.parametrize("first", ["commit", "push"])
def test_if_it_could_not_be_written_the_other_branch_is_lost_too(store: Any, first: str) -> None:
    run, slow = owned(store)
    slow.error = UnavailableError("the disk is gone")
    one, _ = going(getattr(run, first))
    assert slow.reached.wait(PATIENCE_S)
    other, raised = going(run.commit)
    slow.gate.set()
    one.join(PATIENCE_S)
    other.join(PATIENCE_S)
    assert [type(error) for error in raised] == [OwnerLost]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_step_does_not_begin_before_an_intent_that_the_supervisor_wrote_is_durable(
    monkeypatch: pytest.MonkeyPatch, store: Any, kind: str
) -> None:
    """The engine's own thread may write what is buffered between the record and the commit."""
    acted: list[int] = []
    slow = Slow(store._log._backend)
    slow.gate.set()
    store._log._backend = slow
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
    assert taken.wait(PATIENCE_S)
    assert slow.reached.wait(PATIENCE_S)
    over.join(0.2)
    assert acted == []
    slow.gate.set()
    over.join(PATIENCE_S)
    assert acted == [1]


def run_sync(store: holdfast.Store, acted: list[int]) -> None:
    @holdfast.step(effect="effect", name="prefix:act")
    def act(n: int) -> None:
        acted.append(n)

    @holdfast.run(name="prefix:sync")
    def body(ctx: Any) -> None:
        ctx.step(act, 1)

    store.runs.start(body).result()


def run_async(store: holdfast.Store, acted: list[int]) -> None:
    @holdfast.step(effect="effect", name="prefix:act-async")
    async def act(n: int) -> None:
        acted.append(n)

    @holdfast.run(name="prefix:async")
    async def body(ctx: Any) -> None:
        await ctx.step(act, 1)

    async def main() -> None:
        with ThreadPoolExecutor(2) as executor:
            run = await holdfast.aio.AsyncStore(store, executor).runs.start(body)
            await run.result()

    asyncio.run(main())


BODIES = {"sync": run_sync, "async": run_async}


# --- holes: what is in line after a commit that failed ---------------------------------------


def put_after(run: Execution, store: holdfast.Store, what: str) -> Callable[[], object]:
    """Puts something of the run in line, and returns what waits for it."""
    if what == "journal":
        run.record(events.Intended("parallel/b/pay", 2, "step", "pay", "effect"))
        request = run.put(run._submit)  # pyright: ignore[reportPrivateUsage]
        assert request is not None
        return lambda: store._log.wait(request)
    if what == "txn":
        write = StreamWrite("team/t", (changed([set_op("n", 1)]),))
        done = events.StepDone("parallel/b/move", kind="step", name="move", effect="txn")
        request = run.join(done, ProposedCommit((write,)), store._log.submit)
        return lambda: store._log.wait(request)
    context = Context(run, Block(run.journal), None, store._kernel.part(Engine))
    token = WRITER.set(context._writer if what == "write" else context._writer.fencing())
    try:
        with store.commit(waits=False) as tx:
            tx.scope(store.team("t")).set("n", 1)
    finally:
        WRITER.reset(token)
    return tx.wait


@pytest.mark.parametrize("what", ["journal", "write", "fenced write"])
def test_nothing_is_written_after_what_could_not_be(what: str, tmp_path: Path) -> None:
    """The journal has no hole: of what depends on a record that is not there, nothing is there.

    In one batch, and elsewhere than runs are kept, where nothing failed.
    """
    rest = f"sqlite:{tmp_path / 'rest.db'}"
    with holdfast.open({"workflow": "memory:", "*": rest}) as store:
        run, slow = owned(store)
        slow.error, slow.is_once = UnavailableError("the network is gone"), True
        with store.commit(waits=False) as first:  # all that follows waits for it, and is one batch
            first.scope(store.team("other")).set("n", 1)
        assert slow.reached.wait(PATIENCE_S)
        run.push()
        wait = put_after(run, store, what)
        slow.gate.set()
        with pytest.raises(UnavailableError):
            wait()
        assert store._log.records("run/r") == []
        assert store.team("t").state.to_dict() == {}
        assert first.wait().revision == 1
        with pytest.raises(OwnerLost):
            run.commit()


def test_nothing_is_written_in_the_batches_after_it_either(store: Any) -> None:
    run, slow = owned(store)
    slow.error, slow.is_once = UnavailableError("the network is gone"), True
    run.push()
    assert slow.reached.wait(PATIENCE_S)
    waits = [put_after(run, store, what) for what in ("journal", "txn", "write", "fenced write")]
    slow.gate.set()
    for wait in waits:
        with pytest.raises(UnavailableError, match='run "r" was lost'):
            wait()
    assert store._log.records("run/r") == []
    assert store.team("t").state.to_dict() == {}


def test_a_late_commit_of_an_earlier_pass_is_read_before_the_run_is_claimed(
    monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    """One whose outcome nobody knew may land, under the same lease, when it is taken up again."""

    @holdfast.run(name="prefix:late")
    def body(ctx: Any) -> float:
        return ctx.random()

    store.runs.start(body, id="r", queue="q")
    read = store._kernel.part(Engine).journal_of

    def late(id: str) -> Journal:
        journal = read(id)
        monkeypatch.setattr(store._kernel.part(Engine), "journal_of", read)
        done = events.StepDone("random", Raw(b"0.5"), kind="random", effect="pure", ordinal=1)
        lease = store._log._backend.leases.acquire("run/r", store.workers.own, ttl_s=30)
        store._kernel.part(Engine).append("r", lease, [done], ())
        return journal

    monkeypatch.setattr(store._kernel.part(Engine), "journal_of", late)
    assert store.runs.resume("r").result() == 0.5
    types = [record.type for record in store._log.records("run/r")]
    assert types == ["run.created", "run.done", "run.claimed", "run.ended"]
