"""The verbs on whole stores: init, status, scopes, check, copy, doctor; which store is meant."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.cli import main, options
from holdfast.clock import SystemClock
from holdfast.core.listing import register_level
from holdfast.errors import UnavailableError
from holdfast.testing import FakeClock

SCOPE = "team/support"


# Stores.


def test_init_makes_a_store_once(tmp_path: Path, monkeypatch: Any, cli: Any):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert cli("init", "--json").document["made"] is True
    cli("set", SCOPE, "stage", "triage")
    assert cli("init", "--json").document["made"] is False
    assert cli("get", SCOPE, "stage").out == "triage\n"
    assert (tmp_path / ".holdfast").is_dir()


READING = [
    ["status"],
    ["scopes"],
    ["log"],
    ["log", SCOPE],
    ["show", SCOPE],
    ["get", SCOPE, "a"],
    ["diff", SCOPE, "1"],
    ["checkpoints", SCOPE],
    ["follow", SCOPE, "--timeout", "0"],
    ["check"],
    ["copy", "absent", "other"],
]
WRITING = [
    ["set", SCOPE, "a", "1"],
    ["delete", SCOPE, "a"],
    ["checkpoint", SCOPE, "x"],
    ["restore", SCOPE, "1"],
    ["undo", SCOPE],
    ["fork", SCOPE, "b"],
]


@pytest.mark.parametrize("words", READING + WRITING, ids=" ".join)
@pytest.mark.parametrize("where", ["absent", "sqlite:absent.db"])
def test_an_absent_store_is_not_made(
    words: list[str], where: str, tmp_path: Path, monkeypatch: Any, cli: Any
):
    monkeypatch.chdir(tmp_path)
    failed = cli("--store", where, *words, code=3)
    named = "absent" if words[0] == "copy" else where
    assert f'no store at "{named}"' in failed.err
    assert f"hint: holdfast --store {named} init" in failed.err
    assert os.listdir(tmp_path) == []


def test_a_store_in_memory_would_end_with_the_command(cli: Any):
    for words in (["init"], ["set", SCOPE, "a", "1"], ["status"]):
        assert "in memory ends" in cli("--store", "memory:", *words, code=2).err


def test_global_options_stand_before_or_after_the_verb(place: str, monkeypatch: Any, cli: Any):
    monkeypatch.delenv("HOLDFAST_STORE")
    cli("--store", place, "--actor=ada", "set", SCOPE, "a", "1")
    cli("set", SCOPE, "a", "2", "--store", place, "--actor", "bo")
    events = cli("--json", f"--store={place}", "log").document["events"]
    assert [event["actor"] for event in events] == ["bo", "ada"]


def test_the_actor_is_the_login_name(place: str, monkeypatch: Any, cli: Any):
    monkeypatch.delenv("HOLDFAST_ACTOR")
    monkeypatch.setattr(options, "login_name", lambda: "grace")
    cli("set", SCOPE, "a", "1")
    assert cli("log", "--json").document["events"][0]["actor"] == "grace"


def test_status_tells_plain_facts(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    facts = cli("status", "--json").document
    assert facts["kind"] == ("sqlite" if place.startswith("sqlite:") else "files")
    assert (facts["durability"], facts["scopes"], facts["reports"]) == ("full", 1, [])
    lines = dict(row for row in cli("status").rows)
    assert lines["place"] == facts["place"]
    assert lines["size_bytes"].isdecimal()


def test_scopes_lists_what_has_events(place: str, cli: Any):
    assert cli("scopes").out == ""
    with holdfast.open(place) as store:
        store.team("a").set("x", 1)
        store.conversation("b c", parent=store.team("a")).set("x", 1)
        store.global_().set("x", 1)
        store.conversation("b c").close()
    shapes = {shape["scope"]: shape for shape in cli("scopes", "--json").document["scopes"]}
    assert list(shapes) == ["conversation/b c", "global", "team/a"]
    assert shapes["conversation/b c"]["revision"] == 3
    assert shapes["conversation/b c"]["is_closed"] is True
    assert [row[:3] for row in cli("scopes", "team").rows] == [["team/a", "1", "open"]]


def test_scopes_are_listed_page_by_page(place: str, cli: Any):
    with holdfast.open(place) as store:
        for name in ("a/1", "a/2", "a/3", "b/1"):
            store.team(name).set("x", 1)
    told = cli("scopes", "team", "--prefix", "a/", "--limit", "2")
    assert [row[0] for row in told.rows] == ["team/a/1", "team/a/2"]
    assert "there is more: " in told.err
    assert told.err.endswith("scopes team --prefix a/ --limit 2 --after team/a/2\n")
    rest = cli("scopes", "team", "--prefix", "a/", "--after", "team/a/2", "--limit", "2")
    assert [row[0] for row in rest.rows] == ["team/a/3"]
    assert rest.err == ""
    page = cli("scopes", "--prefix", "team/", "--limit", "3", "--json").document
    assert (page["more"], page["cursor"]) == (True, "team/a/3")
    page = cli("scopes", "--after", "team/a/3", "--json").document
    assert ([one["scope"] for one in page["scopes"]], page["more"]) == (["team/b/1"], False)
    assert cli("scopes", "--limit", "0", code=2).err.startswith("error: --limit must be")


def test_a_level_of_the_application_is_shown_too(place: str, cli: Any):
    with holdfast.open(place) as store:
        register_level(store._kernel, "session", below="conversation")
        store.scope("session/s1").set("a", 1)
    assert [row[:3] for row in cli("scopes").rows] == [["session/s1", "1", "open"]]
    assert cli("get", "session/s1", "a").out == "1\n"
    cli("set", "session/s1", "a", "2")
    failed = cli("set", "sesion/s1", "a", "2", code=2)
    assert "no level 'sesion'" in failed.err
    assert "hint: write it like team/support" in failed.err


def test_copies_between_backends_have_equal_digests(place: str, cli: Any):
    for number in range(5):
        cli("set", SCOPE, "n", number, "--checkpoint", f"c{number}")
    cli("fork", SCOPE, "b", "--at", "c2")
    digest = cli("check", "--json").document["digest"]
    first = cli("copy", place, "sqlite:copy.db", "--json").document
    assert (first["digest"], first["events"], first["skipped"]) == (digest, 6, 0)
    cli("set", SCOPE, "n", 9)
    again = cli("copy", place, "sqlite:copy.db", "--json").document
    assert (again["events"], again["skipped"]) == (1, 6)
    back = cli("copy", "sqlite:copy.db", "copy-of-copy", "--json").document
    assert back["digest"] == cli("check", "--json").document["digest"] == again["digest"]
    cli("check", "--read-all", "--expect", back["digest"], "--store", "copy-of-copy")


def test_a_copy_into_another_store_is_refused(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    cli("init", "--store", "other")
    cli("set", SCOPE, "a", "2", "--store", "other")
    before = cli("check", "--store", "other").out
    assert cli("copy", place, "other", "--json", code=5).error["stream"] == SCOPE
    assert cli("check", "--store", "other").out == before


def test_check_compares_with_a_digest(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    digest = cli("check", "--json").document["digest"]
    assert cli("check", "--expect", digest).rows[-1] == ["digest", digest]
    cli("set", SCOPE, "a", "2")
    failed = cli("check", "--expect", digest, "--json", code=9).document
    assert failed["ok"] is False
    assert digest in failed["findings"][0]["problem"]


def test_check_finds_a_changed_byte(place: str, cli: Any):
    cli("set", SCOPE, "secret", "violet")
    paths = [path for path in Path().rglob("*") if path.is_file()]
    hit = [path for path in paths if b"violet" in path.read_bytes()]
    assert hit
    for path in hit:
        path.write_bytes(path.read_bytes().replace(b"violet", b"violen"))
    ran = main(["check", "--read-all"])
    assert ran == 9


def test_reading_goes_on_where_nothing_can_be_written(place: str, monkeypatch: Any, cli: Any):
    """A store on a read-only disk can be looked at, and says so."""
    cli("set", SCOPE, "a", "1")
    really_open = holdfast.open

    def open_without_writing(url: str, *, read_only: bool = False, **rest: Any) -> holdfast.Store:
        if not read_only:
            raise UnavailableError("the file system is read-only")
        return really_open(url, read_only=True, **rest)

    monkeypatch.setattr(holdfast, "open", open_without_writing)
    ran = cli("get", SCOPE, "a")
    assert (ran.out, ran.err) == (
        "1\n",
        "warning: opened read-only: the file system is read-only\n",
    )
    assert "read-only" in cli("set", SCOPE, "a", "2", code=8).err


# Doctor.


def test_doctor_on_a_healthy_store(place: str, cli: Any):
    cli("set", SCOPE, "a", "1")
    document = cli("doctor", "--json").document
    assert document["ok"] is True
    checks = [each["check"] for each in document["checks"]]
    assert checks == [
        *("python", "sqlite", "store", "file system", "permissions", "durability"),
        *("recovery", "times", "structure", "disk space", "sync"),
    ]
    assert ["fix", "nothing"] in cli("doctor").rows


def test_doctor_names_the_fix(place: str, cli: Any):
    path = Path("store" if place == "store" else "state.db")
    path.chmod(path.stat().st_mode | 0o044)
    ran = cli("doctor")
    assert ["info", "permissions"] in [row[:2] for row in ran.rows]
    assert ["fix permissions", f"chmod go-rwx {path.resolve()}"] in ran.rows


def test_doctor_without_a_store(tmp_path: Path, cli: Any):
    ran = cli("--store", tmp_path / "none", "doctor", code=1)
    assert ran.rows[-1] == ["fix store", f"holdfast --store {tmp_path / 'none'} init"]


def test_doctor_on_a_store_that_ends_with_a_restart(place: str, monkeypatch: Any, cli: Any):
    from holdfast.cli import doctor

    monkeypatch.setattr(doctor, "file_system", lambda path: "tmpfs")
    checks = {each["check"]: each for each in cli("doctor", "--json", code=1).document["checks"]}
    assert checks["file system"]["fix"] == "move the store to a disk"


def test_doctor_names_streams_whose_time_is_ahead(tmp_path: Path, cli: Any):
    """One write with a wrong clock: the revision before it is named, and the fix can be typed."""
    place = str(tmp_path / "ahead")
    clock = FakeClock()
    with holdfast.open(place, settings=Settings(clock=clock)) as store:
        store.team("red").set("n", 1)
        clock.set(SystemClock().now_us() + 10 * 365 * 86_400_000_000)
        store.team("red").set("n", 2)
        for number in range(7):
            store.team(f"new-{number}").set("n", number)
    [found] = [
        each
        for each in cli("--store", place, "doctor", "--json", code=1).document["checks"]
        if each["check"] == "times"
    ]
    assert found["ok"] is False
    assert "team/new-0 is 36" in found["found"]
    assert found["found"].endswith("3 more")
    fix = found["fix"].partition("right: ")[2]
    assert fix == f"holdfast --store {place} fork team/red NEW-ID --at 1"
    cli(*fix.replace("NEW-ID", "sound").split()[1:])
    with holdfast.open(place) as store:
        assert store.team("sound").state == {"n": 1}


def test_doctor_on_a_stream_that_was_ahead_from_its_beginning(tmp_path: Path, cli: Any):
    place = str(tmp_path / "ahead")
    clock = FakeClock(SystemClock().now_us() + 86_400_000_000)
    with holdfast.open(place, settings=Settings(clock=clock)) as store:
        store.team("red").set("n", 1)
    rows = cli("--store", place, "doctor", code=1).rows
    [fix] = [row[1] for row in rows if row[0] == "fix times"]
    assert fix.endswith("go on in new scopes with a copy of their state")


def test_doctor_goes_on_after_an_examination_that_fails(place: str, monkeypatch: Any, cli: Any):
    from holdfast.cli import doctor

    def broken(patient: Any) -> Any:
        raise holdfast.CorruptError("the head of a stream is damaged")

    monkeypatch.setitem(doctor.EXAMINATIONS, "times", broken)
    checks = {each["check"]: each for each in cli("doctor", "--json", code=1).document["checks"]}
    assert checks["times"]["found"] == "the head of a stream is damaged"
    assert checks["structure"]["ok"] is True


def test_scopes_shows_what_has_ended_by_itself(tmp_path: Path, cli: Any):
    """Decision 0010: a name and a head are left, and the list of all the others too."""
    place = str(tmp_path / "ending")
    with holdfast.open(place, settings=Settings(clock=FakeClock())) as store:  # long ago
        store.conversation("gone", ttl_s=60).set("n", 1)
        store.team("t").set("n", 1)
    shapes = cli("--store", place, "scopes", "--json").document["scopes"]
    assert [(each["scope"], each["is_expired"]) for each in shapes] == [
        ("conversation/gone", True),
        ("team/t", False),
    ]
    assert "\texpired\t" in cli("--store", place, "scopes").out


def test_groups_shows_one_of_another_store(tmp_path: Path, cli: Any):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    with holdfast.open(one) as store:
        store.team("t").set("n", 1)
        store.workers.group("billing").take()
    cli("copy", one, two)
    assert cli("--store", two, "groups", "--json").document["groups"] == [
        {
            "group": "billing",
            "position": None,
            "member": None,
            "lag_events": None,
            "waiting_since": None,
        }
    ]
    assert cli("--store", two, "groups").out == "billing\t\t?\t\tof another store\n"


@pytest.mark.parametrize("words", [["set", "a", "1"], ["checkpoint", "x"]])
def test_what_holdfast_itself_writes_is_only_read(words: list[str], tmp_path: Path, cli: Any):
    """A change by hand to a group's place would be a group that nobody can read."""
    place = str(tmp_path / "own")
    with holdfast.open(place) as store:
        store.team("t").set("n", 1)
        store.workers.group("billing").take()
    verb, *rest = words
    for name in ("group/billing", "store/workers", "lease/group/billing"):
        failed = cli("--store", place, verb, name, *rest, code=2)
        assert "written by holdfast itself" in failed.err
        assert cli("--store", place, "log", name).out
    assert len(cli("--store", place, "groups").out.splitlines()) == 1


@pytest.mark.parametrize("backend", ["files", "sqlite"])
def test_doctor_and_status_tell_a_copy_beside_its_original(tmp_path: Path, cli: Any, backend: str):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(0o700)
    where = "{}/store" if backend == "files" else "sqlite:{}/store.db"
    for _ in range(2):
        with holdfast.open(where.format(first)) as store:
            lease = store.workers.lease("desk")
            assert lease is not None
            store.workers.release(lease)
    shutil.copytree(first, second, copy_function=shutil.copy)
    for path in (second, *second.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for verb in ("doctor", "status"):
        assert "is a copy of the store at" in cli(verb, "--store", where.format(second)).out
