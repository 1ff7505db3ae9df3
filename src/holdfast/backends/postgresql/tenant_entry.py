"""Opening a tenant's store: which tenant a login is, and whether it is kept apart (0077)."""

from __future__ import annotations

from msgspec import json

from holdfast.backends.postgresql.connection import (
    PostgresqlConnection,
    PostgresqlURL,
    Row,
    in_schema,
)
from holdfast.backends.tenancy import TenantRecord
from holdfast.errors import NotFoundError, UnavailableError, UsageError

HAS_TENANCY = """SELECT count(*) FROM pg_catalog.pg_class c
 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = 'tenancy'"""
COLUMNS = "name, application, made_us, settings, state"
_ENTER = f"""SELECT {COLUMNS}, locks, current_user = application FROM holdfast.tenants
 ORDER BY name = %s DESC LIMIT 1"""

# What would let a tenant's role see or touch the rows of others: one row for each such problem.
PROBLEMS = """WITH tables AS (
  SELECT c.oid, c.relname, c.relowner, c.relrowsecurity, c.relforcerowsecurity
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
   AND c.relname NOT IN ('migrations', 'tenancy'))
 SELECT 'table ' || relname || ' has no row security' FROM tables WHERE NOT relrowsecurity
 UNION ALL SELECT 'table ' || relname || ' does not force row security on its owner' FROM tables
  WHERE relrowsecurity AND NOT relforcerowsecurity
 UNION ALL SELECT 'table ' || t.relname || ' has another policy than it should: ' || p.polname
  FROM tables t JOIN pg_catalog.pg_policy p ON p.polrelid = t.oid
  WHERE p.polpermissive AND NOT (
   (p.polname = 'tenant'
    AND pg_get_expr(p.polqual, t.oid) = '(application = (CURRENT_USER)::text)'
    AND coalesce(pg_get_expr(p.polwithcheck, t.oid), '(application = (CURRENT_USER)::text)')
     = '(application = (CURRENT_USER)::text)')
   OR (p.polname = 'administrator'
    AND pg_get_expr(p.polqual, t.oid) LIKE 'pg_has_role(CURRENT_USER, %%'
    AND NOT 0 = ANY (p.polroles)))
 UNION ALL SELECT 'table ' || t.relname || ' has no policy for tenants' FROM tables t
  WHERE t.relrowsecurity AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_policy p
   WHERE p.polrelid = t.oid AND p.polname = 'tenant')
 UNION ALL SELECT 'function ' || p.proname || ' runs with the rights of its owner'
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname = %(schema)s AND p.prosecdef
   AND NOT (p.proname IN ('delete_marks', 'delete_object', 'forget_leases')
    AND 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}')))
 UNION ALL SELECT 'role ' || %(role)s::text || ' may lock table ' || relname FROM tables
  WHERE has_table_privilege(%(role)s::name, oid, 'UPDATE, DELETE, TRUNCATE')
 UNION ALL SELECT 'view ' || c.relname || ' runs with the rights of its owner'
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = %(schema)s AND c.relkind = 'v'
   AND has_table_privilege(%(role)s::name, c.oid, 'SELECT')
   AND NOT 'security_invoker=true' = ANY (coalesce(c.reloptions, '{}'))
 UNION ALL SELECT 'view ' || c.relname || ' keeps a copy of rows, whoever asks'
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = %(schema)s AND c.relkind = 'm'
 UNION ALL SELECT 'role ' || rolname || ' passes row security' FROM pg_catalog.pg_roles
  WHERE rolname = %(role)s::text AND (rolsuper OR rolbypassrls)
 UNION ALL SELECT 'role ' || %(role)s::text || ' is a member of ' || g.rolname
  FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
  JOIN pg_catalog.pg_roles r ON r.oid = m.member
  WHERE r.rolname = %(role)s::text AND g.rolname <> (SELECT members FROM holdfast.tenancy LIMIT 1)
 UNION ALL SELECT 'role ' || %(role)s::text || ' may change the tables' FROM tables
  WHERE relname = 'events' AND pg_has_role(%(role)s::name, relowner, 'MEMBER')"""


def enter_tenant(
    connection: PostgresqlConnection, server_url: PostgresqlURL, *, read_only: bool
) -> tuple[TenantRecord, str]:
    """Returns the tenant whose store is opened, and the text that its locks are made from.

    A tenant's login sees only its own row. With such a login, the store is not opened if anything
    would let other tenants in: nothing is written into a store that is open to its neighbours.
    """
    name, schema = server_url.tenant, server_url.schema
    if connection.ask(HAS_TENANCY, (schema,)) == [(0,)]:
        raise _unknown(server_url)
    rows = connection.ask(in_schema(_ENTER, schema), (name,))
    if not rows or (rows[0][0] != name and not rows[0][-1]):
        raise _unknown(server_url)
    record, locks, is_own = record_of(rows[0][:5]), str(rows[0][5]), bool(rows[0][6])
    if record.name != name:
        raise UsageError(
            f'this login of "{server_url.shown}" is that of another tenant than "{name}"',
            hint="use the URL that was given when the tenant was made",
        )
    if record.state != "active" and not read_only:
        raise UnavailableError(f'tenant "{name}" is being removed', hint="holdfast tenant list")
    if is_own:
        values = {"schema": schema, "role": record.id}
        if problems := connection.ask(in_schema(PROBLEMS, schema), values):
            raise UnavailableError(
                f'tenant "{name}" is not kept apart from others: {problems[0][0]}; it was not '
                "opened",
                hint=f"ask the administrator to run holdfast tenant show {name}",
            )
    return record, locks


def _unknown(server_url: PostgresqlURL) -> NotFoundError:
    return NotFoundError(
        f'there is no tenant "{server_url.tenant}" in schema "{server_url.schema}" of '
        f'"{server_url.shown}"',
        hint=f"holdfast tenant create {server_url.tenant}, as its administrator",
    )


def record_of(row: Row) -> TenantRecord:
    name, application, made_us, settings, state = row
    return TenantRecord(name, application, made_us, json.decode(settings), state)
