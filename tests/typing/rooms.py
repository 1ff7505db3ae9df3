"""A program that uses every room of a store, and type-checks: what each of them returns."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any, assert_type

import holdfast
from holdfast import aio
from holdfast.decisions import Catch
from holdfast.facts import Fact, Stale
from holdfast.git import Rewinds
from holdfast.nodes import StoredNode
from holdfast.projections import Projected
from holdfast.projects import Project
from holdfast.retention import Binned, ExpiryPolicy, Hold, Retention
from holdfast.runs import RunSummary
from holdfast.schemas import SchemaSummary
from holdfast.search import DanglingLink, Hit, IndexStatus, Rows
from holdfast.secrets import Mode
from holdfast.sessions import Session
from holdfast.store import Page
from holdfast.subjects import ErasureReceipt, Subject
from holdfast.views import Views
from holdfast.workers import GroupStatus, Held, HeldLease, Mark, Worker


@holdfast.node(version="1")
def doubled(ctx: holdfast.NodeContext, n: int) -> int:
    return 2 * n


@holdfast.run
def asks(ctx: holdfast.Context) -> str:
    name: str = ctx.wait("name")
    return name


@holdfast.projection(version=1)
def counted(state: holdfast.Draft, event: holdfast.Event) -> None:
    state["events"] = state.get("events", 0) + 1


GRAPH = holdfast.Graph("sums", [doubled])


def work(hf: holdfast.Store) -> None:
    red = hf.team("red")
    assert_type(hf.runs.start(asks, id="r1"), holdfast.Run[str])
    hf.runs.cancel("r1")
    assert_type(hf.runs.list(), Page[RunSummary])
    assert_type(red.tasks.add("write it", tags=["text"]), holdfast.Task)
    assert_type(hf.tasks.list(tag="text"), Page[holdfast.Task])
    decided = red.decide("ship it")
    assert_type(hf.decisions.close(decided.id, "shipped"), holdfast.Decision)
    assert_type(hf.decisions.list(incomplete=True), Page[holdfast.Decision])
    assert_type(hf.decisions.catches(), Page[Catch])
    assert_type(red.facts.state("price", 3, valid_for="1h"), Fact)
    assert_type(hf.facts.list(), Page[Fact])
    assert_type(hf.facts.stale(), list[Stale])
    assert_type(hf.sessions.list(), Page[Session])
    assert_type(hf.nodes.process(GRAPH, red, n=2)["doubled"].value, Any)
    assert_type(hf.nodes.list(), Page[StoredNode])
    assert_type(hf.projections.of(counted, over=red), Projected)


def look(hf: holdfast.Store) -> None:
    assert_type(hf.search.sql("SELECT 1"), Rows)
    assert_type(hf.search.status(), IndexStatus)
    assert_type(hf.search.resolve("task:1"), Hit | None)
    assert_type(hf.search.dangling_links(), list[DanglingLink])
    assert_type(hf.schemas.list(), list[SchemaSummary])
    assert_type(hf.workers.list(), Page[Worker])
    assert_type(hf.workers.leases(), Page[Held])
    assert_type(hf.workers.marks(), Page[Mark])
    assert_type(hf.workers.groups(), Page[GroupStatus])
    with hf.workers.lease("one at a time") as held:
        assert_type(held, HeldLease)


def care(hf: holdfast.Store) -> None:
    hf.retention.hold("team/red", "a request")
    assert_type(hf.retention.holds(), list[Hold])
    assert_type(hf.retention.preview(), Retention)
    assert_type(hf.retention.run(), Retention)
    assert_type(hf.retention.bin(), list[Binned])
    assert_type(hf.retention.expiry, dict[str, ExpiryPolicy])
    hf.team("green").set("name", "Ada", subject="ada")
    assert_type(hf.subjects.list(), list[Subject])
    assert_type(hf.subjects.erase("ada"), ErasureReceipt)
    assert_type(hf.secrets.rules, dict[str, Mode])
    try:
        hf.keys.status()
    except holdfast.UsageError as error:
        assert_type(error.message, str)


def show(hf: holdfast.Store, place: str) -> None:
    assert_type(hf.views(place, []), Views)
    assert_type(hf.git(place), Rewinds)
    assert_type(hf.project(place), Project)


async def use_async() -> None:
    async with await aio.open("memory:") as hf:
        assert_type(await hf.tasks.list(), Page[holdfast.Task])
        assert_type(await hf.workers.list(), Page[Worker])
        assert_type(await hf.retention.holds(), list[Hold])


def main() -> None:
    with holdfast.open("memory:") as hf, tempfile.TemporaryDirectory() as place:
        work(hf)
        look(hf)
        care(hf)
        show(hf, place)
    asyncio.run(use_async())
