"""The front door: few names, imported when they are used; a store without rooms promises the same.

What a layer owns is known before its room is entered. What was public before says where it went.
"""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings, Store, UsageError, aio
from holdfast.opening import open_store
from holdfast.renamed import NAMES, SCOPE, SETTINGS, STORE
from holdfast.retention import RetentionPolicy

NAMES_MAX = 60
ATTRIBUTES_MAX = 40
OPTIONS_MAX = 12
MODULES_MAX = 65
"""Half of the 131 that `import holdfast` loaded when all of its names were imported with it."""

ROOMS = (
    *("runs", "tasks", "decisions", "facts", "sessions", "nodes", "projections", "search"),
    *("retention", "subjects", "keys", "secrets", "schemas", "workers"),
)

OWNED = """
import json, sys
import holdfast
from holdfast.core import layers

with holdfast.open("memory:") as hf:
    for room in sys.argv[1:]:
        getattr(hf, room)
    print(json.dumps([
        sorted(layers.reserved_prefixes()), sorted(layers.lasting_prefixes()),
        sorted(layers.kept_with().items(), key=str), sorted(layers.owned_indexes()),
        sorted(layers.swept_indexes()), sorted(layers.named_indexes()),
        sorted(one.name for one in layers.layers()),
        [one.name for one in layers.layers() if one.holds or one.along or one.copies or one.stale],
    ]))
"""

FILLED = """
import sys
from operator import attrgetter
import holdfast
from holdfast import Graph, node

@node(version="1")
def doubled(ctx):
    return ctx.read("team/red", "n") * 2

@holdfast.run
def waits(ctx):
    return ctx.wait("approve")

with holdfast.open(sys.argv[1], keys=sys.argv[2]) as hf:
    team = hf.team("red")
    team.set("n", 1)
    hf.nodes.process(Graph("g", [doubled]), team)
    hf.runs.start(waits, id="r1", queue="later")
    team.facts.state("sky", "blue", valid_for="1h")
    team.decide("paint it", key="d1")
    hf.team("blue").set("n", 1)
    hf.team("blue").remove()
    hf.team("held").set("n", 1)
    hf.retention.hold("team/held", "case 7")
    hf.conversation(hf.subjects.pseudonym("ada"), subject="ada").set("name", "Ada")
"""


def public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def ran(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_door_is_small() -> None:
    assert len(holdfast.__all__) <= NAMES_MAX
    assert len({*holdfast.__all__}) == len(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert len(signature(open_store).parameters) <= OPTIONS_MAX
    with holdfast.open("memory:") as hf:
        for thing in (hf, hf.scratch(), hf.global_(), hf.team("t"), hf.conversation("c")):
            assert len(public(thing)) <= ATTRIBUTES_MAX, public(thing)
        assert {*ROOMS} < {*public(hf)}


async def _counts() -> tuple[list[str], list[str]]:
    async with await aio.open("memory:") as hf:
        return public(hf), public(hf.conversation("c"))


def test_the_door_of_asyncio_is_the_same() -> None:
    import asyncio

    store, chat = asyncio.run(_counts())
    with holdfast.open("memory:") as hf:
        assert {*store} - {"sync"} == {*public(hf)}
        assert {*chat} - {"sync"} == {*public(hf.conversation("c"))} - {"session_id"}


def test_a_process_pays_for_the_rooms_that_it_enters() -> None:
    counted = "import sys, holdfast; print(sum(m.startswith('holdfast') for m in sys.modules))"
    assert int(ran(counted)) <= MODULES_MAX
    used = (
        "import sys, holdfast\n"
        "with holdfast.open('memory:') as hf:\n"
        "    hf.team('t').set('n', 1)\n"
        "    assert hf.team('t').get('n') == 1\n"
        "print(*(m for m in sys.modules if m.startswith('holdfast.')))\n"
    )
    loaded = {name.removeprefix("holdfast.") for name in ran(used).split()}
    rooms = {"runs.engine", "nodes.walk", "projections.projected", "query.index", "git.rewinds"}
    rooms |= {"projects.project", "views.directory", "erasure", "undo", "prose", "aio", "cli"}
    rooms |= {room for room in ROOMS if room not in ("runs", "nodes", "projections")}
    assert not loaded & rooms, sorted(loaded & rooms)


def test_what_the_layers_own_is_known_before_a_room_is_entered() -> None:
    assert ran(OWNED) == ran(OWNED, *ROOMS)


def test_a_store_without_rooms_promises_the_same(tmp_path: Path) -> None:
    place, keys = tmp_path / "store", tmp_path / "keys"
    ran(FILLED, str(place), str(keys))
    with holdfast.open(place, keys=keys) as hf:
        assert hf.check().ok
        # The node of a scope, its open decision and the run in a queue hold what they are about.
        with pytest.raises(UsageError, match=r"paint it|d1"):
            hf.team("red").remove()
        with pytest.raises(UsageError, match="r1"):
            hf.workflow("r1").set("n", 1) and hf.workflow("r1").remove()
        assert hf.recover() is not None
        assert not any(room in vars(hf) for room in ROOMS)
        gone = hf.retention.run(grace_s=0)
        assert [one.scope for one in gone.scopes] == ["team/blue"]
        receipt = hf.subjects.erase("ada")
        assert receipt.left == []
        assert hf.check().ok


def test_a_store_of_several_backends_routes_what_it_has_not_imported(tmp_path: Path) -> None:
    stores = f'{{"workflow": r"{tmp_path / "runs"}", "*": r"{tmp_path / "rest"}"}}'
    program = FILLED.replace("sys.argv[1]", stores).replace("sys.argv[2]", "sys.argv[1]")
    ran(program, str(tmp_path / "keys"))
    with holdfast.open(tmp_path / "runs", keys=tmp_path / "keys") as runs:
        assert [event.stream for event in runs.events(scope="run/r1")][:1] == ["run/r1"]
    with holdfast.open(tmp_path / "rest", keys=tmp_path / "keys") as rest:
        assert {event.stream for event in rest.events(limit=None)} >= {"node/g/team/red"}


@pytest.mark.parametrize("name", sorted(STORE))
def test_an_old_name_of_a_store_says_the_new_one(name: str) -> None:
    with holdfast.open("memory:") as hf:
        with pytest.raises(AttributeError, match=r"it is .* now"):
            getattr(hf, name)
        if name not in ("drain", "register_level"):
            whole = STORE[name].partition("(")[0]
            assert whole.startswith("hf."), "what is told can be copied"
            attrgetter(whole.removeprefix("hf."))(hf)


@pytest.mark.parametrize(
    "name", ["runs", "tasks", "decisions", "sessions", "nodes", "subjects", "workers"]
)
def test_a_room_that_was_a_method_says_so(name: str) -> None:
    with holdfast.open("memory:") as hf:
        with pytest.raises(TypeError, match=rf"hf\.{name} is a room now: call hf\.{name}\.list"):
            getattr(hf, name)()
        assert getattr(hf, name).list() == []


@pytest.mark.parametrize("name", sorted(SCOPE))
def test_an_old_name_of_a_scope_says_the_new_one(name: str) -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.conversation("c")
        with pytest.raises(AttributeError, match=r"it is .* now"):
            getattr(chat, name)
        if name != "is_scratch":
            whole = SCOPE[name].partition("(")[0]
            assert whole.startswith("scope.")
            assert hasattr(chat, whole.split(".")[1])


def test_an_old_name_of_the_package_says_where_it_is() -> None:
    import importlib

    for name, home in NAMES.items():
        assert hasattr(importlib.import_module(home), name), (name, home)
        with pytest.raises(ImportError, match=rf"from {home} import {name}"):
            getattr(holdfast, name)
    with pytest.raises(ImportError, match=r"from holdfast.retention import Reten"):
        exec("from holdfast import RetentionPolicy")
    with pytest.raises(AttributeError, match="no attribute 'retain'"):
        holdfast.retain  # noqa: B018


def test_an_old_option_of_open_says_where_it_is() -> None:
    for name in SETTINGS:
        assert hasattr(Settings(), name)
        with pytest.raises(UsageError, match=rf"Settings\({name}=…\)"):
            holdfast.open("memory:", **{name: None})
    with pytest.raises(UsageError, match="in place of the URL"):
        holdfast.open(backend=None)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="or an open backend, found 5"):
        holdfast.open(5)


def test_settings_are_heeded() -> None:
    policy = RetentionPolicy(scopes="conversation/*", older_than="90d")
    with holdfast.open("memory:", settings=Settings(retention=[policy], secrets="warn")) as hf:
        assert isinstance(hf, Store)
        assert list(hf.retention.policies) == [policy]
        assert hf.secrets.rules == {"*": "warn"}
