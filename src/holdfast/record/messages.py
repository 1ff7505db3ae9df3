"""Messages: what was said in a conversation, each durable when the call returns.

A message changes no state. Adding one to a conversation of a million others therefore folds nothing
and reads only the newest event. `message_events.py` defines the events; `message_scan.py` reads
the stream backwards and works out which messages are there.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, Cleared, Mark, Record
from holdfast.core import codec
from holdfast.core.arguments import check_flag, check_import_time, check_whole, update_ops
from holdfast.core.commit import CommitResult, NewEvent, ProposedCommit, changed
from holdfast.core.event import Moment, to_datetime, version_of
from holdfast.core.log import scope_stream
from holdfast.core.meta import Meta, encode_meta, joined
from holdfast.core.sealing import Seal, key_for
from holdfast.core.tree import Op
from holdfast.errors import ConflictError, ErasedError, NotFoundError, UsageError, show_value
from holdfast.names import check_name
from holdfast.record import message_events
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decisions
from holdfast.record.facts import Fact
from holdfast.record.history_repair import repair
from holdfast.record.in_run import refuse_in_body
from holdfast.record.message_events import (
    COMPACTED,
    SUMMARISED,
    FileChange,
    Message,
    MessageFields,
    Spill,
    check_fields,
    encode,
    foreign_id_key,
    make_id,
    said_us,
    seal_fields,
)
from holdfast.record.message_scan import Scan, check_messages_kept
from holdfast.record.sessions import OpenTurn, Turn, read_turns

if TYPE_CHECKING:
    from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.record")


# --- choosing -------------------------------------------------------------------------------------
#
# Chooses the messages that a prompt needs, by a scoring function or by names. Pure.
#
# Choosing reads every message of the conversation.


Scorer = Callable[[Message], float]
Selector = Scorer | Iterable[str]
"""How messages are chosen: a function that scores each one, or names that it must mention."""


def check_names(by: object) -> tuple[str, ...] | None:
    """Returns the names to choose by, or None for a function; raises UsageError otherwise."""
    if callable(by):
        return None
    names = (by,) if isinstance(by, str) else by
    if isinstance(names, Iterable):
        found = tuple(cast("Iterable[object]", names))
        if found and all(isinstance(name, str) and name.strip() for name in found):
            return cast("tuple[str, ...]", found)
    raise UsageError(
        f"messages are chosen by a function that scores them, or by names, found {show_value(by)}"
    )


def choose(messages: Iterable[Message], by: Selector, n: int) -> list[Message]:
    """Returns the n messages with the highest scores above 0, oldest first; newer ones win ties."""
    names = check_names(by)
    score = cast("Scorer", by) if names is None else _mentions(names)
    scored: list[tuple[float, int, Message]] = []
    for at, message in enumerate(messages):
        found = _check_score(score(message))
        if found > 0:
            scored.append((found, at, message))
    best = sorted(scored, key=lambda one: one[:2])[-n:] if n else []
    return [message for _, _, message in sorted(best, key=lambda one: one[1])]


def _check_score(score: object) -> float:
    if not isinstance(score, int | float) or score != score:
        raise UsageError(f"a score is a number, found {show_value(score)}")
    return score


def fact_lines(facts: Iterable[Fact], names: tuple[str, ...]) -> list[str]:
    """Returns one line for each fact about any of the names, and marks stale facts as such."""
    has = name_pattern(names)
    return [
        f"{fact.name}: {fact.value}{f' (stale: {fact.reason})' if fact.stale else ''}"
        for fact in facts
        if has.search(fact.about or "") or has.search(fact.name)
    ]


def _mentions(names: tuple[str, ...]) -> Scorer:
    has = name_pattern(names)
    return lambda message: len(has.findall(message.text))


def name_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Returns a pattern that matches any of the names as a whole word, ignoring case."""
    words = "|".join(re.escape(name.strip()) for name in names)
    return re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])", re.IGNORECASE)


# --- as text --------------------------------------------------------------------------------------
#
# Renders a message for a plain-text prompt: each field of a model API becomes one line.


def shown_lines(message: Message) -> list[str]:
    """Returns a message as lines: its text, the tools it called, and their results."""
    role, said = message.role or "assistant", message.text
    found: Any = message.item
    item = cast("dict[str, Any]", found) if type(found) is dict else {}
    answers = message.tool_call_id or item.get("tool_call_id")
    if item.get("type") in ("function_call", "function_call_output"):
        blocks: list[Any] = [item]
    else:
        content = item.get("content")
        blocks = [*(item.get("tool_calls") or ()), *(content if isinstance(content, list) else ())]
    known = cast("list[dict[str, Any]]", [one for one in blocks if type(one) is dict])
    calls = [line for one in known for line in _shown_call(role, one)]
    if answers is not None:
        return [f"{role} [{answers}]: {said}", *calls]
    return [f"{role}: {said}", *calls] if said or not calls else calls


def _shown_call(role: str, call: dict[str, Any]) -> list[str]:
    """Returns the line for a tool call or result, in any of the forms that `repair` knows."""
    kind, function = call.get("type"), call.get("function")
    id = call.get("call_id") or call.get("tool_use_id") or call.get("id")
    if kind == "function_call_output":
        return [f"tool [{id}]: {_shown_value(call.get('output'))}"]
    if kind == "tool_result":
        return [f"tool [{id}]: {_shown_value(call.get('content'))}"]
    if isinstance(function, dict):
        call = cast("dict[str, Any]", function)
    if not isinstance(call.get("name"), str):
        return []
    arguments = call.get("arguments", call.get("input"))
    return [f"{role}: {call['name']}({_shown_value(arguments)}) [{id}]"]


def _shown_value(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return codec.encode(value).decode()


# --- merging --------------------------------------------------------------------------------------
#
# Merges two histories into one, ordered by time and without duplicates. Pure.


def merged_order(mine: list[Message], theirs: list[Message]) -> tuple[list[Message], list[Message]]:
    """Returns the merged history, and the messages in it that only the second history has.

    Each side keeps its own order. A message that both have, by foreign id or by id, is taken from
    the first history. If two messages of the second history share an id, the earlier one is taken.
    """
    known = {name for message in mine for name in _names(message)}
    new: list[Message] = []
    for message in theirs:
        if not known.intersection(_names(message)):
            new.append(message)
            known.update(_names(message))
    merged: list[Message] = []
    at = 0
    for message in mine:
        while at < len(new) and said_us(new[at]) < said_us(message):
            merged.append(new[at])
            at += 1
        merged.append(message)
    return merged + new[at:], new


def _names(message: Message) -> tuple[str, ...]:
    foreign_id = message.foreign_id
    own = f"id:{message.id}"
    return (own,) if foreign_id is None else (own, f"foreign:{foreign_id}")


def moved_fields(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that is written again elsewhere; it keeps its time."""
    fields = {**message.fields, "said_at": said_us(message)}
    if "foreign" in fields:
        fields["foreign"] = fields.pop("foreign")  # it comes last, where a reader expects it
    return fields


# --- history --------------------------------------------------------------------------------------
#
# The messages of a conversation as a lazy sequence, read from either end and never folded.


PAGE = 50
CHUNK = 1000
_MARK = b"m1:"
_SUMMARY_MARK = b"s1:"


class MessagePage(Struct, frozen=True):
    """Some messages, oldest first, and the cursors of the pages on either side, or None."""

    messages: list[Message]
    older: str | None
    newer: str | None


class Summary(Struct, frozen=True):
    """A summary of messages. If it is compacted, it replaces them for readers."""

    text: str
    through: int
    tokens_before: int
    tokens_after: int
    time: datetime
    is_compacted: bool


class _ForeignItem(Struct, gc=False):
    foreign: Any


_decode_foreign = msgspec.json.Decoder(_ForeignItem).decode


class History(Sequence[Message]):
    """The messages of a conversation, oldest first, read lazily.

    The cost of `last(n)`, `[-n:]` and pages depends on how much they return, not on how long the
    conversation is. `len`, an index from the front and iteration read all of it once per process,
    and are quick from then on.
    """

    def __init__(
        self,
        scope: Scope,
        context: RecordContext,
        *,
        until: int | None = None,
        is_original: bool = False,
    ) -> None:
        self.name = scope.name
        self._scope = scope
        self._context = context
        self._log = context.log
        self._until = until
        self._is_original = is_original
        self._past: Scan | None = None

    def __repr__(self) -> str:
        return f"<Messages of {self.name}>"

    @property
    def revision(self) -> int:
        """The revision at which the conversation is read."""
        return self._scope.revision if self._until is None else self._until

    def _scan(self) -> Scan:
        if self._until is None:
            scan = self._context.scans.newest(self.name, original=self._is_original)
        else:
            if self._past is None:
                self._past = self._context.scans.at(
                    self.name, self._until, original=self._is_original
                )
            scan = self._past
        with scan.mutex:
            check_messages_kept(scan)
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
        """Returns the number of messages, as `len` does."""
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

    # --- pages and single messages ---------------------------------------------------------------

    def last(self, n: int = 20) -> list[Message]:
        """Returns the newest n messages, oldest first; fewer if there are fewer."""
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
    ) -> MessagePage:
        """Returns a page: the newest messages, the `oldest` ones, or those next to a cursor.

        The page's `older` and `newer` are the cursors of the neighbouring pages. They stay valid
        whatever is added, edited or deleted meanwhile.
        """
        check_whole(limit, "limit", least=1)
        if sum((before is not None, after is not None, check_flag(oldest, "oldest"))) > 1:
            raise UsageError("a page takes one of before, after and oldest: found two")
        scan = self._scan()
        with scan.mutex:
            if after is not None or oldest:
                place = -1 if after is None else parse_cursor(after)
                records = scan.after(place, limit)
                has_older = after is not None
                has_newer = len(records) == limit
            else:
                place = scan.until + 1 if before is None else self._place_before(scan, before)
                records = scan.before(place, limit + 1)
                has_older = len(records) > limit
                records = records[-limit:]
                has_newer = before is not None
            older = _cursor_of(scan, records[0]) if has_older and records else None
            newer = _cursor_of(scan, records[-1]) if has_newer and records else None
            return MessagePage(self._messages(scan, records), older, newer)

    def cursor(self, message: Message) -> str:
        """Returns the cursor of a message, with which `page` reads before or after it."""
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a cursor is of a message, found {show_value(message)}")
        scan = self._scan()
        with scan.mutex:
            return _cursor_of(scan, message._record)

    def _place_before(self, scan: Scan, cursor: str) -> int:
        """Returns the place that a page ends before.

        A cursor from before a compaction may point at a message that the summary now covers. What
        comes before that cursor is the summary; before the summary there is nothing.
        """
        place = parse_cursor(cursor)
        scan.seek(place)
        if place > scan.floor or scan.summary is None or is_of_summary(cursor):
            return place
        return scan.floor + 1

    def get(self, id: str) -> Message:
        """Returns a message by its id, or raises NotFoundError; searches from the newest back."""
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a message is named by its id, found {show_value(id)}")
        for message in reversed(self):
            if message.id == id:
                return message
        raise NotFoundError(f'scope "{self.name}" has no message {show_value(id)}')

    def at(self, moment: Moment) -> History:
        """Returns the messages as they were at a revision, a checkpoint or a datetime."""
        until = self._scope.life.revision_at(moment)
        newest = self._scope.revision
        if not 0 <= until <= newest:
            raise NotFoundError(
                f'scope "{self.name}" has no revision {until}: its newest is {newest}'
            )
        return History(self._scope, self._context, until=until, is_original=self._is_original)

    def original(self) -> History:
        """Returns the messages as they were said, ignoring every compaction."""
        return History(self._scope, self._context, until=self._until, is_original=True)

    # --- for other programs ----------------------------------------------------------------------

    def items(self, last: int | None = None) -> list[Any]:
        """Returns foreign items exactly as they were given, and other messages in request form.

        It is meant for a framework that wants its whole history back, so only the item of each
        message is decoded.
        """
        scan = self._scan()
        with scan.mutex:
            records = scan.all() if last is None else scan.last(check_whole(last, "last"))
            if scan.edits or scan.summary is not None:
                return [message.item for message in self._messages(scan, records)]
        needs_more = codec.may_have_tags
        read = self._log.blobs.read
        try:
            return [
                Message(record, read).item
                if needs_more(record.payload)
                else _decode_foreign(record.payload).foreign
                for record in records
            ]
        except msgspec.MsgspecError:
            _logger.debug('a message of "%s" has no foreign item: decoding all fields', self.name)
            return [Message(record, read).item for record in records]

    def for_request(self, last: int | None = None) -> list[Any]:
        """Returns the history for the next request to a model: `items`, repaired.

        A tool call without a result is given one that says so. After a crash in the middle of a
        turn, the model API must not reject the history, and the model must not believe that the
        call was carried out.
        """
        return repair(self.items(last)).history

    def select(self, by: Selector, n: int = 10) -> list[Message]:
        """Returns the n best-scoring messages, oldest first.

        `by` is either a function that scores a message (0 leaves it out), or names: then a message
        scores by how often it mentions them. This reads all messages.
        """
        return choose(self, by, check_whole(n, "n"))

    def render(
        self, max_messages: int = 10, *, decisions: int = 20, select: Selector | None = None
    ) -> str:
        """Returns the simplest prompt context: "role: content" lines, then the decisions.

        A tool call is shown with its name, arguments and id, a result with the id of its call.

        The messages are the last ones, or those that `select` chooses; if `select` gives names,
        the facts about them come first. `decisions` is how many decisions are included; they are
        searched for as far back as needed. With 0, only the last messages are read.
        """
        names = None if select is None else check_names(select)
        by = names or select
        chosen = self.last(max_messages) if by is None else self.select(by, max_messages)
        lines = [] if names is None else self._fact_lines(names)
        lines += [line for message in chosen for line in shown_lines(message)]
        decided = self._decision_lines(check_whole(decisions, "decisions"))
        if decided:
            lines.append("Decisions made this session:")
            lines += [f"  - {line}" for line in decided]
        return "\n".join(lines)

    def _fact_lines(self, names: tuple[str, ...]) -> list[str]:
        known = fact_lines(self._scope.facts.list(), names)
        return ["Known:", *(f"  - {line}" for line in known)] if known else []

    def _decision_lines(self, n: int) -> list[str]:
        recent = Decisions(self._context).recent(self._scope, n)
        return [
            f"{one.decision}: {one.rationale}" if one.rationale else one.decision
            for one in reversed(recent)
        ]

    # --- what else was recorded ------------------------------------------------------------------

    def turns(self, last: int = 20) -> list[Turn]:
        """Returns the last turns, newest first; each is completed, failed, open or interrupted."""
        check_whole(last, "last")
        scan = self.original()._scan()
        head = self._log.head(self.name)
        forked_at = 0 if head is None else head.first - 1
        turns = read_turns(
            scan.events(),
            self.name,
            self._context.lease_keeper,
            last_rewind=lambda: max(scan.last_rewind, forked_at),
        )
        return list(islice(turns, last))

    def summaries(self) -> list[Summary]:
        """Returns the summaries and compactions, oldest first."""
        found: list[Summary] = []
        for record in self.original()._scan().events():
            if record.type in (SUMMARISED, COMPACTED) and record.payload != GONE:
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
        """Returns the file changes that messages caused, oldest first, optionally for one path."""
        return [
            (message, change)
            for message in self
            for change in message.files
            if path is None or change.path == path
        ]


def make_cursor(place: int, *, mark: bytes = _MARK) -> str:
    """Returns an opaque cursor for a place among the messages."""
    return base64.urlsafe_b64encode(mark + str(place).encode()).decode().rstrip("=")


def _cursor_of(scan: Scan, record: Record) -> str:
    """Returns the cursor of a message; the cursor of a summary has a mark of its own."""
    mark = _SUMMARY_MARK if record.type == COMPACTED else _MARK
    return make_cursor(scan.place(record), mark=mark)


def is_of_summary(cursor: str) -> bool:
    """Returns whether a valid cursor is that of a summary."""
    return cursor.startswith(base64.urlsafe_b64encode(_SUMMARY_MARK).decode())


def parse_cursor(cursor: object) -> int:
    """Returns the place that a cursor names, or raises UsageError."""
    try:
        padded = str(cursor).encode() + b"=" * (-len(str(cursor)) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        is_marked = raw.startswith((_MARK, _SUMMARY_MARK))
        if isinstance(cursor, str) and is_marked and raw[len(_MARK) :].isdigit():
            return int(raw[len(_MARK) : len(_MARK) + 18])
    except (binascii.Error, UnicodeEncodeError):
        pass
    raise UsageError(f"{show_value(cursor)} is not a cursor: expected `older` or `newer` of a page")


# --- adding and changing --------------------------------------------------------------------------


RETRIES = 100
BYTES_PER_TOKEN = 4
"""Used to estimate tokens when the caller does not give their number."""
_END = 1 << 62
"""A revision after the end of any stream."""


class PreparedMessages(Struct, frozen=True):
    """The commit that adds some messages, and which of its events these messages are."""

    commit: ProposedCommit
    first: int
    count: int
    turn: OpenTurn | None


class _ForeignToAdd:
    """A foreign item that is added unless it is there already."""

    def __init__(self, given: dict[str, Any], seal: Seal | None) -> None:
        self.given = given
        self.seal = seal
        self.fields = check_fields(given)
        foreign_id = self.fields.get("foreign_id")
        self.key = None if foreign_id is None else known_by(foreign_id, seal)
        self.there: Message | None = None

    @property
    def name(self) -> str | int:
        """Identifies the item within one list: two copies of one item have the same name."""
        return self.key or id(self)


class Messages(History):
    """The messages of one conversation: a sequence to read, and the methods that change it.

    No change destroys anything: `at` reads what was there before.

    Most changes to existing messages are refused in the body of a run. Such a change names the
    messages that are there now. When the body is replayed, other messages would be there, it would
    write another event, and the run would diverge. `clear` writes the same event each time, so it
    is allowed. In a step all of them are allowed.
    """

    # --- adding ----------------------------------------------------------------------------------

    def add(
        self,
        role: str | None = None,
        content: str | list[Any] | None = None,
        *,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        subject: str | None = None,
        key: str | None = None,
        expected: int | None = None,
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Adds a message and returns it; it is durable when this returns.

        The other fields of a message are `parts`, `tool_calls`, `tool_call_id`, `usage`,
        `metadata`, `links`, `files`, `said_at`, and `foreign`: another program's item, kept
        exactly. With `foreign_id`, the item's id in that program, it is added once, however often
        it is sent. `state` is set in the same commit. With `subject`, the content is sealed with
        that subject's key, even in a conversation of several subjects, and reads as ERASED after
        `erase`.
        """
        given: dict[str, Any] = {"role": role, "content": content, **fields}
        seal = None if subject is None else self._seal_for(subject)
        if fields.get("foreign_id") is not None and key is None:
            return self._add_once(given, turn, state, expected, seal)
        if seal is not None:
            key = key_for(key, seal)
        prepared = self._prepare(
            [given], turn=turn, state=state, key=key, expected=expected, seal=seal
        )
        return self._committed(prepared, self._log.commit(prepared.commit))[0]

    def _seal_for(self, subject: str) -> Seal | None:
        """Returns the seal for a subject's messages; None if the whole scope is that subject's."""
        return self._log.seal_for(self.name, check_name(subject, "subject"))

    def add_many(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        subject: str | None = None,
        key: str | None = None,
        expected: int | None = None,
    ) -> list[Message]:
        """Adds several messages, each a mapping with the argument names of `add`.

        They and `state` are one commit, all or nothing. Items with a `foreign_id` that are there
        already are left out; if all of them are, nothing is written. Returns every message,
        including those that were there already. On a backend that takes one key in a commit,
        items with a `foreign_id` are one commit each. With `subject` all messages are sealed for
        that subject, as with `add`; `state` is not.
        """
        given = [_check_item(item) for item in _listed(items)]
        if not given:
            return []
        seal = None if subject is None else self._seal_for(subject)
        if key is None and any(item.get("foreign_id") is not None for item in given):
            if self._log.record_keys:
                return self._add_known(given, turn, state, expected, seal)
            if turn is None and state is None and expected is None:
                return self._add_batch(given, seal)
            return [self._add_once(item, turn, state, expected, seal) for item in given]
        key = key_for(key, seal)
        prepared = self._prepare(
            given, turn=turn, state=state, key=key, expected=expected, seal=seal
        )
        return self._committed(prepared, self._log.commit(prepared.commit))

    def _prepare(
        self,
        given: list[dict[str, Any]],
        *,
        turn: OpenTurn | None = None,
        state: Mapping[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
        spill: Spill | None = None,
        keys: Sequence[str | None] = (),
        seal: Seal | None = None,
    ) -> PreparedMessages:
        """Returns the commit that adds messages, after writing their blobs.

        `keys` has one idempotency key for each message (clause 26), instead of `key` for the whole
        commit. `seal` is given for a subject's messages in a scope that is not that subject's;
        the keys are then digests made with it.
        """
        clock = self._log.clock
        new_events: list[NewEvent] = []
        marks: tuple[Mark | Cleared, ...] = ()
        if turn is not None:
            begun, marks = _check_turn(turn, self)._begin()
            new_events += begun
        first = len(new_events)
        typed = self._log.typed
        meta = typed.item_meta("message", self.name) if typed.items else None
        for number, item in enumerate(given):
            fields = check_fields(item)
            if "id" not in fields:
                # A retry with the same key must have the same bytes, or the log would refuse it:
                # so the id is derived from the key and not made anew.
                own_key = f"{key}/{number}" if key and number else key
                if seal is None:
                    id = fields.get("foreign_id") or own_key or make_id(clock, fields, number)
                else:
                    # The id is stored in clear: it must not be text that the caller gave, nor an
                    # unkeyed digest of it, which could be guessed after the subject is erased.
                    own_key = keys[number] if keys else own_key
                    id = own_key or seal.digest("id", make_id(clock, fields, number))
                fields = {"id": id, **fields}
            if turn is not None:
                fields["turn"] = turn.id
                fields["foreign"] = fields.pop("foreign", None)  # it stays the last
                if fields["foreign"] is None:
                    del fields["foreign"]
            if seal is not None:
                fields = seal_fields(fields, partial(self._sealed, seal))
            payload = encode(fields, spill or self._spill)
            own, of = keys[number] if keys else None, () if seal is None else (seal.subject,)
            added = NewEvent(message_events.ADDED, payload, key=own, meta=meta, sealed_for=of)
            new_events.append(added)
        if state is not None:
            ops = [self._log.blobs.spill(op, self.name) for op in update_ops(state)]
            new_events.append(changed(ops))
        write = scope_stream(self._scope).write(tuple(new_events), expected=expected, key=key)
        return PreparedMessages(ProposedCommit((write,), marks=marks), first, len(given), turn)

    def _committed(self, prepared: PreparedMessages, result: CommitResult) -> list[Message]:
        """Returns the messages that a finished commit added."""
        write = prepared.commit.writes[0]
        if result.redacted:
            write = result.written(write)
        after = result.after[0]
        before = after.revision - len(write.new_events) + 1
        if prepared.turn is not None:
            if self._log.is_gathering and prepared.first:
                self._log.when_placed(self.name, before, prepared.turn._mark_begun)
            else:
                prepared.turn._mark_begun()
        actor, meta = self._log.provenance
        own_meta = write.new_events[prepared.first].meta if prepared.count else None
        meta = meta if own_meta is None else joined(meta, own_meta)
        found = [
            Message(
                Record(self.name, before + at, after.time, message_events.ADDED, actor,
                       write.new_events[at].payload, b"",
                       write.new_events[at].key or (write.key if at == 0 else None),
                       meta=meta),
                self._log.blobs.read,
            )
            for at in range(prepared.first, prepared.first + prepared.count)
        ]  # fmt: skip
        if self._log.is_gathering and not result.repeated:
            for message in found:
                self._log.when_placed(self.name, message.revision, message._place)
        return found

    def _add_once(
        self,
        given: dict[str, Any],
        turn: OpenTurn | None,
        state: Mapping[str, Any] | None,
        expected: int | None,
        seal: Seal | None,
    ) -> Message:
        """Adds a foreign item, unless it is there already."""
        refuse_in_body("adding a foreign item without a key=")
        again = 0
        while True:
            key = known_by(check_fields(given)["foreign_id"], seal, again)
            there = self._inherited(key)
            if there is None:
                prepared = self._prepare(
                    [given], turn=turn, state=state, key=key, expected=expected, seal=seal
                )
                try:
                    result = self._log.commit(prepared.commit)
                except UsageError:
                    there = self._by_key(self.name, key)
                    if there is None or not _is_same(there, check_fields(given)):
                        raise
                    _logger.debug('an item of "%s" was added before', self.name)
                else:
                    there = self._committed(prepared, result)[0]
                    if not result.repeated:
                        return there
            standing = there if self.is_there(there) else self._moved(there)
            if standing is not None:
                return standing
            # It was deleted since, and is added once more, under another key.
            again = there.revision

    def _add_known(
        self,
        given: list[dict[str, Any]],
        turn: OpenTurn | None,
        state: Mapping[str, Any] | None,
        expected: int | None,
        seal: Seal | None,
    ) -> list[Message]:
        """Adds the items that are not there yet in one commit, each under its own key.

        Mostly all items are new. So it commits first, and looks up which of them are there already
        only if the commit is refused.
        """
        refuse_in_body("adding foreign items without a key=")
        items = [_ForeignToAdd(item, seal) for item in given]
        is_fork = self._log.origin(self.name) is not None
        if is_fork:
            self._find_known(items, is_fork=True)
        while True:
            new = [one for one in items if one.there is None]
            if not new:
                break
            firsts: dict[str | int, _ForeignToAdd] = {}
            for one in new:
                firsts.setdefault(one.name, one)
            adding = list(firsts.values())
            prepared = self._prepare(
                [one.given for one in adding],
                turn=turn,
                state=state,
                expected=expected,
                keys=[one.key for one in adding],
                seal=seal,
            )
            try:
                result = self._log.commit(prepared.commit)
            except ConflictError:
                if not self._find_known(new, is_fork=is_fork):
                    raise
                continue
            messages = self._committed(prepared, result)
            added = {one.name: message for one, message in zip(adding, messages, strict=True)}
            for one in new:
                one.there = added[one.name]
            break
        return [one.there for one in items if one.there is not None]

    def _find_known(self, items: list[_ForeignToAdd], *, is_fork: bool) -> bool:
        """Looks up which items are there already, and returns whether any key was in use.

        An item that was deleted since gets another key, under which it is added again.
        """
        is_news = False
        for one in items:
            while one.there is None and one.key is not None:
                there = self._inherited(one.key) if is_fork else None
                there = there or self._by_key(self.name, one.key)
                if there is None:
                    break
                is_news = True
                if not _is_same(there, one.fields):
                    raise UsageError(
                        f'item "{one.fields["foreign_id"]}" of "{self.name}" is there already, '
                        "and is another one",
                        hint="an id names one item for ever: edit it, or use a new id",
                    )
                one.there = there if self.is_there(there) else self._moved(there)
                if one.there is None:
                    one.key = known_by(one.fields["foreign_id"], one.seal, there.revision)
        return is_news

    def _add_batch(self, given: list[dict[str, Any]], seal: Seal | None) -> list[Message]:
        """Adds the items that are not there yet, one commit each, with one sync for all.

        For backends that take one key in a commit.
        """
        refuse_in_body("adding foreign items without a key=")
        prepared: list[PreparedMessages | None] = []
        for item in given:
            foreign_id = check_fields(item).get("foreign_id")
            key = None if foreign_id is None else known_by(foreign_id, seal)
            is_inherited = key is not None and self._inherited(key) is not None
            prepared.append(None if is_inherited else self._prepare([item], key=key, seal=seal))
        sent = iter(self._log.submit_all([one.commit for one in prepared if one is not None]))
        requests = [None if one is None else next(sent) for one in prepared]
        found: list[Message] = []
        for item, one, request in zip(given, prepared, requests, strict=True):
            try:
                result = None if request is None else self._log.wait(request)
            except UsageError:
                # Its key was used before: `_add_once` compares what is there, and may raise.
                _logger.debug('an item of "%s" was added before: looking it up', self.name)
                result = None
            if one is None or result is None or result.repeated:
                found.append(self._add_once(item, None, None, None, seal))
            else:
                found += self._committed(one, result)
        return found

    def import_many(
        self, items: Iterable[Mapping[str, Any]], *, subject: str | None = None
    ) -> list[Message]:
        """Imports what was said elsewhere into a new conversation, with its original times.

        Each item has a `foreign_id` and a `said_at`, in the order of time. The events get these
        times, so `at(datetime)` finds what was there then. Each item is a commit of its own, in
        order: after an interruption the first items are there, and the same call adds the rest.
        With `subject` all of them are sealed for that subject, as with `add`.
        """
        refuse_in_body("an import of messages")
        seal = None if subject is None else self._seal_for(subject)
        new_items = [_ForeignToAdd(_check_item(item), seal) for item in _listed(items)]
        times = {id(one): _import_time(one) for one in new_items}
        if self._log.head(self.name) is not None:
            self._find_known(new_items, is_fork=self._log.origin(self.name) is not None)
        firsts: dict[str | int, _ForeignToAdd] = {}
        for one in new_items:
            if one.there is None:
                firsts.setdefault(one.name, one)
        adding = list(firsts.values())
        expected: int | None = None
        # The first item is committed alone, because that commit may also write an event that opens
        # the scope, so the revision after it is not known before. Each later item expects the
        # revision of the one before it, so that an interruption leaves no gap.
        for first, until in [(0, 1), *_chunks(1, len(adding))]:
            prepared: list[PreparedMessages] = []
            for at, one in enumerate(adding[first:until]):
                after = None if expected is None else expected + at
                made = self._prepare([one.given], key=one.key, expected=after, seal=seal)
                commit = replace(made.commit, time=times[id(one)])
                prepared.append(replace(made, commit=commit))
            requests = self._log.submit_all([one.commit for one in prepared])
            for one, made, request in zip(adding[first:until], prepared, requests, strict=True):
                result = self._log.wait(request)
                [one.there] = self._committed(made, result)
                expected = result.revision
        found = [firsts.get(one.name, one).there for one in new_items]
        return [message for message in found if message is not None]

    def _inherited(self, key: str) -> Message | None:
        """Returns the message with that key in the streams that this one was forked from."""
        stream, until = self.name, _END
        while (origin := self._log.origin(stream)) is not None:
            stream, until = origin[0], min(until, origin[1])
            found = self._by_key(stream, key, until)
            if found is not None:
                return found
        return None

    def _moved(self, there: Message) -> Message | None:
        """Returns the copy of a foreign item that a merge wrote later in the stream, if any.

        Each later message is decoded only once, however many items are looked up.
        """
        scan = self._scan_to(there.revision)
        with scan.mutex:
            if there.revision < scan.foreign_from:
                scan.foreign_from = scan.foreign_until = there.revision
            for message in self._messages(scan, scan.after(scan.foreign_until, _END)):
                if (key := self._key_of(message)) is not None:
                    scan.foreign[key] = message.revision
            scan.foreign_until = scan.until
            at = scan.foreign.get(self._key_of(there) or "", 0)
            if at <= there.revision or at in scan.removed:
                return None
            [record] = self._log.records(self.name, after=at - 1, until=at)
            return self._message(scan, record)

    def _key_of(self, message: Message) -> str | None:
        """Returns the key of a foreign item here; None for other messages and erased subjects."""
        if message._record.type == message_events.MOVED:
            said = message.fields
            return said["key"] if "key" in said else foreign_id_key(said["foreign_id"])
        of, foreign_id = message.subject, message.foreign_id
        if foreign_id is None or of is None or self._log.subject_of(self.name) is not None:
            return None if foreign_id is None else foreign_id_key(foreign_id)
        try:
            return known_by(foreign_id, self._log.sealing.of(of))
        except ErasedError:
            return None

    def _by_key(self, stream: str, key: str, until: int = _END) -> Message | None:
        """Returns the message that was added to a stream with a key, up to a revision.

        The key is on the first event of the commit, and the message may come up to two events
        later: after the one that gives the scope its parent, and the one that begins a turn.

        If a merge reserved the key, the message is the one that the merge wrote. If that was never
        written, or was deleted, the result is the reservation: a message that has only a foreign
        id, and of which `is_there` is false.
        """
        for found in self._log.find(stream, key=key, until=until):
            after = found.revision - 1
            for record in self._log.read(stream, after=after, until=min(after + 3, until)):
                if record.type == message_events.ADDED:
                    return Message(record, self._log.blobs.read)
                if record.type == message_events.MOVED:
                    moved = self._moved(Message(record, self._log.blobs.read))
                    return Message(moved._record if moved else record, self._log.blobs.read)
        return None

    def is_there(self, message: Message) -> bool:
        """Returns whether a message is there: not deleted or rewound. A compacted one is there."""
        scan = self._scan_to(message.revision)
        with scan.mutex:
            found = scan.before(scan.place(message._record) + 1, 1)
            return bool(found) and found[0].revision == message.revision

    def _scan_to(self, revision: int) -> Scan:
        """Returns a scan that reaches down to a revision and includes compacted messages.

        A compacted message was not deleted: if it is sent again, it must not be added again.
        """
        scan = self._scan()
        with scan.mutex:
            scan.before(revision + 1, 1)  # finds the summary that covers it, if there is one
            if scan.summary is None:
                return scan
        return self.original()._scan()

    # --- turns -----------------------------------------------------------------------------------

    def turn(self) -> OpenTurn:
        """Returns the block of a turn: `with chat.messages.turn() as turn:`, then `turn.add(…)`.

        If the block raises, the turn ends as failed, with the error. If its process dies, nothing
        ends the turn, and it reads as `interrupted`.
        """
        return OpenTurn(self, self._log, self._context.lease_keeper)

    # --- changing --------------------------------------------------------------------------------

    def edit(self, message: Message | str, **fields: Any) -> Message:
        """Sets fields of a message, removes those given as None, and returns the edited message.

        The history keeps the earlier version: `messages.at(…)` reads it.
        """
        refuse_in_body("an edit of a message")
        unknown = fields.keys() - set(message_events.EDITABLE)
        if unknown or not fields:
            found = f"{sorted(unknown)[0]!r}" if unknown else "nothing"
            raise UsageError(f"edit sets {', '.join(message_events.EDITABLE)}, found {found}")
        target = self._target(message)
        # A foreign item may have no role; `check_fields` wants one.
        checked = check_fields({"role": target.role or "user", **fields})
        values = dict.fromkeys(fields) | checked
        if "role" not in fields:
            del values["role"]
        subject = target.subject
        of = () if subject is None else (subject,)
        if subject is not None:
            raw = self._sealed(self._log.sealing.of(subject), codec.encode(values))
            values = codec.SealedLeaf(raw)
        payload = encode({"at": target.revision, "set": values}, self._spill)
        edited = NewEvent(message_events.EDITED, payload, sealed_for=of)
        self._commit_about((edited,), target.revision)
        return self._target(target)

    def delete(self, message: Message | str) -> None:
        """Deletes a message; `at` and earlier forks still read it."""
        refuse_in_body("deleting a message")
        target = self._target(message)
        deleted = _event_with(message_events.DELETED, at=target.revision)
        self._commit_about((deleted,), target.revision)

    def pop(self) -> Message | None:
        """Deletes the newest message and returns it; None if there is none."""
        refuse_in_body("pop of a message")
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                newest = self._messages(scan, scan.last(1))
                until = scan.until
            if not newest:
                return None
            if self._commit_at(until, _event_with(message_events.POPPED, at=newest[0].revision)):
                return newest[0]
        raise self._contended("pop")

    def clear(self) -> None:
        """Deletes all messages; `at` and earlier forks still read them."""
        self._commit_events((_event_with(message_events.CLEARED, to=0),))

    def rewind(self, to: Message | Moment) -> None:
        """Deletes every message after a given one, or after a moment; the state is unchanged."""
        refuse_in_body("rewinding messages")
        revision = to.revision if isinstance(to, Message) else self._scope.life.revision_at(to)
        if not 0 <= revision <= self._scope.revision:
            raise NotFoundError(f'scope "{self.name}" has no revision {revision}')
        began = self._log.life(self.name)
        if 0 < revision < began:
            raise NotFoundError(
                f'revision {revision} of scope "{self.name}" is of an earlier life, which was '
                f"removed at revision {began}",
                hint=f"messages.at({revision}) reads it",
            )
        # If the scope is removed meanwhile, this rewind must fail: going back past the removal
        # would bring back messages of the earlier life.
        follows = max(revision, began + 1) if revision else 0
        self._commit_about((_event_with(message_events.REWOUND, to=revision),), follows)

    def _commit_events(
        self, new_events: tuple[NewEvent, ...], *, marks: tuple[Mark | Cleared, ...] = ()
    ) -> CommitResult:
        """Commits events of the conversation."""
        write = scope_stream(self._scope).write(new_events)
        return self._log.commit(ProposedCommit((write,), marks=marks))

    def _commit_about(self, new_events: tuple[NewEvent, ...], follows: int) -> CommitResult:
        """Commits events that name revisions, which in a joint commit may be still to come."""
        expected = self._log.pinned(self.name)
        write = scope_stream(self._scope).write(new_events, expected=expected)
        write = replace(write, follows=follows)
        return self._log.commit(ProposedCommit((write,)))

    def _commit_at(self, until: int, *new_events: NewEvent) -> CommitResult | None:
        """Commits if the stream is still at a revision; returns None if it has moved on."""
        write = scope_stream(self._scope).write(new_events, expected=until)
        try:
            return self._log.commit(ProposedCommit((write,)))
        except ConflictError:
            _logger.debug('scope "%s" moved on from revision %d', self.name, until)
            return None

    def _contended(self, what: str) -> ConflictError:
        revision = self._scope.revision
        return ConflictError(
            f'scope "{self.name}" changed {RETRIES} times during {what}: nothing was written',
            stream=self.name,
            expected=revision,
            actual=revision,
        )

    def _target(self, message: Message | str) -> Message:
        """Returns the current form of a message, or raises NotFoundError."""
        if not isinstance(message, Message):
            return self.get(message)
        scan = self._scan()
        with scan.mutex:
            found = scan.before(scan.place(message._record) + 1, 1)
            if not found or found[0].revision != message.revision:
                raise NotFoundError(
                    f'message {message.revision} of "{self.name}" is not there: it was deleted, '
                    "rewound, or belongs to another conversation"
                )
            return self._message(scan, found[0])

    def _sealed(self, seal: Seal, raw: bytes) -> bytes:
        op = self._log.blobs.sealed(Op("set", "message", Raw(raw)), self.name, seal)
        return bytes(op.value)

    def _moved_sealed(self, message: Message, subject: str) -> bytes:
        """Returns the payload of a subject's message that is written again elsewhere.

        The sealed content is copied without opening it. Only an edited message is opened, and
        sealed again in its current form.
        """
        fields: dict[str, Any] = codec.decode_as(message._record.payload, dict[str, Raw])
        fields = {name: codec.decode(raw) for name, raw in fields.items() if name != "sealed"} | {
            "sealed": codec.SealedLeaf(bytes(fields["sealed"]))
        }
        if message.is_edited:
            with suppress(ErasedError):
                seal = self._log.sealing.of(subject)
                fields = seal_fields(message.fields, partial(self._sealed, seal))
        said_at = fields.get("said_at", message._record.time)
        return encode({**fields, "said_at": said_at}, self._spill)

    def _spill(self, raw: bytes) -> bytes:
        op = self._log.blobs.spill(Op("set", "message", Raw(raw)), self.name)
        return bytes(op.value)

    # --- summaries -------------------------------------------------------------------------------

    def compact(
        self,
        summary: str,
        *,
        keep_last: int = 0,
        role: str = "system",
        tokens_before: int | None = None,
        tokens_after: int | None = None,
    ) -> Message:
        """Replaces all messages but the last `keep_last` by a summary, and returns the summary.

        `original()` still has all of them. Token counts that are not given are estimated.
        """
        refuse_in_body("compacting messages")
        fields = check_fields({"role": role, "content": summary})
        fields = {"id": make_id(self._log.clock, fields), **fields}
        raw = encode(fields, self._spill)
        check_whole(keep_last, "keep_last")
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                kept = scan.last(keep_last + 1)
                if len(kept) <= keep_last:
                    raise UsageError(
                        f'scope "{self.name}" has {len(kept)} messages: with {keep_last} of them '
                        "kept there is nothing to compact"
                    )
                through, until = scan.place(kept[0]), scan.until
                before = _count(tokens_before, "tokens_before") or _estimate(scan.all())
            after = _count(tokens_after, "tokens_after")
            data = {
                "through": through,
                "summary": Raw(raw),
                "tokens_before": before,
                "tokens_after": after or _estimate(kept[1:]) + len(raw) // BYTES_PER_TOKEN,
            }
            meta = self._log.typed.item_meta("message", self.name)
            compacted = NewEvent(message_events.COMPACTED, codec.encode_plain(data), meta=meta)
            if self._commit_at(until, compacted):
                return self._standing_summary()
        raise self._contended("compact")

    def _standing_summary(self) -> Message:
        scan = self._scan()
        with scan.mutex:
            scan.finish()
            assert scan.summary is not None, "BUG: compacted without a summary"
            return self._message(scan, scan.summary)

    def summarise(
        self,
        text: str,
        *,
        through: Message | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
    ) -> None:
        """Records a summary of everything up to a message, by default the newest.

        Unlike `compact` it replaces nothing: `summaries()` lists it.
        """
        refuse_in_body("a summary of messages")
        if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a summary is text, found {show_value(text)}")
        newest = self.last(1)
        if through is None and not newest:
            raise UsageError(f'scope "{self.name}" has no messages: there is nothing to summarise')
        at = (newest[0] if through is None else self._target(through))._record
        scan = self._scan()
        with scan.mutex:
            counted = _count(tokens_before, "tokens_before")
            before = counted or _estimate(scan.before(scan.place(at) + 1, 1 << 40))
        after = _count(tokens_after, "tokens_after")
        data = {
            "through": at.revision,
            "text": text,
            "tokens_before": before,
            "tokens_after": after or len(text.encode(errors="replace")) // BYTES_PER_TOKEN,
        }
        self._commit_about((NewEvent(message_events.SUMMARISED, codec.encode(data)),), at.revision)

    # --- merging ---------------------------------------------------------------------------------

    def merge(self, other: Scope | History) -> list[Message]:
        """Merges the messages of another conversation into this one by time; returns the new ones.

        Each side keeps its order. A message that both have, by foreign id or by id, keeps the form
        it has here. The merge is one commit: it goes back to the message before the first new one,
        and writes all later messages of both sides again.
        """
        refuse_in_body("a merge of messages")
        theirs = other if isinstance(other, History) else _history_of(other)
        known: set[str] = set()
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                mine = self._messages(scan, scan.all())
                until = scan.until
            merged, new = merged_order(mine, list(theirs))
            if not new:
                return []
            if not self._log.record_keys and self._reserve_keys(new, known):
                continue  # reserving the keys moved the stream on
            stays = next(at for at, one in enumerate(merged) if one in new)
            to = merged[stays - 1].revision if stays else 0
            origin = {"to": to, "from": theirs.name, "until": theirs.revision}
            begun = NewEvent(message_events.MERGED, codec.encode_plain(origin))
            again = [self._moved_here(one, is_new=one in new) for one in merged[stays:]]
            if self._commit_at(until, begun, *again):
                return new
        raise self._contended("merge")

    def _moved_here(self, message: Message, *, is_new: bool) -> NewEvent:
        """Returns the event that writes a message here; a new foreign item gets its key (26).

        A key that was used before belongs to an item that was deleted, and cannot be used again.
        If that item is sent again, `_moved` finds the copy that is written here.
        """
        version = version_of(message._record.meta)  # it stays as it was written
        meta = encode_meta(Meta(schema=version)) if version else None
        of = message.subject
        if of is None:
            payload = encode(moved_fields(message), self._spill)
        else:
            payload = self._moved_sealed(message, of)
        moved = NewEvent(message_events.ADDED, payload, meta=meta)
        key = self._key_of(message) if is_new and self._log.record_keys else None
        if key is None:
            return moved
        return moved if self._log.find(self.name, key=key) else replace(moved, key=key)

    def _reserve_keys(self, new: list[Message], known: set[str]) -> bool:
        """Reserves the keys of foreign items that are about to be merged; False if there are none.

        For backends that take one key in a commit, so that the keys of several items cannot be in
        the commit that adds them. They are written before it. A crash between the two leaves keys
        without items, which read as deleted items and may be added again. In the other order a
        crash would leave items that cannot be found by their key and would be added a second time.
        So would another writer who comes between the items and their keys.
        """
        commits: list[ProposedCommit] = []
        for one in new:
            key = self._key_of(one)
            if key is not None and key not in known:
                known.add(key)
                # The foreign id of a subject's item is not stored in clear, only its keyed digest.
                said = {"foreign_id": one.foreign_id}
                if one.subject is not None:
                    said = {"foreign_id": key, "key": key}
                new_event = NewEvent(message_events.MOVED, codec.encode(said))
                write = scope_stream(self._scope).write((new_event,), key=key)
                commits.append(ProposedCommit((write,)))
        for request in self._log.submit_all(commits):
            try:
                self._log.wait(request)
            except UsageError:
                _logger.debug('a foreign id was used in "%s" before: its key is taken', self.name)
        return bool(commits)


def known_by(foreign_id: str, seal: Seal | None, again: int = 0) -> str:
    """Returns the idempotency key of a foreign item: a keyed digest if it is a subject's."""
    key = foreign_id_key(foreign_id, again)
    return key if seal is None else seal.digest("key", key)


def _history_of(other: object) -> History:
    messages = getattr(other, "messages", None)
    if not isinstance(messages, History):
        raise UsageError(f"merge takes a conversation or its messages, found {show_value(other)}")
    return messages


def _event_with(type: str, **revisions: int) -> NewEvent:
    return NewEvent(type, codec.encode_plain(revisions))


def _count(tokens: int | None, what: str) -> int | None:
    return None if tokens is None else check_whole(tokens, what)


def _estimate(records: list[Record]) -> int:
    return sum(len(record.payload) for record in records) // BYTES_PER_TOKEN


def _is_same(there: Message, given: dict[str, Any]) -> bool:
    """Returns whether a message has the same content as what is given now.

    Id, turn and `said_at` are compared only if they are given: id and turn differ between attempts,
    and a merge adds `said_at`. A key that a merge reserved matches any item with that foreign id.
    """
    if there._record.type == message_events.MOVED:
        return True
    own = {"id", "turn", "said_at"} - given.keys()
    fields = {name: value for name, value in there.fields.items() if name not in own}
    return codec.encode_sorted(fields) == codec.encode_sorted(given)


def _listed(items: object) -> list[Any]:
    if isinstance(items, list):
        return cast("list[Any]", items)
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        found = show_value(cast("object", items))
        raise UsageError(f"messages are given as a list of mappings, found {found}")
    return list(cast("Iterable[Any]", items))


def _check_item(item: object) -> dict[str, Any]:
    if not isinstance(item, (dict, Mapping)):  # nearly always a dict, which is the quick check
        raise UsageError(f"a message is a mapping with a role, found {show_value(item)}")
    return dict(cast("Mapping[str, Any]", item))


def _chunks(first: int, count: int) -> list[tuple[int, int]]:
    return [(at, min(at + CHUNK, count)) for at in range(first, count, CHUNK)]


def _import_time(item: _ForeignToAdd) -> int:
    if item.key is None:
        raise UsageError(
            "an item that is imported has a foreign_id, by which it is known if it is sent again",
            hint="its number in what is imported will do",
        )
    return check_import_time(item.given.get("said_at"))


def _check_turn(turn: object, messages: Messages) -> OpenTurn:
    if not isinstance(turn, OpenTurn) or turn.name != messages.name:
        raise UsageError(
            "a turn is what chat.messages.turn() of the same conversation returns, "
            f"found {show_value(turn)}"
        )
    return turn
