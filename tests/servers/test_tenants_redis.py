"""Tenants in Redis and Valkey: what a tenant's user cannot do, with the library and without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis.connection import AbstractConnection as driver_connection

import holdfast
from holdfast import NotFoundError, UnavailableError, UsageError
from holdfast.retention import Quota
from holdfast.tenants import NewTenant, Tenants
from tests.care.tenant_kills import check_kills, check_late_hold
from tests.opening import settled
from tests.servers import redis
from tests.servers.hostile import CANARY, redis_leaks


class Place:
    """A server with two tenants of which one has something to hide."""

    def __init__(self, name: str) -> None:
        self.server = redis.server(name)
        self.admin = self.server.url()
        # Before 7.2 who cannot read the settings is not promised that each write is synced.
        self.durability: Any = "full" if name.startswith("valkey") else "process"
        with Tenants(self.admin) as tenants:
            for old in tenants.list():
                tenants.remove(old.name)
            self.mine = tenants.create("mine")
            self.theirs = tenants.create(CANARY)
        with self.open(self.theirs) as hf:
            hf.team("theirs").set("secret", CANARY)
            hf.team("theirs").set("large", CANARY * 4000)
            hf.team("theirs").tasks.add(CANARY)
            hf.workers.lease("theirs", ttl_s=3600)

    def open(self, made: NewTenant, **options: Any) -> holdfast.Store:
        return holdfast.open(made.url, durability=self.durability, **settled(options))

    def left_of(self, id: str) -> list[str]:
        """Returns the keys of a tenant that there are, and its user."""
        with self.server.client() as admin:
            users = admin.execute_command("ACL", "USERS")
            return [*map(str, admin.scan_iter(f"holdfast:{{{id}}}*"))] + [
                str(user) for user in users if id in str(user)
            ]

    def client(self, made: NewTenant | None = None) -> Any:
        import redis as driver

        tenant = made or self.mine
        password = tenant.url.partition("://")[2].partition("@")[0].partition(":")[2]
        socket = str(self.server.directory / "redis.sock")
        return driver.Redis(
            unix_socket_path=socket, username=tenant.tenant.id, password=password, protocol=2
        )


@pytest.fixture(scope="module", params=list(redis.installations()))
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


@pytest.fixture
def client(place: Place) -> Iterator[Any]:
    with place.client() as found:
        yield found


def test_a_user_cannot_reach_another_tenant_with_raw_commands(place: Place, client: Any) -> None:
    assert redis_leaks(client, place.theirs.tenant.id) == []


PLANTS = {
    "a pattern that is too wide": ("~holdfast:*",),
    "all keys": ("allkeys",),
    "scan": ("+scan",),
    "settings": ("+config",),
    "channels": ("+subscribe", "+publish", "allchannels"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(place: Place, plant: str) -> None:
    with place.server.client() as admin, Tenants(place.admin) as tenants:
        victim = tenants.create("victim").tenant.id  # what works destroys it
        admin.execute_command("ACL", "SETUSER", place.mine.tenant.id, *PLANTS[plant])
        with place.client() as client:
            assert redis_leaks(client, victim) != []
        tenants.remove("victim")
        assert any(place.mine.tenant.id in one for one in tenants.problems("mine"))
        if plant != "channels":  # the library listens to none
            with pytest.raises(UnavailableError, match="not kept apart"):
                place.open(place.mine)
        place.mine = tenants.renew("mine")
        assert not any(place.mine.tenant.id in one for one in tenants.problems("mine"))
    place.open(place.mine).close()


def test_the_library_shows_a_tenant_its_own_store_alone(place: Place) -> None:
    with place.open(place.mine, tenant="mine") as hf:
        hf.team("x").set("a", 1)
        hf.team("x").set("large", "x" * 100_000)
        hf.team("x").tasks.add("mine")
        assert [scope.name for scope in hf.scopes()] == ["team/x"]
        assert hf.team("theirs").state == {}
        with hf.workers.lease("theirs", ttl_s=60):
            assert [one.name for one in hf.workers.leases(prefix="theirs")] == ["theirs"]
        assert hf.query(text=CANARY) == []
        assert len(hf.tasks.list()) == 1
        hf.conversation("c", ttl_s=3600).set("a", 1)
        hf.team("x").checkpoint("here")
        assert hf.check(read_all=True).ok
        assert CANARY not in str(hf.status())
        hf.team("x").remove()
        hf.retention.run(grace_s=0)
    with place.open(place.mine, read_only=True) as reader:
        assert reader.conversation("c").state == {"a": 1}
        with pytest.raises(UsageError):
            reader.conversation("c").set("a", 2)


def test_a_tenant_that_is_made_meanwhile_is_no_stray(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user is made before its name: whoever asks for the names first misses it there."""
    with Tenants(place.admin) as tenants, Tenants(place.admin) as others:
        host: Any = tenants._host
        listed, made, calls = host.list, list[str](), [0]

        def late() -> Any:
            calls[0] += 1
            found = listed()
            if calls[0] == 2:  # the one that strays are compared with
                made.append(others.create("meanwhile").tenant.id)
            return found

        monkeypatch.setattr(host, "list", late)
        shown = str(tenants.problems())
        assert len(made) == 1
        assert made[0] not in shown
        others.remove("meanwhile")


def test_logins_passwords_and_bad_input(place: Place) -> None:
    bare = place.mine.url.replace("&tenant=mine", "").replace("?tenant=mine", "")
    with pytest.raises(UsageError, match="that of another tenant"):
        holdfast.open(bare, tenant=CANARY, durability=place.durability)
    with pytest.raises(holdfast.HoldfastError):  # the store that is nobody's
        holdfast.open(bare, durability=place.durability)
    with pytest.raises(NotFoundError, match="no tenant"):
        holdfast.open(place.admin, tenant="nobody")
    with pytest.raises(UsageError, match="an application"):
        Tenants(place.server.url(application="shop"))
    socket = place.server.directory / "redis.sock"
    with pytest.raises(UsageError, match="another database than 0"):
        Tenants(f"unix://:{redis.PASSWORD}@{socket}?db=1")
    with pytest.raises(UsageError, match="another database than 0"):
        Tenants("redis://localhost:6379/1")
    with pytest.raises(UsageError, match="an application"):
        holdfast.open(place.server.url(application="shop"), tenant="mine")
    with Tenants(place.admin) as tenants, pytest.raises(holdfast.ExistsError):
        tenants.create("mine")
    with Tenants(place.mine.url.replace("tenant=mine", "")) as tenants:
        with pytest.raises(UnavailableError):
            tenants.list()
        with pytest.raises(UnavailableError):
            tenants.create("other")
    old = place.mine
    with Tenants(place.admin) as tenants:
        place.mine = tenants.renew("mine")
    with pytest.raises(UnavailableError):
        place.open(old)


def test_no_secret_of_a_tenant_that_is_made_and_removed_is_in_what_the_server_tells(
    place: Place, caplog: Any
) -> None:
    with place.server.client() as admin, place.server.client() as watcher:
        with watcher.monitor() as monitor, caplog.at_level(logging.DEBUG):
            with Tenants(place.admin) as tenants:
                made = tenants.create("logged")
                place.open(made).close()
                tenants.remove("logged")
            admin.echo("that was all")
            told = ""
            while "that was all" not in told:
                told += str(monitor.next_command())
        told += str(admin.execute_command("SLOWLOG", "GET", "-1")) + caplog.text
        told += str(admin.execute_command("ACL", "LOG"))
    told += (place.server.directory / "log").read_text("utf-8", "replace")
    assert made.tenant.id in told
    password = made.url.partition("://")[2].partition("@")[0].partition(":")[2]
    assert len(password) == 48
    assert password not in told
    assert password not in repr(made)


def test_quotas_and_removal_with_a_receipt(place: Place) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("going", quotas=[Quota("team/*", events=2)])
        with place.open(made, clear_ids=True) as hf:
            hf.team("ada", subject="ada").set("name", "x")
            hf.team("x").set("a", 1)
            hf.team("x").set("a", 2)
            with pytest.raises(holdfast.LimitError):
                hf.team("x").set("a", 3)
            subject = hf.subjects.get("ada").id
            keys = hf._log.sealing.keys
            receipt = tenants.remove("going", whole=True)
            with pytest.raises(holdfast.HoldfastError):
                hf.team("y").set("a", 1)
        assert receipt.keys == 1
        assert not keys.has(subject)
        assert receipt.counts["keys"] > 3
        assert [one.tenant for one in tenants.receipts()].count(made.tenant.id) == 1
        assert "going" not in [one.name for one in tenants.list()]
    assert place.left_of(made.tenant.id) == []
    with place.server.client() as admin:
        assert b"going" not in str(admin.hgetall("holdfast:tenants:removed")).encode()


def test_a_removal_that_is_killed_anywhere_is_done_again(place: Place) -> None:
    check_kills(place, turns=12)


def test_a_hold_that_is_set_as_the_tenant_is_locked_out_keeps_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_late_hold(place, monkeypatch)


def test_a_new_password_lets_in_who_was_locked_out_by_a_removal_that_was_stopped(
    place: Place,
) -> None:
    with Tenants(place.admin) as tenants:
        made = tenants.create("kept")
        tenants._host.lock_out(tenants._get("kept"))
        with pytest.raises(holdfast.HoldfastError):
            place.open(made)
        place.open(tenants.renew("kept")).close()
        tenants.remove("kept")


def test_the_administrator_copies_one_tenant(place: Place, tmp_path: Any) -> None:
    from holdfast.copy import copy

    with (
        holdfast.open(place.admin, tenant=CANARY, durability=place.durability) as source,
        holdfast.open(tmp_path / "copy", tenant="copied") as target,
    ):
        copy(source, target)
        assert target.check().digest == source.check().digest


class Stopped(BaseException):
    """Stands for the death of the process."""


def test_a_tenant_whose_making_was_stopped_anywhere_can_be_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = driver_connection.send_packed_command
    left = 0

    def stopping(self: Any, command: Any, check_health: bool = True) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Stopped
        send(self, command, check_health)

    monkeypatch.setattr(driver_connection, "send_packed_command", stopping)
    for point in range(1, 100):
        with Tenants(place.admin) as tenants:
            left = point
            try:
                made = tenants.create("stopped")
            except Stopped:
                left = 0
                try:
                    made = tenants.create("stopped")
                except holdfast.ExistsError:
                    made = tenants.renew("stopped")
                is_done = False
            else:
                is_done = True
            left = 0
            with place.open(made) as hf:
                hf.team("a").set("n", point)
            [about] = [one for one in tenants.list() if one.name == "stopped"]
            strays = [one for one in tenants.problems() if "belongs to no tenant" in one]
            assert not any(about.id in one for one in strays)
            with place.server.client() as admin:
                for stray in strays:
                    for words in stray.partition(": ")[2].split(", "):
                        admin.execute_command(*words.split())
            assert "belongs to no tenant" not in str(tenants.problems())
            tenants.remove("stopped")
            assert place.left_of(about.id) == []
        if is_done:
            assert point > 5
            return
    raise AssertionError("it does not end")
