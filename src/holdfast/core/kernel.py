"""The kernel: what the services of one open store are built from, and where each is kept.

A service of a layer is a class whose constructor takes a kernel and nothing else. There is one of
each kind for each store, made when it is first asked for (`part`), so a process pays only for the
layers that it enters, and `core` never imports upwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import RLock
from typing import Any, Protocol, TypeVar, cast

from holdfast.clock import Clock
from holdfast.core.encryption import Encryption
from holdfast.core.leases import HEARTBEAT_S, LeaseKeeper
from holdfast.core.log import Log
from holdfast.names import Levels

T = TypeVar("T")


class Kernel:
    """The log of one open store, who works on it here, and the services that were asked for.

    `settings` are what the store was opened with, for the layers that they are about.
    """

    def __init__(
        self,
        log: Log,
        *,
        url: str = "",
        worker: str,
        levels: Levels,
        leases: LeaseKeeper | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        read_only: bool = False,
        encryption: Encryption | None = None,
        settings: object = None,
    ) -> None:
        self.log = log
        self.url = url
        self.worker = worker
        self.levels = levels
        self.leases = leases or LeaseKeeper(log, worker, heartbeat_s=heartbeat_s)
        self.read_only = read_only
        self.encryption = encryption
        self.settings = settings
        self.forget_copies: list[Callable[[], object]] = []
        """What parts do when events were let go of: what they keep of them is made again."""
        self.closing: list[Callable[[], object]] = []
        """What is done before any part is closed, newest first."""
        self._parts: dict[Any, object] = {}
        self._mutex = RLock()

    @property
    def clock(self) -> Clock:
        """Time and chance."""
        return self.log.clock

    def part(self, kind: Callable[[Kernel], T]) -> T:
        """Returns the store's one service of a kind, which is made when it is first asked for."""
        found = self._parts.get(kind)
        if found is None:
            with self._mutex:
                found = self._parts.get(kind)
                if found is None:
                    found = self._parts[kind] = kind(self)
        return cast("T", found)

    def made(self, kind: Callable[[Kernel], T]) -> T | None:
        """Returns a service if it was asked for before."""
        return cast("T | None", self._parts.get(kind))

    def over(self, log: Log) -> Kernel:
        """Returns a kernel for services that work on another log for a while, as this worker."""
        return Kernel(
            log,
            url=self.url,
            worker=self.worker,
            levels=self.levels,
            leases=self.leases,
            read_only=self.read_only,
            encryption=self.encryption,
            settings=self.settings,
        )

    def close_parts(self) -> None:
        """Closes the services that can be closed, in the reverse order of their making."""
        with ExitStack() as stack:
            for part in self._parts.values():
                close = getattr(part, "close", None)
                if close is not None:
                    stack.callback(close)
            for first in self.closing:
                stack.callback(first)
            self.closing = []


class _HasKernel(Protocol):
    _kernel: Kernel


def kernel_of(store: object) -> Kernel:
    """Returns the kernel of a store that a tool of ours was given: the only way to it."""
    return cast("_HasKernel", store)._kernel
