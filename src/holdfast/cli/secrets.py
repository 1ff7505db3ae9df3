"""The verb secrets: what is done about secrets in what is written."""

from __future__ import annotations

from typing import cast

from holdfast.cli.options import DEFAULTS, Options, open_reading, open_writing
from holdfast.cli.printing import print_json, print_note, print_table
from holdfast.core.redaction import Mode
from holdfast.render.store import secrets_document


def secrets(mode: str | None = None, /, *, scope: str = "*", options: Options = DEFAULTS) -> None:
    """Show or set what is done about secrets in what is written: off, warn, redact or refuse.

    Parameters
    ----------
    mode
        The mode to set; without it the modes are shown.
    scope
        The scopes that it is for: a name, or a pattern such as "conversation/*" or "run/*".
    """
    with open_reading(options) if mode is None else open_writing(options) as store:
        if mode is not None:
            store.secrets.guard(cast("Mode", mode), scope=scope)
        rules = store.secrets.rules
    if options.json:
        print_json(secrets_document(rules))
    elif rules:
        print_table(("scope", "mode"), sorted(rules.items()))
    else:
        print_note("nothing is looked through for secrets")
