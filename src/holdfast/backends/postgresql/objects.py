"""Named bytes beside the log: snapshots and blobs, one row each."""

from __future__ import annotations

from holdfast.backends.postgresql.gate import Gate
from holdfast.backends.postgresql.rows import prefix_end, signed_crc
from holdfast.errors import CorruptError

_PUT = """INSERT INTO holdfast.objects VALUES (%s, %s, %s, %s, %s)
 ON CONFLICT (application, kind, name) DO UPDATE SET crc = excluded.crc, data = excluded.data"""
_GET = "SELECT crc, data FROM holdfast.objects WHERE application = %s AND kind = %s AND name = %s"
_NAMES = """SELECT name FROM holdfast.objects
 WHERE application = %(application)s AND kind = %(kind)s AND name >= %(prefix)s
 AND (%(end)s::text IS NULL OR name < %(end)s) ORDER BY name"""
_DELETE = "DELETE FROM holdfast.objects WHERE application = %s AND kind = %s AND name = %s"


def object_crc(kind: str, name: str, data: bytes) -> int:
    return signed_crc(data, signed_crc(f"{kind} {name} ".encode()) & 0xFFFFFFFF)


class PostgresqlObjects:
    """The checksum covers kind and name too: bytes that turn up under another name fail it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        crc = object_crc(kind, name, data)
        self._gate.write(_PUT, (self._gate.application, kind, name, crc, data))

    def get(self, kind: str, name: str) -> bytes | None:
        rows = self._gate.ask(_GET, (self._gate.application, kind, name))
        if not rows:
            return None
        crc, data = rows[0]
        if crc != object_crc(kind, name, data):
            where = self._gate.place.shown
            raise CorruptError(f'{kind} "{name}" fails its checksum ({where})', where=where)
        return data

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        values = {"application": self._gate.application, "kind": kind}
        rows = self._gate.ask(_NAMES, {**values, "prefix": prefix, "end": prefix_end(prefix)})
        return [name for (name,) in rows]

    def delete(self, kind: str, name: str) -> None:
        self._gate.write(_DELETE, (self._gate.application, kind, name))
