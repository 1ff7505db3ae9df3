"""What a retain lets go of is not in the files of a server, once the listed steps are done (0041).

A canary in every kind of field: state, a large value (compressed), a message, the data of an own
event, a key of the state. Looked for in every file of the server, as it is, in base64, escaped, and
in whatever a zstd frame decompresses to.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

import holdfast
from holdfast import Store
from holdfast.backends.protocol import Head
from tests.servers import postgresql, redis

CANARY = "CANARY-\u00e9-77c1"
PLAIN = CANARY.encode()
SCOPES = ["conversation/gone", "conversation/stays"]
FRAME = b"\x28\xb5\x2f\xfd"


def forms() -> list[bytes]:
    """Returns how the canary may be written; base64 by its three places."""
    shifted = [base64.b64encode(b"x" * n + PLAIN)[4 if n else 0 : -4] for n in range(3)]
    return [PLAIN, CANARY.encode("ascii", "backslashreplace"), *shifted]


def found(place: Path) -> list[str]:
    """Returns the files that have the canary in any form."""
    hits: list[str] = []
    for path in sorted(place.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            texts = [data, *_frames(data)]
            if any(form in text for text in texts for form in forms()):
                hits.append(path.name)
    return hits


def _frames(data: bytes) -> Iterator[bytes]:
    at = data.find(FRAME)
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at = data.find(FRAME, at + 1)


def write(hf: Store) -> None:
    chat = hf.conversation("gone")
    chat.set("note", CANARY)
    chat.set(f"key {CANARY}", 1)
    chat.set("text", f"{CANARY} " * 20_000)
    chat.say(CANARY)
    chat.record("measured", {"said": CANARY}, unchecked=True)
    chat.checkpoint("p")
    hf.conversation("stays").set("n", 1)
    hf._log.snapshots.flush({})
    chat.remove()


def test_redis(tmp_path: Path) -> None:
    running: Any = redis.new_server(next(iter(redis.installations())))
    try:
        with holdfast.open(running.url(application="bytes")) as hf:
            write(hf)
            assert found(running.directory)
            before = hf._log.heads(SCOPES)
            done = hf.retain(grace_s=0)
            assert done.left == []
            assert found(running.directory) == []
            _stays(hf, before)
    finally:
        running.remove()


def test_postgresql(tmp_path: Path) -> None:
    """The tables hold nothing of it after VACUUM FULL; the server's own log is named."""
    running: Any = postgresql.new_server(postgresql.NEWEST)
    try:
        with holdfast.open(running.url(application="bytes")) as hf:
            write(hf)
            before = hf._log.heads(SCOPES)
            left = hf.retain(grace_s=0).left
            assert any("VACUUM FULL" in one.remedy for one in left)
            done = hf.retain(grace_s=0, whole=True)
            assert [one.where for one in done.left] == ["the server's write-ahead log"]
            _stays(hf, before)
        running.stop()  # what is in memory is written to the tables
        in_tables = [name for base in running.directory.rglob("base") for name in found(base)]
        assert in_tables == []
    finally:
        running.remove()


def _stays(hf: Store, before: list[Head | None]) -> None:
    """The chain of each scope ends in the same link, and verifies over what is gone."""
    assert hf._log.heads(SCOPES) == before
    assert hf.conversation("stays")["n"] == 1
    assert hf.check().findings == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """Each form of a canary is found, or the tests above prove nothing."""
    for number, form in enumerate([*forms(), zstandard.ZstdCompressor().compress(PLAIN * 9)]):
        (tmp_path / f"{number}").write_bytes(b"before" + form + b"after")
    assert len(found(tmp_path)) == len(forms()) + 1
