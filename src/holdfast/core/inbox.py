"""The inbox: messages to a run or a coordinator, each of which is taken exactly once.

The inbox of `run/r1` is the stream `inbox/run/r1`. Any process may add to it; only the holder of
the owner's lease takes from it. A run records what it took in its own journal, in the commit that
uses it. A coordinator records it in the inbox itself, with `take`. Either way the record is fenced
and names revisions: a message that was taken is never returned again, and no other is lost.

    inbox.sent   {"kind": …, "name": …, "value": …}    a message
    inbox.taken  {"revisions": [3, 5]}                 these were taken, by `take` or `take_in`

The five kinds, and what they do to an owner that is busy or waiting:

    stop        ends the work: a run is cancelled
    interrupt   wakes a waiting owner, which gets it before every kind but stop
    steer       wakes a waiting owner, which should follow it in its next steps
    follow-up   wakes nobody; work for after the present work
    ambient     wakes nobody; information only
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from heapq import heappop, heappush
from typing import Any, Literal, cast

from msgspec import Raw, Struct

from holdfast.backends.protocol import Cleared, Fence, Lease, Mark
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite, check_lease
from holdfast.core.event import JOINED, REMOVED, to_datetime
from holdfast.core.layers import Layer, register_layer
from holdfast.core.log import Log
from holdfast.core.transaction import PendingCommit, PendingScope
from holdfast.errors import UsageError, show_value
from holdfast.names import check_name

register_layer(
    Layer(name="inbox", prefixes=("inbox",), removable=("inbox",), kept_with={"inbox": None})
)

SENT = "inbox.sent"
TAKEN = "inbox.taken"

Kind = Literal["stop", "interrupt", "steer", "follow-up", "ambient"]
KINDS: tuple[Kind, ...] = ("stop", "interrupt", "steer", "follow-up", "ambient")
"""The kinds, most urgent first."""
WAKING = frozenset(("stop", "interrupt", "steer"))


class InboxMessage(Struct, frozen=True):
    """One message; its `revision` in the inbox identifies it."""

    revision: int
    kind: Kind
    name: str | None
    value: Any
    sender: str
    time: datetime


class _Sent(Struct, frozen=True, omit_defaults=True):
    kind: Kind
    value: Raw
    name: str | None = None


class _Taken(Struct, frozen=True):
    revisions: list[int]


def stream_of(owner: str) -> str:
    """Returns the name of the inbox of a stream or a coordinator."""
    return f"inbox/{owner}"


def send(
    log: Log,
    owner: str,
    kind: str,
    value: Any = None,
    *,
    name: str | None = None,
    id: str | None = None,
    marks: tuple[Mark | Cleared, ...] = (),
) -> int:
    """Adds a message and returns its revision. A message with the same `id` is added only once."""
    if kind not in KINDS:
        raise UsageError(f"a message is one of {', '.join(KINDS)}, found {show_value(kind)}")
    if name is not None:
        name = check_name(name, "message name")
    if id is not None:
        id = check_name(id, "message id")
    write = StreamWrite(stream_of(owner), (sent_event(kind, value, name),), key=id)
    return log.commit(ProposedCommit((write,), marks=marks)).revision


def sent_event(kind: Kind, value: Any, name: str | None) -> NewEvent:
    """Returns the event of a message."""
    return NewEvent(SENT, codec.encode_plain(_Sent(kind, Raw(codec.encode(value)), name)))


class Inbox:
    """The messages for one owner, as far as they were read."""

    def __init__(self, log: Log, owner: str) -> None:
        self.stream = stream_of(owner)
        self.revision = 0
        self.messages: list[InboxMessage] = []
        self.taken: set[int] = set()
        self._named: dict[str, list[tuple[int, int, InboxMessage]]] = {}  # heaps: the first is next
        self._stops: list[InboxMessage] = []
        self._unanswered: tuple[Fence, list[InboxMessage]] | None = None  # of a `take` that failed
        self._log = log

    def look(self) -> bool:
        """Reads what came since the last look; returns whether anything did."""
        records = self._log.records(self.stream, after=self.revision)
        for record in records:
            self.revision = record.revision
            if record.type == SENT:
                sent = codec.decode_as(record.payload, _Sent)
                self._add(
                    InboxMessage(
                        record.revision,
                        sent.kind,
                        sent.name,
                        codec.decode(sent.value),
                        record.actor,
                        to_datetime(record.time),
                    )
                )
            elif record.type == TAKEN:
                self.taken.update(codec.decode_as(record.payload, _Taken).revisions)
            elif record.type == REMOVED:  # with its owner: earlier messages were for that life
                self.messages.clear()
                self.taken.clear()
                self._named.clear()
                self._stops.clear()
                self._unanswered = None
        return bool(records)

    def _add(self, message: InboxMessage) -> None:
        self.messages.append(message)
        if message.kind == "stop":
            self._stops.append(message)
        if message.name is not None:
            heap = self._named.setdefault(message.name, [])
            heappush(heap, (KINDS.index(message.kind), message.revision, message))

    def first(self, name: str, taken: Collection[int] = ()) -> InboxMessage | None:
        """Returns the most urgent, then oldest message of a name that was not taken; or None.

        It does not look at messages of other names. `taken` are revisions that another record took.
        """
        heap = self._named.get(name, [])
        while heap and (heap[0][1] in self.taken or heap[0][1] in taken):
            heappop(heap)
        return heap[0][2] if heap else None

    def stop(self) -> InboxMessage | None:
        """Returns the oldest stop that was not taken; None if there is none."""
        return next((stop for stop in self._stops if stop.revision not in self.taken), None)

    def waiting(self, taken: Collection[int] = ()) -> Iterator[InboxMessage]:
        """Returns messages that were not taken, the most urgent first, then the oldest.

        `taken` are revisions that another record took.
        """
        # Taken messages are dropped here: else each call would go over all that ever came.
        left = self.messages = [
            m for m in self.messages if m.revision not in self.taken and m.revision not in taken
        ]
        return iter(sorted(left, key=lambda m: (KINDS.index(m.kind), m.revision)))

    def take(
        self, lease: Lease, *, wants: Callable[[InboxMessage], bool] = lambda message: True
    ) -> list[InboxMessage]:
        """Takes the waiting messages that `wants` accepts, under the owner's lease; returns them.

        Raises LeaseLostError if the lease has passed on; then nothing was taken. After an error
        that leaves the outcome unknown, call it again: it returns the messages that the failed call
        was about. That is safe because the commit has an idempotency key: it is made once.
        """
        check_lease(lease)
        self.look()
        fence = Fence(lease.name, lease.owner, lease.epoch)
        if self._unanswered is not None and self._unanswered[0] == fence:
            found = self._unanswered[1]
        else:
            found = [message for message in self.waiting() if wants(message)]
        if found:
            taken = _Taken([message.revision for message in found])
            new_event = NewEvent(TAKEN, codec.encode_plain(taken))
            key = f"{TAKEN}#{lease.epoch}:{min(taken.revisions)}"
            write = StreamWrite(self.stream, (new_event,), key=key)
            self._unanswered = fence, found
            self._log.commit(ProposedCommit((write,), fence=fence))
            self._unanswered = None
            self.taken.update(taken.revisions)
        return found


# --- taking in somebody's commit ------------------------------------------------------------------


class _Taking:
    """What a pending commit adds to an inbox: the messages that it takes.

    Each message has its own key. So another commit that takes one of them again is refused as a
    whole.
    """

    def __init__(self, stream: str) -> None:
        self.name = stream
        self.revisions: list[int] = []

    def _guards(self) -> tuple[None, None]:
        return None, None

    def _write(self, expected: None, key: str | None) -> StreamWrite:
        new_events = [
            NewEvent(TAKEN, codec.encode_plain(_Taken([revision])), key=f"{TAKEN}@{revision}")
            for revision in self.revisions
        ]
        if key is not None:
            # The commit's own key is on the first event, and one event has one key.
            new_events.insert(0, NewEvent(JOINED, b"null"))
        return StreamWrite(self.name, tuple(new_events), expected, key)


def take_in(pending: PendingCommit, owner: str, revision: int, lease: Lease) -> None:
    """Takes a message in the commit that does what the message asks for: both, or neither.

    The commit is fenced by the owner's lease. It raises ConflictError if the message was taken
    before, and LeaseLostError if the lease has passed on; then nothing is written.
    """
    check_lease(lease)
    if pending._lease not in (None, lease):
        raise UsageError(
            f'a commit that takes a message of "{owner}" is fenced by its lease, and this one has '
            f'the lease "{getattr(pending._lease, "name", "")}"',
            hint="leave out lease=",
        )
    pending._lease = lease
    stream = stream_of(owner)
    taking = cast("Any", pending._scopes.setdefault(stream, cast("PendingScope", _Taking(stream))))
    if revision not in taking.revisions:
        taking.revisions.append(revision)
