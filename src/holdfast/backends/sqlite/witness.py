"""What was acknowledged last, noted outside the database, so that a loss shows after a kill.

SQLite recovers whatever is valid. If somebody removes or cuts the WAL, or puts an older copy in the
database's place, what is left is a whole database that lacks commits, and nothing in it shows that.
The witness does: `state.db-witness`, a file of 512 bytes beside the database. After each commit,
and before it is acknowledged, its position and the start of its link are written there. A database
that does not have them has lost commits.

The witness must never name a commit that a crash may have taken. With durability `full` a commit is
on disk before it is noted, so the database has whatever the witness names. With less, a power loss
may take commits whose note survives, so such a note counts only until the host boots again. The
witness is never synced: after a power loss it may be up to half a minute older than the database,
or empty, and then it shows less. After a kill nothing of it is missing.

A note lies in one of eight slots, chosen by its position, and is written by one call. So two
processes that write at once do not tear each other's notes, and most often use different slots. If
a late, older note does take the slot of a newer one, the witness only shows less. Each note has a
checksum, and a damaged one is ignored. Each also names the file that it was written in: a copied
witness does not count, because the files of a copied store need not be of the same moment.
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
        """Notes a commit; after a failure nothing more is noted, and the witness shows less."""
        if self._fd < 0:
            return
        note = _NOTE.pack(*self._head, position, link)
        try:
            os.pwrite(self._fd, _CHECKED.pack(note, crc32(note)), position % SLOTS * SLOT_BYTES)
        except OSError as exc:
            self._stop(exc)

    def close(self) -> None:
        if self._fd >= 0:
            # Forgotten first: close is called again after an interrupt, when the number may belong
            # to another file.
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _stop(self, exc: OSError) -> None:
        _log.warning("%s is no longer written: %s", self._path, exc)
        self.close()


def witness_path(path: str) -> str:
    return path + "-witness"


def read_note(path: str) -> Note | None:
    """Returns the newest note that counts in this file and this boot, None if there is none.

    The caller must read the note first and the database afterwards: a commit is noted only when the
    database has it. In the other order, a commit in between would look like a loss.
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
    """Describes what the database lacks of what was acknowledged, None if no loss is known."""
    note = read_note(path)
    if note is None:
        return None
    for *row, crc in execute(READ_STORE).fetchall():
        # A damaged row proves nothing; `verify` finds it.
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
    """Returns whether a row is undamaged but not the one that was noted."""
    *event, stream = row
    link: object = event[LINK]
    if link is None:  # a commit without events
        return note.link != bytes(LINK_BYTES)
    if isinstance(link, bytes) and link[:LINK_BYTES].ljust(LINK_BYTES, b"\0") == note.link:
        return False
    try:
        decode(tuple(event), stream, path)
    except CorruptError:
        return False  # damage, which is reported where the event is read
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
    """Returns the id of this boot of the host, an empty text where the host has none."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""
