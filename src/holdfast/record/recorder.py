"""What the parts of the record need of the scope that they write to."""

from __future__ import annotations

from typing import Protocol

from holdfast.wanted import Part, Proposal


class Recorder(Protocol):
    """A scope with its record, as its parts see it."""

    @property
    def name(self) -> str: ...

    def event_part(self, proposal: Proposal, key: str | None = None) -> Part:
        """Returns what a commit adds to the scope's stream to record an event."""
        ...

    def events_part(
        self,
        proposals: tuple[Proposal, ...],
        *,
        expected: int | None = None,
        key: str | None = None,
    ) -> Part:
        """Returns what a commit adds to the scope's stream to record several events."""
        ...
