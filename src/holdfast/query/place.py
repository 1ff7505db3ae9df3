"""Where the index of a store is kept.

files        the folder `query` in the store's directory
SQLite       the folder `state.db.query` beside the database `state.db`
PostgreSQL   the schema `holdfast_query_…` of the same database
Redis, a mix of backends    a folder of this user's caches, `holdfast/query/…`
memory, and a handle that only reads where there is none yet    in memory
"""

from __future__ import annotations

import os
from hashlib import sha256

from holdfast.backends.side import SideTables
from holdfast.backends.side_file import SideFile
from holdfast.core.log import Log


def tables_for(log: Log, *, read_only: bool) -> SideTables:
    """Returns where the index of a store is, or is to be."""
    facts = log.describe()
    if not read_only and (tables := log.side_tables("query")) is not None:
        return tables
    folder = _folder(facts)
    if read_only and not (folder is not None and os.path.isdir(folder)):
        folder = None
    return SideFile(folder)


def outside_tables_for(log: Log, *, read_only: bool) -> SideTables:
    """Returns where the tables for outside tools are: `tables.db` beside the index, or a schema."""
    facts = log.describe()
    if not read_only and (tables := log.side_tables("sql")) is not None:
        return tables
    folder = None if read_only else _folder(facts)
    return SideFile(folder, name="tables.db")


def _folder(facts: dict[str, object]) -> str | None:
    match facts["kind"]:
        case "files":
            return os.path.join(str(facts["path"]), "query")
        case "sqlite":
            return f"{facts['path']}.query"
        case "redis" | "mixed" | "postgresql":
            caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            named = f"{facts['kind']} {facts['place']} {facts.get('application', '')}"
            digits = sha256(named.encode("utf-8", "replace")).hexdigest()[:16]
            return os.path.join(caches, "holdfast", "query", digits)
        case _:
            return None
