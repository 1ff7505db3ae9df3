"""What is kept equals what is replayed, and what a model says, after any history (hypothesis)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Store
from holdfast.projections import projected
from tests.record.stores import ALL, new_url

SCOPES = ["team/0", "team/1", "conversation/2", "conversation/3"]
EXAMPLES = {"memory": 40, "files": 8, "sqlite": 8, "redis": 5, "postgresql": 3}

scope = st.sampled_from(SCOPES)
step = st.one_of(
    st.tuples(st.just("record"), st.lists(scope, min_size=1, max_size=4)),
    st.tuples(st.just("joint"), st.lists(scope, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["set", "fork", "remove", "undo", "look", "verify"]), scope),
    st.tuples(st.just("reopen"), st.none()),
)


@holdfast.projection(init=list, name="model-names")
class Names:
    def named(self, names: Any, event: Any) -> None:
        names.append(event.data["name"])


class Model:
    """Which events there are, in order, told by nobody but the steps."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.lives: dict[str, list[int]] = {}
        self.removed: set[str] = set()
        self.pasts: dict[tuple[str, int], list[int]] = {}
        self.count = 0

    def write(self, scope: str) -> None:
        """Notes that something was written: it begins a life if the scope is not there."""
        if scope in self.removed or scope not in self.lives:
            self.removed.discard(scope)
            self.count += 1
            self.lives.setdefault(scope, []).append(self.count)

    def add(self, scope: str, name: int) -> None:
        self.write(scope)
        self.events.append((scope, name, self.lives[scope][-1]))

    def is_there(self, scope: str) -> bool:
        return scope in self.lives and scope not in self.removed

    def own(self, scope: str) -> list[int]:
        if not self.is_there(scope):
            return []
        life = self.lives[scope][-1]
        past = self.pasts.get((scope, life), [])
        return past + [name for where, name, of in self.events if (where, of) == (scope, life)]

    def every(self, prefix: str) -> list[int]:
        return [
            name
            for where, name, of in self.events
            if where.startswith(prefix) and self.is_there(where) and self.lives[where][-1] == of
        ]


class Trial:
    """One history on one store."""

    def __init__(self, backend: str, place: Path) -> None:
        self.url = new_url(backend, place)
        self.backend = backend
        self.hf = self.open()
        self.model = Model()
        self.names = 0
        self.forks: list[str] = []

    def open(self) -> Store:
        return holdfast.open(self.url, durability="none" if self.backend == "files" else "full")

    def record(self, scopes: list[str], *, joint: bool) -> None:
        named = [(scope, self.names + number) for number, scope in enumerate(scopes)]
        self.names += len(scopes)
        if joint:
            with self.hf.commit() as tx:
                for scope, name in named:
                    tx.scope(self.hf.scope(scope)).record("named", {"name": name}, unchecked=True)
        else:
            for scope, name in named:
                self.hf.scope(scope).record("named", {"name": name}, unchecked=True)
        # A joint commit writes to each scope at once, in the order in which they were first named.
        order = sorted(named, key=lambda one: scopes.index(one[0])) if joint else named
        for scope, name in order:
            self.model.add(scope, name)

    def do(self, kind: str, given: Any) -> None:
        model = self.model
        if kind in ("record", "joint"):
            self.record(given, joint=kind == "joint")
        elif kind == "reopen":
            if self.backend != "memory":
                self.hf.close()
                self.hf = self.open()
        elif kind == "set":
            self.hf.scope(given).set("x", self.names)
            model.write(given)
        elif kind == "fork" and model.is_there(given):
            fork = self.hf.scope(given).fork(f"fork-{len(self.forks)}").name
            self.forks.append(fork)
            past = model.own(given)
            model.write(fork)
            model.pasts[fork, model.lives[fork][-1]] = past
        elif kind == "remove" and model.is_there(given):
            self.hf.scope(given).remove()
            model.removed.add(given)
        elif kind == "undo" and given in model.removed:
            self.hf.scope(given).undo()
            model.removed.discard(given)
        elif kind == "look":
            self.look([given])
        elif kind == "verify":
            assert self.hf.projections.of(Names).verify() == []
            assert self.hf.projections.of(Names, given).verify() == []

    def look(self, scopes: list[str]) -> None:
        model, hf = self.model, self.hf
        assert hf.projections.of(Names).state == model.every("")
        assert hf.projections.of(Names, "team/*").state == model.every("team/")
        for scope in scopes:
            assert hf.projections.of(Names, scope).state == model.own(scope), scope

    def end(self) -> None:
        self.look([*SCOPES, *self.forks])
        for over in (None, "team/*", *SCOPES, *self.forks):
            assert self.hf.projections.of(Names, over).verify() == []
        self.hf.close()


@pytest.mark.parametrize("backend", ALL)
def test_kept_equals_replayed(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(st.lists(step, min_size=5, max_size=25), st.booleans())
    def trial(steps: list[tuple[str, Any]], sees: bool) -> None:
        with (
            tempfile.TemporaryDirectory() as place,
            patch.object(projected, "KEPT_EVENTS_MIN", 2),
            patch.object(projected, "CLOSED_EVENTS_MIN", 1),
        ):
            one = Trial(backend, Path(place))
            for kind, given in steps:
                one.do(kind, given)
                if sees:  # a fold that is in memory, or one that is kept, goes on
                    one.look(SCOPES)
            one.end()

    trial()
