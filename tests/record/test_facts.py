"""Facts: claims about the world with time and verifier; what is stale is marked (BOOT-69 to 71)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    Contradicted,
    CorruptError,
    Holds,
    NotFoundError,
    Settings,
    Store,
    Unknown,
    UsageError,
)
from holdfast.core import layers
from holdfast.core.codec import encode
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.layers import Layer
from holdfast.facts import Fact
from holdfast.record.context import RecordContext
from holdfast.testing import FakeClock
from tests.record.kills import await_deaths, kill_everywhere, open_dying
from tests.record.stores import new_url
from tests.record.test_recovery import die, run_and_kill
from tests.record.witness import lines, note


@holdfast.verifier(name="facts:asked")
def asked(fact: Fact) -> object:
    """Answers what the fact's value says, and is counted outside of the store."""
    if fact.about is not None:
        note(fact.about, "asked", fact.name)
    answer = fact.value
    if answer == "raise":
        raise OSError("no network")
    return {
        "holds": Holds(),
        "gone": Contradicted("something else"),
        "unknown": Unknown("cannot see"),
        "yes": True,
        "no": False,
        "nonsense": 7,
    }[answer]


@holdfast.verifier(name="facts:branch_exists")
def branch_exists(fact: Fact) -> bool:
    found = subprocess.run(
        ["git", "rev-parse", "--quiet", "--verify", f"refs/heads/{fact.value}"],
        cwd=fact.about,
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


@holdfast.verifier(name="facts:model_offered")
def model_offered(fact: Fact) -> Holds | Contradicted:
    assert fact.about is not None
    offered = Path(fact.about).read_text().split()
    return Holds() if fact.value in offered else Contradicted(offered)


def test_a_fact_is_stated_read_replaced_and_withdrawn(hf: Store) -> None:
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.set("stage", "triage")
    stated = chat.facts.state("branch", "main", about="repo", valid_for="1h")
    assert (stated.name, stated.value, stated.scope) == ("branch", "main", "conversation/c")
    assert (stated.stale, stated.reason, stated.about) == (False, None, "repo")
    assert stated.valid_s == 3600
    assert stated.valid_until is not None
    assert stated.valid_until <= stated.stated_at + timedelta(hours=1)
    assert stated.updated_at == stated.stated_at
    assert stated.stated_by == hf.workers.own
    chat.facts.state("model", {"name": "m", "keys": [1, b"x"]})
    assert chat.facts.state("branch", "next").value == "next"
    assert [(fact.name, fact.value) for fact in chat.facts.list()] == [
        ("branch", "next"),
        ("model", {"name": "m", "keys": [1, b"x"]}),
    ]
    chat.facts.withdraw("branch")
    with pytest.raises(NotFoundError):
        chat.facts.get("branch")
    with pytest.raises(NotFoundError):
        chat.facts.withdraw("branch")
    assert [fact.name for fact in chat.facts.list()] == ["model"]
    chat.facts.state("branch", "back")
    assert chat.facts.get("branch").value == "back"
    assert hf.team("t").facts.list() == []
    assert hf.conversation("d").facts.list() == []
    assert chat.state == {"stage": "triage"}
    assert chat.parent == hf.team("t")
    assert hf.check().ok


def test_a_large_value_is_kept_beside_the_log(hf: Store) -> None:
    large = ["x" * 1000] * 200
    chat = hf.conversation("c")
    assert chat.facts.state("log", large).value == large
    assert len(hf._log.records(chat.name)[0].payload) < 1000


def test_a_fact_that_was_stated_often_is_found_in_few_lookups(
    hf: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 12."""
    chat = hf.conversation("c")
    for number in range(70):
        chat.facts.state("n", number)
    hf._kernel.part(RecordContext).known_numbers.clear()  # as a process that comes later  # pyright: ignore
    find, looks = hf._log._backend.find, list[int]()

    def counted(*args: Any, **named: Any) -> Any:
        looks.append(1)
        return find(*args, **named)

    monkeypatch.setattr(hf._log._backend, "find", counted)
    assert chat.facts.get("n").value == 69
    assert len(looks) <= 14
    looks.clear()
    assert chat.facts.get("n").value == 69
    assert len(looks) <= 2


def test_a_stale_fact_is_marked_before_it_is_read(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.open(str(tmp_path / "store"), settings=Settings(clock=clock)) as hf:
        chat = hf.conversation("c")
        chat.facts.state("branch", "main", valid_for="1h")
        chat.facts.state("forever", 1)
        clock.advance(3599)
        assert (chat.facts.get("branch").stale, hf.stale()) == (False, [])
        clock.advance(2)
        fact = chat.facts.get("branch")
        assert fact.stale
        assert fact.reason is not None
        assert fact.reason.startswith("past its time since 2023-11-14")
        [stale] = hf.stale()
        assert (stale.kind, stale.id, stale.scope) == ("fact", "branch", "conversation/c")
        assert (stale.why, stale.since) == ("past its time", fact.valid_until)
        assert hf.stale(verify=False) == [stale]
        assert [fact.name for fact in chat.facts.list(older_than="30m")] == ["branch", "forever"]
        chat.facts.state("branch", "main", valid_for=60)
        assert hf.stale() == []
        assert chat.facts.list(older_than=timedelta(minutes=30))[0].name == "forever"


def test_a_verifier_makes_a_fact_fresh_or_stale_and_is_asked_only_when_needed(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    with holdfast.open(str(tmp_path / "store"), settings=Settings(clock=clock)) as hf:
        facts = hf.conversation("c").facts
        facts.state("f", "holds", verify=asked, valid_for="1h", about=str(tmp_path))
        clock.advance(7200)
        assert facts.get("f").stale
        assert len(hf.stale(verify=False)) == 1
        assert lines(tmp_path, "asked") == []
        assert hf.stale() == []
        assert lines(tmp_path, "asked") == ["f"]
        fresh = facts.get("f")
        assert (fresh.stale, fresh.stated_at < fresh.updated_at) == (False, True)
        assert fresh.verified_at == fresh.updated_at
        assert fresh.valid_until == fresh.verified_at + timedelta(hours=1)
        facts.check("f")
        assert lines(tmp_path, "asked") == ["f", "f"]
        clock.advance(3601)
        assert facts.get("f").stale
        facts.state("f", "gone", verify=asked, about=str(tmp_path))
        assert not facts.get("f").stale
        [stale] = hf.stale()
        assert (stale.why, stale.id) == ("contradicted", "f")
        contradicted = facts.get("f")
        assert contradicted.stale
        assert contradicted.reason == "contradicted by facts:asked: 'something else'"
        assert contradicted.found == "something else"
        events = [event.type for event in hf.conversation("c").history()]
        hf.stale()
        assert [event.type for event in hf.conversation("c").history()] == events
        assert hf.stale(verify=False)[0].why == "contradicted"


@pytest.mark.parametrize(
    ("value", "stale"),
    [
        ("yes", False),
        ("no", True),
        ("unknown", False),
        ("raise", False),
        ("nonsense", False),
        ("holds", False),
    ],
)
def test_only_a_clear_answer_counts(hf: Store, value: str, stale: bool) -> None:
    facts = hf.conversation("c").facts
    facts.state("f", value, verify="facts:asked")
    assert facts.check("f").stale is stale
    assert len(list(hf.conversation("c").history())) == 1 + stale


def test_a_verifier_that_is_not_registered_changes_nothing(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.core import intent

    hf.conversation("c").facts.state("f", "no", verify=asked)
    monkeypatch.setattr(intent.verifiers, "_functions", {})
    assert hf.stale() == []


def test_a_fact_that_holds_again_is_no_longer_stale(hf: Store, tmp_path: Path) -> None:
    offered = tmp_path / "models"
    offered.write_text("m2")
    facts = hf.conversation("c").facts
    facts.state("model", "m1", verify=model_offered, about=str(offered))
    assert facts.check("model").stale
    offered.write_text("m1 m2")
    assert not facts.check("model").stale
    assert hf.stale() == []
    assert facts.get("model").verified_at is not None


def test_a_fork_lists_a_fact_that_its_origin_withdrew(hf: Store) -> None:
    """What was withdrawn after the fork counts in the fork, in `list` as in `get`."""
    chat = hf.conversation("c")
    chat.facts.state("tests", "green")
    before = chat.revision
    fork = chat.fork("f")
    chat.facts.withdraw("tests")
    assert [fact.name for fact in fork.facts.list()] == ["tests"] == [fork.facts.get("tests").name]
    assert chat.facts.list() == []
    assert [fact.name for fact in chat.fork("g", at=before).facts.list()] == ["tests"]
    assert chat.fork("h").facts.list() == []
    fork.facts.withdraw("tests")
    assert fork.facts.list() == []
    chat.facts.state("tests", "red")
    assert [fact.value for fact in chat.facts.list()] == ["red"]
    assert [fact.name for fact in hf.stale()] == []


def test_a_fork_reads_what_it_inherited(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.facts.state("a", 1)
    chat.facts.state("b", "no", verify=asked)
    fork = chat.fork("what-if")
    chat.facts.state("a", 2)
    assert (fork.facts.get("a").value, chat.facts.get("a").value) == (1, 2)
    fork.facts.state("a", 3)
    assert (fork.facts.get("a").value, chat.facts.get("a").value) == (3, 2)
    assert [fact.value for fact in fork.facts.list()] == [3, "no"]
    assert fork.facts.check("b").stale
    assert not chat.facts.get("b").stale
    fork.facts.withdraw("b")
    assert [fact.name for fact in fork.facts.list()] == ["a"]
    assert [fact.name for fact in chat.facts.list()] == ["a", "b"]


def test_the_facts_of_all_scopes_are_those_that_count_each_once() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        red, short = hf.team("red"), hf.conversation("c", ttl_s=5)
        for value in (1, 2):
            red.facts.state("price", value)
            red.facts.withdraw("price")
        red.facts.state("price", 3)
        red.facts.state("name", "Ada", valid_for="1h")
        short.facts.state("mood", "good")
        found = [(one.scope, one.name, one.value) for one in hf.facts.list()]
        assert found[0] == ("conversation/c", "mood", "good")
        assert found[1:] == [("team/red", "name", "Ada"), ("team/red", "price", 3)]
        clock.advance(9)  # a scope that ended hides no other
        assert [one.name for one in hf.facts.list(limit=1)] == ["name"]
        assert [one.name for one in hf.facts.list()] == ["name", "price"]


def test_bad_arguments_write_nothing(hf: Store) -> None:
    facts = hf.conversation("c").facts
    bad: list[dict[str, Any]] = [
        {"name": ""},
        {"name": 7},
        {"name": "n" * 500},
        {"value": object()},
        {"verify": "nobody:knows"},
        {"verify": 7},
        {"valid_for": "soon"},
        {"valid_for": 0},
        {"valid_for": -5},
        {"valid_for": [1]},
        {"about": 7},
        {"about": ""},
    ]
    for options in bad:
        with pytest.raises((UsageError, NotFoundError)):
            facts.state(**{"name": "n", "value": 1, **options})
    with pytest.raises(UsageError):
        hf.stale(verify="yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        facts.list(older_than="x")
    assert hf.conversation("c").revision == 0


# --- BOOT-71: the three required examples ---------------------------------------------------------


def git(place: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True)


def test_a_branch_that_was_merged_and_deleted(hf: Store, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    git(repository, "branch", "feature-x")
    facts = hf.global_().facts
    facts.state("branch", "feature-x", verify=branch_exists, about=str(repository))
    assert hf.stale() == []
    git(repository, "branch", "-D", "feature-x")
    [stale] = hf.stale()
    assert (stale.id, stale.why) == ("branch", "contradicted")
    assert facts.get("branch").stale


def test_a_worker_that_crashed_in_the_middle(durable: str, tmp_path: Path) -> None:
    url = new_url(durable, tmp_path)
    program = (
        "import sys, time, holdfast\n"
        "hf = holdfast.open(sys.argv[1], settings=holdfast.Settings(heartbeat_s=0.2))\n"
        "d = hf.conversation('c').decide('do task 3')\n"
        "print(d.id, flush=True)\n"
        "time.sleep(600)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program, url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    try:
        id = worker.stdout.readline().decode().strip()
        with holdfast.open(url) as hf:
            assert [d.id for d in hf.decisions.list(incomplete=True)] == [id]
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            await_deaths(hf)
            [stale] = hf.stale()
            assert (stale.kind, stale.id, stale.why) == ("decision", id, "owner silent")
            assert "do task 3" in stale.text
            hf.decisions.close(id, "somebody else does it")
            assert hf.stale() == []
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def test_a_model_that_is_gone(hf: Store, tmp_path: Path) -> None:
    offered = tmp_path / "models"
    offered.write_text("m-1 m-2")
    facts = hf.global_().facts
    facts.state("model", "m-1", verify=model_offered, about=str(offered))
    assert not facts.check("model").stale
    offered.write_text("m-2 m-3")
    fact = facts.check("model")
    assert fact.stale
    assert fact.found == ["m-2", "m-3"]


# --- killed between every two commits ------------------------------------------------------------


def test_facts_killed_anywhere_agree_with_their_marks(durable: str, tmp_path: Path) -> None:
    def work(url: str) -> None:
        facts = open_dying(url).conversation("c").facts
        facts.state("a", "gone", verify=asked)
        facts.check("a")
        facts.state("a", "holds", verify=asked, valid_for="1h")
        facts.check("a")
        facts.withdraw("a")

    for kill in kill_everywhere(work, lambda: new_url(durable, tmp_path), in_turns=True):
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c")
            done = [event.type for event in chat.history()]
            assert len(done) == kill.nth - (kill.when == "before"), kill
            found = chat.facts.list()
            assert len(found) == len(hf.workers.marks("fact")) == (len(done) in (1, 2, 3, 4)), kill
            stale = hf.stale(verify=False)
            assert bool(stale) == (len(done) == 2), kill
            if found:
                assert found[0].stale == bool(stale), kill
            assert hf.check().ok, kill


def test_workers_state_one_fact_at_once(durable: str, tmp_path: Path) -> None:
    """Every statement is kept and numbered; the last one counts."""
    from tests.crash.children import Child

    url = new_url(durable, tmp_path)

    def work(_pipe: int, _stop: int) -> None:
        with holdfast.open(url) as hf:
            for number in range(15):
                hf.team("t").facts.state("n", f"{hf.workers.own} {number}")

    children = [Child(work) for _ in range(4)]
    for child in children:
        child.end()
        assert child.trouble is None, child.trouble
    with holdfast.open(url) as hf:
        team = hf.team("t")
        stated = [event for event in team.history(type="fact.stated")]
        assert len(stated) == 60
        assert [event.key for event in stated] == [f"fact#{n}:n" for n in range(1, 61)]
        assert team.facts.get("n").value == stated[-1].data["value"]


def test_a_layer_lists_what_else_a_silent_worker_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_url("sqlite", tmp_path)
    run_and_kill(lambda: (open_dying(url).conversation("c").decide("x"), die()))
    with holdfast.open(url) as hf:
        [mine] = hf.stale()
        layer = Layer(name="mine", stale=lambda _context, _verify: [mine])
        monkeypatch.setitem(layers._table, "mine", layer)
        assert hf.stale() == [mine, mine]


def test_events_with_unexpected_data_are_reported() -> None:
    """Guarantee 7."""
    for type, data in (("fact.stated", {"name": "f"}), ("fact.verified", 7), ("fact.stated", [])):
        with holdfast.open("memory:") as hf:
            new_event = NewEvent(type, encode(data))
            hf._log.commit(
                ProposedCommit((StreamWrite("conversation/c", (new_event,), key="fact#1:f"),))
            )
            with pytest.raises(CorruptError, match="event 1 of"):
                hf.conversation("c").facts.get("f")


# --- what happens during a verification ----------------------------------------------------------


looking: list[Any] = []


@holdfast.verifier(name="facts:looking")
def looks(fact: Fact) -> object:
    """Lets something happen, and then answers about the fact."""
    then, answer = looking.pop()
    then()
    return answer


@pytest.mark.parametrize("answer", [Holds(), Contradicted("older")])
def test_a_verdict_about_one_statement_does_not_count_for_the_next(
    hf: Store, answer: object
) -> None:
    """BOOT-70: what nobody verified is not verified, and what nobody contradicted is trusted."""
    facts = hf.conversation("c").facts
    facts.state("version", 1, verify=looks, valid_for="1h")
    looking.append((lambda: facts.state("version", 2, verify=looks, valid_for="1h"), answer))
    found = facts.check("version")
    assert (found.value, found.verified_at, found.contradicted_at) == (2, None, None)
    assert facts.get("version") == found
    looking.append((lambda: facts.withdraw("version"), answer))
    facts.check("version")
    assert facts.list() == []
    assert hf.workers.marks("fact") == []


def test_a_scope_that_expires_during_a_verification_hides_no_other_fact() -> None:
    """Clause 18, and guarantee 7: the others are stale, and listed."""
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        short, closing, last = hf.conversation("a", ttl_s=5), hf.team("b"), hf.team("c")
        for scope in (closing, short, last):
            scope.facts.state("name", 1, verify=looks, valid_for="1h")
            clock.advance(1)
        gone = Contradicted("another")
        looking[:] = [(lambda: None, gone), (lambda: clock.advance(9), gone), (closing.close, gone)]
        told = [(one.scope, one.why) for one in hf.stale()]
        assert told[-1] == ("team/c", "contradicted")
        assert looking == []
