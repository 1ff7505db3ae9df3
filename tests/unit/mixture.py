"""A mixed backend of three in memory, for the tests of what lies where."""

from __future__ import annotations

from typing import Any

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.clock import SystemClock
from holdfast.core.layers import kept_with
from holdfast.core.log import Log
from holdfast.store import Store
from tests.opening import store_of_log

LARGE = "large " * 20_000


def memories() -> MixedBackend:
    """Conversations and sessions in one backend, workflows in another, the rest in a third."""
    clock = SystemClock()
    chats = MemoryBackend(clock=clock)
    routes = {
        "*": MemoryBackend(clock=clock),
        "conversation": chats,
        "session": chats,
        "workflow": MemoryBackend(clock=clock),
    }
    shown = {level: f"memory-of-{level}" for level in routes}
    return MixedBackend(routes, shown, kept_with())


def store_on(backend: MixedBackend) -> Store:
    log = Log(backend, clock=SystemClock(), actor="tester")
    return store_of_log(log, url="mixed", worker="tester")


def rest(backend: MixedBackend) -> Any:
    return backend.part_of("team/red")


def chats(backend: MixedBackend) -> Any:
    return backend.part_of("conversation/c1")
