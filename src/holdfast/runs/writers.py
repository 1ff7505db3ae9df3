"""Commits that a run's body, or one of its steps, makes to the same store (rule 3)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast import codec
from holdfast.backends.protocol import Fence
from holdfast.runs import blocks, values
from holdfast.runs.events import ABSENT
from holdfast.runs.execution import Execution
from holdfast.wanted import Part, Wanted

_OURS = ("run/", "lease/", "store/")


class BodyWriter:
    """Gives each write of a body its key and its fence, and its place in the journal.

    A replay sends the write again: its key makes the backend answer as it did the first time. The
    record in the journal is not the proof that it was written; it is there so that code which now
    writes something else diverges instead.
    """

    is_replayed = True

    def __init__(self, context: Any) -> None:
        self._context = context

    def fencing(self) -> StepWriter:
        """Returns what fences commits that guard themselves, and need no place in the journal."""
        self._context.enter(anywhere=True)
        run: Execution = self._context.execution
        run.push()
        return StepWriter(run, self._context.block.path, is_behind=True)

    @property
    def path(self) -> str:
        """The run and the block, and how many operations it has performed."""
        context = self._context
        return f"run/{context.execution.id}/{context.block.path}#{context.block.calls}"

    def prepare(self, wanted: Wanted) -> Wanted:
        run: Execution = self._context.execution
        if not wanted.parts or wanted.parts[0].stream.startswith(_OURS):
            return wanted
        self._context.enter(anywhere=True)  # asyncio hands some writes to a thread of its own
        said = [[_name(run, p), [(q.type, q.payload) for q in p.proposals]] for p in wanted.parts]
        digest = values.digest(codec.encode(said))
        name = _name(run, wanted.parts[0])
        answer = self._context.block.ask("write", name, "idempotent", digest)
        if answer.verdict == "diverged":
            raise self._context.poisoned(run.diverge(answer))
        if answer.verdict == "execute":
            run.record(blocks.done_of(answer, "write", name, "idempotent", ABSENT, digest))
        # In line before the write, so that what it may depend on is durable before it is; if that
        # cannot be written, nor is this.
        run.push()
        # A write that a fork inherited keeps its key: it was made, and is not made again.
        origin = None if answer.entry is None else answer.entry.origin
        key = values.commit_key(f"{origin or run.id}/{answer.path}")
        parts = tuple([_keyed(part, key) for part in wanted.parts])
        return replace(wanted, parts=parts, fence=_fence(run, wanted), unless=run.unless)


class StepWriter:
    """Fences what a step writes; its class, not a key, says what a repetition does."""

    is_replayed = False

    def __init__(self, execution: Execution, path: str, *, is_behind: bool = False) -> None:
        self._execution = execution
        self._is_behind = is_behind  # what was put in line before, without which it is not written
        self.path = f"run/{execution.id}/{path}"

    def fencing(self) -> StepWriter:
        """Returns itself: it fences, and does nothing else."""
        return self

    def prepare(self, wanted: Wanted) -> Wanted:
        if not wanted.parts or wanted.parts[0].stream.startswith(_OURS):
            return wanted
        run = self._execution
        unless = run.unless if self._is_behind else None
        return replace(wanted, fence=_fence(run, wanted), unless=unless)


def _name(run: Execution, part: Part) -> str:
    """Returns what a stream is called in the journal: a fork's own state is that of its origin.

    Each run has a state of its own, named by its id. Under that name the fork would not find what
    it inherited; so found, the writes before the fork are made again, in the state of the fork.
    """
    if run.journal.root is not None and part.stream == f"workflow/{run.id}":
        return f"workflow/{run.journal.root}"
    return part.stream


def _fence(run: Execution, wanted: Wanted) -> Fence | None:
    """Returns what a write is fenced by: the run's lease, where the backend of the write has it.

    In a mixed store a scope may be kept elsewhere than runs are. There its key still makes the
    write happen once, but a late owner is not refused.
    """
    if wanted.fence is not None:
        return wanted.fence
    place_of = run.log.routes.place_of
    near = place_of(wanted.parts[0].stream) == place_of(run.fence.name)
    return run.fence if near else None


def _keyed(part: Part, key: str) -> Part:
    return part if part.key is not None else replace(part, key=key)
