"""A handle that must not be used any more: closed, inherited by a fork, or its store gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, Store, UnavailableError, UsageError
from holdfast.backends.protocol import START
from tests.faults.stores import BACKENDS, content, fill, place_of, url_of

CALLS: dict[str, Callable[[Store], Any]] = {
    "set": lambda s: s.team("red").set("a", 2),
    "append": lambda s: s.conversation("c").append("log", 1),
    "state": lambda s: s.team("red").state,
    "revision": lambda s: s.team("red").revision,
    "get": lambda s: s.team("red").get("a"),
    "at": lambda s: s.conversation("c").at(3),
    "history": lambda s: list(s.conversation("c").history()),
    "checkpoints": lambda s: s.conversation("c").checkpoints(),
    "checkpoint": lambda s: s.conversation("c").checkpoint("late"),
    "edit": lambda s: s.team("red").edit(lambda draft: draft.update(a=3)),
    "restore": lambda s: s.team("red").restore(1),
    "fork": lambda s: s.conversation("c").fork("late"),
    "close scope": lambda s: s.team("red").close(),
    "commit": lambda s: commit(s, s.commit()),
    "submit": lambda s: commit(s, s.commit(waits=False)),
    "view": lambda s: s.view(),
    "events": lambda s: list(s.follow(as_events=True, after=START, timeout_s=0)),
    "follow": lambda s: list(s.follow("team/red", timeout_s=0)),
    "scopes": lambda s: list(s.scopes()),
    "lease": lambda s: s.workers.lease("late"),
    "claim": lambda s: s.workers.claim("todo"),
    "marks": lambda s: s.workers.marks(),
    "check": lambda s: s.check(),
    "status": lambda s: s.status(),
    "position": lambda s: s.position,
}


def commit(store: Store, pending: Any) -> None:
    with pending as tx:
        tx.scope(store.team("red")).set("a", 4)


@pytest.fixture(params=["memory", *BACKENDS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    return url_of(place_of(request.param, tmp_path))


def test_clause_13_a_closed_store_refuses_every_call(url: str) -> None:
    store = holdfast.open(url)
    fill(store)
    store.close()
    for name, call in CALLS.items():
        with pytest.raises(UsageError, match="closed"):
            print(name, call(store))
    store.close()


def test_clause_13_a_forked_child_is_refused_and_its_parent_does_not_notice(url: str) -> None:
    with holdfast.open(url) as store:
        fill(store)
        expected = content(store)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _use_inherited(store, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            problems = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert problems == ""
        assert content(store) == expected
        store.team("red").set("after", True)
        assert store.check().ok


def _use_inherited(store: Store, pipe: int) -> None:
    """Runs in the child, which ends here: says what was not refused as it should be."""
    try:
        for name, call in CALLS.items():
            try:
                call(store)
            except UsageError as error:
                if "forked child" not in str(error):
                    os.write(pipe, f"{name}: {error}\n".encode())
            except BaseException as error:
                os.write(pipe, f"{name}: {type(error).__name__}: {error}\n".encode())
            else:
                os.write(pipe, f"{name} was done\n".encode())
        store.close()
    except BaseException as error:
        os.write(pipe, f"closing: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_child_opens_the_store_anew(backend: str, tmp_path: Path) -> None:
    url = url_of(place_of(backend, tmp_path))
    with holdfast.open(url) as store:
        store.team("t").set("parent", 1)
        child = os.fork()
        if not child:
            status = 1
            try:
                with holdfast.open(url) as own:
                    own.team("t").set("child", own.team("t").get("parent") + 1)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert store.team("t").state == {"parent": 1, "child": 2}
        store.team("t").set("parent", 3)
    with holdfast.open(url) as store:
        assert store.team("t").state == {"parent": 3, "child": 2}
        assert store.check().ok


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_closed_under_busy_threads_loses_nothing(backend: str, tmp_path: Path) -> None:
    url = url_of(place_of(backend, tmp_path))
    store = holdfast.open(url)
    told: list[str] = []
    strange: list[BaseException] = []
    started = threading.Barrier(5)

    def work(name: str) -> None:
        started.wait()
        try:
            for n in range(10_000):
                store.team("t").append("log", f"{name}.{n}")
                told.append(f"{name}.{n}")
        except UsageError:
            pass
        except BaseException as error:
            strange.append(error)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    while len(told) < 20:
        threads[0].join(0.001)
    store.close()
    for thread in threads:
        thread.join()
    assert strange == []
    with holdfast.open(url) as store:
        there = list(store.team("t").state["log"])
        assert set(told) <= set(there)
        assert len(there) == len(set(there))
        assert store.check().ok


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_deleted_while_open_takes_no_more_writes(backend: str, tmp_path: Path) -> None:
    """What is written to a file without a name is gone when the process ends."""
    place = place_of(backend, tmp_path)
    store = holdfast.open(url_of(place))
    fill(store)
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    for n in range(3):
        with pytest.raises(HoldfastError) as raised:
            store.team("red").set("lost", n)
        assert raised.value.hint
    store.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_replaced_while_open_is_not_mixed_with_the_new_one(
    backend: str, tmp_path: Path
) -> None:
    place = place_of(backend, tmp_path)
    old = holdfast.open(url_of(place))
    fill(old)
    (tmp_path / "away").mkdir()
    for path in list(tmp_path.iterdir()):
        if path.name.startswith("store"):
            path.rename(tmp_path / "away" / path.name)
    with holdfast.open(url_of(place)) as new:
        new.team("red").set("new", True)
        # What was moved is known by its name: its handle ends.
        with contextlib.suppress(UnavailableError):
            old.team("red").set("old", True)
        assert new.team("red").state == {"new": True}
        assert new.check().ok
    old.close()
    with holdfast.open(url_of(place)) as new:
        assert new.team("red").state == {"new": True}
        assert new.check().ok
