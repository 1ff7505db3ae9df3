"""Messages against a plain list: whatever is done to them, in whatever order.

The model keeps, for each revision of each stream, the list of what is seen there: with compactions
and without. The scan's chunks are made tiny, so that every read crosses their borders.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import holdfast
from holdfast.errors import UsageError
from holdfast.record import message_scan

Seen = list[tuple[int, str]]
"""Revision and content of each message."""


class Conversations(RuleBasedStateMachine):
    """A few conversations of one store, compared with lists."""

    @initialize(chunk=st.integers(1, 5), kept=st.sampled_from([0, 2_000, 32 << 20]))
    def begin(self, chunk: int, kept: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(message_scan, "CHUNK_MIN", chunk)
        self.patch.setattr(message_scan, "CHUNK_MAX", chunk * 3)
        self.patch.setattr(message_scan, "KEPT_BYTES_MAX", kept)
        self.hf = holdfast.open("memory:")
        self.number = 0
        self.chats: list[holdfast.Scope] = []
        self.seen: list[list[tuple[Seen, Seen]]] = []  # by conversation, then by revision
        self.add_chat(self.hf.conversation("c0"), [([], [])])

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.hf.close()
            self.patch.undo()

    def add_chat(self, chat: Any, seen: list[tuple[Seen, Seen]]) -> None:
        self.chats.append(chat)
        self.seen.append(seen)

    def pick(self, data: Any) -> tuple[Any, list[tuple[Seen, Seen]]]:
        at = data.draw(st.integers(0, len(self.chats) - 1), label="conversation")
        return self.chats[at], self.seen[at]

    def text(self) -> str:
        self.number += 1
        return f"text {self.number}"

    @rule(data=st.data(), many=st.integers(1, 6))
    def add(self, data: Any, many: int) -> None:
        chat, seen = self.pick(data)
        texts = [self.text() for _ in range(many)]
        made = chat.messages.add_many([{"role": "user", "content": text} for text in texts])
        for message, text in zip(made, texts, strict=True):
            visible, original = seen[-1]
            one = (message.revision, text)
            seen.append(([*visible, one], [*original, one]))

    @rule(data=st.data())
    def change_state(self, data: Any) -> None:
        chat, seen = self.pick(data)
        chat.set("n", self.number)
        seen.append(seen[-1])

    @rule(data=st.data())
    def edit(self, data: Any) -> None:
        chat, seen = self.pick(data)
        if not seen[-1][0]:
            return
        at, _ = data.draw(st.sampled_from(seen[-1][0]), label="edited")
        text = self.text()
        [message] = [one for one in chat.messages if one.revision == at]
        assert chat.messages.edit(message, content=text).content == text
        seen.append(both(seen[-1], lambda some: [(r, text if r == at else t) for r, t in some]))

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        chat, seen = self.pick(data)
        if not seen[-1][0]:
            return
        at, _ = data.draw(st.sampled_from(seen[-1][0]), label="deleted")
        [message] = [one for one in reversed(chat.messages) if one.revision == at]
        chat.messages.delete(message if data.draw(st.booleans()) else message.id)
        seen.append(both(seen[-1], lambda some: [one for one in some if one[0] != at]))

    @rule(data=st.data())
    def pop(self, data: Any) -> None:
        chat, seen = self.pick(data)
        popped = chat.messages.pop()
        if not seen[-1][0]:
            assert popped is None
            return
        at, text = seen[-1][0][-1]
        assert (popped.revision, popped.content) == (at, text)
        seen.append(both(seen[-1], lambda some: [one for one in some if one[0] != at]))

    @rule(data=st.data())
    def clear(self, data: Any) -> None:
        chat, seen = self.pick(data)
        chat.messages.clear()
        seen.append(([], []))

    @rule(data=st.data())
    def rewind(self, data: Any) -> None:
        chat, seen = self.pick(data)
        to = data.draw(st.integers(0, len(seen) - 1), label="to")
        chat.messages.rewind(to)
        seen.append(seen[to])

    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        chat, seen = self.pick(data)
        to = data.draw(st.integers(0, len(seen) - 1), label="to")
        chat.restore(to)
        seen.append(seen[to])

    @rule(data=st.data())
    def compact(self, data: Any) -> None:
        chat, seen = self.pick(data)
        visible, original = seen[-1]
        keep = data.draw(st.integers(0, 4), label="kept")
        text = self.text()
        if len(visible) <= keep:
            with pytest.raises(UsageError, match="nothing to compact"):
                chat.messages.compact(text, keep_last=keep)
            return
        summary = chat.messages.compact(text, keep_last=keep)
        assert summary.is_summary
        seen.append(([(summary.revision, text), *visible[len(visible) - keep :]], original))

    @precondition(lambda self: len(self.chats) < 4)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        chat, seen = self.pick(data)
        if len(seen) == 1:
            return
        at = data.draw(st.integers(1, len(seen) - 1), label="at")
        fork = chat.fork(f"c{len(self.chats)}", at=at)
        self.add_chat(fork, [*seen[: at + 1], seen[at]])

    @rule(data=st.data())
    def look_back(self, data: Any) -> None:
        chat, seen = self.pick(data)
        at = data.draw(st.integers(0, len(seen) - 1), label="at")
        past = chat.messages.at(at)
        assert contents(past) == seen[at][0]
        assert contents(past.original()) == seen[at][1]

    @rule(data=st.data(), limit=st.integers(1, 5), oldest=st.booleans())
    def turn_pages(self, data: Any, limit: int, oldest: bool) -> None:
        chat, seen = self.pick(data)
        page = chat.messages.page(limit, oldest=oldest)
        found = contents(page.messages)
        while cursor := page.newer if oldest else page.older:
            options = {"after": cursor} if oldest else {"before": cursor}
            page = chat.messages.page(limit, **options)
            found = [*found, *contents(page.messages)] if oldest else [
                *contents(page.messages), *found]  # fmt: skip
        assert found == seen[-1][0]

    @rule(data=st.data(), n=st.integers(0, 6))
    def look_at_the_end(self, data: Any, n: int) -> None:
        chat, seen = self.pick(data)
        visible = seen[-1][0]
        assert contents(chat.messages.last(n)) == visible[len(visible) - min(n, len(visible)) :]
        for message in chat.messages.last(n):
            [same] = chat.messages.page(1, before=after(chat.messages, message)).messages
            assert same == message

    @invariant()
    def all_is_seen(self) -> None:
        if not hasattr(self, "chats"):
            return
        for chat, seen in zip(self.chats, self.seen, strict=True):
            assert chat.revision == len(seen) - 1
            assert contents(chat.messages) == seen[-1][0]
            assert len(chat.messages) == len(seen[-1][0])
            # The scan that was kept and a new scan find the same.
            assert contents(chat.messages.at(chat.revision)) == seen[-1][0]
            assert contents(chat.messages.original()) == seen[-1][1]


def both(seen: tuple[Seen, Seen], change: Any) -> tuple[Seen, Seen]:
    return change(seen[0]), change(seen[1])


def contents(messages: Any) -> Seen:
    return [(message.revision, message.content) for message in messages]


def after(messages: Any, message: Any) -> str:
    """Returns the cursor whose page before it ends with the message."""
    place = scan_place(messages.cursor(message))
    from holdfast.record.messages import make_cursor

    return make_cursor(place + 1)


def scan_place(cursor: str) -> int:
    from holdfast.record.messages import parse_cursor

    return parse_cursor(cursor)


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, print_blob=True
)
