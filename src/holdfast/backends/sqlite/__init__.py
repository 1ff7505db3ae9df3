"""A store in one SQLite database, for many threads and processes of one host.

The tables are in `sql/sqlite_0001.sql`, the reasons in `docs/decisions/0005-sqlite.md`. In short: a
list of commits is one transaction with one sync, and changes pages of one table and one index; the
head of a stream is cached and never stored; every row has a checksum, because SQLite has none.
"""

from holdfast.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
