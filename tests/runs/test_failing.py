"""Where a failed run is tried again: before the step that its error came from (OP-20, rule 12)."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, Store, UsageError
from holdfast.runs.admin import place_to_retry


@holdfast.step(effect="read")
def fetch(name: str) -> str:
    if name.startswith("bad"):
        raise OSError(name)
    return name


@holdfast.run(name="failing:plain")
def plain(ctx: Any) -> None:
    fetch("good")
    fetch("bad")


@holdfast.run(name="failing:caught")
def caught(ctx: Any) -> None:
    try:
        fetch("bad caught")
    except holdfast.StepError:
        fetch("good")
    raise ValueError("of the body's own")


@holdfast.run(name="failing:nested")
def nested(ctx: Any) -> None:
    def arm(ctx: Any, name: str) -> str:
        return fetch(name)

    for _ in ctx.each([1]):
        ctx.parallel(one=ctx.branch(arm, "good"), two=ctx.branch(arm, "bad"))


def failed(hf: Store, function: Any, id: str) -> Any:
    run = hf.runs.start(function, id=id)
    with pytest.raises(RunFailedError):
        run.result()
    return run.journal


def test_the_step_that_failed(hf: Store):
    assert place_to_retry(failed(hf, plain, "r1"), "r1") == "fetch#2"


def test_a_step_whose_error_was_caught_is_not_it(hf: Store):
    journal = failed(hf, caught, "r1")
    assert place_to_retry(journal, "r1") == journal.revision - 1


def test_within_a_loop_and_a_branch_it_is_the_innermost(hf: Store):
    path = place_to_retry(failed(hf, nested, "r1"), "r1")
    assert path == "each[0]/parallel/two/fetch"
    # The record of the failed branch comes after it: the fork enters the branch again.
    fork = hf.runs.fork("r1", path, id="r2")
    assert "each[0]/parallel/two" not in fork.journal.entries


def test_a_run_that_did_not_fail(hf: Store):
    @holdfast.run(name="failing:fine")
    def fine(ctx: Any) -> None:
        fetch("good")

    run = hf.runs.start(fine, id="r1")
    run.result()
    with pytest.raises(UsageError, match="has not failed: it is completed"):
        place_to_retry(run.journal, "r1")
