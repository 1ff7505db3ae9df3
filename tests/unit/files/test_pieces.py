"""Text piece by piece, whatever it holds: no gaps, and never more than a chunk or a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.backends.files import pieces as module
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.pieces import Piece, extract, pieces, split_lines
from holdfast.backends.files.text import Segments


@pytest.fixture
def chunk(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    return 64


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def _segments(folder: int, tmp_path: Path, **contents: bytes) -> Segments:
    for start, content in contents.items():
        (tmp_path / f"{int(start[1:]):016x}.jsonl").write_bytes(content)
    return Segments(Disk(), folder, read_only=True)


def _shown(found: list[Piece]) -> list[tuple[int, bytes | None]]:
    """Returns each piece with its length; they must follow each other without a gap."""
    for one, other in pairwise(found):
        assert one.end == other.offset
    return [(one.end - one.offset, one.encoded) for one in found]


@pytest.mark.usefixtures("chunk")
def test_lines_longer_than_a_chunk_are_gathered_and_what_is_none_is_not(
    folder: int, tmp_path: Path
) -> None:
    long = b'{"n":' + b"1" * 300 + b"\n"
    rubbish = b"#" * 300 + b"\n"
    zeros = b'{"n":' + bytes(300) + b"\n"
    segments = _segments(folder, tmp_path, s0=b"{}\n" + long + rubbish + zeros + b"{}\n{")
    found = _shown(list(pieces(segments, 0, segments.end())))
    assert found == [
        (3, b"{}\n"),
        (306, long),
        (301, None),
        (306, None),
        (3, b"{}\n"),
        (1, b"{"),
    ]
    segments.close()


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("knows_holes", [True, False])
def test_a_segment_that_is_short_or_missing_is_a_piece_that_is_no_line(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_holes: bool
) -> None:
    if not knows_holes:
        monkeypatch.setattr("holdfast.backends.files.disk._SEEK_DATA", None)
    segments = _segments(folder, tmp_path, s10=b"{}\n", s20=b"#" * 200)
    found = _shown(list(pieces(segments, 10, 400)))
    assert found == [(3, b"{}\n"), (7, None), (380, None)]
    segments.close()


@pytest.mark.usefixtures("chunk")
def test_a_hole_ends_at_the_next_line(folder: int, tmp_path: Path) -> None:
    segments = _segments(folder, tmp_path, s0=b"{}\n")
    with (tmp_path / f"{0:016x}.jsonl").open("r+b") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"end\n{}\n")
    found = _shown(list(pieces(segments, 0, segments.end())))
    assert found == [(3, b"{}\n"), ((1 << 20) + 1, None), (3, b"{}\n")]
    segments.close()


@pytest.mark.usefixtures("chunk")
def test_an_extract_leaves_out_zeros_and_stops_when_it_has_enough(
    folder: int, tmp_path: Path
) -> None:
    block = module.BLOCK_BYTES
    segments = _segments(folder, tmp_path, s0=b"a" * block)
    with (tmp_path / f"{0:016x}.jsonl").open("r+b") as file:
        file.truncate(5 * block)
        file.seek(5 * block)
        file.write(b"b" * block)
    end = segments.end()
    found = extract(segments, 0, end, most=1 << 20)
    assert found.kept == b"a" * block + b"b" * block
    assert found.zeros == [(block, 4 * block)]
    assert found.rest == 0
    assert extract(segments, 0, end, most=100).kept == b"a" * 100
    assert extract(segments, 0, end, most=100).rest == end - 100
    assert extract(segments, end, end + 50, most=100).rest == 50, "there is no more"
    segments.close()


def test_a_run_of_zeros_that_is_no_hole_is_noted_too(folder: int, tmp_path: Path) -> None:
    block = module.BLOCK_BYTES
    segments = _segments(folder, tmp_path, s0=b"a" + bytes(5 * block) + b"b")
    found = extract(segments, 0, segments.end(), most=1 << 20)
    assert found.zeros == [(block, 4 * block)]
    assert found.kept.replace(b"\0", b"") == b"ab"
    segments.close()


def test_a_carriage_return_is_no_line_break() -> None:
    assert split_lines(b"a\rb\nc") == [b"a\rb\n", b"c"]
    assert split_lines(b"a\r\n") == [b"a\r\n"]
