"""The lock of a files store, when waiting for it is interrupted."""

from __future__ import annotations

import fcntl
from typing import cast

import pytest

from holdfast.backends.files.disk import Disk
from holdfast.backends.files.journal import StoreLock

LOCK, TURNSTILE = 3, 4


class Interrupted:
    """A disk on which taking one of the locks is interrupted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.released: list[int] = []

    def lock(self, fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            self.released.append(fd)
        elif fd == self._fd:
            raise KeyboardInterrupt


@pytest.mark.parametrize("fd", [LOCK, TURNSTILE])
def test_an_interrupt_leaves_no_lock_taken(fd: int):
    disk = Interrupted(fd)
    lock = StoreLock(cast("Disk", disk), LOCK, TURNSTILE)
    with pytest.raises(KeyboardInterrupt):
        try:
            lock.wait_in_turn()
        finally:
            lock.release()
    assert disk.released == [TURNSTILE, LOCK]
