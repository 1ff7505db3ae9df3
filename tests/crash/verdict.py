"""Whether a store that was killed kept its promises: what children said, against what is there.

What is there is told by the outside readers, which import nothing of holdfast, and then, after
recovery, by holdfast itself: both must say the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.outside import database, segments
from tests.outside.chains import Event, by_stream


class Operation(NamedTuple):
    """One operation of a child, as its pipe told."""

    id: str
    streams: tuple[str, ...]
    thread: str
    key: bool
    mark: bool


class Said:
    """Everything that the children of a trial began and finished."""

    def __init__(self) -> None:
        self.begun: dict[str, Operation] = {}
        self.done: set[str] = set()

    def take(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            if "begun" in line:
                streams = tuple(line["streams"])
                one = Operation(line["begun"], streams, line["thread"], line["key"], line["mark"])
                self.begun[one.id] = one
            elif "done" in line:
                self.done.add(line["done"])

    @property
    def unanswered(self) -> list[Operation]:
        return [one for id, one in self.begun.items() if id not in self.done]


def read_killed(place: Path) -> tuple[list[Event], set[str]]:
    """Returns events and marked ids of a store that nobody has open, before anything recovered."""
    if place.suffix == ".db":
        if not place.exists():
            return [], set()
        found = database.read_copy(place)
        return found.events, {key for _, key in found.marks}
    if not place.exists():
        return [], set()
    reading = segments.read_crashed(place)
    return reading.events, {key for _, key in reading.marks}


def read_closed(place: Path) -> tuple[list[Event], set[str]]:
    """Returns events and marked ids of a store after a clean close."""
    if place.suffix == ".db":
        found = database.read_closed(place)
        return found.events, {key for _, key in found.marks}
    reading = segments.read_closed(place)
    return reading.events, {key for _, key in reading.marks}


def judge(said: Said, events: list[Event], marks: set[str]) -> list[str]:
    """Returns every broken promise: nothing lost, doubled, halved, unknown or out of order."""
    problems: list[str] = []
    times: Counter[tuple[str, str]] = Counter()
    order: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event in events:
        for id in event.ids:
            times[id, event.stream] += 1
            one = said.begun.get(id)
            if one is None or event.stream not in one.streams:
                problems.append(f"{id} is in {event.stream!r}: nobody wrote it there")
            else:
                order[one.thread, event.stream].append(id)
    for one in said.begun.values():
        counts = [times[one.id, stream] for stream in one.streams]
        if one.id in said.done:
            if min(counts) < 1:
                problems.append(f"{one.id} was acknowledged and is not there: {counts} {one}")
            if one.mark and one.id not in marks:
                problems.append(f"the mark of {one.id} was acknowledged and is not there")
        elif len(set(counts)) > 1:
            problems.append(f"{one.id} was written by halves: {counts} {one}")
        elif one.mark and (one.id in marks) != bool(counts[0]):
            problems.append(f"the mark of {one.id} is not as its events: {counts}")
        if max(counts) > 1:
            problems.append(f"{one.id} is there more than once: {counts} {one}")
    for (thread, stream), ids in order.items():
        numbers = [int(id.rpartition(".")[2]) for id in ids]
        if numbers != sorted(numbers):
            problems.append(f"the order of {thread} in {stream!r} is {numbers}")
    return problems


def logs_of(events: list[Event]) -> dict[str, list[str]]:
    """Returns the list that each stream's state must have under "log"."""
    logs: dict[str, list[str]] = {}
    inherited: dict[tuple[str, int], int] = {}
    for stream, own in by_stream(events).items():
        log: list[str] = []
        if own[0].type == "forked":
            origin = own[0].data["from"], own[0].data["at"]
            log = logs[origin[0]][: inherited[origin]]
        for event in own:
            if event.type == "changed" and b'"log"' in event.payload:
                log = [*log, *event.ids]
            inherited[stream, event.revision] = len(log)
        logs[stream] = log
    return logs
