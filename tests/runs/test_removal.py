"""A run that has ended is removed, and its id begins again, on every backend (decision 0025)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, aio
from holdfast.errors import ConflictError, ExistsError, NotFoundError, RunCancelledError, UsageError
from holdfast.runs.engine import Engine
from tests.record.kills import kill_everywhere, open_dying
from tests.record.stores import DURABLE, new_url

keys: list[str] = []


@holdfast.step(effect="effect")
def charge(ctx: Any, amount: int) -> int:
    keys.append(ctx.key)
    return amount


@holdfast.run(name="removing.pay")
def pay(ctx: Any, amount: int) -> int:
    ctx.state.set("amount", amount)
    ctx.state.append("all", amount)
    return charge(amount)


@holdfast.run(name="removing.child")
def child(ctx: Any, n: int) -> int:
    ctx.state.set("n", n)
    return n


@holdfast.run(name="removing.parent")
def parent(ctx: Any, n: int) -> int:
    return ctx.join(ctx.child(child, n)) + ctx.join(ctx.child(child, n + 1, id="named"))


@holdfast.run(name="removing.asks")
def asks(ctx: Any) -> Any:
    return ctx.signal("go")


@holdfast.run(name="removing.waits")
def waits(ctx: Any) -> Any:
    done = ctx.join(ctx.child(child, 1, id="early"))
    return done + ctx.signal("go")


@holdfast.run(name="removing.leaves")
def leaves(ctx: Any) -> int:
    ctx.child(asks, id="late", when_parent_ends="leave")
    return 1


def ids(hf: Store) -> list[str]:
    return [run.id for run in hf.runs.list()]


def run_to_its_end(hf: Store, function: Any, *args: Any, id: str) -> Any:
    return hf.runs.start(function, *args, id=id).result(timeout=60)


def test_a_removed_run_is_as_if_it_had_never_been(hf: Store, url: str) -> None:
    run_to_its_end(hf, pay, 3, id="r")
    run_to_its_end(hf, pay, 4, id="s")
    assert hf.runs.remove("r") == ["r"]
    stores = [hf] if url == "memory:" else [hf, holdfast.open(url)]
    for store in stores:
        assert ids(store) == ["s"]
        assert store.workflow("r").state.to_dict() == {}
        for ask in (store.runs.resume, store.runs.cancel, store.runs.remove):
            with pytest.raises(NotFoundError, match='no run "r"'):
                ask("r")
        with pytest.raises(NotFoundError):
            store.runs.signal("r", "go")
        with pytest.raises(NotFoundError):
            store.runs.fork("r", 1)
    assert [scope.name for scope in hf.scopes()] == ["workflow/s"]
    told = [event.type for event in hf.events(scope="run/r")]
    assert (told[0], told[-2:]) == ("run.created", ["run.ended", "removed"])
    assert hf.check().ok
    for store in stores[1:]:
        store.close()


def test_the_id_begins_again_and_nothing_of_the_old_run_is_taken_for_its_own(
    hf: Store, url: str
) -> None:
    """Keys of writes and of effects differ, or the new run's would pass for done."""
    keys.clear()
    assert run_to_its_end(hf, pay, 3, id="r") == 3
    for amount in (4, 5):
        hf.runs.remove("r")
        assert run_to_its_end(hf, pay, amount, id="r") == amount
        assert hf.workflow("r").state.to_dict() == {"amount": amount, "all": [amount]}
        with pytest.raises(ExistsError):
            hf.runs.start(pay, 9, id="r")
        assert hf.runs.start(pay, 9, id="r", if_exists="attach").result(timeout=60) == amount
    assert (keys[0], len(set(keys))) == ("r/charge", 3)
    assert ids(hf) == ["r"]
    if url != "memory:":
        with holdfast.open(url) as other:
            assert other.runs.resume("r").result(timeout=60) == 5
            assert other.runs.resume("r").journal.created is not None
    assert hf.check().ok


def test_children_go_along(hf: Store) -> None:
    assert run_to_its_end(hf, parent, 1, id="p") == 3
    before = ids(hf)
    assert len(before) == 3
    assert sorted(hf.runs.remove("p")) == before
    assert ids(hf) == []
    assert run_to_its_end(hf, parent, 10, id="p") == 21
    assert hf.workflow("named").state.to_dict() == {"n": 11}
    hf.runs.remove("named")
    assert len(hf.runs.remove("p")) == 2
    assert hf.check().ok


def test_what_has_not_ended_is_named(hf: Store) -> None:
    run = hf.runs.start(asks, id="r")
    with pytest.raises(UsageError, match='run "r" cannot be removed: run "r" is'):
        hf.runs.remove("r")
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(timeout=60)
    assert hf.runs.remove("r") == ["r"]
    run = hf.runs.start(asks, id="r")
    hf.runs.signal("r", "go", 7)  # the stop that the old run was sent is not for this one
    assert run.result(timeout=60) == 7
    hf.runs.remove("r")
    again = hf.runs.start(asks, id="r")
    hf.runs.cancel("r")  # which sends what has the same key
    with pytest.raises(RunCancelledError):
        again.result(timeout=60)
    with hf.workflow("r").decide("refund") as decision:
        with pytest.raises(UsageError, match=f'decision "{decision.id}" is open'):
            hf.runs.remove("r")
        decision.outcome("done")
    assert hf.runs.remove("r") == ["r"]


def test_a_parent_and_a_child_that_have_not_ended_refuse(hf: Store) -> None:
    run = hf.runs.start(waits, id="p")
    while "early" not in [one.id for one in hf.runs.list(status="completed")]:
        hf._log.wait_after(hf._log.position(), timeout_s=0.05)
    with pytest.raises(UsageError, match='its parent, run "p", has not ended'):
        hf.runs.remove("early")
    hf.runs.signal("p", "go", 1)
    assert run.result(timeout=60) == 2
    assert hf.runs.remove("early") == ["early"]
    assert run_to_its_end(hf, leaves, id="q") == 1
    with pytest.raises(UsageError, match='run "q" cannot be removed: run "late" is'):
        hf.runs.remove("q")
    hf.runs.signal("late", "go", 1)
    assert hf.runs.resume("late").result(timeout=60) == 1
    assert hf.runs.remove("q") == ["q", "late"]


def test_a_fork_keeps_what_it_refers_to(hf: Store) -> None:
    keys.clear()
    run_to_its_end(hf, pay, 3, id="r")
    hf.runs.remove("r")
    run_to_its_end(hf, pay, 4, id="r")
    fork = hf.runs.fork("r", "charge", id="f", effects="live")
    hf.runs.remove("r")
    assert hf.runs.resume("f").result(timeout=60) == 4
    assert fork.journal.created is not None
    assert hf._kernel.part(Engine).created_of("f").name == "removing.pay"
    assert hf.workflow("f").state.to_dict() == {"amount": 4, "all": [4]}
    assert len(set(keys)) == 3
    assert hf.check().ok


def test_a_removal_that_is_overtaken_looks_again(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to_its_end(hf, pay, 3, id="r")
    commit, left = hf._log.commit, [1]

    def overtaken(proposed: Any) -> Any:
        if left[0]:
            left[0] -= 1
            hf.workflow("r").set("late", 1)
        return commit(proposed)

    monkeypatch.setattr("holdfast.runs.admin.REMOVE_RETRIES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(hf._log, "commit", overtaken)
        assert hf.runs.remove("r") == ["r"]
    run_to_its_end(hf, pay, 3, id="r")
    with monkeypatch.context() as patch:
        patch.setattr(hf._log, "commit", _always_refused)
        with pytest.raises(UsageError, match="changed 2 times"):
            hf.runs.remove("r")


def _always_refused(_: Any) -> Any:
    raise ConflictError("it changed", stream="workflow/r", expected=1, actual=2)


def test_a_store_of_asyncio_removes_runs_too(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            run = await hf.runs.start(pay, 3, id="r")
            await run.result(timeout=60)
            assert await hf.runs.remove("r") == ["r"]
            with pytest.raises(NotFoundError):
                await hf.runs.remove("r")

    asyncio.run(main())


# --- kills ----------------------------------------------------------------------------------------


def _removes(url: str) -> None:
    with open_dying(url) as hf:
        hf.runs.remove("p")


@pytest.mark.parametrize("durable", DURABLE)
def test_a_kill_leaves_the_whole_run_or_nothing_of_it(durable: str, tmp_path: Path) -> None:
    def fresh() -> str:
        url = new_url(durable, tmp_path)
        with holdfast.open(url) as hf:
            run_to_its_end(hf, parent, 1, id="p")
        return url

    for kill in kill_everywhere(_removes, fresh, in_turns=True):
        with holdfast.open(kill.url) as hf:
            assert len(ids(hf)) == (3 if kill.when == "before" else 0), kill
            assert bool(hf.workflow("named").state.to_dict()) == (kill.when == "before"), kill
            assert hf.check().ok
