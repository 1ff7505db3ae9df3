"""The thread that tells subscribers: its order, its bound, its end."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import MISSING, Change, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.core import dispatcher
from holdfast.core.commit import Commit, PreparedCommit, ProposedCommit, StreamWrite, changed
from holdfast.core.commit_queue import Request
from holdfast.core.dispatcher import EVERY, Dispatcher, Subscription, shared_dispatcher
from holdfast.core.event import EMPTY, StreamEnd, advance
from holdfast.core.tree import set_op
from holdfast.testing import FakeClock


@pytest.fixture
def hf():
    with holdfast.open("memory:") as store:
        yield store


def prepared(stream: str, value: object) -> PreparedCommit:
    """Returns a commit that sets a key of a new stream, as the log hands it over."""
    new_event = changed([set_op("n", value)])
    payload, ops = new_event.payload, new_event.ops
    after = advance(EMPTY, b"link", 5, new_event.type, payload, ops, lambda *_: b"")
    request = Request(ProposedCommit((StreamWrite(stream, (new_event,)),)))
    return PreparedCommit(request, Commit(5, "w"), (EMPTY,), (after,))


def test_what_overtook_is_told_after_what_it_overtook() -> None:
    """Two handles commit side by side: the later position is put first."""
    told: list[Any] = []
    one = Dispatcher()
    one.subscribe(EVERY, Subscription(lambda change: told.append(change.new), None))
    first, second = one.begin(), one.begin()
    one.put(prepared("b", "at 6"), 6)  # type: ignore[arg-type]
    one.end(second)
    assert not one.drain(0.05)  # the first one may have something before it
    one.put(prepared("a", "at 5"), 5)  # type: ignore[arg-type]
    one.end(first)
    assert one.drain()
    assert told == ["at 5", "at 6"]


def test_positions_without_an_order_are_told_as_they_come() -> None:
    class Vector(int):
        pass

    told: list[Any] = []
    one = Dispatcher()
    one.subscribe("a", Subscription(lambda change: told.append(change.position), None))
    for number in (3, 1, 2):
        one.put(prepared("a", number), Vector(number))  # type: ignore[arg-type]
    assert one.drain()
    assert told == [3, 1, 2]


def test_who_listened_when_it_was_written_is_told_unless_it_ended_since() -> None:
    told: list[str] = []
    one = Dispatcher()
    stop_a = one.subscribe("s", Subscription(lambda _: told.append("a"), None))
    stop_b = one.subscribe("s", Subscription(lambda _: told.append("b"), None))
    batch = one.begin()
    one.put(prepared("s", 1), 1)  # type: ignore[arg-type]
    one.put(prepared("other", 1), 2)  # type: ignore[arg-type]
    stop_a()
    one.subscribe("s", Subscription(lambda _: told.append("late"), None))
    one.end(batch)
    assert one.drain()
    stop_a()
    stop_b()
    assert told == ["b"]
    assert one.hears("s")
    assert not one.hears("other")


def test_a_stream_that_was_not_folded_is_not_told() -> None:
    told: list[Change] = []
    one = Dispatcher()
    one.subscribe("s", Subscription(told.append, None))
    commit = prepared("s", 1)
    end = StreamEnd(1, b"", 0, EMPTY.root)
    commit.after = (end,)
    one.put(commit, 1)  # type: ignore[arg-type]
    assert one.drain()
    assert told == []


def test_the_thread_ends_when_there_is_nothing_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "LINGER_S", 0.01)
    told: list[Any] = []
    one = Dispatcher()
    one.subscribe("s", Subscription(lambda change: told.append(change.new), None))
    batch = one.begin()
    one.put(prepared("s", 1), 1)  # type: ignore[arg-type]
    thread = one._thread
    assert thread is not None
    thread.join(0.1)  # it lingers more than once while a batch is on its way
    one.end(batch)
    thread.join()
    assert one._thread is None
    one.put(prepared("s", 2), 2)  # type: ignore[arg-type]
    assert one.drain()
    assert told == [1, 2]


def test_a_subscriber_that_leaves_in_any_way_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Any] = []
    one = Dispatcher()

    def leave(change: Change) -> None:
        told.append(change.new)
        raise SystemExit

    one.subscribe("s", Subscription(leave, None))
    one.put(prepared("s", 1), 1)  # type: ignore[arg-type]
    one.put(prepared("s", 2), 2)  # type: ignore[arg-type]
    assert one.drain()
    assert told == [1, 2]
    assert caplog.text.count('a change of "s" was not told') == 2


def test_who_commits_waits_for_slow_subscribers_for_a_while(
    hf: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "WAITING_MAX", 2)
    monkeypatch.setattr(dispatcher, "ROOM_S", 0.01)
    slow = threading.Event()
    team = hf.team("t")
    told: list[Any] = []

    def tell(change: Change) -> None:
        slow.wait()
        told.append(change.new)

    team.subscribe(tell)
    for number in range(6):
        team.set("n", number)
    with hf.commit(waits=False) as queued:
        queued.scope(team).set("n", 6)
    queued.wait()
    assert "subscribers are slow" in caplog.text
    monkeypatch.setattr(dispatcher, "ROOM_S", 60.0)
    writer = threading.Thread(target=team.set, args=("n", 7))
    writer.start()
    slow.set()
    writer.join()
    assert hf._log.dispatcher.drain(30.0)
    assert told == list(range(8))


def test_a_subscriber_may_write_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for itself: for room, for what is to be told, for the end."""
    monkeypatch.setattr(dispatcher, "WAITING_MAX", 0)
    hf = holdfast.open("memory:")
    team = hf.team("t")
    ended = threading.Event()

    def tell(change: Change) -> None:
        if change.new < 4:
            team.set("n", change.new + 1)
        else:
            assert hf._log.dispatcher.drain(30.0)
            hf.close()
            ended.set()

    team.subscribe(tell)
    team.set("n", 1)
    assert ended.wait(60)


def test_close_says_if_subscribers_were_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Dispatcher.drain, "__defaults__", (0.01,))
    hf = holdfast.open("memory:")
    slow = threading.Event()
    hf.team("t").subscribe(lambda _: slow.wait())
    hf.team("t").set("n", 1)
    hf.close()
    slow.set()
    assert "before its subscribers were told" in caplog.text
    assert not hf._log.dispatcher.listening


def test_handles_on_one_place_share_a_dispatcher() -> None:
    one = shared_dispatcher("somewhere")
    assert shared_dispatcher("somewhere") is one
    assert shared_dispatcher("elsewhere") is not one
    dispatcher._forget()  # in a forked child
    assert shared_dispatcher("somewhere") is not one
    backend = MemoryBackend(clock=FakeClock())
    with holdfast.open(backend) as hf, holdfast.open(backend) as other:
        assert hf._log.dispatcher is other._log.dispatcher
    with holdfast.open("memory:") as hf, holdfast.open("memory:") as other:
        assert hf._log.dispatcher is not other._log.dispatcher


def test_changes_are_compared_without_when_and_where() -> None:
    one = Change("team/t", 1, ("n",), 1, 2)
    timed = msgspec.structs.replace(one, time=datetime.now(UTC), position=5)
    assert one == timed
    assert not one != timed  # noqa: SIM202
    assert len({one, timed}) == 1
    assert one != Change("team/t", 1, ("n",), 1, 3)
    assert one != "a change"
    assert not one == "a change"  # noqa: SIM201


def test_a_closing_scope_is_folded_for_those_who_listen(hf: Store) -> None:
    heard: list[Change] = []
    for name in ("heard", "unheard"):
        hf.team(name).set("n", 1)
    hf._log.folds.states.clear()
    hf.team("heard").subscribe(heard.append)
    hf.team("heard").close(keep=False)
    hf.team("unheard").close(keep=False)
    assert hf._log.dispatcher.drain(30.0)
    assert [(change.path, change.old, change.new) for change in heard] == [(("n",), 1, MISSING)]
