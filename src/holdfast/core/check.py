"""Verifies a store against its numbered guarantees and reports what it found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256

from msgspec import Struct

from holdfast.backends.protocol import GONE, START, Finding, Head, Record, is_shortened
from holdfast.core import codec, event
from holdfast.core.event import SEALED, ops_of
from holdfast.core.log import READ_CHUNK, Log
from holdfast.core.matching import digest as digest_of
from holdfast.core.migrate import outdated
from holdfast.core.retention import STREAM, Told, ledger
from holdfast.core.verify import Verification, remnants
from holdfast.errors import CorruptError, HoldfastError, UsageError, show_value

_REMEDY = "holdfast salvage STORE NEW"


class Content(Struct):
    """How much a store holds, and the digest of all of it, from the heads of its streams alone.

    The digest is sha256 over one line for each stream, in the order of names: the length of its
    name, the name, its newest revision and its newest link. A link stands for everything before it,
    so the digest names the whole logical content: it is equal in an equal copy on any backend, and
    it changes with every event that is changed, added or taken away. It costs one look at the head
    of each stream; no event is read. While others write, it does not belong to any single moment.
    """

    streams: int = 0
    events: int = 0
    digest: str = ""


class Report(Struct):
    """The result of a check. `digest` is that of `Content`; `unread` events were only counted."""

    findings: list[Finding]
    streams: int
    events: int
    digest: str
    read_all: bool
    unread: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged: harmless findings concern data that can be rebuilt."""
        return all(finding.harmless for finding in self.findings)


_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_store(log: Log, *, read_all: bool, expect: str | None) -> Report:
    """Verifies the backend's own structure, then every stream's chain against its head."""
    if not isinstance(expect, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"expect is a digest, found {show_value(expect)}")
    if expect is not None and not _DIGEST.fullmatch(expect):
        raise UsageError(
            f"expect is a digest of 64 hexadecimal digits, found {show_value(expect)}",
            hint="check() and `holdfast check` tell the digest of a store",
        )
    findings: list[Finding] = []
    try:
        findings.extend(log.verify(read_all=read_all))
    except CorruptError as error:
        _add(findings, error)
    chains = None
    if read_all:
        chains = _Chains(log, findings)
        try:
            chains.follow()
        except HoldfastError as error:
            _add(findings, error)
            chains.read_over_damage()
    content = _compare_heads(log, chains, findings)
    if chains is not None:
        _check_snapshots(log, chains.ends, findings)
    findings += _doubled_fields(log)
    if expect is not None and expect != content.digest:
        found = (
            f"its digest is {content.digest}, expected {expect}: events were added or taken away"
        )
        if not content.digest:
            found = f"its digest cannot be told while it is damaged, expected {expect}: look"
        findings.append(Finding("store", f"{found} since that digest was noted"))
    read, unread = (0, content.events) if chains is None else (chains.events, 0)
    return Report(findings, content.streams, read, content.digest, read_all, unread)


def content_of(log: Log) -> Content:
    """Returns how much the store holds, and its digest; no event is read."""
    return add_up(all_heads(log))


def all_heads(log: Log) -> Iterator[tuple[str, Head | None]]:
    """Yields every stream with its head, in the order of names."""
    after = ""
    while names := log.stream_page(after=after):
        yield from zip(names, log.heads(names), strict=True)
        after = names[-1]


def _readable_heads(log: Log, findings: list[Finding]) -> Iterator[tuple[str, Head | None]]:
    """Yields what `all_heads` yields, without heads that cannot be read: each is a finding."""
    after = ""
    while names := log.stream_page(after=after):
        try:
            yield from zip(names, log.heads(names), strict=True)
        except HoldfastError:
            for name in names:  # some of the page cannot be read; the others are still checked
                try:
                    yield name, log.heads([name])[0]
                except HoldfastError as error:
                    findings.append(_finding(error))
        after = names[-1]


def add_up(heads: Iterator[tuple[str, Head | None]]) -> Content:
    """Returns how many streams and events some heads stand for, and their digest."""
    digest = sha256()
    streams = events = 0
    for name, head in heads:
        streams += 1
        if head is not None:
            digest.update(f"{len(name)}:{name} {head.revision} {head.link.hex()}\n".encode())
            events += head.revision - head.first + 1
    return Content(streams, events, digest.hexdigest())


class _Chains:
    """Checks every event: recomputes the links, in the order of the store."""

    def __init__(self, log: Log, findings: list[Finding]) -> None:
        self._log = log
        self._findings = findings
        self._settled = START
        self.ends: dict[str, tuple[int, bytes]] = {}
        self.events = 0
        self._cut: set[str] = set()
        self._told: dict[tuple[str, int], Told] = {}
        self._told_up_to = 0

    def _told_of(self, record: Record) -> Told | None:
        """Returns what the letting-go events say of a record, even those written during this check.

        The ledger is read again whenever its stream has grown.
        """
        place = record.stream, record.revision
        [head] = self._log.heads([STREAM])
        told_up_to = 0 if head is None else head.revision
        if told_up_to > self._told_up_to:
            self._told, self._told_up_to = ledger(self._log), told_up_to
        return self._told.get(place)

    def read_over_damage(self) -> None:
        """Starts again with what a salvage would take over, so one damage does not hide another."""
        remains = Verification(self._link_of, self._log.blobs.stored)
        for remnant in remnants(self._log):
            if isinstance(remnant, list):
                for record in remnant:
                    remains.take(record)
        self.ends, self.events = remains.ends, remains.events
        for cut in remains.cut.values():
            self._cut.add(cut.stream)
            problem = f"{cut.problem}: it is whole up to revision {cut.revision}"
            if cut.found:
                problem += f", and {cut.found} later events can be read"
            where, streams = f'stream "{cut.stream}"', (cut.stream,)
            self._findings.append(Finding(where, problem, streams=streams, remedy=_REMEDY))

    def _link_of(self, stream: str, revision: int) -> bytes | None:
        """Returns the link that a fork follows; None if that event cannot be read."""
        try:
            return self._log.link_at(stream, revision)
        except HoldfastError:
            return None

    def follow(self) -> None:
        """Checks every event in the order of commit.

        Events that are visible when the check begins must come in the order of the store. `reach`
        checks later ones by their stream: those written during the check, and those behind a commit
        that was still under way.
        """
        self._settled = self._log.position()
        position = START
        while records := self._log.read_all(after=position, limit=READ_CHUNK):
            self._check(records)
            position = records[-1].position

    def reach(self, stream: str, head: Head) -> None:
        """Checks that a stream's events lead to its head."""
        if head.expires_us and self._log.expiry.has_ended(stream, head):
            return  # removed by the backend: only its name and head are left
        if stream in self._cut:
            return  # that is a finding already
        known, _ = self.ends.get(stream, (head.first - 1, b""))
        while known < head.revision:
            behind = self._log.stored(stream, after=known, until=head.revision)
            if not behind or behind[0].position <= self._settled:
                break
            self._check(behind)
            known, _ = self.ends[stream]
        if self.ends.get(stream) != (head.revision, head.link):
            self._findings.append(
                Finding(f'stream "{stream}"', f"does not end at its head {head.revision}")
            )

    def _check(self, records: list[Record]) -> None:
        for record in records:
            try:
                _check_record(self._log, record, self.ends, self._told_of)
            except HoldfastError as error:
                _add(self._findings, error)
            self.ends[record.stream] = (record.revision, record.link)
        self.events += len(records)


def _check_let_go(link: bytes, record: Record, told: Told | None, where: str) -> None:
    """Verifies what is left of an event, by the digests that were recorded when its data went."""
    if told is None and record.payload != GONE:
        raise CorruptError(f"{where} lacks a part, and nobody has said that it was cut out")
    if told is None:
        raise CorruptError(f"{where} has no data, and nobody has said that it was let go of")
    if event.record_link(link, record, told.digest) != record.link:
        raise CorruptError(f"{where} does not match its link: it or an event before it changed")
    if record.payload != GONE and digest_of(record.payload) not in [one.now for one in told.steps]:
        raise CorruptError(f"{where} has changed since a part of it was cut out")


def _check_record(
    log: Log,
    record: Record,
    ends: dict[str, tuple[int, bytes]],
    told: Callable[[Record], Told | None],
) -> None:
    known = ends.get(record.stream)
    if known is None:
        origin = log.origin(record.stream) if record.revision > 1 else None
        known = (0, event.ORIGIN)
        if origin is not None:
            known = (origin[1], log.link_at(*origin) or b"")
    revision, link = known
    where = f'event {record.revision} of "{record.stream}"'
    if record.revision != revision + 1:
        raise CorruptError(f"{where} follows revision {revision}: an event is missing or doubled")
    if record.payload == GONE:
        _check_let_go(link, record, told(record), where)
        return
    if is_shortened(record.payload):
        _check_let_go(link, record, told(record), where)
    elif event.record_link(link, record) != record.link:
        raise CorruptError(f"{where} does not match its link: it or an event before it changed")
    codec.check(record.payload)
    if not record.payload.startswith(SEALED):  # the check needs no key: only the link proves these
        ops_of(record)  # raises if the payload is not a list of ops
    for name, size in codec.blobs_in(record.payload):
        log.blobs.stored(name, size)


def _compare_heads(log: Log, chains: _Chains | None, findings: list[Finding]) -> Content:
    """Compares chains with heads; returns what the heads add up to.

    If a head cannot be read, the digest is empty: one of the rest would be taken for the store's.
    """
    damaged: list[Finding] = []

    def compared() -> Iterator[tuple[str, Head | None]]:
        for name, head in _readable_heads(log, damaged):
            yield name, head
            if head is None:
                damaged.append(Finding(f'stream "{name}"', "is listed but has no head"))
            elif chains is not None and chains.ends.get(name) != (head.revision, head.link):
                try:
                    chains.reach(name, head)
                except HoldfastError as error:
                    findings.append(_finding(error))

    content = Content()
    try:
        content = add_up(compared())
    except HoldfastError as error:
        content.streams = len(chains.ends) if chains is not None else 0
        _add(findings, error)
    if damaged:
        content.digest = ""
    findings += damaged
    return content


def _check_snapshots(log: Log, ends: dict[str, tuple[int, bytes]], findings: list[Finding]) -> None:
    for stream in log.snapshots.having(ends):
        try:
            log.snapshots.verify(stream)
        except HoldfastError as error:
            findings.append(Finding(f'snapshot of "{stream}"', error.message, harmless=True))


def _doubled_fields(log: Log) -> list[Finding]:
    """Returns a harmless finding for each scope that has a renamed field under both names."""
    if not any(schema.aliases for schema in log.typed.all):
        return []
    try:
        doubled = [one for one in outdated(log, compute=False) if one.both]
    except HoldfastError:
        return []  # a stream that cannot be folded is a finding already
    return [
        Finding(
            f'scope "{one.scope}"',
            f"has {', '.join(one.both)} beside the new name, which counts: take the old one away",
            harmless=True,
            streams=(one.scope,),
        )
        for one in doubled
    ]


def _add(findings: list[Finding], error: HoldfastError) -> None:
    """Notes an error, unless it is about damage that is a finding already."""
    where: str | None = getattr(error, "where", None)
    if where is None or all(where != finding.where for finding in findings):
        findings.append(_finding(error))


def _finding(error: HoldfastError) -> Finding:
    stream: str | None = getattr(error, "stream", None)
    return Finding(f'stream "{stream}"' if stream else "store", error.message)
