"""Messages: what adding one costs above a bare commit, and the newest of long conversations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import holdfast
from bench import counts, ours
from bench.harness import (
    Block,
    Loop,
    Report,
    Size,
    closing,
    interleave,
    latency_row,
    made,
    percentile,
    ratio,
    scratch,
    timed,
)
from bench.messages import SAID, messages
from holdfast.core import codec
from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite

SHORT = 1_000
TOGETHER = 20
"""Messages of one commit while a long conversation is made."""
ABOVE_COMMIT_MAX = 1.2
LAST_MS_MAX = 5.0
LONG_TO_SHORT_MAX = 2.0


class Talker:
    """Holdfast's messages with the operations of every peer that keeps sessions.

    Items are a framework's, kept as foreign ones, and come back as plain lists and dicts.
    """

    runner = None

    def __init__(self, path: str, *, kind: str, size: int = SAID, items: int = 1) -> None:
        self.release = f"holdfast {holdfast.__version__}"
        self._kind, self._place, self._items = kind, Path(path), items
        self._hf = ours.open_store(kind, self._place)
        self.close: Callable[[], None] = self._hf.close
        self._messages = messages(size)
        self._chat = self._hf.conversation("c1")
        self._said = 0
        self.operations: dict[str, Callable[[], Any]] = {
            "append": self._append if items == 1 else self._append_several,
            "last 20": self._last,
            "all": lambda: self._read(self._chat),
            "all, opened afresh": self._afresh,
        }

    def _append(self) -> None:
        self._chat.messages.add(foreign=next(self._messages))
        self._said += 1

    def _append_several(self) -> None:
        said = [{"foreign": next(self._messages)} for _ in range(self._items)]
        self._chat.messages.add_many(said)
        self._said += self._items

    def _last(self) -> None:
        assert len(self._chat.messages.items(last=20)) == 20

    def _read(self, chat: Any) -> None:
        assert len(chat.messages.items()) == self._said

    def _afresh(self) -> None:
        with ours.open_store(self._kind, self._place) as hf:
            self._read(hf.conversation("c1"))


def said(size: Size) -> Report:
    """A message against a bare commit of the log; the last 20 of a long and a short one."""
    report = Report(
        f"messages of {SAID:,} bytes; the last 20 of {size.store:,} and of {SHORT:,}",
        "full: every commit synced before it returns",
    )
    _adding(report, size)
    _newest(report, size)
    return report


def _adding(report: Report, size: Size) -> None:
    with scratch() as place:
        loops: list[Loop] = []
        for kind in ours.KINDS:
            loops.append(_message_loop(f"message, {kind}", kind, place / kind))
            loops.append(_commit_loop(f"bare commit of the log, {kind}", kind, place / f"b {kind}"))
        with closing(loops):
            taken = interleave(loops, blocks=size.blocks, operations=size.operations)
        for name, blocks in taken.items():
            row = {"doing": "add", "what": name, **latency_row(blocks)}
            if name.startswith("message"):
                kind = name.rpartition(" ")[2]
                counted = counts.count_worker(
                    "holdfast messages",
                    place / f"counted {kind}",
                    "append",
                    operations=30,
                    kind=kind,
                )
                row |= {} if counted is None else {"syncs": counted.syncs}
                found = ratio(blocks, taken[f"bare commit of the log, {kind}"])
                row["times_a_commit"] = str(found)
                what = f"{kind}: a message / a bare commit of the log"
                report.at_most(what, found.value, ABOVE_COMMIT_MAX)
            report.rows.append(row)


def _message_loop(name: str, kind: str, place: Path) -> Loop:
    hf = ours.open_store(kind, place)
    chat, said = hf.conversation("c1"), messages()

    def add() -> None:
        message = next(said)
        chat.messages.add(message["role"], message["content"])

    return Loop(name, add, hf.close)


def _commit_loop(name: str, kind: str, place: Path) -> Loop:
    """Payloads of the same size, made beforehand: nothing but the log's own commit is left."""
    hf = ours.open_store(kind, place)
    said = messages(SAID + 34)  # a message has its id, too

    def commit() -> None:
        new_event = NewEvent("message.added", codec.encode_plain(next(said)))
        hf._log.commit(ProposedCommit((StreamWrite("conversation/c1", (new_event,)),)))

    return Loop(name, commit, hf.close)


def _build(kind: str, place: Path, length: int) -> None:
    """Makes a long conversation, and a short one in the middle of it: one store, two lengths."""
    said = messages(100)
    with ours.open_store(kind, place, durability="none") as hf:
        for name, wanted in (("long", length // 2), ("short", SHORT), ("long", length // 2)):
            chat = hf.conversation(name)
            for _ in range(wanted // TOGETHER):
                chat.messages.add_many([next(said) for _ in range(TOGETHER)])


def _newest(report: Report, size: Size) -> None:
    """Adds the last 20 in an open store, of a conversation that nobody has read there yet."""
    times = 10 if size.quick else 40
    for kind in ours.KINDS:
        taken: dict[int, list[Block]] = {SHORT: [], size.store: []}
        names = {SHORT: "short", size.store: "long"}
        for number in count():
            if number == times:
                break
            for length in sorted(taken, reverse=bool(number % 2)):
                taken[length].append(_once(kind, size.store, names[length]))
        medians: dict[int, float] = {}
        for length, blocks in taken.items():
            latencies = [each for block in blocks for each in block.latencies]
            medians[length] = percentile(latencies, 0.5) * 1e3
            what = f"{kind}, {length:,} messages"
            report.rows.append({"doing": "last 20, unread", "what": what, **latency_row(blocks)})
        report.at_most(
            f"{kind}: last 20 of {size.store:,}", medians[size.store], LAST_MS_MAX, " ms"
        )
        found = ratio(taken[size.store], taken[SHORT])
        report.at_most(
            f"{kind}: last 20 of {size.store:,} / of {SHORT:,}", found.value, LONG_TO_SHORT_MAX
        )


def _once(kind: str, length: int, name: str) -> Block:
    place = made(f"messages {kind} {length}", lambda place: _build(kind, place, length))
    with ours.open_store(kind, place) as hf:
        chat = hf.conversation(name)
        read: list[int] = []
        block = timed(lambda: read.append(len(chat.messages.last(20))), 1)
        assert read == [20]
    return block
