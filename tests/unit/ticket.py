"""A small state to change and to compare, as a fold makes it."""

from __future__ import annotations

from typing import Any

from holdfast.core.tree import EMPTY, Map, Op, apply, decode_ops, encode_ops, set_op

TICKET: dict[str, Any] = {
    "stage": "triage",
    "customer": {"name": "Ada", "tags": ["new", "eu"]},
    "messages": [{"role": "user", "content": "hello " * 30}, {"role": "agent"}],
    "budget": 10,
}


def state(value: dict[str, Any]) -> Map:
    """Returns the state as a fold makes it: every value lazy."""
    return apply(EMPTY, [set_op((key,), item) for key, item in value.items()], revision=1)


def changed(root: Map, *ops: Op) -> Map:
    """Returns the state behind ops that were stored in between."""
    return apply(root, decode_ops(encode_ops(ops)), revision=2)
