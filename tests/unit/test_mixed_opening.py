"""Opening, looking after and closing a mixed store (guarantee 7; BOOT-62)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.mixed import MixedBackend
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.store import Store
from holdfast.testing import FakeClock, RecordBuilder
from holdfast.testing.trial import accepted, refused, write
from tests.unit.mixture import LARGE, chats, memories, store_on


@pytest.fixture
def backend() -> Iterator[MixedBackend]:
    backend = memories()
    yield backend
    backend.close()


@pytest.fixture
def store(backend: MixedBackend) -> Store:
    return store_on(backend)


# --- looking after it ----------------------------------------------------------------------------


def test_status_and_check_cover_every_backend(tmp_path: Path) -> None:
    urls = {"conversation": str(tmp_path / "chats"), "*": f"sqlite:{tmp_path}/state.db"}
    with holdfast.open(urls) as store:
        store.conversation("c1").set("large", LARGE)
        store.team("red").set("a", 1)
        facts = store.status()
        assert facts["kind"] == "mixed"
        assert {level: one["kind"] for level, one in facts["levels"].items()} == {
            "*": "sqlite",
            "conversation": "files",
        }
        assert facts["size_bytes"] == sum(one["size_bytes"] for one in facts["levels"].values())
        assert facts["durability"] == "full"
        assert store.check().ok
        digest = store.check().digest
    [blob] = (path for path in (tmp_path / "chats").rglob("*") if "blob" in path.parent.parts[-1])
    with holdfast.open(urls) as store:
        assert store.check(expect=digest).ok
        data = blob.read_bytes() if blob.is_file() else b""
        if data:
            blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            report = store.check()
            assert not report.ok


def test_durability_is_the_weakest(backend: MixedBackend) -> None:
    clock = SystemClock()
    routes = {
        "*": MemoryBackend(clock=clock, durability="full"),
        "team": MemoryBackend(clock=clock, durability="process"),
    }
    mixed = MixedBackend(routes, {"*": "a", "team": "b"})
    assert mixed.durability == mixed.inspect.describe()["durability"] == "process"
    assert mixed.inspect.describe()["levels"]["*"]["durability"] == "full"


def test_findings_and_reports_name_their_backend() -> None:
    from holdfast.backends.protocol import Finding

    class Damaged(MemoryBackend):
        def __init__(self) -> None:
            super().__init__(clock=SystemClock())
            facts = self.inspect.describe()
            self.inspect = self  # type: ignore[assignment]
            self._facts = {**facts, "reports": ["cut at 7"]}

        def describe(self) -> dict[str, Any]:
            return self._facts

        def verify(self, *, read_all: bool) -> Iterator[Finding]:
            yield Finding("page 7", "is torn")

    routes = {"*": MemoryBackend(clock=SystemClock()), "team": Damaged()}
    mixed = MixedBackend(routes, {"*": "a", "team": "b"})
    assert mixed.inspect.describe()["reports"] == ["b: cut at 7"]
    assert list(mixed.inspect.verify(read_all=True)) == [Finding("b: page 7", "is torn")]


def test_every_backend_is_closed_also_when_one_fails_to() -> None:
    class Stuck(MemoryBackend):
        def close(self) -> None:
            raise UnavailableError("busy")

    clock = SystemClock()
    routes = {"*": Stuck(clock=clock), "team": MemoryBackend(clock=clock)}
    mixed = MixedBackend(routes, {"*": "a", "team": "b"})
    with pytest.raises(UnavailableError, match="busy"):
        mixed.close()
    with pytest.raises(UsageError, match="closed"):
        routes["team"].streams()


def test_objects_are_found_wherever_they_are(backend: MixedBackend) -> None:
    backend.objects.put("blob", "aa", b"rest")
    chats(backend).objects.put("blob", "bb", b"chats")
    assert backend.objects.names("blob") == ["aa", "bb"]
    assert (backend.objects.get("blob", "bb"), backend.objects.get("blob", "cc")) == (
        b"chats",
        None,
    )
    backend.objects.delete("blob", "bb")
    assert chats(backend).objects.names("blob") == []
    assert backend.heads([]) == []


# --- opening -------------------------------------------------------------------------------------


def test_the_same_url_twice_is_one_backend(tmp_path: Path) -> None:
    place = tmp_path / "store"
    urls: Mapping[str, object] = {"conversation": place, "team": str(place), "*": "memory:"}
    with holdfast.open(urls) as store, store.commit() as tx:
        tx.scope(store.conversation("c1")).set("a", 1)
        tx.scope(store.team("red")).set("a", 1)
    with holdfast.open({"*": str(place), "team": str(place)}) as store:
        assert store.status()["kind"] == "files"
        assert store.team("red").get("a") == 1


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ({}, ['"*" is missing', "global, team, workflow, conversation, leases"]),
        ({"team": "memory:"}, ['"*" is missing', "global, workflow, conversation"]),
        ({"taem": "memory:", "*": "memory:"}, ["no level 'taem'", "levels={"]),
        ({7: "memory:", "*": "memory:"}, ["no level 7"]),
        ({"*": 7}, ["expected a URL"]),
        ({"*": "memory:", "team": {"*": "memory:"}}, ["expected a URL"]),
        ({"*": "mongodb://x"}, ["not a backend"]),
    ],
    ids=str,
)
def test_wrong_routes_are_refused(urls: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        holdfast.open(urls)
    for word in words:
        assert word in str(caught.value)


def test_a_backend_that_cannot_be_opened_closes_the_others(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with pytest.raises(UsageError):
        holdfast.open({"*": str(place), "team": "mongodb://x"})
    holdfast.open(place).close()


def test_what_was_wrong_first_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(self: object) -> None:
        raise UnavailableError("busy")

    monkeypatch.setattr(MemoryBackend, "close", stuck)
    with pytest.raises(UsageError, match="not a backend"):
        holdfast.open({"*": "memory:", "team": "mongodb://x"})


def test_registered_levels_are_routed(tmp_path: Path) -> None:
    urls = {"session": str(tmp_path / "sessions"), "*": str(tmp_path / "rest")}
    with holdfast.open(urls, settings=Settings(levels={"session": "conversation"})) as store:
        store.scope("session/s1").set("a", 1)
        assert store._kernel.levels.names()[-1] == "session"
    with holdfast.open(
        tmp_path / "sessions", settings=Settings(levels={"session": "conversation"})
    ) as store:
        assert store.scope("session/s1").get("a") == 1
    with pytest.raises(UsageError, match="no level 'session'"):
        holdfast.open(urls)
    with pytest.raises(UsageError, match="levels is a mapping"):
        holdfast.open(urls, settings=Settings(levels=7))  # type: ignore[arg-type]


def test_two_spellings_of_one_store_are_refused(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "store").close()
    with pytest.raises(UsageError, match="are the same store"):
        holdfast.open({"*": f"{tmp_path}/store", "team": f"{tmp_path}/./store"})


@pytest.mark.parametrize(
    "name", ["conversation/c1", "lease/conversation/c1", "team/red", "global", "store/workers"]
)
def test_what_would_not_be_seen_is_refused(tmp_path: Path, name: str) -> None:
    """Guarantee 7: a level that is routed elsewhere must not look empty."""
    urls = {"conversation": str(tmp_path / "chats"), "*": str(tmp_path / "rest")}
    wrong = "rest" if "conversation" in name else "chats"
    with holdfast.open(tmp_path / wrong) as store:
        build = RecordBuilder()
        if name.startswith("lease/"):
            store.workers.lease("conversation/c1")
        elif name.startswith("store/"):
            accepted(store._log._backend, build.commit(build.append(name)))
        else:
            store.scope(name).set("a", 1)
    with pytest.raises(UsageError) as caught:
        holdfast.open(urls)
    assert f'"{name}" is in' in str(caught.value)
    assert "holdfast copy" in str(caught.value)


def test_a_global_scope_in_the_wrong_place_is_seen(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "rest") as store:
        store.global_().set("a", 1)
    with pytest.raises(UsageError, match='"global" is in'):
        holdfast.open({"global": str(tmp_path / "own"), "*": str(tmp_path / "rest")})


def test_the_global_scope_may_have_a_backend_of_its_own(tmp_path: Path) -> None:
    urls = {"global": str(tmp_path / "own"), "*": str(tmp_path / "rest")}
    for n in range(2):
        with holdfast.open(urls) as store:
            store.global_().set("n", n)
            store.team("red").set("n", n)
            assert store.global_().revision == n + 1


def test_scopes_with_a_lifetime_are_judged_by_their_backend(tmp_path: Path) -> None:
    clock = FakeClock()
    urls = {"conversation": str(tmp_path / "chats"), "*": f"sqlite:{tmp_path}/state.db"}
    with holdfast.open(urls, settings=Settings(clock=clock)) as store:
        chat = store.conversation("c1", ttl_s=10)
        chat.set("large", LARGE)
        assert chat.get("large") == LARGE
        clock.advance(20)
        with pytest.raises(holdfast.NotFoundError, match="expired"):
            _ = chat.state


def test_many_streams_and_leases_are_looked_over_by_level(tmp_path: Path) -> None:
    urls = {
        "conversation": str(tmp_path / "chats"),
        "workflow": str(tmp_path / "chats"),
        "*": str(tmp_path / "rest"),
    }
    with holdfast.open(urls) as store:
        for n in range(5):
            store.conversation(f"c{n}").set("a", 1)
            store.workers.lease(f"conversation/c{n}")
            store.workers.lease(f"run/c{n}")
            store.workers.lease("workflow")
            store.team(f"t{n}").set("a", 1)
    holdfast.open(urls).close()


def test_options_reach_every_backend(tmp_path: Path) -> None:
    urls = {"conversation": str(tmp_path / "chats"), "*": f"sqlite:{tmp_path}/state.db"}
    with pytest.raises(holdfast.NotFoundError):
        holdfast.open(urls, create=False)
    assert list(tmp_path.iterdir()) == []
    with holdfast.open(urls, durability="process", settings=Settings(clock=FakeClock())) as store:
        store.team("red").set("a", 1)
        store.conversation("c1").set("a", 1)
        assert store.status()["levels"]["conversation"]["durability"] == "process"
    with holdfast.open(urls, read_only=True) as store:
        assert store.conversation("c1").get("a") == 1
        for scope in (store.team("red"), store.conversation("c1")):
            with pytest.raises(UsageError, match="read-only"):
                scope.set("a", 2)


# --- a file that names the routes ----------------------------------------------------------------


def test_a_toml_file_names_a_mixed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "agents.toml"
    file.write_text(
        '[store]\nconversation = "chats"\nsession = "sqlite:s.db"\n"*" = "files:rest"\n'
        '[levels]\nsession = "conversation"\n'
    )
    with holdfast.open(file) as store:
        store.conversation("c1").set("a", 1)
        store.scope("session/s").set("a", 1)
    assert sorted(path.name for path in folder.iterdir())[:3] == ["agents.toml", "chats", "rest"]
    monkeypatch.chdir(folder)
    with holdfast.open("agents.toml") as store:
        assert store.scope("session/s").get("a") == 1


@pytest.mark.parametrize(
    "text",
    [
        "[store",
        "[stores]\nx = 1",
        "[store]\nteam = 7",
        "store = 7",
        "",
        "[store]\nteam = 'memory:'",
        "\xff",
        "x" * (1 << 20),
    ],
    ids=lambda text: text[:12],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agents.toml"
    file.write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(UsageError):
        holdfast.open(file)
    assert [path.name for path in tmp_path.iterdir()] == ["agents.toml"]


def test_a_file_may_not_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "agents.toml"
    file.write_text("[store]\n")
    file_open = open

    def refuse(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).endswith(".toml"):
            raise PermissionError(13, "Permission denied")
        return file_open(path, *given, **more)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        holdfast.open(str(file))


def test_a_file_that_is_not_there_is_no_new_store(tmp_path: Path) -> None:
    """Guarantee 7: a misspelt name must not look like a store without events."""
    for name in (tmp_path / "agnets.toml", str(tmp_path / "agnets.toml")):
        with pytest.raises(holdfast.NotFoundError, match="no file"):
            holdfast.open(name)
    with pytest.raises(UsageError, match="not a file that names some"):
        holdfast.open({"*": "memory:", "team": str(tmp_path / "agnets.toml")})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_end_in_toml(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "folder") as store:
        store.team("red").set("a", 1)
    (tmp_path / "folder").rename(tmp_path / "folder.toml")
    with holdfast.open(str(tmp_path / "folder.toml")) as store:
        assert store.team("red").get("a") == 1


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ada:hunter2@db/x",
        "postgresql+psycopg://ada:hunter2@db/x",
        "postgresql://ada:hun?ter2@db/x",
        "postgresql://ada:hunter2?@db/x?timeout=0.1",
        "redis://:hunter2?@db/x",
        "redis://ada:hunter2@db\0/x",
    ],
)
def test_no_password_is_shown_of_a_url_that_is_none(url: str) -> None:
    for name in (url, {"*": url}):
        with pytest.raises(HoldfastError) as caught:
            holdfast.open(name)
        assert "hun" not in str(caught.value)
        assert "ter2" not in str(caught.value)


def test_no_password_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('[store]\n"*" = "redis://:hunter2@nowhere.invalid:1/0"\nteam = "memory:"\nx')
    with pytest.raises(HoldfastError) as caught:
        holdfast.open(file)
    assert "hunter2" not in str(caught.value)


def test_direct_refusals_leave_nothing(backend: MixedBackend) -> None:
    build = RecordBuilder()
    both = build.commit(build.append("team/a"), build.append("conversation/a"))
    with pytest.raises(UsageError, match="span two backends"):
        backend.commit([build.commit(build.append("workflow/a")), both])
    assert backend.read_all() == []
    write(backend, build, "team/a")
    assert refused(backend, build.commit(build.append("team/a"))).reason == "conflict"
