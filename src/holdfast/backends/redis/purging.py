"""Makes the server rewrite its files, which still hold payloads that were let go of.

The append-only file has every command since it was last rewritten, so it still has a payload that
is gone from memory; a dump of memory (RDB) has what was there when it was made. The server rewrites
both in the background, and removes the old files when it is done. A server that is killed meanwhile
leaves what it had written so far, in a temporary file that nobody ever removes.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep
from typing import Any, cast

from holdfast.backends.deadline import monotonic
from holdfast.backends.protocol import Leftover
from holdfast.backends.redis.connection import RedisCheckout, RedisConnection
from holdfast.errors import UnavailableError

_FILES = (
    # the file, the command, and the fields of INFO: at work now, status of the last rewrite
    ("append-only file", "BGREWRITEAOF", b"aof_rewrite_in_progress", b"aof_last_bgrewrite_status"),
    ("dump of memory", "BGSAVE", b"rdb_bgsave_in_progress", b"rdb_last_bgsave_status"),
)
_TEMPORARY = ("temp-rewriteaof-*.aof", "temp-*.rdb")
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
        is_at_work = found.get(at_work) == b"1" or _is_scheduled(found, command)
        if is_at_work or found.get(status) != b"ok":
            left.append(Leftover(where, by_hand))
    return [*left, *_abandoned(checkout)]


def _abandoned(checkout: RedisCheckout) -> list[Leftover]:
    """Returns the files of rewrites that died with the server; it never removes them itself.

    They are looked for only if the server's process is seen to work in that folder of this host.
    Elsewhere the same path may be somebody else's.
    """
    try:
        pid = _info(checkout, "server")[b"process_id"].decode()
        folder = checkout.call(lambda connection: connection.ask(("CONFIG", "GET", "dir"))[0])
        place = Path(os.fsdecode(_pairs(folder)[b"dir"]))
        if os.readlink(f"/proc/{pid}/cwd") != str(place):
            raise FileNotFoundError
        found = [one for name in _TEMPORARY for one in sorted(place.glob(name))]
    except (UnavailableError, OSError, KeyError, ValueError):
        remedy = (
            "a rewrite that died with the server leaves one: in the folder that CONFIG GET dir "
            "names, delete those that are older than its start: rm temp-rewriteaof-*.aof temp-*.rdb"
        )
        where = "temporary files of the server (its folder cannot be seen from here)"
        return [Leftover(where, remedy, is_outside=True)]
    return [
        Leftover(str(one), "a rewrite that died with the server left it: delete it")
        for one in found
        if not _is_being_written(one, place)
    ]


def _is_being_written(file: Path, place: Path) -> bool:
    """Returns whether the child of the server that a temporary file is named after is alive."""
    try:
        return os.readlink(f"/proc/{file.stem.rpartition('-')[2]}/cwd") == str(place)
    except OSError:
        return False


def _pairs(answer: Any) -> dict[bytes, bytes]:
    """Returns an answer of CONFIG GET, which is a map or a list of names and values."""
    if isinstance(answer, dict):
        return cast("dict[bytes, bytes]", answer)
    words = cast("list[bytes]", answer)
    return dict(zip(words[::2], words[1::2], strict=True))


def _is_scheduled(found: dict[bytes, bytes], command: str) -> bool:
    return command == "BGREWRITEAOF" and found.get(b"aof_rewrite_scheduled") == b"1"


def _info(checkout: RedisCheckout, section: str = "persistence") -> dict[bytes, bytes]:
    def work(connection: RedisConnection) -> Any:
        return connection.ask(("INFO", section))[0]

    text: bytes = checkout.call(work)
    pairs = (line.partition(b":") for line in text.splitlines() if not line.startswith(b"#"))
    return {name: value.strip() for name, _, value in pairs}
