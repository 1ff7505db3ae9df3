"""Policies of retention on every backend: what goes, what stays, what comes back (RALPH-49, 55)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import NotFoundError, Settings, Store, UsageError, aio
from holdfast.backends.protocol import GONE, START
from holdfast.core.retention import Retainer
from holdfast.errors import LetGoError
from holdfast.render.record import own_event_document
from holdfast.retention import RetentionPolicy
from holdfast.testing import FakeClock

DAY_S = 86_400


@pytest.fixture
def aged(url: str) -> Any:
    clock = FakeClock()
    with holdfast.open(url, settings=Settings(clock=clock)) as store:
        yield store, clock


def names(hf: Store) -> list[str]:
    return [scope.name for scope in hf.scopes()]


def test_ralph_49_old_scopes_go_into_the_bin_and_then_for_good(aged: Any) -> None:
    hf, clock = aged
    old, young = hf.conversation("old"), hf.conversation("young")
    hf.team("t").set("n", 1)
    old.set("secret", "CANARY-old")
    clock.advance(90 * DAY_S)
    young.set("n", 1)
    policies = [RetentionPolicy("conversation/*", older_than="60d")]
    planned = hf.retention.preview(policies=policies)
    assert [(one.scope, one.policy, one.events) for one in planned.binned] == [
        ("conversation/old", "conversation/* older_than=60d", 1)
    ]
    assert names(hf) == ["conversation/old", "conversation/young", "team/t"]
    done = hf.retention.run(policies=policies)
    assert ([one.scope for one in done.binned], done.scopes) == (["conversation/old"], [])
    assert names(hf) == ["conversation/young", "team/t"]
    assert [one.scope for one in hf.retention.bin()] == ["conversation/old"]
    clock.advance(8 * DAY_S)
    gone = hf.retention.run(policies=policies)
    assert [(one.scope, one.why) for one in gone.scopes] == [("conversation/old", "removed")]
    assert hf.retention.bin() == []
    payloads = [record.payload for record in hf._log.read_all(after=START, limit=1000)]
    assert not any(b"CANARY-old" in payload for payload in payloads)
    with pytest.raises(NotFoundError, match="is not in the bin"):
        hf.retention.bring_back(old)
    assert hf.check().findings == []


def test_a_policy_that_has_done_all_its_work_keeps_nobody_from_theirs(aged: Any) -> None:
    """The scopes that it was for are in the bin, removed by hand or ended: then the bytes go."""
    hf, clock = aged
    hf.conversation("old").set("secret", "CANARY-old")
    hf.conversation("by-hand").set("n", 1)
    if hf.status()["kind"] != "redis":  # which lets go of it by itself, and knows nothing of it
        hf.conversation("ends", ttl_s=60).set("n", 1)
    hf.conversation("by-hand").remove()
    hf.team("t").set("n", 1)
    clock.advance(90 * DAY_S)
    policies = [RetentionPolicy("conversation/*", older_than="60d")]
    first = hf.retention.run(policies=policies)
    assert "conversation/old" in [one.scope for one in first.binned]
    clock.advance(8 * DAY_S)
    more = [*policies, RetentionPolicy("team/*", older_than="60d")]
    assert [one.scope for one in hf.retention.preview(policies=more).binned] == ["team/t"]
    gone = hf.retention.run(policies=more)
    assert "conversation/old" in [one.scope for one in gone.scopes]
    assert ([one.scope for one in gone.binned], gone.warnings) == (["team/t"], [])
    assert [one.scope for one in hf.retention.bin()] == ["team/t"]
    payloads = [record.payload for record in hf._log.read_all(after=START, limit=1000)]
    assert not any(b"CANARY-old" in payload for payload in payloads)
    assert hf.retention.run(policies=policies).binned == []


def test_a_policy_for_a_level_that_is_empty_today_is_a_warning_beside_others(aged: Any) -> None:
    hf, clock = aged
    hf.conversation("c").set("n", 1)
    clock.advance(90 * DAY_S)
    policies = [
        RetentionPolicy("team/*", older_than="1d"),
        RetentionPolicy("conversation/typo-*", older_than="1d"),
        RetentionPolicy("conversation/*", older_than="1d"),
    ]
    for retain in (hf.retention.preview, hf.retention.run):
        done = retain(policies=policies)
        assert [one.scope for one in done.binned] == ["conversation/c"]
        assert [("team/*" in one, "typo" in one) for one in done.warnings] == [
            (True, False),
            (False, True),
        ]
        assert all("is for no scope of the store" in one for one in done.warnings)


def test_unretain_brings_a_scope_back_whole(aged: Any) -> None:
    hf, clock = aged
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.say("hello")
    chat.checkpoint("named")
    clock.advance(90 * DAY_S)
    policies = [RetentionPolicy("conversation/*", older_than="60d")]
    hf.retention.run(policies=policies)
    assert chat.state.to_dict() == {}
    assert hf.retention.bring_back("conversation/c") == chat.revision
    assert (chat.state.to_dict(), chat.at("named")["n"]) == ({"n": 1}, 1)
    assert [message.text for message in chat.messages] == ["hello"]
    assert hf.retention.run(policies=policies).binned == []  # it counts as written to now
    assert hf.retention.bin() == []
    for scope in ("conversation/c", "team/absent"):
        with pytest.raises(NotFoundError):
            hf.retention.bring_back(scope)


def test_the_newest_scopes_stay_by_number_and_by_size(aged: Any) -> None:
    hf, clock = aged
    for number in range(6):
        clock.advance(1)
        hf.conversation(f"c{number}").set("data", "x" * 1000)
    by_size = hf.retention.preview(policies=[RetentionPolicy("conversation/*", bytes="3500B")])
    assert [one.scope for one in by_size.binned] == [f"conversation/c{n}" for n in range(3)]
    by_count = [RetentionPolicy("conversation/*", count=4)]
    assert [one.scope for one in hf.retention.run(policies=by_count).binned] == [
        "conversation/c0",
        "conversation/c1",
    ]
    assert names(hf) == [f"conversation/c{n}" for n in range(2, 6)]


def test_a_hold_beats_every_policy(aged: Any) -> None:
    hf, clock = aged
    for id in ("a", "b"):
        hf.conversation(id).record("seen", {"n": 1}, unchecked=True)
    hf.retention.hold("conversation/a", "a court asked for it")
    clock.advance(90 * DAY_S)
    policies = [
        RetentionPolicy("conversation/*", older_than="30d"),
        RetentionPolicy("conversation/*", types=["seen"], older_than="30d"),
    ]
    assert hf.retention.preview(policies=policies).held == ["conversation/a"]
    done = hf.retention.run(policies=policies, grace_s=0)
    assert (done.held, [one.scope for one in done.binned]) == (
        ["conversation/a"],
        ["conversation/b"],
    )
    assert [event.data for event in hf.conversation("a").history(type="seen")]


def test_what_is_under_way_is_not_removed(aged: Any) -> None:
    hf, clock = aged
    chat = hf.conversation("c")
    decision = chat.decide("deploy?")
    clock.advance(90 * DAY_S)
    policies = [RetentionPolicy("conversation/*", older_than="30d")]
    done = hf.retention.run(policies=policies)
    assert (done.binned, list(done.refused)) == ([], ["conversation/c"])
    assert "cannot be removed" in done.refused["conversation/c"]
    hf.decisions.close(decision.id, "done")
    assert chat.revision


def test_own_events_go_by_age_number_and_size_and_the_rest_stays(aged: Any) -> None:
    hf, clock = aged
    team = hf.team("t")
    for number in range(10):
        team.record("measured", {"n": number}, unchecked=True)
        team.record("judged", {"n": number}, unchecked=True)
        team.set("n", number)
        clock.advance(DAY_S)

    def left(type: str) -> list[int]:
        events = team.history(type=type)
        return [event.raw["n"] for event in events if event.record.payload != GONE]

    old = RetentionPolicy("team/*", types=["measured"], older_than="5d")
    assert hf.retention.preview(policies=[old]).scopes == []  # the grace is seven days
    planned = hf.retention.preview(policies=[old], grace_s=2 * DAY_S)
    assert [(one.scope, one.why, one.events) for one in planned.scopes] == [("team/t", "policy", 4)]
    assert hf.retention.run(policies=[old], grace_s=2 * DAY_S).events == 4
    assert (left("measured"), left("judged")) == ([4, 5, 6, 7, 8, 9], list(range(10)))
    few = RetentionPolicy("team/*", types=["meas*"], count=3)
    assert hf.retention.run(policies=[few], grace_s=0).events == 3
    size = len(next(team.history(type="judged")).record.payload)
    small = RetentionPolicy("team/*", types=["judged"], bytes=2 * size)
    assert hf.retention.run(policies=[small], grace_s=0).events == 8
    assert (left("measured"), left("judged")) == ([7, 8, 9], [8, 9])
    assert hf.retention.run(policies=[few, small, old], grace_s=0).events == 0
    assert team["n"] == 9
    first = next(team.history(type="measured"))
    with pytest.raises(LetGoError):
        first.data  # noqa: B018
    document = own_event_document(first)
    assert (document["data"], document["let_go"], document["refs"]) == (None, True, [])
    assert hf.check().findings == []


def test_boot_35_messages_go_by_age_and_number_and_the_rest_stays(aged: Any) -> None:
    """By category: what was said, calls of tools and their results; not state or decisions."""
    hf, clock = aged
    chat = hf.conversation("c")
    chat.set("stage", "open")
    chat.messages.add("user", "CANARY-old")
    call = [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    chat.messages.add("assistant", "", tool_calls=call)
    result = chat.messages.add("tool", "CANARY-result", tool_call_id="t1")
    chat.messages.edit(result.id, content="CANARY-edited")
    decision = chat.decide("refund")
    busy = hf.conversation("busy")
    busy.say("CANARY-busy")
    busy.decide("wait")
    clock.advance(100 * DAY_S)
    chat.say("new one")
    chat.say("new two")
    policies = [RetentionPolicy("conversation/*", types=["messages"], older_than="60d")]
    decision.outcome("done")
    planned = hf.retention.preview(policies=policies)
    assert [(one.scope, one.why, one.events) for one in planned.scopes] == [
        ("conversation/c", "policy", 4)
    ]
    assert list(planned.refused) == ["conversation/busy"]
    assert len(chat.messages) == 5
    hf.retention.hold(chat)
    assert hf.retention.run(policies=policies).scopes == []
    hf.retention.unhold(chat)
    head = hf._log.heads(["conversation/c"])
    done = hf.retention.run(policies=policies)
    assert [(one.scope, one.events) for one in done.scopes] == [("conversation/c", 4)]
    assert hf._log.heads(["conversation/c"]) == head
    assert [one.content for one in chat.messages] == ["new one", "new two"]
    assert len(chat.messages) == 2
    assert chat["stage"] == "open"
    assert [one.content for one in busy.messages] == ["CANARY-busy"]
    payloads = [record.payload for record in hf._log.read_all(after=START, limit=1000)]
    assert not any(b"CANARY-old" in one or b"CANARY-res" in one for one in payloads)
    by_number = [RetentionPolicy("conversation/c", types=["messages"], count=1)]
    hf.retention.run(policies=by_number, grace_s=0)
    assert [one.content for one in chat.messages] == ["new two"]
    chat.say("and on")
    assert [one.content for one in chat.messages] == ["new two", "and on"]
    assert hf.check().findings == []


def test_what_a_fork_began_from_stays(aged: Any) -> None:
    hf, clock = aged
    chat = hf.conversation("c")
    for number in range(4):
        chat.record("seen", {"n": number}, unchecked=True)
    chat.fork("f", at=2)
    clock.advance(DAY_S)
    policy = RetentionPolicy("conversation/c", types=["seen"], older_than="1s")
    assert hf.retention.run(policies=[policy], grace_s=0).events == 2
    assert [event.data for event in hf.conversation("f").history(type="seen")] == [
        {"n": 0},
        {"n": 1},
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RetentionPolicy("*", older_than="1d"), "every scope"),
        (lambda: RetentionPolicy("*/*", count=1), "every scope"),
        (lambda: RetentionPolicy("", count=1), "by a pattern"),
        (lambda: RetentionPolicy(7, count=1), "by a pattern"),  # type: ignore[arg-type]
        (lambda: RetentionPolicy("team/*"), "keeps everything"),
        (lambda: RetentionPolicy("team/*", count=0), "count"),
        (lambda: RetentionPolicy("team/*", older_than="soon"), "older_than"),
        (lambda: RetentionPolicy("team/*", bytes="many"), "bytes"),
        (lambda: RetentionPolicy("team/*", types="seen", count=1), "types is a list"),
        (lambda: RetentionPolicy("team/*", types=[""], count=1), "name of an own event"),
        (lambda: RetentionPolicy("team/*", types=["changed"], count=1), "types of your own"),
        (lambda: RetentionPolicy("team/*", types=["task.added"], count=1), "types of your own"),
    ],
)
def test_a_policy_that_is_none_says_what_is_wrong(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_a_policy_for_no_scope_is_refused_before_anything_goes(aged: Any) -> None:
    hf, clock = aged
    hf.conversation("c").set("n", 1)
    clock.advance(90 * DAY_S)
    policies = [
        RetentionPolicy("conversation/*", older_than="1d"),
        RetentionPolicy("converstaion/*", older_than="1d"),
    ]
    for retain in (hf.retention.preview, hf.retention.run):
        with pytest.raises(UsageError, match="is for no scope"):
            retain(policies=policies)
    assert names(hf) == ["conversation/c"]
    with pytest.raises(UsageError, match="are a list"):
        hf.retention.run(policies="conversation/*")
    with pytest.raises(UsageError, match="expected a RetentionPolicy"):
        hf.retention.run(policies=[1])


def test_policies_of_a_store_are_in_its_file_or_given_to_open(tmp_path: Path) -> None:
    clock = FakeClock()
    file = tmp_path / "holdfast.toml"
    file.write_text(
        '[store]\n"*" = "state"\n'
        '[[retention]]\nscopes = "conversation/*"\nolder_than = "30d"\n'
        '[[retention]]\nscopes = "team/*"\ntypes = ["seen"]\ncount = 2\n'
        '[[quotas]]\nscopes = "team/*"\nevents = 4\n'
        '[disk_watch]\nwarn = "1%"\n'
    )
    with holdfast.open(str(file), settings=Settings(clock=clock)) as hf:
        hf.conversation("c").set("n", 1)
        for number in range(4):
            hf.team("t").record("seen", {"n": number}, unchecked=True)
        with pytest.raises(holdfast.LimitError):
            hf.team("t").set("n", 1)
        clock.advance(90 * DAY_S)
        done = hf.retention.run(grace_s=0)
        assert [one.scope for one in done.binned] == ["conversation/c"]
        assert {one.scope for one in done.scopes} == {"conversation/c", "team/t"}
    policy = RetentionPolicy("team/*", older_than="1d")
    with holdfast.open("memory:", settings=Settings(clock=clock, retention=[policy])) as hf:
        hf.team("t").set("n", 1)
        clock.advance(2 * DAY_S)
        assert [one.scope for one in hf.retention.run().binned] == ["team/t"]
        assert hf.retention.run(policies=[]).binned == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[retention]\nscopes = "a/*"', r"expected \[\[retention\]\]"),
        ('[[retention]]\nscope = "a/*"', r"a \[\[retention\]\] that is none"),
        ('[[retention]]\nscopes = "*"\ncount = 1', "every scope"),
        ('[[quotas]]\nscopes = "team/*"', "limits nothing"),
        ("disk_watch = 5", r"no table \[disk_watch\]"),
        ('[disk_watch]\nwarn = "lots"', "warn is a size"),
        ('[disk]\nwarn = "1%"', r"has a table 'disk'; it is \[disk_watch\] now"),
        ('[[quota]]\nscopes = "team/*"', r"it is \[\[quotas\]\] now"),
    ],
)
def test_a_file_that_says_no_policy_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "holdfast.toml"
    store = '[store]\n"*" = "state"\n'
    file.write_text(text + "\n" + store if text.startswith("disk") else store + text)
    with pytest.raises(UsageError, match=says):
        holdfast.open(str(file))


def test_asyncio_has_the_same() -> None:
    async def main() -> None:
        async with await aio.open("memory:") as hf:
            await hf.team("t").set("n", 1)
            policies = [RetentionPolicy("team/*", older_than=1e-6)]
            assert [one.scope for one in (await hf.retention.run(policies=policies)).binned] == [
                "team/t"
            ]
            assert [one.scope for one in await hf.retention.bin()] == ["team/t"]
            assert await hf.retention.bring_back(hf.team("t")) == 3

    asyncio.run(main())


def test_a_run_that_is_killed_between_telling_and_removing_harms_nothing(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.team("t").set("n", 1)
        hf._kernel.part(Retainer).tell_binned("team/t", 1, "a policy")
        assert hf.retention.bin() == []
        assert hf.team("t")["n"] == 1
        with pytest.raises(NotFoundError):
            hf.retention.bring_back("team/t")


def test_the_command_line_follows_the_file(tmp_path: Path, capsys: Any) -> None:
    from holdfast.cli.app import run

    file = tmp_path / "holdfast.toml"
    file.write_text('[store]\n"*" = "state"\n[[retention]]\nscopes = "conversation/*"\ncount = 1\n')
    place = ["--store", str(file)]
    with holdfast.open(str(file)) as hf:
        hf.conversation("a").set("n", 1)
        hf.conversation("b").set("n", 1)
    assert run([*place, "retain", "--dry-run"]) == 0
    assert "would be removed\tconversation/a\tby conversation/* count=1" in capsys.readouterr().out
    assert run([*place, "retain"]) == 0
    assert run([*place, "unretain"]) == 0
    assert "conversation/a" in capsys.readouterr().out
    assert run([*place, "unretain", "conversation/a"]) == 0
    assert "is back, at revision 3" in capsys.readouterr().out
    assert run([*place, "unretain", "conversation/a"]) == 3
    assert run([*place, "unretain", "--json"]) == 0
    assert capsys.readouterr().out == '{"binned":[]}\n'
    with holdfast.open(str(file)) as hf:
        hf.team("t").record("seen", {"n": 1}, unchecked=True)
        hf.team("t").record("seen", {"n": 2}, unchecked=True)
        hf.retention.run(grace_s=0, policies=[RetentionPolicy("team/*", types=["seen"], count=1)])
    assert run([*place, "event", "list", "team/t"]) == 0
    assert "let go of" in capsys.readouterr().out
