"""Verbs for facts about the outside world: fact, stale."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.decisions import Config, load_config
from holdfast.cli.options import DEFAULTS, Flag, Options, open_reading, open_writing
from holdfast.cli.parsing import find_scope, parse_value
from holdfast.cli.printing import print_facts, print_json, print_line, print_note, print_table
from holdfast.core.tree import freeze
from holdfast.errors import UsageError
from holdfast.record.facts import Fact
from holdfast.render.record import (
    fact_document,
    facts_document,
    stale_document,
    withdrawn_fact_document,
)
from holdfast.render.text import clean, preview, show_time


def fact(
    scope: ScopeName,
    name: str | None = None,
    value: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    verify: str | None = None,
    valid_for: str | None = None,
    about: str | None = None,
    subject: str | None = None,
    check: Flag = False,
    withdraw: Flag = False,
    config: Config = None,
    options: Options = DEFAULTS,
) -> None:
    """State a fact with a value, show one by its name, or list those of a scope.

    Parameters
    ----------
    scope
        The scope, such as team/support or global.
    name
        The fact's name; without it the scope's facts are listed.
    value
        The value to state: JSON if it parses, else text.
    verify
        The verifier that checks it: a [verify.NAME] of the configuration file.
    valid_for
        How long it is valid, such as 45s, 1h30m or 7d.
    about
        What the fact is about.
    subject
        The subject that the fact belongs to: sealed by their key, gone when they are erased.
    check
        Ask the fact's verifier now.
    withdraw
        Withdraw the fact.
    config
        The configuration file. Without it ./holdfast.toml.
    """
    if value is None:
        _refuse_without_value(verify, valid_for, about, subject)
    if (value is not None) + check + withdraw > 1 or (name is None and (check or withdraw)):
        raise UsageError("give a value, --check or --withdraw, with the name of one fact")
    if check or verify is not None:
        load_config(config)
    opened = open_reading if value is None and not (check or withdraw) else open_writing
    with opened(options) as store:
        found = find_scope(store, scope, must_exist=value is None).facts
        if name is None:
            print_list(scope, found.list(), options)
        elif withdraw:
            found.withdraw(name)
            _print_withdrawn(scope, name, options)
        elif value is not None:
            said = {"verify": verify, "valid_for": valid_for, "about": about, "subject": subject}
            meant = parse_value(value, is_text=False)
            print_one(found.state(name, meant, **said), options)
        else:
            print_one(found.check(name) if check else found.get(name), options)


def stale(*, verify: bool = False, config: Config = None, options: Options = DEFAULTS) -> None:
    """List what cannot be trusted: facts expired or contradicted, acts left open.

    Parameters
    ----------
    verify
        Ask every verifier now, and record its answer. Without it nothing is run.
    config
        The configuration file. Without it ./holdfast.toml.
    """
    if verify:
        load_config(config)
    opened = open_writing if verify else open_reading
    with opened(options) as store:
        found = store.stale(verify=verify)
    if options.json:
        print_json(stale_document(found))
    elif found:
        rows = [
            (one.kind, one.scope, one.id, one.why, show_time(one.since), one.text) for one in found
        ]
        print_table(("kind", "scope", "id", "why", "since", "what"), rows)
    else:
        print_note("nothing is stale")


def _refuse_without_value(*options: str | None) -> None:
    """Raises UsageError for options that need a value to state."""
    if any(option is not None for option in options):
        raise UsageError(
            "--verify, --valid-for, --about and --subject need a value to state",
            hint="holdfast fact --help",
        )


def print_list(scope: str, found: list[Fact], options: Options) -> None:
    """Prints the facts of a scope."""
    if options.json:
        print_json(facts_document(scope, found))
    elif found:
        rows = [
            (one.name, "stale" if one.stale else "", show_time(one.updated_at), _preview(one))
            for one in found
        ]
        print_table(("name", "stale", "updated", "value"), rows)
    else:
        print_note("no facts")


def print_one(found: Fact, options: Options) -> None:
    """Prints one fact, and whether it is stale."""
    if options.json:
        print_json(fact_document(found))
        return
    rows = [("name", found.name), ("stale", found.reason or "no"), ("value", _preview(found))]
    rows.append(("updated", show_time(found.updated_at)))
    if found.about is not None:
        rows.append(("about", found.about))
    print_facts(rows)


def _print_withdrawn(scope: str, name: str, options: Options) -> None:
    if options.json:
        print_json(withdrawn_fact_document(scope, name))
    else:
        print_line(f"{clean(name)} is withdrawn from {clean(scope)}")


def _preview(found: Fact) -> str:
    return preview(freeze(found.value))
