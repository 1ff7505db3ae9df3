"""What is known of an event beside its data: the envelope field `meta` (0028). Pure.

It is stored as the text of one JSON object, without the fields that are None. The text is part of
the event's link. A later version of Holdfast may write keys that this one does not know: they stay
in the stored text, in copies and in what the command line shows.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from holdfast.core import codec
from holdfast.errors import CorruptError, UsageError, show_value

BYTES_MAX = 4096
"""The longest text in bytes: it is read with every event, so it must be small."""
KNOWN_MAX = 1024
"""How many decoded texts are cached: nearly all events of a writer have the same one."""

_Word = Annotated[str, msgspec.Meta(min_length=1)]


class Meta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of an event beside its data. What is None is not stored."""

    schema: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)] | None = None
    """The version of the schema that the data follows."""
    source: _Word | None = None
    """Where the data came from: a tool, a file, a person, another store."""
    trust: _Word | None = None
    """How far the source is trusted, in a word of the application's own."""
    cipher: _Word | None = None
    """What the payload was encrypted with."""
    key_id: _Word | None = None
    """Which key the payload was encrypted with."""
    trace: _Word | None = None
    """The trace that the event belongs to, as a W3C `traceparent`."""
    original_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When it happened, if that was not when it was stored."""
    imported_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """When it was stored, if its time is when it happened: the log sets this for imports (0033)."""


NOTHING = Meta()
_decoder = msgspec.json.Decoder(Meta)


def encode_meta(meta: object) -> str | None:
    """Returns the text to store, None if nothing is said; raises UsageError if meta is wrong.

    A struct does not check its own values. So the text is decoded again, which checks them.
    """
    if meta is None or meta == NOTHING:
        return None
    if not isinstance(meta, Meta):
        raise UsageError(f"meta is a Meta of holdfast.store, found {show_value(meta)}")
    try:
        data = codec.encode_plain(meta)
        _decoder.decode(data)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise UsageError(f"meta cannot be stored: {exc}") from exc
    if len(data) > BYTES_MAX:
        raise UsageError(
            f"meta takes {len(data)} bytes: at most {BYTES_MAX} fit",
            hint="put what is large into the event itself, and its place into meta",
        )
    return data.decode()


def imported_meta(common: str | None, now: datetime) -> str:
    """Returns the meta of an import: what its caller says, the time now, and the source `import`.

    If the caller names a source, that one counts.
    """
    source = "import" if source_and_trust(common)[0] is None else None
    return joined(common, codec.encode_plain(Meta(source=source, imported_at=now)).decode())


def is_imported(text: str | None) -> bool:
    """Returns whether an event's time was given by an import, and not by a clock."""
    return text is not None and decode_meta(text).imported_at is not None


@lru_cache(KNOWN_MAX)
def decode_meta(text: str) -> Meta:
    """Returns what a stored text says, without the keys that this version does not know."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as exc:
        raise CorruptError(f"the meta of an event cannot be read: {exc}") from exc


def source_and_trust(text: str | None) -> tuple[str | None, str | None]:
    """Returns the source and the trust in an event's meta, each None if it is not said."""
    if text is None:
        return None, None
    said = decode_meta(text)
    return said.source, said.trust


@lru_cache(KNOWN_MAX)
def joined(below: str | None, above: str) -> str:
    """Returns both texts as one; where both say something, `above` counts."""
    if below is None:
        return above
    said = codec.decode_as(below.encode(), dict[str, Any])
    said |= codec.decode_as(above.encode(), dict[str, Any])
    return codec.encode_plain(said).decode()
