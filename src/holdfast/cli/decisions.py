"""Verbs for decisions: decide, outcome, decisions, recover."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.git import recover_from_git
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    open_reading,
    open_writing,
    print_more,
)
from holdfast.cli.parsing import find_decision, find_scope, parse_named, parse_priority
from holdfast.cli.printing import is_terminal, print_facts, print_json, print_note, print_table
from holdfast.core.kernel import kernel_of
from holdfast.errors import NotFoundError, UsageError
from holdfast.record.decisions import Decision
from holdfast.record.verifier_commands import FILE, load_verifiers
from holdfast.render.record import decision_document, decisions_document, recovery_document
from holdfast.render.text import clean, preview, show_time
from holdfast.store import Store

COLUMNS = ("id", "time", "status", "decision")
Config = Annotated[Path | None, Parameter(show_default=False)]


def load_config(config: Path | None) -> None:
    """Registers the verifiers of a configuration file: the one given, else ./holdfast.toml.

    Only verbs that ask verifiers call this, because a file that is not trusted is an error.
    """
    if config is not None:
        load_verifiers(config)
    elif Path(FILE).exists():
        load_verifiers(FILE)


def open_configured(
    options: Options, config: Path | None, *, asks: bool, schemas: str | None = None
) -> Store:
    """Opens the store to write; if `asks`, registers the verifiers of the configuration file first.

    `schemas` names a file or module with schemas: their version is stored with what is written.
    """
    if asks:
        load_config(config)
    if schemas is None:
        return open_writing(options)
    from holdfast.cli.user_code import load_schemas  # late, as it imports this module

    return open_writing(options, schemas=load_schemas(schemas, items=True))


def decide(
    scope: ScopeName,
    decision: str,
    /,
    *,
    because: str | None = None,
    action: str | None = None,
    alternative: Words = None,
    link: Words = None,
    verify: str | None = None,
    key: str | None = None,
    priority: str = "normal",
    supersedes: str | None = None,
    standing: Flag = False,
    more: Words = None,
    schemas: str | None = None,
    config: Config = None,
    options: Options = DEFAULTS,
) -> None:
    """Record a decision before you act on it; prints the id to give to outcome.

    Parameters
    ----------
    scope
        The scope, such as conversation/c1; created if it does not exist.
    decision
        What was decided, in a sentence.
    because
        Why it was decided so.
    action
        What will be done next.
    alternative
        What else was considered; may be given again.
    link
        Something related, such as file:src/a.py or commit:ab12; may be given again.
    verify
        The verifier to ask after a crash: a [verify.NAME] of the configuration file.
    key
        An idempotency key: the same key and text again record nothing new.
    priority
        A whole number, or low, normal or high.
    supersedes
        The id of an open decision or standing order that this one replaces.
    standing
        A standing order: it holds until it is superseded.
    more
        A field of your own, as NAME=VALUE: JSON if it parses, else text; may be given again.
    schemas
        The file or module with the schemas of decisions, such as app.py: its version is stored.
    config
        The configuration file. Without it ./holdfast.toml.
    """
    said: dict[str, Any] = {"because": because, "action": action, "verify": verify, "key": key}
    said |= {"alternatives": alternative or (), "links": link or (), "supersedes": supersedes}
    said |= {"more": parse_named(more, "a further field"), "priority": parse_priority(priority)}
    with open_configured(options, config, asks=verify is not None, schemas=schemas) as store:
        # Owned by a name, not by this worker, which ends before the act is done. A command that is
        # sent again with its key finds the decision instead of failing.
        said |= {"standing": standing, "owner": kernel_of(store).log.actor, "if_exists": "attach"}
        opened = find_scope(store, scope, must_exist=False).decide(decision, **said)
        print_decision(opened.stored, options)


def outcome(
    id: str,
    text: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Close an open decision with its outcome.

    Parameters
    ----------
    id
        The decision's id.
    text
        The outcome, in a sentence.
    """
    with open_writing(options) as store:
        whole = find_decision(store, id, incomplete=True)
        print_decision(store.decisions.close(whole, text), options)


def decisions(
    scope: ScopeName | None = None,
    /,
    *,
    incomplete: Flag = False,
    limit: int = 20,
    after: str | None = None,
    before: int | None = None,
    older_than: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """List decisions, newest first, or the open ones by priority; show one by its id.

    Parameters
    ----------
    scope
        The scope, or the id of one decision; without it every scope (slower).
    incomplete
        Only open ones, whose act may or may not have been done.
    limit
        How many at most.
    after
        Continue after this cursor, which the page before ended with.
    before
        Only those made before this revision of the scope.
    older_than
        Only those that have not changed for this long, such as 2h or 7d.
    """
    with open_reading(options) as store:
        if scope is not None and "@" in scope:
            print_decision(store.decisions.get(find_decision(store, scope)), options, whole=True)
            return
        try:
            name = None if scope is None else find_scope(store, scope).name
        except NotFoundError:
            # A table on a terminal may have cut the id before its scope, so that it has no "@".
            if scope is None or "/" in scope:
                raise
            print_decision(store.decisions.get(find_decision(store, scope)), options, whole=True)
            return
        found = store.decisions.list(
            incomplete=incomplete,
            scope=name,
            after=after,
            limit=limit,
            before=before,
            older_than=older_than,
        )
        if options.json:
            print_json(decisions_document(scope, found, incomplete=incomplete))
            return
    if found:
        show_row = _terminal_row if is_terminal() else _row
        print_table(COLUMNS, [show_row(entry) for entry in found])
    else:
        print_note("no decisions")
    words = ["decisions", *([scope] if scope else []), *(["--incomplete"] if incomplete else [])]
    words += [] if older_than is None else ["--older-than", older_than]
    print_more(found, words, options, limit)


def recover(
    scope: ScopeName | None = None,
    /,
    *,
    config: Config = None,
    from_git: Flag = False,
    commit: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Settle what dead workers left open, with the verifiers of the configuration file.

    Parameters
    ----------
    scope
        The scope; without it every scope.
    config
        The configuration file. Without it ./holdfast.toml.
    from_git
        Bring back revisions that git took from a store that is in a repository.
    commit
        The commit to bring them from; without it every one that was checked out here.
    """
    if from_git:
        if scope is not None or config is not None:
            raise UsageError("recover --from-git is about the whole store: give no scope or config")
        recover_from_git(commit, options)
        return
    if commit is not None:
        raise UsageError("--commit needs --from-git")
    with open_configured(options, config, asks=True) as store:
        name = None if scope is None else find_scope(store, scope).name
        report = store.recover(scope=name)
        if options.json:
            print_json(recovery_document(report))
            return
    rows = [(found.id, found.kind, found.verdict, found.did, found.text) for found in report.acts]
    if rows:
        print_table(("id", "kind", "verdict", "did", "what"), rows)
    else:
        print_note("nothing was left open by a dead worker")


def print_decision(entry: Decision, options: Options, *, whole: bool = False) -> None:
    """Prints one decision, in short or in full."""
    if options.json:
        print_json(decision_document(entry))
        return
    rows = [("id", entry.id), ("status", entry.status), ("decision", entry.decision)]
    if whole:
        completed = entry.completed_at
        more = [
            ("because", entry.rationale),
            ("action", entry.planned_action),
            *(("alternative", one) for one in entry.alternatives),
            *(("link", str(link)) for link in entry.links),
            ("decided", show_time(entry.timestamp)),
            ("by", entry.actor),
            ("owner", entry.owner + " (dead)" * (entry.owner_alive is False)),
            ("error", entry.error),
            *((clean(name), preview(value)) for name, value in entry.more.items()),
            ("supersedes", entry.supersedes),
            ("superseded by", entry.superseded_by),
            ("outcome", entry.outcome),
            ("closed", None if completed is None else show_time(completed)),
        ]
        rows += [(name, text) for name, text in more if text is not None]
    print_facts(rows)


def _terminal_row(entry: Decision) -> tuple[str, ...]:
    """Returns the columns that fit on a screen."""
    status = f"{entry.status} (dead)" if entry.owner_alive is False else entry.status
    result = entry.outcome or entry.error
    text = entry.decision if result is None else f"{entry.decision}: {result}"
    return entry.id, show_time(entry.timestamp), status, text


def _row(entry: Decision) -> tuple[str, ...]:
    owner = entry.owner + ("" if entry.owner_alive is not False else " (dead)")
    result = entry.outcome or entry.error or ""
    time = show_time(entry.timestamp)
    return entry.id, time, entry.status, str(entry.priority), owner, entry.decision, result
