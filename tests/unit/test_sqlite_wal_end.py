"""Guarantee 7: commits behind a damaged place of a WAL that was left behind are not passed over."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import opening
from holdfast.errors import CorruptError

COMMITS = 6
FRAME = 24
HEADER = 32


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store as a killed process leaves it: six commits in the WAL, none in the database."""
    monkeypatch.setattr(opening, "WAL_PAGES", 0)
    place = tmp_path / "living.db"
    with holdfast.open(f"sqlite:{place}") as store:
        for number in range(COMMITS):
            store.team("a").set("n", number)
        for suffix in ("", "-wal"):
            shutil.copy(f"{place}{suffix}", f"{tmp_path}/left.db{suffix}")
    return tmp_path / "left.db"


def frames(wal: bytes) -> list[int]:
    """Returns where the frames begin that end a commit."""
    step = FRAME + int.from_bytes(wal[8:12], "big")
    return [at for at in range(HEADER, len(wal), step) if any(wal[at + 4 : at + 8])]


def change(path: Path, where: Callable[[bytes], int]) -> None:
    wal = path.with_name(path.name + "-wal")
    data = bytearray(wal.read_bytes())
    data[where(bytes(data))] ^= 0x10
    wal.write_bytes(data)


def numbers(path: Path, **options: object) -> int:
    with holdfast.open(f"sqlite:{path}", **options) as store:  # type: ignore[arg-type]
        return store.team("a").get("n")


def test_a_whole_wal_is_read_to_its_end(left: Path) -> None:
    assert numbers(left) == COMMITS - 1


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(lambda wal: 17, id="a salt in the header"),
        pytest.param(lambda wal: 9, id="the page size in the header"),
        pytest.param(lambda wal: frames(wal)[2] + 9, id="a salt of a frame"),
        pytest.param(lambda wal: frames(wal)[2] + 17, id="a checksum of a frame"),
        pytest.param(lambda wal: frames(wal)[-2] + FRAME + 100, id="a page of the last but one"),
    ],
)
def test_a_changed_byte_before_the_last_commit_is_refused_and_nothing_is_changed(
    left: Path, where: Callable[[bytes], int]
) -> None:
    change(left, where)
    wal = left.with_name(left.name + "-wal")
    before = left.read_bytes(), wal.read_bytes()
    with pytest.raises(CorruptError, match="commits follow") as caught:
        numbers(left)
    assert caught.value.where is not None
    assert "-wal frame" in caught.value.where
    assert (left.read_bytes(), wal.read_bytes()) == before
    # The way out that the hint names: what can be read stays, the rest is given up.
    kept = numbers(left, durability="process")
    assert kept is None or kept < COMMITS - 2
    assert numbers(left) == kept


def test_the_last_commit_alone_is_what_a_crash_may_leave(left: Path) -> None:
    change(left, lambda wal: frames(wal)[-1] + FRAME + 100)
    assert numbers(left) == COMMITS - 2


def test_frames_of_an_older_pass_are_no_commits(left: Path) -> None:
    """After a checkpoint SQLite writes from the beginning: what lies behind is older."""
    connection = apsw.Connection(str(left))
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("CREATE TABLE later (n)")
    wal = Path(f"{left}-wal").read_bytes()
    place = Path(f"{left}.copy.db")
    shutil.copy(left, place)
    Path(f"{place}-wal").write_bytes(wal)
    connection.close()
    assert len({wal[at + 8 : at + 16] for at in frames(wal)}) == 2
    with holdfast.open(f"sqlite:{place}") as store:
        assert store.team("a").get("n") == COMMITS - 1


def test_a_wal_shorter_than_its_header_is_empty(left: Path) -> None:
    wal = Path(f"{left}-wal")
    wal.write_bytes(wal.read_bytes()[:20])
    assert numbers(left) is None


def test_a_hole_of_a_terabyte_is_not_walked_through(left: Path) -> None:
    with open(f"{left}-wal", "r+b") as file:
        size = len(Path(f"{left}-wal").read_bytes())
        file.truncate(1 << 40)
        file.seek(size)
    assert numbers(left) == COMMITS - 1


def test_the_header_of_either_byte_order_is_known(left: Path) -> None:
    """SQLite writes checksums in the byte order of the machine, and says which in the magic."""
    from holdfast.backends.sqlite.wal import _is_whole  # pyright: ignore[reportPrivateUsage]

    header = Path(f"{left}-wal").read_bytes()[:HEADER]
    assert _is_whole(header)
    words = [0x377F0683, *struct.unpack(">5I", header[4:24])]
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    other = struct.pack(">8I", *words, first, second)
    assert _is_whole(other)
    assert not _is_whole(other[:-1] + b"x")
