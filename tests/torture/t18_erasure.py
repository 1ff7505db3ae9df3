"""T18: two people in one store, one is erased: canaries in every kind of field, and raw bytes.

One point is one store, of one of the five kinds by turns, with 1 to 3 rounds of data of two
subjects: in scopes of their own (state, messages, tool results, tasks, facts, decisions, events,
large values, forks, every kind of name) and beside others in a shared scope, by every way to write.
Copies are made of all of it: snapshots, the index for questions with vectors, tables, projections,
node results, files that people read, in git, a block of context in a file, an export and a backup.

Looked for are the canaries of both, in every byte of the store, the server's files included (WAL,
AOF), and of the copies, before the erasure. After it: those of the erased in all that can still be
read; the bytes of the key in any form, the folder of keys included; the other's events, which must
be the same to the bit; the chain; and a restore of the older backup, which must bring nothing back.
A canary in clear beside them must be found: that the search finds something is proved each time.
Cases are canaries.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Context, Store
from holdfast.backends.protocol import START
from holdfast.backup import backup, restore
from holdfast.core.codec import decompress
from holdfast.errors import HeldError, HoldfastError
from holdfast.interchange import export_scopes
from holdfast.views.kinds import event_rows, state_file, task_list
from tests.canaries import Canaries, _files, fill, fill_names
from tests.opening import settled
from tests.servers import postgresql, redis
from tests.servers.kinds import KINDS, url_of
from tests.torture.erasure_plants import PLANTS, WITHIN
from tests.torture.programme import Broken, Point, Programme


class Letters:
    """An embedder for tests: how often each letter stands in a text."""

    name, dimension = "letters", 26

    def embed(self, texts: Iterable[str]) -> list[list[float]]:
        return [[float(text.count(chr(97 + one))) for one in range(26)] for text in texts]


class Lives:
    """One store of one point, and all that is derived from it."""

    def __init__(self, kind: str, point: Point) -> None:
        self.kind, self.point, self.chance = kind, point, point.random
        self.place = point.place
        self.url = url_of(kind, point.place / "store", "s") if kind != "memory" else "memory:"
        (point.place / "store").mkdir()
        self.keys = point.place / "keys"
        seed = point.seed * 100_003 + point.number * 3
        self.ada = Canaries(seed)
        self.bob, self.clear = (Canaries(seed + one, beside=self.ada) for one in (1, 2))

    def open(self) -> Store:
        options: dict[str, Any] = {"indexes": [holdfast.index("team", "mail")]}
        return holdfast.open(self.url, keys=self.keys, **settled(options, embedder=Letters()))

    # --- writing ---------------------------------------------------------------------------------

    def write(self, hf: Store, round: int) -> None:
        for name, canaries in (("ada", self.ada), ("bob", self.bob)):
            chat = hf.conversation(hf.subjects.pseudonym(f"{name} {round}"), subject=name)
            with hf.commit() as tx:  # a scope may begin in any way
                if self.chance.random() < 0.5:
                    tx.scope(chat).messages.add("user", canaries.new("joint message"))
                tx.scope(chat).set("joint", canaries.new("joint value"))
            fill(hf, chat, canaries)
            fill_names(chat, canaries)
            fork = chat.fork(hf.subjects.pseudonym(f"fork {name} {round}"))
            fork.set("forked", canaries.new("fork"))
            fork.facts.state(canaries.new("fact of a fork"), 1)
            write_beside(hf, name, canaries)
            work(hf, chat, name, canaries)
            log = hf._log
            log.snapshots._write(chat.name, log.newest(chat.name), log.snapshots._begin("x"))
        log.snapshots._write(
            "team/all", log.newest("team/all"), log.snapshots._begin(f"all {round}")
        )

    def derive(self, hf: Store) -> None:
        """Makes every copy that there can be."""
        team = hf.team("all")
        hf.team("clear").set("n", self.clear.new("control"))
        list(hf.query(text="hello"))
        hf.search.similar("hello")
        hf.search.tables()
        views = hf.views(
            self.place / "views",
            [state_file(team, "all.json"), task_list(team, "TASKS.md"), event_rows(team)],
        )
        views.sync()
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "views"]):
            who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            command = ["git", "-C", str(self.place / "views"), *who, *words]
            subprocess.run(command, check=True, capture_output=True)
        with (self.place / "export.jsonl").open("wb") as file:
            export_scopes(hf, (), file)
        backup(hf, self.place / "backup")

    # --- looking ---------------------------------------------------------------------------------

    def places(self) -> list[Path]:
        """Returns what is looked through in depth: not the many files of PostgreSQL."""
        found = [self.place / one for one in ("store", "views", "backup")]
        found += [self.place / "export.jsonl", self.place / "restored"]
        if self.kind == "redis":
            found.append(Path(redis.server(redis.OLDEST).directory))
        return [one for one in found if one.exists()]

    def files(self) -> Iterator[tuple[Path, bytes]]:
        places = self.places()
        if self.kind == "postgresql":
            places.append(Path(postgresql.server(postgresql.NEWEST).directory))
        return _files(places, set())

    def look(self, hf: Store, *looked_for: Canaries) -> None:
        """Raises Broken if a canary is in the store, or in what was made of it."""
        logical = as_stored(hf)
        for canaries in looked_for:
            hits = {field: ["the store"] for field in canaries.found_in(logical)}
            hits |= canaries.found_below(*self.places())
            if self.kind == "postgresql":
                hits |= {
                    field: [path.name]
                    for path, data in self.files()
                    for field in canaries.found_as_they_are(data)
                }
            if hits:
                raise Broken(f"{self.kind}: in clear: {hits}")
        if not self.clear.found_in(logical):
            raise Broken("the search finds nothing, not even what is in clear")

    def look_for_key(self, hf: Store, key: bytes) -> None:
        forms = (key, key.hex().encode(), base64.b64encode(key), base64.urlsafe_b64encode(key))
        kept = [(path, data) for path, data in _files([self.keys], set())]
        for path, data in [(Path("records"), as_stored(hf)), *self.files(), *kept]:
            if any(form in data for form in forms):
                raise Broken(f"{self.kind}: the key of the erased is in {path}")

    def theirs(self, hf: Store, name: str) -> list[Any]:
        """Returns the events of a subject's own scopes, as they are stored, link and all."""
        backend = hf._log._backend
        streams = [one for one in hf.subjects.get(name).scopes if not one.startswith("team/")]
        return [
            (one.stream, one.revision, one.type, one.payload, one.link, one.key, one.checkpoint)
            for stream in streams
            for one in backend.read(stream)
        ]


@holdfast.step(effect="pure")
def answer(question: str, said: str) -> str:
    return said


@holdfast.run(name="t18.asks")
def asks(ctx: Context, given: str, question: str, said: str, state: str) -> str:
    ctx.state.set("said", state)
    return ctx.step(answer, question, said)


def work(hf: Store, chat: Any, name: str, canaries: Canaries) -> None:
    """Has a run and a node of a subject hold what they are given, and give back."""
    words = [canaries.new(f"run {one}") for one in ("input", "question", "output", "state")]
    id = hf.subjects.pseudonym(f"run {name} {len(canaries.fields)}")
    hf.runs.start(asks, *words, id=id, subject=name).result(timeout=60)

    @holdfast.node
    def told(ctx: Any, thread: Any) -> Any:
        return [ctx.read(chat, "text"), thread]

    hf.nodes.process(holdfast.Graph("t18", [told]), chat, thread=[canaries.new("node")])


def write_beside(hf: Store, name: str, canaries: Canaries) -> None:
    """Writes values of a subject beside those of others, by every way there is."""
    team, new = hf.team("all"), canaries.new
    team.set("mail", new("shared value"), subject=name)
    team.update({"a": [new("shared update")], "b": {}}, subject=name)
    team.append("list", new("shared item"), subject=name)
    team.set((name, "large"), f"{new('shared large')} {'x' * 70_000}", subject=name)
    team.set((name, "middle"), f"{new('shared middle')} {'x' * 60_000}", subject=name)
    team.set("keyed", 1, subject=name, key=new("shared key"))
    team.messages.add(
        "tool", new("shared message"), tool_call_id=new("shared call"), subject=name,
        foreign_id=new("foreign id"), foreign={"item": new("foreign item")},
    )  # fmt: skip
    items = [{"role": "user", "content": new("shared item of many"), "foreign_id": new("id")}]
    team.messages.add_many(items, subject=name)
    edited = team.messages.add("user", new("shared before"), subject=name)
    team.messages.edit(edited, content=new("shared edited"))
    team.facts.state(f"{name}.phone", new("shared fact"), about=new("about"), subject=name)
    team.record("met", {"who": new("shared event")}, unchecked=True, subject=name)
    with hf.commit() as tx:
        tx.scope(team).set(("joint", name), new("shared joint"), subject=name)
        tx.scope(team).messages.add("user", new("shared joint message"), subject=name)


def as_stored(hf: Store) -> bytes:
    """Returns all that a backend can be asked for, as it is stored, frames unpacked."""
    log = hf._log
    parts: list[bytes] = []
    for record in log._backend.read_all(after=START, limit=1_000_000):
        parts += [record.payload, repr((record.key, record.checkpoint, record.meta)).encode()]
    objects = log._backend.objects
    for kind in ("blob", "snapshot"):
        for name in objects.names(kind):
            data = objects.get(kind, name) or b""
            parts.append(data)
            try:
                parts.append(decompress(data, size_max=1 << 30))
            except (HoldfastError, ValueError):
                continue  # it is sealed
    return b"\n".join([*parts, repr(log.find_marks()).encode()])


def readable(hf: Store) -> bytes:
    """Returns what whoever has the keys can read of a store."""
    said: list[object] = []
    for stream in hf._log.streams():
        said += [(one.key, one.checkpoint, one.payload) for one in hf._log.records(stream)]
        if stream.partition("/")[0] in ("conversation", "team"):
            scope = hf.scope(stream)
            for read in (partial(_state, scope), partial(_messages, scope), scope.facts.list):
                try:
                    said.append(read())
                except HoldfastError as error:
                    said.append(error.message)
    events = [one.data for one in hf.events(limit=None) if not one.is_let_go]
    said += [events, hf.workers.marks(limit=None)]
    said += [hf.tasks.list(limit=None), hf.decisions.list(limit=None)]
    return repr(said).encode()


def _state(scope: Any) -> object:
    return scope.state.to_dict()


def _messages(scope: Any) -> list[object]:
    return [one.fields for one in scope.messages.original()]


def trial(point: Point) -> int:
    # A planted fault is looked for where there are files, and where that is quick.
    kind = "files" if point.plant else KINDS[point.number % len(KINDS)]
    lives = Lives(kind, point)
    rounds = 1 + point.number // len(KINDS) % 3
    with PLANTS[point.plant](), lives.open() as hf:
        try:
            for round in range(rounds):
                lives.write(hf, round)
            return judge(lives, hf)
        except HoldfastError as error:
            raise Broken(f"{kind}: {error!r}") from error


def judge(lives: Lives, hf: Store) -> int:
    lives.derive(hf)
    lives.look(hf, lives.ada, lives.bob)
    key = next(one.key for one in hf._log.sealing.keys.subjects() if one.name == "ada")
    for one in hf._log.sealing.keys.subjects():
        if any(one.key in data or one.key.hex().encode() in data for _, data in lives.files()):
            raise Broken(f"{lives.kind}: a key is beside the data that it seals")
    before, own = lives.theirs(hf, "bob"), hf.subjects.get("ada").scopes
    if lives.chance.random() < 0.5:
        held(hf)
    receipt = hf.subjects.erase("ada")
    if {one.scope for one in receipt.scopes} != {*own}:
        raise Broken(f"the receipt names {receipt.scopes}, and not all of {own}")
    lives.look(hf, lives.ada, lives.bob)
    lives.look_for_key(hf, key)
    left = [name for name in own if hf._log.snapshots.revisions(name) and name != "team/all"]
    if left:
        raise Broken(f"snapshots of {left} are left")
    if lives.ada.found_in(readable(hf)):
        raise Broken(f"{lives.kind}: what was erased is read")
    missing = {*lives.bob.fields.values()} - lives.bob.found_in(readable(hf)) - LOST
    if lives.theirs(hf, "bob") != before or missing:
        raise Broken(f"{lives.kind}: what is another's changed, or is not read: {missing}")
    if hf.check().findings:
        raise Broken(f"{lives.kind}: {hf.check().findings[:3]}")
    with holdfast.open(lives.place / "restored", keys=lives.keys) as older:
        restore(lives.place / "backup", older)
        if lives.ada.found_in(readable(older)) or older.check().findings:
            raise Broken(f"{lives.kind}: an older backup brings back what was erased")
        lives.look(hf, lives.ada)
    return len(lives.ada.fields) + len(lives.bob.fields)


LOST = {"shared key", "shared before"}
"""Fields of the other that no reader shows: a digest stands for the one, an edit for the other."""


def held(hf: Store) -> None:
    """Raises Broken unless a hold beats the erasure."""
    hf.subjects.hold("ada", "case 7")
    try:
        hf.subjects.erase("ada")
    except HeldError:
        hf.subjects.unhold("ada")
        return
    raise Broken("a held subject was erased")


PROGRAMMES = (
    Programme(
        "t18-erasure",
        "of who was erased no byte is left in clear, nor their key; everybody else is as before",
        trial,
        share=15,
        points=60,
        turns=15,
        plants=WITHIN,
    ),
)
