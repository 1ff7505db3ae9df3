"""Keys in tables of another database: never in the store's own, and gone when destroyed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends import key_rows
from holdfast.core.key_place import to_keys
from holdfast.core.key_tables import TableKeys
from holdfast.errors import CorruptError, KeyMissingError, UnavailableError, UsageError
from holdfast.testing.keys import forms
from tests.crash.children import Child
from tests.servers import postgresql


def spelt(store: Path) -> list[str]:
    """Returns ways to name the file of a store."""
    linked, hard = store.with_name("linked.db"), store.with_name("hard.db")
    linked.symlink_to(store)
    os.link(store, hard)
    inside = store.parent / "sub" / ".." / store.name
    return [f"sqlite:{store}", f"sqlite://{store}", f"sqlite:{linked}", f"sqlite:{hard}",
            f"sqlite:{inside}", f"sqlite:{os.path.relpath(store)}"]  # fmt: skip


def test_the_file_of_the_store_itself_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "state.db"
    with holdfast.open(f"sqlite:{store}") as hf:
        hf.team("red").set("n", 1)
    before = store.read_bytes()
    for keys in spelt(store):
        with (
            holdfast.open(f"sqlite:{store}", keys=keys) as hf,
            pytest.raises(UsageError, match="in the database of the store itself"),
        ):
            hf.subjects.pseudonym("ada")
    assert store.read_bytes() == before


def test_keys_inside_a_store_are_refused_however_it_is_put_together(tmp_path: Path) -> None:
    inside = tmp_path / "store" / "keys"
    places: list[Any] = [tmp_path / "store", {"team": "memory:", "*": str(tmp_path / "store")}]
    for place in places:
        for keys in (str(inside), f"sqlite:{inside}.db"):
            with (
                holdfast.open(place, keys=keys) as hf,
                pytest.raises(UsageError, match="inside the store"),
            ):
                hf.subjects.pseudonym("ada")
    assert not inside.exists()


def test_a_database_of_others_is_not_taken(tmp_path: Path) -> None:
    for path, make in (("theirs.db", "CREATE TABLE people (name)"), ("store.db", None)):
        if make is None:
            holdfast.open(f"sqlite:{tmp_path / path}").close()
        else:
            apsw.Connection(str(tmp_path / path)).execute(make)
        with pytest.raises(UsageError, match="database with other tables"):
            to_keys(f"sqlite:{tmp_path / path}").make("ada")


def test_a_subject_is_sealed_and_erased_by_a_key_in_a_table(tmp_path: Path) -> None:
    url, keys = tmp_path / "store", f"sqlite:{tmp_path / 'keys' / 'keys.db'}"
    with holdfast.open(url, keys=keys) as hf:
        name = hf.subjects.pseudonym("ada")
        hf.conversation(name, subject="ada").set("name", "Ada")
        hf.conversation(name).set("more", 1)
        assert "keys.db" in repr(hf._log.sealing.keys)
    assert (tmp_path / "keys" / "keys.db").stat().st_mode & 0o077 == 0
    os.rename(tmp_path / "keys", tmp_path / "away")
    with holdfast.open(url, keys=keys) as hf, pytest.raises(KeyMissingError):
        hf.conversation(name).state.to_dict()
    os.rename(tmp_path / "away", tmp_path / "keys")
    with holdfast.open(url, keys=keys) as hf:
        assert hf.conversation(name).get("name") == "Ada"
        hf.subjects.erase("ada")
        assert hf.conversation(name).state.to_dict() == {}


def test_what_cannot_be_read_is_an_error_and_no_missing_key(tmp_path: Path) -> None:
    keys = to_keys(f"sqlite:{tmp_path / 'keys.db'}")
    assert isinstance(keys, TableKeys)
    ada = keys.make("ada")
    connection = apsw.Connection(str(tmp_path / "keys.db"))
    connection.execute("UPDATE keys SET document = '{}'")
    with pytest.raises(CorruptError, match=r"a key in .* is damaged"):
        keys.get(ada.id)
    connection.close()
    keys.close()
    keys.close()
    (tmp_path / "keys.db").write_bytes(b"no database" * 500)
    with pytest.raises(CorruptError, match="are damaged"):
        keys.get(ada.id)
    with pytest.raises(UnavailableError, match="out of reach"):
        to_keys(f"sqlite:{tmp_path}").make("ada")


def test_a_file_without_tables_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / "keys.db").touch()
    keys = to_keys(f"sqlite:{tmp_path / 'keys.db'}")
    assert keys.find("ada") is None
    assert keys.subjects() == []
    assert keys.make("ada") == keys.find("ada")


def test_tables_that_another_process_makes_meanwhile_are_not_taken_for_those_of_others(
    tmp_path: Path,
) -> None:
    """The file is there, and not its tables yet; they are made between two looks at it."""
    place = str(tmp_path / "keys.db")
    Path(place).touch()
    reader, other = key_rows.SqliteKeyRows(place), key_rows.SqliteKeyRows(place)
    assert reader.ask("SELECT id FROM holdfast.keys") is None
    assert reader._open is not None
    connection = reader._open[1]
    seen: list[str] = []

    def before_statement(_cursor: Any, statement: str, _values: Any) -> bool:
        seen.append(statement)
        if len(seen) == 2:
            other.write(("INSERT INTO holdfast.erased VALUES (?)", ("one",)))
        return True

    connection.exec_trace = before_statement
    assert reader.ask("SELECT id FROM holdfast.erased") == [("one",)]
    assert "application_id" in seen[0]


def test_a_destruction_that_was_killed_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL before the transaction, and before the journal is overwritten."""
    url = f"sqlite:{tmp_path / 'keys.db'}"

    def journal() -> bytes:
        return (tmp_path / "keys.db-journal").read_bytes()

    keys = to_keys(url)
    ada, _ = keys.make("ada"), keys.make("bob")

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for step, is_done in (("write", False), ("scrub", True)):
        monkeypatch.setattr(key_rows.SqliteKeyRows, step, die)
        child = Child(lambda p, s: to_keys(url).destroy(ada.id))
        assert os.WTERMSIG(child.end()) == signal.SIGKILL
        monkeypatch.undo()
        assert keys.is_erased(ada.id) is is_done
        assert (keys.get(ada.id) is None) is is_done
    assert any(form in journal() for form in forms(ada))
    keys.destroy(ada.id)
    assert not any(form in journal() for form in forms(ada))
    assert keys.find("bob") is not None


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    rows = key_rows.SqliteKeyRows(str(tmp_path / "keys.db"))
    rows.scrub()
    assert not (tmp_path / "keys.db").exists()
    with pytest.raises(UnavailableError, match="no such table"):
        rows.write(
            ("INSERT INTO holdfast.erased (id) VALUES (?)", ("a",)), ("DELETE FROM missing", ())
        )
    assert rows.ask("SELECT id FROM holdfast.erased") == []
    (tmp_path / "keys.db-journal").unlink()
    rows.scrub()
    rows.close()


def test_a_forked_process_has_a_connection_of_its_own(tmp_path: Path) -> None:
    keys = to_keys(f"sqlite:{tmp_path / 'keys.db'}")
    ada = keys.make("ada")

    def other() -> None:
        assert keys.get(ada.id) == ada
        keys.make("eve")
        keys.close()

    child = Child(lambda p, s: other())
    child.end()
    assert child.trouble is None, child.trouble
    assert keys.find("eve") is not None


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def server() -> postgresql.Server:
    running = postgresql.server(postgresql.NEWEST)
    running.psql("postgres", 'DROP DATABASE IF EXISTS "both"')
    running.create_database("both")
    return running


def test_the_database_of_the_store_is_refused_however_it_is_reached(
    server: postgresql.Server,
) -> None:
    """By socket, by address, by another name of the host, another schema, another application."""
    store = server.url("both", application="keys-apart")
    addressed = server.tcp_url("both", schema="elsewhere")
    for keys in (store, server.url("both", schema="apart"), addressed,
                 addressed.replace("127.0.0.1", "localhost"),
                 addressed.replace("postgresql:", "postgres:")):  # fmt: skip
        with (
            holdfast.open(store, keys=keys) as hf,
            pytest.raises(UsageError, match="in the database of the store itself") as raised,
        ):
            hf.subjects.pseudonym("ada")
        assert postgresql.PASSWORD not in str(raised.value)
    with (
        holdfast.open({"team": "memory:", "*": store}, keys=addressed) as hf,
        pytest.raises(UsageError, match="in the database of the store itself"),
    ):
        hf.subjects.pseudonym("ada")
    schemas = server.psql("both", "SELECT nspname FROM pg_namespace")
    assert "elsewhere" not in schemas
    assert "holdfast_keys" not in schemas


def test_another_database_of_the_server_keeps_keys(
    server: postgresql.Server, tmp_path: Path
) -> None:
    server.psql("postgres", 'DROP DATABASE IF EXISTS "others"')
    server.create_database("others")
    store, keys = server.url("both", application="keys-beside"), server.url("others")
    with holdfast.open(store, keys=keys) as hf:
        name = hf.subjects.pseudonym("ada")
        hf.conversation(name, subject="ada").set("name", "Ada")
        hf.subjects.erase("ada")
        assert hf.conversation(name).state.to_dict() == {}
    # The id of the key, and the digest of the name: who goes on writing for it is refused.
    assert server.psql("others", "SELECT count(*) FROM holdfast_keys.erased").strip() == "2"
    with holdfast.open(tmp_path / "store", keys=keys) as hf:  # any kind of store may use it
        assert hf.subjects.pseudonym("ada") == name


def test_a_server_that_is_not_there_is_told_without_its_password() -> None:
    keys = to_keys("postgresql://me:hidden@127.0.0.1:1/keys?timeout=0.5")
    with pytest.raises(UnavailableError) as raised:
        keys.make("ada")
    assert "hidden" not in str(raised.value)


if not postgresql.NEWEST:  # no driver is installed, as under the portable suites
    del test_the_database_of_the_store_is_refused_however_it_is_reached
    del test_another_database_of_the_server_keeps_keys
    del test_a_server_that_is_not_there_is_told_without_its_password
