"""The last event of a pass is the last one (decision 0013)."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast import Store


class Late:
    """A backend around a backend: lets somebody cancel the run while its end is being written."""

    def __init__(self, hf: Store, url: str) -> None:
        self._hf = hf
        self._inner: Any = hf.log.backend
        self._url = url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, commits: Any) -> Any:
        appends = [append for commit in commits for append in commit.appends]
        if any(record.type == "run.ended" for one in appends for record in one.records):
            self._hf.log.backend = self._inner
            with holdfast.open(self._url) as other:
                other.cancel("r")
        return self._inner.commit(commits)


@holdfast.run
def ending(ctx: Any) -> str:
    return "done"


def test_nothing_is_recorded_behind_the_end(durable_url: str):
    """A stop that is heard with the receipt of the end: the end stays the last event."""
    with holdfast.open(durable_url) as hf:
        hf.log.backend = Late(hf, durable_url)  # type: ignore[assignment]
        assert hf.start(ending, id="r").result() == "done"
        types = [event.type for event in hf.events() if event.stream == "run/r"]
        assert types[-1] == "run.ended"
        assert "run.cancelling" not in types
