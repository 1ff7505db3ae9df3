"""Erases a subject: everything that was sealed for it; and returns a receipt (0045, 0067).

The steps are done in this order, so that a process may be killed at any point and the erasure can
be finished:

    (1) in a separate commit for each backend, `erasing` is set in the streams of the subject
        (`subject/<level>/<id>`). Every commit with data of the subject has these streams among what
        it read. So from here on no write for the subject is accepted, and no writer can delay the
        rest. If the subject is held, this step refuses
    (2) the scopes that belong to the subject are removed
    (3) the key is destroyed: nothing that was sealed can be read, here or in any copy or backup
    (4) snapshots are deleted, then the records of these scopes are rewritten and their blobs
        deleted, as `retain` does it. Single values in scopes of others stay and read as ERASED
    (5) the receipt is written to the same streams, and the mark that the erasure is pending is
        cleared in the same commit

The next erasure repeats the steps for which such a mark is still set. What was begun is never taken
back, because the key may be destroyed already.

A hold on one scope exempts that scope, not the subject (0085). Its bytes stay, and with them the
key. All other scopes go, no write for the subject is accepted, and the mark stays: when the hold
has ended, the next call or `finish` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.protocol import GONE, Leftover
from holdfast.core import codec, cutting, erased_ledger, tree
from holdfast.core.commit import Cleared, Mark, ProposedCommit, StreamWrite, changed
from holdfast.core.event import Event, from_datetime, to_datetime
from holdfast.core.kernel import Kernel
from holdfast.core.keystore import SubjectKey
from holdfast.core.layers import (
    copies_of,
    erased_with,
    held_by,
    removable_prefixes,
    reserved_prefixes,
)
from holdfast.core.log import NO_LIMIT
from holdfast.core.matching import Match
from holdfast.core.retention import (
    ERASING_SCOPES,
    SHORTENING,
    Begun,
    Purge,
    Retainer,
    forked_from,
    told_shortened,
)
from holdfast.core.sealing import ERASING, PREFIX, erasure_noted, readmission, told_as
from holdfast.errors import (
    ConflictError,
    ErasedError,
    HeldError,
    HoldfastError,
    KeyMissingError,
    NotFoundError,
    UsageError,
)
from holdfast.record import removal
from holdfast.record.context import RecordContext

RETRIES = 100
STREAMS_PER_COMMIT = 200
EVENTS_PER_READ = 500
STAYS = {
    "scope": "the names of scopes stay: data is found by them; a pseudonym tells nothing",
    "run": "the ids of runs stay: they are the names of their streams",
    "path": "the keys that lead to a sealed value in a scope of others stay: what is around it is "
    "found by them",
    "fact": "the names of facts in a scope of others stay: facts are found by them",
    "task": "the titles, texts and ids of tasks in a scope of others stay: a task takes no "
    "subject; `holdfast erase --match` cuts a text out of them",
    "decision": "decisions in a scope of others stay, as tasks do",
    "ref": "the types and refs of events of your own in a scope of others stay: they are found by "
    "them",
    "checkpoint": "the names of checkpoints of a scope of others stay: moments are found by them",
    "key": "the keys of commits over several scopes stay: a repetition is known by them",
    "mark": "marks of your own stay: they are found by their keys, and belong to the whole store",
    "lease": "the names of leases stay until they are taken anew: others wait for them",
    "actor": "actors and workers stay: they say who wrote, not whom it is about",
    "source": "the sources of events stay: they say where data came from",
    "node": "the names of graphs stay: they are the names of the streams of results",
}
"""The kinds of names that an erasure of a subject leaves readable, each with the reason (0084)."""
BEYOND = (
    "backups, copies and exports that were made before hold sealed bytes: nothing opens them, "
    "because the key is destroyed; delete them if they must go too",
    "backups of the keys themselves: `holdfast subject list` shows where keys are; let copies of "
    "that place expire",
    "write-ahead archives and replicas of a server, and commits of files that were pushed, hold "
    "sealed bytes at most",
    "the digest of each payload is kept for the chain: it is that of sealed bytes, so it confirms "
    "no guess of what they held",
    *(f"{kind}: {text}" for kind, text in STAYS.items()),
)
"""What no process can reach from here, and what that means, for data that was sealed."""
BEYOND_UNSEALED = (
    "backups, copies and exports that were made before hold it in clear: make the next backup, "
    "then `holdfast backup prune DEST` takes it out of the older points; delete copies and exports",
    "write-ahead archives and replicas of a server may hold it in clear: make a new base backup, "
    "then `pg_archivecleanup` (PostgreSQL); `BGREWRITEAOF` on each replica (Redis)",
    "commits of files that were pushed may hold it in clear: `git filter-repo`, and a new clone "
    "for everybody who has one",
    "files that other processes wrote of it: `holdfast views write` and `holdfast boot --write` "
    "write views and blocks of context anew; earlier commits of such files have it",
    "the digest of each payload is kept for the chain: who guesses a payload can confirm it",
)
"""The same for data that was never sealed."""


BEYOND_MATCH = (
    "files that were written of the store (views, tables, exports, logs of programs) may hold the "
    "text: write views anew, and look for it there; a process that had read it has it in memory"
)
BEYOND_SEALED = (
    "what is sealed for a subject was not looked at: hf.subjects.erase(subject) erases that as a "
    "whole"
)
BEYOND_EXEMPT = (
    "the key is not destroyed, because a scope that is exempt needs it: backups, copies and "
    "exports from before can be opened with it; end the hold, then hf.subjects.finish() or "
    "`holdfast subject erase --finish`"
)
BEYOND_UNFINISHED = (
    "this finished what was found before the process was killed: erase the text once more, in case "
    "something was written or not yet found"
)


class ErasedScope(Struct, frozen=True):
    """What happened to data of one scope, in its records `revisions`, such as "2-5,9".

    `outcome` is one of: `deleted`, it is gone; `anonymised`, a text was cut out and the rest stays;
    `pending`, no reader can see it, and a physical step is left to do (`left`); `unreadable`,
    single values in the scope were sealed for the subject, and nothing opens them now (they are not
    counted); `exempt`, it stays, for the `reason`.
    """

    scope: str
    outcome: str
    events: int
    bytes: int
    revisions: str = ""
    reason: str = ""


class ErasureReceipt(Struct, frozen=True):
    """What an erasure did: of whom, when, per scope, what is left to do, and what it cannot reach.

    `subject` is empty if a scope or a text was erased. For a text, `position` is how far the store
    was searched: what was written later was not.
    """

    subject: str
    erased_at: datetime
    scopes: list[ErasedScope]
    blobs: int
    left: list[Leftover]
    beyond: tuple[str, ...] = BEYOND
    position: int = 0
    is_dry_run: bool = False

    @property
    def events(self) -> int:
        """How many events lost their data, or a part of it."""
        return sum(one.events for one in self.scopes if one.outcome != "exempt")


class Subject(Struct, frozen=True):
    """Somebody whose data is sealed: name, random id, scopes, and the reason of a hold, if any.

    The name is kept with the key. If the key is missing, but was not destroyed on purpose, the name
    is unknown and empty.
    """

    name: str
    id: str
    scopes: list[str]
    hold: str | None = None
    is_key_missing: bool = False


class HeldEvent(Struct, frozen=True):
    """The data that one event has of a subject, opened.

    In a scope that belongs to the subject, this is all data of the event, with large values in
    their places. In any other scope it is only the `values` sealed for the subject.
    """

    event: Event
    values: list[Any]
    is_own: bool


class Erasure:
    """Erases subjects, scopes and texts of one store, and holds subjects against that."""

    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.part(RecordContext)
        self._levels = kernel.levels
        self._log = kernel.log
        self._retainer = kernel.part(Retainer)

    # --- who there is ------------------------------------------------------------------------

    def subjects(self) -> list[Subject]:
        """Returns the subjects that have data in this store and were not erased, by name."""
        keys = {key.id: key for key in self._log.sealing.keys.subjects()}
        found: list[Subject] = []
        for id, scopes in self._known().items():
            key = keys.get(id)
            if key is not None:
                found.append(Subject(key.name, id, scopes, self._held(id)))
            elif not self._log.sealing.keys.is_erased(id):
                found.append(Subject("", id, scopes, self._held(id), is_key_missing=True))
        return sorted(found, key=lambda one: (one.name, one.id))

    def subject(self, name: str) -> Subject:
        """Returns a subject by its name; raises NotFoundError if there is none."""
        key = self._key(name)
        return Subject(key.name, key.id, self._streams(key.id), self._held(key.id))

    def held_of(self, name: str) -> tuple[Subject, list[HeldEvent]]:
        """Returns a subject by its name, and all data that the store has of it, opened."""
        subject = self.subject(name)
        return subject, [one for stream in subject.scopes for one in self._held_in(stream, subject)]

    def _held_in(self, stream: str, subject: Subject) -> Iterator[HeldEvent]:
        """Yields what a stream has of a subject; the past of a fork comes with its origin."""
        is_own = self._log.subject_of(stream) == subject.id
        after = 0
        while records := self._log.read(stream, after=after, limit=EVENTS_PER_READ):
            after = records[-1].revision
            for record in records:
                is_gone = record.payload == GONE
                if is_own:
                    data = None if is_gone else self._opened(record.payload, subject.id, [], True)
                    yield HeldEvent(Event(record), [data], True)
                elif not is_gone and subject.id in codec.subjects_in(record.payload):
                    values: list[Any] = []
                    self._opened(record.payload, subject.id, values, False)
                    yield HeldEvent(Event(record), values, False)

    def _opened(self, raw: bytes, id: str, values: list[Any], is_own: bool) -> Any:
        """Decodes data with the sealed values of a subject opened, and adds those to `values`.

        Other large values are read only if all of the data belongs to the subject.
        """

        def open(name: str, size: int) -> Any:
            sealed = codec.parse_sealed_name(name)
            if sealed is None and is_own:
                return self._opened(self._log.blobs.read(name, size), id, values, True)
            if sealed is None or sealed.subject != id:
                return "[sealed]" if sealed else None
            value = self._opened(self._log.blobs.read(name, size), id, [], True)
            values.append(value)
            return value

        return codec.decode(raw, blob=open)

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
            missing = [id for id in self._known() if self._is_missing(id)]
            if missing:
                raise KeyMissingError(missing[0], repr(self._log.sealing.keys), name, len(missing))
            raise NotFoundError(
                f'there is no subject "{name}"',
                hint="`holdfast subject list` shows those there are",
            )
        return key

    def _known(self) -> dict[str, list[str]]:
        """Returns the ids of all subjects that have or had data here, each with its streams."""
        found: dict[str, list[str]] = {}
        for mark in self._log.find_marks():
            if mark.index.startswith(PREFIX):
                found.setdefault(mark.index.removeprefix(PREFIX), []).append(mark.key)
        return {id: sorted(streams) for id, streams in sorted(found.items())}

    def _is_missing(self, id: str) -> bool:
        """Returns whether the key of a subject is missing without having been destroyed."""
        keys = self._log.sealing.keys
        return not keys.has(id) and not keys.is_erased(id)

    def _streams(self, id: str) -> list[str]:
        """Returns the streams that have data of a subject."""
        marks = self._log.find_marks(f"{PREFIX}{id}", limit=NO_LIMIT)
        return sorted(mark.key for mark in marks)

    def _about(self, id: str) -> list[str]:
        """Returns the streams that hold a subject's own state (hold, erasing), one per level."""
        words = {stream.partition("/")[0] for stream in self._streams(id)}
        words |= {*removable_prefixes(), *self._levels.names()}
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
        if not self._marks():
            self._key(name)  # before the pseudonym, which would create a key store if there is none
        told = told_as(keys, name)
        pending, key = self._pending(told), keys.find(name)
        if key is None and not pending:
            key = self._key(name)  # raises
        # An erasure that a hold keeps open may be of an earlier subject of this name, who was
        # erased and admitted again elsewhere. So the one who is there now comes first.
        first = pending[0] if key is None else key.id
        receipt = self._erase(first, told, wait_s)
        for id in pending:
            if id != first:
                self._erase(id, told, wait_s)
        return receipt

    def _erase(self, id: str, told: str, wait_s: float) -> ErasureReceipt:
        """Does every step; a step that was done before changes nothing."""
        is_again = any(mark.key == id for mark in self._marks())
        self._begin(id, told)
        exempt = self._remove(id)
        return self._finish(id, wait_s, exempt, is_again=is_again)

    def readmit(self, name: str) -> None:
        """Lets a subject who was erased be written for again; raises NotFoundError if not erased.

        Raises UsageError while the erasure is not finished, here or in another store with these
        keys: finished later, it would count for who came back. While the old key is there, new data
        would be sealed with it.
        """
        keys = self._log.sealing.keys
        told = told_as(keys, name)
        noted, is_erased = erasure_noted(keys, told)
        if self._pending(told) or (is_erased and keys.find(name) is not None):
            raise UsageError(
                "the erasure of this subject is not finished",
                hint="hf.subjects.finish() where it was begun, or hf.subjects.erase(name) here",
            )
        if not is_erased:
            raise NotFoundError(f'no subject "{name}" was erased: whoever has that name may write')
        keys.destroy(readmission(keys, noted))

    def erase_scope(
        self, stream: str, remove: Callable[[str], object], *, wait_s: float
    ) -> ErasureReceipt:
        """Erases a scope that was never sealed; `remove` removes a scope by its name.

        One that was erased before gives the receipt of then. Raises NotFoundError if there is no
        such scope.
        """
        self._retainer.check_rewrites()
        if any(one.scope == stream for one in self._retainer.holds()):
            raise HeldError(f'scope "{stream}" is held: nothing was erased')
        if self._log.subject_of(stream) is not None:
            raise UsageError(
                f'scope "{stream}" is a subject\'s: the subject is erased as a whole',
                hint="hf.subjects.erase(name)",
            )
        begun = self._retainer.erasing().get(stream)
        if begun is None:
            self._check_there(stream)
            if self._is_removed(stream) and not self._is_left_of(stream):
                return self._told_of(stream)
        self._retainer.check_no_fork(stream)
        return self._erase_scope(stream, remove, begun, wait_s)

    def _erase_scope(
        self, stream: str, remove: Callable[[str], object], begun: Begun | None, wait_s: float
    ) -> ErasureReceipt:
        """Erases a scope, or finishes that, once nothing forbids it."""
        if begun is None:
            [head] = self._log.heads([stream])
            self._retainer.begin_erasing(stream, 0 if head is None else head.revision)
        if not self._is_removed(stream):
            try:
                remove(stream)
            except HoldfastError:
                if begun is None:  # something is under way there: nothing has begun
                    self._retainer.give_up_erasing(stream)
                raise
        copies = list(copies_of(self._context, stream))
        for copy in copies:
            if not self._is_removed(copy):  # in a mixed store it may be elsewhere
                self._log.commit(ProposedCommit((removal.removed(copy),)))
        done = self._retainer.erase_scopes([stream, *copies], wait_s=wait_s)
        went = done.scopes
        if begun is not None:
            went = [*self._retainer.erased_since([stream, *copies], begun.told).values()]
        outcome = _outcome(done.left, "deleted")
        scopes = [
            ErasedScope(one.scope, outcome, one.events, one.bytes, f"1-{one.until}") for one in went
        ]
        now = to_datetime(self._log.clock.now_us())
        receipt = ErasureReceipt("", now, scopes, done.blobs, done.left, BEYOND_UNSEALED)
        self._retainer.tell_erased(_said(receipt, done.purged), [stream])
        return receipt

    def _check_there(self, stream: str) -> None:
        """Raises NotFoundError if the store never had a scope of this name."""
        if self._log.heads([stream])[0] is None:
            raise NotFoundError(
                f'there is no scope "{stream}": nothing was erased',
                hint="`holdfast scopes` and scopes() list the names that there are",
            )

    def _is_left_of(self, stream: str) -> bool:
        """Returns whether a removed scope still has data that an erasure would take."""
        return self._retainer.still_holds([stream, *copies_of(self._context, stream)])

    def _told_of(self, stream: str) -> ErasureReceipt:
        """Returns the newest receipt that names a scope of which nothing is left."""
        for said in reversed(self.receipts()):
            if not said["subject"] and any(row[0] == stream for row in said["scopes"]):
                rows = [ErasedScope(*row) for row in said["scopes"]]
                left = [Leftover(*one) for one in said["left"]]
                at = to_datetime(said["at"])
                return ErasureReceipt("", at, rows, said["blobs"], left, BEYOND_UNSEALED)
        raise NotFoundError(
            f'scope "{stream}" was removed, and its data was let go of before: there is nothing '
            "to erase",
            hint="hf.retention.past() says when",
        )

    def is_pending(self) -> bool:
        """Returns whether an erasure was begun and is not finished."""
        log = self._log
        return bool(
            self._marks()
            or log.find_marks(SHORTENING, limit=1)
            or log.find_marks(ERASING_SCOPES, limit=1)
        )

    def finish(self, remove: Callable[[str], object], *, wait_s: float) -> list[ErasureReceipt]:
        """Finishes the erasures that killed processes had begun, or that a hold had kept open.

        If one of them cannot be finished, the others are, and then it raises.
        """
        done, failed = list[ErasureReceipt](), list[HoldfastError]()

        def attempt(one: Callable[[], ErasureReceipt]) -> None:
            """Does one of them; a failure is raised when all others had their turn."""
            try:
                done.append(one())
            except HoldfastError as error:
                failed.append(error)

        for id, told in sorted({(mark.key, _told(mark)) for mark in self._marks()}):
            attempt(partial(self._erase, id, told, wait_s))
        if self._log.find_marks(SHORTENING, limit=1):
            attempt(partial(self._finish_cutting, wait_s))
        held = self._held_scopes()
        for stream, begun in sorted(self._retainer.erasing().items()):
            if stream in held:
                continue  # held since it began: the mark stays until that ends
            is_removed = self._log.life(stream) > begun.scope_revision
            # What somebody wrote under the name after that removal was not meant.
            again = _leave if is_removed else remove
            attempt(partial(self._erase_scope, stream, again, begun, wait_s))
        if failed:
            raise failed[0]
        return done

    def _held_scopes(self) -> dict[str, str]:
        """Returns the scopes that keep everything, each with the reason that a receipt gives.

        The past of a fork is a part of it. So what a held fork began from is kept with it.
        """
        found: dict[str, str] = {}
        for hold in self._retainer.holds():
            found[hold.scope] = f"held: {hold.reason}" if hold.reason else "held"
        for name, above in forked_from(self._log) if found else ():
            if name in found:
                for origin in above:
                    found.setdefault(origin, f'"{name}" is a fork of it, and held')
        return found

    # --- a text ------------------------------------------------------------------------------

    def erase_match(
        self, text: str, *, ignore_case: bool, scope: str | None, dry_run: bool, wait_s: float
    ) -> ErasureReceipt:
        """Cuts a text out of everything that was never sealed; raises HeldError, or UsageError.

        With `dry_run` nothing is changed, and the receipt says what would happen.
        """
        self._retainer.check_shortens()
        log = self._log
        if scope is not None:
            self._check_there(scope)
        match = Match(text, ignore_case=ignore_case, names=log.streams())
        rows, blobs, left, purged = list[ErasedScope](), 0, dict[str, Leftover](), 0
        if not dry_run and log.find_marks(SHORTENING, limit=1):
            before = self._finish_cutting(wait_s)  # this call may be the repetition of a killed one
            rows, blobs = [*before.scopes], before.blobs
            left = {one.where: one for one in before.left}
        looked = cutting.look(log, match, scope=scope)
        exempt = self._take_held(looked)
        self._check_may_be_cut(looked)
        position, kept, is_sealed = looked.position, cutting.kept(looked), looked.is_sealed
        for _ in range(cutting.LOOKS_MAX):
            if not looked.found:
                break
            if dry_run:
                rows += _cut_rows(looked, "anonymised")
                break
            cutting.change_states(log, match, looked, self._is_open)
            done = cutting.cut(self._retainer, looked, wait_s=wait_s)
            blobs, purged = blobs + done.blobs, done.purged
            left |= {one.where: one for one in done.left}
            rows += _cut_rows(looked, _outcome(done.left, "anonymised"))
            # Search again: somebody who had read the text before may have written it meanwhile.
            looked = cutting.look(log, match, after=position, scope=scope)
            exempt += self._take_held(looked)
            self._check_may_be_cut(looked)
            position = looked.position
        rows += exempt
        rows += [ErasedScope(one.scope, "exempt", one.events, 0, "", one.reason) for one in kept]
        now = to_datetime(log.clock.now_us())
        beyond = (*BEYOND_UNSEALED, BEYOND_MATCH, *([BEYOND_SEALED] if is_sealed else []))
        receipt = ErasureReceipt(
            "", now, rows, blobs, [*left.values()], beyond, int(position), dry_run
        )
        if not dry_run:
            self._retainer.tell_erased(_said(receipt, purged, "anonymised"))
        return receipt

    def _take_held(self, looked: cutting.Looked) -> list[ErasedScope]:
        """Takes out of what was found the scopes that a hold exempts, and returns their rows."""
        held = self._held_scopes()
        rows = [
            replace(row, bytes=0, reason=held[row.scope])
            for row in _cut_rows(looked, "exempt")
            if row.scope in held
        ]
        for row in rows:
            del looked.found[row.scope]
        return rows

    def _check_may_be_cut(self, looked: cutting.Looked) -> None:
        """Raises if something prevents the erasure of a text, before anything is changed."""
        for stream in sorted(looked.found):
            under_way = list(held_by(self._context, stream)) if stream[:4] == "run/" else []
            if under_way:
                raise UsageError(
                    f"{under_way[0]}, and what it has done holds the text: it would be played back "
                    "without it; nothing was erased",
                    hint="let it end, or cancel it",
                )
        cutting.check_folds(self._log, looked)

    def _is_open(self, stream: str) -> bool:
        """Returns whether a state can be changed: that of a user's scope, present and open."""
        is_scope = stream.partition("/")[0] not in reserved_prefixes()
        return is_scope and not self._is_removed(stream) and not self._log.newest(stream).closed_at

    def _finish_cutting(self, wait_s: float) -> ErasureReceipt:
        """Finishes the cuts that a killed process had recorded; this does not need the text."""
        pending = [mark.key for mark in self._log.find_marks(SHORTENING, limit=NO_LIMIT)]
        done = self._retainer.shorten({}, (), wait_s=wait_s)
        outcome = _outcome(done.left, "anonymised")
        rows = [
            ErasedScope(one, outcome, len(some), 0, _spans(some))
            for one, some in sorted(told_shortened(self._log, pending).items())
        ]
        now = to_datetime(self._log.clock.now_us())
        beyond = (*BEYOND_UNSEALED, BEYOND_UNFINISHED)
        receipt = ErasureReceipt("", now, rows, done.blobs, done.left, beyond)
        self._retainer.tell_erased(_said(receipt, done.purged, "anonymised"))
        return receipt

    def _marks(self) -> list[Mark]:
        return self._log.find_marks(ERASING, limit=NO_LIMIT)

    def _pending(self, told: str) -> list[str]:
        """Returns the ids of the unfinished erasures that were begun under a name."""
        return [mark.key for mark in self._marks() if _told(mark) == told]

    def _note(self, id: str) -> None:
        """Notes that the name of a subject is erased, before the key goes.

        So nobody makes another key in between. The id that is noted was worked out when the erasure
        began: a store with the same keys may have erased and admitted the name since, and to note
        the next id of the chain would erase whoever came back. A mark of an older holdfast says no
        such id. Once the key is destroyed nothing is noted: whoever destroyed it did that.
        """
        keys = self._log.sealing.keys
        group = next((mark.group for mark in self._marks() if mark.key == id), "")
        told, _, noted = group.partition(" ")
        if told and not keys.is_erased(id):
            keys.destroy(noted or erasure_noted(keys, told)[0])

    def _begin(self, id: str, told: str) -> None:
        """Step 1: refuses if the subject is held, else sets `erasing`.

        The mark says under which name, and which id is noted for it before the key goes (`_note`).
        """
        begun = [mark.group for mark in self._marks() if mark.key == id]
        group = begun[0] if begun else told
        if told and not begun:
            group = f"{told} {erasure_noted(self._log.sealing.keys, told)[0]}"
        for about in self._by_place(self._about(id)):
            _persist(partial(self._set_erasing, id, group, about))

    def _set_erasing(self, id: str, group: str, about: list[str]) -> bool:
        """Records in one backend that a subject is being erased.

        Besides erasures only holds write to these streams. So this commit loses few races, however
        many processes write data of the subject, and every write they send after it is refused.
        """
        states = [(stream, self._log.newest(stream)) for stream in about]
        if all(state.root.get("erasing") for _, state in states):
            return True
        hold = self._held(id)
        if hold is not None:
            raise HeldError(
                f"the subject is held: {hold}; nothing was erased",
                hint="`holdfast subject hold NAME --end` ends it",
            )
        said = {"at": self._log.clock.now_us()}
        new_event = changed([tree.set_op("erasing", said)])
        writes = [StreamWrite(stream, (new_event,), state.revision) for stream, state in states]
        self._log.commit(ProposedCommit(tuple(writes), marks=(Mark(ERASING, id, group=group),)))
        return True

    def _remove(self, id: str) -> dict[str, str]:
        """Step 2: removes the subject's scopes, to which nothing but removals can be written.

        Returns what is exempt. A hold may end meanwhile, so holds are read until nothing else
        lives: a scope that was left alone must not lose its key, because nobody would remove it.
        """
        removed = set[str]()
        while True:
            exempt = self._exempt(id)
            own = [one for one in self._own(id) if one not in exempt and one not in removed]
            if not own:
                return exempt
            for streams in self._by_place(own):
                _persist(partial(self._remove_some, streams))
            removed.update(own)

    def _remove_some(self, streams: list[str]) -> bool:
        """Removes scopes of one backend; False if there are more."""
        living = [one for one in streams if not self._is_removed(one)]
        # Scopes that expire are removed first, in separate commits: a commit cannot write to them
        # and to scopes that last.
        # The state is not asked: another store may have destroyed the key that folds it.
        heads = zip(living, self._log.heads(living), strict=True)
        ends = self._log.expiry.end
        expiring = [stream for stream, head in heads if head is not None and ends(stream, head)]
        some = (expiring or living)[:STREAMS_PER_COMMIT]
        writes, marks = list[StreamWrite](), list[Mark | Cleared]()
        for stream in some:
            # The event does not list the removed marks, as a normal removal does for `undo`: an
            # erasure cannot be undone.
            marks += removal.removal(self._context, stream)[1]
            marks += [Cleared(index, key) for index, key in erased_with(stream)]
            writes.append(removal.removed(stream))
        if writes:
            self._log.commit(ProposedCommit(tuple(writes), marks=tuple(marks)))
        return len(some) == len(living)

    def _own(self, id: str) -> list[str]:
        """Returns the scopes that belong to a subject, and the copies that layers made of them.

        Such copies belong to the subject too. Only those of older versions are not marked so.
        """
        own = [stream for stream in self._streams(id) if self._log.subject_of(stream) == id]
        copies = [copy for stream in own for copy in copies_of(self._context, stream)]
        return sorted({*own, *copies})

    def _is_removed(self, stream: str) -> bool:
        [head] = self._log.heads([stream])
        if head is None or self._log.expiry.has_ended(stream, head):
            return True
        return self._log.life(stream, head.revision) == head.revision

    def _exempt(self, id: str) -> dict[str, str]:
        """Returns those of a subject's streams that a hold exempts, each with its reason.

        Once the key is destroyed a hold has nothing to keep.
        """
        if self._log.sealing.keys.is_erased(id):
            return {}
        held = self._held_scopes()
        if not held:
            return {}
        own = self._own(id)
        kept = {one: held[one] for one in {*self._streams(id), *own} if one in held}
        for stream in [*kept]:
            for copy in copies_of(self._context, stream):
                if copy in own:
                    kept.setdefault(copy, kept[stream])
        return kept

    def _finish(
        self, id: str, wait_s: float, exempt: dict[str, str], *, is_again: bool
    ) -> ErasureReceipt:
        """Does steps 3 to 5 and returns the receipt; a hold of one scope keeps the key (0085)."""
        sealing = self._log.sealing
        if not exempt:
            self._note(id)
            sealing.keys.destroy(id)
            sealing.forget(id)
        own = {*self._own(id)}
        streams = sorted({*self._streams(id), *own})
        erased = sorted(own - exempt.keys())
        others = [stream for stream in streams if stream not in erased]
        done = self._retainer.erase(id, erased, others, wait_s=wait_s)
        went = {one.scope: one for one in done.scopes}
        if is_again:
            went = self._retainer.erased_since(own)
        key_stays = f'the key stays while "{min(exempt)}" is held' if exempt else ""
        scopes: list[ErasedScope] = []
        for stream in streams:
            if stream in exempt:
                scopes.append(ErasedScope(stream, "exempt", 0, 0, "", exempt[stream]))
                continue
            one = went.get(stream)
            events, size = (one.events, one.bytes) if one is not None else (0, 0)
            outcome = _outcome(done.left, "deleted")
            if stream not in own:
                outcome = "pending" if exempt else "unreadable"
            reason = key_stays if stream not in own else ""
            revisions = "" if one is None else f"1-{one.until}"
            scopes.append(ErasedScope(stream, outcome, events, size, revisions, reason))
        now_us = self._log.clock.now_us()
        beyond = (BEYOND_EXEMPT, *BEYOND[1:]) if exempt else BEYOND
        receipt = ErasureReceipt(id, to_datetime(now_us), scopes, done.blobs, done.left, beyond)
        said = _said(receipt, done.purged)
        marks = () if exempt else (Cleared(ERASING, id),)
        for about in self._by_place(self._about(id)):
            payload = changed([tree.set_op("erased", said)])
            writes = tuple(StreamWrite(stream, (payload,)) for stream in about)
            self._log.commit(ProposedCommit(writes, marks=marks))
        return receipt

    def receipts(self) -> list[dict[str, Any]]:
        """Returns the receipts of all erasures, brought up to date by what was purged since."""
        found: dict[str, dict[str, Any]] = {}
        for stream in self._log.streams(prefix=PREFIX):
            said = self._log.newest(stream).root.get("erased")
            if said is not None:
                id = stream.rpartition("/")[2]
                found[id] = {"subject": id, **tree.thaw(said)}
        receipts = [*found.values(), *self._retainer.erased()]
        purges = self._retainer.purges() if any(one["left"] for one in receipts) else []
        return [_as_it_is_now(one, purges) for one in receipts]


def _as_it_is_now(receipt: dict[str, Any], purges: Sequence[Purge]) -> dict[str, Any]:
    """Returns a stored receipt, with `left` brought up to date by the purges since.

    The first purge that left nothing to do completes the receipt, whatever later purges say. Until
    then, the newest whole purge says what is left, or if there was none, the newest one. What lies
    outside the store, such as a server's own log, stays in `left`; nothing waits for it.
    """
    purged: int | None = receipt.pop("purged", None)
    ends_as = receipt.pop("ends_as", "anonymised" if receipt.get("position") else "deleted")
    if purged is None:  # by an older holdfast: only the time tells which came later
        later = [one for one in purges if one.time > receipt["at"]]
    else:
        later = [one for one in purges if one.revision > purged]
    if not receipt["left"] or not later:
        return receipt
    at_end = next((one for one in later if not _waits(one.left)), None)
    whole = [one for one in later if one.whole]
    now = at_end or (whole or later)[-1]
    left = [[one.where, one.remedy] for one in now.left]
    before = [one for one in receipt["left"] if one[0] == erased_ledger.BEFORE]
    left += before
    if before or _waits(now.left):
        return {**receipt, "left": left}
    scopes = [
        # A row with a reason waits for something else than the bytes, such as the end of a hold.
        [name, ends_as if outcome == "pending" and not any(more[3:]) else outcome, *more]
        for name, outcome, *more in receipt["scopes"]
    ]
    return {**receipt, "scopes": scopes, "left": left}


def _waits(left: Iterable[Leftover]) -> bool:
    """Returns whether something is left that a call of ours can do, or see done."""
    return any(not one.is_outside for one in left)


def _outcome(left: Iterable[Leftover], done: str) -> str:
    """Returns what became of data: `done`, or `pending` while a physical step is left."""
    return "pending" if _waits(left) else done


def _said(receipt: ErasureReceipt, purged: int, ends_as: str = "deleted") -> dict[str, Any]:
    """Returns a receipt in its stored form, with `Retention.purged` and the final outcome."""
    said: dict[str, Any] = {
        "at": from_datetime(receipt.erased_at),
        "scopes": [
            [one.scope, one.outcome, one.events, one.bytes, one.revisions, one.reason]
            for one in receipt.scopes
        ],
        "blobs": receipt.blobs,
        "left": [[one.where, one.remedy] for one in receipt.left],
        "purged": purged,
        "ends_as": ends_as,
    }
    if receipt.subject:
        return said
    return {"subject": "", **said, "position": receipt.position}


def _told(mark: Mark) -> str:
    """Returns the digest of the name that an erasure was begun under; "" if it was by its id."""
    return (mark.group or "").partition(" ")[0]


def _leave(_scope: str) -> None:
    """Leaves a scope that somebody began anew since the one that is erased was removed."""


def _cut_rows(looked: cutting.Looked, outcome: str) -> list[ErasedScope]:
    return [
        ErasedScope(
            stream,
            outcome,
            len(found),
            sum(cut.length for _, _, cuts in found.values() for cut in cuts),
            _spans(found),
        )
        for stream, found in sorted(looked.found.items())
    ]


def _spans(revisions: Iterable[int]) -> str:
    """Returns revisions as text: "2-5,9"."""
    runs: list[list[int]] = []
    for revision in sorted(revisions):
        if runs and runs[-1][1] == revision - 1:
            runs[-1][1] = revision
        else:
            runs.append([revision, revision])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _persist(attempt: Callable[[], bool]) -> None:
    """Repeats an attempt until it returns True; raises after `RETRIES` conflicts.

    It never gives up silently: a hold that was not set, or a key destroyed while writes are still
    accepted, would be worse than an error.
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
