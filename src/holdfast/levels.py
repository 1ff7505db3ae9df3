"""The levels of scopes: which stands above which, and whether state outlives its scope."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import ExistsError, UsageError, show_value
from holdfast.ids import check_level, check_name

GLOBAL = "global"
TEAM = "team"
WORKFLOW = "workflow"
CONVERSATION = "conversation"


class Level(Struct, frozen=True):
    """A kind of scope. `keep` says whether closing one keeps its state, unless told otherwise."""

    name: str
    keep: bool = True


_OWN = frozenset(("group", "inbox", "lease", "run", "store"))


class Levels:
    """The levels that a store knows, from the widest to the narrowest."""

    def __init__(self) -> None:
        self._order = [Level(name) for name in (GLOBAL, TEAM, WORKFLOW, CONVERSATION)]

    def register(self, name: str, *, below: str, keep: bool = True) -> None:
        """Adds a level right below another one (VIC-24)."""
        check_level(name)
        if any(level.name == name for level in self._order):
            raise ExistsError(f'level "{name}" is registered already')
        self._order.insert(self._rank(below) + 1, Level(name, keep))

    def names(self) -> list[str]:
        """Returns the names, widest first."""
        return [level.name for level in self._order]

    def keeps(self, name: str) -> bool:
        """Returns the level's policy for the state of a closed scope."""
        return self._order[self._rank(name)].keep

    def check_scope(self, level: str, id: str | None) -> tuple[str, str | None]:
        """Returns level and id of a scope that may exist, or raises UsageError."""
        level = self._order[self._rank(level)].name
        if level == GLOBAL:
            if id is not None:
                raise UsageError("there is one global scope: it takes no id")
            return level, None
        if id is None:
            raise UsageError(f"a {level} scope needs an id")
        return level, check_name(id, "scope id")

    def check_own(self, name: str) -> None:
        """Raises UsageError for a stream that holdfast itself writes: it can only be read."""
        if name.partition("/")[0] in _OWN:
            raise UsageError(
                f'"{name}" is written by holdfast itself: a change by hand would break what it '
                "keeps there",
                hint="write to a scope of your own",
            )

    def check_parent(self, name: str, scope: object) -> None:
        """Raises UsageError unless it is a scope whose level stands above that of the name."""
        parent = getattr(scope, "name", None)
        if not isinstance(parent, str):
            raise UsageError(f"a parent is a scope, found {show_value(scope)}")
        level, above = split_name(name)[0], split_name(parent)[0]
        if self._rank(above) >= self._rank(level):
            raise UsageError(
                f'scope "{parent}" cannot be the parent of "{name}": expected a level above '
                f'"{level}", which are {", ".join(self.names()[: self._rank(level)])}'
            )

    def _rank(self, name: str) -> int:
        for rank, level in enumerate(self._order):
            if level.name == name:
                return rank
        raise UsageError(
            f"there is no level {show_value(name)}: expected one of {', '.join(self.names())}",
            hint="register_level adds one",
        )


def split_name(name: str) -> tuple[str, str | None]:
    """Returns level and id of a scope's name: `global`, or `level/id`."""
    level, slash, id = name.partition("/")
    return level, id if slash else None
