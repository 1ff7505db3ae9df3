"""Which folds are kept as snapshots, when, and how one is trusted again.

A snapshot is an object named `<stream digest>/<revision>`: sha256 of the rest (32 bytes), a JSON
line with stream, revision, link, time, parent and closing, then the packed state (`snapshot.py`).
It is a hint. One that fails its digest, or whose link the log does not have at that revision, is
reported, deleted and not used.

A snapshot is due when the log has grown by as much as the last one took, and by 256 KiB at least.
So all snapshots together cost at most about what the log costs, and no state is further than that
from a snapshot at or below it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct

from holdfast import codec
from holdfast.backends.protocol import Objects
from holdfast.errors import CorruptError, HoldfastError
from holdfast.fold import BlobReader, Folded
from holdfast.snapshot import pack, unpack

GROWING_MAX = 65536  # streams whose growth is counted
GROWTH_BYTES_MIN = 256 * 1024
CLOSE_BYTES_MIN = 16 * 1024
EVENT_OVERHEAD_BYTES = 200
REPLAYED_EVENTS_MIN = 4096
_DIGEST_BYTES = 32

Fetch = Callable[[int, int], bytes]


class _Header(Struct, array_like=True):
    version: int
    stream: str
    revision: int
    link: str
    time: int
    parent: str | None
    closed_at: int
    dropped: bool
    expires_us: int = 0


class _Growth(Struct):
    bytes: int
    due_at_bytes: int


class Snapshots:
    """The snapshots of one store."""

    def __init__(
        self,
        objects_of: Callable[[str], Objects],
        *,
        link_of: Callable[[str, int], bytes | None],
        source_of: Callable[[str], Fetch],
        blobs: BlobReader,
        report: Callable[[str], None],
    ) -> None:
        self._objects_of = objects_of
        self._link_of = link_of
        self._source_of = source_of
        self._blobs = blobs
        self._report = report
        self._growth: dict[str, _Growth] = {}

    def grown(self, stream: str, folded: Folded, payload_bytes: int) -> None:
        """Notes that the stream grew by one commit, and writes a snapshot if one is due."""
        growth = self._growth.get(stream) or self._begin(stream)
        growth.bytes += payload_bytes + EVENT_OVERHEAD_BYTES
        if growth.bytes >= growth.due_at_bytes:
            self._write(stream, folded, growth)

    def replayed(self, stream: str, events: int) -> None:
        """Notes that so many events were folded to get at a state: worth a snapshot at close.

        Whoever appends events that change no state folds nothing and leaves no snapshots. So the
        first one who has to read a long stream leaves one for those who come behind.
        """
        if events >= REPLAYED_EVENTS_MIN:
            growth = self._growth.get(stream) or self._begin(stream)
            growth.bytes += events * EVENT_OVERHEAD_BYTES

    def _begin(self, stream: str) -> _Growth:
        if len(self._growth) >= GROWING_MAX:
            self._growth.pop(next(iter(self._growth)), None)
        return self._growth.setdefault(stream, _Growth(0, GROWTH_BYTES_MIN))

    def flush(self, folds: dict[str, Folded]) -> None:
        """Writes snapshots at a clean close, so that the next process need not fold again."""
        for stream, growth in self._growth.items():
            folded = folds.get(stream)
            if folded is not None and growth.bytes >= CLOSE_BYTES_MIN:
                self._write(stream, folded, growth)

    def revisions(self, stream: str) -> list[int]:
        """Returns the revisions of a stream that have a snapshot, oldest first."""
        prefix = _prefix(stream)
        names = self._objects_of(stream).names("snapshot", prefix=prefix)
        # A name that is no number is damage; what it names is found by nobody, and not missed.
        return sorted(int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdecimal())

    def nearest(self, stream: str, revision: int) -> Folded | None:
        """Returns the newest trustworthy snapshot at or below the revision."""
        for candidate in reversed(self.revisions(stream)):
            if candidate > revision:
                continue
            try:
                return self.read(stream, candidate)
            except CorruptError as error:
                self._report(f"{error.message}; it was discarded, the log has everything")
                self._discard(stream, candidate)
        return None

    def read(self, stream: str, revision: int) -> Folded:
        """Returns one snapshot, or raises CorruptError if it is not to be trusted."""
        data = self._objects_of(stream).get("snapshot", _name(stream, revision))
        what = f'snapshot of "{stream}" at revision {revision}'
        if data is None or sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            raise CorruptError(f"{what} fails its digest", stream=stream, revision=revision)
        end = data.index(b"\n", _DIGEST_BYTES)
        header = codec.decode_as(data[_DIGEST_BYTES:end], _Header)
        link = bytes.fromhex(header.link)
        named = (header.stream, header.revision)
        if named != (stream, revision) or self._link_of(stream, revision) != link:
            raise CorruptError(f"{what} disagrees with the log", stream=stream, revision=revision)
        root = unpack(data[end + 1 :], fetch=self._source_of(stream), blobs=self._blobs)
        return Folded(
            revision,
            link,
            header.time,
            root,
            header.parent,
            header.closed_at,
            header.dropped,
            header.expires_us,
        )

    def _write(self, stream: str, folded: Folded, growth: _Growth) -> None:
        header = _Header(
            1,
            stream,
            folded.revision,
            folded.link.hex(),
            folded.time,
            folded.parent,
            folded.closed_at,
            folded.dropped,
            folded.expires_us,
        )
        rest = codec.encode_plain(header) + b"\n" + pack(folded.root)
        try:
            name = _name(stream, folded.revision)
            data = sha256(rest).digest() + rest
            self._objects_of(stream).put("snapshot", name, data, expires_us=folded.expires_us)
        except HoldfastError as error:
            # The commit is durable already; a snapshot that cannot be written (disk full, a store
            # that is open read-only) must not turn it into an error. It is tried again when as much
            # has been written once more.
            self._report(f'snapshot of "{stream}" was not written: {error}')
        growth.bytes = 0
        growth.due_at_bytes = max(GROWTH_BYTES_MIN, len(rest))

    def _discard(self, stream: str, revision: int) -> None:
        try:
            self._objects_of(stream).delete("snapshot", _name(stream, revision))
        except HoldfastError as error:
            self._report(f"the damaged snapshot could not be deleted: {error}")


def _prefix(stream: str) -> str:
    return sha256(stream.encode()).hexdigest()[:32] + "/"


def _name(stream: str, revision: int) -> str:
    return f"{_prefix(stream)}{revision:016d}"
