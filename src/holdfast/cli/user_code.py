"""The user's code: loaded because the command line names it, never because stored data does."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.cli.decisions import load_config
from holdfast.core.schema import is_schema
from holdfast.errors import NotFoundError, UsageError
from holdfast.nodes.define import Graph, is_graph
from holdfast.projections import Projection
from holdfast.query.vectors import Embedder
from holdfast.runs.define import RunFunction, find_run, is_run

FORMS = "write it like review.py:review or package.module:review"


def load(code: str, modules: Sequence[str] | None = None) -> ModuleType:
    """Loads further modules (verifiers, children), then the code that was typed, and returns it."""
    load_config(None)
    for name in modules or ():
        load_module(name)
    return load_module(split(code)[0])


def load_run(code: str, modules: Sequence[str] | None = None) -> RunFunction[..., Any]:
    """Returns the run that `FILE.py:function` or `module:function` names."""
    place, name = split(code)
    module = load(code, modules)
    known = runs_of(module)
    if not name and len(known) == 1:
        return known[next(iter(known))]
    if name in known:
        return known[name]
    listed = ", ".join(known)
    if known and not name:
        raise UsageError(f'"{place}" has several runs: {listed}', hint=FORMS)
    if not known:
        raise NotFoundError(f'"{place}" has no run', hint="put @holdfast.run above the function")
    raise NotFoundError(f'"{place}" has no run "{name}": it has {listed}', hint=FORMS)


def load_graph(code: str, modules: Sequence[str] | None = None) -> Graph:
    """Returns the graph that `FILE.py:graph` or `module:graph` names, by its variable or name."""
    place, name = split(code)
    module = load(code, modules)
    found = {key: value for key, value in vars(module).items() if is_graph(value)}
    known = {**{graph.name: graph for graph in found.values()}, **found}
    if not name and len(found) == 1:
        return found[next(iter(found))]
    if name in known:
        return known[name]
    listed = ", ".join(found)
    if found and not name:
        raise UsageError(f'"{place}" has several graphs: {listed}', hint=FORMS)
    if not found:
        raise NotFoundError(f'"{place}" has no graph', hint="make one with holdfast.Graph")
    raise NotFoundError(f'"{place}" has no graph "{name}": it has {listed}', hint=FORMS)


def load_embedder(code: str) -> Embedder:
    """Returns the embedder that `FILE.py:name` or `module:name` names."""
    place, name = split(code)
    module = load(code)
    found: dict[str, Embedder] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, Embedder) and not isinstance(value, type)
    }
    if not found:
        raise NotFoundError(
            f'"{place}" has no embedder',
            hint="make an object with a name, a dimension and a method embed(texts)",
        )
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        raise NotFoundError(
            f'"{place}" has no embedder "{name}": it has {", ".join(found)}', hint=FORMS
        )
    return found[name]


def load_schemas(code: str, *, items: bool = False) -> list[type[Any]]:
    """Returns the schemas of scopes in a file or module, or only the one named after `:`.

    With `items` it also returns the schemas of decisions and messages.
    """
    place, name = split(code)
    module = load(code)
    found = {key: value for key, value in vars(module).items() if is_schema(value, items=items)}
    if not found:
        raise NotFoundError(
            f'"{place}" has no schema', hint="put @holdfast.schema above the class of a state"
        )
    if not name:
        return list(dict.fromkeys(found.values()))
    if name not in found:
        raise NotFoundError(f'"{place}" has no schema "{name}": it has {", ".join(found)}')
    return [found[name]]


def load_projection(code: str, modules: Sequence[str] | None = None) -> Projection:
    """Returns the projection that `FILE.py:name` or `module:name` names."""
    place, name = split(code)
    module = load(code, modules)
    known = {key: one for key, one in vars(module).items() if isinstance(one, Projection)}
    if not name and len(known) == 1:
        return known[next(iter(known))]
    if name in known:
        return known[name]
    listed = ", ".join(known)
    if known and not name:
        raise UsageError(f'"{place}" has several projections: {listed}', hint=FORMS)
    raise NotFoundError(
        f'"{place}" has no projection{f" {name!r}: it has {listed}" if known else ""}',
        hint="put @holdfast.projection() above the class or function",
    )


def run_by_name(name: str, id: str, code: str) -> RunFunction[..., Any]:
    """Returns the run function of a stored name, which the loaded code must define."""
    try:
        return find_run(name)
    except NotFoundError as absent:
        raise NotFoundError(
            f'run "{id}" is a "{name}", which "{code}" does not define',
            hint="name the file or module that defines it",
        ) from absent


def runs_of(module: ModuleType) -> dict[str, RunFunction[..., Any]]:
    """Returns the run functions of a module, by the names they have there."""
    return {name: value for name, value in vars(module).items() if is_run(value)}


def split(code: str) -> tuple[str, str]:
    """Returns the file or module that was typed, and the function after the colon, if any."""
    place, colon, name = code.rpartition(":")
    if not colon:
        return code, ""
    return place, name


def load_module(place: str) -> ModuleType:
    """Loads a file, as `python FILE.py` would name and find things, or imports a module."""
    if place.endswith(".py"):
        return _load_file(Path(place))
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f'"{place}" is neither a Python file nor a module', hint=FORMS)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as absent:
        if absent.name is None or not f"{place}.".startswith(f"{absent.name}."):
            raise _broken(place, absent) from absent
        raise NotFoundError(f'there is no module "{place}" here', hint=FORMS) from absent
    except (Exception, SystemExit) as error:
        raise _broken(place, error) from error


def _load_file(path: Path) -> ModuleType:
    """Loads a file under its stem: the name that its runs have when it is run as a program."""
    if not path.is_file():
        raise NotFoundError(f'there is no file "{path}"', hint=FORMS)
    path = path.resolve()
    name = path.stem
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise UsageError(
            f'"{path.name}" has the name of a module that is loaded already',
            hint="give the file another name",
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "BUG: a .py file has a loader"
    assert spec.loader is not None, "BUG: a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python FILE.py` does, for modules beside it
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(path.name, error) from error
    return module


def _broken(place: str, error: BaseException) -> UsageError:
    """Returns the error for code that failed to load, with the line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" at {outside[-1].filename}:{outside[-1].lineno}" if len(outside) > 1 else ""
    if isinstance(error, SyntaxError):
        where = f" at {error.filename}:{error.lineno}"
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return UsageError(
        f'"{place}" cannot be loaded: {text}{where}', hint="correct it, then try again"
    )
