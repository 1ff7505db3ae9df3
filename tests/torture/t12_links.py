"""T12 on links of the kernel: the network goes, in a namespace of its own, and comes back.

Root only. One point is one process in a network namespace with nothing in it but a loopback device,
a server that is started there, and clients beside it: both ends are inside, and there is no way
out. Three times the network is taken away under them, and given back:

    down         the device is down
    address      the device has lost its address
    blackhole    packets are dropped without a word
    unreachable  packets are refused by the router

A hasty client is told in its time; a patient one goes on when the network is back, and notices
nothing. What is there is then judged as in t12_network.py, by a client on a Unix socket. (The
kernel here has no netem: delays and torn answers are the proxy's.)
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial

from tests.torture.network_calls import CALLS, WRITES, Caller, watched
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t2_servers import new_server
from tests.torture.t12_network import LONG_S, SHORT_S, Run

CUTS = 3
_CLONE_NEWNET = 0x40000000
_PATHS = "/usr/sbin:/sbin:" + os.environ.get("PATH", "")
LINKS: dict[str, tuple[str, str]] = {
    "down": ("link set lo down", "link set lo up"),
    "address": ("address del 127.0.0.1/8 dev lo", "address add 127.0.0.1/8 dev lo"),
    "blackhole": ("rule add to 127.0.0.1 pref 5 blackhole", "rule del pref 5"),
    "unreachable": ("rule add to 127.0.0.1 pref 5 unreachable", "rule del pref 5"),
}
"""What takes the network away, and what gives it back."""


def missing() -> str:
    """Returns why there are no networks to take away here; "" if there are."""
    if os.geteuid() != 0:
        return "it needs root"
    if shutil.which("ip", path=_PATHS) is None:
        return "ip (iproute2) is not installed"
    asked = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if asked.returncode == 0 else "this root may not make network namespaces"


def _ip(words: str) -> None:
    asked = ["ip", *words.split()]
    done = subprocess.run(asked, capture_output=True, text=True, env={"PATH": _PATHS})
    if done.returncode:
        raise OSError(f"ip {words}: {done.stderr.strip()}")


def _enter() -> None:
    """Gives this process a network of its own, in which rules can come before the local one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a namespace for networks")
    _ip("link set lo up")
    _ip("rule add pref 10 lookup local")
    _ip("rule del pref 0")


class Links(Run):
    """A run in a namespace."""

    def cut(self, number: int) -> int:
        name = self.random.choice(tuple(LINKS))
        take, give = LINKS[name]
        what = self.random.choice(WRITES)
        self.what = f"{what}, network {name}"
        hasty, patient = (self.caller(self.server.port, s) for s in (SHORT_S, LONG_S))
        value = 10 * number
        told: list[BaseException | None] = []

        def call() -> None:
            try:
                told.append(watched(partial(CALLS[what], patient, value), LONG_S, self.what))
            except BaseException as exc:
                told.append(exc)

        thread = threading.Thread(target=call)
        _ip(take)
        try:
            thread.start()
            error = watched(partial(CALLS[what], hasty, value + 1), SHORT_S, self.what)
        finally:
            _ip(give)
        if error is None:
            raise Broken(f"{self.what}: answered without a network")
        thread.join()
        if told != [None]:
            raise Broken(f"{self.what}: there was time, and yet {told}")
        return self._settle_both(hasty, patient)

    def _settle_both(self, hasty: Caller, patient: Caller) -> int:
        self.said |= hasty.said | patient.said
        hasty.said = self.said  # one store for all three
        patient.store.close()
        return self.settle(hasty)


def take_away(kind: str, point: Point) -> int:
    """One namespace, three times without a network."""
    running = new_server(kind, point.number, ())
    try:
        run = Links(point, kind, running)
        try:
            return sum(run.cut(number) for number in range(1, CUTS + 1))
        except Broken as exc:
            raise Broken(f"{run.what}: {exc}") from exc
        finally:
            run.direct.close()
    finally:
        running.remove()


def in_namespace(trial: Callable[[Point], int], point: Point) -> int:
    """Tries a point in a process with a network of its own."""
    said = point.place / "said.json"
    pid = os.fork()
    if pid == 0:
        try:
            _enter()
            told = {"cases": trial(point)}
        except BaseException:
            told = {"broken": traceback.format_exc(limit=-6)}
        said.write_text(json.dumps(told))
        os._exit(0)
    os.waitpid(pid, 0)
    told = json.loads(said.read_text())
    if "broken" in told:
        raise Broken(told["broken"])
    return told["cases"]


PROGRAMMES: tuple[Programme, ...] = ()
if problem := missing():
    print(f"t12: real links are left out: {problem}", file=sys.stderr)
else:
    PROGRAMMES = tuple(
        Programme(
            f"t12-{kind}-links",
            "the same when a link of the kernel goes and comes back",
            partial(in_namespace, partial(take_away, kind)),
            share=2,
            points=60,
            needs_root=True,
        )
        for kind in ("postgresql", "redis")
    )
