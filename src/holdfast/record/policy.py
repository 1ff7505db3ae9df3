"""The policy that nothing is done undecided: an effect without an open decision is caught.

An effect is covered by the decision in whose block it runs, or by one that this worker has open in
the same scope. Each that is not leaves the event `policy.breached` in the stream of its scope, so
that it can be found later (BOOT-46); the mode "refuse" then raises before the effect.
"""

from __future__ import annotations

import warnings
from typing import Literal, get_args

from holdfast import codec
from holdfast.errors import UndecidedError, UsageError, show_value
from holdfast.record.arguments import check_text
from holdfast.record.book import Book
from holdfast.record.within import unjournalled
from holdfast.scope import Scope
from holdfast.wanted import Part, Proposal, Wanted

BREACHED = "policy.breached"

Mode = Literal["off", "warn", "refuse"]


class UndecidedWarning(UserWarning):
    """An effect was not covered by an open decision; the policy "warn" lets it pass."""


class Policy:
    """What `store.policy(mode)` returns: it counts from then on, or for a block if used as one."""

    def __init__(self, book: Book, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise UsageError(
                f"a policy is one of {', '.join(get_args(Mode))}, found {show_value(mode)}"
            )
        self._book = book
        self._before = book.policy
        book.policy = mode

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        self._book.policy = self._before


def is_covered(book: Book, scope: Scope) -> bool:
    """Says whether an open decision stands behind what is done in this scope now."""
    if any(id in book.open_here for id in book.deciding.get()):
        return True
    return scope.name in book.open_here.values()


def check_effect(book: Book, scope: Scope, effect: str) -> None:
    """Call before an effect: records one that no open decision covers, and may refuse it."""
    mode = book.policy
    if mode == "off" or is_covered(book, scope):
        return
    said = {"effect": check_text(effect, "an effect"), "policy": mode, "worker": book.worker}
    part = Part(scope.name, (Proposal(BREACHED, codec.encode(said)),))
    with unjournalled():
        book.log.commit(Wanted((part,)))
    message = f'effect {show_value(effect)} in "{scope.name}" has no open decision'
    if mode == "refuse":
        raise UndecidedError(message, hint="decide() first, and do it inside the block")
    warnings.warn(message, UndecidedWarning, stacklevel=3)
