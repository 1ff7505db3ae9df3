"""Clients that trust a network: what T12 must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

AGES_S = 1e6


def _nothing(kind: str) -> None:
    return None


def _no_deadline_on_connect(kind: str) -> None:
    """Whoever connects waits as long as it takes."""
    if kind == "postgresql":
        from holdfast.backends.postgresql import connection as postgresql

        sound: Any = postgresql.PostgresqlPool.connect
        postgresql._CONNECT_S = int(AGES_S)  # type: ignore[misc]

        def connect(self: Any, deadline: float) -> Any:
            connection = sound(self, deadline + AGES_S)
            connection.deadline = deadline
            return connection

        postgresql.PostgresqlPool.connect = connect  # type: ignore[method-assign]
    else:
        from holdfast.backends.redis import connection as redis

        made: Any = redis._driver

        def driver(server_url: Any, address: Any, deadline: float, *, patient: bool) -> Any:
            return made(server_url, address, deadline + AGES_S, patient=patient)

        redis._driver = driver  # type: ignore[assignment]


def _deadline_anew(kind: str) -> None:
    """The time that is left begins anew with whatever comes in, as drivers' own timeouts do."""
    if kind == "postgresql":
        from holdfast.backends.postgresql.connection import PostgresqlConnection

        PostgresqlConnection.deadline = property(  # type: ignore[assignment]
            lambda self: monotonic() + 1.0, lambda self, value: None
        )
    else:
        from holdfast.backends.redis.connection import RedisConnection

        RedisConnection._left_s = lambda self: 1.0  # type: ignore[method-assign]


def _said_known(kind: str) -> None:
    """A connection that broke is taken for a server that said no."""
    from holdfast.backends.postgresql.connection import PostgresqlPool
    from holdfast.backends.redis.connection import RedisPool

    for pool in (PostgresqlPool, RedisPool):
        pool.is_lost = lambda self, exc: False  # type: ignore[method-assign]


@dataclass(frozen=True)
class Plant:
    """A fault of the backend, planted in this process, or of the client itself."""

    broken: str
    programmes: tuple[str, ...]
    plant: Callable[[str], None] = _nothing
    scenes: tuple[str, ...] = ()
    """The scenes that it is looked for in; all if there are none. A drill is to be short."""
    kinds: tuple[str, ...] = ()
    """The faults of a wire that it is looked for with; all if there are none."""
    calls: tuple[str, ...] = ()
    """The calls that it is looked for in; all if there are none."""
    forgets_keys: bool = False


BOTH = ("t12-postgresql", "t12-redis")
WITHIN = 12
PLANTS = {
    "no-deadline-on-connect": Plant(
        "connecting takes what it takes", BOTH, _no_deadline_on_connect, scenes=("frozen",)
    ),
    "deadline-anew": Plant(
        "a deadline begins anew with every byte",
        BOTH,
        _deadline_anew,
        scenes=("wire",),
        kinds=("trickle",),
        calls=("heads", "read", "follow", "status"),
    ),
    "outcome-said-known": Plant(
        "a lost answer is told as a refusal",
        BOTH,
        _said_known,
        scenes=("wire",),
        kinds=("hole", "late"),
    ),
    "retried-without-key": Plant(
        "an unknown outcome is done again as something new",
        ("t12-redis",),
        scenes=("wire",),
        kinds=("hole", "late"),
        forgets_keys=True,
    ),
}
NONE = Plant("nothing", ())


def plants_of(programme: str) -> dict[str, int]:
    """Returns the faults that a programme must find, and within how many points."""
    return {name: WITHIN for name, one in PLANTS.items() if programme in one.programmes}
