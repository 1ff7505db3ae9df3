"""What T16 found, one small test each: the permanent list."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import zstandard

import holdfast
from holdfast import CorruptError, HoldfastError, UnavailableError, UsageError
from holdfast.backends.files import disk as files_disk
from holdfast.backends.files.text import BadLine, parse_time
from holdfast.backends.sqlite import connection
from holdfast.cli import main
from holdfast.cli.parsing import parse_value
from holdfast.core.arguments import parse_path
from holdfast.errors import ValueDomainError
from tests.torture.hostile_files import commit_of, lay
from tests.torture.hostile_ground import Ground


class Stage(StrEnum):
    OPEN = "open"


HUGE = 10**5000


def test_text_of_a_subclass_is_the_text_that_it_holds() -> None:
    """A path with a StrEnum read nothing where there was something; as a key it was a TypeError."""
    with holdfast.open("memory:") as store:
        scope = store.team(Stage.OPEN)
        scope.set(("a", Stage.OPEN), 1, key=Stage.OPEN, checkpoint=Stage.OPEN)
        assert scope.get(("a", Stage.OPEN)) == 1
        assert scope.get(("a", "open")) == 1
        assert scope.get(Stage.OPEN, "nothing") == "nothing"
        assert scope.at(Stage.OPEN).to_dict() == {"a": {"open": 1}}
        with store.commit() as tx:
            tx.mark(Stage.OPEN, Stage.OPEN)
        assert [(mark.index, mark.key) for mark in store.workers.marks(Stage.OPEN)] == [
            ("open", "open")
        ]
        assert type(store.workers.lease(Stage.OPEN).name) is str


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.team(HUGE),
        lambda s: s.scope(HUGE),
        lambda s: list(s.scopes(HUGE)),
        lambda s: s.check(expect=HUGE),
        lambda s: s.team("a").at(HUGE),
        lambda s: s.team("a").at(-HUGE),
        lambda s: s.team("a").set("a", 1, expected=HUGE),
        lambda s: s.team("a").set(("a", HUGE), 1),
        lambda s: s.conversation("c", parent=HUGE),
    ],
)
def test_an_error_never_fails_to_show_what_was_found(call: Any) -> None:
    """Python raises a ValueError of its own for the text of an int of more than 4300 digits."""
    with holdfast.open("memory:") as store, pytest.raises(HoldfastError):
        call(store)


def test_bytes_that_cannot_fit_are_refused_before_they_are_copied() -> None:
    with holdfast.open("memory:") as store, pytest.raises(ValueDomainError, match="at most"):
        store.team("a").set("v", bytes(65 << 20))


def test_a_checkpoint_of_the_four_scopes_is_a_mapping(tmp_path: Path) -> None:
    import asyncio

    from holdfast.contrib.compat import GlobalStateManager, StateScope

    with holdfast.open("memory:") as store, pytest.raises(UsageError, match="mapping"):
        manager = GlobalStateManager(store)
        asyncio.run(manager.save_checkpoint(StateScope.GLOBAL, 1.5))  # type: ignore[arg-type]


# --- the command line -----------------------------------------------------------------------------


def test_a_path_nested_too_deeply_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        parse_path("[" * 100_000)


def test_a_key_given_twice_is_found_at_once() -> None:
    """Each key was compared with each: minutes, for so many."""
    keys = ",".join(f'"{number}":0' for number in range(50_000))
    with pytest.raises(UsageError, match="'49999' twice"):
        parse_value(f'{{{keys},"49999":1}}', is_text=False)


def test_words_that_are_no_text_are_shown_as_escapes_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "s")
    assert main(["init", "--store", place]) == 0
    capsys.readouterr()
    assert main(["get", "team/\udcff", "k", "--store", place, "--json"]) == 3  # an id like others
    assert json.loads(capsys.readouterr().err)["error"]["class"] == "NotFoundError"
    assert main(["set", "team/a", "\udcff", "1", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == ["\udcff"]


def test_an_event_that_nobody_of_us_wrote_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ground = laid(tmp_path, [("closed", b"5"), ("opened", b"[]"), ("changed", b'["x"]')])
    assert main(["log", "--store", ground.url]) == 0
    assert "\t5\n" in capsys.readouterr().out


# --- stores laid by somebody else -----------------------------------------------------------------


def laid(tmp_path: Path, events: list[tuple[str, bytes]], name: str = "team/a") -> Ground:
    ground = Ground(tmp_path / "ground", "files")
    holdfast.open(ground.url).close()
    (ground.path / "log" / "0000000000000000.jsonl").touch()
    lay(ground, [commit_of(name, events)])
    return ground


@pytest.mark.parametrize("name", ["holdfast.json", "head.json", "ring", "index.sqlite", "lock"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_pipe_is_not_waited_at(tmp_path: Path, name: str, read_only: bool) -> None:
    """Opening a store with a pipe in the place of a file hung for ever."""
    holdfast.open(tmp_path / "s").close()
    (tmp_path / "s" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "s" / name)
    with suppress(UnavailableError):  # or it is rebuilt, as the index is
        holdfast.open(tmp_path / "s", create=False, read_only=read_only).close()


@pytest.mark.parametrize("name", ["holdfast.json", "head.json", "ring", "leases.json"])
def test_a_sparse_file_is_not_read_whole(tmp_path: Path, name: str) -> None:
    with holdfast.open(tmp_path / "s") as store:
        store.workers.lease("l")
    with open(tmp_path / "s" / name, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptError, match="at most"), holdfast.open(tmp_path / "s") as store:
        store.workers.lease("l")


def test_a_wal_with_a_hole_is_not_written_full(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.write(b"head")
        file.truncate(1 << 40)
    with open(path, "rb") as file:
        assert connection._data_from(file.fileno(), 0) == 0
        assert connection._data_from(file.fileno(), 1 << 30) == -1
    with pytest.raises(OSError, match="descriptor"):
        connection._data_from(-1, 0)


def test_two_streams_of_one_name_are_damage(tmp_path: Path) -> None:
    """The second one was taken for a part of the first: a TypeError."""
    import sqlite3

    with holdfast.open(f"sqlite:{tmp_path / 'x.db'}") as store:
        for name in "abc":
            store.team(name).set("a", 1)
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("UPDATE streams SET name = 'team/a'")
    database.commit()
    database.close()
    with holdfast.open(f"sqlite:{tmp_path / 'x.db'}") as store, pytest.raises(CorruptError):
        store.team("a").set("a", 2)


def test_a_scope_above_itself_is_damage(tmp_path: Path) -> None:
    """`lookup` went round for ever."""
    ground = laid(tmp_path, [("opened", b'{"parent":"team/a"}')])
    with holdfast.open(ground.url) as store, pytest.raises(CorruptError, match="itself"):
        store.team("a").lookup("nothing")


def test_a_fork_of_itself_is_damage(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "ground", "files")
    holdfast.open(ground.url).close()
    fork = [
        commit_of(
            f"team/{one}", [("forked", b'{"from":"team/%b","at":1}' % two)], first=2, fork=True
        )
        for one, two in (("a", b"b"), ("b", b"a"))
    ]
    lay(ground, fork)
    with holdfast.open(ground.url) as store, pytest.raises(CorruptError, match="itself"):
        store.team("a").state.to_dict()


@pytest.mark.parametrize("payload", [b"5", b"[]", b'{"from":1,"at":"x"}', b"{}"])
def test_a_fork_that_says_nothing_is_damage(tmp_path: Path, payload: bytes) -> None:
    ground = Ground(tmp_path / "ground", "files")
    holdfast.open(ground.url).close()
    lay(ground, [commit_of("team/a", [("forked", payload)], first=2, fork=True)])
    with holdfast.open(ground.url) as store, pytest.raises(CorruptError):
        store.team("a").state.to_dict()


def test_a_value_nested_too_deeply_is_damage(tmp_path: Path) -> None:
    payload = b'[["set","a",' + b"[" * 500 + b"]" * 500 + b"]]"
    ground = laid(tmp_path, [("changed", payload)])
    with holdfast.open(ground.url) as store, pytest.raises(CorruptError, match="deeply"):
        store.team("a").state.to_dict()
        store.team("a").diff(0)


@pytest.mark.parametrize("name", ["holdfast.json", "head.json"])
def test_text_nested_too_deeply_is_damage(tmp_path: Path, name: str) -> None:
    holdfast.open(tmp_path / "s").close()
    (tmp_path / "s" / name).write_bytes(
        b'{"format":1,"store":"a","created":"","x":' + b"[" * 50_000
    )
    with holdfast.open(tmp_path / "s") as store, pytest.raises(CorruptError):
        _ = store.team("a").state


def test_a_bomb_is_not_unpacked_by_a_check(tmp_path: Path) -> None:
    pieces = zstandard.ZstdCompressor(level=1).compressobj()
    chunk = bytes(1 << 20)
    bomb = b"".join(pieces.compress(chunk) for _ in range(64)) + pieces.flush()
    with holdfast.open(tmp_path / "s") as store:
        store.team("a").set("v", "x" * 70_000)
        blob = next((tmp_path / "s" / "objects" / "blob").glob("*/*"))
        blob.write_bytes(bomb)
        assert not store.check().ok
        blob.write_bytes(zstandard.ZstdCompressor().compress(bytes(1 << 20)) + b"more" * 1000)
        assert not store.check().ok
    assert files_disk.SMALL_BYTES_MAX < 1 << 30


@pytest.mark.parametrize("micros", ["-00001", "+00001", "1_0000", "      ", "٠٠٠٠٠٠"])
def test_a_time_that_nobody_writes_is_damage(micros: str) -> None:
    with pytest.raises(BadLine):
        parse_time(f"0001-01-01T00:00:00.{micros}Z")
