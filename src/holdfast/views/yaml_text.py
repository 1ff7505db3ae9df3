"""YAML as text with positions: loaded as plain data, and dumped block by block.

Tags never create objects, and aliases cannot expand a small file without limit.

Files are read as YAML 1.2, and written so that a reader of YAML 1.1 finds the same. In 1.1, `14:15`
is a number, `yes` is true, and `=` and `<<` are not text. So any text that some reader would take
for something else is written in quotes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from difflib import SequenceMatcher
from io import StringIO
from typing import Any, cast

from holdfast.core.codec import Erased, SealedLeaf
from holdfast.errors import UnavailableError
from holdfast.views.item import BrokenFile

_LINE = re.compile(r"[^\n]*(?:\n|$)")
_MARKERS = re.compile(r"^<<<<<<<.*^=======.*^>>>>>>>", re.MULTILINE | re.DOTALL)
_VALUES_MAX = 1_000_000
_BYTES_MAX = 32 << 20
_NOT_AS_TEXT = re.compile(
    # Numbers and times in all their spellings: 0o17, 017, 1_000, 1,000, 1e5, 14:15, 2026-01-01.
    r"[-+]?\.?[0-9][0-9a-fox_.,:+\-tz \t]*|[-+]?\.[0-9._]*|[-+]?\.(?:inf|nan)|"
    r"y|n|yes|no|on|off|true|false|null|~|=|<<|",
    re.IGNORECASE,
)
"""Words that some reader of YAML does not take for text, unless they are in quotes."""
_BREAKS = re.compile("[\t\r\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that end a line, a word or the text for some reader, unless they are escaped."""
_LITERAL = re.compile(r"[|>][-+]?\d?[-+]?[ \t]*(?:#.*)?[\r\n]*$")


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text, each with its end."""
    return [line for line in _LINE.findall(text) if line]


def refuse_markers(text: str) -> None:
    """Raises BrokenFile if there are conflict markers of a merge."""
    if _MARKERS.search(text):
        raise BrokenFile("it holds the markers of a merge that is not finished")


def load_yaml(text: str) -> Any:
    """Returns the mapping or list of a text, with positions; None if the text is empty."""
    refuse_markers(text)
    if len(text) > _BYTES_MAX:
        raise BrokenFile(f"it has {len(text)} characters: at most {_BYTES_MAX} are read")
    yaml = _yaml()
    from ruamel.yaml.error import YAMLError

    try:
        return yaml.load(text)
    except (YAMLError, ValueError, RecursionError, AssertionError) as error:
        said = " ".join(str(error).split())
        raise BrokenFile(f"it is no YAML: {said}") from error


def plain_mapping(root: Any) -> dict[str, Any]:
    """Returns a loaded mapping as plain data; raises BrokenFile if it is none."""
    if not isinstance(root, Mapping):
        raise BrokenFile("it is no mapping")
    return cast("dict[str, Any]", plain(root, [_VALUES_MAX]))


def plain(value: Any, left: list[int] | None = None) -> Any:
    """Returns a loaded value as plain data, with times as text; refuses what JSON cannot hold.

    `left` counts down the values, so that aliases cannot expand without limit.
    """
    left = left or [_VALUES_MAX]
    left[0] -= 1
    if left[0] < 0:
        raise BrokenFile(f"it holds more than {_VALUES_MAX} values, aliases counted")
    if hasattr(value, "tag") and getattr(value.tag, "value", None):
        raise BrokenFile(f"it holds the tag {value.tag.value}: tags are not read")
    if isinstance(value, Mapping):
        return _plain_mapping(cast("Mapping[Any, Any]", value), left)
    if isinstance(value, list | tuple):
        return [plain(one, left) for one in cast("list[Any]", value)]
    if isinstance(value, datetime | date):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if type(value).__name__ == "ScalarBoolean":
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise BrokenFile(f"it holds {value!r}, which cannot be stored")


def _plain_mapping(value: Mapping[Any, Any], left: list[int]) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise BrokenFile(f"its key {key!r} is no text: put it in quotes")
    return {str(key): plain(one, left) for key, one in value.items()}


def block_end(lines: list[str], start: int, end: int) -> int:
    """Returns the end of a block, without the comments and empty lines before the next one.

    After a text in block style they may be part of that text, so they stay.
    """
    if _LITERAL.search(lines[start]):
        return end
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    return end


def without_list(lines: list[str], loaded: Any, root: str) -> tuple[list[str], list[str]]:
    """Returns the lines before an empty list, and those after it with the comments in it.

    The key and the list itself, which is `[]` or nothing, are left out.
    """
    start: int = loaded.lc.key(root)[0]
    if not re.match(rf"""['"]?{re.escape(root)}['"]?[ \t]*:""", lines[start]):
        raise BrokenFile(f'the key "{root}" is not at the beginning of a line')
    later = [line for key in loaded if (line := loaded.lc.key(key)[0]) > start]
    end: int = min(later, default=len(lines))
    said = lines[start:end]
    comment = said[0].rstrip("\r\n").partition(" #")[2]
    kept = [line for line in said[1:] if not line.strip() or line.lstrip().startswith("#")]
    ending = "\r\n" if said[0].endswith("\r\n") else "\n"
    return lines[:start], [*([f"#{comment}{ending}"] if comment else []), *kept, *lines[end:]]


def merge_into(old: Any, key: Any, value: Any) -> None:
    """Puts a value into a loaded mapping; the parts that are the same stay as they are written."""
    before = old.get(key)
    if isinstance(before, dict) and isinstance(value, dict):
        known, wanted = cast("dict[str, Any]", before), cast("dict[str, Any]", value)
        for name in [name for name in known if name not in wanted]:
            del known[name]
        for name, one in wanted.items():
            if name not in known or plain(known[name]) != one:
                merge_into(known, name, one)
        return
    if isinstance(before, list) and isinstance(value, list):
        _merge_list(before, cast("list[Any]", value))
        return
    old[key] = value


def _merge_list(old: Any, new: list[Any]) -> None:
    """Changes a loaded list into a new one; common entries stay as they are written."""
    had, wanted = ([json.dumps(plain(one), sort_keys=True) for one in side] for side in (old, new))
    changes = SequenceMatcher(None, had, wanted, False).get_opcodes()
    for kind, i, j, k, m in reversed(changes):
        if kind == "equal":
            continue
        for at in range(j - 1, i - 1, -1):
            del old[at]
        for at in range(m - 1, k - 1, -1):
            old.insert(i, new[at])


def dump_block(value: Any, ending: str, indent: int = 0) -> list[str]:
    """Returns a mapping or list as lines with this indentation."""
    stream = StringIO()
    _yaml().dump(value, stream)
    pad = " " * indent
    lines = [pad + line if line.strip() else line for line in split_lines(stream.getvalue())]
    return [line[:-1] + ending if line.endswith("\n") else line + ending for line in lines]


def _yaml() -> Any:
    """Returns a round-trip parser, which keeps comments and styles, and creates no objects."""
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        raise UnavailableError(
            "YAML files as views need ruamel.yaml, which is not installed",
            hint='pip install "holdfast[views]"',
        ) from error
    yaml: Any = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.allow_unicode = True
    yaml.default_flow_style = False
    # Sealed and erased values are text of special classes.
    for kind in (str, Erased, SealedLeaf):
        yaml.representer.add_representer(kind, _as_text)
    yaml.representer.add_representer(float, _as_number)
    return yaml


def _as_text(representer: Any, text: str) -> Any:
    style = '"' if _BREAKS.search(text) else "'" if _NOT_AS_TEXT.fullmatch(text) else None
    return representer.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


def _as_number(representer: Any, value: float) -> Any:
    said = repr(value)
    if "." not in said:  # 1e+16: without a point it is text in YAML 1.1
        said = said.replace("e", ".0e")
    return representer.represent_scalar("tag:yaml.org,2002:float", said)
