"""The whole way of a durable commit on files, in one function and without layers: what bounds us.

The same guarantees as the files backend gives one writer: value encoded and checked, linked by
digest, one line of text with a checksum, ring batch with header and checksum, store lock, one sync,
text appended, end published. No group commit, no guards for others' revisions, no index, no API.
`python -m bench.prototype` prints its time beside a bare prewritten loop.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import statistics
import struct
import tempfile
import time
import zlib
from base64 import urlsafe_b64encode as b64
from hashlib import sha256
from pathlib import Path

import msgspec

BLOCKS, OPERATIONS, RING = 100, 20, 1 << 20
MESSAGE = {"role": "user", "text": "x" * 960}
encode = msgspec.json.encode


def prewritten(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, bytes(RING), 0)
    os.fsync(fd)
    return fd


class Prototype:
    """One stream, one writer."""

    def __init__(self, place: Path) -> None:
        self.ring, self.ring_at, self.number = prewritten(place / "ring"), 0, 0
        self.text = os.open(place / "text", os.O_RDWR | os.O_CREAT, 0o600)
        self.lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        page = os.open(place / "shared", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(page, 4096)
        self.words = memoryview(mmap.mmap(page, 4096)).cast("Q")
        self.link, self.digest, self.end, self.revision = bytes(32), bytes(32), 0, 0
        self.state: tuple[object, ...] = ()

    def append(self, message: object, checkpoint: str) -> int:
        payload = b'[["append","messages",%b]]' % encode(message)
        revision, now = self.revision + 1, time.time_ns() // 1000
        envelope = ["conversation/c", revision, now, "changed", "me", None, checkpoint, None]
        digest = sha256(payload).digest()
        link = sha256(self.link + digest + encode(envelope)).digest()
        event = b'["changed",%b,"%b",%b]' % (payload, b64(link)[:43], encode(checkpoint))
        body = b'{"n":%d,"at":%d,"by":"me","in":[["c",%d,[%b]]]' % (revision, now, revision, event)
        crc = zlib.crc32(body)
        line = b'%b,"crc":"%08x"}\n' % (body, crc)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        head = struct.pack("<QQQQQ", self.number, self.end, len(line), 0, revision - 1)
        batch = head + self.digest + line
        batch = b"HFR1%b%b" % (zlib.crc32(batch).to_bytes(4, "little"), batch)
        room = len(batch) + 511 & -512
        if self.ring_at + room > RING:
            os.fdatasync(self.text)
            self.ring_at = 0
        self.words[1] = 1
        os.pwrite(self.ring, batch, self.ring_at)
        os.fdatasync(self.ring)
        os.pwrite(self.text, line, self.end)
        self.end += len(line)
        self.words[0] = self.end
        self.words[1] = 0
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        self.ring_at += room
        self.number += 1
        self.link, self.revision = link, revision
        self.digest = sha256(self.digest + crc.to_bytes(4, "big") + link).digest()
        self.state = (self.state, payload)
        return revision


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as place:
        lean, bare = Prototype(Path(place)), prewritten(Path(place) / "bare")
        data, quotients = encode(MESSAGE), list[float]()
        for block in range(BLOCKS):
            start = time.perf_counter()
            for n in range(OPERATIONS):
                os.pwrite(bare, data, (block * OPERATIONS + n) * 1024 % (RING - 1024))
                os.fdatasync(bare)
            middle = time.perf_counter()
            for n in range(OPERATIONS):
                lean.append(MESSAGE, f"turn {n}")
            quotients.append((time.perf_counter() - middle) / (middle - start))
        print(f"prototype / bare prewritten file: {statistics.median(quotients):.2f} times")


if __name__ == "__main__":
    main()
