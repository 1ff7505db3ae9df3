"""The scenes of the demo. Each does something real and compares what it says with the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import holdfast
from holdfast.agents import Answer, Call, Scripted
from holdfast.contrib.demo.agent import (
    BEFORE_MISTAKE,
    DISPUTED,
    DRAFTS,
    INBOX,
    MORNING,
    REPLIES,
    SHELF,
    SLOW,
    SUBJECTS,
    TEAM,
    opening_state,
    read_outbox,
)
from holdfast.contrib.demo.story import Command, Print, Story
from holdfast.core.draft import Draft
from holdfast.errors import ConflictError, UnavailableError
from holdfast.nodes import Graph, NodeContext, node
from holdfast.render.text import change_cells
from holdfast.store import Store

Backend = Literal["files", "sqlite"]
ATTEMPTS_MAX = 10_000
SESSION_S = 600.0
"""How long the session takes that an agent is killed in."""


def run_demo(folder: Path, backend: Backend, *, show: Print, command: Command) -> Story:
    """Plays every scene on a new store in a folder, and returns what was said and claimed.

    `show` gets each line with its style as it happens; `command` returns the command to type for a
    verb and a store.
    """
    place = str(folder) if backend == "files" else f"sqlite:{folder / 'state.db'}"
    story = Story(place, show=show, command=command)
    with holdfast.open(place, actor="lead") as store:
        open_morning(store, story)
        inbox, count = work_and_kill(store, story)
        find_what_is_there(store, story, inbox)
        resume(store, story, inbox, count)
        kill_a_run(store, story, str(folder / "outbox.jsonl"))
        kill_a_program(store, story)
        refuse_and_retry(store, story)
        rewind(store, story)
        recompute(store, story)
        edit_and_recover(store, story, folder / "shop")
        check_everything(store, story)
    return story


def make_folder(wanted: Path) -> Path:
    """Creates a new folder with the wanted name, or with the next free name beside it.

    The demo never writes into an existing folder, so it cannot damage anybody's data.
    """
    for number in range(1, ATTEMPTS_MAX):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnavailableError(
                f'"{folder}" cannot be created: {error.strerror}', hint="choose another --dir"
            ) from error
        return folder
    raise UnavailableError(
        f'"{wanted}" and {ATTEMPTS_MAX} names beside it are taken', hint="choose another --dir"
    )


# Agents and commands as processes of their own.

AGENT = "holdfast.contrib.demo.agent"
KILL_AFTER = 20
MAILS = 200
LETTERS_BEFORE_KILL = 5

Agent = subprocess.Popen[str]


def start_agent(place: str, name: str, work: str, *rest: str) -> Agent:
    """Starts an agent as a process of its own; its standard output is a pipe to here."""
    # The child must find the same holdfast, also when this one was found through sys.path alone.
    root = str(Path(holdfast.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", AGENT, place, name, work, *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def say_go(*agents: Agent) -> None:
    """Lets the agents begin together, once every one of them has the store open."""
    for agent in agents:
        assert agent.stdout is not None, "BUG: an agent without a pipe"
        agent.stdout.readline()
    for agent in agents:
        assert agent.stdin is not None, "BUG: an agent without a pipe"
        with suppress(BrokenPipeError), agent.stdin as pipe:  # it may have died already
            pipe.write("go\n")


def read_lines(agent: Agent) -> list[dict[str, Any]]:
    """Returns what the agent reports until its end; an incomplete line is left out."""
    assert agent.stdout is not None, "BUG: an agent without a pipe"
    with agent.stdout as pipe:
        lines = [json.loads(line) for line in pipe if line.endswith("\n")]
    if agent.wait() not in (0, -signal.SIGKILL):
        raise UnavailableError(
            f"an agent of the demo ended with exit code {agent.returncode}: its message is above",
            hint="holdfast doctor",
        )
    return lines


def work_alone(agent: Agent) -> list[dict[str, Any]]:
    """Lets one agent work to its end and returns what it reports."""
    say_go(agent)
    return read_lines(agent)


def acknowledged(lines: list[dict[str, Any]]) -> list[Any]:
    return [line["acknowledged"] for line in lines if "acknowledged" in line]


def kill_importer(place: str, *helpers: Agent) -> tuple[str, int, list[int], int]:
    """Kills an importing agent; returns its inbox, its count of mails, its reports, its exit code.

    The agent writes as fast as it can while this process only reads. If it is done before the
    signal arrives, a longer import is begun in another inbox.
    """
    inbox, count = INBOX, MAILS
    while True:
        agent = start_agent(place, "bo", "import", inbox, str(count))
        say_go(agent, *helpers)
        helpers = ()
        assert agent.stdout is not None, "BUG: an agent without a pipe"
        first = [agent.stdout.readline() for _ in range(KILL_AFTER + 1)]
        agent.send_signal(signal.SIGKILL)
        lines = [json.loads(line) for line in first if line.endswith("\n")]
        mails = acknowledged(lines + read_lines(agent))
        if agent.returncode != 0:
            return inbox, count, mails, agent.returncode
        count *= 2
        inbox = f"{INBOX}-{count}"


def kill_replier(place: str, outbox: str) -> tuple[list[str], int]:
    """Kills an agent in the middle of its run; returns its reports and its exit code.

    Its last letter was sent, but the run has not recorded that: the worst moment to be killed.
    """
    agent = start_agent(place, "di", "reply", outbox, str(LETTERS_BEFORE_KILL))
    say_go(agent)
    assert agent.stdout is not None, "BUG: an agent without a pipe"
    first = [agent.stdout.readline() for _ in range(LETTERS_BEFORE_KILL)]
    agent.send_signal(signal.SIGKILL)
    lines = [json.loads(line) for line in first if line.endswith("\n")]
    return acknowledged(lines + read_lines(agent)), agent.returncode


def run_command(words: list[str]) -> Any:
    """Runs a holdfast command in a new process and returns its document."""
    root = str(Path(holdfast.__file__).parents[1])
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); import holdfast.cli as cli"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(cli.main())", root, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


# The scenes.


def open_morning(store: Store, story: Story) -> None:
    """Scene: a team scope with tickets."""
    story.begin("A support team shares one scope")
    team = store.scope(TEAM)
    revision = team.update(opening_state(), checkpoint=MORNING)
    story.say(f"{TEAM} has {len(SUBJECTS)} open tickets at revision {revision}.")
    story.say(f'That revision is the checkpoint "{MORNING}".')
    story.note(tickets=len(team.state["tickets"]), revision=revision)
    story.suggest(f"show {TEAM}")


def work_and_kill(store: Store, story: Story) -> tuple[str, int]:
    """Scene: three agents at work, one killed in the middle; returns its inbox and its count."""
    story.begin("Three agents work at once; one is killed with SIGKILL")
    helpers = {name: start_agent(store.url, name, "triage") for name in ("ada", "cy")}
    inbox, count, mails, code = kill_importer(store.url, *helpers.values())
    story.say(f"bo imports {count} mails and says each one that was acknowledged.")
    story.say(f"bo was killed while writing: it said {len(mails)}, its exit code is {code}.")
    for name, agent in helpers.items():
        tickets = acknowledged(read_lines(agent))
        story.say(f"{name} triaged {len(tickets)}: {', '.join(tickets) or 'none'}")
        story.note(**{name: tickets})
        owned = store.scope(TEAM).state["tickets"]
        story.claim(
            f"all that {name} was told is stored, under {name}'s name",
            agent.returncode == 0
            and all(
                (owned[id]["owner"], owned[id]["status"]) == (name, "triaged") for id in tickets
            ),
        )
    state = store.scope(TEAM).state
    triaged = [id for id, ticket in state["tickets"].items() if ticket["status"] == "triaged"]
    story.claim(
        f"{len(triaged)} tickets, each triaged once: the team counted {state['triaged']}",
        len(triaged) == len(SUBJECTS) == state["triaged"],
    )
    story.claim("bo died of SIGKILL", code == -signal.SIGKILL)
    story.note(inbox=inbox, wanted=count, acknowledged=mails, exit_code=code)
    story.suggest(f"log {TEAM}")
    return inbox, count


def find_what_is_there(store: Store, story: Story, inbox: str) -> None:
    """Scene: a new process reads what the dead one left."""
    story.begin("Nothing acknowledged is missing")
    said: list[int] = story.scenes[-2].facts["acknowledged"]
    words = ["--store", store.url, "get", inbox, "mails", "--json"]
    answer = run_command(words)
    found = [mail["number"] for mail in answer["value"]]
    story.say(f"bo had said {len(said)} mails; a new process finds {len(found)}.")
    if len(found) > len(said):
        story.say("The last one was durable, but bo was killed before it could say so.")
    story.claim("every acknowledged mail is there", set(said) <= set(found))
    story.claim(
        "they are mails 1, 2, 3, … without a gap, none twice, at most one unsaid",
        found == list(range(1, len(found) + 1)) and len(found) - len(said) in (0, 1),
    )
    earlier = sum(
        len(scope.state["mails"])
        for scope in store.scopes("conversation")
        if scope.name.startswith(INBOX)
    )
    counted = store.scope(TEAM).state["mails"]
    story.claim(
        f"the team's counter says {counted} too: both scopes or neither, also when killed",
        counted == earlier,
    )
    story.note(acknowledged=len(said), found=len(found), counted=counted)
    story.suggest(f"get {inbox} 'mails[{len(found) - 1}]'", f"log {inbox} --limit 5")


def resume(store: Store, story: Story, inbox: str, count: int) -> None:
    """Scene: a new agent continues where the dead one stopped."""
    story.begin("A new process resumes where the dead one stood")
    before = len(store.scope(inbox).state["mails"])
    agent = start_agent(store.url, "bo", "import", inbox, str(count))
    lines = work_alone(agent)
    at, done = lines[0]["resumed_at"], acknowledged(lines)
    story.say(f"The new bo found {at} mails, began with {at + 1} and imported {len(done)}.")
    mails = [mail["number"] for mail in store.scope(inbox).state["mails"]]
    # A mail may have been durable when its writer was killed, before it was acknowledged. The next
    # writer completes that commit, so it may find one mail more than was visible before.
    story.claim(
        f"all {count} mails are there, each once, in order",
        mails == list(range(1, count + 1)) and at - before in (0, 1) and agent.returncode == 0,
    )
    story.note(resumed_at=at, imported=len(done), total=len(mails))
    story.suggest(f"show {inbox} --at {at}", f"diff {inbox} {at} {at + 2}")


def kill_a_run(store: Store, story: Story, outbox: str) -> None:
    """Scene: a program dies between its acts, and a new process goes on in the middle of it."""
    story.begin("A program is killed in the middle; it goes on from the same line")
    tickets = sorted(store.scope(TEAM).state["tickets"])
    said, code = kill_replier(store.url, outbox)
    before = [letter["ticket"] for letter in read_outbox(outbox)]
    journal = store.runs.get(REPLIES).journal
    done = [e.path for e in journal.entries.values() if e.kind == "step" and e.state == "done"]
    open_acts = [entry.path for entry in journal.uncertain()]
    story.say(f"di runs a program that sends {len(tickets)} letters, one a ticket.")
    story.say(f"di was killed after it had sent {len(before)}; its exit code is {code}.")
    story.say(f"The journal knows {len(done)} as sent, and {len(open_acts)} as begun.")
    story.claim("di died of SIGKILL, in the middle", code == -signal.SIGKILL)
    lines = work_alone(start_agent(store.url, "di", "reply", outbox))
    after = [letter["ticket"] for letter in read_outbox(outbox)]
    story.say(f"A new di resumes the run and sends {len(after) - len(before)} more.")
    story.claim(
        f"all {len(tickets)} letters left, each once: no letter was forgotten or sent twice",
        after == tickets and after[: len(before)] == before and set(said) <= set(before),
    )
    story.claim(
        "the run returned as if nothing had happened",
        lines[-1]["result"] == len(tickets) and store.runs.get(REPLIES).status == "completed",
    )
    story.note(said=said, sent_before=len(before), sent=after, exit_code=code)
    story.suggest("runs list", f"runs show {REPLIES}", f"runs tail {REPLIES} --after 0")


def kill_program(place: str) -> tuple[list[str], int]:
    """Kills an agent while a session of its program is asked; returns what was asked, and its code.

    It is not waited for: the session takes longer than the demo.
    """
    return kill_in_session(start_agent(place, "eve", "program", str(SESSION_S)), SLOW)


def kill_in_session(agent: Agent, slow: str) -> tuple[list[str], int]:
    """Kills an agent in the session that takes long; returns what it was asked, and its code."""
    say_go(agent)
    assert agent.stdout is not None, "BUG: an agent without a pipe"
    asked: list[str] = []
    while not asked or slow not in asked[-1]:
        asked += acknowledged([json.loads(agent.stdout.readline())])
    agent.send_signal(signal.SIGKILL)
    read_lines(agent)
    return asked, agent.returncode


def kill_a_program(store: Store, story: Story) -> None:
    """Scene: a .prose program dies in a session, and another process goes on without its file."""
    story.begin("A program of agents is killed; no answer is asked for twice")
    before, code = kill_program(store.url)
    journal = store.runs.get(DRAFTS).journal
    known = [e for e in journal.entries.values() if e.name == "session" and e.state == "done"]
    story.say(f"eve runs a .prose program and was killed in its session {len(before)}.")
    story.say(f"The journal has {len(known)} answers; the program is stored with it.")
    story.claim("eve died of SIGKILL, in a session", code == -signal.SIGKILL)
    clerk = Clerk()
    store.runs.use_executor(clerk)
    drafts = store.runs.resume(DRAFTS).result()["drafts"]
    again = len(clerk.asked)
    story.say(f"Here it is resumed without its file, and asks {again} more sessions.")
    story.claim(
        "what was answered was not asked again",
        len(known) + again == 4 and clerk.asked[0] == before[-1],
    )
    story.claim("the program ended as if nothing had happened", len(drafts) == 3)
    story.note(asked_before=before, answered=len(known), asked_after=clerk.asked, exit_code=code)
    story.suggest(f"prose show {DRAFTS}", f"runs show {DRAFTS}")


def edit_and_recover(store: Store, story: Story, root: Path) -> None:
    """Scene: a coordinator is killed, a person edits its list of tasks, and another goes on."""
    story.begin("A coordinator is killed; a person's edit and its own work are taken up")
    root.mkdir()
    agent = start_agent(store.url, "fay", "coordinate", str(root), str(SESSION_S))
    asked, code = kill_in_session(agent, SHELF[1])
    tasks = root / "RALPH_TASKS.md"
    story.say(f"fay works in a project, and was killed at task {len(asked)} of 2.")
    story.claim("fay died of SIGKILL, in a session", code == -signal.SIGKILL)
    tasks.write_text(f"{tasks.read_text('utf-8')}- [ ] {SHELF[2]}\n", "utf-8")
    story.say(f"A person adds a line to {tasks.name}: {SHELF[2]}")
    clerk = Clerk()
    store.runs.use_executor(clerk)
    project = store.project(root)
    report = project.recover()
    story.say(f"Recovered from log and files: {', '.join(report.work)} was left.")
    with project.coordinate() as main:
        done = [result.task for result in main.go_on()]
    found = {task.title: task.status for task in project.tasks.list()}
    story.claim("the run that was left went on, and the edit was taken", done == ["t2", "t3"])
    story.claim(
        "every task was done, and the first was not asked for again",
        set(found.values()) == {"completed"} and not any(SHELF[0] in one for one in clerk.asked),
    )
    shown = tasks.read_text("utf-8").count("- [x]")
    story.claim(f"{tasks.name} shows all three as done", shown == len(SHELF) == len(found))
    story.note(exit_code=code, asked_before=asked, asked_after=clerk.asked, tasks=found, done=done)
    story.suggest("task list project/shop", f"runs show {report.work[0]}")


class Clerk(Scripted):
    """Answers for the agents of the program, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: list[str] = []

    def answer(self, call: Call, /) -> Answer:
        self.asked.append(call.prompt)
        return super().answer(call)


def refuse_and_retry(store: Store, story: Story) -> None:
    """Scene: a stale writer is refused, reads again, and succeeds."""
    story.begin("A conflict is refused, then retried")
    team, place = store.scope(TEAM), ("tickets", DISPUTED, "priority")
    seen, priority = team.revision, team.get(place)
    story.say(f"The lead reads {DISPUTED}: {priority}, at revision {seen}.")
    work_alone(start_agent(store.url, "cy", "escalate"))
    story.say(f"Meanwhile cy, another process, makes {DISPUTED} urgent.")
    refused: ConflictError | None = None
    try:
        team.set(place, "low", expected=seen)
    except ConflictError as conflict:
        refused = conflict
        story.say(f'The lead sets it to "low", expecting revision {seen}. Refused:')
        story.say(f"ConflictError: {conflict.message}")
        story.say(f"expected {conflict.expected}, actual {conflict.actual}")
    story.claim(
        "nothing of the stale write is stored",
        refused is not None
        and refused.expected == seen
        and refused.actual == seen + 1 == team.revision
        and team.get(place) == "urgent",
    )
    now = team.revision
    written = team.set(("tickets", DISPUTED, "note"), "called the customer", expected=now)
    story.say(f"The lead reads again: urgent. It adds a note, expecting {now}.")
    story.claim(f"accepted as revision {written}", written == now + 1)
    if refused is not None:
        story.note(expected=refused.expected, actual=refused.actual, written=written)
    words = f"set {TEAM} tickets.{DISPUTED}.priority low --expected {seen}"
    story.suggest(f"get {TEAM} tickets.{DISPUTED}", words)


def rewind(store: Store, story: Story) -> None:
    """Scene: a mistake, what it changed, and back again."""
    story.begin("State is rewound, diffed, and the rewind undone")
    team = store.scope(TEAM)
    good = team.state
    mark = team.checkpoint(BEFORE_MISTAKE)
    team.edit(call_everything_spam)
    bad = team.state
    changes = team.diff(mark)
    story.say(f'Checkpoint "{BEFORE_MISTAKE}"; then an agent calls everything spam.')
    story.say(f"The diff has {len(changes)} changes, among them:")
    for change in changes[:2]:
        story.say("  " + " ".join(change_cells(change)))
    back = team.restore(mark)
    story.claim(f"restored as revision {back}: no difference is left", team.diff(mark) == [])
    undone = team.undo()
    story.claim(f"undo, revision {undone}: the mistake is back", team.state == bad)
    again = team.undo()
    story.claim(f"undo of the undo, revision {again}: all is well", team.state == good)
    story.claim(
        "nothing was rewritten: every revision can still be read",
        team.at(mark.revision) == good and team.at(mark.revision + 1) == bad,
    )
    revisions = {"restored": int(back), "undone": int(undone), "redone": int(again)}
    story.note(changes=len(changes), **revisions)
    story.suggest(
        f'diff {TEAM} "{BEFORE_MISTAKE}" {mark.revision + 1}',
        f"log {TEAM} --limit 5",
        f"undo {TEAM}",
    )


@node
def mood(ctx: NodeContext, letter: str) -> str:
    """A node of the graph: how a letter sounds."""
    return "angry" if "!" in letter else "calm"


@node
def answer(ctx: NodeContext, mood: str) -> None:
    """A node of the graph: how it is answered."""
    ctx.setting("model", "large" if mood == "angry" else "small")
    ctx.message("system", f"The customer is {mood}.")


def recompute(store: Store, story: Story) -> None:
    """Scene: a graph of nodes, of which only what changed is computed."""
    story.begin("A graph is walked again: only what changed is computed")
    graph, chat = Graph("answers", [mood, answer]), store.conversation("letter")
    letters = ("Where is my parcel?", "Where is my parcel?", "Is it on its way?", "Send it now!")
    walks = [store.nodes.process(graph, chat, letter=letter) for letter in letters]
    counts = [walk.counts["computed"] for walk in walks]
    story.say(f"Four walks computed {', '.join(map(str, counts))} of 2 nodes.")
    story.claim("the same letter computes nothing", counts[1] == 0)
    story.claim(
        "another letter of the same mood is cut off after one node",
        walks[2].states["answer"].status == "cut off",
    )
    cause = store.nodes.why(graph, "answer", chat).cause.causes[0]
    story.say(f'The last answer was made anew because of the {cause.kind} "{cause.name}".')
    story.claim("the model follows the mood", walks[3].resolve().model == "large")
    story.note(computed=counts)
    story.suggest("nodes list", "nodes why answers answer conversation/letter")


def call_everything_spam(draft: Draft) -> None:
    for ticket in draft["tickets"].values():
        ticket["status"] = "spam"


def check_everything(store: Store, story: Story) -> None:
    """Scene: every byte is read and every link recomputed."""
    story.begin("Every byte is checked")
    report = store.check(read_all=True)
    story.say(f"{report.events} events in {report.streams} streams, digest {report.digest}")
    story.claim("every link holds, nothing is damaged", report.ok and report.events > 0)
    story.note(events=report.events, streams=report.streams, digest=report.digest)
    story.suggest("check --read-all", "scopes", "doctor")
