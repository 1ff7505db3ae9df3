"""Cuts a text out of a whole store: out of data that was never sealed for a subject (0075).

Every event and every large value is searched. All places are found before anything is changed, so
a preview is the same search. The steps have this order, so that a kill at any point leaves nothing
half done, and the text itself never has to be stored in order to go on:

    (1) states that hold the text get an ordinary change that takes it out, so that processes with
        the old state in memory move on to the new one
    (2) events in `retention/log` say where the cuts are, with the digests of each payload before
        and after; marks say that the rest is pending
    (3) the backend replaces the payloads by the shorter ones (clause 41)
    (4) snapshots and everything else that was derived is deleted, then large values without a
        reference
    (5) the marks are cleared, and the backend purges its bytes

Before (2) nothing is lost: after a kill the caller starts again, with the text. After (2) `finish`
does the rest, without the text. At last the store is searched again, from where the first search
ended, for text that was written meanwhile; the answer says up to which position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, START, Position, Record
from holdfast.core import codec, tree
from holdfast.core.commit import ProposedCommit, StreamWrite, changed
from holdfast.core.event import (
    CUT,
    EMPTY,
    FORKED,
    JOINED,
    LEASE,
    OF_STATE,
    OPENED,
    SEALED,
    fold,
    ops_of,
)
from holdfast.core.log import NO_LIMIT, READ_CHUNK, Log
from holdfast.core.matching import Cut, Match, Shortening, digest, shortened
from holdfast.core.retention import (
    Retainer,
    Shorter,
    forked_from,
)
from holdfast.errors import ConflictError, CorruptError, HoldfastError, UsageError

_ERASED = codec.ERASED_TEXT.decode()
_OWN = ("retention/", "subject/")
"""Prefixes of streams without anything that people wrote."""
_LINKED = frozenset({OPENED, FORKED, JOINED, LEASE})
"""Types whose payloads connect streams by their names."""
_ENVELOPE = ("key", "checkpoint", "actor", "meta", "type")
_WHY = {
    "key": "an idempotency key is linked, and refuses a repetition",
    "checkpoint": "the name of a checkpoint is linked, and found by it",
    "actor": "the name of an actor is linked",
    "meta": "what is known of an event beside its data is linked",
    "type": "the type of an event is linked",
    "name": "the name of a scope is linked: remove and erase the scope",
    "mark": "a mark is found by it",
    "structure": "it says how scopes hang together",
}
RETRIES = 100
LOOKS_MAX = 10
"""How often the store is searched again because the text was written meanwhile."""


class Kept(Struct, frozen=True):
    """Where the text stays, how often, and why."""

    scope: str
    events: int
    reason: str


class Looked(Struct):
    """What one search found: by stream and revision, the payloads before and after, and the cuts.

    `kept` counts the places where the text stays, by stream and kind of place.
    """

    position: Position
    found: dict[str, dict[int, tuple[bytes, bytes, list[Cut]]]]
    kept: dict[tuple[str, str], int]
    blobs: set[str]
    """Large values that hold the text."""
    is_sealed: bool = False
    """Whether parts of the store are sealed, which are not searched."""


def look(log: Log, match: Match, *, after: Position = START, scope: str | None = None) -> Looked:
    """Searches the events after a position for a text; changes nothing."""
    looked = Looked(after, {}, {}, set())
    large: dict[str, bool] = {}
    while page := log.read_all(after=looked.position, limit=READ_CHUNK):
        looked.position = page[-1].position
        for record in page:
            if record.stream.startswith(_OWN) or scope not in (None, record.stream):
                continue
            _look_at(log, match, record, looked, large)
    if after == START:
        for name in match.names:
            if scope in (None, name):
                looked.kept[name, "name"] = 1
        _look_at_marks(log, match, looked, scope)
    return looked


def _look_at(
    log: Log, match: Match, record: Record, looked: Looked, large: dict[str, bool]
) -> None:
    for field in _ENVELOPE:
        if match.is_in(getattr(record, field)):
            _keep(looked, record.stream, field)
    payload = record.payload
    if payload == GONE or payload.startswith(SEALED):
        looked.is_sealed = looked.is_sealed or payload != GONE
        return
    looked.is_sealed = looked.is_sealed or codec.SEALED_VALUE in payload
    cuts = match.cuts(payload)
    for begin, end, name, size in codec.blob_places(payload):
        if name not in large:
            large[name] = _is_in_blob(log, match, name, size)
        if large[name]:
            looked.blobs.add(name)
            cuts.append(Cut(begin, end - begin, _ERASED))
    if not cuts:
        return
    if record.type in _LINKED:
        _keep(looked, record.stream, "structure")
        return
    shorter = shortened(payload, cuts)
    _check_shorter(record, shorter)
    looked.found.setdefault(record.stream, {})[record.revision] = payload, shorter, cuts


def _keep(looked: Looked, stream: str, what: str) -> None:
    looked.kept[stream, what] = looked.kept.get((stream, what), 0) + 1


def _is_in_blob(log: Log, match: Match, name: str, size: int) -> bool:
    if log.blobs.subject(name) is not None:
        return False
    return bool(match.cuts(log.blobs.read(name, size)))


def _look_at_marks(log: Log, match: Match, looked: Looked, scope: str | None) -> None:
    for mark in log.marks.list(limit=NO_LIMIT):
        is_name = mark.key in match.names or mark.group in match.names
        if is_name or scope not in (None, mark.group):
            continue
        if match.is_in(mark.key) or match.is_in(mark.group):
            _keep(looked, mark.group or mark.index, "mark")


def _check_shorter(record: Record, shorter: bytes) -> None:
    """Raises UsageError if a payload without the text would be malformed or have other ops."""
    try:
        codec.check(shorter)
        before, after = ops_of(record), ops_of(_with(record, shorter))
        is_sound = [one.kind for one in before] == [one.kind for one in after]
    except HoldfastError:
        is_sound = False
    if not is_sound:
        raise UsageError(
            f'event {record.revision} of "{record.stream}" would not be readable without the text: '
            "nothing was erased",
            hint="give more of the text, or erase the scope",
        )


def _with(record: Record, payload: bytes) -> Record:
    return replace(record, payload=payload)


def kept(looked: Looked) -> list[Kept]:
    """Returns where the text stays, in the order of names."""
    return [
        Kept(stream, count, _WHY[what]) for (stream, what), count in sorted(looked.kept.items())
    ]


def check_folds(log: Log, looked: Looked) -> None:
    """Raises UsageError if a state cannot be folded without the text, before anything is changed.

    For example, two keys that differ only in the text would become one.
    """
    for stream in [*looked.found, *forks_of(log, looked.found)]:
        [head] = log.heads([stream])
        records: list[Record] = []
        is_touched, after = False, 0
        for name, until in [] if head is None else [*log.ancestry(stream, head.revision)][::-1]:
            found = looked.found.get(name, {})
            while after < until and (page := log.stored(name, after=after, until=until)):
                after = page[-1].revision
                is_touched |= any(one.type in OF_STATE and one.revision in found for one in page)
                records += [
                    _with(one, found[one.revision][1]) if one.revision in found else one
                    for one in page
                ]
        if not is_touched:
            continue
        try:
            fold(EMPTY, records, log.blobs.read, log.sealing.opener())
        except CorruptError as error:
            raise UsageError(
                f'the state of scope "{stream}" would not be whole without the text: nothing was '
                "erased",
                hint="erase the scope as a whole: hf.subjects.erase(scope=…)",
            ) from error


# --- states ---------------------------------------------------------------------------------------


def change_states(log: Log, match: Match, looked: Looked, is_open: Callable[[str], bool]) -> None:
    """Step 1: takes the text out of the newest state of each scope, by an ordinary change.

    Processes that have the old state in memory follow this change. Forks are changed too, because
    they have the state of the stream that they began from. If a large value goes as a whole, a
    whole key of the state is set: once the value is gone, the fold has nothing below that key.
    """
    for stream in [*looked.found, *forks_of(log, looked.found)]:
        conflicts, depth, word = 0, 1 if looked.blobs else 1_000, ""
        while is_open(stream):
            state = log.newest(stream)
            if state.dropped:
                break
            with codec.kept_closed():
                ops = list(_changes(match, tree.thaw(state.root), (), depth, word))
            try:
                # Written even without ops: an older state may hold the text, and an event with
                # the checkpoint CUT says that it must not be stored.
                write = StreamWrite(stream, (changed(ops),), state.revision, checkpoint=CUT)
                log.commit(ProposedCommit((write,)))
            except ConflictError:
                conflicts += 1
                if conflicts == RETRIES:
                    raise
            except UsageError:
                if word:
                    raise
                word = _ERASED  # a schema allows ERASED at any place, but may refuse the cut text
            else:
                break


def forks_of(log: Log, streams: Collection[str]) -> list[str]:
    """Returns the streams that were forked from some others, at any depth."""
    found: list[str] = []
    for name, above in forked_from(log):
        if name not in streams and any(one in streams for one in above):
            found.append(name)
    return found


def _changes(
    match: Match, value: Any, path: tuple[str | int, ...], depth: int, word: str
) -> Iterator[tree.Op]:
    """Yields ops that take the text out of a value; the text is in no path of them."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        if len(path) < depth and not any(match.is_in(key) for key in table):
            for key, one in table.items():
                yield from _changes(match, one, (*path, key), depth, word)
            return
    elif isinstance(value, list) and len(path) < depth:
        for place, one in enumerate(cast("list[Any]", value)):
            yield from _changes(match, one, (*path, place), depth, word)
        return
    clean = _clean(match, value, word)
    if clean != value:
        yield tree.set_op(path, clean)


def _clean(match: Match, value: Any, word: str) -> Any:
    """Returns a value without the text; with `word`, ERASED replaces each leaf that holds it."""
    if isinstance(value, codec.SealedLeaf | codec.Erased):
        return value
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {match.in_text(key): _clean(match, one, word) for key, one in table.items()}
    if isinstance(value, list):
        return [_clean(match, one, word) for one in cast("list[Any]", value)]
    encoded = codec.encode(value)
    if not match.cuts(encoded):
        return value
    return codec.ERASED if word else codec.decode(match.without(encoded))


# --- cutting --------------------------------------------------------------------------------------


def cut(retainer: Retainer, looked: Looked, *, wait_s: float) -> Shorter:
    """Steps 2 to 5, under the lease of `retain`."""
    steps = {
        stream: [
            Shortening(revision, digest(before), digest(after), cuts)
            for revision, (before, after, cuts) in sorted(found.items())
        ]
        for stream, found in sorted(looked.found.items())
    }
    return retainer.shorten(steps, sorted(looked.blobs), wait_s=wait_s)
