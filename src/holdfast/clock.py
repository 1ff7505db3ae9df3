"""The only source of time and randomness: all other code is given a Clock."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Time and entropy, as the store sees them; `holdfast.testing.FakeClock` is another one."""

    def now_us(self) -> int:
        """Returns wall time in microseconds since 1970. It may jump: never order by it."""
        ...

    def boot_us(self) -> int:
        """Returns microseconds since the host booted, including sleep. It never goes back."""
        ...

    def boot_id(self) -> str:
        """Returns the id of this boot of this host; compare boot times only if it is equal."""
        ...

    def random_bytes(self, n: int) -> bytes:
        """Returns n unpredictable bytes."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for so many seconds."""
        ...


class SystemClock:
    """The clock of this host."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def boot_us(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1000

    def boot_id(self) -> str:
        return _boot_id()

    def random_bytes(self, n: int) -> bytes:
        return os.urandom(n)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC goes on counting through sleep.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        booted_s = time.time() - time.clock_gettime(_BOOT_CLOCK)
        return f"booted-{round(booted_s / 10)}"
