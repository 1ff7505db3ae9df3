"""File systems in memory, of a size or kind that a test chooses, where this user may mount one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def may_mount() -> bool:
    """Returns whether `mounted` works here."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory(prefix="holdfast-mount-") as place:
        try:
            with mounted(Path(place), "size=64k"):
                return True
        except subprocess.CalledProcessError:
            return False


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """Mounts a file system of its own at a directory."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "tmpfs", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)
