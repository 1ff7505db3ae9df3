"""What the SQLite backend remembers of streams, and what it indexes late."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast.backends.protocol import START, Found, Head, Mark, Receipt, Record
from holdfast.backends.sqlite import SqliteBackend, batch
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite.rows import prefix_end
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.durable import check_links


def _open(path: Path) -> SqliteBackend:
    return SqliteBackend(path / "state.db", clock=FakeClock(), durability="none")


def _write(backend: SqliteBackend, build: RecordBuilder, stream: str, count: int = 1) -> Receipt:
    [head] = backend.heads([stream])
    payloads = [b"%d" % n for n in range(count)]
    commit = build.commit(build.append(stream, *payloads, behind=head, checkpoint=str(count)))
    [outcome] = backend.commit([commit])
    assert isinstance(outcome, Receipt)
    return outcome


def test_a_commit_finds_a_stream_that_only_another_handle_has_seen(tmp_path: Path) -> None:
    one, two, build = _open(tmp_path), _open(tmp_path), RecordBuilder()
    _write(one, build, "a")
    [head] = one.heads(["a"])
    first = build.commit(build.append("a", b"1", behind=head))
    [again] = two.commit([first])  # without a look at it before
    assert isinstance(again, Receipt)
    assert [record.revision for record in one.read("a")] == [1, 2]
    check_links(one.read("a"))
    one.close()
    two.close()


def test_where_there_was_never_an_object_there_is_none(tmp_path: Path) -> None:
    backend = _open(tmp_path)
    assert backend.objects.get("blob", "ab") is None
    assert backend.objects.names("blob") == []
    backend.objects.delete("blob", "ab")
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_heads_follow_another_handles_commits(tmp_path: Path) -> None:
    """Clause 11, with few and with more new events than the cache looks through."""
    one, two, build = _open(tmp_path), _open(tmp_path), RecordBuilder()
    streams = [f"s{n}" for n in range(5)]
    for count in (1, 3, 1100, 2, 1):
        for stream in streams[: 1 + count % 5]:
            _write(one, build, stream, count)
            assert two.heads(streams) == one.heads(streams)
        for stream in streams[count % 5 :]:
            _write(two, build, stream, count)
            assert one.heads(streams) == two.heads(streams)
    for stream in streams:
        check_links(one.read(stream))
    assert list(one.inspect.verify(read_all=True)) == []
    one.close()
    two.close()


def test_a_stale_writer_is_told_the_head_by_another_handle(tmp_path: Path) -> None:
    """Clause 8: the cache of the refused handle is caught up inside its own transaction."""
    one, two, build = _open(tmp_path), _open(tmp_path), RecordBuilder()
    _write(one, build, "a")
    [stale] = two.heads(["a"])
    _write(one, build, "a")
    [refusal] = two.commit([build.commit(build.append("a", behind=stale))])
    assert not isinstance(refusal, Receipt)
    assert (refusal.reason, refusal.head) == ("conflict", one.heads(["a"])[0])
    one.close()
    two.close()


def test_a_small_cache_answers_like_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_STREAMS_MAX", 3)
    one, two, build = _open(tmp_path), _open(tmp_path), RecordBuilder()
    expected: dict[str, int] = {}
    for n in range(60):
        stream = f"s{n * 7 % 11}"
        _write((one, two)[n % 2], build, stream)
        expected[stream] = expected.get(stream, 0) + 1
        names = sorted(expected)
        for backend in (one, two):
            found = [head.revision for head in backend.heads(names) if head is not None]
            assert found == [expected[name] for name in names]
    one.close()
    two.close()


def test_heads_that_come_late_do_not_replace_newer_ones() -> None:
    """A thread may look further between another's commit and the news of it."""
    cache = batch.HeadCache()
    stream = {"a": batch.Stream(1, 1)}
    old, new = (Head(n, b"", 0, START, 1) for n in (1, 2))
    cache.publish(1, {"a": old}, stream)
    cache.advance(3, [1])
    cache.publish(2, {"a": old}, stream)
    assert (cache.heads, cache.position) == ({}, 3)
    cache.offer(2, {"a": old}, stream)
    assert cache.heads == {}
    cache.offer(3, {"a": new}, stream)
    assert cache.heads == {"a": new}
    cache.advance(2, None)
    assert (cache.heads, cache.position) == ({"a": new}, 3)
    cache.advance(4, [99])
    assert cache.heads == {"a": new}
    cache.advance(9, None)
    assert (cache.heads, cache.streams) == ({}, stream)


def test_threads_of_two_handles_agree(tmp_path: Path) -> None:
    one, two = _open(tmp_path), _open(tmp_path)
    seen: list[bool] = []

    def work(backend: SqliteBackend, name: str) -> None:
        build = RecordBuilder(actor=name)
        for n in range(60):
            stream = f"s{n % 4}"
            while True:
                [head] = backend.heads([stream])
                build.time = max(build.time, head.time if head else 0)
                [outcome] = backend.commit([build.commit(build.append(stream, behind=head))])
                if isinstance(outcome, Receipt):
                    break
            [now] = backend.heads([stream])
            seen.append(now is not None and now.position >= outcome.position)

    threads = [
        Thread(target=work, args=(backend, f"w{n}")) for n, backend in enumerate((one, two) * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen == [True] * 240
    for n in range(4):
        check_links(one.read(f"s{n}"))
        assert one.read(f"s{n}") == two.read(f"s{n}")
    assert list(one.inspect.verify(read_all=True)) == []
    one.close()
    two.close()


def test_a_stream_that_is_newer_than_a_readers_snapshot_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread makes a stream between a reader's snapshot and its look at the cache."""
    backend, build = _open(tmp_path), RecordBuilder()
    _write(backend, build, "a")
    real = sqlite_backend.catch_up

    def slow(*args: Any) -> int:
        position = real(*args)
        monkeypatch.setattr(sqlite_backend, "catch_up", real)
        [outcome] = backend.commit([build.commit(build.append("b", b"1"))])
        assert isinstance(outcome, Receipt)
        return position

    monkeypatch.setattr(sqlite_backend, "catch_up", slow)
    assert backend.heads(["b"]) == [None]
    [head] = backend.heads(["b"])
    assert head is not None
    assert head.revision == 1
    backend.close()


def _checkpoints(records: list[Record]) -> list[Found]:
    return [
        Found(record.revision, record.checkpoint, record.time)
        for record in reversed(records)
        if record.checkpoint is not None
    ]


def test_checkpoints_are_found_on_both_sides_of_the_index(tmp_path: Path) -> None:
    backend, build = _open(tmp_path), RecordBuilder()
    # Commits of sizes that end before, on and after multiples of 256, and that pass several.
    for count in (1, 254, 1, 1, 255, 2, 700, 3, 1, 64, 254, 1, 1):
        for stream in ("a", "b"):
            _write(backend, build, stream, count)
            records = backend.read(stream)
            assert backend.find(stream) == _checkpoints(records)
            assert backend.find(stream, limit=3) == _checkpoints(records)[:3]
            for name in ("1", "700", "none"):
                named = [found for found in _checkpoints(records) if found.name == name]
                assert backend.find(stream, checkpoint=name) == named
                assert backend.find(stream, checkpoint=name, limit=1) == named[:1]
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def test_commits_without_events_take_a_position(tmp_path: Path) -> None:
    """Clause 9, also where such a commit passes the end of the checkpoint index."""
    backend, build = _open(tmp_path), RecordBuilder()
    _write(backend, build, "a", 254)
    for n in range(5):
        [outcome] = backend.commit([build.commit(marks=[Mark("i", str(n))])])
        assert outcome == Receipt(backend.wait(START, timeout_s=0))
    assert _write(backend, build, "a").position == 260
    assert [found.revision for found in backend.find("a")] == [255, 254]
    assert len(backend.read_all(limit=1)) == 254
    assert [record.position for record in backend.read_all(after=outcome.position)] == [260]
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()


def _indexes(path: Path) -> set[str]:
    """Returns the names of the indexes; nobody may have the store open."""
    with closing(sqlite3.connect(path / "state.db")) as connection:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")
        return {name for (name,) in rows}


def test_streams_are_found_before_and_after_there_is_an_index(tmp_path: Path) -> None:
    build, names = RecordBuilder(), [f"s{n:02}" for n in range(40)]
    for count in (31, 32, 40):
        one, two = _open(tmp_path), _open(tmp_path)
        for turn, name in enumerate(reversed(names[:count])):
            _write((one, two)[turn % 2], build, name)
        for backend in (one, two):
            assert backend.streams() == names[:count]
            assert backend.streams(prefix="s0", after="s07") == ["s08", "s09"]
            assert backend.heads(["absent"]) == [None]
        assert list(one.inspect.verify(read_all=True)) == []
        one.close()
        two.close()
        assert ("streams_by_name" in _indexes(tmp_path)) == (count >= 32)
    backend = _open(tmp_path)
    assert [head.revision for head in backend.heads(names) if head] == [3] * 31 + [2] + [1] * 8
    backend.close()


def test_objects_are_found_before_and_after_there_is_an_index(tmp_path: Path) -> None:
    names = [f"ab/{n:02}" for n in range(40)]
    for count in (31, 32, 40):
        one, two = _open(tmp_path), _open(tmp_path)
        for turn, name in enumerate(names[:count]):
            (one, two)[turn % 2].objects.put("blob", name, b"%d %s" % (count, name.encode()))
        for backend in (one, two):
            assert backend.objects.names("blob", prefix="ab/") == names[:count]
            assert backend.objects.names("snapshot") == []
            assert backend.objects.get("snapshot", names[0]) is None
            for name in names[:count]:
                assert backend.objects.get("blob", name) == b"%d %s" % (count, name.encode())
        assert list(one.inspect.verify(read_all=True)) == []
        one.close()
        two.close()
        assert ("objects_by_name" in _indexes(tmp_path)) == (count >= 32)
    backend = _open(tmp_path)
    backend.objects.delete("blob", names[39])
    assert backend.objects.names("blob") == names[:39]
    backend.close()


@pytest.mark.parametrize("size", [900, 1000, 1100])
def test_a_conversation_takes_little_more_than_what_was_said(tmp_path: Path, size: int) -> None:
    """Guarantee 12: 1,000 messages of `size` bytes, each with a checkpoint, the file closed."""
    text = "x" * (size - len('{"role":"user","text":""}'))
    with holdfast.open(f"sqlite:{tmp_path}/state.db", durability="none") as store:
        conversation = store.conversation("c1")
        for n in range(1000):
            said = {"role": "user", "text": text}
            conversation.append("messages", said, checkpoint=f"turn {n}")
    assert (tmp_path / "state.db").stat().st_size <= 1.29 * size * 1000
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "state.db-witness"}


@pytest.mark.parametrize("prefix", ["", "a", "a\U0010ffff", "\U0010ffff", "\ud7ff", "a\uffff"])
def test_the_end_of_a_prefix_is_after_all_that_begin_with_it(prefix: str) -> None:
    end = prefix_end(prefix)
    if isinstance(end, str):
        assert end > prefix + "\U0010ffff" * 5
        assert not end.startswith(prefix)
        end.encode()
    else:
        assert prefix.strip("\U0010ffff") == ""
