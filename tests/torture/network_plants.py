"""Clients that trust a network: what T12 must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BOTH = ("t12-postgresql", "t12-redis")


def _nothing(kind: str) -> None:
    return None


def _no_deadline_on_connect(kind: str) -> None:
    """Whoever connects waits as long as it takes."""
    if kind == "postgresql":
        from holdfast.backends.postgresql.lines import PostgresqlLines

        sound: Any = PostgresqlLines.connect

        def connect(self: Any, deadline: float) -> Any:
            line = sound(self, float("inf"))
            line.deadline = deadline
            return line

        PostgresqlLines.connect = connect  # type: ignore[method-assign]
    else:
        from holdfast.backends.redis import lines

        made: Any = lines._connection

        def connection(place: Any, address: Any, deadline: float, *, patient: bool) -> Any:
            return made(place, address, deadline + 1e6, patient=patient)

        lines._connection = connection  # type: ignore[assignment]


def _deadline_anew(kind: str) -> None:
    """The time that is left begins anew with whatever comes in, as drivers' own timeouts do."""
    if kind == "postgresql":
        from holdfast.backends.postgresql import lines

        class Patient(lines.Line):
            @property
            def deadline(self) -> float:  # type: ignore[override]
                return lines.monotonic() + 1.0

            @deadline.setter
            def deadline(self, value: float) -> None:
                return None

        lines.Line = Patient  # type: ignore[misc]
    else:
        from holdfast.backends.redis.lines import Line

        Line._left_s = lambda self: 1.0  # type: ignore[method-assign]


def _said_known(kind: str) -> None:
    """A connection that broke is taken for a server that said no."""
    if kind == "postgresql":
        from holdfast.backends.postgresql import lines as postgresql

        postgresql.is_lost = lambda exc: False
    else:
        from holdfast.backends.redis import lines as redis

        redis.is_lost = lambda exc: False


@dataclass(frozen=True)
class Plant:
    """A fault of the backend, planted in this process, or of the client itself."""

    broken: str
    plant: Callable[[str], None] = _nothing
    forgets_keys: bool = False
    within: int = 51


PLANTS = {
    "no-deadline-on-connect": Plant("connecting takes what it takes", _no_deadline_on_connect),
    "deadline-anew": Plant("a deadline begins anew with every byte", _deadline_anew),
    "outcome-said-known": Plant("a lost answer is told as a refusal", _said_known),
    "retried-without-key": Plant(
        "an unknown outcome is done again as something new", forgets_keys=True
    ),
}


def plants_of(programme: str) -> dict[str, int]:
    """Returns the faults that a programme must find, and within how many points."""
    return {name: one.within for name, one in PLANTS.items() if programme in BOTH}
