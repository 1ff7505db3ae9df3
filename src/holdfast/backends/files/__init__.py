"""Stores in a directory of plain files: readable, without a server, for one host."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "holdfast keeps files on Linux and macOS only: Windows has neither flock nor fdatasync; "
        'use "sqlite:", "redis://" or "postgresql://" there'
    )

from holdfast.backends.files.backend import FilesBackend

__all__ = ["FilesBackend"]
