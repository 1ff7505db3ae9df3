"""The files backend: the contract of protocol.py on a directory of plain files (0001).

A process has two locks here. `_committing` is held through a commit and its sync. The catalog's
mutex is held while lines are applied and while the index is asked, so that readers do not wait for
the sync of a commit. `heads` takes neither if nothing is new.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from threading import RLock
from typing import TypeVar

from holdfast.backends.file_watch import FileWatch, idle_looks
from holdfast.backends.files import journal
from holdfast.backends.files.catalog import CHUNK_BYTES, Catalog, Tail
from holdfast.backends.files.damaged import Damaged, DamagedCatalog
from holdfast.backends.files.directory import (
    BUSY,
    CLOSED,
    END,
    NO_PAGE,
    REWRITTEN,
    SEGMENT,
    Directory,
    SharedPage,
    open_directory,
    open_page,
)
from holdfast.backends.files.directory import NAME as PAGE
from holdfast.backends.files.disk import Disk, reported, unavailable
from holdfast.backends.files.index import NAME as INDEX_NAME
from holdfast.backends.files.inspection import FileInspection
from holdfast.backends.files.leases import FileLeases, FileMarks
from holdfast.backends.files.objects import FileObjects
from holdfast.backends.files.opening import Opened
from holdfast.backends.files.pieces import may_be_line, split_lines
from holdfast.backends.files.recovery import TextAfterClose, text_after_close
from holdfast.backends.files.rewriting import purge, shorten
from holdfast.backends.files.taken import STORE
from holdfast.backends.files.text import DIRECTORY as LOG
from holdfast.backends.files.text import BadLine, LogLine, Segments, encode_line, fits_format_1
from holdfast.backends.gates import Waiters, held_here, reentered, shut_gate
from holdfast.backends.handle import Handle
from holdfast.backends.judge import Overlay, judge
from holdfast.backends.protocol import (
    GONE,
    START,
    Commit,
    Durability,
    Found,
    Head,
    Inspection,
    Leases,
    Leftover,
    LinkedRow,
    MarkQuery,
    Marks,
    MarksAtMoment,
    Moment,
    Objects,
    PayloadRow,
    Position,
    Receipt,
    Record,
    Refusal,
)
from holdfast.clock import Clock
from holdfast.errors import (
    CorruptError,
    FilesTakenError,
    HoldfastError,
    UnavailableError,
    UsageError,
)

_log = logging.getLogger("holdfast.backends")
T = TypeVar("T")

# --- reading only ---------------------------------------------------------------------------------
#
# A store that is open for reading only: nothing is created, locked, recovered or cut.
#
# While others use the store, it follows their shared page. Otherwise it reads the text: up to the
# recorded end every line must verify, and after that it stops at the first one that does not. What
# a crash left in the ring alone is not seen until somebody opens the store for writing.


class ReadOnly:
    """The parts of an open store, for a handle that may not write."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self.directory = directory
        self.disk = directory.disk
        self.clock = clock
        self.page: SharedPage | None = None
        self.page_words = NO_PAGE
        self._rewritten = 0
        directory.identify(clock, create=False)
        log_fd = directory.folder(LOG, create=False)
        segments = Segments(self.disk, log_fd, read_only=True)
        index_path = os.path.join(directory.path, INDEX_NAME)
        self.catalog = Catalog(segments, index_path, directory.store, read_only=True)
        # Only for the look while idle: there are no commits to ask it.
        self._watch = FileWatch()
        self._watch.keep(STORE, directory.path, directory.fd)
        self._watch.keep(LOG, LOG, log_fd, at=directory.fd)
        try:
            self._read_recorded()
        except BaseException:
            self.close(is_poisoned=False)
            raise

    def taken(self) -> list[str]:
        """Returns which files were taken from this handle, which only reads."""
        segments = self.catalog.segments
        with contextlib.suppress(OSError):  # the directory itself may be gone, which shows below
            segments.refresh()
        segments.forget_rewritten()
        taken = self._watch.taken()
        taken += [name for name, _, is_named in segments.held() if not is_named]
        page = self.page
        if page is not None and not page.words[CLOSED] and os.fstat(page.fd).st_nlink == 0:
            taken.append(PAGE)
        return taken

    def lose(self, taken: list[str]) -> FilesTakenError:
        """Returns the error for files that were taken; a handle that only reads saves nothing."""
        return FilesTakenError(
            f'files of the store "{self.directory.path}" were removed, replaced or moved while it '
            f"was open ({', '.join(taken)}): this handle would answer from what it remembers",
            hint="look what became of them, then open the store again",
        )

    def _read_recorded(self) -> None:
        """Reads what was recorded as durable, all of which must verify, and what comes after it."""
        catalog = self.catalog
        catalog.segments.check_contiguous()
        # Before the head: a writer takes `closed` back before it adds text. In the other order,
        # text that it adds meanwhile would pass for text after a clean close.
        text_end = catalog.segments.end()
        catalog.open_index(text_end)
        head, is_closed = self.directory.read_recorded()
        if head is not None and head.end >= catalog.tail.cursor.end:
            catalog.apply_lines(head.end)
            if head != catalog.tail.cursor:
                raise catalog.corrupt(head.end, "the text is not the one head.json recorded")
        batches = journal.read_batches(self.disk, self.directory.store, at=self.directory.fd)
        is_followed = self._follow()
        was_in_use = is_followed or batches is not None
        if head is not None and is_closed and not was_in_use and head.end < text_end:
            raise text_after_close(catalog.segments, head.end, text_end)
        if batches and not is_followed:
            catalog.reports.append(
                "the store was not closed: what is in its ring alone is not shown; open it for "
                "writing to recover"
            )
        self.fresh()

    def fresh(self) -> None:
        """Reads what others have published, or what the text has if nobody uses the store."""
        catalog = self.catalog
        with catalog.mutex:
            if self._follow():
                if self.page_words[REWRITTEN] != self._rewritten:
                    self._rewritten = self.page_words[REWRITTEN]
                    catalog.segments.forget_sealed(self.page_words[SEGMENT])
                end = self.page_words[END]
                if end > catalog.tail.cursor.end:
                    catalog.catch_up(end, self.page_words[SEGMENT])
                return
            catalog.segments.refresh()
            self._read_on(catalog.segments.end())

    def _follow(self) -> bool:
        """Returns whether a shared page is in use, and maps it if needed."""
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
            whole = text[: text.rfind(b"\n") + 1]
            if not whole:
                if offset + want >= text_end or not may_be_line(text):
                    return
                want *= 2
            text = whole
            for encoded in split_lines(text):
                try:
                    self.catalog.apply_encoded(encoded)
                except BadLine:
                    return

    def close(self, *, is_poisoned: bool) -> None:
        del is_poisoned
        self.release()

    def release(self) -> None:
        """Closes every descriptor; a second call does nothing."""
        self.catalog.close_index(worth_bytes=None)
        self.catalog.segments.close()
        self.page_words = NO_PAGE
        if self.page is not None:
            self.page.close()

    def after_fork(self) -> None:
        self.directory.close()


# --- the backend ----------------------------------------------------------------------------------

_POLL_S_MIN = 0.001
_POLL_S_MAX = 0.025


class FilesBackend(Handle):
    """A store in a directory, shared by all processes and threads of one host."""

    record_keys = True
    keeps_meta = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock,
        durability: Durability = "full",
        create: bool = True,
        read_only: bool = False,
        disk: Disk | None = None,
        reach: Callable[[str], None] | None = None,
    ) -> None:
        self.durability: Durability = durability
        self.clock = clock
        self.read_only = read_only
        self._poison: str | None = None
        self._taken: FilesTakenError | None = None
        self._committing = RLock()
        self._is_committing_here = held_here(self._committing)
        self._changed = Waiters()
        disk = disk or Disk()
        self.directory = open_directory(path, disk, create=create, read_only=read_only)
        try:
            with reported(f'the store "{self.directory.path}" cannot be opened'):
                self.opened: Opened | ReadOnly | Damaged = self._open(create=create, reach=reach)
        except BaseException:
            self.directory.close()
            raise
        super().__init__()  # only now: a handle that did not open has nothing to give up at a fork
        self.catalog: Catalog | DamagedCatalog = self.opened.catalog
        self._is_reading_here = held_here(self.catalog.mutex)
        self._is_in_text_here = held_here(self.catalog.segments.mutex)
        self._leases = FileLeases(self)
        self.leases: Leases = self._leases
        self.marks: Marks = FileMarks(self, self._leases)
        self.objects: Objects = FileObjects(self)
        self.inspect: Inspection = FileInspection(self)
        idle_looks.begin(self)

    def _open(
        self, *, create: bool, reach: Callable[[str], None] | None
    ) -> Opened | ReadOnly | Damaged:
        directory, clock = self.directory, self.clock
        try:
            if self.read_only:
                return ReadOnly(directory, clock)
            full = self.durability == "full"
            return Opened(directory, clock, full=full, create=create, reach=reach)
        except TextAfterClose:
            raise  # nothing is damaged: a person must decide which text counts
        except CorruptError as exc:
            # What can still be read should be readable: the store opens for reading only, and
            # reports what is lost. Everything opened and locked so far is given up first.
            directory.close()
            self.directory = open_directory(
                directory.path, directory.disk, create=False, read_only=True
            )
            damaged = Damaged(self.directory, clock, exc)
            self.read_only = True
            for report in damaged.catalog.reports:
                _log.warning("%s: %s", directory.path, report)
            return damaged

    # --- the life of the handle ---

    def check_open(self) -> None:
        """Raises if the handle was closed, inherited by a fork, or broken by a failed write."""
        if self._dead is not None:
            raise UsageError(self._dead)
        taken = self._taken
        if taken is not None:
            raise FilesTakenError(taken.message, rescued=taken.rescued, hint=taken.hint)
        if self._poison is not None:
            raise UnavailableError(self._poison, hint="open the store again")

    def look_while_idle(self) -> None:
        """Looks whether files were taken; if so, every later call raises FilesTakenError."""
        opened = self.opened
        if isinstance(opened, Damaged) or not self._committing.acquire(blocking=False):
            return  # it writes nothing, or a commit is under way and looks by itself
        try:
            if self._dead is not None or self._poison is not None or not opened.taken():
                return
            # Once more: another process may have sealed and replaced a segment while this one
            # looked, and the shared page tells of it by now.
            if taken := opened.taken():
                self._lose(opened, taken)
        finally:
            self._committing.release()

    def _look(self, opened: Opened, *, outcome_known: bool = True) -> None:
        """Raises if a file that a commit relies on was taken. The caller has `_committing`."""
        opened.follow_segments()
        if taken := opened.watch.look():
            raise self._lose(opened, taken, outcome_known=outcome_known)

    def _lose(
        self, opened: Opened | ReadOnly, taken: list[str], *, outcome_known: bool = True
    ) -> FilesTakenError:
        """Ends the handle; returns the error."""
        error = opened.lose(taken)
        error.outcome_known = outcome_known
        self._taken, self._poison = error, error.message
        return error

    def moment(self) -> Moment:
        return Moment(self.wait(START, timeout_s=0))

    def marks_at_moment(self) -> MarksAtMoment:
        with self.reading(), self.catalog.mutex:
            newest = Position(self.catalog.tail.cursor.position)
            marks = [mark for mark, _ in self.catalog.marks(MarkQuery(limit=1 << 40))]
        return MarksAtMoment(Moment(newest), newest, marks)

    def now_us(self, stream: str) -> int:
        self.check_open()
        return self.clock.now_us()

    def close(self) -> None:
        is_first = self.mark_closed()
        if self.is_inherited:
            return
        if self._is_committing_here():
            raise reentered("close()")
        idle_looks.end(self)
        self._changed.wake()
        with self._committing:
            try:
                if is_first:
                    self.opened.close(is_poisoned=self._poison is not None)
            finally:
                # Also if an earlier close was interrupted; what is closed already stays so.
                self.opened.release()
                self._leases.close()
                self.directory.close()

    def after_fork(self) -> None:
        self.opened.after_fork()

    def write(self, work: Callable[[Opened], T]) -> T:
        """Runs `work` under the store lock, with the catalog up to date; returns what it returns.

        This is no context manager: one that an interrupt leaves suspended would keep the lock.
        """
        self.check_open()
        opened = self.opened
        if not isinstance(opened, Opened):
            raise self._read_only_error()
        if self._is_committing_here():
            raise reentered("a write")
        with self._committing:
            self.check_open()
            try:
                opened.store_lock.acquire()
                if opened.watch.is_due(0):
                    self._look(opened)
                opened.catch_up()
                return work(opened)
            except OSError as exc:
                raise self._unwritable(exc) from exc
            finally:
                opened.store_lock.release()

    def check_writable(self) -> None:
        """Raises if the handle may not write."""
        if self.read_only:
            raise self._read_only_error()

    def _read_only_error(self) -> HoldfastError:
        if isinstance(self.opened, Damaged):
            return self.opened.error(f'nothing can be written to "{self.directory.path}"')
        return UsageError(
            f'the store "{self.directory.path}" is open read-only, found a write',
            hint="open it without read_only",
        )

    def _unwritable(self, exc: OSError, *, outcome_known: bool = True) -> UnavailableError:
        subject = f'the store "{self.directory.path}" cannot be written'
        return unavailable(exc, subject, outcome_known=outcome_known)

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Reads first what was published before, and translates errors inside the block."""
        self.check_open()
        if self._is_reading_here() or self._is_in_text_here():
            raise reentered("a read")
        try:
            self.opened.fresh()
            yield
        except OSError as exc:
            self.check_open()  # closed by another thread, and the descriptors with it
            raise unavailable(exc, f'the store "{self.directory.path}" cannot be read') from exc
        except Exception:
            # If another thread has closed the handle, that is the cause, whatever was missing: the
            # page, the index or the text.
            self.check_open()
            raise

    # --- writing ---

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        # The same as `write`, without its frames: they would be a fifth of the work of a commit.
        if self._dead is not None or self._poison is not None:
            self.check_open()
        opened = self.opened
        if not isinstance(opened, Opened):
            raise self._read_only_error()
        if self._is_committing_here():
            raise reentered("a write")
        with self._committing:
            if self._dead is not None or self._poison is not None:
                self.check_open()
            try:
                opened.store_lock.acquire()
                words = opened.page_words
                if words[BUSY] or words[END] != opened.catalog.tail.cursor.end:
                    opened.catch_up()
                return self._commit(opened, commits)
            except OSError as exc:
                raise self._unwritable(exc) from exc
            finally:
                opened.store_lock.release()

    def _commit(self, opened: Opened, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        catalog = opened.catalog
        overlay = None
        head_of, key_of = catalog.head, catalog.revision_of_key
        if len(commits) > 1 or (commits and commits[0].watch):
            overlay = Overlay(head_of, key_of)
            head_of, key_of = overlay.head_of, overlay.key_of
        outcomes: list[Receipt | Refusal] = []
        lines: list[tuple[LogLine, int, Commit]] = []
        texts: list[bytes] = []
        position = catalog.tail.cursor.position
        for commit in commits:
            refusal = judge(commit, head_of, key_of, self._leases.fence_holds, self.clock.now_us)
            if refusal is not None:
                outcomes.append(refusal)
                continue
            if opened.directory.format == 1 and not fits_format_1(commit):
                opened.directory.upgrade(self.clock)
            position += 1
            text, line = encode_line(commit, position)
            texts.append(text)
            lines.append((line, len(text), commit))
            if overlay is None:
                outcomes.append(Receipt(Position(position)))
            else:
                overlay.accept(commit, Position(position))
                outcomes.append(Receipt(Position(position), overlay.news(commit)))
        if texts:
            self._write(opened, texts[0] if len(texts) == 1 else b"".join(texts), lines, position)
        return outcomes

    def _write(
        self, opened: Opened, text: bytes, lines: list[tuple[LogLine, int, Commit]], position: int
    ) -> None:
        catalog, journal = opened.catalog, opened.journal
        cursor = catalog.tail.cursor
        watch = opened.watch
        # Nothing is written yet, so a loss found here has a known outcome. The look after the sync
        # is the one that counts.
        if watch.is_due(0) and (watch.is_notified or journal.has_lost_a_name()):
            self._look(opened)
        try:
            journal.write(text, cursor)
            # Prepared while the disk is at work, and shown to readers only after the sync.
            more = Tail(cursor, catalog.head, catalog.tail.heads)
            for line, length, commit in lines:
                more.apply(line, length, commit)
            journal.sync()
            # Are the files still where others will look for them? This is asked after the sync and
            # before the commit is acknowledged: a commit to files that were taken until now is not.
            if watch.is_due(0):
                self._look(opened, outcome_known=False)
            with catalog.mutex:
                # Published first, then shown here: a thread that sees the new end waits for this
                # mutex and then finds the lines. In the other order, threads of this process could
                # read lines that no other process sees yet.
                journal.publish(more.cursor.end, position)
                catalog.tail.take(more)
        except BaseException as exc:
            if journal.is_poisoned and self._taken is None:
                self._poison = (
                    f'the store "{self.directory.path}" failed in the middle of a write: '
                    "this handle cannot tell what is on the disk"
                )
                if not isinstance(exc, OSError | HoldfastError):
                    # Interrupted, not failed: no sync has reported an error, so recovery through
                    # this handle is as good as through another.
                    self._poison = None
                    journal.abandon()
            if isinstance(exc, OSError):
                raise self._unwritable(exc, outcome_known=not journal.is_poisoned) from exc
            raise
        if catalog.tail.cursor.end >= catalog.flush_at:
            # The commit is durable: an error of the index must not make it look refused.
            try:
                catalog.flush()
            except OSError as exc:
                _log.warning("the index was not brought up to date: %s", exc)
        if self._changed.gates:
            self._changed.wake()

    # --- letting go ---

    def rewrite(self, revisions: Mapping[str, Sequence[int]]) -> None:
        shorten(self, {name: dict.fromkeys(some, GONE) for name, some in revisions.items()})

    def shorten(self, payloads: Mapping[str, Mapping[int, bytes]]) -> None:
        shorten(self, payloads)

    def purge(self, *, whole: bool = False) -> list[Leftover]:
        return purge(self, whole=whole)

    def has_company(self, opened: Opened) -> bool:
        """Returns whether others have the store open; the caller has the store lock."""
        try:
            return opened.has_company()
        except BaseException:
            # The handle may have lost its place among those that have the store open. The next one
            # in would take itself for the first.
            self._poison = (
                f'the store "{self.directory.path}" cannot tell that this handle has it open'
            )
            raise

    def seal(self, opened: Opened) -> None:
        """Begins a new segment, so that the one before it can be rewritten.

        Its first line is an empty commit, by which every process learns of the new segment. The
        caller has the store lock.
        """
        opened.journal.is_sealing = True
        try:
            self._commit(opened, [Commit(self.clock.now_us(), "")])
        finally:
            opened.journal.is_sealing = False

    # --- reading ---

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        self.check_open()
        tail = self.catalog.tail
        try:
            if self.opened.page_words[END] == tail.cursor.end:
                found = list(map(tail.heads.get, streams))
                if None not in found:
                    return found
        except ValueError:
            self.check_open()  # closed by another thread, and the shared page with it
            raise
        with self.reading():
            return [self.catalog.head(stream) for stream in streams]

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        with self.reading():
            begin, end = self._bounds(stream, after, until, limit)
            return self.catalog.read(stream, begin, end) if end > begin else []

    def read_linked(
        self, stream: str, *, after: int, until: int | None, limit: int | None
    ) -> list[LinkedRow]:
        with self.reading():
            begin, end = self._bounds(stream, after, until, limit)
            return self.catalog.read_linked(stream, begin, end) if end > begin else []

    def read_payloads(self, stream: str, *, after: int, until: int) -> list[PayloadRow]:
        with self.reading():
            begin, end = self._bounds(stream, after, until, None)
            return self.catalog.read_payloads(stream, begin, end) if end > begin else []

    def _bounds(
        self, stream: str, after: int, until: int | None, limit: int | None
    ) -> tuple[int, int]:
        """Returns the part of the asked revisions that exists, as `after` and `until`."""
        head = self.catalog.head(stream)
        if head is None:
            return 0, 0
        begin = max(after, head.first - 1)
        end = head.revision if until is None else min(until, head.revision)
        return begin, end if limit is None else min(end, begin + limit)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        with self.reading():
            return self.catalog.read_all(after, limit)

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        with self.reading():
            return self.catalog.streams(prefix, after, limit)

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        with self.reading():
            if key is not None:
                found = self.catalog.find_key(stream, key)
                return [found][:limit] if found is not None else []
            return self.catalog.find_checkpoints(stream, checkpoint, limit)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        remaining_s, pause_s = timeout_s, _POLL_S_MIN
        gate = shut_gate()
        try:
            self._changed.add(gate)
            while True:
                with self.reading():
                    position = self.catalog.tail.cursor.position
                if position > after or remaining_s <= 0:
                    return Position(position)
                # Commits of this process open the gate. Those of others are found by looking at the
                # page again. The time is counted, not measured, so that no clock of a test can make
                # this wait for ever.
                gate.acquire(timeout=min(pause_s, remaining_s))
                remaining_s -= pause_s
                pause_s = min(pause_s * 2, _POLL_S_MAX)
        finally:
            self._changed.remove(gate)
