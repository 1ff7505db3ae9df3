"""Values, messages, facts and events of a subject in scopes of others, on every backend (0067).

BOOT-32, BOOT-94: a person can be forgotten, also where they were one of several.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import ERASED, Settings, Store
from holdfast.erasure import Erasure
from holdfast.errors import ErasedError, HeldError, KeyMissingError, UsageError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.scope import Scope
from holdfast.views.kinds import state_file
from tests.record.stores import new_url
from tests.record.test_subjects import stored
from tests.servers import postgresql, redis

CANARY = "CANARY-b17e"
SECRET = CANARY.encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def hf(url: str, keys: Path) -> Iterator[Store]:
    with holdfast.open(
        url, keys=keys, settings=Settings(indexes=[holdfast.index("team", "mail")])
    ) as store:
        yield store


def shared(hf: Store) -> Scope:
    """Returns a scope of a team in which a subject has something of every kind."""
    team = hf.team("red")
    team.set("plan", "ours")
    team.set("mail", f"{CANARY}@x.org", subject="ada")
    team.set(("customer", "address"), {"street": CANARY}, subject="ada")
    team.set("letters", [CANARY * 8000], subject="ada", key=f"{CANARY} key")
    team.set("list", ["a", "b"])
    team.set(("list", 1), CANARY, subject="ada")
    team.messages.add(
        "user", f"{CANARY} hello", subject="ada", key=f"{CANARY} m", metadata={"a": 1}
    )
    team.messages.add("tool", CANARY * 8000, tool_call_id=CANARY, subject="ada")
    team.messages.add("assistant", "good day")
    team.facts.state("place", CANARY, about=CANARY, subject="ada")
    team.record("met", {"who": CANARY}, unchecked=True, subject="ada", key=f"{CANARY} e")
    return team


def leaks(url: str, tmp_path: Path) -> str:
    """Returns the files that have the canary; read by another process, as SQLite wants it."""
    places = [str(tmp_path)]
    if url.startswith("postgresql"):
        places.append(str(postgresql.server(postgresql.NEWEST).directory))
    elif url.startswith("redis"):
        places.append(str(redis.server(next(iter(redis.installations()))).directory))
    return subprocess.run(
        ["grep", "-rl", CANARY, *places], capture_output=True, text=True, check=False
    ).stdout


def test_one_of_several_is_sealed_read_and_erased(hf: Store, url: str, tmp_path: Path) -> None:
    """Guarantee 9: no plaintext on disk at any time; ERASED afterwards; the rest is as it was."""
    team = shared(hf)
    early = team.revision
    fork = team.fork("blue")
    assert team.state["mail"] == f"{CANARY}@x.org"
    assert team.get(("customer", "address")) == {"street": CANARY}
    assert team.get(("customer", "address", "street"), "no way in") == "no way in"
    assert team.state.to_dict()["letters"] == [CANARY * 8000]
    assert team.state["list"] == ["a", CANARY]
    hello, result, other = team.messages.last(3)
    assert (hello.content, hello.metadata, other.content) == (
        f"{CANARY} hello",
        {"a": 1},
        "good day",
    )
    assert (result.content, result.tool_call_id) == (CANARY * 8000, CANARY)
    assert team.messages.edit(hello, content=f"{CANARY} edited").content == f"{CANARY} edited"
    fact = team.facts.get("place")
    assert (fact.value, fact.about) == (CANARY, CANARY)
    [met] = team.history(type="met")
    assert met.data == {"who": CANARY}
    # Questions, tables, views and files of others find nothing of it.
    assert not list(hf.query(text=CANARY))
    assert not list(hf.query(where={"mail": f"{CANARY}@x.org"}))
    hf.search.tables()
    hf._log.snapshots._write("team/red", hf._log.newest("team/red"), hf._log.snapshots._begin("t"))
    assert SECRET not in stored(hf)
    assert not leaks(url, tmp_path)
    assert b'"ada"' not in stored(hf)
    team.delete("letters")
    [subject] = hf.subjects.list()
    assert subject.scopes == ["team/red"]
    before = {name: hf._log.heads([name])[0] for name in ("team/red", "team/blue")}

    receipt = hf.subjects.erase("ada")

    assert {one.scope: one.outcome for one in receipt.scopes} == {"team/red": "unreadable"}
    assert before == {name: hf._log.heads([name])[0] for name in before}
    assert team.state.to_dict() == {
        "plan": "ours", "mail": ERASED, "customer": {"address": ERASED}, "list": ["a", ERASED]
    }  # fmt: skip
    assert team.state["mail"] is ERASED
    assert fork.state.to_dict()["letters"] is ERASED
    assert [one.content for one in team.messages.last(3)] == [ERASED, ERASED, "good day"]
    assert team.facts.get("place").value is ERASED
    [met] = team.history(type="met")
    assert met.data is ERASED
    assert {change.new for change in team.diff(1, early) if change.path == ("mail",)} == {ERASED}
    team.restore(early)
    assert team.state.to_dict()["letters"] is ERASED
    assert hf.check().findings == []
    assert not leaks(url, tmp_path)
    # Somebody who comes back is somebody else, in the same places.
    hf.subjects.readmit("ada")
    team.set("mail", "new@x.org", subject="ada")
    assert team.state["mail"] == "new@x.org"
    assert hf.subjects.get("ada").id != receipt.subject


def test_what_belongs_to_another_stays(hf: Store) -> None:
    team = hf.team("red")
    team.set("a", 1, subject="ada")
    team.set("b", 2, subject="bob")
    hf.subjects.hold("bob", "case 7")
    with pytest.raises(HeldError):
        hf.subjects.erase("bob")
    hf.subjects.erase("ada")
    assert team.state.to_dict() == {"a": ERASED, "b": 2}


def test_a_repeated_write_is_known_by_its_key(hf: Store) -> None:
    team = hf.team("red")
    first = team.set("mail", CANARY, subject="ada", key="k")
    assert team.set("mail", CANARY, subject="ada", key="k") == first
    with pytest.raises(UsageError, match="another change"):
        team.set("mail", "other", subject="ada", key="k")
    one = team.messages.add("user", CANARY, subject="ada", key="m")
    assert team.messages.add("user", CANARY, subject="ada", key="m").revision == one.revision
    assert "k" not in {event.key for event in team.history()}


def test_a_write_that_was_prepared_before_the_erasure_and_comes_after_is_refused(
    hf: Store, url: str, keys: Path
) -> None:
    team = hf.team("red")
    team.set("mail", CANARY, subject="ada")
    id = hf.subjects.get("ada").id
    hf._kernel.part(Erasure)._begin(id, "p-told")
    for write in (
        lambda: team.set("mail", "late", subject="ada"),
        lambda: team.messages.add("user", "late", subject="ada"),
        lambda: team.facts.state("place", "late", subject="ada"),
        lambda: team.record("met", {"who": "late"}, unchecked=True, subject="ada"),
    ):
        with pytest.raises(ErasedError):
            write()
    team.restore(1)  # a copy of what is sealed is no write for the subject
    assert team.state["mail"] == CANARY
    assert [one.subject for one in hf.subjects.finish()] == [id]
    assert team.state["mail"] is ERASED


def test_messages_of_a_subject_move_sealed_to_a_merge(hf: Store) -> None:
    one = hf.conversation("one")
    one.say("clear")
    two = one.fork("two")
    two.messages.add("user", f"{CANARY} one", subject="ada")
    edited = two.messages.add("user", "short", subject="ada")
    two.messages.edit(edited, content=f"{CANARY} two")
    one.say("more")
    one.messages.merge(two)
    assert [message.content for message in one.messages] == [
        "clear", f"{CANARY} one", f"{CANARY} two", "more"
    ]  # fmt: skip
    assert SECRET not in stored(hf)
    three = two.fork("three")
    three.say("three")
    hf.subjects.erase("ada")
    two.messages.merge(three)
    hf.conversation("four").messages.merge(two)
    assert [message.content for message in hf.conversation("four").messages] == [
        "clear", ERASED, ERASED, "three"
    ]  # fmt: skip


def test_a_transaction_and_an_export_keep_it_sealed(hf: Store, tmp_path: Path, keys: Path) -> None:
    team = shared(hf)
    place = tmp_path / "export.jsonl"
    with place.open("wb") as file:
        export_scopes(hf, ["team/red"], file)
    assert SECRET not in place.read_bytes()
    with holdfast.open("memory:", keys=keys) as other:
        import_scopes(other, place)
        assert other.team("red").state["mail"] == f"{CANARY}@x.org"
        hf.subjects.erase("ada")
        assert other.team("red").state["mail"] is ERASED
        assert other.team("red").messages.last(3)[0].content is ERASED
    assert "[erased]" in hf.context(team).text


def test_without_the_key_it_is_an_error_and_the_rest_is_readable(
    hf: Store, url: str, tmp_path: Path
) -> None:
    team = hf.team("red")
    team.set("plan", "ours")
    team.set("mail", CANARY, subject="ada")
    if not url.startswith("memory"):
        with holdfast.open(url, keys=tmp_path / "none") as other:
            assert other.team("red").get("plan") == "ours"
            with pytest.raises(KeyMissingError):
                other.team("red").get("mail")
            other.team("red").set("plan", "still ours")
            assert not list(other.query(text=CANARY))


# --- one backend is enough ------------------------------------------------------------------------


def test_a_file_shows_that_something_is_sealed_and_an_edit_beside_it_keeps_it(
    tmp_path: Path, keys: Path
) -> None:
    with holdfast.open(tmp_path / "viewed", keys=keys) as hf:
        red = hf.team("red")
        red.set("customer", {"name": "x"})
        red.set(("customer", "mail"), CANARY, subject="ada")
        place = tmp_path / "views"
        views = hf.views(place, [state_file(red, "red.json")])
        views.sync()
        file = place / "red.json"
        assert json.loads(file.read_text())["customer"] == {"name": "x", "mail": "[sealed]"}
        file.write_text(file.read_text().replace('"x"', '"y"'))
        views.sync()
        assert red.get("customer") == {"name": "y", "mail": CANARY}
        assert not any(SECRET in path.read_bytes() for path in place.rglob("*") if path.is_file())


WRITER = """
from holdfast import Settings
import os, sys, holdfast
url, keys, kind = sys.argv[1:]
with holdfast.open(url, keys=keys, settings=Settings(clear_ids=True)) as hf:
    scope = hf.team("own", subject="ada") if kind == "own" else hf.team("shared")
    print("ready", flush=True)
    number = 0
    try:
        while not os.path.exists(url + ".stop"):
            scope.set("n", number, **({} if kind == "own" else {"subject": "ada"}))
            number += 1
        print("went on", flush=True)
    except holdfast.ErasedError:
        print("erased", flush=True)
"""


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_an_erasure_does_not_wait_for_a_writer_that_never_pauses(
    tmp_path: Path, keys: Path, kind: str
) -> None:
    """Processes erase and write at once: no writer is waited for, none writes what is erased."""
    url = str(tmp_path / "busy")
    with holdfast.open(url, keys=keys, settings=Settings(clear_ids=True)) as hf:
        hf.team("own", subject="ada").set("n", 0)
        hf.team("shared").set("n", 0, subject="ada")
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, str(keys), kind],
                stdout=subprocess.PIPE, text=True, env={**os.environ},
            )
            for _ in range(2)
        ]  # fmt: skip
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
            while hf.team(kind).revision < 20:
                pass
            receipt = hf.subjects.erase("ada")
            # A writer that has not ended yet has the store open, and may hold old segments.
            assert {one.outcome for one in receipt.scopes} - {"pending"} <= {
                "deleted",
                "unreadable",
            }
            assert "unreadable" in {one.outcome for one in receipt.scopes}
            Path(url + ".stop").touch()
            ends = [writer.communicate(timeout=60)[0] for writer in writers]
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        assert ends.count("erased\n") == 2
        assert hf.team(kind).state.get("n") in (None, ERASED)
        assert hf.check().findings == []


def test_mixed_stores_erase_in_each_backend(tmp_path: Path, keys: Path) -> None:
    url = new_url("sqlite", tmp_path)
    backends = {"team": url, "*": str(tmp_path / "rest")}
    with holdfast.open(backends, keys=keys) as hf:
        hf.team("red").set("n", CANARY, subject="ada")
        hf.workflow("w").set("n", CANARY, subject="ada")
        hf.subjects.erase("ada")
        assert hf.team("red").get("n") is ERASED
        assert hf.workflow("w").get("n") is ERASED
