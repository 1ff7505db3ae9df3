"""Blocks, variables, waits, messages, cancel, control (rules 3, 4, 6, 9; OP-5, 8, 9, 15, 19)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import holdfast
from holdfast import (
    ExistsError,
    NeedsAttentionError,
    NotFoundError,
    RunFailedError,
    StepError,
    Store,
    UsageError,
)
from holdfast.errors import RunCancelledError, StillRunningError
from holdfast.runs import blocks
from holdfast.runs.admin import RunSummary
from holdfast.runs.engine import Engine
from tests.runs.corpus import add, pay, post
from tests.runs.cuts import Cut, until
from tests.runs.witness import Witness

GATE = threading.Event()
ENTERED = threading.Event()


@pytest.fixture(autouse=True)
def gates() -> None:
    GATE.clear()
    ENTERED.clear()


@holdfast.step(effect="pure")
def stopping_here(ctx: Any) -> str:
    ENTERED.set()
    assert GATE.wait(60)
    return "went on"


@holdfast.step(effect="effect")
def acting_here(ctx: Any) -> str:
    ENTERED.set()
    assert GATE.wait(60)
    return "cancelled" if ctx.cancelled else "went on"


# --- variables -----------------------------------------------------------------------------------


@holdfast.run
def misused(ctx: Any, how: str) -> Any:
    fixed = ctx.const("fixed", 1)
    if how == "twice":
        ctx.let("fixed", 2)
    if how == "unknown":
        ctx.variable("nobody")
    if how == "const":
        ctx.variable("fixed").set(2)
    if how == "thread":
        failed: list[Exception] = []

        def elsewhere() -> None:
            try:
                ctx.step(add, 1, 2)
            except UsageError as error:
                failed.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        raise failed[0]
    if how == "branch":

        def setting(ctx: Any) -> None:
            ctx.variable("count").set(1)

        ctx.let("count", 0)
        ctx.parallel(a=ctx.branch(add, 1, 1), b=ctx.branch(setting), c=ctx.branch(add, 1, 1))
    return fixed


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("twice", "declared twice"),
        ("unknown", "no variable"),
        ("const", "is a const"),
        ("thread", "another thread"),
    ],
)
def test_misused_variables_and_threads_say_so(hf: Store, how: str, message: str):
    """OP-9: a const cannot be assigned; rule 6: a block belongs to one thread."""
    with pytest.raises(RunFailedError, match=message):
        hf.runs.start(misused, how).result()


def test_a_branch_does_not_set_what_is_around_it(hf: Store):
    with pytest.raises(RunFailedError, match="a branch cannot set"):
        hf.runs.start(misused, "branch").result()


def test_variables_are_seen_from_outside(hf: Store):
    @holdfast.run(name="tests:seen")
    def seen(ctx: Any) -> None:
        notes = ctx.let("notes", [])
        for number in ctx.repeat(2):
            ctx.let("inner", number)
            notes.set([*notes.value, number])

    run = hf.runs.start(seen)
    run.result()
    assert run.variables == {"notes": [0, 1], "repeat[0]/inner": 0, "repeat[1]/inner": 1}


# --- progress ------------------------------------------------------------------------------------


@holdfast.run
def counting(ctx: Any) -> None:
    for number in ctx.repeat(100):
        if number == 46:
            stopping_here()
        else:
            add(number, 1)


def test_what_a_run_is_doing_is_known_at_any_moment(hf: Store):
    """OP-5, OP-6, OP-19: statement, blocks, "iteration 47 of 100"."""
    run = hf.runs.start(counting, id="r")
    assert ENTERED.wait(60)
    progress = run.progress
    assert progress.blocks == ("repeat: iteration 47 of 100",)
    assert progress.statements == ("repeat[46]/stopping_here",)
    assert progress.last_done == "repeat[45]/add"
    assert "iteration 47 of 100" in str(progress)
    GATE.set()
    run.result()
    assert run.status == "completed"
    assert "repeat: iteration 100 of 100" in run.progress.blocks


# --- parallel ------------------------------------------------------------------------------------


@holdfast.run
def many_branches(ctx: Any, n: int) -> int:
    branches = {f"b{number}": ctx.branch(add, number, 1) for number in range(n)}
    return sum(ctx.parallel(branches).values())


def test_more_branches_than_threads(hf: Store):
    assert hf.runs.start(many_branches, 200).result() == sum(range(200)) + 200


def deep(ctx: Any, n: int) -> int:
    if n == 0:
        return 1
    found = ctx.parallel(x=ctx.branch(deep, n - 1), y=ctx.branch(deep, n - 1))
    return found["x"] + found["y"]


@holdfast.run
def nesting(ctx: Any) -> int:
    return deep(ctx, 7)


def test_nested_branches_do_not_deadlock(hf: Store):
    """Rule 6: 128 leaves, more blocks at once than there are threads."""
    hf._kernel.part(Engine).pool._threads_max = 4  # pyright: ignore[reportPrivateUsage]
    assert hf.runs.start(nesting).result() == 128


@holdfast.run
def racing(ctx: Any) -> Any:
    found = ctx.parallel(join="first", slow=ctx.branch(stopping_here), fast=ctx.branch(add, 1, 1))
    return found


def test_the_first_branch_wins_and_the_others_are_left_behind(hf: Store):
    try:
        assert hf.runs.start(racing).result() == {"fast": 2}
    finally:
        GATE.set()


@holdfast.run
def joins(ctx: Any, join: Any) -> Any:
    return ctx.parallel(join=join, a=ctx.branch(add, 1, 1))


@pytest.mark.parametrize("join", ["most", 0, 2, True, None])
def test_a_join_policy_is_checked(hf: Store, join: Any):
    with pytest.raises(RunFailedError, match="join is"):
        hf.runs.start(joins, join).result()


# --- waits ---------------------------------------------------------------------------------------


class Approval(Struct):
    ok: bool
    by: str


@holdfast.run
def asking(ctx: Any) -> list[Any]:
    answer = ctx.wait("approve", schema=Approval)
    return [answer.ok, answer.by]


def test_a_wait_is_answered_once_by_what_fits(hf: Store):
    """A refused answer does not count; the first that fits does, and holds no thread before."""
    run = hf.runs.start(asking, id="r")
    until(run, "waiting")
    assert not hf._kernel.part(Engine).active
    with pytest.raises(NotFoundError, match="waits for nothing"):
        hf.runs.answer("r", "other", 1)
    hf.runs.answer("r", "approve", {"ok": "perhaps"})
    while not run.journal.entries["wait.approve"].refused:
        with pytest.raises(StillRunningError):
            run.result(timeout=0.05)
    until(run, "waiting")
    hf.runs.answer("r", "approve", {"ok": True, "by": "ada"})
    assert run.result() == [True, "ada"]
    with pytest.raises(ExistsError):
        hf.runs.answer("r", "approve", {"ok": False, "by": "bob"})


def test_the_second_answer_is_told_that_it_came_late(hf: Store):
    run = hf.runs.start(asking, id="r")
    until(run, "waiting")
    hf._kernel.part(Engine).supervisor.close()  # nobody takes the first answer yet
    hf.runs.answer("r", "approve", {"ok": True, "by": "ada"})
    hf.runs.answer("r", "approve", {"ok": True, "by": "ada"})  # the same answer: sent once
    with pytest.raises(ExistsError, match="answered already"):
        hf.runs.answer("r", "approve", {"ok": False, "by": "bob"})
    assert hf.runs.resume("r").result() == [True, "ada"]


@holdfast.run
def hearing(ctx: Any) -> list[list[Any]]:
    ctx.signal("go")
    return [
        [message.value for message in ctx.inbox("interrupt", "ambient")],
        [message.value for message in ctx.inbox()],
        [message.value for message in ctx.inbox()],
    ]


def test_messages_are_taken_once_most_urgent_first(hf: Store):
    run = hf.runs.start(hearing, id="r")
    until(run, "waiting")
    for kind in ("ambient", "follow-up", "interrupt", "steer"):
        hf.runs.send("r", kind, kind)
        hf.runs.send("r", kind, f"{kind} again", id=kind)
        hf.runs.send("r", kind, f"{kind} again", id=kind)
    hf.runs.signal("r", "go")
    assert run.result() == [
        ["interrupt", "interrupt again", "ambient", "ambient again"],
        ["steer", "steer again", "follow-up", "follow-up again"],
        [],
    ]
    with pytest.raises(UsageError, match="has ended"):
        hf.runs.signal("r", "go")
    with pytest.raises(UsageError, match="a message is one of"):
        hf.runs.start(hearing, id="q")
        hf.runs.send("q", "shout", 1)


# --- cancel --------------------------------------------------------------------------------------


@holdfast.run
def cancellable(ctx: Any) -> None:
    acting_here()
    post("never")


def test_a_cancelled_run_stops_at_its_next_operation(hf: Store, witness: Witness):
    """Rule 9: a sync step runs to its end, and is told; what it did is recorded."""
    run = hf.runs.start(cancellable, id="r")
    assert ENTERED.wait(60)
    run.cancel()
    assert run.status == "cancelling"
    GATE.set()
    with pytest.raises(RunCancelledError):
        run.result()
    assert run.status == "cancelled"
    assert not witness.acts
    assert bytes(run.journal.entries["acting_here"].value) == b'"cancelled"'
    assert hf.runs.list(status="cancelled")[0].id == "r"
    hf.runs.cancel("r")  # again: nothing happens


def test_a_waiting_run_is_cancelled_where_it_is(hf: Store):
    run = hf.runs.start(asking, id="r")
    until(run, "waiting")
    hf.runs.cancel("r")
    with pytest.raises(RunCancelledError):
        run.result()
    assert hf.runs.list() == [RunSummary("r", "cancelled")]


@holdfast.run
def leaving_children(ctx: Any, policy: str) -> str:
    ctx.child(asking, id="kid", when_parent_ends=policy)
    return "done"


@pytest.mark.parametrize(("policy", "status"), [("cancel", "cancelled"), ("leave", "waiting")])
def test_children_follow_the_policy_at_the_parents_end(hf: Store, policy: str, status: str):
    assert hf.runs.start(leaving_children, policy, id="r").result() == "done"
    until(hf.runs.get("kid"), status)


def test_a_parent_waits_for_children_without_a_thread(hf: Store):
    run = hf.runs.start(leaving_children, "wait", id="r")
    until(run, "waiting")
    until(hf.runs.get("kid"), "waiting")
    assert not hf._kernel.part(Engine).active
    hf.runs.answer("kid", "approve", {"ok": True, "by": "ada"})
    assert run.result() == "done"
    assert hf.runs.get("kid").status == "completed"


# --- control -------------------------------------------------------------------------------------


@holdfast.run
def swallowing(ctx: Any, how: str) -> Any:
    try:
        answer = ctx.wait("approve")
    except BaseException:
        if how == "goes on":
            add(1, 1)
        if how == "raises":
            raise KeyError("mine") from None
        return "swallowed"
    return answer


@pytest.mark.parametrize("how", ["returns", "goes on", "raises"])
def test_a_swallowed_control_exception_does_not_count_and_is_named(hf: Store, how: str):
    """Rule 9: the block is left all the same, and the line is in a note."""
    run = hf.runs.start(swallowing, how, id="r")
    until(run, "waiting")
    [note] = {note.text for note in run.journal.notes}
    assert note.startswith("a control exception was swallowed at ")
    assert "test_flow.py:" in note
    hf.runs.answer("r", "approve", 5)
    assert run.result() == 5


@holdfast.run
def grouped(ctx: Any) -> Any:
    try:
        return ctx.wait("approve")
    except BaseException as error:
        raise BaseExceptionGroup("several", [error, ValueError("x")]) from None


def test_a_control_exception_in_a_group_is_found(hf: Store):
    run = hf.runs.start(grouped, id="r")
    until(run, "waiting")
    hf.runs.answer("r", "approve", 6)
    assert run.result() == 6


# --- writes in the body --------------------------------------------------------------------------

EDITION = {"by": 1}


@holdfast.run
def writing(ctx: Any) -> None:
    ctx.state.increment("n", EDITION["by"])
    pay(1)
    if EDITION["by"] == 1:
        raise Cut("killed")


def test_a_write_that_became_another_one_diverges(hf: Store, witness: Witness):
    """Rule 3: the first write stands, the changed one is not made."""
    EDITION["by"] = 1
    with pytest.raises(Cut):
        hf.runs.start(writing, id="r").result()
    EDITION["by"] = 2
    with pytest.raises(NeedsAttentionError, match=r"write\.workflow.* at .*test_flow\.py:\d+"):
        hf.runs.resume("r").result()
    assert hf.workflow("r")["n"] == 1


@holdfast.run
def writing_what_is_not_there(ctx: Any) -> int:
    ctx.state.set("n", 5, if_absent=True)
    ctx.state.set("items", list(range(20)), diff=True)
    ctx.state.append("items", 20)
    if pay(1) and EDITION["by"] == 1:
        raise Cut("killed")
    return ctx.state.increment("n")


def test_a_write_that_looks_at_the_state_is_the_same_when_it_is_replayed(
    hf: Store, witness: Witness
):
    """By then the state has what the first writes put there, and nothing is written twice."""
    EDITION["by"] = 1
    with pytest.raises(Cut):
        hf.runs.start(writing_what_is_not_there, id="r").result()
    EDITION["by"] = 2
    hf.runs.resume("r").result()
    assert hf.workflow("r").state == {"n": 6, "items": list(range(21))}


def test_a_step_error_is_the_same_when_it_is_replayed(hf: Store):
    @holdfast.step(effect="pure")
    def bad() -> None:
        raise ValueError("once")

    @holdfast.run(name="tests:twice")
    def twice(ctx: Any) -> list[str]:
        said: list[str] = []
        try:
            bad()
        except StepError as error:
            said.append(str(error))
        said.append(str(ctx.wait("on")))
        return said

    run = hf.runs.start(twice, id="r")
    until(run, "waiting")
    hf.runs.answer("r", "on", 1)
    assert run.result() == ['step "bad" failed: ValueError: once', "1"]


def test_events_keep_labels_and_totals(hf: Store):
    @holdfast.run(name="tests:labelled")
    def labelled(ctx: Any) -> None:
        ctx.step(pay, 1, label="pay the bill", key="bill")
        ctx.parallel(a=ctx.branch(add, 1, 1), label="both")

    run = hf.runs.start(labelled)
    run.result()
    entries = run.journal.entries
    assert entries["pay=bill"].label == "pay the bill"
    assert (entries["parallel"].label, entries["parallel"].total) == ("both", 1)


@holdfast.run
def hungry(ctx: Any) -> list[Any]:
    both = ctx.parallel(a=ctx.branch(next_signal), b=ctx.branch(next_signal))
    return sorted(both.values())


def next_signal(ctx: Any) -> Any:
    return ctx.signal("go")


def test_two_branches_never_take_one_signal(hf: Store):
    run = hf.runs.start(hungry, id="r")
    until(run, "waiting")
    for number in range(2):
        hf.runs.signal("r", "go", number)
    assert run.result() == [0, 1]


def test_runs_in_a_store_of_several_backends(tmp_path: Any, witness: Witness):
    """Runs and their inboxes lie with workflows; a write elsewhere has its key, and no fence."""
    place = f"sqlite:{tmp_path / 'rest.db'}"
    with holdfast.open({"workflow": "memory:", "*": place}) as hf:

        @holdfast.run(name="tests:mixed")
        def mixed(ctx: Any) -> list[Any]:
            hf.team("far").increment("n")
            ctx.state.increment("n")
            pay(1)
            came = ctx.wait("approve")
            return [came, ctx.read(hf.team("far"), "n"), ctx.read(ctx.state, "n")]

        run = hf.runs.start(mixed, id="r")
        until(run, "waiting")
        hf.runs.answer("r", "approve", "yes")
        assert run.result() == ["yes", 1, 1]
        assert hf.workers.marks() == []


@holdfast.run(name="flow:seen")
def seen(ctx: Any) -> None:
    def late(ctx: Any) -> None:
        ctx.signal("late")
        add(1, 2)

    ctx.parallel(
        waits=ctx.branch(lambda ctx: ctx.wait("go")),
        later=ctx.branch(late),
        ends=ctx.branch(add, 1, 1),
    )


@holdfast.run(name="flow:named")
def named(ctx: Any) -> None:
    ctx.child(add_up, 1, when_parent_ends="leave")
    for item in ctx.each(["ada", "7"], by=str):
        add(1, 1)
        if item == "7":
            ctx.parallel(inner=ctx.branch(lambda ctx: ctx.wait("go")), other=ctx.branch(add, 1, 2))


@holdfast.run(name="flow:add_up")
def add_up(ctx: Any, n: int) -> int:
    return ctx.wait("never", timeout=3600, default=n)


def recorded(hf: Store, id: str) -> Any:
    """Returns what another process sees: what the journal has."""
    return blocks.recorded_progress(hf.runs.get(id).journal)


def test_another_process_sees_the_branches_that_are_at_work(hf: Store):
    """OP-6: a branch that is done is not shown, those that wait are."""
    run = hf.runs.start(seen, id="r1")
    wait_until(hf, lambda: run.status == "waiting")
    assert set(recorded(hf, "r1").statements) == {
        "parallel/waits/wait.go",
        "parallel/later/signal.late",
    }
    hf.runs.answer("r1", "go", 1)
    wait_until(hf, lambda: recorded(hf, "r1").statements == ("parallel/later/signal.late",))
    hf.runs.signal("r1", "late")
    run.result()


def test_another_process_sees_the_iteration_of_a_loop_whose_iterations_are_named(hf: Store):
    """OP-5: `by=` gives iterations names; they are counted all the same."""
    run = hf.runs.start(named, id="r1")
    wait_until(hf, lambda: run.status == "waiting")
    assert recorded(hf, "r1").blocks == ("each: iteration 2 of 2",)
    assert recorded(hf, "r1").statements == ("each[7]/parallel/inner/wait.go",)
    hf.runs.answer("r1", "go", 1)
    run.result()


def test_the_command_line_shows_the_named_iteration_of_a_run_of_another_process(tmp_path: Path):
    """OP-5, OP-6: a process that has neither the run's code nor its memory counts it, too."""
    place = str(tmp_path / "s")
    with holdfast.open(place) as hf:
        run = hf.runs.start(named, id="r1")
        wait_until(hf, lambda: run.status == "waiting")
        command = [sys.executable, "-m", "holdfast", "--store", place, "runs", "show", "r1"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "each: iteration 2 of 2" in shown
        assert "each[7]/parallel/inner/wait.go" in shown
        hf.runs.answer("r1", "go", 1)
        run.result()


def wait_until(hf: Store, is_so: Callable[[], bool]) -> None:
    while not is_so():
        hf._log.wait_after(hf._log.position(), timeout_s=0.05)
