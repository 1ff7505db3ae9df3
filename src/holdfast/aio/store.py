"""The store for asyncio; each method mirrors the one of `Store`."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, TypeVar, Unpack, overload

from holdfast.aio.commit import AsyncPendingCommit, AsyncView
from holdfast.aio.following import (
    AsyncSubscribed,
    follow_records,
    follow_scope,
    follow_store,
    subscribe_in,
)
from holdfast.aio.loop import Loop, Reading
from holdfast.aio.mirror import mirror, mirror_read, plain, shown_as
from holdfast.aio.nodes import call_on
from holdfast.aio.runs import RunTasks
from holdfast.aio.scope import AsyncScope, async_scopes
from holdfast.backends.protocol import Lease, Position
from holdfast.core.arguments import (
    Duration,
    check_alone,
    check_call,
    check_flag,
    check_timeout,
    check_whole,
)
from holdfast.core.dispatcher import OnError, Subscriber
from holdfast.core.event import Change, Event
from holdfast.core.kernel import Kernel, kernel_of
from holdfast.core.meta import Meta
from holdfast.core.observe import Observer, Tracer
from holdfast.core.page import PAGE_SIZE, Page
from holdfast.core.retry import RETRIES
from holdfast.errors import UsageError
from holdfast.names import CONVERSATION, TEAM, WORKFLOW
from holdfast.nodes.walk import Nodes, call_plainly
from holdfast.runs.engine import Engine
from holdfast.scratch import ScratchScope
from holdfast.store import S, Store

if TYPE_CHECKING:
    from holdfast.aio.care import (
        AsyncKeysRoom,
        AsyncRetentionRoom,
        AsyncSchemasRoom,
        AsyncSearchRoom,
        AsyncSecretsRoom,
        AsyncSubjectsRoom,
    )
    from holdfast.aio.nodes import AsyncNodesRoom
    from holdfast.aio.projections import AsyncProjectionsRoom
    from holdfast.aio.record import (
        AsyncDecisionsRoom,
        AsyncFactsRoom,
        AsyncSessionsRoom,
        AsyncTasksRoom,
    )
    from holdfast.aio.rewinds import AsyncRewinds
    from holdfast.aio.runs import AsyncRunsRoom
    from holdfast.aio.views import AsyncViews
    from holdfast.aio.workers import AsyncWorkersRoom
    from holdfast.views.directory import FileView

R = TypeVar("R")
THREADS = 4


class Terms(TypedDict, total=False):
    """The keyword arguments with which a scope may begin; see `Store.scope`."""

    parent: AsyncScope | None
    ttl_s: Duration | None
    slides: bool
    subject: str | None


class AsyncStores:
    """The open async stores over one store, the newest last."""

    def __init__(self, kernel: Kernel) -> None:
        self._engine = kernel.part(Engine)
        self._nodes = kernel.part(Nodes)
        self.open: list[AsyncStore] = []

    def attach(self) -> None:
        """Makes the newest one execute async runs and nodes that begin outside all their loops."""
        newest = self.open[-1] if self.open else None
        self._engine.launch_async = None if newest is None else newest._runs.launch
        self._nodes.call = call_plainly if newest is None else partial(call_on, newest._loop)


class AsyncStore:
    """A store for one event loop; see `Store` for what each method does.

    In any other loop its methods raise UsageError before anything is done. Use
    `holdfast.aio.over(store.sync)` to make another one for each loop.
    """

    def __init__(self, store: Store, executor: ThreadPoolExecutor, *, owns: bool = True) -> None:
        self.sync = store
        self._kernel = kernel_of(store)
        self._log = self._kernel.log
        self._loop = Loop(self._kernel, executor)
        self._owns = owns
        self._is_closed = False
        self._runs = RunTasks(self._loop)
        self._stores = self._kernel.part(AsyncStores)
        self._stores.open.append(self)
        self._stores.attach()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from holdfast.renamed import STORE, no_attribute

            raise no_attribute("a store", name, STORE)

    @property
    def url(self) -> str:
        return self.sync.url

    # --- scopes -----------------------------------------------------------------------------------

    def global_(self, schema: type[S] | None = None) -> AsyncScope[S]:
        return AsyncScope(self._loop, self.sync.global_(schema))

    @shown_as(Store.team)
    def team(self, id: str, schema: type[S] | None = None, **terms: Unpack[Terms]) -> AsyncScope[S]:
        return self.scope(TEAM, id, schema, **terms)

    @shown_as(Store.workflow)
    def workflow(
        self, id: str, schema: type[S] | None = None, **terms: Unpack[Terms]
    ) -> AsyncScope[S]:
        return self.scope(WORKFLOW, id, schema, **terms)

    @shown_as(Store.conversation)
    def conversation(
        self, id: str, schema: type[S] | None = None, **terms: Unpack[Terms]
    ) -> AsyncScope[S]:
        return self.scope(CONVERSATION, id, schema, **terms)

    @shown_as(Store.scope)
    def scope(
        self,
        level: str,
        id: str | None = None,
        schema: type[S] | None = None,
        **terms: Unpack[Terms],
    ) -> AsyncScope[S]:
        given: Any = {**terms, "parent": plain(terms.get("parent"))}
        return AsyncScope(self._loop, self.sync.scope(level, id, schema, **given))

    def scratch(self, id: str | None = None, *, parent: AsyncScope | None = None) -> ScratchScope:
        """Returns a scratch scope, which is not awaited: its calls never wait for anything."""
        return self.sync.scratch(id, parent=plain(parent))

    scopes = mirror_read(Store.scopes, async_scopes)

    # --- several at once --------------------------------------------------------------------------

    @overload
    def commit(
        self,
        *,
        key: str | None = None,
        lease: Lease | None = None,
        meta: Meta | None = None,
        time: datetime | None = None,
        waits: bool = True,
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
        waits: bool = True,
    ) -> AsyncPendingCommit | Awaitable[Any]:
        join = partial(self.sync.commit, key=key, lease=lease, meta=meta, time=time)
        if function is None:
            return AsyncPendingCommit(self._loop, join(waits=waits))
        check_call(function, "what commit is given")
        if not check_flag(waits, "waits"):
            raise UsageError("waits=False is for the block of a commit, not for a function")
        change = function

        async def attempt() -> Any:
            async with AsyncPendingCommit(self._loop, join()) as tx:
                answer = change(tx)
                return await answer if inspect.isawaitable(answer) else answer

        return self._loop.persist(check_whole(retries, "retries"), attempt)

    view = mirror_read(Store.view, AsyncView)

    def observe(self, observer: Observer, *, trace: Tracer | None = None) -> Callable[[], None]:
        return self.sync.observe(observer, trace=trace)

    # --- following --------------------------------------------------------------------------------

    @property
    def position(self) -> Reading[Position]:
        return Reading(lambda: self._loop.hop(self._log.position))

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
            self.sync.events,
            before=before,
            after=after,
            limit=limit,
            scope=plain(scope),
            type=type,
            actor=actor,
            source=source,
            trust=trust,
            since=since,
            until=until,
            newest_first=newest_first,
        )

    @overload
    def follow(
        self,
        scope: AsyncScope | str,
        *,
        after: int | None = None,
        timeout_s: Duration | None = None,
    ) -> AsyncIterator[Change]: ...
    @overload
    def follow(
        self,
        *,
        after: Position | None = None,
        timeout_s: Duration | None = None,
        as_events: Literal[False] = False,
    ) -> AsyncIterator[Change]: ...
    @overload
    def follow(
        self,
        *,
        after: Position | None = None,
        timeout_s: Duration | None = None,
        as_events: Literal[True],
    ) -> AsyncIterator[Event]: ...
    def follow(
        self,
        scope: AsyncScope | str | None = None,
        *,
        after: Any = None,
        timeout_s: Duration | None = None,
        as_events: bool = False,
    ) -> AsyncIterator[Change] | AsyncIterator[Event]:
        left = check_timeout(timeout_s)
        if scope is not None:
            check_alone("a scope", as_events=as_events)
            since = None if after is None else check_whole(after, "after")
            name = scope.name if isinstance(scope, AsyncScope) else scope
            return follow_scope(self._loop, self.scope(name).name, since, left)
        begin = None if after is None else self._log.routes.position(after)
        if not check_flag(as_events, "as_events"):
            return follow_store(self._loop, begin, left)
        records = follow_records(self._loop, begin, left)
        return (self._log.event(record) async for record in records)

    def subscribe(
        self, subscriber: Subscriber, *, on_error: OnError | None = None
    ) -> AsyncSubscribed:
        return subscribe_in(self._loop, self.sync.subscribe, subscriber, on_error)

    # --- questions --------------------------------------------------------------------------------

    query = mirror(Store.query)
    context = mirror(Store.context)
    undo = mirror(Store.undo)

    # --- rooms ------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> AsyncRunsRoom:
        from holdfast.aio.runs import AsyncRunsRoom

        return AsyncRunsRoom(self._loop, self.sync.runs)

    @cached_property
    def tasks(self) -> AsyncTasksRoom:
        from holdfast.aio.record import AsyncTasksRoom

        return AsyncTasksRoom(self._loop, self.sync.tasks)

    @cached_property
    def decisions(self) -> AsyncDecisionsRoom:
        from holdfast.aio.record import AsyncDecisionsRoom

        return AsyncDecisionsRoom(self._loop, self.sync.decisions)

    @cached_property
    def facts(self) -> AsyncFactsRoom:
        from holdfast.aio.record import AsyncFactsRoom

        return AsyncFactsRoom(self._loop, self.sync.facts)

    @cached_property
    def sessions(self) -> AsyncSessionsRoom:
        from holdfast.aio.record import AsyncSessionsRoom

        return AsyncSessionsRoom(self._loop, self.sync.sessions)

    @cached_property
    def nodes(self) -> AsyncNodesRoom:
        from holdfast.aio.nodes import AsyncNodesRoom

        return AsyncNodesRoom(self._loop, self.sync.nodes)

    @cached_property
    def projections(self) -> AsyncProjectionsRoom:
        from holdfast.aio.projections import AsyncProjectionsRoom

        return AsyncProjectionsRoom(self._loop, self.sync.projections)

    @cached_property
    def search(self) -> AsyncSearchRoom:
        from holdfast.aio.care import AsyncSearchRoom

        return AsyncSearchRoom(self._loop, self.sync.search)

    @cached_property
    def retention(self) -> AsyncRetentionRoom:
        from holdfast.aio.care import AsyncRetentionRoom

        return AsyncRetentionRoom(self._loop, self.sync.retention)

    @cached_property
    def subjects(self) -> AsyncSubjectsRoom:
        from holdfast.aio.care import AsyncSubjectsRoom

        return AsyncSubjectsRoom(self._loop, self.sync.subjects)

    @cached_property
    def keys(self) -> AsyncKeysRoom:
        from holdfast.aio.care import AsyncKeysRoom

        return AsyncKeysRoom(self._loop, self.sync.keys)

    @cached_property
    def secrets(self) -> AsyncSecretsRoom:
        from holdfast.aio.care import AsyncSecretsRoom

        return AsyncSecretsRoom(self._loop, self.sync.secrets)

    @cached_property
    def schemas(self) -> AsyncSchemasRoom:
        from holdfast.aio.care import AsyncSchemasRoom

        return AsyncSchemasRoom(self._loop, self.sync.schemas)

    @cached_property
    def workers(self) -> AsyncWorkersRoom:
        from holdfast.aio.workers import AsyncWorkersRoom

        return AsyncWorkersRoom(self._loop, self.sync.workers)

    # --- directories ------------------------------------------------------------------------------

    def views(
        self,
        directory: str | os.PathLike[str],
        views: Sequence[FileView],
        *,
        person: str | None = None,
    ) -> AsyncViews:
        from holdfast.aio.views import AsyncViews

        return AsyncViews(self._loop, self.sync.views(directory, views, person=person))

    def git(self, work_tree: str | os.PathLike[str] = ".") -> AsyncRewinds:
        from holdfast.aio.rewinds import AsyncRewinds

        return AsyncRewinds(self._loop, self.sync.git(work_tree))

    def project(self, directory: str | os.PathLike[str] = ".") -> NoReturn:
        raise UsageError(
            "a coordinator has a thread of its own: a project is used through holdfast.open()",
            hint="open the store again, in a thread that may wait",
        )

    # --- looking after it -------------------------------------------------------------------------

    recover = mirror(Store.recover)
    stale = mirror(Store.stale)
    check = mirror_read(Store.check)
    status = mirror_read(Store.status)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._loop.check()
        self._is_closed = self._loop.is_left = True
        self._stores.open.remove(self)
        if self._stores.open:
            self._stores.attach()
        await self._runs.close()
        if self._owns:
            await self._loop.hop_shielded(self.sync.close)
        else:
            self._stores.attach()
        self._loop.close()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore {self.url}>"


@contextmanager
def looping(store: Store) -> Generator[Store]:
    """Lets a store execute `async def` runs in a separate thread with its event loop.

    The store is closed at the end. The caller's thread stays free, so an interrupt reaches it at
    once.
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
