"""Credentials for a server, taken from a URL and an environment variable, and never shown.

A credential goes into the request and nowhere else. But a reply may contain it again: a gateway may
echo headers, or a proxy may show the request. So answers are searched for it, in plain form and in
the encodings that echoes use (`is_told_in`).
"""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from holdfast.errors import UsageError
from holdfast.http_request import server_of

PLAIN_MIN = 4
"""The least length of a credential to search for; shorter ones occur in any text."""
ENCODED_MIN = 8
"""The least length of a credential to search for in other encodings."""
_SECRET_NAME = re.compile(
    r"(?<![a-z])(?:api|access|auth|client|user|id)?(?:key|token|secret|password|passwd|pwd|sig|"
    r"signature|auth|authorization|credentials?|code|jwt)(?![a-z])",
    re.IGNORECASE,
)
"""Names of URL parameters whose values are credentials."""
_STAND_INS = frozenset(
    [
        "empty",
        "none",
        "null",
        "true",
        "false",
        "dummy",
        "unused",
        "placeholder",
        "ollama",
        "lm-studio",
        "no-key",
        "not-needed",
        "sk-no-key-required",
    ]
)
"""Placeholders for servers that accept any key: not credentials, and common in answers."""
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")
_ESCAPE = re.compile(r"\\+(?:u00|x)([0-9a-fA-F]{2})")
_REACHABLE = "%/?:@!$&'()*+,;=-._~"


class Endpoint:
    """The address of a server: the part that may be shown, the full URL, and the credentials."""

    def __init__(self, url: str, path: str) -> None:
        """Takes the URL of a server and a path below it; a UsageError does not show the URL."""
        parts = _parts(url)
        self.shown = server_of(parts)
        below = quote(f"{parts.path.rstrip('/')}{path}", safe=_REACHABLE)
        query = f"?{quote(parts.query, safe=_REACHABLE)}" if parts.query else ""
        self.url = f"{self.shown}{below}{query}"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._basic = f"{user}:{password}" if user or password else ""
        # A user's name is no secret, unless the URL has no password beside it.
        self._told = [self._basic, password or user]
        for name, value in parse_qsl(parts.query):
            if _SECRET_NAME.search(name):
                self._told.append(value)

    def __repr__(self) -> str:
        return f"<the server {self.shown}>"

    def authorization(self, key: str) -> str:
        """Returns the Authorization header, from the URL or else from a key; "" for none."""
        if self._basic:
            return f"Basic {b64encode(self._basic.encode()).decode()}"
        return f"Bearer {key}" if key else ""

    def is_told_in(self, text: str, key: str) -> bool:
        """Returns whether a text contains a credential that the server was sent."""
        return any(_holds(text, one) for one in (*self._told, key))


def sendable(secret: str) -> str | None:
    """Returns a key without surrounding space; None if a header cannot hold it.

    A header holds only printable ASCII in one line. A key that was read from a file often has a
    line end, which is not part of it.
    """
    found = secret.strip()
    return found if not found or _HEADER_TEXT.fullmatch(found) else None


def shown_url(url: str) -> str:
    """Returns a URL for people, with an ellipsis in place of anything that may be a credential."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    user = "…@" if "@" in parts.netloc else ""
    server = server_of(parts).removeprefix(f"{parts.scheme}://")
    query = "?…" if parts.query else ""
    return f"{parts.scheme}://{user}{server}{parts.path}{query}"


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
        if "@" not in parts.netloc and ":" in parts.netloc and "@" in url:
            # A password with a slash in it: its beginning would be taken for the port.
            raise ValueError
    except ValueError:
        parts = None
    # Raised outside of the handler, because the library's error shows the URL with the password,
    # and would be the context of this one.
    if parts is None or re.search(r"[\x00-\x20\x7f]", url):
        raise UsageError(
            "a chat server has a URL of http or https, with a host and without blanks; what was "
            "found is not shown, as it may hold a password",
            hint="write what is special in a user or a password as in a URL: %2F for a slash",
        )
    return parts


def _holds(text: str, secret: str) -> bool:
    if len(secret) < PLAIN_MIN or secret.casefold() in _STAND_INS:
        return False
    if secret in text:
        return True
    if len(secret) < ENCODED_MIN:
        return False
    if secret.casefold() in text.casefold():
        return True
    if any(secret in decoded for decoded in _decoded(text)):
        return True
    data = secret.encode()
    if data.hex() in text.lower():
        return True
    return any(piece in text for piece in _in_base64(data))


def _decoded(text: str) -> Iterator[str]:
    """Yields a text with the escapes of URLs, of markup and of JSON decoded."""
    if "%" in text or "+" in text:
        yield unquote(text)
        yield unquote(text.replace("+", " "))
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        yield _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).replace("\\", "")


def _in_base64(data: bytes) -> Iterator[str]:
    """Yields the parts that base64 of any text around some bytes has in common.

    Base64 encodes groups of three bytes, so there is one form for each of three offsets.
    """
    for before in range(3):
        # Characters at both ends also encode bits of the neighbours, so they are left out.
        whole = b64encode(bytes(before) + data).decode().rstrip("=")
        size = (before + len(data)) * 8 // 6
        piece = whole[(0, 2, 3)[before] : size]
        yield piece
        yield piece.replace("+", "-").replace("/", "_")
