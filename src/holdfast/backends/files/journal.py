"""Writing: the order in which a batch of lines becomes durable, then text, then visible.

Under the store lock, at durability `full` (0001 gives the reasons):

    (1) a segment that is full is synced and followed by a new one
    (2) if the batch would overwrite ring space whose text is not synced yet, the text is synced
    (3) room for the text is reserved on the disk
    (4) BUSY is set in the shared page
    (5) the batch is written to the ring, one pwrite, and the kernel is told to begin with it
    (6) the lines are appended to the segment, unsynced
    (7) the ring is synced: the commit point
    (8) the new end is published, BUSY is cleared

(6) and whatever else the caller has to do before (8) are done while the disk is at work: so `write`
and `sync` are two calls. If power is lost in between, the text may hold lines that no ring holds:
whole lines of a commit that nobody was told of, or a torn piece; recovery knows both. No process
reads above the published end, so nobody sees them before they are durable.

What fails before (4) has changed nothing. What fails from (4) on has an outcome that only the next
reader of ring and text can tell, so it leaves BUSY set: whoever takes the lock next recovers first.

At `process` and `none` there is no ring: (4), (6), (8). A killed process takes nothing with it that
it gave to the kernel; a power loss may. The text is then in no ring, which the page says
(UNRINGED), and the next writer at `full` syncs it before it relies on it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from struct import Struct as Layout
from zlib import crc32

from msgspec import Struct

from holdfast.backends.file_watch import FileWatch
from holdfast.backends.files.directory import (
    BUSY,
    END,
    POSITION,
    RING_FREE,
    RING_NUMBER,
    RING_OFFSET,
    SEGMENT,
    SYNCED_END,
    UNRINGED,
    Directory,
    SharedPage,
)
from holdfast.backends.files.disk import NOT_NEEDED, Disk, read_file, replace_file, write_all
from holdfast.backends.files.index import LogCursor
from holdfast.backends.files.text import SEGMENT_BYTES, Segments
from holdfast.errors import FilesTakenError

# --- the ring -------------------------------------------------------------------------------------
#
# A file of fixed size that is synced at each commit, and the only one that is.
#
# A batch begins at a multiple of 512 bytes. All numbers are little-endian:
#
#     "HFR1" · crc32 of all that follows 4 · number 8 · log offset 8 · length 8 · synced end 8
#     · position before 8 · digest before 32 · the lines
#
# The crc32 begins with that of the store's id, so that a ring from another store holds no batch.
# `number` grows by one per batch. `synced end` is the log offset up to which the text was known to
# be synced when the batch was written. Batches lie one after another; one that does not fit before
# the end of the ring goes to offset 0.
#
# The file is written full of zeros and synced before it is used: no later write changes its size or
# allocates a block, so fdatasync has no metadata to write, and an old batch can never show through.
#
# It is made in pieces of a page. A kernel with large folios keeps what came in one write as few
# large pieces of memory, and a sync then looks through a whole one for the page that a commit
# changed: about 15 microseconds of every commit.


NAME = "ring"
RING_BYTES = 1 << 20
RING_BYTES_MIN = 4096
SLOT_BYTES = 512
PIECE_BYTES = 4096

_MAGIC = b"HFR1"
_HEADER = Layout("<4sIQQQQQ32s")
_CRC = Layout("<I")
_CHECKED = Layout("<QQQQQ32s")
HEADER_BYTES = _HEADER.size


class RingBatch(Struct, frozen=True, gc=False):
    """A batch that was found whole in the ring."""

    ring_offset: int  # where in the ring it begins
    number: int
    offset: int
    synced_end: int
    position: int
    digest: bytes
    text: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.text)

    @property
    def next_offset(self) -> int:
        return self.ring_offset + room(len(self.text))


def room(length: int) -> int:
    """Returns the ring bytes that a batch of `length` bytes of text takes."""
    return HEADER_BYTES + length + SLOT_BYTES - 1 & -SLOT_BYTES


def seed_of(store: str) -> int:
    """Returns what the checksums of a store's batches begin with."""
    return crc32(store.encode())


def encode_batch(
    seed: int, number: int, offset: int, synced_end: int, position: int, digest: bytes, text: bytes
) -> bytes:
    checked = _CHECKED.pack(number, offset, len(text), synced_end, position, digest)
    return b"%b%b%b%b" % (_MAGIC, _CRC.pack(crc32(text, crc32(checked, seed))), checked, text)


def find_batches(data: bytes, seed: int) -> list[RingBatch]:
    """Returns every whole batch, oldest first. What is not whole is not a batch."""
    found: list[RingBatch] = []
    for ring_offset in range(0, len(data) - HEADER_BYTES, SLOT_BYTES):
        if data[ring_offset : ring_offset + 4] != _MAGIC:
            continue
        _, crc, number, offset, length, synced_end, position, digest = _HEADER.unpack_from(
            data, ring_offset
        )
        end = ring_offset + HEADER_BYTES + length
        if end <= len(data) and crc32(data[ring_offset + 8 : end], seed) == crc:
            text = data[end - length : end]
            found.append(RingBatch(ring_offset, number, offset, synced_end, position, digest, text))
    found.sort(key=lambda batch: batch.number)
    return found


def create(disk: Disk, *, at: int, size: int) -> None:
    """Makes a ring of zeros, durable before it has its name."""
    zeros = bytes(size)
    replace_file(disk, NAME, zeros, at=at, temp="ring.new", durable=True, piece_bytes=PIECE_BYTES)


def open_ring(disk: Disk, *, at: int) -> int:
    return disk.open(NAME, os.O_RDWR, at=at)


def read_batches(disk: Disk, store: str, *, at: int) -> list[RingBatch] | None:
    """Returns the whole batches of the ring, None if there is no ring."""
    data = read_file(disk, NAME, at=at)
    return None if data is None else find_batches(data, seed_of(store))


_TURNS = 16
"""Every so many commits a writer lets those in who wait."""


class StoreLock:
    """Lets one writer in at a time, of all processes; threads of one handle have a mutex before it.

    `flock` has no queue: a writer that commits again and again can take it each time before one
    that waits has got the processor, and on a busy machine that one waits for ever. So there is a
    turnstile, a lock on the store's directory itself. Whoever has to wait does so inside it, and
    everybody passes it at every 16th commit: after the one who waits. At every commit, each would
    hand over to the next one by a switch of processes, which costs more than the commit.
    """

    def __init__(self, disk: Disk, lock_fd: int, turnstile_fd: int) -> None:
        self._flock = disk.lock
        self._lock_fd = lock_fd
        self._turnstile_fd = turnstile_fd
        self._turn = 0
        # Not a method: between its beginning and the system call an interrupt could come, and every
        # other process would wait for this one.
        self.release: Callable[[], None] = partial(self._flock, lock_fd, fcntl.LOCK_UN)

    def acquire(self) -> None:
        """Takes the lock. The caller calls `release` in a `finally` that covers this call too."""
        self._turn = (self._turn + 1) % _TURNS
        try:
            if not self._turn:
                raise BlockingIOError
            self._flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.wait_in_turn()

    def wait_in_turn(self) -> None:
        """Takes the lock, after whoever waits for it already; to be released like `acquire`."""
        try:
            self._flock(self._turnstile_fd, fcntl.LOCK_EX)
            self._flock(self._lock_fd, fcntl.LOCK_EX)
        finally:
            self._flock(self._turnstile_fd, fcntl.LOCK_UN)


class RingJournal:
    """The writing end of a store, used by whoever has the lock."""

    def __init__(
        self,
        directory: Directory,
        segments: Segments,
        page: SharedPage,
        watch: FileWatch,
        *,
        full: bool,
        reach: Callable[[str], None] | None,
    ) -> None:
        self._directory = directory
        self._disk: Disk = directory.disk
        self._pwrite, self._sync, self._advise = (
            self._disk.pwrite,
            self._disk.sync,
            self._disk.advise,
        )
        self._segments = segments
        self._page = page
        self._watch = watch
        self._is_begun = False
        self._page_fd = page.fd
        self._words = page.words
        self._full = full
        self._reach = reach
        self._seed = seed_of(directory.store)
        self._ring_fd = -1
        self._ring_bytes = 0
        self.is_sealing = False
        """Whether the next write begins a new segment, whatever the size of the one before it."""
        self._batch: tuple[int, int, int] | None = None  # written: number, next offset, bytes used
        self.is_poisoned = False

    def write(self, text: bytes, before: LogCursor) -> None:
        """Writes whole lines to ring and text; `sync` and `publish` must follow.

        `before` is where the log ends now. An exception after which `is_poisoned` is False has
        changed nothing.
        """
        words = self._words
        segments = self._segments
        end = before.end
        if not self._is_begun:
            self._begin()
        if not segments.starts or end - segments.starts[-1] >= SEGMENT_BYTES or self.is_sealing:
            self._begin_segment(end)
        if not self._full:
            if end + len(text) > segments.reserved_end:
                segments.reserve(end, len(text))
            self._append_only(end, text)
            return
        need = HEADER_BYTES + len(text) + SLOT_BYTES - 1 & -SLOT_BYTES
        if self._ring_fd < 0:
            self._open_ring()
        if need > self._ring_bytes // 2:
            segments.reserve(end, len(text))
            self._write_large(text, before)
            return
        ring_offset = words[RING_OFFSET]
        used = need
        if ring_offset + need > self._ring_bytes:
            used += self._ring_bytes - ring_offset
            ring_offset = 0
        if words[RING_FREE] < used or words[UNRINGED]:
            self.sync_text()
        if end + len(text) > segments.reserved_end:
            segments.reserve(end, len(text))
        number = words[RING_NUMBER] + 1
        batch = encode_batch(
            self._seed, number, end, words[SYNCED_END], before.position, before.digest, text
        )
        reach = self._reach
        # From here on the outcome is unknown until all is done.
        self.is_poisoned = True
        words[BUSY] = 1
        if self._pwrite(self._ring_fd, batch, ring_offset) != len(batch):
            write_all(self._disk, self._ring_fd, batch, ring_offset)
        if reach is not None:
            reach("files.ring.written")
        if NOT_NEEDED is not None:
            # A hint, so that the kernel begins to write what `sync` will wait for. It promises
            # nothing, and takes no error away from `sync`. To say that the bytes are not needed
            # makes Linux begin at once; they stay in memory until they are written.
            self._advise(self._ring_fd, ring_offset, need, NOT_NEEDED)
        segments.append(end, text)
        if reach is not None:
            reach("files.text.appended")
        self._batch = number, ring_offset + need, used

    def sync(self) -> None:
        """Makes durable what `write` wrote, if it is not yet."""
        if self._batch is None:
            return
        number, next_offset, used = self._batch
        self._batch = None
        self._sync(self._ring_fd)
        if self._reach is not None:
            self._reach("files.ring.synced")
        words = self._words
        words[RING_NUMBER] = number
        words[RING_OFFSET] = next_offset
        words[RING_FREE] -= used

    def publish(self, end: int, position: int) -> None:
        """Shows the lines that were written to every process."""
        words = self._words
        words[POSITION] = position
        words[SEGMENT] = self._segments.starts[-1]
        words[END] = end
        words[BUSY] = 0
        self.is_poisoned = False
        if self._reach is not None:
            self._reach("files.published")

    def sync_text(self) -> None:
        """Syncs the text, so that all of the ring may be overwritten.

        A failed sync is never tried again on the same bytes: the kernel has marked them clean.
        BUSY then makes the next one in write them again, from the ring.
        """
        words = self._words
        self.is_poisoned = True
        words[BUSY] = 1
        if self._reach is not None:
            self._reach("files.text.syncing")
        self._segments.sync(words[SYNCED_END])
        words[SYNCED_END] = words[END]
        words[UNRINGED] = 0
        if self._ring_fd >= 0:
            words[RING_FREE] = self._ring_bytes
        words[BUSY] = 0
        self.is_poisoned = False
        if self._reach is not None:
            self._reach("files.text.synced")

    def wipe(self, cursor: LogCursor) -> None:
        """Leaves nothing of any line in the ring; the caller has the store lock.

        The text is synced first, so no batch is needed any more. An empty one then records the end,
        as after a batch that was too large: so what is overwritten is never missed.
        """
        self.sync_text()
        if self._ring_fd < 0:
            if not self._has_ring():
                return
            self._open_ring()
        words = self._words
        self.is_poisoned = True
        words[BUSY] = 1
        number, end = words[RING_NUMBER] + 1, cursor.end
        batch = encode_batch(self._seed, number, end, end, cursor.position, cursor.digest, b"")
        write_all(self._disk, self._ring_fd, batch.ljust(room(0), b"\0"), 0)
        self._disk.sync(self._ring_fd)
        if self._reach is not None:
            self._reach("files.ring.emptied")
        for offset in range(room(0), self._ring_bytes, PIECE_BYTES):
            zeros = bytes(min(PIECE_BYTES, self._ring_bytes - offset))
            write_all(self._disk, self._ring_fd, zeros, offset)
        self._disk.sync(self._ring_fd)
        words[RING_NUMBER] = number
        words[RING_OFFSET] = room(0)
        words[RING_FREE] = self._ring_bytes - room(0)
        words[BUSY] = 0
        self.is_poisoned = False
        if self._reach is not None:
            self._reach("files.ring.wiped")

    def _append_only(self, end: int, text: bytes) -> None:
        words = self._words
        self.is_poisoned = True
        words[BUSY] = 1
        words[UNRINGED] = 1
        self._segments.append(end, text)
        if self._reach is not None:
            self._reach("files.text.appended")

    def _write_large(self, text: bytes, before: LogCursor) -> None:
        """Writes what is too large for the ring: to the text, which is synced before it counts.

        An empty batch then records the end, so that a later mismatch is corruption and not a cut.
        """
        words = self._words
        end = before.end + len(text)
        self.is_poisoned = True
        words[BUSY] = 1
        try:
            self._segments.append(before.end, text)
        except OSError:
            # A full disk, most likely. Nothing was promised: take the piece back, and go on.
            self._segments.cut(before.end)
            words[BUSY] = 0
            self.is_poisoned = False
            raise
        if self._reach is not None:
            self._reach("files.text.appended")
        self._segments.sync(words[SYNCED_END])
        if self._reach is not None:
            self._reach("files.text.synced")
        # All older batches are below the new synced end: the whole ring is free.
        number = words[RING_NUMBER] + 1
        batch = encode_batch(
            self._seed, number, before.end, end, before.position, before.digest, b""
        )
        write_all(self._disk, self._ring_fd, batch, 0)
        if self._reach is not None:
            self._reach("files.ring.written")
        self._disk.sync(self._ring_fd)
        if self._reach is not None:
            self._reach("files.ring.synced")
        words[SYNCED_END] = end
        words[UNRINGED] = 0
        words[RING_NUMBER] = number
        words[RING_OFFSET] = room(0)
        words[RING_FREE] = self._ring_bytes - room(0)

    def _begin(self) -> None:
        """Takes back what a clean close recorded, once, before the first write of this handle.

        As long as head.json says `closed`, text after its end is of somebody else. This is synced,
        because at a weaker durability nothing else tells after a power loss that there was a write.
        """
        head, is_closed = self._directory.read_recorded()
        if head is not None and is_closed:
            self._directory.write_head(head, closed=False)
        self._is_begun = True

    def _begin_segment(self, start: int) -> None:
        """Makes the next segment; the one before it is whole and synced, and stays so."""
        if self._segments.starts:
            self.sync_text()
            self._segments.cut(start)
        if self.is_sealing:
            # A full segment is followed by a new one whoever writes next. This one is not full: if
            # we are killed, the next writer must look which segments there are before it appends.
            self.is_poisoned = True
            self._words[BUSY] = 1
        try:
            self._segments.add(start)
        except OSError:
            self._segments.refresh()
            if self._segments.newest != start:  # a full disk, most likely: nothing has changed
                self._words[BUSY] = 0
                self.is_poisoned = False
            raise
        if self._reach is not None:
            self._reach("files.segment.added")

    def _open_ring(self) -> None:
        at = self._directory.fd
        if not self._words[RING_NUMBER] and not self._has_ring():
            self._directory.remove("ring.new")
            create(self._disk, at=at, size=RING_BYTES)
            self._words[RING_FREE] = RING_BYTES
            if self._reach is not None:
                self._reach("files.ring.created")
        fd = open_ring(self._disk, at=at)
        try:
            size = self._disk.size(fd)
            if size < max(RING_BYTES_MIN, self._words[RING_OFFSET]):
                raise FilesTakenError(
                    f'the ring of "{self._directory.path}" was cut to {size} bytes while in use',
                    hint="end every process that has the store open, then open it again",
                )
        except BaseException:
            self._disk.close(fd)
            raise
        self._ring_fd, self._ring_bytes = fd, size
        self._watch.keep(NAME, NAME, fd, at=at)

    def _has_ring(self) -> bool:
        try:
            self._disk.stat(NAME, at=self._directory.fd)
        except FileNotFoundError:
            return False
        return True

    def has_lost_a_name(self) -> bool:
        """Returns whether ring or shared page have no name at all any more.

        A look that costs a microsecond, before a write: by it, hardly anything is written into a
        store that somebody else has closed since, or made anew.
        """
        return os.fstat(self._page_fd).st_nlink == 0 or (
            self._ring_fd >= 0 and os.fstat(self._ring_fd).st_nlink == 0
        )

    def is_cut(self) -> bool:
        """Returns whether the ring is shorter than it was made."""
        return self._ring_fd >= 0 and os.fstat(self._ring_fd).st_size < self._ring_bytes

    @property
    def ring_fd(self) -> int:
        """The ring's descriptor, -1 if this handle has not used it."""
        return self._ring_fd

    def abandon(self) -> None:
        """Leaves a batch that was interrupted, not failed, as it is: BUSY stays set.

        Every sync that was asked for did what it said. So whoever takes the lock next recovers
        ring and text, as after the death of another process, and this handle may be the one.
        """
        self._batch = None
        self.is_poisoned = False

    def close(self) -> None:
        fd, self._ring_fd = self._ring_fd, -1  # never twice: the number may be another file's then
        if fd >= 0:
            self._disk.close(fd)

    def after_fork(self) -> None:
        if self._ring_fd >= 0:
            os.close(self._ring_fd)
            self._ring_fd = -1
