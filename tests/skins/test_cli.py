"""The verbs on scopes, in this process, on files and SQLite."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.cli import main

SCOPE = "team/support"


# State.


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        (["triage"], "triage"),
        (["5"], 5),
        (["-5"], -5),
        (["-x"], "-x"),
        (["true"], True),
        (['"5"'], "5"),
        (["--text", "5"], "5"),
        (["[1, {}]"], [1, {}]),
        (["0123"], "0123"),
        (["NaN"], "NaN"),
        ([""], ""),
        (["--", "--json"], "--json"),
        (['{"$bytes":"aGk="}'], b"hi"),
        (["1" + "0" * 40], 10**40),
    ],
)
def test_set_takes_json_or_text(words: list[str], stored: object, place: str, cli: Any):
    cli("set", SCOPE, "v", *words)
    with holdfast.open(place) as store:
        value = store.team("support").state["v"]
    assert (type(value), value) == (
        type(value) if isinstance(stored, list) else type(stored),
        stored,
    )


def test_set_reads_standard_input(place: str, monkeypatch: Any, cli: Any):
    stdin = SimpleNamespace(buffer=io.BytesIO(b'{"a": [1,\n2]}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    cli("set", SCOPE, "v", "-")
    assert cli("get", SCOPE, "v.a[1]").out == "2\n"
    stdin.buffer = io.BytesIO(b"\xff")
    assert "not UTF-8" in cli("set", SCOPE, "v", "-", code=2).err


@pytest.mark.parametrize(
    "value", ['{"a":1,"a":2}', '{"$bytes":"!"}', '[{"$float":"x"}]', "[" * 150 + "]" * 150, "1e999"]
)
def test_json_that_cannot_be_kept_is_refused(value: str, place: str, cli: Any):
    """Never stored as something else than what was typed, unless asked for as text."""
    cli("set", SCOPE, "v", value, code=2)
    assert cli("scopes").out == ""
    cli("set", SCOPE, "v", value, "--text")
    assert cli("get", SCOPE, "v").out == value + "\n"


def test_what_json_prints_set_takes_back(place: str, cli: Any):
    value = {"b": b"\x00\xff", "f": float("inf"), "lone": "\ud800", "tag": {"$x": 1}, "t": "\x9b"}
    with holdfast.open(place) as store:
        store.team("support").set("v", value)
    printed = cli("get", SCOPE, "v", "--json").out
    raw = printed[printed.index('"value":') + 8 : -2]
    cli("set", SCOPE, "w", raw)
    with holdfast.open(place) as store:
        assert store.team("support").state["w"] == value


def test_set_with_a_guard_a_name_and_a_key(place: str, cli: Any):
    cli("set", SCOPE, "n", "1", "--checkpoint", "first", "--key", "k1")
    assert cli("set", SCOPE, "n", "1", "--key", "k1", "--json").document["revision"] == 1
    cli("set", SCOPE, "n", "2", "--expected", "1")
    error = cli("set", SCOPE, "n", "3", "--expected", "1", "--json", code=5).error
    assert (error["class"], error["expected"], error["actual"]) == ("ConflictError", 1, 2)
    assert error["stream"] == SCOPE
    assert cli("show", SCOPE, "--at", "first", "--json").document["state"] == {"n": 1}


def test_delete_and_what_is_left(place: str, cli: Any):
    cli("set", SCOPE, "customer.name", "Ada")
    cli("set", SCOPE, "customer.city", "London")
    cli("delete", SCOPE, "customer.city")
    failed = cli("delete", SCOPE, "customer.city", code=3)
    assert "customer is a map with the keys name" in failed.err
    assert cli("show", SCOPE, "--json").document["state"] == {"customer": {"name": "Ada"}}
    assert cli("get", SCOPE, "customer.city", "--at", "2").out == "London\n"


def test_get_says_where_a_path_ends(place: str, cli: Any):
    cli("set", SCOPE, "a", '{"b":[1,2],"a.b":3}')
    for path, finding in [
        ("x", "its state is a map with the keys a"),
        ("a.c", 'a is a map with the keys b and ["a.b"]'.replace(" and", ",")),
        ("a.b[2]", "a.b is a list of 2"),
        ("a.b.c", "a.b is a list of 2"),
        ("a.b[0].c", "a.b[0] is the value 1"),
    ]:
        assert finding in cli("get", SCOPE, path, code=3).err
    assert cli("get", SCOPE, '["a","a.b"]').out == "3\n"
    assert cli("get", SCOPE, "a.b[-1]").out == "2\n"
    assert cli("get", SCOPE, "[]", "--json").document["value"] == {"a": {"b": [1, 2], "a.b": 3}}


def test_a_key_with_a_dot_and_a_path_are_never_taken_for_each_other(place: str, cli: Any):
    with holdfast.open(place) as hf:
        hf.scope(SCOPE).set("a.b", "the key")
        hf.scope(SCOPE).set(holdfast.path("a.b"), "the path")
    for words in (["get", SCOPE, "a.b"], ["set", SCOPE, "a.b", "1"], ["delete", SCOPE, "a.b"]):
        refused = cli(*words, code=2)
        assert """write '["a.b"]' for the key, '["a","b"]' for the path""" in refused.err
    assert cli("get", SCOPE, '["a.b"]').out == "the key\n"
    assert cli("get", SCOPE, '["a","b"]').out == "the path\n"


def test_get_raw_is_exact(place: str, monkeypatch: Any):
    text = "line 1\r\nline 2\x1b[31m\ud800"
    with holdfast.open(place) as store:
        store.team("support").update({"text": text, "bytes": b"\x00\xff", "n": [1, 2]})
    for path, exact in [
        ("text", text.encode("utf-8", "surrogatepass")),
        ("bytes", b"\x00\xff"),
        ("n", b"[1,2]"),
    ]:
        out = io.TextIOWrapper(io.BytesIO())
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            assert main(["get", SCOPE, path, "--raw"]) == 0
        assert out.buffer.getvalue() == exact  # pyright: ignore[reportAttributeAccessIssue]


def test_show_is_indented_json_when_piped(place: str, cli: Any):
    cli("set", SCOPE, "a", '{"b":[1]}')
    assert cli("show", SCOPE).out == '{\n  "a": {\n    "b": [\n      1\n    ]\n  }\n}\n'


def test_show_is_a_tree_on_a_terminal(place: str, cli: Any, screen: Any):
    cli("set", SCOPE, "customer", '{"name":"Ada","tags":[],"notes":["a","b"]}')
    cli("set", SCOPE, "wide", str(list(range(60))))
    shown = screen("show", SCOPE)
    assert f"{SCOPE} at revision 2" in shown
    assert '├── name "Ada"' in shown
    assert '[1] "b"' in shown
    assert "… 10 more: --json shows all" in shown
    assert "nothing" in screen("show", SCOPE, "--at", "0")


def test_a_closed_scope_refuses_with_its_own_code(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    with holdfast.open(place) as store:
        store.team("support").close()
    assert "closed at revision 2" in cli("set", SCOPE, "a", "2", code=6).err


# History.


def test_log_pages_meet_without_gap_or_overlap(place: str, cli: Any):
    with holdfast.open(place) as store:
        a, b = store.team("a"), store.team("b")
        for number in range(7):
            a.set("n", number)
            with store.commit() as commit:
                commit.scope(a).increment("both")
                commit.scope(b).increment("both")
    seen: list[int] = []
    words: list[Any] = []
    while True:
        page = cli("log", "team/a", "--limit", 4, "--json", *words).document
        seen += [event["revision"] for event in page["events"]]
        if not page["more"]:
            break
        words = ["--before", page["cursor"]]
    assert seen == list(range(14, 0, -1))
    events: list[tuple[int, str]] = []
    words = []
    while True:
        page = cli("log", "--limit", 4, "--json", *words).document
        assert len(page["events"]) >= min(4, 21 - len(events))
        events += [(event["position"], event["scope"]) for event in page["events"]]
        if not page["more"]:
            break
        words = ["--before", page["cursor"]]
    assert len(events) == len(set(events)) == 21
    assert [position for position, _ in events] == sorted((p for p, _ in events), reverse=True)


def test_log_has_every_column_when_piped(place: str, cli: Any):
    cli("set", SCOPE, "a.b", "x", "--checkpoint", "one")
    cli("restore", SCOPE, "0")
    cli("fork", SCOPE, "f")
    rows = cli("log").rows
    assert [(row[1], row[2], row[4], row[5], row[6], row[7]) for row in rows] == [
        ("team/f", "3", "forked", "tester", "", "from team/support at revision 2"),
        (SCOPE, "2", "restored", "tester", "", "to revision 0"),
        (SCOPE, "1", "changed", "tester", "one", 'set a.b "x"'),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", rows[0][3])
    assert [row[1:] for row in cli("log", SCOPE).rows] == [row[3:] for row in rows[1:]]


def test_log_names_every_type(place: str, cli: Any):
    with holdfast.open(place) as store:
        chat = store.conversation("c", parent=store.team("t"))
        chat.update({"a": 1, "b": 2})
        chat.checkpoint("named")
        chat.close(keep=False)
        store.workers.lease("boss")
    what = {row[4]: row[7] for row in cli("log").rows}
    assert what["opened"] == "parent team/t"
    assert what["changed"] == "set a 1 (and 1 more)"
    assert what["closed"] == "state dropped"
    assert '"name":"boss"' in what["lease"]


def test_log_on_a_terminal_fits_and_says_how_to_go_on(
    place: str, cli: Any, screen: Any, monkeypatch: Any
):
    for number in range(3):
        cli("set", SCOPE, "n", f"{number}" * 200, "--checkpoint", f"c{number}")
    lines = screen("log", "--limit", "2").splitlines()
    assert lines[0].split() == ["revision", "time", "type", "actor", "what"]
    assert lines[1].startswith("team/support@3")
    assert '"c2" set n' in lines[1]
    assert lines[1].rstrip().endswith("…")
    assert max(map(len, lines)) <= 100


def test_log_wants_a_limit_above_zero(place: str, cli: Any):
    assert "--limit must be at least 1" in cli("log", "--limit", "0", code=2).err


def test_diff_shows_both_sides(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    cli("set", SCOPE, "b", '{"c":null}')
    cli("checkpoint", SCOPE, "then")
    cli("set", SCOPE, "a", "2")
    cli("delete", SCOPE, "b")
    cli("set", SCOPE, "d", "new")
    document = cli("diff", SCOPE, "then", "--json").document
    assert (document["from"], document["to"]) == (3, 6)
    changes = {tuple(change["path"]): change for change in document["changes"]}
    assert changes[("a",)] == {"scope": SCOPE, "revision": 6, "path": ["a"], "old": 1, "new": 2}
    assert "new" not in changes[("b",)]
    assert "old" not in changes[("d",)]
    assert sorted(cli("diff", SCOPE, "then").rows) == [
        ["+", "d", "", '"new"'],
        ["-", "b", '{"c":null}', ""],
        ["~", "a", "1", "2"],
    ]
    assert cli("diff", SCOPE, "2", "3").out == ""


def test_restore_and_undo_can_be_undone(place: str, cli: Any):
    cli("set", SCOPE, "stage", "good", "--checkpoint", "before")
    cli("set", SCOPE, "stage", "bad")
    restored = cli("restore", SCOPE, "before", "--json").document
    assert (restored["revision"], restored["to"]) == (3, 1)
    assert restored["changes"][0]["new"] == "good"
    cli("undo", SCOPE)
    assert cli("get", SCOPE, "stage").out == "bad\n"
    assert cli("undo", SCOPE).rows[1] == ["~", "stage", '"bad"', '"good"']
    assert cli("get", SCOPE, "stage").out == "good\n"
    assert cli("restore", SCOPE, "1", "--expected", "2", code=5)


def test_restore_and_diff_name_messages_and_tasks(place: str, cli: Any):
    """They said "changes: []" when messages and tasks went (VIC-8)."""
    cli("say", SCOPE, "one")
    cli("checkpoint", SCOPE, "early")
    cli("say", SCOPE, "two")
    cli("task", "add", SCOPE, "build")
    cli("decide", SCOPE, "send it")
    cli("fact", SCOPE, "disk", '"full"')
    differs = cli("diff", SCOPE, "early", "--json").document
    assert differs["changes"] == []
    assert [one["new"]["text"] for one in differs["messages"]] == ["two"]
    assert [one["new"]["title"] for one in differs["tasks"]] == ["build"]
    assert [row[0] for row in cli("diff", SCOPE, "early").rows] == ["+", "+"]
    rows = cli("restore", SCOPE, "early").rows[1:]
    assert [(row[0], row[1].split()[0]) for row in rows] == [
        ("-", "message"),
        ("-", "task"),
        ("=", "decision"),
        ("=", "fact"),
    ]
    undone = cli("undo", SCOPE, "--json").document
    assert [one["new"]["text"] for one in undone["messages"]] == ["two"]
    again = cli("undo", SCOPE, "--json").document
    assert [one["old"]["title"] for one in again["tasks"]] == ["build"]
    kept = cli("restore", SCOPE, "early", "--json").document["kept"]
    assert [one["decision"] for one in kept["decisions"]] == ["send it"]
    assert [one["name"] for one in kept["facts"]] == ["disk"]


def test_undo_without_a_change(place: str, cli: Any):
    with holdfast.open(place) as store:
        store.team("support").checkpoint("empty")
    assert "no change to undo" in cli("undo", SCOPE, code=3).err


def test_a_removed_scope_is_gone_until_it_is_undone(place: str, cli: Any):
    cli("set", SCOPE, "stage", "good", "--checkpoint", "before")
    cli("set", "conversation/other", "n", "1")
    removed = cli("remove", SCOPE, "--yes", "--json").document
    assert removed == {"scope": SCOPE, "revision": 2, "removed": True}
    assert [row[0] for row in cli("scopes").rows] == ["conversation/other"]
    assert cli("scopes", "--limit", "1", "--json").document["more"] is False
    missed = cli("get", SCOPE, "stage", code=3)
    assert "was removed at revision 2" in missed.err
    assert cli("get", SCOPE, "stage", "--at", "1").out == "good\n"
    assert [row[2] for row in cli("log", SCOPE).rows] == ["removed", "changed"]
    assert "was removed" in cli("remove", SCOPE, "--yes", code=3).err
    assert cli("undo", SCOPE).rows[1] == ["+", "stage", "", '"good"']
    assert cli("remove", SCOPE, "--yes", "--expected", "1", code=5)
    assert "was removed at revision 4" in cli("remove", SCOPE, "--yes").out


def test_a_removal_is_asked_for(place: str, cli: Any, monkeypatch: pytest.MonkeyPatch):
    cli("set", SCOPE, "stage", "good")
    assert "add --yes" in cli("remove", SCOPE, code=2).err
    assert "add --yes" in cli("remove", SCOPE, "--json", code=2).err

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Keyboard("n\ny\n"))
    refused = cli("remove", SCOPE, code=1)
    assert refused.out == "nothing was removed\n"
    assert f"remove {SCOPE}, 1 revisions? [y/N]" in refused.err
    cli("remove", SCOPE)
    assert cli("get", SCOPE, "stage", code=3)


def test_a_fork_goes_its_own_way(place: str, cli: Any):
    cli("set", SCOPE, "a", "1", "--checkpoint", "one")
    cli("set", SCOPE, "a", "2")
    made = cli("fork", SCOPE, "what if", "--at", "one", "--json").document
    assert made == {"scope": "team/what if", "revision": 2, "from": SCOPE, "at": 1}
    assert cli("get", "team/what if", "a").out == "1\n"
    assert cli("fork", SCOPE, "what if", code=4)
    assert [row[2] for row in cli("checkpoints", "team/what if").rows] == ["one"]


def test_checkpoints_newest_first(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    for name in ("one", "two", "one"):
        made = cli("checkpoint", SCOPE, name, "--json").document
    assert (made["name"], made["revision"]) == ("one", 4)
    assert [(row[0], row[2]) for row in cli("checkpoints", SCOPE).rows] == [
        ("4", "one"),
        ("3", "two"),
        ("2", "one"),
    ]
    assert cli("checkpoint", SCOPE, "x", "--expected", "1", code=5)


# Following.


def test_follow_prints_what_comes_after_a_revision(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    cli("set", SCOPE, "a", "2")
    assert cli("follow", SCOPE, "--timeout", "0").out == ""
    assert cli("follow", SCOPE, "--after", "1", "--timeout", "0").rows == [
        ["2", "~", "a", "1", "2"]
    ]
    cli("set", "team/b", "x", "1")
    rows = cli("follow", "--all", "--after", "1", "--timeout", "0").rows
    assert [(row[1], row[2]) for row in rows] == [(SCOPE, "2"), ("team/b", "1")]


def test_follow_takes_one_scope_or_all(place: str, cli: Any):
    assert "one scope or --all" in cli("follow", code=2).err
    assert "one scope or --all" in cli("follow", SCOPE, "--all", code=2).err
    assert "--timeout" in cli("follow", SCOPE, "--timeout", "-1", code=2).err
    for length in ("0", "0.01", "0s", "0.01s"):
        assert not cli("follow", SCOPE, "--timeout", length).out
    for wrong in ("soon", "1h30", "nan"):
        assert "--timeout is" in cli("follow", SCOPE, "--timeout", wrong, code=2).err


# Mistakes.


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["frobnicate"], 'unknown command "frobnicate"', "holdfast --help"),
        (["sho", SCOPE], 'Did you mean "show"', "holdfast --help"),
        (["show"], "SCOPE", "holdfast show --help"),
        (["show", SCOPE, "--nope"], "--nope", "holdfast show --help"),
        (["show", SCOPE, "extra", "words"], "extra", "holdfast show --help"),
        (["log", "--limit", "many"], "many", "holdfast log --help"),
        (["set", SCOPE, "a..b", "1"], "cannot be read at character 2", "write it like"),
        (["set", SCOPE, "", "1"], "cannot be read", "write it like"),
        (["set", "", "a", "1"], "scope is empty", None),
        (["set", "team", "a", "1"], "team scope needs an id", "write it like"),
        (["set", "global/x", "a", "1"], "takes no id", "write it like"),
        (["show", "tea\x1b[31m/m"], "control characters", None),
        (["demo", "--backend", "tape"], "tape", "holdfast demo --help"),
    ],
)
def test_usage_mistakes_end_with_2(
    words: list[str], message: str, hint: str | None, place: str, cli: Any
):
    failed = cli(*words, code=2)
    assert failed.out == ""
    assert failed.err.startswith("error: ")
    assert message in failed.err
    assert "Available" not in failed.err  # a list of verbs, cut off in the middle
    assert "\x1b" not in failed.err
    if hint:
        assert f"hint: {hint}" in failed.err
    error = cli(*words, "--json", code=2).error
    assert error["class"] == "UsageError"
    assert message in error["message"]


def test_an_unknown_scope_is_not_found(place: str, cli: Any):
    failed = cli("show", "team/none", "--store", place, code=3)
    assert failed.err.splitlines()[0] == 'error: there is no scope "team/none"'


def test_hints_can_be_typed_as_they_stand(place: str, monkeypatch: Any, cli: Any):
    monkeypatch.delenv("HOLDFAST_STORE")
    failed = cli("show", "team/none", "--store", place, code=3)
    assert failed.err.splitlines()[1] == f"hint: holdfast --store {place} scopes"
    cli("set", "team/a b", "x", "1", "--store", place)
    failed = cli(f"--store={place}", "diff", "team/a b", "nope", code=3)
    hint = f"hint: holdfast --store {place} checkpoints 'team/a b'"
    assert failed.err.splitlines()[1] == hint


def test_an_error_without_a_hint_has_none(place: str, cli: Any):
    failed = cli("set", SCOPE, "[]", "5", "--store", place, code=2)
    assert len(failed.err.splitlines()) == 1
    assert cli("set", SCOPE, "[]", "5", "--store", place, "--json", code=2).error["hint"] is None


def test_a_foreign_folder_is_left_alone(tmp_path: Path, cli: Any):
    (tmp_path / "letter.txt").write_text("dear")
    failed = cli("--store", tmp_path, "status", "--json", code=cli_code_of(tmp_path))
    assert failed.error["hint"]
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def cli_code_of(path: Path) -> int:
    """The code of the error that the library itself raises: the command line decides nothing."""
    with pytest.raises(holdfast.HoldfastError) as raised:
        holdfast.open(path, create=False)
    return raised.value.exit_code


@pytest.mark.parametrize("line", ["-v status", "--verbose status", "status --verbose"])
def test_verbose_shows_the_log(line: str, place: str, monkeypatch: Any, cli: Any):
    def show(name: str, value: object) -> str:
        logging.getLogger("holdfast.backends").debug("tried %s", "again\x1b[31m")
        return str(value)

    monkeypatch.setattr("holdfast.cli.store.show_fact", show)
    handlers = list(logging.getLogger("holdfast").handlers)
    assert "DEBUG holdfast.backends: tried again\\x1b[31m\n" in cli(*line.split()).err
    assert cli("status").err == ""
    assert logging.getLogger("holdfast").handlers == handlers


def test_verbose_before_the_verb_is_taken_by_every_verb(cli: Any):
    assert cli("-v", "advise", "--machines", "1", "--json").document["backend"] == "files"


def test_a_value_may_look_like_the_short_option(place: str, cli: Any):
    cli("set", "team/a", "flag", "-v")
    assert cli("get", "team/a", "flag").out == "-v\n"


def test_words_too_many_are_named(place: str, cli: Any):
    refused = cli("say", "conversation/c", "user", "it broke", code=2)
    assert "nothing takes 'it broke': there are more words than" in refused.err
    assert "hint: holdfast say --help" in refused.err
    assert cli("scopes").out == ""
