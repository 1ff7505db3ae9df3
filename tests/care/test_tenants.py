"""Tenants of stores on this host: a folder each, whatever their names hold."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    ExistsError,
    LimitError,
    NotFoundError,
    Settings,
    UnavailableError,
    UsageError,
    aio,
)
from holdfast.backends.tenancy import folder_name
from holdfast.errors import HeldError
from holdfast.retention import Quota
from holdfast.tenants import NewTenant, Tenants
from tests.care.tenant_kills import check_kills, check_late_hold
from tests.opening import settled

HOSTILE = (
    "..",
    "../other",
    "/etc/passwd",
    "a/b",
    "A",
    "a",
    "con",
    ".removed",
    ".removing-x",
    "tenant.json",
    "x" * 128,
    "é" * 64,
    "=2e",
    "a b c",
    "~root",
    "$(touch x)",
    "a;b|c`d`",
    "%2e%2e%2f",
)


@pytest.fixture(params=["files", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "place" / "store"
    path.parent.mkdir()
    return f"sqlite:{path}.db" if request.param == "sqlite" else str(path)


def test_each_tenant_has_a_store_of_its_own_whatever_its_name(url: str, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        with holdfast.open(url, tenant=name) as hf:
            assert hf.team("x").state == {}
            hf.team("x").set("number", number)
    for number, name in enumerate(HOSTILE):
        with holdfast.open(url, tenant=name, read_only=True) as hf:
            assert hf.team("x").state == {"number": number}
            with pytest.raises(UsageError):
                hf.team("x").set("number", -1)
    with Tenants(url) as tenants:
        assert [one.name for one in tenants.list()] == sorted(HOSTILE)
        assert tenants.problems() == []
    # Nothing was written beside the folder of tenants.
    [folder] = (tmp_path / "place").iterdir()
    assert folder.name.endswith(".tenants")
    assert folder.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(map(folder_name, HOSTILE))


def test_names_of_folders_are_all_different_and_plain() -> None:
    names = [folder_name(name) for name in HOSTILE]
    assert len(set(map(str.lower, names))) == len(names)
    assert all("/" not in name and not name.startswith(".") for name in names)
    assert all(len(name) < 255 for name in names)


def test_a_link_in_place_of_a_folder_is_refused(url: str, tmp_path: Path) -> None:
    with holdfast.open(url, tenant="a") as hf:
        hf.team("x").set("a", 1)
    folder = next((tmp_path / "place").iterdir())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / folder_name("b")).symlink_to(elsewhere)
    with pytest.raises(UsageError, match="is not a folder"):
        holdfast.open(url, tenant="b")
    assert list(elsewhere.iterdir()) == []


def test_a_store_without_a_tenant_is_another_one(url: str) -> None:
    with holdfast.open(url, tenant="a") as hf, holdfast.open(url) as plain:
        hf.team("x").set("a", 1)
        assert plain.team("x").state == {}


def test_two_processes_that_make_one_tenant_at_once_have_one_store(url: str) -> None:
    code = (
        "import sys, holdfast\n"
        "with holdfast.open(sys.argv[1], tenant='new') as hf: hf.team('x').messages.add('hi')"
    )
    made = [subprocess.Popen([sys.executable, "-c", code, url]) for _ in range(4)]
    assert [one.wait(120) for one in made] == [0] * 4
    with holdfast.open(url, tenant="new") as hf:
        assert len(hf.team("x").messages) == 4


def test_the_way_to_a_tenant_is_durable_before_its_record_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with Tenants(url) as tenants:
        tenants.create("a")
    [folder] = (tmp_path / "place").iterdir()
    home = str(folder / folder_name("a"))
    way = [str(folder), str(folder.parent), str(tmp_path)]
    assert max(map(synced.index, way)) < synced.index(home)


def test_quotas_are_the_administrators(url: str) -> None:
    with Tenants(url) as tenants:
        made = tenants.create("small", quotas=[Quota("team/*", events=1, bytes="1MB")])
        assert made.url == url
        assert made.tenant.quotas == (Quota("team/*", events=1, bytes="1MB"),)
        with pytest.raises(ExistsError):
            tenants.create("small")
    with holdfast.open(url, tenant="small") as hf:
        hf.team("x").set("a", 1)
        with pytest.raises(LimitError):
            hf.team("x").set("a", 2)
    with Tenants(url) as tenants:
        tenants.set_quotas("small", ())
        with pytest.raises(UsageError, match="no password"):
            tenants.renew("small")
    with holdfast.open(url, tenant="small") as hf:
        hf.team("x").set("a", 2)


def test_keys_of_tenants_are_apart_and_go_with_them(url: str) -> None:
    kept: dict[str, Any] = {}
    for name in ("a", "b"):
        with holdfast.open(url, tenant=name, settings=Settings(clear_ids=True)) as hf:
            hf.team("ada", subject="ada").set("name", "Ada")
            kept[name] = hf._log.sealing.keys, hf.subjects.get("ada").id
    assert kept["a"][1] != kept["b"][1]
    with Tenants(url) as tenants:
        receipt = tenants.remove("a")
    assert receipt.keys == 1
    assert receipt.counts["files"] > 0
    assert not kept["a"][0].has(kept["a"][1])
    assert kept["b"][0].has(kept["b"][1])
    assert not os.path.exists(kept["a"][0].path)
    with holdfast.open(url, tenant="b", settings=Settings(clear_ids=True)) as hf:
        assert hf.team("ada", subject="ada").state == {"name": "Ada"}
    with pytest.raises(NotFoundError):
        holdfast.open(url, tenant="a", create=False)
    with Tenants(url) as tenants:
        assert [one.tenant for one in tenants.receipts()] == [receipt.tenant]
        assert [one.name for one in tenants.list()] == ["b"]


def test_what_is_held_or_open_is_not_removed(url: str) -> None:
    with holdfast.open(url, tenant="a") as hf:
        hf.team("x").set("a", 1)
        hf.retention.hold("team/x", "a court asked")
    with Tenants(url) as tenants:
        with pytest.raises(HeldError, match="team/x"):
            tenants.remove("a")
        with holdfast.open(url, tenant="a") as hf:
            hf.retention.unhold("team/x")
            with pytest.raises(UnavailableError, match="open in some process"):
                tenants.remove("a")
            hf.team("x").set("a", 2)
        tenants.remove("a")
        with pytest.raises(NotFoundError):
            tenants.remove("a")


@pytest.mark.parametrize("stopped", ["begin_removal", "_destroy_keys", "drop"])
def test_a_removal_that_was_stopped_goes_on(
    url: str, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(url, tenant="a", settings=Settings(clear_ids=True)) as hf:
        hf.team("ada", subject="ada").set("name", "Ada")
    with Tenants(url) as tenants:
        owner: Any = tenants if stopped.startswith("_") else tenants._host
        whole = getattr(owner, stopped)

        def stop(*words: Any, **options: Any) -> None:
            whole(*words, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(owner, stopped, stop)
            with pytest.raises(KeyboardInterrupt):
                tenants.remove("a")
    # Whoever opens it meanwhile has a new and empty one, never half of the old.
    with Tenants(url) as tenants:
        assert [one.state for one in tenants.list()] == ["removing"]
        tenants.remove("a")
        assert tenants.list() == []
        assert len(tenants.receipts()) == 1
    with holdfast.open(url, tenant="a") as hf:
        assert list(hf.scopes()) == []


class Folders:
    """A place on this host, for removals that are killed."""

    def __init__(self, url: str, folder: Path) -> None:
        self.admin = url
        self._folder = folder

    def open(self, made: NewTenant, **options: Any) -> holdfast.Store:
        return holdfast.open(made.url, tenant=made.tenant.name, **settled(options))

    def left_of(self, id: str) -> list[Path]:
        """Returns files; the last kill can leave an empty folder whose name says nothing."""
        found = [one for one in self._folder.rglob("*") if one.is_file()]
        return [one for one in found if one.name != f"{id}.json" and id in str(one)]


def test_a_removal_that_is_killed_anywhere_is_done_again(url: str, tmp_path: Path) -> None:
    check_kills(Folders(url, tmp_path), turns=6)


def test_a_hold_that_is_set_as_the_tenant_is_locked_out_keeps_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_late_hold(Folders(url, tmp_path), monkeypatch)


def test_a_held_tenant_whose_name_was_taken_meanwhile_stays_whole(url: str, tmp_path: Path) -> None:
    with holdfast.open(url, tenant="a") as hf:
        hf.team("x").set("a", 1)
        hf.retention.hold("team/x", "a court asked")
    with Tenants(url) as tenants:
        tenants._host.lock_out(tenants._get("a"))  # what a call does that is killed then
        with holdfast.open(url, tenant="a") as hf:
            hf.team("y").set("new", 1)
        with pytest.raises(UnavailableError, match="a new tenant of that name was made meanwhile"):
            tenants.remove("a")
        [new] = tmp_path.rglob(folder_name("a"))
        new.rename(tmp_path / "away")
        with pytest.raises(HeldError):
            tenants.remove("a")
    with holdfast.open(url, tenant="a") as hf:
        assert hf.team("x").state == {"a": 1}


def test_a_file_that_names_a_store_names_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('tenant = "a"\n[store]\n"*" = "one"\nconversation = "sqlite:two.db"\n')
    with holdfast.open(str(file)) as hf:
        hf.team("x").set("a", 1)
        hf.conversation("c").set("b", 1)
    with holdfast.open(tmp_path / "one", tenant="a") as hf:
        assert hf.team("x").state == {"a": 1}
    with holdfast.open(f"sqlite:{tmp_path}/two.db", tenant="a") as hf:
        assert hf.conversation("c").state == {"b": 1}
    with pytest.raises(UsageError, match='the file names tenant "a"'):
        holdfast.open(str(file), tenant="b")
    file.write_text('tenant = 7\n[store]\n"*" = "one"\n')
    with pytest.raises(UsageError, match="is a name"):
        holdfast.open(str(file))


def test_asyncio_opens_a_tenant_too(url: str) -> None:
    async def main() -> None:
        async with await aio.open(url, tenant="a") as hf:
            await hf.team("x").set("a", 1)

    asyncio.run(main())
    with holdfast.open(url, tenant="a") as hf:
        assert hf.team("x").state == {"a": 1}


def test_asyncio_makes_and_removes_tenants(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.AsyncTenants(url) as tenants:
            quota = Quota("team/*", events=1)
            made = await asyncio.gather(*(tenants.create(name, quotas=[quota]) for name in "abc"))
            assert [one.tenant for one in made] == await tenants.list()
            assert (await tenants.set_quotas("a", ())).quotas == ()
            assert (await tenants.get("b")).quotas == (quota,)
            assert await tenants.problems() == []
            with pytest.raises(ExistsError):
                await tenants.create("a")
            with pytest.raises(UsageError, match="no password"):
                await tenants.renew("a")
            await tenants.remove("a")
            await _cancel_a_removal(tenants, monkeypatch)
            assert [one.name for one in await tenants.list()] == ["c"]
            assert len(await tenants.receipts()) == 2
        with pytest.raises(UsageError, match="closed"):
            await tenants.list()
        await tenants.close()

    asyncio.run(main())


async def _cancel_a_removal(tenants: aio.AsyncTenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancels who waits for a removal that has begun: it ends, and then he is told."""
    begun, go_on = threading.Event(), threading.Event()
    drop = tenants.sync._host.drop

    def wait_and_drop(*words: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return drop(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tenants.sync._host, "drop", wait_and_drop)
        removal = asyncio.ensure_future(tenants.remove("b"))
        assert await asyncio.to_thread(begun.wait, 60)
        removal.cancel()
        await asyncio.sleep(0)
        assert not removal.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await removal


def test_bad_input(tmp_path: Path) -> None:
    for name in ("", "a\0b", "x" * 129, 7):
        with pytest.raises(UsageError):
            holdfast.open(tmp_path / "s", tenant=name)  # type: ignore[arg-type]
    assert not (tmp_path / "s.tenants").exists()
    with pytest.raises(UsageError, match="a place that a URL names"):
        holdfast.open(f"yaml:{tmp_path}", tenant="a")
    for place in ("memory:", "other:x", str(tmp_path / "a.toml"), 7):
        with pytest.raises(UsageError):
            Tenants(place)
    with pytest.raises(UsageError, match="has no tenants"):
        holdfast.open("other:x", tenant="a")
    with pytest.raises(NotFoundError, match='no tenant "a"'):
        holdfast.open(tmp_path / "s", tenant="a", create=False)
    with holdfast.open("memory:", tenant="a") as hf:
        hf.team("x").set("a", 1)
