"""What outlives a process, a second handle, a snapshot, and a copy."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import ConflictError, Store, UsageError
from holdfast.backends.protocol import START
from holdfast.core import snapshot as snapshots_module
from holdfast.core.transaction import PendingCommit
from holdfast.transfer.copy import copy_log as copy

Reopen = Callable[[], Store]
UrlOf = Callable[[str, Path], str]


def test_everything_is_there_again(reopen: Reopen) -> None:
    with reopen() as hf:
        chat = hf.conversation("c", parent=hf.team("t"))
        for n in range(50):
            chat.append("l", {"n": n, "text": "x" * 100}, checkpoint=f"turn {n}")
        chat.set("doc", "y" * 100_000)
        fork = chat.fork("f", at="turn 10")
        fork.set("forked", True)
        digest = hf.check().digest
    with reopen() as hf:
        chat = hf.conversation("c")
        assert [item["n"] for item in chat.state["l"]] == list(range(50))
        assert chat.state["doc"] == "y" * 100_000
        assert chat.at("turn 10")["l"][-1]["n"] == 10
        assert chat.parent == hf.team("t")
        fork = hf.conversation("f")
        assert (len(fork.state["l"]), fork.state["forked"]) == (11, True)
        assert hf.check(expect=digest).ok


def test_two_handles_see_each_other_at_once(reopen: Reopen) -> None:
    one, two = reopen(), reopen()
    mine, theirs = one.team("t"), two.team("t")
    for n in range(20):
        mine.set("n", n)
        assert theirs.state["n"] == n
        theirs.append("l", n)
        assert mine.state["l"][-1] == n
    with pytest.raises(ConflictError):
        mine.set("n", 0, expected=theirs.revision - 1)
    with pytest.raises(ConflictError), mine.edit() as draft:
        draft["n"] = -1
        theirs.set("n", 100)


def test_a_change_that_only_fits_the_newer_state_is_not_refused(reopen: Reopen) -> None:
    one, two = reopen(), reopen()
    one.team("t").set("a", 1)
    assert two.team("t").state == {"a": 1}
    one.team("t").set("b", 1)
    two.team("t").delete("b")  # two's memory is behind: it has no "b" yet
    assert one.team("t").state == {"a": 1}


def test_threads_and_handles_lose_no_update_vic_31(reopen: Reopen) -> None:
    """VIC-15: in threads."""
    stores = [reopen() for _ in range(3)]

    def work(store: Store) -> None:
        for _ in range(20):
            store.team("t").increment("n")
            store.team("t").edit(lambda draft: draft.update(m=draft.get("m", 0) + 1), retries=1000)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].team("t").state == {"n": 120, "m": 120}
    assert stores[1].check().ok


def test_snapshots_are_used_and_never_trusted(
    reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "GROWTH_BYTES_MIN", 4096)
    with reopen() as hf:
        chat = hf.conversation("c")
        for n in range(200):
            chat.append("l", {"n": n, "text": "x" * 80})
            chat.set(f"k{n % 7}", n)
        expected = {revision: chat.at(revision).to_dict() for revision in (1, 77, 250, 399, 400)}
        revisions = hf._log.snapshots.revisions("conversation/c")
        assert len(revisions) > 5
    with reopen() as hf:
        chat = hf.conversation("c")
        for revision, state in expected.items():
            assert chat.at(revision) == state
        chat.append("l", {"n": 200})
        assert [item["n"] for item in chat.state["l"]] == list(range(201))
        objects = hf._log._backend.objects
        names = objects.names("snapshot")
        for name in names[::2]:
            data = bytearray(objects.get("snapshot", name) or b"")
            data[len(data) // 2] ^= 1
            objects.put("snapshot", name, bytes(data))
    with reopen() as hf:
        chat = hf.conversation("c")
        for revision, state in expected.items():
            assert chat.at(revision) == state
        assert any("discarded" in report for report in hf.status()["reports"])
        report = hf.check()
        assert report.ok


@pytest.mark.parametrize("source", ["memory", "files", "sqlite"])
@pytest.mark.parametrize("target", ["memory", "files", "sqlite"])
def test_a_copy_is_digest_equal_and_resumable(
    source: str, target: str, tmp_path: Path, url_of: UrlOf
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        holdfast.open(url_of(source, tmp_path / "a")) as a,
        holdfast.open(url_of(target, tmp_path / "b")) as b,
    ):
        chat = a.conversation("c", parent=a.team("t"))
        for n in range(30):
            chat.append("l", {"n": n}, checkpoint=f"turn {n}", key=f"key {n}")
        chat.set("doc", "z" * 70_000)
        chat.fork("f", at=5).set("x", 1)
        with a.commit() as tx:
            tx.scope(chat).set("y", 1)
            tx.scope(a.team("t")).set("y", 1)
            tx.mark("todo", "k")
        first = copy(a._log, b._log)
        assert first.events == len(list(a.follow(as_events=True, after=START, timeout_s=0)))
        assert a.check().digest == b.check().digest
        assert b.conversation("c").state == chat.state
        assert b.conversation("c").at("turn 3") == chat.at("turn 3")
        assert b.conversation("f").state == a.conversation("f").state
        assert b.workers.marks() == a.workers.marks()
        chat.set("more", True)
        second = copy(a._log, b._log)
        assert (second.events, second.skipped) == (1, first.events)
        assert a.check().digest == b.check().digest
        b.conversation("c").set("other", 1)
        chat.set("mine", 1)
        with pytest.raises(ConflictError, match="other events"):
            copy(a._log, b._log)


def test_submit_keeps_order_and_wait_makes_it_durable(reopen: Reopen) -> None:
    hf = reopen()
    chat = hf.conversation("c")
    pending: list[PendingCommit] = []
    for n in range(100):
        with hf.commit(waits=False) as tx:
            tx.scope(chat).append("l", n)
        pending.append(tx)
    chat.append("l", 100)
    assert [tx.wait().revision for tx in pending] == list(range(1, 101))
    assert list(chat.state["l"]) == list(range(101))
    with hf.commit(waits=False) as tx:
        tx.scope(chat).append("l", "left to close")
    hf.close()
    assert reopen().conversation("c").state["l"][-1] == "left to close"


def test_a_submitted_commit_that_is_refused_says_so_when_waited_for(reopen: Reopen) -> None:
    hf = reopen()
    chat = hf.conversation("c")
    chat.set("text", "x")
    with hf.commit(waits=False) as tx:
        tx.scope(chat).append("text", 1)
    with pytest.raises(UsageError):
        tx.wait()
    assert chat.revision == 1
