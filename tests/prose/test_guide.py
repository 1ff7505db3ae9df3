"""The guide to the language is true: its programs, its console and its table of codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.prose import check
from holdfast.prose.problems import CODES, ERRORS, WARNINGS

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/prose-language.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```prose\n(.*?)^```$", GUIDE, re.M | re.S)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: text.split("\n", 1)[0])
def test_the_programs_of_the_guide_have_no_problems(program: str):
    assert check(program) == []


def test_the_guide_has_programs():
    assert len(PROGRAMS) > 4


def test_the_guide_lists_every_code():
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", GUIDE.split("## Codes")[1], re.M))
    assert rows == CODES
    assert not ERRORS.keys() & WARNINGS.keys()


def test_the_console_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("review.prose").write_text('let draft = session "On {topic}"\nloop:\n  session "again"\n')
    (block,) = re.findall(r"^```console\n(.*?)^```$", GUIDE, re.M | re.S)
    command, _, expected = block.partition("\n")
    assert main(command.removeprefix("$ holdfast ").split()) == 2
    assert capsys.readouterr().out == expected
