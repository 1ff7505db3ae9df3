"""The log: the only caller of backends. Records below, folded state above.

A write: requests gather in a queue (`batch.py`); the leader lays each on the fold it will follow,
which proves that the event can be folded and gives its revision, time and link; the backend judges
the guards and writes; the new folds become the cache. A read: the backend says where the stream
is, and the cached fold is returned if it is there already; else the newest snapshot at or below
is loaded and what lies behind it is folded, every link verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Protocol, cast

import msgspec

from holdfast.backends.protocol import (
    START,
    Backend,
    Finding,
    Found,
    Head,
    Leases,
    Mark,
    Marks,
    Moment,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
    Routing,
)
from holdfast.clock import Clock
from holdfast.core import event
from holdfast.core.arguments import check_whole
from holdfast.core.blobs import Blobs
from holdfast.core.commit import (
    CommitResult,
    PreparedCommit,
    ProposedCommit,
    StreamWrite,
    conflict,
    exists,
    expires,
    live,
    prepare,
)
from holdfast.core.commit_queue import CommitQueue, Request, Waker
from holdfast.core.event import (
    EMPTY,
    RESTORED,
    StreamEnd,
    StreamState,
    end_of,
    fold,
    is_undo,
    ops_of,
    origin_of,
    parent_of,
    state_of,
)
from holdfast.core.expiry import Expiry
from holdfast.core.snapshot import Snapshots
from holdfast.core.tree import Map
from holdfast.errors import (
    ClosedError,
    CorruptError,
    ExpiredError,
    HoldfastError,
    LeaseLostError,
    LostCommitsError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

# --- current --------------------------------------------------------------------------------------
#
# Who is writing: what a layer above puts around every commit that is made in its context.
#
# A run's body, and each of its steps, set a writer in a context variable. The log hands it every
# commit made there, so that a write of a run takes its idempotency key and its fence from the run
# without the caller's doing anything. Elsewhere there is no writer, and that costs one look.


class Writer(Protocol):
    """Something that commits are made within."""

    @property
    def path(self) -> str:
        """What names this place for ever: ids made from it are the same when it is replayed."""
        ...

    @property
    def is_replayed(self) -> bool:
        """Whether the code that writes here is run again, and must then write the same."""
        ...

    def fencing(self) -> Writer:
        """Returns a writer of the same place that fences commits and leaves them as they are."""
        ...

    def prepare(self, wanted: ProposedCommit) -> ProposedCommit:
        """Returns the commit as it is to be made here, or raises why it must not be."""
        ...


WRITER: ContextVar[Writer | None] = ContextVar("holdfast_writer", default=None)
"""The innermost writer of this context."""


def prepared(wanted: ProposedCommit) -> ProposedCommit:
    """Returns the commit as this context's writer wants it; as it stands if there is none."""
    writer = WRITER.get()
    return wanted if writer is None else writer.prepare(wanted)


# --- routes ---------------------------------------------------------------------------------------
#
# Where the log sends what it writes: to one backend, or to one of several by a stream's level.


class Routes:
    """What the log must know of a backend that is made of several; of any other, nothing."""

    def __init__(self, backend: Backend) -> None:
        self._objects = backend.objects
        self._routing = cast("Routing | None", getattr(backend, "routing", None))

    def objects_of(self, stream: str) -> Objects:
        """Returns where the blobs and snapshots of a stream are kept."""
        return self._objects if self._routing is None else self._routing.objects_of(stream)

    def check(self, wanted: ProposedCommit) -> None:
        """Raises UsageError if no single backend keeps all that a commit names (guarantee 2).

        Asked before the commit is put in line, so that it is refused alone.
        """
        if self._routing is not None:
            streams = [part.stream for part in wanted.writes]
            streams += [part.origin[0] for part in wanted.writes if part.origin is not None]
            streams += [stream for stream, _ in wanted.reads]
            self._routing.place_of_all(streams, wanted.fence and wanted.fence.name)

    def runs(self, laid: list[PreparedCommit]) -> list[list[PreparedCommit]]:
        """Returns a batch cut where the backend changes: one that fails must not fail the rest."""
        routing = self._routing
        if routing is None:
            return [laid]

        def place(one: PreparedCommit) -> int | None:
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


KNOWN_MAX = 65536
BACK_CHUNK = 64
READ_CHUNK = 1000
FETCH_CHUNK = 64
RETRIES_MAX = 1000


class Log:
    """Streams of events, folded. The backend stays private: whoever needs it asks the log."""

    def __init__(self, backend: Backend, *, clock: Clock, actor: str) -> None:
        self._backend = backend
        self.expiry = Expiry(backend)
        self.show: Callable[[StreamState, str], Map] = state_of
        """How a fold becomes the state that a reader is handed; an audit has it noted."""
        self._origins: dict[str, tuple[str, int] | None] = {}
        self.clock = clock
        self.actor = actor
        self.reports: list[str] = []
        self.routes = Routes(backend)
        self.blobs = Blobs(backend.objects, self.routes.objects_of, self.expiry.keep_until)
        self._queue = CommitQueue(self._run)
        self._folds: dict[str, StreamState] = {}
        self._folds_max = 4096
        self._tips: dict[str, StreamEnd] = {}
        self._fetched: deque[tuple[str, int, list[Record]]] = deque(maxlen=8)
        self.snapshots = Snapshots(
            self.routes.objects_of,
            link_of=self._link_of,
            source_of=self._source,
            blobs=self.blobs.read,
            report=self.reports.append,
        )

    # --- writing ---------------------------------------------------------------------------------

    def commit(self, wanted: ProposedCommit) -> CommitResult:
        """Commits and returns when it is durable, or raises and has written nothing.

        UnavailableError with `outcome_known` False is the one exception: nobody knows.
        """
        wanted = prepared(wanted)
        self.routes.check(wanted)
        return self._queue.commit(Request(wanted, failed=wanted.failed))

    def submit(
        self, wanted: ProposedCommit, *, waker: Waker | None = None, context: Any = None
    ) -> Request:
        """Puts the commit in line without waiting for it; `wait` on what it returns does.

        A waker is told once per batch which of its requests are answered; `context` is its own.
        """
        wanted = prepared(wanted)
        self.routes.check(wanted)
        request = Request(wanted, waker, context, wanted.failed)
        self._queue.submit(request)
        return request

    def submit_all(self, wanted: list[ProposedCommit]) -> list[Request]:
        """Puts several commits in line next to each other, so that one sync serves them all."""
        requests = [Request(prepared(one)) for one in wanted]
        for request in requests:
            self.routes.check(request.work)
        self._queue.submit(*requests)
        return requests

    def wait(self, request: Request) -> CommitResult:
        return self._queue.wait(request)

    def _run(self, requests: list[Request]) -> None:
        """Answers every request of a batch: lays, sends, and does again what came too late."""
        pending = requests
        for _ in range(RETRIES_MAX):
            laid = self._lay_all(pending)
            if not laid:
                return
            runs = self.routes.runs(laid)
            for run in runs:
                try:
                    self._send(run)
                except HoldfastError as error:
                    if len(runs) == 1:
                        raise
                    for one in run:
                        if not one.request.answered:
                            one.request.fail(error)
            pending = [request for request in pending if not request.answered]
            if not pending:
                return
        for request in pending:
            request.fail(
                UnavailableError(
                    f"other writers were faster {RETRIES_MAX} times in a row: nothing was written",
                    hint="retry later, or write to a scope of your own",
                )
            )

    def _send(self, laid: list[PreparedCommit]) -> None:
        laid = live(laid)
        answers = self._backend.commit([one.commit for one in laid]) if laid else []
        for one, answer in zip(laid, answers, strict=True):
            if isinstance(answer, Receipt):
                self._accept(one, answer)
                continue
            try:
                self._judge(one, answer)
            except HoldfastError as error:
                # What came between cannot be read, so this one cannot be laid again. It alone was
                # refused: those behind it in the list have answers of their own, receipts maybe.
                one.request.fail(error)

    def _lay_all(self, requests: list[Request]) -> list[PreparedCommit]:
        laid: list[PreparedCommit] = []
        overlay: dict[str, StreamState] = {}
        late: set[str] = set()  # nothing overtakes another of its stream: a run's end stays last
        for request in requests:
            is_late = bool(late) and any(part.stream in late for part in request.work.writes)
            try:
                one = None if is_late else self._lay(request, overlay)
            except HoldfastError as error:
                # What it does not fit on may be a neighbour's commit, which is not written yet and
                # may never be: then it waits, unanswered, until that is known.
                is_late = any(part.stream in overlay for part in request.work.writes)
                one = None if is_late else self._lay_again(request, error)
            if is_late:
                late.update(part.stream for part in request.work.writes)
            if one is None:
                continue
            laid.append(one)
            if len(requests) > 1:
                for part, after in zip(request.work.writes, one.after, strict=True):
                    overlay[part.stream] = after
        return laid

    def _lay_again(self, request: Request, error: HoldfastError) -> PreparedCommit | None:
        """Lays a request that did not fit on the newest folds, or answers it: then None.

        The folds in memory may be behind. And what was committed before with the same key may be
        the very reason why it does not fit: that is looked for before anything is refused.
        """
        wanted: ProposedCommit = request.work
        try:
            if isinstance(error, UsageError | ClosedError):
                for part in wanted.writes:
                    self._remember(part.stream, self._refreshed(part))
                return self._lay(request, {})
        except HoldfastError as again:
            error = again
        self._answer_by_key(request, error)
        return None

    def _answer_by_key(self, request: Request, error: HoldfastError) -> None:
        """Gives a request the answer of an earlier commit with its key, else the error."""
        wanted: ProposedCommit = request.work
        try:
            for part in wanted.writes:
                if part.key and self._backend.find(part.stream, key=part.key):
                    request.succeed(self._earlier(wanted))
                    return
            request.fail(error)
        except HoldfastError as other:
            request.fail(other)

    def _lay(self, request: Request, overlay: dict[str, StreamState]) -> PreparedCommit:
        parts: tuple[StreamWrite, ...] = request.work.writes
        if len(parts) == 1:
            before = (self._base(parts[0], overlay),)
        else:
            before = tuple([self._base(part, overlay) for part in parts])
        return prepare(
            request,
            before,
            now=self.clock.now_us(),
            actor=self.actor,
            blobs=self.blobs.read,
            end_of=self.expiry.begin,
        )

    def _base(self, part: StreamWrite, overlay: dict[str, StreamState]) -> StreamState:
        """Returns the fold that a part will follow, having checked what can be checked here."""
        stream = part.stream
        if part.origin is not None:
            base = self._tip_at(*part.origin)
            if base.expires_us:
                raise expires(part.origin[0])
            return base
        base = overlay.get(stream) or self._folds.get(stream) or self._unfolded(part)
        if part.expected is not None and part.expected != base.revision:
            # The cached fold may be behind: ask before refusing.
            base = overlay.get(stream) or self._refreshed(part)
            if part.expected != base.revision:
                raise conflict(stream, part.expected, base.revision)
        if isinstance(base, StreamEnd) and not part.keeps_state:
            # A neighbour's commit, which nobody folded: this one waits until that is written.
            raise UnavailableError(f'scope "{stream}" is being written to')
        if base.closed_at:
            raise ClosedError(
                f'scope "{stream}" was closed at revision {base.closed_at}: it takes no writes',
                stream=stream,
                hint="fork it, or open a scope with another id",
            )
        return base

    def _unfolded(self, part: StreamWrite) -> StreamState:
        """Returns the base of a part whose stream has no fold in memory.

        Events that change no state need revision, link and time of the stream's end, and whether
        it is closed: its newest record has all of that, however long the stream is.
        """
        if not part.keeps_state:
            return self.newest(part.stream)
        tip = self._tips.get(part.stream)
        if tip is None:
            head = self.head(part.stream)
            if head is None:
                return EMPTY
            ends = self.expiry.end(part.stream, head)
            tip = end_of(self.record(part.stream, head.revision), ends)
            self._remember(part.stream, tip)
        if part.parent not in (None, tip.parent):
            # Nearly always given by the first event; if not by that one, only the fold knows. (One
            # given another and then the first again is noticed by the next change of its state.)
            root, origin = part.stream, self.origin(part.stream)
            while origin is not None:
                root, origin = origin[0], self.origin(origin[0])
            if parent_of(self.record(root, 1)) != part.parent:
                return self.newest(part.stream)
            tip = msgspec.structs.replace(tip, parent=part.parent)
        return tip

    def _refreshed(self, part: StreamWrite) -> StreamState:
        """Returns the base of a part, read anew: what was in memory turned out to be behind."""
        self._tips.pop(part.stream, None)
        return self.newest(part.stream) if part.stream in self._folds else self._unfolded(part)

    def _tip_at(self, stream: str, revision: int) -> StreamState:
        """Returns a stream's end as it was at a revision: what a fork begins behind."""
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == revision:
            return folded
        head = self.head(stream)
        if head is None or not 0 < revision <= head.revision:
            return self.at(stream, revision)  # which says what there is
        return end_of(self.record(stream, revision), self.expiry.end(stream, head))

    def _accept(self, one: PreparedCommit, receipt: Receipt) -> None:
        parts = one.request.work.writes
        for part, append, folded in zip(parts, one.commit.appends, one.after, strict=True):
            self._remember(part.stream, folded)
            if append.expires_us:
                self.expiry.know(part.stream, append.expires_us)
            if isinstance(folded, StreamEnd):
                continue  # nobody has its state, to write a snapshot of
            self.snapshots.grown(part.stream, folded, sum([len(r.payload) for r in append.records]))
        one.request.succeed(CommitResult(receipt.position, one.before, one.after, receipt.news))

    def _judge(self, one: PreparedCommit, refusal: Refusal) -> None:
        """Turns a refusal into the caller's answer; an unguarded request is left to try again."""
        wanted: ProposedCommit = one.request.work
        if refusal.reason == "fenced":
            assert wanted.fence is not None, "BUG: fenced without a fence"
            one.request.fail(
                LeaseLostError(
                    f'lease "{refusal.stream}" is no longer held by "{wanted.fence.owner}" '
                    f"in epoch {wanted.fence.epoch}: nothing was written",
                    lease=refusal.stream,
                    epoch=wanted.fence.epoch,
                    hint="stop this worker's work; another worker may be doing it",
                )
            )
            return
        if refusal.reason == "expired":
            [ends] = [a.expires_us for a in one.commit.appends if a.stream == refusal.stream]
            one.request.fail(ExpiredError(refusal.stream, expires_us=ends))
            return
        if refusal.reason == "duplicate":
            try:
                one.request.succeed(self._earlier(wanted))
            except HoldfastError as error:
                one.request.fail(error)
            return
        actual = refusal.head.revision if refusal.head else 0
        for stream, expected in wanted.reads:
            if stream == refusal.stream:
                one.request.fail(conflict(stream, expected, actual))
                return
        part = next(part for part in wanted.writes if part.stream == refusal.stream)
        if part.origin is not None:
            one.request.fail(exists(part.stream))
        elif part.expected is not None and part.expected != actual:
            one.request.fail(conflict(part.stream, part.expected, actual))
        elif refusal.head is not None and part.stream in self._folds:
            # The refusal says where the stream is: what came between is read, and nothing else.
            self._load(part.stream, refusal.head, refusal.head.revision)
        else:
            self._refreshed(part)  # what came between, so that the retry lies on it

    def _earlier(self, wanted: ProposedCommit) -> CommitResult:
        """Returns what an earlier commit with the same key wrote, if it wrote the same."""
        before: list[StreamState] = []
        after: list[StreamState] = []
        position = START
        for part in wanted.writes:
            found = self._backend.find(part.stream, key=part.key) if part.key else []
            first = found[0].revision if found else 1
            last = first + len(part.new_events) if found else 0
            stored = self.records(part.stream, after=first - 1, until=last)
            if stored and stored[0].type == event.OPENED:
                stored = stored[1:]
            stored = stored[: len(part.new_events)]
            same = [(new_event.type, new_event.payload) for new_event in part.new_events]
            if not found or [(record.type, record.payload) for record in stored] != same:
                raise UsageError(
                    f'key "{part.key}" was used for another change than the one to '
                    f'"{part.stream}": a key names one change for ever',
                    hint="use a new key",
                )
            read = self._tip_at if part.keeps_state and first > 1 else self.at
            before.append(read(part.stream, first - 1))
            after.append(read(part.stream, stored[-1].revision))
            position = max(position, stored[-1].position)
        return CommitResult(position, tuple(before), tuple(after), repeated=True)

    # --- reading ---------------------------------------------------------------------------------

    def newest(self, stream: str) -> StreamState:
        """Returns the newest fold: from memory if nobody wrote since (guarantee 12)."""
        [head] = self._backend.heads((stream,))
        if head is None:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is None or (folded.revision, folded.link) != (head.revision, head.link):
            folded = self._load(stream, head, head.revision)
        self.expiry.check(stream, folded.expires_us)
        return folded

    def peek(self, stream: str) -> StreamState | None:
        """Returns the newest fold if it is in memory, else None: never reads events."""
        head = self._backend.heads((stream,))[0]
        if head is None:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == head.revision and folded.link == head.link:
            self.expiry.check(stream, folded.expires_us)
            return folded
        return None

    def at(self, stream: str, revision: int) -> StreamState:
        """Returns the fold at an old revision, without a replay from the start."""
        if revision == 0:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == revision:
            self.expiry.check(stream, folded.expires_us)
            return folded
        head = self.head(stream)
        if head is None or not 0 < revision <= head.revision:
            newest = head.revision if head else 0
            raise NotFoundError(
                f'scope "{stream}" has no revision {revision}: it has 1 to {newest}'
                if newest
                else f'scope "{stream}" has no events yet'
            )
        return self._load(stream, head, revision)

    def _load(self, stream: str, head: Head, revision: int) -> StreamState:
        if revision < head.first:
            origin = self.origin(stream)
            assert origin is not None, "BUG: no origin below the first revision"
            return self.at(origin[0], revision)
        folded = self._folds.get(stream)
        if folded is None or folded.revision > revision:
            folded = self.snapshots.nearest(stream, revision)
        if folded is None:
            folded = self._root(stream)
        began = folded.revision
        while folded.revision < revision:
            records = self._backend.read(
                stream, after=folded.revision, until=revision, limit=READ_CHUNK
            )
            if not records:
                found = f"ends at revision {folded.revision}: its head says {head.revision}"
                raise self.contradicted(stream, head, found, folded.revision + 1)
            folded = fold(folded, records, self.blobs.read)
        if revision == head.revision:
            if folded.link != head.link:
                found = f"does not fold to its head at revision {revision}"
                raise self.contradicted(stream, head, found, revision)
            self._remember(stream, folded)
            self.snapshots.replayed(stream, revision - began)
        return folded

    def _root(self, stream: str) -> StreamState:
        origin = self.origin(stream)
        return EMPTY if origin is None else self.at(*origin)

    def _link_of(self, stream: str, revision: int) -> bytes | None:
        records = self._backend.read(stream, after=revision - 1, until=revision)
        return records[0].link if records else None

    def _remember(self, stream: str, folded: StreamState) -> None:
        folds: dict[str, Any] = self._folds
        if isinstance(folded, StreamEnd):
            folds = self._tips
        else:
            self._tips.pop(stream, None)
        if stream not in folds and len(folds) >= self._folds_max:
            folds.pop(next(iter(folds)), None)
        folds[stream] = folded

    def _source(self, stream: str) -> Callable[[int, int], bytes]:
        """Returns the reader of list items that a snapshot holds as references to events."""

        def fetch(revision: int, op_index: int) -> bytes:
            block, place = divmod(revision - 1, FETCH_CHUNK)
            return bytes(ops_of(self._block(stream, block)[place])[op_index].value)

        return fetch

    def _block(self, stream: str, block: int) -> list[Record]:
        """Returns an aligned run of records, the last few of which are kept."""
        for kept_stream, kept_block, kept in tuple(self._fetched):  # other threads append to it
            if kept_stream == stream and kept_block == block:
                return kept
        start = block * FETCH_CHUNK
        records = self.records(stream, after=start, until=start + FETCH_CHUNK)
        if len(records) == FETCH_CHUNK:
            self._fetched.append((stream, block, records))
        return records

    # --- records ---------------------------------------------------------------------------------

    def head(self, stream: str) -> Head | None:
        """Returns where a stream is, None if there is none; raises ExpiredError if it ended."""
        head = self._backend.heads([stream])[0]
        if head is not None:
            self.expiry.check(stream, self.expiry.end(stream, head))
        return head

    def contradicted(self, stream: str, head: Head, found: str, revision: int) -> CorruptError:
        """Returns the error for events that are not what a head has told.

        Nothing is taken back in a sound store. So if the head is another one now, a server that
        came back without its newest commits, or its replica, has answered in between.
        """
        if self._backend.heads([stream])[0] == head:
            return CorruptError(f'stream "{stream}" {found}', stream=stream, revision=revision)
        return LostCommitsError(
            f'revision {head.revision} of "{stream}" was there and is gone: '
            "another server process answers",
            stream=stream,
            revision=head.revision,
            hint="a failover or restart lost it; open the store again to go on from what is there",
        )

    def origin(self, stream: str) -> tuple[str, int] | None:
        """Returns the stream and revision that a fork began at, None if it is not a fork."""
        if stream not in self._origins:
            if self._backend.heads([stream])[0] is None:
                return None
            origin = above = self._read_origin(stream)
            # Nobody here writes a fork of itself, but somebody else may lay one, to read for ever.
            seen = {stream}
            while above is not None and above[0] not in self._origins:
                if above[0] in seen:
                    raise CorruptError(f'"{stream}" is forked from itself', stream=stream)
                seen.add(above[0])
                above = self._read_origin(above[0])
            # Only now: a read that fails must not make a fork look like none ever after.
            if len(self._origins) >= KNOWN_MAX:
                self._origins.pop(next(iter(self._origins)), None)
            self._origins[stream] = origin
            return origin
        return self._origins[stream]

    def _read_origin(self, stream: str) -> tuple[str, int] | None:
        [head] = self._backend.heads([stream])
        if head is None or head.first == 1:
            return None
        first = self._backend.read(stream, after=head.first - 1, until=head.first)[0]
        return origin_of(first)

    def ancestry(self, stream: str, until: int) -> Iterator[tuple[str, int]]:
        """Yields a stream and those it was forked from, each with its last revision there."""
        while True:
            yield stream, until
            origin = self.origin(stream)
            if origin is None:
                return
            stream, until = origin[0], min(until, origin[1])

    def records(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Returns records by revision, those of a fork's ancestors included."""
        head = self.head(stream)
        if head is None:
            return []
        last = head.revision if until is None else min(until, head.revision)
        if limit is not None:
            last = min(last, after + limit)
        records: list[Record] = []
        if after + 1 < head.first:
            origin = self.origin(stream)
            assert origin is not None, "BUG: no origin below the first revision"
            records = self.records(origin[0], after=after, until=min(last, origin[1]))
        if last >= head.first:
            records += self._backend.read(stream, after=max(after, head.first - 1), until=last)
        return records

    def record(self, stream: str, revision: int) -> Record:
        """Returns one record that must be there."""
        records = self.records(stream, after=revision - 1, until=revision)
        if not records:
            raise CorruptError(
                f'event {revision} of "{stream}" is missing', stream=stream, revision=revision
            )
        return records[0]

    def before_newest_change(self, stream: str, newest: int) -> tuple[int, bool]:
        """Returns the revision before a stream's newest change of state, for an undo of that.

        And whether it is the state alone that the undo concerns: all but a restore that nothing
        was written behind. Raises NotFoundError if there is no change.
        """
        written_last = None
        for until in range(newest, 0, -BACK_CHUNK):
            after = max(until - BACK_CHUNK, 0)
            for record in reversed(self.records(stream, after=after, until=until)):
                written_last = written_last or record.position
                if ops_of(record):
                    is_restore = record.type == RESTORED and not is_undo(record)
                    is_last = record.position == written_last
                    return record.revision - 1, not (is_restore and is_last)
        raise NotFoundError(f'scope "{stream}" has no change to undo')

    def revision_at_moment(self, stream: str, moment: Moment) -> int:
        """Returns the newest revision that was visible at a moment."""
        return self._search(stream, lambda record: moment.has(record.position))

    def revision_at_time(self, stream: str, time: int) -> int:
        """Returns the newest revision at or before a time; 0 if the stream began later."""
        return self._search(stream, lambda record: record.time <= time)

    def _search(self, stream: str, holds: Callable[[Record], bool]) -> int:
        """Returns the last revision for which `holds`, by bisection: it holds up to some point.

        A fork's inherited events have their ancestor's positions and times, which are older.
        """
        head = self.head(stream)
        low, high = 0, head.revision if head else 0
        while low < high:
            middle = (low + high + 1) // 2
            if holds(self.records(stream, after=middle - 1, until=middle)[0]):
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def leases(self) -> Leases:
        """The backend's leases."""
        return self._backend.leases

    @property
    def marks(self) -> Marks:
        """The backend's marks."""
        return self._backend.marks

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        """Returns where each stream is, whether it has expired or not."""
        return self._backend.heads(streams)

    def read(
        self, stream: str, *, after: int, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Returns a stream's own records by revision; `records` has those of its ancestors too."""
        return self._backend.read(stream, after=after, until=until, limit=limit)

    def find(
        self, stream: str, *, key: str | None = None, checkpoint: str | None = None
    ) -> list[Found]:
        """Returns where a key or a checkpoint's name stands in a stream, newest first."""
        return self._backend.find(stream, key=key, checkpoint=checkpoint)

    def streams(self, *, prefix: str = "") -> Iterator[str]:
        """Yields the name of every stream, in order."""
        after = ""
        while names := self._backend.streams(prefix=prefix, after=after):
            yield from names
            after = names[-1]

    def stream_page(self, *, after: str) -> list[str]:
        """Returns some names of streams after one, in order; none if there are no more."""
        return self._backend.streams(after=after)

    def moment(self) -> Moment:
        """Returns the moment that it is: what was acknowledged before it, is in it."""
        return self._backend.moment()

    def describe(self) -> dict[str, Any]:
        """Returns what the backend says of itself, for `status` and `doctor`."""
        return self._backend.inspect.describe()

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields what is wrong with the stored bytes."""
        return self._backend.inspect.verify(read_all=read_all)

    # --- following -------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the newest position."""
        return self._backend.wait(START, timeout_s=0)

    def read_all(self, *, after: Position, limit: int) -> list[Record]:
        """Returns records of the whole store after a position, in order."""
        return self._backend.read_all(after=after, limit=limit)

    def follow(self, *, after: Position, timeout_s: float | None) -> Iterator[Record]:
        """Yields every record of the store behind `after`, in order, as it comes (guarantee 5).

        It ends when nothing came for `timeout_s`; None waits for ever, 0 yields what is there.
        """
        newest = after
        while True:
            records = self._backend.read_all(after=after, limit=READ_CHUNK)
            yield from self.expiry.kept(records)
            if records:
                after = records[-1].position
            elif newest > after:
                # A commit that only sets marks has a position and no record.
                after = newest
            else:
                newest = self.wait_after(after, timeout_s)
                if newest <= after:
                    return

    def wait_after(self, after: Position, timeout_s: float | None) -> Position:
        """Returns the newest position, as soon as it is behind `after` or the time is up."""
        while True:
            step = 1.0 if timeout_s is None else timeout_s
            newest = self._backend.wait(after, timeout_s=step)
            if newest > after or timeout_s is not None:
                return newest

    # --- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes what was submitted, writes the snapshots that are due, closes the backend."""
        self._queue.close()
        self.snapshots.flush(self._folds)
        self._backend.close()
