"""Keys in a keyring: a real one that is a file, none at all, and one that keeps nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring
from keyring.backends.null import Keyring as Null
from keyrings.alt.file import PlaintextKeyring

import holdfast
from holdfast.core.key_place import to_keys
from holdfast.core.key_ring import KeyringKeys
from holdfast.core.store_key import StoreKey, to_store_key
from holdfast.errors import CorruptError, StoreKeyError, UnavailableError, UsageError
from tests.crash.children import Child


@pytest.fixture(autouse=True)
def in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    before = keyring.get_keyring()
    keyring.set_keyring(PlaintextKeyring())
    yield
    keyring.set_keyring(before)


def test_a_subject_is_sealed_and_erased_by_a_key_in_a_keyring(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store", keys="keyring:agents") as hf:
        name = hf.subjects.pseudonym("ada")
        chat = hf.conversation(name, subject="ada")
        chat.set("name", "Ada")
    with holdfast.open(tmp_path / "store", keys="keyring:agents") as hf:
        assert hf.conversation(name).get("name") == "Ada"
        hf.subjects.erase("ada")
        assert hf.conversation(name).state.to_dict() == {}
    assert repr(to_keys("keyring:agents")) == "<KeyringKeys agents>"
    assert to_keys("keyring:others").find("ada") is None


def test_the_store_key_is_in_a_real_keyring(tmp_path: Path) -> None:
    key = bytes(range(32))
    keyring.set_password("agents", "state", key.hex())
    assert to_store_key("keyring:agents/state").id == StoreKey(key).id
    with holdfast.open(tmp_path / "store", store_key="keyring:agents/state") as hf:
        hf.team("red").set("n", 1)
    keyring.delete_password("agents", "state")
    with pytest.raises(StoreKeyError, match='no key "state" of "agents"'):
        holdfast.open(tmp_path / "store", store_key="keyring:agents/state")


def test_a_machine_without_a_keyring_is_told(tmp_path: Path) -> None:
    """As it is where nobody has logged in at a desktop."""
    keyring.set_keyring(NoKeyring())
    with holdfast.open(tmp_path / "store", keys="keyring:agents") as hf:
        hf.team("red").set("n", 1)
        with pytest.raises(UnavailableError, match="in the keyring are out of reach: No") as raised:
            hf.subjects.pseudonym("ada")
        assert "folder" in str(raised.value.hint)
        assert hf.team("red").get("n") == 1
    with pytest.raises(StoreKeyError, match="the keyring cannot be asked"):
        holdfast.open(tmp_path / "other", store_key="keyring:agents/state")
    assert not (tmp_path / "other").exists()


def test_a_keyring_that_keeps_nothing_is_noticed(tmp_path: Path) -> None:
    keyring.set_keyring(Null())
    with pytest.raises(UnavailableError, match="does not keep what"):
        to_keys("keyring:agents").make("ada")


def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    """In a process where it cannot be imported."""
    code = (
        "import sys; sys.modules['keyring'] = None\n"
        "import holdfast\n"
        "hf = holdfast.open(sys.argv[1], keys='keyring:agents')\n"
        "hf.team('red').set('n', 1)\n"
        "try: hf.subjects.pseudonym('ada')\n"
        "except holdfast.UsageError as error: print(error)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "store")]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert 'pip install "holdfast[keyring]"' in said
    assert "is not installed" in said


def test_a_making_and_a_destruction_that_were_killed_are_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGKILL after each text that is written."""
    sound = KeyringKeys._set
    keys = to_keys("keyring:agents")
    keys.make("bob")

    def killed(fatal: int, act: str, word: str) -> None:
        def stopping(self: KeyringKeys, name: str, text: str) -> None:
            nonlocal fatal
            sound(self, name, text)
            fatal -= 1
            if not fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        with monkeypatch.context() as patched:
            patched.setattr(KeyringKeys, "_set", stopping)
            child = Child(lambda p, s: getattr(to_keys("keyring:agents"), act)(word))
            assert os.WTERMSIG(child.end()) == signal.SIGKILL

    for fatal in (1, 2):
        killed(fatal, "make", f"ada{fatal}")
        assert keys.find(f"ada{fatal}") is None
        assert [one.name for one in keys.subjects()] == ["bob"]
        keys.destroy(keys.make(f"ada{fatal}").id)
    killed(3, "make", "eve")
    eve = keys.find("eve")
    assert eve is not None
    killed(1, "destroy", eve.id)
    assert keys.is_erased(eve.id)
    assert (keys.find("eve"), keys.get(eve.id)) == (None, None)
    assert keys.make("eve").id != eve.id
    assert [one.name for one in sorted(keys.subjects(), key=lambda one: one.name)] == ["bob", "eve"]


def test_a_damaged_text_is_an_error_and_no_missing_key() -> None:
    keys = to_keys("keyring:agents")
    ada, bob = keys.make("ada"), keys.make("bob")
    for damage in ("{", '{"key":{}}'):
        keyring.set_password("agents", f"id/{ada.id}", damage)
        for call in (lambda: keys.find("ada"), lambda: keys.get(ada.id), keys.subjects):
            with pytest.raises(CorruptError, match="damaged"):
                call()
    keyring.delete_password("agents", f"id/{ada.id}")
    with pytest.raises(CorruptError, match="missing"):
        keys.subjects()
    assert keys.get(bob.id) == bob


def test_a_lock_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="take turns at the keyring"):
        to_keys("keyring:agents").find("ada")
    with pytest.raises(UsageError, match="keyring:SERVICE"):
        KeyringKeys("")
