"""The agent of the examples, killed for real at every place, sends once and goes on."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.record import repair
from tests.record.kills import await_deaths, kill_everywhere, open_dying
from tests.record.stores import DURABLE, new_url

AGENT = Path(__file__).resolve().parents[2] / "examples" / "agent.py"
QUESTION = "the train is late"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["agent.py"])


def load(outbox: Path) -> Any:
    """Returns the example as a module; its mail goes to a file."""
    spec = importlib.util.spec_from_file_location("agent", AGENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.OUTBOX = outbox
    return module


def run(url: str, outbox: Path, *, dying: bool = False) -> None:
    agent = load(outbox)
    with open_dying(url) if dying else holdfast.open(url) as hf:
        await_deaths(hf)
        hf.recover()
        chat = hf.conversation("mail")
        with hf.commit(key="question") as tx:
            tx.scope(chat).messages.add("user", QUESTION)
            tx.scope(chat).tasks.add(QUESTION)
        agent.work(hf, chat)


def check(url: str, outbox: Path) -> None:
    sent = [json.loads(line) for line in outbox.read_text().splitlines()]
    assert [one["to"] for one in sent] == ["ana@example.org"], "it was sent once"
    with holdfast.open(url) as hf:
        chat = hf.conversation("mail")
        assert [one.role for one in chat.messages] == [
            *("user", "assistant", "tool", "assistant", "tool", "assistant")
        ]
        assert [one.tool_call_id for one in chat.messages if one.role == "tool"] == ["c1", "c2"]
        assert [one.status for one in chat.tasks.list()] == ["completed"]
        assert chat.get("answered") == 1
        assert [one.status for one in hf.decisions.list(scope=chat)] == ["closed"]
        assert repair(chat.messages.items()).mended == []


@pytest.mark.parametrize("backend", DURABLE)
def test_an_agent_that_is_killed_anywhere_sends_once(backend: str, tmp_path: Path) -> None:
    outboxes: dict[str, Path] = {}

    def fresh() -> str:
        url = new_url(backend, tmp_path)
        outboxes[url] = tmp_path / f"outbox-{len(outboxes)}"
        return url

    def work(url: str) -> None:
        run(url, outboxes[url], dying=True)

    for kill in kill_everywhere(work, fresh, in_turns=True):
        run(kill.url, outboxes[kill.url])
        check(kill.url, outboxes[kill.url])


def test_it_is_short_and_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(AGENT.read_text().splitlines()) < 100
    store = tmp_path / "store"
    monkeypatch.setattr(sys, "argv", ["agent.py", str(store), QUESTION])
    for _ in range(2):
        runpy.run_path(str(AGENT), run_name="__main__")
        lines = capsys.readouterr().out.splitlines()
        assert lines[1] == 'assistant: look_up({"name":"ana"}) [c1]'
        assert lines[2] == "tool [c1]: ana@example.org"
        assert lines[5] == "assistant: I have written to Ana."
    check(str(store), tmp_path / "store.outbox")


def test_what_a_person_refuses_is_not_sent(tmp_path: Path) -> None:
    agent = load(tmp_path / "outbox")
    agent.approved = lambda call: False
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("mail")
        chat.messages.add("user", QUESTION)
        chat.tasks.add(QUESTION)
        agent.work(hf, chat)
        assert "refused by a person" in [one.text for one in chat.messages]
        assert hf.decisions.list(scope=chat) == []
    assert not (tmp_path / "outbox").exists()
