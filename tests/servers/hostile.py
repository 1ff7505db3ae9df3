"""What a tenant that wants another's data tries with its own login, past the library.

`leaks` tries everything and returns what worked: nothing, or the backend does not keep tenants
apart. It is run against what is right and against planted faults, which it must find.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CANARY = "canary-of-the-other-tenant"
SCHEMA = "holdfast_tenants"
TABLES = ("stores", "streams", "events", "silent", "leases", "marks", "objects", "tenants")
_LEAKY = """CREATE OR REPLACE FUNCTION pg_temp.tell(found text) RETURNS boolean
 COST 0.0000001 LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%', found; RETURN true; END $$"""


def sql_leaks(line: Any, other: str) -> list[str]:
    """Returns what a role of PostgreSQL can see or change of another tenant, by its id."""
    return [what for what, is_open in _sql_attempts(line, other) if is_open]


def _sql_attempts(line: Any, other: str) -> Iterator[tuple[str, bool]]:
    for table in TABLES:
        of_other = f"FROM {SCHEMA}.{table} WHERE application = %s"
        yield f"rows of {table}", _rows(line, f"SELECT * {of_other}", other) != []
        yield f"count of {table}", _rows(line, f"SELECT count(*) {of_other}", other) != [(0,)]
        locked = _rows(line, f"SELECT 1 {of_other} FOR UPDATE", other)
        yield f"row locks of {table}", bool(locked)
        yield f"deleting from {table}", _changes(line, f"DELETE {of_other}", other)
        moved = f"UPDATE {SCHEMA}.{table} SET application = %s"
        yield f"moving rows of {table} over", _changes(line, moved, other)
        lock = f"LOCK TABLE {SCHEMA}.{table} IN SHARE MODE"
        yield f"locking {table}", _works(line, lock)
        for change in ("DISABLE ROW LEVEL SECURITY", "NO FORCE ROW LEVEL SECURITY"):
            yield f"{change} of {table}", _works(line, f"ALTER TABLE {SCHEMA}.{table} {change}")
        yield f"a policy on {table}", _works(line, f"CREATE POLICY mine ON {SCHEMA}.{table}")
        yield f"truncating {table}", _works(line, f"TRUNCATE {SCHEMA}.{table}")
    yield from _sql_reads(line, other)
    yield from _sql_writes(line, other)
    for become in (f'SET ROLE "{other}"', f'SET SESSION AUTHORIZATION "{other}"'):
        yield become, _works(line, become)
    yield "pg_locks", _works(line, "SELECT * FROM pg_locks")


def _sql_reads(line: Any, other: str) -> Iterator[tuple[str, bool]]:
    for name in ("read", "read_with_meta"):
        call = f"SELECT * FROM {SCHEMA}.{name}(%s, 'team/theirs', 0, 99, 99)"
        yield name, _rows(line, call, other) != []
    yield "newest", _rows(line, f"SELECT {SCHEMA}.newest(%s)", other) not in ([(0,)], [(None,)])
    yield "horizon", _rows(line, f"SELECT {SCHEMA}.horizon(%s)", other) != [(None,)]
    yield "head", _rows(line, f"SELECT {SCHEMA}.head(%s, 'team/theirs')", other) != [(None,)]
    heads = f"SELECT revision FROM {SCHEMA}.heads(%s, '{{team/theirs}}')"
    yield "heads", _rows(line, heads, other) != [(None,)]
    yield "history", CANARY in str(_rows(line, f"SELECT * FROM {SCHEMA}.history"))
    yield "row_security off", _with_row_security_off(line)
    yield "a function that tells its arguments", _notices(line)
    statistics = f"SELECT * FROM pg_stats WHERE schemaname = '{SCHEMA}' AND tablename = 'events'"
    yield "statistics", _rows(line, statistics) != []
    running = "SELECT query FROM pg_stat_activity WHERE usename = %s"
    told = [text for (text,) in _rows(line, running, other)]
    yield "statements of others", any(text != "<insufficient privilege>" for text in told)
    copied = b""
    with line.cursor().copy(f"COPY {SCHEMA}.events TO STDOUT") as rows:
        copied = b"".join(bytes(row) for row in rows)
    yield "COPY", CANARY.encode() in copied
    names = _rows(line, f"SELECT name FROM {SCHEMA}.tenants")
    yield "names of tenants", len(names) > 1


def _sql_writes(line: Any, other: str) -> Iterator[tuple[str, bool]]:
    event = f"INSERT INTO {SCHEMA}.events VALUES (%s, 'team/theirs', 99, 1, 0, 1, 't', 'a', NULL, \
NULL, NULL, 0, '', 'x')"
    yield "writing an event", _changes(line, event, other)
    yield (
        "changing events",
        _changes(line, f"UPDATE {SCHEMA}.events SET payload = 'x' WHERE application = %s", other),
    )
    lease = f"INSERT INTO {SCHEMA}.leases VALUES (%s, 'theirs', 'me', 1, 1)"
    more = " ON CONFLICT (application, name) DO UPDATE SET owner = 'me'"
    yield "taking a lease", _changes(line, lease, other)
    yield "taking a lease that is held", _changes(line, lease + more, other)
    acquired = f"SELECT * FROM {SCHEMA}.acquire(%s, 1, 'theirs', 'me', 1000000)"
    yield "acquire", _rows(line, acquired, other) != []
    yield "a new lease", _rows(line, acquired.replace("theirs", "other"), other) != []
    mark = f"""SELECT {SCHEMA}.mark(%s, '[["theirs", "k"]]')"""
    yield "clearing a mark", _works(line, mark, other)
    for call in ("delete_object(%s, 'blob', 'x')", "forget_leases(%s, 10)"):
        yield call, _works(line, f"SELECT {SCHEMA}.{call}", other)
    one = f"""SELECT {SCHEMA}.commit_one(%s, true, '{{}}', '{{}}', 'team/theirs', 1, NULL,
 1, 't', 'a', NULL, NULL, NULL, 0, '', 'x', NULL)"""
    record = '[[[0, "team/theirs", 2, 0, 1, "t", "a", null, null, null, 0, "", 1]]]'
    for whole in (True, False):
        commit = f"""SELECT {SCHEMA}.commit(%s, true, '{{}}', '{{}}',
 '[[["team/theirs", 1, null, -1, null, 1]]]', '{record}', 'x', {whole}, false, NULL, 1, NULL)"""
        yield f"commit, {whole}", _commits(line, commit, other)
    yield "commit_one", _commits(line, one, other)
    tenant = f"UPDATE {SCHEMA}.tenants SET settings = '{{}}' WHERE application <> %s"
    yield "settings", _changes(line, tenant, other)
    yield "a schema", _works(line, "CREATE SCHEMA of_mine")


def _rows(line: Any, statement: str, *values: Any) -> list[Any]:
    import psycopg

    try:
        return line.execute(statement, values or None).fetchall()
    except psycopg.errors.InsufficientPrivilege as error:
        return _nothing(statement, error)


def _nothing(statement: str, error: Exception) -> list[Any]:
    """Returns what stands for a refusal, in the form in which each question answers nothing."""
    if "count(*)" in statement:
        return [(0,)]
    return [(None,)] if " holdfast_tenants.h" in f" {statement}" else []


def _works(line: Any, statement: str, *values: Any) -> bool:
    import psycopg

    try:
        with line.transaction(force_rollback=True):
            line.execute(statement, values or None)
    except psycopg.Error:
        return False
    return True


def _commits(line: Any, statement: str, other: str) -> bool:
    """Says whether a commit to another tenant's stream tells anything but that there is none."""
    refused = "conflict" in str(_rows(line, statement, other))
    return not refused and _works(line, statement, other)


def _changes(line: Any, statement: str, *values: Any) -> bool:
    import psycopg

    try:
        with line.transaction(force_rollback=True):
            return line.execute(statement, values or None).rowcount > 0
    except psycopg.Error:
        return False


def _with_row_security_off(line: Any) -> bool:
    line.execute("SET row_security = off")
    try:
        return _works(line, f"SELECT * FROM {SCHEMA}.events")
    finally:
        line.execute("SET row_security = on")


def _notices(line: Any) -> bool:
    told: list[str] = []

    def listen(found: Any) -> None:
        told.append(found.message_primary or "")

    line.add_notice_handler(listen)
    line.execute(_LEAKY)
    for table, column in (("events", "payload"), ("tenants", "name"), ("objects", "name")):
        line.execute(f"SELECT 1 FROM {SCHEMA}.{table} WHERE pg_temp.tell({column}::text)")
    line.remove_notice_handler(listen)
    return any(CANARY in one for one in told)


def redis_leaks(client: Any, other: str) -> list[str]:
    """Returns which commands a user of Redis gets an answer to about another tenant, by its id."""
    root = f"holdfast:{{{other}}}"
    attempts: list[tuple[Any, ...]] = [
        *((verb, *words) for verb, *words in _REDIS_READS if "{}" not in str(words)),
        *(
            tuple(str(word).replace("{}", root) for word in one)
            for one in (*_REDIS_READS, *_REDIS_WRITES)
            if "{}" in str(one)
        ),
    ]
    return [" ".join(map(str, words))[:80] for words in attempts if _answers(client, words)]


_REDIS_READS: tuple[tuple[Any, ...], ...] = (
    ("HGETALL", "{}"),
    ("EXISTS", "{}"),
    ("TYPE", "{}:heads"),
    ("XLEN", "{}:log"),
    ("XRANGE", "{}:events:team/theirs", "-", "+"),
    ("XREAD", "STREAMS", "{}:log", "0"),
    ("HLEN", "{}:heads"),
    ("ZCARD", "{}:streams"),
    ("GET", "{}:tenant"),
    ("HGETALL", "holdfast:tenants"),
    ("HGETALL", "holdfast:tenants:removed"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("CONFIG", "GET", "requirepass"),
    ("ACL", "LIST"),
    ("ACL", "USERS"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("SUBSCRIBE", "x"),
    ("PSUBSCRIBE", "__key*"),
    ("PUBLISH", "x", "y"),
    ("SLOWLOG", "GET"),
    ("OBJECT", "ENCODING", "{}"),
    ("DUMP", "{}"),
    ("MEMORY", "USAGE", "{}"),
    ("EVAL", "return redis.call('HGETALL', KEYS[1])", 1, "{}"),
    ("EVAL", "return redis.call('HGETALL', '{}')", 0),
    ("EVAL", "return redis.call('KEYS', '*')", 0),
    ("SORT", "{}:streams", "ALPHA"),
)
_REDIS_WRITES: tuple[tuple[Any, ...], ...] = (
    ("SET", "{}:x", "1"),
    ("HSET", "{}:leases", "theirs", "1"),
    ("XADD", "{}:events:team/theirs", "*", "a", "b"),
    ("DEL", "{}"),
    ("UNLINK", "{}:log"),
    ("RENAME", "{}:log", "{}:gone"),
    ("PEXPIRE", "{}", "1"),
    ("FLUSHALL", "{}"),
    ("WATCH", "{}"),
    ("BLPOP", "{}:q", "0.01"),
    ("EVAL", "return redis.call('DEL', '{}')", 0),
)


def _answers(client: Any, words: tuple[Any, ...]) -> bool:
    """Tells whether a user is let: any answer but that it has no right is one too many.

    What writes is a question of rights too, and is asked of a copy that nobody needs afterwards.
    """
    import redis
    from redis.exceptions import NoPermissionError

    try:
        client.execute_command(*words)
    except NoPermissionError:
        return False
    except redis.ResponseError as error:
        said = str(error).lower()
        return not any(
            one in said for one in ("permission", "acl fail", "can't access", "can't run")
        )
    return True
