"""Every operation takes `key=`, `label=` and `source=`, for front ends (rule 12)."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

import holdfast
from holdfast import NeedsAttentionError, Store
from holdfast.backends.protocol import START
from holdfast.runs import Context
from holdfast.runs.context import Variable
from tests.runs.corpus import add, post
from tests.runs.cuts import until
from tests.runs.witness import Witness

NOT_OPERATIONS = {"branch", "variable"}
"""A part of parallel, and what looks a variable up."""


def test_every_operation_takes_them():
    public = {
        name: function
        for name, function in inspect.getmembers(Context, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_OPERATIONS
    }
    assert len(public) >= 20
    public["set"] = Variable.set
    for name, function in public.items():
        taken = inspect.signature(function).parameters
        assert {"key", "label", "source"} <= set(taken), name


def whence(line: int) -> dict[str, Any]:
    return {"key": f"k{line}", "label": f"line {line}", "source": f"plan.prose:{line}"}


@holdfast.run(name="tests:small")
def small(ctx: Any) -> int:
    return 1


def grow(ctx: Any, acc: int, item: int) -> int:
    return acc + item


@holdfast.run(name="tests:named")
def named(ctx: Any, hf: str) -> None:
    ctx.step(add, 1, 1, **whence(1))
    ctx.process(["true"], effect="effect", **whence(2))
    ctx.read(ctx.state, "x", **whence(3))
    ctx.parallel({"a": ctx.branch(add, 1, 1)}, **whence(4))
    for _ in ctx.each([1], **whence(5)):
        pass
    for _ in ctx.repeat(1, **whence(6)):
        pass
    ctx.fold("sum", [1], 0, grow, **whence(7))
    ctx.run(small, **whence(8))
    ctx.sleep(0.01, **whence(9))
    ctx.wait("w", timeout=0.01, default=1, **whence(10))
    ctx.signal("s", timeout=0.01, default=1, **whence(11))
    ctx.inbox(**whence(12))
    ctx.join(ctx.child(small, **whence(13)), **whence(14))
    ctx.let("a", 1, **whence(15)).set(2, **whence(16))
    ctx.const("b", 1, **whence(17))
    ctx.now(**whence(18))
    ctx.random(**whence(19))
    ctx.uuid(**whence(20))
    ctx.txn(lambda tx: 1, **whence(21))  # pyright: ignore[reportUnknownLambdaType]


def test_they_are_stored_with_each_record(hf: Store):
    run = hf.runs.start(named, "x", id="r")
    run.result()
    found = {e.path.rpartition("=")[2]: e for e in run.journal.entries.values() if e.source}
    assert set(found) == {f"k{line}" for line in range(1, 22)}
    for key, entry in found.items():
        assert (entry.label, entry.source) == (f"line {key[1:]}", f"plan.prose:{key[1:]}")


def test_a_divergence_names_the_source_of_its_front_end(hf: Store, witness: Witness):
    @holdfast.run(name="tests:moved")
    def moved(ctx: Any) -> None:
        ctx.step(post, "a", source="plan.prose:3")
        ctx.wait("go", source="plan.prose:4")

    until(hf.runs.start(moved, id="r"), "waiting")
    assert hf.runs.get("r").progress.statements == ("wait.go at plan.prose:4",)

    @holdfast.run(name="tests:moved")
    def changed(ctx: Any) -> None:
        ctx.step(post, "b", source="plan.prose:9")

    hf.runs.answer("r", "go")
    with pytest.raises(NeedsAttentionError, match=r"at plan\.prose:9;"):
        hf.runs.resume("r").result(timeout=60)


def test_a_block_that_another_thread_touches_says_so(hf: Store):
    """Rule 6."""
    told: list[Exception] = []

    def touch(ctx: Any) -> None:
        try:
            ctx.now()
        except holdfast.UsageError as error:
            told.append(error)

    @holdfast.run(name="tests:touched")
    def touched(ctx: Any) -> None:
        thread = threading.Thread(target=touch, args=(ctx,))
        thread.start()
        thread.join()

    run = hf.runs.start(touched)
    run.result()
    assert "used by another thread" in str(told[0])
    assert run.journal.entries == {}


def test_large_inputs_are_kept_apart_from_the_journal(durable_url: str):
    """Decision 0013: a value of 64 KiB or more is a blob, in `created` too, also of a child."""

    @holdfast.run(name="tests:large")
    def large(ctx: Any, text: str, depth: int) -> int:
        return ctx.join(ctx.child(large, text, depth - 1)) if depth else len(text)

    with holdfast.open(durable_url) as hf:
        assert hf.runs.start(large, "x" * 300_000, 1).result() == 300_000
    with holdfast.open(durable_url) as hf:
        sizes = [
            len(str(event.data))
            for event in hf.follow(as_events=True, after=START, timeout_s=0)
            if event.type == "run.created"
        ]
        assert len(sizes) == 2
        assert max(sizes) < 10_000
        assert hf.check().ok
