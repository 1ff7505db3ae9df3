"""Every wrong argument is one of our errors, says what helps, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, Scope, Store
from holdfast.backends.protocol import START, Lease
from holdfast.core.listing import register_level
from holdfast.core.transaction import PendingCommit, PendingScope
from tests.faults.stores import content, fill

LEASE = Lease("l", "somebody", 1, 0)
JUNK: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "huge": 10**30,
    "float": 1.5,
    "nan": float("nan"),
    "empty text": "",
    "text": "a",
    "long text": "a" * 600,
    "nul": "\0",
    "surrogate": "\ud800",
    "slash": "a/b",
    "bytes": b"x",
    "object": object(),
    "empty list": [],
    "list": ["a"],
    "empty dict": {},
    "dict": {"a": 1},
    "int keys": {1: 2},
    "empty tuple": (),
    "path": ("log",),
    "none in path": ("a", None),
    "huge index": ("log", 10**30),
    "key of list": ("log", "x"),
    "set": set[int](),
    "naive datetime": datetime(2026, 11, 16),
    "date": date(2026, 11, 16),
    "function": lambda *_: None,
    "class": ValueError,
}


def chat(store: Store) -> Scope:
    return store.conversation("c")


def commit(store: Store, change: Callable[[PendingCommit], Any]) -> None:
    with store.commit() as tx:
        change(tx)


def pending(store: Store, change: Callable[[PendingScope], Any]) -> None:
    with store.commit() as tx:
        change(tx.scope(chat(store)))


def block(pending: PendingCommit, store: Store) -> PendingCommit:
    with pending as tx:
        tx.scope(store.team("tx")).set("a", 1)
    return tx


def draft(store: Store, change: Callable[[Any], Any]) -> None:
    with chat(store).edit() as draft:
        change(draft)


CALLS: dict[str, Callable[[Store, Any], Any]] = {
    "store.team": lambda s, j: s.team(j),
    "store.team parent": lambda s, j: s.team("a", parent=j),
    "store.workflow": lambda s, j: s.workflow(j),
    "store.conversation parent": lambda s, j: s.conversation("a", parent=j),
    "store.scope": lambda s, j: s.scope(j),
    "store.scope level": lambda s, j: s.scope(j, "a"),
    "store.scope id": lambda s, j: s.scope("team", j),
    "store.scopes": lambda s, j: list(s.scopes(j)),
    "register_level": lambda s, j: register_level(s._kernel, j, below="team"),
    "register_level below": lambda s, j: register_level(s._kernel, "zz", below=j),
    "store.commit key": lambda s, j: block(s.commit(key=j), s),
    "store.commit lease": lambda s, j: block(s.commit(lease=j), s),
    "store.commit waits key": lambda s, j: block(s.commit(waits=False, key=j), s).wait(),
    "tx.scope": lambda s, j: commit(s, lambda tx: tx.scope(j)),
    "tx.watch": lambda s, j: commit(s, lambda tx: tx.watch(j)),
    "tx.mark index": lambda s, j: commit(s, lambda tx: tx.mark(j, "k")),
    "tx.mark key": lambda s, j: commit(s, lambda tx: tx.mark("i", j)),
    "tx.mark due": lambda s, j: commit(s, lambda tx: tx.mark("i", "k", due=j)),
    "tx.mark priority": lambda s, j: commit(s, lambda tx: tx.mark("i", "k", priority=j)),
    "tx.clear index": lambda s, j: commit(s, lambda tx: tx.clear(j, "k")),
    "tx.clear key": lambda s, j: commit(s, lambda tx: tx.clear("i", j)),
    "tx get": lambda s, j: pending(s, lambda one: one.get(j)),
    "tx set path": lambda s, j: pending(s, lambda one: one.set(j, 1)),
    "tx set value": lambda s, j: pending(s, lambda one: one.set("v", j)),
    "tx update": lambda s, j: pending(s, lambda one: one.update(j)),
    "tx delete": lambda s, j: pending(s, lambda one: one.delete(j)),
    "tx append": lambda s, j: pending(s, lambda one: one.append(j, 1)),
    "tx increment": lambda s, j: pending(s, lambda one: one.increment(j)),
    "tx increment by": lambda s, j: pending(s, lambda one: one.increment("n", j)),
    "tx checkpoint": lambda s, j: pending(s, lambda one: one.checkpoint(j)),
    "tx expect": lambda s, j: pending(s, lambda one: one.expect(j)),
    "view.state": lambda s, j: s.view().state(j),
    "view.revision": lambda s, j: s.view().revision(j),
    "view.get": lambda s, j: s.view().get(chat(s), j),
    "store.events after": lambda s, j: list(s.follow(as_events=True, after=j, timeout_s=0)),
    "store.events timeout": lambda s, j: next(s.follow(as_events=True, timeout_s=j, after=START)),
    "store.follow": lambda s, j: list(s.follow(j, timeout_s=0)),
    "store.follow after": lambda s, j: list(s.follow(chat(s), after=j, timeout_s=0)),
    "store.workers.lease": lambda s, j: s.workers.lease(j),
    "store.workers.lease ttl": lambda s, j: s.workers.lease("l", ttl_s=j),
    "store.workers.renew": lambda s, j: s.workers.renew(j),
    "store.workers.renew ttl": lambda s, j: s.workers.renew(LEASE, ttl_s=j),
    "store.workers.release": lambda s, j: s.workers.release(j),
    "store.workers.claim": lambda s, j: s.workers.claim(j),
    "store.workers.claim n": lambda s, j: s.workers.claim("todo", n=j),
    "store.workers.claim ttl": lambda s, j: s.workers.claim("todo", ttl_s=j),
    "store.workers.marks": lambda s, j: s.workers.marks(j),
    "store.workers.marks limit": lambda s, j: s.workers.marks(limit=j),
    "store.check expect": lambda s, j: s.check(expect=j),
    "scope.get": lambda s, j: chat(s).get(j),
    "scope.lookup": lambda s, j: chat(s).lookup(j),
    "scope.at": lambda s, j: chat(s).at(j),
    "scope.diff": lambda s, j: chat(s).diff(j),
    "scope.diff until": lambda s, j: chat(s).diff(0, j),
    "scope.diff keys": lambda s, j: chat(s).diff(j).keys(),
    "scope.history after": lambda s, j: list(chat(s).history(after=j)),
    "scope.history until": lambda s, j: list(chat(s).history(until=j)),
    "scope.life.revision_at": lambda s, j: chat(s).life.revision_at(j),
    "scope.set path": lambda s, j: chat(s).set(j, 1),
    "scope.set value": lambda s, j: chat(s).set("v", j),
    "scope.set expected": lambda s, j: chat(s).set("v", 1, expected=j),
    "scope.set key": lambda s, j: chat(s).set("v", 1, key=j),
    "scope.set checkpoint": lambda s, j: chat(s).set("v", 1, checkpoint=j),
    "scope.update": lambda s, j: chat(s).update(j),
    "scope.delete": lambda s, j: chat(s).delete(j),
    "scope.append path": lambda s, j: chat(s).append(j, 1),
    "scope.append value": lambda s, j: chat(s).append("l", j),
    "scope.increment": lambda s, j: chat(s).increment(j),
    "scope.increment by": lambda s, j: chat(s).increment("n", j),
    "scope.checkpoint": lambda s, j: chat(s).checkpoint(j),
    "scope.edit retries": lambda s, j: chat(s).edit(lambda d: d.update(v=2), retries=j),
    "scope.edit key": lambda s, j: chat(s).edit(lambda d: d.update(v=2), key=j),
    "scope.restore": lambda s, j: chat(s).restore(j),
    "scope.fork": lambda s, j: chat(s).fork(j),
    "scope.fork at": lambda s, j: chat(s).fork(f"fork {j!r}"[:40], at=j),
    "scope.subscribe": lambda s, j: chat(s).subscribe(j)(),
    "scope.close keep": lambda s, j: s.team("closing").close(keep=j),
    "scope[] =": lambda s, j: chat(s).__setitem__(j, 1),
    "draft[] =": lambda s, j: draft(s, lambda d: d.__setitem__(j, 1)),
    "draft value": lambda s, j: draft(s, lambda d: d.__setitem__("v", j)),
    "draft append": lambda s, j: draft(s, lambda d: d.setdefault("d", []).append(j)),
    "draft insert": lambda s, j: draft(s, lambda d: d.setdefault("d", []).insert(0, j)),
    "draft insert at": lambda s, j: draft(s, lambda d: d.setdefault("d", []).__setitem__(j, 1)),
}
# A draft's list is a list: an index that is not there, or is none, raises what a list raises.
LIKE_A_LIST = {"draft insert at": (IndexError, TypeError)}


@pytest.fixture(scope="module", params=["memory", "files", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("arguments")
    urls = {"memory": "memory:", "files": place / "store", "sqlite": f"sqlite:{place / 'x.db'}"}
    with holdfast.open(urls[request.param], durability="process") as store:
        fill(store)
        yield store
        # Whatever was refused or accepted above: the store is whole and says the same thing twice.
        assert store.check().ok
        before = repr(content(store))  # nan is not equal to itself
    if request.param != "memory":
        with holdfast.open(urls[request.param], create=False) as again:
            assert repr(content(again)) == before
            assert again.check().ok


@pytest.mark.parametrize("name", CALLS)
def test_every_wrong_argument_is_one_of_our_errors(store: Store, name: str) -> None:
    for what, junk in JUNK.items():
        position = store.position
        try:
            CALLS[name](store, junk)
        except HoldfastError as error:
            text = str(error)
            assert text, f"{name} with {what}: an error without a word"
            assert not text.endswith("."), f"{name} with {what}: {text}"
            assert not text[0].isupper() or text.startswith("BUG"), f"{name} with {what}: {text}"
            assert "BUG" not in text, f"{name} with {what}: {text}"
            assert store.position == position, f"{name} with {what} wrote before it was refused"
        except LIKE_A_LIST.get(name, ()):
            assert store.position == position
        except Exception as error:
            raise AssertionError(f"{name} with {what}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", ["scope.edit", "scope.subscribe"])
def test_what_is_called_must_be_callable(store: Store, name: str) -> None:
    call: Any = chat(store).edit if name == "scope.edit" else chat(store).subscribe
    for junk in (1, "text", [], {}):
        with pytest.raises(holdfast.UsageError):
            call(junk)


def test_the_last_word_on_a_mark_counts(store: Store) -> None:
    with store.commit() as tx:
        tx.mark("twice", "k", priority=1)
        tx.mark("twice", "k", priority=2)
        tx.mark("gone", "k")
        tx.clear("gone", "k")
    assert [mark.priority for mark in store.workers.marks("twice")] == [2]
    assert store.workers.marks("gone") == []
