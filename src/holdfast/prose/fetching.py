"""Fetches programs by URL, only if the caller asks for it.

A fetched program is stored with the run, so that `resume` fetches nothing. It is somebody else's
code: it is checked like any other, and may use only programs on the same server, never a file of
this machine. Those are fetched too and may use more, so the limits are on all that one program
consists of, not on each reply.
"""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from holdfast.clock import Clock
from holdfast.errors import NotFoundError, UnavailableError, UsageError
from holdfast.http_request import (
    Budget,
    ElsewhereError,
    HttpRequest,
    Reply,
    RequestError,
    TooLargeError,
)

BYTES_MAX = 1 << 20
"""The largest size of one program."""
TOTAL_BYTES_MAX = 8 << 20
"""The largest total size fetched for one program, headers and redirects included."""
TOTAL_S = 60.0
"""The time limit for all of it."""
_HEADERS = {"Accept": "text/plain, */*", "User-Agent": "holdfast"}
_NEAR = frozenset(("localhost", "127.0.0.1", "::1"))
"""Hosts that may be asked without TLS, because nobody is in between."""


def is_url(name: str) -> bool:
    """Returns whether a name in `use` is a URL, which must be fetched."""
    return name.startswith(("https://", "http://"))


def beside(url: str, name: str) -> str:
    """Returns the URL of a program that a fetched one uses; UsageError for another server."""
    try:
        found = urljoin(url, name)
        is_beside = urlsplit(found)[:2] == urlsplit(url)[:2]
    except ValueError as error:
        raise UsageError(f'{url} uses "{name}", which is no URL: {error}') from error
    if not is_beside:
        raise UsageError(f'{url} uses "{name}", which is not at the same server')
    return found


class Fetcher:
    """Fetches the programs that one program consists of, within limits for all of them."""

    def __init__(
        self,
        *,
        timeout_s: float = TOTAL_S,
        bytes_max: int = TOTAL_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._clock = clock
        self._budget: Budget | None = None

    def __call__(self, url: str) -> bytes:
        """Returns the program at a URL."""
        check_url(url)
        # The time limit begins with the first fetch, not when this object is made.
        if self._budget is None:
            self._budget = Budget(self._timeout_s, self._bytes_max, self._clock)
        reply = self._asked(url, self._budget)
        if reply.status != 200:
            kind = NotFoundError if reply.status in (404, 410) else UnavailableError
            raise kind(f"the program {url} cannot be fetched: the server says {reply.status}")
        return reply.body

    def _asked(self, url: str, budget: Budget) -> Reply:
        try:
            return HttpRequest(url, _HEADERS, follows=True).perform(budget, BYTES_MAX)
        except ElsewhereError as error:
            raise UsageError(f"the program {url} is not fetched: {error}") from error
        except TooLargeError as error:
            raise UsageError(
                f"the program {url} is larger than {BYTES_MAX:,} bytes, or all that was fetched "
                f"for it than {self._bytes_max:,} bytes",
                hint="save it beside the program that uses it",
            ) from error
        except RequestError as error:
            raise UnavailableError(f"the program {url} cannot be fetched: {error}") from error


def check_url(url: str) -> None:
    """Raises UsageError for a URL that must not be fetched: without TLS, or with a password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"a program's URL cannot be read: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise UsageError("a program's URL has no user name and no password in it")
    if not parts.hostname or (parts.scheme == "http" and parts.hostname not in _NEAR):
        raise UsageError(f"a program is fetched by https, found {url}")
