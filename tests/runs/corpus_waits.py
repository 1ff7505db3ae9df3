"""Waits for people, signals, the inbox, time; and stops (rules 7, 9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

import holdfast
from holdfast import Store
from holdfast.errors import ExistsError, NotFoundError, StepError, UsageError
from tests.runs.corpus_steps import Program, look, pay, post

Person = Callable[[Store, str], None]
LATE = (ExistsError, NotFoundError, UsageError)
"""What somebody is told who comes too early, twice, or when all is over."""


def answering(store: Store, id: str) -> None:
    with suppress(*LATE):
        store.runs.answer(id, "approve", {"ok": True})


@holdfast.run
def approval(ctx: Any) -> str:
    post("asked")
    answer = ctx.wait("approve", timeout="1h", default={"ok": False})
    return post(f"answer {answer['ok']}")


class Verdict(Struct):
    """What a person may answer."""

    grade: int


def answering_badly_first(store: Store, id: str) -> None:
    with suppress(*LATE):
        entry = store.runs.get(id).journal.entries.get("wait.grade")
        if entry is not None and entry.refused:
            store.runs.answer(id, "grade", {"grade": 2})
        elif store._log.head(f"inbox/run/{id}") is None:
            store.runs.answer(
                id, "grade", {"grade": "good"}
            )  # once: a slow run has not refused it yet


@holdfast.run
def checked_answer(ctx: Any) -> int:
    """An answer that does not fit is refused, and the wait goes on."""
    verdict = ctx.wait("grade", schema=Verdict)
    return pay(verdict.grade)


@holdfast.run
def expired(ctx: Any) -> Any:
    try:
        ctx.wait("nobody", timeout=0.01)
    except StepError as error:
        return [post(error.kind), ctx.wait("nobody", timeout=0.01, default="none")]


def answering_all(store: Store, id: str) -> None:
    for name in ("a", "b"):
        with suppress(*LATE):
            store.runs.answer(id, f"parallel/{name}/wait.approve", name)


def asking(ctx: Any, name: str) -> str:
    post(f"ask {name}")
    return ctx.wait("approve")


@holdfast.run
def waits_side_by_side(ctx: Any) -> dict[str, str]:
    """Two people are asked at once; the run is entered again for each answer."""
    return ctx.parallel(a=ctx.branch(asking, "a"), b=ctx.branch(asking, "b"))


def answering_each(store: Store, id: str) -> None:
    for number in range(3):
        with suppress(*LATE):
            store.runs.answer(id, f"repeat[{number}]/wait.next", number)


@holdfast.run
def waits_in_a_loop(ctx: Any) -> list[int]:
    found: list[int] = []
    for _ in ctx.repeat(3):
        found.append(ctx.wait("next"))
        pay(found[-1])
    return found


def signalling(store: Store, id: str) -> None:
    with suppress(*LATE):
        store.runs.send(id, "steer", "left", id="steer-1")
        store.runs.send(id, "ambient", "rain", id="ambient-1")
        for number in range(2):
            store.runs.signal(id, "go", number, id=f"go-{number}")


@holdfast.run
def signals(ctx: Any) -> list[Any]:
    """Each signal and message is taken once, the most urgent first."""
    first = ctx.signal("go")
    post(f"signal {first}")
    second = ctx.signal("go")
    came = [message.value for message in ctx.inbox()]
    post("heard")
    return [first, second, came, len(ctx.inbox())]


@holdfast.run
def signal_or_time(ctx: Any) -> list[Any]:
    """A signal that never comes, and one that comes late: the first time-out is for good."""
    first = ctx.signal("never", timeout=0.01, default="none")
    post(f"{first}")
    return [first, ctx.signal("go"), ctx.signal("go")]


@holdfast.run
def sleeping(ctx: Any) -> str:
    ctx.sleep(0.01)
    post("awake")
    ctx.sleep("0.3s")
    return post("up")


# --- stops ---------------------------------------------------------------------------------------


def stopping(store: Store, id: str) -> None:
    with suppress(*LATE):
        if store.runs.get(id).status == "waiting":
            store.runs.cancel(id)


@holdfast.run
def cancelled(ctx: Any) -> None:
    """Somebody stops it while it waits: nothing after the wait is done."""
    post("before")
    ctx.wait("never")
    post("behind")


@holdfast.run
def cancelled_in_branches(ctx: Any) -> None:
    def waiting(ctx: Any, name: str) -> None:
        pay(len(name))
        look(name)
        ctx.wait(name)

    ctx.parallel(a=ctx.branch(waiting, "a"), bb=ctx.branch(waiting, "bb"))
    post("behind")


@holdfast.run
def stopped_itself(ctx: Any) -> None:
    """A stop that greedy code catches is a stop all the same."""
    with suppress(BaseException):
        ctx.wait("never")
    post("behind")


WAITS = [
    Program(
        run=approval,
        gives="posted answer True",
        acts={"post asked": 1, "post answer True": 1},
        person=answering,
    ),
    Program(run=checked_answer, gives=2, acts={"pay 2": 1}, person=answering_badly_first),
    Program(run=expired, gives=["posted TimeoutError", "none"], acts={"post TimeoutError": 1}),
    Program(
        run=waits_side_by_side,
        gives={"a": "a", "b": "b"},
        acts={"post ask a": 1, "post ask b": 1},
        person=answering_all,
        order="path",
    ),
    Program(
        run=waits_in_a_loop,
        gives=[0, 1, 2],
        acts={"pay 0": 1, "pay 1": 1, "pay 2": 1},
        person=answering_each,
    ),
    Program(
        run=signals,
        gives=[0, 1, ["left", "rain"], 0],
        acts={"post signal 0": 1, "post heard": 1},
        person=signalling,
    ),
    Program(
        run=signal_or_time,
        gives=["none", 0, 1],
        acts={"post none": 1},
        person=signalling,
    ),
    Program(run=sleeping, gives="posted up", acts={"post awake": 1, "post up": 1}),
    Program(run=cancelled, gives="cancelled", acts={"post before": 1}, person=stopping),
    Program(
        run=cancelled_in_branches,
        gives="cancelled",
        acts={"pay 1": 1, "pay 2": 1},
        person=stopping,
        order="path",
    ),
    Program(run=stopped_itself, gives="cancelled", person=stopping),
]
