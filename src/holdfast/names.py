"""Ids that sort by time, names that users choose, levels of scopes, and URLs as they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from urllib.parse import SplitResult, unquote

from msgspec import Struct

from holdfast.clock import Clock
from holdfast.errors import ExistsError, UsageError, show_value

NAME_BYTES_MAX = 512
ID_BYTES_MAX = 65_536
"""How many bytes the id of a scope may have, escapes included."""

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_BY_CHANCE = (_ALPHABET * 8).encode()
"""Maps each of the 256 bytes to a character: each character 8 times, so all are equally likely."""


def new_id(clock: Clock) -> str:
    """Returns 26 characters that sort by creation time: 48 bits of time in ms, 80 random bits."""
    ms = clock.now_us() // 1000 & (1 << 48) - 1
    when = "".join([_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)])
    return when + clock.random_bytes(16).translate(_BY_CHANCE).decode()


def short_id(clock: Clock) -> str:
    """Returns 8 random characters, enough to tell the workers of one store apart."""
    return clock.random_bytes(8).translate(_BY_CHANCE).decode()


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,24}\Z")


def worker_id(clock: Clock, actor: str | None) -> str:
    """Returns a new id for a worker, which begins with the name of its actor if that is plain.

    The random end keeps two workers of one actor apart. The name makes lists of owners readable.
    """
    chance = short_id(clock)
    return f"{actor}-{chance}" if actor is not None and _PLAIN.match(actor) else chance


def is_of_actor(worker: str, actor: str) -> bool:
    """Returns whether the id of a worker begins with this actor's name."""
    return worker[:-9] == actor and worker[-9:-8] == "-"


def check_level(level: object) -> str:
    """Returns the level, or raises UsageError: lower-case letters, digits, `_` and `-`."""
    if not isinstance(level, str) or not _LEVEL.match(level):
        raise UsageError(
            f"level {show_value(level)} is not a name: expected a lower-case letter, then at most "
            "31 letters, digits, '_' or '-'"
        )
    return str.__str__(level)


def check_name(name: object, what: str) -> str:
    """Returns a user's name for a scope, checkpoint, lease or key, or raises UsageError.

    Any text that a person can type is accepted, slashes and emoji included: a name is data, never a
    path. Control characters and lone surrogates are refused because they cannot be shown.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what} must be text, found {type(name).__name__}")
    if type(name) is not str:
        # A StrEnum is a str too. Its plain text is kept, because some encoders refuse subclasses.
        name = str.__str__(name)
    if 0 < len(name) <= NAME_BYTES_MAX and name.isascii() and name.isprintable():
        return name
    if not name:
        raise UsageError(f"{what} is empty: expected at least one character")
    bad = _CONTROL.search(name)
    if bad:
        raise UsageError(
            f"{what} {name[:40]!r} holds the character {bad.group()!r} at {bad.start()}: "
            "control characters and lone surrogates cannot be part of a name"
        )
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise UsageError(f"{what} {name[:40]!r}… takes {size} bytes: at most {NAME_BYTES_MAX} fit")
    return name


# Ids of scopes are any text. Characters that a name cannot hold are escaped, and an id that is too
# long is cut and ends with a digest.

ESCAPE = "\x10"
"""Begins the escape of a character that names cannot hold (0034).

Names cannot hold this character either, so an unescaped id never contains it.
"""
_DIGEST = ESCAPE + "#"
_DIGEST_CHARACTERS = len(_DIGEST) + 64
_HEAD_BYTES = NAME_BYTES_MAX - _DIGEST_CHARACTERS
HEAD_BYTES_MIN = _HEAD_BYTES - 5
"""The stored name has at least so many bytes of a long id; no escape is cut in half."""
_ESCAPED = re.compile(ESCAPE + "([0-9a-f]{4})")
_STORED = re.compile(
    rf"(?:{ESCAPE}[0-9a-f]{{4}}|(?!{_CONTROL.pattern}).)*(?:{_DIGEST}[0-9a-f]{{64}})?\Z"
)


def escape(id: str) -> str:
    """Returns an id, or the beginning of one, with an escape for each refused character.

    Each character is escaped separately, so a prefix of an id becomes a prefix of the escaped id.
    """
    return _CONTROL.sub(lambda found: f"{ESCAPE}{ord(found.group()):04x}", id)


def unescape(stored: str) -> str:
    """Returns the id that `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), stored)


def stored_id(id: object) -> str:
    """Returns the id of a scope in the form that stream names have, or raises UsageError.

    Nearly every id is stored unchanged. If it would be too long, escapes included, the stored id is
    its beginning and a digest of all of it; the first event of the stream then has the whole id.
    """
    if not isinstance(id, str):
        raise UsageError(f"scope id must be text, found {type(id).__name__}")
    id = str.__str__(id)  # a StrEnum is text too
    if 0 < len(id) <= NAME_BYTES_MAX and id.isascii() and id.isprintable():
        return id
    if not id:
        raise UsageError("scope id is empty: expected at least one character")
    escaped = escape(id[: ID_BYTES_MAX + 1])
    data = escaped.encode()
    if len(data) <= NAME_BYTES_MAX:
        return escaped
    if len(data) > ID_BYTES_MAX:
        raise UsageError(
            f"scope id {id[:40]!r}… is too long: at most {ID_BYTES_MAX} bytes fit, escapes included"
        )
    return f"{cut_escaped(escaped, _HEAD_BYTES)}{_DIGEST}{sha256(data).hexdigest()}"


def cut_escaped(escaped: str, size: int) -> str:
    """Returns the beginning of an escaped id: at most `size` bytes, and no half escape."""
    head = escaped.encode()[:size].decode(errors="ignore")
    at = head.rfind(ESCAPE, max(0, len(head) - 4))
    return head if at < 0 else head[:at]


def has_digest(name: str) -> bool:
    """Returns whether a stored name or id has a digest in place of the whole id."""
    return name[-_DIGEST_CHARACTERS:-64] == _DIGEST


def check_scope_name(name: object, what: str = "scope") -> str:
    """Returns the stored name for a whole name such as `team/red`, or raises UsageError.

    A whole name with an escape in it is taken for a stored one. So pass an id that comes from
    elsewhere separately from its level, where none of its characters has a meaning.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what} must be text, found {type(name).__name__}")
    if 0 < len(name) <= NAME_BYTES_MAX and name.isascii() and name.isprintable():
        return str.__str__(name)
    level, slash, id = str.__str__(name).partition("/")
    if not slash:
        return check_name(level, what)
    return f"{check_name(level, what)}/{_check_stored(id) if ESCAPE in id else stored_id(id)}"


def fits_pattern(pattern: str, name: str) -> bool:
    """Returns whether a scope's name fits a pattern, in which `*` is any characters, or none.

    No other character has a meaning, because ids may contain `?` and `[`. A pattern of one word is
    a level, and fits all its scopes.
    """
    if "/" not in pattern and "*" not in pattern:
        return name.partition("/")[0] == pattern
    return _compiled(pattern).fullmatch(name) is not None


def is_pattern(text: str) -> bool:
    """Returns whether a text is a pattern of names or a level, not the name of one scope."""
    return "*" in text or ("/" not in text and text != GLOBAL)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def check_lease_name(name: object) -> str:
    """Returns the name of a lease, which may be the name of a scope, or raises UsageError."""
    if isinstance(name, str) and ESCAPE in name:
        return check_scope_name(name, "lease")
    return check_name(name, "lease")


def _check_stored(id: str) -> str:
    """Returns an id with escapes if it is one that `stored_id` could have made."""
    is_stored = _STORED.match(id) and len(id.encode()) <= NAME_BYTES_MAX
    if not is_stored or not all(_CONTROL.match(chr(int(c, 16))) for c in _ESCAPED.findall(id)):
        raise UsageError(
            f"a whole name with the id {id[:40]!r} holds the character {ESCAPE!r}, which begins an "
            "escape there, and this is none",
            hint="give the level and the id as two arguments: then every character is only itself",
        )
    return id


GLOBAL = "global"
PROJECT = "project"
"""The level of projects. It is registered, below global, when the first project is made."""
TEAM = "team"
WORKFLOW = "workflow"
CONVERSATION = "conversation"


class Level(Struct, frozen=True):
    """A kind of scope. `keep` is whether closing one keeps its state, if no policy is stored."""

    name: str
    keep: bool = True
    below: str = ""
    """The level right above it; "" for the built-in levels."""
    is_adopted: bool = False
    """Whether it was found in the store, and not registered by this process."""


class Levels:
    """The levels that a store knows, from the widest to the narrowest."""

    def __init__(self, *, reserved: frozenset[str] = frozenset()) -> None:
        self.reserved = reserved
        """The first words of streams that only layers write; users may read them."""
        self._order = [Level(name) for name in (GLOBAL, TEAM, WORKFLOW, CONVERSATION)]

    def register(self, name: str, *, below: str, keep: bool = True) -> None:
        """Adds a level right below another one; replaces a level that was only adopted."""
        check_level(name)
        known = next((level for level in self._order if level.name == name), None)
        if known is not None and not known.is_adopted:
            raise ExistsError(f'level "{name}" is registered already')
        above = self._order[self._rank(below)]
        if known is above:
            raise UsageError(f'level "{name}" cannot be below itself')
        if known is not None:
            self._order.remove(known)
        self._order.insert(self._order.index(above) + 1, Level(name, keep, below))

    def adopt(self, name: str, *, below: str = CONVERSATION, keep: bool = True) -> None:
        """Adds a level that was found in the store, unless this process knows it already.

        If the level above it is not known, it goes below the narrowest one. The process may still
        register it later.
        """
        if not self.has(name):
            at = self._rank(below) + 1 if self.has(below) else len(self._order)
            self._order.insert(at, Level(name, keep, below, is_adopted=True))

    def has(self, name: object) -> bool:
        """Returns whether there is a level of that name."""
        return any(level.name == name for level in self._order)

    def registered(self) -> list[Level]:
        """Returns the levels that this process has registered, widest first."""
        return [level for level in self._order if level.below and not level.is_adopted]

    def names(self) -> list[str]:
        """Returns the names, widest first."""
        return [level.name for level in self._order]

    def keeps(self, name: str) -> bool:
        """Returns the level's policy for the state of a closed scope."""
        return self._order[self._rank(name)].keep

    def check_scope(
        self, level: str, id: str | None, *, is_stored: bool = False
    ) -> tuple[str, str | None]:
        """Returns the level and stored id of a valid scope, or raises UsageError."""
        level = self._order[self._rank(level)].name
        if level == GLOBAL:
            if id is not None:
                raise UsageError("there is one global scope: it takes no id")
            return level, None
        if id is None:
            raise UsageError(f"a {level} scope needs an id")
        return level, _check_stored(id) if is_stored else stored_id(id)

    def check_parent(self, name: str, scope: object) -> None:
        """Raises UsageError unless it is a scope whose level stands above that of the name."""
        parent = getattr(scope, "name", None)
        if not isinstance(parent, str):
            raise UsageError(f"a parent is a scope, found {show_value(scope)}")
        level, above = split_name(name)[0], split_name(parent)[0]
        if self._rank(above) >= self._rank(level):
            raise UsageError(
                f'scope "{parent}" cannot be the parent of "{name}": expected a level above '
                f'"{level}", which are {", ".join(self.names()[: self._rank(level)])}'
            )

    def _rank(self, name: str) -> int:
        for rank, level in enumerate(self._order):
            if level.name == name:
                return rank
        raise UsageError(
            f"there is no level {show_value(name)}: expected one of {', '.join(self.names())}",
            hint="holdfast.open(…, settings=Settings(levels={name: the one above it})) adds one",
        )


def split_name(name: str) -> tuple[str, str | None]:
    """Returns level and stored id of a scope's name: `global`, or `level/id`."""
    level, slash, id = name.partition("/")
    return level, id if slash else None


# URLs of stores: how to show one without secrets, and how to read numbers in it.

_SECRETS = ("password", "sslpassword", "ssl_password", "oauth_client_secret")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")  # two letters at least: "C:" is a drive
_PATHS = ("file", "files", "memory", "sqlite")
_SETTINGS = "host|hostaddr|port|dbname|user|passfile|service|sslmode|" + "|".join(_SECRETS)
_CONNECTION_STRING = re.compile(rf"\s*({_SETTINGS})\s*=", re.IGNORECASE)
_SECRET_PARAMETER = re.compile(rf"[?&]({'|'.join(_SECRETS)})=", re.IGNORECASE)
_SECRET_SETTING = re.compile(
    rf"\b({'|'.join(_SECRETS)})\s*=\s*('(?:[^'\\]|\\.)*'?|\S+)", re.IGNORECASE
)


def is_connection_string(text: str) -> bool:
    """Returns whether a text is a connection string of PostgreSQL (`host=h …`), not a URL."""
    return _CONNECTION_STRING.match(text) is not None


def unwrapped(text: str) -> str:
    """Returns a text without surrounding space and quotes."""
    return text.strip().strip("'\"").strip()


def without_secrets(url: str) -> str:
    """Returns a URL without secrets, even if it is malformed; a path is returned unchanged.

    If a password has a character that should have been escaped, a part of it may look like the
    host, the path or the query. So everything up to the last `@` is treated as the login, and of
    that only a plain user name is shown. This may hide more of the URL than needed, but it never
    shows a secret.
    """
    bare = unwrapped(url)
    if is_connection_string(bare):
        return _SECRET_SETTING.sub(r"\1=***", bare)
    found = SCHEME.match(bare)
    if found is None or found.group(1).lower() in _PATHS:
        return url
    # The query is cut at the first password: if an & in it was not escaped, the rest follows.
    rest = _SECRET_PARAMETER.split(bare[found.end() :], maxsplit=1)[0]
    head, _, query = rest.partition("?")
    if "@" in query and (":" in head or "@" in head):
        login, at, where = rest.rpartition("@")
        where, _, query = where.partition("?")
    else:
        login, at, where = head.rpartition("@")
    name = login.partition(":")[0]
    if not re.fullmatch(r"[\w.~-]*", name):
        name = ""
    pairs = [pair for pair in query.split("&") if "=" in pair and not _is_secret(pair)]
    shown = f"{found.group()}{name}{at if name else ''}{where}"
    return f"{shown}?{'&'.join(pairs)}" if pairs else shown


def check_login(url: str, parts: SplitResult) -> None:
    """Raises UsageError for a URL whose password would be parsed as host, path or query."""
    head = url.partition("?")[0]
    is_split = "@" in parts.path or "@" in parts.fragment
    if "://" not in url or is_split or (":" in head and "@" in parts.query and "@" not in head):
        raise UsageError(
            f'"{without_secrets(url)}" cannot be read: a password with a special character in it, '
            "or not // after the scheme",
            hint="write %40 for @, %2F for /, %3F for ?, %23 for # and %25 for % in a password",
        )


def without(secrets: Sequence[str], text: str) -> str:
    """Returns a foreign message with every occurrence of these secrets replaced."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _is_secret(pair: str) -> bool:
    return unquote(pair.partition("=")[0]).lower() in _SECRETS


def number(text: str, what: str, *, least: float, most: float) -> float:
    """Returns the number in a part of a URL, or raises UsageError."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not least <= found <= most:
        raise UsageError(f"{what} must be a number from {least} to {most}, found {text!r}")
    return found
