"""Events as people and programs see them, the built-in event types, and the digest that links them.

An event is one immutable fact in one stream. The built-in types and their data:

    opened        {"parent": "team/red"}            the scope was given a parent; or, first of all,
                  {"expires": 1893456000000000}     when it ends by itself (microseconds)
    changed       [op, op, …]                       state changed; ops are those of `tree.py`
    restored      {"to": 7, "ops": [op, …]}         state went back to revision 7; ops are the way;
                  "undo": true                      the state alone did, by one change
    checkpointed  null                              this revision was given a name, nothing else
    forked        {"from": "conversation/a", "at": 7}   first event of a fork
    closed        {"keep": true}                    no more writes; if not keep, state was let go
    lease         {"name": …, "owner": …, "epoch": …}   a lease passed to a new epoch

A checkpoint is the envelope field `checkpoint` of whatever event made that revision, so naming a
change costs no second event. Types that begin with a letter and contain a dot belong to layers
above (`run.created`); an unknown type leaves the state as it is and is shown as it stands.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from msgspec import Struct

from holdfast import codec
from holdfast.backends.protocol import Position, Record

OPENED = "opened"
CHANGED = "changed"
RESTORED = "restored"
CHECKPOINTED = "checkpointed"
FORKED = "forked"
CLOSED = "closed"
LEASE = "lease"

ORIGIN = bytes(32)
"""The link before the first event of a stream that is not a fork."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNREAD = object()


def next_link(previous: bytes, payload: bytes, envelope: list[str | int | None]) -> bytes:
    """Returns the digest that binds an event to everything before it in its stream.

    The envelope is stream, revision, time, type, actor, key, checkpoint and subject, in this order
    and as one JSON array, so that no two envelopes have the same bytes. Position is left out, so a
    copy in another backend has equal links. The payload goes in as its own digest: erasure may
    later replace the bytes and keep the digest, and the chain still verifies.
    """
    digest = sha256(payload).digest()
    return sha256(previous + digest + codec.encode_plain(envelope)).digest()


def record_link(previous: bytes, record: Record) -> bytes:
    """Returns the link that the record must have behind `previous`."""
    envelope = [
        record.stream,
        record.revision,
        record.time,
        record.type,
        record.actor,
        record.key,
        record.checkpoint,
        record.subject,
    ]
    return next_link(previous, record.payload, envelope)


class _Opened(Struct):
    parent: str | None = None
    expires: int = 0


def opened_payload(parent: str | None, expires_us: int) -> bytes:
    """Returns the payload of an `opened` event, without what it does not say."""
    said: dict[str, str | int] = {}
    if parent is not None:
        said["parent"] = parent
    if expires_us:
        said["expires"] = expires_us
    return codec.encode_plain(said)


def opened_of(payload: bytes) -> tuple[str | None, int]:
    """Returns what an `opened` event says: the parent, and when the stream ends (0: never)."""
    opened = codec.decode_as(payload, _Opened)
    return opened.parent, opened.expires


def expires_of(first: Record) -> int:
    """Returns when a stream ends by itself, which only its very first event can say (0: never)."""
    is_opened = first.revision == 1 and first.type == OPENED
    return opened_of(first.payload)[1] if is_opened else 0


def to_datetime(time_us: int) -> datetime:
    """Returns the aware datetime of a stored time."""
    return _EPOCH + timedelta(microseconds=time_us)


def from_datetime(moment: datetime) -> int:
    """Returns the stored form of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Event:
    """One stored event; `data` is decoded when it is first asked for."""

    __slots__ = ("_data", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._data: Any = _UNREAD

    @property
    def stream(self) -> str:
        return self.record.stream

    @property
    def revision(self) -> int:
        return self.record.revision

    @property
    def position(self) -> Position:
        return self.record.position

    @property
    def type(self) -> str:
        return self.record.type

    @property
    def actor(self) -> str:
        return self.record.actor

    @property
    def checkpoint(self) -> str | None:
        return self.record.checkpoint

    @property
    def key(self) -> str | None:
        return self.record.key

    @property
    def time(self) -> datetime:
        return to_datetime(self.record.time)

    @property
    def link(self) -> str:
        return self.record.link.hex()

    @property
    def data(self) -> Any:
        if self._data is _UNREAD:
            self._data = codec.decode(self.record.payload)
        return self._data

    def __repr__(self) -> str:
        return f"<Event {self.stream}@{self.revision} {self.type}>"


class Checkpoint(Struct, frozen=True):
    """A revision that was given a name."""

    name: str
    stream: str
    revision: int
    time: datetime


class Change(Struct, frozen=True):
    """One place in a scope's state that changed; an absent side is `holdfast.MISSING`."""

    scope: str
    revision: int
    path: tuple[str | int, ...]
    old: Any
    new: Any


Moment = int | str | datetime | Checkpoint
"""A point in a scope's history: a revision, a checkpoint's name, a Checkpoint or a time."""
