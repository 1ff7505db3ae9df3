"""The ledger of what was erased, beside the keys: what it holds, and that older ones are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backup import backup, restore
from holdfast.errors import LetGoError
from holdfast.interchange import import_scopes
from holdfast.keys import FolderKeys

FIXTURE = Path(__file__).parent.parent / "fixtures" / "ledger-1"
WHO = "ada@example.org"


def shown(hf: holdfast.Store) -> dict[str, Any]:
    return {scope.name: state(scope) for scope in hf.scopes(limit=None)}


def state(scope: holdfast.Scope) -> Any:
    """Returns the state of a scope; of one that was erased and came with a copy, that it went."""
    try:
        return scope.state.to_dict()
    except LetGoError:
        return "gone"


def test_no_name_is_in_it_and_a_restore_leaves_out_what_was_erased(tmp_path: Path) -> None:
    """Nor does it reach what is written later under the same name."""
    keys = tmp_path / "keys"
    with holdfast.open(tmp_path / "s", keys=keys) as hf:
        hf.team(WHO).set("n", "Ada Lowe")
        hf.team("red").set("n", {"who": "Ada Lowe", "kept": "ours"})
        backup(hf, tmp_path / "old")
        hf.subjects.erase(scope=f"team/{WHO}")
        hf.subjects.erase(match="Ada Lowe")
        hf.team(WHO).set("n", "a new life")
        backup(hf, tmp_path / "new")
    noted = b"".join(one.read_bytes() for one in keys.rglob("*") if one.is_file())
    for word in (WHO, "Lowe", "team/"):
        assert word.encode() not in noted
    for name, expected in (("old", "gone"), ("new", {"n": "a new life"})):
        with holdfast.open(tmp_path / f"from {name}", keys=keys) as hf:
            restore(tmp_path / name, hf)
            assert state(hf.team(WHO)) == expected
            assert hf.team("red").get(("n", "kept")) == "ours"
            assert "Lowe" not in json.dumps(shown(hf))
            assert hf.check().findings == []


@pytest.mark.parametrize("has_ledger", [True, False])
def test_a_ledger_of_format_1_is_read(has_ledger: bool, tmp_path: Path) -> None:
    """It had the name of each stream. Without it, what was erased is back: the test can fail."""
    keys = FolderKeys(tmp_path / "keys")
    for line in (FIXTURE / "ledger.jsonl").read_bytes().splitlines() if has_ledger else ():
        keys.note(line)
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        import_scopes(hf, FIXTURE / "export.jsonl")
        found = shown(hf)
        assert found["team/blue"] == {"n": "stays"}
        assert ("Ada Lowe" in json.dumps(found)) is not has_ledger
        if has_ledger:
            assert found["team/red"]["n"]["kept"] == "stays"
        assert hf.check().findings == []
