"""What people type need not be whole: names cut short, near misses, nouns before verbs."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.cli.app import ALIASES
from holdfast.cli.printing import COLUMN_WIDTH_MIN, GAP, fit_widths

LONG = "conversation/a-rather-long-ticket-name-4711"


def test_a_scope_may_be_cut_short(place: str, cli: Any):
    cli("set", LONG, "stage", "triage")
    assert cli("get", "conversation/a-r", "stage").out == "triage\n"
    assert cli("get", "conversation/a-r…", "stage").out == "triage\n"
    assert cli("show", "conv", "--json").document["scope"] == LONG
    cli("delete", "conversation/a-", "stage")
    assert LONG in cli("log", "conv", "--json").out


def test_a_beginning_that_several_share_names_them(place: str, cli: Any):
    for name in ("team/red", "team/rose"):
        cli("set", name, "a", "1")
    error = cli("get", "team/r", "a", code=3).err
    assert '2 scopes begin with "team/r": team/red, team/rose' in error
    assert cli("get", "team/red", "a").out == "1\n"


def test_a_whole_name_wins_over_longer_ones(place: str, cli: Any):
    cli("set", "team/a", "n", "1")
    cli("set", "team/ab", "n", "2")
    assert cli("get", "team/a", "n").out == "1\n"


def test_a_misspelt_scope_is_asked_back(place: str, cli: Any):
    cli("set", "team/support", "a", "1")
    assert 'did you mean "team/support"?' in cli("show", "team/suport", code=3).err


def test_writing_takes_no_beginning_for_a_name(place: str, cli: Any):
    """A new scope whose name begins like another one's is a new scope."""
    cli("set", "team/support", "a", "1")
    cli("set", "team/sup", "a", "2")
    assert cli("get", "team/support", "a").out == "1\n"


def test_a_decision_may_be_cut_short(place: str, cli: Any):
    opened = cli("decide", "team/red", "refund", "--json").document["id"]
    assert cli("decisions", opened[:12], "--json").document["id"] == opened
    assert cli("outcome", opened[:12], "sent", "--json").document["status"] == "closed"
    assert cli("decisions", opened[:12] + "…", "--json").document["outcome"] == "sent"
    assert "there is no decision" in cli("outcome", "zzz", "x", code=3).err


def test_a_run_may_be_cut_short(place: str, cli: Any, tiny: Any):
    cli("runs", "start", "tiny.py:tiny", "4", "--id", "the-first-run")
    assert cli("runs", "show", "the-f", "--json").document["run"] == "the-first-run"
    assert 'did you mean "the-first-run"?' in cli("runs", "show", "the-frist-run", code=3).err


@pytest.mark.parametrize(("alias", "verb"), ALIASES.items())
def test_a_noun_takes_its_verbs_after_it(alias: str, verb: str, place: str, cli: Any):
    assert (
        cli(*alias.split(), "--help").out.split("\n", 1)[1]
        == (cli(*verb.split(), "--help").out.split("\n", 1)[1])
    )


def test_the_long_forms_do_what_the_short_ones_do(place: str, cli: Any):
    opened = cli("decision", "open", "team/red", "refund", "--json").document["id"]
    cli("decision", "close", opened, "sent")
    assert [one["id"] for one in cli("decisions", "--json").document["decisions"]] == [opened]
    cli("message", "add", "conversation/c", "hello")
    assert cli("message", "list", "conversation/c").out == cli("messages", "conversation/c").out
    assert "--help" in cli("decision", "nonsense", code=2).err


def test_a_decision_of_a_person_is_never_dead(place: str, cli: Any, screen: Any):
    """The command has ended long before the person acts."""
    id = cli("decide", "team/red", "refund", "--key", "k", "--json").document["id"]
    with holdfast.open(place) as store:
        found = store.decisions.get(id)
        assert (found.owner, found.is_personal, found.owner_alive) == ("tester", True, None)
        assert store.stale() == []
        assert store.recover().acts == []
    assert "dead" not in screen("decisions")
    assert cli("decide", "team/red", "refund", "--key", "k", "--json").document["id"] == id
    with holdfast.open(place) as store:
        assert store.decisions.get(id).is_personal
        with store.team("red").decide("refund", key="k", if_exists="attach") as mine:
            assert not store.decisions.get(id).is_personal  # a worker answers for it now
            mine.outcome("sent")


def test_a_fork_takes_the_whole_name_or_the_id(place: str, cli: Any):
    cli("set", "team/red", "a", "1")
    assert cli("fork", "team/red", "team/blue", "--json").document["scope"] == "team/blue"
    assert cli("fork", "team/red", "green", "--json").document["scope"] == "team/green"
    assert "is a team too" in cli("fork", "team/red", "conversation/x", code=2).err
    assert cli("fork", "team/red", "a/b", "--json").document["scope"] == "team/a/b"


@pytest.mark.parametrize("value", ["{a", '{"a": }', "[1, 2", '"open'])
def test_what_begins_like_json_and_is_none_is_refused(value: str, place: str, cli: Any):
    refused = cli("set", "team/red", "a", value, code=2)
    assert "begins like JSON" in refused.err
    assert "--text" in refused.err
    cli("get", "team/red", "a", code=3)
    cli("set", "team/red", "a", value, "--text")
    assert cli("get", "team/red", "a").out == f"{value}\n"


def test_tables_fit_eighty_columns(place: str, cli: Any, screen: Any, monkeypatch: Any):
    monkeypatch.setenv("COLUMNS", "80")
    words = "write the quarterly report about everything that happened since the last one"
    cli("set", LONG, "customer.name", words)
    cli("task", "add", LONG, words, "--tag", "a")
    cli("decide", LONG, words, "--because", words)
    cli("say", LONG, words)
    cli("checkpoint", LONG, words)
    for verb in (
        ["log"], ["log", LONG], ["scopes"], ["task", "list"], ["decisions"], ["messages", LONG],
        ["audit", LONG], ["checkpoints", LONG], ["diff", LONG, "0"], ["stale"],
    ):  # fmt: skip
        for line in screen(*verb).splitlines():
            assert len(line.rstrip()) <= 80, (verb, line)
    assert words in cli("task", "list").out  # nothing that is piped is shortened


def test_the_widest_column_yields_and_times_stay():
    time = "2026-11-17 15:26:35Z"
    rows = [["a" * 60, time, "b" * 40], ["c", time, "d"]]
    assert fit_widths(["id", "time", "what"], rows, 80) == [28, 20, 28]
    assert fit_widths(["id", "time", "what"], rows, 200) == [60, 20, 40]
    assert fit_widths(["id", "time", "what"], rows, 30) == [8, 10, 8]
    narrow = fit_widths(["id", "time", "what"], rows, 10)
    assert narrow == [COLUMN_WIDTH_MIN] * 3
    assert sum(fit_widths(["a", "b"], [["x" * 100, "y" * 9]], 40)) + GAP == 40


def test_the_log_shows_the_words_of_a_record(place: str, cli: Any):
    cli("task", "add", "team/red", "write it")
    cli("decide", "team/red", "refund the customer")
    said = [row[-1] for row in cli("log", "team/red").rows]
    assert said[:2] == ["refund the customer", "t1: write it"]


def test_scopes_are_shown_with_the_ids_that_they_were_given(place: str, cli: Any):
    """The name of an odd or long id is not its id; what is typed is."""
    long = "x" * 600
    for id in ("line\nbreak", long, "\udcff"):
        cli("set", f"team/{id}", "a", "1")
        assert cli("get", f"team/{id}", "a").out == "1\n"
    shown = cli("scopes").out
    assert "team/line\\nbreak\t" in shown
    assert f"team/{long}\t" in shown
    assert "team/\\udcff\t" in shown
    listed = cli("scopes", "team", "--prefix", "line\n", "--json").document["scopes"]
    assert [one["id"] for one in listed] == ["line\nbreak"]
    listed = cli("scopes", "--prefix", f"team/{long}", "--json").document["scopes"]
    assert [one["id"] for one in listed] == [long]
    assert cli("get", listed[0]["scope"], "a").out == "1\n"
    assert "team/line\\nbreak" in cli("log").out
