"""What a server is, and what its answer is worth: its version, its role, its persistence.

`appendfsync always` syncs the append-only file before any answer goes out. With `everysec` or `no`
a power cut takes what was acknowledged since the last sync, about a second, unless each write is
followed by WAITAOF, which servers from 7.2 up have. `no-appendfsync-on-rewrite yes` suspends the
syncs while the file is rewritten, `always` or not. A policy that evicts keys without an expiry
deletes events at will when memory runs short.

All of this is read anew on every connection: a server may come back with other settings.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.backends.protocol import Durability
from holdfast.backends.redis.place import Place
from holdfast.errors import UnavailableError, UsageError

VERSION_MIN = (6, 2)
_WAITAOF_FROM = (7, 2)
QUESTIONS = (
    ("INFO",),
    ("CONFIG", "GET", "append*"),
    ("CONFIG", "GET", "no-appendfsync-on-rewrite"),
)


class Server(Struct, frozen=True):
    """What a server said of itself when a connection was made."""

    name: str  # redis or valkey
    version: str
    run_id: str  # of this server process: another one may have lost what this one acknowledged
    role: str
    master: str
    replicas: int
    is_cluster: bool
    appendonly: bool
    appendfsync: str | None  # None: the server does not tell
    syncs_on_rewrite: bool | None
    has_waitaof: bool
    maxmemory: int
    maxmemory_policy: str
    dataset_bytes: int

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives without a WAITAOF behind it."""
        if not self.appendonly:
            return "none"
        return "full" if self.appendfsync == "always" and self.syncs_on_rewrite else "process"

    def reports(self) -> list[str]:
        """Returns what an operator should know about its settings."""
        found: list[str] = []
        if not self.appendonly:
            found.append("appendonly is no: a restart of the server takes what it has not saved")
        elif self.appendfsync is None:
            found.append(
                "CONFIG is forbidden: whether the server syncs before it answers is hidden"
            )
        elif self.appendfsync != "always":
            found.append(
                f"appendfsync is {self.appendfsync}: a power cut takes about the last second"
                " of what was not waited for"
            )
        if self.appendonly and self.syncs_on_rewrite is False:
            found.append("no-appendfsync-on-rewrite is yes: no syncs while the file is rewritten")
        if self.evicts:
            found.append(f"maxmemory-policy is {self.maxmemory_policy}: events can be evicted")
        if self.replicas:
            found.append(
                "replication is asynchronous: a failover can take the newest commits; "
                "a handle that had them acknowledged raises LostCommitsError"
            )
        return found

    @property
    def evicts(self) -> bool:
        return self.maxmemory > 0 and self.maxmemory_policy.startswith("allkeys")

    def waits(self, durability: Durability) -> bool:
        """Returns whether each write is followed by WAITAOF."""
        return durability == "full" and self.durability != "full"

    def check(self, place: Place, durability: Durability) -> None:
        """Raises an error with the setting to change if the durability cannot be had here."""
        where = place.shown
        if _numbers(self.version) < VERSION_MIN:
            raise UnavailableError(
                f'"{where}" is Redis {self.version}, expected 6.2 or later',
                hint="upgrade the server",
            )
        if durability == "none":
            return
        if self.evicts:
            raise UsageError(
                f'"{where}" evicts keys when memory is short '
                f"(maxmemory-policy {self.maxmemory_policy}): events would go",
                hint="CONFIG SET maxmemory-policy noeviction",
            )
        if not self.appendonly:
            raise UsageError(
                f'durability "{durability}" was asked of "{where}", whose appendonly is no',
                hint="CONFIG SET appendonly yes, and the same in redis.conf; or open with "
                'durability="none"',
            )
        if self.waits(durability) and not self.has_waitaof:
            raise UsageError(
                f'durability "full" was asked of "{where}", {self._shortcoming()}',
                hint=f'{self._remedy()}, or open with durability="process"',
            )

    def _shortcoming(self) -> str:
        if self.appendfsync is None:
            return "which hides its settings (CONFIG is forbidden)"
        if self.appendfsync != "always":
            return f"whose appendfsync is {self.appendfsync}"
        return "whose no-appendfsync-on-rewrite is yes"

    def _remedy(self) -> str:
        if self.appendfsync is None:
            return "allow CONFIG GET to this user"
        if self.appendfsync != "always":
            return "CONFIG SET appendfsync always, and the same in redis.conf"
        return "CONFIG SET no-appendfsync-on-rewrite no, and the same in redis.conf"


def server_of(info: bytes, append: list[bytes] | None, rewrite: list[bytes] | None) -> Server:
    """Returns what the answers to QUESTIONS say; None for those that were refused."""
    facts = dict(
        line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line
    )
    settings = {**_pairs(append), **_pairs(rewrite)}
    version = facts.get("redis_version", "0")
    is_valkey = "valkey_version" in facts
    unsynced = settings.get("no-appendfsync-on-rewrite")
    return Server(
        name="valkey" if is_valkey else "redis",
        version=facts["valkey_version"] if is_valkey else version,
        run_id=facts.get("run_id", ""),
        role=facts.get("role", ""),
        master=f"{facts.get('master_host', '')}:{facts.get('master_port', '')}",
        replicas=int(facts.get("connected_slaves", "0")),
        is_cluster=facts.get("cluster_enabled") == "1",
        appendonly=facts.get("aof_enabled") == "1",
        appendfsync=settings.get("appendfsync"),
        syncs_on_rewrite=None if unsynced is None else unsynced == "no",
        has_waitaof=_numbers(version) >= _WAITAOF_FROM,
        maxmemory=int(facts.get("maxmemory", "0")),
        maxmemory_policy=facts.get("maxmemory_policy", ""),
        dataset_bytes=int(facts.get("used_memory_dataset", "0")),
    )


def _pairs(answer: list[bytes] | None) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in answer or ()]
    return dict(zip(words[::2], words[1::2], strict=True))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
