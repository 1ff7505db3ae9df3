"""A run that failed says where: live, replayed, and in another process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, StepError, Store, aio
from holdfast.runs import values


def divide(amount: int, by: int) -> float:
    secret = "hunter2"
    assert secret
    return amount / by


@holdfast.step(effect="read")
def share(amount: int, by: int) -> float:
    return divide(amount, by)


@holdfast.run(name="tracebacks:plain")
def plain(ctx: Any, by: int) -> float:
    return share(12, by)


@holdfast.run(name="tracebacks:own")
def own(ctx: Any) -> None:
    try:
        divide(1, 0)
    except ZeroDivisionError as error:
        raise LookupError("no rate") from error


@holdfast.run(name="tracebacks:caught")
def caught(ctx: Any) -> list[str]:
    try:
        share(12, 0)
    except StepError as error:
        if ctx.wait("again", default="no", timeout=30) == "yes":
            return [error.traceback, type(error.__cause__).__name__]
    return []


@holdfast.run(name="tracebacks:arms")
def arms(ctx: Any) -> None:
    ctx.parallel(one=ctx.branch(share, 4, 2), two=ctx.branch(share, 4, 0))


@holdfast.run(name="tracebacks:unstorable")
def unstorable(ctx: Any) -> Any:
    return ctx.step(odd)


@holdfast.step(effect="read")
def odd() -> Any:
    return object()


def failure(run: Any) -> RunFailedError:
    with pytest.raises(RunFailedError) as caught:
        run.result()
    return caught.value


def test_a_step_that_raises_says_file_line_and_the_users_frames(hf: Store):
    error = failure(hf.runs.start(plain, 0, id="r1"))
    told = error.traceback
    assert "return amount / by" in told
    assert "return share(12, by)" in told, "where the step was called"
    assert f'File "{__file__}", line {divide.__code__.co_firstlineno + 3}, in divide' in told
    assert "ZeroDivisionError: division by zero" in told
    assert str(Path(holdfast.__file__).parent) not in told, "our own frames are left out"
    assert "hunter2" not in told.replace('secret = "hunter2"', ""), "no values of variables"
    assert told.index("in divide") < told.index("in plain"), "the cause comes first"


def test_the_exception_itself_is_the_cause_where_it_was_raised(hf: Store):
    error = failure(hf.runs.start(plain, 0, id="r1"))
    assert isinstance(error.__cause__, StepError)
    assert isinstance(error.__cause__.__cause__, ZeroDivisionError)
    assert error.__cause__.traceback in error.traceback
    own_error = failure(hf.runs.start(own, id="r2"))
    assert isinstance(own_error.__cause__, LookupError)


def test_a_chain_of_causes_is_told(hf: Store):
    told = failure(hf.runs.start(own, id="r1")).traceback
    assert "ZeroDivisionError: division by zero" in told
    assert "direct cause" in told
    assert told.rstrip().endswith("LookupError: no rate")


def test_a_branch_that_raises(hf: Store):
    error = failure(hf.runs.start(arms, id="r1"))
    assert "return amount / by" in error.traceback
    assert isinstance(error.__cause__, StepError)


def test_another_handle_has_the_text_and_no_exception(hf: Store):
    told = failure(hf.runs.start(plain, 0, id="r1")).traceback
    later = failure(hf.runs.get("r1"))
    assert later.traceback == told
    assert later.__cause__ is None


def test_another_process_has_the_text(durable_url: str):
    with holdfast.open(durable_url) as store:
        told = failure(store.runs.start(plain, 0, id="r1")).traceback
    code = (
        "import sys, holdfast\n"
        "with holdfast.open(sys.argv[1]) as store:\n"
        "    try:\n"
        "        store.runs.get('r1').result()\n"
        "    except holdfast.RunFailedError as error:\n"
        "        sys.stdout.write(error.traceback)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, durable_url], capture_output=True, text=True, check=True
    )
    assert done.stdout == told


def test_a_replay_gives_the_body_the_same_text(hf: Store):
    run = hf.runs.start(caught, id="r1")
    while run.status != "waiting":
        hf._log.wait_after(hf._log.position(), timeout_s=0.05)
    [failed] = [e for e in run.journal.entries.values() if e.error is not None]
    hf.runs.answer("r1", "again", "yes")
    told, cause = run.result()
    assert failed.error is not None
    assert told == failed.error.traceback
    assert "in divide" in told
    assert cause == "NoneType", "a replay has no exception, only its text"


def test_an_error_of_ours_shows_the_users_lines_alone(hf: Store):
    told = failure(hf.runs.start(unstorable, id="r1")).traceback
    assert "return ctx.step(odd)" in told
    assert str(Path(holdfast.__file__).parent) not in told


def test_a_handle_that_is_dropped_frees_the_exception(hf: Store):
    class Kept:
        pass

    kept = Kept()
    held = weakref.ref(kept)

    @holdfast.run(name="tracebacks:holding")
    def holding(ctx: Any) -> None:
        mine = given.pop()
        raise ValueError(f"with {type(mine).__name__}")

    given = [kept]
    del kept
    run = hf.runs.start(holding, id="r1")
    failure(run)
    del run
    gc.collect()
    assert held() is None


def test_asyncio_runs_too(tmp_path: Path):
    @holdfast.run(name="tracebacks:async")
    async def body(ctx: Any) -> float:
        return await ctx.step(share, 1, 0)

    async def main() -> RunFailedError:
        async with await aio.open(tmp_path / "state") as store:
            run = await store.runs.start(body, id="r1")
            with pytest.raises(RunFailedError) as raised:
                await run.result()
            return raised.value

    error = asyncio.run(main())
    assert "return amount / by" in error.traceback
    assert "in body" in error.traceback
    assert isinstance(error.__cause__, StepError)


class TestText:
    """`traceback_of`: bounded, storable, whatever is raised."""

    def test_a_long_one_keeps_both_ends(self):
        def deep(count: int) -> None:
            if not count:
                raise ValueError("x" * 20_000)
            deep(count - 1)

        told = self.told(deep, 50)
        assert len(told) < values.TRACEBACK_MAX + 100
        assert told.startswith("Traceback")
        assert "characters are left out" in told
        assert told.rstrip().endswith("xxx")

    def test_recursion_and_surrogates(self):
        def forever() -> None:
            forever()

        assert "RecursionError" in self.told(forever)

        def odd_text() -> None:
            raise ValueError("\udc80")

        assert "\\udc80" in self.told(odd_text)

    def test_a_group_and_a_text_that_raises(self):
        class Worse(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        def several() -> None:
            raise ExceptionGroup("both", [ValueError("one"), Worse()])

        told = self.told(several)
        assert "ValueError: one" in told
        assert "Worse" in told

    def test_an_endless_chain(self):
        def chain(count: int = 50) -> None:
            try:
                raise ValueError(count)
            except ValueError as error:
                if count:
                    chain(count - 1)
                raise error

        assert "ValueError" in self.told(chain)

    def test_a_context_is_told_unless_it_is_suppressed(self):
        def hidden(is_hidden: bool) -> None:
            try:
                raise KeyError("first")
            except KeyError:
                if is_hidden:
                    raise ValueError("second") from None
                raise ValueError("second")  # noqa: B904

        assert "first" not in self.told(hidden, True)
        assert "During handling" in self.told(hidden, False)

    def told(self, function: Any, *args: Any) -> str:
        try:
            function(*args)
        except BaseException as error:
            return values.traceback_of(error)
        raise AssertionError
