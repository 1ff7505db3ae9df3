"""What a Redis URL says, and what it must not say aloud. No server is asked."""

from __future__ import annotations

import pytest

from holdfast.backends.redis.connection import ReplyError, may_retry, translate
from holdfast.backends.redis.encoding import Keys
from holdfast.backends.redis.server import parse_url
from holdfast.errors import CorruptError, FormatError, NotFoundError, UnavailableError, UsageError


def test_a_url_has_our_options_and_redis_pys() -> None:
    url = parse_url("redis://u:s3cret@h:7000/2?application=a%20b&timeout=5&pool=3&client_name=x")
    assert (url.application, url.timeout_s, url.pool) == ("a b", 5.0, 3)
    assert url.parameters["host"] == "h"
    assert url.parameters["port"] == 7000
    assert url.parameters["db"] == 2
    assert url.parameters["client_name"] == "x"
    assert "application" not in url.parameters
    assert url.shown == "redis://u@h:7000/2?application=a%20b&timeout=5&pool=3&client_name=x"
    assert url.hide("bad s3cret") == "bad ***"


def test_defaults() -> None:
    url = parse_url("redis://h")
    assert (url.application, url.timeout_s, url.pool) == ("default", 30.0, 8)


@pytest.mark.parametrize("query", ["", "?db=0", "?db=0&application=shop"])
def test_a_socket_needs_no_login(query: str) -> None:
    """The form that the guide and the hint recommend."""
    url = parse_url(f"unix:///run/redis/redis.sock{query}")
    assert url.parameters["path"] == "/run/redis/redis.sock"
    assert url.shown == f"unix:///run/redis/redis.sock{query}"


def test_a_socket_has_a_path_and_a_database() -> None:
    url = parse_url("unix://:s3cret@/run/redis.sock?db=3&password=other")
    assert (url.parameters["path"], url.parameters["db"]) == ("/run/redis.sock", 3)
    assert url.shown == "unix:///run/redis.sock?db=3"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:port/0",
        "redis://h/zero",
        "redis://h?db=x",
        "redis://h?protocol=3",
        "redis://h?socket_timeout=1",
        "redis://h?max_connections=3",
        "redis://h?ssl_password=x",
        "redis://h?ssl_ca_certs=/ca.pem",
        "redis://h?parser_class=x",
        "redis://h?socket_type=x",
        "redis://h?retry=1",
        "redis://h?credential_provider=x",
        "redis://h?redis_connect_func=x",
        "redis://h?encoding=nonsense",
        "redis://h?a%0Ab=1",
        "redis://h?host=elsewhere",
        "rediss://h?ssl_cert_reqs=sometimes",
        "rediss://h?ssl_min_version=new",
        "unix:///r.sock?ssl_password=x",
        "unix:///r.sock?socket_keepalive=true",
        "unix:///r.sock?path=/elsewhere",
        "unix://",
        "redis:h",
        "redis://h?timeout=0",
        "redis://h?timeout=nan",
        "redis://h?pool=0",
        "redis://h?application=",
        "redis://h?application={a}",
        "redis://h?application=a%0Ab",
        "redis://h?application=" + "a" * 200,
    ],
)
def test_what_is_no_url_of_a_store(url: str) -> None:
    with pytest.raises(UsageError):
        parse_url(url)


def test_a_parameter_that_is_not_known_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="redis:// URL has no parameter 'ssl_password'") as caught:
        parse_url("redis://:s3cret@h?ssl_password=s3cret2")
    assert "application" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_tls_has_parameters_of_its_own() -> None:
    url = parse_url("rediss://h?ssl_ca_certs=/ca.pem&ssl_password=s3cret&ssl_check_hostname=true")
    assert url.parameters["ssl_ca_certs"] == "/ca.pem"
    assert url.hide("bad s3cret") == "bad ***"


def test_every_key_has_the_applications_hash_tag() -> None:
    keys = Keys("shop")
    names = [keys.root, keys.heads, keys.streams, keys.log, keys.leases, *keys.of_index("{i}")]
    names += [keys.events("{s}"), keys.keys("s"), keys.checkpoints("s"), keys.named("s")]
    names += [keys.object("blob", "ab"), keys.objects("blob"), keys.token("t")]
    assert len(set(names)) == len(names)
    for name in names:
        assert name[name.index("{") + 1 : name.index("}")] == "shop"


@pytest.mark.parametrize(
    ("said", "kind", "again"),
    [
        ("LOADING Redis is loading the dataset in memory", UnavailableError, True),
        ("READONLY You can't write against a read only replica.", UnavailableError, True),
        ("MOVED 3999 127.0.0.1:6381", UnavailableError, True),
        (
            "ERR Error running script (call to f_1): @user_script:33: @user_script: 33: "
            "-OOM command not allowed when used memory > 'maxmemory'.",
            UnavailableError,
            False,
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'. script: 1, on @user_script:6.",
            UnavailableError,
            False,
        ),
        ("MISCONF Redis is configured to save RDB snapshots", UnavailableError, False),
        ("WRONGPASS invalid username-password pair", UnavailableError, False),
        ("GONE the store is not there", NotFoundError, False),
        ("ERR Error running script: user_script:22: DAMAGED head of a", CorruptError, False),
        ("WRONGTYPE Operation against a key", FormatError, False),
        (
            "ERR Script attempted to access a non local key in a cluster node script: 1",
            UnavailableError,
            True,
        ),
        ("ERR something new", UnavailableError, False),
    ],
)
def test_what_a_servers_error_means(said: str, kind: type[Exception], again: bool) -> None:
    exc = ReplyError(said)
    assert may_retry(exc) == again
    assert type(translate(exc, parse_url("redis://h"), outcome_known=True)) is kind
