"""The messages of a conversation as a sequence: lazy, read from either end, never folded."""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, cast, overload

import msgspec
from msgspec import Struct

from holdfast import codec
from holdfast.arguments import check_flag, check_whole
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.event import Moment, to_datetime
from holdfast.record.book import Book
from holdfast.record.choosing import By, about, check_names, choose
from holdfast.record.decisions import Decisions
from holdfast.record.facts import Facts
from holdfast.record.message import COMPACTED, SUMMARISED, FileChange, Message
from holdfast.record.recorder import Recorder
from holdfast.record.repair import repair
from holdfast.record.scan import Scan, check_kept
from holdfast.record.turns import Turn, read_turns
from holdfast.scope import Scope
from holdfast.wanted import Record

PAGE = 50
CHUNK = 1000
_MARK = b"m1:"


class Page(Struct, frozen=True):
    """Some messages, oldest first, and where to go on; None where there are no more."""

    messages: list[Message]
    older: str | None
    newer: str | None


class Summary(Struct, frozen=True):
    """What was said, in fewer words. A compacted one stands in the place of what it is of."""

    text: str
    through: int
    tokens_before: int
    tokens_after: int
    time: datetime
    is_compacted: bool


class _Item(Struct, gc=False):
    foreign: Any


_decode_item = msgspec.json.Decoder(_Item).decode


class History(Sequence[Message]):
    """Messages, oldest first. Nothing is read before it is asked for.

    `last(n)`, `[-n:]` and pages cost what they return, however long the conversation is; `len`,
    an index from the front and iteration look at all of it once, and are quick from then on.
    """

    def __init__(
        self, scope: Scope, book: Book, *, until: int | None = None, is_original: bool = False
    ) -> None:
        self.name = scope.name
        self._scope = scope
        self._book = book
        self._log = book.log
        self._until = until
        self._is_original = is_original
        self._past: Scan | None = None

    def __repr__(self) -> str:
        return f"<Messages of {self.name}>"

    @property
    def revision(self) -> int:
        """The revision of the conversation that it is read at."""
        return self._scope.revision if self._until is None else self._until

    def _scan(self) -> Scan:
        if self._until is None:
            scan = self._book.scans.newest(self.name, original=self._is_original)
        else:
            if self._past is None:
                self._past = self._book.scans.at(self.name, self._until, original=self._is_original)
            scan = self._past
        with scan.mutex:
            check_kept(scan)
        return scan

    def _message(self, scan: Scan, record: Record) -> Message:
        return Message(record, self._log.blobs.read, scan.edits_of(record))

    def _messages(self, scan: Scan, records: list[Record]) -> list[Message]:
        if scan.edits:
            return [self._message(scan, record) for record in records]
        read = self._log.blobs.read
        return [Message(record, read) for record in records]

    # --- like a list -----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.length()

    def length(self) -> int:
        """Returns how many there are, as `len` does."""
        scan = self._scan()
        with scan.mutex:
            scan.finish()
            return scan.count

    def __bool__(self) -> bool:
        return bool(self.last(1))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            start, stop, step = index.start, index.stop, index.step
            if any(type(one) not in (int, type(None)) for one in (start, stop, step)):
                raise UsageError(f"a slice has whole numbers, found {show_value(index)}")
            if isinstance(start, int) and start < 0 and stop is None and step in (None, 1):
                return self.last(-start)
            return self._all()[index]
        if isinstance(index, bool) or not isinstance(index, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"an index is a whole number or a slice, found {show_value(index)}")
        found = self.last(-index) if index < 0 else self._all()
        if len(found) < -index or index >= len(found):
            raise IndexError(f"there is no message {index}: there are {len(found)}")
        return found[0] if index < 0 else found[index]

    def __iter__(self) -> Iterator[Message]:
        place = -1
        while True:
            scan = self._scan()
            with scan.mutex:
                records = scan.after(place, CHUNK)
                messages = self._messages(scan, records)
                if not records:
                    return
                place = scan.place(records[-1])
            yield from messages

    def __reversed__(self) -> Iterator[Message]:
        cursor: str | None = None
        while True:
            page = self.page(CHUNK, before=cursor)
            yield from reversed(page.messages)
            cursor = page.older
            if cursor is None:
                return

    def _all(self) -> list[Message]:
        scan = self._scan()
        with scan.mutex:
            return self._messages(scan, scan.all())

    # --- parts of it -----------------------------------------------------------------------------

    def last(self, n: int = 20) -> list[Message]:
        """Returns the newest n, oldest of them first; fewer if there are fewer."""
        check_whole(n, "n")
        scan = self._scan()
        with scan.mutex:
            return self._messages(scan, scan.last(n))

    def page(
        self,
        limit: int = PAGE,
        *,
        before: str | None = None,
        after: str | None = None,
        oldest: bool = False,
    ) -> Page:
        """Returns the newest messages, the `oldest` ones, or those next to a cursor.

        A page's `older` and `newer` are the cursors to go on with. They stay good whatever is
        added, edited or deleted meanwhile.
        """
        check_whole(limit, "limit", least=1)
        if sum((before is not None, after is not None, check_flag(oldest, "oldest"))) > 1:
            raise UsageError("a page is the one before, the one after, or the oldest: found two")
        scan = self._scan()
        with scan.mutex:
            if after is not None or oldest:
                place = -1 if after is None else parse_cursor(after)
                records = scan.after(place, limit)
                has_older = after is not None
                has_newer = len(records) == limit
            else:
                place = scan.until + 1 if before is None else parse_cursor(before)
                records = scan.before(place, limit + 1)
                has_older = len(records) > limit
                records = records[-limit:]
                has_newer = before is not None
            places = [scan.place(record) for record in records]
            older = make_cursor(places[0]) if has_older and places else None
            newer = make_cursor(places[-1]) if has_newer and places else None
            return Page(self._messages(scan, records), older, newer)

    def cursor(self, message: Message) -> str:
        """Returns the cursor of a message: for the page before it, or after it."""
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a cursor is of a message, found {show_value(message)}")
        scan = self._scan()
        with scan.mutex:
            return make_cursor(scan.place(message.record))

    def get(self, id: str) -> Message:
        """Returns a message by its id, or raises NotFoundError; it looks from the newest on."""
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a message is named by its id, found {show_value(id)}")
        for message in reversed(self):
            if message.id == id:
                return message
        raise NotFoundError(f'scope "{self.name}" has no message {show_value(id)}')

    def at(self, moment: Moment) -> History:
        """Returns the messages as they were at a revision, a checkpoint or a datetime."""
        until = self._scope.revision_of(moment)
        newest = self._scope.revision
        if not 0 <= until <= newest:
            raise NotFoundError(f'scope "{self.name}" has no revision {until}: it has {newest}')
        return History(self._scope, self._book, until=until, is_original=self._is_original)

    def original(self) -> History:
        """Returns the messages without any compaction: what was really said."""
        return History(self._scope, self._book, until=self._until, is_original=True)

    # --- for other programs ----------------------------------------------------------------------

    def items(self, last: int | None = None) -> list[Any]:
        """Returns foreign items, exactly as they were given; of other messages what stands for one.

        Nothing but the item is decoded: for a framework that wants its whole history back.
        """
        scan = self._scan()
        with scan.mutex:
            records = scan.all() if last is None else scan.last(check_whole(last, "last"))
            if scan.edits or scan.summary is not None:
                return [message.item for message in self._messages(scan, records)]
        needs_more = codec.may_have_tags
        read = self._log.blobs.read
        with contextlib.suppress(msgspec.MsgspecError):  # unless one has no foreign item
            return [
                Message(record, read).item
                if needs_more(record.payload)
                else _decode_item(record.payload).foreign
                for record in records
            ]
        return [Message(record, read).item for record in records]

    def for_request(self, last: int | None = None) -> list[Any]:
        """Returns what the next request to a model is made of: `items`, repaired.

        A tool call that has no result gets one that says so: a turn that a crash interrupted must
        not make the model refuse, nor believe that something was done.
        """
        return repair(self.items(last)).history

    def select(self, by: By, n: int = 10) -> list[Message]:
        """Returns the n messages that a prompt needs most, oldest first.

        `by` is a function that scores a message (0: not this one), for retrieval by whatever you
        have; or names, and then it is those that mention one. All messages are read for it.
        """
        return choose(self, by, check_whole(n, "n"))

    def render(
        self, max_messages: int = 10, *, decisions: int = 20, select: By | None = None
    ) -> str:
        """Returns the simplest prompt context: "role: content" lines, then what was decided.

        They are the last messages, or those that `select` chooses; with names, the facts about
        them come first. Decisions are looked for as far back as it takes to find so many; 0 leaves
        them out, and then nothing but the last messages is read.
        """
        names = None if select is None else check_names(select)
        by = names or select
        chosen = self.last(max_messages) if by is None else self.select(by, max_messages)
        lines = [] if names is None else self._known_about(names)
        lines += [f"{message.role}: {message.text}" for message in chosen]
        decided = self._decided(check_whole(decisions, "decisions"))
        if decided:
            lines.append("Decisions made this session:")
            lines += [f"  - {line}" for line in decided]
        return "\n".join(lines)

    def _known_about(self, names: tuple[str, ...]) -> list[str]:
        # Facts are only read here, for which a scope's name is enough.
        known = about(Facts(self._book, cast("Recorder", self._scope)).list(), names)
        return ["Known:", *(f"  - {line}" for line in known)] if known else []

    def _decided(self, n: int) -> list[str]:
        recent = Decisions(self._book).recent(self._scope, n)
        return [
            f"{one.decision}: {one.rationale}" if one.rationale else one.decision
            for one in reversed(recent)
        ]

    # --- what else was recorded ------------------------------------------------------------------

    def turns(self, last: int = 20) -> list[Turn]:
        """Returns the newest turns, newest first: completed, failed, open or interrupted."""
        check_whole(last, "last")
        scan = self.original()._scan()
        head = self._log.head(self.name)
        forked_at = 0 if head is None else head.first - 1
        turns = read_turns(
            scan.events(), self.name, self._book.heart, seam=lambda: max(scan.seam, forked_at)
        )
        return list(islice(turns, last))

    def summaries(self) -> list[Summary]:
        """Returns the summaries and compactions, oldest first."""
        found: list[Summary] = []
        for record in self.original()._scan().events():
            if record.type in (SUMMARISED, COMPACTED):
                found.append(self._summary(record))
        return found[::-1]

    def _summary(self, record: Record) -> Summary:
        is_compacted = record.type == COMPACTED
        data = codec.decode(record.payload)
        text = Message(record, self._log.blobs.read).text if is_compacted else data["text"]
        return Summary(
            text,
            data["through"],
            data["tokens_before"],
            data["tokens_after"],
            to_datetime(record.time),
            is_compacted,
        )

    def file_changes(self, path: str | None = None) -> list[tuple[Message, FileChange]]:
        """Returns the file changes that messages caused, oldest first; of one path if given."""
        return [
            (message, change)
            for message in self
            for change in message.files
            if path is None or change.path == path
        ]


def make_cursor(place: int) -> str:
    """Returns a place among the messages as an opaque word."""
    return base64.urlsafe_b64encode(_MARK + str(place).encode()).decode().rstrip("=")


def parse_cursor(cursor: object) -> int:
    """Returns the place that a cursor names, or raises UsageError."""
    try:
        padded = str(cursor).encode() + b"=" * (-len(str(cursor)) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        if isinstance(cursor, str) and raw.startswith(_MARK) and raw[len(_MARK) :].isdigit():
            return int(raw[len(_MARK) : len(_MARK) + 18])
    except (binascii.Error, UnicodeEncodeError):
        pass
    raise UsageError(f"{show_value(cursor)} is no cursor: expected `older` or `newer` of a page")
