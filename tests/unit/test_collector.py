"""The collector is held back while something is built, and runs again whatever happens."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from threading import Barrier, Thread

import pytest

from holdfast.core import collector
from holdfast.core.collector import Uncollected


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()
    assert collector._switch._builds == 0


def test_it_is_off_in_the_block_and_on_after_it() -> None:
    with Uncollected():
        assert not gc.isenabled()
        with Uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), Uncollected():
        raise ValueError("no")
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with Uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_last_of_several_threads_turns_it_on() -> None:
    inside, ended = Barrier(3), Barrier(3)
    seen: list[bool] = []

    def build() -> None:
        with Uncollected():
            inside.wait()
            ended.wait()

    first = Thread(target=build)
    first.start()
    second = Thread(target=build)
    second.start()
    inside.wait()
    seen.append(gc.isenabled())
    with Uncollected():
        pass
    seen.append(gc.isenabled())
    ended.wait()
    first.join()
    second.join()
    assert seen == [False, False]
    assert gc.isenabled()


def test_an_interrupt_before_the_block_begins_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = collector._switch.hold

    def interrupted() -> None:
        held()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collector._switch, "hold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Uncollected().__enter__()
    assert gc.isenabled()


def test_one_that_was_never_entered_frees_nothing() -> None:
    with Uncollected():
        Uncollected().__exit__()
        assert not gc.isenabled()


def test_what_a_fork_calls_turns_it_on() -> None:
    held = Uncollected()
    held.__enter__()
    collector._switch.after_fork()
    assert gc.isenabled()
    held._is_held = False  # its thread is not there in the child


@pytest.mark.parametrize("builds", [0, 1])
def test_a_forked_child_begins_anew(builds: int) -> None:
    if builds:
        with Uncollected():
            child = os.fork()
            if not child:
                os._exit(0 if gc.isenabled() and collector._switch._builds == 0 else 1)
    else:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
