"""Processes killed with SIGKILL at the ends of scopes, values and marks (0065, 0073).

Before and after each commit: of a retain when values and scopes have ended, of a write and a touch
right before an end that slides, and right at it. What is left is whole, and the next run does the
rest. A retain is killed on every backend; the others on this host's disks, because on servers the
conformance tests move the clock that judges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.protocol import GONE, START
from holdfast.core import retention
from holdfast.core.expiry import EXPIRING
from holdfast.core.key_ends import ENDING
from holdfast.core.mark_ends import ENDS
from holdfast.errors import ExpiredError
from holdfast.testing import FakeClock
from holdfast.testing.clock import START_US
from tests.record.kills import PATIENCE_S, Kill, kill_everywhere, open_dying, run_child
from tests.record.stores import new_url

CANARY = "CANARY-51de"
END_US = 60_000_000


@pytest.fixture(params=["files", "sqlite"])
def local(request: pytest.FixtureRequest) -> str:
    return request.param


def payloads(hf: Store) -> bytes:
    return b"\n".join(one.payload for one in hf._log.read_all(after=START, limit=100_000))


def kills(kind: str, place: Path, prepare: Any, work: Any) -> Iterator[Kill]:
    def fresh() -> str:
        url = new_url(kind, place)
        run_child(prepare, url)  # the process that forks has no store open
        return url

    yield from kill_everywhere(work, fresh, in_turns=True)


def until_ended(hf: Store) -> None:
    """Returns when the clock that judges says that all of it has ended: it does not wait long."""
    while "token" in hf.team("t"):
        pass
    with suppress(ExpiredError):
        while True:
            hf.conversation("v").get("n")


def prepare_ended(url: str) -> None:
    with holdfast.open(url) as hf:
        team = hf.team("t")
        team.set("stays", {"n": 1}, checkpoint="named")
        with hf.commit() as tx:
            tx.scope(team).append("list", "an item that is long enough to be named " * 3)
            tx.scope(team).set("token", CANARY, ttl_s=0.2)
        team.append("list", 2)
        team.set("token", f"{CANARY} again", ttl_s=0.2)
        hf.conversation("v", ttl_s=0.2, slides=True).set("n", CANARY)
        with hf.commit() as tx:
            tx.mark("todo", "a", ttl_s=0.2)
        until_ended(hf)
        while hf.workers.marks("todo"):
            pass


def await_server(hf: Store) -> None:
    """Returns when a server has let go of the scope, which it does by itself (clause 18)."""
    ends = time.monotonic() + PATIENCE_S
    while b'["set","n",' in payloads(hf):
        assert time.monotonic() < ends, "the scope has ended, and its events are there"
        time.sleep(0.02)


def retain(url: str) -> None:
    # On a server the lease of a run that is killed is free when it runs out; the next one waits.
    retention.LEASE_TTL_S = 0.3
    with open_dying(url) as hf:
        hf.retention.run(grace_s=0, wait_s=60)


def test_a_retain_that_is_killed_at_the_ends_is_finished_by_the_next(
    durable: str, tmp_path: Path
) -> None:
    for kill in kills(durable, tmp_path, prepare_ended, retain):
        with holdfast.open(kill.url) as hf:
            team = hf.team("t")
            shown = {"stays": {"n": 1}, "list": ["an item that is long enough to be named " * 3, 2]}
            assert team.state.to_dict() == shown, kill
            hf.retention.run(grace_s=0, wait_s=60)
            assert team.state.to_dict() == shown, kill
            assert team.at("named") == {"stays": {"n": 1}}, kill
            if hf._log.heads(["conversation/v"])[0].expires_us:
                await_server(hf)
            assert CANARY.encode() not in payloads(hf), kill
            assert [one.key for one in hf._log.marks.list(ENDING)] == [], kill
            assert hf._log.marks.list("todo") == hf._log.marks.list(ENDS) == [], kill
            with pytest.raises(ExpiredError):
                hf.conversation("v").get("n")
            assert hf.check().findings == [], kill


# --- at the boundary ------------------------------------------------------------------------------
#
# The clock stands right before the end, or at it.


def at(us: int) -> FakeClock:
    return FakeClock(START_US + us)


def prepare_sliding(url: str) -> None:
    with holdfast.open(url, settings=Settings(clock=at(0))) as hf:
        hf.conversation("v", ttl_s=60, slides=True).set("n", 0)


def write_at(us: int) -> Any:
    def work(url: str) -> None:
        with holdfast.open(url, settings=Settings(clock=at(us))) as hf:
            with suppress(ExpiredError):
                hf.conversation("v").set("n", 1)
            with suppress(ExpiredError):
                hf.conversation("v").life.touch()
            hf.team("t").set("reached", True)

    return work


def touch_at(us: int) -> Any:
    def work(url: str) -> None:
        with holdfast.open(url, settings=Settings(clock=at(us))) as hf:
            with suppress(ExpiredError):
                hf.conversation("v").life.touch()
            hf.team("t").set("reached", True)

    return work


@pytest.mark.parametrize("work_at", [write_at, touch_at])
def test_a_process_killed_right_before_a_sliding_end_has_moved_it_or_not(
    local: str, tmp_path: Path, work_at: Any
) -> None:
    for kill in kills(local, tmp_path, prepare_sliding, work_at(END_US - 1)):
        moved = kill.nth > 1 or kill.when == "after"
        with holdfast.open(kill.url, settings=Settings(clock=at(END_US))) as hf:
            chat = hf.conversation("v")
            if not moved:
                with pytest.raises(ExpiredError):
                    chat.get("n")
            else:
                assert chat.get("n") == (1 if work_at is write_at else 0), kill
                ends = chat.life.expires_at
                assert ends is not None
                assert ends.timestamp() * 1e6 == (START_US + 2 * END_US - 1) // 1000 * 1000
                [mark] = hf._log.marks.list(EXPIRING)
                assert mark.due == ends.timestamp() * 1e6, kill
            assert hf.check().findings == []
        with holdfast.open(kill.url, settings=Settings(clock=at(2 * END_US))) as hf:
            with pytest.raises(ExpiredError):
                hf.conversation("v").get("n")
            hf.retention.run(grace_s=0)
            left = hf._log.read("conversation/v", after=1)
            assert {one.payload for one in left if one.type == "changed"} == {GONE}, kill


@pytest.mark.parametrize("work_at", [write_at, touch_at])
def test_a_process_killed_at_a_sliding_end_has_moved_nothing(
    local: str, tmp_path: Path, work_at: Any
) -> None:
    for kill in kills(local, tmp_path, prepare_sliding, work_at(END_US)):
        with holdfast.open(kill.url, settings=Settings(clock=at(END_US))) as hf:
            with pytest.raises(ExpiredError):
                hf.conversation("v").get("n")
            assert len(hf._log.read("conversation/v", after=0)) == 2, kill
            assert hf.check().findings == []
