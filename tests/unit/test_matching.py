"""Which parts of a payload hold a text, and what is left of it."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import is_shortened
from holdfast.core import codec
from holdfast.core.erased_ledger import Ledger
from holdfast.core.layers import Layer, erased_with, register_layer
from holdfast.core.matching import (
    Cut,
    Match,
    Shortening,
    digest,
    done_again,
    shortened,
    without,
)
from holdfast.errors import (
    CorruptError,
    ErasedError,
    FormatError,
    UnavailableError,
    UsageError,
)
from holdfast.keys import CommandKeys, FolderKeys


def left(text: str, payload: object, **how: bool) -> object:
    """Returns a payload without a text, decoded."""
    raw = payload if isinstance(payload, bytes) else codec.encode(payload)
    return codec.decode(Match(text, **how).without(raw))


def test_texts_keys_and_paths_lose_it_and_keep_the_rest() -> None:
    found = left("Ada Lovelace", {"a": ["x Ada Lovelace y"], "Ada Lovelace": {"n": 1}, "k": "Ada"})
    assert found == {"a": ["x [erased] y"], "[erased]": {"n": 1}, "k": "Ada"}
    assert left("Löwe", {"a": "der Löwe"}) == {"a": "der ***"}
    assert left("Ada", {"a": "Ada ada"}) == {"a": "** ada"}
    assert left("ada", {"a": "Ada ada"}, ignore_case=True) == {"a": "** **"}


def test_escapes_and_forms_are_seen_through() -> None:
    escaped = rb'{"a":"caf\u00e9 \"x\\caf\u00e9\n","b":"\ud83d\ude00 smile","c":"cafe\u0301"}'
    assert left("café", escaped) == {"a": '*** "x\\***\n', "b": "😀 smile", "c": "***"}
    assert left("😀 smile", escaped) == {"a": 'café "x\\café\n', "b": "[erased]", "c": "cafe\u0301"}
    half = rb'{"$text":"\"\\ud800 Ada Lovelace\""}'
    assert left("Ada Lovelace", half) == "\ud800 [erased]"
    assert Match("Ada Lovelace").cuts(rb'{"a":"\ud800 x"}') == []


def test_numbers_and_bytes_that_are_it() -> None:
    assert left("5550199", {"n": 5550199, "m": [55501990, 1.5], "t": "5550199"}) == {
        "n": 0, "m": [55501990, 1.5], "t": "***",
    }  # fmt: skip
    assert left("Ada Lovelace", {"b": b"to Ada Lovelace", "c": b"\xff\x00"}) == {
        "b": b"", "c": b"\xff\x00",
    }  # fmt: skip
    assert Match("Ada Lovelace").cuts(b'{"$bytes":"A"}') == []


def test_what_the_store_writes_by_itself_is_left_alone() -> None:
    id, name = "01m7py7w85992trs3drt20qmrn", "conversation/ada lovelace"
    match = Match("ada lovelace", names=[name, "team/red"])
    assert match.names == [name]
    refers = codec.encode([name, f"{name}@3", f"{name}/x", "of ada lovelace"])
    assert codec.decode(match.without(refers)) == [name, f"{name}@3", f"{name}/x", "of [erased]"]
    assert left("992trs", [id, f"x {id}"]) == [id, f"x {id.replace('992trs', '***')}"]
    assert left(id, [id]) == ["[erased]"]
    assert left("sistan", {"role": "assistant", "t": "sistan"}) == {"role": "assistant", "t": "***"}
    blob = codec.blob_ref("cafe" * 16, 70000)
    sealed = codec.sealed_value("cafe", b'"cafe"')
    assert Match("cafe").cuts(b"[%b,%b]" % (blob, sealed)) == []
    [(begin, end, name, size)] = codec.blob_places(b"[%b]" % blob)
    assert (begin, end, name, size) == (1, 1 + len(blob), "cafe" * 16, 70000)


def test_a_text_that_cannot_be_looked_for_is_not_repeated() -> None:
    for bad in (7, "qy", " q ", "qy" * 5_001, "qy\ud800", "actor"):
        with pytest.raises(UsageError, match="match is") as caught:
            Match(bad)  # type: ignore[arg-type]
        assert "q" not in str(caught.value)
        assert "actor" not in str(caught.value)
    assert Match("Ada Lovelace").in_text("of Ada Lovelace") == "of [erased]"
    assert Match("Ada Lovelace").cuts(b"[1]") == []
    assert repr(Match("Ada Lovelace")) == "<Match>"
    assert not Match("Ada").is_in(None)


def test_a_shortening_is_done_once_and_only_to_what_it_was_told_of() -> None:
    payload = b'[["set","n","Ada Lovelace"]]'
    cuts = Match("Ada Lovelace").cuts(payload)
    shorter = shortened(payload, cuts)
    assert shorter == b'[ ["set","n","[erased]"]]'
    assert is_shortened(shorter)
    assert not is_shortened(payload)
    assert not is_shortened(b'" x"')
    step = Shortening(1, digest(payload), digest(shorter), cuts)
    assert done_again(payload, [step]) == shorter == done_again(shorter, [step])
    assert done_again(b"[1]", [step]) == b"[1]"
    again = shortened(shorter, [Cut(shorter.index(b"[erased]"), 8, "*")])
    assert again == b'[ ["set","n","*"]]'
    assert without(payload, []) == payload
    assert msgspec.json.decode(msgspec.json.encode(step), type=Shortening) == step


def test_a_shortened_event_is_folded_and_a_repetition_by_key_is_known(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        chat = hf.conversation("c")
        chat.set("n", "Ada Lovelace", key="k")
        chat.set("m", 1)
        hf._log._backend.shorten(  # type: ignore[attr-defined]
            {"conversation/c": {1: b'[ ["set","n","[erased]"]]'}}
        )
        hf._log.folds.trim()
        assert chat.state.to_dict() == {"n": "[erased]", "m": 1}
        assert next(iter(chat.states())).state["n"] == "[erased]"
        assert chat.set("n", "Ada Lovelace", key="k") == 1
        hf._log._backend.shorten({"conversation/c": {2: b"[]"}})  # type: ignore[attr-defined]
        hf._log.folds.trim()
        with pytest.raises(CorruptError):
            chat.state.to_dict()


def test_a_stream_is_the_subjects_whose_another_one_is(tmp_path: Path) -> None:
    with holdfast.open(
        tmp_path / "s", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        log = hf._log
        hf.team("red", subject="ada").set("n", 1)
        hf.team("blue").set("n", 1)
        log.give_as("inbox/x", "team/red")
        assert log.subject_of("inbox/x") == hf.subjects.get("ada").id
        log.give_as("inbox/y", "team/blue")
        log.give_as("team/blue", "team/red")  # it is there, and stays nobody's
        assert log.subject_of("inbox/y") is log.subject_of("team/blue") is None
        log.sealing.keys.destroy(hf.subjects.get("ada").id)
        with pytest.raises(ErasedError):
            log.give_as("inbox/z", "team/red")


def test_the_ledger_of_a_folder_and_of_a_command(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    assert keys.noted() == []
    for entry in (b'{"n":1}', b'{"n":2}', b'{"n":1}'):
        keys.note(entry)
    assert keys.noted() == FolderKeys(tmp_path / "keys").noted() == [b'{"n":1}', b'{"n":2}']
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError):
        FolderKeys(tmp_path / "file").note(b"{}")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, json, pathlib\n"
        f"place = pathlib.Path({str(tmp_path / 'noted')!r})\n"
        "told = json.loads(place.read_text()) if place.exists() else []\n"
        "if sys.argv[1] == 'note': place.write_text(json.dumps([*told, json.load(sys.stdin)]))\n"
        "else: print(json.dumps(told))\n"
    )
    command = CommandKeys([sys.executable, str(program)])
    command.note(b'{"n":1}')
    assert [json.loads(one) for one in command.noted()] == [{"n": 1}]
    program.write_text("raise SystemExit(2)\n")
    with pytest.raises(UnavailableError, match=r"what was erased is not known.*failed with 2"):
        command.noted()
    with pytest.raises(UnavailableError):
        command.note(b"{}")
    program.write_text("print('unknown verb')\n")
    with pytest.raises(UnavailableError, match="printed no array of entries"):
        command.noted()
    program.write_text("print('[]')\n")
    assert command.noted() == []


def test_a_damaged_ledger_is_not_an_empty_one(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open("memory:", keys=keys) as hf:
        for entry, error in (
            (b'{"stream":"team/red","events":[[1,"x"', CorruptError),
            (b'{"stream":"t","events":[],"format":9}', FormatError),
        ):
            keys.note(entry)
            with pytest.raises(error, match="ledger of what was erased"):
                Ledger(hf._log)
            for path in (tmp_path / "keys" / "ledger").iterdir():
                path.unlink()


def test_a_layer_names_the_marks_that_go_with_an_erased_stream() -> None:
    assert list(erased_with("conversation/x")) == []
    assert list(erased_with("run/x")) == [("run", "x"), ("run.due", "x")]
    with pytest.raises(holdfast.errors.ExistsError):
        register_layer(Layer(name="runs"))


def test_base64_is_no_text() -> None:
    word = base64.b64encode(b"something else").decode()
    assert Match(word[3:9]).cuts(codec.encode({"b": b"something else"})) == []
