"""The ledger of what was erased, kept with the keys because older copies do not know of it (0075).

In the store itself, `retention/log` says which events lost their data. A backup or export from
before does not have that. So an erasure is also noted in the key store, which is apart from both.
For each event the ledger has the stream, the revision, the link (which no other event has), the
digest of the payload, and the cuts if only parts of it went. It has nothing of the content.

A restore, copy or import applies it to every event (`Ledger.applied`). The new store then records
what is missing, as if the erasure had happened there.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, Leftover, Record
from holdfast.core import codec
from holdfast.core.keystore import KeepsLedger
from holdfast.core.log import Log
from holdfast.core.matching import Cut, Shortening, digest, shortened
from holdfast.errors import CorruptError, FormatError, HoldfastError

_logger = logging.getLogger("holdfast.erasure")
BEFORE = "backups and exports from before"
FORMAT = 1
_EVENTS = 500


class _Event(Struct, array_like=True, omit_defaults=True):
    revision: int
    link: str
    digest: str
    """The digest of the payload before this erasure, which may have been shortened already."""
    cuts: list[Cut] | None = None
    """The parts that were cut out of it; None if all of it went."""


class _Entry(Struct):
    stream: str
    events: list[_Event]
    holdfast: str = "erased"
    format: int = FORMAT


def note(
    log: Log,
    stream: str,
    records: Iterable[Record],
    steps: Mapping[int, Shortening] | None = None,
) -> Leftover | None:
    """Notes that events of a stream are erased; to be called before the first byte of them goes.

    If that is not possible, the erasure goes on, and the returned Leftover says what it means for
    older backups.
    """
    events = [
        _Event(
            one.revision,
            b64encode(one.link).decode(),
            digest(one.payload),
            None if steps is None else steps[one.revision].cuts,
        )
        for one in records
    ]
    keys = log.sealing.keys
    problem = f"{keys!r} has no ledger"
    if isinstance(keys, KeepsLedger):
        try:
            for start in range(0, len(events), _EVENTS):
                keys.note(codec.encode_plain(_Entry(stream, events[start : start + _EVENTS])))
            return None
        except HoldfastError as error:
            problem = error.message
            _logger.warning("what was erased could not be noted with the keys: %s", problem)
    return Leftover(
        BEFORE,
        f"a restore of one brings it back: delete them ({problem})",
        is_outside=True,
    )


def _decoded(raw: bytes, keys: str) -> _Entry:
    """Returns an entry; raises CorruptError if it was changed: it must not count as absent."""
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(
            f"the ledger of what was erased, in {keys}, is damaged: {error}",
            where=keys,
            hint="bring it back from a backup of the keys: without it, what was erased comes back",
        ) from None
    if entry.format > FORMAT:
        raise FormatError(
            f"the ledger of what was erased, in {keys}, has entries of format {entry.format}: this "
            f"holdfast reads up to {FORMAT}",
            hint="upgrade holdfast",
        )
    return entry


class Ledger:
    """The erased events that the key stores of some logs know of."""

    def __init__(self, *logs: Log) -> None:
        self._known: dict[tuple[str, int], list[_Event]] = {}
        for log in logs:
            keys = log.sealing.keys
            entries = keys.noted() if isinstance(keys, KeepsLedger) else []
            for raw in entries:
                entry = _decoded(raw, repr(keys))
                for event in entry.events:
                    self._known.setdefault((entry.stream, event.revision), []).append(event)

    def applied(self, record: Record) -> tuple[Record, bytes, tuple[Shortening, ...]] | None:
        """Returns an event without its erased data, the digest of its old payload, and the cuts.

        None if nothing of it was erased, or if the erased data is gone already.
        """
        events = self._known.get((record.stream, record.revision))
        if events is None or record.payload == GONE:
            return None
        link = b64encode(record.link).decode()
        mine = [event for event in events if event.link == link]
        payload, steps = record.payload, list[Shortening]()
        if any(event.cuts is None for event in mine):
            payload = GONE
        cut = {event.digest: event.cuts for event in mine if event.cuts}
        while payload != GONE and (cuts := cut.get(was := digest(payload))) is not None:
            payload = shortened(payload, cuts)
            steps.append(Shortening(record.revision, was, digest(payload), cuts))
        if payload == record.payload:
            return None
        return replace(record, payload=payload), sha256(record.payload).digest(), tuple(steps)
