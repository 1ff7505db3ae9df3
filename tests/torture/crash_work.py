"""What is done to a store while its calls are recorded: operations of every kind, in miniature."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import apsw

import holdfast
from holdfast import Settings, Store
from holdfast.backends.files import FilesBackend, catalog, journal, opening
from holdfast.backends.files import journal as ring
from holdfast.backends.sqlite import connection as wal
from holdfast.backends.sqlite import opening as sqlite_opening
from holdfast.core import blobs, log, snapshot
from holdfast.testing import FakeClock
from tests.crash.verdict import Said
from tests.torture import crash_trace, crash_vfs
from tests.torture.crash_trace import CrashDisk, Trace

A, B, G = "conversation/a", "conversation/b", "global"
TODO = "todo"
CREATION = "creation"
BULK_BYTES = 2600
BLOB_BYTES = 5000


def make_tiny() -> None:
    """Changes the sizes for this process: a few operations turn everything over."""
    ring.RING_BYTES = ring.PIECE_BYTES = 16 << 10  # one write, so that it counts as one call
    journal.SEGMENT_BYTES = 12 << 10
    catalog.FLUSH_BYTES = 8 << 10
    opening.WORTH_INDEXING_BYTES = 1 << 10
    sqlite_opening.WAL_PAGES = 8
    setattr(wal, "_BEGIN_BYTES", 32 << 10)  # noqa: B010
    setattr(wal, "_AHEAD", bytes(48 << 10))  # noqa: B010
    blobs.BLOB_BYTES_MIN = log.BLOB_BYTES_MIN = 4096
    snapshot.GROWTH_BYTES_MIN = 4 << 10
    snapshot.CLOSE_BYTES_MIN = 1 << 10


def place_of(backend: str, place: Path) -> Path:
    # A database is made in a directory that is there, a store on files makes those on its way.
    return place / ("store.db" if backend == "sqlite" else "some/where/store")


def open_at(backend: str, place: Path, clock: FakeClock) -> Store:
    """Opens the store below a directory, making it if it is not there."""
    if backend == "sqlite":
        return holdfast.open(
            f"sqlite:{place_of(backend, place)}", actor="w", settings=Settings(clock=clock)
        )
    return holdfast.open(
        place_of(backend, place),
        actor="w",
        settings=Settings(clock=clock, options={"disk": CrashDisk()}),
    )


class Work:
    """A store under work: says to the trace what it begins and what was answered."""

    def __init__(
        self,
        backend: str,
        trace: Trace,
        clock: FakeClock,
        *,
        said: Said,
        who: str,
        is_prepared: bool = False,
    ) -> None:
        """Prepared, the directory was made before, and not synced: its maker was killed."""
        self.backend = backend
        self.clock = clock
        self.said = said
        self.epochs: dict[str, int] = {}
        """Of leases, by the operation that was granted one."""
        self.last_began = 0
        self._is_prepared = is_prepared and backend == "files"
        self._who = who
        self._trace = trace
        self._store: Store | None = None
        self._count = 0
        self._chance = random.Random(who)

    def run(self, sequence: str) -> None:
        """Makes the store, then runs one operation for each letter."""
        with ExitStack() as stack:
            stack.callback(self.abandon)
            stack.enter_context(crash_trace.recording(self._trace))
            stack.enter_context(crash_vfs.recording(self._trace))
            if self._is_prepared:
                place_of(self.backend, Path(self._trace.place)).mkdir(0o700, parents=True)
            self._trace.begun(CREATION)
            self._open()
            self._trace.done(CREATION)
            for letter in sequence:
                self.last_began = len(self._trace.events)
                self.clock.advance(0.01)
                OPERATIONS[letter](self)

    @property
    def store(self) -> Store:
        if self._store is None:
            self._open()
        return cast(Store, self._store)

    def _open(self) -> None:
        self._store = open_at(self.backend, Path(self._trace.place), self.clock)

    def _begin(self, *streams: str, key: bool = False, mark: bool = False) -> str:
        self._count += 1
        id = f"op:{self._who}.{self._count}"
        line = {"begun": id, "streams": streams, "thread": self._who, "key": key, "mark": mark}
        self.said.take([line])
        self._trace.begun(id)
        return id

    # --- operations ------------------------------------------------------------------------------

    def small(self) -> None:
        """One event."""
        id = self._begin(A)
        self.store.scope(A).append("log", id)
        self._trace.done(id)

    def two(self) -> None:
        """One commit over two streams, with a mark."""
        id = self._begin(A, B, mark=True)
        store = self.store
        with store.commit() as tx:
            tx.scope(store.scope(A)).append("log", id)
            tx.scope(store.scope(B)).append("log", id)
            tx.mark(TODO, id)
        self._trace.done(id)

    def keyed(self) -> None:
        """One event with an idempotency key."""
        id = self._begin(B, key=True)
        self.store.scope(B).append("log", id, key=id)
        self._trace.done(id)

    def checkpoint(self) -> None:
        """A name for a state."""
        id = self._begin(A)
        self.store.scope(A).checkpoint(id)
        self._trace.done(id)

    def fork(self) -> None:
        """A fork of a stream, which gets an event first if it has none."""
        parent = self.store.scope(A)
        if not parent.revision:
            self.small()
        id = self._begin(f"conversation/fork op:{self._who}.{self._count + 1}")
        parent.fork(f"fork {id}", at=parent.revision)
        self._trace.done(id)

    def bulk(self) -> None:
        """An event that makes a snapshot due, the second time at the latest."""
        id = self._begin(G)
        self.store.scope(G).set("bulk", id + " " + "x" * BULK_BYTES)
        self._trace.done(id)

    def burst(self) -> None:
        """Events enough to turn over the ring, a segment, the index or the WAL."""
        for _ in range(4):
            self.bulk()

    def large(self) -> None:
        """One commit of several events that is larger than half the ring."""
        id = self._begin(B)
        pieces = {f"large{n}": "z" * BULK_BYTES for n in range(4)}
        self.store.scope(B).update(pieces, checkpoint=id)
        self._trace.done(id)

    def blob(self) -> None:
        """A value that is kept beside the log."""
        id = self._begin(A)
        value = self._chance.randbytes(BLOB_BYTES // 2).hex()
        self.store.scope(A).set("blob", value, checkpoint=id)
        self._trace.done(id)

    def claim(self) -> None:
        """A mark that is set, claimed and left so."""
        id = self._begin(A, mark=True)
        with self.store.commit() as tx:
            tx.scope(self.store.scope(A)).append("log", id)
            tx.mark(TODO, id)
        self._trace.done(id)
        self.store.workers.claim(TODO, n=2)

    def lease(self) -> None:
        """A lease, and a commit under it."""
        lease = self.store.workers.lease("turn")
        id = self._begin(B)
        self.epochs[id] = lease.epoch
        with self.store.commit(lease=lease) as tx:
            tx.scope(self.store.scope(B)).append("log", id)
        self._trace.done(id)

    def close(self) -> None:
        """A clean close; what follows opens the store again."""
        self.store.close()
        self._store = None
        self._trace.done("close")

    def abandon(self) -> None:
        """What SIGKILL does to a process: its descriptors and locks go, nothing is tidied up."""
        if self._store is None:
            return
        backend: Any = self._store._log._backend
        self._store = None
        if isinstance(backend, FilesBackend):
            backend.mark_closed()
            assert isinstance(backend.opened, opening.Opened)
            backend.opened.release()
            backend.directory.close()
            leases: Any = backend.leases
            workers = leases._workers
        else:
            workers = backend._workers
            checkout: Any = backend._checkout
            checkout.mark_closed()
            for part in (checkout.reader, checkout._writer):
                part.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                part.connection.close()
            checkout._writer._wal.close()
        workers.after_fork()

    def kill(self) -> None:
        """The end of the process; what follows opens the store again."""
        if self._store is None:
            self._open()
        self.abandon()
        self._trace.done("kill")


OPERATIONS: dict[str, Callable[[Work], None]] = {
    "s": Work.small,
    "t": Work.two,
    "i": Work.keyed,
    "c": Work.checkpoint,
    "f": Work.fork,
    "g": Work.bulk,
    "u": Work.burst,
    "l": Work.large,
    "b": Work.blob,
    "m": Work.claim,
    "e": Work.lease,
    "x": Work.close,
    "k": Work.kill,
}
