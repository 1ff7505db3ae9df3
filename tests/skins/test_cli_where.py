"""`scopes --where` lists scopes by what their states have; `similar` finds by meaning."""

from __future__ import annotations

from pathlib import Path

import holdfast
from tests.skins.conftest import Runner


def test_scopes_by_what_their_states_have(cli: Runner, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        for number in range(3):
            hf.conversation(f"c{number}").set("customer", {"id": number % 2})
    scopes = ("--store", place, "scopes")
    found = cli(*scopes, "--where", "customer.id=0")
    assert [row[0] for row in found.rows] == ["conversation/c0", "conversation/c2"]
    page = cli(*scopes, "conversation", "--where", "customer.id=0", "--limit", "1")
    assert [row[0] for row in page.rows] == ["conversation/c0"]
    assert "--where" in page.err
    assert cli(*scopes, "--where", "customer.id exists", "--json").document["more"] is False
    assert cli(*scopes, "--where", "customer.id=7").out == ""
    assert "write it like" in cli(*scopes, "--where", "customer_exists", code=2).err
    assert 'no operator "=="' in cli(*scopes, "--where", "a==1", code=2).err


def test_what_is_near_in_meaning(cli: Runner, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        hf.conversation("c").say("anna banana")
        hf.conversation("d").say("zoo")
    similar = ("--store", place, "similar", "banana", "--embedder")
    code = "tests.skins.embedders"
    found = cli(*similar, f"{code}:letters")
    assert [(row[1], row[-1]) for row in found.rows] == [
        ("message", "anna banana"), ("message", "zoo")
    ]  # fmt: skip
    document = cli(*similar, code, "--limit", "1", "--json").document
    assert [one["text"] for one in document["similar"]] == ["anna banana"]
    assert document["similar"][0]["score"] > 0.9
    assert cli(*similar, code, "--scope", "team").out == ""
    assert 'has no embedder "none"' in cli(*similar, f"{code}:none", code=3).err
    assert "has no embedder" in cli(*similar, "tests.skins.conftest", code=3).err
