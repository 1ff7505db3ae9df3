"""Faults on demand: a backend whose commits fail as planned, and crashes at named points."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.backends.protocol import (
    START,
    Backend,
    Commit,
    Found,
    Head,
    Moment,
    Position,
    Receipt,
    Record,
    Refusal,
    takes_record_keys,
)
from holdfast.errors import UnavailableError


class FaultyBackend:
    """Wraps a backend, and lets planned calls of `commit` fail.

    `plan` has the number of each call that fails, counted from 1, and when: "before" the inner
    commit, so that nothing was written, or "after" it, so that everything was. In both cases the
    caller gets an UnavailableError whose outcome is unknown. All other calls pass through.
    """

    def __init__(self, inner: Backend, plan: Mapping[int, Literal["before", "after"]]) -> None:
        self.durability = inner.durability
        self.objects = inner.objects
        self.leases = inner.leases
        self.marks = inner.marks
        self.inspect = inner.inspect
        self.record_keys = takes_record_keys(inner)
        self.commits = 0
        """How many times `commit` was called."""
        self._inner = inner
        self._plan = plan

    def commit(self, commits: Sequence[Commit]) -> list[Receipt | Refusal]:
        """Commits to the inner backend, unless a fault is planned for this call."""
        self.commits += 1
        when = self._plan.get(self.commits)
        if when == "before":
            raise self._fault()
        outcomes = self._inner.commit(commits)
        if when == "after":
            raise self._fault()
        return outcomes

    def _fault(self) -> UnavailableError:
        return UnavailableError(
            f"backend failed as planned at commit {self.commits}, expected an answer",
            outcome_known=False,
            hint="open the store again and look whether it is there",
        )

    def read(
        self, stream: str, *, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> list[Record]:
        """Reads from the inner backend."""
        return self._inner.read(stream, after=after, until=until, limit=limit)

    def read_all(self, *, after: Position = START, limit: int = 1000) -> list[Record]:
        """Reads from the inner backend."""
        return self._inner.read_all(after=after, limit=limit)

    def heads(self, streams: Sequence[str]) -> list[Head | None]:
        """Asks the inner backend."""
        return self._inner.heads(streams)

    def streams(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Asks the inner backend."""
        return self._inner.streams(prefix=prefix, after=after, limit=limit)

    def find(
        self,
        stream: str,
        *,
        key: str | None = None,
        checkpoint: str | None = None,
        limit: int | None = None,
    ) -> list[Found]:
        """Asks the inner backend."""
        return self._inner.find(stream, key=key, checkpoint=checkpoint, limit=limit)

    def wait(self, after: Position, *, timeout_s: float) -> Position:
        """Waits with the inner backend."""
        return self._inner.wait(after, timeout_s=timeout_s)

    def moment(self) -> Moment:
        """Asks the inner backend."""
        return self._inner.moment()

    def now_us(self, stream: str) -> int:
        """Asks the inner backend."""
        return self._inner.now_us(stream)

    def close(self) -> None:
        """Closes the inner backend."""
        self._inner.close()


class CrashPoints:
    """The named points that a backend passes, and the faults planned at them.

    Pass `reach` to a backend as its `reach=` option. Without a plan it only notes the names, so a
    first run shows a test which points there are, and how often each is passed.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        """Every point reached so far, in order."""
        self._counts: Counter[str] = Counter()
        self._plan: dict[tuple[str, int], BaseException | None] = {}

    def kill_at(self, name: str, nth: int = 1) -> None:
        """Plans SIGKILL of this process when the point is reached for the nth time from now."""
        self._plan[name, self._counts[name] + nth] = None

    def raise_at(self, name: str, error: BaseException, nth: int = 1) -> None:
        """Plans an exception when the point is reached for the nth time from now."""
        self._plan[name, self._counts[name] + nth] = error

    def reach(self, name: str) -> None:
        """Notes the name, and carries out what is planned for this passage."""
        self.names.append(name)
        self._counts[name] += 1
        passage = name, self._counts[name]
        if passage not in self._plan:
            return
        error = self._plan.pop(passage)
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGKILL)
