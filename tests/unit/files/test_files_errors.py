"""The files backend when a call fails, a neighbour dies, or a file says something else."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from holdfast.backends.files import FilesBackend, directory
from holdfast.backends.files import text as line
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.index import Index
from holdfast.backends.files.text import BadLine, decode_line, decode_link, encode_line, parse_time
from holdfast.backends.protocol import Finding
from holdfast.core import codec
from holdfast.errors import FilesTakenError, UnavailableError, UsageError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write
from tests.descriptors import descriptors

SEGMENT = Path("log") / "0000000000000000.jsonl"


@pytest.fixture
def store(tmp_path: Path, backend: FilesBackend, build: RecordBuilder) -> Path:
    """The place of `backend`, which has two commits and is open."""
    for _ in range(2):
        write(backend, build, "a")
    return tmp_path / "store"


# --- closed, or unreadable, in the middle of a call ----------------------------------------------


@pytest.mark.parametrize("error", [ValueError("released"), OSError(errno.EBADF, "Bad descriptor")])
def test_a_handle_closed_by_another_thread_while_it_reads_is_closed(
    backend: FilesBackend, error: Exception
) -> None:
    def closing() -> None:
        backend.close()
        raise error

    backend.opened.fresh = closing  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="store is closed"):
        backend.read("a")


def test_an_error_of_the_disk_while_reading_is_told(store: Path, backend: FilesBackend) -> None:
    def failing() -> None:
        raise OSError(errno.EIO, "Input/output error")

    real, backend.opened.fresh = backend.opened.fresh, failing  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="cannot be read: the disk reports"):
        backend.read("a")
    backend.opened.fresh = real  # type: ignore[method-assign]
    assert revisions(backend.read("a")) == [1, 2]


def test_a_bug_while_reading_is_not_taken_for_a_closed_store(backend: FilesBackend) -> None:
    with pytest.raises(ValueError, match="a bug"), backend.reading():
        raise ValueError("a bug")


@pytest.mark.parametrize("call", ["commit", "acquire"])
def test_a_handle_closed_while_it_waited_for_its_turn_writes_nothing(
    store: Path, backend: FilesBackend, build: RecordBuilder, clock: FakeClock, call: str
) -> None:
    class Turn:
        """The mutex of commits, had by a thread that closes the handle before it gives it up."""

        def __init__(self) -> None:
            self._real = vars(backend)["_committing"]

        def __enter__(self) -> None:
            vars(backend)["_committing"] = self._real
            backend.close()

        def __exit__(self, *error: object) -> None: ...

    vars(backend)["_committing"] = Turn()
    with pytest.raises(UsageError, match="store is closed"):
        if call == "commit":
            backend.commit([build.commit(build.append("b"))])
        else:
            backend.leases.acquire("l", "w", ttl_s=1)
    again = FilesBackend(store, clock=clock)
    assert again.streams() == ["a"]
    assert again.leases.holder("l") is None
    again.close()


@pytest.mark.parametrize("call", ["commit", "acquire"])
def test_a_lock_that_cannot_be_had_is_unavailable_and_harmless(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, disks: dict[str, Any], call: str
) -> None:
    failing: list[bool] = []

    def fault(_: int, name: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name == "lock" and failing and arguments[1] & 2:  # LOCK_EX
            raise OSError(errno.ENOLCK, "No locks available")
        return run()

    backend = FilesBackend(tmp_path / "s", clock=clock, disk=disks["faulty"](fault))
    works: dict[str, Callable[[], Any]] = {
        "commit": lambda: accepted(backend, build.commit(build.append("a"))),
        "acquire": lambda: backend.leases.acquire("l", "w", ttl_s=1),
    }
    failing.append(True)
    with pytest.raises(UnavailableError, match="cannot be written: No locks available") as caught:
        works[call]()
    assert caught.value.outcome_known
    failing.clear()
    assert works[call]() is not None
    backend.close()


# --- neighbours, rings, leases -------------------------------------------------------------------


def test_a_handle_that_closes_after_a_dead_writer_leaves_recovery_to_the_next(
    store: Path, backend: FilesBackend, clock: FakeClock
) -> None:
    backend.opened.page_words[directory.BUSY] = 1  # as a writer that was killed leaves it
    backend.close()
    assert (store / "ring").exists()
    reached: list[str] = []
    again = FilesBackend(store, clock=clock, reach=reached.append)
    assert "files.recovery.completed" in reached
    assert revisions(again.read("a")) == [1, 2]
    again.close()
    assert not (store / "ring").exists()


def test_a_ring_that_cannot_be_measured_is_closed_again(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder
) -> None:
    class Unmeasured(Disk):
        ring = -1

        def open(self, name: str, flags: int, *, at: int, mode: int = 0o600) -> int:
            fd = super().open(name, flags, at=at, mode=mode)
            if name == "ring" and flags & os.O_RDWR and self.ring == -1:
                self.ring = fd
            return fd

        def size(self, fd: int) -> int:
            if fd == self.ring:
                self.ring = -2
                raise OSError(errno.EIO, "Input/output error")
            return super().size(fd)

    backend = FilesBackend(tmp_path / "s", clock=clock, disk=Unmeasured())
    first = build.commit(build.append("a"))
    before = len(descriptors(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        backend.commit([first])
    assert caught.value.outcome_known
    assert len(descriptors(tmp_path)) <= before + 1  # the segment's, which stays
    accepted(backend, first)
    backend.close()


@pytest.mark.parametrize("durability", ["process", "none"])
def test_a_commit_at_a_weaker_durability_passes_its_points(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, durability: Any
) -> None:
    reached: list[str] = []
    backend = FilesBackend(tmp_path / "s", clock=clock, durability=durability, reach=reached.append)
    reached.clear()
    accepted(backend, build.commit(build.append("a")))
    assert reached == ["files.segment.added", "files.text.appended", "files.published"]
    assert not (tmp_path / "s" / "ring").exists()
    backend.close()


def test_a_lease_that_is_forgotten_leaves_its_epoch_behind(
    backend: FilesBackend, clock: FakeClock
) -> None:
    """Clause 15: the clock may be set back after the lease was dropped from the list."""
    start = clock.now_us()
    old = backend.leases.acquire("old", "w1", ttl_s=1)
    assert old is not None
    clock.advance(3 * 24 * 3600)
    assert backend.leases.acquire("other", "w1", ttl_s=1) is not None
    path = Path(backend.directory.path) / "leases.json"
    context = json.loads(path.read_text())
    assert list(context["leases"]) == ["other"]
    assert context["forgotten"] == old.epoch
    clock.set(start - 3_600_000_000)
    again = backend.leases.acquire("old", "w1", ttl_s=1)
    assert again is not None
    assert again.epoch > old.epoch


def test_a_kind_of_object_that_there_is_not_is_refused(backend: FilesBackend) -> None:
    for call in (backend.objects.names, lambda kind: backend.objects.get(kind, "ab")):
        with pytest.raises(UsageError, match="not a kind of object"):
            call("picture")


def test_objects_are_listed_by_the_beginning_of_their_names(backend: FilesBackend) -> None:
    for name in ("ab/cd", "ab/ce", "ab/x", "b", "abc"):
        backend.objects.put("blob", name, b"")
    for prefix, names in (
        ("", ["ab/cd", "ab/ce", "ab/x", "abc", "b"]),
        ("ab", ["ab/cd", "ab/ce", "ab/x", "abc"]),
        ("ab/c", ["ab/cd", "ab/ce"]),
        ("x", []),
    ):
        assert backend.objects.names("blob", prefix=prefix) == names


# --- lines ---------------------------------------------------------------------------------------


def test_a_payload_that_would_read_as_two_values_is_refused(build: RecordBuilder) -> None:
    """It is JSON as a piece of a line: only what is read back shows that it is not one value."""
    with pytest.raises(UsageError, match="not one JSON value"):
        encode_line(build.commit(build.append("a", b'1,"b"')), 1)


def test_a_commit_larger_than_a_line_is_refused(
    build: RecordBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = build.commit(build.append("a", b'"%b"' % (b"x" * 900)))
    assert encode_line(commit, 1)
    monkeypatch.setattr(line, "LINE_BYTES_MAX", 1000)
    with pytest.raises(UsageError, match="at most 1000 fit in a line"):
        encode_line(commit, 1)


@pytest.mark.parametrize("text", ["é" * 43, "A" * 42 + "*", "A" * 20, ""])
def test_a_link_that_is_none_is_bad(text: str) -> None:
    with pytest.raises(BadLine, match="the link"):
        decode_link(text)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-11-16T00:14:47", "2026-13-16T00:14:47.123456Z"]
)
def test_a_time_that_is_none_is_bad(text: str) -> None:
    with pytest.raises(BadLine, match="is not one"):
        parse_time(text)


# --- what verify finds ---------------------------------------------------------------------------


def _found(backend: FilesBackend, *, read_all: bool = True) -> list[Finding]:
    return list(backend.inspect.verify(read_all=read_all))


def _rewritten(text: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Returns a line with another content and a checksum that is right for it."""
    content = json.loads(text)
    content.pop("crc")
    change(content)
    body = json.dumps(content, separators=(",", ":")).encode()[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def test_verify_finds_text_that_is_gone(store: Path, backend: FilesBackend) -> None:
    text = (store / SEGMENT).read_bytes()
    os.truncate(store / SEGMENT, text.index(b"\n") + 1)
    (found,) = [one for one in _found(backend) if "is not there" in one.problem]
    assert not found.harmless
    with pytest.raises(FilesTakenError, match="the end of the open segment"):
        backend.close()


def test_verify_finds_a_link_to_elsewhere(store: Path, backend: FilesBackend) -> None:
    (store / "elsewhere").symlink_to(store / "lock")
    assert Finding("elsewhere", "is a symbolic link: a store has none") in _found(backend)


@pytest.mark.parametrize("read_all", [True, False])
def test_verify_finds_text_that_is_not_what_the_ring_holds(
    store: Path, backend: FilesBackend, read_all: bool
) -> None:
    text = bytearray((store / SEGMENT).read_bytes())
    text[30] ^= 1
    (store / SEGMENT).write_bytes(text)
    found = [one.problem for one in _found(backend, read_all=read_all)]
    assert "the text differs from ring batch 1" in found


def test_verify_goes_on_after_a_damaged_line(
    store: Path, backend: FilesBackend, build: RecordBuilder
) -> None:
    start = (store / SEGMENT).stat().st_size
    for stream in ("b", "c", "d"):
        write(backend, build, stream)
    text = bytearray((store / SEGMENT).read_bytes())
    text[start + 30] ^= 1
    (store / SEGMENT).write_bytes(text)
    found = [one for one in _found(backend) if "ring" not in one.problem]
    assert [one.where for one in found] == [f"{SEGMENT} byte {start}"]


def test_verify_names_a_line_in_another_place(store: Path, backend: FilesBackend) -> None:
    one, two = (store / SEGMENT).read_bytes().splitlines(keepends=True)

    def renumber(content: dict[str, Any]) -> None:
        content["n"] = 7

    changed = _rewritten(two, renumber)
    assert len(changed) == len(two)
    assert decode_line(changed).n == 7
    (store / SEGMENT).write_bytes(one + changed)
    found = [finding.problem for finding in _found(backend)]
    assert "the line is not what was written: its position is 7: expected 2" in found
    with pytest.raises(FilesTakenError, match="the end of the open segment"):
        backend.close()


def test_verify_finds_a_text_that_was_exchanged_line_by_line(
    store: Path, backend: FilesBackend, clock: FakeClock
) -> None:
    """Every line verifies by itself; the digest over all of them is another one."""
    one, two = (store / SEGMENT).read_bytes().splitlines(keepends=True)

    def rename(content: dict[str, Any]) -> None:
        content["by"] = content["by"][::-1]

    (store / SEGMENT).write_bytes(_rewritten(one, rename) + two)
    found = _found(backend)
    assert any(
        finding.problem == "the store digest differs from the one in use" for finding in found
    )


def test_verify_finds_a_record_of_another_text(store: Path, backend: FilesBackend) -> None:
    backend.directory.write_head(backend.catalog.tail.cursor, closed=True)
    assert _found(backend) == []
    head = json.loads((store / "head.json").read_text())
    (store / "head.json").write_text(json.dumps(head | {"digest": "00" * 32}))
    (found,) = _found(backend)
    assert found.where == "head.json"
    assert not found.harmless


@pytest.mark.parametrize("read_all", [True, False])
def test_verify_finds_a_stream_that_the_index_lacks(
    store: Path, backend: FilesBackend, monkeypatch: pytest.MonkeyPatch, read_all: bool
) -> None:
    backend.catalog.flush()
    assert _found(backend, read_all=read_all) == []
    monkeypatch.setattr(Index, "heads", lambda self: iter(()))
    expected = [Finding("index.sqlite", "'a' is missing; delete it", harmless=True)]
    assert _found(backend, read_all=read_all) == (expected if read_all else [])


def test_verify_finds_spans_that_differ_from_the_text(
    store: Path, backend: FilesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.catalog.flush()
    real = Index.spans
    monkeypatch.setattr(Index, "spans", lambda self, *arguments: real(self, *arguments)[1:])
    problem = "places of 'a' differ from the text; delete it"
    assert _found(backend) == [Finding("index.sqlite", problem, harmless=True)]


def test_verify_finds_an_index_that_is_none(store: Path, backend: FilesBackend) -> None:
    (store / "index.sqlite").write_bytes(b"no index" * 1000)
    (store / "index.sqlite").chmod(0o600)
    (found,) = _found(backend)
    assert found.where == "index.sqlite"
    assert found.problem.startswith("cannot be used: ")
    assert found.harmless


@pytest.mark.parametrize("damage", ["none", "behind", "cut", "flip", "huge", "foreign"])
def test_verify_reads_blobs_to_their_last_byte(
    store: Path, backend: FilesBackend, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    content = b"".join(sha256(b"%d" % n).digest() for n in range(200))
    data = codec.compress(content)
    assert len(data) > 5000
    name = sha256(content).hexdigest()
    if damage == "behind":
        data += bytes(3000)
    elif damage == "cut":
        data = data[:-700]
    elif damage == "flip":
        data = data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]
    elif damage == "foreign":
        data = codec.compress(content[::-1])
    elif damage == "huge":
        monkeypatch.setattr("holdfast.backends.files.inspection.OBJECT_BYTES_MAX", len(content) - 1)
        monkeypatch.setattr("holdfast.backends.files.inspection.read_file", lambda *a, **k: data)
    backend.objects.put("blob", name, data)
    found = [finding.problem for finding in _found(backend)]
    wrong = "does not hold the bytes that its name is the digest of"
    assert found == ([] if damage == "none" else [wrong])
