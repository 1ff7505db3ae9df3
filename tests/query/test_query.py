"""Questions over everything recorded: what they find, how they wait, what they refuse."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Settings, Store, aio
from holdfast.backends.derived_file import SideFile
from holdfast.errors import UnavailableError, UsageError
from holdfast.query import follow
from holdfast.query.form import check_query
from holdfast.query.index import QueryIndex
from holdfast.query.scan import scan
from holdfast.query.words import chunks_of, has_term, parse_text, split_words
from holdfast.record.context import RecordContext
from holdfast.search import Where
from holdfast.testing import FakeClock
from tests.record.stores import new_url


def ids(hits: Any) -> list[str]:
    return [hit.id for hit in hits]


def test_decisions_by_whom_since_when_and_about_what(hf: Store) -> None:
    """BOOT-29: all decisions by one agent in the last days about a topic."""
    chat = hf.conversation("c1")
    chat.decide("use Redux", because="state management is hard", key="d1")
    chat.decide("use tabs", because="of style", key="d2")
    hf.team("red").decide("keep the state", action="management of it", key="d3")
    found = hf.query(kind="decision", actor="architect", since="7d", text="state management")
    assert sorted(ids(found)) == ["d1@conversation/c1", "d3@team/red"]
    assert ids(hf.query(kind="decision", text='"state management"')) == ["d1@conversation/c1"]
    assert not hf.query(kind="decision", actor="somebody")
    assert not hf.query(kind="decision", until="7d")
    assert found.behind == 0
    assert found.position == int(hf.position)


def test_a_question_finds_what_the_lists_show(hf: Store) -> None:
    chat = hf.conversation("c1")
    for number in range(6):
        chat.say(f"message {number}")
    chat.messages.delete(chat.messages[1])
    chat.messages.edit(chat.messages[0], content="edited")
    chat.tasks.add("write", id="t1", tags=["doc"])
    chat.tasks.add("read", id="t2", depends_on=["t1"])
    chat.tasks.close("t1", "written")
    chat.facts.state("tests", {"result": "pass"}, about="the suite")
    chat.facts.state("gone", 1)
    chat.facts.withdraw("gone")
    chat.decide("a", key="d1", links=["file:a.py"])
    hf.decisions.close("d1@conversation/c1", "it worked")
    chat.decide("b", key="d2")
    fork = chat.fork("c2")
    fork.say("in the fork")
    fork.set("k", 1)
    for scope in (chat, fork):
        shown = {
            "message": {one.id for one in scope.messages},
            "decision": {one.id for one in hf.decisions.list(scope=scope)},
            "task": {one.id for one in scope.tasks.list()},
            "fact": {one.name for one in scope.facts.list()},
        }
        for kind, listed in shown.items():
            found = hf.query(kind=kind, scope=scope)  # pyright: ignore[reportArgumentType]
            assert set(ids(found)) == listed, kind
    assert [hit.shown for hit in hf.query(text="edited", scope=chat)] == ["edited"]
    assert not hf.query(text='"message 0"')
    assert {hit.id: hit.status for hit in hf.query(kind="task", scope=chat)} == {
        "t1": "completed",
        "t2": "open",
    }
    assert ids(hf.query(tag="doc", scope=chat)) == ["t1"]
    assert ids(hf.query(links="task:t1", scope=chat)) == ["t2"]
    assert ids(hf.query(links="file:a.py", scope=chat)) == ["d1@conversation/c1"]
    assert ids(hf.query(text="worked", status="closed", scope=chat)) == ["d1@conversation/c1"]
    assert ids(hf.query(where={"k": 1})) == ["conversation/c2"]


def test_a_decision_that_a_fork_inherited_is_as_it_is_now(hf: Store) -> None:
    chat = hf.conversation("c1")
    chat.decide("a", key="d1")
    chat.fork("c2").fork("c3")
    assert [hit.status for hit in hf.query(kind="decision")] == ["open"] * 3
    hf.decisions.close("d1@conversation/c1", "done")
    assert [hit.status for hit in hf.query(kind="decision")] == ["closed"] * 3


def test_lives(hf: Store) -> None:
    chat = hf.conversation("c1")
    chat.say("first life")
    chat.set("k", "first")
    hf.query()
    chat.remove()
    assert not hf.query()
    assert len(hf.query(type="removed")) == 1
    chat.say("second life")
    assert [hit.shown for hit in hf.query()] == ["second life"]
    chat.remove()
    chat.undo()
    assert [hit.shown for hit in hf.query()] == ["second life"]


def test_scopes_that_end_by_themselves_are_not_found(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(str(tmp_path / "s"), settings=Settings(clock=clock)) as hf:
        hf.conversation("short", ttl_s=10).say("soon gone")
        hf.conversation("long").say("stays")
        assert len(hf.query(kind="message")) == 2
        clock.advance(11)
        assert [hit.shown for hit in hf.query(kind="message")] == ["stays"]
        assert len(hf.query(kind="log", scope="*/short")) == 0
        hf.search.rebuild()
        assert [hit.shown for hit in hf.query(kind="message")] == ["stays"]


def test_runs_and_events(hf: Store) -> None:
    @holdfast.step(effect="pure")
    def one() -> int:
        return 1

    @holdfast.run
    def pay(ctx: Any) -> int:
        return ctx.step(one)

    hf.runs.start(pay, id="r1").result(timeout=60)
    [found] = hf.query(kind="run")
    assert (found.id, found.status, found.type.rpartition(".")[2]) == ("r1", "completed", "pay")
    assert [hit.type for hit in hf.query(type="run.ended")] == ["run.ended"]
    hf.conversation("c").set("k", 1)
    assert ids(hf.query(type="changed")) == ["conversation/c@1"]
    assert "changed" in {hit.type for hit in hf.query(kind="log")}


@holdfast.event("build_failed")
class BuildFailed(msgspec.Struct):
    why: str
    tags: list[str] = []


def test_events_of_your_own(hf: Store) -> None:
    """BOOT-18, BOOT-31: events with references, and what refers to a decision."""
    chat = hf.conversation("c")
    chat.record(BuildFailed("the disk is full", ["ci"]), refs=["decision:d7", "file:a.py"])
    [found] = hf.query(text="disk full")
    assert (found.kind, found.type, found.id) == ("event", "build_failed", "conversation/c@1")
    for asked in (
        {"kind": "event"},
        {"type": "build_failed"},
        {"type": BuildFailed},
        {"links": "decision:d7"},
        {"tag": "ci"},
    ):
        assert list(hf.query(**asked)) == [found]
    assert ids(hf.query(kind="log")) == ["conversation/c@1"]
    fork = chat.fork("d")
    assert [hit.scope for hit in hf.query(kind="event")] == [fork.name, chat.name]
    chat.remove()
    assert [hit.scope for hit in hf.query(kind="event")] == [fork.name]
    assert len(hf.query(kind="log", type="build_failed")) == 1


def test_pages_and_times(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(str(tmp_path / "s"), settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c")
        for number in range(7):
            clock.advance(60)
            chat.say(f"m{number}")
        seen: list[str] = []
        cursor = None
        while True:
            page = hf.query(kind="message", limit=3, after=cursor)
            seen += [hit.shown for hit in page]
            cursor = page.cursor
            if not page.more:
                break
        assert seen == [f"m{number}" for number in range(6, -1, -1)]
        newest = hf.query(limit=1)[0].time
        assert [hit.shown for hit in hf.query(since=newest)] == ["m6"]
        assert len(hf.query(until=newest)) == 6
        assert len(hf.query(since="90s")) == 2
        assert len(hf.query(since=timedelta(minutes=1.5), until=30)) == 1
        assert not hf.query(since=datetime(2100, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (("customer.id", "=", 7), ["b"]),
        (("customer.id", "!=", 7), ["a"]),
        (("customer.id", "<", 7), ["a"]),
        (("customer.id", "<=", 7), ["b", "a"]),
        (("customer.id", ">", 3), ["b"]),
        (("customer.id", ">=", 3), ["b", "a"]),
        (("customer.id", "in", [3, 4]), ["a"]),
        (("customer.id", "exists"), ["b", "a"]),
        (("customer.id", "exists", False), ["c"]),
        (("customer.id", "=", "7"), []),
        (("customer.id", "=", True), []),
        (("customer.name", ">", "Ann"), ["b"]),
        (("customer", "=", 7), []),
        (("tags[1]", "=", "y"), ["c"]),
        ([("customer.id", ">", 1), ("customer.name", "=", "Ann")], ["a"]),
        (Where("customer.id", "=", 7), ["b"]),
        ({"customer.id": 3}, ["a"]),
    ],
)
def test_comparisons_of_the_state(condition: Any, found: list[str]) -> None:
    with holdfast.open("memory:") as hf:
        hf.team("a").set("customer", {"id": 3, "name": "Ann"})
        hf.team("b").set("customer", {"id": 7, "name": "Bob"})
        hf.team("c").set("tags", ["x", "y"])
        hf.team("d").say("has no state")
        assert [hit.id.partition("/")[2] for hit in hf.query(where=condition)] == found
        assert not hf.query(kind="task", where=condition)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"knid": "task"}, "no field 'knid': the nearest is \"kind\""),
        ({"kind": "decisions"}, 'the nearest is "decision"'),
        ({"where": ("a", "==", 1)}, "no operator '==': the nearest is \"=\""),
        ({"where": ("a", "inn", 1)}, 'the nearest is "in"'),
        ({"where": "a=1"}, "a comparison is a path, an operator and a value"),
        ({"where": ("a", "in", "text")}, "in takes a list"),
        ({"where": ("", "=", 1)}, "path '' cannot be read"),
        ({"where": ("a", "exists", 3)}, "the value of exists"),
        ({"text": 3}, "text is words"),
        ({"text": '"open'}, "is not closed"),
        ({"text": "..."}, "no word to look for"),
        ({"actor": 3}, "actor is text"),
        ({"status": 3}, "status is text or a list"),
        ({"status": [3]}, "status is text or a list"),
        ({"since": "yesterday"}, "since is a time"),
        ({"since": datetime(2026, 1, 1)}, "needs a time zone"),
        ({"after": "x"}, "not a cursor of query"),
        ({"timeout": -1}, "timeout"),
        ({"stale_ok": 1}, "stale_ok is True or False"),
        ({"scope": 3}, "a scope is a scope or its name"),
        ({"limit": 0}, "limit"),
    ],
)
def test_bad_questions_say_what_is_nearest(asked: dict[str, Any], said: str) -> None:
    with holdfast.open("memory:") as hf, pytest.raises(UsageError) as refused:
        hf.query(**asked)
    assert said in str(refused.value)


def test_terms_are_never_pasted_into_sql(hf: Store) -> None:
    hf.conversation("c").say("robert drop table docs")
    for text in (
        "'; DROP TABLE docs; --",
        'a" OR "b',
        "x) OR 1=1",
        "* AND NOT x",
        "a:b | c & !d",
    ):
        hf.query(text=text, actor=text, scope=f"{text}*", tag=text, links=text)
    assert len(hf.query(text="DROP table")) == 1
    assert not hf.query(text="NEAR(robert table)")
    assert not hf.query(scope="conversatio?/c*")
    assert not hf.query(scope="conversation_*%")


def test_words() -> None:
    assert split_words("Hello, World_1! don't") == ["hello", "world_1", "don", "t"]
    assert split_words("Straße ÄRGER ﬁn 日本") == ["strasse", "ärger", "fin", "日", "本"]
    assert split_words("x" * 500) == ["x" * 100]
    assert not chunks_of(["", "..."])
    long = chunks_of([" ".join(["the"] * 600)])
    assert [len(chunk) for chunk in long] == [250, 250, 100]
    assert not has_term(chunks_of(["one two", "three"]), parse_text('"two three"')[0])
    assert has_term(chunks_of(["one two", "three"]), parse_text('"one two"')[0])


def test_long_texts_are_found_by_words_far_apart(hf: Store) -> None:
    filler = " ".join(f"w{number}" for number in range(4500))
    hf.conversation("c").say(f"alpha {filler} omega")
    hf.conversation("c").say("the " * 700 + "end")
    assert len(hf.query(text="alpha omega w2500")) == 1
    assert len(hf.query(text='"w100 w101"')) == 1
    assert len(hf.query(text='"the end"')) == 1
    assert not hf.query(text='"alpha omega"')


def test_words_among_many_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.backends import derived_file

    monkeypatch.setattr(derived_file, "COUNTED_MAX", 3)
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        for number in range(9):
            chat.say(f"message number {number} of many")
        chat.say("alpha " + " ".join(f"w{number}" for number in range(2500)) + " omega")
        assert [hit.shown for hit in hf.query(text="many 7")] == ["message number 7 of many"]
        assert len(hf.query(text="alpha omega")) == 1
        assert len(hf.query(text="mess*")) == 9


def test_links_are_resolved_and_dangling_ones_listed(hf: Store) -> None:
    """BOOT-31: back-references across the record; those that lead nowhere are reported."""
    chat = hf.conversation("c")
    chat.decide("use it", key="d1", links=["file:a.py", "task:t1", "task:none", "message:gone"])
    chat.tasks.add("write", id="t1")
    message = chat.messages.add("user", "hi", links=["conversation/c", "conversation/nowhere"])
    chat.record(
        "noted",
        {},
        unchecked=True,
        refs=[
            "decision:d1@conversation/c",
            "decision:d9@x/y",
            "event:conversation/c@1",
            "https://a.example",
        ],
    )
    chat.facts.state("tests", "pass")
    fork = chat.fork("d")

    def led(link: str, scope: Any = chat) -> Any:
        found = hf.search.resolve(link, scope=scope)
        return found and (found.kind, found.id)

    assert led("decision:d1@conversation/c") == ("decision", "d1@conversation/c")
    assert led("decision:d1") == led("decision:d1", fork) == ("decision", "d1@conversation/c")
    assert led("task:t1") == led("task:t1@conversation/c", "global") == ("task", "t1")
    assert led(f"message:{message.id}") == ("message", message.id)
    assert led("fact:tests") == ("fact", "tests")
    assert led("event:conversation/c@1") == ("log", "conversation/c@1")
    for nowhere in ("task:t2", "run:r1", "file:a.py", "conversation/none"):
        assert led(nowhere) is None
    with pytest.raises(UsageError):
        hf.search.resolve("")
    found = {(one.scope, one.link) for one in hf.search.dangling_links()}
    links = ("task:none", "message:gone", "conversation/nowhere", "decision:d9@x/y")
    assert found == {(scope.name, link) for scope in (chat, fork) for link in links}


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_links_into_expired_scopes_dangle_and_those_without_a_key_are_left_out(
    kind: str, tmp_path: Path
) -> None:
    settings = Settings(clock=(clock := FakeClock()), clear_ids=True)
    keys, url = tmp_path / "keys", new_url(kind, tmp_path)
    with holdfast.open(url, keys=str(keys), settings=settings) as hf:
        short = hf.conversation("short", ttl_s=10)
        short.set("a", 1)
        short.tasks.add("write", id="t1")
        short.tasks.claim("t1", owner="bob")
        of_ada = hf.conversation("sealed", subject="ada")
        of_ada.set("a", 1)
        of_ada.tasks.add("read", id="t2")
        links = ["key:a@conversation/short", "conversation/short", "scope:conversation/short",
                 "agent:bob", "key:a@conversation/sealed", "agent:ghost"]  # fmt: skip
        hf.team("red").set("refs", [{"$ref": link} for link in links])
        assert [one.link for one in hf.search.dangling_links()] == ["agent:ghost"]
        clock.advance(60)
        expired = {"agent:bob", "agent:ghost", *links[:3]}
        assert {one.link for one in hf.search.dangling_links()} == expired
        assert hf.search.resolve(links[0], scope="team/red") is None
    [lost] = (keys / "ids").iterdir()
    lost.unlink()
    with holdfast.open(url, keys=str(keys), settings=settings) as hf:
        assert {one.link for one in hf.search.dangling_links()} == expired


def test_links_to_agents_workers_scopes_and_keys_lead_somewhere(hf: Store) -> None:
    """BOOT-31, BOOT-58: who is named exists, and one key of a state refers to another."""
    chat, team = hf.conversation("c"), hf.team("red")
    chat.tasks.add("write", id="t1")
    chat.tasks.claim("t1", owner="bob")
    hf.workers.lease("nightly").give_back()
    own = hf.workers.own
    there = ["agent:bob", f"agent:{hf._log.actor}", f"worker:{own}", "conversation/c"]
    gone = ["agent:ghost", "worker:ghost", "team/none", "scope:team/none", "key:plan.1@team/none"]
    chat.decide("use it", key="d1", links=[*there, *gone])
    team.set("plan", [{"step": "one"}])
    team.set("now", {"$ref": "task:t1@conversation/c"})
    team.set("then", {"deep": [{"$ref": "task:t9"}, {"$ref": "key:plan.0.step"}]})
    team.set("odd", [{"$ref": "key:plan.1"}, {"$ref": 7}, {"$ref": "task:t8", "more": 1}])

    found = {one.link for one in hf.search.dangling_links()}
    assert found == {"agent:ghost", "worker:ghost", "scope:team/none", "key:plan.1@team/none",
                     "task:t9", "key:plan.1"}  # fmt: skip
    assert [hit.id for hit in hf.query(kind="state", links="task:t1@conversation/c")] == [
        "team/red"
    ]

    def led(link: str, scope: Any = chat) -> Any:
        found = hf.search.resolve(link, scope=scope)
        return found and (found.kind, found.id.partition("@")[0])

    assert led("key:plan.0.step", team) == led("key:plan@team/red") == ("state", "team/red")
    assert led("key:plan.7", team) is None
    assert led(f"worker:{own}") == ("log", "store/workers")
    assert led("worker:ghost") is None
    assert led(f"agent:{hf._log.actor}")[0] == "log"
    team.set("step", 1)
    assert led("scope:team/red") == ("state", "team/red")


# --- the index --------------------------------------------------------------------------------


def test_an_index_outlives_its_process_and_follows(durable_url: str) -> None:
    with holdfast.open(durable_url, actor="architect") as hf:
        hf.conversation("c").say("one")
        assert len(hf.query(text="one")) == 1
        before = hf.search.status()
        hf.conversation("c").say("two")
        assert hf.search.status().behind > 0
    with holdfast.open(durable_url) as hf:
        assert hf.search.status().position == before.position
        assert len(hf.query(kind="message")) == 2
        assert hf.search.status().behind == 0


@pytest.mark.parametrize("kind", ["files", "sqlite"])
@pytest.mark.parametrize("harm", ["bytes", "empty", "foreign", "format", "link", "gone"])
def test_a_damaged_or_foreign_index_is_made_again(
    kind: str, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "s") if kind == "files" else f"sqlite:{tmp_path / 's.db'}"
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        hf.query()
        place = Path(hf.search.status().place)
    if harm == "bytes":
        place.write_bytes(b"\x00nonsense" * 4096)
    elif harm == "empty":
        os.truncate(place, 0)
    elif harm == "gone":
        place.unlink()
    else:
        _change_index(place, harm)
    with caplog.at_level(logging.WARNING, "holdfast.query"), holdfast.open(url) as hf:
        assert [hit.shown for hit in hf.query()] == ["one"]
        assert hf.check().ok
    told = [record for record in caplog.records if "is made again" in record.message]
    assert bool(told) is (harm not in ("empty", "gone"))


@pytest.mark.parametrize("harm", ["a folder", "a link to nothing", "a loop of links"])
def test_what_is_no_file_where_the_index_was(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        hf.query()
        place = Path(hf.search.status().place)
    place.unlink()
    if harm == "a folder":
        place.mkdir()
        (place / "kept").write_text("it is not ours")
    else:
        place.symlink_to(place if harm == "a loop of links" else tmp_path / "nowhere/index.db")
    for is_told in (True, False):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast.query"), holdfast.open(url) as hf:
            assert [hit.shown for hit in hf.query()] == ["one"]
            assert hf.search.status().place != str(place)
        assert ("is made again" in caplog.text) is is_told
    assert place.is_dir() is (harm == "a folder"), "what is not ours is left where it is"


def test_an_index_that_may_not_be_opened_is_named_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A question says so; what the record shows by itself does not depend on it."""
    from holdfast.record import decisions

    monkeypatch.setattr(decisions, "LOOKED_MAX", 2)
    monkeypatch.setattr(decisions, "PAGE", 2)
    with holdfast.open(str(tmp_path / "s")) as hf:
        chat = hf.conversation("c")
        chat.decide("one", key="d1").outcome("done")
        for number in range(6):
            chat.say(f"say {number}")
        hf.query()
    opened = os.open

    def refuse(path: Any, *given: Any, **named: Any) -> int:
        if str(path).endswith("index-1.db"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *given, **named)

    with holdfast.open(str(tmp_path / "s")) as hf:
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError, match=r'index-1.db" cannot be used: .*denied'):
            hf.query()
        assert [one.key for one in hf.conversation("c").decisions.recall().recent] == ["d1"]
        assert "the index is not used" in caplog.text


def _change_index(place: Path, harm: str) -> None:
    """Changes what an index says of itself, in a process of its own."""
    name = {"foreign": "store", "format": "format", "link": "end"}[harm]
    value = '["conversation/c",1,"00"]' if harm == "link" else "another"
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        "db.execute('UPDATE about SET value = ? WHERE name = ?', sys.argv[2:4]); db.commit()"
    )
    subprocess.run([sys.executable, "-c", program, str(place), value, name], check=True)


def test_tables_that_are_dropped_on_a_server_are_made_again(tmp_path: Path) -> None:
    from tests.record.stores import new_url

    url = new_url("postgresql", tmp_path)
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        hf.query()
        tables = hf._log.side_tables("query")
        assert tables is not None
        tables.write(lambda session: session.ask("DROP TABLE words"))
        assert len(hf.query(text="one")) == 1
        tables.reset()
        assert len(hf.query(text="one")) == 1


def test_an_index_that_is_ahead_of_its_store_is_made_again(tmp_path: Path) -> None:
    """A store that was put back from a backup: what the index follows is not there any more."""
    import shutil

    url = f"sqlite:{tmp_path / 's.db'}"
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
    shutil.copy(tmp_path / "s.db", tmp_path / "old.db")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("two")
        assert len(hf.query()) == 2
    shutil.copy(tmp_path / "old.db", tmp_path / "s.db")
    (tmp_path / "s.db-witness").unlink()
    with holdfast.open(url) as hf:
        assert [hit.shown for hit in hf.query()] == ["one"]
        hf.conversation("c").say("three")
        assert [hit.shown for hit in hf.query()] == ["three", "one"]


def test_where_another_process_fills_the_index_a_question_waits(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
        hf.query()
        hf.conversation("c").say("two")
        folder = Path(hf.search.status().place).parent
        with open(folder / "indexer.lock", "rb+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(UnavailableError, match="behind after"):
                hf.query(timeout=0.05)
            late = hf.query(timeout=0, stale_ok=True)
            assert [hit.shown for hit in late] == ["one"]
            assert late.behind == 1
        assert len(hf.query()) == 2


def test_two_processes_share_an_index(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    program = (
        "import holdfast, sys\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    for n in range(40):\n"
        "        hf.conversation('c' + sys.argv[2]).say(f'message {n}')\n"
        "        assert len(hf.query(scope='conversation/c' + sys.argv[2])) == n + 1\n"
    )
    holdfast.open(url).close()
    work = [sys.executable, "-c", program, url]
    children = [subprocess.Popen([*work, str(number)]) for number in range(2)]
    assert [child.wait(timeout=300) for child in children] == [0, 0]
    with holdfast.open(url) as hf:
        assert len(hf.query(kind="message")) == 80
        assert list(hf.query()) == list(scan(hf._kernel.part(RecordContext), check_query(0)))


def test_an_index_that_two_make_at_once_is_made(tmp_path: Path) -> None:
    """Whoever sets the mode of a new file beside another is not told that it is busy."""
    with ThreadPoolExecutor(2) as threads:
        for number in range(60):
            both = [SideFile(str(tmp_path / str(number))) for _ in range(2)]
            start = threading.Barrier(2)

            def look(file: SideFile, start: threading.Barrier = start) -> bool:
                start.wait()
                return file.read(file.is_empty)

            assert list(threads.map(look, both)) == [True, True]
            for file in both:
                file.close()


@pytest.mark.parametrize("kind", ["files", "sqlite", "postgresql"])
def test_a_kill_while_the_index_is_made_loses_nothing(kind: str, tmp_path: Path) -> None:
    from tests.record.stores import new_url

    url = new_url(kind, tmp_path)
    with holdfast.open(url) as hf:
        chat = hf.conversation("c")
        for number in range(60):
            chat.say(f"m {number}")
        chat.fork("d").say("in the fork")
        chat.remove()
    program = (
        "import holdfast, os, signal, sys\n"
        "from holdfast.query import index\n"
        "index.BATCH_EVENTS = 5\n"
        "steps, applied = int(sys.argv[2]), index.QueryIndex._apply\n"
        "def apply(self, *given):\n"
        "    global steps\n"
        "    applied(self, *given)\n"
        "    steps -= 1\n"
        "    if not steps:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "index.QueryIndex._apply = apply\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    hf.query()\n"
    )
    for steps in (1, 3, 5):
        killed = subprocess.run([sys.executable, "-c", program, url, str(steps)], check=False)
        assert killed.returncode == -9
    with holdfast.open(url) as hf:
        assert len(hf.query(scope="conversation/d")) == 61
        for asked in ({}, {"kind": "log"}, {"text": "17"}):
            query = check_query(hf._log.clock.now_us(), **asked)
            assert list(hf.query(**asked)) == list(scan(hf._kernel.part(RecordContext), query))


def test_an_index_in_memory_where_a_store_is_only_read(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").say("one")
    with holdfast.open(url, read_only=True) as hf:
        assert len(hf.query()) == 1
        assert hf.search.status().place == ":memory:"
    assert not (tmp_path / "s/query").exists()
    with holdfast.open(url) as hf:
        hf.query()
    with holdfast.open(url, read_only=True) as hf:
        assert hf.search.status().place != ":memory:"


def test_an_index_in_memory_where_there_is_no_place(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        (tmp_path / "s/query").write_text("in the way")
        hf.conversation("c").say("one")
        assert len(hf.query()) == 1
        assert hf.search.status().place == ":memory:"


def test_a_mixed_store_has_an_index(tmp_path: Path) -> None:
    urls = {"team": str(tmp_path / "files"), "*": f"sqlite:{tmp_path / 'rest.db'}"}
    with holdfast.open(urls) as hf:
        for number in range(3):
            hf.team("red").say(f"team {number}")
            hf.conversation("c").say(f"chat {number}")
        assert len(hf.query(text="team")) == 3
        hf.conversation("c").say("chat 3")
        assert hf.search.status().behind == 1
        assert len(hf.query()) == 7


def test_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(str(tmp_path / "s")) as hf:
            await hf.conversation("c").say("one")
            assert [hit.shown for hit in await hf.query(text="one")] == ["one"]
            await hf.search.rebuild()
            assert (await hf.search.status()).position == 0

    asyncio.run(main())


# --- planted faults -----------------------------------------------------------------------------


def _is_as_scanned(hf: Store) -> bool:
    return list(hf.query()) == list(scan(hf._kernel.part(RecordContext), check_query(0)))


def test_an_index_that_misses_forks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_WHOLE", follow._WHOLE - {"forked"})
    with holdfast.open("memory:") as hf:
        hf.conversation("c").say("one")
        assert _is_as_scanned(hf)
        hf.conversation("c").fork("d")
        assert not _is_as_scanned(hf)


def test_an_answer_before_the_index_has_caught_up_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c").say("one")
        assert _is_as_scanned(hf)
        monkeypatch.setattr(QueryIndex, "follow", lambda self, target, timeout_s: target)
        hf.conversation("c").say("two")
        assert not _is_as_scanned(hf)


def test_an_index_that_forgets_its_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = QueryIndex._apply

    def forget(self: QueryIndex, session: Any, seen: Any, *rest: Any) -> None:
        applied(self, session, seen, *rest)
        session.ask("UPDATE about SET value = '0' WHERE name = 'position'")

    monkeypatch.setattr(QueryIndex, "_apply", forget)
    with holdfast.open("memory:") as hf:
        hf.conversation("c").say("one")
        with pytest.raises(UnavailableError):
            hf.query(timeout=0.01)


def test_the_position_of_a_call_is_waited_for(tmp_path: Path) -> None:
    """On a server, a commit under way may come before one that was acknowledged."""
    from tests.record.stores import new_url

    with holdfast.open(new_url("postgresql", tmp_path)) as hf:
        hf.conversation("c").say("one")
        assert len(hf.query()) == 1
        side = hf._log.side_tables("stranger")
        assert side is not None

        def write(session: Any) -> None:
            session.ask("CREATE SCHEMA IF NOT EXISTS holdfast_stranger")
            hf.conversation("c").say("two")
            began = time.monotonic()
            with pytest.raises(UnavailableError, match="behind"):
                hf.query(timeout=0.05)
            assert time.monotonic() - began < 60
            hf.query(timeout=0, stale_ok=True)

        side.write(write)
        assert len(hf.query()) == 2
