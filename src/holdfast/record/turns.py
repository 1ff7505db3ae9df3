"""Turns: a bracket around the messages of one exchange.

`turn.begun` is written together with the turn's first message, so a turn in which nothing is said
leaves nothing; `turn.ended` when the block is left. A mark, set with the one and cleared with the
other, finds every turn that was not ended without reading a stream. One whose worker is dead reads
as `interrupted`: what it said is there, and it will never say more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from holdfast.core import codec
from holdfast.core.commit import Cleared, Mark, NewEvent, Record
from holdfast.core.event import to_datetime
from holdfast.core.leases import LeaseKeeper
from holdfast.core.log import Log
from holdfast.errors import HoldfastError, UsageError, show_error
from holdfast.names import new_id
from holdfast.record.in_run import refuse_in_body
from holdfast.record.message_events import Message

if TYPE_CHECKING:
    from holdfast.record.messages import Messages

BEGUN = "turn.begun"
ENDED = "turn.ended"
INDEX = "turn"
_ALL = 1 << 31

Status = Literal["completed", "failed", "open", "interrupted"]


class Turn(Struct, frozen=True):
    """A turn as it was when it was read."""

    id: str
    scope: str
    worker: str
    status: Status
    begun_at: datetime
    ended_at: datetime | None = None
    error: str | None = None


class _Begun(Struct):
    id: str
    worker: str


class _Ended(Struct):
    id: str
    outcome: Literal["completed", "failed"]
    error: str | None = None


class OpenTurn:
    """The block of `with chat.turn() as turn:`; what is added through it belongs to it."""

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

    def add_many(self, items: Any, *, key: str | None = None) -> list[Message]:
        """Adds several messages in one commit; see `messages.add_many`."""
        return self._messages.add_many(items, key=key, turn=self)

    def begin(self) -> tuple[tuple[NewEvent, ...], tuple[Mark | Cleared, ...]]:
        """Returns what the first commit of the turn has beside its messages; then nothing.

        The worker is registered before, so that its death can be told from its silence.
        """
        if self._is_over:
            raise UsageError(f'turn "{self.id}" has ended: it takes no more messages')
        if self._has_begun:
            return (), ()
        refuse_in_body("a turn")
        self._lease_keeper.beat()
        self._was_sent = True
        begun = codec.encode_plain({"id": self.id, "worker": self._lease_keeper.worker})
        return (NewEvent(BEGUN, begun),), (self._mark(),)

    def _mark(self) -> Mark:
        return Mark(INDEX, self._mark_key, group=self.name)

    @property
    def _mark_key(self) -> str:
        return f"{self.id}@{self._lease_keeper.worker}"

    def committed(self) -> None:
        """Notes that the first commit is durable."""
        self._has_begun = True

    def end(self, error: BaseException | None = None) -> None:
        """Ends the turn; one in which nothing was said leaves nothing."""
        if self._is_over:
            return
        if self._has_begun or self._is_marked():
            self._messages.commit((self.ending(error),), marks=(Cleared(INDEX, self._mark_key),))
        self._is_over = True  # only now: one that could not be ended can be tried again

    def _is_marked(self) -> bool:
        """Says whether the turn was begun by a commit whose answer was lost."""
        return self._was_sent and any(
            mark.key == self._mark_key for mark in self._log.marks.list(INDEX, limit=_ALL)
        )

    def ending(self, error: BaseException | None) -> NewEvent:
        """Returns the event that ends the turn."""
        said: dict[str, Any] = {"id": self.id, "outcome": "failed" if error else "completed"}
        if error is not None:
            said["error"] = show_error(error)[:1000]
        return NewEvent(ENDED, codec.encode(said))

    def __enter__(self) -> OpenTurn:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> Literal[False]:
        try:
            self.end(error)
        except HoldfastError as trouble:
            if error is None:
                raise
            # The error that ended the block is never hidden.
            error.add_note(f'turn "{self.id}" was not ended: {trouble}')
        return False


def worker_of(mark: Mark) -> str:
    """Returns the worker whose turn a mark tells of."""
    return mark.key.partition("@")[2]


def make_turn(messages: Messages, log: Log, lease_keeper: LeaseKeeper) -> OpenTurn:
    """Returns a turn that nothing was said in yet."""
    return OpenTurn(messages, log, lease_keeper)


def read_turns(
    path: Iterator[Record], scope: str, lease_keeper: LeaseKeeper, *, seam: Callable[[], int]
) -> Iterator[Turn]:
    """Yields turns, newest first, from the events of a conversation, newest first.

    Only a turn that was begun behind the `seam` (the newest event that rewound or forked the
    stream) can still be open: whoever was in one before it goes on elsewhere, if at all. One that
    was begun twice, by two threads at once or again because an answer was lost, is one turn.
    """
    ends: dict[str, tuple[_Ended, int]] = {}
    known: set[str] = set()
    for record in path:
        if record.type == ENDED:
            ended = codec.decode_as(record.payload, _Ended)
            ends.setdefault(ended.id, (ended, record.time))
        elif record.type == BEGUN:
            begun = codec.decode_as(record.payload, _Begun)
            if begun.id in known:
                continue
            known.add(begun.id)
            ended, time = ends.pop(begun.id, (None, 0))
            status: Status
            if ended is not None:
                status = ended.outcome
            elif record.revision > seam() and lease_keeper.is_alive(begun.worker):
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
