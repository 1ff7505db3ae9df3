"""What was acknowledged last, noted outside the database, so that a loss can be told after a kill.

SQLite recovers whatever is valid. If somebody removes or cuts the WAL, or puts an older copy in the
database's place, what is left is a whole database that lacks commits, and nothing in it says so.
The witness does: `state.db-witness`, a file of 512 bytes beside the database. After each commit,
when it is durable and before it is acknowledged, its position and the start of its link are
written there. A database that does not have them has lost commits.

The witness must never be newer than what a crash may leave. With durability `full` a commit is
on disk before it is noted, so whatever of the witness survives, the database has it. With less, a
power loss may take commits whose note survives: such a note counts only until the host is booted
again. The witness is never synced: after a power loss it may be up to half a minute older than the
database, or empty, and then it knows of less. After a kill nothing of it is missing.

A note lies in one of eight slots, by its position, and is written by one call: of two processes
that write at once neither tears or hides the note of the other. Each has a checksum; damage makes
it count for nothing. Each also says in which file it was written: a copied witness does not speak
for the copy of a store, whose files need not be of the same moment.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from holdfast.backends.protocol import Durability
from holdfast.backends.sqlite.connection import NEWEST, Execute, Row
from holdfast.backends.sqlite.rows import LINK, READ_STORE, crc_of, decode
from holdfast.errors import CorruptError

_log = logging.getLogger("holdfast.backends")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAGIC = b"HLw1"
# Magic, whether the commit was synced, the file, the store, the boot, the position, the link.
_NOTE = Struct("<4sB3xQ8s8sQ16s")
_CHECKED = Struct("<56sI4x")
SLOT_BYTES = 64
SLOTS = 8
LINK_BYTES = 16
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

_EVENT = """SELECT events.*, (SELECT name FROM streams WHERE id = events.stream) FROM events
 WHERE ordinal = ?"""


class Note(NamedTuple):
    """One valid slot."""

    store: bytes
    position: int
    link: bytes


class Witness:
    """The witness of a store that is open for writing."""

    def __init__(self, path: str, store: str, durability: Durability) -> None:
        self._path = witness_path(path)
        self._fd = -1
        try:
            self._fd = os.open(self._path, _OPEN, 0o600)
            self._head = (
                _MAGIC,
                durability == "full",
                _file_tag(os.fstat(self._fd)),
                _tag(store),
                _tag(_boot()),
            )
        except OSError as exc:
            self._stop(exc)

    def note(self, position: int, link: bytes) -> None:
        """Notes a commit that is durable; where that fails, the witness knows of less."""
        if self._fd < 0:
            return
        note = _NOTE.pack(*self._head, position, link)
        try:
            os.pwrite(self._fd, _CHECKED.pack(note, crc32(note)), position % SLOTS * SLOT_BYTES)
        except OSError as exc:
            self._stop(exc)

    def close(self) -> None:
        if self._fd >= 0:
            # Forgotten first: an interrupted close is made again, and the number may be another's.
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _stop(self, exc: OSError) -> None:
        _log.warning("%s is no longer written: %s", self._path, exc)
        self.close()


def witness_path(path: str) -> str:
    return path + "-witness"


def read_note(path: str) -> Note | None:
    """Returns the newest note that counts here and now, None if there is none.

    Whoever compares it with a database asks the database afterwards: what was noted is there then.
    """
    try:
        fd = os.open(witness_path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.pread(fd, SLOTS * SLOT_BYTES, 0)
        file = _file_tag(os.fstat(fd))
    except OSError as exc:
        _log.warning("%s cannot be read: %s", witness_path(path), exc)
        return None
    finally:
        os.close(fd)
    found = [
        note
        for offset in range(0, len(content) - SLOT_BYTES + 1, SLOT_BYTES)
        if (note := _decode(content[offset : offset + SLOT_BYTES], file)) is not None
    ]
    return max(found, key=lambda note: note.position, default=None)


def find_loss(path: str, execute: Execute) -> str | None:
    """Returns what the database lacks of what was acknowledged, None if nothing is known."""
    note = read_note(path)
    if note is None:
        return None
    for *row, crc in execute(READ_STORE).fetchall():
        # A damaged row says nothing; `verify` finds it.
        if crc == crc_of(*row) and _tag(str(row[3])) != note.store:
            return (
                f"another store is in its place: {note.position} events were acknowledged here by "
                "a store with another id"
            )
    newest: int = execute(NEWEST).get or 0
    if newest < note.position:
        return (
            f"it has lost events that were acknowledged: the newest was number {note.position}, "
            f"found {newest}"
        )
    rows = execute(_EVENT, (note.position,)).fetchall()
    if not rows or _is_another(rows[0], note, path):
        return (
            f"it has lost events that were acknowledged: number {note.position} is not the one "
            "that was written"
        )
    return None


def _is_another(row: Row, note: Note, path: str) -> bool:
    """Says whether a row is whole, and not the one that was noted."""
    *event, stream = row
    link: object = event[LINK]
    if link is None:  # a commit without events
        return note.link != bytes(LINK_BYTES)
    if isinstance(link, bytes) and link[:LINK_BYTES].ljust(LINK_BYTES, b"\0") == note.link:
        return False
    try:
        decode(tuple(event), stream, path)
    except CorruptError:
        return False  # damage, which is found where the event is read
    return True


def remedy(path: str) -> str:
    """Returns what to do about a loss."""
    return (
        "bring back the newest copy, also look for one below rescued/; to go on with what is "
        f'there, delete "{witness_path(path)}"'
    )


def _decode(slot: bytes, file: int) -> Note | None:
    body, crc = _CHECKED.unpack(slot)
    if crc != crc32(body):
        return None
    magic, is_synced, written_in, store, boot, position, link = _NOTE.unpack(body[: _NOTE.size])
    if magic != _MAGIC or written_in != file:
        return None
    if not is_synced and (boot != _tag(_boot()) or not _boot()):
        return None
    return Note(store, position, link)


def _file_tag(found: os.stat_result) -> int:
    return (found.st_ino + (found.st_dev << 40)) & 0xFFFFFFFFFFFFFFFF


def _tag(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@cache
def _boot() -> str:
    """Returns what names this boot of the host, nothing where the host does not say."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""
