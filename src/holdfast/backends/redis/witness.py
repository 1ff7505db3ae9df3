"""Looks for what this handle was told, when another Redis process answers than before."""

from __future__ import annotations

from holdfast.backends.redis.entries import decode, decode_head
from holdfast.backends.redis.gate import Gate
from holdfast.backends.redis.lines import Line
from holdfast.backends.witness import Tail, Witness

_PAGE = 500


class RedisWitness(Witness):
    """Replication is asynchronous, and `appendfsync everysec` loses about a second."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate.place.shown)
        self._gate = gate

    def check(self, line: Line) -> None:
        """Raises LostCommitsError if something that was acknowledged is not there."""
        position, tails = self.told()
        if not position and not tails:
            return
        keys = self._gate.keys
        store, newest = line.ask(("HMGET", keys.root, "store", "position"))[0]
        if store != self._gate.store.encode():
            raise self.lost("the whole store")
        for start in range(0, len(tails), _PAGE):
            self._check_page(line, tails[start : start + _PAGE])
        if int(newest) < position:
            raise self.lost(f"everything behind position {int(newest)} of {position}")

    def _check_page(self, line: Line, page: list[Tail]) -> None:
        keys, where = self._gate.keys, self._gate.place.shown
        [texts] = line.ask(("HMGET", keys.heads, *(stream for stream, _ in page)))
        for (stream, (revision, link)), text in zip(page, texts, strict=True):
            head = decode_head(stream, text, where)
            if head is not None and head.revision > revision:
                if head.expires_us:
                    continue  # its older events may be gone by right
                id = f"{revision}-0"
                [found] = line.ask(("XRANGE", keys.events(stream), id, id))
                held = bool(found) and link in (None, decode(stream, found[0], where).link)
            else:
                held = head is not None and head.revision == revision and link in (None, head.link)
            if not held:
                raise self.lost(f'event {revision} of "{stream}"', stream, revision)
