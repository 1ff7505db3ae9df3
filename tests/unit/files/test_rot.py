"""What `verify` says of damage. That any changed byte is noticed is shown by tests/torture t8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.files import FilesBackend
from holdfast.backends.protocol import Finding
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write


@pytest.mark.usefixtures("small")
def test_verify_names_file_and_byte_of_every_damaged_line(
    tmp_path: Path, clock: FakeClock, trial: dict[str, Any]
) -> None:
    backend = FilesBackend(tmp_path / "s", clock=clock)
    trial["Filler"]().fill(backend)
    [first, *_] = sorted((tmp_path / "s" / "log").iterdir())
    text = bytearray(first.read_bytes())
    starts = [0, *(place + 1 for place, byte in enumerate(text[:-1]) if byte == 10)]
    for start in starts[1:3]:
        text[start + 40] ^= 4
    first.write_bytes(text)
    findings = list(backend.inspect.verify(read_all=True))
    where = [f"log/{first.name} byte {start}" for start in starts[1:3]]
    assert [f.where for f in findings if "checksum" in f.problem] == where
    backend.close()


def test_verify_finds_a_blob_that_is_not_what_its_name_says(
    backend: FilesBackend, build: RecordBuilder
) -> None:
    write(backend, build, "a")
    backend.objects.put("blob", "0" * 64, b"something else")
    backend.objects.put("blob", "free/name", b"nobody knows")
    assert list(backend.inspect.verify(read_all=False)) == []
    [found] = backend.inspect.verify(read_all=True)
    assert isinstance(found, Finding)
    assert found.where == "objects/blob/00/" + "0" * 64


def test_verify_notices_a_file_left_over_from_an_interrupted_put(
    tmp_path: Path, backend: FilesBackend
) -> None:
    backend.objects.put("blob", "ab/cd", b"1")
    (tmp_path / "store" / "objects" / "blob" / "ab=" / "=new-1234").write_bytes(b"")
    [found] = backend.inspect.verify(read_all=False)
    assert found.harmless
    assert backend.objects.names("blob") == ["ab/cd"]


def test_lost_or_damaged_leases_are_harmless(
    tmp_path: Path, backend: FilesBackend, clock: FakeClock
) -> None:
    lease = backend.leases.acquire("l", "w1", ttl_s=100)
    assert lease is not None
    path = tmp_path / "store" / "leases.json"
    for content in (b"", b"{", None):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        clock.advance(1)
        other = FilesBackend(tmp_path / "store", clock=clock)
        again = other.leases.acquire("l", "w2", ttl_s=0.5)
        assert again is not None
        assert again.epoch > lease.epoch
        lease = again
        other.close()
