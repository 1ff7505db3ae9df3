"""The examples of nodes: the picker, the grid search, the team."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.record.stores import ALL, new_url

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=ALL)
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with holdfast.open(new_url(request.param, tmp_path)) as store:
        yield store


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module


def statuses(walk: Any) -> dict[str, str]:
    return {name: state.status for name, state in walk.states.items()}


def test_the_picker_follows_the_thread(hf: Any, example: Any):
    """NODE-17 to NODE-21: problem type, the context of the chat, flags only with the thread, a rule
    that stays the same, and constraints that follow the flags."""
    picker, chat = example("picker"), hf.conversation("c")
    walk, resolved = picker.pick(hf, chat, ["Plan a trip."])
    assert (resolved.model, resolved.settings["temperature"]) == ("small", 0.2)
    walk, _ = picker.pick(hf, chat, ["Plan a trip."])
    assert statuses(walk) == {"system": "hit", "flags": "hit", "picker": "hit"}
    rules = [one for one in walk.sequence if one.kind == "rule"]
    walk, resolved = picker.pick(hf, chat, ["Plan a long trip."])  # other words, the same flags
    assert statuses(walk) == {"system": "hit", "flags": "computed", "picker": "cut off"}
    walk, resolved = picker.pick(hf, chat, ["A riddle for you."])
    assert statuses(walk)["picker"] == "computed"
    assert resolved.model == "large"
    assert [one for one in walk.sequence if one.kind == "rule"] == rules
    assert [one.name for one in walk.sequence if one.kind == "constraint"] == ["temperature"]


def test_the_temperature_follows_the_search(hf: Any, example: Any):
    """NODE-11: the rule that takes the temperature is updated when the search's result changes."""
    temperature, chat = example("temperature"), hf.conversation("c")

    def found(target: float) -> tuple[dict[str, str], float]:
        hf.global_()["target"] = target
        walk = hf.nodes.process(temperature.tuning, chat)
        return statuses(walk), walk.resolve().settings["temperature"]

    assert found(0.6) == ({"search": "computed", "settings": "computed"}, 0.7)
    assert found(0.6)[0] == {"search": "hit", "settings": "hit"}
    assert found(0.1) == ({"search": "computed", "settings": "hit"}, 0.0)


def test_the_team_refines_until_the_document_is_good(hf: Any, example: Any):
    """NODE-25, NODE-26: system message, author, review, team; create, review, refine."""
    team, chat = example("review_team"), hf.conversation("c")
    walk = hf.nodes.process(team.flow, chat, topic="Owls")
    assert walk["review/grader"].value == 10
    assert walk.exhausted == ()
    rounds = [name for name in walk.states if name.startswith("review/grader@")]
    assert rounds == ["review/grader@1", "review/grader@2", "review/grader@3"]
    assert "Run the code: done." in walk.value("publish")
    messages = [one.value["role"] for one in walk.sequence]
    assert messages == ["system", *["author", "grader"] * 3]
    assert hf.nodes.process(team.flow, chat, topic="Owls").counts["computed"] == 0


@pytest.mark.parametrize("program", ["picker", "temperature", "review_team"])
def test_the_programs_run(program: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{program}.py", tmp_path / "store", "Owls"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    assert len(done.stdout.splitlines()) >= 3
