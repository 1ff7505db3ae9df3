"""Opening a store: its schema, the settings that the server must have, and the store's id.

Two settings would make a receipt worthless: with `fsync = off` a power cut can destroy anything,
with `synchronous_commit = off` it takes the newest commits. Both are refused for the durability
`full`. `full_page_writes = off` can be right (on a file system that never tears a page), so it is
only reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from time import monotonic
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from psycopg.errors import InsufficientPrivilege

from holdfast.backends.postgresql.connection import (
    PostgresqlCheckout,
    PostgresqlConnection,
    PostgresqlPool,
    PostgresqlURL,
    in_schema,
    translate,
)
from holdfast.backends.postgresql.rows import lock_of
from holdfast.backends.postgresql.tenant_entry import enter_tenant
from holdfast.backends.protocol import Durability
from holdfast.backends.tenancy import TenantRecord
from holdfast.clock import Clock
from holdfast.errors import CorruptError, FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.names import new_id

# --- schema ---------------------------------------------------------------------------------------
#
# The numbered SQL files: which of them were run on this schema, and running the missing ones.
#
# The text of a file never changes once it was released: its digest is stored beside its number. Two
# processes that open a store at the same time take turns by an advisory lock of the transaction.
# Opening a store for writing runs all missing files; opening it read-only runs none.
#
# The number of the newest file of tables is the format of the schema. A file of functions changes
# no table, so it has no number among the formats: an older holdfast would refuse the store for it
# without a reason.


T = TypeVar("T")
FORMAT = 2
"""Format 2 has meta. Opening a schema of format 1 for writing raises it to this format."""
# Asked of the catalog's own rows and not with to_regclass: for that, a name that did not exist when
# this session last looked may stay unknown until the transaction ends.
_HAS_TABLE = """SELECT count(*) FROM pg_catalog.pg_class c
 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = 'migrations'"""
_HAS_SCHEMA = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = %s"
_CREATE_SCHEMA = 'CREATE SCHEMA "holdfast"'
_DONE = "SELECT number, digest FROM holdfast.migrations ORDER BY number"
_ADD = "INSERT INTO holdfast.migrations (number, digest) VALUES (%s, %s)"
_FUNCTIONS = """SELECT pg_catalog.obj_description(p.oid, 'pg_proc') FROM pg_catalog.pg_proc p
 JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = %s AND p.proname = 'commit'"""
_ADD_FUNCTIONS = "COMMENT ON FUNCTION holdfast.commit IS '{digest}'"


@cache
def file_text(number: int) -> str:
    """Returns the statements of a file of tables, as written for the schema `holdfast`."""
    return _text(f"postgresql_{number:04}.sql")


@cache
def functions_text() -> str:
    """Returns the statements of the file of functions, as written for the schema `holdfast`."""
    return _text("postgresql_functions_0001.sql")


def _text(name: str) -> str:
    return files("holdfast.backends").joinpath("sql", name).read_text("utf-8")


def digest_of(number: int) -> str:
    return sha256(file_text(number).encode()).hexdigest()


def functions_digest() -> str:
    return sha256(functions_text().encode()).hexdigest()


def prepare_schema(
    connection: PostgresqlConnection, server_url: PostgresqlURL, *, create: bool, writes: bool
) -> int:
    """Returns the schema's format.

    Creates the schema if there is none and `create` allows that, and upgrades one that is opened
    for writing.
    """
    schema, where = server_url.schema, server_url.shown
    done = _done(connection, schema)
    _check(done, where)
    if not done and not create:
        raise NotFoundError(
            f'there is no store in "{where}": schema "{schema}" has no tables of ours',
            hint="check the URL, or create the store",
        )
    if done and (not writes or _is_of_today(connection, schema, done, where)):
        return len(done)
    try:
        return upgrade_schema(connection, schema, where=where)
    except InsufficientPrivilege as exc:
        if not done:
            raise
        [(role,)] = connection.ask("SELECT current_user::text")
        who = "open it for writing once as the role that owns its tables"
        if server_url.tenant:
            who = "ask the administrator to run holdfast tenant list"
        raise UnavailableError(
            f'"{where}" was made by an earlier holdfast and has to be upgraded, which role '
            f'"{role}" may not do: {exc.diag.message_primary}; nothing was changed',
            hint=f"{who}; to read it, open it with read_only=True",
        ) from exc


def upgrade_schema(connection: PostgresqlConnection, schema: str, *, where: str) -> int:
    """Runs all SQL files that were not run yet, in one transaction; returns the newest format."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of("schema", schema),))
        # Looked at again under the lock: another process may have run them while this one waited.
        done = _done(connection, schema)
        _check(done, where)
        # An administrator may have made the schema: then the right to make one is not needed.
        if connection.ask(_HAS_SCHEMA, (schema,)) == [(0,)]:
            connection.ask(in_schema(_CREATE_SCHEMA, schema))
        for number in range(len(done) + 1, FORMAT + 1):
            connection.execute(in_schema(file_text(number), schema).encode())
            connection.execute(in_schema(_ADD, schema).encode(), (number, digest_of(number)))
        if not _has_functions(connection, schema, where):
            connection.execute(in_schema(functions_text(), schema).encode())
            added = _ADD_FUNCTIONS.format(digest=functions_digest())
            connection.execute(in_schema(added, schema).encode())
    return FORMAT


def _done(connection: PostgresqlConnection, schema: str) -> dict[int, str]:
    if connection.ask(_HAS_TABLE, (schema,)) == [(0,)]:
        return {}
    return dict(connection.ask(in_schema(_DONE, schema)))


def _check(done: dict[int, str], where: str) -> None:
    if max(done, default=0) > FORMAT:
        raise FormatError(
            f'"{where}" has format {max(done)}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    for number, digest in done.items():
        _compare(digest, digest_of(number), f"SQL file {number}", where)


def _is_of_today(
    connection: PostgresqlConnection, schema: str, done: Mapping[int, str], where: str
) -> bool:
    """Returns whether every file was run, also the file of functions."""
    return len(done) == FORMAT and _has_functions(connection, schema, where)


def _has_functions(connection: PostgresqlConnection, schema: str, where: str) -> bool:
    rows = connection.ask(_FUNCTIONS, (schema,))
    if not rows or rows[0][0] is None:  # a dump may have left its comment out
        return False
    _compare(rows[0][0], functions_digest(), "the SQL file of functions", where)
    return True


def _compare(found: str, expected: str, what: str, where: str) -> None:
    if found != expected:
        raise CorruptError(
            f'"{where}" was made by another version of {what} than the one here',
            where=where,
            hint="use the release of holdfast that made it",
        )


class SchemaFormat:
    """The format of the schema that a handle works in.

    Another handle may raise it while this one is open read-only. Statements for format 1 do not
    read meta, so a row that has meta fails its checksum. Only then is it worth asking whether the
    format was raised: no read pays for it otherwise.
    """

    def __init__(self, checkout: PostgresqlCheckout, number: int) -> None:
        self._checkout = checkout
        self.number = number

    def read(self, ask: Callable[[int], T]) -> T:
        """Calls `ask` with the format; once more if damage may be due to a raised format."""
        try:
            return ask(self.number)
        except CorruptError:
            if self.number == FORMAT or self.look() == 1:
                raise
            return ask(self.number)

    def look(self) -> int:
        """Returns the format that the schema has now."""
        schema = self._checkout.server_url.schema
        self.number = self._checkout.pool.call(lambda connection: len(_done(connection, schema)))
        return self.number


VERSION_MIN = 130_000
_SETTINGS = """SELECT current_setting('server_version_num')::int, current_setting('server_version'),
 current_setting('server_encoding'), current_setting('default_transaction_isolation'),
 current_setting('synchronous_commit'), current_setting('fsync'),
 current_setting('full_page_writes'), current_setting('data_checksums'), pg_is_in_recovery(),
 current_user::text, current_database()::text"""
_STORE = "SELECT store, format, system FROM holdfast.stores WHERE application = %s"
_ADD_STORE = """INSERT INTO holdfast.stores
 SELECT %s, %s, %s, holdfast.now_us(), %s, holdfast.timeline(), 0 ON CONFLICT DO NOTHING"""
_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
# In another database system, such as one that a dump was restored into, transaction ids start anew.
# So `base` grows until the next position is above all that were given, with room to spare.
_MOVED = """UPDATE holdfast.stores SET system = %(system)s, timeline = holdfast.timeline(), base = (
  SELECT greatest(coalesce(max(position) / 4096, 0) - pg_current_xact_id()::text::bigint, 0)
  FROM (SELECT max(position) AS position FROM holdfast.events WHERE application = %(application)s
   UNION ALL SELECT max(position) FROM holdfast.silent WHERE application = %(application)s) AS seen
 ) + 4294967296 WHERE application = %(application)s AND system <> %(system)s"""


class PostgresqlServer(Struct, frozen=True):
    """The version and settings that the server reported when the store was opened."""

    number: int
    version: str
    encoding: str
    isolation: str
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    data_checksums: str
    standby: bool
    user: str
    database: str

    def reports(self) -> list[str]:
        """Returns what an operator should know about its settings."""
        found: list[str] = []
        if self.fsync == "off":
            found.append("fsync is off: a power cut can destroy the database")
        if self.synchronous_commit == "off":
            found.append("synchronous_commit is off: a power cut takes the newest commits")
        if self.full_page_writes == "off":
            found.append("full_page_writes is off: a power cut can leave torn pages")
        if self.data_checksums == "off":
            found.append("data_checksums is off: the server does not notice a damaged page")
        return found


class OpenedStore(NamedTuple):
    """What is known of an open store; `server_url` names its application."""

    server_url: PostgresqlURL
    pool: PostgresqlPool
    server: PostgresqlServer
    store: str
    format: int
    tenant: TenantRecord | None


def open_pool(
    server_url: PostgresqlURL,
    clock: Clock,
    *,
    durability: Durability,
    create: bool,
    read_only: bool,
) -> OpenedStore:
    """Opens a store. The store of a tenant is made by the administrator, never here."""
    pool = PostgresqlPool(server_url, writes=not read_only)
    tenant = None
    try:
        connection = pool.connect(monotonic() + server_url.timeout_s)
        try:
            server = _server(connection, server_url, durability)
            if server_url.tenant:
                tenant, locks = enter_tenant(connection, server_url, read_only=read_only)
                server_url = replace(server_url, application=tenant.id, locks=locks)
                create = False
            format = prepare_schema(connection, server_url, create=create, writes=not read_only)
            store = _store(connection, server_url, clock, create=create, read_only=read_only)
        finally:
            connection.close()
    except Exception as exc:
        pool.close()
        ours = translate(exc, server_url, outcome_known=True)
        if ours is None:
            raise
        raise ours from None
    return OpenedStore(server_url, pool, server, store, format, tenant)


def _server(
    connection: PostgresqlConnection, server_url: PostgresqlURL, durability: Durability
) -> PostgresqlServer:
    server = PostgresqlServer(*connection.ask(_SETTINGS)[0])
    if server.number < VERSION_MIN:
        raise UnavailableError(
            f'"{server_url.shown}" is PostgreSQL {server.version}, expected 13 or later',
            hint="upgrade the server",
        )
    if server.encoding != "UTF8":
        raise UnavailableError(
            f'database "{server.database}" has the encoding {server.encoding}, expected UTF8',
            hint=f"CREATE DATABASE {server.database}_utf8 ENCODING 'UTF8' TEMPLATE template0",
        )
    if server.isolation != "read committed":
        raise UsageError(
            f"default_transaction_isolation is {server.isolation!r}, expected 'read committed'",
            hint=f"ALTER ROLE {server.user} SET default_transaction_isolation = 'read committed'",
        )
    if durability == "full" and server.fsync == "off":
        raise UsageError(
            f'durability "full" was asked of "{server_url.shown}", whose fsync is off',
            hint='set fsync = on in postgresql.conf, or open with durability="none"',
        )
    if durability == "full" and server.synchronous_commit == "off":
        raise UsageError(
            f'durability "full" was asked of "{server_url.shown}", whose synchronous_commit is off',
            hint=f"ALTER ROLE {server.user} SET synchronous_commit = on, or open with "
            'durability="process"',
        )
    return server


def add_store(
    connection: PostgresqlConnection, server_url: PostgresqlURL, application: str, clock: Clock
) -> None:
    """Makes the store of an application, if it has none."""
    system = connection.ask(_SYSTEM)[0][0]
    values = application, new_id(clock), FORMAT, system
    connection.ask(in_schema(_ADD_STORE, server_url.schema), values)


def _store(
    connection: PostgresqlConnection,
    server_url: PostgresqlURL,
    clock: Clock,
    *,
    create: bool,
    read_only: bool,
) -> str:
    def ask(statement: str, values: object) -> list[tuple[object, ...]]:
        return connection.ask(in_schema(statement, server_url.schema), values)  # pyright: ignore

    found = ask(_STORE, (server_url.application,))
    if not found:
        if not create:
            raise NotFoundError(
                f'there is no store of application "{server_url.application}" in '
                f'"{server_url.shown}"',
                hint="check the URL, or create the store",
            )
        add_store(connection, server_url, server_url.application, clock)
        found = ask(_STORE, (server_url.application,))
    store, format, system = found[0]
    if isinstance(format, int) and format > FORMAT:
        raise FormatError(
            f'"{server_url.shown}" has format {format}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    here = connection.ask(_SYSTEM)[0][0]
    if here != system:
        if read_only:
            raise UnavailableError(
                f'"{server_url.shown}" was restored from a dump into another server',
                hint="open it once for writing, so that its positions go on from where they were",
            )
        ask(_MOVED, {"application": server_url.application, "system": here})
    return str(store)
