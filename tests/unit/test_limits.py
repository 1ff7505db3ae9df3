"""Quotas and a disk that is nearly full: what is refused, and what never is (RALPH-55, 56)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LimitError, Settings, UsageError
from holdfast.core import limits
from holdfast.core.limits import (
    Limits,
    bound_of,
    check_size,
    local_places,
    quota_settings,
    quotas_of,
)
from holdfast.retention import DiskWatch, Quota, RetentionPolicy

LARGE = "x" * 100_000


@pytest.mark.parametrize(
    ("given", "bytes"),
    [(5, 5), ("5", 5), ("5B", 5), ("2kB", 2000), ("2 KiB", 2048), ("1.5MB", 1_500_000),
     ("2GiB", 2 << 30), ("1T", 10**12)],
)  # fmt: skip
def test_sizes_are_numbers_or_texts(given: Any, bytes: int) -> None:
    assert check_size(given, "bytes") == bytes


@pytest.mark.parametrize("given", ["many", "", "-5", "0", 0, -1, 1.5, None, True])
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="bytes is a"):
        check_size(given, "bytes")


def test_bounds_of_a_disk_are_bytes_or_a_part() -> None:
    assert (bound_of("5%", "warn", 1000), bound_of("1kB", "warn", 5)) == (50, 1000)
    for given in ("x%", "0%", "100%", "%"):
        with pytest.raises(UsageError, match="part of the disk"):
            DiskWatch(warn=given)


def test_quotas_are_stored_as_settings() -> None:
    quotas = [Quota("team/*", events=3), Quota("conversation/*", bytes="2kB")]
    assert quotas_of(quota_settings(quotas)) == quotas
    assert quotas_of({}) == []


def test_a_quota_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="limits nothing"):
        Quota("team/*")
    with pytest.raises(UsageError, match="every scope"):
        Quota("*", events=5)
    with pytest.raises(UsageError, match="events"):
        Quota("team/*", events=0)
    for quotas in ("team/*", 5, [5]):
        with pytest.raises(UsageError, match="uota"):
            holdfast.open("memory:", settings=Settings(quotas=quotas))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="disk_watch is a DiskWatch"):
        holdfast.open("memory:", settings=Settings(disk_watch="10%"))  # type: ignore[arg-type]


def test_a_scope_takes_so_many_events_and_no_more() -> None:
    with holdfast.open("memory:", settings=Settings(quotas=[Quota("team/*", events=3)])) as hf:
        team = hf.team("t")
        for number in range(3):
            team.set("n", number)
        with pytest.raises(LimitError, match="may hold 3 events: it would have 4") as raised:
            team.set("n", 3)
        assert (raised.value.stream, raised.value.exit_code) == ("team/t", 23)
        assert team["n"] == 2
        hf.conversation("c").update({"n": 1})  # another level
        with pytest.raises(LimitError), hf.commit() as tx:  # all of a commit, or nothing
            tx.scope(hf.conversation("c")).set("n", 2)
            tx.scope(team).set("n", 2)
        assert hf.conversation("c")["n"] == 1
        team.remove()  # what makes room is taken
        team.set("n", 1)
        hf.team("u").set("n", 1)
        assert hf.team("u").close() == 2


def test_a_scope_takes_so_many_bytes_and_what_was_let_go_of_counts_no_more() -> None:
    with holdfast.open("memory:", settings=Settings(quotas=[Quota("team/*", bytes=2000)])) as hf:
        team = hf.team("t")
        team.record("seen", {"data": "x" * 900}, unchecked=True)
        team.record("seen", {"data": "x" * 900}, unchecked=True)
        with pytest.raises(LimitError, match="may hold 2,000 bytes: it has 1,8"):
            team.record("seen", {"data": "x" * 900}, unchecked=True)
        hf.retention.run(grace_s=0, policies=[RetentionPolicy("team/*", types=["seen"], count=1)])
        team.record("seen", {"data": "x" * 900}, unchecked=True)
        with pytest.raises(LimitError):
            team.record("seen", {"data": "x" * 900}, unchecked=True)
        team.remove()
        team.record("seen", {"data": "x" * 900}, unchecked=True)


def test_what_another_handle_wrote_counts(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'state.db'}"
    with holdfast.open(place, settings=Settings(quotas=[Quota("team/*", bytes=2000)])) as hf:
        hf.team("t").set("n", "x" * 900)
        with holdfast.open(place) as other:
            other.team("t").set("m", "x" * 900)
        with pytest.raises(LimitError):
            hf.team("t").set("o", "x" * 900)


def test_events_of_an_earlier_life_do_not_count(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'state.db'}"
    with holdfast.open(place) as hf:
        for n in range(8):
            hf.team("t").set("n", n)
        hf.team("t").remove()
        hf.team("t").set("n", 1)
    with holdfast.open(place, settings=Settings(quotas=[Quota("team/*", events=4)])) as fresh:
        team = fresh.team("t")  # what it wrote is not folded: where its life began is not known
        for _ in range(2):
            team.messages.add("user", "hello")
        with pytest.raises(LimitError, match="4 events"):
            team.messages.add_many([{"role": "user", "content": "hello"}] * 4)


def test_few_sizes_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_KNOWN_MAX", 2)
    with holdfast.open("memory:", settings=Settings(quotas=[Quota("team/*", bytes=2000)])) as hf:
        for id in "abc":
            hf.team(id).set("n", "x" * 900)
        assert len(hf._log.limits._sizes) <= 2  # type: ignore[union-attr]


class Disk:
    """A disk of 1000 bytes, of which so many are free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self.looks = 0
        self.now = 1000.0
        monkeypatch.setattr(limits, "disk_space", lambda path: self.space(path))
        monkeypatch.setattr(limits, "monotonic", lambda: self.now)

    def space(self, _: str) -> tuple[int, int]:
        self.looks += 1
        return self.free, 1000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, 1000)


@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_ralph_56_a_disk_that_fills_is_told_of_then_refuses_and_stays_readable(
    kind: str, tmp_path: Path, disk: Disk
) -> None:
    place = str(tmp_path / "s") if kind == "files" else f"sqlite:{tmp_path / 's.db'}"
    with holdfast.open(place, settings=Settings(disk_watch=DiskWatch())) as hf:
        team = hf.team("t")
        team.set("n", 1)
        assert disk.looks == 1
        team.set("n", 2)
        assert disk.looks == 1  # not again within a second
        disk.free, disk.now = 90, disk.now + 2
        team.set("n", 3)
        assert [one for one in hf.status()["reports"] if "little space is left" in one]
        disk.free, disk.now = 40, disk.now + 2
        team.set("n", 4)
        with pytest.raises(LimitError, match="no large value is taken"):
            team.set("large", LARGE)
        disk.free, disk.now = 10, disk.now + 2
        with pytest.raises(LimitError, match="what is there can be read"):
            team.set("n", 5)
        with pytest.raises(LimitError):
            team.say("no")
        assert team.state.to_dict() == {"n": 4}
        assert hf.retention.run(grace_s=0).scopes == []
        team.remove()
        assert hf.retention.run(grace_s=0).events == 4
        assert hf.check().ok
        disk.free, disk.now = 1000, disk.now + 2
        team.set("large", LARGE)


def test_only_what_is_asked_for_is_refused(tmp_path: Path, disk: Disk) -> None:
    disk.free = 1
    watch = DiskWatch(warn=None, no_blobs=None, no_commits=None)
    with holdfast.open(str(tmp_path / "s"), settings=Settings(disk_watch=watch)) as hf:
        hf.team("t").set("large", LARGE)
        assert hf.status()["reports"] == []


def test_a_store_that_is_on_no_disk_of_this_host_is_not_watched(disk: Disk) -> None:
    disk.free = 1
    with holdfast.open("memory:", settings=Settings(disk_watch=DiskWatch())) as hf:
        hf.team("t").set("n", 1)
    assert disk.looks == 0
    mixed = {
        "levels": {
            "team": {"kind": "files", "place": "/a", "path": "/a"},
            "*": {"kind": "sqlite", "place": "sqlite:/b.db", "path": "/b.db"},
            "run": {"kind": "redis", "place": "redis://h"},
        }
    }
    assert local_places(mixed) == ["/a", "/b.db"]


def test_the_disk_of_a_sqlite_store_is_looked_at(tmp_path: Path) -> None:
    """By its path: its URL is none, and the first write failed with FileNotFoundError."""
    with holdfast.open(
        f"sqlite:{tmp_path / 'state.db'}", settings=Settings(disk_watch=DiskWatch())
    ) as hf:
        hf.team("t").set("n", 1)
        assert hf.team("t").get("n") == 1


def test_the_fullest_disk_counts(disk: Disk) -> None:
    free = {"/a": 500, "/b": 15, "/c": 60}
    told: list[str] = []
    found = Limits(
        [], DiskWatch(), places=list(free), read=lambda *_: [], life=lambda *_: 0,
        report=told.append,
        space=lambda path: (free[path], 1000),
    )  # fmt: skip
    assert found.disk_state() == "no_commits"
    assert told == [
        'the disk of "/b" has 15 of 1,000 bytes left: nothing is written any more; what is there '
        "can be read"
    ]


def test_the_real_disk_has_space(tmp_path: Path) -> None:
    free, total = limits.disk_space(str(tmp_path))
    assert 0 < free <= total


def test_what_is_not_there_yet_or_not_any_more_is_not_counted() -> None:
    found = Limits([], None, places=[], read=lambda *_: [], life=lambda *_: 0, report=print)
    found._sizes["team/t"] = (5, 100)
    assert found._size("team/t", 5) == 100
    assert found._size("team/t", 3) == 0  # counted anew: that was further than this
    with pytest.raises(UsageError, match="by a pattern"):
        Quota(7, events=1)  # type: ignore[arg-type]
