"""Programs from a server that misbehaves: all that is fetched for one has a limit."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, NotFoundError, UnavailableError, UsageError
from holdfast.prose.fetching import Fetcher, beside
from holdfast.prose.program import gather
from tests.misbehaving import Misbehaving, answering, for_ever, misbehaving


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


def url_of(server: Misbehaving, name: str = "a.prose") -> str:
    return f"http://127.0.0.1:{server.port}/{name}"


class Ticking(SystemClock):
    """A clock that goes on by a second each time that somebody looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def boot_us(self) -> int:
        self.looks += 1
        return self.looks * 1_000_000


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"b"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"#"),
        (b"HTTP/1.1 302 On\r\nLocation: /b.prose\r\n\r\n", b"#"),
    ],
)
def test_a_server_that_trickles_for_ever_is_left(server: Misbehaving, before: bytes, again: bytes):
    """A limit on each read alone let one hold a program for as long as it liked."""
    server.behaviour = for_ever(before, again)
    clock = Ticking()
    with pytest.raises(HoldfastError):
        Fetcher(timeout_s=20, clock=clock)(url_of(server))
    assert clock.looks <= 22, "each look is a second, and there are twenty"


def test_a_server_that_says_nothing_is_left_after_the_time_that_was_given(server: Misbehaving):
    server.behaviour = lambda connection, request: [*iter(lambda: connection.recv(9), b"")] and None
    with pytest.raises(UnavailableError, match=r"took longer than 0\.05 s in all"):
        Fetcher(timeout_s=0.05)(url_of(server))


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\n",
        b"HTTP/1.1 302 On\r\nLocation: /b.prose\r\n\r\n",
    ],
)
def test_a_program_without_an_end_is_left(server: Misbehaving, before: bytes):
    server.behaviour = for_ever(before, b"#" * 65536)
    with pytest.raises(UsageError, match="larger than"):
        Fetcher()(url_of(server))


def test_redirects_at_the_same_server_are_followed_but_not_for_ever(server: Misbehaving):
    pages = {
        b"/a.prose": answering("302 On", b"", "Location: /b.prose"),
        b"/b.prose": answering("200 OK", b"session 'x'\n"),
        b"/round.prose": answering("302 On", b"", "Location: /round.prose"),
        b"/bad.prose": answering("302 On", b"", "Location: http://[/"),
        b"/file.prose": answering("302 On", b"", "Location: file:///etc/hostname"),
        b"/far.prose": answering("302 On", b"", "Location: http://127.0.0.1:1/?key=secret"),
    }

    def behave(connection: socket.socket, request: bytes) -> None:
        connection.sendall(pages[request.split()[1]])

    server.behaviour = behave
    fetch = Fetcher()
    assert fetch(url_of(server)) == b"session 'x'\n"
    for name in ("round", "bad", "file"):
        with pytest.raises(UnavailableError, match="cannot be fetched"):
            fetch(url_of(server, f"{name}.prose"))
    with pytest.raises(UsageError, match="another server") as found:
        fetch(url_of(server, "far.prose"))
    assert "secret" not in str(found.value)


def test_a_program_that_was_cut_is_no_program(server: Misbehaving):
    """The library gives what came where a size was said, and says nothing of the rest."""

    def behave(connection: socket.socket, request: bytes) -> None:
        connection.sendall(answering("200 OK", b"session 'a'\nsession 'b'\n")[:-12])

    server.behaviour = behave
    with pytest.raises(UnavailableError, match="ends in the middle"):
        Fetcher()(url_of(server))


def test_programs_that_use_others_for_ever_have_one_limit_together(
    server: Misbehaving, tmp_path: Path
):
    def behave(connection: socket.socket, request: bytes) -> None:
        number = int(request.split()[1].removeprefix(b"/p").removesuffix(b".prose"))
        text = f'use "p{number + 1}.prose" as next\n# {"x" * 1000}\n'
        connection.sendall(answering("200 OK", text.encode()))

    server.behaviour = behave
    main = tmp_path / "main.prose"
    main.write_text(f'use "{url_of(server, "p1.prose")}" as first\nsession "x"\n')
    with pytest.raises(UsageError, match=r"p\d+\.prose .* than 20,000 bytes"):
        gather(main, (), Fetcher(bytes_max=20_000))
    assert 10 < len(server.asked) < 20
    clock = Ticking()
    with pytest.raises(UnavailableError, match="longer than 40 s in all"):
        gather(main, (), Fetcher(timeout_s=40, clock=clock))
    assert clock.looks <= 42


@pytest.mark.parametrize("url", ["http://[/x.prose", "https:///x.prose", "http://x/y.prose"])
def test_a_url_that_is_none_is_refused(url: str):
    with pytest.raises(UsageError):
        Fetcher()(url)


def test_what_is_used_beside_is_a_url_or_refused():
    with pytest.raises(UsageError, match="no URL"):
        beside("https://a.example/x.prose", "http://[")


def test_statuses_are_told(server: Misbehaving):
    for status, kind in (("404 x", NotFoundError), ("410 x", NotFoundError), ("206 x", None)):
        server.behaviour = lambda connection, request, status=status: connection.sendall(
            answering(status, b"x")
        )
        with pytest.raises(kind or UnavailableError, match=f"the server says {status[:3]}"):
            Fetcher()(url_of(server))


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
def secure(server: Misbehaving, tmp_path: Path) -> Path:
    """Gives the server a certificate that nobody knows; returns where it is."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.fromtimestamp(SystemClock().now_us() / 1_000_000, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(
        made.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.wrap = lambda connection: context.wrap_socket(connection, server_side=True)
    return certificate


def test_a_program_is_fetched_by_tls_of_a_server_that_is_known(
    server: Misbehaving, secure: Path, monkeypatch: pytest.MonkeyPatch
):
    server.behaviour = lambda connection, request: connection.sendall(answering("200 OK", b"#\n"))
    url = f"https://localhost:{server.port}/a.prose"
    with pytest.raises(UnavailableError, match=r"certificate is not accepted: self.signed"):
        Fetcher()(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(secure))
    assert Fetcher()(url) == b"#\n"
    with pytest.raises(UnavailableError, match="not valid for '127"):
        Fetcher()(f"https://127.0.0.1:{server.port}/a.prose")
    with pytest.raises(UnavailableError, match="cannot be fetched"):
        Fetcher()("https://localhost:1/a.prose")


def test_a_server_that_trickles_by_tls_is_left(
    server: Misbehaving, secure: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(secure))
    server.behaviour = for_ever(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ")
    clock = Ticking()
    with pytest.raises(UnavailableError, match="longer than 20 s in all"):
        Fetcher(timeout_s=20, clock=clock)(f"https://localhost:{server.port}/a.prose")
    assert clock.looks <= 22
