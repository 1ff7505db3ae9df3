"""Clients and servers that lose or double what they acknowledge when a server dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.torture.servers_clients import Writer


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Plant:
    """A fault: in the server's settings, in the backend of each client, or in the client itself."""

    broken: str
    """What is broken, in one line."""
    programmes: tuple[str, ...]
    settings: tuple[str, ...] = ()
    plant: Callable[[str], None] = _nothing
    """Called with the kind of server, before any store is opened."""
    prepare: Callable[[Writer], None] = _nothing
    durability: str = ""
    within: int = 2
    """Within how many points."""


def _not_synced(kind: str) -> None:
    """Every commit is one of durability "process", whatever was asked for."""
    from holdfast.backends.postgresql import PostgresqlBackend

    sound: Any = PostgresqlBackend._entrance

    def entrance(self: Any, batch: Any) -> tuple[bytes, ...]:
        application, _, locks, shared = sound(self, batch)
        return application, b"f", locks, shared

    PostgresqlBackend._entrance = entrance  # type: ignore[method-assign,assignment]


def _takes_any_server(kind: str) -> None:
    """A server is taken for `full`, whatever it is set to."""
    if kind == "postgresql":
        from holdfast.backends.postgresql import opening

        sound = opening._server
        opening._server = lambda connection, url, _: sound(connection, url, "none")  # type: ignore
    else:
        from holdfast.backends.redis.server import RedisServer

        RedisServer.check = _nothing  # type: ignore[method-assign,assignment]
        RedisServer.waits = lambda self, durability: False  # type: ignore[method-assign]


def _says_nothing(kind: str) -> None:
    """Nobody looks whether what was acknowledged is still there."""
    from holdfast.backends.redis.backend import RedisAckTracker

    RedisAckTracker.check = _nothing  # type: ignore[method-assign,assignment]


def _no_horizon(kind: str) -> None:
    """A follower reads whatever is committed."""
    from holdfast.backends.postgresql import backend, rows

    asked = "(SELECT horizon FROM final)"
    assert all(asked in text for text in rows.READ_ALL.values())
    backend.READ_ALL = {  # type: ignore[attr-defined]
        format: text.replace(asked, "9223372036854775807") for format, text in rows.READ_ALL.items()
    }


def _early(writer: Writer) -> None:
    writer.is_early = True


def _forgetful(writer: Writer) -> None:
    writer.forgets_keys = True


NONE = Plant("nothing", ())
PLANTS = {
    "acknowledged-early": Plant(
        "told before the server has answered", ("t2-redis",), prepare=_early
    ),
    "retried-without-key": Plant(
        "an unknown outcome is done again as something new",
        ("t2-redis",),
        prepare=_forgetful,
        within=3,
    ),
    "synchronous-commit-off": Plant(
        "synchronous_commit = off is taken for full",
        ("t2-postgresql",),
        settings=("wal_writer_delay = 10s",),
        plant=_not_synced,
    ),
    "appendonly-no": Plant(
        "a server without a file is taken for full",
        ("t2-redis",),
        settings=("appendonly no",),
        plant=_takes_any_server,
    ),
    "fsync-off": Plant(
        "fsync = off is taken for full",
        ("t2-postgresql-power",),
        settings=("fsync = off",),
        plant=_takes_any_server,
        within=3,
    ),
    "appendfsync-no": Plant(
        "appendfsync no is taken for full",
        ("t2-redis-power",),
        settings=("appendfsync no",),
        plant=_takes_any_server,
        within=3,
    ),
    "horizon-ignored": Plant(
        "a follower reads behind open transactions",
        ("t2-postgresql-stranger",),
        plant=_no_horizon,
        within=1,
    ),
    "loss-not-told": Plant(
        "what the server lost is passed over",
        ("t2-redis-everysec-power",),
        plant=_says_nothing,
        within=3,
    ),
}


def plants_of(programme: str) -> dict[str, int]:
    """Returns the faults that a programme must find, and within how many points."""
    return {name: one.within for name, one in PLANTS.items() if programme in one.programmes}
