"""Builds a context: as much of what was gathered as a budget has room for.

Room is given in a fixed order. Standing orders, goals and the task in hand are never left out, nor
are the warnings about stale facts that they mention. Then come open decisions, tasks in progress,
open tasks, the other warnings, notes and facts, and the messages by their strategies; files come
last, by reference. Everything left out is counted, with the command that shows it. The same log
gives the same bytes in every process and on every backend, as long as no fact becomes stale by
time.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.context.compact import encode_items
from holdfast.context.gather import (
    Gathered,
    fact_parts,
    more_part,
    open_part,
    warnings_of,
    with_needs,
)
from holdfast.context.message_selection import (
    WEIGHTS,
    WINDOW,
    Ask,
    Conversation,
    changed_files,
    check_strategies,
)
from holdfast.context.parts import (
    Budget,
    LeftOut,
    PartKind,
    PromptContext,
    PromptPart,
    in_order,
    key_of,
    to_text,
)
from holdfast.context.tokens import TokenCounter, find_counter
from holdfast.core.arguments import check_text, check_whole
from holdfast.errors import UnavailableError, UsageError, show_value
from holdfast.names import check_name
from holdfast.record.context import RecordContext
from holdfast.record.messages import check_names
from holdfast.record.task_events import Task
from holdfast.scope import Scope

_logger = logging.getLogger("holdfast.context")

BUDGET = 8_000
STRATEGIES = ("window", "summary", "retrieval")
DECIDED_MAX = 10
BOOT_WINDOW = 10
OPEN_MAX = 50
"""How many open tasks of a scope a context shows at most."""
_OPEN_SHARE = 4
"""Open tasks have at most one part in so many of the budget."""
_LEFT_OUT_TOKENS = 40
"""Tokens reserved for each line that the list of what was left out may have."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The checked arguments of a context."""

    budget: int
    task: Task | str | None
    strategies: tuple[str, ...]
    window: int
    about: tuple[str, ...]
    role: str | None
    counter: TokenCounter
    is_boot: bool = False
    """Whether it begins a session; then vocabulary, file map and recent decisions are added."""


def check_wanted(
    *,
    budget: object = BUDGET,
    task: object = None,
    strategies: object = STRATEGIES,
    window: object = WINDOW,
    about: object = (),
    role: object = None,
    tokenizer: object = None,
    is_boot: bool = False,
) -> Wanted:
    """Returns the checked arguments of a context, or raises UsageError."""
    is_task = isinstance(task, Task)
    hand: Task | str | None = task if is_task else check_text(task, "the task", optional=True)
    names = check_names(about) if about else ()
    if names is None:
        raise UsageError(f"about is a name or several, found {show_value(about)}")
    chosen = check_strategies(strategies)
    if "entity" in chosen and not names:
        raise UsageError("the strategy entity needs names", hint='about=["Ann", "order 17"]')
    return Wanted(
        budget=check_whole(budget, "budget", least=1),
        task=hand,
        strategies=chosen,
        window=check_whole(window, "window"),
        about=names,
        role=None if role is None else check_name(role, "a role"),
        counter=find_counter(tokenizer),
        is_boot=is_boot,
    )


def build(context: RecordContext, scope: Scope, ask: Ask, wanted: Wanted) -> PromptContext:
    """Returns the context of a scope."""
    return _Builder(context, scope, ask, wanted).build()


def build_compact(context: RecordContext, scope: Scope, wanted: Wanted) -> PromptContext:
    """Returns everything of a scope in compact form, without cutting it to the budget."""
    text = encode_items(scope.name, Gathered(context, scope, None).things())
    return PromptContext(
        text=text,
        parts=(),
        left_out=(),
        tokens=wanted.counter.count(text),
        budget=wanted.budget,
        is_exact=wanted.counter.is_exact,
        counted_by=wanted.counter.name,
        instructions=text,
    )


class _Builder:
    """Builds one context."""

    def __init__(self, context: RecordContext, scope: Scope, ask: Ask, wanted: Wanted) -> None:
        self._scope = scope
        self._wanted = wanted
        self._gathered = Gathered(context, scope, wanted.role)
        self._said = Conversation(context, scope, ask)
        self._facts = self._gathered.facts()
        self._stale = warnings_of(self._facts)
        self._budget = Budget(wanted.counter.count, wanted.budget)
        self._refused: dict[PartKind, list[PromptPart]] = {}
        self._stands_for: dict[str, list[str]] = {}
        """By the key of a line that counts parts which are not shown: their ids."""
        self._is_index_late = False
        self._droppable: list[str] = []
        """The keys of parts that may be dropped again, the most important first."""

    def build(self) -> PromptContext:
        """Returns the context."""
        for part in self._required():
            part = with_needs(part, self._stale)
            self._budget.take(*self._warnings_for(part), part)
        task = next((one for one in self._budget.chosen.values() if one.kind == "task"), None)
        lines = 4 + 2 * len(self._wanted.strategies)
        self._budget.left -= min(_LEFT_OUT_TOKENS * lines, self._wanted.budget // 10)
        hand = None if task is None else task.id.removeprefix("task:").partition("@")[0]
        for part in self._at_work(hand):
            self._offer(part)
        self._offer_open_tasks(hand)
        for part in self._important():
            self._offer(part)
        self._add_messages(task)
        for part in self._files():
            self._offer(part)
        return self._fitted()

    def _required(self) -> Iterator[PromptPart]:
        gathered, wanted = self._gathered, self._wanted
        yield from gathered.role()
        yield from gathered.orders(permanent=wanted.is_boot)
        yield from gathered.goals()
        if wanted.task is not None:
            yield gathered.task(wanted.task)

    def _at_work(self, hand: str | None) -> Iterator[PromptPart]:
        yield from self._gathered.decisions()
        yield from self._gathered.in_progress(hand)

    def _offer_open_tasks(self, hand: str | None) -> None:
        """Takes the most urgent open tasks of each scope, and a line that counts the others.

        They share a part of the budget, so that a long list leaves room for what was said.
        """
        waiting = list(self._gathered.open_tasks(hand))
        room = self._wanted.budget // _OPEN_SHARE
        for at, (scope, tasks) in enumerate(waiting):
            share, shown = room // (len(waiting) - at), 0
            line = self._budget.cost(more_part(scope, len(tasks)).text)
            for task in tasks[:OPEN_MAX]:
                kept = line if shown + 1 < len(tasks) else 0
                cost = self._take(open_part(task), share - kept)
                if cost is None:
                    break
                share, room, shown = share - cost, room - cost, shown + 1
            if others := tasks[shown:]:
                more = more_part(scope, len(others))
                self._stands_for[key_of(more)] = [f"task:{one.id}@{scope}" for one in others]
                room -= self._offer(more, share) or 0

    def _important(self) -> Iterator[PromptPart]:
        gathered = self._gathered
        if self._wanted.is_boot:
            yield from gathered.how()
            yield from gathered.places()
            yield from gathered.vocabulary()
            yield from gathered.decided(DECIDED_MAX)
            yield from gathered.elsewhere()
        yield from (warning for warning, _ in self._stale.values())
        yield from gathered.notes()
        yield from fact_parts(self._facts, self._wanted.about)

    def _warnings_for(self, part: PromptPart) -> list[PromptPart]:
        return [self._stale[id][0] for id in part.needs]

    def _offer(self, part: PromptPart, within: int | None = None) -> int | None:
        """Takes a part with the warnings that it needs, if there is room.

        Returns its cost, or None if it was refused.
        """
        cost = self._take(part, within)
        if cost is None:
            if part.kind != "warning":
                part = with_needs(part, self._stale)
            refused = self._refused.setdefault(part.kind, [])
            if part not in refused:
                refused.append(part)
        return cost

    def _take(self, part: PromptPart, within: int | None) -> int | None:
        """Takes a part as `_offer` does, but forgets it if there is no room."""
        if key_of(part) in self._budget.chosen:
            return 0
        if part.kind != "warning":
            part = with_needs(part, self._stale)
        cost = self._budget.take_if(*self._warnings_for(part), part, within=within)
        if cost is not None:
            self._droppable.append(key_of(part))
        return cost

    # --- messages --------------------------------------------------------------------------------

    def _add_messages(self, task: PromptPart | None) -> None:
        """Divides the remaining room among the strategies of messages.

        First each gets its share, so that the newest messages do not take everything. Then each may
        use what is left over, in the order in which the strategies were given.
        """
        strategies = self._wanted.strategies
        self._said.read(self._wanted.window, full="full" in strategies)
        about = "" if task is None else task.text
        if not about and self._said.newest:
            about = self._said.newest[-1].text
        sources = {name: self._found_by(name, about) for name in strategies}
        weights = sum(WEIGHTS[name] for name in strategies)
        room = max(self._budget.left, 0)
        places = dict.fromkeys(strategies, 0)
        for name in strategies:
            share = room * WEIGHTS[name] // weights
            places[name] = self._fill(name, sources[name], 0, share)
        for name in strategies:
            places[name] = self._fill(name, sources[name], places[name], None)

    def _found_by(self, strategy: str, about: str) -> list[PromptPart]:
        """Returns the parts that a strategy wants, in its order of preference.

        The index is asked only if there are messages before the window. If it is not up to date in
        time, the context is made without it, and lists those messages as left out.
        """
        if strategy in ("full", "window"):
            return list(self._said.window())
        if not self._said.has_older:
            return []
        try:
            match strategy:
                case "summary":
                    return list(self._said.summary())
                case "entity":
                    return list(self._said.about(self._wanted.about))
                case _:
                    return list(self._said.relevant(about))
        except UnavailableError as error:
            _logger.warning('the context of "%s" lacks what was said: %s', self._scope.name, error)
            self._is_index_late = True
            return []

    def _fill(
        self, strategy: str, parts: Sequence[PromptPart], place: int, share: int | None
    ) -> int:
        """Takes parts from a place on while there is room; returns where to go on.

        The newest messages are taken without gaps, because a gap could change the meaning of what
        was said.
        """
        is_contiguous = strategy in ("full", "window")
        for at in range(place, len(parts)):
            cost = self._offer(parts[at], share)
            if cost is None and is_contiguous:
                return at
            if share is not None and cost is not None:
                share -= cost
        return len(parts) if is_contiguous or share is None else place

    def _files(self) -> Iterator[PromptPart]:
        shown = [part.message for part in self._budget.chosen.values() if part.message is not None]
        shown.sort(key=lambda message: message.revision)
        yield from self._gathered.files()
        yield from changed_files(shown, self._scope.name)

    # --- the text --------------------------------------------------------------------------------

    def _fitted(self) -> PromptContext:
        """Returns the context, after dropping parts until the exact count is within the budget.

        Parts were counted one by one, but the tokens of a text are not the sum of those of its
        parts.
        """
        count, budget = self._wanted.counter.count, self._wanted.budget
        while True:
            parts = in_order(self._budget.chosen.values())
            left_out = tuple(self._left_out())
            text = to_text(parts, left_out)
            tokens = count(text)
            if tokens <= budget or not self._droppable:
                break
            dropped = self._budget.chosen.pop(self._droppable.pop())
            self._refused.setdefault(dropped.kind, []).append(dropped)
            self._forget_needless()
        said = [part for part in parts if part.kind != "message"]
        return PromptContext(
            text=text,
            parts=tuple(parts),
            left_out=left_out,
            tokens=tokens,
            budget=budget,
            is_exact=self._wanted.counter.is_exact,
            counted_by=self._wanted.counter.name,
            instructions=to_text(said, left_out),
        )

    def _forget_needless(self) -> None:
        """Removes the warnings that only dropped parts needed."""
        chosen = self._budget.chosen
        offered = set(self._droppable)
        needed = {
            key_of(warning) for part in chosen.values() for warning in self._warnings_for(part)
        }
        for key in [key for key, part in chosen.items() if part.kind == "warning"]:
            if key not in needed and key not in offered:
                self._refused.setdefault("warning", []).append(chosen.pop(key))

    def _left_out(self) -> Iterator[LeftOut]:
        """Yields what there was no room for, by kind."""
        name, chosen = self._scope.name, self._budget.chosen
        for kind in _COMMANDS:
            parts = [one for one in self._refused.get(kind, ()) if key_of(one) not in chosen]
            unique = {
                id: None for one in parts for id in self._stands_for.get(key_of(one), [one.id])
            }
            if kind == "older":
                found = (f"message:{name}@{revision}" for revision in sorted(self._said.unread))
                unique |= {id: None for id in found if f"message {id}" not in chosen}
            where = _where(kind, parts[0] if parts else None, name)
            is_uncounted = kind == "message" and self._said.has_older
            if is_uncounted or (kind == "older" and self._is_index_late):
                yield LeftOut(kind, None, where, tuple(unique))
            elif unique:
                yield LeftOut(kind, len(unique), where, tuple(unique))


_COMMANDS: dict[PartKind, str] = {
    "warning": "holdfast stale",
    "decision": "holdfast decisions {scope} --incomplete",
    "progress": "holdfast task list {scope} --status in_progress",
    "open": "holdfast task list {scope} --status open --status blocked",
    "place": "holdfast get {scope} boot.files",
    "word": "holdfast get {scope} boot.vocabulary",
    "how": "holdfast --help",
    "elsewhere": "holdfast scopes",
    "decided": "holdfast decisions {scope}",
    "note": "holdfast get {scope} working_memory.notes",
    "fact": "holdfast query --kind fact --scope {scope}",
    "summary": "holdfast messages {scope} --original",
    "file": "holdfast get {scope} working_memory.files",
    "older": "holdfast query --kind message --scope {scope}",
    "message": "holdfast messages {scope} --original",
}
"""For each kind of part, the command that shows all of it."""


def _where(kind: PartKind, first: PromptPart | None, scope: str) -> str:
    """Returns the command that shows what was left out, for the scope of the first such part."""
    command = _COMMANDS[kind]
    if first is not None:
        scope = first.scope or scope
        if first.id.startswith("learning:"):
            command = "holdfast get {scope} learnings"
        elif kind == "file" and first.message is None and "working memory" not in first.text:
            command = "holdfast messages {scope} --original"
    return command.format(scope=shlex.quote(scope))
