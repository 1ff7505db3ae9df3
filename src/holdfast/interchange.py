"""Scopes as one readable file: `export_scopes` writes it, `import_scopes` reads it.

The file is JSON, a line for each thing:

    {"holdfast": "export", "format": 1, "at": …, "scopes": […]}
    {"blob": …, "size": …, "data": base64}                         before the event that names it
    {"stream": …, "revision": …, "commit": …, "time": …, "type": …, "actor": …, "payload": …,
     "link": …}                                                    an event, as it is stored
    {"mark": {…}}
    {"told": {…}}                                                  what of an event was let go of
    {"end": true, "events": …, "sha256": …}                        of every byte before this line

An export is of one moment. A scope comes with what it needs: the scopes that it was forked from,
and what layers keep with it. An import keeps every event unchanged, with its time, actor, key and
link, so the chain of each stream is verified. The whole file is verified before anything is
written. Events that the target already has are skipped; a scope that has other events there is
refused.

An event whose data was let go of has none in the file. What the store tells of it comes along, and
the target tells it too: otherwise `check` would take it for damage there. Files from before have no
such lines; what is missing from them is told as damage.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.backends.protocol import GONE, START, Mark, Record, is_shortened
from holdfast.core import codec
from holdfast.core.event import to_datetime
from holdfast.core.expiry import HOLDS
from holdfast.core.kernel import kernel_of
from holdfast.core.log import Log
from holdfast.core.matching import Shortening
from holdfast.core.retention import STREAM as LEDGER
from holdfast.core.retention import Told, Why, ledger
from holdfast.core.sealing import subject_of_blob
from holdfast.core.verify import Verification
from holdfast.errors import CorruptError, FormatError, UnavailableError, UsageError
from holdfast.names import check_scope_name
from holdfast.opening import open_store
from holdfast.settings import Settings
from holdfast.store import Store
from holdfast.transfer.scopes import take_scopes
from holdfast.transfer.sink import Progress, Sink
from holdfast.transfer.source import ScopeSource, Source, count_events, heads_of

__all__ = ["Exported", "Imported", "export_scopes", "import_scopes"]

FORMAT = 1
_KIND = "export"
_PAGE = 200
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""The errors of a decoder for damaged bytes, such as half a character."""


class Exported(Struct, frozen=True):
    """What an export wrote."""

    streams: list[str]
    events: int
    blobs: int
    marks: int


class Imported(Struct, frozen=True):
    """What an import wrote; `skipped` counts events that were there already."""

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


class _ToldLine(Struct, omit_defaults=True):
    """What the ledger of the store tells of one event: see `Told`."""

    stream: str
    revision: int
    digest: str
    why: Why
    steps: list[Shortening] = []
    is_gone: bool = True

    @classmethod
    def of(cls, name: tuple[str, int], told: Told) -> _ToldLine:
        return cls(*name, told.digest.hex(), told.why, [*told.steps], told.is_gone)

    def told(self) -> Told:
        return Told(bytes.fromhex(self.digest), self.why, START, (*self.steps,), self.is_gone)


class _Line(Struct, omit_defaults=True):
    """Any line but the first; its kind shows by which fields it has."""

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
    told: _ToldLine | None = None
    end: bool = False
    events: int = 0
    sha256: str = ""


# --- writing -------------------------------------------------------------------------------------


def export_scopes(
    store: Store,
    scopes: Iterable[str],
    file: IO[bytes],
    *,
    progress: Progress | None = None,
) -> Exported:
    """Writes scopes, by their whole names, into a file open for bytes; all scopes if none is named.

    `progress` is called with the number of events written so far and their total.
    """
    if isinstance(scopes, str):
        raise UsageError(f'scopes is a list of names, found "{scopes}"')
    log, names = kernel_of(store).log, [check_scope_name(name) for name in scopes]
    source = ScopeSource(log, names)
    streams = source.streams
    at = to_datetime(log.clock.now_us()).isoformat()
    writer = _Writer(file, log, progress, count_events(heads_of(log, streams)))
    writer.write(_Head(_KIND, FORMAT, at, sorted(names) or streams))
    for commit in source.commits():
        writer.write_commit(commit)
    for mark in source.marks:
        writer.write(_Line(mark=mark))
    if writer.lacking and LEDGER not in streams:
        for name, told in ledger(log).items():
            if name in writer.lacking:
                writer.write(_Line(told=_ToldLine.of(name, told)))
    writer.end()
    return Exported(streams, writer.events, writer.blobs, len(source.marks))


class _Writer:
    """Writes lines, counts them and keeps their digest."""

    def __init__(self, file: IO[bytes], log: Log, progress: Progress | None, total: int) -> None:
        self._file = file
        self._log = log
        self._progress = progress
        self._total = total
        self._digest = sha256()
        self._known: set[str] = set()
        self._commits = 0
        self.lacking: set[tuple[str, int]] = set()
        """The events whose data, or a part of it, was let go of."""
        self.events = self.blobs = 0

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
            if record.payload == GONE or is_shortened(record.payload):
                self.lacking.add((record.stream, record.revision))
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

    If the process is killed, make the same call again. Raises CorruptError if the file is damaged,
    ConflictError if the store has other events of one of its scopes, and SecretError if it holds
    secrets that the store refuses; in these cases nothing was written.
    """
    file = _File(Path(path))
    file.verify()
    kernel = kernel_of(store)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-import-") as scratch,
        open_store(
            Path(scratch) / "store",
            durability="none",
            # The file is in clear, but this temporary copy of it need not be.
            store_key=kernel.store_key,
            settings=Settings(clock=kernel.clock),
        ) as held,
    ):
        source = file.load(kernel_of(held).log, clock=kernel.log)
        streams = list(source.log.streams())
        copied = take_scopes(source, kernel.log, file.marks, streams, progress, file.told)
    return Imported(streams, copied.events, copied.blobs, copied.marks, copied.skipped)


class _File:
    """Reads the lines of a file; errors name the number of the line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.marks: list[Mark] = []
        self.told: dict[tuple[str, int], Told] = {}

    def verify(self) -> None:
        """Raises CorruptError unless the digest in the last line shows the file unchanged."""
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

    def load(self, log: Log, *, clock: Log) -> Source:
        """Puts every event into an empty log, verifying each, and returns that log as a source.

        No stream ends in that log: whether a lifetime is over is decided by the target's clock.
        """
        sink = Sink(log)
        verification = Verification(sink.link_at, log.blobs.stored)
        sink.take(_Lasting(log), self._commits(log, verification))
        held = {mark.key for mark in self.marks if mark.index == HOLDS}
        return Source(log, verification=verification, clock=clock, held=held)

    def _commits(self, log: Log, verification: Verification) -> Iterator[list[Record]]:
        """Yields the commits of the file, verified, each after its blobs were stored."""
        commit: list[Record] = []
        number = 0
        for at, line in self._lines():
            # A blob may stand between two events of one commit, before the one that names it.
            if line.commit != number and commit and not line.blob:
                yield commit
                commit = []
            if line.blob:
                raw = base64.b64decode(line.data)
                log.blobs.put_back(line.blob, raw if line.sealed else codec.compress(raw))
            elif line.mark is not None:
                self.marks.append(line.mark)
            elif line.told is not None:
                self._note_told(at, line.told)
            elif line.stream:
                number = line.commit
                commit.append(_record(line))
                if not verification.take(commit[-1]):
                    raise self._damaged(f"line {at}: {verification.why_not(line.stream)}")

    def _note_told(self, at: int, line: _ToldLine) -> None:
        try:
            told = line.told()
            digests = [b64 for step in told.steps for b64 in (step.was, step.now)]
            sizes = {len(base64.b64decode(one, validate=True)) for one in digests}
        except ValueError:
            raise self._damaged(f"line {at}: a digest of what was let go of is no digest") from None
        if sizes | {len(told.digest)} != {sha256().digest_size}:
            raise self._damaged(f"line {at}: a digest of what was let go of is cut short")
        self.told[line.stream, line.revision] = told

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


class _Lasting(Source):
    """A source in which no stream has an end."""

    def ends(self, streams: list[str]) -> dict[str, int]:
        """Returns 0, which means no end, for each of the streams."""
        return dict.fromkeys(streams, 0)


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
