"""What a PostgreSQL URL says: what libpq would only stumble upon later is refused at once."""

from __future__ import annotations

import pytest

from holdfast.backends.postgresql.connection import parse_url
from holdfast.errors import UsageError


@pytest.mark.parametrize(
    "query",
    [
        "sslmode=sometimes",
        "target_session_attrs=x",
        "gssencmode=x",
        "channel_binding=x",
        "load_balance_hosts=x",
        "connect_timeout=x",
        "keepalives=x",
        "tcp_user_timeout=1.5",
        "port=abc",
        "port=99999",
        "max_connections=3",
        "pool=0",
        "schema=A",
        "application=",
    ],
)
def test_a_bad_parameter_is_refused_at_once(query: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(f"postgresql://u:s3cret@h.invalid/d?{query}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@a.invalid,b.invalid:5433/d?target_session_attrs=read-write",
        "postgresql://u@/d?host=/run/postgresql&sslmode=disable&connect_timeout=5&keepalives=1",
        "postgresql://u@/d?hostaddr=192.0.2.1&sslmode=require",
        "postgres://h.invalid",
    ],
)
def test_a_good_url_asks_no_server(url: str) -> None:
    """Nor a name server: these hosts do not exist."""
    assert parse_url(url).application == "default"
