"""Archives: scopes that nobody writes to any more, moved into another store and verified there.

An archive is a store, of files unless its URL says otherwise: every verb of the command line reads
it by its path, and `check` verifies it. Scopes are moved one by one, not segments of the log: a
segment holds events of many scopes, of which some are still written to (0049).

Each scope is moved in this order, so that a process may be killed at any point and the scope is
still whole in at least one place:

    (1) it is copied into the archive, with the scopes that it was forked from; each link and blob
        is verified before the first is written, and what is there already stays
    (2) it is read back from the archive: every event, every blob, and the same head
    (3) an event says where it was archived, and the scope is removed, guarded by the revision that
        was archived: a scope that was written to meanwhile stays, and the next archiving adds to it

After that it is in the bin, like a scope that a policy removed: `retention.bring_back` restores it
until the grace is over, and then `retain` lets go of its bytes. A scope on hold is not archived.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.backends.protocol import Head
from holdfast.core.arguments import Duration
from holdfast.core.kernel import kernel_of
from holdfast.core.log import Log
from holdfast.core.retention import Binned, Retainer
from holdfast.core.verify import Verification, verified_end
from holdfast.errors import CorruptError, UsageError
from holdfast.record.retention_policies import AppliedPolicies, RetentionPolicy
from holdfast.scope import Scopes
from holdfast.store import Store
from holdfast.transfer.scopes import take_scopes
from holdfast.transfer.source import ScopeSource

__all__ = ["Archived", "archive"]


class Archived(Struct, frozen=True):
    """What was moved into an archive, or with `dry_run` would be."""

    scopes: list[Binned]
    held: list[str]  # scopes that a hold has kept
    refused: dict[str, str]  # scopes where something is under way, and what
    dry_run: bool

    @property
    def events(self) -> int:
        """How many events the scopes have, including the shared past of forks."""
        return sum(one.events for one in self.scopes)


def archive(
    store: Store,
    target: Store,
    scopes: str,
    *,
    older_than: Duration,
    dry_run: bool = False,
) -> Archived:
    """Moves scopes that fit a pattern, and were not written to for `older_than`, into an archive.

    Raises UsageError if no scope, present or removed, fits the pattern, or if source and target are
    the same store; ConflictError if the archive has other events of a scope; CorruptError if it
    does not hold what was written to it. In each case the scopes that were not removed yet are in
    the store as before.
    """
    log, archived = kernel_of(store).log, kernel_of(target).log
    if not {*archived.store_ids}.isdisjoint(log.store_ids):
        raise UsageError("a store cannot be its own archive", hint="name another place")
    place = archived.describe()
    shown = place.get("path") or place.get("url") or place["kind"]
    policy = RetentionPolicy(scopes, older_than=older_than)

    def move(name: str, head: Head) -> None:
        _copy(log, archived, name)
        _verify(archived, name, head)

    applied = AppliedPolicies(
        log,
        kernel_of(store).part(Retainer),
        [policy],
        levels=kernel_of(store).part(Scopes).levels,
        scope_of=store.scope,
        grace_s=0,
        before=move,
        said=f"archived to {shown}: ",
        is_lasting=False,
    )
    held = kernel_of(store).part(Retainer).held()
    done = applied.plan(held) if dry_run else applied.apply(held)
    return Archived(done.binned, sorted(done.held), done.refused, dry_run)


def _copy(log: Log, archived: Log, name: str) -> None:
    """Copies a scope into the archive if everything that it needs verifies."""
    source = ScopeSource(log, [name])
    verification = Verification(log.link_at, log.blobs.stored)
    for commit in source.commits():
        for record in commit:
            if not verification.take(record):
                problem = verification.why_not(record.stream)
                raise CorruptError(
                    f'"{record.stream}" is damaged: {problem}; "{name}" is where it was',
                    stream=record.stream,
                    hint="holdfast check, then holdfast salvage STORE NEW",
                )
    take_scopes(source, archived, source.marks, source.streams)


def _verify(archived: Log, name: str, head: Head) -> None:
    """Reads a scope back from the archive: every link, every blob, up to the head it had."""
    if verified_end(archived, name, until=head.revision) != (head.revision, head.link):
        raise CorruptError(
            f'the archive does not hold what was written to it of "{name}": the scope stays',
            stream=name,
            hint="look at the disk, then archive to another place",
        )
