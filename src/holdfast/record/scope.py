"""A scope with its record: what `Store.scope` returns.

It is thin: each part of the record is a module of its own, which is handed the scope.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from holdfast import codec
from holdfast.arguments import check_flag, check_whole
from holdfast.errors import ConflictError, UsageError
from holdfast.event import CLOSED
from holdfast.levels import Levels
from holdfast.record import backlog
from holdfast.record import thing as things
from holdfast.record.arguments import check_text
from holdfast.record.book import Book
from holdfast.record.decision import Decision, Link
from holdfast.record.decisions import Decisions, IfExists
from holdfast.record.facts import Facts, put_away
from holdfast.record.memory import Memory
from holdfast.record.message import Message
from holdfast.record.messages import Messages
from holdfast.record.open_decision import OpenDecision
from holdfast.record.policy import check_effect
from holdfast.record.sessions import Status, status_of
from holdfast.record.tasks import Tasks
from holdfast.record.turns import OpenTurn
from holdfast.scope import Scope, Subscribers
from holdfast.wanted import Part, Proposal, Wanted

CLOSE_RETRIES = 100


class Recalled(Struct, frozen=True):
    """What an agent must know of its decisions when it begins: orders always, the rest by age."""

    orders: list[Decision]
    recent: list[Decision]


class RecordedScope(Scope):
    """A scope, and what was recorded in its stream besides its state."""

    def __init__(
        self,
        book: Book,
        level: str,
        id: str | None,
        *,
        levels: Levels,
        parent: Scope | None,
        subscribers: Subscribers,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(
            book.log,
            level,
            id,
            levels=levels,
            parent=parent,
            subscribers=subscribers,
            ttl_s=ttl_s,
        )
        self.book = book

    @property
    def status(self) -> Status:
        """What became of the session here: active, completed when it was closed, or crashed.

        It is crashed if a worker died in its session or in a turn, and nobody ended it since.
        """
        return status_of(self.book, self.name)

    # --- decisions -------------------------------------------------------------------------------

    def decide(
        self,
        decision: str,
        *,
        because: str | None = None,
        action: str | None = None,
        verify: object = None,
        act: object = None,
        alternatives: Sequence[str] = (),
        links: Sequence[Link | str | tuple[str, str]] = (),
        key: str | None = None,
        priority: int | str = 0,
        supersedes: str | None = None,
        standing: bool = False,
        if_exists: IfExists = "raise",
    ) -> OpenDecision:
        """Writes a decision down before its act; durable when it returns.

        `with scope.decide(…) as d:` is the block of the act; `d.outcome(…)` closes it. `verify` and
        `act` are functions registered with `@holdfast.verifier` and `@holdfast.act`, or their
        names: after a crash the one is asked whether it was done, and the other does it again if
        not. A `standing` order counts until it is superseded. The same `key` decides once.
        """
        return Decisions(self.book).open(
            self,
            decision,
            because=because,
            action=action,
            verify=verify,
            act=act,
            alternatives=alternatives,
            links=links,
            key=key,
            priority=priority,
            supersedes=supersedes,
            standing=standing,
            if_exists=if_exists,
        )

    def recall(self, *, recent: int = 20) -> Recalled:
        """Returns what counts here: all standing orders of this scope and of those above it, and
        the newest decisions of this scope, newest first (BOOT-8, BOOT-20)."""
        decisions = Decisions(self.book)
        orders = decisions.standing([scope.name for scope in self._upwards()])
        return Recalled(orders, decisions.recent(self, check_whole(recent, "recent")))

    @contextmanager
    def effect(self, name: str) -> Generator[None]:
        """The block of an effect: under a policy, one without an open decision is caught."""
        check_text(name, "an effect")
        check_effect(self.book, self, name)
        yield

    # --- facts -----------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """Claims about the outside world, with how to verify them and until when they count."""
        return Facts(self.book, self)

    # --- messages --------------------------------------------------------------------------------

    @property
    def messages(self) -> Messages:
        """What was said: a sequence to read from either end, and everything that changes it."""
        return Messages(self, self, self.book)

    def say(self, content: str, *, role: str = "user") -> Message:
        """Adds a message; durable when it returns. `messages.add` takes everything else."""
        return self.messages.add(role, content)

    def turn(self) -> OpenTurn:
        """Returns the block of a turn: `with chat.turn() as turn:`, then `turn.add(…)`."""
        return self.messages.turn()

    # --- tasks -----------------------------------------------------------------------------------

    @property
    def tasks(self) -> Tasks:
        """What is to be done here, by whom, in which order."""
        return Tasks(self.book, self)

    # --- working memory --------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """What an agent keeps at hand: files, notes, results, errors, settings."""
        return Memory(self.book, self, self._upwards)

    # --- parts -----------------------------------------------------------------------------------

    def close(self, *, keep: bool | None = None) -> int:
        """Ends the scope: it takes no more writes. Returns the new revision.

        Its open decisions and standing orders are closed as abandoned first, each in a commit of
        its own; tasks that are not closed are cancelled, and what was kept for the session is let
        go.
        See `Scope.close` for `keep`.
        """
        keep = self._levels.keeps(self.level) if keep is None else check_flag(keep, "keep")
        for _ in range(CLOSE_RETRIES):
            Decisions(self.book).abandon(self, "the scope was closed")
            backlog.end(self.book, self, "the scope was closed")
            if keep:
                self.memory.end("session")
            # Whatever another writer opens from here on makes the commit a conflict; what it opened
            # before is seen. Nothing is left open in a scope where nobody could ever close it.
            revision = self.revision
            if Decisions(self.book).left_in(self.name) or backlog.left_in(self.book, self.name):
                continue
            proposal = Proposal(CLOSED, codec.encode_plain({"keep": keep}))
            part = self._part((proposal,), revision, None, None)
            marks = put_away(self.book, self.name, keep=keep)
            with suppress(ConflictError):
                written = self._log.commit(Wanted((part,), marks=marks))
                self.subscribers.tell(part, written.before[0], written.after[0])
                return written.revision
        raise UsageError(
            f'scope "{self.name}" changed {CLOSE_RETRIES} times while it was being closed',
            hint="stop its other writers first",
        )

    def events_part(
        self,
        proposals: tuple[Proposal, ...],
        *,
        expected: int | None = None,
        key: str | None = None,
    ) -> Part:
        """Returns what a commit adds to this scope's stream to record several events."""
        return self._part(proposals, expected, key, None)

    def event_part(self, proposal: Proposal, key: str | None = None) -> Part:
        """Returns what a commit adds to this scope's stream to record an event."""
        return self._part((proposal,), None, key, None)

    def _commit_restored(self, part: Part, to: int | None) -> int:
        # Taking back one change of the state is no word about tasks: only a restore brings them.
        back = None if to is None else backlog.restored(self.book, self.name, to)
        if back is None:
            return super()._commit_restored(part, to)
        part = replace(part, proposals=(*part.proposals, back.proposal), key=back.key)
        written = things.append(self._log, back.events, back.number, part, marks=back.marks)
        self.subscribers.tell(part, written.before[0], written.after[0])
        return written.revision

    def _like(self, level: str, id: str | None, parent: Scope | None) -> Self:
        return type(self)(
            self.book,
            level,
            id,
            levels=self._levels,
            parent=parent,
            subscribers=self.subscribers,
        )
