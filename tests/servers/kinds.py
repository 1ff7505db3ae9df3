"""Stores of every kind for tests that go from one to another: real servers for two of the five."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast.backends.connection_pool import Loan
from tests.servers import postgresql, redis

SERVERS = tuple(
    kind
    for kind, found in (("redis", redis.OLDEST), ("postgresql", postgresql.NEWEST))
    if found  # where no driver is installed, as under the portable suites
)
KINDS = ("memory", "files", "sqlite", *SERVERS)
KEPT = KINDS[1:]


def url_of(kind: str, place: Path, name: str) -> str:
    """Returns the URL of a store of that kind, whose name is its own in this place."""
    application = sha256(f"{place}/{name}".encode()).hexdigest()[:20]
    match kind:
        case "memory":
            return "memory:"
        case "files":
            return str(place / name)
        case "sqlite":
            return f"sqlite:{place / name}.db"
        case "redis":
            return redis.server(redis.OLDEST).url(application=application)
        case _:
            return postgresql.server(postgresql.NEWEST).url(application=application)


PATIENCE_S = 120.0


@contextlib.contextmanager
def borrowed(pool: Any) -> Iterator[None]:
    """Has a connection of the pool for the length of a block."""
    loan: Loan[Any] = Loan()
    pool.take(monotonic() + PATIENCE_S, loan)
    try:
        yield
    finally:
        pool.give_back(loan, healthy=True)
