"""What a process knows of the log's end: everything behind the index, in dicts.

The tail begins where the index ends (`base`) and reaches to the newest line that this process has
read (`cursor`). Lines are applied one by one, own and foreign ones alike, by the same function. An
interrupt in the middle of a line leaves the cursor where it was, and applying that line again does
the rest: every step is one that may be done twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable

from msgspec import Struct

from holdfast.backends.files.text import (
    DIGEST_START,
    BadLine,
    LineEvent,
    LogLine,
    decode_link,
    next_digest,
    parse_time,
)
from holdfast.backends.protocol import Commit, Head, Mark, Position

HEADS_MAX = 8192
Place = tuple[int, int, int]
"""First revision of a line's section, log offset of the line, its length."""


class Cursor(Struct, frozen=True, gc=False):
    """A place in the log: the offset behind a line, its position, the store digest after it."""

    end: int = 0
    position: int = 0
    digest: bytes = DIGEST_START


class Named(Struct, frozen=True, gc=False):
    """A record that has a key or a checkpoint name, and the position it was committed at."""

    revision: int
    name: str
    time: int
    position: int


class Tail:
    """Heads, places, keys, checkpoints and marks of the lines between `base` and `cursor`.

    `heads` also caches heads that came from the index; each is current, because a line of that
    stream replaces it.
    """

    def __init__(self, base: Cursor, head_before: Callable[[str], Head | None]) -> None:
        self._head_before = head_before
        self.base = base
        self.cursor = base
        self.heads: dict[str, Head] = {}
        self.absent: set[str] = set()  # streams that were looked for and are not in the index
        self.offsets = array("Q")  # of each line
        self.places: dict[str, list[Place]] = {}
        self.keys: dict[tuple[str, str], Named] = {}
        self.checkpoints: dict[str, list[Named]] = {}
        self.marks: dict[tuple[str, str], tuple[Mark | None, int]] = {}

    def behind(self, base: Cursor) -> Tail:
        """Returns the part behind `base`, which lies between this tail's base and its cursor."""
        part = Tail(base, self._head_before)
        part.cursor = self.cursor
        part.offsets = self.offsets[base.position - self.base.position :]
        for stream, places in self.places.items():
            kept = [place for place in places if place[1] >= base.end]
            if kept:
                part.places[stream] = kept
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
            part.heads = {stream: self.heads[stream] for stream in part.places}
        return part

    def apply(self, line: LogLine, length: int, commit: Commit | None = None) -> None:
        """Adds the next line, which begins at the cursor; raises BadLine if it is not the next.

        `commit` is what the line was made of, if that was here: it saves parsing time and links.
        """
        position, cursor = line.n, self.cursor
        if position != cursor.position + 1:
            raise BadLine(f"its position is {position}: expected {cursor.position + 1}")
        if commit is not None:
            time = commit.time
            links = [append.records[-1].link for append in commit.appends]
        else:
            time = parse_time(line.at)
            links = [decode_link(section.events[-1].link) for section in line.sections]
        offset = cursor.end
        for number, section in enumerate(line.sections):
            stream, first, events = section.stream, section.revision, section.events
            head = self.heads.get(stream) or self._head_before(stream)
            if head is None:
                if first != 1 and not section.fork:
                    raise BadLine(f"it begins {stream!r} at revision {first}: expected 1")
                begin = first
            elif head.revision + 1 == first or head.position >= position:
                # The second: this line was applied before, or the index has gone ahead of us.
                begin = head.first
            else:
                raise BadLine(f"it holds {stream!r}@{first}: expected {head.revision + 1}")
            last = first + len(events) - 1
            self.heads[stream] = Head(last, links[number], time, Position(position), begin)
            places = self.places.get(stream)
            if places is None:
                self.places[stream] = [(first, offset, length)]
            elif places[-1][0] < first:
                places.append((first, offset, length))
            if section.key is not None:
                self.keys[stream, section.key] = Named(first, section.key, time, position)
            for event in events:
                if event.checkpoint is not None:
                    self._note_checkpoints(stream, first, events, time)
                    break
        if line.set or line.clear:
            self._note_marks(line)
        if len(self.offsets) < position - self.base.position:
            self.offsets.append(offset)
        self.cursor = Cursor(offset + length, position, next_digest(cursor.digest, line, links))

    def take(self, more: Tail) -> None:
        """Adds what was applied to a tail that begins at this one's cursor.

        So that lines can be applied before they may be seen, and be shown in no time.
        """
        self.heads.update(more.heads)
        for stream, places in more.places.items():
            known = self.places.setdefault(stream, places)
            if known is not places and known[-1][0] < places[0][0]:
                known.extend(places)
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
                    known.append(Named(revision, event.checkpoint, time, position))

    def _note_marks(self, line: LogLine) -> None:
        for mark in line.set:
            kept = Mark(mark.index, mark.key, mark.due, mark.priority, mark.group)
            self.marks[mark.index, mark.key] = kept, line.n
        for mark in line.clear:
            self.marks[mark.index, mark.key] = None, line.n

    def places_of(self, stream: str, after: int, until: int) -> list[Place]:
        """Returns the places of the lines that hold revisions after < revision <= until."""
        places = self.places.get(stream)
        if places is None or until <= after or until < places[0][0]:
            return []
        begin = max(bisect_right(places, after + 1, key=_first) - 1, 0)
        return places[begin : bisect_right(places, until, key=_first)]

    def offset_after(self, position: int) -> int:
        """Returns where the line behind `position` begins; `position` is not before the base."""
        place = position - self.base.position
        return self.offsets[place] if place < len(self.offsets) else self.cursor.end


def _first(place: Place) -> int:
    return place[0]
