"""Keeps view files fresh: after each commit of any process, and after each edit.

One thread waits for the store, one for the files (watchfiles), and one syncs at most ten times a
second. So a file is written at most once in 100 ms, however many commits there are. Without
watchfiles, the files are checked once a second.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread

from holdfast.core.log import Log
from holdfast.errors import ClosedError, HoldfastError
from holdfast.views.item import Finding

_logger = logging.getLogger("holdfast.views")

PAUSE_S = 0.1
LOOK_S = 1.0
_STOP_S = 0.2


class Freshness:
    """The threads that keep one directory fresh."""

    def __init__(
        self,
        log: Log,
        directory: Path,
        files: Callable[[], Sequence[str]],
        sync: Callable[[], list[Finding]],
        tell: Callable[[Finding], object] | None,
    ) -> None:
        self._log = log
        self._directory = directory
        self._files = files
        self._sync = sync
        self._tell = tell
        self._wake = Event()
        self._stop = Event()
        self._told: set[Finding] = set()
        self._threads = [
            Thread(target=work, name=f"holdfast-views-{name}", daemon=True)
            for name, work in (
                ("store", self._follow_store),
                ("files", self._follow_files),
                ("sync", self._run),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sync_once()
            self._stop.wait(PAUSE_S)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def sync_once(self) -> None:
        """Syncs and reports new findings; an error is logged, and the next sync tries again."""
        try:
            findings = self._sync()
        except (HoldfastError, OSError) as error:
            if not (isinstance(error, ClosedError) and self._stop.is_set()):
                _logger.warning("views cannot be kept fresh: %s", error)
            return
        lasting = {one for one in findings if one.kind in ("pending", "broken")}
        for one in findings:
            if self._tell is not None and one not in self._told:
                self._tell(one)
        self._told = lasting

    def _follow_store(self) -> None:
        """Wakes the sync after each commit of any process."""
        try:
            seen = self._log.position()
            while not self._stop.is_set():
                now = self._log.wait_after(seen, _STOP_S)
                if now != seen:
                    seen = now
                    self._wake.set()
        except HoldfastError as error:
            if not self._stop.is_set():
                _logger.warning("commits are not noticed any more: %s", error)

    def _follow_files(self) -> None:
        """Wakes the sync when one of the files is saved."""
        try:
            from watchfiles import watch
        except ImportError:
            _logger.info("watchfiles is not installed: files are looked at every second")
            return
        root = os.path.realpath(self._directory)
        for changes in watch(
            self._directory,
            watch_filter=None,
            debounce=50,
            step=20,
            stop_event=self._stop,
            rust_timeout=int(_STOP_S * 1000),
            recursive=True,
            raise_interrupt=False,
        ):
            names = {os.path.relpath(path, root) for _, path in changes}
            if names & set(self._files()):
                self._wake.set()

    def close(self) -> None:
        """Ends the threads, and syncs a last time."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()
        self.sync_once()
