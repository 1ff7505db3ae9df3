"""Where a store may lie, who may open it, and what is left untouched (guarantees 8 and 10)."""

from __future__ import annotations

import errno
import gc
import importlib.util
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from holdfast.backends.files import FilesBackend
from holdfast.clock import SystemClock
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import revisions, write
from tests.descriptors import descriptors
from tests.unit.files.conftest import read_damaged


def _bytes_below(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_directories_made_above_a_store_are_their_owners_alone(
    tmp_path: Path, clock: FakeClock
) -> None:
    mask = os.umask(0)
    try:
        FilesBackend(tmp_path / "a" / "b" / "c" / "s", clock=clock).close()
    finally:
        os.umask(mask)
    for made in ("a", "a/b", "a/b/c", "a/b/c/s"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700, made


def test_a_store_that_is_not_there_is_not_found(tmp_path: Path, clock: FakeClock) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFoundError):
            FilesBackend(tmp_path / "s", clock=clock, **options)
    assert os.listdir(tmp_path) == []


def test_an_empty_directory_becomes_a_store_only_if_it_may(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(FormatError, match="not a holdfast store"):
        FilesBackend(tmp_path / "s", clock=clock, create=False)
    FilesBackend(tmp_path / "s", clock=clock).close()
    FilesBackend(tmp_path / "s", clock=clock, create=False).close()


def test_a_directory_with_something_else_in_it_is_left_alone(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match="not a holdfast store"):
        FilesBackend(tmp_path, clock=clock)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("format", [4, 99, "1", None])
def test_an_unknown_format_is_refused_and_nothing_is_created(
    tmp_path: Path, clock: FakeClock, format: object
) -> None:
    FilesBackend(tmp_path / "s", clock=clock).close()
    identity = tmp_path / "s" / "holdfast.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": format}))
    (tmp_path / "s" / "lock").unlink()
    before = _bytes_below(tmp_path)
    for read_only in (False, True):
        with pytest.raises(FormatError, match="upgrade"):
            FilesBackend(tmp_path / "s", clock=clock, read_only=read_only)
    assert _bytes_below(tmp_path) == before


@pytest.mark.parametrize("name", ["holdfast.json", "head.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format":1}'])
def test_an_unreadable_record_of_what_the_store_is_is_never_guessed_at(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, name: str, content: bytes
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    backend.close()
    (tmp_path / "s" / name).write_bytes(content)
    with pytest.raises((CorruptError, FormatError)):
        read_damaged(tmp_path / "s", clock)
    assert (tmp_path / "s" / name).read_bytes() == content


def test_a_symbolic_link_is_not_followed(tmp_path: Path, clock: FakeClock) -> None:
    FilesBackend(tmp_path / "s", clock=clock).close()
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with pytest.raises(UsageError, match="symbolic link"):
        FilesBackend(tmp_path / "link", clock=clock)


@pytest.mark.parametrize("name", ["lock", "log", "workers", "shared", "ring"])
def test_no_part_of_a_store_may_be_a_symbolic_link(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, name: str
) -> None:
    store, outside = tmp_path / "s", tmp_path / "outside"
    FilesBackend(store, clock=clock).close()
    outside.mkdir()
    (outside / "file").write_bytes(b"precious")
    target = store / name
    if target.is_dir():
        target.rename(tmp_path / "moved")
        target.symlink_to(outside)
    else:
        target.unlink(missing_ok=True)
        target.symlink_to(outside / "file")
    with pytest.raises(HoldfastError):
        write(FilesBackend(store, clock=clock), build, "a")
    assert _bytes_below(outside) == {"file": b"precious"}


def test_a_store_that_others_can_write_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    FilesBackend(tmp_path / "s", clock=clock).close()
    (tmp_path / "s").chmod(0o770)
    with pytest.raises(UsageError, match="chmod"):
        FilesBackend(tmp_path / "s", clock=clock)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, clock: FakeClock) -> None:
    before = os.umask(0)
    try:
        backend = FilesBackend(tmp_path / "deep" / "s", clock=clock)
        write(backend, RecordBuilder(), "a")
        backend.catalog.flush()
        backend.objects.put("blob", "abc", b"1")
        backend.leases.acquire("l", "w1", ttl_s=10)
        modes = {p: stat.S_IMODE(p.lstat().st_mode) for p in (tmp_path / "deep").rglob("*")}
        assert (tmp_path / "deep" / "s" / "index.sqlite") in modes
        for path, mode in modes.items():
            assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has {mode:o}"
        backend.close()
    finally:
        os.umask(before)


def test_a_file_that_others_can_write_is_found_by_verify(
    tmp_path: Path, backend: FilesBackend, build: RecordBuilder
) -> None:
    write(backend, build, "a")
    (tmp_path / "store" / "log" / "0000000000000000.jsonl").chmod(0o666)
    [found] = backend.inspect.verify(read_all=False)
    assert found.where == "log/0000000000000000.jsonl"
    assert "chmod go-w" in found.problem


def test_a_store_of_another_user_is_refused(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    FilesBackend(tmp_path / "s", clock=clock).close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="expected 12345"):
        FilesBackend(tmp_path / "s", clock=clock)


def test_read_only_creates_nothing_and_refuses_writes(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    backend.leases.acquire("l", "w1", ttl_s=10)
    backend.close()
    before = _bytes_below(tmp_path)
    reader = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    assert revisions(reader.read("a")) == [1]
    assert reader.leases.holder("l") is None
    append = build.append("a", behind=reader.read("a")[0])
    for call in (
        lambda: reader.commit([build.commit(append)]),
        lambda: reader.leases.acquire("l", "w", ttl_s=1),
        lambda: reader.marks.claim("i", "w", n=1, ttl_s=1),
        lambda: reader.objects.put("blob", "a", b""),
        lambda: reader.objects.delete("blob", "a"),
    ):
        with pytest.raises(UsageError, match="read-only"):
            call()
    assert list(reader.inspect.verify(read_all=True)) == []
    reader.close()
    assert _bytes_below(tmp_path) == before


def test_read_only_follows_a_living_store_and_the_next_one(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    writer = FilesBackend(tmp_path / "s", clock=clock)
    reader = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    assert reader.read("a") == []
    write(writer, build, "a")
    assert revisions(reader.read("a")) == [1]
    lease = writer.leases.acquire("l", "w1", ttl_s=10)
    assert reader.leases.holder("l") == lease
    writer.close()
    assert revisions(reader.read("a")) == [1]
    writer = FilesBackend(tmp_path / "s", clock=clock)
    write(writer, build, "a")
    assert revisions(reader.read("a")) == [1, 2]
    assert reader.heads(["a"]) == writer.heads(["a"])
    writer.close()
    reader.close()


def test_read_only_shows_what_verifies_of_a_store_that_was_not_closed(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    writer = FilesBackend(tmp_path / "s", clock=clock)
    for _ in range(3):
        write(writer, build, "a")
    clock.reboot()
    path = tmp_path / "s" / "log" / "0000000000000000.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    reader = FilesBackend(tmp_path / "s", clock=clock, read_only=True)
    assert revisions(reader.read("a")) == [1, 2]
    assert "open it for writing" in reader.inspect.describe()["reports"][0]
    reader.close()


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "right to read and write"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, "check the disk"),
    ],
)
def test_an_error_says_what_helps(
    tmp_path: Path, clock: FakeClock, disks: dict, problem: int, remedy: str
) -> None:
    disk = disks["fail_at"](1, problem, only=("open",))
    with pytest.raises(UnavailableError, match=remedy) as caught:
        FilesBackend(tmp_path / "s", clock=clock, disk=disk)
    assert caught.value.outcome_known


def test_descriptors_do_not_leak(tmp_path: Path, disks: dict, build: RecordBuilder) -> None:
    def count() -> int:
        gc.collect()  # descriptors that another test left to the collector are not ours
        return len(descriptors(tmp_path))

    clock = SystemClock()
    backend = FilesBackend(tmp_path / "s", clock=clock)
    write(backend, build, "a")
    backend.catalog.flush()
    backend.close()
    before = count()
    for number in range(1, 30):
        FilesBackend(tmp_path / "s", clock=clock).close()
        FilesBackend(tmp_path / "s", clock=clock, read_only=True).close()
        disk = disks["fail_at"](number, errno.EIO, only=("open", "pread", "size"))
        try:
            FilesBackend(tmp_path / "s", clock=clock, disk=disk).close()
        except UnavailableError:
            continue
    assert count() <= before


@pytest.mark.parametrize(
    "name", ["../../../escape", "/abs", "a//b", "a/./b", "a/../b", ".", "..", "a/", "-", "a.b", "a"]
)
def test_clause_14_an_object_name_is_data(tmp_path: Path, backend: FilesBackend, name: str) -> None:
    for kind in ("blob", "snapshot"):
        backend.objects.put(kind, name, name.encode())
        backend.objects.put(kind, name + "/x", b"below")
        assert backend.objects.get(kind, name) == name.encode()
        assert backend.objects.names(kind) == sorted([name, name + "/x"])
        assert backend.objects.names(kind, prefix=name + "/") == [name + "/x"]
        backend.objects.delete(kind, name)
        assert backend.objects.get(kind, name) is None
        backend.objects.delete(kind, name + "/x")
        assert backend.objects.names(kind) == []
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize("name", ["", "A", "a=b", "a b", "é", "x" * 121, "a\n"])
def test_an_object_name_outside_the_rule_is_refused(backend: FilesBackend, name: str) -> None:
    with pytest.raises(UsageError):
        backend.objects.put("blob", name, b"")
    with pytest.raises(UsageError):
        backend.objects.put("other", "a", b"")


def test_windows_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("holdfast.backends.files")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="Linux and macOS only"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
