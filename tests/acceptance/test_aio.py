"""The async skin: parity with the sync API, shielded writes, one hop per batch."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast import ConflictError, Store, UsageError, aio
from holdfast.aio.commit import AsyncJointScope, AsyncPendingCommit, AsyncView
from holdfast.aio.following import AsyncSubscribed
from holdfast.aio.nodes import AsyncWalk
from holdfast.aio.projections import AsyncProjected
from holdfast.aio.record import AsyncMemorySection, AsyncOpenDecision
from holdfast.aio.rewinds import AsyncRewinds
from holdfast.aio.runs import AsyncRun
from holdfast.aio.scope import AsyncAudit
from holdfast.aio.views import AsyncViews
from holdfast.aio.workers import AsyncGroup
from holdfast.backends.protocol import START
from holdfast.core.consumers import Group
from holdfast.core.dispatcher import Subscribed
from holdfast.core.listing import register_level
from holdfast.core.transaction import View
from holdfast.git.rewinds import Rewinds
from holdfast.joint_commit import JointCommit, JointScope
from holdfast.nodes.process import Walk
from holdfast.opening import open_store
from holdfast.projections.projected import Projected
from holdfast.record.audit import Audit
from holdfast.record.decisions import OpenDecision
from holdfast.record.memory import MemorySection
from holdfast.renamed import SCOPE, STORE
from holdfast.runs.engine import Run
from holdfast.scope import Scope
from holdfast.tenants import Tenants
from holdfast.views import Views

ROOMS = [
    "runs", "tasks", "decisions", "facts", "sessions", "nodes", "projections", "search",
    "retention", "subjects", "keys", "secrets", "schemas", "workers",
]  # fmt: skip
SCOPE_ROOMS = ["life", "session", "decisions", "messages", "tasks", "facts", "memory"]
SYNC_ONLY = {"count", "index", "work_tree"}


def public(cls: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers_static(cls)
        if not name.startswith("_") and name not in SYNC_ONLY
    }


@pytest.mark.parametrize(
    ("sync", "async_"),
    [
        (Store, aio.AsyncStore),
        (Scope, aio.AsyncScope),
        (MemorySection, AsyncMemorySection),
        (OpenDecision, AsyncOpenDecision),
        (Audit, AsyncAudit),
        (JointCommit, AsyncPendingCommit),
        (JointScope, AsyncJointScope),
        (View, AsyncView),
        (Views, AsyncViews),
        (Run, AsyncRun),
        (Walk, AsyncWalk),
        (Projected, AsyncProjected),
        (Group, AsyncGroup),
        (Rewinds, AsyncRewinds),
        (Subscribed, AsyncSubscribed),
        (Tenants, aio.AsyncTenants),
    ],
)
def test_parity_of_names_and_parameters(sync: type, async_: type) -> None:
    check_parity(sync, async_)


@pytest.mark.parametrize("room", ROOMS)
def test_parity_of_the_rooms_of_a_store(room: str) -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            assert getattr(hf, room) is getattr(hf, room)
            assert repr(getattr(hf, room)).startswith("<Async")
            check_parity(type(getattr(hf.sync, room)), type(getattr(hf, room)))

    asyncio.run(main())


@pytest.mark.parametrize("room", SCOPE_ROOMS)
def test_parity_of_the_rooms_of_a_scope(room: str) -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            chat = hf.conversation("c")
            check_parity(type(getattr(chat.sync, room)), type(getattr(chat, room)))

    asyncio.run(main())


def test_open_takes_what_the_sync_one_takes() -> None:
    ours = inspect.signature(open_store).parameters
    theirs = dict(inspect.signature(aio.open).parameters)
    del theirs["threads"]
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_an_old_name_is_told_the_new_one() -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            for name, new in STORE.items():
                if name not in ROOMS:
                    with pytest.raises(
                        AttributeError, match=rf"'{name}' any more: it is {re.escape(new)}"
                    ):
                        getattr(hf, name)
            for name, new in SCOPE.items():
                with pytest.raises(
                    AttributeError, match=rf"'{name}' any more: it is {re.escape(new)}"
                ):
                    getattr(hf.team("t"), name)
            with pytest.raises(AttributeError, match="a store has no attribute 'nonsense'"):
                hf.nonsense  # noqa: B018  # pyright: ignore

    asyncio.run(main())


def check_parity(sync: type, async_: type) -> None:
    ours, theirs = public(sync), public(async_)
    assert set(ours) <= set(theirs)
    assert set(theirs) - {"result", "stored"} <= set(ours)
    for name, member in ours.items():
        assert isinstance(member, property) == isinstance(theirs[name], property), name
        if inspect.isfunction(member):
            mine = [(p.name, p.kind, p.default) for p in parameters(member)]
            other = [(p.name, p.kind, p.default) for p in parameters(theirs[name])]
            assert mine == other, name


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[1:]


def run(url: str, body: Callable[[aio.AsyncStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            await body(hf)

    asyncio.run(main())


async def listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def test_everything_a_scope_does(url: str) -> None:
    """VIC-15: in asyncio as in sync code."""

    async def body(hf: aio.AsyncStore) -> None:
        team = hf.team("t")
        chat = hf.conversation("c", parent=team)
        await team.set("model", "m")
        assert await chat.set("a", 1) == 1 + 1  # the parent was recorded first
        await chat.update({"b": {"x": 1}, "n": 5})
        await chat.append("l", "one")
        await chat.increment("n", 2)
        await chat.delete("a")
        async with chat.edit() as draft:
            draft["b"]["x"] += 1
        await chat.edit(lambda draft: draft.update(done=True))
        assert await chat.state == {"b": {"x": 2}, "n": 7, "l": ["one"], "done": True}
        assert (await chat.state).to_dict() == await chat.state
        assert await chat.get(("b", "x")) == 2
        assert await chat.lookup("model") == "m"
        assert (await chat.parent).name == "team/t"  # pyright: ignore
        mark = await chat.checkpoint("here")
        await chat.set("n", 0)
        assert [c.path for c in await chat.diff(mark)] == [("n",)]
        assert list((await chat.diff(mark)).keys()) == ["n"]
        await chat.restore("here")
        assert await chat.get("n") == 7
        await chat.undo()
        assert await chat.get("n") == 0
        fork = await chat.fork("f", at=mark)
        assert (await fork.state)["n"] == 7
        assert [c.name for c in await chat.checkpoints()] == ["here"]
        assert len(await listed(chat.history())) == await chat.revision
        await fork.close()
        assert await fork.life.is_closed
        assert await chat.life.revision_at("here") == mark.revision
        assert await chat.at(1) == {}

    run(url, body)


def test_everything_a_store_does(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        a, b = hf.conversation("a"), hf.workflow("b")
        lease = await hf.workers.lease("l", ttl_s=60)
        async with hf.commit(key="k", lease=lease) as tx:
            tx.scope(a).set("n", 1)
            tx.scope(b).set("n", 1)
            tx.mark("todo", "x")
            tx.watch(b)
        assert tx.news == {"workflow/b": 1}
        view = await hf.view()
        await a.set("n", 2)
        assert (await view.state(a), await view.revision(a)) == ({"n": 1}, 1)
        assert await view.get(b, "n") == 1
        assert [s.name for s in await hf.scopes("conversation")] == ["conversation/a"]
        assert [m.key for m in await hf.workers.claim("todo")] == ["x"]
        assert [m.key for m in await hf.workers.marks()] == ["x"]
        assert await hf.workers.renew(lease) is not None
        await hf.workers.release(lease)
        await hf.global_().set("g", 1)
        register_level(hf.sync._kernel, "deep", below="conversation")
        events = await listed(hf.follow(as_events=True, after=START, timeout_s=0))
        assert len(events) == 5  # the lease's epoch is an event too
        told = await listed(hf.follow(a, after=0, timeout_s=0))
        assert [(c.old, c.new) for c in told[1:]] == [(1, 2)]
        assert await hf.position > 0
        assert (await hf.check()).ok
        assert (await hf.status())["worker"] == hf.workers.own

    run(url, body)


def test_errors_arrive_at_their_own_caller(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")
        await chat.set("text", "x")
        answers = await asyncio.gather(
            chat.set("n", 1),
            chat.append("text", 1),
            chat.set("n", 2, expected=0),
            chat.set("m", 2),
            return_exceptions=True,
        )
        kinds = [type(answer) for answer in answers]
        assert kinds == [int, UsageError, ConflictError, int]

    run(url, body)


def test_many_writers_share_syncs_and_lose_nothing(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        team = hf.team("t")
        sent = 0
        inner = hf._log._backend.commit

        def counted(commits: Any) -> Any:
            nonlocal sent
            sent += 1
            return inner(commits)

        hf._log._backend.commit = counted  # pyright: ignore

        async def writer(n: int) -> None:
            for i in range(10):
                await team.append("l", [n, i])

        await asyncio.gather(*[writer(n) for n in range(32)])
        items = await team.get("l")
        assert sorted(map(list, items)) == sorted([n, i] for n in range(32) for i in range(10))
        assert sent < 320 / 2

    run(url, body)


def test_a_cancelled_writer_is_told_only_when_the_outcome_is_known(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")
        await chat.set("n", 0)
        for n in range(1, 20):
            task = asyncio.ensure_future(chat.set("n", n))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await chat.get("n") == n

    run(url, body)


def test_subscribers_and_turns_hear_of_what_a_cancelled_writer_wrote(url: str) -> None:
    """What is durable is told, whoever waited for it."""

    async def cancelled(writing: Any) -> None:
        task = asyncio.ensure_future(writing)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")
        await chat.set("n", 0)
        heard: list[Any] = []
        told = chat.subscribe(lambda change: heard.append(change.new))
        await cancelled(chat.set("n", 1))
        async with hf.commit(waits=False) as tx:
            tx.scope(chat).set("n", 2)
        await cancelled(tx.wait())
        await asyncio.gather(tx.wait(), tx.wait())
        assert await told.drain()
        assert heard == [1, 2]
        turn = chat.messages.turn()
        await cancelled(turn.add("user", "one"))
        await turn.add("user", "two")
        await turn.end()
        [seen] = await chat.messages.turns()
        assert seen.status == "completed"
        types = [event.type async for event in chat.history()]
        assert types.count("turn.begun") == 1

    run(url, body)


def test_what_a_cancelled_caller_never_got_is_given_back(url: str) -> None:
    """A lease that nobody has would be kept for ever; a decision says why it is open."""

    async def cancelled(entering: Any, *, after: int) -> None:
        async def enter() -> None:
            async with entering:
                await asyncio.sleep(3600)

        task = asyncio.ensure_future(enter())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def body(hf: aio.AsyncStore) -> None:
        chat = hf.conversation("c")
        for after in range(1, 12):
            await cancelled(hf.workers.lease("one"), after=after)
            held = [one.name for one in await hf.workers.leases()]
            assert [name for name in held if not name.startswith("worker/")] == []
            await cancelled(chat.decide("ship it"), after=after)
        left = await hf.decisions.list(incomplete=True)
        assert all((one.error or "").startswith("CancelledError") for one in left)

    run(url, body)


def test_a_follower_wakes_without_a_thread(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        team = hf.team("t")
        await team.set("n", 0)
        got: list[Any] = []

        async def follow() -> None:
            async for change in hf.follow(team, after=1):
                got.append(change.new)
                if change.new == 3:
                    return

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(0)
        for n in (1, 2, 3):
            await team.set("n", n)
        await asyncio.wait_for(task, 10)
        assert got == [1, 2, 3]

    run(url, body)


def test_import_holdfast_loads_neither_asyncio_nor_a_backend() -> None:
    import subprocess
    import sys

    code = (
        "import sys, holdfast;"
        "loaded = [m for m in sys.modules if m == 'asyncio' or m in"
        " ('holdfast.backends.memory', 'holdfast.backends.sqlite', 'holdfast.backends.files',"
        " 'apsw', 'zstandard', 'cryptography')];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reprs_name_store_and_scope(url: str) -> None:
    async def body(hf: aio.AsyncStore) -> None:
        assert repr(hf) == f"<AsyncStore {hf.url}>"
        assert repr(hf.team("t")) == "<AsyncScope team/t>"

    run(url, body)
    assert holdfast.open is not aio.open


def test_bad_arguments_of_asyncio_are_refused_as_they_are_of_the_sync_api() -> None:
    async def main() -> None:
        async with await aio.open("memory:") as store:
            chat = store.conversation("c")
            await chat.set("a", 1)
            with pytest.raises(UsageError, match="is a function, found 5"):
                await chat.edit(5)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="retries"):
                await chat.edit(lambda draft: None, retries=-1)
            with pytest.raises(UsageError, match="checkpoint name"):
                await chat.checkpoint(None)  # type: ignore[arg-type]
            assert await chat.revision == 1

    asyncio.run(main())
