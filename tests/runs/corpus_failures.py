"""Failures: back-off, caught errors, acts that raise, swallowed control (rules 1, 8, 9)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.errors import StepError
from holdfast.runs import Retry
from tests.runs.corpus_steps import (
    Busy,
    Program,
    Told,
    add,
    always_fails,
    cry,
    pay,
    post,
    post_late,
    refuse,
)
from tests.runs.corpus_waits import answering
from tests.runs.witness import WITNESS, was_done


@holdfast.run
def retried(ctx: Any) -> str:
    return post_late("x")


@holdfast.step(effect="effect", verify=was_done, not_done=Busy, retry=Retry(2, wait_s=0.3))
def post_much_later(ctx: Any, text: str) -> str:
    if ctx.attempt < 2:
        raise Busy("come again")
    return WITNESS.act(ctx.key, f"later {text}", f"attempt {ctx.attempt}")


@holdfast.run
def long_back_off(ctx: Any) -> list[str]:
    """A pause between attempts that is too long for a thread: the run is suspended meanwhile."""
    return [post("first"), post_much_later("x")]


@holdfast.run
def caught(ctx: Any) -> list[str]:
    said: list[str] = []
    try:
        always_fails()
    except StepError as error:
        said.append(post(f"{error.kind} {error.text}"))
    return said


@holdfast.run
def failed(ctx: Any) -> None:
    post("before")
    raise KeyError("nothing here")


@holdfast.run
def failed_step(ctx: Any) -> None:
    """Nobody catches what a step raises: the run fails with it."""
    pay(1)
    refuse("for good")


@holdfast.step(effect="effect", verify=was_done, not_done=Busy, retry=Retry(3, wait_s=0.001))
def never_ready(ctx: Any) -> None:
    raise Busy(f"attempt {ctx.attempt}")


@holdfast.run
def exhausted(ctx: Any) -> list[str]:
    try:
        never_ready()
    except StepError as error:
        return [error.kind, error.text, error.outcome, post("gave up")]
    return []


@holdfast.step(effect="effect", verify=was_done, retry=Retry(3, wait_s=0.001))
def done_but_raised(ctx: Any, text: str) -> str:
    WITNESS.act(ctx.key, f"raised {text}", f"done {text}")
    raise TimeoutError("no answer")


@holdfast.run
def timeout_verified(ctx: Any) -> list[str]:
    """The act was done and its answer lost: the verifier knows, and it is not tried again."""
    return [done_but_raised("a"), done_but_raised("b")]


@holdfast.step(effect="effect", retry=Retry(3, wait_s=0.001))
def cry_and_raise(ctx: Any, text: str) -> str:
    WITNESS.act(ctx.key, f"cry {text}", f"cried {text}")
    raise TimeoutError("no answer")


@holdfast.run
def timeout_unverified(ctx: Any) -> list[str]:
    """Nobody knows whether it was done, so it is not tried again, whatever its retries (rule 8)."""
    said: list[str] = []
    try:
        cry_and_raise("help")
        said.append("a person says done")
    except StepError as error:
        said.append(error.kind)
    return [post("after")] if said else []


@holdfast.step(effect="pure")
def tell(number: int) -> None:
    raise Told("more in data", {"number": number, "list": [1, 2]})


@holdfast.run
def error_data(ctx: Any) -> list[Any]:
    try:
        tell(7)
    except StepError as error:
        post("told")
        return [error.kind, error.text, error.data]
    return []


@holdfast.run
def cleaned_up(ctx: Any) -> str:
    """Acts in `finally` and in `except`, on the way out of a failure."""
    try:
        try:
            pay(1)
            refuse("now")
        finally:
            post("finally")
    except StepError:
        return post("recovered")
    return "not reached"


@holdfast.run
def swallowed(ctx: Any) -> list[Any]:
    """A body that catches everything: what it returns while it should wait does not count."""
    said: list[Any] = []
    try:
        said.append(ctx.wait("approve", timeout="1h"))
    except BaseException:
        said.append("swallowed")
    try:
        said.append(post("after"))
    except BaseException:
        said.append("swallowed again")
    return said


@holdfast.run
def swallowed_in_a_branch(ctx: Any) -> dict[str, Any]:
    def greedy(ctx: Any) -> Any:
        try:
            return ctx.wait("approve", timeout="1h")
        except BaseException:
            return "swallowed"

    return ctx.parallel(greedy=ctx.branch(greedy), other=ctx.branch(add, 1, 1))


@holdfast.run
def bare_excepts(ctx: Any) -> int:
    """`except Exception` around everything, as people write it."""
    count = 0
    for number in ctx.repeat(3):
        try:
            refuse(f"{number}")
        except Exception:
            count += 1
            cry(f"{number}")
    return count


FAILURES = [
    Program(run=retried, gives="attempt 3", acts={"late x": 1}),
    Program(
        run=long_back_off,
        gives=["posted first", "attempt 2"],
        acts={"post first": 1, "later x": 1},
    ),
    Program(run=caught, gives=["posted OSError no"], acts={"post OSError no": 1}),
    Program(run=failed, gives=["KeyError", "'nothing here'"], acts={"post before": 1}),
    Program(run=failed_step, gives=["ValueError", "for good"], acts={"pay 1": 1}),
    Program(
        run=exhausted,
        gives=["Busy", "attempt 3", "not done", "posted gave up"],
        acts={"post gave up": 1},
    ),
    Program(run=timeout_verified, gives=["done a", "done b"], acts={"raised a": 1, "raised b": 1}),
    Program(
        run=timeout_unverified,
        gives=["posted after"],
        acts={"cry help": 1, "post after": 1},
        is_unverified=True,
    ),
    Program(
        run=error_data,
        gives=["Told", "more in data", {"number": 7, "list": [1, 2]}],
        acts={"post told": 1},
    ),
    Program(
        run=cleaned_up,
        gives="posted recovered",
        acts={"pay 1": 1, "post finally": 1, "post recovered": 1},
    ),
    Program(
        run=swallowed,
        gives=[{"ok": True}, "posted after"],
        acts={"post after": 1},
        person=answering,
    ),
    Program(
        run=swallowed_in_a_branch,
        gives={"greedy": {"ok": True}, "other": 2},
        person=answering,
        order="path",
    ),
    Program(
        run=bare_excepts,
        gives=3,
        acts={"cry 0": 1, "cry 1": 1, "cry 2": 1},
        is_unverified=True,
    ),
]
