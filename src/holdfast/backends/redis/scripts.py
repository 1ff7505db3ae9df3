"""The server's side: Lua scripts, each known to the server by the digest of its text."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct


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


def script(name: str, clock: str | None = None) -> Script:
    """Returns a script that stands on what every script begins with.

    `clock` is Lua text in place of the server's clock, for tests.
    """
    begin = _file("redis_begin.lua") + (clock or _file("redis_clock.lua"))
    return _script(begin + _file(f"redis_{name}.lua"))


def opening() -> Script:
    """Returns the script that makes a store, the only one that runs without one."""
    return _script(_file("redis_open.lua"))
