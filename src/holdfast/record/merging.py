"""Two histories as one: ordered by time, nothing twice. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.record.message import Message


def merged_order(mine: list[Message], theirs: list[Message]) -> tuple[list[Message], list[Message]]:
    """Returns both histories in one order, and those messages of it that only the second has.

    Each side keeps its own order. A message that both have, by foreign id or by id, counts as the
    first one's; of two of the second that have a name in common, the earlier one is taken.
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
        while at < len(new) and new[at].time_us < message.time_us:
            merged.append(new[at])
            at += 1
        merged.append(message)
    return merged + new[at:], new


def _names(message: Message) -> tuple[str, ...]:
    foreign_id = message.foreign_id
    own = f"id:{message.id}"
    return (own,) if foreign_id is None else (own, f"foreign:{foreign_id}")


def moved_fields(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that is written once more, elsewhere: it keeps its time."""
    fields = {**message.fields, "said_at": message.time_us}
    if "foreign" in fields:
        fields["foreign"] = fields.pop("foreign")  # it stands last, where a reader expects it
    return fields
