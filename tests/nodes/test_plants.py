"""Planted faults: each of them is caught by the model, or by the test that is about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Store
from holdfast.nodes import define, explain, walk
from holdfast.nodes.results import NodeState
from holdfast.nodes.walk import InputValue, Walker
from holdfast.thumbprint import code_of
from tests.nodes.test_model import STEPS, Trial
from tests.nodes.test_process import (
    test_the_trace_is_checked_in_order_up_to_the_first_change as in_order,
)
from tests.nodes.test_process import test_what_is_handed_out_is_a_copy_of_ones_own as copies
from tests.nodes.witness import Calls

Patch = pytest.MonkeyPatch


def name_only_keys(patch: Patch) -> None:
    know = Walker.know

    def planted(self: Walker, level: Any, node: Any) -> Any:
        known = know(self, level, node)
        known.in_thumb = "0" * 64
        return known

    patch.setattr(Walker, "know", planted)


def unordered_traces(patch: Patch) -> None:
    check = Walker._check

    def planted(self: Walker, known: Any, entry: Any) -> Any:
        content = entry.content()
        backwards = replace(content, reads=tuple(reversed(content.reads)))
        patch.setattr(entry, "_content", backwards)
        try:
            return (yield from check(self, known, entry))
        finally:
            patch.setattr(entry, "_content", content)

    patch.setattr(Walker, "_check", planted)


def no_cut_off(patch: Patch) -> None:
    def planted(edge: Any) -> Any:
        return None if edge.status == "skipped" else edge.full_thumb

    patch.setattr(walk, "edge_thumb", planted)


def untracked_helper(patch: Patch) -> None:
    patch.setattr(define, "code_of", lambda function, **how: code_of(function, track="self"))


def plan_that_writes(patch: Patch) -> None:
    def planted(nodes: Any, graph: Any, target: Any, scope: Any, inputs: Any) -> Any:
        walker = Walker(nodes, graph, "conversation/c", inputs)
        walker.run()
        return explain.Plan(graph.name, "conversation/c", ())

    patch.setattr(explain, "plan", planted)


@pytest.mark.parametrize("plant", [name_only_keys, no_cut_off, untracked_helper, plan_that_writes])
def test_the_model_catches(plant: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path):
    plant(monkeypatch)
    for seed in range(30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        trial = Trial(seed, "memory:", folder)
        try:
            for _ in range(STEPS):
                trial.walk()
                trial.step()
        except AssertionError:
            return
        finally:
            trial.handles[0].close()
    pytest.fail("the fault was not noticed")


def test_an_unordered_trace_is_caught(monkeypatch: Patch, mem: Store):
    unordered_traces(monkeypatch)
    with pytest.raises(AssertionError):
        in_order(mem, Calls())


def test_a_shared_mutable_artifact_is_caught(monkeypatch: Patch):
    values: dict[str, Any] = {}
    real = NodeState.value.fget
    assert real is not None
    shared = property(lambda self: values.setdefault(self.full_thumb, real(self)))
    with monkeypatch.context() as patch:
        patch.setattr(NodeState, "value", shared)
        patch.setattr(walk, "_sorted_copy", lambda value: value)
        with holdfast.open("memory:") as hf, pytest.raises(AssertionError):
            copies(hf)
    with monkeypatch.context() as patch:
        patch.setattr(InputValue, "copy", lambda self: self.itself)
        with holdfast.open("memory:") as hf, pytest.raises(AssertionError):
            copies(hf)
    with holdfast.open("memory:") as hf:
        copies(hf)


def test_without_a_fault_nothing_is_noticed(tmp_path: Path):
    """The trials of the plants pass when nothing is planted."""
    trial = Trial(0, "memory:", tmp_path)
    for _ in range(STEPS):
        trial.walk()
        trial.step()
    trial.handles[0].close()
