"""Ids of scopes are any text: what a name cannot hold is escaped, what is too long has a digest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Settings, Store, aio
from holdfast.backends.memory import MemoryBackend
from holdfast.copy import copy
from holdfast.core.event import opened_payload
from holdfast.core.listing import whole_ids
from holdfast.errors import CorruptError, ExpiredError, NotFoundError, UsageError
from holdfast.names import (
    ESCAPE,
    HEAD_BYTES_MIN,
    ID_BYTES_MAX,
    NAME_BYTES_MAX,
    check_scope_name,
    cut_escaped,
    escape,
    stored_id,
    unescape,
)
from holdfast.testing import FakeClock
from tests.record.stores import ALL, DURABLE, new_url

LONG = "x" * 513
HOSTILE = [
    *("a\x00b", "a\x100000b", "a\x1010000b", "a\\x00b", "\x10", "\x10#", "\n", "\x1elife"),
    *("a/b", "a/../b", ".", "..", "../../etc/passwd", "/", " ", "\u2028", "\x7f", "\x9f"),
    *("\ud800", "\udfff\ud800", "é" * 256, "é" * 257, LONG, LONG + "y", LONG[:-1]),
    *("日" * 20_000, "x" * 444 + "\x00" * 40, "x" * 445 + "é" * 60, "\x00" * 103),
    f"{'x' * 446}\x10#{'0' * 64}",
]
"""One looks like the escape of another, one like the stored name of a long one."""


def place_of(backend: str, below: Path) -> object:
    """Returns where a new store is; a mixed one keeps teams apart from the rest."""
    if backend == "mixed":
        return {"team": f"sqlite:{below / 'teams.db'}", "*": str(below / "rest")}
    return new_url(backend, below)


@pytest.fixture(params=[*ALL, "mixed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    return place_of(request.param, tmp_path)


@pytest.fixture(params=[*DURABLE, "mixed"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    return place_of(request.param, tmp_path)


@pytest.fixture
def hf(place: object) -> Iterator[Store]:
    with holdfast.open(place) as store:
        yield store


def fill(hf: Store) -> None:
    """Begins a scope for every hostile id, in one commit."""
    with hf.commit() as tx:
        for number, id in enumerate(HOSTILE):
            tx.scope(hf.team(id)).set("n", number)


def test_an_id_is_any_text_and_never_another_one(hf: Store) -> None:
    """No two ids share a scope, and each is listed, found and shown as it was given."""
    fill(hf)
    assert [hf.team(id).get("n") for id in HOSTILE] == list(range(len(HOSTILE)))
    listed = hf.scopes("team")
    assert sorted(str(scope.id) for scope in listed) == sorted(HOSTILE)
    assert len({scope.name for scope in listed}) == len(HOSTILE)
    for scope in listed:
        assert hf.scope(scope.name).id == scope.id
        assert hf.scope(scope.name) == scope == hf.team(str(scope.id))
        assert hf.scopes(id=str(scope.id)) == [scope]
        assert len(scope.name.encode()) <= len("team/") + NAME_BYTES_MAX
    assert hf.check().findings == []


def test_another_handle_reads_the_ids(durable: object) -> None:
    with holdfast.open(durable) as hf:
        fill(hf)
    with holdfast.open(durable) as other:
        assert sorted(str(scope.id) for scope in other.scopes("team")) == sorted(HOSTILE)
        assert [other.team(id).get("n") for id in HOSTILE] == list(range(len(HOSTILE)))


def test_a_prefix_of_ids_finds_what_begins_so(hf: Store) -> None:
    """Also one that is longer than the part of an id that a name has."""
    fill(hf)
    for prefix in (
        "a",
        "a\x00",
        "a\x10",
        "x",
        "x" * 444,
        "x" * 446,
        LONG,
        LONG + "y",
        "日" * 9_000,
    ):
        wanted = sorted(id for id in HOSTILE if id.startswith(prefix))
        assert sorted(str(scope.id) for scope in hf.scopes("team", prefix=prefix)) == wanted, prefix
        if ESCAPE not in prefix:
            by_name = hf.scopes(prefix=f"team/{prefix}", limit=None)
            assert sorted(str(scope.id) for scope in by_name) == wanted
    found: list[str | None] = []
    page = hf.scopes("team", prefix=LONG, limit=1)
    while True:
        found += [scope.id for scope in page]
        if not page.more:
            break
        page = hf.scopes("team", prefix=LONG, limit=1, after=page.cursor)
    assert sorted(map(str, found)) == [LONG, LONG + "y"]


@pytest.mark.parametrize("id", ["a\x00b", LONG], ids=["escaped", "long"])
def test_every_layer_takes_such_a_scope(hf: Store, id: str) -> None:
    chat = hf.conversation(id)
    chat.say("hello")
    chat.set("a", 1, key="k", checkpoint="c")
    chat.set("a", 1, key="k")
    task = chat.tasks.add("do")
    chat.facts.state("f", "true")
    with chat.decide("choose") as decision:
        decision.outcome("chosen")
    assert [one.scope for one in hf.decisions.list(scope=chat)] == [chat.name]
    assert hf.decisions.list(scope=chat.name)
    assert hf.decisions.get(decision.id).outcome == "chosen"
    assert [one.scope for one in hf.tasks.list()] == [chat.name]
    assert hf.events(scope=chat)[0].stream == hf.events(scope=chat.name)[0].stream == chat.name
    with hf.workers.lease(chat.name), pytest.raises(UsageError, match="lease"):
        chat.remove()
    chat.tasks.close(task.id, "done")
    assert hf.view().get(chat, "a") == 1
    assert [scope.id for scope in hf.scopes()] == [id]


def test_forks_copies_and_new_lives_keep_the_id(hf: Store, tmp_path: Path) -> None:
    for number, id in enumerate(["a\x00b", LONG]):
        above = hf.team(LONG + "z")
        above.set("a", 1)
        chat = hf.conversation(id, parent=above)
        chat.set("n", number)
        fork = chat.fork(id + "fork")
        again = fork.fork(id + "again")
        assert [hf.scope(one.name).id for one in (fork, again)] == [id + "fork", id + "again"]
        assert hf.conversation(id + "again").get("n") == number
        assert (found := hf.conversation(id).parent) is not None
        assert found.id == LONG + "z"
        chat.remove()
        assert hf.scopes(id=id) == []
        chat.set("n", 10 + number)
        assert hf.scope(chat.name).id == id
    expected = sorted(str(scope.id) for scope in hf.scopes(limit=None))
    with holdfast.open("memory:") as other:
        copy(hf, other)
        assert sorted(str(scope.id) for scope in other.scopes(limit=None)) == expected


def test_asyncio_has_the_same_ids(place: object) -> None:
    async def work() -> None:
        async with await aio.open(place) as hf:
            for id in ("a\x00b", LONG, LONG + "y"):
                await hf.team(id).set("a", 1)
            listed = await hf.scopes("team")
            assert sorted(str(scope.id) for scope in listed) == ["a\x00b", LONG, LONG + "y"]
            assert [scope.id for scope in await hf.scopes(id=LONG)] == [LONG]
            assert hf.scope(hf.team(LONG).name).id == LONG

    asyncio.run(work())


# --- one backend is enough ------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Store]:
    with holdfast.open("memory:") as store:
        yield store


def test_a_whole_name_is_a_stored_one_where_it_has_an_escape(memory: Store) -> None:
    """An id from elsewhere is given beside its level: there it is only itself."""
    assert memory.scope("team/a\x100000b").id == "a\x00b"
    assert memory.scope("team", "a\x100000b").id == "a\x100000b"
    assert memory.scope("team/a\nb") == memory.team("a\nb")
    assert memory.scope(f"team/{LONG}").id == LONG
    memory.scope(f"team/{LONG}").set("a", 1)
    wrong = [
        "\x10",
        "\x10000",
        "\x100041",
        "\x10000A",
        "a\x00\x10000a",
        "\x10#",
        "x" * 520 + "\x100000",
    ]
    for id in wrong:
        with pytest.raises(UsageError, match="begins an escape"):
            memory.scope(f"team/{id}")
        with pytest.raises(UsageError, match="begins an escape"):
            memory.decisions.list(scope=f"team/{id}")
        assert memory.team(id).id == id
    with pytest.raises(UsageError, match="lease"):
        memory.workers.lease("a\x10b")
    with pytest.raises(UsageError, match="control characters"):
        memory.workers.lease("a\x00b")
    with pytest.raises(UsageError, match="must be text"):
        check_scope_name(7)
    with pytest.raises(UsageError, match="control characters"):
        check_scope_name("glo\x00bal")
    with pytest.raises(UsageError, match="must be text"):
        memory.team(7)  # pyright: ignore[reportArgumentType]


def test_a_scope_is_not_begun_by_a_digest(memory: Store) -> None:
    """Its first event could not say what its id is."""
    name = memory.team(LONG).name
    unknown = memory.scope(name)
    assert unknown.get("a") is None
    with pytest.raises(NotFoundError, match="does not tell its id"):
        _ = unknown.id
    for write in (lambda: unknown.set("a", 1), lambda: unknown.say("a")):
        with pytest.raises(UsageError, match="begin it with its level and its whole id"):
            write()
    assert unknown.revision == 0
    memory.team(LONG).set("a", 1)
    unknown.set("b", 2)
    assert unknown.id == LONG


def test_how_long_an_id_may_be(memory: Store) -> None:
    memory.team("x" * ID_BYTES_MAX).set("a", 1)
    for id in ("x" * (ID_BYTES_MAX + 1), "é" * (ID_BYTES_MAX // 2 + 1), "\x00" * 20_000):
        with pytest.raises(UsageError, match="is too long"):
            memory.team(id)
    with pytest.raises(UsageError, match="empty"):
        memory.team("")
    with pytest.raises(UsageError, match="empty"):
        memory.scope("team/")


def test_escapes_are_reversible_and_never_cut_in_half() -> None:
    text = "".join(map(chr, [*range(0x120), 0x2027, 0x2028, 0x2029, 0xD800, 0xDFFF, 0xE000]))
    assert unescape(escape(text)) == text
    assert escape(text).encode().decode() == escape(text)
    for size in range(HEAD_BYTES_MIN):
        head = cut_escaped(escape("a\x00é\x01b" * 40), size)
        assert size - 5 <= len(head.encode()) <= size
        assert escape(unescape(head)) == head


def test_an_id_that_is_not_the_one_of_the_digest_is_damage() -> None:
    backend = MemoryBackend(clock=FakeClock())
    with holdfast.open(backend) as hf:
        scope = hf.team(LONG)
        scope.set("a", 1)
        [first] = backend.read(scope.name, limit=1)
        assert first.payload == opened_payload(None, id=LONG)
        records = backend._streams[scope.name]  # pyright: ignore[reportPrivateUsage]
        for payload in (opened_payload(None, id=LONG + "y"), opened_payload(None)):
            records[0] = replace(first, payload=payload)
            with pytest.raises(CorruptError, match="digest of"):
                whole_ids(hf._log, [scope.name])
            assert [one.name for one in hf.scopes("team")] == [scope.name]


def test_the_id_of_what_has_expired_is_gone_with_it() -> None:
    clock = FakeClock()
    with holdfast.open("memory:", settings=Settings(clock=clock)) as hf:
        for id in (LONG, LONG + "y"):
            hf.team(id, ttl_s=60).set("a", 1)
        assert sorted(str(one.id) for one in hf.scopes("team")) == [LONG, LONG + "y"]
        clock.advance(61)
        for scope in hf.scopes("team"):
            with pytest.raises(ExpiredError):
                _ = scope.id


def test_a_name_of_bytes_that_are_no_text_is_an_id(memory: Store) -> None:
    """The command line gives such a name with lone surrogates."""
    id = os.fsdecode(b"\xff\xfe")
    memory.team(id).set("a", 1)
    assert [scope.id for scope in memory.scopes("team")] == [id]
    assert stored_id(id).encode()
