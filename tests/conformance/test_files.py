"""The files backend keeps the contract."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.backends.files import FilesBackend
from holdfast.backends.protocol import Append, Backend, Commit, Position, Record
from holdfast.clock import Clock
from holdfast.testing.contract import BackendContract
from holdfast.testing.durable import DurableContract, MultiProcessContract
from holdfast.testing.machine import machine_for

_scan = json.JSONDecoder().raw_decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _make(place: Path, clock: Clock) -> FilesBackend:
    return FilesBackend(place / "store", clock=clock)


class TestFiles(BackendContract, DurableContract, MultiProcessContract):
    def make(self, place: Path, clock: Clock) -> Backend:
        return _make(place, clock)

    def raw(self, backend: Backend, place: Path, stream: str) -> list[Record]:
        records: list[Record] = []
        for path in sorted((place / "store" / "log").glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                records += [record for record in _records(line) if record.stream == stream]
        return records

    def plant(self, place: Path, commit: Commit, position: Position) -> None:
        [path] = (place / "store" / "log").glob("*.jsonl")
        sections = ",".join(_section(append) for append in commit.appends)
        at = (_EPOCH + timedelta(microseconds=commit.time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = f'{{"n":{position},"at":"{at}","by":{json.dumps(commit.actor)},"in":[{sections}]'
        line = f'{body},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'
        path.write_bytes(path.read_bytes() + line.encode())
        # What was closed has no line after its end: this is a copy of a living store.
        head = place / "store" / "head.json"
        head.write_text(json.dumps({**json.loads(head.read_text()), "closed": False}))

    def make_newer(self, place: Path) -> None:
        path = place / "store" / "holdfast.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 4}))


def _section(append: Append) -> str:
    events: list[str] = []
    for record in append.records:
        link = base64.urlsafe_b64encode(record.link).decode().rstrip("=")
        event = f'[{json.dumps(record.type)},{record.payload.decode()},"{link}"'
        has_meta = record.meta is not None
        if record.checkpoint is not None or record.subject is not None or has_meta:
            event += f",{json.dumps(record.checkpoint)}"
        if record.subject is not None or has_meta:
            event += f",{json.dumps(record.subject)}"
        if has_meta:
            event += f",null,{record.meta}"
        events.append(event + "]")
    key = json.dumps(append.records[0].key)
    tail = f",{key},1" if append.fork else f",{key}"
    return f"[{json.dumps(append.stream)},{append.expected + 1},[{','.join(events)}]{tail}]"


def _records(encoded: bytes) -> list[Record]:
    """Reads a line by the description of the format, not by the code that implements it."""
    line: dict[str, Any] = json.loads(encoded)
    at = datetime.fromisoformat(line["at"])
    time = (at - _EPOCH) // timedelta(microseconds=1)
    records: list[Record] = []
    rest = encoded
    for stream, first, events, *more in line["in"]:
        own = more[0] if more else None
        keys = own if isinstance(own, list) else [own, *[None] * (len(events) - 1)]
        assert len(keys) == len(events)
        for revision, (kind, value, link, *names) in enumerate(events, first):
            key = keys[revision - first]
            checkpoint, subject, padding, meta = (*names, *[None] * (4 - len(names)))
            before, after = padding or ("", "")
            # The payload's own bytes: from after its type to before its link.
            rest = rest.split(json.dumps(kind).encode() + b",", 1)[1]
            payload, rest = rest.split(b',"' + link.encode(), 1)
            assert json.loads(payload) == value
            if payload.startswith(b"-0 "):
                payload = b"-0"  # let go of: spaces keep the line as long as it was
            payload = before.encode() + payload + after.encode()
            # And those of meta: whatever reads as this one object before the next event.
            text = None
            if meta is not None:
                start = rest.index(b"{")
                _, length = _scan(rest[start:].decode())
                text = rest[start:].decode()[:length]
            digest = base64.urlsafe_b64decode(link + "=")
            position = Position(line["n"])
            fields = (kind, line["by"], payload, digest, key, checkpoint, subject, position, text)
            records.append(Record(stream, revision, time, *fields))
    return records


class TestFilesLikeMemory(machine_for(_make, reopen=_make).TestCase):  # type: ignore[misc]
    """Clauses 1 to 17, in lock step with the memory backend."""
