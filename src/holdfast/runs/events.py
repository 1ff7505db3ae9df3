"""The events of a run's journal, as decision 0013 lists them. Pure.

Each is a Struct whose fields are the event's data; `Raw` fields hold values encoded by `codec`.
Annotations are not postponed here: as text, each would be compiled when a journal is first read.
"""

from typing import Literal

from msgspec import Raw, Struct

from holdfast.core import codec, event

Effect = Literal["pure", "read", "idempotent", "effect", "txn"]
Status = Literal[
    "pending",
    "running",
    "waiting",
    "needs_attention",
    "cancelling",
    "completed",
    "failed",
    "cancelled",
]
Verdict = Literal["done", "not done", "unknown"]
Effects = Literal["live", "ask", "dry"]

EFFECTS: tuple[Effect, ...] = ("pure", "read", "idempotent", "effect", "txn")
SAFE = frozenset(("pure", "read"))
"""The classes that may be performed again, and at any point of a replay."""
ENDED = frozenset(("completed", "failed", "cancelled"))


ABSENT = Raw(b"")
"""The value of a field without a value: it is falsy, and is left out of the stored event."""


class Fault(Struct, frozen=True, omit_defaults=True, gc=False):
    """The error of a step, branch or run, from which `StepError` is made, live and in a replay."""

    kind: str
    message: str = ""
    data: Raw = ABSENT
    outcome: Literal["unknown", "not done"] = "unknown"
    traceback: str = ""


class Created(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run was asked for."""

    name: str
    inputs: Raw
    parent: str | None = None
    path: str | None = None
    when_parent_ends: str | None = None
    queue: str | None = None


class Claimed(Struct, frozen=True, omit_defaults=True, gc=False):
    """A worker became the run's owner."""

    worker: str
    epoch: int
    code: str | None = None  # the thumbprint of the run's function there


class Intended(Struct, frozen=True, omit_defaults=True, gc=False):
    """An operation was begun; its outcome will be another event."""

    path: str
    ordinal: int
    kind: str
    name: str
    effect: str
    attempt: int = 1
    key: str | None = None
    digest: str | None = None
    inputs: Raw = ABSENT
    verify: str | None = None
    due: int | None = None
    total: int | None = None
    child: str | None = None
    when_parent_ends: str | None = None
    displaced: bool = False
    label: str | None = None
    source: str | None = None  # where a front end has it from: a file and line, a node
    attempts: int = 1  # how many its step is given


class StepDone(Struct, frozen=True, omit_defaults=True, gc=False):
    """An operation has its value. Fields after `attempt` are empty if there was an `Intended`."""

    path: str
    value: Raw = ABSENT
    lost: str | None = None
    taken: tuple[int, ...] = ()
    attempt: int = 1
    ordinal: int = 0
    kind: str = ""
    name: str = ""
    effect: str = ""
    digest: str | None = None
    label: str | None = None
    source: str | None = None


class Failed(Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt raised; without `retry_at` it was the last."""

    path: str
    error: Fault
    attempt: int = 1
    retry_at: int | None = None
    ordinal: int = 0
    kind: str = ""
    name: str = ""
    effect: str = ""
    digest: str | None = None
    label: str | None = None
    source: str | None = None
    attempts: int = 1


class Settled(Struct, frozen=True, omit_defaults=True, gc=False):
    """Somebody judged an intent that had no outcome."""

    path: str
    verdict: Verdict
    by: str
    value: Raw = ABSENT
    reason: str = ""


class Refused(Struct, frozen=True, omit_defaults=True, gc=False):
    """An answer was taken from the inbox and does not fit the schema."""

    path: str
    taken: tuple[int, ...]
    reason: str


class Noted(Struct, frozen=True, omit_defaults=True, gc=False):
    """A warning that changes nothing."""

    path: str
    text: str


class Diverged(Struct, frozen=True, omit_defaults=True, gc=False):
    """The code asked for something that the journal does not allow: the run is parked."""

    path: str
    problem: str
    expected: str
    found: str
    source: str = ""


class Adopted(Struct, frozen=True, omit_defaults=True, gc=False):
    """A person accepts a divergence."""

    path: str
    problem: str
    by: str


class Suspended(Struct, frozen=True, omit_defaults=True, gc=False):
    """The owner suspended the run until a time, or until something wakes it."""

    reason: str
    until: int | None = None
    attention: bool = False  # parked: a person must look
    seen: int = 0  # the revision of the inbox that was taken into account
    children: tuple[str, ...] = ()  # the end of any of them wakes it


class Cancelling(Struct, frozen=True, omit_defaults=True, gc=False):
    """The owner saw that the run is to stop."""

    by: str = ""


class Forked(Struct, frozen=True, omit_defaults=True, gc=False):
    """The run began as a fork; the events before this one are its origin's."""

    origin: str
    effects: str
    signals: str
    children: str


class Ended(Struct, frozen=True, omit_defaults=True, gc=False):
    """The run is over."""

    status: Literal["completed", "failed", "cancelled"]
    value: Raw = ABSENT
    error: Fault | None = None


class Removed(Struct, frozen=True, gc=False):
    """The run was removed, like a scope (0025); later events are another run of the same id."""


TYPES: dict[type[Struct], str] = {
    Created: "run.created",
    Claimed: "run.claimed",
    Intended: "run.intended",
    StepDone: "run.done",
    Failed: "run.failed",
    Settled: "run.settled",
    Refused: "run.refused",
    Noted: "run.noted",
    Diverged: "run.diverged",
    Adopted: "run.adopted",
    Suspended: "run.suspended",
    Cancelling: "run.cancelling",
    Forked: "run.forked",
    Ended: "run.ended",
    Removed: event.REMOVED,
}
_KINDS: dict[str, type[Struct]] = {type: kind for kind, type in TYPES.items()}


def read(type: str, payload: bytes) -> Struct | None:
    """Decodes the event of a stored record; returns None for types that are not the journal's."""
    kind = _KINDS.get(type)
    return None if kind is None else codec.decode_as(payload, kind)
