"""Named bytes beside the log: snapshots and blobs, one key each."""

from __future__ import annotations

from zlib import crc32

from holdfast.backends.redis.entries import behind_prefix
from holdfast.backends.redis.gate import Gate
from holdfast.errors import CorruptError

_CRC = 8


def sealed(kind: str, name: str, data: bytes) -> bytes:
    """Returns the bytes behind their checksum.

    It covers kind and name too: bytes that turn up under another name fail it.
    """
    return b"%08x" % crc32(data, crc32(f"{kind} {name} ".encode())) + data


def is_sealed(kind: str, name: str, stored: bytes) -> bool:
    return sealed(kind, name, stored[_CRC:]) == stored


class RedisObjects:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        self._write(kind, name, expires_us, sealed(kind, name, data))

    def get(self, kind: str, name: str) -> bytes | None:
        [stored] = self._gate.ask(("GET", self._gate.keys.object(kind, name)))
        if stored is None:
            return None
        if not is_sealed(kind, name, stored):
            where = self._gate.place.shown
            raise CorruptError(f'{kind} "{name}" fails its checksum ({where})', where=where)
        return stored[_CRC:]

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        start, end = f"[{prefix}" if prefix else "-", behind_prefix(prefix)
        keys = self._gate.keys
        names, ends, (seconds, micros) = self._gate.ask(
            ("ZRANGEBYLEX", keys.objects(kind), start, end),
            ("ZRANGE", keys.expiring(kind), 0, -1, "WITHSCORES"),
            ("TIME",),
        )
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        gone = {name for name, end in zip(ends[::2], ends[1::2], strict=True) if int(end) <= now_ms}
        return [name.decode() for name in names if name not in gone]

    def delete(self, kind: str, name: str) -> None:
        self._write(kind, name, 0)

    def _write(self, kind: str, name: str, expires_us: int, *data: bytes) -> None:
        keys = self._gate.keys
        named = keys.object(kind, name), keys.objects(kind), keys.expiring(kind)
        self._gate.write("object", named, (kind, name, expires_us or False), *data)
