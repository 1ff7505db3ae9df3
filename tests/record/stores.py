"""A new store for a test, on every backend."""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from holdfast import Store
from holdfast.errors import ExpiredError
from tests.servers import postgresql, redis

DURABLE = ["files", "sqlite", "redis", "postgresql"]
ALL = ["memory", *DURABLE]

_numbers = count(1)


def new_url(backend: str, place: Path) -> str:
    """Returns the URL of a store that does not exist yet; on disk it is below `place`."""
    number = next(_numbers)
    if backend == "memory":
        return "memory:"
    if backend == "files":
        return str(place / f"store-{number}")
    if backend == "sqlite":
        return f"sqlite:{place / f'store-{number}.db'}"
    if backend == "redis":
        return redis.server(next(iter(redis.installations()))).url(application=f"record-{number}")
    return _postgresql().url("record", application=f"record-{number}")


@cache
def _postgresql() -> postgresql.Server:
    running = postgresql.server(postgresql.NEWEST)
    running.create_database("record")
    return running


def begun_and_seen(hf: Store, ttl_s: float) -> tuple[Any, Any]:
    """Returns a scope with a task, and when it ends: later if it has ended before it was seen."""
    chat = hf.conversation(f"c{ttl_s}", ttl_s=ttl_s)
    try:
        chat.tasks.claim(chat.tasks.add("one").id)
        found, ends = [task.scope for task in hf.tasks.list()], chat.life.expires_at
    except ExpiredError:  # a slow machine
        return begun_and_seen(hf, 10 * ttl_s)
    assert found == [chat.name]
    return chat, ends
