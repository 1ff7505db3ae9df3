"""What the parts of an open store share: its lines, its application, and whether it may write."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import TypeVar

from holdfast.backends.postgresql.lines import Line, PostgresqlLines, Row, Values
from holdfast.backends.postgresql.place import Place
from holdfast.backends.postgresql.schema import in_schema
from holdfast.errors import UsageError

T = TypeVar("T")


class Gate:
    """Every statement goes through here."""

    def __init__(self, place: Place, lines: PostgresqlLines, *, read_only: bool) -> None:
        self.place = place
        self.application = place.application
        self.lines = lines
        self.changed = Condition()
        self.stirred = 0
        self._read_only = read_only

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Returns the rows of a statement that only reads."""
        text = in_schema(statement, self.place.schema)
        return self.lines.call(lambda line: line.ask(text, values))

    def write(self, statement: str, values: Values, *, repeatable: bool = True) -> list[Row]:
        """Returns the rows of a statement that writes."""
        text = in_schema(statement, self.place.schema)
        return self.call(lambda line: line.ask(text, values), repeatable=repeatable)

    def call(self, work: Callable[[Line], T], *, repeatable: bool = True) -> T:
        """Returns what `work` returns, given a line to write on."""
        self.lines.check_open()
        if self._read_only:
            raise UsageError(
                "store is open read-only, found a write", hint="open it without read_only"
            )
        return self.lines.call(work, repeatable=repeatable, writes=True)

    def wake(self) -> None:
        """Wakes every thread of this process that waits for a commit."""
        with self.changed:
            self.stirred += 1
            self.changed.notify_all()

    def close(self) -> None:
        if self.lines.close():
            self.wake()
