"""What a shell may offer for a word: scopes, runs and checkpoints of the store that is named.

A shell asks while somebody types. So an answer is one page of names; opening the store waits for
nobody and writes nothing; and after an error nothing is offered, because the parser swallows it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

import holdfast
from holdfast.cli.options import Flag, check_terminal, confirm
from holdfast.errors import UsageError
from holdfast.opening import DEFAULT_PLACE
from holdfast.store import Store

OFFERED_MAX = 200
"""How many names are offered at most."""
Shell = Literal["bash", "zsh", "fish"]
_STARTUP = {"bash": ".bashrc", "zsh": ".zshrc"}


def offer_scopes(context: CompletionContext) -> list[str]:
    """Returns the names of scopes that begin with what was typed."""
    with _opened(context) as store:
        found = store.scopes(prefix=context.incomplete, limit=OFFERED_MAX)
        return [scope.name for scope in found]


def offer_runs(context: CompletionContext) -> dict[str, str]:
    """Returns the ids of runs that begin with what was typed, each with its status."""
    with _opened(context) as store:
        return {
            run.id: run.status
            for run in store.runs.list(limit=OFFERED_MAX)
            if run.id.startswith(context.incomplete)
        }


def offer_moments(context: CompletionContext) -> dict[str, str]:
    """Returns the checkpoints of the scope that was typed before, each with its revision."""
    scope = context["scope"].raw
    if scope is None:
        return {}
    with _opened(context) as store:
        return {
            found.name: f"revision {found.revision}"
            for found in store.scope(scope).checkpoints(limit=OFFERED_MAX)
            if found.name.startswith(context.incomplete)
        }


def _opened(context: CompletionContext) -> Store:
    place = context["--store"].value or DEFAULT_PLACE
    key = context["--store-key"].value or None
    tenant = context["--tenant"].value or None
    return holdfast.open(place, create=False, read_only=True, store_key=key, tenant=tenant)


if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    ScopeName = str
    RunId = str
    Moment = str
else:
    ScopeName = Annotated[str, Parameter(completer=offer_scopes)]
    RunId = Annotated[str, Parameter(completer=offer_runs)]
    Moment = Annotated[str, Parameter(completer=offer_moments)]


def register(app: App, **settings: Any) -> None:
    """Adds the verb that installs completion."""

    def install(
        *,
        shell: Shell | None = None,
        output: Annotated[Path | None, Parameter(name=["-o", "--output"])] = None,
        yes: Flag = False,
    ) -> int:
        """Install completion for a shell: verbs, options, scopes, runs and checkpoints.

        Parameters
        ----------
        shell
            The shell; the one in use if it is not given.
        output
            Write the script to this file and touch no other.
        yes
            Do not ask before the files of the shell are written.
        """
        return install_completion(app, shell or _shell_in_use(), output, is_sure=yes)

    app.command(install, name="--install-completion", **settings)


def install_completion(app: App, shell: Shell, output: Path | None, *, is_sure: bool) -> int:
    """Writes the script of a shell and the line that loads it; asks first. Returns an exit code."""
    if output is not None:
        app.install_completion(shell=shell, output=output, add_to_startup=False)
        print(f"wrote {output}")
        return 0
    startup = Path.home() / _STARTUP[shell] if shell in _STARTUP else None
    what = f"write the completion script of {shell}"
    what += f" and add a line to {startup}" if startup else ""
    if not is_sure:
        one_file = "holdfast --install-completion --output FILE"
        check_terminal(f"whether to {what}", hint=f"add --yes, or name a file: {one_file}")
        if not confirm(what):
            print("nothing was written", file=sys.stderr)
            return 1
    print(f"wrote {app.install_completion(shell=shell)}")
    if startup:
        print(f"added a line to {startup}; it counts for the next shell")
    return 0


def _shell_in_use() -> Shell:
    from cyclopts.completion import ShellDetectionError, detect_shell

    try:
        found = detect_shell()
    except ShellDetectionError:
        found = None
    if found not in ("bash", "zsh", "fish"):
        raise UsageError(
            f"the shell in use is {found or 'not known'}: expected bash, zsh or fish",
            hint="holdfast --install-completion --shell bash",
        )
    return found
