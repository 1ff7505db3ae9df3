"""What lies where in a mixed store, and what is refused (guarantees 2 and 4; BOOT-62)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.backends.protocol import START, Fence, Mark, Receipt, Refusal
from holdfast.clock import SystemClock
from holdfast.core.commit import ProposedCommit
from holdfast.core.commit_queue import Request
from holdfast.core.layers import kept_with
from holdfast.core.listing import register_level
from holdfast.core.log import scope_stream
from holdfast.core.tree import set_op
from holdfast.errors import LeaseLostError, UnavailableError, UsageError
from holdfast.store import Store
from holdfast.testing import FaultyBackend, RecordBuilder
from holdfast.testing.trial import PATIENCE_S, write
from tests.unit.mixture import LARGE, chats, memories, rest, store_on


@pytest.fixture
def backend() -> Iterator[MixedBackend]:
    backend = memories()
    yield backend
    backend.close()


@pytest.fixture
def store(backend: MixedBackend) -> Store:
    return store_on(backend)


# --- where a name lies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("conversation/c1", "conversation"),
        ("conversation/a/b", "conversation"),
        ("global", "global"),
        ("run/r1", "workflow"),
        ("lease/conversation/c1", "conversation"),
        ("lease/run/r1", "workflow"),
        ("inbox/run/r1", "workflow"),
        ("inbox/conversation/c1", "conversation"),
        ("lease/lease/run/r1", "workflow"),
        ("lease/nightly", "nightly"),
        ("lease", "lease"),
        ("worker/w1", "worker"),
    ],
)
def test_a_name_belongs_to_a_level(name: str, level: str, backend: MixedBackend) -> None:
    assert backend.level_of(name) == level


def test_each_level_is_kept_in_its_backend(store: Store, backend: MixedBackend) -> None:
    register_level(store._kernel, "session", below="conversation")
    for name in ("global", "team/red", "workflow/w", "conversation/c1", "session/s"):
        store.scope(name).set("large", LARGE)
        store.scope(name).checkpoint("named")
    flows = backend.part_of("run/x")
    assert rest(backend).streams() == ["global", "team/red"]
    assert chats(backend).streams() == ["conversation/c1", "session/s"]
    assert flows.streams() == ["workflow/w"]
    names = [scope.name for scope in store.scopes()]
    assert names == ["conversation/c1", "global", "session/s", "team/red", "workflow/w"]
    assert [scope.name for scope in store.scopes("session")] == ["session/s"]
    for part in backend.parts:
        # The same value in three backends: a blob lies with each stream that names it.
        assert len(part.objects.names("blob")) == 1
    for name in names:
        scope = store_on(backend).scope
        if name != "session/s":
            assert scope(name).at("named").to_dict() == {"large": LARGE}
    assert store.check().ok


def test_each_backend_has_an_id_of_its_own(store: Store, backend: MixedBackend) -> None:
    """By which a backup, an archive and an audit export know the store again."""
    log = store._log
    assert log.store_ids == [part.inspect.describe()["store"] for part in log.parts()]
    assert len(set(log.store_ids)) == len(backend.parts)


def test_snapshots_lie_with_their_stream(store: Store, backend: MixedBackend) -> None:
    chat = store.conversation("c1")
    for n in range(12):
        chat.set(f"k{n}", "x" * 40_000)
    assert chats(backend).objects.names("snapshot")
    assert not rest(backend).objects.names("snapshot")
    chats(backend).objects.put("snapshot", chats(backend).objects.names("snapshot")[0], b"damaged")
    assert len(store_on(backend).conversation("c1").state.to_dict()) == 12
    assert [finding.harmless for finding in store.check().findings] in ([], [True])


def test_forks_restores_and_closed_scopes_stay_in_their_backend(
    store: Store, backend: MixedBackend
) -> None:
    chat = store.conversation("c1", parent=store.team("red"))
    chat.set("a", 1)
    chat.set("a", 2)
    chat.fork("c2", at=2).set("a", 3)
    chat.restore(2)
    chat.close()
    assert chat.life.is_closed
    assert store.conversation("c2").state.to_dict() == {"a": 3}
    assert rest(backend).streams() == []
    assert store.check().ok


# --- commits -------------------------------------------------------------------------------------


def test_a_commit_over_two_backends_is_refused_before_anything_is_written(store: Store) -> None:
    chat, team = store.conversation("c1"), store.team("red")
    with pytest.raises(UsageError) as caught, store.commit() as tx:
        tx.scope(chat).set("a", 1)
        tx.scope(team).set("a", 1)
    message = str(caught.value)
    for word in ('"conversation/c1"', '"team/red"', "memory-of-conversation", "memory-of-*"):
        assert word in message
    assert "make two commits" in message
    assert store.position == START
    with pytest.raises(UsageError, match="span two backends"), store.commit(waits=False) as tx:
        tx.scope(chat).set("a", 1)
        tx.scope(team).set("a", 1)
    with store.commit() as tx:  # levels of one backend
        tx.scope(team).set("a", 1)
        tx.scope(store.global_()).set("a", 1)
    assert store.team("red").revision == 1


def test_a_scope_that_was_only_read_counts_too(store: Store) -> None:
    """Guarantee 3: its guard could not be judged together with the write."""
    chat, team = store.conversation("c1"), store.team("red")
    team.set("budget", 5)
    with pytest.raises(UsageError, match=r'"conversation/c1".*"team/red"'), store.commit() as tx:
        if tx.scope(team).get("budget") > 4:
            tx.scope(chat).set("a", 1)
    assert chat.revision == 0


def test_a_refused_commit_does_not_fail_its_neighbours(store: Store) -> None:
    chat, team = store.conversation("c1"), store.team("red")
    with store.commit(waits=False) as first:
        first.scope(chat).set("a", 1)
    with pytest.raises(UsageError), store.commit(waits=False) as second:
        second.scope(chat).set("a", 2)
        second.scope(team).set("a", 2)
    with store.commit(waits=False) as third:
        third.scope(team).set("a", 3)
    assert (first.wait().revision, third.wait().revision) == (1, 1)
    assert (chat.get("a"), team.get("a")) == (1, 3)


class Held:
    """Holds the first commit of a part until it is told to go on, so that a batch gathers."""

    def __init__(self, part: Any) -> None:
        self.inner = part
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, commits: Any) -> Any:
        self.reached.set()
        assert self.go_on.wait(PATIENCE_S)
        return self.inner.commit(commits)


def test_a_backend_that_fails_fails_its_own_commits_only() -> None:
    """One batch over three runs of backends; the middle one is out of order."""
    clock = SystemClock()
    held = Held(MemoryBackend(clock=clock))
    faulty: Any = FaultyBackend(MemoryBackend(clock=clock), {1: "before"})
    shown = {"*": "rest", "conversation": "chats"}
    routes: Any = {"*": held, "conversation": faulty}
    store = store_on(MixedBackend(routes, shown, kept_with()))
    leader = threading.Thread(target=lambda: store.team("first").set("a", 1))
    leader.start()
    assert held.reached.wait(PATIENCE_S)
    names = ("team/red", "conversation/c1", "conversation/c2", "team/blue")
    pending: list[Any] = []
    for name in names:
        with store.commit(waits=False) as tx:
            tx.scope(store.scope(name)).set("a", 1)
        pending.append(tx)
    held.go_on.set()
    leader.join(PATIENCE_S)
    answers: list[object] = []
    for tx in pending:
        try:
            answers.append(tx.wait().revision)
        except UnavailableError as error:
            answers.append(error.outcome_known)
    assert answers == [1, False, False, 1]
    store.close()


def test_what_was_answered_before_its_backend_failed_stays_answered() -> None:
    """`abort_if`: what is not to be written has its answer, whatever becomes of its neighbours."""
    clock = SystemClock()
    faulty: Any = FaultyBackend(MemoryBackend(clock=clock), {1: "before"})
    routes = {"*": MemoryBackend(clock=clock), "conversation": faulty}
    store = store_on(MixedBackend(routes, {"*": "rest", "conversation": "chats"}, kept_with()))
    names = ("team/red", "conversation/gone", "conversation/failed")
    gone = LeaseLostError("the run has ended", lease="run/r", epoch=1)
    abort_if = [None, lambda: gone, None]
    parts = [
        scope_stream(store.scope(name)).change_write([set_op("n", 3)], None, None, None)
        for name in names
    ]
    wanted = [
        ProposedCommit((part,), abort_if=one) for part, one in zip(parts, abort_if, strict=True)
    ]
    requests = [Request(one) for one in wanted]
    store._log._run(requests)
    assert requests[0].outcome().revision == 1
    with pytest.raises(LeaseLostError, match="has ended"):
        requests[1].outcome()
    with pytest.raises(UnavailableError, match="as planned"):
        requests[2].outcome()
    store.close()


class Unreadable(MemoryBackend):
    """Judges and writes, but nothing can be read of one stream."""

    broken = ""

    def read(self, stream: str, **named: Any) -> Any:
        if stream == self.broken:
            raise UnavailableError("the disk reports an input/output error")
        return super().read(stream, **named)


def test_what_a_backend_wrote_before_it_failed_stays_answered() -> None:
    """Clause 1: a refusal that cannot be followed up does not spoil its neighbour's receipt."""
    clock = SystemClock()
    chats = Unreadable(clock=clock)
    routes = {"*": MemoryBackend(clock=clock), "conversation": chats}
    mixed = MixedBackend(routes, {"*": "rest", "conversation": "chats"}, kept_with())
    store = store_on(mixed)
    store.conversation("late").set("n", 1)
    store_on(mixed).conversation("late").set("n", 2)
    names = ("team/red", "conversation/new", "conversation/late")
    part = {
        name: scope_stream(store.scope(name)).change_write([set_op("n", 3)], None, None, None)
        for name in names
    }
    requests = [Request(ProposedCommit((part[name],))) for name in names]
    chats.broken = "conversation/late"
    store._log._run(requests)
    assert [request.outcome().revision for request in requests[:2]] == [1, 1]
    with pytest.raises(UnavailableError, match="input/output"):
        requests[2].outcome()
    chats.broken = ""
    assert store.conversation("late").state == {"n": 2}
    store.close()


def test_a_list_of_commits_is_answered_in_order(backend: MixedBackend) -> None:
    """Clauses 1 and 8, over several backends."""
    build = RecordBuilder()
    commits = [build.commit(a1 := build.append("team/a"))]
    commits.append(build.commit(c1 := build.append("conversation/c")))
    commits.append(build.commit(build.append("team/a", behind=a1)))
    commits.append(build.commit(build.append("conversation/c")))
    commits.append(build.commit(build.append("conversation/c", behind=c1)))
    answers = backend.commit(commits)
    assert [type(answer) for answer in answers] == [Receipt, Receipt, Receipt, Refusal, Receipt]
    refusal = answers[3]
    assert isinstance(refusal, Refusal)
    assert refusal.head is not None
    assert (refusal.stream, refusal.head.revision) == ("conversation/c", 1)
    records = backend.read("conversation/c")
    assert [record.revision for record in records] == [1, 2]
    assert refusal.head.position == records[0].position < records[1].position


def test_an_unavailable_backend_leaves_a_list_in_doubt() -> None:
    clock = SystemClock()
    faulty: Any = FaultyBackend(MemoryBackend(clock=clock), {1: "before", 2: "before"})
    shown = {"*": "rest", "conversation": "chats"}
    backend = MixedBackend(
        {"*": MemoryBackend(clock=clock), "conversation": faulty}, shown, kept_with()
    )
    build = RecordBuilder()
    with pytest.raises(UnavailableError) as caught:
        backend.commit([build.commit(build.append("conversation/c"))])
    assert "another backend" not in str(caught.value)
    pair = [build.commit(build.append(name)) for name in ("team/a", "conversation/c")]
    with pytest.raises(UnavailableError, match="commits of the same list were written") as caught:
        backend.commit(pair)
    assert not caught.value.outcome_known


def test_a_commit_hears_news_of_scopes_elsewhere(store: Store) -> None:
    store.team("red").set("a", 1)
    with store.commit() as tx:
        tx.scope(store.conversation("c1")).set("a", 1)
        tx.watch(store.team("red"))
        tx.watch(store.conversation("c1"))
        tx.watch(store.workflow("none"))
    assert tx.news == {"team/red": 1, "conversation/c1": 1, "workflow/none": 0}


def test_guarantee_1_a_commit_is_not_denied_because_what_it_watches_is_down(
    store: Store, backend: MixedBackend
) -> None:
    def down(streams: object) -> None:
        raise UnavailableError("the server is down")

    store.conversation("c1").set("a", 0)  # to begin it, the store is asked how long it lasts
    rest(backend).heads = down
    with pytest.raises(UnavailableError, match="was written") as caught, store.commit() as tx:
        tx.scope(store.conversation("c1")).set("a", 1)
        tx.watch(store.team("red"))
    assert not caught.value.outcome_known
    assert store.conversation("c1").get("a") == 1


def test_keys_are_answered_by_the_backend_of_their_stream(store: Store) -> None:
    chat = store.conversation("c1")
    assert chat.set("a", 1, key="k") == chat.set("a", 1, key="k") == 1
    assert store.team("c1").set("a", 1, key="k") == 1


# --- leases --------------------------------------------------------------------------------------


def test_a_lease_lies_with_the_level_that_its_name_begins_with(
    store: Store, backend: MixedBackend
) -> None:
    """Guarantee 4."""
    chat = store.conversation("c1")
    lease = store.workers.lease("conversation/c1")
    assert chats(backend).streams() == ["lease/conversation/c1"]
    assert chats(backend).leases.holder("conversation/c1") == lease
    with store.commit(lease=lease) as tx:
        tx.scope(chat).set("a", 1)
    store.workers.release(lease)
    with pytest.raises(LeaseLostError), store.commit(lease=lease) as tx:
        tx.scope(chat).set("a", 2)
    assert store.workers.lease("run/r1") == backend.part_of("workflow/r1").leases.holder("run/r1")
    assert store.workers.renew(store.workers.lease("nightly")) == rest(backend).leases.holder(
        "nightly"
    )
    names = [held.name for held in backend.leases.list()]
    assert names == sorted(names)
    assert set(names) >= {"nightly", "run/r1"}


def test_a_lease_of_another_backend_fences_nothing(store: Store, backend: MixedBackend) -> None:
    chat = store.conversation("c1")
    lease = store.workers.lease("nightly")
    with pytest.raises(UsageError) as caught, store.commit(lease=lease) as tx:
        tx.scope(chat).set("a", 1)
    message = str(caught.value)
    assert 'lease "nightly" is kept in memory-of-*' in message
    assert 'name the lease after what it fences, such as "conversation/…"' in message
    assert chat.revision == 0
    build = RecordBuilder()
    commit = build.commit(build.append("conversation/c1"), fence=Fence("nightly", "w", 1))
    with pytest.raises(UsageError, match="cannot fence"):
        backend.commit([commit])


# --- marks ---------------------------------------------------------------------------------------


def test_marks_lie_with_their_commit_and_are_claimed_in_one_order(
    store: Store, backend: MixedBackend
) -> None:
    """Clause 17 over all backends; what was claimed too much is free again."""
    for name, key, priority in (
        ("team/red", "low", 1),
        ("conversation/c1", "high", 9),
        ("workflow/w", "middle", 5),
        ("conversation/c1", "lowest", 0),
    ):
        with store.commit() as tx:
            tx.scope(store.scope(name)).increment("n")
            tx.mark("todo", key, priority=priority)
    assert [mark.key for mark in store.workers.marks("todo")] == ["high", "middle", "low", "lowest"]
    assert [mark.key for mark in store.workers.marks(limit=2)] == ["high", "middle"]
    assert [mark.key for mark in chats(backend).marks.list()] == ["high", "lowest"]
    assert [mark.key for mark in store.workers.claim("todo", n=2)] == ["high", "middle"]
    assert [(claim.key, claim.owner) for claim in backend.marks.claims()] == [
        ("high", "tester"),
        ("middle", "tester"),
    ]
    assert [mark.key for mark in backend.marks.claim("todo", "other", n=9, ttl_s=9)] == [
        "low",
        "lowest",
    ]
    backend.marks.release("todo", "high", "tester")
    assert [mark.key for mark in backend.marks.claim("todo", "other", n=9, ttl_s=9)] == ["high"]


def test_a_commit_of_marks_alone_goes_to_where_they_are(
    store: Store, backend: MixedBackend
) -> None:
    build = RecordBuilder()
    write(backend, build, "conversation/c1", marks=[Mark("todo", "a")])
    with store.commit() as tx:
        tx.clear("todo", "a")
        tx.clear("todo", "never there")
    assert backend.marks.list() == []
    with store.commit() as tx:
        tx.mark("todo", "b")
    assert [mark.key for mark in rest(backend).marks.list()] == ["b"]
    write(backend, build, "conversation/c2", marks=[Mark("todo", "c")])
    apart = r'mark "b" is kept in memory-of-.*mark "c"'
    with pytest.raises(UsageError, match=apart), store.commit() as tx:
        tx.clear("todo", "b")
        tx.clear("todo", "c")
    assert len(backend.marks.list()) == 2


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        (Mark("decision.open", "x", group="conversation/c1"), "conversation/c1"),
        (Mark("scope.expires", "workflow/w"), "workflow/w"),
        (Mark("run.due", "r1"), "workflow/w"),
        (Mark("run", "r1", group="failed"), "workflow/w"),
        (Mark("todo", "r1"), "team/red"),
        (Mark("todo", "team/red"), "team/red"),
    ],
    ids=repr,
)
def test_a_mark_says_where_it_belongs(store: Store, mark: Mark, name: str) -> None:
    assert store._log.routes.place_of_mark(mark) == store._log.routes.place_of(name)


def test_a_claim_that_one_part_refuses_leaves_nothing_claimed(
    backend: MixedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clause 17: nobody was given what the others handed out, so nobody would give it back."""
    build = RecordBuilder()
    write(backend, build, "team/a", marks=[Mark("todo", "one")])
    write(backend, build, "workflow/a", marks=[Mark("todo", "two")])
    down = backend.parts[-1].marks

    def refuse(index: str, owner: str, *, n: int, ttl_s: float) -> list[Mark]:
        raise UnavailableError("no server")

    with monkeypatch.context() as patch:
        patch.setattr(down, "claim", refuse)
        with pytest.raises(UnavailableError):
            backend.marks.claim("todo", "w1", n=5, ttl_s=60)
    assert [mark.key for mark in backend.marks.claim("todo", "w2", n=5, ttl_s=60)] == ["one", "two"]


# --- what is let go of ---------------------------------------------------------------------------


class Unfit:
    """A part that can be written and read, and can neither rewrite nor shorten."""

    timeout_s = None

    def __init__(self, inner: MemoryBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("rewrite", "shorten", "purge"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.mark.parametrize("unfit", ["*", "conversation"])
def test_a_part_that_cannot_let_go_refuses_before_another_has(unfit: str) -> None:
    clock = SystemClock()
    parts: Any = {name: MemoryBackend(clock=clock) for name in ("*", "conversation")}
    parts[unfit] = Unfit(parts[unfit])
    backend = MixedBackend(parts, dict.fromkeys(parts, "memory"), kept_with())
    names = ("team/a", "conversation/c")
    for name in names:
        write(backend, RecordBuilder(), name, b"{}", b"[]")
    before = [backend.read(name) for name in names]
    with pytest.raises(UsageError, match="cannot let go"):
        backend.rewrite({name: [1] for name in names})
    with pytest.raises(UsageError, match="cannot take out"):
        backend.shorten({name: {1: b"{}"} for name in names})
    assert [backend.read(name) for name in names] == before
    backend.close()
