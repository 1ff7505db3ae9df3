"""Letting go on every backend: what goes, what stays, who is told (0049, RALPH-49, RALPH-51)."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.protocol import GONE, START
from holdfast.core import retention
from holdfast.core.compaction import put_base
from holdfast.core.retention import BLOBS, PENDING, Retainer
from holdfast.errors import ExpiredError, LeaseLostError, LetGoError, NotFoundError, UsageError
from holdfast.scope import Scope
from holdfast.store import Meta
from holdfast.transfer.copy import copy_log
from tests.record.stores import new_url

CANARY = "CANARY-3b1f"


def lived(hf: Store, id: str) -> Scope:
    """Returns a scope that holds a canary in every kind of record that people write."""
    chat = hf.conversation(id)
    for number in range(3):
        early = chat.set(f"{CANARY}-{number}", {"deep": [CANARY, number]})
    chat.set("large", [CANARY * 8000])
    chat.append("list", CANARY)
    chat.say(f"{CANARY} hello")
    chat.facts.state("place", CANARY)
    task = chat.tasks.add(f"{CANARY} task")
    chat.tasks.claim(task.id)
    chat.tasks.close(task.id, CANARY)
    with chat.decide(f"{CANARY}?", because=CANARY) as decision:
        decision.outcome(CANARY)
    with hf.commit(meta=Meta(source="test")) as tx:
        tx.scope(chat).set("with meta", CANARY)
    chat.checkpoint("named")
    chat.restore(early)
    return chat


def stored(hf: Store) -> bytes:
    """Returns every payload and object that the store can be asked for, large ones unpacked."""
    parts = [record.payload for record in hf._log.read_all(after=START, limit=100_000)]
    for kind in ("blob", "snapshot"):
        for name in hf._log._backend.objects.names(kind):
            data = hf._log._backend.objects.get(kind, name) or b""
            with suppress(Exception):
                data = holdfast.core.codec.decompress(data, size_max=1 << 30)
            parts.append(data)
    return b"\n".join(parts)


def test_what_a_removed_scope_held_goes_and_all_else_stays(hf: Store) -> None:
    """BOOT-36, RALPH-51: and the digest of the store says that every event is in its place."""
    chat, other = lived(hf, "c"), hf.team("blue")
    other.set("stays", {"n": "pineapple"})
    assert list(hf.query(text=CANARY))
    chat.remove()
    chat.set("new life", 1)
    heads = {name: hf._log.heads([name])[0] for name in (chat.name, other.name)}
    found = hf.retention.run(grace_s=0)
    assert [(one.scope, one.why) for one in found.scopes] == [(chat.name, "removed")]
    assert found.events > 10
    assert found.blobs == 1
    assert CANARY.encode() not in stored(hf)
    assert heads == {name: hf._log.heads([name])[0] for name in heads}
    assert (chat.state.to_dict(), other.state.to_dict()) == (
        {"new life": 1},
        {"stays": {"n": "pineapple"}},
    )
    assert hf.check().findings == []
    assert hf.retention.run(grace_s=0).scopes == []
    assert list(hf.query(text=CANARY)) == []
    assert list(hf.query(kind="log", scope=chat))
    assert [hit.scope for hit in hf.query(text="pineapple")] == [other.name]
    [told] = {(one.scope, one.why) for one in hf.retention.past()}
    assert told == (chat.name, "removed")
    assert sum(one.events for one in hf.retention.past()) == found.events


def test_a_new_life_reads_and_writes_as_if_the_old_one_had_never_been(hf: Store) -> None:
    lived(hf, "c").remove()
    hf.retention.run(grace_s=0)
    chat = lived(hf, "c")
    assert [message.text for message in chat.messages.at("named").last()] == [f"{CANARY} hello"]
    assert chat.facts.get("place") is not None
    assert len(chat.tasks.list()) <= 1
    assert chat.at("named")["list"] == [CANARY]
    assert [event.is_let_go for event in chat.history()] == [False] * len(list(chat.history()))
    chat.remove()
    assert hf.retention.run(grace_s=0).events
    assert CANARY.encode() not in stored(hf)
    assert hf.check().findings == []


def test_what_was_let_go_is_an_error_of_its_own_that_names_it(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", CANARY)
    chat.set("n", 2)
    removed_at = chat.remove()
    hf.retention.run(grace_s=0)
    for ask in (lambda: chat.at(1), lambda: chat.diff(1, removed_at), chat.undo):
        with pytest.raises(LetGoError):
            ask()
    assert hf._log.heads([chat.name])[0].revision == removed_at  # type: ignore[union-attr]
    with pytest.raises(LetGoError, match='revision 1 of "conversation/c"') as raised:
        hf._log.at(chat.name, 1)
    assert (raised.value.stream, raised.value.revision) == (chat.name, 1)
    events = [
        event
        for event in hf.follow(as_events=True, after=START, timeout_s=0)
        if event.stream == chat.name
    ]
    assert [(event.type, event.is_let_go) for event in events][:2] == [("changed", True)] * 2
    with pytest.raises(LetGoError):
        events[0].data  # noqa: B018
    assert events[-1].data is not None


def test_a_scope_that_was_closed_without_its_state_leaves_no_bytes(hf: Store) -> None:
    """BOOT-6, VIC-22: state and messages were dropped; decisions can still be read, and stay."""
    chat, kept = hf.conversation("c"), hf.conversation("k")
    for number in range(3):
        chat.set("n", [CANARY, number])
    chat.set("large", [CANARY * 8000])
    chat.say(f"{CANARY} hello")
    with chat.decide("stay?") as decision:
        decision.outcome("yes")
    kept.set("n", 1)
    chat.close(keep=False)
    kept.close(keep=True)
    found = hf.retention.run(grace_s=0)
    assert [(one.scope, one.why) for one in found.scopes] == [(chat.name, "closed")]
    assert found.blobs == 1
    assert CANARY.encode() not in stored(hf)
    assert chat.messages.at(5).last() == []
    with pytest.raises(LetGoError):
        chat.at(2)
    assert list(hf.query(text=CANARY)) == []
    hf.search.tables()
    assert kept.state.to_dict() == {"n": 1}
    assert hf.check().findings == []


def test_bases_and_summaries_go_with_the_state_and_the_messages(hf: Store) -> None:
    """A closed scope keeps neither: both have by value what was dropped."""
    chat = hf.conversation("c")
    chat.set("n", CANARY)
    for number in range(4):
        chat.say(f"{CANARY} {number}")
    chat.messages.summarise(f"{CANARY} in short")
    chat.messages.compact(f"{CANARY} compacted", keep_last=1)
    head = _head(hf, chat.name)
    put_base(hf._log, chat.name, head, head.revision, lambda state: state)
    last = chat.revision
    chat.close(keep=False)
    hf.retention.run(grace_s=0)
    assert CANARY.encode() not in stored(hf)
    with pytest.raises(LetGoError):
        chat.at(last)
    assert list(chat.messages.at(last)) == chat.messages.at(last).summaries() == []
    assert hf.check().findings == []


def test_the_messages_of_a_removed_scope_are_none_once_they_went(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.say("one")
    chat.messages.compact("in short", keep_last=0)
    chat.messages.clear()
    chat.restore(chat.set("n", 1))
    last = chat.revision
    chat.remove()
    hf.retention.run(grace_s=0)
    then = chat.messages.at(last)
    assert list(then) == list(then.original()) == then.summaries() == []


@pytest.mark.parametrize("slides", [False, True])
def test_a_scope_whose_lifetime_is_over_leaves_no_bytes(hf: Store, slides: bool) -> None:
    """BOOT-54: the bytes go, they are not only hidden; a server may have let go of them itself."""
    chat = hf.conversation("c", ttl_s=0.05, slides=slides)
    with suppress(ExpiredError):
        chat.set("n", CANARY)
        chat.set("m", CANARY)
    while not hf._log.expiry.has_ended(chat.name, _head(hf, chat.name)):
        hf._log.clock.sleep(0.01)
    found = hf.retention.run(grace_s=0)
    kind = hf.status()["kind"]
    if kind != "redis":
        assert [(one.scope, one.why) for one in found.scopes] == [(chat.name, "expired")]
        assert CANARY.encode() not in stored(hf)
    with pytest.raises(ExpiredError):
        chat.state.to_dict()
    assert hf.check().findings == []


def _head(hf: Store, name: str) -> holdfast.backends.protocol.Head:
    [head] = hf._log.heads([name])
    assert head is not None
    return head


def test_a_dry_run_says_what_and_why_and_changes_nothing(hf: Store) -> None:
    chat = lived(hf, "c")
    chat.remove()
    before = hf.position, hf.status()["digest"], stored(hf)
    planned = hf.retention.preview(grace_s=0)
    assert planned.dry_run
    assert (hf.position, hf.status()["digest"], stored(hf)) == before
    done = hf.retention.run(grace_s=0)
    assert (planned.scopes, planned.events, planned.bytes) == (done.scopes, done.events, done.bytes)


def test_what_is_held_stays_whatever_becomes_of_it(hf: Store) -> None:
    chat = lived(hf, "c")
    hf.retention.hold(chat, "a court asked for it")
    chat.remove()
    for _ in range(2):
        found = hf.retention.run(grace_s=0)
        assert (found.scopes, found.held, found.blobs) == ([], [chat.name], 0)
    assert hf.retention.preview(grace_s=0).held == [chat.name]
    [hold] = hf.retention.holds()
    assert (hold.scope, hold.reason) == (chat.name, "a court asked for it")
    assert CANARY in str(hf._log.at(chat.name, 4).root["large"])
    hf.retention.unhold(chat.name)
    assert hf.retention.holds() == []
    assert hf.retention.run(grace_s=0).events
    assert CANARY.encode() not in stored(hf)


def test_a_hold_of_what_is_not_there_is_refused(hf: Store) -> None:
    with pytest.raises(NotFoundError, match="no scope"):
        hf.retention.hold("team/absent")
    with pytest.raises(NotFoundError, match="is not held"):
        hf.retention.unhold("team/absent")
    hf.team("red").set("n", 1)
    for reason in ("", 7):
        with pytest.raises(UsageError):
            hf.retention.hold("team/red", reason)  # type: ignore[arg-type]
    for wrong in (-1, "now", float("nan")):
        with pytest.raises(UsageError):
            hf.retention.run(grace_s=wrong)  # type: ignore[arg-type]
    assert hf.retention.holds() == []


def test_nothing_goes_before_its_grace_is_over(hf: Store) -> None:
    chat = lived(hf, "c")
    chat.remove()
    assert hf.retention.run().scopes == []
    assert hf.retention.preview(grace_s=3600).scopes == []
    chat.undo()
    assert chat.get("large") is None  # restored to an earlier revision before
    assert hf.retention.run(grace_s=0).scopes == []
    assert chat.at(4)["large"] == [CANARY * 8000]


def test_the_past_of_a_fork_stays_while_the_fork_is_there(hf: Store) -> None:
    chat = hf.conversation("c")
    for number in range(6):
        chat.set("n", [CANARY, number])
    fork = chat.fork("f", at=4)
    deeper = fork.fork("g", at=2)
    chat.remove()
    fork.set("own", 1)
    assert [one.until for one in hf.retention.run(grace_s=0).scopes] == [6]
    assert [fork.at(number)["n"] for number in (1, 4)] == [[CANARY, 0], [CANARY, 3]]
    assert deeper.get("n") == [CANARY, 1]
    records = hf._log.read(chat.name, after=0)
    assert [record.payload == GONE for record in records] == [*[False] * 4, True, True, False]
    fork.remove()
    hf.retention.run(grace_s=0)
    assert deeper.get("n") == [CANARY, 1]
    deeper.remove()
    hf.retention.run(grace_s=0)
    assert CANARY.encode() not in stored(hf)
    assert hf.check().findings == []


def test_a_blob_that_others_name_stays(hf: Store) -> None:
    large = [CANARY * 8000]
    one, two = hf.conversation("one"), hf.conversation("two")
    one.set("large", large)
    two.set("large", large)
    one.remove()
    assert hf.retention.run(grace_s=0).blobs == 0
    assert two.get("large") == large
    assert hf._log.marks.list(BLOBS) == []
    two.remove()
    assert hf.retention.run(grace_s=0).blobs == 1
    three = hf.conversation("three")  # the process knew the blob: it must write it again
    three.set("large", large)
    assert hf.check().findings == []
    assert three.get("large") == large


def test_a_blob_goes_only_when_its_own_grace_is_over(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("large", [CANARY * 8000])
    chat.remove()
    clock = hf._log.clock
    hf._kernel.part(Retainer).run(grace_s=0, whole=False, wait_s=0)
    assert hf._log.blobs.names() == set()
    hf._log.blobs.put_back("ab" * 32, b"an orphan")
    assert (
        hf.retention.run(grace_s=0, whole=True).blobs == 0
    )  # only marked: a commit may be on the way
    [mark] = hf._log.marks.list(BLOBS)
    assert mark.due > clock.now_us() + timedelta(hours=1) // timedelta(microseconds=1)
    assert hf._log.blobs.names() == {"ab" * 32}


def test_two_at_once_one_is_refused_and_nothing_is_harmed(hf: Store, url: str) -> None:
    lived(hf, "c").remove()
    lease = hf._kernel.leases.take(retention.LEASE_NAME, ttl_s=30)
    hf._kernel.leases.drop(lease)
    with holdfast.open(url) if hf.status()["kind"] != "memory" else hf as other:
        if other is not hf:
            with pytest.raises(LeaseLostError, match="retention"):
                other.retention.run(grace_s=0)
            assert CANARY.encode() in stored(hf)
        with (
            hf._kernel.part(Retainer)._lock,
            pytest.raises(LeaseLostError, match="another retain is at work"),
        ):
            hf.retention.run(grace_s=0)
        if other is not hf:
            hf.workers.release(lease)
            assert other.retention.run(grace_s=0).events
            assert hf.check().findings == []


@pytest.mark.parametrize("step", ["rewrite", "snapshots", "blobs", "purge"])
def test_a_run_that_died_at_a_step_is_finished_by_the_next(
    hf: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    chat = lived(hf, "c")
    chat.remove()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        target, name = {
            "rewrite": (type(hf._log._backend), "rewrite"),
            "snapshots": (type(hf._log.snapshots), "forget"),
            "blobs": (type(hf._log.blobs), "delete"),
            "purge": (type(hf._log._backend), "purge"),
        }[step]
        broken.setattr(target, name, die)
        with pytest.raises(KeyboardInterrupt):
            hf.retention.run(grace_s=0)
    assert hf.check().findings == []
    hf.retention.run(grace_s=0)
    assert CANARY.encode() not in stored(hf)
    assert hf._log.marks.list(PENDING) == hf._log.marks.list(BLOBS) == []
    assert hf.check().findings == []


def test_a_copy_lets_go_of_what_its_source_let_go_of(hf: Store, tmp_path: Path) -> None:
    """An equal link is not equal bytes: a copy that was made before has them still."""
    lived(hf, "c").remove()
    with holdfast.open(new_url("files", tmp_path)) as target:
        copy_log(hf._log, target._log)
        assert CANARY.encode() in stored(target)
        hf.retention.run(grace_s=0)
        copy_log(hf._log, target._log)
        for record in target._log.read_all(after=START, limit=9999):
            assert CANARY.encode() not in record.payload
        assert target.check().findings == []
        assert target.status()["digest"] == hf.status()["digest"]
    with holdfast.open(new_url("sqlite", tmp_path)) as target:
        copy_log(hf._log, target._log)
        assert target.check().findings == []


def test_data_that_is_missing_without_a_word_is_damage(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    chat.set("n", 2)
    hf._log._backend.rewrite({chat.name: [1]})  # type: ignore[attr-defined]
    [finding] = hf.check().findings
    assert "nobody has said that it was let go of" in finding.problem
