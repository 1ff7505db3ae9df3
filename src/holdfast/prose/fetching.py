"""Programs from elsewhere: fetched by their URL, and only when the caller asks for it.

What was fetched is stored with the run, so that `resume` fetches nothing. A program that was
fetched is code of somebody else: it is looked at (checked) like any other, it uses only what stands
beside it at its own server, never a file of this machine.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from holdfast.errors import NotFoundError, UnavailableError, UsageError

BYTES_MAX = 1 << 20
TIMEOUT_S = 30.0
_NEAR = frozenset(("localhost", "127.0.0.1", "::1"))
"""Hosts that may be asked without TLS: nobody stands in between."""


def is_url(name: str) -> bool:
    """Says whether `use` names a program that would have to be fetched."""
    return name.startswith(("https://", "http://"))


def beside(url: str, name: str) -> str:
    """Returns the URL of a program that one at another URL uses; UsageError for another server."""
    found = urljoin(url, name)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise UsageError(f'{url} uses "{name}", which is not at the same server')
    return found


def fetch(url: str) -> bytes:
    """Returns the program at a URL."""
    check_url(url)
    request = Request(url, headers={"Accept": "text/plain, */*", "User-Agent": "holdfast"})
    try:
        with build_opener(_SameServer).open(request, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read(BYTES_MAX + 1)
    except HTTPError as error:
        kind = NotFoundError if error.code in (404, 410) else UnavailableError
        raise kind(f"the program {url} cannot be fetched: the server says {error.code}") from error
    except URLError as error:
        raise UnavailableError(f"the program {url} cannot be fetched: {_said(error)}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise UnavailableError(f"the program {url} cannot be fetched: {_said(error)}") from error
    if len(data) > BYTES_MAX:
        raise UsageError(f"the program {url} is larger than {BYTES_MAX:,} bytes")
    return data


def check_url(url: str) -> None:
    """Raises UsageError for a URL that is not fetched: without TLS, or with a password in it."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise UsageError("a program's URL has no user name and no password in it")
    if not parts.hostname or (parts.scheme == "http" and parts.hostname not in _NEAR):
        raise UsageError(f"a program is fetched by https, found {url}")


def _said(error: BaseException) -> str:
    reason: Any = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)


class _SameServer(HTTPRedirectHandler):
    """Follows redirects at the same server only: who was asked for is who is believed."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise UsageError(f"{req.full_url} leads to another server: {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
