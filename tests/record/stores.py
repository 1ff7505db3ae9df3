"""A store of a test's own on every backend."""

from __future__ import annotations

from functools import cache
from itertools import count
from pathlib import Path

from tests.servers import postgresql, redis

DURABLE = ["files", "sqlite", "redis", "postgresql"]
ALL = ["memory", *DURABLE]

_numbers = count(1)


def new_url(backend: str, place: Path) -> str:
    """Returns the URL of a store that is not there yet; on disk it lies below `place`."""
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
