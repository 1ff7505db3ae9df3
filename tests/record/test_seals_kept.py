"""What is sealed stays sealed when the container that has it is written back, on every backend.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ERASED, Store, aio
from holdfast.core.sealing import Sealing
from holdfast.errors import UsageError
from holdfast.scope import Scope
from holdfast.views.kinds import state_file
from tests.record.stores import new_url
from tests.record.test_subjects import stored

WORD = "CANARY-7fa2"
SECRET = WORD.encode()


@pytest.fixture
def hf(url: str, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(url, keys=tmp_path / "keys") as store:
        yield store


def filled(hf: Store) -> Scope:
    """Returns a shared scope with sealed values in a mapping, in lists and at the top."""
    team = hf.team("red")
    team.set("a", {"y": 1})
    team.set(("a", "x"), f"{WORD} within", subject="ada")
    team.set("top", {"p": f"{WORD} whole", "q": [WORD, {"r": WORD}]}, subject="ada")
    team.set("s", f"{WORD} alone", subject="ada")
    team.set("items", ["first"])
    team.append("items", f"{WORD} item", subject="ada")
    team.append("items", {"name": "b"})
    team.set(("items", 2, "mail"), f"{WORD} in an item", subject="ada")
    team.set("large", {"text": "x" * 70_000})
    team.set(("large", "mail"), WORD, subject="ada")
    return team


def edited(change: Callable[[Any], object]) -> Callable[[Store, Scope], object]:
    return lambda hf, team: team.edit(change)


def joint(hf: Store, team: Scope) -> None:
    with hf.commit() as tx:
        own = tx.scope(team)
        own.set("b", own.get("a"))
        own.set("a", {**own.get("a"), "n": 1})
        tx.scope(hf.team("blue")).update(own.state)


def forked(hf: Store, team: Scope) -> None:
    fork = team.fork("fork")
    fork.set("a", {**fork.get("a"), "n": 1})
    team.set("merged", fork.get("a"))
    team.update(fork.state.to_dict())


def gone_back(hf: Store, team: Scope) -> None:
    then = team.revision
    team.set("a", {**team.get("a"), "n": 2})
    team.undo()
    team.delete("s")
    team.restore(then)
    team.set("old", team.at(then)["a"])


def by_asyncio(hf: Store, team: Scope) -> None:
    asyncio.run(_by_asyncio(hf, team))


async def _by_asyncio(hf: Store, team: Scope) -> None:
    shared = await aio.open(hf._log._backend, keys=hf._log.sealing.keys)
    there = shared.team("red")
    await there.set("b", await there.get("a"))
    await there.set("a", {**(await there.get("a")), "n": 1})
    await there.update(await there.state)

    def change(draft: Any) -> None:
        draft["a"] = {**draft["a"]}

    await there.edit(change)


KEEP: dict[str, Callable[[Store, Scope], object]] = {
    "here": lambda hf, team: team.set("a", team.get("a")),
    "elsewhere": lambda hf, team: team.set("b", team.get("a")),
    "nested": lambda hf, team: team.set(("b", "c"), {"d": [team.get("a"), team.get("top")]}),
    "of the state": lambda hf, team: team.set("b", team.state["a"]),
    "changed": lambda hf, team: team.set("a", {**team.get("a"), "n": 1}),
    "plain here": lambda hf, team: team.set("a", team.get("a").to_dict()),
    "difference": lambda hf, team: team.set("a", {**team.get("a"), "n": 1}, diff=True),
    "whole": lambda hf, team: team.set("b", team.get("top")),
    "whole here": lambda hf, team: team.set("top", team.get("top").to_dict()),
    "scalar here": lambda hf, team: team.set("s", team.get("s")),
    "item": lambda hf, team: team.set(("items", 1), team.get(("items", 1))),
    "items": lambda hf, team: team.set("items", team.get("items").to_list()),
    "moved": lambda hf, team: team.set("items", ["new", *team.get("items").to_list()]),
    "turned": lambda hf, team: team.set("items", team.get("items").to_list()[::-1]),
    "sliced": lambda hf, team: team.set("items", team.get("items")[1:]),
    "update": lambda hf, team: team.update(team.state),
    "update plain": lambda hf, team: team.update(team.state.to_dict()),
    "replace": lambda hf, team: team.update(team.state, replace=True),
    "replace plain": lambda hf, team: team.update(
        {**team.state.to_dict(), "n": 1}, replace=True
    ),
    "large": lambda hf, team: team.set("large", {**team.get("large"), "n": 1}),
    "large elsewhere": lambda hf, team: team.set("b", team.get("large")),
    "append": lambda hf, team: team.append("items", team.get("a")),
    "absent": lambda hf, team: team.set("new", team.get("a"), if_absent=True),
    "edit": edited(lambda d: d.__setitem__("a", {**d["a"]})),
    "edit copies": edited(lambda d: d.__setitem__("b", d["a"])),
    "edit updates": edited(lambda d: d["a"].update(n=1)),
    "edit merges": edited(lambda d: d.update(dict(d))),
    "edit inserts": edited(lambda d: d["items"].insert(0, d["a"])),
    "edit twice": edited(
        lambda d: (d.__setitem__("a", {**d["a"], "n": 1}), d.__setitem__("b", d["a"]))
    ),
    "edit sorts": edited(lambda d: d["items"].reverse()),
    "another scope": lambda hf, team: hf.team("blue").set("b", team.get("a")),
    "another state": lambda hf, team: hf.team("blue").update(team.state),
    "a message": lambda hf, team: team.messages.add("user", "hello", metadata={"a": team.get("a")}),
    "an event": lambda hf, team: team.record("met", {"a": team.get("a")}, unchecked=True),
    "a fact": lambda hf, team: team.facts.state("place", team.get("a")),
    "joint": joint,
    "fork": forked,
    "back": gone_back,
    "asyncio": by_asyncio,
}  # fmt: skip


def test_a_container_keeps_its_seals_wherever_it_is_written(hf: Store) -> None:
    for name, write in KEEP.items():
        team = filled(hf)
        write(hf, team)
        assert SECRET not in stored(hf), name
        assert team.get(("a", "x")) == f"{WORD} within", name
        team.remove()
    team = filled(hf)
    for name in ("here", "elsewhere", "edit", "moved", "another state"):
        KEEP[name](hf, team)
    receipt = hf.subjects.erase("ada")
    assert {one.scope for one in receipt.scopes} >= {"team/red", "team/blue"}
    for scope in (team, hf.team("blue")):
        assert WORD not in repr(scope.state.to_dict())
    assert team.get(("a", "x")) is ERASED
    assert team.get(("b", "x")) is ERASED
    # What was erased can be written back as it is read, and stays what it is.
    team.set("a", {**team.get("a"), "n": 2})
    team.update(team.state.to_dict())
    assert team.get(("a", "x")) is ERASED
    assert hf.check().findings == []


OVER: dict[str, Callable[[Store, Scope], object]] = {
    "set": lambda hf, team: team.set("s", "plain"),
    "within": lambda hf, team: team.set("a", {"x": "plain"}),
    "at a path": lambda hf, team: team.set(("a", "x"), "plain"),
    "item": lambda hf, team: team.set(("items", 1), "plain"),
    "items": lambda hf, team: team.set("items", ["first", "plain"]),
    "update": lambda hf, team: team.update({"s": "plain"}),
    "replace": lambda hf, team: team.update({"s": "plain"}, replace=True),
    "difference": lambda hf, team: team.set("s", "plain", diff=True),
    "edit": edited(lambda d: d.__setitem__("s", d["s"] + "!")),
    "a part": lambda hf, team: team.set("b", team.get("top")["q"]),
    "a part elsewhere": lambda hf, team: hf.team("blue").set("b", {"c": team.get("top")["q"][1]}),
    "a part merged": lambda hf, team: team.set("top", {**team.get("top"), "n": 1}),
    "another's": lambda hf, team: team.set("b", {"c": team.get("a")}, subject="bob"),
}  # fmt: skip


def test_a_plain_value_over_a_sealed_one_is_refused_by_name(hf: Store, url: str) -> None:
    team = filled(hf)
    before = team.revision
    for name, write in OVER.items():
        with pytest.raises(UsageError, match=r"sealed"):
            write(hf, team)
        assert (team.revision, name) == (before, name)
    hf.team("blue").set("n", 1)
    hf._log.folds.trim()  # whoever does not know the state is refused too
    with pytest.raises(UsageError, match=r"state\['s'\].*sealed"):
        team.set("s", "plain")
    # With the subject it is theirs again; deleted, the place is anybody's.
    team.set("top", {**team.get("top"), "n": 1}, subject="ada")
    assert team.get("top")["q"][1] == {"r": WORD}
    team.set("b", {"c": team.get("a")}, subject="ada")
    assert team.get("b") == {"c": {"y": 1, "x": f"{WORD} within"}}
    with hf.commit() as tx:
        tx.scope(team).update({"t": {"q": team.get("top")["q"]}}, subject="ada")
        tx.scope(team).append("items", team.get("top")["q"], subject="ada")
    assert SECRET not in stored(hf)
    team.delete("s")
    team.set("s", "plain")
    assert team.get("s") == "plain"


def test_a_repeated_write_is_still_known_by_its_key(hf: Store) -> None:
    team = filled(hf)
    for name, value in (("a", {**team.get("a"), "n": 1}), ("s", team.get("s"))):
        first = team.set(name, value, key=f"k {name}")
        assert team.set(name, value, key=f"k {name}") == first
        with pytest.raises(UsageError, match=r"another change|sealed"):
            team.set(name, "other", key=f"k {name}")


def test_the_order_in_one_write_counts(hf: Store) -> None:
    team = filled(hf)
    with hf.commit() as tx:
        tx.scope(team).delete("s")
        tx.scope(team).set("s", "plain")
    assert team.get("s") == "plain"
    with pytest.raises(UsageError, match="sealed"), hf.commit() as tx:
        tx.scope(team).set("t", WORD, subject="ada")
        tx.scope(team).set("t", "plain")


def test_another_process_and_the_command_line_are_refused(tmp_path: Path, durable: str) -> None:
    url, keys = new_url(durable, tmp_path), tmp_path / "keys"
    with holdfast.open(url, keys=keys) as hf:
        hf.team("red").set("s", WORD, subject="ada")
    words = ["set", "team/red", "s", "plain", "--store", url]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env={"HOLDFAST_KEYS": str(keys), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "sealed" in done.stderr
    with holdfast.open(url, keys=keys) as hf:
        with pytest.raises(UsageError, match="sealed"):
            hf.team("red").set("s", "plain")
        assert hf.team("red").get("s") == WORD


def test_a_file_that_was_edited_keeps_what_is_sealed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        team = hf.team("red")
        team.set("a", {"y": 1})
        team.set(("a", "x"), WORD, subject="ada")
        views = hf.views(tmp_path / "views", [state_file(team, "red.json")])
        views.sync()
        place = tmp_path / "views" / "red.json"
        assert WORD not in place.read_text()
        place.write_text(place.read_text().replace('"y": 1', '"y": 2'))
        views.sync()
        assert team.get("a") == {"y": 2, "x": WORD}
        assert SECRET not in stored(hf)


def voted(hf: Store) -> Scope:
    """Returns a shared scope in which two subjects have equal items in a list."""
    team = hf.team("red")
    team.set("l", [])
    for name in ("ada", "bob"):
        team.append("l", "yes", subject=name)
        team.append("l", {"vote": "yes"}, subject=name)
        team.append("l", {"why": [{}]})
        place = len(team.get("l")) - 1
        team.set(("l", place, "vote"), "yes", subject=name)
        team.set(("l", place, "why", 0, "text"), "so", subject=name)
    return team


def one_level(team: Scope) -> list[Any]:
    return [{**one} if isinstance(one, Mapping) else one for one in team.get("l")]


BACK: dict[str, tuple[int, Callable[[Scope], object]]] = {
    "as it is": (0, lambda team: team.set("l", team.get("l"))),
    "the state": (0, lambda team: team.update(team.state)),
    "plain": (0, lambda team: team.set("l", team.get("l").to_list())),
    "one level": (0, lambda team: team.set("l", one_level(team))),
    "moved": (1, lambda team: team.set("l", ["new", *team.get("l")])),
    "moved plain": (1, lambda team: team.set("l", ["new", *team.get("l").to_list()])),
    "moved one level": (1, lambda team: team.set("l", ["new", *one_level(team)])),
    "inserted": (1, lambda team: team.edit(lambda d: d["l"].insert(0, "new"))),
}


def test_equal_items_of_two_subjects_stay_theirs(hf: Store) -> None:
    whole = {"vote": "yes", "why": [{"text": "so"}]}
    item = {"vote": ERASED, "why": [{"text": ERASED}]}
    for number, (name, (offset, write)) in enumerate(BACK.items()):
        team = voted(hf)
        write(team)
        gone, left = ("ada", "bob") if number % 2 else ("bob", "ada")
        hf.subjects.erase(gone)
        parts = {
            left: ["yes", {"vote": "yes"}, whole],
            gone: [ERASED, ERASED, item],
        }
        found = [
            {**one, "why": [*one["why"]]} if isinstance(one, Mapping) and "why" in one else one
            for one in team.get("l")
        ]
        assert found[offset:] == [*parts["ada"], *parts["bob"]], name
        team.remove()
        hf.subjects.readmit(gone)


def test_an_item_with_seals_of_elsewhere_is_no_moved_one(hf: Store) -> None:
    team = voted(hf)
    team.set("other", [{}])
    team.set(("other", 0, "text"), "so", subject="carl")
    items = [*team.get("l")]
    team.set("l", [*items[:2], {**items[2], "why": team.get("other")}, *items[3:]])
    hf.subjects.erase("ada")
    assert team.get(("l", 2)) == {"vote": ERASED, "why": [{"text": "so"}]}


def test_a_sealed_item_is_one_item(hf: Store) -> None:
    team = hf.team("red")
    team.set("l", ["a", "b"])
    for name in ("ada", "bob"):
        team.append("l", "yes", subject=name)
    # One more than before: those at their places stay, and the last is a plain one.
    team.set("l", ["a", "b", "yes", "yes", "yes"])
    hf.subjects.erase("bob")
    assert team.get("l") == ["a", "b", "yes", ERASED, "yes"]
    team.set("l", ["yes", "b", "yes", "[erased]", "[erased]"])
    assert team.get("l") == ["yes", "b", "yes", ERASED, "[erased]"]
    with pytest.raises(UsageError, match="sealed"):
        team.set("l", ["a", "b", "other"])
    team.set("l", ["new", "a", "b", "[sealed]", "[sealed]"])
    assert team.get("l") == ["new", "a", "b", "yes", ERASED]


def test_a_list_that_is_written_back_opens_each_item_at_most_once(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = hf.team("red")
    for number in range(20):
        team.append("l", f"v{number}", subject="ada")
    values = team.get("l").to_list()
    opened: list[object] = []
    open_value = Sealing.open_value

    def counted(self: Sealing, *args: Any) -> bytes:
        opened.append(args[0])
        return open_value(self, *args)

    monkeypatch.setattr(Sealing, "open_value", counted)
    team.set("l", ["new", *values])
    assert len(opened) == 20
    opened.clear()
    team.set("l", team.at(team.revision)["l"])
    assert opened == []
