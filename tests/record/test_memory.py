"""Working memory on every backend: each kind for its own time (RALPH-15 to 18, BOOT-34, 35)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast import NotFoundError, Scope, Settings, Store, UsageError, aio
from holdfast.record.memory import ERRORS_MAX, KEY, Memory
from holdfast.testing import FakeClock
from tests.record.kills import kill_everywhere, open_dying
from tests.record.stores import new_url


def names(kept: list[Any]) -> list[str]:
    return [one.name for one in kept]


def test_each_kind_is_kept_for_its_own_time(hf: Store) -> None:
    team = hf.team("t")
    chat = hf.conversation("c1", parent=hf.workflow("w", parent=team))
    chat.memory.files.put("src/a.py", {"why": "being split"})
    chat.memory.notes.put("api", "pages begin at 1")
    chat.memory.results.put("unit tests", {"passed": 41, "failed": 1})
    error = chat.memory.errors.add({"error": "timeout", "done": "waited longer"})
    chat.memory.settings.put("language", "de")
    places = {
        one.kind: (one.lifetime, one.scope)
        for shelf in (
            chat.memory.files,
            chat.memory.notes,
            chat.memory.results,
            chat.memory.errors,
            chat.memory.settings,
        )
        for one in shelf.list()
    }
    assert places == {
        "files": ("session", "conversation/c1"),
        "notes": ("project", "team/t"),
        "results": ("project", "team/t"),
        "errors": ("project", "team/t"),
        "settings": ("forever", "global"),
    }
    chat.close(keep=True)
    assert chat.get((KEY, "files")) == {}, "kept for the session, which is over"
    after = hf.conversation("c2", parent=hf.workflow("w", parent=team)).memory
    assert after.files.list() == []
    assert after.notes.get("api").value == "pages begin at 1"
    assert after.results.get("unit tests").value == {"passed": 41, "failed": 1}
    assert after.errors.get(error.name).value["done"] == "waited longer"
    assert after.settings.get("language").value == "de"
    # What is kept for a project is not visible in another project.
    other = hf.conversation("c3", parent=hf.team("other")).memory
    assert other.notes.list() == []
    assert other.settings.get("language").value == "de"
    assert hf.check().ok


def test_a_scope_without_a_parent_keeps_what_lasts_in_the_global_one(hf: Store) -> None:
    memory = hf.conversation("c").memory
    assert memory.notes.put("n", 1).scope == "global"
    assert memory.files.put("f").scope == "conversation/c"
    assert hf.global_().memory.notes.put("o", 1).scope == "global"
    assert names(memory.notes.list()) == ["n", "o"]
    assert hf.team("t").memory.notes.put("m", 1).scope == "team/t"
    assert hf.conversation("d", parent=hf.team("t")).memory.notes.get("m").value == 1


def test_another_lifetime_moves_an_item(hf: Store) -> None:
    chat = hf.conversation("c", parent=hf.team("t"))
    memory = chat.memory
    memory.notes.put("n", "for now", lifetime="session")
    moved = memory.notes.put("n", "for good", lifetime="forever")
    assert memory.notes.list() == [moved]
    assert moved.scope == "global"
    assert chat.get((KEY, "notes")) == {}
    memory.notes.drop("n")
    assert memory.notes.list() == []
    with pytest.raises(NotFoundError, match="has no 'n' among its notes"):
        memory.notes.drop("n")


def test_what_is_kept_for_a_turn_is_deleted_however_it_ends(hf: Store) -> None:
    memory = hf.conversation("c").memory
    with memory.turn():
        memory.files.put("a", lifetime="turn")
        memory.files.put("b")
    assert names(memory.files.list()) == ["b"]

    def fail() -> None:
        with memory.turn():
            memory.files.put("c", lifetime="turn")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(memory.files.list()) == ["b"]
    memory.files.put("d", lifetime="turn")
    memory.end("session")
    assert memory.files.list() == []
    revision = hf.conversation("c").revision
    memory.end("turn")
    assert hf.conversation("c").revision == revision, "nothing to take away, nothing written"


def test_the_history_of_errors_is_bounded() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        memory = hf.team("t").memory
        for n in range(ERRORS_MAX + 5):
            clock.advance(1)
            memory.errors.put(f"e{n}", n)
        kept = memory.errors.list()
        assert [one.value for one in kept] == list(range(5, ERRORS_MAX + 5))
        assert [one.value for one in memory.errors.list(older_than="99s")] == [5]


def test_working_memory_is_state_like_any_other(hf: Store) -> None:
    team = hf.team("t")
    chat = hf.conversation("c", parent=team)
    chat.memory.files.put("a")
    mark = chat.checkpoint("here")
    chat.memory.files.put("b")
    fork = chat.fork("what-if")
    assert names(fork.memory.files.list()) == ["a", "b"]
    chat.restore(mark)
    assert names(chat.memory.files.list()) == ["a"]
    assert names(fork.memory.files.list()) == ["a", "b"]


WRONG: list[tuple[Callable[[Memory], object], str]] = [
    (lambda memory: memory.notes.put("", 1), "is empty"),
    (lambda memory: memory.notes.put(cast("Any", 3), 1), "must be text"),
    (lambda memory: memory.notes.put("n", lifetime=cast("Any", "week")), "a lifetime is one of"),
    (lambda memory: memory.notes.put("n", object()), "is of type object"),
    (lambda memory: memory.end(cast("Any", "always")), "a lifetime is one of"),
]


@pytest.mark.parametrize(("call", "says"), WRONG)
def test_bad_arguments_are_refused(call: Callable[[Memory], object], says: str) -> None:
    with holdfast.open("memory:") as hf, pytest.raises(UsageError, match=says):
        call(hf.conversation("c").memory)


def test_working_memory_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            memory = hf.conversation("c", parent=hf.team("t")).memory
            async with memory.turn():
                await memory.files.put("a", lifetime="turn")
                await memory.files.put("b", {"why": "read"})
            assert names(await memory.files.list()) == ["b"]
            await asyncio.gather(*[memory.notes.add(n) for n in range(5)])
            assert sorted(one.value for one in await memory.notes.list()) == list(range(5))
            await memory.results.put("tests", {"passed": 1})
            await memory.errors.add("oops")
            await memory.settings.put("language", "de")
            assert (await memory.settings.get("language")).lifetime == "forever"
            assert len(await memory.errors.list()) == len(await memory.results.list()) == 1
            await memory.files.drop("b")
            await memory.end("project")
            assert await memory.notes.list() == []

    asyncio.run(main())


def keep_things(url: str) -> None:
    """Every write of the working memory, a move between two scopes and a close included."""
    store = open_dying(url)
    chat = store.conversation("c", parent=store.team("t"))
    memory = chat.memory
    memory.notes.put("n", "first", lifetime="session")
    memory.notes.put("n", "second", lifetime="forever")
    memory.errors.put("e", "oops")
    with memory.turn():
        memory.files.put("f", lifetime="turn")
    memory.files.put("g")
    memory.errors.drop("e")
    chat.close(keep=True)


def test_working_memory_is_consistent_wherever_its_writer_is_killed(
    durable: str, tmp_path: Path
) -> None:
    """A name is never there twice, and what ends with the scope is gone once it is closed."""
    kills = kill_everywhere(keep_things, lambda: new_url(durable, tmp_path), in_turns=True)
    for kill in kills:
        assert kill.commits >= 8
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c", parent=hf.team("t"))
            places = [chat, hf.team("t"), hf.global_()]
            held = [scope.name for scope in places if "n" in scope.get((KEY, "notes"), {})]
            assert len(held) <= 1, kill
            notes = {one.name: one.value for one in chat.memory.notes.list()}
            assert notes in ({}, {"n": "first"}, {"n": "second"}), kill
            if chat.life.is_closed:
                assert chat.memory.files.list() == [], kill
                assert notes == {"n": "second"}, kill
            assert hf.check().ok, kill


def test_a_session_ends_though_another_writer_restored_an_older_state(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    memory = chat.memory
    edit = Scope.edit

    def behind(self: Scope, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        self.restore(1)
        return edit(self, *given, **named)

    memory.files.put("f")
    monkeypatch.setattr(Scope, "edit", behind)
    memory.end("session")
    assert chat.state == {"n": 1}
