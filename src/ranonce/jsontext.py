"""JSON as the standard library reads and writes it, through the half of it that is written in C.

`import json` also loads its other half, and with it regular expressions and enumerations: a sixth of the time that
`ranonce run` takes. That half is there for options, of which none is used here; another interpreter that has no such
half gets the whole.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    _scan: Callable[[str, int], tuple[Any, int]]

try:
    import _json
except ImportError:
    from json import JSONDecoder, JSONEncoder

    def _encoder(key_separator: str, item_separator: str) -> Callable[[object, int], Iterable[str]]:
        encode = JSONEncoder(separators=(item_separator, key_separator)).iterencode
        return lambda value, _: encode(value)

    _scan = JSONDecoder().raw_decode
else:

    def _refuse(value: object) -> None:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    class _Defaults:
        """What the scanner asks its decoder for, as `json.JSONDecoder` has it."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__

    def _encoder(key_separator: str, item_separator: str) -> Callable[[object, int], Iterable[str]]:
        separators = (key_separator, item_separator)
        return _json.make_encoder(None, _refuse, _json.encode_basestring_ascii, None, *separators, False, False, True)

    _scan = _json.make_scanner(_Defaults)  # type: ignore[arg-type]

_spaced, _compact = _encoder(": ", ", "), _encoder(":", ",")


def dumps(value: object) -> str:
    """Return a value as JSON, in ASCII. TypeError for what JSON cannot hold."""
    return "".join(_spaced(value, 0))


def compact(value: object) -> str:
    """Return the same without blanks."""
    return "".join(_compact(value, 0))


def loads(text: str | bytes) -> Any:
    """Return the value that a text (or its UTF-8) holds. ValueError for everything that is not one JSON value."""
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"JSON is text, not {type(text).__name__}")
    text = (text if isinstance(text, str) else text.decode("utf-8")).strip(" \t\r\n")
    value, end = first_value(text, 0)
    if end != len(text):
        raise ValueError(f"there is more than one JSON value: see character {end}")
    return value


def first_value(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a character of a text, and where it ends. ValueError where none begins."""
    try:
        value, end = _scan(text, at)
    except (StopIteration, SystemError):
        # Some versions can raise their own error only where `json` is loaded, and say that they have none to raise.
        raise ValueError(f"no JSON value begins at character {at}: {text[at : at + 20]!r}") from None
    except RecursionError:
        raise ValueError("there are lists in lists in lists, more than anybody writes") from None
    return value, end
