"""Backends that are broken on purpose, each as somebody could have written it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.backends.files.backend import FilesBackend
from holdfast.backends.files.leases import FileLeases, FileMarks
from holdfast.backends.files.opening import Opened
from holdfast.backends.judge import judge
from holdfast.backends.memory import MemoryBackend, _MemoryMarks
from holdfast.backends.protocol import Commit, Mark, Receipt, Refusal
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.backends.sqlite.connection import SqliteWriter
from holdfast.backends.sqlite.leases import SqliteLeases, SqliteMarks
from holdfast.core.commit_queue import CommitQueue
from tests.torture.schedule_judge import replaced
from tests.torture.schedule_seams import TurnDisk

Plant = Callable[[], AbstractContextManager[None]]


def lost_hand_over() -> AbstractContextManager[None]:
    """The leader ends its turn without telling the one who waits to lead."""

    def pass_on(queue: Any) -> bool:
        queue._leader = None
        return True

    return replaced((CommitQueue, "_pass_on", pass_on))


def _fenced_early(backend: Any, leases: Any) -> AbstractContextManager[None]:
    """A fence is judged before the commit begins, and believed later."""
    commit_of, holds = backend.commit, leases.fence_holds

    def commit(backend: Any, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        fences = [one.fence for one in commits if one.fence]
        backend._leases.judged = {fence: holds(backend._leases, fence) for fence in fences}
        return commit_of(backend, commits)

    def fence_holds(leases: Any, fence: Any) -> bool:
        return leases.judged[fence]

    return replaced((backend, "commit", commit), (leases, "fence_holds", fence_holds))


# --- memory --------------------------------------------------------------------------------------


def checked_before_the_lock() -> AbstractContextManager[None]:
    """Commits are judged first, and written under the lock later."""

    def commit(backend: Any, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        lookups = (
            backend._heads.get,
            backend._key_of,
            backend._leases.fence_holds,
            backend._checkout.clock.now_us,
        )
        refusals = [judge(one, *lookups) for one in commits]
        with backend._checkout.writing():
            written = [
                refusal or backend._commit_unjudged(one)
                for one, refusal in zip(commits, refusals, strict=True)
            ]
        backend._checkout.changed.wake()
        return written

    return _unjudged(commit)


@contextlib.contextmanager
def _unjudged(commit: Any) -> Iterator[None]:
    from holdfast.backends import memory

    def commit_unjudged(backend: Any, one: Commit) -> Any:
        was, memory.judge = memory.judge, lambda *_: None
        try:
            return backend._commit(one)
        finally:
            memory.judge = was

    MemoryBackend._commit_unjudged = commit_unjudged  # type: ignore[attr-defined]
    with replaced((MemoryBackend, "commit", commit)):
        yield
    del MemoryBackend._commit_unjudged  # type: ignore[attr-defined]


def lost_wake_up() -> AbstractContextManager[None]:
    """Who waits is not told of a commit."""

    def commit(backend: Any, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        with backend._checkout.writing():
            return [backend._commit(one) for one in commits]

    return replaced((MemoryBackend, "commit", commit))


def claimed_in_two_looks() -> AbstractContextManager[None]:
    """What is due is looked up under the lock, and claimed under it later."""
    claim_of = _MemoryMarks.claim

    def claim(marks: Any, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        with marks._checkout.reading():
            before = dict(marks._claims)
        with marks._checkout.writing():
            marks._claims = before
        return claim_of(marks, index, owner, n=n, ttl_s=ttl_s)

    return replaced((_MemoryMarks, "claim", claim))


# --- files ---------------------------------------------------------------------------------------


def no_lock() -> AbstractContextManager[None]:
    """The store lock is not taken."""

    def lock(disk: Any, fd: int, operation: int) -> None:
        disk._scheduler.step("flock")

    return replaced((TurnDisk, "lock", lock))


def unlocked_before_the_sync() -> AbstractContextManager[None]:
    """The store lock is let go when the batch is written, before it is synced and published."""
    lock_of, sync_of = TurnDisk.lock, TurnDisk.sync

    def lock(disk: Any, fd: int, operation: int) -> None:
        disk.last = fd if operation == fcntl.LOCK_EX else getattr(disk, "last", -1)
        lock_of(disk, fd, operation)

    def sync(disk: Any, fd: int) -> None:
        lock_of(disk, disk.last, fcntl.LOCK_UN)
        sync_of(disk, fd)

    return replaced((TurnDisk, "lock", lock), (TurnDisk, "sync", sync))


def old_after_waiting() -> AbstractContextManager[None]:
    """Whoever waited for the lock goes on with what was true before."""

    commit_of = FilesBackend.commit

    def commit(backend: Any, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        backend.opened.fresh()
        return commit_of(backend, commits)

    def stay(opened: Any) -> None:
        return None

    return replaced((FilesBackend, "commit", commit), (Opened, "catch_up", stay))


def fenced_before_the_lock() -> AbstractContextManager[None]:
    """The fence is looked at before the lock is there."""
    return _fenced_early(FilesBackend, FileLeases)


def claims_from_memory() -> AbstractContextManager[None]:
    """Claims that other handles made are not read again."""
    claim_of = FileMarks.claim

    def claim(marks: Any, *arguments: Any, **named: Any) -> list[Mark]:
        with replaced((FileLeases, "load", lambda leases: leases._table)):
            return claim_of(marks, *arguments, **named)

    return replaced((FileMarks, "claim", claim))


# --- sqlite --------------------------------------------------------------------------------------


def begun_deferred() -> AbstractContextManager[None]:
    """The transaction becomes a writing one at its first write, after it has judged."""
    transact_of = SqliteWriter.transact

    def transact(writer: Any, *arguments: Any) -> Any:
        execute = writer.execute

        def deferred(statement: str, *bindings: Any) -> Any:
            return execute("BEGIN" if statement == "BEGIN IMMEDIATE" else statement, *bindings)

        writer.execute = deferred
        try:
            return transact_of(writer, *arguments)
        finally:
            writer.execute = execute

    return replaced((SqliteWriter, "transact", transact))


def heads_from_memory() -> AbstractContextManager[None]:
    """What other connections committed does not make the remembered heads old."""
    write_of = SqliteBackend._write

    def write(backend: Any, writer: Any, commits: Sequence[Commit]) -> Any:
        backend._seen = writer.connection.data_version()
        return write_of(backend, writer, commits)

    return replaced((SqliteBackend, "_write", write))


def fenced_before_the_transaction() -> AbstractContextManager[None]:
    """The fence is looked at before the transaction begins."""
    return _fenced_early(SqliteBackend, SqliteLeases)


def claimed_in_two_transactions() -> AbstractContextManager[None]:
    """What is due is looked up in one transaction, and claimed in the next."""
    claim_of, is_claimed = SqliteMarks.claim, SqliteMarks._is_claimed

    def claim(marks: Any, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        writer = marks._checkout.writer
        rows = writer.transact(lambda: writer.execute("SELECT key FROM claims").fetchall())
        marks.known = {row[0] for row in rows}
        return claim_of(marks, index, owner, n=n, ttl_s=ttl_s)

    def looked_up(marks: Any, row: Any, boot: str, now_us: int) -> bool:
        return row[1] in marks.known and is_claimed(marks, row, boot, now_us)

    return replaced((SqliteMarks, "claim", claim), (SqliteMarks, "_is_claimed", looked_up))


PLANTS: dict[str, dict[str, Plant]] = {
    "memory": {
        "lost-hand-over": lost_hand_over,
        "checked-before-the-lock": checked_before_the_lock,
        "lost-wake-up": lost_wake_up,
        "claimed-in-two-looks": claimed_in_two_looks,
    },
    "files": {
        "no-lock": no_lock,
        "unlocked-before-the-sync": unlocked_before_the_sync,
        "old-after-waiting": old_after_waiting,
        "fenced-before-the-lock": fenced_before_the_lock,
        "claims-from-memory": claims_from_memory,
    },
    "sqlite": {
        "begun-deferred": begun_deferred,
        "heads-from-memory": heads_from_memory,
        "fenced-before-the-transaction": fenced_before_the_transaction,
        "claimed-in-two-transactions": claimed_in_two_transactions,
    },
}
