"""What a worker leaves that died between a lease and its record: others go on (rule 10).

T13 found each of these: `python -m tests.torture t13-redis --seed 429566 --point 100`,
`t13-files --seed 1 --point 47`, and, by the chance of threads, `t13-sqlite --seed 429566`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import Lease
from holdfast.runs.engine import Engine
from tests.record.stores import DURABLE, new_url
from tests.runs.corpus import post
from tests.runs.cuts import until
from tests.runs.witness import Witness


def ghost(store: Store) -> Lease:
    """Takes the run's lease as a worker would that then dies, or stands still."""
    lease = store._log._backend.leases.acquire("run/r", "ghost", ttl_s=60)
    assert lease is not None
    return lease


@holdfast.run
def greeting(ctx: Any) -> str:
    return post("hello")


@holdfast.run
def listening(ctx: Any) -> list[Any]:
    return [ctx.signal("go"), post("went")]


@pytest.mark.parametrize("backend", DURABLE)
def test_a_start_beside_a_silent_lease_makes_the_run(
    backend: str, tmp_path: Path, witness: Witness
):
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as dead, holdfast.open(url) as hf:
        lease = ghost(dead)
        run = hf.runs.start(greeting, id="r")
        assert run.status == "pending"
        with pytest.raises(holdfast.ExistsError):
            hf.runs.start(greeting, id="r")
        assert hf.runs.start(greeting, id="r", if_exists="attach").status == "pending"
        dead._log._backend.leases.release(lease)
        assert run.result() == "posted hello"
    assert witness.acts == {"post hello": 1}


@pytest.mark.parametrize("backend", DURABLE)
def test_news_for_a_run_whose_host_is_dead_reach_it_through_whoever_waits(
    backend: str, tmp_path: Path, witness: Witness
):
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as first:
        until(first.runs.start(listening, id="r"), "waiting")
    with holdfast.open(url) as dead, holdfast.open(url) as hf:
        lease = ghost(dead)
        run = hf.runs.resume("r")  # it belongs to another, so it is not entered here
        hf.runs.signal("r", "go", 7)
        dead._log._backend.leases.release(lease)
        assert run.result() == [7, "posted went"]
    assert witness.acts == {"post went": 1}


STORE: list[Store] = []


@holdfast.step(effect="read")
def answer_the_other() -> None:
    """Answers what the branch beside asked for, when that has given up waiting here."""
    [hf] = STORE
    run = hf._kernel.part(Engine).active["r"]
    # The other branch may begin later than this one. Once it has asked, its context goes when it
    # gives up: the body's and this one's are left.
    while "parallel/asking/wait.approve" not in run.journal.entries or len(run.contexts) > 2:
        time.sleep(0.001)
    hf.runs.answer("r", "approve", "yes")


def asking(ctx: Any) -> str:
    return ctx.wait("approve")


def hearing(ctx: Any) -> int:
    ctx.step(answer_the_other)
    return len(ctx.inbox())


@holdfast.run
def beside(ctx: Any) -> dict[str, Any]:
    return ctx.parallel(asking=ctx.branch(asking), hearing=ctx.branch(hearing))


def test_an_answer_that_another_branch_reads_first_is_not_lost(hf: Store):
    STORE[:] = [hf]
    assert hf.runs.start(beside, id="r").result(timeout=120) == {"asking": "yes", "hearing": 0}
