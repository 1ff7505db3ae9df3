"""One agent of the demo: a separate process that works on the shared store.

It prints a JSON line for each item after the store has acknowledged it and before it goes on. So
the reader of the pipe knows what must be in the store after any crash.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.agents import Answer, Call, Scripted
from holdfast.clock import SystemClock
from holdfast.core.draft import Draft
from holdfast.core.intent import Verdict
from holdfast.prose import gather_text, start
from holdfast.runs import Begun
from holdfast.store import Store

TEAM = "team/support"
INBOX = "conversation/inbox"
MORNING = "morning"
BEFORE_MISTAKE = "before the clean-up"
DISPUTED = "T-03"
SUBJECTS = [
    "parcel arrived broken",
    "cannot sign in",
    "where is my refund",
    "invoice has the wrong name",
    "app crashes on start",
    "please delete my account",
    "charged twice",
    "colour is not as shown",
    "delivery is late",
    "gift card does not work",
    "how do I change my address",
    "the box was empty",
]
_PRIORITIES = {
    "broken": "high",
    "crashes": "high",
    "charged": "urgent",
    "refund": "high",
    "empty": "high",
    "delete": "urgent",
}


def opening_state() -> dict[str, Any]:
    """Returns the team's state in the morning: every ticket open."""
    tickets = {
        f"T-{number:02}": {"subject": subject, "status": "open"}
        for number, subject in enumerate(SUBJECTS, 1)
    }
    return {"tickets": tickets, "triaged": 0, "mails": 0}


def judge(subject: str) -> str:
    """Returns the priority that an agent gives a ticket; a model would be asked here."""
    for word, priority in _PRIORITIES.items():
        if word in subject:
            return priority
    return "normal"


def write_mail(number: int) -> dict[str, Any]:
    """Returns one mail of the import."""
    return {"number": number, "text": f"mail {number}: {SUBJECTS[number % len(SUBJECTS)]}"}


# The run of the demo: it sends a letter for each ticket to an outbox that knows nothing of runs.
#
# The outbox stands for the outside world: a file to which each letter is appended. Sending is an
# `effect`, so its intent is written down first; after a crash the verifier looks into the outbox.

REPLIES = "replies"
WRITING_S = 60.0
letters_at_once = 1 << 30
"""After so many letters this process sleeps for a long time, so that it can be killed there."""


def read_outbox(path: str) -> list[dict[str, Any]]:
    """Returns the letters that were sent, oldest first; an incomplete line is no letter."""
    if not Path(path).exists():
        return []
    lines = Path(path).read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@holdfast.verifier
def was_sent(begun: Begun) -> Verdict:
    """Answers whether the letter of this key is in the outbox."""
    sent = {letter["key"] for letter in read_outbox(begun.inputs["outbox"])}
    return holdfast.Done(begun.inputs["ticket"]) if begun.key in sent else holdfast.NotDone()


@holdfast.step(effect="effect", verify=was_sent)
def send(ctx: Any, outbox: str, ticket: str) -> str:
    """Sends one letter, and reports it at once."""
    line = json.dumps({"key": ctx.key, "ticket": ticket}) + "\n"
    file = os.open(outbox, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    print(json.dumps({"acknowledged": ticket}), flush=True)
    if len(read_outbox(outbox)) == letters_at_once:
        SystemClock().sleep(WRITING_S)
    return ticket


@holdfast.run(name="demo:reply")
def reply(ctx: Any, outbox: str, tickets: list[str]) -> int:
    """Replies to every ticket."""
    return len([send(outbox, ticket) for ticket in ctx.each(tickets)])


DRAFTS = "drafts"
PROGRAM = """\
agent clerk:
  model: haiku
  prompt: "You write short letters."
const tone = session: clerk
  prompt: "Which tone fits a late parcel?"
let drafts = repeat 3 as i:
  session: clerk
    prompt: "Draft letter {i}."
    context: tone
output drafts = drafts
"""
SLOW = "Draft letter 1"
"""The session that an agent is killed in."""


class Clerk(Scripted):
    """Answers for the agents of the program, and tells each question."""

    def answer(self, call: Call, /) -> Answer:
        tell(acknowledged=call.prompt)
        return super().answer(call)


def run_program(store: Store, delay_s: str) -> None:
    """Runs the program, slowly at one place."""
    store.runs.use_executor(Clerk({"sessions": [{"match": SLOW, "delay": float(delay_s)}]}))
    run = start(store, gather_text(PROGRAM, "drafts.prose"), id=DRAFTS)
    tell(result=run.result())


SHELF = ("measure the wall", "put up the shelf", "sweep the floor")
"""The tasks of a project; an agent is killed while it works on the second."""


def coordinate(store: Store, root: str, delay_s: str) -> None:
    """Coordinates a project: adds its tasks, and works on them, slowly at one."""
    store.runs.use_executor(Clerk({"sessions": [{"match": SHELF[1], "delay": float(delay_s)}]}))
    with store.project(root).coordinate() as main:
        for title in SHELF[:2]:
            main.tasks.add(title)
        for result in main.go_on():
            tell(result=result.task)


RETRIES = 1000
THINKING_S = 0.02


def tell(**facts: Any) -> None:
    """Writes a line to the pipe at once."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def triage(store: Store, name: str) -> None:
    """Takes open tickets one by one until there are none, together with the other agents."""
    team = store.scope(TEAM)
    desk = store.conversation(f"desk-{name}", parent=team)
    while (ticket := take_ticket(store, name)) is not None:
        priority = judge(team.state["tickets"][ticket]["subject"])
        SystemClock().sleep(THINKING_S)
        with store.commit() as commit:  # both or neither
            commit.scope(team).set(("tickets", ticket, "priority"), priority)
            commit.scope(team).set(("tickets", ticket, "status"), "triaged")
            commit.scope(team).increment("triaged")
            commit.scope(desk).append("notes", f"{ticket} is {priority}")
        tell(acknowledged=ticket)


def take_ticket(store: Store, name: str) -> str | None:
    """Takes an open ticket and returns its id; None if none is open.

    Two agents may see the same open ticket; one commit wins, and the other agent's edit runs again
    on the newer state, where it finds another ticket.
    """
    taken: list[str] = []

    def take(draft: Draft) -> None:
        taken.clear()
        for id, ticket in draft["tickets"].items():
            if ticket["status"] == "open":
                taken.append(id)
                break
        if taken:
            draft["tickets"][taken[0]]["status"] = "taken"
            draft["tickets"][taken[0]]["owner"] = name

    store.scope(TEAM).edit(take, retries=RETRIES)
    return taken[0] if taken else None


def import_mails(store: Store, inbox_name: str, count: int) -> None:
    """Imports the mails that the inbox lacks; the team's count is part of each commit."""
    team, inbox = store.scope(TEAM), store.scope(inbox_name)
    done = len(inbox.state.get("mails", ()))
    tell(resumed_at=done)
    for number in range(done + 1, count + 1):
        with store.commit() as commit:
            commit.scope(inbox).append("mails", write_mail(number))
            commit.scope(team).increment("mails")
        tell(acknowledged=number)


def escalate(store: Store) -> None:
    """Makes the disputed ticket urgent."""
    revision = store.scope(TEAM).set(("tickets", DISPUTED, "priority"), "urgent")
    tell(acknowledged=DISPUTED, revision=revision)


def answer_all(store: Store, outbox: str, *at_once: str) -> None:
    """Starts the run that replies to every ticket, or goes on with the one a crash left."""
    global letters_at_once
    letters_at_once = int(at_once[0]) if at_once else 0
    tickets = sorted(store.scope(TEAM).state["tickets"])
    run = store.runs.start(reply, outbox, tickets, id=REPLIES, if_exists="attach")
    tell(result=run.result())


def main(place: str, name: str, work: str, *rest: str) -> None:
    """Opens the store in this agent's name, waits for the signal to begin, and does its work."""
    with holdfast.open(place, create=False, actor=name) as store:
        tell(ready=name)
        sys.stdin.readline()
        if work == "triage":
            triage(store, name)
        elif work == "import":
            import_mails(store, rest[0], int(rest[1]))
        elif work == "escalate":
            escalate(store)
        elif work == "reply":
            answer_all(store, *rest)
        elif work == "program":
            run_program(store, *rest)
        elif work == "coordinate":
            coordinate(store, *rest)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the demo was interrupted: nobody listens, and nothing is left to flush
