"""What a commit has read is guarded path by path, on every backend, by two handles of one store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ClosedError, ConflictError, Store, UsageError, aio
from holdfast.core.tree import Map
from holdfast.store import PendingCommit
from tests.record.stores import ALL, new_url


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def two(url: str) -> Iterator[tuple[Store, Store]]:
    """Two handles of one store; of a store in memory there is one."""
    with holdfast.open(url) as one:
        if url == "memory:":
            yield one, one
            return
        with holdfast.open(url) as other:
            yield one, other


def test_what_was_not_read_may_change_while_a_commit_is_made(two: tuple[Store, Store]) -> None:
    mine, others = two
    team, log = mine.team("t"), mine.team("log")
    team.update({"budget": 50, "stage": "a", "items": [1]})
    with mine.commit() as tx:
        left = tx.scope(team).get("budget")
        others.team("t").set("stage", "b")
        others.team("t").append("items", 2)
        tx.scope(team).set("budget", left - 10)
        tx.scope(log).append("spent", 10)
    assert team.state == {"budget": 40, "stage": "b", "items": [1, 2]}
    assert log.state == {"spent": [10]}


def test_a_conflict_names_the_paths_that_were_read_and_changed(two: tuple[Store, Store]) -> None:
    mine, others = two
    team, chat = mine.team("t"), mine.conversation("c")
    team.update({"budget": 50, "customer": {"name": "Ada", "age": 36}, "stage": "a"})
    chat.set("n", 1)
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        assert tx.scope(team).get(("customer", "name")) == "Ada"
        assert tx.scope(team)["budget"] == 50
        others.team("t").update({"budget": 40, "stage": "b"})
        tx.scope(chat).set("n", 2)  # nothing of it is written, in any scope
    assert caught.value.paths == (("budget",),)
    assert (caught.value.stream, caught.value.expected, caught.value.actual) == ("team/t", 1, 2)
    assert "at state['budget']: expected revision 1, found 2" in str(caught.value)
    assert chat.get("n") == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda scope: scope.state,
        list,
        len,
        lambda scope: "budget" in scope,
        lambda scope: scope.get("absent"),
        lambda scope: scope.get(("budget", "deeper")) or scope.get(("absent", "deeper")),
    ],
)
def test_a_look_through_a_mapping_guards_the_mapping(two: tuple[Store, Store], read: Any) -> None:
    mine, others = two
    team = mine.team("t")
    team.update({"budget": 50, "stage": "a"})
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        read(tx.scope(team))
        others.team("t").update({"stage": "b", "new": 1})
        tx.scope(team).set("budget", 40)
    assert caught.value.paths == (("stage",), ("new",))


def test_an_absent_key_guards_its_own_container_only(two: tuple[Store, Store]) -> None:
    mine, others = two
    team = mine.team("t")
    team.update({"tags": {"a": 1}, "n": 0})
    with mine.commit() as tx:
        assert tx.scope(team).get(("tags", "b")) is None
        with pytest.raises(KeyError):
            tx.scope(team)["absent and never looked for again"]
        tx.scope(team)._read.pop(())  # as if that had not been asked
        others.team("t").set("n", 1)
        tx.scope(team).set(("tags", "b"), 2)
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        assert tx.scope(team).get(("tags", "c")) is None
        others.team("t").set(("tags", "d"), 3)
        tx.scope(team).set(("tags", "c"), 4)
    assert caught.value.paths == (("tags", "d"),)


def test_what_the_commit_has_set_itself_is_not_guarded(two: tuple[Store, Store]) -> None:
    mine, others = two
    team = mine.team("t")
    team.set("customer", {"name": "Ada"})
    with mine.commit() as tx:
        tx.scope(team).set("customer", {"name": "Eve"})
        assert tx.scope(team).get(("customer", "name")) == "Eve"
        others.team("t").set(("customer", "name"), "Bob")
    assert team.state == {"customer": {"name": "Eve"}}


def test_a_scope_that_was_only_read_is_guarded_path_by_path(two: tuple[Store, Store]) -> None:
    mine, others = two
    rules, chat = mine.team("rules"), mine.conversation("c")
    rules.update({"limit": 5, "motto": "x"})
    for value in range(3):
        with mine.commit() as tx:
            tx.scope(chat).set("limit", tx.scope(rules).get("limit"))
            others.team("rules").set("motto", value)
    assert (chat.get("limit"), rules.get("motto")) == (5, 2)
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        tx.scope(chat).set("limit", tx.scope(rules).get("limit"))
        others.team("rules").set("limit", 6)
    assert caught.value.paths == (("limit",),)
    assert chat.get("limit") == 5


def test_what_was_changed_and_changed_back_is_what_was_read(two: tuple[Store, Store]) -> None:
    mine, others = two
    team = mine.team("t")
    team.update({"a": {"x": 1, "y": [1, 2]}, "n": 0})
    with mine.commit() as tx:
        assert tx.scope(team).get("a") == {"x": 1, "y": [1, 2]}
        others.team("t").set(("a", "x"), 2)
        others.team("t").set(("a", "x"), 1)
        tx.scope(team).set("n", 1)
    # The order of keys is something that a reader sees.
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        assert list(tx.scope(team).get("a")) == ["x", "y"]
        others.team("t").set("a", {"y": [1, 2], "x": 1})
        tx.scope(team).set("n", 2)
    assert caught.value.paths == (("a",),)


def test_a_scope_that_was_closed_meanwhile_is_another_one(two: tuple[Store, Store]) -> None:
    mine, others = two
    team, chat = mine.team("t"), mine.conversation("c")
    team.set("n", 1)
    with pytest.raises(ConflictError) as caught, mine.commit() as tx:
        tx.scope(chat).set("n", tx.scope(team).get("n"))
        others.team("t").close()
    assert caught.value.paths == ((),)
    with pytest.raises(ClosedError), mine.commit() as tx:
        tx.scope(team).set("n", 1, if_absent=True)


def test_defaults_of_several_writers_commute(two: tuple[Store, Store]) -> None:
    mine, others = two
    team, same = mine.team("t"), others.team("t")
    with mine.commit() as tx:
        tx.scope(team).set("items", [], if_absent=True)
        tx.scope(team).append("items", "mine")
        tx.scope(team).set("owner", "me", if_absent=True)
        tx.scope(team).increment("n")
        assert tx.scope(team).get(("items", 0)) == "mine"
        tx.scope(team)._read.clear()  # the look above was for this test
        same.set("items", ["theirs"], if_absent=True)
        same.set("owner", "they", if_absent=True)
        same.increment("n", 5)
    assert team.state == {"items": ["theirs", "mine"], "owner": "they", "n": 6}
    revision = team.revision
    assert (
        team.set("owner", "me", if_absent=True) == revision == team.revision
    )  # nothing was written
    assert team.set(("deep", "er"), {"a": 1}, if_absent=True) == revision + 1
    assert team.set("owner", "me", if_absent=True, checkpoint="named") == revision + 2
    assert team.at("named")["owner"] == "they"


def test_a_default_follows_what_the_same_commit_did_before(two: tuple[Store, Store]) -> None:
    mine, _ = two
    team = mine.team("t")
    team.update({"a": 1, "b": 2})
    with mine.commit() as tx:
        tx.scope(team).delete("a")
        tx.scope(team).set("a", 3, if_absent=True)
        tx.scope(team).set("c", {"d": 1})
        tx.scope(team).set(("c", "d"), 9, if_absent=True)
        tx.scope(team).set(("c", "e"), 5, if_absent=True)
    assert team.state == {"a": 3, "b": 2, "c": {"d": 1, "e": 5}}


def test_a_default_with_a_key_is_set_once(two: tuple[Store, Store]) -> None:
    mine, others = two
    team = mine.team("t")
    first = team.set("a", 1, if_absent=True, key="k")
    others.team("t").set("a", 2)
    assert team.set("a", 1, if_absent=True, key="k") == first  # and not what it would be now
    with pytest.raises(UsageError, match="was used for another change"):
        team.set("a", 5, if_absent=True, key="k")
    assert team.state == {"a": 2}
    large = "x" * 200_000
    team.set("large", large, if_absent=True, key="l")
    team.set("large", large, if_absent=True, key="l")
    assert others.team("t").get("large") == large


def test_a_function_is_called_again_until_what_it_read_stands(two: tuple[Store, Store]) -> None:
    mine, others = two
    team = mine.team("t")
    team.set("budget", 50)
    seen: list[int] = []

    def spend(tx: PendingCommit) -> int:
        left = tx.scope(team).get("budget")
        seen.append(left)
        if len(seen) < 3:
            others.team("t").increment("budget", -1)
        tx.scope(team).set("budget", left - 10)
        return left

    assert mine.commit(spend) == 48
    assert (seen, team.get("budget")) == ([50, 49, 48], 38)
    seen.clear()
    with pytest.raises(ConflictError):
        mine.commit(spend, retries=0)
    with pytest.raises(UsageError):
        mine.commit(5)  # type: ignore[call-overload]
    with pytest.raises(UsageError):
        mine.commit(spend, retries=-1)


def test_threads_and_handles_keep_an_invariant_over_two_scopes(two: tuple[Store, Store]) -> None:
    """Money moves between two scopes and is neither made nor lost; notes are written meanwhile."""
    for store in two[:1]:
        store.team("a").set("money", 100)
        store.team("b").set("money", 100)
    begin = threading.Barrier(4)

    def move(store: Store, source: str, target: str) -> None:
        def once(tx: PendingCommit) -> None:
            left = tx.scope(store.team(source)).get("money")
            tx.scope(store.team(source)).set("money", left - 1)
            tx.scope(store.team(target)).increment("money", 1)

        begin.wait()
        for _ in range(15):
            store.commit(once, retries=1000)
            store.team(source).append("notes", target)

    ways = [(two[0], "a", "b"), (two[1], "b", "a"), (two[0], "b", "a"), (two[1], "a", "b")]
    threads = [threading.Thread(target=move, args=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    a, b = two[0].team("a").state, two[0].team("b").state
    assert (a["money"], b["money"]) == (100, 100)
    assert (len(a["notes"]), len(b["notes"])) == (30, 30)


def test_the_same_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            team = hf.team("t")
            assert await team.set("budget", 50, if_absent=True) == 1
            assert await team.set("budget", 51, if_absent=True) == 1
            async with hf.commit() as tx:
                left = tx.scope(team).get("budget")
                await team.set("stage", "b")
                tx.scope(team).set("budget", left - 10)
            with pytest.raises(ConflictError) as caught:
                async with hf.commit() as tx:
                    left = tx.scope(team).get("budget")
                    await team.set("budget", 0)
                    tx.scope(team).set("budget", left - 10)
            assert caught.value.paths == (("budget",),)

            async def spend(tx: aio.AsyncPendingCommit) -> int:
                left = tx.scope(team).get("budget")
                await asyncio.sleep(0)
                tx.scope(team).set("budget", left - 10)
                return left

            async def spend_many() -> None:
                for _ in range(5):
                    await hf.commit(spend, retries=1000)

            await asyncio.gather(*[spend_many() for _ in range(4)])
            assert await team.get("budget") == -200
            assert await hf.commit(lambda tx: tx.scope(team).get("budget")) == -200
            with pytest.raises(UsageError):
                await hf.commit(5)  # type: ignore[call-overload]

    asyncio.run(main())


def test_a_transform_shows_what_may_come_from_anywhere(two: tuple[Store, Store]) -> None:
    """So with one a read guards the whole scope."""
    mine, others = two
    team = mine.team("t")
    team.update({"a": 1, "b": 2})

    def shown(state: Map, name: str) -> Map:
        return Map({"a": state.get("a"), "sum": sum(state.values())})

    remove = mine._log.add_transform(shown)
    with pytest.raises(ConflictError), mine.commit() as tx:
        assert tx.scope(team).get("sum") == 3
        others.team("t").set("b", 3)
        tx.scope(team).set("c", 0)
    remove()
