"""Messages on every backend: durable one by one, read from either end, changed by events alone.

BOOT-4, 5, 10, 11, VIC-18 (history, exchanges, tool results), RALPH-11, 13, 14.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ClosedError, NotFoundError, Store, UsageError
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.errors import ConflictError, CorruptError
from holdfast.record.message_events import FileChange
from tests.crash.children import Child
from tests.record.stores import new_url

AGENTS = 5
UPDATES = 50


def contents(messages: Any) -> list[str | None]:
    return [message.content for message in messages]


def count_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which the number of records of every read is added."""
    counts: list[int] = []
    backend = store._log._backend
    genuine = backend.read

    def read(*args: Any, **options: Any) -> Any:
        found = genuine(*args, **options)
        counts.append(len(found))
        return found

    monkeypatch.setattr(backend, "read", read)
    return counts


def test_all_fields_of_a_message_come_back(hf: Store) -> None:
    """RALPH-11: complete history with metadata. RALPH-13, 14: links to files and discussions."""
    chat = hf.conversation("c", parent=hf.team("t"))
    change = FileChange.of("src/a.py", b"before", None)
    said_at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    made = chat.messages.add(
        "assistant",
        "hello",
        tool_calls=[{"id": "t1", "name": "read", "arguments": {"path": "a"}}],
        usage={"input": 7, "output": 3},
        metadata={"model": "m"},
        links=[hf.conversation("other"), "decision:17"],
        files=[change],
        said_at=said_at,
    )
    chat.messages.add("tool", "done", tool_call_id="t1")
    chat.messages.add("user", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    found, result, parts = chat.messages
    assert found == made
    assert hash(found) == hash(made)
    assert found.id == made.id
    assert (found.role, found.content, found.text) == ("assistant", "hello", "hello")
    assert found.tool_calls[0]["arguments"] == {"path": "a"}
    assert found.usage == {"input": 7, "output": 3}
    assert found.metadata == {"model": "m"}
    assert found.links == ("conversation/other", "decision:17")
    assert found.files == (change,)
    assert change.before == sha256(b"before").hexdigest()
    assert change.after is None
    assert found.time == said_at
    assert found.actor == "ada"
    assert not found.is_edited
    assert (result.role, result.tool_call_id) == ("tool", "t1")
    assert parts.content is None
    assert parts.text == "one\ntwo"
    assert parts.to_request() == {"role": "user", "content": parts.parts}
    assert found.to_dict()["role"] == "assistant"
    assert chat.messages.file_changes("src/a.py") == [(found, change)]
    assert chat.messages.file_changes("b") == []
    assert "conversation/c@" in repr(found)
    assert "conversation/c" in repr(chat.messages)
    assert hf.check().ok


def test_messages_behave_like_a_list(hf: Store) -> None:
    chat = hf.conversation("c")
    assert not chat.messages
    assert len(chat.messages) == 0
    assert list(chat.messages) == []
    for number in range(7):
        chat.say(str(number))
        chat.set("n", number)
    messages = chat.messages
    assert messages
    assert len(messages) == 7
    assert messages[0].content == "0"
    assert messages[-7].content == "0"
    assert messages[-1].content == "6"
    assert contents(messages[2:4]) == ["2", "3"]
    assert contents(messages[-2:]) == ["5", "6"]
    assert contents(messages[::-3]) == ["6", "3", "0"]
    assert contents(reversed(messages)) == list("6543210")
    for index in (7, -8):
        with pytest.raises(IndexError):
            messages[index]
    with pytest.raises(UsageError):
        messages["1"]  # type: ignore[call-overload]


def test_pages_from_either_end(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.add_many([{"role": "user", "content": str(number)} for number in range(10)])
    page = chat.messages.page(4)
    assert contents(page.messages) == list("6789")
    assert page.newer is None
    chat.say("10")  # what comes later moves no cursor
    page = chat.messages.page(4, before=page.older)
    assert contents(page.messages) == list("2345")
    back = chat.messages.page(4, after=page.newer)
    assert contents(back.messages) == list("6789")
    page = chat.messages.page(4, before=page.older)
    assert contents(page.messages) == list("01")
    assert page.older is None
    page = chat.messages.page(4, oldest=True)
    assert contents(page.messages) == list("0123")
    assert page.older is None
    page = chat.messages.page(100, after=page.newer)
    assert page.newer is None
    for wrong in ("", "x", "bTE6LTE", 7, "é", page):
        with pytest.raises(UsageError, match="not a cursor"):
            chat.messages.page(before=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found two"):
        chat.messages.page(before=page.older, oldest=True, after=page.older)
    with pytest.raises(UsageError):
        chat.messages.page(0)


def test_reading_the_newest_costs_the_same_however_long_the_conversation_is(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of records that are read, not time: the same for 100 messages and for 3,000."""
    found: list[int] = []
    for name, size in (("short", 100), ("long", 3_000)):
        chat = hf.conversation(name)
        for _ in range(0, size, 100):
            chat.messages.add_many([{"role": "user", "content": "x"}] * 100)
        counts = count_reads(hf, monkeypatch)
        assert len(chat.messages.last(20)) == 20
        found.append(sum(counts))
        chat.say("one more")
        before = sum(counts)
        assert contents(chat.messages.last(1)) == ["one more"]
        assert sum(counts) - before == 1
        assert contents(chat.messages.last(1)) == ["one more"]
        assert sum(counts) - before == 1
        monkeypatch.undo()
    assert found[0] == found[1] <= 64


def test_a_message_for_an_unread_conversation_reads_next_to_nothing(
    durable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        hf.conversation("c").messages.add_many([{"role": "user", "content": "x"}] * 1_000)
    with holdfast.open(url) as hf:
        counts = count_reads(hf, monkeypatch)
        assert hf.conversation("c").say("y").revision == 1_001
        assert sum(counts) <= 3
        assert len(hf.conversation("c").messages) == 1_001


def test_edits_deletions_pops_and_clears_are_events(hf: Store) -> None:
    chat = hf.conversation("c")
    messages = chat.messages
    first, second, third = messages.add_many(
        [{"role": "user", "content": text, "metadata": {"n": 1}} for text in "abc"]
    )
    edited = messages.edit(first, content="A", metadata=None, parts=["p"])
    assert (edited.content, edited.metadata, edited.parts) == ("A", {}, ["p"])
    assert edited.is_edited
    assert messages.edit(first.id, content=["q"]).parts == ["q"]
    assert messages[0].content is None
    messages.delete(second)
    popped = messages.pop()
    assert popped == third
    assert len(messages) == 1
    for gone in (second, third, "nobody"):
        with pytest.raises(NotFoundError):
            messages.delete(gone)
    messages.clear()
    assert messages.pop() is None
    assert contents(messages.at(3)) == ["a", "b", "c"]
    messages.rewind(first)
    assert contents(messages) == ["a"]
    messages.rewind(3)
    assert contents(messages) == ["a", "b", "c"]
    with pytest.raises(NotFoundError):
        messages.rewind(99)
    with pytest.raises(NotFoundError):
        messages.at(99)
    for wrong in ({}, {"id": "x"}, {"content": 7}):
        with pytest.raises(UsageError):
            messages.edit(first, **wrong)
    types = {event.type for event in chat.history()}
    assert {"message.edited", "message.deleted", "message.popped", "messages.cleared"} <= types


def test_an_undo_reverts_a_change_and_leaves_messages_alone(hf: Store) -> None:
    """Only a restore goes back in messages, and an undo of it brings them back."""
    chat = hf.conversation("c")
    chat.set("stage", 1)
    mark = chat.checkpoint("early")
    chat.set("stage", 2)
    with chat.messages.turn() as turn:
        turn.add("user", "hello")
        chat.undo()
        assert [turn.status for turn in chat.messages.turns()] == ["open"]
    assert (chat.get("stage"), [m.text for m in chat.messages]) == (1, ["hello"])
    chat.undo()
    assert (chat.get("stage"), [m.text for m in chat.messages]) == (2, ["hello"])
    chat.tasks.add("a task, which the restore takes away in the same commit")
    chat.restore(mark)
    assert (chat.get("stage"), list(chat.messages)) == (1, [])
    chat.undo()
    assert (chat.get("stage"), [m.text for m in chat.messages]) == (2, ["hello"])
    chat.restore(mark)
    chat.say("since")
    chat.undo()
    assert (chat.get("stage"), [m.text for m in chat.messages]) == (2, ["hello", "since"])


def test_a_summary_is_found_by_a_new_scan(hf: Store) -> None:
    chat = hf.conversation("c")
    for number in range(10):
        chat.say(f"{number}")
    summary = chat.messages.compact("of eight", keep_last=2)
    last = [chat.say(f"later {number}") for number in range(100)]
    chat.messages.rewind(last[90])  # so that the earlier scan no longer counts
    assert chat.messages.edit(summary, content="of the first eight").text == "of the first eight"
    chat.messages.rewind(last[80])
    chat.messages.delete(summary)
    assert [m.text for m in chat.messages][:2] == ["8", "9"]


def test_restore_and_fork_carry_the_messages(hf: Store) -> None:
    """Restoring and forking a scope applies to its messages too, by reference."""
    chat = hf.conversation("c")
    chat.say("a")
    mark = chat.checkpoint("here")
    chat.say("b")
    fork = chat.fork("d", at=mark)
    fork.say("in the fork")
    deep = fork.fork("e")
    chat.restore(mark)
    assert contents(chat.messages) == ["a"]
    assert contents(fork.messages) == ["a", "in the fork"]
    fork.messages.delete(fork.messages[0])
    assert contents(fork.messages) == ["in the fork"]
    assert contents(deep.messages) == ["a", "in the fork"]
    assert contents(chat.messages.at(mark)) == ["a"]


def test_messages_of_a_closed_conversation(hf: Store) -> None:
    """BOOT-6: reading dropped messages is an error that says so, not an empty history."""
    kept, dropped = hf.conversation("kept"), hf.conversation("dropped")
    for chat in (kept, dropped):
        chat.say("a")
        chat.close(keep=chat is kept)
    assert contents(kept.messages) == ["a"]
    with pytest.raises(ClosedError):
        kept.say("b")
    with pytest.raises(ClosedError, match="dropped"):
        list(dropped.messages)
    assert contents(dropped.messages.at(1)) == ["a"]
    assert contents(dropped.fork("early", at=1).messages) == ["a"]
    assert contents(dropped.fork("late").messages) == []


def test_a_key_adds_once_and_several_in_one_commit(hf: Store) -> None:
    chat = hf.conversation("c")
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    first = chat.messages.add_many(items, key="k", state={"n": 1})
    assert [message.id for message in first] == ["k", "k/1"]
    again = chat.messages.add_many(items, key="k", state={"n": 1})
    assert [message.revision for message in again] == [1, 2]
    assert chat.messages.add("user", "c", key="k2") == chat.messages.add("user", "c", key="k2")
    assert len(chat.messages) == 3
    assert chat.get("n") == 1
    assert len({event.position for event in chat.history(until=3)}) == 1
    assert chat.messages.add_many([]) == []
    with pytest.raises(ConflictError):
        chat.messages.add("user", "d", expected=1)


def test_a_merge_is_ordered_and_has_no_duplicates(hf: Store) -> None:
    """RALPH-44."""
    one, two = hf.conversation("one"), hf.conversation("two")

    def at(second: int) -> datetime:
        return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)

    one.messages.add("user", "1", said_at=at(1), foreign_id="same")
    two.messages.add("user", "1", said_at=at(1), foreign_id="same")
    one.messages.add("user", "4", said_at=at(4))
    two.messages.add("user", "2", said_at=at(2), foreign={"role": "user", "x": 1})
    two.messages.add("user", "5", said_at=at(5))
    one.messages.add("user", "6", said_at=at(6))
    assert contents(one.messages.merge(two)) == ["2", "5"]
    assert contents(one.messages) == ["1", "2", "4", "5", "6"]
    assert one.messages[1].foreign == {"role": "user", "x": 1}
    assert one.messages[1].time == at(2)
    assert one.messages.merge(two.messages) == []
    fork = one.fork("fork")
    fork.say("in the fork")
    assert contents(one.messages.merge(fork)) == ["in the fork"]
    assert contents(one.messages.at(3)) == ["1", "4", "6"]
    with pytest.raises(UsageError):
        one.messages.merge("two")  # type: ignore[arg-type]


def test_compaction_keeps_the_original(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.add_many([{"role": "user", "content": f"{number:>9}"} for number in range(9)])
    chat.messages.summarise("nine", tokens_before=90, tokens_after=2)
    chat.messages.summarise("five", through=chat.messages[4])
    summary = chat.messages.compact("up to six", keep_last=2, tokens_before=90, tokens_after=30)
    assert summary.is_summary
    assert summary.role == "system"
    assert [message.text.strip() for message in chat.messages] == ["up to six", "7", "8"]
    assert len(chat.messages.original()) == 9
    chat.messages.compact("everything")
    assert contents(chat.messages) == ["everything"]
    assert chat.messages.items() == [{"role": "system", "content": "everything"}]
    nine, five, six, everything = chat.messages.summaries()
    assert (nine.text, nine.tokens_before, nine.tokens_after) == ("nine", 90, 2)
    assert five.through == 5
    assert 0 < five.tokens_before < 9 * 50
    assert (six.text, six.tokens_before, six.tokens_after) == ("up to six", 90, 30)
    assert six.is_compacted
    assert not five.is_compacted
    assert everything.tokens_before > everything.tokens_after > 0
    assert chat.messages.page(1).older is None
    for wrong in ("", 7):
        with pytest.raises(UsageError):
            chat.messages.summarise(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to summarise"):
        hf.conversation("empty").messages.summarise("x")


def test_the_simplest_prompt_context(hf: Store) -> None:
    """BOOT-5: the last 10 messages as "role: content", then the decisions of the session."""
    chat = hf.conversation("c")
    for number in range(12):
        chat.say(f"message {number}", role="assistant" if number % 2 else "user")
    text = chat.messages.render()
    assert text.splitlines()[0] == "user: message 2"
    assert text.splitlines()[-1] == "assistant: message 11"
    with chat.decide("use SQLite", because="no server") as decision:
        decision.outcome("done")
    with chat.decide("stop") as decision:
        decision.outcome("done")
    assert chat.messages.render(2).splitlines() == [
        "user: message 10",
        "assistant: message 11",
        "Decisions made this session:",
        "  - use SQLite: no server",
        "  - stop",
    ]


WRONG: list[dict[str, Any]] = [
    {},
    {"role": ""},
    {"role": 7},
    {"role": "user", "content": 7},
    {"role": "user", "content": ["a"], "parts": ["b"]},
    {"role": "user", "parts": "b"},
    {"role": "user", "tool_calls": [{"name": "no id"}]},
    {"role": "user", "tool_calls": ["x"]},
    {"role": "user", "tool_call_id": 7},
    {"role": "user", "usage": 7},
    {"role": "user", "metadata": [1]},
    {"role": "user", "links": 7},
    {"role": "user", "files": ["a"]},
    {"role": "user", "files": FileChange("a", "short")},
    {"role": "user", "said_at": datetime(2026, 1, 1)},
    {"role": "user", "foreign_id": ""},
    {"role": "user", "turn": "x"},
    {"role": "user", "state": []},
    {"role": "user", "content": object()},
    {"role": "user", "metadata": {1: 2}},
    {"role": "user", "key": 7},
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_bad_arguments_are_usage_errors(wrong: dict[str, Any]) -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        with pytest.raises(UsageError):
            chat.messages.add(**wrong)
        assert chat.revision == 0
        for items in ("text", 7, ["text"], {"role": "user"}, [{"role": "user", "surprise": 1}]):
            with pytest.raises(UsageError):
                chat.messages.add_many(items)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            chat.messages.get(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("messages.rewound", b'{"to":9}'),
        ("message.deleted", b'{"at":"x"}'),
        ("message.deleted", b'{"at":-1}'),
        ("messages.compacted", b"7"),
    ],
)
def test_an_event_that_points_nowhere_is_corruption(type: str, payload: bytes) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c").say("a")
        hf._log.commit(ProposedCommit((StreamWrite("conversation/c", (NewEvent(type, payload),)),)))
        with pytest.raises(CorruptError):
            list(hf.conversation("c").messages)


def test_an_event_that_is_not_a_message_is_corruption() -> None:
    with holdfast.open("memory:") as hf:
        hf._log.commit(
            ProposedCommit((StreamWrite("conversation/c", (NewEvent("message.added", b"7"),)),))
        )
        with pytest.raises(CorruptError):
            _ = hf.conversation("c").messages[0].content


def test_five_agents_with_fifty_messages_each(durable: str, tmp_path: Path) -> None:
    """250 of 250, each once, each agent's in its order; meanwhile a reader sees whole prefixes."""
    url = new_url(durable, tmp_path)
    holdfast.open(url).close()

    def agent(name: str) -> Child:
        def live(_pipe: int, _stop: int) -> None:
            with holdfast.open(url, actor=name) as hf:
                chat = hf.conversation("c")
                for number in range(UPDATES):
                    chat.say(f"{name} {number}")

        return Child(live)

    children = [agent(f"agent {number}") for number in range(AGENTS)]
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
    with holdfast.open(url) as hf:
        said = contents(hf.conversation("c").messages)
        assert len(said) == AGENTS * UPDATES
        for number in range(AGENTS):
            mine = [text for text in said if text and text.startswith(f"agent {number} ")]
            assert mine == [f"agent {number} {at}" for at in range(UPDATES)]
        assert hf.check().ok


def test_threads_that_add_read_and_pop(hf: Store) -> None:
    """Every message is popped by one, or left; none twice."""
    chat = hf.conversation("c")

    def work(number: int) -> list[str]:
        mine: list[str] = []
        for at in range(10):
            chat.say(f"{number} {at}")
            assert chat.messages.last(3)
            if at % 3 == 0:
                popped = chat.messages.pop()
                assert popped is not None
                mine.append(popped.id)
        return mine

    with ThreadPoolExecutor(4) as pool:
        popped = [id for ids in pool.map(work, range(4)) for id in ids]
    left = [message.id for message in chat.messages]
    assert len(popped) + len(left) == len({*popped, *left}) == 40


def test_a_cursor_within_a_compacted_range_leads_to_the_summary(hf: Store) -> None:
    """Paging back from it ended without the summary, as if nothing had been said before."""
    chat = hf.conversation("c")
    for number in range(10):
        chat.say(f"m{number}")
    cursors = [chat.messages.page(size).older for size in (2, 3, 8)]
    chat.messages.compact("summary", keep_last=3)
    for cursor, expected in zip(
        cursors, (["summary", "m7"], ["summary"], ["summary"]), strict=True
    ):
        page = chat.messages.page(5, before=cursor)
        assert [message.text for message in page.messages] == expected
        assert page.older is None
    [summary, *_] = chat.messages
    assert chat.messages.page(before=chat.messages.cursor(summary)).messages == []
    after = chat.messages.page(after=chat.messages.cursor(summary)).messages
    assert [message.text for message in after] == ["m7", "m8", "m9"]
    chat.messages.delete(summary)
    assert chat.messages.page(before=cursors[2]).messages == []
