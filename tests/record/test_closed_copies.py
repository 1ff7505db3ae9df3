"""Whatever stores a copy of what it reads keeps sealed values sealed (0067), layer by layer.

`kept_closed` is a convention: a layer that forgets it works, and leaves a person's data in clear.
So every layer of the table is driven here on a scope in which a subject has something of every
kind, and then the bytes are looked at. A new layer, and a new module that writes files, objects or
tables, fails here until it has a driver, or a reason why it cannot leak.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ERASED, Store
from holdfast.backup import backup
from holdfast.copy import copy
from holdfast.core import codec, layers
from holdfast.errors import ErasedError
from holdfast.interchange import export_scopes
from holdfast.record import sessions
from holdfast.record.context import RecordContext
from holdfast.scope import Scope
from holdfast.views.kinds import state_file
from tests.opening import settled
from tests.record.stores import new_url
from tests.record.test_shared_values import CANARY, SECRET, leaks, shared
from tests.record.test_subjects import stored
from tests.runs.cuts import until

SOURCE = Path(holdfast.__file__).parent
Driver = Callable[[Store, Path], object]


SEEN: list[Any] = []
"""What user code was given: it reads values as they are, also where copies stay closed."""


@holdfast.node
def told(ctx: Any) -> int:
    SEEN.append(ctx.read("team/red", "mail"))
    return len(ctx.read("team/red"))


@holdfast.projection(init=dict, name="closed.met")
class Met:
    """Counts whom the team has met."""

    def met(self, found: Any, event: Any) -> None:
        SEEN.append(event.data)
        found["times"] = found.get("times", 0) + 1


@holdfast.run(name="closed.reads")
def reads(ctx: Any, url: str) -> int:
    store = OPEN[url]
    SEEN.append(ctx.read(store.team("red"), "mail"))
    whole = ctx.read(store.team("red"))
    assert whole["list"] == ctx.read(store.team("red"), "list") == ["a", CANARY]
    return len(whole)


OPEN: dict[str, Any] = {}


def _snapshots(hf: Store, place: Path) -> None:
    snapshots = hf._log.snapshots
    snapshots._write("team/red", hf._log.newest("team/red"), snapshots._begin("t"))


def _long_list(hf: Store, place: Path) -> None:
    """Items of a long list are kept by value, in blocks beside the snapshots."""
    team = hf.team("red")
    for n in range(600):
        team.append("log", f"{n} " + "x" * 500)
    for n in (0, 33, 599):
        team.set(("log", n), f"{CANARY} {n}", subject="ada")
    _snapshots(hf, place)
    with holdfast.open(hf.url, keys=place / "keys") as other:
        assert other.team("red").state.to_dict()["log"][33] == f"{CANARY} 33"
        _snapshots(other, place)
        assert len(other.team("red").state.to_dict()["log"]) == 600
    names = hf._log._backend.objects.names("snapshot")
    assert any("/items-" in name for name in names), names


def _hold(hf: Store, place: Path) -> None:
    hf.subjects.hold("ada", "case")


def _retain(hf: Store, place: Path) -> None:
    hf.team("gone").set("mail", CANARY, subject="ada")
    hf.team("gone").remove()
    hf.retention.run(grace_s=0)


def _facts(hf: Store, place: Path) -> None:
    hf.team("red").facts.state("other", CANARY, subject="ada")
    assert len(hf.team("red").facts.list()) == 2


def _groups(hf: Store, place: Path) -> None:
    for delivery in hf.workers.group("readers").deliveries(timeout_s=0):
        delivery.done()


def _removed(hf: Store, place: Path) -> None:
    hf.team("red").remove()
    hf.team("red").undo()


def _tasks(hf: Store, place: Path) -> None:
    task = hf.team("red").tasks.add("write back")
    hf.team("red").tasks.claim(task.id)
    hf.tasks.list()


def _decisions(hf: Store, place: Path) -> None:
    with hf.team("red").decide("call them") as decision:
        decision.outcome("done")


def _session(hf: Store, place: Path) -> None:
    talk = hf.conversation("talk")
    sessions.begin_session(hf._kernel.part(RecordContext), talk, keep=True)
    with talk.messages.turn():
        talk.messages.add("user", f"{CANARY} hi", subject="ada")


def _run(hf: Store, place: Path) -> None:
    OPEN[str(place)] = hf
    hf.runs.start(reads, str(place), id="closed").result()
    assert SEEN.pop() == f"{CANARY}@x.org"


def _nodes(hf: Store, place: Path) -> None:
    hf.nodes.process(holdfast.Graph("closed", [told]), hf.team("red"))
    assert SEEN.pop() == f"{CANARY}@x.org"


def _projection(hf: Store, place: Path) -> None:
    hf.team("red").record("met", {"who": "somebody"}, unchecked=True)
    assert hf.projections.of(Met).state == {"times": 1}  # what is sealed takes no part
    assert SEEN.pop() == {"who": "somebody"}


def _lease(hf: Store, place: Path) -> None:
    with hf.workers.lease("team/red"):
        hf.team("red").set("plan", "theirs")


def _index(hf: Store, place: Path) -> None:
    assert not list(hf.query(text=CANARY))
    assert not list(hf.query(where={"mail": f"{CANARY}@x.org"}))
    hf.search.tables()


def _views(hf: Store, place: Path) -> None:
    hf.views(place / "views", [state_file(hf.team("red"), "red.json")]).sync()


def _backup(hf: Store, place: Path) -> None:
    backup(hf, place / "backup")
    with (place / "red.jsonl").open("wb") as file:
        export_scopes(hf, ["team/red"], file)


def _copy(hf: Store, place: Path) -> None:
    with holdfast.open(place / "copy", keys=place / "keys") as other:
        copy(hf, other)
        assert SECRET not in stored(other)


LAYERS: dict[str, Driver | str] = {
    "subjects": _hold,
    "snapshots": _snapshots,
    "expiry": "marks of names and times",
    "key ends": "marks of names and times",
    "mark ends": "marks of names and times",
    "lives": _removed,
    "levels": "marks of levels",
    "leases": _lease,
    "retention": _retain,
    "groups": _groups,
    "encryption": "stores ciphertext on top of another backend",
    "rewinds": "names, revisions and digests; files are git's",
    "git": "names of events that were told; what a commit says of them is below",
    "inbox": _run,
    "runs": _run,
    "nodes": _nodes,
    "projections": _projection,
    "facts": _facts,
    "decisions": _decisions,
    "tasks": _tasks,
    "sessions": _session,
}


WRITERS: dict[str, Driver | str] = {
    "audit_export": "heads and digests of links",
    "backup": _backup,
    "interchange": _backup,
    "transfer/sink": _copy,
    "core/snapshot": _snapshots,
    "core/blobs": "seals what it is given; every driver has a large value",
    "core/holds": "copies blobs as they are stored",
    "core/item_copies": _long_list,
    "core/key_ring": "keys, apart from the store",
    "core/keystore": "keys, apart from the store",
    "core/reserve": "writes zeros",
    "core/log": "hands objects to the parts that are here",
    "exchange": "puts files in place for those that are here",
    "projections/stored": _projection,
    "query/index": _index,
    "query/paths": _index,
    "query/tables": _index,
    "query/place": _index,
    "query/links": _index,
    "query/questions": "limits of a statement; it asks, and writes nothing",
    "http_request": "what it calls an exchange is a request",
    "query/vectors": "an embedder is code of the user's; tests/query/test_vectors.py seals for it",
    "views/directory": _views,
    "views/last_text": _views,
    "record/sessions": _session,
    "record/session_export": "an export that a user asks for is in clear, and says so",
    "record/trust": "keys of commands",
    "git_recovery": "events as they are stored",
    "context/block": "boot --write keeps closed: tests/context/test_boot.py",
    "prose/view_files": "programs, which are no data of a store",
    "git/repository": "objects of git, from files that exist",
    "git/auto_commit": "settings of git",
    "git/linked_trees": "settings of git",
    "git/versions": "versions of a store, as git has them",
    "git/commit_trailers": "names and revisions of events, never what they say",
    "git/witness": "heads",
    "git/work_tree": "files of a work tree, from git",
    "git/installed": "a hook and a driver",
    "git/rewinds": "files of a work tree, from git",
    "contrib/task_lifetimes": "a file of its own user",
    "contrib/demo/agent": "a demonstration",
    "contrib/demo/scenes": "a demonstration",
    "projects/doctor": "probes a directory",
    "projects/recovery": "puts back files as git has them",
    "cli/backup": _backup,
    "cli/salvage": "events as they are stored",
    "cli/project": "a project's own settings",
}
"""Modules that write objects, tables or files, and what drives them, or why they cannot leak."""

WRITES = re.compile(
    r"objects\.put\(|objects_of\(\w*\)\.put\(|write_text\(|write_bytes\(|O_CREAT|"
    r"open\([^)]*\"[wax]b?\"|exchange\.|backends\.derived_tables|derived_file|"
    r"from holdfast\.exchange"
)


@pytest.fixture(params=["files", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


DRIVERS = {
    getattr(one, "__name__", ""): one
    for one in (*LAYERS.values(), *WRITERS.values())
    if callable(one)
}


def test_what_is_driven_keeps_sealed_values_closed(url: str, tmp_path: Path) -> None:
    """One after the other in one store; after each, all that it has is looked at."""
    options: dict[str, Any] = {
        "keys": tmp_path / "keys",
        "indexes": [holdfast.index("team", "mail")],
    }
    with holdfast.open(url, **settled(options)) as hf:
        shared(hf)
        for name, drive in DRIVERS.items():
            drive(hf, tmp_path)
            assert SECRET not in stored(hf), name
            assert not leaks(url, tmp_path), name
    with holdfast.open(url, **settled(options)) as hf:
        assert SECRET not in stored(hf)
    assert not leaks(url, tmp_path)


def test_every_layer_is_driven_or_cannot_leak() -> None:
    names = {layer.name for layer in layers.layers()}
    assert names <= set(LAYERS)
    for name in ("snapshots", "tasks", "projections"):  # these store copies of what events say
        assert callable(LAYERS[name]), f"{name} derives data"


def test_every_module_that_writes_is_driven_or_cannot_leak() -> None:
    found = {
        path.relative_to(SOURCE).with_suffix("").as_posix()
        for path in SOURCE.rglob("*.py")
        if WRITES.search(path.read_text("utf-8"))
    }
    others = ("backends/", "testing/", "selftest/")
    assert {name for name in found if not name.startswith(others)} <= set(WRITERS)


def test_a_layer_that_opens_what_it_keeps_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drivers would see it: with nothing kept closed, each kind of copy has the canary."""
    monkeypatch.setattr(codec, "is_kept_closed", lambda: False)
    for drive in (_views,):  # what a run keeps is sealed as a whole once more
        place = tmp_path / drive.__name__
        with holdfast.open(place / "store", keys=place / "keys") as hf:
            shared(hf)
            drive(hf, place)
        assert leaks("", place)


# --- scopes that are a subject's as a whole -------------------------------------------------------


def _own_scope(hf: Store) -> Scope:
    own = hf.conversation(hf.subjects.pseudonym("ada"), subject="ada")
    own.set("mail", f"{CANARY}@x.org")
    own.set("letters", [CANARY * 8000])
    own.messages.add("user", f"{CANARY} hello")
    return own


@holdfast.run(name="closed.reads_own")
def reads_own(ctx: Any, url: str) -> list[bool]:
    """Reads all, a part, and a large part; the second pass finds the same in the journal."""
    own = _scope_of_ada(OPEN[url])
    whole, mail, letters = ctx.read(own), ctx.read(own, "mail"), ctx.read(own, "letters")
    SEEN.append((whole, mail, letters, ctx.read(own, "none", "default")))
    ctx.wait("go on")
    return [mail == f"{CANARY}@x.org", letters == [CANARY * 8000]]


@holdfast.run(name="closed.reads_much")
def reads_much(ctx: Any, url: str) -> int:
    return len(ctx.read(OPEN[url].team("red"))["letters"])


def _scope_of_ada(hf: Store) -> Scope:
    return hf.conversation(hf.subjects.pseudonym("ada"))


@holdfast.node
def told_of_ada(ctx: Any) -> int:
    own = _scope_of_ada(OPEN["nodes"])
    SEEN.append((ctx.read(own), ctx.read(own, "mail"), ctx.messages(own)[0].content))
    return len(SEEN[-1])


def test_a_run_of_nobody_keeps_sealed_what_it_reads_of_a_subjects_scope(
    url: str, tmp_path: Path
) -> None:
    """The journal has it sealed, the run gets it open, and it is erased with its subject."""
    SEEN.clear()
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        OPEN["own"] = hf
        _own_scope(hf)
        until(hf.runs.start(reads_own, "own", id="of-nobody"), "waiting")
        state = {"mail": f"{CANARY}@x.org", "letters": [CANARY * 8000]}
        assert SEEN.pop() == (state, state["mail"], state["letters"], "default")
        assert SECRET not in stored(hf)
        assert not leaks(url, tmp_path)
    with holdfast.open(url, keys=tmp_path / "keys") as hf:  # another process would do the same
        OPEN["own"] = hf
        hf.runs.answer("of-nobody", "go on")
        assert hf.runs.resume("of-nobody").result() == [True, True]
        assert SEEN.pop()[0] == state
        assert hf.subjects.get("ada").scopes == [
            f"conversation/{hf.subjects.pseudonym('ada')}",
            "inbox/run/of-nobody",
            "run/of-nobody",
            "workflow/of-nobody",
        ]
        assert SECRET not in stored(hf)

        receipt = hf.subjects.erase("ada")

        outcomes = {one.scope.partition("/")[0]: one.outcome for one in receipt.scopes}
        own = "pending" if receipt.left else "deleted"  # of SQLite, pages are left to vacuum
        assert outcomes == dict.fromkeys(("run", "conversation", "inbox", "workflow"), own)
        assert hf.check().findings == []
        with pytest.raises(ErasedError, match="of-nobody"):
            hf.runs.get("of-nobody").result()
    assert not leaks(url, tmp_path)


def test_a_run_ends_with_its_subject_and_one_that_reads_later_gets_nothing(tmp_path: Path) -> None:
    SEEN.clear()
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        OPEN["own"] = hf
        own = _own_scope(hf)
        until(hf.runs.start(reads_own, "own", id="before"), "waiting")
        hf.subjects.erase("ada")
        for ask in (hf.runs.resume, hf.runs.get, lambda id: hf.runs.answer(id, "go on")):
            with pytest.raises(ErasedError, match="before"):
                ask("before")
        SEEN.clear()
        OPEN["own"] = _Kept(own)
        until(hf.runs.start(reads_own, "own", id="after"), "waiting")
        assert SEEN == [({}, None, None, "default")]


class _Kept:
    """A store that has one scope, whatever it is asked for: after an erasure its name is new."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.subjects = self

    def pseudonym(self, name: str) -> str:
        return name

    def conversation(self, id: str) -> Scope:
        return self._scope


def test_nodes_keep_no_word_of_what_they_read_of_a_subjects_scope(url: str, tmp_path: Path) -> None:
    """Neither a line of it, nor a digest by which somebody who guesses it could confirm that."""
    SEEN.clear()
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        OPEN["nodes"] = hf
        own = _own_scope(hf)
        graph = holdfast.Graph("closed.own", [told_of_ada])
        hf.nodes.process(graph, hf.team("red"))
        whole, mail, hello = SEEN.pop()
        assert (whole["mail"], mail, hello) == (f"{CANARY}@x.org", mail, f"{CANARY} hello")
        everything = stored(hf)
        assert SECRET not in everything
        for guess in (mail, own.state.to_dict()):
            assert sha256(codec.encode(guess)).hexdigest().encode() not in everything
        # It is computed again when what was read is another, and only then.
        own.set("other", 1)
        hf.nodes.process(graph, hf.team("red"))
        assert SEEN.pop()[0]["other"] == 1
        hf.nodes.process(graph, hf.team("red"))
        assert SEEN == []
        hf.subjects.erase("ada")
        assert hf.check().findings == []
    assert not leaks(url, tmp_path)


def test_a_large_value_that_another_scope_has_too_stays_there(url: str, tmp_path: Path) -> None:
    """Equal data of one subject is one blob. It is unreadable elsewhere, and nothing is damaged."""
    with holdfast.open(url, keys=tmp_path / "keys") as hf:
        own, team = _own_scope(hf), hf.team("red")
        team.set("letters", own.state.to_dict()["letters"], subject="ada")
        hf.subjects.erase("ada")
        assert team.state["letters"] is ERASED
        assert hf.check().findings == []
        backup(hf, tmp_path / "backup")


def test_a_run_that_reads_much_with_something_sealed_in_it_is_found(tmp_path: Path) -> None:
    """The whole state would go into a blob, in which neither erasure nor collector looks."""
    with holdfast.open(tmp_path / "store", keys=tmp_path / "keys") as hf:
        OPEN["much"] = hf
        shared(hf).set("much", "x" * 100_000)
        hf.runs.start(reads_much, "much", id="much").result()
        hf.team("red").delete("letters")
        hf.retention.run(grace_s=0)
        assert hf.check().findings == []
        scopes = ["inbox/run/much", "run/much", "team/red", "workflow/much"]
        assert hf.subjects.get("ada").scopes == scopes
        assert [one.scope for one in hf.subjects.erase("ada").scopes] == scopes
