"""Writes one marked block in a user's file, without changing a byte outside of it.

Each marker is a line. A file has one pair of markers or none; anything else is refused, because
then it is unclear which bytes belong to the block. A new block goes to the end of the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from holdfast.errors import ConflictError, UnavailableError, UsageError, show_error
from holdfast.exchange import exchange, put, read_file, write_new

_logger = logging.getLogger("holdfast.context")

BEGIN = b"<!-- holdfast:boot begin: written by holdfast boot --write -->"
END = b"<!-- holdfast:boot end -->"
RETRIES = 10


def splice(before: bytes, text: str) -> bytes:
    """Returns a file's bytes with its block replaced, or a new block at the end.

    The block uses the line ends of the file.
    """
    newline = b"\r\n" if before.count(b"\r\n") * 2 > before.count(b"\n") else b"\n"
    lines = text.encode("utf-8", "replace").rstrip(b"\n").split(b"\n")
    block = newline.join([BEGIN, *lines, END])
    found = _find(before)
    if found is not None:
        return before[: found[0]] + block + before[found[1] :]
    gap = b"" if not before else newline if before.endswith(b"\n") else newline * 2
    return before + gap + block + newline


def _find(data: bytes) -> tuple[int, int] | None:
    """Returns the start and the end of the block in the file; None if it has none."""
    places: list[tuple[int, bytes]] = []
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for line in data[at:].splitlines(keepends=True):
        mark = line.rstrip()
        if mark in (BEGIN, END):
            places.append((at, mark))
        at += len(line)
    if not places:
        return None
    if [mark for _, mark in places] != [BEGIN, END]:
        raise UsageError(
            f"the file has {len(places)} markers of a boot block: expected one that begins it and "
            "one that ends it",
            hint=f"remove the lines {BEGIN.decode()} and {END.decode()}, or leave one pair",
        )
    return places[0][0], places[1][0] + len(END)


def write_block(path: str, text: str) -> bool:
    """Writes the block of a file, creating the file if it is missing; returns whether it changed.

    The new file is written beside the old one, and the two names are exchanged atomically. So a
    crash leaves one of the two, and the old file can be read after the exchange. If it is not what
    was read before, somebody has saved in between: then the block is put into what they wrote, and
    nothing of theirs is lost. A plain rename would overwrite their version.
    """
    target = Path(os.path.realpath(path))
    before = _read(target)
    if splice(before or b"", text) == before:
        return False
    beside = target.with_name(f".{target.name}.{os.getpid()}.boot")
    try:
        if not _exchange_until_quiet(target, beside, before, text):
            raise ConflictError(
                f'"{target}" was saved {RETRIES} times while its block was written',
                hint=f'what was saved last is in "{beside}"',
                stream=str(target),
                expected=0,
                actual=0,
            )
        _sync_folder(target.parent)
    except OSError as error:
        raise UnavailableError(f'"{target}" cannot be written: {show_error(error)}') from error
    return True


def _exchange_until_quiet(target: Path, beside: Path, base: bytes | None, text: str) -> bool:
    """Exchanges files until nobody saved in between; returns False after `RETRIES` attempts.

    `expected` is what should be in the file before the exchange; `base` is the text that the block
    is put into.
    """
    expected = base
    for _ in range(RETRIES):
        try:
            new = splice(base or b"", text)
        except UsageError:
            if base != expected:
                exchange(beside, target)  # their version has other markers: put it back
                beside.unlink()
            raise
        write_new(beside, new, None if base is None else target.stat().st_mode & 0o7777)
        outcome = exchange(beside, target)
        if outcome == "absent" and put(beside, target):
            return True
        if outcome == "exchanged":
            found = _read(beside)
            if found == expected:
                beside.unlink()
                return True
            _logger.info('"%s" was saved meanwhile: its block goes into that', target)
            base, expected = found, new
        else:
            base = expected = _read(target)
    return False


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {show_error(error)}') from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
