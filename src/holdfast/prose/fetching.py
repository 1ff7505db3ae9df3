"""Programs from elsewhere: fetched by their URL, and only when the caller asks for it.

What was fetched is stored with the run, so that `resume` fetches nothing. A program that was
fetched is code of somebody else: it is looked at (checked) like any other, it uses only what stands
beside it at its own server, never a file of this machine. What it uses is fetched too, and may use
more: so the limits are of all that one program is made of, not of each answer.
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
"""How large one program may be."""
TOTAL_BYTES_MAX = 8 << 20
"""How much all that is fetched for one program may be, headers and redirects included."""
TOTAL_S = 60.0
"""How long all of it may take."""
_HEADERS = {"Accept": "text/plain, */*", "User-Agent": "holdfast"}
_NEAR = frozenset(("localhost", "127.0.0.1", "::1"))
"""Hosts that may be asked without TLS: nobody stands in between."""


def is_url(name: str) -> bool:
    """Says whether `use` names a program that would have to be fetched."""
    return name.startswith(("https://", "http://"))


def beside(url: str, name: str) -> str:
    """Returns the URL of a program that one at another URL uses; UsageError for another server."""
    try:
        found = urljoin(url, name)
        is_beside = urlsplit(found)[:2] == urlsplit(url)[:2]
    except ValueError as error:
        raise UsageError(f'{url} uses "{name}", which is no URL: {error}') from error
    if not is_beside:
        raise UsageError(f'{url} uses "{name}", which is not at the same server')
    return found


class Fetcher:
    """Fetches what one program is made of; its limits are on all of it together."""

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
        # Its time begins with the first program that is fetched, not when somebody may fetch.
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
    """Raises UsageError for a URL that is not fetched: without TLS, or with a password in it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"a program's URL cannot be read: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise UsageError("a program's URL has no user name and no password in it")
    if not parts.hostname or (parts.scheme == "http" and parts.hostname not in _NEAR):
        raise UsageError(f"a program is fetched by https, found {url}")
