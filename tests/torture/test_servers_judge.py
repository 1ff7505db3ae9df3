"""The judges of T2 and T12 themselves: what a client gave up may arrive as they look."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Store
from tests.servers import postgresql
from tests.torture.programme import Broken
from tests.torture.servers_clients import OVER, Teller, follow, heard, lists
from tests.torture.servers_judge import Deaths, judge, judge_follower

NAMES = ("conversation/a", "conversation/b")


def _append(store: Store, value: int) -> None:
    with store.commit() as tx:
        for name in NAMES:
            tx.scope(store.scope(name)).append("log", value)


def test_lists_are_of_one_moment() -> None:
    """A commit that comes between two looks is no half commit."""
    with holdfast.open("memory:") as store:
        _append(store, 1)
        sound: Any = store.scopes

        def scopes(*arguments: Any) -> Iterator[Any]:
            for number, scope in enumerate(sound(*arguments)):
                yield scope
                if not number:
                    _append(store, 2)

        store.scopes = scopes  # type: ignore[method-assign]
        assert lists(store) == {name: [1] for name in NAMES}
        assert lists(store) == {name: [1, 2] for name in NAMES}


def test_a_follower_is_not_through_before_it_has_seen_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    """Behind a transaction that is still open, as what a client gave up may be."""
    running = postgresql.server(postgresql.NEWEST)
    running.create_database("judged")
    path = tmp_path / "follower.jsonl"

    def open() -> Store:
        return holdfast.open(running.url("judged"))

    follower = Thread(target=follow, args=(open, Teller(path)), kwargs={"may_lose": False})
    with open() as store:
        _append(store, 1)
        follower.start()
        with psycopg.connect(running.url("judged")) as given_up:
            given_up.execute("CREATE TABLE unrelated (n int)")
            _append(store, 2)
            store.scope(OVER).set("over", True)
            until = time.monotonic() + postgresql.PATIENCE_S
            while sum(1 for _ in heard(path)) < 2:
                assert time.monotonic() < until, "the follower does not get on"
            with pytest.raises(Broken, match="did not come to the end"):
                judge_follower(store, path, Deaths())
            assert follower.is_alive()
        _append(store, 3)  # arrives behind the end, and may be seen or not
        follower.join(postgresql.PATIENCE_S)
        assert judge_follower(store, path, Deaths()) == 5


def _ended() -> Store:
    """Returns a store that holds the same each time, to its end."""
    store = holdfast.open("memory:")
    _append(store, 1)
    store.scope(OVER).set("over", True)
    return store


def test_what_was_read_while_the_power_was_cut_may_be_gone(tmp_path: Path) -> None:
    """Only then, and only gone: what is there must have been seen."""
    path = tmp_path / "followed"
    follow(_ended, Teller(path), may_lose=False)
    lines = list(heard(path))
    lost = {**lines[0], "revision": 9}
    path.write_text("".join(json.dumps(line) + "\n" for line in [lost, *lines]))
    cut = Deaths(cuts=[(lost["asked"], lost["at"])])
    with _ended() as store:
        assert judge_follower(store, path, cut) == len(lines) - 1
        with pytest.raises(Broken, match="saw besides"):
            judge_follower(store, path, Deaths())
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[1:]))
        with pytest.raises(Broken, match="missed"):
            judge_follower(store, path, cut)


def test_an_answer_read_after_the_death_may_be_lost_with_it(tmp_path: Path) -> None:
    """The server answered, died, and only then did the client read the answer."""
    word = {"value": 1, "streams": list(NAMES[:1]), "key": None}
    path = tmp_path / "client.jsonl"
    path.write_text(
        json.dumps(word | {"said": "begun", "at": 5.0})
        + "\n"
        + json.dumps(word | {"said": "done", "at": 5.3})
        + "\n"
    )
    with holdfast.open("memory:") as store:
        assert judge(store, [path], Deaths(moments=[5.2], may_lose_s=1.0)) == 1
        for moments in ([4.9], [6.5]):  # before it was begun, and long after it was told
            with pytest.raises(Broken, match="acknowledged and gone"):
                judge(store, [path], Deaths(moments=moments, may_lose_s=1.0))
