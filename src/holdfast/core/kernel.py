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
from holdfast.core.store_key import StoreKey
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
        """What parts have to say to whoever asks for the status of the store."""
        self._parts: dict[Any, object] = {}
        self._mutex = RLock()

    @property
    def clock(self) -> Clock:
        """Time and chance."""
        return self.log.clock

    @property
    def store_key(self) -> StoreKey | None:
        """The key that the store is encrypted with; None if it is not."""
        return None if self.encryption is None else self.encryption.key

    def part(self, kind: Callable[[Kernel], T]) -> T:
        """Returns the store's one service of a kind, which is made when it is first asked for."""
        found = self._parts.get(kind)
        if found is None:
            with self._mutex:
                found = self._parts.get(kind)
                if found is None:
                    found = self._parts[kind] = kind(self)
        return cast("T", found)

    def when_let_go(self, *forget: Callable[[], object]) -> None:
        """Has a part forget what it keeps of events as soon as some were let go of."""
        self._when_let_go += forget

    def forget_copies(self) -> None:
        """Has made again what the parts keep of events that were let go of."""
        for forget in self._when_let_go:
            forget()

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

    def on_close(self, end: Callable[[], object]) -> None:
        """Has something ended before the log is, and before what was there when it began."""
        self._closing.append(end)

    def close(self) -> None:
        """Ends what was begun, the newest first; all of it, also if something fails."""
        with ExitStack() as stack:
            for end in self._closing:
                stack.callback(end)
            self._closing = []


class _HasKernel(Protocol):
    _kernel: Kernel


def kernel_of(store: object) -> Kernel:
    """Returns the kernel of a store that a tool of ours was given: the only way to it."""
    return cast("_HasKernel", store)._kernel
