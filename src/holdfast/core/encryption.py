"""Encryption at rest: a backend that stores ciphertext only, on top of any other (0046).

    payload     {"$encrypted":"<key id>:<base64>"}, AES-256-GCM-SIV; what was let go of stays GONE
    link        the link XOR a keyed digest of its place
    blob        `hfenc1`, key id, ciphertext; its name is encrypted too
    snapshot    `hfenc1`, key id, ciphertext; its name is in clear

The associated data is the place: stream and revision, or kind and name. So equal payloads have
different bytes, and a payload that was moved to another place cannot be read there. The layers
above see no difference: links are made of the clear payload, so a copy between an encrypted and a
plain store has equal links and an equal digest. Links are stored under a mask, because a link in
clear would let anybody who has the disk confirm a guess of a short payload.

Data keys are in the stream `encryption/keys`, wrapped by the store key. The layers above do not see
this stream. It must hold the first event of an encrypted store: a store that begins with any other
event is plain. Each event of the stream holds all keys and expects the one before it as the newest,
so two processes that change the keys at once cannot lose one.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import (
    GONE,
    START,
    Append,
    Backend,
    Commit,
    Durability,
    Finding,
    Gap,
    Head,
    Inspection,
    Leftover,
    LinkedRow,
    Mark,
    Objects,
    Position,
    Receipt,
    Record,
    Refusal,
    Rewrites,
    Salvageable,
    Shortens,
    position_before,
    read_back,
    read_linked,
    read_many,
    written_in_part,
)
from holdfast.clock import Clock
from holdfast.core.event import ORIGIN, record_link
from holdfast.core.layers import Layer, register_layer
from holdfast.core.sealing import CIPHER, derived_key, load_cipher
from holdfast.core.store_key import KEY_BYTES, WHAT, StoreKey
from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    StoreKeyError,
    UnavailableError,
    UsageError,
)

KEYS = "encryption/keys"
TYPE = "encryption.keys"
FORMAT = b"holdfast encrypted 1"
register_layer(Layer(name="encryption", prefixes=("encryption",), kept_with={"encryption": None}))

_PREFIX = b'{"$encrypted":"'
_ID = 16
_BODY = len(_PREFIX) + _ID + 1
_OBJECT = b"hfenc1\0"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NO_DIGEST = "x."
"""The prefix of the stored name of a blob that is not named by a digest; the rest is in clear."""
_AS_THEY_ARE = (
    "keeps_meta", "marks_at_moment", "purge", "record_keys", "rewrite", "timeout_s",
)  # fmt: skip
"""Optional attributes of a backend that are passed on unchanged, because they handle nothing that
is encrypted. Whatever writes data beside the store is left out on purpose: tables for outside
tools, and the witness, which has links in clear."""
_TRIES = 20
FIRST_EVENT_TIMEOUT_S = 10.0
MASKS = 1024
"""How many link masks are cached."""


class KeyStatus(Struct, frozen=True, kw_only=True):
    """How a store is encrypted: the ids of its keys, and whether a rewrap is unfinished."""

    is_encrypted: bool
    store_key: str = ""
    """The store key that the store was opened with."""
    data_key: str = ""
    """The data key that new data is encrypted with; in a mixed store that of the first backend."""
    data_keys: int = 0
    """How many data keys the store has. Each rotation adds one, in each backend of the store."""
    wrapped_by: list[str] = []
    """The store keys that open the store; two while it is rewrapped."""
    older: int = 0
    """How many earlier events with keys are still stored: an older store key may open them."""
    left: list[Leftover] = []
    """What a rewrap could not remove of them from the stored bytes, and what to do about it."""

    @property
    def is_done(self) -> bool:
        """False if a rewrap was begun and not finished: call it again with the same new key."""
        return len(self.wrapped_by) < 2


class _KeyRing(Struct, frozen=True, kw_only=True):
    """The payload of an event in `encryption/keys`. The first of `keys` masks links and names."""

    keys: list[str]
    wraps: dict[str, dict[str, str]]
    cipher: str = CIPHER
    format: int = 1


_key_ring = msgspec.json.Decoder(_KeyRing)
# Bytes are base64 in JSON. This decoder is three times as fast as binascii.
_bytes = msgspec.json.Decoder(bytes)
_quoted = msgspec.json.Encoder().encode


class _DataKey:
    """A data key of one store. Its id is stored with everything that it has encrypted."""

    def __init__(self, key: bytes) -> None:
        cipher, self._misfit = load_cipher(WHAT)
        self.key = key
        self.id = sha256(b"holdfast data key id" + key).hexdigest()[:_ID]
        self._cipher = cipher(derived_key(key, b"data"))
        self._about = b"\0".join((FORMAT, self.id.encode(), b""))
        self.prefix = b"%b%b:" % (_PREFIX, self.id.encode())

    def encrypt(self, data: bytes, place: bytes) -> bytes:
        # A constant nonce is safe with GCM-SIV: it only shows when equal data is encrypted for an
        # equal place. A random one would give a retried write other bytes (0046).
        return self._cipher.encrypt(bytes(12), data, self._about + place)

    def decrypt(self, data: bytes, place: bytes) -> bytes | None:
        """Returns what was encrypted for a place; None if it was changed, or is of another one."""
        try:
            return self._cipher.decrypt(bytes(12), data, self._about + place)
        except (self._misfit, ValueError):
            return None


def _place(stream: str, revision: int) -> bytes:
    return b"%b\0%d" % (stream.encode("utf-8", "surrogatepass"), revision)


# --- keys -----------------------------------------------------------------------------------------


class DataKeys:
    """The unwrapped data keys of one backend. They are read again when an unknown key id is met."""

    def __init__(self, backend: Backend, key: StoreKey, clock: Clock, actor: str) -> None:
        self._backend = backend
        self._clock = clock
        self._actor = actor
        self.store_key = key
        self._revision = 0
        self._link = ORIGIN
        self._time = 0
        self.ring = _KeyRing(keys=[], wraps={})
        self._known: dict[str, _DataKey] = {}

    def open(self, *, create: bool) -> None:
        """Reads the keys; makes the first key of a new store if `create`.

        Raises StoreKeyError if the store is plain, or if the store key does not fit.
        """
        if not is_encrypted(self._backend):
            if self._backend.wait(START, timeout_s=0) or not create:
                raise StoreKeyError(
                    "this store is not encrypted, and a store key was given: what it holds would "
                    "stay in clear",
                    hint="open it without store_key, or copy it into a new store that has one",
                )
            first = _DataKey(self._clock.random_bytes(KEY_BYTES))
            # The answer is not looked at: if this was refused, another process has made the keys
            # meanwhile, and they count. `load` reads what is there.
            self._append([first], [self.store_key])
            if not is_encrypted(self._backend):
                raise StoreKeyError(
                    "another process has begun this store without a key: it is not encrypted",
                    hint="open it without store_key",
                )
        self.load()

    def load(self) -> None:
        """Reads the newest keys, and unwraps those that are not known yet."""
        [head] = self._backend.heads([KEYS])
        assert head is not None, "BUG: the keys of a store that has none"
        [record] = self._backend.read(KEYS, after=head.revision - 1, until=head.revision)
        try:
            ring = _key_ring.decode(record.payload)
        except msgspec.MsgspecError as error:
            raise CorruptError(
                f"the wrapped keys of the store cannot be read: {error}",
                where=KEYS,
                hint="restore the store from a backup",
            ) from error
        if ring.format > 1:
            raise StoreKeyError(
                f"the store is encrypted in format {ring.format}, and this holdfast knows 1",
                hint="upgrade holdfast",
            )
        wraps = ring.wraps.get(self.store_key.id, {})
        if not wraps and any(id not in self._known for id in ring.keys):
            raise StoreKeyError(
                f"this store is encrypted, and the store key does not fit: it opens with key "
                f"{' or '.join(sorted(ring.wraps))}, found {self.store_key.id}",
                hint="store_key=…, --store-key or HOLDFAST_STORE_KEY name the key; shown are ids, "
                "which tell nothing of a key",
            )
        for id in ring.keys:
            if id not in self._known:
                self._known[id] = self._unwrapped(id, wraps.get(id, ""))
        self.ring = ring
        self._revision, self._link, self._time = head.revision, record.link, record.time

    def _unwrapped(self, id: str, text: str) -> _DataKey:
        try:
            found = self.store_key.unwrap(b64decode(text, validate=True), _about_key(id))
        except ValueError:
            found = None
        if found is None or _DataKey(found).id != id:
            raise CorruptError(
                f'data key "{id}" of the store is damaged: what it encrypted cannot be read',
                where=KEYS,
                hint="restore the store from a backup",
            )
        return _DataKey(found)

    @property
    def current(self) -> _DataKey:
        """The key that new data is encrypted with."""
        return self._known[self.ring.keys[-1]]

    @property
    def first(self) -> _DataKey:
        """The key of link masks and blob names, which do not change when keys are rotated."""
        return self._known[self.ring.keys[0]]

    def by_id(self, id: str) -> _DataKey:
        """Returns the key with an id; raises CorruptError if the store has no such key."""
        found = self._known.get(id)
        if found is None:
            self.load()  # another process has rotated the keys
            found = self._known.get(id)
        if found is None:
            raise CorruptError(f'data is encrypted with key "{id}", which the store does not have')
        return found

    def _append(self, keys: Sequence[_DataKey], by: Sequence[StoreKey]) -> bool:
        """Appends an event with all keys; returns False if another process was faster."""
        ring = _KeyRing(
            keys=[key.id for key in keys],
            wraps={
                store_key.id: {
                    key.id: b64encode(store_key.wrap(key.key, _about_key(key.id))).decode()
                    for key in keys
                }
                for store_key in by
            },
        )
        time = max(self._clock.now_us(), self._time)
        record = Record(
            KEYS, self._revision + 1, time, TYPE, self._actor, msgspec.json.encode(ring), b""
        )
        record = replace(record, link=record_link(self._link, record))
        append = Append(KEYS, self._revision, (record,))
        [answer] = self._backend.commit([Commit(time, self._actor, (append,))])
        return isinstance(answer, Receipt)

    def change(self, make: Callable[[], tuple[Sequence[_DataKey], Sequence[StoreKey]]]) -> None:
        """Appends what `make` returns; loads the keys and calls it again after a lost race.

        Raises ConflictError after some tries.
        """
        for _ in range(_TRIES):
            self.load()
            if self._append(*make()):
                self.load()
                return
        raise ConflictError(
            "the keys of the store are changed by others all the time",
            stream=KEYS,
            expected=self._revision,
            actual=self._revision + 1,
        )

    def all(self) -> list[_DataKey]:
        return [self._known[id] for id in self.ring.keys]

    def new_key(self) -> _DataKey:
        key = _DataKey(self._clock.random_bytes(KEY_BYTES))
        self._known[key.id] = key
        return key

    def older(self) -> list[int]:
        """Returns the revisions of all key events but the newest that still have their payload."""
        records = self._backend.read(KEYS)
        return [one.revision for one in records[:-1] if one.payload != GONE]


def _about_key(id: str) -> bytes:
    return b"\0".join((FORMAT, b"data key", id.encode()))


def is_encrypted(backend: Backend) -> bool:
    """Returns whether a backend's store is encrypted: whether its first event has its keys."""
    [head] = backend.heads([KEYS])
    return head is not None and _begins_with_keys(backend)


def _begins_with_keys(backend: Backend) -> bool:
    """Returns whether the first event of a store that has keys is that of its keys.

    While a transaction is open elsewhere, a server may not show the first event yet. This waits for
    it, because a wrong guess would write clear text into an encrypted store, or ciphertext into a
    plain one. Raises UnavailableError if the event does not become visible in time.
    """
    if not backend.wait(START, timeout_s=FIRST_EVENT_TIMEOUT_S):
        raise UnavailableError(
            "the store's first event cannot be seen yet, so it is not known whether it is "
            "encrypted: a transaction on the server is open",
            hint="try again when it has ended",
        )
    first = backend.read_all(limit=1)
    return not first or first[0].stream == KEYS


def check_plain(backend: Backend) -> Backend:
    """Returns a backend whose store is not encrypted; raises StoreKeyError if it is.

    A store without keys may be empty. Then its first event decides, and nothing that this handle
    writes may come after keys that another process makes meanwhile: see _PlainStart.
    """
    if isinstance(backend, EncryptedBackend):
        return backend  # it was opened with its key, and its data is encrypted on the way
    with suppress(CorruptError):  # a damaged store is opened to be looked at
        [head] = backend.heads([KEYS])
        if head is None:
            _PlainStart(backend)
        elif _begins_with_keys(backend):
            raise StoreKeyError(
                "this store is encrypted, and no store key was given",
                hint="holdfast.open(…, store_key=…), --store-key or HOLDFAST_STORE_KEY name the "
                "key",
            )
    return backend


class _PlainStart:
    """Stands in for `commit` of a backend until the first commit of this handle is accepted.

    Until then each commit also names the stream of the keys among what it has read, at revision 0:
    it must not exist. The commit that makes keys appends to the same stream. So the backend accepts
    one of the two first, and the second is refused. Later commits pass unchanged. A large value is
    stored before its commit: it is not stored if there are keys by then, and it is deleted if the
    commit is refused because of keys.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._commit, self._put = backend.commit, backend.objects.put
        self._is_over = False
        self._names: list[tuple[str, str]] = []
        # A third-party backend with slots does not allow this; then it is left unchanged.
        with suppress(AttributeError):
            backend.objects.put = self._put_first  # type: ignore[method-assign]
            backend.commit = self._commit_first  # type: ignore[method-assign]

    def _commit_first(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        answers: list[Receipt | Refusal] = []
        try:
            while len(answers) < len(commits) and not self._is_over:
                commit = commits[len(answers)]
                [answer] = self._commit([replace(commit, reads=(*commit.reads, (KEYS, 0)))])
                if isinstance(answer, Refusal) and self._has_keys():
                    continue  # keys came second, so the store is plain: sent again unguarded
                answers.append(answer)
                if isinstance(answer, Receipt) and commit.appends:
                    self._end()
            rest = commits[len(answers) :]
            return [*answers, *self._commit(rest)] if rest or not answers else answers
        except HoldfastError as error:
            is_known = not isinstance(error, UnavailableError) or error.outcome_known
            if is_known and any(isinstance(answer, Receipt) for answer in answers):
                raise written_in_part(error) from error
            raise

    def _put_first(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        if not self._is_over:
            self._has_keys()
            self._names.append((kind, name))
        self._put(kind, name, data, expires_us=expires_us)

    def _has_keys(self) -> bool:
        """Returns whether a plain store has keys that came second and do not count.

        If they came first, deletes the large values stored so far and raises StoreKeyError.
        """
        [head] = self._backend.heads([KEYS])
        if head is None:
            return False
        if _begins_with_keys(self._backend):
            for kind, name in self._names:
                self._backend.objects.delete(kind, name)
            raise StoreKeyError(
                "another process has begun this store with a store key: it is encrypted, and "
                "nothing was written",
                hint="open it again, with store_key=…",
            )
        self._end()
        return True

    def _end(self) -> None:
        self._is_over = True
        self._names.clear()
        backend, objects = self._backend, self._backend.objects
        # If other code has replaced these methods meanwhile, its wrapper stays in place and goes on
        # to call ours, which now pass everything through.
        if backend.commit == self._commit_first:
            backend.commit = self._commit  # type: ignore[method-assign]
        if objects.put == self._put_first:
            objects.put = self._put  # type: ignore[method-assign]


# --- the backend ----------------------------------------------------------------------------------


class EncryptedBackend:
    """A backend that encrypts what another one stores. All but data and links passes unchanged."""

    is_encrypted = True

    def __init__(self, inner: Backend, keys: DataKeys) -> None:
        self.inner = inner
        self.keys = keys
        mask = derived_key(keys.first.key, b"links")

        def mask_of(stream: str, revision: int, size: int) -> int:
            return int.from_bytes(hmac.digest(mask, _place(stream, revision), "sha256")[:size])

        # The mask of an event is needed again when the next event of its stream is committed.
        self._mask_of = lru_cache(MASKS)(mask_of)
        self.durability: Durability = inner.durability
        self.leases = inner.leases
        self.marks = inner.marks
        self.objects: Objects = _EncryptedObjects(inner.objects, keys)
        self.inspect: Inspection = _Inspection(inner.inspect, self)
        for name in _AS_THEY_ARE:
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))
        if isinstance(inner, Shortens):
            self.shorten = self._shorten
        self.find = inner.find
        self.wait = inner.wait
        self.moment = inner.moment
        self.now_us = inner.now_us
        self.close = inner.close

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        """Encrypts the payloads of commits and passes them to the inner backend."""
        answers = self.inner.commit([self._encrypted(commit) for commit in commits])
        return [
            replace(answer, head=self._head(answer.stream, answer.head))
            if isinstance(answer, Refusal)
            else answer
            for answer in answers
        ]

    def _shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        """Encrypts shortened payloads of stored records; the inner backend stores them."""
        inner = self.inner
        assert isinstance(inner, Shortens), "BUG: asked before"
        inner.shorten(
            {
                stream: {revision: self._ciphertext(stream, revision, payload)
                         for revision, payload in named.items()}
                for stream, named in payloads.items()
            }
        )  # fmt: skip

    def _encrypted(self, commit: Commit) -> Commit:
        if not commit.appends:
            return commit
        return replace(commit, appends=tuple(self._append(append) for append in commit.appends))

    def _append(self, append: Append) -> Append:
        previous = append.previous
        if previous and append.expected:
            previous = self._masked(append.stream, append.expected, previous)
        records = tuple(self._stored(record) for record in append.records)
        return replace(append, records=records, previous=previous)

    def _stored(self, record: Record) -> Record:
        stream, revision, payload = record.stream, record.revision, record.payload
        if payload != GONE:
            payload = self._ciphertext(stream, revision, payload)
        return replace(record, payload=payload, link=self._masked(stream, revision, record.link))

    def _ciphertext(self, stream: str, revision: int, payload: bytes) -> bytes:
        key = self.keys.current
        # The quoted text begins with a quote, which the prefix of the key already has.
        text = _quoted(key.encrypt(payload, _place(stream, revision)))
        return b"%b%b}" % (key.prefix, text[1:])

    def _masked(self, stream: str, revision: int, link: bytes) -> bytes:
        """Returns a link under its mask, or a masked link without it: XOR does both."""
        found = int.from_bytes(link) ^ self._mask_of(stream, revision, len(link))
        return found.to_bytes(len(link))

    # --- reading -------------------------------------------------------------------------------

    def _payload(self, stream: str, revision: int, stored: bytes) -> bytes:
        if stored == GONE:
            return GONE
        problem = "it is stored in clear"
        if stored.startswith(_PREFIX):
            try:
                key = self.keys.by_id(stored[len(_PREFIX) : _BODY - 1].decode())
                data = _bytes.decode(b'"%b' % stored[_BODY:-1])
                found = key.decrypt(data, _place(stream, revision))
            except ValueError:
                found = None
            if found is not None:
                return found
            problem = "it does not fit its key and its place: one of them changed"
        raise CorruptError(
            f'event {revision} of "{stream}" in an encrypted store cannot be read: {problem}',
            stream=stream,
            revision=revision,
        )

    def opened(self, record: Record) -> Record:
        """Returns a stored record, decrypted."""
        stream, revision = record.stream, record.revision
        payload = self._payload(stream, revision, record.payload)
        return replace(record, payload=payload, link=self._masked(stream, revision, record.link))

    def _head(self, stream: str, head: Head | None) -> Head | None:
        if head is None:
            return None
        return replace(head, link=self._masked(stream, head.revision, head.link))

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Returns records of a stream, decrypted."""
        records = self.inner.read(stream, after=after, until=until, limit=limit)
        return list(map(self.opened, records))

    def read_linked(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[LinkedRow]:
        """Returns rows of a stream, decrypted."""
        rows = read_linked(self.inner, stream, after=after, until=until, limit=limit)
        found: list[LinkedRow] = []
        for row in rows:
            payload = self._payload(stream, row[0], row[7])
            found.append((*row[:7], payload, self._masked(stream, row[0], row[8]), row[9]))
        return found

    def read_many(self, streams: Sequence[str], *, limit: int) -> list[list[Record]]:
        """Returns the oldest records of each stream, decrypted."""
        found = read_many(self.inner, streams, limit=limit)
        return [list(map(self.opened, records)) for records in found]

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        """Returns records of the store, decrypted, without those of its keys."""
        while records := self.inner.read_all(after=after, limit=limit):
            if found := self._shown(records):
                return found
            after = records[-1].position
        return []

    def read_back(self, *, until: Position | None = None, limit: int = 1000) -> list[Record]:
        """Returns the newest records of the store, decrypted, without those of its keys."""
        found: list[Record] = []
        while len(found) < limit:
            records = read_back(self.inner, until=until, limit=limit - len(found))
            if not records:
                break
            found = self._shown(records) + found
            until = position_before(self.inner, records[0])
            if until <= START:
                break
        return found

    def _shown(self, records: list[Record]) -> list[Record]:
        return [self.opened(record) for record in records if record.stream != KEYS]

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        """Returns the newest revision of each stream, with its link."""
        heads = zip(streams, self.inner.heads(streams), strict=True)
        return [None if name == KEYS else self._head(name, head) for name, head in heads]

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Returns names of streams, without that of the keys."""
        found = self.inner.streams(prefix=prefix, after=after, limit=limit + 1)
        return [name for name in found if name != KEYS][:limit]

    # --- keys ----------------------------------------------------------------------------------

    def rotate(self) -> None:
        """Adds a data key for new data. Stored data keeps the key that it has."""
        keys = self.keys

        def make() -> tuple[Sequence[_DataKey], Sequence[StoreKey]]:
            if len(keys.ring.wraps) > 1:
                raise UsageError(
                    "the store is being rewrapped: finish that before its keys are rotated",
                    hint="holdfast key rewrap with the same new key goes on",
                )
            return [*keys.all(), keys.new_key()], [keys.store_key]

        keys.change(make)

    def wrap_with(self, *store_keys: StoreKey) -> None:
        """Wraps the data keys with exactly these store keys; writes nothing if they are already."""
        keys = self.keys
        keys.load()
        if set(keys.ring.wraps) != {one.id for one in store_keys}:
            keys.change(lambda: (keys.all(), store_keys))

    def drop_older(self) -> list[Leftover]:
        """Removes the payloads of earlier key events, which an older store key can open.

        Returns what could not be removed from the stored bytes.
        """
        older = self.keys.older()
        if not older:
            return []
        if not isinstance(self.inner, Rewrites):
            return [Leftover(KEYS, "this backend cannot let go: copy the store into a new one")]
        self.inner.rewrite({KEYS: older})
        return self.inner.purge()


class _EncryptedObjects:
    """Blobs and snapshots as ciphertext. A blob's name, which is its digest, is encrypted too."""

    def __init__(self, inner: Objects, keys: DataKeys) -> None:
        self._inner = inner
        self._keys = keys

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        key = self._keys.current
        sealed = key.encrypt(data, f"{kind}/{name}".encode())
        stored = b"%b%b%b" % (_OBJECT, key.id.encode(), sealed)
        self._inner.put(kind, self._hidden(kind, name), stored, expires_us=expires_us)

    def get(self, kind: str, name: str) -> bytes | None:
        data = self._inner.get(kind, self._hidden(kind, name))
        if data is None:
            return None
        start = len(_OBJECT)
        found = None
        if data.startswith(_OBJECT):
            key = self._keys.by_id(data[start : start + _ID].decode(errors="replace"))
            found = key.decrypt(data[start + _ID :], f"{kind}/{name}".encode())
        if found is None:
            raise CorruptError(
                f'{kind} "{name}" does not fit its key and its name: one of them changed',
                where=f"{kind} {name}",
            )
        return found

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        if kind != "blob":
            return self._inner.names(kind, prefix=prefix)
        if _DIGEST.match(prefix):
            return [prefix] if self._inner.names(kind, prefix=self._hidden(kind, prefix)) else []
        shown = (self._shown(name) for name in self._inner.names(kind))
        return [name for name in shown if name is not None and name.startswith(prefix)]

    def delete(self, kind: str, name: str) -> None:
        self._inner.delete(kind, self._hidden(kind, name))

    def _hidden(self, kind: str, name: str) -> str:
        """Returns the stored name of an object.

        The digest of a blob is encrypted: in clear it would let anybody confirm a guess.
        """
        if kind != "blob":
            return name
        if not _DIGEST.match(name):
            return _NO_DIGEST + name
        return self._keys.first.encrypt(bytes.fromhex(name), b"blob name").hex()

    def _shown(self, stored: str) -> str | None:
        """Returns the name of a stored blob; None if this store did not make it."""
        if stored.startswith(_NO_DIGEST):
            return stored.removeprefix(_NO_DIGEST)
        try:
            name = self._keys.first.decrypt(bytes.fromhex(stored), b"blob name")
        except ValueError:
            return None
        return None if name is None else name.hex()


class _Inspection:
    """The inspection of the wrapped backend, with the id of the current data key."""

    def __init__(self, inner: Inspection, backend: EncryptedBackend) -> None:
        self._inner = inner
        self._backend = backend
        if isinstance(inner, Salvageable):
            self.remains = self._remains

    def describe(self) -> dict[str, Any]:
        return {**self._inner.describe(), "encrypted": self._backend.keys.current.id}

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        return self._inner.verify(read_all=read_all)

    def _remains(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        """Yields what can be read and decrypted; a record that cannot becomes a finding."""
        for one in cast("Salvageable", self._inner).remains():
            if not isinstance(one, list):
                yield one
                continue
            found: list[Record] = []
            for record in one:
                if record.stream == KEYS:
                    continue
                try:
                    found.append(self._backend.opened(record))
                except CorruptError as error:
                    where = f"{record.stream}@{record.revision}"
                    yield Finding(where, error.message, streams=(record.stream,))
            if found:
                yield found


# --- a store --------------------------------------------------------------------------------------


class Encryption:
    """The encryption of one store, which has one backend or several."""

    def __init__(self, key: StoreKey, clock: Clock, actor: str, *, create: bool) -> None:
        self.key = key
        self._clock = clock
        self._actor = actor
        self._create = create
        self.parts: list[EncryptedBackend] = []

    def wrap(self, inner: Backend) -> Backend:
        """Returns a backend that stores ciphertext in another one; raises StoreKeyError."""
        keys = DataKeys(inner, self.key, self._clock, self._actor)
        keys.open(create=self._create)
        wrapped = EncryptedBackend(inner, keys)
        self.parts.append(wrapped)
        return wrapped

    def rotate(self) -> KeyStatus:
        """Adds a data key to each backend, which encrypts new data from now on."""
        for part in self.parts:
            part.rotate()
        return self.status()

    def rewrap(self, new: StoreKey) -> KeyStatus:
        """Wraps the data keys with another store key, and removes what the old one opens.

        First every part opens with both keys, then with the new one alone. So whenever the process
        is killed, one of the two opens the whole store. A second call with the same key goes on.
        """
        for part in self.parts:
            part.keys.load()
            if new.id not in part.keys.ring.wraps:
                part.wrap_with(self.key, new)
        for part in self.parts:
            part.keys.store_key = new
            part.wrap_with(new)
        self.key = new
        left = [one for part in self.parts for one in part.drop_older()]
        return replace(self.status(), left=left)

    def status(self) -> KeyStatus:
        """Returns which keys the store is encrypted with, as they are stored now."""
        for part in self.parts:
            part.keys.load()
        rings = [part.keys.ring for part in self.parts]
        return KeyStatus(
            is_encrypted=True,
            store_key=self.key.id,
            data_key=rings[0].keys[-1],
            data_keys=sum(len(ring.keys) for ring in rings),
            wrapped_by=sorted({id for ring in rings for id in ring.wraps}),
            older=sum(len(part.keys.older()) for part in self.parts),
        )
