"""Writers that go on while their server is killed, and what must be there afterwards (T2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.backends.protocol import Backend, Receipt
from holdfast.testing import RecordBuilder
from holdfast.testing.durable import check_links
from holdfast.testing.trial import PATIENCE_S


class Restarted(Protocol):
    """A server that a test may take down, in one way or another, and start again."""

    def start(self) -> None: ...


class Writer(threading.Thread):
    """Commits one number after another to a stream, and remembers what was acknowledged."""

    def __init__(self, backend: Backend, stream: str) -> None:
        super().__init__(daemon=True)
        self._backend = backend
        self._stream = stream
        self._done = threading.Event()
        self._news = threading.Condition()
        self.told = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        build = RecordBuilder(actor=self._stream)
        head = None
        try:
            while not self._done.is_set():
                append = build.append(self._stream, b"%d" % (self.told + 1), behind=head)
                [outcome] = self._backend.commit([build.commit(append)])
                assert isinstance(outcome, Receipt), f"alone on its stream, yet {outcome}"
                head = append.records[-1]
                with self._news:
                    self.told += 1
                    self._news.notify_all()
        except BaseException as exc:
            self.error = exc
        with self._news:
            self._news.notify_all()

    def wait_until(self, told: int) -> None:
        with self._news:
            assert self._news.wait_for(
                lambda: self.told >= told or self.error is not None, PATIENCE_S
            ), f"stuck at {self.told}"
        assert self.error is None, f"failed: {self.error!r}"

    def finish(self) -> None:
        self._done.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "hangs"
        assert self.error is None, f"failed: {self.error!r}"


def live_through(
    open_it: Callable[[], Backend], server: Restarted, how: str, *, turns: int
) -> None:
    """Takes the server down so often under four writers; nothing is lost, and nothing doubled."""
    backend = open_it()
    writers = [Writer(backend, f"s{n}") for n in range(4)]
    for writer in writers:
        writer.start()
    for turn in range(1, turns + 1):
        for writer in writers:
            writer.wait_until(turn * 10)
        getattr(server, how)()
        server.start()
    for writer in writers:
        writer.wait_until(writer.told + 3)
        writer.finish()
    again = open_it()
    for n, writer in enumerate(writers):
        records = again.read(f"s{n}")
        assert [int(record.payload) for record in records] == list(range(1, writer.told + 1))
        check_links(records)
    positions = [record.position for record in again.read_all(limit=10_000)]
    assert positions == sorted(positions)
    assert list(again.inspect.verify(read_all=True)) == []
    backend.close()
    again.close()
