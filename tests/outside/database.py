"""Reads a store in a SQLite database by its schema alone, through the standard library's sqlite3.

It never touches a database that a process has open: closing a descriptor of the file would drop
that process's locks. It reads a copy, the write-ahead log included.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.outside.chains import Damage, Event, check_chains

_EVENTS = """
SELECT s.name, e.revision, coalesce(e.position, e.ordinal), e.time, e.type, e.actor, e.payload,
       e.link, e.key, e.checkpoint, e.subject, {meta}
  FROM events e LEFT JOIN streams s ON s.id = e.stream
 WHERE e.stream IS NOT NULL ORDER BY e.ordinal
"""


class Reading(NamedTuple):
    """What was found: every event in order, and the names of marks."""

    events: list[Event]
    marks: set[tuple[str, str]]


def read_copy(path: Path) -> Reading:
    """Returns what a database holds that nobody has open now, whether or not it was closed."""
    with TemporaryDirectory(dir=path.parent, prefix="outside-") as scratch:
        copy = Path(scratch) / "copy.db"
        for suffix in ("", "-wal"):
            if (source := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        return _read(copy)


def read_closed(path: Path) -> Reading:
    """Reads a database that was closed cleanly: it must be one file."""
    for suffix in ("-wal", "-shm", "-journal"):
        if path.with_name(path.name + suffix).exists():
            raise Damage(f"{path.name}{suffix} is there after a clean close")
    return read_copy(path)


def _read(path: Path) -> Reading:
    try:
        with closing(sqlite3.connect(path)) as db:
            problems = [row[0] for row in db.execute("PRAGMA integrity_check")]
            if problems != ["ok"]:
                raise Damage(f"integrity_check of {path.name}: {problems}")
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_schema")}
            columns = {row[1] for row in db.execute("PRAGMA table_info(events)")}
            meta = "e.meta" if "meta" in columns else "NULL"  # format 1 has no such column
            events = [Event(*row) for row in db.execute(_EVENTS.format(meta=meta))]
            marks: set[tuple[str, str]] = set()
            if "marks" in tables:
                marks = set(db.execute("SELECT about, key FROM marks"))
            if "keys" in tables:
                _check_keys(events, set(db.execute(_KEYS)))
    except sqlite3.Error as exc:
        raise Damage(f"{path.name}: {exc}") from exc
    check_chains(events)
    return Reading(events, marks)


_KEYS = "SELECT s.name, k.key, k.revision FROM keys k JOIN streams s ON s.id = k.stream"


def _check_keys(events: list[Event], found: set[tuple[str, str, int]]) -> None:
    expected = {(event.stream, event.key, event.revision) for event in events if event.key}
    if found != expected:
        raise Damage(f"keys and events differ: {sorted(found ^ expected)}")
