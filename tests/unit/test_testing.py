"""The test aids themselves. That they find broken backends is proved in `tests/broken`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.backends.handle import Handle
from holdfast.backends.judge import Overlay, judge
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Backend, Commit, Fence, Head, Mark, Position, Refusal
from holdfast.core.event import ORIGIN, record_link
from holdfast.errors import UnavailableError, UsageError
from holdfast.testing import CrashPoints, FakeClock, FaultyBackend, RecordBuilder

ROOT = Path(__file__).resolve().parents[2]


def test_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(start_us=5_000_000)
    assert (clock.now_us(), clock.now_us()) == (5_000_000, 5_000_000)
    boot_us = clock.boot_us()
    clock.advance(1.5)
    assert (clock.now_us(), clock.boot_us()) == (6_500_000, boot_us + 1_500_000)
    clock.sleep(0.25)
    assert clock.slept == [0.25]
    assert (clock.now_us(), clock.boot_us()) == (6_750_000, boot_us + 1_750_000)
    clock.set(1)
    assert (clock.now_us(), clock.boot_us()) == (1, boot_us + 1_750_000)
    with pytest.raises(AssertionError, match="does not go back"):
        clock.advance(-1)


def test_fake_clock_reboots() -> None:
    clock = FakeClock()
    clock.advance(100)
    before = clock.boot_id(), clock.boot_us(), clock.now_us()
    clock.reboot()
    assert clock.boot_id() != before[0]
    assert clock.boot_us() < before[1]
    assert clock.now_us() == before[2]


def test_fake_clock_draws_the_same_bytes_from_the_same_seed() -> None:
    one, two, other = FakeClock(seed=7), FakeClock(seed=7), FakeClock(seed=8)
    drawn = [one.random_bytes(n) for n in (1, 10, 0, 100)]
    assert [len(data) for data in drawn] == [1, 10, 0, 100]
    assert drawn == [two.random_bytes(n) for n in (1, 10, 0, 100)]
    assert one.random_bytes(16) != one.random_bytes(16)
    assert other.random_bytes(100) != drawn[3]


def test_builder_links_records() -> None:
    build = RecordBuilder(actor="w1")
    first = build.append("a", b"1", b"2", key="k", checkpoint="p", subject="s", type="run.made")
    commit = build.commit(first, watch=["inbox"])
    second = build.append("a", behind=first)
    records = [*first.records, *second.records]
    assert [record.revision for record in records] == [1, 2, 3]
    assert [record.key for record in records] == ["k", None, None]
    assert [record.checkpoint for record in records] == [None, "p", None]
    assert (commit.time, commit.actor) == (records[0].time, "w1")
    assert records[2].time > records[1].time == records[0].time
    link = ORIGIN
    for record in records:
        assert record.link == record_link(link, record)
        link = record.link
    assert build.append("b").records[0].payload != records[2].payload


def test_builder_never_goes_back_in_time() -> None:
    late, early = RecordBuilder(1_000), RecordBuilder(1)
    append = late.append("a")
    assert early.append("a", behind=append).records[0].time == 1_000


def test_faulty_backend_fails_before_or_after_the_commit() -> None:
    build = RecordBuilder()
    backend = FaultyBackend(MemoryBackend(clock=FakeClock()), {2: "before", 3: "after"})
    assert isinstance(backend, Backend)
    backend.commit([build.commit(build.append("a"))])
    for name in "bc":
        with pytest.raises(UnavailableError) as caught:
            backend.commit([build.commit(build.append(name))])
        assert not caught.value.outcome_known
    backend.commit([build.commit(build.append("d"))])
    assert backend.commits == 4
    assert backend.streams() == ["a", "c", "d"]


def test_crash_points_take_names_down_and_raise_as_planned() -> None:
    points = CrashPoints()
    points.raise_at("b", OSError("full"), nth=2)
    for name in "abab":
        if len(points.names) == 3:
            with pytest.raises(OSError, match="full"):
                points.reach(name)
        else:
            points.reach(name)
    points.reach("b")
    assert points.names == ["a", "b", "a", "b", "b"]


def test_crash_points_kill_the_process() -> None:
    program = (
        "from holdfast.testing import CrashPoints\n"
        "points = CrashPoints()\n"
        "points.kill_at('b', 2)\n"
        "for name in 'abab': points.reach(name); print(name, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == [b"a", b"b", b"a"]


def test_handle_dies_once() -> None:
    handle = Handle()
    handle.check_open()
    assert handle.is_open
    assert [handle.mark_closed(), handle.mark_closed()] == [True, False]
    with pytest.raises(UsageError, match="store is closed"):
        handle.check_open()


def test_handle_dies_in_a_forked_child_and_can_give_things_up_there() -> None:
    class Held(Handle):
        gave_up = False

        def after_fork(self) -> None:
            self.gave_up = True

    handle, closed = Held(), Held()
    closed.mark_closed()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            handle.check_open()
        except UsageError as error:
            said = str(error)
        fine = "inherited by a forked child; open the store again in the child" in said
        fine = fine and handle.gave_up and not closed.gave_up and not handle.mark_closed()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    handle.check_open()
    assert not handle.gave_up


def test_overlay_sees_accepted_commits_over_what_is_true() -> None:
    build = RecordBuilder()
    true = Head(2, bytes(32), 0, Position(1), 1)
    overlay = Overlay(
        {"a": true}.get, lambda stream, key: 2 if (stream, key) == ("a", "k") else None
    )

    def refusal(commit: Commit) -> Refusal | None:
        return judge(
            commit, overlay.head_of, overlay.key_of, lambda fence: fence.epoch == 1, lambda: 0
        )

    append = build.append("a", b"1", b"2", behind=true, key="k2")
    commit = build.commit(append, build.append("b"), watch=["a", "b", "c"])
    assert refusal(commit) is None
    overlay.accept(commit, Position(2))
    last = append.records[-1]
    head = Head(4, last.link, last.time, Position(2), 1)
    assert overlay.head_of("a") == head
    assert overlay.news(commit) == {"a": 4, "b": 1, "c": 0}
    assert refusal(build.commit(build.append("a", behind=true))) == Refusal(
        "conflict", "a", 2, head
    )
    for key, revision in (("k", 2), ("k2", 3)):
        duplicate = refusal(build.commit(build.append("a", key=key), fence=Fence("l", "w", 2)))
        assert duplicate == Refusal("duplicate", "a", 0, revision=revision)
    fenced = refusal(build.commit(build.append("a"), fence=Fence("l", "w", 2)))
    assert fenced == Refusal("fenced", "l")
    assert refusal(build.commit(build.append("a", behind=append), fence=Fence("l", "w", 1))) is None


def test_a_malformed_commit_is_a_bug() -> None:
    build = RecordBuilder()
    commit = build.commit(build.append("a", b"1", b"2", key="k"))
    [append] = commit.appends
    first, second = append.records
    for spoiled in (
        replace(append, records=()),
        replace(append, expected=1),
        replace(append, stream="b"),
        replace(append, records=(second, first)),
        replace(append, records=(first, replace(second, key="k"))),
        replace(append, records=(replace(first, time=1),)),
        replace(append, records=(replace(first, actor="other"),)),
    ):
        bad = replace(commit, appends=(spoiled,))
        with pytest.raises(AssertionError, match=r"^BUG: "):
            judge(bad, lambda stream: None, lambda stream, key: None, lambda fence: True, lambda: 0)


def test_the_backend_of_the_guide_passes_as_it_says(tmp_path: Path) -> None:
    """Each block in a file of its own: the children of a test load its file, and run all of it."""
    guide = (ROOT / "docs/guides/prove-a-backend.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.M | re.S)
    imports = ""
    for number, block in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(imports + block, "utf-8")
        imports += "".join(re.findall(r"^(?:from|import) .*\n", block, re.M))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 100
    assert done.returncode == 0, done.stdout


def environment() -> dict[str, str]:
    paths = [str(Path(__file__).parent), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_marks_of_every_index_have_one_order() -> None:
    backend = MemoryBackend(clock=FakeClock())
    build = RecordBuilder()
    marks = [Mark("j", "a"), Mark("i", "b"), Mark("i", "a")]
    backend.commit([build.commit(marks=marks)])
    assert backend.marks.list() == [marks[2], marks[0], marks[1]]
