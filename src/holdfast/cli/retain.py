"""Verbs for letting go: retain, archive, unretain, hold, unhold."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

import holdfast
from holdfast import archive as archives
from holdfast.backends.mixed import read_mix
from holdfast.cli.completion import ScopeName
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    command,
    open_reading,
    open_writing,
    refuse_memory,
)
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.core import reserve
from holdfast.core.arguments import check_duration
from holdfast.core.retention import GRACE_S, Retention
from holdfast.errors import UnavailableError, UsageError
from holdfast.render.retain import (
    archived_document,
    binned_document,
    held_document,
    holds_document,
    let_go_document,
    retention_document,
    unheld_document,
    unretained_document,
)
from holdfast.render.text import clean, show_time
from holdfast.store import Store


def retain(
    *,
    now: Flag = False,
    grace: str | None = None,
    dry_run: Flag = False,
    whole: Flag = False,
    log: Flag = False,
    wait: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Let go of what removed, closed and expired scopes held, and of what policies name.

    Policies are those of the TOML file that names the store.

    Parameters
    ----------
    now
        Do not wait for the grace to end.
    grace
        How long what has ended stays, such as 30d or 12h. Default: 7 days.
    dry_run
        Show what would go and why; change nothing.
    whole
        Take longer: also make the store smaller, and look for blobs that nothing refers to.
    log
        Show what was let go of until now; let go of nothing.
    wait
        How long to wait for another retain or erasure that is at work, such as 5m. Default: not.
    """
    if now and grace is not None:
        raise UsageError("--now is a grace of nothing: give one of --now and --grace")
    if log:
        _print_log(options)
        return
    grace_s = 0.0 if now else GRACE_S if grace is None else _grace(grace)
    wait_s = 0.0 if wait is None else check_duration(wait, "--wait")
    with open_reading(options) if dry_run else _open_to_let_go(options) as store:
        if dry_run:
            done = store.retention.preview(grace_s=grace_s)
        else:
            done = store.retention.run(grace_s=grace_s, whole=whole, wait_s=wait_s)
    if options.json:
        print_json(retention_document(done))
        return
    print_retention(done, options)


def _grace(text: str) -> float:
    try:
        return check_duration(text, "--grace")
    except UsageError as error:
        raise UsageError(error.message, hint="--now is a grace of nothing") from None


def _open_to_let_go(options: Options) -> Store:
    """Opens the store to write; if a full disk prevents that, it frees what is kept for it."""
    try:
        return open_writing(options)
    except UnavailableError:
        if not reserve.use_if_full(_paths_of(options.place)):
            raise
        return open_writing(options)


def _paths_of(place: str) -> list[str]:
    """Returns the paths that a store is at, as the words that name it say: it cannot be opened."""
    urls = list(read_mix(place)[0].values()) if place.endswith(".toml") else [place]
    return [url.partition(":")[2].partition("?")[0] if ":" in url else url for url in urls]


def print_retention(done: Retention, options: Options) -> None:
    """Prints what a retain did, or would do."""
    rows = [
        (one.scope, f"{one.why} {show_time(one.since)}", str(one.events), str(one.bytes))
        for one in done.scopes
    ]
    if rows:
        print_table(("scope", "why", "events", "bytes"), rows)
    would = "would be let go of" if done.dry_run else "were let go of"
    print_line(f"{done.events} events and {done.blobs} blobs, {done.bytes} bytes, {would}")
    for one in done.binned:
        would = "would be removed" if done.dry_run else "removed"
        print_line(f"{would}\t{clean(one.scope)}\tby {clean(one.policy)}")
    for scope, reason in done.refused.items():
        print_line(f"in use\t{clean(scope)}\t{clean(reason)}")
    for scope in done.held:
        print_line(f"held\t{clean(scope)}")
    for warning in done.warnings:
        print_line(f"warning\t{clean(warning)}")
    for left in done.left:
        print_line(f"still there\t{clean(left.where)}\t{clean(left.remedy)}")
    if done.binned and not done.dry_run:
        print_note(f"bring one back: {command('unretain SCOPE', options.place)}")
    if done.dry_run and (done.scopes or done.binned):
        print_note(f"keep one: {command('hold SCOPE', options.place)}")


def _print_log(options: Options) -> None:
    with open_reading(options) as store:
        told = store.retention.past()
    if options.json:
        print_json(let_go_document(told))
        return
    rows = [
        (one.scope, one.why, f"{one.first}-{one.last}", str(one.events), show_time(one.time))
        for one in told
    ]
    print_table(("scope", "why", "revisions", "events", "let go of"), rows)


def archive(
    target: Annotated[str, Parameter(name="TARGET")],
    scopes: Annotated[str, Parameter(name="SCOPES")],
    /,
    *,
    older: str,
    dry_run: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Move scopes without a write for long into an archive, and verify them there.

    They are removed from the store, and stay in its bin until the grace has ended.

    Parameters
    ----------
    target
        The archive: a store that is made if it does not exist. Its scopes are read by its path.
    scopes
        Which scopes, such as conversation/*.
    older
        How long ago the newest write of a scope must be, such as 90d.
    dry_run
        Show what would be moved; change nothing.
    """
    refuse_memory(target)
    check_duration(older, "--older")
    # Planned first: where nothing is to be moved, no archive is made.
    with open_reading(options) as store, holdfast.open("memory:") as nowhere:
        done = archives.archive(store, nowhere, scopes, older_than=older, dry_run=True)
    if dry_run:
        pass
    elif done.scopes:
        with open_writing(options) as store, holdfast.open(target, actor=options.writer) as moved:
            done = archives.archive(store, moved, scopes, older_than=older)
    else:
        done = replace(done, dry_run=False)
    if options.json:
        print_json(archived_document(done))
        return
    would = "would be archived" if dry_run else "archived"
    for one in done.scopes:
        print_line(f"{would}\t{clean(one.scope)}\t{one.events} events")
    for scope, reason in done.refused.items():
        print_line(f"in use\t{clean(scope)}\t{clean(reason)}")
    for scope in done.held:
        print_line(f"held\t{clean(scope)}")
    print_line(f"{len(done.scopes)} scopes, {done.events} events, {would}")
    if done.scopes and not dry_run:
        print_note(f"read them: {command('log SCOPE', target)}")
        print_note(f"bring one back: {command('unretain SCOPE', options.place)}")


def unretain(scope: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """Bring back a scope that a policy has removed; without a scope, show the bin.

    Parameters
    ----------
    scope
        The scope, such as conversation/ticket-7, whose bytes were not let go of yet.
    """
    if scope is None:
        with open_reading(options) as store:
            found = store.retention.bin()
        if options.json:
            print_json(binned_document(found))
            return
        rows = [(one.scope, show_time(one.since), str(one.events), one.policy) for one in found]
        print_table(("scope", "removed", "events", "policy"), rows)
        return
    with open_writing(options) as store:
        revision = store.retention.bring_back(scope)
    if options.json:
        print_json(unretained_document(scope, revision))
    else:
        print_line(f"{clean(scope)} is back, at revision {revision}")


def hold(
    scope: ScopeName | None = None, /, *, reason: str | None = None, options: Options = DEFAULTS
) -> None:
    """Keep everything of a scope from retain; without a scope, show what is held.

    Parameters
    ----------
    scope
        The scope, such as conversation/ticket-7. It may be removed or closed.
    reason
        Why, for those who look later.
    """
    if scope is None:
        with open_reading(options) as store:
            holds = store.retention.holds()
        if options.json:
            print_json(holds_document(holds))
            return
        rows = [(one.scope, show_time(one.since), one.actor, one.reason) for one in holds]
        print_table(("scope", "since", "by", "reason"), rows)
        return
    with open_writing(options) as store:
        store.retention.hold(scope, reason)
    if options.json:
        print_json(held_document(scope, reason))
    else:
        print_line(f"{clean(scope)} is held: retain lets go of nothing of it")


def unhold(scope: ScopeName, /, *, options: Options = DEFAULTS) -> None:
    """End a hold: retain may let go of the scope again.

    Parameters
    ----------
    scope
        The scope that is held.
    """
    with open_writing(options) as store:
        store.retention.unhold(scope)
    if options.json:
        print_json(unheld_document(scope))
    else:
        print_line(f"{clean(scope)} is held no more")
