"""Processes that write to a store while somebody lays hands on its files, and what they tell.

A worker tells through a pipe of everything that was acknowledged, before it commits again, so that
a kill loses no word. It goes on until it is told how many more commits to make; then it waits, and
closes the store or is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import random
import select
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import HoldfastError, LeaseLostError
from tests.torture.programme import Broken

PATIENCE_S = 180.0
"""After so long a process hangs; nothing takes a hundredth of it."""
COMMITS_MAX = 400
"""So many before anybody says how many more: a slow hand must not fill the disk."""
large_every = 6
"""Every so many things that are written, one is large enough to become a blob."""
ERRORS_MAX = 4
SCOPE = "conversation"
CHAIR = "chair"


def item(worker: int, number: int) -> dict[str, Any]:
    """Returns the nth thing that a worker writes."""
    text = f"{number} of {worker}"
    if number % large_every == large_every - 1:
        text += random.Random(f"{worker} {number}").randbytes(36_000).hex()
    return {"n": number, "text": text}


class Said(NamedTuple):
    """One thing that a worker told.

    `what` is "ready", "ack", "error" (one of ours), "bug" (any other), "chair" (it has the lease),
    "waits", "closed" or "done".
    """

    what: str
    number: int
    text: str = ""


@dataclass
class Worker:
    """A worker, as its parent knows it."""

    number: int
    pid: int
    orders: int
    """Where it is told what to do."""
    words: int
    """Where it tells."""
    said: list[Said] = field(default_factory=list[Said])
    before_hand: int = 0
    """How much it had said when the hand was laid."""
    status: int | None = None
    """How it ended."""
    _half: bytes = b""

    def order(self, word: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.orders, f"{word}\n".encode())

    def hear(self, seconds: float) -> bool:
        """Takes what it said by now, waiting for a word at most so long; False if none came."""
        if self.status is not None:
            return False
        if not select.select([self.words], [], [], seconds)[0]:
            return False
        data = os.read(self.words, 1 << 16)
        if not data:
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
            return False
        *lines, self._half = (self._half + data).split(b"\n")
        self.said += [Said(*json.loads(line)) for line in lines]
        return True

    def hear_all(self) -> None:
        while self.hear(0):
            pass

    def hear_until(self, wanted: Callable[[], bool]) -> None:
        """Listens until something is true, or the worker has ended."""
        ends = time.monotonic() + PATIENCE_S
        while not wanted() and self.status is None:
            self.hear(1.0)
            if time.monotonic() > ends:
                self.kill()
                raise Broken(f"worker {self.number} hangs after {self.said[-1:]}")

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            while self.status is None:
                self.hear(PATIENCE_S)

    def free(self) -> None:
        self.kill()
        for fd in (self.orders, self.words):
            with contextlib.suppress(OSError):
                os.close(fd)

    @property
    def acknowledged(self) -> list[int]:
        return [said.number for said in self.said if said.what == "ack"]

    def has_said(self, *what: str) -> bool:
        return any(said.what in what for said in self.said)


def start(number: int, url: str, plant: Callable[[], None]) -> Worker:
    """Starts a worker, with a fault planted; it is ready, or was refused, when it has said so."""
    orders, their_orders = os.pipe()
    their_words, words = os.pipe()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for fd in (their_orders, their_words):
                os.close(fd)
            plant()
            _Work(number, url, orders, words).run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for fd in (orders, words):
        os.close(fd)
    return Worker(number, pid, their_orders, their_words)


def in_child(work: Callable[[], Any]) -> Any:
    """Returns what a function returns in a process of its own, with the rights of a worker."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            drop_rights()
            faulthandler.dump_traceback_later(PATIENCE_S - 10)  # says where it hangs, if it does
            with open(writer, "w") as pipe:
                json.dump(work(), pipe)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    said = b""
    with open(reader, "rb", buffering=0) as pipe:
        while is_there := bool(select.select([pipe], [], [], PATIENCE_S)[0]):
            if not (data := pipe.read(1 << 16)):
                break
            said += data
    if not is_there:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not said:
        code = os.waitstatus_to_exitcode(status)
        raise Broken(f"the process that opened the store again ended with {code} and no word")
    return json.loads(said)


class _Work:
    """What a worker does in its own process."""

    def __init__(self, number: int, url: str, orders: int, words: int) -> None:
        self._number = number
        self._url = url
        self._orders = orders
        self._words = words
        self._at = 0
        self._left: int | None = None
        self._errors = 0
        self._must_close = False
        self._store: Any = None

    def run(self) -> None:
        drop_rights()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        store = self._try("open", lambda: holdfast.open(self._url, create=False))
        if store is None:
            self._tell("done", 0)
            return
        self._try("lease", lambda: store.workers.lease(f"seat of {self._number}", ttl_s=1e5))
        self._tell("ready", 0)
        self._store = store
        scope = store.scope(SCOPE, f"w{self._number}")
        while self._obey():
            self._commit(scope)
        if self._must_close:
            self._try("close", store.close)
            self._tell("closed", 0)
        self._tell("done", 0)

    def _obey(self) -> bool:
        """Takes the orders that have come; returns False when it is time to close."""
        has_nothing_to_do = False
        while not self._must_close:
            has_nothing_to_do = self._at >= COMMITS_MAX if self._left is None else self._left <= 0
            if has_nothing_to_do and self._left is not None:
                self._wait()
            if not has_nothing_to_do and not select.select([self._orders], [], [], 0)[0]:
                return True
            for word in os.read(self._orders, 4096).decode().split("\n")[:-1]:
                self._take(*word.split(" ", 1))
        return False

    def _wait(self) -> None:
        """Takes the one lease that all want, unless somebody has it, and says that it waits."""
        try:
            self._store.workers.lease(CHAIR, ttl_s=1e5)
            self._tell("chair", self._at)
        except LeaseLostError:
            pass
        except HoldfastError as error:
            self._tell("error", self._at, f"lease: {type(error).__name__}: {error}"[:1500])
        self._tell("waits", self._at)

    def _take(self, order: str, argument: str = "") -> None:
        if order == "more":
            self._left = int(argument)
        elif order == "close":
            self._must_close = True
        elif order in FOREIGN:
            FOREIGN[order](argument)
        elif order.startswith("thread-"):
            thread = threading.Thread(
                target=FOREIGN[order.removeprefix("thread-")], args=[argument]
            )
            thread.start()

    def _commit(self, scope: Any) -> None:
        number = self._at
        self._at += 1
        if self._left is not None:
            self._left -= 1
        done = self._try(
            "commit", lambda: scope.append("log", item(self._number, number)) or True, number
        )
        if done is not None:
            self._tell("ack", number)
        elif self._errors >= ERRORS_MAX:
            self._left = 0

    def _try(self, what: str, work: Callable[[], Any], number: int = 0) -> Any:
        try:
            return work()
        except HoldfastError as error:
            self._errors += 1
            self._tell("error", number, f"{what}: {type(error).__name__}: {error}"[:1500])
        except Exception as error:
            self._errors += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{what}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            self._tell("bug", number, told[:1500])
        return None

    def _tell(self, what: str, number: int, text: str = "") -> None:
        os.write(self._words, json.dumps([what, number, text]).encode() + b"\n")


# --- what somebody else does to a file, here or in a process of his own ---------------------------


def read_whole(path: str) -> None:
    """Opens a file, reads it and closes it: POSIX locks of this process on it are gone."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.read()


def look_with_sqlite3(path: str) -> None:
    """Opens and closes a database with Python's own SQLite, as tools that count rows do."""
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(path, timeout=0.2)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        finally:
            connection.close()


FOREIGN: dict[str, Callable[[str], None]] = {"read": read_whole, "sqlite3": look_with_sqlite3}


_PASS_OVER_MODES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_CAPABILITY_VERSION = 0x20080522


def drop_rights() -> None:
    """Takes from a process of root what lets it pass over the modes of files."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    for capability in _PASS_OVER_MODES:
        for word in (0, 1, 2):
            data[word] &= ~(1 << capability)
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def copy_of(path: Path, to: Path) -> None:
    """Copies a file or a directory as `cp -a` does, whoever writes to it meanwhile."""
    import shutil

    if path.is_dir():
        with contextlib.suppress(shutil.Error, OSError):  # what vanished meanwhile
            shutil.copytree(path, to, symlinks=True, ignore_dangling_symlinks=True)
    else:
        shutil.copy2(path, to)
