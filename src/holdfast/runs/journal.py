"""The journal of a run: what its events fold to, and how it answers each operation of a pass.

Pure: no I/O, no threads, no clock. `Journal` is the fold. A `Block` is one pass of the code through
one block (the body, an iteration, a branch): it counts calls, makes paths, and answers `execute`,
`replay`, `open` or `diverged`, as the table of decision 0013 says. A pass begins at the top each
time a process takes the run; the journal is the same before and after it but for what it adds.
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
"""What is entered again in each pass: what stands inside says whether it was done."""


class Entry(Struct, gc=False):
    """All that the journal knows of one operation."""

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
    source: str | None = None  # where a front end has it from
    verdict: str | None = None  # of an open intent: "not done", "unknown"
    reason: str = ""
    refused: int = 0
    origin: str | None = None  # the run that recorded it, in a fork of that

    @property
    def is_uncertain(self) -> bool:
        """Whether an act was begun and nobody knows yet if it was done."""
        return self.state == "open" and self.effect == "effect" and self.verdict != "not done"


class Answer(Struct, frozen=True, gc=False):
    """What an operation is to do."""

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
    """Returns what names a run in keys and in the ids of its children.

    An id can begin again when its run was removed. The new run's writes, and its calls to services
    that know keys, are not those of the old one.
    """
    return f"{id}/@{began}" if began else id


class Journal:
    """The fold of a run's events."""

    def __init__(self, began: int = 0) -> None:
        self.revision = began
        self.began = began
        """The revision that removed the run of this id before this one; 0: it is the first."""
        self.entries: dict[str, Entry] = {}
        self.ordinals: dict[str, dict[int, list[str]]] = {}  # block -> ordinal -> paths
        self.acting: dict[str, dict[str, list[str]]] = {}  # loop -> iteration -> paths of acts
        self.created: events.Created | None = None
        self.claims: list[events.Claimed] = []
        self.forked: events.Forked | None = None
        self.root: str | None = None  # of a fork: the run that all of its forks go back to
        self.ended: events.Ended | None = None
        self.diverged: events.Diverged | None = None
        self.suspended: events.Suspended | None = None
        self.cancelling: events.Cancelling | None = None
        self.adopted: set[tuple[str, str]] = set()
        self.taken: set[int] = set()  # revisions of the inbox
        self.notes: list[events.Noted] = []
        self.last_done: str | None = None
        self.variables: dict[tuple[str, str], Raw] = {}  # by block and name
        self.cleanups: dict[str, None] = {}  # what is to be done when its block is left

    # --- folding ---------------------------------------------------------------------------------

    def apply(self, event: Any) -> None:
        """Adds one event; those of other layers only count."""
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
        """A person has looked after a parked run: it waits to be resumed."""
        if self.suspended is not None and self.suspended.attention:
            seen = self.suspended.seen
            self.suspended = events.Suspended("a person has looked: resume it", seen=seen)

    def _suspended(self, event: events.Suspended) -> None:
        self.suspended = event

    def _cancelling(self, event: events.Cancelling) -> None:
        self.cancelling = event

    def _forked(self, event: events.Forked) -> None:
        """Forgets how its origin stood: the fork is a run of its own, not yet begun."""
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
        """Begins anew: what follows is another run of the same id."""
        self.__init__(self.revision)

    def _ended(self, event: events.Ended) -> None:
        self.ended = event

    def _entry_of(self, event: Any) -> Entry:
        """Returns the entry that an event is about, which is made if the event is its first."""
        entry = self.entries.get(event.path)
        if entry is None or (event.kind and event.digest != entry.digest):
            # New, or a pure step that ran again on other inputs: the newest record counts.
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
        """Remembers which iterations an act is in: a loop that closes looks at its own alone."""
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
        entries = tuple(self.entries.values())  # other branches add to it
        return (entry for entry in entries if entry.path.startswith(starts))

    def acts_below(self, path: str) -> bool:
        """Says whether anything inside a block is more than pure."""
        return any(entry.effect not in SAFE for entry in self.below(path))

    def acts_outside(self, loop: str, iterations: set[str]) -> list[str]:
        """Returns the paths of acts in other iterations of a loop than these."""
        recorded = self.acting.get(loop, {}).items()
        return [act for block, acts in recorded if block not in iterations for act in acts]

    def cleans_below(self, block: str) -> bool:
        """Says whether a cleanup inside a block is still to be done."""
        return any(path.startswith(f"{block}/") for path in tuple(self.cleanups))

    def uncertain(self) -> list[Entry]:
        """Returns the acts that were begun and have no outcome."""
        return [entry for entry in tuple(self.entries.values()) if entry.is_uncertain]

    @property
    def status(self) -> events.Status:
        """Where the run stands, as far as its own events say."""
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
        """What to raise instead of what has no outcome yet, while the block is to be left."""
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
        """Counts the call, gives it its path, and says what it is to do."""
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
        """Answers a call that has a record: it is replayed, if it is the same call."""
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
        """Answers a call that has no record: it may only act if no record can be of this call."""
        holder = self._holder(ordinal)
        displaced = self.displaced or holder is not None
        if not displaced or (path, "new") in self.journal.adopted:
            return Answer("execute", path, ordinal)
        if effect in SAFE:
            return Answer("execute", path, ordinal, displaced=True)
        expected = f"no new {effect} here" if holder is None else f"{holder.kind} {holder.name}"
        return Answer("diverged", path, ordinal, None, "new", expected, found)

    def _holder(self, ordinal: int) -> Entry | None:
        """Returns the record whose place a new operation would take; None if there is none."""
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
        """Says whether the journal has operations of this block after those asked for so far."""
        return any(ordinal > self.calls for ordinal in self.journal.ordinals.get(self.path, ()))

    def leftovers(self) -> tuple[list[Entry], list[Entry]]:
        """Returns the records that the pass did not read: harmless ones, and acts."""
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
    """Says whether an operation has its outcome, or is a block that was begun."""
    return answer.verdict == "replay" or (answer.verdict == "open" and kind in _ENTERED)


def block_of(path: str) -> str:
    """Returns the block that an operation stands in."""
    return path.rpartition("/")[0]


def escape(name: str) -> str:
    """Returns a name as it stands in a path."""
    return name if name.isidentifier() else name.translate(_ESCAPED)


def iteration(path: str, index: int | str) -> str:
    """Returns the block of one iteration."""
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
