"""The status of a session: active, completed or crashed (BOOT-10, 11, 50; RALPH-2, 3).

Every child here is a process of its own and ends by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import ClosedError, Store, aio
from holdfast.contrib import task_lifetimes
from holdfast.contrib.task_lifetimes import SessionJob, end_abandoned
from holdfast.record.sessions import SESSION_CRASHED
from holdfast.scope import Scope
from tests.crash.children import Child, tell
from tests.record.kills import await_deaths, kill_everywhere, open_dying, open_watched
from tests.record.stores import new_url


def work(session: Scope) -> None:
    session.set("n", 1)


def kept(url: str) -> SessionJob[..., None]:
    return SessionJob(work, store=url, keep=True, ttl="1h")


def passing(url: str) -> SessionJob[..., None]:
    return SessionJob(work, store=url, keep=False, ttl="1h")


def enter(job: SessionJob[..., None]) -> Child:
    """Returns a child that is in the session "s" of a job, and stays there until it is killed."""

    def live(pipe: int, stop: int) -> None:
        task_lifetimes.open_store = open_watched  # pyright: ignore
        with job.begin("s") as session:
            session.set("n", 1)
            tell(pipe, entered=True)
            os.read(stop, 1)

    child = Child(live)
    child.hear_until(lambda: bool(child.lines))
    assert child.lines, child.trouble
    return child


def kill(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.end()
    assert child.was_killed


def statuses(hf: Store) -> list[tuple[str, str, bool]]:
    return [(one.scope, one.status, one.keep) for one in hf.sessions.list()]


def test_boot_50_a_session_whose_worker_died_reads_as_crashed(durable: str, tmp_path: Path) -> None:
    """A kept session is crashed until it is continued; then active, and completed at its end."""
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()
    child = enter(kept(url))
    with holdfast.open(url) as hf:
        chat = hf.conversation("s")
        assert chat.session.status == "active"
        assert statuses(hf) == [("conversation/s", "active", True)]
        assert [stale.kind for stale in hf.stale()] == []
        kill(child)
        await_deaths(hf)
        assert chat.session.status == "crashed"
        [session] = hf.sessions.list()
        assert (session.status, session.ended_at, session.keep) == ("crashed", None, True)
        [stale] = hf.stale()
        assert (stale.kind, stale.scope, stale.why) == ("session", "conversation/s", "owner silent")
        assert end_abandoned(hf) == [], "it is kept"
        assert chat.get("n") == 1
        with kept(url).begin("s") as session:
            session.increment("n")
            assert chat.session.status == "active"
        assert chat.session.status == "completed"
        assert (hf.sessions.list(), hf.stale(), hf.workers.marks("session")) == ([], [], [])
        assert chat.get("n") == 2
        with pytest.raises(ClosedError), kept(url).begin("s"):
            pass
        assert hf.check().ok


def hold_kept(url: str) -> None:
    task_lifetimes.open_store = open_dying  # pyright: ignore
    with kept(url).begin("s") as session:
        session.increment("n")
        session.decide("left open")


def test_a_kept_session_killed_anywhere_is_continued(durable: str, tmp_path: Path) -> None:
    """Right before and right after every commit of it, its beginning and end included."""
    seen: set[str] = set()
    for killed in kill_everywhere(hold_kept, lambda: new_url(durable, tmp_path)):
        with holdfast.open(killed.url) as hf:
            await_deaths(hf)
            chat = hf.conversation("s")
            seen.add(chat.session.status)
            left = "crashed" if chat.revision else "active"
            assert chat.session.status == ("completed" if chat.life.is_closed else left), killed
            if chat.life.is_closed:
                passing(killed.url).run()
            else:
                before = chat.get("n", 0)
                with kept(killed.url).begin("s") as session:
                    assert session.increment("n")
                assert chat.get("n") == before + 1
            assert chat.session.status == "completed", killed
            assert (hf.sessions.list(), hf.workers.marks("session")) == ([], []), killed
            assert hf.check().ok, killed
    assert seen == {"active", "crashed", "completed"}


def test_a_crashed_session_that_was_dropped_stays_crashed(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()
    child = enter(passing(url))
    with holdfast.open(url) as hf:
        assert hf.conversation("s").session.status == "active"
        kill(child)
        await_deaths(hf)
        assert statuses(hf) == [("conversation/s", "crashed", False)]
        passing(url).run()
        chat = hf.conversation("s")
        assert chat.session.status == "crashed"
        assert (hf.sessions.list(), hf.workers.marks("session")) == ([], [])
        with pytest.raises(ClosedError):
            _ = chat.state
        assert [event.type for event in chat.history()].count(SESSION_CRASHED) == 1
        [other] = [scope for scope in hf.scopes("conversation") if scope.id != "s"]
        assert other.session.status == "completed"


def test_a_conversation_whose_worker_died_in_a_turn_reads_as_crashed(
    durable: str, tmp_path: Path
) -> None:
    """Without a session: the open turn shows it, until `recover` has swept its mark."""
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()

    def live(pipe: int, stop: int) -> None:
        with open_watched(url).conversation("c").messages.turn() as turn:
            turn.add("user", "hi")
            tell(pipe, begun=True)
            os.read(stop, 1)

    child = Child(live)
    child.hear_until(lambda: bool(child.lines))
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        assert chat.session.status == "active"
        kill(child)
        await_deaths(hf)
        assert chat.session.status == "crashed"
        assert hf.conversation("other").session.status == "active"
        hf.recover()
        assert chat.session.status == "active"
        chat.close()
        assert chat.session.status == "completed"


def test_a_session_that_fails_has_ended(hf: Store) -> None:
    chat = hf.conversation("c")
    assert chat.session.status == "active"
    chat.say("hi")
    assert chat.session.status == "active"
    chat.close()
    assert chat.session.status == "completed"
    assert hf.sessions.list() == []


def test_the_status_for_asyncio(tmp_path: Path) -> None:
    url = new_url("sqlite", tmp_path)

    async def main() -> None:
        async with await aio.open(url) as hf:
            assert await hf.conversation("s").session.status == "active"
            assert [session.scope for session in await hf.sessions.list()] == ["conversation/s"]

    with kept(url).begin("s") as session:
        session.set("n", 1)
        asyncio.run(main())
