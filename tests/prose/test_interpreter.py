"""What programs do when they run: names, arms, memory, context, edits, errors (OP-8..OP-28)."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NeedsAttentionError, RunFailedError, Store, UsageError
from holdfast.agents import Answer, Call, Scripted
from holdfast.errors import NotFoundError, ProgramError, RunCancelledError
from holdfast.prose.program import gather, gather_text, put_edited, start, stored_of
from holdfast.prose.settings import Settings
from holdfast.prose.variables import variables_of
from holdfast.runs.engine import Engine
from tests.runs.cuts import until

FAST = Settings(backoff_scale=0.0)


class Listening(Scripted):
    """A script that remembers what it was asked."""

    def __init__(self, script: dict[str, Any] | None = None) -> None:
        super().__init__(script or {})
        self.calls: list[Call] = []
        self.contexts: dict[str, Any] = {}

    def answer(self, call: Call, /) -> Answer:
        self.calls.append(call)
        return super().answer(call)

    def decide(self, question: Any, /) -> str:
        self.contexts[question.text] = question.context
        return super().decide(question)


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as store:
        yield store


def given(hf: Store, text: str, script: Any = None, **how: Any) -> tuple[Any, Listening]:
    """Runs a program to its end; returns its result, and who was asked."""
    agent = Listening(script)
    hf.runs.use_executor(agent)
    how.setdefault("settings", FAST)
    run = start(hf, gather_text(text), how.pop("inputs", {}), id="p", **how)
    return run.result(timeout=60), agent


def failed(hf: Store, text: str, script: Any = None) -> RunFailedError:
    with pytest.raises(RunFailedError) as found:
        given(hf, text, script)
    return found.value


# --- names ----------------------------------------------------------------------------------------


def test_a_let_may_change_and_a_const_may_not(hf: Store):
    """OP-8, OP-9: reassignment of a const is an error before anything is committed."""
    assert given(hf, 'let x = session "a"\nx = session "b"\noutput x\n')[0] == "ok: b"
    with pytest.raises(ProgramError):
        gather_text('const y = session "a"\ny = session "b"\n')
    assert [one.id for one in hf.runs.list()] == ["p"]


def test_variables_are_read_from_the_journal(hf: Store):
    given(hf, "let x = 1\nif true:\n  let y = 2\nrepeat 2:\n  x = x + 1\n  let z = 3\n")
    bound = variables_of(hf.runs.get("p").journal)
    values = {place: hf._kernel.part(Engine).load(one.entry.value) for place, one in bound.items()}
    assert values == {
        ("", "x"): 3,
        ("", "y"): 2,
        ("repeat[0]", "z"): 3,
        ("repeat[1]", "z"): 3,
    }


def test_a_name_of_an_arm_that_did_not_run_is_null(hf: Store):
    text = 'if false:\n  let x = 1\nelse:\n  let y = 2\nlet z = "{x} {y}"\noutput [x, y, z]\n'
    assert given(hf, text)[0] == [None, 2, "null 2"]


def test_a_losing_branch_leaves_null(hf: Store):
    script = {"sessions": [{"match": "slow", "answer": "s", "delay": 0.2}]}
    text = 'parallel ("first"):\n  a = session "slow"\n  b = session "fast"\noutput [a, b]\n'
    assert given(hf, text, script)[0] == [None, "ok: fast"]


def test_iterations_say_which_of_how_many(hf: Store):
    """OP-19: `repeat 3 as i` says "iteration 2 of 3", also from the journal."""
    hf.runs.use_executor(Scripted({}))
    text = 'repeat 3 as i:\n  session "n {i}"\n  if i == 1:\n    input go: "Go?"\n'
    run = start(hf, gather_text(text), id="p")
    until(run, "waiting")
    assert run.progress.blocks == ("repeat: iteration 2 of 3",)
    hf.runs.answer("p", "go", "yes")
    assert len(run.result()) == 3


def test_a_long_text_keeps_names_that_are_not_bound(hf: Store):
    text = 'let x = 1\nsession """{x} {y} {z.a}"""\n'
    assert given(hf, text)[0] == "ok: 1 {y} {z.a}"


# --- sessions -------------------------------------------------------------------------------------


def test_settings_of_a_session_come_before_those_of_its_agent(hf: Store):
    text = (
        'agent a:\n  model: opus\n  prompt: "sys"\n  skills: ["s"]\n'
        '  permissions:\n    read: ["*.md"]\n    bash: deny\n'
        'session: a\nsession: a\n  prompt: "own"\n  model: haiku\n'
        'session "label"\n  prompt: "asked"\n'
    )
    _, agent = given(hf, text)
    assert [(c.prompt, c.system, c.model) for c in agent.calls] == [
        ("sys", None, "opus"),
        ("own", "sys", "haiku"),
        ("asked", None, None),
    ]
    assert agent.calls[0].skills == ("s",)
    assert agent.calls[0].permissions == {"read": ["*.md"], "bash": "deny"}
    assert hf.runs.get("p").journal.entries["session#3"].label == "label"


def test_a_resume_without_memory_is_an_error(hf: Store):
    text = 'agent a:\n  model: opus\n  prompt: "p"\n  persist: true\nresume: a\n  prompt: "q"\n'
    error = failed(hf, text)
    assert error.kind == "NoMemoryError"
    assert error.data == {"line": 5}


def test_memory_of_the_user_outlives_the_run(hf: Store):
    first = 'agent a:\n  model: opus\n  prompt: "p"\n  persist: user\nsession: a\n'
    given(hf, first)
    agent = Listening()
    hf.runs.use_executor(agent)
    again = first.replace("session: a", 'resume: a\n  prompt: "q"')
    start(hf, gather_text(again), id="later").result(timeout=60)
    assert agent.calls[0].memory == "asked: p\nanswered: ok: p"


def test_context_passes_names_and_values_in_order(hf: Store):
    """OP-15, OP-16: what was answered long before can be passed to any later session."""
    text = (
        'let a = session "1"\nlet b = session "2"\nagent c:\n  model: opus\n  prompt: "3"\n'
        'session: c\nrepeat 5:\n  session "x"\n'
        'session "use"\n  context: [b, a, c]\nsession "none"\n  context: []\n'
        'session "one"\n  context: a\nsession "named"\n  context:\n    first: a\n    n: 1\n'
    )
    _, agent = given(hf, text)
    contexts = {call.prompt: call.context for call in agent.calls}
    assert contexts["use"] == (("b", "ok: 2"), ("a", "ok: 1"), ("c", "ok: 3"))
    assert contexts["none"] == ()
    assert contexts["one"] == (("a", "ok: 1"),)
    assert contexts["named"] == (("first", "ok: 1"), ("n", "1"))


def test_an_arrow_hands_its_value_on(hf: Store):
    _, agent = given(hf, 'session "a" -> session "b"\nsession "c"\n')
    assert [call.context for call in agent.calls] == [(), (("input", "ok: a"),), ()]


def test_a_reduce_hands_its_accumulator_on(hf: Store):
    """OP-20."""
    text = '["a", "b", "c"] | reduce(acc, x):\n  session "with {x}"\n    context: acc\n'
    _, agent = given(hf, text)
    assert [call.context for call in agent.calls] == [(("acc", "a"),), (("acc", "ok: with b"),)]


def test_small_values_pass_as_they_are_and_large_ones_do_not(hf: Store):
    """OP-17: verbatim, then summarised, then by reference; each limit can be set."""
    script = {
        "sessions": [
            {"match": "small", "answer": "s" * 10},
            {"match": "long", "answer": "l" * 11},
            {"match": "huge", "answer": "h" * 21},
        ]
    }
    text = (
        'let a = session "small"\nlet b = session "long"\nlet c = session "huge"\n'
        'session "use"\n  context: [a, b, c]\nsession "again"\n  context: [b]\n'
    )
    settings = Settings(verbatim_max=10, summarised_max=20)
    _, agent = given(hf, text, script, settings=settings)
    use = dict(agent.calls[3].context)
    assert use["a"] == "s" * 10
    assert use["b"] == "l" * 10
    assert use["c"].startswith("(21 characters, digest ")
    assert use["c"].endswith("holdfast prose show p --value c)")
    entries = hf.runs.get("p").journal.entries
    assert [path for path in entries if path.startswith("summarise")] == ["summarise"]
    assert entries["summarise"].effect == "read"


def test_a_decision_is_told_what_is_bound_newest_last(hf: Store):
    text = 'let a = 1\nlet b = "x"\na = 2\nif **ok {b}**:\n  session "y"\n'
    _, agent = given(hf, text)
    assert agent.contexts == {"ok x": (("a", "2"), ("b", "x"))}


def test_retries_are_attempts_of_one_step(hf: Store):
    """OP-27: which attempt of how many, also in the journal."""
    script = {"sessions": [{"match": "f", "answer": [{"fail": "1"}, "ok"]}]}
    assert given(hf, 'session "f" (retry: 2, backoff: exponential)\n', script)[0] == "ok"
    entry = hf.runs.get("p").journal.entries["session"]
    assert (entry.attempt, entry.attempts) == (2, 3)


def test_sessions_of_the_class_effect_park(hf: Store):
    hf.runs.use_executor(Scripted({"sessions": [{"match": "", "answer": {"fail": "broken"}}]}))
    run = start(hf, gather_text('session "a"\n'), id="p", settings=Settings(sessions="effect"))
    with pytest.raises(NeedsAttentionError, match="broken"):
        run.result(timeout=60)


# --- blocks and errors ----------------------------------------------------------------------------


def test_recursion_ends_with_the_chain(hf: Store):
    text = "block a(n) (max_depth: 3):\n  do a(n + 1)\ndo a(0)\n"
    error = failed(hf, text)
    assert error.kind == "RecursionError"
    assert "a -> a -> a -> a" in error.text


def test_a_hundred_blocks_may_call_each_other(hf: Store):
    text = 'block a(n):\n  if n < 99:\n    output do a(n + 1)\n  output "end"\ndo a(0)\n'
    assert given(hf, text)[0] == "end"


def test_an_error_has_its_line(hf: Store):
    assert failed(hf, 'let x = session "a"\nlet y = x.b\n').data == {"line": 2}
    assert "x.b" in failed_text('let x = session "a"\nlet y = x.b\n')


def failed_text(text: str) -> str:
    with holdfast.open("memory:") as hf:
        return failed(hf, text).text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('let x = "a" - 1\n', "TypeError"),
        ("let x = 1 / 0\n", "ZeroDivisionError"),
        ("let o = {a: 1}\nlet y = o.b\n", "KeyError"),
        ("let o = [1]\nlet y = o[3]\n", "IndexError"),
        ('let n = "many"\nrepeat n:\n  session "x"\n', "TypeError"),
        ('throw "no"\n', "Thrown"),
        ("let n = 1\nfor x in n:\n  x\n", "TypeError"),
    ],
)
def test_what_does_not_fit_fails_with_a_kind(hf: Store, text: str, kind: str):
    assert failed(hf, text).kind == kind


def test_finally_runs_when_nothing_is_caught(hf: Store):
    agent = Listening({"sessions": [{"match": "bad", "answer": {"fail": "no"}}]})
    hf.runs.use_executor(agent)
    text = 'try:\n  session "bad"\nfinally:\n  session "tidy"\n'
    with pytest.raises(RunFailedError, match="no"):
        start(hf, gather_text(text), id="p").result(timeout=60)
    assert [call.prompt for call in agent.calls] == ["bad", "tidy"]


class Held(Listening):
    """A script that is held in the first session of that text."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self._held = held
        self.begun, self.go_on = threading.Event(), threading.Event()

    def answer(self, call: Call, /) -> Answer:
        if call.prompt == self._held and not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(60)
        if call.prompt == "quick":
            assert self.begun.wait(60)
        return super().answer(call)

    @property
    def prompts(self) -> list[str]:
        return [call.prompt for call in self.calls]


IN_PARTS = """let x = ""
try:
  session "one"
  try:
    session "two"
    session "never"
  catch:
    session "never"
  finally:
    x = session "tidy inner"
    throw "counts for nothing"
finally:
  session "tidy {x}"
session "never"
"""


def test_finally_runs_after_a_cancel_between_operations(hf: Store):
    """From the inside out, with the names as they are; its own errors do not count (OP-17)."""
    agent = Held("two")
    hf.runs.use_executor(agent)
    run = start(hf, gather_text(IN_PARTS), id="p")
    assert agent.begun.wait(60)
    hf.runs.cancel("p")
    agent.go_on.set()
    with pytest.raises(RunCancelledError):
        run.result(timeout=60)
    assert agent.prompts == ["one", "two", "tidy inner", "tidy ok: tidy inner"]
    assert [note.text for note in run.journal.notes] == [
        "the cleanup failed: Thrown: counts for nothing"
    ]


def test_finally_runs_in_each_branch_and_at_a_wait(hf: Store):
    agent = Listening()
    hf.runs.use_executor(agent)
    text = (
        'parallel:\n  a = do:\n    try:\n      input one: "?"\n    finally:\n'
        '      session "tidy a"\n  b = do:\n    try:\n      input two: "?"\n'
        '    finally:\n      session "tidy b"\nsession "never"\n'
    )
    run = start(hf, gather_text(text), id="p")
    until(run, "waiting")
    hf.runs.cancel("p")
    with pytest.raises(RunCancelledError):
        run.result(timeout=60)
    assert sorted(call.prompt for call in agent.calls) == ["tidy a", "tidy b"]


def test_finally_runs_in_a_branch_that_lost(hf: Store):
    agent = Held("slow")
    hf.runs.use_executor(agent)
    text = (
        'parallel ("first"):\n  session "quick"\n  do:\n    try:\n      session "slow"\n'
        '      session "never"\n    finally:\n      session "tidy"\nsession "after"\n'
    )
    run = start(hf, gather_text(text), id="p")
    assert agent.begun.wait(60)
    entries = hf._kernel.part(Engine).active["p"].journal.entries
    while "parallel/1" not in entries:
        time.sleep(0.001)
    agent.go_on.set()
    run.result(timeout=60)
    assert agent.prompts.index("tidy") < agent.prompts.index("after")
    assert "never" not in agent.prompts


def test_output_in_finally_ends_its_block(hf: Store):
    text = 'block b:\n  try:\n    throw "x"\n  finally:\n    output 2\n  output 1\ndo b\n'
    assert given(hf, text)[0] == 2


def test_a_filter_asks_about_what_says_neither(hf: Store):
    script = {"conditions": [{"match": "perhaps a", "answer": "no"}]}
    text = '["a", "b"] | filter: "perhaps {item}"\n'
    assert given(hf, text, script)[0] == ["b"]


# --- programs that use others ---------------------------------------------------------------------


def test_an_input_that_a_used_program_does_not_have_is_an_error(hf: Store, tmp_path: Path):
    (tmp_path / "lib.prose").write_text('input n: "?"\nn\n')
    (tmp_path / "main.prose").write_text('use "lib"\nlib(m: 2)\n')
    hf.runs.use_executor(Scripted({}))
    with pytest.raises(RunFailedError, match='lib has no input "m": it has n'):
        start(hf, gather(tmp_path / "main.prose"), id="p").result(timeout=60)


def test_a_program_is_used_with_names_of_its_own(hf: Store, tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shout.prose").write_text(
        'input text: "What?"\nlet x = session "shout {text}"\noutput loud = x + "!"\n'
    )
    main = tmp_path / "main.prose"
    main.write_text(
        'use "shout" as s\nlet x = "mine"\nlet r = s(text: "a")\noutput {x, l: r.loud}\n'
    )
    with pytest.raises(NotFoundError, match="shout"):
        gather(main)
    program = gather(main, [tmp_path / "lib"])
    hf.runs.use_executor(Scripted({}))
    run = start(hf, program, id="p")
    assert run.result(timeout=60) == {"x": "mine", "l": "ok: shout a!"}
    assert "run.prose=r/session=x" in run.journal.entries


def test_nothing_is_committed_of_a_program_that_has_an_error(hf: Store, tmp_path: Path):
    (tmp_path / "bad.prose").write_text("let = 1\n")
    (tmp_path / "main.prose").write_text('use "bad"\nsession "a"\n')
    with pytest.raises(ProgramError, match="bad"):
        gather(tmp_path / "main.prose")
    with pytest.raises(UsageError, match="no input"):
        start(hf, gather_text('session "a"\n'), {"x": 1})
    assert hf.runs.list() == []


# --- edited programs ------------------------------------------------------------------------------

WAITING = 'let a = session "one"\nsession "two"\ninput go: "Go?"\nsession "three"\n'


def edited(hf: Store, text: str) -> tuple[Any, list[str]]:
    """Runs a program up to its wait, edits it, and goes on; returns what was asked after that."""
    hf.runs.use_executor(Listening())
    run = start(hf, gather_text(WAITING), id="p")
    until(run, "waiting")
    put_edited(hf, "p", gather_text(text))
    agent = Listening()
    hf.runs.use_executor(agent)
    hf.runs.answer("p", "go", 1)
    try:
        result = hf.runs.resume("p").result(timeout=60)
    except NeedsAttentionError as parked:
        result = parked
    return result, [call.prompt for call in agent.calls]


def test_comments_and_blank_lines_change_nothing(hf: Store):
    text = f"# a comment\n\n{WAITING}".replace('session "two"', '# here\nsession "two"')
    assert edited(hf, text) == ("ok: three", ["three"])
    assert stored_of(hf, "p").source.text == text


def test_what_comes_later_may_be_edited(hf: Store):
    assert edited(hf, WAITING.replace("three", "four")) == ("ok: four", ["four"])


def test_what_was_asked_may_not_be_edited(hf: Store):
    result, asked = edited(hf, WAITING.replace("two", "2"))
    assert isinstance(result, NeedsAttentionError)
    assert result.path == "session"
    assert asked == []


def test_a_named_session_that_is_inserted_before_what_was_done_diverges(hf: Store):
    result, asked = edited(hf, f'let z = session "zero"\n{WAITING}')
    assert isinstance(result, NeedsAttentionError)
    assert asked == []
