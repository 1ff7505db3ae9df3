"""Every branch of what keeps seals, on the memory backend: the same tests as on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.core import codec
from holdfast.core.draft import Draft
from holdfast.core.log import Log
from holdfast.core.sealing import (
    BESIDE,
    READER,
    Sealing,
    noted_reads,
    readmission,
    tell_reader,
    told_as,
)
from holdfast.core.tree import Map, Op, apply, freeze, keep_seals
from holdfast.core.tree.frozen import Lazy
from holdfast.errors import ErasedError, KeyMissingError, UsageError
from holdfast.keys import FolderKeys
from tests.record import test_seals_kept as kept
from tests.record.test_readmission import writes
from tests.record.test_subjects import stored

LARGE = codec.encode({"n": "x" * 70_000})


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open("memory:", keys=tmp_path / "keys") as store:
        yield store


@pytest.mark.parametrize("name", kept.KEEP)
def test_a_container_keeps_its_seals(hf: Store, name: str) -> None:
    team = kept.filled(hf)
    kept.KEEP[name](hf, team)
    assert kept.SECRET not in stored(hf)
    assert team.get(("a", "x")) == f"{kept.WORD} within"


@pytest.mark.parametrize("name", kept.OVER)
def test_a_plain_value_is_refused(hf: Store, name: str) -> None:
    team = kept.filled(hf)
    with pytest.raises(UsageError, match="sealed"):
        kept.OVER[name](hf, team)


def test_what_is_known_of_a_stream_that_is_not_folded(hf: Store) -> None:
    kept.test_a_plain_value_over_a_sealed_one_is_refused_by_name(hf, "")
    kept.test_the_order_in_one_write_counts(hf)
    kept.test_a_repeated_write_is_still_known_by_its_key(hf)


def test_items_of_lists(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.test_equal_items_of_two_subjects_stay_theirs(hf)
    kept.test_an_item_with_seals_of_elsewhere_is_no_moved_one(hf)
    hf.team("red").remove()
    hf.subjects.readmit("ada")
    kept.test_a_sealed_item_is_one_item(hf)
    hf.team("red").remove()
    kept.test_a_list_that_is_written_back_opens_each_item_at_most_once(hf, monkeypatch)


def test_a_stream_without_sealed_values_is_not_folded_for_a_write(hf: Store) -> None:
    team = hf.team("red")
    team.set("a", 1)
    for _ in range(2):
        hf._log.folds.trim()
        team.set("a", 2)
        team.set("a", 3)
        assert "team/red" not in hf._log._states
    hf.team("blue").set("b", 1, subject="ada")
    hf._log.folds.trim()
    team.set("a", 4)
    assert "team/red" in hf._log._states


def test_writers_in_turn_ask_once_whether_values_are_sealed(
    hf: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    find_marks = Log.find_marks

    def counted(self: Log, index: str | None = None, **more: Any) -> Any:
        asked.append(index)
        return find_marks(self, index, **more)

    with holdfast.open(hf._log._backend, keys=tmp_path / "keys") as other:
        for number in range(3):
            hf.team("red").set("a", number)
            other.team("red").set("b", number)
            hf._log.folds.trim()
        monkeypatch.setattr(Log, "find_marks", counted)
        for number in range(5):
            hf.team("red").set("a", -number)
            other.team("red").set("b", -number)
        assert BESIDE not in asked
        # It is noticed in whatever way another writer seals a value there.
        other.team("red").set("a", kept.WORD, subject="ada")
        with pytest.raises(UsageError, match="sealed"):
            hf.team("red").set("a", "plain")


@pytest.mark.parametrize("later", [(), ("x",), ("x", "y")])
def test_a_value_that_another_writer_seals_is_not_written_over(
    hf: Store, tmp_path: Path, later: tuple[str, ...]
) -> None:
    with holdfast.open(hf._log._backend, keys=tmp_path / "keys") as other:
        for _ in range(3):
            hf.team("red").set("a", 1)
            other.team("red").set("b", 1)
            hf._log.folds.trim()
        assert "team/red" not in hf._log._states
        hf.team("red").set("a", 2)
        other.team("red").delete("a")
        other.team("red").set("a", kept.WORD, subject="ada")
        for name in later:
            other.team("red").set(name, 1)
        with pytest.raises(UsageError, match="sealed"):
            hf.team("red").set("a", "plain")
        assert other.team("red").get("a") == kept.WORD


def test_a_large_value_keeps_its_seals_and_one_of_a_subjects_scope_needs_none(hf: Store) -> None:
    own = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    team = kept.filled(hf)
    own.set("large", {"a": "x" * 70_000})
    own.set("large", {**own.get("large"), "n": 1})
    own.set("theirs", team.get("a"))
    assert own.get(("theirs", "x")) == f"{kept.WORD} within"
    with hf.commit() as tx:  # the value is a blob by the time that the other op seals the place
        tx.scope(team).set("sealed", {"a": 1})
        tx.scope(team).set(("sealed", "mail"), kept.WORD, subject="ada")
        tx.scope(team).set("sealed", {"a": "x" * 70_000})
    assert "mail" not in team.get("sealed")
    with pytest.raises(UsageError, match="sealed"), hf.commit() as tx:
        tx.scope(team).set("again", {"mail": kept.WORD}, subject="ada")
        tx.scope(team).set("again", "plain")


def test_a_value_that_was_sealed_meanwhile_is_not_replaced_by_a_blob(hf: Store) -> None:
    team = kept.filled(hf)
    log = hf._log
    raw = codec.encode({**team.get("a").to_dict(), "big": "x" * 70_000})
    op = log.blobs.spill(Op("set", "a", kept_raw(raw)), "team/other")
    with pytest.raises(UsageError, match="try again"):
        keep_seals(log.newest("team/red").root, [op], log.blobs.read)
    plain = log.blobs.spill(Op("set", "a", kept_raw(codec.encode("x" * 70_000))), "team/other")
    assert keep_seals(log.newest("team/red").root, [plain], log.blobs.read) == [plain]


def kept_raw(data: bytes) -> Any:
    from msgspec import Raw

    return Raw(data)


def test_a_sealed_mapping_is_not_spread_and_words_for_a_value_are_that_value(hf: Store) -> None:
    team = kept.filled(hf)
    with pytest.raises(UsageError, match="one value that is sealed"):
        hf.team("blue").update(team.get("top"))
    hf.team("blue").update(team.get("top"), subject="ada")
    assert hf.team("blue").get("p") == f"{kept.WORD} whole"
    with team.edit() as draft:
        draft["lists"] = [[1], [1]]
        assert draft["lists"][0] == draft["lists"][1]
        draft["lists"][0] = draft["lists"][1]
    team.set("s", "[sealed]")
    assert team.get("s") == f"{kept.WORD} alone"
    hf.subjects.erase("ada")
    for word in ("[erased]", holdfast.ERASED):
        team.set("s", word)
        assert team.get("s") is holdfast.ERASED
    with pytest.raises(UsageError, match="sealed"):
        team.set("s", "plain")
    assert kept.SECRET not in stored(hf)


def test_states_without_seals_and_of_other_shapes() -> None:
    root = apply(Map(), [Op("set", "a", kept_raw(b'{"b":[1,{"c":2}]}'))], revision=1)
    ops = [Op("set", "a", kept_raw(b'"' + b"x" * 80 + b'"')), Op("set", "n", kept_raw(b"1"))]
    assert keep_seals(root, ops, lambda name, size: b"") is ops
    opened = Map({"a": Lazy(None, value=freeze({"b": [1, {"c": 2}]})), "l": freeze([[1], 2])})
    ops = [Op("set", "a", kept_raw(b"1")), Op("set", "l", kept_raw(b"1"))]
    assert keep_seals(opened, ops, lambda name, size: b"") is ops


def test_a_merge_looks_only_at_the_keys_that_it_names() -> None:
    def read() -> bytes:
        raise AssertionError("nothing asks for this value")

    wide = Map({"a": 1, "large": Lazy(None, fetch=read), "l": freeze([1])})
    root = Map({**dict(wide._kept()), "m": wide})
    values = kept_raw(b'{"a":2,"new":{"b":1}}')
    for ops in ([Op("merge", (), values)], [Op("merge", "m", values)]):
        assert keep_seals(root, ops, lambda name, size: b"") is ops
    draft = Draft(root)
    draft.update(a=2)
    draft["m"].update(a=2)
    draft["m"] |= {"a": 3}
    assert (draft["a"], draft["m"]["a"]) == (2, 3)
    with pytest.raises(UsageError, match="cannot merge"):
        apply(root, keep_seals(root, [Op("merge", "l", values)], None), revision=1)


def test_a_merge_is_refused_where_it_names_what_is_sealed(hf: Store) -> None:
    team = kept.filled(hf)
    writes = (
        lambda: team.update({"s": "plain"}),
        lambda: team.edit(lambda draft: draft["a"].update(x="plain")),
        lambda: team.edit(lambda draft: draft.update(a={"x": "plain"})),
        lambda: team.edit(lambda draft: draft.update(s="plain", large={"text": "y" * 70_000})),
        lambda: team.edit(lambda draft: draft["top"].update(n=1)),
        lambda: team.edit(lambda draft: draft["items"][2].update(mail="plain")),
    )
    for write in writes:
        with pytest.raises(UsageError, match="sealed"):
            write()
    team.edit(lambda draft: draft["a"].update(draft["a"].to_dict()))
    log = hf._log
    merges = [Op("merge", (), log.blobs.spill(Op("set", "b", kept_raw(LARGE)), "team/red").value)]
    assert keep_seals(log.newest("team/red").root, merges, log.blobs.read) == merges
    items = [Op("merge", "items", kept_raw(b'{"a":1}'))]
    with pytest.raises(UsageError, match="cannot merge"):
        keep_seals(log.newest("team/red").root, items, log.blobs.read)
    assert kept.SECRET not in stored(hf)


def test_who_was_erased_is_refused_until_they_are_admitted_again(hf: Store) -> None:
    hf.team("red").set("mail", "x", subject="ada")
    for _ in range(2):
        hf.subjects.erase("ada")
        for write in writes(hf).values():
            with pytest.raises(ErasedError, match="readmit"):
                write()
        hf.subjects.readmit("ada")
        hf.team("red").set("mail", "y", subject="ada")


def test_a_key_that_is_made_during_an_erasure_is_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open("memory:", keys=keys) as hf:
        make = keys.make

        def late(name: str) -> Any:
            keys.destroy(told_as(keys, name))
            return make(name)

        monkeypatch.setattr(keys, "make", late)
        with pytest.raises(ErasedError):
            hf.team("red").set("mail", "x", subject="ada")
        assert keys.subjects() == []
        keys.destroy(readmission(keys, told_as(keys, "ada")))
        monkeypatch.undo()
        hf.team("red").set("mail", "x", subject="ada")


def test_a_key_that_was_found_is_left_to_the_erasure_that_is_under_way(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open("memory:", keys=keys) as hf:
        hf.team("red").set("mail", "x", subject="ada")
    keys.destroy(told_as(keys, "ada"))  # as if the erasure had been killed after its first note
    with holdfast.open("memory:", keys=keys) as hf, pytest.raises(ErasedError, match="readmit"):
        hf.team("red").set("mail", "x", subject="ada")
    assert [key.name for key in keys.subjects()] == ["ada"]


def test_a_key_that_somebody_makes_after_a_readmission_is_not_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer looks; the subject is erased, admitted again and written for; the writer goes on."""
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open("memory:", keys=keys) as hf:
        make = keys.make

        def late(name: str) -> Any:
            told = told_as(keys, name)
            for one in (told, readmission(keys, told)):
                keys.destroy(one)
            return make(name)

        monkeypatch.setattr(keys, "make", late)
        hf.team("red").set("mail", "x", subject="ada")
        assert hf.team("red").get("mail") == "x"


class Asked:
    """A key store that notes what it is asked."""

    def __init__(self, keys: FolderKeys) -> None:
        self._keys = keys
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._keys, name)


def test_a_key_store_is_asked_as_little_as_is_sound(tmp_path: Path) -> None:
    """Behind a command, each question is a process."""
    asked: Any = Asked(FolderKeys(tmp_path / "keys"))
    for expected in (
        ["find", "pseudonym", "is_erased", "make", "is_erased"],
        ["find", "pseudonym", "is_erased"],
    ):
        sealing = Sealing(lambda: asked)
        asked.calls.clear()
        sealing.named("ada")
        assert asked.calls == expected
        asked.calls.clear()
        sealing.named("ada")
        assert asked.calls == ["find"]


def test_the_reader_of_a_context_is_told_whose_data_is_read(hf: Store) -> None:
    told: list[str] = []
    team, own = kept.filled(hf), hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    first = own.set("n", 1)
    own.set("n", 2)
    token = READER.set(lambda sealing, subject: told.append(subject))
    try:
        reads = (
            lambda: team.get("s"),
            lambda: own.get("n"),
            lambda: own.at(first)["n"],
            lambda: own.at(own.revision)["n"],
            lambda: list(own.history()),
            lambda: hf._log.head(own.name, to_read=True),
            lambda: hf.view().get(own, "n"),
            lambda: hf.view().states([own]),
            lambda: hf.events(),
        )
        for number, read in enumerate(reads):
            told.clear()
            read()
            assert {*told} == {hf.subjects.get("ada").id}, number
        told.clear()
        team.get("items")
        hf.team("blue").set("n", 1)
        hf._log.head("team/blue", to_read=True)
        hf._log.tell_reader_of("team/blue")
        assert len(hf.events(actor="nobody", limit=1)) == 0
        with noted_reads() as subjects:
            own.get("n")
        assert subjects == {hf.subjects.get("ada").id}
        # What may not write, as an event loop, leaves it to `newest`.
        assert hf._log.peek(own.name) is None
        assert hf._log.peek("team/blue") is not None
        assert told == []
    finally:
        READER.reset(token)
    assert hf._log.peek(own.name) is not None
    hf._log.tell_reader_of(own.name)
    tell_reader(hf._log.sealing, "nobody is told")


def test_a_stream_of_a_layer_becomes_a_subjects(hf: Store) -> None:
    log, team = hf._log, hf.team("red")
    team.set("mail", "x", subject="ada")
    hf.team("layer").set("n", 1)
    id = hf.subjects.get("ada").id
    log.become("team/layer", id)
    assert log.subject_of("team/layer") == id
    hf.team("layer").set("n", kept.WORD)
    assert kept.SECRET not in stored(hf)
    assert log.sealing.becoming == {}
    hf.subjects.erase("ada")
    assert hf.team("layer").state == {}
    with pytest.raises(ErasedError):
        log.become("team/other", id)


def test_without_the_key_nothing_is_taken_for_the_same(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        hf.team("red").set("mail", kept.WORD, subject="ada")
    with holdfast.open(tmp_path / "s", keys=tmp_path / "others") as hf:
        with pytest.raises(KeyMissingError):
            hf.team("red").set("mail", "x")
        hf.team("red").delete("mail")
