"""Names that do not lead to the opened files any more are noticed, with inotify and without."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from holdfast.backends import file_watch
from holdfast.backends.file_watch import FileWatch, IdleLooks, idle_looks

NEVER = 1 << 30
ALL = ["the store", "the folder", "the empty folder", "the ring", "the text"]


@pytest.fixture(params=[0, NEVER], ids=["inotify", "stats"])
def watch(request: pytest.FixtureRequest) -> Iterator[FileWatch]:
    made = FileWatch(notify_after=request.param)
    yield made
    made.close()


@pytest.fixture
def notified() -> Iterator[FileWatch]:
    made = FileWatch(notify_after=0)
    yield made
    made.close()


class Place:
    """A store with two files, deep enough to have directories on its way."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.path = self.home / "agent" / "store"
        (self.path / "log").mkdir(parents=True)
        (self.path / "empty").mkdir()
        self.fds = {
            "the store": os.open(self.path, os.O_RDONLY),
            "the folder": os.open(self.path / "log", os.O_RDONLY),
            "the empty folder": os.open(self.path / "empty", os.O_RDONLY),
            "the ring": os.open(self.path / "ring", os.O_RDWR | os.O_CREAT),
            "the text": os.open(self.path / "log" / "0", os.O_RDWR | os.O_CREAT),
        }

    def keep_all(self, watch: FileWatch) -> None:
        store = self.fds["the store"]
        watch.keep("the store", str(self.path), store)
        watch.keep("the folder", "log", self.fds["the folder"], at=store)
        watch.keep("the empty folder", "empty", self.fds["the empty folder"], at=store)
        watch.keep("the ring", "ring", self.fds["the ring"], at=store)
        watch.keep("the text", "0", self.fds["the text"], at=self.fds["the folder"])

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def replace(place: Place) -> None:
    (place.path / "other").write_bytes(b"")
    (place.path / "other").rename(place.path / "ring")


def remove_way(place: Place) -> None:
    shutil.rmtree(place.home)


def loop(place: Place) -> None:
    place.home.rename(place.home.with_name("moved"))
    place.home.symlink_to(place.home)


def put_file_in_way(place: Place) -> None:
    place.home.rename(place.home.with_name("moved"))
    place.home.write_bytes(b"")


def put_new_store(place: Place) -> None:
    place.path.rename(place.path.with_name("moved"))
    place.path.mkdir()


HANDS: dict[str, tuple[Callable[[Place], object], list[str]]] = {
    "replaced": (replace, ["the ring"]),
    "removed": (lambda place: (place.path / "ring").unlink(), ["the ring"]),
    "renamed": (lambda place: (place.path / "ring").rename(place.path / "r"), ["the ring"]),
    "text removed": (lambda place: (place.path / "log" / "0").unlink(), ["the text"]),
    "empty folder removed": (lambda place: (place.path / "empty").rmdir(), ["the empty folder"]),
    "folder moved": (lambda place: (place.path / "log").rename(place.path / "l"), ["the folder"]),
    "store moved": (put_new_store, ["the store"]),
    "way moved": (lambda place: place.home.rename(place.home.with_name("moved")), ["the store"]),
    "way is a loop": (loop, ["the store"]),
    "way is a file": (put_file_in_way, ["the store"]),
    "all removed": (remove_way, ALL),
}


@pytest.mark.parametrize("hand", HANDS)
def test_what_was_taken_is_named(watch: FileWatch, place: Place, hand: str) -> None:
    place.keep_all(watch)
    assert watch.look() == []
    act, taken = HANDS[hand]
    act(place)
    assert watch.is_due(0)
    assert watch.taken() == taken
    assert watch.look() == taken


def test_own_work_is_not_taken_for_a_hand(notified: FileWatch, place: Place) -> None:
    place.keep_all(notified)
    notified.look()
    assert notified.is_notified
    for n in range(3):
        os.pwrite(place.fds["the text"], b"a line\n", 7 * n)
        os.fdatasync(place.fds["the text"])
    os.ftruncate(place.fds["the text"], 7)
    (place.path / "leases.new").write_bytes(b"{}")
    (place.path / "leases.new").rename(place.path / "leases.json")
    (place.path / "log" / "1").write_bytes(b"")
    assert not notified.is_due(0)


def test_a_harmless_event_costs_one_look(notified: FileWatch, place: Place) -> None:
    place.keep_all(notified)
    notified.look()
    os.fchmod(place.fds["the ring"], 0o600)
    assert notified.is_due(0)
    assert notified.look() == []
    assert not notified.is_due(0)


def test_a_link_on_the_way_is_followed_wherever_it_leads(
    notified: FileWatch, tmp_path: Path, place: Place
) -> None:
    link = tmp_path / "current"
    link.symlink_to(place.home)
    notified.keep("the store", str(link / "agent" / "store"), place.fds["the store"])
    assert notified.look() == []
    link.unlink()
    link.symlink_to(place.home)  # another link, to the same place
    assert notified.is_due(0)
    assert notified.look() == []
    link.unlink()
    link.symlink_to(tmp_path)
    assert notified.is_due(0)
    assert notified.look() == ["the store"]


def test_a_directory_that_is_implied_is_named_with_what_is_missed(
    watch: FileWatch, place: Place
) -> None:
    folder = place.fds["the folder"]
    watch.keep("the folder", "log", folder, at=place.fds["the store"], is_implied=True)
    watch.keep("the text", str(place.path / "log" / "0"), place.fds["the text"])
    assert watch.look() == []
    (place.path / "log").rename(place.path / "l")
    assert watch.is_due(0)
    assert watch.look() == ["the folder", "the text"]


def test_a_visit_of_a_few_commits_asks_the_kernel_nothing(place: Place) -> None:
    watch = FileWatch(notify_after=2)
    place.keep_all(watch)
    for is_notified in (False, False, True):
        assert watch.look() == []
        assert watch.is_notified is is_notified
    watch.close()
    assert not watch.is_notified


def test_a_file_takes_the_place_of_another(notified: FileWatch, place: Place) -> None:
    place.keep_all(notified)
    notified.look()
    fd = os.open(place.path / "log" / "1", os.O_RDWR | os.O_CREAT)
    place.fds["the next text"] = fd
    notified.keep("the text", "1", fd, at=place.fds["the folder"])
    assert notified.is_due(0)
    assert notified.look() == []
    (place.path / "log" / "0").unlink()
    assert not notified.is_due(0)
    (place.path / "log" / "1").unlink()
    assert notified.is_due(0)
    assert notified.look() == ["the text"]


def test_what_is_kept_already_is_not_asked_for_again(notified: FileWatch, place: Place) -> None:
    place.keep_all(notified)
    notified.look()
    place.keep_all(notified)
    assert not notified.is_due(0)


def test_two_names_of_one_file_are_watched_until_both_are_forgotten(
    notified: FileWatch, place: Place
) -> None:
    place.keep_all(notified)
    notified.keep("the same", "ring", place.fds["the ring"], at=place.fds["the store"])
    notified.look()
    notified.forget("the same")
    notified.forget("the same")
    (place.path / "ring").unlink()
    assert notified.is_due(0)
    assert notified.look() == ["the ring"]
    notified.forget("the ring")
    assert notified.look() == []


def test_without_descriptors_for_a_queue_each_question_is_a_look(
    notified: FileWatch, place: Place
) -> None:
    place.keep_all(notified)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        assert notified.look() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not notified.is_notified
    (place.path / "ring").unlink()
    assert notified.is_due(0)
    assert notified.look() == ["the ring"]


def test_a_system_without_inotify(
    notified: FileWatch, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = file_watch._Inotify(object())  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(file_watch, "_inotify", lambda: none)
    place.keep_all(notified)
    assert notified.look() == []
    assert notified.is_due(0)
    assert not notified.is_notified


@pytest.mark.parametrize("what", ["the ring", "the way"])
def test_what_the_kernel_will_not_watch_is_looked_at_each_time(
    notified: FileWatch, place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A directory on the way that may not be read; no watch left for this user."""
    refused = str(place.home) if what == "the way" else f"/proc/self/fd/{place.fds[what]}"

    class Refusing(file_watch._Inotify):  # pyright: ignore[reportPrivateUsage]
        def add(self, fd: int, path: str, events: int) -> int:
            return -1 if path == refused else super().add(fd, path, events)

    refusing = Refusing(ctypes.CDLL(None))
    monkeypatch.setattr(file_watch, "_inotify", lambda: refusing)
    place.keep_all(notified)
    assert notified.look() == []
    assert not notified.is_notified
    (place.path / "ring").unlink()
    assert notified.is_due(0)
    assert notified.look() == ["the ring"]


def test_what_cannot_be_looked_at_is_not_called_taken(
    watch: FileWatch, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    watch.keep("the ring", "r" * 300, place.fds["the ring"], at=place.fds["the store"])
    with caplog.at_level(logging.WARNING, "holdfast.backends"):
        assert watch.look() == []
    assert "the ring cannot be looked at" in caplog.text
    assert os.strerror(errno.ENAMETOOLONG) in caplog.text


def test_a_forked_child_leaves_the_watch_to_its_parent(notified: FileWatch, place: Place) -> None:
    place.keep_all(notified)
    notified.look()
    child = os.fork()
    if child == 0:
        notified.close()
        os._exit(0 if not notified.is_notified else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not notified.is_due(0)
    (place.path / "ring").unlink()
    assert notified.look() == ["the ring"]


# --- the look while nobody commits ----------------------------------------------------------------


class Store:
    def __init__(self, *, fails: bool = False) -> None:
        self.looked = Event()
        self.fails = fails

    def look_while_idle(self) -> None:
        self.looked.set()
        if self.fails:
            raise RuntimeError("a bug")


def test_idle_stores_are_looked_at_by_one_thread_that_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = IdleLooks(every_s=0.001)
    bad, good = Store(fails=True), Store()
    looks.begin(bad)
    thread = looks._thread  # pyright: ignore[reportPrivateUsage]
    assert thread is not None
    looks.begin(good)
    assert looks._thread is thread  # pyright: ignore[reportPrivateUsage]
    for store in (bad, good):
        assert store.looked.wait(60)
        store.looked.clear()
        assert store.looked.wait(60)
    looks.end(bad)
    looks.end(good)
    thread.join(60)
    assert not thread.is_alive()
    assert "a look at the files of a store failed" in caplog.text
    looks.begin(good)
    good.looked.clear()
    assert good.looked.wait(60)
    looks.end(good)


def test_a_process_that_may_have_no_more_threads_opens_stores_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    looks = IdleLooks(every_s=0.001)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        looks.begin(Store())
    assert "idle stores are not looked at: can't start holdfast-look" in caplog.text
    store = Store()
    looks.begin(store)  # by now it may
    assert store.looked.wait(60)
    looks.end(store)


def test_a_forked_child_looks_at_its_own_stores_only() -> None:
    store = Store()
    idle_looks.begin(store)
    child = os.fork()
    if child == 0:
        is_alone = not idle_looks._stores  # pyright: ignore[reportPrivateUsage]
        own = Store()
        idle_looks.begin(own)
        os._exit(0 if is_alone and own.looked.wait(60) else 1)
    assert os.waitpid(child, 0)[1] == 0
    idle_looks.end(store)


def test_whoever_opens_or_closes_a_file_makes_a_look_due(
    notified: FileWatch, tmp_path: Path
) -> None:
    """Only where it is asked for: a close may drop locks, and is no event for others."""
    for name in ("locked", "other"):
        (tmp_path / name).touch()
    fds = {name: os.open(tmp_path / name, os.O_RDONLY) for name in ("locked", "other")}
    notified.keep("the locked", str(tmp_path / "locked"), fds["locked"], uses=True)
    notified.keep("the other", str(tmp_path / "other"), fds["other"])
    assert notified.look() == []
    (tmp_path / "other").open("rb").close()
    assert not notified.is_due(0)
    reader = os.open(tmp_path / "locked", os.O_RDONLY)
    assert notified.is_due(0)
    assert notified.look() == []
    assert not notified.is_due(0)
    os.close(reader)
    assert notified.is_due(0)
    assert notified.look() == []
    for fd in fds.values():
        os.close(fd)
