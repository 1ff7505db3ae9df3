"""Jobs that declare what they keep: nothing, the state of a session, or state that lasts.

    stateless   a file in, a file out: the output is written completely or not at all, nothing else
                is written, and no store is created. Such jobs can run in parallel without a lock
    session     a scope that exists while the job runs, and whose state is dropped at its end
    persistent  a scope of a store, which the next job finds as this one left it

A session without `store=` lives in this process and ends with it. In a store, other processes can
see it. If its process dies, two things end it: it expires (`ttl`), and the next session in that
store closes those whose worker is dead. A session with `keep` then has the status crashed, until
somebody goes on with it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from holdfast.clock import SystemClock
from holdfast.core.arguments import check_call, check_duration, check_flag
from holdfast.core.commit import ProposedCommit
from holdfast.core.kernel import kernel_of
from holdfast.errors import (
    ClosedError,
    ExistsError,
    ExpiredError,
    NotFoundError,
    UnavailableError,
    UsageError,
    show_value,
)
from holdfast.names import new_id, short_id
from holdfast.opening import DEFAULT_PLACE, open_store
from holdfast.record import sessions
from holdfast.record.context import RecordContext, context_of
from holdfast.scope import Scope
from holdfast.store import Store

_log = logging.getLogger("holdfast.jobs")

LIFETIMES = ("stateless", "session", "persistent")

Lifetime = Literal["stateless", "session", "persistent"]
P = ParamSpec("P")
T = TypeVar("T")


class Job(Generic[P, T]):
    """A function with the lifetime of its state. Calling the job only calls the function."""

    position: Lifetime

    def __init__(self, function: Callable[P, T]) -> None:
        check_call(function, "a job")
        if inspect.iscoroutinefunction(function):
            raise UsageError("a job is an ordinary function, found an async one")
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)


class StatelessJob(Job[P, T]):
    """A job that reads one file and writes one file."""

    position = "stateless"

    def run(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> T:
        """Calls the function with the content of `source`, and writes its result to `target`.

        A file with a name that ends in .json holds JSON, any other one text; a function may also
        return bytes. When `run` returns, the target is complete and on disk. Before that, and if
        the function raises or the process dies, the target is unchanged.
        """
        result = cast("Any", self.function)(read_input(Path(source)))
        write_whole(Path(target), encode_output(result, Path(target)))
        return result


class SessionJob(Job[P, T]):
    """A job whose state is dropped when it ends, unless it is kept."""

    position = "session"

    def __init__(self, function: Callable[P, T], *, store: object, keep: bool, ttl: object) -> None:
        super().__init__(function)
        self._store = "memory:" if store is None else store
        self._keep = check_flag(keep, "keep")
        self._ttl_s = check_duration(ttl, "ttl")
        if self._keep and store is None:
            raise UsageError("a session that is kept needs a store", hint='add store=".holdfast"')

    def run(self, *args: Any, **kwargs: Any) -> T:
        """Begins a session, calls the function with its scope as first argument, and ends it."""
        with self.begin() as scope:
            return cast("Any", self.function)(scope, *args, **kwargs)

    @contextmanager
    def begin(self, id: str | None = None) -> Generator[Scope]:
        """Yields the scope of a session, which ends with the block.

        A session with `keep` that was interrupted goes on under its id.
        """
        with open_store(self._store) as store:
            end_abandoned(store)
            id = new_id(kernel_of(store).clock) if id is None else id
            scope = self._begin(store, id)
            try:
                yield scope
            finally:
                # Also after an exception: a session that failed has ended too.
                end_session(store, scope, keep=self._keep)

    def _begin(self, store: Store, id: str) -> Scope:
        scope = store.conversation(id, ttl_s=None if self._keep else self._ttl_s)
        if scope.revision and not self._keep:
            raise ExistsError(
                f'there was a session "{id}" already, and it was not kept', hint="use another id"
            )
        sessions.begin_session(context_of(scope), scope, keep=self._keep)
        return scope


class PersistentJob(Job[P, T]):
    """A job on a scope that outlives the job."""

    position = "persistent"

    def __init__(self, function: Callable[P, T], *, store: object, scope: str) -> None:
        super().__init__(function)
        self._store = DEFAULT_PLACE if store is None else store
        self._scope = scope

    def run(self, *args: Any, **kwargs: Any) -> T:
        """Calls the function with the scope as first argument; what it writes there stays."""
        with self.begin() as scope:
            return cast("Any", self.function)(scope, *args, **kwargs)

    @contextmanager
    def begin(self) -> Generator[Scope]:
        """Yields the scope of the job."""
        with open_store(self._store) as store:
            yield store.scope(self._scope)


@overload
def job(
    position: Literal["stateless"],
) -> Callable[[Callable[P, T]], StatelessJob[P, T]]: ...
@overload
def job(
    position: Literal["session"], *, store: object = None, keep: bool = False, ttl: object = "1d"
) -> Callable[[Callable[P, T]], SessionJob[P, T]]: ...
@overload
def job(
    position: Literal["persistent"], *, scope: str, store: object = None
) -> Callable[[Callable[P, T]], PersistentJob[P, T]]: ...
def job(
    position: Lifetime,
    *,
    store: object = None,
    scope: str | None = None,
    keep: bool = False,
    ttl: object = "1d",
) -> Callable[[Callable[..., Any]], Any]:
    """Declares what a function keeps: `@job("stateless")`, "session" or "persistent".

    `store` is what `holdfast.open` takes; `scope` names the scope of a persistent job. The state of
    a session is dropped at its end unless `keep`; it expires after `ttl` if nobody ends it.
    """
    if position not in LIFETIMES:
        raise UsageError(
            f"a job is one of {', '.join(LIFETIMES)}, found {show_value(position)}",
            hint='write @job("stateless")',
        )
    given = {"store": store is not None, "scope": scope is not None, "keep": keep is not False}
    allowed = {"stateless": (), "session": ("store", "keep"), "persistent": ("store", "scope")}
    for name, is_given in given.items():
        if is_given and name not in allowed[position]:
            raise UsageError(f"a {position} job takes no {name}")

    def declare(function: Callable[..., Any]) -> Any:
        if position == "stateless":
            return StatelessJob(function)
        if position == "session":
            return SessionJob(function, store=store, keep=keep, ttl=ttl)
        if scope is None:
            raise UsageError(
                "a persistent job needs a scope", hint='add scope="team/research" to @job'
            )
        return PersistentJob(function, store=store, scope=scope)

    return declare


# The end of a session.


def end_session(store: Store, scope: Scope, *, keep: bool) -> None:
    """Closes the scope of a session, then clears its mark.

    The order matters: after a crash in between, the next session finds the mark and ends this one
    again. A scope that is already closed or expired is left unchanged.
    """
    with contextlib.suppress(ClosedError, ExpiredError):
        if scope.revision:
            scope.close(keep=keep)
    kernel_of(store).log.commit(ProposedCommit((), marks=(sessions.cleared_mark(scope.name),)))


def end_abandoned(store: Store) -> list[str]:
    """Ends the sessions whose worker is dead, except those that are kept; returns their names."""
    context = kernel_of(store).part(RecordContext)
    ended: list[str] = []
    for name, session in list(sessions.marked_sessions(context)):
        if session is not None and kernel_of(store).leases.is_alive(session.worker):
            continue
        if session is not None and session.status != "completed":
            if session.keep:
                continue
            sessions.record_crash(context, name)
        end_session(store, store.scope(name), keep=False)
        ended.append(name)
    return ended


# The files of a stateless job.


def read_input(source: Path) -> Any:
    """Returns the content of a file, as JSON or text according to its name."""
    try:
        data = source.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(f'there is no file "{source}" to read') from error
    except OSError as error:
        raise UnavailableError(f'"{source}" cannot be read: {error.strerror}') from error
    try:
        return msgspec.json.decode(data) if source.suffix == ".json" else data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "JSON" if source.suffix == ".json" else "UTF-8 text"
        raise UsageError(f'"{source}" is not {what}: {error}') from error


def encode_output(result: Any, target: Path) -> bytes:
    """Encodes a result; the same result always gives the same bytes."""
    if isinstance(result, bytes):
        return result
    if target.suffix == ".json":
        try:
            return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f'what was returned for "{target}" is not JSON: {error}') from error
    if isinstance(result, str):
        return result.encode()
    raise UsageError(f'"{target}" takes text or bytes, found {show_value(result)}')


def write_whole(target: Path, data: bytes) -> None:
    """Puts a file in place with these bytes: after a crash it is the old one or the new one, whole.

    The bytes are on disk before the name is moved onto them, and the move is on disk before this
    returns. Where the kernel can, the new file has no name until it is complete, so a process that
    dies while it writes leaves nothing.
    """
    part = f".{target.name}.{short_id(SystemClock())}.part"
    try:
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f'"{target.parent}" cannot be opened: {error.strerror}') from error
    try:
        _write_part(directory, part, data, _mode_of(directory, target.name))
        os.rename(part, target.name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not exist, and the write has failed anyway
            os.unlink(part, dir_fd=directory)
        raise UnavailableError(f'"{target}" cannot be written: {error.strerror}') from error
    finally:
        os.close(directory)


def _mode_of(directory: int, name: str) -> int | None:
    """Returns the permissions of the file that is replaced, None if there is none."""
    try:
        return stat.S_IMODE(os.stat(name, dir_fd=directory).st_mode)
    except FileNotFoundError:
        return None


def _write_part(directory: int, part: str, data: bytes, mode: int | None) -> None:
    """Creates a file with these bytes, and syncs it to disk.

    Where the file system allows it, the file gets its name only when it is complete, so a crash
    leaves no partial file behind.
    """
    nameless = getattr(os, "O_TMPFILE", 0)
    if nameless:
        try:
            file = os.open(".", os.O_WRONLY | nameless | os.O_CLOEXEC, 0o666, dir_fd=directory)
            with os.fdopen(file, "wb", buffering=0) as out:
                _fill(out.fileno(), data, mode)
                os.link(f"/proc/self/fd/{file}", part, dst_dir_fd=directory)
            return
        except OSError as error:
            # Not every file system has files without a name; any other failure repeats below.
            _log.debug("no file without a name here, writing %s: %s", part, error.strerror)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(part, flags, 0o666, dir_fd=directory)
    with os.fdopen(file, "wb", buffering=0) as out:
        _fill(out.fileno(), data, mode)


def _fill(file: int, data: bytes, mode: int | None) -> None:
    if mode is not None:
        os.fchmod(file, mode)
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)
