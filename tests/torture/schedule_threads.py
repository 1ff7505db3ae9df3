"""Threads that run one at a time, and switch where a schedule says.

A thread under the scheduler gives up its turn at yield points (`step`), where it must wait for a
lock (`block`), and when it ends. Who goes on is a choice; the list of choices is the schedule, and
the same choices give the same run. A thread that waits is never chosen before somebody wakes it,
so no choice is wasted on one that could do nothing; when nobody can go on, time-outs run out, and
when there are none either the run hangs, which is found at once and not after a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

PATIENCE_S = 120.0
"""How long a thread may go without a yield point before that counts as a hang: real waiting."""


class Chooser(Protocol):
    """Picks one of `count` threads that can go on; 0 is the one whose turn it is."""

    def __call__(self, count: int, /) -> int: ...


class Hang(AssertionError):
    """Nobody can go on."""


class _Turn:
    """One thread of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = threading.Lock()
        self.gate.acquire()
        self.waits_for: object = None
        self.is_timed = False
        self.timed_out = False
        self.is_done = False
        self.is_background = False
        self.doing = "begins"

    @property
    def can_go_on(self) -> bool:
        return not self.is_done and self.waits_for is None


class Scheduler:
    """One run. Code outside its threads passes through every yield point."""

    def __init__(self, choose: Chooser, *, fine: bool = False) -> None:
        self.fine = fine
        """Whether yield points of little consequence count: reads, locks held for a moment."""
        self.choices: list[tuple[int, int]] = []
        """Which thread was chosen, of how many, where there were at least two."""
        self.timeouts = 0
        """Waits that ended because nobody could go on."""
        self.ticks = 0
        self.choose = choose
        self._turns: list[_Turn] = []
        self._by_ident: dict[int, _Turn] = {}
        self._over = threading.Event()
        self._hung = ""
        self._errors: list[BaseException] = []

    def run(self, bodies: Sequence[tuple[str, Callable[[], None]]]) -> None:
        """Runs the bodies to their ends, each in a thread; raises Hang, or what one raised."""
        self._over.clear()
        for name, body in bodies:
            self.spawn(name, body)
        self._pick([turn for turn in self._turns if turn.can_go_on]).gate.release()
        seen = -1
        while not self._over.wait(PATIENCE_S):
            if self.ticks == seen:
                raise Hang(f"nothing happened for {PATIENCE_S} s of real time: {self._picture()}")
            seen = self.ticks
        if self._hung:
            raise Hang(self._hung)
        if self._errors:
            raise self._errors[0]

    def spawn(self, name: str, body: Callable[[], None], *, background: bool = False) -> _Turn:
        """Adds a thread, which begins when it is first chosen."""
        turn = _Turn(name)
        turn.is_background = background
        self._turns.append(turn)

        def work() -> None:
            turn.gate.acquire()
            self._by_ident[threading.get_ident()] = turn
            try:
                body()
            except BaseException as error:
                self._errors.append(error)
            turn.is_done = True
            self.wake(turn)
            self._pass_on(turn)

        # Left behind after a hang, these must not keep the process alive.
        threading.Thread(target=work, daemon=True).start()
        return turn

    @property
    def is_under_way(self) -> bool:
        """Whether the calling thread is one of the run's."""
        return threading.get_ident() in self._by_ident

    def tick(self) -> int:
        """Returns a number greater than any before."""
        self.ticks += 1
        return self.ticks

    def step(self, doing: str, *, minor: bool = False) -> None:
        """A yield point: another thread may go on here."""
        if minor and not self.fine:
            return
        me = self._by_ident.get(threading.get_ident())
        if me is not None:
            me.doing = doing
            self.ticks += 1
            self._switch(me)

    def block(self, on: object, doing: str, *, timed: bool = False) -> bool:
        """Waits until `wake(on)`; returns False if the time ran out first."""
        me = self._by_ident.get(threading.get_ident())
        if me is None:
            raise Hang(f"outside the schedule: {doing} would wait for ever")
        me.doing, me.waits_for, me.is_timed, me.timed_out = doing, on, timed, False
        self._switch(me)
        return not me.timed_out

    def wake(self, on: object, n: int | None = None) -> None:
        """Lets those go on that wait for it, the first n of them if given."""
        waiting = [turn for turn in self._turns if turn.waits_for is on]
        for turn in waiting[:n]:
            turn.waits_for = None

    def join(self, turn: _Turn) -> None:
        """Waits for the end of a thread."""
        while not turn.is_done:
            self.block(turn, f"join {turn.name}")

    def _switch(self, me: _Turn) -> None:
        other = self._next(me)
        if other is None:
            # Hung: this thread stays here, and `run` tells of it.
            self._over.set()
            me.gate.acquire()
        elif other is not me:
            other.gate.release()
            me.gate.acquire()

    def _pass_on(self, me: _Turn) -> None:
        other = self._next(me)
        if other is None:
            self._over.set()
        else:
            other.gate.release()

    def _next(self, me: _Turn) -> _Turn | None:
        """Returns who goes on, None if that is nobody."""
        after = self._turns.index(me)
        order = self._turns[after:] + self._turns[:after]
        ready = [turn for turn in order if turn.can_go_on]
        if ready:
            return self._pick(ready)
        if all(turn.is_done or turn.is_background for turn in self._turns):
            return None
        timed = [turn for turn in order if not turn.is_done and turn.is_timed]
        if not timed:
            self._hung = f"nobody can go on: {self._picture()}"
            return None
        turn = self._pick(timed)
        self.timeouts += 1
        turn.waits_for, turn.timed_out = None, True
        return turn

    def _pick(self, turns: Sequence[_Turn]) -> _Turn:
        if len(turns) == 1:
            return turns[0]
        chosen = self.choose(len(turns))
        self.choices.append((chosen, len(turns)))
        return turns[chosen]

    def _picture(self) -> str:
        alive = [turn for turn in self._turns if not turn.is_done]
        return ", ".join(f"{turn.name} at {turn.doing}" for turn in alive)


class Lock:
    """`threading.Lock` and `RLock` under a scheduler; a gate is opened by any thread.

    Time runs out only when nobody else can go on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        minor: bool,
        again: bool = False,
        is_gate: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._name = name
        self._minor = minor
        self._again = again
        self._is_gate = is_gate
        self._owner = 0
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._again and self._owner == me and self._depth:
            self._depth += 1
            return True
        self._scheduler.step(f"lock {self._name}", minor=self._minor)
        while self._depth:
            if not blocking:
                return False
            is_timed = timeout >= 0
            doing = f"lock {self._name}, held by {_name_of(self._owner)}"
            if not self._scheduler.block(self, doing, timed=is_timed) and is_timed:
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if not self._depth and self._is_gate:
            raise RuntimeError("release unlocked lock")
        assert self._depth, f"BUG: {self._name} is released and was not held"
        self._depth -= 1
        if not self._depth:
            self._scheduler.wake(self)

    def locked(self) -> bool:
        return self._depth > 0

    def _is_owned(self) -> bool:
        return self._depth > 0 and self._owner == threading.get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _name_of(ident: int) -> str:
    return next((one.name for one in threading.enumerate() if one.ident == ident), "nobody")
