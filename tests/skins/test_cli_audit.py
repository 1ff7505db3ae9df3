"""audit on the command line (BOOT-37)."""

from __future__ import annotations

from typing import Any

import holdfast


def test_what_changes_how_often_is_shown(place: str, cli: Any) -> None:
    with holdfast.open(place) as hf:
        team = hf.team("t")
        team.update({"stage": "triage", "log": ["x" * 200]})
        team.set("stage", "done")
        team.set(("a.b\x1b", "x"), 1)
        times = [event.time for event in team.history()]
    rows = cli("audit", "team/t").rows
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("1", "204", "log"),
        ("1", "7", '["a.b\\u001b"]'),
        ("2", "6", "stage"),
    ]
    document = cli("audit", "team/t", "--json").document
    assert (document["scope"], document["revision"]) == ("team/t", 3)
    assert [item["path"] for item in document["items"]] == [["log"], ["a.b\x1b"], ["stage"]]
    assert [item["changes"] for item in document["items"]] == [1, 1, 2]
    assert document["items"][2]["changed_at"] == rows[2][2]
    assert rows[2][2].startswith(times[1].isoformat()[:19])


def test_a_scope_without_state_and_mistakes(place: str, cli: Any) -> None:
    cli("audit", "team/t", code=3)
    cli("say", "conversation/c", "hi")
    assert cli("audit", "conversation/c").out == ""
    assert cli("audit", "conversation/c", "--json").document["items"] == []
    with holdfast.open(place) as hf:
        hf.conversation("c").close(keep=False)
    cli("audit", "conversation/c", code=6)
