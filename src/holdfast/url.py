"""URLs of stores: how one is shown, and the numbers that it may hold."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from holdfast.errors import UsageError

_SECRETS = ("password", "sslpassword", "ssl_password", "oauth_client_secret")


def without_secrets(url: str) -> str:
    """Returns the URL as it may be shown, whatever else is wrong with it; a path stays as it is."""
    head, mark, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    if not separator:
        return url
    if "@" in query and "@" not in rest and ":" in rest:
        # A password with a question mark in it, which should have been escaped: what looks like
        # the query may be the rest of it. Rather the host is not shown than that.
        rest, mark, query = f"{rest}?{query}", "", ""
    login, at, where = rest.rpartition("@")
    login = login.partition(":")[0]
    at = at if login else ""
    pairs = [pair for pair in query.split("&") if pair and not _is_secret(pair)]
    return f"{scheme}://{login}{at}{where}{mark if pairs else ''}{'&'.join(pairs)}"


def without(secrets: Sequence[str], text: str) -> str:
    """Returns a message of somebody else's without anything secret in it."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _is_secret(pair: str) -> bool:
    return unquote(pair.partition("=")[0]).lower() in _SECRETS


def number(text: str, what: str, *, least: float, most: float) -> float:
    """Returns a number that a URL holds, or raises UsageError."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not least <= found <= most:
        raise UsageError(f"{what} must be a number from {least} to {most}, found {text!r}")
    return found
