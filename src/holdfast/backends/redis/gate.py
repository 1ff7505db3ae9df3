"""What the parts of an open store share: its lines, its keys, its id, and whether it may write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import msgpack

from holdfast.backends.gate import WritingGate
from holdfast.backends.redis.errors import ReplyError
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.lines import Line, RedisLines, Word
from holdfast.backends.redis.scripts import script


class Gate(WritingGate[Line]):
    """Everything that is asked of the server goes through here.

    Each question is asked together with the store's id. So a database that was emptied, or another
    store in this one's place, is never taken for a store without events.
    """

    def __init__(self, lines: RedisLines, store: str, *, read_only: bool) -> None:
        super().__init__(lines, read_only=read_only)
        self.place = lines.place
        self.lines = lines
        self.keys = Keys(lines.place.application)
        self.store = store
        self.clock: str | None = None  # a test's own, in place of the server's

    def ask(self, *commands: Sequence[Word]) -> list[Any]:
        """Returns the answers of commands that only read."""
        return self.lines.call(lambda line: self.ask_on(line, *commands))

    def ask_on(self, line: Line, *commands: Sequence[Word]) -> list[Any]:
        store, *answers = line.ask(("HGET", self.keys.root, "store"), *commands)
        if store != self.store.encode():
            raise ReplyError("GONE the store is not there")
        return answers

    def look(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Returns what a script answers that only reads."""
        return self.lines.call(lambda line: self.run_on(line, name, keys, arguments))

    def write(
        self,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *data: bytes,
        repeatable: bool = True,
    ) -> Any:
        """Returns what a script answers that writes."""
        return self.call(
            lambda line: self.run_on(line, name, keys, arguments, *data), repeatable=repeatable
        )

    def run_on(
        self, line: Line, name: str, keys: Sequence[str], arguments: Sequence[Any], *data: bytes
    ) -> Any:
        words = self.store, msgpack.encode(arguments), *data
        return line.run(script(name, self.clock), (self.keys.root, *keys), words)
