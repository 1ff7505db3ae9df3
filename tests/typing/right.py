"""A program that type-checks: what a user may rely on."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import msgspec

import holdfast
from holdfast import aio
from holdfast.schemas import Outdated
from holdfast.scope import (
    AsyncState,
    ConversationState,
    GlobalState,
    State,
    TeamState,
    WorkflowState,
)
from holdfast.store import Observed, PendingCommit, Subscriber


@holdfast.schema("conversation", version=2, aliases={"mood": "sentiment"})
class Ticket(msgspec.Struct):
    stage: str
    sentiment: float | None = None


@holdfast.upgrade(Ticket, 1)
def newer(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"sentiment": None}


def read(hf: holdfast.Store, chat: holdfast.Scope[Ticket], any: holdfast.Scope) -> None:
    assert_type(hf.conversation("c1", Ticket), holdfast.ConversationScope[Ticket])
    assert_type(hf.conversation("c1", Ticket).typed, Ticket)
    assert_type(hf.scope("conversation/c1", schema=Ticket).typed.sentiment, float | None)
    assert_type(chat.fork("c2").typed.stage, str)
    assert_type(any.typed, Any)
    assert_type(hf.schemas.migrate(dry_run=True).outdated, list[Outdated])
    ticket: Ticket = Ticket("open")
    assert_type(ticket.stage, str)


async def read_async(store: aio.AsyncStore) -> None:
    assert_type(await store.conversation("c1", Ticket).typed, Ticket)


@holdfast.step(effect="idempotent")
def send(ctx: holdfast.StepContext, letter: str, copies: int = 1) -> str:
    assert_type(ctx.key, str)
    assert_type(ctx.attempt, int)
    return letter * copies


@holdfast.step(effect="pure")
def double(n: int) -> int:
    return 2 * n


@holdfast.step(effect="pure")
def measure(value: Any, *, unit: str = "m") -> float:
    return float(value)


@holdfast.step(effect="txn")
def move(tx: PendingCommit, amount: int) -> int:
    return amount


@holdfast.step(effect="read")
async def fetch(ctx: holdfast.StepContext, name: str) -> bytes:
    return name.encode()


@holdfast.run
def mailing(ctx: holdfast.Context, letters: list[str], loud: bool = False) -> list[str]:
    assert_type(ctx.step(double, 2), int)
    assert_type(ctx.step(send, "a", copies=2), str)
    assert_type(ctx.step(measure, "3", unit="km", label="far"), float)
    assert_type(ctx.step(move, 3), int)
    assert_type(double(3), int)
    return [send(letter) for letter in letters]


@holdfast.run(name="plain")
def plain() -> None: ...


@holdfast.run
async def reading(ctx: aio.AsyncContext, name: str) -> bytes:
    assert_type(await ctx.step(double, 2), int)
    return await ctx.step(fetch, name)


def talk(
    chat: ConversationState,
    team: TeamState,
    shared: GlobalState,
    work: WorkflowState,
    any_one: State,
) -> str:
    return chat.session_id + team.team_id + work.workflow_id


async def listen(scope: aio.AsyncScope, told: Subscriber) -> None:
    state: AsyncState = scope
    assert_type(await state.set("a", 1), int)


def observed(told: Observed) -> None: ...


def changed(change: holdfast.Change) -> None: ...


def use(hf: holdfast.Store) -> None:
    assert_type(hf.runs.start(mailing, ["a"]).result(), list[str])
    assert_type(hf.runs.start(mailing, ["a"], loud=True, id="monday").result(), list[str])
    assert_type(hf.runs.start(mailing, letters=["a"], id="tuesday").result(), list[str])
    assert_type(
        hf.runs.start(mailing, ["a"], True, id="friday", if_exists="attach").result(), list[str]
    )
    assert_type(hf.runs.start(mailing, ["a"], queue="night"), holdfast.Run[list[str]])
    hf.runs.start(plain, id="nothing").result()
    assert_type(hf.team("red"), "holdfast.TeamScope[Any]")
    scope: holdfast.Scope = hf.team("red")
    talk(hf.conversation("c"), hf.team("red"), hf.global_(), hf.workflow("w"), scope)
    hf.observe(observed)
    scope.subscribe(changed)
    assert_type(double.outside(4), int)


async def use_async() -> None:
    async with await aio.open("memory:") as store:
        run = await store.runs.start(reading, "a", id="r1")
        assert_type(await run.result(), bytes)
        again = await store.runs.start(reading, "a")
        assert_type(await again.result(), bytes)


def main() -> None:
    with holdfast.open("memory:", schemas=[Ticket]) as hf:
        use(hf)
        hf.conversation("c1").set("stage", "open")
        read(hf, hf.conversation("c1", Ticket), hf.conversation("c1"))
    asyncio.run(use_async())
