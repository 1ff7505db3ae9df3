"""Large values beside the log: content-addressed, deduplicated, compressed, loaded on access."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from math import inf

from msgspec import Raw

from holdfast.backends.protocol import Objects
from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.sealing import Seal, Sealing, subject_of_blob
from holdfast.core.tree import Op
from holdfast.errors import CorruptError

BLOB_BYTES_MIN = 64 * 1024
KNOWN_MAX = 65536


class Blobs:
    """The blobs of one store: read from any backend of it, written to that of their stream."""

    def __init__(
        self,
        objects: Objects,
        objects_of: Callable[[str], Objects],
        keep_until: Callable[[str], int],
        collected: Callable[[], int],
        sealing: Sealing,
        seal_of: Callable[[str], Seal | None],
    ) -> None:
        """`collected` returns when blobs were last deleted, by any process (0: never).

        `seal_of` returns the seal for the large values of a stream; None if they are not sealed.
        """
        self._objects = objects
        self._sealing = sealing
        self._seal_of = seal_of
        self._objects_of = objects_of
        self._keep_until = keep_until
        self.collected = collected
        self.clean: Callable[[bytes, str], bytes] | None = None
        """Takes secrets out of a value before it is stored; None if nothing does."""
        # Until when each blob is known to be there. It saves writing the same value again.
        self._known: OrderedDict[tuple[Objects, str], float] = OrderedDict()
        self._collected = 0
        self.limits: Limits | None = None
        """What a nearly full disk refuses; None if no disk is watched."""

    def is_large(self, op: Op) -> bool:
        """Returns whether `spill` would have to write a blob."""
        return len(op.value) >= BLOB_BYTES_MIN

    def sealed(self, op: Op, stream: str, seal: Seal) -> Op:
        """Returns the op with its value sealed as one leaf, in a blob if it is large.

        Secrets are taken out before the value is sealed: afterwards they could not be found.
        """
        raw = bytes(op.value)
        if len(raw) < BLOB_BYTES_MIN:
            if self.clean is not None:
                raw = self.clean(raw, stream)
            return Op(op.kind, op.path, Raw(seal.value(raw)))
        spilled = self.spill(op, stream, seal)
        return Op(op.kind, op.path, Raw(codec.sealed_value(seal.subject, bytes(spilled.value))))

    def spill(self, op: Op, stream: str, seal: Seal | None = None) -> Op:
        """Returns the op with a large value moved out of the log into a blob.

        The blob is named by its digest and is durable before the commit that names it. So a crash
        between the two leaves an unused object, never a reference to nothing. The blob is kept at
        least as long as the stream.
        """
        if len(op.value) < BLOB_BYTES_MIN:
            return op
        raw = bytes(op.value)
        if codec.SEALED_VALUE in raw:
            # A sealed value has its own blob already if it needs one: see `sealed`. What contains
            # some stays in its event: there an erasure finds them, in a blob it would not.
            return op
        if self.clean is not None:
            raw = self.clean(raw, stream)
        seal = seal or self._seal_of(stream)
        name, data = (sha256(raw).hexdigest(), None) if seal is None else seal.blob(raw)
        expires_us = self._keep_until(stream)
        until = expires_us or inf
        objects = self._objects_of(stream)
        if self._known.get((objects, name), 0) < until or self._are_collected():
            if self.limits is not None:
                self.limits.check_blob()
            data = codec.compress(raw) if data is None else data
            objects.put("blob", name, data, expires_us=expires_us)
            if len(self._known) >= KNOWN_MAX:
                self._known.popitem(last=False)
            self._known[objects, name] = until
        return Op(op.kind, op.path, Raw(codec.blob_ref(name, len(raw))))

    def _are_collected(self) -> bool:
        """Returns whether blobs were deleted since the last call; if so, forgets which exist.

        Another process may have deleted any of them.
        """
        collected = self.collected()
        if collected == self._collected:
            return False
        self._collected = collected
        self._known.clear()
        return True

    def names(self) -> set[str]:
        """Returns the names of all blobs that are there."""
        return set(self._objects.names("blob"))

    def delete(self, name: str) -> bytes | None:
        """Deletes a blob; returns its stored bytes, None if it is not there."""
        data = self._objects.get("blob", name)
        self._objects.delete("blob", name)
        return data

    def put_back(self, name: str, data: bytes) -> None:
        """Stores again the bytes that `delete` returned."""
        self._objects.put("blob", name, data)

    def read(self, name: str, size: int) -> bytes:
        """Returns the bytes of a blob, verified against its name, and opened if it is sealed.

        Given the name of a sealed value (see `codec.parse_reference`), it returns that value.
        """
        if (value := codec.parse_sealed_name(name)) is not None:
            return self._sealing.open_value(value, size, self._get)
        data = self._get(name)
        if subject_of_blob(data) is not None:
            return self._sealing.open_blob(data, name, size)
        return _verified(data, name, size)

    def stored(self, name: str, size: int) -> bytes:
        """Returns the stored bytes of a blob, verified against its name; this needs no key."""
        data = self._get(name)
        if subject_of_blob(data) is None:
            _verified(data, name, size)
        elif sha256(data).hexdigest() != name:
            raise CorruptError(f'blob "{name}" does not match its digest', where=f"blob {name}")
        return data

    def subject(self, name: str) -> str | None:
        """Returns the subject of a sealed blob; None if it is not sealed, or not there."""
        data = self._objects.get("blob", name)
        return None if data is None else subject_of_blob(data)

    def _get(self, name: str) -> bytes:
        data = self._objects.get("blob", name)
        if data is None:
            raise CorruptError(
                f'blob "{name}" is missing: an event refers to it (a copy that cp or tar made of a '
                "store in use lacks such blobs: copy it again with holdfast copy; what was let go "
                "of while it was read is gone: holdfast retain --log)",
                where=f"blob {name}",
                hint="restore it from the original or a backup; its name is the sha256 of its "
                "bytes",
            )
        return data


def _verified(data: bytes, name: str, size: int) -> bytes:
    raw = codec.decompress(data, size_max=size)
    if len(raw) != size or sha256(raw).hexdigest() != name:
        raise CorruptError(f'blob "{name}" does not match its digest', where=f"blob {name}")
    return raw
