"""Lists of decisions ask the index: they equal what reading events gives, and read few of them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Store
from holdfast.contrib import task_lifetimes
from holdfast.contrib.task_lifetimes import SessionJob
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.query import decided, index
from holdfast.record import decisions
from holdfast.record.context import RecordContext
from tests.crash.children import Child
from tests.query.histories import SCOPES, actions, perform
from tests.record.kills import await_deaths, open_dying
from tests.record.stores import ALL, new_url

EXAMPLES = {"memory": 40, "files": 8, "sqlite": 6, "redis": 5, "postgresql": 5}


def listed(store: Store) -> list[Any]:
    """Returns what every list of decisions shows, page by page too."""
    found: list[Any] = []
    questions: list[dict[str, Any]] = [{}, *({"scope": f"conversation/{one}"} for one in SCOPES)]
    for asked in questions:
        found.append(list(store.decisions.list(**asked, limit=None)))
        page = store.decisions.list(**asked, limit=1)
        paged = list(page)
        while page.more:
            page = store.decisions.list(**asked, limit=1, after=page.cursor)
            paged += page
        found.append(paged)
    for one in SCOPES:
        chat = store.conversation(one)
        found.append(list(store.decisions.list(scope=chat, before=7)))
        for read in (
            chat.decisions.recall,
            chat.messages.render,
            lambda: store.stale(verify=False),
        ):
            try:
                found.append(read())
            except HoldfastError as error:
                found.append(str(error))
    return found


@contextmanager
def without_index(store: Store) -> Generator[None]:
    """The block in which lists are made of events alone."""
    context = store._kernel.part(RecordContext)
    find, context.find_decisions = context.find_decisions, None
    try:
        yield
    finally:
        context.find_decisions = find


@pytest.mark.parametrize("backend", ALL)
def test_lists_from_the_index_equal_those_from_events(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "LOOKED_MAX", 3)
    monkeypatch.setattr(decisions, "PAGE", 2)
    monkeypatch.setattr(decided, "EVENT_S", 1.0)
    with tempfile.TemporaryDirectory() as place:
        monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", f"{place}/caches")

        @settings(
            max_examples=EXAMPLES[backend],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(actions, min_size=10, max_size=40), st.sampled_from((1, 2, 100)))
        def check(history: list[Any], at_once: int) -> None:
            for name in ("_IN", "_ANYWHERE"):
                statement = getattr(decided, name).replace("LIMIT 100", f"LIMIT {at_once}")
                monkeypatch.setattr(decided, name, statement)
            with holdfast.open(new_url(backend, Path(place)), actor="ada") as store:
                for action in history:
                    perform(store, action)
                from_index = listed(store)
                with without_index(store):
                    assert listed(store) == from_index

        check()


def count_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the number of events of each read of a stream."""
    counted: list[int] = []
    backend: Any = store._log._backend
    read = backend.read

    def counting(*given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        counted.append(len(found))
        return found

    monkeypatch.setattr(backend, "read", counting)
    return counted


def filled(url: str) -> Store:
    """Returns a store with a long conversation that has one decision, at its begin."""
    store = holdfast.open(url, actor="ada")
    chat = store.conversation("long")
    chat.decide("use the plain store", key="d1").outcome("done")
    for _ in range(3):
        chat.messages.add_many([{"role": "user", "content": f"say {n}"} for n in range(1_000)])
    return store


def test_no_list_reads_a_conversation(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BOOT-29: recall, render, decisions and stale read what they show, however long it all is."""
    monkeypatch.setattr(decisions, "LOOKED_MAX", 200)
    with filled(url) as store:
        chat = store.conversation("long")
        store.query(limit=1)
        counted = count_reads(store, monkeypatch)
        assert [one.key for one in chat.decisions.recall().recent] == ["d1"]
        assert [one.key for one in store.decisions.list(scope=chat)] == ["d1"]
        assert [one.key for one in store.decisions.list()] == ["d1"]
        assert chat.messages.render(2).endswith("this session:\n  - use the plain store")
        assert store.stale() == []
        assert sum(counted) < 1_200
        with without_index(store):
            counted.clear()
            assert [one.key for one in chat.decisions.recall().recent] == ["d1"]
            assert sum(counted) > 3_000


def test_messages_are_chosen_from_what_was_read_before(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice looks at every message: the first one reads them, the next what was added since."""
    with filled(url) as store:
        chat = store.conversation("long")
        counted = count_reads(store, monkeypatch)
        for by in ("17", lambda one: one.text == "say 17"):
            for n in range(3):
                chosen = chat.messages.render(2, select=by, decisions=0)
                assert chosen == "user: say 17\nuser: say 17"
                chat.say(f"add {n}")
                assert n == 0 or sum(counted) < 20
                counted.clear()


def leave_open(url: str) -> None:
    """Opens one of each in a long conversation, and is killed."""
    task_lifetimes.open_store = open_dying  # pyright: ignore
    with SessionJob(lambda _: None, store=url, keep=True, ttl="1h").begin("long") as chat:
        chat.facts.state("branch", "main", valid_for=0.001)
        chat.decide("use the plain store", key="d1")
        chat.tasks.claim(chat.tasks.add("write it", id="t1").id)
        for _ in range(3):
            chat.messages.add_many([{"role": "user", "content": f"say {n}"} for n in range(1_000)])
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_stale_in_a_long_conversation_is_found_without_reading_it(
    durable_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BOOT-50: in a process that has read nothing before, with no index, and again after that."""
    child = Child(lambda _pipe, _stop: leave_open(durable_url))
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(durable_url) as store:
        await_deaths(store)
        counted = count_reads(store, monkeypatch)
        for _ in range(2):
            found = [(one.kind, one.id) for one in store.stale()]
            assert found == [
                ("fact", "branch"), ("decision", "d1@conversation/long"), ("task", "t1"),
                ("session", "conversation/long"),
            ]  # fmt: skip
        assert store.conversation("long").revision > 3_000
        assert 0 < sum(counted) < 100
        counted.clear()
        assert len(store.conversation("long").messages) == 3_000
        assert sum(counted) > 3_000, "what is read is counted"


def test_an_index_that_is_far_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows a little with each call instead, and is used once it is there."""
    monkeypatch.setattr(decisions, "LOOKED_MAX", 200)
    monkeypatch.setattr(decided, "EVENT_S", 0.0)
    monkeypatch.setattr(index, "BATCH_EVENTS", 1_000)
    with filled(str(tmp_path / "store")) as store:
        behind = [store.search.status().behind]
        for _ in range(4):
            assert [one.key for one in store.conversation("long").decisions.recall().recent] == [
                "d1"
            ]
            behind.append(store.search.status().behind)
    assert behind[0] > behind[1] > behind[2] > behind[3] == behind[4] == 0


def test_an_index_that_cannot_be_used_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decisions, "LOOKED_MAX", 200)

    def refuse(*_: Any) -> None:
        raise UnavailableError("no room")

    with filled(str(tmp_path / "store")) as store:
        store.query(limit=1)
        monkeypatch.setattr(index.QueryIndex, "catch_up", refuse)
        for scope in (None, "conversation/long"):
            assert [one.key for one in store.decisions.list(scope=scope)] == ["d1"]
    assert "the index is not used: no room" in caplog.text


def test_decisions_of_a_subject_are_read_from_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sealed is in no index, so lists do not ask one for it."""
    monkeypatch.setattr(decisions, "LOOKED_MAX", 2)
    monkeypatch.setattr(decisions, "PAGE", 2)
    keys = str(tmp_path / "keys")
    with holdfast.open(str(tmp_path / "store"), keys=keys) as store:
        store.conversation("plain").decide("one", key="d1")
        sealed = store.conversation(store.subjects.pseudonym("ada"), subject="ada")
        sealed.decide("two", key="d2")
        fork = sealed.fork(store.subjects.pseudonym("ada") + "-f")
        for chat in (sealed, fork, store.conversation("plain")):
            for n in range(6):
                chat.say(f"say {n}")
        store.query(limit=1)
        for chat in (sealed, fork):
            assert [one.key for one in chat.decisions.recall().recent] == ["d2"]
            assert [one.key for one in store.decisions.list(scope=chat)] == ["d2"]
        assert {one.key for one in store.decisions.list()} == {"d1", "d2"}


def test_decisions_of_old_forms_are_read_from_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are known by their number in the stream, and not by a key."""
    monkeypatch.setattr(decisions, "LOOKED_MAX", 2)
    monkeypatch.setattr(decisions, "PAGE", 2)
    with holdfast.open(str(tmp_path / "store"), actor="ada") as store:
        chat = store.conversation("old")
        for type, payload in (
            ("decision_made", b'{"decision": "one"}'),
            ("decision_outcome", b'{"decision_id": "1", "outcome": "done"}'),
        ):
            write = StreamWrite(chat.name, (NewEvent(type, payload),))
            store._log.commit(ProposedCommit((write,)))
        chat.decide("two", key="d2")
        for n in range(6):
            chat.say(f"say {n}")
        from_index = listed(store)
        assert [one.key for one in store.decisions.list(scope=chat)] == ["d2", "1"]
        with without_index(store):
            assert listed(store) == from_index
