"""Opening a store: whether the server is fit for it, and which store it is."""

from __future__ import annotations

from holdfast.backends.protocol import Durability
from holdfast.backends.redis.keys import Keys
from holdfast.backends.redis.lines import Line, RedisLines
from holdfast.backends.redis.place import Place
from holdfast.backends.redis.scripts import opening
from holdfast.clock import Clock
from holdfast.errors import CorruptError, FormatError, NotFoundError
from holdfast.ids import new_id

FORMAT = 1


def open_lines(
    place: Place, clock: Clock, *, durability: Durability, create: bool
) -> tuple[RedisLines, str]:
    """Returns the lines of a store that is there, and its id."""
    lines = RedisLines(place, durability)
    try:
        return lines, lines.call(lambda line: _store(line, place, clock, create=create))
    except BaseException:
        lines.close()
        raise


def _store(line: Line, place: Place, clock: Clock, *, create: bool) -> str:
    keys = Keys(place.application)
    touched = keys.root, keys.heads, keys.streams, keys.log
    values = new_id(clock), FORMAT, "1" if create else "0", line.server.run_id
    found = line.run(opening(), touched, values)
    if not found:
        raise NotFoundError(
            f'there is no store of application "{place.application}" in "{place.shown}"',
            hint="check the URL, or create the store",
        )
    store, format, position = found
    if format is None or not format.isdigit() or position is None or not position.isdigit():
        raise CorruptError(f'"{place.shown}": the key {keys.root} is damaged', where=place.shown)
    if int(format) > FORMAT:
        raise FormatError(
            f'"{place.shown}" has format {int(format)}, this holdfast knows formats up to {FORMAT}',
            hint="upgrade holdfast",
        )
    return store.decode()
