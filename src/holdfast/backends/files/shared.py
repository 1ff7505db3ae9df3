"""The shared page: one page of memory that all processes of a store see, backed by a file.

Native-endian 64-bit words, in the order of the constants below. It is coordination between the
processes of one boot, never a truth: whoever is first in after a reboot, a crash of the last
process or a clean close makes it anew from the ring and the text.

Words are written under the store lock only. Readers look at END: one aligned word,
so it is read whole, and everything below it is in the text already (the text is written first, by a
system call). A look costs 0.1 µs and no system call, and it is why a read is linearizable.
"""

from __future__ import annotations

import mmap
import os
from hashlib import sha256

from holdfast.backends.files.disk import Disk, write_all

NAME = "shared"
PAGE_BYTES = 4096

(
    MAGIC,  # what this file is, and the layout of the words
    BOOT,  # digest of the boot id under which it was made
    END,  # log offset behind the newest line that may be read
    BUSY,  # 1 while a commit is under way: found under a free lock, its writer died
    CLOSED,  # 1 when the last process has closed the store: this page tells nothing new any more
    SEGMENT,  # log offset at which the newest segment begins
    POSITION,  # of the newest line
    SYNCED_END,  # log offset up to which the text is synced
    UNRINGED,  # 1 if text above SYNCED_END is not in the ring (written at a weaker durability)
    RING_NUMBER,  # of the newest batch; 0 while there is no ring
    RING_PLACE,  # where in the ring the next batch goes
    RING_FREE,  # ring bytes that may be overwritten before the text must be synced
    LEASES,  # grows with each change of leases.json
) = range(13)

NO_PAGE = memoryview(bytes((0xFF,)) * 8 * 16).cast("Q")
"""Words that agree with no state of any store: what stands for a page that is not there."""

_MAGIC = int.from_bytes(b"HFSHARE1", "little")


class SharedPage:
    """The mapped page; `words[END]` and so on."""

    def __init__(self, disk: Disk, fd: int, *, read_only: bool) -> None:
        self._disk = disk
        self._fd = fd
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
        self._map = mmap.mmap(fd, PAGE_BYTES, access=access)
        self._view = memoryview(self._map)
        self.words = self._view.cast("Q")

    def is_of(self, boot_id: str) -> bool:
        """Returns whether the page was made in this boot, by code that knows this layout."""
        return self.words[MAGIC] == _MAGIC and self.words[BOOT] == _boot_word(boot_id)

    def is_removed(self) -> bool:
        """Returns whether the file has lost its name, so that new processes use another one."""
        return os.fstat(self._fd).st_nlink == 0

    def make(self, boot_id: str) -> None:
        """Clears every word and claims the page for this boot."""
        leases = self.words[LEASES]
        for place in range(len(self.words)):
            self.words[place] = 0
        self.words[LEASES] = leases + 1
        self.words[BOOT] = _boot_word(boot_id)
        self.words[MAGIC] = _MAGIC

    def close(self) -> None:
        """Unmaps the page, which has a descriptor of its own besides ours; done once."""
        if self._fd >= 0:
            self.words.release()
            self._view.release()
            self._map.close()
            self._disk.close(self._fd)
            self._fd = -1


def open_page(disk: Disk, *, at: int, read_only: bool) -> SharedPage | None:
    """Returns the page, made if it is not there; None if it is not and `read_only` forbids that."""
    flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
    try:
        fd = disk.open(NAME, flags, at=at)
    except FileNotFoundError:
        return None
    try:
        if disk.size(fd) != PAGE_BYTES:
            if read_only:
                disk.close(fd)
                return None
            # Written, not only extended: a hole would be filled at a page fault, and a full disk
            # would then end the process with a signal and not with an error.
            write_all(disk, fd, bytes(PAGE_BYTES), 0)
            disk.truncate(fd, PAGE_BYTES)
        return SharedPage(disk, fd, read_only=read_only)
    except BaseException:
        disk.close(fd)
        raise


def _boot_word(boot_id: str) -> int:
    return int.from_bytes(sha256(boot_id.encode()).digest()[:8], "little")
