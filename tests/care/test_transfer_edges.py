"""Copies, backups and imports of scopes that end, are held, or are damaged: nothing is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.archive import archive
from holdfast.backup import backup, restore
from holdfast.copy import copy, salvage
from holdfast.core.kernel import kernel_of
from holdfast.errors import ConflictError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.testing import FakeClock
from holdfast.transfer import sink
from tests.record.stores import ALL, new_url
from tests.unit.test_holds import Keeping

LARGE = "x" * 100_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened(clock: FakeClock, place: object = "memory:", **more: Any) -> Store:
    return holdfast.open(place, settings=Settings(clock=clock), **more)


def export(hf: Store, path: Path, *scopes: str) -> Path:
    with path.open("wb") as file:
        export_scopes(hf, list(scopes), file)
    return path


def lose_blobs(place: Path) -> None:
    for path in (place / "objects" / "blob").rglob("*"):
        if path.is_file():
            path.unlink()


def test_a_salvage_takes_a_scope_whose_end_slides_whole(clock: FakeClock) -> None:
    """Half of it seems to be over until the rest is read."""
    hf, target = opened(clock), opened(clock)
    scope = hf.conversation("s", ttl_s=1000, slides=True)
    scope.update({"n": 1, "m": 1})
    other = hf.conversation("x")
    other.set("n", 1)
    clock.advance(600)
    other.fork("y")  # what was followed so far is written before a fork
    scope.set("k", 2)
    clock.advance(600)
    assert salvage(hf, target).ok
    assert target.conversation("s").state.to_dict() == {"n": 1, "m": 1, "k": 2}
    assert target.check().ok


def test_a_copy_never_begins_a_scope_in_its_middle(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "COMMITS_PER_BATCH", 2)
    hf, target = opened(clock), opened(clock)
    scope = hf.conversation("s", ttl_s=100)
    for n in range(4):
        scope.set("n", n)
    clock.advance(200)

    def hold(done: int, total: int) -> None:
        hf.retention.hold("conversation/s")

    with pytest.raises(ConflictError):
        copy(hf, target, progress=hold)
    assert target.check().ok
    copy(hf, target)
    assert target.conversation("s").get("n") == 3


def test_a_backup_goes_on_with_a_fork_whose_origin_is_damaged_since(
    tmp_path: Path, clock: FakeClock
) -> None:
    hf = opened(clock, tmp_path / "s")
    origin, other = hf.conversation("a"), hf.conversation("z")
    origin.set("large", LARGE)
    fork = origin.fork("f")
    fork.set("own", 1)
    backup(hf, tmp_path / "b")
    fork.set("own", 2)
    other.set("large", LARGE + "z")
    lose_blobs(tmp_path / "s")
    assert "conversation/f" not in backup(hf, tmp_path / "b").damaged
    target = opened(clock)
    restore(tmp_path / "b", target)
    assert target.conversation("f").get("own") == 2
    assert target.conversation("a").get("large") == LARGE


@pytest.mark.parametrize("how", ["copy", "restore", "import"])
def test_a_scope_that_a_hold_keeps_past_its_end_comes_along(
    tmp_path: Path, clock: FakeClock, how: str
) -> None:
    hf, target = opened(clock), opened(clock)
    scope = hf.conversation("a", ttl_s=60)
    scope.set("n", 0)
    backup(hf, tmp_path / "b")
    scope.set("n", 1)
    hf.retention.hold(scope, "a request")
    clock.advance(100)
    if how == "copy":
        copy(hf, target)
    elif how == "restore":
        backup(hf, tmp_path / "b")
        restore(tmp_path / "b", target)
    else:
        import_scopes(target, export(hf, tmp_path / "export"))
    assert target.conversation("a").get("n") == 1
    assert [one.scope for one in target.retention.holds()] == ["conversation/a"]


def test_a_restore_of_one_scope_does_not_stand_for_that_of_another(
    tmp_path: Path, clock: FakeClock
) -> None:
    hf, target = opened(clock), opened(clock)
    for id in "abc":
        hf.conversation(id).set("n", id)
    hf.conversation("a").remove()
    clock.advance(30 * 86400)
    hf.retention.run(grace_s=0)
    backup(hf, tmp_path / "b")
    for id in "ab":
        restore(tmp_path / "b", target, scope=f"conversation/{id}")
    assert target.conversation("b").get("n") == "b"
    with pytest.raises(ConflictError, match="take an empty store"):
        restore(tmp_path / "b", target)  # the target tells of what was let go of in its own way
    whole = opened(clock)
    restore(tmp_path / "b", whole)
    assert whole.conversation("c").get("n") == "c"


def test_a_commit_of_which_one_scope_ends_meanwhile_is_taken_without_it(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, target = opened(clock), opened(clock)
    for id, ttl_s in (("ends", 60), ("lasts", 6000)):
        hf.conversation(id, ttl_s=ttl_s).set("n", 1)
    with hf.commit() as tx:
        for id in ("ends", "lasts"):
            tx.scope(hf.conversation(id)).set("n", 2)
    path, send = export(hf, tmp_path / "export"), sink._send

    def late(part: Any, wanted: Any) -> Any:
        if part is kernel_of(target).log.parts()[0]:
            clock.advance(61)
        return send(part, wanted)

    monkeypatch.setattr(sink, "_send", late)
    import_scopes(target, path)
    assert target.conversation("lasts").get("n") == 2
    assert target.conversation("ends").revision == 0


class Server(Keeping):
    """A backend that deletes scopes and large values at their ends, unless it is told not to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.put: list[int] = []
        own = self.objects.put

        def put(kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
            self.put.append(expires_us)
            own(kind, name, data)

        self.objects.put = put  # type: ignore[method-assign]


def test_a_lasting_scope_keeps_a_value_that_one_with_an_end_has_too(clock: FakeClock) -> None:
    backend = Server(clock)
    hf, target = opened(clock), opened(clock, backend)
    hf.conversation("ends", ttl_s=60).set("large", LARGE)
    hf.conversation("lasts").set("large", LARGE)
    copy(hf, target)
    assert backend.put[0] > 0
    assert backend.put[-1] == 0


def test_a_server_is_told_of_the_holds_that_an_import_brings(
    tmp_path: Path, clock: FakeClock
) -> None:
    backend = Server(clock)
    hf, target = opened(clock), opened(clock, backend)
    hf.conversation("a", ttl_s=60).set("n", 1)
    target.conversation("own", ttl_s=60).set("n", 1)
    target.retention.hold("conversation/own")
    hf.retention.hold("conversation/a")
    import_scopes(target, export(hf, tmp_path / "export", "conversation/a"))
    assert backend.kept() == ["conversation/a", "conversation/own"]


def test_a_copy_that_is_killed_leaves_what_is_held_with_its_server(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks come last: the server must not let go of the scope before they do."""
    backend = Server(clock)
    hf, target = opened(clock), opened(clock, backend)
    hf.conversation("a", ttl_s=60).set("large", LARGE)
    hf.retention.hold("conversation/a")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sink.Sink, "set_marks", killed)
        with pytest.raises(KeyboardInterrupt):
            copy(hf, target)
    assert backend.kept() == ["conversation/a"]
    assert backend.put[-1] == 0, "its large value stays too"
    clock.advance(100)
    copy(hf, target)
    assert target.conversation("a").get("large") == LARGE


def test_a_copy_does_not_leave_out_in_silence_what_is_held_since(
    clock: FakeClock,
) -> None:
    """A beginning of it is in the target with an end that has come: nothing can follow there."""
    hf, target = opened(clock), opened(clock, Server(clock))
    scope = hf.conversation("a", ttl_s=60)
    scope.set("n", 1)
    copy(hf, target)
    scope.set("n", 2)
    hf.retention.hold(scope)
    clock.advance(100)
    with pytest.raises(ConflictError, match="conversation/a"):
        copy(hf, target)
    again = opened(clock)
    copy(hf, again)
    assert again.conversation("a").get("n") == 2


def test_an_archive_says_what_was_let_go_of(clock: FakeClock) -> None:
    hf, target = opened(clock), opened(clock)
    scope = hf.conversation("a")
    scope.set("large", LARGE)
    scope.remove()
    clock.advance(1)
    hf.retention.run(grace_s=0)
    hf.conversation("a").set("n", 1)
    clock.advance(5)
    archive(hf, target, "conversation/a", older_than=1e-6)
    assert target.check().ok
    assert target.conversation("a").get("n") == 1


def marks_of(hf: Store) -> list[Any]:
    marks = hf._log.marks.list(limit=1 << 40)
    return sorted(marks, key=lambda mark: (mark.index, mark.key))


@pytest.mark.parametrize("kind", ALL)
def test_a_newer_import_brings_the_marks_up_to_date(kind: str, tmp_path: Path) -> None:
    """What was done in the source since is done in the target too, if that has not gone on."""
    with holdfast.open("memory:") as hf, holdfast.open(new_url(kind, tmp_path)) as target:
        opened = list[Any]()
        for name in ("a", "b"):
            chat = hf.conversation(name, ttl_s=9999, slides=True)
            chat.tasks.add("one")
            chat.tasks.add("two")
            opened.append(chat.decide("open", key="d"))
        import_scopes(target, export(hf, tmp_path / "1"))
        assert marks_of(target) == marks_of(hf)
        target.conversation("b").tasks.add("its own")
        target.retention.hold("conversation/a")
        own = [one for one in marks_of(target) if "/b" in f"{one.group}{one.key}"]
        for name in ("a", "b"):
            chat = hf.conversation(name)
            chat.tasks.claim("t1")
            chat.tasks.close("t1", "done")
            chat.tasks.add("three", priority=3)
            opened.pop(0).outcome("done")
            chat.life.touch()
        import_scopes(target, export(hf, tmp_path / "2", "conversation/a"))
        wanted = [one for one in marks_of(hf) if "/b" not in f"{one.group}{one.key}"]
        found = [one for one in marks_of(target) if one not in own]
        assert [one for one in found if one.index != "retention.hold"] == wanted
        assert [one.key for one in found if one.index == "retention.hold"] == ["conversation/a"]
        assert [one for one in marks_of(target) if one in own] == own
        assert {one.id for one in target.tasks.list() if one.scope.endswith("a")} == {
            one.id for one in hf.tasks.list() if one.scope.endswith("a")
        }
