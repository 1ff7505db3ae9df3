"""`set(diff=True)` and `update(replace=True)` store what differs, on every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ClosedError, ConflictError, Store, UsageError, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.core.commit import ProposedCommit, StreamWrite, changed
from holdfast.core.log import Log
from holdfast.core.tree import Op, append_op, set_op
from holdfast.scope import DIFFERENCE_RETRIES, Scope
from holdfast.testing import FakeClock
from tests.record.stores import ALL, new_url


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Store]:
    with holdfast.open(url) as store:
        yield store


def newest_ops(scope: Scope) -> Any:
    return list(scope.history())[-1].data


def payload_bytes(scope: Scope) -> int:
    return sum(len(event.record.payload) for event in scope.history())


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message number {number}: " + "text " * 20}


def test_a_list_that_grew_stores_its_new_items(hf: Store) -> None:
    plain, diff = hf.conversation("plain"), hf.conversation("diff")
    messages: list[dict[str, Any]] = []
    for number in range(100):
        messages.append(message(number))
        plain.set("messages", messages)
        diff.set("messages", messages, diff=True)
    assert diff.state == plain.state == {"messages": messages}
    assert newest_ops(diff) == [["append", "messages", message(99)]]
    once = len(str(messages))
    assert payload_bytes(diff) < 1.5 * once
    assert payload_bytes(plain) > 40 * once


def test_what_differs_is_stored_and_nothing_else(hf: Store) -> None:
    team = hf.team("t")
    state = {"a": {"x": 1, "y": [1, 2, 3]}, "text": "long " * 50, "n": 1}
    assert team.update(state, replace=True) == 1
    assert team.update(state, replace=True) == 1  # nothing differs: nothing is written
    state["a"] = {"x": 2, "y": [1, 2, 3]}
    assert team.update(state, replace=True) == 2
    assert newest_ops(team) == [["set", ["a", "x"], 2]]
    assert team.set("a", {"x": 2, "y": [1, 2]}, diff=True) == 3
    assert newest_ops(team) == [["truncate", ["a", "y"], 2]]
    assert team.set(("a", "z"), 5, diff=True) == 4
    assert team.set("n", "another kind", diff=True, checkpoint="named") == 5
    assert team.set("n", "another kind", diff=True, checkpoint="again") == 6
    assert team.at("named") == team.at("again") == team.state
    with pytest.raises(UsageError):
        team.update([1], replace=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        team.set("n", 1, diff="yes")  # type: ignore[arg-type]


def test_large_values_are_compared_and_kept_as_blobs(hf: Store) -> None:
    team = hf.team("t")
    large = {"text": "x" * 200_000, "n": 1}
    team.set("large", large, diff=True)
    assert team.set("large", large, diff=True) == 1
    assert team.set("large", {**large, "n": 2}, diff=True) == 2
    assert newest_ops(team) == [["set", ["large", "n"], 2]]
    assert team.get("large") == {**large, "n": 2}


def test_a_guard_and_a_key_work_as_those_of_a_set(hf: Store) -> None:
    team = hf.team("t")
    items = [message(number) for number in range(5)]
    first = team.set("items", items, diff=True, expected=0)
    with pytest.raises(ConflictError):
        team.set("items", [], diff=True, expected=0)
    more = [*items, message(5)]
    second = team.set("items", more, diff=True, expected=first, key="k")
    team.append("items", message(6))
    assert team.set("items", more, diff=True, key="k") == second  # as it was written then
    with pytest.raises(UsageError, match="was used for another change"):
        team.set("items", items, diff=True, key="k")
    assert len(team.get("items")) == 7
    team.close()
    with pytest.raises(ClosedError):
        team.set("items", [*more, message(6)], diff=True)


def test_in_a_commit(hf: Store) -> None:
    team, chat = hf.team("t"), hf.conversation("c")
    team.update({"items": [1, 2], "n": 0})
    with hf.commit() as tx:
        tx.scope(team).append("items", 3)
        tx.scope(team).set("items", [1, 2, 3, 4], diff=True)
        tx.scope(chat).set("items", [1], diff=True)
        tx.scope(team).set("m", 1, diff=True)
        team.set("n", 1)  # is not compared with
    assert newest_ops(team)[:2] == [["append", "items", 3], ["append", "items", 4]]
    assert (team.state, chat.state) == ({"items": [1, 2, 3, 4], "n": 1, "m": 1}, {"items": [1]})
    with pytest.raises(ConflictError) as caught, hf.commit() as tx:
        tx.scope(team).set("items", [1, 2, 3, 4, 5], diff=True)
        team.append("items", 9)
    assert caught.value.paths == (("items", 4),)
    with hf.commit() as tx:
        tx.scope(chat).update({"items": [1], "n": 2}, replace=True)
    assert chat.state == {"items": [1], "n": 2}


def test_writers_that_race_leave_the_value_of_one_of_them(hf: Store) -> None:
    team = hf.team("t")
    team.set("items", list(range(50)))
    begin = threading.Barrier(3)

    def write(name: str) -> None:
        begin.wait()
        for number in range(20):
            team.set("items", [*range(50), *[name] * number], diff=True)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = team.get("items")
    assert list(items[:50]) == list(range(50))
    assert len(items) == 69
    assert len(set(items[50:])) == 1


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            team = hf.team("t")
            assert await team.set("items", [1, 2], diff=True) == 1
            assert await team.set("items", [1, 2], diff=True) == 1
            assert await team.update({"items": [1, 2, 3]}, replace=True) == 2
            assert await team.state == {"items": [1, 2, 3]}

    asyncio.run(main())


class ContestedBackend(MemoryBackend):
    """Lets another writer in before each of the next commits."""

    other: Log | None = None
    works: list[list[ProposedCommit]]

    def commit(self, commits: Any) -> Any:
        if self.other is not None and self.works:
            *later, now = self.works
            self.works = []
            for work in now:
                self.other.commit(work)
            self.works = later
        return super().commit(commits)


def change(*ops: Op, key: str | None = None) -> ProposedCommit:
    return ProposedCommit((StreamWrite("team/t", (changed(ops),), key=key),))


def contested(*works: list[ProposedCommit]) -> tuple[Store, ContestedBackend]:
    backend = ContestedBackend(clock=FakeClock())
    hf = holdfast.open(backend)
    hf.team("t").set("items", list(range(50)))
    backend.works = list(works)
    backend.other = Log(backend, clock=hf._log.clock, actor="other")
    return hf, backend


def test_who_keeps_losing_stores_the_whole_value() -> None:
    works = [[change(set_op("items", [number] * 50))] for number in range(DIFFERENCE_RETRIES)]
    hf, backend = contested(*works)
    with hf:
        team = hf.team("t")
        team.set("items", [*range(50), 50], diff=True)
        assert newest_ops(team)[0][0] == "set"
        assert team.get("items") == [*range(51)]
        backend.works = [[change(set_op("items", [1]))]]
        with pytest.raises(ConflictError):
            team.set("items", [*range(50)], diff=True, expected=team.revision)


def test_what_was_written_with_the_key_meanwhile_is_the_answer() -> None:
    """By another process, on another state: other ops than ours, to the same value."""
    keyed = change(append_op("items", 49), append_op("items", 50), key="k")
    hf, _ = contested([change(set_op("items", [*range(49)])), keyed])
    with hf:
        assert hf.team("t").set("items", [*range(51)], diff=True, key="k") == 3
        assert hf.team("t").get("items") == [*range(51)]
    hf, _ = contested([change(set_op("n", 1), key="k")])
    with hf, pytest.raises(UsageError, match="was used for another change"):
        hf.team("t").set("items", [*range(51)], diff=True, key="k")
