"""Recommends a backend for given requirements, with reasons. Pure functions; the rules are data.

The matrix has nine requirements, and what each backend does about them. The first requirement that
a backend cannot meet rules it out. Of the others, the simplest is recommended (files, then SQLite,
then Redis, then PostgreSQL), so a server is never recommended where none is needed. If no single
backend meets everything, two are mixed by level.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict, fields

from holdfast.errors import UsageError, show_value

FILES, SQLITE, REDIS, POSTGRESQL, MEMORY = "files", "sqlite", "redis", "postgresql", "memory"
SIMPLEST_FIRST = (FILES, SQLITE, REDIS, POSTGRESQL)
URLS = {
    FILES: ".holdfast",
    SQLITE: "sqlite:state.db",
    REDIS: "redis://HOST:6379/0",
    POSTGRESQL: "postgresql://HOST/DATABASE",
    MEMORY: "memory:",
}
COMMITS_PER_SECOND_MAX = 100_000_000


class Needs(Struct, frozen=True, kw_only=True):
    """What an application needs of its store. The defaults are one program on one machine."""

    survive: bool = True  # what was acknowledged must survive a crash and a power loss
    machines: int = 1  # on how many machines processes write
    writers: int = 1  # how many processes write at the same time
    commits_per_second: int = 0  # at the busiest time; 0: few
    readable: bool = False  # a person reads the files without tools
    diffs: bool = False  # the state is kept in git, and its changes are reviewed there
    queries: bool = False  # other programs ask it with SQL
    schema: bool = False  # the database itself enforces a schema
    embeddings: bool = False  # vectors are kept and searched beside the state
    expiry: bool = False  # conversations end by themselves, and their memory is freed
    no_server: bool = False  # nothing may have to be deployed or operated
    has: tuple[str, ...] = ()  # servers that are operated already: "redis", "postgresql"


class Rule(Struct, frozen=True):
    """One row of the matrix: a requirement, and what each backend does about it.

    A backend in `met` meets it, one in `partly` meets it at a price, any other one does not.
    """

    requirement: str
    question: str
    met: Mapping[str, str]
    partly: Mapping[str, str] = {}


MATRIX: dict[str, Rule] = {
    "no_server": Rule(
        "zero deployment",
        "May nothing have to be deployed or operated?",
        {FILES: "a folder", SQLITE: "one file", MEMORY: "nothing at all"},
    ),
    "diffs": Rule(
        "version-controlled diffs",
        "Is the state kept in git, and are its changes reviewed there?",
        {FILES: "one event a line, in text files that only grow"},
    ),
    "readable": Rule(
        "human-readable without tools",
        "Must a person be able to read the stored files without tools?",
        {FILES: "JSON lines"},
        {REDIS: "redis-cli shows events verbatim, but there is no file to open"},
    ),
    "queries": Rule(
        "SQL queries",
        "Do other programs ask it with SQL?",
        {SQLITE: "the sqlite3 shell reads it", POSTGRESQL: "psql reads it, payloads verbatim"},
    ),
    "writers": Rule(
        "concurrent processes",
        "How many processes write at the same time?",
        {
            FILES: "one lock per commit (flock), one host",
            SQLITE: "WAL: readers and the writer do not wait for each other, one host",
            REDIS: "one server-side script per commit",
            POSTGRESQL: "MVCC, group commit over the wire",
        },
    ),
    "expiry": Rule(
        "TTL, expiry by itself",
        "Do conversations end by themselves, so that their memory is freed?",
        {REDIS: "the server frees a scope when it expires"},
        {POSTGRESQL: "an expired scope is refused; housekeeping removes its rows"},
    ),
    "machines": Rule(
        "distributed access",
        "On how many machines do processes write?",
        {REDIS: "over the network", POSTGRESQL: "over the network"},
    ),
    "embeddings": Rule(
        "embedding storage",
        "Are vectors kept and searched beside the state?",
        {},
        {POSTGRESQL: "in tables of your own in the same database, with pgvector"},
    ),
    "schema": Rule(
        "schema enforcement",
        "Must the database itself enforce a schema?",
        {},
        {
            SQLITE: "for tables of your own in the same file: events are stored as JSON",
            POSTGRESQL: "for tables of your own in the same database: events are stored as JSON",
        },
    ),
}
"""Each rule by the field of `Needs` that asks for it."""

GIVES_UP: dict[str, tuple[str, ...]] = {
    FILES: ("processes on other machines", "SQL", "expiry that frees space by itself"),
    SQLITE: ("processes on other machines", "files that a person can read or diff"),
    REDIS: (
        "SQL and files to read",
        "more data than fits into memory",
        "the newest commits when a failover loses them (it is noticed and raised)",
    ),
    POSTGRESQL: ("zero deployment: a server to run, back up and upgrade", "files to read or diff"),
    MEMORY: ("everything, when the process ends",),
}
MOVE_ON: dict[str, str] = {
    FILES: "to SQLite when other programs must query it; to a server with the second machine",
    SQLITE: "to PostgreSQL or Redis with the second machine",
    REDIS: "to PostgreSQL when the data outgrow memory or must be queried",
    POSTGRESQL: "to partitions, or a sharded PostgreSQL, when one server is not enough",
    MEMORY: "to files as soon as anything is worth keeping",
}
BUSY: tuple[tuple[int, str, str], ...] = (
    (
        2_000,
        FILES,
        "many commits a second: gather them in few processes, where one sync serves all",
    ),
    (2_000, SQLITE, "many commits a second: one writer at a time per file; gather them"),
    (20_000, REDIS, "one Redis server runs scripts one after the other: spread by application"),
    (20_000, POSTGRESQL, "beyond what one server syncs: spread by application or partition"),
)
"""Warnings for busy stores: the commits per second from which a backend gets which one."""


class Advice(Struct, frozen=True):
    """A recommendation."""

    backend: str  # "files", "sqlite", "redis", "postgresql", "memory" or "mixed"
    open: str  # the literal call
    stores: dict[str, str]  # level to URL; one entry "*" unless it is a mix
    reasons: tuple[str, ...]
    gives_up: tuple[str, ...]
    move_on: str
    rejected: dict[str, str]  # why not each of the others
    warnings: tuple[str, ...] = ()


def advise(needs: Needs) -> Advice:
    """Returns the simplest backend, or mix of two, that meets the needs."""
    _check(needs)
    if not needs.survive and not _asked(needs):
        return _single(needs, MEMORY, {name: "keeps more than is asked for" for name in URLS})
    rejected: dict[str, str] = {}
    for name in SIMPLEST_FIRST:
        if reason := _unmet(needs, name):
            rejected[name] = reason
    fitting = [name for name in SIMPLEST_FIRST if name not in rejected]
    if not fitting:
        return _mix(needs, rejected)
    # A server that is operated already costs nothing more, so it wins between two servers.
    owned = [name for name in fitting if name in needs.has]
    servers = all(name in (REDIS, POSTGRESQL) for name in fitting)
    chosen = owned[0] if servers and owned else _simplest(needs, fitting)
    why = "is there already" if servers and owned else "is simpler"
    for name in fitting:
        rejected.setdefault(name, f"{chosen} {why} and is enough")
    return _single(needs, chosen, rejected)


def _simplest(needs: Needs, fitting: list[str]) -> str:
    """Returns the simplest backend. Of two servers, Redis only for expiry: memory costs more."""
    if fitting == [REDIS, POSTGRESQL] and not needs.expiry:
        return POSTGRESQL
    whole = [name for name in fitting if not _drawbacks(needs, name)]
    return (whole or fitting)[0]


def _asked(needs: Needs) -> list[str]:
    """Returns the rows of the matrix that are asked for."""
    asked = [name for name in MATRIX if name not in ("machines", "writers") and _flag(needs, name)]
    asked += ["machines"] if needs.machines > 1 else []
    return asked + (["writers"] if needs.writers > 1 else [])


def _flag(needs: Needs, name: str) -> bool:
    return bool(getattr(needs, name))


def _unmet(needs: Needs, backend: str) -> str:
    """Returns the first requirement that a backend cannot meet, "" if it meets all."""
    for name in _asked(needs):
        rule = MATRIX[name]
        if backend not in rule.met and backend not in rule.partly:
            return f"does not meet: {rule.requirement}"
    return ""


def _drawbacks(needs: Needs, backend: str) -> list[str]:
    return [
        f"{MATRIX[name].requirement} only in part: {MATRIX[name].partly[backend]}"
        for name in _asked(needs)
        if backend in MATRIX[name].partly
    ]


def _reasons(needs: Needs, backend: str) -> tuple[str, ...]:
    reasons = [
        f"{MATRIX[name].requirement}: {MATRIX[name].met[backend]}"
        for name in _asked(needs)
        if backend in MATRIX[name].met
    ]
    if backend in needs.has:
        reasons.append("it is operated already")
    if not reasons:
        reasons = [
            f"no other comes nearer to {MATRIX[name].requirement}"
            for name in _asked(needs)
            if backend in MATRIX[name].partly
        ]
    if not reasons and backend == FILES:
        reasons.append("the simplest that survives a crash and a power loss; nothing more is asked")
    return tuple(reasons) or ("nothing has to survive the process",)


def _warnings(needs: Needs, backend: str) -> list[str]:
    warnings = _drawbacks(needs, backend)
    for least, name, text in BUSY:
        if name == backend and needs.commits_per_second >= least:
            warnings.append(text)
    if backend == REDIS and needs.survive:
        warnings.append("needs appendonly yes and appendfsync always, or it is refused")
    return warnings


def _single(needs: Needs, backend: str, rejected: dict[str, str]) -> Advice:
    rejected.pop(backend, None)
    rejected.pop(MEMORY, None)
    return Advice(
        backend,
        f'holdfast.open("{URLS[backend]}")',
        {"*": URLS[backend]},
        _reasons(needs, backend),
        GIVES_UP[backend],
        MOVE_ON[backend],
        rejected,
        tuple(_warnings(needs, backend)),
    )


def _mix(needs: Needs, rejected: dict[str, str]) -> Advice:
    """Returns a mix of two backends: one for conversations that expire, one for the rest.

    Only conversations need expiry. All other requirements concern lasting state, so only the other
    backend must meet them.
    """
    asked = _asked(needs)
    rest = [name for name in asked if name != "expiry"]
    keeps = [
        name for name in SIMPLEST_FIRST if all(name in _supporting(asked_for) for asked_for in rest)
    ]
    if "expiry" in asked and keeps and not needs.no_server:
        first, second = REDIS, keeps[0]
        why = f"conversations end by themselves in {REDIS}; everything else needs {second}"
        return _mixed(needs, {"conversation": first, "*": second}, why, rejected)
    raise UsageError(
        "no backend, and no mix of two, meets all of "
        + ", ".join(MATRIX[name].requirement for name in asked),
        hint="leave one of them out; a server's store can be copied into a folder for git with "
        "holdfast copy",
    )


def _supporting(requirement: str) -> set[str]:
    rule = MATRIX[requirement]
    return {*rule.met, *rule.partly}


def _mixed(needs: Needs, levels: dict[str, str], why: str, rejected: dict[str, str]) -> Advice:
    stores = {level: URLS[name] for level, name in levels.items()}
    text = ", ".join(f'"{level}": "{url}"' for level, url in stores.items())
    names = list(dict.fromkeys(levels.values()))
    return Advice(
        "mixed",
        f"holdfast.open({{{text}}})",
        stores,
        (why, *(reason for name in names for reason in _reasons(needs, name))),
        (
            "commits over scopes of both backends: they are refused",
            *(f"{name}: {given}" for name in names for given in GIVES_UP[name]),
        ),
        "; ".join(f"{name} {MOVE_ON[name]}" for name in names),
        rejected,
        tuple(warning for name in names for warning in _warnings(needs, name)),
    )


def _check(needs: object) -> None:
    if not isinstance(needs, Needs):
        raise UsageError(f"advise takes Needs, found {show_value(needs)}")
    for field in fields(needs):
        value = getattr(needs, field.name)
        if field.type is bool and not isinstance(value, bool):
            raise UsageError(f"{field.name} is True or False, found {show_value(value)}")
    for name, least in (("machines", 1), ("writers", 1), ("commits_per_second", 0)):
        value = asdict(needs)[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value <= COMMITS_PER_SECOND_MAX
        ):
            raise UsageError(f"{name} is a whole number from {least} on, found {show_value(value)}")
    if not isinstance(needs.has, tuple) or set(needs.has) - {REDIS, POSTGRESQL}:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f'has names servers that are there: "{REDIS}", "{POSTGRESQL}"; found '
            f"{show_value(needs.has)}"
        )
