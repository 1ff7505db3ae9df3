"""What the site's reference shows beyond the sources: docstrings of the classes for asyncio.

`AsyncScope.set` does what `Scope.set` does, so the source says it once. Griffe, which reads the
sources for the site, loads this file as an extension. Methods that are made with
`mirror(Facts.get)` become methods here, with the parameters of the one that they mirror. Methods
that only refuse, such as `Map.update`, are left out. A class that is a struct of fields lists those
that have no docstring of their own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

MIRRORED = re.compile(r"(?:mirror(?:_read|_steps)?|_giving_run)\((?P<owner>\w+)\.(?P<name>\w+)")
STRUCT = re.compile(r"\b(?:Struct|NamedTuple)\b")


class Docstrings(griffe.Extension):
    """Fills in what the classes of `holdfast.aio` leave to their twins."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            if not member.is_alias and member.is_function and str(member.returns) == "NoReturn":
                cls.del_member(name)
        if any(STRUCT.search(str(base)) for base in cls.bases) and cls.docstring is not None:
            cls.docstring.value += _fields(cls)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        if pkg.name != "holdfast":
            return
        loader.resolve_aliases(implicit=True, external=False)
        for module in pkg["aio"].modules.values():
            for one in module.classes.values():
                if not one.is_alias:
                    _complete(one, pkg)


def _fields(cls: griffe.Class) -> str:
    """Returns a list of the fields that say nothing but their name and type."""
    silent = [
        f"- `{name}`: `{member.annotation}`"
        for name, member in cls.members.items()
        if member.is_attribute and not name.startswith("_")
        if member.annotation is not None and member.docstring is None
    ]
    return "\n\nFields:\n\n" + "\n".join(silent) if silent else ""


def _complete(one: griffe.Class, package: griffe.Module) -> None:
    twin_name = one.name.removeprefix("Async")
    homes = (package, *package.modules.values())
    twin = next((home.members[twin_name] for home in homes if twin_name in home.members), None)
    for name, member in list(one.members.items()):
        if name.startswith("_") or member.is_alias:
            continue
        if member.is_attribute and (found := MIRRORED.match(str(member.value))):
            origin = one.module[found["owner"]].all_members[found["name"]]
            one.set_member(name, _copied(origin, name))
        elif member.docstring is None and twin is not None and name in twin.all_members:
            member.docstring = twin.all_members[name].docstring


def _copied(origin: griffe.Function, name: str) -> griffe.Function:
    made = griffe.Function(
        name,
        parameters=origin.parameters,
        returns=origin.returns,
        docstring=origin.docstring,
    )
    made.labels.add("async")
    return made
