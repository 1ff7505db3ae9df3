"""`repair` makes a history that a model accepts, and does not change the given one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.record.history_repair import NO_RESULT, repair

USER = {"role": "user", "content": "hi"}


def chat_call(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id} for id in ids]}


def chat_result(id: str, content: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def item_call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f"}


def item_result(id: str, output: str = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def block_call(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id} for id in ids]}


def block_result(*ids: str, more: str | None = None) -> dict[str, Any]:
    blocks: list[Any] = [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in ids]
    return {"role": "user", "content": blocks + ([{"type": "text", "text": more}] if more else [])}


def made_block(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": NO_RESULT, "is_error": True}


SOUND: list[list[Any]] = [
    [],
    [USER, USER, "anything", 7],
    [USER, chat_call("a", "b"), chat_result("b"), chat_result("a"), USER],
    [USER, item_call("a"), item_call("b"), {"type": "reasoning"}, item_result("a"),
     item_result("b")],
    [USER, block_call("a", "b"), block_result("b", "a", more="and"), block_call("c"),
     block_result("c")],
    [{"type": "web_search_call", "id": "w"}, {"role": "user", "content": []}],
]  # fmt: skip


@pytest.mark.parametrize("history", SOUND, ids=range(len(SOUND)))
def test_a_sound_history_is_left_alone(history: list[Any]) -> None:
    repaired = repair(history)
    assert repaired.history == history
    assert repaired.mended == []


UNSOUND: list[tuple[str, list[Any], list[Any], list[tuple[str, int, str]]]] = [
    (
        "a call without a result",
        [USER, chat_call("a", "b"), chat_result("a")],
        [USER, chat_call("a", "b"), chat_result("a"), chat_result("b", NO_RESULT)],
        [("missing", 1, "b")],
    ),
    (
        "a result without a call",
        [chat_result("x"), USER, item_result("y"), block_result("z"), USER],
        [USER, USER],
        [("orphan", 0, "x"), ("orphan", 2, "y"), ("orphan", 3, "z")],
    ),
    (
        "a result before its call, and one behind a later message",
        [chat_result("a"), chat_call("a", "b"), USER, chat_result("b")],
        [chat_call("a", "b"), chat_result("a"), chat_result("b"), USER],
        [("moved", 0, "a"), ("moved", 3, "b")],
    ),
    (
        "items: missing, before, twice",
        [item_result("b"), item_call("a"), item_call("b"), USER, item_call("c"), item_result("c"),
         item_result("c")],
        [item_call("a"), item_result("a", NO_RESULT), item_call("b"), item_result("b"), USER,
         item_call("c"), item_result("c")],
        [("moved", 0, "b"), ("missing", 1, "a"), ("duplicate", 6, "c")],
    ),
    (
        "blocks: missing, into the next message of the user",
        [block_call("a"), USER],
        [block_call("a"), {"role": "user", "content": [made_block("a"),
                                                      {"type": "text", "text": "hi"}]}],
        [("missing", 0, "a")],
    ),
    (
        "blocks: missing, at the end and before an assistant",
        [block_call("a"), block_call("b")],
        [block_call("a"), {"role": "user", "content": [made_block("a")]}, block_call("b"),
         {"role": "user", "content": [made_block("b")]}],
        [("missing", 0, "a"), ("missing", 1, "b")],
    ),
    (
        "blocks: a result too late",
        [block_call("a"), USER, block_result("a", more="late")],
        [block_call("a"), {"role": "user", "content": [*block_result("a")["content"],
                                                      {"type": "text", "text": "hi"}]},
         {"role": "user", "content": [{"type": "text", "text": "late"}]}],
        [("moved", 2, "a")],
    ),
    (
        "the same twice",
        [{"id": "m", **USER}, {"id": "m", **USER}, chat_call("a"), chat_result("a"),
         chat_call("a"), chat_result("a", "again"), item_call("i"), item_call("i"),
         item_result("i"), block_call("b"), block_result("b"), block_call("b")],
        [{"id": "m", **USER}, chat_call("a"), chat_result("a"), item_call("i"), item_result("i"),
         block_call("b"), block_result("b")],
        [("duplicate", 1, "m"), ("duplicate", 4, "a"), ("duplicate", 5, "a"),
         ("duplicate", 7, "i"), ("duplicate", 11, "b")],
    ),
    (
        "one of two calls twice",
        [chat_call("a"), chat_result("a"),
         {**chat_call("a", "b"), "content": "x"}, chat_result("b")],
        [chat_call("a"), chat_result("a"), {**chat_call("b"), "content": "x"}, chat_result("b")],
        [("duplicate", 2, "a")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("history", "expected", "mended"), [case[1:] for case in UNSOUND],
                         ids=[case[0] for case in UNSOUND])  # fmt: skip
def test_what_is_repaired(
    history: list[Any], expected: list[Any], mended: list[tuple[str, int, str]]
) -> None:
    given = copy.deepcopy(history)
    repaired = repair(history)
    assert repaired.history == expected
    assert [(one.what, one.index, one.id) for one in repaired.mended] == mended
    assert history == given, "what was given is not changed"


ID = st.sampled_from("abc")
ITEM = st.one_of(
    st.just(USER),
    st.builds(chat_call, ID),
    st.builds(chat_call, ID, ID),
    st.builds(chat_result, ID),
    st.builds(item_call, ID),
    st.builds(item_result, ID),
    st.builds(block_call, ID, ID),
    st.builds(block_result, ID, more=st.sampled_from([None, "and"])),
)


def of_form(form: int) -> Any:
    """One history uses one form: an id that is a call in two forms would be two calls."""
    items = {
        0: (chat_call, chat_result),
        1: (item_call, item_result),
        2: (block_call, block_result),
    }
    call, result = items[form]
    return st.lists(st.one_of(st.just(USER), st.builds(call, ID), st.builds(result, ID)))


@given(st.integers(0, 2).flatmap(of_form))
def test_every_history_is_sound_after_repair(history: list[Any]) -> None:
    repaired = repair(history)
    assert_sound(repaired.history)
    again = repair(repaired.history)
    assert again.history == repaired.history
    assert again.mended == []
    assert (repaired.mended == []) == (repaired.history == history)


def assert_sound(history: list[Any]) -> None:
    """Each call has one result after it, in two of the forms right after it."""
    calls: list[str] = []
    results: list[str] = []
    due: set[str] = set()
    for item in history:
        content = item.get("content")
        blocks = content if isinstance(content, list) else []
        ended = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        ended += [item[name] for name in ("tool_call_id",) if name in item]
        if item.get("type") == "function_call_output":
            assert item["call_id"] in calls
            results.append(item["call_id"])
            continue
        assert due == set(ended) if blocks else not due or set(ended) <= due
        assert not due or ended, "a call's results stand right behind it"
        due -= set(ended)
        results += ended
        begun = [call["id"] for call in item.get("tool_calls", ())]
        begun += [block["id"] for block in blocks if block["type"] == "tool_use"]
        if item.get("type") == "function_call":
            calls.append(item["call_id"])
        calls += begun
        due |= set(begun)
    assert not due
    assert sorted(calls) == sorted(results) == sorted(set(calls))


@given(st.lists(ITEM))
def test_mixed_forms_never_raise_and_a_third_repair_changes_nothing(history: list[Any]) -> None:
    once = repair(history).history
    assert repair(repair(once).history).history == repair(once).history


@pytest.mark.parametrize("wrong", ["text", b"bytes", {"role": "user"}, 7, None])
def test_values_that_are_not_a_history_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a history is"):
        repair(wrong)
