"""Executes programs as runs of the function `prose`, with everything they need as inputs.

The source of a program and of every program that it uses is stored at its start, so that `resume`
needs no file. An edited source is put into the run's state and is used from then on. Where it
differs from what was done already, the run diverges like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from holdfast.core.kernel import kernel_of
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.prose import fetching
from holdfast.prose import syntax as tree
from holdfast.prose.interpreter import Interpreter, calls_max
from holdfast.prose.settings import Settings, settings_of
from holdfast.prose.source import decoded, load
from holdfast.prose.values import failure
from holdfast.runs.define import run
from holdfast.runs.engine import Engine
from holdfast.scope import Scopes

if TYPE_CHECKING:
    from holdfast.runs.engine import Run
    from holdfast.store import Store

NAME = "prose"
SUFFIX = ".prose"
EDITED = "program"
"""The key of an edited program in the state of its run."""
FRAMES_A_CALL = 60
"""Python frames to allow for each nested block call; the default limit is too low for many."""


class Source(Struct, frozen=True, omit_defaults=True):
    """One stored program; `uses` maps its names for the programs that it uses to their keys."""

    file: str
    text: str
    uses: dict[str, str] = {}


class Stored(Struct, frozen=True, omit_defaults=True):
    """The input of a run: the programs, their inputs and settings."""

    main: str
    sources: dict[str, Source]
    inputs: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    is_used: bool = False

    @property
    def source(self) -> Source:
        """The program itself."""
        return self.sources[self.main]


@lru_cache(maxsize=256)
def loaded(text: str, file: str) -> tree.Program:
    """Returns the syntax tree of a program; raises ProgramError if it has errors."""
    return load(text, file)


@run(name=NAME)
def prose(ctx: Any, program: dict[str, Any]) -> Any:
    """Executes a program over a run's journal."""
    stored = msgspec.convert(program, Stored)
    if not stored.is_used:
        edited = ctx.state.get(EDITED)
        if edited is not None:
            sources = msgspec.convert(_plain(edited), dict[str, Source])
            stored = msgspec.structs.replace(stored, sources=sources)
    source = stored.source

    def call(ctx: Any, name: str, given: dict[str, Any], key: str | None, where: str) -> Any:
        used = Stored(source.uses[name], stored.sources, given, stored.settings, is_used=True)
        known = inputs_of(used)
        for one in given:
            if one not in known:
                listed = ", ".join(known) or "none"
                said = f'{name} has no input "{one}": it has {listed}'
                raise failure("TypeError", said, int(where.rpartition(":")[2]))
        return ctx.run(prose, msgspec.to_builtins(used), key=key, label=name, source=where)

    tree_ = loaded(source.text, source.file)
    frames = FRAMES_A_CALL * calls_max(tree_)
    if sys.getrecursionlimit() < frames:
        sys.setrecursionlimit(frames)
    interpreter = Interpreter(tree_, settings_of(stored.settings), stored.inputs, call)
    result, has_outputs = interpreter.run(ctx)
    return result if has_outputs or not stored.is_used else {"output": result}


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value


def gather(
    path: Path, imports: Sequence[Path] = (), fetch: Callable[[str], bytes] | None = None
) -> Stored:
    """Returns a program with all that it uses, read from files.

    Programs that `use` names are searched beside the program, then in `imports`. A URL is fetched
    with `fetch`, and refused without it. Raises ProgramError if a program has errors.
    """
    gathering = _Gathering(imports, fetch)
    main = gathering.add_file(path)
    return Stored(main, gathering.sources)


def gather_text(text: str, file: str = "program.prose") -> Stored:
    """Returns a program from its text; raises UsageError if it uses other programs."""
    for statement in loaded(text, file).body:
        if isinstance(statement, tree.Use):
            raise UsageError(f'{file} uses "{statement.path}": start it from its file')
    return Stored(file, {file: Source(file, text)})


class _Gathering:
    """The programs that one program consists of, while they are collected."""

    def __init__(self, imports: Sequence[Path], fetch: Callable[[str], bytes] | None) -> None:
        self.sources: dict[str, Source] = {}
        self._imports = imports
        self._fetch = fetch

    def add_file(self, path: Path) -> str:
        """Adds the program in a file; returns its key."""
        real = path.resolve()
        for known in self.sources:
            if not fetching.is_url(known) and Path(known).resolve() == real:
                return known
        data = read_program_file(path)

        def find(name: str) -> str:
            return self.add_file(find_used(name, path.parent, self._imports))

        return self._add(str(path), data, find)

    def add_url(self, url: str) -> str:
        """Adds the program at a URL; returns its key.

        The programs that it uses are fetched from beside it. It must never reach a local file.
        """
        if url in self.sources:
            return url
        if self._fetch is None:
            raise UsageError(
                f"the program {url} is elsewhere, and nothing is fetched without being asked for",
                hint="give --fetch, or save it beside the program",
            )
        data = self._fetch(url)

        def find(name: str) -> str:
            found = fetching.beside(url, name)
            return self.add_url(found if found.endswith(SUFFIX) else f"{found}{SUFFIX}")

        return self._add(url, data, find)

    def _add(self, key: str, data: bytes, find: Callable[[str], str]) -> str:
        text = decoded(data, key)
        program = loaded(text, key)
        self.sources[key] = Source(key, text)  # added first: programs that it uses may use it
        uses = {
            one.name: self.add_url(one.path) if fetching.is_url(one.path) else find(one.path)
            for one in program.body
            if isinstance(one, tree.Use)
        }
        self.sources[key] = Source(key, text, uses)
        return key


def find_used(name: str, beside: Path, imports: Sequence[Path]) -> Path:
    """Returns the file that `use` names."""
    for folder in (beside, *imports):
        for candidate in (folder / name, folder / f"{name}{SUFFIX}"):
            if candidate.is_file():
                return candidate
    raise NotFoundError(
        f'there is no program "{name}" beside "{beside}"',
        hint="[prose] imports of holdfast.toml names further directories",
    )


def read_program_file(path: Path) -> bytes:
    """Returns the bytes of a file; raises NotFoundError or UnavailableError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f'there is no file "{path}"', hint="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f'the file "{path}" cannot be read: {reason}') from error


def start(
    store: Store,
    program: Stored,
    inputs: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,
    settings: Settings | None = None,
    subject: str | None = None,
) -> Run[Any]:
    """Starts a program as a run; nothing is committed if the arguments are wrong.

    With `subject` the run belongs to that subject, as with `store.runs.start(…, subject=…)`.
    """
    chosen = settings or Settings()
    chosen.check()
    given = dict(inputs or {})
    known = inputs_of(program)
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(f'{program.main} has no input "{name}": it has {listed}')
    stored = msgspec.structs.replace(program, inputs=given, settings=msgspec.to_builtins(chosen))
    document = msgspec.to_builtins(stored)
    if subject is not None and id is not None:
        kernel_of(store).part(Scopes).check_opaque(id, "run id")
    return kernel_of(store).part(Engine).start(prose, (document,), {}, id=id, subject=subject)


def inputs_of(program: Stored) -> list[str]:
    """Returns the names of a program's inputs."""
    source = program.source
    found: list[str] = []
    waiting: list[Any] = list(loaded(source.text, source.file).body)
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, tree.Input):
            found.append(one.name)
        for _, body in tree.bodies(one):
            waiting += body
    return found


def put_edited(store: Store, id: str, program: Stored) -> None:
    """Puts an edited program into the state of a run, for when the run is resumed."""
    store.workflow(id).set(EDITED, msgspec.to_builtins(program.sources))


def stored_of(store: Store, id: str) -> Stored:
    """Returns the current program of a run: the edited one, else the one it was started with."""
    created = store.runs.get(id).journal.created
    if created is None or created.name != NAME:
        raise UsageError(f'run "{id}" is no program', hint="holdfast runs show tells what it is")
    stored = msgspec.convert(kernel_of(store).part(Engine).load(created.inputs)["program"], Stored)
    edited = store.workflow(id).get(EDITED)
    if edited is None:
        return stored
    sources = msgspec.convert(_plain(edited), dict[str, Source])
    return msgspec.structs.replace(stored, sources=sources)
