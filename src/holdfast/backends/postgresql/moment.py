"""What a transaction of the server would see: its snapshot, remembered without keeping it open.

A position is made of its transaction's id, which is given when a transaction first writes, and
transactions end in another order. So no position says by itself what is visible: below the newest
one that is, others may be under way, for as long as a stranger leaves a transaction open. What the
server calls a snapshot does say it, of every transaction: those below `xmin` have ended, those from
`xmax` on had not begun, and between the two the ones under way are listed. Along one stream the
ids grow with the revisions, and each writer waits for the end of the one before: so of a stream a
snapshot holds the beginning, and of a commit over several all or nothing.
"""

from __future__ import annotations

from holdfast.backends.protocol import Moment, Position

# One statement has one snapshot: the position is the newest that is final in this very one.
MOMENT = """SELECT holdfast.newest(application), base, pg_current_snapshot()::text
 FROM holdfast.stores WHERE application = %(application)s"""

_COMMITS = 4096  # positions of one transaction


class ServerMoment(Moment, frozen=True, gc=False):
    """A snapshot of the server, its transactions numbered as positions number them."""

    xmin: int
    xmax: int
    under_way: frozenset[int]

    def has(self, position: Position) -> bool:
        number = position // _COMMITS
        return number < self.xmin or (number < self.xmax and number not in self.under_way)


def moment_of(newest: int, base: int, snapshot: str) -> ServerMoment:
    """Returns the moment that the server tells as `xmin:xmax:id,id,…`."""
    xmin, xmax, under_way = snapshot.split(":")
    ids = frozenset(base + int(id) for id in under_way.split(",") if id)
    if not ids:
        # Nothing is under way, then both are the same; or this is a standby, which keeps its list
        # where the snapshot's text has none. There the moment ends before the oldest of them.
        xmax = xmin
    return ServerMoment(Position(newest), base + int(xmin), base + int(xmax), ids)
