"""The value domain of decision 0003, case by case."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import pytest

from holdfast.core import codec
from holdfast.core.tree import freeze
from holdfast.errors import CorruptError, ValueDomainError


class Stage(enum.StrEnum):
    TRIAGE = "triage"


class Level(enum.IntEnum):
    HIGH = 3


class Colour(enum.Enum):
    RED = "red"


class Shown(dict[str, int]):
    """A dict that shows other items than it holds."""

    def items(self) -> Any:
        return [("shown", 1)]


Point = namedtuple("Point", "x y")
CEST = timezone(timedelta(hours=2))

STORED = [
    (None, b"null"),
    (True, b"true"),
    (0, b"0"),
    (-0.0, b"-0.0"),
    (1.0, b"1.0"),
    (1e22, b"1e22"),
    (5e-324, b"5e-324"),
    (10**40, b"1" + b"0" * 40),
    ("é\u2028\x00", '"é\u2028\\u0000"'.encode()),
    ({"b": 1, "a": [1, {"c": None}]}, b'{"b":1,"a":[1,{"c":null}]}'),
    (math.inf, b'{"$float":"inf"}'),
    (-math.inf, b'{"$float":"-inf"}'),
    (b"hi", b'{"$bytes":"aGk="}'),
    ("\ud800", b'{"$text":"\\"\\\\ud800\\""}'),
    ("a\ud800\udfffb", b'{"$text":["\\"a\\\\ud800\\"","\\"\\\\udfffb\\""]}'),
    ({"$x": 1}, b'{"$pairs":[["$x",1]]}'),
    ({"$x": 1, "y": 2}, b'{"$x":1,"y":2}'),
    ({"$pairs": [["a", 1]]}, b'{"$pairs":[["$pairs",[["a",1]]]]}'),
    ({"\udfff": {"$a": 2}}, b'{"$pairs":[[{"$text":"\\"\\\\udfff\\""},{"$pairs":[["$a",2]]}]]}'),
    (
        datetime(2026, 11, 16, 0, 14, 47, 123456, tzinfo=UTC),
        b'{"$datetime":"2026-11-16T00:14:47.123456+00:00"}',
    ),
    (datetime(2026, 7, 1, tzinfo=CEST), b'{"$datetime":"2026-07-01T00:00:00+02:00"}'),
]


@pytest.mark.parametrize(("value", "text"), STORED, ids=lambda item: repr(item)[:30])
def test_value_has_one_text_and_reads_back(value: Any, text: bytes) -> None:
    assert codec.encode(value) == text
    again = codec.decode(text)
    assert again == value
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_nan_reads_back() -> None:
    assert codec.encode(math.nan) == b'{"$float":"nan"}'
    assert math.isnan(codec.decode(b'{"$float":"nan"}'))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (Stage.TRIAGE, "triage"),
        ({Stage.TRIAGE: Level.HIGH}, {"triage": 3}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Shown(held=2), {"held": 2}),
        (bytearray(b"x"), b"x"),
        (memoryview(b"abc")[::2], b"ac"),
        (freeze({"a": [1, {"b": 2}]}), {"a": [1, {"b": 2}]}),
        ([freeze([1])], [[1]]),
    ],
)
def test_value_is_stored_as_its_base(value: Any, plain: Any) -> None:
    again = codec.decode(codec.encode(value))
    assert again == plain
    assert repr(again) == repr(plain)


class Nowhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> None:
        return None


class Finer(datetime):
    """A time stamp that a datetime cannot hold exactly."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = datetime.__hash__


@pytest.mark.parametrize(
    ("value", "path", "part"),
    [
        ({"a": [0, 1, 2, {1}]}, ("a", 3), "value at ['a'][3] is of type set"),
        (Decimal(1), (), "value is of type Decimal"),
        (Colour.RED, (), "Colour"),
        ({"a": {1: 2}}, ("a",), "has the key 1 of type int: keys must be text"),
        ([{None: 1}], (0,), "NoneType"),
        (datetime(2026, 1, 1), (), "without a time zone"),
        (datetime(2026, 1, 1, tzinfo=Nowhere()), (), "without a time zone"),
        (Finer(2026, 1, 1, tzinfo=UTC), (), "Finer"),
        (date(2026, 1, 1), (), "date"),
        ([10**4000], (0,), "4000 digits"),
        ([-(10**4000)], (0,), "4000 digits"),
        (object(), (), "object"),
        ({"s": "\ud800", "f": print}, ("f",), "builtin_function"),
    ],
)
def test_value_outside_the_domain_is_refused(
    value: Any, path: tuple[str | int, ...], part: str
) -> None:
    with pytest.raises(ValueDomainError) as caught:
        codec.encode(value)
    assert part in str(caught.value)
    assert caught.value.path == path


def test_path_of_the_state_begins_the_path_of_an_error() -> None:
    with pytest.raises(ValueDomainError, match=r"value at \['tasks'\]\[3\]\['x'\] is of type set"):
        codec.encode({"x": set()}, path=("tasks", 3))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_limited() -> None:
    assert codec.decode(codec.encode(nested(100))) == nested(100)
    for value in (nested(101), nested(5000)):
        with pytest.raises(ValueDomainError, match="more than 100 levels"):
            codec.encode(value)
    assert codec.encode(nested(98), path=("a", "b"))
    with pytest.raises(ValueDomainError, match="more than 100 levels"):
        codec.encode(nested(99), path=("a", "b"))


def test_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append({"again": circle})
    with pytest.raises(ValueDomainError, match="contains itself"):
        codec.encode(circle)


def test_size_is_limited() -> None:
    assert codec.encode("x" * 98, size_max=100)
    with pytest.raises(ValueDomainError, match="takes 101 bytes encoded: at most 100"):
        codec.encode("x" * 99, size_max=100)


def test_ordinary_value_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(codec, "_Conversion")
    value = {"role": "user", "content": "é", "n": [1, 2.5, None, True, {"a": {}}]}
    assert codec.decode(codec.encode(value)) == value


def test_sorted_form_does_not_depend_on_the_order_of_keys() -> None:
    a = {"b": 1, "\uffff": 2, "\U00010000": {"d": 1, "c": 2}}
    b = {"\U00010000": {"c": 2, "d": 1}, "\uffff": 2, "b": 1}
    assert codec.encode_sorted(a) == codec.encode_sorted(b)
    assert codec.encode_sorted(a).index(b"\xef\xbf\xbf") < codec.encode_sorted(a).index(b"\xf0")
    odd = {"\ud800": 1, "a": 2}
    assert codec.encode_sorted(odd) == codec.encode_sorted({"a": 2, "\ud800": 1})
    assert codec.decode(codec.encode_sorted(odd)) == odd


def test_unknown_tag_reads_as_a_dict() -> None:
    assert codec.decode(b'{"$later":{"$bytes":"aGk="}}') == {"$later": b"hi"}


def test_tag_is_found_however_its_dollar_is_written() -> None:
    assert codec.decode(b'{ "\\u0024bytes" : "aGk=" }') == b"hi"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"a":1',
        b'"\xff"',
        b'"\\ud800"',
        b"[1]x",
        b"NaN",
        b"[" * 5000,
        b'{"$float":"1.5"}',
        b'{"$float":{}}',
        b'{"$bytes":"*"}',
        b'{"$bytes":1}',
        b'{"$datetime":"2026-01-01T00:00:00"}',
        b'{"$datetime":"soon"}',
        b'{"$text":"1"}',
        b'{"$text":"x"}',
        b'{"$text":["1"]}',
        b'{"$text":[1]}',
        b'{"$text":{"a":1}}',
        b'{"$pairs":{}}',
        b'{"$pairs":[["a"]]}',
        b'{"$pairs":[["a",1],["a",2]]}',
        b'{"$pairs":[[1,2]]}',
        b'{"$blob":{"id":"ab","size":1}}',
    ],
)
def test_malformed_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptError):
        codec.decode(data)


def test_check_finds_a_key_that_is_there_twice() -> None:
    codec.check(b'{"a":{"a":1},"b":[{"a":1},{"a":2}]}')
    with pytest.raises(CorruptError, match="'a' twice"):
        codec.check(b'{"b":[{"a":1,"c":0,"a":2}]}')


def test_blob_reference() -> None:
    id = "0f" * 32
    for size in (0, 65536, 10**15):
        raw = codec.blob_ref(id, size)
        assert codec.parse_blob_ref(raw) == (id, size)
        assert codec.decode(raw) == {"$blob": {"id": id, "size": size}}
        assert codec.decode(raw, blob=lambda id, size: (id, size)) == (id, size)
    for other in (b"1", b'"' + b"x" * 100 + b'"', codec.blob_ref("g" * 64, 5), raw + b" "):
        assert codec.parse_blob_ref(other) is None


def test_users_dict_cannot_name_a_blob() -> None:
    value = {"$blob": {"id": "0f" * 32, "size": 5}}
    raw = codec.encode(value)
    assert codec.parse_blob_ref(raw) is None
    assert codec.decode(raw, blob=lambda id, size: pytest.fail("not a blob")) == value


def test_compression_round_trip() -> None:
    for data in (b"", b"x", b"abc" * 10000):
        assert codec.decompress(codec.compress(data), size_max=30000) == data


def test_decompression_is_limited_and_checked() -> None:
    bomb = codec.compress(bytes(10 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptError, match="at most 1000"):
        codec.decompress(bomb, size_max=1000)
    frame = codec.compress(b"hello" * 100)
    flipped = bytes([*frame[:-1], frame[-1] ^ 1])
    for damaged in (b"", b"junk", frame[:-3], flipped, frame + b"more"):
        with pytest.raises(CorruptError):
            codec.decompress(damaged, size_max=1000)


def test_what_is_nested_deeper_than_python_decodes_is_checked_in_pieces() -> None:
    """Results of nodes were once nested as deep as a chain of nodes is long, and are sound."""
    for depth in (399, 400, 401, 799, 5000):
        deep = b'{"a":"]}","b":[' * depth + b"1" + b"]}" * depth
        codec.check(deep)
        codec.check(b'[%b,{"c":%b}]' % (deep, deep))
        double = deep.replace(b"[1]", b'[{"a":1,"a":2}]')
        for damaged in (
            deep[: len(deep) // 2],
            deep[:-1],
            deep + b"]",
            deep[1:],
            deep[:-2] + b"}]",
            double,
        ):
            with pytest.raises(CorruptError):
                codec.check(damaged)
