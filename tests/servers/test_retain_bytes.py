"""What a retain lets go of is not in the stored bytes, once the listed steps are done (0041, 0074).

A canary in every kind of field of a scope and of a run, looked for in every file of the store or of
the server that keeps it. What a caller gives as a name stays, and is told here too.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

import holdfast
from holdfast import Store
from holdfast.backends.protocol import START
from holdfast.core.compaction import put_base
from holdfast.core.item_copies import folder_of
from tests.canaries import (
    LENGTH,
    Canaries,
    fill,
    fill_ending,
    fill_messages,
    fill_names,
    fill_state,
)
from tests.servers import postgresql, redis

SCOPES = ["conversation/gone", "conversation/stays", "conversation/closed"]
TTL_S = 3600.0
KINDS = ["files", "sqlite", "postgresql", *redis.installations()]


@contextmanager
def place_of(kind: str, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the URL of a new store, and the server of its own that keeps it, if one does."""
    with ExitStack() as ended:
        if kind in ("files", "sqlite"):
            yield str(tmp_path / "s") if kind == "files" else f"sqlite:{tmp_path / 's.db'}", None
            return
        starts = postgresql.new_server if kind == "postgresql" else redis.new_server
        server: Any = starts(postgresql.NEWEST if kind == "postgresql" else kind)
        ended.callback(server.remove)
        yield server.url(application="bytes"), server


@holdfast.step(effect="effect")
def ask(ctx: Any, question: str, answer: str) -> str:
    return answer


@holdfast.run(name="bytes.run")
def asks(ctx: Any, given: str, question: str, answer: str, state: str) -> str:
    ctx.state.set("said", state)
    return ask(question, answer)


def write(hf: Store, canaries: Canaries) -> None:
    """Fills scopes and a run, and has copies made of all; closes one, of which nothing is kept."""
    chat = hf.conversation("gone")
    fill(hf, chat, canaries)
    hf.conversation("stays").set("n", 1)
    words = [canaries.new(f"run {one}") for one in ("argument", "question", "answer", "state")]
    assert hf.runs.start(asks, *words, id="r1").result(timeout=60) == words[2]
    assert list(hf.query(text="hello"))
    fill_ending(hf, hf.conversation("ends"), canaries, ttl_s=TTL_S)
    visit = hf.conversation("closed")
    fill_state(hf, visit, canaries)
    fill_messages(visit, canaries)
    hf.search.tables()
    for name in ("conversation/gone", "conversation/ends", "conversation/closed"):
        hf._log.snapshots._write(name, hf._log.folded(name), hf._log.snapshots._begin(name))
    blocks = [name for name in hf._log._backend.objects.names("snapshot") if "/items-" in name]
    assert any(name.startswith(folder_of("conversation/ends")) for name in blocks)
    [head] = hf._log.heads([visit.name])
    assert head is not None
    put_base(hf._log, visit.name, head, head.revision, lambda state: state)
    visit.close(keep=False)


def end(hf: Store) -> dict[str, Any]:
    """Removes a scope and a run, lets values end, and returns what is shown then.

    The clock that judges values is moved on: each backend says what it is.
    """
    hf.conversation("gone").remove()
    hf.runs.remove("r1")
    backend: Any = hf._log._backend
    judges = backend.now_us
    backend.now_us = lambda stream: judges(stream) + round(TTL_S * 1_000_000)
    hf._log.key_ends._asked.clear()
    shown = hf.conversation("ends").state.to_dict()
    assert shown.keys() == {"lasting", "beside", "device"}
    assert shown["device"] == {}
    return shown


def places(server: Any, tmp_path: Path) -> list[Path]:
    """Returns where the tables and files of a store are; PostgreSQL's own log is named besides."""
    if server is None:
        return [tmp_path]
    tables = sorted(server.directory.rglob("base"))
    return tables or [server.directory]


def _settle(kind: str, hf: Store, server: Any) -> None:
    """Has a server write what it would write some time anyway: compressed, and to its tables."""
    if kind == "postgresql":
        server.psql("postgres", "CHECKPOINT")
    elif server is not None:
        hf._log._backend.purge(whole=False)


@pytest.mark.parametrize("kind", KINDS)
def test_no_byte_of_what_was_let_go_is_left(kind: str, tmp_path: Path) -> None:
    """BOOT-36, RALPH-51: each canary is found before, none after; heads and digests are equal."""
    canaries = Canaries()
    with place_of(kind, tmp_path) as (url, server):
        with holdfast.open(url) as hf:
            write(hf, canaries)
            _settle(kind, hf, server)
            found = canaries.found_below(*places(server, tmp_path))
            assert set(canaries.fields.values()) == set(found)
            shown = end(hf)
            before = hf._log.heads(SCOPES)
            stays = hf._log.at("conversation/stays", 1)
            left = hf.retention.run(grace_s=0).left
            assert bool(left) == (kind in ("sqlite", "postgresql"))
            whole = hf.retention.run(grace_s=0, whole=True).left
            named = ["the server's write-ahead log"] if kind == "postgresql" else []
            assert [one.where for one in whole] == named
            assert hf._log.heads(SCOPES) == before
            assert hf._log.at("conversation/stays", 1) == stays
            assert hf.conversation("ends").state.to_dict() == shown
            assert hf.check().findings == []
            if kind != "postgresql":
                assert canaries.found_below(*places(server, tmp_path)) == {}
        if kind == "postgresql":
            server.stop()
        assert canaries.found_below(*places(server, tmp_path)) == {}


def test_no_record_or_object_in_memory_has_it() -> None:
    """The memory backend has no files: every record, mark and object of it is looked at."""
    canaries = Canaries()
    with holdfast.open("memory:") as hf:
        write(hf, canaries)
        assert set(canaries.fields.values()) == canaries.found_in(in_memory(hf))
        end(hf)
        assert hf.retention.run(grace_s=0).left == []
        assert canaries.found_in(in_memory(hf)) == set()
        assert hf.check().findings == []


def in_memory(hf: Store) -> bytes:
    objects = hf._log._backend.objects
    parts = [repr(record).encode() for record in hf._log.read_all(after=START, limit=100_000)]
    parts += [record.payload for record in hf._log.read_all(after=START, limit=100_000)]
    parts += [
        objects.get(kind, name) or b""
        for kind in ("blob", "snapshot")
        for name in objects.names(kind)
    ]
    return b"\n".join([*parts, repr(list(hf.workers.marks(limit=None))).encode()])


def test_names_that_a_caller_gave_stay(tmp_path: Path) -> None:
    """As the guide says: keys, checkpoints, names of facts, ids of tasks; and only these."""
    names, data = Canaries(1), Canaries(2)
    with holdfast.open(str(tmp_path / "s")) as hf:
        chat = hf.conversation("gone")
        fill_names(chat, names)
        fill(hf, chat, data)
        chat.remove()
        hf.retention.run(grace_s=0)
        assert set(names.found_below(tmp_path)) == set(names.fields.values())
        assert data.found_below(tmp_path) == {}


# --- the search -----------------------------------------------------------------------------------


def looking_back(text: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns a beginning and what to repeat of it, (how far back, how much), to have a text.

    No part of it that stands in clear is long enough to be found.
    """
    return text[14:] + b"-" + text[7:14] + b"-" + text[:7], [(15, 7), (29, 6)]


def lzf(text: bytes) -> bytes:
    """Returns a text as Redis packs it in its RDB file."""
    begins, repeats = looking_back(text)
    out = bytes([len(begins) - 1]) + begins
    out += b"".join(bytes([(length - 2) << 5, back - 1]) for back, length in repeats)
    return b"REDIS0011\xc3" + bytes([len(out), len(begins) + 13]) + out


def pglz(text: bytes) -> tuple[bytes, bytes]:
    """Returns a text as PostgreSQL packs it: the size that it has, and the bytes."""
    begins, repeats = looking_back(text)
    items = [*(bytes([byte]) for byte in begins), *(bytes([n - 3, back]) for back, n in repeats)]
    out = bytearray()
    for start in range(0, len(items), 8):
        some = items[start : start + 8]
        out.append(sum(1 << bit for bit, item in enumerate(some) if len(item) > 1))
        out += b"".join(some)
    return (len(begins) + 13).to_bytes(4, "little"), bytes(out)


def page(row: bytes) -> bytes:
    """Returns a page of PostgreSQL with one row at its end."""
    pointer = (8192 - len(row)) | 1 << 15 | len(row) << 17
    header = b"\0" * 12 + (28).to_bytes(2, "little") + b"\0" * 4 + b"\x04\x20" + b"\0" * 4
    return (header + pointer.to_bytes(4, "little")).ljust(8192 - len(row), b"\0") + row


def packed(text: bytes) -> dict[str, bytes]:
    """Returns a text in every form that is searched, cut so that no form has it in clear."""
    zstd = zstandard.ZstdCompressor().compress
    size, small = pglz(text)
    value = ((len(small) + 8) << 2 | 2).to_bytes(4, "little") + size + small
    chunk = size + small
    toast = b"\0" * 22 + bytes([24, 0]) + b"\1\0\0\0" + b"\0" * 4
    toast += ((len(chunk) + 4) << 2).to_bytes(4, "little") + chunk
    return {
        "as it is": text,
        "upper case": text.upper(),
        "cut by a page": text[:10] + b"\0\0\0\7" + text[10:],
        "without a prefix": text[9:],
        "escaped": b"".join(b"\\u00%02x" % byte for byte in text),
        **{f"base64 at {n}": base64.b64encode(b"x" * n + text) for n in range(3)},
        "base64 for URLs": base64.urlsafe_b64encode(b"\xff\xfe" + text),
        "hexadecimal": text.hex().encode(),
        "zstd": zstd(text * 9),
        "a zstd frame that breaks off": zstd(bytes(range(256)) * 2000 + text)[:-1],
        "zstd in base64": base64.b64encode(zstd(text * 9)),
        "an object of git": zlib.compress(b"blob 20\0" + text),
        "a string of Redis": lzf(text),
        "a value in a row of PostgreSQL": page(value + b"\0" * (-len(value) % 4)),
        "a toasted value of PostgreSQL": page(toast),
    }


@pytest.mark.parametrize("form", packed(b"x" * LENGTH))
def test_the_search_finds_each_form(form: str, tmp_path: Path) -> None:
    """Or the tests above prove nothing; and it finds nothing where nothing is."""
    canaries, others = Canaries(5), Canaries(6)
    text = canaries.new("field").encode()
    others.new("other")
    (tmp_path / "file").write_bytes(packed(text)[form])
    assert canaries.found_below(tmp_path) == {"field": ["file"]}
    assert others.found_below(tmp_path) == {}
    assert canaries.found_below(tmp_path, besides=[tmp_path / "file"]) == {}
