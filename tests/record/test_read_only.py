"""A handle that only reads, on every backend that outlives its process."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import UsageError
from tests.record.stores import new_url

SIDE_FILES = ("-shm", "-wal")
"""SQLite makes these for whoever reads a database in WAL mode; they hold no commit of a reader."""


def on_disk(place: Path) -> dict[str, str]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return {
        str(path): sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.endswith(SIDE_FILES)
    }


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "encrypted"])
def test_every_write_is_refused_and_no_file_is_touched(
    durable: str, tmp_path: Path, key: bytes | None
) -> None:
    url = new_url(durable, tmp_path)
    with holdfast.open(url, store_key=key) as hf:
        hf.team("red").set("n", 1)
        digest = hf.check().digest
    before = on_disk(tmp_path)
    with holdfast.open(url, read_only=True, store_key=key) as hf:
        team = hf.team("red")
        writes = {
            "a value": lambda: team.set("n", 2),
            "a large value": lambda: team.set("large", ["x" * 100_000]),
            "a message": lambda: team.say("hello"),
            "a task": lambda: team.tasks.add("one"),
            "a removal": lambda: team.remove(),
            "a joint commit": lambda: hf.commit(lambda tx: tx.scope(team).set("n", 2)),
            "a lease": lambda: hf._log.leases.acquire("a", "me", ttl_s=1),
            "a claim": lambda: hf._log.marks.claim("a", "me", n=1, ttl_s=1),
            "an object": lambda: hf._log._backend.objects.put("blob", "0" * 64, b"x"),
            "a deleted object": lambda: hf._log._backend.objects.delete("blob", "0" * 64),
        }
        for what, write in writes.items():
            with pytest.raises(UsageError):
                write()
                pytest.fail(f"{what} was not refused")
        if key is not None:
            with pytest.raises(UsageError):
                hf.keys.rotate()
            with pytest.raises(UsageError):
                hf.keys.rewrap(b"o" * 32)
        assert team.get("n") == 1
        assert hf.check().digest == digest
    assert on_disk(tmp_path) == before
