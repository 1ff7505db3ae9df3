"""The git command, run so that it starts no program that the repository names.

An unpacked repository may bring its own configuration, and that can name programs: hooks, a file
system monitor, filters, pagers, external diffs, helpers of transports. So:

- Only plumbing is called, never `status`, `add`, `diff` or `log`: those run filters, external diffs
  and signature programs.
- The environment is built from nothing. The configuration of the system and of the user is off, and
  the settings by which the repository could name programs are given on the command line, which
  overrides it.
- The repository and the work tree are named, so that git does not search for them: `core.worktree`
  in a foreign configuration could lead it out of the project.
- Every call has a limit of time and of output, has no terminal, and may not use the network.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from functools import cache
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from holdfast.errors import GitError

if TYPE_CHECKING:
    import subprocess

TIMEOUT_S = 120.0
OUTPUT_BYTES_MAX = 256 << 20
_COMPLAINT_BYTES_MAX = 1 << 16
_CHUNK = 1 << 16

_logger = logging.getLogger("holdfast.git")

SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.pager=cat",
    "core.editor=false",
    "core.askPass=",
    "core.sshCommand=false",
    "core.gitProxy=",
    "core.alternateRefsCommand=",
    "core.quotePath=false",
    "credential.helper=",
    "diff.external=",
    "gpg.program=false",
    "log.showSignature=false",
    "protocol.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
"""The settings on the command line of every call; they override those of the repository."""

_ENVIRONMENT = {
    "LC_ALL": "C",
    "HOME": os.devnull,
    "XDG_CONFIG_HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
}


def run_git(
    words: list[str],
    *,
    git_dir: str | None = None,
    work_tree: str | None = None,
    data: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    most: int = OUTPUT_BYTES_MAX,
    codes: tuple[int, ...] = (0,),
) -> tuple[int, bytes]:
    """Runs one git command; returns its exit code, one of `codes`, and its output.

    `data` is its standard input. Raises GitError if git is not installed, takes too long, prints
    more than `most` bytes or ends with another code.
    """
    import subprocess
    import tempfile

    command = [program(), *(word for one in SETTINGS for word in ("-c", one))]
    if excludes := user_excludes():
        command += ["-c", f"core.excludesFile={excludes}"]
    if git_dir is not None:
        command.append(f"--git-dir={git_dir}")
    if work_tree is not None:
        command.append(f"--work-tree={work_tree}")
    path = os.environ.get("PATH", os.defpath)
    with tempfile.TemporaryFile() as given:
        given.write(data or b"")
        given.seek(0)
        try:
            child = subprocess.Popen(
                [*command, *words],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=work_tree or "/",
                env={**_ENVIRONMENT, "PATH": path, **(environment or {})},
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise GitError(f"git {words[0]} cannot be run: {error}") from error
        with child:
            printed, complaint = _gather(child, words[0], timeout_s, most)
    if child.returncode not in codes:
        said = complaint.decode("utf-8", "replace").strip().splitlines()
        raise GitError(
            f"git {words[0]} ended with {child.returncode}: {said[-1] if said else 'no reason'}",
            code=child.returncode,
            hint="git fsck looks whether the repository is whole",
        )
    return child.returncode, printed


def _gather(
    child: subprocess.Popen[bytes], verb: str, timeout_s: float, most: int
) -> tuple[bytes, bytes]:
    """Returns what a command prints on its two outputs; on an error, kills its process group."""
    import selectors
    import signal
    import subprocess

    assert child.stdout is not None, "BUG: outputs are pipes"
    assert child.stderr is not None, "BUG: outputs are pipes"
    found: dict[IO[Any], list[bytes]] = {child.stdout: [], child.stderr: []}
    sizes = {child.stdout: 0, child.stderr: 0}
    ends = monotonic() + timeout_s
    try:
        with selectors.DefaultSelector() as selector:
            for stream in found:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                if (left := ends - monotonic()) <= 0:
                    raise GitError(f"git {verb} took longer than {timeout_s:g} s")
                for key, _ in selector.select(left):
                    stream: Any = key.fileobj
                    chunk = os.read(stream.fileno(), _CHUNK)
                    if not chunk:
                        selector.unregister(stream)
                        continue
                    sizes[stream] += len(chunk)
                    if stream is child.stdout and sizes[stream] > most:
                        raise GitError(f"git {verb} printed more than {most} bytes")
                    if stream is child.stdout or sizes[stream] <= _COMPLAINT_BYTES_MAX:
                        found[stream].append(chunk)
        child.wait(max(ends - monotonic(), 0.1))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if isinstance(error, subprocess.TimeoutExpired):
            raise GitError(f"git {verb} took longer than {timeout_s:g} s") from error
        raise
    return b"".join(found[child.stdout]), b"".join(found[child.stderr])


def program() -> str:
    """Returns the path of the git command; raises GitError if there is none.

    Relative folders in PATH are skipped: they may be in the project, with a program named git.
    """
    import shutil

    folders = [one for one in os.environ.get("PATH", os.defpath).split(os.pathsep) if one]
    path = os.pathsep.join(one for one in folders if os.path.isabs(one))
    found = shutil.which("git", path=path)
    if found is None:
        raise GitError("the git command is not there", hint="install git, or add it to PATH")
    return found


@cache
def user_excludes() -> str | None:
    """Returns the path of the user's list of ignored files; None if git cannot be asked.

    Otherwise the user's configuration is off, because a rewind point must not depend on it. But
    files that the user ignores everywhere, such as files with secrets, do not belong into one.
    """
    import subprocess

    home = os.path.expanduser("~")
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    try:
        done = subprocess.run(
            [program(), "config", "--global", "--type=path", "--get", "core.excludesFile"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            cwd="/",
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": home,
                "XDG_CONFIG_HOME": config_home,
                **({"GIT_CONFIG_GLOBAL": name} if (name := _global_file()) else {}),
            },
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _logger.warning("the user's list of ignored files is not known: %s", error)
        return None
    named = done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
    return named or os.path.join(config_home, "git", "ignore")


def _global_file() -> str | None:
    return os.environ.get("GIT_CONFIG_GLOBAL")
