"""The journal of a run: what its events fold to, and how it answers each operation of a pass.

Pure: no I/O, no threads, no clock. `Journal` is the fold. A `Block` is one pass of the code through
one block (the body, an iteration, a branch): it counts calls, makes paths, and answers `execute`,
`replay`, `open` or `diverged`, by the table of decision 0013. Each time a process takes the run, a
pass begins at the top of the code; it only ever adds to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import UsageError, show_value
from holdfast.runs import events
from holdfast.runs.events import ABSENT, SAFE, Fault

_ESCAPED = str.maketrans({char: f"%{ord(char):02x}" for char in "%/#[]="})

State = Literal["open", "done", "failed"]
CLEANUP = "cleanup"
_ENTERED = frozenset((CLEANUP, "block", "each", "repeat", "loop", "fold", "run", "parallel"))
"""Kinds that each pass enters again; the records inside them say what was done."""


class Entry(Struct, gc=False):
    """Everything that the journal knows of one operation."""

    path: str
    ordinal: int
    kind: str
    name: str
    effect: str
    digest: str | None
    revision: int  # of its first event: a fork from here begins before it
    state: State = "open"
    closed: int = 0  # the revision of its value
    attempt: int = 1
    attempts: int = 1
    value: Raw = ABSENT
    lost: str | None = None
    error: Fault | None = None
    retry_at: int | None = None
    key: str | None = None
    inputs: Raw = ABSENT
    verify: str | None = None
    due: int | None = None
    total: int | None = None
    child: str | None = None
    when_parent_ends: str | None = None
    displaced: bool = False
    label: str | None = None
    source: str | None = None  # its place in the source of a front end
    verdict: str | None = None  # of an open intent: "not done", "unknown"
    reason: str = ""
    refused: int = 0
    origin: str | None = None  # in a fork: the run that recorded it

    @property
    def is_uncertain(self) -> bool:
        """Whether an act was begun and nobody knows yet if it was done."""
        return self.state == "open" and self.effect == "effect" and self.verdict != "not done"


class Answer(Struct, frozen=True, gc=False):
    """What the journal answers an operation: what it must do, and under which path."""

    verdict: Literal["execute", "replay", "open", "diverged"]
    path: str
    ordinal: int
    entry: Entry | None = None
    problem: str = ""
    expected: str = ""
    found: str = ""
    displaced: bool = False
    label: str | None = None
    source: str | None = None


def name_in_life(id: str, began: int) -> str:
    """Returns the name of a run in keys and in the ids of its children.

    When a run was removed, its id can be used again. The new run must have other keys, so that its
    writes, and its calls to services that take keys, are not answered with those of the old run.
    """
    return f"{id}/@{began}" if began else id


class Journal:
    """The fold of a run's events."""

    def __init__(self, began: int = 0) -> None:
        self.revision = began
        self.began = began
        """The revision that removed the earlier run of this id; 0 if this is the first one."""
        self.entries: dict[str, Entry] = {}
        self.ordinals: dict[str, dict[int, list[str]]] = {}  # block -> ordinal -> paths
        self.acting: dict[str, dict[str, list[str]]] = {}  # loop -> iteration -> paths of acts
        self.created: events.Created | None = None
        self.claims: list[events.Claimed] = []
        self.forked: events.Forked | None = None
        self.root: str | None = None  # in a fork, or a fork of one: the run that was forked first
        self.ended: events.Ended | None = None
        self.diverged: events.Diverged | None = None
        self.suspended: events.Suspended | None = None
        self.cancelling: events.Cancelling | None = None
        self.adopted: set[tuple[str, str]] = set()
        self.taken: set[int] = set()  # revisions of the inbox
        self.notes: list[events.Noted] = []
        self.last_done: str | None = None
        self.variables: dict[tuple[str, str], Raw] = {}  # by block and name
        self.cleanups: dict[str, None] = {}  # those that are still to be done

    # --- folding ---------------------------------------------------------------------------------

    def apply(self, event: Any) -> None:
        """Applies one event; None, for an event of another layer, only counts its revision."""
        self.revision += 1
        if event is not None:
            _APPLY[type(event)](self, event)

    def _created(self, event: events.Created) -> None:
        self.created = event

    def _claimed(self, event: events.Claimed) -> None:
        self.claims.append(event)
        self.suspended = self.diverged = None

    def _intended(self, event: events.Intended) -> None:
        entry = self._entry_of(event)
        entry.state, entry.attempt, entry.attempts = "open", event.attempt, event.attempts
        entry.retry_at = entry.verdict = entry.error = None
        entry.key, entry.inputs, entry.verify = event.key, event.inputs, event.verify
        entry.due, entry.total, entry.child = event.due, event.total, event.child
        entry.when_parent_ends = event.when_parent_ends
        if event.kind == CLEANUP:
            self.cleanups[event.path] = None

    def _done(self, event: events.StepDone) -> None:
        entry = None if event.kind else self.entries.get(event.path)  # no kind: it has an intent
        if entry is None:
            entry = self._entry_of(event)
        entry.state, entry.attempt, entry.closed = "done", event.attempt, self.revision
        entry.value, entry.lost = event.value, event.lost
        entry.retry_at = entry.error = None
        self.taken.update(event.taken)
        self.last_done = event.path
        if entry.kind == CLEANUP:
            self.cleanups.pop(event.path, None)
        if event.value and entry.kind in ("let", "const", "set"):
            block = block_of(event.path)
            while entry.kind == "set" and block and (block, entry.name) not in self.variables:
                block = block_of(block)
            self.variables[block, entry.name] = event.value

    def _failed(self, event: events.Failed) -> None:
        entry = self._entry_of(event)
        entry.state = "failed" if event.retry_at is None else "open"
        entry.attempt, entry.error, entry.retry_at = event.attempt, event.error, event.retry_at
        entry.verdict, entry.attempts = None, event.attempts
        if entry.kind == CLEANUP:
            self.cleanups.pop(event.path, None)

    def _settled(self, event: events.Settled) -> None:
        entry = self.entries[event.path]
        entry.verdict, entry.reason = event.verdict, event.reason
        if event.verdict == "done":
            entry.state, entry.value, entry.closed = "done", event.value, self.revision
            self.last_done = event.path
        if event.verdict != "unknown":
            self._attended()

    def _refused(self, event: events.Refused) -> None:
        self.taken.update(event.taken)
        self.entries[event.path].refused += 1

    def _noted(self, event: events.Noted) -> None:
        self.notes.append(event)

    def _diverged(self, event: events.Diverged) -> None:
        self.diverged = event

    def _adopted(self, event: events.Adopted) -> None:
        self.adopted.add((event.path, event.problem))
        self.diverged = None
        self._attended()

    def _attended(self) -> None:
        """Notes that a person has dealt with a parked run: it now waits to be resumed."""
        if self.suspended is not None and self.suspended.attention:
            seen = self.suspended.seen
            self.suspended = events.Suspended("a person has looked: resume it", seen=seen)

    def _suspended(self, event: events.Suspended) -> None:
        self.suspended = event

    def _cancelling(self, event: events.Cancelling) -> None:
        self.cancelling = event

    def _forked(self, event: events.Forked) -> None:
        """Clears the origin's status, claims and inbox: the fork is a new run, not yet begun."""
        self.forked = event
        self.root = self.root or event.origin
        for entry in self.entries.values():
            entry.origin = entry.origin or event.origin
        self.ended = self.diverged = self.suspended = self.cancelling = None
        self.claims.clear()
        self.taken.clear()  # they name places in the origin's inbox
        if event.children == "drop":
            for entry in [e for e in self.entries.values() if e.child and e.state == "open"]:
                del self.entries[entry.path]
                self.ordinals[block_of(entry.path)][entry.ordinal].remove(entry.path)

    def _removed(self, _: events.Removed) -> None:
        """Starts over: later events are another run of the same id."""
        self.__init__(self.revision)

    def _ended(self, event: events.Ended) -> None:
        self.ended = event

    def _entry_of(self, event: Any) -> Entry:
        """Returns the entry that an event is about, and makes it if this is its first event."""
        entry = self.entries.get(event.path)
        if entry is None or (event.kind and event.digest != entry.digest):
            # It is new, or a pure step that ran again with other inputs: the newest record counts.
            replaced = entry
            entry = Entry(
                event.path,
                event.ordinal,
                event.kind,
                event.name,
                event.effect,
                event.digest,
                self.revision if replaced is None else replaced.revision,
                displaced=getattr(event, "displaced", False),
                label=event.label,
                source=event.source,
            )
            self.entries[event.path] = entry
            if replaced is None and event.effect not in SAFE and "]" in event.path:
                self._add_act(event.path)
            if event.ordinal and replaced is None:
                held = self.ordinals.setdefault(event.path.rpartition("/")[0], {})
                held.setdefault(event.ordinal, []).append(event.path)
        return entry

    def _add_act(self, path: str) -> None:
        """Indexes an act by the iterations that it is in.

        So a loop that ends checks the acts of its own iterations and not the whole journal.
        """
        end = path.find("]")
        while end >= 0:
            block = path[: end + 1]
            loop = self.acting.setdefault(block.rpartition("[")[0], {})
            loop.setdefault(block, []).append(path)
            end = path.find("]", end + 1)

    # --- asking ----------------------------------------------------------------------------------

    def below(self, path: str) -> Iterator[Entry]:
        """Yields the entries inside a block, at any depth."""
        starts = (f"{path}/", f"{path}[") if path else ("",)
        entries = tuple(self.entries.values())  # a copy: threads of other branches add entries
        return (entry for entry in entries if entry.path.startswith(starts))

    def acts_below(self, path: str) -> bool:
        """Returns whether a block contains a record that is neither pure nor a read."""
        return any(entry.effect not in SAFE for entry in self.below(path))

    def acts_outside(self, loop: str, iterations: set[str]) -> list[str]:
        """Returns the paths of a loop's acts that are in none of these iterations."""
        recorded = self.acting.get(loop, {}).items()
        return [act for block, acts in recorded if block not in iterations for act in acts]

    def cleans_below(self, block: str) -> bool:
        """Returns whether a cleanup inside a block is still to be done."""
        return any(path.startswith(f"{block}/") for path in tuple(self.cleanups))

    def uncertain(self) -> list[Entry]:
        """Returns the acts that were begun and have no known outcome."""
        return [entry for entry in tuple(self.entries.values()) if entry.is_uncertain]

    @property
    def status(self) -> events.Status:
        """The run's status, as far as its own events tell."""
        if self.ended is not None:
            return self.ended.status
        if not self.claims:
            return "pending"
        if self.cancelling is not None:
            return "cancelling"
        if self.diverged is not None:
            return "needs_attention"
        if self.suspended is not None:
            return "needs_attention" if self.suspended.attention else "waiting"
        return "running"


_APPLY: dict[type, Any] = {
    events.Created: Journal._created,  # pyright: ignore[reportPrivateUsage]
    events.Claimed: Journal._claimed,  # pyright: ignore[reportPrivateUsage]
    events.Intended: Journal._intended,  # pyright: ignore[reportPrivateUsage]
    events.StepDone: Journal._done,  # pyright: ignore[reportPrivateUsage]
    events.Failed: Journal._failed,  # pyright: ignore[reportPrivateUsage]
    events.Settled: Journal._settled,  # pyright: ignore[reportPrivateUsage]
    events.Refused: Journal._refused,  # pyright: ignore[reportPrivateUsage]
    events.Noted: Journal._noted,  # pyright: ignore[reportPrivateUsage]
    events.Diverged: Journal._diverged,  # pyright: ignore[reportPrivateUsage]
    events.Adopted: Journal._adopted,  # pyright: ignore[reportPrivateUsage]
    events.Suspended: Journal._suspended,  # pyright: ignore[reportPrivateUsage]
    events.Cancelling: Journal._cancelling,  # pyright: ignore[reportPrivateUsage]
    events.Forked: Journal._forked,  # pyright: ignore[reportPrivateUsage]
    events.Ended: Journal._ended,  # pyright: ignore[reportPrivateUsage]
    events.Removed: Journal._removed,  # pyright: ignore[reportPrivateUsage]
}


class Block:
    """One pass of the code through one block."""

    def __init__(self, journal: Journal, path: str = "", *, displaced: bool = False) -> None:
        self.journal = journal
        self.path = path
        self.displaced = displaced
        self.calls = 0
        self.refuse: Callable[[], BaseException] | None = None
        """While the block is being left: makes the exception for operations without an outcome."""
        self.counts: dict[str, int] = {}
        self._read: set[str] = set()

    def ask(
        self,
        kind: str,
        name: str,
        effect: str,
        digest: str | None = None,
        *,
        key: str | None = None,
        label: str | None = None,
        source: str | None = None,
    ) -> Answer:
        """Counts the call, gives it its path, and returns what it must do."""
        ordinal = self.calls = self.calls + 1
        path = self._path(kind, name, key)
        if path in self._read:
            raise UsageError(
                f'key {show_value(key)} was given to two operations "{name}" of one block',
                hint="a key names one operation: make them differ",
            )
        self._read.add(path)
        journal = self.journal
        if path in journal.entries:
            answer = self._answer_known(path, ordinal, kind, name, effect, digest)
        elif self.displaced or ordinal in journal.ordinals.get(self.path, ()):
            answer = self._answer_new(path, ordinal, effect, f"{kind} {name}")
        elif self.refuse is not None:
            raise self.refuse()
        else:
            return Answer("execute", path, ordinal, label=label, source=source)
        if self.refuse is not None and not _is_entered(answer, kind):
            raise self.refuse()
        if label is None and source is None:
            return answer
        return replace(answer, label=label, source=source)

    def _answer_known(
        self, path: str, ordinal: int, kind: str, name: str, effect: str, digest: str | None
    ) -> Answer:
        """Answers a call that has a record: `replay` or `open` if it is the same call."""
        entry = self.journal.entries[path]
        if entry.kind != kind:
            return Answer(
                "diverged",
                path,
                ordinal,
                entry,
                "kind",
                f"{entry.kind} {entry.name}",
                f"{kind} {name}",
            )
        if digest != entry.digest:
            if effect in SAFE and entry.effect in SAFE:
                return Answer("execute", path, ordinal, entry)
            if (path, "inputs") not in self.journal.adopted:
                found = f"{name} with inputs {digest}"
                return Answer(
                    "diverged",
                    path,
                    ordinal,
                    entry,
                    "inputs",
                    f"{entry.name} with inputs {entry.digest}",
                    found,
                )
        verdict = "open" if entry.state == "open" else "replay"
        return Answer(verdict, path, ordinal, entry, displaced=entry.displaced)

    def _answer_new(self, path: str, ordinal: int, effect: str, found: str) -> Answer:
        """Answers a call without a record: it may act only if no unread record could be its own."""
        holder = self._holder(ordinal)
        displaced = self.displaced or holder is not None
        if not displaced or (path, "new") in self.journal.adopted:
            return Answer("execute", path, ordinal)
        if effect in SAFE:
            return Answer("execute", path, ordinal, displaced=True)
        expected = f"no new {effect} here" if holder is None else f"{holder.kind} {holder.name}"
        return Answer("diverged", path, ordinal, None, "new", expected, found)

    def _holder(self, ordinal: int) -> Entry | None:
        """Returns the unread record whose place a new operation would take, if there is one."""
        journal = self.journal
        held = journal.ordinals.get(self.path)
        if held is None or ordinal not in held:
            return None
        for path in held[ordinal]:
            if path not in self._read:
                return journal.entries[path]
        for entry in self._unread():
            if self._acts(entry):
                return entry
        return None

    def is_replayed(self) -> bool:
        """Returns whether the journal has later operations of this block than those asked for."""
        return any(ordinal > self.calls for ordinal in self.journal.ordinals.get(self.path, ()))

    def leftovers(self) -> tuple[list[Entry], list[Entry]]:
        """Returns the records that the pass did not read, as two lists: harmless ones, and acts."""
        harmless: list[Entry] = []
        acts: list[Entry] = []
        for entry in self._unread():
            if not self._acts(entry):
                harmless.append(entry)
            elif (entry.path, "unread") not in self.journal.adopted:
                acts.append(entry)
        return harmless, acts

    def _unread(self) -> Iterator[Entry]:
        for paths in self.journal.ordinals.get(self.path, {}).values():
            for path in paths:
                if path not in self._read:
                    yield self.journal.entries[path]

    def _acts(self, entry: Entry) -> bool:
        return entry.effect not in SAFE or self.journal.acts_below(entry.path)

    def _path(self, kind: str, name: str, key: str | None) -> str:
        leaf = name if name.isidentifier() else escape(name)
        if kind != "step":
            leaf = f"{kind}.{leaf}" if name else kind
        if key is not None:
            leaf = f"{leaf}={escape(key)}"
        else:
            count = self.counts[leaf] = self.counts.get(leaf, 0) + 1
            if count > 1:
                leaf = f"{leaf}#{count}"
        return f"{self.path}/{leaf}" if self.path else leaf


def _is_entered(answer: Answer, kind: str) -> bool:
    """Returns whether an operation has its outcome, or is a block that was begun."""
    return answer.verdict == "replay" or (answer.verdict == "open" and kind in _ENTERED)


def block_of(path: str) -> str:
    """Returns the path of the block that an operation is in."""
    return path.rpartition("/")[0]


def escape(name: str) -> str:
    """Escapes a name for a path."""
    return name if name.isidentifier() else name.translate(_ESCAPED)


def iteration(path: str, index: int | str) -> str:
    """Returns the path of one iteration's block."""
    return f"{path}[{index if isinstance(index, int) else escape(index)}]"


def done_of(
    answer: Answer,
    kind: str,
    name: str,
    effect: str,
    value: Raw,
    digest: str | None = None,
    taken: tuple[int, ...] = (),
) -> events.StepDone:
    """Returns the record of an operation that had no intent."""
    return events.StepDone(
        answer.path,
        value,
        None,
        taken,
        1,
        answer.ordinal,
        kind,
        name,
        effect,
        digest,
        answer.label,
        answer.source,
    )


def digest_of(encoded: bytes) -> str:
    """Returns the digest of encoded inputs, by which two calls are compared."""
    return blake2b(encoded, digest_size=16).hexdigest()
