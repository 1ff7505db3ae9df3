"""Every exception, named by what the caller can do about it.

A message says subject, expectation, finding and remedy, in lower case, without a final period.
Ids are attributes too, never only in the text. `hint` is the next thing to type or to change.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any


def show_value(value: object) -> str:
    """Returns what was found in place of an argument, for a message: short, whatever it is.

    Python refuses to write an int of more than 4300 digits, and an object may raise anything.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:79]}…"


def show_us(microseconds: int) -> str:
    """Returns a span of time for a message, in the largest unit that it has two of."""
    seconds = microseconds // 1_000_000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def show_error(error: BaseException) -> str:
    """Returns an error as text to store or to report: its type and what it says, whatever that is.

    An exception of somebody else's may raise when it is asked what it says.
    """
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}"


NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
CLOSE_SOME = "close some files or connections, or raise the limit (ulimit -n)"


_STORED = re.compile("\x10(?:([0-9a-f]{4})|#[0-9a-f]{64})")


def show_stored(text: str) -> str:
    """Returns a text in which the stored names of scopes are as people read them.

    A character that names cannot hold is shown as in a Python string, and the digest of a long id
    as an ellipsis (decision 0034 has the escapes).
    """
    if "\x10" not in text:
        return text

    def shown(found: re.Match[str]) -> str:
        digits = found.group(1)
        return "…" if digits is None else repr(chr(int(digits, 16)))[1:-1]

    return _STORED.sub(shown, text)


class HoldfastError(Exception):
    """The base of every error that holdfast raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = show_stored(message)
        super().__init__(message)
        self.message = message
        self.hint = hint if hint is None else show_stored(hint)

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


class SchemaError(UsageError):
    """Data is not what its schema says: nothing was written. `misfits` has every place.

    Each has a `path`, what was `expected` there and what was `found`.
    """

    def __init__(
        self, message: str, *, misfits: Sequence[Any] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.misfits = tuple(misfits)


class SecretError(UsageError):
    """What was to be written looks like a secret; `kinds` says which, and never what it is."""

    def __init__(
        self, message: str, *, stream: str, kinds: tuple[str, ...], hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream
        self.kinds = kinds


class UndecidedError(UsageError):
    """The store's policy is that nothing is done undecided: decide first."""


class UntrustedError(UsageError):
    """A configuration file names commands, and its user has not trusted it: read it, then do."""


class ProgramError(UsageError):
    """A `.prose` program has errors: `problems` has every one, with its place. Nothing was run."""

    def __init__(self, file: str, problems: Sequence[Any], shown: str) -> None:
        count = f"{len(problems)} errors" if len(problems) > 1 else "an error"
        super().__init__(f"{file} has {count}; nothing was run\n{shown}")
        self.file = file
        self.problems = tuple(problems)


class NotFoundError(HoldfastError):
    """No such store, scope, key, checkpoint or revision."""

    exit_code = 3


class ExpiredError(NotFoundError):
    """The scope was begun with a lifetime, which is over: begin another one."""

    def __init__(self, stream: str, *, expires_us: int) -> None:
        ended = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=expires_us)
        super().__init__(
            f'scope "{stream}" expired at {ended.isoformat(timespec="milliseconds")}, '
            "as it was begun to do",
            hint="begin a scope with another id",
        )
        self.stream = stream
        self.ended = ended


class LetGoError(NotFoundError):
    """What is asked for was let go of on purpose: its bytes are gone, and no copy is kept here."""

    def __init__(self, stream: str, revision: int) -> None:
        super().__init__(
            f'revision {revision} of "{stream}" cannot be read: what it held was let go of',
            hint="hf.retention.past() and `holdfast retain --log` say when and why; a backup may "
            "have it",
        )
        self.stream = stream
        self.revision = revision


class ErasedError(NotFoundError):
    """It belongs to a subject that was erased: its key is destroyed, and nothing brings it back.

    `subject` is the random id that the subject had.
    """

    def __init__(self, subject: str, what: str = "this data") -> None:
        super().__init__(
            f'{what} is of subject "{subject}", which was erased',
            hint="a person who comes back is a new subject: begin a scope with another id",
        )
        self.subject = subject


class HeldError(UsageError):
    """A legal hold keeps it: nothing was erased. End the hold first, if it is over."""


class KeyMissingError(HoldfastError):
    """The key of sealed data is not where keys are looked for, and was not destroyed on purpose.

    `subject` is the random id of whose data it is.
    """

    exit_code = 21

    def __init__(self, subject: str, keys: str, name: str | None = None, count: int = 1) -> None:
        """`name` is who was asked for, if nobody can know whether the `count` missing keys are."""
        problem = f'the key of subject "{subject}" is not in {keys}, and the subject was not erased'
        if name is not None:
            problem = (
                f'there is no key of "{name}" in {keys}, and keys are missing there '
                f'({count}), such as that of "{subject}", whose data is in this store'
            )
        super().__init__(
            problem,
            hint="keys=… or HOLDFAST_KEYS say where keys are; restore them from a backup of their "
            "own if they are lost",
        )
        self.subject = subject


class StoreKeyError(HoldfastError):
    """The store and the key that it was opened with do not fit: nothing was written.

    It is encrypted and no key or another one was given, or it is not and one was.
    """

    exit_code = 22


class ExistsError(HoldfastError):
    """The name is taken: choose another one, or open what is there."""

    exit_code = 4


class ConflictError(HoldfastError):
    """Somebody else committed first: read again, then retry."""

    exit_code = 5

    def __init__(
        self,
        message: str,
        *,
        stream: str,
        expected: int,
        actual: int,
        paths: Sequence[tuple[str | int, ...]] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint or "read it again and retry")
        self.stream = stream
        self.expected = expected
        self.actual = actual
        self.paths = tuple(paths)
        """The places that a commit had read and somebody changed; none if a revision was asked."""


class ClosedError(HoldfastError):
    """The scope was closed and takes no more writes: open another one."""

    exit_code = 6

    def __init__(self, message: str, *, stream: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream


class LimitError(HoldfastError):
    """A quota, or a disk that is nearly full, refuses a write: let go of something, then retry.

    Nothing was written. `stream` is the scope, None for a large value alone. Or a statement of SQL
    takes more time, rows or bytes than it may: ask for less, or raise its limit.
    """

    exit_code = 21

    def __init__(self, message: str, *, stream: str | None = None, hint: str | None = None) -> None:
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
    """The backend cannot serve now (disk full, busy, no permission): fix that, then retry.

    `outcome_known` is False if a commit was under way and may or may not be there: open the store
    again and look (an idempotency key answers that question without a doubt).
    """

    exit_code = 8

    def __init__(
        self, message: str, *, outcome_known: bool = True, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.outcome_known = outcome_known


class GitError(UnavailableError):
    """The git command is not there, or could not do what it was asked for; `code` is its own."""

    def __init__(self, message: str, *, code: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class FilesTakenError(UnavailableError):
    """Files of the store were removed, replaced or moved while it was open: put them back.

    The handle is dead: it could only write where nobody would find it. `rescued` is the folder with
    what it still held, None if that needed no rescue or could not be written; the text says which.
    """

    def __init__(
        self,
        message: str,
        *,
        rescued: str | None = None,
        outcome_known: bool = True,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, outcome_known=outcome_known, hint=hint)
        self.rescued = rescued


def unloaded(what: str, exc: OSError) -> UnavailableError:
    """Returns the error for a module that is needed now and could not be read."""
    hint = CLOSE_SOME if exc.errno in NO_DESCRIPTORS else "look whether holdfast is installed whole"
    return UnavailableError(f"{what} cannot be loaded: {exc.strerror}", hint=hint)


class CorruptError(HoldfastError):
    """Stored bytes break the contract: keep a copy, run `holdfast check`, then salvage."""

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


class OtherStoreError(HoldfastError):
    """A stored position belongs to another store: say where to go on in this one."""

    exit_code = 16


class LostCommitsError(CorruptError):
    """The store lacks commits that it had acknowledged.

    A server lost them by a failover or a restart: the store's handle is dead, open it again to go
    on from what is there. What was evicted raises this whenever it is asked for; all else can be
    used. Of a SQLite store somebody removed the WAL, or put an older copy in its place: bring back
    the newest copy, or delete the witness to go on with what is there.
    """


class StepError(HoldfastError):
    """A step or a branch of a run failed for good; the same live and replayed.

    `kind` is the name of the exception's class, `text` its message, `data` what it carried, and
    `traceback` the text of its traceback. In the process where it was raised it is the `__cause__`.
    `outcome` says what is known of an effect that failed: "not done", or "unknown".
    """

    exit_code = 11

    def __init__(
        self,
        kind: str,
        text: str,
        data: object = None,
        *,
        path: str = "",
        outcome: str = "unknown",
        traceback: str = "",
    ) -> None:
        super().__init__(f'step "{path}" failed: {kind}: {text}' if path else f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.data = data
        self.path = path
        self.outcome = outcome
        self.traceback = traceback


class RunFailedError(HoldfastError):
    """A run ended with an error of its own (`kind`, `text`, `data`): look, then fork it.

    `traceback` says where the program failed, also in another process and after a restart. In the
    process where it failed, the exception itself is the `__cause__`.
    """

    exit_code = 12

    def __init__(
        self, run: str, kind: str, text: str, data: object = None, *, traceback: str = ""
    ) -> None:
        super().__init__(f'run "{run}" failed: {kind}: {text}')
        self.run = run
        self.kind = kind
        self.text = text
        self.data = data
        self.traceback = traceback


class NeedsAttentionError(HoldfastError):
    """A run is parked and waits for a person: settle, adopt or fork it, then resume it."""

    exit_code = 13

    def __init__(self, run: str, reason: str, *, path: str = "", hint: str | None = None) -> None:
        super().__init__(f'run "{run}" needs attention: {reason}', hint=hint)
        self.run = run
        self.reason = reason
        self.path = path


class RunCancelledError(HoldfastError):
    """A run was cancelled: it has no result."""

    exit_code = 14

    def __init__(self, run: str) -> None:
        super().__init__(f'run "{run}" was cancelled')
        self.run = run


class StillRunningError(HoldfastError):
    """A run has not ended within the time given: wait longer, or ask again later."""

    exit_code = 15

    def __init__(self, run: str, status: str) -> None:
        super().__init__(f'run "{run}" is still {status}', hint="wait longer, or ask again later")
        self.run = run
        self.status = status


class NodeError(HoldfastError):
    """The function of a node raised: look at what it says, then process the graph again.

    `kind` is the name of the exception's class, `text` its message, `data` what it carried; the
    same for a failure that was kept.
    """

    exit_code = 17

    def __init__(self, graph: str, node: str, kind: str, text: str, data: object = None) -> None:
        super().__init__(f'node "{node}" of graph "{graph}" failed: {kind}: {text}')
        self.graph = graph
        self.node = node
        self.kind = kind
        self.text = text
        self.data = data


class UpgradeError(HoldfastError):
    """Stored data cannot be brought to another version of its schema: add or correct the step.

    What is stored is unchanged. `misfits` has every place where the result is not what the type
    says, if that is what went wrong.
    """

    exit_code = 18

    def __init__(
        self,
        message: str,
        *,
        schema: str,
        start: int,
        end: int,
        where: str,
        misfits: Sequence[Any] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.schema = schema
        self.start = start
        self.end = end
        self.where = where
        self.misfits = tuple(misfits)


class NewerSchemaError(HoldfastError):
    """Stored data has a newer schema than this program, or one that it has not: run the newer one.

    `name` says what it is about, `stored` is its version, `known` the program's, 0 if it has none.
    """

    exit_code = 19

    def __init__(
        self, message: str, *, name: str, stored: int, known: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.stored = stored
        self.known = known


class ProjectionError(HoldfastError):
    """A handler of a projection failed at an event: correct the handler.

    The events are as they were, and so is the state up to the event before.
    """

    exit_code = 20

    def __init__(
        self,
        message: str,
        *,
        projection: str,
        stream: str,
        revision: int,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.projection = projection
        self.stream = stream
        self.revision = revision
