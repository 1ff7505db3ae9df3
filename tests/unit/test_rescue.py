"""What a process holds of files that were taken is written down, and never over anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.backends.rescue import reports, rescue
from holdfast.clock import SystemClock


def test_what_is_held_is_written_under_new_names(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_bytes(b"a line\n" * 300_000)
    fd = os.open(taken, os.O_RDONLY)
    taken.unlink()
    held: list[tuple[str, int | bytes]] = [("log/0.jsonl", fd), ("holdfast.json", b"{}")]
    first = Path(rescue([str(tmp_path)], held, "what happened\n", SystemClock()))
    second = Path(rescue([str(tmp_path)], held, "what happened then\n", SystemClock()))
    os.close(fd)
    assert first != second
    for folder in (first, second):
        assert folder.parent == tmp_path / "rescued"
        assert (folder / "log" / "0.jsonl").read_bytes() == b"a line\n" * 300_000
        assert (folder / "holdfast.json").read_bytes() == b"{}"
    assert reports(str(tmp_path)) == [
        f"what happened; see rescued/{first.name}",
        f"what happened then; see rescued/{second.name}",
    ]


def test_a_place_that_is_gone_gives_way_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    places = [str(tmp_path / "file"), str(tmp_path / "gone"), str(tmp_path)]
    folder = Path(rescue(places, [], "nothing was held\n", SystemClock()))
    assert folder.parent == tmp_path / "rescued"
    with pytest.raises(NotADirectoryError):
        rescue(places[:1], [], "", SystemClock())
    with pytest.raises(FileNotFoundError):
        rescue(places[:2], [], "", SystemClock())


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    """They could put a folder of their own in the place of ours, and read what we write."""
    (tmp_path / "rescued").mkdir()
    (tmp_path / "rescued").chmod(mode)
    with pytest.raises(PermissionError, match="not a private folder"):
        rescue([str(tmp_path)], [], "", SystemClock())


def test_a_link_to_a_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "rescued").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="not a private folder"):
        rescue([str(tmp_path)], [], "", SystemClock())
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_report_may_be_anybodys(tmp_path: Path) -> None:
    for name in ("long", "pipe"):
        (tmp_path / "rescued" / name).mkdir(parents=True)
    (tmp_path / "rescued" / "long" / "report.txt").write_bytes(b"\xff" * 100_000)
    os.mkfifo(tmp_path / "rescued" / "pipe" / "report.txt")
    long, pipe = reports(str(tmp_path))
    assert len(long) < 2100
    assert pipe == "; see rescued/pipe"


def test_a_rescue_that_did_not_end_says_so(tmp_path: Path) -> None:
    assert reports(str(tmp_path)) == []
    (tmp_path / "rescued" / "x").mkdir(parents=True)
    assert reports(str(tmp_path)) == ["rescued/x has no report.txt: it was not written to its end"]
