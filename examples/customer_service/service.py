"""A customer service: profiles and tickets last, conversations expire, tools keep nothing.

    python examples/customer_service/service.py            # plain files and SQLite
    python examples/customer_service/service.py --postgresql URL --redis URL

| what | where | why |
| --- | --- | --- |
| profile, tickets | PostgreSQL, for good | other programs and later years need them |
| conversation | Redis, for two days | agents share it; nobody needs it later |
| state of a tool call | memory, `hf.scratch()` | it is of use to the call alone |

All that is a customer's is sealed with the customer's key, so it can be forgotten at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

import holdfast
from holdfast import Settings
from holdfast.store import JointCommit
from holdfast.subjects import ErasureReceipt

CONVERSATION_S = 2 * 24 * 3600.0
LEVELS = {"customer": "team"}


@holdfast.schema("customer", version=1)
class ProfileV1(msgspec.Struct):
    """What was known of a customer at first."""

    name: str
    tickets: int = 0


@holdfast.schema("customer", version=2)
class Profile(msgspec.Struct):
    """What is known of a customer: `sentiment` goes from -1 to 1."""

    name: str
    tickets: int = 0
    sentiment: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None = None


@holdfast.upgrade(Profile, 1)
def _add_sentiment(old: dict[str, Any]) -> dict[str, Any]:
    """Nothing is known of the sentiment of those who were there before."""
    return old | {"sentiment": None}


def open_desk(
    stores: Mapping[str, str], keys: str, *, agent: str, profile: type[Any] = Profile
) -> holdfast.Store:
    """Opens the store: conversations in one backend, everything else in another."""
    return holdfast.open(
        dict(stores),
        schemas=[profile],
        keys=keys,
        actor=agent,
        source="model",
        settings=Settings(levels=LEVELS),
    )


def customer(hf: holdfast.Store, email: str) -> holdfast.Scope[Any]:
    """Returns the scope of a customer; its id tells nobody who that is."""
    return hf.scope("customer", hf.subjects.pseudonym(email), subject=email)


def conversation(hf: holdfast.Store, email: str) -> holdfast.Scope[Any]:
    """Returns the customer's conversation, which ends two days after it began."""
    return hf.conversation(hf.subjects.pseudonym(email), ttl_s=CONVERSATION_S, subject=email)


def register(hf: holdfast.Store, email: str, name: str) -> None:
    """Begins the profile of a customer; a second call changes nothing."""
    customer(hf, email).set((), {"name": name, "tickets": 0}, key="registered")


def open_ticket(hf: holdfast.Store, email: str, title: str) -> str:
    """Opens a ticket and counts it, both or neither, whoever else does the same at this moment."""
    scope = customer(hf, email)

    def add(tx: JointCommit) -> str:
        pending = tx.scope(scope)
        pending.increment("tickets")
        return pending.tasks.add(title).id

    return hf.commit(add)  # called again if another agent was faster


def serve(hf: holdfast.Store, email: str, text: str, answer: Callable[[str], str]) -> str:
    """Answers one message: what the customer said is durable before anything else is done.

    If this process dies, the customer's words are there and the answer is not; the turn is marked
    as interrupted, and the next session goes on from it. That is all that can be lost.
    """
    chat = conversation(hf, email)
    with chat.messages.turn() as turn:
        with holdfast.provenance(source="human", actor="customer"):
            turn.add("user", text)
        with hf.scratch() as tool:  # gone with the block, and never stored
            tool.set("looked_up", {"name": customer(hf, email).get("name")})
            reply = answer(f"{tool['looked_up']['name']}: {text}")
        turn.add("assistant", reply)
    return reply


def resume(hf: holdfast.Store, email: str) -> list[tuple[str, str]]:
    """Returns what was said so far, for the next session: roles and texts."""
    hf.recover()
    return [(one.role, one.text or "") for one in conversation(hf, email).messages]


def rate(hf: holdfast.Store, email: str, sentiment: float) -> None:
    """Notes how a customer feels; what is not between -1 and 1 is a SchemaError."""
    customer(hf, email).set("sentiment", sentiment)


def forget(hf: holdfast.Store, email: str) -> ErasureReceipt:
    """Forgets a customer, in every backend; the receipt says what became of each record."""
    return hf.subjects.erase(email)


def main() -> None:
    """Shows all of it once."""
    parser = argparse.ArgumentParser(description="a customer service on two backends")
    parser.add_argument("--postgresql", default="sqlite:desk.db")
    parser.add_argument("--redis", default="desk-conversations")
    parser.add_argument("--keys", default="desk-keys")
    given = parser.parse_args()
    stores = {"conversation": given.redis, "*": given.postgresql}
    with open_desk(stores, given.keys, agent="agent-1") as hf:
        register(hf, "ada@example.org", "Ada")
        print(serve(hf, "ada@example.org", "my printer is on fire", lambda text: f"noted: {text}"))
        print("ticket", open_ticket(hf, "ada@example.org", "printer on fire"))
        rate(hf, "ada@example.org", -0.5)
        print(customer(hf, "ada@example.org").typed)
        for one in forget(hf, "ada@example.org").scopes:
            print(one.outcome, one.scope, one.events, "events")


if __name__ == "__main__":
    main()
