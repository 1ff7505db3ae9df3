"""Decisions and messages as values of a program's own type, whichever version wrote them.

    @holdfast.schema("conversation", version=2, kind="decision", aliases={"outcome": "result"})
    class Choice(msgspec.Struct):
        decision: str
        priority: str
        tags: list[str]
        result: str | None = None

    @holdfast.upgrade(Choice, 1)
    def _(old): return old | {"tags": []}

    read_as(Choice, hf.decisions.list(scope=chat.name)[0]).result

Each item is upgraded separately, when it is read as that type. Nothing else runs the program's
upgrades: decisions and messages are otherwise returned as they are stored. So an upgrade that fails
prevents nobody from closing or recovering a decision.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal, TypeVar, cast, overload

from msgspec.structs import asdict

from holdfast.core.arguments import check_flag
from holdfast.core.event import version_of
from holdfast.core.schema import ITEMS, schema_of
from holdfast.errors import SchemaError, UsageError, show_value
from holdfast.record.decisions import KIND, Decision
from holdfast.record.keyed_item import PRIORITIES
from holdfast.record.message_events import Message

T = TypeVar("T")

_WORDS = {number: word for word, number in PRIORITIES.items()}
_BESIDE = ("more", "version")
"""The attributes of a decision that are not data; the fields in `more` are merged with the rest."""


@overload
def read_as(type: type[T], item: Decision | Message, *, raw: Literal[False] = False) -> T: ...
@overload
def read_as(type: type[T], item: Decision | Message, *, raw: Literal[True]) -> dict[str, Any]: ...
def read_as(type: type[T], item: Decision | Message, *, raw: bool = False) -> T | dict[str, Any]:
    """Returns a decision or message as a value of a class with a schema of that kind.

    The data is all fields of the item. For a decision it includes those of `more`, and the priority
    as a word if it has one. With `raw` the data is returned as it is stored. Raises UpgradeError,
    which names the event, if an upgrade is missing or fails, and SchemaError if the data does not
    fit the type.
    """
    schema = schema_of(type)
    if schema.kind not in ITEMS:
        raise UsageError(
            f"{schema!r} is not for {' or '.join(f'a {kind}' for kind in ITEMS)}",
            hint='@holdfast.schema("conversation", version=1, kind="decision")',
        )
    expected = Decision if schema.kind == KIND else Message
    if not isinstance(item, expected):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{schema!r} reads a {schema.kind}, found {show_value(item)}")
    if isinstance(item, Decision):
        data, version, stream = _decision_data(item), item.version, item.scope
    else:
        data, stream = dict(item.fields), item._record.stream  # pyright: ignore[reportPrivateUsage]
        version = version_of(item._record.meta)  # pyright: ignore[reportPrivateUsage]
    if check_flag(raw, "raw"):
        return deepcopy(data)
    where = f'the {schema.kind} of event {item.revision} of "{stream}"'
    if version <= schema.version and not schema.is_current(data, version):
        data = schema.upgraded(data, version, where)
    try:
        return cast("T", schema.load(data, where))
    except SchemaError as misfit:
        if version > schema.version:
            raise schema.newer(version, where) from misfit
        raise


def _decision_data(decision: Decision) -> dict[str, Any]:
    own = {name: value for name, value in asdict(decision).items() if name not in _BESIDE}
    own["priority"] = _WORDS.get(decision.priority, decision.priority)
    own["alternatives"] = list(decision.alternatives)
    own["links"] = [str(link) for link in decision.links]
    return {**decision.more, **own}
