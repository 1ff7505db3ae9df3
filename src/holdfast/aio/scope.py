"""Scopes, edits and joint commits for asyncio."""

from __future__ import annotations

import logging
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    ItemsView,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Generic, Literal, cast, overload

from holdfast.aio.loop import Loop, Reading
from holdfast.aio.record import (
    AsyncFacts,
    AsyncMemory,
    AsyncMessages,
    AsyncTasks,
    AsyncTurn,
    deciding,
    mirror,
)
from holdfast.core import tree
from holdfast.core.arguments import (
    Duration,
    Path,
    check_call,
    check_path,
    check_whole,
    update_ops,
)
from holdfast.core.commit import CommitResult, ProposedCommit, StreamWrite
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.draft import Draft
from holdfast.core.event import Checkpoint, Event, Moment, StreamState, to_datetime
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.core.past import StateAt
from holdfast.core.retry import RETRIES
from holdfast.core.tree import Map, Op
from holdfast.errors import HoldfastError
from holdfast.names import check_name
from holdfast.record.decisions import check_effect
from holdfast.record.difference import Difference, Restored
from holdfast.record.message_events import Message
from holdfast.record.sessions import SessionStatus
from holdfast.scope import S_co, Scope

_logger = logging.getLogger("holdfast.aio")


class AsyncScope(Generic[S_co]):
    """One scope of an AsyncStore; see `Scope` for what each method does."""

    def __init__(self, loop: Loop, scope: Scope[S_co]) -> None:
        self._loop = loop
        self.sync = scope
        self.level = scope.level
        self.name = scope.name

    @property
    def id(self) -> str | None:
        """The id as it was given. Of a scope that was opened by a name with a digest it is read."""
        return self.sync.id

    def __repr__(self) -> str:
        return f"<AsyncScope {self.name}>"

    async def _newest(self) -> StreamState:
        log = self._loop.store._log
        folded = log.peek(self.name)
        return folded if folded is not None else await self._loop.hop(log.newest, self.name)

    async def _state(self) -> Map:
        return self._loop.store._log.show(await self._newest(), self.name)

    @property
    def state(self) -> Reading[Map]:
        return Reading(self._state)

    @property
    def typed(self) -> Reading[S_co]:
        async def read() -> S_co:
            found = await self._newest()
            return cast("S_co", self._loop.store._log.typed.value(found, self.name))

        return Reading(read)

    @property
    def revision(self) -> Reading[int]:
        async def read() -> int:
            return (await self._newest()).revision

        return Reading(read)

    @property
    def expires_at(self) -> Reading[datetime | None]:
        async def read() -> datetime | None:
            ends = (await self._newest()).ends_us
            return to_datetime(ends) if ends else None

        return Reading(read)

    @property
    def updated_at(self) -> Reading[datetime | None]:
        async def read() -> datetime | None:
            folded = await self._newest()
            return to_datetime(folded.time) if not folded.is_absent else None

        return Reading(read)

    @property
    def is_closed(self) -> Reading[bool]:
        async def read() -> bool:
            return (await self._newest()).closed_at > 0

        return Reading(read)

    @property
    def parent(self) -> Reading[AsyncScope | None]:
        async def read() -> AsyncScope | None:
            parent = await self._loop.hop(lambda: self.sync.parent)
            return AsyncScope(self._loop, parent) if isinstance(parent, Scope) else None

        return Reading(read)

    @property
    def subject(self) -> Reading[str | None]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.subject))

    @property
    def status(self) -> Reading[SessionStatus]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.status))

    async def get(self, path: Path, default: Any = None) -> Any:
        return tree.get(await self._state(), check_path(path), default)

    async def lookup(self, path: Path, default: Any = None) -> Any:
        return await self._loop.hop(self.sync.lookup, path, default)

    async def to_dict(self) -> dict[str, Any]:
        return (await self._state()).to_dict()

    async def at(self, moment: Moment, *, raw: bool = False) -> Map:
        return await self._loop.hop(self.sync.at, moment, raw=raw)

    async def diff(
        self, since: Moment, until: Moment | None = None, *, raw: bool = False
    ) -> Difference:
        return await self._loop.hop(lambda: self.sync.diff(since, until, raw=raw).load())

    async def modified(self, since: Moment) -> list[str | int]:
        return await self._loop.hop(self.sync.modified, since)

    async def history(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        type: str | type[Any] | None = None,
        actor: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        removed: bool = False,
    ) -> AsyncIterator[Event]:
        events = self.sync.history(
            after=after,
            until=until,
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            removed=removed,
        )
        async for event in self._loop.steps(events):
            yield event

    async def states(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        newest_first: bool = False,
        removed: bool = False,
    ) -> AsyncIterator[StateAt]:
        found = await self._loop.hop(
            lambda: self.sync.states(
                after=after, until=until, newest_first=newest_first, removed=removed
            )
        )
        async for one in self._loop.steps(found):
            yield one

    async def checkpoints(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Checkpoint]:
        return await self._loop.hop(self.sync.checkpoints, after=after, limit=limit)

    async def ends_at(self, path: Path) -> datetime | None:
        return await self._loop.hop(self.sync.ends_at, path)

    async def revision_of(self, moment: Moment) -> int:
        return await self._loop.hop(self.sync.revision_of, moment)

    async def set(
        self,
        path: Path,
        value: Any,
        *,
        diff: bool = False,
        subject: str | None = None,
        ttl_s: Duration | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        if diff is not False or subject is not None or ttl_s is not None:
            return await self._loop.hop_shielded(
                self.sync.set,
                path,
                value,
                diff=diff,
                subject=subject,
                ttl_s=ttl_s,
                expected=expected,
                key=key,
                checkpoint=checkpoint,
            )
        op = tree.set_op(path, value)
        return await self._change([op], expected, key, checkpoint)

    async def replace_state(
        self,
        values: Mapping[str, Any],
        *,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        return await self._loop.hop_shielded(
            self.sync.replace_state, values, expected=expected, key=key, checkpoint=checkpoint
        )

    async def update(
        self,
        values: Mapping[str, Any],
        *,
        subject: str | None = None,
        ttl_s: Duration | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        if subject is not None or ttl_s is not None:  # whose key may have to be made
            return await self._loop.hop_shielded(
                self.sync.update,
                values,
                subject=subject,
                ttl_s=ttl_s,
                expected=expected,
                key=key,
                checkpoint=checkpoint,
            )
        return await self._change(update_ops(values), expected, key, checkpoint)

    async def delete(
        self,
        path: Path,
        *,
        missing_ok: bool = False,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        if missing_ok is not False:
            return await self._loop.hop_shielded(
                self.sync.delete,
                path,
                missing_ok=missing_ok,
                expected=expected,
                key=key,
                checkpoint=checkpoint,
            )
        return await self._change([tree.delete_op(path)], expected, key, checkpoint)

    async def append(
        self,
        path: Path,
        item: Any,
        *,
        subject: str | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        if subject is not None:
            return await self._loop.hop_shielded(
                self.sync.append,
                path,
                item,
                subject=subject,
                expected=expected,
                key=key,
                checkpoint=checkpoint,
            )
        op = tree.append_op(path, item)
        return await self._change([op], expected, key, checkpoint)

    async def increment(
        self,
        path: Path,
        by: int | float = 1,
        *,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        op = tree.increment_op(path, by)
        return await self._change([op], expected, key, checkpoint)

    async def set_default(
        self,
        path: Path,
        value: Any,
        *,
        subject: str | None = None,
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        return await self._loop.hop_shielded(
            self.sync.set_default,
            path,
            value,
            subject=subject,
            expected=expected,
            key=key,
            checkpoint=checkpoint,
        )

    async def pop(self, key: str, *default: Any) -> Any:
        return await self._loop.hop_shielded(self.sync.pop, key, *default)

    async def checkpoint(self, name: str, *, expected: int | None = None) -> Checkpoint:
        name = check_name(name, "checkpoint name")
        written = await self._commit(self.sync._checkpoint_write(name, expected, None))
        after = written.after[0]
        return Checkpoint(name, self.name, after.revision, to_datetime(after.time))

    @overload
    def edit(self, *, key: str | None = None, checkpoint: str | None = None) -> AsyncEdit: ...
    @overload
    def edit(
        self,
        function: Callable[[Draft], object],
        *,
        retries: int = RETRIES,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> Awaitable[int]: ...
    def edit(
        self,
        function: Callable[[Draft], object] | None = None,
        *,
        retries: int = RETRIES,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> AsyncEdit | Awaitable[int]:
        if function is None:
            return AsyncEdit(self, key=key, checkpoint=checkpoint)
        check_call(function, "what edit is given")
        return self._edit(function, check_whole(retries, "retries"), key, checkpoint)

    async def _edit(
        self,
        function: Callable[[Draft], object],
        retries: int,
        key: str | None,
        checkpoint: str | None,
    ) -> int:
        async def attempt() -> int:
            edit = AsyncEdit(self, key=key, checkpoint=checkpoint)
            async with edit as draft:
                function(draft)
            return edit.revision

        return await self._loop.persist(retries, attempt)

    async def keys(self) -> KeysView[str]:
        return (await self._state()).keys()

    async def values(self) -> ValuesView[Any]:
        return (await self._state()).values()

    async def items(self) -> ItemsView[str, Any]:
        return (await self._state()).items()

    async def restore(
        self, to: Moment, *, expected: int | None = None, messages: bool = True
    ) -> Restored:
        return await self._loop.hop_shielded(
            lambda: _loaded(self.sync.restore(to, expected=expected, messages=messages))
        )

    async def undo(self) -> Restored:
        return await self._loop.hop_shielded(lambda: _loaded(self.sync.undo()))

    async def remove(self, *, expected: int | None = None) -> int:
        return await self._loop.hop_shielded(self.sync.remove, expected=expected)

    async def fork(self, id: str, *, at: Moment | None = None) -> AsyncScope:
        return AsyncScope(self._loop, await self._loop.hop_shielded(self.sync.fork, id, at=at))

    export_session = mirror(Scope.export_session)
    touch = mirror(Scope.touch)

    async def close(
        self, *, keep: bool | None = None, export: str | os.PathLike[str] | None = None
    ) -> int:
        return await self._loop.hop_shielded(self.sync.close, keep=keep, export=export)

    decide = deciding(Scope.decide)
    recall = mirror(Scope.recall)
    catch = mirror(Scope.catch)
    catches = mirror(Scope.catches)
    catch_decisions = mirror(Scope.catch_decisions)

    @asynccontextmanager
    async def effect(self, name: str) -> AsyncGenerator[None]:
        await self._loop.hop_shielded(check_effect, self.sync._context, self.sync, name)
        yield

    @property
    def messages(self) -> AsyncMessages:
        return AsyncMessages(self._loop, self.sync.messages)

    async def say(self, content: str, *, role: str = "user", subject: str | None = None) -> Message:
        return await self.messages.add(role, content, subject=subject)

    def turn(self) -> AsyncTurn:
        return self.messages.turn()

    @property
    def facts(self) -> AsyncFacts:
        return AsyncFacts(self._loop, self.sync.facts)

    @property
    def tasks(self) -> AsyncTasks:
        return AsyncTasks(self._loop, self.sync.tasks)

    @property
    def memory(self) -> AsyncMemory:
        return AsyncMemory(self._loop, self.sync.memory)

    record = mirror(Scope.record)

    def subscribe(
        self,
        subscriber: Subscriber,
        *,
        on_error: OnError | None = None,
    ) -> Callable[[], None]:
        return self.sync.subscribe(
            self._loop.in_loop(subscriber), on_error=on_error and self._loop.in_loop(on_error)
        )

    async def _change(
        self, ops: Sequence[Op], expected: int | None, key: str | None, checkpoint: str | None
    ) -> int:
        make = self.sync._change_write
        for op in ops:
            if self._loop.store._log.blobs.is_large(op):
                write = await self._loop.hop(make, ops, expected, key, checkpoint)
                break
        else:
            write = make(ops, expected, key, checkpoint)
        return (await self._commit(write)).after[0].revision

    async def _commit(self, write: StreamWrite) -> CommitResult:
        return await self._loop.commit(ProposedCommit((write,)), _as_it_is)


def _loaded(restored: Restored) -> Restored:
    """Reads what a return did while a thread may wait for it; the return itself is durable."""
    try:
        return restored.load()
    except HoldfastError as error:
        _logger.debug("what a restore did is read when it is asked for: %s", error)
        return restored


def _as_it_is(written: CommitResult) -> CommitResult:
    return written


class AsyncEdit:
    """The block of `async with scope.edit() as draft:`."""

    def __init__(self, scope: AsyncScope, *, key: str | None, checkpoint: str | None) -> None:
        self._scope = scope
        self._key = key
        self._checkpoint = checkpoint
        self.revision = 0

    async def __aenter__(self) -> Draft:
        base = await self._scope._newest()  # pyright: ignore[reportPrivateUsage]
        self.revision = base.revision
        show = self._scope._loop.store._log.show  # pyright: ignore[reportPrivateUsage]
        self._draft = Draft(show(base, self._scope.name))
        return self._draft

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is None and self._draft.ops:
            self.revision = await self._scope._change(  # pyright: ignore[reportPrivateUsage]
                self._draft.ops, self.revision, self._key, self._checkpoint
            )
        return False
