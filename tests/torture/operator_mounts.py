"""Mounts as an operator makes them: over a file of a store, or of one file alone into containers.

They are made in a mount namespace of this process, so that nothing is left of them afterwards.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.torture.operator_hands import Scene, Undo
from tests.torture.operator_workers import copy_of

_NEW_NAMESPACE = 0x20000
_BIND, _PRIVATE, _RECURSIVE = 0x1000, 1 << 18, 0x4000
_DETACH = 2
_mounted: list[Path] = []


@cache
def _libc() -> ctypes.CDLL:
    """Returns the C library, with this process in a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_NAMESPACE), "unshare")
    _check(libc.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None), "mount")
    return libc


def begin() -> None:
    """Gives this process a namespace of its own, before it starts those who must see its mounts."""
    _libc()


def bind(source: Path, at: Path) -> None:
    """Shows a file or a directory at another place, too."""
    if source.is_dir():
        at.mkdir(0o700, exist_ok=True)
    else:
        at.parent.mkdir(0o700, exist_ok=True)
        at.touch(0o600)
    found = _libc().mount(os.fsencode(source), os.fsencode(at), None, _BIND, None)
    _check(found, f"mount {at}")
    _mounted.append(at)


def unbind(at: Path) -> None:
    """Takes it away, whoever still uses it."""
    _mounted.remove(at)
    _check(_libc().umount2(os.fsencode(at), _DETACH), f"umount {at}")


@contextmanager
def undone() -> Generator[None]:
    """Takes away, at the end of the block, every mount that was made in it and is still there."""
    try:
        yield
    finally:
        while _mounted:
            unbind(_mounted[-1])


def mount_over(scene: Scene) -> Undo:
    """A copy of it is mounted over its name, as a container's volume is."""
    copy_of(scene.path, scene.aside)
    bind(scene.aside, scene.path)
    return lambda: unbind(scene.path)


def alone(scene: Scene) -> Undo:
    """The file alone in two containers: what lies beside it is another one in each."""
    for name in ("a", "b"):
        bind(scene.path, scene.aside.with_name(name) / scene.path.name)


def together(scene: Scene) -> Undo:
    """The directory that has everything, in two containers: nothing is wrong with that."""
    for name in ("a", "b"):
        bind(scene.path, scene.aside.with_name(name))


BEFORE = (alone, together)
"""What is done before anybody opens the store; the workers open it at the two places."""


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
