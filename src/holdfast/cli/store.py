"""Verbs for a store: init, status, scopes, check, copy, and who shares it: workers, groups."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec.structs import replace

import holdfast
from holdfast.audit_export import verify_export
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    command,
    open_reading,
    open_source,
    place_of,
    print_more,
    refuse_memory,
)
from holdfast.cli.parsing import find_scope, newest_revision, parse_limit, parse_where
from holdfast.cli.printing import (
    is_terminal,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from holdfast.copy import Progress, copy
from holdfast.core.check import Report
from holdfast.core.event import end_of, to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.listing import names_beginning, scope_names, stored_prefix
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.errors import CorruptError, NotFoundError, UsageError
from holdfast.git.auto_commit import Configured
from holdfast.names import split_name, unescape, without_secrets
from holdfast.render.query import linked_check_document
from holdfast.render.store import (
    ScopeSummary,
    copy_document,
    created_document,
    groups_document,
    scopes_document,
    status_document,
    workers_document,
)
from holdfast.render.text import clean, show_time
from holdfast.store import Store
from holdfast.views.config import FILE

STREAMS_SHOWN = 20
"""So many names of streams are printed with a finding; --json has all of them."""


def init(*, options: Options = DEFAULTS) -> None:
    """Create a store; one that exists is left as it is."""
    refuse_memory(options.place)
    made = False
    try:
        store = holdfast.open(
            options.place, create=False, store_key=options.store_key, tenant=options.tenant
        )
    except NotFoundError:
        store = holdfast.open(
            options.place,
            actor=options.writer,
            store_key=options.store_key,
            tenant=options.tenant,
        )
        made = True
    with store:
        facts = store.status()
    if options.json:
        print_json(created_document(facts, created=made))
        return
    what = "created" if made else "there already is"
    print_line(f"{what} a {facts['kind']} store at {clean(facts['place'])}")
    example = command("set team/support stage triage", options.place)
    print_note(f"set a first value: {example}")


def status(*, options: Options = DEFAULTS) -> None:
    """Show facts about a store: place, durability, size, recovery reports."""
    with open_reading(options) as store:
        facts = store.status()
        facts["position"] = int(store.position)
        if os.path.exists(FILE):
            facts["reports"] += Configured(store, FILE).reports()
    if options.json:
        print_json(status_document(facts))
        return
    reports: list[str] = facts.pop("reports")
    levels: dict[str, dict[str, Any]] = facts.pop("levels", {})
    rows = [(name, show_fact(name, value)) for name, value in facts.items()]
    rows += [(f"level {name}", show_part(one)) for name, one in levels.items()]
    print_facts([*rows, *(("report", report) for report in reports)])


def show_part(facts: dict[str, Any]) -> str:
    """Returns kind, durability and place of one backend of a mixed store."""
    return f"{facts['kind']}, durability {facts['durability']}, {facts['place']}"


def show_fact(name: str, value: object) -> str:
    if value is None and name in ("scopes", "events", "digest"):
        return "cannot be told while the store is damaged"
    if name == "size_bytes" and isinstance(value, int) and is_terminal():
        return f"{value:,}"
    return str(value)


def scopes(
    level: str | None = None,
    /,
    *,
    prefix: str = "",
    where: Words = None,
    after: str = "",
    limit: int = PAGE_SIZE,
    options: Options = DEFAULTS,
) -> None:
    """List the scopes that have events, by name.

    Parameters
    ----------
    level
        Only those of one level, such as team.
    prefix
        Only those whose id begins so; without a level, whose name begins so.
    where
        Only those whose state fits a comparison such as "customer.id=7"; may be given again.
    after
        Continue after this scope.
    limit
        How many scopes at most.
    """
    with open_reading(options) as store:
        wanted = parse_limit(limit) + 1
        if where:
            asked = [parse_where(one) for one in where]
            fitting = store.scopes(level, prefix=prefix, where=asked, after=after, limit=wanted)
            names = [scope.name for scope in fitting]
        else:
            names = stream_names(store, level, prefix=prefix, after=after, limit=wanted)
        found = [summarize_scope(store, name) for name in names[:limit]]
        page = Page(found, more=len(names) > limit, cursor=names[:limit][-1] if names else None)
    if options.json:
        print_json(scopes_document(page))
        return
    rows = [
        (
            scope.level if scope.id is None else f"{scope.level}/{scope.id}",
            str(scope.revision),
            "expired" if scope.is_expired else "closed" if scope.is_closed else "open",
            show_time(scope.time),
        )
        for scope in found
    ]
    if rows:
        print_table(("scope", "revision", "", "newest event"), rows)
    else:
        print_note("no scopes")
    words = ["scopes", *([level] if level else []), *(["--prefix", prefix] if prefix else [])]
    words += [word for one in where or () for word in ("--where", one)]
    print_more(page, words, options, limit)


def summarize_scope(store: Store, name: str) -> ScopeSummary:
    """Returns what the newest event tells about a scope; reads nothing else, as there may be many.

    A closed scope takes no more events, so its newest event is the one
    that closed it. An expired scope has only its name and its head left.
    """
    log = kernel_of(store).log
    [head] = log.heads([name])
    if head is not None and log.expiry.has_ended(name, head):
        level, id = split_name(unescape(name))
        time = to_datetime(head.time)
        return ScopeSummary(name, level, id, head.revision, time, is_closed=False, is_expired=True)
    scope = find_scope(store, name)
    newest = newest_revision(store, scope)
    event = next(scope.history(after=newest - 1, until=newest))
    is_closed = end_of(event.record).closed_at > 0
    return ScopeSummary(
        name, scope.level, scope.id, newest, event.time, is_closed=is_closed, is_expired=False
    )


def stream_names(
    store: Store, level: str | None, *, prefix: str, after: str, limit: int
) -> list[str]:
    """Returns names of streams of one level; without a level of all, such as those of runs."""
    log, prefix = kernel_of(store).log, stored_prefix(level, prefix)
    if level is None:
        return names_beginning(log, prefix, after, limit)
    return scope_names(log, [level], prefix=prefix, after=after, limit=limit)


def check(
    *,
    read_all: Flag = False,
    expect: str | None = None,
    signed_by: str | None = None,
    earlier: Words = None,
    anchor: str | None = None,
    links: Flag = False,
    options: Options = DEFAULTS,
) -> int:
    """Verify a store and print its digest.

    Parameters
    ----------
    read_all
        Read every event, recompute every link, and read every blob and snapshot.
    expect
        A digest noted earlier: fail if the store's content is not the same. Or the file of an
        audit export: fail if it was changed, or if the store lacks any of what it has.
    signed_by
        The file of the public key that must have signed the export.
    earlier
        An export before that one, of the same chain; may be given again.
    anchor
        A command that verifies the export's anchor; it gets the digest and, as input, the token.
    links
        List the links that lead to nothing in the store; they are no damage.
    """
    with open_source(options.place, store_key=options.store_key) as store:
        asked = (signed_by, earlier or (), anchor)
        report = expected_check(store, expect, asked, read_all=read_all)
        dangling = store.search.dangling_links() if links else []
    if options.json:
        print_json(linked_check_document(report, dangling if links else None))
    else:
        print_report(report, options)
        for one in dangling:
            shown = f"{one.kind} {one.id} of {one.scope} links to {one.link}"
            print_line(f"dangling\t{clean(shown)}")
    return 0 if report.ok else CorruptError.exit_code


_DIGEST = re.compile(r"[0-9a-fA-F]{64}\Z")


def expected_check(
    store: Store,
    expect: str | None,
    asked: tuple[str | None, Sequence[str], str | None],
    *,
    read_all: bool,
) -> Report:
    """Returns the report of a check, with what the store lacks of an audit export as findings."""
    if expect is None or _DIGEST.match(expect) or not os.path.exists(expect):
        if any(asked):
            raise UsageError("--signed-by, --earlier and --anchor are about a file after --expect")
        if expect is not None and not _DIGEST.match(expect):
            raise NotFoundError(
                f"--expect is a digest of 64 hexadecimal digits, or the file of an audit export, "
                f'and there is no file "{expect}"'
            )
        return store.check(read_all=read_all, expect=expect and expect.lower())
    signed_by, earlier, anchor = asked
    _, lacking = verify_export(store, expect, signed_by=signed_by, earlier=earlier, anchor=anchor)
    report = store.check(read_all=read_all)
    return replace(report, findings=[*report.findings, *lacking])


def print_report(report: Report, options: Options) -> None:
    for finding in report.findings:
        kind = "harmless" if finding.harmless else "DAMAGED"
        print_line(f"{kind}\t{clean(finding.where)}\t{clean(finding.problem)}")
        if finding.streams:
            names = ", ".join(map(clean, finding.streams[:STREAMS_SHOWN]))
            more = len(finding.streams) - STREAMS_SHOWN
            print_line(f"\tconcerns\t{names}{f' and {more} more' if more > 0 else ''}")
    if report.read_all:
        verdict, read = "ok", f"{report.events} events read"
    else:
        verdict, read = "structure ok", f"{report.unread} events not read"
    counts = f"{report.streams} streams, {read}"
    if not report.digest and not report.read_all:
        counts = "what it holds cannot be counted; --read-all counts what can be read"
    print_line(f"{verdict if report.ok else 'NOT OK'}\t{counts}")
    print_line(f"digest\t{report.digest or 'cannot be told while the store is damaged'}")
    if not report.ok:
        place = shlex.quote(without_secrets(options.place))
        print_line(f"remedy\tholdfast salvage {place} NEW")
        print_note("hint: first copy its files elsewhere, and look for a backup")
    elif not report.read_all:
        print_note(f"to read every event: {command('check --read-all', options.place)}")


def copy_store(
    a: Annotated[str, Parameter(name="A")],
    b: Annotated[str, Parameter(name="B")],
    /,
    *,
    to_key: str | None = None,
    to_tenant: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Copy a store into another one of any kind; resumable.

    Parameters
    ----------
    a
        The store to copy: a folder, a URL, or a TOML file that names several.
    b
        The store to copy into; created if it does not exist. It must hold nothing else.
    to_key
        The store key of B, if it is to be encrypted. --store-key is that of A.
    to_tenant
        The tenant of B to copy into. --tenant is that of A to copy.
    """
    refuse_memory(b)
    with (
        open_source(place_of(a, options.tenant), store_key=options.store_key) as source,
        holdfast.open(b, actor=options.writer, store_key=to_key, tenant=to_tenant) as target,
        progress_shown(quiet=options.json) as progress,
    ):
        copied = copy(source, target, progress=progress)
        digest = target.check(read_all=False).digest
    if options.json:
        print_json(copy_document(without_secrets(a), without_secrets(b), copied, digest))
        return
    print_line(
        f"copied {copied.events} events in {copied.commits} commits and {copied.blobs} blobs, "
        f"{copied.skipped} events were there already"
        + (f", {copied.ended} of expired scopes were not copied" if copied.ended else "")
    )
    print_line(f"digest\t{digest}")
    if copied.is_behind:
        words = " ".join(shlex.quote(without_secrets(place)) for place in (a, b))
        print_note(f"the source was written to meanwhile; catch up: holdfast copy {words}")


@contextmanager
def progress_shown(
    *, quiet: bool, what: str = "copying events", unit: str = "events"
) -> Generator[Progress | None]:
    """Yields a function that shows progress: a bar on a terminal, else a line for each tenth."""
    if quiet and not sys.stderr.isatty():
        yield None
        return
    if not sys.stderr.isatty():
        yield Tenths(unit).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("copying", total=None)
        yield lambda passed, total: bar.update(task, completed=passed, total=total)


class Tenths:
    """Progress as lines, at most ten of them."""

    def __init__(self, unit: str = "events") -> None:
        self._unit = unit
        self._shown = 0

    def show(self, passed: int, total: int) -> None:
        tenths = 10 * passed // total
        if tenths > self._shown and (self._shown or passed < total):  # a short copy prints none
            self._shown = tenths
            print(f"{passed} of {total} {self._unit} ({tenths}0 %)", file=sys.stderr, flush=True)


def workers(*, suspects: Flag = False, options: Options = DEFAULTS) -> None:
    """List the workers: who is alive, who is silent, what each holds.

    Parameters
    ----------
    suspects
        Only those that have been silent for longer than their lease.
    """
    with open_reading(options) as store:
        found = store.workers.suspects(limit=None) if suspects else store.workers.list(limit=None)
    if options.json:
        print_json(workers_document(found))
        return
    rows = [
        (
            worker.id,
            "alive" if worker.alive else "silent",
            f"{worker.silent_s:.1f} s",
            "" if worker.pid is None else f"{worker.host}:{worker.pid}",
            worker.actor or "",
            ", ".join([*worker.leases, *("/".join(claim) for claim in worker.claims)]),
        )
        for worker in found
    ]
    if rows:
        print_table(("worker", "", "last heartbeat", "process", "actor", "holds"), rows)
    else:
        print_note("no suspects" if suspects else "no workers")


def groups(*, options: Options = DEFAULTS) -> None:
    """List the consumer groups: where each is, who gets its deliveries, how far behind it is."""
    with open_reading(options) as store:
        found = store.workers.groups(limit=None)
    if options.json:
        print_json(groups_document(found))
        return
    rows = [
        (
            group.name,
            group.member or "",
            "?" if group.lag_events is None else str(group.lag_events),
            show_time(group.waiting_since) if group.waiting_since else "",
            "of another store" if group.position is None else str(int(group.position)),
        )
        for group in found
    ]
    if rows:
        print_table(("group", "member", "behind", "waiting since", "position"), rows)
    else:
        print_note("no groups")
