"""Recovery: makes ring, text and shared page agree again, and loses nothing that was acknowledged.

It runs under the store lock: in the first process that opens the store, and in any process that
takes the lock and finds BUSY set. It does not depend on how the store came to its state; it only
looks at what is there.

(1) The recorded durable end is the greatest of: `synced end` of the newest whole batch in the ring,
    `end` of head.json, and the published end, if the shared page is of this boot.
(2) Every whole batch that reaches above what was synced is written into the text at its offset. The
    text has the same bytes there already, or should have them. So it is harmless to do this twice,
    and after a failed sync it makes the kernel write the bytes again.
(3) The text is read from where the index ends. Up to the recorded durable end, and up to the end of
    the last batch, every line must verify and continue the one before: otherwise CorruptError, and
    nothing is cut. This also finds a batch that was damaged and whose text is not there.
(4) After that, whole lines that verify are kept. They belong to an unacknowledged commit, to one at
    a weaker durability, or to a copy that was made while the store was in use. The first line that
    does not verify, and everything after it, is moved to torn/ with a report. A store that was
    closed has no text after its recorded end: such text was put there by somebody else, and is a
    CorruptError. So is a whole line that does not follow the one before it, if nobody was using the
    store.
(5) The text is synced, then the end is published.
"""

from __future__ import annotations

import contextlib
import logging

from msgspec import Struct

from holdfast.backends.files import journal
from holdfast.backends.files.catalog import CHUNK_BYTES, Catalog
from holdfast.backends.files.directory import (
    BUSY,
    END,
    POSITION,
    RING_FREE,
    RING_NUMBER,
    RING_OFFSET,
    SEGMENT,
    SYNCED_END,
    UNRINGED,
    Directory,
    SharedPage,
)
from holdfast.backends.files.disk import replace_file
from holdfast.backends.files.index import LogCursor
from holdfast.backends.files.journal import RingBatch
from holdfast.backends.files.pieces import extract, may_be_line, pieces, split_lines
from holdfast.backends.files.text import BadLine, Segments, decode_line
from holdfast.clock import Clock
from holdfast.errors import CorruptError
from holdfast.names import new_id

_log = logging.getLogger("holdfast.backends")

TORN_BYTES_MAX = 16 << 20
TORN_RUNS_MAX = 8


class RecoveryBasis(Struct):
    """What is known for certain before the text is read."""

    batches: list[RingBatch] | None  # None: there is no ring
    head: LogCursor | None
    synced_end: int
    required_end: int  # every line below it must verify
    text_end: int
    was_in_use: bool  # a process used the store and did not close it


def complete_text(
    directory: Directory, segments: Segments, *, published_end: int, was_in_use: bool
) -> RecoveryBasis:
    """Steps 1 and 2: writes the ring's batches into the text; returns what the text must hold."""
    segments.refresh()
    segments.check_contiguous()
    text_end = segments.end()
    batches = journal.read_batches(directory.disk, directory.store, at=directory.fd)
    head, is_closed = directory.read_recorded()
    was_in_use = was_in_use or batches is not None
    if head is not None and is_closed and not was_in_use and head.end < text_end:
        raise text_after_close(segments, head.end, text_end)
    synced_end = max(batches[-1].synced_end if batches else 0, head.end if head else 0)
    above = [batch for batch in batches or () if batch.end > synced_end]
    reached = text_end
    for batch in above:
        if batch.offset > reached:
            raise _missing(segments, reached, batch.offset)
        reached = max(reached, batch.end)
    if reached < max(synced_end, published_end):
        raise _missing(segments, reached, max(synced_end, published_end))
    for batch in above:
        if not segments.starts:
            segments.add(0)
        segments.write_at(batch.offset, batch.text)
    last = above[-1].end if above else 0
    required_end = max(synced_end, published_end, last)
    return RecoveryBasis(batches, head, synced_end, required_end, reached, was_in_use)


def _missing(segments: Segments, reached: int, expected: int) -> CorruptError:
    where = segments.where(reached)
    return CorruptError(
        f"the text ends at {where}, {expected - reached} bytes before its recorded end", where=where
    )


class TextAfterClose(CorruptError):
    """There is text after the end at which the store was closed; nothing is damaged."""


def text_after_close(segments: Segments, end: int, text_end: int) -> TextAfterClose:
    """Returns the error for text after the end at which the store was closed.

    No crash leaves such text, so it is never cut: another copy of the store may have acknowledged
    it. It is what remains when git merges two copies of a store.
    """
    where = segments.where(end)
    file, _, offset = where.partition(" byte ")
    count = _count_whole_lines(segments, end, text_end)
    lines = "1 whole line" if count == 1 else f"{count} whole lines"
    return TextAfterClose(
        f"{file} has {text_end - end} bytes after byte {offset}, where the store was closed: "
        f"{lines}, written by another copy of the store or by another program",
        where=where,
        hint="copy the store away, then take log and head.json from one and the same copy; or "
        f"keep those bytes elsewhere and cut {file} to {offset} bytes",
    )


def _count_whole_lines(segments: Segments, offset: int, end: int) -> int:
    """Counts the lines that verify by themselves; the count is only for a message.

    It looks at the first 64 MiB and gives up on lines of more than 16 MiB, because a file may be
    nothing but a huge hole.
    """
    count, rest = 0, b""
    end = min(end, offset + 64 * CHUNK_BYTES)
    while offset < end:
        text = segments.read(offset, min(offset + CHUNK_BYTES, end))
        offset += len(text)
        *lines, rest = (rest + text).split(b"\n")
        for encoded in lines:
            with contextlib.suppress(BadLine):
                decode_line(encoded + b"\n")
                count += 1
        if len(rest) > 16 * CHUNK_BYTES:
            rest = b""
    return count


def read_text(catalog: Catalog, basis: RecoveryBasis) -> tuple[int, str] | None:
    """Steps 3 and 4: applies all lines; returns where the torn piece begins and why, if any."""
    batches = {batch.offset: batch for batch in basis.batches or ()}
    head = basis.head
    while True:
        if head is not None and head.end < catalog.tail.cursor.end:
            head = None  # before what the index covers
        for line, length in catalog.lines(catalog.tail.cursor.end, basis.required_end):
            head = _check_passing(catalog, head, batches)
            catalog.apply(line, length)
            end = catalog.tail.cursor.end
            catalog.flush_if_due()
            if catalog.tail.cursor.end != end:
                break  # the flush moved the end: another process had brought the index further
        else:
            break
    if _check_passing(catalog, head, batches) is not None:
        raise catalog.corrupt(basis.required_end, "head.json records an end within a line")
    return _keep_whole_lines(catalog, basis)


def _check_passing(
    catalog: Catalog, head: LogCursor | None, batches: dict[int, RingBatch]
) -> LogCursor | None:
    """Raises CorruptError if ring or head.json were written for another text than the one here.

    Returns the head as long as its end still lies ahead, else None.
    """
    cursor = catalog.tail.cursor
    batch = batches.get(cursor.end)
    if batch is not None and (batch.position, batch.digest) != (cursor.position, cursor.digest):
        raise catalog.corrupt(cursor.end, f"ring batch {batch.number} follows another text")
    if head is None or head.end != cursor.end:
        return head
    if head != cursor:
        raise catalog.corrupt(cursor.end, "the text before it is not the one head.json recorded")
    return None


def _keep_whole_lines(catalog: Catalog, basis: RecoveryBasis) -> tuple[int, str] | None:
    want = CHUNK_BYTES
    while (offset := catalog.tail.cursor.end) < basis.text_end:
        text = catalog.segments.read(offset, min(offset + want, basis.text_end))
        if offset + len(text) < basis.text_end:
            whole = text[: text.rfind(b"\n") + 1]
            if not whole and may_be_line(text):
                want *= 2
                continue
            text = whole or text  # what cannot be a line is not read to its end
        for encoded in split_lines(text):
            try:
                catalog.apply_encoded(encoded)
            except BadLine as exc:
                offset = catalog.tail.cursor.end
                if not basis.was_in_use:
                    _check_torn(catalog, encoded, str(exc))
                    _check_nothing_follows(catalog, offset + len(encoded), basis.text_end)
                return offset, str(exc)
        catalog.flush_if_due()
    return None


def _check_torn(catalog: Catalog, encoded: bytes, problem: str) -> None:
    """Raises CorruptError if bytes that do not continue the text are a whole line by themselves.

    A torn write leaves a piece of a line. A whole line was written, and perhaps acknowledged, by
    another copy of the store.
    """
    try:
        decode_line(encoded)
    except BadLine:
        return
    raise catalog.corrupt(catalog.tail.cursor.end, f"{problem}; it is a whole line of another text")


def _check_nothing_follows(catalog: Catalog, offset: int, text_end: int) -> None:
    """Raises CorruptError if a whole line follows a bad one in a store that nobody was using.

    A crash can leave that, because the kernel writes pages in any order. A copy or a clone of a
    store cannot: there it is damage, and cutting would throw away the whole lines.
    """
    for piece in pieces(catalog.segments, offset, text_end):
        if piece.encoded is None:
            continue
        try:
            decode_line(piece.encoded)
        except BadLine:
            continue
        raise catalog.corrupt(
            catalog.tail.cursor.end, f"it is damaged, and whole lines follow at {piece.offset}"
        )


def settle(
    directory: Directory,
    catalog: Catalog,
    basis: RecoveryBasis,
    torn: tuple[int, str] | None,
    clock: Clock,
) -> None:
    """Cuts off and keeps the torn piece, then syncs the text."""
    segments = catalog.segments
    if torn is not None:
        # Kept durably before it is cut: a crash in between leaves a second copy, never none.
        offset, problem = torn
        _keep_torn(directory, catalog, offset, basis.text_end, problem, clock)
        segments.cut(offset)
    is_clean = basis.head == catalog.tail.cursor and not basis.was_in_use
    if segments.starts and not is_clean:
        # The newest segment may be that of a writer that was killed before its name was durable,
        # and holdfast.json that of one that was killed within `upgrade`. No commit syncs a name.
        segments.sync_names()
        directory.disk.sync_directory(directory.fd)
        _write_again(catalog, max(basis.synced_end, segments.newest))
        segments.sync(min(basis.synced_end, catalog.tail.cursor.end))


def _write_again(catalog: Catalog, offset: int) -> None:
    """Writes the text from `offset` on over itself, so that the next sync really writes it.

    If an earlier sync failed, the kernel has marked the text clean although it never reached the
    disk: a second sync would succeed and do nothing. Only the newest segment can be concerned,
    because the others were synced before the next one was made.
    """
    end = catalog.tail.cursor.end
    while offset < end:
        text = catalog.segments.read(offset, min(offset + CHUNK_BYTES, end))
        catalog.segments.write_at(offset, text)
        offset += len(text)


def _keep_torn(
    directory: Directory, catalog: Catalog, offset: int, end: int, problem: str, clock: Clock
) -> None:
    """Copies what is cut off to torn/: without long runs of zeros, and at most 16 MiB of it."""
    found = extract(catalog.segments, offset, end, most=TORN_BYTES_MAX)
    where = catalog.segments.where(offset)
    name = f"{offset:016x}-{new_id(clock)}"
    report = (
        f"cut {end - offset} bytes of an unacknowledged commit from {where}: {problem}; "
        f"kept as torn/{name}"
    )
    left_out = [
        f"{length} zeros from {catalog.segments.where(start)} on"
        for start, length in found.zeros[:TORN_RUNS_MAX]
    ]
    if more := sum(length for _, length in found.zeros[TORN_RUNS_MAX:]):
        left_out.append(f"{more} zeros in {len(found.zeros) - TORN_RUNS_MAX} other places")
    if found.rest:
        left_out.append(f"the last {found.rest} bytes, as {TORN_BYTES_MAX} were kept")
    if left_out:
        report += " without " + ", ".join(left_out)
    folder = directory.folder("torn")
    for suffix, content in (("", found.kept), (".txt", report.encode() + b"\n")):
        file, temp = name + suffix, f"{name}{suffix}.new"
        replace_file(directory.disk, file, content, at=folder, temp=temp, durable=True)
    _log.warning("%s: %s", directory.path, report)
    catalog.reports.append(report)


def publish(directory: Directory, page: SharedPage, catalog: Catalog, basis: RecoveryBasis) -> None:
    """Step 5: writes into the page where the log ends, and that all of it is synced.

    END comes late and BUSY last, as in a commit: processes read END without the lock.
    """
    words, cursor = page.words, catalog.tail.cursor
    newest = basis.batches[-1] if basis.batches else None
    words[RING_NUMBER] = newest.number if newest is not None else 0
    words[RING_OFFSET] = newest.next_offset if newest is not None else 0
    words[RING_FREE] = 0
    if basis.batches is not None:
        words[RING_FREE] = directory.disk.stat(journal.NAME, at=directory.fd).st_size
        if words[RING_FREE] < journal.RING_BYTES_MIN:
            # Somebody cut the ring. The text has all that it held, so the next commit makes a new
            # one.
            directory.remove(journal.NAME)
            words[RING_NUMBER] = words[RING_OFFSET] = words[RING_FREE] = 0
    words[SYNCED_END] = cursor.end
    words[UNRINGED] = 0
    words[POSITION] = cursor.position
    words[SEGMENT] = catalog.segments.newest
    words[END] = cursor.end
    words[BUSY] = 0
