"""What becomes of messages that are there: edits, deletions, summaries, merges. All are events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import Raw

from holdfast import codec
from holdfast.arguments import check_whole
from holdfast.errors import ConflictError, NotFoundError, UsageError, show_value
from holdfast.event import Moment
from holdfast.record import message as forms
from holdfast.record.book import Book
from holdfast.record.history import History
from holdfast.record.merging import merged_order, moved_fields
from holdfast.record.message import Message, check_fields, encode, key_of, make_id
from holdfast.record.recorder import Recorder
from holdfast.record.within import refuse_in_body
from holdfast.scope import Scope
from holdfast.tree import Op
from holdfast.wanted import Cleared, Mark, Proposal, Record, Wanted, Written

RETRIES = 100
BYTES_PER_TOKEN = 4
"""What tokens are estimated by where nobody counted them."""


class Changing(History):
    """Messages that can be changed. Nothing is lost by it: `at` reads what was there before.

    What changes messages that are there is judged by what is there, and says so in its event. When
    the body of a run is entered again it would find something else there, so it is refused in a
    body, before it can make the run diverge; `clear` says the same each time, and is not.
    """

    def __init__(self, scope: Scope, recorder: Recorder, book: Book) -> None:
        super().__init__(scope, book)
        self._recorder = recorder

    def edit(self, message: Message | str, **fields: Any) -> Message:
        """Sets fields of a message, takes away those given as None, and returns it as it is now.

        What it was before stays in the history: `messages.at(…)` reads it.
        """
        refuse_in_body("an edit of a message")
        unknown = fields.keys() - set(forms.EDITABLE)
        if unknown or not fields:
            found = f"{sorted(unknown)[0]!r}" if unknown else "nothing"
            raise UsageError(f"edit sets {', '.join(forms.EDITABLE)}, found {found}")
        target = self._target(message)
        checked = check_fields({"role": target.role, **fields})
        values = dict.fromkeys(fields) | checked
        if "role" not in fields:
            del values["role"]
        payload = encode({"at": target.revision, "set": values}, self._spill)
        self.commit((Proposal(forms.EDITED, payload),))
        return self._target(target)

    def delete(self, message: Message | str) -> None:
        """Takes a message away; it is still read by `at`, and by whoever has an earlier fork."""
        refuse_in_body("deleting a message")
        target = self._target(message)
        self.commit((_pointing(forms.DELETED, at=target.revision),))

    def pop(self) -> Message | None:
        """Takes the newest message away and returns it; None if there is none."""
        refuse_in_body("pop of a message")
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                newest = self._messages(scan, scan.last(1))
                until = scan.until
            if not newest:
                return None
            if self._guarded(until, _pointing(forms.POPPED, at=newest[0].revision)):
                return newest[0]
        raise self._contended("pop")

    def clear(self) -> None:
        """Takes all messages away; the history keeps them."""
        self.commit((_pointing(forms.CLEARED, to=0),))

    def rewind(self, to: Message | Moment) -> None:
        """Takes every message away that came behind one, or behind a moment; state stays."""
        refuse_in_body("rewinding messages")
        revision = to.revision if isinstance(to, Message) else self._scope.revision_of(to)
        if not 0 <= revision <= self._scope.revision:
            raise NotFoundError(f'scope "{self.name}" has no revision {revision}')
        self.commit((_pointing(forms.REWOUND, to=revision),))

    def commit(
        self, proposals: tuple[Proposal, ...], *, marks: tuple[Mark | Cleared, ...] = ()
    ) -> Written:
        """Commits events of the conversation."""
        return self._log.commit(Wanted((self._recorder.events_part(proposals),), marks=marks))

    def _guarded(self, until: int, *proposals: Proposal) -> Written | None:
        """Commits if nobody did since a revision was read; None if somebody did."""
        part = self._recorder.events_part(proposals, expected=until)
        try:
            return self._log.commit(Wanted((part,)))
        except ConflictError:
            return None

    def _contended(self, what: str) -> ConflictError:
        revision = self._scope.revision
        return ConflictError(
            f'scope "{self.name}" changed {RETRIES} times during {what}: nothing was written',
            stream=self.name,
            expected=revision,
            actual=revision,
        )

    def _target(self, message: Message | str) -> Message:
        """Returns a message as it is now, or raises NotFoundError."""
        if not isinstance(message, Message):
            return self.get(message)
        scan = self._scan()
        with scan.mutex:
            found = scan.before(scan.place(message.record) + 1, 1)
            if not found or found[0].revision != message.revision:
                raise NotFoundError(
                    f'message {message.revision} of "{self.name}" is not there: it was deleted, '
                    "rewound, or belongs to another conversation"
                )
            return self._message(scan, found[0])

    def _spill(self, raw: bytes) -> bytes:
        op = self._log.blobs.spill(Op("set", "message", Raw(raw)), self.name)
        return bytes(op.value)

    # --- fewer words -----------------------------------------------------------------------------

    def compact(
        self,
        summary: str,
        *,
        keep_last: int = 0,
        role: str = "system",
        tokens_before: int | None = None,
        tokens_after: int | None = None,
    ) -> Message:
        """Puts a summary in the place of all messages but the last few, and returns it.

        `original()` still has every one of them. Tokens that nobody counted are estimated.
        """
        refuse_in_body("compacting messages")
        fields = check_fields({"role": role, "content": summary})
        fields = {"id": make_id(self._log.clock, fields), **fields}
        raw = encode(fields, self._spill)
        check_whole(keep_last, "keep_last")
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                kept = scan.last(keep_last + 1)
                if len(kept) <= keep_last:
                    raise UsageError(
                        f'scope "{self.name}" has {len(kept)} messages: with {keep_last} of them '
                        "kept there is nothing to compact"
                    )
                through, until = scan.place(kept[0]), scan.until
                before = _count(tokens_before, "tokens_before") or _estimate(scan.all())
            after = _count(tokens_after, "tokens_after")
            said = {
                "through": through,
                "summary": Raw(raw),
                "tokens_before": before,
                "tokens_after": after or _estimate(kept[1:]) + len(raw) // BYTES_PER_TOKEN,
            }
            if self._guarded(until, Proposal(forms.COMPACTED, codec.encode_plain(said))):
                return self._standing_summary()
        raise self._contended("compact")

    def _standing_summary(self) -> Message:
        scan = self._scan()
        with scan.mutex:
            scan.finish()
            assert scan.summary is not None, "BUG: compacted without a summary"
            return self._message(scan, scan.summary)

    def summarise(
        self,
        text: str,
        *,
        through: Message | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
    ) -> None:
        """Writes a summary of everything up to a message down, by default up to the newest.

        What is read stays as it is; `summaries()` lists it.
        """
        refuse_in_body("a summary of messages")
        if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a summary is text, found {show_value(text)}")
        newest = self.last(1)
        if through is None and not newest:
            raise UsageError(f'scope "{self.name}" has no messages: there is nothing to summarise')
        at = (newest[0] if through is None else self._target(through)).record
        scan = self._scan()
        with scan.mutex:
            counted = _count(tokens_before, "tokens_before")
            before = counted or _estimate(scan.before(scan.place(at) + 1, 1 << 40))
        after = _count(tokens_after, "tokens_after")
        said = {
            "through": at.revision,
            "text": text,
            "tokens_before": before,
            "tokens_after": after or len(text.encode(errors="replace")) // BYTES_PER_TOKEN,
        }
        self.commit((Proposal(forms.SUMMARISED, codec.encode(said)),))

    # --- two histories ---------------------------------------------------------------------------

    def merge(self, other: Scope | History) -> list[Message]:
        """Puts the messages of another conversation among these, by time; returns what was new.

        Each side keeps its order. One that both have, by foreign id or by id, stays as it is here.
        It is one commit: the messages behind the first new one are written again behind it.
        """
        refuse_in_body("a merge of messages")
        theirs = other if isinstance(other, History) else _history_of(other)
        known: set[str] = set()
        for _ in range(RETRIES):
            scan = self._scan()
            with scan.mutex:
                mine = self._messages(scan, scan.all())
                until = scan.until
            merged, new = merged_order(mine, list(theirs))
            if not new:
                return []
            if self._make_known(new, known):
                continue  # which moved the stream on
            stays = next(at for at, one in enumerate(merged) if one in new)
            to = merged[stays - 1].revision if stays else 0
            origin = {"to": to, "from": theirs.name, "until": theirs.revision}
            begun = Proposal(forms.MERGED, codec.encode_plain(origin))
            again = [
                Proposal(forms.ADDED, encode(moved_fields(one), self._spill))
                for one in merged[stays:]
            ]
            if self._guarded(until, begun, *again):
                return new
        raise self._contended("merge")

    def _make_known(self, new: list[Message], known: set[str]) -> bool:
        """Takes the keys of foreign items that are about to be merged; False if it took none.

        Sent again, an item is found by its key; but a commit has one key, so those of several items
        cannot be in the commit that brings them. They come before it. A crash between the two then
        leaves keys without items, which read as items that were taken away, and may be said once
        more. The other way round it would leave items that nobody knows by their id, to be added a
        second time; so would another writer who is faster than the keys.
        """
        ids = [one.foreign_id for one in new if one.foreign_id is not None]
        wanted: list[Wanted] = []
        for id in ids:
            if id not in known:
                known.add(id)
                proposal = Proposal(forms.MOVED, codec.encode({"foreign_id": id}))
                wanted.append(Wanted((self._recorder.events_part((proposal,), key=key_of(id)),)))
        for request in self._log.submit_all(wanted):
            with suppress(UsageError):  # that id was used here before
                self._log.wait(request)
        return bool(wanted)


def _history_of(other: object) -> History:
    messages = getattr(other, "messages", None)
    if not isinstance(messages, History):
        raise UsageError(f"merge takes a conversation or its messages, found {show_value(other)}")
    return messages


def _pointing(type: str, **revisions: int) -> Proposal:
    return Proposal(type, codec.encode_plain(revisions))


def _count(tokens: int | None, what: str) -> int | None:
    return None if tokens is None else check_whole(tokens, what)


def _estimate(records: list[Record]) -> int:
    return sum(len(record.payload) for record in records) // BYTES_PER_TOKEN
