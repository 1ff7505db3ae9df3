"""`holdfast advise`, mixed stores and progress on the command line (BOOT-61, 62, 63)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import advise
from holdfast.cli.store import Tenths, progress_shown


def test_advise_takes_options(cli: Any) -> None:
    document = cli("advise", "--machines", "3", "--expiry", "--json").document
    assert document["backend"] == "redis"
    assert set(document) == {
        *("backend", "open", "stores", "reasons", "gives_up", "move_on", "rejected", "warnings"),
    }
    rows = cli("advise", "--queries", "--no-survive").rows
    assert rows[0] == ["backend", "sqlite"]
    assert ["not files", "does not meet: SQL queries"] in rows
    assert cli("advise", "--no-survive").rows[0] == ["backend", "memory"]
    assert cli("advise", "--has", "redis", "--machines", "2").rows[0] == ["backend", "redis"]
    assert "no mix of two" in cli("advise", "--diffs", "--machines", "2", code=2).err
    assert "whole number" in cli("advise", "--machines", "0", code=2).err


def test_advise_asks_a_person_only(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "asks questions on a terminal" in cli("advise", code=2).err


def test_advise_asks(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    asked: list[str] = []

    def person(answers: dict[str, str]) -> None:
        def answer(question: str) -> str:
            asked.append(question)
            return next((said for word, said in answers.items() if word in question), "")

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", answer)

    person({})
    assert cli("advise").rows[0] == ["backend", "files"]
    assert len(asked) == 11
    person({"machines": "2", "operate already": "redis, postgresql"})
    assert cli("advise").rows[0] == ["backend", "redis"]
    person({"SQL": "yes", "survive": "n"})
    assert cli("advise").rows[0] == ["backend", "sqlite"]
    person({"SQL": "perhaps"})
    assert "expected yes or no" in cli("advise", code=2).err
    person({"machines": "many"})
    assert "expected a whole number" in cli("advise", code=2).err


def test_every_option_of_needs_is_an_option_of_the_verb() -> None:
    import inspect

    from holdfast.contrib.advise import Needs

    taken = set(inspect.signature(advise.advise_backend).parameters) - {"json"}
    assert taken == set(Needs.__struct_fields__)


# Mixed stores.


@pytest.fixture
def mix(tmp_path: Path) -> str:
    path = tmp_path / "agents.toml"
    path.write_text('[store]\nconversation = "chats"\n"*" = "sqlite:state.db"\n')
    return str(path)


def test_a_mixed_store_is_named_by_its_file(mix: str, tmp_path: Path, cli: Any) -> None:
    assert "no store at" in cli("status", "--store", mix, code=3).err
    cli("init", "--store", mix)
    cli("set", "conversation/c1", "a", "1", "--store", mix)
    cli("set", "team/red", "a", "2", "--store", mix)
    facts = cli("status", "--store", mix, "--json").document
    assert facts["kind"] == "mixed"
    assert isinstance(facts["position"], int)
    assert facts["levels"]["conversation"]["kind"] == "files"
    rows = dict(cli("status", "--store", mix).rows)
    assert rows["level *"].startswith("sqlite, durability full, ")
    with holdfast.open(tmp_path / "chats") as store:
        assert store.conversation("c1").get("a") == 1
    assert [row[0] for row in cli("scopes", "--store", mix).rows] == ["conversation/c1", "team/red"]
    assert cli("check", "--read-all", "--store", mix).rows[0][0] == "ok"
    cli("doctor", "--store", mix)


def test_the_log_of_a_mixed_store_is_merged_by_time(mix: str, cli: Any) -> None:
    cli("init", "--store", mix)
    for n in range(3):
        cli("set", "conversation/c1", "n", n, "--store", mix)
        cli("set", "team/red", "n", n, "--store", mix)
    document = cli("log", "--limit", "4", "--store", mix, "--json").document
    assert document["more"]
    named = [(event["scope"], event["revision"]) for event in document["events"]]
    assert named == [
        ("team/red", 3),
        ("conversation/c1", 3),
        ("team/red", 2),
        ("conversation/c1", 2),
    ]
    assert "no common order" in cli("log", "--before", "3", "--store", mix, code=2).err
    page = cli("log", "team/red", "--limit", "1", "--store", mix, "--json").document
    assert page["more"]
    words = ["--before", page["cursor"], "--limit", "1", "--json"]
    page = cli("log", "team/red", "--store", mix, *words).document
    assert [event["revision"] for event in page["events"]] == [2]
    words = ["--before", document["cursor"], "--store", mix, "--json"]
    rest = cli("log", *words).document
    assert [event["revision"] for event in rest["events"]] == [1, 1]
    assert not rest["more"]
    followed = cli(
        "follow", "--all", "--after", "0", "--timeout", "0", "--store", mix, "--json"
    ).out
    assert len(followed.splitlines()) == 6


def test_a_mixed_store_is_copied(mix: str, tmp_path: Path, cli: Any) -> None:
    cli("init", "--store", mix)
    cli("set", "conversation/c1", "n", 1, "--store", mix)
    cli("set", "team/red", "n", 1, "--store", mix)
    copied = cli("copy", mix, f"sqlite:{tmp_path}/one.db", "--json").document
    assert (copied["events"], copied["is_behind"], copied["marks"]) == (2, False, 0)
    assert copied["digest"] == cli("check", "--store", mix, "--json").document["digest"]


# Progress.


def test_progress_is_ten_lines_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    tenths = Tenths()
    for passed in range(1, 1001):
        tenths.show(passed, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (
        10,
        "100 of 1000 events (10 %)",
        "1000 of 1000 events (100 %)",
    )
    with progress_shown(quiet=True) as progress:
        assert progress is None
    with progress_shown(quiet=False) as progress:
        assert progress is not None
        progress(5, 10)
    assert capsys.readouterr().err == "5 of 10 events (50 %)\n"
