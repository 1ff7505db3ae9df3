"""Engines for runs that are broken on purpose, and the programs of the corpus that find each.

Each is a fault that durable execution has had somewhere. `tests/broken/test_engines.py` cuts their
programs in process; T13 (`tests/torture/t13_runs.py`) kills them for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from holdfast.core import intent, leases
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.log import LEASE_BLOCK, WRITER, Log
from holdfast.runs import context, events, execution, journal, steps
from holdfast.runs import execution as writers
from holdfast.runs.operation import CommitNow

Put = Callable[[Any, Any, Any], None]
"""Replaces an attribute of something, or an item of a dictionary."""


class BrokenEngine(Struct, frozen=True):
    """One fault."""

    broken: str
    """What is broken, in one line."""
    plant: Callable[[Put], None]
    programs: tuple[str, ...]
    """The programs that must show it."""
    needs_two_owners: bool = False
    """Whether it only shows when a paused owner wakes up."""
    within: int = 10
    """Within how many points T13 must find it."""


def put(target: Any, name: Any, value: Any) -> None:
    """Plants for good: for a process that ends soon."""
    if isinstance(target, dict):
        target[name] = value
    else:
        setattr(target, name, value)


def _no_fence(put: Put) -> None:
    def unfenced(*_: object) -> None:
        return None

    put(execution, "Fence", unfenced)


def _fence_shared(put: Put) -> None:
    """As it was once: whoever is in a block has its fence, whichever store he writes to."""

    def fence_here(self: Any) -> Any:
        block = LEASE_BLOCK.get()
        return None if block is None else block.fence

    put(Log, "fence_here", fence_here)
    put(execution.Execution, "is_in", lambda *_: True)


def _owner_not_asked(put: Put) -> None:
    def is_sure(self: Any, lease: Any) -> bool:
        return True

    put(leases.LeaseKeeper, "is_sure", is_sure)


def _no_intent(put: Put) -> None:
    sound = execution.Execution.record

    def record(self: Any, event: Any) -> None:
        is_act = isinstance(event, events.Intended) and event.effect == "effect"
        if not is_act:
            sound(self, event)

    put(execution.Execution, "record", record)


def _acts_early(put: Put) -> None:
    def nothing(*_: object) -> None:
        return None

    put(context._PERFORM, CommitNow, nothing)


def _name_only_keys(put: Put) -> None:
    sound = journal.Block.ask

    def ask(self: Any, kind: str, name: str, effect: str, digest: Any = None, **named: Any) -> Any:
        self.counts.clear()
        self._read.clear()
        entry = self.journal.entries.get(self._path(kind, name, named.get("key")))
        self.counts.clear()
        known = digest if entry is None else entry.digest
        return sound(self, kind, name, effect, known, **named)

    put(journal.Block, "ask", ask)


def _swallowed_control(put: Put) -> None:
    def left_with(self: Any, control: Any) -> Any:
        return control

    put(context.Operations, "_leave_with", left_with)


def _results_not_reread(put: Put) -> None:
    sound = steps._record_done

    def record_done(run: Any, call: Any, attempt: int, value: Any) -> Any:
        sound(run, call, attempt, value)
        return value

    put(steps, "_record_done", record_done)


def _retries_blindly(put: Put) -> None:
    put(steps, "_outcome", lambda step, error: "not done")


def _verifier_not_asked(put: Put) -> None:
    put(intent, "judge", lambda name, intended: intent.NotDone())


def _inbox_taken_twice(put: Put) -> None:
    sound: Any = journal._APPLY[events.StepDone]

    def done(self: Any, event: Any) -> None:
        sound(self, event)
        self.taken.difference_update(event.taken)

    put(journal._APPLY, events.StepDone, done)


def _txn_apart(put: Put) -> None:
    def commit_with(self: Any, event: Any, extra: ProposedCommit) -> CommitResult:
        outside = WRITER.set(None)
        try:
            written = self.log.commit(
                ProposedCommit(extra.writes, extra.reads, self.fence, extra.marks)
            )
        finally:
            WRITER.reset(outside)
        self.record(event)
        self.commit()
        before, after = tuple(written.before), tuple(written.after)
        return CommitResult(written.position, (*before[:1], *before), (*after[:1], *after), {})

    put(execution.Execution, "commit_with", commit_with)


def _writes_without_keys(put: Put) -> None:
    put(writers, "_keyed", lambda write, key: write)


def _chance_not_kept(put: Put) -> None:
    def value(self: Any, kind: str, name: str, make: Any, *_: Any, **__: Any) -> Any:
        self._begin()
        return make()

    put(context.Operations, "_recorded_value", value)


def _outcomes_not_kept(put: Put) -> None:
    sound = execution.Execution.take_buffer

    def shortened(self: Any, *how: Any, **named: Any) -> Any:
        kept = [one for one in self._buffer if not _is_outcome(one)]
        self._buffer[:] = kept
        return sound(self, *how, **named)

    put(execution.Execution, "take_buffer", shortened)


def _is_outcome(new_event: Any) -> bool:
    event = events.read(new_event.type, new_event.payload)
    return isinstance(event, events.StepDone) and not event.kind and event.path.startswith("cry")


ENGINES = {
    "no-fence": BrokenEngine(
        "a paused owner that wakes up goes on writing",
        _no_fence,
        ("effect_chain", "loop_each", "mixed"),
        needs_two_owners=True,
    ),
    "owner-not-asked": BrokenEngine(
        "an owner that stood still past its lease acts on an intent that another has taken over",
        _owner_not_asked,
        ("effect_chain",),
        needs_two_owners=True,
        within=20,
    ),
    "fence-shared": BrokenEngine(
        "the fence of a lease or run of one store is put on what is written to another",
        _fence_shared,
        ("two_stores",),
        within=1,
    ),
    "no-intent": BrokenEngine(
        "an effect is done without a word before it", _no_intent, ("effect_chain", "loop_each")
    ),
    "acts-early": BrokenEngine(
        "an effect is done before its intent is durable", _acts_early, ("effect_chain", "mixed")
    ),
    "name-only-keys": BrokenEngine(
        "a step is known by its name alone", _name_only_keys, ("effect_chain",), within=2
    ),
    "swallowed-control": BrokenEngine(
        "a body that catches everything goes on", _swallowed_control, ("swallowed",), within=3
    ),
    "results-not-reread": BrokenEngine(
        "a step returns what it gave, not what was stored",
        _results_not_reread,
        ("plain_values",),
        within=2,
    ),
    "retries-blindly": BrokenEngine(
        "an effect that raised is tried again though nobody knows",
        _retries_blindly,
        ("timeout_unverified",),
        within=2,
    ),
    "verifier-not-asked": BrokenEngine(
        "an effect that a crash cut short is done again",
        _verifier_not_asked,
        ("effect_chain", "countdown"),
    ),
    "inbox-taken-twice": BrokenEngine(
        "a message that was taken is handed out again", _inbox_taken_twice, ("signals",), within=2
    ),
    "txn-apart": BrokenEngine(
        "a txn's writes and the record of it are two commits",
        _txn_apart,
        ("transactions", "txn_in_a_loop"),
        within=20,
    ),
    "writes-without-keys": BrokenEngine(
        "a body's write has no key, so a replay writes again",
        _writes_without_keys,
        ("body_writes", "joint_writes"),
    ),
    "chance-not-kept": BrokenEngine(
        "a drawn number is drawn again in a replay",
        _chance_not_kept,
        ("chance_decides",),
        within=20,
    ),
    "outcomes-not-kept": BrokenEngine(
        "what was done is not recorded: all of it is uncertain after a crash",
        _outcomes_not_kept,
        ("unverified",),
        within=20,
    ),
}


def engines_of(*names: str) -> dict[str, int]:
    """Returns faults as a programme plants them, all of them if none is named."""
    return {name: ENGINES[name].within for name in names or ENGINES}
