"""What forms mean where they meet: blocks that end, arms that fail, arrows that break, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, Store
from holdfast.agents import Scripted
from holdfast.prose.program import gather_text, start
from holdfast.prose.settings import Settings
from holdfast.render.prose import last_session
from holdfast.runs.events import Intended, StepDone
from holdfast.runs.journal import Journal
from tests.prose.test_interpreter import FAST, failed, given
from tests.runs.cuts import until

BAD: dict[str, Any] = {"sessions": [{"match": "bad", "answer": {"fail": "no"}}]}


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as store:
        yield store


def test_an_output_can_be_assigned_and_is_given_as_it_was_then(hf: Store):
    assert given(hf, "output x = 1\nx = 2\noutput y = x\n")[0] == {"x": 1, "y": 2}


def test_an_output_that_was_assigned_is_exported_again(hf: Store):
    assert given(hf, "output x = 1\nx = x + 1\noutput x = x\n")[0] == {"x": 2}


def test_output_ends_the_do_that_it_stands_in(hf: Store):
    text = 'let x = do:\n  if true:\n    output "a"\n  session "never"\nsession "got {x}"\n'
    result, agent = given(hf, text)
    assert result == "ok: got a"
    assert [call.prompt for call in agent.calls] == ["got a"]


def test_output_in_a_do_does_not_end_the_block_around_it(hf: Store):
    text = (
        'block b:\n  let y = do:\n    output "in"\n  session "after {y}"\nlet r = do b\noutput r\n'
    )
    assert given(hf, text)[0] == "ok: after in"


def test_a_branch_that_succeeded_counts_although_too_few_did(hf: Store):
    """`ignore` leaves failed names null, and no others."""
    text = (
        'parallel ("any", count: 2, on-fail: "ignore"):\n  a = session "good"\n'
        '  b = session "bad"\noutput [a, b]\n'
    )
    hf.runs.use_executor(Scripted(BAD))
    assert start(hf, gather_text(text), id="p", settings=FAST).result(60) == ["ok: good", None]


def test_continue_lists_every_failure_of_a_race_too(hf: Store):
    text = (
        'try:\n  parallel ("any", count: 1, on-fail: "continue"):\n    a = session "bad 1"\n'
        '    b = session "bad 2"\ncatch as e:\n  output e.message\n'
    )
    assert given(hf, text, BAD)[0] == "2 failed: a: no; b: no"


@pytest.mark.parametrize("join", ['"first", ', '"any", count: 1, ', ""])
def test_a_branch_that_lost_or_failed_assigns_nothing(hf: Store, join: str):
    text = (
        f'let a = "old"\nparallel ({join}on-fail: "ignore"):\n  a = session "bad"\n'
        '  b = session "good"\noutput [a, b]\n'
    )
    assert given(hf, text, BAD)[0] == ["old", "ok: good"]


def test_what_an_arrow_hands_on_ends_with_the_arrow(hf: Store):
    text = 'try:\n  session "a" -> do:\n    throw "x"\ncatch:\n  session "c"\nsession "d"\n'
    _, agent = given(hf, text)
    assert [(call.prompt, call.context) for call in agent.calls] == [
        ("a", ()),
        ("c", ()),
        ("d", ()),
    ]


def test_a_block_may_call_itself_as_often_as_it_says(hf: Store):
    text = (
        'block r(k) (max_depth: 150):\n  if k > 1:\n    do r(k - 1)\n  else:\n    output "end"\n'
        "let z = do r({0})\noutput z\n"
    )
    assert given(hf, text.replace("{0}", "150"))[0] == "end"


def test_a_throw_without_text_in_a_block_throws_nothing_of_its_caller(hf: Store):
    text = (
        'block t:\n  throw\ntry:\n  throw "first"\ncatch:\n  try:\n    do t\n'
        '  catch as e:\n    output "[{e.message}]"\n'
    )
    assert given(hf, text)[0] == "[]"


def test_an_error_of_a_value_names_expression_and_line(hf: Store):
    error = failed(hf, 'let t = session "a"\noutput t.b\n')
    assert "line 2: t.b: the text before it is not JSON" in str(error)


def test_a_checkpoint_says_what_the_session_is_passed(hf: Store, tmp_path: Path):
    """OP-24: position, bindings and a summary of the context."""
    text = (
        'let a = session "one"\nlet o = {b: 2}\n'
        'session "two"\n  context: [a, o.b]\n'
        'session "three" -> session "four"\n  context: {first: a}\n'
    )
    seen: list[Any] = []

    class Reading(Scripted):
        def answer(self, call: Any, /) -> Any:
            seen.append(json.loads((tmp_path / "v" / "checkpoint.json").read_text())["context"])
            return super().answer(call)

    hf.runs.use_executor(Reading({}))
    settings = Settings(views=str(tmp_path / "v"))
    start(hf, gather_text(text), id="p", settings=settings).result(60)
    assert seen == [{}, {"a": 7, "o.b": None}, {}, {"first": 7, "input": 9}]


def test_a_failure_that_nobody_catches_is_the_run_s(hf: Store):
    with pytest.raises(RunFailedError, match="no"):
        given(hf, 'parallel ("first"):\n  session "bad"\n  session "bad"\n', BAD)


def test_the_last_session_is_the_one_that_was_answered_last():
    """OP-5: in parallel arms that is not the one that was begun last."""
    journal = Journal()
    for path in ("parallel/a/session", "parallel/b/session"):
        journal.apply(Intended(path, 1, "step", "session", "idempotent"))
    for path in ("parallel/b/session", "parallel/a/session"):
        journal.apply(StepDone(path))
    found = last_session(journal)
    assert found is not None
    assert found.path == "parallel/a/session"


def test_a_definition_after_the_last_statement_does_not_change_the_result(hf: Store):
    assert given(hf, 'do later("x")\nblock later(a):\n  session "l {a}"\n')[0] == "ok: l x"


@pytest.mark.parametrize(
    ("text", "given_"),
    [
        ("let x = 1\nparallel:\n  x = x + 1\n  x = x + 2\nx\n", 4),
        ("let x = 1\nparallel:\n  x = 5\n  x = x + 2\nx\n", 7),
        ('let x = ""\nparallel:\n  x = x + "a"\n  do:\n    x = x + "b"\nx\n', "ab"),
        ('let x = ""\nparallel:\n  x = "a"\n  x = "b"\n', {"x": "b"}),
    ],
)
def test_arms_that_have_the_name_of_a_variable_add_to_it(hf: Store, text: str, given_: Any):
    """`x = x + e` is an arm of its own, too: what is added counts at the join, in arm order."""
    assert given(hf, text)[0] == given_


def test_two_arms_of_one_name_are_both_run(hf: Store):
    found, agent = given(hf, 'let x = 1\nparallel:\n  x = session "a"\n  x = session "b"\nx\n')
    assert found == "ok: b"
    assert sorted(call.prompt for call in agent.calls) == ["a", "b"]


class Polite(Scripted):
    """A script that words questions to people."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: list[str] = []

    def reword(self, text: str, /) -> str:
        self.asked.append(text)
        return f"Please: {text}?"


def test_a_condition_of_an_input_is_worded_by_the_executor(hf: Store):
    """Once, also when the program is entered again; a text is shown as it is written."""
    agent = Polite()
    hf.runs.use_executor(agent)
    text = 'let x = "ada"\ninput a: **the age of {x}**\ninput b: "The town"\noutput [a, b]\n'
    run = start(hf, gather_text(text), id="p")
    until(run, "waiting")
    assert run.journal.entries["wait.a"].label == "Please: the age of ada?"
    hf.runs.answer("p", "a", 1)
    while "wait.b" not in run.journal.entries:
        until(run, "waiting")
    assert run.journal.entries["wait.b"].label == "The town"
    hf.runs.answer("p", "b", 2)
    assert run.result(timeout=60) == [1, 2]
    assert agent.asked == ["the age of ada"]


def test_who_does_not_word_questions_is_not_asked_to(hf: Store):
    hf.runs.use_executor(Scripted({}))
    run = start(hf, gather_text("input a: **the age**\na\n"), id="p")
    until(run, "waiting")
    assert list(run.journal.entries) == ["wait.a"]
    assert run.journal.entries["wait.a"].label == "the age"
