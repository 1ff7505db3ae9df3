"""Verbs that look at runs: list, show, tail."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.options import DEFAULTS, Options, open_reading
from holdfast.cli.printing import (
    clean,
    console,
    is_terminal,
    print_facts,
    print_json,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.runs_shapes import (
    Node,
    Seen,
    facts_of,
    line_of,
    run_shape,
    summary_shape,
    tree_of,
)
from holdfast.cli.runs_watching import Watcher, draw, glance, looks, print_events, screen, see
from holdfast.cli.shapes import show_time
from holdfast.errors import UsageError
from holdfast.runs.events import ENDED
from holdfast.store import Store

COLUMNS = ("run", "status", "updated", "code", "doing")
TAIL = 10


def list_runs(*, status: str | None = None, limit: int = 50, options: Options = DEFAULTS) -> None:
    """List runs: those that have not ended first, then the others, newest ids first.

    Parameters
    ----------
    status
        Only those that are pending, running, waiting, needs_attention, cancelling, completed,
        failed or cancelled.
    limit
        How many at most.
    """
    if limit < 1:
        raise UsageError(f"--limit is at least 1, found {limit}")
    with open_reading(options) as store:
        known = sorted(store.runs(status=status), key=lambda run: run.id, reverse=True)
        known.sort(key=lambda run: run.status in ENDED)
        found = [glance(store, run) for run in known[:limit]]
        if options.json:
            print_json({"runs": [summary_shape(run) for run in found], "count": len(known)})
            return
        rows = [_row(run) for run in found]
    if rows:
        print_table(COLUMNS, rows)
        if len(known) > limit:
            print_note(f"{len(known) - limit:,} more: --limit {len(known)}")
    else:
        print_note(f"no run is {status}" if status else "no runs")


def _row(run: Seen) -> tuple[str, ...]:
    doing = ""
    if run.status not in ENDED:
        doing = "; ".join([*run.progress.blocks, *run.progress.statements])
    elif run.journal.ended is not None and run.journal.ended.error is not None:
        doing = f"{run.journal.ended.error.kind}: {run.journal.ended.error.message}"
    status = run.standing if is_terminal() else run.status
    return run.id, status, show_time(run.updated), run.name, doing


def show(id: str, /, *, options: Options = DEFAULTS) -> None:
    """Show what a run is doing and has done: a tree of its blocks and steps.

    Parameters
    ----------
    id
        The run's id.
    """
    with open_reading(options) as store:
        run = see(store, id)
        if options.json:
            print_json(run_shape(run))
        elif is_terminal():
            console().print(draw(run))
        else:
            print_facts(facts_of(run))
            for cells in _entry_rows(tree_of(run.journal), run):
                print_line("\t".join(clean(cell) for cell in cells))


def _entry_rows(node: Node, run: Seen) -> Iterator[tuple[str, ...]]:
    if (entry := node.entry) is not None:
        state = "uncertain" if entry.is_uncertain and run.owner is None else entry.state
        state = "done" if state == "open" and node.is_over else state
        yield entry.path, entry.kind, state, line_of(node, run)
    for child in node.inside.values():
        yield from _entry_rows(child, run)


def tail(
    id: str,
    /,
    *,
    after: int | None = None,
    timeout: float | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Follow a run until it ends: a live tree on a terminal, else a line for each event.

    Parameters
    ----------
    id
        The run's id.
    after
        Begin behind this revision of its journal instead of ten events before its end.
    timeout
        Stop when nothing came for this many seconds.
    """
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"--timeout is a number of seconds, at least 0, found {timeout}")
    if after is not None and after < 0:
        raise UsageError(f"--after is at least 0, found {after}")
    with open_reading(options) as store:
        if is_terminal() and not options.json:
            _tail_tree(store, id, timeout)
        else:
            _tail_lines(store, id, after, timeout, options)


def _tail_tree(store: Store, id: str, timeout: float | None) -> None:
    with screen(store) as picture:
        assert picture is not None, "BUG: a tree without a terminal"
        for run in looks(Watcher(store, id), timeout):
            picture.show(run)


def _tail_lines(
    store: Store, id: str, after: int | None, timeout: float | None, options: Options
) -> None:
    watcher = Watcher(store, id)
    first = watcher.news
    first = first[-TAIL:] if after is None else [e for e in first if e.revision > after]
    print_events(watcher, first, is_json=options.json)
    for _ in looks(watcher, timeout):
        print_events(watcher, watcher.news, is_json=options.json)
