"""One request over HTTP, with limits on the whole of it, that tells nothing of what it was given.

A limit on each read does not end a server that sends a byte now and then, and one on the body ends
neither headers nor redirects. So time and bytes are counted where they are spent, at the socket,
for all that a `Budget` pays for: connecting, TLS, status lines, headers, redirects and bodies, of
one request or of several. (How long a name is looked up is up to the system.)

What is sent may hold a credential, in a header or in the URL, and a server may send it back: in a
reason, a header, a redirect, or as what is no HTTP at all. Exceptions of libraries show what they
found there. So a failure is told in words of this module and is not chained to theirs, a reply has
a status and a body and nothing else, and a request does not show what it holds.
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
    """A request was not answered. Its text is this module's own, and shows nothing that was sent.

    `was_sent` is False if no connection came about, so that nothing was sent.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class TooLargeError(RequestError):
    """What is answered is larger than what the caller takes."""


class ElsewhereError(RequestError):
    """The server leads to another server."""


class Reply(Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes


class Budget:
    """How long something may take and how many bytes it may read, whatever it is made of."""

    def __init__(self, seconds: float, bytes_max: int, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self.bytes_max = bytes_max
        self._clock = clock or SystemClock()
        self._end_us = self._clock.boot_us() + int(seconds * 1_000_000)
        self._bytes_left = bytes_max

    def left_s(self) -> float:
        """Returns how much time is left; raises if there is none."""
        left_us = self._end_us - self._clock.boot_us()
        if left_us <= 0:
            raise TimeoutError
        return left_us / 1_000_000

    def spend(self, size: int) -> None:
        """Takes account of bytes that were read; raises if they are too many."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _TooManyBytesError


class _TooManyBytesError(Exception):
    """A budget has no bytes left."""


class HttpRequest:
    """What is asked for, of whom. The URL has no user name and no password in it."""

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
        # Not where it was caught: what was caught there would be shown beside it.
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
        """Returns what stands for a connected socket, and is closed with all others."""
        self.is_connected = True
        found = _BoundedSocket(sock, self.budget)
        self._open.append(found)
        return found

    def close(self) -> None:
        """Closes what is still open: the library leaves answers open that end in an error."""
        for one in self._open:
            one.end()

    def connect(self, address: tuple[str, int], _timeout: Any, _source: Any) -> socket.socket:
        """Connects to the first place of a name that answers, in the time that all of them have."""
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
        if answer.length:  # what is missing: the library says nothing where a size is given
            raise _CutError
        return Reply(answer.status, body)

    def failure_of(self, error: Exception) -> RequestError:
        """Returns what is told of an error: nothing of what it says, if a server could say it."""
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
    """A connection whose every call has only the time and the bytes that are left."""

    def __init__(self, exchange: _Exchange, host: str, **how: Any) -> None:
        super().__init__(host, **how)
        self._exchange = exchange
        self._create_connection = exchange.connect

    def connect(self) -> None:
        super().connect()
        self.sock = self._exchange.bounded(self.sock)


class _PlainConnection(_Bounded):
    """One without TLS."""


class _SecureConnection(_Bounded, HTTPSConnection):
    """One with TLS, which is set up before the socket is bounded."""


class _BoundedSocket:
    """As much of a socket as a connection uses once it stands."""

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
        """Closes the socket as soon as nobody reads from it any more."""
        self._sock.close()

    def end(self) -> None:
        self.close()
        for reader in self._readers:
            reader.close()


class _BoundedReader(io.RawIOBase):
    """What is read from a socket, while there is time, and as long as it is not too much."""

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
    """Returns an answer of any status; a redirect is followed if that is wanted."""

    def __init__(self, follows: bool) -> None:
        self._follows = follows

    def http_response(self, request: LibraryRequest, response: Any) -> Any:
        if self._follows and 300 <= response.status < 400:
            return super().http_response(request, response)
        return response

    https_response = http_response


class _SameServer(HTTPRedirectHandler):
    """Follows redirects at the same server only: who was asked for is who is believed."""

    def redirect_request(
        self, req: LibraryRequest, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> LibraryRequest | None:
        new = urlsplit(newurl)
        if new[:2] != urlsplit(req.full_url)[:2]:
            raise ElsewhereError(f"it leads to another server: {server_of(new)}", was_sent=True)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
