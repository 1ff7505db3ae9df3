"""Texts with lone surrogates and zero characters stop no question and no view, on any backend.

Tool output that was read with `surrogateescape` is such a text. Names refuse these characters;
contents, keys of a state, ids and links of other programs may have them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, views
from holdfast.core.page import write_cursor
from holdfast.errors import HoldfastError, UsageError
from holdfast.query.words import split_words
from tests.query.test_query_model import scanned

ODD = "spam \ud800 eggs"
HALF = "x\udcff"
ZERO = "zero\0zero"
WRITES: dict[str, Callable[[Store, str], object]] = {
    "a value": lambda hf, text: hf.team("red").set("a", text),
    "a key": lambda hf, text: hf.team("red").set((text,), "spam"),
    "a nested value": lambda hf, text: hf.team("red").set("n", {text: {text: ["spam", text]}}),
    "a message": lambda hf, text: hf.conversation("c").say(text),
    "a message's id": lambda hf, text: hf.conversation("c").messages.add("user", "spam", id=text),
    "metadata": lambda hf, text: hf.conversation("c").messages.add(
        "user", [{"type": "text", "text": text}], metadata={"tags": [text], text: text}
    ),
    "a fact": lambda hf, text: hf.team("red").facts.state("f", {text: text}, about=text),
    "a task": lambda hf, text: hf.team("red").tasks.add(text),
    "a decision": lambda hf, text: hf.team("red").decide(
        text, because=text, action=text, alternatives=[text], owner=text, more={text: text}
    ),
    "a link": lambda hf, text: hf.team("red").decide("spam", links=["at:" + text]),
    "an event": lambda hf, text: hf.team("red").record("noted", {"a": text}, unchecked=True),
    "a run": lambda hf, text: hf.runs.start(_given, text).result(),
}


@holdfast.run
def _given(_ctx: Any, text: str) -> str:
    return text


@pytest.mark.parametrize("text", [ODD, HALF, ZERO], ids=["odd", "half", "zero"])
def test_questions_go_on_whatever_was_written(hf: Store, text: str) -> None:
    """Every write is refused by name or found; each question agrees with the plain scan."""
    written = 0
    for write in WRITES.values():
        try:
            write(hf, text)
        except HoldfastError:
            continue  # a name
        written += 1
        hf.search.sql("SELECT count(*) FROM events")
        hf.query(text="spam")
    assert written > 8
    word = split_words(text)[0]
    questions: list[dict[str, Any]] = [
        {}, {"kind": "log"}, {"text": word}, {"text": text}, {"text": text + "*"}, {"tag": text},
        {"actor": text}, {"links": "at:" + text}, {"status": text}, {"type": text},
        {"trust": text}, {"scope": f"team/{text}*"}, {"scope": f"team/{text}"},
        {"where": {"a": text}}, {"where": ("a", ">=", text)}, {"where": {(text,): "spam"}},
        {"after": write_cursor("query", 1, text, 0, text, text)},
    ]  # fmt: skip
    for question in questions:
        assert list(hf.query(**question)) == scanned(hf, **question), question
    assert hf.query(tag=text)
    assert hf.query(text=word)
    assert hf.search.resolve("decision:" + text) is None
    assert hf.search.resolve("task:" + text + "@team/red") is None
    assert hf.search.resolve("message:" + text + "@conversation/c")
    hf.search.dangling_links()
    hf.search.rebuild()
    assert hf.query(text=word)


def test_a_state_with_any_text_is_in_a_declared_index(url: str) -> None:
    declared = holdfast.index("team", "a")
    with holdfast.open(url, settings=holdfast.Settings(indexes=[declared])) as hf:
        for number, text in enumerate((ODD, HALF, ZERO, "spam")):
            hf.team(f"t{number}").set("a", text)
            assert [one.id for one in hf.scopes(where={"a": text})] == [f"t{number}"]


def test_a_row_shows_any_value_as_json(hf: Store) -> None:
    value = {"a": "\\u0000", "b\0": "\\\0", "c": [ODD, "\\ud800"]}
    hf.team("red").set("v", value)
    [(row,)] = hf.search.sql("SELECT value FROM state").rows
    shown = json.loads(row) if isinstance(row, str) else row
    assert shown["v"] == {"a": "\\u0000", "b": "\\", "c": [{"$text": '"spam \\ud800 eggs"'},
                                                          "\\ud800"]}  # fmt: skip


@pytest.mark.parametrize("text", ["\udcff", "\0"], ids=["surrogate", "zero"])
def test_a_statement_with_such_a_character_is_refused_by_name(hf: Store, text: str) -> None:
    hf.team("red").set("a", 1)
    for statement in (f"SELECT '{text}'", f"SELECT 1{text}", f"SELECT 1{text}; DROP TABLE state"):
        with pytest.raises(UsageError, match=r"lone surrogate or a zero"):
            hf.search.sql(statement)
    assert hf.search.sql("SELECT count(*) FROM state").rows == [(1,)]


def test_words_of_scripts_without_spaces_are_single_characters() -> None:
    """Every character of these scripts is a word; of others, with or without letters, none is."""
    assert split_words("日本 \uf900\ufa6d 한글 かな") == [
        "日", "本", "豈", "\u8218", "한", "글", "か", "な"
    ]  # fmt: skip
    assert split_words("\ua000\ua001 \ud800 \udfff \ue000") == ["\ua000\ua001"]


@pytest.mark.parametrize(
    "text", [ODD, HALF, "\ud83d\ude00", ZERO], ids=["odd", "half", "pair", "zero"]
)
def test_views_go_on_whatever_was_written(tmp_path: Path, text: str) -> None:
    """Every kind of view shows it; what a person changes beside it is read back, and only that."""
    hf = holdfast.open("memory:")
    scope = hf.team("red")
    scope.update({"a": text, text: "spam", "n": {text: [text]}, "goals": {"g1": {"title": text}}})
    scope.update(
        {
            "progress": {"p1": {"title": text}},
            "todo": {"n1": {"title": text}},
            "keel": {"gate": text},
        }
    )
    scope.tasks.add(text)
    scope.decide(text, because=text).outcome(text)
    scope.record("noted", {"a": text}, unchecked=True)
    made = [
        views.state_file(scope, "state.json"), views.state_file(scope, "state.yaml"),
        views.keel_state(scope), views.event_rows(scope), views.catch_rows(scope),
        views.decision_index(scope), views.decision_list(scope), views.backlog(scope),
        views.task_list(scope), views.goal_list(scope), views.progress_list(scope),
        views.todo_list(scope), views.learning_list(scope),
    ]  # fmt: skip
    before = scope.at(scope.revision)
    with hf.views(tmp_path / "views", made) as shown:
        assert [one for one in shown.sync() if one.kind not in ("written", "made")] == []
        assert [one for one in shown.sync() if one.kind not in ("written", "made")] == []
        assert scope.state == before
        scope.set("b", 1)
        scope.record("noted", {"a": text, "again": 1}, unchecked=True)
        shown.sync()
        path = tmp_path / "views" / "state.json"
        path.write_bytes(path.read_bytes().replace(b'"b": 1', b'"b": 2'))
        shown.sync()
    assert scope.get("b") == 2
    assert {k: v for k, v in scope.state.items() if k != "b"} == dict(before)


def test_a_variable_and_a_step_have_names_that_can_be_stored(hf: Store) -> None:
    @holdfast.run
    def odd(ctx: Any) -> None:
        ctx.let(HALF, 1)

    with pytest.raises(HoldfastError, match="without lone surrogates"):
        hf.runs.start(odd).result()
    with pytest.raises(UsageError, match="without lone surrogates"):
        holdfast.step(name=HALF, effect="pure")(lambda: 1)
