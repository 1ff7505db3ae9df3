"""A store in a PostgreSQL database: many processes, many machines, one server's clock.

`docs/decisions/0006-postgresql.md` says how it is laid out and why. The tables are in
`sql/postgresql_0001.sql` and `sql/postgresql_0002.sql`; what writes a commit is in
`sql/postgresql_functions_0001.sql`. No call keeps state in a session of the server, so a pooler in
transaction mode may stand between.
"""

from __future__ import annotations

from holdfast.backends.postgresql.backend import PostgresqlBackend

__all__ = ["PostgresqlBackend"]
