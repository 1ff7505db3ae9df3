"""The last event of a pass is the last one, and what it does to others (decision 0013)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

import holdfast
from holdfast import Store, UsageError
from holdfast.aio.store import looping
from holdfast.backends.protocol import START
from holdfast.core.commit import ProposedCommit
from holdfast.errors import RunCancelledError
from holdfast.runs import events
from holdfast.runs.engine import Engine
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Journal
from holdfast.runs.operation import Stopped
from holdfast.runs.pool import Pool, PoolCall
from tests.runs.corpus import post, small
from tests.runs.corpus_steps import cry
from tests.runs.cuts import Cut, until
from tests.runs.test_waking import await_that
from tests.runs.witness import Witness


class Late:
    """A backend around a backend: lets somebody cancel the run while its end is being written."""

    def __init__(self, hf: Store, url: str) -> None:
        self._hf = hf
        self._inner: Any = hf._log._backend
        self._url = url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        appends = [append for commit in commits for append in commit.appends]
        if any(record.type == "run.ended" for one in appends for record in one.records):
            self._hf._log._backend = self._inner
            with holdfast.open(self._url) as other:
                other.runs.cancel("r")
        return self._inner.commit(commits)


@holdfast.run
def ending(ctx: Any) -> str:
    return "done"


def test_nothing_is_recorded_after_the_end(durable_url: str):
    """A stop that is heard with the receipt of the end: the end stays the last event."""
    with holdfast.open(durable_url) as hf:
        hf._log._backend = Late(hf, durable_url)  # type: ignore[assignment]
        assert hf.runs.start(ending, id="r").result() == "done"
        types = [
            event.type
            for event in hf.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "run/r"
        ]
        assert types[-1] == "run.ended"
        assert "run.cancelling" not in types


def types_of(hf: Any, id: str = "r") -> list[str]:
    return [record.type for record in hf._log.records(f"run/{id}")]


@holdfast.run(name="tests:cut in an act")
def cut_in_an_act(ctx: Any) -> str:
    return cry("help")


def test_a_verdict_on_an_act_of_a_run_that_has_ended_changes_no_end(hf: Store, witness: Witness):
    """It is the last event then, and those who wait for the run still hear how it ended."""

    def killed(moment: str, once: bool) -> None:
        raise Cut("killed")

    witness.watch = killed
    with pytest.raises(Cut):
        hf.runs.start(cut_in_an_act, id="r").result()
    hf.runs.cancel("r")
    assert types_of(hf)[-1] == "run.ended"
    hf.runs.settle("r", "cry", holdfast.Done("cried help"))
    assert types_of(hf)[-2:] == ["run.ended", "run.settled"]
    assert hf.recover().acts == []
    with pytest.raises(RunCancelledError):
        hf.runs.get("r").result(timeout=20)


CONST = {"is": 1}


@holdfast.run(name="tests:another const")
def another_const(ctx: Any) -> None:
    ctx.const("c", CONST["is"])
    ctx.wait("approve")


def test_a_divergence_of_a_run_that_has_ended_is_not_adopted(hf: Store):
    CONST["is"] = 1
    until(hf.runs.start(another_const, id="r"), "waiting")
    CONST["is"] = 2
    until(hf.runs.resume("r"), "needs_attention")
    hf.runs.cancel("r")
    with pytest.raises(UsageError, match='run "r" has ended'):
        hf.runs.adopt("r")
    with pytest.raises(RunCancelledError):
        hf.runs.get("r").result(timeout=20)


def test_a_txn_of_a_branch_that_was_given_up_is_not_written_after_the_end(hf: Store):
    """Its body may end when the run has, and the lease is still there."""
    lease = hf.workers.lease("run/r")
    run = Execution(hf._log, "r", None, Journal(), lease)  # type: ignore[arg-type]
    run.forked(1)
    run.record(events.Created("tests:left", Raw(b"{}")))
    run.record_last(events.Ended("completed"))
    run.commit()
    with pytest.raises(Stopped):
        run.commit_with(
            events.StepDone("parallel/b/move", kind="step", effect="txn"), ProposedCommit(())
        )
    assert types_of(hf) == ["run.created", "run.ended"]


# --- a stop that comes while a pass ends ---------------------------------------------------------


class Stopping:
    """A backend around a backend: somebody stops the run while it is being suspended or parked."""

    def __init__(self, hf: Store, stop: Callable[[], None]) -> None:
        self._hf = hf
        self._inner: Any = hf._log._backend
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        appends = [append for commit in commits for append in commit.appends]
        if any(record.type == "run.suspended" for one in appends for record in one.records):
            self._hf._log._backend = self._inner
            self._stop()
        return self._inner.commit(commits)


@holdfast.run(name="tests:parked")
def parking(ctx: Any) -> str:
    return cry("help")


def test_a_stop_that_comes_while_a_run_is_being_parked_ends_it(durable_url: str, witness: Witness):
    """Rule 9. Whoever stops it finds an owner, and leaves it to the owner."""
    with holdfast.open(durable_url) as hf, holdfast.open(durable_url) as other:

        def killed(moment: str, once: bool) -> None:
            raise Cut("killed")

        witness.watch = killed
        with pytest.raises(Cut):
            hf.runs.start(parking, id="r").result()
        hf._log._backend = Stopping(hf, lambda: other.runs.cancel("r"))  # type: ignore[assignment]
        hf.runs.resume("r")
        await_that(lambda: hf._kernel.part(Engine).ended("r") is not None)
        assert hf.runs.get("r").status == "cancelled"


@holdfast.run(name="tests:asked in a loop")
async def asked_async(ctx: Any) -> Any:
    return await ctx.wait("approve")


def test_a_stop_that_comes_while_an_async_run_is_being_suspended_is_heard(durable_url: str):
    """Its task is cancelled where it writes that it waits; nobody asks for its result."""
    with (
        holdfast.open(durable_url) as other,
        looping(holdfast.open(durable_url)) as hf,
    ):

        def stop() -> None:
            other.runs.cancel("r")
            run = hf._kernel.part(Engine).active["r"]
            run.stop_wanted = True
            run.interrupt()

        hf._log._backend = Stopping(hf, stop)  # type: ignore[assignment]
        hf.runs.start(asked_async, id="r")
        await_that(lambda: other.runs.get("r").journal.ended is not None)
        assert other.runs.get("r").status == "cancelled"


# --- children ------------------------------------------------------------------------------------


@holdfast.run(name="tests:asked")
def asked(ctx: Any) -> Any:
    return ctx.wait("approve")


@holdfast.step(effect="pure")
def enough() -> bool:
    return True


@holdfast.run(name="tests:enough")
def leaves_its_child(ctx: Any) -> str:
    kid = ctx.child(asked, id="kid")
    return "enough" if enough() else ctx.join(kid)


def test_a_child_is_stopped_when_what_its_parent_ends_for_is_durable(
    hf: Store, monkeypatch: pytest.MonkeyPatch
):
    """Rule 7. Killed after the stop, a parent that decides anew would join what it has stopped."""
    hf._kernel.part(Engine).supervisor.flush_s = None
    cancel, known = hf._kernel.part(Engine).cancel_child, list[str]()

    def cancel_child(*child: str) -> None:
        known.extend(hf._kernel.part(Engine).journal_of("r").entries)
        cancel(*child)

    monkeypatch.setattr(hf._kernel.part(Engine), "cancel_child", cancel_child)
    assert hf.runs.start(leaves_its_child, id="r").result() == "enough"
    assert "enough" in known
    until(hf.runs.get("kid"), "cancelled")


@holdfast.run(name="tests:wants an id")
def wants_an_id(ctx: Any) -> str:
    try:
        ctx.child(small, 1, id="theirs")
    except holdfast.StepError as error:
        return f"{error.kind} {post('went on')}"
    return "it is another's"


def test_a_run_of_another_is_no_child(hf: Store, witness: Witness):
    """Not joined as if it were, and not stopped with a parent that is none."""
    until(hf.runs.start(asked, id="theirs"), "waiting")
    assert hf.runs.start(wants_an_id, id="r").result() == "ExistsError posted went on"
    assert hf.runs.get("theirs").status == "waiting"


@holdfast.run(name="tests:finds it started")
def finds_it_started(ctx: Any) -> str:
    ctx.child(asked, id="theirs")
    return "done"


def test_a_run_that_was_started_by_another_is_not_stopped_with_who_found_it(hf: Store):
    until(hf.runs.start(asked, id="theirs"), "waiting")
    assert hf.runs.start(finds_it_started, id="r").result() == "done"
    until(hf.runs.get("theirs"), "waiting")


@holdfast.run(name="tests:stopped parent")
def stopped_parent(ctx: Any, is_at_work: bool) -> None:
    for policy in ("cancel", "leave", "wait"):
        ctx.child(asked, id=policy, when_parent_ends=policy)
    if is_at_work:
        ctx._engine.cancel(ctx.run_id)
    ctx.wait("never")


@pytest.mark.parametrize("is_at_work", [True, False])
def test_a_stop_reaches_children_but_those_to_be_left(hf: Store, is_at_work: bool):
    """Whether it is at work or waits when it is stopped."""
    run = hf.runs.start(stopped_parent, is_at_work, id="r")
    if not is_at_work:
        until(run, "waiting")
        hf.runs.cancel("r")
    with pytest.raises(RunCancelledError):
        run.result(timeout=20)
    for id, status in (("cancel", "cancelled"), ("leave", "waiting"), ("wait", "cancelled")):
        until(hf.runs.get(id), status)


# --- threads -------------------------------------------------------------------------------------


LATE = threading.Event()


def fail_late(ctx: Any) -> None:
    assert LATE.wait(60)
    raise ValueError("too late")


@holdfast.run(name="tests:left a failure behind")
def left_a_failure(ctx: Any) -> Any:
    return ctx.parallel(quick=ctx.branch(enough), slow=ctx.branch(fail_late), join="first")


def test_a_branch_that_fails_when_its_run_was_left_ends_quietly(
    hf: Store, monkeypatch: pytest.MonkeyPatch
):
    LATE.clear()
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    hf.runs.start(left_a_failure, id="r", queue="q")
    run = hf.runs.resume("r")
    contexts = hf._kernel.part(Engine).active["r"].contexts
    assert run.result() == {"quick": True}
    LATE.set()
    pool: Any = hf._kernel.part(Engine).pool
    await_that(lambda: len(contexts) == 1 and (told or pool._idle == pool._threads))
    assert told == []


def test_a_job_that_raises_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch):
    """Its thread would be counted for ever, and 64 of them would be all there are."""
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail() -> None:
        raise Stopped("unforeseen")

    pool = Pool("tests", threads_max=1)
    jobs = [PoolCall(fail), PoolCall(lambda: None)]
    for job in jobs:
        pool.submit(job)
    assert all(job.done.wait(120) for job in jobs)
    assert [one.exc_type for one in told] == [Stopped]
