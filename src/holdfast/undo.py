"""Takes back what a writer changed, over all scopes: `hf.undo`.

The index of questions finds the writer's events. Each scope's state is then examined from the first
of these on (`core/revert.py`), and changed by one event, which is guarded by the revision that it
was computed from. Scopes are changed one after the other: if the process is killed, what was done
stays done, and a second call finds the rest. Messages, decisions, facts and acts cannot be taken
back: the result lists them, with what depends on the values taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from holdfast.backends.protocol import Record
from holdfast.core import event, tree
from holdfast.core.arguments import check_flag
from holdfast.core.codec import Path
from holdfast.core.commit import ProposedCommit
from holdfast.core.event import OF_STATE, Change, origin_of
from holdfast.core.kernel import Kernel
from holdfast.core.log import scope_stream
from holdfast.core.paging import event_filter
from holdfast.core.retry import persist
from holdfast.core.revert import Overwritten, WayBack, way_back
from holdfast.errors import (
    ConflictError,
    ExpiredError,
    HoldfastError,
    UsageError,
)
from holdfast.nodes.explain import stored_nodes
from holdfast.nodes.walk import Nodes
from holdfast.query.documents import is_of_scope
from holdfast.query.form import Hit
from holdfast.query.questions import Questions
from holdfast.scope import Scopes

_logger = logging.getLogger("holdfast.undo")
RETRIES = 8
_LINKED = ("decision", "task", "message", "fact", "event", "run")


class TakenBack(Struct, frozen=True):
    """A scope whose state was changed back; `old` of each change is the value taken back."""

    scope: str
    changes: tuple[Change, ...]
    revision: int | None = None
    """The revision of the event that did it; None in a preview."""


class NotTakenBack(Struct, frozen=True):
    """An event, or a path that it wrote, which stays, and why."""

    scope: str
    revision: int
    type: str
    why: str
    path: Path = ()


class Dependent(Struct, frozen=True):
    """Something that was made from what was taken back, for a person to look at."""

    kind: str
    scope: str
    id: str
    of: str
    """What it depends on: a link, a revision of a scope, or a key of its state."""


class Undone(Struct, frozen=True):
    """What was taken back, or in a preview would be."""

    taken_back: tuple[TakenBack, ...]
    not_taken_back: tuple[NotTakenBack, ...]
    dependents: tuple[Dependent, ...]
    is_preview: bool


class Undoing:
    """Takes changes back in one store."""

    def __init__(self, kernel: Kernel) -> None:
        self.log = kernel.log
        self._kernel = kernel
        self._scopes = kernel.part(Scopes)
        self._ask = kernel.part(Questions).ask

    def undo(
        self,
        *,
        source: str | None,
        actor: str | None,
        trust: str | None,
        since: datetime | None,
        scope: str | None,
        dry_run: bool,
    ) -> Undone:
        """Takes back what the selected writers wrote; with `dry_run` only returns what it would."""
        if source is None and actor is None and trust is None:
            raise UsageError(
                "undo takes back what somebody wrote: give a source, an actor or a trust",
                hint='hf.undo(source="tool", since="1d"); a scope\'s own undo takes back its '
                "newest change",
            )
        is_preview = check_flag(dry_run, "dry_run")
        said = {"source": source, "actor": actor, "trust": trust}
        wanted = event_filter(None, actor, source, trust)
        asked = {**said, "since": since, "scope": scope, "limit": None}
        events = self._ask(kind="log", **asked)
        begins = None if since is None else event.from_datetime(since)
        chosen = partial(_is_chosen, wanted.matches, begins)
        first: dict[str, int] = {}
        lives = {hit.scope: self.log.life(hit.scope) for hit in events}
        events = [hit for hit in events if hit.revision > lives[hit.scope]]
        for hit in events:
            first[hit.scope] = min(hit.revision, first.get(hit.scope, hit.revision))
        taken: list[TakenBack] = []
        stays = [_stays(hit) for hit in events if hit.type not in OF_STATE]
        paths: dict[str, set[str]] = {}
        for stream in sorted(first):
            if not is_of_scope(stream):
                continue
            one, kept = self._take_back(stream, first[stream], chosen, is_preview=is_preview)
            stays += kept
            if one is not None:
                taken.append(one)
            changes = () if one is None else one.changes
            paths[stream] = {str(change.path[0]) for change in changes if change.path}
        stays.sort(key=lambda one: (one.scope, one.revision, one.path and str(one.path)))
        items = self._ask(**asked)
        found = (*self._linking(items), *self._forks(first), *self._nodes_of(paths))
        return Undone(tuple(taken), tuple(stays), tuple(dict.fromkeys(found)), is_preview)

    # --- one scope -------------------------------------------------------------------------------

    def _take_back(
        self, stream: str, first: int, chosen: Callable[[Record], bool], *, is_preview: bool
    ) -> tuple[TakenBack | None, list[NotTakenBack]]:
        """Changes one scope; returns what was taken back of its state, and what stays."""

        def attempt() -> tuple[TakenBack | None, list[NotTakenBack]]:
            if self.log.newest(stream).is_absent:
                return None, []
            way = way_back(self.log, stream, first, chosen)
            kept = [self._overwritten(stream, one) for one in way.kept]
            if not way.ops:
                return None, kept
            revision = None if is_preview else self._write(stream, way)
            made = revision or way.before.revision
            changes = tree.diff(way.before.root, way.after, is_same_stream=True)
            told = [Change(stream, made, one.path, one.old, one.new) for one in changes]
            return TakenBack(stream, tuple(told), revision), kept

        try:
            return persist(self.log, self._kernel.worker, RETRIES, attempt)
        except ConflictError:
            why = f"other writers were faster {RETRIES} times"
        except ExpiredError:
            return None, []
        except HoldfastError as error:
            why = error.message
        return None, [NotTakenBack(stream, first, event.CHANGED, why)]

    def _write(self, stream: str, way: WayBack) -> int:
        """Writes the state without what is taken back."""
        own = scope_stream(self._scopes.scope(stream))
        write = own.change_write(way.ops, way.before.revision, None, None)
        return self.log.commit(ProposedCommit((write,))).revision

    def _overwritten(self, stream: str, one: Overwritten) -> NotTakenBack:
        path, revision, since = one.path, one.revision, one.since
        why = "what is around it was changed since"
        if since:
            [later] = self.log.records(stream, after=since - 1, until=since)
            why = f"{later.actor} wrote it at revision {since}"
        return NotTakenBack(stream, revision, event.CHANGED, why, path)

    # --- what depends on it ----------------------------------------------------------------------

    def _linking(self, items: Sequence[Hit]) -> Iterator[Dependent]:
        """Yields what links to one of these items."""
        links = [link for hit in items if hit.kind in _LINKED for link in _links_to(hit)]
        for at in range(0, len(links), 100):
            some = links[at : at + 100]
            for hit in self._ask(links=some, limit=None):
                for link in hit.links:
                    if link in some:
                        yield Dependent(hit.kind, hit.scope, hit.id, link)

    def _forks(self, first: dict[str, int]) -> Iterator[Dependent]:
        """Yields the scopes forked from a revision that includes something taken back."""
        for hit in self._ask(kind="log", type=event.FORKED, limit=None):
            [record] = self.log.read(hit.scope, after=hit.revision - 1, until=hit.revision)
            origin, at = origin_of(record)
            if at >= first.get(origin, at + 1):
                yield Dependent("fork", hit.scope, hit.scope, f"{origin}@{at}")

    def _nodes_of(self, paths: dict[str, set[str]]) -> Iterator[Dependent]:
        """Yields the nodes whose results were computed from a path that is taken back."""
        for node in stored_nodes(self._kernel.part(Nodes), None, None, after=None, limit=None):
            for read in node.state.reads:
                keys = paths.get(read.name, set())
                key = str(read.path[0]) if read.path else None
                if read.kind == "state" and keys and (key is None or key in keys):
                    of = f"{read.name}: {key or 'all of it'}"
                    yield Dependent("node", node.scope, f"{node.graph}/{node.state.node}", of)


def _is_chosen(matches: Callable[[Record], bool], since: int | None, record: Record) -> bool:
    return (since is None or record.time >= since) and matches(record)


def _stays(hit: Hit) -> NotTakenBack:
    why = "what was recorded stays" if is_of_scope(hit.scope) else "it is not a scope's"
    return NotTakenBack(hit.scope, hit.revision, hit.type, why)


def _links_to(hit: Hit) -> list[str]:
    """Returns the links that may lead to an item, with its scope and without."""
    if hit.kind == "decision":
        return [f"decision:{hit.id}", f"decision:{hit.id.partition('@')[0]}"]
    if hit.kind in ("event", "run"):
        return [f"{hit.kind}:{hit.id}"]
    return [f"{hit.kind}:{hit.id}", f"{hit.kind}:{hit.id}@{hit.scope}"]
