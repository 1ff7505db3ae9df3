"""Tables for outside tools: what they hold, who may write, what a foreign write does."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Store
from holdfast.errors import UsageError
from holdfast.query import tables
from tests.record.stores import new_url

TABLES = (*tables.COLUMNS, "scopes")


def fill(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.say("hello")
    chat.decide("use it", because="it works", key="d1", links=["file:a.py"])
    chat.tasks.add("write", id="t1", tags=["doc"])
    chat.facts.state("tests", {"result": "pass"})
    chat.set("customer", {"id": 7, "plan": "gold"})
    chat.record("noted", {"a": 1}, refs=["file:a.py"], unchecked=True)
    chat.fork("d").say("in the fork")
    hf.decisions.close("d1@conversation/c", "done")
    hf.conversation("gone").say("away")
    hf.conversation("gone").remove()


def test_everything_recorded_is_in_tables(hf: Store) -> None:
    """BOOT-7, BOOT-50, BOOT-51: decisions, tasks, events by type and time, with foreign keys."""
    hf.search.sql("SELECT 1")
    fill(hf)
    select = hf.search.sql
    assert select("SELECT scope, content FROM messages ORDER BY 1, revision").rows == [
        ("conversation/c", "hello"),
        ("conversation/d", "hello"),
        ("conversation/d", "in the fork"),
    ]
    assert select("SELECT DISTINCT id, rationale, status, outcome FROM decisions").rows == [
        ("d1@conversation/c", "it works", "closed", "done")
    ]
    assert select("SELECT id, title, status FROM tasks WHERE scope LIKE '%/c'").rows == [
        ("t1", "write", "open")
    ]
    assert select("SELECT DISTINCT name, status FROM facts").rows == [("tests", "stated")]
    [(value,)] = select("SELECT value FROM state WHERE scope = 'conversation/c'").rows
    assert (json.loads(value) if isinstance(value, str) else value)["customer"]["plan"] == "gold"
    [(said,)] = select("SELECT metadata FROM events WHERE type = 'noted'").rows
    assert (json.loads(said) if isinstance(said, str) else said)["refs"] == ["file:a.py"]
    removed = select("SELECT scope FROM events WHERE type = 'removed' AND time > '2020'")
    assert removed.rows == [("conversation/gone",)]
    assert select("SELECT origin FROM scopes WHERE scope = 'conversation/d'").rows == [
        ("conversation/c",)
    ]
    for table in tables.COLUMNS:
        orphans = f"SELECT 1 FROM {table} WHERE scope NOT IN (SELECT scope FROM scopes)"
        assert not select(orphans).rows
    assert select("SELECT id FROM runs").columns == ("id",)


REFUSED = (
    "DELETE FROM tasks",
    "SELECT 1; DELETE FROM tasks",
    "COMMIT; DELETE FROM tasks",
    "DROP TABLE tasks",
    "SELEC",
    "SELECT * FROM nothing",
)


def test_a_statement_only_reads(hf: Store) -> None:
    hf.conversation("c").tasks.add("write", id="t1")
    for statement in REFUSED:
        with pytest.raises(UsageError):
            hf.search.sql(statement)
    assert hf.search.sql("SELECT id FROM tasks").rows == [("t1",)]


def test_pragmas_and_other_files_are_refused(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "s")) as hf:
        attach = f"ATTACH '{tmp_path / 'other.db'}' AS other"
        for statement in ("PRAGMA query_only = 0; SELECT 1", attach, "  "):
            with pytest.raises(UsageError):
                hf.search.sql(statement)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("harm", ["update", "insert", "delete", "bytes"])
def test_a_foreign_write_is_noticed(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        hf.conversation("c").tasks.add("write", id="t1")
        place = Path(hf.search.tables())
    if harm == "bytes":
        place.write_bytes(b"nonsense" * 2000)
    else:
        with sqlite3.connect(place) as client:
            client.execute(
                {
                    "update": "UPDATE tasks SET status = 'completed'",
                    "insert": "INSERT INTO tasks SELECT scope, 't2', title, status, owner, "
                    "priority, epic, tags, dependencies, outcome, created_at, started_at, "
                    "completed_at, checksum FROM tasks",
                    "delete": "DELETE FROM tasks",
                }[harm]
            )
        client.close()
    with caplog.at_level(logging.WARNING, "holdfast.query"), holdfast.open(url) as hf:
        assert hf.search.sql("SELECT id, status FROM tasks").rows == [("t1", "open")]
        assert "are made again" in caplog.text
        caplog.clear()
        hf.search.tables()
        assert not caplog.text
        assert hf.check().ok


def test_python_s_own_sqlite_in_the_same_process_harms_nothing(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:{tmp_path / 's.db'}") as hf:
        for number in range(5):
            hf.conversation("c").say(f"m {number}")
            client = sqlite3.connect(hf.search.tables())
            assert client.execute("SELECT count(*) FROM messages").fetchall() == [(number + 1,)]
            client.close()
        assert len(hf.query(kind="message")) == 5
        assert hf.check().ok


def test_a_kill_during_a_refresh_loses_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with holdfast.open(url) as hf:
        fill(hf)
    program = (
        "import holdfast, os, signal, sys\n"
        "from holdfast.query.tables import OutsideTables as T\n"
        "steps, put = int(sys.argv[2]), T._put\n"
        "def stop(self, *given):\n"
        "    global steps\n"
        "    put(self, *given)\n"
        "    steps -= 1\n"
        "    if not steps:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "T._put = stop\n"
        "with holdfast.open(sys.argv[1]) as hf:\n"
        "    hf.search.tables()\n"
    )
    for steps in ("1", "2"):
        killed = subprocess.run([sys.executable, "-c", program, url, steps], check=False)
        assert killed.returncode == -9
    with holdfast.open(url) as hf:
        after = {
            table: hf.search.sql(f"SELECT * FROM {table} ORDER BY 1, 2").rows for table in TABLES
        }
        Path(hf.search.tables()).unlink()
        again = {
            table: hf.search.sql(f"SELECT * FROM {table} ORDER BY 1, 2").rows for table in TABLES
        }
    assert after == again


def test_a_role_that_may_only_select(tmp_path: Path) -> None:
    """BOOT-58: a reader queries a field of JSONB, and cannot write."""
    url = new_url("postgresql", tmp_path)
    with holdfast.open(url) as hf:
        fill(hf)
        schema = hf.search.tables().removeprefix("schema ")
        bare = (
            url.partition("?")[0]
            + "?"
            + "&".join(
                part
                for part in url.partition("?")[2].split("&")
                if not part.startswith("application")
            )
        )
        with psycopg.connect(bare, autocommit=True) as client:
            client.execute("DROP ROLE IF EXISTS hf_dashboard")
            client.execute("CREATE ROLE hf_dashboard")
            names: Any = schema
            client.execute(f"GRANT USAGE ON SCHEMA {names} TO hf_dashboard")
            client.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {names} TO hf_dashboard")
            client.execute("SET ROLE hf_dashboard")
            gold = f"SELECT scope FROM {names}.state WHERE value->'customer'->>'plan' = 'gold'"
            assert sorted(client.execute(gold)) == [("conversation/c",), ("conversation/d",)]
            for refused in (f"DELETE FROM {names}.tasks", "SELECT * FROM holdfast.events"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(refused)
            client.execute("RESET ROLE")
            client.execute("DROP OWNED BY hf_dashboard")
            client.execute("DROP ROLE hf_dashboard")
