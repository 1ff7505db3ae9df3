"""What the parts of an open store share: its lines, its application, and whether it may write."""

from __future__ import annotations

from holdfast.backends.gate import WritingGate
from holdfast.backends.postgresql.lines import Line, PostgresqlLines, Row, Values
from holdfast.backends.postgresql.place import Place
from holdfast.backends.postgresql.schema import in_schema


class Gate(WritingGate[Line]):
    """Every statement goes through here."""

    def __init__(self, place: Place, lines: PostgresqlLines, *, read_only: bool) -> None:
        super().__init__(lines, read_only=read_only)
        self.place = place
        self.application = place.application
        self.lines = lines

    def ask(self, statement: str, values: Values) -> list[Row]:
        """Returns the rows of a statement that only reads."""
        text = in_schema(statement, self.place.schema)
        return self.lines.call(lambda line: line.ask(text, values))

    def write(self, statement: str, values: Values, *, repeatable: bool = True) -> list[Row]:
        """Returns the rows of a statement that writes."""
        text = in_schema(statement, self.place.schema)
        return self.call(lambda line: line.ask(text, values), repeatable=repeatable)
