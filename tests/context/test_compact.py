"""The compact form of a project: nothing is lost, and it is short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import UsageError
from holdfast.cli import main
from holdfast.context.compact import KINDS, CompactItem, decode_items, encode_items, trimmed
from holdfast.context.tokens import estimate

TEXT = st.text(alphabet=st.sampled_from("ab ;\\\n\r,!@#%~=>ensrc\té"), max_size=12)
NAME = TEXT.filter(bool)
ITEMS = st.builds(
    CompactItem,
    kind=st.sampled_from(KINDS),
    id=NAME,
    texts=st.lists(TEXT, max_size=3).map(trimmed),
    status=st.sampled_from(["open", "in_progress", "blocked"]),
    priority=st.integers(-9, 9),
    owner=st.none() | NAME,
    waits=st.lists(NAME, max_size=3).map(tuple),
    tags=st.lists(NAME, max_size=3).map(tuple),
    epic=st.none() | NAME,
)


@settings(max_examples=150, deadline=None)
@given(scope=NAME, items=st.lists(ITEMS, max_size=4))
def test_everything_that_is_encoded_can_be_read_back(scope: str, items: list[CompactItem]):
    assert decode_items(encode_items(scope, items)) == (scope, items)


@pytest.mark.parametrize("text", ["", "hf2 team/red", "hf1", "hf1 a\nnonesuch x", "hf1 a\ntask"])
def test_what_is_no_compact_project_is_refused(text: str):
    with pytest.raises(UsageError, match="compact project"):
        decode_items(text)


def fill(place: Path) -> None:
    with holdfast.open(place, actor="ada") as hf:
        team = hf.team("red")
        team.decide("answer in English", because="customers read it", key="o1", standing=True)
        team.set("goals", {"g1": {"title": "ship version 2", "status": "open"}})
        team.facts.state("branch", "main")
        team.facts.state("model", {"name": "m-1"}, valid_for=0.000_001)
        team.decide("keep the form plain", action="write form.py", key="d1")
        for number in range(40):
            team.tasks.add(
                f"build part {number} of the form", id=f"t{number}", tags=["ui"], epic="form",
                priority=number % 3, depends_on=[f"t{number - 1}"] if number % 4 else (),
            )  # fmt: skip
        team.tasks.claim("t0", owner="ann", lasts="10d")
        team.tasks.add("done already", id="old")
        team.tasks.close("old", "done")


def test_a_project_in_few_tokens(tmp_path: Path, capsys: Any):
    fill(tmp_path / "store")
    store = ["--store", str(tmp_path / "store")]
    assert main([*store, "boot", "team/red", "--compact"]) == 0
    text = capsys.readouterr().out
    scope, items = decode_items(text)
    assert scope == "team/red"
    lines = text.splitlines()
    assert lines[:3] == [
        "hf1 team/red",
        "order o1 answer in English ; customers read it",
        "goal g1 ship version 2",
    ]
    assert "task t0 ~ @ann #ui %form build part 0 of the form" in lines
    assert "task t1 !1 >t0 #ui %form build part 1 of the form" in lines
    assert "open d1 keep the form plain ;  ; write form.py".replace(";  ;", "; \\e ;") in lines
    assert 'fact branch "main"' in lines
    assert 'fact model {"name":"m-1"} ; stale' in lines
    assert sum(item.kind == "task" for item in items) == 40
    assert main([*store, "task", "list", "team/red", "--limit", "100", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)["tasks"]
    fields = ("id", "title", "priority", "status", "epic", "tags", "owner", "dependencies")
    plain = json.dumps([{name: task[name] for name in fields} for task in whole])
    assert 2 * estimate(text) < estimate(plain), "half of what the same fields take as JSON"
