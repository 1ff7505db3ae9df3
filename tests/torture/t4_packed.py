"""T4, packed: power loss while segments of a files store are rewritten and become shorter.

A point is a store of some commits, by chance; most of them are let go of, and the segments are
packed, once or twice. The calls are recorded, and states that a power loss may leave are taken from
the weakest sensible model (crash_states.py): files and names that were not synced may be lost, in
part and in any order. In each state every acknowledged commit is there, with what was written or
with nothing in its place; once it was said that data is gone it stays gone; `check` and a reader
from outside find nothing wrong; and letting go can be done to its end.

Planted and found: the packed file not synced before the rename, and the rename not synced.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

from holdfast.backends.files import FilesBackend, opening, packing
from holdfast.backends.protocol import GONE, Record
from holdfast.errors import HoldfastError
from holdfast.testing import FakeClock
from holdfast.testing.records import RecordBuilder
from tests.outside.chains import Damage
from tests.outside.segments import read_unlinked
from tests.torture import crash_trace, crash_vfs
from tests.torture.crash_judge import clock_after
from tests.torture.crash_states import Picked, lay_out, moments, pick
from tests.torture.crash_trace import CrashDisk, Event, Trace, unsynced
from tests.torture.crash_work import make_tiny
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t4_crash_states import _scratch  # pyright: ignore[reportPrivateUsage]
from tests.torture.t24_packed import append, goes, is_right

STREAMS = ("a", "b", "c")
STATES = 20


def wanted_of(backend: FilesBackend) -> dict[str, list[int]]:
    heads = zip(STREAMS, backend.heads(STREAMS), strict=True)
    return {
        stream: [one for one in range(1, head.revision + 1) if goes(stream, one)]
        for stream, head in heads
        if head is not None
    }


def work(place: Path, trace: Trace, chance: Random) -> int:
    """Does everything while it is recorded; returns after which event letting go began."""
    clock = FakeClock(seed=7)
    with crash_trace.recording(trace), crash_vfs.recording(trace):
        backend = FilesBackend(place / "store", clock=clock, disk=CrashDisk())
        build = RecordBuilder(clock.now_us())
        count = dict.fromkeys(STREAMS, 0)

        def write(commits: int) -> None:
            for _ in range(commits):
                stream = chance.choice(STREAMS)
                append(backend, stream, build)
                count[stream] += 1
                trace.done(f"{stream} {count[stream]}")

        write(chance.randint(10, 40))
        since = len(trace.events)
        for turn in range(chance.randint(1, 2)):
            wanted = wanted_of(backend)
            backend.rewrite(wanted)
            for stream, revisions in wanted.items():
                for revision in revisions:
                    trace.done(f"gone {stream} {revision}")
            backend.purge(whole=turn == 0)
            write(chance.randint(0, 5))
        # What SIGKILL does to a process.
        backend.mark_closed()
        assert isinstance(backend.opened, opening.Opened)
        backend.opened.release()
        backend.directory.close()
    return since


def judge(place: Path, picked: Picked) -> None:
    """Raises Broken if a promise is; the store below `place` is used up."""
    done = picked.moment.done
    try:
        with closing(FilesBackend(place / "store", clock=clock_after())) as backend:
            _judge_records(backend.read_all(limit=10_000), done)
            found = list(backend.inspect.verify(read_all=True))
            if found:
                raise Broken(f"check finds {found[:3]}")
            wanted = wanted_of(backend)
            backend.rewrite(wanted)
            left = backend.purge(whole=True)
            if left:
                raise Broken(f"nobody else is there, and this is left: {left}")
            records = backend.read_all(limit=10_000)
            _judge_records(
                records, {f"gone {one} {n}" for one, some in wanted.items() for n in some}
            )
        outside = [
            (one.stream, one.revision, one.payload) for one in read_unlinked(place / "store").events
        ]
    except (HoldfastError, Damage) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    if outside != [(one.stream, one.revision, one.payload) for one in records]:
        raise Broken("a reader from outside finds something else")


def _judge_records(records: list[Record], done: set[str] | frozenset[str]) -> None:
    there: dict[str, Record] = {f"{one.stream} {one.revision}": one for one in records}
    for one in records:
        if not is_right(one):
            raise Broken(f"{one.stream}@{one.revision} is {one.payload[:60]!r}")
    for said in done:
        name = said.removeprefix("gone ")
        if name not in there:
            raise Broken(f"{name} was acknowledged, and is missing")
        if name != said and there[name].payload != GONE:
            raise Broken(f"{name} was gone, and is there")


def trial(point: Point) -> int:
    make_tiny()
    packing.SAVED_BYTES_MIN, packing.PLACE_BYTES = 1, 500
    crash_vfs.install()
    with _scratch(point) as scratch:
        (made := scratch / "made").mkdir()
        trace = Trace(made)
        trace.loses = PLANTS.get(point.plant)
        since = work(made, trace, point.random)
        for number, picked in enumerate(pick(moments(trace, since), point.random, STATES)):
            (place := scratch / str(number)).mkdir()
            lay_out(picked.state, place)
            try:
                with unsynced():
                    judge(place, picked)
            except Broken as error:
                (kept := point.place / "state").mkdir()
                lay_out(picked.state, kept)
                raise Broken(f"{error}\n{picked}"[:4000]) from error
            shutil.rmtree(place)
        return STATES


# --- faults ---------------------------------------------------------------------------------------


def _packed_unsynced(event: Event, trace: Trace) -> bool:
    """The disk never hears of the sync of what is written beside a segment."""
    return event.kind == "sync" and ".jsonl." in trace.names[event.node]


def _rename_unsynced(event: Event, trace: Trace) -> bool:
    """Nor of those that make durable that a packed file took the place of a segment."""
    is_moved = bool(trace.events) and trace.events[-1].kind == "move"
    return is_moved and event.kind == "sync" and trace.names[event.node] == "log"


PLANTS: dict[str, Callable[[Event, Trace], bool]] = {
    "packed-unsynced": _packed_unsynced,
    "rename-unsynced": _rename_unsynced,
}

PROGRAMMES = (
    Programme(
        "t4-packed",
        "every state that a power loss may leave while segments become shorter is whole",
        trial,
        share=24,
        points=1_000,
        turns=24,
        plants={"packed-unsynced": 4, "rename-unsynced": 4},
    ),
)
