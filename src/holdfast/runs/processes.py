"""Steps that are processes: a command, without a shell, that does not outlive its run (rule 9).

A command runs in its own session and process group, under a warden: a small process that starts it,
waits for it, and holds one end of a pipe whose other end only this process has. When this process
dies, in whatever way, the pipe ends, and the warden kills the whole group. The kernel's own means,
PR_SET_PDEATHSIG, reaches one child and not the processes that it started, exists on Linux only, and
needs Python code between fork and exec of a process with threads, which may deadlock on a lock that
another thread held at the fork.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from holdfast.backends.gates import Flag
from holdfast.clock import Clock
from holdfast.core.arguments import check_duration, check_whole
from holdfast.errors import StepError, UsageError, show_value
from holdfast.runs.define import Step, step

OUTPUT_BYTES_MAX = 1 << 20
GRACE_S = 5.0
SLICE_S = 0.05
_CHUNK = 1 << 16
_LAST_ROUNDS = 64
_logger = logging.getLogger("holdfast.runs")

# Runs in its own interpreter (-I -S: it imports nothing of the user's). It ignores TERM, which is
# meant for the command. It reports how the command ended: "x" and the exit code, or "e" and the
# errno if it could not be started.
_WARDEN = """
import _thread, os, select, signal, sys
life, said, owner = (int(word) for word in sys.argv[1:4])
os.set_inheritable(life, False)
os.set_inheritable(said, False)
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def watch():
    while os.getppid() == owner and not select.select([life], [], [], 1)[0]:
        pass
    os.killpg(0, signal.SIGKILL)

_thread.start_new_thread(watch, ())
try:
    defaults = [signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT]
    child = os.posix_spawnp(sys.argv[4], sys.argv[4:], os.environ, setsigdef=defaults)
except OSError as error:
    os.write(said, b"e%d" % error.errno)
    os._exit(1)
for fd in (0, 1, 2):
    os.close(fd)
os.write(said, b"x%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


class Output(Struct, frozen=True):
    """The result of a process: its exit code (negative: the signal that ended it) and its output.

    Bytes that are not UTF-8 are replaced. Of long output the end is kept; `cut` counts the bytes
    that are missing from both pipes together.
    """

    code: int
    out: str = ""
    err: str = ""
    cut: int = 0


class Command:
    """One command that a step of a run executes."""

    def __init__(
        self,
        argv: object,
        *,
        stdin: object,
        cwd: object,
        env: object,
        timeout: object,
        grace: object,
        output_max: object,
        check: bool,
    ) -> None:
        self.argv = _words(argv)
        self.stdin = _text(stdin)
        self.cwd = None if cwd is None else _word(cwd, "cwd")
        self.env = _environment(env)
        self.timeout_s = None if timeout is None else check_duration(timeout, "timeout")
        self.grace_s = check_duration(grace, "grace")
        self.output_max = check_whole(output_max, "output_max", least=1)
        self.check = check
        self.dropped = Flag()
        """Set when nobody awaits the step any more."""

    @property
    def name(self) -> str:
        """The default name of the step."""
        return Path(self.argv[0]).name or "process"

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What the journal keeps of it; not the environment, which may hold secrets."""
        return self.argv, self.stdin, self.cwd

    def as_step(
        self, clock: Clock, check_wanted: Callable[[], None], settings: dict[str, Any]
    ) -> Step[..., Output]:
        """Returns the command as a step; `check_wanted` raises when the process must end."""
        effect = settings["effect"]
        if effect == "txn":
            raise UsageError(
                'a process cannot be of the class "txn": it does not write to this store'
            )

        def execute(ctx: Any, argv: Any, stdin: Any, cwd: Any) -> Output:
            process = _Process(self, clock, {"HOLDFAST_RUN": ctx.run, "HOLDFAST_KEY": ctx.key})
            return self.checked(process.run(check_wanted))

        made = step(**settings)(execute)
        made.drop = self.dropped.set
        return made

    def checked(self, output: Output) -> Output:
        """Returns the output; raises StepError if the command failed and `check` is set."""
        if self.check and output.code:
            data = {"code": output.code, "out": output.out, "err": output.err}
            raise StepError("ExitError", f"{self.argv[0]} ended with {output.code}", data)
        return output


class _Process:
    """A running command, served by one thread."""

    def __init__(self, command: Command, clock: Clock, told: dict[str, str]) -> None:
        self._command = command
        self._clock = clock
        self._kept = {"out": bytearray(), "err": bytearray()}
        self._cut = 0
        self._said = b""
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._unsent = memoryview((command.stdin or "").encode())
        life_read, self._life = os.pipe()
        said_read, said_write = os.pipe()
        argv = [sys.executable, "-I", "-S", "-c", _WARDEN, str(life_read), str(said_write)]
        try:
            self._warden = subprocess.Popen(
                [*argv, str(os.getpid()), *command.argv],
                stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=command.cwd,
                env={**os.environ, **command.env, **told},
                pass_fds=(life_read, said_write),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            os.close(said_read)
            raise
        finally:
            os.close(life_read)
            os.close(said_write)
        self._pipes = {"said": os.fdopen(said_read, "rb", buffering=0)}

    def run(self, check_wanted: Callable[[], None]) -> Output:
        """Waits for the end of the process; its group is gone when this returns or raises."""
        warden = self._warden
        assert warden.stdout is not None, "BUG: no pipe"
        assert warden.stderr is not None, "BUG: no pipe"
        try:
            for name, pipe in [
                *self._pipes.items(),
                ("out", warden.stdout),
                ("err", warden.stderr),
            ]:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, name)
            if warden.stdin is not None:
                os.set_blocking(warden.stdin.fileno(), False)
                self._selector.register(warden.stdin, selectors.EVENT_WRITE, "in")
            try:
                self._serve(check_wanted, self._command.timeout_s)
            except BaseException:
                self._stop()
                raise
            return self._output()
        finally:
            self._end()

    def _serve(self, check_wanted: Callable[[], None] | None, limit_s: float | None) -> None:
        """Moves bytes until the command has ended; raises the reason to end it early."""
        until_us = None if limit_s is None else self._clock.boot_us() + round(limit_s * 1e6)
        while not self._ended:
            self._move(SLICE_S)
            if check_wanted is not None:
                check_wanted()
                if self._command.dropped.is_set():
                    raise TimeoutError(f"{self._command.argv[0]}: nobody waits for it any more")
            if until_us is not None and self._clock.boot_us() >= until_us:
                raise TimeoutError(f"{self._command.argv[0]} took longer than {limit_s:g} s")

    def _stop(self) -> None:
        """Asks the group to end, and waits for the time of grace; `_end` then kills it."""
        with suppress(ProcessLookupError):
            os.killpg(self._warden.pid, signal.SIGTERM)
        try:
            self._serve(None, self._command.grace_s)
        except TimeoutError as error:
            _logger.debug("%s: it is killed", error)

    def _end(self) -> None:
        # The warden's process id is also the group's. It cannot be reused before the warden is
        # waited for, so this kills the right group, with everything that the command left running.
        with suppress(ProcessLookupError):
            os.killpg(self._warden.pid, signal.SIGKILL)
        self._selector.close()
        os.close(self._life)
        for pipe in (*self._pipes.values(), self._warden.stdout, self._warden.stderr):
            assert pipe is not None, "BUG: no pipes"
            pipe.close()
        if self._warden.stdin is not None:
            with suppress(OSError):
                self._warden.stdin.close()
        self._warden.wait()

    def _move(self, timeout_s: float) -> bool:
        """Reads output of the process and feeds its input; returns whether anything was ready."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.data == "in":
                self._feed(key.fd)
                continue
            with suppress(BlockingIOError):
                chunk = os.read(key.fd, _CHUNK)
                self._ended |= key.data == "said"
                if not chunk:
                    self._selector.unregister(key.fileobj)
                elif key.data == "said":
                    self._said += chunk
                else:
                    self._keep(self._kept[key.data], chunk)
        return bool(ready)

    def _feed(self, fd: int) -> None:
        try:
            self._unsent = self._unsent[os.write(fd, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError as error:
            _logger.debug("%s does not read its input: %s", self._command.argv[0], error)
            self._unsent = self._unsent[:0]
        if not self._unsent:
            stdin = self._warden.stdin
            assert stdin is not None, "BUG: no pipe"
            self._selector.unregister(stdin)
            with suppress(OSError):
                stdin.close()

    def _keep(self, kept: bytearray, chunk: bytes) -> None:
        kept += chunk
        over = len(kept) - self._command.output_max
        if over > 0:
            del kept[:over]
            self._cut += over

    def _output(self) -> Output:
        # Output from before the end may still be in the pipes; that is little. A process that left
        # the group but still holds a pipe may write for ever, so the number of reads is limited.
        rounds = 0
        while rounds < _LAST_ROUNDS and self._move(0):
            rounds += 1
        said, word = self._said, self._command.argv[0]
        if said[:1] == b"e":
            number = int(said[1:])
            raise OSError(number, f"{word} cannot be run: {os.strerror(number)}")
        out, err = (bytes(self._kept[name]).decode("utf-8", "replace") for name in ("out", "err"))
        # If the warden reported nothing, it was killed together with its command.
        code = int(said[1:]) if said else -signal.SIGKILL
        return Output(code, out, err, self._cut)


# --- what callers pass ---------------------------------------------------------------------------


def _shown(value: Any) -> str:
    return show_value(value)


def _words(argv: object) -> list[str]:
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
        raise UsageError(
            f"a process is a list of words, found {_shown(argv)}",
            hint='["git", "status"]: no shell reads it',
        )
    return [_word(word, "a word of a command") for word in cast("Sequence[object]", argv)]


def _word(word: object, what: str) -> str:
    found = os.fspath(cast("os.PathLike[str]", word)) if isinstance(word, os.PathLike) else word
    if not isinstance(found, str) or "\0" in found:
        raise UsageError(f"{what} is text without a zero byte, or a path, found {_shown(word)}")
    return found


def _text(stdin: object) -> str | None:
    if stdin is not None and not isinstance(stdin, str):
        raise UsageError(f"what a process reads is text, found {show_value(stdin)}")
    return stdin


def _environment(env: object) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise UsageError(f"env is a mapping of names to text, found {show_value(env)}")
    found = {
        _word(name, "a name of env"): _word(value, "a value of env")
        for name, value in cast("Mapping[object, object]", env).items()
    }
    if any("=" in name or not name for name in found):
        raise UsageError("a name of env is not empty and has no =")
    return found
