"""The backend contract. Clauses are numbered; `holdfast.testing.contract` has a test for each.

A backend stores records: opaque payload bytes and a small envelope. It never decodes a payload and
never computes a link. It reads the clock only to judge leases, due marks, and the times and ends
that the clauses name.

 (1) `commit` takes a list of commits and answers each, in order, with a Receipt or a Refusal.
     One refusal never fails its neighbours; a later commit of the list sees the earlier ones.
 (2) A commit is all or nothing, over every stream it names and its marks, also after a crash.
 (3) A Receipt means durable at the backend's `durability`, and visible to every later call here and
     in any other process.
 (4) An append is accepted only if the stream's newest revision is `expected` (0: no such stream)
     and, where `previous` is given, its newest link is `previous`. Revisions alone are not enough:
     a commit may have been prepared on top of one that was then refused, and must not be added to
     another writer's event that has the same revision. A `fork` append is accepted only if the
     stream does not exist; it then begins at expected + 1.
 (5) Each stream in `reads` must be at the given revision, else nothing is written.
 (6) A commit with a fence is accepted only while that lease is held by that owner in that epoch.
 (7) A key is unique in its stream. A second commit with it is refused as `duplicate` and names the
     revision that has it, whatever the expected revision was.
 (8) Checks come in this order: duplicate, fenced, conflict; the first that fails is the refusal.
     A conflict carries the stream's actual Head, so that the caller need not ask again.
 (9) Revisions of a stream have no gaps. Positions grow; all records of a commit share one, and
     nothing ever becomes visible at or below a position that was visible before.
(10) `read` returns records by revision, `read_all` by position, whole commits only, exactly as
     committed, every byte of payload, envelope and link. `read_linked` is optional: it returns what
     `read` would, as rows without positions, and need not verify the backend's own checksums,
     because its caller verifies every link. `read_payloads` is optional too: it returns type,
     payload and subject of what `read` would, and verifies every checksum that `read` verifies.
(11) `heads`, `read`, `find` and `moment` are linearizable: they see every commit whose receipt was
     returned before they were called. So do `wait` and `read_all`, except for commits at positions
     above that of a commit that is still under way: to show these would break clause 9.
(12) Unreadable data raises CorruptError and is never returned as absent.
(13) After `close`, and in a forked child, every call raises UsageError. `close` twice is fine.
(14) A name is data: no stream, key, owner or mark becomes a path, a pattern or a statement.
(15) `objects` keeps named bytes: a `put` is durable and atomic, a second put of a name replaces.
(16) A lease is held by one owner at a time; each acquire by another owner raises the epoch, which
     never repeats. An expired lease, or one whose owner is known to be dead, can be acquired.
(17) `claim` gives a due mark to one owner until the claim expires, the owner is known to be dead,
     or the mark is set again or cleared; highest priority first, then earliest due, then key.
(18) An append with `expires_us` is refused as `expired`, before any other check, once `now_us` has
     reached it. All appends to a stream have the same one, unless one moves it (36); only whole
     milliseconds are used. From that end on a backend may delete the stream's records, keys,
     checkpoint names, and objects that were put with the same end. It then keeps name and head,
     which has `expires_us`; `read` raises ExpiredError, `read_all` leaves out the records but not
     those after them, and `find` finds nothing.
(19) `leases.list` shows every lease that was not released, those held and those that lapsed, and
     `marks.claims` every claim whose time is not over, also of a dead owner, as they are now. A
     lapsed lease can be released like one that is held, by whoever names its owner and epoch.
(20) `moment` fixes what is visible: of every position that the backend ever gave, its answer says
     whether that commit was visible then. It never holds half a commit, nor an event of a stream
     without those before it. All that it does not hold has a position above the moment's own.
(21) `renew_many` answers for each lease what `renew` would, in the order asked: a lease that was
     lost or is named twice changes nothing for the others. Where a call costs a round trip or a
     sync, this costs one, however many leases there are.
(22) A backend with a clock of its own, as a server has, refuses a commit as `ahead`, after every
     other check, if its time is more than AHEAD_US past that clock, unless every stream that it
     writes has that time already, or the commit is a copy. The refusal has that clock's time. A
     backend that has no clock but the writer's accepts the commit.
(23) `streams` lists names in the order of their code points: those that begin with `prefix` and
     come after `after`, the first `limit` of them, and fewer only if there are no more. Its cost
     grows with what it returns, not with how many streams there are. `read_many` is optional: it
     returns for each stream what `read` would, in the order asked; where a call costs a round trip,
     this costs one, however many streams there are.
(24) `read_back` is optional. It returns what `read_all` would, from the end: the newest records at
     or before a position, in the order of `read_all`, whole commits only, about `limit` of them,
     and fewer only if there are no more. Its cost grows with what it returns, not with how many
     records there are.
(26) A backend whose `record_keys` is True takes a key on any record of an append, not only on the
     first. Each is one of clause 7: unique in its stream, and found at the revision of its own
     record. If one of them is there already, the commit is refused as `duplicate`, and nothing of
     it is written; of several, the first in the order of the records is named. The keys of one
     commit differ. A backend without the attribute is never sent such a commit.
(27) A backend whose `keeps_meta` is true stores a record's `meta` and returns it, every character,
     as it does the rest of the envelope: `read`, `read_all`, after a restart, in another process. A
     record without meta costs nothing and reads as None. A backend without the attribute is never
     sent meta: the log refuses the commit and writes nothing of it.
(28) `rewrite` is optional. It replaces the payloads of records, named by stream and revision, by
     GONE: the one exception to clause 10. It is durable when it returns; each record is as it was
     or rewritten, also after a crash. All else stays: envelope, link, revision, position, head,
     keys, checkpoint names, marks, other records and the order of all. Doing it twice has the same
     effect as once. A payload of one byte may stay. Every later read sees the replacement, here and
     in any other process; a read that is under way sees a record as it was or rewritten.
(29) `purge`, which comes with `rewrite`, removes from the stored bytes what `rewrite` replaced and
     `delete` deleted, as far as the store's other users allow it. It returns what is left, each
     with its place and what to do about it. With `whole` it may take as long as it needs, and keep
     others waiting. It changes no answer of any other method.
(30) A backend that deletes streams at their ends by itself (clause 18) should have `keep`: it then
     deletes nothing of one stream, also past its end, until `keep` is called with False. From then
     on the end counts as before; if it has passed meanwhile, the stream ends at once. `keep`
     returns whether the stream's records are there. `kept` lists the streams that are kept. `keep`
     is durable when it returns, and calling it twice has the same effect as once. It does not
     change whether a commit is accepted.
(32) `marks.find` is optional. It returns the marks that a MarkQuery asks for, in the order of
     clause 17, and fewer than its limit only if there are no more. In one index, after a mark or by
     keys, its cost grows with what it returns, however many marks there are; by group it may read
     all of them, and returns only what was asked for.
(35) `marks_at_moment` is optional. It returns a moment as `moment` does, the newest position that
     the moment holds, and every mark as it was at that moment: none that a later commit set, and
     all that a later one cleared.
(36) An accepted append with `renews_us` moves the end of its stream to that time. Everything of the
     stream, also of earlier commits, stays at least until then, and in a backend that deletes
     streams by itself the head has the new end. The append itself is judged by `expires_us`, the
     end before it. An append that is refused moves nothing. An end never moves back.
(37) A commit is refused as `expired`, as by clause 18, once `now_us` has reached the end of a
     stream that it has only read: `read_ends` has these streams and their ends, each of which is
     in `reads` too. A guard on the revision is not enough, because a stream ends without a new
     revision. The refusal says the stream and, as `expected`, the revision that was read.
(41) `shorten` is optional for a backend with `rewrite`. It replaces the payloads of records, named
     by stream and revision, by given ones, as `rewrite` does by GONE: all that clause 28 says holds
     here too. Each new payload is a JSON array or object, not longer than the one that it replaces.
     A record whose payload is GONE stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NewType, Protocol, runtime_checkable

from msgspec import Struct

from holdfast.errors import HoldfastError, UnavailableError

Position = NewType("Position", int)
START = Position(0)

AHEAD_US = 60_000_000
"""How far a commit's time may be ahead of a backend that has a clock of its own (clause 22)."""

Durability = Literal["full", "process", "none"]
DURABILITIES: tuple[Durability, ...] = ("full", "process", "none")


class Record(Struct, frozen=True, gc=False):
    """One event as it is stored. `position` is 0 until the backend has given one."""

    stream: str
    revision: int
    time: int  # microseconds since 1970, never smaller than the stream's previous one
    type: str
    actor: str
    payload: bytes  # UTF-8 JSON text without raw newlines
    link: bytes  # 32 bytes: sha256 over the previous link, the envelope and the payload
    key: str | None = None  # the idempotency key; on a later record than the first by clause 26
    checkpoint: str | None = None  # the name that this revision was given
    subject: str | None = None  # a random id of the person whose data this is
    position: Position = START
    meta: str | None = None  # JSON text of one object on one line, without space around it


class Head(Struct, frozen=True, gc=False):
    """The newest record of a stream, and the first revision that the stream itself holds."""

    revision: int
    link: bytes
    time: int
    position: Position
    first: int
    expires_us: int = 0  # where the backend lets go by itself: when; elsewhere always 0


class Moment(Struct, frozen=True, gc=False):
    """What was visible at one moment (clause 20).

    Where commits become visible in the order of their positions, the position alone decides.
    """

    position: Position  # to follow from

    def has(self, position: Position) -> bool:
        """Returns whether the commit at a position was visible."""
        return position <= self.position

    def is_settled(self, later: Moment) -> bool:
        """Returns whether a follower can read, at `later`, every commit visible at this moment."""
        return True


class Append(Struct, frozen=True):
    """What a commit adds to one stream: at least one record, revisions expected + 1, + 2, …"""

    stream: str
    expected: int
    records: tuple[Record, ...]
    fork: bool = False
    previous: bytes | None = None  # the link of the event that this follows
    expires_us: int = 0  # when the stream ends by itself, on the backend's clock; 0: it lasts
    renews_us: int = 0  # the later end that this append moves it to (clause 36); 0: it stays


class Fence(Struct, frozen=True, gc=False):
    """The lease that a commit is made under."""

    name: str
    owner: str
    epoch: int


class Mark(Struct, frozen=True, gc=False):
    """An indexed note that can be claimed. (index, key) identifies it; set again it is replaced."""

    index: str
    key: str
    due: int = 0  # microseconds since 1970; claimable from then on
    priority: int = 0
    group: str = ""


class Cleared(Struct, frozen=True, gc=False):
    """Clears a mark; clearing one that is not there is fine."""

    index: str
    key: str


class Commit(Struct, frozen=True):
    """What is appended whole or not at all. All its records have its `time` and `actor`.

    A commit with `is_copy` was made in another store: its time is kept, also if ahead (clause 22).
    """

    time: int
    actor: str
    appends: tuple[Append, ...] = ()
    reads: tuple[tuple[str, int], ...] = ()
    fence: Fence | None = None
    marks: tuple[Mark | Cleared, ...] = ()
    watch: tuple[str, ...] = ()
    is_copy: bool = False
    read_ends: tuple[tuple[str, int], ...] = ()  # of `reads` that end by themselves (clause 37)


GONE = b"-0"
"""The payload of a record that was let go of with `rewrite` (clause 28). No layer writes it as
data, because our encoding never gives a zero a sign. If a record held it as data all the same, its
link would show that."""


def is_shortened(payload: bytes) -> bool:
    """Returns whether a part was cut out of a payload: then a space follows its first byte.

    No layer writes a space there. The record keeps the link of the payload that was written; an
    event in `retention/log` has the digests of both.
    """
    return payload[1:2] == b" " and payload[:1] in (b"{", b"[")


class Leftover(Struct, frozen=True, gc=False):
    """Replaced or deleted bytes that are still stored somewhere, and the remedy (clause 29)."""

    where: str
    remedy: str
    is_outside: bool = False
    """No call of ours can do it or see that it was done, so nothing waits for it."""


def has_meta(commit: Commit) -> bool:
    """Returns whether an event of a commit has meta (clause 27)."""
    return any(record.meta is not None for append in commit.appends for record in append.records)


class Receipt(Struct, frozen=True, gc=False):
    """A commit is durable. `news` has the newest revision of each watched stream (0: none)."""

    position: Position
    news: dict[str, int] = {}


class Refusal(Struct, frozen=True):
    """A commit was refused: nothing of it was written."""

    reason: Literal["conflict", "fenced", "duplicate", "expired", "ahead"]
    stream: str  # for "fenced": the lease's name
    expected: int = 0
    head: Head | None = None  # for "conflict": where the stream really is
    revision: int = 0  # for "duplicate": the record that has the key
    now_us: int = 0  # for "ahead": the time on the backend's own clock


class Lease(Struct, frozen=True, gc=False):
    """A time-limited exclusive right. `expires_us` counts on the clock that judges it."""

    name: str
    owner: str
    epoch: int
    expires_us: int


class Held(Struct, frozen=True, gc=False, order=True):
    """A lease as `list` shows it, on the clock that judges it.

    `left_us` is the time until it expires, negative once it has expired. `is_held` is False from
    then on, or earlier where the owner is known to be dead. A reboot ends leases on the boot clock.
    """

    name: str
    owner: str
    epoch: int
    is_held: bool
    left_us: int


class Claim(Struct, frozen=True, gc=False, order=True):
    """A mark that an owner has claimed, and the time until the claim expires."""

    index: str
    key: str
    owner: str
    left_us: int


class Found(Struct, frozen=True, gc=False):
    """An answer of `find`: a revision, the name or key it was found by, and its time."""

    revision: int
    name: str
    time: int


class Finding(Struct, frozen=True, gc=False):
    """Something that `verify` noticed. A `harmless` one concerns only what can be rebuilt.

    `streams` are those that the damage concerns or may concern; `remedy` is what to do about it.
    """

    where: str
    problem: str
    harmless: bool = False
    streams: tuple[str, ...] = ()
    remedy: str = ""


@runtime_checkable
class Backend(Protocol):
    """The ten methods that every store stands on."""

    durability: Durability
    objects: Objects
    leases: Leases
    marks: Marks
    inspect: Inspection

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        """Writes commits by clauses 1 to 9; answers each, in order.

        Raises UnavailableError for the whole list if the storage fails.
        """
        ...

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Returns the records with after < revision <= until, the oldest `limit` of them."""
        ...

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        """Returns records with a greater position: about `limit`, never half a commit."""
        ...

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        """Returns the head of each stream, None where there is no such stream."""
        ...

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Returns stream names that begin with `prefix` and come after `after` (clause 23)."""
        ...

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        """Returns the record with that key, or those with that checkpoint name, newest first.

        With neither, every record that has a checkpoint name, newest first, at most `limit`.
        """
        ...

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        """Returns the newest position as soon as it is greater than `after`.

        After `timeout_s` it returns the newest position in any case. It does not spin.
        """
        ...

    def moment(self) -> Moment:
        """Returns what is visible now, to distinguish it from what comes later (clause 20)."""
        ...

    def now_us(self, stream: str) -> int:
        """Returns the time on the clock that judges when the stream expires (clause 18)."""
        ...

    def close(self) -> None:
        """Releases everything. What was acknowledged needs no close to be safe."""
        ...


def takes_record_keys(backend: object) -> bool:
    """Returns whether a backend takes a key on each record of an append (clause 26)."""
    return getattr(backend, "record_keys", False) is True


@runtime_checkable
class ReadsMany(Protocol):
    """An optional part of a backend: reading several streams in one step (clause 23)."""

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        """Returns the oldest `limit` records of each stream, as `read` would."""
        ...


def read_many(backend: Backend, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
    """Reads streams in one step, or one by one in a backend that has no `read_many` of its own."""
    if isinstance(backend, ReadsMany):
        return backend.read_many(streams, limit=limit)
    return [backend.read(stream, limit=limit) for stream in streams]


class MarksAtMoment(Struct, frozen=True, gc=False):
    """Every mark as it was at one moment, and the newest position that the moment holds.

    Where commits become visible in the order of their positions, that is the moment's own. `exact`
    is False if the marks could not be read at one moment: then they may be newer than it.
    """

    moment: Moment
    newest: Position
    marks: list[Mark]
    exact: bool = True


_LOOKS = 20
"""How often a backend without `marks_at_moment` is read, at most, until no commit came between."""


def written_in_part(error: HoldfastError) -> UnavailableError:
    """Returns the error that a list of commits was stopped by another error on its way.

    A caller that believed that nothing was written would write the earlier ones a second time.
    """
    return UnavailableError(
        f"{error.message}; earlier commits of the same list were written",
        outcome_known=False,
        hint=error.hint,
    )


def marks_at_moment(backend: Backend) -> MarksAtMoment:
    """Returns marks and a moment (clause 35).

    From a backend without `marks_at_moment`, marks are read twice. If both answers are equal and
    the position has not moved, no commit came between, and the marks are those of the moment. A
    store that is written to without pause would keep this going, so it ends after some attempts.
    """
    own = getattr(backend, "marks_at_moment", None)
    if own is not None:
        return own()
    looks = 0
    while True:
        looks += 1
        moment = backend.moment()
        marks = backend.marks.list(limit=1 << 62)
        is_quiet = backend.wait(START, timeout_s=0) == moment.position
        is_quiet = is_quiet and backend.marks.list(limit=1 << 62) == marks
        if is_quiet or looks == _LOOKS:
            return MarksAtMoment(moment, moment.position, marks, exact=is_quiet)


@runtime_checkable
class Rewrites(Protocol):
    """An optional part of a backend: replacing payloads for good (clauses 28 and 29)."""

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        """Replaces the payloads of these revisions of each stream by GONE, durably."""
        ...

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        """Removes replaced and deleted bytes from storage; returns where some are left."""
        ...


@runtime_checkable
class Shortens(Protocol):
    """An optional part of a backend: cutting something out of a payload (clause 41)."""

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        """Replaces the payloads of these revisions of each stream by the given ones, durably."""
        ...


@runtime_checkable
class KeepsEnded(Protocol):
    """A part of a backend that deletes streams at their ends by itself (clause 30)."""

    def keep(self, stream: str, is_kept: bool) -> bool:
        """Keeps a stream past its end, or stops keeping it; returns whether its records exist."""
        ...

    def kept(self) -> Sequence[str]:
        """Returns the names of the streams that are kept past their ends."""
        ...


@runtime_checkable
class ReadsBack(Protocol):
    """An optional part of a backend: reading the store from its end (clause 24)."""

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        """Returns the newest records at or before `until` (None: of all), oldest first."""
        ...


def read_back(
    backend: Backend, *, until: Position | None = None, limit: int = 1000
) -> list[Record]:
    """Reads from the end, with `read_all` in a backend that has no `read_back` of its own.

    Then a window of positions before the end is read. A commit may have many records or none, so
    the window is widened until it holds enough records. The first commit in a window that does not
    begin at the start is left out.
    """
    if isinstance(backend, ReadsBack):
        return backend.read_back(until=until, limit=limit)
    newest = backend.wait(START, timeout_s=0)
    end = newest if until is None else min(newest, until)
    if not end or limit <= 0:
        return []
    width = limit + 1
    while True:
        start = Position(max(0, end - width))
        records = _between(backend, start, Position(end))
        if start:
            records = [one for one in records if one.position != records[0].position]
        if len(records) >= limit or not start:
            return last_commits(records, limit)
        width *= 4


def _between(backend: Backend, start: Position, end: Position) -> list[Record]:
    """Returns the records after one position up to another."""
    records: list[Record] = []
    while page := backend.read_all(after=start, limit=end - start):
        records += [record for record in page if record.position <= end]
        start = page[-1].position
        if start >= end:
            break
    return records


def last_commits(records: list[Record], limit: int) -> list[Record]:
    """Returns the last `limit` records, and those before them of the same commit."""
    cut = max(0, len(records) - limit)
    while 0 < cut < len(records) and records[cut - 1].position == records[cut].position:
        cut -= 1
    return records[cut:]


def position_before(backend: Backend, record: Record) -> Position:
    """Returns the position right before the commit of a record from `read_back`, to read on."""
    routing: Routing | None = getattr(backend, "routing", None)
    return Position(record.position - 1) if routing is None else routing.before(record)


class Objects(Protocol):
    """Named bytes beside the log: snapshots (disposable) and blobs. Names are our own digests.

    `kind` is "snapshot" or "blob"; a name is made of [0-9a-z./-] only, at most 120 characters.
    """

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        """Keeps the bytes at least until `expires_us` (0: for good), or a later end put before."""
        ...

    def get(self, kind: str, name: str) -> bytes | None:
        """Returns the bytes, or None if there are none of that name."""
        ...

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        """Returns the names of a kind that begin with `prefix`."""
        ...

    def delete(self, kind: str, name: str) -> None:
        """Deletes the bytes; a name that is not there is no error."""
        ...


def keeps_meta(backend: Backend) -> bool:
    """Returns whether a backend stores `meta` (clause 27)."""
    return bool(getattr(backend, "keeps_meta", False))


class Routing(Protocol):
    """The attribute `routing` of a backend that keeps its streams in several others.

    Other backends have no such attribute. `position` reads a position that was stored as a number.
    `place_of_all` returns the number of the one part that keeps the streams and the lease, None if
    nothing is named. It raises UsageError if they are kept apart: such a commit could not be
    atomic. `before` returns the position right before a record from `read_back`. `is_after` returns
    whether a record comes after a position, in the order of the part that keeps it.
    """

    parts: Sequence[Backend]

    def objects_of(self, stream: str) -> Objects:
        """Returns the objects of the part that keeps a stream."""
        ...

    def place_of_all(self, streams: Sequence[str], lease: str | None) -> int | None:
        """Returns the number of the part that keeps all of these."""
        ...

    def position(self, number: object) -> Position:
        """Reads a position that was stored as a number."""
        ...

    def before(self, record: Record) -> Position:
        """Returns the position right before a record."""
        ...

    def is_after(self, record: Record, position: Position) -> bool:
        """Returns whether a record comes after a position."""
        ...


class Leases(Protocol):
    """The leases of a store: who may write what, for how long."""

    def acquire(self, name: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Returns the lease, also if this owner already holds it, or None if another owner does."""
        ...

    def renew(self, lease: Lease, *, ttl_s: float) -> Lease | None:
        """Returns the lease with a later end, or None if this owner and epoch no longer hold it."""
        ...

    def renew_many(self, leases: Sequence[Lease], *, ttl_s: float) -> Sequence[Lease | None]:
        """Returns what `renew` would return for each of them, in one step (clause 21)."""
        return [self.renew(lease, ttl_s=ttl_s) for lease in leases]

    def release(self, lease: Lease) -> None:
        """Ends the lease, lapsed or not; if another owner or epoch has it by now, does nothing."""
        ...

    def holder(self, name: str) -> Lease | None:
        """Returns the lease if it is held now, else None."""
        ...

    def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Held]:
        """Returns leases that were not released, by name, lapsed ones included (clause 19)."""
        ...


def renew_many(backend: Leases, leases: Sequence[Lease], *, ttl_s: float) -> Sequence[Lease | None]:
    """Renews leases in one step, or one by one in a backend that has no `renew_many` of its own."""
    own = getattr(backend, "renew_many", None)
    if own is None:
        return Leases.renew_many(backend, leases, ttl_s=ttl_s)
    return own(leases, ttl_s=ttl_s)


LinkedRow = tuple[
    int, int, str, str, str | None, str | None, str | None, bytes, bytes, str | None
]  # fmt: skip
"""The parts of a record that its link covers, and the link: revision, time, type, actor, key,
checkpoint, subject, payload, link, meta."""


def linked_row(record: Record) -> LinkedRow:
    """Returns the parts of a record that its link covers, and the link."""
    return (
        record.revision, record.time, record.type, record.actor, record.key, record.checkpoint,
        record.subject, record.payload, record.link, record.meta,
    )  # fmt: skip


def read_linked(
    backend: Backend, stream: str, *, after: int, until: int | None, limit: int | None
) -> Sequence[LinkedRow]:
    """Returns what `read` would return, as rows without positions, to be verified by their links.

    A backend may have its own method `read_linked` with these arguments. It need not verify its
    checksums, because a link covers the same bytes: the caller must verify every link before it
    trusts a row. In a backend without that method `read` is called.
    """
    own = getattr(backend, "read_linked", None)
    if own is None:
        return list(map(linked_row, backend.read(stream, after=after, until=until, limit=limit)))
    return own(stream, after=after, until=until, limit=limit)


PayloadRow = tuple[str, bytes, str | None]
"""Type, payload and subject of a record."""


def read_payloads(backend: Backend, stream: str, *, after: int, until: int) -> Sequence[PayloadRow]:
    """Returns type, payload and subject of what `read` would return.

    A backend may have its own method `read_payloads` with these arguments. Callers do not verify
    links, so it must verify every checksum that `read` does; it saves only building full records.
    """
    own = getattr(backend, "read_payloads", None)
    if own is None:
        records = backend.read(stream, after=after, until=until)
        return [(record.type, record.payload, record.subject) for record in records]
    return own(stream, after=after, until=until)


class Marks(Protocol):
    """The marks of a store: found and claimed without reading streams, set by commits."""

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        """Claims up to `n` marks that are due and free, in the order of clause 17."""
        ...

    def release(self, index: str, key: str, owner: str) -> None:
        """Ends this owner's claim, so that another may claim the mark at once."""
        ...

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        """Returns marks in the order of clause 17, claimed or not; of every index if None."""
        ...

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        """Returns the claims whose time is not over, by index and key (clause 19)."""
        ...


def mark_order(mark: Mark) -> tuple[int, int, str, str]:
    """Returns the sort key of a mark (clause 17); for lists of several indexes, the index last."""
    return -mark.priority, mark.due, mark.key, mark.index


class MarkQuery(Struct, frozen=True):
    """A search for marks (clause 32): those that meet every condition that is given."""

    index: str | None = None
    keys: Sequence[str] | None = None  # only of one index
    group: str | None = None
    after: Mark | None = None  # only those after this one in the order; it need not exist
    due_before: int | None = None
    limit: int = 1000

    def fits(self, mark: Mark) -> bool:
        """Returns whether a mark meets every condition."""
        return (
            (self.index is None or mark.index == self.index)
            and (self.keys is None or mark.key in self.keys)
            and (self.group is None or mark.group == self.group)
            and (self.after is None or mark_order(mark) > mark_order(self.after))
            and (self.due_before is None or mark.due < self.due_before)
        )

    def pick(self, marks: Iterable[Mark]) -> list[Mark]:
        """Returns those of the marks that meet every condition, in order, at most `limit`."""
        return sorted(filter(self.fits, marks), key=mark_order)[: self.limit]


def find_marks(marks: Marks, query: MarkQuery) -> list[Mark]:
    """Finds marks; in a backend without `find`, all marks of the index are read."""
    own = getattr(marks, "find", None)
    if own is None:
        return query.pick(marks.list(query.index, limit=_ALL))
    return own(query)


_ALL = 1 << 31


class Inspection(Protocol):
    """What `status`, `check` and `doctor` ask of a backend."""

    def describe(self) -> dict[str, Any]:
        """Returns plain facts: kind, place, format, durability, size_bytes, reports of recovery."""
        ...

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields damage below the level of records; with `read_all` it reads every byte."""
        ...


class Gap(Struct, frozen=True):
    """A place where commits are lost, and it is unknown of which streams."""

    finding: Finding


@runtime_checkable
class Salvageable(Protocol):
    """An optional part of `inspect`: reading past damage where `read` and `read_all` fail.

    Without it, only what `read` returns stream by stream can be salvaged.
    """

    def remains(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        """Yields every commit that can be read, in order, with each damage at its place.

        A Gap may have taken events of any stream that has none after it, a Finding only of those
        that it names. Nothing is changed.
        """
        ...
