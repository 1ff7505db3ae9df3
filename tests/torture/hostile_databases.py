"""SQLite databases that somebody else has laid: in the place of a store, or of its index."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.torture.hostile_ground import Ground

Change = Callable[[Ground], None]

EVIL_SCHEMA = (
    "CREATE TABLE meta(a); CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM meta; END",
    "CREATE VIEW stream AS SELECT 1 AS id, 'team/a' AS name, 9 AS revision, x'00' AS link",
    "CREATE VIEW stream AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) "
    "SELECT x AS id, x AS name FROM c",
    "CREATE TABLE stream(id, name TEXT DEFAULT (hex(zeroblob(1000000000))))",
    "CREATE VIEW meta AS SELECT load_extension('../../../evil.so') AS value",
    "CREATE VIEW meta AS SELECT writefile('../../../canary', 'x') AS value",
    "CREATE TABLE place(b, a GENERATED ALWAYS AS (randomblob(1000000000)))",
    "CREATE VIRTUAL TABLE f USING fts5(a)",
    "CREATE TABLE x(a); PRAGMA user_version = 99; PRAGMA application_id = 1215253604",
)


def _foreign(statements: str, application_id: int = 0, version: int = 0) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        database = sqlite3.connect(path)
        database.execute(f"PRAGMA application_id = {application_id}")
        with contextlib.suppress(sqlite3.Error):  # an SQLite without that module
            database.executescript(statements)
        if version:
            database.execute(f"PRAGMA user_version = {version}")
        database.close()
        return path.read_bytes()


def indexes() -> Iterator[tuple[str, Change]]:
    for statements in EVIL_SCHEMA:

        def change(ground: Ground, statements: str = statements) -> None:
            (ground.path / "index.sqlite").write_bytes(_foreign(statements))
            (ground.path / "index.sqlite").chmod(0o600)

        yield f"an index of somebody else: {statements[:50]}", change
    for number in range(3):

        def journal(ground: Ground, number: int = number) -> None:
            victims = (ground.home / "canary", ground.place / "x-mj0000009AB", ground.path / "lock")
            (ground.path / "index.sqlite").write_bytes(_foreign(EVIL_SCHEMA[0]))
            (ground.path / "index.sqlite-journal").write_bytes(hot_journal(str(victims[number])))

        yield f"a hot journal that names a file, {number}", journal


def hot_journal(names: str) -> bytes:
    """Returns a rollback journal that says it is part of a transaction over several databases."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), names.encode()
    head = (magic + struct.pack(">IIIII", 0, 1, 2, 512, 4096)).ljust(512, b"\0")
    page = struct.pack(">I", 0x40000000 // 4096 + 1)
    return head + page + name + struct.pack(">II", len(name), sum(name)) + magic


EVIL_SQL = (
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "CREATE TRIGGER t BEFORE INSERT ON events BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN INSERT INTO streams(name) VALUES('x'); END",
    "UPDATE events SET payload = zeroblob(3000000)",
    "UPDATE events SET payload = '[[[[' ",
    "UPDATE events SET payload = NULL, link = NULL",
    "UPDATE events SET revision = 9223372036854775807",
    "UPDATE events SET revision = -1",
    "UPDATE events SET revision = 'x'",
    "UPDATE events SET time = 9223372036854775807",
    "UPDATE events SET type = x'ff1b5b324a'",
    "UPDATE streams SET name = '../../../canary'",
    "UPDATE streams SET name = x'ff00'",
    "UPDATE streams SET name = NULL",
    "UPDATE streams SET name = char(27) || '[2J'",
    "DELETE FROM streams",
    "DELETE FROM events",
    "DELETE FROM events WHERE ordinal = 0",
    "DROP TABLE streams",
    "DROP TABLE events",
    "ALTER TABLE events RENAME TO old; CREATE VIEW events AS SELECT * FROM old",
    "ALTER TABLE events RENAME TO old; CREATE TABLE events(a)",
    "CREATE TABLE leases(a); CREATE TABLE marks(a); CREATE TABLE claims(a); CREATE TABLE keys(a)",
    "CREATE VIEW leases AS SELECT load_extension('../evil.so') AS name",
    "UPDATE objects SET data = zeroblob(3000000)",
    "UPDATE objects SET name = '../../../canary'",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "PRAGMA application_id = 1",
)


def databases() -> Iterator[tuple[str, Change]]:
    for statements in EVIL_SQL:

        def change(ground: Ground, statements: str = statements) -> None:
            database = sqlite3.connect(ground.path, isolation_level=None)
            try:
                database.execute("PRAGMA writable_schema = ON")
                database.executescript(statements)
            except sqlite3.Error:
                pass  # what the attacker's own SQLite refuses is no attack
            finally:
                database.close()

        yield f"a database changed by {statements[:60]!r}", change
    for statements in EVIL_SCHEMA:
        for owner in (0, 0x486F4C64):

            def foreign(ground: Ground, statements: str = statements, owner: int = owner) -> None:
                ground.path.write_bytes(_foreign(statements, owner, 1))

            yield f"a foreign database {owner}: {statements[:40]}", foreign
    for number in range(0, 100, 4):

        def header(ground: Ground, number: int = number) -> None:
            data = bytearray(ground.path.read_bytes())
            data[number : number + 4] = b"\xff\xff\xff\xff"
            ground.path.write_bytes(data)

        yield f"the database's header broken at {number}", header
    for number in range(3):

        def journal(ground: Ground, number: int = number) -> None:
            victims = (ground.home / "canary", ground.place / "x-mj0000009AB", ground.path)
            path = Path(f"{ground.path}-journal")
            path.write_bytes(hot_journal(str(victims[number])))
            path.chmod(0o600)

        yield f"a hot journal beside the database, {number}", journal
