"""`hf.observe`: who is told what a store does; an observer that raises or writes harms nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import UsageError, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Receipt, Refusal
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.store import Meta, Observed
from holdfast.testing import FakeClock

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CALLS: list[int] = []


@holdfast.step(effect="pure", retry=holdfast.Retry(attempts=3, wait_s=0.001))
def flaky() -> str:
    CALLS.append(len(CALLS))
    if len(CALLS) < 2:
        raise OSError("not yet")
    return "done"


@holdfast.step(effect="pure")
async def awaited() -> str:
    await asyncio.sleep(0)
    return "done"


@holdfast.step(effect="pure")
def plain() -> str:
    return "plain"


@holdfast.run
def works(ctx: Any) -> str:
    ctx.sleep(0.002)
    return flaky()


@holdfast.run
async def works_async(ctx: Any) -> str:
    await ctx.sleep(0.002)
    await awaited()
    return await ctx.step(plain)


@holdfast.run
def waits(ctx: Any) -> Any:
    return ctx.signal("go")


def _kinds(seen: list[Observed]) -> set[str]:
    return {one.kind for one in seen}


def test_commits_and_reads_are_told_until_it_is_ended(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with holdfast.open(url) as store:
        store.team("red").set("n", 0)
    seen: list[Observed] = []
    with holdfast.open(url) as store:
        assert store._log.observers is None
        end = store.observe(seen.append)
        assert store.team("red").get("n") == 0
        [read] = seen
        assert (read.kind, read.name, read.details) == ("read", "team/red", {"events": 1})
        store.team("red").set("n", 1)
        with store.commit(waits=False) as tx:
            tx.scope(store.team("red")).set("n", 2)
            tx.scope(store.team("blue")).set("n", 2)
        tx.wait()
        one, both = seen[1:]
        assert (one.kind, one.name, one.error, one.trace) == ("commit", "team/red", None, None)
        assert both.details == {"streams": ["team/red", "team/blue"], "events": 2, "batch": 1}
        assert one.duration_s >= 0
        assert one.began_us <= both.began_us + both.duration_s * 1e6
        end()
        end()
        store.team("red").set("n", 3)
        assert len(seen) == 3
        assert store._log.observers is None


def test_a_refused_commit_is_told_with_its_error() -> None:
    seen: list[Observed] = []
    with holdfast.open("memory:") as store:
        store.observe(seen.append)
        with pytest.raises(holdfast.ConflictError):
            store.team("red").set("n", 1, expected=5)
    assert [one.kind for one in seen] == ["commit"]
    assert str(seen[0].error).startswith("ConflictError: ")


def test_a_commit_that_the_backend_fails_is_told() -> None:
    class Fails(MemoryBackend):
        def commit(self, commits: Any) -> list[Receipt | Refusal]:
            raise holdfast.UnavailableError("the disk is gone")

    seen: list[Observed] = []
    with holdfast.open(Fails(clock=FakeClock())) as store:
        store.observe(seen.append)
        with pytest.raises(holdfast.UnavailableError):
            store.team("red").set("n", 1)
    assert [one.error for one in seen] == ["UnavailableError: the disk is gone"]


def test_a_commit_that_was_too_late_is_told_as_a_retry(tmp_path: Path) -> None:
    seen: list[Observed] = []
    url = str(tmp_path / "store")
    with holdfast.open(url) as one, holdfast.open(url) as other:
        one.team("red").set("n", 1)
        other.team("red").set("n", 2)
        one.observe(seen.append)
        one.team("red").set("m", 3)  # laid on what is in memory, which is out of date by now
    assert [one.kind for one in seen] == ["read", "retry", "commit"]
    assert seen[1].name == "team/red"


def test_steps_attempts_waits_and_retries_of_runs_are_told(tmp_path: Path) -> None:
    CALLS.clear()
    seen: list[Observed] = []
    with holdfast.open(str(tmp_path / "store")) as store:
        store.observe(seen.append)
        assert store.runs.start(works, id="w").result() == "done"
        run = store.runs.start(waits, id="s")
        while not any(one.kind == "wait" and one.run == "s" for one in list(seen)):
            threading.Event().wait(0.01)
        store.runs.signal("s", "go", 1)
        assert run.result() == 1
    of_step = [one for one in seen if one.step is not None and "flaky" in one.step]
    assert [one.kind for one in of_step] == ["attempt", "retry", "attempt", "step"]
    assert [one.error is None for one in of_step] == [False, False, True, True]
    assert {one.run for one in of_step} == {"w"}
    assert of_step[-1].duration_s >= of_step[0].duration_s
    assert _kinds(seen) >= {"commit", "lease", "wait", "recovery"}
    assert [one.run for one in seen if one.kind == "recovery"] == ["s"]


def test_async_runs_are_told_too(tmp_path: Path) -> None:
    seen: list[Observed] = []

    async def main() -> None:
        async with await aio.open(str(tmp_path / "store")) as store:
            end = store.observe(seen.append)
            run = await store.runs.start(works_async, id="a")
            assert await run.result() == "plain"
            end()

    asyncio.run(main())
    steps = [one.step for one in seen if one.kind == "step"]
    assert [("awaited" in str(step), "plain" in str(step)) for step in steps] == [
        (True, False),
        (False, True),
    ]
    assert _kinds(seen) >= {"attempt", "wait", "commit"}


def test_a_lease_is_told_whether_it_was_got_or_not(tmp_path: Path) -> None:
    seen: list[Observed] = []
    url = str(tmp_path / "store")
    with holdfast.open(url) as one, holdfast.open(url) as other:
        lease = one.workers.lease("nightly")
        other.observe(seen.append)
        with pytest.raises(holdfast.LeaseLostError):
            other.workers.lease("nightly")
        one.workers.release(lease)
        other.workers.lease("nightly")
    told = [one for one in seen if one.kind == "lease"]
    assert [one.name for one in told] == ["nightly", "nightly"]
    assert [one.error is None for one in told] == [False, True]


def test_a_trace_rides_in_events_and_journals(tmp_path: Path) -> None:
    CALLS.clear()
    seen: list[Observed] = []
    traces: list[str | None] = [None]
    with holdfast.open(str(tmp_path / "store")) as store:
        store.observe(seen.append, trace=lambda: traces[0])
        store.team("red").set("n", 1)
        traces[0] = TRACE
        store.team("red").set("n", 2)
        own = Meta(source="web")
        with store.commit(meta=own) as tx:
            tx.scope(store.team("red")).set("n", 3)
        metas = [event.meta for event in store.team("red").history()]
        assert metas == [
            None,
            Meta(trace=TRACE),
            Meta(source="web", trace=TRACE),
        ]
        store.runs.start(works, id="w").result()
        journal = store._log.records("run/w")
        assert {holdfast.Event(record).meta for record in journal} == {Meta(trace=TRACE)}
    assert [one.trace for one in seen if one.kind == "commit"][:3] == [None, TRACE, TRACE]


def test_an_observer_that_raises_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Observed] = []

    def raises(_: Observed) -> None:
        raise ValueError("mine")

    def no_trace() -> str:
        raise ValueError("no trace")

    with holdfast.open("memory:") as store, caplog.at_level(logging.WARNING, "holdfast.observe"):
        store.observe(raises, trace=no_trace)
        store.observe(seen.append)
        store.team("red").set("n", 1)
        assert store.team("red").get("n") == 1
    assert [one.kind for one in seen] == ["commit"]
    assert {record.message for record in caplog.records} == {
        "an observer raised",
        "a trace could not be told",
    }


def test_an_observer_that_writes_is_refused_and_the_commit_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with holdfast.open("memory:") as store, caplog.at_level(logging.WARNING, "holdfast.observe"):
        store.observe(lambda _: store.team("seen").increment("n"))
        store.team("red").set("n", 1)
        assert store.team("red").get("n") == 1
        assert store.team("seen").state.to_dict() == {}
    assert "an observer wrote to the store that it observes" in caplog.text


def test_an_observer_that_read_may_not_write_either(tmp_path: Path) -> None:
    refused: list[UsageError] = []
    with holdfast.open(tmp_path / "store") as store:
        store.team("red").set("n", 1)
        store.team("cold").set("n", 1)
    with holdfast.open(tmp_path / "store") as store:
        cold = iter(("cold",))

        def look(_: Observed) -> None:
            for id in cold:
                store.team(id).get("n")  # it is told of this read within the telling of another
                with pytest.raises(UsageError) as error:
                    store.team("seen").set("n", 1)
                refused.append(error.value)

        store.observe(look)
        assert store.team("red").get("n") == 1
        assert len(refused) == 1
        assert store.team("seen").revision == 0


def test_what_is_no_function_is_refused() -> None:
    with holdfast.open("memory:") as store:
        with pytest.raises(UsageError, match="an observer"):
            store.observe("x")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="tells the trace"):
            store.observe(print, trace=1)  # type: ignore[arg-type]


def test_commits_that_are_queued_together_are_told_each_for_itself() -> None:
    seen: list[Observed] = []
    writes = [StreamWrite(f"team/{name}", (NewEvent("x.noted", b"1"),)) for name in "ab"]
    with holdfast.open("memory:") as store:
        store.observe(seen.append, trace=lambda: TRACE)
        requests = store._log.submit_all([ProposedCommit((write,)) for write in writes])
        for request in requests:
            store._log.wait(request)
    assert [(one.name, one.trace) for one in seen] == [("team/a", TRACE), ("team/b", TRACE)]


def test_an_observation_that_ends_during_a_commit_hears_nothing_of_it() -> None:
    seen: list[Observed] = []
    ends: list[Any] = []

    class Ends(MemoryBackend):
        timeout_s = 60.0  # as a server says it: the commit goes by another way through the queue

        def commit(self, commits: Any) -> list[Receipt | Refusal]:
            ends.pop()()
            return super().commit(commits)

    with holdfast.open(Ends(clock=FakeClock())) as store:
        ends.append(store.observe(seen.append))
        store.team("red").set("n", 1)
        assert store.team("red").get("n") == 1
    assert seen == []
