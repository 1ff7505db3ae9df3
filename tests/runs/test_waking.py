"""What wakes a run that waits, and what is written while nothing does (decision 0013)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import Lease
from holdfast.core import inbox
from holdfast.errors import RunCancelledError
from holdfast.runs import define
from holdfast.runs.engine import Engine
from tests.runs.corpus import post
from tests.runs.cuts import PATIENCE_S, until
from tests.runs.witness import Witness

PAUSE = threading.Event()


def await_that(is_so: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends, "it did not happen"
        PAUSE.wait(0.02)


STARTED = threading.Event()


@holdfast.step(effect="pure")
def looks_now_and_then(ctx: Any) -> bool:
    STARTED.set()
    for _ in range(3000):
        if ctx.cancelled:
            return True
        PAUSE.wait(0.02)
    return False


@holdfast.run(name="tests:looking")
def looking(ctx: Any) -> bool:
    return looks_now_and_then()


def test_a_stop_of_another_worker_reaches_a_step_at_work(durable_url: str):
    """Rule 9: `ctx.cancelled` tells it, though the run makes no commit that would be told."""
    STARTED.clear()
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        run = one.runs.start(looking, id="r")
        assert STARTED.wait(60)
        two.runs.cancel("r")
        assert run.result(timeout=60) is True  # the step heard of it; the run had nothing left
        assert one.runs.get("r").journal.cancelling is not None


@holdfast.run(name="tests:waiting")
def waiting(ctx: Any) -> Any:
    return ctx.wait("go")


def test_a_run_that_cannot_be_resumed_keeps_no_other_from_being_woken(hf: Store):
    @holdfast.run(name="tests:gone")
    def gone(ctx: Any) -> Any:
        return ctx.wait("go")

    for function, id in ((gone, "a"), (waiting, "b")):
        until(hf.runs.start(function, id=id), "waiting")
    del define._runs["tests:gone"]  # pyright: ignore[reportPrivateUsage]
    hf.runs.answer("a", "go")
    hf.runs.answer("b", "go", 1)
    await_that(lambda: hf._kernel.part(Engine).ended("b") is not None)
    assert hf.runs.get("a").status == "waiting"


def test_starting_a_run_asks_for_its_lease_once(hf: Store, monkeypatch: pytest.MonkeyPatch):
    hf._kernel.leases.register()
    leases, renewed = hf._log._backend.leases, list[str]()
    real = leases.renew

    def renew(lease: Lease, *, ttl_s: float) -> Lease | None:
        renewed.append(lease.name)
        return real(lease, ttl_s=ttl_s)

    monkeypatch.setattr(leases, "renew", renew)
    hf.runs.start(waiting, id="r")
    until(hf.runs.get("r"), "waiting")
    assert "run/r" not in renewed


CHILD = threading.Event()


@holdfast.step(effect="pure")
def until_told() -> int:
    assert CHILD.wait(60)
    return 7


@holdfast.run(name="tests:slow child")
def slow_child(ctx: Any) -> int:
    return until_told()


@holdfast.run(name="tests:waits for a child")
def parent(ctx: Any) -> int:
    kid = ctx.child(slow_child, id="kid")
    return ctx.join(kid)


def test_a_child_that_could_not_tell_wakes_its_parent_all_the_same(
    durable_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Its worker died between its end and the message: the worker that has the parent sees the end.

    Meanwhile nothing is written for a look, however long the child takes.
    """
    CHILD.clear()
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        monkeypatch.setattr(one._kernel.part(Engine), "_tell_parent", Mock())
        one.runs.start(slow_child, id="kid")
        run = two.runs.start(parent, id="r")
        until(run, "waiting")
        length = run.journal.revision
        for _ in range(3):
            two._kernel.part(Engine).supervisor.work()
            assert two._kernel.part(Engine).look_at("r", None) is None
        assert (run.status, run.journal.revision) == ("waiting", length)
        CHILD.set()
        await_that(lambda: two._kernel.part(Engine).ended("r") is not None)
        assert run.result() == 7
        assert run.journal.revision == length + 4  # claimed, done of child and join, ended


def test_an_inbox_lets_go_of_what_was_taken(hf: Store):
    """Else an owner of n messages passes over n for each of them."""
    for number, kind in enumerate(["ambient", "steer", "interrupt", "stop"]):
        for name in ("a", "b"):
            inbox.send(hf._log, "x", kind, number, name=name)
    box = inbox.Inbox(hf._log, "x")
    box.look()
    taken: set[int] = set()
    order: list[Any] = []
    while (message := box.first("a", taken)) is not None:
        order.append(message.value)
        taken.add(message.revision)
    assert order == [3, 2, 1, 0]  # the most urgent first
    assert box.first("c") is None
    assert [m.name for m in box.waiting(taken)] == ["b"] * 4
    assert len(box.messages) == 4
    stop = box.stop()
    assert stop is not None
    box.taken.add(stop.revision)
    second = box.stop()
    assert second is not None
    assert (stop.name, second.name) == ("a", "b")


def test_a_loop_that_closes_looks_at_its_own_acts_alone(hf: Store, witness: Witness):
    """Else n loops in a loop pass over all records n times."""

    @holdfast.run(name="tests:loops in loops")
    def loops(ctx: Any) -> None:
        for _ in ctx.repeat(3):
            for _ in ctx.each([1, 2]):
                ctx.now()
        for _ in ctx.repeat(1, name="acts"):
            for word in ctx.each(["x", "y"], by=str):
                post(word)

    run = hf.runs.start(loops)
    run.result()
    x, y = "repeat.acts[0]/each[x]/post", "repeat.acts[0]/each[y]/post"
    assert run.journal.acting == {
        "repeat.acts": {"repeat.acts[0]": [x, y]},
        "repeat.acts[0]/each": {"repeat.acts[0]/each[x]": [x], "repeat.acts[0]/each[y]": [y]},
    }


def test_a_run_that_is_being_cancelled_is_listed_as_such(durable_url: str):
    """Rule 9: shown as `cancelling` while its sync step runs to its end, to every worker."""
    CHILD.clear()
    STARTED.clear()
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        run = one.runs.start(stopped_at_work, id="r")
        assert STARTED.wait(60)
        two.runs.cancel("r")
        await_that(lambda: [r.id for r in two.runs.list(status="cancelling")] == ["r"])
        assert (run.status, two.runs.get("r").status) == ("cancelling", "cancelling")
        CHILD.set()
        with pytest.raises(RunCancelledError):
            run.result(timeout=60)
        assert two.runs.list(status="cancelling") == []
        assert [r.status for r in two.runs.list()] == ["cancelled"]


@holdfast.run(name="tests:cancelled at work")
def stopped_at_work(ctx: Any) -> None:
    STARTED.set()
    until_told()
    ctx.now()


def test_what_nobody_foresaw_leaves_a_trace(hf: Store, monkeypatch: pytest.MonkeyPatch):
    """The thread that wakes runs goes on, whatever happens to one of them, and says so once."""
    until(hf.runs.start(waiting, id="r"), "waiting")
    supervisor = hf._kernel.part(Engine).supervisor
    monkeypatch.setattr(hf._kernel.part(Engine), "resume", Mock(side_effect=ValueError("a bug")))
    hf.runs.signal("r", "go", 1)
    for _ in range(2):
        supervisor.work()
    found = [one for one in hf.status()["reports"] if "a bug" in one]
    assert found == ['run "r" could not be resumed: ValueError: a bug']
    monkeypatch.setattr(supervisor, "_listen", Mock(side_effect=KeyError("another")))
    supervisor.wake()
    await_that(lambda: any("KeyError" in one for one in hf.status()["reports"]))
    assert supervisor._thread is not None  # pyright: ignore[reportPrivateUsage]
    assert supervisor._thread.is_alive()  # pyright: ignore[reportPrivateUsage]
