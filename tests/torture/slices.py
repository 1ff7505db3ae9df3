"""Runs points of a programme in a forked process: a slice, the unit of progress."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.torture.programme import Point, Programme


@dataclass
class Result:
    """What came of a slice."""

    points: int = 0
    cases: int = 0
    seconds: float = 0.0
    is_end: bool = False
    """There are no points after these."""
    was_cut: bool = False
    """The time was up before all points were tried."""
    failure: str = ""
    """Empty: no promise was broken."""
    command: str = ""
    """What does the failed point again."""


def run(
    programme: Programme,
    seed: int,
    points: range,
    plant: str,
    place: Path,
    seconds_max: float = math.inf,
) -> Result:
    """Tries the points one after the other, up to the first failure; one at least."""
    result = Result()
    began = time.monotonic()
    for number in points:
        if result.points and time.monotonic() - began > seconds_max:
            result.was_cut = True
            break
        scratch = Path(tempfile.mkdtemp(prefix=f"{programme.name}-{number}-", dir=place))
        point = Point(seed, number, scratch, plant)
        try:
            cases = programme.trial(point)
        except Exception as exc:
            traceback.clear_frames(exc.__traceback__)
            result.failure = "".join(traceback.format_exception(exc))
            result.command = programme.replay(point)
            break
        shutil.rmtree(scratch, ignore_errors=True)
        if cases == 0 and programme.points is None:
            result.is_end = True
            break
        result.points += 1
        result.cases += cases
    result.seconds = time.monotonic() - began
    return result


class Slice:
    """A slice at work in a child: a trial may end its process, leak, or change what it imported."""

    def __init__(
        self, programme: Programme, seed: int, points: range, plant: str, place: Path
    ) -> None:
        self.programme = programme
        self.points = points
        self.seed = seed
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reader)
                result = run(programme, seed, points, plant, place)
                with open(writer, "w") as pipe:
                    json.dump(asdict(result), pipe)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        self.reader = reader

    def wait(self) -> Result:
        """Returns what came of it, also when the child died."""
        with open(self.reader) as pipe:
            said = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if said:
            return Result(**json.loads(said))
        code = os.waitstatus_to_exitcode(status)
        first = Point(self.seed, self.points.start, Path())
        return Result(
            failure=f"the process of points {self.points.start} to {self.points.stop - 1} ended "
            f"with {code} and no word",
            command=self.programme.replay(first),
        )
