"""Guarantee 10 on the screen: what is stored is shown, and never drives the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202e\u2066\rb\x00"
PARTS = ["\x1b]0", "\x1b[2J", "\x9b", "\x85", "\u202e", "\u2066", "\r", "\x00", "\x07"]


@pytest.fixture
def evil(place: str) -> str:
    with holdfast.open(place) as store:
        scope = store.team("support")
        scope.update({"text": EVIL, EVIL: {"in": [EVIL]}})
        scope.set("text", EVIL + "!")
        store.team("support").fork("b")
    return place


VERBS = [
    ["show", "team/support"],
    ["get", "team/support", "text"],
    ["get", "team/support", "[]"],
    ["log"],
    ["log", "team/support"],
    ["diff", "team/support", "0"],
    ["diff", "team/support", "1", "2"],
    ["follow", "team/support", "--after", "0", "--timeout", "0"],
    ["follow", "--all", "--after", "0", "--timeout", "0"],
    ["undo", "team/support"],
    ["restore", "team/support", "0"],
    ["set", "team/support", json.dumps([EVIL]), EVIL],
    ["scopes"],
    ["status"],
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_stored_text_does_not_drive_the_terminal(
    words: list[str], evil: str, cli: Any, screen: Any
):
    for shown in (cli(*words).out, screen(*words), cli(*words, "--json").out):
        for part in PARTS:
            assert part not in shown
    assert cli(*words, "--json").out.count("\n") == len(cli(*words, "--json").out.splitlines())


def test_errors_do_not_drive_it_either(evil: str, cli: Any):
    path = json.dumps([EVIL, "x"])
    for code, words in (
        (3, ["get", "team/support", path]),
        (2, ["get", "team/support", EVIL]),
        (2, [EVIL]),
        (2, ["show", "team/support", EVIL]),
    ):
        for more in ([], ["--json"]):
            ran = cli(*words, *more, code=code)
            for part in PARTS:
                assert part not in ran.err


def test_nothing_is_shortened_for_programs(place: str, cli: Any, screen: Any):
    long = "x" * 200_000
    with holdfast.open(place) as store:
        store.team("support").set("text", long)
    assert cli("show", "team/support", "--json").document["state"] == {"text": long}
    assert cli("get", "team/support", "text").out == long + "\n"
    change = cli("diff", "team/support", "0", "--json").document["changes"][0]
    assert change["new"] == long
    assert len(screen("diff", "team/support", "0")) < 1000
