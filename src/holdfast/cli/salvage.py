"""The verb that takes over what verifies of a damaged store: salvage."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import IO, Annotated, Any

from cyclopts import Parameter

import holdfast
from holdfast.cli.options import DEFAULTS, Options, open_place, place_of, refuse_memory
from holdfast.cli.printing import print_json, print_line, print_note
from holdfast.cli.store import progress_shown
from holdfast.copy import Salvaged, salvage
from holdfast.core.event import Event
from holdfast.errors import CorruptError, UnavailableError
from holdfast.exchange import new_file
from holdfast.names import without_secrets
from holdfast.render.history import event_document
from holdfast.render.store import salvage_document
from holdfast.render.text import clean, encode_json

REST = ".rest.jsonl"


def salvage_store(
    damaged: Annotated[str, Parameter(name="STORE")],
    new: Annotated[str, Parameter(name="NEW")],
    /,
    *,
    rest: str | None = None,
    to_key: str | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Take over what verifies of a damaged store into a new one, and list the rest.

    Parameters
    ----------
    damaged
        The damaged store. It is opened read-only and is never changed.
    new
        The store to make, of any kind. It must be empty, or left by a salvage that was stopped.
    rest
        The file for events that can be read but not taken over, in clear. Default: beside NEW.
    to_key
        The store key of NEW, if it is to be encrypted. --store-key is that of DAMAGED.
    """
    refuse_memory(new)
    file = RestFile(rest or _beside(new))
    with (
        open_place(
            place_of(damaged, options.tenant), read_only=True, store_key=options.store_key
        ) as source,
        holdfast.open(new, actor=options.writer, store_key=to_key) as target,
        progress_shown(quiet=options.json, what="salvaging events") as progress,
        file.kept(),
    ):
        result = salvage(source, target, progress=progress, rest=file.add)
        digest = target.status()["digest"]
    if options.json:
        places = without_secrets(damaged), without_secrets(new)
        print_json(salvage_document(*places, result, file.written, digest))
    else:
        _print(result, file, digest)
    return 0 if result.ok else CorruptError.exit_code


def _print(result: Salvaged, file: RestFile, digest: str) -> None:
    copied = result.copied
    for finding in result.findings:
        kind = "harmless" if finding.harmless else "DAMAGED"
        print_line(f"{kind}\t{clean(finding.where)}\t{clean(finding.problem)}")
    for cut in result.cut:
        later = f"; {cut.found} later events, {cut.first} to {cut.last}, were found"
        found = f"taken over up to revision {cut.revision}: {clean(cut.problem)}"
        print_line(f"cut\t{clean(cut.stream)}\t{found}{later if cut.found else ''}")
    for stream in result.doubtful:
        print_line(f"in doubt\t{clean(stream)}\tits newest events may be lost")
    print_line(
        f"took over {copied.events} events of {result.streams} streams in {copied.commits} commits "
        f"and {copied.blobs} blobs, {copied.skipped} events were there already"
    )
    print_line(f"digest\t{digest}")
    if file.written:
        print_line(f"rest\t{clean(file.written)}")
        print_note("which has the later events of streams that are cut")
    elif any(cut.found for cut in result.cut):
        print_line("rest\tnot kept: --rest FILE keeps the later events of streams that are cut")


def _beside(new: str) -> str | None:
    """Returns a path beside the new store; None for a store on a server, and for a mixed one."""
    if "://" in new or new.endswith(".toml"):
        return None
    return new.partition(":")[2].rstrip("/") + REST if ":" in new else new.rstrip("/") + REST


class RestFile:
    """A file of events as lines of JSON, made only if there are any; it is complete or absent.

    The events are for people to read: they are not part of the new store, which does not name them.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._named = ExitStack()
        self.written: str | None = None

    @contextmanager
    def kept(self) -> Generator[None]:
        """Gives the file its name when the block ends; removes it if the block raises."""
        with self._named:
            yield
        if self._file is not None:
            self.written = self._path

    def add(self, event: Event) -> None:
        """Adds an event; the first one makes the file, readable by its owner alone."""
        if self._path is None:
            return
        if self._file is None:
            try:
                # A salvage that is run again replaces the file of the one before.
                made = new_file(self._path, mode=0o600, replaces=True)
                self._file = self._named.enter_context(made)
            except OSError as exc:
                raise UnavailableError(
                    f'"{self._path}" cannot be written: {exc.strerror}', hint="name another --rest"
                ) from exc
        self._file.write(encode_json(_document(event)) + b"\n")


def _document(event: Event) -> dict[str, Any]:
    try:
        return event_document(event)
    except CorruptError:  # text that is not a value: shown as it is
        text = event.record.payload.decode(errors="replace")
        return {"scope": event.stream, "revision": event.revision, "type": event.type, "text": text}
