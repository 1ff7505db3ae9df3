"""A store that cannot be reached for a moment is no outcome of a run: it is left, and resumed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import Store, UnavailableError, aio
from holdfast.runs.engine import Engine
from tests.runs.corpus import add, post, small
from tests.runs.test_async import on
from tests.runs.witness import Witness


class Outage:
    """Something of a store that raises once, when it is next called."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_over = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_over:
            return self._inner(*args, **kwargs)
        self.is_over = True
        raise UnavailableError("the network is gone")


PLACES = {
    "inbox": lambda store, run: (run.inbox, "look"),
    "blob": lambda store, run: (store._log.blobs, "spill"),
    "child": lambda store, run: (store._kernel.part(Engine), "created_of"),
    "join": lambda store, run: (store._kernel.part(Engine), "child_ended"),
}
HERE: dict[str, Any] = {}


def cut_off(ctx: Any, place: str) -> None:
    """Makes the store unreachable for what comes next, the first time that the run is here."""
    if not HERE["outage"]:
        target, name = PLACES[place](HERE["store"], ctx._execution)
        HERE["outage"].append(Outage(getattr(target, name)))
        HERE["patch"].setattr(target, name, HERE["outage"][0])


@holdfast.step(effect="pure")
def much() -> str:
    return "x" * 100_000


@holdfast.run(name="tests:cut off")
def asking(ctx: Any, place: str) -> Any:
    begun = post("begun")
    kid = ctx.child(small, 1) if place == "join" else None
    cut_off(ctx, place)
    try:
        if place == "inbox":
            return [begun, ctx.signal("go", timeout=0.001, default="nobody")]
        if place == "blob":
            return [begun, len(much())]
        if kid is None:
            # Found started: it is asked what that is.
            kid = ctx.child(small, 1, id="kid")
        return [begun, ctx.join(kid)]
    except Exception as error:
        return f"took {error} for its own"


GIVES = {
    "inbox": ["posted begun", "nobody"],
    "blob": ["posted begun", 100_000],
    "child": ["posted begun", 2],
    "join": ["posted begun", 2],
}


@pytest.fixture
def here(hf: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    HERE.update(store=hf, patch=monkeypatch, outage=[])
    return hf


@pytest.mark.parametrize("place", PLACES)
def test_an_outage_is_no_outcome(here: Store, witness: Witness, place: str):
    if place == "child":
        here.runs.start(small, 1, id="kid").result()
    with suppress(UnavailableError):  # told, if it asks in time: else it has resumed the run
        here.runs.start(asking, place, id="r").result()
    assert HERE["outage"][0].is_over
    assert here.runs.resume("r").result() == GIVES[place]
    assert witness.acts["post begun"] == 1


@holdfast.run(name="tests:cut off in a loop")
async def asking_async(ctx: Any) -> Any:
    begun = await ctx.step(post, "begun")
    cut_off(ctx, "inbox")
    try:
        return [begun, await ctx.signal("go", timeout=0.001, default="nobody")]
    except Exception as error:
        return f"took {error} for its own"


def test_nor_is_it_in_an_async_run(url: str, witness: Witness, monkeypatch: pytest.MonkeyPatch):
    async def body(hf: aio.AsyncStore) -> None:
        HERE.update(store=hf, patch=monkeypatch, outage=[])
        run = await hf.runs.start(asking_async, id="r")
        with suppress(UnavailableError):  # told, if it asks in time: else it has resumed the run
            await run.result()
        while "r" in hf.sync._kernel.part(Engine).active:
            await asyncio.sleep(0.001)
        assert HERE["outage"][0].is_over
        assert await (await hf.runs.resume("r")).result() == ["posted begun", "nobody"]

    on(url, body)
    assert witness.acts == {"post begun": 1}


def test_an_inbox_that_cannot_be_read_keeps_nobody_from_resuming(
    here: Store, witness: Witness, monkeypatch: pytest.MonkeyPatch
):
    here.runs.start(asking, "inbox", id="r", queue="later")
    HERE["outage"].append(None)
    outage = Outage(holdfast.core.inbox.Inbox.look)
    monkeypatch.setattr(holdfast.core.inbox.Inbox, "look", lambda self: outage(self))
    with pytest.raises(UnavailableError, match="the network is gone"):
        here.runs.resume("r")
    assert here.runs.resume("r").result() == GIVES["inbox"]


@holdfast.step(effect="effect", name="complain")
def complain() -> None:
    raise holdfast.StepError("Odd", "it carries \ud800 what cannot be stored", object())


@holdfast.run(name="tests:complaining")
def complaining(ctx: Any) -> list[Any]:
    try:
        complain()
    except holdfast.StepError as error:
        return [error.kind, error.data, add(1, 1)]
    return []


def test_a_failure_that_carries_what_cannot_be_stored_is_recorded(hf: Store):
    """Rule 1: the same live and replayed, and the act is not left open."""
    run = hf.runs.start(complaining, id="r")
    assert run.result() == ["Odd", None, 2]
    assert run.journal.entries["complain"].state == "failed"
    assert run.journal.uncertain() == []
