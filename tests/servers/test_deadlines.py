"""A server that swallows what it is sent: every call ends by its own deadline, not by two (T12).

No time is measured. What is looked at is the deadline that each attempt was given: before, a thread
that had waited for another one's deadline was given a new one of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Store, UnavailableError
from holdfast.core.commit_queue import Request
from tests.servers import postgresql, redis
from tests.servers.proxy import Proxy

THREADS = 4


@pytest.fixture(params=["redis", "postgresql"])
def line(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    running: Any = (
        redis.server(redis.OLDEST)
        if request.param == "redis"
        else postgresql.server(postgresql.NEWEST)
    )
    name = request.node.name.split("[")[0][-30:]
    with Proxy(running.port) as proxy:
        yield proxy, running.tcp_url(application=name, port=proxy.port, timeout=1)


class Watched:
    """Notes when each commit of a store was asked for, and until when each attempt may last."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Request] = []
        self.attempts: list[float] = []
        backend: Any = store._log._backend
        queue, pool = store._log._queue, backend._checkout.pool

        def noted(sound: Callable[..., Any]) -> Callable[..., Any]:
            def call(*requests: Request) -> Any:
                self.requests += requests
                return sound(*requests)

            return call

        lend = pool._lend

        def lent(work: Any, deadline: float) -> Any:
            self.attempts.append(deadline)
            return lend(work, deadline)

        monkeypatch.setattr(queue, "commit", noted(queue.commit))
        monkeypatch.setattr(queue, "submit", noted(queue.submit))
        monkeypatch.setattr(pool, "_lend", lent)

    def check(self) -> None:
        asked = {request.deadline for request in self.requests}
        assert len(self.requests) == THREADS
        assert self.attempts
        assert set(self.attempts) <= asked, "an attempt was given time that no caller had"


def test_threads_on_a_hung_server_end_by_their_own_deadlines(
    line: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, url = line
    errors: list[UnavailableError] = []
    with holdfast.open(url) as store:
        scopes = [store.team(f"t{n}") for n in range(THREADS)]
        for scope in scopes:
            scope.set("n", 0)
        watched = Watched(store, monkeypatch)
        proxy.arm("black")

        def write(n: int) -> None:
            try:
                scopes[n].set("n", 1)
            except UnavailableError as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(THREADS)]
        threads[0].start()
        assert proxy.struck.wait(60)  # the first one leads by now, and hangs
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(120)
        proxy.heal()
        assert len(errors) == THREADS
        watched.check()
        known = sum(error.outcome_known for error in errors)
        written = sum(scope.get("n") == 1 for scope in scopes)
        assert written <= THREADS - known, "what was said not to be written is not there"


def test_asyncio_tasks_on_a_hung_server_end_by_their_own_deadlines(
    line: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, url = line

    async def main() -> None:
        async with await holdfast.aio.open(url) as store:
            scopes = [store.team(f"t{n}") for n in range(THREADS)]
            for scope in scopes:
                await scope.set("n", 0)
            watched = Watched(store.sync, monkeypatch)
            proxy.arm("black")
            tasks = [asyncio.ensure_future(scopes[0].set("n", 1))]
            while not proxy.struck.is_set():
                await asyncio.sleep(0.01)
            tasks += [asyncio.ensure_future(scope.set("n", 1)) for scope in scopes[1:]]
            found = await asyncio.gather(*tasks, return_exceptions=True)
            proxy.heal()
            assert all(isinstance(one, UnavailableError) for one in found), found
            watched.check()

    asyncio.run(main())
