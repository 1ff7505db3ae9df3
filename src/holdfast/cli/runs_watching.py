"""Following a run as it goes: a tree that is redrawn on a terminal, lines for programs."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.cli.printing import (
    CHILDREN_MAX,
    clean,
    console,
    is_terminal,
    print_json_line,
    print_line,
    shorten,
)
from holdfast.cli.runs_shapes import (
    Node,
    Seen,
    event_line,
    facts_of,
    line_of,
    symbol_of,
    tree_of,
)
from holdfast.cli.shapes import event_shape, show_time
from holdfast.clock import Clock
from holdfast.errors import NotFoundError
from holdfast.event import Event, to_datetime
from holdfast.runs import events
from holdfast.runs.blocks import recorded_progress
from holdfast.runs.engine import check_id
from holdfast.runs.journal import Journal
from holdfast.runs.tended import RunSummary
from holdfast.store import Store

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LOOK_S = 0.1
"""How often a run that goes on is looked at."""
LIVE_CHILDREN = 8
"""Lines of one block on a screen that is redrawn; it shows the newest."""
GLANCE = 300
"""Records of a long run that a list reads."""
STYLES = {"✓": "green", "✗": "bold red", "?": "bold yellow", "●": "bold cyan"}


class Watcher:
    """Reads a run's journal again and again, each time only what is new."""

    def __init__(self, store: Store, id: str) -> None:
        self.store = store
        self.id = check_id(id)
        self._journal = Journal()
        self._created = self._updated = 0
        self.news: list[Event] = []
        self.look()
        if self._journal.created is None:
            raise NotFoundError(f'there is no run "{id}"', hint="holdfast runs list")

    def look(self) -> Seen | None:
        """Reads on, and returns the run as it stands; None if there is no such run."""
        log = self.store.log
        self.news = []
        for record in log.records(f"run/{self.id}", after=self._journal.revision):
            self._journal.apply(events.read(record.type, record.payload))
            self._created = self._created or record.time
            self._updated = record.time
            self.news.append(Event(record))
        if self._journal.created is None:
            return None
        holder = log.backend.leases.holder(f"run/{self.id}")
        engine = self.store.engine
        is_here = self.id in engine.active
        return Seen(
            self.id,
            self._journal,
            to_datetime(self._created),
            to_datetime(self._updated),
            None if holder is None else holder.owner,
            engine.progress_of(self.id) if is_here else recorded_progress(self._journal),
            engine.load,
        )

    @property
    def seen(self) -> Seen:
        """The run, read to its newest record."""
        seen = self.look()
        assert seen is not None, "BUG: a run that was there is gone"
        return seen


def looks(watcher: Watcher, timeout: float | None) -> Iterator[Seen]:
    """Yields a run again and again until it has ended, or nothing came for `timeout` seconds."""
    log = watcher.store.log
    last = log.clock.boot_us()
    while True:
        position = log.position()
        run = watcher.seen
        if watcher.news:
            last = log.clock.boot_us()
        yield run
        is_idle = timeout is not None and log.clock.boot_us() - last >= timeout * 1e6
        if run.journal.ended is not None or is_idle:
            return
        log.backend.wait(position, timeout_s=LOOK_S)


def glance(store: Store, summary: RunSummary) -> Seen:
    """Returns a run as it stands in a list; of a long one only its first and newest records.

    What it is doing is among them; loops that opened long before are left out.
    """
    stream, log = f"run/{summary.id}", store.log
    head = log.head(stream)
    if head is None or head.revision <= GLANCE:
        return see(store, summary.id)
    journal = Journal()
    first, *newest = (
        *log.records(stream, until=1),
        *log.records(stream, after=head.revision - GLANCE),
    )
    for record in (first, *newest):
        event: Any = events.read(record.type, record.payload)
        if isinstance(event, events.Settled | events.Refused) and event.path not in journal.entries:
            continue  # about something that lies before
        journal.apply(event)
    holder = log.backend.leases.holder(stream)
    return Seen(
        summary.id,
        journal,
        to_datetime(first.time),
        to_datetime(newest[-1].time),
        None if holder is None else holder.owner,
        replace(recorded_progress(journal), status=summary.status),
        store.engine.load,
    )


def see(store: Store, id: str) -> Seen:
    """Returns a run as it stands now, or raises NotFoundError."""
    return Watcher(store, id).seen


def draw(run: Seen, *, most: int = CHILDREN_MAX) -> RenderableType:
    """Returns the tree of a run, with what is said of it as a whole above it."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    def grow(branch: Tree, node: Node) -> None:
        inside = list(node.inside.values())
        if len(inside) > most:
            left = len(inside) - most
            branch.add(Text(f"… {left:,} before: --json shows all", style="dim"))
            inside = inside[-most:]
        for child in inside:
            sign = symbol_of(child, run)
            said = shorten(clean(line_of(child, run)))
            text = Text.assemble((f"{sign} ", STYLES[sign]), (clean(child.name), "bold"))
            grow(branch.add(text.append(f"  {said}") if said else text), child)

    facts = facts_of(run)
    width = max(len(name) for name, _ in facts) + 2
    above = [Text.assemble((name.ljust(width), "bold"), clean(value)) for name, value in facts]
    tree = Tree(Text("", style="bold"), hide_root=True)
    grow(tree, tree_of(run.journal))
    return Group(*above, tree)


class Picture:
    """A place on the terminal where a run is drawn again and again."""

    def __init__(self, live: Live, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._next_us = 0

    def show(self, run: Seen) -> None:
        """Draws the newest state of a run; all of it once it has ended.

        Drawing a long run takes long, and the run may be executed by this very process: it is
        drawn again after ten times that.
        """
        over, now_us = run.journal.ended is not None, self._clock.boot_us()
        if over or now_us >= self._next_us:
            most = CHILDREN_MAX if over else LIVE_CHILDREN
            self._live.update(draw(run, most=most), refresh=True)
            self._next_us = now_us + 10 * (self._clock.boot_us() - now_us)


@contextmanager
def screen(store: Store, *, wanted: bool = True) -> Generator[Picture | None]:
    """Gives a place on the terminal that is redrawn; None if nobody looks."""
    if not wanted or not is_terminal():
        yield None
        return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        yield Picture(live, store.log.clock)


def print_events(watcher: Watcher, found: list[Event], *, is_json: bool) -> None:
    """Prints events of a journal, each on a line of its own."""
    for event in found:
        if is_json:
            print_json_line(event_shape(event))
            continue
        cells = event_row(event, watcher.store)
        print_line("\t".join(clean(cell) for cell in cells))
    sys.stdout.flush()


def event_row(event: Event, store: Store) -> tuple[str, ...]:
    """Returns revision, time, event, path and what happened."""
    known: Any = events.read(event.type, event.record.payload)
    path, what = ("", "") if known is None else event_line(known, store.engine.load)
    name = event.type.removeprefix("run.")
    return str(event.revision), show_time(event.time), name, path, what
