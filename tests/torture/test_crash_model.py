"""The recorder and the model of T4 themselves, and what T4 found, each in its smallest form."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.files.index import Index
from holdfast.testing import FakeClock
from tests.torture.crash_states import (
    EMPTY,
    KEPT,
    LOST,
    Fate,
    Moment,
    State,
    base_fates,
    digest_of,
    lay_out,
    moments,
    more_fates,
)
from tests.torture.crash_trace import CrashDisk, Trace, recording

CREATE = os.O_RDWR | os.O_CREAT


def last_moment(place: Path, work: Callable[[Path], None]) -> Moment:
    """Returns the end of what some work on files left behind."""
    trace = Trace(place)
    with recording(trace):
        work(place)
    return moments(trace)[-1]


def states(moment: Moment) -> list[State]:
    fates = [*base_fates(moment), *more_fates(moment, random.Random(1))]
    return list({digest_of(state): state for state in map(moment.state, fates)}.values())


def sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_a_file_that_was_synced_has_no_name_until_its_directory_is(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        fd = os.open(place / "file", CREATE)
        os.pwrite(fd, b"bytes", 0)
        os.fsync(fd)
        os.close(fd)

    assert states(last_moment(tmp_path, work)) == [{}, {"file": b"bytes"}]


def test_what_was_synced_is_there_in_every_state(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        fd = os.open(place / "file", CREATE)
        os.pwrite(fd, b"old", 0)
        os.fsync(fd)
        sync_path(place)
        os.pwrite(fd, b"new", 3)
        os.close(fd)

    found = states(last_moment(tmp_path, work))
    assert sorted(state["file"] or b"" for state in found) == [b"old", b"old\0\0\0", b"oldnew"]


def test_a_rename_is_there_or_not_whatever_became_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def work(place: Path) -> None:
        fd = os.open(place / "temp", CREATE)
        os.pwrite(fd, b"new", 0)
        os.close(fd)
        os.rename(place / "temp", place / "file")

    found = states(last_moment(tmp_path, work))
    assert {"file": b"old"} in found
    assert {"file": b"old", "temp": b"new"} in found
    assert {"file": b"new"} in found
    assert {"file": b""} in found


def test_the_second_of_two_unsynced_directories_is_lost_with_the_first(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        os.mkdir(place / "a")
        os.mkdir(place / "a" / "b")
        sync_path(place / "a")

    assert states(last_moment(tmp_path, work)) == [{}, {"a": None, "a/b": None}]


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (KEPT, b"x" * 1500),
        (LOST, b""),
        (EMPTY, bytes(1500)),
        (Fate(0b001, 512), b"x" * 512 + bytes(988)),
        (Fate(0b110, 512), bytes(512) + b"x" * 988),
        (Fate(0b011, 512, is_long=False), b"x" * 1024),
    ],
)
def test_a_write_is_torn_at_sectors(tmp_path: Path, fate: Fate, expected: bytes) -> None:
    def work(place: Path) -> None:
        fd = os.open(place / "file", CREATE)
        os.pwrite(fd, b"x" * 1500, 0)
        os.close(fd)

    assert last_moment(tmp_path, work).state((KEPT, fate)) == {"file": expected}


def test_a_state_that_is_laid_out_is_read_back(tmp_path: Path) -> None:
    state: State = {"a": None, "a/file": b"bytes", "empty": b""}
    lay_out(state, tmp_path)
    assert last_moment(tmp_path, lambda _: None).state(()) == state


def test_recording_a_store_twice_gives_the_same_events(tmp_path: Path) -> None:
    def events(place: Path) -> list[str]:
        place.mkdir()
        trace = Trace(place)
        with recording(trace):
            store = holdfast.open(
                place / "store", settings=Settings(clock=FakeClock(), options={"disk": CrashDisk()})
            )
            store.scope("global").set("a", 1)
            store.close()
        # Each store has a lock of its own, which the shared page names.
        lock = (place / "store" / "lock").stat().st_ino.to_bytes(8, sys.byteorder)
        return [f"{event} {event.data.replace(lock, bytes(8))!r}" for event in trace.events]

    first = events(tmp_path / "1")
    assert any(" ring " in line for line in first)
    assert events(tmp_path / "2") == first


# --- what T4 found -------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["", "some", "some/where", "some/where/store"])
def test_a_store_is_there_when_it_was_made_wherever_it_lies(tmp_path: Path, made: str) -> None:
    """T4: directories on the way to a store were made and never synced."""

    def work(place: Path) -> None:
        if made:
            (place / made).mkdir(0o700, parents=True)
        holdfast.open(
            place / "some/where/store",
            settings=Settings(clock=FakeClock(), options={"disk": CrashDisk()}),
        ).close()

    moment = last_moment(tmp_path, work)
    assert "some/where/store/holdfast.json" in moment.state((LOST,) * len(moment.pending))


def test_a_blob_is_there_when_a_snapshot_made_its_folder(tmp_path: Path) -> None:
    """T4: `objects` was made for a snapshot, unsynced, and a blob was then put into it."""

    def work(place: Path) -> None:
        store = holdfast.open(
            place / "store", settings=Settings(clock=FakeClock(), options={"disk": CrashDisk()})
        )
        store._log._backend.objects.put("snapshot", "ab/1", b"state")
        store._log._backend.objects.put("blob", "abcd", b"bytes")

    moment = last_moment(tmp_path, work)
    state = moment.state((LOST,) * len(moment.pending))
    assert state.get("store/objects/blob/ab/abcd") == b"bytes"


def test_the_index_syncs_its_journal_before_the_journal_counts(tmp_path: Path) -> None:
    """T4: with NORMAL a torn journal was rolled back into the index, and sealed by a checksum.

    `t4-files --seed 2 --point 118` found it; what SQLite then does is its own affair.
    """
    index: Any = Index(str(tmp_path / "index.sqlite"), "a store")
    assert index._db.execute("PRAGMA synchronous").fetchall() == [(2,)]
    index.close()
