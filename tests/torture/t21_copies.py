"""T21: a store is copied into another of any kind, and the copier is killed on its way.

One point is one of the 25 pairs of backends, on real servers, and a store: one that holds
everything there is, or one made by chance. A process copies it in small batches and is killed with
SIGKILL before or behind a chosen call that writes to the target; then another, and a third. After
each death the target must be sound and a beginning of the source. In a third of the points the
source is written to meanwhile. A last copy, while nobody writes, must make them equal: events,
links, keys, names, forks, blobs and marks. Cases are the events that were compared.

A store in memory dies with its process: where one is in the pair, the copy is broken off by an
exception at the chosen call, and goes on in the same process.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast import Store
from holdfast.backends.protocol import Backend, Commit, Mark, Record
from holdfast.core.log import Log
from holdfast.errors import HoldfastError
from holdfast.transfer import sink as sinks
from holdfast.transfer import source as sources
from holdfast.transfer.copy import copy_log
from tests.servers.contents import fill, fill_by_chance, logical
from tests.servers.kinds import KINDS, url_of
from tests.torture.programme import Broken, Point, Programme

DEATHS = 3
PATIENCE_S = 120
PAIRS = [(source, target) for source in KINDS for target in KINDS]


class BrokenOff(BaseException):
    """Ends a copy that cannot be killed."""


class Mortal:
    """A backend whose nth call that writes ends the process, or the copy."""

    def __init__(
        self, inner: Backend, dies_at: int, *, behind: bool, end: Callable[[], None]
    ) -> None:
        self.inner = inner
        self._left = dies_at
        self._behind = behind
        self._end = end
        self.objects: Any = self

    def __getattr__(self, name: str) -> Any:
        # It stands for the objects of the backend too: only those have these two.
        return getattr(self.inner.objects if name in ("get", "names") else self.inner, name)

    def commit(self, commits: Sequence[Commit]) -> Any:
        return self._do(lambda: self.inner.commit(commits))

    def put(self, *given: Any, **more: Any) -> Any:
        return self._do(lambda: self.inner.objects.put(*given, **more))

    def _do(self, call: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._behind:
            self._end()
        answer = call()
        if self._left == 0:
            self._end()
        return answer


class Run:
    """One pair, one store."""

    def __init__(self, point: Point, pairs: Sequence[tuple[str, str]] = PAIRS) -> None:
        self.point = point
        self.random = point.random
        self.source, self.target = pairs[point.number % len(pairs)]
        self.urls = [url_of(self.source, point.place, "a"), url_of(self.target, point.place, "b")]
        self.is_alive = self.random.random() < 1 / 3
        self.written = 0
        sinks.COMMITS_PER_BATCH = self.random.randint(1, 7)
        sources.RECORDS_PER_READ = self.random.randint(2, 30)
        sinks.MARKS_PER_COMMIT = self.random.randint(1, 3)

    def fill(self, store: Store) -> None:
        if self.random.random() < 0.5:
            fill_by_chance(store, self.random)
        else:
            fill(store)

    def copy(self, one: Store, other: Store, end: Callable[[], None]) -> None:
        """Copies until the end that chance has chosen, or to the last event."""
        dies_at = self.random.randint(1, 25)
        behind = self.random.random() < 0.5
        mortal: Any = Mortal(other._log._backend, dies_at, behind=behind, end=end)
        log = Log(mortal, clock=other._log.clock, actor="copier")
        copy_log(one._log, log, progress=self._write(one) if self.is_alive else None)

    def _write(self, store: Store) -> Callable[[int, int], None]:
        def write(passed: int, total: int) -> None:
            self.written += 1
            with store.commit() as tx:
                tx.scope(store.team("alive")).set("passed", [passed, total])
                tx.mark("alive", f"m{self.written % 3}", due=passed)
            store.conversation(f"new {os.getpid()} {passed}").set("large", f"{passed} " * 40_000)

        return write

    def die(self) -> None:
        """Copies in a process of its own, which is killed or ends."""
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(PATIENCE_S)
            try:
                with opened(self.urls[0]) as one, opened(self.urls[1]) as other:
                    self.copy(one, other, lambda: os.kill(os.getpid(), signal.SIGKILL))
                code = 0
            except BaseException:
                (self.point.place / "trouble").write_text(traceback.format_exc(limit=-6))
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        ended = os.waitstatus_to_exitcode(status)
        self.random.randint(0, 1 << 30)  # the next one dies elsewhere
        if ended not in (0, -signal.SIGKILL):
            trouble = self.point.place / "trouble"
            text = trouble.read_text() if trouble.exists() else ""
            raise Broken(f"a copier ended with {ended}\n{text}")

    def judge_beginning(self, one: Store, other: Store) -> None:
        """Raises unless the target is sound, and a beginning of the source."""
        report = other.check()
        if not report.ok:
            raise Broken(f"{self}: what a killed copy left is damaged: {report.findings[:3]}")
        events = set(_events(one._log._backend))
        strange = [event for event in _events(other._log._backend) if event not in events]
        if strange:
            raise Broken(f"{self}: the target has what the source has not: {strange[0]!r:.300}")

    def finish(self, one: Store, other: Store) -> int:
        """Copies to the end, goes on in the source, catches up, and compares."""
        copy_log(one._log, other._log)
        with one.commit() as tx:
            tx.scope(one.team("late")).set("large", "late " * 20_000)
            for mark in one.workers.marks()[:1]:
                tx.clear(mark.index, mark.key)
        copy_log(one._log, other._log)
        return self.judge_equal(one, other)

    def judge_equal(self, one: Store, other: Store) -> int:
        mine, theirs = list(logical(one._log._backend)), list(logical(other._log._backend))
        for ours, copied in zip(mine, theirs, strict=False):
            if ours != copied:
                raise Broken(f"{self}: not copied as it is:\n{ours!r:.500}\n{copied!r:.500}")
        if len(mine) != len(theirs):
            raise Broken(f"{self}: {len(mine)} lines became {len(theirs)}")
        report = other.check(expect=one.check().digest)
        if not report.ok:
            raise Broken(f"{self}: {report.findings[:3]}")
        return len(mine)

    def __str__(self) -> str:
        return f"{self.source} into {self.target}"


def opened(url: str) -> Store:
    return holdfast.open(url, actor="t21")


def _events(backend: Backend) -> Iterator[Any]:
    return (line for line in logical(backend) if isinstance(line, tuple) and len(line) == 9)


def trial(point: Point) -> int:
    run = Run(point)
    with PLANTS[point.plant]():
        try:
            return _in_memory(run) if "memory" in (run.source, run.target) else _killed(run)
        except HoldfastError as error:
            raise Broken(f"{run}: {error!r}") from error


def _killed(run: Run) -> int:
    with opened(run.urls[0]) as one:
        run.fill(one)
    for _ in range(DEATHS):
        run.die()
        with opened(run.urls[0]) as one, opened(run.urls[1]) as other:
            run.judge_beginning(one, other)
    with opened(run.urls[0]) as one, opened(run.urls[1]) as other:
        return run.finish(one, other)


def _in_memory(run: Run) -> int:
    def end() -> None:
        raise BrokenOff

    with opened(run.urls[0]) as one, opened(run.urls[1]) as other:
        run.fill(one)
        for _ in range(DEATHS):
            try:
                run.copy(one, other, end)
            except BrokenOff:
                run.judge_beginning(one, other)
        return run.finish(one, other)


# --- faults --------------------------------------------------------------------------------------


@contextmanager
def replaced(where: Any, name: str, fault: Any) -> Iterator[None]:
    sound = getattr(where, name)
    setattr(where, name, fault)
    try:
        yield
    finally:
        setattr(where, name, sound)


def skips_a_blob() -> Any:
    """Every third blob is taken for one that is there."""
    write_blobs = sinks.Sink._write_blobs
    seen: list[str] = []

    def skipping(self: Any, commit: Commit, place: int) -> None:
        for append in commit.appends:
            for record in append.records:
                for name, _ in sinks.codec.blobs_in(record.payload):
                    seen.append(name)
                    if len(set(seen)) % 3 == 2:
                        self._known.add((place, name))
        write_blobs(self, commit, place)

    return replaced(sinks.Sink, "_write_blobs", skipping)


def blob_behind_its_event() -> Any:
    """Events are sent before the blobs that they name: only a death in between shows it."""
    write_blobs, send = sinks.Sink._write_blobs, sinks._send
    waiting: list[Any] = []

    def later(self: Any, commit: Commit, place: int) -> None:
        waiting.append((self, commit, place))

    def sending(target: Any, wanted: list[Commit]) -> Any:
        sent = send(target, wanted)
        while waiting:
            write_blobs(*waiting.pop(0))
        return sent

    @contextmanager
    def both() -> Iterator[None]:
        with (
            replaced(sinks.Sink, "_write_blobs", later),
            replaced(sinks, "_send", sending),
        ):
            yield

    return both()


def loses_names() -> Any:
    """A checkpoint's name stays behind."""
    missing = sinks._missing

    def nameless(records: list[Record], *rest: Any) -> Commit | None:
        return missing([replace(record, checkpoint=None) for record in records], *rest)

    return replaced(sinks, "_missing", nameless)


def resumes_too_late() -> Any:
    """A copy that finds its target begun goes on one commit behind where that ends."""
    write = sinks.Sink._write

    def late(self: Any, batch: list[list[Record]]) -> None:
        streams = {record.stream for records in batch for record in records}
        is_begun = any(self._target.backend.heads(sorted(streams)))
        write(self, batch[1:] if is_begun and self._events == 0 else batch)

    return replaced(sinks.Sink, "_write", late)


def keeps_marks() -> Any:
    """A mark that was set is copied; one that was cleared since is not cleared."""

    def again(index: str, key: str) -> Mark:
        return Mark(index, key)

    return replaced(sinks, "Cleared", again)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


PLANTS: dict[str, Callable[[], Any]] = {
    "": _nothing,
    "skips-a-blob": skips_a_blob,
    "blob-behind-its-event": blob_behind_its_event,
    "loses-names": loses_names,
    "resumes-too-late": resumes_too_late,
    "keeps-marks": keeps_marks,
}
WITHIN = {
    "skips-a-blob": 2,
    "blob-behind-its-event": 14,
    "loses-names": 1,
    "resumes-too-late": 6,
    "keeps-marks": 2,
}

PROGRAMMES = (
    Programme(
        "t21-copies",
        "a copy between any two backends, killed and gone on with, is equal in the end",
        trial,
        share=len(PAIRS),
        points=1_000,
        parts=3,
        plants=WITHIN,
    ),
)
