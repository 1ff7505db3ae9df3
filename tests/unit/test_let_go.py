"""What is let go of for good, and a handle that still remembers it (0041)."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.core.kernel import kernel_of
from holdfast.core.retention import Told, drop, tell_again


def test_a_ledger_that_names_a_stream_that_is_not_there(tmp_path: Path) -> None:
    """As in a backup whose first point came after the stream had ended."""
    with holdfast.open(tmp_path / "s") as store:
        log = kernel_of(store).log
        store.conversation("c").set("n", 1)
        gone = {("conversation/none", 2): Told(b"1" * 32, "expired", store.position)}
        gone["conversation/c", 1] = Told(b"2" * 32, "erased", store.position)
        tell_again(log, gone)
        assert drop(log)[0] == 1
