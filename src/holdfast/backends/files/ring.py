"""The ring: a file of fixed size that is synced at each commit, and the only one that is.

A batch begins at a multiple of 512 bytes. All numbers are little-endian:

    "HFR1" · crc32 of all that follows 4 · number 8 · log offset 8 · length 8 · synced end 8
    · position before 8 · digest before 32 · the lines

The crc32 begins with that of the store's id, so that a ring from another store holds no batch.
`number` grows by one per batch. `synced end` is the log offset up to which the text was known to be
synced when the batch was written. Batches lie one behind another; one that does not fit before the
end of the ring goes to offset 0.

The file is written full of zeros and synced before it is used: no later write changes its size or
allocates a block, so fdatasync has no metadata to write, and an old batch can never show through.
"""

from __future__ import annotations

import os
from struct import Struct as Layout
from zlib import crc32

from msgspec import Struct

from holdfast.backends.files.disk import Disk, read_file, replace_file

NAME = "ring"
RING_BYTES = 1 << 20
SLOT_BYTES = 512

_MAGIC = b"HFR1"
_HEADER = Layout("<4sIQQQQQ32s")
_CRC = Layout("<I")
_CHECKED = Layout("<QQQQQ32s")
HEADER_BYTES = _HEADER.size


class Batch(Struct, frozen=True, gc=False):
    """A batch that was found whole in the ring."""

    place: int  # where in the ring it begins
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
    def next_place(self) -> int:
        return self.place + room(len(self.text))


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


def find_batches(data: bytes, seed: int) -> list[Batch]:
    """Returns every whole batch, oldest first. What is not whole is not a batch."""
    found: list[Batch] = []
    for place in range(0, len(data) - HEADER_BYTES, SLOT_BYTES):
        if data[place : place + 4] != _MAGIC:
            continue
        _, crc, number, offset, length, synced_end, position, digest = _HEADER.unpack_from(
            data, place
        )
        end = place + HEADER_BYTES + length
        if end <= len(data) and crc32(data[place + 8 : end], seed) == crc:
            text = data[end - length : end]
            found.append(Batch(place, number, offset, synced_end, position, digest, text))
    found.sort(key=lambda batch: batch.number)
    return found


def create(disk: Disk, *, at: int, size: int) -> None:
    """Makes a ring of zeros, durable before it has its name."""
    replace_file(disk, NAME, bytes(size), at=at, temp="ring.new", durable=True)


def open_ring(disk: Disk, *, at: int) -> int:
    return disk.open(NAME, os.O_RDWR, at=at)


def read_batches(disk: Disk, store: str, *, at: int) -> list[Batch] | None:
    """Returns the whole batches of the ring, None if there is no ring."""
    data = read_file(disk, NAME, at=at)
    return None if data is None else find_batches(data, seed_of(store))
