"""The view directories of one store handle, which an erasure writes anew."""

from __future__ import annotations

import logging

from holdfast.backends.protocol import Leftover
from holdfast.core.kernel import Kernel
from holdfast.errors import HoldfastError
from holdfast.views.directory import Views

_logger = logging.getLogger("holdfast.views")


class KeptViews:
    """The view directories of a handle, in the order in which they were opened."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._views: list[Views] = []

    def keep(self, views: Views) -> Views:
        """Registers a directory of views, and closes it before the store is closed."""
        self.show(views)
        self._kernel.on_close(views.close)
        return views

    def show(self, views: Views) -> None:
        """Registers a directory of views that the caller closes."""
        self._views.append(views)

    def write_all(self) -> list[Leftover]:
        """Writes the files of all directories; returns those that may still show erased data."""
        left: list[Leftover] = []
        for views in self._views:
            try:
                views.sync()
                views.forget_read()
                behind = [one for one in views.status() if one.status not in ("fresh", "missing")]
                left += [
                    Leftover(
                        str(views.directory / one.file),
                        f"the file is {one.status}, and may show what was erased: `holdfast views "
                        "status` says why, `views reject` writes it anew",
                    )
                    for one in behind
                ]
            except (HoldfastError, OSError) as error:
                _logger.warning("files of %s were not written: %s", views.directory, error)
                remedy = f"its files were not written ({error}): `holdfast views write` does it"
                left.append(Leftover(str(views.directory), remedy))
        return left
