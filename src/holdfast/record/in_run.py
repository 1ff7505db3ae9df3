"""The record in a run, whose body is entered again from the top after a crash.

The writes of a body are journalled, and a replay must make the same ones. The events of the record
contain the worker and the time, and depend on what is there, so they differ each time. Therefore:

- A decision, or a task that is added, is named by its place in the run. A replay finds it by that
  name and continues with it. Such items guard themselves (`keyed_item.py`): their commits are
  fenced by the run's lease and are not journalled.
- Everything without such a name (turns, facts, changes of tasks, working memory, anything that
  changes or looks up existing messages) is refused in a body. It would make the run diverge when it
  is resumed. It belongs in a step.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from weakref import WeakKeyDictionary

from holdfast.core.log import WRITER, Writer
from holdfast.errors import UsageError
from holdfast.names import NAME_BYTES_MAX

_ROOM_BYTES = 64
"""How many bytes a key of the record needs in addition to the name."""

_counted: WeakKeyDictionary[Writer, dict[str, int]] = WeakKeyDictionary()
_lock = Lock()


def next_place() -> str | None:
    """Returns a name for this place in a run, a new one at each call; None outside of runs.

    A replay of the run asks in the same order, and so gets the same names.
    """
    writer = WRITER.get()
    if writer is None:
        return None
    path = writer.path
    with _lock:
        counts = _counted.setdefault(writer, {})
        counts[path] = number = counts.get(path, 0) + 1
    place = f"{path}:{number}"
    if (
        "@" in place
        or not place.isprintable()
        or len(place.encode()) > NAME_BYTES_MAX - _ROOM_BYTES
    ):
        return f"run:{sha256(place.encode(errors='surrogatepass')).hexdigest()}"
    return place


def is_in_run() -> bool:
    """Returns whether this code runs in a run or in a step of one."""
    return WRITER.get() is not None


@contextmanager
def unjournalled() -> Generator[None]:
    """Returns a block for commits that guard themselves: a run fences but does not journal them."""
    writer = WRITER.get()
    if writer is None:
        yield
        return
    token = WRITER.set(writer.fencing())
    try:
        yield
    finally:
        WRITER.reset(token)


def refuse_in_body(what: str) -> None:
    """Raises UsageError in the body of a run, but not in its steps or elsewhere."""
    writer = WRITER.get()
    if writer is not None and writer.is_replayed:
        raise UsageError(
            f"{what} cannot be done in the body of a run, which is entered again after a crash",
            hint="do it in a step of the run",
        )
