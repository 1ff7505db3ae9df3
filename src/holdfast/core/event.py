"""Events as people and programs see them, the built-in event types, and the digest that links them.

An event is one immutable fact in one stream. The built-in types and their data:

    opened        {"parent": "team/red"}            the scope was given a parent; in the first event
                  {"expires": 1893456000000000}     also when it ends by itself (microseconds),
                  … "slides": 3600000000            or so long after its newest event, if later,
                  {"id": "…"}                       and the whole id, if its name has a digest
    changed       [op, op, …]                       state changed; ops are those of `tree.py`
    restored      {"to": 7, "ops": [op, …]}         state went back to revision 7 by these ops;
                  "undo": true                      only the state went back, not the messages
                  "undo": true, "undoes": 7         a restore, or the undo of one, was taken back
                  … "life": {…}                     a removal was taken back: what the scope was
                                                    before it, apart from the state
    migrated      {"from": 1, "to": 2, "ops": […]}  these ops brought the state to another version
                                                    of its schema
    checkpointed  null                              this revision was given a name, nothing else
    forked        {"from": "conversation/a", "at": 7}   first event of a fork
                  … "id": "…"                       and its whole id, if its name has a digest
    closed        {"keep": true}                    no more writes; if not keep, state is dropped
    removed       {"marks": [[…], …]}               the scope is gone, with these marks; the next
                                                    event begins a new life of the name
    joined        null                              first event of a commit over several records,
                                                    if none of them can carry the commit's key
    lease         {"name": …, "owner": …, "epoch": …}   a lease passed to a new epoch
    scope.based   {"points": [[7, 0, [op, …]], …]}  the state at revision 7, by value, and the
                                                    version of its schema; it changes nothing
    scope.touched null                              the scope is in use: its end slides on

A checkpoint is the envelope field `checkpoint` of the event that made the revision, so naming a
change costs no second event. Types that begin with a letter and contain a dot belong to layers
above (`run.created`), those that begin with `own:` to users (`own_event.py`). An event of an
unknown type does not change the state, and is shown as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from holdfast.backends.protocol import (
    GONE,
    LinkedRow,
    Mark,
    Position,
    Record,
    is_shortened,
    linked_row,
)
from holdfast.core import codec, tree
from holdfast.core.codec import encode_plain
from holdfast.core.meta import Meta, decode_meta, source_and_trust
from holdfast.core.tree import (
    Ends,
    Lazy,
    Map,
    Op,
    OpBatch,
    apply,
    apply_op,
    decode_ops,
    fold_ends,
    thaw,
)
from holdfast.errors import ClosedError, CorruptError, LetGoError, UsageError

OPENED = "opened"
CHANGED = "changed"
RESTORED = "restored"
MIGRATED = "migrated"
CHECKPOINTED = "checkpointed"
FORKED = "forked"
CLOSED = "closed"
REMOVED = "removed"
LEASE = "lease"
BASED = "scope.based"
TOUCHED = "scope.touched"
JOINED = "joined"

OF_STATE = frozenset((CHANGED, RESTORED, MIGRATED))
"""The types of events that change the state; their meta says which schema version it has."""

CORE_TYPES = frozenset(
    {OPENED, CHANGED, RESTORED, CHECKPOINTED, FORKED, CLOSED, REMOVED, LEASE, JOINED, MIGRATED}
)
"""The built-in types without a dot. The list is closed: a new built-in type must have a dot,
because any other word without one is a type of the user (`own_event.py`)."""

ORIGIN = bytes(32)
"""The link before the first event of a stream that is not a fork."""

LIFE = "\x1elife"
"""The checkpoint name of an event that ended a life, or took such an end back. No user can give it.
So one lookup by name finds the current life of a stream, however long the stream is."""

BASE = "\x1ebase"
"""The checkpoint name of an event that holds states of its stream by value (`compaction.py`)."""

CUT = "\x1ecut"
"""The checkpoint name of the change that takes an erased text out of a state (`cutting.py`). A
state that another process folded before it may still hold the text, so it must not be stored."""

OUR_NAMES = frozenset((LIFE, BASE, CUT))
"""Checkpoint names that are internal: no user can give them, and no user sees them."""

SEALED = b'{"$sealed":"'
"""How the payload of a sealed event begins (`sealing.py`); no layer writes such a payload."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNREAD = object()


class Opened(Record, frozen=True, gc=False):
    """A decrypted record of a subject's scope, with the sealed record that is stored."""

    stored: Record | None = None


def own_subject(subject: str | None, meta: str | None) -> str | None:
    """Returns the subject whose stream an event is in, by its envelope; None if there is none."""
    return subject if subject is not None and meta is not None and '"cipher":' in meta else None


def next_link(
    previous: bytes, payload: bytes, envelope: list[str | int | None], digest: bytes | None = None
) -> bytes:
    """Returns the digest that binds an event to everything before it in its stream.

    The envelope is stream, revision, time, type, actor, key, checkpoint and subject, in this order
    and as one JSON array, so that no two envelopes have the same bytes. The text of `meta` comes
    last and is left out if there is none, so an event without it has the link that format 1 gave
    it. The position is left out, so a copy in another backend has equal links. The payload goes in
    as its digest: when its bytes are let go of and the digest is kept, the chain still verifies.
    """
    digest = digest or sha256(payload).digest()
    return sha256(previous + digest + codec.encode_plain(envelope)).digest()


def record_link(previous: bytes, record: Record, digest: bytes | None = None) -> bytes:
    """Returns the link that the record must have after `previous`.

    `digest` is the digest of its payload, for a payload that is no longer stored.
    """
    if isinstance(record, Opened) and record.stored is not None:
        record = record.stored
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
    if record.meta is not None:
        envelope.append(record.meta)
    return next_link(previous, record.payload, envelope, digest)


def follows(previous: bytes, record: Record) -> bool:
    """Returns whether a record is the one that comes after `previous`, as far as it can tell.

    A record whose payload was let go of or shortened passes: it keeps its link, but not the bytes
    that the link was made of. `check` verifies it too, with the payload's digest, which the
    letting-go event has.
    """
    is_rewritten = record.payload == GONE or is_shortened(record.payload)
    return is_rewritten or record_link(previous, record) == record.link


class Lifetime(NamedTuple):
    """How long a stream lasts, as its first event says."""

    expires_us: int = 0
    """When it ends by itself, on the backend's clock; 0: never."""
    slides_us: int = 0
    """The least time between its newest event and its end; 0: its end is fixed."""

    def end(self, time_us: int) -> int:
        """Returns when a stream ends whose newest event has this time.

        A sliding end is rounded down to a whole millisecond.
        """
        if not self.slides_us:
            return self.expires_us
        return max(self.expires_us, (time_us + self.slides_us) // 1000 * 1000)


LASTS = Lifetime()


class _Opened(Struct):
    parent: str | None = None
    expires: int = 0
    slides: int = 0
    id: str | None = None


def opened_payload(parent: str | None, lifetime: Lifetime = LASTS, id: str | None = None) -> bytes:
    """Returns the payload of an `opened` event; fields without a value are left out."""
    said: dict[str, str | int] = {}
    if parent is not None:
        said["parent"] = parent
    if lifetime.expires_us:
        said["expires"] = lifetime.expires_us
    if lifetime.slides_us:
        said["slides"] = lifetime.slides_us
    if id is not None:
        said["id"] = id
    return codec.encode_plain(said)


def opened_of(payload: bytes) -> tuple[str | None, Lifetime]:
    """Returns what an `opened` event says: the parent, and how long the stream lasts."""
    opened = codec.decode_as(payload, _Opened)
    return opened.parent, Lifetime(opened.expires, opened.slides)


def lifetime_of(first: Record) -> Lifetime:
    """Returns how long a stream lasts, which only its first event can say."""
    is_opened = first.revision == 1 and first.type == OPENED
    return opened_of(first.payload)[1] if is_opened else LASTS


def to_datetime(time_us: int) -> datetime:
    """Returns the aware datetime of a stored time."""
    return _EPOCH + timedelta(microseconds=time_us)


def from_datetime(moment: datetime) -> int:
    """Returns the stored form of an aware datetime."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Event:
    """One stored event; `data` is decoded on first access."""

    __slots__ = ("_data", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._data: Any = _UNREAD

    @property
    def stream(self) -> str:
        """The name of the scope or run that it belongs to."""
        return self.record.stream

    @property
    def revision(self) -> int:
        """Its number in that stream, from 1."""
        return self.record.revision

    @property
    def position(self) -> Position:
        """Its place in the order of the whole store."""
        return self.record.position

    @property
    def type(self) -> str:
        """What happened, such as `changed` or `message.added`."""
        return self.record.type

    @property
    def actor(self) -> str:
        """Who wrote it."""
        return self.record.actor

    @property
    def source(self) -> str | None:
        """Where it came from: human, model, tool, import or file; None if nobody said."""
        return source_and_trust(self.record.meta)[0]

    @property
    def trust(self) -> str | None:
        """How far its source is trusted, in a word that the program chose; None if nobody said."""
        return source_and_trust(self.record.meta)[1]

    @property
    def checkpoint(self) -> str | None:
        """The name that its writer gave this revision, or None."""
        name = self.record.checkpoint
        return None if name in OUR_NAMES else name

    @property
    def key(self) -> str | None:
        """The idempotency key that it was written with, or None."""
        return own_key(self.record.key)

    @property
    def time(self) -> datetime:
        """When it was written, by the clock of its writer; in UTC."""
        return to_datetime(self.record.time)

    @property
    def at(self) -> datetime:
        """When it was written: the same as `time`."""
        return self.time

    @property
    def link(self) -> str:
        """The digest that covers it and everything before it in its stream."""
        return self.record.link.hex()

    @property
    def meta(self) -> Meta | None:
        """What is known of the event beside its data; None if nothing is."""
        return None if self.record.meta is None else decode_meta(self.record.meta)

    @property
    def is_let_go(self) -> bool:
        """Whether the event's data was let go of: then `data` raises LetGoError."""
        return self.record.payload == GONE

    @property
    def data(self) -> Any:
        """Its decoded payload, as plain values. Raises LetGoError if it was let go of."""
        if self._data is _UNREAD:
            if self.record.payload == GONE:
                raise LetGoError(self.record.stream, self.record.revision)
            self._data = codec.decode(self.record.payload)
        return self._data

    def __repr__(self) -> str:
        return f"<Event {self.stream}@{self.revision} {self.type}>"


_OF_LIFE = "\x1e"


def key_in(removed_at: int, key: str | None) -> str | None:
    """Returns an idempotency key in the form that is stored in one life of a scope.

    A key counts only in the life that it is used in, so the stored form says which life that is. In
    the first life it is what the caller gave. No key of a caller has a control character, so the
    two forms cannot be confused.
    """
    return key if key is None or not removed_at else f"{key}{_OF_LIFE}{removed_at}"


def own_key(key: str | None) -> str | None:
    """Returns a stored key in the form that the caller gave it, whichever life it is of."""
    return None if key is None else key.partition(_OF_LIFE)[0]


class Checkpoint(Struct, frozen=True):
    """A revision that was given a name."""

    name: str
    stream: str
    revision: int
    time: datetime


class Change(Struct, frozen=True):
    """One place in a scope's state that changed; an absent side is `holdfast.MISSING`.

    `time` and `position` are those of the event that made the change; None if this is a difference
    between two moments. They are ignored when changes are compared.
    """

    scope: str
    revision: int
    path: tuple[str | int, ...]
    old: Any
    new: Any
    time: datetime | None = None
    position: Position | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Change):
            return False
        mine = (self.scope, self.revision, self.path, self.old, self.new)
        return mine == (other.scope, other.revision, other.path, other.old, other.new)

    def __hash__(self) -> int:
        return hash((self.scope, self.revision, self.path))

    def __ne__(self, other: object) -> bool:
        return not self == other  # the __ne__ of Struct would compare all fields


Moment = int | str | datetime | Checkpoint
"""A point in a scope's history: a revision, a checkpoint's name, a Checkpoint or a time."""


# --- fold -----------------------------------------------------------------------------------------
#
# From events to state: one left fold. Every other form of a state is a cache of it. Pure functions.


BlobReader = Callable[[str, int], bytes]

NOTHING = Map()
UNSEALED = Map()
"""What a StreamEnd has as its root if its stream is known to have no sealed value beside others."""
UNKNOWN = Map()
"""The root of a state that cannot be known, because events that made it were let go of. It is
recognised by identity (`is`) and never handed out: `state_of` raises. After a removal, or a closing
that drops the state, the state is known again."""


class StreamState(Struct, frozen=True):
    """What a stream's events fold to at one revision."""

    revision: int
    link: bytes
    time: int
    root: Map
    parent: str | None = None
    closed_at: int = 0  # the revision that closed the scope, 0 while it is open
    dropped: bool = False  # the state was dropped when the scope was closed
    expires_us: int = 0  # the first end of a stream that ends by itself; 0: it lasts
    removed_at: int = 0  # the revision that ended the previous life; in a StreamEnd -1: not known
    version: int = 0  # of the state's schema; 0: it has none; in a StreamEnd -1: not known
    subject: str | None = None  # the random id of the scope's subject: its events are sealed
    slides_us: int = 0  # the least time from its newest event to its end; 0: the end is fixed
    ends: Ends | None = None  # when values of the state end, by path; None: none ever had an end

    @property
    def ends_us(self) -> int:
        """When the stream ends by itself, on the backend's clock; 0: it lasts."""
        return Lifetime(self.expires_us, self.slides_us).end(self.time)

    @property
    def is_absent(self) -> bool:
        """Whether the scope is not there: it was never written to, or was removed since."""
        return self.revision == self.removed_at


class StreamEnd(StreamState, frozen=True):
    """The end of a stream that was not folded: enough to append an event that changes no state.

    `root` is not a state, and `parent` is None if it was not looked up. A StreamEnd is never kept
    or handed out as a state.
    """


EMPTY = StreamState(revision=0, link=ORIGIN, time=0, root=NOTHING)


def state_of(state: StreamState, name: str) -> Map:
    """Returns the state, which is never empty by accident.

    Raises ClosedError if it was dropped, and LetGoError if events that made it were let go of.
    """
    if state.dropped:
        raise ClosedError(
            f'the state of scope "{name}" was dropped when it was closed at revision '
            f"{state.closed_at}",
            stream=name,
            hint=f"at({state.closed_at - 1}) still reads what it was",
        )
    if state.root is UNKNOWN:
        raise LetGoError(name, state.revision)
    return state.root


class Life(Struct, frozen=True, omit_defaults=True):
    """What a scope was before its removal, apart from its state; an undo of that restores it."""

    removed_at: int = 0
    parent: str | None = None
    closed_at: int = 0
    dropped: bool = False


class _Restored(Struct):
    to: int
    ops: Raw
    undo: bool = False
    undoes: int = 0
    life: Life | None = None


class _Migrated(Struct):
    ops: Raw


class _Forked(Struct):
    at: int
    origin: str = field(name="from")
    id: str | None = None


class _Closed(Struct):
    keep: bool = True


def ops_of(record: Record) -> tuple[Op, ...]:
    """Returns the ops that a record applies to the state; none for types that leave it alone.

    Raises LetGoError if they were let go of.
    """
    return stored_ops(record.stream, record.revision, record.type, record.payload)


def stored_ops(stream: str, revision: int, type: str, payload: bytes) -> tuple[Op, ...]:
    """Returns what `ops_of` returns, for a caller that has only these fields of the record."""
    if payload == GONE and type in OF_STATE:
        raise LetGoError(stream, revision)
    return ops_in(type, payload)


def ops_in(type: str, payload: bytes) -> tuple[Op, ...]:
    """Returns the ops in a payload of this type of event; none for types that have none."""
    if type == CHANGED:
        return decode_ops(payload)
    if type == RESTORED:
        return decode_ops(bytes(codec.decode_as(payload, _Restored).ops))
    if type == MIGRATED:
        return decode_ops(bytes(codec.decode_as(payload, _Migrated).ops))
    return ()


def version_of(meta: str | None) -> int:
    """Returns the schema version in the meta of an event, 0 if it has none."""
    return 0 if meta is None else decode_meta(meta).schema or 0


def plain_values(ops: tuple[Op, ...], blobs: BlobReader) -> list[Any]:
    """Returns plain copies of the values of ops."""
    return [thaw(Lazy(one.value, None, None, blobs)) for one in ops]


def end_of(record: Record, lifetime: Lifetime = LASTS) -> StreamEnd:
    """Returns the end of a stream whose newest record this is.

    The newest record alone says whether the scope is closed: after `closed` comes nothing but a
    removal, and the event that takes a removal back says what the scope was before.
    """
    closed_at, dropped, removed_at, version = 0, False, -1, -1
    if record.type in OF_STATE:
        # Without a version in its meta, an event with ops means that the state has no schema; an
        # event without ops says nothing.
        said = version_of(record.meta)
        version = said or (-1 if record.payload == b"[]" else 0)
    elif record.type == REMOVED:
        version = 0
    if record.type == CLOSED:
        closed_at = record.revision
        dropped = not codec.decode_as(record.payload, _Closed).keep
    elif record.type == REMOVED:
        removed_at = record.revision
    elif record.type == RESTORED and (life := life_before(record)) is not None:
        closed_at, dropped, removed_at = life.closed_at, life.dropped, life.removed_at
    return StreamEnd(
        record.revision,
        record.link,
        record.time,
        NOTHING,
        None,
        closed_at,
        dropped,
        lifetime.expires_us,
        removed_at,
        version,
        own_subject(record.subject, record.meta),
        lifetime.slides_us,
    )


def removed_fork(record: Record) -> StreamState:
    """Returns what the events of a fork fold to at its removal, whatever it was before."""
    subject = own_subject(record.subject, record.meta)
    at = record.revision
    return StreamState(at, record.link, record.time, NOTHING, removed_at=at, subject=subject)


def life_before(record: Record) -> Life | None:
    """Returns the life that a `restored` event brought back; None if it brought back none."""
    if record.payload == GONE:
        raise LetGoError(record.stream, record.revision)
    return codec.decode_as(record.payload, _Restored).life


class _Removed(Struct, omit_defaults=True):
    marks: list[tuple[str, str, int, int]] = []


def removed_payload(marks: Iterable[Mark]) -> bytes:
    """Returns the payload of a `removed` event: the marks that go with the scope."""
    rows = [(mark.index, mark.key, mark.due, mark.priority) for mark in marks]
    return codec.encode_plain(_Removed(rows))


def marks_before(record: Record) -> tuple[Mark, ...]:
    """Returns the marks that a scope had before the `removed` event."""
    rows = codec.decode_as(record.payload, _Removed).marks
    return tuple(Mark(*row, record.stream) for row in rows)


def parent_of(record: Record) -> str | None:
    """Returns the parent that a record gives its scope; None if it gives none."""
    if record.type != OPENED:
        return None
    return opened_of(record.payload)[0]


def origin_of(record: Record) -> tuple[str, int]:
    """Returns the stream and revision at which a fork begins, from its first record."""
    forked = codec.decode_as(record.payload, _Forked)
    return forked.origin, forked.at


def forked_payload(origin: str, at: int, id: str | None) -> bytes:
    """Returns the payload of a fork's first event; `id` is for a name that has a digest."""
    said: dict[str, str | int] = {"from": origin, "at": at}
    if id is not None:
        said["id"] = id
    return codec.encode_plain(said)


def id_of(first: Record) -> str | None:
    """Returns the whole id, escaped, from the first event of a stream; None if it has none."""
    if first.type == OPENED:
        return codec.decode_as(first.payload, _Opened).id
    return codec.decode_as(first.payload, _Forked).id if first.type == FORKED else None


def restored_payload(
    to: int, ops_payload: bytes, *, undo: bool, undoes: int = 0, life: Life | None = None
) -> bytes:
    """Returns the payload of a `restored` event; its ops have the form that `changed` has.

    An undo takes back one change of the state. `undoes` is the revision of a restore, or of the
    undo of one, that is taken back as a whole; or of a removal, and then `life` is what the scope
    was before it.
    """
    more = b',"undo":true' * undo + (b',"undoes":%d' % undoes if undoes else b"")
    if life is not None:
        more += b',"life":' + codec.encode_plain(life)
    return b'{"to":%d,"ops":%b%b}' % (to, ops_payload, more)


def migrated_payload(start: int, end: int, ops_payload: bytes) -> bytes:
    """Returns the payload of a `migrated` event; its ops have the form that `changed` has."""
    return b'{"from":%d,"to":%d,"ops":%b}' % (start, end, ops_payload)


class _Point(Struct, array_like=True):
    revision: int
    version: int
    ops: Raw


class _Based(Struct):
    points: list[_Point]


class BasePoint(Struct, frozen=True):
    """The state at one revision, from a base: an event that holds states by value."""

    revision: int
    version: int
    root: Map
    ends: Ends | None = None

    def onto(self, state: StreamState) -> StreamState:
        """Returns a fold up to that revision with its unknown state replaced by this one."""
        return replace(state, root=self.root, version=self.version, ends=self.ends)


def based_payload(points: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Returns the payload of a base: for each revision its version, and ops that make its state.

    The ops start from an empty state.
    """
    texts = [b"[%d,%d,%b]" % point for point in points]
    return b'{"points":[%b]}' % b",".join(texts)


def point_of(payload: bytes, revision: int, blobs: BlobReader) -> BasePoint | None:
    """Returns the newest point of a base that is not after a revision; None if it has none.

    Its values do not refer to any event, so a snapshot must hold them by value.
    """
    points = [one for one in codec.decode_as(payload, _Based).points if one.revision <= revision]
    if not points:
        return None
    newest = points[-1]
    ops = decode_ops(bytes(newest.ops))
    root = apply(NOTHING, ops, revision=None, blobs=blobs)
    return BasePoint(newest.revision, newest.version, root, fold_ends(None, ops, blobs))


def ends_of_base(payload: bytes, blobs: BlobReader) -> list[int]:
    """Returns when the values in a base end."""
    found: list[int] = []
    for point in codec.decode_as(payload, _Based).points:
        ends = fold_ends(None, decode_ops(bytes(point.ops)), blobs) or {}
        found += [end_us for path, end_us in ends.items() if path]
    return found


def is_whole_restore(record: Record) -> bool:
    """Returns whether an event brought back more than one change of the state.

    A restore does, and so does the undo of one: messages and tasks go back with the state.
    """
    if record.type != RESTORED:
        return False
    restored = codec.decode_as(record.payload, _Restored)
    return not restored.undo or restored.undoes > 0


def advance(
    state: StreamState,
    link: bytes,
    time: int,
    type: str,
    payload: bytes,
    ops: tuple[Op, ...],
    blobs: BlobReader,
    version: int = 0,
) -> StreamState:
    """Returns the fold one event later. Raises UsageError if an op does not fit the state.

    `version` is the schema version in the event's meta; 0 keeps the version that the fold has.
    """
    revision = state.revision + 1
    version = version or state.version
    if state.revision == state.removed_at and type == RESTORED:
        return _returned(state, revision, link, time, payload, ops, blobs, version)
    if ops:
        if state.root is UNKNOWN:
            root = UNKNOWN
        elif len(ops) == 1:
            root = apply_op(state.root, ops[0], (revision, 0), blobs)
        else:
            root = apply(state.root, ops, revision=revision, blobs=blobs)
        after = replace(state, revision=revision, link=link, time=time, root=root, version=version)
        if state.ends is None and ops[-1].kind != tree.UNTIL:
            return after
        return replace(after, ends=fold_ends(state.ends, ops, blobs))
    root, parent, ends = state.root, state.parent, state.ends
    closed_at, dropped, lasts = state.closed_at, state.dropped, (state.expires_us, state.slides_us)
    if type == OPENED:
        said, lifetime = opened_of(payload)
        parent = said or parent
        if revision == 1:
            lasts = lifetime
    elif type == CLOSED:
        closed_at = revision
        if not codec.decode_as(payload, _Closed).keep:
            root, dropped, ends = NOTHING, True, None
    elif type == FORKED:
        closed_at, dropped, lasts = 0, False, LASTS
    kind = state.__class__  # a StreamEnd stays one: its root is no state
    if type == REMOVED:
        root, parent, closed_at, dropped, version, ends = NOTHING, None, 0, False, 0, None
    removed_at = revision if type == REMOVED else state.removed_at
    return kind(
        revision, link, time, root, parent, closed_at, dropped, lasts[0], removed_at, version,
        state.subject, lasts[1], ends,
    )  # fmt: skip


def _returned(
    state: StreamState,
    revision: int,
    link: bytes,
    time: int,
    payload: bytes,
    ops: tuple[Op, ...],
    blobs: BlobReader,
    version: int,
) -> StreamState:
    """Returns the fold after an event that took a removal back."""
    life = codec.decode_as(payload, _Restored).life or Life(state.removed_at)
    return StreamState(
        revision,
        link,
        time,
        apply(state.root, ops, revision=revision, blobs=blobs),
        life.parent,
        life.closed_at,
        life.dropped,
        state.expires_us,
        life.removed_at,
        version,
        state.subject,
        state.slides_us,
        fold_ends(state.ends, ops, blobs),
    )


Opener = Callable[[str, bytes], bytes]
"""Returns the clear payload, given a subject and the stored payload; `GONE` if it was erased."""


def fold(
    state: StreamState, records: list[Record], blobs: BlobReader, opener: Opener | None = None
) -> StreamState:
    """Returns the fold after the records, having verified order and links (guarantees 6 and 7).

    The records of a fork may begin with those of the stream that it was forked from.
    """
    for stream, run in groupby(records, attrgetter("stream")):
        rows = [linked_row(getattr(record, "stored", record)) for record in run]
        state = fold_rows(state, stream, rows, blobs, opener)
    return state


def fold_rows(
    state: StreamState,
    stream: str,
    rows: Iterable[LinkedRow],
    blobs: BlobReader,
    opener: Opener | None = None,
) -> StreamState:
    """Returns the fold after the rows of a stream, having verified order and links.

    The result equals the last state of `each_state`, at less cost: nearly every event changes the
    state, and no StreamState is made for those.
    """
    before, run = state.link, _batch(state)
    revision, time, version = state.revision, state.time, state.version
    said: str | None = None  # the meta of the newest change: most are equal to the one before
    for row in rows:
        revision += 1
        number, time, type, actor, key, checkpoint, subject, payload, link, meta = row
        try:
            # The same as next_link, inlined: the link is half of what a fold costs.
            parts = (stream, number, time, type, actor, key, checkpoint, subject)
            envelope = encode_plain(parts if meta is None else (*parts, meta))
            found = sha256(before + sha256(payload).digest() + envelope).digest()
        except (TypeError, UnicodeEncodeError):  # damage can turn a value into one of another type
            found, payload = b"", GONE if payload == GONE else b""
        # A payload that was let go of or shortened cannot match its link: `follows` says why.
        if found != link or number != revision:
            if number != revision or (payload != GONE and not is_shortened(payload)):
                raise _unlinked(stream, revision, number)
            if payload == GONE:
                if type in OF_STATE:
                    run = _UnknownBatch(run.ends)
                before = link
                continue
        if subject is not None and own_subject(subject, meta):
            if state.subject is None:
                state = replace(state, subject=subject)
            if type in CORE_TYPES and payload[:12] == SEALED:
                assert opener is not None, "BUG: sealed events without what opens them"
                payload = opener(subject, payload)
                if payload == GONE:
                    if type in OF_STATE:
                        run = _UnknownBatch(run.ends)
                    before = link
                    continue
        try:
            if meta is not said and meta != said and type in OF_STATE:
                said = meta
                version = version_of(meta) or version
            if type == CHANGED:
                run.apply_payload(payload, revision, blobs)
            else:
                state = _settled(state, run, revision - 1, version)
                state = advance(state, link, time, type, payload, ops_in(type, payload), blobs)
                run, version, said = _batch(state), state.version, None
        except UsageError as misfit:
            raise _misfit(stream, revision, misfit) from misfit
        before = link
    return replace(_settled(state, run, revision, version), link=before, time=time)


class _UnknownBatch:
    """Stands for the changes of an unknown state: it stays unknown, whatever they are."""

    def __init__(self, ends: Ends | None) -> None:
        self.ends = ends

    def apply_payload(self, payload: bytes, revision: int, blobs: BlobReader) -> None:
        del payload, revision, blobs

    def root(self) -> Map:
        return UNKNOWN


def _batch(state: StreamState) -> OpBatch | _UnknownBatch:
    if state.root is UNKNOWN:
        return _UnknownBatch(state.ends)
    return OpBatch(state.root, state.ends)


def _settled(
    state: StreamState, run: OpBatch | _UnknownBatch, revision: int, version: int
) -> StreamState:
    """Returns a fold that includes what a batch has gathered up to a revision."""
    root = run.root()
    return replace(state, revision=revision, root=root, version=version, ends=run.ends)


def each_state(
    state: StreamState, records: Iterable[Record], blobs: BlobReader
) -> Iterator[StreamState]:
    """Yields the fold after each of the records, having verified order and links."""
    for record in records:
        revision, stream = state.revision + 1, record.stream
        if not follows(state.link, record) or record.revision != revision:
            raise _unlinked(stream, revision, record.revision)
        link = record.link
        if record.subject is not None and state.subject is None:
            state = replace(state, subject=own_subject(record.subject, record.meta))
        if record.payload == GONE:
            root = UNKNOWN if record.type in OF_STATE else state.root
            state = replace(state, revision=revision, link=link, time=record.time, root=root)
            yield state
            continue
        try:
            ops = ops_of(record)
            type = record.type
            version = version_of(record.meta) if type in OF_STATE else 0
            state = advance(state, link, record.time, type, record.payload, ops, blobs, version)
        except UsageError as misfit:
            raise _misfit(stream, revision, misfit) from misfit
        yield state


def _unlinked(stream: str, revision: int, found: int) -> CorruptError:
    """Returns the error for an event that is not the next one, or whose bytes have changed."""
    if found != revision:
        problem = f'stream "{stream}" skips from revision {revision - 1} to {found}: an event is '
        problem += "missing"
    else:
        problem = f'event {revision} of "{stream}" does not match its link: its bytes, or those of '
        problem += "an event before it, have changed"
    return CorruptError(problem, stream=stream, revision=revision)


def _misfit(stream: str, revision: int, misfit: UsageError) -> CorruptError:
    return CorruptError(
        f'event {revision} of "{stream}" does not fit the state before it: {misfit.message}',
        stream=stream,
        revision=revision,
    )
