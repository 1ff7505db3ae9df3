"""Several real processes on one store: nothing lost, no gap, one order, whole commits (T9)."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from tests.concurrency.player import SHARED, Player
from tests.outside import database, segments
from tests.outside.chains import Event

PROCESSES = 8
APPENDS = 60


@pytest.fixture(params=["files", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / ("store" if request.param == "files" else "store.db")


def url_of(place: Path) -> str:
    return f"sqlite:{place}" if place.suffix == ".db" else str(place)


def read_closed(place: Path) -> list[Event]:
    """Returns what the outside reader finds, every link recomputed."""
    if place.suffix == ".db":
        return database.read_closed(place).events
    return segments.read_closed(place).events


def test_guarantee_3_and_5_eight_processes_append_to_one_scope(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """VIC-15: in processes."""
    total = PROCESSES * APPENDS
    with ExitStack() as stack:
        url = url_of(place)
        writers = [
            stack.enter_context(Player(url, str(n), "append", APPENDS)) for n in range(PROCESSES)
        ]
        follower = stack.enter_context(Player(url, "follower", "follow", total))
        for player in (*writers, follower):
            assert player.hear() == "ready"
        for writer in writers:
            writer.tell()
        times = [writer.hear() for writer in writers]
        for writer in writers:
            writer.tell()
        orders = [writer.hear() for writer in writers]
        orders.append(follower.hear())
    # Players were killed, not closed: whoever comes next recovers.
    with holdfast.open(url_of(place)) as store:
        order = list(store.scope(SHARED).state["log"])
        assert store.check().ok
        assert [event.revision for event in store.scope(SHARED).history()] == list(
            range(1, total + 1)
        )
    assert orders == [order] * (PROCESSES + 1)
    assert sorted(order) == sorted(f"op:{n}.{i}" for n in range(PROCESSES) for i in range(APPENDS))
    for n in range(PROCESSES):
        mine = [int(id.partition(".")[2]) for id in order if id.startswith(f"op:{n}.")]
        assert mine == list(range(APPENDS)), f"process {n} is out of order with itself"
    assert [id for event in read_closed(place) for id in event.ids] == order
    first_end = min(acks[-1] for acks in times)
    shares = [sum(ack <= first_end for ack in acks) for acks in times]
    worst_ms = max(b - a for acks in times for a, b in pairwise(acks)) / 1e6
    with capfd.disabled():
        print(
            f"\n{place.suffix or 'files'}: commits of each process when the first had "
            f"{APPENDS}: {sorted(shares)}; longest wait for one commit {worst_ms:.0f} ms",
            file=sys.stderr,
        )


def test_guarantee_2_readers_see_whole_commits_only_while_writers_run(place: Path) -> None:
    """BOOT-15."""
    url = url_of(place)
    holdfast.open(url).close()
    each = 40
    with ExitStack() as stack:
        writers = [stack.enter_context(Player(url, f"w{n}", "write_twins", each)) for n in range(2)]
        watchers = [stack.enter_context(Player(url, f"v{n}", "watch_twins")) for n in range(2)]
        for player in (*writers, *watchers):
            assert player.hear() == "ready"
        for writer in writers:
            writer.tell()
        for writer in writers:
            writer.hear()
        for watcher in watchers:
            watcher.tell("stop")
        for watcher in watchers:
            seen = watcher.hear()
            assert seen["broken"] == []
            assert seen["halves"] == []
            assert seen["views"] > 0
    with holdfast.open(url) as store:
        assert store.team("left").state == {"n": 2 * each}
        assert store.workflow("right").state == {"n": 2 * each}
        assert store.check().ok


def test_guarantee_2_a_view_does_not_show_what_was_made_after_it(place: Path) -> None:
    """A scope, or a fork with all that it inherited, that did not exist at the view's moment."""
    with holdfast.open(url_of(place)) as store:
        chat = store.conversation("c")
        chat.append("log", 1)
        view = store.view()
        fork = chat.fork("f")
        store.team("new").set("a", 1)
        assert (view.revision(fork), view.state(fork)) == (0, {})
        assert (view.revision(store.team("new")), view.state(store.team("new"))) == (0, {})
        assert store.view().state(fork) == {"log": [1]}
