"""Tenants in a PostgreSQL database: a role each, and row security on every table (0077).

All tenants share the tables of one schema, `holdfast_tenants` unless the URL names another. Only
stores of tenants are allowed there, and no other schema is changed.

The rights on the tables belong to one role without a login. Each tenant's role is a member of it
and has no other rights. So taking the membership away locks a tenant out at once, also in the
middle of a session.
"""

from __future__ import annotations

import logging
from functools import cache
from hashlib import sha256
from importlib.resources import files
from time import monotonic
from typing import Any, LiteralString, cast

import psycopg
from msgspec import json
from psycopg import sql

from holdfast.backends.connection_pool import DeadlineError
from holdfast.backends.postgresql.connection import (
    PostgresqlConnection,
    PostgresqlPool,
    Row,
    Values,
    in_schema,
    parse_url,
    translate,
)
from holdfast.backends.postgresql.opening import add_store, prepare_schema
from holdfast.backends.postgresql.rows import lock_of
from holdfast.backends.postgresql.tenant_entry import (
    COLUMNS,
    HAS_TENANCY,
    PROBLEMS,
    record_of,
)
from holdfast.backends.protocol import Leftover
from holdfast.backends.tenancy import (
    Dropped,
    TenantLogin,
    TenantRecord,
    login_url,
    new_password,
    new_tenant_id,
    url_of_tenant,
)
from holdfast.clock import Clock
from holdfast.errors import (
    ExistsError,
    FormatError,
    UnavailableError,
    UsageError,
)

_log = logging.getLogger("holdfast.backends")
_NUMBER = 1
_DATA = ("marks", "leases", "silent", "objects", "events", "streams")
"""The tables with a tenant's data, in the order in which they are emptied."""
_ROWS_AT_ONCE = 10_000
_NOT_THEIRS = ("user", "password", "passfile", "service", "sslcert", "sslkey", "sslpassword")
_RIGHTS = (
    "SELECT ON holdfast.migrations, holdfast.tenancy, holdfast.tenants",
    "SELECT, UPDATE (base, timeline, system) ON holdfast.stores",
    "SELECT, INSERT ON holdfast.streams, holdfast.silent",
    "SELECT, INSERT, UPDATE (payload, crc) ON holdfast.events",
    "SELECT, INSERT, UPDATE (owner, epoch, ends_us) ON holdfast.leases",
    "SELECT, INSERT, UPDATE (due, priority, team, owner, ends_us) ON holdfast.marks",
    "SELECT, INSERT, UPDATE (crc, data) ON holdfast.objects",
)
"""The rights of tenants on the tables. UPDATE of a whole table, DELETE and TRUNCATE are not among
them: each is also the right to lock the table against all other tenants."""

_TENANCY = "SELECT number, digest, members FROM holdfast.tenancy"
_LIST = f"SELECT {COLUMNS} FROM holdfast.tenants ORDER BY name"
_ADD = """INSERT INTO holdfast.tenants (application, name, made_us, locks, settings, state)
 VALUES (%s, %s, holdfast.now_us(), %s, %s, 'active')"""
_IS_MEMBER = """SELECT count(*) FROM pg_catalog.pg_auth_members m
 JOIN pg_catalog.pg_roles g ON g.oid = m.roleid JOIN pg_catalog.pg_roles r ON r.oid = m.member
 WHERE g.rolname = %s AND r.rolname = %s"""
# Weaknesses that do not open rows to others. Only an administrator can remove them, if at all.
_WEAK = """SELECT 'every role sees in pg_locks which locks others hold, and can take them: as a '
  || 'superuser, REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC' WHERE
  has_table_privilege(%(role)s::name, 'pg_catalog.pg_locks', 'SELECT')
  AND has_function_privilege(%(role)s::name, 'pg_catalog.pg_lock_status()', 'EXECUTE')
 UNION ALL SELECT 'tenants may create objects in the schema public: REVOKE CREATE ON SCHEMA public '
  || 'FROM PUBLIC' WHERE to_regnamespace('public') IS NOT NULL
  AND has_schema_privilege(%(role)s::name, 'public', 'CREATE')
 UNION ALL SELECT 'the server lets role ' || %(role)s::text || ' create schemas' WHERE
  has_database_privilege(%(role)s::name, current_database(), 'CREATE')"""
_HIDE_LOCKS = """REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION pg_catalog.pg_lock_status() FROM PUBLIC;
GRANT SELECT ON pg_catalog.pg_locks TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_lock_status() TO pg_monitor"""


@cache
def _file_text() -> str:
    name = f"postgresql_tenants_{_NUMBER:04}.sql"
    return files("holdfast.backends").joinpath("sql", name).read_text("utf-8")


def _digest() -> str:
    return sha256(_file_text().encode()).hexdigest()


class PostgresqlTenants:
    """The tenants of one schema, for an administrator."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._server_url = parse_url(url, for_tenants=True)
        self._schema = self._server_url.schema
        self._pool = PostgresqlPool(self._server_url, writes=True)
        self._line: PostgresqlConnection | None = None

    def list(self) -> list[TenantRecord]:
        if not self._has_tenancy():
            return []
        try:
            self._upgrade()
        except UnavailableError as exc:  # a tenant lists itself
            _log.debug("the schema of the tenants stays as it is: %s", exc.message)
        return [record_of(row) for row in self._ask(_LIST)]

    def create(self, name: str, settings: dict[str, Any]) -> TenantLogin:
        self._prepare()
        role, password = new_tenant_id(self._clock), new_password(self._clock)
        locks = self._clock.random_bytes(16).hex()
        connection = self._connection()
        try:
            with connection.transaction():
                self._ask(_ADD, (role, name, locks, json.encode(settings).decode()))
                add_store(connection, self._server_url, role, self._clock)
                self._make_role(role, password)
        except UnavailableError as error:
            if any(one.name == name for one in self.list()):
                raise ExistsError(f'there is a tenant "{name}" already') from error
            raise
        [made] = [one for one in self.list() if one.name == name]
        return self._login(made, password)

    def _make_role(self, role: str, password: str) -> None:
        """Makes a login role. The server gets a SCRAM verifier, never the password itself.

        So a server that logs its statements logs nothing that a login could be made with.
        """
        verifier = self._verifier(role, password)
        self._run(
            "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS "
            "PASSWORD {}",
            sql.Identifier(role),
            sql.Literal(verifier),
        )
        self._run("GRANT {} TO {}", sql.Identifier(self._members()), sql.Identifier(role))

    def _verifier(self, role: str, password: str) -> str:
        line = self._connection().pgconn
        return line.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()

    def _login(self, tenant: TenantRecord, password: str) -> TenantLogin:
        url = login_url(self._url, tenant.id, password, (*_NOT_THEIRS, "tenant", "application"))
        return TenantLogin(tenant, url_of_tenant(url, tenant.name))

    def renew(self, tenant: TenantRecord) -> TenantLogin:
        password = new_password(self._clock)
        verifier = sql.Literal(self._verifier(tenant.id, password))
        self._run("ALTER ROLE {} PASSWORD {}", sql.Identifier(tenant.id), verifier)
        if tenant.state == "active":
            self.let_in(tenant)  # it may be locked out by a removal that was stopped
        return self._login(tenant, password)

    def change(self, tenant: TenantRecord, settings: dict[str, Any]) -> None:
        text = json.encode(settings).decode()
        self._ask("UPDATE holdfast.tenants SET settings = %s WHERE name = %s", (text, tenant.name))

    def problems(self, tenant: TenantRecord | None) -> list[str]:
        if not self._has_tenancy():
            return []
        named = self._members() if tenant is None else tenant.id
        values = {"schema": self._schema, "role": named}
        return [text for part in (PROBLEMS, _WEAK) for (text,) in self._ask(part, values)]

    def store_url(self, tenant: TenantRecord) -> str:
        return url_of_tenant(self._url, tenant.name)

    # --- the schema --------------------------------------------------------------------------

    def _has_tenancy(self) -> bool:
        return self._ask(HAS_TENANCY, (self._schema,)) != [(0,)]

    def _members(self) -> str:
        return str(self._ask("SELECT members FROM holdfast.tenancy")[0][0])

    def _prepare(self) -> None:
        """Makes the schema of tenants, if it is not there; refuses one with stores of others."""
        connection, where = self._connection(), self._server_url.shown
        self._upgrade()
        if not self._has_tenancy():
            strangers = self._ask("SELECT application FROM holdfast.stores ORDER BY 1 LIMIT 3")
            if strangers:
                names = ", ".join(f'"{one}"' for (one,) in strangers)
                raise UsageError(
                    f'schema "{self._schema}" has stores that are no tenants ({names}), and '
                    "tenants need a schema of their own",
                    hint="leave schema= out of the URL, or name another one",
                )
            with connection.transaction():
                lock = lock_of("schema", self._schema)
                self._ask("SELECT pg_advisory_xact_lock(%s)", (lock,))
                if not self._has_tenancy():
                    self._make_schema()
            self._hide_locks()
        for number, digest, _ in self._ask(_TENANCY):
            if number != _NUMBER or digest != _digest():
                raise FormatError(
                    f'the tenants of "{where}" were made by another version of holdfast',
                    hint="upgrade holdfast",
                )

    def _upgrade(self) -> None:
        """Brings tables and functions to this version: the roles of tenants may not do it."""
        try:
            prepare_schema(self._connection(), self._server_url, create=True, writes=True)
        except (psycopg.Error, DeadlineError) as exc:
            raise self._translated(exc) from None

    def _make_schema(self) -> None:
        members = f"{self._schema[:40]}_{self._clock.random_bytes(4).hex()}"
        connection = self._connection()
        connection.execute(in_schema(_file_text(), self._schema).encode())
        self._ask("INSERT INTO holdfast.tenancy VALUES (%s, %s, %s)", (_NUMBER, _digest(), members))
        to = sql.Identifier(members)
        self._run("CREATE ROLE {} NOLOGIN", to)
        database = sql.Identifier(str(self._ask("SELECT current_database()::text")[0][0]))
        self._run("GRANT CONNECT ON DATABASE {} TO {}", database, to)
        self._run("GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(self._schema), to)
        for rights in _RIGHTS:
            self._run(in_schema(f"GRANT {rights} TO {{}}", self._schema), to)
        if connection.info.server_version >= 150_000:
            # Before 15 a view always has the rights of its owner: tenants have none on it there.
            view = in_schema("holdfast.history", self._schema)
            self._run(f"ALTER VIEW {view} SET (security_invoker = true)")
            self._run(f"GRANT SELECT ON {view} TO {{}}", to)

    def _hide_locks(self) -> None:
        """Hides the server's locks from all but monitors, if this role may.

        Whoever sees the number of an advisory lock can take it, and hold up another tenant.
        """
        try:
            with self._connection().transaction():
                self._connection().execute(_HIDE_LOCKS.encode())
        except psycopg.errors.InsufficientPrivilege:
            _log.warning("pg_locks stays visible to tenants: only a superuser can change that")

    # --- removing one ------------------------------------------------------------------------

    def lock_out(self, tenant: TenantRecord) -> None:
        """Takes the membership and the login from the tenant's role.

        Without the membership the role has no rights from its next statement on, in any session.
        """
        if self._has_role(tenant):
            role = sql.Identifier(tenant.id)
            with self._connection().transaction():
                self._run("REVOKE {} FROM {}", sql.Identifier(self._members()), role)
                self._run("ALTER ROLE {} NOLOGIN", role)

    def let_in(self, tenant: TenantRecord) -> None:
        """Gives back what `lock_out` took.

        A role that is still a member was not locked out here. It may have lost its login by an
        administrator's hand, and that is left alone.
        """
        if self._ask(_IS_MEMBER, (self._members(), tenant.id)) == [(0,)]:
            role = sql.Identifier(tenant.id)
            with self._connection().transaction():
                self._run("GRANT {} TO {}", sql.Identifier(self._members()), role)
                self._run("ALTER ROLE {} LOGIN", role)

    def begin_removal(self, tenant: TenantRecord) -> None:
        self._ask(
            "UPDATE holdfast.tenants SET state = 'removing' WHERE application = %s", (tenant.id,)
        )

    def drop(self, tenant: TenantRecord, *, whole: bool) -> Dropped:
        counts = {table: self._empty(table, tenant.id) for table in _DATA}
        left: list[Leftover] = []
        for table in _DATA:
            statement = in_schema(f"VACUUM {'FULL ' * whole}holdfast.{table}", self._schema)
            self._run(statement)
        if not whole:
            names = ", ".join(in_schema(f"holdfast.{table}", self._schema) for table in _DATA)
            remedy = f"run VACUUM FULL {names}, or remove with whole=True (--whole): it locks them"
            left.append(Leftover("old versions of rows in the tables", remedy))
        remedy = "they go when the server has recycled them, and its archive and replicas theirs"
        left.append(Leftover("the server's write-ahead log", remedy))
        return Dropped(counts, left)

    def _empty(self, table: str, application: str) -> int:
        """Deletes the rows of a tenant, a page at a time; returns how many.

        Each page is a transaction of its own, so a call that is stopped can go on later, and no
        open transaction holds up followers for long.
        """
        statement = f"""WITH page AS (SELECT ctid FROM holdfast.{table}
          WHERE application = %s LIMIT {_ROWS_AT_ONCE}), gone AS (
          DELETE FROM holdfast.{table} t USING page WHERE t.ctid = page.ctid RETURNING 1)
         SELECT count(*) FROM gone"""
        total = 0
        while count := self._ask(statement, (application,))[0][0]:
            total += count
        return total

    def end_removal(self, tenant: TenantRecord, receipt: str) -> None:
        with self._connection().transaction():
            self._ask("DELETE FROM holdfast.stores WHERE application = %s", (tenant.id,))
            self._ask(
                "INSERT INTO holdfast.removed_tenants VALUES (%s, holdfast.now_us(), %s)"
                " ON CONFLICT DO NOTHING",
                (tenant.id, receipt),
            )
            self._ask("DELETE FROM holdfast.tenants WHERE application = %s", (tenant.id,))
            if self._has_role(tenant):
                self._run("DROP ROLE {}", sql.Identifier(tenant.id))

    def _has_role(self, tenant: TenantRecord) -> bool:
        asked = "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname = %s"
        return self._ask(asked, (tenant.id,)) == [(1,)]

    def receipts(self) -> list[str]:
        if not self._has_tenancy():
            return []
        rows = self._ask("SELECT receipt FROM holdfast.removed_tenants ORDER BY removed_us")
        return [receipt for (receipt,) in rows]

    # --- the connection ----------------------------------------------------------------------

    def _connection(self) -> PostgresqlConnection:
        """Returns the one connection, with a new deadline."""
        if self._line is None or self._line.closed:
            try:
                self._line = self._pool.connect(monotonic() + self._server_url.timeout_s)
            except (psycopg.Error, DeadlineError) as exc:
                raise self._translated(exc) from None
        self._line.deadline = monotonic() + self._server_url.timeout_s
        return self._line

    def _ask(self, statement: str, values: Values = ()) -> list[Row]:
        try:
            return self._connection().ask(in_schema(statement, self._schema), values)
        except (psycopg.Error, DeadlineError) as exc:
            raise self._translated(exc) from None

    def _run(self, statement: str, *names: sql.Composable) -> None:
        text = sql.SQL(cast("LiteralString", statement)).format(*names)
        try:
            self._connection().execute(text)
        except (psycopg.Error, DeadlineError) as exc:
            raise self._translated(exc) from None

    def _translated(self, exc: BaseException) -> Exception:
        ours = translate(exc, self._server_url, outcome_known=True)
        assert ours is not None, "BUG: an error of the server that has no meaning here"
        return ours

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._pool.close()
