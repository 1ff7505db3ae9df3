"""A set that stores what differs has the effect of a plain one, on any two trees."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.core.tree import (
    MISSING,
    Map,
    apply,
    encode_ops,
    locate,
    set_difference,
    set_op,
)
from holdfast.core.tree.frozen import dump
from holdfast.errors import UsageError

scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, "a", "b", ""])
)
keys = st.sampled_from(["a", "b", "c", "$x"])
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(keys, inner, max_size=4)
)
states = st.dictionaries(keys, trees, max_size=4)
paths = st.lists(keys | st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two values of which the second is the first, changed a little or not at all."""
    old = draw(st.lists(trees, max_size=12))
    place = draw(st.integers(0, len(old)))
    new = [*old[:place], *draw(st.lists(trees, max_size=3)), *old[draw(st.integers(0, 12)) :]]
    return old, new


@settings(max_examples=400, deadline=None)
@given(states, paths, trees)
def test_the_state_is_that_of_a_plain_set(
    state: dict[str, Any], path: tuple[str | int, ...], value: Any
) -> None:
    check(state, path, value)


@settings(max_examples=200, deadline=None)
@given(states, neighbours(), st.booleans())
def test_the_same_of_lists_that_resemble_each_other(
    state: dict[str, Any], lists: tuple[Any, Any], is_whole: bool
) -> None:
    state = {**state, "list": lists[0]}
    if is_whole:
        check(state, (), {**state, "list": lists[1]})
    else:
        check(state, ("list",), lists[1])


def check(state: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    root = apply(Map(), [set_op((), state)], revision=1)
    try:
        op = set_op(path, value)
        plain = apply(root, [op], revision=2)
    except UsageError:
        return  # a path that leads nowhere, or a state that is no mapping
    ops = set_difference(root, op)
    made = apply(root, ops, revision=2)
    # As bytes: the order of keys counts, and so does the type of a number.
    assert bytes(dump(made)) == bytes(dump(plain))
    assert len(encode_ops(ops)) <= len(encode_ops([op]))
    kept = locate(root, path)
    if kept is not MISSING and bytes(dump(kept)) == bytes(dump(locate(plain, path))):
        assert ops == []


@settings(max_examples=25, deadline=None)
@given(st.lists(states, min_size=1, max_size=6))
def test_a_scope_whose_state_is_replaced_is_each_of_them_in_turn(
    given_states: list[dict[str, Any]],
) -> None:
    with holdfast.open("memory:") as hf:
        one, other = hf.team("one"), hf.team("other")
        for state in given_states:
            one.update(state, replace=True)
            other.set((), state)
            assert bytes(dump(one.state)) == bytes(dump(other.state))
        assert hf.check().ok
