"""Scopes as one readable file: `export_scopes` writes it, `import_scopes` reads it.

The file is JSON, a line for each thing:

    {"holdfast": "export", "format": 1, "at": …, "scopes": […]}
    {"blob": …, "size": …, "data": base64}                         before the event that names it
    {"stream": …, "revision": …, "commit": …, "time": …, "type": …, "actor": …, "payload": …,
     "link": …}                                                    an event, as it is stored
    {"mark": {…}}
    {"end": true, "events": …, "sha256": …}                        of every byte before this line

What is exported is of one moment. A scope comes with what it needs: the scopes that it was forked
from, and what layers keep with it. An import keeps every event as it is, with its time, actor, key
and link, so the chain of each stream can be verified, and is. The file is verified whole before
anything is written. Events that the target has already are left out; a scope that went on
differently there is refused.
"""

from __future__ import annotations

import base64
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import IO

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.backends.protocol import (
    START,
    Backend,
    Commit,
    Mark,
    MarksAtMoment,
    Position,
    Record,
    marks_at_moment,
)
from holdfast.core import codec
from holdfast.core.copy import (
    MARKS_PER_COMMIT,
    Copier,
    Progress,
    batches,
    commits_until,
    parts_of,
)
from holdfast.core.erased_ledger import Ledger
from holdfast.core.event import FORKED, origin_of, to_datetime
from holdfast.core.layers import kept_with
from holdfast.core.log import Log
from holdfast.core.salvage import Remains
from holdfast.core.sealing import subject_of_blob
from holdfast.errors import (
    ConflictError,
    CorruptError,
    FormatError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.names import check_scope_name
from holdfast.store import Store, open_store

__all__ = ["Exported", "Imported", "export_scopes", "import_scopes"]

FORMAT = 1
HELD_BACK_S = 30.0
"""How long to wait for a stranger's open transaction that holds back what is to be read."""
_KIND = "export"
_PAGE = 200
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What a decoder says of bytes that were changed: also of half a character."""


class Exported(Struct, frozen=True):
    """What an export wrote."""

    streams: list[str]
    events: int
    blobs: int
    marks: int


class Imported(Struct, frozen=True):
    """What an import wrote; `skipped` events were there already."""

    streams: list[str]
    events: int
    blobs: int
    marks: int
    skipped: int


class _Head(Struct):
    holdfast: str
    format: int
    at: str
    scopes: list[str]


class _Line(Struct, omit_defaults=True):
    """Any line but the first: what it is, is told by the field that it has."""

    stream: str = ""
    revision: int = 0
    commit: int = 0
    time: int = 0
    type: str = ""
    actor: str = ""
    key: str | None = None
    checkpoint: str | None = None
    subject: str | None = None
    meta: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    link: str = ""
    blob: str = ""
    size: int = 0
    data: str = ""
    sealed: bool = False
    mark: Mark | None = None
    end: bool = False
    events: int = 0
    sha256: str = ""


# --- what a scope needs --------------------------------------------------------------------------


class Needed:
    """Which streams and marks belong to some scopes: their own, of those that they were forked
    from, and what layers keep with them."""

    def __init__(self, log: Log, scopes: Iterable[str]) -> None:
        self.names: set[str] = set()
        waiting = [check_scope_name(name) for name in scopes]
        while waiting:
            name = waiting.pop()
            if name in self.names:
                continue
            [head] = log.heads([name])
            if head is None:
                raise NotFoundError(f'there is no scope "{name}"')
            self.names.add(name)
            [first] = log.stored(name, after=head.first - 1, until=head.first)
            if first.type == FORKED:
                waiting.append(origin_of(first)[0])
        self._beside = {word for word, level in kept_with().items() if level is None}

    def has(self, stream: str) -> bool:
        """Returns whether a stream belongs to them."""
        word, _, rest = stream.partition("/")
        return stream in self.names or (word in self._beside and rest in self.names)

    def marks(self, marks: Iterable[Mark]) -> list[Mark]:
        """Returns those of some marks that are about them."""
        return [mark for mark in marks if self.has_mark(mark)]

    def has_mark(self, mark: Mark) -> bool:
        """Returns whether a mark is about them."""
        return self.has(mark.group) or self.has(mark.key)

    def streams(self, log: Log) -> list[str]:
        """Returns the names of all of them that are there."""
        asked = sorted({*self.names, *(f"{w}/{n}" for w in self._beside for n in self.names)})
        return [name for name, head in zip(asked, log.heads(asked), strict=True) if head]


# --- moments -------------------------------------------------------------------------------------


def commits_of(part: Backend, after: Position, seen: MarksAtMoment) -> Iterator[list[Record]]:
    """Yields the commits of a moment after a position.

    Where transactions end in another order than they began, some that the moment holds are not
    final yet, and are not read before those under way have ended.
    """
    while True:
        for commit in commits_until(part, after, seen.newest):
            after = commit[0].position
            if seen.moment.has(after):
                yield commit
        final = part.wait(START, timeout_s=0)
        if after >= seen.newest or final >= seen.newest:
            return
        if part.wait(final, timeout_s=HELD_BACK_S) <= final:
            raise UnavailableError(
                f"a transaction that is open on the server holds back what was committed since "
                f"{HELD_BACK_S:.0f} s",
                hint="end it (pg_stat_activity shows it), then try again",
            )


# --- writing -------------------------------------------------------------------------------------


def export_scopes(
    store: Store,
    scopes: Iterable[str],
    file: IO[bytes],
    *,
    progress: Progress | None = None,
) -> Exported:
    """Writes scopes, by their full names, into a file that is open for bytes; all if none is named.

    `progress` is called with the number of events written so far, and how many there are.
    """
    if isinstance(scopes, str):
        raise UsageError(f'scopes is a list of names, found "{scopes}"')
    log, names = store._log, [check_scope_name(name) for name in scopes]
    parts = parts_of(log)
    moments = [marks_at_moment(part) for part in parts]
    needed = Needed(log, names) if names else None
    streams = needed.streams(log) if needed else list(_all_streams(log))
    head = _Head(
        _KIND, FORMAT, to_datetime(log.clock.now_us()).isoformat(), sorted(names) or streams
    )
    writer = _Writer(file, log, progress, _count(log, streams))
    writer.write(head)
    places = zip(parts, moments, strict=True)
    for place, (part, seen) in enumerate(places):
        mine = [name for name in streams if log.routes.place_of(name) == place]
        for commit in _commits(part, seen, mine if needed else None):
            writer.write_commit(commit)
    marks = [mark for seen in moments for mark in seen.marks]
    for mark in needed.marks(marks) if needed else marks:
        writer.write(_Line(mark=mark))
        writer.marks += 1
    writer.end()
    return Exported(streams, writer.events, writer.blobs, writer.marks)


def _all_streams(log: Log) -> Iterator[str]:
    after = ""
    while names := log.stream_page(after=after):
        yield from names
        after = names[-1]


def _count(log: Log, streams: list[str]) -> int:
    total = 0
    for start in range(0, len(streams), _PAGE):
        heads = log.heads(streams[start : start + _PAGE])
        total += sum(head.revision - head.first + 1 for head in heads if head is not None)
    return total


def _commits(
    part: Backend, seen: MarksAtMoment, streams: list[str] | None
) -> Iterator[list[Record]]:
    """Yields the commits of a moment, or what they wrote to some streams, in order."""
    if streams is None:
        yield from commits_of(part, START, seen)
        return
    merged = heapq.merge(*(_records(part, seen, name) for name in streams), key=_position)
    for _, commit in groupby(merged, _position):
        yield list(commit)


def _position(record: Record) -> Position:
    return record.position


def _records(part: Backend, seen: MarksAtMoment, stream: str) -> Iterator[Record]:
    after = 0
    while records := part.read(stream, after=after, limit=_PAGE):
        for record in records:
            if not seen.moment.has(record.position):
                return
            yield record
        after = records[-1].revision


class _Writer:
    """Writes lines, and counts and digests them."""

    def __init__(self, file: IO[bytes], log: Log, progress: Progress | None, total: int) -> None:
        self._file = file
        self._log = log
        self._progress = progress
        self._total = total
        self._digest = sha256()
        self._known: set[str] = set()
        self._commits = 0
        self.events = self.blobs = self.marks = 0

    def write(self, line: _Head | _Line) -> None:
        raw = msgspec.json.encode(line) + b"\n"
        self._digest.update(raw)
        try:
            self._file.write(raw)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UnavailableError(f"the export cannot be written: {error.strerror}") from error

    def write_commit(self, commit: list[Record]) -> None:
        self._commits += 1
        for record in commit:
            for name, size in codec.blobs_in(record.payload):
                self._write_blob(name, size)
            self.write(
                _Line(
                    stream=record.stream,
                    revision=record.revision,
                    commit=self._commits,
                    time=record.time,
                    type=record.type,
                    actor=record.actor,
                    key=record.key,
                    checkpoint=record.checkpoint,
                    subject=record.subject,
                    meta=UNSET if record.meta is None else Raw(record.meta.encode()),
                    payload=Raw(record.payload),
                    link=record.link.hex(),
                )
            )
            self.events += 1
        if self._progress is not None and self._commits % _PAGE == 0:
            self._progress(self.events, max(self._total, self.events))

    def _write_blob(self, name: str, size: int) -> None:
        if name not in self._known:
            data = self._log.blobs.stored(name, size)
            is_sealed = subject_of_blob(data) is not None
            raw = data if is_sealed else self._log.blobs.read(name, size)
            text = base64.b64encode(raw).decode()
            self.write(_Line(blob=name, size=size, data=text, sealed=is_sealed))
            self._known.add(name)
            self.blobs += 1

    def end(self) -> None:
        digest = self._digest.hexdigest()
        self.write(_Line(end=True, events=self.events, sha256=digest))
        self._file.flush()


# --- reading -------------------------------------------------------------------------------------


def import_scopes(
    store: Store, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Imported:
    """Reads a file that `export_scopes` wrote into a store, which may hold other scopes.

    It can be killed and run again. Raises CorruptError if the file is not whole, ConflictError if a
    scope of it went on differently in the store, and SecretError if it holds what the store is to
    keep out; then nothing was written.
    """
    reader = _Reader(Path(path))
    reader.verify()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-import-") as scratch,
        open_store(
            Path(scratch) / "store",
            durability="none",
            clock=store._log.clock,
            # The file is in clear; a copy of it beside an encrypted store need not be.
            store_key=None if store._encryption is None else store._encryption.key,
        ) as held,
    ):
        marks = reader.load(held._log)
        _check_target(held._log, store._log)
        _check_secrets(held._log, store._log)
        return _take(held._log, store._log, marks, reader.expires, progress)


class _Reader:
    """Reads the lines of a file; what is wrong with one is told with its number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.expires: dict[str, int] = {}  # when streams end by themselves

    def verify(self) -> None:
        """Raises CorruptError unless the file is whole and unchanged, by its last line."""
        digest, last = sha256(), b""
        try:
            with open(self._path, "rb") as file:
                for line in file:
                    digest.update(last)
                    last = line
        except OSError as error:
            raise UnavailableError(f'"{self._path}" cannot be read: {error.strerror}') from error
        try:
            end = msgspec.json.decode(last, type=_Line) if last else _Line()
        except UNREADABLE:
            end = _Line()
        if not end.end:
            raise self._damaged("it does not end as an export does: a part of it is missing")
        if end.sha256 != digest.hexdigest():
            raise self._damaged("it was changed since it was written")

    def load(self, log: Log) -> list[Mark]:
        """Puts every event into an empty log, each verified; returns the marks."""
        remains = Remains(log.link_at, log.blobs.stored)
        marks: list[Mark] = []
        copier = Copier(log, log, None, ends=lambda streams: dict.fromkeys(streams, 0))
        objects = parts_of(log)[0].objects
        commit: list[Record] = []
        number = 0
        for at, line in self._lines():
            if line.commit != number and commit:
                copier.copy([commit], 0)
                commit = []
            if line.blob:
                raw = base64.b64decode(line.data)
                objects.put("blob", line.blob, raw if line.sealed else codec.compress(raw))
            elif line.mark is not None:
                marks.append(line.mark)
            elif line.stream:
                number = line.commit
                commit.append(_record(line))
                if not remains.take(commit[-1]):
                    cut = remains.cut.get(line.stream)
                    raise self._damaged(f"line {at}: {cut.problem if cut else 'it comes twice'}")
        self.expires = {stream: remains.end(stream) for stream in remains.lifetimes}
        return marks

    def _lines(self) -> Iterator[tuple[int, _Line]]:
        with open(self._path, "rb") as file:
            self._check_head(file.readline())
            for at, raw in enumerate(file, 2):
                try:
                    yield at, msgspec.json.decode(raw, type=_Line)
                except UNREADABLE as error:
                    raise self._damaged(f"line {at}: {error}") from None

    def _check_head(self, raw: bytes) -> None:
        try:
            head = msgspec.json.decode(raw, type=_Head)
        except UNREADABLE:
            head = _Head("", 0, "", [])
        if head.holdfast != _KIND:
            raise FormatError(f'"{self._path}" is no export: its first line does not say so')
        if head.format > FORMAT:
            raise FormatError(
                f'"{self._path}" has format {head.format}: this holdfast reads up to {FORMAT}',
                hint="upgrade holdfast",
            )

    def _damaged(self, problem: str) -> CorruptError:
        return CorruptError(
            f'"{self._path}" is damaged: {problem}; nothing was written',
            where=str(self._path),
            hint="export the scopes again",
        )


def _record(line: _Line) -> Record:
    return Record(
        line.stream,
        line.revision,
        line.time,
        line.type,
        line.actor,
        b"" if line.payload is UNSET else bytes(line.payload),
        bytes.fromhex(line.link),
        line.key,
        line.checkpoint,
        line.subject,
        meta=None if line.meta is UNSET else bytes(line.meta).decode(),
    )


def _check_target(held: Log, target: Log) -> None:
    """Raises ConflictError unless each stream of one is a beginning of the other's, or equal."""
    for name in _all_streams(held):
        [ours], [theirs] = held.heads([name]), target.heads([name])
        if ours is None or theirs is None:
            continue
        if theirs.revision <= ours.revision:
            is_same = held.link_at(name, theirs.revision) == theirs.link
        else:
            is_same = target.link_at(name, ours.revision) == ours.link
        if not is_same:
            raise ConflictError(
                f'"{name}" is there already, and went on differently; nothing was written',
                stream=name,
                expected=ours.revision,
                actual=theirs.revision,
                hint="import into another store, or fork the scope that is there",
            )


def _check_secrets(held: Log, target: Log) -> None:
    """Raises SecretError if a log has secrets in scopes where the target redacts or refuses them.

    What is sealed was looked through when it was written, and cannot be now.
    """
    redactor = target.redactor
    if redactor is None:
        return
    for commit in commits_until(parts_of(held)[0], START, held.position()):
        for record in commit:
            if record.subject is not None or redactor.mode_of(record.stream) == "off":
                continue
            redactor.check_foreign(record.payload, record.stream)
            for name, size in codec.blobs_in(record.payload):
                if held.blobs.subject(name) is None:
                    redactor.check_foreign(held.blobs.read(name, size), record.stream)


def _take(
    held: Log,
    target: Log,
    marks: list[Mark],
    expires: dict[str, int],
    progress: Progress | None,
) -> Imported:
    """Copies what the target lacks of a log."""

    def ends(names: list[str]) -> dict[str, int]:
        found = {name: expires.get(name, 0) for name in names}
        return {
            name: -1 if end and target.now_us(name) >= end else end for name, end in found.items()
        }

    copier = Copier(held, target, progress, ends, Ledger(target))
    streams = list(_all_streams(held))
    total = _count(held, streams)
    for batch in batches(commits_until(parts_of(held)[0], START, held.position())):
        copier.copy(batch, total)
    # A scope that went on in the target has marks of its own by now.
    heads = zip(streams, held.heads(streams), target.heads(streams), strict=True)
    same = {name for name, ours, theirs in heads if ours and theirs and ours.link == theirs.link}
    count = _set_marks(target, [mark for mark in marks if not mark.group or mark.group in same])
    copier.tell_erased()
    copied = copier.copied(count, is_behind=False)
    return Imported(streams, copied.events, copied.blobs, count, copied.skipped)


def _set_marks(target: Log, marks: list[Mark]) -> int:
    """Sets the marks that are not there; returns how many."""
    count = 0
    for place, part in enumerate(parts_of(target)):
        there = {(mark.index, mark.key) for mark in part.marks.list(limit=1 << 62)}
        missing = [
            mark
            for mark in marks
            if (mark.index, mark.key) not in there and target.routes.place_of_mark(mark) == place
        ]
        for start in range(0, len(missing), MARKS_PER_COMMIT):
            chunk = tuple(missing[start : start + MARKS_PER_COMMIT])
            part.commit([Commit(target.clock.now_us(), target.actor, marks=chunk)])
        count += len(missing)
    return count
