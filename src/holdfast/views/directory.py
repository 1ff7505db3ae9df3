"""A directory of view files: written from the log, and imported when a person has edited them.

    views = hf.views(".", [task_list(hf.workflow("w1"))])
    views.sync()      # imports what was edited, then writes what has changed

For each file, under a lock that all processes of the directory share:

1. Read the file. If it is not the last text that the log knows, somebody edited it: what they
   changed becomes one commit, with them as actor and "file" as source.
2. Render the file from the newest state: the text that it holds, with the changed items replaced.
3. Exchange the new text with the file, and look at what came out. If that is not what was read in
   step 1, somebody saved meanwhile: import that too, and render once more.

The commit has an idempotency key made from both texts, so an import that a crash interrupted is
not done twice. What is needed after a crash is kept beside the files (`last_text.py`): the text
that is being written, what came out of the exchange, and the last text. What a person wrote is
never only in memory.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import logging
import os
import pwd
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import kept_closed
from holdfast.core.event import to_datetime
from holdfast.core.kernel import kernel_of
from holdfast.core.log import Log
from holdfast.core.provenance import provenance
from holdfast.errors import NotFoundError, UnavailableError, UsageError, show_value
from holdfast.exchange import exchange, open_unnoticed, put, read_file, write_new
from holdfast.joint_commit import JointCommit
from holdfast.scope import Scope
from holdfast.views.freshness import Freshness
from holdfast.views.item import BrokenFile, Finding
from holdfast.views.item_view import ItemView, Seen, signature
from holdfast.views.last_text import (
    DIRECTORY,
    KeptFiles,
    LastText,
    decode_last,
)
from holdfast.views.rows import RowView

FileView = ItemView | RowView

_logger = logging.getLogger("holdfast.views")

SETTLE_S = 0.1
"""A file that is edited in place is read once nothing was written to it for so long."""
_SETTLE_ROUNDS = 20
BROKEN_S = 0.5
"""A copy of a broken file is kept once the file has been unchanged for so long."""
_ROUNDS = 8
"""How often a file is read again, if somebody saves it each time before it can be written."""

FileStatus = Literal["fresh", "edited", "behind", "missing", "broken", "pending"]


class ViewStatus(Struct, frozen=True):
    """How one file compares with the log."""

    file: str
    status: FileStatus
    scope: str
    changed_at: datetime | None = None
    """When it was last saved by somebody else; None if the text is the last that the log knows."""
    message: str = ""
    diff: str = ""


class StoreOfViews(Protocol):
    """What views need of a store."""

    @property
    def _log(self) -> Log: ...
    @property
    def commit(self) -> Any: ...


class _Found(Struct, frozen=True):
    """A file as it was read."""

    data: bytes | None
    changed_us: int = 0
    owner: int = -1
    inode: int = -1
    mode: int | None = None


class Views:
    """The view files of one directory."""

    def __init__(
        self,
        store: StoreOfViews,
        directory: str | os.PathLike[str],
        views: Sequence[FileView],
        *,
        person: str | None = None,
        more: Callable[[], Iterable[FileView]] | None = None,
    ) -> None:
        self._mutex = RLock()
        self._more = more
        self._fresh: Freshness | None = None
        self._written: dict[str, int] = {}
        self.directory = Path(directory)
        self._store = store
        self._log = kernel_of(store).log
        self._views = {view.path: view for view in views}
        self._person = person
        self._last: dict[str, LastText | None] = {}
        self._stored: dict[str, bytes | None] = {}
        self._inodes: dict[str, int] = {}
        self._are_reads_noted: bool | None = None
        if len(self._views) != len(views):
            raise UsageError("two views have the same file: each needs its own")
        for path, view in self._views.items():
            _check_path(path)
            if view.scope.subject is not None:
                raise UsageError(
                    f'scope "{view.scope.name}" is a subject\'s: a file would be a copy in clear',
                    hint="hf.subjects.get(…) and `holdfast subject export` show what is held of it",
                )

    @property
    def files(self) -> list[str]:
        """The files, as paths in the directory."""
        return list(self._views)

    # --- what is asked ---------------------------------------------------------------------------

    def sync(self) -> list[Finding]:
        """Imports edits and writes every file that is behind; returns what was found."""
        with self._lock():
            self._look_for_more()
            return [one for view in self._views.values() for one in self._sync(view)]

    write = sync

    def accept(self, file: str) -> list[Finding]:
        """Imports an edit that is pending because more than half of the items are gone."""
        view = self._view(file)
        with self._lock():
            return self._sync(view, accept=True)

    def reject(self, file: str) -> list[Finding]:
        """Writes the text of the log in place of an edit, which is kept beside the file."""
        view = self._view(file)
        with self._lock():
            found = self._read(view)
            if found.data is not None:
                self._set_aside(view, found.data, "rejected")
            last = self._load(view)
            text = None if last is None else last.data
            named = {} if last is None else last.named
            self._write(view, found, view.render(text, named, last))
            return [Finding(view.path, "refused", "the edit was rejected; it is kept beside it")]

    def replace(self, file: str, text: bytes) -> list[Finding]:
        """Puts a text in the place of a file and imports it; what was there is kept beside it."""
        view = self._view(file)
        with self._lock():
            target = self.directory / view.path
            aside = self._aside(target, "replaced")
            try:
                # Exchanged and not written over: an edit that is saved meanwhile is what comes out.
                write_new(aside, text, self._read(view).mode)
                while exchange(aside, target) == "absent":
                    if put(aside, target):
                        break
                else:
                    if read_file(aside) == text:
                        aside.unlink()
            except OSError as error:
                raise UnavailableError(
                    f'the view "{target}" cannot be written: {error}',
                    hint="free space, or look at it",
                ) from error
            return self._sync(view, accept=True)

    def forget_read(self) -> None:
        """Forgets the older texts that edits are compared with: some of it was erased."""
        with self._lock():
            for view in self._views.values():
                last = self._load(view)
                if last is not None and last.unread:
                    self._kept(view).save(replace(last, unread={}))

    def status(self) -> list[ViewStatus]:
        """Returns how each file compares with the log; changes none of them."""
        with self._lock():
            self._look_for_more()
            return [self._status(view) for view in self._views.values()]

    def keep_fresh(self, tell: Callable[[Finding], object] | None = None) -> None:
        """Syncs after each commit and after each edit, in the background, until `close`.

        A file is written at most once in 100 ms. `tell` is called with each finding, from another
        thread.
        """
        if self._fresh is None:
            self._fresh = Freshness(self._log, self.directory, lambda: self.files, self.sync, tell)

    def _look_for_more(self) -> None:
        """Adds views of what is new, such as the states of new scopes."""
        for view in () if self._more is None else self._more():
            if view.path not in self._views:
                _check_path(view.path)
                self._views[view.path] = view

    def _view(self, file: str) -> FileView:
        if file not in self._views:
            raise NotFoundError(
                f"there is no view {show_value(file)}", hint=f"there are {', '.join(self._views)}"
            )
        return self._views[file]

    # --- one file --------------------------------------------------------------------------------

    def _status(self, view: FileView) -> ViewStatus:
        found, last, scope = self._read(view), self._load(view), view.scope.name
        if found.data is None:
            return ViewStatus(view.path, "missing", scope)
        text = b"" if last is None else last.data
        changed_at = to_datetime(found.changed_us) if found.data != text else None
        diff = _difference(view.path, text, found.data)
        try:
            seen = view.read(found.data, last, is_read=self._is_read(view, last))
            new = view.render(found.data, {} if last is None else last.named, last)
        except BrokenFile as broken:
            return ViewStatus(view.path, "broken", scope, changed_at, str(broken), diff)
        if _is_mass_removal(seen):
            message = f"{seen.removed} of {seen.had} items are gone from it"
            return ViewStatus(view.path, "pending", scope, changed_at, message, diff)
        if seen.edits or (last is not None and found.data != last.data):
            message = f"{len(seen.edits)} items differ from what was written last"
            return ViewStatus(view.path, "edited", scope, changed_at, message, diff)
        if new != found.data:
            return ViewStatus(view.path, "behind", scope, changed_at)
        return ViewStatus(view.path, "fresh", scope, changed_at)

    def _sync(self, view: FileView, *, accept: bool = False) -> list[Finding]:
        if view.scope.subject is not None:
            _logger.warning('"%s" is not written: its scope is a subject\'s by now', view.path)
            return []
        findings = self._finish_exchange(view)
        for _ in range(_ROUNDS):
            found = self._read(view)
            last = self._load(view)
            text, named = found.data, {} if last is None else last.named
            if found.data is None:
                if last is not None:
                    message = "the file was deleted: it is written again"
                    findings.append(Finding(view.path, "deleted", message))
                    text = last.data
            elif last is None or found.data != last.data:
                found = self._settled(view, found)
                if found.data is None:
                    continue
                text = found.data
                try:
                    named, told = self._import(view, found, last, accept=accept)
                except BrokenFile as broken:
                    return [*findings, self._broken(view, found, last, broken)]
                findings += told
                if told and told[-1].kind == "pending":
                    return findings
            try:
                new = view.render(text, named, last)
            except BrokenFile as broken:  # it can be read, but not added to
                assert found.data is not None, "BUG: a text of ours that cannot be written to"
                return [*findings, self._broken(view, found, last, broken)]
            if new == found.data or self._write(view, found, new, findings):
                if new == found.data:
                    self._keep(view, self._known(view, new, {}, self._load(view)))
                return findings
        findings.append(Finding(view.path, "refused", "it changes faster than it can be written"))
        return findings

    def _import(
        self, view: FileView, found: _Found, last: LastText | None, *, accept: bool = False
    ) -> tuple[dict[str, list[str]], list[Finding]]:
        """Commits an edit; returns the ids of lines that show none, and what was done."""
        assert found.data is not None, "BUG: an edit without a text"
        data, known = found.data, LastText() if last is None else last
        seen = view.read(data, last, is_read=self._is_read(view, last))
        findings = list(seen.findings)
        if _is_mass_removal(seen) and not accept:
            message = (
                f"{seen.removed} of {seen.had} items are gone from it: "
                f"nothing is done before `holdfast views accept {view.path}`, or reject"
            )
            diff = _difference(view.path, known.data, data)
            return {}, [*findings, Finding(view.path, "pending", message, diff=diff)]
        ids: dict[int, str] = {}
        if last is None and findings:
            self._set_aside(view, data, "unknown")
        if seen.edits:
            key = sha256(f"{view.path}\0{known.digest}\0".encode() + data).hexdigest()[:32]
            told, ids = self._commit(view, seen, key, found.owner)
            findings += told
        named = dict(known.named)
        items = view.document(data).items
        for place, id in ids.items():
            mark = signature(items[place].fields)
            named[mark] = [*named.get(mark, []), id]
        diff = _difference(view.path, known.data, data)
        findings = [
            replace(one, diff=diff) if one.kind == "refused" and not one.diff else one
            for one in findings
        ]
        for one in findings:
            _logger.info("%s", one)
        self._keep(view, self._known(view, data, named, last))
        return named, findings

    def _commit(
        self, view: FileView, seen: Seen, key: str, owner: int
    ) -> tuple[list[Finding], dict[int, str]]:
        """Commits edits once.

        If a crash hid the answer of an earlier attempt, the key finds that commit, and its ids are
        returned.
        """
        done: list[JointCommit] = []

        def record(tx: JointCommit) -> tuple[list[Finding], dict[int, str]]:
            done[:] = [tx]
            return view.apply(tx, seen, key)

        with provenance(source="file", actor=self._person or _name_of(owner)):
            findings, ids = self._store.commit(record, key=f"view:{key}")
        result = done[0].result
        if result is not None and result.repeated:
            return [], view.added_before(seen, key)
        return findings, ids

    # --- files -----------------------------------------------------------------------------------

    def _place(self, view: FileView) -> Path:
        """Returns where a file is; raises UsageError if a link on the way leads out of the root.

        A cloned repository may contain such a link, and name a view through it.
        """
        path = self.directory / view.path
        folder, root = os.path.realpath(path.parent), os.path.realpath(self.directory)
        if os.path.commonpath((folder, root)) != root:
            raise UsageError(
                f'the view "{view.path}" leads out of its directory: a link on the way goes to '
                f'"{folder}"',
                hint="remove the link, or name another file",
            )
        return path

    def _read(self, view: FileView) -> _Found:
        path = self._place(view)
        try:
            descriptor = open_unnoticed(path)
        except FileNotFoundError:
            return _Found(None)
        except OSError as error:
            raise _unreadable(path, error) from error
        with open(descriptor, "rb") as file:
            try:
                data = file.read()
            except OSError as error:
                raise _unreadable(path, error) from error
            facts = os.fstat(descriptor)
        return _Found(
            data, facts.st_mtime_ns // 1000, facts.st_uid, facts.st_ino, facts.st_mode & 0o7777
        )

    def _settled(self, view: FileView, found: _Found) -> _Found:
        """Returns the file once nobody seems to be writing it.

        An editor that saves by renaming a new file leaves another inode, which is complete. One
        that writes in place, into the file that we wrote, may not have finished.
        """
        clock = self._log.clock
        for _ in range(_SETTLE_ROUNDS):
            age_s = (clock.now_us() - found.changed_us) / 1e6
            is_whole = found.inode != self._inodes.get(view.path, found.inode)
            if is_whole or not 0 <= age_s < SETTLE_S:
                break
            clock.sleep(SETTLE_S - age_s)
            found = self._read(view)
        return found

    def _write(
        self, view: FileView, found: _Found, new: bytes, findings: list[Finding] | None = None
    ) -> bool:
        """Replaces the file that was read by a text.

        Returns False if somebody saved the file meanwhile. Then everything is as they left it, or
        their text has been imported, and the file must be read again.
        """
        kept, target = self._kept(view), self.directory / view.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Both are on the disk before the exchange: after a crash `_finish_exchange` tells from
            # them whether the names were exchanged, and has what came out.
            facts = write_new(kept.new, new, found.mode)
            write_new(kept.coming, self._rendered(view, new, found.data, facts).encode())
            self._hold(view, kept.new)
            if found.data is None:
                if not put(kept.new, target):
                    return False
            else:
                outcome = exchange(kept.new, target)
                if outcome == "absent":
                    return False
                came_out = read_file(kept.new)
                if came_out is not None and came_out != found.data:
                    return self._take_over(view, found, came_out, new, findings)
                if outcome == "beaten":
                    kept.new.unlink(missing_ok=True)
                    return False
                self._note_late_read(view, found.data, new, facts)
            self._end_exchange(view)
        except OSError as error:
            raise UnavailableError(
                f'the view "{target}" cannot be written: {error}', hint="free space, or look at it"
            ) from error
        return True

    def _end_exchange(self, view: FileView) -> None:
        """Makes the text that is in place now the last one; ends the protocol of an exchange."""
        kept = self._kept(view)
        kept.coming.replace(kept.last)
        kept.new.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._inodes[view.path] = os.stat(self.directory / view.path).st_ino

    def _take_over(
        self,
        view: FileView,
        found: _Found,
        saved: bytes,
        placed: bytes,
        findings: list[Finding] | None,
    ) -> bool:
        """Imports what somebody saved right before the exchange, and what came out of it.

        The file has what we rendered. It gets their text, with its items as the log has them now.
        What comes out of this second exchange should be our text. If it is not, somebody saved once
        more, and that text is kept beside the file.
        """
        kept, target = self._kept(view), self.directory / view.path
        told: list[Finding] = [] if findings is None else findings
        before = self._load(view)
        theirs = replace(found, data=saved, changed_us=self._log.clock.now_us())
        with contextlib.suppress(OSError):
            facts = os.stat(kept.new)
            theirs = replace(theirs, changed_us=facts.st_mtime_ns // 1000, owner=facts.st_uid)
        try:
            named, imported = self._import(view, theirs, self._load(view))
        except BrokenFile as broken:
            named, imported = {}, [self._broken(view, theirs, self._load(view), broken)]
        told += imported
        if imported and imported[-1].kind in ("broken", "pending"):
            # Their text goes back into its place, and is imported once that is possible.
            exchange(kept.new, target)
            came_out = read_file(kept.new)
            if came_out is not None and came_out not in (placed, saved):
                self._set_aside(view, came_out, "saved")
            kept.new.unlink(missing_ok=True)
            kept.coming.unlink(missing_ok=True)
            return False
        again = view.render(saved, named, before)
        facts = write_new(kept.again, again, found.mode)
        self._hold(view, kept.again)
        outcome = exchange(kept.again, target)
        if outcome != "exchanged":
            return False
        came_out = read_file(kept.again)
        if came_out is not None and came_out != placed:
            self._set_aside(view, came_out, "saved")
            message = "it was saved again while it was written: that text is kept beside it"
            told.append(Finding(view.path, "conflict", message))
        write_new(kept.coming, self._rendered(view, again, saved, facts).encode())
        self._end_exchange(view)
        kept.again.unlink(missing_ok=True)
        return True

    def _finish_exchange(self, view: FileView) -> list[Finding]:
        """Completes an exchange that a process left unfinished when it died."""
        kept = self._kept(view)
        if not kept.coming.exists() and not kept.new.exists():
            return []
        coming, came_out = decode_last(read_file(kept.coming)), read_file(kept.new)
        kept.again.unlink(missing_ok=True)
        last = self._load(view)
        is_placed = coming is not None and self._read(view).data == coming.data
        if coming is None or (came_out == coming.data and not is_placed):
            # The names were not exchanged.
            kept.new.unlink(missing_ok=True)
            kept.coming.unlink(missing_ok=True)
            return []
        findings: list[Finding] = []
        known = None if last is None else last.data
        if came_out is not None and came_out not in (known, coming.data):
            findings = self._import_late(view, came_out, coming)
        self._end_exchange(view)
        return findings

    def _import_late(self, view: FileView, saved: bytes, coming: LastText) -> list[Finding]:
        """Imports what came out of an exchange before a crash."""
        kept = self._kept(view)
        facts = os.stat(kept.new)
        theirs = _Found(saved, facts.st_mtime_ns // 1000, facts.st_uid)
        last = self._load(view)
        try:
            named, findings = self._import(view, theirs, last)
        except BrokenFile as broken:
            return [self._broken(view, theirs, last, broken)]
        if findings and findings[-1].kind == "pending":
            self._set_aside(view, saved, "saved")
            return findings
        current = self._read(view)
        if current.data != coming.data:
            self._set_aside(view, saved, "saved")
            return findings
        again = view.render(saved, named, last)
        write_new(kept.again, again, current.mode)
        exchange(kept.again, self.directory / view.path)
        write_new(kept.coming, self._known(view, again, {}, last).encode())
        kept.again.unlink(missing_ok=True)
        return findings

    # --- what is kept beside the files -----------------------------------------------------------

    def _kept(self, view: FileView) -> KeptFiles:
        return KeptFiles.of(self.directory, view.path)

    def _load(self, view: FileView) -> LastText | None:
        """Returns the last text of a view, if it belongs to this history of the log."""
        stored = read_file(self._kept(view).last)
        if view.path in self._last and self._stored.get(view.path) == stored:
            return self._last[view.path]
        last = decode_last(stored)
        self._stored[view.path] = stored
        if last is not None and not self._is_of_this_log(last, view.scope):
            _logger.warning("the last text of %s is of another history of the store", view.path)
            last = None
        self._last[view.path] = last
        return last

    def _is_of_this_log(self, last: LastText, scope: Scope) -> bool:
        if last.stream != scope.name:
            return False
        if last.revision == 0:
            return True
        head = self._log.head(last.stream)
        if head is None or head.revision < last.revision:
            return False
        records = self._log.read(last.stream, after=last.revision - 1, until=last.revision)
        return [record.link.hex() for record in records] == [last.link]

    def _known(
        self, view: FileView, data: bytes, named: dict[str, list[str]], last: LastText | None
    ) -> LastText:
        """Returns a text as the last one that the log knows, at the newest revision."""
        head = self._log.head(view.scope.name)
        revision, link = (0, "") if head is None else (head.revision, head.link.hex())
        known = LastText(
            data,
            view.scope.name,
            revision,
            link,
            named=named,
            strangers=view.strangers(data, self._load(view)),
        )
        if last is None or last.data != data:
            return known
        return replace(known, unread=last.unread, inode=last.inode, atime_ns=last.atime_ns)

    def _rendered(
        self, view: FileView, new: bytes, old: bytes | None, facts: os.stat_result
    ) -> LastText:
        """Returns a text that we write over an old one, as the last one that the log knows."""
        last = self._load(view)
        known = self._known(view, new, {}, None)
        before = {}
        if last is not None and old == last.data and not self._is_read(view, last):
            before = last.unread
        unread: dict[str, Any] = {}
        if old is not None:
            # A broken file is replaced when it is rejected; then there is nothing to compare.
            with contextlib.suppress(BrokenFile):
                unread = view.unread(old, new, before)
        return replace(
            known,
            unread=unread,
            inode=facts.st_ino,
            atime_ns=facts.st_atime_ns,
        )

    def _is_read(self, view: FileView, last: LastText | None) -> bool:
        """Returns whether anybody may have read the file that we wrote last.

        `write_new` sets the access time of the file before its modification time; a read moves it.
        """
        if last is None or not last.inode or not self._notes_reads():
            return True
        written = self._written.get(view.path)
        try:
            if written is None:
                facts = os.stat(self.directory / view.path, follow_symlinks=False)
            else:
                facts = os.fstat(written)
        except OSError:
            return True
        return facts.st_ino != last.inode or facts.st_atime_ns != last.atime_ns

    def _notes_reads(self) -> bool:
        """Returns whether this file system keeps access times; many are mounted without."""
        if self._are_reads_noted is None:
            probe = self.directory / DIRECTORY / "probe"
            try:
                before = write_new(probe, b"read")
                probe.read_bytes()
                self._are_reads_noted = os.stat(probe).st_atime_ns != before.st_atime_ns
            except OSError as error:  # such as a full disk: it is found out by a later call
                _logger.debug("%s does not say whether files were read: %s", probe, error)
                return False
            finally:
                probe.unlink(missing_ok=True)
        return self._are_reads_noted

    def _note_late_read(
        self, view: FileView, old: bytes, new: bytes, facts: os.stat_result
    ) -> None:
        """Notes if somebody read the old text right before the exchange."""
        last, kept = self._load(view), self._kept(view)
        if last is None or old != last.data or not last.unread or not last.inode:
            return
        if os.stat(kept.new).st_atime_ns != last.atime_ns:
            self._last[view.path] = replace(last, unread={})
            write_new(kept.coming, self._rendered(view, new, old, facts).encode())

    def _hold(self, view: FileView, path: Path) -> None:
        """Keeps a descriptor of the file that we are about to put in place.

        So its access time can be read even if an editor has replaced it by another file.
        """
        before = self._written.pop(view.path, None)
        if before is not None:
            os.close(before)
        self._written[view.path] = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)

    def close(self) -> None:
        """Stops keeping the files fresh, after a last sync, and closes them."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            fresh.close()
        with self._mutex:
            while self._written:
                os.close(self._written.popitem()[1])

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        while self._written:
            os.close(self._written.popitem()[1])

    def _keep(self, view: FileView, last: LastText) -> None:
        before = self._last.get(view.path)
        if before is None or _said_by(before) != _said_by(last):
            self._kept(view).save(last)

    def _set_aside(self, view: FileView, data: bytes, why: str) -> Path:
        """Keeps a text beside its file as NAME.<why>-<time>, unless such a copy exists."""
        target = self.directory / view.path
        for other in sorted(target.parent.glob(f"{_literal(target.name)}.{why}-*")):
            if read_file(other) == data:
                return other
        aside = self._aside(target, why)
        write_new(aside, data)
        return aside

    def _aside(self, target: Path, why: str) -> Path:
        stamp = to_datetime(self._log.clock.now_us()).strftime("%Y%m%dT%H%M%S.%fZ")
        return target.with_name(f"{target.name}.{why}-{stamp}")

    def _broken(
        self, view: FileView, found: _Found, last: LastText | None, broken: BrokenFile
    ) -> Finding:
        """Leaves a broken file in its place, and keeps a copy once nobody seems to write it."""
        assert found.data is not None, "BUG: a broken file that is not there"
        age_s = (self._log.clock.now_us() - found.changed_us) / 1e6
        message = f"{broken}: nothing is read from it or written to it"
        if not 0 <= age_s < BROKEN_S:
            aside = self._set_aside(view, found.data, "broken")
            message += f"; a copy is {aside.name}"
        _logger.warning("%s: %s", view.path, message)
        diff = _difference(view.path, b"" if last is None else last.data, found.data)
        return Finding(view.path, "broken", message, diff=diff)

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        """Holds the lock of the directory, for processes and threads, until the block ends.

        So nobody replaces a file by a text that was rendered from an older state.
        """
        with self._mutex:
            place = self.directory / DIRECTORY
            try:
                place.mkdir(parents=True, exist_ok=True)
                if place.is_symlink():
                    raise OSError(errno.ELOOP, f'"{place}" is a link, expected a folder')
                _hide_from_git(place)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(place / "lock", flags, 0o666)
            except OSError as error:
                raise UnavailableError(
                    f'views cannot be kept in "{self.directory}": {error}',
                    hint="choose a directory that can be written to",
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                with kept_closed():  # sealed values stay sealed: a file would be a copy in clear
                    yield
            except OSError as error:
                raise UnavailableError(
                    f'views cannot be kept in "{self.directory}": {error}',
                    hint="look at that file; what the store holds is safe",
                ) from error
            finally:
                os.close(descriptor)


def _hide_from_git(place: Path) -> None:
    """Makes git ignore the folder of the last texts: they belong to the store of this machine."""
    path = place / ".gitignore"
    if path.exists():
        return
    try:
        write_new(path, b"*\n")
    except OSError as error:  # such as a full disk: it is written by a later call
        _logger.debug("%s is not ignored by git yet: %s", place, error)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _is_mass_removal(seen: Seen) -> bool:
    """Returns whether more than half of the items are gone at once, as after an accident."""
    return seen.removed * 2 > seen.had


def _difference(file: str, old: bytes, new: bytes) -> str:
    before, after = (data.decode("utf-8", "backslashreplace").splitlines() for data in (old, new))
    return "\n".join(difflib.unified_diff(before, after, file, f"{file} (edited)", lineterm=""))


def _name_of(owner: int) -> str:
    """Returns the name of the user who owns a file."""
    try:
        return pwd.getpwuid(owner).pw_name
    except (KeyError, OverflowError):
        return f"user {owner}"


def _literal(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def _said_by(last: LastText) -> tuple[object, ...]:
    """Returns the parts of a text that are saved again when one of them changes."""
    return last.data, last.named, last.strangers


def _check_path(path: object) -> None:
    place = Path(path) if isinstance(path, str) else Path()
    if not place.parts or place.is_absolute() or ".." in place.parts:
        raise UsageError(
            f"the file of a view is a path below its directory, found {show_value(path)}"
        )
    if any(part.casefold().rstrip(" .") == ".git" for part in place.parts):
        raise UsageError(f"a view is no file of a git repository's own, found {show_value(path)}")


def _unreadable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f'the view "{path}" cannot be read: {error}',
        hint="a view is a plain file: look at what is there",
    )
