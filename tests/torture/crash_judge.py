"""Whether a store that lost its power kept its promises.

A reader that imports nothing of holdfast says first what is there; then the store is opened as a
process after the reboot would, and both must agree. The store must be whole and go on working.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast import Store
from holdfast.errors import HoldfastError
from holdfast.testing import FakeClock
from holdfast.testing.clock import START_US
from tests.crash import verdict
from tests.crash.verdict import Operation, Said, logs_of
from tests.outside.chains import Damage, Event
from tests.torture.crash_trace import unsynced
from tests.torture.crash_work import CREATION, A, open_at, place_of
from tests.torture.programme import Broken

REBOOT_S = 30.0
AFTER = "op:9.1"


def clock_after(boots: int = 1) -> FakeClock:
    """Returns the clock of the boot after a power loss."""
    clock = FakeClock(START_US + round(boots * REBOOT_S * 1e6), seed=boots)
    for _ in range(boots):
        clock.reboot()
    return clock


class Case:
    """What was said before the power was lost."""

    def __init__(
        self, said: Said, epochs: Mapping[str, int], begun: frozenset[str], done: frozenset[str]
    ) -> None:
        self.said = Said()
        self.said.begun = {id: one for id, one in said.begun.items() if id in begun}
        self.said.done = set(said.begun) & done
        self.epoch = max((epoch for id, epoch in epochs.items() if id in begun), default=0)
        self.is_created = CREATION in done


def judge(backend: str, place: Path, case: Case, *, boots: int, twice: bool) -> None:
    """Raises Broken if a promise is; the store below `place` is used up.

    With `twice` it is closed and opened once more.
    """
    with unsynced():
        try:
            events = _judge(backend, place, case, clock_after(boots))
            if twice:
                _judge_again(backend, place, events, clock_after(boots))
        except (HoldfastError, Damage, OSError, ValueError, LookupError) as exc:
            raise Broken(f"{type(exc).__name__}: {exc}") from exc


def _judge(backend: str, place: Path, case: Case, clock: FakeClock) -> list[Event]:
    path = place_of(backend, place)
    before = _outside(backend, path)
    if before is None and case.is_created:
        raise Broken("the store was made, and is not there")
    store = open_at(backend, place, clock)
    try:
        events, marks = before or ([], set[str]())
        _hold("before recovery", verdict.judge(case.said, events, marks))
        _check(store)
        _compare_states(store, events)
        if {mark.key for mark in store.workers.marks("todo")} != marks:
            raise Broken(
                f"the marks are {store.workers.marks('todo')}, an outside reader says {marks}"
            )
        lease = store.workers.lease("turn")
        if lease.epoch <= case.epoch:
            raise Broken(f"a lease has epoch {lease.epoch}, granted before was {case.epoch}")
        store.workers.claim("todo", n=1)
        after = Said()
        after.begun = dict(case.said.begun)
        after.begun[AFTER] = Operation(AFTER, (A,), "after", True, False)
        after.done = {*case.said.done, AFTER}
        store.scope(A).append("log", AFTER, key=AFTER)
    finally:
        store.close()
    closed, marks = verdict.read_closed(path)
    _hold("after a commit and a close", verdict.judge(after, closed, marks))
    if closed[: len(events)] != events:
        raise Broken(f"recovery made {closed} of it, an outside reader finds {events}")
    return closed


def _judge_again(backend: str, place: Path, events: list[Event], clock: FakeClock) -> None:
    store = open_at(backend, place, clock)
    try:
        _check(store)
        _compare_states(store, events)
    finally:
        store.close()
    if verdict.read_closed(place_of(backend, place))[0] != events:
        raise Broken("opening it once more has changed it")


def _outside(backend: str, path: Path) -> tuple[list[Event], set[str]] | None:
    """Returns what an outside reader finds, None if there is no store."""
    identity = path if backend == "sqlite" else path / "holdfast.json"
    return verdict.read_killed(path) if identity.exists() else None


def _hold(when: str, problems: list[str]) -> None:
    if problems:
        raise Broken(f"{when}: " + "; ".join(problems))


def _check(store: Store) -> None:
    harmful = [found for found in store.check().findings if not found.harmless]
    if harmful:
        raise Broken(f"check found {harmful}")


def _compare_states(store: Store, events: list[Event]) -> None:
    newest = {event.stream: event.revision for event in events}
    for stream, log in logs_of(events).items():
        if stream.startswith("lease/"):
            continue
        scope = store.scope(stream)
        state = scope.state.to_dict()  # every blob is read for it
        if state.get("log", []) != log or scope.revision != newest[stream]:
            raise Broken(f"{stream} is {state} at {scope.revision}, expected {log}")
