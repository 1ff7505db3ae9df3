"""Verbs for git: file, git status, log, record, commit, hook, lost, merge-driver; rebuild."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.completion import ScopeName
from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Seconds,
    Words,
    command,
    open_reading,
    open_writing,
    refuse_memory,
)
from holdfast.cli.parsing import find_scope, parse_limit
from holdfast.cli.printing import (
    print_facts,
    print_json,
    print_json_line,
    print_line,
    print_note,
    print_table,
)
from holdfast.cli.rewinds import preview_and_apply
from holdfast.core.kernel import kernel_of
from holdfast.errors import CorruptError, NotFoundError, UsageError
from holdfast.git.commit_trailers import (
    commit_as_told,
    commit_events,
    read_settings,
    rebuild_from_git,
)
from holdfast.git.commits import commit_link, record_commit
from holdfast.git.files import ProjectFile
from holdfast.git.installed import install_hook, install_merge_driver, remove_hook
from holdfast.git.repository import Commit, Repository
from holdfast.git.work_tree import WorkTree
from holdfast.git_recovery import accept_loss, bring_back, find_lost, merge_file
from holdfast.names import check_scope_name
from holdfast.query.form import Hit
from holdfast.render.git import (
    brought_back_document,
    commits_document,
    file_at_document,
    file_diff_document,
    file_document,
    git_status_document,
    hook_document,
    lost_document,
    made_commit_document,
    merge_driver_document,
    path_text,
    rebuilt_document,
)
from holdfast.render.record import own_event_document
from holdfast.render.text import clean, show_time
from holdfast.store import Store

COMMITS_SHOWN = 10


def file(
    path: Annotated[str, Parameter(name="PATH")],
    /,
    *,
    at: str | None = None,
    diff: Flag = False,
    log: Flag = False,
    restore: Flag = False,
    yes: Flag = False,
    limit: int = 20,
    options: Options = DEFAULTS,
) -> int:
    """Show what is known of a file of the project: messages, events and commits that changed it.

    Parameters
    ----------
    path
        The file, such as src/app.py.
    at
        The commit or rewind point that is meant; alone, print what the file held there.
    diff
        Show how it differs from the commit of --at; without --at, from the newest one.
    log
        List the commits that changed it, with the events that each is linked to.
    restore
        Bring it back as the commit has it. Asks first; rewind undo takes it back.
    yes
        Do not ask; for scripts.
    limit
        How many commits, messages and events at most.
    """
    if sum((diff, log, restore)) > 1:
        raise UsageError("file takes one of --diff, --log and --restore: found two")
    parse_limit(limit)
    repository = Repository.find(".")
    found = ProjectFile(repository, path)
    if restore:
        with open_writing(options) as store:
            return _restore(store, path, _commit_of(store, at), options, yes=yes)
    with open_reading(options) as store:
        if diff:
            _print_diff(found, _commit_of(store, at), options)
        elif log:
            _print_log(store, found.log(limit), options)
        elif at is not None:
            _print_at(found, repository.find_commit(_commit_of(store, at)), options)
        else:
            _print_file(store, repository, found, limit, options)
    return 0


def _commit_of(store: Store, name: str | None) -> str:
    """Returns the commit of a rewind point with this name; any other word is left to git."""
    if name is None:
        return "HEAD"
    try:
        return store.git().find(name).commit or name
    except NotFoundError:
        return name


def _restore(store: Store, path: str, commit: str, options: Options, *, yes: bool) -> int:
    difference = ProjectFile(Repository.find("."), path).diff(commit)
    if difference.lost and not options.json:
        print_note(f"changes that no commit has go from {clean(path_text(difference.path))}:")
        print_note(clean(difference.text, keep="\n"))
    preview = store.git().preview_file(path, commit)
    return preview_and_apply(preview, options, dry_run=False, yes=yes)


def _print_at(found: ProjectFile, commit: Commit, options: Options) -> None:
    data = found.at(commit.id)
    if options.json:
        print_json(file_at_document(found.path, commit, data))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print_diff(found: ProjectFile, commit: str, options: Options) -> None:
    difference = found.diff(commit)
    if options.json:
        print_json(file_diff_document(difference))
        return
    if difference.change is None:
        print_note("nothing differs")
        return
    print_line(clean(difference.text, keep="\n\t").rstrip("\n") or difference.change)
    if difference.lost:
        print_note("no commit has what the file holds now: it is lost if the file is")


def _print_log(store: Store, commits: list[Commit], options: Options) -> None:
    linked = {commit.id: _linked(store, commit_link(commit.id)) for commit in commits}
    if options.json:
        print_json(commits_document(commits, linked))
        return
    rows = [
        (
            commit.id[:12],
            show_time(commit.time),
            commit.author,
            commit.summary,
            ", ".join(one.id for one in linked[commit.id]),
        )
        for commit in commits
    ]
    if rows:
        print_table(("commit", "time", "author", "summary", "events"), rows)
    else:
        print_note("no commits")


def _linked(store: Store, link: str, limit: int = 20) -> list[Hit]:
    """Returns what was recorded with a link to a file or commit, newest first."""
    return list(store.query(links=link, limit=limit))


def _print_file(
    store: Store, repository: Repository, found: ProjectFile, limit: int, options: Options
) -> None:
    status = next((s for s in WorkTree(repository).status() if s.path == found.path), None)
    linked = _linked(store, f"file:{path_text(found.path)}", limit)
    commits = found.log(limit)
    if options.json:
        print_json(file_document(found.path, status, commits, linked))
        return
    changed = (status.changed or status.staged) if status else None
    print_line(f"{clean(path_text(found.path))}\t{changed or 'as committed'}")
    rows = [
        *((show_time(one.time), one.kind, f"{one.id}", one.shown) for one in linked),
        *((show_time(one.time), "commit", one.id[:12], one.summary) for one in commits),
    ]
    if rows:
        print_table(("time", "", "what", "says"), rows)
    else:
        print_note("no commit, message or event changed it")


def git_status(*, options: Options = DEFAULTS) -> None:
    """Show the repository here: branch, last commits, files that differ."""
    repository = Repository.find(".")
    with open_reading(options) as store:
        own = store.status().get("path")
    files = WorkTree(repository, exclude=[str(own)] if own else []).status()
    commits = repository.last_commits(COMMITS_SHOWN)
    branch = repository.branch
    if options.json:
        print_json(git_status_document(repository.root, branch, commits, files))
        return
    print_facts([("work tree", repository.root), ("branch", branch or "none: a commit is")])
    for commit in commits:
        print_line(f"{commit.id[:12]}\t{show_time(commit.time)}\t{clean(commit.summary)}")
    for one in files:
        staged = f"staged: {one.staged}" if one.staged else ""
        print_line(f"{one.changed or staged}\t{clean(path_text(one.path))}")


def git_log(*, limit: int = 20, options: Options = DEFAULTS) -> None:
    """List commits, newest first, with the events that each is linked to.

    Parameters
    ----------
    limit
        How many commits at most.
    """
    commits = Repository.find(".").last_commits(parse_limit(limit))
    with open_reading(options) as store:
        _print_log(store, commits, options)


def git_record(
    scope: ScopeName,
    commit: str = "HEAD",
    /,
    *,
    ref: Words = None,
    options: Options = DEFAULTS,
) -> None:
    """Record in a scope that a commit was made: an event that links to it, once for each commit.

    Parameters
    ----------
    scope
        The scope, such as team/support.
    commit
        The commit: an id, a branch or a tag.
    ref
        What else it refers to, such as decision:d7@team/support; may be given again.
    """
    repository = Repository.find(".")
    with open_writing(options) as store:
        named = find_scope(store, scope, must_exist=False)
        made = record_commit(named, repository, commit, refs=ref or ())
        if options.json:
            print_json(own_event_document(made))
            return
    print_line(f"{clean(named.name)} is at revision {made.revision}: {made.plain['commit'][:12]}")
    print_note(f"what links to it: {command('git log', options.place)}")


def recover_from_git(commit: str | None, options: Options) -> None:
    """Brings back what git took from the store, and prints what that was."""
    done = bring_back(options.place, commit=commit, actor=options.writer)
    if options.json:
        print_json(brought_back_document(done))
        return
    for one in (*done.regained, *done.merged):
        how = "added after what is here" if one.is_diverged else "back as it was"
        print_line(f"{clean(one.stream)}\t{one.first} to {one.last}\t{how}")
    for misfit in done.not_applied:
        print_line(
            f"{clean(misfit.stream)}\t{misfit.revision}\t{misfit.type} NOT APPLIED: "
            f"{clean(misfit.why)}"
        )
    if not done.regained and not done.merged:
        print_note("no commit has anything that the store has not")


def git_lost(*, accept: Flag = False, options: Options = DEFAULTS) -> None:
    """List lost revisions: the store here had them, and git took them back.

    Parameters
    ----------
    accept
        Accept that they are lost: do not list them again.
    """
    with open_writing(options) if accept else open_reading(options) as store:
        found = accept_loss(store) if accept else find_lost(store)
    if options.json:
        print_json(lost_document(found, accepted=accept))
        return
    rows = [
        (
            one.stream,
            f"{one.first} to {one.last}",
            one.commit[:12] if one.commit else "in no commit",
            "others are in their place" if one.is_diverged else "",
        )
        for one in found
    ]
    if rows:
        print_table(("scope", "revisions", "commit", ""), rows)
    else:
        print_note("git took nothing back")
    if rows and not accept:
        print_note(f"bring them back: {command('recover --from-git', options.place)}")


def merge_driver(
    path: Annotated[str | None, Parameter(name="PATH")] = None,
    ours: Annotated[str | None, Parameter(name="OURS")] = None,
    theirs: Annotated[str | None, Parameter(name="THEIRS")] = None,
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Install the merge driver for the store's files in the repository; git calls it with files.

    Parameters
    ----------
    path
        The file of the store that git merges; without it the driver is installed.
    ours
        Where git put our side of it; the merged file goes there.
    theirs
        Where git put the other side of it.
    """
    if path is not None:
        if ours is None or theirs is None:
            raise UsageError("a merge needs PATH, OURS and THEIRS: git gives them as %P %A %B")
        merge_file(path, ours, theirs)
        return
    refuse_memory(options.place)
    repository = Repository.find(".")
    inside = repository.relative(options.place)
    program = f"{shlex.quote(sys.executable)} -m holdfast"
    lines = install_merge_driver(repository, inside, f"{program} git merge-driver %P %A %B")
    if options.json:
        print_json(merge_driver_document(repository.root, lines))
        return
    print_line(f"git merges {clean(inside)} with holdfast now")


def git_commit(
    *files: Annotated[str, Parameter(name="FILES", allow_leading_hyphen=True)],
    scope: str | None = None,
    summary: str | None = None,
    follow: Flag = False,
    timeout: Seconds = None,
    options: Options = DEFAULTS,
) -> None:
    """Commit files, such as views; the message lists the events of a scope since the last one.

    Parameters
    ----------
    files
        The files; without them those that [git] files of holdfast.toml names.
    scope
        The scope; without it the one that [git] scope names.
    summary
        The first line of the message.
    follow
        Keep committing after each event or turn, as [git] commit says, until interrupted.
    timeout
        With --follow: stop after this time without an event, in seconds or such as 1h30m.
    """
    settings = read_settings()
    paths = list(files) or settings.files
    name = scope or settings.scope
    if name is None or not paths:
        raise UsageError(
            "git commit needs files and a scope", hint="name them, or set [git] in holdfast.toml"
        )
    if follow and settings.commit == "off":
        raise UsageError("[git] commit of holdfast.toml is off", hint='set it to "turn" or "each"')
    repository = Repository.find(".")
    with open_reading(options) as store:
        found = find_scope(store, name)
        # Read before the first commit, so that no event falls between it and the following.
        start = store.position
        made = commit_events(found, repository, paths, summary=summary)
        _print_commit(made, options)
        if follow:
            events = store.follow(as_events=True, after=start, timeout_s=timeout)
            for one in commit_as_told(events, found, repository, paths, settings.commit):
                _print_commit(one, options)


def _print_commit(commit: Commit | None, options: Options) -> None:
    if options.json:
        print_json_line(made_commit_document(commit))
    elif commit is None:
        print_note("nothing is new")
    else:
        print_line(f"{commit.id[:12]}\t{clean(commit.summary)}")


def git_hook(
    scope: ScopeName | None = None,
    /,
    *,
    remove: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Install a hook in the repository here: it records each commit in a scope, as git record does.

    Parameters
    ----------
    scope
        The scope that commits are recorded in, such as team/support.
    remove
        Remove the hook, if it is ours.
    """
    repository = Repository.find(".")
    if remove:
        was_there = remove_hook(repository)
        if options.json:
            print_json(hook_document(repository.root, None))
        else:
            print_line("the hook is removed" if was_there else "there is no hook of ours")
        return
    if scope is None:
        raise UsageError("git hook needs a scope, or --remove", hint="holdfast git hook team/red")
    refuse_memory(options.place)
    place = options.place if ":" in options.place else os.path.abspath(options.place)
    words = [sys.executable, "-m", "holdfast", "git", "record", check_scope_name(scope)]
    path = install_hook(repository, shlex.join([*words, "--store", place]))
    if options.json:
        print_json(hook_document(repository.root, path))
    else:
        print_line(f"installed {clean(path)}")


def rebuild(*, from_git: Flag = False, options: Options = DEFAULTS) -> int:
    """Rebuild events that the log lacks from the messages of commits; compare those that it has.

    Parameters
    ----------
    from_git
        From the messages that git commit wrote in the repository here.
    """
    if not from_git:
        raise UsageError("rebuild needs to know from what", hint="holdfast rebuild --from-git")
    repository = Repository.find(".")
    with open_writing(options) as store:
        done = rebuild_from_git(kernel_of(store).log, repository)
    if options.json:
        print_json(rebuilt_document(done))
    else:
        print_line(f"{done.added} events were added, {done.agree} agree with the log")
        for place in done.differ:
            print_line(f"DIFFERS\t{clean(place)}")
        for place in done.missing:
            print_line(f"MISSING\t{clean(place)}\tno commit tells it whole, or one before it")
    return CorruptError.exit_code if done.differ else 0
