"""The log: the only caller of backends. Records below, folded state above.

A write: requests gather in a queue (`batch.py`); the leader lays each on the fold it will follow,
which proves that the event can be folded and gives its revision, time and link; the backend judges
the guards and writes; the new folds become the cache. A read: the backend says where the stream
is, and the cached fold is returned if it is there already; else the newest snapshot at or below
is loaded and what lies behind it is folded, every link verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast import event
from holdfast.backends.protocol import START, Backend, Head, Position, Receipt, Record, Refusal
from holdfast.batch import Queue, Request, Waker
from holdfast.blobs import Blobs
from holdfast.clock import Clock
from holdfast.current import prepared
from holdfast.errors import (
    ClosedError,
    ExpiredError,
    HoldfastError,
    LeaseLostError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.fold import EMPTY, Folded, Tip, fold, ops_of, parent_of, tip_of
from holdfast.lineage import Lineage
from holdfast.routes import Routes
from holdfast.snapshots import Snapshots
from holdfast.wanted import Laid, Part, Wanted, Written, conflict, exists, expires, lay, live

READ_CHUNK = 1000
FETCH_CHUNK = 64
RETRIES_MAX = 1000


class Log(Lineage):
    """Streams of events, folded."""

    def __init__(self, backend: Backend, *, clock: Clock, actor: str) -> None:
        super().__init__(backend)
        self.clock = clock
        self.actor = actor
        self.reports: list[str] = []
        self.routes = Routes(backend)
        self.blobs = Blobs(backend.objects, self.routes.objects_of, self.lifetimes.keep_until)
        self._queue = Queue(self._run)
        self._folds: dict[str, Folded] = {}
        self._folds_max = 4096
        self._tips: dict[str, Tip] = {}
        self._fetched: deque[tuple[str, int, list[Record]]] = deque(maxlen=8)
        self.snapshots = Snapshots(
            self.routes.objects_of,
            link_of=self._link_of,
            source_of=self._source,
            blobs=self.blobs.read,
            report=self.reports.append,
        )

    # --- writing ---------------------------------------------------------------------------------

    def commit(self, wanted: Wanted) -> Written:
        """Commits and returns when it is durable, or raises and has written nothing.

        UnavailableError with `outcome_known` False is the one exception: nobody knows.
        """
        wanted = prepared(wanted)
        self.routes.check(wanted)
        return self._queue.commit(Request(wanted, failed=wanted.failed))

    def submit(self, wanted: Wanted, *, waker: Waker | None = None, context: Any = None) -> Request:
        """Puts the commit in line without waiting for it; `wait` on what it returns does.

        A waker is told once per batch which of its requests are answered; `context` is its own.
        """
        wanted = prepared(wanted)
        self.routes.check(wanted)
        request = Request(wanted, waker, context, wanted.failed)
        self._queue.submit(request)
        return request

    def submit_all(self, wanted: list[Wanted]) -> list[Request]:
        """Puts several commits in line next to each other, so that one sync serves them all."""
        requests = [Request(prepared(one)) for one in wanted]
        for request in requests:
            self.routes.check(request.work)
        self._queue.submit(*requests)
        return requests

    def wait(self, request: Request) -> Written:
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

    def _send(self, laid: list[Laid]) -> None:
        laid = live(laid)
        answers = self.backend.commit([one.commit for one in laid]) if laid else []
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

    def _lay_all(self, requests: list[Request]) -> list[Laid]:
        laid: list[Laid] = []
        overlay: dict[str, Folded] = {}
        late: set[str] = set()  # nothing overtakes another of its stream: a run's end stays last
        for request in requests:
            is_late = bool(late) and any(part.stream in late for part in request.work.parts)
            try:
                one = None if is_late else self._lay(request, overlay)
            except HoldfastError as error:
                # What it does not fit on may be a neighbour's commit, which is not written yet and
                # may never be: then it waits, unanswered, until that is known.
                is_late = any(part.stream in overlay for part in request.work.parts)
                one = None if is_late else self._lay_again(request, error)
            if is_late:
                late.update(part.stream for part in request.work.parts)
            if one is None:
                continue
            laid.append(one)
            if len(requests) > 1:
                for part, after in zip(request.work.parts, one.after, strict=True):
                    overlay[part.stream] = after
        return laid

    def _lay_again(self, request: Request, error: HoldfastError) -> Laid | None:
        """Lays a request that did not fit on the newest folds, or answers it: then None.

        The folds in memory may be behind. And what was committed before with the same key may be
        the very reason why it does not fit: that is looked for before anything is refused.
        """
        wanted: Wanted = request.work
        try:
            if isinstance(error, UsageError | ClosedError):
                for part in wanted.parts:
                    self._remember(part.stream, self._refreshed(part))
                return self._lay(request, {})
        except HoldfastError as again:
            error = again
        self._answer_by_key(request, error)
        return None

    def _answer_by_key(self, request: Request, error: HoldfastError) -> None:
        """Gives a request the answer of an earlier commit with its key, else the error."""
        wanted: Wanted = request.work
        try:
            for part in wanted.parts:
                if part.key and self.backend.find(part.stream, key=part.key):
                    request.succeed(self._earlier(wanted))
                    return
            request.fail(error)
        except HoldfastError as other:
            request.fail(other)

    def _lay(self, request: Request, overlay: dict[str, Folded]) -> Laid:
        parts: tuple[Part, ...] = request.work.parts
        if len(parts) == 1:
            before = (self._base(parts[0], overlay),)
        else:
            before = tuple([self._base(part, overlay) for part in parts])
        return lay(
            request,
            before,
            now=self.clock.now_us(),
            actor=self.actor,
            blobs=self.blobs.read,
            end_of=self.lifetimes.begin,
        )

    def _base(self, part: Part, overlay: dict[str, Folded]) -> Folded:
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
        if isinstance(base, Tip) and not part.keeps_state:
            # A neighbour's commit, which nobody folded: this one waits until that is written.
            raise UnavailableError(f'scope "{stream}" is being written to')
        if base.closed_at:
            raise ClosedError(
                f'scope "{stream}" was closed at revision {base.closed_at}: it takes no writes',
                stream=stream,
                hint="fork it, or open a scope with another id",
            )
        return base

    def _unfolded(self, part: Part) -> Folded:
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
            ends = self.lifetimes.end(part.stream, head)
            tip = tip_of(self.record(part.stream, head.revision), ends)
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

    def _refreshed(self, part: Part) -> Folded:
        """Returns the base of a part, read anew: what was in memory turned out to be behind."""
        self._tips.pop(part.stream, None)
        return self.newest(part.stream) if part.stream in self._folds else self._unfolded(part)

    def _tip_at(self, stream: str, revision: int) -> Folded:
        """Returns a stream's end as it was at a revision: what a fork begins behind."""
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == revision:
            return folded
        head = self.head(stream)
        if head is None or not 0 < revision <= head.revision:
            return self.at(stream, revision)  # which says what there is
        return tip_of(self.record(stream, revision), self.lifetimes.end(stream, head))

    def _accept(self, one: Laid, receipt: Receipt) -> None:
        parts = one.request.work.parts
        for part, append, folded in zip(parts, one.commit.appends, one.after, strict=True):
            self._remember(part.stream, folded)
            if append.expires_us:
                self.lifetimes.know(part.stream, append.expires_us)
            if isinstance(folded, Tip):
                continue  # nobody has its state, to write a snapshot of
            self.snapshots.grown(part.stream, folded, sum([len(r.payload) for r in append.records]))
        one.request.succeed(Written(receipt.position, one.before, one.after, receipt.news))

    def _judge(self, one: Laid, refusal: Refusal) -> None:
        """Turns a refusal into the caller's answer; an unguarded request is left to try again."""
        wanted: Wanted = one.request.work
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
        part = next(part for part in wanted.parts if part.stream == refusal.stream)
        if part.origin is not None:
            one.request.fail(exists(part.stream))
        elif part.expected is not None and part.expected != actual:
            one.request.fail(conflict(part.stream, part.expected, actual))
        elif refusal.head is not None and part.stream in self._folds:
            # The refusal says where the stream is: what came between is read, and nothing else.
            self._load(part.stream, refusal.head, refusal.head.revision)
        else:
            self._refreshed(part)  # what came between, so that the retry lies on it

    def _earlier(self, wanted: Wanted) -> Written:
        """Returns what an earlier commit with the same key wrote, if it wrote the same."""
        before: list[Folded] = []
        after: list[Folded] = []
        position = START
        for part in wanted.parts:
            found = self.backend.find(part.stream, key=part.key) if part.key else []
            first = found[0].revision if found else 1
            last = first + len(part.proposals) if found else 0
            stored = self.records(part.stream, after=first - 1, until=last)
            if stored and stored[0].type == event.OPENED:
                stored = stored[1:]
            stored = stored[: len(part.proposals)]
            same = [(proposal.type, proposal.payload) for proposal in part.proposals]
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
        return Written(position, tuple(before), tuple(after), repeated=True)

    # --- reading ---------------------------------------------------------------------------------

    def newest(self, stream: str) -> Folded:
        """Returns the newest fold: from memory if nobody wrote since (guarantee 12)."""
        [head] = self.backend.heads((stream,))
        if head is None:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is None or (folded.revision, folded.link) != (head.revision, head.link):
            folded = self._load(stream, head, head.revision)
        self.lifetimes.check(stream, folded.expires_us)
        return folded

    def peek(self, stream: str) -> Folded | None:
        """Returns the newest fold if it is in memory, else None: never reads events."""
        head = self.backend.heads((stream,))[0]
        if head is None:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == head.revision and folded.link == head.link:
            self.lifetimes.check(stream, folded.expires_us)
            return folded
        return None

    def at(self, stream: str, revision: int) -> Folded:
        """Returns the fold at an old revision, without a replay from the start."""
        if revision == 0:
            return EMPTY
        folded = self._folds.get(stream)
        if folded is not None and folded.revision == revision:
            self.lifetimes.check(stream, folded.expires_us)
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

    def _load(self, stream: str, head: Head, revision: int) -> Folded:
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
            records = self.backend.read(
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

    def _root(self, stream: str) -> Folded:
        origin = self.origin(stream)
        return EMPTY if origin is None else self.at(*origin)

    def _link_of(self, stream: str, revision: int) -> bytes | None:
        records = self.backend.read(stream, after=revision - 1, until=revision)
        return records[0].link if records else None

    def _remember(self, stream: str, folded: Folded) -> None:
        folds: dict[str, Any] = self._folds
        if isinstance(folded, Tip):
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

    # --- following -------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the newest position."""
        return self.backend.wait(START, timeout_s=0)

    def follow(self, *, after: Position, timeout_s: float | None) -> Iterator[Record]:
        """Yields every record of the store behind `after`, in order, as it comes (guarantee 5).

        It ends when nothing came for `timeout_s`; None waits for ever, 0 yields what is there.
        """
        newest = after
        while True:
            records = self.backend.read_all(after=after, limit=READ_CHUNK)
            yield from self.lifetimes.kept(records)
            if records:
                after = records[-1].position
            elif newest > after:
                # A commit that only sets marks has a position and no record.
                after = newest
            else:
                newest = self.wait_behind(after, timeout_s)
                if newest <= after:
                    return

    def wait_behind(self, after: Position, timeout_s: float | None) -> Position:
        """Returns the newest position, as soon as it is behind `after` or the time is up."""
        while True:
            step = 1.0 if timeout_s is None else timeout_s
            newest = self.backend.wait(after, timeout_s=step)
            if newest > after or timeout_s is not None:
                return newest

    # --- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes what was submitted, writes the snapshots that are due, closes the backend."""
        self._queue.close()
        self.snapshots.flush(self._folds)
        self.backend.close()
