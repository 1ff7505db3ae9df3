"""A clock that stands still until a test moves it."""

from __future__ import annotations

from hashlib import shake_256
from threading import Lock

START_US = 1_700_000_000_000_000
"""A fixed moment in November 2023."""


class FakeClock:
    """A clock that a test controls, with random bytes that depend only on the seed."""

    def __init__(self, start_us: int = START_US, *, seed: int = 0) -> None:
        self.slept: list[float] = []
        """Every `sleep` so far, in seconds."""
        self._lock = Lock()
        self._seed = seed
        self._drawn = 0
        self._now_us = start_us
        self._boot_us = 1_000_000
        self._boots = 1

    def now_us(self) -> int:
        """Returns the time of this clock, in microseconds since 1970."""
        return self._now_us

    def boot_us(self) -> int:
        """Returns the microseconds since the simulated boot."""
        return self._boot_us

    def boot_id(self) -> str:
        """Returns the id of the simulated boot."""
        return f"fake-boot-{self._boots}"

    def random_bytes(self, n: int) -> bytes:
        """Returns the next bytes of a sequence that the seed determines."""
        with self._lock:
            self._drawn += 1
            return shake_256(b"%d/%d" % (self._seed, self._drawn)).digest(n)

    def sleep(self, seconds: float) -> None:
        """Advances the clock by these seconds, and returns at once."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Moves wall time and boot time forward together."""
        assert seconds >= 0, f"time does not go back by {-seconds} s; set() moves wall time alone"
        with self._lock:
            self._now_us += round(seconds * 1_000_000)
            self._boot_us += round(seconds * 1_000_000)

    def set(self, now_us: int) -> None:
        """Sets the wall time, forward or back, as when somebody sets the host's clock."""
        self._now_us = now_us

    def reboot(self) -> None:
        """Simulates a reboot: boot time starts again, with another boot id."""
        with self._lock:
            self._boots += 1
            self._boot_us = 1_000_000
