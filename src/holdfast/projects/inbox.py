"""Messages to a project's coordinator; each is taken in the commit that uses it.

The inbox is that of `core/inbox.py`, with the owner `project/<id>`. There are five kinds:

    stop        the work pauses, and the coordinator switches to conversation
    interrupt   the work pauses, this is answered, and the work goes on
    steer       becomes part of the prompt of the next turn
    follow-up   becomes a task, done after the current work
    note        kept in working memory, without a pause (`ambient` in the inbox)
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from holdfast.backends.protocol import Lease
from holdfast.core import inbox as core_inbox
from holdfast.core.arguments import check_text
from holdfast.core.inbox import Inbox, InboxMessage
from holdfast.core.kernel import kernel_of
from holdfast.core.transaction import PendingCommit
from holdfast.errors import UsageError, show_value

if TYPE_CHECKING:
    from holdfast.store import Store

MessageKind = Literal["stop", "interrupt", "steer", "follow-up", "note"]
KINDS: tuple[MessageKind, ...] = ("stop", "interrupt", "steer", "follow-up", "note")
"""The kinds, most urgent first."""
_STORED: dict[str, str] = {"note": "ambient"}
_SHOWN: dict[str, MessageKind] = {"ambient": "note"}


class WaitingMessage:
    """A message to the coordinator. It waits until a commit takes it: `message.done(tx)`."""

    def __init__(self, message: InboxMessage, owner: str, lease: Lease | None) -> None:
        self.revision = message.revision
        """Its place in the inbox, and its identity."""
        self.kind: MessageKind = _SHOWN.get(message.kind, cast("MessageKind", message.kind))
        value: Any = message.value
        self.value: dict[str, Any] = value if isinstance(value, dict) else {"text": str(value)}
        self.text = str(self.value.get("text") or "")
        self.sender = message.sender
        self.time: datetime = message.time
        self._owner = owner
        self._lease = lease

    def done(self, tx: PendingCommit) -> None:
        """Takes the message in a commit that does what it asks for, fenced by the lease.

        If that commit fails, the message keeps waiting. If the message has been taken already, the
        commit raises ConflictError and writes nothing.
        """
        if self._lease is None:
            raise UsageError(
                "only the coordinator takes a message", hint="with project.coordinate() as main:"
            )
        core_inbox.take_in(tx, self._owner, self.revision, self._lease)

    def __repr__(self) -> str:
        return f"<WaitingMessage {self.revision} {self.kind} from {self.sender}>"


def send(
    store: Store, owner: str, kind: str, text: str, *, id: str | None = None, **more: Any
) -> int:
    """Adds a message to the inbox and returns its revision there; it is durable then."""
    if kind not in KINDS:
        raise UsageError(f"a message is one of {', '.join(KINDS)}, found {show_value(kind)}")
    if text or kind != "stop":
        check_text(text, "a message")
    value = {"text": text, **{name: one for name, one in more.items() if one}}
    return core_inbox.send(kernel_of(store).log, owner, _STORED.get(kind, kind), value, id=id)


def waiting(box: Inbox, owner: str, lease: Lease | None) -> list[WaitingMessage]:
    """Returns the waiting messages of an inbox: the most urgent first, of these the oldest."""
    box.look()
    return [WaitingMessage(message, owner, lease) for message in box.waiting()]


def is_taken(box: Inbox, revision: int) -> bool:
    """Returns whether a message has been taken."""
    box.look()
    return revision in box.taken
