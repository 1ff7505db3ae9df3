"""The hostile corpus: text and values that would be something else if data were not data."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

TRAVERSAL = (
    *("..", "../", "../..", "../../canary", "../" * 40 + "etc/passwd", "/etc/passwd", "//etc"),
    *("/", ".", "./", "a/../../b", "a/./b", "a//b", "a/", "~", "~/.ssh", "$HOME", "%2e%2e%2f"),
    *("..\\..\\x", "C:\\x", "\\\\host\\share", "file:///etc/passwd", "a/../../../canary/planted"),
    *("holdfast.json", "log", "log/0000000000000000.jsonl", "lock", "index.sqlite", "ring"),
    *("objects/blob", ".gitignore", "workers", "torn", "-rf", "--help", "-", "--", "@name:x", "="),
)
DEVICES = ("CON", "NUL", "AUX", "PRN", "COM1", "LPT9", "nul.txt", "con.", "a ", "a.", " a", "aux:")
CONTROL = (
    *("a\0b", "\0", "a\nb", "\n", "a\rb", "\t", "\x1b[2J", "\x1b]0;owned\x07", "\x1bP1$r\x1b\\"),
    *("\x9b31m", "\x85", "\x7f", "\x08\x08", "a\x0bb", "\x1b[6n", "\x1b]8;;http://x\x07y", "\x0e"),
    *("\u2028", "\u2029", "\u202e", "\u202dabc", "\u2066", "\u2069", "\u200e", "\u061c", "\ufeff"),
)
UNICODE = (
    *(
        "é",
        "e\u0301",
        "ﬁ",
        "fi",
        "Å",
        "A\u030a",
        "ß",
        "SS",
        "İ",
        "i\u0307",
        "日本",
        "\u200b",
        "a\u200db",
    ),
    *("\u2060", "\ufffd", "\uffff", "\U0010ffff", "\U0001f600", "\U000e0041", "\u0300" * 50, "٣"),
    *("\ud800", "\udc00", "a\udfff", "\udc80\udcff", "\ud83d\ude00", "\ue000", "ａ", "𝕒", "\u00a0"),
)
STATEMENTS = (
    *("'", '"', "`", "''", "';--", "'; DROP TABLE events; --", '" OR 1=1 --', "1) OR (1=1", "%"),
    *("%%", "_", "*", "?", "[a-z]", "[!a]", "a%", "?1", ":name", "@p", "$1", "\\", "\\'", "a\\0b"),
    *(
        "$.a",
        "$[0]",
        "$..*",
        "#{x}",
        "{{7*7}}",
        "${jndi:ldap://x}",
        "`id`",
        "$(id)",
        "; id",
        "| id",
    ),
    *("redis.call('FLUSHALL')", "]] os.execute('id') --", "../*", "NULL", "null", "None", "true"),
    *('{"$set":1}', '","x":["', "}\n{", "]]>", "<script>alert(1)</script>", "<!--", "&#0;"),
    *("__proto__", "__class__", "__reduce__", "constructor", "!!python/object/apply:os.system"),
)
TAGS = ("$bytes", "$float", "$datetime", "$text", "$pairs", "$blob", "$", "$$", "$unknown", "$py")
SIZES = ("", " ", "a" * 511, "a" * 512, "a" * 513, "é" * 256, "é" * 257, "a" * 100_000, "\0" * 1000)
HUGE = "x" * (1 << 20)

WORDS = (*TRAVERSAL, *DEVICES, *CONTROL, *UNICODE, *STATEMENTS, *TAGS, *SIZES)
_PIECES = [word for word in WORDS if 0 < len(word) < 30]


def mutants(random: Random, count: int) -> list[str]:
    """Returns words put together from hostile pieces, and from any characters there are."""
    found: list[str] = []
    for _ in range(count):
        parts = random.sample(_PIECES, random.randint(1, 4))
        if random.random() < 0.3:
            parts += [chr(random.randrange(0x110000)) for _ in range(random.randint(1, 6))]
        random.shuffle(parts)
        found.append(random.choice(("", "/", "\n", ".")).join(parts))
    return found


class Canary:
    """What would leave a mark if it were pickled, called, printed or asked for its parts."""

    def __init__(self, mark: Path) -> None:
        object.__setattr__(self, "mark", mark)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return os.system, (f"touch {self.mark}",)

    def __getstate__(self) -> Any:
        self.mark.touch()
        return {}

    def __iter__(self) -> Iterator[Any]:
        self.mark.touch()
        return iter(())

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.mark.touch()

    def __json__(self) -> str:
        self.mark.touch()
        return "{}"

    to_dict = model_dump = __json__


class Text(str):
    """Shows something else than it is."""

    def __str__(self) -> str:
        return "../../shown"

    def isascii(self) -> bool:
        return True

    def isprintable(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1


class Number(int):
    """Is another number when asked."""

    def __index__(self) -> int:
        return 99

    def __repr__(self) -> str:
        return "]] hostile"

    __str__ = __repr__


class Table(dict[str, Any]):
    """Shows other pairs than it holds."""

    def items(self) -> Any:
        return [("shown", 1), ("shown", 2)]

    def __getitem__(self, key: Any) -> Any:
        return "shown"


class Row(list[Any]):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 10


class Mapped(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __getitem__(self, key: str) -> Any:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(("a", "../b"))

    def __len__(self) -> int:
        return 2


def nested(depth: int, kind: type) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def cycle(kind: type) -> Any:
    if kind is list:
        row: list[Any] = []
        row.append([row])
        return row
    table: dict[str, Any] = {}
    table["a"] = [table]
    return table


def values(mark: Path) -> list[Any]:
    """Returns values of every hostile kind; `mark` is the file that must never appear."""
    canary = Canary(mark)
    return [
        *(float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1e308, 2**53 + 1),
        *(2**63, 2**64, -(2**64), 10**30, 10**3999, 10**5000, -(10**5000), True, None, 1j),
        *(b"", b"\0\xff", bytearray(b"x"), memoryview(b"xyz"), memoryview(b"abcdef")[::2]),
        *(Text("../x"), Number(7), Table({"a": 1, "$blob": 2}), Row([1]), Mapped()),
        *(OrderedDict(b=1, a=2), (1, (2, (3,))), {1, 2}, frozenset({1}), range(5), Decimal("1.1")),
        *(cycle(list), cycle(dict), nested(99, list), nested(100, dict), nested(101, list)),
        *(nested(150, dict), {1: 2}, {None: 1}, {b"a": 1}, {"": ""}, {("a",): 1}, {"a": {2: 3}}),
        *(canary, [canary], {"a": canary}, {"a": canary.__call__}, lambda: 0, type, Canary, os),
        *(datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
        *(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59))), timedelta(1)),
        *(datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=23))), PurePosixPath("..")),
        *({tag: "aGk="} for tag in TAGS),
        *({tag: None} for tag in TAGS),
        *({tag: {"id": "../../canary", "size": 10**15}} for tag in TAGS),
        *({"$blob": {"id": "0" * 64, "size": 70000}}, {"$pairs": [["a", 1], ["a", 2]]}),
        *({"$text": '"\\ud800"', "a": 1}, {"a" * 100_000: 1}, "x" * 70_000, "\ud800" * 40_000),
        *({word: word} for word in WORDS),
        *WORDS,
    ]
