"""Which states of the disk a power loss may leave, at any moment of a trace.

The model is the weakest that is sensible, weaker than ext4, XFS and btrfs:

- A file's writes and cuts since its last sync are there or not, each by itself, in any combination.
- A write may be torn at multiples of 512 bytes or of 4 KiB: any of its pieces may be missing. Where
  it made the file longer, the length may be there without the bytes, which are zeros then.
- Names made, moved and dropped since the last sync of their directory are there or not, each by
  itself; a sync of a file does not keep its name, nor that of the directory it lies in.
- What was synced is there.

States differ only from one sync or answer to the next: a moment right before each of those has all
that was possible since the one before.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.torture.crash_trace import ROOT, Event, Trace

ALL_SUBSETS_TO = 5
RANDOM_EACH = 12
UNITS = (512, 4096)


class Fate(NamedTuple):
    """What becomes of one call that was not synced."""

    pieces: int = -1
    """A bit for each piece that is kept, again from the lowest after 60; -1: all, 0: none."""
    unit: int = 4096
    is_long: bool = True
    """Whether the file has the length that the call gave it, whatever of its bytes is there."""


KEPT = Fate()
LOST = Fate(0, is_long=False)
EMPTY = Fate(0)
State = dict[str, bytes | None]
"""Every path with its bytes; None for a directory."""


class Moment(NamedTuple):
    """Where the power may fail: what is durable there, and what is pending."""

    at: int
    begun: frozenset[str]
    done: frozenset[str]
    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]
    pending: tuple[Event, ...]

    def state(self, fates: tuple[Fate, ...]) -> State:
        files: dict[int, bytearray] = {}
        folders = {node: dict(names) for node, names in self.folders.items()}
        for event, fate in zip(self.pending, fates, strict=True):
            if event.kind in ("write", "cut"):
                content = files.get(event.node)
                if content is None:
                    content = files[event.node] = bytearray(self.files.get(event.node, b""))
                _apply(content, event, fate)
            elif fate.pieces:
                _rename(folders.setdefault(event.node, {}), event)
        found: State = {}
        self._walk(ROOT, "", files, folders, found)
        return found

    def _walk(
        self,
        node: int,
        path: str,
        files: dict[int, bytearray],
        folders: dict[int, dict[str, int]],
        found: State,
    ) -> None:
        for name, child in folders[node].items():
            if child in folders:
                found[path + name] = None
                self._walk(child, f"{path}{name}/", files, folders, found)
            elif child in files:
                found[path + name] = bytes(files[child])
            else:
                found[path + name] = self.files.get(child, b"")


def _rename(names: dict[str, int], event: Event) -> None:
    if event.kind == "make":
        names[event.name] = event.target
    else:
        names.pop(event.name, None)
        if event.kind == "move":
            names[event.new] = event.target


def _apply(content: bytearray, event: Event, fate: Fate) -> None:
    if event.kind == "cut":
        if fate.pieces:
            del content[event.offset :]
            content.extend(bytes(event.offset - len(content)))
        return
    end = event.offset + len(event.data)
    if fate.is_long and len(content) < end:
        content.extend(bytes(end - len(content)))
    at = event.offset
    place = 0
    while fate.pieces and at < end:
        stop = end if fate.pieces < 0 else min(end, (at // fate.unit + 1) * fate.unit)
        if fate.pieces < 0 or fate.pieces >> place % 60 & 1:
            if len(content) < stop:
                content.extend(bytes(stop - len(content)))
            content[at:stop] = event.data[at - event.offset : stop - event.offset]
        at = stop
        place += 1


def moments(trace: Trace, since: int = 0) -> list[Moment]:
    """Returns the moments that matter, from an event on."""
    files: dict[int, bytes] = {}
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    pending: list[Event] = []
    begun: set[str] = set()
    done: set[str] = set()
    found: list[Moment] = []

    def note(at: int) -> None:
        if at >= since:
            known = {node: dict(names) for node, names in folders.items()}
            sets = frozenset(begun), frozenset(done)
            found.append(Moment(at, *sets, dict(files), known, tuple(pending)))

    for at, event in enumerate(trace.events):
        if event.kind == "begun":
            begun.add(event.name)
        elif event.kind == "done":
            done.add(event.name)
            note(at)
        elif event.kind == "sync":
            note(at)
            _settle(event.node, pending, files, folders)
        else:
            if event.kind == "make" and event.target in trace.folders:
                folders.setdefault(event.target, {})
            pending.append(event)
    note(len(trace.events))
    return found


def _settle(
    node: int, pending: list[Event], files: dict[int, bytes], folders: dict[int, dict[str, int]]
) -> None:
    mine = [event for event in pending if event.node == node]
    if not mine:
        return
    pending[:] = [event for event in pending if event.node != node]
    if node in folders:
        for event in mine:
            _rename(folders[node], event)
        return
    content = bytearray(files.get(node, b""))
    for event in mine:
        _apply(content, event, KEPT)
    files[node] = bytes(content)


def base_fates(moment: Moment) -> list[tuple[Fate, ...]]:
    """Returns the two extremes: nothing that was not synced is there, and all of it."""
    count = len(moment.pending)
    return [(LOST,) * count, (KEPT,) * count] if count else [()]


def more_fates(moment: Moment, chance: random.Random) -> Iterator[tuple[Fate, ...]]:
    """Yields the others: subsets, prefixes, each alone and left out, torn, and by chance."""
    pending = moment.pending
    count = len(pending)
    if count <= ALL_SUBSETS_TO:
        yield from product((LOST, KEPT), repeat=count)
    for place in range(count):
        yield tuple(KEPT if other < place else LOST for other in range(count))
        for one, others in ((KEPT, LOST), (LOST, KEPT), (EMPTY, LOST), (EMPTY, KEPT)):
            yield (others,) * place + (one,) + (others,) * (count - place - 1)
    is_name = [event.kind not in ("write", "cut") for event in pending]
    yield tuple(KEPT if name else LOST for name in is_name)
    yield tuple(LOST if name else KEPT for name in is_name)
    yield tuple(KEPT if name else EMPTY for name in is_name)
    for place, event in enumerate(pending):
        for torn in _tears(event, chance):
            for others in (LOST, KEPT):
                yield (others,) * place + (torn,) + (others,) * (count - place - 1)
    for _ in range(RANDOM_EACH if count > 1 else 0):
        share = chance.random()
        yield tuple(_by_chance(event, share, chance) for event in pending)


def _tears(event: Event, chance: random.Random) -> Iterator[Fate]:
    if event.kind != "write":
        return
    for unit in UNITS:
        pieces = (event.offset + len(event.data) - 1) // unit - event.offset // unit + 1
        if pieces < 2:
            continue
        every = (1 << pieces) - 1
        for kept in (1, every >> 1, every & ~1, 1 << pieces - 1, every & 0x5555_5555_5555_5555):
            yield Fate(kept, unit)
        for _ in range(2):
            yield Fate((1 << chance.randrange(1, pieces)) - 1, unit, is_long=False)
            yield Fate(chance.randrange(every), unit)


def _by_chance(event: Event, share: float, chance: random.Random) -> Fate:
    if chance.random() >= share:
        return EMPTY if chance.random() < 0.2 else LOST
    tears = list(_tears(event, chance)) if chance.random() < 0.2 else []
    return chance.choice(tears) if tears else KEPT


def digest_of(state: State) -> bytes:
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(state):
        data = state[path]
        total.update(b"%b\0%d\0" % (path.encode(), -1 if data is None else len(data)))
        total.update(data or b"")
    return total.digest()


class Picked(NamedTuple):
    """A state to judge, and how it came about."""

    moment: Moment
    fates: tuple[Fate, ...]
    state: State

    def __str__(self) -> str:
        lines = [f"power lost before event {self.moment.at}, of what was not synced:"]
        for event, fate in zip(self.moment.pending, self.fates, strict=True):
            told = "kept" if fate == KEPT else "lost" if fate == LOST else str(tuple(fate))
            lines.append(f"  {told:<6} {event}")
        return "\n".join(lines)


def pick(found: list[Moment], chance: random.Random, want: int) -> list[Picked]:
    """Returns distinct states: the extremes of each moment first, then others by chance."""
    first = [(moment, fates) for moment in found for fates in base_fates(moment)]
    rest = [(moment, fates) for moment in found for fates in more_fates(moment, chance)]
    chance.shuffle(first)
    chance.shuffle(rest)
    most = want * 2 // 3
    picked: list[Picked] = []
    seen: set[tuple[bytes, frozenset[str]]] = set()
    for moment, fates in first[:most] + rest + first[most:]:
        if len(picked) == want:
            break
        state = moment.state(fates)
        key = digest_of(state), moment.done
        if key not in seen:
            seen.add(key)
            picked.append(Picked(moment, fates, state))
    return picked


def lay_out(state: State, place: Path) -> None:
    """Makes the state real in an empty directory."""
    for path, data in sorted(state.items()):
        if data is None:
            (place / path).mkdir(mode=0o700)
        else:
            (place / path).write_bytes(data)
            (place / path).chmod(0o600)
