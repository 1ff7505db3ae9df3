"""Names in the marks of a subject's scope: they are sealed, and found in their sealed form (0076).

The key of a mark about an item is `<digest of the stream>:<name>`, where people chose the name: of
a fact, a task, a decision. In a subject's scope the key is

    <digest of the stream>:sealed:<base64>      AES-256-GCM-SIV of the name

The cipher is deterministic. So the sealed name serves as a keyed digest, as idempotency keys and
checkpoint names do: one name is one mark, for all who have the key. And it can be opened: a mark
alone is enough to find the item, without a look at every event of the scope.

Marks that were set before names were sealed are read in clear. The next commit that sets or clears
such a mark clears the old one.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256

from msgspec.structs import replace

from holdfast.backends.protocol import Cleared, Mark
from holdfast.core.layers import named_indexes
from holdfast.core.sealing import Seal
from holdfast.errors import CorruptError, UsageError
from holdfast.names import NAME_BYTES_MAX

SEALED = "sealed:"
_USE = b"mark "
"""What is put before a name, so that its sealed bytes never equal those of a value elsewhere."""
MarkChanges = tuple[Mark | Cleared, ...]


def prefix_of(stream: str) -> str:
    """Returns the prefix of the keys of all marks about items of a stream."""
    return f"{sha256(stream.encode()).hexdigest()[:16]}:"


def sealed_name(seal: Seal, name: str) -> str:
    """Returns the sealed form of a name in the key of a mark; raises UsageError if too long."""
    sealed = SEALED + urlsafe_b64encode(seal.seal(_USE + name.encode())).decode()
    if len(sealed) + len(prefix_of("")) > NAME_BYTES_MAX:
        raise UsageError(
            f"name {name[:40]!r}… takes {len(name.encode())} bytes: in a subject's scope it is "
            "sealed, and at most 340 fit",
            hint="give it a shorter name, and put the text into its value",
        )
    return sealed


def opened_name(seal: Seal, name: str) -> str:
    """Returns a name from its sealed form in the key of a mark, or raises CorruptError."""
    try:
        sealed = urlsafe_b64decode(name.removeprefix(SEALED).encode())
    except ValueError as error:
        raise CorruptError(f'sealed name "{name}" of a mark cannot be read: {error}') from error
    return seal.open(sealed).removeprefix(_USE).decode()


def closed(
    seal: Seal, stream: str, marks: MarkChanges, find: Callable[[str, list[str]], Iterable[Mark]]
) -> MarkChanges:
    """Returns the marks of a commit with the names of a subject's stream sealed.

    `find` returns those marks of an index that are stored: a name that was stored in clear before
    is cleared with the same commit.
    """
    prefix, indexes = prefix_of(stream), named_indexes()
    result: dict[tuple[str, str], Mark | Cleared] = {}
    in_clear: dict[str, list[str]] = {}
    for mark in marks:
        name = mark.key.removeprefix(prefix)
        if mark.index in indexes and name != mark.key and not name.startswith(SEALED):
            in_clear.setdefault(mark.index, []).append(mark.key)
            mark = replace(mark, key=prefix + sealed_name(seal, name))
        result[mark.index, mark.key] = mark  # the last word on a mark counts
    for index, keys in in_clear.items():
        result.update({(index, one.key): Cleared(index, one.key) for one in find(index, keys)})
    return tuple(result.values())
