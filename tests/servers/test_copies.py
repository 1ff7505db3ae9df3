"""Copies between all kinds of stores, also killed on the way (BOOT-63, T21, guarantees 1, 6)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.errors import ConflictError, CorruptError
from holdfast.testing import RecordBuilder
from holdfast.testing.trial import accepted
from holdfast.transfer import sink, source
from holdfast.transfer.copy import copy_log as copy
from tests.servers.contents import LARGE, fill, fill_by_chance, logical
from tests.servers.kinds import KEPT, KINDS, url_of

SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
ROOT = Path(__file__).resolve().parents[2]


def assert_equal(source: Store, target: Store) -> None:
    assert list(logical(target._log._backend)) == list(logical(source._log._backend))
    report = target.check(expect=source.check().digest)
    assert report.ok, report.findings


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_every_pair(source: str, target: str, tmp_path: Path) -> None:
    with (
        holdfast.open(url_of(source, tmp_path, "a")) as one,
        holdfast.open(url_of(target, tmp_path, "b")) as other,
    ):
        fill(one)
        copied = copy(one._log, other._log)
        assert_equal(one, other)
        assert (copied.skipped, copied.is_behind, copied.blobs, copied.marks) == (0, False, 2, 3)
        again = copy(one._log, other._log)
        assert (again.commits, again.events, again.blobs, again.marks) == (0, 0, 0, 0)
        assert again.skipped == copied.events
        # What it is good for: to be read and written as the source is.
        red = other.conversation("red")
        assert red.at("before")["large"] == LARGE + "more"
        assert other.conversation("fork of fork").state.to_dict()["of"] == "fork"
        assert other.workflow("closed").life.is_closed
        assert red.append(("nested", "list"), {"x": None}, key="key red") == 4
        assert red.set("stage", "moved") == red.revision
        # Leases and claims are not copied: they were the source's.
        assert other._log._backend.leases.holder("nightly") is None
        assert [mark.key for mark in other.workers.claim("todo")] == ["conversation/red"]


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_a_random_store_goes_round_and_comes_back_the_same(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    round_trip = [*KINDS, KINDS[0]]
    stores = [holdfast.open(url_of(kind, tmp_path, f"{n}")) for n, kind in enumerate(round_trip)]
    fill_by_chance(stores[0], random.Random(seed))
    for one, other in pairwise(stores):
        copy(one._log, other._log)
        assert_equal(one, other)
    for store in stores:
        store.close()


# --- killed --------------------------------------------------------------------------------------


def copier(source: str, target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.servers.copier", source, target],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(child: subprocess.Popen[str], batches: int) -> bool:
    """Kills the copier on its way to the next batch; returns whether it was not done yet."""
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        for _ in range(batches):
            if child.stdout.readline().startswith("done"):
                child.wait()
                return False
            child.stdin.write("\n")
            child.stdin.flush()
        child.kill()
        child.wait()
    return True


@pytest.mark.parametrize(("source", "target"), [*pairwise([*KEPT, KEPT[0]])])
def test_a_killed_copy_goes_on_where_it_stood(source: str, target: str, tmp_path: Path) -> None:
    a, b = url_of(source, tmp_path, "a"), url_of(target, tmp_path, "b")
    with holdfast.open(a) as one:
        fill(one)
    chance = random.Random(f"{SEED} {source} {target}")
    for _ in range(3):
        assert kill_after(copier(a, b), chance.randrange(1, 8))
        with holdfast.open(a) as one, holdfast.open(b) as other:
            # A beginning of the source, without a dangling name.
            assert other.check().ok
            mine, theirs = (list(logical(store._log._backend)) for store in (one, other))
            events = {line for line in mine if len(line) == 9 and isinstance(line, tuple)}
            assert {line for line in theirs if len(line) == 9 and isinstance(line, tuple)} <= events
    while kill_after(copier(a, b), 1_000):
        pass
    with holdfast.open(a) as one, holdfast.open(b) as other:
        assert_equal(one, other)


# --- refused -------------------------------------------------------------------------------------


def stray(store: Store) -> None:
    store.team("other").set("a", 1)


def diverging(store: Store) -> None:
    store.team("red").set("a", 2)


def ahead(store: Store) -> None:
    accepted(store._log._backend, RecordBuilder().commit(RecordBuilder().append("zz/later")))


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("spoil", [stray, diverging, ahead])
def test_a_store_with_something_else_in_it_is_refused_untouched(
    kind: str, spoil: Callable[[Store], None], tmp_path: Path
) -> None:
    with (
        holdfast.open("memory:") as one,
        holdfast.open(url_of(kind, tmp_path, "b")) as other,
    ):
        one.conversation("first").set("large", LARGE)
        one.team("red").set("a", 1)
        spoil(other)
        before = list(logical(other._log._backend))
        with pytest.raises(ConflictError, match="the target has"):
            copy(one._log, other._log)
        assert list(logical(other._log._backend)) == before
        assert other._log._backend.objects.names("blob") == []


def test_a_copy_that_was_written_to_is_no_copy_any_more(tmp_path: Path) -> None:
    with holdfast.open("memory:") as one, holdfast.open(tmp_path / "b") as other:
        one.team("red").set("a", 1)
        copy(one._log, other._log)
        other.team("red").set("a", 2)
        with pytest.raises(ConflictError, match='other events in "team/red"') as caught:
            copy(one._log, other._log)
        assert (caught.value.stream, caught.value.actual) == ("team/red", 2)
        assert "empty store" in str(caught.value)


def test_a_writer_that_comes_in_between_is_noticed() -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        one.team("red").set("a", 1)
        backend = other._log._backend
        heads = backend.heads

        def late(streams: list[str]) -> object:
            found = heads(streams)
            if streams == ["team/red"] and found == [None]:
                backend.heads = heads  # type: ignore[method-assign]
                other.team("red").set("a", 2)
            return found

        backend.heads = late  # type: ignore[method-assign, assignment]
        with pytest.raises(ConflictError, match="other events"):
            copy(one._log, other._log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gets_far", [True, False])
def test_two_copies_at_once_into_one_target_are_one_copy(
    gets_far: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a copier that was thought dead goes on: neither takes the other for a stranger."""
    monkeypatch.setattr(sink, "COMMITS_PER_BATCH", 7)
    send, turns = sink._send, [0]
    with (
        holdfast.open("memory:") as one,
        holdfast.open(url_of(kind, tmp_path, "b")) as other,
    ):
        fill(one)

        def late(part: Any, wanted: Any) -> Any:
            turns[0] += 1
            if turns[0] in (1, 3):
                monkeypatch.setattr(sink, "_send", send)
                if gets_far:
                    copy(one._log, other._log)
                else:  # it wrote some of this batch only, and is gone
                    send(part, wanted[:2])
                monkeypatch.setattr(sink, "_send", late)
            return send(part, wanted)

        monkeypatch.setattr(sink, "_send", late)
        copied = copy(one._log, other._log)
        assert copied.skipped > 0
        assert not copied.is_behind
        assert copied.events + copied.skipped == one.status()["events"]
        assert_equal(one, other)


@pytest.mark.parametrize("kind", KEPT)
def test_two_processes_that_copy_at_once_both_end_well(kind: str, tmp_path: Path) -> None:
    a, b = url_of("sqlite", tmp_path, "a"), url_of(kind, tmp_path, "b")
    with holdfast.open(a) as one:
        fill(one)
        for number in range(300):
            one.conversation(f"more {number % 9}").append("list", number, key=f"k{number}")
    both = [copier(a, b) for _ in range(2)]
    for child in both:
        assert child.stdin is not None
        child.stdin.write("\n" * 1_000)
        child.stdin.flush()
    for child in both:
        child.communicate()
    assert [child.returncode for child in both] == [0, 0]
    with holdfast.open(a) as one, holdfast.open(b) as other:
        assert_equal(one, other)


def test_a_damaged_blob_is_not_copied() -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        one.team("red").set("large", LARGE)
        [name] = one._log._backend.objects.names("blob")
        data = one._log._backend.objects.get("blob", name)
        assert data is not None
        one._log._backend.objects.put("blob", name, data[:-9] + b"\0" * 9)
        with pytest.raises(CorruptError):
            copy(one._log, other._log)
        one._log._backend.objects.delete("blob", name)
        with pytest.raises(CorruptError, match="missing"):
            copy(one._log, other._log)
        assert other._log._backend.streams() == []
        one._log._backend.objects.put("blob", name, data)
        copy(one._log, other._log)
        assert_equal(one, other)


# --- a source that lives -------------------------------------------------------------------------


def test_a_source_may_be_written_to_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "COMMITS_PER_BATCH", 5)
    monkeypatch.setattr(source, "RECORDS_PER_READ", 12)
    monkeypatch.setattr(sink, "_BLOBS_KNOWN_MAX", 1)
    with (
        holdfast.open("memory:") as one,
        holdfast.open(f"sqlite:{tmp_path}/b.db") as other,
    ):
        fill(one)
        had = one.check().digest

        def write(passed: int, total: int) -> None:
            one.team("red").set("passed", passed)
            one.conversation(f"new {passed}").set("large", f"{passed} {LARGE}")

        copied = copy(one._log, other._log, progress=write)
        assert copied.is_behind
        # What was there when it began, and nothing of what came then: no endless chase.
        assert other.check(expect=had).ok
        again = copy(one._log, other._log)
        assert not again.is_behind
        assert again.blobs > 2
        assert_equal(one, other)


def test_a_strangers_open_transaction_holds_back_but_breaks_nothing(tmp_path: Path) -> None:
    import psycopg

    from tests.servers import postgresql

    with (
        holdfast.open(url_of("postgresql", tmp_path, "a")) as one,
        holdfast.open(tmp_path / "b") as other,
        psycopg.connect(postgresql.server(postgresql.NEWEST).url()) as stranger,
    ):
        one.team("red").set("a", 1)
        one.team("blue").set("a", 1)
        stranger.execute("SELECT pg_current_xact_id()")
        one.team("red").set("a", 2)
        one.team("new").set("a", 2)
        held = copy(one._log, other._log)
        assert (held.events, held.is_behind) == (2, True)
        assert (other.team("red").revision, other.team("new").revision) == (1, 0)
        stranger.rollback()
        done = copy(one._log, other._log)
        assert (done.events, done.skipped, done.is_behind) == (2, 2, False)
        assert_equal(one, other)


def test_a_target_that_loses_what_it_took_is_noticed() -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        one.team("red").set("a", 1)
        one.team("blue").set("a", 1)
        heads = other._log._backend.heads
        other._log._backend.heads = lambda streams: [  # type: ignore[method-assign]
            None if stream == "team/red" else head
            for stream, head in zip(streams, heads(streams), strict=True)
        ]
        with pytest.raises(ConflictError, match='"team/red"'):
            copy(one._log, other._log)


def test_catching_up_clears_marks_that_were_cleared() -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        fill(one)
        copy(one._log, other._log)
        with one.commit() as tx:
            tx.scope(one.conversation("red")).set("a", 1)
            tx.clear("todo", "second")
            tx.mark("todo", "conversation/red", priority=7)
        assert copy(one._log, other._log).marks == 2
        assert_equal(one, other)
        assert other.workers.marks() == one.workers.marks()


def test_scopes_whose_lifetime_is_over_are_left_out(tmp_path: Path) -> None:
    from holdfast.testing import FakeClock

    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as one,
        holdfast.open(tmp_path / "b", settings=Settings(clock=clock)) as other,
    ):
        one.conversation("short", ttl_s=10).set("large", LARGE)
        one.conversation("long", ttl_s=1000).set("large", LARGE)
        one.team("red").set("a", 1)
        clock.advance(20)
        copied = copy(one._log, other._log)
        assert "conversation/short" not in other._log._backend.streams()
        assert other.conversation("long").get("large") == LARGE
        assert copied.ended == 2
        assert copy(one._log, other._log).events == 0
        clock.advance(2000)
        assert copy(one._log, other._log).events == 0
        with pytest.raises(holdfast.NotFoundError):
            _ = other.conversation("long").state


def test_a_copy_holds_a_batch_in_memory_not_a_store(tmp_path: Path) -> None:
    """48 MiB of values that cannot be compressed, in blobs and in events."""
    chance = random.Random(SEED)
    with (
        holdfast.open(tmp_path / "a", durability="none") as one,
        holdfast.open(f"sqlite:{tmp_path}/b.db", durability="none") as other,
    ):
        for number in range(24):
            one.conversation(f"c{number}").set("blob", chance.randbytes(1 << 20))
        for number in range(600):
            one.team(f"t{number % 7}").set("value", chance.randbytes(40_000))
        one._log._states.clear()
        tracemalloc.start()
        try:
            copied = copy(one._log, other._log)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (copied.blobs, copied.events) == (24, 624)
        assert peak < 40 << 20, f"{peak >> 20} MiB at most at a time"
        assert other.check(read_all=False).digest == one.check(read_all=False).digest


# --- mixed ---------------------------------------------------------------------------------------


def test_a_mixed_store_is_copied_out_of_and_into(tmp_path: Path) -> None:
    kinds = (KEPT[-1], KEPT[-2])
    urls = {
        "conversation": url_of(kinds[0], tmp_path, "chats"),
        "*": url_of(kinds[1], tmp_path, "rest"),
    }
    with (
        holdfast.open("memory:") as one,
        holdfast.open(urls) as mixed,
        holdfast.open(tmp_path / "back") as back,
    ):
        fill(one)
        # A commit over two levels, which two backends can only take as two.
        with one.commit() as tx:
            tx.scope(one.conversation("red")).set("joint", LARGE[::-1])
            tx.scope(one.team("red")).set("joint", LARGE[::-1])
        copy(one._log, mixed._log)
        assert_equal(one, mixed)
        name = sha256(b'"' + LARGE[::-1].encode() + b'"').hexdigest()
        for part in mixed._log.routes.parts():
            assert name in part.objects.names("blob")
        with mixed.commit() as tx:  # where its scope lies, so that both change together
            tx.scope(mixed.conversation("red")).set("a", 1)
            tx.clear("todo", "conversation/red")
        assert [mark.key for mark in mixed.workers.marks("todo")] == ["second"]
        copied = copy(mixed._log, back._log)
        assert not copied.is_behind
        assert_equal(mixed, back)
