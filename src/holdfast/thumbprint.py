"""Thumbprints: digests of values and of code, equal where nothing that counts has changed.

A value's thumbprint is the digest of its sorted encoding. A value without an encoding has no
thumbprint: a key that left something out would one day find a wrong result.

A function's thumbprint is made from its syntax tree in a special encoding, because what Python
offers differs between versions (`ast.dump`, `co_code`) or leaves constants out (`co_code`). The
encoding leaves out positions, comments, docstrings, names of modules and the names of the functions
themselves, so formatting, documenting or moving a function does not change it. It includes all that
the result depends on: constants, defaults, closure values, constant globals, and every function and
class of the user's own packages that can be reached. Other packages count by their version, the
standard library by names alone. What cannot be followed is listed, never silently left out.

The source must be that of the code that runs, but a file may have been edited since it was loaded.
So the source is compiled and compared with the function before it is used.
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import functools
import linecache
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, cast

from msgspec import Struct

from holdfast.core import codec
from holdfast.errors import UsageError, ValueDomainError, show_value

FORMAT = 1
"""Increased when the encoding of code changes, which changes every thumbprint."""

Track = Literal["closure", "self", "none"]
TRACKS: tuple[Track, ...] = ("closure", "self", "none")

OURS = "holdfast"
_MISSING: Any = object()
_type_of = cast("Callable[[Any], Any]", type)

# --- values ---------------------------------------------------------------------------------------

_registered: dict[type, Callable[[Any], Any]] = {}


def register_thumb(kind: type, function: Callable[[Any], Any]) -> None:
    """Registers how to tell apart objects of a class that cannot be stored.

    The function must return a value that can be stored, and that differs whenever the objects do.
    """
    if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"register_thumb takes a class, found {show_value(kind)}")
    if not callable(function):
        raise UsageError(f"register_thumb takes a function, found {show_value(function)}")
    _registered[kind] = function


def thumb(value: Any) -> str:
    """Returns the digest of a value; raises ValueDomainError with the place that has none."""
    try:
        return sha256(codec.encode_sorted(value)).hexdigest()
    except ValueDomainError:
        if not _registered:
            raise
    found: list[tuple[list[str | int], str, Any]] = []
    plain = _without_registered(value, (), found)
    if not found:
        # Nothing in it is registered, or a subclass refused: let the codec say where and why.
        return sha256(codec.encode_sorted(value)).hexdigest()
    # The prefix is not JSON, so no plain value can have the same bytes.
    return sha256(b"registered:" + codec.encode_sorted([plain, found])).hexdigest()


def _without_registered(
    value: Any, path: tuple[str | int, ...], found: list[tuple[list[str | int], str, Any]]
) -> Any:
    """Replaces every object of a registered class by None, and adds it to `found`."""
    if len(path) > codec.DEPTH_MAX:
        raise ValueDomainError("value is nested too deeply, or contains itself", path=path)
    for kind in type(value).__mro__:
        function = _registered.get(kind)
        if function is not None:
            name = f"{kind.__module__}.{kind.__qualname__}"
            found.append(([*path], name, codec.decode(codec.encode(function(value), path=path))))
            return None
    if isinstance(value, codec.Thawable):
        return value
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        return {k: _without_registered(v, (*path, str(k)), found) for k, v in table.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_without_registered(item, (*path, n), found) for n, item in enumerate(items)]
    return value


# --- the syntax tree ------------------------------------------------------------------------------

_LEFT_OUT = frozenset({"type_comment", "type_ignores", "kind", "ctx"})


def encode_tree(node: Any) -> Any:
    """Encodes a syntax tree as plain lists, the same in every version of Python.

    An empty field is left out together with its name. So a field that a later version adds changes
    nothing for code that does not use it.
    """
    if isinstance(node, ast.Constant):
        return ["Constant", _encode_constant(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", _joined(node)]
    if isinstance(node, ast.AST):
        encoded: list[Any] = [type(node).__name__]
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT or value is None or value == []:
                continue
            if name == "body" and isinstance(node, _WITH_DOCSTRING):
                value = _without_docstring(cast("list[ast.stmt]", value))
            if name == "format_spec" and isinstance(value, ast.JoinedStr) and not _joined(value):
                continue
            encoded.append([name, encode_tree(value)])
        return encoded
    if isinstance(node, list):
        return [encode_tree(item) for item in cast("list[Any]", node)]
    return node  # an identifier, the level of an import, a conversion, or None


_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_docstring = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body


def _joined(node: ast.JoinedStr) -> list[Any]:
    """Returns the parts of an f-string, with adjacent texts joined."""
    parts: list[Any] = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            text = str(value.value)
            if text and parts and parts[-1][0] == "text":
                parts[-1][1] += text
            elif text:
                parts.append(["text", text])
        else:
            parts.append(encode_tree(value))
    return parts


def _encode_constant(value: Any) -> Any:
    """Encodes a constant of the source so that 1, 1.0, True and "1" differ."""
    if value is Ellipsis:
        return ["ellipsis"]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, str):
        # A source may have lone surrogates, written as escapes.
        return [
            "str",
            value.encode("utf-8", "surrogatepass").hex() if "\\" in repr(value) else value,
        ]
    return [type(value).__name__, repr(value)]


# --- the source of a function ---------------------------------------------------------------------


class _Module(Struct, frozen=True):
    """The source of one file: its syntax tree, and the code objects that it compiles to."""

    tree: ast.Module
    codes: dict[tuple[str, int], list[CodeType]]


_modules: dict[str, _Module | None] = {}
_reading = threading.RLock()


def _read_module(filename: str, *, again: bool = False) -> _Module | None:
    """Returns the source of a file, parsed once, or None if there is none."""
    with _reading:
        if filename in _modules and not again:
            return _modules[filename]
        if filename.startswith("<"):
            return None  # typed or generated code: only some versions of Python keep its text
        if again:
            linecache.checkcache(filename)
        lines = linecache.getlines(filename)
        module = None
        if lines:
            text = "".join(lines)
            try:
                tree = ast.parse(text)
                compiled = compile(text, filename, "exec", dont_inherit=True)
            except SyntaxError:
                tree = None
            else:
                codes: dict[tuple[str, int], list[CodeType]] = {}
                for code in _codes_in(compiled):
                    codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
                module = _Module(tree, codes)
        _modules[filename] = module
        return module


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _same_code(one: CodeType, other: CodeType) -> bool:
    """Returns whether two code objects do the same, wherever they stand."""
    if (one.co_code, one.co_names, one.co_varnames) != (
        other.co_code,
        other.co_names,
        other.co_varnames,
    ) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(map(_same_constant, one.co_consts, other.co_consts))


def _same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _same_code(one, other)
    return _type_of(one) is _type_of(other) and repr(one) == repr(other)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def source_tree(function: FunctionType) -> _Definition:
    """Returns the syntax tree of a function's definition, or raises UsageError if it has none."""
    code = function.__code__
    has_source = False
    for again in (False, True):
        module = _read_module(code.co_filename, again=again)
        if module is not None:
            has_source = True
            for one in _definitions(module, code):
                if _is_its_source(module, one, code):
                    return one
    if not has_source:
        raise _no_source(function)
    raise UsageError(
        f"the source of {_shown(function)} is not the code that runs: "
        f"{os.path.basename(code.co_filename)} was edited since it was loaded",
        hint="start the program again, or give it version=",
    )


def definition_thumb(function: FunctionType) -> str | None:
    """Returns the thumbprint of a function's own definition, or None if it has no source.

    What it calls and uses does not count, so this is cheap: a few milliseconds for the first
    function of a file, and one for each further function.
    """
    try:
        tree = source_tree(function)
    except UsageError:
        return None
    return sha256(codec.encode_plain(encode_tree(tree))).hexdigest()


class NoSourceError(UsageError):
    """The source of a function cannot be found: only a version can identify it."""


def _no_source(function: Any) -> NoSourceError:
    return NoSourceError(
        f"{_shown(function)} has no source, so nobody could tell whether it changed",
        hint='give it version="1", and another one whenever it changes',
    )


def _definitions(module: _Module, code: CodeType) -> list[_Definition]:
    """Returns the definitions that begin at the first line of a code object."""
    found: list[_Definition] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Lambda):
            if code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
                found.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if line == code.co_firstlineno:
                found.append(node)
    if len(found) > 1 and code.co_name == "<lambda>":
        found = [one for one in found if _covers(one.body, code)]
    return found


def _covers(body: Any, code: CodeType) -> bool:
    """Returns whether every instruction of a lambda's code lies within a body."""
    starts = [
        (line, column)
        for line, _, column, end in code.co_positions()
        if line and column is not None and (column or end)
    ]
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return bool(starts) and all(first <= start < last for start in starts)


def _is_its_source(module: _Module, definition: _Definition, code: CodeType) -> bool:
    for one in module.codes.get((code.co_name, code.co_firstlineno), ()):
        if _same_code(one, code):
            return True
    # Test runners rewrite assertions when they load a module, so code with assertions never equals
    # what its source compiles to. It is accepted without comparison.
    return any(isinstance(node, ast.Assert) for node in ast.walk(definition))


def _shown(function: Any) -> str:
    return getattr(function, "__qualname__", None) or show_value(function)


# --- whose a module is ----------------------------------------------------------------------------


@functools.cache
def _installed_places() -> tuple[str, ...]:
    names = ("purelib", "platlib")
    return tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names})


def _owner(module: str) -> str:
    """Returns the owner of a module: "user", "python", "holdfast", or the name of a package."""
    top = module.partition(".")[0]
    if top == OURS:
        return OURS
    loaded = sys.modules.get(module)
    path = getattr(loaded, "__file__", None)
    if path is not None:
        real = os.path.realpath(path)
        if real.startswith(_installed_places()) or f"{os.sep}site-packages{os.sep}" in real:
            return top
        return "python" if top in sys.stdlib_module_names else "user"
    if top in sys.stdlib_module_names and top != "__main__":
        return "python"
    return "user"


def _owner_of(value: Any) -> str:
    """Returns the owner of a function or class; typed or generated functions are the user's."""
    module = value.__module__
    if isinstance(value, FunctionType) and value.__code__.co_filename.startswith("<"):
        return "user"
    return _owner(module or "builtins")


@functools.cache
def _version_of(package: str) -> str | None:
    """Returns the version of the distribution that a package is from, or None if unknown."""
    from importlib import metadata  # slow to import, and rarely needed

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(package)
        return ",".join(sorted(f"{n}=={metadata.version(n)}" for n in names or ())) or None


# --- code -----------------------------------------------------------------------------------------


class Code(Struct, frozen=True, eq=False):
    """A function's thumbprint, its parts, and what to check to see whether it is still valid."""

    thumb: str
    parts: dict[str, str]
    """A short digest of every function, class and constant that counts, for people to compare."""
    untracked: tuple[str, ...]
    """What the function uses that could not be followed."""
    references: dict[str, Any]
    """The functions that the code names, by `module:function`."""
    guards: tuple[tuple[Callable[..., Any], tuple[Any, ...], Any], ...]
    values: tuple[tuple[Any, str], ...]
    """Constants that can be changed in place, each with its digest."""

    def holds(self) -> bool:
        """Returns whether the thumbprint is still valid: all that it was made from is unchanged."""
        for look, args, seen in self.guards:
            if look(*args) is not seen:
                return False
        return all(_constant_digest(value) == digest for value, digest in self.values)


def code_of(function: Any, *, track: Track = "closure", version: str | None = None) -> Code:
    """Returns the present thumbprint of a function."""
    if track == "none":
        digest = sha256(codec.encode_plain(["version", version])).hexdigest()
        parts = {} if version is None else {"version": version}
        return Code(digest, parts, (), {}, (), ())
    return _Tracking(track, version).root(function)


def _global_of(table: dict[str, Any], name: str) -> Any:
    return table.get(name, _MISSING)


def _attribute_of(owner: Any, name: str) -> Any:
    return getattr(owner, name, _MISSING)


def _cell_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


class _Tracking:
    """One traversal of everything that can be reached from a function.

    Functions are numbered as they are found and refer to each other by number. So mutually
    recursive functions can be encoded, and the names of modules are not part of the result.
    """

    def __init__(self, track: Track, version: str | None) -> None:
        self._follows = track == "closure"
        self._version = version
        self._root: Any = None
        self._numbers: dict[Any, int] = {}
        self._entries: list[Any] = []
        self._parts: dict[str, str] = {}
        self._untracked: dict[str, None] = {}
        self._references: dict[str, Any] = {}
        self._guards: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []
        self._values: list[tuple[Any, str]] = []

    def root(self, function: Any) -> Code:
        self._root = function
        while (inner := _inner_function(self._root)) is not None:
            self._root = inner
        if isinstance(self._root, BuiltinFunctionType):
            raise _no_source(function)
        first = self._object(function, _shown(function), follows=True)
        content = [FORMAT, self._version, first, self._entries]
        return Code(
            sha256(codec.encode_sorted(content)).hexdigest(),
            self._parts,
            tuple(self._untracked),
            self._references,
            tuple(self._guards),
            tuple(self._values),
        )

    def _object(self, value: Any, name: str, *, follows: bool | None = None) -> Any:
        """Encodes an object that the code refers to."""
        follows = self._follows if follows is None else follows
        if isinstance(value, ModuleType):
            if _owner(value.__name__) == "user":
                self._untracked[f"module {name} as a whole"] = None
            return ["module"]
        if getattr(_type_of(value), "counts_by_name", False):
            return ["named", value.name]  # a node: its result is an edge of the graph, not code
        if (inner := _inner_function(value)) is not None:
            return ["wrapped", type(value).__name__, self._object(inner, name, follows=follows)]
        if isinstance(value, functools.partial):
            partial = cast("functools.partial[Any]", value)
            given = [*partial.args, *(partial.keywords[key] for key in sorted(partial.keywords))]
            items = [self._object(item, f"{name} argument") for item in given]
            target = self._object(partial.func, name, follows=follows)
            return ["partial", target, items, sorted(partial.keywords)]
        if isinstance(value, MethodType):
            return ["method", self._object(value.__func__, name, follows=follows)]
        if isinstance(value, FunctionType | BuiltinFunctionType | type):
            return self._callable(value, name, follows)
        return self._constant(value, name)

    def _callable(self, value: Any, name: str, follows: bool) -> Any:
        self._references.setdefault(f"{value.__module__}:{value.__qualname__}", value)
        owner = "user" if value is self._root else _owner_of(value)
        if owner in ("python", OURS):
            return [owner, value.__qualname__]
        if owner != "user":
            version = _version_of(owner)
            if version is None:
                self._untracked[f"{name}: the version of {owner} is not known"] = None
            self._parts[f"package {owner}"] = version or "?"
            return ["package", owner, version]
        if not follows:
            return ["callee"]
        if isinstance(value, type):
            return self._number(value, name, self._class)
        if isinstance(value, FunctionType):
            # Several closures may share one code object: each is a separate function.
            return self._number(value, name, self._function)
        self._untracked[f"{name}: it is not written in Python"] = None
        return ["opaque", value.__qualname__]

    def _number(self, value: Any, name: str, encode: Callable[[Any, str], Any]) -> Any:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._entries)
            self._entries.append(None)
            self._entries[number] = encode(value, name)
        return ["number", number]

    def _function(self, function: FunctionType, name: str) -> Any:
        code = function.__code__
        self._guards.append((_attribute_of, (function, "__code__"), code))
        try:
            definition = source_tree(function)
        except NoSourceError:
            # Only a missing source is accepted here. An edited source raises: if it were accepted
            # too, neither this code nor its next version would count.
            if self._entries[0] is None and len(self._entries) == 1:
                raise  # it is the function itself, so nothing else could identify it
            self._untracked[f"{name}: its source is not to be found"] = None
            return ["opaque", name]
        tree: list[Any] = encode_tree(definition)
        if not isinstance(definition, ast.Lambda):
            tree = [part for part in tree if part[0] not in ("name", "decorator_list")]
        names = sorted(_globals_in(code) & function.__globals__.keys() | _unknown(function))
        uses = self._uses(definition, function.__globals__, names)
        decorators = self._decorators(definition, function.__globals__)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        closure = [self._cell(definition, key, cells[key]) for key in sorted(cells)]
        defaults = [self._object(value, f"{name} default") for value in function.__defaults__ or ()]
        named = function.__kwdefaults__ or {}
        defaults += [[key, self._object(named[key], f"{name} default")] for key in sorted(named)]
        entry: list[Any] = ["function", tree, uses, decorators, closure, defaults]
        self._guards.append((_attribute_of, (function, "__defaults__"), function.__defaults__))
        self._parts[f"function {function.__qualname__}"] = _short([tree, decorators, defaults])
        return entry

    def _decorators(self, definition: _Definition, table: dict[str, Any]) -> list[Any]:
        """Encodes the decorators of a function, without ours, which only say how results are kept.

        What a decorator does shows in the object that it returned. Here it counts by its text, and
        by what the names in it stand for.
        """
        encoded: list[Any] = []
        for one in getattr(definition, "decorator_list", ()):
            root = one.func if isinstance(one, ast.Call) else one
            found = self._peek(root, table)
            if getattr(found, "__module__", "").partition(".")[0] == OURS:
                continue
            uses = self._uses(one, table, sorted({n.id for n in _names(one)} & table.keys()))
            encoded.append([encode_tree(one), uses])
        return encoded

    def _peek(self, node: ast.expr, table: dict[str, Any]) -> Any:
        if isinstance(node, ast.Name):
            return table.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._peek(node.value, table), node.attr, None)
        return None

    def _class(self, kind: type, name: str) -> Any:
        """Encodes a class by its body, functions, bases and constants.

        Generated functions, such as those of a dataclass, are left out: they follow from the body.
        """
        module = sys.modules.get(kind.__module__)
        table: dict[str, Any] = {} if module is None else vars(module)
        definition = _class_definition(kind, getattr(module, "__file__", None))
        bases = [self._object(base, f"base {base.__qualname__}") for base in kind.__bases__]
        body: Any = None
        if definition is None:
            self._untracked[f"{name}: its source is not to be found"] = None
        else:
            rest = [one for one in definition.body if not isinstance(one, _FUNCTIONS)]
            outer = ast.Module(rest, [])
            names = {
                node.id for part in (outer, *definition.decorator_list) for node in _names(part)
            }
            decorators = [encode_tree(one) for one in definition.decorator_list]
            uses = self._uses(outer, table, sorted(names & table.keys()))
            body = [encode_tree(_without_docstring(rest) if rest else rest), decorators, uses]
        members: list[Any] = []
        for key in sorted(vars(kind).keys() & _bound_in(definition)):
            value: Any = vars(kind)[key]
            self._guards.append((_member_of, (kind, key), value))
            function = value if isinstance(value, FunctionType) else _inner_function(value)
            if isinstance(function, FunctionType):
                members.append([key, self._object(value, f"{name}.{key}")])
            elif (digest := _constant_digest(value)) is not None:
                members.append([key, digest])
        self._parts[f"class {kind.__qualname__}"] = _short([body, members, bases])
        return ["class", bases, body, members]

    def _uses(self, tree: ast.AST, table: dict[str, Any], names: list[str]) -> list[Any]:
        """Encodes what the global names in a piece of code stand for, by name."""
        uses: list[Any] = []
        for name in names:
            value = table.get(name, _MISSING)
            self._guards.append((_global_of, (table, name), value))
            if value is _MISSING:
                self._untracked[f"{name}: no such name when the code was looked at"] = None
                uses.append([name, "missing"])
            else:
                uses.append([name, *self._chains(tree, name, value)])
        return uses

    def _cell(self, tree: ast.AST, name: str, cell: Any) -> list[Any]:
        value = _cell_of(cell)
        self._guards.append((_cell_of, (cell,), value))
        if value is _MISSING:
            return [name, "empty"]
        return [name, *self._chains(tree, name, value)]

    def _chains(self, tree: ast.AST, name: str, value: Any) -> list[Any]:
        """Encodes what a name stands for; for a module, the attributes of it that the code uses."""
        if not isinstance(value, ModuleType):
            return [self._object(value, name)]
        found: list[Any] = []
        for chain in sorted(_attributes_of(tree, name)):
            owner: Any = value
            for step in chain:
                inner = _attribute_of(owner, step)
                self._guards.append((_attribute_of, (owner, step), inner))
                if not isinstance(inner, ModuleType):
                    break
                owner = inner
            else:
                inner = owner
            shown = ".".join([name, *chain])
            if inner is _MISSING:
                self._untracked[f"{shown}: no such name when the code was looked at"] = None
                found.append([*chain, "missing"])
            else:
                found.append([*chain, self._object(inner, shown)])
        return found or [self._object(value, name)]

    def _constant(self, value: Any, name: str) -> Any:
        digest = _constant_digest(value)
        if digest is None:
            kind: type = _type_of(value)
            self._untracked[f"{name}: an object of type {kind.__qualname__}"] = None
            return ["object", self._object(kind, kind.__qualname__)]
        if isinstance(value, enum.Enum):
            return ["enum", self._object(type(value), name), value.name]
        if not isinstance(value, bool | int | float | str | bytes | type(None)):
            # Even a tuple or an object of a registered class may contain mutable values.
            self._values.append((value, digest))
        self._parts[f"value {name}"] = digest[:12]
        return ["value", digest]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _class_definition(kind: type, filename: str | None) -> ast.ClassDef | None:
    """Returns the definition of a class, found by its name, or None if there is no source."""
    module = None if filename is None else _read_module(filename)
    if module is None:
        return None
    body: list[ast.stmt] = module.tree.body
    found: list[ast.ClassDef] = []
    for step in kind.__qualname__.split("."):
        if step == "<locals>":
            continue
        inner = [
            node
            for part in body
            for node in ast.walk(part)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == step
        ]
        if not inner:
            return None
        body = [*inner[-1].body]
        found = [node for node in inner if isinstance(node, ast.ClassDef)]
    return found[-1] if found else None


def _bound_in(definition: ast.ClassDef | None) -> set[str]:
    """Returns the names that the body of a class binds."""
    bound: set[str] = set()
    for node in definition.body if definition is not None else ():
        if isinstance(node, _FUNCTIONS):
            bound.add(node.name)
        else:
            bound |= {one.id for one in _names(node) if isinstance(one.ctx, ast.Store)}
    return bound


def _member_of(kind: type, key: str) -> Any:
    return vars(kind).get(key, _MISSING)


def _inner_function(value: Any) -> Any:
    """Returns the function inside a wrapper (decorator, node, step, static method), or None."""
    if isinstance(value, staticmethod | classmethod):
        return cast("Any", value).__func__
    if isinstance(value, property):
        return value.fget
    if isinstance(value, FunctionType | type | ModuleType):
        return None
    kind: type = _type_of(value)
    if kind.__module__.partition(".")[0] == OURS:
        return getattr(value, "function", None)
    return getattr(value, "__wrapped__", None) if callable(value) else None


def _constant_digest(value: Any) -> str | None:
    """Returns the digest of a constant, or None if there is no way to tell it from another."""
    try:
        return thumb(value)
    except ValueDomainError:
        pass
    if isinstance(value, set | frozenset):
        items = [_constant_digest(item) for item in cast("set[Any]", value)]
        return None if None in items else thumb(["set", sorted(cast("list[str]", items))])
    if isinstance(value, dict):
        pairs = [
            [_constant_digest(k), _constant_digest(v)]
            for k, v in cast("dict[Any, Any]", value).items()
        ]
        return None if any(None in pair for pair in pairs) else thumb(["dict", *pairs])
    if isinstance(value, list | tuple):
        items = [_constant_digest(item) for item in cast("list[Any]", value)]
        kind = "list" if isinstance(value, list) else "tuple"
        return None if None in items else thumb([kind, *items])
    if isinstance(value, re.Pattern):
        pattern = cast("re.Pattern[Any]", value)
        return thumb(["pattern", pattern.pattern, pattern.flags])
    if isinstance(value, PurePath):
        return thumb(["path", str(value)])
    if isinstance(value, enum.Enum):
        return thumb(["enum", value.name])
    if isinstance(value, Struct) and type(value).__struct_config__.frozen:
        fields = [_constant_digest(getattr(value, name)) for name in value.__struct_fields__]
        return None if None in fields else thumb([type(value).__qualname__, *fields])
    return None


def _short(content: Any) -> str:
    return sha256(codec.encode_sorted(content)).hexdigest()[:12]


def _names(tree: ast.AST) -> Iterator[ast.Name]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node


def _globals_in(code: CodeType) -> set[str]:
    """Returns the global names that a function and the functions within it load."""
    return {
        cast("str", instruction.argval)
        for one in _codes_in(code)
        for instruction in dis.get_instructions(one)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _unknown(function: FunctionType) -> set[str]:
    """Returns the names that a function uses and that are not defined yet."""
    known = function.__globals__.keys() | vars(builtins).keys()
    return {name for name in _globals_in(function.__code__) - known if name.isidentifier()}


def _attributes_of(tree: ast.AST, root: str) -> set[tuple[str, ...]]:
    """Returns the chains of attributes that the code reads from a name: `a.b.c` is (b, c)."""
    chains: set[tuple[str, ...]] = set()
    within: set[int] = set()
    for node in ast.walk(tree):  # from the outside in: the longest chain comes first
        if not isinstance(node, ast.Attribute) or id(node) in within:
            continue
        steps: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            within.add(id(inner))
            steps.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id == root:
            chains.add(tuple(reversed(steps)))
    return chains
