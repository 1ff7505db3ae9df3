"""Pauses the garbage collector while many objects are made that all stay.

The collector runs after every 700 new objects, and now and then it visits all objects. While a
state of 100,000 values is built, none of which is garbage, it visits the same values again and
again, which takes two thirds of the time of opening such a state. So it is paused during one build.
Nothing leaks: objects without cycles are freed as always, and the next collection finds cycles that
other threads leave meanwhile. A build is bounded, by the size of a snapshot or by a number of
events.

The switch is global to the process. Several threads may build at once: the last one to end turns
the collector on again, and only if it was on when the first one began.
"""

from __future__ import annotations

import gc
import os
from threading import RLock


class _Switch:
    """How many builds are under way, and whether the collector was on before them."""

    def __init__(self) -> None:
        self.after_fork()

    def hold(self) -> None:
        with self._mutex:
            # Counted first, and last in `free`: a signal handler that builds something in between
            # then finds the count above 0, and leaves the collector alone.
            self._builds += 1
            if self._builds == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def free(self) -> None:
        with self._mutex:
            if self._builds == 1 and self._was_on:
                gc.enable()
            self._builds -= 1

    def after_fork(self) -> None:
        """Begins anew: the threads that were building are not there in a forked child."""
        self._mutex = RLock()
        if getattr(self, "_builds", 0) and self._was_on:
            gc.enable()
        self._builds = 0
        self._was_on = False


_switch = _Switch()
os.register_at_fork(after_in_child=_switch.after_fork)


class Uncollected:
    """In the block of `with Uncollected():` the collector does not run.

    It runs again whatever happens. An interrupt can end `__enter__` before the block begins, and
    then `__exit__` is not called: `__del__` does the same when the object is freed.
    """

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        self._is_held = True
        _switch.hold()

    def __exit__(self, *_: object) -> None:
        if self._is_held:
            _switch.free()
            self._is_held = False

    __del__ = __exit__
