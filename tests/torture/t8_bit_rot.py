"""T8: bit rot. A changed byte is found, or it changes nothing that the store says.

Stores that hold every kind of file: closed; left by a kill, with ring, shared page or WAL; and left
so when the power went, the text behind its synced end lost. Every byte is changed, one random bit
or all of them; every 512 bytes are zeroed, and every file is cut at each 512 and taken away. Then
the store is opened and read in every way there is. It must raise an error, or say exactly what it
said, or, of what is not events, `check` must have a finding.

Where it raises, the damage must be no dead end: each stream reads rightly or raises by itself,
`check` runs to its end and has a finding, and a salvage takes over the beginning of every stream
up to its first damaged event, into a store that is whole, and does not call it all. Of one damaged
line it is known which streams are whole: those read. The source is not changed by a salvage.

Of what can be rebuilt (index, shared page, SQLite's -shm and -witness) every 8th byte is changed
here, and of copies of what another state has already had; `-large` changes every byte of 256 KiB
and more. `-packed` changes those of segments that are shorter than their text (0086).

What cannot be found is asserted to be this and nothing else, see `_is_known`:
- the end of a WAL that was never checkpointed: SQLite ends it at the first frame that fails its
  checksum, as it must for frames that were torn by a crash, so damage there reads as an end;
- the last batch of a ring after a power loss, for the same reason: nothing else says that it was
  whole. (After a kill the shared page says so, and it is found.) All of its batches, if the ring is
  gone, or if the id in holdfast.json has changed: its batches are then another store's.

Planted, and found: `PLANTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from msgspec import json, structs

from tests.torture.damage_stores import (
    EVENTS,
    HONEST,
    STATES,
    Left,
    Size,
    Victim,
    left_of,
    read,
    victim,
)
from tests.torture.faulty_calls import make_small
from tests.torture.faulty_life import no_hang
from tests.torture.programme import Broken, Point, Programme

CHUNK = 64
BLOCK = 512
DERIVED = ("index.sqlite", "shared", "store-shm", "store-witness")
SMALL = Size(1, 0)
PACKED = Size(2, 400)
LARGE = {"files": Size(2, 3000), "sqlite": Size(2, 11000)}
"""Their states have 256 KiB together."""
NAMES = {SMALL: "", PACKED: "-packed"} | dict.fromkeys(LARGE.values(), "-large")


@cache
def ready(plant: str, size: Size) -> None:
    from holdfast.backends.files import journal, packing
    from holdfast.core import item_copies, snapshot

    make_small()
    packing.SAVED_BYTES_MIN, packing.PLACE_BYTES = 1, 1000
    journal.RING_BYTES = 4096 if size == SMALL else 65536
    snapshot.CLOSE_BYTES_MIN = item_copies.BLOCK_BYTES_MIN = 200
    if plant:
        for backend in ("files", "sqlite"):
            for state in states(backend, size):
                victim(backend, state, size)
        PLANTS[plant]()


def states(backend: str, size: Size) -> tuple[str, ...]:
    if size == PACKED:
        return ("packed",)
    # SQLite's recovery looks at nothing that would be another thing after a power loss.
    return STATES if backend == "files" else STATES[:2]


Harm = tuple[str, str, str, int]
"""State, file, what is done, and where."""


@cache
def harms(backend: str, size: Size) -> list[Harm]:
    """Returns every chunk and block of every file of every state."""
    found: list[Harm] = []
    for state in states(backend, size):
        for name, data in victim(backend, state, size).files.items():
            if state == "packed" and "/log/" not in name:
                continue
            found += [(state, name, "flip", at) for at in range(0, len(data), CHUNK)]
            blocks = range(0, len(data), BLOCK if len(data) < 65536 else 8 * BLOCK)
            found += [(state, name, "zero", at) for at in blocks]
            found += [(state, name, "cut", at) for at in blocks]
            found.append((state, name, "lose", 0))
    # The first few are of all kinds: a share, or what a plant is looked for in.
    Random(1).shuffle(found)
    return found


def is_sparse(backend: str, state: str, name: str) -> bool:
    """Whether every 8th byte will do: it can be rebuilt, or another state has the same bytes."""
    if name.endswith(DERIVED):
        return True
    return state != "closed" and not name.endswith(("ring", "-wal", ".json"))


def trial(backend: str, size: Size, point: Point) -> int:
    ready(point.plant, size)
    if point.number >= len(harms(backend, size)):
        return 0
    state, name, kind, at = harms(backend, size)[point.number]
    whole = victim(backend, state, size)
    data = whole.files[name]
    cases = 0
    for place, changed in _changed(data, kind, at, point.random, _step(whole, name, size)):
        cases += 1
        with no_hang(f"{kind} in {name}"):
            _judge(whole, name, f"{kind} at byte {place} of {name} ({state})", changed)
    return max(cases, 1)


def _step(whole: Victim, name: str, size: Size) -> int:
    """Returns how far apart the bytes are that are changed."""
    return 8 if size == SMALL and is_sparse(whole.backend, whole.state, name) else 1


def _changed(
    data: bytes, kind: str, at: int, chance: Random, step: int
) -> list[tuple[int, bytes | None]]:
    if kind == "lose":
        return [(0, None)]
    if kind == "cut":
        return [(at, data[:at])]
    if kind == "zero":
        block = data[at : at + BLOCK]
        return [(at, data[:at] + bytes(len(block)) + data[at + BLOCK :])] if any(block) else []
    first = at + chance.randrange(step)
    found: list[tuple[int, bytes | None]] = []
    for place in range(first, min(at + CHUNK, len(data)), step):
        mask = chance.choice((0xFF, *(1 << bit for bit in range(8))))
        changed = bytes([data[place] ^ mask])
        found.append((place, data[:place] + changed + data[place + 1 :]))
    return found


def _judge(whole: Victim, name: str, told: str, changed: bytes | None) -> None:
    try:
        found, finding = read(whole, lambda at: whole.put(at, name, changed))
    except HONEST as error:
        if not error.message or len(error.message) < 15:
            raise Broken(f"{told}: an error that says nothing: {error.message!r}") from error
        _judge_what_is_left(whole, name, told, changed)
        return
    except Exception as error:
        raise Broken(f"{told}: {type(error).__name__}: {error}") from error
    parts = [number for number, part in enumerate(found) if part != whole.says[number]]
    # Events are right, or reading them raises. What an index of SQLite's leads to (keys, names,
    # marks) can be hidden from a reader by damage there: it takes a check to find that.
    is_found = bool(finding) and EVENTS not in parts
    if not parts or is_found or _is_known(whole, name, changed, found):
        return
    raise Broken(f"{told}: it says something else, and nobody said so (parts {parts})")


def _judge_what_is_left(whole: Victim, name: str, told: str, changed: bytes | None) -> None:
    """One damage is no dead end: what it does not concern reads, and is salvaged, and no more."""
    try:
        left = left_of(whole, lambda at: whole.put(at, name, changed))
    except HONEST as error:
        if "/log/" in name:
            raise Broken(f"{told}: damaged text makes a dead end: {error}") from error
        return  # of a database, or of what says that there is a store: nothing can be opened
    except Exception as error:
        raise Broken(f"{told}: {type(error).__name__}: {error}") from error
    if not left.is_named:
        raise Broken(f"{told}: reading raises, and check finds nothing")
    known = dict(zip(whole.says[1], whole.says[2], strict=True))
    for stream, records in left.read.items():
        if isinstance(records, str):
            continue
        # What an index of SQLite's no longer leads to (a name, the newest events of a stream) is
        # not there for a reader; it takes a check to find that.
        wanted = known[stream]
        if records != (wanted[: len(records)] if whole.backend == "sqlite" else wanted):
            raise Broken(f"{told}: {stream} reads otherwise, and nobody said so")
    lost = False
    for stream, records in known.items():
        found = _plain(left.salvaged.get(stream, []))
        lost = lost or found != _plain(records)
        if found != _plain(records)[: len(found)]:
            raise Broken(f"{told}: {stream} was salvaged as something else")
    if lost and left.is_whole and not name.endswith(("ring", "-wal", "holdfast.json")):
        raise Broken(f"{told}: a salvage lost events and called it whole")
    _judge_text(whole, name, told, changed, left)


def _plain(records: list[Any]) -> list[Any]:
    """Returns records without their positions, which are others in another store."""
    return [structs.replace(record, position=0) for record in records]


def _judge_text(whole: Victim, name: str, told: str, changed: bytes | None, left: Left) -> None:
    """Of one line of a closed store, it is known exactly what must be read and salvaged."""
    data = whole.files[name]
    if "/log/" not in name or whole.state != "closed" or changed is None:
        return
    lines, others = data.splitlines(keepends=True), changed.splitlines(keepends=True)
    bad = [n for n, (one, other) in enumerate(zip(lines, others, strict=False)) if one != other]
    if len(lines) != len(others) or len(bad) != 1:
        return
    hit = [section[0] for section in json.decode(lines[bad[0]])["in"]]
    after = {section[0] for line in lines[bad[0] + 1 :] for section in json.decode(line)["in"]}
    lost_from = {section[0]: section[1] for section in json.decode(lines[bad[0]])["in"]}
    for stream, records in zip(whole.says[1], whole.says[2], strict=True):
        if stream in after and stream not in hit and left.read[stream] != records:
            raise Broken(f"{told}: {stream} is whole, and does not read")
        if stream in hit and not isinstance(left.read[stream], str):
            raise Broken(f"{told}: {stream} has lost an event, and reads")
        taken = len(left.salvaged.get(stream, []))
        wanted = [one for one in records if one.revision < lost_from.get(stream, 1 << 60)]
        if taken != len(wanted) and not stream.startswith("conversation/f"):  # a fork of one
            raise Broken(f"{told}: {taken} events of {stream} salvaged: expected {len(wanted)}")


def _is_known(whole: Victim, name: str, changed: bytes | None, found: list[Any]) -> bool:
    """Whether this is damage that nothing can tell from what a crash leaves, and did only that."""
    records, all_records = found[0], whole.says[0]
    is_prefix = records == all_records[: len(records)]
    if name.endswith("store-wal") and whole.state == "killed":
        return is_prefix
    if name.endswith(("ring", "holdfast.json")) and whole.state == "unpowered":
        # Not more than the last batch, unless all of the ring is gone, or is another store's.
        is_flip = changed is not None and len(changed) == len(whole.files[name])
        is_whole = is_flip and name.endswith("ring")
        return is_prefix and (len(all_records) - len(records) <= 1 or not is_whole)
    return False


# --- faults that are planted ----------------------------------------------------------------------


def no_crc() -> None:
    """Lines and rows are read without a look at their checksums."""
    from holdfast.backends.files import catalog, recovery, text
    from holdfast.backends.files import inspection as verify
    from holdfast.backends.protocol import Position, Record
    from holdfast.backends.sqlite import backend, inspection, rows

    def decode_row(row: Any, stream: str, where: str) -> Record:
        ordinal, position, _, revision, time, kind, actor, key, name, subject, _, link, payload = (
            row[:13]
        )
        at = Position(ordinal if position is None else position)
        fields = stream, revision, time, kind, actor, payload, link, key, name, subject, at
        return Record(*fields, meta=row[13] if len(row) > 13 else None)

    def decode_line(encoded: bytes) -> text.LogLine:
        try:
            return text._parse(encoded)  # pyright: ignore[reportPrivateUsage]
        except ValueError as exc:
            raise text.BadLine(str(exc)) from exc

    for module in (catalog, recovery, verify):
        setattr(module, "decode_line", decode_line)  # noqa: B010
    for module in (backend, inspection, rows):
        setattr(module, "decode", decode_row)  # noqa: B010


def no_index_checksum() -> None:
    """The index is believed without checksums of its pages."""
    from holdfast.backends.files import index

    setattr(index, "_checking_vfs", lambda: "unix")  # noqa: B010


def torn_is_cut() -> None:
    """Whatever of the text cannot be read is taken for a torn end, and cut."""
    from holdfast.backends.files import recovery
    from holdfast.backends.files.recovery import RecoveryBasis

    real = recovery.complete_text

    def complete(*given: Any, **named: Any) -> RecoveryBasis:
        basis = real(*given, **named)
        basis.required_end, basis.head, basis.was_in_use = 0, None, True
        return basis

    recovery.complete_text = complete


def end_not_recorded() -> None:
    """Nobody compares where the text ends with where it was recorded to end."""
    from holdfast.backends.files.directory import Directory

    Directory.read_head = lambda self: None
    Directory.read_recorded = lambda self: (None, False)


def no_doubt() -> None:
    """A stream that is not known to have lost an event is taken for whole."""
    from holdfast.backends.files.damaged import DamagedCatalog

    DamagedCatalog.doubt = lambda self, stream, head: self.broken.get(stream)


def no_block_digest() -> None:
    """A block of items is handed out as it is read: neither its digest nor zstd's is looked at."""
    from holdfast.core import codec
    from holdfast.core.item_copies import Block, ItemCopies

    def read(self: Any, block: Block) -> bytes | None:
        data = self._objects_of(block.stream).get("snapshot", block.name)
        if data is None:
            return None
        has_sum = 4  # a bit of the fifth byte of a frame: four bytes at its end are a checksum
        bare = data[:4] + bytes([data[4] & ~has_sum]) + data[5:-4]
        return codec.decompress(bare, size_max=block.size)

    setattr(ItemCopies, "read", read)  # noqa: B010


PLANTS: dict[str, Callable[[], None]] = {
    "no-crc": no_crc,
    "no-index-checksum": no_index_checksum,
    "torn-is-cut": torn_is_cut,
    "end-not-recorded": end_not_recorded,
    "no-doubt": no_doubt,
    "no-block-digest": no_block_digest,
}

PROGRAMMES: tuple[Programme, ...] = tuple(
    Programme(
        name=f"t8-{backend}{NAMES[size]}",
        promise="a changed byte is found, or changes nothing that the store says",
        trial=lambda point, backend=backend, size=size: trial(backend, size, point),
        share=None if size == SMALL else 24 if size == PACKED else 2,
        parts=5 if size == SMALL else 1,
        turns=24,
        plants=plants,
    )
    for backend, size, plants in (
        (
            "files",
            SMALL,
            {
                "no-crc": 150,
                "no-index-checksum": 300,
                "torn-is-cut": 150,
                "end-not-recorded": 150,
                "no-doubt": 150,
                "no-block-digest": 600,
            },
        ),
        ("files", PACKED, {"no-crc": 20}),
        ("sqlite", SMALL, {"no-crc": 150}),
        *((backend, size, dict[str, int]()) for backend, size in LARGE.items()),
    )
)
