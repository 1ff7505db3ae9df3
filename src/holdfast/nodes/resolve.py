"""Applies rules, settings and constraints, only when a model is about to be called.

For each setting, the proposal with the highest priority wins, of a rule or of `ctx.setting`. At
equal priority a rule wins over a setting, and a later setting over an earlier one. If two rules of
equal priority differ, that is a conflict, and the setting stays open for a person to decide.
Proposals that a constraint does not allow are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from holdfast.nodes.results import Artifact
from holdfast.thumbprint import thumb


class Proposal(Struct, frozen=True):
    """A value that a rule or a node proposes for a setting."""

    setting: str
    value: Any
    priority: int
    by: str
    """The rule, or the node whose setting it is."""
    is_rule: bool
    place: int


class Conflict(Struct, frozen=True):
    """A setting that stays open, with the proposals or constraints that disagree."""

    setting: str
    between: tuple[str, ...]
    values: tuple[Any, ...]
    text: str


class Applied(Struct, frozen=True):
    """The value that a setting got, and which rule or node proposed it."""

    setting: str
    value: Any
    by: str
    priority: int


class Resolved(Struct, frozen=True):
    """What a model is called with."""

    model: Any
    settings: dict[str, Any]
    tools: list[Any]
    messages: list[Any]
    applied: list[Applied]
    conflicts: list[Conflict]


CallRule = Callable[[Artifact], dict[str, Any]]


def resolve(sequence: Sequence[Artifact], call_rule: CallRule) -> Resolved:
    """Applies rules and settings in order of priority, within the constraints."""
    proposals: dict[str, list[Proposal]] = {}
    limits: dict[str, list[Artifact]] = {}
    tools: dict[str, Any] = {}
    messages: list[Any] = []
    for place, one in enumerate(sequence):
        if one.kind == "setting":
            proposal = Proposal(one.name, one.value, one.priority, one.node, False, place)
            proposals.setdefault(one.name, []).append(proposal)
        elif one.kind == "rule":
            for setting, value in call_rule(one).items():
                proposal = Proposal(setting, value, one.priority, one.name, True, place)
                proposals.setdefault(setting, []).append(proposal)
        elif one.kind == "constraint":
            limits.setdefault(one.name, []).append(one)
        elif one.kind == "tool":
            tools.pop(one.name, None)
            tools[one.name] = one.value
        else:
            messages.append(one.value)
    applied: list[Applied] = []
    conflicts: list[Conflict] = []
    for setting in {**proposals, **limits}:
        chosen = _choose(setting, proposals.get(setting, []), limits.get(setting, []))
        if isinstance(chosen, Conflict):
            conflicts.append(chosen)
        elif chosen is not None:
            applied.append(Applied(setting, chosen.value, chosen.by, chosen.priority))
    settings = {one.setting: one.value for one in applied if one.setting != "model"}
    models = [one.value for one in applied if one.setting == "model"]
    model = models[0] if models else None
    return Resolved(model, settings, [*tools.values()], messages, applied, conflicts)


def _choose(
    setting: str, proposals: list[Proposal], limits: list[Artifact]
) -> Proposal | Conflict | None:
    """Returns the proposal that wins, None if there is none, or the conflict."""
    allowed: set[str] | None = None
    for limit in limits:
        values = {thumb(value) for value in limit.value}
        allowed = values if allowed is None else allowed & values
    names = tuple(dict.fromkeys(limit.node for limit in limits))
    if allowed is not None and not allowed:
        return Conflict(setting, names, (), "no value is within all constraints")
    left = [one for one in proposals if allowed is None or thumb(one.value) in allowed]
    if not left:
        if not proposals:
            return None
        found = tuple(one.value for one in proposals)
        between = (*dict.fromkeys(one.by for one in proposals), *names)
        return Conflict(setting, between, found, "every value is outside the constraints")
    highest = max(one.priority for one in left)
    top = [one for one in left if one.priority == highest]
    rules = [one for one in top if one.is_rule]
    if not rules:
        return top[-1]
    if len({thumb(one.value) for one in rules}) == 1:
        return rules[0]
    return Conflict(
        setting,
        tuple(dict.fromkeys(one.by for one in rules)),
        tuple(one.value for one in rules),
        f"rules of the same priority {highest} want different values",
    )
