"""T2, beside a stranger: somebody else's write transaction is left open for a minute.

PostgreSQL only. Followers read below the oldest open transaction of the server, so that nothing
appears late. One point is one store with the clients and the follower of T2, and one transaction
that is none of ours: in the same database or in another, with savepoints or without, committed at
last or rolled back. While it is open, commits go on, no follower sees anything behind it, and
`status` says how far they are held up. When it ends, everything arrives, once and in order.

A point holds it for 60 seconds; the first two, which every run of the tests does, for three.
"""

from __future__ import annotations

import time

import psycopg

from tests.torture.programme import Broken, Point, Programme
from tests.torture.servers_clients import heard
from tests.torture.servers_plants import plants_of
from tests.torture.t2_servers import Run, server

SHORT_S, LONG_S = 3.0, 60.0
SHORT_POINTS = 2
BYTES_A_LOOK = 2_000
_OTHER = "strangers"
_BASE = "SELECT base FROM holdfast.stores WHERE application = %s"


class Beside(Run):
    """A run beside a stranger."""

    def hold(self) -> None:
        """Leaves a stranger's transaction open, and looks at what goes on meanwhile."""
        hold_s = SHORT_S if self.point.number < SHORT_POINTS else LONG_S
        elsewhere = self.random.random() < 0.5
        self.await_progress(BYTES_A_LOOK)
        store = self.open()
        with psycopg.connect(self._database(elsewhere)) as stranger:
            xid = self._disturb(stranger)
            application = store._log._backend.inspect.describe()["application"]
            with psycopg.connect(self.server.url(), autocommit=True) as look:
                [base] = look.execute(_BASE, (application,)).fetchone() or (0,)
            began = time.monotonic()
            while time.monotonic() - began < hold_s:
                self.await_progress(BYTES_A_LOOK)  # commits go on
                self._look((base + xid) * 4096)
            status = store._log._backend.inspect.describe()
            if not status["lag_events"] or status["oldest_transaction_s"] < hold_s:
                raise Broken(f"followers are held up for {hold_s} s, and status says {status}")
            if not any("followers wait" in report for report in status["reports"]):
                raise Broken(f"nobody is told that followers wait: {status['reports']}")
            if self.random.random() < 0.5:
                stranger.commit()
            else:
                stranger.rollback()
        store.close()

    def _database(self, elsewhere: bool) -> str:
        if not elsewhere:
            return self.server.url()
        with psycopg.connect(self.server.url(), autocommit=True) as line:
            found = line.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_OTHER,))
            if found.fetchone() is None:
                line.execute(f"CREATE DATABASE {_OTHER}")
        return self.server.url().replace("/postgres?", f"/{_OTHER}?")

    def _disturb(self, stranger: psycopg.Connection) -> int:
        """Lets the stranger write, and returns the id of its transaction."""
        name = f"unrelated_{self.point.seed}_{self.point.number}_{time.monotonic_ns()}"
        stranger.execute(f"CREATE TABLE {name} (n int)")
        if self.random.random() < 0.5:
            stranger.execute("SAVEPOINT one")
            stranger.execute(f"INSERT INTO {name} VALUES (1)")
        [xid] = stranger.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        return xid

    def _look(self, bound: int) -> None:
        late = [one for one in heard(self.followed) if one.get("position", 0) >= bound]
        if late:
            raise Broken(f"a follower saw what is behind an open transaction: {late[0]}")


def stay(point: Point) -> int:
    """One store, one stranger."""
    run = Beside(point, "postgresql")
    run.server = server("postgresql", point.number, ())
    return run.check(1, run.hold)


PROGRAMMES = (
    Programme(
        "t2-postgresql-stranger",
        "a foreign transaction holds followers up and nobody else; nothing arrives late",
        stay,
        share=SHORT_POINTS,
        points=12,
        plants=plants_of("t2-postgresql-stranger"),
    ),
)
