"""Sessions and turns: which workers are in a conversation, and whether they ended it or died.

    session.begun    {"worker", "keep"?}    a worker entered it; keep: its state stays at the end
    session.crashed  {}                     its worker was found dead when its state was dropped
    turn.begun       {"id", "worker"}
    turn.ended       {"id", "outcome", "error"?}    outcome: completed or failed

The events of a scope's sessions are numbered (`keyed_item.py`), because a session that is kept may
begin again after a crash. A session ends with its scope, and only the event `closed` is written for
that. Whether a session that has not ended is active or crashed is not stored. It is judged when it
is read, by its worker's lease. The same holds for turns.

A turn groups the messages of one exchange. `turn.begun` is written together with the turn's first
message, which saves a sync, and a turn without messages leaves nothing. `turn.ended` is written
when the block is left. A mark is set with the first and cleared with the second, so that turns that
have not ended are found without reading a stream. A turn whose worker is dead reads as
`interrupted`: its messages are there, and no more will follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from holdfast.backends.protocol import Cleared, Mark, Record
from holdfast.core import codec
from holdfast.core.commit import NewEvent
from holdfast.core.event import from_datetime, to_datetime
from holdfast.core.leases import LeaseKeeper
from holdfast.core.log import Log, scope_stream
from holdfast.core.page import NO_LIMIT
from holdfast.errors import (
    ClosedError,
    ConflictError,
    ExpiredError,
    HoldfastError,
    UsageError,
    show_error,
)
from holdfast.names import new_id
from holdfast.record import keyed_item
from holdfast.record.context import RecordContext, Stale
from holdfast.record.in_run import refuse_in_body
from holdfast.record.keyed_item import KeyedItem
from holdfast.record.message_events import Message

if TYPE_CHECKING:
    from holdfast.record.messages import Messages
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")

SESSION_BEGUN = "session.begun"
SESSION_CRASHED = "session.crashed"
INDEX_SESSION = "session"
"""Has a mark for each session that was begun and has not ended."""

SessionStatus = Literal["active", "completed", "crashed"]


class Session(Struct, frozen=True):
    """A session at the time it was read."""

    scope: str
    worker: str
    status: SessionStatus
    begun_at: datetime
    ended_at: datetime | None
    keep: bool


class _SessionBegun(Struct):
    worker: str
    keep: bool = False


def _keyed_item(stream: str) -> KeyedItem:
    return KeyedItem(INDEX_SESSION, stream, "begun")


def begin_session(context: RecordContext, scope: Scope, *, keep: bool) -> None:
    """Records that this worker began a session; the mark stays until the session has ended."""
    context.lease_keeper.register()
    item = _keyed_item(scope.name)
    newest = keyed_item.newest_record(context.log, item)
    number = 1 if newest is None else newest[0] + 1
    new_event = NewEvent(SESSION_BEGUN, codec.encode({"worker": context.worker, "keep": keep}))
    write = scope_stream(scope).write((new_event,), key=item.key(number))
    follows = 0 if newest is None else newest[1].revision
    marks = (item.mark(INDEX_SESSION),)
    keyed_item.append(context.log, item, number, write, marks=marks, follows=follows)


def record_crash(context: RecordContext, stream: str) -> None:
    """Records, before a session is dropped, that its worker did not end it."""
    item = _keyed_item(stream)
    newest = keyed_item.newest_record(context.log, item)
    if newest is None or newest[1].type == SESSION_CRASHED:
        return
    number = newest[0] + 1
    write = keyed_item.next_write(item, number, NewEvent(SESSION_CRASHED, b"{}"))
    try:
        keyed_item.append(context.log, item, number, write, follows=newest[1].revision)
    except (ConflictError, ClosedError):
        _logger.debug('session "%s" is dropped by another worker at the same time', stream)


def cleared_mark(stream: str) -> Cleared:
    """Returns the change that clears the mark of a session."""
    return _keyed_item(stream).cleared(INDEX_SESSION)


def read_session(context: RecordContext, stream: str) -> Session | None:
    """Returns the newest session of a scope; None if there was none.

    Raises ExpiredError if the scope has expired.
    """
    item = _keyed_item(stream)
    newest = keyed_item.newest_record(context.log, item)
    if newest is None:
        return None
    number, record = newest
    has_crashed = record.type == SESSION_CRASHED
    if has_crashed:
        revision = keyed_item.find_event(context.log, item, number - 1)
        record = keyed_item.record_at(context.log, item, revision)
    begun = codec.decode_as(record.payload, _SessionBegun)
    is_closed = keyed_item.is_closed(context.log, stream)
    head = context.log.head(stream) if is_closed else None
    if is_closed and not has_crashed:
        status: SessionStatus = "completed"
    elif not has_crashed and context.lease_keeper.is_alive(begun.worker):
        status = "active"
    else:
        status = "crashed"
    return Session(
        stream,
        begun.worker,
        status,
        to_datetime(record.time),
        None if head is None else to_datetime(head.time),
        begun.keep,
    )


def status_of(context: RecordContext, stream: str) -> SessionStatus:
    """Returns the status of a conversation: crashed if a worker died in its session or turn."""
    session = read_session(context, stream)
    if session is not None:
        return session.status
    if keyed_item.is_closed(context.log, stream):
        return "completed"
    for mark in context.log.find_marks(INDEX_TURN, group=stream):
        if not context.lease_keeper.is_alive(worker_of(mark)):
            return "crashed"
    return "active"


def live_here(context: RecordContext, stream: str) -> Iterator[str]:
    """Yields a text for each session or turn of a live worker: the reasons not to remove it."""
    session = read_session(context, stream)
    if session is not None and session.status == "active":
        yield f'worker "{session.worker}" has its session there'
    for mark in context.log.find_marks(INDEX_TURN, group=stream):
        if context.lease_keeper.is_alive(worker_of(mark)):
            yield f'worker "{worker_of(mark)}" has a turn there'


def marked_sessions(context: RecordContext) -> Iterator[tuple[str, Session | None]]:
    """Yields each scope with the mark of a session, and the session; None if it has expired."""
    for mark in context.log.marks.list(INDEX_SESSION, limit=NO_LIMIT):
        try:
            yield mark.group, read_session(context, mark.group)
        except ExpiredError:
            _logger.debug('the session of "%s" has expired', mark.group)
            yield mark.group, None


def unended_sessions(context: RecordContext) -> list[Session]:
    """Returns the sessions that have not ended, active or crashed, oldest first."""
    found = [
        one for _, one in marked_sessions(context) if one is not None and one.status != "completed"
    ]
    return sorted(found, key=begun_first)


def begun_first(one: Session) -> tuple[int, str]:
    """Returns the sort key of sessions: the oldest first."""
    return from_datetime(one.begun_at), one.scope


def stale_sessions(context: RecordContext) -> Iterator[Stale]:
    """Yields the sessions whose worker died in them."""
    for one in unended_sessions(context):
        if one.status == "crashed":
            text = f'worker "{one.worker}" died in it'
            yield Stale("session", one.scope, one.scope, "owner silent", text, one.begun_at)


# --- turns ----------------------------------------------------------------------------------------


TURN_BEGUN = "turn.begun"
TURN_ENDED = "turn.ended"
INDEX_TURN = "turn"


TurnStatus = Literal["completed", "failed", "open", "interrupted"]


class Turn(Struct, frozen=True):
    """A turn at the time it was read."""

    id: str
    scope: str
    worker: str
    status: TurnStatus
    begun_at: datetime
    ended_at: datetime | None = None
    error: str | None = None


class _TurnBegun(Struct):
    id: str
    worker: str


class _TurnEnded(Struct):
    id: str
    outcome: Literal["completed", "failed"]
    error: str | None = None


class OpenTurn:
    """The block of `with chat.messages.turn() as turn:`; messages added by it are the turn's."""

    def __init__(self, messages: Messages, log: Log, lease_keeper: LeaseKeeper) -> None:
        self.id = new_id(log.clock)
        self.name = messages.name
        self._messages = messages
        self._log = log
        self._lease_keeper = lease_keeper
        self._has_begun = False
        self._was_sent = False
        self._is_over = False

    def add(self, role: str, content: Any = None, **fields: Any) -> Message:
        """Adds a message to the turn; see `messages.add`."""
        return self._messages.add(role, content, turn=self, **fields)

    def add_many(
        self, items: Any, *, subject: str | None = None, key: str | None = None
    ) -> list[Message]:
        """Adds several messages in one commit; see `messages.add_many`."""
        return self._messages.add_many(items, subject=subject, key=key, turn=self)

    def _begin(self) -> tuple[tuple[NewEvent, ...], tuple[Mark | Cleared, ...]]:
        """Returns the events and marks that begin the turn, for its first commit; later nothing.

        The worker is registered first: without a lease, nobody would notice its death.
        """
        if self._is_over:
            raise UsageError(f'turn "{self.id}" has ended: it takes no more messages')
        if self._has_begun:
            return (), ()
        refuse_in_body("a turn")
        self._lease_keeper.register()
        self._was_sent = True
        begun = codec.encode_plain({"id": self.id, "worker": self._lease_keeper.worker})
        return (NewEvent(TURN_BEGUN, begun),), (self._mark(),)

    def _mark(self) -> Mark:
        return Mark(INDEX_TURN, self._mark_key, group=self.name)

    @property
    def _mark_key(self) -> str:
        return f"{self.id}@{self._lease_keeper.worker}"

    def _mark_begun(self, _: object = None) -> None:
        """Notes that the turn's first commit is durable."""
        self._has_begun = True

    def _mark_over(self) -> None:
        """Notes that the turn's end is durable."""
        self._is_over = True

    def end(self, error: BaseException | None = None) -> None:
        """Ends the turn; writes nothing for a turn without messages."""
        if self._is_over:
            return
        if self._has_begun or self._is_marked():
            self._messages._commit_events(
                (self._end_event(error),), marks=(Cleared(INDEX_TURN, self._mark_key),)
            )
        self._is_over = True  # not earlier: an end that failed can be tried again

    def _is_marked(self) -> bool:
        """Returns whether a commit whose result was lost has begun the turn."""
        return self._was_sent and bool(self._log.find_marks(INDEX_TURN, keys=[self._mark_key]))

    def _end_event(self, error: BaseException | None) -> NewEvent:
        """Returns the event that ends the turn."""
        data: dict[str, Any] = {"id": self.id, "outcome": "failed" if error else "completed"}
        if error is not None:
            data["error"] = show_error(error)[:1000]
        return NewEvent(TURN_ENDED, codec.encode(data))

    def __enter__(self) -> OpenTurn:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> Literal[False]:
        try:
            self.end(error)
        except HoldfastError as trouble:
            if error is None:
                raise
            # The error that ended the block must not be hidden by this one.
            _logger.warning('turn "%s" was not ended: %s', self.id, trouble)
            error.add_note(f'turn "{self.id}" was not ended: {trouble}')
        return False


def go_on_after(turn: OpenTurn, scope: Scope) -> None:
    """Makes a turn that was begun in a joint commit write to the store itself from now on."""
    turn._messages, turn._log = scope.messages, scope_stream(scope).log


def end_in(turn: OpenTurn, messages: Messages) -> Callable[[], None]:
    """Ends a turn in a joint commit; returns what to call when that is durable."""
    if turn.name != messages.name or turn._is_over:
        found = "it has ended" if turn._is_over else f'it is one of "{turn.name}"'
        raise UsageError(f'turn "{turn.id}" cannot be ended in "{messages.name}": {found}')
    end, mark = turn._end_event(None), Cleared(INDEX_TURN, turn._mark_key)
    messages._commit_events((end,), marks=(mark,))
    return turn._mark_over


def worker_of(mark: Mark) -> str:
    """Returns the worker of the turn that a mark stands for."""
    return mark.key.partition("@")[2]


def read_turns(
    path: Iterator[Record], scope: str, lease_keeper: LeaseKeeper, *, last_rewind: Callable[[], int]
) -> Iterator[Turn]:
    """Yields turns, newest first, from the events of a conversation, newest first.

    Only a turn that was begun after `last_rewind` (the newest event that rewound or forked the
    stream) can still be open. An earlier one goes on in another stream, if at all. A turn that was
    begun twice, by two threads at once or because a result was lost, counts as one.
    """
    ends: dict[str, tuple[_TurnEnded, int]] = {}
    known: set[str] = set()
    for record in path:
        if record.type == TURN_ENDED:
            ended = codec.decode_as(record.payload, _TurnEnded)
            ends.setdefault(ended.id, (ended, record.time))
        elif record.type == TURN_BEGUN:
            begun = codec.decode_as(record.payload, _TurnBegun)
            if begun.id in known:
                continue
            known.add(begun.id)
            ended, time = ends.pop(begun.id, (None, 0))
            status: TurnStatus
            if ended is not None:
                status = ended.outcome
            elif record.revision > last_rewind() and lease_keeper.is_alive(begun.worker):
                status = "open"
            else:
                status = "interrupted"
            yield Turn(
                begun.id,
                scope,
                begun.worker,
                status,
                to_datetime(record.time),
                to_datetime(time) if ended is not None else None,
                ended.error if ended is not None else None,
            )
