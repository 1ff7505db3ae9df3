"""Catches: by a policy, by hand, and decisions that only messages have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, UsageError
from holdfast.cli import main
from holdfast.decisions import UndecidedWarning
from holdfast.errors import UndecidedError


def test_a_person_logs_a_catch_by_hand(hf: Store):
    """BOOT-46: what a reviewer notices is logged, beside what the policy caught."""
    chat = hf.conversation("c")
    with (
        hf.decisions.policy("refuse"),
        pytest.raises(UndecidedError),
        chat.decisions.effect("POST /refunds"),
    ):
        pass
    with (
        hf.decisions.policy("warn"),
        pytest.warns(UndecidedWarning),
        chat.decisions.effect("GET /orders"),
    ):
        pass
    logged = chat.decisions.catch(
        "the refund was agreed on the phone", outcome="written down", notes="see mail",
        about="message:m1",
    )  # fmt: skip
    found = chat.decisions.catches()
    assert [(one.control, one.caught, one.outcome) for one in found] == [
        ("decide first", "POST /refunds", "refused"),
        ("decide first", "GET /orders", "let through, with a warning"),
        ("review", "the refund was agreed on the phone", "written down"),
    ]
    assert found[2] == logged
    assert (logged.notes, logged.about, logged.actor) == ("see mail", "message:m1", "ada")
    assert [one.revision for one in hf.decisions.catches()] == [
        one.revision for one in reversed(found)
    ]
    assert hf.decisions.catches(limit=1).more
    fork = chat.fork("d")
    assert fork.decisions.catches() == found


STATED = [
    ("user", "We decided to replace the broken lamp. And more."),
    ("assistant", "I'll use PostgreSQL for sessions."),
    ("assistant", "Let's go with the blue buttons!"),
    ("user", "Decision: no refunds in December"),
]
NOT_STATED = [
    ("user", "What was decided about the lamp?"),
    ("assistant", "They will use whatever we give them."),
    ("system", "We decided to be polite."),
    ("tool", "I've decided nothing"),
    ("user", ""),
]


def test_decisions_that_only_messages_have_are_caught_once(hf: Store):
    chat = hf.conversation("c")
    for role, text in STATED + NOT_STATED:
        chat.say(text, role=role)
    found = chat.decisions.catch_unrecorded()
    assert [one.caught for one in found] == [
        "We decided to replace the broken lamp.",
        "I'll use PostgreSQL for sessions.",
        "Let's go with the blue buttons!",
        "Decision: no refunds in December",
    ]
    assert {one.control for one in found} == {"decision without a record"}
    ids = [message.id for message in chat.messages]
    assert [one.about for one in found] == [f"message:{id}" for id in ids[:4]]
    assert chat.decisions.catch_unrecorded() == []
    assert chat.decisions.catches() == found


def test_what_is_recorded_is_not_caught(hf: Store):
    chat = hf.conversation("c")
    chat.decide("replace the lamp that is broken")
    message = chat.say("We decided on something else entirely.")
    chat.decide("paint it", links=[f"message:{message.id}"])
    chat.say("We decided to replace the broken lamp.")
    chat.say("We have agreed.")
    assert [one.caught for one in chat.decisions.catch_unrecorded()] == ["We have agreed."]


def test_a_function_of_the_callers_says_what_a_message_decides(hf: Store):
    chat = hf.conversation("c")
    for text in ("beschlossen: blau", "nichts"):
        chat.say(text)

    def find(message: Any) -> str | None:
        return message.text if message.text.startswith("beschlossen") else None

    assert [one.caught for one in chat.decisions.catch_unrecorded(find=find)] == [
        "beschlossen: blau"
    ]
    with pytest.raises(UsageError, match="find returns what a message decides"):
        chat.decisions.catch_unrecorded(find=lambda _: 7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="find"):
        chat.decisions.catch_unrecorded(find=7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="what was caught is text"):
        chat.decisions.catch("")


PROGRAM = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as hf:
    print(len(hf.conversation("c").decisions.catch_unrecorded()))
"""


def test_processes_that_look_at_once_catch_each_message_once(tmp_path: Path):
    place = str(tmp_path / "store")
    with holdfast.open(place) as hf:
        for number in range(20):
            hf.conversation("c").say(f"We decided on number {number} of the lamps{number}.")
    children = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, place], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    with holdfast.open(place) as hf:
        about = [one.about for one in hf.conversation("c").decisions.catches()]
    assert len(about) == len(set(about)) == 20


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = ["--store", str(tmp_path / "store")]
    with holdfast.open(tmp_path / "store") as hf:
        hf.conversation("c").say("We decided to replace the broken lamp.")
    assert main([*store, "catch", "conversation/c", "no test was run", "--outcome", "run"]) == 0
    assert main([*store, "catch", "scan", "conversation/c"]) == 0
    capsys.readouterr()
    assert main([*store, "catch", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "We decided to replace the broken lamp." in lines[0]
    assert "no test was run" in lines[1]
    assert main([*store, "catch", "list", "conversation/c", "--limit", "1"]) == 0
    assert "We decided" in capsys.readouterr().out
    assert main([*store, "catch", "list", "conversation/c", "--after", "x"]) == 2
    assert main([*store, "catch", "scan", "conversation/c", "--last", "0"]) == 2
    assert main([*store, "catch", "conversation/none", "x"]) == 3
