"""A writer of a files store cannot be kept out by others that commit all the time.

Found by a crowd of processes on a busy machine: one of two survivors was silent for 30 seconds,
because `flock` has no queue.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Event, Thread

import holdfast
from holdfast import Settings
from holdfast.backends.files.disk import Disk

COMMITS = 40
TURNS = 16


def test_whoever_waits_gets_the_lock_within_sixteen_commits_of_another(tmp_path: Path) -> None:
    place = tmp_path / "store"
    waits = Event()
    done: list[int] = []

    class Told(Disk):
        def lock(self, fd: int, operation: int) -> None:  # type: ignore[override]
            if operation == fcntl.LOCK_EX and os.path.samestat(os.fstat(fd), place.stat()):
                waits.set()
            fcntl.flock(fd, operation)

    with holdfast.open(place, settings=Settings(options={"disk": Told()})) as store:
        scope = store.scope("team/t")

        def commit() -> None:
            for number in range(COMMITS):
                scope.set("n", number)
                done.append(number)

        turnstile = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(turnstile, fcntl.LOCK_EX)  # as one does who waits for the lock
        waits.clear()
        writer = Thread(target=commit)
        writer.start()
        waits.wait()
        before = len(done)
        os.close(turnstile)
        writer.join()
    assert before < TURNS
    assert len(done) == COMMITS
