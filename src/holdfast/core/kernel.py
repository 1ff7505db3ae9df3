"""The kernel: what the services of one open store are built from, and the services themselves.

A service of a layer is a class whose constructor takes a kernel and nothing else. A store has one
of each class, which is made on first use (`part`). So a process pays only for the layers that it
uses, and `core` never imports upwards.
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
from holdfast.core.store_key import StoreKey
from holdfast.names import Levels

T = TypeVar("T")


class Kernel:
    """The log of one open store, its worker in this process, and its services made so far.

    `settings` are those that the store was opened with; each layer reads its own.
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
        settings: Any = None,
    ) -> None:
        self.log = log
        self.url = url
        self.worker = worker
        self.levels = levels
        self.leases = leases or LeaseKeeper(log, worker, heartbeat_s=heartbeat_s)
        self.read_only = read_only
        self.encryption = encryption
        self.settings = settings
        self._when_let_go: list[Callable[[], object]] = []
        self._closing: list[Callable[[], object]] = []
        self.reports: list[Callable[[], list[str]]] = []
        """Functions of parts that return lines for the status of the store."""
        self._parts: dict[Any, object] = {}
        self._mutex = RLock()

    @property
    def clock(self) -> Clock:
        """The source of time and randomness."""
        return self.log.clock

    @property
    def store_key(self) -> StoreKey | None:
        """The key that the store is encrypted with; None if it is not."""
        return None if self.encryption is None else self.encryption.key

    def part(self, kind: Callable[[Kernel], T]) -> T:
        """Returns the store's one service of a kind, which is made on first use."""
        found = self._parts.get(kind)
        if found is None:
            with self._mutex:
                found = self._parts.get(kind)
                if found is None:
                    found = self._parts[kind] = kind(self)
        return cast("T", found)

    def when_let_go(self, *forget: Callable[[], object]) -> None:
        """Registers functions that drop copies of events; called when some were let go of."""
        self._when_let_go += forget

    def forget_copies(self) -> None:
        """Makes the parts drop their copies of events, because some were let go of."""
        for forget in self._when_let_go:
            forget()

    def made(self, kind: Callable[[Kernel], T]) -> T | None:
        """Returns a service if it was made before; None if not."""
        return cast("T | None", self._parts.get(kind))

    def over(self, log: Log) -> Kernel:
        """Returns a kernel for services of the same worker that work on another log for a while."""
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

    def on_close(self, end: Callable[[], object]) -> None:
        """Registers a function for `close`, which calls the newest first, before the log ends."""
        self._closing.append(end)

    def close(self) -> None:
        """Calls what `on_close` registered, the newest first; all of it, even if one raises."""
        with ExitStack() as stack:
            for end in self._closing:
                stack.callback(end)
            self._closing = []


class _HasKernel(Protocol):
    _kernel: Kernel


def kernel_of(store: object) -> Kernel:
    """Returns the kernel of a store, for tools of this package: the only way to get it."""
    return cast("_HasKernel", store)._kernel
