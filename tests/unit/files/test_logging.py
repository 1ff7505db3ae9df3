"""What is absorbed or repaired is logged: a program that wonders can see it."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend, catalog
from holdfast.backends.files.disk import Disk
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import accepted, revisions, write

LOGGER = "holdfast.backends"
INDEX = "index.sqlite"


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, LOGGER)
    return caplog


def fill(backend: FilesBackend, build: RecordBuilder, count: int) -> None:
    for number in range(count):
        head = backend.heads(["s"])[0]
        append = build.append("s", b'"%0300d"' % number, behind=head)
        accepted(backend, build.commit(append))


def test_an_index_that_is_rebuilt_is_logged_once(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, log: pytest.LogCaptureFixture
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    fill(backend, build, 3)
    backend.catalog.flush()
    backend.close()
    (tmp_path / "s" / INDEX).write_bytes(b"not a database" * 1000)
    for _ in range(2):
        FilesBackend(tmp_path / "s", clock=clock, read_only=True).close()
    said = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert len(said) == 2, "once for each handle"
    assert all("the index could not be used" in each for each in said)


def test_a_torn_end_that_is_cut_is_logged(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, log: pytest.LogCaptureFixture
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    fill(backend, build, 3)
    backend.close()
    (tmp_path / "s" / "head.json").unlink()  # a copy of a living store
    [segment] = (tmp_path / "s" / "log").iterdir()
    with segment.open("ab") as file:
        file.write(b'{"n":4,"at":')
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(backend.read("s")) == [1, 2, 3]
    backend.close()
    assert "cut 12 bytes of an unacknowledged commit" in log.text


def test_a_handle_without_an_index_logs_one_that_it_cannot_take_over(
    tmp_path: Path,
    clock: FakeClock,
    build: RecordBuilder,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps the lines in memory, and says nothing worse than debug."""
    mine = FilesBackend(tmp_path / "s", clock=clock)
    other = FilesBackend(tmp_path / "s", clock=clock)
    fill(other, build, 20)
    (tmp_path / "s" / INDEX).write_bytes(b"not a database" * 1000)
    monkeypatch.setattr(catalog, "FLUSH_BYTES", 1000)
    assert revisions(mine.read("s")) == [*range(1, 21)]
    assert "cannot be used yet" in log.text
    assert {record.levelno for record in log.records} == {logging.DEBUG}
    (tmp_path / "s" / INDEX).unlink()
    other.close()
    mine.close()


def test_a_commit_whose_index_fails_is_durable_and_the_failure_logged(
    tmp_path: Path,
    clock: FakeClock,
    build: RecordBuilder,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(backend.catalog, "flush", fail)
    backend.catalog.flush_at = 0
    write(backend, build, "s")
    assert revisions(backend.read("s")) == [1]
    assert "the index was not brought up to date" in log.text
    monkeypatch.undo()
    backend.close()


def test_a_close_that_cannot_write_leaves_recovery_to_the_next_and_is_logged(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, log: pytest.LogCaptureFixture
) -> None:
    class Failing(Disk):
        fails = False

        def rename(self, old: str, new: str, *, at: int) -> None:
            if self.fails and new == "head.json":
                raise OSError(errno.EIO, "Input/output error")
            super().rename(old, new, at=at)

    disk: Any = Failing()
    backend = FilesBackend(tmp_path / "s", clock=clock, disk=disk)
    write(backend, build, "s")
    disk.fails = True
    backend.close()
    assert f"the next to open {tmp_path / 's'} has to recover it" in log.text
    again = FilesBackend(tmp_path / "s", clock=clock)
    assert revisions(again.read("s")) == [1]
    again.close()


def test_leases_that_cannot_be_read_are_logged(
    tmp_path: Path, clock: FakeClock, build: RecordBuilder, log: pytest.LogCaptureFixture
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert backend.leases.acquire("l", "w", ttl_s=9) is not None
    backend.close()
    (tmp_path / "s" / "leases.json").write_bytes(b"{")
    backend = FilesBackend(tmp_path / "s", clock=clock)
    assert backend.leases.holder("l") is None
    backend.close()
    assert "leases.json could not be read, leases ended" in log.text
