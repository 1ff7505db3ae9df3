"""Generated graphs against the model: never stale, never needless, the same with the cache off."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.testing import FakeClock
from tests.nodes import model as models
from tests.nodes.model import FILES, HELPERS, KEYS, SCOPE, Model, World
from tests.nodes.witness import Calls
from tests.record.stores import ALL, new_url
from tests.selection import RUNS_ALL

STEPS = 14
SEEDS = {"memory": 30, "files": 10, "sqlite": 10, "redis": 4, "postgresql": 4}
MORE = 10 if RUNS_ALL else 1
_numbers = itertools.count()


class Trial:
    """One graph, one store with two handles, and the model beside them."""

    def __init__(self, seed: int, url: str, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.nodes = models.make_graph(self.random)
        self.model, self.world = Model(self.nodes), World()
        self.clock = FakeClock()
        self.world.now_us = self.clock.now_us()
        self.noise = 0
        self.calls = Calls()
        self.handles = [holdfast.open(url, settings=Settings(clock=self.clock))]
        if url != "memory:":
            self.handles.append(holdfast.open(url, settings=Settings(clock=self.clock)))
        self.load()

    def load(self) -> None:
        """Loads the code as it is now, as a new process would."""
        name = f"model_{next(_numbers)}"
        path = self.folder / f"{name}.py"
        path.write_text(models.source_of(self.nodes, self.world.helpers, self.folder, self.noise))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module
        spec.loader.exec_module(self.module)
        self.module.witness = self.calls

    def step(self) -> None:
        """Changes something, or nothing."""
        random = self.random
        kind = random.choice(["state", "state", "file", "touch", "helper", "noise", "time", "none"])
        if kind == "state":
            key, value = random.choice(KEYS), random.randint(0, 3)
            self.world.state[key] = value
            self.handles[0].scope(SCOPE).set(key, value)
        elif kind == "file":
            name, text = random.choice(FILES), "x" * random.randint(0, 3)
            self.world.files[name] = text
            (self.folder / name).write_text(text)
        elif kind == "touch":
            for name in self.world.files:
                os.utime(self.folder / name)
        elif kind == "helper":
            self.world.helpers[random.choice(HELPERS)] = random.randint(0, 1)
            self.load()
        elif kind == "noise":
            self.noise += 1
            self.load()
        elif kind == "time":
            self.clock.advance(random.choice([60, 3600, 4 * 3600]))
            self.world.now_us = self.clock.now_us()

    def walk(self) -> None:
        """Walks on one of the handles, and compares."""
        hf = self.random.choice(self.handles)
        planned = hf.nodes.plan(self.module.graph, None, SCOPE)
        assert self.calls.take() == []
        computed, values, artifacts = self.model.walk(self.world)
        walk = hf.nodes.process(self.module.graph, SCOPE)
        assert self.calls.take() == computed
        assert {name: state.value for name, state in walk.states.items()} == values
        assert [one.value for one in walk.sequence] == artifacts
        # What a plan says is certain, with both of its bounds.
        assert not {*planned.computes} - {*computed}
        assert not {*computed} - {*planned.computes, *planned.may_compute}
        assert planned.at_least <= len(computed) <= planned.at_most
        fresh = hf.nodes.process(self.module.graph, SCOPE, cache=False)
        assert fresh.sequence == walk.sequence
        self.calls.take()


@pytest.mark.parametrize(
    ("backend", "seed"),
    [(backend, seed) for backend in ALL for seed in range(MORE * SEEDS[backend])],
)
def test_walks_are_as_the_model_says(backend: str, seed: int, tmp_path: Path):
    """NODE-5, NODE-10, NODE-12, NODE-23: 0 stale, 0 needless, equal artifacts everywhere."""
    trial = Trial(seed, new_url(backend, tmp_path), tmp_path)
    try:
        for _ in range(STEPS):
            trial.walk()
            trial.step()
    finally:
        for handle in trial.handles:
            handle.close()
