"""Following a run as it goes: a tree that is redrawn on a terminal, lines for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.cli.printing import CHILDREN_MAX, console, is_terminal, print_json_line, print_line
from holdfast.clock import Clock
from holdfast.core.event import Event, to_datetime
from holdfast.errors import NotFoundError
from holdfast.render import clean, encode_value, event_shape, preview, shorten, show_time, time_text
from holdfast.runs import events
from holdfast.runs.admin import RunSummary
from holdfast.runs.blocks import Progress, recorded_progress
from holdfast.runs.engine import check_id
from holdfast.runs.journal import Entry, Journal
from holdfast.store import Store

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


# --- runs_shapes ----------------------------------------------------------------------------------
#
# A run as documents and as a tree: what `runs show`, `list` and `tail` print. Pure.
#
# A line of the tree is one operation or block of the journal; its name is the last part of the path
# that `fork`, `settle` and `answer` take.


Load = Callable[[Any], Any]
_ITERATION = re.compile(r"\[\d+\]")
_LOOPS = frozenset(("each", "repeat"))
_VALUES = frozenset(("step", "let", "const", "set", "wait", "signal", "now", "random", "uuid"))


class Seen(Struct):
    """A run as it was read: its journal, when it began and was last written, who has it."""

    id: str
    journal: Journal
    created: datetime
    updated: datetime
    owner: str | None
    progress: Progress
    load: Load

    @property
    def status(self) -> events.Status:
        """Where it stands; one that is cancelled by its owner right now says so."""
        return self.progress.status

    @property
    def is_left(self) -> bool:
        """Whether it is to be running, and nobody runs it: its process died, or left."""
        return self.owner is None and self.status in ("running", "cancelling")

    @property
    def standing(self) -> str:
        """The status for people."""
        status = self.status.replace("_", " ")
        return f"{status} (nobody executes it)" if self.is_left else status

    @property
    def name(self) -> str:
        created = self.journal.created
        return "" if created is None else created.name


class Node:
    """One line of the tree."""

    def __init__(self, name: str, entry: Entry | None = None) -> None:
        self.name = name
        self.entry = entry
        self.inside: dict[str, Node] = {}
        self.is_over = False


def tree_of(journal: Journal) -> Node:
    """Returns the blocks and operations of a run, nested as its code is, oldest first."""
    root = Node("")
    for entry in sorted(journal.entries.values(), key=lambda entry: entry.revision):
        node = root
        for part in parts_of(entry.path):
            node = node.inside.setdefault(part, Node(part))
        node.entry = entry
    _close(root, over=journal.ended is not None and journal.ended.status == "completed")
    return root


def _close(node: Node, *, over: bool) -> None:
    """Says which loops and iterations are over: they have no record of their end.

    One is if something stands behind it in its block, or if the block itself is over.
    """
    node.is_over = over
    last = len(node.inside) - 1
    for number, child in enumerate(node.inside.values()):
        ended = child.entry is not None and child.entry.state != "open"
        is_branch = node.entry is not None and node.entry.kind == "parallel"
        _close(child, over=over or ended or (number < last and not is_branch))


def parts_of(path: str) -> list[str]:
    """Returns the names from the body down to an operation; an iteration is one of its own."""
    parts: list[str] = []
    for segment in path.split("/"):
        name, *_ = _ITERATION.split(segment, maxsplit=1)
        parts += [name, *_ITERATION.findall(segment)]
    return parts


def symbol_of(node: Node, run: Seen) -> str:
    """Returns a sign for how an operation stands."""
    entry = node.entry
    if entry is None or entry.kind in _LOOPS:
        return "✓" if node.is_over else "●"
    if entry.state == "done":
        return "✓"
    if entry.state == "failed":
        return "✗"
    if entry.is_uncertain and run.owner is None:
        return "?"
    return "●"


def line_of(node: Node, run: Seen) -> str:
    """Returns what there is to say of an operation beside its name."""
    entry = node.entry
    if entry is None:
        return ""
    tries = f"attempt {entry.attempt} of {entry.attempts}" if entry.attempts > 1 else ""
    if entry.error is not None:
        said = f"{entry.error.kind}: {entry.error.message}"
        if entry.retry_at is not None:
            said = f"{tries} failed: {said}; again at {show_time(to_datetime(entry.retry_at))}"
        elif tries:
            said += f" ({tries})"
        return said
    if entry.state == "done":
        shown = preview(run.load(entry.value)) if entry.kind in _VALUES and entry.value else ""
        if entry.lost:
            shown = f"done, its result is lost: {entry.lost}"
        return f"{shown} ({tries})".strip() if tries and entry.attempt > 1 else shown
    return _open_line(entry, node, run, tries)


def _open_line(entry: Entry, node: Node, run: Seen, tries: str) -> str:
    if entry.child is not None:
        return f"run {entry.child}"
    if entry.total is not None:
        if entry.kind == "parallel":
            ended = [n for n in node.inside.values() if n.entry and n.entry.state != "open"]
            return f"{len(ended)} of {entry.total} branches"
        count = sum(1 for part in node.inside if part.startswith("["))
        if node.is_over:
            return f"{count} of {entry.total} iterations"
        return f"iteration {max(count, 1)} of {entry.total}"
    if entry.kind in ("wait", "signal", "sleep"):
        until = f" until {show_time(to_datetime(entry.due))}" if entry.due is not None else ""
        what = "" if entry.kind == "sleep" else " for an answer"
        what = " for a signal" if entry.kind == "signal" else what
        return f"waits{what}{until}"
    if entry.is_uncertain and run.owner is None:
        return (
            f"begun, and nobody knows whether it was done{': ' * bool(entry.reason)}{entry.reason}"
        )
    return tries


def facts_of(run: Seen) -> list[tuple[str, str]]:
    """Returns what is said of a run above its tree."""
    journal = run.journal
    facts = [
        ("run", run.id),
        ("code", run.name),
        ("status", run.standing),
        ("started", show_time(run.created)),
        ("updated", show_time(run.updated)),
    ]
    if run.owner is not None:
        facts.append(("worker", run.owner))
    if journal.ended is None and journal.diverged is None:
        if run.progress.statements and run.status != "needs_attention":
            facts.append(("doing", "; ".join(run.progress.statements)))
        if run.progress.blocks:
            facts.append(("inside", ", ".join(run.progress.blocks)))
        if journal.suspended is not None:
            facts.append(("because", journal.suspended.reason))
    if journal.diverged is not None:
        facts.append(("diverged", show_divergence(journal.diverged)))
    if journal.forked is not None:
        facts.append(("fork of", journal.forked.origin))
    if journal.ended is not None and journal.ended.error is not None:
        facts.append(("error", f"{journal.ended.error.kind}: {journal.ended.error.message}"))
    elif journal.ended is not None and journal.ended.value:
        facts.append(("result", preview(run.load(journal.ended.value))))
    facts += [("note", f"{note.path}: {note.text}") for note in journal.notes]
    return facts


def show_divergence(diverged: events.Diverged) -> str:
    """Returns in a line what the journal expected and what the code asked for."""
    where = f" at {diverged.source}" if diverged.source else ""
    return f'"{diverged.path}": expected {diverged.expected}, found {diverged.found}{where}'


def run_shape(run: Seen) -> dict[str, Any]:
    """Returns all that is known of a run."""
    journal = run.journal
    created, ended = journal.created, journal.ended
    return {
        **summary_shape(run),
        "inputs": encode_value(run.load(created.inputs) if created is not None else None),
        "parent": None if created is None else created.parent,
        "fork_of": None if journal.forked is None else journal.forked.origin,
        "reason": None if journal.suspended is None else journal.suspended.reason,
        "diverged": None if journal.diverged is None else asdict(journal.diverged),
        "uncertain": [entry.path for entry in journal.uncertain()],
        "result": encode_value(run.load(ended.value) if ended and ended.value else None),
        "error": None if ended is None or ended.error is None else fault_shape(ended.error, run),
        "notes": [asdict(note) for note in journal.notes],
        "entries": [entry_shape(entry, run) for entry in journal.entries.values()],
    }


def summary_shape(run: Seen) -> dict[str, Any]:
    """Returns a run as it stands in a list."""
    return {
        "run": run.id,
        "code": run.name,
        "status": run.status,
        "worker": run.owner,
        "created": time_text(run.created),
        "updated": time_text(run.updated),
        "statements": list(run.progress.statements),
        "blocks": list(run.progress.blocks),
        "last_done": run.progress.last_done,
    }


def entry_shape(entry: Entry, run: Seen) -> dict[str, Any]:
    """Returns one operation of a run."""
    return {
        "path": entry.path,
        "kind": entry.kind,
        "name": entry.name,
        "effect": entry.effect,
        "state": entry.state,
        "attempt": entry.attempt,
        "attempts": entry.attempts,
        "revision": entry.revision,
        "uncertain": entry.is_uncertain,
        "key": entry.key,
        "total": entry.total,
        "child": entry.child,
        "due": None if entry.due is None else time_text(to_datetime(entry.due)),
        "retry_at": None if entry.retry_at is None else time_text(to_datetime(entry.retry_at)),
        "value": encode_value(run.load(entry.value) if entry.value else None),
        "error": None if entry.error is None else fault_shape(entry.error, run),
    }


def fault_shape(fault: events.Fault, run: Seen) -> dict[str, Any]:
    """Returns an error of a step or a run."""
    data = run.load(fault.data) if fault.data else None
    return {"kind": fault.kind, "message": fault.message, "data": encode_value(data)}


def event_line(event: Any, load: Load) -> tuple[str, str]:
    """Returns the path that an event of a journal is about, and what happened."""
    path = getattr(event, "path", None) or ""
    if isinstance(event, events.Created):
        return "", f"{event.name} {shorten(preview(load(event.inputs)))}"
    if isinstance(event, events.Claimed):
        return "", f"by worker {event.worker}, epoch {event.epoch}"
    if isinstance(event, events.Intended):
        return path, f"attempt {event.attempt}" if event.attempt > 1 else event.effect
    if isinstance(event, events.StepDone):
        return path, shorten(preview(load(event.value))) if event.value else event.lost or ""
    if isinstance(event, events.Failed):
        again = "" if event.retry_at is None else f"; attempt {event.attempt + 1} follows"
        return path, f"attempt {event.attempt}: {event.error.kind}: {event.error.message}{again}"
    if isinstance(event, events.Settled):
        return path, f"{event.verdict} says {event.by}"
    if isinstance(event, events.Diverged):
        return path, show_divergence(event)
    if isinstance(event, events.Ended):
        if event.error is not None:
            return "", f"{event.status}: {event.error.kind}: {event.error.message}"
        value = shorten(preview(load(event.value))) if event.value else ""
        return "", f"{event.status} {value}".strip()
    said = next((getattr(event, name) for name in ("text", "reason") if hasattr(event, name)), "")
    return path, clean(str(said))


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
        log = self.store._log
        self.news = []
        for record in log.records(f"run/{self.id}", after=self._journal.revision):
            self._journal.apply(events.read(record.type, record.payload))
            self._created = self._created or record.time
            self._updated = record.time
            self.news.append(Event(record))
        if self._journal.created is None:
            return None
        holder = log.leases.holder(f"run/{self.id}")
        engine = self.store._engine
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
    log = watcher.store._log
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
        log.wait_after(position, timeout_s=LOOK_S)


def glance(store: Store, summary: RunSummary) -> Seen:
    """Returns a run as it stands in a list; of a long one only its first and newest records.

    What it is doing is among them; loops that opened long before are left out.
    """
    stream, log = f"run/{summary.id}", store._log
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
    holder = log.leases.holder(stream)
    return Seen(
        summary.id,
        journal,
        to_datetime(first.time),
        to_datetime(newest[-1].time),
        None if holder is None else holder.owner,
        replace(recorded_progress(journal), status=summary.status),
        store._engine.load,
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
        yield Picture(live, store._log.clock)


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
    path, what = ("", "") if known is None else event_line(known, store._engine.load)
    name = event.type.removeprefix("run.")
    return str(event.revision), show_time(event.time), name, path, what
