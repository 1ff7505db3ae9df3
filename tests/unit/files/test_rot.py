"""Bit rot: whatever byte of a closed store changes, it is noticed or it changes nothing (T8)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard

from holdfast.backends.files import FilesBackend
from holdfast.backends.protocol import Finding
from holdfast.errors import CorruptError, FormatError
from holdfast.testing.clock import FakeClock
from holdfast.testing.records import RecordBuilder
from holdfast.testing.trial import write


def _store(path: Path, clock: FakeClock, trial: dict[str, Any]) -> list[Any]:
    from hashlib import sha256

    backend = FilesBackend(path, clock=clock)
    trial["Filler"]().fill(backend)
    raw = b"blob of a known digest"
    backend.objects.put("blob", sha256(raw).hexdigest(), zstandard.compress(raw))
    answers = _answers(backend)
    backend.close()
    return answers


def _answers(backend: FilesBackend) -> list[Any]:
    streams = backend.streams()
    names = backend.objects.names("blob")
    return [
        streams,
        [backend.read(stream) for stream in streams],
        backend.read_all(limit=10**6),
        [backend.find(stream) for stream in streams],
        [backend.find("a", key=f"k{n}") for n in range(20)],
        backend.marks.list(),
        names,
        [backend.objects.get("blob", name) for name in names],
    ]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_byte_is_noticed_or_changes_nothing(
    tmp_path: Path, clock: FakeClock, trial: dict[str, Any], seed: int
) -> None:
    answers = _store(tmp_path / "s", clock, trial)
    files = sorted(p for p in (tmp_path / "s").rglob("*") if p.is_file() and p.stat().st_size)
    chance = random.Random(seed)
    for _ in range(60):
        path = chance.choice(files)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        damaged = tmp_path / "copy" / path.relative_to(tmp_path / "s")
        data = bytearray(damaged.read_bytes())
        place = chance.randrange(len(data))
        data[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(data)
        try:
            backend = FilesBackend(tmp_path / "copy", clock=clock)
        except (CorruptError, FormatError):
            continue
        findings = list(backend.inspect.verify(read_all=True))
        noticed = [found for found in findings if not found.harmless]
        try:
            if not noticed:
                assert _answers(backend) == answers, f"{damaged} byte {place} went unnoticed"
        except CorruptError:
            pass
        finally:
            backend.close()


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
