"""Answers `status`, `check` and `doctor` for a files store, without changing a byte."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from zlib import crc32

from msgspec.structs import replace

from holdfast.backends.files import journal, taken
from holdfast.backends.files.damaged import NO_LINE, DamagedCatalog, LostLines, TextScan
from holdfast.backends.files.disk import read_file, reported
from holdfast.backends.files.index import NAME as INDEX_NAME
from holdfast.backends.files.index import UNUSABLE, Index, LogCursor, RefusedIndex, open_existing
from holdfast.backends.files.objects import OBJECT_BYTES_MAX, TEMP, FileObjects
from holdfast.backends.files.pieces import pieces, split_lines
from holdfast.backends.files.text import (
    BadLine,
    LogLine,
    decode_line,
    decode_link,
    next_digest,
    records_of,
)
from holdfast.backends.protocol import Finding, Gap, Mark, Record
from holdfast.errors import CorruptError

if TYPE_CHECKING:
    from holdfast.backends.files.backend import FilesBackend

_ZSTD = b"\x28\xb5\x2f\xfd"
# So many compressed bytes yield at most 32 MiB of content.
_STEP = 1024
_DIGEST_LENGTH = 64


class FileInspection:
    def __init__(self, backend: FilesBackend) -> None:
        self._backend = backend

    def describe(self) -> dict[str, Any]:
        backend = self._backend
        with backend.reading(), backend.catalog.mutex:
            cursor = backend.catalog.tail.cursor
            path = backend.directory.path
            return {
                "kind": "files",
                "place": path,
                "path": path,
                "format": backend.directory.read_format(),
                "store": backend.directory.store,
                "durability": backend.durability,
                "size_bytes": sum(found.st_size for _, found in _files(path)),
                "position": cursor.position,
                "segments": len(backend.catalog.segments.starts),
                "reports": [*self._torn_reports(), *taken.reports(path), *backend.catalog.reports],
            }

    def _torn_reports(self) -> list[str]:
        known = set(self._backend.catalog.reports)
        reports: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            folder = os.path.join(self._backend.directory.path, "torn")
            for name in sorted(os.listdir(folder)):
                if name.endswith(".txt"):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        report = file.read().strip()
                    if report not in known:
                        reports.append(report)
        return reports

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields findings with file and byte; `read_all` reads every byte of text and objects."""
        with reported(f'the store "{self._backend.directory.path}" cannot be read'):
            yield from self._verify(read_all=read_all)

    def _verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Continues after each finding, so that no damage hides another."""
        backend = self._backend
        with backend.reading():
            end = backend.catalog.tail.cursor
        yield from self._verify_files()
        damage = list(self._damage())
        yield from damage
        scan = _Scan(backend, end)
        yield from self._verify_segments()
        if read_all:
            known = {finding.where for finding in damage}
            yield from (found for found in scan.run(self._remedy()) if found.where not in known)
        yield from self._verify_ring(end)
        if not damage:
            yield from self._verify_index(scan if read_all else None)
        if read_all:
            yield from self._verify_blobs()

    def _remedy(self) -> str:
        return f'holdfast salvage "{self._backend.directory.path}" NEW'

    def _damage(self) -> Iterator[Finding]:
        """Yields the damage because of which this store could be opened for reading only."""
        catalog = self._backend.catalog
        if isinstance(catalog, DamagedCatalog):
            yield from catalog.findings(self._remedy())

    def _verify_segments(self) -> Iterator[Finding]:
        try:
            self._backend.catalog.segments.check_contiguous()
        except CorruptError as exc:
            yield Finding(exc.where or "log", exc.message, remedy=self._remedy())

    # --- what can still be read ---

    def remains(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        """Yields every commit that can be read, in order, with each damage at its place.

        The ring is read too: it may hold a line that the text has lost, or does not have yet. Marks
        come last, in the state that the readable lines leave them in. Nothing is changed.
        """
        backend = self._backend
        with reported(f'the store "{backend.directory.path}" cannot be read'):
            yield from _Remains(backend).run()
        catalog = backend.catalog
        if isinstance(catalog, DamagedCatalog):
            yield from map(Gap, catalog.unproved)

    def _verify_files(self) -> Iterator[Finding]:
        for name, found in _files(self._backend.directory.path):
            if stat.S_ISLNK(found.st_mode):
                yield Finding(name, "is a symbolic link: a store has none")
            elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                mode = stat.S_IMODE(found.st_mode)
                yield Finding(
                    name, f"can be written by others (mode {mode:04o}): chmod go-w {name}"
                )
            elif os.path.basename(name).startswith(TEMP):
                yield Finding(name, "is left over from an interrupted write", harmless=True)

    def _verify_ring(self, end: LogCursor) -> Iterator[Finding]:
        directory = self._backend.directory
        segments = self._backend.catalog.segments
        for batch in journal.read_batches(directory.disk, directory.store, at=directory.fd) or ():
            # A batch above the end belongs to a commit that is under way.
            if batch.end <= end.end and segments.read(batch.offset, batch.end) != batch.text:
                where = segments.where(batch.offset)
                yield Finding(where, f"the text differs from ring batch {batch.number}")

    def _verify_index(self, scan: _Scan | None) -> Iterator[Finding]:
        backend = self._backend
        path = os.path.join(backend.directory.path, INDEX_NAME)
        try:
            index = open_existing(path, backend.directory.store, read_only=True)
            if index is None:
                return
            try:
                with index.reading() as base:
                    if scan is not None:
                        yield from scan.compare(index, base)
            finally:
                index.close()
        except RefusedIndex:
            return  # what is in it, another process can tell
        except UNUSABLE as exc:
            yield Finding(INDEX_NAME, f"cannot be used: {exc}; delete it", harmless=True)

    def _verify_blobs(self) -> Iterator[Finding]:
        backend = self._backend
        objects = backend.objects
        assert isinstance(objects, FileObjects), "BUG: the objects of a files store are files"
        for name, path in objects.walk("blob"):
            digest = name.rsplit("/", 1)[-1].split(".", 1)[0]
            if len(digest) != _DIGEST_LENGTH:
                continue
            disk, at = backend.directory.disk, backend.directory.fd
            try:
                data = read_file(disk, path, at=at, size_max=OBJECT_BYTES_MAX)
            except CorruptError as exc:
                yield Finding(path, exc.message)
                continue
            if data is not None and not _matches(data, digest):
                yield Finding(path, "does not hold the bytes that its name is the digest of")


class _Remains:
    """One pass over text and ring."""

    def __init__(self, backend: FilesBackend) -> None:
        self._backend = backend
        self._marks: dict[tuple[str, str], Mark] = {}
        self._ring: dict[int, LogLine] = {}
        directory = backend.directory
        self._batches = journal.read_batches(directory.disk, directory.store, at=directory.fd) or []
        for batch in self._batches:
            for encoded in split_lines(batch.text):
                line = decode_line(encoded)
                self._ring[line.n] = line

    def run(self) -> Iterator[list[Record] | Mark | Finding | Gap]:
        segments = self._backend.catalog.segments
        segments.refresh()
        scan = TextScan(segments, 0, 0)
        known = 0
        for line, _ in scan.lines(segments.end()):
            if len(scan.lost) > known:
                known = len(scan.lost)
                yield from self._lost(scan.lost[-1])
            yield self._records(line)
        position = scan.position
        scan.finish(*self._recorded())
        for lost in scan.lost[known:]:
            yield from self._lost(lost)
            position = lost.last
        for n in sorted(self._ring):  # lines that a crash left in the ring alone
            if n > position:
                yield self._records(self._ring[n])
        yield from self._marks.values()

    def _recorded(self) -> tuple[int, int | None]:
        """Returns the end that the text must reach, with its position if that is recorded too."""
        try:
            head = self._backend.directory.read_head()
        except CorruptError:
            head = None  # reported as a finding of its own
        ends = [batch.synced_end for batch in self._batches]
        if head is None or head.end < max(ends, default=0):
            return max(ends, default=0), None
        return head.end, head.position

    def _lost(self, lost: LostLines) -> Iterator[list[Record] | Finding | Gap]:
        kept = [n for n in sorted(self._ring) if lost.first <= n <= lost.last]
        is_whole = len(kept) > lost.last - lost.first
        problem = lost.describe()
        if kept:
            problem += f"; the ring still holds {len(kept)}"
        finding = Finding(lost.where, problem, harmless=is_whole)
        yield finding if is_whole else Gap(finding)
        for n in kept:
            yield self._records(self._ring[n])

    def _records(self, line: LogLine) -> list[Record]:
        for mark in line.set:
            kept = Mark(mark.index, mark.key, mark.due, mark.priority, mark.group)
            self._marks[mark.index, mark.key] = kept
        for mark in line.clear:
            self._marks.pop((mark.index, mark.key), None)
        return [record for section in line.sections for record in records_of(line, section)]


class _Scan:
    """Reads all text once: every line's checksum, position, order, and the digests over them."""

    def __init__(self, backend: FilesBackend, end: LogCursor) -> None:
        self._catalog = backend.catalog
        self._end = end
        self._head: LogCursor | None = None
        with contextlib.suppress(CorruptError):  # reported as a finding of its own
            self._head = backend.directory.read_head()
        # For each stream, the newest revision and a checksum over the spans of its lines. Spans
        # count only below the end that the index has now: a writer may bring it further meanwhile.
        self._heads: dict[str, int] = {}
        self._spans: dict[str, int] = {}
        self._index_end = backend.catalog.tail.base.end
        self._index_path = os.path.join(backend.directory.path, INDEX_NAME)
        self._store = backend.directory.store
        self._bad: dict[int, Finding] = {}
        self._names: dict[int, set[str]] = {}  # streams that lost events there

    def run(self, remedy: str) -> Iterator[Finding]:
        """Yields what is wrong with the text, with the streams that have lost events.

        The index names these streams, or revisions that are missing later show them. The damaged
        line itself proves nothing, because its checksum has failed.
        """
        yield from self._read(remedy)
        self._ask_index()
        for offset, finding in self._bad.items():
            yield replace(finding, streams=tuple(sorted(self._names.get(offset, ()))))

    def _read(self, remedy: str) -> Iterator[Finding]:
        cursor: LogCursor | None = LogCursor()
        position = 0
        segments = self._catalog.segments
        for offset, end, encoded in pieces(segments, 0, self._end.end):
            position += 1
            where = segments.where(offset)
            try:
                if encoded is None:
                    raise BadLine(NO_LINE)
                line = decode_line(encoded)
                if line.n != position:
                    problem = f"its position is {line.n}: expected {position}"
                    position = line.n
                    raise BadLine(problem)
                links = self._check_streams(line, offset, end - offset)
            except BadLine as exc:
                problem = f"the line is not what was written: {exc}"
                self._bad[offset] = Finding(where, problem, remedy=remedy)
                cursor = None  # the digest chain is broken: each later digest would differ too
            else:
                if cursor is not None:
                    digest = next_digest(cursor.digest, line, links)
                    cursor = LogCursor(end, position, digest)
            if cursor is not None:
                yield from self._check_recorded(cursor, where)

    def _ask_index(self) -> None:
        """Notes which streams have events in the damaged lines, according to the index."""
        if not self._bad:
            return
        with contextlib.suppress(*UNUSABLE):
            index = open_existing(self._index_path, self._store, read_only=True)
            if index is not None:
                for stream, head in index.heads():
                    for _, offset, _ in index.spans(stream, head.first - 1, head.revision):
                        if offset in self._bad:
                            self._names.setdefault(offset, set()).add(stream)
                index.close()

    def _check_streams(self, line: LogLine, offset: int, length: int) -> list[bytes]:
        links: list[bytes] = []
        problem = None
        for section in line.sections:
            stream, first = section.stream, section.revision
            known = self._heads.get(stream)
            expected = first if known is None and section.fork else (known or 0) + 1
            if first != expected and self._bad:
                self._names.setdefault(next(reversed(self._bad)), set()).add(stream)
            elif first != expected:
                problem = f"it holds {stream!r}@{first}: expected {expected}"
            self._heads[stream] = first + len(section.events) - 1
            if offset < self._index_end:
                before = self._spans.get(stream, 0)
                self._spans[stream] = _add_span(before, first, offset, length)
            links.append(decode_link(section.events[-1].link))
        if problem is not None:
            raise BadLine(problem)
        return links

    def _check_recorded(self, cursor: LogCursor, where: str) -> Iterator[Finding]:
        head = self._head
        if head is not None and head.end == cursor.end and head != cursor:
            yield Finding("head.json", f"records another digest or position for the end of {where}")
        if cursor.end == self._end.end and cursor != self._end:
            yield Finding(where, "the store digest differs from the one in use")

    def compare(self, index: Index, base: LogCursor) -> Iterator[Finding]:
        """Yields where the index and the text disagree."""
        if base.end != self._index_end or self._bad:
            # The index was brought up to date while we read: that is left to the next check. Or the
            # text is damaged: then the index still has what was there, and must not be deleted.
            return
        named: set[str] = set()
        for stream, head in index.heads():
            named.add(stream)
            checksum = 0
            for span in index.spans(stream, head.first - 1, head.revision):
                checksum = _add_span(checksum, *span)
            if checksum != self._spans.get(stream):
                problem = f"places of {stream!r} differ from the text; delete it"
                yield Finding(INDEX_NAME, problem, harmless=True)
        for stream in self._spans.keys() - named:
            yield Finding(INDEX_NAME, f"{stream!r} is missing; delete it", harmless=True)


def _add_span(checksum: int, first: int, offset: int, length: int) -> int:
    return crc32(b"%d %d %d" % (first, offset, length), checksum)


def _matches(data: bytes, digest: str) -> bool:
    if data.startswith(_ZSTD):
        import zstandard

        frame = zstandard.ZstdDecompressor().decompressobj()
        found, size = sha256(), 0
        try:
            # We always write the size of the content into the frame.
            if not 0 <= zstandard.frame_content_size(data) <= OBJECT_BYTES_MAX:
                return False
            # A step at a time, because a few compressed bytes can yield gigabytes.
            for start in range(0, len(data), _STEP):
                content = frame.decompress(data[start : start + _STEP])
                found.update(content)
                size += len(content)
                if size > OBJECT_BYTES_MAX or (frame.eof and start + _STEP < len(data)):
                    return False
        except zstandard.ZstdError:
            return False
        return frame.eof and not frame.unused_data and found.hexdigest() == digest
    return sha256(data).hexdigest() == digest


def _files(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields every file and folder below, with its path within the store."""
    for folder, folders, files in os.walk(path):
        for name in sorted(folders + files):
            full = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                yield os.path.relpath(full, path), os.lstat(full)
