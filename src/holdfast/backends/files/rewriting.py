"""Letting go of payloads in a store on plain files (0041, 0086).

A rewritten line keeps its length in the text, so every log offset stays true: the index, the spans
that other processes hold, head.json and the ring need no change. Nor does the store digest, because
a rewritten line keeps the checksum that it had before. A sealed segment is replaced whole, by a
rename; its file is packed, which leaves out the spaces that stand where payloads were. The steps,
each of which leaves a whole store if the process is killed after it:

    (1) the segment that is written to is sealed, if it has one of the records: a new one begins
    (2) the ring is wiped: it has the newest lines too, and recovery would write them back
    (3) each segment is rewritten to a file beside it, which is synced and read back; commits go on
        meanwhile
    (4) under the store lock, the store gets the number of the format that has packed segments, and
        the new file takes the place of the old one

A word of the shared page tells every process to open the segments again, at its next read or its
next look while idle (`file_watch`). Until then the old file is on the disk, without a name.
Whoever finds everything done already syncs the folder once more and sets the word anew: the one
that did it may have been killed right after the rename.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.backends.files.directory import FORMAT, REWRITTEN
from holdfast.backends.files.disk import unavailable
from holdfast.backends.files.objects import ROOT as OBJECTS
from holdfast.backends.files.objects import FileObjects
from holdfast.backends.files.opening import Opened
from holdfast.backends.files.packing import is_worth, pack
from holdfast.backends.files.text import DIRECTORY as LOG
from holdfast.backends.files.text import BadLine, FileIdentity, Segments, rewrite_line
from holdfast.backends.protocol import Leftover
from holdfast.errors import CorruptError

if TYPE_CHECKING:
    from holdfast.backends.files.backend import FilesBackend

TORN = "torn"
_MEND = 'copy the store away and run "holdfast check", then "holdfast salvage"'

Payloads = Mapping[str, Mapping[int, bytes]]
_Lines = dict[int, int]
"""The log offset of each line, and its length."""


def shorten(backend: FilesBackend, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
    """Replaces the payloads of these records by GONE, or by others (clauses 28 and 41).

    A segment with a damaged line does not keep the payloads in the others: they are done first.
    """
    wanted = {stream: named for stream, named in payloads.items() if named}
    lines = backend.write(lambda opened: _prepare(backend, opened, wanted))
    damage: list[CorruptError] = []
    with _reported(backend):
        for start, mine in sorted(_by_segment(backend.catalog.segments, lines).items()):
            try:
                while not _rewrite_segment(backend, start, mine, wanted):
                    pass  # another process has rewritten it meanwhile: begin again from its file
            except CorruptError as exc:
                damage.append(exc)
    if damage:
        raise damage[0]


@contextlib.contextmanager
def _reported(backend: FilesBackend) -> Generator[None]:
    try:
        yield
    except OSError as exc:
        subject = f'the store "{backend.directory.path}" cannot be rewritten'
        raise unavailable(exc, subject) from exc


def _prepare(backend: FilesBackend, opened: Opened, wanted: Payloads) -> _Lines:
    """Steps 1 and 2: returns the lines that have the records, all of them in sealed segments."""
    lines: _Lines = {}
    for stream, named in wanted.items():
        for _, offset, length in opened.catalog.spans(stream, min(named) - 1, max(named)):
            lines[offset] = length
    if lines and max(lines) >= opened.catalog.segments.newest:
        backend.seal(opened)
        opened.reach("files.rewrite.sealed")
    opened.journal.wipe(opened.catalog.tail.cursor)
    return lines


def _by_segment(segments: Segments, lines: _Lines) -> dict[int, _Lines]:
    found: dict[int, _Lines] = {}
    for offset, length in lines.items():
        found.setdefault(segments.start_at(offset), {})[offset] = length
    return found


def _rewrite_segment(backend: FilesBackend, start: int, lines: _Lines, wanted: Payloads) -> bool:
    """Steps 3 and 4; returns False if another process has replaced the segment since it was read.

    Only the rename needs the store lock: nobody appends to a sealed segment, and a rewriting by
    another process shows by the inode.
    """
    segments = backend.catalog.segments
    content, identity = segments.content(start)
    text = bytearray(content)
    is_changed = False
    for offset, length in lines.items():
        place = slice(offset - start, offset - start + length)
        before = bytes(text[place])
        try:
            text[place] = after = rewrite_line(before, wanted)
        except BadLine as exc:
            where = segments.where(offset)
            problem = f"the line at {where} cannot be read: {exc}"
            raise CorruptError(problem, where=where) from exc
        is_changed = is_changed or before != after
    if not is_changed:
        backend.write(_settle)
        return True
    return _exchange(backend, start, identity, bytes(text), pack(bytes(text)))


def _pack_segment(backend: FilesBackend, start: int) -> bool:
    """Packs a sealed segment that was rewritten before; returns as `_rewrite_segment` does."""
    text, identity = backend.catalog.segments.content(start)
    packed = pack(text)
    if packed is None or not is_worth(identity.size, len(packed)):
        return True
    return _exchange(backend, start, identity, text, packed)


def _exchange(
    backend: FilesBackend, start: int, identity: FileIdentity, text: bytes, packed: bytes | None
) -> bool:
    """Steps 3 and 4 for a segment whose text is known."""
    segments = backend.catalog.segments
    file = text if packed is None else packed
    beside = segments.write_beside(start, text, file, backend.clock)

    def replace(opened: Opened) -> bool:
        if packed is not None:
            # An older holdfast would take a packed segment for a damaged one. So the number tells
            # it, before there is one.
            opened.directory.upgrade(opened.clock, FORMAT)
            opened.reach("files.rewrite.numbered")
        try:
            return segments.replace(start, identity, beside)
        finally:
            # The shared page tells every process of it before its next read: also if the sync after
            # the rename failed.
            opened.page.words[REWRITTEN] += 1

    try:
        backend.write(lambda opened: opened.reach("files.rewrite.written"))
        is_done = backend.write(replace)
        backend.write(lambda opened: opened.reach("files.rewrite.replaced"))
        return is_done
    finally:
        segments.remove_beside(beside.name)


def _settle(opened: Opened) -> None:
    """Makes durable what was done before, and has every process open the segments again.

    Who did it may have been killed between the rename and the sync of the folder, or its sync
    failed. Without this, a power loss could bring back payloads that are told to be gone.
    """
    opened.catalog.segments.sync_names()
    opened.page.words[REWRITTEN] += 1


def pack_all(backend: FilesBackend) -> list[Leftover]:
    """Packs every sealed segment whose file becomes enough shorter by that.

    Returns those that are damaged, and stay as they are.
    """

    def begin(opened: Opened) -> list[int]:
        # Its one batch then records the end, so that recovery writes nothing into sealed segments.
        opened.journal.wipe(opened.catalog.tail.cursor)
        return opened.catalog.segments.starts[:-1]

    starts = backend.write(begin)
    left: list[Leftover] = []
    with _reported(backend):
        for start in starts:
            try:
                while not _pack_segment(backend, start):
                    pass  # another process has rewritten it meanwhile
            except CorruptError as exc:
                left.append(Leftover(exc.where or LOG, f"{exc.message}: {_MEND}"))
    return left


def purge(backend: FilesBackend, *, whole: bool) -> list[Leftover]:
    """Removes what recovery cut off and kept, and what interrupted writes of objects left.

    With `whole`, segments that an older holdfast rewrote become shorter too.

    Returns where payloads that were let go of may still be, and what to do about it.
    """
    objects = backend.objects
    assert isinstance(objects, FileObjects), "BUG: the objects of a files store are files"

    def work(opened: Opened) -> list[Leftover]:
        for name in opened.catalog.segments.beside():
            opened.catalog.segments.remove_beside(name)
        _settle(opened)
        for name in _torn(opened):
            opened.disk.unlink(name, at=opened.directory.folder(TORN))
        left: list[Leftover] = []
        is_shared = backend.has_company(opened)
        unfinished = objects.unfinished(remove=not is_shared)
        if is_shared and unfinished:
            remedy = f"{unfinished} files of writes that did not end, or are under way"
            left.append(
                Leftover(OBJECTS, f"{remedy}: end who has the store open, then retain again")
            )
        if is_shared:
            remedy = "a process that has the store open may hold old segments for some seconds more"
            left.append(Leftover(LOG, f"{remedy}: retain again, or end it"))
        return left

    left = backend.write(work)
    return left + pack_all(backend) if whole else left


def _torn(opened: Opened) -> Iterator[str]:
    if TORN in opened.disk.listdir(opened.directory.fd):
        yield from opened.disk.listdir(opened.directory.folder(TORN))
