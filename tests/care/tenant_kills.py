"""Kills a process that removes a tenant, before any of the things that it does.

Counted are the system calls that change files, the statements that go to PostgreSQL, and what is
sent to Redis. A first removal, which nobody kills, tells how many there are. The rest is the same
on every backend: `Ground` says how a tenant is made there, and what of it is left.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis.connection

import holdfast
from holdfast import NotFoundError
from holdfast.backends.postgresql.connection import PostgresqlConnection
from holdfast.backends.redis.connection import RedisConnection
from holdfast.backends.tenant_folders import TenantFolders
from holdfast.errors import HeldError
from holdfast.tenants import NewTenant, Tenants
from tests.crash.children import Child, tell
from tests.selection import this_turn

CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"})
GOING = "going"
STAYING = "staying"


class Ground(Protocol):
    """Where tenants are removed."""

    admin: str

    def open(self, made: NewTenant, **options: Any) -> holdfast.Store:
        """Opens the store of a tenant with its own login."""
        ...

    def left_of(self, id: str) -> object:
        """Returns what is left of a tenant that was removed, false if nothing is."""
        ...


def check_kills(ground: Ground, turns: int, **options: Any) -> None:
    """Kills removals at the points whose turn it is, and has each done again."""
    with Tenants(ground.admin) as tenants:
        staying = tenants.create(STAYING)
    with ground.open(staying, clear_ids=True) as hf:
        hf.team("ada", subject="ada").set("name", "stays")
    made, _ = _make(ground)
    child = _remove_in_child(ground.admin, None, options)
    assert child.trouble is None, child.trouble
    count = child.lines[-1]["count"]
    assert count > 10
    _check_gone(ground, made)
    stopped = set[str]()
    for point in this_turn(range(1, count + 1), turns):
        made, key_file = _make(ground)
        child = _remove_in_child(ground.admin, point, options)
        assert child.was_killed, (point, child.trouble)
        with Tenants(ground.admin) as tenants:
            found = [one.state for one in tenants.list() if one.name == GOING]
            stopped |= set(found)
            for _ in found:
                tenants.remove(GOING, **options)
        _check_gone(ground, made)
        assert not key_file.exists(), point
    with ground.open(staying, clear_ids=True) as hf:
        assert hf.team("ada", subject="ada").state == {"name": "stays"}
        assert hf.check(read_all=True).ok
    with Tenants(ground.admin) as tenants:
        tenants.remove(STAYING)
    assert stopped == {"active", "removing"}, "no kill was in the middle"


def check_late_hold(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that is set right before the tenant is locked out: it keeps all, and its login."""
    made, keys = _make(ground)
    with Tenants(ground.admin) as tenants:
        lock_out = tenants._host.lock_out

        def hold_first(record: Any) -> None:
            with ground.open(made, clear_ids=True) as hf:
                hf.retention.hold("team/x", "a court asked")
            lock_out(record)
            if not isinstance(tenants._host, TenantFolders):  # there the name makes a new one
                with pytest.raises(holdfast.HoldfastError):
                    ground.open(made, clear_ids=True)

        with monkeypatch.context() as patch:
            patch.setattr(tenants._host, "lock_out", hold_first)
            with pytest.raises(HeldError, match='scope "team/x" is held; nothing was removed'):
                tenants.remove(GOING)
        assert tenants.get(GOING) == made.tenant
        assert not any(made.tenant.id in one for one in tenants.problems(GOING))
    with ground.open(made, clear_ids=True) as hf:
        assert hf.team("ada", subject="ada").state == {"name": "goes"}
        hf.team("x").set("more", 1)
        assert hf.check(read_all=True).ok
        hf.retention.unhold("team/x")
    with Tenants(ground.admin) as tenants:
        assert tenants.remove(GOING).keys == 1
    _check_gone(ground, made)
    assert not keys.exists()


def _make(ground: Ground) -> tuple[NewTenant, Path]:
    """Makes the tenant that goes, with a key, a blob, a lease and a task."""
    with Tenants(ground.admin) as tenants:
        made = tenants.create(GOING)
    with ground.open(made, clear_ids=True) as hf:
        hf.team("ada", subject="ada").set("name", "goes")
        hf.team("x").set("large", "goes" * 30_000)
        hf.team("x").tasks.add("goes")
        hf.workers.lease("x", ttl_s=3600)
        keys: Any = hf._log.sealing.keys
        assert keys.has(hf.subjects.get("ada").id)
        return made, Path(keys.path)


def _check_gone(ground: Ground, made: NewTenant) -> None:
    with Tenants(ground.admin) as tenants:
        assert GOING not in [one.name for one in tenants.list()]
        assert [one.tenant for one in tenants.receipts()].count(made.tenant.id) == 1
        with pytest.raises(NotFoundError):
            tenants.remove(GOING)
    with pytest.raises(holdfast.HoldfastError):
        ground.open(made, create=False)
    assert not ground.left_of(made.tenant.id)


def _remove_in_child(url: str, point: int | None, options: dict[str, Any]) -> Child:
    """Removes the tenant in another process, which is killed before the nth thing that it does."""

    def work(pipe: int, _: int) -> None:
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)

        _count(step)
        with Tenants(url) as tenants:
            tenants.remove(GOING, **options)
        tell(pipe, count=count)

    child = Child(work)
    child.end()
    return child


def _count(step: Callable[[], None]) -> None:
    """Calls `step` before each thing that this process does from now on; it is a child."""

    def heed(event: str, words: Any) -> None:
        if event in CHANGES or (event == "open" and _writes(words[2])):
            step()

    sys.addaudithook(heed)
    for owner, method in (
        (PostgresqlConnection, "wait"),  # each exchange with a server, BEGIN and COMMIT too
        (RedisConnection, "_send"),
        (redis.connection.AbstractConnection, "send_packed_command"),
    ):
        whole = getattr(owner, method)

        def counted(self: Any, *words: Any, whole: Any = whole, **more: Any) -> Any:
            step()
            return whole(self, *words, **more)

        setattr(owner, method, counted)


def _writes(flags: int | None) -> bool:
    return flags is not None and bool(flags & (os.O_WRONLY | os.O_RDWR))
