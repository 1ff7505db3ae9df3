"""Verbs on a whole store: init, status, scopes, check, copy."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

import holdfast
from holdfast.check import Report
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    command,
    open_reading,
    open_source,
    refuse_memory,
)
from holdfast.cli.printing import (
    clean,
    is_terminal,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.shapes import show_time, time_text
from holdfast.cli.words import find_scope, newest_revision
from holdfast.copy import Progress, copy
from holdfast.errors import CorruptError, NotFoundError
from holdfast.event import CLOSED
from holdfast.store import Store


def init(*, options: Options = DEFAULTS) -> None:
    """Make a store; one that is there already is left as it is."""
    refuse_memory(options.place)
    made = False
    try:
        store = holdfast.open(options.place, create=False)
    except NotFoundError:
        store = holdfast.open(options.place, actor=options.writer)
        made = True
    with store:
        facts = store.status()
    if options.json:
        print_json({"made": made, "kind": facts["kind"], "place": facts["place"]})
        return
    what = "made" if made else "there is already"
    print_line(f"{what} a store of kind {facts['kind']} at {clean(facts['place'])}")
    example = command("set team/support stage triage", options.place)
    print_note(f"put something in: {example}")


def status(*, options: Options = DEFAULTS) -> None:
    """Show facts about a store: place, durability, size, reports."""
    with open_reading(options) as store:
        facts = store.status()
        count = sum(1 for _ in stream_names(store))
        document: dict[str, Any] = {**facts, "position": store.position, "scopes": count}
    if options.json:
        print_json(document)
        return
    reports: list[str] = document.pop("reports")
    rows = [(name, show_fact(name, value)) for name, value in document.items()]
    print_facts([*rows, *(("report", report) for report in reports)])


def show_fact(name: str, value: object) -> str:
    if name == "size_bytes" and isinstance(value, int) and is_terminal():
        return f"{value:,}"
    return str(value)


def scopes(level: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """List the scopes that have events.

    Parameters
    ----------
    level
        Only those of one level, such as team.
    """
    with open_reading(options) as store:
        shapes = [
            scope_shape(store, name)
            for name in stream_names(store)
            if level is None or name == level or name.startswith(f"{level}/")
        ]
    if options.json:
        print_json({"scopes": [{**each, "time": time_text(each["time"])} for each in shapes]})
        return
    rows = [
        (
            shape["scope"],
            str(shape["revision"]),
            "closed" if shape["is_closed"] else "open",
            show_time(shape["time"]),
        )
        for shape in shapes
    ]
    if rows:
        print_table(("scope", "revision", "", "newest event"), rows)
    else:
        print_note("no scopes")


def scope_shape(store: Store, name: str) -> dict[str, Any]:
    """Returns what the newest event says of a scope: nothing more is read, for there may be many.

    A closed scope takes no more events, so its newest one is the one that closed it.
    """
    scope = find_scope(store, name)
    newest = newest_revision(store, scope)
    event = next(scope.history(after=newest - 1, until=newest))
    return {
        "scope": name,
        "level": scope.level,
        "id": scope.id,
        "revision": newest,
        "time": event.time,
        "is_closed": event.type == CLOSED,
    }


def stream_names(store: Store) -> Iterator[str]:
    """Yields the name of every stream, of levels too that only the application knows."""
    after = ""
    while names := store.log.backend.streams(after=after):
        yield from names
        after = names[-1]


def check(*, read_all: Flag = False, expect: str | None = None, options: Options = DEFAULTS) -> int:
    """Verify a store and print its digest.

    Parameters
    ----------
    read_all
        Read every event, recompute every link, and read every blob and snapshot.
    expect
        A digest noted earlier: fail if the store's content is not the same.
    """
    with open_reading(options) as store:
        report = store.check(read_all=read_all, expect=expect)
    if options.json:
        print_json({"ok": report.ok, **msgspec.to_builtins(report)})
    else:
        print_report(report, options)
    return 0 if report.ok else CorruptError.exit_code


def print_report(report: Report, options: Options) -> None:
    for finding in report.findings:
        kind = "harmless" if finding.harmless else "DAMAGED"
        print_line(f"{kind}\t{clean(finding.where)}\t{clean(finding.problem)}")
    read = f"{report.events} events read" if report.read_all else "events not read"
    print_line(f"{'ok' if report.ok else 'NOT OK'}\t{report.streams} streams, {read}")
    print_line(f"digest\t{report.digest}")
    if not report.ok:
        print_note("hint: copy the store away before anything else; then compare with a backup")
    elif not report.read_all:
        print_note(f"every byte: {command('check --read-all', options.place)}")


def copy_store(
    a: Annotated[str, Parameter(name="A")],
    b: Annotated[str, Parameter(name="B")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Copy a store into another one of any kind; resumable.

    Parameters
    ----------
    a
        The store to copy: a folder, or sqlite:FILE.
    b
        The store to copy into; it is made if need be, and must hold nothing else.
    """
    refuse_memory(b)
    with (
        open_source(a) as source,
        holdfast.open(b, actor=options.writer) as target,
        progress_bar() as progress,
    ):
        copied = copy(source.log, target.log, progress=progress)
        digest = target.check(read_all=False).digest
    if options.json:
        print_json({"from": a, "to": b, **msgspec.to_builtins(copied), "digest": digest})
        return
    print_line(
        f"copied {copied.events} events in {copied.commits} commits and {copied.blobs} blobs, "
        f"{copied.skipped} events were there"
    )
    print_line(f"digest\t{digest}")


@contextmanager
def progress_bar() -> Generator[Progress | None]:
    """Yields what shows progress on a terminal, None when nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=None)
        yield lambda reached, goal: bar.update(task, completed=reached, total=goal)
