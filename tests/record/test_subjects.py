"""Scopes of subjects on every backend: sealed from the first byte, and erased with a receipt.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.protocol import START
from holdfast.core import sealing
from holdfast.core.retention import Retainer
from holdfast.erasure import Erasure
from holdfast.errors import (
    ConflictError,
    ErasedError,
    HeldError,
    KeyMissingError,
    LetGoError,
    NotFoundError,
    UsageError,
)
from holdfast.keys import FolderKeys
from holdfast.scope import Scope
from holdfast.store import Meta
from holdfast.transfer.copy import copy_log
from holdfast.views.item_view import ItemView
from holdfast.views.sources import TaskSource
from tests.record.stores import new_url
from tests.servers import postgresql, redis

CANARY = "CANARY-5e41"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def hf(url: str, keys: Path) -> Iterator[Store]:
    with holdfast.open(
        url, keys=keys, settings=Settings(indexes=[holdfast.index("conversation", "name")])
    ) as store:
        yield store


def lived(hf: Store, name: str = "ada") -> Scope:
    """Returns a subject's scope with a canary in every kind of field that people fill."""
    chat = hf.conversation(hf.subjects.pseudonym(name), subject=name)
    early = chat.set("name", {"deep": [CANARY, name]}, key=f"{CANARY} key", checkpoint=CANARY)
    chat.set("large", [CANARY * 8000])
    for number in range(3):
        chat.append("list", f"{CANARY} {number} {'x' * 100}")
    chat.say(f"{CANARY} hello")
    chat.messages.add("tool", f"{CANARY} result", tool_call_id=f"{CANARY} call")
    chat.facts.state(f"{CANARY} place", CANARY, about=CANARY)
    task = chat.tasks.add(f"{CANARY} task", id=f"{CANARY} id")
    chat.tasks.claim(task.id)
    chat.tasks.close(task.id, CANARY)
    chat.tasks.add("another", id=f"{CANARY} other", tags=[CANARY], epic=CANARY)
    chat.decide("always", key=f"{CANARY} order", standing=True)
    with chat.decide(f"{CANARY}?", because=CANARY, key=f"{CANARY} decision") as decision:
        decision.outcome(CANARY)
    chat.record("met", {"who": CANARY}, unchecked=True)
    with hf.commit(meta=Meta(source="test")) as tx:
        tx.scope(chat).set("with meta", CANARY)
        tx.scope(chat).messages.add("user", f"{CANARY} in a joint commit")
    chat.checkpoint(f"{CANARY} named")
    chat.restore(early)
    fork = chat.fork(hf.subjects.pseudonym(f"fork of {name}"))
    fork.set("forked", CANARY)
    return chat


def stored(hf: Store) -> bytes:
    """Returns all that the backend can be asked for, as it is stored, large values unpacked."""
    parts: list[bytes] = []
    for record in hf._log.read_all(after=START, limit=100_000):
        parts += [record.payload, repr((record.key, record.checkpoint, record.meta)).encode()]
    objects = hf._log._backend.objects
    for kind in ("blob", "snapshot"):
        for name in objects.names(kind):
            data = objects.get(kind, name) or b""
            with suppress(Exception):
                data = holdfast.core.codec.decompress(data, size_max=1 << 30)
            parts.append(data)
    return b"\n".join([*parts, repr(hf._log.find_marks()).encode()])


def on_disk(url: str, tmp_path: Path, keys: Path) -> bytes:
    """Returns every byte of the store's files, or of the server that keeps it."""
    places = [tmp_path]
    if url.startswith("postgresql"):
        places.append(Path(postgresql.server(postgresql.NEWEST).directory))
    elif url.startswith("redis"):
        places.append(Path(redis.server(next(iter(redis.installations()))).directory))
    parts = [
        path.read_bytes()
        for place in places
        for path in place.rglob("*")
        if path.is_file() and keys not in path.parents
    ]
    return b"\n".join(parts)


def test_what_a_subject_says_is_in_no_byte_of_the_store_at_any_time(
    hf: Store, url: str, tmp_path: Path, keys: Path
) -> None:
    """Guarantee 9: scanned before it is erased too, with index, tables and snapshots made."""
    chat = lived(hf)
    hf._log.snapshots._write(chat.name, hf._log.newest(chat.name), hf._log.snapshots._begin("x"))
    assert chat.state.to_dict() == {"name": {"deep": [CANARY, "ada"]}}
    assert chat.messages.at(f"{CANARY} named").last()[-1].text == f"{CANARY} in a joint commit"
    assert list(hf.query(text=CANARY)) == []
    assert list(hf.query(kind=["message", "state", "task", "fact", "decision"])) == []
    assert CANARY not in repr(list(hf.search.sql("SELECT * FROM events").rows))
    assert hf.search.sql("SELECT * FROM messages").rows == []
    assert hf.search.sql("SELECT * FROM state").rows == []
    with pytest.raises(UsageError, match="a copy in clear"):
        hf.views(tmp_path, [ItemView("tasks.md", TaskSource(chat), None)])  # type: ignore[arg-type]
    assert CANARY.encode() not in stored(hf)
    assert CANARY.encode() not in on_disk(url, tmp_path, keys)
    for secret in (key.key for key in hf._log.sealing.keys.subjects()):
        assert secret not in stored(hf) + on_disk(url, tmp_path, keys)
    assert hf.check().findings == []


def test_another_process_reads_it_with_the_key_and_not_without(
    durable: str, tmp_path: Path, keys: Path
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, keys=keys) as hf:
        chat = lived(hf)
        name, named = chat.name, chat.life.revision_at(CANARY)
    with holdfast.open(url, keys=keys) as hf:
        chat = hf.scope(name)
        assert chat.life.revision_at(CANARY) == named
        assert chat.set("name", {"deep": [CANARY, "ada"]}, key=f"{CANARY} key") == named
        assert {one.name for one in chat.checkpoints()} == {CANARY, f"{CANARY} named"}
        assert chat.facts.get(f"{CANARY} place").about == CANARY
        assert chat.at(f"{CANARY} named")["large"] == [CANARY * 8000]
        assert [task.title for task in hf.tasks.list(status=None)] in ([], [f"{CANARY} task"])
        assert [event.key for event in chat.history(until=1)] == [f"{CANARY} key"]
        assert CANARY in repr(
            [
                event.data
                for event in hf.follow(as_events=True, after=START, timeout_s=0)
                if event.type != "lease"
            ]
        )
        chat.say("said by a handle that names no subject")
        assert b"names no subject" not in stored(hf)
    with holdfast.open(url, keys=tmp_path / "other") as hf:
        assert hf.check().findings == []
        with pytest.raises(KeyMissingError, match="was not erased") as raised:
            hf.scope(name).state.to_dict()
        assert raised.value.exit_code == 21
        with pytest.raises(KeyMissingError):
            hf.scope(name).say("in clear?")
        with pytest.raises(KeyMissingError):
            hf.scope(name).set("large", "x" * 100_000)
        hf.team("red").set("n", 1)


def test_a_subject_is_erased_and_nobody_else(
    hf: Store, url: str, tmp_path: Path, keys: Path
) -> None:
    """BOOT-32, guarantee 9: the receipt names every scope; chain and other scopes are as before."""
    chat, other = lived(hf), lived(hf, "bob")
    hf.team("red").set("stays", "pineapple")
    secret = hf._log.sealing.of(hf.subjects.get("ada").id)
    [key] = [one.key for one in FolderKeys(keys).subjects() if one.name == "ada"]
    assert [one.name for one in hf.subjects.list()] == ["ada", "bob"]
    heads = {name: hf._log.heads([name])[0] for name in (other.name, "team/red")}
    receipt = hf.subjects.erase("ada")
    assert receipt.subject == secret.subject
    fork = f"conversation/{hf.subjects.pseudonym('fork of ada')}"
    assert {one.scope for one in receipt.scopes} == {chat.name, fork}
    assert receipt.events > 15
    assert receipt.blobs >= 1
    assert heads == {name: hf._log.heads([name])[0] for name in heads}
    assert hf.check().findings == []
    assert key not in on_disk(url, tmp_path, tmp_path / "nowhere")
    assert chat.state.to_dict() == {}
    assert list(chat.messages) == []
    with pytest.raises(LetGoError):
        chat.at(1)
    assert other.state.to_dict() == {"name": {"deep": [CANARY, "bob"]}}
    assert other.facts.get(f"{CANARY} place").value == CANARY
    assert [one.name for one in hf.subjects.list()] == ["bob"]
    assert [one["subject"] for one in hf.subjects.receipts()] == [receipt.subject]
    with pytest.raises(NotFoundError, match="no subject"):
        hf.subjects.erase("ada")


def test_a_late_write_for_an_erased_subject_is_refused(
    hf: Store, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was prepared before the erasure began, and is sent after it."""
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    chat.set("n", 1)
    id = hf.subjects.get("ada").id
    other = holdfast.open(hf._log._backend, keys=keys)  # as another process would
    late, send, erased = (
        hf.conversation(hf.subjects.pseudonym("late"), subject="ada"),
        hf._log._send,
        [],
    )

    def erase_first(prepared: list[object]) -> None:
        if not erased:
            erased.append(True)
            other._kernel.part(Erasure)._begin(id, "p-told")
        send(prepared)  # type: ignore[arg-type]

    for write in (lambda: chat.set("n", 2), lambda: late.set("n", 3)):
        monkeypatch.setattr(hf._log, "_send", erase_first)
        with pytest.raises(ErasedError):
            write()
        monkeypatch.undo()
    assert late.revision == 0
    assert len(hf.subjects.finish()) == 1
    assert hf.subjects.finish() == []
    with pytest.raises(ErasedError):
        hf.scope(chat.name).say("again")
    with pytest.raises(ErasedError):
        hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    again = hf.conversation(hf.subjects.pseudonym("ada again"), subject="ada")
    again.set("n", 4)
    assert again.subject not in (None, id)


def test_a_hold_beats_an_erasure(hf: Store) -> None:
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    chat.set("n", CANARY)
    hf.subjects.hold("ada", "case 7")
    with pytest.raises(HeldError, match="case 7"):
        hf.subjects.erase("ada")
    assert hf.subjects.get("ada").hold == "case 7"
    assert chat.get("n") == CANARY
    chat.set("n", 2)
    hf.subjects.unhold("ada")
    with pytest.raises(NotFoundError, match="not held"):
        hf.subjects.unhold("ada")
    id = hf.subjects.get("ada").id
    hf._kernel.part(Erasure)._begin(id, "p-told")
    with pytest.raises(ErasedError):
        hf.subjects.hold("ada", "too late")
    assert hf.subjects.erase("ada").events


@pytest.mark.parametrize("url", ["memory", "files", "redis"], indirect=True)
def test_a_killed_erasure_is_finished_by_the_same_call(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each of its steps; nothing can be read from the second on."""

    class Killed(BaseException):
        pass

    def kill(*args: object, **kwargs: object) -> None:
        raise Killed

    places = [
        (hf._log.sealing.keys, "destroy"),
        (hf._log.sealing, "forget"),
        (hf._kernel.part(Retainer), "erase"),
        (hf._log.snapshots, "forget"),
        (hf._log._backend, "rewrite"),
        (hf._log.blobs, "delete"),
        (hf._log._backend, "purge"),
        (hf._kernel.part(Erasure), "_by_place"),
    ]
    for number, (owner, name) in enumerate(places):
        chat = lived(hf, f"ada {number}")
        if name == "_by_place":
            hf._kernel.part(Erasure)._begin(
                hf.subjects.get(f"ada {number}").id, hf.subjects.pseudonym(f"erased ada {number}")
            )
        monkeypatch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            hf.subjects.erase(f"ada {number}")
        monkeypatch.undo()
        receipt = hf.subjects.erase(f"ada {number}")
        assert len(receipt.scopes) == 2
        assert chat.state.to_dict() == {}
        assert hf.subjects.finish() == []
        assert CANARY.encode() not in stored(hf)
        assert [name for name in hf._log.blobs.names() if hf._log.blobs.subject(name)] == []
    assert hf.check().findings == []


@pytest.mark.parametrize("is_erased", [False, True])
def test_an_older_copy_opens_with_the_key_and_not_after_the_erasure(
    hf: Store, tmp_path: Path, keys: Path, is_erased: bool
) -> None:
    """A backup is such a copy: it has no key, and what was erased stays so in it."""
    chat = lived(hf)
    with holdfast.open(tmp_path / "copy", keys=keys) as older:
        copy_log(hf._log, older._log)
        assert older.check().findings == []
        if is_erased:
            hf.subjects.erase("ada")
            with pytest.raises(LetGoError):
                older.scope(chat.name).state.to_dict()
            [old] = [one for one in older.scope(chat.name).history(until=1)]
            assert old.is_let_go
            assert older.scope(chat.name).checkpoints() == []
            with pytest.raises((ErasedError, LetGoError)):
                older.scope(chat.name).set("n", 1)
            copy_log(hf._log, older._log)
            assert CANARY.encode() not in stored(older)
            assert older.scope(chat.name).state.to_dict() == {}
        else:
            assert older.scope(chat.name).state.to_dict() == chat.state.to_dict()
            assert older.scope(chat.name).at(2)["large"] == [CANARY * 8000]
        assert older.check().findings == []
    secrets = [one.key for one in FolderKeys(keys).subjects()]
    for path in (tmp_path / "copy").rglob("*"):
        if path.is_file():
            assert not any(secret in path.read_bytes() for secret in secrets)


def test_whose_a_scope_is_its_first_event_decides(hf: Store) -> None:
    hf.conversation("c").set("n", 1)
    name = hf.subjects.pseudonym("ada")
    hf.conversation(name, subject="ada").set("n", 1)
    with pytest.raises(UsageError, match="expected a pseudonym"):
        hf.conversation("c", subject="ada")
    with pytest.raises(UsageError, match="another subject's"):
        hf.conversation(name, subject="bob")
    late = hf.conversation(hf.subjects.pseudonym("free"), subject="ada")
    hf.scope(late.name).set("n", 1)
    assert late.subject == hf.subjects.get("ada").id
    assert hf.conversation("01j9zsubject0000000000000a").subject is None
    assert {one for one in hf.subjects.get("ada").scopes} == {f"conversation/{name}", late.name}


WRITER = """
import sys, time, holdfast
from holdfast.errors import ErasedError
hf = holdfast.open(sys.argv[1], keys=sys.argv[2])
chat = hf.scope(sys.argv[3])
print("up", flush=True)
n = 0
try:
    while True:
        chat.set("n", ["CANARY-5e41", n])
        chat.say("CANARY-5e41")
        n += 1
        time.sleep(0.005)
except ErasedError:
    print(n, flush=True)
"""


def test_two_processes_erase_and_write_at_once(durable: str, tmp_path: Path, keys: Path) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, keys=keys) as hf:
        chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        chat.set("n", 0)
        command = [sys.executable, "-c", WRITER, url, str(keys), chat.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "up\n"
            while chat.revision < 8:
                pass
            try:
                receipt = hf.subjects.erase("ada")
            except BaseException:
                writer.kill()
                raise
            written = int(writer.stdout.readline())
            assert writer.wait() == 0
        assert written >= 1
        assert receipt.events >= 8
        for record in hf._log._backend.read(chat.name):
            assert record.payload == b"-0" or record.type == "removed"
        assert hf.check().findings == []


def test_the_place_is_no_part_of_what_is_sealed(hf: Store) -> None:
    """Equal data has equal bytes under one key: a blob is stored once, whatever names it."""
    chat = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    other = hf.conversation(hf.subjects.pseudonym("ada 2"), subject="ada")
    third = hf.conversation(hf.subjects.pseudonym("bob"), subject="bob")
    for scope in (chat, other, third):
        scope.set("large", CANARY * 9000)
    assert len(hf._log.blobs.names()) == 2
    sealed = {record.payload for record in hf._log._backend.read(chat.name)}
    assert sealed & {record.payload for record in hf._log._backend.read(other.name)}
    assert sealing.CIPHER in str(next(iter(chat.history())).meta)
    assert other.get("large") == third.get("large") == CANARY * 9000


def test_a_scope_that_was_never_sealed_is_erased_by_rewriting(hf: Store) -> None:
    word = "PLAIN-5e41"
    chat, other = hf.conversation("c"), hf.conversation("other")
    chat.set("name", word)
    chat.set("large", [word * 9000])
    other.set("large", [word * 9000])  # names the same blob
    chat.say(f"{word} hello")
    assert list(hf.query(text=word))
    fork = chat.fork("f")
    with pytest.raises(UsageError, match="the past of a fork"):
        hf.subjects.erase(scope=chat)
    assert chat.get("name") == word
    fork.remove()
    hf.retention.hold(chat)
    with pytest.raises(HeldError):
        hf.subjects.erase(scope=chat)
    hf.retention.unhold(chat)
    receipt = hf.subjects.erase(scope=chat)
    assert [one.scope for one in receipt.scopes] == [chat.name]
    assert receipt.events >= 1
    assert "in clear" in receipt.beyond[0]
    assert all(one.payload == b"-0" for one in hf._log._backend.read(chat.name, until=3))
    assert other.get("large") == [word * 9000]
    assert [hit.scope for hit in hf.query(text="hello")] == []
    assert hf.check().findings == []
    with pytest.raises(UsageError, match="a scope, or a text"):
        hf.subjects.erase()
    sealed = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    sealed.set("n", 1)
    with pytest.raises(UsageError, match="a subject's"):
        hf.subjects.erase(scope=sealed)


def test_a_hold_or_an_erasure_that_loses_every_race_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never in silence: the key stays, and what was asked for is not taken to be so."""
    with holdfast.open(
        tmp_path / "store", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        hf.team("red", subject="ada").set("n", 1)

        def lost(_: object) -> None:
            raise ConflictError("others were faster", stream="team/red", expected=1, actual=2)

        with monkeypatch.context() as patched:
            patched.setattr(hf._log, "commit", lost)
            with pytest.raises(ConflictError, match="others were faster"):
                hf.subjects.hold("ada", "a court case")
            with pytest.raises(ConflictError, match="others were faster"):
                hf.subjects.erase("ada")
        assert hf.team("red")["n"] == 1
        assert [one.hold for one in hf.subjects.list()] == [None]
        hf.subjects.hold("ada", "a court case")
        with pytest.raises(HeldError, match="a court case"):
            hf.subjects.erase("ada")
