"""Whether the operations on one register or one lease can stand in one order (linearisability).

A search over all orders that real time allows, which remembers where it has been: made for
histories of up to 60 operations on one object. An operation whose outcome is unknown may come in
anywhere behind its start, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.checker.history import Step
from tests.checker.order import Finding

ILLEGAL = object()


def check_object(kind: str, name: str, steps: list[Step]) -> Iterator[Finding]:
    """Yields a finding if no order of the steps explains what each of them returned."""
    steps = sorted(steps, key=lambda step: step.start)
    best = search(kind, steps)
    if best is not None:
        done, state = best
        left = [
            str(step) for n, step in enumerate(steps) if not done >> n & 1 and step.ok is not None
        ]
        text = f"{kind} {name}: {done.bit_count()} of {len(steps)} steps lead to {state}, "
        yield Finding("not-linearisable", f"{text}where none of these can follow: {left[:6]}")


def search(kind: str, steps: list[Step]) -> tuple[int, Any] | None:
    """Returns None if there is an order, else the farthest that one came: steps done, state."""
    move = _register if kind == "register" else _lease
    needed = sum(1 << n for n, step in enumerate(steps) if step.ok is not None)
    start: tuple[int, Any] = (0, None if kind == "register" else (None, None, 0))
    seen: set[tuple[int, Any]] = {start}
    waiting = [start]
    best = start
    while waiting:
        done, state = waiting.pop()
        if done & needed == needed:
            return None
        if (done & needed).bit_count() > (best[0] & needed).bit_count():
            best = done, state
        for n in _candidates(steps, done):
            after = move(state, steps[n])
            place = done | 1 << n, after
            if after is not ILLEGAL and place not in seen:
                seen.add(place)
                waiting.append(place)
    return best


def _candidates(steps: list[Step], done: int) -> Iterator[int]:
    """Yields the steps that began before every step that is left had ended."""
    ends = [s.end for n, s in enumerate(steps) if not done >> n & 1 and s.ok is not None and s.end]
    first_end = min(ends, default=None)
    # Backwards, because the search takes the last one first: the oldest.
    for n in range(len(steps) - 1, -1, -1):
        if not done >> n & 1 and (first_end is None or steps[n].start <= first_end):
            yield n


def _register(state: Any, step: Step) -> Any:
    """A value that is put, got, or swapped for another if it is the expected one."""
    told = step.told
    if step.kind == "get":
        return state if step.ok is not True or told["value"] == state else ILLEGAL
    if step.kind == "put":
        return state if step.ok is False else told["value"]
    if step.kind == "cas":
        if step.ok is False:
            is_wrong = told["expected"] == state and not told.get("unheard")
            return ILLEGAL if is_wrong else state
        return told["value"] if told["expected"] == state else ILLEGAL
    raise ValueError(f"a register has no {step.kind}")


def _lease(state: Any, step: Step) -> Any:
    """A holder, its epoch, and the highest epoch that was ever given."""
    holder, epoch, highest = state
    told = step.told
    owner, asked = told["owner"], told.get("epoch")
    holds = holder == owner and (asked is None or epoch is None or epoch == asked)
    if step.kind == "acquire":
        if step.ok is False:
            return state if holder not in (None, owner) else ILLEGAL
        if holder == owner:
            return (owner, epoch if asked is None else asked, highest) if holds else ILLEGAL
        if holder is not None or (asked is not None and asked <= highest):
            return ILLEGAL
        return owner, asked, highest if asked is None else asked
    if step.kind in ("release", "lapse"):
        return (None, None, highest) if holds else state
    if step.kind == "under":  # something was done under the lease, or refused for want of it
        return state if holds is not (step.ok is False) else ILLEGAL
    raise ValueError(f"a lease has no {step.kind}")
