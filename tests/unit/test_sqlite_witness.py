"""The witness of a SQLite store: what it tells after a kill, and what it must not tell."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.protocol import Durability, Mark
from holdfast.backends.sqlite import SqliteBackend, witness
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite.witness import SLOT_BYTES, SLOTS, Witness, find_loss, read_note
from holdfast.errors import LostCommitsError, UnavailableError
from holdfast.testing import FakeClock, RecordBuilder
from tests.descriptors import descriptors


def _open(path: Path, **options: Any) -> SqliteBackend:
    return SqliteBackend(path, clock=FakeClock(), **options)


def _write(backend: SqliteBackend, count: int = 1, stream: str = "a") -> None:
    build = RecordBuilder()
    for _ in range(count):
        [head] = backend.heads([stream])
        backend.commit([build.commit(build.append(stream, behind=head))])


def _make(path: Path, count: int = 5, **options: Any) -> None:
    backend = _open(path, **options)
    _write(backend, count)
    backend.close()


def _change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def _loss(path: Path) -> str | None:
    """Returns what a handle that only reads tells, by both ways."""
    backend = _open(path, read_only=True)
    reports = backend.inspect.describe()["reports"]
    found = [one.problem for one in backend.inspect.verify(read_all=False) if not one.harmless]
    backend.close()
    told = [text for text in found if "acknowledged" in text]
    assert told == reports
    return told[0] if told else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    witness._boot.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield
    monkeypatch.undo()
    witness._boot.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_it_knows_the_newest_commit(path: Path) -> None:
    _make(path, 20)
    note = read_note(str(path))
    assert note is not None
    assert note.position == 20
    assert _loss(path) is None
    _make(path, 20)
    assert _loss(path) is None


def test_commits_that_are_gone_are_lost(path: Path) -> None:
    _make(path, 20)
    _change(path, "DELETE FROM events WHERE ordinal > 12")
    told = _loss(path)
    assert told is not None
    assert "the newest was number 20, found 12" in told
    assert f'delete "{path}-witness"' in told
    before = descriptors(path.parent)
    with pytest.raises(LostCommitsError, match="number 20, found 12"):
        _open(path)
    assert descriptors(path.parent) == before
    os.unlink(f"{path}-witness")
    _make(path, 3)
    assert _loss(path) is None


def test_an_empty_database_has_lost_everything(path: Path) -> None:
    _make(path, 3)
    _change(path, "DELETE FROM events WHERE ordinal > 0")
    assert "found 0" in str(_loss(path))


def test_another_event_in_the_place_of_the_noted_one_is_a_loss(tmp_path: Path, path: Path) -> None:
    """A copy that went another way has as many events, or more."""
    _make(path, 5)
    shutil.copy(path, tmp_path / "other.db")
    _make(path, 5)
    other = _open(tmp_path / "other.db")
    _write(other, 8, stream="b")
    other.close()
    shutil.copy(tmp_path / "other.db", path)
    assert "number 10 is not the one that was written" in str(_loss(path))


def test_a_store_with_another_id_is_not_taken_for_this_one(tmp_path: Path, path: Path) -> None:
    _make(path, 5)
    backend = SqliteBackend(tmp_path / "other.db", clock=FakeClock(start_us=10**15))
    _write(backend, 9)
    backend.close()
    shutil.copy(tmp_path / "other.db", path)
    assert "another store is in its place" in str(_loss(path))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET subject = 'other' WHERE ordinal = 0",
        "UPDATE events SET link = x'00' WHERE ordinal = 5",
        "UPDATE events SET payload = x'00' WHERE ordinal = 5",
        "DELETE FROM streams",
        "DELETE FROM events WHERE ordinal = 0",
    ],
)
def test_damage_is_not_taken_for_loss(path: Path, statement: str) -> None:
    """It has errors of its own, and does not keep anybody from opening the store."""
    _make(path, 5)
    _change(path, statement)
    backend = _open(path)
    assert any(backend.inspect.verify(read_all=True))
    backend.close()


def test_a_database_that_cannot_be_asked_is_opened(path: Path) -> None:
    _make(path, 5)
    _change(path, "DROP TABLE events")
    backend = _open(path)
    assert any(backend.inspect.verify(read_all=True))
    backend.close()


def test_a_store_whose_witness_cannot_be_compared_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: a failed read left a witness without a store, and the next open took it for a loss."""
    _make(path, 5)

    def refuse(*_: object) -> str | None:
        raise apsw.IOError("disk I/O error")

    before = descriptors(path.parent)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_backend, "find_loss", refuse)
        with pytest.raises(UnavailableError, match="reading or writing failed"):
            _open(path)
    assert descriptors(path.parent) == before
    _make(path, 5)
    assert _loss(path) is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET subject = 'other' WHERE ordinal = 0",
        "DELETE FROM events WHERE ordinal = 0",
    ],
)
def test_a_store_that_does_not_know_its_id_notes_nothing(path: Path, statement: str) -> None:
    _make(path, 5)
    _change(path, statement)
    _make(path, 5)
    note = read_note(str(path))
    assert note is not None
    assert note.position == 5


def test_a_commit_without_events_is_noted(path: Path) -> None:
    backend = _open(path)
    _write(backend)
    backend.commit([RecordBuilder().commit(marks=[Mark("i", "k")])])
    backend.close()
    note = read_note(str(path))
    assert note is not None
    assert (note.position, note.link) == (2, bytes(16))
    assert _loss(path) is None
    _change(path, "DELETE FROM events WHERE ordinal = 2")
    assert _loss(path) is not None


def test_an_event_in_the_place_of_a_commit_without_events_is_a_loss(
    path: Path, tmp_path: Path
) -> None:
    _make(path, 1)
    shutil.copy(path, tmp_path / "other.db")
    _make(path, 1)
    other = _open(tmp_path / "other.db")
    other.commit([RecordBuilder().commit(marks=[Mark("i", "k")])])
    other.close()
    shutil.copy(tmp_path / "other.db", path)
    assert "number 2 is not the one" in str(_loss(path))


def test_a_batch_that_is_refused_is_not_noted(path: Path) -> None:
    backend, build = _open(path), RecordBuilder()
    _write(backend, 2)
    [head] = backend.heads(["a"])
    refused = build.commit(build.append("a"))
    backend.commit([refused])
    note = read_note(str(path))
    assert note is not None
    assert head is not None
    assert note.position == head.position == 2
    backend.close()


# --- boots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "told"), [("full", True), ("process", False), ("none", False)]
)
def test_after_another_boot_only_what_was_synced_counts(
    path: Path,
    another_boot: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    durability: Durability,
    told: bool,
) -> None:
    """A power loss may take commits that were not synced, and leave what was noted of them."""
    _make(path, 5, durability=durability)
    _change(path, "DELETE FROM events WHERE ordinal > 3")
    assert _loss(path) is not None
    (tmp_path / "boot").write_text("another boot\n")
    monkeypatch.setattr(witness, "_BOOT_ID", tmp_path / "boot")
    witness._boot.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert (_loss(path) is not None) is told


def test_where_boots_have_no_name_only_what_was_synced_counts(
    path: Path, another_boot: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(witness, "_BOOT_ID", tmp_path / "nothing")
    _make(path, 5, durability="process")
    assert read_note(str(path)) is None
    _make(path, 5)
    assert read_note(str(path)) is not None


# --- the file -------------------------------------------------------------------------------------


def test_a_copy_of_the_witness_says_nothing(path: Path, tmp_path: Path) -> None:
    _make(path, 5)
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    shutil.copy(f"{path}-witness", f"{copy}-witness")
    _change(copy, "DELETE FROM events WHERE ordinal > 3")
    assert read_note(str(copy)) is None
    _make(copy, 1)
    note = read_note(str(copy))
    assert note is not None
    assert note.position == 4


def test_damage_to_the_witness_is_harmless(path: Path) -> None:
    """Each slot has a checksum; of a damaged one nothing counts."""
    _make(path, 20)
    whole = Path(f"{path}-witness").read_bytes()
    assert len(whole) == SLOTS * SLOT_BYTES
    chance = random.Random(5)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 2, 64))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        Path(f"{path}-witness").write_bytes(damaged)
        note = read_note(str(path))
        assert note is None or 13 <= note.position <= 20
    for length in (0, 1, 63, 64, 100, 511):
        Path(f"{path}-witness").write_bytes(whole[:length])
        note = read_note(str(path))
        assert note is None or note.position <= 20
    _make(path, 1)
    assert _loss(path) is None


def test_a_slot_of_another_kind_says_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(witness, "_MAGIC", b"HLw9")
        _make(path, 5)
    assert read_note(str(path)) is None


def test_a_late_note_hides_no_newer_one(path: Path) -> None:
    first, second = Witness(str(path), "s", "full"), Witness(str(path), "s", "full")
    second.note(11, b"b" * 32)
    first.note(10, b"a" * 32)
    note = read_note(str(path))
    assert note is not None
    assert (note.position, note.link) == (11, b"b" * 16)
    first.close()
    second.close()
    first.note(12, b"")
    first.close()
    assert read_note(str(path)) == note


def test_where_it_cannot_be_written_it_knows_of_less(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.WARNING):
        absent = Witness(str(path.parent / "no such directory" / "state.db"), "s", "full")
    assert "is no longer written" in caplog.text
    absent.note(1, b"")
    absent.close()
    backend = _open(path)
    _write(backend, 3)
    with monkeypatch.context() as patch:
        patch.setattr(witness.os, "pwrite", refuse)
        _write(backend)
    _write(backend)
    backend.close()
    note = read_note(str(path))
    assert note is not None
    assert note.position == 3
    assert _loss(path) is None


def test_a_witness_that_cannot_be_read_says_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    _make(path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(witness.os, "pread", refuse)
        assert read_note(str(path)) is None
    os.unlink(f"{path}-witness")
    assert read_note(str(path)) is None
    assert find_loss(str(path), lambda *_: None) is None  # type: ignore[arg-type, return-value]
