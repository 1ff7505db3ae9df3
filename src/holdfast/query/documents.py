"""Documents: everything that a question can find, derived from events alone.

A scope has documents for what its own lists show: its messages (including compacted ones), its
decisions, tasks and facts, and its state. A fork also has what it inherited. A run has one
document. Each shows its item as it is now, and is gone when that is deleted, rewound, withdrawn, or
removed with the scope. Own events have documents too, which last as long as the life of the scope.
In addition, every event of the log is a document of the kind `log`, which never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from holdfast.backends.protocol import GONE, Record
from holdfast.core import event, tree
from holdfast.core.event import Event, StreamState, from_datetime
from holdfast.core.layers import reserved_prefixes
from holdfast.core.meta import source_and_trust
from holdfast.core.own_event import OWN, OwnEvent
from holdfast.errors import ClosedError, ExpiredError, NotFoundError
from holdfast.query.links import refs_in
from holdfast.query.words import plain, texts_in
from holdfast.record import facts, task_events
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decision, Decisions
from holdfast.record.message_events import Message, said_us
from holdfast.record.task_events import Task
from holdfast.runs import events as run_events
from holdfast.runs.events import Created
from holdfast.runs.journal import Journal

SHOWN_CHARACTERS = 120
RUN = "run"
LOG = "log"


class Document(Struct, frozen=True, kw_only=True):
    """One thing that can be found; its words come from `texts`."""

    kind: str
    scope: str
    id: str
    time: int
    actor: str = ""
    type: str = ""
    status: str = ""
    revision: int = 0
    tags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    source: str = ""
    trust: str = ""
    position: int = 0
    """For an event of the log, the position of its commit; 0 in a mix, which has no one order."""

    def __post_init__(self) -> None:
        """Makes every text one that a database can store, whoever wrote it and in which field.

        One document that cannot be stored would stop all questions. The texts themselves are kept
        as they are: only their words are stored, and no word has such a character.
        """
        for name in _TEXTS:
            text = getattr(self, name)
            if not text.isascii() or "\0" in text:
                force_setattr(self, name, plain(text))
        for name in ("tags", "links"):
            if listed := getattr(self, name):
                force_setattr(self, name, tuple(dict.fromkeys(map(plain, listed))))

    @property
    def shown(self) -> str:
        return plain(next(iter(self.texts), "")[:SHOWN_CHARACTERS])


_TEXTS = ("kind", "scope", "id", "actor", "type", "status", "source", "trust")


def is_of_scope(stream: str) -> bool:
    """Returns whether a stream is a scope's, not one that only a layer writes."""
    return stream.partition("/")[0] not in reserved_prefixes()


def log_document(record: Record, position: int = 0) -> Document:
    """Returns the document of an event in the log: who did what when, without its data."""
    return Document(
        kind=LOG,
        scope=record.stream,
        id=f"{record.stream}@{record.revision}",
        time=record.time,
        actor=record.actor,
        type=record.type.removeprefix(OWN),
        revision=record.revision,
        position=position,
        **_said(*source_and_trust(record.meta)),
    )


def event_document(context: RecordContext, stream: str, record: Record) -> Document:
    """Returns the document of an own event, in a scope or in a fork that inherited it."""
    own = OwnEvent(record, context.log.blobs.read)
    data = own.raw
    said = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return Document(
        kind="event",
        scope=stream,
        id=f"{record.stream}@{record.revision}",
        time=record.time,
        actor=record.actor,
        type=own.type,
        revision=record.revision,
        tags=_tags(said),
        links=_names(own.refs),
        texts=tuple(texts_in(data)),
        **_said(own.source, own.trust),
    )


def _said(source: str | None, trust: str | None) -> dict[str, Any]:
    """Returns the fields of a document for the source and trust that the writer gave."""
    if source is None and trust is None:
        return {}
    return {"source": source or "", "trust": trust or ""}


def _names(value: Any) -> tuple[str, ...]:
    """Returns the texts in a list, in order."""
    listed = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return tuple(one for one in listed if isinstance(one, str) and one)


def _tags(said: dict[str, Any]) -> tuple[str, ...]:
    return _names(said.get("tags"))


def message_document(stream: str, message: Message) -> Document:
    """Returns the document of a message with its edits; it links to the files it changed."""
    files = [f"file:{change.path}" for change in message.files]
    return Document(
        kind="message",
        scope=stream,
        id=message.id,
        time=said_us(message),
        actor=message.actor,
        type=message.role,
        revision=message.revision,
        tags=_tags(message.metadata),
        links=_names([*message.links, *files]),
        texts=(message.text,) if message.text else (),
        **_said(message.source, message.trust),
    )


def decision_document(stream: str, decision: Decision) -> Document:
    """Returns the document of a decision, in its scope or in a fork that inherited it."""
    links = [str(link) for link in decision.links]
    if decision.supersedes is not None:
        links.append(f"decision:{decision.supersedes}")
    said = (decision.decision, decision.rationale, decision.planned_action, decision.outcome)
    return Document(
        kind="decision",
        scope=stream,
        id=decision.id,
        time=from_datetime(decision.timestamp),
        actor=decision.actor,
        status=decision.status,
        revision=decision.revision,
        links=tuple(links),
        texts=tuple(text for text in (*said, *decision.alternatives) if text),
        **_said(decision.source, decision.trust),
    )


def task_document(stream: str, task: Task) -> Document:
    """Returns the document of a task, which links to its dependencies."""
    said = (task.title, task.note, task.outcome, task.why, task.epic)
    return Document(
        kind="task",
        scope=stream,
        id=task.id,
        time=from_datetime(task.created_at),
        actor=task.created_by,
        status=task.status,
        tags=_names(task.tags),
        links=tuple(f"task:{one}" for one in task.dependencies),
        texts=tuple(text for text in said if text),
        **_said(task.source, task.trust),
    )


def fact_document(context: RecordContext, stream: str, name: str) -> Document | None:
    """Returns the document of a scope's current fact; None if it was withdrawn."""
    records = facts.current_records(context, stream, name)
    fact = None if records is None else facts.fold(context, *records)
    if records is None or fact is None:
        return None
    return Document(
        kind="fact",
        scope=stream,
        id=name,
        time=records[0].time,
        actor=records[0].actor,
        status="contradicted" if fact.contradicted_at is not None else "stated",
        texts=(name, *((fact.about,) if fact.about else ()), *texts_in(fact.value)),
        **_said(*source_and_trust(records[0].meta)),
    )


def state_document(state: StreamState, stream: str, changed: Record) -> Document | None:
    """Returns the document of a scope's state, dated by its last change; None if it has none."""
    if state.dropped or not state.root:
        return None
    # A value with an end must not be in the index: the copy there would outlive it (0073).
    kept = tree.lasting(state.root, state.ends)
    return Document(
        kind="state",
        scope=stream,
        id=stream,
        time=changed.time,
        actor=changed.actor,
        status="closed" if state.closed_at else "open",
        revision=changed.revision,
        links=_names(list(refs_in(kept))),
        texts=tuple(texts_in(kept)),
        **_said(*source_and_trust(changed.meta)),
    )


def run_document(context: RecordContext, stream: str) -> Document | None:
    """Returns the document of a run, read from its journal; None if it was removed."""
    journal, first = Journal(), None
    for record in context.log.records(stream):
        kept = run_events.read(record.type, record.payload)
        journal.apply(kept)
        if isinstance(kept, Created):
            first = record
    if journal.created is None or first is None:
        return None
    return Document(
        kind="run",
        scope=stream,
        id=stream.partition("/")[2],
        time=first.time,
        actor=first.actor,
        type=journal.created.name,
        status=journal.status,
        texts=(journal.created.name,),
        **_said(*source_and_trust(first.meta)),
    )


def is_change(record: Record) -> bool:
    """Returns whether an event changed the state of its scope, or restored another state."""
    return record.type in (event.CHANGED, event.RESTORED)


def documents_of(context: RecordContext, stream: str) -> Iterator[Document]:
    """Yields the current documents of a stream except those of the kind `log`; reads all of it.

    Raises ExpiredError if the stream has expired.
    """
    if context.log.subject_of(stream) is not None:
        return  # sealed data is not found by questions over the store
    if stream.startswith(f"{RUN}/"):
        if (run := run_document(context, stream)) is not None:
            yield run
        return
    if not is_of_scope(stream):
        return
    log = context.log
    records = log.records(stream, after=log.life(stream))
    if not records:
        return
    for decision in Decisions(context).all_in(stream):
        yield decision_document(stream, decision)
    for record in records:
        if record.type.startswith(OWN):
            yield event_document(context, stream, record)
    state = log.folded(stream)
    if state.dropped:
        return
    yield from messages_of(context, stream)
    for task in task_events.project(map(Event, records)).values():
        yield task_document(stream, task)
    named = (record for record in records if record.type == facts.STATED)
    for name in dict.fromkeys(str(Event(record).data["name"]) for record in named):
        if (fact := fact_document(context, stream, name)) is not None:
            yield fact
    changed = next((record for record in reversed(records) if is_change(record)), None)
    if changed is not None and (found := state_document(state, stream, changed)) is not None:
        yield found


def messages_of(context: RecordContext, stream: str) -> Iterator[Document]:
    """Yields the messages of a scope, including those that a summary replaces."""
    scan = context.scans.newest(stream, original=True)
    with scan.mutex:
        found = scan.all()
        edits = [scan.edits_of(record) for record in found]
    for record, edited in zip(found, edits, strict=True):
        yield message_document(stream, Message(record, context.log.blobs.read, edited))


def again(
    context: RecordContext, kind: str, stream: str, id: str, revision: int
) -> Document | None:
    """Returns the current form of one document; None if it is gone. Runs and states have none."""
    try:
        if kind == "message":
            return edited_message(context, stream, revision)
        if kind == "decision":
            decision = Decisions(context).as_had_by(stream, id)
            return None if decision is None else decision_document(stream, decision)
        if kind == "task":
            table = context.tables.of(stream)
            with table.lock:
                table.refresh()
                task = table.tasks.get(id)
            return None if task is None else task_document(stream, task)
        if kind == "fact":
            return fact_document(context, stream, id)
        records = context.log.records(stream, after=revision - 1, until=revision)
        is_there = bool(records) and records[0].type.startswith(OWN) and records[0].payload != GONE
        return event_document(context, stream, records[0]) if is_there else None
    except (ClosedError, ExpiredError, NotFoundError):
        return None


def edited_message(context: RecordContext, stream: str, revision: int) -> Document | None:
    """Returns the document of one message with its edits; None if it is gone."""
    message = message_now(context, stream, revision)
    return None if message is None else message_document(stream, message)


def message_now(context: RecordContext, stream: str, revision: int) -> Message | None:
    """Returns the message of a revision with its edits; None if it is gone."""
    scan = context.scans.newest(stream, original=True)
    with scan.mutex:
        found = [one for one in scan.before(revision + 1, 1) if one.revision == revision]
        edits = [scan.edits_of(record) for record in found]
    for record, edited in zip(found, edits, strict=True):
        return Message(record, context.log.blobs.read, edited)
    return None
