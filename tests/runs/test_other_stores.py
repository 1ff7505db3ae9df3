"""Runs of one store that write to another: not fenced there, and yet written once (rule 3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLostError, Store, UnavailableError, aio
from holdfast.core.commit import ProposedCommit
from holdfast.runs.engine import Engine
from holdfast.runs.execution import Execution
from tests.record.stores import ALL, new_url

OTHER: dict[str, Any] = {}
REACHED = threading.Event()


def other() -> Any:
    return OTHER["store"]


@pytest.fixture(params=ALL)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def here(kind: str, tmp_path: Path) -> Iterator[Store]:
    """A store for runs, of the kind after that of the other: so each kind is both once."""
    after = (ALL * 2)[ALL.index(kind) + 1]
    with holdfast.open(new_url(after, tmp_path)) as store:
        yield store


@pytest.fixture
def there(kind: str, tmp_path: Path) -> Iterator[Store]:
    """A store of each kind, beside the one that runs are in."""
    with holdfast.open(new_url(kind, tmp_path)) as store:
        OTHER["store"] = store
        REACHED.clear()
        store.team("old").set("n", 1)
        yield store
        OTHER.clear()


@holdfast.step(effect="idempotent")
def in_a_step(ctx: Any) -> None:
    other().team("t").append("log", "step")


def in_a_branch(ctx: Any, word: str) -> None:
    other().team(word).append("log", word)


@holdfast.run
def writing(ctx: Any) -> str:
    """In the body, in branches, in a step; a decision too, which names itself by its place."""
    other().team("t").append("log", "body")
    ctx.parallel({word: ctx.branch(in_a_branch, word) for word in "ab"})
    in_a_step()
    with other().team("t").decide("goes on") as decision:
        decision.outcome("it did")
    with other().commit() as tx:
        tx.scope(other().team("t")).append("log", "joint")
    REACHED.set()
    ctx.signal("go")
    other().team("old").remove()
    return "written"


def assert_written(store: Store) -> None:
    assert store.team("t").state == {"log": ["body", "step", "joint"]}
    assert [store.team(word).state for word in "ab"] == [{"log": [word]} for word in "ab"]
    assert [one.outcome for one in store.decisions.list()] == ["it did"]
    assert store.team("old").state == {}


def test_a_run_writes_to_another_store(here: Store, there: Store) -> None:
    here.runs.start(writing, id="r")
    here.runs.signal("r", "go")
    assert here.runs.resume("r").result(timeout=60) == "written"
    assert_written(there)


def test_a_replay_does_not_write_there_again(there: Store, tmp_path: Path) -> None:
    """Another worker takes it up: the body is entered again from the top."""
    url = str(tmp_path / "here")
    with holdfast.open(url) as first:
        first.runs.start(writing, id="r")
        assert REACHED.wait(60)
    with holdfast.open(url) as second:
        run = second.runs.resume("r")
        second.runs.signal("r", "go")
        assert run.result(timeout=60) == "written"
    assert_written(there)


@holdfast.run
async def writing_softly(ctx: Any) -> str:
    await other().team("t").append("log", "body")
    await ctx.step(softly)
    await asyncio.gather(*[other().team(word).append("log", word) for word in "ab"])
    return "written"


@holdfast.step(effect="idempotent")
async def softly(ctx: Any) -> None:
    async with other().workers.lease("job"):
        await other().team("t").append("log", "step")


def test_the_same_for_asyncio(there: Store, tmp_path: Path) -> None:
    async def main() -> None:
        OTHER["store"] = aio.over(there)
        async with await aio.open(str(tmp_path / "here")) as hf:
            run = await hf.runs.start(writing_softly, id="r")
            assert await run.result(timeout=60) == "written"

    asyncio.run(main())
    assert there.team("t").state == {"log": ["body", "step"]}
    assert [there.team(word).state for word in "ab"] == [{"log": [word]} for word in "ab"]


def lose_the_lease(store: Store) -> None:
    run = store._kernel.part(Engine).active["r"]
    store._kernel.leases.drop(run.lease)
    store._log.leases.release(run.lease)


@holdfast.step(effect="idempotent")
def another_handle(ctx: Any) -> str:
    other().team("t").set("n", 1)
    lose_the_lease(OTHER["here"])
    with pytest.raises(LeaseLostError):
        other().team("t").set("n", 2)
    return "refused"


@holdfast.run
def by_another_handle(ctx: Any) -> str:
    return another_handle()


def test_another_handle_of_the_same_store_is_fenced(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with holdfast.open(url) as one, holdfast.open(url) as two:
        OTHER.update(here=one, store=two)
        one.runs.start(by_another_handle, id="r")
        with pytest.raises(LeaseLostError):
            one.runs.resume("r").result(timeout=60)
        assert two.team("t").state == {"n": 1}
    OTHER.clear()


Write = Callable[[Store], object]


def plainly(store: Store) -> None:
    store.team("t").set("n", 1)


def decided(store: Store) -> None:
    store.team("t").decide("something").__enter__()


WRITE: dict[str, Write] = {}


@holdfast.run
def after_a_loss(ctx: Any) -> None:
    ctx.now()
    WRITE["it"](other())


@pytest.mark.parametrize("write", [plainly, decided])
def test_nothing_is_written_there_before_the_journal_is(
    write: Write, there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may depend on a record that could not be written. Then neither is it."""
    submit = Execution._submit

    def full(self: Execution, proposed: ProposedCommit, commit: Any) -> Any:
        request = submit(self, ProposedCommit((), fence=self.fence), commit)  # nothing in effect
        commit.complete(UnavailableError("the disk is full"))
        return request

    with holdfast.open(str(tmp_path / "here")) as store:
        monkeypatch.setattr(Execution, "_submit", full)
        WRITE["it"] = write
        run = store.runs.start(after_a_loss, id="r")
        with pytest.raises(UnavailableError):
            run.result(timeout=60)
    assert there.team("t").state == {}
    assert there.decisions.list() == []
