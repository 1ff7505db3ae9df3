"""The log: what every layer reads and writes through. Records below it, folded state above it.

A write: requests gather in a queue (`commit_queue.py`). The leader prepares each one on the state
that it will follow. That proves that its events can be folded, and gives each event its revision,
time and link. The backend judges the guards and writes; then the new states are cached.

A read: the backend returns the head of the stream. If the cached state is at that head, it is
returned. Otherwise the newest snapshot at or below the revision is loaded, and the events after it
are folded, with every link verified.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property
from itertools import groupby, starmap
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import msgspec
from msgspec import Raw

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import (
    AHEAD_US,
    GONE,
    START,
    Append,
    Backend,
    Cleared,
    Commit,
    Fence,
    Finding,
    Found,
    Head,
    Leases,
    Mark,
    MarkQuery,
    Marks,
    Moment,
    Objects,
    PayloadRow,
    Position,
    Receipt,
    Record,
    Refusal,
    Routing,
    find_marks,
    is_shortened,
    keeps_meta,
    position_before,
    read_back,
    read_linked,
    read_many,
    read_payloads,
    takes_record_keys,
)
from holdfast.clock import Clock
from holdfast.core import event, sealed_marks
from holdfast.core.arguments import check_expected, check_whole
from holdfast.core.blobs import BLOB_BYTES_MIN, Blobs
from holdfast.core.codec import SEALED_VALUE, decode, encode, kept_open, subjects_in
from holdfast.core.collector import Uncollected
from holdfast.core.commit import (
    CommitResult,
    NewEvent,
    PreparedCommit,
    ProposedCommit,
    ReadGuard,
    StreamWrite,
    Ttls,
    ahead,
    check_expire_together,
    conflict,
    exists,
    expires,
    import_ahead,
    import_goes_back,
    import_too_late,
    key_of_removed,
    lasts,
    meta_not_kept,
    taken,
    unnamed,
)
from holdfast.core.commit_queue import CommitQueue, Request, Waker
from holdfast.core.dispatcher import Dispatcher, Subscribed, Subscription, shared_dispatcher
from holdfast.core.event import (
    EMPTY,
    MIGRATED,
    OF_STATE,
    UNKNOWN,
    UNSEALED,
    Event,
    Lifetime,
    StreamEnd,
    StreamState,
    advance,
    end_of,
    fold,
    fold_rows,
    is_whole_restore,
    ops_of,
    origin_of,
    parent_of,
    state_of,
    to_datetime,
)
from holdfast.core.event_values import EventBlocks, EventValues
from holdfast.core.expiry import EXPIRING, Expiry, ExpiryPolicy
from holdfast.core.folds import Folds
from holdfast.core.key_ends import ENDING, KeyEnds
from holdfast.core.keystore import FolderKeys, default_folder
from holdfast.core.layers import Layer, lasting_prefixes, named_indexes, register_layer
from holdfast.core.limits import DiskWatch, Limits, Quota, local_places
from holdfast.core.meta import Meta, encode_meta, imported_meta, is_imported, joined
from holdfast.core.observe import Observer, Observers, Tracer
from holdfast.core.own_event import event_of
from holdfast.core.provenance import SAID, Said, both
from holdfast.core.redaction import Redactor
from holdfast.core.schema import Schema
from holdfast.core.sealed_marks import MarkChanges
from holdfast.core.sealing import BESIDE, READER, Keyless, Seal, Sealing, stream_of, tell_reader
from holdfast.core.sealing import PREFIX as SUBJECT_PREFIX
from holdfast.core.snapshot import EVENT_OVERHEAD_BYTES, Snapshots
from holdfast.core.tree import (
    UNTIL,
    Ends,
    Map,
    Op,
    delete_op,
    encode_ops,
    ended,
    keep_seals,
    may_cover_seals,
    missing_ops,
    until_op,
    without,
)
from holdfast.core.typed import NOTHING, Typed
from holdfast.core.watch import PositionWatch
from holdfast.core.write_priority import Turns
from holdfast.errors import (
    ClosedError,
    CorruptError,
    ErasedError,
    ExpiredError,
    HoldfastError,
    LeaseLostError,
    LetGoError,
    LostCommitsError,
    NewerSchemaError,
    NotFoundError,
    UnavailableError,
    UpgradeError,
    UsageError,
    show_us,
)
from holdfast.names import check_name

if TYPE_CHECKING:
    from holdfast.backends.derived_tables import SideTables
    from holdfast.core.kernel import Kernel


class Writer(Protocol):
    """What a layer above adds to every commit that is made in its context.

    A run's body and each of its steps set a writer in a context variable. The log hands the writer
    every commit made there. So a write inside a run gets the run's idempotency key and fence, and
    the caller need not do anything. Outside a run there is no writer, and that costs one lookup.
    """

    @property
    def path(self) -> str:
        """A name of this place that never changes: ids made from it are the same on replay."""
        ...

    @property
    def is_replayed(self) -> bool:
        """Whether the code that writes here may be run again, and must then write the same."""
        ...

    def fencing(self) -> Writer:
        """Returns a writer for the same place that fences commits and changes nothing else."""
        ...

    def fences(self, log: Log) -> bool:
        """Returns whether it fences commits to this log: a run's lease belongs to one store."""
        ...

    def prepare(self, proposed: ProposedCommit, log: Log) -> ProposedCommit:
        """Returns the commit as it must be made here, or raises the reason why it must not be."""
        ...


WRITER: ContextVar[Writer | None] = ContextVar("holdfast_writer", default=None)
"""The innermost writer of this context."""


class LeaseBlock(NamedTuple):
    """A lease block that this code runs in, and the block around it.

    A lease belongs to one store. Another store does not know it, and would refuse whatever is
    fenced by it. So a block names its store (`place`), and each log uses the innermost block of its
    own store.
    """

    place: object
    fence: Fence
    around: LeaseBlock | None

    def without(self, place: object, fence: Fence) -> LeaseBlock | None:
        """Returns the blocks without the innermost one of a lease; they may end in any order."""
        if self.fence == fence and self.place == place:
            return self.around
        around = self.around and self.around.without(place, fence)
        return self if around is self.around else self._replace(around=around)


LEASE_BLOCK: ContextVar[LeaseBlock | None] = ContextVar("holdfast_lease_block", default=None)
"""The innermost lease block: it fences every commit to its log that names no other fence."""


def is_replayed() -> bool:
    """Returns whether the code that writes here may be run again, and must then write the same.

    Such a write must not depend on the state that the caller sees: that may differ the next time.
    """
    writer = WRITER.get()
    return writer is not None and writer.is_replayed


Transform = Callable[[Map, str], Map]
"""Given a scope's state and its name, returns the state that readers see."""

Validator = Callable[[StreamWrite, StreamState, StreamState], None]
"""Given a write, and its stream's states before and after it, raises if it must not be made."""


class Routes:
    """Finds the backend that keeps a stream: the only one, or one of several by its level."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._objects = backend.objects
        self._routing = cast("Routing | None", getattr(backend, "routing", None))

    @property
    def is_split(self) -> bool:
        """Whether there are several backends: only then does anything have to be routed."""
        return self._routing is not None

    def objects_of(self, stream: str) -> Objects:
        """Returns where the blobs and snapshots of a stream are kept."""
        return self._objects if self._routing is None else self._routing.objects_of(stream)

    def check(self, proposed: ProposedCommit) -> None:
        """Raises UsageError if no single backend keeps all that a commit names (guarantee 2).

        It is called before the commit is queued, so that no other commit is refused with it.
        """
        assert self._routing is not None, "BUG: one backend keeps all there is"
        streams = [write.stream for write in proposed.writes]
        streams += [write.origin[0] for write in proposed.writes if write.origin is not None]
        streams += [stream for stream, _ in proposed.reads]
        streams += [guard.stream for guard in proposed.guards]
        self._routing.place_of_all(streams, proposed.fence and proposed.fence.name)

    def split(self, prepared: list[PreparedCommit]) -> list[list[PreparedCommit]]:
        """Splits a batch where the backend changes, so that one failure does not fail the rest."""
        routing = self._routing
        if routing is None:
            return [prepared]

        def place(one: PreparedCommit) -> int | None:
            appends: Sequence[str] = [append.stream for append in one.commit.appends[:1]]
            return routing.place_of_all(appends, None)

        return [list(run) for _, run in groupby(prepared, place)]

    def place_of(self, name: str) -> int:
        """Returns the index in `parts` for a stream, or for anything named like one; 0 of one."""
        return 0 if self._routing is None else self._routing.place_of_all([name], None) or 0

    def part_of(self, stream: str) -> Backend:
        """Returns the backend that keeps a stream."""
        if self._routing is None:
            return self._backend
        return self._routing.parts[self.place_of(stream)]

    def place_of_mark(self, mark: Mark) -> int:
        """Returns the index in `parts` for a mark whose commit is not known, as in a copy.

        The layers put a scope's name into a mark's group or key, or the level into its index
        (`run.due`). A mark that has neither is kept with the rest.
        """
        rest = self.place_of("*")
        names = (mark.group, mark.key, mark.index.replace(".", "/"))
        places = [self.place_of(name) for name in names if name]
        return next((place for place in places if place != rest), rest)

    def keeps_meta(self, stream: str) -> bool:
        """Returns whether the backend of a stream stores `meta`."""
        if self._routing is None:
            return keeps_meta(self._backend)
        return keeps_meta(self._routing.parts[self.place_of(stream)])

    def position(self, after: object) -> Position:
        """Returns a position that a caller gave, or raises UsageError."""
        if self._routing is None:
            return Position(check_whole(after, "after"))
        return self._routing.position(after)

    def before(self, record: Record) -> Position:
        """Returns the position right before a record's commit, to read on from backwards."""
        return position_before(self._backend, record)

    def is_after(self, record: Record, position: Position) -> bool:
        """Returns whether a record comes after a position, in the backend that keeps it."""
        if self._routing is None:
            return record.position > position
        return self._routing.is_after(record, position)

    def parts(self) -> list[Backend]:
        """Returns the backends of a mixed store; an empty list if there is only one."""
        return [] if self._routing is None else list(self._routing.parts)


_Terms = dict[str, ExpiryPolicy]
"""How long the streams that begin in a commit last; those without an end are left out."""
_Shared = tuple[int, str, str | None]
"""Time, actor and meta, which all events of a commit share."""
T = TypeVar("T")
_logger = logging.getLogger("holdfast.log")
KNOWN_MAX = 65536
BUSY_MAX = 4096
NO_LIMIT = 1 << 31
"""More than a store has of anything: as a limit it means all."""
ABSENT = "scope.removed"
"""The index that has a mark for each scope that was removed and has no new life yet."""
register_layer(Layer(name="lives", indexes=(ABSENT,)))
COLLECTED = "retention.collected"
"""The index of one mark, due when blobs were last collected.

A process that spilled a blob before that time must check that it is still there.
"""
LEVELS = "scope.level"
"""The index that has a mark for each registered level: its name, the one above it as the group, and
priority 1 if closing a scope of it keeps its state."""
register_layer(Layer(name="levels", indexes=(LEVELS,)))
BACK_CHUNK = 64
READ_CHUNK = 1000
HELD_EVENTS = 64_000
"""How many events are folded before Python's garbage collector may run again (0030)."""
BULK_STREAMS = 256
BULK_EVENTS = 64
"""How many streams are read by one call, and how many events each of them may have at most."""
SETTLE_S = 0.01
"""How long one wait for open commits lasts before the moment is asked for again."""
QUIET_VIEWS = 8
"""How many views of a stream must find it unchanged before it counts as quiet."""
_LEADING = frozenset((event.OPENED, event.MIGRATED))
"""The types of events that the log itself puts before those of a write."""
_COMMIT_OF = attrgetter("commit")
_PAYLOAD_OF = attrgetter("payload")
_CHECKPOINTS_FIRST = 256
"""How many checkpoints are read at first where not all may be wanted."""
RETRIES_MAX = 1000
"""How often a batch is prepared again before its requests are told that others were faster."""


class Log:
    """Streams of events, folded. Other modules ask the log and not the backend."""

    is_scratch = False
    """Whether it holds scratch scopes, which no store keeps (`scratch.py`)."""
    is_gathering = False
    """Whether what is committed to it becomes part of a later joint commit (`staging.py`)."""
    said: Said | None = None
    """The provenance of all that is written here, unless a block says otherwise (0047)."""
    redactor: Redactor | None = None
    """Keeps secrets out of what is written; None if nothing does. `use_redactor` sets it."""

    def __init__(
        self, backend: Backend, *, clock: Clock, actor: str, sealing: Sealing | None = None
    ) -> None:
        self._backend = backend
        self.sealing = sealing or Sealing(lambda: FolderKeys(default_folder()))
        """Seals and opens what belongs to a subject."""
        self.expiry = Expiry(backend)
        self.routes = Routes(backend)
        self._is_split = self.routes.is_split
        self.key_ends = KeyEnds(self.routes.part_of, clock)
        self.show: Callable[[StreamState, str], Map] = state_of
        """Returns the state that readers get, passed through schemas and transforms, if any."""
        self.limits: Limits | None = None
        """The quotas and the disk watch; None if there are none, as nearly always."""
        self.typed = NOTHING
        """The schemas of scopes: they check writes, and upgrade older data for readers."""
        self._transforms: tuple[Transform, ...] = ()
        self._validators: tuple[Validator, ...] = ()
        self._chains = Lock()
        self._origins: OrderedDict[str, tuple[str, int] | None] = OrderedDict()
        self._lasting_words = lasting_prefixes()  # of streams that are never removed
        self.dispatcher = Dispatcher()
        """Tells subscribers; the handles of this process on one place share it."""
        self.stored_at: object = backend
        """Where the store is: equal for all handles that this process has open on one place."""
        self._subscribed: list[Callable[[], None]] = []
        self.clock = clock
        self._actor = actor
        self.observers: Observers | None = None
        self.reports: list[str] = []
        self._server_us: tuple[int, int] | None = None  # a server's time, and our boot time then
        self._is_ahead_told = False
        self._imported: dict[str, bytes] = {}  # by stream, the link that the newest import ends at
        self.unrecorded: dict[str, Mark] = {}
        """By level, the mark that the first scope of the level sets when this process begins it."""
        self._keeps_meta = not self._is_split and keeps_meta(backend)
        self.record_keys = takes_record_keys(backend)
        self.blobs = Blobs(
            backend.objects, self.routes.objects_of, self.expiry.keep_blobs_until,
            self._collected_us, self.sealing, self._seal_of,
        )  # fmt: skip
        # A backend on a server says how long a call may take; another has no such attribute.
        timeout_s: float | None = getattr(backend, "timeout_s", None)
        self._waits = timeout_s is not None
        self._queue = CommitQueue(self._run, timeout_s=timeout_s)
        self.turns = Turns()
        self.watch = PositionWatch(
            lambda after, timeout_s: backend.wait(after, timeout_s=timeout_s)
        )
        self.folds = Folds()
        self._states, self._ends, self._used = self.folds.states, self.folds.ends, self.folds.used
        self._busy: dict[str, int] = {}  # streams that others write to: quiet views still wanted
        # One bound method for all: otherwise each value in memory would keep one of its own.
        self._read_blob = self.blobs.read
        self._blocks = EventBlocks(self._payloads, self._read_blob)
        self.snapshots = Snapshots(
            self.routes.objects_of, link_of=self._link_of, values_of=self._values,
            first_of=self._first_of, is_current=self._is_current, blobs=self._read_blob,
            sealing=self.sealing, report=self.report,
        )  # fmt: skip

    def _payloads(self, stream: str, after: int, until: int) -> Sequence[PayloadRow]:
        """Returns type, payload and subject of some events, a fork's inherited ones included."""
        head = self.head(stream)
        if head is not None and after + 1 >= head.first:
            rows = read_payloads(
                self._backend, stream, after=after, until=min(until, head.revision)
            )
            for _, _, subject in rows:
                if subject is not None:
                    break  # it may be sealed, and only the whole record can be opened
            else:
                return rows
        records = self.records(stream, after=after, until=until)
        return [(record.type, record.payload, record.subject) for record in records]

    def _collected_us(self) -> int:
        """Returns when blobs were last collected; asked when a large value was spilled before."""
        return sum(mark.due for mark in self._backend.marks.list(COLLECTED, limit=1))

    def report(self, text: str) -> None:
        """Logs something that went wrong and does no harm; `status` shows it too."""
        _logger.warning("%s", text)
        self.reports.append(text)

    # --- what reads and writes pass --------------------------------------------------------------

    def add_transform(self, transform: Transform) -> Callable[[], None]:
        """Adds a step that every read of a state passes, after those that are there.

        Returns the function that removes it. Without transforms a read pays nothing for them.
        """
        with self._chains:
            self._transforms = (*self._transforms, transform)
            self.show = self._show_transformed

        def remove() -> None:
            with self._chains:
                self._transforms = _without(self._transforms, transform)
                if not self._transforms and not self.typed.all:
                    self.show = state_of

        return remove

    def use_schemas(self, typed: Typed) -> None:
        """Checks writes to scopes with their schemas, and shows readers older data upgraded."""
        with self._chains:
            self.typed = typed
            if typed.all:
                typed.blobs = self.blobs.read
            is_plain = not typed.all and not self._transforms
            self.show = state_of if is_plain else self._show_transformed

    def use_redactor(self, redactor: Redactor | None) -> None:
        """Searches every commit, and every large value before it, for secrets; None ends that."""
        self.redactor = redactor
        self.blobs.clean = None if redactor is None else redactor.clean_value

    def use_limits(self, quotas: Sequence[Quota], disk: DiskWatch | None) -> None:
        """Refuses writes that go over a quota, or that a nearly full disk must not take."""
        if quotas or disk is not None:
            places = local_places(self.describe()) if disk is not None else []
            self.limits = self.blobs.limits = Limits(
                quotas,
                disk,
                places=places,
                read=lambda stream, after: self.records(stream, after=after, limit=READ_CHUNK),
                life=self.life,
                report=self.report,
            )

    def add_validator(self, validator: Validator) -> Callable[[], None]:
        """Adds a check that every write passes before anything of its commit is written.

        It runs in the thread that commits, perhaps for a caller in another thread, and runs again
        each time another writer was faster. So it must only look at its arguments. What it raises
        is the caller's answer. Returns the function that removes the check.
        """
        with self._chains:
            self._validators = (*self._validators, validator)

        def remove() -> None:
            with self._chains:
                self._validators = _without(self._validators, validator)

        return remove

    def _show_transformed(self, state: StreamState, stream: str) -> Map:
        state_of(state, stream)
        root = self.typed.shown(state, stream)
        for transform in self._transforms:
            root = transform(root, stream)
        return root

    @property
    def is_transformed(self) -> bool:
        """Whether readers see something other than what is stored, apart from schemas."""
        return bool(self._transforms)

    def use_place(self, place: object) -> None:
        """Sets where the store is: the handles of this process on one place share a dispatcher."""
        self.stored_at = place
        self.dispatcher = shared_dispatcher(place)

    # --- who is told -----------------------------------------------------------------------------

    def subscribe(self, stream: str, subscription: Subscription) -> Subscribed:
        """Tells a subscriber each change of a stream, or of all (`EVERY`), until the store closes.

        Returns what ends the subscription when it is called; it can also wait until all was told.
        """
        unsubscribe = self.dispatcher.subscribe(stream, subscription)
        self._subscribed.append(unsubscribe)
        return Subscribed(self.dispatcher, unsubscribe)

    # --- writing ---------------------------------------------------------------------------------

    def commit(self, proposed: ProposedCommit) -> CommitResult:
        """Commits, and returns when the commit is durable; if it raises, nothing was written.

        The one exception is UnavailableError with `outcome_known` False: the outcome is unknown.
        """
        # Another caller's turn and a full dispatcher are waited for before the queue (0027).
        if self.turns.held:
            self.turns.wait([write.stream for write in proposed.writes])
        if self.dispatcher.is_full:
            self.dispatcher.wait_for_room()
        proposed = self._made_here(proposed)
        return self._queue.commit(Request(proposed, failed=proposed.failed))

    def submit(
        self, proposed: ProposedCommit, *, waker: Waker | None = None, context: Any = None
    ) -> Request:
        """Queues the commit without waiting for it; `wait` on the request it returns does that.

        A waker is called once per batch with those of its requests that are answered. `context` is
        for the waker's use.
        """
        proposed = self._made_here(proposed)
        request = Request(proposed, waker, context, proposed.failed)
        self._queue.submit(request)
        return request

    def submit_all(self, proposed: list[ProposedCommit]) -> list[Request]:
        """Queues several commits next to each other, so that one sync serves them all."""
        requests = [Request(self._made_here(one)) for one in proposed]
        self._queue.submit(*requests)
        return requests

    def _made_here(self, proposed: ProposedCommit) -> ProposedCommit:
        """Returns a commit with what the context of its caller adds to it, or raises UsageError.

        It runs in the caller's thread or task, whose context variables count: the leader that
        prepares the commit may be another thread.
        """
        if LEASE_BLOCK.get() is not None and proposed.fence is None:
            proposed = msgspec.structs.replace(proposed, fence=self.fence_here())
        writer = WRITER.get()
        if writer is not None:
            proposed = writer.prepare(proposed, self)
        if SAID.get(self.said) is not None:
            proposed = self._attributed(proposed)
        if self.redactor is not None:
            proposed = self.redactor.cleaned(proposed)
        if self.observers is not None:
            proposed = self.observers.traced(proposed)
        if self._is_split:
            self.routes.check(proposed)
        return proposed

    def fence_here(self) -> Fence | None:
        """Returns the fence of the innermost lease block of this store that this code runs in."""
        block = LEASE_BLOCK.get()
        while block is not None and block.place != self.stored_at:
            block = block.around
        return None if block is None else block.fence

    @property
    def is_fenced_here(self) -> bool:
        """Whether commits to this log are fenced here, by a lease's block or by a run."""
        writer = WRITER.get()
        return self.fence_here() is not None or (writer is not None and writer.fences(self))

    def _attributed(self, proposed: ProposedCommit) -> ProposedCommit:
        """Returns a commit that says who makes it and where it came from (0047).

        What the commit says counts before what the block says, and that before the store's word.
        """
        here, store = SAID.get(), self.said
        meta = None if store is None else store.meta
        if here is not None:
            meta = here.meta if meta is None else both(meta, here.meta)
        if proposed.meta is not None:
            meta = joined(meta, proposed.meta)
        actor = proposed.actor or (None if here is None else here.actor)
        return msgspec.structs.replace(proposed, actor=actor, meta=meta)

    @property
    def provenance(self) -> tuple[str, str | None]:
        """The provenance of what is written here and now: the actor, and the text of its meta."""
        here, common = SAID.get(), None if self.said is None else self.said.meta
        if here is None:
            return self._actor, common
        return here.actor or self._actor, both(common, here.meta)

    @property
    def actor(self) -> str:
        """Who writes here and now: the actor of the block, else that of the opened store."""
        here = SAID.get()
        return self._actor if here is None or here.actor is None else here.actor

    def wait(self, request: Request) -> CommitResult:
        return self._queue.wait(request)

    def pinned(self, stream: str) -> int | None:
        """Returns the revision that a write must expect if its event names other revisions: none.

        Stored revisions never change. In a joint commit they may be those of events to come.
        """
        return None

    def when_placed(self, stream: str, revision: int, placed: Callable[[Record], None]) -> None:
        """Does nothing: an event is where it was said to be. A joint commit overrides this."""

    def observe(self, observer: Observer, trace: Tracer | None) -> Callable[[], None]:
        """Tells an observer of what is done from now on; returns the function that ends it."""
        one = observer, trace

        def change(all: Sequence[tuple[Observer, Tracer | None]]) -> None:
            self.observers = Observers(self.clock, all) if all else None
            # The queue's function is swapped, so that a commit that nobody observes pays nothing.
            self._queue.use(self._run if self.observers is None else self._run_observed)

        def remove() -> None:
            with self._chains:
                if self.observers is not None:
                    change(_without(self.observers.all, one))

        with self._chains:
            change([*(() if self.observers is None else self.observers.all), one])
        return remove

    def _run_observed(self, requests: list[Request]) -> None:
        began, failure = monotonic(), None
        try:
            self._run(requests)
        except BaseException as error:
            failure = error
            raise
        finally:
            if self.observers is not None:
                self.observers.tell_commits(requests, began, failure)

    def _run(self, requests: list[Request]) -> None:
        """Answers every request of a batch: prepares, sends, and repeats those that lost a race."""
        pending = requests
        # What is read here is read for the commits, and not by the code that the leader is in.
        reader = READER.set(None)
        try:
            # A request without an answer was refused by the backend or not sent at all. So nothing
            # of it is written, and it is safe to prepare it again on newer states.
            for _ in range(RETRIES_MAX):
                prepared = self._prepare_all(pending)
                if prepared:
                    if self._is_split:
                        self._send_split(prepared)
                    else:
                        self._send(prepared)
                for request in pending:
                    if not request.answered:
                        break
                else:
                    return
                pending = [request for request in pending if not request.answered]
                _logger.debug(
                    "another writer was faster: %d commits are prepared again", len(pending)
                )
                if self.observers is not None:
                    for request in pending:
                        writes = request.work.writes  # none if it changes marks alone
                        name = writes[0].stream if writes else ""
                        self.observers.tell("retry", name, monotonic(), reason="another writer")
        finally:
            READER.reset(reader)
        for request in pending:
            request.fail(
                UnavailableError(
                    f"other writers were faster {RETRIES_MAX} times in a row: nothing was written",
                    hint="retry later, or write to a scope of your own",
                )
            )

    def _send_split(self, prepared: list[PreparedCommit]) -> None:
        """Sends a batch to several backends; one that fails does not fail the others' commits."""
        chunks = self.routes.split(prepared)
        for chunk in chunks:
            try:
                self._send(chunk)
            except HoldfastError as error:
                if len(chunks) == 1:
                    raise
                for one in chunk:
                    if not one.request.answered:
                        one.request.fail(error)

    def _send(self, prepared: list[PreparedCommit]) -> None:
        for one in prepared:
            if one.request.work.abort_if is not None:
                prepared = _without_aborted(prepared)
                if not prepared:
                    return
                break
        # The dispatcher must know of the batch before it is sent: it tells a change only when every
        # batch that was on its way then is answered, so changes are told by position (0027).
        batch = self.dispatcher.begin() if self.dispatcher.listening else None
        try:
            answers = self._backend.commit(list(map(_COMMIT_OF, prepared)))
            for one, answer in zip(prepared, answers, strict=True):
                if isinstance(answer, Receipt):
                    self._accept(one, answer)
                    continue
                try:
                    self._judge(one, answer)
                except HoldfastError as error:
                    # What another writer wrote in between cannot be read, so this request cannot be
                    # prepared again. It fails alone: the others have answers of their own.
                    one.request.fail(error)
        finally:
            if batch is not None:
                self.dispatcher.end(batch)

    def _prepare_all(self, requests: list[Request]) -> list[PreparedCommit]:
        if len(requests) == 1:
            # Alone in its batch: there is no neighbour whose commit it could follow.
            try:
                return [self._prepare(requests[0], {})]
            except HoldfastError as error:
                one = self._prepare_again(requests[0], error)
                return [] if one is None else [one]
            except Exception as error:
                requests[0].fail(error)
                return []
        prepared: list[PreparedCommit] = []
        overlay: dict[str, StreamState] = {}
        # The streams of requests that wait. A later request to one of them waits too, so that none
        # overtakes another: the event that ends a run stays its last.
        late: set[str] = set()
        for request in requests:
            is_late = bool(late) and any(write.stream in late for write in request.work.writes)
            try:
                one = None if is_late else self._prepare(request, overlay)
            except HoldfastError as error:
                # It may fail because of a neighbour's commit in this batch, which is not written
                # yet and may never be. Then it waits, unanswered, until that is known.
                is_late = _follows(request.work, overlay)
                one = None if is_late else self._prepare_again(request, error)
            except Exception as error:
                # Most likely a bug in a validator. This request fails alone: the error says nothing
                # about its neighbours.
                one = None
                request.fail(error)
            if is_late:
                late.update(write.stream for write in request.work.writes)
            if one is None:
                continue
            prepared.append(one)
            for write, after in zip(request.work.writes, one.after, strict=True):
                overlay[write.stream] = after
        return prepared

    def _prepare_again(self, request: Request, error: HoldfastError) -> PreparedCommit | None:
        """Prepares a request that did not fit once more, on the newest states, or answers it.

        The states in memory may be out of date. And an earlier commit with the same key may be the
        very reason why it does not fit. Both are checked before the request is refused.
        """
        proposed: ProposedCommit = request.work
        try:
            if isinstance(error, UsageError | ClosedError | NewerSchemaError | UpgradeError):
                for write in proposed.writes:
                    self.folds.keep(write.stream, self._refreshed(write))
                return self._prepare(request, {})
        except HoldfastError as again:
            error = again
        self._answer_by_key(request, error)
        return None

    def _answer_by_key(self, request: Request, error: HoldfastError) -> None:
        """Answers a request with the result of an earlier commit with its key, else the error."""
        proposed: ProposedCommit = request.work
        try:
            for write in proposed.writes:
                if write.key and self.find(write.stream, key=write.key):
                    request.succeed(self._earlier(proposed))
                    return
            request.fail(error)
        except HoldfastError as other:
            request.fail(other)

    def _prepare(self, request: Request, overlay: dict[str, StreamState]) -> PreparedCommit:
        """Returns the request as the commit that follows the newest state of each of its streams.

        Raises UsageError if a change does not fit, so no event is stored that cannot be folded.
        Time is moved up to the newest time of every stream, so it never falls within one. It comes
        from this host's clock, or from the server's if the server found this host's too far ahead
        (clause 22). If a stream's end slides, it comes from the clock that judges the end.
        """
        proposed: ProposedCommit = request.work
        writes, reads = proposed.writes, proposed.reads
        before, newest, ends = list[StreamState](), 0, False
        if proposed.guards:
            written = {write.stream: write.expected for write in writes}
            guarded = self._guarded(proposed.guards, written, overlay)
            reads += tuple((s, b.revision) for s, b in guarded.items() if s not in written)
            overlay = overlay | guarded  # so it follows the very states that were compared
        read_ends = self._ends_of(reads, overlay) if reads else ()
        for write in writes:
            base = self._base(write, overlay)
            before.append(base)
            newest = max(newest, base.time)
            ends = ends or base.revision == 0 or base.slides_us > 0
        terms, sliding = self._terms(writes, before) if ends else ({}, "")
        time = self._backend.now_us(sliding) if sliding else self.clock.now_us()
        if self._server_us is not None and not sliding:
            # The boot clock, which nobody sets, carries the server's time on. If this host's clock
            # is set right, it says less, and is used again (0019).
            time = min(time, self._server_us[0] + self.clock.boot_us() - self._server_us[1])
        actor, meta = proposed.actor or self._actor, proposed.meta
        if proposed.time is not None:
            meta = self._check_import(proposed, before, time)
            time = proposed.time
        elif newest > time:
            if newest > time + AHEAD_US:
                self._tell_ahead(
                    writes[[base.time for base in before].index(newest)].stream, newest
                )
            time = newest
        appends, after, marks = list[Append](), list[StreamState](), proposed.marks
        for write, base in zip(writes, before, strict=True):
            append, state = self._prepare_write(write, base, terms, (time, actor, meta))
            for validate in self._validators:
                validate(write, base, state)
            if append.renews_us:
                marks = (*marks, Mark(EXPIRING, append.stream, append.renews_us))
            if append.expected in (0, base.removed_at) or state.ends is not base.ends:
                marks = self._marked(append, base, state, marks)
            appends.append(append)
            after.append(state)
            if state.subject is not None:
                reads, marks = self._guarded_by_subject(proposed, write, state, reads, marks)
            elif SEALED_VALUE in b"".join(map(_PAYLOAD_OF, append.records)):
                reads, marks = self._guarded_values(proposed, write, append, reads, marks)
        if len(appends) > 1 or self.limits is not None:
            self._check_appends(appends, before)
        guards = (reads, proposed.fence, marks, proposed.watch, False, read_ends)
        commit = Commit(time, actor, tuple(appends), *guards)
        if proposed.time is not None:
            self._imported = {a.stream: s.link for a, s in zip(appends, after, strict=True)}
        return PreparedCommit(request, commit, tuple(before), tuple(after))

    def _marked(
        self,
        append: Append,
        base: StreamState,
        state: StreamState,
        marks: tuple[Mark | Cleared, ...],
    ) -> tuple[Mark | Cleared, ...]:
        """Returns a commit's marks, with those that the log itself adds.

        They say when a stream and its first value end, that a new life has begun, and that the
        store has a scope of a new level.
        """
        if state.ends is not base.ends:
            marks = (*marks, *_mark_of_ends(append.stream, base.ends, state.ends))
        if append.expected and append.expected == base.removed_at:
            marks = (*marks, Cleared(ABSENT, append.stream))
        if append.expected:
            return marks
        if append.expires_us and not append.renews_us:
            marks = (*marks, Mark(EXPIRING, append.stream, append.expires_us))
        level = self.unrecorded.get(append.stream.partition("/")[0])
        return marks if level is None or level in marks else (*marks, level)

    def _terms(
        self, writes: Sequence[StreamWrite], before: Sequence[StreamState]
    ) -> tuple[_Terms, str]:
        """Returns how long the streams last that begin now, and a stream whose end slides, or "".

        The store's policy is read once for all of them: on a server that is a round trip.
        """
        pairs = zip(writes, before, strict=True)
        terms = self.expiry.terms([write.stream for write, base in pairs if base.revision == 0])
        for write, base in zip(writes, before, strict=True):
            term = terms.get(write.stream)
            if base.slides_us or (term is not None and term.slides):
                return terms, write.stream
        return terms, ""

    def _ends_of(
        self, reads: Sequence[tuple[str, int]], overlay: dict[str, StreamState]
    ) -> tuple[tuple[str, int], ...]:
        """Returns the ends of streams that a commit has only read, of those that end.

        No event says that a scope has ended, so no revision shows it. The backend refuses the
        commit if one of these ends has come (clause 37).
        """
        found: list[tuple[str, int]] = []
        for stream, revision in reads:
            known = overlay.get(stream) or self._states.get(stream) or self._ends.get(stream)
            if known is not None and known.revision == revision:
                ends_us = known.ends_us
            else:
                [head] = self._backend.heads((stream,))
                ends_us = 0 if head is None else self.expiry.end(stream, head)
            if ends_us and not self.expiry.is_held_past(stream, ends_us):
                found.append((stream, ends_us))
        return tuple(found)

    def _check_appends(self, appends: Sequence[Append], before: Sequence[StreamState]) -> None:
        """Raises if these must not be written at once, or must not be written at all."""
        check_expire_together(appends)
        if self.limits is not None:
            self.limits.check(appends, before)

    def _check_import(
        self, proposed: ProposedCommit, before: Sequence[StreamState], now_us: int
    ) -> str:
        """Returns the meta of a commit that brings its own time, or raises UsageError (0033).

        The time must be neither ahead of the clock nor before the newest event of a stream, and
        that event must be imported too: a scope that was written by the clock takes no import. It
        is enough to look at the newest event: none is imported after one that was not.
        """
        time = proposed.time
        assert time is not None, "BUG: an import without a time"
        if time > now_us + AHEAD_US:
            raise import_ahead(time, time - now_us)
        for write, base in zip(proposed.writes, before, strict=True):
            stream, revision = write.stream, base.revision
            # The import before this one may be in the same batch, and not stored yet.
            if revision and self._imported.get(stream) != base.link:
                stored = self.records(stream, after=revision - 1, until=revision)
                if not (stored and is_imported(stored[0].meta)):
                    raise import_too_late(stream)
            if base.time > time:
                raise import_goes_back(stream, time, base.time)
        return imported_meta(proposed.meta, to_datetime(now_us))

    def _prepare_write(
        self, write: StreamWrite, base: StreamState, terms: _Terms, shared: _Shared
    ) -> tuple[Append, StreamState]:
        """Returns the events of a write, each with revision, time and link, and the state after."""
        new_events, (time, actor, common) = write.new_events, shared
        stream, key, blobs = write.stream, write.key, self._read_blob
        expires_us = base.ends_us if base.slides_us else base.expires_us
        if write.follows and not 0 <= base.removed_at < write.follows:
            self._check_life(write)
        if base.revision == 0 or write.expires or write.parent is not None:
            expires_us, new_events = self._with_opening(write, base, terms)
        schema = self.typed.of(stream) if self.typed.all and not write.keeps_state else None
        if schema is not None and (base.version != schema.version or schema.aliases):
            new_events = self._migrated(write, base, new_events)
        state, before, seal = base, base, None
        if base.subject is not None or self.sealing.intended or self.sealing.becoming:
            seal, state = self._seal_for(write, base)
        records, last = list[Record](), new_events[-1]
        for one in new_events:
            type, payload, ops = one.type, one.payload, one.ops
            if one.key is not None:
                key = one.key
            if key is not None and state.removed_at:
                state, key = self._key_in_life(stream, state, key)
            if isinstance(base, StreamEnd):
                ops = ()  # they fit any state, and the state is not known here
            elif one.defaults or one.ttls or (state.ends and type == event.CHANGED):
                ops = self._completed(one, state, write)
                payload = encode_ops(ops) if one.defaults or ops is not one.ops else payload
            if type == event.CHANGED and seal is None and may_cover_seals(state.root, ops):
                ops = tuple(keep_seals(state.root, ops, blobs))
                payload = encode_ops(ops)
            checkpoint = write.checkpoint if one is last else None
            revision = state.revision + 1
            meta, version = common if one.meta is None else joined(common, one.meta), 0
            says_version = meta is not None and '"schema"' in meta  # most say a source alone
            if (schema is not None or state.version or says_version) and type in OF_STATE:
                meta, version = self._versioned(stream, state, meta, one, schema)
            stored, subject = payload, None
            if seal is not None:
                stored, key, checkpoint, meta = seal.record(type, payload, key, checkpoint, meta)
                subject = seal.subject
            # The order is part of the stored format: the link is a digest of it (0002).
            envelope = [stream, revision, time, type, actor, key, checkpoint, subject]
            if meta is not None:
                if not (self._keeps_meta or self.routes.keeps_meta(stream)):
                    raise meta_not_kept(stream)
                envelope.append(meta)
            link = event.next_link(state.link, stored, envelope)
            state = advance(state, link, time, type, payload, ops, blobs, version)
            if type == MIGRATED:
                before = state
            given = stored, link, key, checkpoint, subject
            records.append(Record(stream, revision, time, type, actor, *given, meta=meta))
            key = None
        if schema is not None:
            self.typed.check(write, before.root, state, schema)
        is_fork = write.origin is not None
        ends = (expires_us, state.ends_us if state.slides_us else 0)
        return Append(stream, base.revision, tuple(records), is_fork, base.link, *ends), state

    def _key_in_life(
        self, stream: str, state: StreamState, key: str
    ) -> tuple[StreamState, str | None]:
        """Returns a key as it is stored in a stream that was removed before, and its state."""
        if state.removed_at < 0:  # an end whose life was not looked up yet
            state = msgspec.structs.replace(state, removed_at=self.life(stream))
        return state, event.key_in(state.removed_at, key)

    def _completed(self, one: NewEvent, state: StreamState, write: StreamWrite) -> tuple[Op, ...]:
        """Returns the ops of a change, with those that depend on the state that it follows.

        Values that have ended are deleted first, so that the other ops fit what their writer saw.
        Then come defaults for what is missing. The ends of new values come last. A change that fits
        any state is stored as given, whether that state is in memory here or not.
        """
        ops, root, stream = one.ops, state.root, write.stream
        if write.fits_any_state:
            return ops
        now_us = self.key_ends.now_us(stream) if state.ends else 0
        gone = ended(state.ends, now_us) if state.ends else []
        if one.defaults:
            found = missing_ops(without(root, gone), one.defaults, self.blobs.read)
            ops = (*found, *ops)
        if gone:
            ops = (*map(delete_op, gone), *ops)
        if one.ttls:
            now_us = self._backend.now_us(stream)
            ends = [(path, (now_us + ttl_us) // 1000 * 1000) for path, ttl_us in one.ttls]
            ops = (*ops, *starmap(until_op, ends))
        return ops

    # --- what is sealed ----------------------------------------------------------------------

    def _seal_for(
        self, write: StreamWrite, base: StreamState
    ) -> tuple[Seal | Keyless | None, StreamState]:
        """Returns what seals the events of a stream, None if it is nobody's, and its state so far.

        The first event decides for ever whose it is. Raises ErasedError if the subject was erased.
        Only removals are let through then: whoever destroyed the key, as another store that has the
        same keys may, what is left of the subject must be removable.
        """
        stream = write.stream
        becoming = self.sealing.becoming.get(stream)
        if becoming is not None and base.subject is None:
            return self.sealing.of(becoming), msgspec.structs.replace(base, subject=becoming)
        intended = self.sealing.intended.get(stream)
        if base.revision and intended not in (None, base.subject):
            raise self._not_theirs(stream, base.subject)
        subject = base.subject or intended
        if subject is None:
            return None, base
        try:
            seal: Seal | Keyless = self.sealing.of(subject)
        except ErasedError:
            if not base.revision or not _only_removes(write):
                raise
            seal = Keyless(subject)
        return seal, base if base.revision else msgspec.structs.replace(base, subject=subject)

    def _not_theirs(self, stream: str, subject: str | None) -> HoldfastError:
        """Returns the error for a scope that should be a subject's, and is not."""
        if subject is not None and self.sealing.keys.is_erased(subject):
            return ErasedError(subject, f'scope "{stream}"')
        whose = "nobody's" if subject is None else "another subject's"
        return UsageError(
            f'scope "{stream}" is {whose}: whose it is, its first event decides',
            hint="begin a scope with another id",
        )

    def give_to(self, stream: str, name: str) -> None:
        """Makes a stream a subject's if this process begins it; the key is durable on return.

        Raises UsageError if the stream is there and not that subject's, ErasedError if the subject
        who owns it was erased.
        """
        [head] = self._backend.heads([stream])
        if head is None:
            self.sealing.intended[stream] = self.sealing.named(name).subject
            return
        subject, key = self.subject_of(stream), self.sealing.keys.find(name)
        if subject is None or key is None or key.id != subject:
            raise self._not_theirs(stream, subject)

    def give_as(self, stream: str, other: str) -> None:
        """Gives a stream that this process begins to the subject who owns another stream."""
        subject = self.subject_of(other)
        if subject is not None and self._backend.heads([stream]) == [None]:
            self.become(stream, subject)

    def become(self, stream: str, subject: str) -> None:
        """Makes a stream a subject's from its next event on, or from its first.

        Only for streams of layers, which nobody was told are nobody's. Raises ErasedError.
        """
        self.sealing.of(subject)
        self.sealing.becoming[stream] = subject

    def seal_for(self, stream: str, name: str) -> Seal | None:
        """Returns what seals a subject's value in a stream; None if the whole stream is theirs.

        The key is durable on return. Raises UsageError if the stream is another subject's.
        """
        of = self.subject_of(stream)
        seal = self.sealing.named(name)
        if of not in (None, seal.subject):
            raise self._not_theirs(stream, of)
        return seal if of is None else None

    def subject_of(self, stream: str) -> str | None:
        """Returns the id of the subject who owns a stream, or will own it; None if nobody does."""
        if (becoming := self.sealing.becoming.get(stream)) is not None:
            return becoming
        known = self._states.get(stream) or self._ends.get(stream)
        if known is None:
            [head] = self._backend.heads([stream])
            if head is None:
                return self.sealing.intended.get(stream)
            [newest] = self._backend.read(stream, after=head.revision - 1, until=head.revision)
            return event.own_subject(newest.subject, newest.meta)
        return known.subject

    def _seal_of(self, stream: str) -> Seal | None:
        subject = self.subject_of(stream)
        return None if subject is None else self.sealing.of(subject)

    def opened(self, records: list[Record]) -> list[Record]:
        """Returns records of any streams opened, as their writers gave them."""
        for record in records:
            if record.subject is not None:
                for subject in {one.subject for one in records if one.subject is not None}:
                    tell_reader(self.sealing, subject)
                return list(map(self.sealing.open, records))
        return records

    def _guarded_by_subject(
        self,
        proposed: ProposedCommit,
        write: StreamWrite,
        after: StreamState,
        reads: tuple[tuple[str, int], ...],
        marks: tuple[Mark | Cleared, ...],
    ) -> tuple[tuple[tuple[str, int], ...], tuple[Mark | Cleared, ...]]:
        """Returns what a commit with data of a subject also reads, and the marks that it sets.

        The subject's own stream says when the subject is being erased. Each commit names that
        stream among what it read. So the backend refuses a commit that was prepared before the
        erasure began and sent after; prepared again, it is refused here. A mark says which streams
        have such data. The removal of a scope is let through: an erasure itself removes scopes.
        """
        stream, subject = write.stream, after.subject
        assert subject is not None, "BUG: nobody's"
        is_alone = not reads and not marks and len(proposed.writes) == 1
        guard = self.sealing.guards.get(stream) if is_alone else None
        if guard is not None and guard[0][0] not in self._states:
            return guard, marks  # the usual case: the code below would find the same
        if (subject, stream) not in self.sealing.known:
            marks = (*marks, Mark(f"{SUBJECT_PREFIX}{subject}", stream))
        is_removal = write.new_events[-1].type == event.REMOVED
        if marks and not is_removal:  # the marks of a removal are sealed already
            marks = self.closed_marks(stream, marks, subject)
        guard = self._guarded_subject(proposed, stream, subject, reads, is_removal)
        if is_alone and not marks and guard[0][0] in self.sealing.quiet:
            self.sealing.guards[stream] = ((guard[0][0], 0),)
        return guard, marks

    def _guarded_values(
        self,
        proposed: ProposedCommit,
        write: StreamWrite,
        append: Append,
        reads: tuple[tuple[str, int], ...],
        marks: tuple[Mark | Cleared, ...],
    ) -> tuple[tuple[tuple[str, int], ...], tuple[Mark | Cleared, ...]]:
        """Returns the same for sealed values in a scope that is nobody's (0067).

        A sealed value that is copied there, as by a restore, is useless without its key. So a
        commit is refused only for a value that was sealed for it, if the subject is being erased.
        """
        new = {subject for one in write.new_events for subject in one.sealed_for}
        found = {subject for one in append.records for subject in subjects_in(one.payload)}
        beside = Mark(BESIDE, "values")
        if not self.sealing.told_beside and beside not in marks:
            marks = (*marks, beside)
        self.sealing.are_beside = True
        for subject in sorted(found):
            if (subject, write.stream) not in self.sealing.known:
                marks = (*marks, Mark(f"{SUBJECT_PREFIX}{subject}", write.stream))
            if subject in new:
                reads = self._guarded_subject(proposed, write.stream, subject, reads, False)
        return reads, marks

    def _guarded_subject(
        self,
        proposed: ProposedCommit,
        stream: str,
        subject: str,
        reads: tuple[tuple[str, int], ...],
        is_removal: bool,
    ) -> tuple[tuple[str, int], ...]:
        """Returns the reads, with the stream that says whether a subject is being erased."""
        name = stream_of(stream, subject)
        if any(name == one.stream for one in proposed.writes) or any(
            name == one for one, _ in reads
        ):
            return reads
        state = self._states.get(name)
        if state is None:
            # Most subjects are never held or erased, and have no such stream. That is asked once
            # and remembered. It is safe: the commit expects revision 0 there, so the backend
            # refuses it if the stream has begun since, and then its state is read.
            state = EMPTY if name in self.sealing.quiet else self.newest(name)
            if not state.revision:
                self.sealing.quiet.add(name)
        if state.root.get("erasing") and not is_removal:  # "erasing" is never taken back
            raise ErasedError(subject, f'scope "{stream}"')
        return (*reads, (name, state.revision))

    def _with_opening(
        self, write: StreamWrite, base: StreamState, terms: _Terms
    ) -> tuple[int, tuple[NewEvent, ...]]:
        """Returns when a stream ends, and a write's events, led by one that opens it if needed."""
        stream, expires_us, new_events = write.stream, base.ends_us, write.new_events
        begins, lifetime = False, event.LASTS
        if base.revision == 0:
            lifetime = self.expiry.begin(stream, terms.get(stream))
            expires_us = lifetime.expires_us
            if write.id == "":
                raise unnamed(stream)
            begins = expires_us > 0 or write.id is not None
        elif write.expires and not expires_us:
            raise lasts(stream)
        if begins or (write.parent is not None and base.parent != write.parent):
            payload = event.opened_payload(write.parent, lifetime, write.id if begins else None)
            new_events = self._led(NewEvent(event.OPENED, payload), new_events)
        return expires_us, new_events

    def _check_life(self, write: StreamWrite) -> None:
        """Raises ConflictError if what a write follows belongs to a life that is over."""
        removed_at = self.life(write.stream)
        if write.follows <= removed_at:
            raise conflict(write.stream, write.follows, removed_at)

    def _led(self, lead: NewEvent, new_events: tuple[NewEvent, ...]) -> tuple[NewEvent, ...]:
        """Returns events with one before them that opens their scope, or migrates its state.

        A backend that takes one key for each append has it on the first event: so it moves there.
        """
        first, *rest = new_events
        if first.key is None or self.record_keys:
            return (lead, *new_events)
        lead = msgspec.structs.replace(lead, key=first.key)
        return (lead, msgspec.structs.replace(first, key=None), *rest)

    def _migrated(
        self, write: StreamWrite, base: StreamState, new_events: tuple[NewEvent, ...]
    ) -> tuple[NewEvent, ...]:
        """Returns events, led by one that brings the state to the program's version if needed.

        Events that say their version themselves are left alone: a migration, or the undo of a
        removal, which brings back what was stored then.
        """
        if any(one.meta is not None and one.type in OF_STATE for one in write.new_events):
            return new_events
        shown = base if base.ends is None else self.key_ends.shown(base, write.stream)
        lead = self.typed.migration(shown, write.stream, self.blobs.spill)
        return new_events if lead is None else self._led(lead, new_events)

    def _versioned(
        self,
        stream: str,
        state: StreamState,
        meta: str | None,
        one: NewEvent,
        schema: Schema[Any] | None,
    ) -> tuple[str | None, int]:
        """Returns meta and version of a change of the state.

        With a schema here, these are the schema's. Without one, the change must say its version
        itself, or follow a state that has none. Otherwise it is refused: it was not made for what
        is there. If the store does not check that, the change gets the version of that state.
        """
        if schema is not None and one.meta is None:
            return joined(meta, schema.meta), schema.version
        said = event.version_of(meta)
        if said >= state.version or one.type == MIGRATED or not (one.ops or one.defaults):
            return meta, said
        if said or not self.typed.unchecked:
            self.typed.refuse(stream, state.version)
        text = encode_meta(Meta(schema=state.version))
        assert text is not None, "BUG: a version that says nothing"
        return joined(meta, text), state.version

    def _base(self, write: StreamWrite, overlay: dict[str, StreamState]) -> StreamState:
        """Returns the state that a write will follow, after the checks that are possible here."""
        stream = write.stream
        if write.origin is not None:
            base = self._end_at(*write.origin)
            if base.expires_us:
                raise expires(write.origin[0])
            return base
        base = overlay.get(stream) or self._states.get(stream)
        if base is None:
            base = self._unfolded(write)
        else:
            self._used.add(stream)
        if write.expected is not None and write.expected != base.revision:
            # The cached state may be out of date: ask before refusing.
            base = overlay.get(stream) or self._refreshed(write)
            if write.expected != base.revision:
                raise conflict(stream, write.expected, base.revision)
        if isinstance(base, StreamEnd) and not (
            self._needs_end_only(write) and (base.version >= 0 or write.keeps_state)
        ):
            # A neighbour in this batch writes there, and was not folded. This one waits for it.
            raise UnavailableError(f'scope "{stream}" is being written to')
        if base.closed_at and write.new_events[0].type != event.REMOVED:
            raise ClosedError(
                f'scope "{stream}" was closed at revision {base.closed_at}: it takes no writes',
                stream=stream,
                hint="fork it, or open a scope with another id",
            )
        return base

    def _guarded(
        self,
        guards: Sequence[ReadGuard],
        written: dict[str, int | None],
        overlay: dict[str, StreamState],
    ) -> dict[str, StreamState]:
        """Returns the newest state of each guarded stream, after comparing what was read of it.

        The commit follows exactly these states. Their revisions go to the backend, which refuses
        the commit if one is out of date; then they are compared again. If a neighbour in the batch
        writes to a stream that this commit only reads, this one waits for the neighbour's answer.
        Its write may never be stored, and another writer's event may be at that revision instead.
        """
        found: dict[str, StreamState] = {}
        for guard in guards:
            stream = guard.stream
            state = overlay.get(stream)
            if state is None:
                state = self._states.get(stream) or self.folded(stream)
                is_expected = written.get(stream) in (None, state.revision)
                if not is_expected or guard.changed_paths(self.key_ends.shown(state, stream)):
                    state = self.folded(stream)  # it may be out of date: ask before refusing
            elif stream not in written or isinstance(state, StreamEnd):
                raise UnavailableError(f'scope "{stream}" is being written to')
            if changed := guard.changed_paths(self.key_ends.shown(state, stream)):
                raise conflict(stream, guard.state.revision, state.revision, changed)
            if state.expires_us:
                self.expiry.check(stream, state)
            found[stream] = state
        return found

    def _unfolded(self, write: StreamWrite, known: StreamEnd | None = None) -> StreamState:
        """Returns the base of a write whose stream has no state in memory.

        `known` is its end as it was known here before, if that is out of date.

        Events that fit any state need only the revision, link and time of the stream's end, and
        whether it is closed. The newest record has all of that, however long the stream is.
        """
        if not self._needs_end_only(write):
            return self.folded(write.stream)
        end = self._ends.get(write.stream)
        if end is None:
            head = self.head(write.stream)
            if head is None:
                return EMPTY
            lifetime = self.expiry.lifetime(write.stream, head)
            newest = self.record(write.stream, head.revision)
            end = end_of(newest, lifetime)
            if known is not None and _leaves_unsealed(known, newest):
                # So writers in turn do not ask for the mark each time.
                end = msgspec.structs.replace(end, root=UNSEALED)
            self.folds.keep(write.stream, end)
        if end.version < 0 and not write.keeps_state:
            return self.folded(write.stream)  # only the fold knows whether the state has a schema
        if not write.keeps_state and (self.sealing.are_beside or end.root is not UNSEALED):
            if self._has_sealed_values():
                return self.folded(write.stream)  # only the fold knows what a write would replace
            end = msgspec.structs.replace(end, root=UNSEALED)
            self.folds.keep(write.stream, end)
        if write.parent not in (None, end.parent):
            # Nearly always the first event names the parent; if it does not, only the fold knows.
            # (A parent that was changed and changed back is noticed by the next change of state.)
            root, origin = write.stream, self.origin(write.stream)
            while origin is not None:
                root, origin = origin[0], self.origin(origin[0])
            if self.life(write.stream) or parent_of(self.record(root, 1)) != write.parent:
                return self.folded(write.stream)
            end = msgspec.structs.replace(end, parent=write.parent)
        return end

    def keep_seals(self, stream: str, ops: Sequence[Op]) -> Sequence[Op]:
        """Returns ops with the values that are sealed now still sealed; see `tree/seals.py`."""
        if not self._has_sealed_values() or self.subject_of(stream) is not None:
            return ops
        return keep_seals(self.newest(stream).root, ops, self.blobs.read)

    def _has_sealed_values(self) -> bool:
        """Returns whether a scope that is nobody's has a sealed value; asks until one has."""
        if not self.sealing.are_beside:
            self.sealing.are_beside = bool(self.find_marks(BESIDE, limit=1))
        return self.sealing.are_beside

    def _needs_end_only(self, write: StreamWrite) -> bool:
        """Returns whether a write can be prepared without the state that it follows.

        It cannot if a snapshot is due, so that no state is far from a snapshot; nor if a validator,
        a schema or a subscriber looks at the state.
        """
        if write.keeps_state:
            # Subscribers are told what goes when a scope is closed or removed.
            is_ending = write.new_events[-1].type in (event.CLOSED, event.REMOVED)
            return not (is_ending and self.dispatcher.hears(write.stream))
        if self._validators or self.dispatcher.hears(write.stream) or not write.fits_any_state:
            return False
        if self.typed.all and self.typed.of(write.stream) is not None:
            return False
        growth = self.snapshots.growth.get(write.stream)
        return growth is None or growth.bytes < growth.due_at_bytes

    def _refreshed(self, write: StreamWrite) -> StreamState:
        """Returns the base of a write, read again: what was in memory is out of date."""
        known = self._ends.pop(write.stream, None)
        if write.stream in self._states:
            return self.folded(write.stream)
        return self._unfolded(write, known)

    def _end_at(self, stream: str, revision: int) -> StreamState:
        """Returns a stream's end as it was at a revision, such as the one that a fork begins at."""
        state = self._states.get(stream)
        if state is not None and state.revision == revision:
            return state
        head = self.head(stream)
        if head is None or not 0 < revision <= head.revision:
            return self.at(stream, revision)  # raises NotFoundError, unless it is revision 0
        return end_of(self.record(stream, revision), self.expiry.lifetime(stream, head))

    def _accept(self, one: PreparedCommit, receipt: Receipt) -> None:
        """Caches the states that a durable commit made, and answers its request."""
        for append, state in zip(one.commit.appends, one.after, strict=True):
            stream = append.stream
            if stream in self._states and type(state) is StreamState:
                self._states[stream] = state
            else:
                self.folds.keep(stream, state)
            if append.expires_us:
                self.expiry.know(stream, Lifetime(state.expires_us, state.slides_us))
            size = EVENT_OVERHEAD_BYTES
            for record in append.records:
                size += len(record.payload)
            if isinstance(state, StreamEnd):
                # Its state is not known here, so no snapshot can be written yet.
                if append.records[-1].type == event.CHANGED:
                    self.snapshots.unfolded(stream, size)
                continue
            growth = self.snapshots.growth.get(stream)
            if growth is not None and growth.bytes + size < growth.due_at_bytes:
                growth.bytes += size
            else:
                self.snapshots.grown(stream, state, size)
                self.folds.keep(stream, state, is_grown=True)
        for mark in one.commit.marks:
            if mark.index == LEVELS:
                self.unrecorded.pop(mark.key, None)
            elif mark.index == BESIDE:
                self.sealing.told_beside = not self.is_gathering
            elif mark.index.startswith(SUBJECT_PREFIX) and not self.is_gathering:
                # What a joint commit has gathered is not written yet, and may never be.
                self.sealing.known.add((mark.index.removeprefix(SUBJECT_PREFIX), mark.key))
                self.sealing.intended.pop(mark.key, None)
                self.sealing.becoming.pop(mark.key, None)
        request = one.request
        request.result = CommitResult(receipt.position, one.before, one.after, receipt.news)
        if request.work.is_redacted:
            request.result = msgspec.structs.replace(request.result, redacted=request.work.writes)
        request.answered = True
        if self.dispatcher.listening:
            self.dispatcher.put(one, receipt.position)

    def _judge(self, one: PreparedCommit, refusal: Refusal) -> None:
        """Turns a refusal into the caller's answer; one that can be retried is left unanswered."""
        proposed: ProposedCommit = one.request.work
        if refusal.reason == "fenced":
            assert proposed.fence is not None, "BUG: fenced without a fence"
            one.request.fail(
                LeaseLostError(
                    f'lease "{refusal.stream}" is no longer held by "{proposed.fence.owner}" '
                    f"in epoch {proposed.fence.epoch}: nothing was written",
                    lease=refusal.stream,
                    epoch=proposed.fence.epoch,
                    hint="stop this worker's work; another worker may be doing it",
                )
            )
            return
        if refusal.reason == "expired":
            self._judge_expired(one, refusal.stream)
            return
        if refusal.reason == "duplicate":
            try:
                if self._is_of_another_life(one):
                    return  # the scope was removed since: the key is free again
                if self._is_overtaken(proposed):
                    raise taken(refusal.stream, refusal.expected, refusal.revision)
                one.request.succeed(self._earlier(proposed))
            except HoldfastError as error:
                one.request.fail(error)
            return
        if refusal.reason == "ahead":
            self._judge_ahead(one, refusal.now_us)
            return
        actual = refusal.head.revision if refusal.head else 0
        for stream, expected in proposed.reads:
            if stream == refusal.stream:
                one.request.fail(conflict(stream, expected, actual))
                return
        write = next((one for one in proposed.writes if one.stream == refusal.stream), None)
        if write is None:
            self.newest(refusal.stream)  # it was only read: what is guarded of it is compared again
        elif write.origin is not None:
            one.request.fail(exists(write.stream))
        elif write.expected is not None and write.expected != actual:
            one.request.fail(conflict(write.stream, write.expected, actual))
        elif refusal.head is not None and write.stream in self._states:
            # The refusal says where the stream is: only what came between is read.
            self._load(write.stream, refusal.head, refusal.head.revision)
        else:
            self._refreshed(write)  # what came between, so that the retry follows it

    def _judge_expired(self, one: PreparedCommit, stream: str) -> None:
        """Answers a commit that came after the end of a stream, unless that end has moved.

        The commit was judged by the end that was known here. Another process may have written
        since, and so moved the end. Then the stream is read again, which raises ExpiredError if the
        new end has come too.
        """
        proposed: ProposedCommit = one.request.work
        [head] = self._backend.heads((stream,))
        for write, base in zip(proposed.writes, one.before, strict=True):
            if write.stream == stream and head is not None and head.link != base.link:
                self.expiry.check_end(stream, self.expiry.end(stream, head))
                self._refreshed(write)
                return
        expected = dict(one.commit.reads).get(stream)
        if expected is not None and head is not None and head.revision != expected:
            if (stream, expected) in proposed.reads:
                raise conflict(stream, expected, head.revision)
            self.newest(stream)  # what is guarded of it is compared again
            return
        ends = {append.stream: append.expires_us for append in one.commit.appends}
        ends |= dict(one.commit.read_ends)
        raise ExpiredError(stream, expires_us=ends[stream])

    def _is_of_another_life(self, one: PreparedCommit) -> bool:
        """Returns whether a commit with keys was prepared on a life that is over.

        The streams for which that is so are read again, so that the next try follows the new life.
        """
        found = False
        for write, after in zip(one.request.work.writes, one.after, strict=True):
            keys = (write.key, *[one.key for one in write.new_events])
            if any(keys) and self.life(write.stream) != after.removed_at:
                self._refreshed(write)
                found = True
        return found

    def _judge_ahead(self, one: PreparedCommit, now_us: int) -> None:
        """Answers a commit whose time is too far ahead of the server's clock (clause 22).

        If this host's clock is wrong, the commit is made again with the server's time, and so are
        all later ones: the boot clock, which nobody sets, carries that time on. If a stream has the
        time already, which cannot be taken back, the commit is refused: the other streams that it
        writes would get that time too.
        """
        time = one.commit.time
        if one.request.work.time is not None:
            one.request.fail(import_ahead(time, time - now_us))
            return
        writes: tuple[StreamWrite, ...] = one.request.work.writes
        for write, base in zip(writes, one.before, strict=True):
            if base.time >= time:
                stream = write.origin[0] if write.origin is not None else write.stream
                one.request.fail(ahead(stream, time - now_us))
                return
        if self._server_us is None:
            self.report(
                f"this host's clock is {show_us(time - now_us)} ahead of the server's: the times "
                "of events are the server's from now on"
            )
        self._server_us = now_us, self.clock.boot_us()

    def _tell_ahead(self, stream: str, time_us: int) -> None:
        """Reports a stream whose time is ahead; only the first, as a wrong clock makes many."""
        if not self._is_ahead_told:
            self._is_ahead_told = True
            ahead_us = time_us - self.clock.now_us()
            self.report(
                f'scope "{stream}" has a time that is {show_us(ahead_us)} ahead of this host\'s '
                "clock: one of them is wrong. Until that time has come its events all have it, so "
                'at(datetime) cannot tell them apart; "holdfast doctor" names all such scopes'
            )

    def _is_overtaken(self, proposed: ProposedCommit) -> bool:
        """Returns whether a duplicate key is that of an event, and not of the commit itself.

        Then the commit is no repetition: another writer added or changed the same item.
        """
        if not any(one.key is not None for write in proposed.writes for one in write.new_events):
            return False
        keyed = [write for write in proposed.writes if write.key is not None]
        return not any(self.find(write.stream, key=write.key) for write in keyed)

    def _earlier(self, proposed: ProposedCommit) -> CommitResult:
        """Returns what an earlier commit with the same key wrote, if it wrote the same."""
        before: list[StreamState] = []
        after: list[StreamState] = []
        position = START
        for write in proposed.writes:
            found = self.find(write.stream, key=write.key) if write.key else []
            if not found and write.key is not None and self.life(write.stream):
                raise key_of_removed(write.key, write.stream)
            first = found[0].revision if found else 1
            last = first + len(write.new_events) + 1 if found else 0
            stored = self.records(write.stream, after=first - 1, until=last)
            while stored and stored[0].type in _LEADING:
                stored = stored[1:]
            stored = stored[: len(write.new_events)]
            pairs = zip(stored, write.new_events, strict=True)
            # A joint commit is repeated by running its block again, with other ids, by another
            # worker, at a later time. So only the types of its events can be compared.
            is_of = _is_alike if write.is_joint else self._is_of
            if len(stored) != len(write.new_events) or not all(starmap(is_of, pairs)):
                raise UsageError(
                    f'key "{write.key}" was used for another change than the one to '
                    f'"{write.stream}": a key names one change for ever',
                    hint="use a new key",
                )
            read = self._end_at if write.keeps_state and first > 1 else self.at
            before.append(read(write.stream, first - 1))
            after.append(read(write.stream, stored[-1].revision))
            position = max(position, stored[-1].position)
        return CommitResult(position, tuple(before), tuple(after), repeated=True)

    def _is_of(self, record: Record, new_event: NewEvent) -> bool:
        """Returns whether a record is what a new event became, or would have become there."""
        if record.type != new_event.type:
            return False
        if record.payload in (new_event.payload, GONE) or is_shortened(record.payload):
            return True  # what was let go of cannot be compared: it is taken for the same
        given = list(ops_of(record)) if record.type == event.CHANGED else []
        is_led = bool(given) and given[0].kind == "delete"
        # Seals may have been kept by the log: see `keep_seals`.
        has_seals = bool(given) and SEALED_VALUE in record.payload
        if not (new_event.defaults or new_event.ttls or is_led or has_seals):
            return False
        before = self.at(record.stream, record.revision - 1)
        # The log added the deletes of ended values and the times of ends; the writer gave neither.
        while given and given[0].kind == "delete" and given[0].keys in (before.ends or ()):
            before = msgspec.structs.replace(before, root=without(before.root, [given[0].keys]))
            del given[0]
        ttls = [path for path, _ in new_event.ttls]
        if ttls and [op.keys for op in given if op.kind == UNTIL] != ttls:
            return False
        given = [op for op in given if not ttls or op.kind != UNTIL]
        found = missing_ops(before.root, new_event.defaults, self.blobs.read)
        ops = keep_seals(before.root, (*found, *new_event.ops), self.blobs.read)
        return encode_ops(given) == encode_ops(ops)

    # --- reading ---------------------------------------------------------------------------------

    def newest(self, stream: str) -> StreamState:
        """Returns the newest state: from memory if nothing was written since (guarantee 12)."""
        [head] = self._backend.heads((stream,))
        if head is None:
            return EMPTY
        state = self._states.get(stream)
        if state is None or (state.revision, state.link) != (head.revision, head.link):
            try:
                state = self._load(stream, head, head.revision)
            except LetGoError:
                # It may have been removed or erased since its head was read: then it has another.
                if self._backend.heads((stream,)) == [head]:
                    # Or it has ended, and what it held was let go of.
                    self.expiry.check_end(stream, self.expiry.end(stream, head))
                    raise
                return self.newest(stream)
        else:
            self._used.add(stream)
        if state.subject is not None:
            tell_reader(self.sealing, state.subject)
        if state.expires_us:
            self.expiry.check(stream, state)
        return state if state.ends is None else self.key_ends.shown(state, stream)

    def folded(self, stream: str) -> StreamState:
        """Returns the newest state as its events fold, including values that have ended."""
        state = self.newest(stream)
        return state if state.ends is None else self.at(stream, state.revision)

    def newest_of(self, streams: Sequence[str]) -> list[StreamState | None]:
        """Returns the newest state of each stream, None for one that has expired.

        The heads are asked for together. Short streams that are not in memory are read together
        too; a long one has a snapshot, and is loaded alone.
        """
        states: dict[str, StreamState | None] = {}
        for start in range(0, len(streams), BULK_STREAMS):
            names = streams[start : start + BULK_STREAMS]
            heads = dict(zip(names, self._backend.heads(names), strict=True))
            short = {
                stream: head.revision
                for stream, head in heads.items()
                if head is not None
                and stream not in self._states
                and head.first == 1
                and head.revision <= BULK_EVENTS
                and not head.expires_us
            }
            read: dict[str, StreamState] = {}
            if len(short) > 1:
                found = read_many(self._backend, list(short), limit=BULK_EVENTS)
                for (stream, revision), records in zip(short.items(), found, strict=True):
                    records = records[:revision]
                    read[stream] = fold(EMPTY, records, self.blobs.read, self.sealing.opener())
            for stream, head in heads.items():
                states[stream] = self._newest_at(stream, head, read.get(stream))
        return [states[stream] for stream in streams]

    def _newest_at(
        self, stream: str, head: Head | None, read: StreamState | None
    ) -> StreamState | None:
        """Returns the state that a head leads to, None if the stream has expired."""
        if head is None:
            return EMPTY
        if read is not None and read.link == head.link and read.root is not UNKNOWN:
            self.folds.keep(stream, read)
        state = self._states.get(stream)
        try:
            if state is None or (state.revision, state.link) != (head.revision, head.link):
                state = self._load(stream, head, head.revision)
            if state.expires_us:
                self.expiry.check(stream, state)
        except ExpiredError:
            return None
        if state.subject is not None:
            tell_reader(self.sealing, state.subject)
        return state if state.ends is None else self.key_ends.shown(state, stream)

    def peek(self, stream: str) -> StreamState | None:
        """Returns the newest state if it is in memory, else None; never reads events.

        Returns None, too, if a reader is to be told of it: that writes, and the caller may not.
        """
        head = self._backend.heads((stream,))[0]
        if head is None:
            return EMPTY
        state = self._states.get(stream)
        if state is not None and state.subject is not None and READER.get() is not None:
            return None
        if state is not None and state.revision == head.revision and state.link == head.link:
            self._used.add(stream)
            if state.expires_us:
                self.expiry.check(stream, state)
            return state if state.ends is None else self.key_ends.shown(state, stream)
        return None

    def at(self, stream: str, revision: int) -> StreamState:
        """Returns the state at a revision, including values that have ended since.

        It begins at the nearest snapshot below, and not at the first event.
        """
        if revision == 0:
            return EMPTY
        state = self._states.get(stream)
        if state is not None and state.revision == revision:
            if state.subject is not None:
                tell_reader(self.sealing, state.subject)
            if state.expires_us:
                self.expiry.check(stream, state)
            return state
        head = self.head(stream)
        if head is None or not 0 < revision <= head.revision:
            newest = head.revision if head else 0
            raise NotFoundError(
                f'scope "{stream}" has no revision {revision}: it has 1 to {newest}'
                if newest
                else f'scope "{stream}" has no events yet'
            )
        state = self._load(stream, head, revision)
        if state.subject is not None:
            tell_reader(self.sealing, state.subject)
        return state

    def _load(self, stream: str, head: Head, revision: int) -> StreamState:
        if revision < head.first:
            origin = self.origin(stream)
            assert origin is not None, "BUG: no origin below the first revision"
            return self.at(origin[0], revision)
        state = self._states.get(stream)
        if state is None or state.revision > revision:
            state = self.snapshots.nearest(stream, revision)
        if state is None:
            state = self._root(stream, revision)
        began = state.revision
        began_s = 0.0 if self.observers is None else monotonic()
        state = self._folded_to(stream, head, state, revision)
        if state.root is UNKNOWN:
            state = self.on_base(stream, head, revision)
        if revision == head.revision:
            if state.link != head.link:
                found = f"does not fold to its head at revision {revision}"
                raise self.contradicted(stream, head, found, revision)
            self.folds.keep(stream, state)
            self.snapshots.replayed(stream, revision - began)
        if self.observers is not None:
            self.observers.tell("read", stream, began_s or monotonic(), events=revision - began)
        return state

    def _folded_to(self, stream: str, head: Head, state: StreamState, revision: int) -> StreamState:
        """Returns a state folded on to a later revision."""
        # A long fold holds Python's garbage collector back, a part at a time: what it builds is no
        # garbage. Never where a read waits for a server (0030).
        while state.revision < revision:
            if self._waits or revision - state.revision <= READ_CHUNK:
                state = self._folded(stream, head, state, revision)
            else:
                stop = min(revision, state.revision + HELD_EVENTS)
                with Uncollected():
                    while state.revision < stop:
                        state = self._folded(stream, head, state, stop)
        return state

    def replayed(self, stream: str, head: Head, revision: int) -> StreamState:
        """Returns a state folded from the events alone, without the cache and snapshots."""
        state = self._folded_to(stream, head, self._root(stream, revision), revision)
        return self.on_base(stream, head, revision) if state.root is UNKNOWN else state

    def on_base(self, stream: str, head: Head, revision: int) -> StreamState:
        """Returns a state whose older changes were let go of, from the newest base (0059).

        Raises LetGoError if the base has no point from which the state can be folded.
        """
        for found in self._backend.find(stream, checkpoint=event.BASE, limit=1):
            based = self.record(stream, found.revision).payload
            point = None if based == GONE else event.point_of(based, revision, self.blobs.read)
            if point is not None:
                root = self._root(stream, point.revision)
                state = self._folded_to(stream, head, root, point.revision)
                state = self._folded_to(stream, head, point.onto(state), revision)
                if state.root is not UNKNOWN:
                    return state
        raise LetGoError(stream, revision)

    def check_known(self, stream: str, revision: int) -> None:
        """Raises LetGoError if a base has let the state at a revision go, or is about to."""
        for found in self._backend.find(stream, checkpoint=event.BASE, limit=1):
            based = self.record(stream, found.revision).payload
            if found.revision > revision and based != GONE:
                point = event.point_of(based, revision, self.blobs.read)
                newest = event.point_of(based, found.revision, self.blobs.read)
                is_cut = point is not None and newest is not None and point == newest
                if not is_cut and (point is None or point.revision != revision):
                    raise LetGoError(stream, revision)

    def _folded(self, stream: str, head: Head, state: StreamState, until: int) -> StreamState:
        """Returns a state folded on over the next events, as many as one read returns."""
        after = state.revision
        try:
            rows = read_linked(self._backend, stream, after=after, until=until, limit=READ_CHUNK)
            if rows:
                return fold_rows(state, stream, rows, self._read_blob, self.sealing.opener())
        except CorruptError:
            # Rows come without a look at their checksums, because the links cover the same bytes.
            # The same events read as records: their checksums say which one is damaged, and where.
            self._backend.read(stream, after=after, until=until, limit=READ_CHUNK)
            raise
        found = f"ends at revision {after}: its head says {head.revision}"
        raise self.contradicted(stream, head, found, after + 1)

    def _root(self, stream: str, until: int) -> StreamState:
        """Returns the state on which a stream's own events are folded up to a revision.

        A fork that was removed by then shows nothing of its origin, whose events may have been let
        go of since: its fold begins at the removal.
        """
        origin = self.origin(stream)
        if origin is None:
            return EMPTY
        removed_at = self.life(stream, until)
        if removed_at > origin[1]:
            return event.removed_fork(self.record(stream, removed_at))
        return self.at(*origin)

    def _link_of(self, stream: str, revision: int) -> bytes | None:
        records = self._backend.read(stream, after=revision - 1, until=revision)
        return records[0].link if records else None

    def _first_of(self, stream: str) -> int:
        """Returns the first revision of a stream's own: a fork's follows those it inherits."""
        origin = self.origin(stream)
        return 1 if origin is None else origin[1] + 1

    def _is_current(self, stream: str, state: StreamState, newest: bool) -> bool:
        """Returns whether a state may be kept: its events must not have been let go of by now.

        They may be let go of when the scope was removed or closed, when its lifetime is over, or
        when a base has taken their place; parts of them when a text is cut out. All but the end of
        a lifetime, which is checked first, begin with an event: so the newest state may be kept.
        For an older one, unless only the newest will do, each of those events is looked for.
        """
        if state.dropped or (state.ends_us and self._backend.now_us(stream) >= state.ends_us):
            return False
        [head] = self._backend.heads((stream,))
        if head is None or head.link == state.link:
            return head is not None
        if newest or self.life(stream) != state.removed_at:
            return False
        if self.record(stream, head.revision).type == event.CLOSED:
            return False
        return not any(
            found.revision > state.revision
            for name in (event.BASE, event.CUT)
            for found in self._backend.find(stream, checkpoint=name, limit=1)
        )

    def _values(self, stream: str) -> EventValues:
        """Returns the reader of list items that a snapshot holds as references to events."""
        return EventValues(self._blocks, stream)

    # --- moments ---------------------------------------------------------------------------------
    #
    # What a view reads. It costs what was written since the state in memory, and not what was ever
    # written: the next view begins at the state that this one found.

    def states_in_memory(self) -> dict[str, StreamState]:
        """Returns the states in memory, by stream; a moment that is taken after this holds each."""
        return self._states.copy()

    def state_at(self, stream: str, moment: Moment, base: StreamState | None) -> StreamState:
        """Returns a stream's state at a moment; EMPTY if the stream began later.

        `base` is its state that was in memory before the moment was taken, if there was one.
        """
        state = None if base is None else self._moved_on(stream, moment, base)
        if state is None:
            state = self._loaded_at(stream, moment)
        known = self._states.get(stream)
        if state.revision > (0 if known is None else known.revision):
            self.folds.keep(stream, state)
        if state.subject is not None:
            tell_reader(self.sealing, state.subject)
        return state

    def _moved_on(self, stream: str, moment: Moment, base: StreamState) -> StreamState | None:
        """Returns a state in memory folded on to a moment; None if it cannot be used.

        A stream that was quiet is asked for its head first, which costs little. One that was
        written to is read at once: over a network that is one round trip instead of two. The event
        that the state ends with is read again, which shows that the stream still has it.
        """
        if base.expires_us:
            self.expiry.check(stream, base)
        if stream not in self._busy:
            [head] = self._backend.heads((stream,))
            if head is None:
                return None
            if head.link == base.link and moment.has(head.position):
                return base
            if len(self._busy) >= BUSY_MAX:
                self._busy.clear()
        records = self._backend.read(stream, after=base.revision - 1, limit=READ_CHUNK)
        if not records or records[0].link != base.link or not moment.has(records[0].position):
            return None
        quiet_left = self._busy.pop(stream, 0) - 1 if len(records) == 1 else QUIET_VIEWS
        if quiet_left > 0:
            self._busy[stream] = quiet_left
        state, news = base, records[1:]
        while True:
            seen = [record for record in news if moment.has(record.position)]
            state = fold(state, seen, self.blobs.read, self.sealing.opener())
            if len(seen) < len(news) or len(records) < READ_CHUNK:
                return state
            records = news = self._backend.read(stream, after=state.revision, limit=READ_CHUNK)

    def _loaded_at(self, stream: str, moment: Moment) -> StreamState:
        """Returns a stream's state at a moment, from its nearest snapshot."""
        head = self.head(stream)
        if head is None:
            # Not asked again: another process may have begun it by now, but after the moment.
            return EMPTY
        revision = head.revision
        if not moment.has(head.position):
            revision = self._revision_at(stream, head, moment)
            if revision < head.first:
                # The fork was made later, though the events that it inherited are older.
                return EMPTY
        return self._load(stream, head, revision)

    def _revision_at(self, stream: str, head: Head, moment: Moment) -> int:
        """Returns the newest revision of a stream that a moment holds; before the first if none.

        Mostly it is among the last ones: a view is used soon after it was taken.
        """
        before = max(head.revision - BACK_CHUNK, head.first - 1)
        for record in reversed(self._backend.read(stream, after=before, until=head.revision)):
            if moment.has(record.position):
                return record.revision

        def holds(revision: int) -> bool:
            return moment.has(self.record(stream, revision).position)

        return _last(head.first - 1, before, holds)

    # --- records ---------------------------------------------------------------------------------

    def head(self, stream: str, *, to_read: bool = False) -> Head | None:
        """Returns where a stream is, None if there is none; raises ExpiredError if it ended.

        `to_read` is for what keeps in memory what it has read of the stream: its reader is told of
        that as of the events themselves.
        """
        head = self._backend.heads([stream])[0]
        if head is not None:
            self.expiry.check_end(stream, self.expiry.end(stream, head))
            if to_read and READER.get() is not None:
                self.tell_reader_of(stream)
        return head

    def tell_reader_of(self, stream: str) -> None:
        """Tells the run or node of this context, if there is one, that it reads a stream."""
        if READER.get() is not None and (subject := self.subject_of(stream)) is not None:
            tell_reader(self.sealing, subject)

    def contradicted(self, stream: str, head: Head, found: str, revision: int) -> CorruptError:
        """Returns the error for events that contradict the head of their stream.

        A sound store takes nothing back. So if the head is another one now, the answers came from
        a server that has come back without its newest commits, or from a replica that lacks them.
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
            # The log never writes a fork of itself. One that was planted would be read for ever.
            seen = {stream}
            while above is not None and above[0] not in self._origins:
                if above[0] in seen:
                    raise CorruptError(f'"{stream}" is forked from itself', stream=stream)
                seen.add(above[0])
                above = self._read_origin(above[0])
            # Kept only now: a read that fails must not make a fork look like none from then on.
            if len(self._origins) >= KNOWN_MAX:
                self._origins.popitem(last=False)
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
        """Yields a stream and those it was forked from, each with the last revision it gives."""
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
        return self.opened(self._records(stream, after, until, limit))

    def _records(
        self, stream: str, after: int, until: int | None, limit: int | None = None
    ) -> list[Record]:
        """Returns the same records as they are stored; sealed ones need no key."""
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
            records = self._records(origin[0], after, min(last, origin[1]))
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

    def event(self, record: Record) -> Event:
        """Returns a record as the event that readers are handed."""
        return event_of(record, self.blobs.read)

    def newest_change(self, stream: str, newest: int) -> tuple[int, bool]:
        """Returns the revision of a stream's newest change, which an undo takes back.

        Also returns whether it was a restore, which may have changed only messages and tasks.
        Raises NotFoundError if there is no change.
        """
        first = self.life(stream, newest)
        for until in range(newest, first, -BACK_CHUNK):
            after = max(until - BACK_CHUNK, first)
            for record in reversed(self.records(stream, after=after, until=until)):
                is_restore = is_whole_restore(record)
                if is_restore or ops_of(record):
                    return record.revision, is_restore
        raise NotFoundError(f'scope "{stream}" has no change to undo')

    def revision_at_time(self, stream: str, time: int) -> int:
        """Returns the newest revision at or before a time; 0 if the stream began later.

        A fork's inherited events have their ancestor's times, which are older.
        """
        head = self.head(stream)
        if head is not None and head.time > self.clock.now_us() + AHEAD_US:
            self._tell_ahead(stream, head.time)

        def holds(revision: int) -> bool:
            return self._records(stream, revision - 1, revision)[0].time <= time

        return _last(0, head.revision if head else 0, holds)

    @property
    def backend(self) -> Backend:
        """The backend, for what handles stored bytes: copies, checks and letting go."""
        return self._backend

    def parts(self) -> list[Backend]:
        """Returns the backends of the store: several of a mixed store, else the only one."""
        return self.routes.parts() or [self._backend]

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
        records = self._backend.read(stream, after=after, until=until, limit=limit)
        for record in records:
            if record.subject is not None:
                return self.opened(records)
        return records

    def stored(self, stream: str, *, after: int, until: int) -> list[Record]:
        """Returns some of a stream's own records as they are stored; sealed ones need no key."""
        return self._backend.read(stream, after=after, until=until, limit=READ_CHUNK)

    def link_at(self, stream: str, revision: int) -> bytes | None:
        """Returns the link of an event, an ancestor's for a fork's past; None if it is missing."""
        for name, until in self.ancestry(stream, revision):
            if until == revision and (found := self._link_of(name, revision)) is not None:
                return found
        return None

    def first_of(self, streams: Sequence[str]) -> list[Record | None]:
        """Returns the first record of each stream's own, None where there is no such stream.

        Raises ExpiredError if one of them has ended.
        """
        found = read_many(self._backend, streams, limit=1)
        records = [own[0] if own else None for own in found]
        kept = self.expiry.kept([record for record in records if record is not None])
        for record in records:
            if record is not None and record not in kept:
                ends_us = self.expiry.known_end(record.stream)
                raise ExpiredError(record.stream, expires_us=ends_us)
        return records

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        until: int | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        """Returns where a key or a checkpoint's name stands in a stream, newest first.

        A key is looked for in the life that the stream is in, or was in at the revision `until`.
        """
        if key is not None:
            key = event.key_in(self.life(stream, until), key)
        known = self._states.get(stream) or self._ends.get(stream)
        subject = self.subject_of(stream) if known is None else known.subject
        if subject is not None:
            return self._find_sealed(stream, subject, key, checkpoint, limit)
        return self._backend.find(stream, key=key, checkpoint=checkpoint, limit=limit)

    def checkpoints(self, stream: str) -> Iterator[Found]:
        """Yields the named revisions of a stream, newest first.

        They are read on demand, four times as many each time, so a caller who wants the newest does
        not read them all. A revision that is named meanwhile moves the others in the list, so each
        read goes on by revision.
        """
        size, last = _CHECKPOINTS_FIRST, 1 << 63
        while True:
            found = self.find(stream, limit=size)
            for one in found:
                if one.revision < last:
                    yield one
            if len(found) < size:
                return
            size, last = 4 * size, found[-1].revision

    def _find_sealed(
        self,
        stream: str,
        subject: str,
        key: str | None,
        checkpoint: str | None,
        limit: int | None,
    ) -> list[Found]:
        """Does what `find` does in a subject's stream, where names are keyed digests.

        Nothing is found if the subject was erased: without the key no name can be known.
        """
        try:
            seal = self.sealing.of(subject)
        except ErasedError:
            return []
        if key is not None:
            key = seal.digest("key", key)
        if checkpoint is not None and checkpoint not in event.OUR_NAMES:
            checkpoint = seal.digest("checkpoint", checkpoint)
        found = self._backend.find(stream, key=key, checkpoint=checkpoint, limit=limit)
        if key is not None or checkpoint is not None:
            return found
        named: list[Found] = []
        for one in found:
            record = self.record(stream, one.revision)
            named.append(Found(one.revision, record.checkpoint or one.name, one.time))
        return named

    def life(self, stream: str, until: int | None = None) -> int:
        """Returns the revision of the newest removal of a stream, up to a revision if one is given.

        Returns 0 if it was never removed, or if each removal was taken back. The state in memory
        answers while nobody else has written; otherwise one look at the checkpoint names does.
        Streams of layers that never remove theirs are not asked.
        """
        if stream.partition("/")[0] in self._lasting_words:
            return 0
        if until is None:
            [head] = self._backend.heads((stream,))
            if head is None:
                return 0
            known = self._states.get(stream) or self._ends.get(stream)
            if known is not None and known.link == head.link and known.removed_at >= 0:
                return known.removed_at
            until = head.revision
        for name, last in self.ancestry(stream, until):
            for found in self._backend.find(name, checkpoint=event.LIFE):
                if found.revision <= last:
                    record = self.record(name, found.revision)
                    if record.type == event.REMOVED:
                        return record.revision
                    before = event.life_before(record)
                    return 0 if before is None else before.removed_at
        return 0

    def find_marks(
        self,
        index: str | None = None,
        *,
        keys: Sequence[str] | None = None,
        group: str | None = None,
        after: Mark | None = None,
        limit: int = NO_LIMIT,
    ) -> list[Mark]:
        """Returns the marks that fit what is given, in the order of clause 17."""
        query = MarkQuery(index, keys, group, after, limit=limit)
        return find_marks(self._backend.marks, query)

    def closed_marks(self, stream: str, marks: MarkChanges, subject: str | None) -> MarkChanges:
        """Returns marks as they are stored: names of items in a subject's stream are sealed."""
        if subject is None:
            return marks

        def find(index: str, keys: list[str]) -> list[Mark]:
            return self.find_marks(index, keys=keys)

        return sealed_marks.closed(self.sealing.of(subject), stream, marks, find)

    def opened_mark(self, mark: Mark) -> Mark:
        """Returns a mark with its name as it was given; as it is stored if its subject is erased.

        Raises KeyMissingError if the key is not there.
        """
        prefix, _, name = mark.key.partition(":")
        if not name.startswith(sealed_marks.SEALED) or mark.index not in named_indexes():
            return mark
        try:
            seal = self._seal_of(mark.group)
        except ErasedError:
            return mark
        if seal is None:
            return mark  # somebody's own name, which begins like that
        return msgspec.structs.replace(mark, key=f"{prefix}:{sealed_marks.opened_name(seal, name)}")

    def absent(self, streams: Sequence[str]) -> set[str]:
        """Returns which of some streams belong to scopes that are removed now."""
        return {mark.key for mark in self.find_marks(ABSENT, keys=streams)} if streams else set()

    def streams(self, *, prefix: str = "", after: str = "") -> Iterator[str]:
        """Yields the name of every stream after one, in order."""
        while names := self._backend.streams(prefix=prefix, after=after):
            yield from names
            after = names[-1]

    def stream_page(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Returns some names of streams after one, in order; none if there are no more."""
        return self._backend.streams(prefix=prefix, after=after, limit=limit)

    def now_us(self, stream: str) -> int:
        """Returns the time on the clock that judges a stream: the server's, or this host's."""
        return self._backend.now_us(stream)

    def moment(self) -> Moment:
        """Returns the present moment: it holds all that was acknowledged before the call."""
        return self._backend.moment()

    def side_tables(self, what: str) -> SideTables | None:
        """Returns the backend's own place for derived tables, None if it has none (0039)."""
        own: Callable[[str], SideTables] | None = getattr(self._backend, "side_tables", None)
        return None if own is None else own(what)

    @property
    def is_encrypted(self) -> bool:
        """Whether a backend of the store is encrypted: then no copy in clear is kept beside it."""
        return any(getattr(part, "is_encrypted", False) for part in self.parts())

    def folder(self) -> tuple[str, str] | None:
        """Returns the folder of a store on plain files, and the store's id; None of other stores.

        `describe` says both, too, but looks at every file for their sizes.
        """
        directory = getattr(self._backend, "directory", None)
        return None if directory is None else (directory.path, directory.store)

    def describe(self) -> dict[str, Any]:
        """Returns what the backend says of itself, for `status` and `doctor`."""
        return self._backend.inspect.describe()

    @cached_property
    def store_ids(self) -> list[str]:
        """The id of each backend of the store, which no other store has.

        It is asked for once: a backend returns it with its sizes, for which it looks at each file.
        """
        return [str(part.inspect.describe().get("store", "")) for part in self.parts()]

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields what is wrong with the stored bytes."""
        return self._backend.inspect.verify(read_all=read_all)

    # --- following -------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the newest position."""
        return self._backend.wait(START, timeout_s=0)

    def settled_position(self, timeout_s: float) -> tuple[Position, bool]:
        """Returns a position to follow to, and whether all that is acknowledged by now is before.

        On a server, commits that are under way may get positions before one that was acknowledged.
        This waits until they have ended, `timeout_s` at most.
        """
        before = now = self._backend.moment()
        until = monotonic() + timeout_s
        while not before.is_settled(now) and monotonic() < until:
            self.watch.wait(now.position, SETTLE_S)
            now = self._backend.moment()
        return now.position, before.is_settled(now)

    def read_all(self, *, after: Position, limit: int) -> list[Record]:
        """Returns records of the whole store after a position, in order."""
        return self._backend.read_all(after=after, limit=limit)

    def read_back(self, *, until: Position | None, limit: int) -> list[Record]:
        """Returns the newest records of the whole store at or before a position, oldest first."""
        return read_back(self._backend, until=until, limit=limit)

    def follow(self, *, after: Position, timeout_s: float | None) -> Iterator[Record]:
        """Yields every record of the store after `after`, in order, as it comes (guarantee 5).

        It ends when nothing came for `timeout_s`; None waits for ever, 0 yields what is there.
        """
        newest = after
        while True:
            records = self._backend.read_all(after=after, limit=READ_CHUNK)
            yield from self.opened(self.expiry.kept(records))
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
        """Returns the newest position, as soon as it is past `after` or the time is up."""
        return self.watch.wait(after, timeout_s)

    # --- ending ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finishes what was submitted, writes the snapshots that are due, closes the backend."""
        # In this order: after the queue nothing is written any more, so the subscribers can be told
        # of everything, and the snapshots are of the newest states.
        self._queue.close()
        if not self.dispatcher.drain():
            _logger.warning("the store is closed before its subscribers were told of all changes")
        for unsubscribe in self._subscribed:
            unsubscribe()
        self.snapshots.flush(self._states)
        self._backend.close()


class ScopeStream:
    """The stream of a scope, as the layers read it and write to it.

    Users hold the scope, which has no public names for what only layers need. The scope keeps one
    of these, and `scope_stream` is the only way to get it.
    """

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        *,
        parent: str | None,
        expires: bool,
        is_reserved: bool,
        whole_id: str | None,
    ) -> None:
        """`whole_id` is the escaped id that the first event records; "" if it is not known."""
        self.kernel = kernel
        self.log = kernel.log
        self.name = name
        self.parent = parent
        self.expires = expires
        self.whole_id = whole_id
        self._is_reserved = is_reserved

    def unended(self, revision: int) -> StreamState:
        """Returns the state at a revision, without the values that have ended by now."""
        state = self.log.at(self.name, revision)
        return state if state.ends is None else self.log.key_ends.shown(state, self.name)

    def now_at(self, revision: int) -> Map:
        """Returns the state at a revision as readers see it now, without values that have ended."""
        return self.log.show(self.unended(revision), self.name)

    def write(
        self,
        new_events: tuple[NewEvent, ...],
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> StreamWrite:
        """Returns what a commit adds to the stream to record events; raises UsageError."""
        if self._is_reserved:
            raise UsageError(
                f'"{self.name}" is written by holdfast itself: a change by hand would break what '
                "it keeps there",
                hint="write to a scope of your own",
            )
        if expected is not None:
            check_expected(expected)
        if key is not None:
            key = check_name(key, "key")
        if checkpoint is not None:
            checkpoint = check_name(checkpoint, "checkpoint name")
        return StreamWrite(
            self.name,
            new_events,
            expected,
            key,
            checkpoint,
            self.parent,
            expires=self.expires,
            id=self.whole_id,
        )

    def change_write(
        self,
        ops: Sequence[Op],
        expected: int | None,
        key: str | None,
        checkpoint: str | None,
        defaults: Sequence[Op] = (),
        sealed_for: tuple[str, ...] = (),
        ttls: Ttls = (),
    ) -> StreamWrite:
        """Returns what a commit adds to the stream to apply ops, with defaults before them."""
        for op in (*defaults, *ops):
            if len(op.value) >= BLOB_BYTES_MIN:
                # What keeps its seal must not be in a blob, where it would be in clear.
                ops = self.log.keep_seals(self.name, ops)
                ops = [self.log.blobs.spill(one, self.name) for one in ops]
                defaults = [self.log.blobs.spill(one, self.name) for one in defaults]
                break
        payload = encode_ops((*defaults, *ops))
        made = NewEvent(
            event.CHANGED, payload, tuple(ops), tuple(defaults), sealed_for=sealed_for, ttls=ttls
        )
        return self.write((made,), expected, key, checkpoint)

    def checkpoint_write(
        self, name: str | None, expected: int | None, key: str | None
    ) -> StreamWrite:
        """Returns what a commit adds to the stream to name its present state."""
        return self.write((NewEvent(event.CHECKPOINTED, b"null"),), expected, key, name)

    def sealed_ops(self, ops: Sequence[Op], subject: str) -> tuple[Sequence[Op], Seal | None]:
        """Returns ops with their values sealed for a subject, and what sealed them.

        Returns the ops as they are, and None, if the whole scope is the subject's. The key is
        durable on return.
        """
        name = check_name(subject, "subject")
        if not all(op.keys for op in ops):
            raise UsageError(
                "the whole state cannot be one subject's value: name a key or a path",
                hint="scope(…, subject=…) begins a scope that is a subject's as a whole",
            )
        seal = self.log.seal_for(self.name, name)
        if seal is None:
            return ops, None
        ops = [self._opened_for(op, seal) for op in ops]
        if self.log.typed.all:
            for op in ops:
                self.log.typed.check_sealed(self.name, op, self.log.newest(self.name))
        return [self.log.blobs.sealed(op, self.name, seal) for op in ops], seal

    def _opened_for(self, op: Op, seal: Seal) -> Op:
        """Returns an op whose value has no seal in it, because it gets one as a whole.

        Raises UsageError if a part is sealed for somebody else: no erasure would find it there.
        """
        others = subjects_in(bytes(op.value)) - {seal.subject}
        if others:
            raise UsageError(
                f"this value is to be sealed for subject {seal.subject}, and a part of it is "
                f"sealed for subject {min(others)}: one value is one subject's",
                hint="store the parts apart",
            )
        if SEALED_VALUE not in bytes(op.value):
            return op
        blobs = self.log.blobs.read
        with kept_open():
            value = decode(op.value, blob=lambda name, size: decode(blobs(name, size)))
        return Op(op.kind, op.path, Raw(encode(value)))


@runtime_checkable
class WritableScope(Protocol):
    """What a commit over several scopes needs of each: its name, and the stream to write to."""

    @property
    def name(self) -> str: ...
    @property
    def _stream(self) -> ScopeStream: ...


def scope_stream(scope: WritableScope) -> ScopeStream:
    """Returns the stream of a scope."""
    return scope._stream


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Returns the last revision up to `high` for which `holds`, by a binary search.

    It must hold for all revisions up to that one, and for none after it. Returns `low`, for which
    it is not asked, if it holds for none above.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _mark_of_ends(stream: str, old: Ends | None, new: Ends | None) -> list[Mark | Cleared]:
    """Returns the mark that says when the first value of a stream ends, if that has changed."""
    due = min(new.values(), default=0) if new else 0
    if due == (min(old.values(), default=0) if old else 0):
        return []
    return [Mark(ENDING, stream, due) if due else Cleared(ENDING, stream)]


def _follows(proposed: ProposedCommit, overlay: dict[str, StreamState]) -> bool:
    """Returns whether a commit writes or guards a stream that an earlier one in its batch wrote."""
    streams = [write.stream for write in proposed.writes]
    streams += [guard.stream for guard in proposed.guards]
    return any(stream in overlay for stream in streams)


def _leaves_unsealed(known: StreamEnd, newest: Record) -> bool:
    """Returns whether a stream has no sealed value, because none was there one event before.

    The event that came is the next one, by its link, and a change of the state: it has every value
    that it sets in its payload, or in a blob, which never has a sealed one.
    """
    return (
        known.root is UNSEALED
        and newest.type == event.CHANGED
        and SEALED_VALUE not in newest.payload
        and event.record_link(known.link, newest) == newest.link
    )


def _only_removes(write: StreamWrite) -> bool:
    """Returns whether a write is a removal, and says nothing that would have to be sealed."""
    said = [write.key, *(one.key for one in write.new_events)]
    types = {one.type for one in write.new_events}
    return types == {event.REMOVED} and not any(said) and write.checkpoint == event.LIFE


def _is_alike(record: Record, new_event: NewEvent) -> bool:
    """Returns whether a record may be what an event of a joint commit became: by type alone."""
    return record.type == new_event.type


def _without(chain: tuple[T, ...], one: T) -> tuple[T, ...]:
    """Returns the chain without the first step that is this very one."""
    for place, step in enumerate(chain):
        if step is one:
            return (*chain[:place], *chain[place + 1 :])
    return chain


def _without_aborted(prepared: list[PreparedCommit]) -> list[PreparedCommit]:
    """Returns the commits to send, and fails those whose `abort_if` returns an error.

    It is called when they are sent, and not when they were prepared: what a commit depends on may
    have failed since, perhaps in the same batch.
    """
    is_whole = True
    for one in prepared:
        abort_if = one.request.work.abort_if
        if abort_if is not None and (error := abort_if()) is not None:
            one.request.fail(error)
            is_whole = False
    return prepared if is_whole else [one for one in prepared if not one.request.answered]
