"""Nodes for asyncio: walks in threads of their own, `async def` nodes on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.aio.loop import HOME, Loop, shielded
from holdfast.aio.scope import AsyncScope
from holdfast.nodes import process_node as process_node_sync
from holdfast.nodes.define import Graph, Node
from holdfast.nodes.process import Walk
from holdfast.nodes.resolve import Resolved
from holdfast.nodes.results import Artifact, NodeState
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.aio.store import AsyncStore

T = TypeVar("T")
WALKS = 32
"""How many walks a store makes at once; more of them wait."""


class AsyncWalk:
    """What `await store.process(…)` returns; see `Walk`. Only `resolve` is awaited."""

    def __init__(self, walks: AsyncWalks, walk: Walk) -> None:
        self._walks = walks
        self.sync = walk

    @property
    def graph(self) -> str:
        return self.sync.graph

    @property
    def scope(self) -> str:
        return self.sync.scope

    @property
    def states(self) -> Mapping[str, NodeState]:
        return self.sync.states

    @property
    def exhausted(self) -> tuple[str, ...]:
        return self.sync.exhausted

    @property
    def sequence(self) -> list[Artifact]:
        return self.sync.sequence

    @property
    def counts(self) -> dict[str, int]:
        return self.sync.counts

    def value(self, name: str) -> Any:
        return self.sync.value(name)

    def __getitem__(self, name: str) -> NodeState:
        return self.sync[name]

    async def resolve(self) -> Resolved:
        return await self._walks.hop(self.sync.resolve)

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"


class AsyncWalks:
    """The walks of one store. A walk holds a thread while its nodes run on the loop.

    So they have threads of their own: those that the rest of the store hops to stay free for what
    the nodes themselves await.
    """

    def __init__(self, loop: Loop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._threads: ThreadPoolExecutor | None = None

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not node.is_async:
            return node.function(*args, **kwargs)
        running = node.function(*args, **kwargs)
        return asyncio.run_coroutine_threadsafe(running, self._loop.nearest().loop).result()

    async def hop(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a walk in a thread; waits for its outcome, also when cancelled."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WALKS, thread_name_prefix="holdfast-walk")
        self._loop.check()
        context = copy_context()
        context.run(HOME.set, self._loop)
        future = self._loop.loop.run_in_executor(
            self._threads, lambda: context.run(function, *args, **kwargs)
        )
        return await shielded(future)

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
        name = scope.name if isinstance(scope, AsyncScope) else scope
        walk = await self.hop(
            self._store.process, graph, name, cache=cache, force=force, run=run, **inputs
        )
        return AsyncWalk(self, walk)

    def close(self) -> None:
        """Lets the threads go."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)


async def process_node(
    store: AsyncStore,
    graph: Graph,
    name: str,
    scope: AsyncScope | str,
    *,
    inputs: Mapping[str, Any] | None = None,
    cache: bool = True,
    force: bool = False,
) -> NodeState:
    """Returns the state of one node; see `holdfast.nodes.process_node`."""
    place = scope.name if isinstance(scope, AsyncScope) else scope
    return await store._walks.hop(
        process_node_sync,
        store._store,
        graph,
        name,
        place,
        inputs=inputs,
        cache=cache,
        force=force,
    )
