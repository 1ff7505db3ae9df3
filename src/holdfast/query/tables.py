"""Tables for outside tools: everything recorded as plain SQL rows, to read with any client.

They are separate from the index of questions, and nothing in Holdfast depends on them. Each row has
a checksum of its values. They are brought up to date on request: new events are added, and the rows
of every scope with new events are made again. The rows of one scope show one moment; those of
different scopes may not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from threading import Lock
from time import monotonic, sleep
from typing import Any, cast

from holdfast.backends.derived_tables import (
    DamagedTablesError,
    SelectLimits,
    SideSession,
    SideTables,
)
from holdfast.backends.protocol import GONE, START, Position, Record
from holdfast.core import codec, event, tree
from holdfast.core.event import Event, from_datetime, to_datetime
from holdfast.core.own_event import OWN, OwnEvent
from holdfast.core.tree import thaw
from holdfast.errors import ExpiredError, UnavailableError
from holdfast.names import split_name
from holdfast.query.documents import is_change, is_of_scope, run_document
from holdfast.query.form import Rows
from holdfast.query.words import plain
from holdfast.record import facts, task_events
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decisions
from holdfast.record.message_events import Message

_logger = logging.getLogger("holdfast.query")
FORMAT = "2"
BATCH_EVENTS = 2_000
CLAIM_S = 60.0
COLUMNS: dict[str, str] = {
    "events": "scope revision* time type actor key checkpoint metadata:json",
    "state": "scope* revision time actor status value:json",
    "messages": "scope revision* id time role actor content fields:json",
    "decisions": "scope id* timestamp decision rationale status outcome completed_at owner actor "
    "priority:whole links:json",
    "tasks": "scope id* title status owner priority:whole epic tags:json dependencies:json outcome "
    "created_at started_at completed_at",
    "facts": "scope name* value:json about status stated_at stated_by updated_at valid_until",
    "runs": "scope* id function status created_at actor",
}
"""The columns of each table; the scope and those with * are its primary key."""
_WHOLE = ("revision",)


def checksum(row: Sequence[Any]) -> str:
    """Returns the checksum of a row's values."""
    text = json.dumps(list(row), ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _names(table: str) -> list[str]:
    return [word.partition(":")[0].rstrip("*") for word in COLUMNS[table].split()]


def _make_statement(table: str, tables: SideTables) -> str:
    """Returns the statement that makes a table."""
    columns: list[str] = []
    keys = ["scope"]
    for word in COLUMNS[table].split():
        name, _, kind = word.partition(":")
        if name.endswith("*"):
            name = name[:-1]
            keys += [name] if name != "scope" else []
        kind = "whole" if name in _WHOLE else kind
        type = {"json": tables.json, "whole": tables.whole}.get(kind, tables.text)
        follows = " NOT NULL REFERENCES scopes (scope)" if name == "scope" else ""
        columns.append(f"{name} {type}{follows}")
    columns.append(f"checksum {tables.text} NOT NULL")
    return f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY ({', '.join(keys)}))"


class OutsideTables:
    """The tables of one store for outside tools."""

    def __init__(self, context: RecordContext, tables: SideTables) -> None:
        self._context = context
        self._log = context.log
        self._tables = tables
        self._store = str(context.log.describe()["store"])
        self._filling = Lock()

    @property
    def place(self) -> str:
        """Where the tables are, for people."""
        return self._tables.place

    def select(self, statement: str, limits: SelectLimits) -> Rows:
        """Brings the tables up to date, and runs a statement that only reads."""
        self.refresh()
        try:
            columns, rows = self._tables.select(statement, limits)
        except DamagedTablesError as error:
            # The damage showed only in the answer: the tables are made again, and it is asked again
            with self._claimed():
                self._make_again(error)
            columns, rows = self._tables.select(statement, limits)
        return Rows(tuple(columns), rows)

    def refresh(self) -> None:
        """Brings the tables up to date; makes them again if they are damaged or not ours."""
        with self._claimed():
            try:
                self._check()
                self._follow()
            except DamagedTablesError as error:
                self._make_again(error)
            else:
                self._tables.note()

    def _make_again(self, error: DamagedTablesError) -> None:
        _logger.warning('the tables in "%s" are made again: %s', self.place, error)
        self._tables.reset()
        self._check()
        self._follow()
        self._tables.note()

    @contextmanager
    def _claimed(self) -> Generator[None]:
        """Claims the right to fill the tables for a block; waits for who has it.

        The claim itself is one of a process, so its threads take turns first.
        """
        until = monotonic() + CLAIM_S
        while True:
            with self._filling, self._tables.claim() as is_claimed:
                if is_claimed:
                    yield
                    return
            if monotonic() > until:
                raise UnavailableError(
                    f'another process has been filling the tables in "{self.place}" for '
                    f"{CLAIM_S:g} s",
                    hint="try again when it is done",
                )
            sleep(0.005)

    def forget(self) -> None:
        """Deletes the tables, which may have copies of data that was let go of.

        They are made again when they are needed.
        """
        with self._claimed():
            if not self._tables.read(self._tables.is_empty):
                self._tables.reset()

    def close(self) -> None:
        """Closes the tables."""
        self._tables.close()

    def _check(self) -> None:
        """Makes the tables if there are none; raises DamagedTablesError if they were changed."""
        if self._tables.read(self._tables.is_empty):
            self._tables.write(self._make)
        about = self._tables.read(_about)
        if about.get("format") != FORMAT or about.get("store") != self._store:
            raise DamagedTablesError("they are of another store, or of another format")
        if self._tables.is_changed():
            self._tables.read(self._verify)

    def _verify(self, session: SideSession) -> None:
        """Raises DamagedTablesError if somebody else has changed, added or removed a row.

        Outside tools have the tables open and might write to them.
        """
        for table in COLUMNS:
            names = ", ".join(_names(table))
            for *row, known in session.ask(f"SELECT {names}, checksum FROM {table}"):
                if checksum(row) != known:
                    raise DamagedTablesError(f'a row of "{table}" was changed by somebody else')
            counted = session.ask(f"SELECT count(*) FROM {table}")[0][0]
            noted = session.ask("SELECT value FROM about WHERE name = ?", [f"rows {table}"])
            if noted and int(noted[0][0]) != counted:
                raise DamagedTablesError(f'rows of "{table}" were added or taken away')

    def _make(self, session: SideSession) -> None:
        tables = self._tables
        if not tables.is_empty(session):
            return  # another process was faster
        tables.make_place(session)
        session.ask(f"CREATE TABLE about (name {tables.text} PRIMARY KEY, value {tables.text})")
        session.ask(
            f"CREATE TABLE scopes (scope {tables.text} PRIMARY KEY, level {tables.text}, "
            f"id {tables.text}, origin {tables.text})"
        )
        session.ask(f"CREATE TABLE touched (scope {tables.text} PRIMARY KEY)")
        for table in COLUMNS:
            session.ask(_make_statement(table, tables))
        session.ask("CREATE INDEX events_type ON events (type, time)")
        session.ask("CREATE INDEX events_time ON events (time)")
        session.ask("CREATE INDEX decisions_time ON decisions (timestamp)")
        about = {"format": FORMAT, "store": self._store, "position": "0"}
        session.many("INSERT INTO about (name, value) VALUES (?, ?)", about.items())

    # --- following -------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Adds new events, then makes the rows of every scope with new events again.

        The scopes that are still to be done are in the table `touched`, which is written in the
        same transaction as the events. So a kill in between loses nothing.
        """
        while self._add_events():
            pass
        for (stream,) in self._tables.read(lambda session: session.ask("SELECT * FROM touched")):
            with codec.kept_closed():
                rows = self._rows_of(stream)
            self._tables.write(lambda session, s=stream, r=rows: self._put(session, s, r))
        self._tables.write(self._count)

    def _add_events(self) -> bool:
        """Adds a batch of events; returns whether there were any."""
        number = int(self._tables.read(_about)["position"])
        position = self._log.routes.position(number) if number else START
        records = self._log.read_all(after=position, limit=BATCH_EVENTS)
        if not records:
            return False
        kept = self._log.expiry.kept(records)
        to = records[-1].position
        self._tables.write(lambda session: self._write_events(session, number, kept, to))
        return True

    def _write_events(
        self, session: SideSession, before: int, records: Sequence[Record], to: Position
    ) -> None:
        if int(_about(session)["position"]) != before:
            return  # another process has added these events meanwhile
        origins = {
            one.stream: event.origin_of(one)[0] for one in records if one.type == event.FORKED
        }
        streams = list(dict.fromkeys(one.stream for one in records))
        scopes = [(one, *_parts(one), origins.get(one)) for one in streams]
        session.many(
            "INSERT INTO scopes (scope, level, id, origin) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (scope) DO NOTHING",
            scopes,
        )
        _insert(session, "events", [_event_row(one) for one in records])
        # A fork shows inherited decisions as they are in their original scope. So if that scope
        # was touched, its forks, and their forks, were too.
        forks = session.ask("SELECT scope, origin FROM scopes WHERE origin IS NOT NULL")
        touched = set(streams)
        while more := {fork for fork, of in forks if of in touched} - touched:
            touched |= more
        session.many(
            "INSERT INTO touched (scope) VALUES (?) ON CONFLICT (scope) DO NOTHING",
            [(one,) for one in sorted(touched)],
        )
        session.ask("UPDATE about SET value = ? WHERE name = 'position'", [str(int(to))])

    def _put(self, session: SideSession, stream: str, rows: dict[str, list[list[Any]]]) -> None:
        for table in COLUMNS:
            if table != "events":
                session.ask(f"DELETE FROM {table} WHERE scope = ?", [stream])
                _insert(session, table, rows.get(table, []))
        session.ask("DELETE FROM touched WHERE scope = ?", [stream])

    def _count(self, session: SideSession) -> None:
        for table in COLUMNS:
            counted = session.ask(f"SELECT count(*) FROM {table}")[0][0]
            session.ask(
                "INSERT INTO about (name, value) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [f"rows {table}", str(counted)],
            )

    # --- rows ------------------------------------------------------------------------------------

    def _rows_of(self, stream: str) -> dict[str, list[list[Any]]]:
        """Returns the rows that a scope has now, by table; none if it has expired."""
        context, log = self._context, self._log
        try:
            if log.subject_of(stream) is not None:
                return {}  # a row with sealed data would be a copy in clear
            if stream.startswith("run/"):
                return {"runs": list(self._runs(stream))}
            if not is_of_scope(stream):
                return {}
            records = log.records(stream, after=log.life(stream))
            rows = {"decisions": list(self._decisions(stream))}
            state = log.folded(stream) if records else None
            if state is None or state.dropped:
                return rows
            rows["messages"] = list(self._messages(stream))
            rows["tasks"] = list(_tasks(stream, records))
            rows["facts"] = list(_facts(context, stream, records))
            changed = next((one for one in reversed(records) if is_change(one)), None)
            if changed is not None and state.root:
                status = "closed" if state.closed_at else "open"
                value = _json(thaw(tree.lasting(state.root, state.ends)))
                rows["state"] = [
                    [stream, changed.revision, _us(changed.time), changed.actor, status, value]
                ]
        except ExpiredError:
            return {}
        return rows

    def _runs(self, stream: str) -> Iterator[list[Any]]:
        run = run_document(self._context, stream)
        if run is not None:
            yield [stream, run.id, run.type, run.status, _us(run.time), run.actor]

    def _decisions(self, stream: str) -> Iterator[list[Any]]:
        for one in Decisions(self._context).all_in(stream):
            yield [
                stream, one.id, _at(one.timestamp), one.decision, one.rationale,
                one.status, one.outcome, _at(one.completed_at), one.owner, one.actor,
                one.priority, _json([str(link) for link in one.links]),
            ]  # fmt: skip

    def _messages(self, stream: str) -> Iterator[list[Any]]:
        scan = self._context.scans.newest(stream, original=True)
        with scan.mutex:
            found = [(record, scan.edits_of(record)) for record in scan.all()]
        for record, edits in found:
            one = Message(record, self._log.blobs.read, edits)
            yield [
                stream, one.revision, one.id, _at(one.time), one.role, one.actor,
                one.text, _json(one.fields),
            ]  # fmt: skip


def _tasks(stream: str, records: Sequence[Record]) -> Iterator[list[Any]]:
    for one in task_events.project(map(Event, records)).values():
        yield [
            stream, one.id, one.title, one.status, one.owner, one.priority, one.epic,
            _json(list(one.tags)), _json(list(one.dependencies)), one.outcome,
            _at(one.created_at), _at(one.started_at), _at(one.completed_at),
        ]  # fmt: skip


def _facts(context: RecordContext, stream: str, records: Sequence[Record]) -> Iterator[list[Any]]:
    stated = (str(Event(one).data["name"]) for one in records if one.type == facts.STATED)
    for name in dict.fromkeys(stated):
        found = facts.current_records(context, stream, name)
        one = None if found is None else facts.fold(context, *found)
        if one is not None:
            status = "contradicted" if one.contradicted_at is not None else "stated"
            yield [
                stream, name, _json(one.value), one.about, status, _at(one.stated_at),
                one.stated_by, _at(one.updated_at), _at(one.valid_until),
            ]  # fmt: skip


def _event_row(record: Record) -> list[Any]:
    """Returns the row of an event; the data of an own event is in `metadata`."""
    said: Any = None
    is_clear = record.subject is None and codec.SEALED_VALUE not in record.payload
    if record.type.startswith(OWN) and record.payload != GONE and is_clear:
        own = OwnEvent(record, _unread)
        said = {"data": own.raw, "refs": list(own.refs)}
    shown = Event(record)
    return [
        record.stream, record.revision, _us(record.time), record.type.removeprefix(OWN),
        record.actor, shown.key, shown.checkpoint, _json(said),
    ]  # fmt: skip


def _unread(name: str, size: int) -> bytes:
    """Returns a reference in place of a large value, which is not copied into a table."""
    return codec.encode({"blob": name, "size": size})


def _parts(stream: str) -> tuple[str, str | None]:
    level, id = split_name(stream)
    return level, id


def _insert(session: SideSession, table: str, rows: Sequence[list[Any]]) -> None:
    names = [*_names(table), "checksum"]
    marks = ", ".join("?" * len(names))
    session.many(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})",
        [[*row, checksum(row)] for row in map(_plain, rows)],
    )


def _plain(row: Sequence[Any]) -> list[Any]:
    """Returns a row whose texts can all be stored, whoever wrote them and in which column."""
    return [plain(one) if isinstance(one, str) else one for one in row]


def _about(session: SideSession) -> dict[str, str]:
    return dict(session.ask("SELECT name, value FROM about"))  # pyright: ignore[reportArgumentType]


def _json(value: Any) -> str:
    """Returns a value as JSON that databases accept, without zero characters.

    Types that JSON does not have are encoded as in the log, and so are lone surrogates.
    """
    text = codec.encode(value).decode()
    if "\\u0000" not in text:
        return json.dumps(json.loads(text), ensure_ascii=False)
    return json.dumps(_without_zeros(json.loads(text)), ensure_ascii=False)


def _without_zeros(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_without_zeros(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        said = cast("dict[str, Any]", value)
        return {key.replace("\0", ""): _without_zeros(one) for key, one in said.items()}
    return value


def _us(time_us: int) -> str:
    return to_datetime(time_us).isoformat()


def _at(time: datetime | None) -> str | None:
    return None if time is None else _us(from_datetime(time))
