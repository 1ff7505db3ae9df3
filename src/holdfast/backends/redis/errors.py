"""What an error of Redis means to a caller. Nothing above this package sees one of redis-py's.

Two questions decide: may the call be tried again, and is it known what became of it? A server that
answered with an error has done nothing of the script: what a server refuses, it refuses at the
script's first write. A connection that broke says nothing.
"""

from __future__ import annotations

import re

import redis

from holdfast.backends.lines import DeadlineError, unavailable
from holdfast.backends.redis.place import Place
from holdfast.errors import (
    CorruptError,
    FormatError,
    HoldfastError,
    NotFoundError,
    UsageError,
)

# The server is coming up, busy, was switched, or moves keys to another one.
_AGAIN = frozenset(
    (
        *("LOADING", "BUSY", "MASTERDOWN", "READONLY", "NOREPLICAS", "CLUSTERDOWN"),
        *("MOVED", "ASK", "TRYAGAIN", "NONLOCAL", "REPLICA"),
    )
)
_REMEDIES = {
    "OOM": "raise maxmemory (CONFIG SET maxmemory …) or free some memory, then try again",
    "MISCONF": "the server cannot write its files: free some space on its disk, then try again",
    "READONLY": "the server is a replica: name the master",
    "REPLICA": "the server is a replica: name the master",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write",
    "NOAUTH": "put the password into the URL: redis://:password@host",
    "WRONGPASS": "check the user and the password",
    "NOPERM": "grant the user what it needs: see docs/guides/redis.md",
    "CLUSTERDOWN": "the cluster does not serve all slots: see CLUSTER INFO",
    "ASK": "the cluster moves this store to another server: try again when it has",
    "TRYAGAIN": "the cluster moves this store to another server: try again when it has",
    "NONLOCAL": "the cluster moves this store to another server: try again when it has",
}
_CODES = "|".join(("DAMAGED", "GONE", "HEADLESS", "WRONGTYPE", "NOSCRIPT", *_AGAIN, *_REMEDIES))
_CODE = re.compile(rf"(?:^|[\s:-])({_CODES})\b")


class CutError(Exception):
    """The connection went, so that nobody knows what the server did."""


class UnreachedError(Exception):
    """There is no connection: nothing was sent."""


class ReplyError(Exception):
    """The server answered with an error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if "non local key" in text or "accessed undeclared key" in text:
            self.code = "NONLOCAL"
        else:
            found = _CODE.search(text)
            self.code = found.group(1) if found else text.partition(" ")[0]


def is_lost(exc: BaseException) -> bool:
    return isinstance(exc, DeadlineError | CutError)


def may_retry(exc: BaseException) -> bool:
    """Returns whether the same call on another connection may succeed."""
    if isinstance(exc, ReplyError):
        return exc.code in _AGAIN
    return isinstance(exc, CutError | UnreachedError)


def translate(exc: BaseException, place: Place, *, outcome_known: bool) -> HoldfastError | None:
    """Returns the error to raise in place of one of this package's, None for any other."""
    if isinstance(exc, DeadlineError):
        said = f"did not answer within {place.timeout_s:g} s"
        return unavailable(place.shown, said, outcome_known=outcome_known)
    if isinstance(exc, UnicodeEncodeError):
        return UsageError(f"a name holds a lone surrogate: {exc.object[:40]!r}")
    if isinstance(exc, ReplyError):
        return _reply(exc, place, outcome_known=outcome_known)
    if isinstance(exc, CutError | UnreachedError | redis.RedisError):
        said = f"is unavailable: {place.hide(str(exc)) or type(exc).__name__}"
        return unavailable(place.shown, said, outcome_known=outcome_known)
    return None


def _reply(exc: ReplyError, place: Place, *, outcome_known: bool) -> HoldfastError:
    where = place.shown
    said = place.hide(str(exc))
    if exc.code == "GONE":
        return NotFoundError(
            f'the store of application "{place.application}" is no longer in "{where}"',
            hint="restore it from a backup, or open it again to begin a new one",
        )
    if exc.code == "HEADLESS":
        return CorruptError(
            f'"{where}" has lost the key of application "{place.application}"', where=where
        )
    if exc.code == "WRONGTYPE":
        return FormatError(
            f'"{where}" has keys of another program: {said}',
            hint="choose another application or database",
        )
    if exc.code == "DAMAGED":
        return CorruptError(f'"{where}" is damaged: {said.partition("DAMAGED ")[2]}', where=where)
    return unavailable(
        where,
        f"is unavailable: {said}",
        outcome_known=outcome_known,
        remedy=_REMEDIES.get(exc.code),
        otherwise="check the server's log",
    )
