"""Looks for what this handle was told, when another PostgreSQL server may answer than before.

A standby that replicates asynchronously and is promoted lacks the newest commits, and so does an
older copy of the data that somebody put in place. Three things raise a doubt:

- a new connection meets another server process than the one before (a promoted standby is one, and
  so is whatever was started on restored files). It is told by its start, and by its system;
- a receipt's position is more than 2^30 transactions ahead: the store's `base` has moved, as it
  does behind a promotion. Through a pooler that is how a promotion shows;
- a commit is refused because of a head that is behind what this handle was told.

The next call, whichever it is, begins by looking; what is gone is raised by it and by every call
behind it. A doubt is never raised out of a commit that has its receipt: that one is durable.

With a durability below `full`, a crash of the server may take the newest commits though the same
server process answers. There every new connection is a doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.postgresql.lines import Line, Row
from holdfast.backends.postgresql.place import Place
from holdfast.backends.postgresql.schema import in_schema
from holdfast.backends.protocol import Commit, Receipt, Refusal
from holdfast.backends.witness import Tail, Witness

_SERVER = """SELECT pg_postmaster_start_time()::text,
 (SELECT system_identifier FROM pg_control_system())"""
_IS_THERE = """SELECT EXISTS (SELECT 1 FROM holdfast.events
  WHERE application = %(application)s AND position = %(position)s)
 OR EXISTS (SELECT 1 FROM holdfast.silent
  WHERE application = %(application)s AND position = %(position)s)"""
_GONE = """SELECT asked.stream, asked.revision
 FROM unnest(%(streams)s::text[], %(revisions)s::bigint[], %(links)s::bytea[])
  AS asked (stream, revision, link)
 LEFT JOIN holdfast.events e ON e.application = %(application)s
  AND e.stream = asked.stream AND e.revision = asked.revision
 WHERE e.link IS NULL OR e.link <> asked.link LIMIT 1"""
_PAGE = 1000
_FAR = (1 << 30) * 4096


class PostgresqlWitness(Witness):
    """Doubts are counted, so that one which comes while another is settled is not passed over."""

    def __init__(self, place: Place, *, is_full: bool) -> None:
        super().__init__(place.shown)
        self._place = place
        self._is_full = is_full
        self._server: Row | None = None
        self._doubts = 0
        self._settled = 0

    def meet(self, line: Line) -> None:
        """Asks a new line's server who it is."""
        [server] = line.ask(_SERVER)
        if self._server is not None and (server != self._server or not self._is_full):
            self._doubts += 1
        self._server = line.process = server

    def weigh(
        self, commits: Sequence[Commit], outcomes: Sequence[Receipt | Refusal], server: Row | None
    ) -> None:
        """Remembers what a server acknowledged, and whether it fits what was told before."""
        position = self._position
        for outcome in outcomes:
            if isinstance(outcome, Receipt):
                self._doubts += bool(position) and outcome.position > position + _FAR
            elif outcome.reason == "conflict" and (told := self._tails.get(outcome.stream)):
                self._doubts += outcome.head is None or outcome.head.revision < told[0]
        self.note(commits, outcomes)
        # Another thread met a new one meanwhile, and looked there before this was remembered.
        self._doubts += server != self._server

    def look(self, line: Line) -> None:
        """Raises LostCommitsError if there is a doubt and something acknowledged is not there."""
        doubts = self._doubts
        if doubts == self._settled or line.process != self._server:
            return  # a line to the server before: what is there settles nothing
        position, tails = self.told()
        for start in range(0, len(tails), _PAGE):
            self._check_page(line, tails[start : start + _PAGE])
        if position and not self._ask(line, _IS_THERE, position=position)[0][0]:
            raise self.lost(f"the commit at position {position}")
        self._settled = doubts

    def _check_page(self, line: Line, page: list[Tail]) -> None:
        gone = self._ask(
            line,
            _GONE,
            streams=[stream for stream, _ in page],
            revisions=[revision for _, (revision, _) in page],
            links=[link for _, (_, link) in page],
        )
        for stream, revision in gone:
            raise self.lost(f'event {revision} of "{stream}"', stream, revision)

    def _ask(self, line: Line, statement: str, **values: object) -> list[Row]:
        text = in_schema(statement, self._place.schema)
        return line.ask(text, {"application": self._place.application, **values})
