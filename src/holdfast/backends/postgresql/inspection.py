"""What `status` and `check` ask: plain facts, and all damage that can be found below the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.backends.postgresql.connection import PostgresqlCheckout
from holdfast.backends.postgresql.opening import PostgresqlServer, SchemaFormat
from holdfast.backends.postgresql.rows import PAGE, REVISION_MAX, decode, object_crc
from holdfast.backends.protocol import Durability, Finding
from holdfast.errors import CorruptError

# The size of the whole schema: its applications share pages.
_SIZE = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind = 'r'"""
# pg_stat_activity hides transactions of other roles from a role without that right, so the age of
# the oldest may be too low; the number of events that wait for it is always right.
_LAG = """SELECT holdfast.newest(%(application)s), (SELECT count(*) FROM holdfast.events
  WHERE application = %(application)s AND position >= holdfast.horizon(%(application)s)),
 (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid())"""
# Identifies a database among those of all servers, whatever URL it was reached by.
DATABASE = """SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || oid::text
 FROM pg_catalog.pg_database WHERE datname = current_database()"""
_FIRST = """SELECT stream, first FROM holdfast.streams WHERE application = %(application)s
 AND stream > %(stream)s ORDER BY stream LIMIT %(limit)s"""
_ORPHANS = """SELECT DISTINCT e.stream FROM holdfast.events e LEFT JOIN holdfast.streams s
 USING (application, stream)
 WHERE e.application = %(application)s AND s.stream IS NULL ORDER BY 1"""
_HALF = """SELECT position FROM (SELECT position, count(*) AS n, max(ordinal) + 1 AS whole
  FROM holdfast.events WHERE application = %(application)s GROUP BY position) AS commits
 WHERE n <> whole ORDER BY position"""
# As many objects as fit into some megabytes, and at least one.
_OBJECTS = """SELECT kind, name, crc, data FROM (SELECT *, sum(octet_length(data)) OVER (
  ORDER BY kind, name) - octet_length(data) AS before FROM (
   SELECT kind, name, crc, data FROM holdfast.objects WHERE application = %(application)s
   AND (kind, name) > (%(kind)s, %(name)s) ORDER BY kind, name LIMIT %(limit)s) AS page) AS sized
 WHERE before < %(bytes)s ORDER BY kind, name"""
_MISSING = """SELECT name FROM unnest(ARRAY['stores', 'streams', 'events', 'silent', 'leases',
 'marks', 'objects', 'events_by_position', 'events_by_key', 'events_by_checkpoint']) AS name
 WHERE to_regclass(%(schema)s || '.' || name) IS NULL"""
_INVALID = """SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND NOT i.indisvalid"""

_PAGE = 500
_ROWS = 2000
_BYTES = 4 << 20


class PostgresqlInspection:
    """Facts and verification, which reads in pages, each its own statement: commits go on."""

    def __init__(
        self,
        checkout: PostgresqlCheckout,
        schema_format: SchemaFormat,
        server: PostgresqlServer,
        store: str,
        durability: Durability,
    ) -> None:
        self._checkout = checkout
        self._schema_format = schema_format
        self._server = server
        self._store = store
        self._durability: Durability = durability
        self._values = {"application": checkout.application, "schema": checkout.server_url.schema}

    def describe(self) -> dict[str, Any]:
        [(position, waiting, oldest_s)] = self._ask(_LAG)
        [(size,)], [(database,)] = self._ask(_SIZE), self._ask(DATABASE)
        reports = self._server.reports()
        if waiting:
            reports.append(
                f"followers wait: {waiting} events come after an open transaction of this server"
            )
        return {
            "kind": "postgresql",
            "place": self._checkout.server_url.shown,
            "application": self._checkout.application,
            "schema": self._checkout.server_url.schema,
            "database": database,
            "format": self._schema_format.look(),
            "store": self._store,
            "durability": self._durability,
            "size_bytes": size,
            "position": position,
            "lag_events": waiting,
            "oldest_transaction_s": round(oldest_s, 3),
            "server": self._server.version,
            "synchronous_commit": self._server.synchronous_commit,
            "reports": reports,
        }

    def verify(self, *, read_all: bool) -> Iterator[Finding]:
        """Yields what is wrong; with `read_all`, the checksum of every row is computed."""
        for (name,) in self._ask(_MISSING):
            yield Finding(name, "is missing from the schema")
        for (name,) in self._ask(_INVALID):
            yield Finding(name, "is an index that is not valid; REINDEX it")
        if read_all:
            self._schema_format.look()
            yield from self._events()
            yield from self._objects()

    def _ask(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        return self._checkout.ask(statement, {**self._values, **values})

    def _events(self) -> Iterator[Finding]:
        for (stream,) in self._ask(_ORPHANS):
            yield Finding(stream, "is not among the streams")
        for (position,) in self._ask(_HALF):
            yield Finding(f"position {position}", "its commit is not whole")
        last = ""
        # The streams of a page are read before their events: a stream that is listed by then has
        # events.
        while page := self._ask(_FIRST, stream=last, limit=_PAGE):
            yield from self._streams(last, dict(page))
            last = page[-1][0]

    def _streams(self, after: str, firsts: dict[str, int]) -> Iterator[Finding]:
        """Checks the rows of many streams, read in the order of streams, page by page."""
        expected = dict(firsts)
        last, until = (after, REVISION_MAX), max(firsts)
        page = PAGE[self._schema_format.number]
        while rows := self._ask(page, stream=last[0], revision=last[1], until=until, limit=_ROWS):
            for row in rows:
                stream, revision = last = row[:2]
                if stream not in expected:
                    continue  # one of those that are not among the streams, or a new one
                where = f"{stream}@{revision}"
                try:
                    decode(row, self._checkout.server_url.shown)
                except CorruptError as exc:
                    yield Finding(where, exc.message)
                if revision != expected[stream]:
                    yield Finding(where, f"expected revision {expected[stream]} in its place")
                expected[stream] = revision + 1
        for stream, first in firsts.items():
            if expected[stream] == first:
                yield Finding(stream, "the stream has no events")

    def _objects(self) -> Iterator[Finding]:
        kind = name = ""
        while rows := self._ask(_OBJECTS, kind=kind, name=name, limit=_PAGE, bytes=_BYTES):
            for kind, name, crc, data in rows:
                if crc != object_crc(kind, name, data):
                    harmless = kind == "snapshot"
                    yield Finding(f"{kind} {name}", "fails its checksum", harmless=harmless)
