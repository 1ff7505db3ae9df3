"""T18, canaries: of who is erased nothing is found but what the receipt lists, with its reason.

One point is one store, of one of the five kinds by turns, and about 130 canaries; ten points have
more than 1,000. A canary is in each kind of field that data of a subject can be in: all that T18
writes, what runs and nodes make of what they read (variables, results, errors, children, messages,
branches, progress), what containers carry that are written back, and in each kind of name that
things are found by: of scopes, runs, paths, facts, tasks beside others, checkpoints, marks, leases,
actors, graphs and nodes, sources, labels. Then every copy is made of it: index, tables, views, git,
backup, archive, export.

After the erasure all is looked through: the store as a backend gives it, its files with WAL or AOF,
and every copy. Of what was sealed nothing may be found. Of the names exactly those kinds must be
found that the receipt lists as staying (`erasure.STAYS`): one more is a leak, and one less is a
line of the receipt that is not true. Cases are canaries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import holdfast
from holdfast import Context, StepError, Store
from holdfast.agents.protocol import Answer, Call, Question
from holdfast.archive import archive
from holdfast.core import log as core_log
from holdfast.core.codec import Thawable
from holdfast.erasure import STAYS
from holdfast.errors import HoldfastError, RunFailedError
from holdfast.runs.execution import Execution
from holdfast.store import Meta
from tests.canaries import Canaries
from tests.opening import settled
from tests.runs.cuts import until
from tests.servers.kinds import KINDS
from tests.torture.erasure_plants import nothing, replaced
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t18_erasure import Letters, Lives, as_stored


class Named(Lives):
    """A store with canaries in what is sealed, and others in names, which the receipt lists."""

    def __init__(self, kind: str, point: Point) -> None:
        super().__init__(kind, point)
        self.named = Canaries(point.seed * 31 + point.number)
        self.actor = self.named.new("actor")

    def open(self) -> Store:
        options = {"indexes": [holdfast.index("team", "mail")], "embedder": Letters()}
        return holdfast.open(
            self.url, keys=self.keys, actor=self.actor, **settled(options, clear_ids=True)
        )


STORE: dict[str, Store] = {}


@holdfast.step(effect="pure")
def repeats(text: str) -> str:
    return text


@holdfast.step(effect="effect")
def breaks(text: str) -> str:
    raise ValueError(text)


@holdfast.run(name="t18.of-child")
def of_child(ctx: Context, text: str) -> str:
    ctx.let("text", text)
    ctx.state.set("text", text)
    return text


@holdfast.run(name="t18.reads")
def reads(ctx: Context, place: str, end: str) -> Any:
    """Reads one sealed value that holds all canaries, and puts each into another kind of record."""
    given = ctx.read(STORE[place].team("all"), "given")
    variable = ctx.let("variable", given["variable"])
    variable.set(given["variable set"])
    ctx.const("const", given["const"])
    ctx.state.set("own state", given["own state"])
    ctx.state.set("own large state", given["own large state"] + "x" * 70_000)
    repeats(given["step"])
    repeats(given["large step"] + "x" * 70_000)
    with suppress(StepError):
        breaks(given["error of a step"])
    ctx.step(repeats, "labelled", label=given["label"], source=given["source"])
    ctx.join(ctx.child(of_child, given["child"]))
    ctx.parallel({given["branch"]: ctx.branch(repeats, given["in a branch"])})
    ctx.fold("folded", [1], given["fold"], lambda ctx, before, item: before)
    for _ in ctx.each([1], by=lambda item: given["iteration"]):
        ctx.let("in a loop", given["in a loop"])
    ctx.let(given["name of a variable"], 1)
    ctx.session(given["prompt"], system=given["system"])
    said = ctx.signal("said")
    if end == "fails":
        raise ValueError(given["error of the run"] + said)
    return given["result"] + said


RUN = (
    "variable", "variable set", "const", "own state", "own large state", "step", "large step",
    "error of a step", "label", "source", "child", "branch", "in a branch", "fold", "iteration",
    "in a loop", "name of a variable", "prompt", "system", "error of the run", "result",
)  # fmt: skip


class Echo:
    """An executor that answers with what it is asked."""

    def answer(self, call: Call) -> Answer:
        return Answer(call.prompt, memory=call.prompt)

    def decide(self, question: Question) -> str:
        return question.options[0]

    def summarise(self, text: str, limit: int) -> str:
        return text[:limit]


def run(lives: Named, hf: Store) -> None:
    """Has runs of nobody read what is sealed; they are the subject's from there on."""
    place, new = str(lives.place), lives.ada.new
    STORE[place] = hf
    hf.runs.use_executor(Echo())
    for end in ("returns", "fails", "waits"):
        given = {field: new(f"{end}: {field}") for field in RUN}
        hf.team("all").set("given", given, subject="ada")
        one = hf.runs.start(reads, place, end, id=f"reads-{end}")
        until(one, "waiting")
        if end != "waits":
            hf.runs.signal(one.id, "said", new(f"{end}: signal"))
            with suppress(RunFailedError):
                one.result(timeout=60)


def write_back(lives: Named, hf: Store) -> None:
    """Writes containers that have sealed values back, here and elsewhere."""
    team, blue, new = hf.team("all"), hf.team("other"), lives.ada.new
    team.set("box", {"n": 1})
    for place in ("one", "two"):
        team.set(("box", place), new(f"box {place}"), subject="ada")
    team.set("box", {**team.get("box"), "n": 2})
    team.set("copy", team.get("box"))
    team.update(team.state)
    team.edit(lambda draft: draft.__setitem__("box", {**draft["box"]}))
    blue.update({"box": team.get("box")})
    with hf.commit() as tx:
        tx.scope(blue).set("joint", tx.scope(team).get("box"))
    fork = team.fork(f"fork-{lives.point.number}")
    fork.set("box", {**fork.get("box"), "n": 3})
    team.set("merged", fork.get("box"))


def name_things(lives: Named, hf: Store) -> None:
    """Writes a canary into every kind of name that things are found by."""
    team, new = hf.team("all"), lives.named.new
    hf.team(f"of-{new('scope')}", subject="ada").set("n", 1)
    team.set((new("path"), "n"), 1, subject="ada")
    team.facts.state(new("fact"), 1, subject="ada")
    team.set("n", 1, subject="ada", checkpoint=new("checkpoint"))
    team.record("met", {}, refs=[f"person:{new('ref')}"], unchecked=True, subject="ada")
    team.tasks.add(f"call {new('task')}", id=f"id-{new('task')}")
    with team.decide(new("decision"), owner="person") as decision:
        decision.outcome("done")
    with hf.commit(key=new("key")) as tx:
        tx.scope(team).set("joint", 1, subject="ada")
        tx.scope(hf.team("other")).set("joint", 1)
        tx.mark("mail", new("mark"))
    with hf.commit(meta=Meta(source=new("source"))) as tx:
        tx.scope(team).set("meant", 1, subject="ada")
    hf.runs.start(of_child, "x", id=f"run-{new('run')}", subject="ada").result()
    hf.workers.lease(f"on-{new('lease')}", keep=True)

    @holdfast.node(name=f"node_{new('node')}")
    def named(ctx: Any) -> Any:
        return ctx.read(team, "mail")

    hf.nodes.process(holdfast.Graph(f"graph-{new('node')}", [named]), hf.team("other"))


def judge(lives: Named, hf: Store) -> int:
    lives.derive(hf)
    hf.team("moved", subject="ada").set("n", lives.ada.new("archived"))
    with holdfast.open(
        lives.place / "archived", keys=lives.keys, **settled({}, clear_ids=True)
    ) as older:
        archive(hf, older, "team/moved", older_than=1e-6)
    receipt = hf.subjects.erase("ada")
    lives.look(hf, lives.ada)
    leaks = lives.ada.found_below(lives.place / "archived")
    if leaks:
        raise Broken(f"{lives.kind}: in clear in the archive: {leaks}")
    told = {kind for kind, text in STAYS.items() if f"{kind}: {text}" in receipt.beyond}
    found = lives.named.found_in(as_stored(hf)) | {*lives.named.found_below(*lives.places())}
    if found != told:
        raise Broken(f"{lives.kind}: found {sorted(found)}, and the receipt lists {sorted(told)}")
    if hf.check().findings:
        raise Broken(f"{lives.kind}: {hf.check().findings[:3]}")
    return len(lives.ada.fields) + len(lives.named.fields)


def taint_lost() -> Any:
    """A run does not note what it reads: what `ctx.let` keeps is in clear."""
    return replaced(Execution, "reads", lambda self, sealing, subject: None)


def seal_dropped() -> Any:
    """`update` stores what a reader got: the seals of what it replaces are not looked for."""
    return replaced(core_log, "may_cover_seals", lambda root, ops: False)


def container_opened() -> Any:
    """A container that is written elsewhere is stored as it reads."""
    return replaced(Thawable, "closed", lambda self: self.thaw())


PLANTS = {
    "": nothing,
    "taint-lost": taint_lost,
    "seal-dropped": seal_dropped,
    "container-opened": container_opened,
}


def trial(point: Point) -> int:
    kind = "files" if point.plant else KINDS[point.number % len(KINDS)]
    lives = Named(kind, point)
    with PLANTS[point.plant](), lives.open() as hf:
        try:
            lives.write(hf, 0)
            run(lives, hf)
            write_back(lives, hf)
            name_things(lives, hf)
            return judge(lives, hf)
        except HoldfastError as error:
            raise Broken(f"{kind}: {error!r}") from error


PROGRAMMES = (
    Programme(
        "t18-canaries",
        "of who was erased nothing is found but the names that the receipt lists",
        trial,
        share=10,
        points=40,
        turns=10,
        plants=dict.fromkeys([one for one in PLANTS if one], 1),
    ),
)
