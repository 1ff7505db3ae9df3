"""Planted faults: what judges sealing and erasing must notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store
from holdfast.backup import backup, restore
from holdfast.core import codec, cutting
from holdfast.core.erased_ledger import Ledger
from holdfast.core.log import Log
from holdfast.core.sealing import Seal
from holdfast.core.snapshot import Snapshots
from holdfast.erasure import Erasure
from holdfast.errors import HeldError
from holdfast.keys import FolderKeys, SubjectKey

WORD = "CANARY-77c0"


def snapshots_go(place: Path) -> None:
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        scope = hf.team("red", subject="ada")
        scope.set("n", WORD)
        snapshots = hf._log.snapshots
        snapshots._write("team/red", hf._log.newest("team/red"), snapshots._begin("x"))
        assert hf._log.snapshots.revisions("team/red")
        hf.subjects.erase("ada")
        assert not hf._log.snapshots.revisions("team/red"), "a snapshot is left"


def holds_hold(place: Path) -> None:
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red", subject="ada").set("n", WORD)
        hf.subjects.hold("ada", "case 7")
        try:
            hf.subjects.erase("ada")
        except HeldError:
            return
        raise AssertionError("a held subject was erased")


def bytes_move(place: Path) -> None:
    """The same value, written to two places, is one blob; and a fork's past opens."""
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        for name in ("red", "blue"):
            hf.team(name, subject="ada").set("large", WORD * 9000)
        assert len(hf._log.blobs.names()) == 1, "equal values have other bytes"


def backups_have_no_key(place: Path) -> None:
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red", subject="ada").set("n", WORD)
        backup(hf, place / "backup")
    secrets = [one.key for one in FolderKeys(place / "keys").subjects()]
    for path in (place / "backup").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert not any(key in data or key.hex().encode() in data for key in secrets), "a key"
        assert WORD.encode() not in data


def copies_stay_closed(place: Path) -> None:
    """The index for questions has nothing of a value that is a subject's in a scope of others."""
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red").set("n", WORD, subject="ada")
        assert not list(hf.query(text=WORD)), "a question finds it"


def late_writes_are_refused(place: Path) -> None:
    with holdfast.open(
        place / "store", keys=place / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red").set("n", WORD, subject="ada")
        hf._kernel.part(Erasure)._begin(hf.subjects.get("ada").id, "told")
        try:
            hf.team("red").set("n", "late", subject="ada")
        except holdfast.ErasedError:
            return
        raise AssertionError("a write for a subject that is being erased was accepted")


def snapshots_of_a_text_go(place: Path) -> None:
    with holdfast.open(place / "store", keys=place / "keys") as hf:
        hf.team("red").set("n", WORD)
        snapshots = hf._log.snapshots
        snapshots._write("team/red", hf._log.newest("team/red"), snapshots._begin("x"))
        hf.subjects.erase(match=WORD)
        assert not hf._log.snapshots.revisions("team/red"), "a snapshot is left"


def older_backups_stay_without(place: Path) -> None:
    with holdfast.open(place / "store", keys=place / "keys") as hf:
        hf.team("red").set("n", WORD)
        backup(hf, place / "backup")
        hf.subjects.erase(match=WORD)
    with holdfast.open(place / "target", keys=place / "keys") as target:
        restore(place / "backup", target)
        assert target.team("red").get("n") != WORD, "a restore brings it back"


def late_texts_go(place: Path) -> None:
    real = cutting.cut
    with holdfast.open(place / "store", keys=place / "keys") as hf:
        hf.team("red").set("n", WORD)

        def beside(*given: Any, **named: Any) -> Any:
            cutting.cut = real
            hf.team("blue").set("late", WORD)
            return real(*given, **named)

        cutting.cut = beside
        try:
            hf.subjects.erase(match=WORD)
        finally:
            cutting.cut = real
        assert hf.team("blue").get("late") != WORD, "what was written meanwhile is left"


def always_open() -> bool:
    """Opens sealed values for layers that keep what they read."""
    return False


def name_nothing(
    self: Log, proposed: Any, stream: str, subject: str, reads: Any, is_removal: bool
) -> Any:
    """Leaves out the stream that says that a subject is being erased."""
    return reads


def forget_nothing(self: Snapshots, stream: str, until: int) -> None:
    """Leaves snapshots where they are."""


def apply_nothing(self: Ledger, record: Any) -> None:
    """Overlooks what the keys know to be erased."""


def look_once(*given: Any, **named: Any) -> Any:
    """Finds nothing in a second look."""
    found = LOOK(*given, **named)
    return replace(found, found={}) if "after" in named else found


def never_held(self: Erasure, id: str) -> None:
    """Overlooks every hold."""


def seal_by_place(self: Seal, data: bytes, places: list[int] = []) -> bytes:  # noqa: B006
    """Binds the bytes to where they are written first."""
    places.append(1)
    return self._cipher.encrypt(bytes(12), data, b"place %d" % len(places))


def event_with_key(self: Seal, *args: Any) -> Any:
    stored, _, checkpoint, meta = RECORD(self, *args)
    [secret] = [one.key for one in EVERY_KEY if one.id == self.subject]
    return stored, secret.hex(), checkpoint, meta


RECORD = Seal.record
LOOK = cutting.look
EVERY_KEY: list[SubjectKey] = []
PLANTS: list[tuple[Any, str, Any, Callable[[Path], None]]] = [
    (Snapshots, "forget", forget_nothing, snapshots_go),
    (Snapshots, "forget", forget_nothing, snapshots_of_a_text_go),
    (Ledger, "applied", apply_nothing, older_backups_stay_without),
    (cutting, "look", look_once, late_texts_go),
    (Erasure, "_held", never_held, holds_hold),
    (Seal, "seal", seal_by_place, bytes_move),
    (Seal, "record", event_with_key, backups_have_no_key),
    (codec, "is_kept_closed", always_open, copies_stay_closed),
    (Log, "_guarded_subject", name_nothing, late_writes_are_refused),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant[2].__name__)
def test_a_planted_fault_is_noticed(
    plant: tuple[Any, str, Any, Callable[[Path], None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, name, broken, judge = plant
    judge(tmp_path / "sound")
    began = Seal.__init__

    def begin(self: Seal, key: SubjectKey) -> None:
        EVERY_KEY.append(key)
        began(self, key)

    monkeypatch.setattr(Seal, "__init__", begin)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        judge(tmp_path / "broken")


def test_the_judges_are_of_a_store(tmp_path: Path) -> None:
    """A subject is known by a random id, never by its name."""
    with holdfast.open(
        tmp_path / "store", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        assert isinstance(hf, Store)
        hf.team("red", subject=WORD).set("n", 1)
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or WORD.encode() not in path.read_bytes()
