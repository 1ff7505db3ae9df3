"""Where the log sends what it writes: to one backend, or to one of several by a stream's level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import cast

from holdfast.arguments import check_whole
from holdfast.backends.protocol import Backend, Mark, Objects, Position, Routing
from holdfast.wanted import Laid, Wanted


class Routes:
    """What the log must know of a backend that is made of several; of any other, nothing."""

    def __init__(self, backend: Backend) -> None:
        self._objects = backend.objects
        self._routing = cast("Routing | None", getattr(backend, "routing", None))

    def objects_of(self, stream: str) -> Objects:
        """Returns where the blobs and snapshots of a stream are kept."""
        return self._objects if self._routing is None else self._routing.objects_of(stream)

    def check(self, wanted: Wanted) -> None:
        """Raises UsageError if no single backend keeps all that a commit names (guarantee 2).

        Asked before the commit is put in line, so that it is refused alone.
        """
        if self._routing is not None:
            streams = [part.stream for part in wanted.parts]
            streams += [part.origin[0] for part in wanted.parts if part.origin is not None]
            streams += [stream for stream, _ in wanted.reads]
            self._routing.place_of_all(streams, wanted.fence and wanted.fence.name)

    def runs(self, laid: list[Laid]) -> list[list[Laid]]:
        """Returns a batch cut where the backend changes: one that fails must not fail the rest."""
        routing = self._routing
        if routing is None:
            return [laid]

        def place(one: Laid) -> int | None:
            appends: Sequence[str] = [append.stream for append in one.commit.appends[:1]]
            return routing.place_of_all(appends, None)

        return [list(run) for _, run in groupby(laid, place)]

    def place_of(self, name: str) -> int:
        """Returns which of `parts` keeps a stream, or what is named like one; 0 of one."""
        return 0 if self._routing is None else self._routing.place_of_all([name], None) or 0

    def place_of_mark(self, mark: Mark) -> int:
        """Returns which of `parts` a mark belongs to whose commit is not known, as in a copy.

        The layers put a scope's name into its group or key, or the level into its index
        (`run.due`); what says nothing is kept with the rest.
        """
        rest = self.place_of("*")
        names = (mark.group, mark.key, mark.index.replace(".", "/"))
        places = [self.place_of(name) for name in names if name]
        return next((place for place in places if place != rest), rest)

    def position(self, after: object) -> Position:
        """Returns a position that a caller gave, or raises UsageError."""
        if self._routing is None:
            return Position(check_whole(after, "after"))
        return self._routing.position(after)

    def parts(self) -> list[Backend]:
        """Returns the backends that the store is made of; none if it is one itself."""
        return [] if self._routing is None else list(self._routing.parts)
