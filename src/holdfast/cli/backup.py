"""Verbs for backups and files of scopes: backup, its list|restore|drill|prune, export, import."""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import holdfast
from holdfast import backup as backups
from holdfast.cli.completion import ScopeName
from holdfast.cli.options import (
    DEFAULTS,
    Options,
    command,
    open_reading,
    open_writing,
    refuse_memory,
)
from holdfast.cli.parsing import find_scope, read_time
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.cli.store import progress_shown
from holdfast.errors import UnavailableError, UsageError
from holdfast.exchange import new_file
from holdfast.interchange import Exported, export_scopes, import_scopes
from holdfast.render.backup import (
    export_document,
    import_document,
    point_document,
    points_document,
    pruned_document,
    restored_document,
)
from holdfast.render.text import clean, show_time

Folder = Annotated[str, Parameter(name="DEST")]


def make(dest: Folder, /, *, label: str = "", options: Options = DEFAULTS) -> None:
    """Add a point to a backup: first all of a store, later what is new; others may use the store.

    Parameters
    ----------
    dest
        The folder of the backup; made if it does not exist. It must hold nothing else.
    label
        A name for the point, beside p1, p2, …
    """
    refuse_memory(options.place)
    with (
        open_reading(options) as store,
        progress_shown(quiet=options.json) as progress,
    ):
        point = backups.backup(store, dest, label=label, progress=progress)
    if options.json:
        print_json(point_document(point))
    else:
        print_line(
            f"point {point.name} in {clean(dest)}: {point.new_events} new events, "
            f"{point.events} in all, {point.streams} streams"
        )
        print_line(f"digest\t{point.digest}")
    for stream, problem in point.damaged.items():
        print_note(f"damaged: {clean(stream)}: {clean(problem)}")
    if point.let_go:
        print_note(
            f"{point.let_go} events of older points were let go of since: no later point has "
            f"their data, and holdfast backup prune {clean(dest)} takes it out of the folder"
        )
    if point.damaged:
        print_note(f"what verifies is in the backup; see {command('check', options.place)}")


def list_points(dest: Folder, /, *, options: Options = DEFAULTS) -> None:
    """List the points of a backup, oldest first.

    Parameters
    ----------
    dest
        The folder of the backup.
    """
    found = backups.points(dest)
    if options.json:
        print_json(points_document(found))
        return
    rows = [
        (
            point.name,
            show_time(point.at),
            str(point.events),
            f"+{point.new_events}",
            point.label,
            _remarks(point),
        )
        for point in found
    ]
    print_table(("point", "time", "events", "new", "label", ""), rows)


def _remarks(point: backups.Point) -> str:
    damaged = f"{len(point.damaged)} damaged" if point.damaged else ""
    return ", ".join(filter(None, [damaged, "" if point.is_proved else "not proved"]))


def restore(
    dest: Folder,
    target: Annotated[str, Parameter(name="TARGET")],
    /,
    *,
    at: str | None = None,
    scope: ScopeName | None = None,
    to_key: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Restore a backup into a new store of any kind, as it was at a point.

    Parameters
    ----------
    dest
        The folder of the backup.
    target
        The store to restore into; made if it does not exist. It must hold nothing else.
    at
        The point: its name, its label, or a time (then the newest point that is not later).
    scope
        Only this scope, by its full name, with the scopes that it was forked from.
    to_key
        The store key of TARGET, if it differs from that of the backup (--store-key).
    """
    refuse_memory(target)
    point = backups.find_point(dest, parse_point(at))
    backups.check_readable(dest, scope, store_key=options.store_key or to_key)
    with (
        holdfast.open(
            target,
            actor=options.writer,
            store_key=to_key or options.store_key,
            tenant=options.tenant,
        ) as store,
        progress_shown(quiet=options.json) as progress,
    ):
        restored = backups.restore(
            dest,
            store,
            at=point.name,
            scope=scope,
            store_key=options.store_key,
            progress=progress,
        )
    if options.json:
        print_json(restored_document(restored))
        return
    copied = restored.copied
    print_line(
        f"restored {point.name} of {show_time(point.at)}: {copied.events} events, "
        f"{copied.skipped} were there already"
        + (f", {copied.ended} of expired scopes were not restored" if copied.ended else "")
    )
    print_line(f"digest\t{restored.digest}")
    print_note(f"look at it: {command('scopes', target)}")


def drill(dest: Folder, /, *, at: str | None = None, options: Options = DEFAULTS) -> None:
    """Restore a backup into a store that is thrown away, and read every event of it.

    Parameters
    ----------
    dest
        The folder of the backup; the drill needs as much space beside it as the store has.
    at
        The point: its name, its label, or a time; without it, the newest.
    """
    with progress_shown(quiet=options.json) as progress:
        restored = backups.drill(
            dest, at=parse_point(at), store_key=options.store_key, progress=progress
        )
    if options.json:
        print_json(restored_document(restored))
        return
    print_line(
        f"{restored.point.name} can be restored: {restored.copied.events} events were read, each "
        "verified"
    )
    print_line(f"digest\t{restored.digest}")


def prune(dest: Folder, /, *, options: Options = DEFAULTS) -> None:
    """Take out of a backup what its store has let go of since, at every point.

    Parameters
    ----------
    dest
        The folder of the backup.
    """
    pruned = backups.prune(dest, store_key=options.store_key)
    if options.json:
        print_json(pruned_document(pruned))
        return
    print_line(
        f"{pruned.events} events lost their data, {pruned.bytes} bytes, and {pruned.blobs} blobs "
        f"went from {clean(dest)}"
    )
    for one in pruned.left:
        print_note(f"left: {clean(one.where)}: {clean(one.remedy)}")


def parse_point(text: str | None) -> str | datetime | None:
    """Returns what names a point: a time if the text reads as one, else the text."""
    return text if text is None else read_time(text) or text


def export(
    *scopes: Annotated[str, Parameter(name="SCOPE")],
    to: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Write scopes, or all of a store, into one readable JSONL file.

    Parameters
    ----------
    scopes
        The scopes; without one, everything.
    to
        The file, which must not exist; without it, standard output.
    """
    with open_reading(options) as store:
        names = [find_scope(store, name).name for name in scopes]
        if to is None:
            if options.json:
                raise UsageError(
                    "--json tells what was exported, and the export itself is on standard output",
                    hint="name a file: --to FILE",
                )
            export_scopes(store, names, sys.stdout.buffer)
            return
        with progress_shown(quiet=options.json, what="writing events") as progress:
            written = _export_to(store, names, Path(to), progress)
    if options.json:
        print_json(export_document(written))
        return
    print_line(
        f"wrote {written.events} events of {len(written.streams)} streams, {written.blobs} blobs "
        f"and {written.marks} marks to {clean(to)}"
    )


def _export_to(
    store: holdfast.Store, names: list[str], path: Path, progress: backups.Progress | None
) -> Exported:
    """Writes an export beside its path, and gives it its name when it is complete."""
    try:
        with new_file(path) as file:
            return export_scopes(store, names, file, progress=progress)
    except OSError as error:
        raise UnavailableError(f'"{path}" cannot be written: {error.strerror}') from error


def import_file(
    file: Annotated[str, Parameter(name="FILE", allow_leading_hyphen=True)],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Read scopes from a file that export wrote; what is there already is left as it is.

    Parameters
    ----------
    file
        The file; - for standard input.
    """
    with open_writing(options) as store, progress_shown(quiet=options.json) as progress:
        if file == "-":
            with tempfile.NamedTemporaryFile(prefix="holdfast-import-") as spooled:
                while data := sys.stdin.buffer.read(1 << 20):
                    spooled.write(data)
                spooled.flush()
                done = import_scopes(store, spooled.name, progress=progress)
        else:
            done = import_scopes(store, file, progress=progress)
    if options.json:
        print_json(import_document(done))
        return
    print_line(
        f"imported {done.events} events of {len(done.streams)} streams, {done.blobs} blobs and "
        f"{done.marks} marks; {done.skipped} events were there already"
    )
