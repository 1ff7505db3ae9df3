"""Finds secrets in what is about to be stored, by their shapes and the names before them. Pure.

It searches the JSON text that would be written, so it sees every kind of value in one way, and its
cost depends on bytes, not on objects. Escapes are blanked out first, byte for byte, so that what
follows `\\n` in a string begins a word. Then it searches for three things, each at little cost if
there is nothing to find:

- long tokens: runs of 16 or more characters that credentials are made of. The first two characters
  say which kind it may be; random ids and digests mostly begin otherwise, and are skipped.
- markers: `-----BEGIN`, `://`, `Bearer `, `AccountKey=` and some more.
- names: `password`, `api_key`, `secret` and the like, followed by a value that looks random.

A secret is a span of the text, which can be replaced without breaking the JSON around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import log2
from typing import NamedTuple


class Secret(NamedTuple):
    """A span of a text that is a secret, and its kind."""

    start: int
    end: int
    kind: str


_W = rb"[A-Za-z0-9_-]"
_SHAPES: tuple[tuple[str, bytes], ...] = (
    ("aws-access-key", rb"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("github-token", rb"gh[pousr]_[A-Za-z0-9]{36,251}"),
    ("github-token", rb"github_pat_[A-Za-z0-9_]{22,}"),
    ("gitlab-token", rb"gl(?:pat|ptt|dt|rt|cbt|ft|soat|agent)-" + _W + rb"{20,}"),
    ("slack-token", rb"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("slack-token", rb"xapp-[0-9]-[A-Z0-9]{6,}-[0-9]{6,}-[a-f0-9]{16,}"),
    ("stripe-key", rb"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("stripe-key", rb"whsec_[A-Za-z0-9]{24,}"),
    ("google-api-key", rb"AIza" + _W + rb"{35}"),
    ("google-oauth-token", rb"ya29\." + _W + rb"{20,}"),
    ("google-oauth-secret", rb"GOCSPX-" + _W + rb"{20,}"),
    ("anthropic-key", rb"sk-ant-" + _W + rb"{20,}"),
    ("openai-key", rb"sk-(?:proj|svcacct|admin)-" + _W + rb"{20,}"),
    ("openai-key", rb"sk-[A-Za-z0-9]{32,}"),
    ("openrouter-key", rb"sk-or-v1-[a-f0-9]{32,}"),
    ("huggingface-token", rb"hf_[A-Za-z0-9]{30,}"),
    ("replicate-token", rb"r8_[A-Za-z0-9]{30,}"),
    ("groq-key", rb"gsk_[A-Za-z0-9]{40,}"),
    ("npm-token", rb"npm_[A-Za-z0-9]{36}"),
    ("pypi-token", rb"pypi-AgE" + _W + rb"{40,}"),
    ("sendgrid-key", rb"SG\." + _W + rb"{16,}\." + _W + rb"{16,}"),
    ("twilio-key", rb"SK[0-9a-f]{32}(?![0-9A-Za-z])"),
    ("mailgun-key", rb"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    ("digitalocean-token", rb"do[opr]_v1_[0-9a-f]{64}"),
    ("discord-token", rb"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    ("square-token", rb"sq0[a-z]{3}-" + _W + rb"{22,}"),
    ("shopify-token", rb"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("vault-token", rb"hv[sbr]\." + _W + rb"{24,}"),
    ("doppler-token", rb"dp\.(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9_.-]{36,}"),
    ("linear-key", rb"lin_api_[A-Za-z0-9]{32,}"),
    ("notion-token", rb"(?:ntn_|secret_)[A-Za-z0-9]{40,}"),
    ("databricks-token", rb"dapi[0-9a-f]{32}"),
    ("new-relic-key", rb"NRAK-[A-Z0-9]{27}"),
    ("grafana-token", rb"gl(?:sa|c)_[A-Za-z0-9_+/=-]{32,}"),
    ("age-key", rb"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("pulumi-token", rb"pul-[a-f0-9]{40}"),
    ("airtable-token", rb"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    ("atlassian-token", rb"ATATT3[A-Za-z0-9_=-]{40,}"),
    ("cloudflare-key", rb"v1\.0-[a-f0-9]{24}-[a-f0-9]{80,}"),
    ("dropbox-token", rb"sl\.[A-Za-z0-9_-]{60,}"),
    ("json-web-token", rb"eyJ" + _W + rb"{8,}\.eyJ" + _W + rb"{8,}\." + _W + rb"{8,}"),
)
"""Credentials that are known by how they begin: the kind, and a pattern of the whole."""

KINDS = (
    *dict.fromkeys(kind for kind, _ in _SHAPES),
    *("mailchimp-key", "telegram-bot-token", "terraform-token", "slack-webhook", "private-key"),
    *("url-password", "authorization", "azure-key", "named-secret"),
)
"""Every kind that can be found."""

_TOKEN = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.-]{15,}+")
_SHAPE = re.compile(b"|".join(b"(%b)" % shape for _, shape in _SHAPES))
_HEADS = frozenset(
    b"AK AS AB AC gh gi gl xo xa sk rk wh AI ya GO hf r8 gs np py SG SK ke do sq sh hv dp li nt se "
    b"da NR AG pu pa AT v1 sl ey".split()
)
"""How the shapes begin: nearly all ids, digests and long words begin otherwise."""
_INSIDE = (
    (b"-us", "mailchimp-key", rb"(?<![0-9A-Za-z])[0-9a-f]{32}-us[0-9]{1,2}(?![0-9A-Za-z])"),
    (b":AA", "telegram-bot-token", rb"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    (b".atlasv1.", "terraform-token", rb"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,}"),
)
_INSIDES = tuple((mark, kind, re.compile(pattern)) for mark, kind, pattern in _INSIDE)
"""Credentials that are known by a mark in the middle of them."""

_PRIVATE_KEY = re.compile(
    rb'-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^"]*?'
    rb'(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?="|\Z))'
)
_URL = re.compile(rb"://[^\s/:@\"'<>]{0,80}:([^\s/@\"'<>]{3,200})@")
_WEBHOOK = re.compile(rb"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/_-]{20,})")
_AUTHORIZATION = re.compile(rb"(?:[Bb]earer|BEARER|[Bb]asic|BASIC)\s+([A-Za-z0-9_.~+/=-]{16,})")
_AZURE = re.compile(rb"(?:AccountKey|SharedAccessKey|sig)=([A-Za-z0-9+/%]{40,}={0,2})")
_NAME = re.compile(
    rb"(?P<name>pass(?:word|wd|phrase|code)|pwd|key|secret|token|credentials?)"
    rb"(?:[_-]?(?:value|base64))?[\"'\s\]]{0,4}(?:=>|:=|[:=,]|is\b)\s{0,2}[\"'\s]{0,3}"
    rb"(?P<value>[^\s\"',;}\])<>&]{6,200})"
)
"""In a text in lower case: a name, what stands between, and a value."""
_WORDS = (b"pass", b"pwd", b"key", b"secret", b"token", b"credential")
_OF_KEYS = re.compile(
    rb"(?:api|access|secret|private|account|auth|encryption|signing|master|client|service)[_. -]?\Z"
)
"""What stands before `key` if it is a secret: most keys are just names."""
_OF_PAGES = re.compile(rb"(?:page|next|sync|cancel|count|max|min)[_. -]?\Z")
"""What stands before `token` if it is no secret."""
_BEFORE = 16
_SURE = frozenset((b"password", b"passwd", b"passphrase", b"passcode", b"pwd"))
_STAND_IN = re.compile(
    rb"(?i)^(?:\*+|x+|\.+|-+|_+|#+|\$\{?.*|%\w+%|\{.*|<.*|\[.*|none|null|true|false|undefined|"
    rb"redacted.*|your[_-].*|my[_-].*|example.*|placeholder.*|changeme|secret|password|required|"
    rb"optional|string|env[.:].*|os\.environ.*|process\.env.*|vault:.*|file:.*|https?:.*)$"
)
_BLANKS = tuple((escape, b" " * len(escape)) for escape in (rb"\\", rb"\"", rb"\n", rb"\t", rb"\r"))


def find_secrets(text: bytes) -> list[Secret]:
    """Returns the secrets in a JSON text, in order, without overlaps."""
    if b"\\" in text:
        for escape, blank in _BLANKS:
            text = text.replace(escape, blank)
    found: list[Secret] = []
    for token in _TOKEN.finditer(text):
        start = token.start()
        if text[start : start + 2] in _HEADS or text[start] in b"MNO":
            shape = _SHAPE.match(text, start)
            if shape is not None and shape.lastindex is not None:
                found.append(Secret(start, shape.end(), _SHAPES[shape.lastindex - 1][0]))
    for mark, kind, pattern in _INSIDES:
        if mark in text:
            found += _whole(pattern, text, kind)
    if b"-----BEGIN" in text:
        found += _whole(_PRIVATE_KEY, text, "private-key")
    if b"://" in text:
        found += _part(_URL, text, "url-password")
        if b"hooks.slack" in text:
            found += _part(_WEBHOOK, text, "slack-webhook")
    lower = text.lower()
    if b"bearer " in lower or b"basic " in lower:
        found += _part(_AUTHORIZATION, text, "authorization", _is_random)
    if b"key=" in lower or b"sig=" in lower:
        found += _part(_AZURE, text, "azure-key")
    for word in _WORDS:
        if word in lower:
            found += _named(text, lower)
            break
    return _apart(found) if len(found) > 1 else found


def _whole(pattern: re.Pattern[bytes], text: bytes, kind: str) -> Iterator[Secret]:
    for match in pattern.finditer(text):
        yield Secret(match.start(), match.end(), kind)


def _part(
    pattern: re.Pattern[bytes],
    text: bytes,
    kind: str,
    accepts: Callable[[bytes], bool] | None = None,
) -> Iterator[Secret]:
    for match in pattern.finditer(text):
        value = match[1]
        if _STAND_IN.match(value) is None and (accepts is None or accepts(value)):
            yield Secret(match.start(1), match.end(1), kind)


def _named(text: bytes, lower: bytes) -> Iterator[Secret]:
    for match in _NAME.finditer(lower):
        value, name = text[match.start("value") : match.end("value")], match["name"]
        if _STAND_IN.match(value) is not None:
            continue
        before = lower[max(0, match.start() - _BEFORE) : match.start()]
        if name == b"key" and _OF_KEYS.search(before) is None:
            continue
        if name == b"token" and _OF_PAGES.search(before) is not None:
            continue
        if name in _SURE:
            is_secret = not value.isalpha() and not value.isdigit()
        else:
            is_secret = len(value) >= 12 and _is_random(value)
        if is_secret:
            yield Secret(match.start("value"), match.end("value"), "named-secret")


def _is_random(value: bytes) -> bool:
    """Returns whether a text looks random: letters and digits, with 3 bits of entropy a byte."""
    has_digit = any(byte in b"0123456789" for byte in value)
    has_letter = any(byte not in b"0123456789.-_" for byte in value)
    if not (has_digit and has_letter):
        return False
    counts = [value.count(byte) for byte in set(value)]
    size = len(value)
    return -sum(count / size * log2(count / size) for count in counts) >= 3.0


def _apart(found: list[Secret]) -> list[Secret]:
    """Returns spans that do not overlap: the first of two that do takes in the other."""
    found.sort(key=lambda one: (one.start, -one.end))
    kept: list[Secret] = []
    for one in found:
        if kept and one.start < kept[-1].end:
            if one.end > kept[-1].end:
                kept[-1] = kept[-1]._replace(end=one.end)
        else:
            kept.append(one)
    return kept


def redacted(text: bytes, found: list[Secret]) -> bytes:
    """Returns a text with each secret replaced by its kind."""
    parts: list[bytes] = []
    at = 0
    for one in found:
        parts += (text[at : one.start], b"[redacted:%b]" % one.kind.encode())
        at = one.end
    parts.append(text[at:])
    return b"".join(parts)
