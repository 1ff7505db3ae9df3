"""The server's side: Lua scripts, each known to the server by the digest of its text."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

# Replaced by tests, whose clock stands still until it is moved.
CLOCK = "redis_clock.lua"


class Script(Struct, frozen=True):
    """A script's text, and the digest that a server keeps it under."""

    text: bytes
    digest: bytes


@cache
def _file(name: str) -> str:
    return files("holdfast.backends").joinpath("lua", name).read_text("utf-8")


@cache
def _script(text: str) -> Script:
    data = text.encode()
    # Not for security: it is the name that EVALSHA asks for.
    return Script(data, sha1(data, usedforsecurity=False).hexdigest().encode())


def script(name: str) -> Script:
    """Returns a script that stands on what every script begins with."""
    clock = _file(CLOCK) if CLOCK.endswith(".lua") else CLOCK
    return _script(_file("redis_begin.lua") + clock + _file(f"redis_{name}.lua"))


def opening() -> Script:
    """Returns the script that makes a store, the only one that runs without one."""
    return _script(_file("redis_open.lua"))
