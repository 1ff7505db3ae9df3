"""`subject=` on every way to write to a scope of others, on every backend (0076).

BOOT-32: whatever a program writes for a person with, it can say whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ERASED, Store, aio
from holdfast.erasure import Erasure
from holdfast.errors import ErasedError, UsageError
from holdfast.runs.context import Context
from holdfast.scope import Scope
from tests.record.test_subjects import stored

CANARY = "CANARY-4c02"
SECRET = CANARY.encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def hf(url: str, keys: Path) -> Iterator[Store]:
    with holdfast.open(url, keys=keys) as store:
        yield store


def together(hf: Store) -> None:
    """Writes with every method of a joint commit, to two scopes and for two subjects."""
    with hf.commit() as tx:
        red, blue = tx.scope(hf.team("red")), tx.scope(hf.team("blue"))
        red.set("one", CANARY, subject="ada")
        red.update({"two": [CANARY], "three": "x"}, subject="ada")
        red.append("list", CANARY, subject="ada")
        red.append("list", "open")
        red.set("four", CANARY, if_absent=True, subject="ada")
        red.set("bob's", f"{CANARY} of bob", subject="bob")
        red.set("large", CANARY * 8000, subject="ada")
        red.set("middle", CANARY * 5000, subject="ada")  # above 64 KiB when it is sealed
        red.set("open", 1)
        assert red.get("one") == CANARY
        assert red.get(("list", 0)) == CANARY
        red.messages.add("user", CANARY, subject="ada", foreign_id=f"{CANARY} id")
        red.messages.add_many([{"role": "user", "content": CANARY}], subject="ada")
        red.facts.state("place", CANARY, subject="ada")
        red.record("met", {"who": CANARY}, unchecked=True, subject="ada")
        blue.set(("customer", "mail"), CANARY, subject="ada", diff=True)


def test_a_joint_commit_seals_what_it_is_told_to(hf: Store) -> None:
    together(hf)
    red, blue = hf.team("red"), hf.team("blue")
    assert red.state["two"] == [CANARY]
    assert list(red.state["list"]) == [CANARY, "open"]
    assert red.state["four"] == CANARY
    assert blue.get(("customer", "mail")) == CANARY
    assert [one.content for one in red.messages] == [CANARY, CANARY]
    assert SECRET not in stored(hf)
    assert {*hf.subjects.get("ada").scopes} == {red.name, blue.name}
    assert hf.subjects.get("bob").scopes == [red.name]
    receipt = hf.subjects.erase("ada")
    assert {one.scope: one.outcome for one in receipt.scopes} == {
        red.name: "unreadable",
        blue.name: "unreadable",
    }
    assert red.state["bob's"] == f"{CANARY} of bob"
    assert [red.get(name) for name in ("one", "two", "three", "four", "large", "middle")] == (
        [ERASED] * 6
    )
    assert list(red.state["list"]) == [ERASED, "open"]
    assert red.state["open"] == 1
    assert hf.check().ok


def test_a_scope_that_a_joint_commit_begins_is_sealed(hf: Store) -> None:
    """What its recorders gather is not written yet: whose the scope is must not be forgotten."""
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    with hf.commit() as tx:
        tx.scope(chat).messages.add("user", CANARY)
        tx.scope(chat).messages.add("user", f"{CANARY} again")
        tx.scope(chat).set("name", CANARY)
    assert chat.subject == hf.subjects.get("ada").id
    assert SECRET not in stored(hf)
    assert hf.subjects.get("ada").scopes == [chat.name]
    with pytest.raises(RuntimeError), hf.commit() as tx:
        tx.scope(hf.team("red")).messages.add("user", CANARY, subject="ada")
        raise RuntimeError
    assert hf.subjects.get("ada").scopes == [chat.name]
    hf.team("red").messages.add("user", CANARY, subject="ada")
    assert hf.subjects.get("ada").scopes == [chat.name, "team/red"]


def test_every_way_to_write_takes_a_subject_and_a_key(hf: Store) -> None:
    red = hf.team("red")
    for _ in range(2):  # the second time each is known by its key
        red.update({"a": CANARY, "b": CANARY}, subject="ada", key=f"{CANARY} 1")
        red.append("list", CANARY, subject="ada", key=f"{CANARY} 2")
        red.set("c", CANARY, if_absent=True, subject="ada", key=f"{CANARY} 3")
        many = [{"role": "user", "content": CANARY}] * 2
        red.messages.add_many(many, subject="ada", key=f"{CANARY} 4")
    red.say(CANARY, subject="ada")
    with red.messages.turn() as turn:
        turn.add("user", CANARY, subject="ada")
        turn.add_many(many, subject="ada")
    assert red.state.to_dict() == {"a": CANARY, "b": CANARY, "list": [CANARY], "c": CANARY}
    assert [one.content for one in red.messages] == [CANARY] * 6
    assert SECRET not in stored(hf)
    hf.subjects.erase("ada")
    assert red.state.to_dict() == {"a": ERASED, "b": ERASED, "list": [ERASED], "c": ERASED}
    assert [one.content for one in red.messages] == [ERASED] * 6


def items(*names: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{CANARY} {one}", "foreign_id": f"{CANARY}-{one}"}
            for one in names]  # fmt: skip


@pytest.mark.parametrize("takes_keys", [True, False], ids=["keys", "one key"])
def test_a_foreign_item_of_a_subject_is_known_by_a_keyed_digest(
    hf: Store, takes_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of the adapters: each item once, however often all of them are sent."""
    if not takes_keys:
        monkeypatch.setattr(hf._log, "record_keys", False)
    chat = hf.conversation("team talk")
    chat.say("hello")
    first = chat.messages.add(**items("one")[0], subject="ada")
    again = chat.messages.add_many(items("one", "two", "three"), subject="ada")
    assert again[0].revision == first.revision
    assert first.foreign_id == f"{CANARY}-one"
    assert len(chat.messages) == 4
    chat.messages.delete(again[1])
    assert len(chat.messages.add_many(items("two", "three"), subject="ada")) == 2
    assert len(chat.messages) == 4
    with pytest.raises(UsageError):
        chat.messages.add("user", "another", foreign_id=f"{CANARY}-one", subject="ada")
    # Another branch has one more: it is known here by the same digest after a merge.
    fork = chat.fork("other talk")
    fork.messages.add(**items("four")[0], subject="ada")
    chat.messages.merge(fork)
    assert len(chat.messages) == 5
    chat.messages.add_many(items("one", "two", "three", "four"), subject="ada")
    assert len(chat.messages) == 5
    assert SECRET not in stored(hf)
    hf.subjects.erase("ada")
    assert [one.content for one in chat.messages] == ["hello", *[ERASED] * 4]
    assert [one.foreign_id for one in chat.messages] == [None] * 5
    hf.conversation("a third").messages.merge(chat)
    hf.subjects.readmit("ada")
    chat.messages.add_many(items("one"), subject="ada")  # who came back is somebody else
    assert chat.messages.last(1)[0].content == f"{CANARY} one"


def test_what_was_said_elsewhere_is_imported_sealed(hf: Store) -> None:
    chat = hf.conversation("imported")
    given = [one | {"said_at": datetime(2024, 1, number + 1, tzinfo=UTC)}
             for number, one in enumerate(items("one", "two"))]  # fmt: skip
    for _ in range(2):
        chat.messages.import_many(given, subject="ada")
    assert len(chat.messages) == 2
    assert SECRET not in stored(hf)


def test_a_message_of_a_run_has_an_id_that_confirms_no_guess(hf: Store) -> None:
    @holdfast.run
    def tell(ctx: Context) -> None:
        hf.team("red").messages.add("user", CANARY, subject="ada")

    hf.runs.start(tell, id="r1").result()
    [message] = hf.team("red").messages
    assert message.content == CANARY
    assert message.id.startswith("sealed:")


WRITES: list[Callable[[Scope], object]] = [
    lambda red: red.update({"a": 1}, subject="ada"),
    lambda red: red.append("a", 1, subject="ada"),
    lambda red: red.set("new", 1, if_absent=True, subject="ada"),
    lambda red: red.messages.add_many(items("late"), subject="ada"),
    lambda red: red.messages.import_many(
        [items("x")[0] | {"said_at": datetime(2024, 1, 1, tzinfo=UTC)}], subject="ada"
    ),
]


def test_no_such_write_is_accepted_while_the_subject_is_being_erased(hf: Store) -> None:
    red = hf.team("red")
    red.set("n", CANARY, subject="ada")
    hf._kernel.part(Erasure)._begin(hf.subjects.get("ada").id, "told")
    for write in WRITES:
        with pytest.raises(ErasedError):
            write(hf.team("blue") if write is WRITES[-1] else red)
    with pytest.raises(ErasedError):
        together(hf)
    hf.subjects.finish()
    assert red.state.to_dict() == {"n": ERASED}


def test_a_commit_of_asyncio_seals_too(url: str, keys: Path) -> None:
    async def write() -> bytes:
        async with await aio.open(url, keys=keys) as hf:
            red = hf.team("red")
            await red.update({"a": CANARY}, subject="ada")
            await red.append("list", CANARY, subject="ada")
            await red.set("b", CANARY, if_absent=True, subject="ada")
            await red.say(CANARY, subject="ada")
            await red.messages.add_many(items("one"), subject="ada")
            async with hf.commit() as tx:
                tx.scope(red).set("c", CANARY, subject="ada")
                await tx.scope(red).messages.add("user", CANARY, subject="ada")
            assert (await red.state)["c"] == CANARY
            return stored(hf.sync)

    assert SECRET not in asyncio.run(write())


def test_what_is_no_name_or_no_place_is_refused_and_nothing_written(hf: Store) -> None:
    red = hf.team("red")
    with pytest.raises(UsageError), hf.commit() as tx:
        tx.scope(red).set((), {}, subject="ada")
    for wrong in ("", 7):
        with pytest.raises(UsageError), hf.commit() as tx:
            tx.scope(red).set("a", 1, subject=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            red.update({"a": 1}, subject=wrong)  # type: ignore[arg-type]
    with hf.commit() as tx:
        tx.scope(red).set("a", {"b": 1}, subject="ada")
    with pytest.raises(UsageError), hf.commit() as tx:
        tx.scope(red).increment(("a", "b"))
    assert red.revision == 1
