"""A project that goes on for long: conversations, sessions, memory, the disk, what is slow."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast import LimitError, Settings, Store, UsageError
from holdfast.agents import Scripted
from holdfast.core import limits
from holdfast.core.observe import Observed
from holdfast.projects import Project, housekeeping, work
from holdfast.runs.engine import Engine
from holdfast.testing import FakeClock


class Recording(Scripted):
    """Answers as a script does, and keeps what it was asked."""

    def __init__(self, script: dict[str, Any]) -> None:
        super().__init__(script)
        self.calls: list[Any] = []
        self.summarised: list[str] = []

    def answer(self, call: Any, /) -> Any:
        self.calls.append(call)
        return super().answer(call)

    def summarise(self, text: str, limit: int, /) -> str:
        self.summarised.append(text)
        return f"a summary of {len(text)} characters"


# --- conversations --------------------------------------------------------------------------------


def test_a_long_conversation_is_compacted_and_the_goal_is_said_again(root: Path):
    """RALPH-46, RALPH-55: what is read of a session stays small, and all of it is kept."""
    (root / "holdfast.toml").write_text("[project]\ncompact_at = 1000\n")
    with holdfast.open("memory:") as hf:
        agent = Recording({"sessions": [{"match": "", "answer": "word " * 100}]})
        hf.runs.use_executor(agent)
        project = hf.project(root)
        with project.coordinate() as main:
            main.scope.set("goals", {"g1": {"title": "open a shop", "status": "open"}})
            main.session = project.begin_session(title="long")
            sizes: list[int] = []
            for number in range(60):
                main.talk(f"question {number}")
                sizes.append(project.session_size(main.session).tokens)
        found = project.session_size(main.session)
        messages = project.conversation(main.session).messages
        assert found.summaries >= 2
        assert found.messages == len(messages) <= work.KEPT_MESSAGES + 21
        # It waits until there are a thousand tokens, and an exchange has 130.
        assert 800 < max(sizes) < 1400
        assert "question 0" in agent.summarised[0]
        assert "a summary of" in agent.summarised[1], "the summary before is part of the next"
        [summary] = [one for one in messages if one.is_summary]
        assert summary.text.endswith("The goals are:\n- open a shop (g1)")
        assert len(messages.original()) == 120
        assert messages.original()[0].text == "question 0"
        last = dict(agent.calls[-1].context)["project"]
        assert "open a shop" in last
        assert "a summary of" in last


def test_a_summary_that_a_crash_cut_off_is_made_once(root: Path, tmp_path: Path):
    """The commit is there and its record in the journal is not: it is found by its run."""
    (root / "holdfast.toml").write_text("[project]\ncompact_at = 1000\n")
    with holdfast.open(str(tmp_path / "s")) as hf:
        hf.runs.use_executor(Recording({}))
        project = hf.project(root)
        with project.coordinate() as main:
            main.session = project.begin_session()
            conversation = project.conversation(main.session)
            for number in range(60):
                conversation.messages.add("user", f"{number} " + "word " * 50)
            main.talk("and now?", id="shop.x.1")
            before = project.session_size(main.session)
            assert before.summaries == 1

            class Step:
                run = "shop.x.1"
                _execution = hf._kernel.part(Engine)  # only its log is asked for

            Step._execution = type("E", (), {"log": hf._log})()
            work._compact.function(Step, "shop", main.session, "another", 2)
        assert project.session_size(main.session) == before


def test_an_older_message_that_has_to_do_with_the_question_is_told(root: Path):
    """RALPH-47: by relevance, not by age alone: what is new and beside the point is left out."""
    (root / "holdfast.toml").write_text("[project]\nbudget = 500\n")
    with holdfast.open("memory:") as hf:
        agent = Recording({})
        hf.runs.use_executor(agent)
        project = hf.project(root)
        with project.coordinate() as main:
            main.session = project.begin_session()
            messages = project.conversation(main.session).messages
            messages.add("user", "the combination of the safe is 4711")
            for number in range(200):
                messages.add("user", f"chatter {number} about the weather and the football")
            main.talk("what is the combination of the safe?")
        told = dict(agent.calls[-1].context)["project"]
        assert "4711" in told
        assert "chatter 100 " not in told
        assert len(told) < 500 * 8


def test_a_long_answer_before_is_cut_to_the_budget(root: Path):
    (root / "holdfast.toml").write_text("[project]\nbudget = 1000\n")
    long = "x" * 100_000 + "\nthe end\nstatus: continue"
    with holdfast.open("memory:") as hf:
        agent = Recording({"sessions": [{"match": "", "answer": [long, "done"]}]})
        hf.runs.use_executor(agent)
        with hf.project(root).coordinate() as main:
            assert main.do("it").status == "done"
        said = dict(agent.calls[1].context)["your last answer"]
    assert len(said) < 2100
    assert said.startswith("(the first 98")
    assert "the end" in said


# --- sessions that are let go of ------------------------------------------------------------------


def make_sessions(project: Project, clock: FakeClock, count: int) -> list[str]:
    made: list[str] = []
    for number in range(count):
        made.append(project.begin_session(title=f"s{number}"))
        project.conversation(made[-1]).say("hello " * 50)
        clock.advance(86_400)
    return made


@pytest.mark.parametrize(
    ("said", "left"),
    [("older_than = '2d12h'", 2), ("count = 3", 3), ("bytes = '1kB'", 2)],
)
def test_sessions_go_by_age_number_and_size(root: Path, said: str, left: int):
    """RALPH-49, RALPH-51: off unless it is said; a dry run changes nothing; the bin gives back."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        made = make_sessions(hf.project(root), clock, 5)
        with pytest.raises(UsageError, match="keeps all its sessions"):
            hf.project(root).prune()
        (root / "holdfast.toml").write_text(f"[project.retention]\n{said}\n")
        project = hf.project(root)
        planned = project.prune(dry_run=True)
        assert len(planned.binned) == 5 - left
        assert len(project.sessions()) == 5
        with project.enter_session(made[0]):
            done = project.prune()
        assert [one.scope for one in done.binned] == [one.scope for one in planned.binned][1:]
        assert list(done.refused) == [planned.binned[0].scope]
        assert len(project.sessions()) == left + 1
        assert project.prune().binned[0].scope == planned.binned[0].scope
        assert {one.id for one in project.sessions()} == set(made[-left:])
        assert project.scope.get("session") == made[-1]
        hf.retention.bring_back(planned.binned[0].scope)
        assert len(project.sessions()) == left + 1
        assert hf.check().ok


def test_the_newest_session_may_go_too_and_is_not_looked_for_then(root: Path):
    (root / "holdfast.toml").write_text("[project.retention]\nolder_than = '1d'\n")
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        project = hf.project(root)
        assert project.prune().binned == []
        make_sessions(project, clock, 2)
        clock.advance(86_400 * 10)
        project.prune()
        assert project.sessions() == []
        assert project.scope.get("session") is None
        assert len(hf.retention.bin()) == 2
        clock.advance(86_400 * 10)
        assert project.prune().events > 0  # the bin is emptied, with no session left
        assert hf.retention.bin() == []


def test_a_policy_never_reaches_another_project(root: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    odd = tmp_path / "o*"
    odd.mkdir()
    for place in (root, odd):
        (place / "holdfast.toml").write_text("[project.retention]\ncount = 1\n")
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        make_sessions(hf.project(root), clock, 3)
        make_sessions(hf.project(other), clock, 3)
        hf.project(root).prune()
        assert len(hf.project(other).sessions()) == 3
        make_sessions(hf.project(odd), clock, 2)
        with pytest.raises(UsageError, match="its id has a"):
            hf.project(odd).prune()


# --- what is slow ---------------------------------------------------------------------------------


def observed(name: str, seconds: float, kind: Any = "commit") -> Observed:
    return Observed(kind=kind, name=name, began_us=0, duration_s=seconds)


def test_what_is_slow_is_told_to_whoever_asks(
    hf: Store, project: Project, caplog: pytest.LogCaptureFixture
):
    """RALPH-57: a loss of speed is noticed, kept for others to see, and said with what to do."""
    caplog.set_level(logging.WARNING, "holdfast.projects")
    with project.coordinate() as main:
        for one in hf._log.observers.all:
            one[0](observed("project/shop", 3.5))
            one[0](observed("project/shop", 2.25))
            one[0](observed("project/shop", 1.9))
            one[0](observed("an agent", 600.0, "step"))
        assert [(one.what, one.seconds, one.times) for one in main.care.slow.values()] == [
            ("commit project/shop", 3.5, 2)
        ]
        main.care.look()
        assert [(one.what, one.times) for one in project.slow()] == [("commit project/shop", 2)]
        main.care.took("again", 5.0)
        main.care.look()
        assert len(project.slow()) == 1, "once a minute at most"
    assert [one.what for one in project.slow()] == ["commit project/shop", "again"]
    [first, _] = [one for one in project.doctor() if one.part == "speed"]
    assert first.name == "commit project/shop"
    assert first.found.startswith("took 3.5 s, 2 times; the last time at 20")
    assert "is slow" in caplog.text
    with project.coordinate():
        assert project.slow() == [], "it is of the coordinator before"
    assert hf._log.observers is None or not hf._log.observers.all


def test_no_more_than_a_few_are_kept(hf: Store, project: Project):
    with project.coordinate() as main:
        for number in range(100):
            main.care.took(f"n{number}", 3.0)
    assert [one.what for one in project.slow()][-1] == "n99"
    assert len(project.slow()) == housekeeping.KEPT_MAX


def test_what_is_slow_is_noted_while_it_is_written(
    hf: Store, project: Project, monkeypatch: pytest.MonkeyPatch
):
    """Any thread of the store notes what it did, also in the middle of the writing."""
    with project.coordinate() as main:
        main.care.took("first", 3.0)
        plain, noted = housekeeping.asdict, []

        def meanwhile(one: Any) -> Any:
            if not noted:
                noted.append(Thread(target=main.care.took, args=("second", 3.0)))
                noted[0].start()
                noted[0].join()
            return plain(one)

        monkeypatch.setattr(housekeeping, "asdict", meanwhile)
        main.care.look(now=True)
        assert [one.what for one in project.slow()] == ["first"]
        main.care.look(now=True)
        assert [one.what for one in project.slow()] == ["first", "second"]


def test_a_context_that_takes_long_is_built_without_a_search(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """RALPH-57: a loss of speed is handled: the turn after it does not pay for it again."""
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted({}))
        asked: list[Any] = []
        build = hf.context
        now = [0.0]

        def slowly(*args: Any, **named: Any) -> Any:
            asked.append(named["strategies"])
            now[0] += 10.0 * ("retrieval" in named["strategies"])
            return build(*args, **named)

        monkeypatch.setattr(hf, "context", slowly)
        monkeypatch.setattr(work, "monotonic", lambda: now[0])
        with hf.project(root).coordinate() as main:
            main.do("one")
            main.do("two")
            assert [one.what for one in main.care.slow.values()] == ["the context of a turn"]
    assert asked == [work.SEARCHED, work.UNSEARCHED]


def test_files_that_take_long_are_looked_at_less_often(root: Path, monkeypatch: pytest.MonkeyPatch):
    """RALPH-57: work is not all looking, and the end still shows everything."""
    now = [1000.0]
    monkeypatch.setattr(holdfast.projects.coordinator, "monotonic", lambda: now[0])
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted({}))
        with hf.project(root).coordinate() as main:
            views, looks = main._views, []
            assert views is not None
            sync = views.sync

            def slowly() -> Any:
                looks.append(now[0])
                now[0] += 5.0
                return sync()

            monkeypatch.setattr(views, "sync", slowly)
            main.sync()
            main.tasks.add("shown late")
            main._keep_shown()
            now[0] += 30.0
            main._keep_shown()
            assert len(looks) == 1
            now[0] += 30.0
            main._keep_shown()
            assert len(looks) == 2
            main.tasks.add("shown at the end")
    assert "shown at the end" in (root / "RALPH_TASKS.md").read_text()


# --- memory and disk ------------------------------------------------------------------------------


def test_memory_that_can_be_read_again_is_given_back(root: Path, monkeypatch: pytest.MonkeyPatch):
    """RALPH-55: above the limit, what is kept of streams is forgotten, and read again."""
    (root / "holdfast.toml").write_text("[project.limits]\nmemory = '1GB'\n")
    with holdfast.open("memory:") as hf, hf.project(root).coordinate() as main:
        for number in range(20):
            hf.team(f"t{number}").set("a", "x" * 1000)
            hf.conversation(f"c{number}").say("hello")
        assert len(list(hf.conversation("c1").messages)) == 1
        main.care.look(now=True)
        assert main.care.trims == 0
        assert 1 << 20 < housekeeping.memory_bytes() < 1 << 40
        monkeypatch.setattr(housekeeping, "memory_bytes", lambda: 2_000_000_000)
        main.care.look(now=True)
        assert (main.care.trims, hf._log.folds.bytes) == (1, 0)
        assert hf.team("t1")["a"] == "x" * 1000
        assert hf.conversation("c1").messages[0].text == "hello"
        assert any("project.limits.memory is 1GB" in one for one in hf.status()["reports"])


def test_memory_is_measured_without_proc_too(monkeypatch: pytest.MonkeyPatch):
    def absent(*_: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", absent)
    assert 1 << 20 < housekeeping.memory_bytes() < 1 << 40


def test_on_a_disk_with_little_space_no_task_is_begun(root: Path, monkeypatch: pytest.MonkeyPatch):
    """RALPH-56: it is told before anything is written, and goes on when there is room."""
    (root / "holdfast.toml").write_text("[project.limits]\nfree = '1GB'\n")
    free = [10_000_000]
    monkeypatch.setattr(housekeeping, "disk_space", lambda _: (free[0], 1 << 40))
    with holdfast.open("memory:") as hf:
        hf.runs.use_executor(Scripted({}))
        project = hf.project(root)
        with project.coordinate() as main:
            task = main.tasks.add("it")
            for begin in (main.work, main.spawn):
                with pytest.raises(LimitError, match=r"10,000,000 bytes left: .*free is 1GB"):
                    begin(task)
            assert main.tasks.get(task.id).status == "open"
            [found] = [one for one in project.doctor() if one.part == "disk"]
            assert "no task is begun" in found.found
            free[0] = limits.check_size("2GB", "free")
            assert main.work(task).status == "done"


@pytest.mark.parametrize(
    "said",
    [
        "[project]\ncompact_at = 0",
        "[project]\nslow = '0s'",
        "[project]\nslow = 'soon'",
        "[project.limits]\nmemory = 0",
        "[project.limits]\nfree = 'some'",
        "[project.limits]\nagents = 0",
        "[project.limits]\ndepth = 0",
        "[project.limits]\nchildren = 0",
        "[project.limits]\nturns = 0",
        "[project.retention]\ncount = 0",
        "[project.retention]\nolder_than = '0s'",
        "[project.retention]\nbytes = 0",
        "[project.retention]\nage = '9d'",
    ],
)
def test_limits_that_mean_nothing_are_refused_by_name(root: Path, said: str):
    (root / "holdfast.toml").write_text(said)
    table, _, line = said.partition("\n")
    name = f"{table[1:-1]}.{line.split()[0]}"
    with holdfast.open("memory:") as hf, pytest.raises(UsageError) as caught:
        hf.project(root)
    assert name in str(caught.value) or "age" in str(caught.value)
