"""Keeps the views and commits of a holdfast.toml up to date while a store is open.

    [git]
    commit = "turn"                 # after each turn; "each": after every event; "off"
    scope = "workflow/release"      # default: the scope of [views]
    files = ["RALPH_TASKS.md"]      # default: the files of [views]

Each process that writes does this in a separate thread, so no write waits for a file or for git, or
fails because of them. Closing a store first completes what is left. What a killed process left
undone is done by the next one, because the commits themselves show which events they have.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Lock, Thread, Timer

from holdfast.core.log import Log, scope_stream
from holdfast.errors import ClosedError, HoldfastError, UsageError
from holdfast.git.commit_trailers import (
    EVENTS_MAX,
    GitSettings,
    commit_events,
    finish_commit,
    read_settings,
    told_until,
)
from holdfast.git.repository import Commit, Repository
from holdfast.record.sessions import TURN_ENDED
from holdfast.scope import Scope
from holdfast.views.config import FILE, StoreOfScopes, configured_views
from holdfast.views.config import read_settings as read_view_settings
from holdfast.views.directory import Views
from holdfast.views.item import Finding

_logger = logging.getLogger("holdfast.git")

PAUSE_S = 0.1
"""The pause after a round of commits, in which further events gather."""
AGAIN_S = 1.0
"""The pause after a failure, before the next attempt."""
_STOP_S = 0.2
BEHIND = 16
"""With more events than this, one commit has all of them, so that git does not fall behind."""
_BUSY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")
"""Files in the folder of a repository during an unfinished merge, rebase or the like."""


class CommitKeeper:
    """Commits files of a work tree whenever a scope has new events."""

    def __init__(
        self,
        scope: Scope,
        settings: GitSettings,
        root: str | os.PathLike[str],
        files: Callable[[], Sequence[str]],
        refresh: Callable[[], object] | None = None,
    ) -> None:
        self._scope = scope
        self._log: Log = scope_stream(scope).log
        self._settings = settings
        self._root = root
        self._files = files
        self._refresh = refresh
        self._told: tuple[str | None, int] | None = None
        self._stop = Event()
        self._thread: Thread | None = None
        self.trouble: str | None = None
        """Why the last attempt failed; None if it did not."""

    def start(self) -> None:
        """Starts a thread that commits until `close`."""
        self._thread = Thread(target=self._follow, name="holdfast-git-commit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and commits what is left, in as few commits as possible."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.commit(most=EVENTS_MAX)

    def _follow(self) -> None:
        seen = None
        while not self._stop.is_set():
            try:
                now = self._log.position() if seen is None else self._log.wait_after(seen, _STOP_S)
            except HoldfastError as error:
                if not (isinstance(error, ClosedError) and self._stop.is_set()):
                    _logger.warning("events are not committed any more: %s", error)
                return
            if now != seen or self.trouble is not None:
                seen = now
                self.commit()
                self._stop.wait(PAUSE_S if self.trouble is None else AGAIN_S)

    def commit(self, *, most: int | None = None) -> list[Commit]:
        """Makes the commits that are due; keeps an error in `trouble`, for another attempt.

        With the setting "each", every event gets a commit, while there are few. `most` overrides
        how many events one commit has.
        """
        made: list[Commit] = []
        try:
            repository = Repository.find(self._root)
            with repository.locked("commit"):
                finish_commit(repository)
            while (due := self._due(repository)) and not (made and self._stop.is_set()):
                if not made:
                    self._refuse_busy(repository)
                if self._refresh is not None:
                    self._refresh()
                is_each = self._settings.commit == "each" and due <= BEHIND and most is None
                paths = [self._committed(repository, path) for path in self._files()]
                one = commit_events(self._scope, repository, paths, most=1 if is_each else most)
                made += [] if one is None else [one]
            self._settle(repository, None)
        except (HoldfastError, OSError) as error:
            if not (isinstance(error, ClosedError) and self._stop.is_set()):
                self._settle(None, error)
        return made

    def _settle(self, repository: Repository | None, error: Exception | None) -> None:
        """Notes why the events are not committed, for `status` of any process; None clears it."""
        trouble = None if error is None else str(error)
        if trouble == self.trouble and error is not None:
            return
        if error is not None:
            _logger.warning("events of %s are not committed: %s", self._scope.name, error)
        self.trouble = trouble
        try:
            path = _note(repository or Repository.find(self._root), self._log)
            if trouble is None:
                Path(path).unlink(missing_ok=True)
            else:
                Path(path).write_text(trouble)
        except (HoldfastError, OSError) as failed:
            _logger.debug("why events are not committed is not noted: %s", failed)

    def _due(self, repository: Repository) -> int:
        """Returns how many events must be committed now."""
        head, end = repository.head, self._scope.revision
        if self._told is None or self._told[0] != head:
            self._told = (head, told_until(repository, self._scope.name))
        told = self._told[1]
        if told >= end:
            return 0
        if self._settings.commit == "turn":
            types = [one.type for one in self._log.read(self._scope.name, after=told)]
            return end - told if TURN_ENDED in types else 0
        return end - told

    def _refuse_busy(self, repository: Repository) -> None:
        """Raises UsageError during a merge or rebase, or if no branch is checked out."""
        busy = [one for one in _BUSY if os.path.lexists(os.path.join(repository.git_dir, one))]
        if busy:
            raise UsageError(
                f'"{repository.root}" is in the middle of a merge or a rebase ({busy[0]} is there)',
                hint="finish or abort it: what is to be told is committed then",
            )
        if repository.branch is None:
            raise UsageError(
                f'no branch is checked out in "{repository.root}": a commit there would be lost',
                hint="git switch to a branch: what is to be told is committed then",
            )

    def _committed(self, repository: Repository, path: str) -> str:
        """Returns the full path of a file to commit; raises UsageError if git ignores it."""
        whole = os.path.join(self._root, path)
        words = ("ls-files", "-o", "-i", "--exclude-standard", "-z", "--")
        if repository.run(*words, repository.relative(whole))[1]:
            raise UsageError(
                f'git ignores "{path}", so it is not committed',
                hint="take it out of [git] files, or out of .gitignore",
            )
        return whole

    def reports(self) -> list[str]:
        """Returns lines for `status`: how many events are in no commit yet, and why."""
        try:
            repository = Repository.find(self._root)
            due = self._due(repository)
            why = self.trouble or _read_note(_note(repository, self._log))
        except (HoldfastError, OSError) as error:
            return [f"events of {self._scope.name} are not committed to git: {error}"]
        if not due:
            return []
        how = why or "the next process that writes with this configuration does it"
        return [f"{due} events of {self._scope.name} are in no commit of git: {how}"]


def _note(repository: Repository, log: Log) -> str:
    return os.path.join(repository.private_dir(), f"commit-{log.describe()['store']}.failed")


def _read_note(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1000)
    except FileNotFoundError:
        return None


class Configured:
    """The views and the commits that a configuration file asks for, while a store is open."""

    def __init__(
        self,
        store: StoreOfScopes,
        path: str | os.PathLike[str] = FILE,
        *,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._tell = tell
        self._timer: Timer | None = None
        self._mutex = Lock()
        self._is_closed = False
        views = read_view_settings(path)
        settings = read_settings(path)
        self.views: Views | None = None if views is None else configured_views(store, path)
        self.commits: CommitKeeper | None = None
        if settings.commit == "off":
            return
        name = settings.scope or (None if views is None else views.scope)
        if name is None or not (settings.files or self.views is not None):
            raise UsageError(
                f'[git] commit of "{path}" needs files and a scope',
                hint='set scope = "level/id" and files = ["…"], or [views]',
            )
        root = Path(path).absolute().parent
        scope, shown = store.scope(name), self.views

        def files() -> Sequence[str]:
            if settings.files or shown is None:
                return settings.files
            return [os.path.relpath(shown.directory / file, root) for file in shown.files]

        refresh = None if shown is None else self._sync
        self.commits = CommitKeeper(scope, settings, root, files, refresh)

    @property
    def is_empty(self) -> bool:
        """Whether the file asks for nothing."""
        return self.views is None and self.commits is None

    def start(self, *, after_s: float = 0.0) -> None:
        """Starts threads that keep everything fresh until `close`, at once or after a while."""
        if after_s:
            self._timer = Timer(after_s, self.start)
            self._timer.daemon = True
            self._timer.start()
            return
        with self._mutex:
            if self._is_closed:
                return
            if self.views is not None:
                self.views.keep_fresh(self._say)
            if self.commits is not None:
                self.commits.start()

    def _sync(self) -> None:
        if self.views is not None:
            for one in self.views.sync():
                self._say(one)

    def _say(self, finding: Finding) -> None:
        if self._tell is not None:
            self._tell(str(finding))

    def reports(self) -> list[str]:
        """Returns lines for `status`."""
        return [] if self.commits is None else self.commits.reports()

    def close(self) -> None:
        """Completes what is left and ends the threads; failures are reported, not raised."""
        if self._timer is not None:
            self._timer.cancel()
        with self._mutex:
            self._is_closed = True
        try:
            self._sync()
            if self.views is not None:
                self.views.close()
        except (HoldfastError, OSError) as error:
            self._warn(f"the views of {FILE} are behind: {error}")
        if self.commits is not None:
            self.commits.close()
            if self.commits.trouble is not None:
                self._warn(f"[git] commit of {FILE} is behind: {self.commits.trouble}")

    def _warn(self, text: str) -> None:
        _logger.warning("%s", text)
        if self._tell is not None:
            self._tell(text)
