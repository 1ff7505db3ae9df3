"""Signal handlers that write, submit and read in the middle of a commit, on stores on servers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import holdfast
from holdfast import UsageError
from holdfast.store import PendingCommit
from tests.faults.test_interrupts import handled, places
from tests.interrupting import Interrupter
from tests.servers.kinds import SERVERS, url_of


@pytest.mark.parametrize("kind", SERVERS)
def test_a_handler_is_told_why_it_cannot_write_and_can_submit_and_read(
    kind: str, tmp_path: Path
) -> None:
    with holdfast.open(url_of(kind, tmp_path, "store")) as store:
        red, green = store.team("red"), store.team("green")
        said: list[str] = []
        submitted: list[PendingCommit] = []

        def handler() -> None:
            with store.commit(waits=False) as tx:
                tx.scope(green).set(f"handler-{len(submitted)}", 1)
            submitted.append(tx)
            try:
                assert red.get("n") is not None
                green.set("written", 1)
                said.append("written")
            except UsageError as error:
                said.append(str(error))

        red.set("n", -1)
        with handled(handler):
            for at in places(lambda: red.set("n", 0), every=9):
                Interrupter(at, signal.SIGUSR1)(lambda at=at: red.set("n", at))
                assert red.get("n") == at
        for tx in submitted:
            tx.wait()
        refused = [text for text in said if "inside another call of the same store" in text]
        assert refused
        assert len(refused) + said.count("written") == len(said)
        assert len([key for key in green if key.startswith("handler")]) == len(submitted)
