"""The events that are stored for nodes: results, failures, acceptances and invalidations.

They are events of the stream `node/<graph>/<scope>`:

    node.computed     a result: its thumbprints, the reads it was made from, value, artifacts, cause
    node.failed       an error that is kept because its node asks for that, and until when
    node.accepted     a change that somebody declared harmless: an older result counts for it
    node.invalidated  earlier results no longer count, of one node or of all

Results, failures and acceptances carry the key `<node>:<in_thumb>:<n>`, so two workers never write
the same one. Every event of a node has the node's name as its checkpoint name. `find` looks up
both on every backend, so no separate index is needed. A process remembers what it has read, and
then reads only what was written since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from threading import RLock
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, is_shortened
from holdfast.core import codec
from holdfast.core.commit import Record
from holdfast.core.event import REMOVED, own_key, to_datetime
from holdfast.core.log import Log
from holdfast.errors import CorruptError
from holdfast.nodes.causes import Cause, shallow, unnested
from holdfast.nodes.define import KEEP_MAX, Keep
from holdfast.runs.events import Fault
from holdfast.runs.values import decode

COMPUTED = "node.computed"
FAILED = "node.failed"
ACCEPTED = "node.accepted"
INVALIDATED = "node.invalidated"
RESULTS = frozenset((COMPUTED, FAILED, ACCEPTED))
EVERY = "*"
"""The checkpoint name of events that concern every node of a stream; no node can have it."""

LEAST = Keep(KEEP_MAX)
"""The results of a node that stay in memory if no walk has said how many are kept."""
WHOLE_MAX = 50_000
"""A longer stream is not read completely: the results of each node are looked up by its name."""
EACH = 16
"""A stream with fewer events for each node of a graph is read as a whole for a walk over it."""
CHUNK = 1000


Status = Literal["hit", "cut off", "computed", "stale", "skipped"]


class Read(Struct, frozen=True, omit_defaults=True, gc=False):
    """Something that a node read while it was computed.

    `stamp` can be compared cheaply: while it is the same, nothing is read again. If it differs, the
    digest `thumb` decides.
    """

    kind: Literal["state", "messages", "file", "env", "clock", "source", "node"]
    name: str
    thumb: str
    path: tuple[str | int, ...] | None = None
    stamp: Any = None
    args: Raw = Raw(b"")
    shown: str = ""


class Input(Struct, frozen=True, array_like=True, gc=False):
    """An input at the time: its digest, and the part of it that fits on a line."""

    thumb: str
    shown: str = ""


class StoredArtifact(Struct, frozen=True, omit_defaults=True, gc=False):
    """An artifact as an event holds it."""

    kind: str
    name: str = ""
    value: Raw = Raw(b"null")
    priority: int = 0
    reads: tuple[str, ...] = ()


class Tally(Struct, frozen=True, array_like=True, gc=False):
    """What is known of a node's results when one is stored: how often each thing has happened.

    A hit writes nothing. So the hits of a process are noted with the next result that it stores,
    and those after its last one are not. It is a statistic: nothing is decided by it.
    """

    computed: int = 0
    hits: int = 0
    evicted: int = 0
    """How often a result had to be computed again because it was no longer kept."""
    is_said: bool = False
    """Whether somebody was told that the node keeps too few."""

    @property
    def hit_rate(self) -> float | None:
        """The share of hits; None if nothing was counted."""
        total = self.computed + self.hits
        return self.hits / total if total else None


class Computed(Struct, frozen=True, omit_defaults=True, gc=False):
    """The data of a result."""

    node: str
    in_thumb: str
    full_thumb: str
    out_thumb: str
    code: str
    value: Raw
    cause: Cause
    parts: dict[str, str] = {}
    untracked: tuple[str, ...] = ()
    inputs: dict[str, Input] = {}
    edges: dict[str, str | None] = {}
    reads: tuple[Read, ...] = ()
    artifacts: Raw = Raw(b"[]")
    skips: tuple[str, ...] = ()
    valid_until: int = 0
    cost: dict[str, float] = {}
    tally: Tally = Tally()


class Failed(Struct, frozen=True, omit_defaults=True, gc=False):
    """The data of a failure that is kept for a while."""

    node: str
    in_thumb: str
    fault: Fault
    reads: tuple[Read, ...] = ()
    valid_until: int = 0


class Accepted(Struct, frozen=True, omit_defaults=True, gc=False):
    """The data of an acceptance: what counts as unchanged, and the result that counts for it."""

    node: str
    in_thumb: str
    full_thumb: str
    result: int
    author: str
    because: str = ""
    code: str = ""
    parts: dict[str, str] = {}
    inputs: dict[str, Input] = {}
    edges: dict[str, str | None] = {}
    reads: tuple[Read, ...] = ()
    after: int = 0  # an earlier acceptance that this one stands on


class Invalidated(Struct, frozen=True, omit_defaults=True, gc=False):
    """The data of an invalidation, of one node or, if `node` is None, of all."""

    node: str | None = None
    author: str = ""
    because: str = ""


def full_thumb(in_thumb: str, reads: tuple[Read, ...]) -> str:
    """Returns the digest of everything that a result was made from: `in_thumb` and the reads."""
    seen = [[read.kind, read.name, read.path, bytes(read.args).hex(), read.thumb] for read in reads]
    return sha256(codec.encode_plain([in_thumb, seen])).hexdigest()


# --- what callers are given -----------------------------------------------------------------------

BlobReader = Callable[[str, int], bytes]


class Artifact(Struct, frozen=True):
    """Something that a node made for the walk: a message, rule, setting, tool or constraint."""

    kind: str
    node: str
    name: str
    priority: int
    reads: tuple[str, ...]
    _raw: bytes

    @property
    def value(self) -> Any:
        """The value of the artifact, as a new copy each time."""
        return codec.decode(self._raw)


class NodeState(Struct, frozen=True, dict=True):
    """What is known of one node: its value, its artifacts, and what they were made from."""

    node: str
    status: Status
    in_thumb: str
    out_thumb: str
    full_thumb: str
    cause: Cause | None
    computed_at: datetime | None
    valid_until: datetime | None
    cost: dict[str, float]
    revision: int
    _computed: Computed | None
    _blobs: BlobReader

    @property
    def reads(self) -> tuple[Read, ...]:
        """What the node read while it was computed, in order."""
        return () if self._computed is None else self._computed.reads

    @property
    def value(self) -> Any:
        """The value that the node returned, as a new copy each time; None if it was skipped."""
        return None if self._computed is None else decode(self._computed.value, self._blobs)

    @cached_property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that the node made, in order."""
        if self._computed is None or self._computed.artifacts == b"[]":
            return ()
        raw = bytes(self._computed.artifacts)
        reference = codec.parse_blob_ref(raw)
        stored = codec.decode_as(
            self._blobs(*reference) if reference is not None else raw, list[StoredArtifact]
        )
        return tuple(
            Artifact(one.kind, self.node, one.name, one.priority, one.reads, bytes(one.value))
            for one in stored
        )

    @property
    def toggles(self) -> tuple[str, ...]:
        """The names of everything that affects the node: code, inputs, edges and reads."""
        one = self._computed
        if one is None:
            return ()
        names = ["code", *one.inputs, *one.edges, *(toggle_name(read) for read in one.reads)]
        return tuple(dict.fromkeys(names))

    @property
    def untracked(self) -> tuple[str, ...]:
        """What the node's code uses and `track` could not follow."""
        return () if self._computed is None else self._computed.untracked

    @property
    def skips(self) -> tuple[str, ...]:
        """The names of the nodes that this node removed from the walk."""
        return () if self._computed is None else self._computed.skips


def toggle_name(read: Read) -> str:
    """Returns a readable name of something that was read, as `state conversation/c1 problem`."""
    path = "" if read.path is None else " " + ".".join(str(step) for step in read.path)
    return f"{read.kind} {read.name}{path}"


def state_of(
    computed: Computed, status: Status, time_us: int, revision: int, blobs: BlobReader
) -> NodeState:
    """Returns the state of a node with this result."""
    until = computed.valid_until
    return NodeState(
        computed.node,
        status,
        computed.in_thumb,
        computed.out_thumb,
        computed.full_thumb,
        shallow(computed.cause),
        to_datetime(time_us),
        to_datetime(until) if until else None,
        computed.cost,
        revision,
        computed,
        blobs,
    )


def skipped_state(name: str, blobs: BlobReader) -> NodeState:
    """Returns the state of a node that is not on the path."""
    return NodeState(name, "skipped", "", "", "", None, None, None, {}, 0, None, blobs)


# --- the results of a stream ----------------------------------------------------------------------


class Entry:
    """One event of a node, decoded when it is looked at."""

    __slots__ = (
        "_content",
        "_stamps",
        "_table",
        "hit",
        "in_thumb",
        "key",
        "number",
        "place",
        "record",
        "start",
    )

    def __init__(self, record: Record, table: ResultTable) -> None:
        self.record = record
        self.key = own_key(record.key)
        rest, _, number = (self.key or "::0").rpartition(":")
        self.in_thumb = rest[rest.rfind(":") + 1 :]
        self.number = int(number)
        self.place = 0  # how many results of the node came before it, and how large they were
        self.start = 0
        self._stamps: dict[int, Any] | None = None  # created on demand, as there are many entries
        self.hit: NodeState | None = None
        self._table = table
        self._content: Computed | Failed | None = None

    def stamp(self, place: int, read: Read) -> Any:
        """Returns the newest stamp at which a read of this result was seen to be unchanged."""
        return read.stamp if self._stamps is None else self._stamps.get(place, read.stamp)

    def set_stamp(self, place: int, stamp: Any) -> None:
        """Remembers a newer stamp with the same digest, in memory only: a hit writes nothing."""
        if self._stamps is None:
            self._stamps = {}
        self._stamps[place] = stamp

    def content(self) -> Computed | Failed:
        """Returns the decoded result or failure; raises CorruptError if it is damaged."""
        if self._content is None:
            try:
                self._content = self._decode()
            except CorruptError as error:
                raise CorruptError(
                    f'the stored state of node "{self.record.checkpoint}" in '
                    f'"{self.record.stream}" is damaged: {error.message}',
                    stream=self.record.stream,
                    revision=self.record.revision,
                    hint="process it with force to replace it",
                ) from error
        return self._content

    def _decode(self) -> Computed | Failed:
        if self.record.type == FAILED:
            return codec.decode_as(self.record.payload, Failed)
        if self.record.type == COMPUTED:
            return decode_computed(self.record.payload)
        accepted = codec.decode_as(self.record.payload, Accepted)
        result = self._table.result_at(accepted.result)
        said = accepted.after or accepted.result
        return replace(
            result,
            in_thumb=accepted.in_thumb,
            full_thumb=accepted.full_thumb,
            code=accepted.code,
            parts=accepted.parts,
            inputs=accepted.inputs,
            edges=accepted.edges,
            reads=accepted.reads,
            cause=Cause("accepted", accepted.author, text=accepted.because, result=said),
        )

    def state(self, status: Status, blobs: BlobReader) -> NodeState:
        """Returns the state of the node with this result; the object is reused for hits."""
        if status == "hit" and self.hit is not None:
            return self.hit
        content = self.content()
        assert isinstance(content, Computed), "BUG: a failure has no state"
        state = state_of(content, status, self.record.time, self.record.revision, blobs)
        if status == "hit":
            self.hit = state
        return state


class NodeResults:
    """The newest results of one node, in order and by their `in_thumb`.

    Held in memory are the newest `count` of them, and more if they have no more than `size` bytes.
    """

    def __init__(self, count: int = LEAST.count, size: int = 0) -> None:
        self.count = count
        self.size = size
        self.entries: list[Entry] = []
        """Newest first, valid or not."""
        self.is_whole = True
        """Whether no result was let go of from memory."""
        self._by_thumb: dict[str, list[Entry]] = {}
        self._count = 0
        self._size = 0

    def add(self, entry: Entry) -> None:
        """Adds the newest result, and lets go of those that are not kept."""
        entry.place, entry.start = self._count, self._size
        self._count += 1
        self._size += size_of(entry.record.payload)
        self.entries.insert(0, entry)
        self._by_thumb.setdefault(entry.in_thumb, []).insert(0, entry)
        while not self._is_held(self.entries[-1]):
            last = self.entries.pop()
            same = self._by_thumb[last.in_thumb]
            same.pop()
            if not same:
                del self._by_thumb[last.in_thumb]
            self.is_whole = False

    def covers(self, keep: Keep) -> bool:
        """Returns whether everything that `keep` says is held, as far as it is stored."""
        return keep.count <= self.count if keep.size is None else keep.size <= self.size

    def wider(self, keep: Keep) -> tuple[int, int]:
        """Returns the number and the size to hold so that `keep` is covered as well."""
        count = self.count if keep.size is not None else max(self.count, keep.count)
        return count, max(self.size, keep.size or 0)

    def _is_held(self, entry: Entry) -> bool:
        fits = self._size - entry.start <= self.size
        return fits or self._count - entry.place <= self.count

    def _is_kept(self, entry: Entry, keep: Keep) -> bool:
        is_newest = entry.place == self._count - 1
        fits = keep.size is None or self._size - entry.start <= keep.size
        return is_newest or (fits and self._count - entry.place <= keep.count)

    def kept(self, keep: Keep, in_thumb: str | None = None) -> list[Entry]:
        """Returns the results that are kept, newest first; only those of an `in_thumb` if given."""
        found = self.entries if in_thumb is None else self._by_thumb.get(in_thumb, [])
        return [entry for entry in found if self._is_kept(entry, keep)]

    def number(self, in_thumb: str) -> int:
        """Returns the highest number among the held results of an `in_thumb`; 0 without any."""
        return max((entry.number for entry in self._by_thumb.get(in_thumb, ())), default=0)


_BLOB_SIZE = re.compile(rb'"\$blob":\{"id":"[0-9a-f]{64}","size":(\d+)\}')


def size_of(payload: bytes) -> int:
    """Returns how large a result is: its event, and the blobs that this names."""
    size = len(payload)
    if b'"$blob"' in payload:
        size += sum(int(found) for found in _BLOB_SIZE.findall(payload))
    return size


class ResultTable:
    """The results in one stream, as far as this process has read it."""

    def __init__(self, log: Log, stream: str) -> None:
        self._log = log
        self.stream = stream
        self.mutex = RLock()
        self._whole_max = WHOLE_MAX
        self._reset()

    def _reset(self) -> None:
        self.revision = 0
        self.link = b""
        self._is_whole = True
        self._has_every = False  # whether what invalidates every node was looked up
        self._nodes: dict[str, NodeResults] = {}
        self._hits: dict[str, int] = {}
        self._walks = 0  # walks that consisted of hits, and were not made
        self._walks_told: dict[str, int] = {}
        self._invalidated: dict[str, int] = {}
        self._by_revision: dict[int, Entry] | None = None  # made for `why`, until more is read
        self._since = 0  # the revision of the newest removal: results before it are gone

    def expect(self, count: int) -> None:
        """Says that a walk will ask for so many nodes: then a longer stream is read as a whole.

        A search for each node takes longer than to read a few results of each.
        """
        most = max(WHOLE_MAX, EACH * count)
        with self.mutex:
            self._whole_max = max(self._whole_max, most)
            if not self._is_whole and self.revision <= self._whole_max:
                self._reset()
                self.refresh()  # before another thread takes the table for one without results

    def refresh(self) -> None:
        """Reads the events written since the last call; asks only for the head if there are none.

        A change of the link at the same revision counts as well.
        """
        head = self._log.heads((self.stream,))[0]
        if head is not None and head.revision == self.revision and head.link == self.link:
            return
        with self.mutex:
            # The head is asked for again under the mutex: another thread may have read further
            # since, and an older head would look like a server that lost commits.
            head = self._log.heads((self.stream,))[0]
            if head is None:
                self._reset()
                return
            if head.revision == self.revision and head.link == self.link:
                return
            if head.revision <= self.revision:
                # The store lost commits that this process has seen, as when a server comes back
                # without its newest ones. What was remembered may not exist, so forget all of it.
                self._reset()
            if self.revision == 0 and head.revision > self._whole_max:
                self._is_whole = False
                self._since = self._log.life(self.stream, head.revision)
            elif self.revision or self._is_whole:
                for record in self._read(self.revision, head.revision):
                    self._apply(record)
            self.revision, self.link = head.revision, head.link

    def _read(self, after: int, until: int) -> Iterator[Record]:
        while after < until:
            records = self._log.read(self.stream, after=after, until=until, limit=CHUNK)
            if not records:
                return
            yield from records
            after = records[-1].revision

    def _apply(self, record: Record) -> None:
        self._by_revision = None
        name = record.checkpoint or ""
        if record.type == REMOVED:
            self._since = record.revision
            self._nodes.clear()
            self._invalidated.clear()
        elif record.type == INVALIDATED:
            self._invalidated[name] = record.revision
        elif record.type in RESULTS and (self._is_whole or name in self._nodes):
            known = self._nodes.get(name)
            if known is None:
                known = self._nodes[name] = NodeResults()
            known.add(Entry(record, self))

    def entries(self, name: str) -> list[Entry]:
        """Returns the results of a node that are in memory, newest first, valid or not."""
        with self.mutex:
            known = self._nodes.get(name)
            return (self.results(name) if known is None else known).entries

    def results(self, name: str, keep: Keep = LEAST) -> NodeResults:
        """Returns the results of a node, with all that `keep` says and `KEEP_MAX` at least."""
        with self.mutex:
            known = self._nodes.get(name)
            if known is None:
                known = NodeResults()
                if not self._is_whole:
                    return self._found(name, *known.wider(keep))
                self._nodes[name] = known
            if known.covers(keep):
                return known
            if not known.is_whole:
                return self._found(name, *known.wider(keep))
            known.count, known.size = known.wider(keep)
            return known

    def _found(self, name: str, count: int, size: int) -> NodeResults:
        """Returns the results of a node that are found in the store by its name."""
        found = self._nodes[name] = NodeResults(count, size)
        records: list[Record] = []
        number = read = 0
        for place in self._log.find(self.stream, checkpoint=name):  # newest first
            if place.revision <= self._since or (number >= count and read >= size):
                found.is_whole = False
                break
            if place.revision > self.revision:
                continue
            record = self._log.record(self.stream, place.revision)
            records.append(record)
            if record.type in RESULTS:
                number += 1
                read += size_of(record.payload)
        if not (self._is_whole or self._has_every):
            self._has_every = True
            for place in self._log.find(self.stream, checkpoint=EVERY):
                if self._since < place.revision <= self.revision:
                    self._apply(self._log.record(self.stream, place.revision))
                    break  # the newest says enough
        for record in reversed(records):
            self._apply(record)
        return found

    def entry_of(self, name: str, key: str) -> Entry:
        """Returns the event of a node that was committed with an idempotency key."""
        for entry in self.entries(name):
            if entry.key == key:
                return entry
        [found] = self._log.find(self.stream, key=key)
        return Entry(self._log.record(self.stream, found.revision), self)

    def count_hit(self, name: str) -> None:
        """Counts a hit of a node in this process."""
        self._hits[name] = self._hits.get(name, 0) + 1

    def count_walk(self) -> None:
        """Counts a hit of each node."""
        self._walks += 1

    def hits(self, name: str, *, takes: bool = False) -> int:
        """Returns the hits of a node that no result has noted yet; `takes` begins to count anew."""
        found = self._hits.get(name, 0) + self._walks - self._walks_told.get(name, 0)
        if takes:
            self._hits.pop(name, None)
            self._walks_told[name] = self._walks
        return found

    def tally(self, name: str) -> Tally:
        """Returns what was counted of a node, in stored results and in this process."""
        stored = Tally()
        for entry in self.entries(name):
            try:
                content = entry.content()
            except CorruptError:
                continue
            if isinstance(content, Computed):
                stored = content.tally
                break
        return replace(stored, hits=stored.hits + self.hits(name))

    def names(self) -> list[str]:
        """Returns the names of the nodes that have results, sorted."""
        if self._is_whole:
            return sorted(name for name, known in self._nodes.items() if known.entries)
        found = [one.name for one in self._log.find(self.stream) if one.revision > self._since]
        return sorted({*found} - {EVERY})

    def invalidated_at(self, name: str) -> int:
        """Returns the revision up to which the results of a node are invalidated."""
        return max(self._invalidated.get(name, 0), self._invalidated.get(EVERY, 0))

    def result_at(self, revision: int) -> Computed:
        """Returns the result at a revision, which an acceptance refers to."""
        record = self._accepted(self._log.record(self.stream, revision))
        if record.type == COMPUTED:
            return decode_computed(record.payload)
        raise CorruptError(
            f'event {revision} of "{self.stream}" is no result',
            stream=self.stream,
            revision=revision,
        )

    def result_of(self, entry: Entry) -> int:
        """Returns the revision at which the result of an entry was computed."""
        return self._accepted(entry.record).revision

    def _accepted(self, record: Record) -> Record:
        """Returns the result that an acceptance stands on, or the record itself.

        An acceptance that was written earlier may refer to another one, and that to another.
        """
        while record.type == ACCEPTED:
            further = codec.decode_as(record.payload, Accepted).result
            if further >= record.revision:
                break  # damage, or it would never end
            record = self._log.record(self.stream, further)
        return record

    def cause_at(self, revision: int) -> tuple[Cause | None, str, str]:
        """Returns the cause of a result that another one refers to, and the name of its node.

        Without a cause, the last text says what has become of the result.
        """
        if revision <= self._since:
            return None, "", "its result was removed"
        payload = b""
        try:
            entry = self._entry_at(revision)
            payload = entry.record.payload
            content = entry.content()
        except CorruptError:
            is_let_go = payload == GONE or is_shortened(payload)
            return None, "", f"its result {'was let go of' if is_let_go else 'is damaged'}"
        if not isinstance(content, Computed):
            return None, "", "its result is damaged"
        return content.cause, entry.record.checkpoint or "", ""

    def _entry_at(self, revision: int) -> Entry:
        """Returns a result by its revision, from memory if it is there."""
        with self.mutex:
            found = self._by_revision
            if found is None:
                entries = (one for known in self._nodes.values() for one in known.entries)
                found = self._by_revision = {entry.record.revision: entry for entry in entries}
            entry = found.get(revision)
            if entry is None:
                entry = found[revision] = Entry(self._log.record(self.stream, revision), self)
            return entry

    def next_number(self, name: str, in_thumb: str) -> int:
        """Returns the number for the next event of a node with this `in_thumb`.

        If older entries may be missing in memory, it looks for the first unused key in the store.
        """
        results = self.results(name)
        number = results.number(in_thumb) + 1
        if self._is_whole and results.is_whole:
            return number
        # Each number was used once, from 1 on: so the first unused one is found by halving.
        step = 1
        while self._is_used(name, in_thumb, number + step - 1):
            step *= 2
        unused = number + step - 1
        while number < unused:
            middle = (number + unused) // 2
            if self._is_used(name, in_thumb, middle):
                number = middle + 1
            else:
                unused = middle
        return number

    def _is_used(self, name: str, in_thumb: str, number: int) -> bool:
        return bool(self._log.find(self.stream, key=f"{name}:{in_thumb}:{number}"))


def decode_computed(payload: bytes) -> Computed:
    """Returns a result; an old one may nest causes deeper than Python decodes."""
    try:
        return codec.decode_as(payload, Computed)
    except CorruptError as error:
        if not isinstance(error.__cause__, RecursionError):
            raise
        return codec.decode_as(unnested(payload), Computed)


def encode_event(content: Struct) -> bytes:
    """Returns the payload of an event."""
    return codec.encode_plain(content)


def encode_artifacts(artifacts: list[StoredArtifact]) -> bytes:
    """Returns the stored form of a result's artifacts."""
    return codec.encode_plain(artifacts)


def state_document(state: NodeState) -> str:
    """Encodes a node state as text for the journal of a run."""
    time_us = 0 if state.computed_at is None else round(state.computed_at.timestamp() * 1e6)
    computed = state._computed
    if computed is not None:
        computed = replace(computed, cause=shallow(computed.cause))
    document = _Document(state.node, state.status, time_us, state.revision, computed)
    return codec.encode_plain(document).decode()


def state_from(document: str, blobs: BlobReader) -> NodeState:
    """Decodes a node state from the journal of a run."""
    one = codec.decode_as(document.encode(), _Document)
    if one.computed is None:
        return skipped_state(one.node, blobs)
    return state_of(one.computed, one.status, one.time_us, one.revision, blobs)


class _Document(Struct, frozen=True):
    node: str
    status: Status
    time_us: int
    revision: int
    computed: Computed | None
