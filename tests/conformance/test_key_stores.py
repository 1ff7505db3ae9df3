"""Every key store keeps the same contract: a folder, a command, a keyring, tables (0079)."""

from __future__ import annotations

import sys
from base64 import b64decode
from configparser import RawConfigParser
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.core.key_place import to_keys
from holdfast.core.keystore import FolderKeys, KeyStore
from holdfast.testing.keys import KeyStoreContract
from tests.servers import postgresql

VAULT = Path(__file__).with_name("vault.py")


class TestFolder(KeyStoreContract):
    def make(self, place: Path) -> KeyStore:
        return FolderKeys(place / "keys")


class TestCommand(KeyStoreContract):
    """What is proved is how a program is asked: this one is a stand-in for that of a vault."""

    def make(self, place: Path) -> KeyStore:
        return to_keys(f"command:{sys.executable} -I -S '{VAULT}' '{place / 'keys'}'")

    test_a_name_is_data = None  # a process for each of a hundred questions


class TestKeyring(KeyStoreContract):
    """A keyring that is a file, as a machine without a desktop has it."""

    @pytest.fixture(autouse=True)
    def keyring_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyrings.alt.file.PlaintextKeyring")

    def make(self, place: Path) -> KeyStore:
        import keyring
        from keyrings.alt.file import PlaintextKeyring

        keyring.set_keyring(PlaintextKeyring())
        return to_keys("keyring:agents")

    def stored(self, place: Path) -> list[bytes]:
        """The keyring encodes each text in lines of base64: they are decoded as well."""
        [file] = place.rglob("keyring_pass.cfg")
        parser = RawConfigParser()
        parser.read(file)
        texts = [text for section in parser.sections() for _, text in parser.items(section)]
        return [file.read_bytes(), *(b64decode(text) for text in texts)]


class TestSqlite(KeyStoreContract):
    def make(self, place: Path) -> KeyStore:
        return to_keys(f"sqlite:{place / 'keys.db'}")


@cache
def server() -> postgresql.Server:
    running = postgresql.server(postgresql.NEWEST)
    running.create_database("keys")
    return running


class TestPostgresql(KeyStoreContract):
    """A schema of its own for each test. What is in the write-ahead log is out of reach."""

    def make(self, place: Path) -> KeyStore:
        url = place / "url"  # another process asks the same server
        if not url.exists():
            schema = "k" + sha256(str(place).encode()).hexdigest()[:16]
            url.write_text(server().url("keys", schema=schema))
        return to_keys(url.read_text())

    def stored(self, place: Path) -> list[bytes]:
        server().psql("keys", "CHECKPOINT")
        folder = Path(server().directory)
        files = (one for one in folder.rglob("*") if "pg_wal" not in one.parts and one.is_file())
        return [one.read_bytes() for one in files]


if not postgresql.NEWEST:  # no driver is installed, as under the portable suites
    del TestPostgresql
