"""Whoever copies or checks needs no key of a subject: one lost key stops nothing (0045, 0067).

Every verb that takes a store somewhere else, or looks whether it is whole, is run with an empty
folder of keys, and again with keys that are out of reach. What none of them may do is to leave out
what is sealed, so each result is read with the keys afterwards.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.archive import archive
from holdfast.audit_export import export_audit, verify_export
from holdfast.backup import backup, drill, points, prune, restore
from holdfast.core.check import content_of
from holdfast.errors import UnavailableError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.keys import FolderKeys
from holdfast.retention import RetentionPolicy
from holdfast.transfer.copy import copy_log
from holdfast.transfer.salvage import salvage_log
from tests.audit_keys import write_keys
from tests.record.stores import DURABLE, new_url

LARGE = "x" * 100_000


class Shut(FolderKeys):
    """Keys that cannot be asked for; what was erased is still known."""

    def _refused(self, *_: object) -> NoReturn:
        raise UnavailableError("the keys are out of reach")

    make = find = get = has = subjects = pseudonym = _refused


@contextmanager
def opened(url: str | Path, keys: Any) -> Generator[Store]:
    with holdfast.open(url, keys=keys, settings=Settings(clear_ids=True)) as hf:
        yield hf


def fill(hf: Store) -> None:
    """Writes what a subject owns, and what is sealed beside what others have, small and large."""
    chat = hf.conversation("c", subject="ada")
    chat.set("large", LARGE, checkpoint="named")
    chat.say("hello")
    chat.tasks.add("task")
    chat.facts.state("fact", 1)
    fork = chat.fork("f")
    fork.set("n", 1)
    for n in range(3):
        team = hf.team("red")
        team.set("sealed", f"{LARGE}{n}", subject="ada")
        team.append("list", {"item": n}, subject="ada")
        team.set("plain", n, checkpoint=f"plain {n}")
    hf.conversation("gone", subject="ada").set("large", LARGE + "gone")
    hf.conversation("gone").remove()
    hf.conversation("old", subject="ada").set("n", 1)
    hf.conversation("old").say("hello")
    hf.conversation("old clear").set("n", 1)


def read_again(hf: Store) -> None:
    assert hf.conversation("c").get("large") == LARGE
    assert hf.conversation("c").at("named").get("large") == LARGE
    assert [one.content for one in hf.conversation("c").messages] == ["hello"]
    assert hf.conversation("f").get("n") == 1
    assert hf.team("red").get("sealed") == f"{LARGE}2"
    assert hf.team("red").get("list").to_list() == [{"item": n} for n in range(3)]
    assert hf.check().ok


class Place:
    """A store without its keys, and the places of what is made of it."""

    def __init__(self, hf: Store, keys: Any, path: Path, backend: str) -> None:
        self.hf, self.keys, self.path, self.backend = hf, keys, path, backend
        self.made: list[str] = []

    def new(self) -> str:
        self.made.append(new_url(self.backend, self.path))
        return self.made[-1]


def backing_up(at: Place) -> None:
    for _ in range(2):
        point = backup(at.hf, at.path / "backup")
    assert (point.name, point.damaged) == ("p2", {})
    assert drill(at.path / "backup").digest == point.digest
    assert len(points(at.path / "backup")) == 2
    prune(at.path / "backup")
    with opened(at.new(), at.keys) as target:
        assert restore(at.path / "backup", target).digest == point.digest
    with opened(at.path / "one scope", at.keys) as target:
        restore(at.path / "backup", target, scope="conversation/f")
        assert target.check().ok


def copying(at: Place) -> None:
    with opened(at.new(), at.keys) as target:
        copy_log(at.hf._log, target._log)
        assert content_of(target._log) == content_of(at.hf._log)


def salvaging(at: Place) -> None:
    with opened(at.new(), at.keys) as target:
        assert salvage_log(at.hf._log, target._log).ok
        assert content_of(target._log) == content_of(at.hf._log)


def exporting(at: Place) -> None:
    file = io.BytesIO()
    assert export_scopes(at.hf, (), file).blobs == 5
    (at.path / "export").write_bytes(file.getvalue())
    with opened(at.new(), at.keys) as target:
        import_scopes(target, at.path / "export")
        assert content_of(target._log) == content_of(at.hf._log)


def archiving(at: Place) -> None:
    """The scope whose key is lost is copied; its removal would be a sealed event, so it stays."""
    with opened(at.path / "archive", at.keys) as target:
        if isinstance(at.keys, Shut):
            with pytest.raises(UnavailableError, match="out of reach"):
                archive(at.hf, target, "conversation/old*", older_than=1e-6)
            return
        done = archive(at.hf, target, "conversation/old*", older_than=1e-6)
        assert [one.scope for one in done.scopes] == ["conversation/old clear"]
        assert [*done.refused] == ["conversation/old"]
        assert "the key of subject" in done.refused["conversation/old"]
        assert target.check().ok
    with opened(at.path / "archive", at.path / "keys") as target:
        assert target.conversation("old")["n"] == 1


def letting_go(at: Place) -> None:
    planned = at.hf.retention.preview(grace_s=0)
    done = at.hf.retention.run(grace_s=0)
    assert [one.scope for one in done.scopes] == ["conversation/gone"]
    assert [one.scope for one in planned.scopes] == ["conversation/gone"]
    at.hf.retention.run(grace_s=0, whole=True)


def compacting(at: Place) -> None:
    """A base of what is sealed as a whole needs its key; of single sealed values it needs none."""
    policies = [RetentionPolicy("team/*", types=["state"], count=1)]
    done = at.hf.retention.run(policies=policies, grace_s=0)
    assert {(one.scope, one.why) for one in done.scopes} >= {("team/red", "compacted")}
    if not isinstance(at.keys, Shut):  # whether a task is in progress is sealed with it
        policies = [RetentionPolicy("conversation/*", types=["messages"], older_than=1e-6)]
        planned = at.hf.retention.preview(policies=policies, grace_s=0)
        assert "the key of subject" in planned.refused["conversation/old"]


def auditing(at: Place) -> None:
    write_keys(at.path, "mine")
    export_audit(at.hf, at.path / "1", sign=at.path / "mine.pem")
    export_audit(at.hf, at.path / "2", sign=at.path / "mine.pem", after=at.path / "1")
    assert verify_export(at.hf, at.path / "2", earlier=[at.path / "1"])[1] == []


def checking(at: Place) -> None:
    assert at.hf.check().ok
    assert at.hf.check(read_all=True).ok
    assert at.hf.status()["digest"] == content_of(at.hf._log).digest


VERBS: list[Callable[[Place], None]] = [
    *(backing_up, copying, salvaging, exporting),
    *(letting_go, compacting, auditing, checking, archiving),
]


@pytest.mark.parametrize("keys", ["lost", "shut"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_key_is_needed(verb: Callable[[Place], None], keys: str, tmp_path: Path) -> None:
    without = tmp_path / "none" if keys == "lost" else Shut(tmp_path / "keys")
    run("files", [verb], without, tmp_path)


@pytest.mark.parametrize("backend", DURABLE[1:])
def test_no_key_is_needed_by_any_backend(backend: str, tmp_path: Path) -> None:
    run(backend, VERBS, tmp_path / "none", tmp_path)


def run(backend: str, verbs: list[Callable[[Place], None]], without: Any, place: Path) -> None:
    url = new_url(backend, place)
    with opened(url, place / "keys") as hf:
        fill(hf)
    with opened(url, without) as hf:
        at = Place(hf, without, place, backend)
        for verb in verbs:
            verb(at)
            assert hf.check().ok
    for one in (url, *at.made):
        with opened(one, place / "keys") as hf:
            read_again(hf)


def test_a_policy_names_the_scope_whose_key_is_lost_and_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path / "s", tmp_path / "keys") as hf:
        for n in range(3):
            hf.conversation("a", subject="ada").set("n", n)
            hf.conversation("b").set("n", n)
    policies = [RetentionPolicy("conversation/*", types=["state"], count=1)]
    with opened(tmp_path / "s", tmp_path / "none") as hf:
        done = hf.retention.run(policies=policies, grace_s=0)
        assert [one.scope for one in done.scopes] == ["conversation/b"]
        assert "the key of subject" in done.refused["conversation/a"]
    policies = [RetentionPolicy("conversation/*", older_than=1e-6)]
    with opened(tmp_path / "s", tmp_path / "none") as hf:
        done = hf.retention.run(policies=policies, grace_s=0)
        assert [one.scope for one in done.binned] == ["conversation/b"]
        assert "the key of subject" in done.refused["conversation/a"]
    with opened(tmp_path / "s", tmp_path / "keys") as hf:
        assert hf.conversation("a")["n"] == 2
