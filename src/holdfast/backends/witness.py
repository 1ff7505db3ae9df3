"""What a handle was told is durable, to be looked for when another server answers.

A standby or replica that takes over may not have the newest commits, nor a server that comes back
from an older disk. Their loss must not pass for a conflict, or for nothing at all. So the newest
position and the newest events of up to 10,000 streams are remembered, and must be there again.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from holdfast.backends.protocol import Commit, Receipt, Refusal
from holdfast.errors import LostCommitsError

STREAMS_MAX = 10_000

Tail = tuple[str, tuple[int, bytes | None]]
"""A stream, and the revision and link of the newest event that was acknowledged there.

The link is None if the event was told of only as the one that has a commit's key already.
"""


class Witness:
    """The newest acknowledged event of each stream, and the newest position."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._position = 0
        self._tails: dict[str, tuple[int, bytes | None]] = {}
        self._lock = Lock()

    def note(self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal]) -> None:
        """Remembers what was acknowledged."""
        with self._lock:
            for commit, outcome in zip(commits, outcomes, strict=True):
                if isinstance(outcome, Refusal):
                    # Done before, says the server: to the caller that is an acknowledgement.
                    if outcome.reason == "duplicate" and outcome.revision:
                        self._remember(outcome.stream, outcome.revision, None)
                    continue
                self._position = max(self._position, outcome.position)
                for append in commit.appends:
                    last = append.records[-1]
                    self._remember(append.stream, last.revision, last.link)
            while len(self._tails) > STREAMS_MAX:
                del self._tails[next(iter(self._tails))]

    def _remember(self, stream: str, revision: int, link: bytes | None) -> None:
        known = self._tails.pop(stream, None)
        # Of two threads the one with the older news may come later.
        is_newer = known is None or revision + (link is not None) > known[0]
        self._tails[stream] = known if known is not None and not is_newer else (revision, link)

    def told(self) -> tuple[int, list[Tail]]:
        """Returns the newest position, 0 if there is none, and the newest events."""
        with self._lock:
            return self._position, list(self._tails.items())

    def lost(
        self, what: str, stream: str | None = None, revision: int | None = None
    ) -> LostCommitsError:
        """Returns the error that says what is gone."""
        return LostCommitsError(
            f"{what} was acknowledged and is gone: another server process answers ({self._where})",
            where=self._where,
            stream=stream,
            revision=revision,
            hint="a failover or restart lost it; open the store again to go on from what is there",
        )
