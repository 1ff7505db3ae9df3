"""Interrupts a call with a real signal, at the nth place where the interpreter would deliver one.

CPython runs a signal handler at a few kinds of instruction only: where a function begins, where a
loop jumps back, after a call. A trace function sees each instruction before it runs. There it
raises a real signal, in a way that does not look at pending signals itself: so the interpreter
delivers it where it would have, and never where it could not. (An exception raised by the trace
function would come at places where no signal ever does, such as between the end of a `with` block
and the release of its lock.)
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FrameType
from typing import Any

_DELIVERS = ("CALL", "JUMP_BACKWARD", "RESUME", "SEND")
"""Kinds of instruction after which a pending signal is handled: in a function that is called, when
it begins.
"""
_SKIPPED = ("importlib", "tests/interrupting", "tests\\interrupting")


@cache
def _places(code: CodeType) -> frozenset[int]:
    return frozenset(
        one.offset for one in dis.get_instructions(code) if one.opname.startswith(_DELIVERS)
    )


class Interrupter:
    """Counts the places that a call passes in this thread, and sends a signal at one of them."""

    def __init__(self, at: int | None = None, sent: int = signal.SIGINT) -> None:
        self.passed = 0
        """Places passed so far."""
        self.where = ""
        """Where the signal was sent; "" if the call has fewer places."""
        self._at = -1 if at is None else at
        # A subscript of this dict calls `raise`, and no instruction of it looks for signals.
        library = ctypes.PyDLL(None)
        self._send: dict[int, Any] = defaultdict(partial(library["raise"], int(sent)))

    def __call__(self, call: Callable[[], Any]) -> Any:
        """Returns what the call returns, or raises what it raises."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.where or any(name in frame.f_code.co_filename for name in _SKIPPED):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "opcode" or self.where or frame.f_lasti not in _places(frame.f_code):
            return self._step
        self.passed += 1
        if self._at < 0 or self.passed <= self._at:
            return self._step
        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        # The next call of a trace function would handle the signal, at its own beginning.
        sys.settrace(None)
        self._send[0]
        return None
