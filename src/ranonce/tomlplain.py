"""Read the plain part of TOML: what `ranonce add` writes, and most people do. For the rest there is `tomllib`.

A configured job reads its file at every start, and to load `tomllib` takes a third of the least that a run can take.
Plain are comments, tables with bare names, and bare keys with a text, a whole number, true or false, or a list of
those, each on one line and without a backslash: there TOML and JSON are the same. At anything else, right or wrong,
this reader gives up; then `tomllib` reads the whole, and says what is wrong with it.
"""

from __future__ import annotations

from ranonce.jsontext import first_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLANK = " \t"
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def read_plain(text: str) -> dict[str, Any] | None:
    """Return the tables of a TOML text, as `tomllib` would; None where not all of it is plain."""
    tables: dict[str, Any] = {}
    table = tables
    try:
        for written in text.replace("\r\n", "\n").split("\n"):
            line = written.strip(BLANK)
            if not line.replace("\t", " ").isprintable():
                return None  # control characters are forbidden almost everywhere, and nobody has a use for them
            if line[:1] == "[":
                table = _opened(tables, line)
            elif _is_more_than_a_comment(line):
                key, value = _pair(line)
                if key in table:
                    return None
                table[key] = value
    except ValueError:
        return None
    return tables


def _opened(tables: dict[str, Any], line: str) -> dict[str, Any]:
    """Make the table of a header, which must be new. ValueError for what is not plain."""
    header, closing, after = line[1:].partition("]")
    names = [name.strip(BLANK) for name in header.split(".")]
    if not closing or _is_more_than_a_comment(after.strip(BLANK)) or not all(map(_is_name, names)):
        raise ValueError(line)
    outer = tables
    for name in names[:-1]:
        outer = outer.setdefault(name, {})
        if not isinstance(outer, dict):
            raise ValueError(line)
    if names[-1] in outer:  # a table that an earlier header has made on its way to another, or twice the same
        raise ValueError(line)
    table: dict[str, Any] = {}
    outer[names[-1]] = table
    return table


def _pair(line: str) -> tuple[str, object]:
    """Return a key and its value. ValueError for what is not plain."""
    key, equals, _ = line.partition("=")
    name = key.rstrip(BLANK)
    at = len(line) - len(line[len(key) + 1 :].lstrip(BLANK))
    if not equals or not _is_name(name) or "\\" in line:
        raise ValueError(line)
    value, end = first_value(line, at)
    if not _is_plain(value) or _is_more_than_a_comment(line[end:].strip(BLANK)):
        raise ValueError(line)
    return name, value


def _is_name(text: str) -> bool:
    return bool(text) and NAME.issuperset(text)


def _is_plain(value: object) -> bool:
    """Whether a value means the same in both languages; a fraction, null or an object does not, or does not always."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int))


def _is_more_than_a_comment(text: str) -> bool:
    return bool(text) and text[0] != "#"
