"""Saved folds: how they are stored beside the log, and when one is trusted.

A saved fold is an object of the kind `snapshot` with the name
`projection/<digest of name and source>/<digest of the code>-<place>`. It holds the sha256 of the
rest (32 bytes), a JSON line that says what it belongs to, then the packed state. Like every
snapshot it is only a cache. It is not used if it fails its digest, if it was made by other code, or
if the log does not have its newest event.
"""

from __future__ import annotations

import logging
from hashlib import sha256

from msgspec import Struct

from holdfast.backends.protocol import Objects
from holdfast.core import codec
from holdfast.core.log import Log
from holdfast.core.snapshot import pack, unpack
from holdfast.errors import CorruptError, ExpiredError, HoldfastError
from holdfast.projections.fold import Fold, Place

_logger = logging.getLogger("holdfast.projections")

KIND = "snapshot"
PREFIX = "projection/"
OTHERS_MAX = 3
"""How many saved folds of other code stay: several versions of a program may run at once."""
_DIGEST_BYTES = 32


class _Header(Struct, array_like=True):
    format: int
    projection: str
    source: str
    thumb: str
    at: int
    events: int
    life: int
    until_us: int
    stream: str
    revision: int
    link: str


def save(log: Log, fold: Fold, thumb: str) -> None:
    """Saves a fold, and deletes older ones of the same code. Never raises for a failed write."""
    place = fold.place
    if place.stream and log.subject_of(place.stream) is not None:
        return  # a saved copy of sealed data would be in clear: fold it again each time
    header = _Header(
        1, fold.projection.name, fold.source.name, thumb, place.at, place.events, place.life,
        place.until_us, place.stream, place.revision, place.link.hex(),
    )  # fmt: skip
    rest = codec.encode_plain(header) + b"\n" + pack(fold.root)
    objects, folder = _objects(log, fold), _folder(fold)
    name = f"{folder}{thumb[:32]}-{place.at:020d}"
    try:
        expires_us = place.until_us or _end_of(log, place)
        objects.put(KIND, name, sha256(rest).digest() + rest, expires_us=expires_us)
        _tidy(objects, folder, name)
    except HoldfastError as error:
        # The store may be open read-only, or the disk full. A saved fold only saves time, so the
        # failure is reported and the caller goes on.
        log.report(f'the fold of projection "{fold.projection.name}" was not kept: {error}')


def _end_of(log: Log, place: Place) -> int:
    return log.expiry.keep_until(place.stream) if place.stream else 0


def _tidy(objects: Objects, folder: str, newest: str) -> None:
    """Deletes older folds of the same code, and all but the newest few of other code."""
    mine = newest.rpartition("-")[0] + "-"
    names = [name for name in objects.names(KIND, prefix=folder) if name != newest]
    older = [name for name in names if name.startswith(mine) and name < newest]
    others = sorted(
        (name for name in names if not name.startswith(mine)), key=lambda name: name[-20:]
    )
    for name in (*older, *others[: max(len(others) - OTHERS_MAX, 0)]):
        objects.delete(KIND, name)


def load(log: Log, fold: Fold, thumb: str) -> bool:
    """Sets a fold to the newest saved one that can be trusted; returns False if there is none.

    Those that cannot be trusted are reported and deleted on the way.
    """
    objects, folder = _objects(log, fold), _folder(fold)
    names = objects.names(KIND, prefix=f"{folder}{thumb[:32]}-")
    for name in sorted(names, reverse=True):
        try:
            _read(log, fold, thumb, objects.get(KIND, name))
        except (CorruptError, ExpiredError) as error:
            log.report(
                f'a fold of projection "{fold.projection.name}" that was kept is not used: '
                f"{error.message}; it is folded again"
            )
            _discard(objects, name)
            continue
        return True
    return False


def _read(log: Log, fold: Fold, thumb: str, data: bytes | None) -> None:
    if data is None or sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        raise CorruptError("it fails its digest")
    end = data.index(b"\n", _DIGEST_BYTES)
    header = codec.decode_as(data[_DIGEST_BYTES:end], _Header)
    named = (header.projection, header.source, header.thumb)
    if named != (fold.projection.name, fold.source.name, thumb):
        raise CorruptError("it is one of something else")
    link = bytes.fromhex(header.link)
    if header.revision:
        records = log.records(header.stream, after=header.revision - 1, until=header.revision)
        if not records or records[0].link != link:
            raise CorruptError("it disagrees with the log")
    fold.root = unpack(data[end + 1 :], fetch=_nowhere, blobs=None)
    fold.place = Place(
        header.at, header.events, header.life, header.until_us, header.stream, header.revision, link
    )


def _nowhere(_revision: int, _op: int) -> bytes:
    raise CorruptError("a fold that is kept refers to an event: expected the value itself")


def _discard(objects: Objects, name: str) -> None:
    try:
        objects.delete(KIND, name)
    except HoldfastError as error:
        _logger.debug("a fold that is not used could not be deleted: %s", error)


def _objects(log: Log, fold: Fold) -> Objects:
    return log.routes.objects_of(fold.source.name)


def _folder(fold: Fold) -> str:
    named = codec.encode_plain([fold.projection.name, type(fold.source).__name__, fold.source.name])
    return f"{PREFIX}{sha256(named).hexdigest()[:32]}/"
