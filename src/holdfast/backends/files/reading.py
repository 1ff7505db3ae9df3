"""A store that is open for reading only: nothing is created, locked, recovered or cut.

While others use the store it follows their shared page. Otherwise it reads the text as far as it
verifies: up to the recorded end it must, and behind that it stops at the first line that does not.
What a crash left in the ring alone is not seen before somebody opens the store for writing.
"""

from __future__ import annotations

import os

from holdfast.backends.files import ring
from holdfast.backends.files.catalog import CHUNK_BYTES, Catalog, split_lines
from holdfast.backends.files.directory import Directory
from holdfast.backends.files.index import NAME as INDEX_NAME
from holdfast.backends.files.line import BadLine
from holdfast.backends.files.segments import DIRECTORY as LOG
from holdfast.backends.files.segments import Segments
from holdfast.backends.files.shared import CLOSED, END, NO_PAGE, SEGMENT, SharedPage, open_page
from holdfast.clock import Clock


class ReadOnly:
    """The parts of an open store, for a handle that may not write."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self.directory = directory
        self.disk = directory.disk
        self.clock = clock
        self.page: SharedPage | None = None
        self.page_words = NO_PAGE
        directory.identify(clock, create=False)
        segments = Segments(self.disk, directory.folder(LOG, create=False), read_only=True)
        index_path = os.path.join(directory.path, INDEX_NAME)
        self.catalog = Catalog(segments, index_path, directory.store, read_only=True)
        try:
            self._read_recorded()
        except BaseException:
            self.close(is_poisoned=False)
            raise

    def _read_recorded(self) -> None:
        """Reads what was recorded as durable, all of which must verify, and what lies behind it."""
        catalog = self.catalog
        catalog.segments.check_contiguous()
        catalog.open_index(catalog.segments.end())
        head = self.directory.read_head()
        if head is not None and head.end >= catalog.tail.cursor.end:
            catalog.apply_lines(head.end)
            if head != catalog.tail.cursor:
                raise catalog.corrupt(head.end, "the text is not the one head.json recorded")
        if (
            ring.read_batches(self.disk, self.directory.store, at=self.directory.fd)
            and not self._follow()
        ):
            catalog.reports.append(
                "the store was not closed: what is in its ring alone is not shown; open it for "
                "writing to recover"
            )
        self.fresh()

    def fresh(self) -> None:
        """Reads what others have published, or what lies in the text if there are no others."""
        catalog = self.catalog
        with catalog.mutex:
            if self._follow():
                end = self.page_words[END]
                if end > catalog.tail.cursor.end:
                    catalog.catch_up(end, self.page_words[SEGMENT])
                return
            catalog.segments.refresh()
            self._read_on(catalog.segments.end())

    def _follow(self) -> bool:
        """Returns whether there is a living page, mapped now if need be."""
        page = self.page
        if page is None or page.words[CLOSED]:
            self.page_words = NO_PAGE
            if page is not None:
                page.close()
            self.page = page = open_page(self.disk, at=self.directory.fd, read_only=True)
            self.page_words = NO_PAGE if page is None else page.words
        if page is None or page.words[CLOSED] or not page.is_of(self.clock.boot_id()):
            self.page_words = NO_PAGE
            return False
        self.page_words = page.words
        return True

    def _read_on(self, text_end: int) -> None:
        want = CHUNK_BYTES
        while (offset := self.catalog.tail.cursor.end) < text_end:
            text = self.catalog.segments.read(offset, min(offset + want, text_end))
            text = text[: text.rfind(b"\n") + 1]
            if not text:
                if offset + want >= text_end:
                    return
                want *= 2
            for encoded in split_lines(text):
                try:
                    self.catalog.apply_encoded(encoded)
                except BadLine:
                    return

    def close(self, *, is_poisoned: bool) -> None:
        del is_poisoned
        self.catalog.close_index(worth_bytes=None)
        self.catalog.segments.close()
        self.page_words = NO_PAGE
        if self.page is not None:
            self.page.close()

    def after_fork(self) -> None:
        self.directory.close()
