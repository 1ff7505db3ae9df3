"""Named bytes beside the log: snapshots and blobs, one row each."""

from __future__ import annotations

from holdfast.backends.sqlite.connection import Gate
from holdfast.backends.sqlite.rows import prefix_end, signed_crc
from holdfast.backends.sqlite.schema import INDEX_FROM_ROW
from holdfast.errors import CorruptError

_FIND = "SELECT id FROM objects WHERE kind = ? AND name = ?"
_ADD = "INSERT INTO objects (kind, name, crc, data) VALUES (?,?,?,?)"
_REPLACE = "UPDATE objects SET crc = ?, data = ? WHERE id = ?"
_GET = "SELECT crc, data FROM objects WHERE kind = ? AND name = ?"
_NAMES = "SELECT name FROM objects WHERE kind = ? AND name >= ? AND name < ? ORDER BY name"
_DELETE = "DELETE FROM objects WHERE kind = ? AND name = ?"


def object_crc(kind: str, name: str, data: bytes) -> int:
    return signed_crc(data, signed_crc(f"{kind} {name} ".encode()) & 0xFFFFFFFF)


class SqliteObjects:
    """The checksum covers kind and name too: bytes that turn up under another name fail it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def put(self, kind: str, name: str, data: bytes, *, expires_us: int = 0) -> None:
        gate = self._gate
        writer = gate.writer

        def work() -> None:
            gate.tables.ensure("objects", writer.execute)
            crc = object_crc(kind, name, data)
            number: int | None = writer.execute(_FIND, (kind, name)).get
            if number is not None:
                writer.execute(_REPLACE, (crc, data, number))
                return
            writer.execute(_ADD, (kind, name, crc, data))
            if writer.connection.last_insert_rowid() >= INDEX_FROM_ROW:
                gate.tables.ensure("objects_by_name", writer.execute)

        with gate.errors:
            writer.transact(work)

    def get(self, kind: str, name: str) -> bytes | None:
        gate = self._gate
        gate.check_open()
        with gate.errors, gate.reader.lock:
            if not gate.tables.exist("objects", gate.reader.execute):
                return None
            rows = gate.reader.execute(_GET, (kind, name)).fetchall()
        if not rows:
            return None
        crc, data = rows[0]
        if not isinstance(data, bytes) or crc != object_crc(kind, name, data):
            raise CorruptError(f'{kind} "{name}" fails its checksum ({gate.path})', where=gate.path)
        return data

    def names(self, kind: str, *, prefix: str = "") -> list[str]:
        gate = self._gate
        gate.check_open()
        with gate.errors, gate.reader.lock:
            if not gate.tables.exist("objects", gate.reader.execute):
                return []
            rows = gate.reader.execute(_NAMES, (kind, prefix, prefix_end(prefix))).fetchall()
            return [name for (name,) in rows]

    def delete(self, kind: str, name: str) -> None:
        gate = self._gate
        writer = gate.writer

        def work() -> None:
            if gate.tables.exist("objects", writer.execute):
                writer.execute(_DELETE, (kind, name))

        with gate.errors:
            writer.transact(work)
