"""The spectrum: stateless, session, persistent (BOOT-1 to 3, 6, 9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast import ClosedError, ExistsError, NotFoundError, UnavailableError, UsageError
from holdfast.contrib import task_lifetimes
from holdfast.contrib.task_lifetimes import end_abandoned, job, write_whole
from holdfast.scope import Scope
from tests.crash.children import Child, tell
from tests.record.kills import await_deaths, kill_everywhere, open_dying
from tests.record.stores import new_url

ROOT = Path(__file__).resolve().parents[2]


@job("stateless")
def double(data: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item * 2 for item in data["items"]]}


def words(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- stateless -----------------------------------------------------------------------------------


def test_boot_2_one_file_in_one_file_out_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text('{"items": [1, 2]}')
    assert double.position == "stateless"
    assert double.run("in.json", tmp_path / "out.json") == {"items": [2, 4]}
    first = words(tmp_path)
    assert first.keys() == {"in.json", "out.json"}, "no store, no part of a file"
    assert json.loads(first["out.json"]) == {"items": [2, 4]}
    double.run("in.json", "out.json")
    assert words(tmp_path) == first, "the same input gives the same bytes"
    assert double({"items": [3]}) == {"items": [6]}


def test_boot_3_jobs_run_side_by_side_and_chain(tmp_path: Path) -> None:
    for n in range(20):
        (tmp_path / f"{n}.json").write_text(json.dumps({"items": [n]}))
    with ThreadPoolExecutor(8) as pool:
        for before, after in (("", "a"), ("a", "b")):
            sources = [tmp_path / f"{n}{before}.json" for n in range(20)]
            targets = [tmp_path / f"{n}{after}.json" for n in range(20)]
            list(pool.map(double.run, sources, targets))
    results = [json.loads((tmp_path / f"{n}b.json").read_text())["items"] for n in range(20)]
    assert results == [[4 * n] for n in range(20)]
    assert len(words(tmp_path)) == 60


def test_an_output_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_text('{"items": [1]}')
    target.write_text("old")
    target.chmod(0o640)

    @job("stateless")
    def fail(data: object) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail.run(source, target)

    @job("stateless")
    def unfit(data: object) -> object:
        return object()

    with pytest.raises(UsageError, match="is not JSON"):
        unfit.run(source, target)
    with pytest.raises(UsageError, match="takes text or bytes"):
        unfit.run(source, tmp_path / "out.txt")
    assert words(tmp_path) == {"in.json": b'{"items": [1]}', "out.json": b"old"}
    with pytest.raises(NotFoundError, match="there is no file"):
        double.run(tmp_path / "none.json", target)
    source.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        double.run(source, target)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        write_whole(tmp_path / "nowhere" / "out", b"x")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UnavailableError, match="cannot be written"):
        write_whole(tmp_path / "taken", b"x")
    with pytest.raises(UnavailableError, match="cannot be read"):
        double.run(tmp_path / "taken", target)
    write_whole(target, b"new")
    assert target.stat().st_mode & 0o777 == 0o640
    assert words_of_files(tmp_path) == {"in.json", "out.json"}


def words_of_files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_file()}


def test_texts_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("grüße")

    @job("stateless")
    def shout(text: str) -> str:
        return text.upper()

    @job("stateless")
    def pack(text: str) -> bytes:
        return text.encode("utf-16-le")

    # Where the kernel has no files without a name, a name of its own does.
    for flag in (getattr(os, "O_TMPFILE", 0), 0):
        monkeypatch.setattr(os, "O_TMPFILE", flag, raising=False)
        shout.run(tmp_path / "in.txt", tmp_path / "out.txt")
        pack.run(tmp_path / "in.txt", tmp_path / "out.bin")
        assert (tmp_path / "out.txt").read_text() == "GRÜSSE"
        assert (tmp_path / "out.bin").read_bytes() == "grüße".encode("utf-16-le")
        assert len(words(tmp_path)) == 3
    (tmp_path / "in.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        shout.run(tmp_path / "in.txt", tmp_path / "out.txt")


CALLS = ("open", "write", "fsync", "link", "rename")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_writes_the_output_is_the_old_or_the_new_one(
    tmp_path: Path, call: str, when: str
) -> None:
    """SIGKILL before and after every call of the kernel that a write is made of."""
    target = tmp_path / "out.json"
    for nth in range(1, 4):
        target.write_text("old")

        def live(pipe: int, _stop: int, nth: int = nth) -> None:
            genuine, count = getattr(os, call), 0

            def counted(*args: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == nth and when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                result = genuine(*args, **named)
                if count == nth and when == "after":
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            setattr(os, call, counted)
            write_whole(target, b"new" * 10)

        child = Child(live)
        child.end()
        assert child.trouble is None, child.trouble
        text = target.read_text()
        assert text == ("old" if child.was_killed and not is_moved(call, when, nth) else "new" * 10)
        if not child.was_killed:
            assert nth > 1, "it was never killed"
            break
        for left in words(tmp_path).keys() - {"out.json"}:
            assert (tmp_path / left).read_bytes() == b"new" * 10, "a part that is not whole"


def is_moved(call: str, when: str, nth: int) -> bool:
    """Says whether the kill comes behind the rename: at the second sync, that of the directory."""
    return (call, when) == ("rename", "after") or (call, nth) == ("fsync", 2)


# --- sessions ------------------------------------------------------------------------------------


def test_boot_6_a_session_is_gone_at_its_end(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    seen: list[Scope] = []

    @job("session", store=url)
    def work(session: Scope, n: int) -> int:
        session.set("n", n)
        seen.append(session)
        with holdfast.open(url) as outside:
            assert outside.scope(session.name).get("n") == n
            assert outside.scope(session.name).life.expires_at is not None
        return session.get("n") + 1

    assert (work.position, work.run(4)) == ("session", 5)
    with holdfast.open(url) as hf:
        with pytest.raises(ClosedError, match="dropped"):
            _ = hf.scope(seen[0].name).state
        assert hf.workers.marks("session") == []
        assert hf.workers.list() == []
    with pytest.raises(ExistsError, match="was not kept"), work.begin(seen[0].id):
        pass

    def fail() -> None:
        with work.begin("failing") as scope:
            scope.set("n", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with holdfast.open(url) as hf, pytest.raises(ClosedError):
        _ = hf.conversation("failing").state


def test_a_session_without_a_store_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @job("session")
    def work(session: Scope) -> int:
        session.set("n", 1)
        return session.get("n")

    assert work.run() == 1
    assert words(tmp_path) == {}


def test_a_session_that_is_kept_stays_and_goes_on_after_a_crash(
    durable: str, tmp_path: Path
) -> None:
    """BOOT-11, 13: persistence was asked for."""
    url = new_url(durable, tmp_path)

    @job("session", store=url, keep=True)
    def work(session: Scope) -> None: ...

    def live(pipe: int, _stop: int) -> None:
        with work.begin("s1") as scope:
            scope.set("n", 1)
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(live)
    child.end()
    assert child.was_killed
    with work.begin("s1") as scope:
        assert scope.get("n") == 1
        scope.increment("n")
    with holdfast.open(url) as hf:
        assert hf.conversation("s1").get("n") == 2
        assert hf.conversation("s1").life.is_closed
        assert hf.conversation("s1").life.expires_at is None


def test_a_session_killed_anywhere_is_let_go_by_the_next_one(durable: str, tmp_path: Path) -> None:
    """Right before and right after every commit of a session, its beginning and end included."""
    trials = 0
    for kill in kill_everywhere(hold_session, lambda: new_url(durable, tmp_path)):
        trials += 1
        with holdfast.open(kill.url) as hf:
            await_deaths(hf)
            marked = [mark.group for mark in hf.workers.marks("session")]
            assert end_abandoned(hf) == marked, kill
            assert hf.workers.marks("session") == [], kill
            for scope in hf.scopes("conversation"):
                with pytest.raises(ClosedError):
                    _ = scope.state
            assert hf.check().ok, kill
    assert trials >= 2 * 4


def hold_session(url: str) -> None:
    # In a child, whose death others must soon know of.
    task_lifetimes.open_store = cast("Any", open_dying)
    job = task_lifetimes.SessionJob(use_session, store=url, keep=False, ttl="1h")
    job.run()


def use_session(session: Scope) -> None:
    session.set("n", 1)
    session.tasks.add("one")


def test_the_living_are_left_alone(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    job = task_lifetimes.SessionJob(use_session, store=url, keep=False, ttl="1h")
    with job.begin("a") as first, job.begin("b") as second:
        first.set("n", 1)
        second.set("n", 2)
    with holdfast.open(url) as hf:
        assert end_abandoned(hf) == []


def test_a_session_that_nobody_ended_expires(tmp_path: Path) -> None:
    url = new_url("sqlite", tmp_path)

    def live(pipe: int, _stop: int) -> None:
        job = task_lifetimes.SessionJob(use_session, store=url, keep=False, ttl=0.2)
        with job.begin("s") as scope:
            tell(pipe, ends=str(scope.life.expires_at))
            os.kill(os.getpid(), signal.SIGKILL)

    child = Child(live)
    child.end()
    assert child.was_killed
    with holdfast.open(url) as hf:
        while True:
            try:
                _ = hf.conversation("s").state
            except NotFoundError:
                break
        assert end_abandoned(hf) == ["conversation/s"]
        assert hf.workers.marks("session") == []


# --- persistent, and what is wrong ---------------------------------------------------------------


def test_persistent_state_is_there_for_the_next_one(durable: str, tmp_path: Path) -> None:
    @job("persistent", store=new_url(durable, tmp_path), scope="team/research")
    def count(team: Scope) -> int:
        team.increment("n")
        return team.get("n")

    assert count.position == "persistent"
    assert [count.run() for _ in range(3)] == [1, 2, 3]


def test_boot_1_a_job_says_what_it_keeps() -> None:
    any_job = cast("Any", job)
    for arguments, says in (
        ({"position": "stateful"}, "a job is one of stateless, session, persistent"),
        ({"position": None}, "a job is one of"),
        ({"position": "stateless", "store": "memory:"}, "a stateless job takes no store"),
        ({"position": "session", "scope": "team/t"}, "a session job takes no scope"),
        ({"position": "persistent", "scope": "team/t", "keep": True}, "takes no keep"),
        ({"position": "persistent"}, "needs a scope"),
        ({"position": "session", "keep": True}, "needs a store"),
        ({"position": "session", "ttl": "soon"}, "a length of time"),
    ):
        with pytest.raises(UsageError, match=says):
            any_job(**arguments)(len)
    with pytest.raises(UsageError, match="is a function"):
        job("stateless")(3)

    async def later(data: object) -> None: ...

    with pytest.raises(UsageError, match="ordinary function"):
        job("stateless")(later)


# --- the examples --------------------------------------------------------------------------------


def run_example(name: str, *words: str, cwd: Path) -> str:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_examples_run(tmp_path: Path) -> None:
    plan = {"title": "Names", "items": [{"id": 1, "name": " Ada "}, {"id": 2, "name": ""}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    said = run_example("stateless.py", "plan.json", "page.md", cwd=tmp_path)
    assert said == "# Names\n\n- 1: ada\n"
    assert words(tmp_path).keys() == {"plan.json", "page.json", "page.md"}
    assert run_example("session.py", cwd=tmp_path) == "crash on empty input: off by one\n"
    assert words(tmp_path).keys() == {"plan.json", "page.json", "page.md"}
    run_example("session.py", "store", cwd=tmp_path)
    with holdfast.open(tmp_path / "store") as hf:
        assert [scope.life.is_closed for scope in hf.scopes("conversation")] == [True]
    first = run_example("persistent.py", "kept", "why", cwd=tmp_path)
    second = run_example("persistent.py", "kept", "how", cwd=tmp_path)
    assert first == "0 known before; 1 to check: t1\n"
    assert second == "1 known before; 2 to check: t2\n"
