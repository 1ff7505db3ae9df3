"""Commits of a run that are on their way, and who must wait for them to land.

A commit takes along whatever was recorded, by whichever branch. So a branch that finds its intent
gone from the buffer knows that it is on its way, not that it is durable: it waits here before it
acts, as the one that took the intent along waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition

from holdfast.batch import Request


class Flight:
    """One commit on its way."""

    def __init__(self, number: int, land: Callable[[Flight, BaseException | None], None]) -> None:
        self.number = number
        self._land = land

    def land(self, error: BaseException | None = None) -> None:
        """Says that the commit was answered, and how."""
        self._land(self, error)


class Flights:
    """The commits of one run that are not answered yet."""

    def __init__(self, lost: Callable[[BaseException], object]) -> None:
        self._lost = lost
        self._launched = 0
        self._aloft: set[int] = set()
        self._landing = Condition()

    def launch(self) -> Flight:
        """Counts a commit that is about to be handed on."""
        with self._landing:
            self._launched += 1
            self._aloft.add(self._launched)
            return Flight(self._launched, self._landed)

    @property
    def are_aloft(self) -> bool:
        """Whether something is on its way."""
        return bool(self._aloft)

    def wait(self) -> None:
        """Waits until everything launched so far has landed."""
        with self._landing:
            newest = self._launched
            self._landing.wait_for(lambda: all(number > newest for number in self._aloft))

    def _landed(self, flight: Flight, error: BaseException | None) -> None:
        # The loss is known before anybody who waits goes on.
        if error is not None:
            self._lost(error)
        with self._landing:
            self._aloft.discard(flight.number)
            self._landing.notify_all()


def land_all(answered: Sequence[Request]) -> None:
    """The waker of commits that were put in line with their flight as context."""
    for request in answered:
        request.context.land(request.error)
