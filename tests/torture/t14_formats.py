"""T14: every format ever written opens with the code of today; newer ones are refused, untouched.

A point is one look at one fixture (`tests/fixtures`): opened on a copy, read, verified and compared
with what it must hold, also read-only and as the killed store it was; written to and read again;
looked at through the command line; one of format 1 given its first event with meta; or changed into
something that this code cannot know (a greater format number, a strange meta, an op, a tag of a
value), which must be refused by an error that names it, with every byte on disk left as it was.

Planted and found: a reader that forgets the last event, one that drops what it does not know, and
an opener that does not look at the format number.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Settings
from holdfast.backends.files import directory
from holdfast.backends.files.backend import FilesBackend
from holdfast.backends.protocol import Receipt
from holdfast.backends.sqlite import opening
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.cli import main
from holdfast.core import event
from holdfast.errors import FormatError, HoldfastError
from holdfast.store import Meta
from holdfast.testing import FakeClock
from holdfast.testing.records import RecordBuilder
from tests.fixtures import content, content_2, content_3
from tests.fixtures.make import FORMATS, describe, unpack
from tests.torture.programme import Broken, Point, Programme

FIXTURES = sorted(path.name for path in FORMATS.iterdir())


def expected_of(name: str) -> dict[str, Any]:
    return json.loads((FORMATS / name / "expected.json").read_text())


def snapshot(place: Path) -> dict[str, bytes]:
    """Returns every file below a place."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


# --- looks -----------------------------------------------------------------------------------


def reads(name: str, which: str, place: Path, *, read_only: bool = False) -> int:
    """Opens it and compares everything."""
    url = unpack(name, which, place)
    clock = FakeClock(seed=2)
    if name.endswith("-ends"):
        clock.advance(10**8)  # what it says of ends is as of when they have come
    with holdfast.open(
        url, create=False, read_only=read_only, settings=Settings(clock=clock)
    ) as store:
        found, expected = json.loads(json.dumps(describe(store))), expected_of(name)
        for part, wanted in expected.items():
            if found[part] != wanted:
                raise Broken(f"{part} of {name} differ:\n  found {found[part]}\n  not {wanted}")
        _compare_by_hand(store)
        if name.endswith("-2"):
            _compare_meta(store)
        elif name.endswith("-3"):
            _compare_packed(store, place)
        elif name.endswith("-ends"):
            _compare_ends(store)
    return len(expected["events"])


def _compare_by_hand(store: holdfast.Store) -> None:
    """Compares with what was written by hand, so that a wrong description cannot agree."""
    values = store.team("values").state.to_dict()
    if ascii(values) != ascii(content.VALUES):
        raise Broken(f"values are {values!a}: expected {content.VALUES!a}")
    found = store.team("nan").get("nan")
    large = store.team("large").state.to_dict()
    talk = store.conversation("talk")
    chat = store.conversation("7/ü \U0001f600")
    fork = store.conversation("fork")
    holds = {
        "nan": isinstance(found, float) and math.isnan(found),
        "large": large == {"text": content.LARGE, "bytes": content.LARGE_BYTES},
        "talk": talk.state.to_dict() == {"messages": content.MESSAGES},
        "talk then": talk.at(7) == {"messages": content.MESSAGES[:7]},
        "undone": chat.get("customer") == {"name": "Ada", "age": 37},
        "before": chat.at("before").to_dict()["list"] == [1, 2, 3, 4],
        "forked": fork.get("forked") is True and fork.get("budget") == 10,
        "parent": chat.parent is not None and chat.parent.name == "team/red",
        "closed": store.workflow("ended").life.is_closed and store.workflow("ended").get("n") == 1,
        "last": store.team("red").at("last").get("last") == "durable",
        "both": store.global_().get("together") == 1,
    }
    if wrong := [what for what, is_so in holds.items() if not is_so]:
        raise Broken(f"not as it was written: {', '.join(wrong)}")


def _compare_ends(store: holdfast.Store) -> None:
    """Compares what has ended, and what has not, with what was written by hand."""
    team, chat = store.team("ends"), store.conversation("ends")
    ends = team.life.ends_at("renewed")
    holds = {
        "shown": team.state.to_dict()
        == {
            "stays": 1,
            "deep": {"far": "until 3023"},
            "renewed": 2,
            "lasts": 2,
            "log": ["which takes away what has ended"],
        },
        "ends": ends is not None and ends.year > 3000 and team.life.ends_at("lasts") is None,
        "old": team.at(1) == {"stays": 1} and "hidden" in team.at(team.revision),
        "let go": chat.state.to_dict() == {"log": [1]} and chat.at("given") == {},
    }
    if wrong := [what for what, is_so in holds.items() if not is_so]:
        raise Broken(f"ends are not as they were written: {', '.join(wrong)}")


def _compare_meta(store: holdfast.Store) -> None:
    """Compares the meta of events with what was written by hand."""
    events = {(event.stream, event.revision): event for event in store.events()}
    later, everyone = events["person/q", 1], store.global_()
    holds = {
        "all keys": events["team/meta", 1].meta == content_2.META,
        "none": events["team/meta", 2].meta is None,
        "beside another": events[everyone.name, everyone.revision].meta == content_2.META,
        "of later": later.meta == Meta(source="later  "),
        "as stored": later.record.meta == events["person/q", 2].record.meta == content_2.LATER,
    }
    if wrong := [what for what, is_so in holds.items() if not is_so]:
        raise Broken(f"meta is not as it was written: {', '.join(wrong)}")


def _compare_packed(store: holdfast.Store, place: Path) -> None:
    """Compares what was let go of, and what stands beside it, with what was written by hand."""
    first = (place / "store" / "log" / ("0" * 16 + ".jsonl")).read_bytes()
    log = list(store.conversation("stays").get("log"))
    records = store._log._backend.read("conversation/goes")
    holds = {
        "packed": first.startswith(b'{"packed":') and content_3.LINE.encode() not in first,
        "beside": log == [*range(content_3.GONE), "after"],
        "gone": len([one for one in records if one.payload == b"-0"]) >= content_3.GONE,
    }
    if wrong := [what for what, is_so in holds.items() if not is_so]:
        raise Broken(f"packed is not as it was written: {', '.join(wrong)}")


def upgrades(name: str, which: str, place: Path) -> int:
    """Writes to a store of format 1: it keeps its number until the first event with meta."""
    url = unpack(name, which, place)
    expected = expected_of(name)["events"]
    with (
        holdfast.open(url, create=False, settings=Settings(clock=FakeClock(seed=3))) as store,
        # The meta that is written names a version of a schema, which this one does not have.
        holdfast.open(
            url, create=False, settings=Settings(clock=FakeClock(seed=4), unchecked=True)
        ) as open_before,
    ):
        store.team("new").set("n", 1)
        formats = [_format(name, place, store)]
        with store.commit(meta=content_2.META) as tx:
            tx.scope(store.team("new")).set("n", 2)
        formats.append(_format(name, place, store))
        # The one that had it open as format 1 reads it and writes to it.
        open_before.team("new").set("n", 3)
        with open_before.commit(meta=content_2.META) as tx:
            tx.scope(open_before.team("new")).set("n", 4)
        metas = [event.meta for event in open_before.team("new").history()]
        version = Meta(schema=content_2.META.schema)  # of the state that is changed
        if metas != [None, content_2.META, version, content_2.META]:
            raise Broken(f"meta reads as {metas}")
    if formats != [1, 2]:
        raise Broken(f"the formats were {formats}: expected 1 before meta and 2 after")
    with holdfast.open(url, create=False, settings=Settings(clock=FakeClock(seed=5))) as store:
        found = json.loads(json.dumps(describe(store)["events"]))
        if found[: len(expected)] != expected:
            raise Broken("an event of format 1 has changed")
    return len(expected)


def _format(name: str, place: Path, store: holdfast.Store) -> int:
    """Returns the format by what an opener looks at, which must be what the store says."""
    if name.startswith("files"):
        number = json.loads((place / "store" / "holdfast.json").read_text())["format"]
    else:
        # By another process: closing the file here would drop the locks of the open store.
        header = subprocess.run(["head", "-c", "64", place / "store.db"], capture_output=True)
        number = int.from_bytes(header.stdout[60:], "big")
    said = store._log.describe()["format"]
    if said != number:
        raise Broken(f"the store says format {said}, its files say {number}")
    return number


def writes(name: str, which: str, place: Path) -> int:
    """Writes to it, in every way that needs what is there, and reads it again."""
    url = unpack(name, which, place)
    clock = FakeClock(seed=3)
    with holdfast.open(url, create=False, settings=Settings(clock=clock)) as store:
        red = store.team("red")
        if red.set("stage", "triage", key="first") != 1:
            raise Broken("a key of the fixture was not known")
        red.set("new", 1)
        store.conversation("talk").append("messages", "new")
        store.conversation("talk").restore(3)
        store.conversation("fork").fork("again", at="before")
        store.workers.lease("coordinator")
        with store.commit() as tx:
            tx.clear("due", "now")
    with holdfast.open(url, create=False, settings=Settings(clock=clock)) as store:
        holds = [
            store.check().ok,
            store.team("red").get("new") == 1,
            store.conversation("talk").state.to_dict() == {"messages": content.MESSAGES[:3]},
            store.conversation("again").at("before") == store.conversation("fork").at("before"),
            [mark.key for mark in store.workers.marks("due")] == ["taken", "later"],
        ]
        if not all(holds):
            raise Broken(f"what was written is not there: {holds}")
    return 6


def shows(name: str, which: str, place: Path) -> int:
    """Looks at it with the verbs of the command line."""
    url = unpack(name, which, place)
    expected = expected_of(name)
    digest = expected["digest"]
    for words, wanted in (
        (["check"], digest[:12]),
        (["check", "--expect", digest], digest[:12]),
        (["show", "team/red"], "durable"),
        (["show", "conversation/fork", "--json"], "forked"),
        (["log", "team/red"], "fixture"),
        (["log", "--json"], "fixture"),
        (["scopes"], "conversation/talk"),
        (["status"], which and "1"),
    ):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--store", url])
        if code != 0 or wanted not in out.getvalue():
            said = out.getvalue()[-500:] + err.getvalue()
            raise Broken(f"holdfast {' '.join(words)} ended with {code} and said {said}")
    return 8


# --- what this code cannot know --------------------------------------------------------------


def refuses(url: str, place: Path, *, error: type[HoldfastError], says: str) -> int:
    """Opens it in both ways; each must be refused, and change nothing."""
    before = snapshot(place)
    for read_only in (False, True):
        try:
            holdfast.open(url, read_only=read_only, settings=Settings(clock=FakeClock())).close()
        except error as found:
            if says not in str(found):
                raise Broken(f"the refusal does not say {says!r}: {found}") from found
        else:
            raise Broken(f"it was opened: expected {error.__name__}")
        if snapshot(place) != before:
            changed = [n for n, data in snapshot(place).items() if before.get(n) != data]
            raise Broken(f"it was changed: {changed}, or files are gone")
    return 2


def newer_format(name: str, which: str, place: Path) -> int:
    url = unpack(name, which, place)
    for number in (4 if name.startswith("files") else 3, 99):
        if name.startswith("files"):
            path = place / "store" / "holdfast.json"
            identity = json.loads(path.read_text())
            path.write_text(json.dumps({**identity, "format": number}))
        else:
            with open(place / "store.db", "r+b") as file:
                file.seek(60)
                file.write(number.to_bytes(4, "big"))
        refuses(url, place, error=FormatError, says=f"format {number}")
    return 4


def unknown_meta(name: str, which: str, place: Path) -> int:
    """Puts what is no object in the place of meta, as a format to come may: it is refused."""
    url = unpack(name, which, place)
    path = place / "store" / "log" / ("0" * 16 + ".jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[0])
    line["in"][0][2][0] += [None, None, None, "aes", "k1"][len(line["in"][0][2][0]) - 3 :]
    del line["crc"]
    body = json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    lines[0] = body + b',"crc":"%08x"}\n' % zlib.crc32(body)
    path.write_bytes(b"".join(lines))
    before = snapshot(place)
    for read_only in (False, True):
        try:
            with holdfast.open(
                url, read_only=read_only, settings=Settings(clock=FakeClock())
            ) as store:
                store.team("red").state.to_dict()
        except holdfast.CorruptError:
            _compare_logs(before, snapshot(place))
        else:
            raise Broken("an event with a strange meta was read: expected CorruptError")
    return 2


def unknown_content(payload: bytes, name: str, which: str, place: Path) -> int:
    """Adds an event that this code cannot fold; what is unknown is never taken for nothing."""
    url = unpack(name, which, place)
    newest = _add(url, payload)
    for read_only in (False, True):
        before = snapshot(place)
        with holdfast.open(
            url, read_only=read_only, settings=Settings(clock=FakeClock(seed=5))
        ) as store:
            red = store.team("red")
            _must_raise("state", partial(lambda scope: scope.state.to_dict(), red))
            _must_raise("at", partial(red.at, newest))
            if not read_only:
                # Setting a key needs no state, and is not refused; what changes a value needs it.
                _must_raise("append", partial(red.append, "list", 1))
            if store.check().ok:
                raise Broken("check finds nothing")
            if store.conversation("talk").state.to_dict() != {"messages": content.MESSAGES}:
                raise Broken("another scope is no longer what it was")
        _compare_logs(before, snapshot(place))
    return 7


def unknown_tag(name: str, which: str, place: Path) -> int:
    """A value of a type to come is shown as it stands (0003), and can be gone back behind."""
    url = unpack(name, which, place)
    _add(url, b'[["set","stage",{"$decimal":"1.5"}]]')
    with holdfast.open(url, create=False, settings=Settings(clock=FakeClock(seed=5))) as store:
        red = store.team("red")
        if red.get("stage") != {"$decimal": "1.5"} or not store.check().ok:
            raise Broken(f"an unknown tag reads as {red.get('stage')}")
        red.restore("last")
        if red.get("stage") != "triage":
            raise Broken(f"the state before it is {red.state.to_dict()}")
    return 2


def _add(url: str, payload: bytes) -> int:
    """Commits a payload past everything that checks payloads; returns its revision."""
    with holdfast.open(url, create=False, settings=Settings(clock=FakeClock(seed=4))) as store:
        backend = store._log._backend
        build = RecordBuilder()
        append = build.append("team/red", payload, behind=backend.heads(["team/red"])[0])
        [outcome] = backend.commit([build.commit(append)])
        assert isinstance(outcome, Receipt), outcome
        return append.expected + 1


def _must_raise(what: str, call: Callable[[], Any]) -> None:
    try:
        found = call()
    except holdfast.CorruptError as error:
        if not any(word in str(error) for word in ("unknown", "not", "malformed")):
            raise Broken(f"{what} does not say what it found: {error}") from error
        return
    raise Broken(f"{what} gave {found!r:.200}: expected CorruptError")


def _compare_logs(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """The log, the blobs and the database are as they were; what is disposable may be new."""
    for path, data in before.items():
        if ("log/" in path or "blob/" in path or path == "store.db") and after.get(path) != data:
            raise Broken(f"{path} was changed")


UNKNOWN = {
    "op": b'[["rename","stage","phase"]]',
    "shape": b'{"ops":[["set","stage","x"]]}',
}


def looks() -> Iterator[tuple[str, str, Callable[[str, str, Path], int]]]:
    for name in FIXTURES:
        for which in ("closed", "killed"):
            yield name, which, reads
            yield name, which, writes
            yield name, which, shows
        yield name, "closed", lambda *given: reads(*given, read_only=True)
        for which in ("closed", "killed"):
            yield name, which, newer_format
        for payload in UNKNOWN.values():
            yield name, "closed", lambda *given, payload=payload: unknown_content(payload, *given)
        yield name, "closed", unknown_tag
        if name.startswith("files") and not name.endswith("-3"):  # whose first line is no commit
            yield name, "closed", unknown_meta
        if name.endswith("-1"):
            yield name, "closed", upgrades
            yield name, "killed", upgrades


LOOKS = list(looks())


def trial(point: Point) -> int:
    if point.number >= len(LOOKS):
        return 0
    name, which, look = LOOKS[point.number]
    with PLANTS.get(point.plant, contextlib.nullcontext)():
        try:
            return look(name, which, point.place)
        except HoldfastError as error:
            raise Broken(f"{name}, {which}: {type(error).__name__}: {error}") from error


# --- faults ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _put(*places: tuple[Any, str, Any]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def last_event_forgotten() -> AbstractContextManager[None]:
    """A reader that stops one too early when it reads everything."""
    files_of, sqlite_of = FilesBackend.read_all, SqliteBackend.read_all
    return _put(
        (FilesBackend, "read_all", lambda self, **given: files_of(self, **given)[:-1]),
        (SqliteBackend, "read_all", lambda self, **given: sqlite_of(self, **given)[:-1]),
    )


def unknown_dropped() -> AbstractContextManager[None]:
    """A fold that passes over what it cannot read."""
    decode = event.decode_ops

    def lenient(payload: bytes) -> Any:
        try:
            return decode(payload)
        except holdfast.CorruptError:
            return ()

    return _put((event, "decode_ops", lenient))


def any_format_taken() -> AbstractContextManager[None]:
    """An opener that takes every number for its own."""
    return _put((directory, "FORMAT", 1000), (opening, "FORMAT", 1000))


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "last-event-forgotten": last_event_forgotten,
    "unknown-dropped": unknown_dropped,
    "any-format-taken": any_format_taken,
}

PROGRAMMES = (
    Programme(
        "t14-formats",
        "every format ever written opens, newer ones are refused and left untouched",
        trial,
        share=None,
        plants=dict.fromkeys(PLANTS, len(LOOKS)),
    ),
)
