"""The schemas of a store and the migration of its states: `hf.schemas`."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.arguments import check_call, check_flag, check_whole
from holdfast.core.kernel import Kernel
from holdfast.core.listing import adopt_levels, scope_names
from holdfast.core.migrate import (
    Migration,
    Outdated,
    SchemaSummary,
    Stored,
    migrate,
    outdated,
    summaries,
    typed_scopes,
)
from holdfast.core.shape import Misfit

__all__ = ["Migration", "Misfit", "Outdated", "SchemaSummary", "SchemasRoom", "Stored"]


class SchemasRoom:
    """The schemas of states, how many scopes have each version, and migrations."""

    def __init__(self, kernel: Kernel) -> None:
        self._log = kernel.log
        self._levels = kernel.levels

    def __repr__(self) -> str:
        return "<SchemasRoom>"

    def list(self) -> list[SchemaSummary]:
        """Returns the schemas that the store was opened with, and counts the scopes per version.

        If it was opened without schemas, returns the versions that are stored, by level.
        """
        typed = self._log.typed
        if typed.all or typed.items:
            return summaries(self._log, typed_scopes(self._log))
        adopt_levels(self._log, self._levels)
        levels = self._levels.names()
        return summaries(self._log, scope_names(self._log, levels, prefix="", after="", limit=None))

    def migrate(
        self,
        *,
        check: bool = False,
        dry_run: bool = False,
        to: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Migration:
        """Migrates the state of every scope that has a schema to its version, by one event each.

        Without it, the first write to a scope migrates that scope. `check` only finds the scopes
        that are at another version; `dry_run` also computes what would change. `to` is an older
        version to return to, by the downgrades of the schemas. If the call was stopped, call it
        again: it continues. `progress(done, total)` is called every few scopes.
        """
        if to is not None:
            check_whole(to, "to", least=1)
        if progress is not None:
            check_call(progress, "progress")
        if check_flag(check, "check") or check_flag(dry_run, "dry_run"):
            found = list(outdated(self._log, compute=dry_run, to=to))
            return Migration(len(typed_scopes(self._log)), 0, found, is_dry=not check)
        return migrate(self._log, to=to, progress=progress)
