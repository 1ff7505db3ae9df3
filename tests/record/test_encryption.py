"""A store that is encrypted at rest, on every backend (0046)."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, interchange
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import GONE, START, Append, Commit, Record
from holdfast.backup import backup, drill, restore
from holdfast.clock import SystemClock
from holdfast.copy import copy
from holdfast.core import encryption
from holdfast.core.encryption import KEYS, EncryptedBackend
from holdfast.errors import CorruptError, StoreKeyError, UsageError
from holdfast.keys import KeyStatus, StoreKey
from holdfast.transfer.salvage import salvage_log
from tests.crash.children import Child
from tests.record.stores import ALL, new_url
from tests.servers import postgresql, redis

KEY, OTHER = b"k" * 32, b"o" * 32
CANARY = "CANARY-a7c4"


def lived(hf: Store) -> None:
    """Puts a canary into every kind of field that holds data. Names stay in clear."""
    team = hf.team("red")
    team.set("name", {"deep": [CANARY]}, checkpoint="early")
    team.set("large", [CANARY * 8000])
    team.append("list", CANARY)
    team.say(CANARY)
    team.messages.add("tool", CANARY, tool_call_id="call")
    team.facts.state("place", CANARY)
    task = team.tasks.add(CANARY)
    team.tasks.claim(task.id)
    team.tasks.close(task.id, CANARY)
    with team.decide(CANARY, because=CANARY) as decision:
        decision.outcome(CANARY)
    team.record("met", {"who": CANARY}, unchecked=True)
    team.fork("blue").set("forked", CANARY)
    snapshots = hf._log.snapshots
    snapshots._write(team.name, hf._log.newest(team.name), snapshots._begin("x"))


def on_disk(hf: Store, url: str, tmp_path: Path) -> bytes:
    """Returns every byte of the store's files, or of the server that keeps it."""
    places = [tmp_path]
    if url.startswith("postgresql"):
        places.append(Path(postgresql.server(postgresql.NEWEST).directory))
    elif url.startswith("redis"):
        places.append(Path(redis.server(next(iter(redis.installations()))).directory))
    files = (path for place in places for path in place.rglob("*") if path.is_file())
    parts = [path.read_bytes() for path in files]
    for part in inner(hf):  # a store in memory has no other bytes
        parts += [record.payload for record in part.read_all(limit=100_000)]
        parts += [part.objects.get(kind, name) for kind in ("blob", "snapshot")
                  for name in part.objects.names(kind)]  # fmt: skip
    return b"\n".join(parts)


def inner(hf: Store) -> list[Any]:
    assert hf._kernel.encryption is not None
    return [part.inner for part in hf._kernel.encryption.parts]


def test_no_byte_of_the_store_is_in_clear_at_any_time(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 9: scanned with snapshots, blobs, the index and the tables made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with holdfast.open(url, store_key=KEY) as hf:
        lived(hf)
        assert len(hf.query(text=CANARY)) > 5
        assert CANARY in repr(hf.search.sql("SELECT * FROM messages").rows)
        stored = on_disk(hf, url, tmp_path)
        assert CANARY.encode() not in stored
        assert KEY not in stored
        assert KEY.hex().encode() not in stored
        links = {record.link for record in hf._log.read_all(after=START, limit=1000)}
        kept = {record.link for record in inner(hf)[0].read_all(limit=1000)}
        assert not links & kept, "a link in clear lets a guess be confirmed"
        blobs = hf._log.blobs.names()
        assert blobs
        assert not blobs & set(inner(hf)[0].objects.names("blob"))
        assert hf.check().findings == []
        assert hf.status()["encrypted"] == hf.keys.status().data_key


def test_equal_data_in_two_places_is_stored_as_different_bytes() -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        for name in ("red", "blue"):
            hf.team(name).set("n", 1)
        payloads = [one.payload for one in inner(hf)[0].read_all() if one.stream != KEYS]
        assert len(set(payloads)) == len(payloads) >= 2


def test_a_wrong_or_missing_key_is_told_and_nothing_is_written(
    durable: str, tmp_path: Path
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, store_key=KEY) as hf:
        hf.team("red").set("n", 1)
        digest, position = hf.check().digest, hf._log.position()
    with pytest.raises(StoreKeyError, match="is encrypted, and no store key was given"):
        holdfast.open(url)
    with pytest.raises(StoreKeyError, match="does not fit: it opens with key"):
        holdfast.open(url, store_key=OTHER)
    with pytest.raises(StoreKeyError, match="does not fit"):
        holdfast.open(url, store_key=OTHER, read_only=True)
    with holdfast.open(url, store_key=KEY, read_only=True) as hf:
        assert hf.team("red").get("n") == 1
        assert (hf.check().digest, hf._log.position()) == (digest, position)
        with pytest.raises(UsageError):
            hf.team("red").set("n", 2)


def test_a_plain_store_is_not_opened_with_a_key(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url) as hf:
        hf.team("red").set("n", 1)
        assert hf.keys.status() == KeyStatus(is_encrypted=False)
        with pytest.raises(StoreKeyError, match="it has no keys"):
            hf.keys.rotate()
    with pytest.raises(StoreKeyError, match="is not encrypted, and a store key was given"):
        holdfast.open(url, store_key=KEY)
    with holdfast.open(url) as hf:
        assert list(hf._log.streams(prefix="encryption")) == []


def test_a_key_that_cannot_be_read_makes_no_store(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with pytest.raises(StoreKeyError, match="is not set"):
        holdfast.open(place, store_key="env:HOLDFAST_NO_SUCH_KEY")
    assert not place.exists()
    with pytest.raises(UsageError, match="states are files in clear"):
        holdfast.open(f"yaml:{place}", store_key=KEY)
    assert not place.exists()


def test_two_who_begin_a_store_at_once_have_one_key(tmp_path: Path) -> None:
    def begin(path: Path) -> None:
        with holdfast.open(path, store_key=KEY) as hf:
            hf.team("red").append("who", os.getpid())

    children = [Child(lambda p, s: begin(tmp_path / "store")) for _ in range(3)]
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
    with holdfast.open(tmp_path / "store", store_key=KEY) as hf:
        assert len(hf.team("red").get("who")) == 3
        assert hf.keys.status().data_keys == 1


def test_who_begins_it_without_a_key_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain event comes before the key: the store is plain, for everybody."""
    from holdfast.backends.memory import MemoryBackend
    from holdfast.clock import SystemClock

    backend = MemoryBackend(clock=SystemClock())
    sound = encryption.DataKeys._append

    def late(self: Any, *words: Any) -> bool:
        record = Record("team/red", 1, 1, "x", "a", b"{}", bytes(32))
        backend.commit([Commit(1, "a", (Append("team/red", 0, (record,)),))])
        return sound(self, *words)

    monkeypatch.setattr(encryption.DataKeys, "_append", late)
    keys = encryption.DataKeys(backend, StoreKey(KEY), SystemClock(), "a")
    with pytest.raises(StoreKeyError, match="begun this store without a key"):
        keys.open(create=True)
    assert encryption.check_plain(backend) is backend


# --- keys ----------------------------------------------------------------------------------------


def test_a_rotation_writes_no_data_again(url: str) -> None:
    with holdfast.open(url, store_key=KEY) as hf:
        hf.team("red").set("large", ["x" * 100_000])
        before = [one for one in inner(hf)[0].read_all() if one.stream != KEYS]
        first = hf.keys.status()
        second = hf.keys.rotate()
        assert first.data_key != second.data_key
        assert (first.data_keys, second.data_keys) == (1, 2)
        hf.team("red").set("n", 1)
        after = [one for one in inner(hf)[0].read_all() if one.stream != KEYS]
        assert after[: len(before)] == before
        assert second.data_key.encode() in after[-1].payload
        assert hf.team("red").get("large") == ["x" * 100_000]
        assert hf.check().findings == []


def test_another_process_meets_the_new_key(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, store_key=KEY) as old, holdfast.open(url, store_key=KEY) as new:
        old.team("red").set("n", 1)
        new.keys.rotate()
        new.team("red").set("n", 2)
        assert old.team("red").get("n") == 2
        new.keys.rewrap(OTHER)
        new.team("red").set("n", 3)
        assert old.team("red").get("n") == 3, "what it has unwrapped, it keeps"
        old.team("red").set("n", 4)
        assert new.team("red").get("n") == 4


def test_a_rewrap_leaves_nothing_that_the_old_key_opens(url: str, tmp_path: Path) -> None:
    with holdfast.open(url, store_key=KEY) as hf:
        lived(hf)
        hf.keys.rotate()
        digest = hf.check().digest
        done = hf.keys.rewrap(OTHER)
        assert done.is_done
        assert done.older == 0
        assert done.wrapped_by == [StoreKey(OTHER).id]
        *old, newest = inner(hf)[0].read(KEYS)
        assert {one.payload for one in old} == {GONE}
        assert StoreKey(KEY).id.encode() not in newest.payload
        assert hf.check().digest == digest
        assert hf.check().findings == []
        assert hf.team("red").get("name") == {"deep": [CANARY]}
    if url != "memory:":
        with pytest.raises(StoreKeyError, match="does not fit"):
            holdfast.open(url, store_key=KEY)
        with holdfast.open(url, store_key=OTHER) as hf:
            assert hf.team("red").get("list") == [CANARY]


def killed(url: Any, act: Callable[[Store], object], fatal: int) -> None:
    """Does something in a process that kills itself after the nth call that changes anything.

    0: before the first. Nothing is changed between the end of a call and the next one.
    """

    def live() -> None:
        with holdfast.open(url, store_key=KEY) as hf:
            calls = 0
            for part in inner(hf):
                for name in ("commit", "rewrite", "purge"):
                    sound = getattr(part, name)

                    def call(*words: Any, sound: Any = sound, **named: Any) -> Any:
                        nonlocal calls
                        if calls == fatal:
                            os.kill(os.getpid(), signal.SIGKILL)
                        answer = sound(*words, **named)
                        calls += 1
                        if calls == fatal:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return answer

                    setattr(part, name, call)
            act(hf)

    child = Child(lambda p, s: live())
    assert os.WTERMSIG(child.end()) == signal.SIGKILL, child.trouble


def opened_by_either(url: Any) -> Store:
    """Opens a store whose rewrap was killed: one of the two keys must open it."""
    with suppress(StoreKeyError):
        return holdfast.open(url, store_key=KEY)
    return holdfast.open(url, store_key=OTHER)


def test_a_killed_rotation_or_rewrap_leaves_a_store_that_opens(
    durable: str, tmp_path: Path
) -> None:
    """The kill is a SIGKILL, before and after each call that changes anything."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, store_key=KEY) as hf:
        hf.team("red").set("n", CANARY)
    for fatal in range(2):
        killed(url, lambda hf: hf.keys.rotate(), fatal)
        with holdfast.open(url, store_key=KEY) as hf:
            assert hf.team("red").get("n") == CANARY
            hf.team("red").append("rotated", fatal)
    for fatal in range(5):
        killed(url, lambda hf: hf.keys.rewrap(OTHER), fatal)
        with opened_by_either(url) as hf:
            assert hf.team("red").get("n") == CANARY
            assert hf.team("red").get("rotated") == [0, 1]
            hf.team("red").append("went on", fatal)
            assert hf.keys.rewrap(OTHER).is_done
            assert hf.keys.status().older == 0
            hf.keys.rewrap(KEY)


def test_a_killed_rewrap_of_several_backends_is_opened_by_one_key(tmp_path: Path) -> None:
    urls = {"team": f"sqlite:{tmp_path / 'a.db'}", "*": str(tmp_path / "b")}
    with holdfast.open(urls, store_key=KEY) as hf:
        hf.team("red").set("n", CANARY)
        hf.global_().set("n", CANARY)
    for fatal in range(9):
        killed(urls, lambda hf: hf.keys.rewrap(OTHER), fatal)
        with opened_by_either(urls) as hf:
            assert (hf.team("red").get("n"), hf.global_().get("n")) == (CANARY, CANARY)
            assert hf.keys.rewrap(OTHER).is_done
            hf.keys.rewrap(KEY)
    assert CANARY.encode() not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_rewrap_that_is_not_done_keeps_keys_from_being_rotated() -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        assert hf._kernel.encryption is not None
        [part] = hf._kernel.encryption.parts
        part.wrap_with(StoreKey(KEY), StoreKey(OTHER))
        assert not hf.keys.status().is_done
        with pytest.raises(UsageError, match="being rewrapped"):
            hf.keys.rotate()
        assert hf.keys.rewrap(OTHER).is_done
        hf.keys.rotate()


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ALL)
def test_a_copy_has_equal_links_and_bytes_of_its_own(backend: str, tmp_path: Path) -> None:
    """Plain to encrypted, encrypted to encrypted, encrypted to plain: one digest."""
    url = new_url(backend, tmp_path)
    with (
        holdfast.open("memory:") as plain,
        holdfast.open(url, store_key=KEY) as one,
        holdfast.open("memory:", store_key=OTHER) as two,
        holdfast.open("memory:") as back,
    ):
        lived(plain)
        copy(plain, one)
        copy(one, two)
        copy(two, back)
        digests = {store.check().digest for store in (plain, one, two, back)}
        assert len(digests) == 1
        assert back.team("red").state.to_dict() == plain.team("red").state.to_dict()
        first, second = ({r.payload for r in inner(store)[0].read_all()} for store in (one, two))
        assert not first & second
        assert CANARY.encode() not in on_disk(one, url, tmp_path)


def test_the_backup_of_an_encrypted_store_is_encrypted(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with holdfast.open(url, store_key=KEY) as hf:
        lived(hf)
        digest = backup(hf, folder).digest
        hf.team("red").set("later", CANARY)
        backup(hf, folder)
        export = io.BytesIO()
        interchange.export_scopes(hf, [], export)
    data = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert CANARY.encode() not in data
    with holdfast.open("memory:") as target, pytest.raises(StoreKeyError):
        restore(folder, target)
    with holdfast.open("memory:") as target:
        assert restore(folder, target, at="p1", store_key=KEY).digest == digest
        assert target.team("red").get("list") == [CANARY]
    with holdfast.open("memory:", store_key=KEY) as target:
        restore(folder, target)
        assert target.team("red").get("later") == CANARY
    assert drill(folder, store_key=KEY).point.name == "p2"
    assert CANARY.encode() in export.getvalue(), "an export is for others, and in clear"
    (tmp_path / "export.jsonl").write_bytes(export.getvalue())
    with holdfast.open("memory:", store_key=KEY) as target:
        interchange.import_scopes(target, tmp_path / "export.jsonl")
        assert target.team("red").get("later") == CANARY


def test_a_plain_backup_is_restored_into_an_encrypted_store(tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        lived(hf)
        backup(hf, tmp_path / "backup")
    with holdfast.open(tmp_path / "new", store_key=KEY) as target:
        restore(tmp_path / "backup", target)
        assert target.team("red").get("list") == [CANARY]


def test_a_damaged_encrypted_store_is_salvaged(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store.db'}"
    with holdfast.open(url, store_key=KEY) as hf:
        for n in range(5):
            hf.team("sound").set("n", n)
            hf.team("hurt").set("n", n)
    import apsw

    connection = apsw.Connection(str(tmp_path / "store.db"))
    _, (hurt,) = connection.execute("SELECT ordinal FROM events WHERE revision = 3 ORDER BY 1")
    connection.execute(
        "UPDATE events SET payload = ? WHERE ordinal = ?",
        (b'{"$encrypted":"0000000000000000:AAAA"}', hurt),
    )
    connection.close()
    with (
        holdfast.open(url, store_key=KEY, read_only=True) as hf,
        holdfast.open("memory:", store_key=OTHER) as new,
    ):
        assert not hf.check().ok
        salvage_log(hf._log, new._log)
        assert new.team("sound").get("n") == 4
        assert new.team("hurt").get("n") == 1


# --- what was changed ----------------------------------------------------------------------------


def changed(payload: bytes | None) -> CorruptError:
    """Returns what is raised for an event whose stored payload was replaced."""
    with holdfast.open("memory:", store_key=KEY) as hf:
        hf.team("red").set("n", 1)
        hf.team("blue").set("n", 1)
        assert hf._kernel.encryption is not None
        backend: EncryptedBackend = hf._kernel.encryption.parts[0]
        [record] = backend.inner.read("team/red")
        [other] = backend.inner.read("team/blue")
        forged = other.payload if payload is None else payload
        with pytest.raises(CorruptError) as raised:
            backend._payload(record.stream, record.revision, forged)
        return raised.value


def test_what_was_moved_or_changed_is_damage() -> None:
    assert "does not fit its key and its place" in changed(None).message
    assert "stored in clear" in changed(b'{"n":1}').message
    assert "does not have" in changed(b'{"$encrypted":"0000000000000000:AAAA"}').message
    assert "does not fit" in changed(b'{"$encrypted":"\xff' + b"0" * 15 + b':AAAA"}').message


def test_an_object_that_was_changed_is_damage() -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        objects = hf._log._backend.objects
        name = "0" * 64
        objects.put("blob", name, b"one")
        [stored] = inner(hf)[0].objects.names("blob")
        for data in (b"in clear", inner(hf)[0].objects.get("blob", stored)[:-1]):
            inner(hf)[0].objects.put("blob", stored, data)
            with pytest.raises(CorruptError, match="one of them changed"):
                objects.get("blob", name)
        inner(hf)[0].objects.put("blob", "00ff", b"a stranger's")
        inner(hf)[0].objects.put("blob", "stranger", b"a stranger's")
        assert objects.names("blob") == [name]


def test_keys_that_are_damaged_or_newer_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory:", store_key=KEY) as hf:
        assert hf._kernel.encryption is not None
        [part] = hf._kernel.encryption.parts
        keys, id = part.keys, part.keys.current.id
        mine = StoreKey(KEY).id
        for payload, error, match in (
            (b"{", CorruptError, "cannot be read"),
            (b'{"keys":["a"],"wraps":{},"format":2}', StoreKeyError, "upgrade"),
            (
                b'{"keys":["b"],"wraps":{"%b":{"b":"AAAA"}}}' % mine.encode(),
                CorruptError,
                "damaged",
            ),
            (b'{"keys":["b"],"wraps":{"%b":{"b":"?"}}}' % mine.encode(), CorruptError, "damaged"),
        ):
            record = Record(KEYS, 1, 1, "x", "a", payload, bytes(32))
            monkeypatch.setattr(keys._backend, "read", lambda *w, r=record, **n: [r])
            with pytest.raises(error, match=match):
                keys.load()
        monkeypatch.undo()
        keys.load()
        assert keys.current.id == id


def test_a_subject_is_sealed_and_erased_in_an_encrypted_store(url: str, tmp_path: Path) -> None:
    """The two are independent: the key of a person is destroyed, that of the store stays."""
    with holdfast.open(url, store_key=KEY, keys=tmp_path.parent / f"{tmp_path.name}-keys") as hf:
        chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        chat.set("name", CANARY)
        chat.set("large", [CANARY * 8000])
        hf.team("red").set("n", 1)
        assert chat.get("name") == CANARY
        assert hf.subjects.erase("ada").events >= 2
        assert chat.get("name") is None
        assert CANARY not in repr(list(chat.history(removed=True)))
        assert hf.team("red").get("n") == 1
        assert hf.check().findings == []
        assert CANARY.encode() not in on_disk(hf, url, tmp_path)


def test_a_given_backend_of_several_parts_is_refused_with_a_key() -> None:
    """The key was taken, and everything was written in clear."""
    memory = MemoryBackend(clock=SystemClock())
    mixed = MixedBackend({"*": memory}, {"*": "memory:"})
    with pytest.raises(UsageError, match="cannot be encrypted"):
        holdfast.open(mixed, store_key=KEY)
