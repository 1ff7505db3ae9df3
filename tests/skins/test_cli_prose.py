"""The verbs of `.prose` programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EVIL = "\x1b]0;title\x07\u202e"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_problems_are_printed_with_line_and_caret(cli: Any):
    Path("a.prose").write_text('let x = session "Write {topic}"\nx = y\nloop:\n  session "a"\n')
    shown = cli("prose", "check", "a.prose", code=2).out
    assert shown == (
        'a.prose:1:24: error: "topic" in {topic} is not bound before [unbound]\n'
        '    let x = session "Write {topic}"\n'
        "                           ^\n"
        'a.prose:2:5: error: "y" is not bound before [unbound]\n'
        "    x = y\n"
        "        ^\n"
        "a.prose:3:1: warning: this loop never ends: add (max: N), until or while [endless-loop]\n"
        "    loop:\n"
        "    ^\n"
        "a.prose: 2 errors, 1 warning\n"
    )


def test_the_document_has_errors_and_warnings_of_each_file(cli: Any):
    Path("a.prose").write_text("x = 1\n")
    Path("b.prose").write_text('loop:\n  session "a"\n')
    document = cli("prose", "check", "a.prose", "b.prose", "--json", code=2).document
    first, second = document["files"]
    assert (first["file"], second["file"]) == ("a.prose", "b.prose")
    assert [(one["line"], one["column"], one["code"]) for one in first["errors"]] == [
        (1, 1, "unbound")
    ]
    assert first["warnings"] == second["errors"] == []
    assert [one["code"] for one in second["warnings"]] == ["endless-loop"]


def test_warnings_alone_are_no_failure(cli: Any):
    Path("b.prose").write_text('loop:\n  session "a"\n')
    assert cli("prose", "check", "b.prose").out.endswith("b.prose: no errors, 1 warning\n")


def test_a_file_that_cannot_be_read_is_said_to_be_so(cli: Any):
    assert 'there is no file "none.prose"' in cli("prose", "check", "none.prose", code=3).err
    Path("folder").mkdir()
    assert "cannot be read" in cli("prose", "check", "folder", code=8).err
    assert "no file is given" in cli("prose", "check", code=2).err


def test_a_file_that_is_not_utf8_has_one_problem(cli: Any):
    Path("a.prose").write_bytes(b'session "ok"\nsession "caf\xe9"\n')
    (file,) = cli("prose", "check", "a.prose", "--json", code=2).document["files"]
    (problem,) = file["errors"]
    assert (problem["line"], problem["column"], problem["code"]) == (2, 13, "encoding")


def test_a_program_does_not_drive_the_terminal(cli: Any):
    Path("a.prose").write_text(f'let x = 1\nsession "{{x + {EVIL}}}" {EVIL}\n')
    for words in (["prose", "check", "a.prose"], ["prose", "check", "a.prose", "--json"]):
        shown = cli(*words, code=2).out
        assert not [one for one in EVIL if one in "\x1b\x07\u202e" and one in shown]
