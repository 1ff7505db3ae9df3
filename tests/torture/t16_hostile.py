"""T16: hostile input, through the API, the command line and the files of a store.

Names, paths, values, words typed and files laid by somebody else: whatever comes in, only our own
errors come out, nothing outside the store is touched, no code from data is run, time and memory are
bounded, and the store opens and verifies afterwards.

Planted, and found: a name that becomes a file name (`name-as-path`), a value that is revived by
calling what it names (`revival`), decompression without a bound (`unbounded`), stored text printed
raw (`raw-terminal`), a symbolic link that is followed (`follow-links`), and a check of names that
was left out (`unchecked-names`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START
from holdfast.clock import SystemClock
from tests.torture import hostile_cli, hostile_files, hostile_plants
from tests.torture.hostile_calls import NAMES, PATHS, VALUES, Call
from tests.torture.hostile_cli import judge
from tests.torture.hostile_ground import (
    BACKENDS,
    Ground,
    apart,
    check_store,
    only_ours,
    shown,
)
from tests.torture.hostile_words import HUGE, WORDS, cycle, mutants, nested, values
from tests.torture.programme import Broken, Point, Programme

MUTANTS = 20
LIKE_A_DICT = (IndexError, KeyError)
"""A draft and a scope behave like a dict: what is not there raises what a dict raises."""
ALLOWED = {"in scope": (TypeError,), "store.workers.release": (ValueError,)}
"""`[] in {}` is a TypeError of Python's; the other is the test's own, of an int too long."""


def api(point: Point) -> int:
    """One call of the API with every hostile input there is for it, on one backend."""
    calls: list[tuple[str, str, Call]] = [
        (kind, name, call)
        for kind, table in (("name", NAMES), ("path", PATHS), ("value", VALUES))
        for name, call in table.items()
    ]
    number, which = divmod(point.number, len(BACKENDS))
    if number > len(calls):
        return 0
    ground = Ground(point.place, BACKENDS[which])
    with hostile_plants.planted(point.plant):
        if number == len(calls):
            return _bombs(ground)
        kind, name, call = calls[number]
        return _call(ground, kind, name, call, point)


def _inputs(kind: str, ground: Ground, point: Point) -> list[Any]:
    words = [*WORDS, *mutants(point.random, MUTANTS)]
    if kind == "value":
        return [*values(ground.mark), *words[-MUTANTS:]]
    if kind == "path":
        return [*words, *((word, word) for word in words), *values(ground.mark)[:60]]
    return [*words, *values(ground.mark)[:60]]


def _call(ground: Ground, kind: str, name: str, call: Call, point: Point) -> int:
    inputs = _inputs(kind, ground, point)
    with holdfast.open(ground.url, durability="process") as store:
        fill(store)
        for value in inputs:
            what = f"{kind} {name} on {ground.backend} with {shown(value)}"
            position = store.position
            allowed = (*LIKE_A_DICT, *ALLOWED.get(name, ()))
            error = only_ours(what, lambda: call(store, value), allowed)  # noqa: B023
            if error is not None and store.position != position:
                raise Broken(f"{what}: it wrote before it was refused: {error}")
        _read_everything(store)
    ground.check(f"{kind} {name} on {ground.backend}")
    check_store(f"after {kind} {name}", ground.url)
    return len(inputs)


def fill(store: Store) -> None:
    scope = store.conversation("c", parent=store.team("red"))
    scope.append("log", {"text": "hello"}, checkpoint="one")
    scope.update({"l": [], "n": 1, "k": 0})


def _read_everything(store: Store) -> None:
    for scope in store.scopes():
        scope.state.to_dict()
        list(scope.history())
        scope.checkpoints()


def _bombs(ground: Ground) -> int:
    """What is small to write down and large to work on: each in a child with little memory."""
    bombs: dict[str, Callable[[Store], Any]] = {
        "a name of 1 MB": lambda s: s.team(HUGE),
        "a key of 1 MB": lambda s: s.team("a").set("v", 1, key=HUGE),
        "a path of 1 MB": lambda s: s.team("a").set(HUGE, 1),
        "a path of 10,000 steps": lambda s: s.team("a").set(("a",) * 10_000, 1),
        "a get of 10,000 steps": lambda s: s.team("a").get(("a",) * 10_000),
        "depth 10,000 of lists": lambda s: s.team("a").set("v", nested(10_000, list)),
        "depth 10,000 of dicts": lambda s: s.team("a").set("v", nested(10_000, dict)),
        "a cycle of lists": lambda s: s.team("a").set("v", cycle(list)),
        "a cycle of dicts": lambda s: s.team("a").update(cycle(dict)),
        "a million keys": lambda s: s.team("a").set("v", dict.fromkeys(map(str, range(10**6)), 0)),
        "100,000 keys at the root": lambda s: s.team("a").update(
            dict.fromkeys(map(str, range(10**5)), 0)
        ),
        "an int of 10 million digits": lambda s: s.team("a").set("v", 1 << 33_000_000),
        "a text of 100 MB": lambda s: s.team("a").set("v", "x" * 100_000_000),
        "bytes of 100 MB": lambda s: s.team("a").set("v", bytes(100_000_000)),
        "100,000 tags": lambda s: s.team("a").set("v", [{"$pairs": []}] * 100_000),
        "a list shared a million times": lambda s: s.team("a").set("v", shared(20)),
    }
    for what, bomb in bombs.items():

        def case(begin: Callable[[str], None]) -> None:
            with holdfast.open(ground.url, durability="process") as store:
                only_ours(what, lambda: bomb(store))  # noqa: B023

        apart(f"{what} on {ground.backend}", case)
        ground.check(what)
    check_store("after the bombs", ground.url)
    return len(bombs)


def shared(doublings: int) -> Any:
    """Returns a value that is small in memory and large when it is written out."""
    value: Any = ["x"]
    for _ in range(doublings):
        value = [value, value]
    return value


# --- the command line -----------------------------------------------------------------------------

CLI_BATCH = 100


def cli(point: Point) -> int:
    """A batch of commands with hostile words, or every view of a store full of them."""
    ground = Ground(point.place, BACKENDS[point.number % 2])
    typed = list(hostile_cli.cases(point))
    here = os.getcwd()
    with hostile_plants.planted(point.plant), contextlib.chdir(here):
        hostile_cli.fill(ground.url, list(WORDS[point.number % 7 :: 7]))
        if point.number < len(BACKENDS):
            looks = [("look", words) for words in hostile_cli.looks()]
            count = hostile_cli.in_process(ground, looks, all_forms=True)
            count += hostile_cli.in_processes(ground) + hostile_cli.under_strace(ground)
        else:
            start = (point.number - len(BACKENDS)) * CLI_BATCH
            batch = typed[start : start + CLI_BATCH]
            count = hostile_cli.in_process(ground, batch, all_forms=False)
    if count:
        ground.check(f"the commands of point {point.number}")
        check_store(f"after the commands of point {point.number}", ground.url)
    return count


# --- files ----------------------------------------------------------------------------------------

FILES_BATCH = 25
LOOKS = (["log"], ["show", "team/a"], ["check", "--read-all", "--json"], ["scopes"], ["doctor"])


def files(point: Point) -> int:
    """A batch of stores that somebody else has laid."""
    number, which = divmod(point.number, len(BACKENDS))
    backend = BACKENDS[which]
    everything = hostile_files.cases(backend, SystemClock().boot_id())
    hostile_cli.parse_with_one_parser()
    if number * FILES_BATCH >= max(_files_counts()):
        return 0
    batch = everything[number * FILES_BATCH : (number + 1) * FILES_BATCH]
    original = Ground(point.place / "original", backend)
    # In a child: nobody who forks has a store open, or the threads of one.
    apart("the original", lambda _: hostile_files.template(original))

    def work(begin: Callable[[str], None]) -> None:
        with hostile_plants.planted(point.plant):
            for place, (what, change) in enumerate(batch):
                begin(what)
                _lay_and_use(f"{what} ({backend})", point.place / str(place), original, change)

    apart(f"the stores of point {point.number}", work)
    return len(batch) or 1


def _lay_and_use(what: str, place: Path, original: Ground, change: hostile_files.Change) -> None:
    ground = Ground(place, original.backend)
    _copy(original.path, ground.path)
    change(ground)
    ground.remember()
    _use(what, ground)
    ground.check(what)
    ground.remove()


@cache
def _files_counts() -> list[int]:
    return [len(hostile_files.cases(backend, "")) for backend in BACKENDS]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
        target.chmod(0o600)


def _use(what: str, ground: Ground) -> None:
    """Does everything with a store that can be done, each with nothing but our own errors."""
    for read_only in (True, False):
        only_ours(what, lambda: _visit(what, ground.url, read_only=read_only))  # noqa: B023
    os.environ.update(HOLDFAST_STORE=ground.url, TERM="dumb", COLUMNS="100")
    words = LOOKS[crc32(what.encode("utf-8", "replace")) % len(LOOKS)]
    try:
        judge(words, hostile_cli.run(words))
    except Broken as broken:
        raise Broken(f"{what}: {broken}") from broken
    except Exception as exc:
        raise Broken(f"{what}: holdfast {words}: {type(exc).__name__}: {exc}") from exc


def _visit(what: str, url: str, *, read_only: bool) -> None:
    with holdfast.open(url, create=False, read_only=read_only, durability="process") as store:
        for name in ("team/a", "team/b"):
            scope = store.scope(name)
            for look in (
                lambda: scope.state.to_dict(),  # noqa: B023
                lambda: scope.lookup("nothing"),  # noqa: B023
                lambda: [(one.data, one.time) for one in scope.history()],  # noqa: B023
                lambda: scope.checkpoints(),  # noqa: B023
                lambda: scope.diff(0),  # noqa: B023
                lambda: scope.at("one"),  # noqa: B023
                lambda: scope.parent,  # noqa: B023
            ):
                only_ours(what, look)
        for look in (
            lambda: list(store.scopes()),
            lambda: list(store.follow(as_events=True, after=START, timeout_s=0)),
            lambda: store.workers.marks(),
            lambda: store.status(),
            lambda: store.check(),
            lambda: store.view().state(store.team("a")),
        ):
            only_ours(what, look)
        if read_only:
            return
        for act in (
            lambda: store.team("a").set("new", 1),
            lambda: store.team("b").restore(1),
            lambda: store.team("a").fork("f"),
            lambda: store.team("big").set("v", "y" * 70_000),
            lambda: store.workers.release(store.workers.lease("l")),
            lambda: store.workers.claim("todo"),
        ):
            only_ours(what, act)


PROGRAMMES: tuple[Programme, ...] = (
    Programme(
        name="t16-api",
        promise="hostile names, paths and values: only our errors, nothing outside, no code run",
        trial=api,
        share=None,
        parts=2,
        plants={"name-as-path": 2, "revival": 82, "unchecked-names": 2},
    ),
    Programme(
        name="t16-cli",
        promise="hostile words and data on the command line: known exit codes, a screen not driven",
        trial=cli,
        share=None,
        parts=2,
        plants={"raw-terminal": 1},
    ),
    Programme(
        name="t16-files",
        promise="stores laid by somebody else: opened or refused, nothing outside, nothing hangs",
        trial=files,
        share=None,
        parts=2,
        turns=24,
        plants={"follow-links": 10, "unbounded": 2},
    ),
)
