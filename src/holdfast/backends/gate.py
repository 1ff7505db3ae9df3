"""What the parts of a store on a server share: its lines, whether it may write, who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition
from typing import Generic, TypeVar

from holdfast.backends.judge import check_shape
from holdfast.backends.lines import L, Lines
from holdfast.backends.protocol import Commit, Receipt, Refusal
from holdfast.errors import HoldfastError, UnavailableError, UsageError

T = TypeVar("T")


class WritingGate(Generic[L]):
    """Every write goes through here."""

    def __init__(self, lines: Lines[L], *, read_only: bool) -> None:
        self._lines = lines
        self._read_only = read_only
        self.changed = Condition()
        self.stirred = 0

    def call(self, work: Callable[[L], T], *, repeatable: bool = True) -> T:
        """Returns what `work` returns, given a line to write on."""
        self._lines.check_open()
        if self._read_only:
            raise UsageError(
                "store is open read-only, found a write", hint="open it without read_only"
            )
        return self._lines.call(work, repeatable=repeatable, writes=True)

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit."""
        with self.changed:
            self.stirred += 1
            self.changed.notify_all()

    def close(self) -> None:
        if self._lines.close():
            self.wake()


def cut(commits: Sequence[Commit], *, most: int, bytes_max: int) -> Iterator[list[Commit]]:
    """Yields a list of commits, each checked for its shape, in parts that one call may take."""
    part: list[Commit] = []
    size = 0
    for commit in commits:
        check_shape(commit)
        bytes_ = sum(len(record.payload) for append in commit.appends for record in append.records)
        if part and (len(part) >= most or size + bytes_ > bytes_max):
            yield part
            part, size = [], 0
        part.append(commit)
        size += bytes_
    if part:
        yield part


def in_parts(
    parts: Iterable[T], write: Callable[[T], list[Receipt | Refusal]]
) -> list[Receipt | Refusal]:
    """Returns the outcomes of a list of commits that is written part by part, in its order.

    Behind the first part nothing can be said to the whole list but that its outcome is unknown:
    who was told that nothing was written would write what is there a second time.
    """
    outcomes: list[Receipt | Refusal] = []
    for part in parts:
        try:
            outcomes += write(part)
        except HoldfastError as error:
            if not outcomes:
                raise
            raise UnavailableError(
                f"{error.message}; earlier commits of the same list were written",
                outcome_known=False,
                hint=error.hint,
            ) from error
    return outcomes
