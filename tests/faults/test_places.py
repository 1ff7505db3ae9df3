"""Wrong URLs and options, foreign files and directories: refused, with a remedy, and untouched."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, NotFoundError, UnavailableError, UsageError
from holdfast.errors import FormatError
from tests.faults.stores import BACKENDS, bytes_below, content, make, place_of, url_of
from tests.opening import settled


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory full of things that are no store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("somebody's text")
    (tmp_path / "zero.db").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("somebody's file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as db:
        db.execute("CREATE TABLE t (a)")
        db.commit()
    for path in tmp_path.iterdir():
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o022)
    return tmp_path


WRONG: list[tuple[Any, type[HoldfastError]]] = [
    ("", UsageError),
    (None, UsageError),
    (1, UsageError),
    (b"bytes", UsageError),
    ([], UsageError),
    ("a\0b", UsageError),
    ("\ud800", UsageError),
    ("sqlite:\ud800", UsageError),
    ("redis://x", UnavailableError),
    ("http://x", UsageError),
    ("postgresql://x", UnavailableError),
    ("sqlit:state.db", UsageError),
    ("sqlite:", UsageError),
    ("sqlite://", UsageError),
    ("sqlite::memory:", UsageError),
    ("files:", UsageError),
    ("memory:x", UsageError),
    ("memory://x", UsageError),
    ("file", FormatError),
    ("full", FormatError),
    ("link", UsageError),
    ("dangling", UsageError),
    ("fifo", UsageError),
    ("file/below", UnavailableError),
    ("n" * 300, UnavailableError),
    ("/dev/null", UsageError),
    ("sqlite:full", FormatError),
    ("sqlite:empty", FormatError),
    ("sqlite:zero.db", FormatError),
    ("sqlite:file", FormatError),
    ("sqlite:foreign.db", FormatError),
    ("sqlite:file/x.db", UnavailableError),
    ("sqlite:" + "n" * 300, UnavailableError),
    ("sqlite:fifo", UsageError),
    ("sqlite:link", UsageError),
    ("sqlite:dangling", UsageError),
    ("sqlite:/dev/null", UsageError),
]


@pytest.mark.parametrize(("url", "error"), WRONG, ids=lambda value: repr(value)[:40])
def test_a_wrong_place_is_refused_and_left_alone(
    here: Path, url: Any, error: type[HoldfastError]
) -> None:
    before = {name: sorted(os.listdir(here / name)) for name in ("full", "empty")}
    files = (here / "file").read_bytes(), (here / "foreign.db").read_bytes()
    names = sorted(os.listdir(here))
    with pytest.raises(error) as raised:
        holdfast.open(url)
    assert str(raised.value)
    assert raised.value.hint or ":" in raised.value.message, "an error without a remedy"
    assert sorted(os.listdir(here)) == names
    assert {name: sorted(os.listdir(here / name)) for name in ("full", "empty")} == before
    assert ((here / "file").read_bytes(), (here / "foreign.db").read_bytes()) == files


@pytest.mark.parametrize("backend", ["memory:", "store", "sqlite:store.db"])
@pytest.mark.parametrize(
    "options",
    [
        {"durability": "fulll"},
        {"durability": None},
        {"create": "yes"},
        {"read_only": 1},
        {"actor": ""},
        {"actor": 1},
        {"clock": 1},
        {"sync": True},
    ],
    ids=str,
)
def test_guarantee_1_a_wrong_option_is_refused_and_never_a_weaker_store(
    here: Path, backend: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        holdfast.open(backend, **settled(options))
    assert not (here / "store").exists()
    assert not (here / "store.db").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_there_is_not_made_when_it_should_not_be(backend: str, tmp_path: Path) -> None:
    url = url_of(place_of(backend, tmp_path))
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFoundError):
            holdfast.open(url, **settled(options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_guarantee_8_a_newer_format_is_refused_and_untouched(backend: str, tmp_path: Path) -> None:
    place = place_of(backend, tmp_path)
    make(place)
    if backend == "files":
        identity = place / "holdfast.json"
        identity.write_bytes(identity.read_bytes().replace(b'"format":2', b'"format":4'))
    else:
        with closing(sqlite3.connect(place)) as db:
            db.execute("PRAGMA user_version = 3")
        place.chmod(0o600)
    before = bytes_below(place)
    for read_only in (False, True):
        with pytest.raises(FormatError) as raised:
            holdfast.open(url_of(place), read_only=read_only)
        assert "3" in raised.value.message
        assert "upgrade" in str(raised.value)
    after = bytes_below(place)
    assert {name: after.get(name) for name in before} == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_of_others_is_refused(backend: str, tmp_path: Path) -> None:
    place = place_of(backend, tmp_path)
    expected = make(place)
    mode = place.stat().st_mode
    place.chmod(mode | 0o022)
    with pytest.raises(UsageError) as raised:
        holdfast.open(url_of(place))
    assert "chmod go-w" in str(raised.value)
    place.chmod(mode)
    with holdfast.open(url_of(place)) as store:
        assert content(store) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_link_to_a_store_is_refused_and_a_link_above_it_is_not(
    backend: str, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    place = place_of(backend, tmp_path / "real")
    expected = make(place)
    (tmp_path / "above").symlink_to("real")
    (tmp_path / place.name).symlink_to(place)
    with pytest.raises(UsageError, match="symbolic link"):
        holdfast.open(url_of(tmp_path / place.name))
    with holdfast.open(url_of(tmp_path / "above" / place.name)) as store:
        assert content(store) == expected
