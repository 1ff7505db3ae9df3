"""One HTTP request with limits on all of it, whose errors never show what was sent.

A timeout on each read does not stop a server that sends a byte now and then, and a limit on the
body does not limit headers or redirects. So time and bytes are counted at the socket, for all that
a `Budget` covers: connecting, TLS, status lines, headers, redirects and bodies, of one request or
of several. (The time of looking up a name is up to the system.)

A request may hold a credential, in a header or in the URL, and a server may send it back: in a
reason, a header, a redirect, or as something that is not HTTP. Exceptions of libraries show what
they found there. So failures are described in words of this module and are not chained to the
library's, a reply has a status and a body and nothing else, and the repr of a request shows only
its server.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import (
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    build_opener,
)
from urllib.request import Request as LibraryRequest

from msgspec import Struct

from holdfast.clock import Clock, SystemClock


class RequestError(Exception):
    """A request was not answered. The message never shows anything that was sent.

    `was_sent` is False if no connection was made, so nothing was sent.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class TooLargeError(RequestError):
    """The answer is larger than the caller accepts."""


class ElsewhereError(RequestError):
    """The server redirects to another server."""


class Reply(Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes


class Budget:
    """How long one or several requests may take in all, and how many bytes they may read."""

    def __init__(self, seconds: float, bytes_max: int, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self.bytes_max = bytes_max
        self._clock = clock or SystemClock()
        self._end_us = self._clock.boot_us() + int(seconds * 1_000_000)
        self._bytes_left = bytes_max

    def left_s(self) -> float:
        """Returns how much time is left; raises TimeoutError if there is none."""
        left_us = self._end_us - self._clock.boot_us()
        if left_us <= 0:
            raise TimeoutError
        return left_us / 1_000_000

    def spend(self, size: int) -> None:
        """Counts bytes that were read; raises if they are too many."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _TooManyBytesError


class _TooManyBytesError(Exception):
    """A budget has no bytes left."""


class HttpRequest:
    """A request to a URL, which has no user name or password in it."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        data: bytes | None = None,
        *,
        follows: bool = False,
    ) -> None:
        """With `follows`, redirects are followed at the same server, and refused elsewhere."""
        self._url = url
        self._headers = dict(headers)
        self._data = data
        self._follows = follows

    def __repr__(self) -> str:
        return f"<a request to {server_of(urlsplit(self._url))}>"

    def perform(self, budget: Budget, bytes_max: int) -> Reply:
        """Returns the answer, of at most so many bytes, or raises RequestError."""
        found = self._perform(budget, bytes_max)
        if isinstance(found, Reply):
            return found
        # Raised here and not in the `except` block, where the library's exception would become its
        # context and be shown with it.
        raise found

    def _perform(self, budget: Budget, bytes_max: int) -> Reply | RequestError:
        exchange = _Exchange(budget)
        opener = build_opener(
            _Plain(exchange), _Secure(exchange), _Statuses(self._follows), _SameServer()
        )
        opener.addheaders = []
        try:
            asked = LibraryRequest(self._url, self._data, self._headers)
            with opener.open(asked, timeout=budget.left_s()) as answer:
                return exchange.read(answer, bytes_max)
        except Exception as error:
            return exchange.failure_of(error)
        finally:
            exchange.close()


def server_of(parts: SplitResult) -> str:
    """Returns what may be shown of a URL: its scheme and its host."""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}"


class _Exchange:
    """The connections of one request."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.is_connected = False
        self._open: list[_BoundedSocket] = []

    def bounded(self, sock: socket.socket) -> Any:
        """Wraps a connected socket; `close` closes it with all others."""
        self.is_connected = True
        found = _BoundedSocket(sock, self.budget)
        self._open.append(found)
        return found

    def close(self) -> None:
        """Closes what is still open: after an error the library leaves answers open."""
        for one in self._open:
            one.end()

    def connect(self, address: tuple[str, int], _timeout: Any, _source: Any) -> socket.socket:
        """Connects to the first address of a name that answers; all share the time left."""
        failed: OSError = socket.gaierror()
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
            found = socket.socket(family, kind, protocol)
            try:
                found.settimeout(self.budget.left_s())
                found.connect(place)
                return found
            except OSError as error:
                failed = error
                found.close()
        raise failed

    def read(self, answer: HTTPResponse, bytes_max: int) -> Reply:
        length = answer.length
        if length is not None and length > bytes_max:
            raise _TooManyBytesError
        body = answer.read(bytes_max + 1)
        if len(body) > bytes_max:
            raise _TooManyBytesError
        if answer.length:  # bytes are missing: with a given size the library does not raise
            raise _CutError
        return Reply(answer.status, body)

    def failure_of(self, error: Exception) -> RequestError:
        """Returns the error to raise, with no text that may come from the server."""
        if isinstance(error, URLError) and isinstance(error.reason, Exception):
            error = error.reason
        if isinstance(error, RequestError):
            return error
        if isinstance(error, _TooManyBytesError):
            return TooLargeError("its answer is too large", was_sent=True)
        return RequestError(self._reason_of(error), was_sent=self.is_connected)

    def _reason_of(self, error: Exception) -> str:
        if isinstance(error, TimeoutError) and error.errno is None:
            return f"it took longer than {self.budget.seconds:g} s in all"
        if isinstance(error, socket.gaierror):
            return "its name cannot be looked up"
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            return f"TLS failed: {error.reason or 'the connection ended'}"
        if isinstance(error, OSError) and error.errno is not None:
            return os.strerror(error.errno)
        if isinstance(error, HTTPError):
            return f"it leads nowhere, with status {error.code}"
        if isinstance(error, HTTPException):
            return _OF_HTTP.get(type(error).__name__, "what it sent is no HTTP")
        return f"the request failed ({type(error).__name__})"


class _CutError(HTTPException):
    """An answer is shorter than its server said."""


_ENDS_EARLY = "its answer ends in the middle"
_OF_HTTP = {
    "_CutError": _ENDS_EARLY,
    "IncompleteRead": _ENDS_EARLY,
    "RemoteDisconnected": "it closed the connection without an answer",
    "InvalidURL": "its URL cannot be used",
}


class _Bounded(HTTPConnection):
    """A connection on which every call is limited by the time and bytes that are left."""

    def __init__(self, exchange: _Exchange, host: str, **how: Any) -> None:
        super().__init__(host, **how)
        self._exchange = exchange
        self._create_connection = exchange.connect

    def connect(self) -> None:
        super().connect()
        self.sock = self._exchange.bounded(self.sock)


class _PlainConnection(_Bounded):
    """A connection without TLS."""


class _SecureConnection(_Bounded, HTTPSConnection):
    """A connection with TLS, which is set up before the socket is wrapped."""


class _BoundedSocket:
    """The part of a socket's interface that an open connection uses, within the budget."""

    def __init__(self, sock: Any, budget: Budget) -> None:
        self._sock = sock
        self._budget = budget
        self._readers: list[_BoundedReader] = []

    def sendall(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        while left:
            self._sock.settimeout(self._budget.left_s())
            left = left[self._sock.send(left) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        reader = _BoundedReader(self._sock, self._budget)
        self._readers.append(reader)
        return io.BufferedReader(reader)

    def close(self) -> None:
        """Closes the socket once no reader uses it any more."""
        self._sock.close()

    def end(self) -> None:
        self.close()
        for reader in self._readers:
            reader.close()


class _BoundedReader(io.RawIOBase):
    """Reads from a socket within the budget."""

    def __init__(self, sock: Any, budget: Budget) -> None:
        super().__init__()
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # it keeps the socket open until it is closed
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._budget.left_s())
        size: int = self._file.readinto(buffer)
        self._budget.spend(size)
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


class _Plain(HTTPHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: LibraryRequest) -> HTTPResponse:
        return self.do_open(cast("Any", partial(_PlainConnection, self._exchange)), req)


class _Secure(HTTPSHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def https_open(self, req: LibraryRequest) -> HTTPResponse:
        context = ssl.create_default_context()
        made = partial(_SecureConnection, self._exchange, context=context)
        return self.do_open(cast("Any", made), req)


class _Statuses(HTTPErrorProcessor):
    """Returns an answer of any status; follows redirects if that was asked for."""

    def __init__(self, follows: bool) -> None:
        self._follows = follows

    def http_response(self, request: LibraryRequest, response: Any) -> Any:
        if self._follows and 300 <= response.status < 400:
            return super().http_response(request, response)
        return response

    https_response = http_response


class _SameServer(HTTPRedirectHandler):
    """Follows redirects within the same server only, because only that one is trusted."""

    def redirect_request(
        self, req: LibraryRequest, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> LibraryRequest | None:
        new = urlsplit(newurl)
        if new[:2] != urlsplit(req.full_url)[:2]:
            raise ElsewhereError(f"it leads to another server: {server_of(new)}", was_sent=True)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
