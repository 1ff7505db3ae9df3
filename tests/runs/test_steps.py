"""Steps: classes, values, failures, retries, what a crash leaves (rules 1, 5, 7, 8, 11)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

import holdfast
from holdfast import (
    Done,
    NeedsAttentionError,
    NotDone,
    Retry,
    RunFailedError,
    Settings,
    StepError,
    Store,
    UsageError,
)
from holdfast.backends.protocol import START
from holdfast.runs.engine import Engine
from tests.runs.corpus import add, pay, post
from tests.runs.cuts import Cut, Cutting, until
from tests.runs.witness import Witness, was_done


@dataclass
class Point:
    x: int
    y: int


@holdfast.step(effect="pure")
def point(x: int) -> Point:
    return Point(x, x + 1)


@holdfast.step(effect="pure")
def points() -> list[Point]:
    return [Point(1, 2)]


@holdfast.step(effect="pure")
def pair() -> Any:
    return (1, 2)


@holdfast.run
def values(ctx: Any) -> list[Any]:
    one, many, plain = point(1), points(), pair()
    return [isinstance(one, Point), isinstance(many[0], Point), type(plain).__name__]


def test_live_equals_replay(hf: Store):
    """Rule 1: a value is what was stored, rebuilt as annotated, also the first time."""
    assert hf.runs.start(values).result() == [True, True, "list"]


@holdfast.step(effect="effect")
def unstorable(ctx: Any) -> Any:
    WITNESSED.append(ctx.key)
    return object()


WITNESSED: list[str] = []


@holdfast.run
def losing(ctx: Any) -> list[str]:
    said: list[str] = []
    for _ in range(2):
        try:
            ctx.step(unstorable, key="once" if not said else "twice")
        except StepError as error:
            said.append(error.kind)
    return said


def test_an_effect_whose_result_cannot_be_stored_is_done_and_never_repeated(hf: Store):
    WITNESSED.clear()
    run = hf.runs.start(losing, id="r")
    assert run.result() == ["ValueDomainError", "ValueDomainError"]
    assert len(WITNESSED) == 2
    entry = run.journal.entries["unstorable=once"]
    assert entry.state == "done"
    assert entry.lost


@holdfast.step(effect="pure")
def raising(data: list[int]) -> None:
    error = ValueError("bad")
    error.data = data  # type: ignore[attr-defined]
    raise error


@holdfast.run
def catching(ctx: Any) -> list[Any]:
    try:
        raising([1])
    except StepError as error:
        cause = type(error.__cause__).__name__
        return [error.kind, error.text, error.data, error.path, error.outcome, cause]
    return []


def test_a_failed_step_raises_a_step_error_with_its_data(hf: Store):
    assert hf.runs.start(catching).result() == [
        "ValueError",
        "bad",
        [1],
        "raising",
        "unknown",
        "ValueError",
    ]


@holdfast.run
def uncaught(ctx: Any) -> None:
    raising([1])


def test_an_uncaught_step_error_fails_the_run(hf: Store):
    run = hf.runs.start(uncaught)
    with pytest.raises(RunFailedError, match="ValueError: bad") as caught:
        run.result()
    assert caught.value.data == [1]
    assert run.status == "failed"


# --- classes -------------------------------------------------------------------------------------


def test_there_is_no_default_class():
    with pytest.raises(UsageError, match="effect is one of"):
        holdfast.step(lambda: None)
    with pytest.raises(UsageError, match="effect is one of"):
        holdfast.step(effect="whatever")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="verify belongs"):
        holdfast.step(effect="pure", verify=was_done)


def test_outside_a_run_acts_are_refused_unless_asked_for(witness: Witness):
    """Rule 5: a lost context would be lost durability."""
    assert add(1, 2) == 3
    assert post.outside("x") == "posted x"
    assert witness.acts == {"post x": 1}
    with pytest.raises(UsageError, match=r"post\.outside"):
        post("x")


@holdfast.step(effect="effect")
def acting_inside(ctx: Any) -> None:
    post("inner")


@holdfast.run
def act_in_act(ctx: Any) -> Any:
    try:
        acting_inside()
    except StepError as error:
        return error.kind


def test_an_act_inside_a_step_is_outside_the_journal(hf: Store, witness: Witness):
    assert hf.runs.start(act_in_act).result() == "UsageError"
    assert not witness.acts


@holdfast.step(effect="pure", ignore=("client",))
def with_client(client: object, n: int) -> int:
    return n


@holdfast.step(effect="pure")
def without_ignore(client: object) -> None: ...


@holdfast.run
def ignoring(ctx: Any) -> int:
    return with_client(threading.Lock(), 3)


@holdfast.run
def not_ignoring(ctx: Any) -> None:
    without_ignore(threading.Lock())


def test_inputs_are_values_unless_ignored(hf: Store):
    assert hf.runs.start(ignoring).result() == 3
    with pytest.raises(RunFailedError, match="ValueDomainError"):
        hf.runs.start(not_ignoring).result()


# --- what a crash leaves -------------------------------------------------------------------------


@holdfast.run
def one_post(ctx: Any) -> str:
    return post("x")


@holdfast.step(effect="effect")
def unverified(ctx: Any) -> str:
    raise Cut("killed in the middle of the act")


@holdfast.run
def one_unverified(ctx: Any) -> str:
    return unverified()


def crash(hf: Store, function: Any, id: str = "r") -> None:
    with pytest.raises(Cut):
        hf.runs.start(function, id=id).result()
    assert hf.runs.get(id).status == "running"


def test_an_effect_without_a_verifier_is_uncertain_and_settled_by_a_person(hf: Store):
    """BOOT-43: verify, do not infer."""
    crash(hf, one_unverified)
    with pytest.raises(NeedsAttentionError, match="it has no verifier") as parked:
        hf.runs.resume("r").result()
    assert parked.value.path == "unverified"
    assert hf.runs.get("r").status == "needs_attention"
    assert [one.id for one in hf.runs.list(status="needs_attention")] == ["r"]
    hf.runs.settle("r", "unverified", Done("as seen"))
    assert hf.runs.get("r").status == "waiting"
    assert hf.runs.resume("r").result() == "as seen"


def test_a_person_may_say_that_it_was_not_done(hf: Store):
    crash(hf, one_unverified)
    with pytest.raises(NeedsAttentionError):
        hf.runs.resume("r").result()
    hf.runs.settle("r", "unverified", NotDone())
    with pytest.raises(Cut):  # so it is done again, with the same key
        hf.runs.resume("r").result()


def test_settling_asks_for_an_uncertain_act(hf: Store):
    hf.runs.start(one_post, id="r").result()
    with pytest.raises(holdfast.NotFoundError, match="no uncertain act"):
        hf.runs.settle("r", "post", Done())
    with pytest.raises(UsageError, match="a verdict is"):
        hf.runs.settle("r", "post", "done")  # type: ignore[arg-type]


class InTheAct:
    """Kills the witness's next act, before or after it is done."""

    def __init__(self, witness: Witness, *, after: bool) -> None:
        self._act = witness.act
        self._after = after
        witness.act = self.act  # type: ignore[method-assign]
        self._witness = witness

    def act(self, key: str, what: str, output: Any = None) -> Any:
        if self._after:
            self._act(key, what, output)
        self._witness.act = self._act  # type: ignore[method-assign]
        raise Cut("killed in the act")


@pytest.mark.parametrize("after", [True, False])
def test_the_verifier_decides_what_becomes_of_an_act_cut_short(
    hf: Store, witness: Witness, after: bool
):
    InTheAct(witness, after=after)
    crash(hf, one_post)
    assert hf.runs.resume("r").result() == "posted x"
    assert witness.acts == {"post x": 1}


def test_recover_judges_the_acts_of_dead_runs(hf: Store, witness: Witness):
    InTheAct(witness, after=True)
    crash(hf, one_post)
    report = hf.recover()
    found = [(one.kind, one.id, one.owner, one.verdict, one.did) for one in report.acts]
    assert found == [("step", "post", "run/r", "done", "closed")]
    assert hf.recover().acts == []
    assert hf.runs.resume("r").result() == "posted x"
    assert witness.acts == {"post x": 1}


def test_recover_leaves_what_nobody_can_say(hf: Store, witness: Witness):
    InTheAct(witness, after=True)
    crash(hf, one_post)
    witness.is_blind = True
    assert [one.text for one in hf.recover().open] == ["the witness is blind"]
    witness.is_blind = False
    assert hf.runs.resume("r").result() == "posted x"


# --- retries -------------------------------------------------------------------------------------


class Transient(Exception):
    """Worth another try."""


@holdfast.step(effect="effect", retry=Retry(3, wait_s=0.001))
def times_out(ctx: Any) -> None:
    WITNESSED.append(ctx.key)
    raise TimeoutError("no answer")


@holdfast.run
def timing_out(ctx: Any) -> list[str]:
    try:
        times_out()
    except StepError as error:
        return [error.kind, error.outcome]
    return []


def test_a_timeout_proves_nothing(hf: Store):
    """Rule 8: an effect is not tried again unless something says that it was not done."""
    WITNESSED.clear()
    assert hf.runs.start(timing_out).result() == ["TimeoutError", "unknown"]
    assert len(WITNESSED) == 1


@holdfast.step(effect="effect", verify=was_done, retry=Retry(4, wait_s=0.001))
def verified(ctx: Any, fails: int, done: bool) -> str:
    WITNESSED.append(f"{ctx.attempt}")
    if done:
        was_done.__globals__["WITNESS"].act(ctx.key, "verified", "by the verifier")
    if ctx.attempt <= fails:
        raise TimeoutError("no answer")
    return "by the step"


@holdfast.run
def verifying(ctx: Any, fails: int, done: bool) -> str:
    return verified(fails, done)


@pytest.mark.parametrize(
    ("done", "result", "attempts"),
    [(False, "by the step", ["1", "2", "3"]), (True, "by the verifier", ["1"])],
)
def test_a_verifier_lets_an_effect_be_tried_again(
    hf: Store, witness: Witness, done: bool, result: str, attempts: list[str]
):
    WITNESSED.clear()
    assert hf.runs.start(verifying, 2, done).result() == result
    assert attempts == WITNESSED


@holdfast.step(effect="pure", retry=Retry(3, wait_s=0.001, on=(Transient,)))
def picky(kind: str) -> str:
    WITNESSED.append(kind)
    raise Transient("again") if kind == "transient" else ValueError("never")


@holdfast.run
def picking(ctx: Any, kind: str) -> str:
    try:
        return picky(kind)
    except StepError as error:
        return error.kind


def test_only_the_listed_exceptions_are_tried_again(hf: Store):
    WITNESSED.clear()
    assert hf.runs.start(picking, "transient").result() == "Transient"
    assert hf.runs.start(picking, "other").result() == "ValueError"
    assert WITNESSED == ["transient"] * 3 + ["other"]


@holdfast.step(effect="pure", retry=Retry(2, wait_s=3600))
def patient() -> str:
    if not WITNESSED:
        WITNESSED.append("failed")
        raise Transient("come back in an hour")
    return "at last"


@holdfast.run
def waiting_long(ctx: Any) -> str:
    return patient()


def test_a_long_back_off_holds_no_thread_and_outlives_the_process():
    """OP-27: the attempt and its time are in the journal."""
    from holdfast.testing import FakeClock

    WITNESSED.clear()
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        run = hf.runs.start(waiting_long, id="r")
        until(run, "waiting")
        assert not hf._kernel.part(Engine).active
        entry = run.journal.entries["patient"]
        assert (entry.attempt, entry.retry_at) == (1, clock.now_us() + 3_600_000_000)
        clock.advance(3601)
        assert run.result() == "at last"
        assert run.journal.entries["patient"].attempt == 2


# --- durability ----------------------------------------------------------------------------------


@holdfast.run
def chain(ctx: Any, n: int) -> None:
    for number in range(n):
        add(number, 1)
        pay(number)


def test_a_chain_of_acts_costs_one_commit_each(hf: Store, witness: Witness):
    """Rule 7: the outcome of one act rides in the commit of the next intent."""
    hf._kernel.part(Engine).supervisor.flush_s = None
    hf._kernel.leases.register()
    cutting = Cutting(hf._log._backend)
    hf._log._backend = cutting  # type: ignore[assignment]
    hf.runs.start(chain, 10).result()
    assert cutting.commits == 1 + 10 + 1  # created, the intents, the end


@holdfast.run
def waiting_for_a_look(ctx: Any) -> int:
    add(1, 1)
    LOOKED.wait(300)
    return 1


LOOKED = threading.Event()


def test_what_nothing_takes_along_is_written_soon(hf: Store):
    """Rule 7: "and soon in any case"."""
    LOOKED.clear()
    run = hf.runs.start(waiting_for_a_look, id="r")
    try:
        for change in hf.follow(as_events=True, timeout_s=120, after=START):
            if change.stream == "run/r" and change.type == "run.done":
                break
        else:
            raise AssertionError("the record of a pure step was not written")
    finally:
        LOOKED.set()
    assert run.result() == 1
