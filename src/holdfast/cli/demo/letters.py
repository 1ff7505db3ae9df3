"""The run of the demo: a letter for each ticket, sent to an outbox that knows nothing of runs.

The outbox stands for the outside world: a file to which each letter is appended. Sending is an
`effect`, so its intent is written down first; after a crash the verifier looks into the outbox.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import holdfast
from holdfast.clock import SystemClock
from holdfast.intent import Verdict
from holdfast.runs import Begun

REPLIES = "replies"
THINKING_S = 60.0

letters_at_once = 1 << 30
"""After so many letters this process thinks for a long time: whoever is to kill it then will."""


def read_outbox(path: str) -> list[dict[str, Any]]:
    """Returns the letters that left, oldest first; a torn one did not."""
    if not Path(path).exists():
        return []
    lines = Path(path).read_text("utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@holdfast.verifier
def was_sent(begun: Begun) -> Verdict:
    """Looks whether the letter of this key is in the outbox."""
    sent = {letter["key"] for letter in read_outbox(begun.inputs["outbox"])}
    return holdfast.Done(begun.inputs["ticket"]) if begun.key in sent else holdfast.NotDone()


@holdfast.step(effect="effect", verify=was_sent)
def send(ctx: Any, outbox: str, ticket: str) -> str:
    """Sends one letter, and says so at once."""
    line = json.dumps({"key": ctx.key, "ticket": ticket}) + "\n"
    file = os.open(outbox, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    print(json.dumps({"acknowledged": ticket}), flush=True)
    if len(read_outbox(outbox)) == letters_at_once:
        SystemClock().sleep(THINKING_S)
    return ticket


@holdfast.run(name="demo:reply")
def reply(ctx: Any, outbox: str, tickets: list[str]) -> int:
    """Replies to every ticket."""
    return len([send(outbox, ticket) for ticket in ctx.each(tickets)])
