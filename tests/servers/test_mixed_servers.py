"""Conversations in Redis, the rest in PostgreSQL: two real servers as one store (BOOT-62)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import Position
from holdfast.errors import LeaseLostError, UnavailableError, UsageError
from holdfast.testing.trial import PATIENCE_S
from tests.servers import postgresql, redis
from tests.servers.kinds import url_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    return {
        "conversation": url_of("redis", tmp_path, "chats"),
        "*": url_of("postgresql", tmp_path, "rest"),
    }


@pytest.fixture
def store(urls: dict[str, str]) -> Iterator[Store]:
    with holdfast.open(urls) as store:
        yield store


def test_a_story_over_both(store: Store, urls: dict[str, str]) -> None:
    team = store.team("support")
    chat = store.conversation("ticket-7", parent=team)
    team.set("model", "large")
    chat.set("text", "long " * 50_000)
    chat.checkpoint("before refund")
    assert chat.lookup("model") == "large"
    with pytest.raises(UsageError) as caught, store.commit() as tx:
        tx.scope(chat).set("stage", "done")
        tx.scope(team).increment("closed")
    message = str(caught.value)
    assert '"conversation/ticket-7"' in message
    assert '"team/support"' in message
    for password in (redis.PASSWORD, postgresql.PASSWORD):
        assert password not in message + repr(store) + json.dumps(store.status())
    lease = store.workers.lease("conversation/ticket-7")
    with store.commit(lease=lease) as tx:
        tx.scope(chat).set("stage", "done")
    facts = store.status()["levels"]
    assert (facts["conversation"]["kind"], facts["*"]["kind"]) == ("redis", "postgresql")
    assert (facts["conversation"]["durability"], facts["*"]["durability"]) == ("full", "full")
    with holdfast.open(urls) as other:
        with pytest.raises(LeaseLostError, match="is held by"):
            other.workers.lease("conversation/ticket-7")
        assert other.conversation("ticket-7").at("before refund")["text"] == "long " * 50_000
        assert other.team("support").get("closed") is None
    assert store.check().ok


def test_each_is_a_store_of_its_own(store: Store, urls: dict[str, str]) -> None:
    store.conversation("c1").set("a", 1)
    store.team("red").set("a", 1)
    with holdfast.open(urls["conversation"]) as chats, holdfast.open(urls["*"]) as rest:
        assert [scope.name for scope in chats.scopes()] == ["conversation/c1"]
        assert [scope.name for scope in rest.scopes()] == ["team/red"]
        rest.conversation("stray").set("a", 1)
    with pytest.raises(UsageError, match='"conversation/stray" is in postgresql:'):
        holdfast.open(urls)


def test_followers_hear_of_both_from_another_process(store: Store, urls: dict[str, str]) -> None:
    heard: list[str] = []
    start = store.position
    ready = threading.Event()

    def follow() -> None:
        events = store.follow(as_events=True, after=start, timeout_s=None)
        ready.set()
        for event in events:
            heard.append(event.stream)
            if len(heard) == 6:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    ready.wait(PATIENCE_S)
    with holdfast.open(urls) as other:
        for _ in range(3):
            other.conversation("c1").increment("n")
            other.team("red").increment("n")
    follower.join(PATIENCE_S)
    assert sorted(heard) == ["conversation/c1"] * 3 + ["team/red"] * 3
    later = Position(int(store.position))
    store.team("red").increment("n")
    assert [event.stream for event in store.follow(as_events=True, after=later, timeout_s=0)] == [
        "team/red"
    ]


WRITER = """
import json, sys, holdfast
store = holdfast.open(json.loads(sys.argv[1]))
n = 0
while True:
    n += 1
    name = ("conversation/c1", "team/red")[n % 2]
    with store.commit() as tx:
        tx.scope(store.scope(name)).append("said", n)
        tx.scope(store.scope(name + "-twin")).append("said", n)
        tx.mark("said", name, due=n)
    print(json.dumps([name, n]), flush=True)
"""


def test_a_killed_writer_loses_nothing_it_was_told(urls: dict[str, str]) -> None:
    """Guarantees 1 and 2 in each backend, after kill -9."""
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, json.dumps(urls)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        ) as child:
            assert child.stdout is not None
            told = [json.loads(child.stdout.readline()) for _ in range(25)]
            child.kill()
            told += [json.loads(line) for line in child.stdout if line.endswith(b"]\n")]
        with holdfast.open(urls) as store:
            for name in ("conversation/c1", "team/red"):
                said = list(store.scope(name).state["said"])
                mine = [n for stream, n in told if stream == name]
                # One more may be there that nobody was told of: its answer was on its way.
                start = len(said) - len(mine)
                assert said[start:] == mine or said[start - 1 : -1] == mine
                assert list(store.scope(f"{name}-twin").state["said"]) == said
                [mark] = [mark for mark in store.workers.marks("said") if mark.key == name]
                assert mark.due == said[-1]
            assert store.check().ok


def test_a_server_that_is_down_fails_its_own_levels_only(tmp_path: Path) -> None:
    own = redis.new_server(redis.OLDEST)
    urls = {
        "conversation": own.url(timeout=1),
        "*": url_of("postgresql", tmp_path, "rest"),
    }
    try:
        with holdfast.open(urls) as store:
            store.conversation("c1").set("a", 1)
            own.kill()
            with pytest.raises(UnavailableError):
                store.conversation("c1").set("a", 2)
            store.team("red").set("a", 2)
            assert store.team("red").get("a") == 2
            own.start()
            store.conversation("c1").set("a", 3)
            assert store.conversation("c1").get("a") == 3
    finally:
        own.remove()


def test_two_applications_of_one_server_are_two_backends(tmp_path: Path) -> None:
    urls = {
        "conversation": url_of("postgresql", tmp_path, "one"),
        "*": url_of("postgresql", tmp_path, "two"),
    }
    with holdfast.open(urls) as store:
        store.conversation("c1").set("a", 1)
        store.team("red").set("a", 1)
        with pytest.raises(UsageError, match="span two backends"), store.commit() as tx:
            tx.scope(store.conversation("c1")).set("a", 2)
            tx.scope(store.team("red")).set("a", 2)
        assert store.check().ok
