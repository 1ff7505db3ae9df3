"""What this handle was told is durable, to be looked for when another server process answers.

Replication is asynchronous: a replica that takes over may not have the newest commits, nor a server
that comes back with `appendfsync everysec` or from an older file. Their loss must not pass for a
conflict, or for nothing at all. So the newest position and the newest events of up to 10,000
streams are remembered, and must be there again.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from holdfast.backends.protocol import Commit, Receipt, Refusal
from holdfast.backends.redis.entries import decode, decode_head
from holdfast.backends.redis.gate import Gate
from holdfast.backends.redis.lines import Line
from holdfast.errors import LostCommitsError

STREAMS_MAX = 10_000
_PAGE = 500


class Witness:
    """The newest acknowledged event of each stream, and the newest position."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._position = 0
        self._tails: dict[str, tuple[int, bytes]] = {}
        self._lock = Lock()

    def note(self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal]) -> None:
        """Remembers what was acknowledged."""
        with self._lock:
            for commit, outcome in zip(commits, outcomes, strict=True):
                if isinstance(outcome, Refusal):
                    continue
                self._position = max(self._position, outcome.position)
                for append in commit.appends:
                    last = append.records[-1]
                    known = self._tails.pop(append.stream, None)
                    # Of two threads the one with the older news may come later.
                    newer = known if known and known[0] > last.revision else None
                    self._tails[append.stream] = newer or (last.revision, last.link)
            while len(self._tails) > STREAMS_MAX:
                del self._tails[next(iter(self._tails))]

    def check(self, line: Line) -> None:
        """Raises LostCommitsError if something that was acknowledged is not there."""
        with self._lock:
            position, tails = self._position, list(self._tails.items())
        if not position:
            return
        keys = self._gate.keys
        store, newest = line.ask(("HMGET", keys.root, "store", "position"))[0]
        if store != self._gate.store.encode():
            raise self._lost("the whole store")
        for start in range(0, len(tails), _PAGE):
            self._check_page(line, tails[start : start + _PAGE])
        if int(newest) < position:
            raise self._lost(f"everything behind position {int(newest)} of {position}")

    def _check_page(self, line: Line, page: list[tuple[str, tuple[int, bytes]]]) -> None:
        keys, where = self._gate.keys, self._gate.place.shown
        [texts] = line.ask(("HMGET", keys.heads, *(stream for stream, _ in page)))
        for (stream, (revision, link)), text in zip(page, texts, strict=True):
            head = decode_head(stream, text, where)
            if head is not None and head.revision > revision:
                id = f"{revision}-0"
                [found] = line.ask(("XRANGE", keys.events(stream), id, id))
                held = bool(found) and decode(stream, found[0], where).link == link
            else:
                held = head is not None and (head.revision, head.link) == (revision, link)
            if not held:
                raise self._lost(f'event {revision} of "{stream}"', stream, revision)

    def _lost(
        self, what: str, stream: str | None = None, revision: int | None = None
    ) -> LostCommitsError:
        where = self._gate.place.shown
        return LostCommitsError(
            f"{what} was acknowledged and is gone: another server process answers ({where})",
            where=where,
            stream=stream,
            revision=revision,
            hint="a failover or restart lost it; open the store again to go on from what is there",
        )
