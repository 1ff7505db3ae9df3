"""The store for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, overload

from holdfast.agents.command import Command
from holdfast.agents.protocol import Executor
from holdfast.aio.loop import Loop, Reading, shielded
from holdfast.aio.nodes import AsyncWalk, AsyncWalks
from holdfast.aio.projections import AsyncProjected
from holdfast.aio.record import AsyncGroup, AsyncJointScope, AsyncOpenDecision, mirror
from holdfast.aio.rewinds import AsyncRewinds
from holdfast.aio.runs import AsyncRun, AsyncRuns
from holdfast.aio.scope import AsyncScope
from holdfast.aio.views import AsyncViews
from holdfast.backends.protocol import START, Lease, Mark, Position, Record
from holdfast.core import tree
from holdfast.core.arguments import (
    Duration,
    Path,
    check_call,
    check_path,
    check_seconds,
    check_timeout,
    check_whole,
    name_of,
)
from holdfast.core.check import Report
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.consumers import LOOK_S, Follower, GroupStatus, Start, StoreFollower
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.encryption import KeyStatus
from holdfast.core.event import Change, Event
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.leases import PAUSE_S, PAUSE_S_MAX, HeldLease, Worker
from holdfast.core.log import READ_CHUNK
from holdfast.core.meta import Meta
from holdfast.core.migrate import Migration
from holdfast.core.observe import Observer, Tracer
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.core.redaction import Mode
from holdfast.core.retention import GRACE_S, Binned, Hold, LetGo, Retention
from holdfast.core.retry import RETRIES
from holdfast.core.store_key import StoreKey
from holdfast.core.transaction import View
from holdfast.core.tree import Map
from holdfast.erasure import ErasureReceipt, Subject
from holdfast.errors import LeaseLostError, UsageError
from holdfast.joint_commit import JointCommit
from holdfast.nodes.define import Graph
from holdfast.nodes.walk import call_plainly
from holdfast.projections import Projection
from holdfast.query.form import Where
from holdfast.record.audit import Audit, Comparison, StatePath, TrialOutcome, TrialRun
from holdfast.record.decisions import Decision, PolicyMode
from holdfast.record.retention_policies import RetentionPolicy
from holdfast.runs import Run, RunFunction
from holdfast.scratch import ScratchScope
from holdfast.store import EXPIRES_S, S, Store
from holdfast.views.directory import FileView

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
Job = Callable[[AsyncScope], Awaitable[Any]]


class AsyncAudit:
    """What `store.audit(scope)` returns; see `Audit` for what each method does."""

    def __init__(self, loop: Loop, audit: Audit) -> None:
        self._loop = loop
        self.sync = audit
        self.name = audit.name

    def __repr__(self) -> str:
        return f"<AsyncAudit of {self.name}>"

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


class AsyncPendingCommit:
    """What `async with store.commit() as tx:` hands out; see `JointCommit`.

    Inside it, reads of state come from memory where they can and block the loop where they cannot;
    scopes that were awaited before are in memory. Recorders are awaited.
    """

    def __init__(self, loop: Loop, pending: JointCommit, *, waits: bool = True) -> None:
        self._loop = loop
        self._pending = pending
        self._waits = waits
        self._proposed: ProposedCommit | None = None
        self._outcome: asyncio.Task[CommitResult] | None = None

    def scope(self, scope: AsyncScope) -> AsyncJointScope:
        return self._pending._pending_scope(scope.sync, partial(AsyncJointScope, self._loop))

    async def outcome(
        self, decision: AsyncOpenDecision | str, text: str, *, output: Any = None
    ) -> Decision:
        own = decision.sync if isinstance(decision, AsyncOpenDecision) else decision
        return await self._loop.hop_shielded(self._pending.outcome, own, text, output=output)

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
            self._pending._drop()
        self._proposed = self._pending._proposed() if kind is None else None
        if self._proposed is not None:
            await self._loop.await_turn(self._proposed)
            self._outcome = self._loop.enqueue(self._proposed)
            if self._waits:
                await self.wait()
        return False

    async def wait(self) -> CommitResult:
        if self._outcome is None or self._proposed is None or self.result is not None:
            return self._pending.wait()
        try:
            return await shielded(self._outcome)
        finally:
            # Also for who was cancelled, once for all who wait: what is durable is known to be.
            is_answered = self._outcome.done() and not self._outcome.cancelled()
            if is_answered and self._outcome.exception() is None and self.result is None:
                self._pending._finish(self._proposed, self._outcome.result())


class AsyncLease:
    """What `store.lease(…)` returns: to be awaited, or a block; see `HeldLease`."""

    def __init__(self, loop: Loop, take: Callable[[], HeldLease], wait_s: float) -> None:
        self._loop = loop
        self._take = take
        self._wait_s = wait_s
        self._held: HeldLease | None = None

    def __await__(self) -> Generator[Any, None, HeldLease]:
        return self._taken().__await__()

    async def _taken(self) -> HeldLease:
        """Takes the lease; waits in the loop, so that nobody else's calls are kept waiting."""
        until = self._loop.loop.time() + self._wait_s
        pause_s = PAUSE_S
        while True:
            try:
                return await self._loop.hop_shielded(self._take)
            except LeaseLostError:
                left_s = until - self._loop.loop.time()
                if left_s <= 0:
                    raise
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, PAUSE_S_MAX)

    async def __aenter__(self) -> HeldLease:
        self._held = await self._taken()
        await self._loop.hop_shielded(self._held.keep)
        self._held.fence()
        return self._held

    async def __aexit__(self, *_: object) -> None:
        assert self._held is not None, "BUG: a block that was not entered ends"
        self._held.unfence()
        await self._loop.hop_shielded(self._held.give_back)


class AsyncView:
    """Several scopes at one moment; see `View`."""

    def __init__(self, loop: Loop, view: View) -> None:
        self._loop = loop
        self._view = view
        self.position = view.position

    async def state(self, scope: AsyncScope) -> Map:
        return await self._loop.hop(self._view.state, scope.sync)

    async def revision(self, scope: AsyncScope) -> int:
        return await self._loop.hop(self._view.revision, scope.sync)

    async def get(self, scope: AsyncScope, path: Path, default: Any = None) -> Any:
        return tree.get(await self.state(scope), check_path(path), default)


def _giving_run(
    function: Callable[Concatenate[Any, P], Run[R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncRun[R]]]:
    """Returns the method for asyncio of one that gives a run."""

    @wraps(function)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun[R]:
        method = getattr(self._store, function.__name__)
        found = await self._loop.hop_shielded(method, *args, **kwargs)
        return AsyncRun(self._loop, found)

    return call


class AsyncPolicy:
    """What `store.policy(mode)` returns: await it, or use it as the block in which it applies."""

    def __init__(self, loop: Loop, mode: PolicyMode) -> None:
        self._loop = loop
        self._mode: PolicyMode = mode

    async def _set(self) -> AsyncPolicy:
        self._policy = await self._loop.hop_shielded(self._loop.store.policy, self._mode)
        return self

    def __await__(self) -> Generator[Any, None, AsyncPolicy]:
        return self._set().__await__()

    async def __aenter__(self) -> AsyncPolicy:
        return await self._set()

    async def __aexit__(self, *_: object) -> None:
        await self._loop.hop_shielded(self._policy.__exit__)


class AsyncStore:
    """A store for one event loop; see `Store` for what each method does.

    Used from another loop it refuses, before anything is done: `holdfast.aio.over(store.sync)`
    gives each loop one of its own.
    """

    def __init__(self, store: Store, executor: ThreadPoolExecutor, *, owns: bool = True) -> None:
        self._loop = Loop(store, executor)
        self._store = self.sync = store
        self._owns = owns
        self.url = store.url
        self.worker = store.worker
        self._log = store._log
        self.lease_keeper = store.lease_keeper
        self._engine = store._engine
        self._runs = AsyncRuns(self._loop, store._engine)
        self._walks = AsyncWalks(self._loop, store)
        self._is_closed = False
        store._async_stores.append(self)
        self._attach()

    def _attach(self) -> None:
        """Has async runs and nodes executed on this loop, unless they are begun from another."""
        self._engine.launch_async = self._runs.launch
        self._store._nodes.call = self._walks.call

    def global_(self, schema: type[S] | None = None) -> AsyncScope[S]:
        return AsyncScope(self._loop, self._store.global_(schema))

    def team(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: AsyncScope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> AsyncScope[S]:
        return self.scope(
            "team", id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
        )

    def workflow(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: AsyncScope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> AsyncScope[S]:
        return self.scope(
            "workflow", id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
        )

    def conversation(
        self,
        id: str,
        schema: type[S] | None = None,
        *,
        parent: AsyncScope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> AsyncScope[S]:
        return self.scope(
            "conversation", id, schema, parent=parent, ttl_s=ttl_s, slides=slides, subject=subject
        )

    def scope(
        self,
        level: str,
        id: str | None = None,
        schema: type[S] | None = None,
        *,
        parent: AsyncScope | None = None,
        ttl_s: Duration | None = None,
        slides: bool = False,
        subject: str | None = None,
    ) -> AsyncScope[S]:
        above = None if parent is None else parent.sync
        scope = self._store.scope(
            level, id, schema, parent=above, ttl_s=ttl_s, slides=slides, subject=subject
        )
        return AsyncScope(self._loop, scope)

    async def scopes(
        self,
        level: str | None = None,
        *,
        prefix: str = "",
        where: Mapping[str, Any] | Where | Sequence[Where] | None = None,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[AsyncScope]:
        page = await self._loop.hop(
            self._store.scopes, level, prefix=prefix, where=where, after=after, limit=limit
        )
        scopes = [AsyncScope(self._loop, scope) for scope in page]
        return Page(scopes, more=page.more, cursor=page.cursor)

    async def find(self, id: str) -> list[AsyncScope]:
        return [AsyncScope(self._loop, one) for one in await self._loop.hop(self._store.find, id)]

    async def states(self, scopes: Iterable[AsyncScope | str]) -> dict[str, Map]:
        names = [scope.name if isinstance(scope, AsyncScope) else scope for scope in scopes]
        return await self._loop.hop(self._store.states, names)

    def use_executor(self, executor: Executor | Command | None) -> None:
        self._store.use_executor(executor)

    def register_level(self, name: str, *, below: str, keep: bool = True) -> None:
        self._store.register_level(name, below=below, keep=keep)

    @overload
    def commit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> AsyncPendingCommit: ...
    @overload
    def commit(
        self,
        function: Callable[[AsyncPendingCommit], Awaitable[R]],
        *,
        retries: int = RETRIES,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> Awaitable[R]: ...
    @overload
    def commit(
        self,
        function: Callable[[AsyncPendingCommit], R],
        *,
        retries: int = RETRIES,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> Awaitable[R]: ...
    def commit(
        self,
        function: Callable[[AsyncPendingCommit], Any] | None = None,
        *,
        retries: int = RETRIES,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> AsyncPendingCommit | Awaitable[Any]:
        if function is None:
            return AsyncPendingCommit(
                self._loop, self._store.commit(key=key, lease=lease, meta=meta, time=time)
            )
        check_call(function, "what commit is given")
        return self._commit(function, check_whole(retries, "retries"), key, lease, meta, time)

    async def _commit(
        self,
        function: Callable[[AsyncPendingCommit], Any],
        retries: int,
        key: str | None,
        lease: Lease | None,
        meta: Meta | None,
        time: datetime | None,
    ) -> Any:
        async def attempt() -> Any:
            pending = self._store.commit(key=key, lease=lease, meta=meta, time=time)
            async with AsyncPendingCommit(self._loop, pending) as tx:
                answer = function(tx)
                return await answer if inspect.isawaitable(answer) else answer

        return await self._loop.persist(retries, attempt)

    def submit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
    ) -> AsyncPendingCommit:
        pending = self._store.submit(key=key, lease=lease, meta=meta, time=time)
        return AsyncPendingCommit(self._loop, pending, waits=False)

    def observe(self, observer: Observer, *, trace: Tracer | None = None) -> Callable[[], None]:
        return self._store.observe(observer, trace=trace)

    async def view(self) -> AsyncView:
        return AsyncView(self._loop, await self._loop.hop(self._store.view))

    @property
    def position(self) -> Reading[Position]:
        return Reading(lambda: self._loop.hop(lambda: self._store.position))

    async def events(
        self,
        *,
        before: Position | str | None = None,
        after: Position | str | None = None,
        limit: int | None = PAGE_SIZE,
        scope: AsyncScope | str | None = None,
        type: str | type[Any] | None = None,
        actor: str | None = None,
        source: str | None = None,
        trust: str | None = None,
        since: datetime | timedelta | str | float | None = None,
        until: datetime | timedelta | str | float | None = None,
        newest_first: bool = False,
    ) -> Page[Event]:
        return await self._loop.hop(
            self._store.events,
            before=before,
            after=after,
            limit=limit,
            scope=scope.sync if isinstance(scope, AsyncScope) else scope,
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            since=since,
            until=until,
            newest_first=newest_first,
        )

    async def follow_events(
        self, *, after: Position = START, timeout_s: Duration | None = 0
    ) -> AsyncIterator[Event]:
        newest = after = self._log.routes.position(after)
        left = check_timeout(timeout_s)

        def read() -> tuple[list[Record], list[Record]]:
            records = self._log.read_all(after=after, limit=READ_CHUNK)
            return records, self._log.opened(self._log.expiry.kept(records))

        while True:
            records, kept = await self._loop.hop(read)
            for record in kept:
                yield self._log.event(record)
            if records:
                after = records[-1].position
            elif newest > after:
                after = newest  # a commit that only sets marks has no record
            else:
                newest = await self._loop.wait_after(after, left)
                if newest <= after:
                    return

    async def follow(
        self,
        scope: AsyncScope | str,
        *,
        after: int | None = None,
        timeout_s: Duration | None = None,
    ) -> AsyncIterator[Change]:
        left = check_timeout(timeout_s)
        if after is not None:
            check_whole(after, "after")
        name = scope.name if isinstance(scope, AsyncScope) else scope
        follower = await self._loop.hop(Follower, self._log, self.scope(name).name, after)
        time = self._loop.loop.time
        began = time()
        while True:
            changes = await self._loop.hop(follower.news)
            if changes is not None:
                for change in changes:
                    yield change
                began = time()
                continue
            left_s = LOOK_S if left is None else left - (time() - began)
            if left_s <= 0:
                return
            await self._loop.wait_after(follower.position, min(left_s, LOOK_S))

    async def follow_changes(
        self, *, after: Position | None = None, timeout_s: Duration | None = None
    ) -> AsyncIterator[Change]:
        left = check_timeout(timeout_s)
        begin = await self.position if after is None else after
        follower = StoreFollower(self._log)
        async for event in self.follow_events(after=begin, timeout_s=left):
            for change in await self._loop.hop(follower.changes, event.record):
                yield change

    def project(self, directory: str | os.PathLike[str] = ".") -> NoReturn:
        raise UsageError(
            "a coordinator has a thread of its own: a project is used through holdfast.open()",
            hint="open the store again, in a thread that may wait",
        )

    def projected(
        self, projection: Projection, over: AsyncScope | str | None = None
    ) -> AsyncProjected:
        place = over.sync if isinstance(over, AsyncScope) else over
        return AsyncProjected(self._loop, self._store.projected(projection, place))

    def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> Callable[[], None]:
        return self._store.subscribe(
            self._loop.in_loop(subscriber), on_error=on_error and self._loop.in_loop(on_error)
        )

    async def drain(self, *, timeout_s: Duration = 30.0) -> bool:
        return await self._loop.hop(self._store.drain, timeout_s=timeout_s)

    def group(
        self,
        name: str,
        *,
        prefix: str = "",
        types: tuple[str, ...] | None = None,
        start: Start = "first",
        batch: int = 100,
        ttl_s: Duration = 30.0,
    ) -> AsyncGroup:
        group = self._store.group(
            name, prefix=prefix, types=types, start=start, batch=batch, ttl_s=ttl_s
        )
        return AsyncGroup(self._loop, group)

    async def groups(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[GroupStatus]:
        return await self._loop.hop(self._store.groups, after=after, limit=limit)

    def lease(
        self, name: str, *, ttl_s: Duration = 30.0, keep: bool = False, wait_s: Duration = 0.0
    ) -> AsyncLease:
        wait_s = check_seconds(wait_s, "wait_s", above=-1e-9)
        return AsyncLease(
            self._loop, partial(self._store.lease, name, ttl_s=ttl_s, keep=keep), wait_s
        )

    async def renew(self, lease: Lease, *, ttl_s: Duration = 30.0) -> Lease | None:
        return await self._loop.hop_shielded(self._store.renew, lease, ttl_s=ttl_s)

    async def release(self, lease: Lease) -> None:
        await self._loop.hop_shielded(self._store.release, lease)

    async def workers(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Worker]:
        return await self._loop.hop(self._store.workers, after=after, limit=limit)

    async def suspects(
        self, *, after: str | None = None, limit: int | None = PAGE_SIZE
    ) -> Page[Worker]:
        return await self._loop.hop(self._store.suspects, after=after, limit=limit)

    async def claim(self, index: str, *, n: int = 1, ttl_s: Duration = 30.0) -> list[Mark]:
        return await self._loop.hop_shielded(self._store.claim, index, n=n, ttl_s=ttl_s)

    async def marks(
        self,
        index: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = PAGE_SIZE,
    ) -> Page[Mark]:
        return await self._loop.hop(self._store.marks, index, after=after, limit=limit)

    leases = mirror(Store.leases, of="_store")

    decisions = mirror(Store.decisions, of="_store")
    decision = mirror(Store.decision, of="_store")
    outcome = mirror(Store.outcome, of="_store")
    prioritise = mirror(Store.prioritise, of="_store")
    recover = mirror(Store.recover, of="_store")
    stale = mirror(Store.stale, of="_store")
    tasks = mirror(Store.tasks, of="_store")
    sessions = mirror(Store.sessions, of="_store")
    catches = mirror(Store.catches, of="_store")

    query = mirror(Store.query, of="_store")
    similar = mirror(Store.similar, of="_store")
    context = mirror(Store.context, of="_store")
    boot = mirror(Store.boot, of="_store")
    resolve = mirror(Store.resolve, of="_store")
    dangling_links = mirror(Store.dangling_links, of="_store")
    sql = mirror(Store.sql, of="_store")
    refresh_tables = mirror(Store.refresh_tables, of="_store")
    index_status = mirror(Store.index_status, of="_store")
    rebuild_index = mirror(Store.rebuild_index, of="_store")
    undo = mirror(Store.undo, of="_store")
    guard_secrets = mirror(Store.guard_secrets, of="_store")

    @property
    def secrets(self) -> dict[str, Mode]:
        return self._store.secrets

    if TYPE_CHECKING:  # a decorator loses the parameters of the run's function

        @overload
        async def start(
            self, function: RunFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: RunFunction[..., R],
            /,
            *,
            id: str,
            if_exists: str = ...,
            queue: str | None = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: Callable[Concatenate[A, ...], R],
            first: A,
            /,
            *rest: Any,
            id: str,
            if_exists: str = ...,
            queue: str | None = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        @overload
        async def start(
            self,
            function: RunFunction[..., R],
            /,
            *args: Any,
            queue: str,
            id: str | None = ...,
            if_exists: str = ...,
            subject: str | None = ...,
            **kwargs: Any,
        ) -> AsyncRun[R]: ...
        async def start(self, function: Any, /, *args: Any, **kwargs: Any) -> Any: ...
    else:
        start = _giving_run(Store.start)
    resume = _giving_run(Store.resume)
    run = _giving_run(Store.run)
    fork = _giving_run(Store.fork)
    runs = mirror(Store.runs, of="_store")
    cancel = mirror(Store.cancel, of="_store")
    answer = mirror(Store.answer, of="_store")
    signal = mirror(Store.signal, of="_store")
    send = mirror(Store.send, of="_store")
    settle = mirror(Store.settle, of="_store")
    adopt = mirror(Store.adopt, of="_store")
    remove_run = mirror(Store.remove_run, of="_store")

    async def process(
        self,
        graph: Graph,
        scope: AsyncScope | str,
        /,
        *,
        cache: bool = True,
        force: bool | Collection[str] = False,
        run: str | None = None,
        **inputs: Any,
    ) -> AsyncWalk:
        return await self._walks.process(graph, scope, cache=cache, force=force, run=run, **inputs)

    nodes = mirror(Store.nodes, of="_store")
    why = mirror(Store.why, of="_store")
    plan = mirror(Store.plan, of="_store")
    accept = mirror(Store.accept, of="_store")
    invalidate = mirror(Store.invalidate, of="_store")
    forget_nodes = mirror(Store.forget_nodes, of="_store")

    def audit(self, scope: AsyncScope | str) -> AsyncAudit:
        name = scope.name if isinstance(scope, AsyncScope) else scope
        return AsyncAudit(self._loop, self._store.audit(name))

    def rewinds(self, work_tree: str | os.PathLike[str] = ".") -> AsyncRewinds:
        return AsyncRewinds(self._loop, self._store.rewinds(work_tree))

    def views(
        self,
        directory: str | os.PathLike[str],
        views: Sequence[FileView],
        *,
        person: str | None = None,
    ) -> AsyncViews:
        return AsyncViews(self._loop, self._store.views(directory, views, person=person))

    def policy(self, mode: PolicyMode) -> AsyncPolicy:
        return AsyncPolicy(self._loop, mode)

    async def expiry_policy(
        self, level: str, *, ttl_s: Duration | None = EXPIRES_S, slides: bool = True
    ) -> None:
        await self._loop.hop_shielded(self._store.expiry_policy, level, ttl_s=ttl_s, slides=slides)

    @property
    def expiry_policies(self) -> Reading[dict[str, ExpiryPolicy]]:
        return Reading(lambda: self._loop.hop(lambda: self._store.expiry_policies))

    async def close_policy(self, level: str, *, keep: bool) -> None:
        await self._loop.hop_shielded(self._store.close_policy, level, keep=keep)

    async def migrate(
        self,
        *,
        check: bool = False,
        dry_run: bool = False,
        to: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Migration:
        return await self._loop.hop_shielded(
            self._store.migrate, check=check, dry_run=dry_run, to=to, progress=progress
        )

    async def check(self, *, read_all: bool = True, expect: str | None = None) -> Report:
        return await self._loop.hop(self._store.check, read_all=read_all, expect=expect)

    async def retain(
        self,
        *,
        grace_s: float = GRACE_S,
        whole: bool = False,
        dry_run: bool = False,
        wait_s: float = 0.0,
        policies: Sequence[RetentionPolicy] | None = None,
    ) -> Retention:
        return await self._loop.hop(
            self._store.retain,
            grace_s=grace_s,
            whole=whole,
            dry_run=dry_run,
            wait_s=wait_s,
            policies=policies,
        )

    async def binned(self) -> list[Binned]:
        return await self._loop.hop(self._store.binned)

    async def unretain(self, scope: AsyncScope | str) -> int:
        return await self._loop.hop_shielded(self._store.unretain, name_of(scope))

    async def hold(self, scope: AsyncScope | str, reason: str | None = None) -> None:
        await self._loop.hop(self._store.hold, name_of(scope), reason)

    async def unhold(self, scope: AsyncScope | str) -> None:
        await self._loop.hop(self._store.unhold, name_of(scope))

    async def holds(self) -> list[Hold]:
        return await self._loop.hop(self._store.holds)

    async def let_go(self) -> list[LetGo]:
        return await self._loop.hop(self._store.let_go)

    def pseudonym(self, text: str) -> str:
        return self._store.pseudonym(text)

    async def key_status(self) -> KeyStatus:
        return await self._loop.hop(self._store.key_status)

    async def rotate_key(self) -> KeyStatus:
        return await self._loop.hop_shielded(self._store.rotate_key)

    async def rewrap_key(self, new: str | bytes | StoreKey) -> KeyStatus:
        return await self._loop.hop_shielded(self._store.rewrap_key, new)

    async def subjects(self) -> list[Subject]:
        return await self._loop.hop(self._store.subjects)

    async def subject(self, name: str) -> Subject:
        return await self._loop.hop(self._store.subject, name)

    async def hold_subject(self, name: str, reason: str | None = None) -> None:
        await self._loop.hop(self._store.hold_subject, name, reason)

    async def unhold_subject(self, name: str) -> None:
        await self._loop.hop(self._store.unhold_subject, name)

    async def erase(
        self,
        subject: str | None = None,
        *,
        scope: AsyncScope | str | None = None,
        match: str | None = None,
        ignore_case: bool = False,
        dry_run: bool = False,
        wait_s: float = 60.0,
    ) -> ErasureReceipt:
        return await self._loop.hop_shielded(
            self._store.erase,
            subject,
            scope=None if scope is None else name_of(scope),
            match=match,
            ignore_case=ignore_case,
            dry_run=dry_run,
            wait_s=wait_s,
        )

    async def finish_erasures(self, *, wait_s: float = 60.0) -> list[ErasureReceipt]:
        return await self._loop.hop_shielded(self._store.finish_erasures, wait_s=wait_s)

    async def erasures(self) -> list[dict[str, Any]]:
        return await self._loop.hop(self._store.erasures)

    def scratch(self, id: str | None = None, *, parent: AsyncScope | None = None) -> ScratchScope:
        """Returns a scope in memory; nothing that it does waits, so it is not awaited."""
        return self._store.scratch(id, parent=None if parent is None else parent.sync)

    async def status(self) -> dict[str, Any]:
        return await self._loop.hop(self._store.status)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._loop.check()
        self._is_closed = self._loop.is_left = True
        others: list[AsyncStore] = self._store._async_stores
        others.remove(self)
        if others:
            others[-1]._attach()
        await self._runs.close()
        self._walks.close()
        if self._owns:
            await self._loop.hop_shielded(self._store.close)
        elif not others:
            self._engine.launch_async = None
            self._store._nodes.call = call_plainly
        self._loop.executor.shutdown(wait=False)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore {self.url}>"


THREADS = 4


@contextmanager
def looping(store: Store) -> Generator[Store]:
    """Lets a store execute `async def` runs, on a loop of their own; closes the store at the end.

    The caller's thread stays free to look on, and an interrupt reaches it at once.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="holdfast-loop", daemon=True)
    thread.start()

    async def attach() -> AsyncStore:
        return AsyncStore(store, ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-aio"))

    attached = asyncio.run_coroutine_threadsafe(attach(), loop).result()
    try:
        yield store
    finally:
        asyncio.run_coroutine_threadsafe(attached.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
