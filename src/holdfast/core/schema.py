"""Schemas: a type with a name and a version, and the steps that bring other versions to it.

    @holdfast.schema("conversation", version=2, aliases={"mood": "sentiment"})
    class Ticket(msgspec.Struct):
        stage: Literal["triage", "open", "closed"]
        sentiment: float | None = None

    @holdfast.upgrade(Ticket, 1)          # from version 1 to 2: a pure function on plain data
    def _(old): return old | {"sentiment": None}

The class itself is not changed, but for an attribute with its `Schema` (`schema_of`) and the
methods `upgrade` and `downgrade`, so that `@Ticket.upgrade(1)` can be written. The kind says what a
schema is for: the state of scopes, their decisions or messages here, events of one type elsewhere
(`own_event.py`). The chain of steps is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from holdfast.core.arguments import check_call, check_text, check_whole
from holdfast.core.meta import Meta, encode_meta
from holdfast.core.shape import Misfit, Shape, check_type
from holdfast.errors import (
    ExistsError,
    NewerSchemaError,
    SchemaError,
    UpgradeError,
    UsageError,
    ValueDomainError,
    show_error,
    show_value,
)

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[[Any], Any])
Step = Callable[[dict[str, Any]], Any]

UNVERSIONED = 1
"""The version that data from before there was a schema counts as."""

ITEMS = ("decision", "message")
"""What else than the state a schema can be for: each item has a version of its own."""

_KEPT_AS = "__holdfast_schema__"
_METHODS = ("upgrade", "downgrade")


class Schema(Generic[T]):
    """A registered type: its name, its version, and the steps between versions."""

    def __init__(
        self,
        type: type[T],
        name: str,
        *,
        version: int,
        kind: str = "state",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = check_text(kind, "the kind of a schema")
        self.name = check_text(name, "the name of a schema")
        self.version = check_whole(version, "version", least=1)
        self.shape: Shape = check_type(type)
        self.type = type
        self.aliases = dict(aliases or {})
        self._renamings = _check_aliases(self.aliases, self.shape)
        self.meta = cast("str", encode_meta(Meta(schema=version)))
        """What is stored with each event of this version."""
        self._upgrades: dict[int, Step] = {}
        self._downgrades: dict[int, Step] = {}

    def __repr__(self) -> str:
        return f'<Schema {self.type.__name__} of {self.kind} "{self.name}", version {self.version}>'

    # --- steps -----------------------------------------------------------------------------------

    def upgrade(self, version: int) -> Callable[[F], F]:
        """Returns the decorator of the function that makes data of `version + 1` out of `version`.

        A function for version 0 upgrades data from before there was a schema; without one, such
        data counts as version 1.
        """
        return self._step(self._upgrades, version, "upgrade")

    def downgrade(self, version: int) -> Callable[[F], F]:
        """Returns the decorator of the function that makes `version - 1` out of `version`."""
        return self._step(self._downgrades, version, "downgrade")

    def _step(self, steps: dict[int, Step], version: int, what: str) -> Callable[[F], F]:
        least, most = (0, self.version - 1) if what == "upgrade" else (1, self.version)
        check_whole(version, f"the version of an {what}", least=least)
        if version > most:
            raise UsageError(
                f"{self._title} has version {self.version}: there is no {what} from {version}",
                hint=f"raise the version of the schema first, or {what} from {most}",
            )

        def register(function: F) -> F:
            check_call(function, f"an {what}")
            if version in steps:
                raise ExistsError(f"{self._title} has an {what} from version {version} already")
            steps[version] = function
            return function

        return register

    @property
    def _title(self) -> str:
        return f'schema "{self.type.__name__}" of {self.kind} "{self.name}"'

    @property
    def upgrades(self) -> list[int]:
        """The versions that have an upgrade to the next one."""
        return sorted(self._upgrades)

    @property
    def upgrade_functions(self) -> list[Step]:
        """The upgrades in order: what readers see of older events depends on them."""
        return [self._upgrades[version] for version in self.upgrades]

    @property
    def downgrades(self) -> list[int]:
        """The versions that have a downgrade to the one before."""
        return sorted(self._downgrades)

    def stored_version(self, version: int) -> int:
        """Returns the version of data that was stored with `version`, which is 0 if with none."""
        return version or (0 if 0 in self._upgrades else UNVERSIONED)

    # --- data ------------------------------------------------------------------------------------

    def is_current(self, data: Mapping[str, Any], version: int) -> bool:
        """Returns whether data stored with `version` needs no step and no renaming.

        Data of a newer version is not current.
        """
        return self.stored_version(version) == self.version and not self.renamed_in(data)

    def renamed_in(self, data: Mapping[str, Any]) -> list[str]:
        """Returns the old names of fields that the data has without the new ones."""
        return [
            old
            for old, (above, name, new) in self._renamings.items()
            if (holder := _within(data, above)) is not None and name in holder and new not in holder
        ]

    def doubled_in(self, data: Mapping[str, Any]) -> list[str]:
        """Returns the old names of fields that the data has beside the new ones."""
        return [
            old
            for old, (above, name, new) in self._renamings.items()
            if (holder := _within(data, above)) is not None and name in holder and new in holder
        ]

    def renames(self, path: Sequence[str | int]) -> bool:
        """Returns whether the value at a path may be stored under another name."""
        return any(
            tuple(path[: len(above) + 1]) in ((*above, name), (*above, new))
            for above, name, new in self._renamings.values()
        )

    def upgraded(
        self, data: dict[str, Any], version: int, where: str, *, copies: bool = True
    ) -> dict[str, Any]:
        """Returns plain data of `version` as this schema's version has it; `where` is for errors.

        The steps run one after another; then fields that were renamed get their new names. With
        `copies` the data that was given is not changed. Raises UpgradeError if a step is missing or
        raises, or if the result is not what the type allows, and NewerSchemaError if the data is
        newer than the schema.
        """
        stored = self.stored_version(version)
        if stored > self.version:
            raise self.newer(stored, where)
        data = deepcopy(data) if copies else data
        for at in range(stored, self.version):
            data = self._stepped(self._upgrades, data, at, at + 1, where)
        for above, name, new in self._renamings.values():
            holder = _within(data, above)
            if holder is not None and name in holder and new not in holder:
                data = _renamed(data, above, name, new)
        if misfits := self.shape.misfits(data):
            raise UpgradeError(
                f"{where} does not fit {self._title} after its upgrade from version {stored} to "
                f"{self.version}: {_shown(misfits)}",
                schema=self.name, start=stored, end=self.version, where=where, misfits=misfits,
                hint="correct the upgrade; what is stored is unchanged, raw=True reads it",
            )  # fmt: skip
        return data

    def downgraded(
        self, data: dict[str, Any], version: int, to: int, where: str, *, copies: bool = True
    ) -> dict[str, Any]:
        """Returns plain data of `version` as the older version `to` has it.

        Fields that no step touches stay. Raises UpgradeError if a step is missing or raises.
        """
        data = deepcopy(data) if copies else data
        for at in range(self.stored_version(version), to, -1):
            data = self._stepped(self._downgrades, data, at, at - 1, where)
        return data

    def _stepped(
        self, steps: dict[int, Step], data: dict[str, Any], at: int, to: int, where: str
    ) -> dict[str, Any]:
        what = "upgrade" if to > at else "downgrade"
        step = steps.get(at)
        if step is None:
            raise UpgradeError(
                f"{where} has version {at} of {self._title}: there is no {what} from {at} to {to}",
                schema=self.name, start=at, end=to, where=where,
                hint=f"register one with @holdfast.{what}({self.type.__name__}, {at})",
            )  # fmt: skip
        try:
            found = step(data)
        except Exception as error:
            raise UpgradeError(
                f"the {what} of {where} from version {at} to {to} of {self._title} failed: "
                f"{show_error(error)}",
                schema=self.name, start=at, end=to, where=where,
                hint=f"correct the {what}; what is stored is unchanged, raw=True reads it",
            ) from error  # fmt: skip
        if not isinstance(found, dict):
            raise UpgradeError(
                f"the {what} of {where} from version {at} to {to} of {self._title} returned "
                f"{show_value(found)}: expected a dict",
                schema=self.name, start=at, end=to, where=where,
                hint=f"the function returns the data of version {to}",
            )  # fmt: skip
        return cast("dict[str, Any]", found)

    def not_storable(
        self, error: ValueDomainError, version: int, to: int, where: str
    ) -> UpgradeError:
        """Returns the error for steps that returned a value that cannot be stored."""
        start = self.stored_version(version)
        what = "downgrade" if to < start else "upgrade"
        return UpgradeError(
            f"the {what} of {where} from version {start} to {to} of {self._title} returned what "
            f"cannot be stored: {error.message}",
            schema=self.name, start=start, end=to, where=where,
            hint=f"correct the {what}; what is stored is unchanged, raw=True reads it",
        )  # fmt: skip

    def newer(self, version: int, where: str) -> NewerSchemaError:
        """Returns the error for data that is newer than this schema."""
        return NewerSchemaError(
            f"{where} has version {version} of {self._title}, and this program has "
            f"{self.version}: it is never written over by older code",
            name=where, stored=version, known=self.version,
            hint="run the newer program, or downgrade the scope with it first",
        )  # fmt: skip

    def check(self, data: Any, where: str) -> None:
        """Raises SchemaError, which names every place, if plain data does not fit the type."""
        if misfits := self.shape.misfits(data):
            raise SchemaError(
                f"{where} does not fit {self._title}: {_shown(misfits)}", misfits=misfits
            )

    def load(self, data: Any, where: str) -> T:
        """Returns plain data of this version as a value of the type, or raises SchemaError."""
        try:
            return cast("T", self.shape.load(data))
        except Exception as error:
            self.check(data, where)
            raise SchemaError(f"{where} cannot be read as {self._title}: {error}") from error

    def dump(self, value: T) -> dict[str, Any]:
        """Returns the plain data of a value of the type."""
        dump = getattr(value, "model_dump", None)
        found = dump() if dump is not None else msgspec.to_builtins(value, builtin_types=_KEPT)
        return cast("dict[str, Any]", found)


_KEPT = (bytes, datetime)
"""Types that are stored without conversion (0003)."""


def _shown(misfits: list[Misfit]) -> str:
    return "; ".join(map(str, misfits))


_Renaming = tuple[tuple[str, ...], str, str]
"""The names of the fields around a renamed field, its old name and its new name."""


def _check_aliases(aliases: Mapping[str, str], shape: Shape) -> dict[str, _Renaming]:
    """Returns what aliases rename, the outermost first: inner ones are found by the new names.

    A field inside others is written with dots; its old and new name must be in the same field.
    """
    found: dict[str, _Renaming] = {}
    for old, new in sorted(aliases.items(), key=lambda pair: str(pair[0]).count(".")):
        *above, last = check_text(old, "the old name of a field").split(".")
        *same, now = check_text(new, "the new name of a field").split(".")
        fields = _fields_within(shape, above)
        if above != same or (fields is not None and (now not in fields or last in fields)):
            raise UsageError(
                f'the alias "{old}" is for "{new}": expected a former name of a field, and a field',
                hint='aliases={"old": "new", "customer.mail": "customer.email"}',
            )
        found[old] = tuple(above), last, now
    return found


def _fields_within(shape: Shape, above: Sequence[str]) -> Mapping[str, Any] | None:
    """Returns the fields that the type at a path of fields has; None if it may have any."""
    for step in above:
        if shape.parts.fields is None:
            return None
        part = shape.parts.fields.get(step)
        if part is None:
            return {}
        shape = part.shape
    return shape.parts.fields


def _renamed(data: dict[str, Any], above: Sequence[str], old: str, new: str) -> dict[str, Any]:
    """Returns data with a field renamed; the order of the fields stays."""
    if not above:
        return {new if key == old else key: value for key, value in data.items()}
    return {**data, above[0]: _renamed(data[above[0]], above[1:], old, new)}


def _within(data: Mapping[str, Any], above: Sequence[str]) -> Mapping[str, Any] | None:
    """Returns the mapping at a path of fields; None if there is no mapping."""
    found: Any = data
    for step in above:
        found = found.get(step) if isinstance(found, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None


def schema(
    name: str,
    *,
    version: int,
    kind: Literal["state", "decision", "message"] = "state",
    aliases: Mapping[str, str] | None = None,
) -> Callable[[C], C]:
    """Returns the decorator that makes a class the schema of the state of scopes.

    `name` is a level, or a pattern of scope names such as `conversation/support-*`. `version` is
    the version that the class describes. With `kind` "decision" or "message" the class is the
    schema of the decisions or messages of these scopes, which `read_as` reads. `aliases` has the
    former names of fields: `{"outcome": "result"}`, and of fields inside others
    `{"customer.mail": "customer.email"}`.
    """
    if kind != "state" and kind not in ITEMS:
        raise UsageError(
            f"the kind of a schema is state, {' or '.join(ITEMS)}, found {show_value(kind)}"
        )

    def register(type: C) -> C:
        attach(Schema(type, name, version=version, kind=kind, aliases=aliases))
        return type

    return register


def attach(one: Schema[Any]) -> None:
    """Keeps a schema with its class, and gives the class `upgrade` and `downgrade`, or raises."""
    kind = one.type
    if _KEPT_AS in vars(kind):
        raise ExistsError(f'the class "{kind.__name__}" has {vars(kind)[_KEPT_AS]!r} already')
    setattr(kind, _KEPT_AS, one)
    for method in _METHODS:
        # A field of that name keeps it: `holdfast.upgrade(cls, version)` does the same.
        if not hasattr(kind, method):
            setattr(kind, method, getattr(one, method))


def schema_of(kind: object) -> Schema[Any]:
    """Returns the schema of a class, or raises UsageError if it has none."""
    found = vars(kind).get(_KEPT_AS) if isinstance(kind, type) else None
    if found is None:
        raise UsageError(
            f"expected a class with a schema, found {show_value(kind)}",
            hint='decorate the class with @holdfast.schema("conversation", version=1)',
        )
    return cast("Schema[Any]", found)


def is_schema(kind: object, *, items: bool = False) -> bool:
    """Returns whether something is a class with a schema of states; with `items`, of items too."""
    of = getattr(vars(kind).get(_KEPT_AS), "kind", None) if isinstance(kind, type) else None
    return of == "state" or (items and of in ITEMS)


def upgrade(kind: type[Any], version: int) -> Callable[[F], F]:
    """Returns the decorator of a function that upgrades data of `version` to the next version.

    `kind` is the class with the schema. The function gets plain data and returns plain data.
    """
    return schema_of(kind).upgrade(version)


def downgrade(kind: type[Any], version: int) -> Callable[[F], F]:
    """Returns the decorator of a function that downgrades data of `version` to the one before.

    `kind` is the class with the schema. The function gets plain data and returns plain data.
    """
    return schema_of(kind).downgrade(version)
