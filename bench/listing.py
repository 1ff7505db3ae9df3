"""Lists and pages, beside a bare indexed query of the same rows.

One namespace of ten scopes among a thousand namespaces is found with its states, in memory and
opened afresh, and the newest fifty events of a long store are read. Beside each, apsw reads the
same rows by an index from a table with a row for each scope, or for each event, and decodes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

import holdfast
from bench.harness import (
    Contender,
    Loop,
    Report,
    Size,
    interleave,
    latency_row,
    ratio,
    scratch,
    show,
)
from holdfast import Store
from holdfast.backends.protocol import START

NAMESPACES = 1_000
EACH = 10
PAGE = 50
_FIND = "SELECT name, state FROM scopes WHERE name >= ? AND name < ? ORDER BY name LIMIT 1000"
_NEWEST = "SELECT payload FROM events ORDER BY ordinal DESC LIMIT ?"


def lists(size: Size) -> Report:
    """A namespace among many, and the newest events of a store, beside bare indexed queries."""
    spaces = 100 if size.quick else NAMESPACES
    report = Report(
        f"ten scopes of one of {spaces:,} namespaces with their states, and the newest {PAGE} of "
        f"{spaces * EACH:,} events",
        "nothing is written while it is measured",
    )
    with scratch() as place:
        for kind in ("files", "sqlite"):
            url = str(place / "store") if kind == "files" else f"sqlite:{place / 'store.db'}"
            _fill(url, spaces)
            database = _bare(place / f"bare-{kind}.db", url)
            with holdfast.open(url) as store:
                wanted = f"n{spaces // 2}/"
                _beside(report, size, kind, "a namespace", _finds(store, wanted), database, _look)
                _beside(report, size, kind, "a page", _pages(store), database, _newest)
            database.close()
    return report


def _finds(store: Store, prefix: str) -> Callable[[], object]:
    def find() -> None:
        states = store.view().states(store.scopes("conversation", prefix=prefix))
        assert len(states) == EACH, states

    return find


def _pages(store: Store) -> Callable[[], object]:
    def page() -> None:
        found = store.events(newest_first=True, limit=PAGE)
        assert len(found) == PAGE
        assert found.more

    return page


def _look(database: Any, spaces: int) -> Callable[[], object]:
    prefix = f"conversation/n{spaces // 2}/"

    def find() -> None:
        rows = database.execute(_FIND, (prefix, f"{prefix[:-1]}0")).fetchall()
        states = {name: msgspec.json.decode(state) for name, state in rows}
        assert len(states) == EACH, states

    return find


def _newest(database: Any, _: int) -> Callable[[], object]:
    def page() -> None:
        rows = database.execute(_NEWEST, (PAGE,)).fetchall()
        assert len([msgspec.json.decode(payload) for (payload,) in rows]) == PAGE

    return page


def _beside(
    report: Report,
    size: Size,
    kind: str,
    doing: str,
    ours: Callable[[], object],
    database: Any,
    bare: Callable[[Any, int], Callable[[], object]],
) -> None:
    spaces = 100 if size.quick else NAMESPACES
    mine = Loop(f"holdfast {kind}", ours, lambda: None)
    other = Loop("bare indexed query", bare(database, spaces), lambda: None)
    contenders: list[Contender] = [other, mine]
    taken = interleave(contenders, blocks=size.blocks, operations=size.operations)
    for name, blocks in taken.items():
        report.rows.append({"doing": doing, "kind": kind, "what": name, **latency_row(blocks)})
    found = ratio(taken[mine.name], taken[other.name])
    report.notes.append(f"{doing}, {kind}: {found} times the time of a bare indexed query")


def _fill(url: str, spaces: int) -> None:
    with holdfast.open(url, durability="none") as store:
        for space in range(spaces):
            with store.commit() as tx:
                for n in range(EACH):
                    scope = store.conversation(f"n{space}/{n}")
                    tx.scope(scope).set("item", {"space": space, "n": n, "text": "x" * 200})


def _bare(path: Path, url: str) -> Any:
    """Returns a database with a row for each scope, and one for each event."""
    database: Any = apsw.Connection(str(path))
    database.execute("CREATE TABLE scopes (name TEXT PRIMARY KEY, state BLOB) WITHOUT ROWID")
    database.execute("CREATE TABLE events (ordinal INTEGER PRIMARY KEY, payload BLOB)")
    with holdfast.open(url) as store, database:
        for name, state in store.view().states(store.scopes(limit=None)).items():
            text = msgspec.json.encode(state.to_dict())
            database.execute("INSERT INTO scopes VALUES (?, ?)", (name, text))
        for ordinal, event in enumerate(store.follow(as_events=True, after=START, timeout_s=0)):
            database.execute("INSERT INTO events VALUES (?, ?)", (ordinal, event.record.payload))
    return database


if __name__ == "__main__":
    show(lists(Size(quick="--quick" in sys.argv[1:])))
