"""Who owns a run: takeover, fencing, a paused owner that wakes (rule 10, guarantee 4)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLostError, NotFoundError, Store, UnavailableError
from holdfast.backends.protocol import START
from holdfast.errors import StillRunningError
from holdfast.runs.engine import Engine
from holdfast.runs.operation import OwnerLost
from tests.runs.corpus import pay, post
from tests.runs.witness import Witness

GATE = threading.Event()
ENTERED = threading.Event()


@holdfast.step(effect="idempotent")
def slow(ctx: Any) -> str:
    ENTERED.set()
    assert GATE.wait(60)
    return "slow"


@holdfast.run
def owned(ctx: Any) -> list[str]:
    return [post("first"), slow(), post("last")]


@pytest.fixture(autouse=True)
def gates() -> None:
    GATE.clear()
    ENTERED.clear()


def test_a_second_worker_attaches_and_sees_the_result(durable_url: str, witness: Witness):
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        one.runs.start(owned, id="r")
        assert ENTERED.wait(60)
        run = two.runs.resume("r")
        with pytest.raises(StillRunningError):
            run.result(timeout=0.01)
        assert "r" not in two._kernel.part(Engine).active
        assert [found.id for found in two.runs.list(status="running")] == ["r"]
        GATE.set()
        assert run.result() == ["posted first", "slow", "posted last"]
    assert witness.acts == {"post first": 1, "post last": 1}


def until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + 60
    while not holds():
        assert monotonic() < deadline, "it did not come to that"
        select.select([], [], [], 0.01)


def steal(store: Store, other: Store) -> None:
    """Makes a run's lease pass on while its owner is busy, as when it was paused too long."""
    run = store._kernel.part(Engine).active["r"]
    store._kernel.leases.drop(run.lease)
    store._log._backend.leases.release(run.lease)
    other.runs.resume("r")


def test_a_paused_owner_that_wakes_is_refused(durable_url: str, witness: Witness):
    """Whatever it does next is fenced; the new owner's outcome counts, and nothing is doubled."""
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        late = one.runs.start(owned, id="r")
        assert ENTERED.wait(60)
        mine = one._kernel.part(Engine).active["r"]
        ENTERED.clear()
        steal(one, two)
        assert ENTERED.wait(60)  # idempotent: the new owner does it again, with the same key
        GATE.set()
        assert two.runs.get("r").result() == ["posted first", "slow", "posted last"]
        assert mine.over.wait(60)
        assert isinstance(mine.leaving, OwnerLost)
        assert isinstance(mine.leaving.cause, LeaseLostError)
        assert late.result() == ["posted first", "slow", "posted last"]
    assert witness.acts == {"post first": 1, "post last": 1}
    with holdfast.open(durable_url) as three:
        types = [
            event.type
            for event in three.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "run/r"
        ]
        assert types.count("run.claimed") == 2
        assert types[-1] == "run.ended"
        assert three.check().ok


class WaitedFor(threading.Event):
    """An event that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.set()
        return super().wait(timeout)


def lapse(store: Store) -> None:
    """Makes a run's lease lapse while its owner is busy, and nobody else takes it."""
    run = store._kernel.part(Engine).active["r"]
    store._kernel.leases.drop(run.lease)
    store._log._backend.leases.release(run.lease)


def test_an_owner_whose_lease_lapsed_tells_its_caller_and_goes_on(
    durable_url: str, witness: Witness
):
    """The wait names the lease and what to do; asked again, it has the result."""
    with holdfast.open(durable_url) as one:
        run = one.runs.start(owned, id="r")
        assert ENTERED.wait(60)
        mine = one._kernel.part(Engine).active["r"]
        mine.over = WaitedFor()
        told: list[BaseException] = []

        def wait() -> None:
            try:
                run.result(timeout=600)
            except LeaseLostError as error:
                told.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert mine.over.waited.wait(60)
        lapse(one)
        # Until the caller was told: else the run may have ended by then, and there is a result.
        other = one._log.leases.acquire("run/r", "other", ttl_s=600)
        assert other is not None
        GATE.set()
        waiter.join(60)
        one._log.leases.release(other)
        [error] = told
        assert isinstance(error, LeaseLostError)
        assert (error.lease, error.epoch) == ("run/r", mine.lease.epoch)
        assert 'run "r" was left by this worker' in error.message
        assert "ask for its result again" in str(error.hint)
        assert run.result() == ["posted first", "slow", "posted last"]
        types = [
            event.type
            for event in one.follow(as_events=True, after=START, timeout_s=0)
            if event.stream == "run/r"
        ]
        assert types.count("run.claimed") == 2
    assert witness.acts == {"post first": 1, "post last": 1}


def test_a_run_whose_lease_lapsed_is_taken_up_though_nobody_waits(
    durable_url: str, witness: Witness
):
    with holdfast.open(durable_url) as one:
        run = one.runs.start(owned, id="r")
        assert ENTERED.wait(60)
        lapse(one)
        GATE.set()
        until(lambda: run.status == "completed")
    assert witness.acts == {"post first": 1, "post last": 1}


def test_a_lapsed_run_is_asked_for_again_until_the_store_can_be_reached(
    hf: Store, witness: Witness, monkeypatch: pytest.MonkeyPatch
):
    tries: list[str] = []
    resume = hf._kernel.part(Engine).resume

    def unreachable(id: str) -> Any:
        tries.append(id)
        if len(tries) < 3:
            raise UnavailableError("the server is away")
        return resume(id)

    run = hf.runs.start(owned, id="r")
    assert ENTERED.wait(60)
    monkeypatch.setattr(hf._kernel.part(Engine), "resume", unreachable)
    lapse(hf)
    GATE.set()
    until(lambda: run.status == "completed")
    assert tries[:3] == ["r"] * 3


def test_a_lapsed_run_that_cannot_be_resumed_is_given_up(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
):
    with holdfast.open("memory:") as hf:
        supervisor = hf._kernel.part(Engine).supervisor

        def gone(id: str) -> Any:
            raise NotFoundError(f"no code for {id}")

        monkeypatch.setattr(hf._kernel.part(Engine), "resume", gone)
        supervisor.take_up("r")
        supervisor.work()
        until(lambda: not supervisor._left)
    supervisor.take_up("r")
    assert not supervisor._left, "a closed store takes nothing up"


@holdfast.run
def writing(ctx: Any) -> None:
    slow()
    ctx.state.increment("n")


def test_a_write_of_a_late_owner_is_refused_too(durable_url: str, witness: Witness):
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as two:
        one.runs.start(writing, id="r")
        assert ENTERED.wait(60)
        mine = one._kernel.part(Engine).active["r"]
        steal(one, two)
        GATE.set()
        two.runs.get("r").result()
        assert mine.over.wait(60)
        assert two.workflow("r")["n"] == 1


PROGRAM = """
import os, sys
import holdfast
sys.path.insert(0, {root!r})
from tests.runs.test_owners import killed
print("ready", flush=True)
with holdfast.open({url!r}, settings=holdfast.Settings(heartbeat_s=0.3)) as hf:
    hf.runs.start(killed, os.getpid(), id="r").result()
"""


@holdfast.step(effect="effect", name="die_once")
def die_once(ctx: Any, pid: int) -> str:
    if os.getpid() == pid:
        os.kill(pid, signal.SIGKILL)
    return "survived"


@holdfast.step(effect="idempotent", name="die_in")
def die_in(ctx: Any, pid: int) -> str:
    return die_once.function(ctx, pid)


@holdfast.run(name="tests:killed")
def killed(ctx: Any, pid: int) -> list[Any]:
    return [pay(1), die_in(pid), pay(2)]


def test_a_killed_owner_is_taken_over(durable_url: str, witness: Witness):
    """A real process, a real SIGKILL inside a step; on one host its death is known at once."""
    root = str(Path(__file__).parents[2])
    program = PROGRAM.format(root=root, url=durable_url)
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    with holdfast.open(durable_url) as hf:
        run = hf.runs.get("r")
        assert run.status == "running"
        # `result` takes over as soon as nobody owns the run: at once, or when the lease runs out.
        if durable_url.startswith(("redis", "postgres")):
            hf._log._backend.leases.release(hf._log._backend.leases.holder("run/r"))
        assert run.result() == [1, "survived", 2]
        assert witness.acts == {"pay 2": 1}  # the first was paid by the process that died
        claims = [
            event.data
            for event in hf.follow(as_events=True, after=START, timeout_s=0)
            if event.type == "run.claimed"
        ]
        assert [claim["worker"] == hf.workers.own for claim in claims] == [False, True]


def test_a_closed_store_leaves_its_runs_to_be_resumed(durable_url: str, witness: Witness):
    with holdfast.open(durable_url) as one:
        one.runs.start(owned, id="r")
        assert ENTERED.wait(60)
        mine = one._kernel.part(Engine).active["r"]
    GATE.set()
    assert mine.over.wait(60)
    with holdfast.open(durable_url) as two:
        assert two.runs.resume("r").result() == ["posted first", "slow", "posted last"]
    assert witness.acts == {"post first": 1, "post last": 1}


def test_many_threads_start_one_run(hf: Store, witness: Witness):
    GATE.set()
    found: list[Any] = []

    def start() -> None:
        found.append(hf.runs.start(owned, id="r", if_exists="attach").result())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["posted first", "slow", "posted last"]] * 8
    assert witness.acts == {"post first": 1, "post last": 1}
