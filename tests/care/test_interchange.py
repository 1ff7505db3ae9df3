"""Scopes as one readable file, out of any store and into any other (BOOT-12)."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.protocol import START
from holdfast.errors import (
    ConflictError,
    CorruptError,
    ExpiredError,
    FormatError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.interchange import export_scopes, import_scopes
from holdfast.retention import RetentionPolicy
from holdfast.testing import FakeClock
from tests.care.test_backup import change, look
from tests.crash.children import Child
from tests.fixtures.make import FORMATS
from tests.record.stores import ALL, DURABLE, new_url


def written(path: Path, hf: holdfast.Store, *names: str) -> Path:
    with open(path, "wb") as file:
        export_scopes(hf, names, file)
    return path


@pytest.mark.parametrize("kind", ALL)
def test_everything_comes_back_from_the_file(kind: str, tmp_path: Path) -> None:
    random = Random(13)
    with holdfast.open(new_url(kind, tmp_path)) as hf:
        for _ in range(30):
            change(hf, random)
        path = written(tmp_path / "all.jsonl", hf)
        wanted = look(hf)
    with holdfast.open("memory:") as target:
        done = import_scopes(target, path)
        assert look(target) == wanted
        assert target.check().ok
        assert done.events > 30
        again = import_scopes(target, path)
        assert (again.events, again.marks, again.skipped) == (0, 0, done.events)
        assert look(target) == wanted


@pytest.mark.parametrize("kind", DURABLE)
def test_some_scopes_into_a_store_that_has_others(kind: str, tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c1")
        chat.set("text", "large " * 20_000)
        chat.tasks.add("mine")
        chat.fork("f").set("k", 1)
        hf.conversation("other").tasks.add("not mine")
        path = written(tmp_path / "some.jsonl", hf, "conversation/f")
        wanted = hf.conversation("f").state.to_dict()
    with holdfast.open(new_url(kind, tmp_path)) as target:
        target.conversation("here").tasks.add("of this store")
        import_scopes(target, path)
        names = [scope.name for scope in target.scopes()]
        assert names == ["conversation/c1", "conversation/f", "conversation/here"]
        assert target.conversation("f").state == wanted
        assert sorted(task.title for task in target.tasks.list()) == ["mine", "of this store"]
        target.conversation("c1").set("more", 1)  # it goes on here
        assert import_scopes(target, path).events == 0
        assert target.conversation("c1")["more"] == 1
        assert target.check().ok


def test_a_line_can_be_read_by_people_and_programs(tmp_path: Path) -> None:
    with holdfast.open("memory:", actor="ann") as hf:
        hf.conversation("c1").set("stage", "triage")
        hf.conversation("c1").messages.add("user", "hello")
        path = written(tmp_path / "c1.jsonl", hf, "conversation/c1")
    first, *events, end = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["holdfast"], first["format"], first["scopes"]) == (
        *("export", 1, ["conversation/c1"]),
    )
    assert [(one["stream"], one["revision"], one["actor"]) for one in events] == [
        ("conversation/c1", 1, "ann"),
        ("conversation/c1", 2, "ann"),
    ]
    assert events[0]["payload"] == [["set", "stage", "triage"]]
    assert (end["end"], end["events"]) == (True, 2)


def test_what_ends_by_itself_still_does(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        hf.conversation("short", ttl_s=60).set("n", 1)
        path = written(tmp_path / "short.jsonl", hf)
    with holdfast.open("memory:", settings=Settings(clock=clock)) as target:
        import_scopes(target, path)
        assert target.conversation("short")["n"] == 1
        clock.advance(61)
        with pytest.raises(ExpiredError):
            target.conversation("short").get("n")
    with holdfast.open("memory:", settings=Settings(clock=clock)) as target:
        assert import_scopes(target, path).events == 0
        assert list(target.scopes()) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def cut_lines(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def change_value(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"triage", b"closed"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (cut, "a part of it is missing"),
        (cut_lines, "a part of it is missing"),
        (empty, "a part of it is missing"),
        (change_value, "it was changed since it was written"),
    ],
)
def test_a_damaged_file_writes_nothing(harm: Any, told: str, tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c1").set("stage", "triage")
        path = written(tmp_path / "c1.jsonl", hf)
    harm(path)
    with holdfast.open("memory:") as target:
        with pytest.raises(CorruptError, match=told):
            import_scopes(target, path)
        assert list(target.scopes()) == []


def seal(path: Path, lines: list[bytes]) -> None:
    """Writes lines, and an end that fits them: only the links can tell that they were made up."""
    from hashlib import sha256

    text = b"".join(line + b"\n" for line in lines)
    end = {"end": True, "events": len(lines) - 1, "sha256": sha256(text).hexdigest()}
    path.write_bytes(text + json.dumps(end).encode() + b"\n")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b"triage", b"closed", "line 2: event 1 does not match its link"),
        (b'"revision":1', b'"revision":2', "line 2: revisions 1 to 1 are lost"),
        (b'"revision":1', b'"revision":"x"', "line 2: Expected `int`"),
    ],
)
def test_events_that_were_made_up(old: bytes, new: bytes, told: str, tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c1").set("stage", "triage")
        path = written(tmp_path / "c1.jsonl", hf)
    lines = path.read_bytes().replace(old, new).splitlines()
    seal(path, lines[:-1])
    with holdfast.open("memory:") as target, pytest.raises(CorruptError, match=told):
        import_scopes(target, path)
    seal(path, [lines[0], lines[1], lines[1]] if old == b"triage" else lines[:-1])


def test_an_event_that_comes_twice(tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c1").set("stage", "triage")
        path = written(tmp_path / "c1.jsonl", hf)
    first, event, _ = path.read_bytes().splitlines()
    seal(path, [first, event, event])
    with holdfast.open("memory:") as target, pytest.raises(CorruptError, match="it comes twice"):
        import_scopes(target, path)


def test_files_that_are_no_exports(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    with holdfast.open("memory:") as target:
        seal(path, [b'{"something": "else"}'])
        with pytest.raises(FormatError, match="is no export: its first line does not say so"):
            import_scopes(target, path)
        seal(path, [b'{"holdfast":"export","format":2,"at":"","scopes":[]}'])
        with pytest.raises(FormatError, match="has format 2: this holdfast reads up to 1"):
            import_scopes(target, path)
        with pytest.raises(UnavailableError, match="cannot be read: No such file"):
            import_scopes(target, tmp_path / "none")
        with pytest.raises(NotFoundError, match='there is no scope "conversation/none"'):
            export_scopes(target, ["conversation/none"], io.BytesIO())
        with pytest.raises(UsageError, match="scopes is a list of names"):
            export_scopes(target, "conversation/c1", io.BytesIO())


def test_a_scope_that_went_on_differently(tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        hf.conversation("c1").set("stage", "triage")
        hf.conversation("c2").set("stage", "triage")
        path = written(tmp_path / "both.jsonl", hf)
    with holdfast.open("memory:") as target:
        target.conversation("c2").set("stage", "its own")
        with pytest.raises(ConflictError, match='"conversation/c2" is there already, and went on'):
            import_scopes(target, path)
        assert [scope.name for scope in target.scopes()] == ["conversation/c2"]


def test_a_full_disk_while_it_is_written(tmp_path: Path) -> None:
    with (
        holdfast.open("memory:") as hf,
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(UnavailableError, match="cannot be written: No space left"),
    ):
        hf.conversation("c1").set("stage", "triage")
        export_scopes(hf, [], full)


def test_a_killed_import_goes_on(tmp_path: Path) -> None:
    random = Random(17)
    with holdfast.open("memory:") as hf:
        for _ in range(12):
            change(hf, random)
        path = written(tmp_path / "all.jsonl", hf)
        wanted = look(hf)

    def live(fatal: int) -> None:
        with holdfast.open(tmp_path / "new") as target:
            backend: Any = target._log._backend
            sound, calls = backend.commit, 0

            def commit(commits: Any) -> Any:
                answers: list[Any] = []
                nonlocal calls
                for one in commits:
                    calls += 1
                    if calls == fatal:
                        os.kill(os.getpid(), signal.SIGKILL)
                    answers += sound([one])
                return answers

            backend.commit = commit
            import_scopes(target, path)

    status, fatal = 1, 0
    while status:
        fatal += 5
        child = Child(lambda p, s, fatal=fatal: live(fatal))
        status = child.end()
        assert child.trouble is None, child.trouble
    with holdfast.open(tmp_path / "new") as target:
        assert look(target) == wanted
        assert target.check().ok


def test_a_commit_with_large_values_stays_one(tmp_path: Path) -> None:
    """In the file a blob stands before the event that names it: between two of one commit."""
    with holdfast.open("memory:") as hf:
        with hf.commit() as tx:
            tx.scope(hf.team("a")).set("n", 1)
            tx.scope(hf.team("b")).set("text", "large " * 20_000)
        path = written(tmp_path / "both.jsonl", hf)
    with holdfast.open("memory:") as target:
        import_scopes(target, path)
        first, second = target._log.read_all(after=START, limit=9)
        assert first.position == second.position
        assert target.team("b")["text"] == "large " * 20_000


# --- what was let go of --------------------------------------------------------------------------


ROUNDED = [RetentionPolicy("team/*", types=["state"], count=1)]


def compact(hf: holdfast.Store) -> None:
    hf.retention.run(policies=ROUNDED, grace_s=0)


def cut(hf: holdfast.Store) -> None:
    hf.subjects.erase(match="Ada Lovelace")


def begin_anew(hf: holdfast.Store) -> None:
    hf.team("red").remove()
    hf.retention.run(grace_s=0)
    hf.team("red").set("n", 9)


@pytest.mark.parametrize("scopes", [["team/red"], []])
@pytest.mark.parametrize("lets_go", [[compact], [cut], [cut, compact], [compact, cut, begin_anew]])
def test_an_import_tells_what_was_let_go_of(
    lets_go: list[Any], scopes: list[str], tmp_path: Path
) -> None:
    """Else `check` would take it for damage in the target. Imported by steps, or all at once."""
    with (
        holdfast.open("memory:", keys=tmp_path / "keys") as hf,
        holdfast.open("memory:", keys=tmp_path / "other") as by_steps,
    ):
        for n in range(4):
            hf.team("red").set("n", {"who": "Ada Lovelace", "n": n})
            hf.team("red").say(f"Ada Lovelace {n}")
        import_scopes(by_steps, written(tmp_path / "0", hf, *scopes))
        for number, let_go in enumerate(lets_go, 1):
            let_go(hf)
            path = written(tmp_path / str(number), hf, *scopes)
            with holdfast.open("memory:", keys=tmp_path / "other") as at_once:
                for target in (at_once, by_steps):
                    for _ in range(2):
                        import_scopes(target, path)
                        assert target.check(read_all=True).ok
                    assert target.team("red").state == hf.team("red").state
                    payloads = [one.payload for one in target._log.read("team/red", after=0)]
                    assert payloads == [one.payload for one in hf._log.read("team/red", after=0)]


@pytest.mark.parametrize("made_up", ["digest", "was", "short"])
def test_a_digest_of_what_was_let_go_of_that_was_made_up(made_up: str, tmp_path: Path) -> None:
    with holdfast.open("memory:", keys=tmp_path / "keys") as hf:
        hf.team("red").set("n", "Ada Lovelace")
        cut(hf)
        path = written(tmp_path / "e", hf, "team/red")
    *lines, _ = path.read_bytes().splitlines()
    [at] = [n for n, line in enumerate(lines) if b'"told":{' in line]
    line = json.loads(lines[at])
    if made_up == "was":
        line["told"]["steps"][0][1] = "no base64"
    else:
        line["told"]["digest"] = "xy" if made_up == "digest" else line["told"]["digest"][2:]
    seal(path, [*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]])
    with holdfast.open("memory:") as target:
        with pytest.raises(CorruptError, match="a digest of what was let go of"):
            import_scopes(target, path)
        assert list(target.scopes()) == []


def test_an_export_of_before_tells_nothing_of_what_is_missing(tmp_path: Path) -> None:
    """It is read all the same, and what it does not prove is told as damage."""
    with holdfast.open("memory:") as hf:
        assert import_scopes(hf, FORMATS.parent / "export-1.jsonl").events == 7
        assert hf.team("red")["n"] == 1
        assert [one.id for one in hf.team("red").tasks.list()] == ["t1"]
        problems = [one.problem for one in hf.check().findings]
        assert [problem.partition(", and nobody")[0] for problem in problems] == [
            'event 1 of "team/red" has no data',
            'event 2 of "team/red" lacks a part',
            'event 3 of "team/red" has no data',
            'event 4 of "team/red" lacks a part',
        ]
