"""Several scopes at once, for asyncio: a commit over them, and a view of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from operator import methodcaller
from typing import Any, Literal

from holdfast.aio.loop import Loop, shielded
from holdfast.aio.mirror import Mirror, like, plain
from holdfast.aio.record import (
    AsyncFacts,
    AsyncMessages,
    AsyncOpenDecision,
    AsyncTasks,
    AsyncTurn,
    deciding,
)
from holdfast.aio.scope import AsyncScope
from holdfast.core import tree
from holdfast.core.arguments import Duration, Path, check_path
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.own_event import OwnEvent
from holdfast.core.transaction import View, drop, finish, proposed_by
from holdfast.core.tree import Map
from holdfast.joint_commit import JointCommit, RecordingScope
from holdfast.record.decisions import Decision
from holdfast.scope import Scope


class AsyncPendingCommit:
    """What `async with hf.commit() as tx:` returns; see `JointCommit`.

    Reads of state inside the block are not awaited: they are answered from memory if possible, and
    block the loop if not. To avoid that, await the state of the scopes before. Recorders are
    awaited.
    """

    def __init__(self, loop: Loop, pending: JointCommit) -> None:
        self._loop = loop
        self._pending = pending
        self._proposed: ProposedCommit | None = None
        self._outcome: asyncio.Task[CommitResult] | None = None

    def scope(self, scope: AsyncScope) -> AsyncJointScope:
        return self._pending._pending_scope(scope.sync, partial(AsyncJointScope, self._loop))

    async def outcome(
        self, decision: AsyncOpenDecision | str, text: str, *, output: Any = None
    ) -> Decision:
        return await self._loop.hop_shielded(
            self._pending.outcome, plain(decision), text, output=output
        )

    def mark(
        self,
        index: str,
        key: str,
        *,
        due: int = 0,
        priority: int = 0,
        ttl_s: Duration | None = None,
    ) -> None:
        self._pending.mark(index, key, due=due, priority=priority, ttl_s=ttl_s)

    def clear(self, index: str, key: str) -> None:
        self._pending.clear(index, key)

    def watch(self, scope: AsyncScope) -> None:
        self._pending.watch(scope.sync)

    @property
    def news(self) -> dict[str, int]:
        return self._pending.news

    @property
    def result(self) -> CommitResult | None:
        return self._pending.result

    async def __aenter__(self) -> AsyncPendingCommit:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is not None:
            drop(self._pending)
        self._proposed = proposed_by(self._pending) if kind is None else None
        if self._proposed is not None:
            await self._loop.await_turn(self._proposed)
            self._outcome = self._loop.enqueue(self._proposed)
            if self._pending._waits:
                await self.wait()
        return False

    async def wait(self) -> CommitResult:
        if self._outcome is None or self._proposed is None or self.result is not None:
            return self._pending.wait()
        try:
            return await shielded(self._outcome)
        finally:
            # This runs for cancelled callers too, and once however many wait: if the commit is
            # durable, the handles that took part must know it.
            is_answered = self._outcome.done() and not self._outcome.cancelled()
            if is_answered and self._outcome.exception() is None and self.result is None:
                finish(self._pending, self._proposed, self._outcome.result())


class AsyncJointScope(RecordingScope):
    """One scope inside a joint commit; see `JointScope`. Its recorders are awaited."""

    def __init__(self, loop: Loop, joint: JointCommit, scope: Scope) -> None:
        super().__init__(joint, scope)
        self._loop = loop

    @property
    def messages(self) -> AsyncMessages:
        return AsyncMessages(self._loop, self._recorder().messages)

    @property
    def tasks(self) -> AsyncTasks:
        return AsyncTasks(self._loop, self._recorder().tasks)

    @property
    def facts(self) -> AsyncFacts:
        return AsyncFacts(self._loop, self._recorder().facts)

    decide = deciding(Scope.decide, of=methodcaller("_recorder"))

    @like(Scope.record)
    async def record(self, *args: Any, **options: Any) -> OwnEvent:
        return await self._loop.hop_shielded(self._recorder().record, *args, **options)

    def turn(self) -> AsyncTurn:
        return AsyncTurn(self._loop, self._let_go_on(self._recorder().messages.turn()))

    async def end_turn(self, turn: AsyncTurn) -> None:
        await self._loop.hop_shielded(self._end_turn, turn.sync)


class AsyncView(Mirror[View]):
    """A view of several scopes at one moment; see `View`."""

    def __init__(self, loop: Loop, view: View) -> None:
        super().__init__(loop, view)
        self.position = view.position

    def __repr__(self) -> str:
        return f"<AsyncView at {self.position}>"

    async def state(self, scope: AsyncScope) -> Map:
        return await self._loop.hop(self.sync.state, plain(scope))

    async def states(self, scopes: Iterable[AsyncScope | str]) -> dict[str, Map]:
        return await self._loop.hop(self.sync.states, [plain(scope) for scope in scopes])

    async def revision(self, scope: AsyncScope) -> int:
        return await self._loop.hop(self.sync.revision, plain(scope))

    async def get(self, scope: AsyncScope, path: Path, default: Any = None) -> Any:
        return tree.get(await self.state(scope), check_path(path), default)
