"""The view directories that one handle of a store has, so that an erasure writes them anew."""

from __future__ import annotations

import logging

from holdfast.backends.protocol import Leftover
from holdfast.core.kernel import Kernel
from holdfast.errors import HoldfastError
from holdfast.views.directory import Views

_logger = logging.getLogger("holdfast.views")


class KeptViews:
    """The directories of views that a handle has, in the order in which they were asked for."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._views: list[Views] = []

    def keep(self, views: Views) -> Views:
        """Notes a directory of views, which is closed before the store is."""
        self.show(views)
        self._kernel.on_close(views.close)
        return views

    def show(self, views: Views) -> None:
        """Notes a directory of views that somebody else closes."""
        self._views.append(views)

    def write_all(self) -> list[Leftover]:
        """Writes the files of all of them; returns those that are behind."""
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
