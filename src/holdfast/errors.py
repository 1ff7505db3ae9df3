"""Every exception, named by what the caller can do about it.

A message gives subject, expectation, finding and remedy, in lower case, without a final period.
Ids are attributes as well, never only in the text. `hint` says what to type or change next.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any


def show_value(value: object) -> str:
    """Returns a short text for any value that was found in place of an argument.

    `repr` may fail: Python refuses an int of more than 4300 digits, and an object may raise.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:79]}…"


def show_us(microseconds: int) -> str:
    """Returns a span of time as text, in the largest unit of which it has at least two."""
    seconds = microseconds // 1_000_000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def show_error(error: BaseException) -> str:
    """Returns an error as text to store or report: its type and its message.

    The `__str__` of a foreign exception may itself raise.
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
    """Returns a text with the stored names of scopes in it made readable.

    A character that names cannot hold is shown as in a Python string, and the digest of a long id
    as an ellipsis (decision 0034 defines the escapes).
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
    """A value outside the documented domain; `path` is the place inside the value."""

    def __init__(
        self, message: str, *, path: tuple[str | int, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class SchemaError(UsageError):
    """Data does not fit its schema: nothing was written.

    `misfits` has every place, each with a `path`, what was `expected` there and what was `found`.
    """

    def __init__(
        self, message: str, *, misfits: Sequence[Any] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.misfits = tuple(misfits)


class SecretError(UsageError):
    """A write was refused because it looks like a secret; `kinds` names its kinds only."""

    def __init__(
        self, message: str, *, stream: str, kinds: tuple[str, ...], hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream
        self.kinds = kinds


class UndecidedError(UsageError):
    """The store's policy refuses effects without an open decision: decide first."""


class UntrustedError(UsageError):
    """A configuration file with commands is not trusted by this user: read it, then trust it."""


class ProgramError(UsageError):
    """A `.prose` program has errors: `problems` lists them with their places. Nothing was run."""

    def __init__(self, file: str, problems: Sequence[Any], shown: str) -> None:
        count = f"{len(problems)} errors" if len(problems) > 1 else "an error"
        super().__init__(f"{file} has {count}; nothing was run\n{shown}")
        self.file = file
        self.problems = tuple(problems)


class NotFoundError(HoldfastError):
    """No such store, scope, key, checkpoint or revision."""

    exit_code = 3


class ExpiredError(NotFoundError):
    """The lifetime of the scope is over: begin another scope."""

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
    """Retention let go of this data on purpose: its bytes are gone, and the store has no copy."""

    def __init__(self, stream: str, revision: int) -> None:
        super().__init__(
            f'revision {revision} of "{stream}" cannot be read: what it held was let go of',
            hint="hf.retention.past() and `holdfast retain --log` say when and why; a backup may "
            "have it",
        )
        self.stream = stream
        self.revision = revision


class ErasedError(NotFoundError):
    """The data belongs to a subject that was erased: its key is destroyed, for good.

    `subject` is the random id of the subject; where a write in the subject's name was refused, that
    name.
    """

    def __init__(self, subject: str, what: str = "this data", *, hint: str | None = None) -> None:
        super().__init__(
            f'{what} is of subject "{subject}", which was erased',
            hint=hint or "a person who comes back is a new subject: begin a scope with another id",
        )
        self.subject = subject


class HeldError(UsageError):
    """A hold protects the data: nothing was erased. End the hold first, if it no longer applies."""


class KeyMissingError(HoldfastError):
    """The key of sealed data is missing from the key store, and was not destroyed on purpose.

    `subject` is the random id of the subject.
    """

    exit_code = 21

    def __init__(self, subject: str, keys: str, name: str | None = None, count: int = 1) -> None:
        """`name` was asked for, and any of the `count` missing keys may be the one of that name."""
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
    """The store and the given store key do not fit: nothing was written.

    Either the store is encrypted and the key is missing or wrong, or it is not encrypted and a key
    was given.
    """

    exit_code = 22


class ExistsError(HoldfastError):
    """The name is taken: choose another one, or open the existing thing."""

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
        """Paths that the commit had read and somebody changed; empty if it expected a revision."""


class ClosedError(HoldfastError):
    """The scope was closed and takes no more writes: open another one."""

    exit_code = 6

    def __init__(self, message: str, *, stream: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream


class LimitError(HoldfastError):
    """A quota, or a disk that is nearly full, refuses a write: remove something, then retry.

    Nothing was written. `stream` is the scope, or None for a large value alone. It is also raised
    for a SQL statement that exceeds its time, rows or bytes: ask for less, or raise the limit.
    """

    exit_code = 23

    def __init__(self, message: str, *, stream: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream


class LeaseLostError(HoldfastError):
    """Another worker has the lease: stop, and write nothing more under it."""

    exit_code = 7

    def __init__(self, message: str, *, lease: str, epoch: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.lease = lease
        self.epoch = epoch


class UnavailableError(HoldfastError):
    """The backend cannot serve now (disk full, busy, no permission): fix that, then retry.

    `outcome_known` is False if a commit was under way that may or may not have been made: open the
    store again and look. A retry with an idempotency key is safe in either case.
    """

    exit_code = 8

    def __init__(
        self, message: str, *, outcome_known: bool = True, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.outcome_known = outcome_known


class GitError(UnavailableError):
    """The git command is missing or has failed; `code` is its exit code."""

    def __init__(self, message: str, *, code: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class FilesTakenError(UnavailableError):
    """Files of the store were removed, replaced or moved while it was open: put them back.

    The handle is dead: what it wrote would go into files that nobody can find. `rescued` is the
    folder with what it still held, or None if nothing needed rescue or it could not be written; the
    message says which.
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
    """Returns the error for a module that is imported at its first use and cannot be read."""
    hint = CLOSE_SOME if exc.errno in NO_DESCRIPTORS else "look whether holdfast is installed whole"
    return UnavailableError(f"{what} cannot be loaded: {exc.strerror}", hint=hint)


class CorruptError(HoldfastError):
    """Stored bytes are damaged: keep a copy, run `holdfast check`, then salvage."""

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
    """A newer holdfast wrote it, or it is not a holdfast store: upgrade, or look elsewhere."""

    exit_code = 10


class OtherStoreError(HoldfastError):
    """A stored position belongs to another store: give a place to start from in this one."""

    exit_code = 16


class LostCommitsError(CorruptError):
    """The store lacks commits that it had acknowledged.

    A server lost them in a failover or a restart: the handle is dead, so open the store again to
    continue from what is there. Keys that Redis evicted: reading them raises this each time, and
    the rest of the store can be used. A SQLite store whose WAL was removed, or that was replaced by
    an older copy: bring back the newest copy, or delete the witness to continue with what is there.
    """


class StepError(HoldfastError):
    """A step or a branch of a run failed for good; a replay raises an equal error.

    `kind` is the class name of the exception, `text` its message, `data` what it carried, and
    `traceback` the text of its traceback. In the process where it was raised, the exception is the
    `__cause__`. `outcome` is what is known of an effect that failed: "not done" or "unknown".
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

    `traceback` says where the program failed, in other processes and after a restart too. In the
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
    """The function of a node raised: correct the cause, then process the graph again.

    `kind` is the class name of the exception, `text` its message, `data` what it carried. A stored
    failure of an earlier walk has the same.
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

    What is stored is unchanged. If the result does not fit the type, `misfits` has every place.
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
    """Stored data has a schema, or a version of it, that this program lacks: run a newer program.

    `name` is what has the schema, `stored` its version, and `known` the program's version, 0 if it
    has none.
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

    The events are unchanged, and so is the projection's state up to the event before.
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
