"""One operation after another, done by every contender in turn and put into one table.

A contender's row says how many times as long as holdfast it takes for the same: above 1, holdfast
is the faster. Against a bare loop the figure is below 1, and is what everything else costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench import counts, ours, workers
from bench.harness import (
    Block,
    Contender,
    Report,
    closing,
    interleave,
    latency_row,
    ratio,
    ratio_of_totals,
)
from bench.peers import Local, Peer

MARKED = 30


class Doer(Protocol):
    """A contender of several operations."""

    name: str
    release: str

    def doing(self, operation: str) -> Contender: ...
    def close(self) -> None: ...


class Field:
    """The contenders of a comparison, at one place on disk: holdfast, bare loops, and peers."""

    def __init__(
        self,
        report: Report,
        place: Path,
        *,
        items: int = 1,
        bare: bool = True,
        own: str = "holdfast",
    ) -> None:
        self.report = report
        self.place = place
        self.doers: list[Doer] = []
        self._made: dict[str, tuple[str, dict[str, Any]]] = {}
        for kind in ours.KINDS:
            self._add_own(f"holdfast {kind}", own, {"kind": kind, "items": items})
        if bare:
            self._add_own("bare apsw", "bare", {"kind": "apsw", "items": items})
            self._add_own("bare prewritten file", "bare", {"kind": "file", "items": items})

    def _add_own(self, name: str, worker: str, options: dict[str, Any]) -> None:
        path = self.place / name / "db"
        path.parent.mkdir()
        made = workers.make(worker, str(path), **options)
        self.doers.append(Local(name, made))
        self._made[name] = (worker, options)

    def add_peer(self, name: str, worker: str, **options: Any) -> None:
        """Starts a peer's process."""
        path = self.place / name / "db"
        path.parent.mkdir()
        peer = Peer(name, worker, path, **options)
        self.doers.append(peer)
        self.report.releases[name] = peer.release
        self._made[name] = (worker, options)

    @contextmanager
    def closing(self):
        """Closes every contender, whatever happens."""
        with closing(self.doers):
            yield

    def run(
        self,
        operation: str,
        *,
        blocks: int,
        operations: int,
        doing: str | None = None,
        without: Sequence[str] = (),
        counted: bool = False,
        growing: bool = False,
    ) -> dict[str, list[Block]]:
        """Lets all that can do an operation take turns, and adds a row for each."""
        doers = [doer for doer in self.doers if doer.name not in without]
        warm_up = 0 if growing or blocks < 10 else 2
        taken = interleave(
            [doer.doing(operation) for doer in doers],
            blocks=blocks,
            operations=operations,
            warm_up=warm_up,
        )
        quotient = ratio_of_totals if growing else ratio
        for doer in doers:
            row: dict[str, Any] = {"doing": doing or operation, "what": doer.name}
            row |= latency_row(taken[doer.name])
            for kind in ours.KINDS:
                own = taken.get(f"holdfast {kind}")
                if own and not doer.name.startswith("holdfast"):
                    found = quotient(taken[doer.name], own)
                    row[f"{kind}_times_as_fast"] = str(found)
                    self.report.speed(doing or operation, doer.name, kind, found)
            if counted:
                row |= self._counted(doer.name, operation)
            self.report.rows.append(row)
        return taken

    def _counted(self, name: str, operation: str) -> dict[str, Any]:
        worker, options = self._made[name]
        place = self.place / f"counted {name} {operation}"
        found = counts.count_worker(worker, place, operation, operations=MARKED, **options)
        return {} if found is None else {"syncs": found.syncs, "bytes": round(found.bytes_mean)}

    def faster(self, doing: str, what: str, limit: float) -> None:
        """Adds the bar that both kinds of holdfast are so many times as fast as a contender."""
        for speed in self.report.speeds:
            if (speed.doing, speed.what) == (doing, what):
                bar = f"{speed.kind}: {doing}, times as fast as {what}"
                self.report.at_least(bar, speed.times, limit)
