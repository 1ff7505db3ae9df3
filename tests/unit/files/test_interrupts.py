"""A files store whose calls are interrupted, re-entered by a handler, or closed beside a reader."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend, opening
from holdfast.backends.protocol import Commit
from holdfast.errors import CorruptError, UnavailableError, UsageError
from holdfast.testing import CrashPoints
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import revisions, write

POINTS = ("files.ring.written", "files.text.appended", "files.ring.synced", "files.published")


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupt_in_the_middle_of_a_commit_leaves_the_handle_usable(
    tmp_path: Path, clock: FakeClock, point: str
) -> None:
    """Nothing failed: ring and text are recovered by whoever writes next, be it this one."""
    points = CrashPoints()
    backend = FilesBackend(tmp_path / "store", clock=clock, reach=points.reach)
    build = RecordBuilder()
    write(backend, build, "a")
    for n in range(3):
        points.raise_at(point, KeyboardInterrupt())
        [head] = backend.heads(["a"])
        with pytest.raises(KeyboardInterrupt):
            backend.commit([build.commit(build.append("a", key=f"interrupted {n}", behind=head))])
        other = FilesBackend(tmp_path / "store", clock=clock)
        assert backend.heads(["a"]) == other.heads(["a"])
        other.close()
        [head] = backend.heads(["a"])
        backend.commit([build.commit(build.append("a", key=f"k{n}", behind=head))])
    told = revisions(backend.read("a"))
    assert told == list(range(1, len(told) + 1))
    assert list(backend.inspect.verify(read_all=True)) == []
    backend.close()
    with FilesBackendBlock(tmp_path / "store", clock) as again:
        assert revisions(again.read("a")) == told


class FilesBackendBlock:
    def __init__(self, path: Path, clock: FakeClock) -> None:
        self._backend = FilesBackend(path, clock=clock)

    def __enter__(self) -> FilesBackend:
        return self._backend

    def __exit__(self, *_: object) -> None:
        self._backend.close()


def test_a_failed_sync_still_ends_the_handle(tmp_path: Path, clock: FakeClock) -> None:
    points = CrashPoints()
    backend = FilesBackend(tmp_path / "store", clock=clock, reach=points.reach)
    build = RecordBuilder()
    points.raise_at("files.ring.written", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(UnavailableError):
        write(backend, build, "a")
    with pytest.raises(UnavailableError, match="open the store again"):
        backend.heads(["a"])
    backend.close()


def test_a_handler_inside_a_commit_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    said: list[str] = []

    def reach(point: str) -> None:
        if point != "files.ring.written" or said:
            return
        for call in (
            lambda: backend.commit([Commit(0, "x", ())]),
            lambda: backend.leases.acquire("l", "w", ttl_s=60),
            backend.close,
        ):
            with pytest.raises(UsageError, match="inside another call") as caught:
                call()
            said.append(str(caught.value))
        vars(backend)["_dead"] = None  # it was marked before it was refused

    backend = FilesBackend(tmp_path / "store", clock=clock, reach=reach)
    write(backend, RecordBuilder(), "a")
    assert len(said) == 3
    assert revisions(backend.read("a")) == [1]
    backend.close()


@pytest.mark.parametrize("lock", ["catalog", "segments"])
def test_a_handler_inside_a_read_is_refused(backend: FilesBackend, lock: str) -> None:
    held = backend.catalog.mutex if lock == "catalog" else backend.catalog.segments.mutex
    with held, pytest.raises(UsageError, match="a read inside another call"):
        backend.read("a")
    assert backend.read("a") == []


def test_a_lease_that_was_not_saved_is_not_believed(
    backend: FilesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table in memory has it, the one on disk does not: another process could be given it."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backend.directory, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.leases.acquire("l", "w", ttl_s=60)
    assert backend.leases.holder("l") is None
    assert backend.leases.acquire("l", "w", ttl_s=60) is not None


def test_a_close_that_was_interrupted_is_finished_by_the_next(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FilesBackend(tmp_path / "store", clock=clock)
    write(backend, RecordBuilder(), "a")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backend.opened, "_leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.close()
    backend.close()
    backend.close()
    with FilesBackendBlock(tmp_path / "store", clock) as again:
        assert revisions(again.read("a")) == [1]


def test_an_index_that_an_interrupt_left_in_a_transaction_answers(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "WORTH_INDEXING_BYTES", 1)
    with FilesBackendBlock(tmp_path / "store", clock) as backend:
        write(backend, RecordBuilder(), "a")
    with FilesBackendBlock(tmp_path / "store", clock) as backend:
        index: Any = vars(backend.catalog)["_index"]
        index._db.execute("BEGIN")
        assert revisions(backend.read("a")) == [1]
        assert not index._db.in_transaction


# --- closed beside a reader ----------------------------------------------------------------------


def test_a_reader_beside_a_close_is_told_that_the_store_is_closed(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an AssertionError: the index was closed between a look and a question."""
    monkeypatch.setattr(opening, "WORTH_INDEXING_BYTES", 1)
    with FilesBackendBlock(tmp_path / "store", clock) as backend:
        write(backend, RecordBuilder(), "a")
    backend = FilesBackend(tmp_path / "store", clock=clock)
    fresh = backend.opened.fresh

    def closing() -> None:
        backend.opened.fresh = fresh  # type: ignore[method-assign]
        fresh()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(backend.close).result()

    backend.opened.fresh = closing  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="store is closed"):
        backend.marks.list("i")


def test_an_error_of_a_reader_beside_no_close_is_its_own(backend: FilesBackend) -> None:
    def damaged() -> None:
        raise CorruptError("damaged")

    fresh, backend.opened.fresh = backend.opened.fresh, damaged  # type: ignore[method-assign]
    with pytest.raises(CorruptError, match="damaged"):
        backend.read("a")
    backend.opened.fresh = fresh  # type: ignore[method-assign]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_page_that_goes_while_a_head_is_looked_up(
    tmp_path: Path, clock: FakeClock, is_closed: bool
) -> None:
    backend = FilesBackend(tmp_path / "store", clock=clock)

    class Released:
        def __getitem__(self, word: int) -> int:
            if is_closed:
                backend.close()
            raise ValueError("operation forbidden on released memoryview object")

    opened: Any = backend.opened
    words, opened.page_words = opened.page_words, Released()
    with pytest.raises(UsageError if is_closed else ValueError):
        backend.heads(["a"])
    opened.page_words = words
    backend.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_object_that_cannot_be_read_beside_a_close(
    backend: FilesBackend, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    def failing(*_: object, **__: object) -> int:
        if is_closed:
            backend.close()
        raise OSError(errno.EBADF, "Bad file descriptor")

    backend.objects.put("blob", "a" * 64, b"data")
    monkeypatch.setattr(vars(backend)["directory"].disk, "open", failing)
    with pytest.raises(UsageError if is_closed else UnavailableError):
        backend.objects.get("blob", "a" * 64)
