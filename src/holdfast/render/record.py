"""Documents of the record: messages, tasks, decisions, facts, and what recovery did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from holdfast.core.event import Event
from holdfast.core.intent import Recovery
from holdfast.core.own_event import OwnEvent
from holdfast.core.page import Page
from holdfast.record.catches import Catch
from holdfast.record.context import Stale
from holdfast.record.decisions import Decision
from holdfast.record.facts import Fact
from holdfast.record.message_events import Message
from holdfast.record.messages import MessagePage
from holdfast.record.task_events import Task
from holdfast.render.text import encode_value, page_document, time_text


def trust_document(
    path: str, commands: dict[str, list[str]], *, is_trusted: bool
) -> dict[str, Any]:
    """Returns a configuration file, the commands that it names, and whether they may be run."""
    return {"path": path, "trusted": is_trusted, "commands": commands}


def trusted_document(found: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the configuration files that are trusted."""
    return {"trusted": [{"path": path, "state": state} for path, state in found]}


def own_event_document(event: OwnEvent) -> dict[str, Any]:
    """Returns an own event, with its data as stored; null if the data was let go of."""
    is_there = not event.is_let_go
    return {
        "scope": event.stream,
        "revision": event.revision,
        "position": int(event.position),
        "time": time_text(event.time),
        "type": event.type,
        "actor": event.actor,
        "key": event.key,
        "version": event.version if is_there else None,
        "data": encode_value(event.raw) if is_there else None,
        "refs": list(event.refs) if is_there else [],
        **({} if is_there else {"let_go": True}),
    }


def own_events_document(scope: str | None, events: Page[Event]) -> dict[str, Any]:
    """Returns a page of own events, newest first; its cursor leads to the next page."""
    documents = [own_event_document(event) for event in events if isinstance(event, OwnEvent)]
    return {"scope": scope, "events": documents, **page_document(events)}


def projected_document(
    name: str, over: str, state: Any, events: int, differences: int | None
) -> dict[str, Any]:
    """Returns the state of a projection, and in how many places a replay differed, if asked."""
    return {
        "projection": name,
        "over": over,
        "events": events,
        "differences": differences,
        "state": encode_value(state),
    }


def message_document(message: Message) -> dict[str, Any]:
    """Returns a message."""
    return {
        "id": message.id,
        "revision": message.revision,
        "time": time_text(message.time),
        "actor": message.actor,
        "source": message.source,
        "trust": message.trust,
        "role": message.role,
        "text": encode_value(message.text),
        "edited": message.is_edited,
        "summary": message.is_summary,
        "fields": encode_value(message.fields),
    }


def added_message_document(scope: str, message: Message) -> dict[str, Any]:
    """Returns what names a message that was just added."""
    return {"scope": scope, "revision": message.revision, "id": message.id}


def messages_document(scope: str, page: MessagePage) -> dict[str, Any]:
    """Returns a page of messages, and the cursors of the pages before and after it."""
    return {
        "scope": scope,
        "messages": [message_document(message) for message in page.messages],
        "older": page.older,
        "newer": page.newer,
    }


def task_document(task: Task) -> dict[str, Any]:
    """Returns a task with its history."""
    document = asdict(task)
    for name in ("order", "held_at"):
        del document[name]
    _write_times(
        document,
        ("created_at", "started_at", "completed_at", "updated_at", "until", "heartbeat"),
    )
    document["history"] = [{**asdict(state), "at": time_text(state.at)} for state in task.history]
    return document


def one_task_document(scope: str, task: Task | None) -> dict[str, Any]:
    """Returns the task that a verb was about; None if there was none to claim."""
    return {"scope": scope, "task": None if task is None else task_document(task)}


def tasks_document(scope: str | None, tasks: Page[Task]) -> dict[str, Any]:
    """Returns a page of tasks; `scope` is None if it is about every scope."""
    documents = [task_document(task) for task in tasks]
    return {"scope": scope, "tasks": documents, **page_document(tasks)}


def decision_document(decision: Decision) -> dict[str, Any]:
    """Returns a decision."""
    document = asdict(decision)
    _write_times(document, ("timestamp", "completed_at", "updated_at"))
    document["links"] = [str(link) for link in decision.links]
    document["output"] = encode_value(decision.output)
    document["arguments"] = encode_value(decision.arguments)
    document["more"] = encode_value(decision.more)
    if not decision.version:
        del document["version"]  # only a program with a schema for decisions has them
    return document


def decisions_document(
    scope: str | None, decisions: Page[Decision], *, incomplete: bool
) -> dict[str, Any]:
    """Returns a page of decisions; `incomplete` if it holds open ones only."""
    documents = [decision_document(decision) for decision in decisions]
    page = page_document(decisions)
    return {"scope": scope, "incomplete": incomplete, "decisions": documents, **page}


def recovery_document(report: Recovery) -> dict[str, Any]:
    """Returns what recovery found out about each act, and what it did."""
    return {"acts": [asdict(act) for act in report.acts]}


def fact_document(fact: Fact) -> dict[str, Any]:
    """Returns a fact."""
    document = asdict(fact)
    _write_times(
        document, ("stated_at", "updated_at", "valid_until", "verified_at", "contradicted_at")
    )
    return {**document, "value": encode_value(fact.value), "found": encode_value(fact.found)}


def facts_document(scope: str, facts: Sequence[Fact]) -> dict[str, Any]:
    """Returns the facts of a scope."""
    return {"scope": scope, "facts": [fact_document(fact) for fact in facts]}


def withdrawn_fact_document(scope: str, name: str) -> dict[str, Any]:
    """Returns that a fact was withdrawn."""
    return {"scope": scope, "name": name, "withdrawn": True}


def stale_document(found: Sequence[Stale]) -> dict[str, Any]:
    """Returns a list of what is stale."""
    return {"stale": [{**asdict(one), "since": time_text(one.since)} for one in found]}


def _write_times(document: dict[str, Any], names: Sequence[str]) -> None:
    """Replaces each of the named times by its text; None stays."""
    for name in names:
        document[name] = None if document[name] is None else time_text(document[name])


def catch_document(one: Catch) -> dict[str, Any]:
    """Returns what a control has caught."""
    return {**asdict(one), "time": time_text(one.time)}


def catches_document(found: Sequence[Catch], page: Page[Catch] | None) -> dict[str, Any]:
    """Returns what was caught; the cursor of a page, if it is one, leads to the next."""
    documents = [catch_document(one) for one in found]
    return {"catches": documents, **({} if page is None else page_document(page))}
