"""Others who use a store while something is done to it, and what they must find in the end.

Four processes write, each in step with a mark; one follows the whole store to its end. A server
may be killed and started again under them: who has no answer asks again, with the same key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from holdfast import Scope, Store, UnavailableError
from holdfast.backends.protocol import START
from holdfast.core.event import FORKED
from tests.crash.children import Child
from tests.torture.programme import Broken

WRITERS = ("w0", "w1", "w2", "w3")
PATIENCE_S = 120.0

Opens = Callable[[], Store]


def write_in_step(opens: Opens, name: str, count: int) -> None:
    """Appends numbers, each with a mark that says how many there are: in one commit, always."""
    with opens() as hf:
        scope = hf.team(name)
        for n in range(1, count + 1):
            while not _is_written(hf, scope, n):
                time.sleep(0.01)


def _is_written(hf: Store, scope: Scope, n: int) -> bool:
    try:
        with hf.commit(key=f"{scope.id} {n}") as tx:
            tx.scope(scope).append("log", n)
            tx.mark("written", scope.id, due=n)
    except UnavailableError:
        return False
    return True


def follow(opens: Opens) -> None:
    """Follows the whole store to its end: every event of every stream, once and in order."""
    seen: dict[str, int] = {}
    after = START
    with opens() as hf:
        while "team/end" not in seen:
            try:
                for event in hf.follow(as_events=True, timeout_s=PATIENCE_S, after=after):
                    now = event.revision
                    begin = now - 1 if event.type == FORKED else 0
                    known = seen.get(event.stream, begin)
                    assert now == known + 1, f"{event.stream}@{now} after {known}"
                    seen[event.stream], after = now, event.position
                    if event.stream == "team/end":
                        return
                raise AssertionError("the last event did not come")
            except UnavailableError:
                time.sleep(0.01)


def judge_writers(hf: Store, count: int, what: object) -> None:
    due = {mark.key: mark.due for mark in hf.workers.marks("written")}
    logs = {name: list(hf.team(name).get("log", [])) for name in WRITERS}
    if due != dict.fromkeys(WRITERS, count) or any(
        log != list(range(1, count + 1)) for log in logs.values()
    ):
        raise Broken(f"{what}: what was written is not there: {due}, {logs!r:.300}")


@contextmanager
def company(opens: Opens, count: int) -> Generator[list[Child]]:
    """Has four processes write and one follow; at the end all of them have done their work."""
    with ExitStack() as ended:
        follower = Child(lambda _p, _s: follow(opens))
        writers = [Child(lambda _p, _s, n=n: write_in_step(opens, n, count)) for n in WRITERS]
        for child in (follower, *writers):
            ended.callback(child.kill)
        yield writers
        for writer in writers:
            if writer.end() or writer.trouble:
                raise Broken(f"a writer failed: {writer.trouble}")
        with opens() as hf:
            hf.team("end").set("n", 1)
        if follower.end() or follower.trouble:
            raise Broken(f"the follower failed: {follower.trouble}")
