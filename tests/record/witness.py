"""An outside witness: acts and questions leave lines in files that the store knows nothing of.

A decision's planned action names the directory. So what was really done, and who was really asked,
is counted by something that neither a crash of the worker nor an error of ours can change.
"""

from __future__ import annotations

import os
from pathlib import Path

import holdfast
from holdfast import Decision, Done, NotDone


def note(place: Path | str, name: str, line: str) -> None:
    """Appends one line, whole, also if several processes do it at once."""
    descriptor = os.open(Path(place) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(place: Path | str, name: str) -> list[str]:
    path = Path(place) / name
    return path.read_text().splitlines() if path.exists() else []


def place_of(decision: Decision) -> str:
    assert decision.planned_action is not None
    return decision.planned_action


@holdfast.verifier(name="witness:was_paid")
def was_paid(decision: Decision) -> Done | NotDone:
    note(place_of(decision), "asked", decision.key)
    paid = decision.key in lines(place_of(decision), "paid")
    return Done({"paid": decision.key}) if paid else NotDone()


@holdfast.act(name="witness:pay")
def pay(decision: Decision) -> str:
    note(place_of(decision), "paid", decision.key)
    return "paid by recovery"


@holdfast.act(name="witness:break")
def break_down(decision: Decision) -> None:
    raise OSError("no network")


@holdfast.verifier(name="witness:raises")
def raises(decision: Decision) -> Done:
    raise OSError("no network")
