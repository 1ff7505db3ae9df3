"""say and messages on the command line."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import holdfast

CHAT = "conversation/c"


def test_what_is_said_is_shown(place: str, cli: Any) -> None:
    made = cli("say", CHAT, "hello", "--json").document
    assert (made["scope"], made["revision"]) == (CHAT, 1)
    assert "revision 2" in cli("say", CHAT, "-5 \x1b[31m", "--role", "assistant").out
    rows = cli("messages", CHAT).rows
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "user", "hello"),
        ("2", "assistant", "-5 \\x1b[31m"),
    ]
    found = cli("messages", CHAT, "--json").document
    assert found["messages"][0]["id"] == made["id"]
    assert found["messages"][1]["fields"]["content"] == "-5 \x1b[31m"
    assert found["older"] is None


def test_standard_input_and_keys(place: str, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    cli("say", CHAT, "-")
    assert cli("say", CHAT, "once", "--key", "k", "--json").document["revision"] == 2
    assert cli("say", CHAT, "once", "--key", "k", "--json").document["revision"] == 2
    cli("say", CHAT, "other", "--key", "k", code=2)
    assert [row[3] for row in cli("messages", CHAT).rows] == ["from a pipe", "once"]


def test_pages(place: str, cli: Any) -> None:
    with holdfast.open(place) as hf:
        chat = hf.conversation("c")
        chat.messages.add_many([{"role": "user", "content": str(number)} for number in range(5)])
        chat.messages.add("assistant", tool_calls=[{"id": "t1"}])
    assert [row[3] for row in cli("messages", CHAT, "--last", 2).rows] == ["4", "calls t1"]
    page = cli("messages", CHAT, "--last", 2, "--json").document
    older = cli("messages", CHAT, "--last", 2, "--before", page["older"], "--json").document
    assert [one["text"] for one in older["messages"]] == ["2", "3"]
    newer = cli("messages", CHAT, "--after", older["newer"]).rows
    assert [row[3] for row in newer] == ["4", "calls t1"]
    assert [row[3] for row in cli("messages", CHAT, "--oldest", "--last", 1).rows] == ["0"]
    with holdfast.open(place) as hf:
        hf.conversation("c").messages.compact("short")
    assert [row[3] for row in cli("messages", CHAT).rows] == ["short"]
    assert len(cli("messages", CHAT, "--original").rows) == 6


def test_mistakes(place: str, cli: Any) -> None:
    cli("messages", CHAT, code=3)
    cli("say", CHAT, "a")
    cli("messages", CHAT, "--before", "nonsense", code=2)
    assert "--last must be at least 1" in cli("messages", CHAT, "--last", 0, code=2).err
    cli("say", CHAT, "a", "--role", "", code=2)
    cli("say", "nonsense/../x/", "", "--role", "user", code=2)
