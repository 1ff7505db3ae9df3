"""What T12 does over a network that fails: calls, each with a deadline and a watchdog.

A call that writes tells what it was told, in the lines that `servers_judge.py` understands.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast import ConflictError, Store, UnavailableError
from holdfast.backends.protocol import START
from tests.torture.programme import Broken

MARGIN_S = 30.0
"""How much later than its deadline a call may return on a machine that is busy with other tests."""
LISTS = ("conversation/a", "conversation/b")
Call = Callable[[], object]


@dataclass
class Caller:
    """A store and what was done to it: for each number the last word on it."""

    store: Store
    timeout_s: float
    said: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    forgets_keys: bool = False
    """Planted: an unknown outcome is done again as if it were new."""

    def write(self, value: int, streams: tuple[str, ...], *, keyed: bool) -> None:
        """Appends a number to each list, in one commit."""
        new = {"value": value, "streams": streams, "keyed": keyed, "said": "begun"}
        word = self.said.setdefault(value, new)
        is_open = word["said"] == "unknown"
        key = f"k{value}" if keyed and not self.forgets_keys else None
        try:
            if len(streams) == 1:
                self.store.scope(streams[0]).append("log", value, key=key)
            else:
                with self.store.commit(key=key) as tx:
                    for name in streams:
                        tx.scope(self.store.scope(name)).append("log", value)
        except ConflictError:
            word["said"] = "refused"
        except UnavailableError as exc:
            word["said"] = "unknown" if is_open or not exc.outcome_known else "refused"
            raise
        else:
            word["said"] = "done"


CALLS = {
    "append": lambda caller, value: caller.write(value, LISTS[:1], keyed=True),
    "append without a key": lambda caller, value: caller.write(value, LISTS[:1], keyed=False),
    "commit": lambda caller, value: caller.write(value, LISTS, keyed=True),
    "large": lambda caller, value: caller.store._log._backend.objects.put(
        "blob", f"{value:x}", b"x" * 200_000
    ),
    "read": lambda caller, value: caller.store._log._backend.read(LISTS[0]),
    "heads": lambda caller, value: caller.store._log._backend.heads(LISTS),
    "follow": lambda caller, value: caller.store._log._backend.read_all(after=START),
    "wait": lambda caller, value: caller.store._log._backend.wait(START, timeout_s=0),
    "lease": lambda caller, value: caller.store._log._backend.leases.acquire("l", "w", ttl_s=60),
    "claim": lambda caller, value: caller.store._log._backend.marks.claim("i", "w", n=1, ttl_s=60),
    "status": lambda caller, value: caller.store.status(),
}
"""Each with the caller and a number of its own."""
WRITES = ("append", "append without a key", "commit")


def watched(call: Call, timeout_s: float, what: str) -> UnavailableError | None:
    """Makes the call under a watchdog; returns the error that it was told.

    Raises Broken if it does not return in its time, or with an error that is none of ours.
    """
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            ended.append(None)
        except BaseException as exc:
            ended.append(exc)

    began = time.monotonic()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s + MARGIN_S)
    if not ended:
        raise Broken(
            f"{what}: had a deadline of {timeout_s:g} s and has not returned after "
            f"{time.monotonic() - began:.1f} s"
        )
    error = ended[0]
    if error is None or isinstance(error, UnavailableError):
        return error
    text = "".join(traceback.format_exception(error, limit=-6))
    raise Broken(f"{what}: expected an answer or UnavailableError, found\n{text}")


def drop_lines(store: Store) -> None:
    """Lets the next call make a new connection."""
    backend: Any = store._log._backend
    backend._checkout.pool.drop_idle()
