"""JSON without the module `json`: the same text and the same values."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ranonce.jsontext import compact, dumps, first_value, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
#: Texts that are nearly JSON.
TEXTS = st.text(alphabet='{}[]",:0123456789.eE+-\\ truefalsn\tu\n\x00é', max_size=24) | VALUES.map(json.dumps)


def read(reader: Callable[[str], object], text: str) -> str:
    """Return what a reader makes of a text, or that it is refused."""
    try:
        return repr(reader(text))
    except (ValueError, RecursionError):
        return "refused"


@given(VALUES)
def test_a_value_is_written_as_json_writes_it(value: object) -> None:
    assert dumps(value) == json.dumps(value)
    assert compact(value) == json.dumps(value, separators=(",", ":"))


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert loads(dumps(value)) == value
    assert loads(compact(value).encode()) == value


@given(TEXTS)
@example(" [1, 2] \n")
@example('"\\ud800"')
@example("NaN")
@example("")
@example("1 2")
@example('{"a": 1,}')
def test_a_text_is_read_or_refused_as_json_does(text: str) -> None:
    assert read(loads, text) == read(json.loads, text)


def test_the_first_value_of_a_text_says_where_it_ends() -> None:
    assert first_value('key = ["a"] # why', 6) == (["a"], 11)


def test_no_value_is_said_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"no JSON value begins at character 3: 'text'"):
        first_value("no text", 3)


def test_it_refuses_without_json_what_it_refuses_with_it() -> None:
    code = (
        "import sys\n"
        "from ranonce.jsontext import loads\n"
        "for text in ('\"', '\"\\\\x\"', '[1', '{\"a\"', '\"\\x01\"', '', 'nul', '1 2', '{1: 2}'):\n"
        "    try:\n"
        "        print('read', text, loads(text))\n"
        "    except ValueError:\n"
        "        pass\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ""


@pytest.mark.parametrize("value", [None, 7, ["text"]])
def test_only_text_is_read(value: Any) -> None:
    with pytest.raises(TypeError):
        loads(value)


@pytest.mark.parametrize("value", [{1}, object(), b"bytes"])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="is not JSON serializable"):
        dumps({"key": value})


def test_numbers_that_are_none_are_written_as_python_does() -> None:
    assert dumps([math.inf, -math.inf]) == "[Infinity, -Infinity]"


def test_it_is_the_same_where_there_is_no_half_in_c() -> None:
    code = (
        "import sys; sys.modules['_json'] = None\n"
        "from ranonce.jsontext import compact, dumps, first_value, loads\n"
        "print(dumps({'a': [1, 'é']}), compact({'a': [1, 2.5]}), loads(' [true] '), first_value('x 7 ', 2))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == '{"a": [1, "\\u00e9"]} {"a":[1,2.5]} [True] (7, 3)\n'


def test_lists_nested_deeper_than_anybody_writes_are_no_json():
    with pytest.raises(ValueError, match="lists in lists"):
        loads("[" * 100_000)
