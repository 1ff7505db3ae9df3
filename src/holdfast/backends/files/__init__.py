"""Stores in a directory of plain files: readable, without a server, for one host."""

from holdfast.backends.files.backend import FilesBackend

__all__ = ["FilesBackend"]
