"""The verbs of schemas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import NotFoundError
from holdfast.record import read_as

CODE = """
import holdfast, msgspec


@holdfast.schema("team", version=2, aliases={"outcome": "result"})
class Desk(msgspec.Struct):
    stage: str
    mood: float = 0.5
    result: str | None = None


@holdfast.upgrade(Desk, 1)
def _(old):
    if old.get("broken"):
        raise ValueError("broken")
    return old | {"mood": 0.5}


@holdfast.downgrade(Desk, 2)
def _(new):
    return {name: value for name, value in new.items() if name != "mood"}


@holdfast.schema("conversation/support-*", version=1)
class Support(msgspec.Struct):
    n: int = 0
"""


@pytest.fixture
def desks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    Path("desks.py").write_text(CODE)
    Path("bare.py").write_text("")
    for name in ("desks", "bare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    cli("init")
    cli("set", "team/a", "stage", "open")
    cli("set", "team/b", "stage", "shut")
    cli("set", "workflow/w", "n", "1")


def test_scopes_are_migrated_from_the_command_line(desks: None, cli: Any):
    """VIC-29, BOOT-33: what lasts has a schema, and a way from one version of it to the next."""
    found = cli("migrate", "desks.py", "--check", code=1).out
    assert "team/a\t1\t2\t0\t\n" in found
    assert "0 of 2 scopes were migrated, 2 are not of their version" in found
    assert "team/a\t1\t2\t1\t\n" in cli("migrate", "desks.py", "--dry-run").out
    assert "1 of 1" not in cli("log", "team/a").out
    assert "2 of 2 scopes were migrated\n" in cli("migrate", "desks.py").out
    assert "0 of 2 scopes were migrated\n" in cli("migrate", "desks.py").out
    cli("migrate", "desks.py", "--check")
    assert "mood" in cli("show", "team/a").out
    assert "2 of 2 scopes" in cli("migrate", "desks.py:Desk", "--to", "1").out
    assert "mood" not in cli("show", "team/a").out


def test_what_cannot_be_migrated_is_named(desks: None, cli: Any):
    cli("set", "team/b", "broken", "true")
    cli("set", "team/a", "outcome", "sold")
    cli("set", "team/a", "result", "both")
    found = cli("migrate", "desks.py", code=18)
    assert "1 of 2 scopes were migrated, 1 are not of their version" in found.out
    assert "ValueError: broken" in found.out
    found = cli("migrate", "desks.py", "--check", code=1)
    assert "team/a\t2\t2\t0\thas outcome too" in found.out


def test_a_scope_with_a_schema_is_not_written_unchecked(desks: None, cli: Any):
    cli("migrate", "desks.py")
    refused = cli("set", "team/a", "stage", "3", code=19)
    assert "a schema that this program has not" in refused.err
    cli("set", "team/a", "stage", "new", "--unchecked")
    cli("delete", "team/a", "stage", code=19)
    cli("delete", "team/a", "stage", "--unchecked")
    with holdfast.open("store") as store:
        assert store._log.newest("team/a").version == 2


def test_schemas_are_listed_and_shown(desks: None, cli: Any):
    assert "team\t\t\t2 of version 0\n" in cli("schema", "list").out
    listed = cli("schema", "list", "desks.py").out
    assert "team\tDesk\t2\t2 of version 0\n" in listed
    assert "conversation/support-*\tSupport\t1\t\n" in listed
    assert "workflow" not in listed
    cli("migrate", "desks.py")
    assert "team\t\t\t2 of version 2\n" in cli("schema", "list").out
    shown = cli("schema", "show", "desks.py", "Desk").out
    assert "upgrades from\t1\n" in shown
    assert "aliases\toutcome is result\n" in shown
    assert "stage\tstr\trequired\n" in shown
    assert "upgrades from\tnone\n" in cli("schema", "show", "desks.py:Support").out
    assert "it has Desk (team)" in cli("schema", "show", "desks.py", code=3).err
    assert 'no schema "Desks"' in cli("schema", "show", "desks.py", "Desks", code=3).err


def test_what_differs_from_what_is_stored_is_shown(desks: None, cli: Any):
    shown = cli("schema", "diff", "desks.py", "team/a").out
    assert shown == "+\tmood\t\t0.5\n"
    cli("migrate", "desks.py")
    assert cli("schema", "diff", "desks.py", "team/a").out == ""
    assert "no schema for scope" in cli("schema", "diff", "desks.py", "workflow/w", code=3).err


def test_code_without_schemas_is_refused(desks: None, cli: Any):
    assert "has no schema" in cli("migrate", "bare.py", code=3).err
    assert 'has no schema "Other"' in cli("migrate", "desks.py:Other", code=3).err


ITEMS = """
import holdfast, msgspec


@holdfast.schema("team", version=2, kind="decision", aliases={"outcome": "result"})
class Choice(msgspec.Struct):
    decision: str
    tags: list[str] = []
    result: str | None = None


@holdfast.upgrade(Choice, 1)
def _(old):
    return old | {"tags": []}


@holdfast.schema("team", version=3, kind="message")
class Line(msgspec.Struct):
    role: str
    content: str
"""


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns a store beside a file with schemas of decisions and messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.py").write_text(ITEMS)
    place = str(tmp_path / "state")
    holdfast.open(place).close()
    monkeypatch.setenv("HOLDFAST_STORE", place)
    monkeypatch.delitem(sys.modules, "items", raising=False)
    return place


def test_decisions_and_messages_are_written_with_their_version(items: str, cli: Any):
    """BOOT-67: a field of one's own, and the version of the schema, from the command line."""
    given = ("--more", 'tags=["blue"]', "--more", "note=as agreed", "--schemas", "items.py")
    made = cli("decide", "team/a", "ship", "--key", "d1", *given, "--json").document
    assert made["more"] == {"tags": ["blue"], "note": "as agreed"}
    said = ("--metadata", "lang=en", "--schemas", "items.py")
    assert "message added" in cli("say", "team/a", "hello", *said).out
    cli("decide", "team/a", "wait", "--key", "d2")
    shown = cli("decisions", "d1@team/a").out
    assert "tags" in shown
    assert "as agreed" in shown
    with holdfast.open(items) as hf:
        [older, newer] = hf.decisions.list(scope="team/a")[::-1]
        assert (older.version, newer.version) == (2, 0)
        [line] = hf.team("a").messages
        assert line.metadata == {"lang": "en"}
        assert read_as(sys.modules["items"].Choice, older).tags == ["blue"]
        assert read_as(sys.modules["items"].Line, line).content == "hello"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--more", "tags"), 2, 'a further field is typed as NAME=VALUE, found "tags"'),
        (("--more", "a=1", "--more", "a=2"), 2, 'a further field "a" is given twice'),
        (("--more", "status=open"), 2, "every decision has status: more is for fields of your own"),
        (("--schemas", "nothing.py"), NotFoundError.exit_code, 'there is no file "nothing.py"'),
        (
            ("--schemas", "items.py:Nope"),
            NotFoundError.exit_code,
            'has no schema "Nope": it has Choice, Line',
        ),
    ],
)
def test_fields_and_schemas_that_are_wrong(items: str, cli: Any, words: Any, code: int, said: str):
    assert said in cli("decide", "team/a", "ship", *words, code=code).err
    with holdfast.open(items) as hf:
        assert not hf.decisions.list()


def test_schemas_of_items_are_listed_and_shown(items: str, cli: Any):
    found = cli("schema", "list", "items.py").out
    assert "team (decisions)\tChoice\t2\t\n" in found
    assert "team (messages)\tLine\t3\t\n" in found
    kinds = [one["kind"] for one in cli("schema", "list", "items.py", "--json").document["schemas"]]
    assert kinds == ["decision", "message"]
    assert "its decisions" in cli("schema", "show", "items.py", "Choice").out
    assert cli("schema", "show", "items.py", "Line", "--json").document["kind"] == "message"
    failed = cli("schema", "show", "items.py", "team", code=NotFoundError.exit_code).err
    assert '"items.py" has several schemas "team"' in failed
    assert "Choice (team (decisions)), Line (team (messages))" in failed
    assert (
        '"items.py" has no schema' in cli("migrate", "items.py", code=NotFoundError.exit_code).err
    )


@pytest.mark.parametrize("how", ["--check", "--dry-run"])
def test_looking_at_what_a_migration_would_do_writes_nothing(
    desks: None, cli: Any, monkeypatch: pytest.MonkeyPatch, how: str
):
    """Also on a store that may only be read."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the store was opened to be written")

    before = cli("status", "--json").document["digest"]
    monkeypatch.setattr("holdfast.cli.schemas.open_writing", refused)
    found = cli("migrate", "desks.py", how, code=1 if how == "--check" else 0).out
    assert "0 of 2 scopes were migrated, 2 are not of their version" in found
    assert cli("status", "--json").document["digest"] == before
