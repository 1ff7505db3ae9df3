"""Every exception, named by what the caller can do about it.

A message says subject, expectation, finding and remedy, in lower case, without a final period.
Ids are attributes too, never only in the text. `hint` is the next thing to type or to change.
"""

from __future__ import annotations


def show_value(value: object) -> str:
    """Returns what was found in place of an argument, for a message: short, whatever it is.

    Python refuses to write an int of more than 4300 digits, and an object may raise anything.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:79]}…"


class HoldfastError(Exception):
    """The base of every error that holdfast raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(HoldfastError):
    """A bug in the calling code: a bad argument, a closed store, a value that cannot be stored."""

    exit_code = 2


class ValueDomainError(UsageError):
    """A value outside the documented domain; `path` says where inside the value."""

    def __init__(
        self, message: str, *, path: tuple[str | int, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class NotFoundError(HoldfastError):
    """No such store, scope, key, checkpoint or revision."""

    exit_code = 3


class ExistsError(HoldfastError):
    """The name is taken: choose another one, or open what is there."""

    exit_code = 4


class ConflictError(HoldfastError):
    """Somebody else committed first: read again, then retry."""

    exit_code = 5

    def __init__(
        self, message: str, *, stream: str, expected: int, actual: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint or "read it again and retry")
        self.stream = stream
        self.expected = expected
        self.actual = actual


class ClosedError(HoldfastError):
    """The scope was closed and takes no more writes: open another one."""

    exit_code = 6

    def __init__(self, message: str, *, stream: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream


class LeaseLostError(HoldfastError):
    """Another worker has the lease: stop, write nothing more under it."""

    exit_code = 7

    def __init__(self, message: str, *, lease: str, epoch: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.lease = lease
        self.epoch = epoch


class UnavailableError(HoldfastError):
    """The backend cannot serve now (disk full, busy, no permission): mend that, then retry.

    `outcome_known` is False if a commit was under way and may or may not be there: open the store
    again and look (an idempotency key answers that question without a doubt).
    """

    exit_code = 8

    def __init__(
        self, message: str, *, outcome_known: bool = True, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.outcome_known = outcome_known


class CorruptError(HoldfastError):
    """Stored bytes break the contract: stop, keep a copy, run `holdfast check`."""

    exit_code = 9

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        stream: str | None = None,
        revision: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint or 'copy the store away and run "holdfast check"')
        self.where = where
        self.stream = stream
        self.revision = revision


class FormatError(HoldfastError):
    """Written by a newer holdfast, or no holdfast store at all: upgrade, or look elsewhere."""

    exit_code = 10


class LostCommitsError(CorruptError):
    """The server has lost commits that it had acknowledged, by a failover or a restart.

    The store's handle is dead: whoever opens it again goes on from what is there.
    """
