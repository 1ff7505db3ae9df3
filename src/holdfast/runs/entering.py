"""A block of a run as its code is in it: entering, leaving, and what it is left with."""

from __future__ import annotations

import sys
import threading
from typing import Any

from holdfast.errors import UsageError
from holdfast.runs import blocks
from holdfast.runs.acts import Operation
from holdfast.runs.control import Control, Stopped, calling_line, passed_through
from holdfast.runs.execution import Execution
from holdfast.runs.journal import Block
from holdfast.runs.writers import BodyWriter


class Entering:
    """The place of a context in its run. Each thread or task has a context of its own."""

    def __init__(self, execution: Execution, block: Block, parent: Any, engine: Any) -> None:
        self.execution = execution
        self.engine = engine
        self.block = block
        self.parent = parent
        self.base = block.path
        self.frames: list[blocks.Frame] = [*parent.frames] if parent is not None else []
        self.doing: blocks.Doing | None = None
        self.is_stopped = False
        self.writer = BodyWriter(self)
        self._poison: Control | None = None
        self._thread = threading.get_ident()

    def drive(self, operation: Operation) -> Any:
        """Performs an operation: its value, or what awaits it.

        A control exception that leaves it poisons the block.
        """
        raise AssertionError("BUG: a context without a colour")

    # --- what is known of it ---------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.execution.id

    @property
    def cancelled(self) -> bool:
        """Whether the run is to stop; the next operation will raise."""
        return self.execution.stop_wanted or self.is_stopped

    @property
    def state(self) -> Any:
        """The run's own state: the scope `workflow/<id>`."""
        return self.engine.state_of(self.execution.id)

    @property
    def progress(self) -> blocks.Progress:
        """What the run is doing now."""
        return blocks.progress_of(self.execution)

    # --- entering and leaving --------------------------------------------------------------------

    def enter(self, *, anywhere: bool = False) -> None:
        """Raises what this block is to be left with, if it is; else an operation may begin."""
        if threading.get_ident() != self._thread and not anywhere:
            raise UsageError(
                f'block "{self.block.path or "body"}" of run "{self.run_id}" was used by another '
                "thread than its own",
                hint="use ctx.parallel with ctx.branch: each branch gets a context of its own",
            )
        if self._poison is not None:
            self._note_swallowed(self._poison)
            raise self._poison
        if self.execution.is_closed and not self.is_stopped:
            raise UsageError(f'run "{self.run_id}" was left: its context is of no use any more')
        try:
            if self.is_stopped:
                raise Stopped("another branch decided the block")
            self.execution.check()
        except Control as control:
            raise self.poisoned(control) from None

    def still_wanted(self) -> None:
        """Raises, in any thread, if a long step of this block is to end: a process looks here."""
        run = self.execution
        if self.is_stopped:
            raise Stopped("another branch decided the block")
        run.check()
        if not run.is_sure():
            run.confirm()

    def here(self) -> None:
        """Makes the calling thread the block's own."""
        self._thread = threading.get_ident()

    def poisoned(self, control: Control) -> Control:
        """Remembers that the block is left, and returns what to raise."""
        if self._poison is None:
            self._poison = control
        return control

    @property
    def left_with(self) -> Control | None:
        """What the block is left with, whatever its body makes of it."""
        return self._poison or self.execution.poison

    def _note_swallowed(self, control: Control) -> None:
        where = passed_through(control) or calling_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self.execution.swallowed(self.block.path, where)

    def guarded(self, operation: Operation) -> Operation:
        """Runs an operation within another, as `drive` does: what it leaves with poisons."""
        try:
            return (yield from operation)
        except Control as control:
            self.poisoned(control)
            raise

    def close_block(self, block: Block) -> None:
        """Looks at what the pass through a block did not read: a note, or a divergence (rule 2)."""
        harmless, acts = block.leftovers()
        for entry in harmless:
            self.execution.note(entry.path, "it is in the journal, and the code did not ask for it")
        for entry in acts:
            raise self.unread(entry.path, f"{entry.kind} {entry.name}")

    def unread(self, path: str, expected: str) -> Control:
        """Parks the run for an act in the journal that the code no longer asks for."""
        found = f'the end of block "{self.block.path or "body"}"'
        return self.poisoned(self.execution.park_diverged(path, "unread", expected, found, ""))
