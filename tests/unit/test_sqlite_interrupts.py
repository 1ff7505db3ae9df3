"""A SQLite store whose calls are interrupted, or re-entered by a handler of their own thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.liveness import Workers
from holdfast.backends.protocol import Receipt
from holdfast.backends.sqlite import SqliteBackend
from holdfast.backends.sqlite.connection import translate
from holdfast.errors import UsageError
from holdfast.testing import FakeClock, RecordBuilder


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock())
    yield backend
    backend.close()


@pytest.mark.parametrize("is_written", [False, True])
def test_an_interrupt_on_either_side_of_the_commit_leaves_no_transaction(
    backend: SqliteBackend, is_written: bool
) -> None:
    writer: Any = vars(backend)["_checkout"].writer
    execute, build = writer.execute, RecordBuilder()

    def interrupted(statement: str, *bindings: Any) -> Any:
        if statement != "COMMIT":
            return execute(statement, *bindings)
        if is_written:
            execute(statement)
        raise KeyboardInterrupt

    writer.execute = interrupted
    with pytest.raises(KeyboardInterrupt):
        backend.commit([build.commit(build.append("a"))])
    writer.execute = execute
    assert not writer.connection.in_transaction
    [head] = backend.heads(["a"])
    assert (head is not None) == is_written
    [outcome] = backend.commit([build.commit(build.append("a", behind=head))])
    assert isinstance(outcome, Receipt)


def test_a_handler_inside_a_commit_can_read_and_not_write(tmp_path: Path) -> None:
    build, said = RecordBuilder(), list[str]()

    def reach(point: str) -> None:
        if point == "sqlite.begun" and not said:
            assert backend.heads(["a"]) == [None]
            with pytest.raises(UsageError, match="a write inside another call") as caught:
                backend.objects.put("blob", "x", b"")
            said.append(str(caught.value))

    backend = SqliteBackend(tmp_path / "state.db", clock=FakeClock(), reach=reach)
    backend.commit([build.commit(build.append("a"))])
    assert said
    assert len(backend.read("a")) == 1
    backend.close()


def test_a_handler_inside_a_read_is_refused(backend: SqliteBackend) -> None:
    reader = vars(backend)["_checkout"].reader
    with reader.lock, pytest.raises(UsageError, match="a read inside another call"):
        backend.heads(["a"])
    assert backend.heads(["a"]) == [None]


def test_a_handler_inside_a_look_at_workers_is_refused(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "workers")
    with vars(workers)["_mutex"], pytest.raises(UsageError, match="inside another call"):
        workers.is_alive("w")
    workers.hold("w")
    assert workers.is_alive("w")
    workers.close()
    workers.close()


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (errno.EMFILE, "too many files are open"),
        (errno.EACCES, "it cannot be opened"),
        (0, "it cannot be opened"),
    ],
)
def test_a_database_that_cannot_be_opened_says_why(
    monkeypatch: pytest.MonkeyPatch, problem: int, text: str
) -> None:
    real = os.open

    def open(*arguments: Any) -> int:
        if problem:
            raise OSError(problem, os.strerror(problem))
        return real(*arguments)

    monkeypatch.setattr("holdfast.backends.sqlite.connection.os.open", open)
    error = translate(apsw.CantOpenError("unable to open database file"), "state.db")
    monkeypatch.undo()
    assert text in str(error)
