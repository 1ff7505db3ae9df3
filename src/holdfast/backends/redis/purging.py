"""Makes the server rewrite its files, which still hold payloads that were let go of.

The append-only file has every command since it was last rewritten, so it still has a payload that
is gone from memory; a dump of memory (RDB) has what was there when it was made. The server rewrites
both in the background, and removes the old files when it is done.
"""

from __future__ import annotations

from time import sleep
from typing import Any

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Leftover
from holdfast.backends.redis.connection import RedisCheckout, RedisConnection
from holdfast.errors import UnavailableError

_FILES = (
    # the file, the command, and the fields of INFO: at work now, status of the last rewrite
    ("append-only file", "BGREWRITEAOF", b"aof_rewrite_in_progress", b"aof_last_bgrewrite_status"),
    ("dump of memory", "BGSAVE", b"rdb_bgsave_in_progress", b"rdb_last_bgsave_status"),
)
_LOOK_S = 0.05
_WAIT_S, _WAIT_WHOLE_S = 10.0, 3600.0


def rewrite_files(checkout: RedisCheckout, *, whole: bool) -> list[Leftover]:
    """Makes the server rewrite its files, one after the other; returns those not done in time."""
    left: list[Leftover] = []
    for what, command, at_work, status in _FILES:
        if what == "append-only file" and _info(checkout).get(b"aof_enabled") != b"1":
            continue
        where, by_hand = f"the server's {what}", f"run {command}, and see that it ends"
        try:
            checkout.call(lambda connection, command=command: connection.ask((command,)))
        except UnavailableError as error:  # forbidden, or one is at work already
            left.append(Leftover(where, f"{by_hand}: {error.message}"))
            continue
        deadline = monotonic() + (_WAIT_WHOLE_S if whole else _WAIT_S)
        while (found := _info(checkout)).get(at_work) == b"1" or _is_scheduled(found, command):
            if monotonic() >= deadline:
                break
            sleep(_LOOK_S)
        if found.get(at_work) == b"1" or found.get(status) != b"ok":
            left.append(Leftover(where, by_hand))
    return left


def _is_scheduled(found: dict[bytes, bytes], command: str) -> bool:
    return command == "BGREWRITEAOF" and found.get(b"aof_rewrite_scheduled") == b"1"


def _info(checkout: RedisCheckout) -> dict[bytes, bytes]:
    def work(connection: RedisConnection) -> Any:
        return connection.ask(("INFO", "persistence"))[0]

    text: bytes = checkout.call(work)
    pairs = (line.partition(b":") for line in text.splitlines() if not line.startswith(b"#"))
    return {name: value.strip() for name, _, value in pairs}
