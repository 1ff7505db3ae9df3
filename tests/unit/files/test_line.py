"""A line is read exactly as it was written, or is known to be damaged (clauses 10 and 12)."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.backends.files.journal import encode_batch, find_batches, room
from holdfast.backends.files.text import (
    BadLine,
    decode_line,
    encode_line,
    format_time,
    linked_rows_in,
    linked_rows_of,
    parse_time,
    records_of,
)
from holdfast.backends.protocol import Append, Cleared, Commit, Mark, Position, Record
from holdfast.errors import UsageError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LINK = st.binary(min_size=32, max_size=32)
SPACE = st.text(" \t\r", max_size=3)
ESCAPES = st.sampled_from(
    ['"\\ud800"', '"\\\\ud800 \\u0020 \\udfff"', '{"\\uD83D":"\\ud83d\\ude00"}', '"\\u0020"']
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
VALUES = JSON.map(json.dumps) | JSON.map(lambda v: json.dumps(v, ensure_ascii=False)) | ESCAPES
PAYLOADS = st.tuples(SPACE, VALUES, SPACE).map(lambda parts: "".join(parts).encode())
ESCAPED = st.sampled_from(['{"a":"\\ud800 \\u0020"}', '{ "\\udfff" : "\\u0020" }'])
METAS = st.none() | ESCAPED | st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps)
EVENTS = st.lists(
    st.tuples(TEXT, PAYLOADS, LINK, st.none() | TEXT, st.none() | TEXT, METAS),
    min_size=1,
    max_size=3,
)
SECTIONS = st.lists(st.tuples(TEXT, EVENTS, st.none() | TEXT, st.booleans()), max_size=3)
MARKS = st.lists(
    st.builds(Cleared, TEXT, TEXT)
    | st.builds(Mark, TEXT, TEXT, st.integers(0, 1 << 60), st.integers(-9, 9), TEXT),
    max_size=3,
)
TIMES = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@given(SECTIONS, MARKS, TIMES, TEXT, st.integers(1, 1 << 50))
def test_clause_10_a_line_says_what_was_committed(
    sections: list, marks: list, time: int, actor: str, position: int
) -> None:
    appends: list[Append] = []
    for stream, events, key, fork in sections:
        records = [
            Record(
                stream,
                1 + n,
                time,
                kind,
                actor,
                payload,
                link,
                key if n == 0 else None,
                *names,
                meta=meta,
            )
            for n, (kind, payload, link, *names, meta) in enumerate(events)
        ]
        appends.append(Append(stream, 0, tuple(records), fork))
    encoded, line = encode_line(Commit(time, actor, tuple(appends), marks=tuple(marks)), position)
    assert encoded.count(b"\n") == 1
    json.loads(encoded)
    assert decode_line(encoded) == line
    assert (line.n, line.by, parse_time(line.at)) == (position, actor, time)
    for append, section in zip(appends, line.sections, strict=True):
        found = records_of(line, section)
        assert [r.position for r in found] == [position] * len(found)
        for written, record in zip(append.records, found, strict=True):
            assert record == replace(written, position=Position(position))
        assert bool(section.fork) == append.fork
    kept = [Mark(m.index, m.key, m.due, m.priority, m.group) for m in line.set]
    assert kept == [mark for mark in marks if isinstance(mark, Mark)]
    gone = [Cleared(m.index, m.key) for m in line.clear]
    assert gone == [mark for mark in marks if isinstance(mark, Cleared)]


def _commit(*payloads: bytes, stream: str = "s") -> Commit:
    records = [
        Record(stream, n, 5, "t", "w", payload, bytes(32)) for n, payload in enumerate(payloads, 1)
    ]
    return Commit(5, "w", (Append(stream, 0, tuple(records)),))


@pytest.mark.parametrize("depth", [100, 1_500, 5_000])
@pytest.mark.parametrize("inner", ["1", '"\\ud800 \\u0020]"', '{"]":"}"}'])
def test_a_payload_of_any_depth_is_read_as_it_was_written(inner: str, depth: int) -> None:
    """Results of nodes were stored so deep, and a copy of a store must hold them."""
    deep = b'[{"a":' * depth + inner.encode() + b"}]" * depth
    payloads = [b'"x"', deep, b" %b " % deep, b"[1]", deep.replace(b"a", b"b")]
    commit = _commit(*payloads)
    appends = tuple(
        replace(one, records=tuple(replace(each, meta='{"m":[1]}') for each in one.records))
        for one in commit.appends
    )
    for one in (commit, replace(commit, appends=appends)):
        encoded, line = encode_line(one, 1)
        assert decode_line(encoded) == line
        found = records_of(line, line.sections[0])
        assert [record.payload for record in found] == payloads
        assert [record.meta for record in found] == [each.meta for each in one.appends[0].records]
    for wrong in (deep[:-1], deep[:-1] + b"}", deep[:-1] + b"]]", deep.replace(b":", b"", 1)):
        with pytest.raises(UsageError):
            encode_line(_commit(b"1", wrong), 1)


@pytest.mark.parametrize(
    "meta",
    ["", "null", "[]", '"x"', " {}", "{} ", "{", '{},"more"', '{"a":\n1}', '{}],["t",2', "{}{}"],
)
def test_a_meta_that_is_no_object_on_one_line_is_refused_before_it_is_written(meta: str) -> None:
    record = Record("s", 1, 5, "t", "w", b"1", bytes(32), meta=meta)
    with pytest.raises(UsageError):
        encode_line(Commit(5, "w", (Append("s", 0, (record,)),)), 1)
    padded = replace(record, payload=b" 1")
    with pytest.raises(UsageError):
        encode_line(Commit(5, "w", (Append("s", 0, (padded,)),)), 1)


@pytest.mark.parametrize(
    ("meta", "says"),
    [(b'"aes"', "expected an object"), (b"[1]", "expected an object"), (b'{"a":"\xff"}', "UTF-8")],
)
def test_a_line_of_somebody_else_with_another_meta_is_bad(meta: bytes, says: str) -> None:
    line = decode_line(_line(meta))
    with pytest.raises(BadLine, match=says):
        records_of(line, line.sections[0])


def test_a_meta_that_is_null_is_none() -> None:
    line = decode_line(_line(b"null"))
    assert [record.meta for record in records_of(line, line.sections[0])] == [None]


def _line(meta: bytes) -> bytes:
    """Returns a line by the description of the format."""
    link = b"A" * 43
    body = b'{"n":1,"at":"2026-11-16T00:14:47.123456Z","by":"w","in":[["s",1,[["t",1,"%b",'
    body = (body + b"null,null,null,%b]]]]") % (link, meta)
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def _lines(chance: random.Random, count: int) -> list[bytes]:
    """Returns lines that go on with the stream "s": of one event or several, alone or not."""
    lines: list[bytes] = []
    revision, time = 1, 1_800_000_000_000_000
    for n in range(count):
        time += chance.choice([1, 900_000, 86_400_000_000])
        events = chance.choice([1, 1, 1, 3])
        payloads = [
            chance.choice([b'[["set","n",1]]', b" 1 ", b'"\\u0020"']) for _ in range(events)
        ]
        records = tuple(
            Record(
                "s", revision + place, time, "changed", "w", payload, chance.randbytes(32),
                chance.choice([None, f"key {n}"]), chance.choice([None, "here"]), None,
                meta=chance.choice([None, None, '{"source":"x"}']),
            )
            for place, payload in enumerate(payloads)
        )  # fmt: skip
        other = Record("other", n + 1, time, "changed", "w", b"1", chance.randbytes(32))
        appends = [Append("s", revision - 1, records)]
        if chance.random() < 0.3:
            appends.insert(0, Append("other", n, (other,)))
        lines.append(encode_line(Commit(time, "w", tuple(appends)), n + 1)[0])
        revision += events
    return lines


@pytest.mark.parametrize("seed", range(10))
def test_neighbouring_lines_say_together_what_each_says_alone(seed: int) -> None:
    lines = _lines(random.Random(seed), 40)
    alone = [
        row
        for line in map(decode_line, lines)
        for section in line.sections
        if section.stream == "s"
        for row in linked_rows_of(line, section)
    ]
    assert linked_rows_in(b"".join(lines), "s", 1, 40) == alone


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"in":', b'"in"'),
        (b'["s",2,', b'["t",2,'),
        (b'["s",2,', b'["s",3,'),
        (b'","by"', b'Z","by"'),
        (b":47.", b":97."),
        (b".123", b".x23"),
        (b'"AAAA', b'"\\u00e9AA'),
        (b'"AAAA', b'"AA'),
        (b'["t",1,', b'["t","\\ud800",'),
    ],
)
def test_lines_that_are_not_what_was_written_are_looked_at_one_by_one(
    old: bytes, new: bytes
) -> None:
    two = _line(b"null").replace(b",null,null,null,null]]]]", b"]]]]")
    text = two + two.replace(b'["s",1,', b'["s",2,').replace(b'"n":1', b'"n":2')
    rows = linked_rows_in(text, "s", 1, 2)
    assert rows is not None
    assert [row[0] for row in rows] == [1, 2]
    assert linked_rows_in(text, "s", 1, 3) is None
    assert old in text
    found = linked_rows_in(text.replace(old, new), "s", 1, 2)
    assert found is None or (old, found) == (b'","by"', rows)  # what nobody reads of a time


def test_keys_that_are_not_as_many_as_the_events_are_looked_at_line_by_line() -> None:
    line = _line(b"null").replace(b"null]]]]", b'null]],["a","b"]]]')
    assert linked_rows_in(line, "s", 1, 1) is None


def test_a_link_that_is_none_is_damage_however_it_is_read() -> None:
    line = decode_line(_line(b"null"))
    line.sections[0].events[0].link = "x"
    for items_of in (records_of, linked_rows_of):
        with pytest.raises(BadLine, match="is not base64url"):
            items_of(line, line.sections[0])


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b" ", b"{", b"1 2", b"nul", b'"\xff\xfe', b"1]", b"\n1", b"1\n", b'{"a":\n1}'),
        b'1,"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],["t",2',
        b'1,"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]]],["other",1,[["t",2',
        b'1],"crc":"00000000"}',
    ],
)
def test_a_payload_that_would_break_the_line_is_refused_before_it_is_written(
    payload: bytes,
) -> None:
    for commit in (_commit(payload), _commit(b"1", payload), _commit(payload, b"1")):
        with pytest.raises(UsageError, match="payload"):
            encode_line(commit, 1)


def test_a_name_with_half_a_character_is_refused() -> None:
    with pytest.raises(UsageError, match="lone surrogate"):
        encode_line(_commit(b"1", stream="\ud800"), 1)


def test_a_time_that_no_calendar_has_is_refused() -> None:
    with pytest.raises(UsageError, match="years 1 to 9999"):
        format_time(1 << 62)


def test_times_of_one_second_differ_in_their_fraction() -> None:
    assert format_time(1_700_000_000_000_001) == b"2023-11-14T22:13:20.000001Z"
    assert format_time(1_700_000_000_999_999) == b"2023-11-14T22:13:20.999999Z"


def test_clause_12_every_flipped_bit_is_noticed() -> None:
    encoded, _ = encode_line(_commit(b'{"a":[1,2,"three"]}'), 7)
    for place in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[place] ^= 1 << bit
            with pytest.raises(BadLine):
                decode_line(bytes(damaged))
    for end in range(len(encoded)):
        with pytest.raises(BadLine):
            decode_line(encoded[:end])


def test_a_checked_line_of_another_shape_is_bad() -> None:
    for body in (b"{}", b'{"n":1', b'{"n":"1","at":"","by":"","in":[]', b"[1"):
        with pytest.raises(BadLine):
            decode_line(b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body)))


def test_the_place_after_meta_must_be_null() -> None:
    encoded, _ = encode_line(_commit(b"1"), 7)
    body = encoded[:-19]
    assert body.endswith(b'"]]]]')

    def with_more(more: bytes) -> bytes:
        changed = body[:-4] + more + b"]]]]"
        return b'%b,"crc":"%08x"}\n' % (changed, zlib.crc32(changed))

    assert decode_line(with_more(b",null,null,null,null,null")).n == 7
    for more in (b',null,null,null,null,"k1"', b',null,null,null,{"source":"x"},1'):
        with pytest.raises(BadLine):
            decode_line(with_more(more))


@given(
    st.lists(st.binary(max_size=1500), min_size=1, max_size=8),
    st.integers(0, 1 << 32),
    st.randoms(use_true_random=False),
)
def test_only_whole_batches_are_found_in_a_ring(texts: list[bytes], flip: int, chance) -> None:
    data, places = bytearray(32768), []
    place = offset = 0
    for number, text in enumerate(texts, 1):
        batch = encode_batch(9, number, offset, 0, number - 1, bytes(32), text)
        data[place : place + len(batch)] = batch
        places.append((place, len(batch)))
        place += room(len(text))
        offset += len(text)
    found = find_batches(bytes(data), 9)
    assert [batch.text for batch in found] == texts
    assert [batch.number for batch in found] == list(range(1, len(texts) + 1))
    assert found[-1].next_offset == place
    assert find_batches(bytes(data), 8) == []
    begin, length = chance.choice(places)
    data[begin + flip % length] ^= 1 << (flip >> 16) % 8
    remaining = [batch.ring_offset for batch in find_batches(bytes(data), 9)]
    assert remaining == [p for p, _ in places if p != begin]
