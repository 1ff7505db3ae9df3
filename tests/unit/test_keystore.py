"""Key stores: made once, durable, destroyed for good, also by processes that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.core import keystore
from holdfast.core.key_place import to_keys
from holdfast.core.keystore import (
    CommandKeys,
    FolderKeys,
    SubjectKey,
    default_folder,
    encode_key,
    is_pseudonym,
)
from holdfast.errors import CorruptError, UnavailableError, UsageError


def test_a_key_is_made_once_and_found_by_name_and_id(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    assert keys.find("ada") is None
    assert keys.subjects() == []
    ada = keys.make("ada")
    assert len(ada.key) == 32
    assert ada.key.hex() not in repr((ada, keys))
    assert keys.make("ada") == ada == keys.find("ada") == keys.get(ada.id)
    assert FolderKeys(tmp_path / "keys").find("ada") == ada
    assert keys.has(ada.id)
    bob = keys.make("bob")
    assert {bob.name, ada.name} == {one.name for one in keys.subjects()}
    assert keys.get("../secret") is None
    keys.make("Lovelace")
    for path in (tmp_path / "keys").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
        assert "Love" not in path.name  # a digest could have "ada" in it
    assert not [path for path in (tmp_path / "keys").iterdir() if path.name.startswith("new.")]


def test_a_destroyed_key_is_noted_and_its_bytes_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = FolderKeys(tmp_path / "keys")
    ada, bob = keys.make("ada"), keys.make("bob")
    place = tmp_path / "keys" / "ids" / ada.id
    with open(place, "rb") as kept:  # the bytes themselves, whatever becomes of the names
        keys.destroy(ada.id)
        keys.destroy(ada.id)
        assert not kept.read().strip(b"\0")
    assert keys.is_erased(ada.id)
    assert not keys.has(ada.id)
    assert (keys.get(ada.id), keys.find("ada")) == (None, None)
    assert keys.find("bob") == bob
    assert keys.make("ada").id != ada.id
    assert keys.is_erased(ada.id)


@pytest.mark.parametrize("step", ["_overwrite", "_sync_folder", "unlink"])
def test_a_destruction_that_was_killed_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    keys = FolderKeys(tmp_path / "keys")
    ada = keys.make("ada")
    keys.make("bob")
    calls: list[int] = []

    class Killed(BaseException):
        pass

    def kill(*args: object, **kwargs: object) -> None:
        calls.append(1)
        # The first folder that is synced is that of the note.
        if step != "_sync_folder" or len(calls) > 1:
            raise Killed

    monkeypatch.setattr(Path if step == "unlink" else keystore, step, kill)
    with pytest.raises(Killed):
        keys.destroy(ada.id)
    monkeypatch.undo()
    assert keys.is_erased(ada.id)
    assert keys.get(ada.id) is None
    if step == "_overwrite":
        assert keys.find("ada") is None  # which finishes it
    keys.destroy(ada.id)
    assert not keys.has(ada.id)
    assert keys.find("ada") is None
    assert keys.make("ada").id != ada.id
    assert keys.find("bob") is not None


def test_a_name_whose_key_was_overwritten_is_free_again(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    ada = keys.make("ada")
    keystore._overwrite(tmp_path / "keys" / "ids" / ada.id, 200)
    assert keys.find("ada") is None
    assert keys.make("ada").id != ada.id


def test_a_making_that_was_killed_between_its_two_names_is_finished(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    ada = keys.make("ada")
    (tmp_path / "keys" / "ids" / ada.id).unlink()
    assert keys.get(ada.id) is None
    assert keys.find("ada") == ada
    assert keys.get(ada.id) == ada


def test_of_two_processes_that_make_a_key_at_once_both_get_the_same(tmp_path: Path) -> None:
    keys, other = FolderKeys(tmp_path / "keys"), FolderKeys(tmp_path / "keys")
    made: list[SubjectKey] = []
    looked = keys.find

    def find(name: str) -> SubjectKey | None:
        found = looked(name)
        if not made:
            made.append(other.make(name))
        return found

    keys.find = find  # type: ignore[method-assign]
    assert keys.make("ada") == made[0]
    code = (
        "import sys; from holdfast.keys import FolderKeys; "
        "print(FolderKeys(sys.argv[1]).make('eve').id)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "new")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({one.communicate()[0] for one in both}) == 1


def test_keys_that_are_out_of_reach_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="out of reach"):
        FolderKeys(tmp_path / "file").make("ada")


def test_pseudonyms_need_the_key_store(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    name = keys.pseudonym("ada@example.org")
    assert name == FolderKeys(tmp_path / "keys").pseudonym("ada@example.org")
    assert name != FolderKeys(tmp_path / "other").pseudonym("ada@example.org")
    assert name != keys.pseudonym("bob@example.org")
    assert is_pseudonym(name)
    assert is_pseudonym("7c9e6679-7425-40de-944b-e07fc1f90ae7")
    assert not is_pseudonym("ada@example.org")
    assert not is_pseudonym("adalovelaceadalovelaceadal")  # has letters that ids have not


def test_where_keys_are_is_said_by_the_caller_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "named"))
    assert repr(to_keys(None)) == f"<FolderKeys {tmp_path / 'named'}>"
    monkeypatch.setenv("HOLDFAST_KEYS", f"sqlite:{tmp_path / 'keys.db'}")
    assert repr(to_keys(None)) == f"<TableKeys sqlite:{tmp_path / 'keys.db'}>"
    monkeypatch.delenv("HOLDFAST_KEYS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "holdfast" / "keys"
    assert repr(to_keys(None)) == f"<FolderKeys {default_folder()}>"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_folder().parts[-4:] == (".local", "share", "holdfast", "keys")
    mine = FolderKeys(tmp_path)
    assert to_keys(mine) is mine
    for text in (str(tmp_path), f"file:{tmp_path}", f"files://{tmp_path}"):
        assert repr(to_keys(text)) == f"<FolderKeys {tmp_path}>"
    assert repr(to_keys(tmp_path)) == f"<FolderKeys {tmp_path}>"
    assert isinstance(to_keys("command:'my vault' keys"), CommandKeys)
    assert repr(to_keys("command:'my vault' keys")) == "<CommandKeys my vault>"
    with pytest.raises(UsageError, match="found 7"):
        to_keys(7)


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://:pw@h/0", "unix:///s", "memory:"])
def test_places_where_no_key_can_be_destroyed_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"which (is Redis|would forget)") as raised:
        to_keys(url)
    assert "pw" not in str(raised.value)


def test_a_place_that_is_none_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/keys", "mysql://h/db", "sqlite:", "keyring:", "command:"):
        with pytest.raises(UsageError):
            to_keys(url)
    assert list(tmp_path.iterdir()) == []


def test_keys_inside_the_store_are_refused(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", keys=tmp_path / "store" / "keys") as hf:
        hf.team("red").set("n", 1)
        with pytest.raises(UsageError, match="inside the store"):
            hf.subjects.pseudonym("ada")


def test_a_command_that_fails_or_talks_nonsense_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one word"):
        CommandKeys([])
    with pytest.raises(UnavailableError, match="out of reach"):
        CommandKeys([str(tmp_path / "missing")]).find("ada")
    with pytest.raises(UnavailableError, match="failed with 1"):
        CommandKeys(["false"]).destroy("x")
    for call in ("find", "subjects", "pseudonym"):
        with pytest.raises(UnavailableError, match="printed"):
            keys = CommandKeys(["echo"])
            getattr(keys, call)(*([] if call == "subjects" else ["ada"]))
    with pytest.raises(UnavailableError, match="no key"):
        CommandKeys(["true"]).make("ada")


def test_what_is_no_key_is_none() -> None:
    key = SubjectKey("i", "n", bytes(32))
    assert keystore.decode_key(encode_key(key)) == key
    assert keystore.decode_key(encode_key(SubjectKey("i", "n", b"short"))) is None
    assert keystore.decode_key(bytes(10)) is None
    assert keystore.decode_key(b'{"id":"i","name":"n","key":"?"}') is None
    assert os.sep not in keystore._file_name("a/b")


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"id":'])
def test_a_damaged_key_is_an_error_and_stays(tmp_path: Path, damage: bytes) -> None:
    """It is not an erased one: no new key is made in its place, and it can be brought back."""
    keys = FolderKeys(tmp_path / "keys")
    ada = keys.make("ada")
    [place] = (tmp_path / "keys/ids").iterdir()
    [named] = (tmp_path / "keys/names").iterdir()
    whole = place.read_bytes()
    place.write_bytes(damage)
    for call in (lambda: keys.find("ada"), lambda: keys.make("ada"), lambda: keys.get(ada.id)):
        with pytest.raises(CorruptError, match="is damaged: what it sealed"):
            call()
    assert (place.read_bytes(), named.read_bytes()) == (damage, damage)
    place.write_bytes(whole)
    assert keys.make("ada") == ada
    place.write_bytes(damage)
    keys.destroy(ada.id)
    assert keys.is_erased(ada.id)
    assert keys.find("ada") is None


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that were synced, in order."""
    found: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_the_way_to_the_keys_is_durable_before_a_key_is(tmp_path: Path, synced: list[str]) -> None:
    place = tmp_path / "a" / "b" / "keys"
    place.parent.mkdir(parents=True)  # as if by a process that was killed before it synced them
    FolderKeys(place).make("ada")
    names = [str(place / "names"), str(place / "ids")]
    way = [str(place.parent), str(place.parent.parent), str(tmp_path)]
    assert max(map(synced.index, way)) < min(map(synced.index, names))


def test_an_erasure_that_is_repeated_makes_its_notes_durable(
    tmp_path: Path, synced: list[str]
) -> None:
    """Whoever made them may have been killed before it synced their folders."""
    keys = FolderKeys(tmp_path / "keys")
    key = keys.make("ada")
    keys.note(b"entry")
    (keys.path / "erased" / key.id).touch()
    synced.clear()
    keys.note(b"entry")
    assert synced == [str(keys.path / "ledger")]
    keys.destroy(key.id)
    assert str(keys.path / "erased") in synced
    assert keys.noted() == [b"entry"]
    assert keys.find("ada") is None


def test_an_erasure_that_is_finished_leaves_a_damaged_file_alone(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    keys.make("ada")
    [other] = (keys.path / "names").iterdir()
    other.write_bytes(b"")  # a key that was lost: whoever asks for it is told
    key = keys.make("eve")
    by_id = keys.path / "ids" / key.id
    by_id.write_bytes(bytes(by_id.stat().st_size))  # an erasure that was killed here
    keys.destroy(key.id)
    assert other.exists()
    with pytest.raises(CorruptError):
        keys.find("ada")
