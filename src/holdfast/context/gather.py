"""Reads what a scope and the scopes above it have on record, as parts of a context.

Nothing is stored for this. Orders and decisions are those of `scope.decisions.recall()`; facts,
tasks and notes are those of the scopes. Goals and learnings are lists in the state, as the files of
a project show them: `{"goals": {"g1": {"title": "ship it", "status": "open"}}}`. Vocabulary, the
map of files and the roles are under the key `boot` of the state.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from holdfast.context.compact import CompactItem, trimmed, value_text
from holdfast.context.parts import PromptPart, item
from holdfast.core import codec
from holdfast.core.event import from_datetime
from holdfast.core.tree import List, Map
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.record.context import RecordContext
from holdfast.record.decisions import (
    INDEX_OPEN,
    INDEX_STANDING,
    Decision,
    Decisions,
    policy_of,
)
from holdfast.record.facts import Fact
from holdfast.record.messages import name_pattern
from holdfast.record.task_events import CLOSED_STATUSES, INDEX_TASK, Task
from holdfast.scope import Scope, upwards

GOALS = "goals"
LEARNINGS = "learnings"
"""The keys of the state for the lists of goals and learnings."""
KEY = "boot"
"""The key of the state for `vocabulary`, `files` and `roles`."""
ROLE = "role"
"""The kind of link that names the role that an order is for."""
VALUE_CHARACTERS_MAX = 400
MARKS_MAX = 10_000
TITLE_CHARACTERS_MAX = 200
"""An open task is shown with so much of its title, and of why it is blocked."""
HOW = (
    ("holdfast boot SCOPE", "this text for another scope"),
    ("holdfast show {scope}", "the state; `holdfast log {scope}` its history"),
    ("holdfast task list {scope}", "what is to be done; `holdfast task claim` takes one"),
    ("holdfast decide {scope} TEXT --because WHY", "before you act; `holdfast outcome` after it"),
    ("holdfast messages {scope}", "what was said; `holdfast say` adds to it"),
    ("holdfast query --text WORDS", "find anything that was recorded"),
)
"""Commands, and the use of each."""
PERMANENT = (
    "Write each decision down before you act on it (`scope.decide`, `holdfast decide`), and its "
    "outcome after it. What stands only in a conversation is lost with it."
)
"""The order that every role gets, in addition to the standing orders."""
PERMANENT_ID = "policy:decide-first"


class Gathered:
    """Reads one scope and the scopes above it for one context."""

    def __init__(self, context: RecordContext, scope: Scope, role: str | None) -> None:
        self._context = context
        self._scope = scope
        self._scopes = list(upwards(scope))
        self._role = role

    # --- never left out --------------------------------------------------------------------------

    def orders(self, *, permanent: bool) -> Iterator[PromptPart]:
        """Yields the standing orders, the widest scope's first, then the oldest first.

        The order to decide before acting is included with `permanent`, and always if the store has
        a policy.
        """
        if permanent or policy_of(self._context) != "off":
            yield PromptPart(
                kind="order", id=PERMANENT_ID, text=item(PERMANENT), required=True, scope="policy"
            )
        decisions = Decisions(self._context)
        for at, scope in enumerate(reversed(self._scopes), 1):
            for order in decisions.standing([scope.name]):
                roles = [link.to for link in order.links if link.kind == ROLE]
                if self._role is not None and roles and self._role not in roles:
                    continue
                said = _with_reason(order)
                shown = f"({', '.join(roles)}) {said}" if roles and self._role is None else said
                yield _decision_part("order", order, shown, at, required=True)

    def goals(self) -> Iterator[PromptPart]:
        """Yields the goals that are not reached, the widest scope's first."""
        for at, scope in enumerate(reversed(self._scopes)):
            for number, (id, text) in enumerate(listed(scope, GOALS)):
                yield PromptPart(
                    kind="goal",
                    id=f"goal:{id}@{scope.name}",
                    text=item(text),
                    order=(at, number),
                    required=True,
                    scope=scope.name,
                )

    def task(self, task: Task | str) -> PromptPart:
        """Returns the task in hand: a task, one of the scopes' by its id, or free text."""
        if isinstance(task, Task):
            return replace(_task_part("task", task, required=True), text=_whole_task(task))
        for scope in self._scopes:
            try:
                found = scope.tasks.get(task)
            except (NotFoundError, UsageError):
                continue  # not the id of a task here; if of none, it is the text of a task
            return replace(_task_part("task", found, required=True), text=_whole_task(found))
        return PromptPart(kind="task", id="task", text=item(task), required=True)

    # --- by their importance ---------------------------------------------------------------------

    def decisions(self) -> Iterator[PromptPart]:
        """Yields the open decisions, whose acts may be half done, most urgent first."""
        decisions = Decisions(self._context)
        for at, scope in enumerate(self._scopes):
            for entry in decisions.open_in(scope.name):
                said = f"{_with_reason(entry)} ({entry.id})"
                if entry.planned_action:
                    said += f"\nplanned: {entry.planned_action}"
                if entry.error:
                    said += f"\nfailed so far: {entry.error}"
                yield _decision_part("decision", entry, said, -at)

    def decided(self, limit: int) -> Iterator[PromptPart]:
        """Yields the closed ones among the newest decisions of each scope, newest first."""
        decisions = Decisions(self._context)
        for at, scope in enumerate(self._scopes):
            for entry in decisions.recent(scope, limit):
                if entry.status == "closed":
                    said = f"{_with_reason(entry)}\noutcome: {entry.outcome}"
                    yield _decision_part("decided", entry, said, -at)

    def in_progress(self, but: str | None) -> Iterator[PromptPart]:
        """Yields the tasks in progress, without the one in hand."""
        for scope in reversed(self._scopes):
            for task in scope.tasks.list(status="in_progress", limit=None):
                if task.id != but:
                    yield _task_part("progress", task)

    def open_tasks(self, but: str | None) -> Iterator[tuple[str, list[Task]]]:
        """Yields the tasks that wait or are blocked, for each scope that has any, widest first.

        The most urgent come first. The task in hand is not among them.
        """
        for scope in reversed(self._scopes):
            found = scope.tasks.list(status=("open", "blocked"), limit=None)
            if waiting := [task for task in found if task.id != but]:
                yield scope.name, waiting

    def facts(self) -> list[Fact]:
        """Returns the facts that count here; of several with a name, the nearest scope's."""
        found: dict[str, Fact] = {}
        for scope in self._scopes:
            for fact in scope.facts.list():
                found.setdefault(fact.name, fact)
        return sorted(found.values(), key=lambda fact: fact.name)

    def notes(self) -> Iterator[PromptPart]:
        """Yields the learnings, nearest scope first, and the notes of working memory."""
        for at, scope in enumerate(self._scopes):
            for number, (id, text) in enumerate(listed(scope, LEARNINGS)):
                yield PromptPart(
                    kind="note",
                    id=f"learning:{id}@{scope.name}",
                    text=item(text),
                    order=(-at, number),
                    scope=scope.name,
                )
        for note in reversed(self._scope.memory.notes.list()):
            name = f"{note.name}: " if not _is_made(note.name) else ""
            yield PromptPart(
                kind="note",
                id=f"note:{note.name}",
                text=item(name + shown(note.value)),
                order=(1, from_datetime(note.updated_at)),
                scope=note.scope,
            )

    def files(self) -> Iterator[PromptPart]:
        """Yields the files in working memory, with the size of what is kept of each."""
        for file in reversed(self._scope.memory.files.list()):
            size = 0 if file.value is None else len(shown(file.value, whole=True))
            kept = f" ({size} characters are kept in working memory)" if size else ""
            yield PromptPart(
                kind="file",
                id=f"file:{file.name}",
                text=item(f"{file.name}{kept}"),
                order=(file.name,),
                scope=file.scope,
            )

    # --- for a boot ------------------------------------------------------------------------------

    def role(self) -> Iterator[PromptPart]:
        """Yields the description of the role, if one was given."""
        if self._role is None:
            return
        said = self._scope.lookup((KEY, "roles", self._role))
        text = f"You are the {self._role}." if said is None else f"{self._role}: {shown(said)}"
        yield PromptPart(kind="role", id=f"role:{self._role}", text=item(text), required=True)

    def vocabulary(self) -> Iterator[PromptPart]:
        """Yields the vocabulary of the project, by word."""
        yield from self._named("vocabulary", "word")

    def places(self) -> Iterator[PromptPart]:
        """Yields the map of files, by name."""
        yield from self._named("files", "place")

    def how(self) -> Iterator[PromptPart]:
        """Yields the commands with which an agent that has only this text can go on."""
        name = self._scope.name
        for number, (command, means) in enumerate(HOW):
            text = item(f"`{command}`: {means}".replace("{scope}", name))
            yield PromptPart(kind="how", id=f"how:{number}", text=text, order=(number,))

    def elsewhere(self) -> Iterator[PromptPart]:
        """Yields the other scopes with orders, open decisions or tasks, with only their numbers.

        They are counted by marks, without reading a scope, so this is cheap in a large store. At
        most `MARKS_MAX` marks of each kind are counted; if there are more, that is said first.
        """
        here = {scope.name for scope in self._scopes}
        counts: dict[str, list[int]] = {}
        indexes = (INDEX_STANDING, INDEX_OPEN, INDEX_TASK)
        nouns = (("order", "orders"), ("open decision", "open decisions"), ("task", "tasks"))
        for at, index in enumerate(indexes):
            marks = self._context.log.find_marks(index, limit=MARKS_MAX + 1)
            for mark in marks[:MARKS_MAX]:
                if mark.group not in here:
                    counts.setdefault(mark.group, [0, 0, 0])[at] += 1
            if len(marks) > MARKS_MAX:
                text = f"only {MARKS_MAX:,} {nouns[at][1]} were counted: there are more"
                yield PromptPart(kind="elsewhere", id=f"more:{index}", text=item(text), order=(-1,))
        busiest = sorted(counts, key=lambda name: (-sum(counts[name]), name))
        for number, name in enumerate(busiest):
            found = [
                f"{count} {noun[count != 1]}"
                for count, noun in zip(counts[name], nouns, strict=True)
                if count
            ]
            yield PromptPart(
                kind="elsewhere",
                id=name,
                text=item(f"{name}: {', '.join(found)}"),
                order=(number,),
                scope=name,
            )

    def things(self) -> Iterator[CompactItem]:
        """Yields everything for the compact form of the project; nothing is left out."""
        decisions = Decisions(self._context)
        for scope in reversed(self._scopes):
            for order in decisions.standing([scope.name]):
                texts = trimmed((order.decision, order.rationale))
                yield CompactItem(kind="order", id=order.key, texts=texts)
            for id, text in listed(scope, GOALS):
                yield CompactItem(kind="goal", id=id, texts=(text.removesuffix(f" ({id})"),))
            for task in scope.tasks.list(status=("open", "in_progress", "blocked"), limit=None):
                yield CompactItem(
                    kind="task",
                    id=task.id,
                    texts=trimmed((task.title, task.note)),
                    status=task.status,
                    priority=task.priority,
                    owner=task.owner,
                    waits=task.waits_for,
                    tags=task.tags,
                    epic=task.epic,
                )
            made = sorted(decisions.open_in(scope.name), key=lambda entry: entry.revision)
            for entry in made:
                said = (entry.decision, entry.rationale, entry.planned_action)
                yield CompactItem(kind="open", id=entry.key, texts=trimmed(said))
        for fact in self.facts():
            texts = (value_text(fact.value), *(("stale",) if fact.stale else ()))
            yield CompactItem(kind="fact", id=fact.name, texts=texts)

    def _named(self, key: str, kind: Any) -> Iterator[PromptPart]:
        found: dict[str, tuple[str, str]] = {}
        for scope in self._scopes:
            kept = scope.get((KEY, key), None)
            if kept is None:
                continue
            if not isinstance(kept, Map):
                raise UsageError(
                    f'"{KEY}.{key}" of "{scope.name}" is a mapping from a name to what it means, '
                    f"found {show_value(kept)}"
                )
            for name in kept:
                found.setdefault(name, (shown(kept[name]), scope.name))
        for name in sorted(found):
            means, scope = found[name]
            text = item(f"{name}: {means}")
            yield PromptPart(kind=kind, id=f"{kind}:{name}", text=text, order=(name,), scope=scope)


# --- stale facts ----------------------------------------------------------------------------------


def warnings_of(facts: Iterable[Fact]) -> dict[str, tuple[PromptPart, re.Pattern[str]]]:
    """Returns, by id, a warning for each stale fact, and a pattern that finds its mentions."""
    found: dict[str, tuple[PromptPart, re.Pattern[str]]] = {}
    for fact in facts:
        if fact.stale:
            text = f"{fact.name}: {shown(fact.value)} ({fact.reason})"
            id = f"fact:{fact.name}"
            part = PromptPart(
                kind="warning", id=id, text=item(text), order=(fact.name,), scope=fact.scope
            )
            found[id] = part, name_pattern((fact.name,))
    return found


def with_needs(
    part: PromptPart, stale: dict[str, tuple[PromptPart, re.Pattern[str]]]
) -> PromptPart:
    """Returns a part with the ids of the warnings that it needs: of the stale facts it mentions."""
    needs = tuple(id for id, (_, mentions) in stale.items() if mentions.search(part.text))
    return replace(part, needs=needs) if needs else part


def fact_parts(facts: Iterable[Fact], about: tuple[str, ...]) -> Iterator[PromptPart]:
    """Yields the facts that are not stale, those about the given names first."""
    has = name_pattern(about) if about else None
    near: list[PromptPart] = []
    others: list[PromptPart] = []
    for fact in facts:
        if not fact.stale:
            part = PromptPart(
                kind="fact",
                id=f"fact:{fact.name}",
                text=item(f"{fact.name}: {shown(fact.value)}"),
                order=(fact.name,),
                scope=fact.scope,
            )
            is_near = has is not None and bool(has.search(f"{fact.name} {fact.about or ''}"))
            (near if is_near else others).append(part)
    yield from near
    yield from others


# --- as text --------------------------------------------------------------------------------------


def shown(value: Any, *, whole: bool = False) -> str:
    """Returns a value as text, the same in every process; a long one is cut."""
    text = value if isinstance(value, str) else codec.encode_sorted(value).decode()
    if whole or len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}… ({len(text) - VALUE_CHARACTERS_MAX} more characters)"


def listed(scope: Scope, name: str) -> Iterator[tuple[str, str]]:
    """Yields the id and text of each item of a list in the state that is not done.

    It is the user's state, so it may have any shape: a mapping of mappings or texts, or a list.
    """
    kept = scope.get(name, None)
    things: Iterable[tuple[str, Any]] = ()
    if isinstance(kept, Map):
        things = kept.items()
    elif isinstance(kept, List):
        things = ((str(number), thing) for number, thing in enumerate(kept, 1))
    elif isinstance(kept, str):
        things = ((name, kept),)
    for id, thing in things:
        if not isinstance(thing, Map):
            yield id, shown(thing)
        elif thing.get("status") not in CLOSED_STATUSES:
            yield id, shown(thing.get("title", thing)) + (f" ({id})" if "title" in thing else "")


def _is_made(name: str) -> bool:
    """Returns whether a note's name is a generated id."""
    return re.fullmatch(r"[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}", name) is not None


def _with_reason(entry: Decision) -> str:
    return f"{entry.decision}: {entry.rationale}" if entry.rationale else entry.decision


def _decision_part(
    kind: Any, entry: Decision, text: str, at: int, *, required: bool = False
) -> PromptPart:
    return PromptPart(
        kind=kind,
        id=f"decision:{entry.id}",
        text=item(text),
        order=(at, from_datetime(entry.timestamp), entry.revision),
        required=required,
        scope=entry.scope,
    )


def open_part(task: Task) -> PromptPart:
    """Returns a task that waits; only the beginning of a long title is shown."""
    return _task_part("open", replace(task, title=_cut(task.title), why=_cut(task.why)))


def more_part(scope: str, count: int) -> PromptPart:
    """Returns the line that stands for open tasks of a scope that are not shown."""
    verb = f"holdfast task list {shlex.quote(scope)} --status open --status blocked"
    return PromptPart(
        kind="open",
        id=f"more:{scope}",
        text=item(f"and {count:,} more of {scope}: `{verb}`"),
        order=(1 << 62,),
        scope=scope,
    )


def _cut(text: Any) -> Any:
    if not text or len(text) <= TITLE_CHARACTERS_MAX:
        return text
    return f"{text[:TITLE_CHARACTERS_MAX]}…"


def _task_part(kind: Any, task: Task, *, required: bool = False) -> PromptPart:
    about = [task.id, *((task.owner,) if task.owner else ())]
    if task.status == "blocked":
        about.append(f"blocked: {task.why}" if task.why else "blocked")
    elif task.waits_for:
        about.append(f"after {', '.join(task.waits_for)}")
    said = f"{task.title} ({', '.join(about)})"
    return PromptPart(
        kind=kind,
        id=f"task:{task.id}@{task.scope}",
        text=item(said),
        order=(-task.priority, from_datetime(task.created_at), task.order),
        required=required,
        scope=task.scope,
    )


def _whole_task(task: Task) -> str:
    """Returns a task as text, with everything that its worker must know."""
    lines = [f"{task.title} ({task.id})"]
    for name, value in (("note", task.note), ("why", task.why), ("epic", task.epic)):
        if value:
            lines.append(f"{name}: {value}")
    if task.tags:
        lines.append(f"tags: {', '.join(task.tags)}")
    if task.waits_for:
        lines.append(f"waits for: {', '.join(task.waits_for)}")
    return item("\n".join(lines))
