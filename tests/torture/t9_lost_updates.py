"""T9: many writers, no update lost, by the word of the independent checker (tests/checker).

One point is one run on a new store: 8 processes of 4 threads each append, compare-and-set, commit
over several scopes, fork, read and hold leases, all on the same three scopes. Each process writes
down what its clients saw. Answers get lost on the way and are asked for again by key. Two
processes are killed, one of them at a named point inside a commit; another goes on in their place
and retries by key what they had begun. A fresh process reads what is there at the end. Cases are
the operations in the history that is checked.

On a server (`t9-postgresql`, `t9-redis`) the whole server is killed too, twice in every second
run, while they work. `t9-memory` does the same with 8 handles on one store in one process, and
nobody is killed.

Planted faults: those of `tests/broken/plants.py`, each with the anomaly by which it must be found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from holdfast import Store, UnavailableError
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.protocol import Backend
from holdfast.backends.registry import open_backend
from holdfast.clock import SystemClock
from holdfast.core.log import Log
from holdfast.testing import CrashPoints, FaultyBackend
from tests.broken.plants import PLANTS, Plant, plants_of
from tests.checker.anomalies import check
from tests.checker.history import parse
from tests.checker.order import Finding
from tests.opening import store_of_log
from tests.torture.programme import Broken, Point, Programme
from tests.torture.t2_servers import Server, server
from tests.torture.updates_clients import Line, Recorder, play, retry, together

PROCESSES = 8
THREADS = 4
EACH = 16
PATIENCE_S = 240
CRASH_POINTS = {
    "files": ("files.ring.written", "files.ring.synced", "files.text.appended", "files.published"),
    "sqlite": ("sqlite.inserted", "sqlite.committed"),
    "postgresql": ("postgresql.commit", "postgresql.committed"),
    "redis": ("redis.commit", "redis.committed"),
}
SERVERS = ("postgresql", "redis")
DEATHS = 2
SHOWN = 5


class Run:
    """One run: its store, its processes and what they said."""

    def __init__(self, point: Point, kind: str) -> None:
        self.point = point
        self.kind = kind
        self.random = point.random
        self.plant = PLANTS[point.plant] if point.plant else Plant("", "", ())
        place = point.place / ("store.db" if kind == "sqlite" else "store")
        self.url = f"sqlite:{place}" if kind == "sqlite" else str(place)
        self.server: Server | None = None
        if kind in SERVERS:
            self.server = server(kind, point.number, ())
            application = f"t9-{point.seed}-{point.number}-{os.getpid()}"
            self.url = self.server.url(application=application, timeout=PATIENCE_S)
        self.seed = f"{point.seed} {point.number}"
        self.said: list[Path] = []
        self.lines: list[Line] = []

    def open(self, process: int, *, shared: Backend | None = None, dies_in: str = "") -> Store:
        """Opens the store for one process, with the planted fault, and with answers lost."""
        points = CrashPoints()
        if dies_in:
            points.kill_at(dies_in, self.random.randint(2, 12))
        clock = SystemClock()
        if shared is None:
            shared = self._opened(clock, points)
        backend = self.plant.wrap(shared)
        lost = self.random.sample(range(3, 40), 3)
        backend = FaultyBackend(backend, dict(zip(lost, ("after", "before", "after"), strict=True)))
        log = Log(backend, clock=clock, actor=f"p{process}")
        return store_of_log(log, url=self.url, worker=f"p{process}")

    def _opened(self, clock: SystemClock, points: CrashPoints) -> Backend:
        options = {"durability": "full", "create": True, "read_only": False}
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return open_backend(self.url, clock=clock, reach=points.reach, **options)[0]
            except UnavailableError:  # a server that is away is opened when it is back
                if self.server is None or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def recorder(self, process: int) -> Recorder:
        self.said.append(self.point.place / f"process-{process}.jsonl")
        return Recorder(self.said[-1])

    def judge(self) -> int:
        """Returns how many operations were checked; raises if the checker finds an anomaly."""
        lines = together(self.said) + self.lines
        path = self.point.place / "history.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        errors = [Finding("error", line["text"]) for line in lines if line["op"] == "error"]
        history = parse(json.dumps(line) for line in lines if line["op"] != "error")
        found = errors + check(history)
        if self.point.plant:
            # In a drill, only the anomaly that was foretold counts as found.
            types = [finding.type for finding in found]
            found = [one for one in found if self.plant.foretells(one.type)]
            print(f"{self.point.plant}: {sorted(set(types))}", file=sys.stderr)
        if found:
            text = "\n".join(str(finding) for finding in found[:SHOWN])
            raise Broken(
                f"{len(found)} anomalies among {len(history)} operations of {PROCESSES} x "
                f"{THREADS} clients\n{text}\npython -m tests.checker {path} says the rest"
            )
        return len(history)


# --- processes -----------------------------------------------------------------------------------


class Processes(Run):
    """The run on a store that processes share."""

    def check(self) -> int:
        self.open(0).close()
        reader, writer = os.pipe()
        dying = self.random.sample(range(PROCESSES), 2)
        children: dict[int, int] = {}
        for process in range(PROCESSES):
            recorder = self.recorder(process)
            how = dying.index(process) if process in dying else None
            dies_at = self.random.randint(8, THREADS * EACH // 2) if how == 0 else 0
            dies_in = self.random.choice(CRASH_POINTS[self.kind]) if how == 1 else ""
            names = [f"{process}{thread}" for thread in range(THREADS)]

            def work(
                process: int = process,
                recorder: Recorder = recorder,
                names: list[str] = names,
                dies_at: int = dies_at,
                dies_in: str = dies_in,
            ) -> None:
                store = self.open(process, dies_in=dies_in)
                os.close(writer)
                os.read(reader, 1)  # until all are there
                play(store, recorder, names, each=EACH, seed=self.seed, dies_at=dies_at)
                store.close()

            children[self._fork(process, recorder, work)] = process
        os.close(reader)
        os.close(writer)
        deaths = self._deaths()
        while children:
            pid, status = self._await_one(children, deaths)
            process = children.pop(pid)
            self._note_end(process)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGALRM:
                self._say_error(f"process {process} had not ended after {PATIENCE_S} s")
            elif code == -signal.SIGKILL and process in dying:
                successor = PROCESSES + process
                children[self._succeed(process, successor)] = successor
        self._read_all()
        return self.judge()

    def _deaths(self) -> list[int]:
        """Returns how much is to have been said when the server dies, for each of its deaths."""
        if self.server is None or self.point.number % 2 or self.point.plant:
            return []
        return sorted(self.random.randint(10_000, 120_000) for _ in range(DEATHS))

    def _await_one(self, children: dict[int, int], deaths: list[int]) -> tuple[int, int]:
        """Waits for the end of one of our processes, and kills the server when its time comes.

        Each is asked for by its number: the server is a child too.
        """
        while True:
            for pid in children:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return ended, status
            said = sum(path.stat().st_size for path in self.said)
            if deaths and self.server is not None and said > deaths[0]:
                del deaths[0]
                self.server.kill()
                self.server.start()
            time.sleep(0.002)

    def _fork(self, process: int, recorder: Recorder, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        signal.alarm(PATIENCE_S)
        try:
            work()
        except BaseException:
            text = traceback.format_exc(limit=-4)
            recorder.write({"id": f"{process}.error", "op": "error", "ok": True, "text": text})
        os._exit(0)

    def _succeed(self, process: int, successor: int) -> int:
        """Starts a process that retries by key what the dead one had begun."""
        left = [line for line in together(self.said[process : process + 1])]
        left = [line for line in left if line["ok"] is None and line.get("key")]
        recorder = self.recorder(successor)

        def work() -> None:
            store = self.open(successor)
            retry(store, recorder, left)
            names = [f"{successor}{thread}" for thread in range(THREADS)]
            play(store, recorder, names, each=EACH // 4, seed=self.seed, dies_at=0)
            store.close()

        return self._fork(successor, recorder, work)

    def _note_end(self, process: int) -> None:
        """Says that the owners of a process that ended may have lost their leases with it.

        Others may notice before we do, but not before its last word: then it was alive.
        """
        said = together([self.point.place / f"process-{process}.jsonl"])
        # A lapse is foretold, with times that are still to come.
        words = [line for line in said if line["op"] not in ("lapse", "error")]
        last = max([max(line["start"], line["end"] or 0) for line in words], default=0)
        for line in said:
            if line["op"] == "acquire" and line["ok"] is not False:
                told = {"op": "lapse", "lease": line["lease"], "owner": line["owner"], "ok": None}
                self.lines.append({**told, "start": last, "end": None})

    def _say_error(self, text: str) -> None:
        self.lines.append({"op": "error", "ok": True, "text": text})

    def _read_all(self) -> None:
        """Reads the whole store in a fresh process."""
        path = self.point.place / "final.jsonl"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._read_in_child(path)
                code = 0
            finally:
                os._exit(code)
        os.waitpid(pid, 0)
        if path.exists():
            self.lines += [json.loads(text) for text in path.read_text().splitlines()]
        else:
            self._say_error("the store could not be read at the end")

    def _read_in_child(self, path: Path) -> None:
        try:
            backend, _ = open_backend(
                self.url,
                clock=SystemClock(),
                durability="full",
                create=False,
                read_only=False,
            )
            store = store_of_log(
                Log(backend, clock=SystemClock(), actor="last"), url="", worker="last"
            )
            report = store.check()
            lines = finals(store)
            if not report.ok:
                lines.append({"op": "error", "ok": True, "text": f"check says {report}"})
        except Exception:
            lines = [{"op": "error", "ok": True, "text": traceback.format_exc(limit=-4)}]
        draft = path.with_suffix(".new")
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
        draft.rename(path)


def finals(store: Store) -> list[Line]:
    """Returns the final read of every list."""
    return [
        {
            "op": "final",
            "stream": scope.name,
            "values": list(scope.state.get("log", ())),
            "revision": scope.revision,
        }
        for scope in store.scopes("conversation")
    ]


# --- one process ---------------------------------------------------------------------------------


class Handles(Run):
    """The run on a store in memory: each handle with a log of its own stands for a process."""

    def check(self) -> int:
        sys.setswitchinterval(1e-5)
        shared = (self.plant.kind or MemoryBackend)(clock=SystemClock())
        threads: list[threading.Thread] = []
        for process in range(PROCESSES):
            store, recorder = self.open(process, shared=shared), self.recorder(process)
            names = [f"{process}{thread}" for thread in range(THREADS)]
            work = threading.Thread(target=self._play, args=(process, store, recorder, names))
            threads.append(work)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log = Log(shared, clock=SystemClock(), actor="last")
        try:
            self.lines += finals(store_of_log(log, url="memory:", worker="last"))
        except Exception:
            text = traceback.format_exc(limit=-4)
            self.lines.append({"op": "error", "ok": True, "text": text})
        return self.judge()

    def _play(self, process: int, store: Store, recorder: Recorder, names: list[str]) -> None:
        try:
            play(store, recorder, names, each=EACH, seed=self.seed, dies_at=0)
        except BaseException:
            text = traceback.format_exc(limit=-4)
            recorder.write({"id": f"{process}.error", "op": "error", "ok": True, "text": text})


def _on(kind: str) -> Callable[[Point], int]:
    def trial(point: Point) -> int:
        run = Handles(point, kind) if kind == "memory" else Processes(point, kind)
        return run.check()

    return trial


PROGRAMMES = tuple(
    Programme(
        name=f"t9-{kind}",
        promise="no update is lost, torn, doubled or reordered, whoever writes and dies beside it",
        trial=_on(kind),
        share=share,
        points=points,
        parts=parts,
        plants=plants_of(f"t9-{kind}"),
    )
    for kind, share, points, parts in (
        ("memory", 10, 400, 1),
        ("files", 40, 400, 2),
        ("sqlite", 40, 400, 2),
        ("postgresql", 8, 400, 1),
        ("redis", 8, 400, 1),
    )
)
