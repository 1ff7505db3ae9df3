"""Keeps secrets out of a store: every commit is searched before it is queued (0047).

The name of a stream decides what is done: `off`, `warn`, `redact` or `refuse`. A secret is redacted
by putting its kind in its place, in the payload and in the ops that the payload encodes, so that
the state in memory is the one that is stored. The same commit always becomes the same bytes, so a
repetition with a key finds what the first one wrote. Names (keys, checkpoints) are used elsewhere
and cannot be replaced: they are refused.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from typing import Literal, cast, get_args

from msgspec.structs import replace

from holdfast.core.commit import NewEvent, ProposedCommit, StreamWrite
from holdfast.core.event import OF_STATE, ops_in
from holdfast.core.secrets import find_secrets, redacted
from holdfast.errors import SecretError, UsageError, show_value

Mode = Literal["off", "warn", "redact", "refuse"]
MODES: tuple[str, ...] = get_args(Mode)
_logger = logging.getLogger("holdfast.secrets")
_KNOWN_MAX = 4096


class SecretWarning(UserWarning):
    """Something that looks like a secret was stored; the mode "warn" lets it pass."""


class Redactor:
    """Decides by the names of streams what is done about secrets, and does it."""

    def __init__(self, rules: Mapping[str, Mode]) -> None:
        """Of several patterns that fit a name the longest counts; if none fits, the mode is off."""
        self.rules = dict(rules)
        ordered = sorted(rules, key=len, reverse=True)
        self._patterns: list[tuple[re.Pattern[str], Mode]] = [
            (_pattern(one), rules[one]) for one in ordered
        ]
        self._known: dict[str, Mode] = {}

    def mode_of(self, stream: str) -> Mode:
        """Returns what is done about secrets in a stream."""
        known = self._known.get(stream)
        if known is not None:
            return known
        mode: Mode = "off"
        for pattern, one in self._patterns:
            if pattern.fullmatch(stream):
                mode = one
                break
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[stream] = mode
        return mode

    def cleaned(self, proposed: ProposedCommit) -> ProposedCommit:
        """Returns a commit without secrets, nearly always the same one, or raises SecretError."""
        writes = tuple(map(self._cleaned_write, proposed.writes))
        if all(map(_is_same, writes, proposed.writes)):
            return proposed
        return replace(proposed, writes=writes, is_redacted=True)

    def clean_value(self, raw: bytes, stream: str) -> bytes:
        """Returns the JSON text of a value without secrets, or raises SecretError."""
        mode = self.mode_of(stream)
        if mode == "off" or not (found := find_secrets(raw)):
            return raw
        kinds = sorted({one.kind for one in found})
        if mode == "redact":
            _logger.warning('redacted in "%s": %s', stream, ", ".join(kinds))
            return redacted(raw, found)
        self._refuse(mode, kinds, stream, "a value")
        return raw

    def check_foreign(self, raw: bytes, stream: str) -> None:
        """Raises SecretError, or warns, for stored text that comes from another store.

        It cannot be redacted: the link of its event is made of these bytes.
        """
        mode = self.mode_of(stream)
        if mode != "off" and (found := find_secrets(raw)):
            kinds = sorted({one.kind for one in found})
            self._refuse(
                "warn" if mode == "warn" else "refuse", kinds, stream, "what an import has"
            )

    def _cleaned_write(self, write: StreamWrite) -> StreamWrite:
        mode = self.mode_of(write.stream)
        if mode == "off":
            return write
        names = [write.key, write.checkpoint, *(one.key for one in write.new_events)]
        if found := find_secrets("\n".join(filter(None, names)).encode()):
            kinds = sorted({one.kind for one in found})
            self._refuse("warn" if mode == "warn" else "refuse", kinds, write.stream, "a name")
        new_events = tuple(self._cleaned_event(one, write.stream) for one in write.new_events)
        if all(map(_is_same, new_events, write.new_events)):
            return write
        return replace(write, new_events=new_events)

    def _cleaned_event(self, one: NewEvent, stream: str) -> NewEvent:
        payload = self.clean_value(one.payload, stream)
        if payload is one.payload or payload == one.payload:
            return one
        ops = ops_in(one.type, payload) if one.type in OF_STATE else ()
        count = len(one.defaults)
        return replace(one, payload=payload, defaults=ops[:count], ops=ops[count:])

    def _refuse(self, mode: Mode, kinds: list[str], stream: str, what: str) -> None:
        """Raises or warns; the message never shows the secret."""
        said = f'{what} to be written to "{stream}" looks like a secret: {", ".join(kinds)}'
        if mode == "refuse":
            raise SecretError(
                f"{said}; nothing was written",
                stream=stream,
                kinds=tuple(kinds),
                hint="keep it elsewhere and store where it is; or set the mode of this scope",
            )
        _logger.warning("%s", said)
        warnings.warn(said, SecretWarning, stacklevel=2)


def _is_same(a: object, b: object) -> bool:
    return a is b


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def check_rules(given: object) -> dict[str, Mode]:
    """Returns modes by pattern, given as one mode for all or as a mapping; raises UsageError."""
    if given == "off":
        return {}
    rules = cast("Mapping[object, object]", given) if isinstance(given, Mapping) else {"*": given}
    for pattern, mode in rules.items():
        if not isinstance(pattern, str) or not pattern or mode not in MODES:
            raise UsageError(
                "secrets is off, warn, redact or refuse, or a mapping from patterns of scopes to "
                f"one of these, found {show_value(pattern)}: {show_value(mode)}"
            )
    return cast("dict[str, Mode]", dict(rules))


def stricter(a: Mapping[str, Mode], b: Mapping[str, Mode]) -> dict[str, Mode]:
    """Returns the rules of both; if both have the same pattern, the stricter mode counts."""
    both = dict(a)
    for pattern, mode in b.items():
        other = both.get(pattern, mode)
        both[pattern] = mode if MODES.index(mode) > MODES.index(other) else other
    return both
