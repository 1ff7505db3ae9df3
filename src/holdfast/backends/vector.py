"""Positions of a store that is kept in several backends: one number for a vector of them.

Each backend counts for itself, so a place in the whole store is one position per backend. The
numbers are written one behind the other into a single int, which can be stored, printed and given
back like any position. Two of them are compared number by number: `a <= b` says that whatever was
visible at `a` is visible at `b`; of two places neither need be the later one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from threading import Condition, Thread
from time import monotonic

from holdfast.backends.protocol import START, Backend, Moment, Position
from holdfast.errors import UsageError, show_value

_BITS = 64
_MASK = (1 << _BITS) - 1
_NUMBER_MAX = (1 << 63) - 1
_TAG_BITS = 16
_GLANCE_S = 1.0


class Vector(int):
    """A position that knows its numbers, one per backend."""

    numbers: tuple[int, ...]

    def __le__(self, other: int) -> bool:
        return all(a <= b for a, b in zip(self.numbers, self._of(other), strict=True))

    def __ge__(self, other: int) -> bool:
        return all(a >= b for a, b in zip(self.numbers, self._of(other), strict=True))

    def __lt__(self, other: int) -> bool:
        return self <= other and self.numbers != self._of(other)

    def __gt__(self, other: int) -> bool:
        return self >= other and self.numbers != self._of(other)

    def _of(self, other: int) -> tuple[int, ...]:
        return other.numbers if isinstance(other, Vector) else split(other, len(self.numbers))


def split(number: int, width: int) -> tuple[int, ...]:
    """Returns the numbers that an int holds, the first in its lowest bits."""
    return tuple(number >> _BITS * at & _MASK for at in range(width))


class Moments(Moment, frozen=True):
    """What was visible in each of several backends."""

    parts: tuple[Moment, ...]

    def has(self, position: Position) -> bool:
        numbers = split(position, len(self.parts))
        return all(
            not number or part.has(Position(number))
            for number, part in zip(numbers, self.parts, strict=True)
        )


class Vectors:
    """Makes and reads the positions of one mix of backends.

    `shape` says which levels are kept together. A digest of it stands in front of the numbers: a
    position of another mix would be read as other numbers, and a follower would pass events over
    in silence; it is refused instead.
    """

    def __init__(self, width: int, shape: str) -> None:
        self._width = width
        self._tag = (zlib.crc32(shape.encode()) & (1 << _TAG_BITS) - 1 | 1) << _BITS * width

    def join(self, numbers: Sequence[int]) -> Position:
        """Returns the position with these numbers."""
        number = 0
        for at, one in enumerate(numbers):
            number |= one << _BITS * at
        vector = Vector(number | self._tag if number else START)
        vector.numbers = tuple(numbers)
        return Position(vector)

    def only(self, at: int, number: int) -> Position:
        """Returns the place of a record in its own backend, without regard to the others."""
        return self.join([number if each == at else 0 for each in range(self._width)])

    def moment(self, parts: Sequence[Moment]) -> Moment:
        """Returns what is visible at moments of all the backends together."""
        return Moments(self.join([part.position for part in parts]), tuple(parts))

    def split(self, position: object) -> tuple[int, ...]:
        """Returns the numbers of a position that this mix gave, or raises UsageError."""
        if isinstance(position, Vector) and len(position.numbers) == self._width:
            return position.numbers
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise UsageError(f"a position is a whole number, found {show_value(position)}")
        numbers = split(position, self._width)
        tag = position >> _BITS * self._width << _BITS * self._width
        if (position and tag != self._tag) or max(numbers) > _NUMBER_MAX:
            raise UsageError(
                f"{show_value(position)} is not a position of this store: it was given by another "
                "one, or before its levels were routed as they are now",
                hint="follow from position 0, and skip what is known already",
            )
        return numbers


class Watch:
    """Waits for several backends at once, each watched by a thread while anybody waits.

    A backend's `wait` cannot be interrupted, so whoever waits does not call it but is told by the
    threads; they look up every second whether they are still needed, and end if not.
    """

    def __init__(self, parts: Sequence[Backend]) -> None:
        self._parts = parts
        self._changed = Condition()
        self._seen = [0] * len(parts)
        self._watched = [False] * len(parts)
        self._waiting = 0
        self._error: Exception | None = None

    def now(self) -> list[int]:
        """Returns the newest position of each backend."""
        return [part.wait(START, timeout_s=0) for part in self._parts]

    def wait(self, after: Sequence[int], timeout_s: float) -> list[int]:
        """Returns the newest positions, as soon as one is behind `after` or the time is up."""
        deadline = monotonic() + timeout_s
        newest = self.now()
        while not _is_behind(newest, after) and (left_s := deadline - monotonic()) > 0:
            with self._changed:
                self._note(newest)
                self._waiting += 1
                self._error = None
                self._start()
                self._changed.wait_for(
                    lambda: self._error is not None or _is_behind(self._seen, after), left_s
                )
                self._waiting -= 1
                if self._error is not None:
                    raise self._error
            newest = self.now()
        # A backend may have begun anew, in memory or behind a loss, and be before where the caller
        # is. Told as it is, the place would be neither behind the caller's nor at it: who compares
        # the two would ask again, at once and for ever.
        return [max(pair) for pair in zip(newest, after, strict=True)]

    def _start(self) -> None:
        for at in range(len(self._parts)):
            if not self._watched[at]:
                self._watched[at] = True
                name = f"holdfast-watch-{at}"
                Thread(target=self._watch, args=(at,), name=name, daemon=True).start()

    def _watch(self, at: int) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._error is not None:
                    self._watched[at] = False
                    return
                seen = self._seen[at]
            try:
                newest = self._parts[at].wait(Position(seen), timeout_s=_GLANCE_S)
            except Exception as error:  # whatever it is: who waits must be told
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                continue
            with self._changed:
                if newest > seen:
                    self._seen[at] = max(self._seen[at], newest)
                    self._changed.notify_all()

    def _note(self, newest: Sequence[int]) -> None:
        self._seen = [max(pair) for pair in zip(self._seen, newest, strict=True)]


def _is_behind(newest: Sequence[int], after: Sequence[int]) -> bool:
    return any(a > b for a, b in zip(newest, after, strict=True))
