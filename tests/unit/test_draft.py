"""The draft: a mutable face that records ops and reads its own writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from holdfast.core import codec
from holdfast.core.draft import Draft
from holdfast.core.tree import EMPTY, Op, append_op, apply, decode_ops, encode_ops, freeze, set_op
from holdfast.errors import UsageError

PLAIN: dict[str, Any] = {
    "n": 10,
    "text": "hi",
    "m": {"x": 1, "deep": {"y": [1, 2]}},
    "l": [3, {"a": 1}, "three", [4]],
}


def recorded(draft: Draft) -> list[tuple[str, Any, bytes]]:
    return [(op.kind, op.path, bytes(op.value)) for op in draft.ops]


STEPS: list[Callable[[Any], object]] = [
    lambda d: d.__setitem__("n", d["n"] - 10),
    lambda d: d["m"].__setitem__("new", {"z": [1]}),
    lambda d: d["m"]["deep"]["y"].append({"k": b"x"}),
    lambda d: d["l"].extend([5, 6]),
    lambda d: d["l"].extend(d["l"]),
    lambda d: d["l"].insert(0, "first"),
    lambda d: d["l"].insert(-1, "last but one"),
    lambda d: d["l"].insert(99, "last"),
    lambda d: d["l"].pop(),
    lambda d: d["l"].pop(0),
    lambda d: d["l"].pop(-2),
    lambda d: d["l"].remove("three"),
    lambda d: d["l"].reverse(),
    lambda d: d["l"].clear(),
    lambda d: d["l"].sort(key=lambda item: isinstance(item, int)),
    lambda d: d["m"]["deep"]["y"].sort(reverse=True),
    lambda d: d["l"].__setitem__(-1, {"b": 2}),
    lambda d: d["l"].__setitem__(slice(1, 3), ["a", "b", {"c": 1}]),
    lambda d: d["l"].__setitem__(slice(None, None, 2), [0, 0]),
    lambda d: d["l"].__delitem__(slice(1, 3)),
    lambda d: d["l"].__delitem__(slice(2, None)),
    lambda d: d["l"].__delitem__(slice(9, None)),
    lambda d: d["l"].__delitem__(0),
    lambda d: d["l"][1].__setitem__("a", 2),
    lambda d: d.__delitem__("text"),
    lambda d: d.pop("text"),
    lambda d: d.pop("absent", None),
    lambda d: d.popitem(),
    lambda d: d.update({"n": 1, "p": {}}, q=[1]),
    lambda d: d.update([("n", 1)]),
    lambda d: d["m"].update(d["m"]["deep"]),
    lambda d: d.update(),
    lambda d: d.setdefault("n", 5),
    lambda d: d.setdefault("fresh", []).append(1),
    lambda d: d["m"].clear(),
    lambda d: d.clear(),
    lambda d: d.__setitem__("copy", d["m"]),
    lambda d: d.__setitem__("in", {"a": [d["l"]]}),
    lambda d: [item.update(seen=True) for item in d["l"] if hasattr(item, "update")],
]


@pytest.mark.parametrize("step", STEPS)
def test_step_does_what_it_does_to_plain_values(step: Callable[[Any], object]) -> None:
    root = freeze(PLAIN)
    draft = Draft(root)
    model = root.to_dict()
    returned, expected = step(draft), step(model)
    model = codec.decode(codec.encode(model))
    assert draft.state == model
    assert repr(draft.state.to_dict()) == repr(model)
    assert draft == model
    assert returned == expected
    assert root == PLAIN
    again = apply(root, decode_ops(encode_ops(draft.ops)), revision=1)
    assert repr(again.to_dict()) == repr(model)


def test_ops_are_small() -> None:
    draft = Draft(freeze(PLAIN))
    draft["n"] -= 1
    draft["l"].append("x")
    draft["l"] += ["y"]
    draft["m"] |= {"w": 1}
    draft["m"]["deep"]["y"][0] = 7
    del draft["l"][1]
    draft["l"].pop()
    del draft["text"]
    assert recorded(draft) == [
        ("set", "n", b"9"),
        ("append", "l", b'"x"'),
        ("append", "l", b'"y"'),
        ("merge", "m", b'{"w":1}'),
        ("set", ("m", "deep", "y", 0), b"7"),
        ("delete", ("l", 1), b""),
        ("truncate", "l", b"4"),
        ("delete", "text", b""),
    ]


def test_reading_records_nothing() -> None:
    draft = Draft(freeze(PLAIN))
    assert draft["m"]["deep"]["y"][-1] == 2
    assert draft["l"][1:3] == [{"a": 1}, "three"]
    assert list(draft) == list(PLAIN)
    assert len(draft) == 4
    assert "n" in draft
    assert "x" not in draft
    assert draft.get("x", 5) == 5
    assert dict(draft["m"].items()) == PLAIN["m"]
    assert draft["m"] == draft["m"]
    assert draft["l"] != draft["m"]
    assert draft.to_dict() == PLAIN
    assert draft["l"].to_list() == PLAIN["l"]
    assert repr(draft["m"]) == "<draft of Map({'x': 1, 'deep': {'y': [1, 2]}})>"
    assert draft.ops == []
    assert draft.state == PLAIN


def test_value_of_the_caller_is_not_shared() -> None:
    draft = Draft(EMPTY)
    mine: dict[str, Any] = {"tags": ["a"]}
    draft["x"] = mine
    draft["l"] = []
    draft["l"].append(mine)
    draft["l"].insert(0, mine)
    draft.update(y=mine)
    mine["tags"].append("b")
    one = {"tags": ["a"]}
    assert draft == {"x": one, "l": [one, one], "y": one}


def test_what_was_popped_can_be_put_back() -> None:
    draft = Draft(freeze(PLAIN))
    draft["moved"] = draft.pop("m")
    draft["l"].append(draft["l"].pop(1))
    assert draft["moved"] == PLAIN["m"]
    assert draft["l"][-1] == {"a": 1}


def test_errors_come_at_once_and_record_nothing() -> None:
    draft = Draft(freeze(PLAIN))
    with pytest.raises(UsageError, match=r"\['m'\]\['bad'\]\['x'\] is of type set"):
        draft["m"]["bad"] = {"x": {1}}
    with pytest.raises(UsageError, match="the state is a mapping, which has no 1"):
        draft[1] = 2  # pyright: ignore[reportArgumentType]
    for missing in (lambda: draft["zz"], lambda: draft.pop("zz"), lambda: draft["m"].pop("zz")):
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(KeyError):
        del draft["zz"]
    with pytest.raises(KeyError):
        Draft(EMPTY).popitem()
    for wrong in (lambda: draft["l"][4], lambda: draft["l"].pop(-5)):
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(IndexError):
        draft["l"][9] = 1
    with pytest.raises(ValueError):
        draft["l"].remove("absent")
    for face in (draft, draft["l"]):
        with pytest.raises(TypeError):
            hash(face)
    assert draft.ops == []


def test_face_of_what_was_replaced_says_so() -> None:
    draft = Draft(freeze(PLAIN))
    items, table = draft["l"], draft["m"]
    draft["l"] = "text"
    del draft["m"]
    for use in (lambda: items.append(1), lambda: items[0], lambda: len(table), items.clear):
        with pytest.raises(UsageError, match="is no longer a"):
            use()


def test_the_face_of_another_draft_is_a_value() -> None:
    """Only what is put back where it was taken from has been recorded already."""
    other, draft = Draft(freeze(PLAIN)), Draft(freeze({"l": []}))
    draft["l"] = other["l"]
    other["l"].append("later")
    assert recorded(draft) == [("set", "l", b'[3,{"a":1},"three",[4]]')]


def test_moving_items_loads_no_blob() -> None:
    reference = codec.blob_ref("ab" * 32, 99_000)
    root = apply(
        EMPTY,
        [append_op("l", 1), Op("append", "l", Raw(reference)), set_op("n", 1)],
        revision=1,
        blobs=lambda id, size: codec.encode("loaded"),
    )
    draft = Draft(root)
    draft["l"].insert(0, "x")
    assert recorded(draft) == [("set", "l", b'["x",1,%s]' % reference)]
    assert draft["l"] == ["x", 1, "loaded"]


def test_new_values_of_a_draft_belong_to_no_event() -> None:
    draft = Draft(EMPTY)
    draft["x"] = {"a": "x" * 100}
    assert [kept.source for _, kept in draft.state._kept()] == [None]
