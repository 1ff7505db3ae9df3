"""A clock under a test's hand in place of the server's, for the shared Redis servers.

A backend's scripts get CLOCK, whose `now_us` asks a key. In database 0 it holds a time that stands
still until a FakeClock is moved; in database 1, how far the server's clock was moved on by
`pass_time`. A process that a test starts finds the server through the environment.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from urllib.parse import quote

from holdfast.testing import FakeClock
from tests.servers.redis import PASSWORD, server

FAKE, REAL = 0, 1
KEY = "test:clock"
CLOCK = f"""
local function now_us()
  local moved = tonumber(redis.call('GET', '{KEY}') or '0')
  if moved > 1e15 then return moved end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2] + moved
end
"""


class Ground:
    """One shared server, and a client behind the backend's back for each database."""

    def __init__(self, socket: str) -> None:
        import redis

        self._socket = socket
        self.clients: list[Any] = [
            redis.Redis(unix_socket_path=socket, password=PASSWORD, db=db, protocol=2)
            for db in (FAKE, REAL)
        ]

    def url(self, db: int, application: str) -> str:
        return f"unix://:{PASSWORD}@{self._socket}?db={db}&application={quote(application)}"

    def follow(self, clock: FakeClock) -> None:
        """Sets the server's clock to the fake one, and moves it with every `advance` from now on.

        `clock.set`, a jump of this host's wall clock, does not reach the server.
        """
        elapsed_us = clock.now_us()
        self.clients[FAKE].set(KEY, elapsed_us)
        advance = FakeClock.advance

        def moved(seconds: float) -> None:
            nonlocal elapsed_us
            advance(clock, seconds)
            elapsed_us += round(seconds * 1_000_000)
            self.clients[FAKE].set(KEY, elapsed_us)

        clock.advance = moved  # type: ignore[method-assign]

    def pass_time(self, seconds: float) -> None:
        self.clients[REAL].incrby(KEY, round(seconds * 1_000_000))


@cache
def shared_ground(name: str) -> Ground:
    """Returns the shared server of this name; a child process finds its parent's."""
    variable = "HOLDFAST_TEST_REDIS_" + "".join(c if c.isalnum() else "_" for c in name).upper()
    socket = os.environ.setdefault(variable, "") or str(server(name).directory / "redis.sock")
    os.environ[variable] = socket
    return Ground(socket)
