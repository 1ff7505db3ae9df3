"""Finds private reaches: `X._name` where the name is private to another unit of the package.

    python tools/reaches.py

A unit is a package or module right below `src/holdfast`. The modules of one unit may share private
names. Nobody else may use them, by any variable and by `getattr`: a layer asks the kernel of a
store (`kernel_of`) and the stream of a scope (`scope_stream`). A name that a unit has itself is no
excuse for reaching one of the same name in a store, a scope or a log, so for these the object must
be known to be of the unit: by its annotation, or by that of the parameter it comes from.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"
STANDARD = {"_asdict", "_exit", "_fields", "_getframe", "_is_owned", "_replace", "_sock"}
"""Names of the standard library and of drivers, which only look private."""
FREE = {"aio", "store.py"}
"""Units that are other sides of one object: a store hands out its parts, and `aio` awaits them."""
GUARDED = {"Store": "store.py", "Scope": "scope.py"}
"""Classes whose private names nobody else reaches, and the unit that each belongs to."""
LOGS = ("log", "_log")
"""What a log is called wherever there is one; it belongs to the core."""
OWN = {"self", "cls", "super()", "type(self)"}
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
Place = str
"""The path of a module below the package."""
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Reach(NamedTuple):
    """One private reach: where it is, and what it says."""

    place: Place
    line: int
    text: str

    def __str__(self) -> str:
        return f"src/holdfast/{self.place}:{self.line} {self.text}"


def reaches(modules: Mapping[Place, str]) -> list[Reach]:
    """Returns the private reaches in modules, given by their places and texts."""
    trees = {place: ast.parse(text) for place, text in modules.items()}
    private: dict[str, set[str]] = {}
    classes: dict[str, set[str]] = {}
    guarded: dict[str, set[str]] = {}
    for place, tree in trees.items():
        unit = unit_of(place)
        private.setdefault(unit, set()).update(_private_names(tree))
        defined = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        classes.setdefault(unit, set()).update(one.name for one in defined)
        for one in defined:
            if GUARDED.get(one.name) == unit:
                for name in _private_names(one):
                    guarded.setdefault(name, set()).add(unit)
    found: list[Reach] = []
    for place, tree in trees.items():
        unit = unit_of(place)
        if unit not in FREE:
            _Reaches(place, private[unit], classes[unit], guarded, found).look(tree)
    return found


def unit_of(place: Place) -> str:
    """Returns the unit of a module: its package, or itself."""
    return place.split("/")[0]


def _private_names(tree: ast.AST) -> Iterator[str]:
    """Yields the private names that are given in a module or class, those of attributes too."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                pass
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if is_private(name):
            yield name


def is_private(name: str) -> bool:
    """Says whether a name is private, and not one of Python's own."""
    return name.startswith("_") and not name.startswith("__") and name not in STANDARD


class _Reaches:
    """Looks for the private reaches of one module."""

    def __init__(
        self,
        place: Place,
        private: set[str],
        classes: set[str],
        guarded: Mapping[str, set[str]],
        found: list[Reach],
    ) -> None:
        self._place = place
        self._private = private
        self._classes = classes
        self._guarded = guarded
        self._found = found
        self._around: list[ast.AST] = []
        """The functions and classes around, the innermost last."""

    def look(self, node: ast.AST) -> None:
        """Adds the reaches at a node and below it to those that were found."""
        is_around = isinstance(node, ast.ClassDef | Function)
        if is_around:
            self._around.append(node)
        reached = _names_reached(node) if isinstance(node, ast.Attribute | ast.Call) else ()
        for owner, name in reached:
            if not self._may(owner, name):
                self._found.append(Reach(self._place, node.lineno, ast.unparse(node)))
        for one in ast.iter_child_nodes(node):
            self.look(one)
        if is_around:
            self._around.pop()

    def _may(self, owner: ast.expr, name: str) -> bool:
        said = ast.unparse(owner)
        if said in OWN:
            return True
        if name not in self._private:
            return False
        unit = unit_of(self._place)
        if said.rpartition(".")[2] in LOGS and unit != "core":
            return False
        return unit in self._guarded.get(name, {unit}) or self._is_own(owner)

    def _is_own(self, owner: ast.expr) -> bool:
        """Says whether an object is known to be of a class of this unit."""
        kind = ""
        match owner:
            case ast.Name(id=name):
                kind = self._kind_of(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                inside = [one for one in self._around if isinstance(one, ast.ClassDef)]
                kind = _attribute_kinds(inside[-1]).get(name, "") if inside else ""
            case ast.Call(func=ast.Name(id="cast"), args=[ast.Constant(value=str(said)), _]):
                kind = said
            case _:
                pass
        return bool(self._classes & _words(kind))

    def _kind_of(self, name: str) -> str:
        """Returns how the nearest function around annotates a name; else the name, of a class."""
        for one in reversed(self._around):
            if isinstance(one, Function) and name in (kinds := _kinds(one)):
                return kinds[name]
        return name


def _names_reached(node: ast.Attribute | ast.Call) -> Iterator[tuple[ast.expr, str]]:
    """Yields whose private name a node uses, and which."""
    match node:
        case ast.Attribute(value=owner, attr=name) if is_private(name):
            yield owner, name
        case ast.Call(func=ast.Name(id=by), args=[owner, ast.Constant(value=str(name)), *_]) if (
            by in BY_NAME and is_private(name)
        ):
            yield owner, name
        case ast.Call(func=ast.Name(id="attrgetter" | "methodcaller") as owner, args=names):
            for one in names:
                if isinstance(one, ast.Constant) and is_private(str(one.value)):
                    yield owner, str(one.value)
        case _:
            pass


def _kinds(function: Function) -> dict[str, str]:
    """Returns the annotations of a function's parameters and variables, by their names."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    found = {one.arg: ast.unparse(one.annotation) for one in parameters if one.annotation}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ast.unparse(node.annotation)
    return found


def _attribute_kinds(owner: ast.ClassDef) -> dict[str, str]:
    """Returns the annotations of what the methods of a class give to attributes of `self`."""
    found: dict[str, str] = {}
    for function in ast.walk(owner):
        if not isinstance(function, ast.FunctionDef):
            continue
        kinds = _kinds(function)
        for node in ast.walk(function):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Name(id=given),
                ) if given in kinds:
                    found[name] = kinds[given]
                case ast.AnnAssign(
                    target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=kind
                ):
                    found[name] = ast.unparse(kind)
                case _:
                    pass
    return found


def _words(kind: str) -> set[str]:
    """Returns the names in an annotation, one in quotes too."""
    return set("".join(one if one.isidentifier() or one.isdigit() else " " for one in kind).split())


def package() -> dict[Place, str]:
    """Returns the texts of all modules of the package."""
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text("utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


if __name__ == "__main__":
    found = reaches(package())
    print(*found, sep="\n")
    sys.exit(bool(found))
