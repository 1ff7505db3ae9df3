"""A damaged backup says so, whatever byte it is: nothing is lost in silence (BOOT-53, 0044)."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

import holdfast
from holdfast import Settings
from holdfast import backup as backups
from holdfast.backup import backup, drill, points, restore
from holdfast.errors import CorruptError, HoldfastError
from holdfast.testing import FakeClock
from tests.care.test_backup import look
from tests.fixtures.make import FORMATS


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A backup with three points, and its store, which has gone on."""
    with holdfast.open(tmp_path / "store") as hf:
        for n in range(3):
            for name in range(4):
                hf.team(f"t{n}{name}").set("n", n)
            backup(hf, tmp_path / "backup", label=f"l{n}")
        hf.team("late").set("n", 1)
    return tmp_path / "backup"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A backup of format 1, as it was written by an earlier Holdfast, beside its store."""
    packed = (FORMATS.parent / "backup-1.tar.zst").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(zstandard.decompress(packed))) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    return tmp_path / "backup"


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw[: raw.rindex(old)] + new + raw[raw.rindex(old) + len(old) :])


# --- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [points, drill, "backup", "restore"])
def test_a_changed_digit_of_the_last_line_is_told(work: Any, made: Path, tmp_path: Path) -> None:
    """It is the line that no other line covers: the next backup would leave out commits by it."""
    replace_in(made / "points.jsonl", b'"sources":[12]', b'"sources":[13]')
    with (
        holdfast.open(tmp_path / "store") as hf,
        holdfast.open("memory:") as target,
        pytest.raises(CorruptError, match=r"line 3 of .* it was changed since it was written"),
    ):
        if work == "backup":
            backup(hf, made)
        elif work == "restore":
            restore(made, target, at="p1")
        else:
            work(made)


@pytest.mark.parametrize("name", ["points.jsonl", "backup.json"])
def test_every_byte_of_a_list_is_covered(name: str, made: Path) -> None:
    sound, wanted = (made / name).read_bytes(), points(made)
    about = backups._read_about(made)
    for at, byte in enumerate(sound):
        for mask in (0xFF, 1 << at % 8, 0x20):
            changed = sound[:at] + bytes([byte ^ mask]) + sound[at + 1 :]
            (made / name).write_bytes(changed)
            try:
                assert points(made) == wanted, (at, mask)
                assert backups._read_about(made) == about, (at, mask)
            except HoldfastError:
                continue
    for end in range(len(sound)):
        (made / name).write_bytes(sound[:end])
        try:
            assert points(made) == wanted, end
        except CorruptError:
            continue


def test_lines_that_are_gone_are_missed(made: Path, tmp_path: Path) -> None:
    """Whole lines, or all of them: what is left fits together, and backup.json has the number."""
    lines = (made / "points.jsonl").read_bytes().splitlines(keepends=True)
    for left in (2, 0):
        (made / "points.jsonl").write_bytes(b"".join(lines[:left]))
        with pytest.raises(CorruptError, match=rf"has {left} lines, backup\.json tells of 3"):
            points(made)
    (made / "points.jsonl").unlink()
    with (
        holdfast.open(tmp_path / "store") as hf,
        pytest.raises(CorruptError, match=r"has 0 lines, backup\.json tells of 3"),
    ):
        backup(hf, made)
    assert not (made / "points.jsonl").exists()


def test_a_whole_line_without_its_end_is_kept(made: Path, tmp_path: Path) -> None:
    raw = (made / "points.jsonl").read_bytes()
    (made / "points.jsonl").write_bytes(raw[:-1])
    assert len(points(made)) == 3
    with holdfast.open(tmp_path / "store") as hf:
        backup(hf, made)
    assert (made / "points.jsonl").read_bytes().startswith(raw)
    assert [point.name for point in points(made)] == ["p1", "p2", "p3", "p4"]


# --- format 1 ------------------------------------------------------------------------------------


def test_a_backup_of_format_1_reads_and_goes_on(old: Path, tmp_path: Path) -> None:
    found = points(old)
    assert [(one.name, one.label, one.is_proved) for one in found] == [
        *(("p1", "day-0", False), ("p2", "day-1", False), ("p3", "day-2", False)),
    ]
    before = (old / "points.jsonl").read_bytes()
    for point in found:
        assert drill(old, at=point.name).digest == point.digest
    with holdfast.open(tmp_path / "store") as hf:
        fourth = backup(hf, old)
        assert (fourth.new_events, fourth.is_proved) == (1, True)
        assert backup(hf, old).new_events == 0
        wanted = look(hf)
    assert (old / "points.jsonl").read_bytes().startswith(before)
    assert [one.is_proved for one in points(old)] == [False, False, False, True, True]
    with holdfast.open("memory:") as target:
        restore(old, target)
        assert look(target) == wanted
    for point in found:
        assert drill(old, at=point.name).digest == point.digest


def test_nothing_is_built_on_a_line_of_format_1(old: Path, tmp_path: Path) -> None:
    """A changed digit of its last line shows nowhere: so all of the source is looked at again."""
    replace_in(old / "points.jsonl", b'"sources":[21]', b'"sources":[22]')
    with holdfast.open(tmp_path / "store") as hf:
        assert backup(hf, old).new_events == 1
        wanted = look(hf)
    with holdfast.open("memory:") as target:
        restore(old, target)
        assert look(target) == wanted


def test_a_backup_of_format_1_keeps_what_was_let_go_of_since(old: Path, tmp_path: Path) -> None:
    """Also when all of the source is looked at again: older points have it until a prune."""
    with holdfast.open(tmp_path / "store") as hf:
        hf.team("t00").remove()
        assert hf.retention.run(grace_s=0).events == 1
        assert backup(hf, old).let_go == 1
    with holdfast.open("memory:") as target:
        restore(old, target, at="p3")
        assert target.team("t00")["n"] == 0


def test_the_last_line_of_format_1_without_its_end(old: Path, tmp_path: Path) -> None:
    """Half of one is what a killed writer left. A whole one is kept, and a changed end is told."""
    path, sound = old / "points.jsonl", (old / "points.jsonl").read_bytes()
    path.write_bytes(sound[:-1] + b"\x0b")
    with pytest.raises(CorruptError, match="line 3 of"):
        points(old)
    path.write_bytes(sound[:-1])
    assert len(points(old)) == 3
    path.write_bytes(sound[:-2])
    assert len(points(old)) == 2
    with holdfast.open(tmp_path / "store") as hf:
        assert backup(hf, old).name == "p3"
    assert [one.is_proved for one in points(old)] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("points.jsonl", (b'"label"', b'"lapel"')),
        ("points.jsonl", (b'"position"', b'"posi\xffion"')),
        ("points.jsonl", (b'"at_us":1', b'"at_us": ')),
        ("backup.json", (b'"stores"', b'"stares"')),
        ("backup.json", (b":1,", b":1 ")),
        ("backup.json", (b'"stores":[', b'"stores": [')),
    ],
)
def test_format_1_as_nobody_wrote_it(name: str, change: tuple[bytes, bytes], old: Path) -> None:
    replace_in(old / name, *change)
    with pytest.raises(CorruptError):
        points(old)


def test_a_line_of_today_is_none_of_format_1(made: Path) -> None:
    """Without its digest it would be believed: backup.json says from which line on all have one."""
    path = made / "points.jsonl"
    *lines, last = path.read_bytes().splitlines(keepends=True)
    bare = last.rpartition(b',"sha256"')[0] + b"}\n"
    path.write_bytes(b"".join([*lines, bare]))
    with pytest.raises(CorruptError, match=r"line 3 of .* has no digest of itself"):
        points(made)


# --- the backup's own store ----------------------------------------------------------------------


def gone(folder: Path) -> None:
    shutil.rmtree(folder / "store")


def another(folder: Path) -> None:
    gone(folder)
    with holdfast.open(folder / "store") as other:
        for n in range(30):
            other.team("other").set("n", n)


def older(folder: Path) -> None:
    """The store of the first point, whose id is the right one."""
    gone(folder)
    with holdfast.open(folder / "whole", create=False) as whole:
        identity = (folder / "whole" / "holdfast.json").read_bytes()
        records = whole._log.read("team/t00", after=0)
    assert records
    with holdfast.open(folder / "store") as small:
        small.team("t00").set("n", 0)
    (folder / "store" / "holdfast.json").write_bytes(identity)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (gone, "has points, but its store is gone"),
        (another, "is not the one that its points were made in"),
        (older, "is not what it was at p3: its digest is of fewer commits"),
    ],
)
def test_a_store_that_is_not_the_backups_own(
    harm: Any, told: str, made: Path, tmp_path: Path
) -> None:
    """It is told before anything is copied: nothing is in the folder then that was not before."""
    shutil.copytree(made / "store", made / "whole")
    harm(made)
    seen = files_of(made)
    with holdfast.open(tmp_path / "store") as hf:
        with pytest.raises(CorruptError, match=told):
            backup(hf, made)
        assert (made / "points.jsonl").read_bytes() == seen["points.jsonl"]
        assert not (made / "marks" / "p4.jsonl").exists()
    with pytest.raises(CorruptError):
        drill(made)
    with holdfast.open("memory:") as target, pytest.raises(CorruptError):
        restore(made, target, scope="team/t00")
    shutil.rmtree(made / "store", ignore_errors=True)
    (made / "whole").rename(made / "store")
    with holdfast.open(tmp_path / "store") as hf:
        assert backup(hf, made).new_events == 1


def files_of(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


# --- beside scopes that have ended ---------------------------------------------------------------


def test_a_copy_with_fewer_streams_is_not_taken_for_one_of_which_some_have_ended(
    made: Path, tmp_path: Path
) -> None:
    """It has the id and commits enough; only the digest of all heads tells that it is another."""
    shutil.copytree(made / "store", made / "whole")
    gone(made)
    with holdfast.open(made / "store") as small:
        for n in range(30):
            small.team("t00").set("n", n)
    identity = (made / "whole" / "holdfast.json").read_bytes()
    (made / "store" / "holdfast.json").write_bytes(identity)
    with (
        holdfast.open(tmp_path / "store") as hf,
        pytest.raises(CorruptError, match="is not what it was at p3: its digest is"),
    ):
        backup(hf, made)


def test_a_restore_beside_ended_scopes_misses_every_other_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended is not restored; of all the rest nothing may be missing."""
    clock = FakeClock()
    settings = Settings(clock=clock)
    with holdfast.open(tmp_path / "store", settings=settings) as hf:
        for n in range(3):
            hf.conversation(f"short{n}", ttl_s=60).set("n", n)
            hf.conversation(f"long{n}").set("n", n)
        hf.conversation("held", ttl_s=60).set("n", 1)
        hf.retention.hold("conversation/held")
        backup(hf, tmp_path / "backup")
        clock.advance(61)
        hf.conversation("long0").set("n", 2)
        backup(hf, tmp_path / "backup")
    for at in ("p1", "p2"):
        with holdfast.open("memory:", settings=settings) as target:
            assert restore(tmp_path / "backup", target, at=at).copied.ended > 0
            assert [one.id for one in target.scopes()] == ["held", "long0", "long1", "long2"]
        drill(tmp_path / "backup", at=at)
    sound = backups.Source.commits
    for left_out in ("conversation/long1", "conversation/held"):
        monkeypatch.setattr(
            backups.Source,
            "commits",
            lambda self, name=left_out: backups.only(sound(self), lambda one: one != name),
        )
        with (
            holdfast.open("memory:", settings=settings) as target,
            pytest.raises(CorruptError, match="the restored store is not what it was"),
        ):
            restore(tmp_path / "backup", target)


def test_a_restore_of_a_copy_that_is_not_the_points_writes_nothing(
    made: Path, tmp_path: Path
) -> None:
    """A whole list of points, of another backup, whose digests no line can tell to be wrong."""
    with holdfast.open(tmp_path / "other") as hf:
        for n in range(2):
            hf.team("x").set("n", n)
            backup(hf, tmp_path / "elsewhere")
    shutil.copy(tmp_path / "elsewhere" / "points.jsonl", made / "points.jsonl")
    about = backups._read_about(made)
    backups._write_about(made, backups.replace(about, points=2, sha256=""))
    with holdfast.open("memory:") as target:
        with pytest.raises(CorruptError, match=r"the store in .* is not what it was at p2"):
            restore(made, target)
        assert list(target._log.streams()) == []
