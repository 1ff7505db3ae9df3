"""What stores are used for, one scene each. A scene begins with the store of faulty_judge."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import Store
from holdfast.backends.protocol import START
from holdfast.transfer.copy import copy_log as copy
from tests.torture.faulty_life import Scene


def create(scene: Scene) -> None:
    for n in range(3):
        scene.write(f"made {n}", lambda store, n=n: store.team("t").append("log", f"made {n}"))
    scene.close()


def open_and_close(scene: Scene) -> None:
    scene.read(lambda store: store.team("red").state["n"], 1)
    scene.close()


def small_commits(scene: Scene) -> None:
    for n in range(2):
        scene.write(f"small {n}", lambda store, n=n: store.team("new").append("x", f"small {n}"))
    scene.close()


def large_commit(scene: Scene) -> None:
    for n in range(2):
        text = f"large {n} " + "y" * 9000
        scene.write(f"large {n}", lambda store, text=text: store.team("new").append("x", text))
    scene.close()


def several_streams(scene: Scene) -> None:
    def work(store: Store, token: str) -> None:
        with store.commit(key=token) as tx:
            tx.scope(store.team("new")).append("x", token)
            tx.scope(store.workflow("w")).append("x", token)
            tx.mark("due", token)
            tx.clear("todo", "one")

    for n in range(2):
        scene.write(f"both {n}", lambda store, n=n: work(store, f"both {n}"))
    scene.close()


def around_the_ring(scene: Scene) -> None:
    for n in range(10):
        text = f"round {n:02} " + "z" * 900
        scene.write(f"round {n:02}", lambda store, text=text: store.team("new").append("x", text))
    scene.read(lambda store: [mark.key for mark in store.workers.marks("todo")], ["one"])
    scene.close()


def blob(scene: Scene) -> None:
    text = "a large value " * 6000
    scene.write("blob key", lambda store: store.team("new").set("d", text, key="blob key"))
    scene.close()
    scene.read(lambda store: store.conversation("c").state["document"], "long text " * 7000)
    scene.close()


def old_states(scene: Scene) -> None:
    chat = "conversation/c"
    scene.read(lambda store: len(store.scope(chat).at(5)["log"]), 4)
    scene.read(lambda store: len(store.scope(chat).at("turn 8")["log"]), 9)
    scene.read(lambda store: [one.revision for one in store.scope(chat).history()][-1], 11)
    scene.read(lambda store: len(store.scope(chat).checkpoints()), 9)
    scene.read(lambda store: store._log._backend.find("team/red", key="first")[0].revision, 1)
    scene.read(lambda store: next(one.name for one in store.scopes()), "conversation/c")
    scene.close()


def read_only(scene: Scene) -> None:
    scene.read(lambda store: store.team("red").state["n"], 1, read_only=True)
    scene.read(lambda store: len(store.scope("conversation/c").at(5)["log"]), 4)
    scene.close()


def forks(scene: Scene) -> None:
    scene.write("fork-a", lambda store: store.conversation("c").fork("fork-a", at=3))
    scene.write("turn-x", lambda store: store.conversation("f").checkpoint("turn-x"))
    scene.read(lambda store: bool(store.conversation("f").restore(3)), True)
    scene.write("ended", lambda store: store.workflow("ended").append("x", "ended"))
    scene.close()


def follow(scene: Scene) -> None:
    scene.read(
        lambda store: len(list(store.follow(as_events=True, after=START, timeout_s=0))) > 10, True
    )
    scene.read(lambda store: len(list(store.follow("team/red", after=0, timeout_s=0))), 3)
    scene.write("followed", lambda store: store.team("new").append("x", "followed"))
    scene.read(lambda store: len(list(store.follow("team/red", after=1, timeout_s=0))), 1)
    scene.close()


def leases(scene: Scene) -> None:
    def work(store: Store) -> None:
        with store.commit(lease=store.workers.lease("l", ttl_s=100)) as tx:
            tx.scope(store.team("new")).append("x", "leased")

    def give_back(store: Store) -> None:
        lease = store.workers.lease("l")
        store.workers.renew(lease)
        store.workers.release(lease)

    scene.write("leased", work)
    scene.read(give_back)
    scene.close()


def claims(scene: Scene) -> None:
    def work(store: Store) -> list[str]:
        found = store.workers.claim("todo")
        for mark in found:
            store._log._backend.marks.release("todo", mark.key, store.workers.own)
        return [mark.key for mark in found]

    scene.read(work)
    scene.read(lambda store: [mark.key for mark in store.workers.marks()], ["one"])
    scene.close()


def check(scene: Scene) -> None:
    """A check that cannot read something says so, as an error or as a finding."""

    def work(store: Store) -> bool:
        report = store.check()
        return report.events > 10 or not report.ok

    scene.read(work, True)
    scene.read(lambda store: store.status()["kind"], scene.backend)
    scene.close()


def copying(scene: Scene) -> None:
    def work(store: Store) -> int:
        with scene.open("target") as target:
            return copy(store._log, target._log).events

    scene.read(work)
    scene.close()


def weaker(scene: Scene) -> None:
    """Lines that no ring holds, and then a commit that must be durable on top of them."""
    for n in range(2):
        scene.write(
            f"weak {n}",
            lambda store, n=n: store.team("new").append("x", f"weak {n}"),
        )
    scene.close()
    scene.write("full", lambda store: store.team("new").append("x", "full"))
    scene.close()


def two_handles(scene: Scene) -> None:
    """What one handle wrote, another one reads and goes on from."""
    scene.write("one", lambda store: store.team("new").append("x", "one"))

    def work(_: Store) -> None:
        with scene.open() as other:
            other.team("new").append("x", "second")

    scene.write("second", work)
    scene.write("third", lambda store: store.team("new").append("x", "third"))
    scene.close()


SCENES: dict[str, Callable[[Scene], None]] = {
    "create": create,
    "open": open_and_close,
    "recover": small_commits,
    "small": small_commits,
    "large": large_commit,
    "several": several_streams,
    "ring": around_the_ring,
    "blob": blob,
    "old": old_states,
    "read-only": read_only,
    "forks": forks,
    "follow": follow,
    "leases": leases,
    "claims": claims,
    "check": check,
    "copy": copying,
    "weaker": weaker,
    "handles": two_handles,
}
