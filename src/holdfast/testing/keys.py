"""The contract of a key store as a test suite, which every key store must pass.

    class TestMine(KeyStoreContract):
        def make(self, place):
            return MyKeys(place)

Each call of `make` with the same place opens another handle on the same keys, in this process or in
another. The suite starts processes, which load the test class from its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.core.keystore import KEY_BYTES, KeepsLedger, KeyStore, SubjectKey, is_pseudonym
from holdfast.testing.child import MAKE_KEYS, NAMES, Child
from holdfast.testing.trial import HOSTILE_NAMES

PROCESSES = 2
"""How many processes make the same keys at the same time."""


class KeyStoreContract(ABC):
    """What `holdfast.keys.KeyStore` promises, wherever the keys are kept."""

    @abstractmethod
    def make(self, place: Path) -> KeyStore:
        """Returns a handle on the key store in `place`, an empty directory of the test."""

    def stored(self, place: Path) -> Sequence[bytes]:
        """Returns all stored bytes, which are searched for destroyed keys.

        By default these are the files below `place`; the test of a server overrides this.
        """
        return [one.read_bytes() for one in sorted(place.rglob("*")) if one.is_file()]

    def opened(self, place: Path) -> KeyStore:
        """Returns another handle, which is closed after the test if it has a `close`."""
        keys = self.make(place)
        self._handles.append(keys)
        return keys

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        self._handles: list[KeyStore] = []
        yield
        for one in self._handles:
            getattr(one, "close", lambda: None)()

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """An empty directory."""
        return tmp_path

    @pytest.fixture
    def keys(self, place: Path) -> KeyStore:
        """A new key store."""
        return self.opened(place)

    # --- made and found ----------------------------------------------------------------------

    def test_an_empty_key_store_has_nothing(self, keys: KeyStore) -> None:
        """The first question gets an answer, not an error."""
        assert isinstance(keys, KeyStore)
        assert (keys.find("ada"), keys.get("nobody"), keys.subjects()) == (None, None, [])
        assert (keys.has("nobody"), keys.is_erased("nobody")) == (False, False)

    def test_a_key_is_made_once_and_found_by_name_and_id(self, keys: KeyStore, place: Path) -> None:
        """Every handle has the same key for a name, and another one for another name."""
        ada = keys.make("ada")
        assert (ada.name, len(ada.key)) == ("ada", KEY_BYTES)
        other = self.opened(place)
        for one in (keys, other):
            assert one.make("ada") == ada == one.find("ada") == one.get(ada.id)
            assert one.has(ada.id)
            assert not one.is_erased(ada.id)
        bob = other.make("bob")
        assert len({ada.id, bob.id}) == len({ada.key, bob.key}) == 2
        assert keys.subjects() == sorted([ada, bob], key=lambda one: one.id)

    def test_a_name_is_data(self, keys: KeyStore) -> None:
        """No name becomes a path, a pattern or a statement; each name has a different key."""
        names = HOSTILE_NAMES[::3]
        made = {name: keys.make(name) for name in names}
        assert {one.name for one in keys.subjects()} == set(names)
        assert len({one.key for one in made.values()}) == len(names)
        for name, key in made.items():
            assert keys.find(name) == key
        for id in ("", ".", "../secret", "%", "'; DROP TABLE keys; --", "secret", "newest"):
            assert keys.get(id) is None
            assert not keys.has(id)
            assert not keys.is_erased(id)

    def test_a_key_is_not_shown(self, keys: KeyStore) -> None:
        """The `repr` of a key or of its store does not show the key."""
        ada = keys.make("ada")
        shown = repr((ada, keys))
        assert ada.key.hex() not in shown
        assert repr(ada.key) not in shown

    def test_of_processes_that_make_a_key_at_once_all_get_the_same(self, place: Path) -> None:
        """Also in an empty key store: whatever it needs to begin with is made only once, too."""
        keys = self.opened(place)
        with ExitStack() as stack:
            children = [
                stack.enter_context(Child(self, place, MAKE_KEYS)) for _ in range(PROCESSES)
            ]
            assert [child.hear() for child in children] == ["ready"] * PROCESSES
            for child in children:
                child.tell("go")
            said = [child.hear() for child in children]
        found = {one.name: [one.id, one.key.hex()] for one in keys.subjects()}
        assert said == [[found[name] for name in NAMES]] * PROCESSES
        assert len(found) == len(NAMES)

    # --- erased ------------------------------------------------------------------------------

    def test_a_destroyed_key_is_gone_and_its_id_is_kept(self, keys: KeyStore, place: Path) -> None:
        """It is gone for every handle at once. Other keys stay, and the name can be used again."""
        ada, bob = keys.make("ada"), keys.make("bob")
        other = self.opened(place)
        assert other.has(ada.id)
        keys.destroy(ada.id)
        keys.destroy(ada.id)
        for one in (keys, other, self.opened(place)):
            assert (one.find("ada"), one.get(ada.id), one.has(ada.id)) == (None, None, False)
            assert one.is_erased(ada.id)
            assert not one.is_erased(bob.id)
            assert one.subjects() == [bob]
        again = other.make("ada")
        assert again.id != ada.id
        assert again.key != ada.key
        assert keys.is_erased(ada.id)
        assert keys.find("ada") == again

    def test_an_id_without_a_key_can_be_erased(self, keys: KeyStore, place: Path) -> None:
        """A restored store may refer to a subject whose key is not in this key store.

        That a name was erased is noted in the same way, as a pseudonym.
        """
        keys.make("bob")
        for id in ("01arz3ndektsv4rrffq69g5fav", keys.pseudonym("erased ada")):
            assert not keys.is_erased(id)
            keys.destroy(id)
            keys.destroy(id)
            assert self.opened(place).is_erased(id)
        assert [one.name for one in keys.subjects()] == ["bob"]

    def test_nothing_of_a_destroyed_key_is_in_the_stored_bytes(
        self, keys: KeyStore, place: Path
    ) -> None:
        """Nor anything of its name. The other keys are still there."""
        made = [keys.make(f"subject-{number}-of-many") for number in range(5)]
        assert any(form in data for form in forms(made[2]) for data in self.stored(place))
        keys.destroy(made[2].id)
        data = self.stored(place)
        for form in (*forms(made[2]), made[2].name.encode()):
            assert not any(form in one for one in data), "it is still there"
        assert any(form in one for form in forms(made[3]) for one in data)

    def test_the_ledger_of_what_was_erased_is_kept(self, keys: KeyStore, place: Path) -> None:
        """Entries stay in the order of noting, each only once. A key store may have no ledger."""
        ledger, other = keys, self.opened(place)
        if not isinstance(ledger, KeepsLedger) or not isinstance(other, KeepsLedger):
            return  # the receipt of an erasure says that older backups are not covered
        entries = [b'{"of":"%d \\u00e9","records":[1,2]}' % number for number in range(3)]
        assert ledger.noted() == []
        for entry in (*entries, entries[0]):
            ledger.note(entry)
        assert other.noted() == ledger.noted() == entries
        keys.make("ada")
        assert [one.name for one in other.subjects()] == ["ada"]

    # --- pseudonyms --------------------------------------------------------------------------

    def test_pseudonyms_are_of_this_key_store(self, keys: KeyStore, place: Path) -> None:
        """The same text gives the same pseudonym, before and after keys are made."""
        name = keys.pseudonym("ada@example.org")
        assert is_pseudonym(name)
        keys.make("ada")
        assert self.opened(place).pseudonym("ada@example.org") == name
        assert keys.pseudonym("bob@example.org") != name


def forms(key: SubjectKey) -> tuple[bytes, ...]:
    """Returns parts of a key as bytes, base64 and hex digits, by which it can be found."""
    return key.key[:12], b64encode(key.key)[:16], key.key.hex().encode()[:24]
