"""What all parts of one store's record share: the log, and who this worker is."""

from __future__ import annotations

from holdfast.log import Log


class Book:
    """One per store. Parts that keep something for the life of the store keep it here."""

    def __init__(self, log: Log, *, worker: str) -> None:
        self.log = log
        self.worker = worker
