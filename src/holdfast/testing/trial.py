"""The base of every contract class: a backend in an empty place, a clock, and raw reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.backends.protocol import (
    Backend,
    Cleared,
    Commit,
    Head,
    Mark,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder

PATIENCE_S = 60.0
"""How long a test waits for another thread or process before it fails."""

HOSTILE_NAMES = (
    *("%", "%%", "_", "__", "*", "?", "[a-z]", "a%", "a_", "a*", "ab", "a", "A", "a b", " a", "a "),
    *("'", '"', "`", "\\", "'; DROP TABLE records; --", '","x":["', "{}", "$1", ":name", "?1", "-"),
    *("/", ".", "..", "../../etc/passwd", "/etc/passwd", "a/../b", "a/b", "a/b/c", "~", "NUL"),
    *("é", "e\u0301", "ß", "SS", "日本", "\u200b", "\uffee", "\U0001f600", "a\U0010ffff", "null"),
    *("n" * 512, "n" * 511, "é" * 256, "a\x100000b", "\x10000a", f"{'n' * 446}\x10#{'0' * 64}"),
)
"""Names that would do harm if a backend took them for a path, a pattern or a statement.

They keep the rule for names: at most 512 bytes, and no control character but U+0010, which begins
an escape. Some differ only in case, in Unicode form or in trailing spaces. One sorts after others
by code point, and before them by UTF-16 unit.
"""


class Trial(ABC):
    """What the test of a backend supplies: how to open it, and how to read its stored bytes."""

    @abstractmethod
    def make(self, place: Path, clock: Clock) -> Backend:
        """Returns a backend opened in `place`, a directory of the test that is empty at first.

        A second call opens a durable backend again.
        """

    @abstractmethod
    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        """Returns the stored records of a stream, in order, without any method of the backend.

        So `commit` is not checked only by `read`, which could have the matching bug.
        """

    def pass_time(self, clock: FakeClock, seconds: float) -> None:
        """Lets time pass for the clock that decides about leases and due marks.

        The test of a backend that uses a server's clock overrides this, and `now_us`, too.
        """
        clock.advance(seconds)

    def now_us(self, clock: FakeClock) -> int:
        """Returns the wall time by which marks are due."""
        return clock.now_us()

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """The directory that the backend is opened in."""
        place = tmp_path / "place"
        place.mkdir()
        return place

    @pytest.fixture
    def backend(self, place: Path, clock: FakeClock) -> Iterator[Backend]:
        backend = self.make(place, clock)
        yield backend
        backend.close()

    @pytest.fixture
    def build(self) -> RecordBuilder:
        return RecordBuilder()


def write(
    backend: Backend,
    build: RecordBuilder,
    stream: str,
    *payloads: bytes,
    key: str | None = None,
    checkpoint: str | None = None,
    marks: Sequence[Mark | Cleared] = (),
) -> Receipt:
    """Commits behind the stream's head, and expects a receipt."""
    append = build.append(
        stream, *payloads, behind=backend.heads([stream])[0], key=key, checkpoint=checkpoint
    )
    return accepted(backend, build.commit(append, marks=marks))


def accepted(backend: Backend, commit: Commit) -> Receipt:
    """Commits, and expects a receipt."""
    [outcome] = backend.commit([commit])
    assert isinstance(outcome, Receipt), f"expected a receipt, found {outcome}"
    return outcome


def refused(backend: Backend, commit: Commit) -> Refusal:
    """Commits, and expects a refusal that changed nothing."""
    before = backend.read_all(limit=10_000), backend.marks.list(limit=10_000)
    [outcome] = backend.commit([commit])
    assert isinstance(outcome, Refusal), f"expected a refusal, found {outcome}"
    assert (backend.read_all(limit=10_000), backend.marks.list(limit=10_000)) == before
    return outcome


def head_of(backend: Backend, stream: str) -> Head:
    [head] = backend.heads([stream])
    assert head is not None, f"expected a stream {stream!r}, found none"
    return head


def revisions(records: Sequence[Record]) -> list[int]:
    return [record.revision for record in records]
