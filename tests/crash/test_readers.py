"""The outside readers read what holdfast writes, and notice what is changed behind its back."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START
from tests.outside import database, segments
from tests.outside.chains import Damage, Event

OUTSIDE = Path(segments.__file__).parent


def fill(store: Store) -> list[tuple[str, int, str, str]]:
    """Writes some of everything; returns what holdfast says that it wrote."""
    chat = store.conversation('c "é" \\', parent=store.team("t"))
    for n in range(12):
        chat.append("log", {"n": n, "text": 'ü"\ud800\n'}, key=f"k{n}" if n % 2 else None)
    fork = chat.fork("f", at=5)
    fork.set("x", [1, float("nan"), b"bytes"], checkpoint="here, {and} [there]")
    fork.fork("g", at=3).set("y", 1)
    with store.commit() as tx:
        tx.scope(chat).set("a", 1)
        tx.scope(fork).set("a", 1)
        tx.mark("todo", "one")
        tx.mark("todo", "two")
    with store.commit() as tx:
        tx.scope(chat).set("b", 1)
        tx.clear("todo", "two")
    return [
        (event.stream, event.revision, event.type, event.link)
        for event in store.follow(as_events=True, after=START, timeout_s=0)
    ]


def found(events: list[Event]) -> list[tuple[str, int, str, str]]:
    return [(event.stream, event.revision, event.type, event.link.hex()) for event in events]


@pytest.fixture
def text_store(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "store") as store:
        fill(store)
    return tmp_path / "store"


@pytest.fixture
def database_store(tmp_path: Path) -> Path:
    with holdfast.open(f"sqlite:{tmp_path / 'store.db'}") as store:
        fill(store)
    return tmp_path / "store.db"


def test_nothing_outside_imports_holdfast() -> None:
    for path in OUTSIDE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0] == "holdfast"], path


def test_text_segments_read_as_written(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with holdfast.open(place) as store:
        written = fill(store)
        # In use, it is the ring that counts: the text alone may be behind.
        assert found(segments.read_crashed(place).events) == written
    reading = segments.read_closed(place)
    assert found(reading.events) == written
    assert list(reading.marks) == [("todo", "one")]


def test_a_database_reads_as_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with holdfast.open(f"sqlite:{path}") as store:
        written = fill(store)
    reading = database.read_closed(path)
    assert found(reading.events) == written
    assert reading.marks == {("todo", "one")}


def test_guarantee_6_any_flipped_byte_of_the_text_is_found(text_store: Path) -> None:
    """BOOT-74: whoever writes past the store's locks is found."""
    [segment] = (text_store / "log").iterdir()
    whole = segment.read_bytes()
    for at in range(0, len(whole), 3):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Damage):
            segments.read_closed(text_store)


def test_guarantee_6_a_line_lost_doubled_or_moved_is_found(text_store: Path) -> None:
    [segment] = (text_store / "log").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    for at in range(len(lines)):
        for changed in (
            lines[:at] + lines[at + 1 :],
            [*lines[: at + 1], *lines[at:]],
            [*lines[:at], *lines[at + 1 : at + 2], lines[at], *lines[at + 2 :]],
        ):
            if changed != lines:
                segment.write_bytes(b"".join(changed))
                with pytest.raises(Damage):
                    segments.read_closed(text_store)


def test_guarantee_6_a_forged_line_is_found(text_store: Path) -> None:
    """The checksum made right again: the links tell."""
    [segment] = (text_store / "log").iterdir()
    first, *lines = segment.read_bytes().splitlines(keepends=True)
    body = first.rpartition(b',"crc":')[0].replace(b"team/t", b"team/x")
    forged = b'%b,"crc":"%08x"}\n' % (body, crc32(body))
    assert len(forged) == len(first)
    segment.write_bytes(b"".join([forged, *lines]))
    with pytest.raises(Damage):
        segments.read_closed(text_store)


def test_a_tail_taken_away_is_found_by_head_json(text_store: Path) -> None:
    [segment] = (text_store / "log").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(Damage):
        segments.read_closed(text_store)
    head = json.loads((text_store / "head.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", head["digest"])
    assert head["digest"] != sha256(b"").hexdigest()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = CAST(payload || ' ' AS BLOB) WHERE ordinal = 9",
        "UPDATE events SET checkpoint = 'x' WHERE ordinal = 9",
        "UPDATE events SET actor = 'x' WHERE ordinal = 1",
        "UPDATE events SET link = zeroblob(32) WHERE ordinal = 9",
        "DELETE FROM events WHERE ordinal = 5",
        "DELETE FROM keys WHERE revision = 3",
        "UPDATE streams SET name = 'conversation/x' WHERE id = 2",
    ],
)
def test_guarantee_6_a_changed_row_is_found(database_store: Path, statement: str) -> None:
    copy = database_store.with_name("changed.db")
    shutil.copyfile(database_store, copy)
    with closing(sqlite3.connect(copy)) as db:
        changed = db.execute(statement).rowcount
        db.commit()
    assert changed == 1
    with pytest.raises(Damage):
        database.read_copy(copy)
