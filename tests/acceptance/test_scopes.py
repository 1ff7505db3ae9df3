"""Scopes as the guide promises them, on every embedded backend."""

import json
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast import (
    MISSING,
    Change,
    ClosedError,
    ConflictError,
    ExistsError,
    NotFoundError,
    Store,
    UsageError,
)
from holdfast.backends.protocol import START
from holdfast.core import codec
from holdfast.core.listing import register_level
from holdfast.scope import ConversationState, GlobalState, TeamState, WorkflowState, json_default


def test_the_readme_in_short(hf: Store) -> None:
    team = hf.team("support")
    chat = hf.conversation("ticket-7", parent=team)
    team.set("model", "small")
    chat.set("stage", "triage")
    chat.update({"customer": {"name": "Ada"}, "budget": 50})
    with chat.edit() as draft:
        draft["budget"] -= 10
    assert chat.state["customer"]["name"] == "Ada"
    assert chat.state["budget"] == 40
    assert chat.lookup("model") == "small"
    assert chat.get("model") is None
    mark = chat.checkpoint("before refund")
    chat.set("stage", "refunded")
    assert [change.path for change in chat.diff(mark)] == [("stage",)]
    chat.restore(mark)
    assert chat.state["stage"] == "triage"
    what_if = chat.fork("what-if", at=mark)
    assert what_if.state == chat.at(mark)


def test_a_state_handed_out_never_changes_vic_11(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.update({"a": {"deep": [1, 2]}, "b": 1})
    held = chat.state
    chat.append(("a", "deep"), 3)
    chat.set("b", 2)
    assert held == {"a": {"deep": [1, 2]}, "b": 1}
    assert chat.state == {"a": {"deep": [1, 2, 3]}, "b": 2}
    assert list(chat.state) == ["a", "b"]


def test_untouched_values_stay_the_same_objects_vic_11(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.update({"big": {"x": list(range(100))}, "n": 0})
    before = chat.state["big"]
    chat.set("n", 1)
    assert chat.state["big"] is before


def test_a_value_changed_by_its_owner_later_does_not_leak(hf: Store) -> None:
    chat = hf.conversation("c")
    mine = {"list": [1]}
    chat.set("v", mine)
    mine["list"].append(2)
    assert chat.state["v"] == {"list": [1]}


def test_changing_a_state_names_edit(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("a", {"b": 1})
    with pytest.raises(UsageError, match=r"edit\(\)"):
        chat.state["a"]["b"] = 2  # pyright: ignore[reportIndexIssue]


def test_scopes_are_isolated_vic_4_23_34(hf: Store) -> None:
    """RALPH-40 too."""
    hf.conversation("one").set("k", 1)
    assert hf.conversation("two").state == {}
    assert hf.team("one").state == {}
    assert hf.global_().state == {}


def test_expected_refuses_and_says_both_revisions(hf: Store) -> None:
    chat = hf.conversation("c")
    assert chat.set("a", 1) == 1
    assert chat.set("a", 2, expected=1) == 2
    with pytest.raises(ConflictError) as caught:
        chat.set("a", 3, expected=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert chat.state["a"] == 2
    with pytest.raises(ConflictError):
        hf.conversation("new").set("a", 1, expected=4)


def test_an_edit_that_raises_writes_nothing(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1)
    with pytest.raises(RuntimeError), chat.edit() as draft:
        draft["n"] = 2
        raise RuntimeError
    assert (chat.state, chat.revision) == ({"n": 1}, 1)


def test_an_edit_conflicts_and_a_function_is_retried_boot_77(hf: Store) -> None:
    """BOOT-92, RALPH-41: two writers of one scope leave a consistent state."""
    chat = hf.conversation("c")
    chat.set("n", 0)
    with pytest.raises(ConflictError), chat.edit() as draft:
        draft["n"] += 1
        chat.set("n", 10)
    meddled = iter([True, False])

    def add(draft: holdfast.core.draft.Draft) -> None:  # pyright: ignore
        draft["n"] += 1
        if next(meddled):
            chat.set("n", 20)

    chat.edit(add)
    assert chat.state["n"] == 21
    with pytest.raises(ConflictError):
        chat.edit(lambda draft: (draft.update(n=0), chat.increment("n")), retries=1)


def test_an_op_that_does_not_fit_is_refused_and_nothing_is_written(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("text", "x")
    for wrong in (
        lambda: chat.append("text", 1),
        lambda: chat.increment("text"),
        lambda: chat.delete("absent"),
        lambda: chat.set(("text", "deeper"), 1),
        lambda: chat.set("k", {1, 2}),
        lambda: chat.set("k", {1: 2}),
        lambda: chat.update({}),
        lambda: chat.set(1, 1),  # pyright: ignore
        lambda: chat.set("k", 1, expected=-1),
        lambda: chat.set("k", 1, expected=True),
        lambda: chat.set("k", 1, checkpoint=""),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert (chat.state, chat.revision) == ({"text": "x"}, 1)


def test_time_travel_by_revision_name_and_datetime_vic_33_boot_81(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1, checkpoint="one")
    between = datetime.now(UTC)
    chat.set("n", 2)
    chat.set("n", 3, checkpoint="three")
    assert chat.at(1) == {"n": 1}
    assert chat.at("three") == {"n": 3}
    assert chat.at(0) == {}
    assert chat.at(-1) == {"n": 2}
    assert chat.at(between) == {"n": 1}
    assert chat.at(datetime.now(UTC) + timedelta(days=1)) == {"n": 3}
    assert chat.at(datetime(2020, 1, 1, tzinfo=UTC)) == {}
    assert [mark.name for mark in chat.checkpoints()] == ["three", "one"]
    with pytest.raises(NotFoundError, match="no revision 9"):
        chat.at(9)
    assert chat.at(-3) == {}
    for wrong in (lambda: chat.at(-7), lambda: chat.restore(-7), lambda: chat.diff(-7)):
        with pytest.raises(NotFoundError, match=r"no revision -7, counted back .* 1 to 3"):
            wrong()
    with pytest.raises(NotFoundError, match="no events yet"):
        hf.conversation("never").at(-7)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        chat.at("absent")
    with pytest.raises(UsageError, match="time zone"):
        chat.at(datetime(2026, 1, 1))


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_checkpoint_has_a_name(hf: Store, name: object) -> None:
    chat = hf.conversation("c")
    chat.set("a", 1)
    with pytest.raises(UsageError, match="checkpoint name"):
        chat.checkpoint(name)  # type: ignore[arg-type]
    assert chat.revision == 1, "nothing was written"


def test_a_checkpoint_name_given_again_means_the_newest(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("n", 1, checkpoint="here")
    chat.set("n", 2, checkpoint="here")
    assert chat.at("here") == {"n": 2}
    assert [mark.revision for mark in chat.checkpoints()] == [2, 1]


def test_restore_appends_and_can_be_undone(hf: Store) -> None:
    """VIC-14."""
    chat = hf.conversation("c")
    chat.update({"a": 1, "l": [1, 2, 3]})
    chat.set("a", 2)
    chat.append("l", 4)
    assert chat.restore(1) == 4
    assert chat.state == {"a": 1, "l": [1, 2, 3]}
    chat.undo()
    assert chat.state == {"a": 2, "l": [1, 2, 3, 4]}
    chat.undo()
    assert chat.state == {"a": 1, "l": [1, 2, 3]}
    assert [event.type for event in chat.history()] == ["changed"] * 3 + ["restored"] * 3
    chat.checkpoint("here")  # which changes nothing that could be undone
    chat.undo()
    assert chat.state == {"a": 2, "l": [1, 2, 3, 4]}
    first = next(chat.history())
    assert first.data is first.data  # read once
    with pytest.raises(NotFoundError):
        hf.conversation("empty").undo()


def test_a_fork_shares_its_past_and_not_its_future(hf: Store) -> None:
    chat = hf.conversation("c")
    for n in range(5):
        chat.append("items", {"n": n, "text": "x" * 100}, checkpoint=f"turn {n}")
    fork = chat.fork("f", at="turn 2")
    assert fork.revision == 4  # three turns and the fork itself
    assert [item["n"] for item in fork.state["items"]] == [0, 1, 2]
    fork.append("items", {"n": "fork"})
    chat.append("items", {"n": "main"})
    assert [item["n"] for item in fork.state["items"]] == [0, 1, 2, "fork"]
    assert len(chat.state["items"]) == 6
    assert fork.at(2) == chat.at(2)
    assert [event.revision for event in fork.history()] == [1, 2, 3, 4, 5]
    assert [mark.name for mark in fork.checkpoints()] == ["turn 2", "turn 1", "turn 0"]
    assert fork.fork("g", at=2).state == chat.at(2)
    with pytest.raises(ExistsError):
        chat.fork("f")
    with pytest.raises(UsageError, match="nothing to fork"):
        hf.conversation("empty").fork("z")
    assert hf.check().ok


def test_a_closed_scope_refuses_writes_and_lets_go_by_policy_vic_22(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("a", 1)
    chat.close()
    assert chat.life.is_closed
    assert chat.state == {"a": 1}
    with pytest.raises(ClosedError, match="closed at revision 2"):
        chat.set("a", 2)
    other = hf.conversation("d")
    other.set("a", 1)
    other.close(keep=False)
    with pytest.raises(ClosedError, match="dropped"):
        _ = other.state
    assert other.at(1) == {"a": 1}
    assert chat.fork("e").set("a", 2) == 4
    register_level(hf._kernel, "scratch", below="conversation", keep=False)
    scratch = hf.scope("scratch", "s")
    scratch.set("a", 1)
    scratch.close()
    with pytest.raises(ClosedError):
        _ = scratch.state


def test_levels_can_be_registered_and_parents_stand_above_vic_2_24(hf: Store) -> None:
    register_level(hf._kernel, "project", below="team")
    project = hf.scope("project", "p", parent=hf.team("t"))
    project.set("x", 1)
    assert hf.conversation("c", parent=project).lookup("x") == 1
    with pytest.raises(UsageError, match="cannot be the parent"):
        hf.team("t2", parent=hf.conversation("c"))
    with pytest.raises(UsageError, match="no level"):
        hf.scope("nonsense", "x")
    with pytest.raises(ExistsError):
        register_level(hf._kernel, "project", below="team")


def test_a_parent_is_remembered_and_the_global_scope_is_above_all(hf: Store) -> None:
    hf.global_().set("tz", "UTC")
    hf.conversation("c", parent=hf.team("t")).set("a", 1)
    hf.team("t").set("model", "m")
    again = hf.conversation("c")
    assert again.parent == hf.team("t")
    assert (again.lookup("model"), again.lookup("tz"), again.lookup("no", 5)) == ("m", "UTC", 5)


def test_a_commit_over_scopes_is_both_or_neither(hf: Store) -> None:
    chat, team = hf.conversation("c"), hf.team("t")
    chat.set("stage", "open")
    with hf.commit() as tx:
        tx.scope(chat).set("stage", "done")
        tx.scope(chat).checkpoint("closed")
        tx.scope(team).increment("closed", 1)
        assert tx.scope(chat).state["stage"] == "done"
    assert (chat.state["stage"], team.state["closed"], chat.at("closed")["stage"]) == (
        "done",
        1,
        "done",
    )
    with pytest.raises(ConflictError), hf.commit() as tx:
        tx.scope(team).set("seen", tx.scope(chat).get("stage"))
        chat.set("stage", "again")
    assert "seen" not in team.state
    with pytest.raises(UsageError), hf.commit() as tx:
        tx.scope(team).set("seen", True)
        tx.scope(chat).append("stage", 1)
    assert "seen" not in team.state
    with pytest.raises(RuntimeError), hf.commit() as tx:
        tx.scope(team).set("seen", True)
        raise RuntimeError
    assert "seen" not in team.state


def test_a_commit_guards_what_it_expects_of_scopes_that_it_does_not_write(hf: Store) -> None:
    chat, team = hf.conversation("c"), hf.team("t")
    chat.set("n", 1)
    with hf.commit() as tx:
        tx.scope(chat).expect(1)
        tx.scope(team).set("ok", True)
    with pytest.raises(ConflictError) as caught, hf.commit() as tx:
        tx.scope(chat).expect(7)
        tx.scope(team).set("stale", True)
    assert (caught.value.expected, caught.value.actual) == (7, 1)
    with pytest.raises(ConflictError), hf.commit() as tx:
        assert tx.scope(chat).get("n") == 1
        chat.set("n", 2)
        tx.scope(chat).expect(2)  # what was read is older than what is expected
        tx.scope(team).set("stale", True)
    assert team.state == {"ok": True}


def test_a_view_never_straddles_a_commit(hf: Store) -> None:
    a, b = hf.conversation("a"), hf.conversation("b")
    for n in range(3):
        with hf.commit() as tx:
            tx.scope(a).set("n", n)
            tx.scope(b).set("n", n)
        if n == 1:
            view = hf.view()
    assert view.state(a) == view.state(b) == {"n": 1}  # pyright: ignore
    assert view.revision(a) == 2  # pyright: ignore
    assert hf.view().get(a, "n") == 2


def test_a_key_writes_once(hf: Store) -> None:
    chat = hf.conversation("c", parent=hf.team("t"))
    first = chat.append("l", 1, key="k1")
    assert chat.append("l", 1, key="k1") == first
    assert chat.state["l"] == [1]
    with pytest.raises(UsageError, match="another change"):
        chat.append("l", 2, key="k1")
    with hf.commit(key="joint") as tx:
        tx.scope(chat).increment("n")
        tx.scope(hf.team("t")).increment("n")
    with hf.commit(key="joint") as tx:
        tx.scope(chat).increment("n")
        tx.scope(hf.team("t")).increment("n")
    assert (chat.state["n"], hf.team("t").state["n"]) == (1, 1)


def test_a_key_is_found_also_where_the_change_would_no_longer_fit(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.set("a", 1)
    assert chat.set("a", 2, expected=1, key="guarded") == 2
    assert chat.set("a", 2, expected=1, key="guarded") == 2
    assert chat.delete("a", key="gone") == 3
    assert chat.delete("a", key="gone") == 3
    chat.append("l", 1, key="last")
    chat.close()
    assert chat.append("l", 1, key="last") == 4
    with pytest.raises(ClosedError):
        chat.append("l", 1, key="new")
    with pytest.raises(UsageError, match="another change"):
        chat.set("a", 5, key="gone")
    assert [event.type for event in chat.history()] == ["changed"] * 4 + ["closed"]


def test_a_subscriber_that_raises_does_not_make_a_write_look_failed(
    hf: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """VIC-17: the write is durable; a writer who was told otherwise would write it twice."""
    chat = hf.conversation("c")
    failed: list[tuple[str, object]] = []
    heard: list[object] = []

    def fail(change: Change) -> None:
        raise ValueError(f"cannot take {change.new}")

    def note(error: Exception, change: Change) -> None:
        failed.append((str(error), change.new))
        raise LookupError("nor can this")

    chat.subscribe(fail)
    chat.subscribe(fail, on_error=note)
    told = chat.subscribe(lambda change: heard.append(change.new))
    assert chat.set("a", 1) == 1
    with hf.commit() as tx:
        tx.scope(chat).increment("a", 1)
    assert chat.get("a") == 2
    assert told.drain()
    assert heard == [1, 2], "those after it are told"
    assert failed == [("cannot take 1", 1), ("cannot take 2", 2)]
    assert caplog.text.count('a subscriber of "conversation/c" raised\nTraceback') == 6
    assert "LookupError: nor can this" in caplog.text
    with pytest.raises(UsageError, match="on_error is a function"):
        chat.subscribe(fail, on_error=3)  # type: ignore[arg-type]


def test_subscribers_hear_of_changes_vic_17_27(hf: Store) -> None:
    chat = hf.conversation("c")
    heard: list[tuple[object, ...]] = []
    stop = chat.subscribe(lambda c: heard.append((c.scope, c.path, c.old, c.new, c.revision)))
    chat.set("a", 1)
    chat.set(("b", "c"), 2)
    chat.append("l", "x")
    chat.delete("a")
    with hf.commit() as tx:
        tx.scope(chat).set("a", 5)
    assert stop.drain()
    stop()
    stop()
    chat.set("a", 9)
    assert stop.drain()
    assert heard == [
        ("conversation/c", ("a",), MISSING, 1, 1),
        ("conversation/c", ("b", "c"), MISSING, 2, 2),
        ("conversation/c", ("l",), MISSING, ["x"], 3),
        ("conversation/c", ("a",), 1, MISSING, 4),
        ("conversation/c", ("a",), MISSING, 5, 5),
    ]


def test_follow_yields_changes_with_old_and_new(hf: Store) -> None:
    team = hf.team("support")
    team.set("n", 1)
    start = team.revision
    team.set("n", 2)
    team.checkpoint("nothing changes")
    team.set("n", 3)
    told = [(c.path, c.old, c.new) for c in hf.follow("team/support", after=start, timeout_s=0)]
    assert told == [(("n",), 1, 2), (("n",), 2, 3)]
    assert list(hf.follow(team, timeout_s=0)) == []
    assert [e.type for e in hf.follow(as_events=True, after=START, timeout_s=0)] == [
        "changed",
        "changed",
        "checkpointed",
        "changed",
    ]


def test_dict_style_code_goes_on_working_vic_25(hf: Store) -> None:
    chat = hf.conversation("c")
    chat["a"] = 1
    chat["b"] = {"x": 1}
    del chat["a"]
    assert "b" in chat
    assert "a" not in chat
    assert len(chat) == 1
    assert list(chat) == ["b"]
    assert chat["b"]["x"] == 1
    assert chat.state.to_dict() == {"b": {"x": 1}}
    with pytest.raises(KeyError):
        chat["a"]
    assert isinstance(chat, ConversationState)
    assert (list(chat.keys()), list(chat.state.values())) == (["b"], [{"x": 1}])
    assert list(chat.state.items()) == [("b", {"x": 1})]
    with chat.edit() as draft:
        assert draft.pop("b") == {"x": 1}
        assert draft.pop("b", None) is None
    revision = chat.revision
    with pytest.raises(KeyError), chat.edit() as draft:
        draft.pop("b")
    assert chat.revision == revision


def test_a_value_that_several_take_is_taken_once(hf: Store) -> None:
    """VIC-25: an edit is one step, also among threads."""
    chat = hf.conversation("c")
    chat.update({f"k{n}": n for n in range(20)})
    taken: list[object] = []

    def take_one(key: str) -> object:
        found: list[object] = []
        chat.edit(lambda draft: found.append(draft.pop(key, None)), retries=1000)
        return found[-1]

    def take() -> None:
        for n in range(20):
            taken.append(take_one(f"k{n}"))

    threads = [Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one for one in taken if one is not None) == list(range(20))  # pyright: ignore
    assert len(chat) == 0


def test_modified_keys_are_listed_vic_12(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.update({"a": 1, "b": 1, "c": {"x": 1}})
    mark = chat.checkpoint("m")
    chat.set("b", 2)
    chat.set(("c", "y"), 2)
    assert list(chat.diff(mark).keys()) == ["b", "c"]


def test_leases_fence_commits(hf: Store) -> None:
    chat = hf.conversation("c")
    lease = hf.workers.lease("project", ttl_s=60)
    with hf.commit(lease=lease) as tx:
        tx.scope(chat).set("a", 1)
    hf.workers.release(lease)
    with pytest.raises(holdfast.LeaseLostError), hf.commit(lease=lease) as tx:
        tx.scope(chat).set("a", 2)
    assert chat.state["a"] == 1
    again = hf.workers.lease("project", ttl_s=60)
    assert hf.workers.renew(again) is not None


def test_marks_are_set_with_a_commit_and_claimed(hf: Store) -> None:
    chat = hf.conversation("c")
    with hf.commit() as tx:
        tx.scope(chat).set("a", 1)
        tx.mark("todo", "low")
        tx.mark("todo", "high", priority=5)
    assert [mark.key for mark in hf.workers.claim("todo", n=1)] == ["high"]
    assert [mark.key for mark in hf.workers.claim("todo", n=5)] == ["low"]
    assert hf.workers.claim("todo") == []
    with hf.commit() as tx:
        tx.clear("todo", "high")
    assert [mark.key for mark in hf.workers.marks("todo")] == ["low"]


def test_a_commit_reports_news_of_watched_scopes(hf: Store) -> None:
    inbox, chat = hf.conversation("inbox"), hf.conversation("c")
    inbox.append("l", 1)
    with hf.commit() as tx:
        tx.scope(chat).set("a", 1)
        tx.watch(inbox)
    assert tx.news == {"conversation/inbox": 1}


def test_scopes_are_listed(hf: Store) -> None:
    for id in ("b", "a", "ü", "%", "x/y"):
        hf.conversation(id).set("n", 1)
    hf.global_().set("n", 1)
    hf.team("t").set("n", 1)
    names = [scope.name for scope in hf.scopes("conversation")]
    assert names == [f"conversation/{id}" for id in sorted(["b", "a", "ü", "%", "x/y"])]
    assert [scope.name for scope in hf.scopes("global")] == ["global"]
    assert len(list(hf.scopes())) == 7


@pytest.mark.parametrize("bad", ["", "x" * 65_537, 5, None])
def test_bad_ids_are_refused(hf: Store, bad: object) -> None:
    with pytest.raises(UsageError):
        hf.conversation(bad)  # pyright: ignore


def test_a_large_value_is_kept_as_a_blob_and_loaded_when_touched(hf: Store) -> None:
    """RALPH-50."""
    chat = hf.conversation("c")
    text = "long " * 40_000
    chat.set("doc", {"text": text})
    chat.append("docs", text)
    assert chat.state["doc"]["text"] == text
    assert chat.state["docs"][0] == text
    assert sum(len(event.record.payload) for event in chat.history()) < 1000
    other = hf.conversation("d")
    other.set("doc", {"text": text})
    assert len(hf._log._backend.objects.names("blob")) == 2
    assert hf.check().ok


def test_a_closed_store_says_so(url: str) -> None:
    store = holdfast.open(url)
    chat = store.conversation("c")
    chat.set("a", 1)
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        chat.set("a", 2)
    with pytest.raises(UsageError, match="closed"):
        _ = chat.state


def test_check_gives_a_digest_of_the_content(hf: Store) -> None:
    hf.conversation("c").set("a", 1)
    digest = hf.check().digest
    assert hf.check(expect=digest).ok
    hf.conversation("c").set("a", 2)
    report = hf.check(expect=digest)
    assert not report.ok
    assert "expected" in report.findings[0].problem


def test_delete_of_what_need_not_be_there(hf: Store) -> None:
    team = hf.team("t")
    assert team.delete("a", missing_ok=True) == 0, "nothing was written"
    team.set("a", {"b": 1})
    assert team.delete(("a", "c"), missing_ok=True) == 1
    assert team.delete(("a", "b"), missing_ok=True) == 2
    assert team.state == {"a": {}}
    assert (
        team.delete("x", missing_ok=True, checkpoint="here") == team.life.revision_at("here") == 3
    )
    assert team.delete("a", missing_ok=True, key="k") == 4
    assert team.delete("a", missing_ok=True, key="k") == 4, "the same key writes once"
    assert team.delete("a", missing_ok=True, key="k2") == 5
    assert team.delete("a", missing_ok=True, key="k2") == 5
    with pytest.raises(ConflictError):
        team.delete("a", missing_ok=True, expected=1)
    with pytest.raises(UsageError, match="is not there"):
        team.delete("a")
    with pytest.raises(UsageError, match="missing_ok"):
        team.delete("a", missing_ok=1)  # type: ignore[arg-type]
    with hf.commit() as tx:
        tx.scope(team).delete("a", missing_ok=True)
        tx.scope(team).set("b", 1)
        tx.scope(team).delete("b", missing_ok=True)
    assert team.state == {}
    with pytest.raises(UsageError, match="checkpoint name"), hf.commit() as tx:
        tx.scope(team).checkpoint(None)  # type: ignore[arg-type]


def test_a_delete_that_another_writer_was_faster_with(hf: Store) -> None:
    team = hf.team("t")
    team.set("a", 1)
    commit, lost = team._commit, []

    def slowly(*args: Any) -> Any:
        if not lost:
            lost.append(hf.team("t").delete("a"))
        return commit(*args)

    team._commit = slowly  # type: ignore[method-assign]
    assert team.delete("a", missing_ok=True) == lost[0] == 2


def test_a_scope_is_a_mapping_and_goes_through_json(hf: Store) -> None:
    team = hf.team("t")
    when = datetime(2026, 11, 17, tzinfo=UTC)
    team.update({"a": {"b": [1]}, "when": when, "raw": b"\x00"})
    assert [*team.keys()] == [*team.state] == [*dict(team)]
    assert dict(**team) == dict(team.state.items()) == team.state.to_dict()
    assert [*team.state.values()] == [{"b": [1]}, when, b"\x00"]
    for value in (team, team.state, dict(team), {"nested": [team.state["a"]]}):
        assert json.loads(json.dumps(value, default=json_default))
    text = json.dumps(team.state, default=json_default)
    assert codec.decode(text.encode()) == team.state.to_dict(), "as it is stored"
    with pytest.raises(TypeError, match="object"):
        json.dumps(object(), default=json_default)


def test_the_protocols_tell_levels_apart(hf: Store) -> None:
    """VIC-16: they can be checked at run time."""
    scopes = {
        ConversationState: hf.conversation("c"),
        WorkflowState: hf.workflow("w"),
        TeamState: hf.team("t"),
        GlobalState: hf.global_(),
    }
    for protocol in scopes:
        assert [kind for kind, scope in scopes.items() if isinstance(scope, protocol)] == [protocol]
    assert isinstance(hf.scope("team/t"), TeamState)
    hf.team("t").set("a", 1)
    assert type(hf.team("t").fork("u")) is holdfast.TeamScope
    chat = hf.conversation("c", parent=hf.team("t"))
    chat.set("a", 1)
    assert isinstance(hf.conversation("c").parent, TeamState)
