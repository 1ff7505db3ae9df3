"""The session in the terms of this store (BOOT-4, 7, 8, 10 to 13, 50, 51)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from tests.record.stores import new_url


def fill(hf: Store) -> str:
    """One session: two messages, a decision, a tool result, one decision left open."""
    chat = hf.conversation("s1")
    chat.say("fix the bug")
    chat.say("which one?", role="assistant")
    with chat.decide("fix 7", because="it is the newest") as d:
        chat.messages.add("assistant", tool_calls=[{"id": "call-1", "name": "read"}])
        chat.messages.add("tool", "def f(): ...", tool_call_id="call-1")
        d.outcome("fixed")
    chat.memory.files.put("src/f.py")
    chat.decide("deploy", action="make deploy")
    return d.id


def test_boot_12_each_part_of_a_session_has_a_name(hf: Store) -> None:
    fill(hf)
    chat = hf.conversation("s1")
    decisions = hf.decisions.list(scope=chat)[::-1]
    first = next(chat.history())
    assert chat.id == "s1"  # session_id
    assert chat.life.updated_at is not None
    assert first.time <= decisions[0].timestamp <= chat.life.updated_at  # started_at, persisted_at
    assert [message.role for message in chat.messages] == ["user", "assistant", "assistant", "tool"]
    assert [message.text for message in chat.messages if message.tool_call_id] == ["def f(): ..."]
    assert [kept.name for kept in chat.memory.files.list()] == ["src/f.py"]  # files_read
    # message_index: how many messages there were when it was decided.
    assert [len(chat.messages.at(one.revision)) for one in decisions] == [2, 4]


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_boot_13_a_session_is_rebuilt_from_its_place(backend: str, tmp_path: Path) -> None:
    """A session without tool results is rebuilt too."""
    url = new_url(backend, tmp_path)
    with holdfast.open(url) as hf:
        fill(hf)
        hf.conversation("s2").say("no tools here")
    with holdfast.open(url) as hf:
        chat = hf.conversation("s1")
        assert chat.messages.render().endswith("  - fix 7: it is the newest\n  - deploy")
        assert [left.planned_action for left in hf.decisions.list(incomplete=True)] == [
            "make deploy"
        ]
        bare = hf.conversation("s2").messages
        assert [message.text for message in bare if message.tool_call_id] == []
        assert bare.render() == "user: no tools here"


def test_boot_51_the_required_calls(hf: Store) -> None:
    """start_session, record_decision, those of a session, incomplete ones, events by time, type."""
    id = fill(hf)
    hf.conversation("other").decide("elsewhere")
    chat = hf.conversation("s1")
    assert hf.decisions.get(id).outcome == "fixed"
    assert [one.decision for one in hf.decisions.list(scope=chat, limit=20)] == ["deploy", "fix 7"]
    assert {one.decision for one in hf.decisions.list(incomplete=True)} == {"deploy", "elsewhere"}
    events = list(chat.history())
    since, until = events[1].time, events[-2].time
    after, last = chat.life.revision_at(since), chat.life.revision_at(until)
    between = list(chat.history(after=after, until=last, type="message.added"))
    assert [event.revision for event in between] == [
        event.revision
        for event in events
        if event.type == "message.added" and since < event.time <= until
    ]
    assert between
    assert all(event.actor == "ada" for event in events)
