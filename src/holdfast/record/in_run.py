"""The record within a run, whose body is entered again from the top after a crash.

The writes of a body are journalled, and a replay must make the same ones. What the record writes
says who wrote it and when, and is judged against what is there, so it differs each time. Therefore:

- A decision, and a task that is added, is named by its place in the run: a replay finds it by that
  name, and takes it up. Such things guard themselves (`item.py`): their commits are fenced by the
  run's lease, and are not journalled.
- What has no such name (turns, facts, changes of tasks, working memory, whatever changes messages
  that are there or looks for them) is refused in a body, before it can make the run diverge when it
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
"""What a key of the record needs besides the name."""

_counted: WeakKeyDictionary[Writer, dict[str, int]] = WeakKeyDictionary()
_lock = Lock()


def next_place() -> str | None:
    """Returns what names this place in a run, another one at each call; None outside of runs.

    Whoever enters the run again asks in the same order, and so gets the same names.
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
    """Says whether a run, or a step of one, is what runs here."""
    return WRITER.get() is not None


@contextmanager
def unjournalled() -> Generator[None]:
    """The block of commits that guard themselves: in a run they are fenced, and no more."""
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
    """Raises UsageError in the body of a run; in its steps, and elsewhere, all is well."""
    writer = WRITER.get()
    if writer is not None and writer.is_replayed:
        raise UsageError(
            f"{what} cannot be done in the body of a run, which is entered again after a crash",
            hint="do it in a step of the run",
        )
