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

`write` ends with (6) and `sync` is (7), so that the caller can prepare (8) while the disk is at
work on (5). If power is lost before (7), the text may hold lines that no ring holds: whole lines of
a commit that was not acknowledged, or a torn piece of one. Recovery expects both. No process reads
above the published end, so nobody sees lines before they are durable.

A failure before (4) has changed nothing. After a failure from (4) on, only ring and text can show
whether the commit is there. So BUSY stays set, and the next process that takes the lock recovers
first.

At `process` and `none` there is no ring: (4), (6), (8). What was given to the kernel survives the
end of the process, but perhaps not a power loss. The shared page notes that some text is in no ring
(UNRINGED), and the next writer at `full` syncs it first: its own lines could not be read without
those before them.
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
# A file of fixed size, and the only file that a usual commit syncs.
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
# allocates a block, so fdatasync has no metadata to write. Nor can old contents of the disk show
# through.
#
# It is written a page at a time. A kernel with large folios keeps the bytes of one long write in a
# few large pieces of memory, and a sync then searches a whole piece for the page that a commit
# changed: about 15 microseconds for each commit.


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
    """A batch in the ring whose checksum matches."""

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
    """Returns how many ring bytes a batch with `length` bytes of text takes."""
    return HEADER_BYTES + length + SLOT_BYTES - 1 & -SLOT_BYTES


def seed_of(store: str) -> int:
    """Returns the CRC-32 with which the checksum of every batch of a store begins."""
    return crc32(store.encode())


def encode_batch(
    seed: int, number: int, offset: int, synced_end: int, position: int, digest: bytes, text: bytes
) -> bytes:
    checked = _CHECKED.pack(number, offset, len(text), synced_end, position, digest)
    return b"%b%b%b%b" % (_MAGIC, _CRC.pack(crc32(text, crc32(checked, seed))), checked, text)


def find_batches(data: bytes, seed: int) -> list[RingBatch]:
    """Returns every batch whose checksum matches, oldest first; ignores all other bytes.

    A torn batch was not acknowledged, and one that was partly overwritten is not needed any more.
    """
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
    """Makes a ring of zeros, which are synced before the file gets its name."""
    zeros = bytes(size)
    replace_file(disk, NAME, zeros, at=at, temp="ring.new", durable=True, piece_bytes=PIECE_BYTES)


def open_ring(disk: Disk, *, at: int) -> int:
    return disk.open(NAME, os.O_RDWR, at=at)


def read_batches(disk: Disk, store: str, *, at: int) -> list[RingBatch] | None:
    """Returns the whole batches of the ring, None if there is no ring."""
    data = read_file(disk, NAME, at=at)
    return None if data is None else find_batches(data, seed_of(store))


_TURNS = 16
"""Once in so many commits, a writer lets in those who wait."""


class StoreLock:
    """Lets in one writer of all processes; the threads of one handle share a mutex before it.

    `flock` has no queue. A writer that commits again and again can take the lock each time before a
    waiting process gets the processor, which on a busy machine may then wait for ever. So there is
    a turnstile, a second lock, on the store's directory itself. A writer that must wait does so
    while it holds the turnstile, and every writer passes the turnstile at each 16th commit, which
    puts it behind the one that waits. At every commit, that would force a switch of processes,
    which costs more than the commit.
    """

    def __init__(self, disk: Disk, lock_fd: int, turnstile_fd: int) -> None:
        self._flock = disk.lock
        self._lock_fd = lock_fd
        self._turnstile_fd = turnstile_fd
        self._turn = 0
        # Not a method: an interrupt could come between its beginning and the system call. The lock
        # would then stay taken, and every other process would wait.
        self.release: Callable[[], None] = partial(self._flock, lock_fd, fcntl.LOCK_UN)

    def acquire(self) -> None:
        """Takes the lock; the caller must call `release` in a `finally` that covers this call."""
        self._turn = (self._turn + 1) % _TURNS
        try:
            if not self._turn:
                raise BlockingIOError
            self._flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.wait_in_turn()

    def wait_in_turn(self) -> None:
        """Takes the lock behind those that wait already; the same rule for `release` applies."""
        try:
            self._flock(self._turnstile_fd, fcntl.LOCK_EX)
            self._flock(self._lock_fd, fcntl.LOCK_EX)
        finally:
            self._flock(self._turnstile_fd, fcntl.LOCK_UN)


class RingJournal:
    """Writes to ring and text; used only by the holder of the store lock."""

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

        `before` is where the log ends now. If it raises and `is_poisoned` is False afterwards,
        nothing was changed.
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
        need = HEADER_BYTES + len(text) + SLOT_BYTES - 1 & -SLOT_BYTES  # `room`, without a call
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
            # The batch may overwrite older ones only when their lines are durable in the text, and
            # be the commit point only when all lines before its own are durable somewhere.
            self.sync_text()
        if end + len(text) > segments.reserved_end:
            segments.reserve(end, len(text))
        number = words[RING_NUMBER] + 1
        batch = encode_batch(
            self._seed, number, end, words[SYNCED_END], before.position, before.digest, text
        )
        reach = self._reach
        # From here on a failure leaves the outcome unknown. BUSY is set before the first byte: if
        # this process dies now, the next one to take the lock recovers.
        self.is_poisoned = True
        words[BUSY] = 1
        if self._pwrite(self._ring_fd, batch, ring_offset) != len(batch):
            write_all(self._disk, self._ring_fd, batch, ring_offset)
        if reach is not None:
            reach("files.ring.written")
        if NOT_NEEDED is not None:
            # A hint only: Linux begins at once to write bytes that are said to be unneeded, so that
            # `sync` waits less. They stay in memory until they are written, and an error of that
            # write is still reported by `sync`.
            self._advise(self._ring_fd, ring_offset, need, NOT_NEEDED)
        segments.append(end, text)
        if reach is not None:
            reach("files.text.appended")
        self._batch = number, ring_offset + need, used

    def sync(self) -> None:
        """Makes durable what `write` put into the ring: the commit point. Else it does nothing."""
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
        # END after the words that describe it, because readers look at END without the lock. BUSY
        # last: whoever finds it clear relies on all the others.
        words[END] = end
        words[BUSY] = 0
        self.is_poisoned = False
        if self._reach is not None:
            self._reach("files.published")

    def sync_text(self) -> None:
        """Syncs the text, so that all of the ring may be overwritten.

        A failed sync is never repeated on the same bytes: the kernel has marked them clean, and the
        second sync would succeed without writing them. BUSY stays set instead, and recovery writes
        the bytes again.
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
        """Overwrites every line in the ring; the caller has the store lock.

        The text is synced first, so that no batch is needed any more. An empty batch then records
        the end, and is synced before the other batches are overwritten: without it, a crash in
        between could leave an older batch as the newest, and an older end.
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
        """Writes lines that are too large for the ring to the text alone, which is synced here.

        An empty batch then records the new end: text that is missing below it is corruption, and
        never cut off as the torn rest of a commit.
        """
        words = self._words
        end = before.end + len(text)
        self.is_poisoned = True
        words[BUSY] = 1
        try:
            self._segments.append(before.end, text)
        except OSError:
            # Most likely the disk is full. Nothing was acknowledged, so what was written is cut off
            # again, and the handle can go on.
            self._segments.cut(before.end)
            words[BUSY] = 0
            self.is_poisoned = False
            raise
        if self._reach is not None:
            self._reach("files.text.appended")
        self._segments.sync(words[SYNCED_END])
        if self._reach is not None:
            self._reach("files.text.synced")
        # The lines of all older batches are synced in the text now, so the whole ring is free.
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
        """Takes `closed` in head.json back, once, before the first write of this handle.

        As long as head.json says `closed`, text after its end counts as written by somebody else.
        The change is durable before any line: at a weaker durability there may be no ring, and
        nothing else would tell after a power loss that there was a write.
        """
        head, is_closed = self._directory.read_recorded()
        if head is not None and is_closed:
            self._directory.write_head(head, closed=False)
        self._is_begun = True

    def _begin_segment(self, start: int) -> None:
        """Makes the next segment; the one before it is synced first and does not grow any more."""
        if self._segments.starts:
            # Synced before there is a next one, so that only the newest segment can ever be short.
            # Cut, to give back the blocks that were reserved after its end.
            self.sync_text()
            self._segments.cut(start)
        if self.is_sealing:
            # After a full segment every writer begins a new one. This one is not full: if this
            # process is killed here, the next writer must not append to it before it has looked
            # which segments there are. BUSY makes it look.
            self.is_poisoned = True
            self._words[BUSY] = 1
        try:
            self._segments.add(start)
        except OSError:
            self._segments.refresh()
            if self._segments.newest != start:  # most likely the disk is full; nothing has changed
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
        """Returns whether the ring or the shared page was deleted.

        This costs a microsecond before each write. It stops nearly every write into files that are
        no longer those of the store, because somebody deleted them or made the store anew.
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
        """Gives up a batch that was interrupted, and did not fail; BUSY stays set.

        No sync has failed, so nothing is wrongly marked clean. Whoever takes the lock next recovers
        ring and text as after the death of a process, and that may be this very handle.
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
