"""Marks: set and cleared by commits, claimed under a time limit."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.liveness import Workers
from holdfast.backends.protocol import Claim, Cleared, Mark
from holdfast.backends.sqlite.connection import Gate
from holdfast.backends.sqlite.driver import Row
from holdfast.backends.sqlite.rows import crc_of
from holdfast.errors import CorruptError

_SET = "INSERT OR REPLACE INTO marks VALUES (?,?,?,?,?,?)"
_CLEAR = "DELETE FROM marks WHERE about = ? AND key = ?"
_UNCLAIM = "DELETE FROM claims WHERE about = ? AND key = ?"
_UNCLAIM_OWN = "DELETE FROM claims WHERE about = ? AND key = ? AND owner = ?"
_CLAIM = "INSERT OR REPLACE INTO claims VALUES (?,?,?,?,?)"
_DUE = """SELECT about, key, due, priority, team, crc, owner, boot, ends_us
 FROM marks LEFT JOIN claims USING (about, key)
 WHERE about = ? AND due <= ? ORDER BY priority DESC, due, key"""
_LIST = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE about = ? AND due <= ? ORDER BY priority DESC, due, key LIMIT ?"""
_LIST_ALL = """SELECT about, key, due, priority, team, crc FROM marks
 WHERE due <= ? ORDER BY priority DESC, due, key, about LIMIT ?"""
_CLAIMS = """SELECT about, key, owner, ends_us FROM claims
 WHERE boot = ? AND ends_us > ? ORDER BY about, key LIMIT ?"""
READ_ALL = "SELECT about, key, due, priority, team, crc FROM marks"
STRAY_CLAIMS = (
    "SELECT count(*) FROM claims WHERE (about, key) NOT IN (SELECT about, key FROM marks)"
)

_DUE_MAX = (1 << 63) - 1


class SqliteMarks:
    """A claim of another boot has ended with it, whatever its time says."""

    def __init__(self, gate: Gate, workers: Workers) -> None:
        self._gate = gate
        self._workers = workers

    def apply(self, marks: Sequence[Mark | Cleared]) -> None:
        """Sets and clears what a commit says, in its transaction. Claims on them end."""
        execute = self._gate.writer.execute
        self._gate.tables.ensure("marks", execute)
        for mark in marks:
            place = mark.index, mark.key
            execute(_UNCLAIM, place)
            if isinstance(mark, Mark):
                row = *place, mark.due, mark.priority, mark.group
                execute(_SET, (*row, crc_of(*row)))
            else:
                execute(_CLEAR, place)

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        gate = self._gate
        writer = gate.writer

        def work() -> list[Mark]:
            execute = writer.execute
            if not gate.tables.exist("marks", execute):
                return []
            boot, now_us = gate.clock.boot_id(), gate.clock.boot_us()
            taken: list[Mark] = []
            for row in execute(_DUE, (index, gate.clock.now_us())):
                if len(taken) >= n:
                    break
                if not self._is_claimed(row, boot, now_us):
                    taken.append(self._mark(row))
            ends_us = now_us + round(ttl_s * 1_000_000)
            for mark in taken:
                execute(_CLAIM, (index, mark.key, owner, boot, ends_us))
            return taken

        with gate.errors:
            self._workers.hold(owner)
            return writer.transact(work)

    def _is_claimed(self, row: Row, boot: str, now_us: int) -> bool:
        owner, claim_boot, ends_us = row[6:]
        if owner is None or claim_boot != boot or ends_us <= now_us:
            return False
        return self._workers.is_alive(owner)

    def release(self, index: str, key: str, owner: str) -> None:
        gate = self._gate
        writer = gate.writer

        def work() -> None:
            if gate.tables.exist("marks", writer.execute):
                writer.execute(_UNCLAIM_OWN, (index, key, owner))

        with gate.errors:
            writer.transact(work)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        gate = self._gate
        gate.check_open()
        due = _DUE_MAX if due_before is None else due_before - 1
        with gate.errors, gate.reader.lock:
            execute = gate.reader.execute
            if not gate.tables.exist("marks", execute):
                return []
            if index is None:
                rows = execute(_LIST_ALL, (due, limit)).fetchall()
            else:
                rows = execute(_LIST, (index, due, limit)).fetchall()
        return [self._mark(row) for row in rows]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        gate = self._gate
        gate.check_open()
        boot, now_us = gate.clock.boot_id(), gate.clock.boot_us()
        with gate.errors, gate.reader.lock:
            execute = gate.reader.execute
            if not gate.tables.exist("marks", execute):
                return []
            rows = execute(_CLAIMS, (boot, now_us, limit)).fetchall()
        return [Claim(about, key, owner, ends_us - now_us) for about, key, owner, ends_us in rows]

    def _mark(self, row: Row) -> Mark:
        about, key, due, priority, team, crc, *_ = row
        if crc != crc_of(about, key, due, priority, team):
            where = self._gate.path
            raise CorruptError(
                f'mark "{key}" of "{about}" fails its checksum ({where})', where=where
            )
        return Mark(about, key, due, priority, team)
