"""The index: documents in tables that follow the log, and the questions answered from them.

It is derived and disposable. It notes up to which position it has followed the log, and the last
event there. An index that is damaged, of another store, of another format, or ahead of the log is
made again, and a warning is logged. A question waits until the index has reached the position that
the store had when the question was asked, so it finds what was acknowledged before (guarantee 3).
Nothing follows in the background: the questions do, one process at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event as Signal
from time import monotonic
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.backends.derived_tables import Condition, DamagedTablesError, SideSession, SideTables
from holdfast.backends.protocol import START, Position, Record
from holdfast.core import codec
from holdfast.core.event import to_datetime
from holdfast.core.log import Log
from holdfast.errors import ExpiredError, HoldfastError, UnavailableError
from holdfast.query import paths, vectors
from holdfast.query.documents import Document, decision_document
from holdfast.query.follow import Batch, Changes, key_of
from holdfast.query.form import TIMEOUT_S, Hit, Hits, Query
from holdfast.query.links import WORKERS, DanglingLink, Known, dangling, scope_named, target
from holdfast.query.paths import Listed, Row, StateIndex, read_listed
from holdfast.query.scan import has_state, make_page
from holdfast.query.vectors import Embedder, Model, Similar
from holdfast.query.words import chunks_of
from holdfast.record.context import RecordContext
from holdfast.record.keyed_item import lineage

T = TypeVar("T")
_logger = logging.getLogger("holdfast.query")
FORMAT = "7"
BATCH_EVENTS = 2_000
GLANCE_S = 0.005
_KEYS_AT_ONCE = 300
_COLUMNS = ("n", "kind", "scope", "key", "id", "time", "actor", "type", "status", "revision",
            "expires", "chunks", "tags", "links", "shown", "source", "trust",
            "position")  # fmt: skip
_SHOWN = "kind, scope, id, time, actor, type, status, revision, tags, links, shown, source, trust"
"""The columns that a hit is made of."""
_ADD = f"INSERT INTO docs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_TABLES = """
CREATE TABLE about (name {text} PRIMARY KEY, value {text} NOT NULL)
CREATE TABLE docs (n {key}, kind {text}, scope {text}, key {text}, id {text}, time {whole},
 actor {text}, type {text}, status {text}, revision {whole}, expires {whole},
 chunks {whole}, tags {text}, links {text}, shown {text}, source {text}, trust {text},
 position {whole})
CREATE UNIQUE INDEX docs_item ON docs (kind, scope, key) WHERE kind <> 'log'
CREATE INDEX docs_kind ON docs (kind, time, position)
CREATE INDEX docs_actor ON docs (actor, kind, time)
CREATE INDEX docs_source ON docs (source, trust, time) WHERE source <> ''
CREATE INDEX docs_trust ON docs (trust, time) WHERE trust <> ''
CREATE INDEX docs_type ON docs (type, time) WHERE kind IN ('log')
CREATE INDEX docs_type_at ON docs (type, position) WHERE kind IN ('log')
CREATE INDEX docs_actor_at ON docs (actor, position) WHERE kind IN ('log')
CREATE INDEX docs_time ON docs (time) WHERE kind <> 'log'
CREATE INDEX docs_scope ON docs (scope, time) WHERE kind <> 'log'
CREATE INDEX docs_stream ON docs (scope, time) WHERE kind IN ('log')
CREATE INDEX docs_decided ON docs (scope, revision) WHERE kind = 'decision'
CREATE INDEX docs_id ON docs (kind, id) WHERE kind = 'decision'
CREATE INDEX docs_long ON docs (n) WHERE chunks > 1
CREATE TABLE tags (tag {text}, n {whole})
CREATE INDEX tags_tag ON tags (tag, n)
CREATE INDEX tags_n ON tags (n)
CREATE TABLE links (link {text}, n {whole})
CREATE INDEX links_link ON links (link, n)
CREATE INDEX links_n ON links (n)
CREATE TABLE forks (stream {text} PRIMARY KEY, origin {text})
CREATE TABLE expiring (stream {text} PRIMARY KEY, expires {whole})
CREATE TABLE sealed (stream {text} PRIMARY KEY)
"""
_STATES_AT_ONCE = 500
_STATES = (
    f"SELECT n, scope FROM docs WHERE kind = 'state' AND n > ? ORDER BY n LIMIT {_STATES_AT_ONCE}"
)
_ORDER = "time DESC, scope DESC, revision DESC, kind DESC, id DESC"


class QueryIndex:
    """The index of one store, as used by one process."""

    def __init__(
        self, context: RecordContext, tables: SideTables, declared: Sequence[StateIndex] = ()
    ) -> None:
        self._declared = declared
        self._listed: list[Listed] = []
        self._context = context
        self._log: Log = context.log
        self._tables = tables
        self._is_known = False
        self._expiring: str | None = None
        self._store = str(context.log.describe()["store"])

    @property
    def place(self) -> str:
        """Where the tables are, for people."""
        return self._tables.place

    # --- asking ----------------------------------------------------------------------------------

    def ask(self, query: Query) -> Hits:
        """Answers a question, after following the log up to the position of this call.

        Raises UnavailableError if that takes longer than the timeout, unless `stale_ok`.
        """
        reached, behind = self._reach(query)
        hits, explained = self._find(query)
        answer = make_page(query, hits, int(reached), behind)
        answer.explained = (*explained, f"index in {self._tables.place}")
        return answer

    def _reach(self, query: Query) -> tuple[Position, int]:
        """Follows the log for a question; returns the position reached, and how far behind it is.

        Raises UnavailableError if the index is behind and the question does not allow that.
        """
        newest, is_settled = self._log.settled_position(query.timeout_s)
        reached = self.follow(newest, query.timeout_s)
        behind = _distance(self._log.position(), reached) if newest > reached else 0
        behind = max(behind, int(not is_settled))
        if query.where and not behind:
            self._fill_paths(monotonic() + query.timeout_s)
        if behind and not query.stale_ok:
            raise UnavailableError(
                f"the index is {behind} positions behind after {query.timeout_s:g} s",
                hint="give the query a longer timeout, or stale_ok=True",
            )
        return reached, behind

    def similar(self, query: Query, embedder: Embedder, text: str, limit: int) -> list[Similar]:
        """Returns the hits of a question whose texts are nearest in meaning to a text."""
        until = monotonic() + query.timeout_s
        self._reach(query)
        [target] = vectors.embed(embedder, [text])
        model = self._fill_vectors(embedder, until, stale_ok=query.stale_ok)
        now_us = self._now_us()

        def work(session: SideSession) -> list[tuple[float, Hit]]:
            others = self._asked(session, query, now_us)[0]
            found = vectors.nearest(session, self._tables, model, target, others, limit)
            hits: list[tuple[float, Hit]] = []
            for score, n in found:
                rows = session.ask(f"SELECT {_SHOWN} FROM docs WHERE n = ?", [n])
                hits += [(score, _hit(row)) for row in rows]
            return hits

        hits = self._tables.read(work) if target else []
        hits.sort(key=lambda one: (one[0], one[1].place), reverse=True)
        return [Similar(hit, score) for score, hit in hits[:limit]]

    def _fill_vectors(self, embedder: Embedder, until: float, *, stale_ok: bool) -> Model:
        """Embeds the documents that the embedder has not seen yet, and stores their vectors.

        Raises UnavailableError if the time is up, unless `stale_ok`. Each batch is kept, so the
        next call goes on from there.
        """
        while True:
            told = self.rows("SELECT value FROM about WHERE name = 'vectors'", [])[0][0]
            model = vectors.model_for(told, embedder)
            listed: Any = self.rows(vectors.LISTED, [model.seen])
            if not listed:
                return model
            if monotonic() > until:
                if stale_ok:
                    return model
                raise UnavailableError(
                    f'the embedder "{embedder.name}" has not seen everything in time',
                    hint="give it a longer timeout, or stale_ok=True; what it has seen is kept",
                )
            texts = vectors.texts_of(self._context, listed)
            made = vectors.embed(embedder, [text for _, text in texts]) if texts else []
            pairs = [(n, one) for (n, _), one in zip(texts, made, strict=True) if one]
            self._tables.write(
                partial(
                    vectors.keep, tables=self._tables, model=model, seen=listed[-1][0],
                    vectors=pairs,
                )
            )  # fmt: skip

    def _find(self, query: Query) -> tuple[list[Hit], list[str]]:
        """Returns the hits, one more than the limit if there are more, and how they were found."""
        most = None if query.limit is None else query.limit + 1
        if not query.where:
            rows, explained = self._rows(query, most)
            return list(map(_hit, rows)), explained
        hits: list[Hit] = []
        while True:
            rows, explained = self._rows(query, None if most is None else max(most, 200))
            for row in rows:
                hit = _hit(row)
                if has_state(self._context, query, hit.scope):
                    hits.append(hit)
            if most is None or len(hits) >= most or len(rows) < max(most, 200):
                return hits[:most], explained
            query = replace(query, passed=_hit(rows[-1]).place)

    def _rows(self, query: Query, limit: int | None) -> tuple[list[tuple[Any, ...]], list[str]]:
        now_us = self._now_us()

        def work(session: SideSession) -> tuple[list[tuple[Any, ...]], list[str]]:
            others, explained = self._asked(session, query, now_us)
            index = _ordered_by(query) if "paths" not in others[0] else None
            hint = self._tables.hint(index) if index else ""
            statement = f"SELECT {_SHOWN} FROM docs {hint} WHERE {others[0]} ORDER BY {_ORDER}"
            if limit is not None:
                statement += f" LIMIT {int(limit)}"
            return session.ask(statement, others[1]), explained

        return self._tables.read(work)

    def _asked(
        self, session: SideSession, query: Query, now_us: int | None
    ) -> tuple[Condition, list[str]]:
        """Returns a question as one SQL condition, and lines that explain it."""
        parts = self._conditions(query, now_us)
        explained = [" AND ".join(text for text, _ in parts) or "everything"]
        others = _joined(parts)
        if query.terms:
            terms = [(term.words, term.is_prefix) for term in query.terms]
            found = self._tables.with_words(session, terms, others)
            explained.append(found[0])
            others = _joined([*parts, found])
        return others, explained

    def _now_us(self) -> int | None:
        """Returns the time at which expiry is judged; None if no scope expires.

        Call it outside of a transaction. The clock may be the server's, and with a pool of one
        connection, asking for it within a transaction would wait for itself.
        """
        return None if self._expiring is None else self._log.now_us(self._expiring)

    def _conditions(self, query: Query, now_us: int | None) -> list[Condition]:
        """Returns a question as SQL conditions with parameters; no user's value is in the text."""
        parts: list[Condition] = []
        kinds = ("state",) if query.where else query.kinds
        if query.where and query.kinds and "state" not in query.kinds:
            parts.append(("1 = 0", []))
        # Kinds come from a closed list, so they may stand in the text. They must: the database
        # uses a partial index only if the text of the statement implies the index's condition.
        if "log" not in kinds:
            parts.append(("kind <> 'log'", []))
        if kinds:
            parts.append((f"kind IN ({', '.join(repr(str(kind)) for kind in kinds)})", []))
        for column, words in (("type", query.types), ("status", query.statuses)):
            if words:
                parts.append((f"{column} IN ({', '.join('?' * len(words))})", list(words)))
        if query.actor is not None:
            parts.append(("actor = ?", [query.actor]))
        if query.source is not None:
            parts.append(("source <> '' AND source = ?", [query.source]))
        if query.trust is not None:
            parts.append(("trust <> '' AND trust = ?", [query.trust]))
        if query.scope is not None:
            is_name = "*" not in query.scope
            like = ("scope = ?", [query.scope])
            parts.append(like if is_name else self._tables.like("scope", query.scope))
        if query.since is not None:
            parts.append(("time >= ?", [query.since]))
        if query.until is not None:
            parts.append(("time < ?", [query.until]))
        if query.tag is not None:
            parts.append(("docs.n IN (SELECT n FROM tags WHERE tag = ?)", [query.tag]))
        if query.links:
            marks = ", ".join("?" * len(query.links))
            found = f"docs.n IN (SELECT n FROM links WHERE link IN ({marks}))"
            parts.append((found, list(query.links)))
        parts += paths.narrowed(query.where, self._listed, self._log.typed)
        if query.passed is not None:
            parts.append(
                ("(time, scope, revision, kind, id) < (?, ?, ?, ?, ?)", list(query.passed))
            )
        if now_us is not None:
            parts.append(("(expires = 0 OR expires > ?)", [now_us]))
        return parts

    def resolve(self, link: str, scope: str, timeout_s: float) -> Hit | None:
        """Returns the target of a link in a scope; None if it has none in the store."""
        found = self._condition_of(link, scope)
        if found is None:
            return None
        self._follow_now(timeout_s)
        statement = f"SELECT {_SHOWN} FROM docs WHERE {found[0]} ORDER BY {_ORDER}"
        rows = self._tables.read(lambda session: session.ask(f"{statement} LIMIT 1", found[1]))
        return _hit(rows[0]) if rows else None

    def dangling(self, timeout_s: float) -> list[DanglingLink]:
        """Returns the links whose target is not in the store."""
        self._follow_now(timeout_s)
        nowhere, others = self._tables.read(dangling)
        # Outside of the transaction above: the pool may have one connection for both.
        known = Known(self._context, self._scopes_with_tasks(others))
        scopes = known.scopes_of(one.link for one in others)
        return nowhere + [
            one
            for one in others
            if one.link not in scopes
            and (scope_named(one.link) is not None or not known.leads(one.link, one.scope))
        ]

    def _scopes_with_tasks(self, links: Sequence[DanglingLink]) -> list[str]:
        if not any(one.link.startswith("agent:") for one in links):
            return []
        statement = "SELECT DISTINCT scope FROM docs WHERE kind = 'task' ORDER BY scope"
        return [scope for (scope,) in self._tables.read(lambda session: session.ask(statement))]

    def _condition_of(self, link: str, scope: str) -> Condition | None:
        """Returns the SQL condition for the target of a link; None if it leads out or nowhere."""
        name, (kind, _, to) = scope_named(link), link.partition(":")
        if kind == "worker":
            revision = Known(self._context).workers.get(to)
            return None if revision is None else target(f"event:{WORKERS}@{revision}", scope)
        if kind == "key":
            if not Known(self._context).has_key(link, scope):
                return None
            name = to.rpartition("@")[2] if "@" in to else scope
        if name is not None:
            return "kind = 'state' AND scope = ?", [name]
        return target(link, scope)

    def _follow_now(self, timeout_s: float) -> None:
        if not self.catch_up(timeout_s):
            raise UnavailableError(
                f"the index has not followed the log within {timeout_s:g} s", hint="try again"
            )

    def catch_up(self, timeout_s: float) -> bool:
        """Follows the log for about `timeout_s`, but by one batch at least.

        Returns whether it has reached the position that the store had at the call.
        """
        newest, is_settled = self._log.settled_position(timeout_s)
        return self.follow(newest, timeout_s, batches=1) >= newest and is_settled

    def rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Runs a statement on the tables and returns its rows, without following the log first."""
        return self._tables.read(lambda session: session.ask(statement, values))

    def has_sealed(self, stream: str | None) -> bool:
        """Returns whether the store, or a scope with what it inherited, has sealed events.

        Sealed events are in no index, so a list of all events must not be taken from it then.
        """
        if stream is None:
            return bool(self.rows("SELECT 1 FROM sealed LIMIT 1", []))
        names = [name for name, _ in lineage(self._log, stream)]
        marks = ", ".join("?" * len(names))
        return bool(self.rows(f"SELECT 1 FROM sealed WHERE stream IN ({marks}) LIMIT 1", names))

    def hint(self, index: str) -> str:
        """Returns the SQL that makes the database use an index; "" where it needs none."""
        return self._tables.hint(index)

    # --- following -------------------------------------------------------------------------------

    def follow(self, to: Position, timeout_s: float, *, batches: int = 0) -> Position:
        """Follows the log up to a position or until the time is up; returns the position reached.

        It follows by at least `batches` batches of events, however long that takes. If another
        process holds the claim and follows, this one waits for its progress.
        """
        until = monotonic() + timeout_s
        reached = self._sound(self._reached)
        while reached < to and (batches > 0 or monotonic() <= until):
            before, batches = reached, batches - 1
            with self._tables.claim() as is_ours:
                if is_ours:
                    reached = self._sound(lambda: self._step(to))
            if not is_ours:
                Signal().wait(GLANCE_S)
                reached = self._sound(self._reached)
            elif reached == before:
                break
        return reached

    def rebuild(self) -> None:
        """Makes the index again from the start."""
        with self._tables.claim():
            self.make_again("it was asked for")

    def behind(self) -> tuple[Position, int]:
        """Returns the position that the index has reached, and how far it is behind the store."""
        reached = self._sound(self._reached)
        return reached, _distance(self._log.position(), reached)

    def _sound(self, work: Callable[[], T]) -> T:
        """Does some work on the tables; if they are damaged, makes them again and retries once."""
        try:
            if not self._is_known:
                self._check()
            return work()
        except DamagedTablesError as error:
            self.make_again(str(error))
            return work()

    def make_again(self, why: str) -> None:
        """Makes the tables anew; they are empty until the log is followed again."""
        _logger.warning('the index in "%s" is made again: %s', self._tables.place, why)
        self._tables.reset()
        self._tables.write(self._make)
        self._is_known = True

    def _make_first(self, session: SideSession) -> None:
        if self._tables.is_empty(session):  # else another process has made them
            self._make(session)

    def _make(self, session: SideSession) -> None:
        tables = self._tables
        tables.make_place(session)
        for statement in (_TABLES + paths.TABLES.strip()).strip().replace("\n ", " ").split("\n"):
            session.ask(
                statement.format(
                    key=tables.key, text=tables.text, whole=tables.whole, real=tables.real
                )
            )
        tables.make_words(session)
        tables.make_vectors(session)
        about = {"format": FORMAT, "store": self._store, "position": "0", "next": "1", "end": "",
                 "paths": "[]", "vectors": "[]"}  # fmt: skip
        session.many("INSERT INTO about (name, value) VALUES (?, ?)", about.items())
        declared = [Listed(n, one, is_whole=True) for n, one in enumerate(self._declared)]
        paths.note_listed(session, declared)

    def _check(self) -> None:
        """Checks once that the tables are of this store, and that the last event they saw exists.

        The link of that event is compared too, because another event may be at its revision by now.
        A stream that has expired has no events to compare.
        """

        def look(session: SideSession) -> dict[str, str]:
            try:
                return _about(session)
            except DamagedTablesError:
                raise
            except Exception as error:
                raise DamagedTablesError(str(error)) from error

        if self._tables.read(self._tables.is_empty):
            self._tables.write(self._make_first)
        about = self._tables.read(look)
        if about.get("format") != FORMAT or about.get("store") != self._store:
            raise DamagedTablesError("it is of another store, or of another format")
        if about["end"]:
            stream, revision, link = json.loads(about["end"])
            try:
                found = self._log.read(stream, after=revision - 1, until=revision)
            except HoldfastError as error:
                raise DamagedTablesError(f"what it follows cannot be read: {error}") from error
            if found and found[0].link.hex() != link:
                raise DamagedTablesError("it follows events that the store does not have")
            [head] = self._log.heads([stream])
            if not found and (head is None or not head.expires_us):
                raise DamagedTablesError("it is ahead of the store")
        listed = read_listed(about["paths"])
        if not {*self._declared} <= {one.of for one in listed}:
            self._tables.write(
                lambda session: paths.declare(session, _about(session)["paths"], self._declared)
            )
        self._is_known = True

    def _reached(self) -> Position:
        """Returns the position that the index has reached.

        Also notes a scope with an expiry, if there is one, and the declared indexes of states.
        """

        def look(session: SideSession) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
            return _about(session), session.ask("SELECT stream FROM expiring LIMIT 1")

        about, expiring = self._tables.read(look)
        self._expiring = expiring[0][0] if expiring else None
        self._listed = read_listed(about["paths"])
        return self._position(about)

    def _position(self, about: dict[str, str]) -> Position:
        number = int(about["position"])
        return self._log.routes.position(number) if number else START

    def _step(self, newest: Position) -> Position:
        """Follows by one batch of events, which is written in one transaction.

        The log is read before that transaction begins: the pool may have one connection for both.
        """

        def look(session: SideSession) -> tuple[dict[str, str], list[tuple[str, str]]]:
            forks = session.ask("SELECT stream, origin FROM forks")
            return _about(session), [(stream, origin) for stream, origin in forks]

        about, forks = self._tables.read(look)
        position = self._position(about)
        if not position < newest:
            return position
        records = self._log.read_all(after=position, limit=BATCH_EVENTS)
        by_origin: dict[str, list[str]] = {}
        for stream, origin in forks:
            by_origin.setdefault(origin, []).append(stream)
        kept = self._log.expiry.kept(records) if records else records
        batch = Batch(self._context, lambda stream: by_origin.get(stream, ()))
        with codec.kept_closed():
            changes = batch.changes(kept)
        rows = self._path_rows(_states(changes), read_listed(about["paths"]))
        to = records[-1].position if records else newest
        self._tables.write(lambda session: self._apply(session, about, changes, rows, to, records))
        return self._sound(self._reached)

    def _apply(
        self,
        session: SideSession,
        seen: dict[str, str],
        changes: Changes,
        rows: dict[str, list[Row]],
        to: Position,
        records: Sequence[Record],
    ) -> None:
        """Writes the changes of a batch, unless another process has written them meanwhile.

        The new position is written in the same transaction, so a crash leaves an older index, and
        never one that has part of a batch.
        """
        about = _about(session)
        if (about["position"], about["paths"]) != (seen["position"], seen["paths"]):
            return
        forks = [(stream, origin) for stream, origin in changes.origins.items()]
        session.many("INSERT INTO forks (stream, origin) VALUES (?, ?)", forks)
        session.many(
            "INSERT INTO expiring (stream, expires) VALUES (?, ?) "
            "ON CONFLICT (stream) DO UPDATE SET expires = excluded.expires",
            changes.expiring.items(),
        )
        # If the end of a scope slides, its documents from earlier batches get the new end too.
        moved = [(expires, stream) for stream, expires in changes.expiring.items()]
        session.many("UPDATE docs SET expires = ? WHERE scope = ?", moved)
        expiring: dict[str, int] = dict(session.ask("SELECT stream, expires FROM expiring"))  # pyright: ignore[reportArgumentType]
        sealed = {record.stream for record in records if record.subject is not None}
        session.many(
            "INSERT INTO sealed (stream) VALUES (?) ON CONFLICT DO NOTHING",
            [(stream,) for stream in sorted(sealed)],
        )
        added = [document for document in changes.puts.values() if document is not None]
        for documents in changes.whole.values():
            added += documents
        added += self._copies(session, changes)
        gone = _rows_of(session, changes, added)
        self._drop(session, gone)
        number = int(about["next"])
        number = self._add(session, number, changes.logged, expiring, {})
        number = self._add(session, number, added, expiring, rows)
        now = {"position": str(int(to)), "next": str(number)}
        if records:
            last = records[-1]
            now["end"] = json.dumps([last.stream, last.revision, last.link.hex()])
        session.many("UPDATE about SET value = ? WHERE name = ?", [(v, k) for k, v in now.items()])

    def _copies(self, session: SideSession, changes: Changes) -> list[Document]:
        """Returns the changed decisions again for each fork that inherited them.

        A decision is one act in the world, so its copies in forks follow the original (0039).
        """
        copies: list[Document] = []
        has_forks = session.ask("SELECT 1 FROM forks LIMIT 1")
        ids = list(changes.copied) if has_forks else []
        for at in range(0, len(ids), _KEYS_AT_ONCE):
            some = ids[at : at + _KEYS_AT_ONCE]
            rows = session.ask(
                "SELECT scope, id FROM docs WHERE kind = 'decision' AND id IN "
                f"({', '.join('?' * len(some))})",
                some,
            )
            for scope, id in rows:
                decision = changes.copied[id]
                if scope != decision.scope and scope not in changes.whole:
                    copies.append(decision_document(scope, decision))
        return copies

    def _drop(self, session: SideSession, gone: Sequence[tuple[int, int]]) -> None:
        self._tables.drop_words(session, gone)
        for table in ("docs", "tags", "links", "paths", "vectors"):
            session.many(f"DELETE FROM {table} WHERE n = ?", [(n,) for n, _ in gone])

    def _add(
        self,
        session: SideSession,
        number: int,
        documents: Iterable[Document],
        expiring: dict[str, int],
        at_paths: dict[str, list[Row]],
    ) -> int:
        """Adds documents, numbered from `number`; returns the next free number."""
        rows: list[tuple[Any, ...]] = []
        of_paths: list[tuple[Any, ...]] = []
        words: list[tuple[int, int, list[str]]] = []
        tags: list[tuple[str, int]] = []
        links: list[tuple[str, int]] = []
        for one in documents:
            chunks = chunks_of(one.texts) if one.texts else ()
            rows.append(
                (
                    number, one.kind, one.scope, key_of(one), one.id, one.time, one.actor, one.type,
                    one.status, one.revision, expiring.get(one.scope, 0), len(chunks),
                    _listed(one.tags), _listed(one.links), one.shown, one.source, one.trust,
                    one.position,
                )
            )  # fmt: skip
            words += [(number, at, chunk) for at, chunk in enumerate(chunks)]
            tags += [(tag, number) for tag in one.tags]
            links += [(link, number) for link in one.links]
            if at_paths and one.kind == "state":
                of_paths += [(*row, number) for row in at_paths.get(one.scope, ())]
            number += 1
        session.many(_ADD, rows)
        self._tables.add_words(session, words)
        session.many("INSERT INTO tags (tag, n) VALUES (?, ?)", tags)
        session.many("INSERT INTO links (link, n) VALUES (?, ?)", links)
        session.many(paths.ADD, of_paths)
        return number

    # --- paths -----------------------------------------------------------------------------------

    def _path_rows(self, streams: Iterable[str], listed: Sequence[Listed]) -> dict[str, list[Row]]:
        """Returns the rows of declared indexes for the current states of some scopes."""
        found: dict[str, list[Row]] = {}
        for stream in streams if listed else ():
            try:
                found[stream] = paths.rows_of(listed, stream, self._log.folded(stream))
            except ExpiredError:
                _logger.debug('scope "%s" has expired: it is not indexed', stream)
        return found

    def _fill_paths(self, until: float) -> None:
        """Adds the rows of states that were stored before an index was declared.

        If the time is up, the index is not used yet, and the next question starts over.
        """
        new = [one for one in self._listed if not one.is_whole]
        if not new:
            return
        last = 0
        while states := self.rows(_STATES, [last]):
            if monotonic() > until:
                return
            last = states[-1][0]
            rows = self._path_rows((scope for _, scope in states), new)
            self._tables.write(partial(paths.add_rows, states=states, rows=rows))
        numbers = [one.number for one in new]
        self._tables.write(
            lambda session: paths.mark_whole(session, _about(session)["paths"], numbers)
        )
        self._sound(self._reached)

    def fitting(
        self, where: Sequence[paths.Condition], prefix: str, after: str, limit: int
    ) -> list[str]:
        """Returns the names of scopes whose states meet the conditions, sorted, after a name."""
        self._follow_now(TIMEOUT_S)
        self._fill_paths(monotonic() + TIMEOUT_S)
        names: list[str] = []
        query = Query(where=tuple(where))
        begins = self._tables.like("scope", f"{prefix}*")
        while True:
            parts = [*self._conditions(query, self._now_us()), begins, ("scope > ?", [after])]
            texts, values = _joined(parts)
            found = self.rows(
                f"SELECT scope FROM docs WHERE {texts} ORDER BY scope LIMIT {_STATES_AT_ONCE}",
                values,
            )
            for (name,) in found:
                if name.startswith(prefix) and has_state(self._context, query, name):
                    names.append(name)
                    if len(names) == limit:
                        return names
            if len(found) < _STATES_AT_ONCE:
                return names
            after = found[-1][0]

    def close(self) -> None:
        self._tables.close()


def _states(changes: Changes) -> list[str]:
    """Returns the scopes for which a batch writes documents of states."""
    puts = [scope for kind, scope, _ in changes.puts if kind == "state"]
    return [*puts, *changes.whole]


def _ordered_by(query: Query) -> str | None:
    """Returns the index to read in order if only kind and time narrow a question, else None."""
    is_narrow = query.terms or query.types or query.tag or query.links or query.actor
    is_narrow = is_narrow or query.source or query.trust
    if is_narrow or query.scope is not None or ("log" in query.kinds and len(query.kinds) > 1):
        return None
    kinds = ("state",) if query.where else query.kinds
    return "docs_kind" if len(kinds) == 1 else "docs_time"


def _listed(names: tuple[str, ...]) -> str:
    return json.dumps(names, ensure_ascii=False) if names else ""


def _rows_of(
    session: SideSession, changes: Changes, added: Sequence[Document]
) -> list[tuple[int, int]]:
    """Returns the rows that a batch replaces or removes, each with its number of chunks."""
    keys = {*changes.puts, *((one.kind, one.scope, key_of(one)) for one in added)}
    listed = [key for key in keys if key[1] not in changes.whole]
    gone: list[tuple[int, int]] = []
    for at in range(0, len(listed), _KEYS_AT_ONCE):
        some = listed[at : at + _KEYS_AT_ONCE]
        rows = ", ".join(["(?, ?, ?)"] * len(some))
        gone += session.ask(  # pyright: ignore[reportArgumentType]
            "SELECT n, chunks FROM docs WHERE kind <> 'log' "
            f"AND (kind, scope, key) IN (VALUES {rows})",
            [part for key in some for part in key],
        )
    for stream in changes.whole:
        gone += session.ask(  # pyright: ignore[reportArgumentType]
            "SELECT n, chunks FROM docs WHERE scope = ? AND kind <> 'log'", [stream]
        )
    return gone


def _about(session: SideSession) -> dict[str, str]:
    return dict(session.ask("SELECT name, value FROM about"))  # pyright: ignore[reportArgumentType]


def _joined(parts: Sequence[Condition]) -> Condition:
    texts = " AND ".join(text for text, _ in parts) or "1 = 1"
    return texts, [value for _, values in parts for value in values]


def _hit(row: tuple[Any, ...]) -> Hit:
    kind, scope, id, time, actor, type, status, revision, tags, links, shown, source, trust = row
    try:
        return Hit(
            kind=kind, id=id, scope=scope, time=to_datetime(time), actor=actor, type=type,
            status=status, revision=revision, tags=tuple(json.loads(tags)) if tags else (),
            links=tuple(json.loads(links)) if links else (), shown=shown, source=source or None,
            trust=trust or None,
        )  # fmt: skip
    except (
        OverflowError,
        TypeError,
        ValueError,
    ) as error:  # a page with another row's values, or with zeros
        raise DamagedTablesError(f"a row cannot be read: {error}") from error


def _distance(newest: Position, reached: Position) -> int:
    """Returns how far one position is ahead of another, summed over the backends of a mix."""
    ahead = getattr(newest, "numbers", (newest,))
    behind = getattr(reached, "numbers", (reached,) if len(ahead) == 1 else (0,) * len(ahead))
    return sum(max(0, a - b) for a, b in zip(ahead, behind, strict=True))
