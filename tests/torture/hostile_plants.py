"""Faults that T16 must find, planted one at a time."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator
from typing import Any

PLANTS: dict[str, Callable[[contextlib.ExitStack], None]] = {}


@contextlib.contextmanager
def planted(name: str) -> Generator[None]:
    """Plants a fault for the length of the block; "" plants none."""
    with contextlib.ExitStack() as undo:
        if name:
            PLANTS[name](undo)
        yield


def replaced(undo: contextlib.ExitStack, where: Any, name: str, value: Any) -> None:
    undo.callback(setattr, where, name, getattr(where, name))
    setattr(where, name, value)


def plant(function: Callable[[contextlib.ExitStack], None]) -> None:
    PLANTS[function.__name__.strip("_").replace("_", "-")] = function


@plant
def name_as_path(undo: contextlib.ExitStack) -> None:
    """A scope leaves a file of its name in the store's directory, as naive stores do."""
    from holdfast.backends.files import FilesBackend

    real = FilesBackend.commit

    def commit(self: Any, commits: Any) -> Any:
        for commit in commits:
            for append in commit.appends:
                path = os.path.join(self.directory.path, append.stream.partition("/")[2] or "g")
                with contextlib.suppress(OSError, ValueError), open(path, "x"):
                    pass
        return real(self, commits)

    replaced(undo, FilesBackend, "commit", commit)


@plant
def revival(undo: contextlib.ExitStack) -> None:
    """Values outside the domain are pickled, and come back as objects."""
    import pickle

    from holdfast.core import codec

    def convert(value: Any, path: Any) -> Any:
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(value))
        return {"$bytes": ""}

    real = codec._Conversion.convert

    def lenient(self: Any, value: Any, path: Any) -> Any:
        try:
            return real(self, value, path)
        except codec.ValueDomainError:
            return convert(value, path)

    replaced(undo, codec._Conversion, "convert", lenient)


@plant
def unchecked_names(undo: contextlib.ExitStack) -> None:
    """Names are taken as they come."""
    from holdfast import names

    replaced(undo, names, "check_name", lambda name, what: name)
    replaced(undo, names, "stored_id", lambda id: id)


@plant
def raw_terminal(undo: contextlib.ExitStack) -> None:
    """Stored text is printed as it is."""
    from holdfast.render import text

    never = re.compile("(?!)")
    replaced(undo, text, "_UNSAFE", never)
    replaced(undo, text, "_UNSAFE_IN_JSON", never)


@plant
def follow_links(undo: contextlib.ExitStack) -> None:
    """Files are opened wherever a link leads."""
    from holdfast.backends.files import disk

    replaced(undo, disk, "OPEN_FLAGS", disk.OPEN_FLAGS & ~os.O_NOFOLLOW)


@plant
def unbounded(undo: contextlib.ExitStack) -> None:
    """Whatever is compressed is decompressed, however much that is."""
    import zstandard

    from holdfast.core import codec
    from holdfast.errors import CorruptError

    def decompress(data: bytes, *, size_max: int) -> bytes:
        try:
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError as error:
            raise CorruptError(f"compressed data is damaged: {error}") from error

    replaced(undo, codec, "decompress", decompress)
