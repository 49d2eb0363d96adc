"""Lines that are torn, padded, glued, forged or of another kind: what is whole is read, the rest is located."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranonce.exchange import lines
from ranonce.exchange.lines import Bad, Block, Line, blocks
from ranonce.exchange.lookup import Lookup
from ranonce.lifecycle import ScheduleVersion
from ranonce.timefmt import format_instant, parse_instant

ONE = b'{"event":"start","window":"2026-11-07T02","ts":"2026-11-07T02:00:03Z"}'
TWO = b'{"event":"done","window":"2026-11-07T02","ts":"2026-11-07T02:01:03Z"}'


def read(data):
    found = []
    for block in blocks(io.BytesIO(data)):
        found += [block] if isinstance(block, Bad) else list(block.lines())
    return found


def good(data):
    return [line.told["event"] for line in read(data) if isinstance(line, Line)]


def bad(data):
    return [(line.line, line.offset) for line in read(data) if isinstance(line, Bad)]


@pytest.mark.parametrize(
    "data",
    [
        ONE + b"\n" + TWO + b"\n",
        ONE + b"\n" + TWO,
        b"\xef\xbb\xbf" + ONE + b"\r\n" + TWO + b"\r\n",
        b"\n\n  \n" + ONE + b"\n\n" + TWO + b"\n\n",
        ONE + TWO + b"\n",
        ONE + b" " + TWO + b"\n",
        ONE + b"\n" + b"\0" * 100 + TWO + b"\n",
        ONE + b"\0\0\0\n" + TWO + b"\0" * 5000,
        ONE.replace(b'":"', b'" : "').replace(b'","', b'" ,  "') + b"\n" + TWO + b"\n",
        ONE.replace(b"start", b"\\u0073tart") + b"\n" + TWO + b"\n",
    ],
    ids=["plain", "no end", "mark and CRLF", "blank", "glued", "spaced", "NULs", "padded", "odd spacing", "escaped"],
)
def test_every_whole_record_is_read(data):
    assert good(data) == ["start", "done"]
    assert bad(data) == []


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b"7",
        b'"done"',
        b"done",
        b"NaN",
        b"\xff\xfe",
        ONE.replace(b"start", b"st\xff"),
        b"\0" * 50,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"event":"fail","window":"A","event":"done","ts":"2026-11-07T02:00:03Z"}',
        b'{"event":"done" "window":"A"}',
        b"{'event':'done'}",
        b'{"event":"done","window":"a\nb"}'.replace(b"\n", b"\x01"),
    ],
)
def test_what_is_no_record_is_located_and_the_rest_is_read(line):
    data = ONE + b"\n" + line + b"\n" + TWO + b"\n"
    assert good(data) == ["start", "done"]
    assert bad(data) == [(2, len(ONE) + 1)]


def test_torn_at_any_byte_a_record_is_none():
    for cut in range(1, len(TWO)):
        data = ONE + b"\n" + TWO[:cut]
        assert good(data) == ["start"], cut
        assert bad(data) == [(2, len(ONE) + 1)], cut
        glued = TWO[:cut] + ONE + b"\n"
        assert "done" not in good(glued), cut


def test_after_a_whole_record_a_torn_one_is_located_within_its_line():
    assert good(ONE + TWO[:20] + b"\n") == ["start"]
    assert bad(ONE + TWO[:20] + b"\n") == [(1, len(ONE))]


def test_line_separators_of_other_kinds_are_text():
    for separator in ("\u2028", "\u0085"):
        line = json.dumps({"event": "done", "note": f"a{separator}b"}, ensure_ascii=False).encode()
        assert good(line + b"\n") == ["done"]


def test_a_line_without_end_is_passed_over(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 300)
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    long = b'{"event":"done","note":"' + b"x" * 5000 + b'"}'
    data = ONE + b"\n" + long + b"\n" + TWO + b"\n"
    assert good(data) == ["start", "done"]
    assert [place[0] for place in bad(data)] == [2]
    for line in read(data):
        if isinstance(line, Line):
            assert data[line.offset :].startswith((ONE, TWO))
    assert [line.number for line in read(data) if isinstance(line, Line)] == [1, 3]


def test_places_are_right_in_every_block(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    data = b"\xef\xbb\xbf" + b"".join(b"{}\n" if n % 7 else b"oops %d\n" % n for n in range(300))
    for line in read(data):
        number, offset = (line.line, line.offset) if isinstance(line, Bad) else (line.number, line.offset)
        assert data[:offset].count(b"\n") == number - 1
        assert data[offset:].startswith(b"oops" if isinstance(line, Bad) else b"{}")
    assert len(read(data)) == 300


# --- columns --------------------------------------------------------------------------------------------------------

NAMES = ("event", "window", "ts")


def columns(data):
    return Block(data, 1, 0).columns(NAMES)


def test_lines_that_are_built_alike_are_cut_at_once():
    assert columns(ONE + b"\n" + TWO + b"\n") == [
        ["start", "done"],
        ["2026-11-07T02"] * 2,
        ["2026-11-07T02:00:03Z", "2026-11-07T02:01:03Z"],
    ]
    spaced = [line.replace(b":", b": ", 1).replace(b'":"', b'": "').replace(b'","', b'", "') for line in (ONE, TWO)]
    assert columns(b"\n".join([*spaced, b""])) is not None


PIECES = [b'{"event":"', b'","window":"', b'","ts":"', b'"}\n', b"start", b"done", b"x", b"\n", b'"', b"\\", b"{", b"}"]
PIECES += [b'"}', b'{"event":', b",", b":", b"\x1d", b"\x1e", b"\x1f", b"\0", b"\xc3\xa9", b' "', b'","', ONE + b"\n"]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.just(ONE + b"\n"), st.just(TWO + b"\n")), max_size=30))
def test_columns_say_what_parsing_says_or_nothing(pieces):
    data = b"".join(pieces)
    found = columns(data)
    if found is not None:
        told = [line.told for line in Block(data, 1, 0).lines() if isinstance(line, Line)]
        assert len(told) == data.count(b"\n")
        assert [tuple(each) for each in told] == [NAMES] * len(told)
        assert found == [[each[name] for each in told] for name in NAMES]
        assert re.fullmatch(rb'(?:\{"event": ?"[^"\\]*", ?"window": ?"[^"\\]*", ?"ts": ?"[^"\\]*"\}\n)+', data)


# --- many keys at once ---


def lookup():
    versions = (ScheduleVersion(1, "hour", "UTC", "debian", 0, None, 0.0),)
    return Lookup(versions, parse_instant("2026-11-09T12:30:00Z"))


def hours(first, count):
    return [format_instant(first + n * 3600, precision="min")[:13] for n in range(count)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40), st.integers(1, 3)), max_size=12))
def test_keys_are_found_together_as_they_are_one_by_one(rows):
    begin = int(parse_instant("2026-10-25T00:00:00Z"))
    texts = [key for at, count, times in rows for key in hours(begin + at * 3600, count) for _ in range(times)]
    alone = [lookup()(text) for text in texts]
    together = lookup().all_starts(texts)
    if any(isinstance(place, str) for place in alone):
        assert together is None
    else:
        assert list(together) == [place.window.start for place in alone]


@pytest.mark.parametrize(
    "odd", ["2026-11-09T24", "2026-11-9T02", "2026-11-09T2", "2026-11-09", "2026-11-09T13", "x", ""]
)
def test_a_row_with_a_key_that_names_no_window_is_no_row(odd):
    row = hours(int(parse_instant("2026-11-09T00:00:00Z")), 12)
    for at in (0, 5, 11):
        texts = [*row[:at], odd, *row[at + 1 :]]
        assert lookup().all_starts(texts) is None


def test_keys_in_no_order_are_found_too():
    begin = int(parse_instant("2026-01-01T00:00:00Z"))
    texts = sorted(hours(begin, 5000), key=lambda text: text[::-1])
    assert sorted(lookup().all_starts(texts)) == [begin + n * 3600 for n in range(5000)]
