"""Runs as documents, and their journals as trees and lines of text. Pure.

A line of the tree is one operation or block of the journal; its name is the last part of the path
that `fork`, `settle` and `answer` take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.core.event import to_datetime
from holdfast.core.page import Page
from holdfast.render.text import (
    clean,
    encode_value,
    page_document,
    preview,
    shorten,
    show_time,
    time_text,
)
from holdfast.runs import events
from holdfast.runs.blocks import Progress
from holdfast.runs.journal import Entry, Journal

Load = Callable[[Any], Any]
_ITERATION = re.compile(r"\[[^\]]*\]")
_LOOPS = frozenset(("each", "repeat", "loop"))
_VALUES = frozenset(("step", "let", "const", "set", "wait", "signal", "now", "random", "uuid"))


class RunView(Struct):
    """A run as it was read: its journal, when it began and last changed, who executes it."""

    id: str
    journal: Journal
    created: datetime
    updated: datetime
    owner: str | None
    progress: Progress
    load: Load
    times: dict[int, int] = {}
    """When each of its events was written, in microseconds, by revision."""

    def seconds_of(self, entry: Entry) -> float | None:
        """Returns how long an operation took, retries included; None if only its end is recorded.

        A pure step has only one event, which is written together with the next that cannot wait.
        """
        began, ended = self.times.get(entry.revision), self.times.get(entry.closed)
        if began is None or ended is None or entry.closed <= entry.revision:
            return None
        return (ended - began) / 1_000_000

    @property
    def status(self) -> events.Status:
        """Its status; cancelling while its worker stops it."""
        return self.progress.status

    @property
    def is_left(self) -> bool:
        """Whether it should be running and nobody executes it: its process died, or left it."""
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


class TreeNode:
    """One line of the tree."""

    def __init__(self, name: str, entry: Entry | None = None) -> None:
        self.name = name
        self.entry = entry
        self.children: dict[str, TreeNode] = {}
        self.is_over = False


def journal_tree(journal: Journal) -> TreeNode:
    """Returns the blocks and operations of a run, nested as its code is, oldest first."""
    root = TreeNode("")
    for entry in sorted(journal.entries.values(), key=lambda entry: entry.revision):
        node = root
        for part in path_parts(entry.path):
            node = node.children.setdefault(part, TreeNode(part))
        node.entry = entry
    _close(root, over=journal.ended is not None and journal.ended.status == "completed")
    return root


def _close(node: TreeNode, *, over: bool) -> None:
    """Marks the loops and iterations that are over: their end is not recorded.

    One is over if something comes after it in its block, or if the block itself is over.
    """
    node.is_over = over
    last = len(node.children) - 1
    # Branches of a parallel block run at once: a later branch does not say that one is over.
    for number, child in enumerate(node.children.values()):
        ended = child.entry is not None and child.entry.state != "open"
        is_branch = node.entry is not None and node.entry.kind == "parallel"
        _close(child, over=over or ended or (number < last and not is_branch))


def path_parts(path: str) -> list[str]:
    """Returns the names from the body down to an operation; an iteration is a part of its own."""
    parts: list[str] = []
    for segment in path.split("/"):
        name, *_ = _ITERATION.split(segment, maxsplit=1)
        parts += [name, *_ITERATION.findall(segment)]
    return parts


def node_symbol(node: TreeNode, run: RunView) -> str:
    """Returns a sign for the state of an operation."""
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


def node_text(node: TreeNode, run: RunView) -> str:
    """Returns what is known of an operation: its value, error, attempts or what it waits for."""
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
    return _open_text(entry, node, run, tries)


def show_seconds(seconds: float | None) -> str:
    """Returns how long something took, for people; "" if that is not known."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m{rest:02}s" if hours else f"{minutes}m{rest:02}s"


def _open_text(entry: Entry, node: TreeNode, run: RunView, tries: str) -> str:
    if entry.child is not None:
        return f"run {entry.child}"
    if entry.total is not None:
        if entry.kind == "parallel":
            ended = [n for n in node.children.values() if n.entry and n.entry.state != "open"]
            return f"{len(ended)} of {entry.total} branches"
        count = sum(1 for part in node.children if part.startswith("["))
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


def run_facts(run: RunView) -> list[tuple[str, str]]:
    """Returns the facts about a whole run, by name."""
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
        facts.append(("diverged", divergence_text(journal.diverged)))
    if journal.forked is not None:
        facts.append(("fork of", journal.forked.origin))
    if journal.ended is not None and journal.ended.error is not None:
        facts.append(("error", f"{journal.ended.error.kind}: {journal.ended.error.message}"))
    elif journal.ended is not None and journal.ended.value:
        facts.append(("result", preview(run.load(journal.ended.value))))
    facts += [("note", f"{note.path}: {note.text}") for note in journal.notes]
    return facts


def failure_lines(run: RunView) -> list[str]:
    """Returns the traceback of a run that failed, or of the newest attempt that will be repeated.

    Empty if nothing failed.
    """
    ended = run.journal.ended
    if ended is not None:
        fault = ended.error
    else:
        failed = [entry for entry in run.journal.entries.values() if entry.error is not None]
        newest = max(failed, key=lambda entry: entry.revision, default=None)
        fault = None if newest is None else newest.error
    return [] if fault is None else [clean(line) for line in fault.traceback.splitlines()]


def divergence_text(diverged: events.Diverged) -> str:
    """Returns in a line what the journal expected and what the code asked for."""
    where = f" at {diverged.source}" if diverged.source else ""
    return f'"{diverged.path}": expected {diverged.expected}, found {diverged.found}{where}'


def removed_runs_document(id: str, removed: list[str]) -> dict[str, Any]:
    """Returns a run that was removed, and the ids of all removed runs: it and its children."""
    return {"run": id, "runs": removed, "removed": True}


def started_run_document(id: str, status: str) -> dict[str, Any]:
    """Returns a run that was put into a queue."""
    return {"run": id, "status": status}


def run_result_document(id: str, result: Any) -> dict[str, Any]:
    """Returns what a completed run returned."""
    return {"run": id, "status": "completed", "result": encode_value(result)}


def run_status_document(run: RunView) -> dict[str, Any]:
    """Returns a run's status, and the worker that executes it."""
    return {"run": run.id, "status": run.status, "worker": run.owner}


def runs_document(runs: Page[RunView], count: int) -> dict[str, Any]:
    """Returns a page of runs; `count` is how many there are, listed or not."""
    documents = [run_summary_document(run) for run in runs]
    return {"runs": documents, "count": count, **page_document(runs)}


def run_document(run: RunView) -> dict[str, Any]:
    """Returns all that is known of a run."""
    journal = run.journal
    created, ended = journal.created, journal.ended
    return {
        **run_summary_document(run),
        "inputs": encode_value(run.load(created.inputs) if created is not None else None),
        "parent": None if created is None else created.parent,
        "fork_of": None if journal.forked is None else journal.forked.origin,
        "reason": None if journal.suspended is None else journal.suspended.reason,
        "diverged": None if journal.diverged is None else asdict(journal.diverged),
        "uncertain": [entry.path for entry in journal.uncertain()],
        "result": encode_value(run.load(ended.value) if ended and ended.value else None),
        "error": None if ended is None or ended.error is None else fault_document(ended.error, run),
        "notes": [asdict(note) for note in journal.notes],
        "entries": [entry_document(entry, run) for entry in journal.entries.values()],
    }


def run_summary_document(run: RunView) -> dict[str, Any]:
    """Returns a run in short, for a list."""
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


def entry_document(entry: Entry, run: RunView) -> dict[str, Any]:
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
        "seconds": run.seconds_of(entry),
        "key": entry.key,
        "total": entry.total,
        "child": entry.child,
        "due": None if entry.due is None else time_text(to_datetime(entry.due)),
        "retry_at": None if entry.retry_at is None else time_text(to_datetime(entry.retry_at)),
        "value": encode_value(run.load(entry.value) if entry.value else None),
        "error": None if entry.error is None else fault_document(entry.error, run),
    }


def fault_document(fault: events.Fault, run: RunView) -> dict[str, Any]:
    """Returns an error of a step or a run."""
    data = run.load(fault.data) if fault.data else None
    return {
        "kind": fault.kind,
        "message": fault.message,
        "data": encode_value(data),
        "traceback": fault.traceback or None,
    }


def event_text(event: Any, load: Load) -> tuple[str, str]:
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
        return path, f"{event.verdict} (by {event.by})"
    if isinstance(event, events.Diverged):
        return path, divergence_text(event)
    if isinstance(event, events.Ended):
        if event.error is not None:
            return "", f"{event.status}: {event.error.kind}: {event.error.message}"
        value = shorten(preview(load(event.value))) if event.value else ""
        return "", f"{event.status} {value}".strip()
    said = next((getattr(event, name) for name in ("text", "reason") if hasattr(event, name)), "")
    return path, clean(str(said))


def tree_rows(node: TreeNode, run: RunView) -> Iterator[tuple[str, str, str, str]]:
    """Yields path, kind, state and text of each operation, as the tree is ordered."""
    if (entry := node.entry) is not None:
        state = "uncertain" if entry.is_uncertain and run.owner is None else entry.state
        state = "done" if state == "open" and node.is_over else state
        yield entry.path, entry.kind, state, node_text(node, run)
    for child in node.children.values():
        yield from tree_rows(child, run)
