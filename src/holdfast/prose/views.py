"""The state of a program as files: the format of each, and how it is read back.

This module handles only bytes and names; `view_files` reads and writes the files. The store has the
values, and views only show them. So a const in a file that differs from the stored one is damage,
whatever its digest says; an edited let is a new value.

    # CONSTANT: plan - DO NOT MODIFY               <!-- updated 2026-11-17T15:00:00Z -->
    <!-- sha256 9f86d081… -->                      the output, byte for byte
    the output, byte for byte

The output of a session is text, and is written unchanged. Any other value is written as JSON, with
a comment in the head that says so, because the text "5" and the number 5 would look the same.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

BRANCHES_MIN = 5
"""The least number of branches for which a parallel block gets files."""
CHECKPOINT = "checkpoint.json"

_JSON = b" <!-- json -->"
_UPDATED = re.compile(rb"<!-- updated ([0-9T:.+Z-]+) -->( <!-- json -->)?")
_DIGEST = re.compile(rb"<!-- sha256 ([0-9a-f]{64}) -->( <!-- json -->)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+#=\[\]-]")


class Damage(Struct, frozen=True):
    """Why a view cannot be trusted. `code` is header, digest, changed, encoding or json."""

    code: str
    message: str


def state_path(name: str, block: str = "") -> str:
    """Returns the file of a variable, relative to the directory of views.

    Variables of the program are in `state`, those of blocks in folders below it by journal path.
    """
    return "/".join(["state", *(_part(part) for part in block.split("/") if part), f"{name}.md"])


def branch_path(block: str, branch: str) -> str:
    """Returns the file of a branch's result; `block` is the journal path of the block."""
    parts = [_part(part) for part in block.split("/") if part]
    return "/".join(["parallel", *parts, f"{_part(branch)}.md"])


def _part(part: str) -> str:
    """Returns a part of a path as a file name; unsafe characters are escaped, as %2F."""
    if part.strip(".") == "":
        return "".join(f"%{ord(letter):02X}" for letter in part)
    return _UNSAFE.sub(
        lambda found: "".join(
            f"%{byte:02X}" for byte in found.group().encode("utf-8", "surrogatepass")
        ),
        part,
    )


def render_const(name: str, value: Any) -> bytes:
    """Returns the content of a const's file: the warning, a digest of name and value, the value."""
    body, mark = _body(value)
    digest = _digest(name, body, mark).encode()
    return b"".join(
        (_warning(name), b"\n<!-- sha256 ", digest, b" -->", mark, b"\n", body),
    )


def read_const(name: str, data: bytes) -> Any:
    """Returns the value in a const's file, or Damage if the file was modified."""
    warning, _, rest = data.partition(b"\n")
    if warning != _warning(name):
        return Damage("header", f'the first line is not "{_warning(name).decode()}"')
    line, end, body = rest.partition(b"\n")
    found = _DIGEST.fullmatch(line)
    if found is None or not end:
        return Damage("digest", "the second line has no digest")
    mark = found[2] or b""
    if _digest(name, body, mark).encode() != found[1]:
        return Damage("changed", f'the constant "{name}" was modified: its digest does not match')
    return _value(body, mark)


def render_let(value: Any, updated: str) -> bytes:
    """Returns the content of a let's file: a line with its time (ISO 8601), then the value."""
    body, mark = _body(value)
    return b"".join((b"<!-- updated ", updated.encode(), b" -->", mark, b"\n", body))


def read_let(data: bytes) -> Any:
    """Returns the value in a let's file, or Damage if it cannot be read.

    A person or a tool may have edited the value. If the first line was removed, it is unclear which
    part is the value, so that is damage.
    """
    line, _, body = data.partition(b"\n")
    found = _UPDATED.fullmatch(line)
    if found is None:
        return Damage("header", "the first line does not say when the variable was updated")
    return _value(body, found[2] or b"")


def render_branch(value: Any) -> bytes:
    """Returns the content of a branch's file: text byte for byte, or a value as JSON."""
    return _body(value)[0]


def render_checkpoint(position: Any, bindings: dict[str, Any], context: Any) -> bytes:
    """Returns the checkpoint before a session: position, bindings, and a summary of the context."""
    document = {"position": position, "bindings": bindings, "context": context}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _warning(name: str) -> bytes:
    return f"# CONSTANT: {name} - DO NOT MODIFY".encode()


def _digest(name: str, body: bytes, mark: bytes) -> str:
    return sha256(b"\0".join((name.encode(), mark, body))).hexdigest()


def _body(value: Any) -> tuple[bytes, bytes]:
    """Returns a value as bytes, and the comment for the head if it is JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass"), b""
    return msgspec.json.encode(value), _JSON


def _value(body: bytes, mark: bytes) -> Any:
    if mark:
        try:
            # An editor may have ended the last line.
            return msgspec.json.decode(body.strip())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Damage("json", f"the value is no JSON: {error}")
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        return Damage("encoding", f"the value is not UTF-8: {error}")
