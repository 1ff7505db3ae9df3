"""Following one scope: what changed since the last look, event by event."""

from __future__ import annotations

from holdfast import tree
from holdfast.backends.protocol import START, Position
from holdfast.event import Change
from holdfast.fold import fold, ops_of
from holdfast.log import READ_CHUNK, Log

LOOK_S = 30.0
"""How long a follower of one scope waits for the store's position at most before it looks again.

A scope may have news that the position of the store does not tell of yet: on PostgreSQL it stands
still for as long as anybody's transaction is open, and readers of a stream need not wait for that.
"""


class Follower:
    """A place in a scope's stream that moves forward. It never waits: that is its caller's part."""

    def __init__(self, log: Log, name: str, after: int | None) -> None:
        self._log = log
        self._name = name
        self._before = log.newest(name) if after is None else log.at(name, after)
        self.position: Position = START  # where the store was when there was nothing more to read

    def news(self) -> list[Change] | None:
        """Returns the changes of the next events; None if there are none to read.

        An event may have no change, so an empty list does not mean that the end was reached.
        """
        position = self._log.position()
        records = self._log.records(self._name, after=self._before.revision, limit=READ_CHUNK)
        if not records:
            self._log.lifetimes.check(self._name, self._before.expires_us)
            self.position = position
            return None
        changes: list[Change] = []
        for record in records:
            behind = fold(self._before, [record], self._log.blobs.read)
            for change in tree.touched(ops_of(record), self._before.root, behind.root):
                changes.append(
                    Change(self._name, record.revision, change.path, change.old, change.new)
                )
            self._before = behind
        return changes
