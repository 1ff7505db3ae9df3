"""T19: made-up credentials of every kind in every kind of field of a store that redacts.

One point is one store, of one of the five kinds by turns: 7 credentials of each of the kinds that
can be found, in state, messages, tool results, tasks, facts, decisions, events, large values,
input, output and error of runs; and 2,000 ordinary texts beside them. At least 99 of 100
credentials must be in no byte of the store, and less than one ordinary text in a thousand may be
changed. Cases are texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast import Context, RunFailedError, Settings, Store
from holdfast.core.commit import CommitResult, ProposedCommit
from holdfast.core.log import Log
from tests.canaries import _files
from tests.secret_texts import credentials, ordinary, secret_part
from tests.servers.kinds import KINDS, url_of
from tests.torture.erasure_plants import nothing, replaced
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t18_erasure import as_stored

OF_EACH_KIND = 7
ORDINARY = 2_000
RUNS_EVERY = 40


@holdfast.run(name="t19.echo")
def echo(ctx: Context, given: str) -> str:
    return given


@holdfast.run(name="t19.fail")
def fail(ctx: Context, given: str) -> str:
    raise ValueError(f"cannot use {given}")


def write(hf: Store, number: int, text: str) -> None:
    """Writes a text into one of the kinds of fields."""
    chat = hf.conversation("c")
    if number % RUNS_EVERY == 0:
        hf.runs.start(echo, text, id=f"e{number}").result(timeout=60)
        try:
            hf.runs.start(fail, text, id=f"f{number}").result(timeout=60)
        except RunFailedError:
            return
    with hf.commit() as tx:
        tx.scope(chat).set(("joint", str(number)), text)
    ways: list[Callable[[], object]] = [
        lambda: chat.set(("state", str(number)), text),
        lambda: chat.append("list", {"deep": [text]}),
        lambda: chat.messages.add("user", text),
        lambda: chat.messages.add("tool", text, tool_call_id="1"),
        lambda: chat.messages.add("tool", f"{'y ' * 40_000} {text}"),
        lambda: chat.tasks.add(text),
        lambda: chat.facts.state(f"f{number}", text, about=text),
        lambda: chat.decide(text, because=text, key=f"d{number}"),
        lambda: chat.record("seen", {"what": text}, unchecked=True),
        lambda: chat.set(("large", str(number)), f"{'x ' * 40_000} {text}"),
    ]
    ways[number % len(ways)]()


def trial(point: Point) -> int:
    kind = "files" if point.plant else KINDS[point.number % len(KINDS)]
    rng = point.random
    given = [(name, text) for name, text in credentials(rng, OF_EACH_KIND)]
    texts = [ordinary(rng) for _ in range(ORDINARY)]
    url = url_of(kind, point.place / "store", "s")
    (point.place / "store").mkdir()
    with PLANTS[point.plant](), holdfast.open(url, settings=Settings(secrets="redact")) as hf:
        for number, (_, text) in enumerate(given):
            write(hf, number, text)
        hf.team("ordinary").update({str(at): text for at, text in enumerate(texts)})
        data = as_stored(hf) + b"".join(one for _, one in _files([point.place / "store"], set()))
        kept = hf.team("ordinary").state.to_dict()
    missed = [
        text
        for name, text in given
        if json.dumps(secret_part(name, text), ensure_ascii=False)[1:-1].encode() in data
    ]
    wrong = [text for at, text in enumerate(texts) if kept[str(at)] != text]
    if len(missed) * 100 > len(given):
        raise Broken(f"{kind}: {len(missed)} of {len(given)} credentials are stored: {missed[:3]}")
    if len(wrong) * 1000 >= len(texts):
        raise Broken(f"{kind}: {len(wrong)} of {len(texts)} ordinary texts changed: {wrong[:3]}")
    return len(given) + len(texts)


def redacts_after_the_write() -> Any:
    """A commit is written first, and looked through then."""
    real = Log.commit

    def late(self: Log, proposed: ProposedCommit) -> CommitResult:
        redactor, self.redactor = self.redactor, None
        try:
            return real(self, proposed)
        finally:
            self.redactor = redactor

    return replaced(Log, "commit", late)


PLANTS: dict[str, Callable[[], Any]] = {
    "": nothing,
    "redacts-after-the-write": redacts_after_the_write,
}
PROGRAMMES = (
    Programme(
        "t19-secrets",
        "of made-up credentials 99 of 100 reach no disk, and less than 1 text in 1,000 is harmed",
        trial,
        share=5,
        points=25,
        turns=5,
        plants={"redacts-after-the-write": 1},
    ),
)
