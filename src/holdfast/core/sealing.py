"""Sealed events: payloads, snapshots and blobs that only the key of their subject opens (0045).

A scope is a subject's from its first event on, and for ever. Every event of it has the subject's
id in its envelope and a cipher in its meta; its payload is

    {"$sealed":"<base64>"}                 and, if it names blobs, after it
    ,"blobs":[<reference>,…]               so that copies take them along, without the key

The bytes are AES-256-GCM-SIV of `[key,checkpoint,payload]`: the envelope has the idempotency key
and the checkpoint name as keyed digests only, and they are read from here. The nonce is constant,
for which GCM-SIV is made: it shows which payloads under one key are equal, and nothing else. So a
blob is stored once. The associated data is the format, the subject and the key, never the place,
because a restore or a merge brings the same bytes to another revision.

The link of an event is made of the sealed bytes. So the chain verifies without any key, and still
does when the key is gone. The data of an erased subject reads as let go of.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from holdfast.backends.protocol import GONE, Record
from holdfast.core import codec
from holdfast.core.event import (
    CLOSED,
    FORKED,
    JOINED,
    LEASE,
    OPENED,
    OUR_NAMES,
    REMOVED,
    SEALED,
    Opened,
    Opener,
)
from holdfast.core.keystore import KeyStore, SubjectKey
from holdfast.core.layers import Layer, register_layer
from holdfast.core.meta import Meta, encode_meta, joined
from holdfast.errors import CorruptError, ErasedError, KeyMissingError, UsageError
from holdfast.names import check_name

CIPHER = "AES-256-GCM-SIV"
FORMAT = b"holdfast sealed 1"
PREFIX = "subject/"
"""How the names of subjects' streams begin.

`subject/<level>/<id>` says what holds for a subject's data at that level: whether it is held, and
whether it is being erased.
"""
ERASING = "subject.erasing"
"""The index that has a mark for each subject whose erasure has begun and is not done."""
BESIDE = "subject.beside"
"""The index that has one mark as soon as a scope that is nobody's has a sealed value.

A write to a stream whose state is not in memory asks for it. A store from before has the mark after
its next such value.
"""
register_layer(
    Layer(
        name="subjects",
        prefixes=("subject",),
        kept_with={"subject": None},
        indexes=(ERASING, BESIDE),
    )
)

READER: ContextVar[Callable[[Sealing, str], None] | None] = ContextVar(
    "holdfast_reader", default=None
)
"""Who is told whose data is read in this context: the run or node that the code is in.

What it makes of that data is the same subject's (0084).
"""


def tell_reader(sealing: Sealing, subject: str) -> None:
    """Tells the run or node of this context, if there is one, that a subject's data is read."""
    reader = READER.get()
    if reader is not None:
        reader(sealing, subject)


@contextmanager
def noted_reads() -> Generator[set[str]]:
    """The block in which something is looked for; yields the set of subjects whose data is read.

    The reader is told of none of them: much of what is looked at is in no answer. Who answers tells
    it of those that the answer is from.
    """
    subjects = set[str]()
    reader = READER.get()
    token = READER.set(reader and (lambda _, subject: subjects.add(subject)))
    try:
        yield subjects
    finally:
        READER.reset(token)


_NONCE = bytes(12)
_BLOB = b"hfseal1\0"
_CLEAR = frozenset((OPENED, FORKED, CLOSED, REMOVED, JOINED, LEASE))
"""Types that say how streams are connected, and nothing that people wrote: they are not sealed."""
_UNNAMED = b"[null,null,"
"""How the sealed part of an event without key and checkpoint name begins, as of most events."""


class _Sealed(Struct, frozen=True, gc=False):
    data: bytes = field(name="$sealed")


# Bytes in JSON are base64, which msgspec decodes three times as fast as binascii does.
_sealed = msgspec.json.Decoder(_Sealed)
_bytes = msgspec.json.Decoder(bytes)
_quoted = msgspec.json.Encoder().encode
_plain = msgspec.json.Decoder(tuple[str | None, str | None, Raw])


def load_cipher(
    what: str = "data of a subject is sealed",
) -> tuple[Callable[[bytes], Any], type[Exception]]:
    """Returns the class of the cipher, and the error that it raises if a key does not fit.

    Raises UsageError if it is not installed; `what` says in the message what it is for.
    """
    try:
        from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
    except ImportError as error:
        raise UsageError(
            f"{what}, and the package cryptography is not installed",
            hint='pip install "holdfast[seal]"',
        ) from error
    try:
        AESGCMSIV(bytes(32))
    except UnsupportedAlgorithm as error:
        raise UsageError(
            f"{what} by {CIPHER}, which this OpenSSL does not have: expected 3.2 or newer",
            hint="install the wheel of cryptography, which brings its own OpenSSL",
        ) from error
    return AESGCMSIV, InvalidTag


def stream_of(stream: str, subject: str) -> str:
    """Returns the subject's own stream that holds for its data in another stream."""
    return f"{PREFIX}{stream.partition('/')[0]}/{subject}"


class Seal:
    """The cipher of one subject, with one key for sealing and one for digests of names."""

    def __init__(self, key: SubjectKey) -> None:
        self.subject = key.id
        self.name = key.name
        self.key_id = sha256(b"holdfast key id" + key.key).hexdigest()[:16]
        text = encode_meta(Meta(cipher=CIPHER, key_id=self.key_id))
        assert text is not None, "BUG: a cipher that says nothing"
        self.meta = text
        cipher, self.misfit = load_cipher()
        self._cipher = cipher(derived_key(key.key, b"seal"))
        self.decrypt = self._cipher.decrypt
        self._names = derived_key(key.key, b"names")
        self.about = b"\0".join((FORMAT, key.id.encode(), self.key_id.encode()))

    def __repr__(self) -> str:
        return f"<Seal {self.subject}>"

    def seal(self, data: bytes) -> bytes:
        """Returns data that only `open` of the same key can read."""
        return self._cipher.encrypt(_NONCE, data, self.about)

    def open(self, data: bytes) -> bytes:
        """Returns the data that was sealed, or raises CorruptError."""
        try:
            return self.decrypt(_NONCE, data, self.about)
        except (self.misfit, ValueError) as error:
            raise CorruptError(
                f'sealed data of subject "{self.subject}" does not fit its key: one of them changed'
            ) from error

    def value(self, raw: bytes) -> bytes:
        """Returns an encoded value as a sealed leaf, for a scope that is not the subject's."""
        return codec.sealed_value(self.subject, _quoted(self.seal(raw)))

    def digest(self, what: str, name: str) -> str:
        """Returns the keyed digest that stands in the envelope for a name that people chose."""
        digest = hmac.new(self._names, f"{what} {name}".encode(), sha256).hexdigest()
        return f"sealed:{digest[:40]}"

    def record(
        self, type: str, payload: bytes, key: str | None, checkpoint: str | None, meta: str | None
    ) -> tuple[bytes, str | None, str | None, str]:
        """Returns payload, key, checkpoint name and meta of an event as they are stored."""
        stored_key = None if key is None else self.digest("key", key)
        stored_name = checkpoint
        if checkpoint is not None and checkpoint not in OUR_NAMES:
            stored_name = self.digest("checkpoint", checkpoint)
        meta = joined(meta, self.meta)
        if type in _CLEAR:
            return payload, stored_key, stored_name, meta
        if key is None and checkpoint is None:
            named = b"%b%b]" % (_UNNAMED, payload)
        else:
            named = b"%b,%b]" % (codec.encode_plain((key, checkpoint))[:-1], payload)
        sealed = _quoted(self._cipher.encrypt(_NONCE, named, self.about))
        blobs = codec.blobs_in(payload)
        if not blobs:
            return b'{"$sealed":%b}' % sealed, stored_key, stored_name, meta
        references = b",".join([codec.blob_ref(*one) for one in dict.fromkeys(blobs)])
        return (
            b'{"$sealed":%b,"blobs":[%b]}' % (sealed, references), stored_key, stored_name, meta
        )  # fmt: skip

    def blob(self, raw: bytes) -> tuple[str, bytes]:
        """Returns the name and the bytes of a sealed blob; the name is the digest of the bytes."""
        id = self.subject.encode()
        data = b"%b%c%b%b" % (_BLOB, len(id), id, self.seal(codec.compress(raw)))
        return sha256(data).hexdigest(), data


class Keyless:
    """Stands for the seal of an erased subject where a scope of theirs is removed.

    A removal says nothing that people wrote, so it needs no key; the envelope and the meta still
    say whose the scope is.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._meta = encode_meta(Meta(cipher=CIPHER)) or ""

    def record(
        self, type: str, payload: bytes, key: str | None, checkpoint: str | None, meta: str | None
    ) -> tuple[bytes, str | None, str | None, str]:
        """Returns payload, key, checkpoint name and meta of a removal as they are stored."""
        assert (type, key) == (REMOVED, None), "BUG: only a removal without a name needs no key"
        return payload, key, checkpoint, joined(meta, self._meta)


def derived_key(key: bytes, use: bytes) -> bytes:
    """Returns a key for one use, derived from another; none of them reveals any other."""
    return hmac.new(key, b"holdfast " + use, sha256).digest()


# --- names of the erased --------------------------------------------------------------------------
#
# A key store forgets the name of whom it erases. So that nobody goes on writing under that name, it
# notes a keyed digest of the name too, as one more erased id: every key store can do that. That
# somebody is admitted again is one more note, made from the first; the next erasure begins from
# there.


def told_as(keys: KeyStore, name: str) -> str:
    """Returns the keyed digest that an erasure is known by, from the name of its subject."""
    return keys.pseudonym(f"erased {name}")


def readmission(keys: KeyStore, noted: str) -> str:
    """Returns the id that is noted when a subject is admitted again after one erasure."""
    return keys.pseudonym(f"readmitted {noted}")


def erasure_noted(keys: KeyStore, told: str) -> tuple[str, bool]:
    """Returns the id under which the newest erasure of a subject is noted, and whether it is.

    If it is not, the next erasure is noted under it. `told` is where the chain begins, or an id
    that an earlier call returned.
    """
    while keys.is_erased(told):
        if not keys.is_erased(readmission(keys, told)):
            return told, True
        told = keys.pseudonym(f"erased again {told}")
    return told, False


def key_for(key: str | None, seal: Seal | None) -> str | None:
    """Returns an idempotency key as it is stored with a sealed value in a scope of others."""
    return key if key is None or seal is None else seal.digest("key", check_name(key, "key"))


def subject_of_blob(data: bytes) -> str | None:
    """Returns the id of the subject that a blob is sealed for; None if it is not sealed."""
    if not data.startswith(_BLOB):
        return None
    start = len(_BLOB) + 1
    return data[start : start + data[start - 1]].decode()


def _opened(seal: Seal | None, payload: bytes) -> tuple[str | None, str | None, Raw | bytes]:
    """Returns key, checkpoint name and payload of a sealed event; `GONE` without a seal."""
    if seal is None:
        return None, None, GONE
    try:
        plain = seal.open(_sealed.decode(payload).data)
        if plain.startswith(_UNNAMED):
            return None, None, plain[len(_UNNAMED) : -1]
        return _plain.decode(plain)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"sealed data cannot be read: {error}") from error


class Sealing:
    """The seals of one store, and what is known of its subjects' streams."""

    def __init__(self, keys: Callable[[], KeyStore], *, closes: bool = False) -> None:
        """`keys` is called when the first key is needed: most stores never need one.

        With `closes` the key store that it returns was made for this store alone, and `close`
        closes it.
        """
        self._keys_of = keys
        self._closes = closes
        self._keys: KeyStore | None = None
        self._seals: dict[str, Seal] = {}
        self.intended: dict[str, str] = {}
        """By stream, the id of the subject that it will belong to if this process begins it."""
        self.becoming: dict[str, str] = {}
        """By stream that is nobody's, the id of the subject that it is from its next event on."""
        self.quiet: set[str] = set()
        """The subjects' own streams that did not exist when they were asked for.

        This may be out of date: the guard of each commit shows it (0045).
        """
        self.guards: dict[str, tuple[tuple[str, int], ...]] = {}
        """By stream, what a commit to it also reads, if its subject is neither held nor erased."""
        self.are_beside = False
        """Whether a scope that is nobody's is known to have a sealed value."""
        self.told_beside = False
        """Whether this process has stored the mark that says so."""
        self.known: set[tuple[str, str]] = set()
        """Pairs of subject and stream for which a mark is stored already."""

    @property
    def keys(self) -> KeyStore:
        """The key store."""
        if self._keys is None:
            self._keys = self._keys_of()
        return self._keys

    def close(self) -> None:
        """Closes the key store, if it was opened and belongs to this store alone."""
        close = getattr(self._keys, "close", None) if self._closes else None
        if close is not None:
            close()

    def of(self, subject: str) -> Seal:
        """Returns the seal of a subject by its id; raises ErasedError or KeyMissingError.

        The key store is asked each time, although the seal is cached: another process may have
        destroyed the key.
        """
        seal = self._seals.get(subject)
        if seal is not None and self._keys is not None and self._keys.has(subject):
            return seal
        self._seals.pop(subject, None)
        key = self.keys.get(subject)
        if key is None:
            if self.keys.is_erased(subject):
                raise ErasedError(subject)
            raise KeyMissingError(subject, repr(self.keys))
        seal = self._seals[subject] = Seal(key)
        return seal

    def named(self, name: str) -> Seal:
        """Returns the seal of a subject by its name; makes a key if there is none.

        Raises ErasedError if the subject was erased and not admitted again. A writer who goes on
        would otherwise begin another subject of that name, and nobody would have asked for it.
        """
        keys, key = self.keys, self.keys.find(name)
        if key is not None and (seal := self._seals.get(key.id)) is not None:
            return seal
        noted = self._check_admitted(name, told_as(keys, name))
        if key is None:
            key = keys.make(name)
            try:
                # Once more: an erasure may have ended since, and the key may be made after it. Such
                # a key would go on counting, so it is destroyed too. One that was found is left to
                # the erasure that is under way: somebody may have data that is sealed with it.
                self._check_admitted(name, noted)
            except ErasedError:
                keys.destroy(key.id)
                raise
        seal = self._seals[key.id] = Seal(key)
        return seal

    def _check_admitted(self, name: str, noted: str) -> str:
        """Returns the id under which the next erasure of a name is noted.

        Raises ErasedError if the subject was erased and not admitted again.
        """
        noted, is_erased = erasure_noted(self.keys, noted)
        if not is_erased:
            return noted
        raise ErasedError(
            name,
            "what was to be written",
            hint="hf.subjects.readmit(name) lets them come back, with another key and id",
        )

    def forget(self, subject: str) -> None:
        """Drops a key that this process has in memory."""
        self._seals.pop(subject, None)

    # --- records -----------------------------------------------------------------------------

    def opener(self) -> Opener:
        """Returns a function that opens the payloads of one read; it asks for each key once."""
        seals: dict[str, Seal | None] = {}

        def open(subject: str, payload: bytes) -> bytes:
            try:
                seal = seals[subject]
            except KeyError:
                seal = seals[subject] = self._of(subject)
            if seal is None:
                return GONE
            try:
                # Every sealed event of a fold passes here, so no needless call is made.
                plain = seal.decrypt(_NONCE, _sealed.decode(payload).data, seal.about)
            except (msgspec.MsgspecError, ValueError, seal.misfit):
                return bytes(_opened(seal, payload)[2])  # raises, and says what is wrong
            if plain.startswith(_UNNAMED):
                return plain[len(_UNNAMED) : -1]
            return bytes(_opened(seal, payload)[2])

        return open

    def open(self, record: Record) -> Record:
        """Returns a record as its writer gave it; its payload is `GONE` if it was erased."""
        subject = record.subject
        if subject is None or record.payload[:12] != SEALED:
            return record
        try:
            key, checkpoint, payload = _opened(self._of(subject), record.payload)
        except CorruptError as error:
            raise CorruptError(
                f'event {record.revision} of "{record.stream}": {error.message}',
                stream=record.stream,
                revision=record.revision,
            ) from error
        if payload == GONE:
            key, checkpoint = record.key, record.checkpoint
        fields = {name: getattr(record, name) for name in Record.__struct_fields__}
        fields |= {"key": key, "checkpoint": checkpoint, "payload": bytes(payload)}
        return Opened(**fields, stored=record)

    def _of(self, subject: str) -> Seal | None:
        """Returns the seal of a subject; None if it was erased."""
        try:
            return self.of(subject)
        except ErasedError:
            return None

    # --- values ------------------------------------------------------------------------------

    def open_value(self, value: codec.SealedValue, size: int, get: Callable[[str], bytes]) -> bytes:
        """Returns the encoded value of a sealed leaf; that of ERASED if its subject is erased.

        `get` reads a blob as it is stored. In a block of `codec.kept_closed` no leaf is opened, and
        each reads as `[sealed]`: what is derived from a state and stored must not hold its value.
        """
        if codec.is_kept_closed():
            return codec.CLOSED_TEXT
        seal = self._of(value.subject)
        if seal is None:
            return codec.ERASED_TEXT
        tell_reader(self, value.subject)
        if value.blob:
            return self.open_blob(get(value.blob), value.blob, size)
        try:
            return seal.open(_bytes.decode(b'"%b"' % value.text.encode()))
        except msgspec.MsgspecError as error:
            raise CorruptError(f"sealed value cannot be read: {error}") from error

    # --- blobs -------------------------------------------------------------------------------

    def open_blob(self, data: bytes, name: str, size: int) -> bytes:
        """Returns the content of a sealed blob, verified; raises ErasedError or CorruptError."""
        subject = subject_of_blob(data)
        assert subject is not None, "BUG: a blob that is not sealed"
        if sha256(data).hexdigest() != name:
            raise CorruptError(f'blob "{name}" does not match its digest', where=f"blob {name}")
        start = len(_BLOB) + 1 + len(subject.encode())
        raw = codec.decompress(self.of(subject).open(data[start:]), size_max=size)
        if len(raw) != size:
            raise CorruptError(f'blob "{name}" is not as long as its event says')
        return raw
