"""The parts of a context, and the text that they make. Pure.

The order of the text is fixed: what changes least stands first, so that a server which keeps the
beginning of a prompt can use it again, and what was said last stands last. Only warnings come
before everything: nobody reads a thing that depends on a stale fact before the warning about it.
A line that begins a section is ours: every line of what was recorded but the first is indented, so
no message can pass for an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.record.message_events import Message

PartKind = Literal[
    "warning", "role", "order", "goal", "word", "place", "elsewhere", "how", "task",
    "decision", "decided", "progress", "note", "fact", "summary", "file", "older", "message",
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

    `order` is its place in its section. One that is `required` is never left out.
    """

    kind: PartKind
    id: str
    text: str
    order: tuple[int | str, ...] = ()
    required: bool = False
    scope: str = ""
    needs: tuple[str, ...] = ()
    """The ids of warnings without which it must not be shown."""
    message: Message | None = None


class LeftOut(Struct, frozen=True):
    """What a context has no room for: of which kind, how many, and the command that shows it.

    `count` is None where nobody counted: older messages may be millions.
    """

    kind: PartKind
    count: int | None
    where: str
    ids: tuple[str, ...] = ()


class PromptContext(Struct, frozen=True, kw_only=True):
    """What `store.context()` returns: the text for a prompt, and what it was made of."""

    text: str
    parts: tuple[PromptPart, ...]
    """What is in it, in the order of the text."""
    left_out: tuple[LeftOut, ...]
    tokens: int
    """Of the whole text: exact, or an estimate; `counted_by` says by what."""
    budget: int
    is_exact: bool
    counted_by: str
    instructions: str
    """The text without the messages, for a model that takes those by themselves."""

    @property
    def is_over(self) -> bool:
        """Whether what is never left out is more than the budget by itself."""
        return self.tokens > self.budget

    @property
    def messages(self) -> list[Message]:
        """The messages that are in it, oldest first."""
        found = [part.message for part in self.parts if part.message is not None]
        return sorted(found, key=lambda message: message.revision)


def item(text: str) -> str:
    """Returns a text as an item of a list; its other lines are indented."""
    return "- " + "\n  ".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def in_order(parts: Iterable[PromptPart]) -> list[PromptPart]:
    """Returns parts in the order of the text."""
    return sorted(parts, key=lambda part: (_PLACES[part.kind], part.order, part.id))


def heading(kind: PartKind) -> str:
    """Returns the line that a section begins with."""
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
    """How many tokens are left, and which sections have begun."""

    def __init__(self, count: Callable[[str], int], tokens: int) -> None:
        self._count = count
        self.left = tokens
        self._costs: dict[str, int] = {}
        self._begun: set[PartKind] = set()
        self.chosen: dict[str, PromptPart] = {}
        """What was taken, by kind and id."""

    def cost(self, text: str) -> int:
        """Returns the tokens of a text with the end of its line; each text is counted once."""
        if text not in self._costs:
            self._costs[text] = self._count(text + "\n")
        return self._costs[text]

    def cost_of(self, *parts: PromptPart) -> int:
        """Returns what parts would add that are not there yet, with their headings."""
        new = [part for part in parts if key_of(part) not in self.chosen]
        cost = sum(self.cost(part.text) for part in new)
        kinds: set[PartKind] = {part.kind for part in new}
        for kind in kinds:
            if kind not in self._begun:
                cost += self.cost(heading(kind) + "\n\n")
        return cost

    def take(self, *parts: PromptPart) -> int:
        """Takes parts, whatever they cost; returns what they cost."""
        cost = self.cost_of(*parts)
        for part in parts:
            self.chosen.setdefault(key_of(part), part)
            self._begun.add(part.kind)
        self.left -= cost
        return cost

    def take_if(self, *parts: PromptPart, within: int | None = None) -> int | None:
        """Takes parts if there is room for all of them; returns what they cost, or None."""
        room = self.left if within is None else min(within, self.left)
        return self.take(*parts) if self.cost_of(*parts) <= room else None


def key_of(part: PromptPart) -> str:
    """Returns what a part is known by: one message is one part, however it was found."""
    kind = "message" if part.kind == "older" else part.kind
    return f"{kind} {part.id}"
