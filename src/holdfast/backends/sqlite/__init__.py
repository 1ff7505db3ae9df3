"""A store in one SQLite database, for many threads and processes of one host.

The tables are in `sql/sqlite_0001.sql`, the reasons in `docs/decisions/0005-sqlite.md`. In short: a
commit is one transaction, one sync, and the pages of one table and one index; where a stream's
head is, is remembered, never stored; every row has a checksum, because SQLite has none.
"""

from holdfast.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
