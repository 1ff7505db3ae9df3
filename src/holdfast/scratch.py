"""Scratch scopes: state in the memory of this process, of which no store holds a byte (0042).

Each is a scope on a separate log in memory. So everything that a scope can do works here too, and
what was written goes with the log: nothing has to be deleted anywhere.
"""

from __future__ import annotations

from threading import Lock
from typing import Self

from holdfast.backends.registry import open_backend
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.commit_queue import Request, Waker
from holdfast.core.kernel import Kernel
from holdfast.core.layers import kept_with
from holdfast.core.log import WRITER, Log
from holdfast.names import CONVERSATION, GLOBAL, Levels, short_id
from holdfast.record.context import RecordContext
from holdfast.scope import Scope, Scopes

SCRATCH = "scratch"
"""The level of scratch scopes. No store has one."""


class ScratchLog(Log):
    """A log in memory whose commits are not part of the run that the caller is in.

    A run gives its commits a fence and keys, by which a replay finds what was written. Neither
    would mean anything here: nothing outlives the process, so a body that is replayed elsewhere
    writes its scratch again.
    """

    is_scratch = True

    def commit(self, proposed: ProposedCommit) -> CommitResult:
        """Commits in memory."""
        writer = WRITER.set(None)
        try:
            return super().commit(proposed)
        finally:
            WRITER.reset(writer)

    def submit(
        self, proposed: ProposedCommit, *, waker: Waker | None = None, context: object = None
    ) -> Request:
        """Queues a commit in memory."""
        writer = WRITER.set(None)
        try:
            return super().submit(proposed, waker=waker, context=context)
        finally:
            WRITER.reset(writer)


class ScratchScope(Scope):
    """A scope whose state is only in the memory of this process.

    Used as a block, it is dropped at the end of the block.
    """

    _outer: Scope | None = None
    """The global scope of the store that made it: where `lookup` ends."""
    _scratches: Scratches | None = None

    def drop(self) -> None:
        """Frees its memory; from now on the same id is an empty scope."""
        if self._scratches is not None:
            self._scratches.drop(self.name, self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def _sibling(self, name: str) -> Scope:
        if name == GLOBAL and self._outer is not None:
            return self._outer
        return super()._sibling(name)


class Scratches:
    """The scratch scopes of one handle, by name."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock = kernel.clock
        kernel.on_close(self.close)
        self._actor = kernel.log.actor
        self._outer = kernel.part(Scopes).scope(GLOBAL)
        self._mutex = Lock()
        self._contexts: dict[str, RecordContext] = {}
        self._levels = Levels()
        self._levels.register(SCRATCH, below=CONVERSATION)

    def get(self, id: str | None, parent: Scope | None) -> ScratchScope:
        """Returns the scratch scope with an id; without an id, a new one."""
        given = short_id(self._clock) if id is None else id
        _, stored = self._levels.check_scope(SCRATCH, given)
        with self._mutex:
            name = f"{SCRATCH}/{stored}"
            context = self._contexts.get(name)
            if context is None:
                context = self._contexts[name] = self._open()
        levels = self._levels
        scope = ScratchScope(context, SCRATCH, stored, levels=levels, parent=parent, given=given)
        scope._outer, scope._scratches = self._outer, self
        return scope

    def drop(self, name: str, context: RecordContext) -> None:
        """Drops a scratch scope, unless its name already belongs to a newer one."""
        with self._mutex:
            if self._contexts.get(name) is not context:
                return
            del self._contexts[name]
        context.lease_keeper.close()
        context.log.close()

    def close(self) -> None:
        """Drops all scratch scopes of the handle."""
        for name, context in list(self._contexts.items()):
            self.drop(name, context)

    def _open(self) -> RecordContext:
        backend, _ = open_backend(
            "memory:",
            levels=[],
            kept_with=kept_with(),
            clock=self._clock,
            durability="none",
            create=True,
            read_only=False,
        )
        log = ScratchLog(backend, clock=self._clock, actor=self._actor)
        kernel = Kernel(log, worker=short_id(self._clock), levels=self._levels)
        return kernel.part(RecordContext)
