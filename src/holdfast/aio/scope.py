"""Scopes for asyncio. Small writes go from the loop into the group-commit queue."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, KeysView, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from holdfast.aio.following import AsyncSubscribed, subscribe_in
from holdfast.aio.loop import Loop, Reading
from holdfast.aio.mirror import Mirror, like, mirror, mirror_read, mirror_steps
from holdfast.aio.record import AsyncFacts, AsyncMemory, AsyncMessages, AsyncTasks, deciding
from holdfast.core import tree
from holdfast.core.arguments import (
    Path,
    check_call,
    check_path,
    check_text,
    check_whole,
    update_ops,
)
from holdfast.core.commit import CommitResult, ProposedCommit, StreamWrite
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.draft import Draft
from holdfast.core.event import Checkpoint, Moment, StreamState, to_datetime
from holdfast.core.log import scope_stream
from holdfast.core.page import Page
from holdfast.core.retry import RETRIES
from holdfast.core.tree import Map, Op
from holdfast.errors import HoldfastError
from holdfast.names import check_name
from holdfast.record.audit import Audit, Comparison, StatePath, TrialOutcome, TrialRun
from holdfast.record.decisions import check_effect
from holdfast.record.difference import Difference, Restored
from holdfast.record.message_events import Message
from holdfast.record.sessions import SessionStatus
from holdfast.scope import S_co, Scope, ScopeDecisions, ScopeLife, ScopeSession

T = TypeVar("T")
_logger = logging.getLogger("holdfast.aio")
_QUEUED = {"expected", "key", "checkpoint"}
"""The options with which a write goes straight into the queue, without a thread."""


class AsyncScope(Mirror[Scope[S_co]], Generic[S_co]):
    """One scope of an AsyncStore; see `Scope` for what each method does."""

    def __init__(self, loop: Loop, scope: Scope[S_co]) -> None:
        super().__init__(loop, scope)
        self.level = scope.level
        self.name = scope.name

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from holdfast.renamed import SCOPE, no_attribute

            raise no_attribute("a scope", name, SCOPE)

    @property
    def id(self) -> str | None:
        """The id as it was given.

        If the scope was opened by a name with a digest, this reads the id and blocks meanwhile.
        """
        return self.sync.id

    # --- reading: what memory can answer does not leave the loop ----------------------------------

    async def _newest(self) -> StreamState:
        log = self._loop.log
        folded = log.peek(self.name)
        return folded if folded is not None else await self._loop.hop(log.newest, self.name)

    async def _state(self) -> Map:
        return self._loop.log.show(await self._newest(), self.name)

    def _reading(self, of: Callable[[StreamState], T]) -> Reading[T]:
        """Returns an attribute to await that is computed from the newest state."""

        async def read() -> T:
            return of(await self._newest())

        return Reading(read)

    @property
    def state(self) -> Reading[Map]:
        return Reading(self._state)

    @property
    def typed(self) -> Reading[S_co]:
        value = self._loop.log.typed.value
        return self._reading(lambda found: cast("S_co", value(found, self.name)))

    @property
    def revision(self) -> Reading[int]:
        return self._reading(lambda found: found.revision)

    @property
    def parent(self) -> Reading[AsyncScope | None]:
        async def read() -> AsyncScope | None:
            parent = await self._loop.hop(lambda: self.sync.parent)
            return None if parent is None else AsyncScope(self._loop, parent)

        return Reading(read)

    @property
    def subject(self) -> Reading[str | None]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.subject))

    async def get(self, path: Path, default: Any = None) -> Any:
        return tree.get(await self._state(), check_path(path), default)

    async def keys(self) -> KeysView[str]:
        return (await self._state()).keys()

    lookup = mirror_read(Scope.lookup)
    at = mirror_read(Scope.at)
    checkpoints = mirror_read(Scope.checkpoints)
    history = mirror_steps(Scope.history)
    states = mirror_steps(Scope.states)

    async def diff(
        self, since: Moment, until: Moment | None = None, *, raw: bool = False
    ) -> Difference:
        return await self._loop.hop(lambda: self.sync.diff(since, until, raw=raw).load())

    # --- writing ----------------------------------------------------------------------------------

    @like(Scope.set)
    async def set(self, path: Path, value: Any, **options: Any) -> int:
        if options.keys() <= _QUEUED:
            return await self._change([tree.set_op(path, value)], **options)
        return await self._loop.hop_shielded(self.sync.set, path, value, **options)

    @like(Scope.update)
    async def update(self, values: Any, **options: Any) -> int:
        if options.keys() <= _QUEUED:
            return await self._change(update_ops(values), **options)
        return await self._loop.hop_shielded(self.sync.update, values, **options)

    @like(Scope.delete)
    async def delete(self, path: Path, **options: Any) -> int:
        if options.keys() <= _QUEUED:
            return await self._change([tree.delete_op(path)], **options)
        return await self._loop.hop_shielded(self.sync.delete, path, **options)

    @like(Scope.append)
    async def append(self, path: Path, item: Any, **options: Any) -> int:
        if options.keys() <= _QUEUED:
            return await self._change([tree.append_op(path, item)], **options)
        return await self._loop.hop_shielded(self.sync.append, path, item, **options)

    @like(Scope.increment)
    async def increment(self, path: Path, by: int | float = 1, **options: Any) -> int:
        if options.keys() <= _QUEUED:
            return await self._change([tree.increment_op(path, by)], **options)
        return await self._loop.hop_shielded(self.sync.increment, path, by, **options)

    async def checkpoint(self, name: str, *, expected: int | None = None) -> Checkpoint:
        name = check_name(name, "checkpoint name")
        written = await self._commit(scope_stream(self.sync).checkpoint_write(name, expected, None))
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
        change = function

        async def attempt() -> int:
            edit = AsyncEdit(self, key=key, checkpoint=checkpoint)
            async with edit as draft:
                change(draft)
            return edit.revision

        return self._loop.persist(check_whole(retries, "retries"), attempt)

    async def restore(
        self, to: Moment, *, expected: int | None = None, messages: bool = True
    ) -> Restored:
        return await self._loop.hop_shielded(
            lambda: _loaded(self.sync.restore(to, expected=expected, messages=messages))
        )

    async def undo(self) -> Restored:
        return await self._loop.hop_shielded(lambda: _loaded(self.sync.undo()))

    async def fork(self, id: str, *, at: Moment | None = None) -> AsyncScope:
        return AsyncScope(self._loop, await self._loop.hop_shielded(self.sync.fork, id, at=at))

    remove = mirror(Scope.remove)
    close = mirror(Scope.close)
    record = mirror(Scope.record)

    async def _change(
        self,
        ops: Sequence[Op],
        expected: int | None = None,
        key: str | None = None,
        checkpoint: str | None = None,
    ) -> int:
        make = scope_stream(self.sync).change_write
        for op in ops:
            if self._loop.log.blobs.is_large(op):
                write = await self._loop.hop(make, ops, expected, key, checkpoint)
                break
        else:
            write = make(ops, expected, key, checkpoint)
        return (await self._commit(write)).after[0].revision

    async def _commit(self, write: StreamWrite) -> CommitResult:
        return await self._loop.commit(ProposedCommit((write,)), _as_it_is)

    # --- records and subscriptions ----------------------------------------------------------------

    @property
    def life(self) -> AsyncLife:
        return AsyncLife(self._loop, self.sync.life, self)

    @property
    def session(self) -> AsyncSession:
        return AsyncSession(self._loop, self.sync.session)

    @property
    def decisions(self) -> AsyncScopeDecisions:
        return AsyncScopeDecisions(self._loop, self.sync.decisions)

    decide = deciding(Scope.decide)

    @property
    def messages(self) -> AsyncMessages:
        return AsyncMessages(self._loop, self.sync.messages)

    async def say(self, content: str, *, role: str = "user", subject: str | None = None) -> Message:
        return await self.messages.add(role, content, subject=subject)

    @property
    def facts(self) -> AsyncFacts:
        return AsyncFacts(self._loop, self.sync.facts)

    @property
    def tasks(self) -> AsyncTasks:
        return AsyncTasks(self._loop, self.sync.tasks)

    @property
    def memory(self) -> AsyncMemory:
        return AsyncMemory(self._loop, self.sync.memory)

    def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> AsyncSubscribed:
        return subscribe_in(self._loop, self.sync.subscribe, subscriber, on_error)


def async_scopes(loop: Loop, page: Page[Scope]) -> Page[AsyncScope]:
    """Returns a page of scopes for asyncio."""
    return Page([AsyncScope(loop, one) for one in page], more=page.more, cursor=page.cursor)


def _loaded(restored: Restored) -> Restored:
    """Reads what a restore changed, here in a thread, where waiting is allowed.

    The restore is durable already, so a read that fails must not look like a failed restore.
    """
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
        base = await self._scope._newest()
        self.revision = base.revision
        log = self._scope._loop.log
        self._draft = Draft(log.show(base, self._scope.name), log.blobs.read)
        return self._draft

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        if kind is None and self._draft.ops:
            self.revision = await self._scope._change(
                self._draft.ops, self.revision, self._key, self._checkpoint
            )
        return False


class AsyncLife(Mirror[ScopeLife]):
    """When a scope was last written to, when it ends, and an audit; see `ScopeLife`."""

    def __init__(self, loop: Loop, life: ScopeLife, scope: AsyncScope) -> None:
        super().__init__(loop, life)
        self._scope = scope

    @property
    def updated_at(self) -> Reading[datetime | None]:
        return self._scope._reading(lambda now: None if now.is_absent else to_datetime(now.time))

    @property
    def is_closed(self) -> Reading[bool]:
        return self._scope._reading(lambda now: now.closed_at > 0)

    @property
    def expires_at(self) -> Reading[datetime | None]:
        return self._scope._reading(lambda now: to_datetime(now.ends_us) if now.ends_us else None)

    ends_at = mirror_read(ScopeLife.ends_at)
    revision_at = mirror_read(ScopeLife.revision_at)
    touch = mirror(ScopeLife.touch)

    def audit(self) -> AsyncAudit:
        return AsyncAudit(self._loop, self.sync.audit())


Job = Callable[[AsyncScope], Awaitable[Any]]


class AsyncAudit(Mirror[Audit]):
    """What `scope.life.audit()` returns; see `Audit` for what each method does."""

    def __init__(self, loop: Loop, audit: Audit) -> None:
        super().__init__(loop, audit)
        self.name = audit.name

    async def __aenter__(self) -> AsyncAudit:
        self.sync.__enter__()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        return self.sync.__exit__()

    @property
    def reads(self) -> list[StatePath]:
        return self.sync.reads

    items = mirror(Audit.items)
    unread = mirror(Audit.unread)

    async def without(self, path: Path, job: Job) -> Comparison:
        check_call(job, "a job")
        place = await self._loop.hop(self.sync._check_item, path)
        whole = await self._attempt(job, place, with_it=True)
        return Comparison(place, whole, await self._attempt(job, place, with_it=False))

    async def _attempt(self, job: Job, item: StatePath, *, with_it: bool) -> TrialOutcome:
        attempt = await self._loop.hop_shielded(TrialRun, self.sync._scope, item, with_it=with_it)
        returned: Any = None
        failure: Exception | None = None
        try:
            returned = await job(AsyncScope(self._loop, attempt.scope))
        except Exception as raised:
            failure = raised
        except BaseException:
            await self._loop.hop_shielded(attempt.drop)
            raise
        return await self._loop.hop_shielded(attempt.end, returned, failure)


class AsyncSession(Mirror[ScopeSession]):
    """The session that a scope holds; see `ScopeSession`."""

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def status(self) -> Reading[SessionStatus]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.status))

    export = mirror(ScopeSession.export)


class AsyncScopeDecisions(Mirror[ScopeDecisions]):
    """The decisions, standing orders and catches of one scope; see `ScopeDecisions`."""

    list = mirror(ScopeDecisions.list)
    recall = mirror(ScopeDecisions.recall)
    catch = mirror(ScopeDecisions.catch)
    catches = mirror(ScopeDecisions.catches)
    catch_unrecorded = mirror(ScopeDecisions.catch_unrecorded)

    @asynccontextmanager
    async def effect(self, name: str) -> AsyncGenerator[None]:
        check_text(name, "an effect")
        scope = self.sync._scope
        await self._loop.hop_shielded(check_effect, scope._context, scope, name)
        yield
