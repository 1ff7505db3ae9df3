"""Made-up credentials of every known kind, and ordinary texts, for the tests and the benchmark.

All are generated: none was ever a credential of anybody's.
"""

from __future__ import annotations

import json
import random
import string
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256

LETTERS = string.ascii_letters + string.digits
WORD = LETTERS + "_-"
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
BASE64 = LETTERS + "+/"

Make = Callable[[random.Random], str]


def some(alphabet: str, size: int) -> Make:
    return lambda rng: "".join(rng.choices(alphabet, k=size))


def after(beginning: str, alphabet: str, size: int) -> Make:
    return lambda rng: beginning + "".join(rng.choices(alphabet, k=size))


def joined(*makes: Make | str) -> Make:
    return lambda rng: "".join(one if isinstance(one, str) else one(rng) for one in makes)


def _pem(rng: random.Random) -> str:
    lines = ["".join(rng.choices(BASE64, k=64)) for _ in range(8)]
    kind = rng.choice(["RSA ", "EC ", "OPENSSH ", ""])
    return "\n".join(
        [f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"]
    )


def _jwt(rng: random.Random) -> str:
    return "eyJ" + ".".join(
        ["".join(rng.choices(WORD, k=33)), "eyJ" + "".join(rng.choices(WORD, k=60)),
         "".join(rng.choices(WORD, k=43))]
    )  # fmt: skip


CREDENTIALS: dict[str, list[Make]] = {
    "aws-access-key": [after("AKIA", UPPER, 16), after("ASIA", UPPER, 16)],
    "github-token": [after("ghp_", LETTERS, 36), after("gho_", LETTERS, 36),
                     after("github_pat_", LETTERS + "_", 82)],
    "gitlab-token": [after("glpat-", WORD, 20)],
    "slack-token": [joined("xoxb-", some("0123456789", 12), "-", some(LETTERS, 24))],
    "slack-webhook": [joined("https://hooks.slack.com/services/T", some(UPPER, 8), "/B",
                             some(UPPER, 8), "/", some(LETTERS, 24))],
    "stripe-key": [after("sk_live_", LETTERS, 24), after("rk_test_", LETTERS, 24)],
    "google-api-key": [after("AIza", WORD, 35)],
    "google-oauth-token": [after("ya29.", WORD, 60)],
    "google-oauth-secret": [after("GOCSPX-", WORD, 28)],
    "anthropic-key": [after("sk-ant-api03-", WORD, 80)],
    "openai-key": [after("sk-", LETTERS, 48), after("sk-proj-", WORD, 60)],
    "openrouter-key": [after("sk-or-v1-", HEX, 64)],
    "huggingface-token": [after("hf_", LETTERS, 34)],
    "replicate-token": [after("r8_", LETTERS, 37)],
    "groq-key": [after("gsk_", LETTERS, 52)],
    "npm-token": [after("npm_", LETTERS, 36)],
    "pypi-token": [after("pypi-AgEIcHlwaS5vcmc", WORD, 60)],
    "sendgrid-key": [joined("SG.", some(WORD, 22), ".", some(WORD, 43))],
    "twilio-key": [after("SK", HEX, 32)],
    "mailgun-key": [after("key-", HEX, 32)],
    "mailchimp-key": [joined(some(HEX, 32), "-us12")],
    "digitalocean-token": [after("dop_v1_", HEX, 64)],
    "telegram-bot-token": [joined(some("123456789", 10), ":AA", some(WORD, 33))],
    "discord-token": [joined("M", some(LETTERS, 23), ".", some(LETTERS, 6), ".", some(WORD, 38))],
    "square-token": [after("sq0atp-", WORD, 22)],
    "shopify-token": [after("shpat_", HEX, 32)],
    "vault-token": [after("hvs.", WORD, 90)],
    "doppler-token": [after("dp.pt.", LETTERS, 43)],
    "linear-key": [after("lin_api_", LETTERS, 40)],
    "notion-token": [after("ntn_", LETTERS, 46), after("secret_", LETTERS, 43)],
    "databricks-token": [after("dapi", HEX, 32)],
    "new-relic-key": [after("NRAK-", UPPER, 27)],
    "grafana-token": [after("glsa_", LETTERS, 41)],
    "age-key": [after("AGE-SECRET-KEY-1", UPPER, 58)],
    "pulumi-token": [after("pul-", HEX, 40)],
    "terraform-token": [joined(some(LETTERS, 14), ".atlasv1.", some(WORD, 67))],
    "airtable-token": [joined("pat", some(LETTERS, 14), ".", some(HEX, 64))],
    "atlassian-token": [after("ATATT3xFfGF0", WORD, 170)],
    "cloudflare-key": [joined("v1.0-", some(HEX, 24), "-", some(HEX, 146))],
    "dropbox-token": [after("sl.B", WORD, 130)],
    "json-web-token": [_jwt],
    "private-key": [_pem],
    "url-password": [joined("postgresql://app:", some(LETTERS + "_!", 14), "@db.example.com/main")],
    "authorization": [joined("Authorization: Bearer ", some(WORD, 40))],
    "azure-key": [joined("AccountName=store;AccountKey=", some(BASE64, 86), "==")],
    "named-secret": [
        joined("password=", some(LETTERS + "!%", 14), "7"),
        joined("api_key: ", some(LETTERS, 32), "7"),
        joined("aws_secret_access_key = ", some(BASE64, 39), "7"),
        joined("client_secret='", some(WORD, 30), "7'"),
    ],
}  # fmt: skip
"""How to make one of each kind."""


def secret_part(kind: str, text: str) -> str:
    """Returns what of a made-up credential must not be stored."""
    if kind == "url-password":
        return text.partition("app:")[2].partition("@")[0]
    if kind == "slack-webhook":
        return text.partition("services/")[2]
    if kind == "authorization":
        return text.rpartition(" ")[2]
    if kind == "azure-key":
        return text.partition("AccountKey=")[2]
    if kind == "named-secret":
        return text.replace("'", "").replace(" = ", "=").replace(": ", "=").partition("=")[2]
    return text


def credentials(rng: random.Random, each: int) -> Iterator[tuple[str, str]]:
    """Yields kinds with made-up credentials of them, as many of each."""
    for kind, makes in CREDENTIALS.items():
        for number in range(each):
            yield kind, makes[number % len(makes)](rng)


_NOUNS = """
account agent answer balance branch budget cache call chapter client code column commit config
context cost customer cursor database decision delivery design detail digest document draft engine
error event example fact file flight folder form function graph guard history hotel index invoice
issue item journal key language lease level library line list log machine memory message method
model moment name network node note number object order package page paper password path person
plan point policy position price process program project promise proof question queue reader
record region release report request result review revision room rule run schema scope search
secret segment server session setting state step store stream summary table task team test text
ticket time token tool total train travel tree trial trip turn type user value vector version view
water week window word worker world writer year
"""
_VERBS = """
is was has needs takes gives finds reads writes keeps sends shows makes counts asks opens closes
waits moves changes returns holds begins ends follows
"""
NOUNS, VERBS = _NOUNS.split(), _VERBS.split()


def sentence(rng: random.Random) -> str:
    words = [w for _ in range(rng.randint(1, 4)) for w in
             ("the", rng.choice(NOUNS), rng.choice(VERBS), rng.choice(["a", "no", "one", "every"]),
              rng.choice(NOUNS))]  # fmt: skip
    return " ".join(words).capitalize() + "."


def _ids(rng: random.Random) -> dict[str, object]:
    digest = sha256(rng.randbytes(8)).hexdigest()
    return {
        "id": str(uuid.UUID(int=rng.getrandbits(128))),
        "digest": digest,
        "commit": digest[:40],
        "ulid": "".join(rng.choices("0123456789ABCDEFGHJKMNPQRSTVWXYZ", k=26)),
        "blob": f"sha256:{digest}",
        "time": f"2026-11-{rng.randint(1, 28):02}T12:00:00.{rng.randint(0, 999999):06}Z",
        "path": f"/srv/app/{rng.choice(NOUNS)}/{rng.choice(NOUNS)}_{rng.randint(1, 99)}.py",
        "url": f"https://www.example.com/{rng.choice(NOUNS)}/{rng.randint(1, 9999)}?page=2",
        "email": f"{rng.choice(NOUNS)}.{rng.choice(NOUNS)}@example.com",
        "usage": {"prompt_tokens": rng.randint(1, 9999), "total_tokens": rng.randint(1, 9999)},
        "call": "call_" + "".join(rng.choices(LETTERS, k=24)),
    }


def _code(rng: random.Random) -> str:
    a, b = rng.choice(NOUNS), rng.choice(NOUNS)
    return rng.choice([
        f"def {a}_{b}(token: str, password: str | None = None) -> dict[str, int]:\n    return {{}}",
        f"API_KEY = os.environ['{a.upper()}_API_KEY']\nclient = Client(api_key=API_KEY)",
        f"curl -H 'Authorization: Bearer $TOKEN' https://api.example.com/{a}/{b}",
        f"password: ${{{{ secrets.{a.upper()}_PASSWORD }}}}\n{b}: true",
        f"token = next(tokens)  # the {a} of the {b}",
        f"DATABASE_URL=postgresql://localhost:5432/{a}",
        f"git checkout {rng.randbytes(20).hex()} -- src/{a}/{b}.py",
        f"<input type='password' name='password' placeholder='your {a} {b}'>",
        f"secret_key_base: <%= ENV['SECRET'] %>\nkey: {a}\nprimary_key: {b}_id",
    ])  # fmt: skip


def ordinary(rng: random.Random) -> str:
    """Returns a text, or a JSON document as text, that has no secret in it."""
    made = rng.randrange(4)
    if made == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(1, 12)))
    if made == 1:
        return json.dumps({**_ids(rng), "text": sentence(rng), "more": [_ids(rng)]})
    if made == 2:
        return _code(rng) + "\n" + sentence(rng)
    return "\n".join(f"{rng.choice(NOUNS)}: {sentence(rng)}" for _ in range(5))
