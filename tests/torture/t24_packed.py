"""T24, packed: segments become shorter while others write, read everything and follow.

A store on plain files holds payloads that anybody can work out from the name of a stream and a
revision. A process lets go of most of them, a few at a time, and packs the segments; it is killed
with SIGKILL again and again, at a call that changes the disk or at any moment, and another one goes
on. Meanwhile four processes write, and two read the whole store over and over, one through a handle
that may write and one that only reads, with descriptors, places and log offsets that were right a
moment ago. Each record that anybody reads is what was written, or gone if it was to go. At the end
everything that was acknowledged is there, all that was to go is gone, `check` finds nothing, a
reader that does not import Holdfast agrees, and the store takes at most 1.3 times as much as one
into which the same records are written afresh.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from holdfast.backends.files import FilesBackend, journal, packing, text
from holdfast.backends.protocol import GONE, START, Receipt, Record
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.testing.records import RecordBuilder
from tests.crash import scale
from tests.crash.children import Child
from tests.crash.killers import HOWS, Countdown, Kill, options_for
from tests.outside.segments import read_unlinked
from tests.torture.programme import Broken, Point, Programme

WRITERS = ("w0", "w1", "w2", "w3")
OLD = 8
REVISIONS = 40
COMMITS = 50
DEATHS = 4
CALLS = 60
SHARE = 1.3


def payload_of(stream: str, revision: int) -> bytes:
    chance = Random(f"{stream} {revision}")
    return b'"%b %d %b"' % (
        stream.encode(),
        revision,
        b"%x " % chance.getrandbits(64) * chance.choice([0, 3, 30, 90]),
    )


def goes(stream: str, revision: int) -> bool:
    """Whether a record is among the nine in ten that are to go."""
    return Random(f"goes {stream} {revision}").random() < 0.9


def is_right(record: Record) -> bool:
    if record.payload == GONE:
        return goes(record.stream, record.revision)
    return record.payload == payload_of(record.stream, record.revision)


def append(backend: FilesBackend, stream: str, build: RecordBuilder) -> None:
    [head] = backend.heads([stream])
    revision = head.revision + 1 if head is not None else 1
    one = build.append(stream, payload_of(stream, revision), behind=head)
    [receipt] = backend.commit([build.commit(one)])
    assert isinstance(receipt, Receipt), receipt


def prepare(path: Path) -> None:
    with closing(FilesBackend(path, clock=SystemClock())) as backend:
        build = RecordBuilder(SystemClock().now_us())
        for number in range(OLD * REVISIONS):
            append(backend, f"old{number % OLD}", build)


# --- who is at work -------------------------------------------------------------------------------


def write(path: Path, stream: str) -> None:
    scale.make_small()
    _make_smaller()
    with closing(FilesBackend(path, clock=SystemClock())) as backend:
        build = RecordBuilder(SystemClock().now_us())
        for _ in range(COMMITS):
            append(backend, stream, build)


def _make_smaller() -> None:
    journal.SEGMENT_BYTES = 40 << 10


def read_over_and_over(path: Path, stop: int, *, read_only: bool) -> None:
    """Reads everything until told to stop, and whatever comes in between is right."""
    scale.make_small()
    os.set_blocking(stop, False)
    is_last = False
    with closing(FilesBackend(path, clock=SystemClock(), read_only=read_only)) as backend:
        while True:
            after, count = START, dict[str, int]()
            while page := backend.read_all(after=after, limit=50):
                for record in page:
                    known = count.get(record.stream, 0)
                    assert record.revision == known + 1, f"{record.stream}@{known + 1} is left out"
                    assert is_right(record), record
                    count[record.stream] = record.revision
                after = page[-1].position
            for stream, last in count.items():
                found = backend.read(stream, after=last // 2, limit=9)
                assert all(map(is_right, found)), found
            backend.look_while_idle()
            backend.check_open()
            if is_last:
                return
            try:
                is_last = bool(os.read(stop, 1))
            except BlockingIOError:
                continue


def shrink(path: Path, seed: str, **options: Any) -> None:
    """Lets go of all that is to go, a few streams at a time, and packs."""
    scale.make_small()
    _make_smaller()
    chance = Random(seed)
    with closing(FilesBackend(path, clock=SystemClock(), **options)) as backend:
        streams = backend.streams()
        chance.shuffle(streams)
        for begin in range(0, len(streams), 3):
            wanted: dict[str, list[int]] = {}
            for stream in streams[begin : begin + 3]:
                [head] = backend.heads([stream])
                assert head is not None
                some = [one for one in range(1, head.revision + 1) if goes(stream, one)]
                wanted[stream] = some
            backend.rewrite(wanted)
            backend.purge(whole=chance.random() < 0.5)


def die(path: Path, chance: Random) -> None:
    """Has a process do it that is killed, at a call or at any moment."""
    kill = Kill(chance.randint(1, CALLS), chance.choice(HOWS)) if chance.random() < 0.6 else None
    seed = str(chance.random())

    def live(_pipe: int, _stop: int) -> None:
        shrink(path, seed, **options_for("files", Countdown(kill)))

    child = Child(live)
    if kill is None:
        child.hear_for(0.02 + chance.random() * 0.4)
        child.kill()
    child.end()
    if child.trouble is not None:
        raise Broken(f"who shrinks it, to be killed {kill}: {child.trouble}")


@contextmanager
def company(path: Path) -> Generator[None]:
    with ExitStack() as ended:
        readers = [
            Child(lambda _p, stop, r=r: read_over_and_over(path, stop, read_only=r))
            for r in (False, True)
        ]
        writers = [Child(lambda _p, _s, n=n: write(path, n)) for n in WRITERS]
        for child in (*readers, *writers):
            ended.callback(child.kill)
        yield
        for child in writers:
            if child.end() or child.trouble:
                raise Broken(f"a writer failed: {child.trouble}")
        for child in readers:
            child.tell_to_stop()
            if child.end() or child.trouble:
                raise Broken(f"a reader failed: {child.trouble}")


# --- afterwards -----------------------------------------------------------------------------------


def judge(path: Path, place: Path) -> int:
    shrink(path, "last")
    with closing(FilesBackend(path, clock=SystemClock())) as backend:
        found = list(backend.inspect.verify(read_all=True))
        if found:
            raise Broken(f"check finds {found[:3]}")
        records = backend.read_all(limit=1_000_000)
    wanted = {f"old{number}": REVISIONS for number in range(OLD)} | dict.fromkeys(WRITERS, COMMITS)
    there: dict[str, int] = {}
    for record in records:
        stream, revision = record.stream, record.revision
        if revision != there.get(stream, 0) + 1:
            raise Broken(f"{stream}@{there.get(stream, 0) + 1} is missing")
        there[stream] = revision
        payload = GONE if goes(stream, revision) else payload_of(stream, revision)
        if record.payload != payload:
            raise Broken(f"{stream}@{revision} is {record.payload[:60]!r}, not {payload[:60]!r}")
    if there != wanted:
        raise Broken(f"the store has {there}, of {wanted}")
    outside = [(one.stream, one.revision, one.payload) for one in read_unlinked(path).events]
    if outside != [(one.stream, one.revision, one.payload) for one in records]:
        raise Broken("a reader from outside finds something else")
    _judge_size(path, place / "fresh", records)
    return len(records)


def _judge_size(path: Path, fresh: Path, records: list[Record]) -> None:
    with closing(FilesBackend(fresh, clock=SystemClock())) as backend:
        build = RecordBuilder(SystemClock().now_us())
        for record in records:
            [head] = backend.heads([record.stream])
            payload = b"0" if record.payload == GONE else record.payload
            backend.commit([build.commit(build.append(record.stream, payload, behind=head))])
    sizes = [sum(one.stat().st_size for one in at.glob("log/*")) for at in (path, fresh)]
    if sizes[0] > SHARE * sizes[1]:
        raise Broken(f"its log takes {sizes[0]} bytes, afresh {sizes[1]}")


def trial(point: Point) -> int:
    """Four deaths beside writers and readers."""
    scale.make_small()
    _make_smaller()
    with PLANTS[point.plant]():
        path = point.place / "store"
        prepare(path)
        try:
            with company(path):
                for _ in range(DEATHS):
                    die(path, point.random)
            return judge(path, point.place)
        except HoldfastError as error:
            raise Broken(repr(error)) from error


# --- faults ---------------------------------------------------------------------------------------


@contextmanager
def _nothing() -> Generator[None]:
    yield


@contextmanager
def places_kept() -> Generator[None]:
    """The places of lines in a file are taken for those in the file that took its place."""
    look_at = text.Segments._look_at

    def once(self: Any, start: int, fd: int) -> None:
        if start not in self._packed:
            look_at(self, start, fd)

    with mock.patch.object(text.Segments, "_look_at", once):
        yield


@contextmanager
def spaces_untold() -> Generator[None]:
    """Spaces are left out, and nothing says where; nor is the file read back."""

    def bare(data: bytes) -> bytes | None:
        return packing._RUN.sub(b"", data) if packing._RUN.search(data) else None

    with (
        mock.patch("holdfast.backends.files.rewriting.pack", bare),
        mock.patch.object(text.Segments, "write_beside", _unread(text.Segments.write_beside)),
    ):
        yield


def _unread(sound: Callable[..., Any]) -> Callable[..., Any]:
    def write_beside(self: Any, start: int, whole: bytes, *more: Any) -> Any:
        with mock.patch.object(text.Segments, "_whole", return_value=whole):
            return sound(self, start, whole, *more)

    return write_beside


PLANTS: dict[str, Callable[[], Any]] = {
    "": _nothing,
    "places-kept": places_kept,
    "spaces-untold": spaces_untold,
}

PROGRAMMES = (
    Programme(
        "t24-packed",
        "segments become shorter, killed beside writers and readers, and nobody notices",
        trial,
        share=24,
        points=400,
        turns=24,
        plants={"places-kept": 8, "spaces-untold": 1},
    ),
)
