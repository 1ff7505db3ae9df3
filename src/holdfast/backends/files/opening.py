"""A store that this process has open for writing: opening, keeping up, recovering, and closing.

There are two locks between processes. `lock` is taken for each commit. `workers`, the directory, is
locked in shared mode by every open handle. So a handle that can lock it alone is the only one: the
first one in recovers, and the last one out closes the store cleanly. Whether a handle is alone is
only asked under `lock`, so that nobody can come or go while the answer is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from functools import partial

from holdfast.backends.file_watch import FileWatch
from holdfast.backends.files import directory as shared
from holdfast.backends.files import journal, recovery
from holdfast.backends.files.catalog import Catalog
from holdfast.backends.files.directory import (
    BUSY,
    CLOSED,
    END,
    LOCK,
    NO_PAGE,
    REWRITTEN,
    SEGMENT,
    SYNCED_END,
    Directory,
    SharedPage,
    open_page,
)
from holdfast.backends.files.index import NAME as INDEX_NAME
from holdfast.backends.files.journal import RingJournal, StoreLock
from holdfast.backends.files.taken import CUT, STORE, files_taken
from holdfast.backends.files.text import DIRECTORY as LOG
from holdfast.backends.files.text import BadLine, Segments, decode_line
from holdfast.clock import Clock
from holdfast.errors import FilesTakenError

_log = logging.getLogger("holdfast.backends")

# Reading less log than this is faster than writing it into the index. So a process that adds only a
# little leaves the index alone when it closes.
WORTH_INDEXING_BYTES = 256 << 10


class Opened:
    """The parts of an open store, for a handle that may write."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        *,
        full: bool,
        create: bool,
        reach: Callable[[str], None] | None,
    ) -> None:
        self.directory = directory
        self.disk = directory.disk
        self.clock = clock
        self._reach = reach
        # Before anything is created: a store of a newer format is left untouched.
        if directory.has_identity():
            directory.identify(clock, create=False)
        self._lock_fd = directory.open_lock()
        self._lock_inode = os.fstat(self._lock_fd).st_ino
        self.store_lock = StoreLock(self.disk, self._lock_fd, directory.fd)
        self.watch = FileWatch()
        try:
            self.store_lock.wait_in_turn()
            self._come_in(create=create, full=full)
        finally:
            self.store_lock.release()

    def _come_in(self, *, create: bool, full: bool) -> None:
        """Opens every part; the caller has the store lock."""
        directory, clock, reach = self.directory, self.clock, self._reach
        with contextlib.ExitStack() as undo:
            directory.identify(clock, create=create)
            self._workers_fd = directory.folder("workers")
            log_fd = directory.folder(LOG)
            segments = Segments(self.disk, log_fd, read_only=False)
            undo.callback(segments.close)
            index_path = os.path.join(directory.path, INDEX_NAME)
            self.catalog = Catalog(segments, index_path, directory.store, read_only=False)
            undo.callback(self.catalog.close_index, worth_bytes=None)
            is_first = self._is_alone()
            self.disk.lock(self._workers_fd, fcntl.LOCK_SH)
            self.page = self._open_page(is_first)
            undo.callback(self.page.close)
            self.page_words = self.page.words
            self._rewritten = self.page_words[REWRITTEN]
            self.journal = RingJournal(
                directory, segments, self.page, self.watch, full=full, reach=reach
            )
            if is_first or self.page.words[BUSY]:
                self.recover(is_first=is_first)
            else:
                self.catalog.open_index(self.page.words[END])
                self.fresh()
                self.catalog.remove_unusable_index()
            undo.callback(self.watch.close)
            self._watch_files(self._lock_fd, log_fd)
            self._undo = undo.pop_all()

    def catch_up(self) -> None:
        """Recovers if BUSY is set, and reads what others have published; under the store lock."""
        words = self.page.words
        if words[BUSY]:
            self.recover(is_first=False)
        elif words[END] != self.catalog.tail.cursor.end:
            self.fresh()

    def _is_alone(self) -> bool:
        try:
            self.disk.lock(self._workers_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def has_company(self) -> bool:
        """Returns whether other handles have the store open; the caller has the store lock.

        To try for the exclusive lock gives up the shared one for a moment. Nobody can see that: who
        comes, goes or asks does it under the store lock. The kernel's list of locks would not do:
        it is read in pieces, between which it changes, and leaves out what other containers hold.
        """
        take_back = partial(self.disk.lock, self._workers_fd, fcntl.LOCK_SH)
        try:
            return not self._is_alone()
        finally:
            take_back()

    # --- coming in, keeping up ---

    def _open_page(self, is_first: bool) -> SharedPage:
        page = open_page(self.disk, at=self.directory.fd, read_only=False)
        assert page is not None, "BUG: the shared page was not made"
        if is_first:
            return page
        if not page.is_of(self.clock.boot_id()):
            gone = "the shared page"
        elif page.words[LOCK] not in (0, self._lock_inode):
            # The processes that use the store take another lock file: if we took this one, two
            # could write at once.
            gone = "the lock"
        else:
            return page
        page.close()
        raise FilesTakenError(
            f'{gone} of "{self.directory.path}" was deleted while in use',
            hint="end every process that has the store open, then open it again",
        )

    def _watch_files(self, lock_fd: int, log_fd: int) -> None:
        """Watches the files that are open from the start; ring and segments follow when opened.

        `lock` and the newest segment are watched by their whole paths, so that a look at them also
        looks at the directories on the way.
        """
        keep, directory = self.watch.keep, self.directory
        at = directory.fd
        keep(STORE, directory.path, directory.fd, is_implied=True)
        keep("lock", os.path.join(directory.path, "lock"), lock_fd)
        keep("workers", "workers", self._workers_fd, at=at)
        keep(shared.NAME, shared.NAME, self.page.fd, at=at)
        keep(LOG, LOG, log_fd, at=at, is_implied=True)
        self.catalog.segments.watch_newest(self.watch, os.path.join(directory.path, LOG))

    def taken(self) -> list[str]:
        """Returns which files were taken; it looks at more than a commit does."""
        self.follow_segments()
        taken = self.watch.taken()
        end = self.catalog.tail.cursor.end  # before the segments, so that it lies within them
        segments = self.catalog.segments
        # One that is being replaced just now: the shared page tells only when it is done.
        segments.forget_rewritten()
        taken += [name for name, _, is_named in segments.held() if not is_named]
        held_end = segments.held_end()
        if held_end is not None and held_end < end:
            taken.append(CUT)
        if journal.NAME not in taken and self.journal.is_cut():
            taken.append(journal.NAME)
        return taken

    def follow_segments(self) -> None:
        """Notices, by the shared page, new segments and segments that others have rewritten."""
        segments, words = self.catalog.segments, self.page.words
        if segments.starts and words[SEGMENT] > segments.newest:
            segments.refresh()
        if words[REWRITTEN] != self._rewritten:
            self._rewritten = words[REWRITTEN]
            segments.forget_sealed(words[SEGMENT])

    def lose(self, taken: list[str]) -> FilesTakenError:
        """Saves what this handle still holds; returns the error. The handle is dead afterwards."""
        segments = self.catalog.segments
        if journal.NAME in taken:
            # The text has every commit, but is not synced. That was safe only because of the ring,
            # which is gone.
            with contextlib.suppress(OSError):
                segments.sync(self.page.words[SYNCED_END])
        position = self.catalog.tail.cursor.position
        return files_taken(
            self.directory, segments, self.journal.ring_fd, taken, position, self.clock
        )

    def fresh(self) -> None:
        """Reads what others have published."""
        words = self.page.words
        if words[REWRITTEN] != self._rewritten:
            self.follow_segments()
        end = words[END]
        if end != self.catalog.tail.cursor.end:
            self.catalog.catch_up(end, words[SEGMENT])

    def recover(self, *, is_first: bool) -> None:
        """Recovers (see recovery.py); the caller has the store lock."""
        catalog, words = self.catalog, self.page.words
        is_of_boot = self.page.is_of(self.clock.boot_id())
        self.reach("files.recovery.begun")
        basis = recovery.complete_text(
            self.directory,
            catalog.segments,
            published_end=words[END] if is_of_boot and not words[CLOSED] else 0,
            was_in_use=not is_first or words[shared.MAGIC] != 0,
        )
        self.reach("files.recovery.completed")
        with catalog.mutex:
            if is_first:
                catalog.open_index(basis.text_end)
            torn = recovery.read_text(catalog, basis)
            catalog.remove_unusable_index()
            recovery.settle(self.directory, catalog, basis, torn, self.clock)
            self.reach("files.recovery.synced")
            if is_first:
                self.page.make(self.clock.boot_id())
                self.page.words[LOCK] = self._lock_inode
            recovery.publish(self.directory, self.page, catalog, basis)
        self.reach("files.recovery.published")

    def reach(self, point: str) -> None:
        if self._reach is not None:
            self._reach(point)

    # --- leaving ---

    def close(self, *, is_poisoned: bool) -> None:
        """Closes the handle; the last one out closes the store cleanly.

        A failing disk raises nothing: the ring has what was acknowledged, so it stays, and the next
        process that opens the store recovers from it. It stays too if files were taken, and then
        FilesTakenError is raised.
        """
        try:
            if not is_poisoned:
                try:
                    self.store_lock.wait_in_turn()
                    self._leave()
                finally:
                    self.store_lock.release()
        except OSError as exc:
            _log.warning("the next to open %s has to recover it: %s", self.directory.path, exc)
        finally:
            self.release()

    def _leave(self) -> None:
        words = self.page.words
        if taken := self.taken():
            raise self.lose(taken)
        self.disk.lock(self._workers_fd, fcntl.LOCK_UN)
        if words[BUSY]:
            return
        self.fresh()
        if not self._has_last_line():
            raise self.lose([CUT])
        is_last = self._is_alone()
        try:
            self.catalog.close_index(worth_bytes=WORTH_INDEXING_BYTES)
            self.reach("files.close.indexed")
            if is_last:
                self._close_cleanly()
        finally:
            # Still under the store lock: the next process to open the store must see that it is
            # alone.
            self.disk.lock(self._workers_fd, fcntl.LOCK_UN)

    def _has_last_line(self) -> bool:
        """Returns whether the text still ends with the newest line that this handle knows.

        If somebody has overwritten the file, the ring must stay: it has the last copy of the line.
        """
        tail = self.catalog.tail
        if not tail.offsets:
            return True
        try:
            line = decode_line(self.catalog.segments.read(tail.offsets[-1], tail.cursor.end))
        except BadLine:
            return False
        return line.n == tail.cursor.position

    def _close_cleanly(self) -> None:
        words, segments = self.page.words, self.catalog.segments
        cursor = self.catalog.tail.cursor
        # Each step makes the next one safe: head.json may record only text that is synced, and the
        # ring may go only when the text is durable and head.json says where it ends. The page goes
        # last. A kill in between leaves ring or page, which tell that the store was not closed.
        if segments.starts:
            segments.cut(cursor.end)
            if words[SYNCED_END] < cursor.end:
                segments.sync(words[SYNCED_END])
        self.reach("files.close.synced")
        if self.directory.read_recorded() != (cursor, True) and cursor.position:
            self.directory.write_head(cursor, closed=True)
        self.reach("files.close.recorded")
        self.directory.remove(journal.NAME)
        self.reach("files.close.unringed")
        words[CLOSED] = 1
        self.directory.remove(shared.NAME)

    def release(self) -> None:
        """Closes every descriptor; a second call does nothing."""
        self.page_words = NO_PAGE
        self.journal.close()
        self._undo.close()

    def after_fork(self) -> None:
        """Gives up the descriptors in a forked child, without taking any lock of the threads."""
        self.watch.close()
        self.journal.after_fork()
        self.directory.close()
