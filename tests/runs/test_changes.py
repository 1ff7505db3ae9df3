"""Code that changed under a run: divergence, adopt, fork (rules 2, 12)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    ExistsError,
    NeedsAttentionError,
    NotFoundError,
    RunFailedError,
    Store,
    UsageError,
)
from holdfast.errors import LeaseLostError
from holdfast.runs.engine import Engine
from tests.runs.corpus import add, order, pay, post, small
from tests.runs.cuts import Cut, until
from tests.runs.witness import Witness

BODY: dict[str, Callable[[Any], Any]] = {}


@holdfast.run
def changing(ctx: Any) -> Any:
    return BODY["now"](ctx)


@holdfast.step(effect="pure")
def cut_here() -> None:
    if BODY.get("cuts"):
        raise Cut("killed")


def deploy(hf: Store, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> holdfast.Run:
    """Runs one body until it is killed, then resumes the run with another."""
    BODY["now"] = lambda ctx: (before(ctx), cut_here())[0]
    BODY["cuts"] = lambda ctx: True
    with pytest.raises(Cut):
        hf.runs.start(changing, id="r").result()
    BODY["now"] = after
    del BODY["cuts"]
    return hf.runs.resume("r")


def parked(run: holdfast.Run, message: str) -> NeedsAttentionError:
    with pytest.raises(NeedsAttentionError, match=message) as caught:
        run.result()
    assert run.status == "needs_attention"
    return caught.value


def test_an_act_in_the_middle_of_a_replay_is_never_performed(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: [post("a"), post("b")], lambda ctx: [pay(1), post("a"), post("b")])
    error = parked(run, "expected step post, found step pay")
    assert error.path == "pay"
    assert "test_changes.py:" in str(error)  # the line that asked
    assert witness.acts == {"post a": 1, "post b": 1}


def test_a_mended_program_goes_on(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: post("a"), lambda ctx: [pay(1), post("a")])
    parked(run, "diverges")
    BODY["now"] = lambda ctx: [post("a"), pay(1)]
    assert hf.runs.resume("r").result() == ["posted a", 1]


def test_changed_inputs_of_an_act_park(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: post("a"), lambda ctx: post("A"))
    parked(run, "post with inputs")
    assert witness.acts == {"post a": 1}
    hf.runs.adopt("r")
    assert hf.runs.resume("r").result() == "posted a"  # history is history
    assert witness.acts == {"post a": 1}


def test_changed_inputs_of_a_pure_step_run_it_again(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: [add(1, 1), post("a")], lambda ctx: [add(2, 2), post("a")])
    assert run.result() == [4, "posted a"]
    assert witness.calls == {"add": 2}


def test_an_act_that_is_gone_parks_at_the_end_of_its_block(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: [post("a"), post("b")], lambda ctx: post("a"))
    assert parked(run, "expected step post").path == "post#2"
    hf.runs.adopt("r")
    assert hf.runs.resume("r").result() == "posted a"


def test_a_pure_step_that_is_gone_is_a_note(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: [add(1, 1), post("a")], lambda ctx: [post("a"), post("b")])
    assert run.result() == ["posted a", "posted b"]
    assert "add" in [note.path for note in run.journal.notes]


def test_iterations_that_are_gone_park(hf: Store, witness: Witness):
    run = deploy(
        hf,
        lambda ctx: [post(name) for name in ctx.each(["a", "b"])],
        lambda ctx: [post(name) for name in ctx.each(["a"])],
    )
    assert parked(run, "expected step post").path == "each[1]/post"


def test_another_item_of_a_finished_iteration_parks(hf: Store, witness: Witness):
    def folding(items: list[int]) -> Callable[[Any], Any]:
        def body(ctx: Any, total: int, item: int) -> int:
            pay(item)
            if item == 3:
                cut_here()
            return total + item

        return lambda ctx: ctx.fold("f", items, 0, body)

    run = deploy(hf, folding([1, 2, 3]), folding([1, 5, 3]))
    assert parked(run, "item 1 with digest").path == "fold.f[1]"
    BODY["now"] = folding([1, 2, 3])
    assert hf.runs.resume("r").result() == 6
    assert witness.acts == {"pay 1": 1, "pay 2": 1, "pay 3": 1}


def test_an_adopted_act_is_performed(hf: Store, witness: Witness):
    run = deploy(hf, lambda ctx: post("a"), lambda ctx: [pay(1), post("a")])
    parked(run, "found step pay")
    hf.runs.adopt("r")
    assert hf.runs.get("r").status == "waiting"
    assert hf.runs.resume("r").result() == [1, "posted a"]
    assert witness.acts == {"post a": 1, "pay 1": 1}


def test_acts_in_a_block_in_the_middle_of_a_replay_park(hf: Store, witness: Witness):
    def looped(ctx: Any) -> Any:
        return [[pay(number) for number in ctx.repeat(2)], post("a")]

    for _ in range(2):  # also when the block itself is in the journal
        run = hf.runs.resume("r") if hf.runs.list() else deploy(hf, lambda ctx: post("a"), looped)
        assert parked(run, "found step pay").path == "repeat[0]/pay"
    assert witness.acts == {"post a": 1}


def test_another_const_parks_and_adopting_keeps_the_first(hf: Store, witness: Witness):
    run = deploy(
        hf,
        lambda ctx: (ctx.const("c", 1), post("a")),
        lambda ctx: (ctx.const("c", 2), post("a"))[0],
    )
    parked(run, "const c = 1, found const c = 2")
    hf.runs.adopt("r")
    assert hf.runs.resume("r").result() == 1


def test_adopt_asks_for_a_divergence(hf: Store, witness: Witness):
    BODY["now"] = lambda ctx: post("a")
    hf.runs.start(changing, id="r").result()
    with pytest.raises(NotFoundError, match="not parked"):
        hf.runs.adopt("r")


# --- fork ----------------------------------------------------------------------------------------


def three(ctx: Any) -> list[Any]:
    first = add(1, 1)
    return [first, post(f"n {first}"), pay(first)]


def forked(hf: Store, at: str | int, **how: Any) -> holdfast.Run:
    BODY["now"] = three
    hf.runs.start(changing, id="r").result()
    return hf.runs.fork("r", at, id="f", **how)


def test_a_fork_asks_before_it_acts(hf: Store, witness: Witness):
    """Rule 12: inherited records keep their keys; new executions get new ones."""
    run = forked(hf, "pay")
    assert run.status == "pending"
    assert parked(hf.runs.resume("f"), "before a fork acts").path == "pay"
    hf.runs.adopt("f")
    assert hf.runs.resume("f").result() == [2, "posted n 2", 2]
    assert run.journal.entries["post"].key == "r/post"
    assert run.journal.entries["pay"].key == "f/pay"
    assert witness.acts == {"post n 2": 1, "pay 2": 2}
    assert hf.runs.get("r").status == "completed"


def test_a_live_fork_acts_and_a_dry_one_does_not(hf: Store, witness: Witness):
    forked(hf, "post", effects="dry")
    assert hf.runs.resume("f").result() == [2, None, None]
    assert witness.acts == {"post n 2": 1, "pay 2": 1}
    hf.runs.fork("r", "post", id="g", effects="live")
    assert hf.runs.resume("g").result() == [2, "posted n 2", 2]
    assert witness.acts == {"post n 2": 2, "pay 2": 2}


def test_a_fork_with_an_edited_output(hf: Store, witness: Witness):
    forked(hf, "post", edit={"add": 7}, effects="live")
    assert hf.runs.resume("f").result() == [7, "posted n 7", 7]
    assert hf.runs.get("r").result() == [2, "posted n 2", 2]


def test_a_fork_of_a_fork_by_revision(hf: Store, witness: Witness):
    forked(hf, "pay", effects="live")
    hf.runs.resume("f").result()
    again = hf.runs.fork("f", 3, id="ff", effects="dry")
    assert hf.runs.resume("ff").result() == [2, None, None]
    assert again.journal.entries["add"].revision == 3


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"at": "nowhere"}, NotFoundError),
        ({"at": 0}, NotFoundError),
        ({"at": "pay", "effects": "maybe"}, UsageError),
        ({"at": "pay", "signals": "keep"}, UsageError),
        ({"at": "pay", "children": "eat"}, UsageError),
        ({"at": "add", "edit": {"pay": 1}}, NotFoundError),
    ],
)
def test_a_fork_says_what_it_cannot(
    hf: Store, witness: Witness, how: dict[str, Any], error: type[Exception]
):
    with pytest.raises(error):
        forked(hf, **how)
    assert not [one for one in hf.runs.list() if one.id == "f"]


def test_the_id_of_a_fork_is_new(hf: Store, witness: Witness):
    forked(hf, "pay")
    with pytest.raises(ExistsError):
        hf.runs.fork("r", "pay", id="f")


def test_signals_and_children_of_a_fork(hf: Store, witness: Witness):
    def body(ctx: Any) -> Any:
        kid = ctx.child(small, 4)
        came = ctx.signal("go")
        return [came, ctx.join(kid)]

    BODY["now"] = body
    hf.runs.start(changing, id="r")
    hf.runs.signal("r", "go", 1)
    assert hf.runs.get("r").result() == [1, 8]
    hf.runs.fork("r", "signal.go", id="same", signals="copy", effects="live")
    assert hf.runs.resume("same").result() == [1, 8]
    assert witness.acts == {"post child 4": 1}
    hf.runs.fork("r", "signal.go", id="other", children="drop", effects="live")
    run = hf.runs.resume("other")
    until(run, "waiting")
    hf.runs.signal("other", "go", 2)
    assert run.result() == [2, 8]
    assert witness.acts == {"post child 4": 2}


def test_signals_are_copied_in_the_commit_that_forks(hf: Store, witness: Witness):
    """A crash between the two left a fork that waits for what came long ago."""
    BODY["now"] = lambda ctx: ctx.signal("go")
    hf.runs.start(changing, id="r")
    hf.runs.signal("r", "go", 1)
    hf.runs.get("r").result()
    commits: list[Any] = []
    stop = hf.observe(lambda seen: commits.append(seen) if seen.kind == "commit" else None)
    hf.runs.fork("r", "signal.go", id="same", signals="copy")
    stop()
    assert len(commits) == 1
    assert hf.runs.resume("same").result() == 1


def test_a_run_in_living_hands_is_neither_adopted_nor_settled(hf: Store, witness: Witness):
    def body(ctx: Any) -> Any:
        for attempt in (
            lambda: hf.runs.adopt("r"),
            lambda: hf.runs.settle("r", "x", holdfast.Done()),
        ):
            with pytest.raises(LeaseLostError, match="is running"):
                attempt()
        return order("x").item

    BODY["now"] = body
    assert hf.runs.start(changing, id="r").result() == "x"


def test_start_and_resume_say_what_they_find(hf: Store, witness: Witness):
    """Rule 10."""
    BODY["now"] = lambda ctx: post("a")
    run = hf.runs.start(changing, id="r")
    run.result()
    with pytest.raises(ExistsError, match="exists already"):
        hf.runs.start(changing, id="r")
    assert hf.runs.start(changing, id="r", if_exists="attach").result() == "posted a"
    assert hf.runs.resume("r").result() == "posted a"
    with pytest.raises(NotFoundError):
        hf.runs.resume("nobody")
    with pytest.raises(NotFoundError):
        hf.runs.get("nobody")
    for bad in ({"if_exists": "maybe"}, {"id": ""}, {"id": "x" * 401}, {"id": 7}, {"queue": ""}):
        with pytest.raises(UsageError):
            hf.runs.start(changing, **bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"put @holdfast\.run"):
        hf.runs.start(lambda: 1)
    with pytest.raises(UsageError, match="a status is one of"):
        hf.runs.list(status="lost")
    with pytest.raises(UsageError, match="called like a function"):
        changing()
    assert witness.acts == {"post a": 1}


def test_a_queued_run_waits_for_somebody(hf: Store, witness: Witness):
    BODY["now"] = lambda ctx: post("a")
    run = hf.runs.start(changing, id="r", queue="later")
    assert run.status == "pending"
    assert [one.id for one in hf.runs.list(status="pending")] == ["r"]
    [mark] = hf.workers.claim("run.due")
    assert mark.key == "r"
    assert hf.runs.resume("r").result() == "posted a"
    assert hf.workers.marks("run.due") == []
    assert hf.workers.marks("run") == []


def test_code_that_is_not_here_is_named(hf: Store):
    @holdfast.run(name="tests:gone")
    def gone(ctx: Any) -> None:
        raise Cut("killed")

    with pytest.raises(Cut):
        hf.runs.start(gone, id="r").result()
    from holdfast.runs import define

    del define._runs["tests:gone"]  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotFoundError, match='no run "tests:gone"'):
        hf.runs.resume("r")


def test_a_failed_run_tells_why(hf: Store):
    def failing(ctx: Any) -> None:
        raise KeyError("\ud800 odd")

    BODY["now"] = failing
    with pytest.raises(RunFailedError, match="KeyError"):
        hf.runs.start(changing).result()


# --- the code of a run is recorded ----------------------------------------------------------------

SOURCE = '''
import holdfast

@holdfast.run(name="changes:recorded")
def recorded(ctx):
    """{comment}"""
    ctx.wait("go")
    return {value}
'''


def loaded(path: Path, comment: str, value: int) -> Any:
    """Defines the run from a file, as another version of a program does."""
    file = path / f"recorded_{comment}_{value}.py"
    file.write_text(SOURCE.format(comment=comment, value=value))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recorded


def test_code_that_changed_is_noted_and_parks_nothing(hf: Store, tmp_path: Path):
    """Each owner records the thumbprint of the run's code: rule 2."""
    run = hf.runs.start(loaded(tmp_path, "first", 1), id="r")
    rest_until(hf, run, "waiting")
    for comment, value in (("other", 1), ("other", 2)):
        loaded(tmp_path, comment, value)
        hf._kernel.part(Engine).supervisor.forget("r")
        hf.runs.resume("r")
        rest_until(hf, run, "waiting")
        notes = [note.text for note in run.journal.notes]
        changed = "the code of the run has changed since it was executed before"
        assert notes == ([] if value == 1 else [changed]), "a docstring is no code"
    codes = [claim.code for claim in run.journal.claims]
    assert codes[0] == codes[1] != codes[2]
    assert None not in codes
    hf.runs.answer("r", "go", 1)
    assert run.result() == 2


def test_a_run_without_source_records_no_code(hf: Store):
    space: dict[str, Any] = {}
    exec("import holdfast\n@holdfast.run(name='changes:typed')\ndef typed(ctx): return 1", space)
    run = hf.runs.start(space["typed"], id="r")
    assert run.result() == 1
    assert [claim.code for claim in run.journal.claims] == [None]


def rest_until(hf: Store, run: Any, status: str) -> None:
    while run.status != status or "r" in hf._kernel.part(Engine).active:
        hf._log.wait_after(hf._log.position(), timeout_s=0.02)
