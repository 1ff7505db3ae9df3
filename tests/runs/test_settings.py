"""Parameters that are named like settings of what calls them, and calls that cannot be made."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, Store, UsageError
from tests.runs.witness import Witness


@holdfast.run(name="tests:of an id")
def of_an_id(ctx: Any, id: str = "none", queue: str = "none") -> list[str]:
    return [ctx.run_id, id, queue]


@holdfast.run(name="tests:by name alone")
def by_name_alone(ctx: Any, *, id: str) -> str:
    return id


@holdfast.step(effect="pure")
def of_a_key(key: str = "none") -> str:
    return key


@holdfast.run(name="tests:of a key")
def of_keys(ctx: Any, key: str = "none") -> str:
    return f"{ctx._block.path} {key}"


def test_a_setting_that_is_a_parameter_too_is_refused(hf: Store):
    """It would be taken for the setting, and the run would go on without its argument."""
    for named in ({"id": "x"}, {"queue": "x"}):
        with pytest.raises(UsageError, match="is a setting of start and a parameter of of_an_id"):
            hf.runs.start(of_an_id, **named)
    with pytest.raises(UsageError, match="by position, or another name"):
        hf.runs.start(by_name_alone, id="x")
    assert hf.runs.list() == []
    assert hf.runs.start(of_an_id, "a", "b", id="r").result() == ["r", "a", "b"]
    assert hf.runs.start(of_an_id, "a", id="s").result() == ["s", "a", "none"]


def test_so_it_is_inside_a_run(hf: Store, witness: Witness):
    refused: list[str] = []

    @holdfast.run(name="tests:settings inside")
    def inside(ctx: Any) -> list[Any]:
        def move(tx: Any, key: str = "none") -> None: ...

        for call in (
            lambda: ctx.step(of_a_key, key="x"),
            lambda: ctx.run(of_keys, key="x"),
            lambda: ctx.child(of_keys, key="x"),
            lambda: ctx.child(of_an_id, id="x"),
            lambda: ctx.txn(move, key="x"),
            lambda: ctx.txn_in(None, move, key="x"),
        ):
            with pytest.raises(UsageError) as raised:
                call()
            refused.append(str(raised.value).partition(" is a setting of ")[2].partition(" ")[0])
        return [
            of_a_key(key="a"),
            ctx.step(of_a_key, "b", key="k"),
            of_keys(key="c"),
            ctx.run(of_keys, "d", key="k"),
        ]

    run = hf.runs.start(inside, id="r")
    assert run.result() == ["a", "b", "run.of a key c", "run.of a key=k d"]
    assert refused == ["ctx.step", "ctx.run", "ctx.child", "ctx.child", "ctx.txn", "ctx.txn_in"]
    assert "of_a_key=k" in run.journal.entries


@holdfast.run(name="tests:takes two")
def takes_two(ctx: Any, a: int, /, b: int, *more: int) -> list[int]:
    return [a, b, *more]


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1,), {}), ((1, 2), {"b": 3}), ((1,), {"a": 1, "b": 2})]
)
def test_a_run_that_could_not_be_entered_is_not_begun(hf: Store, args: Any, kwargs: Any):
    with pytest.raises(UsageError, match="takes_two cannot be called like this"):
        hf.runs.start(takes_two, *args, **kwargs)

    @holdfast.run(name="tests:a child that cannot")
    def parent(ctx: Any) -> None:
        ctx.child(takes_two, *args, **kwargs)

    with pytest.raises(RunFailedError, match="takes_two cannot be called like this"):
        hf.runs.start(parent, id="r").result()
    assert [run.id for run in hf.runs.list()] == ["r"]


def test_parameters_without_a_name_are_given_by_position(hf: Store):
    assert hf.runs.start(takes_two, 1, b=2).result() == [1, 2]
    assert hf.runs.start(takes_two, 1, 2, 3).result() == [1, 2, 3]
