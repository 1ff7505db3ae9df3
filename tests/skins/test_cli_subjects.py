"""The verbs of subjects: list, show, export, hold, erase."""

from __future__ import annotations

import io
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


def test_what_is_written_by_hand_can_be_a_subject_s(place: Path, cli: Any) -> None:
    """A value, a message, a fact and an event of a subject in a scope of others."""
    cli("set", "team/red", "mail", "CANARY-91", "--subject", "bob", "--key", "CANARY-91 key")
    cli("say", "team/red", "CANARY-91", "--subject", "bob")
    cli("fact", "team/red", "phone", "CANARY-91", "--subject", "bob")
    cli("event", "record", "team/red", "met", '{"who": "CANARY-91"}', "--subject", "bob")
    assert cli("get", "team/red", "mail").out.strip() == "CANARY-91"
    assert "team/red" in cli("subject", "show", "bob").out
    assert "need a value to state" in cli("fact", "team/red", "x", "--subject", "bob", code=2).err
    for path in (place / "store").rglob("*"):
        assert not path.is_file() or b"CANARY-91" not in path.read_bytes()
    cli("subject", "erase", "bob", "--yes")
    assert cli("get", "team/red", "mail").out.strip() == "[erased]"
    assert "CANARY" not in cli("messages", "team/red", "--json").out
    assert "[erased]" in cli("messages", "team/red").out


def test_a_text_and_a_scope_are_erased(
    place: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(place / "store") as hf:
        hf.team("notes").set("call", {"who": "Grace Hopper", "about": "an order"})
        hf.team("old").set("n", 1)
    assert "--match, --scope" in cli("erase", code=2).err
    assert "for --match" in cli("erase", "--scope", "team/old", "--dry-run", code=2).err
    assert "--yes" in cli("erase", "--match", "Grace Hopper", code=2).err
    assert "3 to 10000" in cli("erase", "--match", "ab", "--yes", code=2).err
    planned = cli("erase", "--match", "grace hopper", "--ignore-case", "--dry-run")
    assert "would be erased: 1 events" in planned.out
    assert any("not looked at" in text for text in cli(
        "erase", "--match", "Grace Hopper", "--dry-run", "--json"
    ).document["erased"][0]["beyond"])  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("Grace Hopper\n"))
    [erased] = cli("erase", "--match", "-", "--yes", "--json").document["erased"]
    assert [(one["scope"], one["outcome"], one["revisions"]) for one in erased["scopes"]] == [
        ("team/notes", "anonymised", "1")
    ]
    assert cli("get", "team/notes", "call.who").out.strip() == "[erased]"
    assert "is erased: 1 events" in cli("erase", "--scope", "team/old", "--yes").out
    monkeypatch.setattr("holdfast.cli.subjects.confirm_removal", lambda *_: False)
    assert "nothing was erased" in cli("erase", "--match", "order").out
    assert cli("check").code == 0


def test_a_run_of_a_subject_is_started(place: Path, cli: Any) -> None:
    code = place / "subject_answers.py"
    code.write_text(
        "import holdfast\n\n@holdfast.run\ndef answer(ctx, name):\n    return f'Dear {name}'\n"
    )
    ended = cli("runs", "start", str(code), "CANARY-3d", "--subject", "eve")
    assert "Dear CANARY-3d" in ended.out
    assert "may tell" in cli("runs", "start", str(code), "x", "--subject", "eve", "--id", "eve",
                             code=2).err  # fmt: skip
    assert "run/" in cli("subject", "show", "eve").out
    for path in (place / "store").rglob("*"):
        assert path.is_dir() or b"CANARY-3d" not in path.read_bytes()
    program = place / "p.prose"
    program.write_text('output x = "CANARY-3d"\n')
    shown = ("--views", str(place / "v"))
    assert "in clear" in cli("prose", "run", str(program), "--subject", "eve", *shown, code=2).err
