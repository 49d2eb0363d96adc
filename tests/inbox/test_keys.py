from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranonce.inbox.keys import LONGEST_KEY, fingerprint_of, key_of


@pytest.mark.parametrize(
    ("field", "key"),
    [
        (b'"8e03978e"', "8e03978e"),
        (b'  "with blanks in it" ', "with blanks in it"),
        (b'"a\\"b\\\\c"', 'a"b\\c'),
        (b"8e03978e-40d5", "8e03978e-40d5"),
        (b"report:2026-11-07/slack/-", "report:2026-11-07/slack/-"),
        (b'"' + b"k" * LONGEST_KEY + b'"', "k" * LONGEST_KEY),
    ],
)
def test_a_key_is_a_quoted_string_or_visible_characters(field, key):
    assert key_of(field) == key


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b'""',
        b'"',
        b'"open',
        b'"a"b"',
        b'"a";p=1',
        b'"a\\x"',
        b'"a\\',
        b'"caf\xc3\xa9"',
        b"two words",
        b"a,b",
        b'"line\nbreak"',
        b"tab\there",
        b"k" * (LONGEST_KEY + 1),
    ],
)
def test_anything_else_is_no_key(field):
    assert key_of(field) is None


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=60))
def test_every_key_comes_back_from_its_quotes(key):
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert key_of(f'"{quoted}"'.encode()) == key


def test_two_requests_have_one_fingerprint_only_if_all_of_them_is_equal():
    first = ("POST", b"/a", b"q=1", b"text/plain", [b"bo", b"dy"])
    others = [
        ("PUT", *first[1:]),
        ("POST", b"/aq", b"=1", *first[3:]),
        ("POST", b"/a", b"q=2", *first[3:]),
        (*first[:3], b"text/html", first[4]),
        (*first[:4], [b"bodi"]),
        (*first[:3], b"text/plainb", [b"ody"]),
    ]
    assert fingerprint_of(*first) == fingerprint_of(*first[:4], [b"body"])
    assert len({fingerprint_of(*each) for each in (first, *others)}) == len(others) + 1
