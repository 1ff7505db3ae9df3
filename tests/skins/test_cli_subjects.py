"""The verbs of subjects: list, show, export, hold, erase."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.erasure import Erasure


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))
    with holdfast.open(tmp_path / "store") as hf:
        chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        chat.set("name", "Ada Lovelace")
        hf.conversation(hf.subjects.pseudonym("bob"), subject="bob").set("name", "Bob")
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
        hf._kernel.part(Erasure)._begin(
            hf.subjects.get("ada").id, hf.subjects.pseudonym("erased ada")
        )
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


def test_what_is_out_of_reach_and_what_is_exempt_is_printed(place: Path, cli: Any) -> None:
    """Piped too: who erases in a script must read it somewhere (BOOT-93)."""
    with holdfast.open(place / "store") as hf:
        hf.team("notes").set("call", "Grace Hopper")
        hf.team("old").set("n", "Grace Hopper")
        hf.team("kept").set("n", "Grace Hopper")
    cli("hold", "team/kept", "--reason", "case 7")
    for words in (("--scope", "team/odl"), ("--match", "Grace Hopper", "--scope", "team/odl")):
        assert 'no scope "team/odl"' in cli("erase", *words, "--yes", code=3).err
    erased = cli("erase", "--match", "Grace Hopper", "--yes")
    assert "is erased: 2 events, 0 blobs; exempt: 1" in erased.out
    assert ["team/kept", "exempt", "1", "0", "1", "held: case 7"] in erased.rows
    beyond = [row[1] for row in erased.rows if row[0] == "out of reach"]
    for command in ("backup prune", "pg_archivecleanup", "BGREWRITEAOF", "git filter-repo"):
        assert any(command in text for text in beyond)
    erased = cli("subject", "erase", "ada", "--yes")
    assert len([row for row in erased.rows if row[0] == "out of reach"]) >= 4
    [hold] = cli("erase", "--scope", "team/kept", "--yes", code=2).err.splitlines()[:1]
    assert "is held" in hold
    assert "--end" in cli("subject", "hold", "bob", "--end", "--reason", "x", code=2).err


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


def test_an_export_has_all_that_is_a_subject_s_and_nothing_of_others(place: Path, cli: Any) -> None:
    @holdfast.run(name="greet")
    def greet(ctx: Any, name: str) -> str:
        return f"Dear {name}"

    large = "CANARY-of-ada" * 6000
    with holdfast.open(place / "store") as hf:
        hf.runs.start(greet, "CANARY-run", subject="ada").result()
        hf.conversation(hf.subjects.pseudonym("ada"), subject="ada").set("letters", [large, b"raw"])
        team = hf.team("red", schema=None)
        team.update({"plan": "CANARY-of-all"})
        with hf.commit() as tx:
            red = tx.scope(team)
            red.set("a", {"n": 1, "when": [2]}, subject="ada")
            red.set("b", "CANARY-of-bob", subject="bob")
            red.set("c", "CANARY-beside")
            red.set("large", large, subject="ada")
            red.set("others", "CANARY-large" * 9000)
        team.messages.add("user", "said by ada", subject="ada")
        team.messages.add("user", "CANARY-of-bob", subject="bob")
    shown = cli("subject", "export", "ada")
    of_all = [one for one in shown.document["events"] if one["scope"] == "team/red"]
    assert [one["values"][0] for one in of_all[:1]] == [{"n": 1, "when": [2]}]
    assert of_all[0]["values"][1:] == [large]
    assert of_all[1]["values"][0]["content"] == "said by ada"
    assert {*of_all[0]} == {"scope", "revision", "time", "type", "values"}
    for other in ("of-all", "of-bob", "beside", "CANARY-large", "$sealed", "$blob"):
        assert other not in shown.out
    own = [one for one in shown.document["events"] if one["scope"][:5] == "conve"]
    assert own[-1]["data"] == [["set", "letters", [large, {"$bytes": "cmF3"}]]]
    assert "Dear CANARY-run" in shown.out


def test_a_missing_key_is_no_missing_subject(place: Path, cli: Any) -> None:
    (place / "keys").rename(place / "elsewhere")
    listed = cli("subject", "list")
    assert [row[0] for row in listed.rows] == ["", ""]
    assert "keys of subjects with data here are not in" in listed.err
    subjects = cli("subject", "list", "--json").document["subjects"]
    assert [one["key_missing"] for one in subjects] == [True, True]
    for verb in (("export", "ada"), ("erase", "ada", "--yes"), ("show", "ada"), ("hold", "ada")):
        assert "keys are missing there (2)" in cli("subject", *verb, code=21).err
    assert not (place / "keys").exists()  # nothing was begun there: the folder can come back
    (place / "elsewhere").rename(place / "keys")
    assert "is erased" in cli("subject", "erase", "ada", "--yes").out
    assert "no subject" in cli("subject", "erase", "ada", "--yes", code=3).err
