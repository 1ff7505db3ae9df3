"""Who was erased stays erased: a writer who goes on is refused, and coming back is an explicit act.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ERASED, Store, aio
from holdfast.backends.protocol import Mark
from holdfast.core.commit import ProposedCommit
from holdfast.core.sealing import ERASING, readmission
from holdfast.erasure import Erasure
from holdfast.errors import ErasedError, NotFoundError, UsageError
from holdfast.keys import FolderKeys, TableKeys
from tests.record.stores import new_url


@holdfast.run(name="readmission.says")
def says(ctx: Any, what: str) -> str:
    return what


def writes(hf: Store) -> dict[str, Callable[[], object]]:
    """Returns every way to write in a subject's name."""
    team = hf.team("red")

    def joint() -> None:
        with hf.commit() as tx:
            tx.scope(team).set("joint", 1, subject="ada")

    return {
        "set": lambda: team.set("mail", "again", subject="ada"),
        "update": lambda: team.update({"mail": "again"}, subject="ada"),
        "append": lambda: team.append("list", "again", subject="ada"),
        "message": lambda: team.messages.add("user", "again", subject="ada"),
        "fact": lambda: team.facts.state("place", "again", subject="ada"),
        "event": lambda: team.record("met", {"who": 1}, unchecked=True, subject="ada"),
        "joint": joint,
        "scope": lambda: hf.conversation(hf.subjects.pseudonym("new"), subject="ada").set("n", 1),
        "run": lambda: hf.runs.start(says, "again", subject="ada"),
    }


def test_a_writer_who_goes_on_is_refused_until_the_subject_is_admitted_again(
    url: str, tmp_path: Path
) -> None:
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        hf.team("red").set("mail", "ada@x.org", subject="ada")
        hf.team("red").set("bob", "bob@x.org", subject="bob")
        for _ in range(3):  # who was admitted again can be erased again
            erased = hf.subjects.get("ada").id
            hf.subjects.erase("ada")
            for name, write in writes(hf).items():
                with pytest.raises(ErasedError, match="readmit"):
                    write()
                assert hf.team("red").get("mail") is ERASED, name
            with pytest.raises(NotFoundError):
                hf.subjects.get("ada")
            with pytest.raises(NotFoundError):
                hf.subjects.erase("ada")
            assert [one.name for one in hf.subjects.list()] == ["bob"]
            hf.subjects.readmit("ada")
            hf.team("red").set("mail", "new@x.org", subject="ada")
            assert hf.team("red").get("mail") == "new@x.org"
            assert hf.subjects.get("ada").id != erased
        with pytest.raises(NotFoundError, match="no subject"):
            hf.subjects.readmit("bob")
        with pytest.raises(NotFoundError, match="no subject"):
            hf.subjects.readmit("ada")
        assert hf.check().findings == []


WRITER = """
import sys, holdfast
from holdfast.errors import ErasedError
with holdfast.open(sys.argv[1], keys=sys.argv[2]) as hf:
    hf.team("red").append("list", 1, subject="ada")
    print("wrote", flush=True)
    sys.stdin.readline()
    try:
        hf.team("red").append("list", 1, subject="ada")
    except ErasedError:
        print("refused", flush=True)
    else:
        print("went on", flush=True)
"""


def test_other_processes_are_refused_too(durable: str, tmp_path: Path) -> None:
    url, keys = new_url(durable, tmp_path), tmp_path / "keys"
    command = [sys.executable, "-c", WRITER, url, str(keys)]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with holdfast.open(url, keys=keys) as hf:
        writers = [start(), start()]
        for one in writers:
            assert one.stdout is not None
            assert one.stdout.readline() == "wrote\n"
        hf.subjects.erase("ada")
        assert [one.communicate("\n")[0] for one in writers] == ["refused\n", "refused\n"]
        late = start()
        assert "wrote" not in late.communicate("\n")[0]
        assert list(hf.subjects.list()) == []


def test_other_stores_with_the_same_keys_are_refused_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with holdfast.open(tmp_path / "a", keys=keys) as a, holdfast.open("memory:", keys=keys) as b:
        for one in (a, b):
            one.team("red").set("mail", "x", subject="ada")
        a.subjects.erase("ada")
        with pytest.raises(ErasedError):
            b.team("red").set("mail", "y", subject="ada")
    with holdfast.open(tmp_path / "c", keys=tmp_path / "other keys") as c:
        c.team("red").set("mail", "x", subject="ada")  # other keys, other people


@pytest.mark.parametrize("kind", ["folder", "tables"])
def test_a_key_that_is_made_during_the_erasure_goes_too(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer looks, the erasure ends, and the writer makes a key under the free name."""
    place = tmp_path / "keys"
    keys: Any = FolderKeys(place) if kind == "folder" else TableKeys(f"sqlite:{place}")
    with holdfast.open(tmp_path / "s", keys=keys) as hf:
        hf.team("red").set("mail", "x", subject="ada")
        with holdfast.open("memory:", keys=keys) as late:
            sound = keys.make

            def make(name: str) -> Any:
                monkeypatch.setattr(keys, "make", sound)
                hf.team("red").set("mail", "x", subject="ada")
                hf.subjects.erase("ada")
                return sound(name)

            hf.subjects.erase("ada")
            hf.subjects.readmit("ada")
            monkeypatch.setattr(keys, "make", make)
            with pytest.raises(ErasedError):
                late.team("blue").set("mail", "y", subject="ada")
        assert keys.subjects() == []


def test_an_erasure_that_is_not_finished_admits_nobody(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        hf.team("red").set("mail", "x", subject="ada")
        told = hf.subjects.pseudonym("erased ada")
        hf._kernel.part(Erasure)._begin(hf.subjects.get("ada").id, told)
        with pytest.raises(UsageError, match="not finished"):
            hf.subjects.readmit("ada")
        assert len(hf.subjects.finish()) == 1
        with pytest.raises(ErasedError):
            hf.team("red").set("mail", "y", subject="ada")
        hf.subjects.readmit("ada")


def test_an_old_erasure_that_is_finished_leaves_who_came_back(tmp_path: Path) -> None:
    """Held in one store, erased and admitted again in another: the first note still counts."""
    keys = tmp_path / "keys"
    with holdfast.open(tmp_path / "a", keys=keys) as a, holdfast.open("memory:", keys=keys) as b:
        a.team("red").set("mail", "x", subject="ada")
        a.retention.hold("team/red", "court")
        a.subjects.erase("ada")
        b.team("old").set("mail", "x", subject="ada")
        b.subjects.erase("ada")
        b.subjects.readmit("ada")
        b.team("new").set("mail", "new", subject="ada")
        a.retention.unhold("team/red")
        assert len(a.subjects.finish()) == 1
        assert a.subjects.finish() == []
        with holdfast.open("memory:", keys=keys) as fresh:
            fresh.team("red").set("mail", "y", subject="ada")
        assert b.team("new").get("mail") == "new"
        with pytest.raises(NotFoundError, match="no subject"):
            b.subjects.readmit("ada")
        b.subjects.erase("ada")
        assert b.team("new").get("mail") is ERASED


class CutOff(BaseException):
    """Ends a call as a kill would."""


def test_nobody_is_admitted_while_the_old_key_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the note and the key: new data would be sealed with a key that goes."""
    place = tmp_path / "keys"
    with holdfast.open(tmp_path / "a", keys=place) as a, holdfast.open("memory:", keys=place) as b:
        for one in (a, b):
            one.team("red").set("mail", "x", subject="ada")
        id, sound = a.subjects.get("ada").id, FolderKeys.destroy

        def destroy(self: FolderKeys, what: str) -> None:
            if what == id:
                raise CutOff
            sound(self, what)

        with monkeypatch.context() as broken:
            broken.setattr(FolderKeys, "destroy", destroy)
            with pytest.raises(CutOff):
                a.subjects.erase("ada")
        for one in (a, b):
            with pytest.raises(UsageError, match="not finished"):
                one.subjects.readmit("ada")
        b.subjects.erase("ada")  # whoever has data of theirs can do it too
        b.subjects.readmit("ada")
        b.team("new").set("mail", "new", subject="ada")
        with pytest.raises(UsageError, match="not finished"):
            a.subjects.readmit("ada")
        assert len(a.subjects.finish()) == 1
        with holdfast.open("memory:", keys=place) as fresh:
            fresh.team("red").set("mail", "y", subject="ada")
        assert b.team("new").get("mail") == "new"


def test_a_key_that_a_killed_writer_made_too_late_can_be_erased(tmp_path: Path) -> None:
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open("memory:", keys=keys) as hf:
        hf.team("red").set("mail", "x", subject="ada")
        hf.subjects.erase("ada")
        keys.make("ada")
        with pytest.raises(UsageError, match=r"subjects.erase\(name\)"):
            hf.subjects.readmit("ada")
        assert hf.subjects.erase("ada").scopes == []
        hf.subjects.readmit("ada")
        hf.team("red").set("mail", "y", subject="ada")


@pytest.mark.parametrize("is_erased", [False, True])
def test_a_mark_of_an_older_holdfast_is_finished(tmp_path: Path, is_erased: bool) -> None:
    """It names the digest of the name, and not which id of the chain is noted."""
    keys = FolderKeys(tmp_path / "keys")
    with holdfast.open(tmp_path / "s", keys=keys) as hf:
        hf.team("red").set("mail", "x", subject="ada")
        id, told = hf.subjects.get("ada").id, hf.subjects.pseudonym("erased ada")
        hf._kernel.part(Erasure)._begin(id, told)
        hf._log.commit(ProposedCommit((), marks=(Mark(ERASING, id, group=told),)))
        if is_erased:  # elsewhere, and they came back
            for one in (told, id, readmission(keys, told)):
                keys.destroy(one)
        assert [one.subject for one in hf.subjects.finish()] == [id]
        if is_erased:
            hf.team("red").set("mail", "y", subject="ada")
        else:
            with pytest.raises(ErasedError, match="readmit"):
                hf.team("red").set("mail", "y", subject="ada")


def test_asyncio_admits_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
            await hf.team("red").set("mail", "x", subject="ada")
            await hf.subjects.erase("ada")
            with pytest.raises(ErasedError):
                await hf.team("red").set("mail", "y", subject="ada")
            await hf.subjects.readmit("ada")
            await hf.team("red").set("mail", "y", subject="ada")

    asyncio.run(main())
