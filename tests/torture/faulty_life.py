"""The life of a store while calls fail: what was asked of it, and what it said.

Each thing that is written carries a token of its own, to be looked for afterwards.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import holdfast
from holdfast import CorruptError, HoldfastError, Store, UnavailableError
from holdfast.testing import FakeClock
from tests.opening import settled
from tests.torture.faulty_calls import FAULTS, FaultyDisk
from tests.torture.programme import Broken

HANG_S = 120
EVER = 1_000_000


@cache
def scratch() -> Path:
    """A directory in memory where there is one: thousands of stores are made and thrown away."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return memory if usable else Path(tempfile.gettempdir())


@contextmanager
def no_hang(what: str) -> Generator[None]:
    """Turns a trial that does not come back into a failure."""

    def give_up(*_: object) -> None:
        raise Broken(f"{what}: it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Act:
    """Something that was written, or was to be."""

    token: str
    outcome: str = "told"  # or "refused", "unknown"


@dataclass
class Scene:
    """One life of a store while calls fail."""

    backend: str
    place: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(seed=7))
    acts: list[Act] = field(default_factory=list[Act])
    errors: list[HoldfastError] = field(default_factory=list[HoldfastError])
    disk: Callable[[], Any] = FaultyDisk
    _store: Store | None = None
    before_close: Callable[[], None] | None = None
    after_unknown: Callable[[Scene, Store], None] | None = None
    """Called with a handle that does not know what became of its commit."""

    def url(self, name: str = "store") -> str:
        return str(self.place / name) if self.backend == "files" else f"sqlite:{self.place}/{name}"

    def open(self, name: str = "store", **options: Any) -> Store:
        if self.backend == "files":
            options["disk"] = self.disk()
        return holdfast.open(self.url(name), actor="a", **settled(options, clock=self.clock))

    def begin(self, **options: Any) -> None:
        """Opens the store before anything can fail."""
        self._store = self.open(**options)

    def write(self, token: str, work: Callable[[Store], Any], **options: Any) -> None:
        """Does something that leaves the token in the store, and notes what became of it."""
        act = Act(token)
        self.acts.append(act)
        try:
            store = self._store or self.open(**options)
        except (UnavailableError, CorruptError) as error:
            act.outcome = "refused"
            self._note(error)
            return
        self._store = store
        try:
            work(store)
        except (UnavailableError, CorruptError) as error:
            is_known = getattr(error, "outcome_known", True)
            act.outcome = "refused" if is_known else "unknown"
            self._note(error)
            if not is_known:
                if self.after_unknown is not None:
                    self.after_unknown(self, store)
                self.close()

    def read(self, work: Callable[[Store], Any], expected: Any = None, **options: Any) -> None:
        """Asks something; an answer must be the right one, None: whatever it is."""
        try:
            store = self._store = self._store or self.open(**options)
            found = work(store)
        except (UnavailableError, CorruptError) as error:
            self._note(error)
            return
        if expected is not None and found != expected:
            raise Broken(f"it answered {found!r}, expected {expected!r}")

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            if self.before_close is not None and FAULTS.hits:
                self.before_close()
            try:
                store.close()
            except (UnavailableError, CorruptError) as error:
                self._note(error)

    def _note(self, error: HoldfastError) -> None:
        self.errors.append(error)
        # SQLite says that a file is malformed where the disk could not read it; whoever reads that
        # is told to copy the store away and to check it, which is right for such a disk.
        if isinstance(error, CorruptError) and not (
            self.backend == "sqlite"
            and any(hit.startswith("pread") and "EIO" in hit for hit in FAULTS.hits)
        ):
            raise Broken(f"a call that failed was taken for damage: {error}")
        if not error.message or "[Errno" in error.message or "None" in error.message:
            raise Broken(f"an error that says nothing: {error.message!r}")


def in_child(work: Callable[[], None]) -> None:
    """Runs work in a process that then ends without closing anything."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the process that makes a store failed"
