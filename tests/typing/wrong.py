"""A program whose marked lines are errors, each of them, and no other line."""

from __future__ import annotations

import msgspec

import holdfast
from holdfast import aio
from holdfast.scope import ConversationState


@holdfast.schema("conversation", version="2")  # error
class Ticket(msgspec.Struct, frozen=True):
    stage: str


@holdfast.upgrade("Ticket", 1)  # error
def newer(old: dict[str, str]) -> dict[str, str]:
    return old


def read(hf: holdfast.Store, chat: holdfast.Scope[Ticket]) -> None:
    print(hf.conversation("c1", Ticket).typed.mood)  # error
    chat.typed.stage = "open"  # error
    number: int = chat.typed.stage  # error
    hf.conversation("c1", 3)  # error
    print(number)


@holdfast.step(effect="idempotent")
def send(ctx: holdfast.StepContext, letter: str, copies: int = 1) -> str:
    print(ctx.keys)  # error
    return letter * copies


@holdfast.step(effect="pure")
def double(n: int) -> int:
    return 2 * n


@holdfast.step(effect="sometimes")  # error
def odd() -> None: ...


@holdfast.run
def mailing(ctx: holdfast.Context, letters: list[str]) -> list[str]:
    send(3)  # error
    send("a", copy=2)  # error
    send()  # error
    double("x")  # error
    ctx.step(double, "x")  # error
    ctx.step(double)  # error
    ctx.step(double, 1, 2)  # error
    ctx.step(len, "x")  # error
    found: str = ctx.step(double, 2)  # error
    return [found]


@holdfast.run
async def reading(ctx: aio.AsyncContext, name: str) -> bytes:
    await ctx.step(double, "x")  # error
    return name.encode()


def use(hf: holdfast.Store) -> None:
    hf.runs.start(mailing)  # error
    hf.runs.start(mailing, 3)  # error
    hf.runs.start(mailing, 3, id="monday")  # error
    hf.runs.start(mailing, ["a"], "b")  # error
    hf.runs.start(len, ["a"])  # error
    number: int = hf.runs.start(mailing, ["a"]).result()  # error
    print(number)


async def use_async(store: aio.AsyncStore) -> None:
    await store.runs.start(reading, 3)  # error
    number: int = await (await store.runs.start(reading, "a")).result()  # error
    print(number)


def talk(chat: ConversationState) -> None: ...


def observed(told: int) -> None: ...


def mixed_up(hf: holdfast.Store) -> None:
    talk(hf.team("red"))  # error
    talk(hf.global_())  # error
    hf.observe(observed)  # error
    hf.team("red").subscribe(observed)  # error
