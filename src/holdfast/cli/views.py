"""Verbs for files that people edit: views write, watch, status, accept, reject."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.options import DEFAULTS, Flag, Options, Seconds, open_source, open_writing
from holdfast.cli.printing import print_json, print_json_line, print_line, print_note, print_table
from holdfast.core.kernel import kernel_of
from holdfast.errors import NotFoundError
from holdfast.render.text import clean, show_time
from holdfast.render.views import finding_document, findings_document, view_statuses_document
from holdfast.store import Store
from holdfast.views.config import FILE, configured_views, state_views
from holdfast.views.directory import Views
from holdfast.views.item import Finding

Directory = Annotated[str, Parameter(name="DIRECTORY")]
ViewFile = Annotated[str, Parameter(name="FILE")]


def _opened(store: Store, directory: str) -> Views:
    """Returns the views of a directory: those of its holdfast.toml, else one state for each scope.

    A holdfast.toml in the current directory counts too, if it names that directory.
    """
    for place in (Path(directory) / FILE, Path(FILE)):
        try:
            found = configured_views(store, place)
        except NotFoundError:
            continue
        is_there = found.directory.resolve() == Path(directory).resolve()
        if is_there or place.parent == Path(directory):
            return found
    return Views(store, directory, [], more=lambda: state_views(store, "json"))


def write(directory: Directory = ".", /, *, options: Options = DEFAULTS) -> None:
    """Import what was edited in view files, and write those that are behind.

    Parameters
    ----------
    directory
        The directory of the files. Its holdfast.toml names them under [views]; without that, the
        newest state of every scope is written to state/NAME.json.
    """
    with open_writing(options) as store, _opened(store, directory) as views:
        _print_findings(views.sync(), options)
        if not options.json:
            print_note(f"{len(views.files)} files in {clean(str(views.directory))} are up to date")


def watch(
    directory: Directory = ".",
    /,
    *,
    timeout: Seconds = None,
    options: Options = DEFAULTS,
) -> None:
    """Keep view files fresh: after each commit, and after each edit. Ends with Ctrl-C.

    Parameters
    ----------
    directory
        The directory of the files, as of views write.
    timeout
        End after this time, such as 30s.
    """

    def tell(finding: Finding) -> None:
        if options.json:
            print_json_line(finding_document(finding))
        else:
            print_line(clean(str(finding)))

    with open_writing(options) as store, _opened(store, directory) as views:
        views.keep_fresh(tell)
        ends = None if timeout is None else time.monotonic() + timeout
        clock = kernel_of(store).clock
        try:
            while ends is None or time.monotonic() < ends:
                clock.sleep(0.1 if ends is None else min(0.1, max(0.0, ends - time.monotonic())))
        except KeyboardInterrupt:
            print_note("the files are not kept fresh any more")


def status(
    directory: Directory = ".", /, *, diff: Flag = False, options: Options = DEFAULTS
) -> int:
    """Show how view files differ from the store; exit code 1 if one waits or is broken.

    Every edit that the store does not have yet is named: so far only readers of the file see it.

    Parameters
    ----------
    directory
        The directory of the files, as of views write.
    diff
        Show how an edited file differs from what was written last.
    """
    with (
        open_source(options.place, store_key=options.store_key) as store,
        _opened(store, directory) as views,
    ):
        found = views.status()
    if options.json:
        print_json(view_statuses_document(found))
    else:
        rows = [
            (
                one.file,
                one.status,
                one.scope,
                "" if one.changed_at is None else show_time(one.changed_at),
                one.message,
            )
            for one in found
        ]
        print_table(("file", "status", "scope", "saved", ""), rows)
        for one in found if diff else ():
            if one.diff and one.status != "fresh":
                for line in one.diff.splitlines():
                    print_line(clean(line))
    return int(any(one.status in ("pending", "broken") for one in found))


def accept(file: ViewFile, directory: Directory = ".", /, *, options: Options = DEFAULTS) -> None:
    """Import an edit that waits because more than half of the items are gone from the file.

    Parameters
    ----------
    file
        The file, by its path in the directory.
    directory
        The directory of the files, as of views write.
    """
    with open_writing(options) as store, _opened(store, directory) as views:
        views.status()
        _print_findings(views.accept(file), options)


def reject(file: ViewFile, directory: Directory = ".", /, *, options: Options = DEFAULTS) -> None:
    """Put back what the store has in place of an edit, which is kept beside the file.

    Parameters
    ----------
    file
        The file, by its path in the directory.
    directory
        The directory of the files, as of views write.
    """
    with open_writing(options) as store, _opened(store, directory) as views:
        views.status()
        _print_findings(views.reject(file), options)


def _print_findings(findings: list[Finding], options: Options) -> None:
    if options.json:
        print_json(findings_document(findings))
        return
    for one in findings:
        print_line(clean(str(one)))
