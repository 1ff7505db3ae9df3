"""Values of a state that end by themselves are alike on every backend (BOOT-54, 0073)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Settings, Store, interchange
from holdfast.backends.protocol import START
from holdfast.core import codec
from holdfast.core.key_ends import ENDING
from holdfast.core.retention import STREAM as RETENTION
from holdfast.errors import ConflictError, LetGoError, UsageError
from holdfast.transfer.copy import copy_log as copy
from tests.conformance.test_expiring import KINDS, World
from tests.servers.redis_clock import CLOCK

CANARY = "CANARY-7e41"


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(request.param, tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.open() as store:
        yield store


@pytest.fixture
def other(world: World, store: Store) -> Iterator[Store]:
    """Another handle of the same store, as another process has it."""
    if world.kind == "memory":
        yield store
    else:
        with world.open() as another:
            yield another


def stored(hf: Store) -> bytes:
    """Returns every payload and object that the store can be asked for, large ones unpacked."""
    parts = [record.payload for record in hf._log.read_all(after=START, limit=100_000)]
    objects = hf._log._backend.objects
    for kind in ("blob", "snapshot"):
        for name in objects.names(kind):
            data = objects.get(kind, name) or b""
            parts += [data, _unpacked(data)]
    return b"\n".join(parts)


def _unpacked(data: bytes) -> bytes:
    try:
        return codec.decompress(data, size_max=1 << 30)
    except Exception:
        return b""


def test_a_value_is_there_until_its_end_for_every_reader(
    world: World, store: Store, other: Store
) -> None:
    chat = store.conversation("c1")
    chat.set("stays", 1)
    chat.set("token", CANARY, ttl_s=600, checkpoint="given")
    there = other.conversation("c1")
    assert (chat["token"], there["token"]) == (CANARY, CANARY)
    ends = there.life.ends_at("token")
    assert ends is not None
    assert abs(ends.timestamp() - world.clock.now_us() / 1e6 - 600) < 0.002
    assert chat.life.ends_at("stays") is None
    world.clock.advance(599)
    assert there["token"] == CANARY
    revision = chat.revision
    world.clock.advance(2)
    for handle in (store, other):
        scope = handle.conversation("c1")
        assert scope.state == {"stays": 1}
        assert scope.get("token", "none") == "none"
        assert scope.lookup("token") is None
        assert "token" not in scope
        assert list(scope) == ["stays"]
        assert len(scope) == 1
        assert scope.state.to_dict() == dict(scope) == {"stays": 1}
        assert scope.life.ends_at("token") is None
        assert [(one.path, one.new) for one in scope.diff("given")] == [
            (("token",), holdfast.MISSING)
        ]
        assert list(scope.diff("given").keys()) == ["token"]
        assert handle.view().state(scope) == {"stays": 1}
        with pytest.raises(KeyError):
            scope["token"]
        # What was there is there, where it is asked for.
        assert scope.at("given") == scope.at(revision) == {"stays": 1, "token": CANARY}
        assert [one.new for one in scope.diff(revision - 1, revision)] == [CANARY]
    assert chat.revision == revision  # nobody wrote
    assert store.check().findings == []


def test_a_value_that_is_set_again_has_the_end_that_it_is_given(
    world: World, store: Store, other: Store
) -> None:
    chat, there = store.conversation("c1"), other.conversation("c1")
    chat.update({"a": 1, "b": 1, "c": 1}, ttl_s=60)
    there.set("a", 2)  # lasts
    there.set("b", 2, ttl_s=120)
    world.clock.advance(61)
    assert chat.state == there.state == {"a": 2, "b": 2}
    there.set("c", 3)
    world.clock.advance(61)
    assert chat.state == there.state == {"a": 2, "c": 3}


def test_a_nested_value_ends_alone_and_a_mapping_as_a_whole(world: World, store: Store) -> None:
    chat = store.conversation("c1")
    chat.set(("auth", "key"), 1, ttl_s=60)
    chat.set(("auth", "name"), "ana")
    chat.set("cache", {"a": 1}, ttl_s=120)
    chat.set(("cache", "b"), [1])  # what is changed below a value does not move its end
    chat.append(("cache", "b"), 2)
    chat.increment(("cache", "a"))
    assert chat.life.ends_at(("cache", "b")) == chat.life.ends_at("cache") is not None
    world.clock.advance(61)
    assert chat.state == {"auth": {"name": "ana"}, "cache": {"a": 2, "b": [1, 2]}}
    world.clock.advance(60)
    assert chat.state == {"auth": {"name": "ana"}}


def test_what_is_written_after_an_end_finds_nothing_there(
    world: World, store: Store, other: Store
) -> None:
    chat, there = store.conversation("c1"), other.conversation("c1")
    chat.update({"n": 5, "list": [1], "map": {"x": 1}, "one": 1, "gone": 1}, ttl_s=60)
    chat.set("stays", 1)
    assert there.state["n"] == 5
    world.clock.advance(61)
    there.increment("n")
    there.append("list", 2)
    there.set(("map", "y"), 2)
    assert there.set("one", 2, if_absent=True) == there.revision
    with pytest.raises(UsageError, match="not there"):
        there.delete("gone")
    assert there.delete("gone", missing_ok=True) == there.revision
    assert chat.state == there.state == {
        "stays": 1, "n": 1, "list": [2], "map": {"y": 2}, "one": 2,
    }  # fmt: skip
    world.clock.advance(1000)
    assert chat.state["n"] == 1  # what was made anew lasts
    assert store.check().findings == []


def test_a_draft_and_a_commit_see_what_is_there(world: World, store: Store, other: Store) -> None:
    chat = store.conversation("c1")
    with store.commit() as tx:
        pending = tx.scope(chat)
        pending.set("token", 1, ttl_s=60)
        pending.update({"a": 1, "b": 1}, ttl_s=60)
        pending.set("a", 2)  # the last word counts
        pending.set("b", 1, ttl_s=600)
        assert pending["token"] == 1
    world.clock.advance(61)
    with chat.edit() as draft:
        assert dict(draft) == {"a": 2, "b": 1}
        draft["token"] = [1]
        draft["token"].append(2)
    assert chat.state == other.conversation("c1").state == {"a": 2, "b": 1, "token": [1, 2]}
    # What a commit has read and which has ended since is another state.
    with pytest.raises(ConflictError), store.commit() as tx:
        assert tx.scope(chat)["b"] == 1
        world.clock.advance(600)
        tx.scope(chat).set("c", 1)
    assert chat.state == {"a": 2, "token": [1, 2]}
    with pytest.raises(ConflictError), store.commit() as tx:
        assert "b" not in tx.scope(chat)
        other.conversation("c1").set("b", 9)
        tx.scope(chat).set("d", 1)


def test_bad_input_is_refused_and_writes_nothing(store: Store) -> None:
    chat = store.conversation("c1")
    chat.set("list", [{"a": 1}])
    bad: list[tuple[Any, Any, Any, str]] = [
        ("a", 1, 0, "ttl_s"),
        ("a", 1, -1, "ttl_s"),
        ("a", 1, "soon", "ttl_s"),
        ("a", 1, True, "ttl_s"),
        ("a", 1, 1e11, "thousand years"),
        ((), {"a": 1}, 60, "whole state has no end"),
        (("list", 0), 1, 60, "lies in a list"),
        (("list", 0, "a"), 1, 60, "lies in a list"),
    ]
    for path, value, ttl_s, text in bad:
        with pytest.raises(UsageError, match=text):
            chat.set(path, value, ttl_s=ttl_s)
        with pytest.raises(UsageError, match=text), store.commit() as tx:
            tx.scope(chat).set(path, value, ttl_s=ttl_s)
    with pytest.raises(UsageError, match="diff stores parts"):
        chat.set("a", 1, ttl_s=60, diff=True)
    with pytest.raises(UsageError, match="diff stores parts"), store.commit() as tx:
        tx.scope(chat).set("a", 1, ttl_s=60, diff=True)
    assert chat.revision == 1


def test_a_repeated_write_writes_once(world: World, store: Store, other: Store) -> None:
    chat, there = store.conversation("c1"), other.conversation("c1")
    first = chat.set("token", 1, ttl_s=60, key="k")
    world.clock.advance(10)
    assert there.set("token", 1, ttl_s=60, key="k") == first
    with pytest.raises(UsageError, match="another change"):
        there.set("token", 2, ttl_s=60, key="k")
    with pytest.raises(UsageError, match="another change"):
        there.set("other", 1, ttl_s=60, key="k")
    world.clock.advance(51)
    made = there.append("list", 1, key="k2")  # which takes the token away, too
    assert there.append("list", 1, key="k2") == made
    assert chat.append("list", 1, key="k2") == made
    chat.set("m", 1, ttl_s=60)
    world.clock.advance(61)
    made = there.set("m", 2, if_absent=True, key="k3")
    assert chat.set("m", 2, if_absent=True, key="k3") == made
    assert chat.state == {"list": [1], "m": 2}


def test_a_fork_has_the_ends_of_what_it_began_with(world: World, store: Store) -> None:
    chat = store.conversation("c1")
    chat.set("a", 1)
    chat.set("token", 1, ttl_s=60)
    fork = chat.fork("c2")
    early = chat.fork("c3", at=1)
    fork.set("own", 1, ttl_s=120)
    assert fork.life.ends_at("token") == chat.life.ends_at("token")
    world.clock.advance(61)
    assert (chat.state, fork.state, early.state) == ({"a": 1}, {"a": 1, "own": 1}, {"a": 1})
    late = chat.fork("c4", at=2)
    assert late.state == {"a": 1}
    assert late.at(2) == {"a": 1, "token": 1}


def test_a_restore_brings_no_value_back_that_has_an_end(world: World, store: Store) -> None:
    chat = store.conversation("c1")
    chat.set("a", 1)
    chat.set("token", 1, ttl_s=600, checkpoint="first")
    chat.set("token", 2, ttl_s=600)
    chat.set("a", 2)
    chat.restore("first")
    assert chat.state == {"a": 1, "token": 2}  # what has an end there stays as it is
    assert chat.life.ends_at("token") is not None
    chat.delete("token")
    chat.restore("first")
    assert chat.state == {"a": 1}
    chat.set("token", 3, ttl_s=600)
    chat.undo()  # taking it away is fine
    assert chat.state == {"a": 1}
    chat.set("token", "lasts")
    chat.set("token", 4, ttl_s=60)
    world.clock.advance(61)
    assert chat.state == {"a": 1}
    chat.undo()
    assert chat.state == {"a": 1, "token": "lasts"}
    chat.set("token", 5, ttl_s=60)
    chat.remove()
    chat.undo()
    assert chat.state == {"a": 1}
    world.clock.advance(61)
    assert chat.state == {"a": 1}
    assert store.check().findings == []


def test_a_subscriber_and_a_follower_are_told_when_it_is_taken_away(
    world: World, store: Store, other: Store
) -> None:
    chat = store.conversation("c1")
    told: list[Any] = []
    heard = chat.subscribe(lambda change: told.append((change.path, change.new)))
    chat.set("token", 1, ttl_s=60)
    begun = chat.revision
    world.clock.advance(61)
    chat.append("log", 1)
    assert heard.drain()
    assert told[0] == (("token",), 1)
    assert (("token",), holdfast.MISSING) in told
    followed = other.follow(chat.name, after=begun, timeout_s=0)
    assert {change.path[0] for change in followed} == {"token", "log"}


def test_copies_exports_and_snapshots_have_the_ends(
    world: World, store: Store, tmp_path: Path
) -> None:
    chat = store.conversation("c1")
    chat.set("a", "x" * 200)
    chat.set("token", 1, ttl_s=600)
    chat.set("token", 2, ttl_s=1200)
    log = store._log
    log.snapshots._write(chat.name, log.folded(chat.name), log.snapshots._begin(chat.name))
    assert log.snapshots.revisions(chat.name) == [3]
    log.folds.trim()
    assert log.snapshots.read(chat.name, 3).ends == log.folded(chat.name).ends
    assert chat.life.ends_at("token") is not None
    ends = chat.life.ends_at("token")
    with holdfast.open(str(tmp_path / "copy"), settings=Settings(clock=world.clock)) as target:
        copy(store._log, target._log)
        copied = target.conversation("c1")
        assert (copied.life.ends_at("token"), copied["token"]) == (ends, 2)
        assert [mark.key for mark in target.workers.marks(ENDING)] == [chat.name]
        target.retention.run(grace_s=0)
    exported = tmp_path / "scopes.jsonl"
    with exported.open("wb") as file:
        interchange.export_scopes(store, [chat.name], file)
    with holdfast.open(str(tmp_path / "imported"), settings=Settings(clock=world.clock)) as target:
        interchange.import_scopes(target, exported)
        imported = target.conversation("c1")
        assert (imported.life.ends_at("token"), imported["token"]) == (ends, 2)
        world.clock.advance(601)
        assert imported["token"] == 2
        assert target.retention.run(grace_s=0).events == 1
        world.clock.advance(600)
        assert imported.state == chat.state == {"a": "x" * 200}
        assert target.retention.run(grace_s=0).events
        assert target.workers.marks(ENDING) == []


def test_questions_find_what_is_there(world: World, store: Store, tmp_path: Path) -> None:
    store.close()
    with holdfast.open(
        "memory:" if world.kind == "memory" else world.url,
        settings=Settings(clock=world.clock, indexes=[holdfast.index("team/*", "phase")]),
    ) as hf:
        if world.kind == "redis":
            backend: Any = hf._log._backend
            backend._checkout.clock = CLOCK
        team = hf.team("t")
        team.set("phase", "open", ttl_s=60)
        team.set("note", f"pineapple {CANARY}", ttl_s=60)
        team.set("lasts", "mango")
        hf.team("u").set("phase", "open")
        assert [one.name for one in hf.scopes(where={"phase": "open"})] == ["team/t", "team/u"]
        # A value with an end enters no index: nobody would let go of that copy.
        assert list(hf.query(text="pineapple")) == []
        assert [hit.scope for hit in hf.query(text="mango")] == ["team/t"]
        world.clock.advance(61)
        assert [one.name for one in hf.scopes(where={"phase": "open"})] == ["team/u"]
        assert [hit.scope for hit in hf.query(text="mango")] == ["team/t"]


def test_asyncio_has_the_same(world: World, store: Store) -> None:
    store.close()

    async def live() -> None:
        if world.kind == "memory":
            opened = await holdfast.aio.open("memory:", settings=Settings(clock=world.clock))
        else:
            opened = await holdfast.aio.open(world.url, settings=Settings(clock=world.clock))
        async with opened as hf:
            chat = hf.conversation("c1")
            await chat.set("a", 1, ttl_s=60)
            await chat.update({"b": 1, "c": 1}, ttl_s=60)
            assert await chat.life.ends_at("a") is not None
            async with hf.commit() as tx:
                tx.scope(chat).set("d", 1, ttl_s=60)
            await chat.set("c", 2)
            assert await chat.state == {"a": 1, "b": 1, "c": 2, "d": 1}
            if world.kind in ("memory", "files", "sqlite"):
                world.clock.advance(61)
                assert await chat.state == {"c": 2}

    asyncio.run(live())


# --- bytes ----------------------------------------------------------------------------------------


def test_the_bytes_of_what_has_ended_go_and_all_else_stays(world: World, store: Store) -> None:
    """BOOT-54: retain lets go of every event that held it, and of nothing that is there."""
    chat = store.conversation("c1")
    chat.set("stays", {"n": "pineapple"}, checkpoint="early")
    chat.set("token", CANARY, ttl_s=60)
    chat.set("token", f"{CANARY} again", ttl_s=60, checkpoint="named")
    chat.set("large", [CANARY * 8000], ttl_s=60)
    chat.set("map", {"a": 1}, ttl_s=60)
    chat.set(("map", "b"), CANARY)
    with store.commit() as tx:  # with values of others in the same event
        tx.scope(chat).append("list", "an item of some length, so that its event is named " * 3)
        tx.scope(chat).set("secret", CANARY, ttl_s=60)
        tx.scope(chat).set("beside", "mango")
    chat.append("list", 2)
    chat.set("later", "LATER-CANARY", ttl_s=1000)
    chat.say("hello")
    store._log.snapshots._write(
        chat.name, store._log.folded(chat.name), store._log.snapshots._begin(chat.name)
    )
    assert store.retention.run(grace_s=0).events == 0  # nothing has ended yet
    written = store._log.heads([chat.name, RETENTION])
    world.clock.advance(61)
    shown = chat.state.to_dict()
    planned = store.retention.preview(grace_s=0)
    assert [(one.scope, one.why, one.events) for one in planned.scopes] == [
        (chat.name, "expired", 6)
    ]
    assert store.retention.preview(grace_s=3600).scopes == []
    assert store._log.heads([chat.name, RETENTION]) == written
    done = store.retention.run(grace_s=0)
    assert (done.events, done.blobs, done.refused) == (6, 1, {})
    assert b"LATER-CANARY" in stored(store)
    assert CANARY.encode() not in stored(store)
    assert chat.state.to_dict() == shown
    assert chat.at("early") == {"stays": {"n": "pineapple"}}
    assert chat.at("named") == {"stays": {"n": "pineapple"}}
    with pytest.raises(LetGoError):
        chat.at(5)
    assert [message.text for message in chat.messages] == ["hello"]
    # A snapshot of what is in memory names events of list items: none of those that went.
    store._log.snapshots._write(
        chat.name, store._log.folded(chat.name), store._log.snapshots._begin(chat.name)
    )
    store._log.folds.trim()
    assert chat.state.to_dict() == shown
    assert store.check().findings == []
    assert store.retention.run(grace_s=0).scopes == []
    world.clock.advance(1000)
    store.retention.run(grace_s=0)
    assert b"LATER-CANARY" not in stored(store)
    assert store.workers.marks(ENDING) == []
    assert chat.state.to_dict() == {key: value for key, value in shown.items() if key != "later"}
    assert store.check().findings == []
    chat.append("list", 3)
    assert chat["list"][-1] == 3


def test_what_was_superseded_before_its_end_goes_at_its_end(
    world: World, store: Store, other: Store
) -> None:
    """A token that is renewed again and again leaves no trail of old ones."""
    chat = store.conversation("c1")
    for number in range(5):
        other.conversation("c1").set("token", f"{CANARY}-{number}.", ttl_s=100)
        world.clock.advance(30)
    store.retention.run(grace_s=0)
    left = stored(store)
    assert [f"{CANARY}-{number}.".encode() in left for number in range(5)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    other.conversation("c1").set("token", "lasts")  # by one that knows nothing of the end
    assert chat["token"] == "lasts"
    world.clock.advance(200)
    store.retention.run(grace_s=0)
    assert CANARY.encode() not in stored(store)
    assert chat["token"] == other.conversation("c1")["token"] == "lasts"
    assert store.workers.marks(ENDING) == []
    assert store.check().findings == []


def test_what_keeps_the_bytes_is_named(world: World, store: Store) -> None:
    held, forked, closed = (store.conversation(name) for name in ("h", "f", "c"))
    for chat in (held, forked, closed):
        chat.set("a", 1)
        chat.set("token", CANARY, ttl_s=60)
    store.retention.hold(held.name)
    fork = forked.fork("fork")
    closed.close()
    dropped = store.conversation("d")
    dropped.set("token", 1, ttl_s=60)
    dropped.close(keep=False)
    world.clock.advance(61)
    found = store.retention.run(grace_s=0)
    assert set(found.refused) == {forked.name, closed.name}
    assert "a fork began after them" in found.refused[forked.name]
    assert "was closed" in found.refused[closed.name]
    assert (held.at(2)["token"], fork.at(2)["token"]) == (CANARY, CANARY)
    assert held.state == fork.state == closed.state == {"a": 1}
    store.retention.unhold(held.name)
    fork.remove()
    closed.remove()
    assert store.retention.run(grace_s=0).refused == {}
    assert CANARY.encode() not in stored(store)
    assert held.state == forked.state == {"a": 1}
    assert store.check().findings == []


def test_a_fork_goes_on_from_a_base_of_its_own(world: World, store: Store) -> None:
    chat = store.conversation("c1")
    chat.set("a", 1)
    fork = chat.fork("c2")
    fork.set("token", CANARY, ttl_s=60)
    fork.set("b", 2)
    world.clock.advance(61)
    assert store.retention.run(grace_s=0).events == 1
    assert CANARY.encode() not in stored(store)
    store._log.folds.trim()
    assert fork.state == {"a": 1, "b": 2}
    assert chat.fork("c3").state == {"a": 1}
