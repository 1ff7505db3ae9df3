"""Items of other programs: kept exactly, added once, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Store, UsageError


def contents(messages: Any) -> list[str | None]:
    return [message.content for message in messages]


HOSTILE = [
    "\ud800",
    "a\udc00\ud800b",
    "\x00\x1b[31m\u2028\u202e",
    {"$bytes": "no"},
    {"$pairs": [["a", 1]], "b": {"$float": "nan"}},
    {"role": "x", "content": [{"type": "text", "text": "\ud83d\ude00"}], "n": 1e308, "z": -0.0},
    {"id": 10**30, "nested": [[[{"a": None}]], True, False]},
    ["a list"],
    "text alone",
    {"$blob": {"id": "0" * 64, "size": 3}},
]


@pytest.mark.parametrize("item", HOSTILE, ids=range(len(HOSTILE)))
def test_a_foreign_item_comes_back_exactly(hf: Store, item: Any) -> None:
    chat = hf.conversation("c")
    chat.messages.add("user", foreign=item)
    chat.messages.add("user", "text \ud800", foreign_id="\ud800\x00", metadata={"v": item})
    assert json.dumps(chat.messages.items()[0]) == json.dumps(item)
    assert json.dumps(chat.messages[0].foreign) == json.dumps(item)
    assert json.dumps(chat.messages[1].metadata["v"]) == json.dumps(item)
    assert chat.messages[1].content == "text \ud800"
    assert hf.check().ok


def test_all_items_of_a_history_at_once(hf: Store) -> None:
    chat = hf.conversation("c")
    items = [{"role": "user", "content": f"é{number}", "n": [number]} for number in range(300)]
    chat.messages.add_many([{"foreign": item} for item in items])
    assert chat.messages.items() == items
    assert chat.messages.items(last=20) == items[-20:]
    assert (chat.messages[3].role, chat.messages[3].content) == ("user", "é3")
    chat.say("ours")
    assert chat.messages.items()[-1] == {"role": "user", "content": "ours"}
    chat.messages.edit(chat.messages[0], foreign={"role": "user", "content": "edited"})
    assert chat.messages.items()[0] == {"role": "user", "content": "edited"}


def test_large_parts_are_blobs(hf: Store) -> None:
    chat = hf.conversation("c")
    large, small = "x" * 300_000, "y" * 10
    chat.messages.add("user", parts=[{"data": large}, {"data": small}, {"data": large}])
    chat.messages.add("user", large, foreign={"deep": [large]})
    chat.messages.edit(chat.messages[0], metadata={"large": large})
    first, second = chat.messages
    assert first.parts == [{"data": large}, {"data": small}, {"data": large}]
    assert first.metadata == {"large": large}
    assert second.content == large
    assert chat.messages.items()[1] == {"deep": [large]}
    assert all(len(event.record.payload) < 65_536 for event in chat.history())


def test_a_foreign_item_is_added_once(hf: Store) -> None:
    chat = hf.conversation("c")
    once = chat.messages.add("user", "a", foreign_id="f1")
    assert chat.messages.add("user", "a", foreign_id="f1") == once
    with pytest.raises(UsageError, match="another change"):
        chat.messages.add("user", "b", foreign_id="f1")
    with chat.messages.turn() as turn:
        assert turn.add("user", "a", foreign_id="f1") == once
    batch = [{"role": "user", "content": text, "foreign_id": text} for text in ("a", "b", "c")]
    assert contents(chat.messages.add_many(batch)) == ["a", "b", "c"]
    more = [*batch, {"role": "user", "content": "d"}, {"role": "user", "content": "a",
                                                       "foreign_id": "f1"}]  # fmt: skip
    assert contents(chat.messages.add_many(more)) == ["a", "b", "c", "d", "a"]
    assert contents(chat.messages) == ["a", "a", "b", "c", "d"]
    fork = chat.fork("d")
    fork.messages.add("user", "a", foreign_id="f1")
    fork.messages.add_many(batch)
    assert len(fork.messages) == 5


def test_a_foreign_item_that_was_deleted_may_be_added_again(hf: Store) -> None:
    """A framework pops the items of a turn that it tries again, and adds them with their ids."""
    chat = hf.conversation("c")
    for _ in range(3):
        chat.messages.add("user", "a", foreign_id="f1")
        assert len(chat.messages) == 1
        chat.messages.add("user", "a", foreign_id="f1")
        assert len(chat.messages) == 1
        chat.messages.pop()
        assert len(chat.messages) == 0
    chat.messages.add_many([{"role": "user", "content": "a", "foreign_id": "f1"}])
    assert contents(chat.messages) == ["a"]


def test_a_foreign_item_that_was_compacted_is_still_there(hf: Store) -> None:
    """A framework sends its whole history again: what was compacted was not deleted."""
    chat = hf.conversation("c")
    items = [{"role": "user", "content": text, "foreign_id": text} for text in "abc"]
    chat.messages.add_many(items)
    chat.messages.compact("a and b", keep_last=1)
    assert contents(chat.messages.add_many(items)) == ["a", "b", "c"]
    assert chat.messages.add(**items[0]).content == "a"
    assert contents(chat.messages) == ["a and b", "c"]
    chat.messages.clear()
    chat.messages.add(**items[0])
    assert contents(chat.messages) == ["a"], "now it was"
