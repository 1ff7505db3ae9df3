"""What is left in the stored bytes is said until it is gone, whoever was killed (0041, 0049)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings, Store
from holdfast.core.retention import Retainer
from tests.canaries import Canaries, fill
from tests.fixtures.make import unpack

KILLED = """
import os, signal, sys, holdfast
from holdfast.core import retention

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

retention._Run._purge = die
with holdfast.open(sys.argv[1]) as hf:
    if sys.argv[2] == "retain":
        hf.retention.run(grace_s=0)
    elif sys.argv[2] == "erase":
        hf.subjects.erase(scope="conversation/gone")
    else:
        hf.subjects.erase(match=sys.argv[3])
"""


def url_below(kind: str, place: Path) -> str:
    return str(place / "s") if kind == "files" else f"sqlite:{place / 's.db'}"


def places(hf: Store) -> list[str]:
    """Returns what a retain says is left, by its place."""
    return [one.where for one in hf.retention.run(grace_s=0).left]


@pytest.mark.parametrize("verb", ["retain", "erase", "match"])
@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_a_run_killed_before_it_purged_is_finished_by_the_next(
    kind: str, verb: str, tmp_path: Path
) -> None:
    """Raw bytes: of the segments and what lies beside them, of the database and its WAL."""
    canaries, url = Canaries(), url_below(kind, tmp_path)
    with holdfast.open(url) as hf:
        chat = hf.conversation("gone")
        if verb == "match":
            chat.set("note", f"{canaries.new('text')} and more")
        else:
            fill(hf, chat, canaries)
        if verb == "retain":
            chat.remove()
    if kind == "files":  # as recovery keeps what it cuts off
        (tmp_path / "s" / "torn").mkdir()
        (tmp_path / "s" / "torn" / "9").write_text(canaries.new("torn"))
    word = next(iter(canaries.fields))
    done = subprocess.run([sys.executable, "-c", KILLED, url, verb, word])
    assert done.returncode == -signal.SIGKILL
    with holdfast.open(url) as hf:
        assert canaries.found_below(tmp_path) != {}
        left = hf.retention.run(grace_s=0).left
        if kind == "files":
            assert left == []
        else:
            assert [one.where for one in left] == [str(tmp_path / "s.db")]
            assert canaries.found_below(tmp_path, besides=[tmp_path / "s.db"]) == {}
            assert hf.retention.run(grace_s=0, whole=True).left == []
        assert canaries.found_below(tmp_path) == {}
        assert hf.check().findings == []


def test_what_is_left_is_said_until_it_is_gone(hf: Store) -> None:
    """Of two calls the second says what the first has said; and no more once `whole` did it."""
    hf.conversation("gone").set("note", "pineapple")
    hf.conversation("gone").remove()
    assert hf.retention.run().left == []
    assert hf.retention.preview(grace_s=0).left == []
    left = places(hf)
    assert bool(left) == (hf.status()["kind"] in ("sqlite", "postgresql"))
    assert places(hf) == left
    assert [one.where for one in hf.retention.preview(grace_s=0).left] == left
    whole = [one.where for one in hf.retention.run(grace_s=0, whole=True).left]
    assert whole == [one for one in left if "write-ahead" in one]
    assert places(hf) == whole
    assert [one.where for one in hf.retention.preview().left] == whole
    told = hf._log.heads(["retention/log"])
    hf.retention.run(grace_s=0)
    assert hf._log.heads(["retention/log"]) == told  # what it said is said once
    hf.conversation("later").set("note", "pineapple")
    hf.conversation("later").remove()
    assert places(hf) == left


def test_a_dry_run_says_what_a_killed_run_left(hf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.conversation("gone").set("note", "pineapple")
    hf.conversation("gone").remove()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(type(hf._log._backend), "purge", die)
        with pytest.raises(KeyboardInterrupt):
            hf.retention.run(grace_s=0)
    left = hf.retention.preview(grace_s=0).left
    assert [one.remedy for one in left] == ["a run was ended before it purged them: retain"]
    assert hf.retention.run(grace_s=0).scopes == []
    assert [one.remedy for one in hf.retention.preview().left if "was ended" in one.remedy] == []


def outcomes(receipt: dict[str, Any]) -> set[str]:
    return {row[1] for row in receipt["scopes"]}


def test_bytes_of_a_blob_that_goes_later_are_purged_too(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that deletes it may let go of no event."""
    chat = hf.conversation("gone")
    chat.set("large", ["pineapple" * 8000])
    chat.remove()
    hf.retention.run(grace_s=0, whole=True)
    hf._log.blobs.put_back("ab" * 32, b"an orphan")
    hf.retention.run(grace_s=0, whole=True)
    [mark] = hf._log.find_marks(holdfast.core.retention.BLOBS)
    monkeypatch.setattr(hf._log.clock, "now_us", lambda: mark.due)
    before = places(hf)
    assert bool(before) == (hf.status()["kind"] in ("sqlite", "postgresql"))
    assert hf._log.blobs.names() == set()


@pytest.mark.parametrize("what", ["scope", "match", "subject"])
def test_a_receipt_that_is_pending_ends_with_the_physical_step(what: str, tmp_path: Path) -> None:
    """On SQLite: pages may hold copies until the database was written anew."""
    url, keys = url_below("sqlite", tmp_path), tmp_path / "keys"
    with holdfast.open(url, keys=keys, settings=Settings(clear_ids=True)) as hf:
        for name in ("one", "two"):
            subject = f"ada {name}" if what == "subject" else None
            hf.conversation(name, subject=subject).set("note", f"fruit {name} x")

        def erase(name: str) -> Any:
            if what == "scope":
                return hf.subjects.erase(scope=f"conversation/{name}")
            return (
                hf.subjects.erase(match=f"fruit {name}")
                if what == "match"
                else hf.subjects.erase(f"ada {name}")
            )

        receipt = erase("one")
        assert outcomes({"scopes": [[0, one.outcome] for one in receipt.scopes]}) == {"pending"}
        [stored] = hf.subjects.receipts()
        assert (outcomes(stored), len(stored["left"])) == ({"pending"}, 1)
        hf.retention.run(grace_s=0)
        assert hf.subjects.receipts() == [stored]
        hf.retention.run(grace_s=0, whole=True)
        [ended] = hf.subjects.receipts()
        done = "anonymised" if what == "match" else "deleted"
        assert (outcomes(ended), ended["left"]) == ({done}, [])
        erase("two")
        assert ended in hf.subjects.receipts()
        [later] = [one for one in hf.subjects.receipts() if one != ended]
        assert outcomes(later) == {"pending"}


def test_what_an_older_holdfast_left_is_known(tmp_path: Path) -> None:
    """Its events say what was left, and its receipts not which event that was."""
    url = unpack("sqlite-2-ends", "closed", tmp_path)
    with holdfast.open(url) as hf:
        assert len(places(hf)) == 1
        hf._kernel.part(Retainer).tell_erased(
            {"subject": "", "at": 1, "scopes": [["team/a", "pending", 1, 1, "1", ""]],
             "blobs": 0, "left": [["/elsewhere/store.db", "retain with whole=True"]]}
        )  # fmt: skip
        assert outcomes(hf.subjects.receipts()[-1]) == {"pending"}
        hf.retention.run(grace_s=0, whole=True)
        assert (outcomes(hf.subjects.receipts()[-1]), hf.subjects.receipts()[-1]["left"]) == (
            {"deleted"},
            [],
        )
