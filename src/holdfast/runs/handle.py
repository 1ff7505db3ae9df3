"""A run as its caller holds it."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.errors import NeedsAttentionError, RunCancelledError, RunFailedError
from holdfast.runs import events, values
from holdfast.runs.blocks import Progress
from holdfast.runs.journal import Journal


class Keeper(Protocol):
    """What a handle asks for its run."""

    def journal_of(self, id: str) -> Journal: ...
    def progress_of(self, id: str) -> Progress: ...
    def await_end(self, id: str, timeout_s: float | None) -> events.Ended: ...
    def load(self, raw: Any) -> Any: ...
    def cancel(self, id: str) -> None: ...


class Run:
    """One run of a store, wherever it is executed. Holding one holds nothing open."""

    def __init__(self, keeper: Keeper, id: str) -> None:
        self.id = id
        self._keeper = keeper

    @property
    def status(self) -> events.Status:
        """Where the run stands."""
        return self.progress.status

    @property
    def progress(self) -> Progress:
        """What the run is doing: statement, blocks, "iteration 2 of 3", "attempt 1 of 3"."""
        return self._keeper.progress_of(self.id)

    @property
    def journal(self) -> Journal:
        """All that is recorded of it."""
        return self._keeper.journal_of(self.id)

    @property
    def variables(self) -> dict[str, Any]:
        """The newest values of `let` and `const`, by block and name."""
        found = self.journal.variables.items()
        return {
            "/".join(part for part in place if part): self._keeper.load(raw) for place, raw in found
        }

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns the run's value.

        Raises RunFailedError, RunCancelledError, NeedsAttentionError when the run is parked, and
        StillRunningError when `timeout` seconds were not enough.
        """
        return result_of(self._keeper, self.id, self._keeper.await_end(self.id, timeout))

    def cancel(self) -> None:
        """Asks the run to stop; see `Store.cancel`."""
        self._keeper.cancel(self.id)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"


def result_of(keeper: Keeper, id: str, ended: events.Ended) -> Any:
    """Returns or raises what a run ended with."""
    if ended.status == "cancelled":
        raise RunCancelledError(id)
    if ended.error is not None:
        data = keeper.load(ended.error.data)
        raise RunFailedError(id, ended.error.kind, ended.error.message, data)
    return keeper.load(ended.value)


def attention_of(id: str, journal: Journal) -> NeedsAttentionError:
    """Returns the error that says why a run is parked, and what can be done about it."""
    if (diverged := journal.diverged) is not None:
        where = f" at {diverged.source}" if diverged.source else ""
        return NeedsAttentionError(
            id,
            f'the code diverges from the journal at "{diverged.path}": expected '
            f"{diverged.expected}, found {diverged.found}{where}",
            path=diverged.path,
            hint="mend the code and resume it, adopt the difference, or fork it",
        )
    uncertain = [entry for entry in journal.uncertain() if entry.verdict == "unknown"]
    path = uncertain[0].path if uncertain else ""
    reason = journal.suspended.reason if journal.suspended is not None else "it is parked"
    return NeedsAttentionError(
        id, values.text_of(reason), path=path, hint="look, then settle it and resume the run"
    )
