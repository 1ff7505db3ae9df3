"""Imports: what was said elsewhere comes with its times, on every backend (0033)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, UsageError, aio
from holdfast.copy import copy
from holdfast.core.event import from_datetime
from holdfast.core.log import Log
from holdfast.record import messages
from tests.record.kills import kill_everywhere
from tests.record.stores import new_url

LONG_AGO = datetime(2020, 1, 1, 12, tzinfo=UTC)


def moment(number: int) -> datetime:
    return LONG_AGO + timedelta(days=number)


def items(count: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": str(n), "foreign_id": f"f{n}", "said_at": moment(n)}
        for n in range(count)
    ]


def contents(said: Any) -> list[str]:
    return [message.content for message in said]


def test_messages_that_are_imported_are_found_by_the_time_they_were_said_at(hf: Store) -> None:
    chat = hf.conversation("c")
    found = chat.messages.import_many(items(4))
    assert contents(found) == contents(chat.messages) == ["0", "1", "2", "3"]
    assert [message.time for message in found] == [moment(n) for n in range(4)]
    for n in range(4):
        seen = chat.messages.at(moment(n) + timedelta(hours=1))
        assert contents(seen) == [str(one) for one in range(n + 1)]
    assert contents(chat.messages.at(LONG_AGO - timedelta(days=1))) == []
    assert hf.check().ok


def test_an_import_says_when_it_was_stored(hf: Store) -> None:
    before = datetime.now(UTC)
    hf.conversation("c").messages.import_many(items(2))
    after = datetime.now(UTC)
    for event in hf.conversation("c").history():
        assert event.time == moment(event.revision - 1)
        assert event.meta is not None
        assert event.meta.imported_at is not None
        assert before <= event.meta.imported_at <= after
        assert event.meta.original_time is None


def test_an_import_that_is_repeated_adds_what_is_missing(hf: Store) -> None:
    chat = hf.conversation("c")
    assert chat.messages.import_many([]) == []
    chat.messages.import_many(items(2))
    found = chat.messages.import_many([*items(4), *items(4)])
    assert contents(found) == [*"0123", *"0123"]
    assert contents(chat.messages) == ["0", "1", "2", "3"]
    assert contents(chat.messages.import_many(items(4))) == ["0", "1", "2", "3"]
    assert chat.revision == 4


def test_a_fork_of_an_import_has_its_times_and_ends_it(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.import_many(items(3))
    fork = chat.fork("d", at=2)
    assert contents(fork.messages.at(moment(0))) == ["0"]
    assert contents(fork.messages.import_many(items(2))) == ["0", "1"]  # both are inherited
    with pytest.raises(UsageError, match="events that were not imported"):
        fork.messages.import_many(items(3))
    chat.messages.import_many(items(4))  # the conversation itself goes on
    assert contents(fork.messages) == ["0", "1"]


def test_live_messages_follow_an_import_and_end_it(hf: Store) -> None:
    chat = hf.conversation("c")
    chat.messages.import_many(items(2))
    chat.messages.add("user", "now")
    assert contents(chat.messages.at(moment(5))) == ["0", "1"]
    assert contents(chat.messages) == ["0", "1", "now"]
    with pytest.raises(UsageError, match="events that were not imported"):
        chat.messages.import_many(items(3))
    assert contents(chat.messages.import_many(items(2))) == ["0", "1"]  # all are there
    assert chat.revision == 3


def test_own_imports_give_commit_the_time(hf: Store) -> None:
    team, other = hf.team("a"), hf.team("b")
    for n in range(3):
        with hf.commit(time=moment(n), key=f"row-{n}") as tx:
            tx.scope(team).set("n", n)
            tx.scope(other).set("n", -n)
    assert [team.at(moment(n)) for n in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert other.at(moment(1)) == {"n": -1}
    with hf.commit(time=moment(1), key="row-1") as tx:  # a repetition changes nothing
        tx.scope(team).set("n", 1)
        tx.scope(other).set("n", -1)
    assert (team.revision, other.revision) == (3, 3)


def test_records_of_a_joint_commit_have_its_time(hf: Store) -> None:
    chat = hf.conversation("c")
    with hf.commit(time=moment(0)) as tx:
        said = tx.scope(chat).messages.add("user", "a")
        tx.scope(chat).set("n", 1)
    assert said.time == moment(0)
    assert chat.at(moment(0)) == {"n": 1}
    with pytest.raises(UsageError, match="several commits by itself"), hf.commit() as tx:
        tx.scope(chat).messages.import_many(items(1))


def test_a_copy_keeps_the_times_of_an_import(hf: Store, tmp_path: Path) -> None:
    hf.conversation("c").messages.import_many(items(3))
    with holdfast.open(new_url("sqlite", tmp_path)) as target:
        copy(hf, target)
        chat = target.conversation("c")
        assert contents(chat.messages.at(moment(1))) == ["0", "1"]
        chat.messages.import_many(items(4))  # and can be gone on with
        assert contents(chat.messages) == ["0", "1", "2", "3"]


def test_an_import_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url) as hf:
            chat = hf.conversation("c")
            await chat.messages.import_many(items(2))
            async with hf.commit(time=moment(3)) as tx:
                tx.scope(chat).set("n", 1)
            async with hf.commit(waits=False, time=moment(4)) as tx:
                tx.scope(chat).set("n", 2)
            await tx.wait()
            await hf.commit(lambda tx: tx.scope(chat).set("n", 3), time=moment(5))
            assert [await chat.at(moment(n)) for n in (2, 3, 4, 5)] == [
                {}, {"n": 1}, {"n": 2}, {"n": 3},
            ]  # fmt: skip

    asyncio.run(main())


def test_an_interrupted_import_leaves_its_beginning(
    hf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that is refused takes those after it along: none is there without the ones before."""
    chat = hf.conversation("c")
    prepare = Log._prepare

    def failing(self: Log, request: Any, overlay: Any) -> Any:
        if request.work.time == from_datetime(moment(3)):
            raise UsageError("planted")
        return prepare(self, request, overlay)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "_prepare", failing)
        with pytest.raises(UsageError, match="planted"):
            chat.messages.import_many(items(6))
    assert contents(chat.messages) == ["0", "1", "2"]
    chat.messages.import_many(items(6))
    assert contents(chat.messages) == ["0", "1", "2", "3", "4", "5"]


def test_a_killed_import_leaves_its_beginning_and_is_gone_on_with(
    durable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child sends two items at a time; it is killed before and after every one of its sends."""
    monkeypatch.setattr(messages, "CHUNK", 2)

    def work(url: str) -> None:
        holdfast.open(url).conversation("c").messages.import_many(items(5))

    def fresh() -> str:
        url = new_url(durable, tmp_path)
        holdfast.open(url).close()
        return url

    left: list[int] = []
    for kill in kill_everywhere(work, fresh):
        with holdfast.open(kill.url) as hf:
            chat = hf.conversation("c")
            left.append(len(chat.messages))
            assert contents(chat.messages) == [str(n) for n in range(left[-1])]
            assert contents(chat.messages.import_many(items(5))) == [*"01234"]
            assert contents(chat.messages.at(moment(2))) == [*"012"]
            assert chat.revision == 5
    assert left == [0, 1, 1, 3, 3, 5]


def test_levels_of_a_mixed_store_are_imported_into(tmp_path: Path) -> None:
    routes = {"*": str(tmp_path / "store"), "conversation": f"sqlite:{tmp_path}/chats.db"}
    with holdfast.open(routes) as hf:
        hf.conversation("c").messages.import_many(items(3))
        with hf.commit(time=moment(1)) as tx:
            tx.scope(hf.team("a")).set("n", 1)
        assert contents(hf.conversation("c").messages.at(moment(1))) == ["0", "1"]
        assert (hf.team("a").at(moment(0)), hf.team("a").at(moment(1))) == ({}, {"n": 1})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"said_at": moment(1)}, "has a foreign_id"),
        ({"foreign_id": "x"}, "datetime with a time zone, found None"),
        ({"foreign_id": "x", "said_at": datetime(1960, 1, 1, tzinfo=UTC)}, "before 1970"),
        ({"foreign_id": "x", "said_at": moment(0)}, "times never go back"),
        ({"foreign_id": "x", "said_at": moment(99_999)}, "ahead of the clock"),
    ],
)
def test_times_that_cannot_be_right_are_refused(
    hf: Store, wrong: dict[str, Any], says: str
) -> None:
    chat = hf.conversation("c")
    chat.messages.import_many([{"foreign": {"a": 1}, "foreign_id": "a", "said_at": moment(1)}])
    with pytest.raises(UsageError, match=says):
        chat.messages.import_many([{"role": "user", "content": "x", **wrong}])
    assert chat.messages.items() == [{"a": 1}]
