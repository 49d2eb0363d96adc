"""The plain part of TOML: read as `tomllib` reads it, or left to `tomllib`."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ranonce.tomlplain import read_plain

PLAIN = """
# Jobs of this host.\r
[ledger]
store = "sqlite:////var/lib/ranonce/ledger.db"   # on the local disk
id = "0198c7d2f3a44b5c9d6e7f8091a2b3c4"

[jobs.nightly-report]
every = "0 2 * * *"
command = ["./report.sh", "{window}", "# no comment", "Größe"]
max_attempts = 5
stdin = false
\tstop_exit_codes = [75, 3]   \t
uses = []
[ jobs . 7 ]
every = "day"
"""

PIECES = """[ ] [[ = . , # " ' \\ { } a b jobs 1 01 -1 -0 +1 1_0 1.5 1e3 0x1 true false null nan inf 2026-11-09 é \x7f
"a" "a#b" "\\u0041" ["a",1] ["a",] [[1],[]] [a] [a.b] ["a"] a=1 b=2 a.b=1"""
WORDS = st.sampled_from([*PIECES.split(), " ", "\t", "\r", "\n"])
LINES = st.lists(st.lists(WORDS, max_size=6).map("".join), max_size=6).map("\n".join)


def test_what_people_write_is_read_without_tomllib() -> None:
    assert read_plain(PLAIN) == tomllib.loads(PLAIN)


@given(LINES)
@example("[a]\n[a]")
@example("[a.b]\n[a]\nx = 1")
@example("a = 1\n[a.b]")
@example("a = 1\na = 2")
@example("a = {}")
@example("a = NaN")
@example("a = 9223372036854775808")
@example("a = 1 # \x01")
@example("a = 1\r\r\n")
@example("\x0ca = 1")
@example("\r")
@example('a = "\t"')
@example('a = "\x7f"')
@example("a = -0")
def test_it_reads_as_tomllib_does_or_not_at_all(text: str) -> None:
    tables = read_plain(text)
    if tables is not None:
        assert repr(tables) == repr(tomllib.loads(text))


@pytest.mark.parametrize(
    "line",
    [
        'a = "\\n"',
        "a = 'x'",
        "a = 1.5",
        "a = 2026-11-09",
        "a.b = 1",
        '"a" = 1',
        "[[a]]",
        '[a."b"]',
        "a = [",
        "a = {b = 1}",
    ],
)
def test_the_rest_is_left_to_tomllib(line: str) -> None:
    assert read_plain(line) is None
