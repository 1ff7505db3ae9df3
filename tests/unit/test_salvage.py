"""Salvage: what verifies is taken over, what does not is named, and nothing is changed (0021)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import holdfast
from holdfast import ConflictError, CorruptError, Settings, Store, UnavailableError
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import START, Head, Mark, Position, Record
from holdfast.copy import salvage
from holdfast.core.event import Event
from holdfast.core.log import Log
from holdfast.errors import ExpiredError
from holdfast.testing import FakeClock
from tests.opening import store_of_log

SEGMENT = Path("log") / "0000000000000000.jsonl"
TARGETS = ("memory:", "new", "sqlite:new.db")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A closed store with some of everything, whose line 8 is damaged: the third event of b."""
    path = tmp_path / "damaged"
    with holdfast.open(path) as store:
        a, b = store.team("a"), store.team("b")
        for n in range(3):
            a.set("n", n)
            if n < 2:
                b.set("n", n)
        early = store.team("early")
        early.set("n", 1)
        a.fork("fork").set("way", "another")
        line = len((path / SEGMENT).read_bytes().splitlines())
        b.set("n", "this is what is damaged")
        with store.commit() as tx:
            tx.scope(a).set("both", 1)
            tx.scope(b).set("both", 1)
            tx.mark("todo", "one")
        store.team("fork").set("way", "and on")
        store.team("late").set("large", "x" * 200_000)
    lines = (path / SEGMENT).read_bytes().splitlines(keepends=True)
    assert b"this is what is damaged" in lines[line]
    lines[line] = lines[line].replace(b"damaged", b"dammaged"[:7])
    (path / SEGMENT).write_bytes(b"".join(lines))
    return path


def _bytes_below(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}


def _url(target: str, tmp_path: Path) -> str:
    if target == "memory:":
        return target
    return f"sqlite:{tmp_path / target[7:]}" if ":" in target else str(tmp_path / target)


@pytest.mark.parametrize("target", TARGETS)
def test_salvage_takes_over_exactly_what_verifies(
    damaged: Path, tmp_path: Path, target: str
) -> None:
    before = _bytes_below(damaged)
    rest: list[Event] = []
    with (
        holdfast.open(damaged, create=False, read_only=True) as source,
        holdfast.open(_url(target, tmp_path)) as new,
    ):
        result = salvage(source, new, rest=rest.append)
        [cut] = result.cut
        assert (cut.stream, cut.revision, cut.found, cut.first, cut.last) == ("team/b", 2, 1, 4, 4)
        assert cut.problem == "revisions 3 to 3 are lost"
        assert result.doubtful == ["team/early"]
        assert [(one.stream, one.revision) for one in rest] == [("team/b", 4)]
        assert not result.ok
        [finding] = result.findings
        assert finding.where.startswith("log/")
        report = new.check()
        assert report.ok
        assert report.events == result.copied.events == 11
        assert new.team("a").state.to_dict() == {"n": 2, "both": 1}
        assert new.team("b").state.to_dict() == {"n": 1}
        assert new.team("fork").state["way"] == "and on"
        assert len(new.team("late").state["large"]) == 200_000
        assert new.workers.marks() == [Mark("todo", "one")]
        new.team("b").set("n", 3)  # it goes on
    assert _bytes_below(damaged) == before


def test_guarantee_7_a_damaged_store_reads_what_is_whole(damaged: Path) -> None:
    with holdfast.open(damaged) as store:
        assert store.team("a").state.to_dict() == {"n": 2, "both": 1}
        assert store.team("fork").state["way"] == "and on"
        for name in ("b", "early", "nowhere"):
            with pytest.raises(CorruptError, match="lost events"):
                _ = store.team(name).state
            with pytest.raises(CorruptError):
                store.team(name).set("n", 1)
        with pytest.raises(CorruptError, match="nothing can be written"):
            store.team("a").set("n", 1)
        for ask in (
            store.tasks.list,
            store.runs.list,
            lambda: list(store.scopes()),
            store.workers.marks,
        ):
            with pytest.raises(CorruptError):
                ask()
        facts = store.status()
        assert (facts["scopes"], facts["events"], facts["digest"]) == (None, None, None)
        assert len(facts["reports"]) == 1


@pytest.mark.parametrize("read_all", [True, False])
def test_check_of_a_damaged_store_runs_to_its_end(damaged: Path, read_all: bool) -> None:
    with holdfast.open(damaged) as store:
        report = store.check(read_all=read_all, expect="0" * 64)
    assert not report.ok
    assert report.digest == ""
    [first, *others] = report.findings
    assert first.streams == ("team/b", "team/early")
    assert "salvage" in first.remedy
    if read_all:
        assert report.events == 11
        assert others[0].where == 'stream "team/b"'
        assert "whole up to revision 2, and 1 later events can be read" in others[0].problem
    assert "its digest cannot be told while it is damaged" in others[-1].problem


def test_a_salvage_that_was_killed_goes_on(damaged: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "new")
    child = os.fork()
    if child == 0:
        from holdfast.transfer import sink as module

        module.COMMITS_PER_BATCH = 2

        def die(passed: int, total: int) -> None:
            if passed >= 5:
                os.kill(os.getpid(), signal.SIGKILL)

        with holdfast.open(damaged, read_only=True) as source, holdfast.open(url) as new:
            salvage(source, new, progress=die)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with holdfast.open(damaged, read_only=True) as source:
        with holdfast.open(url) as new:
            result = salvage(source, new)
            assert result.copied.skipped >= 5
            assert result.copied.skipped + result.copied.events == 11
            digest = new.check().digest
        with holdfast.open("memory:") as other:
            salvage(source, other)
            assert other.check(expect=digest).ok


def test_a_target_that_holds_something_else_is_refused_before_anything_is_written(
    damaged: Path,
) -> None:
    with (
        holdfast.open(damaged, read_only=True) as source,
        holdfast.open("memory:") as new,
    ):
        new.team("a").set("mine", 1)
        with pytest.raises(ConflictError, match='other events in "team/a"'):
            salvage(source, new)
        assert [scope.name for scope in new.scopes()] == ["team/a"]


def test_a_target_that_somebody_writes_to_meanwhile_is_noticed(damaged: Path) -> None:
    with (
        holdfast.open(damaged, read_only=True) as source,
        holdfast.open("memory:") as new,
    ):

        def meddle(passed: int, total: int) -> None:
            new.team("a").set("mine", passed)

        with pytest.raises(ConflictError, match='other events in "team/a"'):
            salvage(source, new, progress=meddle)


def test_a_whole_store_is_taken_over_whole(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s") as store, holdfast.open("memory:") as new:
        store.team("a").set("n", 1)
        result = salvage(store, new)
        assert result.ok
        assert new.status()["digest"] == store.status()["digest"]


def test_an_event_whose_blob_is_lost_does_not_verify(damaged: Path) -> None:
    shutil.rmtree(damaged / "objects" / "blob")
    with (
        holdfast.open(damaged, read_only=True) as source,
        holdfast.open("memory:") as new,
    ):
        result = salvage(source, new)
        cut = {one.stream: one for one in result.cut}["team/late"]
        assert cut.revision == 0
        assert "is missing" in cut.problem
        assert new.check().ok


def test_large_values_of_scopes_whose_heads_are_in_doubt_are_taken_over(tmp_path: Path) -> None:
    """Of one that ends, and of one that does not: their newest event may be the one lost."""
    path = tmp_path / "damaged"
    with holdfast.open(path) as store:
        store.team("lasts").set("large", "x" * 200_000)
        store.conversation("ends", ttl_s=3600).set("large", "y" * 200_000)
        store.team("b").set("n", "this is what is damaged")
    text = (path / SEGMENT).read_bytes()
    (path / SEGMENT).write_bytes(text.replace(b"damaged", b"dammage"))
    with holdfast.open(path, read_only=True) as old, holdfast.open("memory:") as new:
        with pytest.raises(CorruptError):
            old.team("lasts").state  # noqa: B018
        salvage(old, new)
        assert new.team("lasts").get("large") == "x" * 200_000
        assert new.conversation("ends").get("large") == "y" * 200_000


def test_a_fork_of_what_is_lost_is_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with holdfast.open(path) as store:
        for n in range(3):
            store.team("a").set("n", n)
        store.team("a").fork("fork").set("n", 9)
    lines = (path / SEGMENT).read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"changed", b"chanced")
    (path / SEGMENT).write_bytes(b"".join(lines))
    with holdfast.open(path) as source, holdfast.open("memory:") as new:
        result = salvage(source, new)
        cut = {one.stream: one for one in result.cut}
        assert cut["team/a"].revision == 1
        assert 'was forked from "team/a" at revision 3, which is lost' in cut["team/fork"].problem
        assert not source.check().ok
        assert new.check().ok


class Rotten(MemoryBackend):
    """Has lost what it held at some places, and says so when it is asked for them."""

    lost: tuple[tuple[str, int], ...] = ()
    no_heads: tuple[str, ...] = ()
    no_names = False

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        records = super().read(stream, after=after, until=until, limit=limit)
        for record in records:
            if (stream, record.revision) in self.lost:
                raise CorruptError(f"event {record.revision} is lost", stream=stream)
            if (stream, -record.revision) in self.lost:  # it is there, and is another
                changed = structs.replace(record, payload=b'[["set","n",66]]')
                records[records.index(record)] = changed
        return records

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        if self.lost:
            raise CorruptError("not all of it can be read")
        return super().read_all(after=after, limit=limit)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        if set(streams) & set(self.no_heads):
            raise CorruptError("a head is lost")
        return super().heads(streams)

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        if self.no_names and after:
            raise CorruptError("there may be more names")
        return super().streams(prefix=prefix, after=after, limit=limit)


def _rotten(clock: FakeClock) -> tuple[Rotten, Store]:
    backend = Rotten(clock=clock)
    store = store_of_log(Log(backend, clock=clock, actor="tester"), url="memory:", worker="w")
    for n in range(200):
        store.team(f"t{n % 2}").set("n", n)
        if n == 100:
            with store.commit() as tx:
                tx.scope(store.team("t0")).set("both", 1)
                tx.scope(store.team("t1")).set("both", 1)
    return backend, store


def test_other_backends_are_read_stream_by_stream() -> None:
    clock = FakeClock()
    backend, source = _rotten(clock)
    backend.lost = (("team/t0", 50), ("team/t1", 101))
    with source, holdfast.open("memory:", settings=Settings(clock=clock)) as new:
        result = salvage(source, new)
        assert [(one.stream, one.revision, one.found) for one in result.cut] == [
            ("team/t0", 49, 51)
        ]
        assert result.doubtful == ["team/t1"], "its newest event is the one that is lost"
        assert new.team("t1").state["both"] == 1
        assert [one.streams for one in result.findings] == [("team/t0",), ("team/t1",)]
        assert new.check().ok
        report = source.check()
        problems = [one.problem for one in report.findings]
        assert any("whole up to revision 49" in problem for problem in problems)


def test_an_event_that_does_not_match_its_link_is_where_a_stream_is_cut() -> None:
    clock = FakeClock()
    backend, source = _rotten(clock)
    backend.lost = (("team/t0", -50),)
    with source, holdfast.open("memory:", settings=Settings(clock=clock)) as new:
        [cut] = salvage(source, new).cut
        assert (cut.revision, cut.problem) == (49, "event 50 does not match its link")
        assert new.check().ok


def test_heads_and_names_that_are_lost_are_no_end() -> None:
    clock = FakeClock()
    backend, source = _rotten(clock)
    backend.no_heads, backend.no_names = ("team/t0",), True
    with source, holdfast.open("memory:", settings=Settings(clock=clock)) as new:
        result = salvage(source, new)
        assert result.copied.events == 202
        assert not result.ok
        assert result.doubtful == ["team/t0", "team/t1"]
        backend.lost = (("team/t0", 50),)
        with holdfast.open("memory:", settings=Settings(clock=clock)) as other:
            assert salvage(source, other).copied.events == 101 + 49
        report = source.check()
        assert not report.ok
        assert report.digest == ""


def test_what_has_ended_is_not_taken_over_and_what_ends_later_still_does() -> None:
    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as source,
        holdfast.open("memory:", settings=Settings(clock=clock)) as new,
    ):
        source.conversation("short", ttl_s=10).set("n", 1)
        source.conversation("long", ttl_s=1000).set("n", 1)
        clock.advance(20)
        result = salvage(source, new)
        assert result.ok
        assert [scope.name for scope in new.scopes()] == ["conversation/long"]
        clock.advance(2000)
        with pytest.raises(ExpiredError):
            _ = new.conversation("long").state


def test_a_scope_that_only_a_hold_keeps_is_taken_over() -> None:
    clock = FakeClock()
    with (
        holdfast.open("memory:", settings=Settings(clock=clock)) as source,
        holdfast.open("memory:", settings=Settings(clock=clock)) as new,
    ):
        source.conversation("short", ttl_s=10).set("n", 1)
        source.retention.hold("conversation/short")
        clock.advance(20)
        assert salvage(source, new).copied.ended == 0
        assert new.conversation("short").get("n") == 1
        assert [hold.scope for hold in new.retention.holds()] == ["conversation/short"]
        assert salvage(source, new).copied.events == 0


def test_a_full_disk_while_a_fork_is_looked_at_is_no_damage(damaged: Path) -> None:
    """What a fork follows is written first, and that it cannot be written is told as it is."""
    with holdfast.open(damaged, read_only=True) as source, holdfast.open("memory:") as new:
        backend = new._log._backend
        sound = backend.commit

        def full(_commits: object) -> Sequence[Any]:
            backend.commit = sound  # type: ignore[method-assign]
            raise UnavailableError("the disk is full")

        backend.commit = full  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="the disk is full"):
            salvage(source, new)
        assert [one.stream for one in salvage(source, new).cut] == ["team/b"]
