"""`scopes --where` lists scopes by what their states have."""

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
    assert 'no operator "=="' in cli(*scopes, "--where", "a==1", code=2).err
