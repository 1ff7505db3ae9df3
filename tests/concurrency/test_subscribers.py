"""Subscribers hear of every change of this process, in order, after the answer: every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import MISSING, Change, ConflictError, Store, UsageError, aio
from holdfast.backends.protocol import START
from tests.record.stores import ALL, new_url


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url) as store:
        yield store


def test_it_hears_of_whatever_this_process_commits(hf: Store) -> None:
    """VIC-17, VIC-27: by a call, a queued commit, a message with a state, a restore."""
    chat = hf.conversation("c")
    heard: list[Change] = []
    told = chat.subscribe(heard.append)
    chat.set("a", 1)
    with hf.commit(waits=False) as queued:
        queued.scope(chat).set("a", 2)
    queued.wait()
    chat.messages.add("user", "hello", state={"a": 3})
    chat.set("a", 3, key="k")
    chat.set("a", 3, key="k")  # was written before: nothing is told
    chat.restore(1)
    chat.set("b", 1, if_absent=True)
    with pytest.raises(ConflictError):
        chat.set("a", 9, expected=1)
    assert told.drain()
    assert [(one.path, one.old, one.new) for one in heard] == [
        (("a",), MISSING, 1),
        (("a",), 1, 2),
        (("a",), 2, 3),
        (("a",), 3, 1),
        (("b",), MISSING, 1),
    ]
    times = [event.time for event in chat.history()]
    assert all(isinstance(one.time, datetime) and one.time in times for one in heard)
    positions = [one.position for one in heard]
    assert positions == sorted(set(positions))  # type: ignore[type-var]


def test_a_scope_that_is_closed_without_its_state_or_removed_tells_what_it_drops(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.conversation("c").update({"a": 1, "b": 2})
        hf.conversation("kept").set("a", 1)
        hf.team("t").set("a", 3)
        hf._log.folds.states.clear()  # as in a process that has not read it
        heard: list[Change] = []
        listening = hf.subscribe(heard.append)
        start = hf.position
        hf.conversation("c").close(keep=False)
        hf.conversation("kept").close(keep=True)
        hf.team("t").remove()
        assert listening.drain()
        told = [(one.scope, one.path, one.old, one.new) for one in heard]
        assert told == [
            ("conversation/c", ("a",), 1, MISSING),
            ("conversation/c", ("b",), 2, MISSING),
            ("team/t", ("a",), 3, MISSING),
        ]
        assert list(hf.follow(after=start, timeout_s=0)) == heard
        assert list(hf.follow("conversation/c", after=1, timeout_s=0)) == heard[:2]


def test_another_handle_of_the_process_is_heard(url: str) -> None:
    """VIC-17, VIC-27."""
    if url == "memory:":
        return  # another handle is another store
    with holdfast.open(url) as one, holdfast.open(url) as two:
        heard: list[tuple[str, Any]] = []
        one.team("t").subscribe(lambda change: heard.append(("team", change.new)))
        told = one.subscribe(lambda change: heard.append((change.scope, change.new)))
        two.team("t").set("n", 1)
        two.conversation("c").set("n", 2)
        assert told.drain()
        assert heard == [("team", 1), ("team/t", 1), ("conversation/c", 2)]
        two.close()
        one.team("t").set("n", 3)
        assert told.drain()
        assert heard[3:] == [("team", 3), ("team/t", 3)]


def test_the_whole_store_in_the_order_of_positions(url: str) -> None:
    """Threads and handles write side by side; each change is told once, none before another."""
    with holdfast.open(url) as one:
        other = one if url == "memory:" else holdfast.open(url)
        heard: list[Change] = []
        told = one.subscribe(heard.append)
        begin = threading.Barrier(4)

        def write(store: Store, name: str) -> None:
            begin.wait()
            for number in range(25):
                with store.commit() as tx:
                    tx.scope(store.team(name)).set("n", number)
                    tx.scope(store.team("all")).increment("n")

        threads = [
            threading.Thread(target=write, args=(store, name))
            for store, name in [(one, "a"), (other, "b"), (one, "c"), (other, "d")]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if other is not one:
            other.close()
        assert told.drain()
        assert len(heard) == 200
        positions = [change.position for change in heard]
        assert positions == sorted(positions)  # type: ignore[type-var]
        assert [change.new for change in heard if change.scope == "team/all"] == [*range(1, 101)]
        for name in "abcd":
            of_one = [change for change in heard if change.scope == f"team/{name}"]
            assert [change.new for change in of_one] == [*range(25)]
            assert [change.old for change in of_one] == [MISSING, *range(24)]


def test_close_waits_until_all_is_told(url: str) -> None:
    store = holdfast.open(url)
    heard: list[int] = []
    go_on = threading.Event()

    def tell(change: Change) -> None:
        go_on.wait()
        heard.append(change.new)

    store.team("t").subscribe(tell)
    for number in range(5):
        store.team("t").set("n", number)
    assert heard == []
    threading.Timer(0.05, go_on.set).start()
    store.close()
    assert heard == [0, 1, 2, 3, 4]


def test_a_feed_of_the_whole_store_has_old_and_new_values(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.team("t").set("n", 1)
        start = hf.position
        hf.team("t").set("n", 2)
        hf.conversation("c").say("hello")
        hf.conversation("c").set("x", {"a": 1})
        hf.team("t").delete("n")
        hf.conversation("c").set(("x", "a"), 2)
        told = list(hf.follow(after=start, timeout_s=0))
        assert [(one.scope, one.path, one.old, one.new) for one in told] == [
            ("team/t", ("n",), 1, 2),
            ("conversation/c", ("x",), MISSING, {"a": 1}),
            ("team/t", ("n",), 2, MISSING),
            ("conversation/c", ("x", "a"), 1, 2),
        ]
        assert all(one.time is not None and one.position is not None for one in told)
        assert list(hf.follow(timeout_s=0)) == []
        [last] = hf.follow("conversation/c", after=hf.conversation("c").revision - 1, timeout_s=0)
        assert (last, last.position) == (told[-1], told[-1].position)


def test_for_asyncio_a_subscriber_may_be_a_coroutine(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            heard: list[Any] = []
            failed: list[str] = []

            async def tell(change: Change) -> None:
                await asyncio.sleep(0)
                heard.append((change.new, asyncio.get_running_loop() is loop))
                if change.new == 2:
                    raise ValueError("not this one")

            async def note(error: Exception, change: Change) -> None:
                await asyncio.sleep(0)
                failed.append(f"{error}: {change.new}")

            loop = asyncio.get_running_loop()
            chat.subscribe(tell, on_error=note)
            plain: list[int] = []
            stop = hf.subscribe(lambda change: plain.append(change.new))
            for number in range(4):
                assert await chat.set("n", number) == number + 1
            assert await stop.drain()
            stop()
            await hf.team("t").set("n", 9)
            assert heard == [(number, True) for number in range(4)]
            assert (plain, failed) == ([0, 1, 2, 3], ["not this one: 2"])
            changes = hf.follow(after=START, timeout_s=0)
            feed = [one.new async for one in changes]
            assert feed == [0, 1, 2, 3, 9]
            with pytest.raises(UsageError):
                chat.subscribe(5)  # type: ignore[arg-type]
            with pytest.raises(UsageError):
                hf.subscribe(print, on_error=5)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_loop_that_ended_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.aio.loop.GLANCE_S", 0.01)

    async def main() -> aio.AsyncStore:
        hf = await aio.open("memory:")
        hf.team("t").subscribe(print)
        return hf

    loop = asyncio.new_event_loop()
    hf = loop.run_until_complete(main())
    hf.sync.team("t").set("n", 1)
    assert hf.sync._log.dispatcher.drain(30.0)
    loop.close()
    hf.sync.team("t").set("n", 2)
    assert hf.sync._log.dispatcher.drain(30.0)
    hf.sync.close()
    assert caplog.text.count("UsageError: the event loop of this subscriber has ended") == 2
