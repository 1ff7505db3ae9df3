"""The backend itself: a list of commits is one call of a function on the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.backends.follower import Follower
from holdfast.backends.gate import in_parts
from holdfast.backends.postgresql.batch import (
    COMMIT_EACH,
    Batch,
    batches,
    decode_answer,
    decode_answers,
)
from holdfast.backends.postgresql.gate import Gate
from holdfast.backends.postgresql.inspection import PostgresqlInspection
from holdfast.backends.postgresql.leases import PostgresqlLeases
from holdfast.backends.postgresql.lines import Line, Row
from holdfast.backends.postgresql.marks import PostgresqlMarks
from holdfast.backends.postgresql.moment import MOMENT, moment_of
from holdfast.backends.postgresql.objects import PostgresqlObjects
from holdfast.backends.postgresql.opening import open_lines
from holdfast.backends.postgresql.place import place_of
from holdfast.backends.postgresql.rows import (
    BY_CHECKPOINT,
    BY_KEY,
    FIRST,
    HEADS,
    LANDED,
    NEWEST,
    READ,
    READ_ALL,
    REVISION_MAX,
    STREAMS,
    decode,
    decode_head,
    prefix_end,
)
from holdfast.backends.postgresql.schema import in_schema
from holdfast.backends.postgresql.whole import COMMIT_ALL, COMMIT_ONE, one_event, plan
from holdfast.backends.postgresql.witness import PostgresqlWitness
from holdfast.backends.protocol import (
    START,
    Commit,
    Durability,
    Found,
    Head,
    Inspection,
    Leases,
    Marks,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock
from holdfast.errors import CorruptError


class PostgresqlBackend:
    """A store in a PostgreSQL database, for many processes on many machines."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        durability: Durability = "full",
        create: bool = True,
        read_only: bool = False,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        self.durability: Durability = durability
        place = place_of(url)
        lines, server, store = open_lines(
            place,
            clock,
            durability=durability,
            create=create and not read_only,
            read_only=read_only,
        )
        self.place = place
        self._clock = clock
        self._reach = reach
        self._gate = gate = Gate(place, lines, read_only=read_only)
        self._witness = PostgresqlWitness(place, is_full=durability == "full")
        if not read_only:
            lines.meet, lines.look = self._witness.meet, self._witness.look
        self._application = place.application.encode()
        self._commit_one = in_schema(COMMIT_ONE.decode(), place.schema).encode()
        self._commit_all = in_schema(COMMIT_ALL.decode(), place.schema).encode()
        self._commit_each = in_schema(COMMIT_EACH.decode(), place.schema).encode()
        self._follower = Follower(gate, self._newest, lines.check_open)
        self.leases: Leases = PostgresqlLeases(gate)
        self.marks: Marks = PostgresqlMarks(gate)
        self.objects: Objects = PostgresqlObjects(gate)
        self.inspect: Inspection = PostgresqlInspection(gate, server, store, durability)

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        self._gate.lines.check_open()
        outcomes = in_parts(batches(self._gate.application, commits, self._clock), self._write)
        if outcomes:
            self._gate.wake()
        return outcomes

    def _write(self, batch: Batch) -> list[Receipt | Refusal]:
        """Sends a batch until the server has answered, or the time is over.

        A connection that breaks leaves open whether the batch is there. It is settled by sending
        the same batch again: each append names the revision and, by its link, the very event that
        it follows, so of two equal batches one is refused, however late the other comes. What is
        refused the second time may be there from the first; its own link says so.
        """
        attempts = 0
        server: Row | None = None

        def work(line: Line) -> list[Receipt | Refusal]:
            nonlocal attempts, server
            attempts += 1
            server = line.process
            if self._reach is not None:
                self._reach("postgresql.commit")
            if attempts == 1:
                receipts = self._write_all(line, batch)
                if receipts is not None:
                    return receipts
            return self._write_each(line, batch, again=attempts > 1)

        outcomes = self._gate.call(work)
        self._witness.weigh(batch.commits, outcomes, server)
        if self._reach is not None:
            self._reach("postgresql.committed")
        return outcomes

    def _write_all(self, line: Line, batch: Batch) -> list[Receipt | Refusal] | None:
        """Writes a batch if all of it is accepted, in one round trip; else mostly None.

        A batch of one event is refused here already, with the reason.
        """
        event = one_event(batch.commits)
        if event is not None:
            answer = line.answer(self._commit_one, (*self._entrance(batch), *event))
            assert answer is not None, "BUG: the server's function answered nothing"
            if answer.startswith(b"["):
                return [decode_answer(answer, batch.commits[0])]
            return [Receipt(Position(int(answer)))]
        planned = plan(batch.commits, iter(batch.tokens))
        if planned is None:
            return None
        values = (*self._entrance(batch), *planned.values())
        answer = line.answer(self._commit_all, values)
        return None if answer is None else [*planned.receipts(answer)]

    def _write_each(self, line: Line, batch: Batch, *, again: bool) -> list[Receipt | Refusal]:
        """Writes what is accepted of a batch, and learns why the rest is not."""
        answer = line.answer(self._commit_each, (*self._entrance(batch), batch.text()))
        assert answer is not None, "BUG: the server's function answered nothing"
        outcomes = decode_answers(answer, batch.commits)
        return self._settled(line, batch.commits, outcomes) if again else outcomes

    def _entrance(self, batch: Batch) -> tuple[bytes, ...]:
        full = b"t" if self.durability == "full" else b"f"
        return self._application, full, batch.locks, batch.shared

    def _settled(
        self, line: Line, commits: Sequence[Commit], outcomes: list[Receipt | Refusal]
    ) -> list[Receipt | Refusal]:
        settled: list[Receipt | Refusal] = []
        for commit, outcome in zip(commits, outcomes, strict=True):
            if isinstance(outcome, Refusal) and commit.appends:
                outcome = self._landed(line, commit) or outcome
            settled.append(outcome)
        return settled

    def _landed(self, line: Line, commit: Commit) -> Receipt | None:
        """Returns the receipt of a commit whose own events are there."""
        first = commit.appends[0].records[0]
        values = (self._gate.application, first.stream, first.revision, first.link)
        rows = line.ask(in_schema(LANDED, self.place.schema), values)
        if not rows:
            return None
        heads = self._ask_heads(line, commit.watch) if commit.watch else []
        news = [0 if head is None else head.revision for head in heads]
        return Receipt(Position(rows[0][0]), dict(zip(commit.watch, news, strict=True)))

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        last = REVISION_MAX if until is None else min(until, REVISION_MAX)
        rows = self._gate.ask(READ, (self._gate.application, stream, after, last, limit))
        where = self.place.shown
        records = [decode(row, where) for row in rows]
        expected = max(after + 1, rows[0][FIRST] or 1) if rows else 0
        for record in records:
            if record.revision != expected:
                raise CorruptError(
                    f'event {expected} of "{stream}" is missing ({where})',
                    where=where,
                    stream=stream,
                    revision=expected,
                )
            expected += 1
        return records

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        self._gate.lines.check_open()
        if limit <= 0:
            return []
        values = {"application": self._gate.application, "after": after, "limit": limit}
        return [decode(row, self.place.shown) for row in self._gate.ask(READ_ALL, values)]

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self._gate.lines.check_open()
        if not streams:
            return []
        return self._gate.lines.call(lambda line: self._ask_heads(line, streams))

    def _ask_heads(self, line: Line, streams: Sequence[str]) -> list[Head | None]:
        values = {"application": self._gate.application, "streams": list(streams)}
        heads: list[Head | None] = [None] * len(streams)
        for row in line.ask(in_schema(HEADS, self.place.schema), values):
            number: int = row[0] - 1
            heads[number] = decode_head(row, streams[number], self.place.shown)
        return heads

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        values = {"application": self._gate.application, "prefix": prefix, "after": after}
        rows = self._gate.ask(STREAMS, {**values, "end": prefix_end(prefix), "limit": limit})
        return [name for (name,) in rows]

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        values = {"application": self._gate.application, "stream": stream, "limit": limit}
        if key is not None:
            rows = self._gate.ask(BY_KEY, {**values, "key": key})[:limit]
        else:
            rows = self._gate.ask(BY_CHECKPOINT, {**values, "checkpoint": checkpoint})
        return [Found(*row) for row in rows]

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        return self._follower.wait(after, timeout_s)

    def _newest(self) -> int:
        """Returns the newest final position: no transaction still open could add one below it.

        So any open writing transaction of the same server, also a stranger's, holds followers up
        until it ends; readers of streams do not wait for it. `status` shows how far.
        """
        [(newest,)] = self._gate.ask(NEWEST, {"application": self._gate.application})
        return newest

    def moment(self) -> Moment:
        [row] = self._gate.ask(MOMENT, {"application": self._gate.application})
        return moment_of(*row)

    def now_us(self, stream: str) -> int:
        [(now_us,)] = self._gate.ask("SELECT holdfast.now_us()", {})
        return now_us

    def close(self) -> None:
        self._gate.close()
