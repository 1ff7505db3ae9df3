"""Marks: set and cleared by commits, claimed under a time limit by the server's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.protocol import Claim, Mark
from holdfast.backends.redis.gate import Gate

_ZERO = 1 << 63
_LIMIT_MAX = 1 << 40


def order_of(mark: Mark) -> str:
    """Returns 40 digits that sort as clause 17 says: priority, greatest first, then due time."""
    return f"{_ZERO - mark.priority:020}{_ZERO + mark.due:020}"


def _mark(index: str, member: bytes, group: bytes) -> Mark:
    priority, due = _ZERO - int(member[:20]), int(member[20:40]) - _ZERO
    return Mark(index, member[40:].decode(), due, priority, group.decode())


class RedisMarks:
    """A claim is not repeated when its connection broke: it may have taken marks.

    They stay with nobody until the claim ends by itself, as after a worker's death.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def claim(self, index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        arguments = "claim", index, owner, n, round(ttl_s * 1_000_000)
        keys = self._gate.keys.of_index(index)
        taken = self._gate.write("claim", keys, arguments, repeatable=False)
        return [_mark(index, member, group) for member, group in taken]

    def release(self, index: str, key: str, owner: str) -> None:
        keys = self._gate.keys.of_index(index)
        self._gate.write("claim", keys, ("release", index, owner, key))

    def list(
        self, index: str | None = None, *, due_before: int | None = None, limit: int = 1000
    ) -> list[Mark]:
        before = False if due_before is None else f"{_ZERO + due_before:020}"
        wanted = False if index is None else index
        arguments: tuple[Any, ...] = (wanted, before, min(limit, _LIMIT_MAX))
        marks = [
            _mark(name.decode(), member, group)
            for name, found in self._gate.look("marks", (), arguments)
            for member, group in found
        ]
        marks.sort(key=lambda mark: (-mark.priority, mark.due, mark.key, mark.index))
        return marks[:limit]

    def claims(self, *, limit: int = 1000) -> Sequence[Claim]:
        return sorted(
            Claim(index.decode(), key.decode(), owner.decode(), int(left_us))
            for index, found in self._gate.look("claims", (), ())
            for key, owner, left_us in found
        )[:limit]
