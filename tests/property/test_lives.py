"""Scopes that are removed and begin again, step by step, in lock step on several backends.

The model is a plain dict of what a reader sees, and a stack of what an undo brings back. Every
backend is asked the same, and must answer the same: state, listing, keys, revisions.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import holdfast
from holdfast.errors import ConflictError, HoldfastError, NotFoundError

NAMES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["k1", "k2"])


class Life:
    """What a reader sees of one scope."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.keys: dict[str, tuple[int, int]] = {}  # the revision and the value of each
        self.messages = 0
        self.is_there = False


class Lives(RuleBasedStateMachine):
    """One model, and a store of each kind that needs no server."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.mkdtemp(prefix="holdfast-lives-")
        urls = ["memory:", f"{self.place}/files", f"sqlite:{self.place}/store.db"]
        self.stores = [holdfast.open(url) for url in urls]
        self.lives: dict[str, Life] = {}
        self.removed: dict[str, Life | None] = {}
        self.revisions: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def teardown(self) -> None:
        for store in self.stores:
            assert store.check().ok
            store.close()
        shutil.rmtree(self.place)

    def _on_all(self, act: Any) -> Any:
        answers: list[Any] = []
        for store in self.stores:
            try:
                answers.append(act(store))
            except (ConflictError, NotFoundError) as error:
                answers.append(type(error))
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]

    def _life(self, name: str) -> Life:
        life = self.lives.setdefault(name, Life())
        life.is_there = True
        self.removed.pop(name, None)  # a new life has begun: there is no way back
        return life

    @rule(name=NAMES, value=st.integers(0, 9))
    def set_value(self, name: str, value: int) -> None:
        revision = self._on_all(lambda hf: hf.conversation(name).set("n", value))
        self._life(name).state["n"] = value
        assert revision == self.revisions.get(name, 0) + 1
        self.revisions[name] = revision

    @rule(name=NAMES, key=KEYS, value=st.integers(0, 1))
    def set_once(self, name: str, key: str, value: int) -> None:
        """A key writes once in each life, whatever the lives before it did."""
        known = self.lives.get(name, Life()).keys.get(key)
        value = value if known is None else known[1]
        revision = self._on_all(lambda hf: hf.conversation(name).set("m", value, key=key))
        if known is not None:
            assert revision == known[0]
            return
        life = self._life(name)
        assert revision == self.revisions.get(name, 0) + 1
        life.keys[key] = revision, value
        life.state["m"] = value
        self.revisions[name] = revision

    @rule(name=NAMES)
    def say(self, name: str) -> None:
        self._on_all(lambda hf: hf.conversation(name).say("hello").content)
        self._life(name).messages += 1
        self.revisions[name] = self.revisions.get(name, 0) + 1

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        answer = self._on_all(lambda hf: hf.conversation(name).remove())
        life = self.lives.get(name)
        if life is None or not life.is_there:
            assert answer is NotFoundError
            return
        self.revisions[name] += 1
        assert answer == self.revisions[name]
        self.removed[name] = life
        self.lives[name] = Life()

    @precondition(lambda self: self.removed)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.removed)))
        revision = self._on_all(lambda hf: hf.conversation(name).undo())
        life = self.removed.pop(name)
        assert life is not None
        self.lives[name] = life
        self.revisions[name] += 1
        assert revision == self.revisions[name]

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        """Takes a revision to write by later."""
        self.seen[name] = self._on_all(lambda hf: hf.conversation(name).revision)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.seen)))
        expected = self.seen[name]
        answer = self._on_all(lambda hf: hf.conversation(name).set("n", 77, expected=expected))
        if expected != self.revisions.get(name, 0):
            assert answer is ConflictError
            return
        self._life(name).state["n"] = 77
        self.revisions[name] = answer

    @rule(which=st.integers(1, 2))
    def open_again(self, which: int) -> None:
        """What this process remembers is gone; what is stored says the same."""
        url = f"{self.place}/files" if which == 1 else f"sqlite:{self.place}/store.db"
        self.stores[which].close()
        self.stores[which] = holdfast.open(url)

    @invariant()
    def all_see_the_model(self) -> None:
        there = sorted(f"conversation/{n}" for n, life in self.lives.items() if life.is_there)
        for store in self.stores:
            assert [scope.name for scope in store.scopes()] == there
            for name, life in self.lives.items():
                chat = store.conversation(name)
                assert chat.state.to_dict() == life.state
                assert len(chat.messages) == life.messages
                assert chat.revision == self.revisions.get(name, 0)


PLANTS: dict[str, tuple[str, Any]] = {
    "a key outlives its life": ("holdfast.core.event.key_in", lambda _, key: key),
    "a list names what was removed": ("holdfast.core.log.Log.absent", lambda *_: set()),
    "a removal is forgotten": ("holdfast.core.log.Log.life", lambda *_: 0),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_noticed(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Lives()
    try:
        monkeypatch.setattr(*PLANTS[plant])
        with pytest.raises((AssertionError, HoldfastError)):
            machine.set_once("a", "k1", 0)
            machine.say("a")
            machine.remove("a")
            machine.open_again(1)
            machine.all_see_the_model()
            machine.set_once("a", "k1", 0)
            machine.set_once("a", "k1", 0)
            machine.all_see_the_model()
    finally:
        monkeypatch.undo()
        machine.teardown()


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
