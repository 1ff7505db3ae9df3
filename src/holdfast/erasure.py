"""Erasing a subject: everything that was sealed for it, and a receipt of that (0045, 0067).

The order, so that a process that is killed anywhere leaves nothing readable and nothing half done:

    (1) in a commit of its own for each backend, `erasing` is set in the streams of the subject
        (`subject/<level>/<id>`), which every commit with its data names among what it read. From
        here on no write for it is accepted, so nobody who writes can delay the rest. A hold beats
        this
    (2) the scopes that are the subject's are removed
    (3) the key is destroyed: nothing that was sealed can be read, here or in any copy or backup
    (4) snapshots go, then the records of these scopes are rewritten and their blobs deleted, as
        `retain` does it. Single values in scopes of others stay where they are, and read as ERASED
    (5) the receipt is written to the same streams, and the mark that says it is pending cleared

Whoever erases next does again what such a mark still says. What was begun is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from msgspec import Struct

from holdfast.backends.protocol import Leftover
from holdfast.core import tree
from holdfast.core.commit import Cleared, Mark, ProposedCommit, StreamWrite, changed
from holdfast.core.event import to_datetime
from holdfast.core.keystore import SubjectKey
from holdfast.core.log import NO_LIMIT
from holdfast.core.retention import Retainer
from holdfast.core.sealing import ERASING, PREFIX
from holdfast.errors import ConflictError, ErasedError, HeldError, NotFoundError, UsageError
from holdfast.names import Levels
from holdfast.record import removal
from holdfast.record.context import RecordContext

RETRIES = 100
STREAMS_PER_COMMIT = 200
BEYOND = (
    "backups, copies and exports that were made before hold sealed bytes: nothing opens them, "
    "because the key is destroyed; delete them if they must go too",
    "backups of the keys themselves: `holdfast subject list` shows where keys are; let copies of "
    "that place expire",
    "write-ahead archives and replicas of a server, and commits of files that were pushed, hold "
    "sealed bytes at most",
    "the digest of each payload is kept for the chain: it is that of sealed bytes, so it confirms "
    "no guess of what they held",
)
"""What no process can reach from here, and what it means."""
BEYOND_UNSEALED = (
    "backups, copies and exports that were made before hold it in clear: delete them, or let them "
    "expire",
    "write-ahead archives and replicas of a server, and commits of files that were pushed, may "
    "hold it in clear",
    "the digest of each payload is kept for the chain: who guesses a payload can confirm it",
)
"""The same for data that was never sealed."""


class ErasedScope(Struct, frozen=True):
    """What became of the data of one scope: `deleted`, or `pending` a physical step in `left`.

    Or `unreadable`: the scope is not the subject's, and single values in it were sealed for it.
    They are still there and nothing opens them; how many there are is not counted.
    """

    scope: str
    outcome: str
    events: int
    bytes: int


class ErasureReceipt(Struct, frozen=True):
    """What an erasure did: of whom, when, per scope, what is left to do, what it cannot reach.

    `subject` is empty if a scope was erased that was nobody's.
    """

    subject: str
    erased_at: datetime
    scopes: list[ErasedScope]
    blobs: int
    left: list[Leftover]
    beyond: tuple[str, ...] = BEYOND

    @property
    def events(self) -> int:
        """How many events lost their data in this run."""
        return sum(one.events for one in self.scopes)


class Subject(Struct, frozen=True):
    """Somebody whose data is sealed: the name it was given, its id, its scopes, who holds it."""

    name: str
    id: str
    scopes: list[str]
    hold: str | None = None


class Erasure:
    """Erases subjects of one store, and holds them back from it."""

    def __init__(self, context: RecordContext, retainer: Retainer, levels: Levels) -> None:
        self._context = context
        self._levels = levels
        self._log = context.log
        self._retainer = retainer

    # --- who there is ------------------------------------------------------------------------

    def subjects(self) -> list[Subject]:
        """Returns the subjects whose keys are there and that have data in this store, by name."""
        found: list[Subject] = []
        for key in self._log.sealing.keys.subjects():
            scopes = self._streams(key.id)
            if scopes:
                found.append(Subject(key.name, key.id, scopes, self._held(key.id)))
        return sorted(found, key=lambda one: one.name)

    def subject(self, name: str) -> Subject:
        """Returns one of them by its name; raises NotFoundError."""
        key = self._key(name)
        return Subject(key.name, key.id, self._streams(key.id), self._held(key.id))

    def hold(self, name: str, reason: str) -> None:
        """Keeps a subject from being erased; raises ErasedError if that has begun."""
        self._set(self._key(name).id, "hold", reason or "held")

    def release(self, name: str) -> None:
        """Ends a hold; raises NotFoundError if there is none."""
        key = self._key(name)
        if self._held(key.id) is None:
            raise NotFoundError(f'subject "{name}" is not held')
        self._set(key.id, "hold", None)

    def _key(self, name: str) -> SubjectKey:
        key = self._log.sealing.keys.find(name)
        if key is None:
            raise NotFoundError(
                f'there is no subject "{name}"',
                hint="`holdfast subject list` shows those there are",
            )
        return key

    def _streams(self, id: str) -> list[str]:
        """Returns the streams that have data of a subject."""
        marks = self._log.find_marks(f"{PREFIX}{id}", limit=NO_LIMIT)
        return sorted(mark.key for mark in marks)

    def _about(self, id: str) -> list[str]:
        """Returns the streams that say what counts for a subject, of every level."""
        words = {stream.partition("/")[0] for stream in self._streams(id)}
        words |= {"run", *self._levels.names()}
        return [f"{PREFIX}{word}/{id}" for word in sorted(words)]

    def _held(self, id: str) -> str | None:
        for name in self._about(id):
            hold = self._log.newest(name).root.get("hold")
            if hold is not None:
                return str(hold)
        return None

    def _set(self, id: str, name: str, value: str | None) -> None:
        for streams in self._by_place(self._about(id)):
            _persist(partial(self._set_in, id, streams, name, value))

    def _set_in(self, id: str, streams: list[str], name: str, value: str | None) -> bool:
        writes: list[StreamWrite] = []
        for stream in streams:
            now = self._log.newest(stream)
            if now.root.get("erasing"):
                raise ErasedError(id, "what is to be held")
            new_event = changed([tree.set_op(name, value)])
            writes.append(StreamWrite(stream, (new_event,), now.revision))
        self._log.commit(ProposedCommit(tuple(writes)))
        return True

    def _by_place(self, streams: Sequence[str]) -> Iterator[list[str]]:
        """Yields the streams that one backend keeps, backend by backend."""
        places: dict[int, list[str]] = {}
        for stream in streams:
            places.setdefault(self._log.routes.place_of(stream), []).append(stream)
        yield from places.values()

    # --- erasing -----------------------------------------------------------------------------

    def erase(self, name: str, *, wait_s: float) -> ErasureReceipt:
        """Erases a subject by its name; raises HeldError, or NotFoundError."""
        self._retainer.check_rewrites()
        keys = self._log.sealing.keys
        told = keys.pseudonym(f"erased {name}")
        id = self._pending(told) or self._key(name).id
        return self._erase(id, told, wait_s)

    def _erase(self, id: str, told: str, wait_s: float) -> ErasureReceipt:
        """Does every step, of which those that are done change nothing."""
        self._begin(id, told)
        self._remove(id)
        return self._finish(id, wait_s)

    def erase_scope(
        self, stream: str, remove: Callable[[], object], *, wait_s: float
    ) -> ErasureReceipt:
        """Erases what a scope held that was never sealed; `remove` removes the scope."""
        self._retainer.check_rewrites()
        if any(one.scope == stream for one in self._retainer.holds()):
            raise HeldError(f'scope "{stream}" is held: nothing was erased')
        if self._log.subject_of(stream) is not None:
            raise UsageError(
                f'scope "{stream}" is a subject\'s: the subject is erased as a whole',
                hint="hf.erase(name)",
            )
        self._retainer.check_no_fork(stream)
        if not self._is_removed(stream):
            remove()
        done = self._retainer.erase_scope(stream, wait_s=wait_s)
        outcome = "pending" if done.left else "deleted"
        scopes = [ErasedScope(one.scope, outcome, one.events, one.bytes) for one in done.scopes]
        now = to_datetime(self._log.clock.now_us())
        return ErasureReceipt("", now, scopes, done.blobs, done.left, BEYOND_UNSEALED)

    def finish(self, *, wait_s: float) -> list[ErasureReceipt]:
        """Finishes what was begun by processes that were killed."""
        pending = sorted({(mark.key, mark.group or "") for mark in self._marks()})
        return [self._erase(id, told, wait_s) for id, told in pending]

    def _marks(self) -> list[Mark]:
        return self._log.find_marks(ERASING, limit=NO_LIMIT)

    def _pending(self, told: str) -> str | None:
        """Returns the id of an erasure that was begun under a name, and is not done."""
        return next((mark.key for mark in self._marks() if mark.group == told), None)

    def _begin(self, id: str, told: str) -> None:
        """Step 1. A hold of the subject, or of one of its scopes, beats it."""
        held = [one.scope for one in self._retainer.holds() if one.scope in self._streams(id)]
        if held:
            raise HeldError(f'scope "{held[0]}" of the subject is held: nothing was erased')
        for about in self._by_place(self._about(id)):
            _persist(partial(self._set_erasing, id, told, about))

    def _set_erasing(self, id: str, told: str, about: list[str]) -> bool:
        """Says in one backend that a subject is being erased.

        Nobody else writes to these streams but who holds the subject: so however many write data of
        the subject meanwhile, this is never refused for long, and all that they send later is.
        """
        states = [(stream, self._log.newest(stream)) for stream in about]
        if all(state.root.get("erasing") for _, state in states):
            return True
        hold = self._held(id)
        if hold is not None:
            raise HeldError(
                f"the subject is held: {hold}; nothing was erased",
                hint="`holdfast subject hold --end` ends it",
            )
        said = {"at": self._log.clock.now_us()}
        new_event = changed([tree.set_op("erasing", said)])
        writes = [StreamWrite(stream, (new_event,), state.revision) for stream, state in states]
        self._log.commit(ProposedCommit(tuple(writes), marks=(Mark(ERASING, id, group=told),)))
        return True

    def _remove(self, id: str) -> None:
        """Step 2. No write for the subject is accepted any more: only removals are."""
        for streams in self._by_place(self._own(id)):
            _persist(partial(self._remove_some, streams))

    def _remove_some(self, streams: list[str]) -> bool:
        """Removes scopes of one backend; False if there are more."""
        living = [one for one in streams if not self._is_removed(one)]
        # Those that expire go first, in commits of their own: none is written with what lasts.
        expiring = [one for one in living if self._log.newest(one).expires_us]
        some = (expiring or living)[:STREAMS_PER_COMMIT]
        writes, marks = list[StreamWrite](), list[Mark | Cleared]()
        for stream in some:
            # The event says nothing of the marks that go: there is no way back.
            marks += removal.removal(self._context, stream)[1]
            writes.append(removal.removed(stream))
        if writes:
            self._log.commit(ProposedCommit(tuple(writes), marks=tuple(marks)))
        return len(some) == len(living)

    def _own(self, id: str) -> list[str]:
        """Returns the scopes that are a subject's as a whole."""
        return [stream for stream in self._streams(id) if self._log.subject_of(stream) == id]

    def _is_removed(self, stream: str) -> bool:
        [head] = self._log.heads([stream])
        if head is None or self._log.expiry.has_ended(stream, head):
            return True
        return self._log.life(stream, head.revision) == head.revision

    def _finish(self, id: str, wait_s: float) -> ErasureReceipt:
        """Steps 3 to 5."""
        sealing = self._log.sealing
        sealing.keys.destroy(id)
        sealing.forget(id)
        streams, own = self._streams(id), set(self._own(id))
        done = self._retainer.erase(id, sorted(own), wait_s=wait_s)
        went = {one.scope: one for one in done.scopes}
        scopes: list[ErasedScope] = []
        for stream in streams:
            one = went.get(stream)
            events, size = (one.events, one.bytes) if one is not None else (0, 0)
            outcome = "pending" if done.left else "deleted"
            outcome = outcome if stream in own else "unreadable"
            scopes.append(ErasedScope(stream, outcome, events, size))
        now_us = self._log.clock.now_us()
        receipt = ErasureReceipt(id, to_datetime(now_us), scopes, done.blobs, done.left)
        said = {
            "at": now_us,
            "scopes": [[one.scope, one.outcome, one.events, one.bytes] for one in scopes],
            "blobs": done.blobs,
            "left": [[one.where, one.remedy] for one in done.left],
        }
        for about in self._by_place(self._about(id)):
            payload = changed([tree.set_op("erased", said)])
            writes = tuple(StreamWrite(stream, (payload,)) for stream in about)
            self._log.commit(ProposedCommit(writes, marks=(Cleared(ERASING, id),)))
        return receipt

    def receipts(self) -> list[dict[str, object]]:
        """Returns what every erasure has said, by the id of its subject."""
        found: dict[str, dict[str, object]] = {}
        for stream in self._log.streams(prefix=PREFIX):
            said = self._log.newest(stream).root.get("erased")
            if said is not None:
                id = stream.rpartition("/")[2]
                found[id] = {"subject": id, **tree.thaw(said)}
        return list(found.values())


def _persist(attempt: Callable[[], bool]) -> None:
    """Calls until it is done; raises ConflictError if others are faster again and again.

    It never gives up in silence: a hold that is not there, or a key that is destroyed while writes
    are still accepted, would be worse than an error.
    """
    conflicts = 0
    while True:
        try:
            if attempt():
                return
        except ConflictError:
            conflicts += 1
            if conflicts == RETRIES:
                raise
