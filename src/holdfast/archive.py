"""Archives: scopes that nobody writes to any more, moved into another store and verified there.

An archive is a store, of files unless its URL says otherwise: every verb of the command line reads
it by its path, and `check` verifies it. It is filled by scopes, because a segment of a log holds
events of many: of those, some are still written to (0049).

The order, for each scope, so that a process that is killed anywhere leaves it whole in one place at
least:

    (1) it is exported and imported into the archive, with the scopes that it was forked from; the
        import verifies each link and blob before it writes, and what is there already stays
    (2) it is read back from the archive: every event, every blob, and the same head
    (3) an event says where it was archived, and the scope is removed, guarded by the revision that
        was archived: one that was written to meanwhile stays, and the next archiving adds to it

So it is in the bin then, as what a policy removed: `unretain` brings it back until the time of
grace is over, and `retain` lets go of the bytes after that. A hold beats it.
"""

from __future__ import annotations

import tempfile

from msgspec import Struct

from holdfast.backends.protocol import Head
from holdfast.core import codec
from holdfast.core.arguments import Duration
from holdfast.core.event import FORKED, ORIGIN, follows, origin_of
from holdfast.core.log import Log
from holdfast.core.retention import Binned
from holdfast.errors import CorruptError, UnavailableError, UsageError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.record.retention_policies import AppliedPolicies, RetentionPolicy
from holdfast.store import Store

__all__ = ["Archived", "archive"]


class Archived(Struct, frozen=True):
    """What was moved into an archive, or would be."""

    scopes: list[Binned]
    held: list[str]  # scopes that a hold has kept
    refused: dict[str, str]  # scopes where something is under way, and what
    dry_run: bool

    @property
    def events(self) -> int:
        """How many events they have, with the past of those that are forks."""
        return sum(one.events for one in self.scopes)


def archive(
    store: Store,
    target: Store,
    scopes: str,
    *,
    older_than: Duration,
    dry_run: bool = False,
) -> Archived:
    """Moves the scopes that fit a pattern, and were not written to for so long, into an archive.

    Raises UsageError if no scope fits the pattern, and none did that was removed, or if both are
    one store; ConflictError if the archive has other events of a scope; CorruptError if it does not
    hold what was written to it.
    Whatever is raised, the scopes that were not removed yet are in the store as before.
    """
    log = store._log
    place = target._log.describe()
    if place.get("store") == log.describe().get("store"):
        raise UsageError("a store cannot be its own archive", hint="name another place")
    shown = place.get("path") or place.get("url") or place["kind"]
    policy = RetentionPolicy(scopes, older_than=older_than)

    def move(name: str, head: Head) -> None:
        _copy(store, target, name)
        _verify(target._log, name, head)

    applied = AppliedPolicies(
        log,
        store._retainer,
        [policy],
        levels=store._level_names,
        scope_of=store.scope,
        grace_s=0,
        before=move,
        said=f"archived to {shown}: ",
        is_lasting=False,
    )
    held = store._retainer.held()
    done = applied.plan(held) if dry_run else applied.apply(held)
    return Archived(done.binned, sorted(done.held), done.refused, dry_run)


def _copy(store: Store, target: Store, name: str) -> None:
    try:
        with tempfile.NamedTemporaryFile(prefix="holdfast-archive-") as file:
            export_scopes(store, [name], file)
            file.flush()
            import_scopes(target, file.name)
    except OSError as error:
        raise UnavailableError(
            f'scope "{name}" cannot be archived: {error.strerror}; it is where it was'
        ) from error


def _verify(log: Log, name: str, head: Head) -> None:
    """Reads a scope back from the archive: every link, every blob, up to the head it had."""
    [there] = log.heads([name])
    link, after = ORIGIN, 0 if there is None else there.first - 1
    while there is not None and after < head.revision:
        for record in log.stored(name, after=after, until=head.revision):
            if record.type == FORKED and after == there.first - 1:
                origin, at = origin_of(record)
                link = log.link_at(origin, at) or ORIGIN
            if not follows(link, record):
                raise _not_archived(name)
            for blob, size in codec.blobs_in(record.payload):
                log.blobs.stored(blob, size)
            link, after = record.link, record.revision
    if link != head.link:
        raise _not_archived(name)


def _not_archived(name: str) -> CorruptError:
    return CorruptError(
        f'the archive does not hold what was written to it of "{name}": the scope stays',
        stream=name,
        hint="look at the disk, then archive to another place",
    )
