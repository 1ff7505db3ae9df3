"""A text is taken out of a store, from data that was never sealed for anybody.

BOOT-32: a person can be forgotten.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backup import backup, restore
from holdfast.copy import copy
from holdfast.core import cutting, retention
from holdfast.core.matching import Match
from holdfast.errors import CorruptError, UsageError
from holdfast.interchange import export_scopes, import_scopes
from holdfast.scope import Scope
from tests.opening import settled
from tests.record.stores import new_url
from tests.record.test_subjects import on_disk, stored

WORD = "Ada Löwe-7f3a"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def hf(url: str, keys: Path) -> Iterator[Store]:
    with holdfast.open(url, keys=keys) as store:
        yield store


@holdfast.step(effect="pure")
def greet(who: str) -> str:
    return f"hello {who}"


@holdfast.run(name="erasing.greets")
def greets(ctx: Any, who: str) -> str:
    ctx.state.set("who", who)
    return greet(who)


@holdfast.run(name="erasing.waits")
def waits(ctx: Any, who: str) -> str:
    return ctx.signal(who)


def lived(hf: Store) -> Scope:
    """Returns a scope with the text in every kind of field that people fill."""
    chat = hf.conversation("c1")
    early = chat.set("name", {"deep": [WORD, 1], "kept": "stays"}, checkpoint="early")
    chat.set(("people", WORD), {"n": 1})
    chat.set(("people", WORD, "m"), 2)
    chat.set("raw", f"x {WORD}".encode())
    chat.set("large", {"text": f"{WORD} " * 9000, "other": "stays"})
    for number in range(3):
        chat.append("list", f"{WORD} {number} {'x' * 100}")
    chat.say(f"{WORD} hello, and the rest")
    chat.say("nothing of it")
    chat.messages.add("tool", f"{WORD} result", tool_call_id="call")
    chat.facts.state("place", f"at {WORD}", about="p")
    task = chat.tasks.add(f"call {WORD}")
    chat.tasks.claim(task.id)
    chat.tasks.close(task.id, f"called {WORD}")
    with chat.decide(f"call {WORD}?", because="it rang") as decision:
        decision.outcome(f"{WORD} was called")
    chat.record("met", {"who": WORD, "n": 7}, unchecked=True)
    chat.checkpoint("named")
    chat.restore(early)
    chat.fork("c2").set("forked", WORD)
    hf.conversation("c3").set("name", "somebody else")
    assert hf.runs.start(greets, WORD, id="r1").result() == f"hello {WORD}"
    return chat


def read(hf: Store) -> str:
    """Returns what readers see of everything."""
    seen: list[object] = []
    for name in ("c1", "c2", "c3"):
        chat = hf.conversation(name)
        seen += [chat.state.to_dict(), [one.content for one in chat.messages.last(50)]]
        seen += [[(one.title, one.status) for one in chat.tasks.list()]]
        seen += [[one.value for one in chat.facts.list()]]
        seen += [event.data for event in chat.history() if not event.is_let_go]
        seen += [chat.at(revision).to_dict() for revision in range(1, chat.revision + 1)]
    seen += [repr(list(hf.decisions.list(scope="conversation/c1")))]
    seen += [hf.runs.get("r1").result()]
    return repr(seen)


def test_a_text_goes_from_every_kind_of_field_and_the_rest_stays(
    hf: Store, url: str, tmp_path: Path, keys: Path
) -> None:
    chat = lived(hf)
    snapshots = hf._log.snapshots
    snapshots._write(chat.name, hf._log.newest(chat.name), snapshots._begin("x"))
    assert WORD in read(hf)
    list(hf.query(text="hello"))
    before = hf.check()
    receipt = hf.subjects.erase(match=WORD)
    outcomes = {one.scope: one.outcome for one in receipt.scopes}
    is_left = "pending" if receipt.left else "anonymised"
    assert outcomes == dict.fromkeys(
        ("conversation/c1", "conversation/c2", "run/r1", "workflow/r1"), is_left
    ) | {one: two for one, two in outcomes.items() if two == "exempt"}
    assert receipt.events >= 18
    assert any("guess" in text for text in receipt.beyond)
    for _ in range(2):
        seen = read(hf)
        assert WORD not in seen
        assert "[erased] hello, and the rest" in seen
        assert "nothing of it" in seen
        assert "somebody else" in seen
        assert chat.get(("name", "kept")) == "stays"
        assert chat.at("named")["people"]["[erased]"] == {"n": 1, "m": 2}
        assert hf.runs.get("r1").result() == "hello [erased]"
        assert WORD.encode() not in stored(hf)
        report = hf.check()
        assert report.findings == []
        assert report.events > before.events
        hf._log.folds.trim()
    assert list(hf.query(text="Löwe")) == []
    if url.startswith(("/", "redis")):
        assert WORD.encode() not in on_disk(url, tmp_path, tmp_path / "none")
    assert hf.subjects.erase(match=WORD).events == 0
    assert WORD not in repr(hf.subjects.receipts())
    assert len(hf.subjects.receipts()) == 2


def test_a_dry_run_says_the_same_and_changes_nothing(hf: Store) -> None:
    lived(hf)
    before, position = stored(hf), hf._log.position()
    planned = hf.subjects.erase(match=WORD, dry_run=True)
    assert planned.is_dry_run
    assert (stored(hf), hf._log.position()) == (before, position)
    done = hf.subjects.erase(match=WORD)
    rows = {(one.scope, one.revisions) for one in planned.scopes}
    assert rows == {(one.scope, one.revisions) for one in done.scopes}
    assert hf.subjects.receipts()[0]["position"] == done.position > position


def test_what_cannot_be_rewritten_is_named_with_the_reason(hf: Store) -> None:
    hf.conversation(WORD).set("n", 1)
    chat = hf.conversation("c1")
    chat.set("n", f"{WORD}!", key=f"k {WORD}", checkpoint=f"at {WORD}")
    receipt = hf.subjects.erase(match=WORD)
    kept = {one.reason.split(" is ")[0]: one.scope for one in receipt.scopes if one.reason}
    assert kept["an idempotency key"] == kept["the name of a checkpoint"] == "conversation/c1"
    assert chat.get("n") == "[erased]!"
    assert hf.conversation(WORD).get("n") == 1
    assert chat.set("n", f"{WORD}!", key=f"k {WORD}") == 1  # still known as done


def test_case_forms_and_one_scope_alone(hf: Store) -> None:
    one, other = hf.conversation("c1"), hf.conversation("c2")
    for chat in (one, other):
        chat.set("a", "LÖWE x lo\u0308we y Löwe")
        chat.set("escaped", 'say "Löwe"\n\tand \\Löwe')
    assert hf.subjects.erase(match="löwe", dry_run=True).events == 2  # NFD, in lower case
    hf.subjects.erase(match="löwe", scope=one, ignore_case=True)
    assert one.state.to_dict() == {"a": "*** x *** y ***", "escaped": 'say "***"\n\tand \\***'}
    assert other.get("a") == "LÖWE x lo\u0308we y Löwe"
    one.set("phone", 5550199)
    one.set("other", 55501990)
    hf.subjects.erase(match="5550199")
    assert (one.get("phone"), one.get("other")) == (0, 55501990)
    assert hf.check().findings == []


def test_bad_input_erases_nothing_and_is_not_repeated(hf: Store) -> None:
    hf.conversation("c1").set("n", "xy")
    for bad, said in (("xy", "3 to"), ("  x  ", "3 to"), (7, "is a text"), ("set", "itself")):
        with pytest.raises(UsageError, match=said) as caught:
            hf.subjects.erase(match=bad)  # type: ignore[arg-type]
        assert repr(bad) not in str(caught.value)
    with pytest.raises(UsageError, match="or a text"):
        hf.subjects.erase("ada", match=WORD)
    with pytest.raises(UsageError, match="for a match"):
        hf.subjects.erase(scope="conversation/c1", dry_run=True)
    assert repr(Match(WORD)) == "<Match>"


def test_an_unfinished_run_keeps_the_text(hf: Store) -> None:
    chat = hf.conversation("c1")
    chat.set("n", WORD)
    hf.runs.start(waits, WORD, id="r1")
    with pytest.raises(UsageError, match='run "r1"') as caught:
        hf.subjects.erase(match=WORD)
    assert WORD not in str(caught.value)
    assert chat.get("n") == WORD
    assert chat.revision == 1


def test_a_hold_exempts_its_scope_and_what_that_began_from(hf: Store) -> None:
    """Of a text; erased again after the hold, it is gone there too (BOOT-93)."""
    for name in ("c1", "c2", "c3"):
        hf.conversation(name).set("n", [WORD, name])
    hf.conversation("c3").set("large", [WORD * 9000])
    hf.conversation("c2").fork("f")
    hf.retention.hold("conversation/c1", "case 7")
    hf.retention.hold("conversation/f")
    names = ("c1", "c2", "f")
    before = [hf.conversation(name).state.to_dict() for name in names]
    for is_dry in (True, False):
        receipt = hf.subjects.erase(match=WORD, dry_run=is_dry)
        rows = {one.scope: (one.outcome, one.reason) for one in receipt.scopes}
        assert rows.pop("conversation/c1") == ("exempt", "held: case 7")
        assert rows.pop("conversation/c2") == (
            "exempt",
            '"conversation/f" is a fork of it, and held',
        )
        [(scope, (outcome, reason))] = rows.items()
        assert (scope, outcome in ("anonymised", "pending"), reason) == (
            "conversation/c3",
            True,
            "",
        )
    assert [hf.conversation(name).state.to_dict() for name in names] == before
    assert hf.conversation("c3").get("n") == ["[erased]", "c3"]
    assert hf.check().findings == []
    hf.retention.unhold("conversation/c1")
    hf.retention.unhold("conversation/f")
    again = hf.subjects.erase(match=WORD)
    assert {one.scope for one in again.scopes} == {"conversation/c1", "conversation/c2"}
    assert {one.outcome for one in again.scopes} <= {"anonymised", "pending"}
    assert hf.conversation("f").get("n") == ["[erased]", "c2"]
    assert WORD.encode() not in stored(hf)
    assert hf.check().findings == []


def test_keys_that_would_be_one_are_refused_by_name(hf: Store) -> None:
    chat = hf.conversation("c1")
    chat.set(("of", "ADA LOWE 1"), {"n": 1})
    chat.set(("of", "ada lowe 1"), 7)
    chat.set(("of", "ADA LOWE 1", "m"), 2)
    before = stored(hf)
    with pytest.raises(UsageError, match='state of scope "conversation/c1"'):
        hf.subjects.erase(match="ada lowe", ignore_case=True)
    assert stored(hf) == before


@pytest.mark.parametrize("step", ["_tell_shorter", "_note", "shorten", "_collect_blobs", "_purge"])
def test_one_that_ends_anywhere_is_finished_without_the_text(
    hf: Store, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = lived(hf)

    def broken(*_: object, **__: object) -> None:
        raise CorruptError("the process is gone")

    with monkeypatch.context() as patched:
        if step == "shorten":
            patched.setattr(hf._log._backend, step, broken)
        else:
            patched.setattr(retention._Run, step, broken)
        with pytest.raises(CorruptError):
            hf.subjects.erase(match=WORD)
    assert chat.get(("name", "kept")) == "stays"
    assert hf.check().findings == []
    done = hf.subjects.finish()
    if step == "_tell_shorter":  # nothing was told yet: only who has the text can go on
        assert done == []
        hf.subjects.erase(match=WORD)
    assert WORD not in read(hf)
    assert WORD.encode() not in stored(hf)
    assert hf.check().findings == []
    assert hf.subjects.finish() == []


def test_an_older_backup_copy_or_export_does_not_bring_it_back(
    durable: str, tmp_path: Path, keys: Path
) -> None:
    """Neither a text that was cut out, nor a scope that was erased, nor a subject."""
    with holdfast.open(new_url(durable, tmp_path), keys=keys) as hf:
        lived(hf)
        hf.conversation("old").set("all", f"of {WORD} goes")
        mine = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
        mine.set("n", WORD)
        backup(hf, tmp_path / "backup")
        with open(tmp_path / "export", "wb") as file:
            export_scopes(hf, [], file)
        older = holdfast.open(new_url("files", tmp_path), keys=tmp_path / "none")
        copy(hf, older)
        hf.subjects.erase(scope="conversation/old")
        hf.subjects.erase("ada")
        hf.subjects.erase(match=WORD)
        expected = read(hf)
    for take in ("restore", "copy", "import"):
        with holdfast.open(new_url(durable, tmp_path), keys=keys) as target:
            if take == "restore":
                restore(tmp_path / "backup", target)
            elif take == "copy":
                copy(older, target)
            else:
                import_scopes(target, tmp_path / "export")
            assert WORD.encode() not in stored(target)
            seen = read(target)
            assert WORD not in seen
            assert "[erased] hello, and the rest" in seen
            assert seen.count("[erased]") > 20
            assert target.check().findings == []
            assert next(iter(target.conversation("old").history(removed=True))).is_let_go
            assert target.conversation("c3").get("name") == "somebody else"
    older.close()
    assert "[erased] hello" in expected


def test_a_backup_made_since_is_pruned(tmp_path: Path, keys: Path) -> None:
    with holdfast.open(tmp_path / "store", keys=keys) as hf:
        lived(hf)
        backup(hf, tmp_path / "backup", label="before")
        hf.subjects.erase(match=WORD)
        backup(hf, tmp_path / "backup")
    assert WORD.encode() in on_disk("", tmp_path / "backup", keys)
    holdfast.backup.prune(tmp_path / "backup")
    assert WORD.encode() not in on_disk("", tmp_path / "backup", keys)
    for at in ("before", None):
        with holdfast.open(new_url("files", tmp_path), keys=tmp_path / "none") as target:
            restore(tmp_path / "backup", target, at=at)
            assert WORD not in read(target)
            assert target.check().findings == []


def test_a_key_store_without_a_ledger_is_named_in_the_receipt(tmp_path: Path) -> None:
    program = tmp_path / "keys.py"
    program.write_text("import sys\nsys.exit('no such verb')\n")
    with holdfast.open(tmp_path / "s", keys=f"command:{sys.executable} {program}") as hf:
        hf.conversation("c1").set("n", WORD)
        receipt = hf.subjects.erase(match=WORD)
    assert [one.outcome for one in receipt.scopes] == ["pending"]
    assert "brings it back" in receipt.left[-1].remedy


def test_what_is_written_meanwhile_is_found_by_a_second_look(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.conversation("c1")
    chat.set("n", WORD)
    real, late = cutting.cut, iter([hf.conversation("c9"), hf.conversation("c8")])

    def beside(*given: object, **named: object) -> object:
        if (one := next(late, None)) is not None:
            one.set("late", WORD)
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(cutting, "cut", beside)
    receipt = hf.subjects.erase(match=WORD)
    assert {one.scope for one in receipt.scopes} == {f"conversation/c{n}" for n in (1, 8, 9)}
    assert WORD.encode() not in stored(hf)


def test_another_process_goes_on_from_the_state_without_it(
    durable: str, tmp_path: Path, keys: Path
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, keys=keys) as hf, holdfast.open(url, keys=keys) as other:
        hf.conversation("c1").set(("people", WORD), {"n": 1})
        hf.conversation("c1").set("n", WORD)
        assert other.conversation("c1").get("n") == WORD
        hf.subjects.erase(match=WORD)
        assert WORD not in repr(other.conversation("c1").state.to_dict())
        other.conversation("c1").set("more", 1)
    with holdfast.open(url, keys=keys) as hf:
        assert hf.conversation("c1").state.to_dict() == {
            "people": {"[erased]": {"n": 1}}, "n": "[erased]", "more": 1,
        }  # fmt: skip


def test_a_handle_that_closes_late_brings_nothing_back(
    durable: str, tmp_path: Path, keys: Path
) -> None:
    """It has the old state in memory, and writes no snapshot of it."""
    url = new_url(durable, tmp_path)
    with holdfast.open(url, keys=keys) as hf:
        with holdfast.open(url, keys=keys) as late:
            chat = late.conversation("c1")
            for number in range(50):
                chat.set(f"k{number}", f"{WORD} {'x' * 2000}")
            chat.fork("c2").set("n", 1)
            hf.subjects.erase(match=WORD)
        assert WORD.encode() not in stored(hf)
        assert WORD not in repr(hf.conversation("c1").state.to_dict())
        assert not [one for one in hf.conversation("c1").checkpoints() if "cut" in one.name]


def test_an_encrypted_store_and_a_mixed_one(tmp_path: Path, keys: Path) -> None:
    parts = {"*": tmp_path / "files", "conversation": f"sqlite:{tmp_path / 'c.db'}"}
    for number, open_more in enumerate(({"store_key": b"k" * 32}, {})):
        place = parts if number else tmp_path / "encrypted"
        with holdfast.open(place, keys=keys, **settled(open_more)) as hf:  # type: ignore[arg-type]
            lived(hf)
            hf.team("red").set("n", WORD)
            hf.subjects.erase(match=WORD)
            assert WORD not in read(hf) + repr(hf.team("red").state.to_dict())
            assert WORD.encode() not in stored(hf)
            assert hf.check().findings == []


def test_a_part_that_nobody_says_was_cut_is_damage(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s", keys=tmp_path / "keys") as hf:
        hf.conversation("c1").set("n", "some text")
        hf._log._backend.shorten({"conversation/c1": {1: b'[ ["set","n","x"]]'}})  # type: ignore
        [finding] = hf.check().findings
        assert "nobody has said that it was cut out" in finding.problem
        hf.conversation("c2").set("n", WORD)
        hf.subjects.erase(match=WORD)
        hf._log._backend.shorten({"conversation/c2": {1: b'[ ["set","n","x"]]'}})  # type: ignore
        assert any("since a part" in one.problem for one in hf.check().findings)


_KILLED = """
import os, signal, sys
import holdfast
from holdfast.core import retention

place, step, text = sys.argv[1:]
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if step == "shorten":
    from holdfast.backends.files.backend import FilesBackend
    FilesBackend.shorten = killed
else:
    setattr(retention._Run, step, killed)
with holdfast.open(place + "/store", keys=place + "/keys") as hf:
    hf.subjects.erase(match=text)
"""


@pytest.mark.parametrize("step", ["_note", "shorten", "_collect_blobs"])
def test_a_killed_process_is_finished_by_another_one(tmp_path: Path, step: str) -> None:
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        lived(hf)
    command = [sys.executable, "-c", _KILLED, str(tmp_path), step, WORD]
    assert subprocess.run(command, check=False).returncode == -9
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        [receipt] = hf.subjects.finish(wait_s=120)
        assert {one.outcome for one in receipt.scopes} == {"anonymised"}
        assert WORD not in read(hf)
        assert hf.check().findings == []
    assert WORD.encode() not in on_disk("", tmp_path, tmp_path / "none")
