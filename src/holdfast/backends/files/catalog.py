"""Where things are: the index, the tail in memory after it, and the text that both point into.

One lock guards it. Readers take it, so it is held for microseconds and never through the sync of a
commit. A caller first catches up with the published end, then asks. If the index proves unusable at
any moment, this process builds its own in memory from the text and goes on. Nothing is lost, as the
index only says where things are in the text. The next process that opens the store for writing and
finds the file unusable deletes it.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from threading import RLock
from typing import TypeVar

import apsw
from msgspec.structs import replace

from holdfast.backends.files.index import (
    UNUSABLE,
    Index,
    LineSpan,
    LogCursor,
    NamedRevision,
    RefusedIndex,
    StaleIndex,
    open_existing,
    remove,
)
from holdfast.backends.files.pieces import may_be_line, split_lines
from holdfast.backends.files.text import (
    BadLine,
    LineEvent,
    LogLine,
    Section,
    Segments,
    decode_line,
    decode_link,
    linked_rows_in,
    linked_rows_of,
    next_digest,
    parse_line,
    parse_time,
    payload_rows_of,
    records_of,
)
from holdfast.backends.forking import forking
from holdfast.backends.protocol import (
    Commit,
    Found,
    Head,
    LinkedRow,
    Mark,
    MarkQuery,
    PayloadRow,
    Position,
    Record,
    mark_order,
)
from holdfast.errors import CorruptError

HEADS_MAX = 1 << 17
"""How many heads a tail may cache, as many as the log keeps ends of. Beyond it writes ask the index
for the head of their stream."""


class Tail:
    """What a process knows of the end of the log: everything after the index, in dicts.

    The tail begins where the index ends (`base`) and reaches to the newest line that this process
    has read (`cursor`). It has the heads, spans, keys, checkpoints and marks of the lines between
    the two. Lines are applied one by one, those of this process and of others, by the same
    function. Every step of that may be done twice, and the cursor moves last: after an interrupt in
    the middle of a line, the line is applied again.

    `heads` also caches heads from the index. They cannot be stale: each later line of a stream
    replaces its head.
    """

    def __init__(
        self,
        base: LogCursor,
        head_before: Callable[[str], Head | None],
        known: dict[str, Head] | None = None,
    ) -> None:
        self._head_before = head_before
        self._known = {} if known is None else known  # heads to look at before asking
        self.base = base
        self.cursor = base
        self.heads: dict[str, Head] = {}
        self.absent: set[str] = set()  # streams that were looked for and are not in the index
        self.offsets = array("Q")  # of each line
        self.spans: dict[str, list[LineSpan]] = {}
        self.keys: dict[tuple[str, str], NamedRevision] = {}
        self.checkpoints: dict[str, list[NamedRevision]] = {}
        self.marks: dict[tuple[str, str], tuple[Mark | None, int]] = {}

    def after(self, base: LogCursor) -> Tail:
        """Returns the part of this tail after `base`, which is not beyond the cursor."""
        part = Tail(base, self._head_before)
        part.cursor = self.cursor
        part.offsets = self.offsets[base.position - self.base.position :]
        for stream, spans in self.spans.items():
            kept = [span for span in spans if span[1] >= base.end]
            if kept:
                part.spans[stream] = kept
        since = base.position
        part.keys = {key: named for key, named in self.keys.items() if named.position > since}
        for stream, found in self.checkpoints.items():
            names = [named for named in found if named.position > since]
            if names:
                part.checkpoints[stream] = names
        part.marks = {key: mark for key, mark in self.marks.items() if mark[1] > since}
        if len(self.heads) <= HEADS_MAX:
            part.heads = self.heads
        else:
            part.heads = {stream: self.heads[stream] for stream in part.spans}
        return part

    def apply(self, line: LogLine, length: int, commit: Commit | None = None) -> None:
        """Adds the line at the cursor; raises BadLine if it does not continue the log.

        `commit` is what the line was made from, if this process made it: then time and links need
        not be parsed.
        """
        position, cursor = line.n, self.cursor
        if position != cursor.position + 1:
            raise BadLine(f"its position is {position}: expected {cursor.position + 1}")
        if commit is not None:
            time = commit.time
            links: list[bytes] = []
            for append in commit.appends:
                links.append(append.records[-1].link)
        else:
            time = parse_time(line.at)
            links = [decode_link(section.events[-1].link) for section in line.sections]
        offset = cursor.end
        for number, section in enumerate(line.sections):
            stream, first, events = section.stream, section.revision, section.events
            head = self.heads.get(stream) or self._known.get(stream) or self._head_before(stream)
            if head is None:
                if first != 1 and not section.fork:
                    raise BadLine(f"it begins {stream!r} at revision {first}: expected 1")
                begin = first
            elif head.revision + 1 == first or head.position >= position:
                # Not continued, but known already: this line was applied before an interrupt, or
                # another process has brought the index further than this tail.
                begin = head.first
            else:
                raise BadLine(f"it holds {stream!r}@{first}: expected {head.revision + 1}")
            last = first + len(events) - 1
            self.heads[stream] = Head(last, links[number], time, Position(position), begin)
            spans = self.spans.get(stream)
            if spans is None:
                self.spans[stream] = [(first, offset, length)]
            elif spans[-1][0] < first:
                spans.append((first, offset, length))
            if type(section.key) is str:
                self.keys[stream, section.key] = NamedRevision(first, section.key, time, position)
            elif section.key is not None:
                for revision, key in enumerate(section.keys(), first):
                    if key is not None:
                        self.keys[stream, key] = NamedRevision(revision, key, time, position)
            for event in events:
                if event.checkpoint is not None:
                    self._note_checkpoints(stream, first, events, time)
                    break
        if line.set or line.clear:
            self._note_marks(line)
        if len(self.offsets) < position - self.base.position:
            self.offsets.append(offset)
        self.cursor = LogCursor(offset + length, position, next_digest(cursor.digest, line, links))

    def take(self, more: Tail) -> None:
        """Adds all of `more`, a tail that begins at this one's cursor.

        A commit applies its lines to such a tail while the disk is at work, when nobody may see
        them yet. After the sync, showing them takes almost no time.
        """
        self.heads.update(more.heads)
        for stream, spans in more.spans.items():
            known = self.spans.setdefault(stream, spans)
            if known is not spans and known[-1][0] < spans[0][0]:
                known.extend(spans)
        if more.keys:
            self.keys.update(more.keys)
        for stream, names in more.checkpoints.items():
            known = self.checkpoints.setdefault(stream, names)
            if known is not names and known[-1].revision < names[0].revision:
                known.extend(names)
        if more.marks:
            self.marks.update(more.marks)
        if len(self.offsets) == more.base.position - self.base.position:
            self.offsets.extend(more.offsets)
        self.cursor = more.cursor

    def _note_checkpoints(
        self, stream: str, first: int, events: list[LineEvent], time: int
    ) -> None:
        for revision, event in enumerate(events, first):
            if event.checkpoint is not None:
                known = self.checkpoints.setdefault(stream, [])
                if not known or known[-1].revision < revision:
                    position = self.cursor.position + 1
                    known.append(NamedRevision(revision, event.checkpoint, time, position))

    def _note_marks(self, line: LogLine) -> None:
        for mark in line.set:
            kept = Mark(mark.index, mark.key, mark.due, mark.priority, mark.group)
            self.marks[mark.index, mark.key] = kept, line.n
        for mark in line.clear:
            self.marks[mark.index, mark.key] = None, line.n

    def spans_of(self, stream: str, after: int, until: int) -> list[LineSpan]:
        """Returns the spans of the lines that hold revisions after < revision <= until."""
        spans = self.spans.get(stream)
        if spans is None or until <= after or until < spans[0][0]:
            return []
        begin = max(bisect_right(spans, after + 1, key=_first) - 1, 0)
        return spans[begin : bisect_right(spans, until, key=_first)]

    def offset_after(self, position: int) -> int:
        """Returns where the line after `position` begins; it must not be before the base."""
        number = position - self.base.position
        return self.offsets[number] if number < len(self.offsets) else self.cursor.end


def _first(span: LineSpan) -> int:
    return span[0]


_log = logging.getLogger("holdfast.backends")

CHUNK_BYTES = 1 << 20
FLUSH_BYTES = 4 << 20

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


class Catalog:
    """What a process knows of its store, up to `tail.cursor`."""

    def __init__(self, segments: Segments, index_path: str, store: str, *, read_only: bool) -> None:
        self.mutex = RLock()
        forking.wait_for(self.mutex)
        self.segments = segments
        self.reports: list[str] = []
        self._store = store
        self._path = index_path
        self._read_only = read_only
        self._index: Index | None = None
        self._is_unusable = False  # the index that is there
        self._is_refused = False  # it is sound, and others may be using it: it stays
        self.flush_at = FLUSH_BYTES
        self.tail = Tail(LogCursor(), self._head_before)

    # --- moving forward ---

    def catch_up(self, end: int, segment: int) -> None:
        """Applies the text up to the log offset `end`, which another process has published.

        Raises CorruptError if it is not there or does not verify: what was published must be there.
        """
        with self.mutex:
            if not self.segments.starts or self.segments.newest != segment:
                self.segments.refresh()
            if end - self.tail.base.end > 2 * FLUSH_BYTES:
                # After so much text another process has probably brought the index up to date. What
                # the index has need not be kept here, or even be read.
                self._trim(end)
            self.apply_lines(end)

    def _trim(self, end: int) -> None:
        if self._index is not None:
            self._ask(_nothing)
            return
        try:
            self._adopt_index(end)
        except UNUSABLE as exc:  # the lines stay in memory until there is an index
            _log.debug("the index of another process cannot be used yet: %s", exc)

    def apply_lines(self, end: int) -> None:
        """Applies the text up to the log offset `end`; raises CorruptError unless all verifies."""
        for line, length in self.lines(self.tail.cursor.end, end):
            self.apply(line, length)
            if self._read_only:
                self.flush_if_due()

    def apply(self, line: LogLine, length: int) -> None:
        """Applies the next line; raises CorruptError if it is not the next."""
        try:
            self.tail.apply(line, length)
        except BadLine as exc:
            raise self.corrupt(self.tail.cursor.end, str(exc)) from exc
        except UNUSABLE as exc:
            self._use_private_index(exc)
            self.tail.apply(line, length)

    def apply_encoded(self, encoded: bytes) -> None:
        """Applies the next line; raises BadLine if it does not verify or is not the next."""
        line = decode_line(encoded)
        try:
            self.tail.apply(line, len(encoded))
        except UNUSABLE as exc:
            self._use_private_index(exc)
            self.tail.apply(line, len(encoded))

    def lines(
        self, offset: int, end: int, chunk: int = CHUNK_BYTES
    ) -> Iterator[tuple[LogLine, int]]:
        """Yields each line between two offsets with its length; all of the text must verify."""
        for text in self._chunks(offset, end, chunk):
            for encoded in split_lines(text):
                try:
                    yield decode_line(encoded), len(encoded)
                except BadLine as exc:
                    raise self.corrupt(offset, str(exc)) from exc
                offset += len(encoded)

    def _chunks(self, offset: int, end: int, chunk: int) -> Iterator[bytes]:
        """Yields the text between two offsets in pieces of whole lines."""
        want = chunk
        while offset < end:
            text = self.segments.read(offset, min(offset + want, end))
            if offset + len(text) < end:
                whole = text.rfind(b"\n") + 1
                if whole == 0 and len(text) == want and may_be_line(text):
                    want *= 2  # a line longer than a chunk
                    continue
                if whole == 0 and len(text) < want:
                    raise self.corrupt(offset, f"the text ends before {end}")
                text = text[:whole] or text  # it cannot be a line: its end is not searched for
            want = chunk
            yield text
            offset += len(text)

    def corrupt(self, offset: int, problem: str) -> CorruptError:
        where = self.segments.where(offset)
        return CorruptError(f"the line at {where} cannot be read: {problem}", where=where)

    # --- the index ---

    def open_index(self, text_end: int) -> None:
        """Opens the index, if there is one that fits the text: the tail then begins at its end.

        Called before anything is applied, under the store lock or read-only. Without an index the
        tail begins at 0.
        """
        try:
            self._adopt_index(text_end)
        except RefusedIndex as exc:
            _log.debug("%s: an index in memory is used instead: %s", self._path, exc)
            self._is_refused = True
        except UNUSABLE as exc:
            self._report(exc)
            self._is_unusable = not self._read_only

    def remove_unusable_index(self) -> None:
        """Deletes the index if it could not be used; the caller has the store lock.

        It is called only after the text was read: if the text is damaged, perhaps only the index
        still has the names of the streams that were there.
        """
        if self._is_unusable:
            self._is_unusable = False
            remove(self._path)

    def _adopt_index(self, text_end: int) -> None:
        """Opens the index if there is one; the tail then begins at its end."""
        index = open_existing(self._path, self._store, read_only=self._read_only)
        if index is None:
            return
        try:
            self._check_fit(index, text_end)
        except BaseException:
            index.close()
            raise
        self._index = index
        self.tail = Tail(index.base, self._head_before)
        self.flush_at = index.base.end + FLUSH_BYTES

    def _check_fit(self, index: Index, text_end: int) -> None:
        """Raises StaleIndex unless the last line of the index is in the text and verifies.

        An index that was copied here, or that knows lines which the text has lost, hardly passes.
        """
        base = index.base
        if base.end > text_end:
            raise StaleIndex(f"it knows {base.end} bytes of text, of which {text_end} are there")
        if base.position:
            try:
                line = decode_line(self.segments.read(index.last_start, base.end))
            except BadLine as exc:
                raise StaleIndex(f"the last line that it knows is not in the text: {exc}") from exc
            if line.n != base.position:
                raise StaleIndex(f"it takes line {line.n} for line {base.position}")

    def _ask(self, question: Callable[[Index], _Answer]) -> _Answer:
        """Returns the answer of the index, after moving the tail's base to the end of the index."""
        try:
            return self._ask_once(question)
        except UNUSABLE as exc:
            self._use_private_index(exc)
            return self._ask_once(question)

    def _ask_once(self, question: Callable[[Index], _Answer]) -> _Answer:
        index = self._index
        assert index is not None, "BUG: asked for what lies before the tail, without an index"
        with index.reading() as cursor:
            if cursor.end > self.tail.cursor.end:
                self.segments.refresh()
                self.tail = Tail(cursor, self._head_before)
            elif cursor.end != self.tail.base.end:
                self.tail = self.tail.after(cursor)
            return question(index)

    def _use_private_index(self, problem: Exception) -> None:
        self._report(problem)
        until = self.tail.cursor
        assert self._index is not None, "BUG: an index failed that is not there"
        # Another process may have made the file anew meanwhile, or may only keep it locked.
        is_its_fault = not isinstance(problem, apsw.BusyError) and not self._index.is_replaced()
        self._index.close()
        self._index = index = Index(None, self._store)
        self.tail = Tail(index.base, self._head_before)
        for line, length in self.lines(0, until.end):
            self.apply(line, length)
            if self._tail_bytes() > FLUSH_BYTES:
                self._update(index)
        self._update(index)
        # Only now, when all of the text was read: the next flush, under the store lock, deletes the
        # file. Else it would try the same file again, without an index to go on with.
        self._is_unusable = self._is_unusable or (is_its_fault and not self._read_only)

    def _report(self, problem: Exception) -> None:
        report = f"the index could not be used and was rebuilt: {problem}"
        if report not in self.reports:
            _log.warning("%s: %s", self._path, report)
            self.reports.append(report)

    def flush_if_due(self) -> None:
        """Brings the index up to date if 4 MiB have gathered; the caller has the store lock.

        It costs one commit in some thousands a few syncs and milliseconds. The text has everything
        that the index has, so an error (a full disk, a reader that holds it) is only reported.
        """
        if self.tail.cursor.end >= self.flush_at:
            self.flush()

    def flush(self) -> None:
        """Brings the index up to date, creating it if necessary; the caller has the store lock."""
        with self.mutex:
            until = self.tail.cursor
            self.flush_at = until.end + FLUSH_BYTES
            try:
                if self._read_only or self._is_refused:
                    self._flush_private()
                else:
                    self._flush(until)
            except (*UNUSABLE, OSError) as exc:
                self._report(exc)
                # The text still has what the tail may have lost on the way.
                self.apply_lines(until.end)

    def _flush(self, until: LogCursor) -> None:
        self.remove_unusable_index()
        index = self._index
        if index is not None and (index.is_private or index.is_replaced()):
            # Ours is in memory only, or another process has deleted its file: a write to that file
            # would put its rollback journal under the name of the new one's.
            index.close()
            self._index = index = None
            self.tail = Tail(LogCursor(), self._head_before)
        if index is None:
            self._adopt_index(until.end)
        if self._index is None:
            self._index = Index(self._path, self._store)
        self._ask_once(_nothing)
        index = self._index
        for line, length in self.lines(self.tail.cursor.end, until.end):
            self.apply(line, length)
            if self._tail_bytes() > FLUSH_BYTES:
                self._update(index)
        self._update(index)

    def _flush_private(self) -> None:
        """Bounds the memory of a handle that writes no index file: it packs one in memory."""
        if self._index is None:
            self._index = Index(None, self._store)
        if self._index.is_private:
            self._update(self._index)

    def _update(self, index: Index) -> None:
        index.update(self.tail)
        self.tail = self.tail.after(self.tail.cursor)

    def _tail_bytes(self) -> int:
        return self.tail.cursor.end - self.tail.base.end

    def close_index(self, *, worth_bytes: int | None) -> None:
        """Closes the index, brought up to date first if `worth_bytes` of log come after it."""
        with self.mutex:
            if worth_bytes is not None and self._tail_bytes() >= worth_bytes:
                self.flush()
            if self._index is not None:
                self._index.close()
                self._index = None

    def _head_before(self, stream: str) -> Head | None:
        """Answers the tail while it applies a line: nothing here may move or replace the tail."""
        if self._index is None:
            return None
        with self._index.reading():
            return self._index.head(stream)

    def _ask_head(self, stream: str) -> Head | None:
        head = self._ask(lambda index: index.head(stream))
        if head is not None:
            if len(self.tail.heads) > 2 * HEADS_MAX:
                self.tail.heads = {s: self.tail.heads[s] for s in self.tail.spans}
            # The question may have replaced the tail, and the new one may have a newer head.
            return self.tail.heads.setdefault(stream, head)
        # Remembered too, because some are asked for again and again: the inbox of each run, to
        # which often nobody has written.
        absent = self.tail.absent
        if len(absent) >= HEADS_MAX:
            absent.clear()
        absent.add(stream)
        return None

    # --- answers ---

    def head(self, stream: str) -> Head | None:
        head = self.tail.heads.get(stream)
        if head is not None:
            return head
        with self.mutex:
            tail = self.tail
            head = tail.heads.get(stream)
            if head is not None or stream in tail.absent:
                return head
            return self._ask_head(stream) if tail.base.position and _is_text(stream) else None

    def revision_of_key(self, stream: str, key: str) -> int | None:
        found = self.find_key(stream, key)
        return found.revision if found is not None else None

    def find_key(self, stream: str, key: str) -> Found | None:
        with self.mutex:
            named = self.tail.keys.get((stream, key))
            if named is not None:
                return Found(named.revision, named.name, named.time)
            if not self.tail.base.position or not _is_text(stream) or not _is_text(key):
                return None
            for revision in self._ask(lambda index: index.revisions_with_key(stream, key)):
                for record in self.read(stream, revision - 1, revision):
                    if record.key == key:
                        return Found(revision, key, record.time)
            return None

    def find_checkpoints(self, stream: str, name: str | None, limit: int | None) -> list[Found]:
        with self.mutex:
            older = []
            if self.tail.base.position and _is_text(stream) and (name is None or _is_text(name)):
                older = self._ask(lambda index: index.checkpoints(stream, name, limit))
            newer = self.tail.checkpoints.get(stream, ())
            named = [n for n in reversed(newer) if name is None or n.name == name]
            return [Found(n.revision, n.name, n.time) for n in (*named, *older)][:limit]

    def streams(self, prefix: str, after: str, limit: int) -> list[str]:
        with self.mutex:
            older: list[str] = []
            if self.tail.base.position and _is_text(prefix) and _is_text(after):
                older = self._ask(lambda index: index.streams(prefix, after, limit))
            newer = {s for s in self.tail.spans if s.startswith(prefix) and s > after}
            return sorted(newer.union(older))[:limit]

    def marks(self, query: MarkQuery) -> list[tuple[Mark, int]]:
        """Returns marks with the positions they were set at, in the order of clause 17."""
        with self.mutex:
            older: list[tuple[Mark, int]] = []
            if self.tail.base.position and (query.index is None or _is_text(query.index)):
                keys = None if query.keys is None else [*filter(_is_text, {*query.keys})]
                more = replace(query, keys=keys, limit=query.limit + len(self.tail.marks))
                older = self._ask(lambda table: table.marks(more))
            changed = self.tail.marks
            found = [(mark, at) for mark, at in older if (mark.index, mark.key) not in changed]
            found += [(mark, at) for mark, at in changed.values() if mark is not None]
        wanted = [one for one in found if query.fits(one[0])]
        wanted.sort(key=lambda one: mark_order(one[0]))
        return wanted[: query.limit]

    # --- reading records ---

    def read(self, stream: str, after: int, until: int) -> list[Record]:
        """Returns the records with after < revision <= until; the stream has all of them."""
        spans = self.spans(stream, after, until)
        return self._read_spans(stream, spans, after, until, decode_line, records_of)

    def spans(self, stream: str, after: int, until: int) -> list[LineSpan]:
        """Returns where the lines are that have the revisions after < revision <= until."""
        with self.mutex:
            spans = self.tail.spans_of(stream, after, until)
            if not spans or spans[0][0] > after + 1:
                before = spans[0][0] - 1 if spans else until
                older = self._ask(lambda index: index.spans(stream, after, before))
                # The question may have moved the tail's base: `older` has those spans now.
                spans = older + [span for span in spans if span[0] > before]
            return spans

    def read_linked(self, stream: str, after: int, until: int) -> list[LinkedRow]:
        """Returns what links cover of these records, without verifying the lines' checksums."""
        spans = self.spans(stream, after, until)
        rows: list[LinkedRow] = []
        for text, some in self._texts_at(spans):
            found = linked_rows_in(text, stream, after + 1 + len(rows), len(some))
            if found is None:
                break
            rows += found
        if len(rows) == until - after:
            return rows
        return self._read_spans(stream, spans, after, until, parse_line, linked_rows_of)

    def read_payloads(self, stream: str, after: int, until: int) -> list[PayloadRow]:
        """Returns type, payload and subject of these records; the lines' checksums are verified."""
        spans = self.spans(stream, after, until)
        return self._read_spans(stream, spans, after, until, decode_line, payload_rows_of)

    def _read_spans(
        self,
        stream: str,
        spans: list[LineSpan],
        after: int,
        until: int,
        decode: Callable[[bytes], LogLine],
        items_of: Callable[[LogLine, Section], list[_Item]],
    ) -> list[_Item]:
        """Returns an item for each of the revisions after < revision <= until."""
        items: list[_Item] = []
        expected = after + 1
        for encoded, offset in self._lines_at(spans):
            try:
                line = decode(encoded)
                for section in line.sections:
                    if section.stream == stream:
                        break
                else:
                    raise BadLine(f"it holds nothing of {stream!r}")
                found = items_of(line, section)
            except BadLine as exc:
                raise self.corrupt(offset, str(exc)) from exc
            first = section.revision
            if first < expected or first + len(found) - 1 > until:
                found = found[max(after + 1 - first, 0) : max(until + 1 - first, 0)]
                first = max(first, after + 1)
            if found and first != expected:
                break
            items += found
            expected += len(found)
        if expected != until + 1:
            raise CorruptError(
                f"{stream!r}@{expected} is not where the index says",
                where=self.segments.where(spans[0][1]) if spans else None,
                stream=stream,
                revision=expected,
            )
        return items

    def _lines_at(self, spans: list[LineSpan]) -> Iterator[tuple[bytes, int]]:
        """Yields the line of each span; neighbouring lines are read by one call."""
        for text, some in self._texts_at(spans):
            offset = some[0][1]
            for _, start, length in some:
                yield text[start - offset : start - offset + length], start

    def _texts_at(self, spans: list[LineSpan]) -> Iterator[tuple[bytes, list[LineSpan]]]:
        """Yields the text of neighbouring lines, and where each of them is."""
        begin = 0
        while begin < len(spans):
            offset = spans[begin][1]
            end = offset
            stop = begin
            while stop < len(spans) and spans[stop][1] == end and end - offset < CHUNK_BYTES:
                end += spans[stop][2]
                stop += 1
            yield self.segments.read(offset, end), spans[begin:stop]
            begin = stop

    def read_all(
        self, after: int, limit: int, *, since: tuple[int, int] = (0, 0), end: int | None = None
    ) -> list[Record]:
        """Returns records after a position: whole commits, until there are at least `limit`.

        It reads no text before `since`, a position with its log offset, and none after `end`.
        """
        with self.mutex:
            end = self.tail.cursor.end if end is None else end
            if after >= self.tail.cursor.position:
                return []
            if after >= self.tail.base.position:
                position, offset = after, self.tail.offset_after(after)
            else:
                position, offset = self._ask(lambda index: index.start_near(after))
        position, offset = max((position, offset), since)
        records: list[Record] = []
        chunk = min(max(limit << 10, 1 << 16), CHUNK_BYTES)
        for line, length in self.lines(offset, end, chunk):
            position += 1
            if line.n != position:
                raise self.corrupt(offset, f"its position is {line.n}: expected {position}")
            if position > after:
                for section in line.sections:
                    records.extend(records_of(line, section))
                if len(records) >= limit:
                    break
            offset += length
        return records


def _nothing(index: Index) -> None:
    del index


def _is_text(name: str) -> bool:
    """Returns whether a name can be in the log: one with a lone surrogate cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
