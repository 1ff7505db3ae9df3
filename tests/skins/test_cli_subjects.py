"""The verbs of subjects: list, show, export, hold, erase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation(hf.pseudonym("ada"), subject="ada")
        chat.set("name", "Ada Lovelace")
        hf.conversation(hf.pseudonym("bob"), subject="bob").set("name", "Bob")
    return tmp_path


def test_a_subject_is_shown_held_exported_and_erased(place: Path, cli: Any) -> None:
    assert [row[0] for row in cli("subject", "list").rows][:2] == ["ada", "bob"]
    assert "scope\tconversation/p-" in cli("subject", "show", "ada").out
    exported = cli("subject", "export", "ada").document
    assert exported["events"][0]["data"][0][-1] == "Ada Lovelace"
    assert "cannot be erased" in cli("subject", "hold", "ada", "--reason", "case 7").out
    assert "held\tcase 7" in cli("subject", "show", "ada").out
    assert "case 7" in cli("subject", "erase", "ada", "--yes", code=2).err
    assert "no more" in cli("subject", "hold", "ada", "--end").out
    assert "--yes" in cli("subject", "erase", "ada", code=2).err
    erased = cli("subject", "erase", "ada", "--yes")
    assert "is erased: 1 events" in erased.out
    assert [row[0] for row in cli("subject", "list").rows][:1] == ["bob"]
    assert "no subject" in cli("subject", "show", "ada", code=3).err
    assert cli("check").code == 0


def test_a_killed_erasure_is_finished(
    place: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(place / "store") as hf:
        hf._erasure._begin(hf.subject("ada").id, hf.pseudonym("erased ada"))
    assert "expected the name" in cli("subject", "erase", code=2).err
    assert "is erased" in cli("subject", "erase", "--finish").out
    assert cli("subject", "erase", "--finish", "--json").document == {"erased": []}


def test_an_erasure_that_is_not_confirmed_erases_nothing(
    place: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.subjects.confirm_removal", lambda *_: False)
    assert "nothing was erased" in cli("subject", "erase", "ada").out
    assert [row[0] for row in cli("subject", "list").rows][:2] == ["ada", "bob"]
