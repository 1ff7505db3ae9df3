"""Selects the messages of a conversation for a context, by strategies that may be combined.

    full       every message, as far back as there is room
    window     the newest messages
    summary    the newest summary, in place of the messages that it replaces
    entity     those that mention one of the names
    retrieval  those most related to the task, however old

`summary`, `entity` and `retrieval` ask the index of the store; the others read backwards from the
newest message. A message that the index finds is read by its revision, so that a conversation of a
million messages is not read for ten of them. The event at that revision has the original text, so
an edited message is read by a scan instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log
from typing import Any, cast, get_args

from holdfast.context.parts import PromptPart, Strategy, item
from holdfast.core import codec, event
from holdfast.errors import UsageError, show_value
from holdfast.query.documents import message_now
from holdfast.query.form import Hits
from holdfast.query.words import split_words
from holdfast.record import keyed_item, message_events
from holdfast.record.context import RecordContext
from holdfast.record.message_events import Message
from holdfast.record.messages import shown_lines
from holdfast.scope import Scope

Ask = Callable[..., Hits]
"""The questions of a store."""
STRATEGIES: tuple[str, ...] = get_args(Strategy)
WEIGHTS: dict[str, int] = {"full": 6, "window": 6, "summary": 2, "entity": 3, "retrieval": 3}
"""How the room for messages is divided among strategies; unused room goes to the others."""
WINDOW = 20
FOUND_MAX = 50
PAGE = 1_000
READ_MAX = 20
"""How many of the messages found by their words are read, the best first."""
WORDS_MAX = 6
WORD_CHARACTERS_MIN = 4
EDITS_MAX = 200
MESSAGE_CHARACTERS_MAX = 4_000
_REWINDS = (
    message_events.CLEARED,
    message_events.REWOUND,
    message_events.MERGED,
    event.RESTORED,
)


def check_strategies(given: object) -> tuple[str, ...]:
    """Returns strategies, each once, or raises UsageError."""
    is_list = isinstance(given, list | tuple)
    listed = list(cast("Sequence[Any]", given)) if is_list else [given]
    if not listed or any(name not in STRATEGIES for name in listed):
        raise UsageError(
            f"strategies are some of {', '.join(STRATEGIES)}, found {show_value(listed)}"
        )
    return tuple(dict.fromkeys(cast("Sequence[str]", listed)))


class Conversation:
    """The messages of one scope, for one context."""

    def __init__(self, context: RecordContext, scope: Scope, ask: Ask) -> None:
        self._context = context
        self._scope = scope
        self._log = context.log
        self._ask = ask
        self._edited: set[int] | None = None
        self._are_edits_many = False
        self.has_older = False
        """Whether there are messages before the window."""
        self.newest: list[Message] = []
        self.unread: set[int] = set()
        """The revisions of messages that were found, but were not among the best."""

    def read(self, window: int, *, full: bool) -> None:
        """Reads the messages of the window, or all messages."""
        messages = self._scope.messages
        found = list(messages) if full else messages.last(window + 1)
        self.has_older = not full and len(found) > window
        self.newest = found if full else found[max(len(found) - window, 0) :] if window else []

    def window(self) -> Iterator[PromptPart]:
        """Yields the messages that were read, newest first."""
        for message in reversed(self.newest):
            yield message_part(self._scope.name, message)

    def _first(self) -> int:
        """Returns the revision at which the window begins."""
        return self.newest[0].revision if self.newest else 1 << 62

    # --- by the index ----------------------------------------------------------------------------

    def about(self, names: Sequence[str]) -> Iterator[PromptPart]:
        """Yields messages before the window that mention one of the names, best first."""
        terms = [" ".join(split_words(name)) for name in names]
        yield from self._found([f'"{term}"' for term in terms if term])

    def relevant(self, text: str) -> Iterator[PromptPart]:
        """Yields messages before the window that share words with a text, best first.

        A rare word counts more than a common one. Of equal messages, the newest is first.
        """
        yield from self._found(words_of(text))

    def _found(self, terms: Sequence[str]) -> Iterator[PromptPart]:
        first, scores = self._first(), dict[int, float]()
        for term in terms:
            found = self._ask(kind="message", scope=self._scope.name, text=term, limit=FOUND_MAX)
            weight = 1 / log(2 + len(found))
            for hit in found:
                if hit.revision < first:
                    scores[hit.revision] = scores.get(hit.revision, 0.0) + weight
        best = sorted(scores, key=lambda one: (-scores[one], -one))
        self.unread.update(best[READ_MAX:])
        for revision in best[:READ_MAX]:
            message = self._message(revision)
            if message is not None:
                yield message_part(self._scope.name, message, kind="older")

    def _message(self, revision: int) -> Message | None:
        """Returns a message that the index found, with its edits; None if it is gone since."""
        if self._edited is None:
            self._look_for_edits()
        if self._are_edits_many or revision in (self._edited or ()):
            return message_now(self._context, self._scope.name, revision)
        record = self._log.record(self._scope.name, revision)
        return Message(record, self._log.blobs.read)

    def _look_for_edits(self) -> None:
        """Notes which messages have edits; a scan then finds out which edits count."""
        self._edited = set()
        for stream, _ in keyed_item.lineage(self._log, self._scope.name):
            edits = self._ask(kind="log", type=message_events.EDITED, scope=stream, limit=EDITS_MAX)
            self._are_edits_many |= edits.more
            for edit in edits:
                record = self._log.record(stream, edit.revision)
                self._edited.add(_at(codec.decode(record.payload)))

    # --- summaries -------------------------------------------------------------------------------

    def summary(self) -> Iterator[PromptPart]:
        """Yields the newest summary of the conversation, if one still counts."""
        if any(message.is_summary for message in self.newest):
            return  # the window already has it
        newest = self._newest_of((message_events.SUMMARISED, message_events.COMPACTED))
        if newest is None:
            return
        if self._newest_of(_REWINDS, after=newest[1]) is not None:
            for summary in self._scope.messages.summaries()[-1:]:
                yield _summary_part(self._scope.name, summary.text)
            return
        record = self._log.record(*newest)
        if record.type == message_events.COMPACTED:
            text = Message(record, self._log.blobs.read).text
        else:
            text = str(codec.decode(record.payload)["text"])
        yield _summary_part(self._scope.name, text)

    def _newest_of(self, types: tuple[str, ...], *, after: int = 0) -> tuple[str, int] | None:
        """Returns stream and revision of the newest event of some types, inherited or not.

        Newest is the highest revision: the index answers by time, and a clock may go back. All
        pages are read: those of an origin may begin with any number of events after the fork.
        """
        least = max(self._log.life(self._scope.name), after)
        for stream, until in keyed_item.lineage(self._log, self._scope.name):
            newest, cursor = least, None
            while True:
                page = self._ask(kind="log", type=types, scope=stream, limit=PAGE, after=cursor)
                counted = (one.revision for one in page if until is None or one.revision <= until)
                newest, cursor = max(newest, *counted, 0), page.cursor
                if not page.more:
                    break
            if newest > least:
                return stream, newest
        return None


def words_of(text: str) -> list[str]:
    """Returns the longest words of a text, which usually say most; of equals the first."""
    words = dict.fromkeys(split_words(text))
    chosen = [word for word in words if len(word) >= WORD_CHARACTERS_MIN or not word.isascii()]
    return sorted(chosen, key=len, reverse=True)[:WORDS_MAX]


def message_part(scope: str, message: Message, kind: Any = "message") -> PromptPart:
    """Returns the part of a message; a very long text is cut, with a reference to the rest."""
    text = message.text if message.is_summary else "\n".join(shown_lines(message))
    if len(text) > MESSAGE_CHARACTERS_MAX:
        more = f"{len(text) - MESSAGE_CHARACTERS_MAX} more characters"
        text = f"{text[:MESSAGE_CHARACTERS_MAX]}… ({more}: {scope}@{message.revision})"
    return PromptPart(
        kind="summary" if message.is_summary else kind,
        id=f"message:{scope}@{message.revision}",
        text=item(text),
        order=(message.revision,),
        scope=scope,
        message=None if message.is_summary else message,
    )


def _summary_part(scope: str, text: str) -> PromptPart:
    return PromptPart(kind="summary", id=f"summary:{scope}", text=item(text), scope=scope)


def changed_files(messages: Iterable[Message], scope: str) -> Iterator[PromptPart]:
    """Yields the files that messages changed, by name, with the newest digest, not the content."""
    newest: dict[str, str | None] = {}
    for message in messages:
        for change in message.files:
            newest[change.path] = change.after
    for path in sorted(newest):
        digest = newest[path]
        state = "deleted" if digest is None else f"sha256 {digest[:12]}"
        yield PromptPart(
            kind="file",
            id=f"file:{path}",
            text=item(f"{path} ({state})"),
            order=(path,),
            scope=scope,
        )


def _at(data: Any) -> int:
    return int(data["at"])
