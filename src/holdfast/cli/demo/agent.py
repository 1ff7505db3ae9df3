"""One agent of the demo: a process of its own that works on the shared store.

It prints a JSON line for each item after the store has acknowledged it and before it goes on, so
whoever reads the pipe knows what must be there after any crash.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import holdfast
from holdfast.cli.demo import letters
from holdfast.cli.demo.story import DISPUTED, TEAM, judge, write_mail
from holdfast.draft import Draft
from holdfast.store import Store

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
        store.log.clock.sleep(THINKING_S)
        with store.commit() as commit:  # both or neither
            commit.scope(team).set(("tickets", ticket, "priority"), priority)
            commit.scope(team).set(("tickets", ticket, "status"), "triaged")
            commit.scope(team).increment("triaged")
            commit.scope(desk).append("notes", f"{ticket} is {priority}")
        tell(acknowledged=ticket)


def take_ticket(store: Store, name: str) -> str | None:
    """Returns a ticket that is now this agent's, None if none is open.

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
    """Imports mails from where the inbox stands; the team counts them in the same commit."""
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
    """Executes the run that replies to every ticket: a new one, or the one that a crash left."""
    letters.letters_at_once = int(at_once[0]) if at_once else 0
    tickets = sorted(store.scope(TEAM).state["tickets"])
    run = store.start(letters.reply, outbox, tickets, id=letters.REPLIES, if_exists="attach")
    tell(result=run.result())


def main(place: str, name: str, work: str, *rest: str) -> None:
    """Opens the store in this agent's name, waits for the word to begin, and does its work."""
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


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the demo was interrupted: nobody listens, and nothing is left to flush
