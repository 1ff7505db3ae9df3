"""Marks: set and cleared by commits, claimed under a time limit by the server's clock."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.postgresql.gate import Gate
from holdfast.backends.protocol import Claim, Mark

# Rows that another claim or a commit holds are passed: whoever holds one decides about it.
_CLAIM = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us), due AS (
  SELECT application, about, key FROM holdfast.marks
  WHERE application = %(application)s AND about = %(index)s AND due <= (SELECT us FROM now)
   AND (ends_us IS NULL OR ends_us <= (SELECT us FROM now))
  ORDER BY priority DESC, due, key LIMIT %(n)s FOR UPDATE SKIP LOCKED)
 UPDATE holdfast.marks m SET owner = %(owner)s, ends_us = (SELECT us FROM now) + %(ttl)s
 FROM due WHERE m.application = due.application AND m.about = due.about AND m.key = due.key
 RETURNING m.about, m.key, m.due, m.priority, m.team"""
_RELEASE = """UPDATE holdfast.marks SET owner = NULL, ends_us = NULL
 WHERE application = %(application)s AND about = %(index)s AND key = %(key)s AND owner = %(owner)s
 """
_LIST = """SELECT about, key, due, priority, team FROM holdfast.marks
 WHERE application = %(application)s AND about = %(index)s AND due < %(before)s
 ORDER BY priority DESC, due, key LIMIT %(limit)s"""
_LIST_ALL = """SELECT about, key, due, priority, team FROM holdfast.marks
 WHERE application = %(application)s AND due < %(before)s
 ORDER BY priority DESC, due, key, about LIMIT %(limit)s"""

_CLAIMS = """WITH now AS MATERIALIZED (SELECT holdfast.now_us() AS us)
 SELECT about, key, owner, ends_us - us FROM holdfast.marks, now
 WHERE application = %s AND ends_us > us ORDER BY about, key LIMIT %s"""

_DUE_MAX = (1 << 63) - 1


class PostgresqlMarks:
    """A claim is not repeated when its connection broke: it may have taken marks.

    They stay with nobody until the claim ends by itself, as after a worker's death.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        values = {"index": index, "owner": owner, "n": n, "ttl": round(ttl_s * 1_000_000)}
        values["application"] = self._gate.application
        marks = [Mark(*row) for row in self._gate.write(_CLAIM, values, repeatable=False)]
        return sorted(marks, key=lambda mark: (-mark.priority, mark.due, mark.key))

    def release(self, index: str, key: str, owner: str) -> None:
        values = {"application": self._gate.application, "index": index, "key": key, "owner": owner}
        self._gate.write(_RELEASE, values)

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        before = _DUE_MAX if due_before is None else due_before
        values = {"application": self._gate.application, "before": before, "limit": limit}
        statement = _LIST_ALL if index is None else _LIST
        return [Mark(*row) for row in self._gate.ask(statement, {**values, "index": index})]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return [Claim(*row) for row in self._gate.ask(_CLAIMS, (self._gate.application, limit))]
