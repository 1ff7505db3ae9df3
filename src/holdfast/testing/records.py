"""Commits as the log would send them: with the right revisions and links, one time, one actor."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.backends.protocol import Append, Cleared, Commit, Fence, Head, Mark, Record
from holdfast.core.event import CHANGED, ORIGIN, record_link


class RecordBuilder:
    """Builds commits for a backend's tests; each is a microsecond later than the one before."""

    def __init__(self, time: int = 1_700_000_000_000_000, *, actor: str = "tester") -> None:
        self.time = time
        self.actor = actor
        self._count = 0

    def append(
        self,
        stream: str,
        *payloads: bytes,
        behind: Head | Record | Append | None = None,
        fork: bool = False,
        key: str | None = None,
        keys: Sequence[str | None] = (),
        checkpoint: str | None = None,
        subject: str | None = None,
        meta: str | None = None,
        type: str = CHANGED,
        expires_us: int = 0,
        renews_us: int = 0,
    ) -> Append:
        """Returns an append of one record per payload, behind the end of the stream.

        With `fork` it begins a new stream behind a record of another one. Without payloads it has
        one record with a unique payload. The key goes to the first record, the checkpoint to the
        last, subject and meta to each; `keys` has a key or None for each record (clause 26).
        """
        last = behind.records[-1] if isinstance(behind, Append) else behind
        expected, link = (0, ORIGIN) if last is None else (last.revision, last.link)
        if last is not None:
            self.time = max(self.time, last.time)
        records: list[Record] = []
        for number, payload in enumerate(payloads or (self._payload(),), 1):
            record = Record(
                stream=stream,
                revision=expected + number,
                time=self.time,
                type=type,
                actor=self.actor,
                payload=payload,
                link=b"",
                key=keys[number - 1] if keys else key if number == 1 else None,
                checkpoint=checkpoint if number >= len(payloads) else None,
                subject=subject,
                meta=meta,
            )
            record = linked(record, link)
            link = record.link
            records.append(record)
        return Append(stream, expected, tuple(records), fork, None, expires_us, renews_us)

    def commit(
        self,
        *appends: Append,
        reads: Sequence[tuple[str, int]] = (),
        fence: Fence | None = None,
        marks: Sequence[Mark | Cleared] = (),
        watch: Sequence[str] = (),
        read_ends: Sequence[tuple[str, int]] = (),
    ) -> Commit:
        """Returns a commit of appends that were built since the last commit."""
        time, self.time = self.time, self.time + 1
        return Commit(
            time, self.actor, appends, tuple(reads), fence, tuple(marks), watch=tuple(watch),
            read_ends=tuple(read_ends),
        )  # fmt: skip

    def _payload(self) -> bytes:
        self._count += 1
        return b'{"n":%d}' % self._count


def linked(record: Record, previous: bytes) -> Record:
    """Returns the record with its link, which follows the link `previous`."""
    return replace(record, link=record_link(previous, record))
