"""Makes the events that are written when a program records own events (`core/own_event.py`).

The payload is made from the arguments alone, without a time or an id. So a replay of a run writes
the same bytes, and the run gives each event the key of its place in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Raw

from holdfast.backends.protocol import Record
from holdfast.core import codec
from holdfast.core.arguments import check_flag
from holdfast.core.commit import CommitResult, NewEvent, StreamWrite
from holdfast.core.log import Log
from holdfast.core.own_event import (
    OWN,
    OwnEvent,
    check_refs,
    check_type_name,
    declared_by,
    encode_body,
    known_type,
)
from holdfast.core.schema import Schema
from holdfast.core.sealing import Seal
from holdfast.core.tree import Op
from holdfast.errors import UsageError, show_value


def prepare(
    log: Log,
    stream: str,
    event: object,
    data: object,
    refs: object,
    unchecked: object,
    seal: Seal | None = None,
) -> NewEvent:
    """Returns the event to write; its data is sealed with `seal`, or in a blob if it is large."""
    name, version, plain = _checked(event, data, is_checked=not check_flag(unchecked, "unchecked"))
    texts = check_refs(refs)
    op = Op("set", ("data",), Raw(codec.encode(plain)))
    if seal is None:
        return NewEvent(OWN + name, encode_body(log.blobs.spill(op, stream).value, version, texts))
    body = encode_body(log.blobs.sealed(op, stream, seal).value, version, texts)
    return NewEvent(OWN + name, body, sealed_for=(seal.subject,))


def recorded(log: Log, write: StreamWrite, result: CommitResult) -> OwnEvent:
    """Returns the event that a commit wrote, or the one of an earlier commit with its key."""
    after = result.after[0]
    if result.repeated and not log.is_gathering:
        return OwnEvent(log.record(write.stream, after.revision), log.blobs.read)
    [new_event] = result.written(write).new_events
    actor, meta = log.provenance
    record = Record(
        write.stream, after.revision, after.time, new_event.type, actor, new_event.payload,
        after.link, write.key, write.checkpoint, None, result.position, meta=meta,
    )  # fmt: skip
    found = OwnEvent(record, log.blobs.read)
    if log.is_gathering and not result.repeated:
        log.when_placed(write.stream, after.revision, found._place)  # pyright: ignore[reportPrivateUsage]
    return found


def _checked(event: object, data: object, *, is_checked: bool) -> tuple[str, int, Any]:
    """Returns name, version and plain data of the event to record, or raises UsageError."""
    if isinstance(event, str) and not is_checked:
        return check_type_name(event), 0, _mapping(data)
    if isinstance(event, str):
        schema = known_type(event)
    elif isinstance(event, type):
        schema = _schema_of(cast("type[Any]", event), event)
    else:
        schema = _schema_of(type(event), event)
        if data is not None:
            raise UsageError(
                f"{show_value(event)} is the data of the event itself: expected no more, found "
                f"{show_value(data)}",
                hint="give the name of the type and a mapping, or a value of its class",
            )
        data = schema.dump(event)
    plain = _mapping(data)
    if is_checked:
        schema.check(plain, f'the data of "{schema.name}"')
    return schema.name, schema.version if is_checked else 0, plain


def _schema_of(kind: type[Any], given: object) -> Schema[Any]:
    """Returns the type that a class declares, or raises UsageError about what was given."""
    schema = declared_by(kind)
    if schema is None:
        raise UsageError(
            f"expected an event, its class or the name of its type, found {show_value(given)}",
            hint='@holdfast.event("task_created") makes a class the data of events',
        )
    return schema


def _mapping(data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise UsageError(
            f"the data of an event is a mapping from field to value, found {show_value(data)}"
        )
    return dict(cast("Mapping[str, Any]", data))
