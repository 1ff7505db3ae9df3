"""Ctrl-C and signal handlers, on stores of every kind that needs no server.

`tests/torture/t23_interrupts.py` sends a signal at every place of every call, also to stores on
servers. Here each call is interrupted at every seventh place, and handlers call the store.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import Store, UsageError
from holdfast.store import PendingCommit
from tests.interrupting import Interrupter

PATIENCE_S = 120.0
KINDS = ("memory", "files", "sqlite")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = {
        "memory": "memory:",
        "files": str(tmp_path / "store"),
        "sqlite": f"sqlite:{tmp_path}/store.db",
    }[request.param]
    opened = holdfast.open(url)
    yield opened
    opened.close()


@contextmanager
def handled(handler: Callable[[], object]) -> Iterator[None]:
    """Calls a function as the handler of SIGUSR1."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def places(call: Callable[[], object], *, every: int) -> Iterator[int]:
    """Yields every so-manieth place of a call, which is made once to count them."""
    counting = Interrupter()
    counting(call)
    yield from range(0, counting.passed, every)


@pytest.mark.parametrize("kind", ["commit", "submit"])
def test_an_interrupted_call_holds_up_nobody_and_is_there_once_when_it_is_repeated(
    store: Store, kind: str
) -> None:
    red = store.team("red")

    def write(key: str) -> None:
        if kind == "commit":
            red.append("list", key, key=key)
            return
        with store.commit(waits=False, key=key) as tx:
            tx.scope(red).append("list", key)
        tx.wait()

    write("warm")
    with interruptible(), ThreadPoolExecutor(1) as threads:
        for at in places(lambda: write("counted"), every=7):
            key = f"at-{at}"
            with suppress(KeyboardInterrupt):
                Interrupter(at)(lambda key=key: write(key))
            threads.submit(store.team("blue").set, "newest", key).result(PATIENCE_S)
            assert red.get("list").count(key) <= 1
            write(key)
            assert red.get("list").count(key) == 1
    texts = list(red.get("list"))
    assert len(set(texts)) == len(texts)


def test_a_handler_that_writes_is_told_why_it_cannot_and_one_that_submits_can(
    store: Store,
) -> None:
    """It interrupts its own thread in the middle of a commit, and would wait for itself."""
    red = store.team("red")
    said: list[str] = []
    submitted: list[PendingCommit] = []

    def write() -> None:
        key = f"handler-{len(submitted)}"
        with store.commit(waits=False) as tx:
            tx.scope(store.team("green")).set(key, 1)
        submitted.append(tx)
        try:
            store.team("green").set(f"written-{key}", 1)
            said.append("written")
        except UsageError as error:
            said.append(str(error))

    red.set("n", -1)
    with handled(write):
        for at in places(lambda: red.set("n", 0), every=5):
            Interrupter(at, signal.SIGUSR1)(lambda at=at: red.set("n", at))
            assert red.get("n") == at
    refused = [text for text in said if "inside another call of the same store" in text]
    assert refused
    assert len(refused) + said.count("written") == len(said)
    for tx in submitted:
        tx.wait()
    assert len([key for key in store.team("green") if key.startswith("handler")]) == len(submitted)


def test_a_handler_that_reads_gets_an_answer_or_is_told_why(store: Store) -> None:
    red = store.team("red")
    red.set("n", -1)
    answers: list[object] = []

    def read() -> None:
        try:
            answers.append(red.get("n") is not None and len(list(red.history())) > 0)
        except UsageError as error:
            answers.append("inside another call" in str(error))

    def work() -> None:
        red.set("n", len(answers))
        list(red.history())
        list(store.scopes())

    with handled(read):
        for at in places(work, every=5):
            Interrupter(at, signal.SIGUSR1)(work)
    assert answers
    assert all(answers)


def test_a_handler_that_closes_is_refused_and_the_store_goes_on(store: Store) -> None:
    refused: list[str] = []

    def close() -> None:
        with pytest.raises(UsageError, match="inside another call") as caught:
            store._log._queue.close()
        refused.append(str(caught.value))

    def validate(*_: object) -> None:
        close()

    remove = store._log.add_validator(validate)
    store.team("red").set("n", 1)
    remove()
    assert len(refused) == 1
    store.team("red").set("n", 2)
    assert store.team("red").get("n") == 2


def test_an_interrupted_close_can_be_repeated_and_the_store_opens_whole(tmp_path: Path) -> None:
    for kind in ("files", "sqlite"):
        path = tmp_path / kind
        url = str(path) if kind == "files" else f"sqlite:{path}"
        first = holdfast.open(url)
        first.team("red").set("n", 0)
        with interruptible():
            for at in places(first.close, every=9):
                store = holdfast.open(url)
                store.team("red").set("n", at)
                with suppress(KeyboardInterrupt):
                    Interrupter(at)(store.close)
                store.close()
                with holdfast.open(url) as again:
                    assert again.team("red").get("n") == at


def test_a_validator_that_fails_fails_its_own_commit_alone(store: Store) -> None:
    """Not its neighbours in the batch, of which it says nothing."""

    def validate(write: object, *_: object) -> None:
        if "broken" in str(write):
            raise ZeroDivisionError("a bug of the validator")

    held, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        held.set()
        assert go.wait(PATIENCE_S)

    remove = store._log.add_validator(hold)
    with ThreadPoolExecutor(4) as threads:
        leading = threads.submit(store.team("first").set, "n", 1)
        assert held.wait(PATIENCE_S)
        remove()
        store._log.add_validator(validate)
        bad = threads.submit(store.team("broken").set, "n", 1)
        good = [threads.submit(store.team(f"good-{n}").set, "n", 1) for n in range(2)]
        while len(store._log._queue._waiting) < 3:
            threading.Event().wait(0.001)
        go.set()
        leading.result(PATIENCE_S)
        for one in good:
            one.result(PATIENCE_S)
        with pytest.raises(ZeroDivisionError, match="a bug of the validator"):
            bad.result(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        store.team("broken").set("n", 2)
    assert store.team("broken").get("n") is None
