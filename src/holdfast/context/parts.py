"""The parts of a context, and the text that they make. Pure functions.

The order of the text is fixed. What changes least comes first, so that a server which caches the
beginning of a prompt can reuse it; what was said last comes last. Only warnings come before
everything, so that nobody reads a part about a stale fact before its warning. A recorded text can
never begin a section: its first line begins with "- " and all others are indented, so no message
can pass for an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.record.message_events import Message

PartKind = Literal[
    "warning", "role", "order", "goal", "word", "place", "elsewhere", "how", "task",
    "decision", "decided", "progress", "open", "note", "fact", "summary", "file", "older",
    "message",
]  # fmt: skip
Strategy = Literal["full", "window", "summary", "entity", "retrieval"]

SECTIONS: tuple[tuple[PartKind, str], ...] = (
    ("warning", "Warnings: stale, do not rely on these before you have looked"),
    ("role", "Role"),
    ("order", "Standing orders"),
    ("goal", "Goals"),
    ("word", "Vocabulary"),
    ("place", "Where things are"),
    ("how", "How to go on"),
    ("task", "The task in hand"),
    ("decision", "Open decisions"),
    ("decided", "Recent decisions"),
    ("progress", "Tasks in progress"),
    ("open", "Open tasks"),
    ("elsewhere", "Elsewhere in this store"),
    ("note", "Notes"),
    ("fact", "Facts"),
    ("summary", "Summary of what was said before"),
    ("file", "Files, by reference"),
    ("older", "Said earlier, about this"),
    ("message", "Messages"),
)
"""The sections of the text, in order, by the kind of their parts."""
LEFT_OUT = "Left out"
_PLACES = {kind: at for at, (kind, _) in enumerate(SECTIONS)}


class PromptPart(Struct, frozen=True, kw_only=True):
    """One thing that a context may have: its text, and where it comes from.

    `order` is its place in its section. A `required` part is never left out.
    """

    kind: PartKind
    id: str
    text: str
    order: tuple[int | str, ...] = ()
    required: bool = False
    scope: str = ""
    needs: tuple[str, ...] = ()
    """The ids of warnings that must be shown with it."""
    message: Message | None = None


class LeftOut(Struct, frozen=True):
    """What a context has no room for: the kind, the number, and the command that shows it.

    `count` is None if nobody counted, because older messages may be millions.
    """

    kind: PartKind
    count: int | None
    where: str
    ids: tuple[str, ...] = ()


class PromptContext(Struct, frozen=True, kw_only=True):
    """A context: the text for a prompt, its parts, and what was left out."""

    text: str
    parts: tuple[PromptPart, ...]
    """The parts of the text, in order."""
    left_out: tuple[LeftOut, ...]
    tokens: int
    """The tokens of the whole text, exact or estimated; `counted_by` names the tokenizer."""
    budget: int
    is_exact: bool
    counted_by: str
    instructions: str
    """The text without the messages, for a model that takes messages separately."""

    @property
    def is_over(self) -> bool:
        """Whether the required parts alone are more than the budget."""
        return self.tokens > self.budget

    @property
    def messages(self) -> list[Message]:
        """The messages that are in it, oldest first."""
        found = [part.message for part in self.parts if part.message is not None]
        return sorted(found, key=lambda message: message.revision)


def item(text: str) -> str:
    """Returns a text as a list item: later lines are indented."""
    return "- " + "\n  ".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def in_order(parts: Iterable[PromptPart]) -> list[PromptPart]:
    """Returns parts in the order of the text."""
    return sorted(parts, key=lambda part: (_PLACES[part.kind], part.order, part.id))


def heading(kind: PartKind) -> str:
    """Returns the heading of a section."""
    return f"# {SECTIONS[_PLACES[kind]][1]}"


def to_text(parts: Sequence[PromptPart], left_out: Sequence[LeftOut]) -> str:
    """Returns the text of parts, which are in order, and of what was left out."""
    sections: list[str] = []
    for kind, _ in SECTIONS:
        lines = [part.text for part in parts if part.kind == kind]
        if lines:
            sections.append("\n".join([heading(kind), "", *lines, ""]))
    if left_out:
        lines = [f"- {_left_out_line(one)}" for one in left_out]
        sections.append("\n".join([f"# {LEFT_OUT}", "", *lines, ""]))
    return "\n".join(sections)


_NOUNS: dict[str, tuple[str, str]] = {
    "warning": ("stale fact", "stale facts"),
    "word": ("word", "words"),
    "place": ("place", "places"),
    "how": ("command", "commands"),
    "elsewhere": ("other scope", "other scopes"),
    "decision": ("open decision", "open decisions"),
    "decided": ("decision", "decisions"),
    "progress": ("task in progress", "tasks in progress"),
    "open": ("open task", "open tasks"),
    "note": ("note", "notes"),
    "fact": ("fact", "facts"),
    "summary": ("summary", "summaries"),
    "file": ("file", "files"),
    "older": ("earlier message about this", "earlier messages about this"),
    "message": ("message", "messages"),
}


def _left_out_line(one: LeftOut) -> str:
    singular, plural = _NOUNS[one.kind]
    if one.count is None:
        return f"older {plural}: `{one.where}`"
    return f"{one.count} {singular if one.count == 1 else plural}: `{one.where}`"


class Budget:
    """Counts the tokens that are left, while parts are chosen."""

    def __init__(self, count: Callable[[str], int], tokens: int) -> None:
        self._count = count
        self.left = tokens
        self._costs: dict[str, int] = {}
        self._begun: set[PartKind] = set()
        self.chosen: dict[str, PromptPart] = {}
        """The chosen parts, by kind and id."""

    def cost(self, text: str) -> int:
        """Counts the tokens of a text with its line end; the count of each text is cached."""
        if text not in self._costs:
            self._costs[text] = self._count(text + "\n")
        return self._costs[text]

    def cost_of(self, *parts: PromptPart) -> int:
        """Counts the tokens that parts not chosen yet would add, with new headings."""
        new = [part for part in parts if key_of(part) not in self.chosen]
        cost = sum(self.cost(part.text) for part in new)
        kinds: set[PartKind] = {part.kind for part in new}
        for kind in kinds:
            if kind not in self._begun:
                cost += self.cost(heading(kind) + "\n\n")
        return cost

    def take(self, *parts: PromptPart) -> int:
        """Takes parts even if there is no room; returns their cost."""
        cost = self.cost_of(*parts)
        for part in parts:
            self.chosen.setdefault(key_of(part), part)
            self._begun.add(part.kind)
        self.left -= cost
        return cost

    def take_if(self, *parts: PromptPart, within: int | None = None) -> int | None:
        """Takes parts if there is room for all of them; returns their cost, else None."""
        room = self.left if within is None else min(within, self.left)
        return self.take(*parts) if self.cost_of(*parts) <= room else None


def key_of(part: PromptPart) -> str:
    """Returns the key of a part. A message has the same key whichever strategy found it."""
    kind = "message" if part.kind == "older" else part.kind
    return f"{kind} {part.id}"
