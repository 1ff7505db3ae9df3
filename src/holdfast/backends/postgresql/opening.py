"""Opening a store: what the server must be set to, and which incarnation of the store this is.

Two settings would make a lie of a receipt: `fsync = off`, with which a power cut can take anything,
and `synchronous_commit = off`, with which it takes the newest commits. Both are refused for the
durability `full`. `full_page_writes = off` can be right (a file system that never tears a page), so
it is reported.
"""

from __future__ import annotations

from time import monotonic

from msgspec import Struct

from holdfast.backends.postgresql.errors import translate
from holdfast.backends.postgresql.lines import Line, PostgresqlLines
from holdfast.backends.postgresql.place import Place
from holdfast.backends.postgresql.schema import FORMAT, in_schema, prepare_schema
from holdfast.backends.protocol import Durability
from holdfast.clock import Clock
from holdfast.errors import FormatError, NotFoundError, UnavailableError, UsageError
from holdfast.ids import new_id

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
# The base that lifts the next position above all that are there.
_MOVED = """UPDATE holdfast.stores SET system = %(system)s, timeline = holdfast.timeline(), base = (
  SELECT greatest(coalesce(max(position) / 4096, 0) - pg_current_xact_id()::text::bigint, 0)
  FROM (SELECT max(position) AS position FROM holdfast.events WHERE application = %(application)s
   UNION ALL SELECT max(position) FROM holdfast.silent WHERE application = %(application)s) AS seen
 ) + 4294967296 WHERE application = %(application)s AND system <> %(system)s"""


class Server(Struct, frozen=True):
    """What a server said of itself when the store was opened."""

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


def open_lines(
    place: Place, clock: Clock, *, durability: Durability, create: bool, read_only: bool
) -> tuple[PostgresqlLines, Server, str]:
    """Returns the lines of a store that is there, its server, and the store's id."""
    lines = PostgresqlLines(place, writes=not read_only)
    try:
        line = lines.connect(monotonic() + place.timeout_s)
        try:
            server = _server(line, place, durability)
            prepare_schema(line, place.schema, create=create, where=place.shown)
            store = _store(line, place, clock, create=create, read_only=read_only)
        finally:
            line.close()
    except Exception as exc:
        lines.close()
        ours = translate(exc, place, outcome_known=True)
        if ours is None:
            raise
        raise ours from None
    return lines, server, store


def _server(line: Line, place: Place, durability: Durability) -> Server:
    server = Server(*line.ask(_SETTINGS)[0])
    if server.number < VERSION_MIN:
        raise UnavailableError(
            f'"{place.shown}" is PostgreSQL {server.version}, expected 13 or later',
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
            f'durability "full" was asked of "{place.shown}", whose fsync is off',
            hint='set fsync = on in postgresql.conf, or open with durability="none"',
        )
    if durability == "full" and server.synchronous_commit == "off":
        raise UsageError(
            f'durability "full" was asked of "{place.shown}", whose synchronous_commit is off',
            hint=f"ALTER ROLE {server.user} SET synchronous_commit = on, or open with "
            'durability="process"',
        )
    return server


def _store(line: Line, place: Place, clock: Clock, *, create: bool, read_only: bool) -> str:
    def ask(statement: str, values: object) -> list[tuple[object, ...]]:
        return line.ask(in_schema(statement, place.schema), values)  # pyright: ignore

    found = ask(_STORE, (place.application,))
    if not found:
        if not create:
            raise NotFoundError(
                f'there is no store of application "{place.application}" in "{place.shown}"',
                hint="check the URL, or create the store",
            )
        system = line.ask(_SYSTEM)[0][0]
        ask(_ADD_STORE, (place.application, new_id(clock), FORMAT, system))
        found = ask(_STORE, (place.application,))
    store, format, system = found[0]
    if isinstance(format, int) and format > FORMAT:
        raise FormatError(
            f'"{place.shown}" has format {format}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    here = line.ask(_SYSTEM)[0][0]
    if here != system:
        if read_only:
            raise UnavailableError(
                f'"{place.shown}" was restored from a dump into another server',
                hint="open it once for writing, so that its positions go on from where they were",
            )
        ask(_MOVED, {"application": place.application, "system": here})
    return str(store)
