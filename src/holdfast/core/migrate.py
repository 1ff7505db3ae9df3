"""Brings the state of every scope to the version of its schema, by appending; nothing is rewritten.

Each scope has a commit of its own, guarded by the revision that its upgrade was computed from. So a
run that was killed can be started again, and skips what is done. A scope that others write to
meanwhile is migrated by their write, or its upgrade is computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.commit_queue import Request
from holdfast.core.event import StreamState
from holdfast.core.log import BULK_STREAMS, Log
from holdfast.core.schema import Schema
from holdfast.errors import (
    ConflictError,
    ExpiredError,
    HoldfastError,
    LimitError,
    SecretError,
    UpgradeError,
    UsageError,
)

RETRIES = 8
Progress = Callable[[int, int], object]
"""Called with the number of scopes that are done, and of all."""


class Outdated(Struct, frozen=True):
    """A scope whose state is not at its schema's version: the one it has, and the one wanted."""

    scope: str
    stored: int
    version: int
    changes: int = 0
    """How many ops the migration has; 0 if it was not computed."""
    error: str | None = None
    """Why it cannot be migrated; None if it can."""
    both: tuple[str, ...] = ()
    """Former names of fields that are there beside the new ones; the new ones count."""


class Migration(Struct, frozen=True):
    """What a migration found and did."""

    scopes: int
    """How many scopes have a schema."""
    migrated: int
    outdated: list[Outdated]
    """The scopes that are not at their version: all of them in a dry run, else those left."""
    is_dry: bool = False

    @property
    def ok(self) -> bool:
        """Whether every scope is at its version now; in a dry run, whether each could be."""
        return not any(one.error or not self.is_dry for one in self.outdated)


class Stored(Struct, frozen=True):
    """A version, and the number of scopes that have it."""

    version: int
    scopes: int


class SchemaSummary(Struct, frozen=True):
    """One schema, and the number of scopes of each version that is stored."""

    name: str
    """The level or pattern of the scopes that it is for."""
    type: str | None
    """The name of the class; None for scopes of a level that have no schema in this program."""
    version: int | None
    stored: list[Stored]
    kind: str = "state"
    """What it is a schema of: the state of scopes, or their decisions or messages."""


def summaries(log: Log, names: Sequence[str]) -> list[SchemaSummary]:
    """Returns the schemas of the program, each with the versions that these scopes have.

    Scopes without a schema are counted by level.
    """
    stored: dict[str, Counter[int]] = {one.name: Counter() for one in log.typed.all}
    for start in range(0, len(names), BULK_STREAMS):
        chunk = names[start : start + BULK_STREAMS]
        for name, state in zip(chunk, log.newest_of(chunk), strict=True):
            if state is not None and state.root:
                schema = log.typed.of(name)
                place = name.partition("/")[0] if schema is None else schema.name
                stored.setdefault(place, Counter())[state.version] += 1
    known = {one.name: one for one in log.typed.all}
    found: list[SchemaSummary] = []
    for name, counts in stored.items():
        one = known.get(name)
        kind, version = (None, None) if one is None else (one.type.__name__, one.version)
        versions = [Stored(each, counts[each]) for each in sorted(counts)]
        found.append(SchemaSummary(name, kind, version, versions))
    return found + [
        SchemaSummary(one.name, one.type.__name__, one.version, [], one.kind)
        for one in log.typed.items
    ]


def typed_scopes(log: Log) -> list[str]:
    """Returns the names of all scopes that have a schema."""
    levels = dict.fromkeys(one.name.partition("/")[0] for one in log.typed.all)
    found: list[str] = []
    for level in levels:
        found += [level] if log.heads([level])[0] is not None else []
        found += log.streams(prefix=f"{level}/")
    return [name for name in found if log.typed.of(name) is not None]


def outdated(log: Log, *, compute: bool, to: int | None = None) -> Iterator[Outdated]:
    """Yields the scopes that are not at their version; with `compute` their migration is tried.

    Scopes with both names of a renamed field are included, although nothing is changed there.
    """
    names = typed_scopes(log)
    for start in range(0, len(names), BULK_STREAMS):
        chunk = names[start : start + BULK_STREAMS]
        for name, state in zip(chunk, log.newest_of(chunk), strict=True):
            if state is not None and state.root:
                one = _look(log, name, state, compute=compute, to=to)
                if one is not None:
                    yield one


def _look(
    log: Log, name: str, state: StreamState, *, compute: bool, to: int | None
) -> Outdated | None:
    schema = log.typed.of(name)
    assert schema is not None, "BUG: a scope without a schema is migrated"
    stored, goal = schema.stored_version(state.version), _goal(schema, to)
    both = tuple(schema.doubled_in(state.root))
    if stored == goal and not schema.renamed_in(state.root) and not both:
        return None
    if stored > schema.version:
        return Outdated(name, stored, goal, error=schema.newer(stored, name).message)
    if not compute:
        return Outdated(name, stored, goal, both=both)
    try:
        new_event = _new_event(log, name, state, to)
    except UpgradeError as error:
        return Outdated(name, stored, goal, error=error.message, both=both)
    return Outdated(name, stored, goal, 0 if new_event is None else len(new_event.ops), both=both)


def _goal(schema: Schema[Any], to: int | None) -> int:
    return schema.version if to is None else min(to, schema.version)


def _new_event(log: Log, name: str, state: StreamState, to: int | None) -> NewEvent | None:
    if to is None:
        return log.typed.migration(state, name, log.blobs.spill)
    return log.typed.downgrade(state, name, to, log.blobs.spill)


def migrate(log: Log, *, to: int | None, progress: Progress | None) -> Migration:
    """Migrates every open scope that has a schema; `to` is an older version to go down to."""
    names = typed_scopes(log)
    done, left = 0, list[Outdated]()
    for start in range(0, len(names), BULK_STREAMS):
        chunk = names[start : start + BULK_STREAMS]
        wanted: list[tuple[str, StreamState]] = []
        for name, state in zip(chunk, log.newest_of(chunk), strict=True):
            if state is not None and not state.closed_at:
                wanted.append((name, state))
        count, failed = _migrate_some(log, wanted, to)
        done += count
        left += failed
        if progress is not None:
            progress(start + len(chunk), len(names))
    return Migration(len(names), done, left)


def _migrate_some(
    log: Log, wanted: Sequence[tuple[str, StreamState]], to: int | None
) -> tuple[int, list[Outdated]]:
    """Migrates some scopes, by commits that are queued together: one sync serves them all."""
    sent: list[str] = []
    proposed: list[ProposedCommit] = []
    left: list[Outdated] = []
    for name, state in wanted:
        try:
            new_event = _new_event(log, name, state, to)
        except HoldfastError as error:
            left.append(_failed(log, name, state, error, to))
            continue
        if new_event is not None:
            sent.append(name)
            write = StreamWrite(name, (new_event,), expected=state.revision)
            proposed.append(ProposedCommit((write,)))
    done = 0
    for name, request in zip(sent, _submitted(log, proposed), strict=True):
        try:
            if isinstance(request, HoldfastError):
                raise request
            done += _finish(log, name, request, to)
        except ExpiredError:
            continue  # it ended meanwhile, and has no state to migrate any more
        except (UpgradeError, UsageError, ConflictError, LimitError, SecretError) as error:
            left.append(_failed(log, name, log.newest(name), error, to))
    return done, left


def _submitted(log: Log, proposed: list[ProposedCommit]) -> list[Request | HoldfastError]:
    """Queues commits together; returns a request for each, or the error that refuses it."""
    try:
        return [*log.submit_all(proposed)] if proposed else []
    except HoldfastError:
        # One of them is refused, such as for a secret, so none was queued. Each alone says which.
        return [_submitted_alone(log, one) for one in proposed]


def _submitted_alone(log: Log, proposed: ProposedCommit) -> Request | HoldfastError:
    try:
        return log.submit(proposed)
    except HoldfastError as error:
        return error


def _finish(log: Log, name: str, request: Request, to: int | None) -> int:
    """Waits for one migration, and repeats it if others were faster; returns 0 if not needed."""
    for _ in range(RETRIES):
        try:
            log.wait(request)
            return 1
        except ConflictError:
            state = log.newest(name)
            new_event = None if state.closed_at else _new_event(log, name, state, to)
            if new_event is None:
                return 0
            write = StreamWrite(name, (new_event,), expected=state.revision)
            request = log.submit(ProposedCommit((write,)))
    log.wait(request)
    return 1


def _failed(
    log: Log, name: str, state: StreamState, error: HoldfastError, to: int | None
) -> Outdated:
    schema = log.typed.of(name)
    assert schema is not None, "BUG: a scope without a schema is migrated"
    stored = schema.stored_version(state.version)
    return Outdated(name, stored, _goal(schema, to), error=error.message)
