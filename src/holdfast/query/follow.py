"""Finds the documents that new events change: most events change one, some change a whole scope.

An added message, an opened decision, a changed task, fact or key each touch one document. After an
event that changes many (a fork, a removal, a restore, a rewind, a close), all documents of the
scope are made again. Documents are made from the scope as it is now, which may be later than the
events of the batch. That is right in the end: what changed since, changed by a later event, and a
question waits until the index has followed up to its position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from holdfast.backends.protocol import GONE, Record
from holdfast.core import codec, event
from holdfast.core.event import Event
from holdfast.core.layers import reserved_prefixes
from holdfast.core.own_event import OWN
from holdfast.errors import ExpiredError
from holdfast.query import documents
from holdfast.query.documents import Document
from holdfast.record import decisions, message_events, task_events
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decision, Decisions
from holdfast.record.message_events import Message

_logger = logging.getLogger("holdfast.query")
_WHOLE = frozenset((
    event.FORKED, event.CLOSED, event.REMOVED, message_events.CLEARED, message_events.REWOUND,
    message_events.MERGED, task_events.RESTORED, task_events.ENDED,
))  # fmt: skip
_GONE = frozenset((message_events.DELETED, message_events.POPPED))
_OF_A_RUN = frozenset((
    "run.created", "run.claimed", "run.diverged", "run.adopted", "run.suspended", "run.cancelling",
    "run.ended", "run.forked", event.REMOVED, event.FORKED,
))  # fmt: skip


class _At(Struct):
    at: int


class _Restored(Struct):
    undo: bool = False
    undoes: int = 0


class Changes(Struct):
    """The changes that a batch of events makes to an index."""

    logged: list[Document]
    puts: dict[tuple[str, str, str], Document | None]
    """By kind, scope and key: the current document, or None if it is gone."""
    whole: dict[str, list[Document]]
    """By scope: all its documents, which replace those in the index."""
    origins: dict[str, str]
    """By new fork: the stream that it was forked from."""
    expiring: dict[str, int]
    copied: dict[str, Decision]
    """Changed decisions by id. Forks that inherited one have a document of it too."""


def key_of(document: Document) -> str:
    """Returns the key of a document, unique for its kind and scope.

    Messages and events use the revision, because ids of messages come from other programs and may
    occur twice.
    """
    return str(document.revision) if document.kind in ("message", "event") else document.id


class Batch:
    """Events in the order of the log, and the documents that they touch."""

    def __init__(self, context: RecordContext, forks_of: Callable[[str], Iterable[str]]) -> None:
        self._context = context
        self._log = context.log
        self._forks_of = forks_of
        self._reserved = reserved_prefixes()
        self._whole: set[str] = set()
        self._changed: dict[str, Record] = {}
        self._decided: dict[tuple[str, str], Decision | None] = {}
        self._tasks: dict[str, set[str]] = {}
        self._facts: set[tuple[str, str]] = set()
        self._runs: set[str] = set()
        self._edited: set[tuple[str, int]] = set()
        self._changes = Changes([], {}, {}, {}, {}, {})

    def changes(self, records: Sequence[Record]) -> Changes:
        """Returns the changes that the events make."""
        is_split = self._log.routes.is_split
        for record in records:
            position = 0 if is_split else int(record.position)
            self._changes.logged.append(documents.log_document(record, position))
            lifetime = self._log.expiry.known_lifetime(record.stream)
            if lifetime.expires_us and (record.revision == 1 or lifetime.slides_us):
                self._changes.expiring[record.stream] = lifetime.end(record.time)
            if record.type == event.FORKED:
                self._changes.origins[record.stream] = event.origin_of(record)[0]
            if record.subject is not None:
                continue  # sealed data in an index would be a copy in clear
            if record.stream.startswith("run/"):
                if record.type in _OF_A_RUN:
                    self._runs.add(record.stream)
            elif record.stream.partition("/")[0] not in self._reserved:
                self._note(record)
        self._put_all()
        return self._changes

    def _note(self, record: Record) -> None:
        stream, type = record.stream, record.type
        if record.payload == GONE:
            return  # let go of: the later event that ended the scope replaces all its documents
        if type == event.CHANGED:
            self._changed[stream] = record
        elif type == message_events.ADDED:
            message = Message(record, self._log.blobs.read)
            self._put(documents.message_document(stream, message))
        elif type.startswith(OWN):
            self._put(documents.event_document(self._context, stream, record))
        elif type in _WHOLE or decisions.is_old(type):
            self._note_whole(record)
        elif type == event.RESTORED:
            restored = codec.decode_as(record.payload, _Restored)
            if restored.undo and not restored.undoes:
                self._changed[stream] = record
            else:
                self._note_whole(record)
        elif type == message_events.EDITED:
            self._edited.add((stream, codec.decode_as(record.payload, _At).at))
        elif type in _GONE:
            at = codec.decode_as(record.payload, _At).at
            self._edited.discard((stream, at))
            self._changes.puts["message", stream, str(at)] = None
        elif decisions.is_of_decision(type):
            self._note_decision(record)
        elif type.startswith(task_events.PREFIX):
            self._tasks.setdefault(stream, set()).add(str(Event(record).data["id"]))
        elif type.startswith("fact."):
            self._facts.add((stream, str(Event(record).data["name"])))

    def _note_whole(self, record: Record) -> None:
        """Notes that all documents of a scope must be made again.

        A decision that a fork inherited while it was open is shown as it is in its original scope.
        So if that scope is removed or restored, the documents of its forks change too.
        """
        waiting = [record.stream]
        while waiting:
            stream = waiting.pop()
            self._whole.add(stream)
            if record.type in (event.REMOVED, event.RESTORED):
                made = [fork for fork, of in self._changes.origins.items() if of == stream]
                forks = {*self._forks_of(stream), *made}
                waiting += [one for one in forks if one not in self._whole]

    def _note_decision(self, record: Record) -> None:
        """Folds a decision that was opened in this batch; others are read from the store later."""
        said = Event(record)
        place = record.stream, decisions.key_of(said)
        if record.type == decisions.OPENED:
            self._decided[place] = decisions.fold([said])
        elif (known := self._decided.get(place)) is not None:
            type, data = decisions.upcast(record.type, said.data)
            self._decided[place] = decisions.advance(known, said.time, type, data)
        else:
            self._decided[place] = None

    # --- what was touched ------------------------------------------------------------------------

    def _put(self, document: Document) -> None:
        place = document.kind, document.scope, key_of(document)
        self._changes.puts[place] = document

    def _put_all(self) -> None:
        changes, context = self._changes, self._context
        for kind, stream, key in list(changes.puts):
            if stream in self._whole:
                del changes.puts[kind, stream, key]
        streams = {*self._changed, *self._tasks, *(stream for stream, _ in self._decided)}
        streams |= {stream for stream, _ in self._facts} | {stream for stream, _ in self._edited}
        for stream in streams - self._whole:
            try:
                self._put_touched(stream)
            except ExpiredError:
                _logger.debug('scope "%s" has expired: it is not indexed', stream)
        for stream in (*self._whole, *self._runs):
            try:
                changes.whole[stream] = list(documents.documents_of(context, stream))
            except ExpiredError:
                _logger.debug('scope "%s" has expired: it is not indexed', stream)
                changes.whole[stream] = []

    def _put_touched(self, stream: str) -> None:
        context, puts = self._context, self._changes.puts
        for of, key in self._decided:
            if of == stream:
                id = decisions.make_id(key, stream)
                found = self._decided[of, key] or Decisions(context).newest(id)
                known = None if found is None else documents.decision_document(stream, found)
                puts["decision", stream, id] = known
                if found is not None:
                    self._changes.copied[id] = found
        if stream in self._tasks:
            table = context.tables.of(stream)
            with table.lock:
                table.refresh()
                found = {id: table.tasks.get(id) for id in self._tasks[stream]}
            for id, task in found.items():
                puts["task", stream, id] = task and documents.task_document(stream, task)
        for of, name in self._facts:
            if of == stream:
                puts["fact", stream, name] = documents.fact_document(context, stream, name)
        for of, revision in self._edited:
            if of == stream:
                edited = documents.edited_message(context, stream, revision)
                puts["message", stream, str(revision)] = edited
        if stream in self._changed:
            state = self._log.folded(stream)
            puts["state", stream, stream] = documents.state_document(
                state, stream, self._changed[stream]
            )
