"""Names in the marks of a subject's scope: sealed, found again, and shown to who has the key."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.backends.protocol import Mark
from holdfast.core import sealed_marks
from holdfast.core.layers import layers, named_indexes
from holdfast.errors import CorruptError, KeyMissingError, UsageError
from holdfast.record.context import RecordContext
from holdfast.record.decisions import Decisions
from holdfast.scope import Scope

NAME = "ada's illness"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def opened(tmp_path: Path, keys: Path) -> Store:
    return holdfast.open(tmp_path / "store", keys=keys, settings=Settings(clear_ids=True))


def named(scope: Scope) -> None:
    """Gives a fact, tasks, a decision and an order a name that people chose."""
    scope.facts.state(NAME, 1)
    scope.tasks.add("one", id=NAME)
    scope.tasks.claim(scope.tasks.add("two", id=f"{NAME} 2").id)
    scope.decide("what?", key=NAME)
    scope.decide("always", key=f"{NAME} 2", standing=True)


def raw(hf: Store, group: str = "team/red") -> list[Mark]:
    """Returns the marks of items as they are stored."""
    found = hf._log.find_marks(group=group)
    return [mark for mark in found if mark.index in named_indexes()]


def found(hf: Store) -> list[object]:
    """Returns what is found by marks."""
    scope = hf.scope("team/red")
    return [
        [one.name for one in scope.facts.list()],
        [(one.id, one.status) for one in hf.tasks.list()],
        [one.key for one in hf.decisions.list(incomplete=True)],
        [one.key for one in Decisions(hf._kernel.part(RecordContext)).standing(["team/red"])],
    ]


def in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has names go into marks as they did before they were sealed."""
    monkeypatch.setattr(sealed_marks, "closed", lambda seal, stream, marks, find: marks)


def test_names_are_sealed_in_marks_and_items_found_by_them(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        red = hf.team("red", subject="ada")
        named(red)
        before = found(hf)
        assert NAME not in repr(raw(hf))
        assert len(raw(hf)) == 6
        assert all(mark.key.partition(":")[2].startswith("sealed:") for mark in raw(hf))
        shown = [mark.key for mark in hf.workers.marks(limit=None) if mark.group == "team/red"]
        assert sum(NAME in key for key in shown) == 6
    with opened(tmp_path, keys) as hf:
        assert found(hf) == before
        assert before[0] == [NAME]
        assert hf.scope("team/red").facts.get(NAME).value == 1
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or NAME.encode() not in path.read_bytes()


def test_what_ends_clears_its_mark(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        red = hf.team("red", subject="ada")
        red.facts.state(NAME, 1)
        red.facts.state(NAME, 2)
        assert len(raw(hf)) == 1
        red.facts.withdraw(NAME)
        assert [mark.index for mark in raw(hf)] == ["fact.kept"]
        task = red.tasks.add("one", id=NAME)
        red.tasks.claim(task.id)
        assert len(raw(hf)) == 3
        red.tasks.close(task.id, "done")
        older = red.decide("always", key=NAME, standing=True)
        newer = red.decide("never", key=f"{NAME} 2", standing=True, supersedes=older.id)
        assert [mark.index for mark in raw(hf)] == ["fact.kept", "order"]
        blue = hf.team("blue", subject="ada")
        blue.decide("elsewhere", key=NAME, standing=True, supersedes=newer.id)
        assert [mark.index for mark in raw(hf, "team/blue")] == ["order"]
        assert [mark.index for mark in raw(hf)] == ["fact.kept"]
        hf.team("red").remove()
        assert raw(hf) == []


def test_a_joint_commit_seals_names_too(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        red, blue = hf.team("red", subject="ada"), hf.team("blue")
        with hf.commit() as tx:
            tx.scope(red).facts.state(NAME, 1)
            tx.scope(red).tasks.add("one", id=NAME)
            assert [one.name for one in tx.scope(red).facts.list()] == [NAME]
            tx.scope(blue).facts.state("open", 1)
        assert NAME not in repr(raw(hf))
        assert len(raw(hf)) == 2
        assert [mark.key.partition(":")[2] for mark in raw(hf, "team/blue")] == ["open"]
        assert found(hf)[:2] == [[NAME], [(NAME, "open")]]


def test_marks_from_before_are_read_and_replaced_by_the_next_write(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before, opened(tmp_path, keys) as hf:
        in_clear(before)
        named(hf.team("red", subject="ada"))
        assert repr(raw(hf)).count(NAME) == 6
        was = found(hf)
    with opened(tmp_path, keys) as hf:
        red = hf.scope("team/red")
        assert found(hf) == was
        red.facts.state(NAME, 2)
        red.tasks.claim(NAME)
        red.tasks.close(f"{NAME} 2", "done")
        assert [one.name for one in red.facts.list()] == [NAME]
        assert [(one.id, one.status) for one in hf.tasks.list()] == [(NAME, "in_progress")]
        left = {(mark.index, mark.key[17:]) for mark in raw(hf) if NAME in mark.key}
        assert left == {("decision", NAME), ("order", f"{NAME} 2"), ("task", NAME)}
        red.tasks.close(NAME, "done")
        for decision in hf.decisions.list(incomplete=True):
            hf.decisions.close(decision.id, "done")
        red.remove()
        assert raw(hf) == []


def test_a_name_that_only_looks_sealed_is_as_it_is(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        red = hf.team("red")
        red.facts.state("sealed:abc", 1)
        assert [one.name for one in red.facts.list()] == ["sealed:abc"]
        assert any(mark.key.endswith(":sealed:abc") for mark in hf.workers.marks(limit=None))


def test_a_name_that_is_too_long_is_refused_and_nothing_is_written(
    tmp_path: Path, keys: Path
) -> None:
    with opened(tmp_path, keys) as hf:
        red = hf.team("red", subject="ada")
        red.facts.state("n" * 340, 1)
        revision = red.revision
        with pytest.raises(UsageError, match="takes 400 bytes: in a subject's scope it is sealed"):
            red.facts.state("n" * 400, 1)
        assert red.revision == revision
        hf.team("blue").facts.state("n" * 400, 1)


def test_after_the_erasure_no_mark_is_left_and_none_opens(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        red = hf.team("red", subject="ada")
        red.facts.state(NAME, 1)
        [mark] = raw(hf)
        hf.subjects.erase("ada")
        assert raw(hf) == []
        assert hf._log.opened_mark(mark) == mark


def test_without_the_key_and_with_another_it_is_an_error(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys) as hf:
        hf.team("red", subject="ada").facts.state(NAME, 1)
        [mark] = raw(hf)
        for wrong in ("sealed:AAAA", "sealed:a"):
            changed = Mark("fact", f"{mark.key.partition(':')[0]}:{wrong}", group=mark.group)
            with pytest.raises(CorruptError):
                hf._log.opened_mark(changed)
    with holdfast.open(tmp_path / "store", keys=tmp_path / "other") as hf:
        with pytest.raises(KeyMissingError):
            hf.workers.marks()
        assert hf.check().ok


def test_every_index_says_whether_its_marks_have_names() -> None:
    """Names that people chose are in these; the rest has streams, blobs, workers, own marks."""
    indexes = {index for layer in layers() for index in layer.indexes}
    assert indexes - named_indexes() == {
        *("subject.erasing", "subject.beside", "scope.expires", "scope.removed", "scope.level"),
        *("retention.hold", "retention.pending", "retention.blob", "retention.collected"),
        *("retention.shortening", "retention.erasing", "retention.unpurged", "mark.ends"),
        *("run", "run.due", "session", "state.ends", "turn"),
    }
    for layer in layers():
        assert {*layer.named} <= {*layer.indexes}
