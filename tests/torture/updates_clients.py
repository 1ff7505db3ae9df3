"""The clients of T9: threads that write, guard, fork, read and hold leases, and say what they saw.

A line is written when an operation begins and again when it ends, each with one call, so that what
a killed process left open is known. `together` makes one history of the files of all processes.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from holdfast import ConflictError, LeaseLostError, Scope, Store, UnavailableError
from holdfast.backends.protocol import Lease

Line = dict[str, Any]

STREAMS = ("conversation/s0", "conversation/s1", "conversation/s2")
REGISTER = "workflow/register"
LONG, SHORT = "long", "short"
LONG_TTL_S, SHORT_TTL_S = 600.0, 0.02
SLACK_NS = 5_000_000
"""A lease ends on another clock than the one that histories are timed by, at the same rate."""
TRIES = 5
PLANS = (
    *("append",) * 10,
    *("swap",) * 5,
    *("txn",) * 6,
    *("read",) * 5,
    *("view",) * 3,
    *("fork", "register", "register", "lease", "lease", "lease", "short"),
)


class Recorder:
    """A file of lines that outlives its process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: Line) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Client:
    """One thread of one process."""

    def __init__(self, store: Store, recorder: Recorder, name: str, seed: str) -> None:
        self.store = store
        self.name = name
        self.random = Random(seed)
        self._recorder = recorder
        self._count = 0
        self._leases: list[Lease] = []
        self._ending: list[Lease] = []
        self._forks: list[str] = []

    def act(self) -> None:
        """Does one thing, by chance."""
        getattr(self, f"_{self.random.choice(PLANS)}")()

    # --- telling ---------------------------------------------------------------------------------

    def _begin(self, op: str, **what: Any) -> Line:
        self._count += 1
        line: Line = {"id": f"{self.name}.{self._count}", "client": self.name, "op": op}
        line |= {**what, "start": time.monotonic_ns(), "end": None, "ok": None}
        self._recorder.write(line)
        return line

    def _end(self, line: Line, ok: bool | None, **what: Any) -> None:
        line |= what
        if ok is not None:
            line |= {"ok": ok, "end": time.monotonic_ns()}
        self._recorder.write(line)

    def _number(self) -> int:
        """Returns a value that nobody else uses: the name's digits and a count."""
        self._count += 1
        return int(self.name) * 100_000 + self._count

    def _try(self, line: Line, work: Callable[[], Any]) -> Any:
        """Does the work until its outcome is known, if it has a key; returns what it returned."""
        for tried in range(TRIES):
            try:
                return work()
            except (ConflictError, LeaseLostError):
                self._end(line, False)
                return None
            except UnavailableError as exc:
                if exc.outcome_known and not tried:
                    # Not written, and for no reason that the state could tell.
                    self._end(line, False, unheard=True)
                    return None
                # What is known of this try says nothing of the one before it.
                if not line.get("key"):
                    break
        self._end(line, None)
        return None

    def _key(self) -> str | None:
        return f"k{self._number()}" if self.random.random() < 0.6 else None

    # --- lists -----------------------------------------------------------------------------------

    def _scope(self) -> Scope:
        """Returns one of the three scopes all write to, sometimes a fork of one, by anybody."""
        chance = self.random.random()
        if chance < 0.05:
            known = [scope.name for scope in self.store.scopes("conversation")]
            self._forks = [name for name in known if name not in STREAMS]
        if chance < 0.15 and self._forks:
            return self.store.scope(self.random.choice(self._forks))
        return self.store.scope(self.random.choice(STREAMS))

    def _append(self) -> None:
        scope, value, key = self._scope(), self._number(), self._key()
        line = self._begin("append", stream=scope.name, value=value, key=key)
        revision = self._try(line, lambda: scope.append("log", value, key=key))
        if revision is not None:
            self._end(line, True, revision=revision)

    def _swap(self) -> None:
        """Appends only if nothing came since it looked: compare-and-set."""
        scope, value, key = self._scope(), self._number(), self._key()
        line = self._begin("txn", do=[], key=key)
        seen = read(self.store, [scope])
        line["do"] = [*seen, ["a", scope.name, value, None]]
        self._recorder.write(line)
        expected = seen[0][3]
        revision = self._try(line, lambda: scope.append("log", value, expected=expected, key=key))
        if revision is not None:
            line["do"][-1][3] = revision
            self._end(line, True)

    def _txn(self) -> None:
        """Reads two scopes, and appends to one or both if neither has changed meanwhile."""
        scopes = [self.store.scope(name) for name in self.random.sample(STREAMS, 2)]
        writes = self.random.choice([scopes[:1], scopes[1:], scopes])
        adds = [
            ["a", scope.name, self._number(), None]
            for scope in writes
            for _ in range(self.random.choice([1, 1, 2]))
        ]
        key = self._key()
        line = self._begin("txn", do=[], key=key)
        # Looked at one by one: the guards alone see to it that they are of one moment.
        seen = [read(self.store, [scope])[0] for scope in scopes]
        line["do"] = [*seen, *adds]
        self._recorder.write(line)
        if self._try(line, lambda: commit(self.store, line["do"], key)):
            self._end(line, True)

    def _read(self) -> None:
        scope = self._scope()
        line = self._begin("read", stream=scope.name)
        values = list(scope.state.get("log", ()))
        self._end(line, True, values=values)

    def _view(self) -> None:
        scopes = [self.store.scope(name) for name in self.random.sample(STREAMS, 2)]
        line = self._begin("txn", do=[])
        line["do"] = read(self.store, scopes)
        self._end(line, True)

    def _fork(self) -> None:
        scope = self._scope()
        newest = scope.revision
        if not newest:
            return
        at = self.random.randint(max(1, newest - 5), newest)
        length = len(scope.at(at).get("log", ()))
        id = f"f{self._number()}"
        told = {"from": scope.name, "revision": at, "length": length}
        line = self._begin("fork", stream=f"conversation/{id}", **told)
        if self._try(line, lambda: scope.fork(id, at=at)):
            self._end(line, True)
            self._forks.append(f"conversation/{id}")

    # --- one object each -------------------------------------------------------------------------

    def _register(self) -> None:
        scope = self.store.scope(REGISTER)
        line = self._begin("get", register=REGISTER)
        view = self.store.view()
        expected, revision = view.get(scope, "value"), view.revision(scope)
        self._end(line, True, value=expected)
        value, key = self._number(), self._key()
        line = self._begin("cas", register=REGISTER, expected=expected, value=value, key=key)
        if self._try(line, lambda: scope.set("value", value, expected=revision, key=key)):
            self._end(line, True)

    def _lease(self) -> None:
        if not self._leases:
            lease = self._acquire(LONG, self.name, LONG_TTL_S)
            self._leases += [lease] if lease else []
        elif self.random.random() < 0.4:
            self._write_under(self._leases[-1])
        else:
            lease = self._leases.pop()
            told = {"lease": LONG, "owner": lease.owner, "epoch": lease.epoch}
            line = self._begin("release", **told)
            self.store._log._backend.leases.release(lease)
            self._end(line, True)
            if self.random.random() < 0.7:
                self._write_under(lease)

    def _short(self) -> None:
        """Takes a lease that soon ends by itself; writes under it sooner or later, or too late."""
        if self._ending:
            self._write_under(self._ending.pop())
            return
        lease = self._acquire(SHORT, f"{self.name}.{self._count}", SHORT_TTL_S)
        if lease is not None:
            self._write_under(lease)
            self._ending += [lease] * self.random.randint(0, 2)

    def _acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        line = self._begin("acquire", lease=name, owner=owner)
        lease = self.store._log._backend.leases.acquire(name, owner, ttl_s=ttl_s)
        if lease is None:
            self._end(line, False)
            return None
        self._end(line, True, epoch=lease.epoch)
        ttl_ns = int(ttl_s * 1e9)
        lapse = {"id": line["id"] + ".lapse", "client": self.name, "op": "lapse", "lease": name}
        lapse |= {"owner": owner, "epoch": lease.epoch, "ok": True}
        lapse |= {
            "start": line["start"] + ttl_ns - SLACK_NS,
            "end": line["end"] + ttl_ns + SLACK_NS,
        }
        self._recorder.write(lapse)
        return lease

    def _write_under(self, lease: Lease) -> None:
        scope, value = self.store.scope(self.random.choice(STREAMS)), self._number()
        told = {"lease": lease.name, "owner": lease.owner, "epoch": lease.epoch}
        under = self._begin("under", **told)
        line = self._begin("append", stream=scope.name, value=value)

        def work() -> bool:
            with self.store.commit(lease=lease) as tx:
                tx.scope(scope).append("log", value)
            return True

        if self._try(line, work):
            self._end(line, True)
        self._end(under, None if line.get("unheard") else line["ok"])


def read(store: Store, scopes: list[Scope]) -> list[list[Any]]:
    """Returns what a transaction says of scopes that were read at one moment."""
    view = store.view()
    return [
        ["r", scope.name, list(view.state(scope).get("log", ())), view.revision(scope)]
        for scope in scopes
    ]


def commit(store: Store, do: list[list[Any]], key: str | None) -> bool:
    """Commits what a transaction says, guarded by what it says that it read; notes revisions."""
    with store.commit(key=key) as tx:
        for what, stream, value, revision in do:
            pending = tx.scope(store.scope(stream))
            if what == "r":
                pending.expect(revision)
            else:
                pending.append("log", value)
    return True


def retry(store: Store, recorder: Recorder, left: Iterable[Line]) -> None:
    """Does again, under its key, what a process that died had begun."""
    for line in left:
        for _ in range(TRIES):
            try:
                ok = _again(store, line)
            except ConflictError:
                ok = False
            except UnavailableError:
                continue
            if ok is not None:
                recorder.write(line | {"ok": ok, "end": time.monotonic_ns()})
            break


def _again(store: Store, line: Line) -> bool | None:
    key = line["key"]
    if line["op"] == "append":
        line["revision"] = store.scope(line["stream"]).append("log", line["value"], key=key)
        return True
    if line["op"] == "txn" and line["do"]:
        return commit(store, line["do"], key)
    return None


def together(paths: Iterable[Path]) -> list[Line]:
    """Returns the last word on each operation. A line that death cut short was never said."""
    said: dict[str, Line] = {}
    for path in paths:
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                line = json.loads(text)
                said[line["id"]] = line
    # A read that never returned saw nothing, and neither did what never came to look.
    return [
        line
        for line in said.values()
        if line["ok"] is not None or (line["op"] not in ("read", "get") and line.get("do", 1))
    ]


def play(
    store: Store, recorder: Recorder, names: list[str], *, each: int, seed: str, dies_at: int
) -> None:
    """Runs one client in a thread for each name; the process dies at its nth operation, if any."""
    done = [0]
    failed: list[BaseException] = []

    def run(name: str) -> None:
        client = Client(store, recorder, name, f"{seed} {name}")
        try:
            for _ in range(each):
                client.act()
                done[0] += 1
                if done[0] == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
