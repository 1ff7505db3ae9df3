"""The verbs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCOPE = "conversation/c"
CODE = "desk_graph.py:planner"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    monkeypatch.setenv("HOLDFAST_ACTOR", "ada")
    cli("init")


def test_a_walk_from_the_command_line(desk: None, desk_graph: Path, cli: Any):
    first = cli("nodes", "process", CODE, SCOPE, "--input", "text=hi").out
    assert "flags\tcomputed" in first
    assert 'setting model: "small"' in first
    assert "flags\thit" in cli("nodes", "process", CODE, SCOPE, "--input", "text=hi").out
    assert cli("nodes", "plan", CODE, SCOPE, "--input", "text=hi", "--exit-code").out.endswith(
        "0 to compute\n"
    )
    plan = cli("nodes", "plan", CODE, SCOPE, "--input", "text=ho", "--exit-code", code=1).out
    assert "flags\tcompute\tinput text: 'hi' -> 'ho'" in plan
    assert "picker\tmay compute" in plan
    assert "tokens" in plan
    cli("nodes", "process", CODE, SCOPE, "--input", "text=a riddle")
    why = cli("nodes", "why", "planner", "picker", SCOPE).out
    assert "dependency flags" in why
    assert "input text: 'hi' -> 'a riddle'" in why
    listed = cli("nodes", "list", CODE, "--scope", SCOPE).out
    assert [line.split("\t")[2] for line in listed.splitlines()] == ["flags", "picker"]
    assert "affected by\tcode, text" in cli("nodes", "show", "planner", "flags", SCOPE).out
    accepted = cli(
        "nodes", "accept", CODE, "flags", SCOPE, "--input", "text=other", "--because", "spelling"
    )
    assert "stays as it is" in accepted.out
    assert "flags\thit" in cli("nodes", "process", CODE, SCOPE, "--input", "text=other").out
    cli("nodes", "invalidate", "planner", SCOPE, "--node", "flags")
    assert "flags\tcomputed" in cli("nodes", "process", CODE, SCOPE, "--input", "text=other").out
    run = cli("nodes", "process", CODE, SCOPE, "--input", "text=other", "--run", "r1", "--json")
    assert run.document["counts"]["hit"] == 2
    forced = cli("nodes", "process", CODE, SCOPE, "--input", "text=other", "--force", "picker")
    assert "picker\tcomputed" in forced.out


def test_graphs_are_drawn(desk: None, desk_graph: Path, cli: Any):
    """NODE-24: a mermaid flowchart of the flow, with hits and misses in colour."""
    cli("nodes", "process", CODE, SCOPE, "--input", "text=hi")
    drawn = cli("nodes", "graph", CODE).out
    assert drawn.startswith("flowchart TD\n")
    assert '  n0["flags"]\n' in drawn
    assert "  n0 --> n1\n" in drawn
    coloured = cli("nodes", "graph", CODE, "--scope", SCOPE, "--input", "text=ho").out
    assert "class n0 compute" in coloured
    assert "class n1 maycompute" in coloured
    nested = cli("nodes", "graph", "desk_graph.py:nested").out
    assert 'subgraph n1["part (until picker, 3)"]' in nested
    dot = cli("nodes", "graph", "desk_graph.py:nested", "--dot", "--json").document
    assert dot["form"] == "dot"
    assert '"flags" -> "part/picker"' in dot["text"]
    assert dot["edges"] == [["flags", "part/picker"]]


def test_what_is_not_there_and_what_is_typed_wrong(desk: None, desk_graph: Path, cli: Any):
    for words, code in (
        (("why", "planner", "flags", SCOPE), 3),
        (("show", "planner", "flags", SCOPE), 3),
        (("invalidate", "planner", SCOPE), 3),
        (("process", "desk_graph.py:nobody", SCOPE), 3),
        (("process", "desk_graph.py", SCOPE), 2),
        (("process", CODE, SCOPE), 2),
        (("process", CODE, SCOPE, "--input", "text"), 2),
        (("process", CODE, SCOPE, "--input", "text=1", "--input", "text=2"), 2),
    ):
        cli("nodes", *words, code=code)
