"""Faults of sealing and erasing that T18 must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core import codec, sealed_marks
from holdfast.core.keystore import FolderKeys
from holdfast.core.sealing import Seal
from holdfast.core.snapshot import Snapshots
from holdfast.core.staging import GatheringLog
from holdfast.erasure import Erasure


@contextmanager
def replaced(where: Any, name: str, fault: Any) -> Iterator[None]:
    sound = getattr(where, name)
    setattr(where, name, fault)
    try:
        yield
    finally:
        setattr(where, name, sound)


def key_in_events() -> Any:
    """The key stands in the meta of each event, where its id belongs: so every backup has it."""
    began = Seal.__init__

    def begin(self: Any, key: Any) -> None:
        began(self, key)
        self.meta = self.meta.replace(self.key_id, key.key.hex())

    return replaced(Seal, "__init__", begin)


def key_kept() -> Any:
    """A destroyed key is noted as erased, and its file stays."""

    def destroy(self: Any, id: str) -> None:
        (self.path / "erased").mkdir(exist_ok=True)
        (self.path / "erased" / id).write_bytes(b"")

    return replaced(FolderKeys, "destroy", destroy)


def snapshot_kept() -> Any:
    """Snapshots of the erased stay."""
    return replaced(Snapshots, "forget", lambda self, stream, until: None)


def hold_ignored() -> Any:
    """A subject that is held is erased."""
    return replaced(Erasure, "_held", lambda self, id: None)


def place_in_data() -> Any:
    """What is sealed is bound to where it was written first: a copy elsewhere does not open."""
    sound = Seal.seal
    places: list[int] = []

    def seal(self: Any, data: bytes) -> bytes:
        places.append(1)
        about = self.about
        self.about = about + b" %d" % len(places)
        try:
            return sound(self, data)
        finally:
            self.about = about

    return replaced(Seal, "seal", seal)


def names_in_clear() -> Any:
    """Names of facts and tasks stand in marks as they were given."""
    return replaced(sealed_marks, "closed", lambda seal, stream, marks, find: marks)


def copies_open() -> Any:
    """Layers that keep what they read open what is sealed."""
    return replaced(codec, "is_kept_closed", lambda: False)


def gathered_is_begun() -> Any:
    """A scope that a joint commit begins is taken for begun before it is."""
    return replaced(GatheringLog, "is_gathering", False)


@contextmanager
def nothing() -> Iterator[None]:
    yield


PLANTS: dict[str, Callable[[], Any]] = {
    "": nothing,
    "key-in-events": key_in_events,
    "key-kept": key_kept,
    "snapshot-kept": snapshot_kept,
    "hold-ignored": hold_ignored,
    "place-in-data": place_in_data,
    "names-in-clear": names_in_clear,
    "copies-open": copies_open,
    "gathered-is-begun": gathered_is_begun,
}
WITHIN = {
    "key-in-events": 1,
    "key-kept": 1,
    "snapshot-kept": 1,
    "hold-ignored": 4,
    "place-in-data": 1,
    "names-in-clear": 1,
    "copies-open": 1,
    "gathered-is-begun": 3,
}
