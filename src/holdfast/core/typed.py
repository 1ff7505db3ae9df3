"""Typed state: which schema a scope has, what it refuses, and what readers see of older data.

The fold never runs user code: a state is what its events say, and `version` is what the newest of
them says. Everything here is done beside the fold. A read shows the stored state as the program's
version has it. A write is checked where it touches the state, against what the type says there. The
first write at a newer version is led by an event `migrated`, which holds the difference from the
stored state to the upgraded one. So the ops of that write, and all later ops, fit the new shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, cast

from holdfast.core import codec, tree
from holdfast.core.codec import Path
from holdfast.core.commit import NewEvent, StreamWrite
from holdfast.core.event import MIGRATED, StreamState, migrated_payload, state_of
from holdfast.core.layers import reserved_prefixes
from holdfast.core.meta import Meta, encode_meta
from holdfast.core.schema import ITEMS, Schema, schema_of
from holdfast.core.shape import Misfit, Shape, show_type
from holdfast.core.tree import MISSING, Blobs, List, Map, Op, thaw
from holdfast.core.tree.frozen import enter
from holdfast.errors import (
    NewerSchemaError,
    SchemaError,
    UsageError,
    ValueDomainError,
    show_value,
)
from holdfast.names import fits_pattern

Spill = Callable[[Op, str], Op]
"""Given an op and its stream, returns the op with its value put into a blob if it is large."""

KNOWN_MAX = 65536
SHOWN_MAX = 256
"""How many upgraded states are cached, each until its stream goes on."""


class Typed:
    """The schemas of one store's scopes."""

    def __init__(self, schemas: Sequence[type[Any]], *, unchecked: bool = False) -> None:
        given = [schema_of(kind) for kind in schemas]
        self.all = [one for one in given if one.kind not in ITEMS]
        """The schemas of states."""
        self.items = [one for one in given if one.kind in ITEMS]
        """The schemas of decisions and messages, which are no part of a state."""
        self.unchecked = unchecked
        """Whether scopes without a schema here may be written to even if their data has one."""
        self.blobs: Blobs | None = None
        """Reads the blobs that upgraded states refer to; a log that uses these schemas sets it."""
        self._known: dict[str, Schema[Any] | None] = {}
        self._shown: dict[str, tuple[StreamState, Map]] = {}
        names: dict[tuple[str, str], Schema[Any]] = {}
        for one in given:
            _check_pattern(one)
            place = one.kind, one.name
            if place in names:
                raise _doubled(one.name, [names[place], one])
            names[place] = one

    def of(self, stream: str) -> Schema[Any] | None:
        """Returns the schema of a scope, None if it has none; raises UsageError if it has two."""
        try:
            return self._known[stream]
        except KeyError:
            found = [one for one in self.all if fits_pattern(one.name, stream)]
            if len(found) > 1:
                raise _doubled(stream, found) from None
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[stream] = found[0] if found else None
            return self._known[stream]

    def item_meta(self, kind: str, stream: str) -> str | None:
        """Returns the meta of a new decision or message of a scope, which says its version.

        Returns None if this program has no schema for it.
        """
        fit = [one for one in self.items if one.kind == kind and fits_pattern(one.name, stream)]
        if len(fit) > 1:
            raise _doubled(stream, fit)
        return fit[0].meta if fit else None

    def check_schema(self, stream: str, kind: Any) -> None:
        """Raises UsageError if a class is not the schema of a scope."""
        schema = self.of(stream)
        if schema is None:
            raise without_schema(stream)
        if kind is not schema.type:
            raise UsageError(
                f'scope "{stream}" has the schema "{schema.type.__name__}", found '
                f"{show_value(kind)}"
            )

    # --- reading ---------------------------------------------------------------------------------

    def is_current(self, state: StreamState, stream: str) -> bool:
        """Returns whether readers see a state as it is stored.

        They do if nothing of it is older than its schema; also if it is newer than this program,
        which then cannot convert it.
        """
        schema = self.of(stream)
        if schema is None or not state.root:
            return True
        stored = schema.stored_version(state.version)
        return stored > schema.version or schema.is_current(state.root, state.version)

    def shown(self, state: StreamState, stream: str) -> Map:
        """Returns a state as the program's version has it; raises UpgradeError if that fails.

        The result is cached until the stream goes on: the newest state is read most.
        """
        if state.dropped or self.is_current(state, stream):
            return state.root
        kept = self._shown.get(stream)
        if kept is not None and kept[0].link == state.link and kept[0].root is state.root:
            return kept[1]  # the root is compared too: without an event, a value may have ended
        schema = cast("Schema[Any]", self.of(stream))
        root = self._as_version(schema.version, schema, state, stream)
        if len(self._shown) >= SHOWN_MAX:
            self._shown.pop(next(iter(self._shown)), None)
        self._shown[stream] = state, root
        return root

    def _as_version(self, to: int, schema: Schema[Any], state: StreamState, stream: str) -> Map:
        """Returns a stored state as the schema's version has it, or an older one.

        Raises UpgradeError if a step fails, or if what it returns cannot be stored.
        """
        where = f'scope "{stream}" at revision {state.revision}'
        # A step of the program must not see a subject's value: what it returns is stored in clear.
        with codec.kept_closed():
            data = state.root.to_dict()
            before = _encoded(data)
            if to == schema.version:
                new = schema.upgraded(data, state.version, where, copies=False)
            else:
                new = schema.downgraded(data, state.version, to, where, copies=False)
            try:
                return _entered(new, before, state.root, self.blobs)
            except ValueDomainError as error:
                raise schema.not_storable(error, state.version, to, where) from error

    def value(self, state: StreamState, stream: str) -> Any:
        """Returns a state as a value of its type; raises UsageError if the scope has no schema."""
        schema = self.of(stream)
        if schema is None:
            raise without_schema(stream)
        state_of(state, stream)
        where = f'scope "{stream}" at revision {state.revision}'
        try:
            return schema.load(self.shown(state, stream).to_dict(), where)
        except SchemaError as error:
            if state.version > schema.version:
                raise schema.newer(state.version, where) from error
            raise

    # --- writing ---------------------------------------------------------------------------------

    def migration(self, state: StreamState, stream: str, spill: Spill) -> NewEvent | None:
        """Returns the event that brings a stored state to the program's version, if one is needed.

        Raises NewerSchemaError if the state is newer.
        """
        schema, stored = self._stored(state, stream)
        if not state.root and not state.version:
            return None  # nothing was ever set
        if schema.is_current(state.root, state.version):
            return None
        ops = _way(state, self.shown(state, stream))
        return migrated(stored, schema.version, ops, stream, spill)

    def downgrade(self, state: StreamState, stream: str, to: int, spill: Spill) -> NewEvent | None:
        """Returns the event that brings a stored state to an older version, if one is needed."""
        schema, stored = self._stored(state, stream)
        if not state.root and not state.version:
            return None  # nothing was ever set
        if stored <= to:
            return None
        root = self._as_version(to, schema, state, stream)
        return migrated(stored, to, _way(state, root), stream, spill)

    def _stored(self, state: StreamState, stream: str) -> tuple[Schema[Any], int]:
        """Returns the schema of a scope that has one, and the version that its state has.

        Raises NewerSchemaError if that is newer than the program.
        """
        schema = self.of(stream)
        assert schema is not None, "BUG: a scope without a schema is migrated"
        stored = schema.stored_version(state.version)
        if stored > schema.version:
            raise schema.newer(stored, f'scope "{stream}"')
        return schema, stored

    def check(
        self, write: StreamWrite, before: Map, state: StreamState, schema: Schema[Any]
    ) -> None:
        """Raises SchemaError, which names every place, if a write leaves a state that does not fit.

        `before` is the state that the ops were made for. Only what they touched is looked at. A
        write that leaves nothing at all is always allowed: an empty state has no type.
        """
        first = write.new_events[0]
        if len(write.new_events) == 1 and len(first.ops) == 1 and before and not first.defaults:
            # The fast path of nearly every write: one field is set, and the new value fits.
            op = first.ops[0]
            if op.kind == "set" and schema.shape.takes(op.path, op.value):
                return
        if state.version != schema.version or not state.root:
            return
        ops = [op for one in write.new_events for op in (*one.defaults, *one.ops)]
        with codec.kept_closed():  # a sealed value was checked before it was sealed
            misfits = _misfits(schema.shape, ops, before, state.root)
        self._raise_misfits(write.stream, schema, misfits)

    def check_sealed(self, stream: str, op: Op, state: StreamState) -> None:
        """Raises SchemaError if a value that is about to be sealed does not fit its place."""
        schema = self.of(stream)
        if schema is None or state.version not in (0, schema.version):
            return
        with codec.kept_closed():
            after = tree.apply(state.root, [op], revision=None)
            misfits = _misfits(schema.shape, [op], state.root, after)
        self._raise_misfits(stream, schema, misfits)

    def _raise_misfits(self, stream: str, schema: Schema[Any], misfits: Sequence[Misfit]) -> None:
        if misfits:
            shown = "; ".join(map(str, misfits))
            raise SchemaError(
                f'scope "{stream}" has the schema "{schema.type.__name__}": {shown}; nothing '
                "was written",
                misfits=misfits,
            )

    def refuse(self, stream: str, version: int) -> NoReturn:
        """Raises NewerSchemaError for a write to a scope whose schema this program does not have.

        The write was not made for the shape of the data that is there, and could break it.
        """
        raise NewerSchemaError(
            f'scope "{stream}" has version {version} of a schema that this program has not: '
            "nothing was written",
            name=stream,
            stored=version,
            known=0,
            hint="open the store with schemas=[…], or with Settings(unchecked=True) to write all "
            "the same, without a check",
        )


NOTHING = Typed(())
"""The schemas of a store that was opened without any."""


def _way(state: StreamState, root: Map) -> list[Op]:
    """Returns the ops from a state to an upgraded one; what keeps its path keeps its end."""
    ops = tree.diff_ops(state.root, root)
    if not state.ends:
        return ops
    ends = {path: end for path, end in state.ends.items() if tree.locate(root, path) is not MISSING}
    return [*ops, *tree.ends_ops(ops, state.ends, ends)]


def _encoded(data: dict[str, Any]) -> dict[str, bytes]:
    """Returns the encoded values of a state, taken before an upgrade changes them in place."""
    return {key: codec.encode(value) for key, value in data.items()}


def _entered(data: dict[str, Any], before: dict[str, bytes], old: Map, blobs: Blobs | None) -> Map:
    """Returns plain data as a state that shares unchanged values with an old one."""
    table: dict[str, Any] = {}
    for key, value in data.items():
        raw = tree.set_op(key, value).value
        is_same = before.get(key) == bytes(raw)
        table[key] = tree.locate(old, (key,)) if is_same else enter(raw, None, blobs)
    return Map(table)


def migrated(start: int, end: int, ops: Sequence[Op], stream: str, spill: Spill) -> NewEvent:
    """Returns the event that brings a state from one version to another."""
    ops = [spill(op, stream) for op in ops]
    meta = encode_meta(Meta(schema=end))
    payload = migrated_payload(start, end, tree.encode_ops(ops))
    return NewEvent(MIGRATED, payload, tuple(ops), meta=meta)


def without_schema(stream: str) -> UsageError:
    """Returns the error for a typed read of a scope without a schema."""
    return UsageError(
        f'scope "{stream}" has no schema in this program',
        hint="open the store with schemas=[…]: one whose level or pattern is that of the scope",
    )


def _check_pattern(one: Schema[Any]) -> None:
    level = one.name.partition("/")[0]
    if (
        one.kind not in ("state", *ITEMS)
        or level in reserved_prefixes()
        or not level.isidentifier()
    ):
        raise UsageError(
            f"{one!r} cannot be the schema of scopes: expected one of a level, or of a pattern "
            "such as conversation/support-*",
            hint='@holdfast.schema("conversation", version=1)',
        )


def _doubled(stream: str, found: Sequence[Schema[Any]]) -> UsageError:
    shown = " and ".join(map(repr, found))
    is_same = found[0].name == found[1].name
    remedy = "leave one of them out" if is_same else "make the patterns narrower"
    return UsageError(f'"{stream}" has two schemas: {shown}', hint=f"a scope has one: {remedy}")


# --- what a write touched -------------------------------------------------------------------------


def _misfits(shape: Shape, ops: Sequence[Op], before: Map, after: Map) -> list[Misfit]:
    """Returns every place where ops left data that does not fit its type."""
    if not before or shape.is_whole:
        return shape.misfits(after.to_dict())
    found: list[Misfit] = []
    alone = _appended_alone(ops)
    for op in ops:
        for path in _paths(op):
            first = 0
            if op.kind == "append" and path in alone:
                kept = tree.get(before, path)
                first = len(kept) if isinstance(kept, List) else 0
            found += _misfits_by(shape, path, first, before, after)
    return list(dict.fromkeys(found))


def _appended_alone(ops: Sequence[Op]) -> set[Path]:
    """Returns the lists that ops append to, without any other op at or around them."""
    appended = {op.keys for op in ops if op.kind == "append"}
    for op in ops if appended else ():
        if op.kind != "append":
            shared = len(op.keys)
            appended = {
                path for path in appended if path[:shared] != op.keys[: min(shared, len(path))]
            }
    return appended


def _paths(op: Op) -> list[Path]:
    """Returns the paths at which an op puts or deletes something."""
    if op.kind == "truncate":
        return []
    if op.kind == "merge" and codec.parse_blob_ref(op.value) is None:
        return [(*op.keys, key) for key in codec.decode(op.value)]
    return [op.keys]


def _misfits_by(shape: Shape, path: Path, first: int, before: Map, after: Map) -> Iterator[Misfit]:
    """Yields what does not fit at a path, or in the value around it if that is checked as a whole.

    The value around it is checked as a whole if its type has a check of its own, and if it was not
    there before, because then it must be complete. Of a list that grew, only the items from `first`
    on are checked.
    """
    required = False
    for depth, step in enumerate(path):
        place = path[:depth]
        if shape.is_whole or (depth and not isinstance(tree.get(before, place), Map | List)):
            path, required = place, False
            break
        parts = shape.parts
        part = None if parts.fields is None else parts.fields.get(cast("str", step))
        if parts.each is not None:
            shape, required = parts.each, False
        elif part is not None:
            shape, required = part.shape, part.required
        else:
            kept = tree.locate(after, path[: depth + 1])
            if parts.is_closed and kept is not MISSING:
                yield Misfit(path[: depth + 1], "no such field", show_value(thaw(kept)))
            return
    kept = tree.locate(after, path)
    if kept is MISSING:
        if required and tree.locate(after, path[:-1]) is not MISSING:
            yield Misfit(path, show_type(shape.annotation), "nothing")
    elif first and shape.parts.each is not None:
        items = cast("List", tree.get(after, path))
        for index in range(first, len(items)):
            yield from shape.parts.each.misfits(thaw(items[index]), (*path, index))
    else:
        yield from shape.misfits(thaw(kept), path)
