"""Nodes for asyncio: walks have separate threads; `async def` nodes run on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.aio.loop import Loop
from holdfast.aio.mirror import Mirror, mirror, plain
from holdfast.aio.scope import AsyncScope
from holdfast.nodes.define import Graph, Node
from holdfast.nodes.process import Walk
from holdfast.nodes.resolve import Resolved
from holdfast.nodes.results import Artifact, NodeState
from holdfast.nodes.room import NodesRoom
from holdfast.nodes.room import process_node as process_node_sync

if TYPE_CHECKING:
    from holdfast.aio.store import AsyncStore


class AsyncWalk(Mirror[Walk]):
    """What `await hf.nodes.process(…)` returns; see `Walk`. Only `resolve` is awaited."""

    def __init__(self, loop: Loop, walk: Walk) -> None:
        super().__init__(loop, walk)
        self.scope = walk.scope
        self.states = walk.states
        self.exhausted = walk.exhausted

    @property
    def graph(self) -> str:
        return self.sync.graph

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
        return await self._loop.walk(self.sync.resolve)


class AsyncNodesRoom(Mirror[NodesRoom]):
    """Walks graphs of nodes, and explains, accepts or invalidates results; see `NodesRoom`."""

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
        walk = await self._loop.walk(
            self.sync.process, graph, plain(scope), cache=cache, force=force, run=run, **inputs
        )
        return AsyncWalk(self._loop, walk)

    list = mirror(NodesRoom.list)
    why = mirror(NodesRoom.why)
    plan = mirror(NodesRoom.plan)
    accept = mirror(NodesRoom.accept)
    invalidate = mirror(NodesRoom.invalidate)
    forget = mirror(NodesRoom.forget)


def call_on(loop: Loop, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the function of a node; an async one runs on the loop that its walk came from."""
    made = node.function(*args, **kwargs)
    if not node.is_async:
        return made
    return asyncio.run_coroutine_threadsafe(made, loop.nearest().loop).result()


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
    return await store._loop.walk(
        process_node_sync,
        store.sync,
        graph,
        name,
        plain(scope),
        inputs=inputs,
        cache=cache,
        force=force,
    )
