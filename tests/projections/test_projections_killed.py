"""Processes are killed while a fold is being kept: the next one shows what a replay shows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.projections import projected, stored
from tests.crash.children import Child
from tests.record.stores import new_url


@holdfast.projection(init=dict, name="killed-counts")
class Counts:
    def named(self, counts: Any, event: Any) -> None:
        name = event.data["name"]
        counts[name] = counts.get(name, 0) + 1


class DyingObjects:
    """The objects of a store, which kill the process at one of the calls that keep a fold."""

    def __init__(self, inner: Any, dies: tuple[str, str, int]) -> None:
        self._inner = inner
        self._dies = dies
        self._calls = {"put": 0, "delete": 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _call(self, what: str, *args: Any, **options: Any) -> None:
        self._calls[what] += 1
        call, when, number = self._dies
        is_now = (call, number) == (what, self._calls[what])
        if is_now and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        getattr(self._inner, what)(*args, **options)
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, *args: Any, **options: Any) -> None:
        self._call("put", *args, **options)

    def delete(self, *args: Any) -> None:
        self._call("delete", *args)


def record(hf: Store, number: int) -> None:
    hf.team("red").record("named", {"name": f"n{number % 3}"}, unchecked=True)


@pytest.mark.parametrize("backend", ["files", "sqlite"])
@pytest.mark.parametrize("call", ["put", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_while_a_fold_is_kept(
    backend: str, call: str, when: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projected, "KEPT_EVENTS_MIN", 4)
    monkeypatch.setattr(projected, "KEEPING_SHARE", 0.0)
    url = new_url(backend, tmp_path)
    holdfast.open(url).close()

    def live(_pipe: int, _stop: int) -> None:
        with holdfast.open(url) as hf:
            dying = DyingObjects(hf._log.routes.objects_of("team/red"), (call, when, number))
            monkeypatch.setattr(hf._log.routes, "objects_of", lambda _name: dying)
            for event in range(20):
                record(hf, event)
                hf.projections.of(Counts, "team/red").state  # noqa: B018

    child = Child(live)
    child.end()
    assert child.was_killed, child.trouble
    with holdfast.open(url) as hf:
        count = len(list(hf.team("red").history(type="named")))
        expected = {f"n{at}": len(range(at, count, 3)) for at in range(min(count, 3))}
        shown = hf.projections.of(Counts, "team/red")
        assert shown.state == expected
        assert (shown.events, shown.verify()) == (count, [])
        for event in range(count, 20):
            record(hf, event)
            shown.state  # noqa: B018
        names = hf._log.routes.objects_of("team/red").names("snapshot", prefix=stored.PREFIX)
        assert len(names) == 1, "what the killed one left was let go"
        assert hf.check().ok
