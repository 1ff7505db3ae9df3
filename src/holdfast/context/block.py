"""One marked block in a file of somebody's: written anew, with no byte outside of it touched.

The markers are lines of their own. A file has one pair of them or none; anything else is refused,
because nobody can tell then which bytes are ours. A new block goes to the end of the file.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress

from holdfast.errors import ConflictError, UnavailableError, UsageError, show_error

_logger = logging.getLogger("holdfast.context")

BEGIN = b"<!-- holdfast:boot begin: written by holdfast boot --write -->"
END = b"<!-- holdfast:boot end -->"
RETRIES = 10


def splice(before: bytes, text: str) -> bytes:
    """Returns a file's bytes with the block in its place, or at the end if it has none.

    The lines of the block end as those of the file do.
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
    """Returns where the block is, from its first byte to after its last; None if there is none."""
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
    """Writes the block of a file, which is made if it is missing; returns whether it changed.

    The new file is written beside the old one and takes its name: a crash leaves one of the two.
    Whoever saves the file meanwhile wins: it is read again, and the block goes into what they have
    written.
    """
    path = os.path.realpath(path)
    for _ in range(RETRIES):
        before = _read(path)
        after = splice(before or b"", text)
        if after == before:
            return False
        if _replace(path, before, after):
            return True
        _logger.info('"%s" changed meanwhile: its block is written again', path)
    raise ConflictError(
        f'"{path}" changed {RETRIES} times while its block was written: nothing was written',
        stream=path,
        expected=0,
        actual=0,
    )


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {show_error(error)}') from error


def _replace(path: str, before: bytes | None, after: bytes) -> bool:
    """Gives a file its new bytes; False if it is not what it was."""
    folder = os.path.dirname(path)
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    except OSError as error:
        raise UsageError(
            f'"{path}" cannot be written: {show_error(error)}', hint="does its folder exist?"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644 if before is None else os.stat(path).st_mode & 0o7777)
        if _read(path) != before:
            return False
        os.replace(beside, path)
        _sync_folder(folder)
        return True
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be written: {show_error(error)}') from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
