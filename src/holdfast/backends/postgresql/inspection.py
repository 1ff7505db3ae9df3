"""What `status` and `check` ask: plain facts, and everything that can be wrong below the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.backends.postgresql.connection import PostgresqlCheckout
from holdfast.backends.postgresql.opening import FORMAT, PostgresqlServer
from holdfast.backends.postgresql.rows import PAGE, decode, object_crc
from holdfast.backends.protocol import Durability, Finding
from holdfast.errors import CorruptError

# Of the whole schema: pages are shared between its applications.
_SIZE = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind = 'r'"""
# Strangers' transactions are shown only to who may see them; their effect is always seen.
_LAG = """SELECT holdfast.newest(%(application)s), (SELECT count(*) FROM holdfast.events
  WHERE application = %(application)s AND position >= holdfast.horizon(%(application)s)),
 (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid())"""
_FIRST = """SELECT stream, first FROM holdfast.streams WHERE application = %(application)s
 AND stream > %(stream)s ORDER BY stream LIMIT %(limit)s"""
_ORPHANS = """SELECT DISTINCT e.stream FROM holdfast.events e LEFT JOIN holdfast.streams s
 USING (application, stream)
 WHERE e.application = %(application)s AND s.stream IS NULL ORDER BY 1"""
_HALF = """SELECT position FROM (SELECT position, count(*) AS n, max(ordinal) + 1 AS whole
  FROM holdfast.events WHERE application = %(application)s GROUP BY position) AS commits
 WHERE n <> whole ORDER BY position"""
_OBJECTS = """SELECT kind, name, crc, data FROM holdfast.objects WHERE application = %(application)s
 AND (kind, name) > (%(kind)s, %(name)s) ORDER BY kind, name LIMIT 1"""
_MISSING = """SELECT name FROM unnest(ARRAY['stores', 'streams', 'events', 'silent', 'leases',
 'marks', 'objects', 'events_by_position', 'events_by_key', 'events_by_checkpoint']) AS name
 WHERE to_regclass(%(schema)s || '.' || name) IS NULL"""
_INVALID = """SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND NOT i.indisvalid"""

_PAGE = 500


class PostgresqlInspection:
    """Verification reads in pages, each a statement of its own, so commits go on meanwhile."""

    def __init__(
        self,
        checkout: PostgresqlCheckout,
        server: PostgresqlServer,
        store: str,
        durability: Durability,
    ) -> None:
        self._checkout = checkout
        self._server = server
        self._store = store
        self._durability: Durability = durability
        self._values = {"application": checkout.application, "schema": checkout.server_url.schema}

    def describe(self) -> dict[str, Any]:
        [(position, waiting, oldest_s)] = self._ask(_LAG)
        [(size,)] = self._ask(_SIZE)
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
            "format": FORMAT,
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
        while page := self._ask(_FIRST, stream=last, limit=_PAGE):
            for stream, first in page:
                yield from self._stream(stream, first)
            last = page[-1][0]

    def _stream(self, stream: str, first: int) -> Iterator[Finding]:
        expected = first
        last = stream, first - 1
        while rows := self._ask(PAGE, stream=last[0], revision=last[1], limit=_PAGE):
            rows = [row for row in rows if row[0] == stream]
            for row in rows:
                revision = row[1]
                where = f"{stream}@{revision}"
                try:
                    decode(row, self._checkout.server_url.shown)
                except CorruptError as exc:
                    yield Finding(where, exc.message)
                if revision != expected:
                    yield Finding(where, f"expected revision {expected} in its place")
                expected = revision + 1
            if len(rows) < _PAGE:
                break
            last = stream, rows[-1][1]
        if expected == first:
            yield Finding(stream, "the stream has no events")

    def _objects(self) -> Iterator[Finding]:
        kind = name = ""
        while rows := self._ask(_OBJECTS, kind=kind, name=name):
            kind, name, crc, data = rows[0]
            if crc != object_crc(kind, name, data):
                yield Finding(f"{kind} {name}", "fails its checksum", harmless=kind == "snapshot")
