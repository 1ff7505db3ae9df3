"""Sessions, decisions and summaries as steps of runs (OP-15, OP-27; BOOT-32)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Done, NeedsAttentionError, Retry, RunFailedError, Store, aio
from holdfast.agents import Answer, Call, Command, NotSentError, Question, Scripted
from holdfast.runs.engine import Engine
from tests.runs.cuts import until

AGAIN = Retry(attempts=3, wait_s=0.0)


class Counting:
    """An executor that counts what it is asked, and fails as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.calls: list[Call] = []
        self.questions: list[Question] = []
        self.errors = list(errors)

    def answer(self, call: Call, /) -> Answer:
        self.calls.append(call)
        if self.errors:
            raise self.errors.pop(0)
        return Answer(f"re: {call.prompt}", memory=f"{call.memory or ''}+{call.prompt}")

    def decide(self, question: Question, /) -> str:
        self.questions.append(question)
        return "maybe" if question.text == "odd" else "Yes."

    def summarise(self, text: str, limit: int, /) -> str:
        return text[:limit]


@holdfast.run(name="agents-asking")
def asking(ctx: Any, effect: str = "idempotent", tries: int = 1) -> Any:
    answer = ctx.session(
        "hello",
        system="be brief",
        context={"a": "1"},
        model="opus",
        effect=effect,
        retry=Retry(attempts=tries, wait_s=0.0),
    )
    choice = ctx.decide("good?", context=[("a", "1")])
    return [answer.text, choice, ctx.summarise("x" * 50, limit=10)]


def test_what_was_asked_and_answered_is_in_the_journal(hf: Store):
    """BOOT-32: the record of a call is its input and its output."""
    hf.runs.use_executor(Scripted({}))
    run = hf.runs.start(asking)
    assert run.result() == ["ok: hello", "yes", "x" * 10]
    entry = run.journal.entries["session"]
    assert hf._kernel.part(Engine).load(entry.inputs) == {
        "prompt": "hello",
        "system": "be brief",
        "context": [["a", "1"]],
        "model": "opus",
    }
    value = hf._kernel.part(Engine).load(entry.value)
    assert value["text"] == "ok: hello"
    assert value["model"] == "opus"
    assert value["usage"] == {"input": 5, "output": 9}
    effects = {path: entry.effect for path, entry in run.journal.entries.items()}
    assert effects == {"session": "idempotent", "decide": "idempotent", "summarise": "read"}


def test_a_call_knows_its_place_and_its_attempt(hf: Store):
    agent = Counting(RuntimeError("first"), NotSentError("second"))
    hf.runs.use_executor(agent)
    run = hf.runs.start(asking, tries=3)
    assert run.result()[0] == "re: hello"
    assert [(call.place, call.attempt) for call in agent.calls] == [
        ("session", 1),
        ("session", 2),
        ("session", 3),
    ]
    assert {call.key for call in agent.calls} == {f"{run.id}/session"}
    assert agent.questions[0].context == (("a", "1"),)


def test_a_session_of_the_class_effect_is_repeated_only_if_nothing_was_sent(hf: Store):
    agent = Counting(NotSentError("no line"))
    hf.runs.use_executor(agent)
    assert hf.runs.start(asking, "effect", 2).result()[0] == "re: hello"
    assert len(agent.calls) == 2


def test_a_session_of_the_class_effect_parks_after_any_other_error(hf: Store):
    agent = Counting(RuntimeError("the line broke"))
    hf.runs.use_executor(agent)
    run = hf.runs.start(asking, "effect", 5)
    with pytest.raises(NeedsAttentionError, match="the line broke"):
        run.result()
    until(run, "needs_attention")
    assert len(agent.calls) == 1
    with pytest.raises(NeedsAttentionError) as parked:
        hf.runs.resume(run.id).result()
    assert parked.value.path == "session"
    until(run, "needs_attention")
    hf.runs.settle(run.id, "session", Done({"text": "she said yes"}))
    assert hf.runs.resume(run.id).result()[0] == "she said yes"
    assert len(agent.calls) == 1


def test_a_decision_that_is_no_option_is_asked_for_once_more(hf: Store):
    agent = Counting()
    hf.runs.use_executor(agent)

    @holdfast.run(name="agents-odd")
    def odd(ctx: Any) -> str:
        return ctx.decide("odd")

    with pytest.raises(RunFailedError, match="maybe"):
        hf.runs.start(odd).result()
    assert [question.attempt for question in agent.questions] == [1, 2]


def test_without_an_executor_a_session_says_how_to_choose_one(hf: Store):
    with pytest.raises(RunFailedError, match="nobody answers"):
        hf.runs.start(asking).result()


@holdfast.run(name="agents-remembering")
def remembering(ctx: Any, prompt: str) -> str:
    scope = ctx._engine.scopes.scope("global")
    before = ctx.read(scope, ("agents", "critic"))
    answer = ctx.session(prompt, memory=before, remember=(scope, ("agents", "critic")))
    return answer.text


def test_memory_is_written_in_the_commit_that_closes_the_session(hf: Store):
    hf.runs.use_executor(Counting())
    run = hf.runs.start(remembering, "one")
    run.result()
    assert hf.global_()["agents"]["critic"] == "+one"
    hf.runs.start(remembering, "two").result()
    assert hf.global_()["agents"]["critic"] == "+one+two"
    done = [e for e in hf.events() if e.stream == f"run/{run.id}" and e.type == "run.done"]
    [written] = [e for e in hf.events() if e.stream == "global"][:1]
    assert written.position in [e.position for e in done]


# --- commands -------------------------------------------------------------------------------------

ECHO = [sys.executable, "-c", "import sys; t = sys.stdin.read(); print('said:', t)"]
YES = [sys.executable, "-c", "print('yes')"]


def test_a_command_is_one_process_step(hf: Store):
    hf.runs.use_executor(Command(ECHO, decide=YES))
    run = hf.runs.start(asking)
    text, choice, summary = run.result()
    assert text == "said: be brief\n\na:\n1\n\nhello"
    assert choice == "yes"
    assert summary == "said: Summ"
    entry = run.journal.entries["session"]
    assert (entry.kind, entry.effect, entry.state) == ("step", "idempotent", "done")
    assert "hello" in hf._kernel.part(Engine).load(entry.inputs)["stdin"]


def test_a_command_that_cannot_be_started_was_not_sent(hf: Store, tmp_path: Path):
    hf.runs.use_executor(Command([str(tmp_path / "absent")]))
    run = hf.runs.start(asking, "effect")
    with pytest.raises(RunFailedError) as failed:
        run.result()
    assert failed.value.kind == "NotSentError"


def test_a_command_of_the_class_effect_that_fails_parks(hf: Store):
    hf.runs.use_executor(Command([sys.executable, "-c", "raise SystemExit(3)"]))
    with pytest.raises(NeedsAttentionError, match="ended with 3"):
        hf.runs.start(asking, "effect").result()


# --- asyncio --------------------------------------------------------------------------------------


class Awaited:
    """An executor whose methods are awaited."""

    async def answer(self, call: Call, /) -> Answer:
        await asyncio.sleep(0)
        if call.prompt == "break":
            raise RuntimeError("broken")
        return Answer(f"later: {call.prompt}")

    async def decide(self, question: Question, /) -> str:
        return "no"

    async def summarise(self, text: str, limit: int, /) -> str:
        return text[:limit]


@holdfast.run(name="agents-async")
async def asking_async(ctx: Any, prompt: str = "a", effect: str = "idempotent") -> Any:
    first, second = await asyncio.gather(
        ctx.session(prompt, effect=effect), ctx.session("b", effect=effect)
    )
    choice = await ctx.decide("good?")
    return [first.text, second.text, choice, await ctx.summarise("xyz", limit=2)]


@pytest.mark.parametrize(
    ("executor", "first", "choice"),
    [(Scripted({}), "ok: a", "yes"), (Awaited(), "later: a", "no"), (Command(YES), "yes", "yes")],
)
def test_sessions_in_async_runs(url: str, executor: Any, first: str, choice: str):
    async def main() -> Any:
        async with await aio.open(url) as hf:
            hf.runs.use_executor(executor)
            run = await hf.runs.start(asking_async)
            return await run.result()

    found = asyncio.run(main())
    assert found[0] == first
    assert found[2] == choice


def test_an_awaited_session_of_the_class_effect_parks_too():
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            hf.runs.use_executor(Awaited())
            run = await hf.runs.start(asking_async, "break", "effect")
            with pytest.raises(NeedsAttentionError, match="broken"):
                await run.result()

    asyncio.run(main())


def test_an_awaited_executor_in_a_sync_run_is_refused():
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Awaited())
        with pytest.raises(RunFailedError, match="async"):
            hf.runs.start(asking).result()


def test_context_has_names_and_texts():
    @holdfast.run(name="agents-context")
    def wrong(ctx: Any) -> Any:
        return ctx.session("x", context=[("a", 1)])

    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted({}))
        with pytest.raises(RunFailedError, match="names and texts"):
            hf.runs.start(wrong).result()


def test_a_session_is_idempotent_or_effect():
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted({}))
        with pytest.raises(RunFailedError, match="idempotent or effect"):
            hf.runs.start(asking, "pure").result()
