"""Seals: what is bound, what fits, what is an error, and what costs nothing without subjects."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store
from holdfast.core import codec, snapshot
from holdfast.core.commit import ProposedCommit
from holdfast.core.event import LIFE, REMOVED, SEALED, own_subject
from holdfast.core.keystore import SubjectKey
from holdfast.core.sealing import Seal, Sealing, load_cipher, stream_of, subject_of_blob
from holdfast.erasure import Erasure
from holdfast.errors import CorruptError, ErasedError, KeyMissingError, LetGoError, UsageError
from holdfast.keys import FolderKeys
from holdfast.record.removal import removed

KEY = SubjectKey("01j9zsubject0000000000000a", "ada", bytes(range(32)))


def store(tmp_path: Path, url: str = "memory:") -> Store:
    return holdfast.open(url, keys=tmp_path / "keys", settings=Settings(clear_ids=True))


def test_a_seal_is_deterministic_and_bound_to_subject_and_key() -> None:
    seal = Seal(KEY)
    sealed = seal.seal(b"hello")
    assert sealed == Seal(KEY).seal(b"hello")
    assert seal.open(sealed) == b"hello"
    for other in (SubjectKey("other", "ada", KEY.key), SubjectKey(KEY.id, "ada", bytes(32))):
        with pytest.raises(CorruptError, match="does not fit its key"):
            Seal(other).open(sealed)
    with pytest.raises(CorruptError, match="does not fit its key"):
        seal.open(b"short")
    assert KEY.key.hex() not in repr(seal)


def test_names_are_keyed_digests_and_the_ends_of_lives_are_not() -> None:
    seal = Seal(KEY)
    payload, key, name, meta = seal.record("changed", b"[]", "k", "n", None)
    assert payload.startswith(SEALED)
    assert key is not None
    assert name is not None
    assert key.startswith("sealed:")
    assert key != seal.digest("checkpoint", "k")
    assert name == seal.digest("checkpoint", "n")
    assert '"cipher":"AES-256-GCM-SIV"' in meta
    clear = seal.record("removed", b"{}", None, LIFE, '{"source":"x"}')
    assert clear[:3] == (b"{}", None, LIFE)
    assert '"source":"x"' in clear[3]
    assert own_subject("s", clear[3]) == "s"
    assert own_subject("s", None) is None


def test_a_build_without_the_cipher_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"holdfast\[seal\]"):
        load_cipher()
    monkeypatch.undo()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.ciphers import aead

    def refuse(key: bytes) -> None:
        raise UnsupportedAlgorithm("no")

    monkeypatch.setattr(aead, "AESGCMSIV", refuse)
    with pytest.raises(UsageError, match="OpenSSL"):
        load_cipher()


def test_nothing_of_it_is_loaded_before_it_is_used(tmp_path: Path) -> None:
    import subprocess

    code = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as hf:
    hf.team("red").set("n", 1)
    hf.team("red").state.to_dict()
assert "cryptography" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=True)


def test_damage_of_sealed_data_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    with store(tmp_path) as hf:
        scope = hf.team("red", subject="ada")
        scope.set("n", 1)
        scope.set("large", "x" * 100_000)
        [first, second] = hf._log._backend.read("team/red")
        damaged = first.__class__(
            **{name: getattr(first, name) for name in first.__struct_fields__}
            | {"payload": SEALED + b'AAAA"}'}
        )
        with pytest.raises(CorruptError, match='event 1 of "team/red"'):
            hf._log.sealing.open(damaged)
        with pytest.raises(CorruptError, match="cannot be read"):
            hf._log.sealing.opener()(scope.subject or "", SEALED + b'A"}')
        [(name, size)] = codec.blobs_in(second.payload)
        objects = hf._log._backend.objects
        data = objects.get("blob", name) or b""
        assert subject_of_blob(data) == scope.subject
        assert hf._log.blobs.stored(name, size) == data
        with pytest.raises(CorruptError, match="as long as"):
            hf._log.sealing.open_blob(data, name, size + 1)
        objects.put("blob", name, data[:-1] + bytes([data[-1] ^ 1]))
        for read in (hf._log.blobs.read, hf._log.blobs.stored):
            with pytest.raises(CorruptError, match="does not match its digest"):
                read(name, size)
        assert hf._log.blobs.subject("0" * 64) is None
        assert hf._log.sealing.open(hf._log.record("team/red", 1)) is not None


def test_a_key_is_looked_for_each_time_and_its_absence_has_two_names(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    seals = Sealing(lambda: keys)
    ada = seals.named("ada")
    assert seals.named("ada") is ada is seals.of(ada.subject)
    with pytest.raises(KeyMissingError, match="was not erased"):
        seals.of("nobody")
    keys.destroy(ada.subject)
    with pytest.raises(ErasedError) as raised:
        seals.of(ada.subject)
    assert raised.value.subject == ada.subject
    seals.forget(ada.subject)
    assert seals.opener()(ada.subject, SEALED + b'AAAA"}') == b"-0"


def test_every_way_to_the_state_opens_what_is_sealed(tmp_path: Path) -> None:
    """Folds, snapshots, old revisions, views, many at once, ends without a fold."""
    url = str(tmp_path / "store")
    with store(tmp_path, url) as hf:
        scope = hf.team("red", subject="ada")
        for number in range(60):
            scope.append("list", f"item {number} {'x' * 80}")
        hf.team("blue", subject="ada").set("n", 1)
        hf._log.snapshots._write(
            "team/red", hf._log.newest("team/red"), hf._log.snapshots._begin("t")
        )
    with store(tmp_path, url) as hf:
        assert hf._log.snapshots.revisions("team/red") == [60]
        assert len(hf.team("red").state["list"]) == 60
        assert hf.team("red").state["list"][3].startswith("item 3 ")
        assert [len(one.state["list"]) for one in hf.team("red").states(after=57)] == [58, 59, 60]
        newest = hf.team("red").states(after=55, newest_first=True)
        assert [one.revision for one in newest] == [60, 59, 58, 57, 56]
    with store(tmp_path, url) as hf:
        states = hf.view().states(["team/red", "team/blue"])
        assert states["team/blue"] == {"n": 1}
        view = hf.view()
        assert view.state(hf.team("blue")) == {"n": 1}
        hf.team("blue").set("n", 2)
        assert hf.view().state(hf.team("blue")) == {"n": 2}
    with store(tmp_path, url) as hf:
        hf.team("blue").set("m", 3)  # on the end of the stream, which is not folded
        hf.team("blue").remove()
        hf.team("blue").set("m", 4, key="k")
        assert hf.team("blue").set("m", 4, key="k") == hf.team("blue").revision
        assert all(record.subject for record in hf._log._backend.read("team/blue"))
        seen: list[str] = []
        hf.team("blue").subscribe(lambda change: seen.append(str(change.new)))
        hf.team("blue").set("m", "told")
        hf._log.dispatcher.drain(30.0)
        assert seen == ["told"]
        [*events] = hf.events(limit=3)
        assert events[0].data is not None
    with store(tmp_path, url) as hf:
        hf.subjects.erase("ada")
        assert hf._log.snapshots.revisions("team/red") == []
        assert hf.check().findings == []


def test_an_erased_snapshot_is_discarded(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with store(tmp_path, url) as hf:
        scope = hf.team("red", subject="ada")
        for number in range(3):
            scope.set("n", number)
        hf._log.snapshots._write(
            "team/red", hf._log.newest("team/red"), hf._log.snapshots._begin("t")
        )
        hf._log.sealing.keys.destroy(scope.subject or "")
        # A snapshot that cannot be sealed any more is not written, and nothing fails for it.
        hf._log.snapshots._write(
            "team/red", hf._log.newest("team/red"), hf._log.snapshots._begin("t")
        )
        assert "was not written" in hf._log.reports[-1]
    with store(tmp_path, url) as hf:
        with pytest.raises(LetGoError):
            hf.team("red").state.to_dict()
        assert "was erased" in hf._log.reports[-1]
        assert hf._log.find("team/red", key="x") == []
        assert [event.is_let_go for event in hf.team("red").history()] == [True] * 3
        *_, last = hf.team("red").states()
        with pytest.raises(LetGoError):
            last.state  # noqa: B018


def test_an_open_handle_that_meant_another_subject_is_refused(tmp_path: Path) -> None:
    with store(tmp_path) as hf:
        other = holdfast.open(
            hf._log._backend, keys=tmp_path / "keys", settings=Settings(clear_ids=True)
        )
        mine = hf.team("red", subject="ada")
        theirs = other.team("red", subject="bob")
        free = other.team("free", subject="bob")
        theirs.set("n", 1)
        hf.team("free").set("n", 1)
        with pytest.raises(UsageError, match="another subject's"):
            mine.set("n", 2)
        with pytest.raises(UsageError, match="nobody's"):
            free.set("n", 2)
        with pytest.raises(UsageError, match="nobody's"):
            hf.team("free", subject="ada")
        assert hf._log.link_at("team/red", 9) is None


def test_the_ways_of_an_erasure_are_all_taken_in_memory(tmp_path: Path) -> None:
    with store(tmp_path) as hf:
        scope = hf.team("red", subject="ada")
        scope.set("large", "y" * 100_000)
        scope.checkpoint("named")
        assert len(scope.state["large"]) == 100_000
        assert hf.team("red", subject="ada").subject == scope.subject
        assert [record.payload for record in hf._log.read("team/red", after=1)] == [b"null"]
        other = holdfast.open(
            hf._log._backend, keys=tmp_path / "keys", settings=Settings(clear_ids=True)
        )
        hf.team("blue").set("n", 1)
        assert other.team("blue").get("n") == 1
        id = scope.subject or ""
        assert hf.check().findings == []
        hf._kernel.part(Erasure)._begin(id, "p-told")
        with pytest.raises(ErasedError):
            hf.team("new", subject="ada").set("n", 1)
        assert [one.subject for one in other.subjects.finish()] == [id]
        with pytest.raises(ErasedError):
            hf.team("red", subject="ada")


def test_a_checkpoint_of_an_erased_subject_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with store(tmp_path, url) as hf:
        scope = hf.team("red", subject="ada")
        scope.checkpoint("first of all")
        id = scope.subject or ""
        hf._log.sealing.keys.destroy(id)
    with store(tmp_path, url) as hf:
        assert hf.team("red").state.to_dict() == {}
        assert [len(one.state) for one in hf.team("red").states()] == [0]


def test_a_commit_that_a_change_of_its_subject_overtakes_is_prepared_again(tmp_path: Path) -> None:
    """A hold is such a change: it refuses nothing."""
    with store(tmp_path) as hf:
        scope = hf.team("red", subject="ada")
        scope.set("n", 1)
        other = holdfast.open(
            hf._log._backend, keys=tmp_path / "keys", settings=Settings(clear_ids=True)
        )
        other.subjects.hold("ada", "case 7")
        assert scope.set("n", 2) == 2
        third = holdfast.open(
            hf._log._backend, keys=tmp_path / "keys", settings=Settings(clear_ids=True)
        )
        assert third.team("blue", subject="ada").set("n", 1) == 1
        other.subjects.unhold("ada")
        hf._log.newest(stream_of("team/red", scope.subject or ""))
        assert scope.set("n", 3) == 3


def test_sealed_names_are_found_one_by_one_and_all_together(tmp_path: Path) -> None:
    with store(tmp_path) as hf:
        scope = hf.team("red", subject="ada")
        scope.set("n", 1, key="k", checkpoint="first")
        scope.set("n", 2, checkpoint="second")
        scope.set("n", 3)
        assert [one.name for one in scope.checkpoints()] == ["second", "first"]
        assert [one.name for one in hf._log.find("team/red")] == ["second", "first"]
        assert [one.revision for one in hf._log.find("team/red", key="k")] == [1]
        assert [one.revision for one in hf._log.find("team/red", checkpoint="first")] == [1]
        hf.subjects.erase("ada")
        assert hf._log.find("team/red", checkpoint="first") == []


def test_a_list_of_a_subject_is_read_whole_by_who_opens_it_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "GROWTH_BYTES_MIN", 3_000)
    items = [{"n": n, "text": "x" * 100} for n in range(200)]
    with store(tmp_path, str(tmp_path / "s")) as hf:
        for item in items:
            hf.team("red", subject="ada").append("items", item)
    with store(tmp_path, str(tmp_path / "s")) as hf:
        assert hf.team("red", subject="ada").state.to_dict() == {"items": items}
        rows = hf._log._payloads("team/red", 0, 200)
        assert [json.loads(payload)[0][2] for _, payload, _ in rows] == items


def test_a_stream_is_given_to_whose_another_is(tmp_path: Path) -> None:
    """What a layer derives from a subject's scope begins as the subject's, or stays as it is."""
    with holdfast.open(
        tmp_path / "given", keys=tmp_path / "k2", settings=Settings(clear_ids=True)
    ) as hf:
        own = hf.team("own", subject="ada")
        own.set("n", 1)
        hf.team("clear").set("n", 1)
        for other, stream in (
            ("team/clear", "team/a"),
            ("team/own", "team/b"),
            ("team/own", "team/clear"),
        ):
            hf._log.give_as(stream, other)
        for name in ("a", "b", "clear"):
            hf.team(name).set("m", 1)
        assert [hf.team(name).subject for name in ("a", "b", "clear")] == [None, own.subject, None]


def test_only_a_removal_needs_no_key_once_its_subject_is_erased(tmp_path: Path) -> None:
    with holdfast.open(
        tmp_path / "s", keys=tmp_path / "keys", settings=Settings(clear_ids=True)
    ) as hf:
        own = hf.team("own", subject="ada")
        new = hf.team("new", subject="ada")
        own.set("n", 1)
        id = own.subject or ""
        named = replace(removed("team/own"), key="a name that would have to be sealed")
        hf._log.sealing.keys.destroy(id)
        writes: tuple[Callable[[], object], ...] = (
            lambda: own.set("n", 2),
            lambda: own.close(),
            lambda: new.set("n", 1),
            lambda: hf._log.commit(ProposedCommit((named,))),
        )
        for write in writes:
            with pytest.raises(ErasedError):
                write()
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        hf._log.commit(ProposedCommit((removed("team/own"),)))
        [last] = hf._log.read("team/own", after=1)
        assert (last.type, last.checkpoint, last.subject) == (REMOVED, LIFE, id)
        assert own_subject(last.subject, last.meta) == hf.team("own").subject == id
        assert hf.team("own").state.to_dict() == {}
        assert hf.check().findings == []


def test_a_retain_without_keys_looks_at_what_is_stored(tmp_path: Path) -> None:
    """A scope whose newest event is a restore may have been closed before; that it must open."""
    with holdfast.open(
        tmp_path / "kept", keys=tmp_path / "k3", settings=Settings(clear_ids=True)
    ) as hf:
        plain = hf.team("plain")
        first = plain.set("n", 1)
        plain.set("n", 2)
        plain.restore(first)
        hf.team("own", subject="ada").set("n", 1)
        hf.team("gone", subject="ada").set("n", 1)
        hf.team("gone").remove()
    with holdfast.open(tmp_path / "kept", keys=tmp_path / "none") as hf:
        assert [one.scope for one in hf.retention.run(grace_s=0).scopes] == ["team/gone"]
        assert hf.team("plain").get("n") == 1
