"""Canaries: texts that must be gone, one for each kind of field, and the search for them in files.

A canary is twenty letters of six that are rare in any text. Ten of them in a row are enough to be
found: so it is seen where a page, a frame or an overflow chain cuts it in two, and where an index
stores only what differs from its neighbour. Looked through are the bytes as they are, in any case
of letters, and whatever they decode to: zstd and zlib frames (objects of git, loose and packed),
base64 and hexadecimal text, JSON's escapes, the compressed strings of a Redis RDB file (an AOF
begins with one), and the compressed and the toasted values in the pages of PostgreSQL. SQLite keeps
pages, WAL and words as they are.
"""

from __future__ import annotations

import base64
import contextlib
import io
import random
import re
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import zstandard

from holdfast import Store
from holdfast.scope import Scope
from holdfast.store import Meta

LETTERS = "jkqvxz"
LENGTH = 20
PIECE = 10
DEPTH_MAX = 3
"""How many encodings around one another are undone: JSON in zstd in base64, say."""

_RUN = re.compile(rb"[jkqvxzJKQVXZ]{%d,}" % PIECE)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}")
_HEX = re.compile(rb"[0-9a-fA-F]{40,}")
_ESCAPE = re.compile(rb"\\u00([0-7][0-9a-fA-F])")
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZLIB = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
_RDB = (b"REDIS0", b"VALKEY")
_LZF = 0xC3
_PAGE = 8192
_PAGE_VERSION = b"\x04\x20"  # bytes 18 and 19 of a page of PostgreSQL


class Canaries:
    """Makes canaries, knows which field each is in, and finds them in bytes and files."""

    def __init__(self, seed: int = 1, beside: Canaries | None = None) -> None:
        """`beside` are others that are looked for in the same files: no piece is in both.

        Of a thousand canaries by chance alone, some share a piece with another more often than not.
        """
        self._chance = random.Random(seed)
        self._taken: set[bytes] = set() if beside is None else beside._taken
        self.fields: dict[str, str] = {}
        """The field of each canary, by its text."""
        self._pieces: dict[bytes, str] = {}

    def new(self, field: str) -> str:
        """Returns a new canary for a field."""
        return self._new(field, 0)

    def hidden(self, field: str) -> str:
        """Returns a new canary after letters like its own, which a compression refers back to."""
        return self._new(field, 1500)

    def _new(self, field: str, letters: int) -> str:
        """Returns a new canary after so many letters, with no piece that was in another text."""
        while True:
            whole = "".join(self._chance.choices(LETTERS, k=letters)) + "".join(
                self._chance.choices(LETTERS, k=LENGTH)
            )
            pieces = [whole[at : at + PIECE].encode() for at in range(len(whole) - PIECE + 1)]
            if self._taken.isdisjoint(pieces):
                break
        self._taken.update(pieces)
        text = whole[letters:]
        self.fields[text] = field
        for piece in pieces[letters:]:
            self._pieces[piece] = text
        return whole

    def found_in(self, data: bytes) -> set[str]:
        """Returns the fields whose canary is in some bytes, in whatever form."""
        found: set[str] = set()
        for layer in _layers(data, 0):
            found |= self.found_as_they_are(layer)
        return found

    def found_as_they_are(self, data: bytes) -> set[str]:
        """Returns the fields whose canary is in some bytes, without decoding them."""
        found: set[str] = set()
        for run in _RUN.finditer(data):
            text = run[0].lower()
            pieces = (text[at : at + PIECE] for at in range(len(text) - PIECE + 1))
            found.update(self._pieces[piece] for piece in pieces if piece in self._pieces)
        return {self.fields[text] for text in found}

    def found_below(self, *places: Path, besides: Iterable[Path] = ()) -> dict[str, list[str]]:
        """Returns the fields whose canary is in a file below some places, and in which files."""
        hits: dict[str, list[str]] = {}
        for path, data in _files(places, set(besides)):
            for field in self.found_in(data):
                hits.setdefault(field, []).append(path.name)
        return hits


def _files(places: Iterable[Path], besides: set[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yields every file below some places, read by another process.

    Whoever opens and closes a file of SQLite takes the locks of all who have it open in the same
    process.
    """
    for place in places:
        command = ["tar", "--create", "--ignore-failed-read", "--file=-", "--directory", "/"]
        # It complains of sockets, and of files that a server changes meanwhile.
        packed = subprocess.run([*command, str(place.resolve())[1:]], capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                path = Path("/", member.name)
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and besides.isdisjoint((path, *path.parents)):
                    yield path, file.read()


# --- decoding -------------------------------------------------------------------------------------


def _layers(data: bytes, depth: int) -> Iterator[bytes]:
    """Yields bytes, and all that they decode to."""
    yield data
    if depth < DEPTH_MAX:
        for decoded in _decoded(data):
            yield from _layers(decoded, depth + 1)


def _decoded(data: bytes) -> Iterator[bytes]:
    yield from _frames(data)
    if b"\\u00" in data:
        yield _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), data)
    for run in _BASE64.finditer(data):
        text = run[0].translate(bytes.maketrans(b"-_", b"+/"))
        for start in range(4):
            whole = text[start : start + (len(text) - start) // 4 * 4]
            yield base64.b64decode(whole)
    for run in _HEX.finditer(data):
        for start in range(2):
            yield bytes.fromhex(run[0][start : start + (len(run[0]) - start) // 2 * 2].decode())
    if data.startswith(_RDB):
        yield from _rdb_strings(data)
    if len(data) % _PAGE == 0 and data[18:20] == _PAGE_VERSION:
        yield from _page_values(data)


def _frames(data: bytes) -> Iterator[bytes]:
    """Yields what zstd and zlib frames decompress to, as far as they are whole."""
    at = data.find(_ZSTD)
    while at >= 0:
        reader = zstandard.ZstdDecompressor().stream_reader(data[at:])
        parts: list[bytes] = []
        with contextlib.suppress(zstandard.ZstdError):
            while part := reader.read(1 << 16):
                parts.append(part)
        if parts:
            yield b"".join(parts)
        at = data.find(_ZSTD, at + 1)
    for match in _ZLIB.finditer(data):
        with contextlib.suppress(zlib.error):
            yield zlib.decompressobj().decompress(data[match.start() :])


def _rdb_strings(data: bytes) -> Iterator[bytes]:
    """Yields what may be a compressed string of Redis: its two lengths, then LZF."""
    at = data.find(_LZF)
    while at >= 0:
        with contextlib.suppress(IndexError, ValueError):
            packed, start = _rdb_length(data, at + 1)
            size, start = _rdb_length(data, start)
            if packed < size <= 1 << 26 and start + packed <= len(data):
                yield _lzf(data[start : start + packed], size)
        at = data.find(_LZF, at + 1)


def _rdb_length(data: bytes, at: int) -> tuple[int, int]:
    """Returns a length as RDB writes it, and where it ends."""
    first = data[at]
    if first >> 6 == 0:
        return first, at + 1
    if first >> 6 == 1:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    if first in (0x80, 0x81):
        width = 4 if first == 0x80 else 8
        return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    raise ValueError("no length")


def _lzf(packed: bytes, size: int) -> bytes:
    """Returns what LZF packed; raises ValueError or IndexError if this is none."""
    out = bytearray()
    at = 0
    while at < len(packed):
        control = packed[at]
        at += 1
        if control < 32:
            out += packed[at : at + control + 1]
            at += control + 1
        else:
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            _repeat(out, ((control & 0x1F) << 8 | packed[at]) + 1, length + 2)
            at += 1
    if len(out) != size:
        raise ValueError("another length")
    return bytes(out)


def _repeat(out: bytearray, back: int, length: int) -> None:
    """Appends what stands so many bytes back; it may reach into what it appends."""
    start = len(out) - back
    if start < 0 or not back:
        raise ValueError("refers to what is not there")
    piece = out[start : start + length]
    while len(piece) < length:
        piece += piece[: length - len(piece)]
    out += piece


def _page_values(data: bytes) -> Iterator[bytes]:
    """Yields the values in pages of PostgreSQL that are compressed, or cut into toast."""
    chunks: dict[int, dict[int, bytes]] = {}
    for start in range(0, len(data), _PAGE):
        page = data[start : start + _PAGE]
        yield from _inline_values(page)
        for item in _items(page):
            chunk = _toast_chunk(item)
            if chunk is not None:
                chunks.setdefault(chunk[0], {})[chunk[1]] = chunk[2]
    for parts in chunks.values():
        numbers = sorted(parts)
        if numbers[0] == 0 and all(two == one + 1 for one, two in pairwise(numbers)):
            whole = b"".join(parts[number] for number in numbers)
            yield whole
            with contextlib.suppress(IndexError, ValueError):
                yield _pglz(whole[4:], int.from_bytes(whole[:4], "little") & 0x3FFFFFFF)


def _inline_values(page: bytes) -> Iterator[bytes]:
    """Yields compressed values that stand in a row, also in one that no pointer leads to."""
    for at in range(24, _PAGE - 8, 4):
        if page[at] & 3 == 2:  # the header of a compressed value
            length = int.from_bytes(page[at : at + 4], "little") >> 2
            size = int.from_bytes(page[at + 4 : at + 8], "little")
            if 8 < length <= _PAGE - at and length - 8 < size <= 1 << 26:
                with contextlib.suppress(IndexError, ValueError):
                    yield _pglz(page[at + 8 : at + length], size)


def _items(page: bytes) -> Iterator[bytes]:
    """Yields the rows that a page points to, dead ones too."""
    lower = int.from_bytes(page[12:14], "little")
    for at in range(24, min(lower, _PAGE), 4):
        pointer = int.from_bytes(page[at : at + 4], "little")
        offset, length = pointer & 0x7FFF, pointer >> 17
        if length and offset + length <= _PAGE:
            yield page[offset : offset + length]


def _toast_chunk(item: bytes) -> tuple[int, int, bytes] | None:
    """Returns the value's id, the number and the bytes of a chunk, if a row may be one."""
    start = item[22] if len(item) > 36 else 0
    if start != 24:
        return None
    id, number = (int.from_bytes(item[at : at + 4], "little") for at in (24, 28))
    header = item[32]
    if header & 1:  # a short one
        return id, number, item[33 : 32 + (header >> 1)]
    length = int.from_bytes(item[32:36], "little") >> 2
    return (id, number, item[36 : 32 + length]) if 4 < length <= len(item) - 32 else None


def _pglz(packed: bytes, size: int) -> bytes:
    """Returns what PostgreSQL's own compression packed; raises as `_lzf` does."""
    out = bytearray()
    at = 0
    while at < len(packed) and len(out) < size:
        control = packed[at]
        at += 1
        for bit in range(8):
            if at >= len(packed) or len(out) >= size:
                break
            if control >> bit & 1:
                first, back = packed[at], packed[at + 1]
                at += 2
                length = (first & 0x0F) + 3
                if length == 18:
                    length += packed[at]
                    at += 1
                _repeat(out, (first & 0xF0) << 4 | back, length)
            else:
                out.append(packed[at])
                at += 1
    if len(out) != size or at != len(packed):
        raise ValueError("another length")
    return bytes(out)


# --- fields ---------------------------------------------------------------------------------------


def fill(hf: Store, scope: Scope, canaries: Canaries) -> None:
    """Writes a canary into every kind of field of a scope that holds what people say."""
    new = canaries.new
    fill_state(hf, scope, canaries)
    early = scope.set("before", new("state restored"))
    scope.set("before", 2)
    scope.restore(early)
    fill_messages(scope, canaries)
    scope.facts.state("place", new("fact value"), about=new("fact about"))
    scope.facts.state("withdrawn", new("fact withdrawn"))
    scope.facts.withdraw("withdrawn")
    scope.memory.files.put("a.py", {"text": new("memory file")}, lifetime="session")
    scope.memory.notes.add(new("memory note"), lifetime="session")
    _fill_tasks(scope, canaries)
    with scope.decide(
        new("decision"),
        because=new("decision because"),
        action=new("decision action"),
        alternatives=[new("decision alternative")],
        links=[("message", new("decision link"))],
        arguments={"to": new("decision argument")},
        call="call-1",
        owner="person",
        more={"of our own": new("decision more")},
    ) as decision:
        decision.outcome(new("decision outcome"), output={"answer": new("decision output")})
    scope.decisions.catch(new("catch"), notes=new("catch notes"), outcome=new("catch outcome"))
    scope.record("measured", {"said": new("own event")}, unchecked=True)


def fill_state(hf: Store, scope: Scope, canaries: Canaries) -> None:
    """Writes a canary into every kind of field of a state."""
    new = canaries.new
    scope.set("text", f'said \u00e9 "{new("state value")}" \\ \u2028')
    scope.set(f"key {new('state key')}", {"deep": [{"er": new("state deep")}]})
    scope.append("list", new("list item"))
    scope.set("replaced", new("state replaced"))
    scope.set("replaced", 1)
    scope.set("deleted", new("state deleted"))
    scope.delete("deleted")
    # Long enough that a server compresses it or puts it elsewhere, too short for a blob.
    scope.set("long", f"{canaries.hidden('state long')} {'word and word again ' * 300}")
    scope.set("large", f"{'some words before it ' * 4000} {new('large value')}")
    scope.append("large ones", {"text": f"{new('large item')} {'x' * 70_000}"})
    scope.set(("nested", "path"), new("state path"))
    scope.increment(f"n {new('counter name')}")
    with hf.commit(meta=Meta(source="test")) as tx:
        tx.scope(scope).set("joint", new("state joint"))


def fill_messages(scope: Scope, canaries: Canaries) -> None:
    """Writes a canary into every kind of field of a message."""
    new = canaries.new
    scope.say(f"{new('message')} hello")
    scope.messages.add(
        "assistant",
        new("message answer"),
        tool_calls=[{"id": "1", "name": "look", "arguments": {"at": new("tool argument")}}],
        metadata={"from": new("message metadata")},
        usage={"model": new("message usage")},
    )
    scope.messages.add("tool", new("tool result"), tool_call_id="1")
    scope.messages.add("user", f"{new('large message')} {'and so on ' * 8000}")
    edited = scope.messages.add("user", new("message before edit"))
    scope.messages.edit(edited, content=new("message edited"))
    scope.messages.delete(scope.messages.add("user", new("message deleted")))
    with scope.messages.turn() as turn:
        turn.add("user", new("message in a turn"))
    scope.messages.summarise(new("message summary"))
    scope.messages.compact(new("message compaction"), keep_last=1)


def _fill_tasks(scope: Scope, canaries: Canaries) -> None:
    new = canaries.new
    task = scope.tasks.add(
        f"{new('task title')} task",
        epic=new("task epic"),
        tags=[new("task tag")],
        key=new("task key"),
    )
    scope.tasks.update(task, title=new("task new title"), note=new("task note"))
    scope.tasks.block(task, why=new("task why"))
    scope.tasks.unblock(task)
    scope.tasks.claim(task.id)
    scope.tasks.close(task.id, new("task outcome"))


def fill_ending(hf: Store, scope: Scope, canaries: Canaries, *, ttl_s: float) -> None:
    """Writes a canary into every kind of value that ends, beside values that last.

    A list of them is long enough that blocks of its items are made (0071).
    """
    new = canaries.new
    scope.set("token", new("ending value"), ttl_s=ttl_s)
    scope.set(("device", "nonce"), {"deep": [new("ending path")]}, ttl_s=ttl_s)
    scope.set("renewed", new("ending superseded"), ttl_s=ttl_s)
    scope.set("renewed", new("ending renewed"), ttl_s=ttl_s)
    scope.set("deleted", new("ending deleted"), ttl_s=ttl_s)
    scope.delete("deleted")
    scope.update({"code": new("ending update"), "tries": 0}, ttl_s=ttl_s)
    scope.set(
        "long", f"{canaries.hidden('ending long')} {'word and word again ' * 300}", ttl_s=ttl_s
    )
    scope.set("large", f"{'some words before it ' * 4000} {new('ending large')}", ttl_s=ttl_s)
    scope.set("map", {"given": 1}, ttl_s=ttl_s)
    scope.set(("map", "below"), new("ending below"))
    scope.set("items", [new("ending first item")], ttl_s=ttl_s)
    with hf.commit() as tx:
        for number in range(100):
            tx.scope(scope).append("items", f"{number} {'an item at some length ' * 60}")
        tx.scope(scope).append("items", f"{new('ending item')} {'of a long list ' * 10}")
    with hf.commit() as tx:
        tx.scope(scope).append("lasting", "an item that is long enough to be named " * 3)
        tx.scope(scope).set("joint", new("ending joint"), ttl_s=ttl_s)
        tx.scope(scope).set("beside", "mango")
    scope.set("sealed by name", new("ending checkpoint"), ttl_s=ttl_s, checkpoint="named")


def fill_names(scope: Scope, canaries: Canaries) -> None:
    """Writes a canary into every kind of name that a caller gives, and that is found by it.

    They stand in the envelopes of events and in marks, and stay when data goes.
    """
    new = canaries.new
    scope.set("named", 1, key=new("key"))
    scope.set("named", 2, checkpoint=new("checkpoint of a commit"))
    scope.checkpoint(new("checkpoint"))
    scope.messages.add("user", "hello", key=new("key of a message"))
    scope.facts.state(f"{new('fact name')} fact", 1)
    task = scope.tasks.add("work", id=f"id-{new('task id')}")
    scope.tasks.claim(task.id)
    scope.tasks.close(task.id, "done")
    for name in ("key", "call"):
        given = {name: new(f"decision {name}")}
        with scope.decide("so it is", owner="person", **given) as decision:
            decision.outcome("done")
