"""Where the index of a store is kept.

files        the folder `query` in the store's directory
SQLite       the folder `state.db.query` beside the database `state.db`
PostgreSQL   the schema `holdfast_query_…` of the same database
Redis, a mix of backends    a folder of this user's caches, `holdfast/query/…`
memory, or a read-only handle of a store without an index    in memory
an encrypted store    in memory: anywhere else it would be a copy in clear
"""

from __future__ import annotations

import os
import shutil
from hashlib import sha256

from holdfast.backends.derived_file import SideFile
from holdfast.backends.derived_tables import SideTables
from holdfast.core.log import Log


def tables_for(log: Log, *, read_only: bool) -> SideTables:
    """Returns the tables of a store's index; a read-only handle uses only a folder that exists."""
    folder = _folder_of(log)
    if read_only and (folder is None or not os.path.isdir(folder)):
        folder = None
    return _tables(log, "query", folder, read_only=read_only)


def outside_tables_for(log: Log, *, read_only: bool) -> SideTables:
    """Returns the tables for outside tools; for a read-only handle they are in memory."""
    folder = None if read_only else _folder_of(log)
    return _tables(log, "sql", folder, read_only=read_only, name="tables.db")


def _tables(
    log: Log, what: str, folder: str | None, *, read_only: bool, name: str | None = None
) -> SideTables:
    """Returns tables on the store's server if it has them, else in a file of a folder."""
    on_server = None if read_only or log.is_encrypted else log.side_tables(what)
    return SideFile(folder, name=name) if on_server is None else on_server


def is_there(log: Log) -> bool:
    """Returns whether the store has an index, or may have one on its server."""
    if log.is_encrypted:
        return False
    folder = _folder(log.describe())
    return log.side_tables("query") is not None or (folder is not None and os.path.isdir(folder))


def forget_folder(log: Log) -> None:
    """Deletes the folder of derived tables of a store whose owner is removed, if there is one."""
    folder = _folder(log.describe())
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_of(log: Log) -> str | None:
    """Returns the folder for derived tables; None if there is none, or the store is encrypted."""
    return None if log.is_encrypted else _folder(log.describe())


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
