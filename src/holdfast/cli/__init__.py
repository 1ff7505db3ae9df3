"""The command line: turns words into calls and results into text. It decides nothing.

app         the verbs, global options, errors and exit codes
options     what every verb takes, and opening the store it names
parsing     scopes, moments, paths and values as they are typed
printing    text that is safe to show; tables and trees on a terminal, plain lines when piped
user_code   loading the code of runs, by the name that was typed

The other modules hold the verbs, one module for each noun. The documents that --json prints are
made in `holdfast.render`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `docs/cli.md` lists them."""
    try:
        try:
            from holdfast.cli.app import run
        except ModuleNotFoundError as absent:
            if absent.name not in ("cyclopts", "rich"):
                raise
            print(f'error: the command line needs "{absent.name}"', file=sys.stderr)
            print("hint: pip install 'holdfast[cli]'", file=sys.stderr)
            return 1
        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
