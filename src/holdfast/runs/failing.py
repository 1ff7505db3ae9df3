"""Where a run that failed can be taken up again. Pure."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.runs.journal import Journal

_BLOCKS = frozenset(("branch", "parallel", "iteration", "run", "fold", "each", "repeat"))
"""What fails because something inside it did."""


def place_to_retry(journal: Journal, id: str) -> str | int:
    """Returns what to fork a failed run at: the step that it failed with, or its last record.

    The step is the newest whose error is the run's own. A run that failed with none failed in its
    body: all its steps are replayed, and the body meets whatever comes after them again.
    """
    ended = journal.ended
    if ended is None or ended.error is None:
        raise UsageError(
            f'run "{id}" has not failed: it is {journal.status}',
            hint="resume goes on with a run that has not ended; fork begins at any step",
        )
    fault = ended.error
    failed = [
        entry
        for entry in journal.entries.values()
        if entry.error is not None
        and entry.state == "failed"
        and entry.kind not in _BLOCKS
        and (entry.error.kind, entry.error.message) == (fault.kind, fault.message)
    ]
    if not failed:
        return journal.revision - 1
    return max(failed, key=lambda entry: entry.revision).path
