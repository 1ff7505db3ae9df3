"""Repairs a history for the next request to a model; the stored history is not changed. Pure.

A crash in the middle of a turn leaves tool calls without results, and model APIs reject such a
history. Three forms of items are known, and one history may mix them:

    chat        {"tool_calls": [{"id"}]} and {"role": "tool", "tool_call_id"}, right after it
    responses   {"type": "…_call", "call_id"} and {"type": "…_call_output", "call_id"}, after it
    blocks      {"type": "tool_use", "id"} in a content, and {"type": "tool_result", "tool_use_id"}
                in that of the next message

The repairs, in this order: an item, call or result that comes a second time is left out; a result
without a call is left out; a result in the wrong place is moved after its call; a call without a
result gets one that says so. Everything else is passed on unchanged and in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from msgspec import Struct

from holdfast.errors import UsageError, show_value

NO_RESULT = "[interrupted: no result of this call was recorded]"

_Item = dict[str, Any]


class Fix(Struct, frozen=True):
    """One defect that was repaired; `index` is the place in the given history."""

    what: Literal["duplicate", "orphan", "moved", "missing"]
    index: int
    id: str


class Repaired(Struct, frozen=True):
    """A repaired history, and what was repaired in it."""

    history: list[Any]
    mended: list[Fix]


class _ToolResult(Struct):
    """The result of a tool call: its index, and its value, an item or a block of one."""

    index: int
    value: _Item
    is_block: bool
    number: int  # among all results


def repair(history: Iterable[Any]) -> Repaired:
    """Returns a history that a model API accepts, and the repairs; the given one is unchanged."""
    if isinstance(history, str | bytes | dict) or not isinstance(history, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        found = show_value(cast("object", history))
        raise UsageError(f"a history is a list of items, found {found}")
    return _Repair(list(history)).run()


class _Repair:
    def __init__(self, history: list[Any]) -> None:
        self._history = history
        self._fixes: list[Fix] = []
        self._calls: dict[str, int] = {}
        self._results: dict[str, _ToolResult] = {}
        self._items: list[tuple[int, Any]] = []  # what is passed on, without results

    def run(self) -> Repaired:
        seen: set[str] = set()
        for index, item in enumerate(self._history):
            if isinstance(item, dict):
                item = cast("_Item", item)
                id = item.get("id")
                if isinstance(id, str) and id in seen:
                    self._record_fix("duplicate", index, id)
                    continue
                if isinstance(id, str):
                    seen.add(id)
            self._take_item(index, item)
        self._drop_orphans()
        return Repaired(self._assemble(), sorted(self._fixes, key=lambda one: one.index))

    def _record_fix(self, what: Literal["duplicate", "orphan", "moved", "missing"], index: int,
              id: str) -> None:  # fmt: skip
        self._fixes.append(Fix(what, index, id))

    # --- taking apart ----------------------------------------------------------------------------

    def _take_item(self, index: int, item: Any) -> None:
        result = _result_id(item)
        if result is not None:
            self._take_result(index, result, item, is_block=False)
            return
        if isinstance(item, dict):
            lean = self._without_second_calls(index, cast("_Item", item))
            item = self._without_results(index, lean)
            if item is None:
                return
        self._items.append((index, item))

    def _take_result(self, index: int, id: str, value: _Item, *, is_block: bool) -> None:
        if id in self._results:
            self._record_fix("duplicate", index, id)
        else:
            self._results[id] = _ToolResult(index, value, is_block, len(self._results))

    def _without_second_calls(self, index: int, item: _Item) -> _Item | None:
        repeated: set[int] = set()
        for number, id in enumerate(call_ids(item)):
            if id in self._calls:
                repeated.add(number)
                self._record_fix("duplicate", index, id)
            else:
                self._calls[id] = index
        if not repeated:
            return item
        if "tool_calls" in item:
            calls = [c for n, c in enumerate(item["tool_calls"]) if n not in repeated]
            return _without_empty({**item, "tool_calls": calls}, "tool_calls")
        if "call_id" in item:
            return None
        number = -1
        blocks: list[Any] = []
        for block in item["content"]:
            number += _block_type(block) == "tool_use"
            if _block_type(block) != "tool_use" or number not in repeated:
                blocks.append(block)
        return {**item, "content": blocks} if blocks else None

    def _without_results(self, index: int, item: _Item | None) -> _Item | None:
        if item is None or not isinstance(item.get("content"), list):
            return item
        rest: list[Any] = []
        for block in item["content"]:
            if _block_type(block) == "tool_result":
                self._take_result(index, str(block.get("tool_use_id")), block, is_block=True)
            else:
                rest.append(block)
        # An item that is now empty is kept, because its results will be put back there.
        return item if len(rest) == len(item["content"]) else {**item, "content": rest}

    def _drop_orphans(self) -> None:
        for id, found in list(self._results.items()):
            if id not in self._calls:
                self._record_fix("orphan", found.index, id)
                del self._results[id]

    # --- putting together ------------------------------------------------------------------------

    def _assemble(self) -> list[Any]:
        late = {  # results of the form `responses` may stay in their place, if it is after the call
            found.index: found.value
            for id, found in self._results.items()
            if "call_id" in found.value and found.index > self._calls[id]
        }
        repaired: list[Any] = []
        waiting: list[_Item] = []  # result blocks that belong in the next message
        for index, item in self._items:
            for at in sorted(at for at in late if at < index):
                repaired.append(late.pop(at))
            if waiting:
                item, before = _merged(waiting, item)
                repaired += before
                waiting = []
            if item is None or (isinstance(item, dict) and cast("_Item", item).get("content") == []
                                and self._had_results(index)):  # fmt: skip
                continue
            repaired.append(item)
            if isinstance(item, dict):
                results, blocks = self._results_for(index, cast("_Item", item))
                repaired += results
                waiting = blocks
        repaired += [late[at] for at in sorted(late)]
        if waiting:
            repaired.append({"role": "user", "content": waiting})
        return repaired

    def _had_results(self, index: int) -> bool:
        content = self._history[index].get("content")
        return any(_block_type(block) == "tool_result" for block in content)

    def _results_for(self, index: int, item: _Item) -> tuple[list[_Item], list[_Item]]:
        """Returns the result items and the result blocks that must follow an item with calls."""
        results: list[tuple[int, _Item]] = []
        blocks: list[tuple[int, _Item]] = []
        for id in call_ids(item):
            found = self._results.get(id)
            is_block = "tool_calls" not in item and "call_id" not in item
            if found is None:
                self._record_fix("missing", index, id)
                made = _missing_result(item, id)
                (blocks if is_block else results).append((len(self._history), made))
            elif "call_id" in found.value and found.index > index:
                continue
            else:
                if not self._is_in_place(found, index):
                    self._record_fix("moved", found.index, id)
                (blocks if found.is_block else results).append((found.number, found.value))
        ordered = [
            [value for _, value in sorted(some, key=lambda one: one[0])]
            for some in (results, blocks)
        ]
        return ordered[0], ordered[1]

    def _is_in_place(self, found: _ToolResult, index: int) -> bool:
        """Returns whether only other results are between a call and its result."""
        between = self._history[index + 1 : found.index]
        return found.index > index and all(_result_id(item) is not None for item in between)


def call_ids(item: Any) -> list[str]:
    """Returns the ids of the tool calls that an item makes and that need a result."""
    if not isinstance(item, dict):
        return []
    item = cast("_Item", item)
    calls = item.get("tool_calls")
    if isinstance(calls, list):
        return [str(cast("Any", call).get("id")) for call in cast("list[Any]", calls)
                if isinstance(call, dict)]  # fmt: skip
    if str(item.get("type", "")).endswith("_call"):
        return [item["call_id"]] if isinstance(item.get("call_id"), str) else []
    content = item.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [str(block.get("id")) for block in blocks if _block_type(block) == "tool_use"]


def _result_id(item: Any) -> str | None:
    """Returns the id of the call that an item is the result of."""
    if not isinstance(item, dict):
        return None
    item = cast("_Item", item)
    if isinstance(item.get("tool_call_id"), str):
        return item["tool_call_id"]
    if str(item.get("type", "")).endswith("_call_output") and isinstance(item.get("call_id"), str):
        return item["call_id"]
    return None


def _block_type(block: Any) -> str | None:
    return cast("_Item", block).get("type") if isinstance(block, dict) else None


def _without_empty(item: _Item, name: str) -> _Item | None:
    """Returns an item without an empty list; None if it would have no content."""
    if item[name]:
        return item
    rest = {key: value for key, value in item.items() if key != name}
    return rest if rest.get("content") else None


def _missing_result(item: _Item, id: str) -> _Item:
    if "tool_calls" in item:
        return {"role": "tool", "tool_call_id": id, "content": NO_RESULT}
    if "call_id" in item:
        return {"type": f"{item['type']}_output", "call_id": id, "output": NO_RESULT}
    return {"type": "tool_result", "tool_use_id": id, "content": NO_RESULT, "is_error": True}


def _merged(blocks: list[_Item], item: Any) -> tuple[Any, list[Any]]:
    """Returns the next item with result blocks in front, and items to put before it."""
    if isinstance(item, dict) and cast("_Item", item).get("role") == "user":
        item = cast("_Item", item)
        content: Any = item.get("content") or []
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        together: _Item = {**item, "content": [*blocks, *content]}
        return together, []
    return cast("Any", item), [{"role": "user", "content": blocks}]
