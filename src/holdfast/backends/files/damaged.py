"""A files store whose text is damaged: what of it can be trusted, and what is in doubt (0021).

A line that fails its checksum proves nothing, not even which streams it belonged to. So a stream is
proved whole only where it goes on after the damage: revisions have no gaps, so its first event
there must have the revision after the last one before. Every other name may have had an event in
the lost line, even a name that is found nowhere else. A question about such a name raises, and
never answers "empty".

The index was made from lines that were verified. Damage below its end shows when such a line is
read, and concerns only the streams of that line. This module is for damage above it.

Nothing is written. A commit would need what the damage has taken: the newest events of the streams,
the keys that were used, and the digest that its line continues.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from msgspec import Struct

from holdfast.backends.files import journal
from holdfast.backends.files.catalog import Catalog, Tail
from holdfast.backends.files.directory import CLOSED, END, NO_PAGE, Directory, open_page
from holdfast.backends.files.index import NAME as INDEX_NAME
from holdfast.backends.files.index import LogCursor
from holdfast.backends.files.pieces import Piece, pieces
from holdfast.backends.files.text import DIRECTORY as LOG
from holdfast.backends.files.text import BadLine, LogLine, Segments, decode_line
from holdfast.backends.protocol import (
    Finding,
    Found,
    Head,
    LinkedRow,
    Mark,
    MarkQuery,
    PayloadRow,
    Position,
    Record,
)
from holdfast.clock import Clock
from holdfast.errors import CorruptError

NO_LINE = "it is no line: it holds zeros, or is not there"
_FOR_EVER = sys.maxsize
_NAMES_SHOWN = 5
_LINE_BYTES_MIN = 60
_MISSING_MAX = 1 << 20
"""How many lines may have been taken out of the text, beside those that it has room for."""


class LostLines(Struct, frozen=True):
    """A place where the text is not what was written, and the commits that are lost there."""

    where: str
    problem: str
    offset: int
    end: int
    first: int  # the positions of the lost commits
    last: int  # less than `first` if none is lost

    def describe(self) -> str:
        if self.last < self.first:
            return f"{self.problem}; no commit is lost here"
        if self.last == _FOR_EVER:
            return f"{self.problem}; commits {self.first} and later are lost"
        count = self.last - self.first + 1
        which = (
            f"commit {self.first} is" if count == 1 else f"commits {self.first} to {self.last} are"
        )
        return f"{self.problem}; {which} lost"


class TextScan:
    """Reads text line by line past damage: yields the lines that verify, collects what is lost."""

    def __init__(self, segments: Segments, offset: int, position: int) -> None:
        self._segments = segments
        self.offset = offset
        self.position = position
        self.lost: list[LostLines] = []
        self._bad: tuple[int, str] | None = None  # where damage began, and what it is

    def lines(self, end: int) -> Iterator[tuple[LogLine, Piece]]:
        """Yields the lines that verify up to a log offset; the next call goes on from there."""
        for piece in pieces(self._segments, self.offset, end):
            self.offset = piece.end
            try:
                line = _decode(piece, self.position)
            except BadLine as exc:
                self._bad = self._bad or (piece.offset, str(exc))
                continue
            if self._bad is not None or line.n != self.position + 1:
                self._lose(piece.offset, line.n - 1)
            self.position = line.n
            yield line, piece

    def finish(self, required_end: int, required_position: int | None) -> None:
        """Notes as lost what is missing before the end that the text must reach."""
        is_short = self.offset < required_end or (self.position < (required_position or 0))
        if is_short or (self._bad is not None and self._bad[0] < required_end):
            self._bad = self._bad or (self.offset, "the text ends before its recorded end")
            last = _FOR_EVER if required_position is None else required_position
            self._lose(self.offset, last)

    def _lose(self, end: int, last: int) -> None:
        offset, problem = self._bad or (end, "whole lines are missing here")
        self._bad = None
        where = self._segments.where(offset)
        self.lost.append(LostLines(where, problem, offset, end, self.position + 1, last))


def _decode(piece: Piece, position: int) -> LogLine:
    if piece.encoded is None:
        raise BadLine(NO_LINE)
    line = decode_line(piece.encoded)
    # Lines may be missing before this one, but only so many: the catalog keeps a number for each of
    # them, and a hostile line must not fill the memory.
    most = piece.offset // _LINE_BYTES_MIN + _MISSING_MAX
    if line.n <= position or line.n > most:
        raise BadLine(f"its position is {line.n}: expected {position + 1}")
    return line


class DamagedCatalog:
    """Answers as a `Catalog` does, but raises where the damage may have changed the answer."""

    def __init__(self, catalog: Catalog, path: str) -> None:
        self._catalog = catalog
        self._path = path
        self.mutex = catalog.mutex
        self.segments = catalog.segments
        self.reports = catalog.reports
        self.scan = TextScan(
            catalog.segments, catalog.tail.cursor.end, catalog.tail.cursor.position
        )
        self.broken: dict[str, LostLines] = {}
        """Streams with a gap in their revisions, and where it is."""
        self.unproved: list[Finding] = []
        """Damage that is not tied to lost lines; because of it, every stream is in doubt."""

    @property
    def tail(self) -> Tail:
        """What was read, up to the last line that verifies."""
        return self._catalog.tail

    # --- reading over the damage ---

    def read_on(self, end: int) -> None:
        """Applies every line that verifies up to a log offset."""
        for line, piece in self.scan.lines(end):
            tail = self._catalog.tail
            if tail.cursor.end != piece.offset or tail.cursor.position != line.n - 1:
                lost = len(self.scan.lost) and self.scan.lost[-1].offset
                tail.offsets.extend([lost] * (line.n - 1 - tail.cursor.position))
                tail.cursor = LogCursor(piece.offset, line.n - 1, tail.cursor.digest)
            self._bridge(line)
            self._catalog.apply(line, piece.end - piece.offset)
            self._catalog.flush_if_due()

    def _bridge(self, line: LogLine) -> None:
        """Sets the head of each stream of a line so that the line continues it, and notes gaps."""
        catalog = self._catalog
        for section in line.sections:
            stream, first = section.stream, section.revision
            head = catalog.head(stream)
            known = 0 if head is None else head.revision
            if known + 1 != first and not (head is None and section.fork):
                if self.scan.lost:
                    self.broken.setdefault(stream, self.scan.lost[-1])
                else:
                    where = self.segments.where(catalog.tail.cursor.end)
                    problem = f"it holds {stream!r}@{first}: expected {known + 1}"
                    self.unproved.append(Finding(where, problem, streams=(stream,)))
                begin = 1 if head is None else head.first
                catalog.tail.heads[stream] = Head(first - 1, b"", 0, Position(0), begin)

    def agrees_with(self, head: LogCursor) -> bool:
        """Returns whether the text can be the one whose end was recorded."""
        cursor = self.tail.cursor
        return head.end != cursor.end or head.position == cursor.position

    # --- what is whole ---

    def doubt(self, stream: str, head: Head | None) -> Finding | LostLines | None:
        """Returns the damage that may have taken events of a stream, None if it is whole."""
        if self.unproved:
            return self.unproved[0]
        if stream in self.broken:
            return self.broken[stream]
        last = self._last_lost()
        if last is None or (head is not None and head.position > last.last):
            return None
        return last

    def _last_lost(self) -> LostLines | None:
        return next((lost for lost in reversed(self.scan.lost) if lost.last >= lost.first), None)

    def findings(self, remedy: str) -> Iterator[Finding]:
        """Yields each damage with the streams that it may concern."""
        for lost in self.scan.lost:
            names = [name for name, place in self.broken.items() if place is lost]
            if lost is self._last_lost():
                names += [name for name, head in self._heads() if head.position <= lost.last]
            streams = tuple(sorted({*names}))
            problem = lost.describe()
            if lost.last >= lost.first:
                problem += f": {_shown(streams)} and names that are found nowhere else are in doubt"
            yield Finding(lost.where, problem, streams=streams, remedy=remedy)
        for finding in self.unproved:
            problem = f"{finding.problem}: the end of no stream is proved"
            streams = tuple(sorted(name for name, _ in self._heads()))
            yield Finding(finding.where, problem, streams=streams, remedy=remedy)

    def _heads(self) -> Iterator[tuple[str, Head]]:
        after = ""
        while names := self._catalog.streams("", after, 1000):
            for name in names:
                head = self._catalog.head(name)
                assert head is not None, "BUG: a stream is listed without a head"
                yield name, head
            after = names[-1]

    def error(
        self, damage: Finding | LostLines, what: str, stream: str | None = None
    ) -> CorruptError:
        problem = damage.problem if isinstance(damage, Finding) else damage.describe()
        return CorruptError(
            f"{what}: the store is damaged at {damage.where} ({problem})",
            where=damage.where,
            stream=stream,
            hint=f'take over what verifies: holdfast salvage "{self._path}" NEW',
        )

    def _check_all(self, what: str) -> None:
        """Raises if anything is lost: an answer over all streams would leave that out."""
        damage = self.unproved[0] if self.unproved else self._last_lost()
        if damage is not None:
            raise self.error(damage, what)

    # --- answers ---

    def head(self, stream: str) -> Head | None:
        head = self._catalog.head(stream)
        damage = self.doubt(stream, head)
        if damage is not None:
            may_have = "has" if stream in self.broken else "may have"
            raise self.error(damage, f'"{stream}" {may_have} lost events', stream)
        return head

    def read(self, stream: str, after: int, until: int) -> list[Record]:
        return self._catalog.read(stream, after, until)

    def read_linked(self, stream: str, after: int, until: int) -> list[LinkedRow]:
        return self._catalog.read_linked(stream, after, until)

    def read_payloads(self, stream: str, after: int, until: int) -> list[PayloadRow]:
        return self._catalog.read_payloads(stream, after, until)

    def find_key(self, stream: str, key: str) -> Found | None:
        self.head(stream)
        return self._catalog.find_key(stream, key)

    def find_checkpoints(self, stream: str, name: str | None, limit: int | None) -> list[Found]:
        self.head(stream)
        return self._catalog.find_checkpoints(stream, name, limit)

    def streams(self, prefix: str, after: str, limit: int) -> list[str]:
        self._check_all("streams cannot be listed: there may be more")
        return self._catalog.streams(prefix, after, limit)

    def marks(self, query: MarkQuery) -> list[tuple[Mark, int]]:
        self._check_all("marks cannot be listed: some may have been set or cleared")
        return self._catalog.marks(query)

    def read_all(self, after: int, limit: int) -> list[Record]:
        """Returns records up to the next lost commit; raises if that comes next."""
        since, until = (0, 0), None
        for lost in self.scan.lost:
            if lost.last <= after:
                since = (max(lost.last, lost.first - 1), lost.end)
            else:
                until = lost
                break
        records: list[Record] = []
        if until is None or until.first > after + 1:
            end = None if until is None else until.offset
            records = self._catalog.read_all(after, limit, since=since, end=end)
        if not records and until is not None:
            raise self.error(until, f"events after position {after} cannot be read")
        return records


def _shown(streams: tuple[str, ...]) -> str:
    if not streams:
        return "no stream that is known"
    more = len(streams) - _NAMES_SHOWN
    names = ", ".join(f'"{name}"' for name in streams[:_NAMES_SHOWN])
    return f"{names} and {more} more" if more > 0 else names


class Damaged:
    """The parts of a damaged store, for a handle that reads what verifies and writes nothing."""

    def __init__(self, directory: Directory, clock: Clock, cause: CorruptError) -> None:
        self.directory = directory
        self.disk = directory.disk
        self.clock = clock
        self.page_words = NO_PAGE
        noted: list[Finding] = []
        try:
            directory.identify(clock, create=False)
        except CorruptError as exc:
            noted.append(Finding(exc.where or "", exc.message))
        self._head: LogCursor | None = None
        try:
            self._head = directory.read_head()
        except CorruptError as exc:
            noted.append(Finding(exc.where or "", exc.message))
        segments = Segments(self.disk, directory.folder(LOG, create=False), read_only=True)
        catalog = Catalog(
            segments, os.path.join(directory.path, INDEX_NAME), directory.store, read_only=True
        )
        catalog.open_index(segments.end())
        self.catalog = DamagedCatalog(catalog, directory.path)
        self._catalog = catalog
        try:
            self._read(noted, cause)
        except BaseException:
            self.close(is_poisoned=False)
            raise
        for finding in self.catalog.findings(""):
            self.catalog.reports.append(f"damaged at {finding.where}: {finding.problem}")

    def _read(self, noted: list[Finding], cause: CorruptError) -> None:
        batches = journal.read_batches(self.disk, self.directory.store, at=self.directory.fd) or []
        published = self._published_end()
        catalog, head = self.catalog, self._head
        catalog.read_on(published if published is not None else catalog.segments.end())
        ends = [batch.end for batch in batches] + [batch.synced_end for batch in batches]
        required = max([*ends, published or 0, head.end if head else 0])
        at_end = head is not None and head.end >= required
        catalog.scan.finish(required, head.position if head is not None and at_end else None)
        catalog.unproved += noted
        if head is not None and not catalog.agrees_with(head):
            catalog.unproved.append(Finding("head.json", "it records another end of the text"))
        if not catalog.scan.lost and not catalog.unproved:
            catalog.unproved.append(Finding(cause.where or LOG, cause.message))

    def _published_end(self) -> int | None:
        """Returns the end that processes using the store have published, None if there are none."""
        page = open_page(self.disk, at=self.directory.fd, read_only=True)
        if page is None:
            return None
        try:
            is_used = not page.words[CLOSED] and page.is_of(self.clock.boot_id())
            return page.words[END] if is_used else None
        finally:
            page.close()

    def fresh(self) -> None:
        """Reads what others have published since."""
        catalog = self.catalog
        with catalog.mutex:
            end = self._published_end()
            if end is not None and end > catalog.scan.offset:
                catalog.segments.refresh()
                catalog.read_on(end)

    def error(self, what: str) -> CorruptError:
        """Returns the error for something that a damaged store cannot do."""
        damage = next(self.catalog.findings(""))
        return self.catalog.error(damage, what)

    def close(self, *, is_poisoned: bool) -> None:
        del is_poisoned
        self.release()

    def release(self) -> None:
        """Closes every descriptor; a second call does nothing."""
        self._catalog.close_index(worth_bytes=None)
        self._catalog.segments.close()

    def after_fork(self) -> None:
        self.directory.close()
