"""Rows in another SQL database, once, wherever the run is cut (rule 11)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import RunFailedError, Store
from holdfast.runs.engine import Engine
from holdfast.runs.steps import once
from tests.runs.cuts import Cut

PLACE: dict[str, Any] = {}


def pay_in(connection: Any, who: str, amount: int) -> list[Any]:
    connection.cursor().execute("INSERT INTO paid VALUES ('x')") if who == "bad" else None
    style = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.cursor().execute(f"INSERT INTO payments VALUES ({style}, {style})", (who, amount))
    return [who, amount]


@holdfast.run
def paying(ctx: Any) -> list[Any]:
    first = ctx.txn_in(PLACE["connection"], pay_in, "ada", 5)
    if PLACE.pop("cut", None):
        raise Cut("killed between the other database's commit and the journal's")
    return [first, ctx.txn_in(PLACE["connection"], pay_in, "bob", amount=7)]


@holdfast.run
def refused(ctx: Any) -> Any:
    return ctx.txn_in(PLACE["connection"], pay_in, "bad", 1)


@holdfast.run
def misused(ctx: Any) -> Any:
    return ctx.txn_in("no connection", pay_in, "ada", 1)


@pytest.fixture(params=["sqlite3", "psycopg"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite3":
        found: Any = sqlite3.connect(tmp_path / "theirs.db", check_same_thread=False)
    else:
        import psycopg

        from tests.servers import postgresql

        found = psycopg.connect(postgresql.server(postgresql.NEWEST).url("postgres"))
        found.execute("DROP TABLE IF EXISTS payments, holdfast_ledger")
    found.execute("CREATE TABLE payments (who TEXT, amount INTEGER)")
    found.commit()
    PLACE["connection"] = found
    yield found
    found.close()


def rows(connection: Any) -> list[Any]:
    found = connection.execute("SELECT who, amount FROM payments ORDER BY who").fetchall()
    connection.commit()
    return found


def test_a_row_is_written_once_although_the_run_is_cut(connection: Any):
    PLACE["cut"] = True
    with holdfast.open("memory:") as hf:
        hf._kernel.part(Engine).supervisor.flush_s = None
        with pytest.raises(Cut):
            hf.runs.start(paying, id="r").result()
        assert rows(connection) == [("ada", 5)]
        assert hf.runs.get("r").journal.entries["pay_in"].state == "open"
        assert hf.runs.resume("r").result() == [["ada", 5], ["bob", 7]]
        assert rows(connection) == [("ada", 5), ("bob", 7)]


def test_a_body_that_fails_leaves_nothing(connection: Any):
    with holdfast.open("memory:") as hf:
        with pytest.raises(RunFailedError):
            hf.runs.start(refused).result()
        assert rows(connection) == []


def test_what_is_no_connection_is_told_so(hf: Store):
    with pytest.raises(RunFailedError, match="DB-API connection"):
        hf.runs.start(misused).result()


def test_a_ledger_that_cannot_be_read_leaves_no_transaction_open(connection: Any):
    """A ledger table of another program: the lookup fails, before the body is called."""
    connection.execute("CREATE TABLE holdfast_ledger (other TEXT)")
    connection.execute("INSERT INTO holdfast_ledger VALUES ('theirs')")
    connection.commit()
    with holdfast.open("memory:") as hf, pytest.raises(RunFailedError, match=r"key|column"):
        hf.runs.start(paying).result()
    if isinstance(connection, sqlite3.Connection):
        assert not connection.in_transaction
    else:
        assert connection.info.transaction_status == 0  # idle
    assert rows(connection) == []


def test_a_rollback_that_fails_does_not_hide_the_first_error():
    class Broken:
        def cursor(self) -> Any:
            return self

        def execute(self, *words: Any) -> None:
            raise ValueError("the first error")

        def commit(self) -> None: ...

        def rollback(self) -> None:
            raise OSError("the connection is gone")

    with pytest.raises(ValueError, match="the first error") as caught:
        once(Broken(), "k", pay_in, (), {})
    assert caught.value.__notes__ == ["the rollback after it failed, too: OSError"]
